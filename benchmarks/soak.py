"""
Does a healthy job stay as it is while it is recorded, watched, and debugged?

Run it as ``python benchmarks/soak.py --minutes 30``.  Four ranks under torchrun
train with a data loader whose workers are forked anew for each epoch; each rank
is recorded, watches itself, and is armed.  Each minute a snapshot is taken, and
every few seconds a client of the debugger lists the ranks, evaluates an
expression, reads stacks, and stops all of them for one command.

What each rank has after its epochs is compared between the first third of the
time and the last.  The exit status is 1 if a limit is not kept.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from inside.soak_job import (
    Job,
    epochs,
    left_files,
    take_snapshot,
    visit,
)


SNAPSHOT_EACH_S = 60.0
VISIT_EACH_S = 7.0
BEAT_S = 0.5
START_S = 120.0

# What a rank may have more in the last third of the time than in the first.
MOST_MB = 4.0
MOST_TIMES = 1.25
# Somebody may just be looking at it.
MOST_MORE = 1
# In a shorter run, buffers are not full in its first third (which took nearly
# three minutes, and 13 MB), and chance decides how long a step takes.
LEAST_MINUTES = 10.0
# Each rank keeps ten dumps, with a side-car each, and a few files more.
MOST_DUMPS = 25

Epochs = list[dict[str, float]]


class Check(NamedTuple):
    """
    What was found, and what may be at most.
    """

    what: str
    found: float
    most: float


def main() -> int:
    """
    Print what was found; 1 if a limit is not kept.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100, help="of an epoch")
    arguments = parser.parse_args()
    minutes = arguments.minutes
    # Short, as it is part of the paths of sockets.
    folder = Path(tempfile.mkdtemp(prefix="soak", dir="/tmp"))
    print(f"everything is written to {folder}", flush=True)
    with Job(folder, arguments.ranks, arguments.steps) as job:
        wait_until(lambda: len(epochs(folder)) == job.ranks, job)
        snapshots, visits = bother(job, 60 * minutes)
        status = job.end()
    ranks = epochs(folder)
    show_ranks(ranks)
    show("snapshots", (f"{verdict}" for _, verdict in snapshots))
    show("visits", visits)
    checks = [
        Check("exit status of the job", status, 0),
        Check(
            "ranks without an epoch per third", job.ranks - lively(ranks), 0
        ),
        *checks_of_ranks(ranks, is_long=minutes >= LEAST_MINUTES),
        *checks_of_job(job),
        Check(
            "snapshots that fail",
            sum(not is_fine for is_fine, _ in snapshots),
            0,
        ),
        Check("visits that fail", sum(v != "well" for v in visits), 0),
    ]
    return conclude(checks, folder)


def wait_until(condition: Callable[[], object], job: Job) -> None:
    """
    Wait for something of the job.
    """
    end = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > end or job.process.poll() is not None:
            raise TimeoutError(job.log())
        time.sleep(BEAT_S)


def bother(
    job: Job, seconds: float
) -> tuple[list[tuple[bool, str]], list[str]]:
    """
    Take snapshots, and visit the ranks, for so long.
    """
    snapshots: list[tuple[bool, str]] = []
    visits: list[str] = []
    begin = time.monotonic()
    while (now := time.monotonic() - begin) < seconds:
        # The first one comes early, so that a short run has one.
        if now >= SNAPSHOT_EACH_S * len(snapshots):
            snapshots.append(take_snapshot(job.folder, len(snapshots)))
        visits.append(visit(job))
        time.sleep(min(VISIT_EACH_S, max(0.0, begin + seconds - now)))
    return snapshots, visits


def lively(ranks: list[Epochs]) -> int:
    """
    How many ranks have enough epochs to be compared.
    """
    return sum(len(each) >= 3 for each in ranks)


def change(each: Epochs, key: str) -> tuple[float, float]:
    """
    The median of something in the first third of the time, and in the last.
    """
    begin, end = each[0]["at"], each[-1]["at"]
    third = (end - begin) / 3
    first = [e[key] for e in each if e["at"] <= begin + third]
    last = [e[key] for e in each if e["at"] >= end - third]
    return statistics.median(first), statistics.median(last)


def checks_of_ranks(ranks: list[Epochs], *, is_long: bool) -> list[Check]:
    """
    What may not grow; of the rank where it grew most.
    """
    more = {
        key: max(last - first for first, last in of_all(ranks, key))
        for key in ("rss_mb", "fds", "threads")
    }
    times = {
        key: max(last / first for first, last in of_all(ranks, key))
        for key in ("used_s", "step_s")
    }
    counts = [
        Check("more open files", more["fds"], MOST_MORE),
        Check("more threads", more["threads"], MOST_MORE),
        Check(
            "imports by our threads", max(x[-1]["loaded"] for x in ranks), 0
        ),
    ]
    amounts = [
        Check("more memory [MB]", more["rss_mb"], MOST_MB),
        Check("time of a step, times", times["step_s"], MOST_TIMES),
        Check("processor time of a step, times", times["used_s"], MOST_TIMES),
    ]
    return [*counts, *(amounts if is_long else ())]


def of_all(ranks: list[Epochs], key: str) -> list[tuple[float, float]]:
    """
    How something was in the first third and in the last, of each rank.
    """
    return [change(each, key) for each in ranks]


def checks_of_job(job: Job) -> list[Check]:
    """
    What may not be left, and not be told.
    """
    show("not well", sorted(job.unwell))
    files = left_files(job)
    show("left behind", files)
    dumps = len(list((job.folder / "dumps").iterdir()))
    hangs = list((job.folder / "hangs").glob("*"))
    told = [x for x in job.log().splitlines() if is_complaint(x)]
    show("told", told)
    return [
        Check("processes stopped, traced, or zombies", len(job.unwell), 0),
        Check("processes left", len(job.left()), 0),
        Check("files left", len(files), 0),
        Check("files of dumps", dumps, MOST_DUMPS * job.ranks),
        Check("false alarms", len(hangs), 0),
        Check("lines in the log about us", len(told), 0),
    ]


def is_complaint(line: str) -> bool:
    """
    Whether a line of the log is ours, and not about a stop that was asked for.
    """
    return "distdebug" in line and "stopped (interrupt)" not in line


def show(what: str, lines: Iterable[str]) -> None:
    """
    Print how often each line is there.
    """
    for line, count in Counter(lines).most_common():
        print(f"{what}: {count} x {line}")


def show_ranks(ranks: list[Epochs]) -> None:
    """
    Print what each rank had in the first third, and in the last.
    """
    units = {"rss_mb": 1, "fds": 1, "threads": 1, "used_s": 1e3, "step_s": 1e3}
    names = ("memory [MB]", "files", "threads", "processor [ms]", "step [ms]")
    print(f"{'rank':>4} {'epochs':>6}", *(f"{name:>17}" for name in names))
    for rank, each in enumerate(ranks):
        cells = []
        for key, unit in units.items():
            first, last = change(each, key)
            cells.append(f"{unit * first:8.2f} {unit * last:8.2f}")
        print(f"{rank:>4} {len(each):>6}", *cells)


def conclude(checks: list[Check], folder: Path) -> int:
    """
    Print all checks; the exit status.
    """
    for check in checks:
        is_kept = check.found <= check.most
        print(
            f"{'ok' if is_kept else 'FAILED':6} {check.what:40} "
            f"{check.found:8.2f} (at most {check.most:g})"
        )
    if any(check.found > check.most for check in checks):
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
