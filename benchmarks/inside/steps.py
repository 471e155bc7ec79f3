"""
What does a step of training cost more with something of ours in the job?

Each kind of job has two ranks of its own, which exist all the time; their
blocks of steps take turns, so that all meet the same machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple


PROGRAM = Path(__file__).with_name("step_rank.py")
NOTHING, AGAIN = "nothing", "nothing, again"
SIDE_CAR = "side-car beside it"
# The last kind differs from the first by nothing but chance.
KINDS = (
    NOTHING,
    "recording",
    "recording, requests",
    "watch()",
    SIDE_CAR,
    "armed debugger",
    "all",
    AGAIN,
)
# It looks every two seconds then, five times as often as by default.
FLOOR_S = "8"


class Block(NamedTuple):
    """
    Seconds of one of some steps, and processor seconds of both ranks.
    """

    wall_s: float
    used_s: float


def measure_steps(rounds: int, count: int) -> dict[str, list[Block]]:
    """
    Blocks of each kind of job.

    Args:
        rounds: How many of each.

        count: How many steps a block has.
    """
    taken: dict[str, list[Block]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        jobs = {kind: stack.enter_context(_running(kind)) for kind in KINDS}
        for kind in KINDS:
            _take(jobs[kind], count)  # what is done only once
        for _ in range(rounds):
            for kind in KINDS:
                taken[kind].append(_take(jobs[kind], count))
    return taken


def show_steps(taken: dict[str, list[Block]]) -> None:
    """
    Print medians, with quartiles, and how many times that of nothing it is.
    """
    print(f"{'in the job':22} {'step [us]':>22} {'times':>20} {'cpu [us]':>9}")
    bases = [
        (first.wall_s + last.wall_s) / 2
        for first, last in zip(taken[NOTHING], taken[AGAIN], strict=True)
    ]
    for kind, blocks in taken.items():
        wall = _spread([1e6 * block.wall_s for block in blocks], "6.1f")
        times = _spread(
            [b.wall_s / base for b, base in zip(blocks, bases, strict=True)],
            "5.3f",
        )
        used = 1e6 * statistics.median(block.used_s for block in blocks)
        print(f"{kind:22} {wall:>22} {times:>20} {used:9.1f}")


def _spread(values: list[float], form: str) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:{form}} ({low:{form}}-{high:{form}})"


@contextmanager
def _running(kind: str) -> Iterator[list[subprocess.Popen[str]]]:
    # Short, as it is part of the paths of sockets.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ExitStack() as end:
        ranks = [
            end.enter_context(_rank(kind, rank, folder)) for rank in (0, 1)
        ]
        if kind in {SIDE_CAR, "all"}:
            end.enter_context(_side_car(ranks, folder))
        for rank in ranks:
            _line(rank)
        yield ranks
        for rank in ranks:
            rank.communicate()
            if rank.returncode:
                raise subprocess.CalledProcessError(rank.returncode, rank.args)


def _rank(kind: str, rank: int, folder: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAM, NOTHING if kind == AGAIN else kind, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
    )


@contextmanager
def _side_car(
    ranks: list[subprocess.Popen[str]], folder: str
) -> Iterator[None]:
    who = [word for rank in ranks for word in ("--pid", str(rank.pid))]
    command = [sys.executable, "-m", "distdebug", "watch", "--floor", FLOOR_S]
    with subprocess.Popen(
        [*command, *who, "--output-dir", f"{folder}/hangs"],
        stderr=subprocess.DEVNULL,
    ) as watcher:
        yield
        watcher.terminate()


def _take(ranks: list[subprocess.Popen[str]], count: int) -> Block:
    for rank in ranks:
        print(count, file=rank.stdin, flush=True)
    walls, used = zip(
        *(map(float, _line(x).split()) for x in ranks), strict=True
    )
    return Block(max(walls), sum(used))


def _line(rank: subprocess.Popen[str]) -> str:
    line = rank.stdout.readline() if rank.stdout else ""
    if not line:
        raise subprocess.CalledProcessError(rank.wait(), rank.args)
    return line
