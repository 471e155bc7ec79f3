"""
Which environment does a process have?

``/proc/PID/environ`` shows where the kernel put it when the process started.
Changing the title overwrites that place, and variables that were set since are
not there.  The C library knows better.
"""

from __future__ import annotations

import os
import struct

from .proc.elf import find_symbol
from .proc.maps import Maps, read_maps
from .proc.memory import Memory, open_memory, read_c_string
from .proc.procfs import read_proc


__all__ = ["read_environ"]

# A program that uses the variable owns it, and the C library looks there;
# that is why programs come first.
_NAMES = ("environ", "__environ", "_environ")

_MOST_VARIABLES = 4096
_LONGEST = 1 << 15
_MOST = 1 << 20


def read_environ(
    pid: int, root: str = "/proc", *, maps: Maps | None = None
) -> tuple[dict[str, str], str]:
    """
    Which environment does a process have?

    Args:
        pid: Its number.

        root: Where the kernel's files are.

        maps: What is mapped into it, if that is known already.

    Returns:
        Its variables; and how they were learned, ``"memory"`` (as they are
        now), ``"environ"`` (as they were when it started), or ``""`` if they
        may not be read.  What it shows is not to be trusted: values may be
        long, and hold anything.
    """
    maps = maps or read_maps(pid, root)
    if maps is not None and maps.images:
        with open_memory(pid, root) as memory:
            variables = _from_memory(memory, maps.images)
        if variables:
            return variables, "memory"

    data = read_proc(f"{root}/{pid}/environ", limit=_MOST)
    variables = _parse((data or b"").decode(errors="replace").split("\0"))
    return variables, "environ" if variables else ""


def _from_memory(memory: Memory, images: tuple[int, ...]) -> dict[str, str]:
    for start in images:
        address = find_symbol(memory, start, _NAMES)
        if address:
            (table,) = _pointers(memory, address, 1) or (0,)
            return _parse(_strings(memory, table))
    return {}


def _strings(memory: Memory, table: int) -> list[str]:
    strings: list[str] = []
    left = _MOST
    for address in _pointers(memory, table, _MOST_VARIABLES):
        if not address or left <= 0:
            break
        strings.append(
            read_c_string(memory, address, limit=min(left, _LONGEST))
        )
        left -= len(strings[-1])
    return strings


def _pointers(memory: Memory, address: int, count: int) -> tuple[int, ...]:
    data = memory(address, 8 * count)
    return struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])


def _parse(strings: list[str]) -> dict[str, str]:
    pairs = (text.partition("=") for text in strings)
    return {
        os.fsdecode(name): value
        for name, sign, value in pairs
        if sign and name
    }
