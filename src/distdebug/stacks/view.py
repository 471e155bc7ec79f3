"""
What is known of a process once it was looked at?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from operator import attrgetter

import attrs

from ..findings import Cause, Confidence, Evidence, Finding, Location
from ..ranks import fold_ranks
from .model import ProcessStacks, StackFrame, ThreadStack
from .motion import Motion
from .places import called_natively


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


_MOST_NAMES = 8
_MOST_EVIDENCE = 6
_PLURALS = {"is": "are", "has": "have", "holds": "hold", "does": "do"}


def names_of(processes: Iterable[ProcessStacks]) -> str:
    """
    Name processes by their ranks, else by what is known of them.

    Args:
        processes: The processes.
    """
    known = list(processes)
    ranks = sorted({p.rank for p in known if p.rank is not None})
    others = [p for p in known if p.rank is None]
    parts = []
    if ranks:
        word = "ranks" if len(ranks) > 1 else "rank"
        total = len(known) - len(others)
        # A number may occur in several jobs that nothing tells apart.
        many = f"{total} processes of " if total > len(ranks) else ""
        parts.append(f"{many}{word} {fold_ranks(ranks)}")
    if others:
        names = ", ".join(_name(p) for p in others[:_MOST_NAMES])
        more = len(others) - _MOST_NAMES
        names += f", and {more} more" if more > 0 else ""
        parts.append(
            f"{'processes' if len(others) > 1 else 'process'} {names}"
        )
    return " and ".join(parts)


def _name(process: ProcessStacks) -> str:
    place = "".join(f" {k.upper()}{n}" for k, n in process.coordinates)
    return f"{process.pid}{f' ({place.strip()})' if place else ''}"


def agree(subjects: Sized, doing: str) -> str:
    """
    Give a predicate the number of its subject.

    Args:
        subjects: The processes, or ranks, that do it.

        doing: Such as ``"is sleeping"``.
    """
    verb, blank, rest = doing.partition(" ")
    if len(subjects) > 1:
        verb = _PLURALS.get(verb, verb)
    return verb + blank + rest


def say(views: Sequence[ProcessView]) -> str:
    """
    Say what processes that do the same are doing, and where.

    Args:
        views: At least one.
    """
    first = views[0]
    processes = [v.process for v in views]
    doing = (len(views) > 1 and first.doing_of_many) or first.doing
    said = f"{names_of(processes)} {agree(processes, doing)}"
    if first.location is not None:
        said += f" in {first.location.brief}"
    if first.note:
        said += f" {first.note}"
    # Whether a nap is too long nobody can say but who knows how long it is.
    return said + _since(views) if first.cause is Cause.SLEEPING else said


def say_waiting(views: Sequence[ProcessView], op: str) -> str:
    """
    Say who only waits for others.

    Args:
        views: Those who wait.

        op: What they wait in, or ``""``.
    """
    if not views:
        return ""

    processes = [v.process for v in views]
    doing = f"is waiting in {op}" if op else views[0].doing
    return f"; {names_of(processes)} {agree(processes, doing)}{_since(views)}"


def _since(views: Sequence[ProcessView]) -> str:
    """
    Say for how long nobody of them has run, if the kernel told.
    """
    threads = [v.thread for v in views if v.thread is not None]
    known = [t.idle_s for t in threads if t.idle_s and t.state == "S"]
    if len(known) < len(views) or min(known) < 1:
        return ""
    return f", for {min(known):.0f} s at least"


def finding(
    views: Sequence[ProcessView],
    *,
    tail: str = "",
    changes: Mapping[str, object] | None = None,
) -> Finding:
    """
    Make one finding about processes that do the same.

    Args:
        views: At least one.

        tail: What to add to the sentence.

        changes: Attributes of the finding that differ.
    """
    first = views[0]
    own = [evidence_of(v.process, v.thread, v.frame) for v in views]
    more = [e for v in views[:2] for e in v.evidence]
    values: dict[str, object] = {
        "cause": first.cause,
        "ranks": tuple(
            sorted(
                {v.process.rank for v in views if v.process.rank is not None}
            )
        ),
        "summary": say(views) + tail,
        "confidence": first.confidence,
        "remedy": first.remedy or None,
        "location": first.location,
        "evidence": (*own[: _MOST_EVIDENCE - len(more[:3])], *more[:3]),
    }
    values.update(changes or {})
    if values["cause"] is Cause.UNKNOWN:
        values["confidence"] = "possible"
    return Finding(**values)  # type: ignore[arg-type]
