"""
Stopped threads of this process, and the timeouts of its process groups.

A stop is identified by the host, the process and its start time, the thread,
and a counter.  A stopped thread waits for a line from a client, and never
longer than its time limit.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import time

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from types import FrameType
from typing import Any

from ..._in_job import Stack
from .frames import failed_stacks, frame_place, place_text, thread_name
from .settings import (
    DEFAULT_LIMIT_S,
    describe_process,
    log_warning,
    pause_limit_s,
)


# All ways to create a group call this one: init_process_group, new_group,
# split_group, and DeviceMesh, which imports the others by name early.
_REGISTER_FUNCTION = "_register_process_group"

_MODULE = "torch.distributed.distributed_c10d"

_original_timeouts: dict[Any, timedelta] = {}
_original_register: list[Callable[..., Any]] = []


def raise_timeouts(seconds: float) -> None:
    """
    Raise the timeouts of the collectives of all groups.

    Groups created later are included.

    Args:
        seconds: The minimum timeout.
    """
    try:
        c10d = import_module(_MODULE)
    except Exception as exc:  # noqa: BLE001 an installation that is broken
        log_warning(
            "there is no torch whose time-outs could be raised: %s", exc
        )
        return

    restore_timeouts()
    timeout = timedelta(seconds=seconds)
    _raise_to(timeout, _groups())
    _patch_register(c10d, timeout)


def _patch_register(c10d: Any, timeout: timedelta) -> None:
    register = getattr(c10d, _REGISTER_FUNCTION, None)
    if register is None:  # an unknown version of torch
        log_warning("time-outs of groups that are made later stay as they are")
        return

    @functools.wraps(register)
    def register_with_timeout(
        name: Any, group: Any, *args: Any, **kwargs: Any
    ) -> Any:
        made = register(name, group, *args, **kwargs)
        _raise_to(timeout, [group])
        return made

    _original_register.append(register)
    setattr(c10d, _REGISTER_FUNCTION, register_with_timeout)


def _raise_to(timeout: timedelta, groups: Iterable[Any]) -> None:
    for backend, current in _timeouts(groups):
        if current < timeout:
            with suppress(Exception):
                backend._set_default_timeout(timeout)  # noqa: SLF001 no public way
                _original_timeouts.setdefault(backend, current)


def restore_timeouts() -> None:
    """
    Restore the timeouts for collectives that start from now on.
    """
    c10d: Any = sys.modules.get(_MODULE)
    while _original_register:
        setattr(c10d, _REGISTER_FUNCTION, _original_register.pop())
    for backend, timeout in _original_timeouts.items():
        with suppress(Exception):
            backend._set_default_timeout(timeout)  # noqa: SLF001 no public way
    _original_timeouts.clear()


def shortest_timeout_s() -> float | None:
    """
    Return the shortest timeout of all groups of this process, in seconds.

    Returns:
        ``None`` if there is no group.
    """
    seconds = (timeout.total_seconds() for _, timeout in _timeouts(_groups()))
    return min(seconds, default=None)


def _groups() -> list[Any]:
    c10d = sys.modules.get(_MODULE)
    return [*getattr(getattr(c10d, "_world", None), "pg_map", {})]


def _timeouts(groups: Iterable[Any]) -> Iterator[tuple[Any, timedelta]]:
    """
    Yield the backend of groups for each kind of device, and its timeout.
    """
    for group in groups:
        # There is no public way, and each version of torch may differ.
        with suppress(Exception):
            for device in group._device_types:  # noqa: SLF001
                with suppress(Exception):
                    backend = group._get_backend(device)  # noqa: SLF001
                    timeout = backend.options._timeout  # noqa: SLF001
                    if isinstance(timeout, timedelta):
                        yield backend, timeout


_request_numbers = itertools.count(1)
_request_count = [0]
# The request count at the start of the stop, by file and line.
_timed_out_pauses: dict[tuple[str, int], int] = {}


def count_request() -> None:
    """
    Count a request of a client.
    """
    # No lock: a forked process would wait for it for ever.
    _request_count[0] = next(_request_numbers)


def has_pause_timed_out(file: str, line: int) -> bool:
    """
    Return whether the last stop at this line timed out without any request.

    Another thread need not stop there then.
    """
    return _timed_out_pauses.get((file, line)) == _request_count[0]


# JSON may need 12 bytes for a character.
_MAX_OUTPUT = 60_000

# The wait functions reject huge timeouts.
_MAX_WAIT_S = 86400.0

NOT_STOPPED = {"state": "ended", "error": "it is not stopped any more"}
"""The answer for a thread that is not stopped."""

_changed = threading.Condition()
_stops: dict[str, Stop] = {}
_stop_numbers = itertools.count(1)


def after_fork() -> None:
    """
    Forget the stops of the parent, and its lock.
    """
    global _changed  # noqa: PLW0603 its owner is not in the child
    _changed = threading.Condition()
    _stops.clear()
    failed_stacks.clear()


def open_stops() -> list[Stop]:
    """
    Return the current stops.
    """
    with _changed:
        return list(_stops.values())


def close_stops() -> None:
    """
    Close all stops, and wake up their waiters: the process ends.
    """
    for stop in open_stops():
        stop.close()


class Stop:
    """
    A stopped thread.

    Its state is ``stopped`` while it waits for a line, ``running`` while it
    runs one, and ``ended`` when it continues without the debugger.  It can be
    found once its place is set.

    Args:
        reason: ``"breakpoint"``, ``"post mortem"``, or ``"interrupt"``.

        limit: The time limit for each wait, in seconds; by default that of
            the settings.

        header: Text to show to a client that attaches.
    """

    def __init__(
        self,
        reason: str,
        limit: float | None = None,
        header: str | None = None,
    ) -> None:
        self.reason = reason
        self.number = next(_stop_numbers)
        self.ident = threading.get_ident()
        self.thread = thread_name(threading.current_thread().name)
        process = describe_process()
        self.labels = {k: process[k] for k in ("group", "rank", "coords")}
        names = (process[k] for k in ("host", "pid", "start"))
        self.key = ":".join(map(str, (*names, self.ident, self.number)))
        # With a limit of 0 only a request of a client stops; use the default.
        self.limit_s = pause_limit_s(limit) or DEFAULT_LIMIT_S
        self.collective_timeout_s = shortest_timeout_s()
        self.since = time.monotonic()
        self.deadline = self.since + self.limit_s
        self.state = "running"
        self.place: dict[str, Any] = {}
        self._request_count = _request_count[0]
        self._line: str | None = None
        self._is_released = False
        self._text: list[str] = []
        self._size = 0
        self.warning = self._timeout_warning()
        for text in (header, self.warning):
            if text:
                self.write(f"{text}\n")

    def _timeout_warning(self) -> str:
        """
        Return a warning if a collective times out before the stop.
        """
        timeout_s = self.collective_timeout_s
        if timeout_s is None or timeout_s >= self.limit_s:
            return ""

        return (
            f"other ranks give up waiting in a collective after {timeout_s:.0f} "
            "s; arm(collective_timeout=...) raises that before they begin"
        )

    def set_place(
        self,
        frame: FrameType,
        line: int | None = None,
        failed: Stack | None = None,
    ) -> None:
        """
        Set the current place of the thread.

        Args:
            line: The line, if it is not the current line of *frame*.

            failed: The frames and lines of an exception, innermost first.
        """
        is_new = not self.place
        place = frame_place(frame)
        self.place = place if line is None else {**place, "line": line}
        if failed:
            failed_stacks[self.ident] = failed
        else:
            failed_stacks.pop(self.ident, None)
        if is_new:
            with _changed:
                _stops[self.key] = self
            self._log_stop()

    def _log_stop(self) -> None:
        log_warning(
            "%s stopped (%s) at %s, for up to %.0f s; "
            "see: python -m distdebug dbg%s",
            self._rank_text(),
            self.reason,
            place_text(self.place),
            self.limit_s,
            f"; but {self.warning}" if self.warning else "",
        )

    def _rank_text(self) -> str:
        rank = self.labels["rank"]
        return f"process {os.getpid()}" if rank is None else f"rank {rank}"

    def read(self) -> str:
        """
        Wait for the next line.

        Returns:
            The line.  ``""``, now and from now on, when the time limit is over
            or the thread was released.
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
        Wait for a line or the end; return whether the time limit is over.
        """
        while self._line is None and not self._is_released:
            left = self.deadline - time.monotonic()
            if left <= 0:
                self._is_released = True
                return True
            _changed.wait(min(left, _MAX_WAIT_S))
        return False

    def release(self) -> None:
        """
        Let the thread continue after the command that it runs.
        """
        with _changed:
            self._is_released = True
            _changed.notify_all()

    def _expire(self) -> None:
        self.write("the time limit of this pause is over: going on\n")
        log_warning(
            "%s: no command for %.0f s: this rank continues from %s%s",
            self._rank_text(),
            self.limit_s,
            place_text(self.place),
            ", and does not stop at this line until it is asked again"
            if self._request_count == _request_count[0]
            else "",
        )
        line = self.place["file"], self.place["line"]
        _timed_out_pauses[line] = self._request_count

    def report_overrun(self) -> None:
        """
        Report that a command outlasts the time limit.
        """
        text = (
            "the time limit of this pause is over, but its command still "
            "runs, and cannot be ended: this rank goes on when it returns"
        )
        self.write(f"{text}\n")
        log_warning("%s: %s", self._rank_text(), text)

    def write(self, text: str) -> None:
        """
        Keep output of the debugger for the client.
        """
        room = max(_MAX_OUTPUT - self._size, 0)
        if room and text:
            cut = text if len(text) <= room else f"{text[:room]}…\n"
            self._text.append(cut)
        self._size += len(text)

    def close(self) -> None:
        """
        Mark that the thread continues without the debugger.
        """
        with _changed:
            self.state = "ended"
            failed_stacks.pop(self.ident, None)
            _stops.pop(self.key, None)
            _changed.notify_all()

    def extend(self, seconds: float) -> None:
        """
        Set a new time limit, counted from now.
        """
        with _changed:
            self.deadline = time.monotonic() + seconds
            _changed.notify_all()

    def output(self) -> dict[str, Any]:
        """
        Return the state, the output since the last line, and the place.
        """
        text = "".join(list(self._text))
        return {"state": self.state, "output": text, **self.place}

    def put_line(self, line: str) -> bool:
        """
        Pass a line to the thread if it waits for one; needs the lock.
        """
        if self.state != "stopped" or self._is_released:
            return False

        self._line = line
        self.state = "running"
        return True

    def _collective_timeout_left_s(self, now: float) -> float | None:
        """
        Return the seconds until the shortest timeout, counted from the stop.
        """
        if self.collective_timeout_s is None:
            return None
        return round(max(self.since + self.collective_timeout_s - now, 0.0), 3)

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data.
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
            "patience_left_s": self._collective_timeout_left_s(now),
            **self.place,
        }


def give_line(
    keys: list[str], line: str, wait_s: float
) -> dict[str, dict[str, Any]]:
    """
    Pass a line to several stops, and wait until they stop again.

    Args:
        wait_s: The limit for all of them together, in seconds.

    Returns:
        The output and the state of each, by key.
    """
    with _changed:
        stops = {key: _stops.get(key) for key in dict.fromkeys(keys)}
        accepted = {k: s for k, s in stops.items() if s and s.put_line(line)}
        _changed.notify_all()
        _changed.wait_for(
            lambda: all(s.state != "running" for s in accepted.values()),
            wait_s,
        )
        return {
            key: _stop_state(stop, was_accepted=key in accepted)
            for key, stop in stops.items()
        }


def wait_for_ends(stops: Iterable[Stop], wait_s: float) -> bool:
    """
    Wait until released threads continue; return whether all do.

    Args:
        wait_s: The limit for all of them together, in seconds.
    """
    pending = tuple(stops)
    with _changed:
        return _changed.wait_for(
            lambda: all(stop.state == "ended" for stop in pending), wait_s
        )


def _stop_state(stop: Stop | None, *, was_accepted: bool) -> dict[str, Any]:
    if stop is None:
        return NOT_STOPPED
    if was_accepted:
        return stop.output()

    return {"state": stop.state, "error": "it is busy with another command"}
