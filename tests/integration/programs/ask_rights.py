"""
Tells what keeps this process from looking into another one.

Usage: ``ask_rights.py PID``.  Prints a JSON object: ``hindrance`` is the status
and remedy before anything is attached, ``native`` those of each tool that was
tried, ``python`` those of py-spy that attaches to nobody.
"""

from __future__ import annotations

import json
import sys

from distdebug._proc import find_tool, run_tool
from distdebug.capture.attach import read_native_stacks
from distdebug.capture.blockers import attach_blocker, explain_failure
from distdebug.processes import read_state


def main() -> None:
    """
    Ask.
    """
    pid = int(sys.argv[1])
    found = read_native_stacks(pid, tools=("gdb",), timeout_s=60)
    print(
        json.dumps(
            {
                "hindrance": attach_blocker(pid) or ["none", ""],
                "native": [(a.status, a.remedy) for a in found.attempts],
                "python": read_python(pid),
            }
        )
    )


def read_python(pid: int) -> tuple[str, str]:
    """
    How it goes with py-spy.
    """
    state, tool = read_state(pid), find_tool("py-spy")
    argv = [tool, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    got = run_tool(argv, timeout_s=60)
    if got.status == 0:
        return "ok", ""
    why = explain_failure("py-spy", pid, got.status, got.complaint, state)
    return why.status, why.remedy


if __name__ == "__main__":
    main()
