"""
A future never gets its result.
"""

from __future__ import annotations

import threading

from concurrent.futures import ThreadPoolExecutor


def fetch() -> None:
    """
    Do not return.
    """
    print("ready", flush=True)
    threading.Event().wait()


def gather() -> None:
    """
    Wait for a result that never comes.
    """
    ThreadPoolExecutor().submit(fetch).result()


gather()
