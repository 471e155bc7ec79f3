"""
Is somebody called when processes make no progress, and at fixed times?

This is the loop of a watcher that stands beside a job and survives it.  What is
done when it calls is not its business, and may fail.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal

import attrs

from ..processes import (
    Worker,
    compile_patterns,
    find_workers,
    parse_stat,
    parse_status,
    read_proc,
)
from .config import HangDebugConfig, a_number
from .hang import Crew, HangReason, NotYet, crew_of, is_the_end, say


_MOST_FILES = 10_000
_beats = [0]


def step() -> None:
    """
    Tell that a step is done, from the loop of the job itself.

    It costs as much as adding one to a number, and never fails.
    """
    # Two threads may count the same step; any change will do.
    _beats[0] += 1


def steps() -> int | None:
    """
    Tell how often :func:`step` was called in this process.

    Returns:
        The number; ``None`` as long as it never was.
    """
    return _beats[0] or None


def files_state(
    paths: Iterable[str | os.PathLike[str]],
) -> tuple[tuple[str, int, int], ...] | None:
    """
    Tell how large files are, and when they were written last.

    Args:
        paths: Logs and files of progress, or folders of them.  A file system
            that does not answer blocks this call.

    Returns:
        Path, bytes, and nanoseconds since 1970 of each of the first 10,000
        files, sorted; ``None`` if there is none.
    """
    found = set()
    for file in islice(_files(paths), _MOST_FILES):
        with suppress(OSError, ValueError):
            status = Path(file).stat()
            found.add((file, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found)) or None


class InTime:
    """
    Asks something that may hang together with the job, in time.

    A file system that hangs keeps whoever looks at it, and a lock of the job
    keeps whoever takes it.  So a thread asks, and as long as it does not return
    there is no other.

    Args:
        ask: What to call; it does not raise.

        patience_s: How long to wait for its answer, in seconds.
    """

    def __init__(
        self, ask: Callable[[], object], patience_s: float = 2.0
    ) -> None:
        self._ask = ask
        self._patience_s = patience_s
        self._asking: threading.Thread | None = None
        self._answer: object = None

    def __call__(self) -> object:
        """
        Ask.

        Returns:
            The answer; the last one if there is none in time.
        """
        if self._asking is None or not self._asking.is_alive():
            asking = threading.Thread(
                target=self._take, name="distdebug", daemon=True
            )
            try:
                asking.start()
            except RuntimeError:  # there are too many, or Python ends
                return self._answer
            self._asking = asking
        self._asking.join(self._patience_s)
        return self._answer

    def _take(self) -> None:
        self._answer = self._ask()


class FilesState(InTime):
    """
    Tells how large files are, and when they were written last, in time.

    Args:
        paths: Logs and files of progress, or folders of them.

        patience_s: How long to wait for the file system, in seconds.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        patience_s: float = 2.0,
    ) -> None:
        self._paths = tuple(paths)
        super().__init__(lambda: files_state(self._paths), patience_s)

    def __call__(self) -> object:
        """
        Look at the files.

        Returns:
            As :func:`files_state` does; what was seen last if the file system
            does not answer.
        """
        return super().__call__() if self._paths else None


def last_known(
    *senses: Callable[[tuple[int, ...]], object],
) -> Callable[[tuple[int, ...]], object]:
    """
    Join senses: the job moves if any of them does.

    Args:
        senses: What takes the numbers of processes, and tells what moves.

    Returns:
        One for all of them.  Where one sees nothing for a while, nothing has
        moved.
    """
    last: list[object] = [None] * len(senses)

    def sense(pids: tuple[int, ...]) -> object:
        for number, one in enumerate(senses):
            value = one(pids)
            last[number] = last[number] if value is None else value
        return None if last == [None] * len(senses) else tuple(last)

    return sense


def newest_file(
    folder: str | os.PathLike[str],
) -> tuple[int, int] | None:
    """
    Tell how many files a folder has, and when one was written last.

    It is meant for dumps, side-cars, and checkpoints, where each is written
    once.

    Args:
        folder: The folder; those below it are not looked at.

    Returns:
        The number of files and nanoseconds since 1970; ``None`` if there is
        none.
    """
    state = files_state([folder])
    if state is None:
        return None

    return len(state), max(written for _, _, written in state)


