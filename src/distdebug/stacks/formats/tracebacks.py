"""
Parse stacks in the form of tracebacks: faulthandler, pystack, and others.

faulthandler writes on a signal, after a timeout, or in a crash.  Its thread
ids are known to no other tool, and threads have no names before Python 3.14.
pystack reads processes and core dumps, and mixes native frames in on request.
pytest-timeout, Ray Train where py-spy is missing, and similar tools write a
header per thread, and below it the output of the :mod:`traceback` module.
``python -m profiling.sampling dump PID`` (Python 3.15) writes what threads, or
the tasks of an event loop, do.  All but faulthandler, also tracebacks of
interrupted programs, begin with the outermost frame.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator, Sequence

import attrs

from ..._lazy import late_pattern
from ..model import StackFrame, ThreadStack, is_gil_wait
from .frames import (
    attach_code,
    header_matcher,
    make_frame,
    shorten,
    split_brackets,
)


match_faulthandler = header_matcher(
    r"(?:Current thread|Thread) 0x(?P<id>[0-9A-Fa-f]{1,16})"
    r"(?: \[(?P<name>.{0,99})\])? \(most recent call first\):"
    r"|Stack \(most recent call first\):"
)
match_pystack = header_matcher(
    r"Traceback for thread (?P<id>\d{1,10})(?: \((?P<name>.{0,99})\))?"
    r"(?: \[(?P<status>[^\]]{0,99})\])? \(most recent call last\):"
    r"|The frame stack for thread (?P<empty>\d{1,10}) is empty"
)
match_thread_dump = header_matcher(
    r"~{2,200} Stack of (?P<name>.{1,200}) \((?P<id>\d{1,20})\) ~{2,200}"
    r"|# Thread (?P<number>\d{7,20})",
    700,
)
# In the header of the first section is the process.
match_sampling = header_matcher(
    r"Stack dump(?: for PID (?P<pid>\d{1,10}))?(?:, thread (?P<id>\d{1,20}))?"
    r" \((?:interpreter \d{1,20}; )?(?:(?P<name>task [^;()]{1,99}); )?"
    r"(?P<status>[^;()]{0,99})(?:; )?most recent call last\):"
)
_FRAME = late_pattern(
    r'(?:\((?P<kind>Python|C)\) )?File (?:"(?P<file>.{0,4096}?)"|\?{3}), line '
    r"(?P<line>\d{1,9}|\?{3}),? in (?P<name>.*?)(?:  opcode=.*)?"
)
_C_FRAME = late_pattern(
    r'Binary file "(?P<file>.{0,4096}?)", at (?P<name>\S{0,4096})'
    r" \[0x[0-9a-f]{1,16}\]"
)
# What stands before the stacks of a process: that they were asked for, or what
# it died of, as faulthandler, torch's and absl's handlers of signals write it.
_match_dump_start = header_matcher(
    r"Timeout \(\d{1,9}(?: days?, )?[\d:.]{1,30}\)!"
    r"|(?:Fatal Python error|Windows fatal exception): (?P<error>.*)"
    r"|!{3,20} (?P<signal>\w.{0,60}?) encountered !{3,20}"
    r"|\*{3} (?P<name>SIG(?:SEGV|BUS|ABRT|ILL|FPE)) (?:received at time=|\(@0x).{0,300}"
)
# Native threads other than the main one begin here.
_THREAD_START = late_pattern(
    r"thread_run|pythread_wrapper|start_thread|(__)?clone3?"
)


def _parse_frame(line: str) -> StackFrame | None:
    match = _FRAME.fullmatch(shorten(line).strip())
    if match is None:
        return None

    name, filename = match["name"], match["file"] or ""
    number = int(match["line"]) if match["line"].isdecimal() else 0
    if match["kind"] != "C":
        return make_frame(name, filename, number, is_native=False)

    name, library = split_brackets(name) or (name, "")
    name = name.removesuffix(" (inlined)")
    if not number or filename == "???":
        filename, number = library, 0
    name = "??" if name == "???" else name
    return make_frame(name, filename, number, is_native=True)


def _parse_outermost_first(lines: Iterable[str]) -> tuple[StackFrame, ...]:
    frames = attach_code((line, _parse_frame(line)) for line in lines)
    return tuple(frames)[::-1]


def _starts_thread(frame: StackFrame) -> bool:
    if frame.is_native:
        return _THREAD_START.fullmatch(frame.name) is not None
    return frame.name.endswith("_bootstrap") and frame.filename.endswith(
        "threading.py"
    )


def parse_pystack(match: re.Match[str], lines: list[str]) -> ThreadStack:
    """
    Parse a thread as pystack prints it.

    It is taken for the main one unless it begins where the threading module
    starts threads.
    """
    frames, status = _parse_outermost_first(lines), match["status"]
    has_native = any(frame.is_native for frame in frames)
    return ThreadStack(
        name=match["name"] or "",
        thread_id=int(match["id"] or match["empty"]),
        frames=frames,
        is_main=bool(frames) and not any(map(_starts_thread, frames[-4:])),
        owns_gil=None if status is None else "Has the GIL" in status,
        waits_for_gil=is_gil_wait(frames)
        or ("Waiting for the GIL" in (status or "") if has_native else None),
    )


def parse_dumped(match: re.Match[str], lines: list[str]) -> ThreadStack:
    """
    Parse a thread that a program printed with :mod:`traceback`.
    """
    frames = _parse_outermost_first(lines)
    name, is_unnamed = match["name"] or "", match["number"] is not None
    is_first = bool(frames) and not _starts_thread(frames[-1])
    return ThreadStack(
        name=name,
        thread_id=int(match["id"] or match["number"]),
        frames=frames,
        is_main=is_first if is_unnamed else name == "MainThread",
    )


def parse_sampling(match: re.Match[str], lines: list[str]) -> ThreadStack:
    """
    Parse a thread or task that Python's own profiler printed.
    """
    return ThreadStack(
        name=match["name"] or "",
        thread_id=int(match["id"]) if match["id"] else None,
        frames=_parse_outermost_first(lines),
        is_main="main thread" in match["status"],
        active="on CPU" in match["status"],
        owns_gil="has GIL" in match["status"],
        waits_for_gil="waiting for GIL" in match["status"],
    )


def parse_dump_start(line: str) -> str | None:
    """
    Parse a line that begins the dump of a process by faulthandler.

    The threads after it belong to another dump than those before.

    Returns:
        The error that the process dies of; ``""`` if the dump was asked for,
        and ``None`` if the line is no beginning.
    """
    found = _match_dump_start(line)
    if found is None:
        return None
    return next((text.strip()[:100] for text in found.groups("") if text), "")


def mark_main(threads: Sequence[ThreadStack]) -> tuple[ThreadStack, ...]:
    """
    Mark the main thread in a dump of faulthandler.

    Threads are written youngest first, so the main thread is the last one that
    the threading module did not start.  If it is missing, none is marked.
    """
    candidates = (
        number
        for number, thread in enumerate(threads)
        if thread.frames and not _starts_thread(thread.frames[-1])
    )
    main = max(candidates, default=-1)
    return tuple(
        attrs.evolve(thread, is_main=number == main)
        for number, thread in enumerate(threads)
    )


def parse_faulthandler(match: re.Match[str], lines: list[str]) -> ThreadStack:
    """
    Parse a thread of faulthandler, with native frames as a second stack.
    """
    python: list[StackFrame] = []
    native: list[StackFrame] = []
    for line in lines:
        if frame := _parse_frame(line):
            python.append(frame)
        elif found := _C_FRAME.fullmatch(shorten(line).strip()):
            name = found["name"].rpartition("+")[0] or "??"
            native.append(make_frame(name, found["file"], is_native=True))
    return ThreadStack(
        name=match["name"] or "",
        thread_id=int(match["id"], 16) if match["id"] else None,
        frames=tuple(python),
        native=tuple(native),
        is_current=match[0].startswith("Current"),
    )


_TRACEBACK_START = "Traceback (most recent call last):"
_INTERRUPT_END = late_pattern(
    r"KeyboardInterrupt\b|[\w.]{1,200}: .{0,400}?"
    r"(?:Timed out waiting \d{1,12}ms|[Ww]ait timeout after \d{1,12}ms"
    r"|Timeout waiting for key|Watchdog caught collective operation timeout)"
)
# The traceback after these lines is a consequence of the interrupt.
_CHAINED_STARTS = ("During handling of the above", "Exception ignored")
_MOST_LINES = 10_000


def find_interrupted_threads(lines: Iterable[str]) -> Iterator[ThreadStack]:
    """
    Find the main threads that were interrupted while they waited.

    Args:
        lines: A log.

    Returns:
        One thread for each traceback of an interrupt or a collective timeout.
    """
    found: list[str] | None = None
    is_chained = False
    for line in lines:
        text = line.strip()
        if text == _TRACEBACK_START:
            found, is_chained = (None if is_chained else []), False
        elif text.startswith(_CHAINED_STARTS):
            found, is_chained = None, True
        elif found is not None and line[:1].isspace():
            if len(found) < _MOST_LINES:
                found.append(line)
        elif found is not None and text:
            frames = _parse_outermost_first(found)
            if frames and _INTERRUPT_END.match(text):
                yield ThreadStack(
                    name="MainThread", frames=frames, is_main=True
                )
            found = None
