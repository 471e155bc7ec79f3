"""
How much processor time does a small use of the command line take, in all?

Run it as ``python benchmarks/bench_small.py``.  It starts whole processes, since
loading modules is most of what a small job costs; Python alone, and with numpy,
are the floor.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile

from collections.abc import Sequence
from pathlib import Path

from distdebug.testing import SimulatedJob, make_dumps


def main() -> None:
    """
    Print the median and the least of several runs.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=10)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as folder:
        write_dumps(Path(folder))
        commands = {
            "python": ("-c", "pass"),
            "python with numpy": ("-c", "import numpy"),
            "--help": ("-m", "distdebug", "--help"),
            "diagnose of 4 dumps": ("-m", "distdebug", "diagnose", folder),
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        # In turns, so that what else the machine does counts for all.
        for _ in range(repeat):
            for name, arguments in commands.items():
                seconds[name].append(processor_seconds(arguments))
    print(f"{'command':<20}  {'median':>7}  {'least':>7}")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        print(f"{name:<20}  {median:5.3f} s  {min(taken):5.3f} s")


def write_dumps(folder: Path) -> None:
    """
    Write the dumps of four ranks, one of which is missing in the last call.
    """
    job = SimulatedJob(4)
    for _ in range(30):
        job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1, 3])
    make_dumps(folder, job)


def processor_seconds(arguments: Sequence[str]) -> float:
    """
    Return what Python and all that it starts use, in user and system mode.
    """
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Installed packages are compiled.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    before = _children_seconds()
    subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        check=False,
        env=environ,
    )
    return _children_seconds() - before


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
