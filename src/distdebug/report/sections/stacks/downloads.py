"""
Which files for other tools does a page carry?
"""

from __future__ import annotations

from collections.abc import Mapping

from ....stacks.draw import to_collapsed, to_speedscope
from ....stacks.merge import StackTree


__all__ = ["downloads_of"]

# A stack is written out once per place, so a deep tree would be large.
_MOST_FRAMES = 20_000
_MOST_CHARACTERS = 400_000


def downloads_of(tree: StackTree) -> Mapping[str, str]:
    """
    Which files for other tools can be made of this tree?

    Args:
        tree: The merged stacks.

    Returns:
        Texts by name of file; those that are too large for a page are left
        out.
    """
    if _frames(tree) > _MOST_FRAMES:
        return {}

    texts = {
        "stacks.collapsed.txt": to_collapsed(tree, who=True),
        "stacks.speedscope.json": to_speedscope(tree),
    }
    return {
        name: text
        for name, text in texts.items()
        if len(text) <= _MOST_CHARACTERS
    }


def _frames(tree: StackTree) -> int:
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    ends = zip(depths, tree.ends, strict=True)
    return sum(depth for depth, members in ends if members)
