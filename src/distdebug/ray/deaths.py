"""
Deaths of Ray workers and nodes: what is known of them, and which came first.
"""

from __future__ import annotations

import math

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from .._render import Block, Shown, Table, as_plain
from .._text import clean, size_text
from ..causes import Cause
from ..findings import Evidence, Finding, Location, Missing
from .messages import (
    DEATHS,
    NOT_STARTED,
    PATTERNS,
    DeathKind,
    MemoryUse,
    Record,
    find_error_cause,
    label_process,
    parse_memory_notes,
)
from .workers import NO_ACTOR, KnownActor


_MOST_ROWS = 100


@attrs.frozen(kw_only=True)
class Death:
    """
    The end of one worker or node of a cluster.

    Attributes:
        kind: ``"native_crash"``, a signal such as SIGSEGV;
            ``"collective_timeout"``, torch's watchdog aborted it;
            ``"killed_or_exited"``, SIGKILL or ``os._exit``, which leave the
            same (no) trace; ``"exit_code"``, ``sys.exit``; ``"terminated"``,
            SIGTERM; ``"init_error"``, the ``__init__`` of an actor raised;
            ``"ray_oom"`` and ``"host_oom"``, Ray or the kernel killed it
            because the node ran out of memory; ``"node_died"``, the node or
            its raylet was lost; ``"owner_died"``, the worker that created it
            died; ``"job_ended"``, its driver ended; ``"intended"``, the
            program ended it.

        time: In seconds since the epoch, by the head's clock if its log has
            it.

        worker_id: Ray's id of the worker, 56 hexadecimal digits; ``""`` for a
            whole node.

        pid: The process id on its node.

        node_id: Ray's id of the node.

        ip: The address of the node.

        host: The display name of the node.

        job_id: The job, 8 hexadecimal digits.

        actor_id: The actor, 32 hexadecimal digits.

        actor: The display name: the ``repr``, class, or name of the actor, or
            the task that it ran.

        actor_class: The class of the actor.

        actor_name: The name given in ``.options(name=…)``.

        rank: The global rank, if its name or its log contains it.

        exit_type: Ray's exit type, such as ``"SYSTEM_ERROR"``.

        detail: Ray's explanation.

        exit_code: The exit code, if it is logged.

        signal: The signal, such as ``"SIGSEGV"``, if it is logged.

        memory: Its memory when the node ran out of memory, in bytes.

        owner: The worker that created it and died before.

        error: The last line of the traceback of ``"init_error"``, or the
            message before a crash.

        python_frames: The Python stack, innermost first.

        native_frames: The native stack, as the log shows it.

        last_lines: The last lines of its error log.

        log: Its error log, or else the file that reports its end.

        is_first: Whether it is the likely cause of all others.

        is_collateral: Whether it follows from another death.

        evidence: The log lines that report it.
    """

    kind: DeathKind
    time: float | None = None
    worker_id: str = ""
    pid: int | None = None
    node_id: str | None = None
    ip: str | None = None
    host: str = ""
    job_id: str | None = None
    actor_id: str | None = None
    actor: str = ""
    actor_class: str | None = None
    actor_name: str | None = None
    rank: int | None = None
    exit_type: str | None = None
    detail: str = ""
    exit_code: int | None = None
    signal: str | None = None
    memory: int | None = None
    owner: str | None = None
    error: str | None = None
    python_frames: tuple[Location, ...] = ()
    native_frames: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    log: Path | None = None
    is_first: bool = False
    is_collateral: bool = False
    evidence: tuple[Evidence, ...] = ()

    @property
    def is_intended(self) -> bool:
        """
        Return whether the program, or Ray at the end of a job, intended it.
        """
        return self.kind in {"intended", "job_ended"}

    @property
    def label(self) -> str:
        """
        Return a label such as ``"Trainer (rank 3, pid 4711, node-7)"``.
        """
        if not self.worker_id:
            return f"node {self.host or self.ip or (self.node_id or '')[:8]}"

        name = self.actor or f"worker {self.worker_id[:8]}"
        rank = None if f"rank={self.rank}" in name else self.rank
        return label_process(name, rank, self.pid, self.host or self.ip)

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data.
        """
        return as_plain(self)

    def __str__(self) -> str:
        return f"{self.label}: {DEATHS[self.kind].label}"


@attrs.frozen(kw_only=True)
class Deaths(Shown):
    """
    All deaths of a cluster, and the first one.

    Attributes:
        deaths: All ends, by time.

        missing: What could not be read, and why.

        not_started: Log lines about workers that did not register with Ray.
    """

    deaths: tuple[Death, ...] = ()
    missing: tuple[Missing, ...] = ()
    not_started: tuple[Evidence, ...] = ()

    @property
    def first(self) -> Death | None:
        """
        Return the likely cause of all other deaths, if there is one.
        """
        return next((x for x in self.deaths if x.is_first), None)

    @property
    def unintended(self) -> tuple[Death, ...]:
        """
        Return the deaths that were not intended.
        """
        return tuple(x for x in self.deaths if not x.is_intended)

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per death, for a data frame.
        """
        return [death.to_dict() for death in self.deaths]

    def _blocks_(self) -> Iterable[Block]:
        if not self.deaths:
            yield "no death is reported"
            return

        headers = ("", "time (UTC)", "rank", "who", "pid", "node", "how")
        rows = [_row(death) for death in self.deaths]
        yield Table(headers, rows, _MOST_ROWS, "deaths")


