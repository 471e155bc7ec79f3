"""
A program is not changed by what runs inside it.

Each program of ``programs/ordinary.py`` runs alone, and with all that distdebug
can do inside a job: it prints the same, and ends in the same way, in the same
time.  By default each also runs with one part alone; with
``DISTDEBUG_EVERY_MODE=1`` with each of them, which takes ten minutes.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import tempfile
import time

from pathlib import Path

import pytest

import distdebug


PROGRAM = Path(__file__).parent / "programs" / "ordinary.py"
MODES = ("recorder", "watch", "armed", "recorder,watch,armed")
# More than an ordinary end takes on a busy machine, and less than any alarm.
BOUND_S = 10.0
# The table in docs/reference/in_your_process.md: what differs, and why.
LATER_S = {("abort", "recorder"): 7.0}
FLAGS = (("-W", "error"), ("-O",), ("-X", "faulthandler"), ("-X", "dev"))
# Lines of ours on standard error.
OURS = re.compile(r"distdebug|^Fatal Python error: Aborted")


def names():
    """
    The names of all programs.
    """
    tree, found = ast.parse(PROGRAM.read_text()), []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            marks = [x.id for x in node.decorator_list]
            found += [node.name] * ("program" in marks)
    ends = ("TERM", "HUP", "USR1", "USR2", "QUIT", "ALRM", "PROF", "INT")
    return [*found, *(f"end_by_{x}" for x in ends)]


def cases():
    """
    Programs, each with everything at once and with parts alone.
    """
    is_every = bool(os.environ.get("DISTDEBUG_EVERY_MODE"))
    *single, together = MODES
    for number, name in enumerate(names()):
        chosen = single if is_every else [single[number % len(single)]]
        yield from ((name, mode) for mode in (*chosen, together))


def run(name, modes="", flags=()):
    """
    Return exit status, output, complaints, and seconds of a program.
    """
    root = str(Path(distdebug.__file__).parents[1])
    environ = {k: v for k, v in os.environ.items() if "DISTDEBUG" not in k}
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, *flags, PROGRAM, name, modes, folder],
            capture_output=True,
            text=True,
            env={**environ, "PYTHONPATH": root},
            timeout=60,
        )
        seconds = time.monotonic() - begin
        complaints = done.stderr.replace(folder, "FOLDER")
    return done.returncode, done.stdout, complaints, seconds


@functools.cache
def alone(name, flags=()):
    """
    How a program is without us.
    """
    return run(name, flags=flags)


def check(name, modes, flags=()):
    """
    Compare a program with itself.
    """
    status, output, complaints, seconds = alone(name, flags)
    later = max(
        (s for (n, m), s in LATER_S.items() if n == name and m in modes),
        default=0.0,
    )

    told = run(name, modes, flags)

    assert (status, output) == told[:2], told[2]
    assert told[3] < seconds + later + BOUND_S
    theirs = without_ours(told[2])
    assert without_ours(complaints) == theirs


def without_ours(text):
    """
    Standard error without what is ours, and where it says whose stacks it has.
    """
    lines, is_ours = [], False
    for line in text.splitlines():
        if line.startswith(("Thread 0x", "Current thread", "Fatal Python")):
            is_ours = not line.startswith("Fatal Python error: Segm")
        elif line and not line.startswith(" "):
            is_ours = bool(OURS.search(line))
        if not is_ours and line.strip():
            lines.append(re.sub(r"0x[0-9a-f]+|line \d+", "", line))
    return lines


@pytest.mark.parametrize(("name", "modes"), [*cases()])
def test_programs(name, modes):
    """
    Same status, same output, no complaint, no later.
    """
    check(name, modes)


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
@pytest.mark.parametrize(
    "name",
    [
        *("end", "end_with_status", "end_with_exception", "end_by_TERM"),
        *("segfault", "abort", "closed_descriptors", "children"),
    ],
)
def test_options_of_python(name, flags):
    """
    Nor with options that make Python stricter.
    """
    check(name, MODES[-1], flags)
