"""
In-job extras: request pipe, exit dumps, crash signals, and stack signal.

* A listener thread dumps on request, and on SIGTERM and SIGABRT.
* Exit hooks dump when the program ends by an exception.
* A real-time signal makes a thread write its stack to a file.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import fcntl
import itertools
import os
import select
import signal
import stat
import sys
import threading

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from ..._io import is_there, write_whole
from ..._text import clean
from ...errors import NotRecordingError
from ...processes import (
    OFFERS_ROOT,
    is_offer_locked,
    is_private,
    offer_folder_name,
    own_offer,
    parse_offer_name,
)
from .crash_signals import (
    CaughtSignal,
    FaultFile,
    FaultFileRef,
    catch_sigabrt,
    catch_sigterm,
    close_pipe,
    end_process,
    get_disposition,
    get_handler,
    limit_abort_time,
    read_traceback,
    release,
    restore_action,
    save_action,
    set_handler,
)
from .dump import (
    THREAD_PREFIX,
    TRACEBACK_SUFFIX,
    Recording,
    current_recording,
    has_call_in_flight,
    log_exceptions,
    traceback_frames,
    write_dump,
    write_process_sidecar,
)


# How long to wait for the stacks of all calls: the launcher may kill a process
# that takes too long to end.
_STACKS_TIMEOUT_S = 4.0


def write_exit_dump(
    recording: Recording,
    reason: str,
    *,
    error: str = "",
    trace: TracebackType | None = None,
    traceback: bytes = b"",
) -> None:
    """
    Write a dump, or at least a sidecar, and never raise.

    Args:
        reason: See :class:`~distdebug.flight_recorder.sidecar.Sidecar`.

        error: The exception that ends the process, in one line.

        trace: The traceback of that exception.

        traceback: The text that *faulthandler* wrote.
    """
    recording.error = error or recording.error
    if trace is not None:
        recording.error_stack = traceback_frames(trace)

    def write() -> None:
        try:
            file = write_dump(
                recording, reason, stacks_timeout_s=_STACKS_TIMEOUT_S
            )
        except NotRecordingError:
            file = recording.next_path()
            write_process_sidecar(recording, reason, file)
            recording.add_dump(file)
        if traceback:
            text = file.with_name(file.name + TRACEBACK_SUFFIX)
            write_whole(text, traceback)

    log_exceptions(write)


def write_end_files(recording: Recording) -> None:
    """
    Write the last sidecar of a program that ends, and never raise.

    A dump comes first if a call is in flight, unless an exception has already
    caused one.
    """
    exc = _pending_exception()
    if exc is not None or (has_call_in_flight() and not recording.error):
        write_exit_dump(
            recording,
            "exit-after-error",
            error="" if exc is None else _format_exception(exc),
            trace=None if exc is None else exc.__traceback__,
        )
    log_exceptions(lambda: _write_sidecar(recording, "exit"))


def _write_sidecar(recording: Recording, reason: str) -> None:
    file = recording.torch_path()
    write_process_sidecar(
        recording,
        reason,
        file,
        dump=file.name if is_there(file) else "",
        # Readers use the last sidecar, so it needs the stack of the exception.
        stacks=bool(recording.error_stack),
    )


def _pending_exception() -> BaseException | None:
    """
    Return the exception that ends a child of :mod:`multiprocessing`.

    There no hook is called, but the child ends while it handles the exception.
    """
    exc = sys.exception()
    while isinstance(exc, SystemExit):
        if exc.code in {None, 0}:
            return None
        exc = exc.__context__ or Exception(f"exit status {exc.code}")
    return exc


def _format_exception(exc: BaseException) -> str:
    try:
        text = str(exc)
    except Exception:  # noqa: BLE001 its class may raise anything
        text = ""
    return clean(f"{type(exc).__name__}: {text}", limit=1000)


def hook_exit(on_end: Callable[[], None]) -> Callable[[], None]:
    """
    Call *on_end* when the program ends, and dump if an exception ends it.

    Existing hooks are still called.

    Args:
        on_end: Called at the end.

    Returns:
        A function that removes the hooks; a hook that was set later stays.
    """
    previous = sys.excepthook

    def excepthook(
        kind: type[BaseException],
        exc: BaseException,
        trace: TracebackType | None,
    ) -> None:
        if (recording := current_recording()) is not None:
            error = _format_exception(exc)
            write_exit_dump(recording, "exception", error=error, trace=trace)
        previous(kind, exc, trace)

    sys.excepthook = excepthook
    atexit.register(on_end)
    finalizer = _hook_child_exit(on_end)

    def remove() -> None:
        if sys.excepthook is excepthook:
            sys.excepthook = previous
        atexit.unregister(on_end)
        finalizer()

    return remove


def _hook_child_exit(on_end: Callable[[], None]) -> Callable[[], None]:
    """
    Call *on_end* also in :mod:`multiprocessing` children, which skip `atexit`.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return lambda: None

    util = sys.modules["multiprocessing.util"]
    cancel: Callable[[], None] = util.Finalize(
        None, on_end, exitpriority=0
    ).cancel
    return cancel


