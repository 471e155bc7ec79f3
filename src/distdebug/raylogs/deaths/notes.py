"""
What can one line of Ray's own logs tell about the end of somebody?
"""

from __future__ import annotations

import attrs

from ...findings import Evidence


__all__ = [
    "Exit",
    "JobEnd",
    "Killing",
    "Memory",
    "NodeEnd",
    "NotStarted",
    "Note",
    "Orphan",
    "Placement",
]


@attrs.frozen(kw_only=True)
class Exit:
    """
    A worker ended.

    Attributes:
        worker_id: Which.

        time: When, in seconds since the epoch.

        exit_type: Ray's word for it; ``""`` if the line has none.

        detail: What Ray says about it.

        node_id: The node.

        ip: Its address.

        pid: The number of the process.

        seen: The line.
    """

    worker_id: str
    time: float | None = None
    exit_type: str = ""
    detail: str = ""
    node_id: str | None = None
    ip: str | None = None
    pid: int | None = None
    seen: Evidence


@attrs.frozen(kw_only=True)
class Orphan:
    """
    A worker was killed because its owner was dead.
    """

    worker_id: str
    owner: str
    time: float | None
    seen: Evidence


@attrs.frozen(kw_only=True)
class Memory:
    """
    How much memory a process had when there was too little of it.
    """

    pid: int
    size: int
    node_id: str | None = None
    worker_id: str | None = None
    command: str = ""


@attrs.frozen(kw_only=True)
class Killing:
    """
    Ray killed a worker to regain memory.
    """

    worker_id: str
    time: float | None
    detail: str
    pid: int | None = None
    node_id: str | None = None
    seen: Evidence


@attrs.frozen(kw_only=True)
class NodeEnd:
    """
    A node left the cluster.
    """

    node_id: str | None
    time: float | None
    reason: str
    is_expected: bool
    ip: str | None = None
    seen: Evidence


@attrs.frozen(kw_only=True)
class JobEnd:
    """
    The driver of a job was gone.
    """

    job_id: str
    time: float | None


@attrs.frozen(kw_only=True)
class Placement:
    """
    Which process a worker is, which actor it became, and where.
    """

    worker_id: str
    actor_id: str | None = None
    node_id: str | None = None
    pid: int | None = None


@attrs.frozen(kw_only=True)
class NotStarted:
    """
    Worker processes never told Ray that they run.
    """

    time: float | None
    seen: Evidence


Note = (
    Exit
    | Orphan
    | Memory
    | Killing
    | NodeEnd
    | JobEnd
    | Placement
    | NotStarted
)
