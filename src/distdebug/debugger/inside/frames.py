"""
Where is a thread of this process, and what do its variables hold?

Both are told by another thread, so they are known of a thread that is blocked
in a collective, too.
"""

from __future__ import annotations

import ctypes
import itertools
import linecache
import pprint
import reprlib
import sys
import threading
import time

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..._in_time import in_time
from ...usercode import is_framework


_LONGEST = 50_000
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
_ON_HOST = frozenset({"cpu", "meta"})


def value_text(value: object, *, copy: bool = False) -> str:
    """
    How does a value look?

    Args:
        value: Anything.

        copy: Whether to show what lies on a device too, which may wait.

    Returns:
        Its ``repr()``, cut if it is very long.
    """
    if _is_large(value) or (_has_device() and not copy):
        return _cut(_far(value))
    return _cut(repr(value))


def pretty_text(value: object) -> str:
    """
    How does a value look on several lines?

    Args:
        value: Anything.

    Returns:
        What :func:`pprint.pformat` says, if there is no device.
    """
    is_far = _has_device() or _is_large(value)
    return _cut(_far(value) if is_far else pprint.pformat(value))


def _is_large(value: object) -> bool:
    """
    Whether the text of a value would take much more memory than is shown.
    """
    rest, count = [value], 0
    while rest and count <= _LONGEST:
        one = rest.pop()
        if type(one) in _CONTAINERS:
            count += 1 + len(one)  # type: ignore[arg-type]
            if count <= _LONGEST:
                parts = one.items() if isinstance(one, dict) else [one]
                rest += itertools.chain.from_iterable(parts)  # type: ignore[arg-type]
    return count > _LONGEST


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _has_device() -> bool:
    """
    Whether this process has ever used an accelerator; asking must not do so.
    """
    torch: Any = sys.modules.get("torch")
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if getattr(device, "is_initialized", bool)():
            return True

    return False


class _Far(reprlib.Repr):
    """
    Shows containers itself, so that it sees each tensor in them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 20
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 1000
        self.maxfrozenset = self.maxdeque = self.maxarray = 1000
        self.maxstring = self.maxlong = self.maxother = _LONGEST

    def repr1(self, x: Any, level: int) -> str:
        """
        Show one value within another.
        """
        tensor: Any = getattr(sys.modules.get("torch"), "Tensor", None)
        if isinstance(tensor, type) and isinstance(x, tensor):
            return _described(x) or repr(x)

        return super().repr1(x, level)

    def repr_instance(self, x: Any, level: int) -> str:
        """
        Show what is no plain container; a named tuple is one in disguise.
        """
        if isinstance(x, tuple) and type(x).__repr__ is not tuple.__repr__:
            inner = super().repr1(tuple(x), level)
            return f"{type(x).__name__}{inner}"

        return super().repr_instance(x, level)


_far: Callable[[object], str] = _Far().repr


def _described(tensor: Any) -> str:
    """
    What is known of a tensor without reading it; ``""`` if it is here.
    """
    if tensor.device.type in _ON_HOST:
        return ""

    return (
        f"<{type(tensor).__name__} on {tensor.device}, shape "
        f"{tuple(tensor.shape)}, {tensor.dtype}, not copied from there>"
    )


class CommandEnded(SystemExit):
    """
    A command was ended from outside.
    """


def end_thread(ident: int) -> bool:
    """
    Raise :class:`CommandEnded` in a thread; it replaces one not seen yet.

    Args:
        ident: The number of the thread.

    Returns:
        Whether that could be done.  Python 3.11 cannot: threads that are traced
        would spin until this one sees it.
    """
    if sys.version_info < (3, 12):
        return False

    return bool(
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(ident), ctypes.py_object(CommandEnded)
        )
    )


class Obeying:
    """
    Lets other threads end what this thread obeys, and nothing else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_ended = False

    @contextmanager
    def may_end(self) -> Iterator[None]:
        """
        Let the block be ended by :class:`CommandEnded`, at most once.
        """
        me = threading.get_ident()
        try:
            self._thread, self._is_ended = me, False
            yield
        finally:
            self._close(me)

    def _close(self, me: int) -> None:
        with self._lock:
            self._thread = None
        # It must not be seen later, in code of the program.
        while self._is_ended and end_thread(me):
            time.sleep(0)

    @contextmanager
    def may_not_end(self) -> Iterator[None]:
        """
        Let a part of such a block be safe from that.
        """
        with self._lock:
            before, self._thread = self._thread, None
        try:
            yield
        finally:
            with self._lock:
                self._thread = before

    def end(self) -> None:
        """
        End the block, if a thread is in it.
        """
        with self._lock:
            ident, self._thread = self._thread, None
            if ident is not None:
                self._is_ended = end_thread(ident)


_MOST_FRAMES = 200
# Threads of evaluations that did not end.
_MOST_LEFT_BEHIND = 4
_OWN = "distdebug"
# Its frames are around code of the user, and not where a thread is held.
_AROUND = "distdebug.debugger.inside.arming"
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
