"""
A read from an open file does not come back.
"""

from __future__ import annotations

import os


def next_record(descriptor: int) -> bytes:
    """
    Read what never comes.
    """
    print("ready", flush=True)
    return os.read(descriptor, 4096)


read_end, write_end = os.pipe()
next_record(read_end)
