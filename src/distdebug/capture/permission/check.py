"""
What was checked, and what came of it?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from ..._showing import Block, Lines, Table


__all__ = ["Check", "check_blocks"]

_WORDS = {True: "ok", False: "PROBLEM", None: "note"}


@attrs.frozen
class Check:
    """
    One thing that capturing depends on.

    Attributes:
        name: What was checked.

        ok: Whether it is as it should be; ``None`` if one can do without.

        detail: What was found.

        remedy: What to do about it, or ``""``.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def check_blocks(checks: Sequence[Check]) -> Iterator[Block]:
    """
    What is there to show of some checks?

    Args:
        checks: What was checked.

    Returns:
        A table, and what to do where something is not as it should be.
    """
    rows = [(_WORDS[c.ok], c.name, c.detail) for c in checks]
    yield Table(("", "check", "found"), rows, most=len(rows))
    yield Lines(
        [
            f"{c.name}: {c.remedy}"
            for c in checks
            if c.ok is not True and c.remedy
        ]
    )
