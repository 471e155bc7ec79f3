"""
What became of looking into a process?
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import attrs

from .._showing import Block, Shown
from ..findings import Finding, Missing
from ..processes.model import Worker
from ..stacks.model import ProcessStacks


__all__ = ["Attempt", "Capture", "CaptureStatus", "Native", "ProcessCapture"]

# Whose native stacks to take.
Native = Literal["none", "classes", "all"]


class CaptureStatus(StrEnum):
    """
    How it went, or why it could not go.
    """

    OK = "ok"
    EXITED = "exited"
    ZOMBIE = "zombie"
    STOPPED = "stopped"
    TRACED_BY_OTHER = "traced_by_other"
    UNINTERRUPTIBLE = "uninterruptible"
    OTHER_NAMESPACE = "other_namespace"
    OTHER_USER = "other_user"
    YAMA = "yama"
    NO_CAPABILITY = "no_capability"
    SECCOMP = "seccomp"
    NOT_DUMPABLE = "not_dumpable"
    NOT_PERMITTED = "not_permitted"
    NOT_PYTHON = "not_python"
    UNSUPPORTED_PYTHON = "unsupported_python"
    TOOL_MISSING = "tool_missing"
    TOOL_FAILED = "tool_failed"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"


@attrs.frozen(kw_only=True)
class Attempt:
    """
    One tool, run once on one process.

    Attributes:
        tool: Such as ``"py-spy"``, ``"gdb"``, ``"proc"`` (the kernel alone).

        status: How it went.

        detail: What the tool or the kernel said, in one line, or ``""``.

        remedy: What to do about it, or ``""``.

        seconds: How long it took.

        paused_s: How long it kept the process from running, at most.

        resumed: Whether the process was left stopped by the tool, and had to
            be sent SIGCONT.
    """

    tool: str
    status: CaptureStatus
    detail: str = ""
    remedy: str = ""
    seconds: float = 0.0
    paused_s: float = 0.0
    resumed: bool = False


@attrs.frozen(kw_only=True)
class ProcessCapture(Shown):
    """
    One process, and what could be learned about it.

    Attributes:
        worker: The process.

        status: The most telling fact: ``ok``, or what the state of the process
            is (``zombie``, ``stopped``, …), or why it could not be looked at.
            Stacks may be there all the same.

        stacks: The last that was seen of it.  A process that could not be
            looked at has a state there, but no threads.

        remedy: What to do to see more, or ``""``.

        attempts: What was tried, in order.

        cuda_text: What cuda-gdb printed, or ``""``.
    """

    worker: Worker
    status: CaptureStatus
    stacks: ProcessStacks
    remedy: str = ""
    attempts: tuple[Attempt, ...] = ()
    cuda_text: str = ""

    def missing(self, reason: str) -> Missing:
        """
        Say that something about this process could not be seen or kept.

        Args:
            reason: Why.
        """
        return Missing(
            what="stack",
            reason=reason,
            rank=self.worker.rank,
            source=f"pid {self.worker.pid}",
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data: the process, and what was tried; stacks have their own.
        """
        return _record(self)

    def _blocks_(self) -> Iterable[Block]:
        yield from self.stacks._blocks_()
        told = f"{self.status}: {self.remedy}" if self.remedy else self.status
        yield f"looked at: {told}"


@attrs.frozen(kw_only=True)
class Capture(Shown):
    """
    What every worker of this node was doing.

    Attributes:
        host: Name of the node.

        processes: Every worker, those of ranks first, by rank.

        missing: What could not be seen, and why; ranks that should be on this
            node and were not found are among them.

        seconds: How long the workers were watched.

        taken: When, in seconds since 1970.

        files: What was written.
    """

    host: str
    processes: tuple[ProcessCapture, ...]
    missing: tuple[Missing, ...] = ()
    seconds: float = 0.0
    taken: float = 0.0
    files: tuple[Path, ...] = ()

    @property
    def stacks(self) -> tuple[ProcessStacks, ...]:
        """
        What is known of every process, for ``explain_stacks``.
        """
        return tuple(p.stacks for p in self.processes)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """
        What the stacks of all workers say together, the verdict first.
        """
        from ..stacks.explain import explain_stacks

        return explain_stacks(self.stacks)

    @property
    def is_blind(self) -> bool:
        """
        Whether nothing could be seen, no stack and nothing else that tells.
        """
        is_seen = any(
            thread.frames or thread.native
            for process in self.processes
            for thread in process.stacks.threads
        )
        return not is_seen and not self.findings

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            "host": self.host,
            "taken": self.taken,
            "seconds": self.seconds,
            "workers": self.to_records(),
            "findings": [f.to_dict() for f in self.findings],
            "missing": [attrs.asdict(m) for m in self.missing],
            "files": [str(path) for path in self.files],
        }

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per process, for a data frame.
        """
        return [_record(process) for process in self.processes]

    def _blocks_(self) -> Iterable[Block]:
        from .text import capture_blocks

        return capture_blocks(self)


def _record(process: ProcessCapture) -> dict[str, Any]:
    return {
        **process.worker.to_dict(),
        "state": process.stacks.state,
        "status": process.status.value,
        "remedy": process.remedy or None,
        "attempts": [
            {**attrs.asdict(a), "status": a.status.value}
            for a in process.attempts
        ],
    }
