"""
What is a part of the page made of?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


__all__ = ["Section"]


@attrs.frozen(kw_only=True)
class Section:
    """
    One part of the page.

    Attributes:
        name: Its anchor; also the name of its template, its style, and its
            script, as far as it has them.

        title: Its heading.

        summary: What it shows, in a few words that are seen while it is
            folded.

        values: What its template shows.

        data: What its script draws: plain data that JSON knows; None if it
            has no script.

        is_open: Whether it is unfolded at first.
    """

    name: str
    title: str
    summary: str = ""
    values: Mapping[str, Any] = attrs.field(factory=dict)
    data: Any = None
    is_open: bool = True
