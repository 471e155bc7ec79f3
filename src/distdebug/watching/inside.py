"""
Watch this rank from inside, and capture its job when progress stops.

One thread of each rank samples counters that exist anyway, such as those of
the Flight Recorder.  A child process does the capture.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from .._in_job import OwnThread
from .._io import read_ordinary
from .._proc import in_time
from .._text import clean
from ..errors import CaptureError
from ..flight_recorder import current_recording, read_progress
from ..identity import current_identity
from ..snapshots import SnapshotOptions
from .child import ask_child
from .config import (
    HangDebugConfig,
    check_callable,
    check_callables,
    check_config,
    check_number,
    check_path,
    check_paths,
)
from .hang import (
    CaptureRequest,
    Hang,
    HangHandler,
    HangReason,
    Hook,
    Response,
    find_output_dir,
    hang_message,
    log_message,
)
from .loop import (
    MIN_POLL_S,
    ProgressSensor,
    TimedCall,
    combine_senses,
    context_switches,
    count_step,
    default_poll_s,
    step_count,
    watch_files,
    watch_processes,
)


# How long to wait for the child to end, and then for the thread.
_CHILD_EXIT_S = 12.0
_JOIN_S = 2.0
_HOOK_TIMEOUT_S = 60.0
# How long reports of other ranks may take to be read.
_READ_S = 5.0
_MAX_REPORT_BYTES = 1 << 26


Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def watch(  # noqa: PLR0913 each can be left out
    config: HangDebugConfig
    | Mapping[str, object]
    | str
    | os.PathLike[str]
    | None = None,
    *,
    output_dir: str | os.PathLike[str] | None = None,
    log_dir: str | os.PathLike[str] = ".",
    dump_dir: str | os.PathLike[str] | None = None,
    logs: Paths = (),
    progress_files: Paths = (),
    sense: Callable[[], object] | None = None,
    on_hang: Hook | Iterable[Hook] | None = None,
    floor_s: float = 60.0,
    factor: float = 5.0,
    start_s: float = 600.0,
    poll_s: float | None = None,
    timeout_s: float = 120.0,
) -> Watch:
    """
    Watch this rank from now on, and diagnose its job if progress stops.

    Call it on every rank.  A rank moves if any of these moves: the counters of
    the Flight Recorder, :meth:`Watch.step` if it is ever called, the progress
    files, and *sense*; without any of them, the main thread.  If nothing moves
    for longer than *factor* times the longest pause so far, one rank of each
    node samples all ranks of its job on this node.  Unless that shows a
    checkpoint or the like, it takes a snapshot.  The nodes of a job share one
    snapshot if they share *output_dir*.

    Example::

        with distdebug.watch(output_dir="/shared/hangs") as watch:
            for batch in loader:
                train_step(batch)
                watch.step()

    Args:
        config: When to capture in any case, and where to put it: a
            configuration, a ``debug:`` section of a job file, or the path of
            one; by default only missing progress counts.

        output_dir: The folder for snapshots, instead of that of *config*.

        log_dir: The folder of the job's logs, for ``{log_dir}`` in *config*.

        dump_dir: Where the ranks write their Flight Recorder dumps; by default
            the folder of :func:`~distdebug.enable_flight_recorder`.

        logs: Files whose last part a snapshot contains.

        progress_files: Logs and progress files, or folders of them, that
            change as long as the job makes progress.

        sense: Returns another value that changes as long as the job makes
            progress, such as a number of requests; ``None`` is ignored.  A
            separate thread calls it; the watch waits for it at most 2 s.

        on_hang: Called with a :class:`~distdebug.watching.hang.Hang`, on one
            rank of the job, and not on the main thread.  A failure, or more
            than 60 s, is logged.

        floor_s: How many seconds without progress are normal for any job.

        factor: How many times longer than the longest pause so far the next
            one may be.

        start_s: How many seconds the first progress may take.

        poll_s: How often to sample, in seconds, at least 0.05; by default a
            quarter of *floor_s*, at most 10.

        timeout_s: How long a snapshot may take, in seconds.

    Returns:
        The running watch; it ends with its ``with`` block, when it is closed,
        or with the process.

    Raises:
        ConfigError: A number, a path, or a function is invalid.
    """
    config = check_config(config)
    request = _request(config, output_dir, log_dir, dump_dir, logs, timeout_s)
    # Before the watch exists: a wrong argument is an error of this call.
    loop = _make_loop(config, floor_s, factor, start_s, poll_s)
    started = Watch(
        request,
        check_callables(on_hang, "on_hang"),
        check_paths(progress_files, "progress_files"),
        None if sense is None else check_callable(sense, "sense"),
    )
    if not config.enabled:
        text = "the configuration of the watch does not enable it"
        log_message(logging.INFO, text)
        return started

    try:
        started.start(loop)
    except BaseException:  # Ctrl-C: the caller could not close it
        started.close()
        raise
    return started


def _request(  # noqa: PLR0913, PLR0917 as watch() has them
    config: HangDebugConfig,
    output_dir: object,
    log_dir: object,
    dump_dir: object,
    logs: object,
    timeout_s: object,
) -> CaptureRequest:
    folder = check_path(log_dir, "log_dir")
    recording = current_recording()
    if dump_dir is not None:
        dump_dir = check_path(dump_dir, "dump_dir")
    elif recording is not None:
        dump_dir = recording.settings.dump_dir
    options = SnapshotOptions(
        dump_dir=dump_dir,
        logs=check_paths(logs, "logs"),
        timeout_s=check_number(timeout_s, "timeout_s", least=0.1),
    )
    if output_dir is None:
        output_dir = config.resolve(folder)
    return CaptureRequest(
        output_dir=find_output_dir(check_path(output_dir, "output_dir")),
        wanted=options,
        inside=os.getpid(),
    )


class Watch:
    """
    A watch over this rank; made by :func:`watch`.
    """

    def __init__(
        self,
        request: CaptureRequest,
        hooks: Iterable[Hook] = (),
        progress_files: Iterable[str | os.PathLike[str]] = (),
        sense: Callable[[], object] | None = None,
    ) -> None:
        self._pid = os.getpid()
        #: Where reports go.
        self.output_dir = request.output_dir
        self._user_sense = sense
        files = watch_files(progress_files)
        own = TimedCall(self._call_user_sense)
        self._progress = combine_senses(
            lambda _: read_progress(),
            lambda _: step_count(),
            lambda _: files(),
            lambda _: own() if self._user_sense else None,
            lambda _: self._phase_progress(),
        )
        # Until when phases that make no steps may last, in any order.
        self._phases: list[float] = []
        self._stop = threading.Event()
        self._hangs: list[Hang] = []
        self._capture_lock = threading.Lock()
        self._thread_local = threading.local()
        self._handler = HangHandler(
            request,
            self._capture,
            tuple(partial(self._call_hook, hook) for hook in hooks),
            _log_hang,
            hook_timeout_s=_HOOK_TIMEOUT_S,
        )
        self._thread: threading.Thread | None = None

    def start(self, loop: Callable[..., object]) -> None:
        """
        Start the thread.

        Args:
            loop: Runs in it; takes the arguments of
                :func:`~distdebug.watching.loop.watch_processes`.
        """
        run = partial(
            loop,
            on_hang=self._handler,
            pids=[self._pid],
            sense=self._sense,
            sleep=self._stop.wait,
        )
        self._thread = OwnThread(partial(_run_loop, run), "distdebug watch")
        try:
            self._thread.start()
        except RuntimeError as error:  # the limit of threads is reached
            text = "this rank is not watched"
            log_message(logging.WARNING, text, error=error)
            self._thread = None
        else:
            atexit.register(self.close)

    @property
    def hangs(self) -> tuple[Hang, ...]:
        """
        Return the diagnoses that this rank has made.

        Mostly one rank makes them for the whole job.
        """
        return tuple(self._hangs)

    def messages(self) -> tuple[str, ...]:
        """
        Return what was found wrong with the job so far, for people.

        That includes the reports of other ranks that this one knows of.

        Returns:
            For each hang the verdict, and where the evidence is, in two lines.
        """
        own = tuple(self._hangs)
        others = self._handler.request.but - {hang.folder for hang in own}
        read = partial(_first_lines, sorted(others))
        lines: Mapping[Path, str] = {}
        with suppress(Exception):  # the file system may be what hangs
            lines = in_time(read, _READ_S)
        return (
            *(hang.message for hang in own if not hang.is_healthy),
            *(hang_message(line, folder) for folder, line in lines.items()),
        )

    def step(self) -> None:
        """
        Count a finished step.

        It costs as much as an addition, and never fails.
        """
        count_step()

    @contextmanager
    def phase(self, most_s: float = 1800.0) -> Iterator[None]:
        """
        Allow a phase without steps, such as an evaluation or a checkpoint.

        Call it on each rank that is in the phase, or waits for one that is.

        Example::

            with watch.phase(most_s=600):
                evaluate()

        Args:
            most_s: How long it may last, in seconds; then this rank counts as
                standing still, unless something else shows progress.
        """
        end = time.monotonic() + most_s
        self._phases.append(end)
        try:
            yield
        finally:
            self._phases.remove(end)

    def _phase_progress(self) -> float | None:
        now = time.monotonic()
        return now if any(now < end for end in self._phases) else None

    def close(self) -> None:
        """
        End the watch, and cut short a snapshot that is being taken.
        """
        # A forked child has the watch, but not its thread, which may have
        # held the lock of the event.
        if self._pid != os.getpid():
            return

        self._stop.set()
        if self._thread is None:
            return

        atexit.unregister(self.close)
        # A hook that closes the watch must not wait for itself.
        if not getattr(self._thread_local, "is_hook", False):
            if self._capture_lock.acquire(timeout=_CHILD_EXIT_S):
                self._capture_lock.release()
            self._thread.join(_JOIN_S)

    def __repr__(self) -> str:
        state = "running" if self._thread is not None else "not running"
        found = f", hangs={len(self._hangs)}" if self._hangs else ""
        return f"<Watch {state}, output_dir={str(self.output_dir)!r}{found}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _sense(self, _: object) -> dict[str, object]:
        rank = current_identity().rank
        name = "this process" if rank is None else f"rank {rank}"
        progress = self._progress((self._pid,))
        if progress is None:
            progress = context_switches([self._pid])
        return {name: progress}

    def _call_user_sense(self) -> object:
        try:
            return self._user_sense() if self._user_sense else None
        except BaseException as error:  # noqa: BLE001 other senses remain
            text = "sense= is not called again"
            log_message(logging.WARNING, text, error=error)
            self._user_sense = None
            return None

    def _capture(
        self, reason: HangReason, request: CaptureRequest
    ) -> Response:
        with self._capture_lock:
            if self._stop.is_set():
                msg = "the watch was closed"
                raise CaptureError(msg)
            response = ask_child(reason, request, self._stop)
        if response.hang is not None:
            self._hangs.append(response.hang)
        return response

    def _call_hook(self, hook: Hook, hang: Hang) -> None:
        self._thread_local.is_hook = True
        hook(hang)


def _first_lines(bundles: Iterable[Path]) -> dict[Path, str]:
    lines = {}
    for bundle in bundles:
        with suppress(OSError, ValueError):
            text = read_ordinary(bundle / "REPORT.txt", _MAX_REPORT_BYTES)
            line = text.partition(b"\n")[0].decode("utf-8", "replace")
            lines[bundle] = clean(line, limit=1000)
    return lines


def _log_hang(hang: Hang) -> None:
    level = logging.INFO if hang.is_healthy else logging.WARNING
    log_message(level, "distdebug: %s", hang)


def _make_loop(
    config: HangDebugConfig,
    floor_s: float,
    factor: float,
    start_s: float,
    poll_s: float | None,
) -> Callable[..., object]:
    new_sensor = partial(
        ProgressSensor, floor_s=floor_s, factor=factor, start_s=start_s
    )
    new_sensor()
    if poll_s is None:
        poll_s = default_poll_s(floor_s)
    return partial(
        watch_processes,
        config,
        new_sensor=new_sensor,
        poll_s=check_number(poll_s, "poll_s", least=MIN_POLL_S),
    )


def _run_loop(loop: Callable[[], object]) -> None:
    try:
        loop()
    except BaseException as error:  # noqa: BLE001 it must not harm the job
        log_message(logging.WARNING, "the watch has ended", error=error)
