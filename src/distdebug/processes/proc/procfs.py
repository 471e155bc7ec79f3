"""
What does the kernel tell about a process?

Every answer may be that it is gone, or that we may not ask; none is an error.
"""

from __future__ import annotations

import os

from typing import NamedTuple


__all__ = [
    "ENDED",
    "Stat",
    "list_numbers",
    "parse_stat",
    "parse_status",
    "read_link",
    "read_proc",
    "whole_number",
]

_CHUNK = 1 << 16
# Python refuses to read numbers of thousands of digits.
_MOST_DIGITS = 40
# States of a zombie, and of what is gone.
ENDED = frozenset("ZXx")


class Stat(NamedTuple):
    """
    The part of a ``stat`` file that is of use here.

    Attributes:
        name: The name of 15 characters that the kernel keeps.

        letter: The state, such as ``"S"``.

        parent_pid: The process that started it, or inherited it.

        cpu_ticks: How long it ran, in clock ticks.

        start_ticks: When it started, in clock ticks since boot.
    """

    name: str
    letter: str
    parent_pid: int
    cpu_ticks: int
    start_ticks: int

    @property
    def has_ended(self) -> bool:
        """
        Whether nothing of it runs any more.
        """
        return self.letter in ENDED


def read_proc(path: str, *, limit: int = _CHUNK) -> bytes | None:
    """
    Read a file of the kernel.

    Args:
        path: The file.

        limit: How many bytes to read at most.

    Returns:
        What it holds; ``None`` if it is gone or may not be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):  # a name from elsewhere may hold a NUL
        return None

    parts = []
    try:
        while limit > 0:
            part = os.read(fd, min(limit, _CHUNK))
            if not part:
                break
            parts.append(part)
            limit -= len(part)
    except OSError:
        return None
    finally:
        os.close(fd)
    return b"".join(parts)


def read_link(path: str) -> str:
    """
    Where does a link of the kernel point; ``""`` if that may not be read.
    """
    try:
        return os.readlink(path)  # noqa: PTH115 paths cost as much as reading
    except (OSError, ValueError):
        return ""


def list_numbers(path: str) -> list[int]:
    """
    Which numbers (of processes, threads, descriptors) are in a folder?

    Returns:
        The numbers in order; none if the folder may not be read.
    """
    try:
        names = os.listdir(path)  # noqa: PTH208 as above
    except (OSError, ValueError):
        return []
    return sorted(int(n) for n in names if n.isascii() and n.isdigit())


def parse_stat(data: bytes | None) -> Stat | None:
    """
    Read a ``stat`` file.

    The name in it may hold brackets, blanks, and line breaks; numbers follow
    the last bracket.

    Args:
        data: The file, or ``None``.

    Returns:
        What it says; ``None`` if it is no ``stat`` file.
    """
    text = (data or b"").decode(errors="replace")
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    try:
        return Stat(
            name=head[head.index("(") + 1 :],
            letter=fields[0],
            parent_pid=int(fields[1]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            start_ticks=int(fields[19]),
        )
    except (ValueError, IndexError):
        return None


def parse_status(data: bytes | None) -> dict[str, str]:
    """
    Read a ``status`` file.

    Args:
        data: The file, or ``None``.

    Returns:
        What stands behind the colon of each line.  The kernel escapes line
        breaks in names, so that no process can add lines.
    """
    lines = (data or b"").decode(errors="replace").split("\n")
    pairs = (line.partition(":") for line in lines)
    return {key: value.strip() for key, colon, value in pairs if colon}


def whole_number(text: str | bytes | None) -> int | None:
    """
    Which number is this, if it is one?

    Args:
        text: What should be digits.

    Returns:
        The number; ``None`` if there is anything but digits, or if no machine
        has such a number.
    """
    is_number = text and len(text) <= _MOST_DIGITS and text.isascii()
    return int(text) if text and is_number and text.isdigit() else None
