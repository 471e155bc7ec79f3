"""
Find the deaths of Ray workers and nodes, and mark the first one.
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
    classify_death,
    find_exit_code,
    is_driver,
    parse_rank,
)
from .death_sources import DeathFacts, collect_facts
from .log_tail import (
    LogTail,
    MemoryUse,
    Placement,
    WorkerExit,
    parse_log_tail,
    read_log_tail,
)
from .sessions import RaySession, WorkerLog
from .workers import KnownActor, read_exported_actors, worker_logs


_NEVER_FIRST = frozenset({"intended", "job_ended", "owner_died"})
# The head reports the loss of a node at most this much later.
_NODE_LOSS_DELAY_S = 60.0
# Memory kills at most this far apart belong to one shortage.
_SAME_SHORTAGE_S = 30.0
# "ray stop" ends all processes of a node within this time.
_RAY_STOP_S = 3.0
# A process logs the time of its own end in whole seconds.
_OWN_CLOCK_S = 1.0
# Deaths at the same time may be logged out of order by this much.
_SAME_TIME_S = 0.25


def mark_first_death(
    deaths: Iterable[Death], facts: DeathFacts
) -> tuple[Death, ...]:
    """
    Mark the first death and those that follow from it.

    Args:
        facts: The ends of jobs and nodes, and memory sizes.

    Returns:
        The deaths, by time.
    """
    ordered = sorted(deaths, key=_sort_key)
    ordered = [_add_memory(death, facts.memory) for death in ordered]
    lost = {x.node_id: x.time for x in ordered if not x.worker_id}
    ordered = [_mark_intended(death, lost, facts) for death in ordered]
    follows = _find_smaller_victims(ordered)
    follows |= {
        i
        for i, death in enumerate(ordered)
        if _is_follower(death, lost, facts)
    }
    first = _find_first_death(ordered, follows)
    if first is not None:
        moment = ordered[first].time
        follows |= {
            i
            for i, death in enumerate(ordered)
            if i != first
            and _blames_peer(death)
            and _is_not_long_before(death.time, moment)
        }
    return tuple(
        attrs.evolve(death, is_first=i == first, is_collateral=i in follows)
        for i, death in enumerate(ordered)
    )


def _mark_intended(
    death: Death, lost: Mapping[str | None, float | None], facts: DeathFacts
) -> Death:
    """
    Turn a death on a node that was stopped into an intended end.
    """
    if death.kind != "node_died" or death.node_id in lost:
        return death
    is_stopped = _is_node_stopping(death, facts)
    return attrs.evolve(death, kind="intended") if is_stopped else death


def _sort_key(death: Death) -> tuple[bool, float, bool]:
    # A node sorts before its workers.
    return death.time is None, death.time or 0.0, bool(death.worker_id)


def _find_first_death(
    ordered: Sequence[Death], follows: set[int]
) -> int | None:
    causes = [
        i
        for i, death in enumerate(ordered)
        if death.kind not in _NEVER_FIRST and i not in follows
    ]
    if not causes or not _blames_peer(ordered[causes[0]]):
        return causes[0] if causes else None

    begin = ordered[causes[0]].time
    others = (
        i
        for i in causes
        if not _blames_peer(ordered[i])
        and _is_soon_after(ordered[i].time, begin)
    )
    return next(others, causes[0])


def _is_soon_after(time: float | None, begin: float | None) -> bool:
    if time is None or begin is None:
        return False
    return time - begin <= _NODE_LOSS_DELAY_S


def _is_not_long_before(time: float | None, first: float | None) -> bool:
    if time is None or first is None:
        return True
    return time >= first - _NODE_LOSS_DELAY_S


def _blames_peer(death: Death) -> bool:
    if death.kind == "collective_timeout":
        return True
    if death.kind not in {"native_crash", "init_error", "exit_code"}:
        return False
    return parse_log_tail(
        "\n".join((*death.last_lines, death.error or ""))
    ).has_lost_peer


def _is_follower(
    death: Death, lost: Mapping[str | None, float | None], facts: DeathFacts
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
        or _is_node_stopping(death, facts)
        or _is_lost_with_node(death, lost)
    )


def _is_lost_with_node(
    death: Death, lost: Mapping[str | None, float | None]
) -> bool:
    moment = lost.get(death.node_id)
    if moment is None or death.time is None:
        return False
    return death.time >= moment - (
        _RAY_STOP_S if death.kind == "terminated" else 0.0
    )


def _is_after_job(death: Death, facts: DeathFacts) -> bool:
    if death.time is None or not facts.jobs:
        return False
    end = facts.jobs.get(death.job_id or "")
    if end is None:
        end = max(facts.jobs.values()) if death.job_id is None else None
    # A process that dies with its driver dies after it, never before.
    return end is not None and death.time >= end


def _is_node_stopping(death: Death, facts: DeathFacts) -> bool:
    """
    Return whether the node of a death was being stopped at that time.
    """
    return any(
        node.is_expected
        and node.node_id == death.node_id
        and node.time is not None
        and death.time is not None
        and death.time >= node.time - _stop_margin_s(death)
        and not _is_before_job_end(death, node.time, facts)
        for node in facts.nodes
    )


def _stop_margin_s(death: Death) -> float:
    """
    Return how long before its node a process may end, in seconds.
    """
    if death.kind == "terminated":
        return _RAY_STOP_S
    has_own_clock = death.kind == "node_died" or death.exit_type is None
    return _OWN_CLOCK_S if has_own_clock else _SAME_TIME_S


def _is_before_job_end(
    death: Death, stopped: float, facts: DeathFacts
) -> bool:
    """
    Return whether a job ended after a death, and its node after the job.
    """
    end = facts.jobs.get(death.job_id or "")
    if end is None or death.time is None or death.kind == "node_died":
        return False
    # If all are stopped at once, a worker may end before its driver.
    late = _SAME_TIME_S if death.kind == "terminated" else 0.0
    return death.time + late < end <= stopped


def _add_memory(death: Death, memory: Iterable[MemoryUse]) -> Death:
    if death.kind not in {"ray_oom", "host_oom"}:
        return death
    sizes = [x.size for x in memory if _is_memory_of(x, death)]
    return attrs.evolve(death, memory=max(sizes, default=None))


def _is_memory_of(memory: MemoryUse, death: Death) -> bool:
    if memory.worker_id is not None:
        return memory.worker_id == death.worker_id
    is_here = memory.node_id is None or memory.node_id == death.node_id
    return memory.pid == death.pid and is_here


def _find_smaller_victims(ordered: Sequence[Death]) -> set[int]:
    """
    Return the workers that Ray killed although another one held more memory.
    """
    killed = [
        (i, death)
        for i, death in enumerate(ordered)
        if death.kind == "ray_oom"
    ]
    killed.sort(key=lambda pair: pair[1].node_id or "")
    smaller: set[int] = set()
    for _, on_node in groupby(killed, lambda pair: pair[1].node_id):
        for burst in _bursts(list(on_node)):
            most = max(burst, key=lambda pair: pair[1].memory or 0)
            smaller |= {i for i, _ in burst} - {most[0]}
    return smaller


def _bursts(
    killed: Sequence[tuple[int, Death]],
) -> list[list[tuple[int, Death]]]:
    bursts: list[list[tuple[int, Death]]] = []
    last: float | None = None
    for index, death in killed:
        if last is None or (death.time or last) - last > _SAME_SHORTAGE_S:
            bursts.append([])
        bursts[-1].append((index, death))
        last = death.time or last or 0.0
    return bursts


def identify_worker(
    death: Death, log: WorkerLog | None, exported: KnownActor | None
) -> Death:
    """
    Add the names and ids of the worker to a death.

    Args:
        log: The logs of the worker, if they were found.

        exported: The actor in Ray's exported events, if any.
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


