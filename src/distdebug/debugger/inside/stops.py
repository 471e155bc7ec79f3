"""
Which threads of this process are stopped, and what do they wait for?

A stop is identified by the host, the process, when that started, the thread,
and a number that counts up.  A thread that is stopped waits for a line to be
given to it, and never for longer than its limit.
"""

from __future__ import annotations

import itertools
import threading
import time

from collections.abc import Mapping
from types import FrameType
from typing import Any

from .labels import process_key
from .looking import place_of
from .settings import pause_limit_s, say


__all__ = [
    "Stop",
    "after_fork",
    "find_stop",
    "give_line",
    "open_stop",
    "open_stops",
]

# JSON may need twelve bytes for a character.
_MOST_TEXT = 60_000

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
    it obeys one, and ``ended`` when it goes on without us.

    Args:
        reason: ``"breakpoint"``, ``"post mortem"``, or ``"interrupt"``.

        limit_s: How long it may wait, in seconds.
    """

    def __init__(self, reason: str, limit_s: float) -> None:
        self.reason = reason
        self.number = next(_numbers)
        self.thread = threading.current_thread().name
        host, pid, start = process_key()
        self.key = (
            f"{host}:{pid}:{start}:{threading.get_ident()}:{self.number}"
        )
        self.limit_s = limit_s
        self.since = time.monotonic()
        self.deadline = self.since + limit_s
        self.state = "running"
        self.place: dict[str, Any] = {}
        self._line: str | None = None
        self._text: list[str] = []
        self._size = 0
        with _changed:
            _open[self.key] = self

    def arrive(self, frame: FrameType) -> None:
        """
        Say where the thread is now.
        """
        self.place = place_of(frame)

    def read(self) -> str:
        """
        Wait for the next line.

        Returns:
            The line; ``""`` when nobody gave one before the limit was over.
        """
        with _changed:
            self.state = "stopped"
            _changed.notify_all()
            while self._line is None:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    break
                _changed.wait(left)
            line, self._line = self._line, None
            self.state = "running"
            self.deadline = time.monotonic() + self.limit_s
        if line is None:
            self._expire()
            return ""

        self._text.clear()
        self._size = 0
        return f"{line}\n"

    def _expire(self) -> None:
        self.write("the time limit of this pause is over: going on\n")
        say(
            "nobody asked this rank for %.0f s: it goes on from %s:%s in %s",
            self.limit_s,
            self.place.get("file"),
            self.place.get("line"),
            self.place.get("function"),
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
        if self.state != "stopped" or self._line is not None:
            return False

        self._line = line
        self.state = "running"
        return True

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data about the stop.
        """
        now = time.monotonic()
        return {
            "key": self.key,
            "number": self.number,
            "thread": self.thread,
            "reason": self.reason,
            "state": self.state,
            "since_s": round(now - self.since, 3),
            "left_s": round(max(self.deadline - now, 0.0), 3),
            **self.place,
        }


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
    stop = Stop(reason, pause_limit_s(limit))
    if header:
        stop.write(f"{header}\n")
    say(
        "stopped (%s) for up to %.0f s; see: python -m distdebug dbg",
        reason,
        stop.limit_s,
    )
    return stop
