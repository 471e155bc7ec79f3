"""
What does a conclusion look like?

Every primitive returns :class:`Finding` objects in this one shape, and
:func:`distdebug.diagnose` joins them into one :class:`Diagnosis`.
"""

from __future__ import annotations

import os

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from functools import partial
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

import attrs

from ._render import Block, Entries, Entry, Lines, Shown, Table
from ._text import clean, reason_of
from .ranks import fold_ranks, ranks_text


def as_plain(result: Any) -> dict[str, Any]:
    """
    Turn a result into data that JSON knows.

    Args:
        result: Of a class made by attrs, with any such inside.

    Returns:
        Its fields; tuples are lists, paths are texts, and members of an
        enumeration are their values.
    """
    return attrs.asdict(result, value_serializer=_plain)


def _plain(_: object, __: object, value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)

    return list(value) if isinstance(value, tuple) else value


Confidence = Literal["certain", "likely", "possible"]


class Cause(StrEnum):
    """
    Why a job does not go on.  Each member has a page in the documentation.
    """

    UNKNOWN = "unknown"
    HEALTHY = "healthy"

    # From Flight Recorder dumps.
    RANK_NOT_ARRIVED = "rank_not_arrived"
    RANK_CRASHED = "rank_crashed"
    RANK_NOT_STARTED = "rank_not_started"
    RANK_BLOCKED_IN_LAUNCH = "rank_blocked_in_launch"
    COLLECTIVE_STUCK_IN_FLIGHT = "collective_stuck_in_flight"
    TYPE_MISMATCH = "type_mismatch"
    SIZE_MISMATCH = "size_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    SKIPPED_COLLECTIVE = "skipped_collective"
    EXTRA_COLLECTIVE = "extra_collective"
    GROUP_ORDER_DEADLOCK = "group_order_deadlock"
    P2P_DEADLOCK = "p2p_deadlock"
    STRAGGLER = "straggler"

    # From stacks and the state of processes.
    COLLECTIVE_WAIT = "collective_wait"
    RENDEZVOUS_WAIT = "rendezvous_wait"
    GIL_CONTENTION = "gil_contention"
    DATALOADER_WAIT = "dataloader_wait"
    LOCK_DEADLOCK = "lock_deadlock"
    IO_WAIT = "io_wait"
    SLEEPING = "sleeping"
    IMPORT_LOCK = "import_lock"
    SUBPROCESS_WAIT = "subprocess_wait"
    QUEUE_WAIT = "queue_wait"
    FUTURE_WAIT = "future_wait"
    PYTHON_LOOP = "python_loop"
    NATIVE_SPIN = "native_spin"
    EVENT_LOOP_STALL = "event_loop_stall"
    EVENT_LOOP_IDLE = "event_loop_idle"
    GPU_KERNEL = "gpu_kernel"
    GPU_SYNC_WAIT = "gpu_sync_wait"
    LAUNCH_BLOCKED = "launch_blocked"
    IDLE = "idle"
    COMPILING = "compiling"
    CHECKPOINTING = "checkpointing"
    STOPPED = "stopped"
    DEAD = "dead"
    UNINTERRUPTIBLE = "uninterruptible"
    PROGRESSING = "progressing"

    # From logs and nodes.
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    GPU_FAULT = "gpu_fault"
    ACTOR_DIED = "actor_died"
    NATIVE_CRASH = "native_crash"
    KILLED = "killed"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    RENDEZVOUS_TIMEOUT = "rendezvous_timeout"
    NETWORK_MISCONFIGURED = "network_misconfigured"
    NETWORK_FAILURE = "network_failure"
    NODE_MISCONFIGURED = "node_misconfigured"
    START_UP_STALLED = "start_up_stalled"
    LOSS_NOT_FINITE = "loss_not_finite"
    DISK_FULL = "disk_full"
    RAY_WORKER_START_TIMEOUT = "ray_worker_start_timeout"
    NSIGHT_WRONG_PYTHON = "nsight_wrong_python"

    @property
    def is_fine(self) -> bool:
        """
        Whether there is nothing to be mended.
        """
        return self in {
            Cause.HEALTHY,
            Cause.PROGRESSING,
            Cause.IDLE,
            Cause.EVENT_LOOP_IDLE,
        }


