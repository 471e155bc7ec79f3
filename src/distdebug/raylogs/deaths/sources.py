"""
Which logs of which nodes tell who ended, and what do they tell?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs

from ...findings import Missing
from ..listing import parts_of
from ..model import RaySession
from .core import core_logs, read_core
from .events import read_events
from .facts import Facts, facts_of
from .gcs import read_gcs
from .notes import Exit, Note, Placement
from .raylet import read_raylet


__all__ = ["gather"]


def gather(sessions: Iterable[RaySession]) -> Facts:
    """
    Read what the nodes of a cluster tell about ends.

    Args:
        sessions: One for each node.

    Returns:
        What they tell.
    """
    missing: list[Missing] = []
    sessions = tuple(sessions)
    notes: list[Note] = []
    # The clock of the head is the same for all nodes, so it comes first.
    for read in (_of_head, _of_workers, _of_events, _of_node):
        for session in sessions:
            notes += read(session, missing)
    if not any(parts_of(x, "gcs_server", "out") for x in sessions):
        missing.append(_no_head(sessions))
    return facts_of(notes, missing)


def _of_head(session: RaySession, missing: list[Missing]) -> Iterator[Note]:
    for path in parts_of(session, "gcs_server", "out"):
        yield from _guarded(read_gcs, path, missing)


def _of_node(session: RaySession, missing: list[Missing]) -> Iterator[Note]:
    for path in parts_of(session, "raylet", "out"):
        yield from _guarded(
            lambda path: read_raylet(path, session.node_id), path, missing
        )


def _of_events(session: RaySession, missing: list[Missing]) -> Iterator[Note]:
    folder = attrs.evolve(session, logs=session.logs / "events")
    for path in parts_of(folder, "event_RAYLET", "log"):
        yield from _guarded(read_events, path, missing)


def _of_workers(session: RaySession, missing: list[Missing]) -> Iterator[Note]:
    for worker, (path, pid) in core_logs(session).items():
        yield Placement(worker_id=worker, pid=pid)
        for note in _guarded(
            lambda path, w=worker, p=pid: read_core(path, w, p),  # type: ignore[misc]
            path,
            missing,
        ):
            if isinstance(note, Exit):
                yield attrs.evolve(
                    note, node_id=session.node_id, ip=session.ip
                )


def _guarded(
    read: Callable[[Path], Iterator[Note]], path: Path, missing: list[Missing]
) -> Iterator[Note]:
    try:
        yield from read(path)
    except (OSError, ValueError, EOFError) as exc:
        missing.append(Missing.log(path, exc))


def _no_head(sessions: tuple[RaySession, ...]) -> Missing:
    return Missing(
        what="log",
        reason="gcs_server.out of the head node is not here: deaths on nodes "
        "that were not copied are unknown, and times are those of each node",
        source=str(sessions[0].logs) if sessions else None,
    )
