"""
Render results: blocks to text, terminals, HTML, and data frames.

A result describes itself in blocks.  Text and HTML are made from the same
blocks, so that they cannot say different things.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .blocks import Block as Block
    from .blocks import Branch as Branch
    from .blocks import Entries as Entries
    from .blocks import Entry as Entry
    from .blocks import Lines as Lines
    from .blocks import Shown as Shown
    from .blocks import Table as Table
    from .blocks import Tree as Tree
    from .blocks import as_plain as as_plain
    from .blocks import blocks_html as blocks_html
    from .blocks import blocks_text as blocks_text
    from .blocks import frame_of as frame_of
    from .markdown import blocks_markdown as blocks_markdown
    from .terminal import make_console as make_console
    from .terminal import print_blocks as print_blocks
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)
