"""
Where is a thread of this process, and what do its variables hold?

Both are told by another thread, so they are known of a thread that is blocked
in a collective, too.
"""

from __future__ import annotations

import linecache
import sys
import threading

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from ..._frameworks import is_framework
from ..._in_time import in_time
from .obeying import end_thread
from .values import value_text


__all__ = [
    "evaluate",
    "is_users",
    "place_of",
    "place_text",
    "stack_of_threads",
    "user_frame",
    "working_place",
]

_MOST_FRAMES = 200
# Threads of evaluations that did not end.
_MOST_LEFT_BEHIND = 4
_OWN = "distdebug"
# Its frames are around code of the user, and not where a thread is held.
_AROUND = "distdebug.debugger.inside.crashes"
_running: set[int] = set()

# Frames of a thread and their lines, innermost first.
Stack = Iterable[tuple[FrameType, int]]


def _frames(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame, frame.f_lineno
        frame = frame.f_back


def user_frame(frame: FrameType) -> FrameType:
    """
    In which of the callers is the innermost line of the user's own?

    Args:
        frame: The innermost frame of a thread.

    Returns:
        The frame; *frame* itself, if all of them belong to frameworks.
    """
    return next((f for f, _ in _frames(frame) if is_users(f)), frame)


def is_users(frame: FrameType) -> bool:
    """
    Is this code of the user, and neither of a framework nor ours?
    """
    module, _, _ = str(frame.f_globals.get("__name__")).partition(".")
    return module != _OWN and not is_framework(frame.f_code.co_filename)


def _stacks(failed: Mapping[int, Stack]) -> dict[int, Stack]:
    current = sys._current_frames()  # noqa: SLF001 there is no other way
    stacks = {ident: [*_frames(f)] for ident, f in current.items()}
    stacks.update((i, [*s]) for i, s in failed.items() if i in stacks)
    return {
        ident: [
            (f, line)
            for f, line in stack
            if f.f_globals.get("__name__") != _AROUND
        ]
        for ident, stack in stacks.items()
    }


def _working_thread(stacks: Mapping[int, Stack]) -> int:
    """
    Which thread runs the user's own code?

    Ray and Monarch run it beside a main thread that only waits.

    Returns:
        The main thread, unless it is in none of the user's code and another
        one is.
    """
    main = threading.main_thread().ident or 0
    return next(
        (
            ident
            for ident in (main, *sorted(stacks.keys() - {main}))
            if any(is_users(f) for f, _ in stacks.get(ident, ()))
        ),
        main,
    )


def _working_frames(
    failed: Mapping[int, Stack],
) -> list[tuple[FrameType, int]]:
    """
    The innermost line of the user's own of who works, and its callers.
    """
    stacks = _stacks(failed)
    stack = [*stacks.get(_working_thread(stacks), ())]
    first = next((n for n, (f, _) in enumerate(stack) if is_users(f)), 0)
    return stack[first:]


def working_place(failed: Mapping[int, Stack]) -> dict[str, Any]:
    """
    Where is the thread that runs the user's own code?

    Args:
        failed: Where threads failed that are examined, by their number.

    Returns:
        Plain data: function, file, and line; empty if there is no thread.
    """
    for frame, line in _working_frames(failed):
        return {**place_of(frame), "line": line}

    return {}


def place_of(frame: FrameType) -> dict[str, Any]:
    """
    Which line is this?

    Args:
        frame: Any frame.

    Returns:
        Plain data: function, file, and line.
    """
    return {
        "function": frame.f_code.co_qualname,
        "file": frame.f_code.co_filename,
        "line": frame.f_lineno,
    }


def place_text(place: Mapping[str, Any]) -> str:
    """
    How is a place written?

    Args:
        place: What :func:`place_of` said.

    Returns:
        Such as ``"/home/you/train.py:8 in step"``.
    """
    return f"{place['file']}:{place['line']} in {place['function']}"


def stack_of_threads(
    *,
    all_threads: bool,
    failed: Mapping[int, Stack],
    stopped: Collection[int],
    name_of: Callable[[str], str] = str,
) -> list[dict[str, Any]]:
    """
    Where are the threads of this process?

    Args:
        all_threads: Whether to look at others than the one that works, and
            those that are stopped, too.

        failed: Where threads failed that are examined, by their number.

        stopped: Which threads are stopped.

        name_of: How a thread of some name is called.

    Returns:
        For each thread its name, and its lines, innermost first.
    """
    stacks = _stacks(failed)
    main = _working_thread(stacks)
    names = {t.ident: t.name for t in threading.enumerate()}
    return [
        {
            "thread": name_of(names.get(ident, "unknown")),
            "main": ident == main,
            "frames": [
                {**place_of(f), "line": line, "code": _code(f, line)}
                for f, line in stack
            ],
        }
        for ident, stack in sorted(
            stacks.items(), key=lambda item: item[0] != main
        )
        if ident == main
        or ident in stopped
        or (all_threads and not names.get(ident, "").startswith(_OWN))
    ]


def _code(frame: FrameType, line: int) -> str:
    return linecache.getline(
        frame.f_code.co_filename, line, frame.f_globals
    ).strip()


def evaluate(
    expression: str,
    *,
    seconds: float,
    copy: bool = False,
    up: int = 0,
    failed: Mapping[int, Stack] | None = None,
) -> str:
    """
    What is the value of an expression, at the user's line of who works?

    Args:
        expression: A Python expression.  It runs in a thread of its own, and
            sees the variables of the line.

        seconds: How long it may take.

        copy: Whether to copy tensors from a device, which may wait.

        up: How many callers further out to look.

        failed: Where threads failed that are examined, by their number.

    Returns:
        The value as text.

    Raises:
        TimeoutError: It takes too long; it is ended, or left behind if it waits
            outside of Python.

        RuntimeError: Too many were left behind already.

        Exception: What the expression raises.
    """
    if len(_running) >= _MOST_LEFT_BEHIND:
        msg = f"{len(_running)} evaluations have not ended yet"
        raise RuntimeError(msg)

    code = compile(expression.strip(), "<distdebug>", "eval")
    frame, _ = _working_frames(failed or {})[: up + 1][-1]

    thread = []

    def work() -> str:
        me = threading.get_ident()
        thread.append(me)
        _running.add(me)
        try:
            # One mapping, so that comprehensions see the variables too.
            names = {**frame.f_globals, **frame.f_locals}
            return value_text(eval(code, names), copy=copy)  # noqa: S307
        finally:
            _running.discard(me)

    try:
        return in_time(work, seconds)
    except TimeoutError:
        for ident in _running.intersection(thread):
            end_thread(ident)
        raise
