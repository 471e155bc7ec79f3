"""
What was each rank doing on its host?
"""

from __future__ import annotations

import math
import re
import socket

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import attrs

from ..findings import Cause, Diagnosis, Evidence, Finding, Location
from ..flight_recorder import (
    Dumps,
    FlightReport,
    Sidecar,
    died_s,
    failed_in_call,
    last_words,
    lost_peer,
    was_interrupted,
)
from ..stacks import (
    ProcessStacks,
    ProcessView,
    StackFrame,
    ThreadStack,
    explain_ranks,
    explain_stacks,
    members_of_job,
)
from .log_evidence import LogEvidence


#: States of a process that is still there.
ALIVE = frozenset({"running", "stopped"})
_HELD = re.compile(r", held by process ([0-9]{1,10})$")
_STATES = {
    "T": "stopped",
    "t": "stopped",
    "Z": "dead",
    "X": "dead",
}


@attrs.frozen(kw_only=True)
class HostView:
    """
    What the host side of one rank tells.

    Attributes:
        rank: Global rank.

        cause: What it is doing; ``None`` if no rule knows.

        doing: The same, as a predicate, or ``""``.

        location: The line of user code that it is in.

        evidence: The stacks that say so, of the rank and of its children.

        remedy: What to do about what it is doing, or ``""``.

        error: The exception that ended it, in one line, or ``""``.

        has_exited: Whether it ended without an error.

        state: What its process was last seen to be: ``"stopped"``,
            ``"running"``, ``"dead"``; ``""`` if nobody looked.

        holder: The rank that holds the lock of a file that it waits for;
            ``None`` if it waits for none, or no rank does.
    """

    rank: int
    cause: Cause | None = None
    doing: str = ""
    location: Location | None = None
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""
    error: str = ""
    has_exited: bool = False
    state: str = ""
    holder: int | None = None


def host_views(
    dumps: Dumps, stacks: Iterable[ProcessStacks]
) -> Mapping[int, HostView]:
    """
    Join side-cars and stacks by rank.

    Args:
        dumps: Its side-cars tell the rank of a process, and hold the stacks
            that the process took of itself.

        stacks: What was captured from outside; newer, so it wins.

    Returns:
        One view per rank about which anything is known.
    """
    known = all_stacks(dumps, stacks)
    explained = {v.process.rank: v for v in explain_ranks(known)}
    states = {p.rank: p.state for p in known if p.state}
    ranks = {(p.host, p.pid): p.rank for p in known}
    return {
        rank: _view(
            rank,
            dumps.sidecars.get(rank),
            explained.get(rank),
            states.get(rank, ""),
            ranks,
        )
        for rank in {*dumps.sidecars, *explained, *states}
        if rank is not None
    }


def all_stacks(
    dumps: Dumps, stacks: Iterable[ProcessStacks]
) -> tuple[ProcessStacks, ...]:
    """
    Whose stacks are known, from wherever?

    Args:
        dumps: Their side-cars.

        stacks: What was captured from outside.

    Returns:
        What was captured, with ranks as far as side-cars tell them, and what
        the other ranks noted of themselves.
    """
    captured = [
        _with_rank(p, dumps.sidecars)
        for p in _without_orphans(tuple(stacks), dumps.sidecars)
    ]
    seen = {p.rank for p in captured}
    own = [
        _own_stacks(s) for s in dumps.sidecars.values() if s.rank not in seen
    ]
    return (*captured, *own)


def ended_well(dumps: Dumps) -> bool:
    """
    Whether every rank of the job came to its end without an error.

    Args:
        dumps: Its side-cars tell.
    """
    last = dumps.sidecars.values()
    world_size = max((s.world_size for s in last), default=0)
    return len(last) >= max(world_size, 1) and all(map(_has_exited, last))


def _has_exited(sidecar: Sidecar) -> bool:
    return sidecar.reason == "exit" and not sidecar.error


def _process_state(sidecar: Sidecar) -> str:
    """
    What the process does, if this is its machine and it is still there.
    """
    if sidecar.host != socket.gethostname() or not sidecar.pid:
        return ""

    import psutil

    try:
        process = psutil.Process(sidecar.pid)
        # Numbers of processes are used again.
        if process.create_time() > sidecar.started + 1:
            return ""
        status = process.status()
    except psutil.Error:
        return ""

    if status in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}:
        return "stopped"

    is_gone = status in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    return "" if is_gone else "running"


