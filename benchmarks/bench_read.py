"""
How long does it take to read the dumps of a job, and how much memory?

Run it as ``python benchmarks/bench_read.py --ranks 8 64 256``.  Each number is
measured in a fresh process.  What matters are the ratio to plain unpickling
of the same files on one core, which is neither safe nor does it compare
anything, and the slope: twice the ranks should take twice the time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from distdebug.testing import SimulatedJob, make_dumps


PROGRAMS = {
    "ours": """
import sys, time
import numpy
from distdebug.flight_recorder.read import read_dumps
start = time.perf_counter()
dumps = read_dumps(sys.argv[1])
seconds = time.perf_counter() - start
assert len(dumps) == int(sys.argv[2]) and not dumps.problems, dumps.problems
""",
    "ours, 1 core": """
import os, sys, time
import numpy
from distdebug.flight_recorder.read import read_dumps
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
start = time.perf_counter()
dumps = read_dumps(sys.argv[1])
seconds = time.perf_counter() - start
""",
    # Forgets each dump at once: nothing can be faster.
    "pickle": """
import gc, pathlib, pickle, sys, time
gc.disable()
start = time.perf_counter()
for path in pathlib.Path(sys.argv[1]).iterdir():
    with path.open("rb") as file:
        dump = pickle.load(file)
    del dump
seconds = time.perf_counter() - start
""",
    "torchfrtrace": """
import contextlib, io, sys, time
from torch.distributed.flight_recorder import fr_trace
start = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    fr_trace.main([sys.argv[1], "-p", "nccl_trace_rank_"])
seconds = time.perf_counter() - start
""",
}

FOOTER = """
import json, pathlib, re
# The peak that getrusage() knows is inherited from the parent process.
status = pathlib.Path("/proc/self/status")
text = status.read_text() if status.exists() else "VmHWM: 0"
peak = int(re.search(r"VmHWM:\\s+(\\d+)", text)[1]) / 1024
print(json.dumps([seconds, peak]), file=sys.__stdout__)
"""


def main() -> None:
    """
    Print a table.
    """
    options = parse_options()
    names = [
        name
        for name in PROGRAMS
        if name != "torchfrtrace" or options.torchfrtrace
    ]
    heads = [f"{name} [s]" for name in names]
    print(" ranks   [MB]", *(f"{h:>16}" for h in heads), "  ratio  peak [MB]")
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            size = write_dumps(folder, ranks, options)
            got = {
                name: measure(name, folder, ranks, options.repeat)
                for name in names
                if name != "torchfrtrace" or ranks <= options.torchfrtrace
            }
        cells = [
            f"{got.get(name, (float('nan'),))[0]:16.3f}" for name in names
        ]
        ratio = got["ours, 1 core"][0] / got["pickle"][0]
        peak = got["ours"][1]
        print(f"{ranks:6} {size:6.1f}", *cells, f"{ratio:7.2f} {peak:10.0f}")


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
    Write the dumps of a healthy job with tensor parallelism of 8.

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

    paths = make_dumps(folder, job)
    return sum(path.stat().st_size for path in paths.values()) / 1e6


def measure(
    name: str, folder: str, ranks: int, repeat: int
) -> tuple[float, float]:
    """
    The best time in seconds, and its peak memory in MB.
    """
    runs = []
    for _ in range(repeat):
        output = subprocess.run(
            [
                sys.executable,
                "-c",
                PROGRAMS[name] + FOOTER,
                folder,
                str(ranks),
            ],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        runs.append(tuple(json.loads(output)))

    return min(runs)


if __name__ == "__main__":
    main()
