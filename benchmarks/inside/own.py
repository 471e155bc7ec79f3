"""
What does this process have right now, as the kernel tells?
"""

from __future__ import annotations

import os

from pathlib import Path


def resources() -> dict[str, float]:
    """
    Memory in megabytes, open files, and threads.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_mb": pages * os.sysconf("SC_PAGESIZE") / 1e6,
        # Looking opens one.
        "fds": len(list(Path("/proc/self/fd").iterdir())) - 1,
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }
