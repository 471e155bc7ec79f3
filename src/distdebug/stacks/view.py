"""
What is known of a process once it was looked at?
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import attrs

from ..findings import Cause, Confidence, Evidence, Location
from .model import ProcessStacks, StackFrame, ThreadStack
from .motion import Motion
from .places import called_natively


__all__ = ["ProcessView", "evidence_of", "quote_of"]

_MOST_QUOTED = 3


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

    Returns:
        What it waits for in the kernel, what a second tool saw of its native
        code, and its lines.
    """
    frames = (thread.frames or thread.native) if thread else ()
    quoted = _quoted(frames, frame)
    native: Sequence[StackFrame] = ()
    if thread and thread.frames and thread.native:
        native = tuple(called_natively(thread.native))
    if native:
        own = frame if frame in native else None
        outer = frame if own is None else None
        inner = " ← ".join(_quoted(native, own, names=True))
        more = " ← …" if len(native) > _MOST_QUOTED else ""
        quoted = [f"native: {inner}{more}", *_quoted(frames, outer)]
    if thread and thread.system_call and thread.system_call.name != "running":
        quoted.insert(0, str(thread.system_call))
    return " ← ".join(quoted)


def _quoted(
    frames: Sequence[StackFrame],
    frame: StackFrame | None,
    *,
    names: bool = False,
) -> list[str]:
    write = attrgetter("name") if names else str
    inner = frames[:_MOST_QUOTED]
    quoted = [write(f) for f in inner]
    if frame is not None and frame not in inner:
        is_far = frame in frames[_MOST_QUOTED + 1 :]
        quoted += ["…", write(frame)] if is_far else [write(frame)]
    return quoted


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
