"""
Does looking into a process work here?  It is tried on one of ours.
"""

from __future__ import annotations

import os
import subprocess
import sys

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

from ...processes.threads import read_state
from ..tool import find_tool, run_tool
from .check import Check
from .denial import why_denied
from .status import explain_failure


__all__ = ["trial_checks"]

_TIMEOUT_S = 5.0

# Ends with us, however we end.
_CHILD = "import sys; print(flush=True); sys.stdin.read()"

# Attaches as py-spy does, without a stop, and lets go by ending.  It is a
# program of its own because tools are: we may do more with our own child.
_SEIZE = (
    "import ctypes as c, sys; libc = c.CDLL(None, use_errno=True); "
    "libc.ptrace.argtypes = (c.c_long, c.c_int, c.c_void_p, c.c_void_p); "
    "failed = libc.ptrace(0x4206, int(sys.argv[1]), None, None); "
    "raise SystemExit(100 + c.get_errno() if failed else 0)"
)


def trial_checks() -> tuple[Check, ...]:
    """
    Can a process be read, and can a debugger attach to it?
    """
    try:
        with _child() as pid:
            return _try_reading(pid), _try_attaching(pid)
    except OSError as exc:
        detail = f"no process can be started: {exc}"
        return (Check("trial", ok=False, detail=detail),)


@contextmanager
def _child() -> Iterator[int]:
    argv = [sys.executable, "-I", "-S", "-c", _CHILD]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            cast(IO[bytes], process.stdout).readline()  # it has started
            yield process.pid
        finally:
            process.kill()


def _try_reading(pid: int) -> Check:
    name, tool = "Python stacks", find_tool("py-spy")
    if tool is None:
        detail = "cannot be tried: py-spy is not there"
        return Check(name, ok=False, detail=detail)

    state = read_state(pid)
    argv = [tool, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    got = run_tool(argv, timeout_s=_TIMEOUT_S)
    if got.status == 0:
        return Check(name, ok=True, detail="of a process of ours were read")

    why = explain_failure("py-spy", pid, got.status, got.complaint, state)
    return Check(name, ok=False, detail=why.detail, remedy=why.remedy)


def _try_attaching(pid: int) -> Check:
    name = "attaching"
    argv = [sys.executable, "-I", "-S", "-c", _SEIZE, str(pid)]
    got = run_tool(argv, timeout_s=_TIMEOUT_S)
    if got.status == 0:
        return Check(name, ok=True, detail="to a process of ours works")

    number = (got.status or 0) - 100
    reason = os.strerror(number) if number > 0 else "it was killed"
    _, remedy = why_denied(pid) or ("", "")
    return Check(
        name, ok=False, detail=f"{reason}: no native stacks", remedy=remedy
    )
