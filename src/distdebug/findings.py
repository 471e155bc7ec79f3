"""
Findings, causes, and diagnoses: the result types of all checks.

Every check returns :class:`Finding` objects, and :func:`distdebug.diagnose`
joins them into one :class:`Diagnosis`.
"""

from __future__ import annotations

import os

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, Flag, StrEnum, auto
from functools import partial
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, Self, get_args

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
#: All values, most certain first.
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)


class Trait(Flag):
    """
    What a cause implies; :class:`Cause` has a property for most.
    """

    FINE = auto()
    IDLE = auto()
    COMPUTING = auto()
    SLOW = auto()
    PEER_WAIT = auto()
    # A child process may show what is waited for.
    CHILD_WAIT = auto()
    # The kernel that runs on the GPU may show it.
    GPU_WAIT = auto()
    # Another thread of the process may show it.
    DEFERS = auto()
    # Of another thread, it explains why the first one waits.
    EXPLAINS_WAIT = auto()
    # In a callback of an event loop, it blocks the loop.
    BLOCKS_LOOP = auto()
    ABSENCE = auto()
    MISMATCH = auto()
    MISCOUNT = auto()
    CONSEQUENCE = auto()
    NETWORK = auto()
    DEATH = auto()
    KILL = auto()
    ENDS_PROCESS = auto()
    ENDS_JOB = auto()
    BLAMELESS = auto()
    LASTS = auto()


class _Row(NamedTuple):
    value: str
    meaning: str
    traits: Trait = Trait(0)
    remedy: str | None = None


