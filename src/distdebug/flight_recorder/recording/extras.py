"""
What does *distdebug* do inside a job beyond setting variables?

It listens for requests, notes who this rank is, dumps when the rank dies, and
lets its threads tell where they are.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import fcntl
import functools
import itertools
import os
import select
import signal
import stat
import sys
import threading

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from ..._io import is_there, write_whole
from ..._text import clean
from ...errors import NotRecordingError
from ...processes import (
    ROOT,
    folder_name,
    is_kept,
    is_private,
    own_offer,
    parse_name,
)
from ..sidecar import write_sidecar
from . import crash_signals
from .crash_signals import (
    CaughtSignal,
    FaultFile,
    IsHeld,
    disposition,
    get_handler,
    restore_action,
    save_action,
    set_handler,
)
from .dump import (
    THREAD_PREFIX,
    TRACEBACK_SUFFIX,
    Recording,
    current_recording,
    describe_process,
    is_in_flight,
    quietly,
    traceback_frames,
    write_dump,
    write_words,
)


# The stacks of all calls are worth waiting for, but not long: whoever ends a
# process may lose patience.
_STACKS_S = 4.0


def leave_words(
    recording: Recording,
    reason: str,
    *,
    error: str = "",
    trace: TracebackType | None = None,
    traceback: bytes = b"",
) -> None:
    """
    Write a dump, or at least a side-car.  Never raises.

    Args:
        recording: The recording of this process.

        reason: Why; see :class:`~distdebug.flight_recorder.sidecar.Sidecar`.

        error: The exception that ends the process, in one line.

        trace: Where that exception was raised.

        traceback: What *faulthandler* said.
    """
    recording.error = error or recording.error
    if trace is not None:
        recording.died_at = traceback_frames(trace)

    def write() -> None:
        try:
            file = write_dump(recording, reason, stacks_timeout_s=_STACKS_S)
        except NotRecordingError:
            file = recording.next_path()
            write_words(recording, reason, file)
            recording.keep(file)
        if traceback:
            text = file.with_name(file.name + TRACEBACK_SUFFIX)
            write_whole(text, traceback)

    quietly(write)


def note_start(recording: Recording) -> None:
    """
    Write the first side-car: this rank exists, and here.  Never raises.
    """
    quietly(lambda: _note(recording, "start"))


def note_end(recording: Recording) -> None:
    """
    Write what is to be said when the program is over.  Never raises.

    That is a dump if a call was in flight, unless an exception has caused one
    already, and the last side-car.
    """
    exc = _pending_exception()
    if exc is not None:
        leave_words(
            recording,
            "exit-after-error",
            error=_in_one_line(exc),
            trace=exc.__traceback__,
        )
    elif is_in_flight() and not recording.error:
        leave_words(recording, "exit-after-error")
    quietly(lambda: _note(recording, "exit"))


def _note(recording: Recording, reason: str) -> None:
    file = recording.torch_path()
    dump = file.name if is_there(file) else ""
    sidecar = describe_process(
        recording,
        reason,
        dump=dump,
        # The last side-car counts, so it has to tell where the rank died.
        stacks=bool(recording.died_at),
    )
    if sidecar is not None:
        write_sidecar(sidecar, file)


def _pending_exception() -> BaseException | None:
    """
    The exception that ends a child of :mod:`multiprocessing`.

    There no hook is called, but the child ends while it handles the exception.
    """
    exc = sys.exception()
    while isinstance(exc, SystemExit):
        if exc.code in {None, 0}:
            return None
        exc = exc.__context__ or Exception(f"exit status {exc.code}")
    return exc


def _in_one_line(exc: BaseException) -> str:
    try:
        text = str(exc)
    except Exception:  # noqa: BLE001 it is somebody else's exception
        text = ""
    return clean(f"{type(exc).__name__}: {text}", limit=1000)


def hook_ends(on_end: Callable[[], None]) -> Callable[[], None]:
    """
    Be told when the program ends, and dump if it does so by an exception.

    Hooks that were there before are called as ever.

    Args:
        on_end: Called at the end.

    Returns:
        What takes the hooks away again; a hook that came later stays.
    """
    previous = sys.excepthook

    def excepthook(
        kind: type[BaseException],
        exc: BaseException,
        trace: TracebackType | None,
    ) -> None:
        recording = current_recording()
        if recording is not None:
            leave_words(
                recording, "exception", error=_in_one_line(exc), trace=trace
            )
        previous(kind, exc, trace)

    sys.excepthook = excepthook
    atexit.register(on_end)
    finalizer = _before_child_ends(on_end)

    def remove() -> None:
        if sys.excepthook is excepthook:
            sys.excepthook = previous
        atexit.unregister(on_end)
        finalizer()

    return remove


def _before_child_ends(on_end: Callable[[], None]) -> Callable[[], None]:
    """
    Children of :mod:`multiprocessing` skip what :mod:`atexit` knows.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return lambda: None

    util = sys.modules["multiprocessing.util"]
    finalizer = util.Finalize(None, on_end, exitpriority=0)

    def cancel() -> None:
        finalizer.cancel()

    return cancel


