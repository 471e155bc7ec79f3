"""
Find the deaths of Ray workers and nodes, and mark the first one.
"""

from __future__ import annotations

import math
import re

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from ..findings import Evidence
from ..identity import own_rank_in_text, rank_in_names, same_host
from .death_model import Death, Deaths
from .death_sources import MOST_DETAIL, DeathFacts, WorkerExit, collect_facts
from .messages import (
    PATTERNS,
    DeathKind,
    LogTail,
    MemoryUse,
    parse_log_tail,
    quote_log,
    read_log_tail,
)
from .sessions import RaySession, RaySessions, WorkerLog, as_sessions
from .workers import NO_ACTOR, KnownActor, read_exported_actors, worker_logs


_EXIT_CODE = re.compile(r"[Ee]xit code:? (?P<code>-?\d{1,5})")


def _is_driver(worker_id: str) -> bool:
    """
    Return whether a worker id is that of a driver.

    A driver's id is its job id, padded with ``f``.
    """
    return worker_id.endswith("f" * 48)


def _find_exit_code(exits: Iterable[WorkerExit]) -> int | None:
    codes = (_EXIT_CODE.search(x.detail) for x in exits)
    return next((int(x["code"]) for x in codes if x), None)


def _classify_death(
    exits: Sequence[WorkerExit], owner: str | None, tail: LogTail
) -> tuple[DeathKind, str | None]:
    """
    Classify the end of a worker.

    Args:
        exits: Its exits, the most trusted first.

        owner: The dead owner for which the raylet killed it, if any.

        tail: The details of its error log.

    Returns:
        The kind, and the owner if the owner's end is the reason.
    """
    types = {x.exit_type for x in exits if x.exit_type}
    detail = "\n".join(x.detail for x in exits)
    if "NODE_OUT_OF_MEMORY" in types or PATTERNS["ray_oom"].search(detail):
        return "ray_oom", None

    # A worker that the raylet ends may report the signal first.
    is_orphan = owner is not None and PATTERNS["terminated"].search(detail)
    owners = [x["id"] for x in PATTERNS["owner_died"].finditer(detail)]
    if "SYSTEM_ERROR" not in types or is_orphan or owners:
        owner = next(filter(None, owners), owner)
        if owner is not None:
            return "job_ended" if _is_driver(owner) else "owner_died", owner
        if "USER_ERROR" in types:
            return "init_error", None
        if types and "SYSTEM_ERROR" not in types:
            has_ended = PATTERNS["job_ended"].search(detail)
            return "job_ended" if has_ended else "intended", None
    return _classify_system_error(exits, detail, tail), None


def _classify_system_error(
    exits: Sequence[WorkerExit], detail: str, tail: LogTail
) -> DeathKind:
    if PATTERNS["terminated"].search(detail) or tail.signal == "SIGTERM":
        return "terminated"
    if tail.signal is not None:
        is_watchdog = tail.is_watchdog and tail.signal == "SIGABRT"
        return "collective_timeout" if is_watchdog else "native_crash"
    if _find_exit_code(exits) is not None:
        return "exit_code"
    if PATTERNS["node_lost"].search(detail):
        return "node_died"
    return "collective_timeout" if tail.is_watchdog else "killed_or_exited"


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


def _mark_first_death(
    deaths: Iterable[Death], facts: DeathFacts
) -> tuple[Death, ...]:
    """
    Mark the first death and those that follow from it.

    Args:
        facts: The ends of jobs and nodes, and memory sizes.

    Returns:
        The deaths, by time.
    """
    # A node sorts before its workers.
    ordered = sorted(
        deaths, key=lambda x: (x.time is None, x.time or 0.0, x.worker_id > "")
    )
    ordered = [_add_memory(death, facts.memory.values()) for death in ordered]
    lost = {x.node_id: x.time for x in ordered if not x.worker_id}
    ordered = [
        attrs.evolve(death, kind="intended")
        if death.kind == "node_died"
        and death.node_id not in lost
        and _is_node_stopping(death, facts)
        else death
        for death in ordered
    ]
    follows = _find_smaller_victims(ordered)
    follows |= {
        i
        for i, death in enumerate(ordered)
        if _is_follower(death, lost, facts)
    }
    first = _find_first_death(ordered, follows)
    if first is not None:
        follows |= _find_complaints(ordered, first)
    return tuple(
        attrs.evolve(death, is_first=i == first, is_collateral=i in follows)
        for i, death in enumerate(ordered)
    )


