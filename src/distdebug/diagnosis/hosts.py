"""
What was each rank doing on its host?
"""

from __future__ import annotations

import re
import socket

from collections.abc import Iterable, Mapping, Sequence

import attrs

from ..findings import Cause, Evidence, Location
from ..flight_recorder.columns import Dumps
from ..flight_recorder.sidecar import Sidecar
from ..stacks.explain import explain_ranks
from ..stacks.model import ProcessStacks, StackFrame, ThreadStack
from ..stacks.view import ProcessView


__all__ = ["ALIVE", "HostView", "all_stacks", "ended_well", "host_views"]

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