def _row(death: Death) -> list[object]:
    ending = DEATHS[death.kind].label
    if death.kind == "exit_code" and death.exit_code is not None:
        ending = f"exit code {death.exit_code}"
    if death.kind == "native_crash":
        ending = death.signal or ending
    role = "first" if death.is_first else ""
    return [
        "follows" if death.is_collateral else role,
        _format_time(death.time),
        "" if death.rank is None else death.rank,
        death.actor or ("worker" if death.worker_id else "node"),
        "" if death.pid is None else death.pid,
        death.host or death.ip or (death.node_id or "")[:8],
        ending,
    ]


def find_worker_death(
    deaths: Deaths | Iterable[Death],
    *,
    rank: int | None = None,
    pid: int | None = None,
    place: str | None = None,
    ray_id: str | None = None,
) -> Death | None:
    """
    Find the death of a process or a rank.

    Args:
        rank: The global rank.

        pid: The process id on its node.

        place: Its node: an address, a host name, or Ray's id.  Without it a
            process id counts only if it is unique.

        ray_id: Ray's id of the worker or the actor.

    Returns:
        The death that matches all given arguments, or ``None``.  An unintended
        one comes before an intended one, then the latest.
    """
    if rank is None and pid is None and ray_id is None:
        return None

    found = [
        death
        for death in (deaths.deaths if isinstance(deaths, Deaths) else deaths)
        if rank in {None, death.rank}
        and pid in {None, death.pid}
        and ray_id in {None, death.worker_id, death.actor_id}
        and place in {None, death.ip, death.host, death.node_id}
    ]
    is_vague = rank is None and ray_id is None and place is None
    if is_vague and len({death.node_id for death in found}) > 1:
        return None

    # A restarted actor has several deaths; take the last one.
    found.sort(key=lambda x: (not x.is_intended, x.time or 0.0))
    return found[-1] if found else None


#: Later times are damaged.
MOST_SECONDS = 1 << 33


def _format_time(seconds: float | None) -> str:
    """
    Format a time in seconds since the epoch as UTC.

    Returns:
        Such as ``"2026-02-20 02:03:57"``; ``""`` if it is unknown, or too
        large for a date.
    """
    if seconds is None or not 0 <= seconds < MOST_SECONDS:
        return ""

    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


@attrs.frozen(kw_only=True)
class Exit:
    """
    The end of a worker or a node, as one log line reports it.

    Attributes:
        worker_id: Ray's id of the worker; ``""`` for a whole node.

        time: In seconds since the epoch.

        exit_type: Ray's exit type; ``""`` if the line has none.

        detail: Ray's explanation.

        node_id: Ray's id of the node.

        ip: The address of the node.

        pid: The process id on that node.

        is_expected: Whether a node was stopped, and not lost.

        evidence: The log line.
    """

    worker_id: str = ""
    time: float | None = None
    exit_type: str = ""
    detail: str = ""
    node_id: str | None = None
    ip: str | None = None
    pid: int | None = None
    is_expected: bool = False
    evidence: Evidence


