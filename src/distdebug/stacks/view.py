"""
What is known of a process once it was looked at?
"""

from __future__ import annotations

import attrs

from ..findings import Cause, Confidence, Evidence, Location
from .model import ProcessStacks, StackFrame, ThreadStack
from .motion import Motion


__all__ = ["ProcessView", "evidence_of", "quote_of"]


@attrs.frozen(kw_only=True)
class ProcessView:
    """
    What one process is doing.

    Attributes:
        process: The process.

        cause: What it is doing; ``unknown`` if no rule fits.

        doing: The same, as a predicate.

        doing_of_many: The same without what only this process has, if that
            is something else; those with the same are alike.

        thread: The thread that tells.

        frame: The line of its stack that says so.

        location: The line of the user's code that it is in.

        motion: Whether that thread moves.

        confidence: How sure this is.

        remedy: What to do about it.

        rule: The name of the rule that fits, or ``""``.

        note: What else is to be said, as a sentence without its full stop.

        evidence: Lines of other threads and processes that belong to it.
    """

    process: ProcessStacks
    cause: Cause
    doing: str
    thread: ThreadStack | None = None
    frame: StackFrame | None = None
    location: Location | None = None
    motion: Motion = Motion.UNKNOWN
    confidence: Confidence = "likely"
    remedy: str = ""
    rule: str = ""
    note: str = ""
    doing_of_many: str = ""
    evidence: tuple[Evidence, ...] = ()

    @property
    def quote(self) -> str:
        """
        The innermost lines of the thread that tells, and the telling one.
        """
        return quote_of(self.thread, self.frame)


def quote_of(thread: ThreadStack | None, frame: StackFrame | None) -> str:
    """
    Quote the innermost lines of a stack, and the telling one.

    Args:
        thread: Whose stack.

        frame: The telling line.
    """
    frames = (thread.frames or thread.native) if thread else ()
    quoted = [str(f) for f in frames[:3]]
    if frame is not None and frame not in frames[:3]:
        quoted += ["…", str(frame)] if frame in frames[4:] else [str(frame)]
    if thread and thread.system_call and thread.system_call.name != "running":
        quoted.insert(0, str(thread.system_call))
    return " ← ".join(quoted)


def evidence_of(
    process: ProcessStacks,
    thread: ThreadStack | None,
    frame: StackFrame | None = None,
) -> Evidence:
    """
    Quote a thread as evidence.

    Args:
        process: Whose thread.

        thread: The thread.

        frame: Its telling line.
    """
    place = f"pid {process.pid}"
    if process.rank is not None:
        place = f"rank {process.rank}"
    if thread is not None and not thread.is_main:
        name = thread.name or thread.thread_id
        place += f", thread {name}" if name else ""
    return Evidence(
        kind="stack",
        source=process.source,
        location=place,
        quote=quote_of(thread, frame),
    )
