"""
Define deaths of Ray workers, and turn them into findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from .._render import Block, Shown, Table
from .._text import clean, size_text
from ..causes import Cause
from ..findings import Evidence, Finding, Location, Missing, as_plain
from .messages import (
    DEATHS,
    NOT_STARTED,
    DeathKind,
    find_error_cause,
    label_process,
    parse_memory_notes,
)


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

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data.
        """
        return as_plain(self)

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
        format_time(death.time),
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


def format_time(seconds: float | None) -> str:
    """
    Format a time in seconds since the epoch as UTC.

    Returns:
        Such as ``"2026-02-20 02:03:57"``; ``""`` if it is unknown.
    """
    if seconds is None:
        return ""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return ""

    return f"{moment:%Y-%m-%d %H:%M:%S}"


_MOST_OTHERS = 20
_MOST_QUOTES = 4


def death_findings(deaths: Deaths) -> tuple[Finding, ...]:
    """
    Return findings about the deaths of a Ray cluster.

    Args:
        deaths: The result of :func:`~distdebug.ray.deaths.find_deaths`.

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
        summary += f" at {format_time(first.time)} UTC"
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
