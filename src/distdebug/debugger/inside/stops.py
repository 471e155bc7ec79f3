"""
Which threads of this process are stopped, and what do they wait for?

A stop is identified by the host, the process, when that started, the thread,
and a number that counts up.  A thread that is stopped waits for a line to be
given to it, and never for longer than its limit.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import time

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from types import FrameType
from typing import Any

from .frames import place_of, place_text
from .settings import (
    DEFAULT_LIMIT_S,
    describe_process,
    pause_limit_s,
    process_key,
    say,
)


# Every way to make a group ends in this one: init_process_group, new_group,
# split_group, and a DeviceMesh, which has bound those by name before us.
_REGISTER = "_register_process_group"

_MODULE = "torch.distributed.distributed_c10d"

_before: dict[Any, timedelta] = {}
_register: list[Callable[..., Any]] = []


def raise_timeouts(seconds: float) -> None:
    """
    Let the collectives of all groups wait for so long, at least.

    Groups that are made later are included.

    Args:
        seconds: How long a collective may take.
    """
    try:
        c10d = import_module(_MODULE)
    except Exception as exc:  # noqa: BLE001 an installation that is broken
        say("there is no torch whose time-outs could be raised: %s", exc)
        return

    restore_timeouts()
    timeout = timedelta(seconds=seconds)
    for group in _groups():
        _raise(group, timeout)
    _watch(c10d, timeout)


def _watch(c10d: Any, timeout: timedelta) -> None:
    register = getattr(c10d, _REGISTER, None)
    if register is None:  # in a torch that we do not know
        say("time-outs of groups that are made later stay as they are")
        return

    @functools.wraps(register)
    def patient(name: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        made = register(name, group, *args, **kwargs)
        _raise(group, timeout)
        return made

    _register.append(register)
    setattr(c10d, _REGISTER, patient)


def _raise(group: Any, timeout: timedelta) -> None:
    for backend in _backends(group):
        with suppress(Exception):
            current = _timeout_of(backend)
            if current < timeout:
                backend._set_default_timeout(timeout)  # noqa: SLF001 torch has no other
                _before.setdefault(backend, current)


def restore_timeouts() -> None:
    """
    Let collectives that start from now on wait for as long as before.
    """
    c10d: Any = sys.modules.get(_MODULE)
    while _register:
        setattr(c10d, _REGISTER, _register.pop())
    for backend, timeout in _before.items():
        with suppress(Exception):
            backend._set_default_timeout(timeout)  # noqa: SLF001 torch has no other
    _before.clear()


def shortest_timeout_s() -> float | None:
    """
    After how long does the first of the others give up waiting for this rank?

    Returns:
        The shortest time-out of all groups of this process, in seconds;
        ``None`` if there is none.
    """
    found = []
    for group in _groups():
        for backend in _backends(group):
            with suppress(Exception):
                found.append(_timeout_of(backend).total_seconds())
    return min(found, default=None)


def _groups() -> list[Any]:
    c10d = sys.modules.get(_MODULE)
    return [*getattr(getattr(c10d, "_world", None), "pg_map", {})]


def _backends(group: Any) -> Iterator[Any]:
    """
    What carries out the collectives of a group, for each kind of device.
    """
    with suppress(Exception):
        for device in group._device_types:  # noqa: SLF001 torch has no other
            yield group._get_backend(device)  # noqa: SLF001


def _timeout_of(backend: Any) -> timedelta:
    timeout: timedelta = backend.options._timeout  # noqa: SLF001 torch has no other
    return timeout


_count = itertools.count(1)
_requests = [0]
# How many requests there had been, by the file and the line.
_unanswered: dict[tuple[str, int], int] = {}


def note_request() -> None:
    """
    Somebody asks something.
    """
    # No lock: a process that is forked would wait for it for ever.
    _requests[0] = next(_count)


def requests_so_far() -> int:
    """
    How much was asked since this process began?
    """
    return _requests[0]


def note_unanswered(file: str, line: int, requests: int) -> None:
    """
    A pause is over.

    Args:
        file: Where it was.

        line: In which line.

        requests: How much had been asked before the pause.
    """
    _unanswered[file, line] = requests


def is_unanswered(file: str, line: int) -> bool:
    """
    Has nobody asked anything, since a thread began to wait here in vain?

    Args:
        file: Where another one comes to.

        line: In which line.

    Returns:
        Whether it need not wait.
    """
    return _unanswered.get((file, line)) == _requests[0]


# JSON may need twelve bytes for a character.
_MOST_TEXT = 60_000

# No clock of the system waits for thousands of years.
_LONGEST_WAIT_S = 86400.0

_changed = threading.Condition()
_open: dict[str, Stop] = {}
_numbers = itertools.count(1)


def after_fork() -> None:
    """
    Forget the stops of the parent, and who held their lock.
    """
    global _changed  # noqa: PLW0603 its owner does not exist here
    _changed = threading.Condition()
    _open.clear()


def open_stops() -> list[Stop]:
    """
    Which stops are there?
    """
    with _changed:
        return list(_open.values())


def close_stops() -> None:
    """
    Tell whoever waits for a thread that the process ends.
    """
    for stop in open_stops():
        stop.close()


def failed_threads() -> dict[int, list[tuple[FrameType, int]]]:
    """
    Where did the threads fail that are examined now?

    Their own frames are those of whoever examines them.

    Returns:
        Frames and lines, innermost first, by the number of the thread.
    """
    return {s.ident: [*reversed(s.failed)] for s in open_stops() if s.failed}


def find_stop(key: str) -> Stop | None:
    """
    Which stop has this key?
    """
    with _changed:
        return _open.get(key)


class Stop:
    """
    A thread that is held.

    Its state is ``stopped`` as long as it waits for a line, ``running`` while
    it obeys one, and ``ended`` when it goes on without us.  It can be found as
    soon as it is known where the thread is.

    Args:
        reason: ``"breakpoint"``, ``"post mortem"``, or ``"interrupt"``.

        limit_s: How long it may wait, in seconds.
    """

    def __init__(self, reason: str, limit_s: float) -> None:
        self.reason = reason
        self.number = next(_numbers)
        self.ident = threading.get_ident()
        self.thread = thread_name(threading.current_thread().name)
        described = describe_process()
        self.labels = {k: described[k] for k in ("group", "rank", "coords")}
        host, pid, start = process_key()
        self.key = f"{host}:{pid}:{start}:{self.ident}:{self.number}"
        self.limit_s = limit_s
        self.patience_s = shortest_timeout_s()
        self.since = time.monotonic()
        self.deadline = self.since + limit_s
        self.state = "running"
        self.place: dict[str, Any] = {}
        self.failed: Sequence[tuple[FrameType, int]] = ()
        self.warning = ""
        self._requests = requests_so_far()
        self._line: str | None = None
        self._is_over = False
        self._text: list[str] = []
        self._size = 0

    def arrive(
        self,
        frame: FrameType,
        line: int | None = None,
        failed: Sequence[tuple[FrameType, int]] = (),
    ) -> None:
        """
        Say where the thread is now.

        Args:
            frame: In which frame.

            line: In which line, if it is not there any more.

            failed: Through which frames and lines an exception came,
                outermost first.
        """
        is_new = not self.place
        place = place_of(frame)
        self.place = place if line is None else {**place, "line": line}
        self.failed = failed
        if is_new:
            with _changed:
                _open[self.key] = self
            self._announce()

    def _announce(self) -> None:
        say(
            "%s stopped (%s) at %s, for up to %.0f s; "
            "see: python -m distdebug dbg%s",
            self._name(),
            self.reason,
            place_text(self.place),
            self.limit_s,
            f"; but {self.warning}" if self.warning else "",
        )

    def _name(self) -> str:
        rank = self.labels["rank"]
        return f"process {os.getpid()}" if rank is None else f"rank {rank}"

    def read(self) -> str:
        """
        Wait for the next line.

        Returns:
            The line; ``""``, now and from now on, when nobody gave one before
            the limit was over, or when the thread was released.
        """
        with _changed:
            self.state = "stopped"
            _changed.notify_all()
            has_expired = self._wait()
            line, self._line = self._line, None
            self.state = "running"
            self.deadline = time.monotonic() + self.limit_s
        if has_expired:
            self._expire()
        if line is None:
            return ""

        self._text.clear()
        self._size = 0
        return f"{line}\n"

    def _wait(self) -> bool:
        """
        Wait for a line, or the end; tell whether the limit was over first.
        """
        while self._line is None and not self._is_over:
            left = self.deadline - time.monotonic()
            if left <= 0:
                self._is_over = True
                return True
            _changed.wait(min(left, _LONGEST_WAIT_S))
        return False

    def release(self) -> None:
        """
        Let the thread go on as soon as it has obeyed what it obeys now.
        """
        with _changed:
            self._is_over = True
            _changed.notify_all()

    def _expire(self) -> None:
        self.write("the time limit of this pause is over: going on\n")
        say(
            "%s: nobody asked this rank for %.0f s: it goes on from %s%s",
            self._name(),
            self.limit_s,
            place_text(self.place),
            ", and passes this line until somebody asks it"
            if self._requests == requests_so_far()
            else "",
        )
        note_unanswered(
            str(self.place.get("file")),
            int(self.place.get("line") or 0),
            self._requests,
        )

    def write(self, text: str) -> None:
        """
        Keep what the debugger prints for whoever asks.
        """
        room = max(_MOST_TEXT - self._size, 0)
        if room and text:
            cut = text if len(text) <= room else f"{text[:room]}…\n"
            self._text.append(cut)
        self._size += len(text)

    def close(self) -> None:
        """
        Say that the thread goes on without us.
        """
        with _changed:
            self.state = "ended"
            self.failed = ()
            _open.pop(self.key, None)
            _changed.notify_all()

    def extend(self, seconds: float) -> None:
        """
        Let the thread wait longer from now on.
        """
        with _changed:
            self.deadline = time.monotonic() + seconds
            _changed.notify_all()

    def text(self) -> str:
        """
        What was printed since the last line was given?
        """
        return "".join(list(self._text))

    def give(self, line: str) -> bool:
        """
        Give the thread a line, if it waits for one.  The lock must be held.
        """
        if self.state != "stopped" or self._line is not None or self._is_over:
            return False

        self._line = line
        self.state = "running"
        return True

    def _patience_left_s(self, now: float) -> float | None:
        """
        For how long the others wait in a collective, if they just began.
        """
        if self.patience_s is None:
            return None
        return round(max(self.since + self.patience_s - now, 0.0), 3)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data about the stop.
        """
        now = time.monotonic()
        return {
            "key": self.key,
            "number": self.number,
            "thread": self.thread,
            "labels": self.labels,
            "reason": self.reason,
            "state": self.state,
            "since_s": round(now - self.since, 3),
            "left_s": round(max(self.deadline - now, 0.0), 3),
            "patience_left_s": self._patience_left_s(now),
            **self.place,
        }


