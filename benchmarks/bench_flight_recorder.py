"""
How long does it take to find the culprit, and how much memory?

Run it as ``python benchmarks/bench_flight_recorder.py --ranks 8 64 256``.  Each
number is measured in a fresh process, on the same files.  What matters are

* reading on one core, against plain unpickling on one core, which is neither
  safe nor does it compare anything;
* reading and analyzing, against torch's own ``torchfrtrace``;
* the slope: how much longer a job takes that has twice the ranks.
"""

from __future__ import annotations

import argparse
import math
import tempfile

from distdebug.testing import SimulatedJob, make_dumps
from measured import best_of, slope


PROGRAMS = {
    "read": """
import numpy
from distdebug.flight_recorder.read import read_dumps
start = time.perf_counter()
dumps = read_dumps(sys.argv[1])
seconds = time.perf_counter() - start
assert len(dumps) == int(sys.argv[2]) and not dumps.problems, dumps.problems
""",
    "read, 1 core": """
import os
import numpy
from distdebug.flight_recorder.read import read_dumps
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
start = time.perf_counter()
dumps = read_dumps(sys.argv[1])
seconds = time.perf_counter() - start
""",
    "read + analyze": """
import numpy
from distdebug import analyze_dumps
start = time.perf_counter()
report = analyze_dumps(sys.argv[1])
seconds = time.perf_counter() - start
assert report.verdict.ranks == (1,), report.verdict
""",
    # Forgets each dump at once: nothing can be faster.
    "pickle": """
import gc, pathlib, pickle
gc.disable()
start = time.perf_counter()
for path in pathlib.Path(sys.argv[1]).iterdir():
    with path.open("rb") as file:
        dump = pickle.load(file)
    del dump
seconds = time.perf_counter() - start
""",
    "torchfrtrace": """
import contextlib, io
from torch.distributed.flight_recorder import fr_trace
start = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    fr_trace.main([sys.argv[1], "-p", "nccl_trace_rank_"])
seconds = time.perf_counter() - start
""",
}

HEADS = (
    "ranks",
    "MB",
    *PROGRAMS,
    "1 core/pickle",
    "frtrace/ours",
    "slope",
    "peak MB",
)


def main() -> None:
    """
    Print a table.
    """
    options = parse_options()
    print(*(f"{head:>14}" for head in HEADS))
    last = None
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            size = write_dumps(folder, ranks, options)
            got = {
                name: best_of(options.repeat, program, folder, ranks)
                for name, program in PROGRAMS.items()
                if name != "torchfrtrace" or ranks <= options.torchfrtrace
            }
        seconds = {name: got[name].seconds for name in got}
        peer = seconds.get("torchfrtrace", math.nan)
        ours = seconds["read + analyze"]
        now = ranks, ours
        print(
            f"{ranks:14}",
            f"{size:14.1f}",
            *(f"{seconds.get(name, math.nan):14.3f}" for name in PROGRAMS),
            f"{seconds['read, 1 core'] / seconds['pickle']:14.2f}",
            f"{peer / ours:14.1f}",
            f"{slope(last, now):14.2f}",
            f"{got['read + analyze'].peak_mb:14.0f}",
            flush=True,
        )
        last = now


def parse_options() -> argparse.Namespace:
    """
    What to measure.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--torchfrtrace",
        type=int,
        default=0,
        metavar="RANKS",
        help="compare with torch's own tool up to so many ranks",
    )
    return parser.parse_args()


def write_dumps(folder: str, ranks: int, options: argparse.Namespace) -> float:
    """
    Write the dumps of a job with tensor parallelism of 8, in which rank 1 is
    stuck.

    Returns:
        Their size in MB.
    """
    job = SimulatedJob(ranks, stack_depth=options.frames)
    rows = [
        job.new_group(range(i, min(i + 8, ranks)), "tp")
        for i in range(0, ranks, 8)
    ]
    for step in range(options.entries // 4):
        job.collective("all_reduce", sizes=[[4096, 256 * (1 + step % 7)]])
        for row in rows:
            part = [[512, 1, 1024]]
            whole = [[512 * len(row.ranks), 1, 1024]]
            for op, sizes, output_sizes in (
                ("_all_gather_base", part, whole),
                ("_reduce_scatter_base", whole, part),
                ("all_reduce", whole, whole),
            ):
                job.collective(op, row, sizes=sizes, output_sizes=output_sizes)

    job.collective("barrier", ranks=[r for r in range(ranks) if r != 1])
    paths = make_dumps(folder, job)
    return sum(path.stat().st_size for path in paths.values()) / 1e6


if __name__ == "__main__":
    main()
