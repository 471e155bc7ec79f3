"""
Who died in a cluster, how, and who was it?
"""

from __future__ import annotations

import os

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import attrs

from ..findings import Evidence
from .death_model import (
    Death,
    Deaths,
    exit_code_of,
    is_driver,
    kind_of,
    rank_of,
)
from .death_sources import Facts, gather
from .log_tail import Exit, LastWords, Memory, Placement, hear, read_end
from .sessions import RaySession, WorkerLog
from .workers import KnownActor, exported_actors, worker_logs


_NEVER_FIRST = frozenset({"intended", "job_ended", "owner_died"})
# Between the loss of a node and the time at which the head tells of it.
_HEARTBEATS = 60.0
# One shortage of memory may make Ray kill several times.
_SAME_SHORTAGE = 30.0
# "ray stop" ends all processes of a node within this time.
_STOPPING = 3.0
# A process tells the time of its own end in whole seconds.
_OWN_CLOCK = 1.0
# What is ended at once is told a little out of order.
_AT_ONCE = 0.25


def judge(deaths: Iterable[Death], facts: Facts) -> tuple[Death, ...]:
    """
    Tell the first death from those that follow.

    Args:
        deaths: All of them.

        facts: When jobs and nodes ended, and who had how much memory.

    Returns:
        The same, in the order of time, and marked.
    """
    ordered = sorted(deaths, key=_moment)
    ordered = [_with_memory(death, facts.memory) for death in ordered]
    lost = {x.node_id: x.time for x in ordered if not x.worker_id}
    ordered = [_wanted(death, lost, facts) for death in ordered]
    follows = _innocent(ordered)
    follows |= {
        i for i, death in enumerate(ordered) if _follows(death, lost, facts)
    }
    first = _first(ordered, follows)
    if first is not None:
        moment = ordered[first].time
        follows |= {
            i
            for i, death in enumerate(ordered)
            if i != first and _complains(death) and _within(death.time, moment)
        }
    return tuple(
        attrs.evolve(death, is_first=i == first, is_collateral=i in follows)
        for i, death in enumerate(ordered)
    )


def _wanted(
    death: Death, lost: Mapping[str | None, float | None], facts: Facts
) -> Death:
    """
    Nobody died with a node that somebody stopped.
    """
    if death.kind != "node_died" or death.node_id in lost:
        return death
    is_wanted = _is_stopping(death, facts)
    return attrs.evolve(death, kind="intended") if is_wanted else death


def _moment(death: Death) -> tuple[bool, float, bool]:
    # A node dies before those who were on it.
    return death.time is None, death.time or 0.0, bool(death.worker_id)


def _first(ordered: Sequence[Death], follows: set[int]) -> int | None:
    wanted = [
        i
        for i, death in enumerate(ordered)
        if death.kind not in _NEVER_FIRST and i not in follows
    ]
    if not wanted or not _complains(ordered[wanted[0]]):
        return wanted[0] if wanted else None

    begin = ordered[wanted[0]].time
    others = (
        i
        for i in wanted
        if not _complains(ordered[i]) and _soon(ordered[i].time, begin)
    )
    return next(others, wanted[0])


def _soon(time: float | None, begin: float | None) -> bool:
    if time is None or begin is None:
        return False
    return time - begin <= _HEARTBEATS


def _within(time: float | None, first: float | None) -> bool:
    if time is None or first is None:
        return True
    return time >= first - _HEARTBEATS


def _complains(death: Death) -> bool:
    if death.kind == "collective_timeout":
        return True
    if death.kind not in {"native_crash", "init_error", "exit_code"}:
        return False
    return hear("\n".join((*death.last_lines, death.error or ""))).lost_peer


def _follows(
    death: Death, lost: Mapping[str | None, float | None], facts: Facts
) -> bool:
    if is_driver(death.worker_id) or not death.worker_id:
        return False
    if death.kind in {"owner_died", "job_ended"}:
        return True
    if death.kind == "intended":
        return False
    if death.kind == "node_died" and death.node_id in lost:
        return True
    return (
        _is_after_job(death, facts)
        or _is_stopping(death, facts)
        or _is_with_node(death, lost)
    )


def _is_with_node(
    death: Death, lost: Mapping[str | None, float | None]
) -> bool:
    moment = lost.get(death.node_id)
    if moment is None or death.time is None:
        return False
    return death.time >= moment - (
        _STOPPING if death.kind == "terminated" else 0.0
    )


def _is_after_job(death: Death, facts: Facts) -> bool:
    if death.time is None or not facts.jobs:
        return False
    end = facts.jobs.get(death.job_id or "")
    if end is None:
        end = max(facts.jobs.values()) if death.job_id is None else None
    # A process that dies with its driver is a little late, never early.
    return end is not None and death.time >= end


