"""
How does one file get another text, whole or not at all?

A hard link or a symbolic link is broken on purpose: what else bears the same
content, such as the cache of an installer or another environment, stays as it
is.
"""

from __future__ import annotations

import os
import stat

from contextlib import suppress
from pathlib import Path

from ..._files import matching


__all__ = ["leftovers", "lock_of", "replace_text"]


def replace_text(path: Path, data: bytes) -> None:
    """
    Replace a file by a new one of the same mode and owner.

    Args:
        path: The file.

        data: All that it is to hold.

    Raises:
        OSError: It cannot be replaced; it is as it was.
    """
    status = path.stat()
    temporary = _temporary(path)
    try:
        _write(temporary, data, status)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync(path.parent)


def lock_of(path: Path) -> Path:
    """
    Which file is locked while another is replaced?

    Args:
        path: The file that is replaced.

    Returns:
        The file of the lock, beside it.
    """
    return path.with_name(f".{path.name}.lock")


def leftovers(path: Path) -> list[Path]:
    """
    What is left by those that were killed while they replaced a file?

    Args:
        path: The file.

    Returns:
        New files that never took its place.
    """
    return matching(path.parent, f".{path.name}.*.distdebug")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.distdebug")


def _write(path: Path, data: bytes, like: os.stat_result) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:  # noqa: PTH123 it has no path
        fd = file.fileno()
        made = os.fstat(fd)
        if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
            os.fchown(fd, like.st_uid, like.st_gid)
        os.fchmod(fd, stat.S_IMODE(like.st_mode))
        file.write(data)
        file.flush()
        os.fsync(fd)


def _sync(folder: Path) -> None:
    # Not every file system can; the file is there nevertheless.
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
