"""
What is a conclusion made of?
"""

from __future__ import annotations

import os

from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import Any, Literal

import attrs

from .._showing import Block, Entries, Shown
from .._text import clean, reason_of
from .plain import as_plain


__all__ = [
    "Cause",
    "CollectiveRef",
    "Confidence",
    "Diagnosis",
    "Evidence",
    "Finding",
    "GroupProgress",
    "GroupRef",
    "Location",
    "Missing",
]

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
        from .text import finding_entry

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
        from .text import diagnosis_blocks

        return diagnosis_blocks(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per finding, for a data frame.
        """
        return [f.to_dict() for f in self.findings]
