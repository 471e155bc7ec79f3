"""
What is known of the end of one worker, and of all of them?
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
from .log_tail import Exit, LastWords, Memory, Orphan


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
# How each of them is called in a table.
_WORDS: Mapping[DeathKind, str] = {
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
    How did one worker of a cluster end?

    Attributes:
        kind: ``"native_crash"`` by a signal such as SIGSEGV;
            ``"collective_timeout"``, torch's watchdog aborted it;
            ``"killed_or_exited"``, by SIGKILL or ``os._exit``, which leave
            the same (that is: no) trace; ``"exit_code"``, by ``sys.exit``;
            ``"terminated"`` by SIGTERM; ``"init_error"``, the ``__init__`` of
            an actor raised; ``"ray_oom"`` and ``"host_oom"``, by Ray or the
            kernel, who lacked memory; ``"node_died"``, the node or what Ray
            runs on it; ``"owner_died"``, who had created it; ``"job_ended"``,
            with its driver; ``"intended"``, as the program wanted.

        time: When, in seconds since the epoch, as the clock of the head has
            it wherever it tells.

        worker_id: What Ray calls the process, 56 hexadecimal digits; ``""``
            for a whole node.

        pid: The number of the process on its node.

        node_id: What Ray calls the node.

        ip: The address of the node.

        host: How to call the node.

        job_id: The job it belonged to, 8 hexadecimal digits.

        actor_id: Which actor it was, 32 hexadecimal digits.

        actor: What a person calls it: the ``repr``, class, or name of the
            actor, or the task it ran.

        actor_class: The class of the actor.

        actor_name: The name that it was given.

        rank: The global rank, if its name or its log tells.

        exit_type: Ray's word for it, such as ``"SYSTEM_ERROR"``.

        detail: What Ray says about it.

        exit_code: What it exited with, if that is told.

        signal: Such as ``"SIGSEGV"``, if one is told.

        memory: How many bytes it had when memory ran out.

        owner: The worker that had created it and died before.

        error: The last line of the traceback of ``"init_error"``, or what
            stood before a crash.

        python_frames: Where it was, innermost first.

        native_frames: The same in native code, as it stands in the log.

        last_lines: The last lines of its error log.

        log: Its error log, or else the file that tells of its end.

        is_first: Whether it is taken for the cause of all others.

        is_collateral: Whether it merely follows from another.

        evidence: The lines that tell.
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
        Whether the program, or Ray at its end, wanted it.
        """
        return self.kind in {"intended", "job_ended"}

    @property
    def label(self) -> str:
        """
        Who it was, such as ``"Trainer (rank 3, pid 4711, node-7)"``.
        """
        if not self.worker_id:
            return f"node {self.host or self.ip or (self.node_id or '')[:8]}"

        name = self.actor or f"worker {self.worker_id[:8]}"
        is_told = self.rank is None or f"rank={self.rank}" in name
        rank = None if is_told else f"rank {self.rank}"
        pid = None if self.pid is None else f"pid {self.pid}"
        known = [x for x in (rank, pid, self.host or self.ip) if x]
        return f"{name} ({', '.join(known)})" if known else name

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def __str__(self) -> str:
        return f"{self.label}: {_WORDS[self.kind]}"


@attrs.frozen(kw_only=True)
class Deaths(Shown):
    """
    Who died in a cluster, and what came first?

    Attributes:
        deaths: All ends that are told, in the order of time.

        missing: What could not be looked at, and why.

        not_started: Lines about workers that never registered with Ray.
    """

    deaths: tuple[Death, ...] = ()
    missing: tuple[Missing, ...] = ()
    not_started: tuple[Evidence, ...] = ()

    @property
    def first(self) -> Death | None:
        """
        What is taken for the cause of all others, if anything went wrong.
        """
        return next((x for x in self.deaths if x.is_first), None)

    @property
    def unintended(self) -> tuple[Death, ...]:
        """
        Those that nobody wanted.
        """
        return tuple(x for x in self.deaths if not x.is_intended)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per death, for a data frame.
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

    mark = "first" if death.is_first else ""
    how = _WORDS[death.kind]
    if death.kind == "exit_code" and death.exit_code is not None:
        how = f"exit code {death.exit_code}"
    return [
        "follows" if death.is_collateral else mark,
        clock(death.time),
        "" if death.rank is None else death.rank,
        death.actor or ("node" if not death.worker_id else "worker"),
        "" if death.pid is None else death.pid,
        death.host or death.ip or (death.node_id or "")[:8],
        death.signal if death.kind == "native_crash" and death.signal else how,
    ]