@attrs.frozen(kw_only=True)
class DeathFacts:
    """
    What all logs report, by subject.

    Attributes:
        exits: All exits of each worker, the most trusted first.

        owners: The owner that died before each worker that died with it.

        memory: The memory of processes on nodes that ran out of memory, in
            bytes: of those that Ray killed by worker, else by node and
            process id.

        nodes: The ends of each node, by time.

        jobs: The time when the driver of each job ended, by job.

        placements: The actor, node, and process id of each worker.

        not_started: Log lines about workers that did not register in time.

        missing: What could not be read.
    """

    exits: defaultdict[str, list[Exit]] = attrs.field(
        factory=lambda: defaultdict(list)
    )
    owners: dict[str, str] = attrs.field(factory=dict)
    memory: dict[object, int] = attrs.field(factory=dict)
    nodes: defaultdict[str | None, list[Exit]] = attrs.field(
        factory=lambda: defaultdict(list)
    )
    jobs: dict[str, float] = attrs.field(factory=dict)
    placements: dict[str, KnownActor] = attrs.field(factory=dict)
    not_started: list[Evidence] = attrs.field(factory=list)
    missing: list[Missing] = attrs.field(factory=list)

    def add_exit(self, record: Record, **fields: Any) -> None:
        """
        Add what a record says of the end of a worker or a node.

        Of one worker, the first record is trusted most.

        Args:
            fields: The attributes of the `Exit`, and its time if it is not
                that of the record.
        """
        known = {"time": record.time, "evidence": record.evidence} | fields
        found = Exit(**known)
        if found.worker_id:
            self.exits[found.worker_id].append(found)
        else:
            self.nodes[found.node_id].append(found)

    def add_memory(self, text: str) -> list[MemoryUse]:
        """
        Add, and return, the memory sizes in Ray's out-of-memory message.
        """
        notes = list(parse_memory_notes(text))
        for note in notes:
            key = note.worker_id or (note.node_id, note.pid)
            self.memory[key] = max(self.memory.get(key, 0), note.size)
        return notes

    def add_job_end(self, job_id: str, time: float | None) -> None:
        """
        Add the end of a driver; the earliest time counts.
        """
        if time is not None:
            self.jobs[job_id] = min(time, self.jobs.get(job_id, time))

    def add_placement(self, worker_id: str, **fields: Any) -> None:
        """
        Add what is known of the place of a worker; later notes count.
        """
        known = self.placements.get(worker_id, NO_ACTOR)
        given = {name: value for name, value in fields.items() if value}
        self.placements[worker_id] = attrs.evolve(known, **given)


def is_driver(worker_id: str) -> bool:
    """
    Return whether a worker id is that of a driver.

    A driver's id is its job id, padded with ``f``.
    """
    return worker_id.endswith("f" * 48)


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


