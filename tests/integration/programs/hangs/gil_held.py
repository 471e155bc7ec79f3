"""
Native code in a thread waits without giving up the interpreter lock.
"""

from __future__ import annotations

import ctypes
import threading


def call_driver() -> None:
    """
    Call a function that never returns, and keep the lock.
    """
    print("ready", flush=True)
    ctypes.PyDLL(None).pause()


def train() -> None:
    """
    Be kept from going on.
    """
    total = 0
    while True:
        total += 1


threading.Thread(target=call_driver, daemon=True).start()
train()
