"""
Define driver logs and their failures, and match their lines to workers.
"""

from __future__ import annotations

import re

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from .._io import matching
from .._render import Block, Shown, Table, as_plain
from .._text import clean, size_text
from ..causes import Cause
from ..findings import Finding, Location, Missing
from ..logs import Origin
from .messages import (
    FAILURES,
    PATTERNS,
    WAITED_IN_VAIN,
    FailureKind,
    find_error_cause,
    label_process,
    quote_log,
)
from .sessions import (
    RaySession,
    RaySessions,
    WorkerLog,
    as_sessions,
    list_parts,
)
from .workers import worker_logs


_MOST_ROWS = 100


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
        has_reason = PATTERNS["intended"].search(self.detail) is not None
        return has_reason or (self.exit_type or "").startswith("INTENDED")

    @property
    def label(self) -> str:
        """
        Return a label such as ``"Trainer (rank 3, pid 4711, 10.0.0.2)"``.
        """
        function_name = self.function.split(".")[0]
        name = self.actor_repr or self.actor_class or function_name
        name = name or "a worker"
        if self.actor_name and not self.actor_repr:
            name = f"{name} {self.actor_name!r}"
        rank = None if self.actor_repr else self.rank
        return label_process(name, rank, self.pid, self.ip)


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
    log: DriverLog, sessions: RaySessions
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
    sessions = as_sessions(sessions)
    by_pid: dict[int, list[WorkerLog]] = defaultdict(list)
    for worker in worker_logs(sessions):
        by_pid[worker.pid].append(worker)
    driver_nodes = tuple(
        x for x in sessions if matching(x.logs, "python-core-driver-*")
    )
    return tuple(
        _match_source(x, by_pid, sessions, driver_nodes) for x in log.sources
    )


def _match_source(
    source: DriverSource,
    by_pid: dict[int, list[WorkerLog]],
    sessions: Sequence[RaySession],
    driver_nodes: Sequence[RaySession],
) -> OriginMatch:
    origin = source.origin
    nodes = [x for x in sessions if x.ip == origin.ip]
    if origin.ip is None:
        nodes = list(driver_nodes or [x for x in sessions if x.is_head])
    place = origin.ip or "the driver's node"
    reason = f"the folder of {place} is not here"
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
    if len(found) == 1:
        (worker,) = found
        return OriginMatch(
            source=source, worker=worker, session=worker.session
        )
    if found:
        reason = f"{len(found)} workers had number {origin.pid}"
    elif nodes:
        reason = f"no worker there had number {origin.pid}"
    return OriginMatch(source=source, session=session, reason=reason)


def find_driver_logs(sessions: RaySessions) -> tuple[Path, ...]:
    """
    Find the driver logs that Ray keeps.

    Ray keeps those of jobs started by ``ray job submit``, on the node where
    the driver ran; other drivers print to wherever they were started.

    Args:
        sessions: The session folders of the nodes.

    Returns:
        The files, by node and name.
    """
    found: list[Path] = []
    for session in as_sessions(sessions):
        listed, _ = list_parts(session, "job-driver-")
        found += sorted({x.path for parts in listed.values() for x in parts})
    return tuple(found)


Sources = Mapping[tuple[int | None, str | None], DriverSource | None]


def index_sources(sources: Iterable[DriverSource]) -> Sources:
    """
    Index the processes that printed by process id and node address.

    Returns:
        The processes; with the address ``""`` the only one of its id, if any.
    """
    found: dict[tuple[int | None, str | None], DriverSource | None] = {}
    for x in sources:
        pid = x.origin.pid
        found[pid, ""] = None if (pid, "") in found else x
        found[pid, x.origin.ip] = x
    return found


def find_source(failure: Failure, sources: Sources) -> DriverSource | None:
    """
    Return the lines of the process that failed.

    Process ids repeat across nodes, and Ray omits the address of the driver's
    own node.

    Args:
        sources: The result of `index_sources`.
    """
    if failure.pid is None:
        return None
    places = (failure.ip, None) if failure.ip else (None, "")
    found = (sources.get((failure.pid, place)) for place in places)
    return next(filter(None, found), None)


def find_failure_cause(failure: Failure, signal: str | None = None) -> Cause:
    """
    Return the cause that a finding reports for a failure.

    Args:
        signal: The crash signal in the log of its process, if any.
    """
    cause = FAILURES[failure.kind].cause
    if signal is not None and failure.kind in {"actor_died", "worker_crashed"}:
        return Cause.NATIVE_CRASH
    if failure.kind in {"task_error", "init_error"}:
        return find_error_cause(f"{failure.error}: {failure.message}", cause)
    return cause


