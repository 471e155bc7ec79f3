"""
Which branches of a tree are worth their room?
"""

from __future__ import annotations

import heapq

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import attrs

from ....stacks.merge import StackTree


__all__ = ["Cut", "choose_cuts"]

_MOST_BRANCHES = 400
_MOST_LINES = 6_000
# Browsers cut what is nested 512 times; people do earlier.
_MOST_DEPTH = 30


@attrs.define(kw_only=True)
class Cut:
    """
    A branch that will be shown.

    Attributes:
        chain: Its nodes, each below the one before.

        depth: How many branches are above it.

        culprits: Who of those that took it is to blame.

        below: Positions of the branches that follow.

        rest: The first nodes of those that follow and are not shown.
    """

    chain: Sequence[int]
    depth: int
    culprits: Sequence[int]
    below: list[int] = attrs.field(factory=list)
    rest: list[int] = attrs.field(factory=list)


def choose_cuts(
    tree: StackTree, culprits: AbstractSet[int]
) -> tuple[list[Cut], list[int], list[int]]:
    """
    Which branches are shown?

    Args:
        tree: The merged stacks.

        culprits: Who is to blame, as positions in the tree's *processes*.

    Returns:
        Those branches, each after the one above it; positions of the
        outermost ones; the first nodes of outermost ones that are not shown.
    """
    forks: list[list[int]] = [[] for _ in tree.frames]
    heads: list[int] = []
    for node, parent in enumerate(tree.parents):
        (forks[parent] if parent >= 0 else heads).append(node)

    cuts: list[Cut] = []
    roots: list[int] = []
    rest: list[int] = []
    lines = 0
    todo = [_order(tree, culprits, node, -1) for node in heads]
    heapq.heapify(todo)
    while todo:
        _, _, head, above = heapq.heappop(todo)
        depth = cuts[above].depth + 1 if above >= 0 else 0
        is_full = len(cuts) >= _MOST_BRANCHES or lines >= _MOST_LINES
        if is_full or depth > _MOST_DEPTH:
            (cuts[above].rest if above >= 0 else rest).append(head)
            continue

        chain = _chain(tree, forks, head)
        lines += min(len(chain), _MOST_LINES // 20)
        (cuts[above].below if above >= 0 else roots).append(len(cuts))
        for child in forks[chain[-1]]:
            heapq.heappush(todo, _order(tree, culprits, child, len(cuts)))
        found = [m for m in tree.members[head] if m in culprits]
        cuts.append(Cut(chain=chain, depth=depth, culprits=found))
    return cuts, roots, rest


def _order(
    tree: StackTree, culprits: AbstractSet[int], node: int, above: int
) -> tuple[bool, int, int, int]:
    members = tree.members[node]
    return culprits.isdisjoint(members), -len(members), node, above


def _chain(
    tree: StackTree, forks: Sequence[Sequence[int]], head: int
) -> Sequence[int]:
    chain = [head]
    while len(forks[chain[-1]]) == 1 and not tree.ends[chain[-1]]:
        chain.append(forks[chain[-1]][0])
    return chain
