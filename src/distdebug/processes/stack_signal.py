"""
How does a process say that it can be asked for its stacks?

It keeps an empty file, named after itself and the signal that it answers, in a
folder of its user.  The names are found in ``/tmp`` by anybody who may signal
the process; what is in ``/proc/PID/fd`` would need the right to trace it, and
``TMPDIR`` often differs between a job and who looks at it.

As long as the process answers, it holds a lock (``flock``) on its file.  The
lock ends with the process, and also when it becomes another program or closes
its files: then nobody may ask any more.

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


ROOT = "/tmp"  # noqa: S108 the folder in it is checked

_NAME = re.compile(r"(\d{1,10})-(\d{1,19})-(\d{1,2})\.stacks", re.ASCII)


class Offer(NamedTuple):
    """
    What a process offers.

    Attributes:
        pid: Its number in its own PID namespace.

        start_ticks: When it started, in clock ticks since boot.

        signal: Number of the signal that has one of its threads write where
            it is.
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


def folder_name(uid: int) -> str:
    """
    In which folder, below :data:`ROOT`, are the files of this user?
    """
    return f"distdebug-stacks-{uid}"


def parse_name(name: str) -> Offer | None:
    """
    What does the process offer that owns a file of this name?

    Args:
        name: Name of a file, without its folder.

    Returns:
        Its offer; ``None`` if the file is something else.
    """
    match = _NAME.fullmatch(name)
    return Offer(*map(int, match.groups())) if match else None


def own_offer(signal: int) -> Offer:
    """
    What does this process offer if it answers that signal?

    Args:
        signal: Number of the signal.

    Returns:
        The offer.

    Raises:
        OSError: The kernel does not tell when this process started.
    """
    own = parse_stat(read_proc("/proc/self/stat"))
    if own is None:
        msg = "/proc does not tell when this process started"
        raise OSError(msg)

    return Offer(os.getpid(), own.start_ticks, signal)


def is_private(folder: int, uid: int) -> bool:
    """
    Can nobody but this user have put something into a folder?

    Args:
        folder: File descriptor of the folder.

        uid: The user.
    """
    status = os.fstat(folder)
    return status.st_uid == uid and not status.st_mode & (
        stat.S_IWGRP | stat.S_IWOTH
    )


def is_kept(fd: int) -> bool:
    """
    Is the process still there that locked its file?

    Args:
        fd: File descriptor of the file, opened for this purpose.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True

    fcntl.flock(fd, fcntl.LOCK_UN)
    return False
