"""
Is this rank still making progress; and if not, is somebody told?

One thread of each rank looks now and then at numbers that are there anyway.
What is done when they stand still is done by a child process.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import CaptureError
from ..flight_recorder import current_recording, read_progress
from ..identity import current_identity
from ..snapshots import Wanted
from .child import ask_child
from .config import (
    HangDebugConfig,
    a_config,
    a_folder,
    a_function,
    a_number,
    several_functions,
    several_paths,
)
from .hang import Duty, Hang, HangReason, Hook, Order, Response, say
from .loop import (
    LEAST_POLL_S,
    FilesState,
    InTime,
    ProgressSensor,
    last_known,
    poll_of,
    step,
    steps,
    switches,
    watch_processes,
)


# How long a child that was told to end may take, and then the thread.
_CHILD_S = 12.0
_JOIN_S = 2.0
_HOOK_S = 60.0


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
    Watch this rank from now on, and explain it if it makes no progress.

    To be called on every rank.  A rank moves if any of these moves: what the
    Flight Recorder counts, :meth:`Watch.step` if it is ever called, the files
    of progress, and *sense*; without any of them, the main thread.  If nothing
    did for longer than *factor* times the longest pause so far, one rank of
    each node has all ranks of its job on this node looked at; and if that is
    no checkpoint and the like, a snapshot is taken.  The nodes of a job share
    one snapshot if they share *output_dir*.

    Args:
        config: When to look in any case, and where to put it: a configuration,
            the ``debug:`` section of a job file, or the path of one; by
            default only a lack of progress counts.

        output_dir: The folder for snapshots, instead of that of *config*.

        log_dir: The folder of the job's logs, which *config* may refer to.

        dump_dir: Where the ranks put their Flight Recorder dumps; by default
            as :func:`~distdebug.enable_flight_recorder` was told.

        logs: Files of which a snapshot keeps the end.

        progress_files: Logs and files of progress, or folders of them, that
            change as long as the job goes on.

        sense: Tells something else that changes as long as the job goes on,
            such as a number of requests; called by a thread of its own, and
            not waited for longer than 2 s.  ``None`` tells nothing.

        on_hang: Called with a :class:`~distdebug.watching.hang.Hang`, on one
            rank of the job, and not on the main thread.  If it fails, or does
            not end within 60 s, that is logged.

        floor_s: How many seconds without progress are fine for any job.

        factor: How many times as long as ever before a pause may be.

        start_s: How many seconds the first sign of progress may take.

        poll_s: How often to look, in seconds, at least 0.05; by default a
            quarter of *floor_s*, at most 10.

        timeout_s: How long taking a snapshot may last, in seconds.

    Returns:
        The watch, which is on; it ends with its ``with`` block, when it is
        closed, or with the process.

    Raises:
        ConfigError: A number, a path, or a function makes no sense.
    """
    config = a_config(config)
    log_dir = a_folder(log_dir, "log_dir")
    if output_dir is None:
        output_dir = config.resolve(log_dir)
    wanted = Wanted(
        dump_dir=_dump_dir(dump_dir),
        logs=several_paths(logs, "logs"),
        timeout_s=a_number(timeout_s, "timeout_s", least=0.1),
    )
    order = Order(
        output_dir=a_folder(output_dir, "output_dir"),
        wanted=wanted,
        inside=os.getpid(),
    )
    # Before the watch is made: a mistake is told now, and here.
    loop = _loop(config, floor_s, factor, start_s, poll_s)
    started = Watch(
        order,
        several_functions(on_hang, "on_hang"),
        several_paths(progress_files, "progress_files"),
        None if sense is None else a_function(sense, "sense"),
    )
    if config.enabled:
        _start(started, loop)
    else:
        text = "the configuration of the watch does not enable it"
        say(logging.INFO, text)
    return started


def _start(watch: Watch, loop: Callable[..., object]) -> None:
    try:
        watch.start(loop)
    except BaseException:  # Ctrl-C: nobody would close it
        watch.close()
        raise


