"""
Native code in the main thread waits without giving up the interpreter lock.
"""

from __future__ import annotations

import ctypes
import threading


def report() -> None:
    """
    Want to run now and then.
    """
    pause = threading.Event()
    while True:
        pause.wait(0.05)


def close_communicator() -> None:
    """
    Call a function that never returns, and keep the lock.
    """
    print("ready", flush=True)
    ctypes.PyDLL(None).pause()


threading.Thread(target=report, daemon=True).start()
close_communicator()
