"""
What did a user write in a file of TOML, told in bounded time?
"""

from __future__ import annotations

import os
import tomllib

from typing import Any

from ._files import read_ordinary


__all__ = ["read_toml"]

_MOST_BYTES = 1 << 20
# A key is one line, and each of its parts takes as much time as all before.
_MOST_LINE = 4000


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """
    Read a file in TOML.

    Args:
        path: The file, of at most 1 MiB and 4,000 characters per line.

    Returns:
        Its tables.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file, too large, or no TOML.
    """
    text = read_ordinary(path, _MOST_BYTES).decode()
    if max(map(len, text.split("\n"))) > _MOST_LINE:
        msg = f"a line is longer than {_MOST_LINE:,} characters"
        raise ValueError(msg)

    try:
        return tomllib.loads(text)
    except RecursionError:
        msg = "nested too deeply"
        raise ValueError(msg) from None
