"""
How are words and numbers of these lines read?
"""

from __future__ import annotations

import re


__all__ = ["Number", "op_name", "spaced", "to_number"]

# Unsigned numbers that were never set are printed as the largest there is.
_MOST = 1 << 62
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_GLUED = re.compile(r"all(?=reduce|gather|to_?all)")

Number = r"-?\d{1,20}"


def spaced(pattern: str) -> str:
    """
    Let a pattern match however many blanks stand where it has one, or none.

    >>> from distdebug.logscan.collectives.words import spaced
    >>> spaced("ran for")
    'ran\\\\s{0,9}for'
    """
    return pattern.replace(" ", r"\s{0,9}")


def to_number(text: str | None) -> int | None:
    """
    Read a number; ``None`` if there is none, or if it never was set.
    """
    if text is None:
        return None

    number = int(text)
    return number if -1 <= number < _MOST else None


def op_name(text: str) -> str:
    """
    What is an operation of torch or NCCL called in dumps?

    >>> from distdebug.logscan.collectives.words import op_name
    >>> op_name("_ALLGATHER_BASE"), op_name("ReduceScatter")
    ('_all_gather_base', 'reduce_scatter')
    """
    if not text.isupper():
        text = _CAMEL.sub("_", text)
    name = _GLUED.sub("all_", text.lower())
    return {
        "all_toall": "all_to_all",
        "all_toall_base": "all_to_all",
        "all_to_all_base": "all_to_all",
        "all_to_all_v": "all_to_all",
    }.get(name, name)
