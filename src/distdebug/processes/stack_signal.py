"""
Publish and find the signal on which a process writes its stacks.

The process keeps an empty file, named after its PID, start time, and signal,
in a folder of its user in ``/tmp``.  Every user who may signal the process can
find it there; ``/proc/PID/fd`` would need ptrace permission, and ``TMPDIR``
often differs between a job and its observer.

As long as the process answers, it holds a lock (``flock``) on its file.  The
lock ends with the process, on exec, and when it closes its files: from then on
nobody may send the signal.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat

from typing import NamedTuple

from .procfs import parse_stat, read_proc


OFFERS_ROOT = "/tmp"  # noqa: S108 the folder in it is checked

_NAME = re.compile(r"(\d{1,10})-(\d{1,19})-(\d{1,2})\.stacks", re.ASCII)


class Offer(NamedTuple):
    """
    Signal on which a process writes its stacks.

    Attributes:
        pid: PID in its own PID namespace.

        start_ticks: Start time, in clock ticks since boot.

        signal: Number of the signal; the thread that gets it writes its stack.
    """

    pid: int
    start_ticks: int
    signal: int

    @property
    def name(self) -> str:
        """
        Name of its file.
        """
        return f"{self.pid}-{self.start_ticks}-{self.signal}.stacks"


def offer_folder_name(uid: int) -> str:
    """
    Return the name of the folder of a user below :data:`OFFERS_ROOT`.
    """
    return f"distdebug-stacks-{uid}"


def parse_offer_name(name: str) -> Offer | None:
    """
    Parse the name of a file; ``None`` if it is no offer.

    Args:
        name: Name of the file, without its folder.
    """
    match = _NAME.fullmatch(name)
    return Offer(*map(int, match.groups())) if match else None


def own_offer(signal: int) -> Offer:
    """
    Return the offer of this process for a signal.

    Raises:
        OSError: The start time of this process cannot be read.
    """
    own = parse_stat(read_proc("/proc/self/stat"))
    if own is None:
        msg = "/proc does not say when this process started"
        raise OSError(msg)

    return Offer(os.getpid(), own.start_ticks, signal)


def is_private(folder: int, uid: int) -> bool:
    """
    Return whether only one user can create files in a folder.

    Args:
        folder: File descriptor of the folder.

        uid: The user.
    """
    status = os.fstat(folder)
    return status.st_uid == uid and not status.st_mode & (
        stat.S_IWGRP | stat.S_IWOTH
    )


def is_offer_locked(fd: int) -> bool:
    """
    Return whether the process that owns an offer still holds its lock.

    Args:
        fd: File descriptor of the file, opened for this purpose.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True

    fcntl.flock(fd, fcntl.LOCK_UN)
    return False