def add_log_tail(
    death: Death, log: WorkerLog | None, text: str, tail: LogTail
) -> Death:
    """
    Add rank, signal, stacks, and last lines to a death.

    Args:
        log: The logs of the worker, if they were found.

        text: The end of its error log.

        tail: The details parsed from *text*.
    """
    names = (death.actor, death.actor_name)
    death = attrs.evolve(death, rank=parse_rank(names, text))
    if log is None or not (log.err or log.out):
        return death

    newest = (log.err or log.out)[-1].path
    is_crash = death.kind in {
        *("native_crash", "collective_timeout", "init_error"),
        *("exit_code", "killed_or_exited"),
    }
    crashed = tail.signal is not None or death.kind == "init_error"
    frames = tail.python_frames if is_crash else ()
    return attrs.evolve(
        death,
        log=newest,
        last_lines=tail.lines,
        signal=tail.signal if is_crash else None,
        error=tail.error if is_crash else None,
        python_frames=frames,
        native_frames=tail.native_frames if is_crash else (),
        evidence=(*death.evidence, *_make_evidence(tail, newest))
        if crashed
        else death.evidence,
    )


def _make_evidence(tail: LogTail, path: Path) -> Iterator[Evidence]:
    crash_lines = [x for x in tail.lines if "***" in x or "Fatal" in x]
    quote = tail.error or next(iter(crash_lines), None)
    if tail.signal and quote is None:
        quote = f"{tail.signal} received"
    if quote:
        yield Evidence(
            kind="log",
            source=os.fspath(path),
            location="near the end",
            quote=quote,
        )


