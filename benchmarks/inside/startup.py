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
        "import runpy; sys.argv[1:] = ['--help']",
        "run('distdebug')",
    ),
}
# Each time in a child that was forked just now, so that torch is loaded once.
PROGRAM = """
import contextlib, json, os, sys, time
{known}
folder, repeat, rows = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])

def run(name):
    with contextlib.suppress(SystemExit), open(os.devnull, "w") as sink:
        with contextlib.redirect_stdout(sink):
            runpy.run_module(name, run_name="__main__", alter_sys=True)

def measure(before, code):
    exec(before, globals())
    known, began = set(sys.modules), time.process_time()
    exec(code, globals())
    return time.process_time() - began, len(set(sys.modules) - known)

for before, code in rows:
    for _ in range(repeat):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, json.dumps(measure(before, code)).encode())
            os._exit(0)
        os.close(writer)
        print(os.read(reader, 1000).decode(), flush=True)
        os.close(reader)
        os.wait()
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
    # Short, as it is part of the path of a socket.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        rows = json.dumps(list(ROWS.values()))
        printed = subprocess.check_output(
            [
                *(sys.executable, "-c", PROGRAM.format(known=known)),
                *(folder, str(repeat), rows),
            ],
            text=True,
        ).splitlines()
    found = [tuple(json.loads(line)) for line in printed]
    return [min(found[n : n + repeat]) for n in range(0, len(found), repeat)]
