"""
How is something asked about many processes, when one of them may never answer?

The kernel locks the memory of a process while it reads its command line,
environment, or maps.  If the process hangs in the kernel with that lock held,
whoever asks hangs too; that is why ``ps`` hangs on such nodes.
"""

from __future__ import annotations

import threading

from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import TypeVar


__all__ = ["ask_each"]

Answer = TypeVar("Answer")

# So many processes that never answer, and the rest are not asked.
_MOST_STUCK = 16


def ask_each(
    pids: Iterable[int],
    ask: Callable[[int], Answer],
    *,
    patience_s: float = 1.0,
) -> dict[int, Answer]:
    """
    Ask something about each process, and go on if one does not answer.

    Args:
        pids: The processes.

        ask: What to ask; it must not raise.

        patience_s: How long to wait for one answer, in seconds.

    Returns:
        The answers there are.  A thread stays behind for each that is not
        there; it ends when the kernel lets it go, or with this process.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    for pid in pids:
        waiting.put(pid)

    answers: dict[int, Answer] = {}
    for _ in range(_MOST_STUCK):
        if _ask_all(waiting, ask, answers, patience_s):
            break
    return dict(answers)


def _ask_all(
    waiting: SimpleQueue[int],
    ask: Callable[[int], Answer],
    answers: dict[int, Answer],
    patience_s: float,
) -> bool:
    """
    Whether the queue was worked off; if not, the first left in it is next.
    """
    given_up = threading.Event()

    def work() -> None:
        while not given_up.is_set():
            try:
                pid = waiting.get_nowait()
            except Empty:
                return
            answers[pid] = ask(pid)

    thread = threading.Thread(target=work, daemon=True, name="distdebug-ask")
    try:
        thread.start()
    except RuntimeError:  # no more can be had; an answer is worth the risk
        work()
        return True

    while True:
        before = len(answers)
        thread.join(patience_s)
        if not thread.is_alive():
            return True
        if len(answers) == before:
            given_up.set()
            return False
