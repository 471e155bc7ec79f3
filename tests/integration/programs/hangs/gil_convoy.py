"""
A thread computes all the time, and the main thread hardly gets to run.
"""

from __future__ import annotations

import os
import threading


def augment() -> None:
    """
    Never let go for long.
    """
    total = 0
    while True:
        total += 1


def train() -> None:
    """
    Do something short, which needs the lock again, for ever.
    """
    print("ready", flush=True)
    while True:
        os.stat("/")
        os.sched_yield()


threading.Thread(target=augment, daemon=True).start()
train()
