"""
What does a training script pay for loading us, and for switching us on?

Processor time is counted, which is what it takes on a machine that has nothing
else to do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile


INSIDE = (
    "distdebug.enable_flight_recorder; distdebug.arm; distdebug.set_trace; "
    "distdebug.watch"
)
# What is measured, by what is done before.
ROWS = {
    "import distdebug": ("", "import distdebug"),
    "load enable_flight_recorder": (
        "import distdebug",
        "distdebug.enable_flight_recorder",
    ),
    "load arm, set_trace": (
        "import distdebug",
        "distdebug.arm; distdebug.set_trace",
    ),
    "load watch": ("import distdebug", "distdebug.watch"),
    "load all of them": ("import distdebug", INSIDE),
    "load diagnose, read_dumps": (
        "import distdebug",
        "distdebug.diagnose; distdebug.read_dumps",
    ),
    "load snapshot": ("import distdebug", "distdebug.snapshot"),
    "enable_flight_recorder()": (
        f"import distdebug; {INSIDE}",
        "distdebug.enable_flight_recorder(dump_dir=folder)",
    ),
    "arm()": (
        f"import distdebug; {INSIDE}",
        "distdebug.arm(dir=folder + '/s')",
    ),
    "watch()": (
        f"import distdebug; {INSIDE}",
        "distdebug.watch(output_dir=folder)",
    ),
    "python -m distdebug --help": (
        "sys.argv[1:] = ['--help']",
        "run('distdebug')",
    ),
}
# Each time in a new process: a forked child would also pay for each page of its
# parent that it is the first to write to, as its garbage collector does.
PROGRAM = """
import contextlib, json, os, runpy, sys, time
{known}
folder, before, code = sys.argv[1:]

def run(name):
    with contextlib.suppress(SystemExit), open(os.devnull, "w") as sink:
        with contextlib.redirect_stdout(sink):
            runpy.run_module(name, run_name="__main__", alter_sys=True)

exec(before, globals())
known, began = set(sys.modules), time.process_time()
exec(code, globals())
seconds = time.process_time() - began
print(json.dumps([seconds, len(set(sys.modules) - known)]), flush=True)
os._exit(0)
"""


def show_startup(repeat: int) -> None:
    """
    Print a table.

    Args:
        repeat: How many processes each number is the best of.
    """
    bare = measure("", repeat)
    torch = measure("import torch, torch.distributed", repeat)
    print(f"{'':32} {'bare':>18} {'beside torch':>18}")
    print(f"{'':32}" + f" {'ms':>9} {'modules':>8}" * 2)
    for name, *both in zip(ROWS, bare, torch, strict=True):
        cells = (f" {1e3 * s:9.2f} {modules:8.0f}" for s, modules in both)
        print(f"{name:32}{''.join(cells)}")


def measure(known: str, repeat: int) -> list[tuple[float, int]]:
    """
    Seconds, and modules loaded, of each row.
    """
    program = PROGRAM.format(known=known)
    return [
        min(measure_once(program, before, code) for _ in range(repeat))
        for before, code in ROWS.values()
    ]


def measure_once(program: str, before: str, code: str) -> tuple[float, int]:
    """
    Seconds, and modules loaded, of one process.
    """
    # Short, as it is part of the path of a socket.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        printed = subprocess.check_output(
            [sys.executable, "-c", program, folder, before, code], text=True
        )
    seconds, modules = json.loads(printed)
    return seconds, modules
