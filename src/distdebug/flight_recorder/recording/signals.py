"""
Save stacks on signals, also while the main thread is stuck.

SIGTERM and SIGABRT write the stacks of all threads to a pipe; a real-time
signal makes one thread write its own to a file.

When a rank hangs, its main thread is inside C++: Python's own signal handlers
never run, and a handler written in Python may wait forever for the
interpreter.  What works is a chain of functions that do not need it, each of
them in :mod:`faulthandler` or the C library:

* *faulthandler*'s handler writes the stacks into a pipe, which wakes our
  listener;
* the handler behind it only limits the time.  The kernel calls handlers with
  the number of the signal, so ``alarm`` as the handler of SIGTERM (15) ends
  the process 15 s later if nothing else did, and ``sleep`` as that of SIGABRT
  (6) holds the aborting thread for 6 s.

The listener dumps, restores the default, and sends the signal again, so that
the process ends as usual.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import itertools
import os
import selectors
import signal
import struct
import threading
import time
import weakref

from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..._in_job import OwnDescriptor
from ...processes import (
    OFFERS_ROOT,
    is_offer_locked,
    is_private,
    offer_folder_name,
    own_offer,
    parse_offer_name,
    parse_status,
    read_proc,
)


# More than any libc needs for its ``struct sigaction``.
_ACTION_BYTES = 1024


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)


def get_disposition(number: int) -> Literal["default", "ignored", "caught"]:
    """
    Return what this process does on a signal, whichever code set it up.

    Raises:
        OSError: This is not Linux, or ``/proc`` cannot be read.
    """
    bit = 1 << (number - 1)
    status = parse_status(read_proc("/proc/thread-self/status"))
    if not status:
        raise OSError(errno.ENOENT, "it is unknown what signals do here")
    if int(status.get("SigIgn", "0"), 16) & bit:
        return "ignored"
    return "caught" if int(status.get("SigCgt", "0"), 16) & bit else "default"


def get_address(function: str) -> int:
    """
    Return the address of a function of the C library.
    """
    address = ctypes.cast(getattr(_libc(), function), ctypes.c_void_p).value
    return address or 0


def get_handler(number: int) -> int:
    """
    Return the address of the handler of a signal; 0 is the default action.
    """
    (handler,) = struct.unpack_from("P", save_action(number))
    return int(handler)


def set_handler(number: int, address: int, *, once: bool = False) -> None:
    """
    Install a C function as the handler of a signal.

    Args:
        address: From :func:`get_address`; 0 stands for the default action.

        once: Whether the first signal restores the default action, where the
            C library supports that.
    """
    libc = _libc()
    install = (
        getattr(libc, "sysv_signal", libc.signal) if once else libc.signal
    )
    install(ctypes.c_int(number), ctypes.c_void_p(address))


def save_action(number: int) -> bytes:
    """
    Return the ``struct sigaction`` of a signal.
    """
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    _libc().sigaction(number, None, action)
    return action.raw


def restore_action(number: int, action: bytes) -> None:
    """
    Restore what :func:`save_action` returned.
    """
    _libc().sigaction(number, action, None)


def clear_alarm() -> None:
    """
    Cancel the pending SIGALRM.
    """
    _libc().alarm(0)


class FaultFile:
    """
    Minimal file object for *faulthandler*; it does not close *fd*.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """
        Return the file descriptor to write to.
        """
        return self._fd

    def flush(self) -> None:
        """
        Do nothing: there is no buffer.
        """


FaultFileRef = weakref.ref[FaultFile]


# The kernel sends this signal, which Linux does not use otherwise, to the
# listener when something is written to SIGABRT's pipe.
_PIPE_SIGNAL = int(getattr(signal, "SIGSTKFLT", 16))

# <fcntl.h>, where Python does not name them.
_F_SETSIG = 10
_F_SETOWN_EX = 15
_F_OWNER_TID = 0

# How long a handler may take from writing to its next step, and how long a
# pipe is silent when all is written, in seconds.
_HANDLER_WAIT_S = 0.5
_PIPE_QUIET_S = 0.02

_MAX_BYTES = 1 << 20


