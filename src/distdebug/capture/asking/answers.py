"""
Where does a process write when it is asked where it is?

See :mod:`distdebug.processes.stack_signal`.  The process is not trusted, as we may
be the superuser: no link is followed, and its file must be its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat

from collections.abc import Iterator
from typing import NamedTuple

from ...processes.model import ProcessState
from ...processes.stack_signal import (
    ROOT,
    folder_name,
    is_kept,
    is_private,
    parse_name,
)
from ..model import CaptureStatus


__all__ = ["Answers", "NotAskedError", "open_answers"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# 100 frames of 1,000 characters are all that a thread ever writes.
_MOST_BYTES = 1 << 20


class NotAskedError(Exception):
    """
    The process cannot be asked.

    Args:
        status: Why.

        detail: The same in words.

        remedy: What to do about it.
    """

    def __init__(
        self, status: CaptureStatus, detail: str, remedy: str
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.remedy = remedy


class Answers(NamedTuple):
    """
    What a process has to say.

    Attributes:
        fd: The file that it writes to, open for us alone.

        signal: Number of the signal that it answers.
    """

    fd: int
    signal: int

    @property
    def size(self) -> int:
        """
        How much it has written, in bytes.
        """
        return os.fstat(self.fd).st_size

    def read(self, start: int) -> str:
        """
        What has it written?

        Args:
            start: From which byte on.
        """
        data = os.pread(self.fd, _MOST_BYTES, start)
        return data.decode("utf-8", "replace")


@contextlib.contextmanager
def open_answers(pid: int, state: ProcessState) -> Iterator[Answers]:
    """
    Find and empty the file that a process writes to; empty it again after.

    Args:
        pid: The process.

        state: What the kernel tells about it.

    Returns:
        The file, and the signal.

    Raises:
        NotAskedError: The process offers nothing, or somebody else is asking.

        OSError: The file cannot be emptied.
    """
    with contextlib.ExitStack() as opened:
        answers = _find(pid, state, opened)
        try:
            fcntl.lockf(answers.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotAskedError(
                CaptureStatus.SKIPPED,
                "somebody else is asking it just now",
                "try again",
            ) from None

        os.ftruncate(answers.fd, 0)
        try:
            yield answers
        finally:
            os.ftruncate(answers.fd, 0)


def _find(
    pid: int, state: ProcessState, opened: contextlib.ExitStack
) -> Answers:
    is_denied = False
    for parent, flags in ((f"/proc/{pid}/root", os.O_NOFOLLOW), ("/", 0)):
        try:
            folder = _open_folder(parent, flags, state.uid, opened)
            names = os.listdir(folder)  # noqa: PTH208 only it takes a number
        except PermissionError:
            is_denied = parent == "/"
            continue
        except OSError:
            continue

        for offer in filter(None, map(parse_name, names)):
            if (offer.pid, offer.start_ticks) == (
                state.pid_inside,
                state.start_ticks,
            ) and signal.SIGRTMIN <= offer.signal <= signal.SIGRTMAX:
                fd = _open_kept(offer.name, folder, state.uid, opened)
                if fd is not None:
                    return Answers(fd, offer.signal)

    if is_denied:
        raise NotAskedError(
            CaptureStatus.OTHER_USER,
            f"it belongs to the user with the number {state.uid}",
            "run as that user, or as root",
        )
    raise NotAskedError(
        CaptureStatus.TOOL_MISSING,
        "it has not offered to tell its stacks",
        "call distdebug.enable_flight_recorder() at the top of its script",
    )


def _open_folder(
    parent: str, flags: int, uid: int, opened: contextlib.ExitStack
) -> int:
    """
    Open the folder of a user; in a container, as the process sees it.

    What a container calls ``/tmp`` may be a link that leads out of it.
    """
    above = _keep(os.open(parent, _FOLDER), opened)
    root = os.open(ROOT.lstrip("/"), _FOLDER | flags, dir_fd=above)
    folder = os.open(
        folder_name(uid),
        _FOLDER | os.O_NOFOLLOW,
        dir_fd=_keep(root, opened),
    )
    _keep(folder, opened)
    if is_private(folder, uid):
        return folder

    msg = "somebody else could have put files there"
    raise OSError(msg)


def _open_kept(
    name: str, folder: int, uid: int, opened: contextlib.ExitStack
) -> int | None:
    try:
        fd = _keep(os.open(name, _FILE, dir_fd=folder), opened)
    except OSError:
        return None

    status = os.fstat(fd)
    is_its_own = (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == uid
        and status.st_nlink == 1
    )
    return fd if is_its_own and is_kept(fd) else None


def _keep(fd: int, opened: contextlib.ExitStack) -> int:
    opened.callback(os.close, fd)
    return fd
