"""
Two threads take two locks, each in its own order.
"""

from __future__ import annotations

import threading


first, second = threading.Lock(), threading.Lock()
both_hold_one = threading.Barrier(3)


def pay() -> None:
    """
    Take the first lock, then the second.
    """
    with first:
        both_hold_one.wait()
        with second:
            raise AssertionError


def refund() -> None:
    """
    Take the second lock, then the first.
    """
    with second:
        both_hold_one.wait()
        with first:
            raise AssertionError


threads = [threading.Thread(target=f) for f in (pay, refund)]
for thread in threads:
    thread.start()
both_hold_one.wait()
print("ready", flush=True)
threads[0].join()