def _find_first_death(
    ordered: Sequence[Death], follows: set[int]
) -> int | None:
    causes = [
        i
        for i, death in enumerate(ordered)
        if death.kind not in _NEVER_FIRST and i not in follows
    ]
    if not causes:
        return None

    # One that blames no peer may be reported a little later.
    begin = ordered[causes[0]].time
    end = -math.inf if begin is None else begin + _NODE_LOSS_DELAY_S
    candidates = (
        i
        for i in causes
        if not _blames_peer(ordered[i])
        and (i == causes[0] or (ordered[i].time or math.inf) <= end)
    )
    return next(candidates, causes[0])


def _find_complaints(ordered: Sequence[Death], first: int) -> set[int]:
    """
    Return the deaths that blame a peer, which is the first one.
    """
    begin = (ordered[first].time or -math.inf) - _NODE_LOSS_DELAY_S
    return {
        i
        for i, death in enumerate(ordered)
        if i != first
        and _blames_peer(death)
        and (death.time is None or death.time >= begin)
    }


def _blames_peer(death: Death) -> bool:
    if death.kind == "collective_timeout":
        return True
    if death.kind not in {"native_crash", "init_error", "exit_code"}:
        return False
    lines = (*death.last_lines, death.error or "")
    return any(map(PATTERNS["blames_peer"].search, lines))


def _is_follower(
    death: Death, lost: Mapping[str | None, float | None], facts: DeathFacts
) -> bool:
    if not death.worker_id or _is_driver(death.worker_id):
        return False
    if death.kind in _NEVER_FIRST:
        return death.kind != "intended"
    if death.kind == "node_died" and death.node_id in lost:
        return True
    if death.time is None:
        return False
    job_end = facts.jobs.get(death.job_id or "")
    if death.job_id is None:
        job_end = max(facts.jobs.values(), default=None)
    node_end = lost.get(death.node_id)
    early = _RAY_STOP_S if death.kind == "terminated" else 0.0
    return (
        # A process that dies with its driver dies after it, never before.
        (job_end is not None and death.time >= job_end)
        or (node_end is not None and death.time >= node_end - early)
        or _is_node_stopping(death, facts)
    )


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
    # By node: the last kill, and the largest victim of the same shortage.
    last: dict[str | None, float] = {}
    largest: dict[str | None, int] = {}
    smaller: set[int] = set()
    for i, death in enumerate(ordered):
        if death.kind != "ray_oom":
            continue
        node = death.node_id
        time = death.time or last.get(node, 0.0)
        if time - last.get(node, -math.inf) > _SAME_SHORTAGE_S:
            largest[node] = i
        else:
            pair = sorted(
                (largest[node], i), key=lambda k: -(ordered[k].memory or 0)
            )
            largest[node] = pair[0]
            smaller.add(pair[1])
        last[node] = time
    return smaller


def _identify_worker(
    death: Death, log: WorkerLog | None, exported: KnownActor = NO_ACTOR
) -> Death:
    """
    Add the names and ids of the worker to a death.

    Args:
        log: The logs of the worker, if they were found.

        exported: The actor in Ray's exported events.
    """
    if _is_driver(death.worker_id):
        return attrs.evolve(death, actor="driver", job_id=death.worker_id[:8])
    actor_id = (log.actor_id if log else None) or death.actor_id
    # An actor's id ends in that of its job.
    job_id = (actor_id or "")[24:] or None
    if log is not None:
        is_here = death.node_id in {None, log.session.node_id}
        return attrs.evolve(
            death,
            actor=log.label,
            pid=log.pid,
            actor_class=log.actor_class,
            actor_name=log.actor_name,
            actor_id=actor_id,
            job_id=log.job_id or job_id,
            node_id=death.node_id or log.session.node_id,
            ip=death.ip or log.session.ip,
            host=log.session.host if is_here else "",
        )
    return attrs.evolve(
        death,
        actor=exported.actor_repr or exported.actor_class,
        actor_class=exported.actor_class or None,
        actor_name=exported.actor_name or None,
        pid=death.pid or exported.pid or None,
        job_id=job_id,
    )


