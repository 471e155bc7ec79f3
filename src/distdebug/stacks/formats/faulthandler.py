"""
Parse dumps of Python's ``faulthandler``, and tracebacks of interrupted waits.

faulthandler writes on a signal, after a timeout, or in a crash.  Its thread
ids are known to no other tool, and threads have no names before Python 3.14.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator, Sequence

import attrs

from ..model import StackFrame, ThreadStack
from .gdb import attach_code, make_frame, shorten
from .traceback_dump import parse_frame


_HEADER = re.compile(
    r"(?P<current>Current thread|Thread) 0x(?P<id>[0-9A-Fa-f]{1,16})"
    r"(?: \[(?P<name>.{0,99})\])? \(most recent call first\):"
    r"|Stack \(most recent call first\):"
)
_FRAME = re.compile(
    r'File (?:"(?P<file>.{0,4096}?)"|\?\?\?), line (?P<line>\d{1,9}|\?{3}) in '
    r"(?P<name>.*)"
)
_C_FRAME = re.compile(
    r'Binary file "(?P<file>.{0,4096}?)", at (?P<name>\S{0,4096})'
    r" \[0x[0-9a-f]{1,16}\]"
)


_DUMP_START = re.compile(
    r"Timeout \(\d{1,9}(?: days?, )?[\d:.]{1,30}\)!"
    r"|(?:Fatal Python error|Windows fatal exception): .*"
)
_MOST_HEADER = 400


def parse_faulthandler(text: str) -> tuple[ThreadStack, ...]:
    """
    Parse the threads in the output of faulthandler.

    Args:
        text: What it wrote; of several dumps, the last one counts.

    Returns:
        The threads, in the order of the tool; *thread_id* is that of Python.
    """
    found: list[tuple[re.Match[str], list[str]]] = []
    for line in text.splitlines():
        if match := match_header(line):
            if match["id"] in {known["id"] for known, _ in found}:
                found = []
            found.append((match, []))
        elif is_dump_start(line):
            found = []
        elif found:
            found[-1][1].append(line)
    return mark_main_thread(
        [parse_thread(match, lines) for match, lines in found]
    )


def match_header(line: str) -> re.Match[str] | None:
    """
    Match the header line of a thread.

    Returns:
        The argument for :func:`parse_thread`, or ``None``.
    """
    text = line.strip()
    if len(text) > _MOST_HEADER or not text.endswith("first):"):
        return None
    return _HEADER.fullmatch(text)


def is_dump_start(line: str) -> bool:
    """
    Return whether a line begins the dump of a process.

    The threads after it belong to another dump than those before.
    """
    text = line.strip()
    return (
        len(text) <= _MOST_HEADER and _DUMP_START.fullmatch(text) is not None
    )


def parse_thread(match: re.Match[str], lines: Iterable[str]) -> ThreadStack:
    """
    Parse the stack of one thread.

    Args:
        match: From :func:`match_header`.

        lines: The lines after the header.

    Returns:
        The thread, with its native frames as a second stack.
    """
    python: list[StackFrame] = []
    native: list[StackFrame] = []
    for line in lines:
        text = shorten(line).strip()
        if found := _FRAME.fullmatch(text):
            number = found["line"]
            python.append(
                make_frame(
                    found["name"],
                    found["file"] or "",
                    int(number) if number.isdecimal() else 0,
                    is_native=False,
                )
            )
        elif found := _C_FRAME.fullmatch(text):
            name = found["name"].rpartition("+")[0] or "??"
            native.append(make_frame(name, found["file"], is_native=True))

    number = match["id"]
    return ThreadStack(
        name=match["name"] or "",
        thread_id=int(number, 16) if number else None,
        frames=tuple(python),
        native=tuple(native),
    )


def mark_main_thread(
    threads: Sequence[ThreadStack],
) -> tuple[ThreadStack, ...]:
    """
    Mark the main thread.

    Threads are written youngest first, so it is the last one that the
    threading module did not start.

    Args:
        threads: All threads of a process, in the order of the dump.

    Returns:
        The same threads; none is marked if the main thread is missing.
    """
    candidates = [
        n for n, t in enumerate(threads) if not _is_threading_thread(t)
    ]
    main = max(candidates, default=-1)
    return tuple(
        attrs.evolve(thread, is_main=number == main)
        for number, thread in enumerate(threads)
    )


def _is_threading_thread(thread: ThreadStack) -> bool:
    if not thread.frames:
        return True
    outermost = thread.frames[-1]
    return outermost.name.endswith("_bootstrap") and (
        outermost.filename.endswith("threading.py")
    )


_TRACEBACK_START = "Traceback (most recent call last):"
_INTERRUPT_END = re.compile(
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
            if _INTERRUPT_END.match(text):
                yield from _parse_interrupted_thread(found)
            found = None


def _parse_interrupted_thread(lines: Iterable[str]) -> Iterator[ThreadStack]:
    frames = list(attach_code((line, parse_frame(line)) for line in lines))
    if frames:
        yield ThreadStack(
            name="MainThread", frames=tuple(frames[::-1]), is_main=True
        )
