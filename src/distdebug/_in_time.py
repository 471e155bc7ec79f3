"""
Call functions that may never return, with a timeout.

A thread that waits inside the kernel or a driver cannot be ended.  It is
abandoned when its time is over; it does not keep Python from ending.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar


Item = TypeVar("Item")
Answer = TypeVar("Answer")


def in_time(call: Callable[[], Answer], seconds: float) -> Answer:
    """
    Call *call* in a thread of its own and return its result within *seconds*.

    Raises:
        TimeoutError: It did not return in time, or no thread could be started.

        Exception: Whatever *call* raised.
    """
    future: Future[Answer] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 it is raised again
            future.set_exception(error)

    if not _started(work):
        msg = "no thread can be had"
        raise TimeoutError(msg)

    return future.result(seconds)


def answers_in_time(
    ask: Callable[[Item], Answer],
    items: Iterable[Item],
    deadline: float,
    *,
    threads: int = 32,
) -> Iterator[tuple[Item, Answer]]:
    """
    Call *ask* for many items in parallel, and leave out those that are late.

    Args:
        ask: Called with one item.  It may hang: its thread is abandoned then.

        items: What to call it with.

        deadline: When to stop, on the monotonic clock.

        threads: How many calls run at a time.

    Yields:
        An item and its result, in the order in which they arrive.  Items that
        are late, or for which *ask* raises, are left out; all of them are if no
        thread can be started.
    """
    todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Item, list[Answer]]] = queue.SimpleQueue()
    count = 0
    for item in items:
        todo.put(item)
        count += 1
    work = partial(_work, ask, todo, done, deadline)
    # As many threads as the node allows.
    is_asked = [_started(work) for _ in range(min(threads, count))]

    for _ in range(count if any(is_asked) else 0):
        left = max(deadline - time.monotonic(), 0.0)
        try:
            item, answers = done.get(timeout=left)
        except queue.Empty:
            return
        for answer in answers:
            yield item, answer


def _started(work: Callable[[], object]) -> bool:
    try:
        threading.Thread(target=work, name="distdebug", daemon=True).start()
    except RuntimeError:  # the node, or the process, may have no more
        return False

    return True


def _work(
    ask: Callable[[Item], Answer],
    todo: queue.SimpleQueue[Item],
    done: queue.SimpleQueue[tuple[Item, list[Answer]]],
    deadline: float,
) -> None:
    while time.monotonic() < deadline:
        try:
            item = todo.get_nowait()
        except queue.Empty:
            return
        answers: list[Answer] = []
        with contextlib.suppress(Exception):
            answers.append(ask(item))
        done.put((item, answers))
