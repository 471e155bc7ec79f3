"""
Where is a thread of this process, and what do its variables hold?

Both are told by another thread, so they are known of a thread that is blocked
in a collective, too.
"""

from __future__ import annotations

import linecache
import sys
import threading

from collections.abc import Iterator
from types import FrameType
from typing import Any

from ..._in_time import in_time
from .values import value_text


__all__ = ["evaluate", "place_of", "stack_of_threads", "user_frame"]

_MOST_FRAMES = 200
# Threads of evaluations that did not end.
_MOST_LEFT_BEHIND = 4
_OWN = "distdebug"
_running: set[int] = set()


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frame(frame: FrameType) -> FrameType:
    """
    In which of the callers is the innermost line of the user's own?

    Args:
        frame: The innermost frame of a thread.

    Returns:
        The frame; *frame* itself, if all of them belong to frameworks.
    """
    from ...location import is_framework

    return next(
        (
            f
            for f in _frames(frame)
            if not is_framework(f.f_code.co_filename)
            and not f.f_globals.get("__name__", "").startswith("distdebug.")
        ),
        frame,
    )


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


def stack_of_threads(*, all_threads: bool) -> list[dict[str, Any]]:
    """
    Where are the threads of this process?

    Args:
        all_threads: Whether to look at others than the main thread, too.

    Returns:
        For each thread its name, and its lines, innermost first.
    """
    main = threading.main_thread().ident
    names = {t.ident: t.name for t in threading.enumerate()}
    return [
        {
            "thread": names.get(ident, "unknown"),
            "main": ident == main,
            "frames": [
                {**place_of(f), "code": _code(f)}
                for f, _ in zip(
                    _frames(frame), range(_MOST_FRAMES), strict=False
                )
            ],
        }
        for ident, frame in sorted(
            sys._current_frames().items(),  # noqa: SLF001 there is no other way
            key=lambda item: item[0] != main,
        )
        if ident == main
        or (all_threads and not names.get(ident, "").startswith(_OWN))
    ]


def _code(frame: FrameType) -> str:
    return linecache.getline(
        frame.f_code.co_filename, frame.f_lineno, frame.f_globals
    ).strip()


def evaluate(
    expression: str, *, seconds: float, copy: bool = False, up: int = 0
) -> str:
    """
    What is the value of an expression, at the user's line of the main thread?

    Args:
        expression: A Python expression.  It runs in a thread of its own, and
            sees the variables of the line.

        seconds: How long it may take.

        copy: Whether to copy tensors from a device, which may wait.

        up: How many callers further out to look.

    Returns:
        The value as text.

    Raises:
        TimeoutError: It takes too long; it is left behind.

        RuntimeError: Too many were left behind already.

        Exception: What the expression raises.
    """
    if len(_running) >= _MOST_LEFT_BEHIND:
        msg = f"{len(_running)} evaluations have not ended yet"
        raise RuntimeError(msg)

    code = compile(expression.strip(), "<distdebug>", "eval")
    main = threading.main_thread().ident
    frame = user_frame(sys._current_frames()[main or 0])  # noqa: SLF001
    *_, frame = (
        f for f, _ in zip(_frames(frame), range(up + 1), strict=False)
    )

    def work() -> str:
        me = threading.get_ident()
        _running.add(me)
        try:
            # One mapping, so that comprehensions see the variables too.
            names = {**frame.f_globals, **frame.f_locals}
            return value_text(eval(code, names), copy=copy)  # noqa: S307
        finally:
            _running.discard(me)

    return in_time(work, seconds)
