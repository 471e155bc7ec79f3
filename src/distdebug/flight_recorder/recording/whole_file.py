"""
How does a file appear whole or not at all?

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import contextlib
import os

from collections.abc import Iterator
from pathlib import Path


__all__ = ["replace_link", "write_whole"]


def write_whole(path: Path, data: bytes) -> None:
    """
    Write a file under a temporary name beside it, then rename it.

    Whoever reads *path* sees the earlier file or all of the new one.  Only
    the owner may read it: stacks can tell secrets.

    Args:
        path: The file.

        data: All its content.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    with _renamed(path) as temporary:
        temporary.touch(0o600, exist_ok=False)
        temporary.write_bytes(data)


def replace_link(path: Path, target: str) -> None:
    """
    Let *path* be a symbolic link to *target*, also if it was another before.

    Args:
        path: The link.

        target: What it points to, seen from its folder.

    Raises:
        OSError: It cannot be made; nothing is left behind.
    """
    with _renamed(path) as temporary:
        temporary.symlink_to(target)


@contextlib.contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
