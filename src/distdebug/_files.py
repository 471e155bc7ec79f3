"""
How does a file appear whole or not at all, and how is one read without waiting?

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat

from collections.abc import Iterator
from pathlib import Path
from typing import IO


__all__ = [
    "numbered",
    "open_ordinary",
    "read_ordinary",
    "replace_link",
    "scratch_file",
    "write_whole",
]

_BLOCK = 1 << 12


def open_ordinary(path: str | os.PathLike[str], complaint: str) -> IO[bytes]:
    """
    Open a file to be read, if it is an ordinary one.

    What lies there may be a pipe in truth, at which opening would wait until
    somebody writes to it.

    Args:
        path: The file.

        complaint: What to say of anything else.

    Returns:
        The file, opened.

    Raises:
        OSError: It cannot be opened.

        ValueError: It is no ordinary file.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 pathlib knows no opener
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(complaint)

    return file


def read_ordinary(path: str | os.PathLike[str], most: int) -> bytes:
    """
    Read an ordinary file of ordinary size.

    Args:
        path: The file.

        most: How many bytes it may have.

    Returns:
        All its content.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file, or too large.
    """
    with open_ordinary(path, "not an ordinary file") as file:
        data = file.read(most + 1)
    if len(data) > most:
        msg = f"larger than {most:,} bytes"
        raise ValueError(msg)

    return data


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def numbered(path: Path) -> Iterator[Path]:
    """
    What to call something if others of its name are there already?

    Args:
        path: What it should be called.

    Yields:
        *path*, ``PATH.2``, ``PATH.3``, and so on without end.
    """
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.name}.{number}")


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


def scratch_file() -> IO[bytes]:
    """
    Open a file without a name, for what another process is to read or write.

    Returns:
        The file, empty; it is in memory where no disk takes anything.

    Raises:
        OSError: Nothing can be opened at all.
    """
    import tempfile  # jobs have no use for it

    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile())
        # A full disk is only seen when something is written.
        file.write(bytes(_BLOCK))
        file.flush()
        file.seek(0)
        file.truncate()
        stack.pop_all()
        return file

    return os.fdopen(os.memfd_create("distdebug"), "w+b")


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