def thread_name(thread: str) -> str:
    """
    How is a thread called, if this process is not the rank itself?

    Args:
        thread: Its name.

    Returns:
        It, after that of a process that :mod:`multiprocessing` started.
    """
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if getattr(multiprocessing, "parent_process", bool)():
        return f"{multiprocessing.current_process().name}/{thread}"
    return thread


def give_line(
    keys: list[str], line: str, wait_s: float
) -> Mapping[str, dict[str, Any]]:
    """
    Give one line to several stops, and wait until they stop again.

    Args:
        keys: Which stops.

        line: What to do there.

        wait_s: How long to wait for all of them, in seconds.

    Returns:
        The output and the state of each, by key.
    """
    end = time.monotonic() + wait_s
    with _changed:
        stops = {key: _open.get(key) for key in dict.fromkeys(keys)}
        given = {k: s for k, s in stops.items() if s and s.give(line)}
        _changed.notify_all()
        while any(s.state == "running" for s in given.values()):
            left = end - time.monotonic()
            if left <= 0:
                break
            _changed.wait(left)
        return {
            key: _answer(stop, was_given=key in given)
            for key, stop in stops.items()
        }


def wait_for_ends(stops: Iterable[Stop], wait_s: float) -> bool:
    """
    Wait until threads that were released go on.

    Args:
        stops: What held them.

        wait_s: How long to wait for all of them, in seconds.

    Returns:
        Whether all do.
    """
    waited_for = tuple(stops)
    with _changed:
        return _changed.wait_for(
            lambda: all(stop.state == "ended" for stop in waited_for), wait_s
        )