class Cause(StrEnum):
    """
    Causes of a stuck or failed job.  Each has a page in the documentation.

    Attributes:
        meaning: One sentence that explains it; the reference has more.

        traits: What it implies.

        remedy: What to do, where nothing more particular is known.
    """

    _value_: str
    meaning: str
    traits: Trait
    remedy: str | None

    def __new__(cls, value: str, *implied: Any) -> Self:
        cause = str.__new__(cls, value)
        cause._value_ = value
        cause.meaning, cause.traits, cause.remedy = implied
        return cause

    UNKNOWN = _Row(
        "unknown",
        "Something may be wrong; the evidence does not show what.",
        Trait.BLAMELESS | Trait.GPU_WAIT,
    )
    HEALTHY = _Row(
        "healthy", "Nothing was found, not even a suspect.", Trait.FINE
    )

    # From Flight Recorder dumps.
    RANK_NOT_ARRIVED = _Row(
        "rank_not_arrived",
        "The others wait in a call that not every rank entered; the reason is "
        "on the host of who is missing, not on its GPU.",
        Trait.ABSENCE,
        "look at the Python stack there, and at the log of these ranks: they "
        "are busy, stuck, or dead outside of this call",
    )
    RANK_CRASHED = _Row(
        "rank_crashed",
        "Whoever is at fault is gone; the others only lost a peer.",
        Trait.ABSENCE | Trait.DEATH | Trait.ENDS_PROCESS | Trait.ENDS_JOB,
        "look for the exit of these ranks in the logs of their nodes (out of "
        "memory, signal, node lost)",
    )
    RANK_NOT_STARTED = _Row(
        "rank_not_started",
        "The call was asked for, but never began on the GPU: something before "
        "it does not end.",
        remedy="look at what runs on the GPUs of these ranks: an earlier kernel does "
        "not finish",
    )
    RANK_BLOCKED_IN_LAUNCH = _Row(
        "rank_blocked_in_launch",
        "The host is stuck while it launches a call.",
        remedy="take native stacks of these ranks (py-spy dump --native): a call of "
        "CUDA or NCCL does not return, or a thread keeps the GIL",
    )
    COLLECTIVE_STUCK_IN_FLIGHT = _Row(
        "collective_stuck_in_flight",
        "All ranks are in the call, with equal arguments, and it does not "
        "end: look at network and GPUs, not at the code.",
        Trait.BLAMELESS,
        "everyone arrived: check the network between these ranks, and on GPUs "
        "their health (Xid) and the NCCL logs",
    )
    TYPE_MISMATCH = _Row(
        "type_mismatch",
        "In the same place, another call was made than on the other ranks.",
        Trait.MISMATCH,
        "make all ranks of the group call the same operation; or find the "
        "call that was left out or made once too often before",
    )
    SIZE_MISMATCH = _Row(
        "size_mismatch",
        "The same call was made with tensors of other sizes than on the other "
        "ranks.",
        Trait.MISMATCH,
        "make all ranks of the group pass the same sizes; or find the call "
        "that was left out or made once too often before",
    )
    DTYPE_MISMATCH = _Row(
        "dtype_mismatch",
        "The same call was made with tensors of another data type than on the "
        "other ranks.",
        Trait.MISMATCH,
        "make all ranks of the group pass the same dtype",
    )
    SKIPPED_COLLECTIVE = _Row(
        "skipped_collective",
        "A call was left out that the others made, so all later calls are one "
        "off.",
        Trait.MISCOUNT,
        "look for a branch that leaves the call out, or a loop that ends "
        "earlier, on these ranks only",
    )
    EXTRA_COLLECTIVE = _Row(
        "extra_collective",
        "A call was made that the others did not make.",
        Trait.MISCOUNT,
        "look for a branch that makes the call on these ranks only",
    )
    GROUP_ORDER_DEADLOCK = _Row(
        "group_order_deadlock",
        "Ranks wait for each other in a circle: they use several groups in "
        "different orders.",
        remedy="call the collectives of these groups in the same order on all ranks",
    )
    P2P_DEADLOCK = _Row(
        "p2p_deadlock",
        "Ranks wait for each other in a circle of sends and receives.",
        remedy="let one side of each pair send first, or use batch_isend_irecv",
    )
    STRAGGLER = _Row(
        "straggler",
        "Nothing is stuck, but the others wait for the same ranks again and "
        "again.",
        Trait.LASTS,
    )

    # From stacks and the state of processes.
    COLLECTIVE_WAIT = _Row(
        "collective_wait",
        "Waits for other ranks in a collective.",
        Trait.PEER_WAIT | Trait.GPU_WAIT | Trait.EXPLAINS_WAIT,
    )
    RENDEZVOUS_WAIT = _Row(
        "rendezvous_wait",
        "Waits for other ranks while the job, or a group, is set up.",
        Trait.PEER_WAIT | Trait.EXPLAINS_WAIT,
    )
    GIL_CONTENTION = _Row(
        "gil_contention",
        "One thread holds the lock of the Python interpreter, and the others "
        "cannot run.",
    )
    DATALOADER_WAIT = _Row(
        "dataloader_wait",
        "Waits for data.",
        Trait.CHILD_WAIT | Trait.EXPLAINS_WAIT,
    )
    LOCK_DEADLOCK = _Row(
        "lock_deadlock",
        "Waits for a lock that is never released.",
        Trait.GPU_WAIT | Trait.DEFERS | Trait.BLOCKS_LOOP,
    )
    IO_WAIT = _Row(
        "io_wait",
        "Waits for a file, a pipe, or a socket.",
        Trait.ENDS_PROCESS | Trait.BLOCKS_LOOP,
    )
    SLEEPING = _Row(
        "sleeping",
        "Sleeps on purpose, or waits for a signal.",
        Trait.DEFERS | Trait.BLOCKS_LOOP,
    )
    IMPORT_LOCK = _Row(
        "import_lock",
        "Imports a module, or waits for a thread that does.",
        Trait.EXPLAINS_WAIT,
    )
    SUBPROCESS_WAIT = _Row(
        "subprocess_wait",
        "Waits for a process that it started.",
        Trait.CHILD_WAIT | Trait.BLOCKS_LOOP,
    )
    QUEUE_WAIT = _Row(
        "queue_wait",
        "Waits for a queue that is empty, or full.",
        Trait.CHILD_WAIT | Trait.DEFERS | Trait.BLOCKS_LOOP,
    )
    FUTURE_WAIT = _Row(
        "future_wait",
        "Waits for the result of another thread or process.",
        Trait.CHILD_WAIT | Trait.DEFERS | Trait.BLOCKS_LOOP,
    )
    PYTHON_LOOP = _Row(
        "python_loop",
        "Runs Python code and does not leave its function.",
        Trait.COMPUTING | Trait.GPU_WAIT | Trait.BLOCKS_LOOP,
    )
    NATIVE_SPIN = _Row(
        "native_spin",
        "Runs native code that does not return.",
        Trait.COMPUTING | Trait.GPU_WAIT | Trait.BLOCKS_LOOP,
    )
    EVENT_LOOP_STALL = _Row(
        "event_loop_stall",
        "Something blocks an event loop, so that nothing else of it runs.",
    )
    EVENT_LOOP_IDLE = _Row(
        "event_loop_idle",
        "An event loop waits for something to do.",
        Trait.FINE | Trait.IDLE | Trait.DEFERS,
    )
    GPU_KERNEL = _Row("gpu_kernel", "Waits for a kernel that runs on its GPU.")
    GPU_SYNC_WAIT = _Row(
        "gpu_sync_wait",
        "Waits for its GPU to finish what it was given.",
        Trait.GPU_WAIT | Trait.EXPLAINS_WAIT,
    )
    LAUNCH_BLOCKED = _Row(
        "launch_blocked",
        "Is stuck while it gives work to its GPU.",
        Trait.GPU_WAIT | Trait.EXPLAINS_WAIT,
    )
    IDLE = _Row(
        "idle",
        "Waits for requests, as it should.",
        Trait.FINE | Trait.IDLE | Trait.DEFERS,
    )
    COMPILING = _Row(
        "compiling",
        "Compiles code, or tries out kernels.",
        Trait.SLOW | Trait.EXPLAINS_WAIT,
    )
    CHECKPOINTING = _Row(
        "checkpointing",
        "Reads or writes a checkpoint.",
        Trait.SLOW | Trait.EXPLAINS_WAIT,
    )
    STOPPED = _Row("stopped", "Was stopped by a signal or a debugger.")
    DEAD = _Row("dead", "Has ended.")
    UNINTERRUPTIBLE = _Row(
        "uninterruptible",
        "Waits in the kernel for a device or a file system, where no signal "
        "reaches it.",
    )
    PROGRESSING = _Row(
        "progressing",
        "Is not stuck: it moved while it was watched.",
        Trait.FINE,
    )

    # From logs and nodes.
    HOST_OUT_OF_MEMORY = _Row(
        "host_out_of_memory",
        "A node had no memory left, and a process was killed for it.",
        Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    GPU_OUT_OF_MEMORY = _Row(
        "gpu_out_of_memory",
        "A GPU had no memory left for what was asked.",
        Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    GPU_FAULT = _Row(
        "gpu_fault",
        "A GPU or its driver reported a fault.",
        Trait.ENDS_PROCESS,
    )
    ACTOR_DIED = _Row(
        "actor_died",
        "A Ray actor died.",
        Trait.DEATH | Trait.KILL | Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    NATIVE_CRASH = _Row(
        "native_crash",
        "A process died of a fault in native code.",
        Trait.DEATH | Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    KILLED = _Row(
        "killed",
        "A process was killed from outside.",
        Trait.DEATH | Trait.KILL | Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    COLLECTIVE_TIMEOUT = _Row(
        "collective_timeout",
        "A collective took longer than its timeout, and torch aborted it.",
        Trait.CONSEQUENCE | Trait.ENDS_JOB | Trait.BLAMELESS,
        "collect the logs of all ranks, with "
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
        "so that each leaves a Flight Recorder dump",
    )
    RENDEZVOUS_TIMEOUT = _Row(
        "rendezvous_timeout",
        "Not all ranks came together in time.",
        Trait.CONSEQUENCE | Trait.ENDS_JOB,
    )
    NETWORK_MISCONFIGURED = _Row(
        "network_misconfigured",
        "Addresses, interfaces, or transports do not fit together.",
        Trait.NETWORK,
    )
    NETWORK_FAILURE = _Row(
        "network_failure",
        "A connection or a link broke while the job ran.",
        Trait.CONSEQUENCE | Trait.NETWORK | Trait.ENDS_JOB,
    )
    NODE_MISCONFIGURED = _Row(
        "node_misconfigured",
        "A node, a limit, or a variable is set so that the job cannot work "
        "well.",
        Trait.ENDS_PROCESS | Trait.ENDS_JOB,
    )
    START_UP_STALLED = _Row(
        "start_up_stalled",
        "A phase of the start-up takes too long.",
        Trait.ENDS_JOB,
    )
    LOSS_NOT_FINITE = _Row(
        "loss_not_finite",
        "The loss became infinite, or not a number.",
        Trait.LASTS,
    )
    DISK_FULL = _Row(
        "disk_full", "A disk had no space left.", Trait.ENDS_PROCESS
    )
    RAY_WORKER_START_TIMEOUT = _Row(
        "ray_worker_start_timeout",
        "A Ray worker did not start in time.",
        Trait.ENDS_JOB,
    )
    NSIGHT_WRONG_PYTHON = _Row(
        "nsight_wrong_python",
        "A profiler started another Python than the job needs.",
    )

    @property
    def is_fine(self) -> bool:
        """
        Return whether the cause needs no action.
        """
        return Trait.FINE in self.traits

    @property
    def is_idle(self) -> bool:
        """
        Return whether a process waits for work that may come.
        """
        return Trait.IDLE in self.traits

    @property
    def is_computing(self) -> bool:
        """
        Return whether a process computes, which is seen as work or as a spin.
        """
        return Trait.COMPUTING in self.traits

    @property
    def is_slow(self) -> bool:
        """
        Return whether a process does what may take minutes.
        """
        return Trait.SLOW in self.traits

    @property
    def is_peer_wait(self) -> bool:
        """
        Return whether a process waits for other ranks, and is not the cause.
        """
        return Trait.PEER_WAIT in self.traits

    @property
    def is_absence(self) -> bool:
        """
        Return whether ranks are missing in a call; why is a further question.
        """
        return Trait.ABSENCE in self.traits

    @property
    def is_mismatch(self) -> bool:
        """
        Return whether ranks passed different arguments to one call.
        """
        return Trait.MISMATCH in self.traits

    @property
    def is_miscount(self) -> bool:
        """
        Return whether ranks made a call too few or too many.
        """
        return Trait.MISCOUNT in self.traits

    @property
    def is_consequence(self) -> bool:
        """
        Return whether a process only reports that another one failed it.
        """
        return Trait.CONSEQUENCE in self.traits

    @property
    def is_network(self) -> bool:
        """
        Return whether the network is at fault.
        """
        return Trait.NETWORK in self.traits

    @property
    def is_death(self) -> bool:
        """
        Return whether a process died, whatever it died of.
        """
        return Trait.DEATH in self.traits

    @property
    def is_kill(self) -> bool:
        """
        Return whether a process was ended from outside.
        """
        return Trait.KILL in self.traits

    @property
    def ends_process(self) -> bool:
        """
        Return whether the cause ends or blocks the process that meets it.
        """
        return Trait.ENDS_PROCESS in self.traits

    @property
    def ends_job(self) -> bool:
        """
        Return whether the cause ends a job, so that later steps show recovery.
        """
        return Trait.ENDS_JOB in self.traits

    @property
    def is_lasting(self) -> bool:
        """
        Return whether it stays true while the job goes on, and at its end.
        """
        return Trait.LASTS in self.traits

    @property
    def is_blameless(self) -> bool:
        """
        Return whether its ranks share or report a problem, and did not cause it.
        """
        return Trait.BLAMELESS in self.traits


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
class Activity:
    """
    What a rank does on its host.

    Attributes:
        rank: The rank; ``None`` if unknown.

        doing: A predicate, such as ``"is waiting for data"``.

        call: The system call that it is blocked in, such as ``"openat"``;
            ``""`` if that is not known, or tells nothing.

        target: The object of that call: a path, peer, pipe, or process.

        note: What is particular about it, such as ``"held by process 7"``.
    """

    rank: int | None = None
    doing: str
    call: str = ""
    target: str = ""
    note: str = ""


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

        activity: What the first rank at fault does on its host.

        waiting: The ranks that wait in the call, ascending.

        waited_s: How long the first of them has waited, in seconds.

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
    activity: Activity | None = None
    waiting: tuple[int, ...] = ()
    waited_s: float | None = None
    evidence: tuple[Evidence, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        return as_plain(self)

    def _blocks_(self) -> Iterable[Block]:
        yield Entries([finding_entry(self)])


def blames_ranks(finding: Finding) -> bool:
    """
    Return whether the ranks are at fault, not only reporting or affected.
    """
    members = finding.group.ranks if finding.group else ()
    return not finding.cause.is_blameless or (
        finding.cause is Cause.COLLECTIVE_STUCK_IN_FLIGHT
        and not set(members) <= set(finding.ranks)
    )


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
        yield f"waiting on others: {ranks_text(d.victims)}"
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
    if finding.remedy:
        facts.append(("next", finding.remedy))
    quotes = [
        (e.kind, clean(_source_prefix(e) + e.quote, limit=_MAX_QUOTE))
        for e in finding.evidence[:_MAX_EVIDENCE]
    ]
    return Entry(finding.summary, facts, before, quotes)


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
    # Of dumps as a whole, the reason says that there are none.
    is_whole = what == "dump" and not ranks and rows[0].source is None
    subject = "" if is_whole else f"{what}{of_ranks}: "
    return clean(f"note: {subject}{reason}{source}", limit=300)
