"""
What does a call return, if it returns in time?

A thread that waits inside the kernel or a driver cannot be ended.  So it is
left behind when its time is over; it does not keep Python from ending.
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
    Call something that may never return.

    Args:
        call: What to call, in a thread of its own.

        seconds: How long it may take.

    Returns:
        What it returned.

    Raises:
        TimeoutError: It did not return in time, or no thread can be had.

        Exception: Whatever it raised.
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
    Ask many at once, and do not wait for who comes too late.

    Args:
        ask: Asks one.  It may hang: its thread is left behind then, and does
            not keep the process from ending.

        items: Whom to ask.

        deadline: When to stop, on the monotonic clock.

        threads: How many to ask at a time.

    Yields:
        Who was asked, and the answer, as they come.  Those whose answer comes
        too late, or for whom *ask* raises an exception, are left out; so are
        all if no thread can be had.
    """
    todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Item, list[Answer]]] = queue.SimpleQueue()
    count = 0
    for item in items:
        todo.put(item)
        count += 1
    work = partial(_work, ask, todo, done, deadline)
    # As many as can be had.
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
