"""
What is this process doing, and which line says so?

Usually its main thread tells.  Where that only waits for another thread of the
same process, the other one may tell more: backward passes, training loops of
Ray, and whoever holds the lock of the interpreter run elsewhere.
"""

from __future__ import annotations

import re

from collections.abc import Callable, Iterable, Sequence

import attrs

from ..findings import Cause, Confidence, Evidence, Location
from .gil import find_gil_trouble
from .matching import Matcher, Sight
from .model import ProcessStacks, StackFrame, ThreadStack
from .motion import Motion, is_busy, motion_of
from .places import is_native, is_users, last_name, user_frame, where
from .rules import Rule, RuleBook, read_rules
from .source import ReadLine, SourceLines


__all__ = ["Looker", "ProcessView", "explain_process"]

_MOST_THREADS = 256

# Who waits so, waits for another thread, which may tell more.
_LEAVES_IT = frozenset(
    {
        Cause.FUTURE_WAIT,
        Cause.QUEUE_WAIT,
        Cause.LOCK_DEADLOCK,
        Cause.IDLE,
        Cause.EVENT_LOOP_IDLE,
        Cause.SLEEPING,
    }
)
# What another thread may tell that is more than that somebody waits for it.
_TELLS_MORE = frozenset(
    {
        Cause.COLLECTIVE_WAIT,
        Cause.RENDEZVOUS_WAIT,
        Cause.GPU_SYNC_WAIT,
        Cause.LAUNCH_BLOCKED,
        Cause.COMPILING,
        Cause.CHECKPOINTING,
        Cause.DATALOADER_WAIT,
        Cause.IMPORT_LOCK,
    }
)
# Rules that tell of a lock, and not of an event or a file.
_LOCKS = frozenset(
    {
        "lock",
        "lock, in the kernel",
        "lock, in native code",
        "line that locks",
        "line that locks, and waits",
    }
)
_IDLE = frozenset({Cause.IDLE, Cause.EVENT_LOOP_IDLE})
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


# Functions of the interpreter that every loop in Python calls.
_QUICK = re.compile(
    r"^_*(Py|py)|^(long|float|unicode|list|dict|tuple|set|object|type|bool|int"
    r"|slot|gen|range\w*|method|builtin|cfunction|vectorcall|binary|mapping"
    r"|frame|gc|lookdict|insertdict|enum|zip|map|bytes|free|malloc|_int_free"
    r"|_int_malloc|mem\w+|cfree|deallocate|subtype)_?(?!.*(sort|pow))\w*"
)

IsInLoop = Callable[[str, int], bool | None]


