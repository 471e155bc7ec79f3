"""
What is in the output of a driver: who printed, and what failed?
"""

from __future__ import annotations

import os
import re

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from .._render import Block, Shown, Table
from .._text import clean, size_text
from ..findings import Cause, Evidence, Finding, Location, Missing, as_plain
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


_CAUSES: Mapping[FailureKind, Cause] = {
    "task_error": Cause.RANK_CRASHED,
    "out_of_memory": Cause.HOST_OUT_OF_MEMORY,
    "start_timeout": Cause.RAY_WORKER_START_TIMEOUT,
    "not_started": Cause.NODE_MISCONFIGURED,
}
# Of Gloo, NCCL, and what torch makes of them.  Words that others use too count
# only where they stand by the name of such a library.
_TIMED_OUT = re.compile(
    r"Watchdog caught collective|NCCL communicator was aborted"
    r"|Timed out waiting \d{1,12} ?ms for (?:recv|send)"
    r"|Application timeout caused pair closure"
    r"|watchdog thread terminated with exception"
    r"|(?:collective|NCCL) (?:operation )?time(?:d )?[ -]?out"
    r"|(?:gloo|NCCL|monitoredBarrier|Dist(?:Backend)?Error)[^\n]{0,200}"
    r"(?i:\btimed out|\btimeout)"
)
_LOST_PEER = re.compile(
    r"Connection closed by peer \[|remote process exited|ncclRemoteError"
    r"|(?:gloo|NCCL|ProcessGroup|TCPStore|Dist(?:Backend|Network)?Error)"
    r"[^\n]{0,200}(?:Connection (?:closed|reset) by peer|Broken pipe"
    r"|Socket closed|[Ff]ailed to recv)"
)
_ERRORS = (
    (
        re.compile(r"CUDA out of memory|HIP out of memory"),
        Cause.GPU_OUT_OF_MEMORY,
    ),
    (re.compile(r"No space left on device"), Cause.DISK_FULL),
    (
        re.compile(r"waiting for clients|client socket has timed out"),
        Cause.RENDEZVOUS_TIMEOUT,
    ),
    (_TIMED_OUT, Cause.COLLECTIVE_TIMEOUT),
    (_LOST_PEER, Cause.NETWORK_FAILURE),
)
#: Whoever is told of these waited for somebody else.
WAITED = frozenset({Cause.COLLECTIVE_TIMEOUT, Cause.NETWORK_FAILURE})


def cause_of(failure: Failure, signal: str | None = None) -> Cause:
    """
    What is wrong, in the words of findings?

    Args:
        failure: What failed.

        signal: The one that its process printed, if any.

    Returns:
        The cause; what was raised may tell more than that it was.
    """
    cause = _CAUSES.get(failure.kind, Cause.ACTOR_DIED)
    if signal is not None and failure.kind in {"actor_died", "worker_crashed"}:
        return Cause.NATIVE_CRASH
    if failure.kind in {"task_error", "init_error"}:
        text = f"{failure.error}: {failure.message}"
        causes = (cause for x, cause in _ERRORS if x.search(text))
        return next(causes, cause)
    return cause


def is_waiting(failure: Failure) -> bool:
    """
    Whether somebody else is at fault.

    Args:
        failure: What failed.

    Returns:
        Whether it tells only that somebody else did not answer.
    """
    return failure.kind == "actor_unavailable" or cause_of(failure) in WAITED


# Who raised these only waited for somebody who died.
_OF_OTHERS = frozenset(
    {
        *("RayActorError", "ActorDiedError", "ActorUnavailableError"),
        *("NodeDiedError", "OwnerDiedError", "WorkerCrashedError"),
        *("ObjectLostError", "RayTaskError", "TaskCancelledError"),
    }
)
_REMEDIES: Mapping[FailureKind, str] = {
    "task_error": "mend what raised; its own log does not show the traceback, "
    "the output of the driver does",
    "init_error": "mend what raised",
    "actor_died": "look at the end of worker-*-{pid}.err on its node; "
    "distdebug logs --deaths SESSION, with the session folder of Ray, tells "
    "who died first and how",
    "out_of_memory": "let it need less memory, or give the node more",
    "node_died": "look at the kernel's log and at raylet.out of that node",
    "not_started": "mend the runtime environment, or ask for what the nodes "
    "have: runtime_env_setup-*.log and ray status tell more",
    "start_timeout": "see what the new processes print: raylet.err and "
    "runtime_env_setup-*.log of that node",
}
_OF_WAITERS = (
    "find whom it waited for: distdebug logs --deaths SESSION, with the "
    "session folder of Ray, tells who died before; if nobody did, take the "
    "stacks of the others, and look at the network between their nodes"
)
# The begin of Ray's sentence alone tells nothing.
_CUT = "Worker unexpectedly exits"
# A driver that goes on for so many lines has outlived a failure.
_LONG_BEFORE = 100
_GUESSES = re.compile(r"Some common causes|There are some potential root")
_MOST = 20


