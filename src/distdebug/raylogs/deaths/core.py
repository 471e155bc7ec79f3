"""
What did the library of Ray inside a worker write when the worker ended?

``python-core-worker-ID_PID.log`` tells who left in good order, and why.  A
process that was killed had no time to write anything.
"""

from __future__ import annotations

import re

from collections.abc import Iterator
from pathlib import Path

from ..._lines import parse_time, read_tail
from ...findings import Evidence
from ..listing import list_parts
from ..model import RaySession
from .notes import Exit, Note
from .scan import decoded


__all__ = ["core_logs", "read_core"]

_NAME = re.compile(
    r"python-core-(?:worker|driver)-(?P<worker>[0-9a-f]{56})_"
    r"(?P<pid>\d{1,10})"
)
_TAIL = 1 << 17
_QUOTED = 600
_DISCONNECT = re.compile(
    r"Disconnect, exit_type=(?P<type>\w{1,40}), exit_detail=(?P<detail>.*?)"
    r"(?:, has creation_task_exception_pb_bytes=\d{1,9}|(?=\n\[20\d\d-)|\Z)",
    re.DOTALL,
)
_SIGNAL = re.compile(
    r"exit_type=(?P<type>\w{1,40}), detail=(?P<detail>.*?)(?=\n\[20\d\d-|\Z)",
    re.DOTALL,
)
_NO_RAYLET = re.compile(
    r"(?P<detail>Shutting down the core worker because the local raylet "
    r"failed[^\n]{0,200})"
)
_LONGEST = 8000
_WORDS = (b"exit_type=", b"local raylet failed")


def core_logs(session: RaySession) -> dict[str, tuple[Path, int]]:
    """
    Which logs of workers and drivers does a session have?

    Args:
        session: The session of one node.

    Returns:
        By worker: its newest file, and its process.
    """
    listed, _ = list_parts(session, "python-core-")
    found = ((_NAME.fullmatch(stem), x) for (stem, _), x in listed.items())
    return {
        name["worker"]: (parts[-1].path, int(name["pid"]))
        for name, parts in found
        if name
    }


def read_core(path: Path, worker_id: str, pid: int) -> Iterator[Note]:
    """
    Read how a worker ended, as it wrote itself.

    Args:
        path: Its log; of which the last 128 KiB are read.

        worker_id: What Ray calls it.

        pid: The number of its process.

    Yields:
        At most one end.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    data = read_tail(path, _TAIL)
    if not any(word in data for word in _WORDS):
        return

    text = decoded(data)
    patterns = (_DISCONNECT, _SIGNAL, _NO_RAYLET)
    found = next(filter(None, (x.search(text) for x in patterns)), None)
    if found is None:
        return

    begin = text.rfind("\n", 0, found.start()) + 1
    groups = found.groupdict()
    yield Exit(
        worker_id=worker_id,
        time=parse_time(text[begin : found.end()]),
        exit_type=groups.get("type") or "SYSTEM_ERROR",
        detail=groups["detail"][:_LONGEST].strip(),
        pid=pid,
        seen=Evidence(
            kind="log",
            source=str(path),
            # In a part it is not known how many lines are before.
            location=""
            if len(data) == _TAIL
            else f"line {text.count(chr(10), 0, begin) + 1}",
            quote=text[begin : found.end()][:_QUOTED],
        ),
    )
