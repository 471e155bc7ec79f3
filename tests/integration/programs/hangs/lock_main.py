"""
The main thread wants a lock that a thread keeps while it sleeps.
"""

from __future__ import annotations

import threading
import time


guard = threading.Lock()
is_held = threading.Event()


def keep() -> None:
    """
    Hold the lock for ever.
    """
    with guard:
        is_held.set()
        time.sleep(3600)


def update() -> None:
    """
    Wait for the lock.
    """
    print("ready", flush=True)
    guard.acquire()


threading.Thread(target=keep, daemon=True).start()
is_held.wait()
update()
