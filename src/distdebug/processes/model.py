"""
What is a worker, and what is known about it without touching it?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import attrs

from .._render import Block, Entries, Entry, Shown
from .._text import clean
from .procfs import ENDED


Role = Literal[
    "rank",  # takes part in collectives
    "dataloader",  # reads for a rank
    "compile",  # compiles for a rank
    "launcher",  # starts ranks, and waits for them
    "server",  # a front end, scheduler of requests, or detokenizer
    "child",  # another process that a worker started
]


@attrs.frozen(kw_only=True)
class Worker(Shown):
    """
    A process that belongs to a job.

    A process is the same one only if *pid* and *start_ticks* are the same:
    numbers of processes are used again.

    Attributes:
        pid: Number of the process on this node.

        start_ticks: When it started, in clock ticks since boot.

        parent_pid: The process that started it.

        uid: The user it runs as.

        title: Its command line, or what the process wrote in its place.

        framework: Who started it: ``"sglang"``, ``"vllm"``, ``"ray"``,
            ``"torchrun"``, …, or ``"pattern"`` if only the user's own pattern
            knows it.

        role: What it does in its job.

        rank: Global rank, if known.  Children of a rank have none, although
            they inherit its environment; see *parent_pid*.

        world_size: How many ranks the job has, if known.

        local_rank: Rank on this node, if known.

        local_world_size: How many ranks of the job were started on this node,
            if that is known, and they are numbered in sequence.

        coordinates: Where it is in the mesh: names of dimensions in small
            letters, and the place along each, in the order they were found.

        job: What tells its job from others, or ``""``.

        source: What told its rank or coordinates: ``"title"``, ``"memory"``
            (the environment as it is now, also after the title was changed),
            ``"environ"`` (as it was at the start), ``"command line"``,
            several joined by ``" + "``; ``""`` if nothing did.
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
        Plain data; coordinates by the name of their dimension.
        """
        return {**attrs.asdict(self), "coordinates": dict(self.coordinates)}

    def _blocks_(self) -> Iterable[Block]:
        who = "" if self.rank is None else f" {self.rank}"
        facts = [("title", clean(self.title)), ("from", self.framework)]
        if self.coordinates:
            mesh = ", ".join(f"{name}={at}" for name, at in self.coordinates)
            facts.append(("mesh", clean(mesh)))
        yield Entries([Entry(f"{self.role}{who}, process {self.pid}", facts)])


@attrs.frozen(kw_only=True)
class ProcessState:
    """
    What the kernel tells anybody about a process.

    Attributes:
        letter: State of its main thread: ``"R"`` runs, ``"S"`` sleeps, ``"D"``
            cannot be interrupted, ``"T"`` is stopped, ``"t"`` is stopped by a
            debugger, ``"Z"`` is a zombie, ``"X"`` is gone.

        start_ticks: When it started, in clock ticks since boot.

        tracer_pid: The debugger attached to it; 0 if there is none.

        uid: The effective user it runs as.

        uninterruptible: Which of its threads are in state ``"D"``.

        pid_inside: Its number in its own PID namespace; *pid* if that is
            ours.

        caught_signals: Bit *n - 1* is set if it handles signal *n*.

        has_seccomp: Whether a seccomp filter restricts it.
    """

    letter: str
    start_ticks: int
    tracer_pid: int = 0
    uid: int = 0
    uninterruptible: tuple[int, ...] = ()
    pid_inside: int = 0
    caught_signals: int = 0
    has_seccomp: bool = False

    @property
    def has_ended(self) -> bool:
        """
        Whether nothing of it runs any more.
        """
        return self.letter in ENDED