_THREAD_WAIT_S = 1.0
_READ_BYTES = 1 << 16


class Listener:
    """
    A thread that calls the action of each pipe that is written to.

    Args:
        actions: The function to call, by file descriptor.  Each must empty its
            pipe; its errors are logged once and otherwise ignored.

        prepare: Called first, in the thread.
    """

    def __init__(
        self,
        actions: Mapping[int, Callable[[], object]],
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._actions = dict(actions)
        self._prepare = prepare
        self._stop_reader, self._stop_writer = os.pipe()
        self._prepared = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"{THREAD_PREFIX} listener", daemon=True
        )

    def start(self) -> None:
        """
        Start the thread.

        Raises:
            RuntimeError: The system allows no more threads.
        """
        self._thread.start()
        self._prepared.wait(_THREAD_WAIT_S)

    def stop(self) -> bool:
        """
        Stop the thread, and wait a moment for the current action.

        Returns:
            Whether the thread has ended.  If not, its pipes must stay open.
        """
        os.write(self._stop_writer, b"x")
        self._thread.join(_THREAD_WAIT_S)
        if self._thread.is_alive():
            return False

        self.close()
        return True

    def close(self) -> None:
        """
        Close the pipes, as in a forked child, which lacks the thread.
        """
        for fd in (self._stop_reader, self._stop_writer):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _run(self) -> None:
        log_exceptions(self._prepare)
        self._prepared.set()
        poll = select.poll()
        for fd in (self._stop_reader, *self._actions):
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._stop_reader in ready:
                return
            for fd in ready:
                log_exceptions(self._actions[fd])


def open_request_pipe(path: Path) -> int:
    """
    Create a named pipe that only its owner can write to.

    Args:
        path: Its name; the pipe of a dead process there is replaced.

    Returns:
        A file descriptor to read from.  It never reaches its end, because it
        is also open for writing.

    Raises:
        OSError: The pipe cannot be created.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISFIFO(path.lstat().st_mode):
            path.unlink()
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def drain_pipe(fd: int) -> None:
    """
    Read everything in a pipe: many requests at once count as one.
    """
    with contextlib.suppress(BlockingIOError):
        while len(os.read(fd, _READ_BYTES)) == _READ_BYTES:
            pass


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

        fd: The open file.  The program may have closed it, and reused the
            number.

        file_ref: Returns ``None`` once *faulthandler* no longer writes there.

        file_id: Device and inode of the file.

        fault_handler: Address of *faulthandler*'s handler.
    """

    path: Path
    signal: int
    fd: int
    file_ref: FaultFileRef
    file_id: tuple[int, int] | None
    fault_handler: int


# The same handler, once per caller of `enable_stack_signal`.
_handlers: list[StackSignalHandler] = []

# Our signals stay ignored afterwards: a late one must not kill.
_ignored_signals: set[int] = set()


def enable_stack_signal(
    folder: str | os.PathLike[str] = OFFERS_ROOT,
) -> StackSignalHandler:
    """
    Let the threads of this process write their stacks on a signal.

    It is a real-time signal that no other code uses.  Forked children do not
    react to it.

    Args:
        folder: Parent of the folder with the file; readers search ``/tmp``.

    Returns:
        The signal and the file, the same for every call.

    Raises:
        OSError: All signals are in use, or the file cannot be created.
    """
    handler = _handlers[0] if _handlers else _install_handler(Path(folder))
    _handlers.append(handler)
    _hook_fork()
    return handler


