"""
How far does it go: how do time and memory grow with the ranks of a job?

Run it as ``python benchmarks/bench_scale.py --ranks 1024 4096 16384``, with
0.4 MB of disk for each of all these ranks.  The job trains with tensor,
pipeline, and data parallelism, and one rank is stuck (see ``large_job``); each
step has to name it.  Every number is measured in a fresh process, on the same
files.

* ``read`` makes columns of all files; ``analyse`` compares them; ``diagnose``
  is both, and looks for whatever else lies there; ``report`` writes the page
  of a diagnosis.
* The memory is that of ``diagnose`` and of all its children, at its peak.
* ``CPU s`` is what ``diagnose`` takes of all processors, which tells more than
  seconds where a machine is busy with other work, too.
* Slopes are the exponents of these, over ranks and over the size of the files,
  and of the time of the page, over ranks: 1 is linear.  Each dump lists all
  ranks, so that files grow a little faster than ranks.

A machine that is slower after some minutes of work than before makes any
slope look steep.  ``--back`` measures all sizes upwards and then downwards
again, and takes the mean of both, so that such a drift cancels.

``--torchfrtrace RANKS`` compares with torch's own tool up to so many ranks (how
many times faster we are, is that of seconds of processors),
``--ray`` reads through a Ray cluster of two nodes that is started here,
``--uneven`` gives every third call sizes that no other has.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile

from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from large_job import culprit_of, write_dumps
from measured import Measured, best_of, slope


STEPS = {
    "read": """
from distdebug import read_dumps
start = time.perf_counter()
dumps = read_dumps(sys.argv[1])
seconds = time.perf_counter() - start
assert len(dumps) == int(sys.argv[2]) and not dumps.problems, dumps.problems
""",
    "analyse": """
from distdebug import analyze_dumps, read_dumps
dumps = read_dumps(sys.argv[1])
start = time.perf_counter()
verdict = analyze_dumps(dumps).verdict
seconds = time.perf_counter() - start
assert verdict.ranks == (int(sys.argv[3]),), verdict
""",
    "diagnose": """
import distdebug
start = time.perf_counter()
diagnosis = distdebug.diagnose(sys.argv[1])
seconds = time.perf_counter() - start
verdict = diagnosis.verdict
assert verdict.ranks == (int(sys.argv[3]),), verdict
assert verdict.cause == "rank_not_arrived", verdict
assert not diagnosis.missing, diagnosis.missing[:3]
assert len(diagnosis.victims) == int(sys.argv[2]) - 1, diagnosis
""",
    "report": """
