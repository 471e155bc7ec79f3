"""
What does the log of a node tell about the ends of its workers?

``raylet.out`` is on every node; it tells less than the log of the head, and
before version 2.50 it does not tell which worker it means.
"""

from __future__ import annotations

import re

from collections.abc import Iterator
from pathlib import Path

from .memory import memory_notes
from .notes import (
    Exit,
    JobEnd,
    Killing,
    NodeEnd,
    Note,
    NotStarted,
    Orphan,
)
from .scan import Record, read_records


__all__ = ["read_raylet"]

_WORDS = (
    b"isconnecting ",
    b"its owner died",
    b"because the owner process",
    b"emory on the node",
    b"kill details",
    b"Killing worker with task",
    b"have not registered within the timeout",
    b"received SIGTERM",
    b"is disconnected",
)
# WorkerExitType of Ray's common.proto.
_TYPES = {
    "0": "SYSTEM_ERROR",
    "1": "INTENDED_SYSTEM_EXIT",
    "2": "USER_ERROR",
    "3": "INTENDED_USER_EXIT",
    "4": "NODE_OUT_OF_MEMORY",
}
_DISCONNECT = re.compile(
    r"Disconnecting (?:worker|client|driver), graceful=(?P<graceful>\w{1,5}), "
    r"disconnect_type=(?P<type>\d), .{0,200}?"
    r"worker_id=(?P<worker>[0-9a-f]{56})"
)
_ORPHAN = re.compile(
    r"leased worker (?P<worker>[0-9a-f]{56}) is killed because the owner "
    r"process (?P<owner>[0-9a-f]{56}) died"
)
_ORPHAN_NEW = re.compile(
    r"its owner died\. worker_id=(?P<worker>[0-9a-f]{56}) "
    r"owner_worker_id=(?P<owner>[0-9a-f]{56})"
)
_DRIVER = re.compile(
    r"Driver \(pid=\d{1,10}\) is disconnected\."
    r".{0,100}?job_id[=:] ?(?P<job>[0-9a-f]{8})"
)
_STOP = re.compile(r"main\.cc:\d{1,6}: (?:Raylet )?received SIGTERM")


def read_raylet(path: Path, node_id: str | None = None) -> Iterator[Note]:
    """
    Read what the log of a node tells about ends.

    Args:
        path: ``raylet.out``, or a part of it.

        node_id: What Ray calls the node.

    Yields:
        What its lines tell.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    for record in read_records(path, _WORDS):
        text = record.text
        if found := _DISCONNECT.search(text):
            yield Exit(
                worker_id=found["worker"],
                time=record.time,
                exit_type=_TYPES.get(found["type"], ""),
                node_id=node_id,
                seen=record.seen,
            )
        elif found := _ORPHAN.search(text) or _ORPHAN_NEW.search(text):
            yield Orphan(
                worker_id=found["worker"],
                owner=found["owner"],
                time=record.time,
                seen=record.seen,
            )
        elif found := _DRIVER.search(text):
            yield JobEnd(job_id=found["job"], time=record.time)
        elif "not registered within the timeout" in text:
            yield NotStarted(time=record.time, seen=record.seen)
        elif _STOP.search(text):
            yield NodeEnd(
                node_id=node_id,
                time=record.time,
                reason="received SIGTERM",
                is_expected=True,
                seen=record.seen,
            )
        elif "emory on the node" in text:
            yield from _killings(record, node_id)


def _killings(record: Record, node_id: str | None) -> Iterator[Note]:
    # The message that goes with the record is where the details begin.
    detail = record.text[record.text.find("emory on the node") - 1 :]
    for note in memory_notes(record.text):
        yield note
        if note.worker_id is not None:
            yield Killing(
                worker_id=note.worker_id,
                time=record.time,
                detail=detail,
                pid=note.pid,
                node_id=note.node_id or node_id,
                seen=record.seen,
            )
