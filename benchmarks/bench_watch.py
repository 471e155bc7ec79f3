"""
What does a training loop pay for watching itself?

Run it as ``python benchmarks/bench_watch.py``.  Steps with a watch and without
one are interleaved in one process, so that both meet the same machine; the
watch looks ten times as often as it does by default.  The processor time of a look is taken from many of them in a process that sleeps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

import distdebug


DEFAULT_POLL_S = 10.0
SHORT_POLL_S = 1.0
FAST_POLL_S = 0.05
# The first and the last kind differ by nothing but noise.
KINDS = ("without a watch", "with a watch", "without one, again")


def main() -> None:
    """
    Print a table.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--block-s", type=float, default=2.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        distdebug.enable_flight_recorder(dump_dir=folder)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        look_s = cost_of_look(Path(folder))
        taken = steps(Path(folder), arguments)
        dist.destroy_process_group()

    show_steps(taken)
    print(f"{'watch.step()':34} {1e9 * cost_of_beat():10.2f} ns")
    print(f"{'one look':34} {1e6 * look_s:10.2f} us of processor time")
    share = look_s / DEFAULT_POLL_S
    print(f"{'of a core, one look every 10 s':34} {share:10.5%}")


def show_steps(taken: dict[str, list[float]]) -> None:
    """
    Print the median of each kind of step, beside that of the first kind.
    """
    first = statistics.median(taken[KINDS[0]])
    for kind in KINDS:
        median = statistics.median(taken[kind])
        more = median / first - 1
        print(f"{f'step {kind}':34} {1e6 * median:10.2f} us ({more:+.2%})")


def steps(
    folder: Path, arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """
    Seconds of a step of each kind, by block; the kinds take turns.
    """
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(len(KINDS) * arguments.blocks):
        kind = KINDS[number % len(KINDS)]
        is_watched = kind == "with a watch"
        taken[kind].append(
            block(folder, arguments.block_s, is_watched=is_watched)
        )
    return taken


def block(folder: Path, seconds: float, *, is_watched: bool) -> float:
    """
    Seconds of a step, in one block of them.
    """
    watch = (
        distdebug.watch(output_dir=folder / "hangs", poll_s=SHORT_POLL_S)
        if is_watched
        else nullcontext()
    )
    matrix, count = torch.ones(96, 96), 0
    with watch as watcher:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            matrix = (matrix @ matrix).clamp(0, 1)
            dist.all_reduce(matrix)
            if watcher is not None:
                watcher.step()
            count += 1
        return (time.perf_counter() - begin) / count


def cost_of_look(folder: Path) -> float:
    """
    Processor seconds of one look at what moves.
    """
    seconds = 10.0
    dist.all_reduce(torch.ones(1))
    with distdebug.watch(output_dir=folder / "hangs", poll_s=FAST_POLL_S):
        begin = time.process_time()
        time.sleep(seconds)
        used = time.process_time() - begin
    return used / (seconds / FAST_POLL_S)


def cost_of_beat() -> float:
    """
    Seconds of one heartbeat.
    """
    count = 1_000_000
    with distdebug.watch(output_dir="unused") as watch:
        begin = time.perf_counter()
        for _ in range(count):
            watch.step()
        return (time.perf_counter() - begin) / count


if __name__ == "__main__":
    main()
