"""
How are many processes looked at side by side, in bounded time?

A thread that reads from a process in uninterruptible sleep may itself wait for
ever in the kernel.  Such a thread is left behind; nobody waits for it, not even
the interpreter at its end.
"""

from __future__ import annotations

import os
import queue
import threading
import time

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

from .tool import stop_tools


__all__ = ["each"]

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_Done: TypeAlias = "queue.SimpleQueue[tuple[int, _Out | BaseException]]"

# Threads only wait for tools.  More tools than processors lengthen the pauses
# of those that stop a process.
_AT_ONCE = max(4, min(16, os.cpu_count() or 1))


def each(
    function: Callable[[_In], _Out],
    items: Iterable[_In],
    *,
    timeout_s: float,
    at_once: int = _AT_ONCE,
    tell: Callable[[int, int], object] = lambda _done, _total: None,
) -> list[_Out | None]:
    """
    Call a function that runs tools for each item.

    If the caller is interrupted, the tools are stopped, not waited for.

    Args:
        function: What to call.

        items: What to call it with.

        timeout_s: After how many seconds to go on without the rest.

        at_once: How many at the same time.

        tell: Called with how many of how many are done.

    Returns:
        The results, in the order of *items*; ``None`` where there is none yet.

    Raises:
        Exception: The first that *function* raised.
    """
    todo: queue.SimpleQueue[tuple[int, _In]] = queue.SimpleQueue()
    for pair in enumerate(items):
        todo.put(pair)
    results: list[_Out | None] = [None] * todo.qsize()
    done: _Done[_Out] = queue.SimpleQueue()
    is_helped = _start(
        partial(_work, function, todo, done), min(at_once, len(results))
    )
    try:
        if not is_helped:
            _work(function, todo, done)
        _gather(done, results, time.monotonic() + timeout_s, tell)
    except BaseException:
        _drain(todo)
        stop_tools()
        raise

    _drain(todo)
    return results


def _start(work: Callable[[], object], number: int) -> bool:
    """
    Start threads; on a node that is full there may be none to be had.
    """
    for count in range(number):
        try:
            threading.Thread(
                target=work, name="distdebug capture", daemon=True
            ).start()
        except RuntimeError:
            return count > 0
    return True


def _work(
    function: Callable[[_In], _Out],
    todo: queue.SimpleQueue[tuple[int, _In]],
    done: _Done[_Out],
) -> None:
    with suppress(queue.Empty):
        while True:
            number, item = todo.get_nowait()
            try:
                done.put((number, function(item)))
            except BaseException as exc:  # noqa: BLE001 is raised elsewhere
                done.put((number, exc))


def _gather(
    done: _Done[_Out],
    results: list[_Out | None],
    deadline: float,
    tell: Callable[[int, int], object],
) -> None:
    for count in range(1, len(results) + 1):
        try:
            left_s = max(deadline - time.monotonic(), 0)
            number, result = done.get(timeout=left_s)
        except queue.Empty:
            return
        if isinstance(result, BaseException):
            raise result
        results[number] = result
        tell(count, len(results))


def _drain(todo: queue.SimpleQueue[tuple[int, _In]]) -> None:
    with suppress(queue.Empty):
        while True:
            todo.get_nowait()
