"""
Findings, causes, and diagnoses: the result types of all checks.

Every check returns :class:`Finding` objects, and :func:`distdebug.diagnose`
joins them into one :class:`Diagnosis`.
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
    Convert an attrs object to plain data for JSON.

    Tuples become lists, paths become strings, and members of an enumeration
    become their values.
    """
    return attrs.asdict(result, value_serializer=_serialize_value)


def _serialize_value(_: object, __: object, value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)

    return list(value) if isinstance(value, tuple) else value


Confidence = Literal["certain", "likely", "possible"]


class Cause(StrEnum):
    """
    Causes of a stuck or failed job.  Each has a page in the documentation.
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
        Return whether the cause needs no action.
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
    A process group.

    Attributes:
        name: Torch's name of the group, such as ``"0"``.

        desc: Its description, such as ``"default_pg"`` or ``"mesh_tp"``.

        ranks: Its members as global ranks, ascending.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        is_named = self.desc not in {"", "undefined"}
        # The name comes from the job, and is printed.
        return clean(self.desc if is_named else self.name)


@attrs.frozen(kw_only=True)
class CollectiveRef:
    """
    A call in a process group.

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
    A line of source code.
    """

    function: str
    file: str
    line: int

    @property
    def brief(self) -> str:
        """
        Return it without folders, as in ``"read_shard (train.py:41)"``.
        """
        name = self.file.replace("\\", "/").rpartition("/")[2]
        return f"{self.function} ({name}:{self.line})"

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@attrs.frozen(kw_only=True)
class Evidence:
    """
    A piece of evidence, with its source.

    Attributes:
        kind: ``"dump"``, ``"stack"``, ``"sidecar"``, ``"log"``, ….

        source: The file it comes from.

        location: The line, record, or thread within *source*.

        quote: The text there.
    """

    kind: str
    source: str
    location: str = ""
    quote: str = ""


@attrs.frozen(kw_only=True)
class Finding(Shown):
    """
    One conclusion, with its evidence.

    Attributes:
        cause: The cause.

        ranks: The ranks at fault, or suspected, ascending.

        summary: One sentence, fit for a ticket.

        confidence: ``"certain"``, ``"likely"``, or ``"possible"``.

        remedy: What to do about it.

        group: The process group concerned.

        collective: The first call concerned.

        detail_cause: Why a rank did not arrive, according to its host stack.

        location: The line of user code concerned.

        evidence: The evidence.
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
        Return plain data in the layout of the command line's ``--json``.
        """
        return as_plain(self)

    def _blocks_(self) -> Iterable[Block]:
        yield Entries([finding_entry(self)])


@attrs.frozen(kw_only=True)
class Missing:
    """
    Input that could not be read.

    Attributes:
        what: ``"dump"``, ``"sidecar"``, ``"stack"``, ….

        reason: One sentence.

        rank: Its rank, if known.

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
        Return an entry for a log, or a part of one, that could not be read.

        Args:
            path: The file, or the folder of logs.

            why: One sentence, or the exception.
        """
        reason = why if isinstance(why, str) else reason_of(why)
        return cls(what="log", reason=reason, source=os.fspath(path))


@attrs.frozen(kw_only=True)
class GroupProgress:
    """
    Progress of one process group.

    Attributes:
        name: Torch's name of the group.

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
    Verdict on a job, with all findings.

    Attributes:
        verdict: The root cause, or ``healthy``, or ``unknown`` with what to
            collect next as its remedy.

        findings: All findings, most important first.

        victims: Ranks that only wait for others.

        missing: Input that could not be read, and why.

        groups: The progress of every process group.

        seen: The input, for a report; it is neither pickled nor compared.
    """

    verdict: Finding
    findings: tuple[Finding, ...] = ()
    victims: tuple[int, ...] = ()
    missing: tuple[Missing, ...] = ()
    groups: tuple[GroupProgress, ...] = ()
    seen: object = attrs.field(default=None, eq=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # *seen* may hold gigabytes of dumps.
        fields = attrs.asdict(
            self, recurse=False, filter=lambda field, _: field.name != "seen"
        )
        return partial(Diagnosis, **fields), ()

    @property
    def is_healthy(self) -> bool:
        """
        Return whether the verdict needs no action.
        """
        return self.verdict.cause.is_fine

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
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
        Return one plain dictionary per finding, for a data frame.
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


def explain_cause(cause: Cause) -> str:
    """
    Return one sentence that explains a cause; the reference has more.
    """
    return _MEANINGS[cause]


# Long enough to show the user's lines after those of libraries.
_MAX_QUOTE = 400
_MAX_EVIDENCE = 6


def diagnosis_blocks(d: Diagnosis) -> Iterator[Block]:
    """
    Yield the blocks of a diagnosis: the verdict, then its evidence.
    """
    yield Entries([finding_entry(d.verdict)])
    others = [f for f in d.findings if f != d.verdict]
    yield Entries([finding_entry(f, before="also:") for f in others])
    if d.groups:
        yield group_block(sorted(d.groups, key=group_sort_key(d)))
    if d.victims:
        yield f"merely waiting: {ranks_text(d.victims)}"
    yield missing_block(d.missing)


def finding_entries(findings: Sequence[Finding], most: int = 3) -> Entries:
    """
    Return several findings as entries.

    Args:
        findings: The most important one first.

        most: How many are shown at first.
    """
    more = "finding" if len(findings) == most + 1 else "findings"
    return Entries([finding_entry(f) for f in findings], most, more)


def finding_entry(finding: Finding, before: str = "") -> Entry:
    """
    Return one finding as an entry: the summary, then evidence and remedy.

    Args:
        before: Text in front of the summary.
    """
    facts = [("cause", f"{finding.cause} ({finding.confidence})")]
    facts += [
        (e.kind, clean(_source_prefix(e) + e.quote, limit=_MAX_QUOTE))
        for e in finding.evidence[:_MAX_EVIDENCE]
    ]
    if finding.remedy:
        facts.append(("next", finding.remedy))
    return Entry(finding.summary, facts, before)


def _source_prefix(evidence: Evidence) -> str:
    """
    Return the place within the source; for a log, with its path.

    Terminals open ``path:line`` on a click.
    """
    line = evidence.location.removeprefix("line ")
    if evidence.kind == "log" and line.isdecimal() and evidence.source:
        return f"{evidence.source}:{line}: "

    source = evidence.source.replace("\\", "/").rpartition("/")[2]
    parts = [source if evidence.kind == "log" else "", evidence.location]
    return ", ".join(filter(None, parts)) + ": " if any(parts) else ""


def group_sort_key(d: Diagnosis) -> Callable[[GroupProgress], tuple[int, ...]]:
    """
    Return a key that sorts groups by their importance for a diagnosis.

    Hundreds of groups of a large job are stuck, most of them behind a few
    others.  Stuck groups come first; among them the group of the verdict, then
    groups that wait for the blamed ranks, then large ones.
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
    Return the progress of groups as a table, in the given order.
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
    Return one line per reason for input that could not be read.
    """
    by_reason: dict[tuple[str, str], list[Missing]] = {}
    for m in missing:
        by_reason.setdefault((m.what, m.reason), []).append(m)
    return Lines(
        [_missing_line(*key, rows) for key, rows in by_reason.items()]
    )


def _missing_line(what: str, reason: str, rows: Sequence[Missing]) -> str:
    ranks = [m.rank for m in rows if m.rank is not None]
    of_ranks = f" of {ranks_text(ranks)}" if ranks else ""
    is_one = len(rows) == 1 and rows[0].source
    source = f" [{rows[0].source}]" if is_one else ""
    return clean(f"missing: {what}{of_ranks}: {reason}{source}", limit=300)


class NodeFinding(NamedTuple):
    """
    A finding of a health check, without the node and the evidence.

    Attributes:
        cause: The cause.

        confidence: ``"certain"``, ``"likely"``, or ``"possible"``.

        says: One clause about it.

        remedy: What to do about it.

        ranks: The ranks concerned.
    """

    cause: Cause
    confidence: Confidence
    says: str
    remedy: str
    ranks: tuple[int, ...] = ()


def as_finding(
    finding: NodeFinding, *, host: str, evidence: Evidence
) -> Finding:
    """
    Convert a finding of a health check to a `Finding`.

    Args:
        host: The node; ``""`` if there is only one.
    """
    return Finding(
        cause=finding.cause,
        ranks=finding.ranks,
        summary=f"{host}: {finding.says}" if host else finding.says,
        confidence=finding.confidence,
        remedy=finding.remedy,
        evidence=(evidence,),
    )


def ranks_of_pids(
    pids: Iterable[int], ranks: Mapping[int, int]
) -> tuple[int, ...]:
    """
    Return the ranks of some processes, ascending; others are left out.
    """
    return tuple(sorted({ranks[pid] for pid in pids if pid in ranks}))