def driver_findings(log: DriverLog) -> tuple[Finding, ...]:
    """
    Tell what the output of a driver means.

    Args:
        log: What :func:`~distdebug.ray.driver_output.read_driver_log` returned.

    Returns:
        What failed.  The first one comes first, but one that ended the driver
        before those that it outlived for long, and who only waited for
        somebody else last.  Nothing if nothing failed, or all that ended was
        meant to.
    """
    signals = {
        (x.origin.pid, x.origin.ip): x.signal for x in log.sources if x.signal
    }
    # Other lines of the same death say more than that a worker crashed.
    told = {x.pid for x in log.failures if x.kind != "worker_crashed"}
    own = [
        x
        for x in _culprits(log)
        if not x.is_intended
        and not (x.kind == "task_error" and x.error in _OF_OTHERS)
        and not (x.kind == "worker_crashed" and _is_known(x, told))
        and x.kind != "owner_died"
    ]
    own.sort(key=lambda x: (is_waiting(x), x.line))
    own = _ending_first(own)
    return tuple(
        _finding(log, x, _when(x, own[0]), _signal_of(x, signals))
        for x in own[:_MOST]
    )


def _ending_first(own: list[Failure]) -> list[Failure]:
    """
    A driver that outlived all that failed before ended for another reason.
    """
    ending = next((x for x in own if x.ended_driver), None)
    if ending is None or is_waiting(ending):
        return own

    outlived = {
        x.line
        for x in own
        if x.pid != ending.pid and ending.line - x.line > _LONG_BEFORE
    }
    return sorted(own, key=lambda x: (is_waiting(x), x.line in outlived))


def _is_known(failure: Failure, told: set[int | None]) -> bool:
    return failure.pid in told or (failure.pid is None and len(told) > 0)


def _culprits(log: DriverLog) -> list[Failure]:
    """
    All failures, but of those killed for memory the one that had the most.
    """
    starved = [x for x in log.failures if x.kind == "out_of_memory"]
    most: dict[str | None, Failure] = {}
    for failure in starved:
        known = most.get(failure.node_id)
        if known is None or (failure.memory or 0) > (known.memory or 0):
            most[failure.node_id] = failure
    return [
        x
        for x in log.failures
        if x.kind != "out_of_memory" or most.get(x.node_id) is x
    ]


def _signal_of(
    failure: Failure, signals: Mapping[tuple[int | None, str | None], str]
) -> str | None:
    places = ((failure.pid, failure.ip), (failure.pid, None))
    return next((signals[x] for x in places if x in signals), None)


def _when(failure: Failure, first: Failure) -> str:
    if failure is first:
        return ""
    return "Earlier, " if failure.line < first.line else "Later, "


def _finding(
    log: DriverLog, failure: Failure, when: str, signal: str | None
) -> Finding:
    cause = cause_of(failure, signal)
    remedy = _REMEDIES.get(failure.kind, _REMEDIES["actor_died"])
    story = _story(failure, signal)
    if cause in WAITED:
        # Whom it waited for is not told, so nobody is blamed.
        remedy, failure = _OF_WAITERS, attrs.evolve(failure, rank=None)
    return Finding(
        cause=cause,
        ranks=() if failure.rank is None else (failure.rank,),
        summary=f"{when}{story}.",
        confidence="possible" if when else "likely",
        remedy=remedy.replace("{pid}", str(failure.pid or "*")),
        location=failure.frames[0] if failure.frames else None,
        evidence=(
            Evidence(
                kind="log",
                source=log.path,
                location=f"line {failure.line}",
                quote=failure.quote,
            ),
        ),
    )


def _story(failure: Failure, signal: str | None) -> str:
    who = clean(failure.label)
    raised = ": ".join(filter(None, (failure.error, failure.message)))
    raised = clean(raised, limit=200).rstrip(".") or "an exception"
    held = failure.memory and size_text(failure.memory)
    # What Ray adds to each of them says nothing of this one.
    detail = _GUESSES.split(clean(failure.detail, limit=400))[0].rstrip(". ")
    detail = "" if _CUT.startswith(detail) else detail
    match failure.kind:
        case "task_error" | "init_error" if cause_of(failure) in WAITED:
            story = f"{who} waited in vain for another rank in "
            story += f"{clean(failure.function)}(): {raised}"
        case "task_error":
            story = f"{clean(failure.function)}() on {who} raised {raised}"
        case "init_error":
            story = f"{who} died of an exception in its __init__, {raised}"
        case "out_of_memory":
            story = f"{who} was killed by Ray since its node ran out of memory"
            story += f", of which it held {held}" if held else ""
        case "node_died":
            place = failure.ip or failure.node_id or "of unknown name"
            story = f"the node {place} was lost"
        case "start_timeout":
            story = "worker processes did not register with Ray in time"
        case "not_started":
            story = f"Ray could not start a task or actor: {raised}"
        case "actor_unavailable":
            story = f"actor {failure.actor_id or ''} did not answer any more"
        case _:
            story = f"{who} crashed with {signal}" if signal else f"{who} died"
            story += f": {detail}" if detail and not signal else ""
    return story
