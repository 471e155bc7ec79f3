"""
Does a process grow in very many steps?
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from pathlib import Path

import numpy as np


PROGRAM = Path(__file__).with_name("growth_rank.py")
KEYS = ("rss_mb", "fds", "threads", "files")


def measure_growth(steps: int) -> list[dict[str, float]]:
    """
    What a process has at some points on its way.
    """
    # Short, as it is part of the path of a socket.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        printed = subprocess.check_output(
            [sys.executable, PROGRAM, str(steps), folder],
            text=True,
            env={**os.environ, "TMPDIR": folder},
        )
    return [json.loads(line) for line in printed.splitlines()]


def show_growth(points: list[dict[str, float]]) -> None:
    """
    Print it, and how much more of each a million steps add.
    """
    print(
        f"{'steps':>22} {'memory [MB]':>12} {'open':>8} {'threads':>8} "
        f"{'on disk':>8} {'step [us]':>10}"
    )
    for point in points:
        cells = " ".join(f"{point[key]:8.0f}" for key in KEYS[1:])
        print(
            f"{point['steps']:22,.0f} {point['rss_mb']:12.2f} {cells} "
            f"{1e6 * point['step_s']:10.1f}"
        )
    # The first point still has to do with the start.
    later = points[1:]
    millions = [point["steps"] / 1e6 for point in later]
    slopes = [
        np.polyfit(millions, [point[key] for point in later], 1)[0]
        for key in KEYS
    ]
    cells = " ".join(f"{slope:+8.2f}" for slope in slopes[1:])
    print(f"{'more, each million':22} {slopes[0]:+12.2f} {cells}")