@attrs.frozen(kw_only=True)
class ProcessView:
    """
    What one process is doing.

    Attributes:
        process: The process.

        cause: What it is doing; ``unknown`` if no rule fits.

        doing: The same, as a predicate.

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
    evidence: tuple[Evidence, ...] = ()

    @property
    def quote(self) -> str:
        """
        The innermost lines of the thread that tells, and the telling one.
        """
        return quote_of(self.thread, self.frame)


@attrs.frozen
class _Said:
    thread: ThreadStack
    cause: Cause | None
    rule: Rule | None
    frame: StackFrame | None
    motion: Motion


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
        main = main or next(iter(threads), None)
        if main is None:
            return None

        said = self._thread(main, process)
        others = self._others(process, main, said)
        gil = find_gil_trouble(threads, main)
        if gil is not None and not _explains_itself(said, gil[0]):
            return self._of_gil(process, gil)
        if len(locks := _lock_waits([said, *others])) > 1:
            return self._of_locks(process, locks)

        return self._view(process, _better(said, others), said)

    def _tells(self, thread: ThreadStack) -> bool:
        return not self.matcher.is_helper(thread)

    def _others(
        self, process: ProcessStacks, main: ThreadStack, said: _Said
    ) -> Sequence[_Said]:
        is_backward = said.rule is not None and "backward" in said.rule.name
        if (
            said.cause is not None
            and said.cause not in _LEAVES_IT
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
        return [s for s in found if _has_say(s)]

    def _thread(self, thread: ThreadStack, process: ProcessStacks) -> _Said:
        outside = _outside(thread, process)
        sight = Sight(thread, self._read_line, outside)
        hit = self.matcher.first(sight)
        if hit is not None:
            rule, frame = hit
            motion = motion_of(thread, rule.wakes)
            return _Said(thread, rule.cause, rule, frame, motion)

        cause, motion = _unruled(sight, self._is_in_loop), motion_of(thread)
        return _Said(thread, cause, None, sight.innermost, motion)

    def _view(
        self, process: ProcessStacks, said: _Said, main: _Said
    ) -> ProcessView:
        cause = said.cause
        doing = self._doing(said)
        confidence: Confidence = (
            said.rule.confidence if said.rule else "likely"
        )
        location = where(user_frame(_own_frames(said.thread, process)))
        remedy = (said.rule.remedy if said.rule else "") or (
            self.book.remedy.get(cause or Cause.UNKNOWN, "")
        )
        if cause in _BLOCKS_LOOP and _is_in_loop(said):
            doing = f"is blocking its event loop: it {doing}"
            cause = Cause.EVENT_LOOP_STALL
            remedy = self.book.remedy.get(cause, "")
        return ProcessView(
            process=process,
            cause=cause or Cause.UNKNOWN,
            doing=doing,
            thread=said.thread,
            frame=said.frame,
            location=location,
            motion=said.motion,
            confidence=confidence,
            remedy=remedy,
            rule=said.rule.name if said.rule else "",
            note=_note(said, cause),
            evidence=(evidence_of(process, main.thread, main.frame),)
            if main is not said
            else (),
        )

    def _doing(self, said: _Said) -> str:
        if said.rule is not None and said.rule.doing:
            return said.rule.doing

        return self.book.doing.get(said.cause or Cause.UNKNOWN, "")

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
            location=where(user_frame(frames)),
            motion=Motion.STILL,
            confidence=confidence,
            remedy=self.book.remedy.get(cause, ""),
        )

    def _of_locks(
        self, process: ProcessStacks, locks: Sequence[_Said]
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
            confidence=_least_sure(locks),
            remedy=self.book.remedy.get(Cause.LOCK_DEADLOCK, ""),
            note=f"and in {also}" if also else "",
            rule="cycle of locks",
            evidence=tuple(
                evidence_of(process, s.thread, s.frame) for s in others[:3]
            ),
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


def _own_frames(
    thread: ThreadStack, process: ProcessStacks
) -> Sequence[StackFrame]:
    outside = _outside(thread, process)
    python = [f for f in thread.frames if not is_native(f)]
    return python[:outside] or thread.frames or thread.native


def _outside(thread: ThreadStack, process: ProcessStacks) -> int:
    """
    Where the code that a worker was given begins, from the inside.

    What is around it is the worker, and with ``fork`` also its parent.
    """
    python = (f for f in thread.frames if not is_native(f))
    for index, frame in enumerate(python):
        name = last_name(frame.name)
        path = frame.filename.replace("\\", "/")
        if name == "_bootstrap" and path.endswith(
            "multiprocessing/process.py"
        ):
            return index + 1
        if name == "_worker_loop" and "utils/data" in path:
            return index + 1
        if path.endswith("torch/utils/data/_utils/fetch.py") and (
            process.role == "dataloader"
        ):
            return index or 1
    return len(thread.frames)


def _unruled(sight: Sight, is_in_loop: IsInLoop) -> Cause | None:
    """
    What a thread does that runs, and does nothing that is known.
    """
    innermost = sight.innermost
    if not sight.runs or innermost is None:
        return None

    if is_native(innermost):
        return Cause.NATIVE_SPIN
    a = sight.thread.activity
    was_watched = a is not None and is_busy(a)
    if sight.natives:
        is_long = not all(_QUICK.match(f.name) for f in sight.natives)
        return Cause.NATIVE_SPIN if is_long else Cause.PYTHON_LOOP
    if was_watched and sight.thread.owns_gil is False:
        return Cause.NATIVE_SPIN
    has_stayed = a is not None and a.has_moved is False
    if was_watched and has_stayed:
        again = is_in_loop(innermost.filename, innermost.line)
        # In the same line all the time, and it is no loop.
        return Cause.NATIVE_SPIN if again is False else Cause.PYTHON_LOOP
    return Cause.PYTHON_LOOP


def _note(said: _Said, cause: Cause | None) -> str:
    call = said.thread.system_call
    if call is None or cause is not Cause.IO_WAIT or not call.target:
        return ""
    return f"({call.name} of {call.target})"


def _has_say(said: _Said) -> bool:
    """
    Whether a thread is more than one of a library that waits, as usual.
    """
    return said.cause in _TELLS_MORE or any(map(is_users, said.thread.frames))


def _explains_itself(main: _Said, owner: ThreadStack) -> bool:
    """
    Whether the main thread holds the lock in a wait that has a better name.
    """
    return (
        owner is main.thread
        and main.rule is not None
        and main.rule.file is not None
    )


def _better(main: _Said, others: Iterable[_Said]) -> _Said:
    is_backward = main.rule is not None and "backward" in main.rule.name
    if main.cause in _LEAVES_IT or main.cause is None or is_backward:
        for other in others:
            if other.cause in _TELLS_MORE:
                return other
    if main.cause in _IDLE:
        for other in others:
            if other.cause is not None and other.cause not in _IDLE:
                return other
    return main


def _lock_waits(all_said: Iterable[_Said]) -> Sequence[_Said]:
    """
    The threads that wait for a lock that somebody else holds.
    """
    return [
        said
        for said in all_said
        if said.cause is Cause.LOCK_DEADLOCK
        and said.rule is not None
        and said.rule.name in _LOCKS
        and said.motion is not Motion.MOVING
    ]


def _least_sure(all_said: Iterable[_Said]) -> Confidence:
    sure = all(
        s.rule is not None and s.rule.confidence == "likely" for s in all_said
    )
    return "likely" if sure else "possible"


def _is_in_loop(said: _Said) -> bool:
    """
    Whether a thread runs a callback of an event loop.
    """
    for index, frame in enumerate(said.thread.frames):
        path = frame.filename.replace("\\", "/")
        name = last_name(frame.name)
        if name == "_run" and path.endswith("asyncio/events.py"):
            return True
        if (
            index
            and name in {"run", "wrapper"}
            and path.endswith(("asyncio/runners.py", "uvloop/__init__.py"))
        ):
            return True
    return False
