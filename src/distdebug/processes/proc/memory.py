"""
How is the memory of another process read without stopping it?
"""

from __future__ import annotations

import os

from collections.abc import Callable, Iterator
from contextlib import contextmanager


__all__ = ["Memory", "open_memory", "read_c_string"]

# Gives what is at an address, shorter or empty where nothing is mapped.
Memory = Callable[[int, int], bytes]

_MOST = 1 << 20
_PAGE = 4096


@contextmanager
def open_memory(pid: int, root: str = "/proc") -> Iterator[Memory]:
    """
    Read the memory of a process.

    Args:
        pid: The process.

        root: Where the kernel's files are.

    Yields:
        A function of address and size, in bytes.  It gives at most 1 MiB, and
        less, or nothing, where the process has no memory, is gone, or may not
        be read.
    """
    try:
        fd = os.open(f"{root}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda _address, _size: b""
        return

    def read(address: int, size: int) -> bytes:
        try:
            return os.pread(fd, min(size, _MOST), address)
        except (OSError, OverflowError, ValueError):
            return b""

    try:
        yield read
    finally:
        os.close(fd)


def read_c_string(memory: Memory, address: int, *, limit: int) -> str:
    """
    Read a text that ends in a zero byte.

    Args:
        memory: Where it is.

        address: Where it begins.

        limit: How many bytes to read at most.

    Returns:
        The text; what is there of it if it does not end.
    """
    parts: list[bytes] = []
    while limit > 0:
        # Not beyond the page: the next one may not be there.
        size = min(limit, _PAGE - address % _PAGE)
        part, end, _ = memory(address, size).partition(b"\0")
        parts.append(part)
        if end or len(part) < size:
            break
        address += size
        limit -= size
    return os.fsdecode(b"".join(parts))
