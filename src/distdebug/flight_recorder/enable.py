"""
Enable and disable the Flight Recorder, for any torch and launcher.

Enabling it sets torch's variables, and starts the extras in this process:

* A listener thread dumps on request, and on SIGTERM and SIGABRT.
* Exit hooks dump when the program ends by an exception.
* A real-time signal makes a thread write its stack to a file.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import select
import stat
import sys
import threading
import time

from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from .._in_job import OwnDescriptor, OwnThread
from .._io import is_there, write_whole
from .._text import clean
from ..errors import NotRecordingError, RecorderError, TooLateError
from .recording.dump import (
    THREAD_PREFIX,
    TRACEBACK_SUFFIX,
    Recording,
    begin_recording,
    current_recording,
    end_recording,
    has_call_in_flight,
    log_exceptions,
    torch_version,
    traceback_frames,
    write_dump,
    write_process_sidecar,
)
from .recording.plan import (
    Options,
    RecorderSettings,
    make_folder,
    make_plan,
    new_token,
    random_root,
)
from .recording.signals import (
    CaughtSignal,
    catch_sigabrt,
    catch_sigterm,
    close_pipe,
    disable_stack_signal,
    drop_stack_signal,
    enable_stack_signal,
    end_process,
    end_unheard,
    limit_abort_time,
    read_traceback,
    release,
)


_logger = logging.getLogger("distdebug")


class _Enabled(NamedTuple):
    options: Options
    settings: RecorderSettings
    previous: Mapping[str, str | None]
    extras: Extras | None


# What torch appends to each error of CUDA.
_TORCH_ADVICE = re.compile(
    r"\n(?:Search for `cuda|CUDA kernel errors might|For debugging consider)"
)

# How long a spawned process may import its main module.
_SPAWN_S = 600.0
_SPAWN_POLL_S = 0.02

# At most one; forked children drop that of their parent.
_enabled: list[_Enabled] = []


def enable_flight_recorder(  # noqa: PLR0913 each has its use
    *,
    dump_dir: str | os.PathLike[str] | None = None,
    buffer_size: int = 2000,
    dump_on_timeout: bool = True,
    cpp_stacks: bool = False,
    timing: bool = False,
    fast_symbolize: bool = True,
    pipe: bool = True,
    extras: bool = True,
    override: bool = False,
    keep: Collection[str] = (),
) -> RecorderSettings:
    """
    Record the collective calls of this rank, and dump them when it hangs.

    Call it before ``init_process_group``; a second call with the same
    arguments does nothing.  Variables that the user has set stay as they are,
    except ``TORCH_NCCL_ASYNC_ERROR_HANDLING=1``, which becomes 3 under
    torchrun: torchrun sets it by default, and it loses dumps.

    With *extras*, one sleeping thread dumps when :func:`request_dumps` asks,
    when the program ends by an exception or in the middle of a call, and on
    SIGTERM and SIGABRT; the process still ends as usual.  A sidecar beside
    each dump adds what torch does not write: rank, host, groups, stacks.
    An otherwise unused real-time signal lets ``python -m distdebug stacks``
    read the stack of each thread without the right to trace the process, and
    also while native code holds the interpreter lock.

    Example::

        distdebug.enable_flight_recorder(dump_dir="dumps")
        torch.distributed.init_process_group()

    Args:
        dump_dir: Folder of the dumps, shared by all ranks of a node or of the
            job.  By default ``DISTDEBUG_DUMP_DIR``, else the folder that the
            user has set for torch's dumps, else a folder per job in the
            temporary folder.  If it cannot be used, a warning is logged, and
            the rank gets a folder of its own in the temporary folder.

        buffer_size: How many calls to keep.

        dump_on_timeout: Whether NCCL dumps when a call times out.

        cpp_stacks: Whether to record C++ stacks, at about 1 us a call on
            Gloo; on NCCL it was not measured.

        timing: Whether NCCL records when a call started.

        fast_symbolize: Whether to use torch's fast symbolizer for C++ stacks.

        pipe: Whether torch makes its own pipe for requests.

        extras: Whether to do more than set variables.

        override: Whether to change also variables that the user has set.

        keep: Names of variables that must stay as they are.

    Returns:
        Every variable, its action, and the reason.

    Raises:
        TooLateError: A process group already exists.

        ValueError: An argument is invalid.
    """
    options = Options(
        dump_dir=None if dump_dir is None else os.fspath(dump_dir),
        buffer_size=buffer_size,
        dump_on_timeout=dump_on_timeout,
        cpp_stacks=cpp_stacks,
        timing=timing,
        fast_symbolize=fast_symbolize,
        pipe=pipe,
        override=override,
        keep=frozenset(keep),
        extras=extras,
    )
    if _enabled and _enabled[0].options == options:
        return _enabled[0].settings

    _check_no_process_group()
    environ = _original_environ(_enabled[0]) if _enabled else os.environ
    settings = _plan_with_folder(environ, torch_version(), options)
    disable_flight_recorder()
    _start_recording(settings, options)
    return settings


def disable_flight_recorder() -> None:
    """
    Restore everything that :func:`enable_flight_recorder` has changed.

    Dumps stay.  A recorder that torch has already made keeps recording.
    """
    if not _enabled:
        return

    enabled = _enabled.pop()
    if enabled.extras is not None:
        enabled.extras.stop()
    end_recording()
    environ = _original_environ(enabled)
    for name in enabled.previous:
        if name in environ:
            os.environ[name] = environ[name]
        else:
            os.environ.pop(name, None)


def _plan_with_folder(
    environ: Mapping[str, str], version: str | None, options: Options
) -> RecorderSettings:
    """
    Plan the settings, and make the folder that they need.

    A full or missing disk must not end a job at its start, nor a folder that
    another user made first: then dumps go to a folder with a random name.
    """
    token = new_token()
    settings = make_plan(environ, version, options, token)
    try:
        make_folder(settings.dump_dir)
    except RecorderError as error:
        fallback = str(random_root())
        options = options._replace(dump_dir=fallback)
        settings = make_plan(environ, version, options, token)
        with contextlib.suppress(RecorderError):
            make_folder(settings.dump_dir)
        _logger.warning(
            "%s; this rank dumps to %s: %s", error, fallback, error.remedy
        )
    return settings


def _check_no_process_group() -> None:
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        is_late = bool(c10d._world.pg_map)  # noqa: SLF001
    except AttributeError:
        return

    if is_late:
        msg = "a process group already exists, so torch no longer reads these settings"
        raise TooLateError(
            msg,
            remedy="call enable_flight_recorder() at the top of the script",
        )


def _start_recording(settings: RecorderSettings, options: Options) -> None:
    previous = {}
    for s in settings.variables:
        if s.action in {"set", "unset"}:
            previous[s.name] = os.environ.get(s.name)
            if s.value is None:
                os.environ.pop(s.name, None)
            else:
                os.environ[s.name] = s.value

    for warning in settings.warnings:
        _logger.warning("%s", warning)

    recording = begin_recording(Recording(settings))
    extras = Extras(recording) if options.extras else None
    _enabled.append(_Enabled(options, settings, previous, extras))
    if extras is not None:
        _hook_fork()
        if _is_being_spawned():
            wait = partial(_start_unless_worker, extras)
            log_exceptions(OwnThread(wait, f"{THREAD_PREFIX} start").start)
        else:
            extras.start()


def _is_being_spawned() -> bool:
    """
    Return whether *multiprocessing* still prepares this process, which it
    spawned: it imports the main module first.
    """
    process: Any = sys.modules.get("multiprocessing.process")
    return process is not None and hasattr(
        process.current_process(), "_inheriting"
    )


def _start_unless_worker(extras: Extras) -> None:
    """
    Start the extras of a spawned rank, once it is known what it is for.

    Workers of pools, executors, and data loaders are no ranks, though they have
    the variables of theirs.
    """
    deadline = time.monotonic() + _SPAWN_S
    while _is_being_spawned():
        if time.monotonic() > deadline:
            return
        time.sleep(_SPAWN_POLL_S)
    process = sys.modules["multiprocessing.process"].current_process()
    target = getattr(process, "_target", None)
    is_worker = process.daemon or (
        getattr(target, "__module__", "") == "concurrent.futures.process"
    )
    if not is_worker and _enabled and _enabled[-1].extras is extras:
        extras.start()


def _original_environ(enabled: _Enabled) -> dict[str, str]:
    """
    Return the environment without our changes; later changes of the user stay.
    """
    environ = dict(os.environ)
    ours = {s.name: s.value for s in enabled.settings.variables}
    for name, value in enabled.previous.items():
        if environ.get(name) == ours[name]:
            environ.pop(name, None)
            if value is not None:
                environ[name] = value
    return environ


@cache
def _hook_fork() -> None:
    """
    Have forked children drop the recording of their parent.
    """
    os.register_at_fork(after_in_child=_reset_in_child)


def _reset_in_child() -> None:
    end_recording()
    while _enabled:
        extras = _enabled.pop().extras
        if extras is not None:
            extras.reset_in_child()


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
        self._requests: OwnDescriptor | None = None
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
        log_exceptions(enable_stack_signal)
        self._unhook = hook_exit(self._on_end)
        # Announce this rank.
        log_exceptions(lambda: _write_sidecar(self._recording, "start"))

    def stop(self) -> None:
        """
        Stop, and restore hooks and signals.
        """
        self._unhook()
        self._release_signals(in_child=False)
        log_exceptions(disable_stack_signal)
        log_exceptions(self._remove_pipe)
        if self._listener is None or self._listener.stop():
            self._close_pipes()

    def reset_in_child(self) -> None:
        """
        Release everything that a forked child has inherited from its parent.
        """
        self._unhook()
        self._release_signals(in_child=True)
        log_exceptions(drop_stack_signal)
        if self._listener is not None:
            self._listener.close()
        self._close_pipes()

    def _open_pipe(self) -> None:
        prefix = self._recording.settings.request_prefix
        pipe = Path(f"{prefix}{self._recording.rank_label}.pipe")
        self._requests = OwnDescriptor(open_request_pipe(pipe))
        self._pipe = pipe

    def _remove_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.unlink(missing_ok=True)

    def _close_pipes(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
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
        actions: dict[OwnDescriptor, Callable[[], object]] = {
            caught.reader: partial(self._on_signal, caught)
            for caught in self._caught
        }
        if self._requests is not None:
            actions[self._requests] = partial(
                self._on_request, self._requests.fd
            )
        listener = Listener(actions, self._limit_aborts, self._check)
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

    def _check(self, silent_s: float, *, is_intact: bool) -> None:
        if not is_intact:  # all but the exit hooks is lost
            log_exceptions(disable_stack_signal)
            log_exceptions(self._remove_pipe)
            self._release_signals(in_child=False)
        for caught in self._caught:
            log_exceptions(partial(end_unheard, caught, silent_s))

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


# How long to wait for the stacks of all calls: the launcher may kill a process
# that takes too long to end.
_STACKS_TIMEOUT_S = 4.0


def write_exit_dump(
    recording: Recording,
    reason: str,
    *,
    exc: BaseException | None = None,
    traceback: bytes = b"",
) -> None:
    """
    Write a dump, or at least a sidecar, and never raise.

    Args:
        reason: See :class:`~distdebug.flight_recorder.sidecar.Sidecar`.

        exc: The exception that ends the process.

        traceback: The text that *faulthandler* wrote.
    """
    if exc is not None:
        recording.error = _format_exception(exc)
        recording.error_stack = traceback_frames(exc.__traceback__)

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
        write_exit_dump(recording, "exit-after-error", exc=exc)
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
        text = _TORCH_ADVICE.split(str(exc), maxsplit=1)[0]
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
            write_exit_dump(recording, "exception", exc=exc)
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
# How often to check the descriptors.
_CHECK_S = 0.5


class Listener:
    """
    A thread that calls the action of each pipe that is written to.

    Args:
        actions: The function to call, by descriptor.  Each must empty its
            pipe; its errors are logged once and otherwise ignored.

        prepare: Called first, in the thread.

        check: Called twice a second, with the seconds since the last call; and
            last with ``is_intact=False``, if the program has closed one of the
            descriptors.
    """

    def __init__(
        self,
        actions: Mapping[OwnDescriptor, Callable[[], object]],
        prepare: Callable[[], object] = lambda: None,
        check: Callable[..., object] = lambda _silent_s, **_: None,
    ) -> None:
        self._prepare = prepare
        self._check = check
        self._reader, self._writer = map(OwnDescriptor, os.pipe())
        self._own = (self._reader, self._writer, *actions)
        self._actions = {own.fd: action for own, action in actions.items()}
        self._prepared = threading.Event()
        self._thread = OwnThread(self._run, f"{THREAD_PREFIX} listener")

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
        if self._writer.is_intact():
            os.write(self._writer.fd, b"x")
        self._thread.join(_THREAD_WAIT_S)
        if self._thread.is_alive():
            return False

        self.close()
        return True

    def close(self) -> None:
        """
        Close the pipes, as in a forked child, which lacks the thread.
        """
        for own in (self._reader, self._writer):
            own.close()

    def _run(self) -> None:
        log_exceptions(self._prepare)
        self._prepared.set()
        poll = select.poll()
        for fd in (self._reader.fd, *self._actions):
            poll.register(fd, select.POLLIN)
        is_intact, before = True, time.monotonic()
        while is_intact:
            ready = [fd for fd, _ in poll.poll(_CHECK_S * 1000)]
            is_intact = all(own.is_intact() for own in self._own)
            silent_s = time.monotonic() - before
            before += silent_s
            check = partial(self._check, silent_s, is_intact=is_intact)
            log_exceptions(check)
            if self._reader.fd in ready:
                return
            for fd in ready if is_intact else ():
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