def add_host(death: Death, places: Mapping[str, RaySession]) -> Death:
    """
    Add the host and address of the node to a death.

    Args:
        places: The sessions, by node id.
    """
    if death.host or death.node_id is None:
        return death
    session = places.get(death.node_id)
    if session is None:
        return death
    return attrs.evolve(death, host=session.host, ip=death.ip or session.ip)


def mark_kernel_kill(
    death: Death, oom_kills: Collection[tuple[str, int]]
) -> Death:
    """
    Mark a death as an out-of-memory kill if the kernel reported it.

    Args:
        oom_kills: Host or address (``""`` for any) and process id of each
            kill.
    """
    places = ("", death.host, death.ip)
    if death.kind != "killed_or_exited" or death.pid is None:
        return death
    if not any((place, death.pid) in oom_kills for place in places):
        return death
    return attrs.evolve(death, kind="host_oom", signal="SIGKILL")


# The head waits for some heartbeats before it reports a node as lost.
_SAME_LOSS_S = 120.0


def find_lost_nodes(
    facts: DeathFacts, sessions: Iterable[RaySession]
) -> tuple[Death, ...]:
    """
    Return a death for each node that was lost and not stopped.

    Args:
        sessions: The sessions of the nodes that were searched.
    """
    by_node = {x.node_id: x for x in sessions if x.node_id}
    lost: dict[str, Death] = {}
    stopped = {x.node_id for x in facts.nodes if x.is_expected}
    for node in facts.nodes:
        if node.is_expected or not node.node_id or node.node_id in stopped:
            continue
        session = by_node.get(node.node_id)
        death = lost.get(node.node_id)
        lost[node.node_id] = Death(
            kind="node_died",
            time=death.time
            if death
            else _find_first_notice(facts, node.node_id, node.time),
            node_id=node.node_id,
            ip=node.ip
            or (death.ip if death else None)
            or (session.ip if session else None),
            host=session.host if session else "",
            detail=node.reason if death is None else death.detail,
            log=Path(node.evidence.source),
            evidence=(*(death.evidence if death else ()), node.evidence),
        )
    return tuple(lost.values())


def _find_first_notice(
    facts: DeathFacts, node_id: str, reported: float | None
) -> float | None:
    """
    Return when the workers of a node noticed its loss.

    They notice before the head does.
    """
    times = [
        x.time
        for exits in facts.exits.values()
        for x in exits
        if x.node_id == node_id and x.time and "local raylet" in x.detail
    ]
    if reported is None:
        return min(times, default=None)
    return min([reported, *(x for x in times if x >= reported - _SAME_LOSS_S)])


