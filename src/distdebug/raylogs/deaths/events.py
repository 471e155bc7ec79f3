"""
What do the events tell that Ray writes as lines of JSON?

Only workers that died with a task at hand are in ``event_RAYLET.log``, with
the number of their process, which the log of the head leaves out.
"""

from __future__ import annotations

import json
import re

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..._lines import open_log
from ..._text import without_controls
from ...findings import Evidence
from .memory import memory_notes
from .notes import Exit, Note


__all__ = ["read_events"]

_LONGEST = 1 << 18
_QUOTED = 600
_FIELDS = {
    "node_id": re.compile(r"Node ID: ([0-9a-f]{56})"),
    "ip": re.compile(r"Worker IP address: (\S{1,60})"),
    "pid": re.compile(r"Worker PID: (\d{1,10})"),
    "exit_type": re.compile(r"Worker exit type: (\w{1,40})"),
    "detail": re.compile(r"Worker exit detail: (.*)", re.DOTALL),
}
_MOST_SECONDS = 1 << 33
_WORKER = re.compile(r"[0-9a-f]{56}")


def read_events(path: Path) -> Iterator[Note]:
    """
    Read the ends that a node reported as events.

    Args:
        path: ``events/event_RAYLET.log``.

    Yields:
        What its lines tell; those that are no JSON tell nothing.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    for number, event in _objects(path):
        message = event.get("message")
        fields = event.get("custom_fields")
        if not isinstance(message, str) or not isinstance(fields, Mapping):
            continue
        text = without_controls(message.replace("\\n", "\n"))
        text = text.replace("\\t", "\t")
        yield from memory_notes(text)
        worker, time = fields.get("worker_id"), event.get("timestamp")
        if event.get("label") != "RAY_WORKER_FAILURE" or not _is_worker(
            worker
        ):
            continue
        known = {
            name: found[1].strip()
            for name, pattern in _FIELDS.items()
            if (found := pattern.search(text))
        }
        pid = known.pop("pid", None)
        yield Exit(
            worker_id=str(worker),
            time=_moment(time),
            pid=int(pid) if pid else None,
            seen=Evidence(
                kind="log",
                source=str(path),
                location=f"line {number}",
                quote=text[:_QUOTED],
            ),
            **known,
        )


def _objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with open_log(path) as file:
        number = 0
        while line := file.readline(_LONGEST):
            number += 1
            # Most of what is none is told without an exception.
            if not line.lstrip().startswith(b"{"):
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield number, event


def _moment(value: object) -> float | None:
    # JSON knows numbers that are no time, and such that are too large.
    is_time = isinstance(value, int | float) and 0 <= value < _MOST_SECONDS
    return float(value) if is_time else None  # type: ignore[arg-type]


def _is_worker(value: object) -> bool:
    return isinstance(value, str) and _WORKER.fullmatch(value) is not None
