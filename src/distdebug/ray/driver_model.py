"""
Define driver logs and their failures, and match their lines to workers.
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
# Intended ends that have no exit type of their own.
_INTENDED_DETAILS = (
    "killed by `ray.kill`",
    "all references to the actor were removed",
    "job has finished",
)


@attrs.frozen(kw_only=True)
class DriverSource:
    """
    A process that printed into the output of a driver.

    Attributes:
        origin: The latest prefix of its lines; an actor's name may change once
            it is created.

        names: All its names.

        first_line: The number of its first line in the file, from 1.

        last_line: The number of its last line.

        lines: The number of its lines in the file.

        count: The number of lines before Ray folded repeated ones.

        last_text: Its last line.

        signal: The signal of a crash, such as ``"SIGSEGV"``.
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
    A failure in another process that the driver reports.

    Attributes:
        kind: ``"task_error"``, a task or a method raised; ``"init_error"``,
            the ``__init__`` of an actor raised; ``"start_timeout"`` and
            ``"not_started"``, a worker did not start; the others are deaths.

        line: The number of the line that reports it first.

        count: The number of identical reports.

        error: The class of the exception, such as ``"ValueError"``.

        message: The message of the exception.

        function: The function, such as ``"Trainer.step"``.

        actor_class: The class of the actor.

        actor_id: The actor, 32 hexadecimal digits.

        actor_name: The name given in ``.options(name=…)``.

        actor_repr: The ``__repr__`` of the actor.

        rank: The global rank, if that ``__repr__`` contains it.

        pid: The process id.

        ip: The address of the node.

        node_id: Ray's id of the node.

        worker_id: Ray's id of the worker.

        exit_type: Ray's exit type, such as ``"SYSTEM_ERROR"``.

        detail: Ray's explanation of the end.

        memory: Its memory when the node ran out of memory, in bytes.

        frames: The stack of the exception, innermost first.

        quote: The log line.

        ended_driver: Whether it ended the driver, too.
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
        Return whether the program intended that end.
        """
        has_reason = any(text in self.detail for text in _INTENDED_DETAILS)
        return has_reason or (self.exit_type or "").startswith("INTENDED")

    @property
    def label(self) -> str:
        """
        Return a label such as ``"Trainer (rank 3, pid 4711, 10.0.0.2)"``.
        """
        function_name = self.function.split(".")[0]
        name = (
            self.actor_repr or self.actor_class or function_name or "a worker"
        )
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
    The sources and failures in the output of a driver.

    Attributes:
        path: The file; ``""`` for lines from elsewhere.

        lines: The number of lines that are not empty.

        sources: The processes that printed, by first line.

        failures: The failures, by line.

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
        Return the failures in which a process died.
        """
        return tuple(
            x
            for x in self.failures
            if x.kind not in {"task_error", "start_timeout", "not_started"}
        )

    @property
    def errors(self) -> tuple[Failure, ...]:
        """
        Return the exceptions of tasks and methods.

        No other log of Ray contains them.
        """
        return tuple(x for x in self.failures if x.kind == "task_error")

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data.
        """
        return as_plain(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per failure, for a data frame.
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
    A source of driver output, matched to its worker.

    Attributes:
        source: The process that printed into the output of the driver.

        worker: Its own logs, if they were found.

        session: The session folder of its node.

        reason: The reason if there is no worker.
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
    Match each source of a driver's log to its node and log files.

    Ray omits the address of the driver's own node.

    Args:
        log: The result of
            :func:`~distdebug.ray.driver_output.read_driver_log`.

        sessions: The session folders of the nodes.

    Returns:
        One match for each source of *log*, in its order.
    """
    if isinstance(sessions, RaySession):
        sessions = (sessions,)
    sessions = tuple(sessions)
    by_pid: dict[int, list[WorkerLog]] = defaultdict(list)
    for worker in worker_logs(sessions):
        by_pid[worker.pid].append(worker)
    driver_nodes = tuple(x for x in sessions if _has_driver(x))
    return tuple(
        _match_source(x, by_pid, sessions, driver_nodes) for x in log.sources
    )


def _has_driver(session: RaySession) -> bool:
    try:
        with os.scandir(session.logs) as listed:
            return any(
                x.name.startswith("python-core-driver-") for x in listed
            )
    except OSError:
        return False


