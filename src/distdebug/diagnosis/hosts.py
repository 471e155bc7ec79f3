"""
What was each rank doing on its host?
"""

from __future__ import annotations

import socket

from collections.abc import Iterable, Mapping

import attrs

from ..findings import Cause, Evidence, Location
from ..flight_recorder.columns import Dumps
from ..flight_recorder.sidecar import Sidecar
from ..location import user_location
from ..stacks.explain import explain_threads
from ..stacks.model import ProcessStacks, StackFrame, ThreadStack


__all__ = ["HostView", "ended_well", "host_views"]


@attrs.frozen(kw_only=True)
class HostView:
    """
    What the host side of one rank tells.

    Attributes:
        rank: Global rank.

        cause: What its main thread is doing; ``None`` if no rule knows.

        location: The line of user code that it is in.

        evidence: The stack that says so.

        error: The exception that ended it, in one line, or ``""``.

        has_exited: Whether it ended without an error.

        state: If its process still runs on this machine: ``"stopped"`` or
            ``"running"``; otherwise ``""``.
    """

    rank: int
    cause: Cause | None = None
    location: Location | None = None
    evidence: Evidence | None = None
    error: str = ""
    has_exited: bool = False
    state: str = ""


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
    rank_of = {(s.host, s.pid): s.rank for s in dumps.sidecars.values()}
    captured = {}
    for process in stacks:
        rank = process.rank
        if rank is None:
            rank = rank_of.get((process.host or "", process.pid))
        if rank is None:
            rank = _only_one(process.pid, rank_of)
        if rank is not None:
            captured[rank] = process

    return {
        rank: _view(rank, dumps.sidecars.get(rank), captured.get(rank))
        for rank in {*dumps.sidecars, *captured}
    }


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


def _only_one(pid: int, rank_of: Mapping[tuple[str, int], int]) -> int | None:
    ranks = [rank for (_, p), rank in rank_of.items() if p == pid]
    return ranks[0] if len(ranks) == 1 else None


def _view(
    rank: int, sidecar: Sidecar | None, process: ProcessStacks | None
) -> HostView:
    if process is None and sidecar is not None:
        process = _own_stacks(sidecar)
    view = HostView(
        rank=rank,
        error=sidecar.error if sidecar else "",
        has_exited=sidecar is not None and _has_exited(sidecar),
        state=_process_state(sidecar) if sidecar else "",
    )
    return view if process is None else _with_stack(view, process)


def _with_stack(view: HostView, process: ProcessStacks) -> HostView:
    main = _main_thread(process)
    if main is None:
        return view

    explained = explain_threads(process.threads)
    return attrs.evolve(
        view,
        cause=explained[0] if explained else None,
        location=user_location(main.frames),
        evidence=Evidence(
            kind="stack",
            source=process.source,
            location=f"rank {view.rank}, thread {main.name}",
            quote=" ← ".join(map(str, main.frames[:3])),
        ),
    )


def _main_thread(process: ProcessStacks) -> ThreadStack | None:
    with_frames = [t for t in process.threads if t.frames]
    main = [t for t in with_frames if t.is_main]
    return next(iter(main or with_frames), None)


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