_CODE = re.compile(r"[Ee]xit code:? (?P<code>-?\d{1,5})")
_OWNER = re.compile(
    r"owner has died.{0,40}?Owner Id: (?P<id>[0-9a-f]{56})", re.DOTALL
)
_TERMINATED = re.compile(r"receives? a SIGTERM|SIGTERM signal")
_MEMORY = re.compile(
    r"running low on memory|^Memory on the node", re.MULTILINE
)
_NODE = re.compile(
    r"local raylet|[Nn]ode (?:was |is |has )?(?:died|dead|terminated|failed)"
    r"|preempted"
)
_JOB = re.compile(r"job has finished|job finished|Shutdown by ray\.shutdown")


def is_driver(worker_id: str) -> bool:
    """
    Whether this is a driver rather than a worker.

    Args:
        worker_id: What Ray calls it: of a driver its job, and then only f.

    Returns:
        Whether it is one.
    """
    return worker_id.endswith("f" * 48)


def exit_code_of(exits: Sequence[Exit]) -> int | None:
    """
    What did a worker exit with?

    Args:
        exits: What is told about its end.

    Returns:
        The code, if any line tells.
    """
    codes = (_CODE.search(x.detail) for x in exits)
    return next((int(x["code"]) for x in codes if x), None)


def kind_of(
    exits: Sequence[Exit], orphan: Orphan | None, words: LastWords
) -> tuple[DeathKind, str | None]:
    """
    In which way did a worker end?

    Args:
        exits: What is told about its end, the most trusted first.

        orphan: Whether it was killed because its owner was dead.

        words: What it printed last.

    Returns:
        The way, and who owned it if that matters.
    """
    types = {x.exit_type for x in exits if x.exit_type}
    detail = "\n".join(x.detail for x in exits)
    if "NODE_OUT_OF_MEMORY" in types or _MEMORY.search(detail):
        return "ray_oom", None

    owner = _owner(detail, orphan)
    # Whom the raylet ends may be quicker to tell of its signal.
    is_orphan = orphan is not None and _TERMINATED.search(detail) is not None
    is_told = is_orphan or "owner has died" in detail
    if "SYSTEM_ERROR" not in types or is_told:
        if owner is not None:
            return "job_ended" if is_driver(owner) else "owner_died", owner
        if "USER_ERROR" in types:
            return "init_error", None
        if types and "SYSTEM_ERROR" not in types:
            return "job_ended" if _JOB.search(detail) else "intended", None
    return _system_error(exits, detail, words), None


def _owner(detail: str, orphan: Orphan | None) -> str | None:
    found = _OWNER.search(detail)
    if found:
        return found["id"]
    return orphan.owner if orphan else None


def _system_error(
    exits: Sequence[Exit], detail: str, words: LastWords
) -> DeathKind:
    if _TERMINATED.search(detail) or words.signal == "SIGTERM":
        return "terminated"
    if words.signal is not None:
        is_watchdog = words.is_watchdog and words.signal == "SIGABRT"
        return "collective_timeout" if is_watchdog else "native_crash"
    if exit_code_of(exits) is not None:
        return "exit_code"
    if _NODE.search(detail):
        return "node_died"
    return "collective_timeout" if words.is_watchdog else "killed_or_exited"


_GB = 1 << 30
_MEMORY_NODE = re.compile(
    r"on the node \(IP: [^,]{1,60}, ID: (?P<id>[0-9a-f]{56})\)"
)
# Since 2.56 "pid=1, actual memory used=1.29GB, worker ID=…", one in a line;
# before "pid=1, memory used=1.29GB) … Ray killed this worker (ID: …)".
_PROCESS = re.compile(
    r"\bpid=(?P<pid>\d{1,10}), (?:actual )?memory used="
    r"(?P<size>[\d.]{1,12})GB"
)
_WORKER = re.compile(
    r"(?:worker ID=|killed this worker \(ID: )(?P<id>[0-9a-f]{56})"
)
_NEAR = 400
_TOP = re.compile(
    r"^(?:Top \d{1,3} memory users: )?(?P<pid>\d{1,10})[\t ]{1,9}"
    r"(?P<size>\d{1,6}\.\d{1,3})[\t ]{1,9}(?P<command>\S[^\n]{0,200})$",
    re.MULTILINE,
)


def memory_notes(text: str) -> Iterator[Memory]:
    """
    Read what Ray says about memory when it kills.

    Args:
        text: The record, of several lines.

    Yields:
        The processes that it lists; those that were killed with their
        worker.
    """
    node = _MEMORY_NODE.search(text)
    node_id = node["id"] if node else None
    for found in _PROCESS.finditer(text):
        worker = _WORKER.search(text, found.end(), found.end() + _NEAR)
        yield Memory(
            pid=int(found["pid"]),
            size=_size(found["size"]),
            node_id=node_id,
            worker_id=worker["id"] if worker else None,
        )
    if "memory users" in text:
        for found in _TOP.finditer(text):
            yield Memory(
                pid=int(found["pid"]),
                size=_size(found["size"]),
                node_id=node_id,
                command=found["command"],
            )