def switches(pids: Iterable[int], *, root: str = "/proc") -> int | None:
    """
    Tell how often main threads gave up their processor to wait.

    Other threads are not counted: those that watch over a job wake up for
    ever, also if it is stuck.  A main thread that computes for minutes without
    waiting looks as if it did not move; see :func:`processor_time`.

    Args:
        pids: The processes.

        root: Where the kernel's files are.

    Returns:
        The sum; ``None`` if all processes are gone.
    """
    texts = (
        parse_status(read_proc(f"{root}/{pid}/task/{pid}/status")).get(
            "voluntary_ctxt_switches", ""
        )
        for pid in pids
    )
    counts = [int(x) for x in texts if x.isascii() and x.isdigit()]
    return sum(counts) if counts else None


def processor_time(pids: Iterable[int], *, root: str = "/proc") -> int | None:
    """
    Tell for how long main threads ran.

    It moves also if a thread spins while it waits for others, as it does for a
    GPU; so by this alone a job on GPUs never seems stuck.

    Args:
        pids: The processes.

        root: Where the kernel's files are.

    Returns:
        The sum, in clock ticks; ``None`` if all processes are gone.
    """
    stats = (
        parse_stat(read_proc(f"{root}/{pid}/task/{pid}/stat")) for pid in pids
    )
    ticks = [stat.cpu_ticks for stat in stats if stat is not None]
    return sum(ticks) if ticks else None


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    for path in paths:
        try:
            with os.scandir(path) as entries:
                yield from (x.path for x in entries if x.is_file())
        except NotADirectoryError:
            yield os.fspath(path)
        except (OSError, ValueError):
            continue


_MEMORY = 1000


class ProgressSensor:
    """
    Tells from a value that should change whether it changes often enough.

    It has neither a clock nor a source: whoever looks tells it the time and
    what was seen.  The limit is the longest recent time between two changes,
    times *factor*, and never below *floor_s*.

    Args:
        floor_s: How many seconds without change are fine for any job.

        factor: How many times as long as ever before a change may take.

        start_s: How many seconds the first change may take, because a job
            that starts compiles, connects, and loads.

    Raises:
        ConfigError: *floor_s* is below 0.1, *factor* is below 1, *start_s* is
            negative, or one of them is no number, or a million and more.
    """

    def __init__(
        self,
        *,
        floor_s: float = 60.0,
        factor: float = 5.0,
        start_s: float = 600.0,
    ) -> None:
        self._floor_s = a_number(floor_s, "floor_s", least=0.1)
        self._factor = a_number(factor, "factor", least=1, unit="")
        self._start_s = a_number(start_s, "start_s", least=0)
        self._value: object = None
        self._since: float | None = None
        self._has_changed = False
        self._gaps: deque[float] = deque(maxlen=_MEMORY)

    @property
    def limit_s(self) -> float:
        """
        How many seconds may pass without a change, as far as is known now.
        """
        learned = max(self._gaps, default=0.0) * self._factor
        limit = max(self._floor_s, learned)
        return limit if self._has_changed else max(limit, self._start_s)

    def saw(self, now: float, value: object, *, learns: bool = True) -> None:
        """
        Take note of what is there now.

        Args:
            now: The time in seconds, of any clock that does not go back.

            value: Anything that is equal to the last value if nothing moved;
                ``None`` if it could not be seen, which tells nothing.

            learns: Whether, if it moves, the time until then counts as one
                that is fine.
        """
        if value is None:
            return

        if self._since is None:
            self._since = now
        elif value != self._value:
            # What came before the first change is a start, not a step.
            if self._has_changed and learns:
                self._gaps.append(now - self._since)
            self._since = now
            self._has_changed = True
        self._value = value

    def excuse(self, value: object) -> None:
        """
        Take note of a change that is not the job's own.

        To look into a process can make it move; that is no progress.

        Args:
            value: What is there now; ``None`` if it could not be seen.
        """
        if value is not None and self._since is not None:
            self._value = value

    def stalled_s(self, now: float) -> float:
        """
        Tell for how long nothing changed.

        Args:
            now: The time in seconds, of the clock of :meth:`saw`.

        Returns:
            Seconds since the last change, or since the first value; 0 if
            there never was one.
        """
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def is_hung(self, now: float) -> bool:
        """
        Tell whether nothing changed for longer than the limit.

        Args:
            now: The time in seconds, of the clock of :meth:`saw`.

        Returns:
            Whether it is stuck.  ``False`` again as soon as it moves, and as
            long as nothing was ever seen.
        """
        return self.stalled_s(now) > self.limit_s