class CaughtSignal(NamedTuple):
    """
    A signal whose arrival can be read from a pipe.

    Attributes:
        number: Such as ``signal.SIGTERM``.

        reader: The end of the pipe that the listener reads the stacks from.

        writer: The end of the pipe that *faulthandler* writes them to; it does
            so without a check, but no other file gets its high number.

        file_ref: Returns ``None`` once *faulthandler* no longer writes there.

        handler: Address of *faulthandler*'s handler.

        is_final: Whether the process ends by it; otherwise other code has a
            handler.
    """

    number: signal.Signals
    reader: OwnDescriptor
    writer: OwnDescriptor
    file_ref: FaultFileRef
    handler: int
    is_final: bool


def catch_sigterm() -> CaughtSignal | None:
    """
    Have SIGTERM write the stacks of all threads to a pipe.

    An existing handler stays, and is called afterwards.

    Returns:
        The signal; ``None`` if this process ignores it, if the program has
        registered it with *faulthandler*, which has one file per signal, or if
        SIGALRM is not free to limit the time.
    """
    number = signal.SIGTERM
    state = get_disposition(number)
    if state == "ignored" or get_disposition(signal.SIGALRM) != "default":
        return None
    if state == "caught" and get_handler(number) == _faulthandler_address():
        return None

    reader, writer, file = _open_pipe()
    if state == "default":
        set_handler(number, get_address("alarm"))
    faulthandler.register(number, file=file, all_threads=True, chain=True)
    is_final, ref = state == "default", FaultFileRef(file)
    handler = get_handler(number)
    return CaughtSignal(number, reader, writer, ref, handler, is_final)


def catch_sigabrt() -> CaughtSignal | None:
    """
    Have SIGABRT, as from ``std::terminate``, write all stacks to a pipe.

    Returns:
        The signal; ``None`` if it is handled already, as where
        :mod:`faulthandler` is enabled: its output stays where it is.
    """
    number = signal.SIGABRT
    needed = (number, signal.SIGALRM, _PIPE_SIGNAL)
    if any(get_disposition(n) != "default" for n in needed):
        return None

    reader, writer, file = _open_pipe()
    set_handler(number, get_address("sleep"), once=True)
    faulthandler.enable(file=file, all_threads=True)
    ref, handler = FaultFileRef(file), get_handler(number)
    return CaughtSignal(number, reader, writer, ref, handler, is_final=True)


@cache
def _faulthandler_address() -> int:
    """
    Return the address of the handler of :func:`faulthandler.register`.
    """
    number = _choose_signal()
    before = save_action(number)
    faulthandler.register(number, file=FaultFile(2))
    address = get_handler(number)
    faulthandler.unregister(number)
    restore_action(number, before)
    return address


def _open_pipe() -> tuple[OwnDescriptor, OwnDescriptor, FaultFile]:
    reader, writer = map(OwnDescriptor, os.pipe())
    os.set_blocking(reader.fd, False)
    os.set_blocking(writer.fd, False)  # a full pipe must not stop a handler
    return reader, writer, FaultFile(writer.fd)


def limit_abort_time(caught: CaughtSignal) -> None:
    """
    Limit the time of a SIGABRT that arrives while the interpreter is stuck.

    ``abort`` ends it anyhow; a SIGABRT from outside does not.  The listener
    thread must call this: it can take a signal at any time.
    """
    if caught.number != signal.SIGABRT:
        return

    fd = caught.reader.fd
    set_handler(_PIPE_SIGNAL, get_address("alarm"))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {_PIPE_SIGNAL})
    owner = struct.pack("ii", _F_OWNER_TID, threading.get_native_id())
    fcntl.fcntl(fd, _F_SETOWN_EX, owner)
    fcntl.fcntl(fd, _F_SETSIG, _PIPE_SIGNAL)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)


