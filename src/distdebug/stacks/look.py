"""
What is this process doing, and which line says so?

Usually its main thread tells.  Where that only waits for another thread of the
same process, the other one may tell more: backward passes, training loops of
Ray, and whoever holds the lock of the interpreter run elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..findings import Cause, Confidence
from .around import (
    is_begun,
    is_in_loop,
    is_program,
    outside_of,
    uses_gpu,
)
from .computing import computing_of, is_computing, looks_of, remedy_of
from .gil import find_gil_trouble
from .line import is_of_user, location_of, note_of, python_line
from .matching import Matcher, Sight
from .model import ProcessStacks, ThreadStack
from .motion import Motion, motion_of, wakes_per_s
from .places import user_frame, where
from .rules import DOING, RuleBook, read_rules
from .running import IsInLoop, cause_of_running
from .source import ReadLine, SourceLines
from .telling import (
    EVENT,
    IDLES,
    LEAVES_IT,
    Said,
    explains_itself,
    has_say,
    joined_by,
    least_sure,
    lock_waits,
    tell_more,
    waits_for_work,
    worker_of,
)
from .view import ProcessView, evidence_of


__all__ = ["Looker", "explain_process"]

_MOST_THREADS = 256
_QUIET = frozenset({None, *IDLES})
# What blocks an event loop, if it happens in one.
_BLOCKS_LOOP = frozenset(
    {
        None,
        Cause.SLEEPING,
        Cause.IO_WAIT,
        Cause.LOCK_DEADLOCK,
        Cause.SUBPROCESS_WAIT,
        Cause.QUEUE_WAIT,
        Cause.FUTURE_WAIT,
        Cause.PYTHON_LOOP,
        Cause.NATIVE_SPIN,
    }
)


# Which of these a loop that is not blocked shows now and then.
_MAY_BE_SHORT = frozenset({None, Cause.PYTHON_LOOP, Cause.NATIVE_SPIN})


class Looker:
    """
    Explains processes, and remembers what it learned about lines.

    Args:
        book: The rules.

        read_line: Reads the code of a file and line.
    """

    def __init__(self, book: RuleBook, read_line: ReadLine) -> None:
        self.book = book
        self.matcher = Matcher(book)
        self._read_line = read_line
        self._is_in_loop: IsInLoop = getattr(
            read_line, "is_in_loop", lambda *_: None
        )

    def explain(self, process: ProcessStacks) -> ProcessView | None:
        """
        Tell what a process is doing; ``None`` if it has no stack.

        Args:
            process: The process.
        """
        threads = [t for t in process.threads if t.frames or t.native]
        main = next((t for t in threads if t.is_main), None)
        main = main or next(filter(is_program, threads), None)
        main = main or self._stand_in(threads, process)
        if main is None:
            return _only_gpu(process) if process.kernels else None

        said = self._thread(main, process)
        others = self._others(process, main, said)
        gil = find_gil_trouble(threads, main)
        if gil is not None and not explains_itself(said, gil[0]):
            return self._of_gil(process, gil)
        if len(locks := lock_waits([said, *others])) > 1:
            return self._of_locks(process, locks)

        joined = None
        if not is_in_loop(main):
            joined = joined_by(said, others) or worker_of(said, others)
        better = joined or tell_more(said, others)
        view = self._view(process, better, said)
        if joined is not None:
            view = _as_joined(view, joined.thread)
            if said.rule is not None and said.rule.name == EVENT:
                # It need not be the one that sets the event.
                view = attrs.evolve(view, confidence="possible")
            return view
        if better is said and said.cause in LEAVES_IT:
            return self._with_other(view, others)
        return view

    def _stand_in(
        self, threads: Sequence[ThreadStack], process: ProcessStacks
    ) -> ThreadStack | None:
        """
        The thread to be asked where the main thread was cut off.

        Those that only wait for work, as they always do, are not asked.
        """
        if len(threads) == 1 and not is_begun(threads[0]):
            # Somebody cut out what matters.
            return threads[0]
        for thread in filter(self._tells, threads[:_MOST_THREADS]):
            if not waits_for_work(self._thread(thread, process)):
                return thread
        return None

    def _with_other(
        self, view: ProcessView, others: Sequence[Said]
    ) -> ProcessView:
        """
        Add what another thread does that this one may wait for.
        """
        other = next((s for s in others if s.cause not in _QUIET), None)
        if other is None or view.cause in IDLES:
            return view

        place = where(python_line(other.thread.frames))
        said = f"thread {other.thread.name or 'another'} {self._doing(other)}"
        if is_of_user(view.location) and place is not None:
            said += f" in {place.brief}"
            place = view.location
        return attrs.evolve(
            view,
            note=f"{view.note} ({said})".strip(),
            location=place,
            evidence=(
                *view.evidence,
                evidence_of(view.process, other.thread, other.frame),
            ),
        )

    def _tells(self, thread: ThreadStack) -> bool:
        return not self.matcher.is_helper(thread)

    def _others(
        self, process: ProcessStacks, main: ThreadStack, said: Said
    ) -> Sequence[Said]:
        is_backward = said.rule is not None and "backward" in said.rule.name
        if (
            said.cause is not None
            and said.cause not in LEAVES_IT
            and not is_backward
        ):
            return ()

        threads = (
            t
            for t in process.threads
            if t is not main and self._tells(t) and t.frames
        )
        found = [
            self._thread(t, process)
            for _, t in zip(range(_MOST_THREADS), threads, strict=False)
        ]
        is_locked = bool(lock_waits([said]))
        return [
            s
            for s in found
            if has_say(s) and not self._is_monitor(s, is_locked=is_locked)
        ]

    def _is_monitor(self, said: Said, *, is_locked: bool) -> bool:
        """
        Whether a thread is called a monitor, and waits for its turn as one.

        Who waits in no loop has no turns: it may hold the lock that is wanted.
        """
        if not (
            self.matcher.is_named_so(said.thread) and waits_for_work(said)
        ):
            return False

        place = where(user_frame(said.thread.frames))
        return (
            not is_locked
            or place is None
            or self._is_in_loop(place.file, place.line) is not False
        )

    def _thread(self, thread: ThreadStack, process: ProcessStacks) -> Said:
        outside = outside_of(thread, process)
        gpu = uses_gpu(process)
        sight = Sight(thread, self._read_line, outside, gpu=gpu)
        hit = self.matcher.first(sight)
        if hit is not None:
            rule, frame = hit
            motion = motion_of(thread, rule.wakes)
            return Said(thread, rule.cause, rule, frame, motion)

        cause = cause_of_running(sight, self._is_in_loop)
        motion = motion_of(thread)
        if cause is Cause.NATIVE_SPIN and _returns(thread):
            motion = Motion.MOVING
        return Said(thread, cause, None, sight.innermost, motion)

    def _view(
        self, process: ProcessStacks, said: Said, main: Said
    ) -> ProcessView:
        cause = said.cause
        doing, of_many = self._doing(said), ""
        note = note_of(said)
        if self._computes(said):
            # Ranks in the same line need not be in the same function.
            of_many = computing_of(said, with_name=False)
            note = looks_of(said)
        confidence: Confidence = (
            said.rule.confidence if said.rule else "likely"
        )
        remedy = said.rule.remedy if said.rule else ""
        if cause in _BLOCKS_LOOP and is_in_loop(said.thread):
            doing = f"is blocking its event loop: it {doing}"
            of_many = ""
            if said.motion is Motion.UNKNOWN and cause in _MAY_BE_SHORT:
                confidence = "possible"
            cause, remedy = Cause.EVENT_LOOP_STALL, ""
        cause = cause or Cause.UNKNOWN
        return ProcessView(
            process=process,
            cause=cause,
            doing=doing,
            doing_of_many=of_many,
            thread=said.thread,
            frame=said.frame,
            location=location_of(process, said, main),
            motion=said.motion,
            confidence=confidence,
            remedy=remedy or remedy_of(said, self.book.remedy.get(cause, "")),
            rule=said.rule.name if said.rule else "",
            note=note,
            evidence=(evidence_of(process, main.thread, main.frame),)
            if main is not said
            else (),
        )

    def _doing(self, said: Said) -> str:
        if said.rule is not None and said.rule.doing:
            return said.rule.doing

        if self._computes(said):
            return computing_of(said)
        return self.book.doing.get(said.cause or Cause.UNKNOWN, "")

    def _computes(self, said: Said) -> bool:
        # Words of the user come before ours.
        cause = said.cause or Cause.UNKNOWN
        is_ours = self.book.doing.get(cause) == DOING.get(cause)
        return is_ours and is_computing(said)

    def _of_gil(
        self, process: ProcessStacks, gil: tuple[ThreadStack, str, Confidence]
    ) -> ProcessView:
        thread, doing, confidence = gil
        cause = Cause.GIL_CONTENTION
        frames = thread.frames or thread.native
        return ProcessView(
            process=process,
            cause=cause,
            doing=doing,
            thread=thread,
            frame=next(iter(frames), None),
            location=where(python_line(frames)),
            motion=Motion.STILL,
            confidence=confidence,
            remedy=self.book.remedy.get(cause, ""),
        )

    def _of_locks(
        self, process: ProcessStacks, locks: Sequence[Said]
    ) -> ProcessView:
        first, *others = locks
        places = [where(user_frame(s.thread.frames)) for s in locks]
        also = ", ".join(p.brief for p in places[1:4] if p is not None)
        return ProcessView(
            process=process,
            cause=Cause.LOCK_DEADLOCK,
            doing="has threads that wait for each other's locks",
            thread=first.thread,
            frame=first.frame,
            location=places[0],
            motion=first.motion,
            confidence=least_sure(locks),
            remedy=self.book.remedy.get(Cause.LOCK_DEADLOCK, ""),
            note=f"and in {also}" if also else "",
            rule="cycle of locks",
            evidence=tuple(
                evidence_of(process, s.thread, s.frame) for s in others[:3]
            ),
        )


def _returns(thread: ThreadStack) -> bool:
    """
    Whether native code that a thread runs came to its end in between.

    Who turns round in circles there neither waits nor sets a variable.
    """
    activity = thread.activity
    has_new = activity is not None and activity.has_new_values is True
    return has_new or wakes_per_s(thread) > 0


def _only_gpu(process: ProcessStacks) -> ProcessView:
    """
    Of a process of which nothing but its kernels is known.
    """
    return ProcessView(
        process=process,
        cause=Cause.UNKNOWN,
        doing="runs a kernel on its GPU",
    )


def _as_joined(view: ProcessView, thread: ThreadStack) -> ProcessView:
    """
    Say that the main thread waits for this one.
    """
    name = f"its thread {thread.name!r:.99}" if thread.name else "a thread"
    return attrs.evolve(
        view,
        doing=f"is waiting for {name}, which {view.doing}",
        doing_of_many=f"is waiting for a thread each, which {view.doing}",
    )


def explain_process(
    process: ProcessStacks,
    *,
    book: RuleBook | None = None,
    read_line: ReadLine | None = None,
) -> ProcessView | None:
    """
    What is this process doing?

    Args:
        process: The process.

        book: The rules; by default our own.

        read_line: Returns the code of a file and line, or ``""``; by default
            it is read where it is on this machine.

    Returns:
        What it is doing; ``None`` if it has no stack.
    """
    book = read_rules() if book is None else book
    return Looker(book, read_line or SourceLines()).explain(process)