import os, tempfile
import distdebug
diagnosis = distdebug.diagnose(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    page = distdebug.write_report(diagnosis, os.path.join(folder, "page.html"))
    seconds = time.perf_counter() - start
    assert f"rank {sys.argv[3]}" in page.read_text()
""",
}

TORCH = """
import contextlib, io
from torch.distributed.flight_recorder import fr_trace
start = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    fr_trace.main([sys.argv[1], "-p", "nccl_trace_rank_"])
seconds = time.perf_counter() - start
"""

RAY = """
import os
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ.pop("RAY_ADDRESS", None)
from ray.cluster_utils import Cluster
from distdebug import read_dumps
from distdebug.nodes.ray import RayExecutor
small = {"num_cpus": 1, "object_store_memory": 500 << 20}
head = {**small, "include_dashboard": False, "gcs_server_port": 0}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(**small)
cluster.wait_for_nodes()
with RayExecutor(cluster.address) as executor:
    # The first call of each worker starts its process.
    for future in [executor.submit(time.sleep, 1) for _ in range(4)]:
        future.result()
    start = time.perf_counter()
    dumps = read_dumps(sys.argv[1], executor=executor)
    seconds = time.perf_counter() - start
cluster.shutdown()
assert len(dumps) == int(sys.argv[2]) and not dumps.problems, dumps.problems
"""

HEADS = (
    *("ranks", "GB", *(f"{name} s" for name in STEPS)),
    *("CPU s", "slope", "slope by GB", "report slope"),
    *("peak MB", "kB/rank", "report MB"),
    *("frtrace s", "faster", "Ray s"),
)


class Job(NamedTuple):
    """
    Dumps of a job, and what every step took in each round.
    """

    ranks: int
    folder: str
    size_mb: float
    rounds: list[dict[str, Measured]]


def main() -> None:
    """
    Print a table.
    """
    options = parse_options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        jobs = [write_job(folder, ranks, options) for ranks in options.ranks]
        for job in jobs + (jobs[::-1] if options.back else []):
            job.rounds.append(measure_all(job, options))
            print(f"{job.ranks:,} ranks: {job.rounds[-1]}", file=sys.stderr)
    print(*(f"{head:>12}" for head in HEADS))
    for before, now in pairwise([None, *jobs]):
        print_row(before, now)


def write_job(folder: str, ranks: int, options: argparse.Namespace) -> Job:
    """
    Write the dumps of so many ranks.
    """
    place = Path(folder, str(ranks))
    place.mkdir()
    size_mb = write_dumps(
        place, ranks, entries=options.entries, uneven=options.uneven
    )
    return Job(ranks, str(place), size_mb, [])


def parse_options() -> argparse.Namespace:
    """
    What to measure.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[256, 1024, 4096]
    )
    parser.add_argument(
        "--steps", choices=STEPS, nargs="+", default=list(STEPS)
    )
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--back", action="store_true")
    parser.add_argument("--folder", help="where dumps are put for a while")
    parser.add_argument("--torchfrtrace", type=int, default=0, metavar="RANKS")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--uneven", action="store_true")
    return parser.parse_args()


def measure_all(job: Job, options: argparse.Namespace) -> dict[str, Measured]:
    """
    What every step takes.
    """
    programs = {name: STEPS[name] for name in options.steps}
    if job.ranks <= options.torchfrtrace:
        programs["torch"] = TORCH
    if options.ray:
        programs["Ray"] = RAY
    known = job.folder, job.ranks, culprit_of(job.ranks)
    return {
        name: best_of(options.repeat, program, *known)
        for name, program in programs.items()
    }


def took(job: Job | None, step: str) -> Measured:
    """
    The mean of what a step took in all rounds, and the most memory.
    """
    rounds = [r[step] for r in job.rounds if step in r] if job else []
    if not rounds:
        return Measured(math.nan, math.nan)

    seconds, peak_mb, cpu_s, tree_mb = zip(*rounds, strict=True)
    return Measured(mean(seconds), max(peak_mb), mean(cpu_s), max(tree_mb))


def print_row(before: Job | None, now: Job) -> None:
    """
    Print what one size took, beside the size before.
    """
    whole, page = took(now, "diagnose"), took(now, "report")
    smaller, smaller_page = took(before, "diagnose"), took(before, "report")
    ranks, size_mb = (before.ranks, before.size_mb) if before else (1, 1.0)
    slopes = (
        slope((ranks, smaller.cpu_s), (now.ranks, whole.cpu_s)),
        slope((size_mb, smaller.cpu_s), (now.size_mb, whole.cpu_s)),
        slope((ranks, smaller_page.seconds), (now.ranks, page.seconds)),
    )
    more = 1000 * (whole.tree_mb - smaller.tree_mb) / (now.ranks - ranks)
    torch = took(now, "torch")
    print(
        f"{now.ranks:12,}",
        f"{now.size_mb / 1000:12.2f}",
        *(f"{took(now, name).seconds:12.2f}" for name in STEPS),
        f"{whole.cpu_s:12.2f}",
        *(f"{s:12.2f}" for s in slopes),
        f"{whole.tree_mb:12.0f}",
        f"{more:12.0f}",
        f"{page.tree_mb:12.0f}",
        f"{torch.seconds:12.1f}",
        f"{torch.cpu_s / whole.cpu_s:12.1f}",
        f"{took(now, 'Ray').seconds:12.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