def mark_first_death(
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
    ordered = [_add_memory(death, facts.memory) for death in ordered]
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
    if not death.worker_id or is_driver(death.worker_id):
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
        and node.time is not None
        and death.time is not None
        and death.time >= node.time - _stop_margin_s(death)
        and not _is_before_job_end(death, node.time, facts)
        for node in facts.nodes.get(death.node_id, ())
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


def _add_memory(death: Death, memory: Mapping[object, int]) -> Death:
    if death.kind not in {"ray_oom", "host_oom"}:
        return death
    pid = death.pid
    keys = (death.worker_id, (death.node_id, pid), (None, pid))
    sizes = [memory[key] for key in keys if key in memory]
    return attrs.evolve(death, memory=max(sizes, default=None))


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


_MOST_OTHERS = 20
_MOST_QUOTES = 4


def death_findings(deaths: Deaths) -> tuple[Finding, ...]:
    """
    Return findings about the deaths of a Ray cluster.

    Args:
        deaths: The result of :func:`~distdebug.ray.death_logs.find_deaths`.

    Returns:
        The first death, then independent deaths, deaths that follow from
        others, and workers that never started; nothing if all ends were
        intended.
    """
    found: list[Finding] = []
    first = deaths.first
    if first is not None:
        found.append(_first_finding(first, deaths))
    found += _other_findings(deaths)
    follows = [
        x for x in deaths.deaths if x.is_collateral and x.kind != "job_ended"
    ]
    if follows and first is not None:
        found.append(_follower_finding(follows, first))
    if deaths.not_started:
        found.append(_not_started_finding(deaths.not_started))
    return tuple(found)


def _first_finding(first: Death, deaths: Deaths) -> Finding:
    summary = _describe(first)
    if first.time is not None:
        summary += f" at {_format_time(first.time)} UTC"
    others = len(deaths.unintended) - 1
    if others > 0:
        summary += f", before {others} others died"
    finding = _finding([first], summary)
    is_partial = any("gcs_server" in x.reason for x in deaths.missing)
    is_vague = is_partial and others > 0
    return attrs.evolve(finding, confidence="likely") if is_vague else finding


def _finding(alike: Sequence[Death], summary: str) -> Finding:
    """
    Return a finding about the first of several deaths of one kind.
    """
    death, meaning = alike[0], DEATHS[alike[0].kind]
    cause = meaning.cause
    if death.kind == "init_error":
        error = f"{death.error or ''}\n{death.detail}"
        cause = find_error_cause(error, cause)
    where = f" ({death.log})" if death.log else ""
    return Finding(
        cause=cause,
        ranks=tuple(sorted({x.rank for x in alike if x.rank is not None})),
        summary=summary,
        confidence=meaning.confidence,
        remedy=f"{meaning.remedy}{where}",
        location=death.python_frames[0] if death.python_frames else None,
        evidence=_evidence(death),
    )


def _describe(death: Death) -> str:
    """
    Describe an unintended death in one sentence.
    """
    description = f"{clean(death.label)} {DEATHS[death.kind].says}"
    if death.kind == "native_crash" and death.signal:
        description += f" with {death.signal}"
        if death.python_frames:
            description += f" in {clean(death.python_frames[0].brief)}"
    if death.kind == "exit_code":
        description += f" with code {death.exit_code}"
    if death.kind == "node_died" and death.detail and not death.worker_id:
        description += f" ({clean(death.detail, limit=100)})"
    if death.memory:
        description += f", of which it held {size_text(death.memory)}"
        description += _describe_largest(death)
    if death.error and death.kind in {"init_error", "native_crash"}:
        description += f": {clean(death.error, limit=160).rstrip('.')}"
    return description


def _describe_largest(death: Death) -> str:
    """
    Describe the process that held the most memory.

    Ray kills only workers, but any process may hold the memory.
    """
    notes = parse_memory_notes(death.detail)
    most = max(notes, key=lambda note: note.size, default=None)
    if most is None or most.size <= (death.memory or 0):
        return ""
    process = f"process {most.pid} ({clean(most.command, limit=60)})"
    return f", while {process} held {size_text(most.size)}"


def _evidence(death: Death) -> tuple[Evidence, ...]:
    quotes = _clean_quotes(death.evidence)
    if not death.last_lines or death.log is None:
        return quotes
    last = Evidence(
        kind="log",
        source=str(death.log),
        location="last lines",
        quote=" | ".join(death.last_lines[-3:]),
    )
    return (*quotes, last)


def _clean_quotes(quotes: Sequence[Evidence]) -> tuple[Evidence, ...]:
    return tuple(
        attrs.evolve(x, quote=clean(x.quote, limit=400))
        for x in quotes[:_MOST_QUOTES]
    )


def _other_findings(deaths: Deaths) -> Iterator[Finding]:
    """
    Yield findings for independent deaths, one for each group.
    """
    groups: dict[tuple[DeathKind, str], list[Death]] = {}
    for death in deaths.unintended:
        if not (death.is_first or death.is_collateral):
            key = death.kind, death.actor_class or death.actor
            groups.setdefault(key, []).append(death)
    for group in list(groups.values())[:_MOST_OTHERS]:
        more = f", and {len(group) - 1} more alike" if len(group) > 1 else ""
        summary = (
            f"later, {_describe(group[0])}{more}; "
            "whether it follows from the first death is unknown"
        )
        yield attrs.evolve(_finding(group, summary), confidence="possible")


def _follower_finding(follows: list[Death], first: Death) -> Finding:
    counts = Counter(DEATHS[x.kind].follows for x in follows)
    reasons = "; ".join(f"{n} {what}" for what, n in counts.most_common())
    names = ", ".join(clean(x.label) for x in follows[:3])
    more = ", …" if len(follows) > 3 else ""
    noun = "death follows" if len(follows) == 1 else "deaths follow"
    return Finding(
        cause=Cause.ACTOR_DIED,
        ranks=(),  # none of them is a root cause
        summary=f"{len(follows)} {noun} from another one ({reasons}): "
        f"{names}{more}",
        confidence="likely",
        remedy=f"nothing to be done here; see to {clean(first.label)} first",
        evidence=tuple(e for x in follows[:3] for e in _evidence(x)[:1]),
    )


def _not_started_finding(reports: Sequence[Evidence]) -> Finding:
    times = "once" if len(reports) == 1 else f"{len(reports)} times"
    return Finding(
        cause=NOT_STARTED.cause,
        ranks=(),
        summary=NOT_STARTED.says.format(times=times),
        confidence=NOT_STARTED.confidence,
        remedy=NOT_STARTED.remedy,
        evidence=_clean_quotes(reports),
    )
