"""
A process asks again and again for a file that never comes.
"""

from __future__ import annotations

import time

from pathlib import Path


def wait_for_flag(path: Path) -> None:
    """
    Look for a file ten times a second.
    """
    print("ready", flush=True)
    while not path.exists():
        time.sleep(0.1)


wait_for_flag(Path("/nowhere/flag"))
