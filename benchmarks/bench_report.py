"""
How long does it take to make a report, how large is it, and how soon is it drawn?

Run it as ``python benchmarks/bench_report.py --ranks 64 1024 4096``.  Each size is
measured in a fresh process, on a job in memory whose ranks come to each call
at times of their own, as they do on real hosts.  What matters are

* the matrix (picture of waits included), against plain JSON of the same calls,
  which compares and draws nothing;
* the size of the page, against that of the JSON;
* how soon a browser has drawn it, if one is installed;
* the slope: how much longer it takes for twice the ranks.

With ``--torchfrtrace RANKS``, torch's own tool reads and analyzes files with as many
calls, up to so many ranks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from pathlib import Path

import attrs
import numpy as np

from distdebug.diagnosis import DiagnosisInputs
from distdebug.findings import Diagnosis
from distdebug.flight_recorder import (
    COMPLETED,
    Dumps,
    RankDump,
    analyze_dumps,
    entry_rows,
)
from distdebug.flight_recorder.reading.columns import (
    SCHEDULED,
    Entries,
    GroupConfig,
    Shapes,
)
from distdebug.report import report_html
from distdebug.report.graph import graph_section
from distdebug.report.matrix import matrix_section
from distdebug.testing import SimulatedJob, make_dumps
from measured import slope


HEADS = (
    "ranks",
    "graph+matrix s",
    "page s",
    "page MB",
    "drawn ms",
    "json s",
    "json MB",
    "frtrace s",
    "slope",
    "peak MB",
)
TENSOR_PARALLEL = 8
OPS = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "barrier")


def main() -> None:
    """
    Print a table.
    """
    options = parse_options()
    if options.measure:
        print(json.dumps(measure(options.measure, options)))
        return

    print(*(f"{head:>14}" for head in HEADS))
    last = None
    for ranks in options.ranks:
        got = in_fresh_process(ranks, options)
        now = ranks, got[0]
        *times, peak = got
        row = (*times, frtrace(ranks, options), slope(last, now), peak)
        last = now
        print(f"{ranks:14}", *(f"{x:14.3f}" for x in row), flush=True)


def parse_options() -> argparse.Namespace:
    """
    What to measure.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[64, 1024, 4096]
    )
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--torchfrtrace", type=int, default=0, metavar="RANKS")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def in_fresh_process(ranks: int, options: argparse.Namespace) -> list[float]:
    """
    Measure one size where nothing else is in memory.
    """
    output = subprocess.run(
        [
            sys.executable,
            __file__,
            f"--measure={ranks}",
            f"--entries={options.entries}",
            f"--repeat={options.repeat}",
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout
    numbers: list[float] = json.loads(output)
    return numbers


def measure(ranks: int, options: argparse.Namespace) -> list[float]:
    """
    Seconds and megabytes, in the order of the table.
    """
    dumps = make_job(ranks, options.entries, late=ranks // 3)
    flight = analyze_dumps(dumps)
    diagnosis = attrs.evolve(
        flight.to_diagnosis(), seen=DiagnosisInputs(flight=flight)
    )
    sections = best(lambda: sections_of(diagnosis), options.repeat)
    whole = best(lambda: report_html(diagnosis), 1)
    page = report_html(diagnosis).encode()
    text = ""
    start = time.perf_counter()
    if ranks <= 1024:
        text = json.dumps([row.to_dict() for row in entry_rows(dumps)])
    plain = time.perf_counter() - start if text else math.nan
    return [
        sections,
        whole,
        len(page) / 1e6,
        drawn_ms(page),
        plain,
        len(text) / 1e6 if text else math.nan,
        peak_mb(),
    ]


def sections_of(diagnosis: Diagnosis) -> None:
    """
    Make the two sections that are measured.
    """
    assert graph_section(diagnosis) is not None
    assert matrix_section(diagnosis) is not None


def best(work, repeat: int) -> float:
    """
    The shortest time of several.
    """
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)

    return min(seconds)


def make_job(ranks: int, entries: int, *, late: int | None) -> Dumps:
    """
    The dumps of a job with tensor parallelism, in which a rank stays away.

    Args:
        ranks: How many ranks it has.

        entries: How many records each of them has.

        late: Who does not enter the last call; None if all complete it.

    Returns:
        Dumps as if they had been read; no two ranks have the same times.
    """
    rng = np.random.default_rng(0)
    rows = [
        tuple(range(i, min(i + TENSOR_PARALLEL, ranks)))
        for i in range(0, ranks, TENSOR_PARALLEL)
    ]
    world = GroupConfig("0", "default_pg", tuple(range(ranks)))
    configs = [
        GroupConfig(str(i + 1), "tp", row) for i, row in enumerate(rows)
    ]
    by_rank = {
        rank: RankDump(
            rank=rank,
            path=f"rank{rank}",
            version="2.10",
            entries=records(
                rank,
                entries,
                rng,
                is_away=rank == late,
                is_stuck=late is not None,
            ),
            configs=(world, configs[rank // TENSOR_PARALLEL]),
            host=f"node{rank // 8}",
            written_ns=10**18 + entries * 10**8 + 600 * 10**9,
        )
        for rank in range(ranks)
    }
    whole, part = 4096 * 1024, 512 * 1024
    sizes = [(whole, whole), (part, whole), (whole, part), (1, 1)]
    return Dumps(
        by_rank=by_rank,
        groups=(("0", "default_pg"), *((c.name, c.desc) for c in configs)),
        ops=tuple(f"nccl:{op}" for op in OPS),
        shapes=Shapes(
            texts=tuple(
                f'[[[{a}]],["Float"],[[{b}]],["Float"]]' for a, b in sizes
            ),
            elements=np.array(sizes),
            types=np.zeros(len(sizes), np.int64),
        ),
    )


def records(
    rank: int,
    count: int,
    rng: np.random.Generator,
    *,
    is_away: bool,
    is_stuck: bool,
) -> Entries:
    """
    One call of all ranks, three of the row, and so on; at last a barrier.
    """
    i = np.arange(count)
    is_world = i % 4 == 0
    op = np.array([0, 1, 2, 0], np.int32)[i % 4]
    state = np.full(count, COMPLETED, np.int8)
    seq = np.where(is_world, i // 4 + 1, i // 4 * 3 + i % 4)
    if count % 4 != 1:
        is_world[-1], seq[-1] = True, (count + 2) // 4 + 1
    op[-1] = 3
    created = 10**18 + i * 10**8 + (rng.exponential(2e6, count)).astype(int)
    completed = 10**18 + i * 10**8 + 5 * 10**7 + rng.integers(0, 10**6, count)
    if is_stuck:
        state[-1], completed[-1] = SCHEDULED, 0
    zeros = np.zeros(count, np.int64)
    entries = Entries(
        record_id=i,
        pg_id=np.where(is_world, 0, 1).astype(np.int32),
        group=np.where(is_world, 0, rank // TENSOR_PARALLEL + 1).astype(
            np.int32
        ),
        seq=seq,
        p2p_seq=zeros,
        op_id=seq,
        op=op,
        shape=op,
        state=state,
        created_ns=created,
        started_ns=zeros,
        completed_ns=completed,
        duration_ms=np.full(count, np.nan),
        retired=state == COMPLETED,
        timeout_ms=zeros,
        is_p2p=zeros.astype(bool),
    )
    return entries.take(i[:-1]) if is_away else entries


def drawn_ms(page: bytes) -> float:
    """
    When a browser has drawn the matrix; NaN without a browser.
    """
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return math.nan
    if chromium is None:
        return math.nan

    script = "performance.getEntriesByName('distdebug:matrix')[0].startTime"
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "report.html"
        path.write_bytes(page)
        browser = driver.chromium.launch(
            executable_path=chromium, args=arguments
        )
        tab = browser.new_page()
        tab.goto(path.as_uri())
        tab.wait_for_selector("#matrix canvas[data-drawn]")
        at = float(tab.evaluate(script))
        browser.close()

    return at


def peak_mb() -> float:
    """
    The largest memory of this process; NaN where the kernel does not say.
    """
    status = Path("/proc/self/status")
    text = status.read_text() if status.exists() else ""
    found = re.search(r"VmHWM:\s+(\d+)", text)
    return int(found[1]) / 1024 if found else math.nan


def frtrace(ranks: int, options: argparse.Namespace) -> float:
    """
    The seconds that torch's own tool takes for as many calls.
    """
    if ranks > options.torchfrtrace:
        return math.nan

    job = SimulatedJob(ranks, stack_depth=12)
    for _ in range(options.entries - 1):
        job.collective("all_reduce")
    job.collective("barrier", ranks=range(1, ranks))
    program = (
        "import sys; from torch.distributed.flight_recorder import fr_trace; "
        "fr_trace.main([sys.argv[1], '-p', 'nccl_trace_rank_'])"
    )
    with tempfile.TemporaryDirectory() as folder:
        make_dumps(folder, job)
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", program, folder],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