@attrs.frozen(kw_only=True)
class GroupRef:
    """
    Which process group is meant?

    Attributes:
        name: The name torch gave it, such as ``"0"``.

        desc: Its description, such as ``"default_pg"`` or ``"mesh_tp"``.

        ranks: Its members as global ranks, ascending.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        is_named = self.desc not in {"", "undefined"}
        # What a job calls it stands in sentences that people read.
        return clean(self.desc if is_named else self.name)


@attrs.frozen(kw_only=True)
class CollectiveRef:
    """
    Which call is meant?

    Attributes:
        op: The operation without its backend, such as ``"all_reduce"``.

        seq: Sequence number within its group, counted from 1.

        p2p: Whether it is a point-to-point operation; *seq* then counts
            point-to-point operations.
    """

    op: str
    seq: int
    p2p: bool = False

    def __str__(self) -> str:
        return f"{self.op} #{self.seq}"


@attrs.frozen(kw_only=True)
class Location:
    """
    Where in the source code?
    """

    function: str
    file: str
    line: int

    @property
    def brief(self) -> str:
        """
        The same without folders, as in ``"read_shard (train.py:41)"``.
        """
        name = self.file.replace("\\", "/").rpartition("/")[2]
        return f"{self.function} ({name}:{self.line})"

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@attrs.frozen(kw_only=True)
class Evidence:
    """
    What was seen, and where?

    Attributes:
        kind: ``"dump"``, ``"stack"``, ``"sidecar"``, ``"log"``, ….

        source: The file it comes from.

        location: The line, record, or thread within *source*.

        quote: What stands there, in the words of the source.
    """

    kind: str
    source: str
    location: str = ""
    quote: str = ""


@attrs.frozen(kw_only=True)
class Finding(Shown):
    """
    One conclusion, with what it rests on.

    Attributes:
        cause: What is wrong.

        ranks: The ranks that are at fault, or suspected, ascending.

        summary: One sentence, fit for a ticket.

        confidence: ``"certain"``, ``"likely"``, or ``"possible"``.

        remedy: What to do about it.

        group: The process group that it shows in.

        collective: The first call that it shows in.

        detail_cause: Why a rank did not arrive, as its host stack tells.

        location: The line of user code concerned.

        evidence: What was seen.
    """

    cause: Cause
    ranks: tuple[int, ...]
    summary: str
    confidence: Confidence = "likely"
    remedy: str | None = None
    group: GroupRef | None = None
    collective: CollectiveRef | None = None
    detail_cause: Cause | None = None
    location: Location | None = None
    evidence: tuple[Evidence, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return as_plain(self)

    def _blocks_(self) -> Iterable[Block]:

        yield Entries([finding_entry(self)])


@attrs.frozen(kw_only=True)
class Missing:
    """
    What could not be looked at, and why?

    Attributes:
        what: ``"dump"``, ``"sidecar"``, ``"stack"``, ….

        reason: One sentence.

        rank: Whose it is, if that is known.

        source: The file concerned, if there is one.
    """

    what: str
    reason: str
    rank: int | None = None
    source: str | None = None

    @classmethod
    def log(
        cls, path: str | os.PathLike[str], why: str | BaseException
    ) -> Missing:
        """
        What is a log, or a part of one, that could not be read?

        Args:
            path: The file, or the folder of logs.

            why: One sentence, or what was raised.

        Returns:
            It, and why.
        """
        reason = why if isinstance(why, str) else reason_of(why)
        return cls(what="log", reason=reason, source=os.fspath(path))


@attrs.frozen(kw_only=True)
class GroupProgress:
    """
    How far did one process group get?

    Attributes:
        name: The name torch gave the group.

        desc: Its description.

        ranks: Its members as global ranks, ascending.

        last_completed: Highest sequence number that is known to be complete.

        furthest: Highest sequence number that any member enqueued.

        waiting: Members whose call is not complete.

        absent: Members that the waiting ones wait for.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]
    last_completed: int
    furthest: int
    waiting: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()


