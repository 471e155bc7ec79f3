"""
Would Python load something else than what the source says?

Byte code that carries no check of its source is loaded whatever the source is
like.  Images are often built with such.
"""

from __future__ import annotations

import importlib.util
import re

from contextlib import suppress
from pathlib import Path

from ..._files import open_ordinary


__all__ = ["remove_bytecode", "stale_bytecode"]

_HEAD = 16
# Flags of the header: a hash stands in it; and that is compared.
_HAS_HASH, _IS_CHECKED = 1, 2


def stale_bytecode(source: Path) -> tuple[str, ...]:
    """
    Which compiled files would be loaded although the source is another?

    Args:
        source: The source.

    Returns:
        The files, of every version of Python and every optimization.
    """
    try:
        with open_ordinary(source, "not an ordinary file") as file:
            wanted = importlib.util.source_hash(file.read())
    except (OSError, ValueError):
        return ()

    return tuple(
        str(file) for file in _compiled(source) if _is_stale(file, wanted)
    )


def remove_bytecode(source: Path) -> None:
    """
    Remove all compiled files of a source, as far as we may.

    Args:
        source: The source.
    """
    for file in _compiled(source):
        with suppress(OSError):
            file.unlink()


def _compiled(source: Path) -> list[Path]:
    name = re.compile(rf"{re.escape(source.stem)}\.[\w-]+(\.opt-\w+)?\.pyc")
    # The second is the same, unless PYTHONPYCACHEPREFIX is set.
    folders = {source.parent / "__pycache__"}
    with suppress(NotImplementedError):
        cached = importlib.util.cache_from_source(str(source))
        folders.add(Path(cached).parent)
    found = []
    for folder in sorted(folders):
        with suppress(OSError):
            found += [x for x in folder.iterdir() if name.fullmatch(x.name)]
    return sorted(found)


def _is_stale(file: Path, wanted: bytes) -> bool:
    try:
        with open_ordinary(file, "not an ordinary file") as opened:
            head = opened.read(_HEAD)
    except (OSError, ValueError):
        return False

    flags = int.from_bytes(head[4:8], "little")
    is_unchecked = flags & _HAS_HASH and not flags & _IS_CHECKED
    return bool(is_unchecked) and head[8:16] != wanted
