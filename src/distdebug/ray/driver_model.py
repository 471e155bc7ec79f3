"""
What is in the output of a driver: who printed, and what failed?
"""

from __future__ import annotations

import os
import re

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from .._render import Block, Shown, Table
from ..findings import Location, Missing, as_plain
from ..logs import Origin
from .sessions import RaySession, WorkerLog
from .workers import worker_logs


FailureKind = Literal[
    "task_error",
    "init_error",
    "actor_died",
    "actor_unavailable",
    "owner_died",
    "worker_crashed",
    "out_of_memory",
    "node_died",
    "start_timeout",
    "not_started",
]


_MOST_ROWS = 100
# Ways to end that have no type of their own.
_WANTED = (
    "killed by `ray.kill`",
    "all references to the actor were removed",
    "job has finished",
)


@attrs.frozen(kw_only=True)
class DriverSource:
    """
    Somebody who printed into the output of a driver.

    Attributes:
        origin: The prefix of the lines; the latest one, since actors are
            called otherwise once they are made.

        names: All names that it had.

        first_line: The number of its first line in the file, from 1.

        last_line: The number of its last one.

        lines: How many lines it printed here.

        count: How many that were before Ray folded what others printed too.

        last_text: Its last line.

        signal: Such as ``"SIGSEGV"``, if it was seen to crash.
    """

    origin: Origin
    names: tuple[str, ...] = ()
    first_line: int = 0
    last_line: int = 0
    lines: int = 0
    count: int = 0
    last_text: str = ""
    signal: str | None = None

    def __str__(self) -> str:
        origin = self.origin
        pid = "" if origin.pid is None else f" pid={origin.pid}"
        ip = "" if origin.ip is None else f", ip={origin.ip}"
        return f"({origin.name}{pid}{ip})"


@attrs.frozen(kw_only=True)
class Failure:
    """
    Something that failed in another process, as the driver was told.

    Attributes:
        kind: ``"task_error"``, a task or a method raised; ``"init_error"``,
            the ``__init__`` of an actor did; ``"start_timeout"`` and
            ``"not_started"``, nothing was begun; and ways to die.

        line: The number of the line where it is told first.

        count: How often the same is told.

        error: The class of the exception, such as ``"ValueError"``.

        message: What it says.

        function: What was called, such as ``"Trainer.step"``.

        actor_class: The class of the actor.

        actor_id: Which actor, 32 hexadecimal digits.

        actor_name: The name that it was given.

        actor_repr: How it describes itself.

        rank: The global rank, if that description tells.

        pid: The number of its process.

        ip: The address of its node.

        node_id: What Ray calls the node.

        worker_id: What Ray calls the process.

        exit_type: Ray's word for the end, such as ``"SYSTEM_ERROR"``.

        detail: What Ray says about the end.

        memory: How many bytes it had when memory ran out.

        frames: Where it raised, innermost first.

        quote: The line.

        ended_driver: Whether it is what ended the driver itself, rather than
            something that the driver outlived.
    """

    kind: FailureKind
    line: int
    count: int = 1
    error: str = ""
    message: str = ""
    function: str = ""
    actor_class: str | None = None
    actor_id: str | None = None
    actor_name: str | None = None
    actor_repr: str | None = None
    rank: int | None = None
    pid: int | None = None
    ip: str | None = None
    node_id: str | None = None
    worker_id: str | None = None
    exit_type: str | None = None
    detail: str = ""
    memory: int | None = None
    frames: tuple[Location, ...] = ()
    quote: str = ""
    ended_driver: bool = False

    @property
    def is_intended(self) -> bool:
        """
        Whether the program wanted that end.
        """
        is_wanted = any(words in self.detail for words in _WANTED)
        return is_wanted or (self.exit_type or "").startswith("INTENDED")

    @property
    def label(self) -> str:
        """
        Who it was, such as ``"Trainer (rank 3, pid 4711, 10.0.0.2)"``.
        """
        called = self.function.split(".")[0]
        name = self.actor_repr or self.actor_class or called or "a worker"
        if self.actor_name and not self.actor_repr:
            name = f"{name} {self.actor_name!r}"
        rank = None if self.rank is None else f"rank {self.rank}"
        rank = None if self.actor_repr and self.rank is not None else rank
        pid = None if self.pid is None else f"pid {self.pid}"
        known = [x for x in (rank, pid, self.ip) if x]
        return f"{name} ({', '.join(known)})" if known else name