@attrs.frozen(kw_only=True)
class Diagnosis(Shown):
    """
    What is wrong with the job, and how do we know?

    Attributes:
        verdict: The root cause, or ``healthy``, or ``unknown`` with what to
            collect next as its remedy.

        findings: Everything found, most important first.

        victims: Ranks that merely wait for others.

        missing: What could not be looked at, and why.

        groups: The progress of every process group.

        seen: What it was made from, for a report; it stays in its process,
            and is not compared.
    """

    verdict: Finding
    findings: tuple[Finding, ...] = ()
    victims: tuple[int, ...] = ()
    missing: tuple[Missing, ...] = ()
    groups: tuple[GroupProgress, ...] = ()
    seen: object = attrs.field(default=None, eq=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Gigabytes of dumps do not travel along.
        fields = attrs.asdict(
            self, recurse=False, filter=lambda field, _: field.name != "seen"
        )
        return partial(Diagnosis, **fields), ()

    @property
    def is_healthy(self) -> bool:
        """
        Whether nothing is wrong, as far as anybody can see.
        """
        return self.verdict.cause.is_fine

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            "verdict": self.verdict.to_dict(),
            "findings": [f.to_dict() for f in self.findings],
            "victims": list(self.victims),
            "missing": [attrs.asdict(m) for m in self.missing],
            "groups": [as_plain(g) for g in self.groups],
        }

    def _blocks_(self) -> Iterable[Block]:

        return diagnosis_blocks(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per finding, for a data frame.
        """
        return [f.to_dict() for f in self.findings]


_MEANINGS = {
    Cause.UNKNOWN: "Something may be wrong, and what was looked at does not "
    "tell what.",
    Cause.HEALTHY: "Nothing was found, not even a suspect.",
    # From Flight Recorder dumps.
    Cause.RANK_NOT_ARRIVED: "The others wait in a call that not every rank "
    "entered; the reason is on the host of who is missing, not on its GPU.",
    Cause.RANK_CRASHED: "Whoever is at fault is gone; the others only lost a "
    "peer.",
    Cause.RANK_NOT_STARTED: "The call was asked for, but never began on the "
    "GPU: something before it does not end.",
    Cause.RANK_BLOCKED_IN_LAUNCH: "The host is stuck while it launches a "
    "call.",
    Cause.COLLECTIVE_STUCK_IN_FLIGHT: "All ranks are in the call, with equal "
    "arguments, and it does not end: look at network and GPUs, not at the "
    "code.",
    Cause.TYPE_MISMATCH: "In the same place, another call was made than on "
    "the other ranks.",
    Cause.SIZE_MISMATCH: "The same call was made with tensors of other sizes "
    "than on the other ranks.",
    Cause.DTYPE_MISMATCH: "The same call was made with tensors of another "
    "data type than on the other ranks.",
    Cause.SKIPPED_COLLECTIVE: "A call was left out that the others made, so "
    "all later calls are one off.",
    Cause.EXTRA_COLLECTIVE: "A call was made that the others did not make.",
    Cause.GROUP_ORDER_DEADLOCK: "Ranks wait for each other in a circle: they "
    "use several groups in different orders.",
    Cause.P2P_DEADLOCK: "Ranks wait for each other in a circle of sends and "
    "receives.",
    Cause.STRAGGLER: "Nothing is stuck, but the others wait for the same "
    "ranks again and again.",
    # From stacks and the state of processes.
    Cause.COLLECTIVE_WAIT: "Waits for other ranks in a collective.",
    Cause.RENDEZVOUS_WAIT: "Waits for other ranks while the job, or a group, "
    "is set up.",
    Cause.GIL_CONTENTION: "One thread holds the lock of the Python "
    "interpreter, and the others cannot run.",
    Cause.DATALOADER_WAIT: "Waits for data.",
    Cause.LOCK_DEADLOCK: "Waits for a lock that nobody gives up.",
    Cause.IO_WAIT: "Waits for a file, a pipe, or a socket.",
    Cause.SLEEPING: "Sleeps, as it was told to, or waits for a signal.",
    Cause.IMPORT_LOCK: "Imports a module, or waits for a thread that does.",
    Cause.SUBPROCESS_WAIT: "Waits for a process that it started.",
    Cause.QUEUE_WAIT: "Waits for a queue that is empty, or full.",
    Cause.FUTURE_WAIT: "Waits for the result of another thread or process.",
    Cause.PYTHON_LOOP: "Runs Python code and does not leave its function.",
    Cause.NATIVE_SPIN: "Runs native code that does not return.",
    Cause.EVENT_LOOP_STALL: "Something blocks an event loop, so that nothing "
    "else of it runs.",
    Cause.EVENT_LOOP_IDLE: "An event loop waits for something to do.",
    Cause.GPU_KERNEL: "Waits for a kernel that runs on its GPU.",
    Cause.GPU_SYNC_WAIT: "Waits for its GPU to finish what it was given.",
    Cause.LAUNCH_BLOCKED: "Is stuck while it gives work to its GPU.",
    Cause.IDLE: "Waits for requests, as it should.",
    Cause.COMPILING: "Compiles code, or tries out kernels.",
    Cause.CHECKPOINTING: "Reads or writes a checkpoint.",
    Cause.STOPPED: "Was stopped by a signal or a debugger.",
    Cause.DEAD: "Has ended.",
    Cause.UNINTERRUPTIBLE: "Waits in the kernel for a device or a file "
    "system, where no signal reaches it.",
    Cause.PROGRESSING: "Is not stuck: it moved while it was watched.",
    # From logs and nodes.
    Cause.HOST_OUT_OF_MEMORY: "A node had no memory left, and a process was "
    "killed for it.",
    Cause.GPU_OUT_OF_MEMORY: "A GPU had no memory left for what was asked.",
    Cause.GPU_FAULT: "A GPU or its driver reported a fault.",
    Cause.ACTOR_DIED: "A Ray actor died.",
    Cause.NATIVE_CRASH: "A process died of a fault in native code.",
    Cause.KILLED: "A process was killed from outside.",
    Cause.COLLECTIVE_TIMEOUT: "A collective took longer than its time-out, "
    "and torch gave it up.",
    Cause.RENDEZVOUS_TIMEOUT: "Not all ranks came together in time.",
    Cause.NETWORK_MISCONFIGURED: "Addresses, interfaces, or transports do not "
    "fit together.",
    Cause.NETWORK_FAILURE: "A connection or a link broke while the job ran.",
    Cause.NODE_MISCONFIGURED: "A node, a limit, or a variable is set so that "
    "the job cannot work well.",
    Cause.START_UP_STALLED: "A phase of the start-up takes too long.",
    Cause.LOSS_NOT_FINITE: "The loss became infinite, or not a number.",
    Cause.DISK_FULL: "A disk had no space left.",
    Cause.RAY_WORKER_START_TIMEOUT: "A Ray worker did not start in time.",
    Cause.NSIGHT_WRONG_PYTHON: "A profiler started another Python than the "
    "job needs.",
}


def meaning_of(cause: Cause) -> str:
    """
    What does a cause mean?

    Args:
        cause: Any cause.

    Returns:
        One sentence; the reference tells more.
    """
    return _MEANINGS[cause]


# Long enough for the lines of the user, behind those of libraries.
_MOST_QUOTED = 400
_MOST_EVIDENCE = 6


def diagnosis_blocks(d: Diagnosis) -> Iterator[Block]:
    """
    What is there to show of a diagnosis?

    Args:
        d: The diagnosis.

    Returns:
        The verdict first, then what it rests on.
    """
    yield Entries([finding_entry(d.verdict)])
    others = [f for f in d.findings if f != d.verdict]
    yield Entries([finding_entry(f, before="also:") for f in others])
    if d.groups:
        yield group_block(sorted(d.groups, key=group_order(d)))
    if d.victims:
        yield f"merely waiting: {ranks_text(d.victims)}"
    yield missing_block(d.missing)


def finding_entries(findings: Sequence[Finding], most: int = 3) -> Entries:
    """
    What is there to show of several findings?

    Args:
        findings: The most important one first.

        most: How many are shown at first.
    """
    more = "finding" if len(findings) == most + 1 else "findings"
    return Entries([finding_entry(f) for f in findings], most, more)


def finding_entry(finding: Finding, before: str = "") -> Entry:
    """
    What is there to show of one finding?

    Args:
        finding: The finding.

        before: What leads to it.

    Returns:
        The sentence, then evidence and remedy.
    """
    facts = [("cause", f"{finding.cause} ({finding.confidence})")]
    facts += [
        (e.kind, clean(_where(e) + e.quote, limit=_MOST_QUOTED))
        for e in finding.evidence[:_MOST_EVIDENCE]
    ]
    if finding.remedy:
        facts.append(("next", finding.remedy))
    return Entry(finding.summary, facts, before)


def _where(evidence: Evidence) -> str:
    """
    The place within its source; of logs, of which there are many, with that.

    Terminals open ``path:line`` on a click.
    """
    line = evidence.location.removeprefix("line ")
    if evidence.kind == "log" and line.isdecimal() and evidence.source:
        return f"{evidence.source}:{line}: "

    source = evidence.source.replace("\\", "/").rpartition("/")[2]
    parts = [source if evidence.kind == "log" else "", evidence.location]
    return ", ".join(filter(None, parts)) + ": " if any(parts) else ""


def group_order(d: Diagnosis) -> Callable[[GroupProgress], tuple[int, ...]]:
    """
    Which groups are to be read first?

    Of a large job hundreds are stuck, most of them behind a few others.

    Args:
        d: The diagnosis.

    Returns:
        A key to sort by: of those that are stuck, first the group of the
        verdict, then those that wait for whom it blames, then large ones.
    """
    verdict = d.verdict.group
    blamed = frozenset(d.verdict.ranks)

    def key(g: GroupProgress) -> tuple[int, ...]:
        return (
            not (g.waiting or g.absent),
            verdict is None
            or (g.name, g.ranks) != (verdict.name, verdict.ranks),
            blamed.isdisjoint(g.absent),
            -len(g.waiting),
            -len(g.ranks),
        )

    return key


def group_block(groups: Sequence[GroupProgress]) -> Table:
    """
    What is there to show of the progress of groups?

    Args:
        groups: The groups, what is to be read first first.
    """
    rows = [
        (
            f"{g.name}: {g.desc}" if g.desc else g.name,
            fold_ranks(g.ranks),
            g.last_completed,
            g.furthest,
            fold_ranks(g.waiting) if g.waiting else "-",
            fold_ranks(g.absent) if g.absent else "-",
        )
        for g in groups
    ]
    headers = ("group", "ranks", "completed", "furthest", "waiting", "absent")
    return Table(headers, rows, more="groups")


def missing_block(missing: Sequence[Missing]) -> Lines:
    """
    What is there to show of what could not be looked at?

    Args:
        missing: What could not be looked at.

    Returns:
        Lines, equal reasons folded.
    """
    by_reason: dict[tuple[str, str], list[Missing]] = {}
    for m in missing:
        by_reason.setdefault((m.what, m.reason), []).append(m)
    return Lines([_missing(*key, rows) for key, rows in by_reason.items()])


def _missing(what: str, reason: str, rows: Sequence[Missing]) -> str:
    ranks = [m.rank for m in rows if m.rank is not None]
    who = f" of {ranks_text(ranks)}" if ranks else ""
    is_one = len(rows) == 1 and rows[0].source
    source = f" [{rows[0].source}]" if is_one else ""
    return clean(f"missing: {what}{who}: {reason}{source}", limit=300)


class Judged(NamedTuple):
    """
    What is wrong, without where.

    Attributes:
        cause: What is wrong.

        confidence: How sure this is.

        says: One clause about it.

        remedy: What to do about it.

        ranks: Whom it concerns.
    """

    cause: Cause
    confidence: Confidence
    says: str
    remedy: str
    ranks: tuple[int, ...] = ()


def as_finding(judged: Judged, *, host: str, evidence: Evidence) -> Finding:
    """
    Say it of a node.

    Args:
        judged: What is wrong.

        host: The node; ``""`` if there is only one.

        evidence: What was seen.

    Returns:
        The same as a finding.
    """
    return Finding(
        cause=judged.cause,
        ranks=judged.ranks,
        summary=f"{host}: {judged.says}" if host else judged.says,
        confidence=judged.confidence,
        remedy=judged.remedy,
        evidence=(evidence,),
    )


def known_ranks(
    pids: Iterable[int], ranks: Mapping[int, int]
) -> tuple[int, ...]:
    """
    Tell which ranks some processes are, in order.
    """
    return tuple(sorted({ranks[pid] for pid in pids if pid in ranks}))