def _is_waiting(failure: Failure) -> bool:
    """
    Return whether a failure only reports that another process did not answer.
    """
    return (
        failure.kind == "actor_unavailable"
        or find_failure_cause(failure).is_consequence
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
    sources = index_sources(log.sources)
    # Other failures of the same process say more than a crash.
    reported: dict[int | None, set[str | None]] = defaultdict(set)
    for x in log.failures:
        if x.kind != "worker_crashed":
            reported[x.pid].add(x.ip)
    failures = [
        x
        for x in _drop_smaller_oom(log)
        if not x.is_intended
        and not (
            x.kind == "task_error"
            and PATTERNS["secondary_error"].fullmatch(x.error)
        )
        and not (x.kind == "worker_crashed" and _is_reported(x, reported))
        and x.kind != "owner_died"
    ]
    failures.sort(key=lambda x: (_is_waiting(x), x.line))
    failures = _sort_ending_first(failures)
    return tuple(
        _finding(log, x, _order_word(x, failures[0]), find_source(x, sources))
        for x in failures[:_MOST_FINDINGS]
    )


def _sort_ending_first(failures: list[Failure]) -> list[Failure]:
    """
    Move failures that the driver survived behind the one that ended it.
    """
    ending = next((x for x in failures if x.ended_driver), None)
    if ending is None or _is_waiting(ending):
        return failures

    outlived = {
        x.line
        for x in failures
        if (x.pid, x.ip) != (ending.pid, ending.ip)
        and ending.line - x.line > _OUTLIVED_LINES
    }
    return sorted(failures, key=lambda x: (_is_waiting(x), x.line in outlived))


def _is_reported(
    crash: Failure, reported: Mapping[int | None, set[str | None]]
) -> bool:
    """
    Return whether another failure of the same process, on its node, is known.
    """
    if crash.pid is None:
        return len(reported) > 0
    places = reported.get(crash.pid, set())
    return bool(places & {crash.ip, None}) or (
        crash.ip is None and len(places) > 0
    )


def _drop_smaller_oom(log: DriverLog) -> list[Failure]:
    """
    Drop memory kills except the largest one on each node.
    """
    kills = [x for x in log.failures if x.kind == "out_of_memory"]
    largest: dict[str | None, Failure] = {}
    for kill in sorted(kills, key=lambda x: -(x.memory or 0)):
        largest.setdefault(kill.node_id, kill)
    return [
        x
        for x in log.failures
        if x.kind != "out_of_memory" or largest[x.node_id] is x
    ]


def _order_word(failure: Failure, first: Failure) -> str:
    if failure is first:
        return ""
    return "earlier, " if failure.line < first.line else "later, "


def _finding(
    log: DriverLog, failure: Failure, when: str, source: DriverSource | None
) -> Finding:
    signal = source.signal if source else None
    cause = find_failure_cause(failure, signal)
    # The log does not name the peer, so blame no rank.
    has_waited = cause.is_consequence
    is_blamed = failure.rank is not None and not has_waited
    meaning = WAITED_IN_VAIN if has_waited else FAILURES[failure.kind]
    description = meaning.says.format_map(_describe(failure, signal))
    evidence = quote_log(log.path, f"line {failure.line}", failure.quote)
    return Finding(
        cause=cause,
        ranks=(failure.rank,) if is_blamed else (),  # type: ignore[arg-type]
        summary=f"{when}{description}",
        confidence="possible" if when else "likely",
        remedy=meaning.remedy.replace("{pid}", str(failure.pid or "*")),
        location=failure.frames[0] if failure.frames else None,
        evidence=(evidence,),
    )


def _describe(failure: Failure, signal: str | None) -> dict[str, str]:
    """
    Return the words that the sentence of a meaning may need.
    """
    raised = ": ".join(filter(None, (failure.error, failure.message)))
    # Ray adds the same generic causes to every message.
    detail = _GENERIC_CAUSES.split(clean(failure.detail, limit=400))[0]
    detail = detail.rstrip(". ")
    has_detail = detail and not _CUT_DETAIL.startswith(detail)
    ending = f"died: {detail}" if has_detail else "died"
    held = failure.memory and size_text(failure.memory)
    return {
        "label": clean(failure.label),
        "function": clean(failure.function),
        "raised": clean(raised, limit=200).rstrip(".") or "an exception",
        "held": f", of which it held {held}" if held else "",
        "place": failure.ip or failure.node_id or "of unknown name",
        "actor_id": failure.actor_id or "",
        "ending": f"crashed with {signal}" if signal else ending,
    }
