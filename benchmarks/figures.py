"""
Measure every figure of ``docs/explanation/evidence.md`` anew.

Run it as ``nox -s bench -- --all``, or for some of them as ``nox -s bench --
--all scale logs``.  Each measurement is a program of its own; what it prints is
kept in ``docs/explanation/figures``, under its command and a line that says
when, of which commit, and on what machine.  The page includes these files, so
that no figure is copied by hand.  Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import psutil


ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "explanation" / "figures"
TODAY = time.strftime("%Y-%m-%d")
# Nobody has seen its jobs before the day.
SEED = TODAY.replace("-", "")


class Figure(NamedTuple):
    """
    A measurement.

    Attributes:
        command: What is run in the root of the repository.

        limit_min: Minutes after which it is given up.

        worst: The highest exit status of one that is kept; 1 where that says
            that some verdicts were wrong.
    """

    command: str
    limit_min: float
    worst: int = 0


_BENCH = "python benchmarks"
RUNS = {
    "reading": Figure(
        f"{_BENCH}/bench_flight_recorder.py --ranks 8 64 256 1024 "
        "--torchfrtrace 256",
        20,
    ),
    "scale": Figure(
        f"{_BENCH}/bench_scale.py --ranks 1024 4096 16384 "
        "--steps diagnose report",
        30,
    ),
    "uneven": Figure(f"{_BENCH}/bench_scale.py --ranks 128 256 --uneven", 10),
    "scale_peers": Figure(
        f"{_BENCH}/bench_scale.py --ranks 256 1024 --torchfrtrace 1024 --ray",
        15,
    ),
    "inside": Figure(f"{_BENCH}/bench_inside.py", 30),
    "capture": Figure(f"{_BENCH}/bench_capture.py --workers 8 32 128", 15),
    "stacks": Figure(
        f"{_BENCH}/bench_stacks.py --ranks 1024 4096 10000 16384", 15
    ),
    "small": Figure(f"{_BENCH}/bench_small.py", 5),
    "signals": Figure(f"{_BENCH}/ask_often.py --seconds 60", 5),
    "logs": Figure(f"{_BENCH}/bench_logs.py --mb 128 1024", 15),
    "ray": Figure(f"{_BENCH}/bench_ray.py", 15),
    "debugger": Figure(f"{_BENCH}/bench_debugger.py", 15),
    "report": Figure(f"{_BENCH}/bench_report.py", 20),
    "timeline": Figure(f"{_BENCH}/bench_timeline.py --ranks 32 128 512", 15),
    "soak": Figure(f"{_BENCH}/soak.py --minutes 10", 15),
    "slow_ranks": Figure(f"python -m tests.delays --seed {SEED}", 30, worst=1),
    "slow_ranks_1024": Figure(
        f"python -m tests.delays --ranks 1024 --cases 13 --seed {SEED}",
        30,
        worst=1,
    ),
    "programs": Figure(
        f"python -m tests.schedules --ranks 16 --seed {SEED}", 30, worst=1
    ),
    "programs_64": Figure(
        f"python -m tests.schedules --ranks 64 --seed {SEED}", 30, worst=1
    ),
    "programs_1024": Figure(
        f"python -m tests.schedules --ranks 1024 --cases 13 --seed {SEED}",
        30,
        worst=1,
    ),
}


def main() -> int:
    """
    Measure, and return 1 if something could not be.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "only", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}"
    )
    only = parser.parse_args().only or list(RUNS)
    if unknown := set(only) - set(RUNS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    failed = [name for name in only if not measure(name, RUNS[name])]
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def measure(name: str, figure: Figure) -> bool:
    """
    Keep what a measurement prints; what it printed before is kept if it fails.
    """
    print(f"{name}: {figure.command}", file=sys.stderr)
    begun = time.monotonic()
    argv = shlex.split(figure.command)
    with subprocess.Popen(
        [sys.executable, *argv[1:]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            printed, _ = running.communicate(timeout=60 * figure.limit_min)
        except subprocess.TimeoutExpired:
            print(f"{name} took over {figure.limit_min} min", file=sys.stderr)
            return False
        finally:
            # What it started would slow down the next one.
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    if not 0 <= running.returncode <= figure.worst:
        print(f"{name} ended with {running.returncode}", file=sys.stderr)
        return False
    minutes = (time.monotonic() - begun) / 60
    lines = (line.rstrip() for line in printed.splitlines())
    text = "\n".join(
        (f"$ {figure.command}", f"# {circumstances(minutes)}", *lines)
    )
    FIGURES.mkdir(exist_ok=True)
    # Where something lay is of no use to anybody.
    text = re.sub(r"/tmp/\S+", "…", text)
    (FIGURES / f"{name}.txt").write_text(f"{text.strip()}\n")
    return True


def circumstances(minutes: float) -> str:
    """
    Return when, of which version, and on what machine something was measured.
    """
    argv = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    memory = psutil.virtual_memory().total / (1 << 30)
    return ", ".join(
        (
            TODAY,
            f"commit {commit}",
            f"Python {platform.python_version()}",
            f"torch {_version('torch')}",
            f"{os.cpu_count()} processors ({_model()})",
            f"{memory:.0f} GiB",
            f"{minutes:.1f} min",
        )
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _model() -> str:
    cpus = Path("/proc/cpuinfo")
    text = cpus.read_text() if cpus.exists() else ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found[1] if found else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