def find_deaths_with_node(
    facts: DeathFacts,
    nodes: Sequence[Death],
    reported: Collection[str],
    logs: Mapping[str, WorkerLog],
) -> Iterator[Death]:
    """
    Yield a death for each worker of a lost node whose exit no log reports.

    Args:
        nodes: The lost nodes.

        reported: The workers whose exits are reported.

        logs: The logs of all workers, by worker id.
    """
    lost = {node.node_id: node for node in nodes}
    for worker_id, placement in facts.placements.items():
        node = lost.get(placement.node_id)
        if node is None or worker_id in reported:
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
            rank=parse_rank((log.label, log.actor_name), "") if log else None,
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
    Find the deaths of a Ray cluster, their kinds, and the first one.

    Only files are read, so this works days after the cluster was stopped.  The
    log of the head reports the deaths of all nodes; the folders of the nodes
    add names and last log lines.

    Args:
        sessions: The session folders of the nodes of a cluster.

        oom_kills: Processes that the kernel killed for lack of memory, which
            no Ray log reports: the host or address of the node (``""`` for
            any) and the process id.

    Returns:
        All ends, by time, including those that were intended.
    """
    if isinstance(sessions, RaySession):
        sessions = (sessions,)
    sessions = tuple(sessions)
    facts = collect_facts(sessions)
    logs = {log.worker_id: log for log in worker_logs(sessions)}
    actors: dict[str, KnownActor] = {}
    for session in sessions:
        actors |= read_exported_actors(session)
    found = [
        *_find_reported_deaths(facts, logs, actors),
        *_find_unreported_crashes(facts, logs),
    ]
    places = {x.node_id: x for x in sessions if x.node_id}
    nodes = find_lost_nodes(facts, sessions)
    found += find_deaths_with_node(
        facts, nodes, {x.worker_id for x in found}, logs
    )
    deaths = [mark_kernel_kill(add_host(x, places), oom_kills) for x in found]
    return Deaths(
        deaths=mark_first_death([*deaths, *nodes], facts),
        missing=facts.missing,
        not_started=tuple(note.evidence for note in facts.not_started),
    )


def _find_reported_deaths(
    facts: DeathFacts,
    logs: Mapping[str, WorkerLog],
    actors: Mapping[str, KnownActor],
) -> Iterator[Death]:
    for worker_id, exits in facts.exits.items():
        log = logs.get(worker_id)
        # The log of a worker that exited as intended has no crash details.
        is_intended = all(x.exit_type.startswith("INTENDED") for x in exits)
        text = read_log_tail(log.err) if log and not is_intended else ""
        tail = parse_log_tail(text)
        kind, owner = classify_death(exits, facts.orphans.get(worker_id), tail)
        place = facts.placements.get(worker_id)
        actor_id = (log.actor_id if log else None) or (
            place.actor_id if place else None
        )
        death = attrs.evolve(
            _merge_exits(exits, place),
            kind=kind,
            owner=owner,
            actor_id=actor_id,
        )
        death = identify_worker(death, log, actors.get(actor_id or ""))
        yield add_log_tail(death, log, text, tail)


def _merge_exits(
    exits: Sequence[WorkerExit], place: Placement | None
) -> Death:
    """
    Merge the exit notes of one worker, the most trusted first.
    """
    details = (x.detail for x in exits if x.detail)
    pids = [*(x.pid for x in exits), place.pid if place else None]
    # Nodes on one machine may share a folder, so trust the head first.
    nodes = [place.node_id if place else None, *(x.node_id for x in exits)]
    return Death(
        kind="intended",
        worker_id=exits[0].worker_id,
        time=_first_known(x.time for x in exits),
        pid=_first_known(pids),
        node_id=_first_known(nodes),
        ip=_first_known(x.ip for x in exits),
        exit_type=_first_known(x.exit_type or None for x in exits),
        detail=next(details, "")[:_MOST_DETAIL],
        exit_code=find_exit_code(exits),
        evidence=tuple(_one_per_source(x.evidence for x in exits)),
        log=Path(exits[0].evidence.source),
    )


def _find_unreported_crashes(
    facts: DeathFacts, logs: Mapping[str, WorkerLog]
) -> Iterator[Death]:
    """
    Find workers whose crash only their own log reports.
    """
    for worker_id, log in logs.items():
        if worker_id in facts.exits:
            continue
        text = read_log_tail(log.err)
        tail = (
            parse_log_tail(text)
            if "SIG" in text or "Fatal" in text
            else LogTail()
        )
        if tail.signal is None:
            continue
        kind, _ = classify_death((), None, tail)
        death = Death(
            kind=kind,
            worker_id=worker_id,
            time=tail.time or log.mtime or None,
            pid=log.pid,
        )
        yield add_log_tail(identify_worker(death, log, None), log, text, tail)


def _first_known(values: Iterable[_T | None]) -> _T | None:
    return next((x for x in values if x is not None), None)


def _one_per_source(quotes: Iterable[Evidence]) -> Iterator[Evidence]:
    sources = set()
    for evidence in quotes:
        if evidence.source not in sources:
            sources.add(evidence.source)
            yield evidence
