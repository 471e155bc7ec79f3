"""
What does the log of Ray's head tell about the ends of workers and nodes?

``gcs_server.out`` has the same line for every death in versions 2.9 to 2.60;
what stands around it differs.
"""

from __future__ import annotations

import re

from collections.abc import Iterator
from pathlib import Path

from .memory import memory_notes
from .notes import Exit, JobEnd, NodeEnd, Note, Placement
from .scan import Record, read_records


__all__ = ["read_gcs"]

_WORDS = (
    b"Reporting worker exit",
    b"actor creation task",
    b"is failed on worker",
    b"marked dead",
    b"death reason",
    b"Marking job as finished",
    b"Finished marking job state",
)
_EXIT = re.compile(
    r"Reporting worker exit, worker id = (?P<worker>[0-9a-f]{56}), "
    r"node id = (?P<node>[0-9a-f]{56}|NIL_ID)?, address = (?P<ip>[^,]{0,60}), "
    r"exit_type = (?P<type>\w{0,40}), exit_detail = (?P<detail>.*)",
    re.DOTALL,
)
_SUFFIX = ". Unintentional worker failures have been reported."
_ACTOR = re.compile(
    r"\bactor(?:_id=| id = | )(?P<id>[0-9a-f]{32})\b", re.IGNORECASE
)
_WORKER = re.compile(
    r"\bworker(?:_id=| id = | )(?P<id>[0-9a-f]{56})\b", re.IGNORECASE
)
_NODE = re.compile(
    r"\bnode(?:_id=| id[=:] ?| )(?P<id>[0-9a-f]{56})\b", re.IGNORECASE
)
_REASON = re.compile(
    r"death reason = (?P<reason>\w{1,40})(?:, death message = "
    r"(?P<message>.{0,300}?))?(?: node_id=|, node name|$)",
    re.MULTILINE,
)
# NodeDeathInfo of Ray's gcs.proto; all others are wanted.
_LOST = re.compile(r"^UNEXPECTED|PREEMPTED")
_ADDRESS = re.compile(r"and address: (?P<ip>[^\s,]{1,60})")
_JOB = re.compile(r"\bjob(?:_id=| id = )(?P<id>[0-9a-f]{8})\b", re.IGNORECASE)


def read_gcs(path: Path) -> Iterator[Note]:
    """
    Read what the log of the head tells about ends.

    Args:
        path: ``gcs_server.out``, or a part of it.

    Yields:
        What its lines tell.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    for record in read_records(path, _WORDS):
        if "Reporting worker exit" in record.text:
            yield from _exits(record)
        elif "marked dead" in record.text or "death reason" in record.text:
            yield from _nodes(record)
        elif "job" in record.text and "arking job" in record.text:
            if found := _JOB.search(record.text):
                yield JobEnd(job_id=found["id"], time=record.time)
        else:
            yield from _placements(record)


def _exits(record: Record) -> Iterator[Note]:
    found = _EXIT.search(record.text)
    if found is None:
        return

    yield Exit(
        worker_id=found["worker"],
        time=record.time,
        exit_type=found["type"],
        detail=found["detail"].partition(_SUFFIX)[0].strip(),
        node_id=found["node"],
        ip=found["ip"] or None,
        seen=record.seen,
    )
    yield from memory_notes(record.text)


def _nodes(record: Record) -> Iterator[Note]:
    node = _NODE.search(record.text)
    if node is None:
        return

    reason = _REASON.search(record.text)
    address = _ADDRESS.search(record.text)
    yield NodeEnd(
        node_id=node["id"],
        time=record.time,
        reason=(reason["message"] or reason["reason"])
        if reason
        else "it did not answer health checks",
        is_expected=reason is not None and not _LOST.search(reason["reason"]),
        ip=address["ip"] if address else None,
        seen=record.seen,
    )


def _placements(record: Record) -> Iterator[Note]:
    worker = _WORKER.search(record.text)
    if worker is None:
        return

    actor, node = _ACTOR.search(record.text), _NODE.search(record.text)
    yield Placement(
        worker_id=worker["id"],
        actor_id=actor["id"] if actor else None,
        node_id=node["id"] if node else None,
    )