def _size(text: str) -> int:
    try:
        return int(float(text) * _GB)
    except ValueError:  # such as 1.2.3
        return 0


# In the name of an actor, such as NamedRepr(rank=0) or trainer_rank3.
_NAMED_RANK = re.compile(
    r"(?:(?<![A-Za-z])|(?<=global_)|(?<=world_))rank[=:_ ]{0,2}(?P<rank>\d{1,6})",
    re.IGNORECASE,
)
_OTHER_RANK = re.compile(
    r"(?:local|node|group|dp|tp|pp|cp|ep)_?$", re.IGNORECASE
)
_PRINTED_RANK = re.compile(
    r"(?:^\[rank|(?<![A-Za-z_])RANK[=:] ?|(?<![A-Za-z_])global_rank[=:] ?)"
    r"(?P<rank>\d{1,6})",
    re.MULTILINE,
)


def rank_of(names: Sequence[str | None], text: str) -> int | None:
    """
    Which global rank was a worker?

    Args:
        names: What it is called; the first that holds a rank counts.

        text: What it printed.

    Returns:
        The rank; ``None`` if nothing tells, or lines contradict each other.
    """
    for name in filter(None, names):
        for found in _NAMED_RANK.finditer(name):
            if not _OTHER_RANK.search(name[: found.start()]):
                return int(found["rank"])
    printed = {int(x["rank"]) for x in _PRINTED_RANK.finditer(text)}
    return printed.pop() if len(printed) == 1 else None


