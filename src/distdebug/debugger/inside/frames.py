"""
Stacks of threads, and evaluation and formatting of their variables.

Another thread of the process does the work, so it also works for a thread that
is blocked in a collective.
"""

from __future__ import annotations

import itertools
import linecache
import reprlib
import sys
import threading

from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any

from ..._in_job import Stack, stacks_of_threads
from ..._proc import in_time
from ...usercode import is_user_code
from .interruption import InterruptibleCommand


_MAX_TEXT = 50_000
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
_HOST_DEVICES = frozenset({"cpu", "meta"})


def value_text(
    value: object,
    *,
    copy: bool = False,
    form: Callable[[object], str] = repr,
) -> str:
    """
    Format a value, truncated if very long.

    Args:
        copy: Whether to copy values from a device, which may block.

        form: Formats a value that is not large, and on no device.
    """
    is_reduced = _is_large(value) or (_has_device() and not copy)
    return _truncate(_device_repr(value) if is_reduced else form(value))


def _is_large(value: object) -> bool:
    """
    Return whether the ``repr()`` would take far more memory than is shown.
    """
    pending, count = [value], 0
    while pending and count <= _MAX_TEXT:
        item = pending.pop()
        if type(item) in _CONTAINERS:
            count += 1 + len(item)  # type: ignore[arg-type]
            if count <= _MAX_TEXT:
                parts = item.items() if isinstance(item, dict) else [item]
                pending += itertools.chain.from_iterable(parts)  # type: ignore[arg-type]
    return count > _MAX_TEXT


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _has_device() -> bool:
    """
    Return whether an accelerator is in use, without initializing it.
    """
    torch: Any = sys.modules.get("torch")
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if getattr(device, "is_initialized", bool)():
            return True

    return False


class _DeviceRepr(reprlib.Repr):
    """
    Format containers, with a summary for each tensor on a device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 20
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 1000
        self.maxfrozenset = self.maxdeque = self.maxarray = 1000
        self.maxstring = self.maxlong = self.maxother = _MAX_TEXT

    def repr1(self, x: Any, level: int) -> str:
        """
        Format one value within another.
        """
        tensor: Any = getattr(sys.modules.get("torch"), "Tensor", None)
        if isinstance(tensor, type) and isinstance(x, tensor):
            return _tensor_summary(x) or repr(x)

        return super().repr1(x, level)

    def repr_instance(self, x: Any, level: int) -> str:
        """
        Format other objects; a named tuple is a container, too.
        """
        if isinstance(x, tuple) and type(x).__repr__ is not tuple.__repr__:
            inner = super().repr1(tuple(x), level)
            return f"{type(x).__name__}{inner}"

        return super().repr_instance(x, level)


_device_repr: Callable[[object], str] = _DeviceRepr().repr


def _tensor_summary(tensor: Any) -> str:
    """
    Summarize a tensor without reading it; ``""`` if it is in host memory.
    """
    if tensor.device.type in _HOST_DEVICES:
        return ""

    return (
        f"<{type(tensor).__name__} on {tensor.device}, shape "
        f"{tuple(tensor.shape)}, {tensor.dtype}, not copied from there>"
    )


# The limit for evaluations that do not end.
_MAX_UNFINISHED = 4
_OWN_PREFIX = "distdebug"
# Its frames wrap code of the user, and are not shown.
_WRAPPER_MODULE = "distdebug.debugger.inside.arming"
_evaluating: set[int] = set()

failed_stacks: dict[int, Stack] = {}
"""The frames of the exceptions that are examined now, by thread ID.

