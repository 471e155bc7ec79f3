"""
Who holds the lock of a file that a process waits for?

The format of ``/proc/locks`` is told by ``proc_locks(5)``: a lock and all who
wait for it bear one number.
"""

from __future__ import annotations

import re

from .procfs import read_proc


__all__ = ["lock_holder"]

_LINE = re.compile(
    rb"([0-9]{1,9}): *(->)? *[A-Z]{1,10} +[A-Z]{1,10} +[A-Z]{1,10} +"
    rb"([0-9]{1,10}) "
)
# Of a machine with some ten thousand locks.
_MOST_BYTES = 1 << 20


def lock_holder(pid: int, root: str = "/proc") -> int | None:
    """
    Find the process that holds what another one waits for.

    Args:
        pid: Who waits.

        root: Where the kernel's files are.

    Returns:
        The process that took the lock; ``None`` if nobody on this machine
        did, or the kernel does not say.
    """
    holders: dict[bytes, int] = {}
    data = read_proc(f"{root}/locks", limit=_MOST_BYTES) or b""
    for line in data.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        number, waits, owner = found.groups()
        if not waits:
            holders[number] = int(owner)
        elif int(owner) == pid:
            # Nobody has the number 0: it is of another container.
            return holders.get(number) or None

    return None