_CRASHES = frozenset(
    {
        *("native_crash", "collective_timeout", "init_error"),
        *("exit_code", "killed_or_exited"),
    }
)


def _add_log_tail(
    death: Death, log: WorkerLog | None, text: str, tail: LogTail
) -> Death:
    """
    Add rank, signal, stacks, and last lines to a death.

    Args:
        log: The logs of the worker, if they were found.

        text: The end of its error log.

        tail: The details parsed from *text*.
    """
    rank = rank_in_names((death.actor, death.actor_name))
    if rank is None:
        rank = own_rank_in_text(text)
    if log is None:
        return attrs.evolve(death, rank=rank)

    newest = (log.err or log.out)[-1].path
    death = attrs.evolve(death, rank=rank, log=newest, last_lines=tail.lines)
    if death.kind in _CRASHES:
        death = attrs.evolve(
            death,
            signal=tail.signal,
            error=tail.error,
            python_frames=tail.python_frames,
            native_frames=tail.native_frames,
        )
    is_quoted = tail.signal is not None or death.kind == "init_error"
    return _add_quote(death, tail) if is_quoted else death


def _add_quote(death: Death, tail: LogTail) -> Death:
    """
    Add the line that reports a crash as evidence.
    """
    crash_lines = (x for x in tail.lines if "***" in x or "Fatal" in x)
    received = f"{tail.signal} received" if tail.signal else None
    quote = tail.error or next(crash_lines, received)
    if quote is None:
        return death
    evidence = quote_log(death.log, "near the end", quote)
    return attrs.evolve(death, evidence=(*death.evidence, evidence))


def _add_host(death: Death, places: Mapping[str, RaySession]) -> Death:
    """
    Add the host and address of the node to a death.

    Args:
        places: The sessions, by node id.
    """
    session = places.get(death.node_id or "")
    if death.host or session is None:
        return death
    return attrs.evolve(death, host=session.host, ip=death.ip or session.ip)


def _mark_kernel_kill(
    death: Death, oom_kills: Iterable[tuple[str, int]]
) -> Death:
    """
    Mark a death as an out-of-memory kill if the kernel reported it.

    Args:
        oom_kills: Host or address (``""`` for any) and process id of each
            kill.
    """
    is_killed = death.kind == "killed_or_exited" and any(
        pid == death.pid
        and (place in {"", death.ip} or same_host(place, death.host))
        for place, pid in oom_kills
    )
    if not is_killed:
        return death
    return attrs.evolve(death, kind="host_oom", signal="SIGKILL")


# The head waits for some heartbeats before it reports a node as lost.
_SAME_LOSS_S = 120.0


