"""
Workers and process states, as read from ``/proc``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import attrs

from .._render import Block, Entries, Entry, Shown
from .._text import clean
from .procfs import ENDED_STATES


Role = Literal[
    "rank",  # takes part in collectives
    "dataloader",  # reads data for a rank
    "compile",  # compiles for a rank
    "launcher",  # starts ranks and waits for them
    "server",  # a front end, scheduler of requests, or detokenizer
    "child",  # another process that a worker started
]


@attrs.frozen(kw_only=True)
class Worker(Shown):
    """
    A process that belongs to a job.

    PIDs are reused: only *pid* and *start_ticks* together identify a process.

    Attributes:
        pid: PID on this node.

        start_ticks: Start time, in clock ticks since boot.

        parent_pid: PID of its parent.

        uid: The user it runs as.

        title: Its command line, or the title that it set.

        framework: What started it: ``"sglang"``, ``"vllm"``, ``"ray"``,
            ``"torchrun"``, …, or ``"pattern"`` if only the user's own pattern
            matches it.

        role: Its role in the job.

        rank: Global rank, if known.  Children of a rank have none, although
            they inherit its environment; see *parent_pid*.

        world_size: Number of ranks of the job, if known.

        local_rank: Rank on this node, if known.

        local_world_size: Number of ranks of the job on this node, if known and
            if these are numbered in sequence.

        coordinates: Coordinates in the mesh: names of dimensions in lower
            case, each with an index, in the order they were found.

        job: Identifier of its job, or ``""``.

        source: Source of its rank or coordinates: ``"title"``, ``"memory"``
            (the environment as it is now), ``"environ"`` (the environment at
            the start), ``"command line"``, several joined by ``" + "``; ``""``
            if there is none.
    """

    pid: int
    start_ticks: int
    parent_pid: int
    uid: int
    title: str
    framework: str
    role: Role = "rank"
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    coordinates: tuple[tuple[str, int], ...] = ()
    job: str = ""
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data; coordinates as a dictionary by dimension.
        """
        return {**attrs.asdict(self), "coordinates": dict(self.coordinates)}

    def _blocks_(self) -> Iterable[Block]:
        rank_text = "" if self.rank is None else f" {self.rank}"
        facts = [("title", clean(self.title)), ("from", self.framework)]
        if self.coordinates:
            mesh = ", ".join(f"{name}={at}" for name, at in self.coordinates)
            facts.append(("mesh", clean(mesh)))
        yield Entries(
            [Entry(f"{self.role}{rank_text}, process {self.pid}", facts)]
        )


@attrs.frozen(kw_only=True)
class ProcessState:
    """
    State of a process, which every user may read.

    Attributes:
        letter: State of its main thread: ``"R"`` running, ``"S"`` sleeping,
            ``"D"`` uninterruptible, ``"T"`` stopped, ``"t"`` stopped by a
            debugger, ``"Z"`` zombie, ``"X"`` dead.

        start_ticks: Start time, in clock ticks since boot.

        tracer_pid: PID of the debugger attached to it; 0 if there is none.

        uid: The effective user it runs as.

        uninterruptible: IDs of its threads in state ``"D"``.

        pid_inside: Its PID in its own PID namespace; *pid* if that is ours.
    """

    letter: str
    start_ticks: int
    tracer_pid: int = 0
    uid: int = 0
    uninterruptible: tuple[int, ...] = ()
    pid_inside: int = 0

    @property
    def has_ended(self) -> bool:
        """
        Whether it is dead or a zombie.
        """
        return self.letter in ENDED_STATES
