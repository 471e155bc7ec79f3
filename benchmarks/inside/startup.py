"""
What does a training script pay for loading us, and for switching us on?
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time


TORCH = "import torch, torch.distributed"
LOADS = {
    "enable_flight_recorder": "distdebug.enable_flight_recorder",
    "arm, set_trace": "distdebug.arm; distdebug.set_trace",
    "watch": "distdebug.watch",
    "all of them": (
        "distdebug.enable_flight_recorder; distdebug.arm; "
        "distdebug.set_trace; distdebug.watch"
    ),
    "read_dumps, diagnose": "distdebug.read_dumps; distdebug.diagnose",
    "snapshot": "distdebug.snapshot",
}
CALLS = {
    "enable_flight_recorder()": (
        "distdebug.enable_flight_recorder(dump_dir=folder)"
    ),
    "arm()": "distdebug.arm(dir=folder + '/s')",
    "watch()": "distdebug.watch(output_dir=folder)",
}
TIMED = """
import sys, time
folder = sys.argv[1]
{before}
known = set(sys.modules)
start = time.perf_counter()
{code}
seconds = time.perf_counter() - start
print(seconds, len(set(sys.modules) - known))
"""


def show_startup(repeat: int) -> None:
    """
    Print a table, of the best of several fresh processes each.

    Args:
        repeat: How many.
    """
    print(f"{'':32} {'bare':>18} {'beside torch':>18}")
    print(f"{'':32}" + f" {'ms':>9} {'modules':>8}" * 2)
    show_row("import distdebug", "import distdebug", "", repeat)
    for name, code in LOADS.items():
        show_row(f"load {name}", code, "import distdebug", repeat)
    for name, code in CALLS.items():
        load = f"import distdebug; {LOADS['all of them']}"
        show_row(f"{name}, loaded", code, load, repeat)
    bare = min(process("-c", "") for _ in range(repeat))
    helped = min(process("-m", "distdebug", "--help") for _ in range(repeat))
    print(f"{'--help, beyond bare Python':32} {1e3 * (helped - bare):9.2f}")


def show_row(name: str, code: str, before: str, repeat: int) -> None:
    """
    Print what some code costs, without torch and with it.
    """
    cells = ""
    for known in ("", TORCH):
        lines = f"{known}\n{before}"
        seconds, modules = min(measure(lines, code) for _ in range(repeat))
        cells += f" {1e3 * seconds:9.2f} {modules:8.0f}"
    print(f"{name:32}{cells}", flush=True)


def measure(before: str, code: str) -> tuple[float, float]:
    """
    Seconds of some code, and modules loaded by it, in a fresh process.
    """
    program = TIMED.format(before=before, code=code)
    # Short, as it is part of the path of a socket.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        out = subprocess.check_output(
            [sys.executable, "-c", program, folder], text=True
        )
    seconds, modules = out.split()
    return float(seconds), float(modules)


def process(*argv: str) -> float:
    """
    Seconds of a whole process.
    """
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *argv], check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start
