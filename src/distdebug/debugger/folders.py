"""
In which folder do the sockets of a job lie, and is it ours alone?

A debugger runs code as the user of the job, so nobody else may get at its
sockets: the folder must belong to us, and be open to nobody else.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import os
import re
import stat

from collections.abc import Iterator
from pathlib import Path

from ..errors import DebuggerError
from ..identity import current_identity


__all__ = [
    "base_folder",
    "check_folder",
    "job_folder",
    "job_folders",
    "make_folder",
    "socket_path",
    "socket_paths",
]

_SUFFIX = ".sock"
# What the kernel keeps of the name of a Unix socket, with a NUL at its end.
_LONGEST = 107


def base_folder() -> Path:
    """
    Where are the folders of all jobs of this user on this node?

    Returns:
        A folder that need not be there.  It does not follow ``TMPDIR``, which
        jobs and terminals often have different ideas of.
    """
    return Path(f"/tmp/distdebug-{os.geteuid()}")  # noqa: S108 it is checked


def job_folder() -> Path:
    """
    Where do the sockets of this job lie?

    Returns:
        ``DISTDEBUG_DIR``, or a folder below :func:`base_folder` that is named
        after the job.
    """
    if chosen := os.environ.get("DISTDEBUG_DIR"):
        return Path(chosen).absolute()

    job = current_identity().job or "job"
    name = re.sub(r"[^A-Za-z0-9._-]", "-", job).lstrip(".-") or "job"
    if len(name) > 32:
        import hashlib  # which loads a large library

        digest = hashlib.sha256(job.encode()).hexdigest()[:8]
        name = f"{name[:23]}-{digest}"
    return base_folder() / name


def job_folders() -> tuple[Path, ...]:
    """
    Which jobs of this user have, or had, sockets on this node?

    Returns:
        Their folders, sorted.

    Raises:
        DebuggerError: The folder of all jobs is not ours alone.
    """
    base = base_folder()
    if not base.exists():
        return ()

    check_folder(base)
    return tuple(
        sorted(p for p in base.iterdir() if p.is_dir() and not p.is_symlink())
    )


def make_folder(path: Path) -> None:
    """
    Make a folder that is ours alone, if it is not there.

    Args:
        path: The folder.

    Raises:
        DebuggerError: Something else is there, or it is not ours alone.

        OSError: It cannot be made.
    """
    if path.parent == base_folder():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        check_folder(path.parent)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(path)


def check_folder(path: Path, *, or_anothers: bool = False) -> None:
    """
    Find out whether a folder is ours alone.

    Args:
        path: The folder.

        or_anothers: Whether root takes that of one other user as well, as it
            may to read one that it named.  Nothing is ever written there.

    Raises:
        DebuggerError: It is a link, is not ours, or others may enter it.

        OSError: It cannot be looked at.
    """
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        _refuse(path, "it is not a folder")
    may_be_anothers = or_anothers and os.geteuid() == 0
    if status.st_uid != os.geteuid() and not may_be_anothers:
        _refuse(path, f"it belongs to user {status.st_uid}")
    if status.st_mode & 0o077:
        _refuse(path, "others may enter it")


def _refuse(path: Path, reason: str) -> None:
    msg = f"{path} is not safe for a debugger: {reason}"
    raise DebuggerError(
        msg, remedy=f"chmod 700 {path}, or name another in DISTDEBUG_DIR"
    )


def socket_path(folder: Path, rank: int | None) -> Path:
    """
    Where does this process listen?

    Args:
        folder: The folder of the job.

        rank: Its rank.

    Returns:
        The path of its socket.

    Raises:
        DebuggerError: The kernel does not take so long a path.
    """
    who = "x" if rank is None else rank
    path = folder / f"{who}.{_namespace():x}.{os.getpid()}{_SUFFIX}"
    if len(os.fsencode(path)) > _LONGEST:
        msg = f"{path} is too long for a socket"
        raise DebuggerError(
            msg, remedy="name a shorter folder in DISTDEBUG_DIR"
        )

    return path


def _namespace() -> int:
    """
    In which namespace is our number ours?  Each container may have its own.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 lighter
    except OSError:
        return 0


def socket_paths(folder: Path) -> Iterator[tuple[Path, int]]:
    """
    Which sockets are in a folder?

    Args:
        folder: The folder of a job.

    Yields:
        The path of each, and the process that made it.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            _, _, pid = entry.name.removesuffix(_SUFFIX).rpartition(".")
            if entry.name.endswith(_SUFFIX) and pid.isdecimal():
                yield Path(entry.path), int(pid)
