"""
Which of these are alike?
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar


__all__ = ["group_alike"]

T = TypeVar("T")


def group_alike(
    items: Iterable[T], key: Callable[[T], Hashable]
) -> list[list[T]]:
    """
    Gather what has the same key, in the order of first appearance.

    Args:
        items: What to gather.

        key: Tells what has to be equal.
    """
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
