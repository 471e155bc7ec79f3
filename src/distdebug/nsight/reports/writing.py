"""
Is somebody still writing this report?
"""

from __future__ import annotations

from ...processes.proc.procfs import list_numbers, read_link, read_proc


__all__ = ["being_written"]

_WRITERS = (b"nsys", b"QdstrmImporter")


def being_written(proc: str = "/proc") -> frozenset[str]:
    """
    Which files do nsys and its importer have open on this node?

    Args:
        proc: Where the kernel tells of processes.

    Returns:
        Their paths.
    """
    found = set()
    for pid in list_numbers(proc):
        name = read_proc(f"{proc}/{pid}/comm") or b""
        if name.startswith(_WRITERS):
            folder = f"{proc}/{pid}/fd"
            for number in list_numbers(folder):
                found.add(read_link(f"{folder}/{number}"))
    return frozenset(found)
