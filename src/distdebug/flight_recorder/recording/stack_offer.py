"""
How can a stuck process be asked where it is, by who may not trace it?

By a signal whose handler needs no interpreter: that of :mod:`faulthandler`.
It also answers while native code holds the interpreter lock.

The thread that gets the signal writes, and only about itself.  Had it to write
of all threads (``all_threads=True``) it would read the stacks of threads that
run, and crash: a process whose threads were busy died of every third signal.

The process writes nothing unless it is asked, and who asks empties the file.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import fcntl
import functools
import itertools
import os
import signal

from pathlib import Path
from typing import NamedTuple

from ...processes.stack_signal import (
    ROOT,
    folder_name,
    is_kept,
    is_private,
    own_offer,
    parse_name,
)
from .c_signals import (
    disposition,
    get_handler,
    restore_action,
    save_action,
    set_handler,
)
from .complaints import quietly
from .fault_file import FaultFile, IsHeld


__all__ = ["StackOffer", "offer_stacks", "withdraw_stacks"]

# Who needs real-time signals counts from either end.
_FIRST, _MANY = 12, 8

_IGNORE = 1  # SIG_IGN

# Each process that begins removes what so many dead ones have left.
_MOST_SWEPT = 64


class StackOffer(NamedTuple):
    """
    What this process answers.

    Attributes:
        path: The file it writes to.

        signal: Number of the signal.

        fd: The open file.  A program may have closed it, and used the number
            again.

        held: Whether *faulthandler* still writes there.

        inode: Device and number of the file.

        handler: Address of *faulthandler*'s handler.
    """

    path: Path
    signal: int
    fd: int
    held: IsHeld
    inode: tuple[int, int] | None
    handler: int


# The same offer, once for everybody who wants it.
_offers: list[StackOffer] = []

# They stay ignored once they were ours: a late signal must not kill.
_ignored: set[int] = set()


def offer_stacks(folder: str | os.PathLike[str] = ROOT) -> StackOffer:
    """
    Let the threads of this process write where they are when asked.

    The signal is one that nobody has a use for.  Forked children do not
    answer.

    Args:
        folder: In which folder the one with the file goes; who asks looks in
            ``/tmp``.

    Returns:
        The signal and the file, the same however often this is called.

    Raises:
        OSError: All signals have a use, or the file cannot be made.
    """
    offer = _offers[0] if _offers else _make(Path(folder))
    _offers.append(offer)
    _forget_in_children()
    return offer


def withdraw_stacks() -> None:
    """
    Take back one :func:`offer_stacks`; with the last one the file goes.
    """
    if not _offers:
        return

    offer = _offers.pop()
    if not _offers:
        try:
            offer.path.unlink(missing_ok=True)
        finally:
            _end(offer)


def _make(root: Path) -> StackOffer:
    number = _choose_signal()
    parent = root / folder_name(os.geteuid())
    folder = _open_private(parent)
    try:
        _sweep(folder)
        name = own_offer(number).name
        offer = _begin(number, parent / f".{name}")
        try:
            # Who sees the name may ask.
            return offer._replace(path=offer.path.replace(parent / name))
        except BaseException:  # also Ctrl-C: nobody would take it back
            _end(offer)
            offer.path.unlink(missing_ok=True)
            raise
    finally:
        os.close(folder)


def _choose_signal() -> int:
    first = signal.SIGRTMIN + _FIRST
    for number in range(first, min(first + _MANY, signal.SIGRTMAX)):
        state = disposition(number)
        if state == "default" or (state == "ignored" and number in _ignored):
            return number

    raise OSError(errno.EBUSY, "no signal is left to ask for stacks")


def _open_private(folder: Path) -> int:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    fd = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if is_private(fd, os.geteuid()):
        return fd

    os.close(fd)
    raise PermissionError(errno.EPERM, "somebody else made it", str(folder))


def _sweep(folder: int) -> None:
    """
    Remove the files of processes that were killed.
    """
    names = (name for name in os.listdir(folder) if parse_name(name))
    for name in itertools.islice(names, _MOST_SWEPT):
        with contextlib.suppress(OSError):
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
            try:
                if not is_kept(fd):
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(fd)


def _begin(number: int, path: Path) -> StackOffer:
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    file = FaultFile(fd)
    # Whatever takes faulthandler's handler away puts this back.
    set_handler(number, _IGNORE)
    _ignored.add(number)
    # Without a chain, system calls go on after the signal where they can.
    faulthandler.register(number, file=file, all_threads=False, chain=False)
    handler = get_handler(number)
    return StackOffer(path, number, fd, IsHeld(file), _inode(fd), handler)


def _end(offer: StackOffer) -> None:
    """
    Answer no more; what the program has put in the place of ours stays.
    """
    later = save_action(offer.signal)
    is_ours = get_handler(offer.signal) == offer.handler
    if offer.held() is not None:
        faulthandler.unregister(offer.signal)
        if not is_ours:
            restore_action(offer.signal, later)
    # The lock goes with it.
    if _inode(offer.fd) == offer.inode:
        os.close(offer.fd)


def _inode(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@functools.cache
def _forget_in_children() -> None:
    """
    Have forked children give their parent's offer back; once is enough.
    """
    os.register_at_fork(after_in_child=lambda: quietly(_forget))


def _forget() -> None:
    if _offers:
        _end(_offers[0])
        _offers.clear()