@attrs.frozen(kw_only=True)
class DriverLog(Shown):
    """
    What was read out of the output of a driver.

    Attributes:
        path: The file; ``""`` for lines from elsewhere.

        lines: How many lines it has that hold anything.

        sources: Who printed, in the order of appearance.

        failures: What failed, in the order of the lines.

        missing: What could not be read, and why.
    """

    path: str = ""
    lines: int = 0
    sources: tuple[DriverSource, ...] = ()
    failures: tuple[Failure, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def deaths(self) -> tuple[Failure, ...]:
        """
        Those failures by which somebody died.
        """
        return tuple(
            x
            for x in self.failures
            if x.kind not in {"task_error", "start_timeout", "not_started"}
        )

    @property
    def errors(self) -> tuple[Failure, ...]:
        """
        Exceptions of tasks and methods, which no other log of Ray holds.
        """
        return tuple(x for x in self.failures if x.kind == "task_error")

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per failure, for a data frame.
        """
        return [as_plain(x) for x in self.failures]

    def _blocks_(self) -> Iterable[Block]:
        rows = [(x, x.lines, x.count, x.last_text) for x in self.sources]
        heads: tuple[str, ...] = ("source", "lines", "count", "last line")
        yield Table(heads, rows, _MOST_ROWS, "sources")
        failed = [
            (x.line, x.kind, x.label, x.error or x.exit_type or "", x.count)
            for x in self.failures
        ]
        if failed:
            heads = ("line", "what", "who", "how", "times")
            yield Table(heads, failed, _MOST_ROWS, "failures")


@attrs.frozen(kw_only=True)
class OriginMatch:
    """
    Whose lines are these, and where is all that it printed?

    Attributes:
        source: Who printed into the output of the driver.

        worker: Its own logs, if they are at hand.

        session: The folder of its node.

        reason: Why there is no worker.
    """

    source: DriverSource
    worker: WorkerLog | None = None
    session: RaySession | None = None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.worker or self.reason}"


def map_origins(
    log: DriverLog, sessions: RaySession | Iterable[RaySession]
) -> tuple[OriginMatch, ...]:
    """
    Find the node and the files of everybody who printed into a driver's log.

    Ray leaves out the address of the node that the driver is on.

    Args:
        log: What :func:`~distdebug.ray.driver_output.read_driver_log` returned.

        sessions: The session folders of the nodes.

    Returns:
        One for each source of *log*, in its order.
    """
    if isinstance(sessions, RaySession):
        sessions = (sessions,)
    sessions = tuple(sessions)
    by_pid: dict[int, list[WorkerLog]] = defaultdict(list)
    for worker in worker_logs(sessions):
        by_pid[worker.pid].append(worker)
    own = tuple(x for x in sessions if _has_driver(x))
    return tuple(_match(x, by_pid, sessions, own) for x in log.sources)


def _has_driver(session: RaySession) -> bool:
    try:
        with os.scandir(session.logs) as listed:
            return any(
                x.name.startswith("python-core-driver-") for x in listed
            )
    except OSError:
        return False


def _match(
    source: DriverSource,
    by_pid: dict[int, list[WorkerLog]],
    sessions: Sequence[RaySession],
    own: Sequence[RaySession],
) -> OriginMatch:
    origin = source.origin
    if origin.ip is not None:
        nodes = [x for x in sessions if x.ip == origin.ip]
        reason = f"the folder of {origin.ip} is not here"
    else:
        nodes = list(own or [x for x in sessions if x.is_head])
        reason = "the folder of the driver's node is not here"
    session = nodes[0] if len(nodes) == 1 else None
    if origin.pid is None:
        return OriginMatch(
            source=source, session=session, reason="a part of Ray, no worker"
        )

    roots = {x.root for x in nodes}
    workers = by_pid.get(origin.pid, [])
    # Nodes that do not tell their address may still have the process.
    found = [x for x in workers if x.session.root in roots] or [
        x for x in workers if x.session.ip is None
    ]
    if len(found) > 1:
        named = [
            x for x in found if {x.label, x.actor_class} & set(source.names)
        ]
        found = named or found
    if len(found) != 1:
        if found:
            reason = f"{len(found)} workers had number {origin.pid}"
        elif nodes:
            reason = f"no worker there had number {origin.pid}"
        return OriginMatch(source=source, session=session, reason=reason)
    return OriginMatch(
        source=source, worker=found[0], session=found[0].session
    )


_NAME = re.compile(r"job-driver-[\w.+-]{1,200}\.log", re.ASCII)


def find_driver_logs(
    sessions: RaySession | Iterable[RaySession],
) -> tuple[Path, ...]:
    """
    Find the output of drivers that Ray itself kept.

    It keeps that of jobs that were handed in by ``ray job submit``, on the
    node where the driver ran; all others print to wherever they were started.

    Args:
        sessions: The session folders of the nodes.

    Returns:
        The files, by node and name.
    """
    if isinstance(sessions, RaySession):
        sessions = (sessions,)
    found: list[Path] = []
    for session in sessions:
        try:
            with os.scandir(session.logs) as listed:
                names = [
                    entry.name
                    for entry in listed
                    if _NAME.fullmatch(entry.name)
                    and entry.is_file(follow_symlinks=False)
                ]
        except OSError:
            continue
        found += [session.logs / name for name in sorted(names)]
    return tuple(found)