def _find_lost_nodes(facts: DeathFacts) -> tuple[Death, ...]:
    """
    Return a death for each node that was lost and not stopped.
    """
    lost: dict[str, Death] = {}
    stopped = {x.node_id for x in facts.nodes if x.is_expected}
    for node in facts.nodes:
        if not node.node_id or node.node_id in stopped:
            continue
        known = lost.get(node.node_id) or Death(
            kind="node_died",
            time=_find_first_notice(facts, node.node_id, node.time),
            node_id=node.node_id,
            detail=node.reason,
        )
        lost[node.node_id] = attrs.evolve(
            known,
            ip=node.ip or known.ip,
            log=Path(node.evidence.source),
            evidence=(*known.evidence, node.evidence),
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


def _find_deaths_with_node(
    facts: DeathFacts,
    nodes: Iterable[Death],
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
        death = attrs.evolve(
            node,
            worker_id=worker_id,
            actor_id=placement.actor_id or None,
            log=log.err[-1].path if log and log.err else node.log,
            evidence=node.evidence[:1],
        )
        death = _identify_worker(death, log)
        rank = rank_in_names((death.actor, death.actor_name))
        yield attrs.evolve(death, rank=rank)


_T = TypeVar("_T")


def find_deaths(
    sessions: RaySessions,
    *,
    oom_kills: Collection[tuple[str, int]] = (),
) -> Deaths:
    """
    Find the deaths of a Ray cluster, their kinds, and the first one.

    Only files are read, so this works days after the cluster was stopped.  The
    log of the head reports the deaths of all nodes; the folders of the nodes
    add names and last log lines.

    Args:
        sessions: The sessions of the nodes of a cluster, or folders to search
            for them.

        oom_kills: Processes that the kernel killed for lack of memory, which
            no Ray log reports: the host or address of the node (``""`` for
            any) and the process id.

    Returns:
        All ends, by time, including those that were intended.

    Raises:
        NoLogsError: A given folder contains no session.
    """
    sessions = as_sessions(sessions)
    facts = collect_facts(sessions)
    logs = {log.worker_id: log for log in worker_logs(sessions)}
    actors: dict[str, KnownActor] = {}
    for session in sessions:
        actors |= read_exported_actors(session)
    found = list(_find_worker_deaths(facts, logs, actors))
    places = {x.node_id: x for x in sessions if x.node_id}
    nodes = _find_lost_nodes(facts)
    reported = {x.worker_id for x in found}
    found += _find_deaths_with_node(facts, nodes, reported, logs)
    deaths = [
        _mark_kernel_kill(_add_host(x, places), oom_kills)
        for x in [*found, *nodes]
    ]
    return Deaths(
        deaths=_mark_first_death(deaths, facts),
        missing=tuple(facts.missing),
        not_started=tuple(facts.not_started),
    )


def _find_worker_deaths(
    facts: DeathFacts,
    logs: Mapping[str, WorkerLog],
    actors: Mapping[str, KnownActor],
) -> Iterator[Death]:
    """
    Yield the reported exits, and the crashes that only a worker's log reports.
    """
    for worker_id in {**facts.exits, **logs}:
        exits, log = facts.exits.get(worker_id, []), logs.get(worker_id)
        types = [x.exit_type for x in exits]
        # The log of a worker that exited as intended has no crash details.
        is_intended = exits and all(x.startswith("INTENDED") for x in types)
        text = read_log_tail(log.err) if log and not is_intended else ""
        if not exits and "SIG" not in text and "Fatal" not in text:
            continue
        tail = parse_log_tail(text)
        if not exits and tail.signal is None:
            continue
        owner = facts.owners.get(worker_id) if exits else None
        kind, owner = _classify_death(exits, owner, tail)
        place = facts.placements.get(worker_id, NO_ACTOR)
        death = _merge_exits(
            exits, place, kind=kind, owner=owner, worker_id=worker_id
        )
        if log and not exits:
            death = attrs.evolve(death, time=tail.time or log.mtime or None)
        exported = actors.get(place.actor_id, NO_ACTOR)
        death = _identify_worker(death, log, exported)
        yield _add_log_tail(death, log, text, tail)


def _merge_exits(
    exits: Sequence[WorkerExit], place: KnownActor, **known: Any
) -> Death:
    """
    Merge the exit notes of one worker, the most trusted first.

    Args:
        known: Other attributes of the death.
    """
    one_per_source: dict[str, Evidence] = {}
    for x in exits:
        one_per_source.setdefault(x.evidence.source, x.evidence)
    return Death(
        **known,
        time=_first_known(x.time for x in exits),
        pid=_first_known([*(x.pid for x in exits), place.pid]),
        # Nodes on one machine may share a folder, so trust the head first.
        node_id=_first_known([place.node_id, *(x.node_id for x in exits)]),
        ip=_first_known(x.ip for x in exits),
        actor_id=place.actor_id or None,
        exit_type=_first_known(x.exit_type for x in exits),
        detail=(_first_known(x.detail for x in exits) or "")[:MOST_DETAIL],
        exit_code=_find_exit_code(exits),
        evidence=tuple(one_per_source.values()),
        log=Path(exits[0].evidence.source) if exits else None,
    )


def _first_known(values: Iterable[_T | None]) -> _T | None:
    return next(filter(None, values), None)
