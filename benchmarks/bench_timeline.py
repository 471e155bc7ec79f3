"""
How long does it take to draw a timeline, and how much memory?

Run it as ``python benchmarks/bench_timeline.py --ranks 64 256 1024``.  Each
number is measured in a fresh process, on the same dumps, in seconds of the
processor.  What matters are

* writing, against ``json.dumps`` of the very same events through gzip, which
  needs all of them in memory and works out nothing;
* the slope: how much longer a job takes that has twice the ranks;
* how much memory it takes beyond the dumps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from pathlib import Path

from distdebug.testing import SimulatedJob, make_dumps
from measured import slope


PROGRAMS = {
    "timeline": """
import sys, time
from distdebug import analyze_dumps, read_dumps, write_timeline
report = analyze_dumps(read_dumps(sys.argv[1]))
before = peak()
start = time.process_time()
made = write_timeline(report, sys.argv[2])
seconds = time.process_time() - start
size = made.size / 1e6
assert made.open == int(sys.argv[3]) - 1, made
""",
    "json.dumps": """
import gzip, json, sys, time
with gzip.open(sys.argv[2]) as file:
    trace = json.load(file)
before = peak()
start = time.process_time()
with gzip.open(sys.argv[2] + ".peer", "wt", compresslevel=3) as file:
    file.write(json.dumps(trace, separators=(",", ":")))
seconds = time.process_time() - start
size = len(trace["traceEvents"])
""",
}

HEADS = (
    *("ranks", "events", "MB gz", "timeline s", "json.dumps s"),
    *("ratio", "slope", "MB more"),
)

HEADER = """
import re
def peak():
    # The peak that getrusage() knows is inherited from the parent process.
    status = open("/proc/self/status").read()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) / 1024
"""
FOOTER = """
print(json.dumps([seconds, size, peak() - before]), file=sys.__stdout__)
"""


def main() -> None:
    """
    Print a table.
    """
    options = parse_options()
    print(*(f"{head:>12}" for head in HEADS))
    last = None
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            write_dumps(folder, ranks, options.entries)
            file = str(Path(folder, "t.json.gz"))
            ours, size, more = measure("timeline", folder, file, ranks)
            peer, events, _ = measure("json.dumps", folder, file, ranks)
        now = ranks, ours
        print(
            f"{ranks:12}",
            f"{events:12,.0f}",
            f"{size:12.1f}",
            f"{ours:12.2f}",
            f"{peer:12.2f}",
            f"{ours / peer:12.2f}",
            f"{slope(last, now):12.2f}",
            f"{more:12.0f}",
            flush=True,
        )
        last = now


def parse_options() -> argparse.Namespace:
    """
    What to measure.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--entries", type=int, default=2000)
    return parser.parse_args()


def write_dumps(folder: str, ranks: int, entries: int) -> None:
    """
    Write the dumps of a job with tensor parallelism of 8, in which rank 1 is
    slow, and does not come in the end.
    """
    job = SimulatedJob(ranks)
    rows = [
        job.new_group(range(i, min(i + 8, ranks)), "tp")
        for i in range(0, ranks, 8)
    ]
    for step in range(entries // 4):
        job.collective("all_reduce", late={1: 0.1} if step % 9 == 0 else None)
        for row in rows:
            for op in ("_all_gather_base", "_reduce_scatter_base", "barrier"):
                job.collective(op, row)
    job.collective("barrier", ranks=[r for r in range(ranks) if r != 1])
    make_dumps(Path(folder, "dumps"), job)


def measure(
    name: str, folder: str, file: str, ranks: int
) -> tuple[float, float, float]:
    """
    Seconds of its processor, what was made, and memory beyond what is there, in MB.
    """
    output = subprocess.run(
        [
            sys.executable,
            "-c",
            HEADER + PROGRAMS[name] + "import json" + FOOTER,
            str(Path(folder, "dumps")),
            file,
            str(ranks),
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout
    seconds, size, more = json.loads(output)
    return seconds, size, more


if __name__ == "__main__":
    main()
