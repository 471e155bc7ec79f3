"""
Render results: blocks to text, to HTML for notebooks, and to data frames.

A result describes itself in blocks.  Text and HTML are made from the same
blocks, so that they cannot say different things.
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
