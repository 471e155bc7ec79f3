"""
Is somebody else attaching tools to processes of this node right now?

Two tools cannot be attached to one process, and two collectors would stop each
process twice.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import CaptureError, NodeBusyError
from ...processes.procfs import parse_stat, read_proc


__all__ = ["node_lock"]

_STEP_S = 0.05
# There are file systems that tell two things about one file.
_MOST_REMOVED = 1000


@contextmanager
def node_lock(
    wait_s: float = 0.0,
    folder: str | None = None,
    *,
    name: str = "distdebug",
) -> Iterator[Path]:
    """
    Let only one collector of this user attach on this node at a time.

    Args:
        wait_s: How long to wait for another one, in seconds.

        folder: Where the lock is; by default the user's runtime directory, or
            else the directory for temporary files.

        name: What is locked; those who name something else are let in.

    Yields:
        The file that is locked.

    Raises:
        NodeBusyError: Another collector is at work.

        CaptureError: The file of the lock cannot be opened, or belongs to
            somebody else.
    """
    path = Path(folder or _folder()) / f"{name}-{os.getuid()}.lock"
    fd = _lock(path, wait_s)
    try:
        # On a full disk it is a lock still, which does not tell of whom.
        with suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield path
    finally:
        # Before it is given back: who gets it sees that it is gone.
        with suppress(OSError):
            if _is_at(fd, path):
                path.unlink()
        os.close(fd)


def _folder() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.access(runtime, os.W_OK):
        return runtime

    try:
        return tempfile.gettempdir()
    except OSError as exc:
        msg = f"there is no place for a lock: {exc.strerror or exc}"
        raise CaptureError(
            msg, remedy="set TMPDIR to a folder with space"
        ) from exc


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_NONBLOCK, 0o600)
    except OSError as exc:
        msg = f"the lock {path} cannot be opened: {exc.strerror}"
        raise CaptureError(msg, remedy=_other_folder(path)) from exc

    # In a folder for everybody, somebody else may have been there first.
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid():
        os.close(fd)
        msg = f"the lock {path} belongs to user {seen.st_uid}, or is no file"
        raise CaptureError(msg, remedy=_other_folder(path))
    return fd


def _other_folder(path: Path) -> str:
    return f"remove {path}, or set TMPDIR to a folder of your own"


def _lock(path: Path, wait_s: float) -> int:
    """
    A descriptor of the file, which is locked as long as it is open.
    """
    end, removed = time.monotonic() + wait_s, 0
    while True:
        fd = _open(path)
        try:
            if _try_lock(fd, path, is_last=time.monotonic() >= end):
                # Whoever had it may have removed it since it was opened.
                if _is_at(fd, path) or removed >= _MOST_REMOVED:
                    return fd
                removed += 1
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _try_lock(fd: int, path: Path, *, is_last: bool) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        if is_last:
            holder = _holder(fd)
            msg = f"{holder} is attaching to processes of this node"
            raise NodeBusyError(
                msg, remedy=f"wait for {holder} to end, or end it ({path})"
            ) from exc
        time.sleep(_STEP_S)
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    found = (
        parse_stat(read_proc(f"/proc/{text}/stat")) if text.isdigit() else None
    )
    return f"process {text}" if found is not None else "another process"
