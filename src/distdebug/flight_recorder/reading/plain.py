"""
Is a value from outside of the kind that is expected?

This runs in the child processes that decode dumps, and needs nothing but the
standard library.
"""

from __future__ import annotations

import struct

from typing import Any


__all__ = ["TEXT_LIMIT", "WRONG", "number", "sequence", "text"]

# What a value of the wrong kind raises, sooner or later.
WRONG = (
    *(AttributeError, KeyError, OverflowError, TypeError, ValueError),
    struct.error,
)

# Longer names say nothing more.
TEXT_LIMIT = 1000


def text(value: Any) -> str:
    """
    A string, shortened if it is very long.
    """
    if not isinstance(value, str):
        msg = "not a string"
        raise TypeError(msg)

    return value[:TEXT_LIMIT]


def number(value: Any, *, bits: int = 63) -> int:
    """
    A whole number that fits into so many bits and a sign.
    """
    if not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits:
        msg = "not a number of this size"
        raise TypeError(msg)

    return value


def sequence(value: Any) -> list[Any] | tuple[Any, ...]:
    """
    A list or tuple, whatever is in it.
    """
    if not isinstance(value, list | tuple):
        msg = "not a list"
        raise TypeError(msg)

    return value