def _is_stopping(death: Death, facts: Facts) -> bool:
    """
    Whether somebody stopped the node at that time.
    """
    return any(
        node.is_expected
        and node.node_id == death.node_id
        and node.time is not None
        and death.time is not None
        and death.time >= node.time - _early(death)
        and not _has_ended_job(death, node.time, facts)
        for node in facts.nodes
    )


def _early(death: Death) -> float:
    """
    How long before its node a process may end that is stopped with it.
    """
    if death.kind == "terminated":
        return _STOPPING
    is_own = death.kind == "node_died" or death.exit_type is None
    return _OWN_CLOCK if is_own else _AT_ONCE


def _has_ended_job(death: Death, stopped: float, facts: Facts) -> bool:
    """
    Whether the driver ended after a death, and took its own node with it.
    """
    end = facts.jobs.get(death.job_id or "")
    if end is None or death.time is None or death.kind == "node_died":
        return False
    # Whoever stops all at once may be quicker with a worker.
    late = _AT_ONCE if death.kind == "terminated" else 0.0
    return death.time + late < end <= stopped


def _with_memory(death: Death, memory: Iterable[Memory]) -> Death:
    if death.kind not in {"ray_oom", "host_oom"}:
        return death
    sizes = [x.size for x in memory if _is_of(x, death)]
    return attrs.evolve(death, memory=max(sizes, default=None))


def _is_of(memory: Memory, death: Death) -> bool:
    if memory.worker_id is not None:
        return memory.worker_id == death.worker_id
    is_here = memory.node_id is None or memory.node_id == death.node_id
    return memory.pid == death.pid and is_here


def _innocent(ordered: Sequence[Death]) -> set[int]:
    """
    Those that Ray killed although another one had more memory.
    """
    killed = [
        (i, death)
        for i, death in enumerate(ordered)
        if death.kind == "ray_oom"
    ]
    killed.sort(key=lambda pair: pair[1].node_id or "")
    innocent: set[int] = set()
    for _, on_node in groupby(killed, lambda pair: pair[1].node_id):
        for burst in _bursts(list(on_node)):
            most = max(burst, key=lambda pair: pair[1].memory or 0)
            innocent |= {i for i, _ in burst} - {most[0]}
    return innocent


def _bursts(
    killed: Sequence[tuple[int, Death]],
) -> list[list[tuple[int, Death]]]:
    bursts: list[list[tuple[int, Death]]] = []
    last: float | None = None
    for index, death in killed:
        if last is None or (death.time or last) - last > _SAME_SHORTAGE:
            bursts.append([])
        bursts[-1].append((index, death))
        last = death.time or last or 0.0
    return bursts


def known(
    death: Death, log: WorkerLog | None, exported: KnownActor | None
) -> Death:
    """
    Tell who somebody was that died.

    Args:
        death: The death, of which only the worker is known.

        log: The logs of the worker, if they are at hand.

        exported: What Ray exported of the actor.

    Returns:
        The same with names.
    """
    if is_driver(death.worker_id):
        return attrs.evolve(death, actor="driver", job_id=death.worker_id[:8])
    if log is not None:
        return attrs.evolve(
            death,
            actor=log.label,
            pid=log.pid,
            actor_class=log.actor_class,
            actor_name=log.actor_name,
            actor_id=log.actor_id or death.actor_id,
            job_id=log.job_id,
            node_id=death.node_id or log.session.node_id,
            ip=death.ip or log.session.ip,
            host=log.session.host
            if death.node_id in {None, log.session.node_id}
            else "",
        )
    if exported is None:
        return attrs.evolve(death, job_id=(death.actor_id or "")[24:] or None)

    return attrs.evolve(
        death,
        actor=exported.actor_repr or exported.actor_class,
        actor_class=exported.actor_class or None,
        actor_name=exported.actor_name or None,
        pid=death.pid or exported.pid or None,
        job_id=exported.actor_id[24:],
    )


def with_words(
    death: Death, log: WorkerLog | None, text: str, words: LastWords
) -> Death:
    """
    Tell what somebody said last.

    Args:
        death: The death.

        log: The logs of the worker, if they are at hand.

        text: The end of its error log.

        words: What that tells.

    Returns:
        The same with it, as far as it has to do with the death.
    """
    names = (death.actor, death.actor_name)
    death = attrs.evolve(death, rank=rank_of(names, text))
    if log is None or not (log.err or log.out):
        return death

    newest = (log.err or log.out)[-1].path
    is_telling = death.kind in {
        *("native_crash", "collective_timeout", "init_error"),
        *("exit_code", "killed_or_exited"),
    }
    crashed = words.signal is not None or death.kind == "init_error"
    frames = words.python_frames if is_telling else ()
    return attrs.evolve(
        death,
        log=newest,
        last_lines=words.lines,
        signal=words.signal if is_telling else None,
        error=words.error if is_telling else None,
        python_frames=frames,
        native_frames=words.native_frames if is_telling else (),
        evidence=(*death.evidence, *_quoted(words, newest))
        if crashed
        else death.evidence,
    )


