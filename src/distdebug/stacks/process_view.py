"""
Describe explained processes in sentences, and make findings of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from operator import attrgetter
from typing import Self

import attrs

from .._text import clean, list_text
from ..causes import Cause, Trait
from ..findings import Activity, Confidence, Evidence, Finding, Location
from ..ranks import fold_ranks
from ..usercode import find_user_frame, is_user_frame, to_location
from .model import (
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadStack,
    native_callees,
)
from .motion import Motion


_MOST_QUOTED = 3
# So long a rank may work on its own while the others wait.
_MOST_WORK_S = 120.0

LOOK_AGAIN = (
    "look again later: if it is still there, see how much is left to do at "
    "this line"
)
"""What to do about a rank that works, as far as can be seen."""


NO_THREAD = ThreadStack(name="", frames=())


@attrs.frozen(kw_only=True)
class ProcessView:
    """
    What one process is doing.

    Attributes:
        cause: ``unknown`` if no rule matches.

        doing: What it is doing, as a predicate.

        doing_of_many: The same without details of this process, if that
            differs; processes with the same text are grouped.

        thread: The thread that shows it; an empty one if none does.

        frame: The frame of its stack that shows it.

        location: The line of the user's code that it is in.

        motion: Whether that thread makes progress.

        confidence: How certain this is.

        remedy: What to do about it.

        rule: The name of the rule that matches, or ``""``.

        note: A remark that ends the sentence, without a full stop.

        blocked_in: The system call that it waits in, if its target matters.

        lock_holder: The rank that holds the file lock it waits for, if any.

        evidence: Stacks of other threads and processes that belong to it.
    """

    process: ProcessStacks
    cause: Cause
    doing: str
    thread: ThreadStack = NO_THREAD
    frame: StackFrame | None = None
    location: Location | None = None
    motion: Motion = Motion.UNKNOWN
    confidence: Confidence = "likely"
    remedy: str = ""
    rule: str = ""
    note: str = ""
    blocked_in: SystemCall | None = None
    lock_holder: int | None = None
    doing_of_many: str = ""
    evidence: tuple[Evidence, ...] = ()

    @property
    def quote(self) -> str:
        """
        The innermost frames of the thread, and the frame the rule matches.
        """
        return self.stack.quote

    @property
    def stack(self) -> Evidence:
        """
        The stack of its thread, as evidence.
        """
        return make_evidence(self.process, self.thread, self.frame)

    @property
    def place(self) -> str:
        """
        The place where it does that, as ``" in read (data.py:41)"``, or ``""``.
        """
        return f" in {self.location.brief}" if self.location else ""

    def with_note(self, text: str, *evidence: Evidence) -> Self:
        """
        Return the view with one more remark, in brackets, and its evidence.
        """
        note = f"{self.note} ({text})".strip()
        evidence = (*self.evidence, *evidence)
        return attrs.evolve(self, note=note, evidence=evidence)

    def may_work(self, waited_s: float | None) -> bool:
        """
        Return whether it works, as far as can be seen, rather than hangs.

        Code of Python that calls native code for ever looks the same, so this
        depends on how long others have waited.

        Args:
            waited_s: How long that is, in seconds; ``None`` if unknown.
        """
        is_short = waited_s is not None and waited_s < _MOST_WORK_S
        works = self.cause is Cause.NATIVE_SPIN or (
            Trait.CHILD_WAIT in self.cause.traits
        )
        return is_short and works and self.motion is Motion.MOVING

    @property
    def activity(self) -> Activity:
        """
        What it is doing, as part of a finding.
        """
        call = self.blocked_in
        return Activity(
            rank=self.process.rank,
            doing=self.doing,
            call=call.name if call else "",
            target=call.target if call else "",
            note=call.remark if call else "",
        )


def quote_stack(thread: ThreadStack, frame: StackFrame | None) -> str:
    """
    Quote the innermost frames of a stack, and the frame that a rule matches,
    outermost first.

    Args:
        frame: The matching frame.

    Returns:
        The frames, the native frames of a second tool, and the system call.
    """
    native = [*native_callees(thread.native)] if thread.frames else []
    own = frame if frame in native else None
    outer = frame if own is None else None
    quoted = _quote_frames(thread.frames or thread.native, outer)
    if native:
        inner = _quote_frames(native, own, names=True)
        more = ["…"] if len(native) > _MOST_QUOTED else []
        first, *rest = *more, *inner
        quoted += [f"native: {first}", *rest]
    if thread.system_call and thread.system_call.name != "running":
        quoted.append(thread.system_call.brief)
    return " → ".join(quoted)


def _quote_frames(
    frames: Sequence[StackFrame],
    frame: StackFrame | None,
    *,
    names: bool = False,
) -> list[str]:
    render = attrgetter("name") if names else _brief_frame
    shown = {*range(min(len(frames), _MOST_QUOTED))}
    for one in (frame, None if names else find_user_frame(frames)):
        shown.update([frames.index(one)] if one in frames else [])
    quoted: list[str] = []
    for at in sorted(shown, reverse=True):
        if quoted and at + 1 not in shown:
            quoted.append("…")
        quoted.append(render(frames[at]))
    if frame is not None and frame not in frames:
        quoted.insert(0, render(frame))
    return quoted


def _brief_frame(frame: StackFrame) -> str:
    """
    Return a frame with the whole path only if it is the user's.
    """
    place = to_location(frame)
    if place is None or not frame.line or is_user_frame(frame):
        return str(frame)
    return place.brief


def make_evidence(
    process: ProcessStacks,
    thread: ThreadStack,
    frame: StackFrame | None = None,
) -> Evidence:
    """
    Quote a thread as evidence.

    Args:
        frame: The frame that a rule matches.
    """
    place = f"pid {process.pid}"
    if process.rank is not None:
        place = f"rank {process.rank}"
    if not thread.is_main:
        name = thread.name or thread.thread_id
        place += f", thread {name}" if name else ""
    return Evidence(
        kind="stack",
        source=process.source,
        location=place,
        quote=quote_stack(thread, frame),
    )


_MOST_NAMES = 8
_MOST_EVIDENCE = 6
_PLURALS = {"is": "are", "has": "have", "holds": "hold", "does": "do"}


def name_processes(views: Iterable[ProcessView]) -> str:
    """
    Name processes by their ranks, else by pid and coordinates.
    """
    known = [v.process for v in views]
    ranks = sorted({p.rank for p in known if p.rank is not None})
    others = [p for p in known if p.rank is None]
    parts = []
    if ranks:
        word = "ranks" if len(ranks) > 1 else "rank"
        total = len(known) - len(others)
        # A rank may occur in several jobs that cannot be distinguished.
        many = f"{total} processes of " if total > len(ranks) else ""
        parts.append(f"{many}{word} {fold_ranks(ranks)}")
    if others:
        names = list_text(map(_process_name, others), most=_MOST_NAMES)
        word = "processes" if len(others) > 1 else "process"
        parts.append(f"{word} {names}")
    return " and ".join(parts)


def _process_name(process: ProcessStacks) -> str:
    place = "".join(f" {k.upper()}{n}" for k, n in process.coordinates)
    return f"{process.pid}{f' ({place.strip()})' if place else ''}"


def conjugate(subjects: Sized, doing: str) -> str:
    """
    Conjugate a predicate for one or several subjects.

    Args:
        subjects: The processes, or ranks, that do it.

        doing: In singular, such as ``"is sleeping"``.
    """
    verb, blank, rest = doing.partition(" ")
    if len(subjects) > 1:
        verb = _PLURALS.get(verb, verb)
    return verb + blank + rest


def describe_doing(views: Sequence[ProcessView], doing: str) -> str:
    """
    Name processes, and say what they are doing.

    Args:
        doing: In singular, such as ``"is sleeping"``.
    """
    return f"{name_processes(views)} {conjugate(views, doing)}"


def describe_views(views: Sequence[ProcessView]) -> str:
    """
    Describe what processes with the same cause are doing, and where.

    Args:
        views: At least one.
    """
    first = views[0]
    doing = (len(views) > 1 and first.doing_of_many) or first.doing
    text = f"{describe_doing(views, doing)}{first.place}"
    if len({v.blocked_in for v in views}) == 1:
        text += blocked_text(first.activity)
    if first.note:
        text += f" {first.note}"
    # Whether a sleep is too long depends on its duration, so it is shown.
    is_sleep = first.cause is Cause.SLEEPING
    return text + wait_duration(views) if is_sleep else text


_MOST_TARGET = 160
# The names that people know.
_KNOWN_CALLS = {
    "openat": "open",
    "newfstatat": "stat",
    "pread64": "read",
    "pwrite64": "write",
}


def blocked_text(activity: Activity) -> str:
    """
    Return what a rank is blocked in: ``": open('/x'), a FIFO"``, or ``""``.
    """
    if not activity.target:
        return ""
    name = _KNOWN_CALLS.get(activity.call, activity.call)
    note = f", {activity.note}" if activity.note else ""
    if activity.target.startswith("pipe:"):  # the number means nothing
        return f": {name}(a pipe){note}"
    target = clean(activity.target, limit=_MOST_TARGET)
    return f": {name}({target!r}){note}"


def wait_duration(views: Sequence[ProcessView]) -> str:
    """
    Return for how long processes have waited; ``""`` if that is not known.
    """
    waited_s = known_wait_s(views)
    if waited_s is None or waited_s < 1:
        return ""
    return f", for {waited_s:.0f} s at least"


def known_wait_s(views: Sequence[ProcessView]) -> float | None:
    """
    Return how long none of them has run, if the kernel reports it, in seconds.
    """
    threads = [v.thread for v in views]
    known = [t.idle_s for t in threads if t.idle_s and t.state == "S"]
    return min(known) if known and len(known) == len(views) else None


def make_finding(
    views: Sequence[ProcessView], *, tail: str = "", **changes: object
) -> Finding:
    """
    Make one finding about processes with the same cause.

    Args:
        views: At least one.

        tail: Text to append to the summary.

        changes: Attributes of the finding to replace.
    """
    first = views[0]
    more = [e for v in views[:2] for e in v.evidence][:3]
    own = [v.stack for v in views[: _MOST_EVIDENCE - len(more)]]
    ranks = {v.process.rank for v in views if v.process.rank is not None}
    values: dict[str, object] = {
        "cause": first.cause,
        "ranks": tuple(sorted(ranks)),
        "summary": describe_views(views) + tail,
        "confidence": first.confidence,
        "remedy": first.remedy or None,
        "location": first.location,
        "activity": first.activity,
        "evidence": (*own, *more),
        **changes,
    }
    if values["cause"] is Cause.UNKNOWN:
        values["confidence"] = "possible"
    return Finding(**values)  # type: ignore[arg-type]
