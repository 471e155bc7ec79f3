"""
How does a result become plain data?
"""

from __future__ import annotations

from enum import Enum
from pathlib import PurePath
from typing import Any

import attrs


__all__ = ["as_plain"]


def as_plain(result: Any) -> dict[str, Any]:
    """
    Turn a result into data that JSON knows.

    Args:
        result: Of a class made by attrs, with any such inside.

    Returns:
        Its fields; tuples are lists, paths are texts, and members of an
        enumeration are their values.
    """
    return attrs.asdict(result, value_serializer=_plain)


def _plain(_: object, __: object, value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)

    return list(value) if isinstance(value, tuple) else value
