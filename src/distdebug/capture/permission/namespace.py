"""
Is a process in a container of its own, and how does one come in there?
"""

from __future__ import annotations

import os

from collections.abc import Sequence

import attrs

from ...processes.model import ProcessState
from ...processes.procfs import (
    list_numbers,
    parse_status,
    read_link,
    read_proc,
)
from ...stacks.model import ThreadStack
from ..tool import find_tool


__all__ = [
    "argv_inside",
    "enter_namespace",
    "outer_numbers",
    "proc_is_foreign",
]

# The root of the process shows what is installed there.
_PLACES = ("usr/local/bin", "usr/bin", "bin", "opt/conda/bin", "opt/venv/bin")


def proc_is_foreign() -> bool:
    """
    Does ``/proc`` show the processes of another PID namespace than ours?
    """
    return read_link("/proc/self") not in {"", str(os.getpid())}


def enter_namespace(pid: int, inside: int = 0) -> str:
    """
    What to do to look from inside the container of a process.

    Args:
        pid: Its number here.

        inside: Its number there; 0 if unknown.
    """
    there = f" --pid {inside}" if inside not in {0, pid} else ""
    return (
        f"run in its container: nsenter -t {pid} -p -m -- python -m distdebug "
        f"stacks{there}, docker exec, or kubectl debug -it POD "
        "--target=CONTAINER --profile=sysadmin"
    )


def argv_inside(
    tool: str, pid: int, state: ProcessState
) -> tuple[list[str], int] | None:
    """
    How is a tool run on a process, from inside the container of that?

    Args:
        tool: Such as ``"gdb"``.

        pid: The process.

        state: What the kernel told about it.

    Returns:
        The start of a command line, and the number of the process for it;
        ``None`` if the tool is neither here nor there, or we may not go there.
    """
    if state.pid_inside in {0, pid}:
        path = find_tool(tool)
        return None if path is None else ([path], pid)

    enter, path = find_tool("nsenter"), _path_inside(tool, pid)
    if enter is None or path is None or os.geteuid() != 0:
        return None
    return [enter, "-t", str(pid), "-p", "-m", "--", path], state.pid_inside


def outer_numbers(
    threads: tuple[ThreadStack, ...], pid: int, inside: int
) -> tuple[ThreadStack, ...]:
    """
    What are the threads called here that a tool saw from inside a container?

    Args:
        threads: What the tool told.

        pid: The number of their process here.

        inside: Its number there.
    """
    if inside == pid:
        return threads

    numbers = {}
    for thread in list_numbers(f"/proc/{pid}/task"):
        status = parse_status(read_proc(f"/proc/{pid}/task/{thread}/status"))
        numbers[(status.get("NSpid", "").split() or [""])[-1]] = thread
    return tuple(
        attrs.evolve(t, thread_id=numbers.get(str(t.thread_id), t.thread_id))
        for t in threads
    )


def _path_inside(
    tool: str, pid: int, places: Sequence[str] = _PLACES
) -> str | None:
    for place in places:
        path = f"/{place}/{tool}"
        if os.access(f"/proc/{pid}/root{path}", os.X_OK):
            return path
    return None
