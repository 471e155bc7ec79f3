"""
A file that is opened has nobody at its other end.
"""

from __future__ import annotations

import os
import sys

from pathlib import Path


def load_shard(path: Path) -> bytes:
    """
    Read what never comes.
    """
    print("ready", flush=True)
    return path.read_bytes()


pipe = Path(sys.argv[1]) / "shard"
os.mkfifo(pipe)
load_shard(pipe)