def read_traceback(caught: CaughtSignal) -> bytes:
    """
    Read the stacks that the handler wrote.

    Returns:
        The text; ``b""`` if another process got the signal: a child that was
        just forked writes to the pipe of its parent.
    """
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(caught.reader.fd, selectors.EVENT_READ)
        while selector.select(_PIPE_QUIET_S) and len(data) < _MAX_BYTES:
            data += os.read(caught.reader.fd, _MAX_BYTES)

    deadline = time.monotonic() + _HANDLER_WAIT_S
    while not _is_own_signal(caught):
        if time.monotonic() > deadline:
            if caught.number == signal.SIGABRT:
                clear_alarm()
            return b""
        time.sleep(_PIPE_QUIET_S)
    return data


def _is_own_signal(caught: CaughtSignal) -> bool:
    if not caught.is_final:
        return True
    if caught.number == signal.SIGTERM:
        return signal.getitimer(signal.ITIMER_REAL)[0] > 0
    # faulthandler restores the previous handler before it writes.
    return get_handler(caught.number) != caught.handler


def end_process(caught: CaughtSignal) -> None:
    """
    End this process as the signal does by default, if it is final.
    """
    if caught.is_final:
        set_handler(caught.number, 0)
        os.kill(os.getpid(), caught.number)


def release(caught: CaughtSignal, *, in_child: bool = False) -> None:
    """
    Restore the handlers; one that was installed after ours stays.

    Args:
        in_child: Whether this is a forked child.  It shares the pipe with its
            parent, which still listens.
    """
    # Otherwise the program has given faulthandler a file of its own since.
    if caught.file_ref() is not None:
        current = save_action(caught.number)
        is_ours = get_handler(caught.number) == caught.handler
        if caught.number == signal.SIGTERM:
            faulthandler.unregister(caught.number)
        else:
            faulthandler.disable()

        if not is_ours:
            restore_action(caught.number, current)
        elif caught.is_final:
            set_handler(caught.number, 0)
    if not in_child:
        _remove_abort_limit(caught)
    elif caught.number == signal.SIGTERM and caught.is_final:
        _resend_sigterm()


def close_pipe(caught: CaughtSignal) -> None:
    """
    Close the pipe, once no code uses it.
    """
    caught.reader.close()
    caught.writer.close()


def end_unheard(caught: CaughtSignal, silent_s: float) -> None:
    """
    End this process by a SIGTERM that came, but was not written to our pipe.

    Then the program has closed the pipe, or given *faulthandler* another file.
    Where it has closed that of SIGABRT, this has started an alarm, too.

    Args:
        silent_s: The time since the last call, in seconds.
    """
    if not caught.is_final or caught.file_ref() is not None:
        return

    # An alarm begins with as many seconds as the number of its signal.
    left_s = signal.getitimer(signal.ITIMER_REAL)[0]
    if left_s > _PIPE_SIGNAL - silent_s:
        if not caught.reader.is_intact():
            clear_alarm()
    elif caught.number == signal.SIGTERM and left_s > caught.number - silent_s:
        end_process(caught)


def _remove_abort_limit(caught: CaughtSignal) -> None:
    """
    Remove the time limit; else closing the pipe sends a signal that kills.
    """
    if caught.number != signal.SIGABRT:
        return

    if caught.reader.is_intact():
        flags = fcntl.fcntl(caught.reader.fd, fcntl.F_GETFL)
        fcntl.fcntl(caught.reader.fd, fcntl.F_SETFL, flags & ~os.O_ASYNC)
    if get_handler(_PIPE_SIGNAL) == get_address("alarm"):
        set_handler(_PIPE_SIGNAL, 0)


def _resend_sigterm() -> None:
    """
    End a forked child that got SIGTERM before it restored the handlers.

    Children inherit no alarm, so a pending one comes from our handler.
    """
    if signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        clear_alarm()
        os.kill(os.getpid(), signal.SIGTERM)


# Other users of real-time signals take them from either end of the range.
_FIRST_OFFSET, _SIGNAL_COUNT = 12, 8

_IGNORE = 1  # SIG_IGN

# How many files of dead processes each new process removes at most.
_MAX_REMOVED = 64


