"""
How far does it go: how do time and memory grow with the ranks of a job?

Run it as ``python benchmarks/bench_scale.py --ranks 1024 4096 16384``, with
0.4 MB of disk for each rank.  The job trains with tensor, pipeline, and data
parallelism, and one rank is stuck (see ``large_job``); each step has to name
it.  Every number is measured in a fresh process, on the same files.

* ``read`` makes columns of all files; ``analyse`` compares them; ``diagnose``
  is both, and looks for whatever else lies there; ``report`` writes the page
  of a diagnosis.
* The memory is that of ``diagnose`` and of all its children, at its peak.
* ``CPU s`` is what ``diagnose`` takes of all processors, which tells more than
  seconds where a machine is busy with other work, too.
* Slopes are the exponents of these, and of the time of the page, over ranks: 1
  is linear.

``--torchfrtrace RANKS`` compares with torch's own tool up to so many ranks (how
many times faster we are, is that of seconds of processors),
``--ray`` reads through a Ray cluster of two nodes that is started here,
``--uneven`` gives every third call sizes that no other has.
"""

from __future__ import annotations

import argparse
import math
import tempfile

from pathlib import Path

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
from distdebug.nodes.ray_executor import RayExecutor
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
    *("CPU s", "slope", "report slope", "peak MB", "kB/rank", "report MB"),
    *("frtrace s", "faster", "Ray s"),
)


def main() -> None:
    """
    Print a table.
    """
    options = parse_options()
    print(*(f"{head:>12}" for head in HEADS))
    last: dict[str, Measured] = {}
    last_ranks = 0
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            size = write_dumps(
                Path(folder),
                ranks,
                entries=options.entries,
                uneven=options.uneven,
            )
            got = measure_all(folder, ranks, options)
        print_row(ranks, size, got, last_ranks, last)
        last, last_ranks = got, ranks


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
    parser.add_argument("--folder", help="where dumps are put for a while")
    parser.add_argument("--torchfrtrace", type=int, default=0, metavar="RANKS")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--uneven", action="store_true")
    return parser.parse_args()


def measure_all(
    folder: str, ranks: int, options: argparse.Namespace
) -> dict[str, Measured]:
    """
    What every step takes.
    """
    programs = {name: STEPS[name] for name in options.steps}
    if ranks <= options.torchfrtrace:
        programs["torch"] = TORCH
    if options.ray:
        programs["Ray"] = RAY
    return {
        name: best_of(
            options.repeat, program, folder, ranks, culprit_of(ranks)
        )
        for name, program in programs.items()
    }


def print_row(
    ranks: int,
    size: float,
    got: dict[str, Measured],
    last_ranks: int,
    last: dict[str, Measured],
) -> None:
    """
    Print what one size took, beside the size before.
    """
    nothing = Measured(math.nan, math.nan)
    now = {name: got.get(name, nothing) for name in (*STEPS, "torch", "Ray")}
    memory = now["diagnose"].tree_mb
    before = last.get("diagnose", nothing).tree_mb
    more = 1000 * (memory - before) / (ranks - last_ranks)
    torch = now["torch"].cpu_s / now["diagnose"].cpu_s
    slopes = [
        slope((last_ranks, a), (ranks, b)) if last else math.nan
        for a, b in (
            (last.get("diagnose", nothing).cpu_s, now["diagnose"].cpu_s),
            (last.get("report", nothing).seconds, now["report"].seconds),
        )
    ]
    print(
        f"{ranks:12,}",
        f"{size / 1000:12.2f}",
        *(f"{now[name].seconds:12.2f}" for name in STEPS),
        f"{now['diagnose'].cpu_s:12.2f}",
        *(f"{s:12.2f}" for s in slopes),
        f"{memory:12.0f}",
        f"{more:12.0f}",
        f"{now['report'].tree_mb:12.0f}",
        f"{now['torch'].seconds:12.1f}",
        f"{torch:12.1f}",
        f"{now['Ray'].seconds:12.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
