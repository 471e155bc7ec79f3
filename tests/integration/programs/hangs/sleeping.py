"""
A process sleeps, as it was told.
"""

from __future__ import annotations

import time


def back_off() -> None:
    """
    Sleep for an hour.
    """
    print("ready", flush=True)
    time.sleep(3600)


back_off()