def _match_source(
    source: DriverSource,
    by_pid: dict[int, list[WorkerLog]],
    sessions: Sequence[RaySession],
    driver_nodes: Sequence[RaySession],
) -> OriginMatch:
    origin = source.origin
    if origin.ip is not None:
        nodes = [x for x in sessions if x.ip == origin.ip]
        reason = f"the folder of {origin.ip} is not here"
    else:
        nodes = list(driver_nodes or [x for x in sessions if x.is_head])
        reason = "the folder of the driver's node is not here"
    session = nodes[0] if len(nodes) == 1 else None
    if origin.pid is None:
        return OriginMatch(
            source=source, session=session, reason="a part of Ray, no worker"
        )

    roots = {x.root for x in nodes}
    workers = by_pid.get(origin.pid, [])
    # The process may be on a node whose address is unknown.
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


_DRIVER_LOG_NAME = re.compile(r"job-driver-[\w.+-]{1,200}\.log", re.ASCII)


def find_driver_logs(
    sessions: RaySession | Iterable[RaySession],
) -> tuple[Path, ...]:
    """
    Find the driver logs that Ray keeps.

    Ray keeps those of jobs started by ``ray job submit``, on the node where
    the driver ran; other drivers print to wherever they were started.

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
                    if _DRIVER_LOG_NAME.fullmatch(entry.name)
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
# Errors of Gloo, NCCL, and torch.distributed.  General words count only beside
# the name of such a library.
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
_ERROR_CAUSES = (
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
#: Causes of a failure that only waited for another process.
WAITING_CAUSES = frozenset({Cause.COLLECTIVE_TIMEOUT, Cause.NETWORK_FAILURE})


def find_failure_cause(failure: Failure, signal: str | None = None) -> Cause:
    """
    Return the cause that a finding reports for a failure.

    Args:
        signal: The crash signal in the log of its process, if any.
    """
    cause = _CAUSES.get(failure.kind, Cause.ACTOR_DIED)
    if signal is not None and failure.kind in {"actor_died", "worker_crashed"}:
        return Cause.NATIVE_CRASH
    if failure.kind in {"task_error", "init_error"}:
        text = f"{failure.error}: {failure.message}"
        causes = (cause for x, cause in _ERROR_CAUSES if x.search(text))
        return next(causes, cause)
    return cause


def is_waiting(failure: Failure) -> bool:
    """
    Return whether a failure only reports that another process did not answer.
    """
    return (
        failure.kind == "actor_unavailable"
        or find_failure_cause(failure) in WAITING_CAUSES
    )


# Errors that report the death of another process.
_SECONDARY_ERRORS = frozenset(
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
_WAITING_REMEDY = (
    "find whom it waited for: distdebug logs --deaths SESSION, with the "
    "session folder of Ray, tells who died before; if nobody did, take the "
    "stacks of the others, and look at the network between their nodes"
)
# The beginning of Ray's sentence is useless without its end.
_CUT_DETAIL = "Worker unexpectedly exits"
# A driver that goes on for so many lines survived the failure.
_OUTLIVED_LINES = 100
_GENERIC_CAUSES = re.compile(
    r"Some common causes|There are some potential root"
)
_MOST_FINDINGS = 20


def driver_findings(log: DriverLog) -> tuple[Finding, ...]:
    """
    Return findings about the failures in a driver's output.

    Args:
        log: The result of
            :func:`~distdebug.ray.driver_output.read_driver_log`.

    Returns:
        The failures by line, but one that ended the driver before those that
        it survived for long, and those that only waited for another process
        last.  Nothing if nothing failed, or all ends were intended.
    """
    signals = {
        (x.origin.pid, x.origin.ip): x.signal for x in log.sources if x.signal
    }
    # Other failures of the same process say more than a crash.
    reported = {x.pid for x in log.failures if x.kind != "worker_crashed"}
    failures = [
        x
        for x in _drop_smaller_oom(log)
        if not x.is_intended
        and not (x.kind == "task_error" and x.error in _SECONDARY_ERRORS)
        and not (x.kind == "worker_crashed" and _is_reported(x, reported))
        and x.kind != "owner_died"
    ]
    failures.sort(key=lambda x: (is_waiting(x), x.line))
    failures = _sort_ending_first(failures)
    return tuple(
        _finding(log, x, _order_word(x, failures[0]), _find_signal(x, signals))
        for x in failures[:_MOST_FINDINGS]
    )


def _sort_ending_first(failures: list[Failure]) -> list[Failure]:
    """
    Move failures that the driver survived behind the one that ended it.
    """
    ending = next((x for x in failures if x.ended_driver), None)
    if ending is None or is_waiting(ending):
        return failures

    outlived = {
        x.line
        for x in failures
        if x.pid != ending.pid and ending.line - x.line > _OUTLIVED_LINES
    }
    return sorted(failures, key=lambda x: (is_waiting(x), x.line in outlived))


def _is_reported(failure: Failure, reported: set[int | None]) -> bool:
    return failure.pid in reported or (
        failure.pid is None and len(reported) > 0
    )


def _drop_smaller_oom(log: DriverLog) -> list[Failure]:
    """
    Drop memory kills except the largest one on each node.
    """
    oom_failures = [x for x in log.failures if x.kind == "out_of_memory"]
    most: dict[str | None, Failure] = {}
    for failure in oom_failures:
        known = most.get(failure.node_id)
        if known is None or (failure.memory or 0) > (known.memory or 0):
            most[failure.node_id] = failure
    return [
        x
        for x in log.failures
        if x.kind != "out_of_memory" or most.get(x.node_id) is x
    ]


def _find_signal(
    failure: Failure, signals: Mapping[tuple[int | None, str | None], str]
) -> str | None:
    places = ((failure.pid, failure.ip), (failure.pid, None))
    return next((signals[x] for x in places if x in signals), None)


def _order_word(failure: Failure, first: Failure) -> str:
    if failure is first:
        return ""
    return "Earlier, " if failure.line < first.line else "Later, "


def _finding(
    log: DriverLog, failure: Failure, when: str, signal: str | None
) -> Finding:
    cause = find_failure_cause(failure, signal)
    remedy = _REMEDIES.get(failure.kind, _REMEDIES["actor_died"])
    description = _describe_failure(failure, signal)
    if cause in WAITING_CAUSES:
        # The log does not name the peer, so blame no rank.
        remedy, failure = _WAITING_REMEDY, attrs.evolve(failure, rank=None)
    return Finding(
        cause=cause,
        ranks=() if failure.rank is None else (failure.rank,),
        summary=f"{when}{description}.",
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


def _describe_failure(failure: Failure, signal: str | None) -> str:
    label = clean(failure.label)
    raised = ": ".join(filter(None, (failure.error, failure.message)))
    raised = clean(raised, limit=200).rstrip(".") or "an exception"
    held = failure.memory and size_text(failure.memory)
    # Ray adds the same generic causes to every message.
    detail = _GENERIC_CAUSES.split(clean(failure.detail, limit=400))[0].rstrip(
        ". "
    )
    detail = "" if _CUT_DETAIL.startswith(detail) else detail
    match failure.kind:
        case "task_error" | "init_error" if (
            find_failure_cause(failure) in WAITING_CAUSES
        ):
            summary = f"{label} waited in vain for another rank in "
            summary += f"{clean(failure.function)}(): {raised}"
        case "task_error":
            summary = f"{clean(failure.function)}() on {label} raised {raised}"
        case "init_error":
            summary = f"{label} died of an exception in its __init__, {raised}"
        case "out_of_memory":
            summary = (
                f"{label} was killed by Ray since its node ran out of memory"
            )
            summary += f", of which it held {held}" if held else ""
        case "node_died":
            place = failure.ip or failure.node_id or "of unknown name"
            summary = f"the node {place} was lost"
        case "start_timeout":
            summary = "worker processes did not register with Ray in time"
        case "not_started":
            summary = f"Ray could not start a task or actor: {raised}"
        case "actor_unavailable":
            summary = f"actor {failure.actor_id or ''} did not answer any more"
        case _:
            summary = (
                f"{label} crashed with {signal}" if signal else f"{label} died"
            )
            summary += f": {detail}" if detail and not signal else ""
    return summary
