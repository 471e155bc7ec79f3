"""
Watch loop, progress senses, and stall detection for a job.

The loop runs beside a job and survives it.  The function that it calls at a
hang may fail.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

import attrs

from .._in_job import OwnThread
from ..processes import (
    Worker,
    as_patterns,
    find_workers,
    parse_status,
    read_proc,
)
from .config import HangDebugConfig, check_number
from .hang import (
    HangReason,
    RetryLater,
    WatchedProcesses,
    is_exit_request,
    log_message,
)


_MAX_FILES = 10_000
_step_counter = [0]


def count_step() -> None:
    """
    Count a finished step, from the loop of the job itself.

    It costs as much as an addition, and never fails.
    """
    # Two threads may count the same step; any change is enough.
    _step_counter[0] += 1


def step_count() -> int | None:
    """
    Return how often :func:`count_step` was called here; ``None`` if it never was.
    """
    return _step_counter[0] or None


def files_state(
    paths: Iterable[str | os.PathLike[str]],
) -> tuple[tuple[str, int, int], ...] | None:
    """
    Return the sizes and times of files.

    Args:
        paths: Logs and progress files, or folders of them.  A file system that
            does not answer blocks this call.

    Returns:
        Path, bytes, and nanoseconds since 1970 of each of the first 10,000
        files, sorted; ``None`` if there is none.
    """
    found = set()
    for file in islice(_files(paths), _MAX_FILES):
        with suppress(OSError, ValueError):
            status = Path(file).stat()
            found.add((file, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found)) or None


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    for path in paths:
        try:
            with os.scandir(path) as entries:
                yield from (x.path for x in entries if x.is_file())
        except NotADirectoryError:
            yield os.fspath(path)
        except (OSError, ValueError):
            continue


class TimedCall:
    """
    Calls a function that may block, and waits a limited time for its result.

    A file system or a lock of the job may block for ever.  So a thread makes
    the call, and there is no second one until it returns.

    Args:
        ask: The function; it must not raise.

        timeout_s: How long to wait for its result, in seconds.
    """

    def __init__(
        self, ask: Callable[[], object], timeout_s: float = 2.0
    ) -> None:
        self._ask = ask
        self._timeout_s = timeout_s
        self._thread: threading.Thread | None = None
        self._answer: object = None

    def __call__(self) -> object:
        """
        Return the result, or the last one if there is none in time.
        """
        if self._thread is None or not self._thread.is_alive():
            thread = OwnThread(self._store_answer)
            try:
                thread.start()
            except RuntimeError:  # too many threads, or Python exits
                return self._answer
            self._thread = thread
        self._thread.join(self._timeout_s)
        return self._answer

    def _store_answer(self) -> None:
        self._answer = self._ask()


def watch_files(
    paths: Iterable[str | os.PathLike[str]], timeout_s: float = 2.0
) -> Callable[[], object]:
    """
    Return a function that returns :func:`files_state` in limited time.

    Args:
        paths: Logs and progress files, or folders of them.

        timeout_s: How long to wait for the file system, in seconds.
    """
    known = tuple(paths)
    if not known:
        return lambda: None

    return TimedCall(lambda: files_state(known), timeout_s)


def combine_senses(
    *senses: Callable[[tuple[int, ...]], object],
) -> Callable[[tuple[int, ...]], object]:
    """
    Return one sense for several: the job moves if any of them changes.

    Args:
        senses: Each takes PIDs, and returns what should change.

    Returns:
        The combined sense.  If a sense returns ``None``, its last value
        counts.
    """
    last: list[object] = [None] * len(senses)

    def sense(pids: tuple[int, ...]) -> object:
        for number, one in enumerate(senses):
            value = one(pids)
            last[number] = last[number] if value is None else value
        return None if last == [None] * len(senses) else tuple(last)

    return sense


def context_switches(
    pids: Iterable[int], *, root: str = "/proc"
) -> int | None:
    """
    Return the number of voluntary context switches of main threads.

    Other threads do not count: the watchdog threads of a job wake up for ever,
    even if it is stuck.  A main thread that computes for minutes without
    waiting looks stuck.

    Args:
        root: The folder to read as ``/proc``.

    Returns:
        The sum; ``None`` if all processes have ended.
    """
    files = (read_proc(f"{root}/{pid}/task/{pid}/status") for pid in pids)
    texts = (parse_status(x).get("voluntary_ctxt_switches", "") for x in files)
    counts = [int(x) for x in texts if x.isascii() and x.isdigit()]
    return sum(counts) if counts else None


_MAX_GAPS = 1000


class ProgressSensor:
    """
    Decides whether a value changes often enough.

    It has neither a clock nor a source: the caller passes the time and the
    value. The limit is the longest recent time between two changes, times
    *factor*, and at least *floor_s*.

    Args:
        floor_s: How many seconds without a change are normal for any job.

        factor: How many times longer than the longest pause so far the next
            one may be.

        start_s: How many seconds the first change may take, because a job
            compiles, connects, and loads at its start.

    Raises:
        ConfigError: *floor_s* is below 0.1, *factor* is below 1, *start_s* is
            negative, or one of them is not a number, or above a million.
    """

    def __init__(
        self,
        *,
        floor_s: float = 60.0,
        factor: float = 5.0,
        start_s: float = 600.0,
    ) -> None:
        self._floor_s = check_number(floor_s, "floor_s", least=0.1)
        self._factor = check_number(factor, "factor", least=1, unit="")
        self._start_s = check_number(start_s, "start_s", least=0)
        self._value: object = None
        self._since: float | None = None
        self._has_changed = False
        self._gaps: deque[float] = deque(maxlen=_MAX_GAPS)

    @property
    def limit_s(self) -> float:
        """
        Return how many seconds may pass without a change, as far as is known.
        """
        learned = max(self._gaps, default=0.0) * self._factor
        limit = max(self._floor_s, learned)
        return limit if self._has_changed else max(limit, self._start_s)

    def update(
        self, now: float, value: object, *, learns: bool = True
    ) -> None:
        """
        Record the current value.

        Args:
            now: The time in seconds, of a monotonic clock.

            value: Equal to the last value if nothing moved; ``None`` if
                unknown, which is ignored.

            learns: Whether the pause before a change counts as normal.
        """
        if value is None:
            return

        if self._since is None:
            self._since = now
        elif value != self._value:
            # The time before the first change is a start, not a step.
            if self._has_changed and learns:
                self._gaps.append(now - self._since)
            self._since = now
            self._has_changed = True
        self._value = value

    def ignore_change(self, value: object) -> None:
        """
        Record a value without counting a change as progress.

        A capture can make a process move; that is no progress.

        Args:
            value: The current value; ``None`` if unknown, which is ignored.
        """
        if value is not None and self._since is not None:
            self._value = value

    def stalled_s(self, now: float) -> float:
        """
        Return the seconds since the last change, or since the first value.

        It is 0 without any value.

        Args:
            now: As of :meth:`update`.
        """
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def is_hung(self, now: float) -> bool:
        """
        Return whether nothing changed for longer than the limit.

        It is false without any value.

        Args:
            now: As of :meth:`update`.
        """
        return self.stalled_s(now) > self.limit_s


@attrs.define(kw_only=True)
class ProgressAlarm:
    """
    Watches several values, each by its own sensor, and reports new stalls.

    Attributes:
        new_sensor: Makes the sensor of a new name.

        pause_s: The minimum time between two reports, in seconds; a stall that
            begins in between and lasts is reported afterwards.

        most: The number of reports that are left.
    """

    new_sensor: Callable[[], ProgressSensor] = ProgressSensor
    pause_s: float = 300.0
    most: int = 10
    _sensors: dict[str, ProgressSensor] = attrs.field(init=False, factory=dict)
    _reported: set[str] = attrs.field(init=False, factory=set)
    _last_reported: frozenset[str] = attrs.field(
        init=False, default=frozenset()
    )
    _quiet_until: float = attrs.field(init=False, default=float("-inf"))

    def update(self, now: float, values: Mapping[str, object]) -> None:
        """
        Record the current values.

        Args:
            now: The time in seconds, of a monotonic clock.

            values: The values by name.  A name that is missing is forgotten.
        """
        self._sensors = {
            name: self._sensors.get(name) or self.new_sensor()
            for name in values
        }
        for name, value in values.items():
            # A hang that has recovered must not count as a normal pause.
            learns = name not in self._reported
            self._sensors[name].update(now, value, learns=learns)

    def ignore_change(self, values: Mapping[str, object]) -> None:
        """
        Record values without counting changes as progress.
        """
        for name, value in values.items():
            if name in self._sensors:
                self._sensors[name].ignore_change(value)

    def new_stalls(self, now: float) -> tuple[tuple[str, float], ...]:
        """
        Return what is stuck and was not reported yet.

        Args:
            now: As of :meth:`update`.

        Returns:
            Names, and for how many seconds they did not move; longest first.
        """
        self._last_reported = frozenset()
        stuck = {
            name: sensor.stalled_s(now)
            for name, sensor in self._sensors.items()
            if sensor.is_hung(now)
        }
        self._reported &= stuck.keys()
        fresh = stuck.keys() - self._reported
        if not fresh or not self.most or now < self._quiet_until:
            return ()

        self._reported |= fresh
        self._last_reported = frozenset(fresh)
        self._quiet_until = now + self.pause_s
        self.most -= 1
        ordered = sorted(fresh, key=lambda name: (-stuck[name], name))
        return tuple((name, stuck[name]) for name in ordered)

    def withdraw(self, until: float, *, is_free: bool = True) -> None:
        """
        Withdraw the last report, because nothing was wrong.

        Args:
            until: When to report it again if nothing has moved, as of
                :meth:`update`.

            is_free: Whether it does not count towards *most*.
        """
        if self._last_reported:
            self._reported -= self._last_reported
            self._last_reported = frozenset()
            self._quiet_until = until
            self.most += is_free


# Shorter intervals cost more and show no more.
MIN_POLL_S = 0.05

Ending = Literal[
    "off",  # the configuration does not enable the watch
    "ended",  # the processes have ended
    "nobody",  # there was no such process, or none until the last wait
    "waited",  # the last wait is over, and until_exit is false
    "interrupted",  # Ctrl-C
    "stopped",  # sleep() returned True
]


def default_poll_s(floor_s: float) -> float:
    """
    Return the seconds between two samples: a quarter of *floor_s*, at most 10.
    """
    return max(MIN_POLL_S, min(10.0, floor_s / 4))


def watch_processes(  # noqa: PLR0913 what a watcher needs to be tested
    config: HangDebugConfig | float | Iterable[float],
    *,
    on_hang: Callable[[HangReason], object],
    tell: Callable[[tuple[int, ...]], object] = lambda _pids: None,
    pids: Iterable[int] = (),
    patterns: Iterable[str] = (),
    sense: Callable[[tuple[int, ...]], object] | None = None,
    new_sensor: Callable[[], ProgressSensor] = ProgressSensor,
    until_exit: bool = True,
    poll_s: float = 10.0,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    find: Callable[..., Iterable[Worker]] = find_workers,
    root: str = "/proc",
) -> Ending:
    """
    Call *on_hang* when processes make no progress, and after fixed waits.

    A stall is reported once, again only after progress, at most every five
    minutes, and ten times in all.

    Args:
        config: When to call in any case: a configuration, or one or several
            numbers of seconds.

        on_hang: Called with the reason.  A failure is logged, and the watch
            goes on.  If it returns
            :class:`~distdebug.watching.hang.RetryLater`, it is called again if
            nothing has moved by then.

        tell: Called with the PIDs of the watched processes, at the start and
            after each change.

        pids: The processes to watch.

        patterns: Regular expressions for their command lines, if *pids* is
            empty. Without both, watch the workers of this node, which may
            start later.

        sense: Takes the PIDs of the current processes, and returns what should
            change: one value, or several by name, any of which may stall.
            While it fails, progress is unknown.  By default the context
            switches of each main thread.

        new_sensor: Makes the sensor of each value.

        until_exit: Whether to go on after the last wait until the processes
            have ended.

        poll_s: How often to sample, in seconds.

        sleep: Waits for some seconds.  If it returns ``True``, the watch ends.

        clock: Returns the time in seconds; monotonic.

        root: The folder to read as ``/proc``.

    Returns:
        Why the watch has ended.

    Raises:
        ConfigError: A wait is not a number of seconds, or *poll_s* is none from
            0.05 to a million.

        PatternError: A pattern is no regular expression.
    """
    if not isinstance(config, HangDebugConfig):
        config = HangDebugConfig(enabled=True, wait_seconds=config)
    if not config.enabled:
        return "off"
    poll_s = check_number(poll_s, "poll_s", least=MIN_POLL_S)
    watch = _Watch(
        waits=deque(config.wait_seconds),
        on_hang=on_hang,
        tell=tell,
        sense=sense or partial(switches_by_process, root),
        alarm=ProgressAlarm(new_sensor=new_sensor),
        processes=_watched(tuple(pids), patterns, find, root),
        until_exit=until_exit,
        poll_s=poll_s,
        sleep=sleep,
        clock=clock,
    )
    try:
        return watch.run()
    except KeyboardInterrupt:
        return "interrupted"


def _watched(
    pids: tuple[int, ...],
    patterns: Iterable[str],
    find: Callable[..., Iterable[Worker]],
    root: str,
) -> WatchedProcesses:
    """
    Return the processes that are named, or else those that are found.
    """
    # An error is raised now, not in the loop.
    expressions = as_patterns(patterns)
    if pids:
        return WatchedProcesses(pids, root=root)

    search = partial(find, expressions, include_children=False, root=root)
    return WatchedProcesses((), search, root=root)


@attrs.define(kw_only=True)
class _Watch:
    waits: deque[float]
    on_hang: Callable[[HangReason], object]
    tell: Callable[[tuple[int, ...]], object]
    sense: Callable[[tuple[int, ...]], object]
    alarm: ProgressAlarm
    processes: WatchedProcesses
    until_exit: bool
    poll_s: float
    sleep: Callable[[float], object]
    clock: Callable[[], float]
    start: float = attrs.field(init=False)
    pids: tuple[int, ...] = ()
    reported: tuple[int, ...] | None = None
    warned: set[str] = attrs.field(factory=set)

    def run(self) -> Ending:
        self.start = self.clock()
        was_running = False
        while True:
            self._refresh()
            was_running = was_running or bool(self.pids)
            is_over = self._pop_due_waits()
            if not self.pids and was_running:
                return "ended"

            if not self.pids and (not self.waits or self.processes.is_fixed):
                return "nobody"

            self._check(is_over=is_over)
            if not self.waits and not self.until_exit:
                return "waited"

            if self._sleep_until_next():
                return "stopped"

    def _refresh(self) -> None:
        try:
            self.pids = self.processes.refresh(self.clock())
        except Exception as error:  # noqa: BLE001 keep the known processes
            self._warn("cannot look for processes", error)
        if self.pids != self.reported:
            self.reported = self.pids
            self.tell(self.pids)

    def _pop_due_waits(self) -> bool:
        # A call can take longer than the time between two waits.
        count = len(self.waits)
        while self.waits and self.waits[0] <= self._elapsed():
            self.waits.popleft()
        return len(self.waits) < count

    def _check(self, *, is_over: bool) -> None:
        stalled = self._stalled()
        if not self.pids or not (is_over or stalled):
            return

        reason = HangReason(
            kind="wait" if is_over else "no progress",
            elapsed_s=self._elapsed(),
            pids=self.pids,
            stalled=stalled,
        )
        try:
            answer = self.on_hang(reason)
        except BaseException as error:  # the next call may succeed
            if is_exit_request(error):
                raise
            text = "what is called at a hang failed"
            log_message(logging.WARNING, text, error=error)
        else:
            if isinstance(answer, RetryLater):
                self.alarm.withdraw(
                    self.clock() + answer.seconds, is_free=answer.is_free
                )
        # A capture can make the processes move.
        self.alarm.ignore_change(self._values() or {})

    def _stalled(self) -> tuple[tuple[str, float], ...]:
        now, values = self.clock(), self._values()
        if values is None:
            return ()

        self.alarm.update(now, values)
        return self.alarm.new_stalls(now)

    def _values(self) -> Mapping[str, object] | None:
        try:
            values = self.sense(self.pids)
        except BaseException as error:  # it may be the user's own
            if is_exit_request(error):
                raise
            self._warn("cannot determine what moves", error)
            return None

        return values if isinstance(values, Mapping) else {"the job": values}

    def _warn(self, text: str, error: BaseException) -> None:
        # Once: a failure in each round would fill the log.
        if text not in self.warned:
            self.warned.add(text)
            log_message(logging.WARNING, text, error=error)

    def _sleep_until_next(self) -> bool:
        waits = [wait - self._elapsed() for wait in islice(self.waits, 1)]
        return self.sleep(max(0.0, min([self.poll_s, *waits]))) is True

    def _elapsed(self) -> float:
        return self.clock() - self.start


def switches_by_process(
    root: str, pids: tuple[int, ...]
) -> dict[str, int | None]:
    """
    Return the context switches of the main thread of each process, by name.

    Args:
        root: The folder to read as ``/proc``.
    """
    return {f"process {x}": context_switches([x], root=root) for x in pids}
