"""
Which bars are of the same loop?
"""

from __future__ import annotations

import re


__all__ = ["plain_name", "series_of"]

_RANKS = re.compile(
    r"(?i:\b(?:rank|worker|gpu|engine|replica|node|[tpde]p)[ _=:#-]{0,2}\d{1,7})"
)
_CHANGES = re.compile(r"\([^()]{0,200}\)|\d{1,20}(?:\.\d{1,20})?")


def plain_name(name: str) -> str:
    """
    The name of a bar, without what a logger wrote before it.

    Args:
        name: All that stands before the percentage.

    Returns:
        The name.
    """
    for sign in ("] ", " - ", ">> ", "| "):
        name = name.rpartition(sign)[2] or name
    return re.sub(r"^[\d:.,]{1,12}:? {1,4}(?=\D)", "", name).strip()


def series_of(name: str) -> tuple[str, str]:
    """
    What the bars of one loop have in common.

    A loop may write what it is about into the name of its bar, such as
    ``Capturing batches (bs=8 avail_mem=9.2 GB)``; numbers of ranks tell loops
    apart.

    Args:
        name: All that stands before the percentage.

    Returns:
        Whose it is, as the name tells, and the name without what changes.
    """
    ranks = " ".join(_RANKS.findall(name))
    return ranks, _CHANGES.sub("", plain_name(name))
