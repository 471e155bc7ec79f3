"""
How are many nodes asked at the same time?
"""

from __future__ import annotations

import threading
import time

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from .model import Arrival, Ended


__all__ = ["side_by_side"]

P = TypeVar("P")


def side_by_side(
    ask: Callable[[P], Ended],
    places: Mapping[str, P],
    *,
    at_once: int,
    stop: threading.Event,
) -> Iterator[Arrival]:
    """
    What does each node answer, as they come?

    Args:
        ask: What asks one node.

        places: What tells it which, by the name of the node.

        at_once: How many nodes are asked at the same time.

        stop: Set when nobody wants more answers; *ask* ends soon, then.

    Yields:
        One answer per node.
    """

    def arrival(host: str) -> Arrival:
        begin = time.monotonic()
        ended = ask(places[host])
        return Arrival(host, ended, len(places), time.monotonic() - begin)

    with ThreadPoolExecutor(max(1, min(at_once, len(places)))) as pool:
        try:
            waiting = [pool.submit(arrival, host) for host in places]
            for future in as_completed(waiting):
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