def death_of(
    deaths: Deaths | Iterable[Death],
    *,
    rank: int | None = None,
    pid: int | None = None,
    place: str | None = None,
    ray_id: str | None = None,
) -> Death | None:
    """
    Which death belongs to this process, or to this rank?

    Args:
        deaths: The deaths to look at.

        rank: The global rank.

        pid: The number of the process on its node.

        place: Its node: an address, a name, or Ray's id.  Without it a
            number of a process counts only if it is unique.

        ray_id: What Ray calls the process, or the actor.

    Returns:
        Of those to which everything applies that is given, one that nobody
        wanted rather than one that was intended, and the latest of them; or
        ``None``.
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

    # An actor that was started again dies once more.
    found.sort(key=lambda x: (not x.is_intended, x.time or 0.0))
    return found[-1] if found else None


def clock(seconds: float | None) -> str:
    """
    How is a time written for people?

    Args:
        seconds: Since the epoch.

    Returns:
        Such as ``"2026-02-20 02:03:57"`` in UTC; ``""`` if it is unknown.
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
# What an exception says may be more telling than that there was one.
_ERRORS = (
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
_DID: Mapping[DeathKind, str] = {
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
FOLDED: Mapping[DeathKind, str] = {
    "owner_died": "by the loss of the owner",
    "ray_oom": "killed by Ray to regain memory that another one held",
    "node_died": "on a node that was lost",
    "terminated": "ended with the node or the job",
}


def cause_of(death: Death) -> Cause:
    """
    What is wrong, in the words of findings?

    Args:
        death: One that nobody intended.

    Returns:
        The cause.
    """
    if death.kind == "init_error":
        text = f"{death.error or ''}\n{death.detail}"
        for pattern, cause in _ERRORS:
            if pattern.search(text):
                return cause
    return _CAUSES.get(death.kind, Cause.ACTOR_DIED)


def confidence_in(death: Death) -> Confidence:
    """
    How sure is it that a death happened in this way?

    Args:
        death: One that nobody intended.

    Returns:
        How sure.
    """
    return _CONFIDENCE.get(death.kind, "likely")


def story_of(death: Death) -> str:
    """
    What happened to whom, in one sentence?

    Args:
        death: One that nobody intended.

    Returns:
        The sentence, without its full stop.
    """
    story = f"{clean(_capital(death.label))} {_DID[death.kind]}"
    if death.kind == "native_crash" and death.signal:
        story += f" with {death.signal}"
        if death.python_frames:
            story += f" in {clean(death.python_frames[0].brief)}"
    if death.kind == "exit_code":
        story += f" with code {death.exit_code}"
    if death.kind == "node_died" and death.detail and not death.worker_id:
        story += f" ({clean(death.detail, limit=100)})"
    if death.memory:
        story += f", of which it held {size_text(death.memory)}"
        story += _greater(death)
    if death.error and death.kind in {"init_error", "native_crash"}:
        story += f": {clean(death.error, limit=160).rstrip('.')}"
    return story


def remedy_of(death: Death) -> str:
    """
    What helps?

    Args:
        death: One that nobody intended.

    Returns:
        What to do, and where to look.
    """
    remedy = _REMEDIES[death.kind]
    return f"{remedy} ({death.log})" if death.log else remedy


def _greater(death: Death) -> str:
    """
    Ray kills only workers, while anybody may have the memory.
    """
    notes = memory_notes(death.detail)
    most = max(notes, key=lambda note: note.size, default=None)
    if most is None or most.size <= (death.memory or 0):
        return ""
    who = f"process {most.pid} ({clean(most.command, limit=60)})"
    return f", while {who} held {size_text(most.size)}"


def _capital(text: str) -> str:
    # Names of the user's own stay as they are.
    words = ("node ", "worker ", "driver ")
    return text[0].upper() + text[1:] if text.startswith(words) else text


_MOST_OTHERS = 20
_MOST_QUOTES = 4


def death_findings(deaths: Deaths) -> tuple[Finding, ...]:
    """
    Tell what the deaths of a Ray cluster mean.

    Args:
        deaths: What :func:`~distdebug.ray.deaths.find_deaths` returned.

    Returns:
        The cause first, then deaths of their own, those that follow from
        others, and workers that never started; nothing if all ends were
        intended.
    """
    found: list[Finding] = []
    first = deaths.first
    if first is not None:
        found.append(_of_first(first, deaths))
    found += _of_others(deaths)
    follows = [
        x for x in deaths.deaths if x.is_collateral and x.kind != "job_ended"
    ]
    if follows and first is not None:
        found.append(_of_followers(follows, first))
    if deaths.not_started:
        found.append(_of_not_started(deaths.not_started))
    return tuple(found)


def _of_first(first: Death, deaths: Deaths) -> Finding:
    when = f" at {clock(first.time)} UTC" if first.time is not None else ""
    others = sum(not x.is_intended for x in deaths.deaths) - 1
    before = f", before {others} others died" if others > 0 else ""
    partial = any("gcs_server" in x.reason for x in deaths.missing)
    sure = confidence_in(first)
    return Finding(
        cause=cause_of(first),
        ranks=() if first.rank is None else (first.rank,),
        summary=f"{story_of(first)}{when}{before}.",
        confidence="likely" if partial and others > 0 else sure,
        remedy=remedy_of(first),
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


def _of_others(deaths: Deaths) -> Iterator[Finding]:
    """
    Those that neither came first nor follow: alike ones together.
    """
    alike: dict[tuple[DeathKind, str], list[Death]] = {}
    for death in deaths.unintended:
        if death.is_first or death.is_collateral or death.is_intended:
            continue
        key = death.kind, death.actor_class or death.actor
        alike.setdefault(key, []).append(death)
    for group in list(alike.values())[:_MOST_OTHERS]:
        death = group[0]
        more = f", and {len(group) - 1} more alike" if len(group) > 1 else ""
        yield Finding(
            cause=cause_of(death),
            ranks=_ranks(group),
            summary=f"Later, {story_of(death)}{more}; whether it follows from "
            "the first death is not told.",
            confidence="possible",
            remedy=remedy_of(death),
            location=death.python_frames[0] if death.python_frames else None,
            evidence=_evidence(death),
        )


def _of_followers(follows: list[Death], first: Death) -> Finding:
    counts = Counter(
        FOLDED.get(x.kind, "after another one, or complaining of it")
        for x in follows
    )
    told = "; ".join(f"{n} {what}" for what, n in counts.most_common())
    names = ", ".join(clean(x.label) for x in follows[:3])
    more = ", …" if len(follows) > 3 else ""
    noun = "death follows" if len(follows) == 1 else "deaths follow"
    return Finding(
        cause=Cause.ACTOR_DIED,
        ranks=(),  # none of them is at fault
        summary=f"{len(follows)} {noun} from another one ({told}): "
        f"{names}{more}.",
        confidence="likely",
        remedy=f"nothing to be done here; see to {clean(first.label)} first",
        evidence=tuple(e for x in follows[:3] for e in _evidence(x)[:1]),
    )


def _of_not_started(seen: tuple[Evidence, ...]) -> Finding:
    times = "once" if len(seen) == 1 else f"{len(seen)} times"
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
            for x in seen[:_MOST_QUOTES]
        ),
    )


def _ranks(deaths: Iterable[Death]) -> tuple[int, ...]:
    return tuple(sorted({x.rank for x in deaths if x.rank is not None}))
