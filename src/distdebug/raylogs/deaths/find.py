"""
Who died in a cluster, how, and who was it?
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from ...findings import Evidence
from ..actors import KnownActor, exported_actors
from ..model import RaySession, WorkerLog
from ..workers import worker_logs
from .facts import Facts
from .kinds import exit_code_of, kind_of
from .last_words import LastWords, hear, read_end
from .model import Death, Deaths
from .nodes import died_with_node, node_deaths
from .notes import Exit, Placement
from .order import judge
from .sources import gather
from .who import killed_by_kernel, known, placed, with_words


__all__ = ["find_deaths"]

_T = TypeVar("_T")
_MOST_DETAIL = 8000


def find_deaths(
    sessions: RaySession | Iterable[RaySession],
    *,
    oom_kills: Collection[tuple[str, int]] = (),
) -> Deaths:
    """
    Tell who died in a Ray cluster, how, and what came first.

    Everything is read from files, so it works days after the cluster was
    stopped.  The log of the head knows the deaths of all nodes; the folders of
    the nodes add who it was and what it said last.

    Args:
        sessions: The session folders of the nodes of a cluster.

        oom_kills: Processes that the kernel killed for want of memory, which
            no log of Ray tells: the host or address of the node (``""`` for
            any) and the number of the process.

    Returns:
        All ends, in the order of time, also those that were intended.
    """
    if isinstance(sessions, RaySession):
        sessions = (sessions,)
    sessions = tuple(sessions)
    facts = gather(sessions)
    logs = {log.worker_id: log for log in worker_logs(sessions)}
    actors: dict[str, KnownActor] = {}
    for session in sessions:
        actors |= exported_actors(session)
    found = [*_told(facts, logs, actors), *_crashed(facts, logs)]
    places = {x.node_id: x for x in sessions if x.node_id}
    nodes = node_deaths(facts, sessions)
    found += died_with_node(facts, nodes, {x.worker_id for x in found}, logs)
    deaths = [killed_by_kernel(placed(x, places), oom_kills) for x in found]
    return Deaths(
        deaths=judge([*deaths, *nodes], facts),
        missing=facts.missing,
        not_started=tuple(note.seen for note in facts.not_started),
    )


def _told(
    facts: Facts,
    logs: Mapping[str, WorkerLog],
    actors: Mapping[str, KnownActor],
) -> Iterator[Death]:
    for worker_id, exits in facts.exits.items():
        log = logs.get(worker_id)
        # Who left in good order has no last words worth reading.
        is_calm = all(x.exit_type.startswith("INTENDED") for x in exits)
        text = read_end(log.err) if log and not is_calm else ""
        words = hear(text)
        kind, owner = kind_of(exits, facts.orphans.get(worker_id), words)
        place = facts.placements.get(worker_id)
        actor_id = (log.actor_id if log else None) or (
            place.actor_id if place else None
        )
        death = attrs.evolve(
            _ended(exits, place), kind=kind, owner=owner, actor_id=actor_id
        )
        death = known(death, log, actors.get(actor_id or ""))
        yield with_words(death, log, text, words)


def _ended(exits: Sequence[Exit], place: Placement | None) -> Death:
    """
    What lines about its end tell, the most trusted ones first.
    """
    details = (x.detail for x in exits if x.detail)
    pids = [*(x.pid for x in exits), place.pid if place else None]
    # Nodes on one machine may share a folder, so the head knows best.
    nodes = [place.node_id if place else None, *(x.node_id for x in exits)]
    return Death(
        kind="intended",
        worker_id=exits[0].worker_id,
        time=_first(x.time for x in exits),
        pid=_first(pids),
        node_id=_first(nodes),
        ip=_first(x.ip for x in exits),
        exit_type=_first(x.exit_type or None for x in exits),
        detail=next(details, "")[:_MOST_DETAIL],
        exit_code=exit_code_of(exits),
        evidence=tuple(_each_source(x.seen for x in exits)),
        log=Path(exits[0].seen.source),
    )


def _crashed(facts: Facts, logs: Mapping[str, WorkerLog]) -> Iterator[Death]:
    """
    Those whose end nobody tells but they themselves.
    """
    for worker_id, log in logs.items():
        if worker_id in facts.exits:
            continue
        text = read_end(log.err)
        words = hear(text) if "SIG" in text or "Fatal" in text else LastWords()
        if words.signal is None:
            continue
        kind, _ = kind_of((), None, words)
        death = Death(
            kind=kind,
            worker_id=worker_id,
            time=words.time or log.mtime or None,
            pid=log.pid,
        )
        yield with_words(known(death, log, None), log, text, words)


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((x for x in values if x is not None), None)


def _each_source(seen: Iterable[Evidence]) -> Iterator[Evidence]:
    sources = set()
    for evidence in seen:
        if evidence.source not in sources:
            sources.add(evidence.source)
            yield evidence