@attrs.define(kw_only=True)
class ProgressAlarm:
    """
    Watches several things that should move, each by its own sensor.

    Attributes:
        new_sensor: Makes the sensor of a thing that is new.

        pause_s: How many seconds to be silent after some news; what stalls
            meanwhile, and does not recover, is told then.

        most: How often to tell news at all.
    """

    new_sensor: Callable[[], ProgressSensor] = ProgressSensor
    pause_s: float = 300.0
    most: int = 10
    _sensors: dict[str, ProgressSensor] = attrs.field(init=False, factory=dict)
    _told: set[str] = attrs.field(init=False, factory=set)
    _last: frozenset[str] = attrs.field(init=False, default=frozenset())
    _silent_until: float = attrs.field(init=False, default=float("-inf"))

    def saw(self, now: float, values: Mapping[str, object]) -> None:
        """
        Take note of what is there now.

        Args:
            now: The time in seconds, of a clock that does not go back.

            values: What each thing shows, by name.  What is not in it any more
                is forgotten.
        """
        self._sensors = {
            name: self._sensors.get(name) or self.new_sensor()
            for name in values
        }
        for name, value in values.items():
            # A hang that was mended must not count as a pause that is fine.
            learns = name not in self._told
            self._sensors[name].saw(now, value, learns=learns)

    def excuse(self, values: Mapping[str, object]) -> None:
        """
        Take note of changes that are not the job's own.

        Args:
            values: What each thing shows now, by name.
        """
        for name, value in values.items():
            if name in self._sensors:
                self._sensors[name].excuse(value)

    def news(self, now: float) -> tuple[tuple[str, float], ...]:
        """
        Tell what is stuck, and was not told yet.

        Args:
            now: The time in seconds, of the clock of :meth:`saw`.

        Returns:
            Names, and for how many seconds they did not move; longest first.
        """
        self._last = frozenset()
        stuck = {
            name: sensor.stalled_s(now)
            for name, sensor in self._sensors.items()
            if sensor.is_hung(now)
        }
        self._told &= stuck.keys()
        fresh = stuck.keys() - self._told
        if not fresh or not self.most or now < self._silent_until:
            return ()

        self._told |= fresh
        self._last = frozenset(fresh)
        self._silent_until = now + self.pause_s
        self.most -= 1
        return tuple(
            sorted(((x, stuck[x]) for x in fresh), key=lambda x: (-x[1], x[0]))
        )

    def withdraw(self, until: float, *, is_free: bool = True) -> None:
        """
        Take the last news back, because nothing was wrong.

        Args:
            until: When to tell it again if nothing has moved by then, on the
                clock of :meth:`saw`.

            is_free: Whether it does not count as told.
        """
        if self._last:
            self._told -= self._last
            self._last = frozenset()
            self._silent_until = until
            self.most += is_free


# To look more often costs more than it tells.
LEAST_POLL_S = 0.05

Ending = Literal[
    "off",  # the configuration does not ask for anything
    "ended",  # the processes are gone
    "nobody",  # there were none of those that were named, or until the last
    # wait was over
    "waited",  # the last wait is over, and nothing else was asked for
    "interrupted",  # Ctrl-C
    "stopped",  # whoever sleeps for us says so
]