class StackSignalHandler(NamedTuple):
    """
    The signal that makes a thread write its stack, and the file it writes to.

    Attributes:
        path: The file with the stacks.

        signal: Number of the signal.

        file: The open file, to which *faulthandler* writes without a check.

        file_ref: Returns ``None`` once *faulthandler* no longer writes there.

        fault_handler: Address of *faulthandler*'s handler.
    """

    path: Path
    signal: int
    file: OwnDescriptor
    file_ref: FaultFileRef
    fault_handler: int


# At most one.
_handlers: list[StackSignalHandler] = []

# Our signals stay ignored afterwards: a late one must not kill.
_ignored_signals: set[int] = set()


def enable_stack_signal(
    folder: str | os.PathLike[str] = OFFERS_ROOT,
) -> StackSignalHandler:
    """
    Let the threads of this process write their stacks on a signal.

    It is a real-time signal that no other code uses.

    Args:
        folder: Parent of the folder with the file; readers search ``/tmp``.

    Returns:
        The signal and the file, the same for every call.

    Raises:
        OSError: All signals are in use, or the file cannot be created.
    """
    if not _handlers:
        _handlers.append(_install_handler(Path(folder)))
    return _handlers[0]


def disable_stack_signal() -> None:
    """
    Undo :func:`enable_stack_signal`, and remove the file.
    """
    while _handlers:
        handler = _handlers.pop()
        try:
            handler.path.unlink(missing_ok=True)
        finally:
            _unregister_handler(handler)


def _install_handler(root: Path) -> StackSignalHandler:
    number = _choose_signal()
    parent = root / offer_folder_name(os.geteuid())
    folder = _open_private_folder(parent)
    try:
        _remove_stale_files(folder)
        name = own_offer(number).name
        handler = _register_handler(number, parent / f".{name}")
        try:
            # Readers may send the signal once they see the name.
            return handler._replace(path=handler.path.replace(parent / name))
        except BaseException:  # also Ctrl-C: else the handler stays
            _unregister_handler(handler)
            handler.path.unlink(missing_ok=True)
            raise
    finally:
        os.close(folder)


def _choose_signal() -> int:
    first = signal.SIGRTMIN + _FIRST_OFFSET
    for number in range(first, min(first + _SIGNAL_COUNT, signal.SIGRTMAX)):
        state = get_disposition(number)
        if state == "default" or (
            state == "ignored" and number in _ignored_signals
        ):
            return number

    raise OSError(errno.EBUSY, "no signal is left to ask for stacks")


def _open_private_folder(folder: Path) -> int:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    fd = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if is_private(fd, os.geteuid()):
        return fd

    os.close(fd)
    raise PermissionError(
        errno.EPERM, "it belongs to another user", str(folder)
    )


def _remove_stale_files(folder: int) -> None:
    """
    Remove the files of processes that were killed.
    """
    names = (name for name in os.listdir(folder) if parse_offer_name(name))
    for name in itertools.islice(names, _MAX_REMOVED):
        with contextlib.suppress(OSError):
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
            try:
                if not is_offer_locked(fd):
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(fd)


def _register_handler(number: int, path: Path) -> StackSignalHandler:
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    own = OwnDescriptor(os.open(path, flags, 0o600))
    fcntl.flock(own.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    file = FaultFile(own.fd)
    # This is restored when faulthandler's handler is removed.
    set_handler(number, _IGNORE)
    _ignored_signals.add(number)
    # Without a chain, system calls go on after the signal where they can.
    faulthandler.register(number, file=file, all_threads=False, chain=False)
    fault_handler = get_handler(number)
    return StackSignalHandler(
        path, number, own, FaultFileRef(file), fault_handler
    )


def _unregister_handler(handler: StackSignalHandler) -> None:
    """
    Stop reacting to the signal; a handler that was set later stays.
    """
    current = save_action(handler.signal)
    is_ours = get_handler(handler.signal) == handler.fault_handler
    if handler.file_ref() is not None:
        faulthandler.unregister(handler.signal)
        if not is_ours:
            restore_action(handler.signal, current)
    handler.file.close()  # and release its lock


def drop_stack_signal() -> None:
    """
    Stop reacting to the signal in a forked child; the file is of its parent.
    """
    while _handlers:
        _unregister_handler(_handlers.pop())