def disable_stack_signal() -> None:
    """
    Undo one :func:`enable_stack_signal`; the last one removes the file.
    """
    if not _handlers:
        return

    handler = _handlers.pop()
    if not _handlers:
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
    raise PermissionError(errno.EPERM, "somebody else made it", str(folder))


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
    fd = os.open(path, flags, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    file = FaultFile(fd)
    # This is restored when faulthandler's handler is removed.
    set_handler(number, _IGNORE)
    _ignored_signals.add(number)
    # Without a chain, system calls go on after the signal where they can.
    faulthandler.register(number, file=file, all_threads=False, chain=False)
    fault_handler = get_handler(number)
    return StackSignalHandler(
        path, number, fd, FaultFileRef(file), _file_id(fd), fault_handler
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
    # Closing the file also releases its lock.
    if _file_id(handler.fd) == handler.file_id:
        os.close(handler.fd)


def _file_id(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@cache
def _hook_fork() -> None:
    """
    Have forked children unregister the handler of their parent.
    """
    os.register_at_fork(
        after_in_child=lambda: log_exceptions(_unregister_in_child)
    )


def _unregister_in_child() -> None:
    if _handlers:
        _unregister_handler(_handlers[0])
        _handlers.clear()


class Extras:
    """
    Everything that *distdebug* runs inside a job.

    Args:
        recording: The recording of this process.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._caught: list[CaughtSignal] = []
        self._listener: Listener | None = None
        self._pipe: Path | None = None
        self._pipe_fd: int | None = None
        self._has_stack_signal = False
        self._unhook: Callable[[], None] = lambda: None

    def start(self) -> None:
        """
        Start every part that works here.
        """
        log_exceptions(self._open_pipe)
        log_exceptions(self._catch_signals)
        log_exceptions(self._listen)
        if self._listener is None:
            self._release_signals(in_child=False)  # without a listener
        log_exceptions(self._enable_stack_signal)
        self._unhook = hook_exit(self._on_end)
        # Announce this rank.
        log_exceptions(lambda: _write_sidecar(self._recording, "start"))

    def stop(self) -> None:
        """
        Stop, and restore hooks and signals.
        """
        self._unhook()
        self._release_signals(in_child=False)
        log_exceptions(self._disable_stack_signal)
        log_exceptions(self._remove_pipe)
        if self._listener is None or self._listener.stop():
            self._close_pipes()

    def reset_in_child(self) -> None:
        """
        Release everything that a forked child has inherited from its parent.
        """
        self._unhook()
        self._release_signals(in_child=True)
        if self._listener is not None:
            self._listener.close()
        self._close_pipes()

    def _enable_stack_signal(self) -> None:
        enable_stack_signal()
        self._has_stack_signal = True

    def _disable_stack_signal(self) -> None:
        if self._has_stack_signal:
            self._has_stack_signal = False
            disable_stack_signal()

    def _open_pipe(self) -> None:
        prefix = self._recording.settings.request_prefix
        pipe = Path(f"{prefix}{self._recording.rank_label}.pipe")
        self._pipe_fd = open_request_pipe(pipe)
        self._pipe = pipe

    def _remove_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.unlink(missing_ok=True)

    def _close_pipes(self) -> None:
        if self._pipe_fd is not None:
            os.close(self._pipe_fd)
            self._pipe_fd = None
        while self._caught:
            close_pipe(self._caught.pop())

    def _catch_signals(self) -> None:
        for catch in (catch_sigterm, catch_sigabrt):
            if (caught := catch()) is not None:
                self._caught.append(caught)

    def _release_signals(self, *, in_child: bool) -> None:
        for caught in self._caught:
            log_exceptions(partial(release, caught, in_child=in_child))

    def _listen(self) -> None:
        actions: dict[int, Callable[[], object]] = {
            caught.reader: partial(self._on_signal, caught)
            for caught in self._caught
        }
        if self._pipe_fd is not None:
            actions[self._pipe_fd] = partial(self._on_request, self._pipe_fd)
        listener = Listener(actions, self._limit_aborts)
        try:
            listener.start()
        except RuntimeError:  # no more threads can be had
            listener.close()
            raise
        self._listener = listener

    def _limit_aborts(self) -> None:
        for caught in self._caught:
            try:
                limit_abort_time(caught)
            except OSError:  # a signal without a limit is worse than none
                release(caught)
                raise

    def _on_request(self, fd: int) -> None:
        drain_pipe(fd)
        write_exit_dump(self._recording, "request")

    def _on_signal(self, caught: CaughtSignal) -> None:
        if not (stacks := read_traceback(caught)):
            return

        write_exit_dump(self._recording, caught.number.name, traceback=stacks)
        if caught.is_final:
            log_exceptions(self._remove_pipe)
            if caught.number.name == "SIGABRT":  # as faulthandler would
                os.write(2, stacks)  # stderr, also where Python's is gone
            end_process(caught)

    def _on_end(self) -> None:
        write_end_files(self._recording)
        self.stop()
