"""
How long does a program take, and how much memory, in a process of its own?

What it measures is up to the program: it sets ``seconds``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading

from contextlib import suppress
from typing import NamedTuple

import psutil


__all__ = ["Measured", "best_of", "measure", "slope"]

_HEADER = "import json, sys, time\n"
_FOOTER = """
import pathlib, re, resource
used = [resource.getrusage(who) for who in (
    resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
cpu_s = sum(u.ru_utime + u.ru_stime for u in used)
# The peak that getrusage() knows is inherited from the parent process.
status = pathlib.Path("/proc/self/status")
text = status.read_text() if status.exists() else "VmHWM: 0"
peak = int(re.search(r"VmHWM:\\s+(\\d+)", text)[1]) / 1024
print(json.dumps([seconds, peak, cpu_s]), file=sys.__stdout__)
"""
_SAMPLE_S = 0.05


class Measured(NamedTuple):
    """
    What a program took.

    Attributes:
        seconds: What it says itself.

        peak_mb: The most memory of its own process.

        cpu_s: The seconds of processors that it and its children used, from
            the start of Python on.

        tree_mb: The most memory of it and all of its children at once, as far
            as samples tell; what they share counts for each.
    """

    seconds: float
    peak_mb: float
    cpu_s: float = math.nan
    tree_mb: float = math.nan


def best_of(repeat: int, program: str, *arguments: object) -> Measured:
    """
    The shortest of several runs.
    """
    return min(measure(program, *arguments) for _ in range(repeat))


def measure(program: str, *arguments: object) -> Measured:
    """
    Run a program in a fresh process.

    Args:
        program: Python code; it sets ``seconds``, and finds *arguments* in
            ``sys.argv`` and ``json``, ``sys``, and ``time`` imported.

        arguments: What it gets, as texts.
    """
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _HEADER + program + _FOOTER,
            *map(str, arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    samples: list[float] = []
    done = threading.Event()
    sampler = threading.Thread(
        target=_sample, args=(process.pid, samples, done)
    )
    sampler.start()
    output, complaints = process.communicate()
    done.set()
    sampler.join()
    if process.returncode:
        sys.exit(f"{program}\n{complaints}")

    seconds, peak, cpu_s = json.loads(output.splitlines()[-1])
    return Measured(seconds, peak, cpu_s, max([peak, *samples]))


def slope(
    before: tuple[float, float] | None, now: tuple[float, float]
) -> float:
    """
    The exponent by which a figure grows: 1 if it doubles with the size.

    Args:
        before: A size, and the figure there.

        now: Another size, and the figure there.
    """
    if before is None:
        return math.nan
    return math.log(now[1] / before[1]) / math.log(now[0] / before[0])


def _sample(pid: int, samples: list[float], done: threading.Event) -> None:
    while not done.wait(_SAMPLE_S):
        with suppress(psutil.Error):
            parent = psutil.Process(pid)
            tree = [parent, *parent.children(recursive=True)]
            samples.append(sum(map(_resident, tree)) / (1 << 20))


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended
        return 0
