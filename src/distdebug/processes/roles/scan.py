"""
Which processes are on this node?
"""

from __future__ import annotations

import os

from collections.abc import Collection
from typing import NamedTuple

import attrs

from ..proc.patience import ask_each
from ..proc.procfs import Stat, list_numbers, parse_stat, read_link, read_proc
from .frameworks import TITLES
from .programs import is_python_name


__all__ = ["Process", "list_processes"]

# Command lines can be of 2 MiB; what tells them apart is at their beginning.
_LONGEST = 1 << 16


@attrs.frozen(kw_only=True)
class Process:
    """
    A process, as it shows itself to anybody.

    Attributes:
        pid: Its number.

        parent_pid: The process that started it, or inherited it.

        start_ticks: When it started, in clock ticks since boot.

        letter: Its state, such as ``"S"``.

        name: What the kernel calls it: its first 15 characters.

        arguments: Its command line; empty for a zombie, and for a process
            that hangs so that nobody may ask.

        is_python: Whether an interpreter of Python runs in it.
    """

    pid: int
    parent_pid: int
    start_ticks: int
    letter: str
    name: str
    arguments: tuple[str, ...] = ()
    is_python: bool = False

    @property
    def text(self) -> str:
        """
        Its command line, or else what the kernel calls it.
        """
        return " ".join(self.arguments) or self.name


class _Line(NamedTuple):
    arguments: tuple[str, ...]
    is_python: bool


def list_processes(
    root: str = "/proc", *, named: Collection[int] = ()
) -> dict[int, Process]:
    """
    Which processes are on this node?

    Args:
        root: Where the kernel's files are.

        named: Processes that are not left out, whatever they are.

    Returns:
        Processes by number.  Threads of the kernel are left out, as is who
        has erased its command line.
    """
    stats = {
        pid: stat
        for pid in list_numbers(root)
        if (stat := parse_stat(read_proc(f"{root}/{pid}/stat", limit=4096)))
    }
    lines = ask_each(stats, lambda pid: _command_line(pid, root))
    silent = _Line((), is_python=False)
    return {
        pid: _process(pid, stat, lines.get(pid, silent))
        for pid, stat in stats.items()
        # Threads of the kernel have no command line, but neither have zombies
        # and processes that did not answer.
        if lines.get(pid) != silent or stat.has_ended or pid in named
    }


def _process(pid: int, stat: Stat, line: _Line) -> Process:
    return Process(
        pid=pid,
        parent_pid=stat.parent_pid,
        start_ticks=stat.start_ticks,
        letter=stat.letter,
        name=stat.name,
        arguments=line.arguments,
        is_python=line.is_python if line.arguments else _runs(stat.name),
    )


def _command_line(pid: int, root: str) -> _Line:
    data = read_proc(f"{root}/{pid}/cmdline", limit=_LONGEST) or b""
    # A process that changed its title pads it with zeros, or with blanks.
    data = data.rstrip(b"\0 ")
    if not data:
        return _Line((), is_python=False)

    arguments = tuple(os.fsdecode(x) for x in data.split(b"\0"))
    program = read_link(f"{root}/{pid}/exe").removesuffix(" (deleted)")
    return _Line(
        arguments, is_python=_runs(arguments[0]) or is_python_name(program)
    )


def _runs(name: str) -> bool:
    """
    Whether it is Python that calls itself so.
    """
    return (
        is_python_name(name)
        or name.startswith("pt_")  # as torch names its processes
        or any(look.pattern.match(name) for look in TITLES)
    )
