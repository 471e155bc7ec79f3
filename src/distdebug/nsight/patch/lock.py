"""
Does somebody else change this file right now?
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


__all__ = ["file_lock"]

_STEP_S = 0.02
# Some file systems know no such locks.  Who renames a whole file in place
# needs them only so as not to do the same work twice.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@contextmanager
def file_lock(path: Path, wait_s: float) -> Iterator[None]:
    """
    Let one process at a time change a file.

    Args:
        path: The file of the lock; it is gone afterwards.

        wait_s: How long to wait for another process, in seconds.

    Raises:
        TimeoutError: The other one did not end in time.

        OSError: The lock cannot be made.
    """
    end = time.monotonic() + wait_s
    while True:
        fd = _open(path)
        if _locked(fd, path, end):
            break
        os.close(fd)
    try:
        yield
    finally:
        # While it is held: who waits for it sees that it is gone.
        with suppress(OSError):
            path.unlink()
        os.close(fd)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags | os.O_NONBLOCK, 0o644)


def _locked(fd: int, path: Path, end: float) -> bool:
    """
    Wait for the lock; whether its file is still the one of that name.
    """
    try:
        _wait(fd, path, end)
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
    except BaseException:
        os.close(fd)
        raise


def _wait(fd: int, path: Path, end: float) -> None:
    while not _tried(fd):
        if time.monotonic() >= end:
            msg = "somebody else is changing it"
            raise TimeoutError(errno.ETIMEDOUT, msg, str(path))
        time.sleep(_STEP_S)


def _tried(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        if exc.errno not in _NO_LOCKS:
            raise
    return True