def _without_orphans(
    stacks: Sequence[ProcessStacks], sidecars: Mapping[int, Sidecar]
) -> Iterable[ProcessStacks]:
    """
    Leave out what a rank that is gone has left behind, and bears its number.
    """
    pids = {(s.host, s.pid) for s in sidecars.values()}
    # In a container, processes have other numbers than on the node.
    comparable = {p.host for p in stacks if (p.host, p.pid) in pids}
    for process in stacks:
        sidecar = sidecars.get(-1 if process.rank is None else process.rank)
        if (
            sidecar is None
            or sidecar.host not in comparable
            or (sidecar.host, sidecar.pid) == (process.host, process.pid)
        ):
            yield process


def _with_rank(
    process: ProcessStacks, sidecars: Mapping[int, Sidecar]
) -> ProcessStacks:
    """
    Learn from the side-cars which rank this process is.
    """
    if process.rank is not None:
        return process

    same_pid = [s for s in sidecars.values() if s.pid == process.pid]
    same_host = [s for s in same_pid if s.host == process.host]
    # A number alone is enough if nobody else has it.
    found = same_host or (same_pid if len(same_pid) == 1 else [])
    return attrs.evolve(process, rank=found[0].rank) if found else process


def _view(
    rank: int,
    sidecar: Sidecar | None,
    explained: ProcessView | None,
    letter: str,
    ranks: Mapping[tuple[str | None, int], int | None],
) -> HostView:
    state = _STATES.get(letter, "running" if letter else "")
    if not state and sidecar is not None:
        state = _process_state(sidecar)
    view = HostView(
        rank=rank,
        error=sidecar.error if sidecar else "",
        has_exited=sidecar is not None and _has_exited(sidecar),
        state=state,
    )
    if explained is None or explained.thread is None:
        return view

    is_known = explained.cause is not Cause.UNKNOWN
    quote = Evidence(
        kind="stack",
        source=explained.process.source,
        location=f"rank {rank}, thread {explained.thread.name}",
        quote=explained.quote,
    )
    return attrs.evolve(
        view,
        cause=explained.cause if is_known else None,
        doing=explained.doing if is_known else "",
        location=explained.location,
        evidence=(quote, *explained.evidence),
        remedy=explained.remedy if is_known else "",
        holder=_holder(explained.process.host, explained.thread, ranks),
    )


def _holder(
    host: str | None,
    thread: ThreadStack,
    ranks: Mapping[tuple[str | None, int], int | None],
) -> int | None:
    """
    The rank that holds what a thread waits for, as the kernel told.
    """
    call = thread.system_call
    held = _HELD.search(call.target) if call is not None else None
    return None if held is None else ranks.get((host, int(held[1])))


def _own_stacks(sidecar: Sidecar) -> ProcessStacks:
    return ProcessStacks(
        pid=sidecar.pid,
        rank=sidecar.rank,
        host=sidecar.host,
        source=sidecar.path,
        threads=tuple(
            ThreadStack(
                name=name,
                frames=tuple(StackFrame(*frame) for frame in frames),
                is_main=name == "MainThread",
            )
            for name, frames in sidecar.threads
        ),
    )


# What ranks are in that merely wait for others.
WAITS = frozenset({Cause.COLLECTIVE_WAIT, Cause.RENDEZVOUS_WAIT})
_UNKNOWN = Finding(
    cause=Cause.UNKNOWN,
    ranks=(),
    summary="the stacks do not tell what the processes wait for",
    confidence="possible",
    remedy="take native stacks too (distdebug stacks --native), and enable "
    "the Flight Recorder",
)