def poll_of(floor_s: float) -> float:
    """
    How often to look at a job?

    Args:
        floor_s: How many seconds without progress are fine for it.

    Returns:
        The seconds between two looks, a quarter of that and 10 at most.
    """
    return max(LEAST_POLL_S, min(10.0, floor_s / 4))


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
    Call somebody when processes make no progress, and after fixed waits.

    A lack of progress is told once, again only after it was over, at most
    every five minutes, and ten times in all.

    Args:
        config: When to call in any case: a configuration, or seconds, or
            several.

        on_hang: What to call.  If it fails, that is logged, and the watch
            goes on.  If it returns :class:`~distdebug.watching.hang.NotYet`,
            it is called again if nothing has moved by then.

        tell: Called with the numbers of the processes that are watched, at the
            start and when others are.

        pids: The processes to watch.

        patterns: Regular expressions for their command lines, if no *pids*
            are given.  Without both, the workers of this node are watched;
            they may start later.

        sense: Takes the numbers of the processes that are there, and tells
            what should move: one value, or several by name, any of which may
            stall.  As long as it fails, nothing is known of progress.
            By default, how often each main thread gave up its processor.

        new_sensor: Makes what decides whether one of them moves.

        until_exit: Whether to go on after the last wait until the processes
            are gone.

        poll_s: How often to look, in seconds.

        sleep: Waits for some seconds.  If it returns ``True``, the watch is
            over.

        clock: Tells the time in seconds; it must not go back.

        find: Finds workers.

        root: Where the kernel's files are.

    Returns:
        Why the watch is over.

    Raises:
        ConfigError: A wait is no number of seconds, or *poll_s* is none from
            0.05 to a million.

        PatternError: A pattern is no regular expression.
    """
    if not isinstance(config, HangDebugConfig):
        config = HangDebugConfig(enabled=True, wait_seconds=config)
    if not config.enabled:
        return "off"
    poll_s = a_number(poll_s, "poll_s", least=LEAST_POLL_S)
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    compile_patterns(patterns)  # a mistake is told now, not in the loop
    watch = _Watch(
        waits=deque(config.wait_seconds),
        on_hang=on_hang,
        tell=tell,
        sense=sense or _per_process(root),
        alarm=ProgressAlarm(new_sensor=new_sensor),
        crew=crew_of(pids, patterns, find=find, root=root),
        until_exit=until_exit,
        poll_s=poll_s,
        sleep=sleep,
        clock=clock,
        start=clock(),
    )
    try:
        return watch.run()
    except KeyboardInterrupt:
        return "interrupted"


@attrs.define(kw_only=True)
class _Watch:
    waits: deque[float]
    on_hang: Callable[[HangReason], object]
    tell: Callable[[tuple[int, ...]], object]
    sense: Callable[[tuple[int, ...]], object]
    alarm: ProgressAlarm
    crew: Crew
    until_exit: bool
    poll_s: float
    sleep: Callable[[float], object]
    clock: Callable[[], float]
    start: float
    pids: tuple[int, ...] = ()
    told: tuple[int, ...] | None = None
    warned: set[str] = attrs.field(factory=set)

    def run(self) -> Ending:
        was_met = False
        while True:
            self._look()
            was_met = was_met or bool(self.pids)
            is_over = self._pop_waits()
            if not self.pids and was_met:
                return "ended"

            if not self.pids and (not self.waits or self.crew.is_fixed):
                return "nobody"

            self._check(is_over=is_over)
            if not self.waits and not self.until_exit:
                return "waited"

            if self._rest():
                return "stopped"

    def _look(self) -> None:
        try:
            self.pids = self.crew.look(self.clock())
        except Exception as error:  # noqa: BLE001 those known are kept
            self._warn("cannot look for processes", error)
        if self.pids != self.told:
            self.told = self.pids
            self.tell(self.pids)

    def _pop_waits(self) -> bool:
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
            if is_the_end(error):
                raise
            text = "what is called at a hang failed"
            say(logging.WARNING, text, error=error)
        else:
            if isinstance(answer, NotYet):
                self.alarm.withdraw(
                    self.clock() + answer.seconds, is_free=answer.is_free
                )
        # It has looked into the processes, and that can make them move.
        self.alarm.excuse(self._values() or {})

    def _stalled(self) -> tuple[tuple[str, float], ...]:
        now, values = self.clock(), self._values()
        if values is None:
            return ()

        self.alarm.saw(now, values)
        return self.alarm.news(now)

    def _values(self) -> Mapping[str, object] | None:
        try:
            seen = self.sense(self.pids)
        except BaseException as error:  # it may be the user's own
            if is_the_end(error):
                raise
            self._warn("cannot tell what moves", error)
            return None

        return seen if isinstance(seen, Mapping) else {"the job": seen}

    def _warn(self, text: str, error: BaseException) -> None:
        # Once: what fails at every look would fill the log.
        if text not in self.warned:
            self.warned.add(text)
            say(logging.WARNING, text, error=error)

    def _rest(self) -> bool:
        next_wait = self.waits[0] - self._elapsed() if self.waits else None
        if next_wait is None or next_wait > self.poll_s:
            return self.sleep(self.poll_s) is True

        return self.sleep(max(0.0, next_wait)) is True

    def _elapsed(self) -> float:
        return self.clock() - self.start


def _per_process(root: str) -> Callable[[tuple[int, ...]], object]:
    def sense(pids: tuple[int, ...]) -> dict[str, int | None]:
        return {f"process {x}": switches([x], root=root) for x in pids}

    return sense