The current frames of these threads belong to the debugger.
"""


def thread_name(thread: str) -> str:
    """
    Return the name of a thread, with the name of a child process before it.

    Child processes are those that :mod:`multiprocessing` has started.
    """
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if getattr(multiprocessing, "parent_process", bool)():
        return f"{multiprocessing.current_process().name}/{thread}"
    return thread


def from_user_frame(stack: Stack) -> Stack:
    """
    Return the innermost frame of the user's code and its callers.

    Args:
        stack: Frames and lines, innermost first.

    Returns:
        The whole stack, if all frames belong to frameworks.
    """
    first = next((n for n, (f, _) in enumerate(stack) if is_user_frame(f)), 0)
    return stack[first:]


def is_user_frame(frame: FrameType) -> bool:
    """
    Return whether a frame runs the user's code, no framework or distdebug.
    """
    module, _, _ = str(frame.f_globals.get("__name__")).partition(".")
    return module != _OWN_PREFIX and is_user_code(frame.f_code.co_filename)


def _stacks() -> dict[int, Stack]:
    current, failed = stacks_of_threads(), failed_stacks.copy()
    stacks = {i: failed.get(i) or stack for i, stack in current.items()}
    return {
        ident: [
            (f, line)
            for f, line in stack
            if f.f_globals.get("__name__") != _WRAPPER_MODULE
        ]
        for ident, stack in stacks.items()
    }


def _working_thread(stacks: Mapping[int, Stack]) -> int:
    """
    Return the thread that runs the user's code.

    Ray and Monarch run it beside a main thread that only waits.  The main
    thread is the default.
    """
    main = threading.main_thread().ident or 0
    for ident in (main, *sorted(stacks.keys() - {main})):
        if any(is_user_frame(f) for f, _ in stacks.get(ident, ())):
            return ident
    return main


def _working_frames() -> Stack:
    """
    Return the innermost frame of the user's code and its callers.
    """
    stacks = _stacks()
    return from_user_frame(stacks.get(_working_thread(stacks), []))


def working_place() -> dict[str, Any]:
    """
    Return the place of the thread that runs the user's code.

    Returns:
        Plain data: function, file, and line; empty if there is no thread.
    """
    for frame, line in _working_frames():
        return {**frame_place(frame), "line": line}

    return {}


def frame_place(frame: FrameType) -> dict[str, Any]:
    """
    Return the function, file, and line of a frame, as plain data.
    """
    return {
        "function": frame.f_code.co_qualname,
        "file": frame.f_code.co_filename,
        "line": frame.f_lineno,
    }


def place_text(place: Mapping[str, Any]) -> str:
    """
    Format a place, as ``"/home/you/train.py:8 in step"``.

    Args:
        place: The result of :func:`frame_place`.
    """
    return f"{place['file']}:{place['line']} in {place['function']}"


def stack_of_threads(
    *, all_threads: bool, stopped: Collection[int]
) -> list[dict[str, Any]]:
    """
    Return the stacks of the threads of this process.

    Args:
        all_threads: Whether to include all threads, and not only the one that
            works and the stopped ones.

        stopped: The IDs of the stopped threads.

    Returns:
        The name and the frames of each thread, innermost first.
    """
    stacks = _stacks()
    main = _working_thread(stacks)
    names = {t.ident: t.name for t in threading.enumerate()}
    return [
        {
            "thread": thread_name(names.get(ident, "unknown")),
            "main": ident == main,
            "frames": [
                {**frame_place(f), "line": line, "code": _code(f, line)}
                for f, line in stack
            ],
        }
        for ident, stack in sorted(
            stacks.items(), key=lambda item: item[0] != main
        )
        if ident == main
        or ident in stopped
        or (all_threads and not names.get(ident, "").startswith(_OWN_PREFIX))
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
) -> str:
    """
    Evaluate an expression in a frame of the user's code.

    Args:
        expression: A Python expression.  It runs in its own thread, and sees
            the variables of the frame.

        seconds: How long it may take.

        copy: Whether to copy tensors from a device, which may block.

        up: How many frames above the innermost one of the user's code.

    Returns:
        The value as text.

    Raises:
        TimeoutError: It takes too long.  Its thread is ended, or left running
            if it waits outside Python.

        RuntimeError: Too many evaluations are still running.

        Exception: Raised by the expression.
    """
    if len(_evaluating) >= _MAX_UNFINISHED:
        msg = f"{len(_evaluating)} evaluations have not ended yet"
        raise RuntimeError(msg)

    code = compile(expression.strip(), "<distdebug>", "eval")
    frame, _ = _working_frames()[: up + 1][-1]

    # One mapping, so that comprehensions see the variables, too.
    names = {**frame.f_globals, **frame.f_locals}
    guard = InterruptibleCommand()

    def work() -> str:
        own_ident = threading.get_ident()
        _evaluating.add(own_ident)
        try:
            return guard.run(
                lambda: value_text(eval(code, names), copy=copy)  # noqa: S307
            )
        finally:
            _evaluating.discard(own_ident)

    try:
        return in_time(work, seconds)
    except TimeoutError:
        guard.end()
        raise
