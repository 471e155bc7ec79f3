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
    "torch's default",
    "recording",
    "recording, requests",
    "watch()",
    SIDE_CAR,
    "armed debugger",
    "all",
    AGAIN,
)
# Between two of its blocks a job stands still, which is no hang.
FLOOR_S = "600"


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
    Print medians with quartiles, and how many times that of nothing they are.

    In the best tenth of the blocks, others on the machine count least.
    """
    heads = ("step [us]", "times", "best tenth, times")
    print(f"{'':31} {heads[0]:>22} {heads[1]:>20} {heads[2]:>18}")
    for what, field in (("", "wall_s"), ("processor: ", "used_s")):
        values = {
            kind: [getattr(block, field) for block in blocks]
            for kind, blocks in taken.items()
        }
        bases = [
            (first + last) / 2
            for first, last in zip(values[NOTHING], values[AGAIN], strict=True)
        ]
        for kind, each in values.items():
            step = _spread([1e6 * value for value in each], "6.1f")
            ratios = [x / y for x, y in zip(each, bases, strict=True)]
            best = _best(each) / _best(values[NOTHING] + values[AGAIN])
            print(
                f"{what + kind:31} {step:>22} "
                f"{_spread(ratios, '5.3f'):>20} {best:18.3f}"
            )


def _spread(values: list[float], form: str) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:{form}} ({low:{form}}-{high:{form}})"


def _best(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[0]


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
