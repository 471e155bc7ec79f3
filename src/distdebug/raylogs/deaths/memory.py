"""
Who had how much memory when a node ran out of it?

Since version 2.56 Ray kills several workers at once, and before that the
youngest one first: neither has to be the one with the most memory.
"""

from __future__ import annotations

import re

from collections.abc import Iterator

from .notes import Memory


__all__ = ["memory_notes"]

_GB = 1 << 30
_NODE = re.compile(r"on the node \(IP: [^,]{1,60}, ID: (?P<id>[0-9a-f]{56})\)")
# Since 2.56 "pid=1, actual memory used=1.29GB, worker ID=…", one in a line;
# before "pid=1, memory used=1.29GB) … Ray killed this worker (ID: …)".
_PROCESS = re.compile(
    r"\bpid=(?P<pid>\d{1,10}), (?:actual )?memory used="
    r"(?P<size>[\d.]{1,12})GB"
)
_WORKER = re.compile(
    r"(?:worker ID=|killed this worker \(ID: )(?P<id>[0-9a-f]{56})"
)
_NEAR = 400
_TOP = re.compile(
    r"^(?:Top \d{1,3} memory users: )?(?P<pid>\d{1,10})[\t ]{1,9}"
    r"(?P<size>\d{1,6}\.\d{1,3})[\t ]{1,9}(?P<command>\S[^\n]{0,200})$",
    re.MULTILINE,
)


def memory_notes(text: str) -> Iterator[Memory]:
    """
    Read what Ray says about memory when it kills.

    Args:
        text: The record, of several lines.

    Yields:
        The processes that it lists; those that were killed with their
        worker.
    """
    node = _NODE.search(text)
    node_id = node["id"] if node else None
    for found in _PROCESS.finditer(text):
        worker = _WORKER.search(text, found.end(), found.end() + _NEAR)
        yield Memory(
            pid=int(found["pid"]),
            size=_size(found["size"]),
            node_id=node_id,
            worker_id=worker["id"] if worker else None,
        )
    if "memory users" in text:
        for found in _TOP.finditer(text):
            yield Memory(
                pid=int(found["pid"]),
                size=_size(found["size"]),
                node_id=node_id,
                command=found["command"],
            )


def _size(text: str) -> int:
    try:
        return int(float(text) * _GB)
    except ValueError:  # such as 1.2.3
        return 0