def _answer(stop: Stop | None, *, was_given: bool) -> dict[str, Any]:
    if stop is None:
        return {"state": "ended", "error": "it is not stopped any more"}
    if not was_given:
        return {
            "state": stop.state,
            "error": "it is busy with another command",
        }

    return {"state": stop.state, "output": stop.text(), **stop.place}


def open_stop(
    reason: str, limit: float | None = None, header: str | None = None
) -> Stop:
    """
    Begin to hold this thread.

    Args:
        reason: Why.

        limit: How long it may wait, in seconds.

        header: What to say to whoever attaches.

    Returns:
        What the thread waits at.
    """
    # If breakpoints hold nothing, this is what somebody asked for.
    stop = Stop(reason, pause_limit_s(limit) or DEFAULT_LIMIT_S)
    if header:
        stop.write(f"{header}\n")
    stop.warning = _impatience(stop)
    if stop.warning:
        stop.write(f"{stop.warning}\n")
    return stop


def _impatience(stop: Stop) -> str:
    """
    What those should know who are looking at a rank while others wait for it.
    """
    if stop.patience_s is None or stop.patience_s >= stop.limit_s:
        return ""

    return (
        "other ranks give up waiting in a collective after "
        f"{stop.patience_s:.0f} s; arm(collective_timeout=...) raises that "
        "before they begin"
    )
