"""
How long does it take to list many ranks that are stopped, and to ask all of them?

Run it as ``python benchmarks/bench_debugger.py --ranks 4 64 512``.  The ranks are
light processes, forked from one that has loaded the debugger.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from collections.abc import Callable
from pathlib import Path

from distdebug.debugger import DebugClient, connect, listing_text
from measured import slope


RANKS = """
import os, signal, sys
os.environ["DISTDEBUG_LIMIT"] = "600"
from distdebug.debugger import arm, set_trace
import distdebug.debugger.inside.prompt
def step(rank):
    loss = float("nan") if rank == 3 else 1.5
    set_trace()
    return loss
for rank in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.environ["RANK"] = str(rank)
        arm()
        step(rank)
        os._exit(0)
sys.stdin.read()
os.killpg(0, signal.SIGKILL)
"""


def main() -> None:
    """
    Print one row for each number of ranks.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 64, 512])
    parser.add_argument("--repeat", type=int, default=10)
    args = parser.parse_args()
    print(f"{'ranks':>6} {'what':<12} {'median ms':>10} {'slope':>6}")
    before: dict[str, tuple[int, float]] = {}
    for count in args.ranks:
        for what, seconds in measure(count, args.repeat).items():
            now = count, seconds
            grown = slope(before.get(what), now)
            before[what] = now
            print(
                f"{count:>6} {what:<12} {seconds * 1e3:>10.1f} {grown:>6.2f}"
            )


def measure(count: int, repeat: int) -> dict[str, float]:
    """
    Seconds of each operation, the median of several.
    """
    folder = Path(tempfile.mkdtemp(prefix="dd", dir="/tmp"))
    ranks = subprocess.Popen(
        [sys.executable, "-c", RANKS, str(count)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "DISTDEBUG_DIR": str(folder)},
        start_new_session=True,
    )
    try:
        with wait_for(folder, count) as client:
            return {
                "list": timed(client.list, repeat),
                "cast p loss": timed(
                    lambda: client.cast("ranks(:)", "p loss"), repeat
                ),
                "stack": timed(client.stack, repeat),
                "show list": timed(
                    lambda: listing_text(client.list(), width=100), repeat
                ),
                "connect": timed(lambda: connect(folder).list(), 1),
            }
    finally:
        ranks.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(folder: Path, count: int) -> DebugClient:
    """
    A client, when so many ranks are stopped.
    """
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if folder.exists():
            client = connect(folder, timeout_s=30)
            if count == sum(p.is_stopped for p in client.list()):
                return client
            client.close()
        time.sleep(0.5)
    msg = f"{count} ranks do not stop"
    raise TimeoutError(msg)


def timed(call: Callable[[], object], repeat: int) -> float:
    """
    The median of the seconds that a call takes.
    """
    taken = []
    for _ in range(repeat):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
