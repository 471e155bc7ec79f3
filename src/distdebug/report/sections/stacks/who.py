"""
Which processes are these, in few words?
"""

from __future__ import annotations

from collections.abc import Sequence

from ...._text import clean
from ....stacks.merge import StackTree


__all__ = ["who_text"]

_MOST_WHO = 60


def who_text(
    tree: StackTree, members: Sequence[int], *, limit: int = _MOST_WHO
) -> str:
    """
    Which processes are these?

    Args:
        tree: Knows them.

        members: Positions in its *processes*.

        limit: How many characters to keep.

    Returns:
        Such as ``"ranks 0-2,4"``; nothing for nobody.
    """
    who = tree.who(dict.fromkeys(members))
    if who[:1].isdigit():
        who = f"rank{'' if len(members) == 1 else 's'} {who}"
    return clean(who, limit=limit)