_PATIENCE_S = 1.0
_CHUNK = 1 << 16


class Listener:
    """
    A thread that calls what belongs to a pipe when the pipe is written to.

    Args:
        actions: What to call, by file descriptor.  Each must empty its pipe;
            its errors are logged once and otherwise ignored.

        prepare: Called first of all, in the thread.
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
        Listen from now on.

        Raises:
            RuntimeError: There can be no more threads.
        """
        self._thread.start()
        self._prepared.wait(_PATIENCE_S)

    def stop(self) -> bool:
        """
        Stop listening, and wait a moment for what is going on.

        Returns:
            Whether the thread is gone.  If not, its pipes must stay open.
        """
        os.write(self._stop_writer, b"x")
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            return False

        self.close()
        return True

    def close(self) -> None:
        """
        Let go of the pipes, as in a forked child: it has no such thread.
        """
        for fd in (self._stop_reader, self._stop_writer):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _run(self) -> None:
        quietly(self._prepare)
        self._prepared.set()
        poll = select.poll()
        for fd in (self._stop_reader, *self._actions):
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._stop_reader in ready:
                return
            for fd in ready:
                quietly(self._actions[fd])


def open_request_pipe(path: Path) -> int:
    """
    Make a named pipe that only its owner can write to.

    Args:
        path: Its name; what a dead process left there is replaced.

    Returns:
        A file descriptor to read from.  It never ends: it is also open for
        writing.

    Raises:
        OSError: The pipe cannot be made.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISFIFO(path.lstat().st_mode):
            path.unlink()
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def drain(fd: int) -> None:
    """
    Read all that is in a pipe: many requests at once are one.
    """
    with contextlib.suppress(BlockingIOError):
        while len(os.read(fd, _CHUNK)) == _CHUNK:
            pass


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


_STDERR = 2


class Extras:
    """
    Everything that goes on inside a job.

    Args:
        recording: The recording of this process.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._caught: list[CaughtSignal] = []
        self._listener: Listener | None = None
        self._pipe: Path | None = None
        self._pipe_fd: int | None = None
        self._has_offer = False
        self._unhook: Callable[[], None] = lambda: None

    def start(self) -> None:
        """
        Begin.  What does not work here is left out.
        """
        quietly(self._open_pipe)
        quietly(self._catch_signals)
        quietly(self._listen)
        if self._listener is None:
            self._release_signals(in_child=False)  # nobody would react
        quietly(self._offer_stacks)
        self._unhook = hook_ends(self._on_end)
        note_start(self._recording)

    def stop(self) -> None:
        """
        Put everything back.
        """
        self._unhook()
        self._release_signals(in_child=False)
        quietly(self._withdraw_stacks)
        quietly(self._remove_pipe)
        if self._listener is None or self._listener.stop():
            self._close_pipes()

    def forget(self) -> None:
        """
        Put back what a forked child has inherited, and leave the rest to its
        parent.
        """
        self._unhook()
        self._release_signals(in_child=True)
        if self._listener is not None:
            self._listener.close()
        self._close_pipes()

    def _offer_stacks(self) -> None:
        offer_stacks()
        self._has_offer = True

    def _withdraw_stacks(self) -> None:
        if self._has_offer:
            self._has_offer = False
            withdraw_stacks()

    def _open_pipe(self) -> None:
        rank = self._recording.identity.rank
        prefix = self._recording.settings.request_prefix
        pipe = Path(f"{prefix}{'unknown' if rank is None else rank}.pipe")
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
            crash_signals.close(self._caught.pop())

    def _catch_signals(self) -> None:
        for catch in (
            crash_signals.catch_sigterm,
            crash_signals.catch_sigabrt,
        ):
            caught = catch()
            if caught is not None:
                self._caught.append(caught)

    def _release_signals(self, *, in_child: bool) -> None:
        release = functools.partial(crash_signals.release, in_child=in_child)
        for caught in self._caught:
            quietly(functools.partial(release, caught))

    def _listen(self) -> None:
        actions: dict[int, Callable[[], object]] = {
            caught.reader: functools.partial(self._on_signal, caught)
            for caught in self._caught
        }
        if self._pipe_fd is not None:
            on_request = functools.partial(self._on_request, self._pipe_fd)
            actions[self._pipe_fd] = on_request
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
                crash_signals.limit_abort(caught)
            except OSError:  # a signal without a limit is worse than none
                crash_signals.release(caught)
                raise

    def _on_request(self, fd: int) -> None:
        drain(fd)
        leave_words(self._recording, "request")

    def _on_signal(self, caught: CaughtSignal) -> None:
        words = crash_signals.read_words(caught)
        if not words:
            return

        leave_words(self._recording, caught.number.name, traceback=words)
        if caught.is_final:
            quietly(self._remove_pipe)
            if caught.number.name == "SIGABRT":  # as faulthandler would
                os.write(_STDERR, words)
            crash_signals.die_of(caught)

    def _on_end(self) -> None:
        note_end(self._recording)
        self.stop()
