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
    zeros = os.open("/dev/zero", os.O_RDONLY)
    print("ready", flush=True)
    while True:
        os.read(zeros, 1)


threading.Thread(target=augment, daemon=True).start()
train()
