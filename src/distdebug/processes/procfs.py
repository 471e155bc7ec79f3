"""
Read and parse files of ``/proc``, and memory of processes.

Functions return None or nothing for a process that has ended or may not be
read; they raise no errors for it.
"""

from __future__ import annotations

import os
import re

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from struct import Struct
from typing import Any, NamedTuple


_CHUNK = 1 << 16
# int() refuses thousands of digits.
_MAX_DIGITS = 40
# States of zombies and dead processes.
ENDED_STATES = frozenset("ZXx")
#: States in which a process does nothing, by the letter of the kernel.
STATE_NAMES = {
    **dict.fromkeys("Tt", "stopped"),
    **dict.fromkeys(ENDED_STATES, "dead"),
}
_MAX_MOUNTS_BYTES = 1 << 22
# PROC_PID_INIT_INO of the kernel.
_INITIAL_NAMESPACE = "pid:[4026531836]"


class Stat(NamedTuple):
    """
    Fields of ``/proc/PID/stat``.

    Attributes:
        name: Its name of at most 15 characters.

        letter: The state, such as ``"S"``.

        parent_pid: PID of its parent, which may have inherited it.

        cpu_ticks: CPU time, in clock ticks.

        start_ticks: Start time, in clock ticks since boot.
    """

    name: str
    letter: str
    parent_pid: int
    cpu_ticks: int
    start_ticks: int

    @property
    def has_ended(self) -> bool:
        """
        Whether it is dead or a zombie.
        """
        return self.letter in ENDED_STATES


def read_proc(path: str, *, limit: int = _CHUNK) -> bytes | None:
    """
    Return the content of a file; ``None`` if it cannot be read.

    Args:
        limit: Maximum number of bytes to read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):  # a path from outside may hold a NUL
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
        with suppress(OSError):  # the program may close all there are
            os.close(fd)
    return b"".join(parts)


def read_link(path: str) -> str:
    """
    Return the target of a symbolic link; ``""`` if it cannot be read.
    """
    try:
        return os.readlink(path)  # noqa: PTH115 Path is slow
    except (OSError, ValueError):
        return ""


def has_node_pids() -> bool:
    """
    Return whether process IDs are those of the node, not of a container.
    """
    return read_link("/proc/self/ns/pid") == _INITIAL_NAMESPACE


def list_numbers(path: str) -> list[int]:
    """
    Return the numeric names (PIDs, thread IDs, descriptors) in a folder,
    sorted.

    The list is empty if the folder cannot be read.
    """
    try:
        names = os.listdir(path)  # noqa: PTH208 as above
    except (OSError, ValueError):
        return []
    return sorted(int(n) for n in names if n.isascii() and n.isdigit())


def parse_stat(data: bytes | None) -> Stat | None:
    """
    Parse ``/proc/PID/stat``.

    The name in it may hold brackets, blanks, and line breaks; numbers follow
    the last bracket.

    Args:
        data: Content of the file; None if it could not be read.

    Returns:
        Its fields; ``None`` if it is no ``stat`` file.
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
    Parse ``/proc/PID/status`` into values by field name.

    The kernel escapes line breaks in names, so that no process can add fields.

    Args:
        data: Content of the file; None if it could not be read.
    """
    lines = (data or b"").decode(errors="replace").split("\n")
    pairs = (line.partition(":") for line in lines)
    return {key: value.strip() for key, colon, value in pairs if colon}


def whole_number(text: str | bytes | None) -> int | None:
    """
    Parse decimal digits.

    Returns:
        The number; ``None`` if there is anything but digits, or more than 40.
    """
    is_number = text and len(text) <= _MAX_DIGITS and text.isascii()
    return int(text) if text and is_number and text.isdigit() else None


# Returns bytes at an address; fewer or none where nothing is mapped.
MemoryReader = Callable[[int, int], bytes]

_MAX_READ_BYTES = 1 << 20
_PAGE = 4096


class Mount(NamedTuple):
    """
    A mounted file system.

    Attributes:
        root: The folder of it that is mounted.

        point: Where it is mounted.

        options: Its own options, separated by commas.
    """

    root: str
    point: str
    kind: str
    source: str
    options: str


def read_mounts(process: str) -> Iterator[Mount]:
    """
    Yield the file systems that a process or thread sees, in order of mounting.

    Args:
        process: Its folder in ``/proc``.
    """
    data = read_proc(f"{process}/mountinfo", limit=_MAX_MOUNTS_BYTES) or b""
    for line in data.decode("utf-8", "replace").splitlines():
        place, _, device = line.partition(" - ")
        # The kernel writes a blank as \\040.
        fields = [x.replace("\\040", " ") for x in place.split()]
        kind, source, options, *_ = *device.split(), "", "", ""
        if len(fields) >= 5:
            yield Mount(fields[3], fields[4], kind, source, options)


@contextmanager
def open_memory(pid: int, root: str = "/proc") -> Iterator[MemoryReader]:
    """
    Open the memory of a process for reading.

    Yields:
        A function of address and size, in bytes.  It returns at most 1 MiB,
        and less, or nothing, where the process has no memory, has ended, or
        may not be read.
    """
    try:
        fd = os.open(f"{root}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda _address, _size: b""
        return

    def read(address: int, size: int) -> bytes:
        try:
            return os.pread(fd, min(size, _MAX_READ_BYTES), address)
        except (OSError, OverflowError, ValueError):
            return b""

    try:
        yield read
    finally:
        os.close(fd)


def read_items(
    memory: MemoryReader, item: Struct, address: int, count: int
) -> list[tuple[Any, ...]]:
    """
    Read at most *count* items of a table; fewer where it ends.
    """
    data = memory(address, item.size * count)
    return list(item.iter_unpack(data[: len(data) // item.size * item.size]))


def read_c_string(memory: MemoryReader, address: int, *, limit: int) -> str:
    """
    Read a string that ends in a zero byte.

    Args:
        limit: Maximum number of bytes to read.

    Returns:
        The string; its first part if it has no end.
    """
    parts: list[bytes] = []
    while limit > 0:
        # Stay within the page: the next one may not be mapped.
        size = min(limit, _PAGE - address % _PAGE)
        part, end, _ = memory(address, size).partition(b"\0")
        parts.append(part)
        if end or len(part) < size:
            break
        address += size
        limit -= size
    return os.fsdecode(b"".join(parts))


_LOCK_LINE = (
    rb"([0-9]{1,9}): *(->)? *[A-Z]{1,10} +[A-Z]{1,10} +[A-Z]{1,10} +"
    rb"([0-9]{1,10}) "
)
# Enough for some ten thousand locks.
_MAX_BYTES = 1 << 20


def find_lock_holder(pid: int, root: str = "/proc") -> int | None:
    """
    Return the PID of the process that holds a file lock another one waits for.

    Args:
        pid: The process that waits.

    Returns:
        The PID; ``None`` if the holder is on another machine or in another
        container, or if the kernel does not list the lock.
    """
    holders: dict[bytes, int] = {}
    data = read_proc(f"{root}/locks", limit=_MAX_BYTES) or b""
    for line in data.splitlines():
        found = re.match(_LOCK_LINE, line)
        if found is None:
            continue
        number, waits, owner = found.groups()
        if not waits:
            holders[number] = int(owner)
        elif int(owner) == pid:
            # PID 0 stands for a process of another container.
            return holders.get(number) or None

    return None