def diagnose_stacks(stacks: Sequence[ProcessStacks]) -> Diagnosis:
    """
    Who stands apart, and what do the others do?

    Args:
        stacks: All processes that were looked at, of any number of jobs.

    Returns:
        The diagnosis; its verdict is ``UNKNOWN`` if stacks tell nothing.
    """
    findings = explain_stacks(stacks)
    verdict = findings[0] if findings else _UNKNOWN
    victims = _victims(members_of_job(verdict, stacks), verdict)
    if len(findings) > 1 and not victims:
        # Nobody is seen to wait for anybody: the first is only a suspect.
        verdict = attrs.evolve(
            verdict,
            confidence="possible",
            remedy="enable the Flight Recorder, and take the dumps of all "
            "ranks: they tell who holds up whom",
        )
        findings = (verdict, *findings[1:])
    return Diagnosis(verdict=verdict, findings=findings, victims=victims)


def _victims(
    stacks: Iterable[ProcessStacks], verdict: Finding
) -> tuple[int, ...]:
    waiting = {
        view.process.rank
        for view in explain_ranks(stacks)
        if view.process.rank is not None and view.cause in WAITS
    }
    return tuple(sorted(waiting.difference(verdict.ranks)))


# By so much the clocks of hosts may differ.
_SLACK_S = 0.5
# An exception may close the connections long before it ends the process.
_LONGEST_CLOSING_S = 10.0


def find_death(views: Mapping[int, HostView], dumps: Dumps) -> Finding | None:
    """
    Find the first rank that an exception ended, which no other rank caused.

    Args:
        views: What each rank was doing on its host.

        dumps: Its side-cars tell of exceptions.

    Returns:
        The finding; ``None`` if no rank died by itself.
    """
    words = [last_words(dumps, rank) for rank in dumps.sidecars]
    latest = _end_of_others(chain.from_iterable(words))
    died = sorted(
        (
            s
            for s in map(_first_error, words)
            if s and _ended_itself(s.error) and died_s(s) <= latest
        ),
        key=lambda s: s.written,
    )
    if not died:
        return None

    first = died[0]
    where = views[first.rank].location
    place = f" at {where.brief}" if where else ""
    return Finding(
        cause=Cause.RANK_CRASHED,
        ranks=(first.rank,),
        summary=f"rank {first.rank} died of {first.error}{place}",
        confidence="certain",
        remedy="mend the exception; the other ranks only lost their peer",
        location=where,
        evidence=tuple(map(quote_error, died[:4])),
    )


def quote_error(sidecar: Sidecar) -> Evidence:
    """
    Quote the exception that ended a rank.

    Args:
        sidecar: What the rank noted of its end.
    """
    return Evidence(
        kind="sidecar",
        source=sidecar.path,
        location=f"rank {sidecar.rank}",
        quote=sidecar.error,
    )


def _first_error(words: Sequence[Sidecar]) -> Sidecar | None:
    return next((s for s in words if s.error), None)


def _end_of_others(all_words: Iterable[Sidecar]) -> float:
    """
    When calls began to fail, or the job was being ended.

    Whoever dies after that dies because of it.
    """
    words = list(all_words)
    clocks = {s.host for s in words}
    slack_s = _SLACK_S if len(clocks) > 1 else 0.0
    return slack_s + min(
        (
            s.written + _closing_s(s)
            for s in words
            if failed_in_call(s.error) or s.reason == "SIGTERM"
        ),
        default=math.inf,
    )


def _closing_s(sidecar: Sidecar) -> float:
    """
    How much earlier its end shows than that of the rank which caused it.
    """
    is_told = lost_peer(sidecar.error) and sidecar.reason != "SIGTERM"
    return _LONGEST_CLOSING_S if is_told else 0.0


def _ended_itself(error: str) -> bool:
    return bool(error) and not (
        failed_in_call(error) or was_interrupted(error)
    )


@attrs.frozen(kw_only=True, eq=False)
class Seen:
    """
    All that was looked at to diagnose a job, for those who show more of it.

    Attributes:
        paths: The files and folders that were given.

        flight: What the dumps say; None if there are none.

        stacks: The stacks of all processes.

        logs: What logs and the facts of nodes tell.
    """

    paths: tuple[str, ...] = ()
    flight: FlightReport | None = None
    stacks: tuple[ProcessStacks, ...] = ()
    logs: LogEvidence = attrs.field(factory=LogEvidence)


def seen_by(diagnosis: Diagnosis) -> Seen:
    """
    What was this diagnosis made from?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        All of it; nothing if the diagnosis comes from another process.
    """
    seen = diagnosis.seen
    return seen if isinstance(seen, Seen) else Seen()
