"""
What did Python's own ``faulthandler`` write?

On a signal, after a time-out, or when the process crashed.  Its threads have
no number that another tool knows, and, before Python 3.14, no name.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator, Sequence

import attrs

from ..model import StackFrame, ThreadStack
from .gdb import make_frame, shorten, with_code
from .trace import frame_of


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
_C_STACK = re.compile(r"Current thread's C stack trace \(most recent .*")
_BEGINS = re.compile(
    r"Timeout \(\d{1,9}(?: days?, )?[\d:.]{1,30}\)!"
    r"|(?:Fatal Python error|Windows fatal exception): .*"
)
_MOST_HEADER = 400


def parse_faulthandler(text: str) -> tuple[ThreadStack, ...]:
    """
    Which threads are in this output of faulthandler?

    Args:
        text: What it wrote; if it wrote several times, the last time counts.

    Returns:
        The threads, in the order of the tool; *thread_id* is the one that
        Python uses.
    """
    found: list[tuple[re.Match[str], list[str]]] = []
    for line in text.splitlines():
        if match := header_of(line):
            if match["id"] in {known["id"] for known, _ in found}:
                found = []
            found.append((match, []))
        elif begins_dump(line):
            found = []
        elif found:
            found[-1][1].append(line)
    return mark_main([read_thread(match, lines) for match, lines in found])


def header_of(line: str) -> re.Match[str] | None:
    """
    Does this line begin the stack of a thread?

    Args:
        line: One line of the output.

    Returns:
        What to give to :func:`read_thread`, or ``None``.
    """
    text = line.strip()
    if len(text) > _MOST_HEADER or not text.endswith("first):"):
        return None
    return _HEADER.fullmatch(text)


def begins_dump(line: str) -> bool:
    """
    Does this line begin the dump of a process?

    Args:
        line: One line of the output.

    Returns:
        Whether the threads that follow belong to another dump than those
        before.
    """
    text = line.strip()
    return len(text) <= _MOST_HEADER and _BEGINS.fullmatch(text) is not None


def read_thread(match: re.Match[str], lines: Iterable[str]) -> ThreadStack:
    """
    What is this thread doing?

    Args:
        match: What *header_of* returned.

        lines: The lines that follow.

    Returns:
        The thread.  Frames of machine code that belong to it come as a second
        stack.
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


def mark_main(threads: Sequence[ThreadStack]) -> tuple[ThreadStack, ...]:
    """
    Which of these threads is the main one?

    Threads are written youngest first, so it is the last one that the
    threading module did not begin.

    Args:
        threads: All threads of a process, as they were written.

    Returns:
        The same threads, one of them marked; none, if the main thread is not
        among them.
    """
    own = [n for n, t in enumerate(threads) if not _is_begun(t)]
    main = max(own, default=-1)
    return tuple(
        attrs.evolve(thread, is_main=number == main)
        for number, thread in enumerate(threads)
    )


def _is_begun(thread: ThreadStack) -> bool:
    if not thread.frames:
        return True
    outermost = thread.frames[-1]
    return outermost.name.endswith("_bootstrap") and (
        outermost.filename.endswith("threading.py")
    )


_INTERRUPT_BEGINS = "Traceback (most recent call last):"
_ENDS = re.compile(
    r"KeyboardInterrupt\b|[\w.]{1,200}: .{0,400}?"
    r"(?:Timed out waiting \d{1,12}ms|[Ww]ait timeout after \d{1,12}ms"
    r"|Timeout waiting for key|Watchdog caught collective operation timeout)"
)
# What follows these came of the interruption.
_LATER = ("During handling of the above", "Exception ignored")
_MOST_LINES = 10_000


def interrupted_threads(lines: Iterable[str]) -> Iterator[ThreadStack]:
    """
    Which main threads were broken off while they waited?

    Args:
        lines: A log.

    Returns:
        One thread for each traceback that says so.
    """
    found: list[str] | None = None
    is_later = False
    for line in lines:
        text = line.strip()
        if text == _INTERRUPT_BEGINS:
            found, is_later = (None if is_later else []), False
        elif text.startswith(_LATER):
            found, is_later = None, True
        elif found is not None and line[:1].isspace():
            if len(found) < _MOST_LINES:
                found.append(line)
        elif found is not None and text:
            if _ENDS.match(text):
                yield from _thread(found)
            found = None


def _thread(lines: Iterable[str]) -> Iterator[ThreadStack]:
    frames = list(with_code((line, frame_of(line)) for line in lines))
    if frames:
        yield ThreadStack(
            name="MainThread", frames=tuple(frames[::-1]), is_main=True
        )