def _quoted(words: LastWords, path: Path) -> Iterator[Evidence]:
    telling = [x for x in words.lines if "***" in x or "Fatal" in x]
    quote = words.error or next(iter(telling), None)
    if words.signal and quote is None:
        quote = f"{words.signal} received"
    if quote:
        yield Evidence(
            kind="log",
            source=os.fspath(path),
            location="near the end",
            quote=quote,
        )


def placed(death: Death, places: Mapping[str, RaySession]) -> Death:
    """
    Call the node of a death as its session is called.

    Args:
        death: The death.

        places: The sessions, by node.

    Returns:
        The same with the place.
    """
    if death.host or death.node_id is None:
        return death
    session = places.get(death.node_id)
    if session is None:
        return death
    return attrs.evolve(death, host=session.host, ip=death.ip or session.ip)


def killed_by_kernel(
    death: Death, oom_kills: Collection[tuple[str, int]]
) -> Death:
    """
    Blame the kernel for what it is known to have done.

    Args:
        death: The death.

        oom_kills: Who the kernel killed: places and numbers of processes.

    Returns:
        The same, or that death as one for want of memory.
    """
    places = ("", death.host, death.ip)
    if death.kind != "killed_or_exited" or death.pid is None:
        return death
    if not any((place, death.pid) in oom_kills for place in places):
        return death
    return attrs.evolve(death, kind="host_oom", signal="SIGKILL")


# The head waits for some heartbeats before it gives a node up.
_SAME_LOSS = 120.0


def node_deaths(
    facts: Facts, sessions: Iterable[RaySession]
) -> tuple[Death, ...]:
    """
    Which nodes were lost although nobody stopped them?

    Args:
        facts: What was gathered.

        sessions: The nodes that were looked at.

    Returns:
        A death for each node.
    """
    known = {x.node_id: x for x in sessions if x.node_id}
    lost: dict[str, Death] = {}
    stopped = {x.node_id for x in facts.nodes if x.is_expected}
    for node in facts.nodes:
        if node.is_expected or not node.node_id or node.node_id in stopped:
            continue
        session = known.get(node.node_id)
        death = lost.get(node.node_id)
        lost[node.node_id] = Death(
            kind="node_died",
            time=death.time
            if death
            else _noticed(facts, node.node_id, node.time),
            node_id=node.node_id,
            ip=node.ip
            or (death.ip if death else None)
            or (session.ip if session else None),
            host=session.host if session else "",
            detail=node.reason if death is None else death.detail,
            log=Path(node.seen.source),
            evidence=(*(death.evidence if death else ()), node.seen),
        )
    return tuple(lost.values())


def _noticed(facts: Facts, node_id: str, told: float | None) -> float | None:
    """
    When the workers of the node noticed, which is before the head did.
    """
    times = [
        x.time
        for exits in facts.exits.values()
        for x in exits
        if x.node_id == node_id and x.time and "local raylet" in x.detail
    ]
    if told is None:
        return min(times, default=None)
    return min([told, *(x for x in times if x >= told - _SAME_LOSS)])


def died_with_node(
    facts: Facts,
    nodes: Sequence[Death],
    told: Collection[str],
    logs: Mapping[str, WorkerLog],
) -> Iterator[Death]:
    """
    Who was on a node when it was lost, and whose end nobody tells?

    Args:
        facts: What was gathered.

        nodes: The nodes that were lost.

        told: The workers whose ends are told.

        logs: The logs of all workers.

    Yields:
        A death for each actor.
    """
    lost = {node.node_id: node for node in nodes}
    for worker_id, placement in facts.placements.items():
        node = lost.get(placement.node_id)
        if node is None or worker_id in told:
            continue
        log = logs.get(worker_id)
        yield Death(
            kind="node_died",
            time=node.time,
            worker_id=worker_id,
            pid=log.pid if log else None,
            node_id=node.node_id,
            ip=node.ip,
            host=node.host,
            actor_id=placement.actor_id,
            actor=log.label if log else "",
            actor_class=log.actor_class if log else None,
            actor_name=log.actor_name if log else None,
            rank=rank_of((log.label, log.actor_name), "") if log else None,
            job_id=(placement.actor_id or "")[24:] or None,
            detail=node.detail,
            log=log.err[-1].path if log and log.err else node.log,
            evidence=node.evidence[:1],
        )


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
        time=_find_first(x.time for x in exits),
        pid=_find_first(pids),
        node_id=_find_first(nodes),
        ip=_find_first(x.ip for x in exits),
        exit_type=_find_first(x.exit_type or None for x in exits),
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


def _find_first(values: Iterable[_T | None]) -> _T | None:
    return next((x for x in values if x is not None), None)


def _each_source(seen: Iterable[Evidence]) -> Iterator[Evidence]:
    sources = set()
    for evidence in seen:
        if evidence.source not in sources:
            sources.add(evidence.source)
            yield evidence
