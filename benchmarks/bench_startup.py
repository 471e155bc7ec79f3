"""
What does a training script pay for having us around?

Run it as ``python benchmarks/bench_startup.py``.  Every number is the best of
several fresh processes; torch is loaded first where it says so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time


IN_PROCESS = {
    "import distdebug": "import distdebug",
    "enable_flight_recorder()": (
        "import distdebug; distdebug.enable_flight_recorder("
        "dump_dir=sys.argv[1])"
    ),
}
TIMED = """
import sys, time
{before}
known = set(sys.modules)
start = time.perf_counter()
{code}
seconds = time.perf_counter() - start
print(seconds, len(set(sys.modules) - known))
"""


def main() -> None:
    """
    Print a table.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    repeat = parser.parse_args().repeat
    print(f"{'what':32} {'ms':>8} {'modules':>8}")
    for before in ("", "import torch, torch.distributed"):
        for name, code in IN_PROCESS.items():
            label = f"{name}{', torch loaded' if before else ''}"
            best = min(in_process(before, code) for _ in range(repeat))
            print(f"{label:32} {1e3 * best[0]:8.2f} {best[1]:8.0f}")
    bare = min(process("-c", "") for _ in range(repeat))
    helped = min(process("-m", "distdebug", "--help") for _ in range(repeat))
    print(f"{'--help, beyond bare Python':32} {1e3 * (helped - bare):8.2f}")


def in_process(before: str, code: str) -> tuple[float, float]:
    """
    Seconds, and modules loaded, within a fresh process.
    """
    program = TIMED.format(before=before, code=code)
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run(
            [sys.executable, "-c", program, folder],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
    seconds, modules = out.split()
    return float(seconds), float(modules)


def process(*argv: str) -> float:
    """
    Seconds of a whole process.
    """
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *argv],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