def _dump_dir(given: str | os.PathLike[str] | None) -> Path | None:
    recording = current_recording()
    if given is None and recording is not None:
        return recording.settings.dump_dir
    return None if given is None else a_folder(given, "dump_dir")


class Watch:
    """
    A watch over this rank; made by :func:`watch`.
    """

    def __init__(
        self,
        order: Order,
        hooks: Iterable[Hook] = (),
        progress_files: Iterable[str | os.PathLike[str]] = (),
        sense: Callable[[], object] | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._own_sense = sense
        files, own = FilesState(progress_files), InTime(self._ask_user)
        self._signs = last_known(
            lambda _: read_progress(),
            lambda _: steps(),
            lambda _: files(),
            lambda _: own() if self._own_sense else None,
        )
        self._stop = threading.Event()
        self._hangs: list[Hang] = []
        self._looking = threading.Lock()
        self._here = threading.local()
        self._duty = Duty(
            order,
            self._look,
            tuple(partial(self._call, hook) for hook in hooks),
            _log,
            patience_s=_HOOK_S,
        )
        self._thread: threading.Thread | None = None

    def start(self, loop: Callable[..., object]) -> None:
        """
        Start the thread.

        Args:
            loop: What it does, as
                :func:`~distdebug.watching.loop.watch_processes` does.
        """
        run = partial(
            loop,
            on_hang=self._duty,
            pids=[self._pid],
            sense=self._sense,
            sleep=self._stop.wait,
        )
        self._thread = threading.Thread(
            target=_run, args=(run,), name="distdebug watch", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads can be had
            say(logging.WARNING, "nobody watches this rank", error=error)
            self._thread = None
        else:
            atexit.register(self.close)

    @property
    def hangs(self) -> tuple[Hang, ...]:
        """
        What this rank has found out so far; mostly one rank does so for all.
        """
        return tuple(self._hangs)

    def step(self) -> None:
        """
        Tell that a step is done.

        It costs as much as adding one to a number, and never fails.
        """
        step()

    def close(self) -> None:
        """
        End the watch.  A snapshot that is being taken is cut short.
        """
        # A forked child has the watch, and not its thread, which may have
        # held the lock of the event.
        if self._pid != os.getpid():
            return

        self._stop.set()
        if self._thread is None:
            return

        atexit.unregister(self.close)
        # A hook that closes us must not wait for itself.
        if not getattr(self._here, "is_hook", False):
            if self._looking.acquire(timeout=_CHILD_S):
                self._looking.release()
            self._thread.join(_JOIN_S)

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
        seen = self._signs((self._pid,))
        if seen is None:
            return {name: switches([self._pid])}
        return {name: seen}

    def _ask_user(self) -> object:
        if self._own_sense is None:
            return None

        try:
            return self._own_sense()
        except BaseException as error:  # noqa: BLE001 there are other signs
            say(logging.WARNING, "sense= is not called again", error=error)
            self._own_sense = None
            return None

    def _look(self, reason: HangReason, order: Order) -> Response:
        with self._looking:
            if self._stop.is_set():
                msg = "the watch was closed"
                raise CaptureError(msg)
            got = ask_child(reason, order, self._stop)
        if got.hang is not None:
            self._hangs.append(got.hang)
        return got

    def _call(self, hook: Hook, hang: Hang) -> None:
        self._here.is_hook = True
        hook(hang)


def _log(hang: Hang) -> None:
    level = logging.INFO if hang.is_healthy else logging.WARNING
    say(level, "distdebug: %s", hang)


def _loop(
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
        poll_s = poll_of(floor_s)
    poll_s = a_number(poll_s, "poll_s", least=LEAST_POLL_S)
    return partial(
        watch_processes, config, new_sensor=new_sensor, poll_s=poll_s
    )


def _run(loop: Callable[[], object]) -> None:
    try:
        loop()
    except BaseException as error:  # noqa: BLE001 the job is worth more
        say(logging.WARNING, "the watch has ended", error=error)
