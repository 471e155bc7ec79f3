"""
What do all logs of all nodes tell together about who ended?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs

from ...findings import Missing
from .notes import (
    Exit,
    JobEnd,
    Killing,
    Memory,
    NodeEnd,
    Note,
    NotStarted,
    Orphan,
    Placement,
)


__all__ = ["Facts", "facts_of"]

# A node and a driver that are stopped together end within these seconds.
_AT_ONCE = 5.0


@attrs.frozen(kw_only=True)
class Facts:
    """
    What was gathered, by what it is about.

    Attributes:
        exits: By worker: all lines about its end, the most trusted first.

        orphans: By worker that died with its owner.

        memory: All that is known of memory when it ran out.

        nodes: The ends of nodes, in the order of time.

        jobs: When the driver of a job was gone.

        placements: By worker: its process, actor, and node.

        not_started: Lines about workers that never registered.

        missing: What could not be read.
    """

    exits: Mapping[str, tuple[Exit, ...]]
    orphans: Mapping[str, Orphan]
    memory: tuple[Memory, ...]
    nodes: tuple[NodeEnd, ...]
    jobs: Mapping[str, float]
    placements: Mapping[str, Placement]
    not_started: tuple[NotStarted, ...]
    missing: tuple[Missing, ...]


def facts_of(notes: Iterable[Note], missing: Iterable[Missing]) -> Facts:
    """
    Put notes in order.

    Args:
        notes: All of all nodes; of several about the same, the first is the
            most trusted.

        missing: What could not be read.

    Returns:
        What they tell together.
    """
    by_type: dict[type, list[Any]] = defaultdict(list)
    for note in notes:
        by_type[type(note)].append(note)
    exits: dict[str, list[Exit]] = defaultdict(list)
    for told in (*by_type[Exit], *map(_as_exit, by_type[Killing])):
        exits[told.worker_id].append(told)
    memory: dict[tuple[str | None, int], Memory] = {}
    for size in by_type[Memory]:
        _keep_most(memory, size)
    jobs: dict[str, float] = {}
    for job in by_type[JobEnd]:
        if job.time is not None:
            jobs[job.job_id] = min(job.time, jobs.get(job.job_id, job.time))
    placements: dict[str, Placement] = {}
    for place in by_type[Placement]:
        before = placements.get(place.worker_id)
        placements[place.worker_id] = _joined(before, place)
    own = defaultdict(set)
    for place in placements.values():
        own[place.node_id].add((place.actor_id or "")[24:])
    nodes = [_in_time(x, own[x.node_id], jobs) for x in by_type[NodeEnd]]
    nodes.sort(key=lambda node: node.time or 0)
    return Facts(
        exits={worker: tuple(told) for worker, told in exits.items()},
        # The first of several is the most trusted.
        orphans={x.worker_id: x for x in reversed(by_type[Orphan])},
        memory=tuple(memory.values()),
        nodes=tuple(nodes),
        jobs=jobs,
        placements=placements,
        not_started=tuple(by_type[NotStarted]),
        missing=tuple(missing),
    )


def _in_time(
    node: NodeEnd, own: Collection[str], jobs: Mapping[str, float]
) -> NodeEnd:
    """
    A node that is stopped while its job goes on is lost to that job.
    """
    ends = [jobs[job] for job in own if job in jobs]
    if not node.is_expected or node.time is None or not ends:
        return node
    if max(ends) - node.time < _AT_ONCE:
        return node
    reason = f"{node.reason} while its job went on"
    return attrs.evolve(node, is_expected=False, reason=reason)


def _as_exit(note: Killing) -> Exit:
    return Exit(
        worker_id=note.worker_id,
        time=note.time,
        exit_type="NODE_OUT_OF_MEMORY",
        detail=note.detail,
        node_id=note.node_id,
        pid=note.pid,
        seen=note.seen,
    )


def _keep_most(
    memory: dict[tuple[str | None, int], Memory], note: Memory
) -> None:
    known = memory.get((note.node_id, note.pid), note)
    memory[note.node_id, note.pid] = attrs.evolve(
        note,
        size=max(known.size, note.size),
        worker_id=known.worker_id or note.worker_id,
        command=known.command or note.command,
    )


def _joined(known: Placement | None, note: Placement) -> Placement:
    if known is None:
        return note

    return attrs.evolve(
        known,
        actor_id=note.actor_id or known.actor_id,
        node_id=note.node_id or known.node_id,
        pid=note.pid or known.pid,
    )
