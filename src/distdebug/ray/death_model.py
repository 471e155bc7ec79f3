"""
Define deaths of Ray workers, classify them, and turn them into findings.
"""

from __future__ import annotations

import re

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import attrs

from .._render import Block, Shown, Table
from .._text import clean, size_text
from ..findings import (
    Cause,
    Confidence,
    Evidence,
    Finding,
    Location,
    Missing,
    as_plain,
)
from .log_tail import LogTail, MemoryUse, Orphan, WorkerExit


DeathKind = Literal[
    "native_crash",
    "collective_timeout",
    "killed_or_exited",
    "exit_code",
    "terminated",
    "init_error",
    "ray_oom",
    "host_oom",
    "node_died",
    "owner_died",
    "job_ended",
    "intended",
]

_MOST_ROWS = 100
# Labels in tables.
_KIND_LABELS: Mapping[DeathKind, str] = {
    "native_crash": "native crash",
    "collective_timeout": "aborted by watchdog",
    "killed_or_exited": "SIGKILL or os._exit",
    "exit_code": "exit code",
    "terminated": "SIGTERM",
    "init_error": "error in __init__",
    "ray_oom": "killed by Ray for memory",
    "host_oom": "killed by the kernel for memory",
    "node_died": "node died",
    "owner_died": "owner died",
    "job_ended": "job ended",
    "intended": "intended",
}


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
        has_rank = self.rank is None or f"rank={self.rank}" in name
        rank = None if has_rank else f"rank {self.rank}"
        pid = None if self.pid is None else f"pid {self.pid}"
        known = [x for x in (rank, pid, self.host or self.ip) if x]
        return f"{name} ({', '.join(known)})" if known else name

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data.
        """
        return as_plain(self)

    def __str__(self) -> str:
        return f"{self.label}: {_KIND_LABELS[self.kind]}"


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
            yield "no death is told"
            return

        headers = ("", "time (UTC)", "rank", "who", "pid", "node", "how")
        rows = [_row(death) for death in self.deaths]
        yield Table(headers, rows, _MOST_ROWS, "deaths")


def _row(death: Death) -> list[object]:

    role = "first" if death.is_first else ""
    ending = _KIND_LABELS[death.kind]
    if death.kind == "exit_code" and death.exit_code is not None:
        ending = f"exit code {death.exit_code}"
    return [
        "follows" if death.is_collateral else role,
        format_time(death.time),
        "" if death.rank is None else death.rank,
        death.actor or ("node" if not death.worker_id else "worker"),
        "" if death.pid is None else death.pid,
        death.host or death.ip or (death.node_id or "")[:8],
        death.signal
        if death.kind == "native_crash" and death.signal
        else ending,
    ]


_EXIT_CODE = re.compile(r"[Ee]xit code:? (?P<code>-?\d{1,5})")
_OWNER_DIED = re.compile(
    r"owner has died.{0,40}?Owner Id: (?P<id>[0-9a-f]{56})", re.DOTALL
)
_TERMINATED = re.compile(r"receives? a SIGTERM|SIGTERM signal")
_RAY_OOM = re.compile(
    r"running low on memory|^Memory on the node", re.MULTILINE
)
_NODE_LOST = re.compile(
    r"local raylet|[Nn]ode (?:was |is |has )?(?:died|dead|terminated|failed)"
    r"|preempted"
)
_JOB_ENDED = re.compile(
    r"job has finished|job finished|Shutdown by ray\.shutdown"
)


def is_driver(worker_id: str) -> bool:
    """
    Return whether a worker id is that of a driver.

    A driver's id is its job id, padded with ``f``.
    """
    return worker_id.endswith("f" * 48)


def find_exit_code(exits: Sequence[WorkerExit]) -> int | None:
    """
    Find the exit code in the exit notes of one worker.
    """
    codes = (_EXIT_CODE.search(x.detail) for x in exits)
    return next((int(x["code"]) for x in codes if x), None)


def classify_death(
    exits: Sequence[WorkerExit], orphan: Orphan | None, tail: LogTail
) -> tuple[DeathKind, str | None]:
    """
    Classify the end of a worker.

    Args:
        exits: Its exit notes, the most trusted first.

        orphan: The note that it was killed because its owner had died, if any.

        tail: The details of its error log.

    Returns:
        The kind, and the owner if the owner's end is the reason.
    """
    types = {x.exit_type for x in exits if x.exit_type}
    detail = "\n".join(x.detail for x in exits)
    if "NODE_OUT_OF_MEMORY" in types or _RAY_OOM.search(detail):
        return "ray_oom", None

    owner = _find_owner(detail, orphan)
    # A worker that the raylet ends may report the signal first.
    is_orphan = orphan is not None and _TERMINATED.search(detail) is not None
    has_owner = is_orphan or "owner has died" in detail
    if "SYSTEM_ERROR" not in types or has_owner:
        if owner is not None:
            return "job_ended" if is_driver(owner) else "owner_died", owner
        if "USER_ERROR" in types:
            return "init_error", None
        if types and "SYSTEM_ERROR" not in types:
            return "job_ended" if _JOB_ENDED.search(
                detail
            ) else "intended", None
    return _classify_system_error(exits, detail, tail), None


def _find_owner(detail: str, orphan: Orphan | None) -> str | None:
    found = _OWNER_DIED.search(detail)
    if found:
        return found["id"]
    return orphan.owner if orphan else None


def _classify_system_error(
    exits: Sequence[WorkerExit], detail: str, tail: LogTail
) -> DeathKind:
    if _TERMINATED.search(detail) or tail.signal == "SIGTERM":
        return "terminated"
    if tail.signal is not None:
        is_watchdog = tail.is_watchdog and tail.signal == "SIGABRT"
        return "collective_timeout" if is_watchdog else "native_crash"
    if find_exit_code(exits) is not None:
        return "exit_code"
    if _NODE_LOST.search(detail):
        return "node_died"
    return "collective_timeout" if tail.is_watchdog else "killed_or_exited"


_GB = 1 << 30
_MEMORY_NODE = re.compile(
    r"on the node \(IP: [^,]{1,60}, ID: (?P<id>[0-9a-f]{56})\)"
)
# Ray >= 2.56: "pid=1, actual memory used=1.29GB, worker ID=…", one per line;
# older: "pid=1, memory used=1.29GB) … Ray killed this worker (ID: …)".
_MEMORY_PROCESS = re.compile(
    r"\bpid=(?P<pid>\d{1,10}), (?:actual )?memory used="
    r"(?P<size>[\d.]{1,12})GB"
)
_MEMORY_WORKER = re.compile(
    r"(?:worker ID=|killed this worker \(ID: )(?P<id>[0-9a-f]{56})"
)
_MOST_DISTANCE = 400
_TOP_USER = re.compile(
    r"^(?:Top \d{1,3} memory users: )?(?P<pid>\d{1,10})[\t ]{1,9}"
    r"(?P<size>\d{1,6}\.\d{1,3})[\t ]{1,9}(?P<command>\S[^\n]{0,200})$",
    re.MULTILINE,
)


def parse_memory_notes(text: str) -> Iterator[MemoryUse]:
    """
    Parse the process memory sizes in Ray's out-of-memory message.

    Args:
        text: The record, of several lines.

    Yields:
        The listed processes; those that Ray killed have a worker id.
    """
    node = _MEMORY_NODE.search(text)
    node_id = node["id"] if node else None
    for found in _MEMORY_PROCESS.finditer(text):
        worker = _MEMORY_WORKER.search(
            text, found.end(), found.end() + _MOST_DISTANCE
        )
        yield MemoryUse(
            pid=int(found["pid"]),
            size=_parse_size(found["size"]),
            node_id=node_id,
            worker_id=worker["id"] if worker else None,
        )
    if "memory users" in text:
        for found in _TOP_USER.finditer(text):
            yield MemoryUse(
                pid=int(found["pid"]),
                size=_parse_size(found["size"]),
                node_id=node_id,
                command=found["command"],
            )


def _parse_size(text: str) -> int:
    try:
        return int(float(text) * _GB)
    except ValueError:  # such as 1.2.3
        return 0


# A rank in an actor's name, such as NamedRepr(rank=0) or trainer_rank3.
_RANK_IN_NAME = re.compile(
    r"(?:(?<![A-Za-z])|(?<=global_)|(?<=world_))rank[=:_ ]{0,2}(?P<rank>\d{1,6})",
    re.IGNORECASE,
)
_OTHER_RANK_PREFIX = re.compile(
    r"(?:local|node|group|dp|tp|pp|cp|ep)_?$", re.IGNORECASE
)
_RANK_IN_LOG = re.compile(
    r"(?:^\[rank|(?<![A-Za-z_])RANK[=:] ?|(?<![A-Za-z_])global_rank[=:] ?)"
    r"(?P<rank>\d{1,6})",
    re.MULTILINE,
)


def parse_rank(names: Sequence[str | None], text: str) -> int | None:
    """
    Parse the global rank of a worker from its names or its log.

    Args:
        names: Its names; the first one that contains a rank counts.

        text: Its log.

    Returns:
        The rank; ``None`` if there is none, or log lines contradict each
        other.
    """
    for name in filter(None, names):
        for found in _RANK_IN_NAME.finditer(name):
            if not _OTHER_RANK_PREFIX.search(name[: found.start()]):
                return int(found["rank"])
    printed = {int(x["rank"]) for x in _RANK_IN_LOG.finditer(text)}
    return printed.pop() if len(printed) == 1 else None


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


_CAUSES: Mapping[DeathKind, Cause] = {
    "native_crash": Cause.NATIVE_CRASH,
    "collective_timeout": Cause.COLLECTIVE_TIMEOUT,
    "killed_or_exited": Cause.KILLED,
    "terminated": Cause.KILLED,
    "ray_oom": Cause.HOST_OUT_OF_MEMORY,
    "host_oom": Cause.HOST_OUT_OF_MEMORY,
}
# The message of an exception may name a more exact cause.
_ERROR_CAUSES = (
    (
        re.compile(
            r"CUDA out of memory|OutOfMemoryError: CUDA|HIP out of mem"
        ),
        Cause.GPU_OUT_OF_MEMORY,
    ),
    (re.compile(r"No space left on device"), Cause.DISK_FULL),
    (
        re.compile(
            r"DistStoreError|waiting for clients|client socket has tim"
        ),
        Cause.RENDEZVOUS_TIMEOUT,
    ),
)
_CONFIDENCE: Mapping[DeathKind, Confidence] = {
    "native_crash": "certain",
    "init_error": "certain",
    "ray_oom": "certain",
    "host_oom": "certain",
}
_REMEDIES: Mapping[DeathKind, str] = {
    "native_crash": "look at the innermost lines of its stack and at what its "
    "error log says before; CUDA_LAUNCH_BLOCKING=1 makes errors of kernels "
    "appear where they are made",
    "collective_timeout": "find the rank that did not join the collective: "
    "read the Flight Recorder dumps, or the watchdog's lines of all ranks",
    "killed_or_exited": "look for this process in the kernel's log (dmesg, "
    "memory.events of its cgroup), since want of memory is the most common "
    "reason; else search its code and libraries for os._exit",
    "exit_code": "look who calls sys.exit at the end of its error log",
    "terminated": "find out who sent it: the scheduler at a limit of time or "
    "for a preemption, a script, or somebody by hand",
    "init_error": "mend what the traceback in its error log shows",
    "ray_oom": "let it need less memory (smaller batches, fewer workers of "
    "data loaders, no copies on the host), or give the node more",
    "host_oom": "let the node need less memory, or give it more; Ray's own "
    "monitor did not act in time",
    "node_died": "look at the node itself: its kernel's log, its hardware, "
    "the scheduler; raylet.out there ends where it happened",
}
_KIND_PHRASES: Mapping[DeathKind, str] = {
    "native_crash": "crashed",
    "collective_timeout": "was aborted by torch's watchdog: a collective took "
    "too long",
    "killed_or_exited": "vanished without a trace, by SIGKILL or os._exit",
    "exit_code": "left by sys.exit",
    "terminated": "was ended by SIGTERM",
    "init_error": "died of an exception in its __init__",
    "ray_oom": "was killed by Ray since its node ran out of memory",
    "host_oom": "was killed by the kernel since its node ran out of memory",
    "node_died": "was lost",
}
_FOLLOWER_PHRASES: Mapping[DeathKind, str] = {
    "owner_died": "by the loss of the owner",
    "ray_oom": "killed by Ray to regain memory that another one held",
    "node_died": "on a node that was lost",
    "terminated": "ended with the node or the job",
}


def find_death_cause(death: Death) -> Cause:
    """
    Return the cause that a finding reports for an unintended death.
    """
    if death.kind == "init_error":
        error = f"{death.error or ''}\n{death.detail}"
        for pattern, cause in _ERROR_CAUSES:
            if pattern.search(error):
                return cause
    return _CAUSES.get(death.kind, Cause.ACTOR_DIED)


def rate_confidence(death: Death) -> Confidence:
    """
    Return how certain the kind of an unintended death is.
    """
    return _CONFIDENCE.get(death.kind, "likely")


def describe_death(death: Death) -> str:
    """
    Describe an unintended death in one sentence, without its full stop.
    """
    description = (
        f"{clean(_capitalize(death.label))} {_KIND_PHRASES[death.kind]}"
    )
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


def find_remedy(death: Death) -> str:
    """
    Return what to do about an unintended death, and which log to read.
    """
    remedy = _REMEDIES[death.kind]
    return f"{remedy} ({death.log})" if death.log else remedy


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


def _capitalize(text: str) -> str:
    # Names that the user chose keep their case.
    nouns = ("node ", "worker ", "driver ")
    return text[0].upper() + text[1:] if text.startswith(nouns) else text


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
    when = (
        f" at {format_time(first.time)} UTC" if first.time is not None else ""
    )
    others = sum(not x.is_intended for x in deaths.deaths) - 1
    before = f", before {others} others died" if others > 0 else ""
    partial = any("gcs_server" in x.reason for x in deaths.missing)
    first_confidence = rate_confidence(first)
    return Finding(
        cause=find_death_cause(first),
        ranks=() if first.rank is None else (first.rank,),
        summary=f"{describe_death(first)}{when}{before}.",
        confidence="likely" if partial and others > 0 else first_confidence,
        remedy=find_remedy(first),
        location=first.python_frames[0] if first.python_frames else None,
        evidence=_evidence(first),
    )


def _evidence(death: Death) -> tuple[Evidence, ...]:
    quotes = [
        Evidence(
            kind=x.kind,
            source=x.source,
            location=x.location,
            quote=clean(x.quote, limit=400),
        )
        for x in death.evidence[:_MOST_QUOTES]
    ]
    if death.last_lines and death.log is not None:
        quotes.append(
            Evidence(
                kind="log",
                source=str(death.log),
                location="last lines",
                quote=" | ".join(death.last_lines[-3:]),
            )
        )
    return tuple(quotes)


def _other_findings(deaths: Deaths) -> Iterator[Finding]:
    """
    Yield findings for independent deaths, one for each group.
    """
    groups: dict[tuple[DeathKind, str], list[Death]] = {}
    for death in deaths.unintended:
        if death.is_first or death.is_collateral or death.is_intended:
            continue
        key = death.kind, death.actor_class or death.actor
        groups.setdefault(key, []).append(death)
    for group in list(groups.values())[:_MOST_OTHERS]:
        death = group[0]
        more = f", and {len(group) - 1} more alike" if len(group) > 1 else ""
        yield Finding(
            cause=find_death_cause(death),
            ranks=_ranks(group),
            summary=f"Later, {describe_death(death)}{more}; "
            "whether it follows from the first death is not told.",
            confidence="possible",
            remedy=find_remedy(death),
            location=death.python_frames[0] if death.python_frames else None,
            evidence=_evidence(death),
        )


def _follower_finding(follows: list[Death], first: Death) -> Finding:
    counts = Counter(
        _FOLLOWER_PHRASES.get(
            x.kind, "after another one, or complaining of it"
        )
        for x in follows
    )
    reasons = "; ".join(f"{n} {what}" for what, n in counts.most_common())
    names = ", ".join(clean(x.label) for x in follows[:3])
    more = ", …" if len(follows) > 3 else ""
    noun = "death follows" if len(follows) == 1 else "deaths follow"
    return Finding(
        cause=Cause.ACTOR_DIED,
        ranks=(),  # none of them is a root cause
        summary=f"{len(follows)} {noun} from another one ({reasons}): "
        f"{names}{more}.",
        confidence="likely",
        remedy=f"nothing to be done here; see to {clean(first.label)} first",
        evidence=tuple(e for x in follows[:3] for e in _evidence(x)[:1]),
    )


def _not_started_finding(start_failures: tuple[Evidence, ...]) -> Finding:
    times = (
        "once" if len(start_failures) == 1 else f"{len(start_failures)} times"
    )
    return Finding(
        cause=Cause.RAY_WORKER_START_TIMEOUT,
        ranks=(),
        summary=f"Worker processes did not register with Ray in time {times}: "
        "they hang or die before they run any code of the job.",
        confidence="likely",
        remedy="see what the new processes print (raylet.err, worker-*.err, "
        "runtime_env_setup-*.log): a wrong interpreter of the runtime "
        "environment, imports from a slow file system, too few processors, or "
        "a profiler in front of the interpreter; "
        "RAY_worker_register_timeout_seconds is how long Ray waits",
        evidence=tuple(
            Evidence(
                kind=x.kind,
                source=x.source,
                location=x.location,
                quote=clean(x.quote, limit=400),
            )
            for x in start_failures[:_MOST_QUOTES]
        ),
    )


def _ranks(deaths: Iterable[Death]) -> tuple[int, ...]:
    return tuple(sorted({x.rank for x in deaths if x.rank is not None}))
