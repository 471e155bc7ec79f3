"""
How does a result show itself, as text and in a notebook?

A result says what there is to show, in blocks.  Text and HTML are made from the
same blocks, so that they cannot say different things.
"""

from __future__ import annotations

from .blocks import (
    Block,
    Branch,
    Entries,
    Entry,
    Lines,
    Shown,
    Table,
    Tree,
    blocks_html,
    blocks_text,
    frame_of,
)


__all__ = [
    "Block",
    "Branch",
    "Entries",
    "Entry",
    "Lines",
    "Shown",
    "Table",
    "Tree",
    "blocks_html",
    "blocks_text",
    "frame_of",
]
