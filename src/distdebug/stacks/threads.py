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

from ..findings import Cause, Confidence, Location
from .model import ProcessStacks, StackFrame, ThreadStack
from .motion import (
    Motion,
    find_gil_trouble,
    is_busy,
    motion_of,
    wakes_per_s,
    wants_gil,
)
from .places import (
    ReadLine,
    SourceLines,
    is_native,
    is_plumbing,
    is_users,
    last_name,
    native_name,
    user_frame,
    where,
)
from .rules import (
    DOING,
    Matcher,
    Rule,
    RuleBook,
    Sight,
    is_begun,
    is_in_loop,
    is_program,
    outside_of,
    own_frames,
    read_rules,
    uses_gpu,
)
from .view import ProcessView, evidence_of


# The rule of those who wait until another thread wakes them.
EVENT = "event"

# Actors of Ray train in a thread of their own.
_ACTOR = "Ray worker"

# Who waits so, waits for another thread, which may tell more.
LEAVES_IT = frozenset(
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

# Rules of those who wait for a thread, or for what it was asked for.
_JOINS = frozenset(
    {"end of a thread", "end of the program", "line that waits for a thread"}
)
# They say no more than the join itself.
_UNTOLD = frozenset({None, Cause.FUTURE_WAIT, Cause.UNKNOWN})
_ASKS = frozenset(
    {"future inside a pool", "answer of a pool of vLLM, Ray, or the like"}
)

# So does a thread wait that nobody gave anything to do.
_WORKLESS = frozenset(
    {
        Cause.IDLE,
        Cause.EVENT_LOOP_IDLE,
        Cause.QUEUE_WAIT,
        Cause.SLEEPING,
    }
)

IDLES = frozenset({Cause.IDLE, Cause.EVENT_LOOP_IDLE})


@attrs.frozen
class Said:
    """
    What one thread tells.

    Attributes:
        thread: The thread.

        cause: What it is doing; ``None`` if no rule fits.

        rule: The rule that fits.

        frame: The line that says so.

        motion: Whether it moves.
    """

    thread: ThreadStack
    cause: Cause | None
    rule: Rule | None
    frame: StackFrame | None
    motion: Motion


def has_say(said: Said) -> bool:
    """
    Whether a thread is more than one of a library that waits, as usual.

    Args:
        said: What it tells.
    """
    return said.cause in _TELLS_MORE or any(map(is_users, said.thread.frames))


def waits_for_work(said: Said) -> bool:
    """
    Whether a thread waits in the very function that it was made for.

    That is how a server or a pool waits, in every job that is well.

    Args:
        said: What it tells.
    """
    python = [f for f in said.thread.frames if not is_native(f)]
    own = [f for f in python if not is_plumbing(f)]
    if not own:
        return bool(python) and said.cause not in _TELLS_MORE
    is_event = said.rule is not None and said.rule.name == EVENT
    selects = python[0].filename.endswith("selectors.py")
    is_wait = said.cause in _WORKLESS or is_event or selects
    return is_wait and len(own) == 1


def joined_by(main: Said, others: Iterable[Said]) -> Said | None:
    """
    Find the thread that the main thread waits for.

    Args:
        main: What the main thread tells.

        others: What those tell that are no helpers.

    Returns:
        What that thread tells; ``None`` if the main thread waits for none, or
        it is not clear for which.
    """
    name = main.rule.name if main.rule is not None else ""
    if name not in _JOINS | _ASKS:
        return None

    known = [o for o in others if o.cause not in _UNTOLD]
    if name in _ASKS:
        # Whoever has nothing to do, has nothing that is waited for.
        known = [o for o in known if not waits_for_work(o)]
    busy = [o for o in known if o.cause not in LEAVES_IT]
    causes = {o.cause for o in known}
    if busy:
        return busy[0]
    return known[0] if len(causes) == 1 else None


def worker_of(main: Said, others: Iterable[Said]) -> Said | None:
    """
    Find the thread of the user that works while the main thread is to be
    woken.

    Args:
        main: What the main thread tells.

        others: What those tell that are no helpers.

    Returns:
        What that thread tells; ``None`` if the main thread does not wait so,
        or nobody works.
    """
    if main.rule is None or main.rule.name != EVENT:
        return None

    return next((o for o in others if _works(o)), None)


def _works(said: Said) -> bool:
    if waits_for_work(said) or not any(map(is_users, said.thread.frames)):
        return False
    return said.motion in {Motion.MOVING, Motion.SPINNING} or (
        said.rule is None and said.cause is not None
    )


def tell_more(main: Said, others: Iterable[Said]) -> Said:
    """
    Find the thread that tells more than that the main thread waits for it.

    Args:
        main: What the main thread tells.

        others: What those tell that are no helpers.

    Returns:
        One of the others, or that of the main thread.
    """
    is_backward = main.rule is not None and "backward" in main.rule.name
    if main.cause in LEAVES_IT or main.cause is None or is_backward:
        for other in others:
            if other.cause in _TELLS_MORE:
                return other
    is_actor = main.rule is not None and main.rule.name.startswith(_ACTOR)
    if main.cause in IDLES:
        for other in others:
            if other.cause not in IDLES and (other.cause or is_actor):
                return other
    return main


def explains_itself(main: Said, owner: ThreadStack) -> bool:
    """
    Whether the main thread holds the lock in a wait that has a better name.

    Args:
        main: What the main thread tells.

        owner: Who holds the lock of the interpreter.
    """
    return (
        owner is main.thread
        and not wants_gil(owner)
        and main.rule is not None
        and main.rule.file is not None
    )


def lock_waits(all_said: Iterable[Said]) -> Sequence[Said]:
    """
    The threads that wait for a lock that somebody else holds.

    Args:
        all_said: What all threads tell.
    """
    return [
        said
        for said in all_said
        if said.cause is Cause.LOCK_DEADLOCK
        and said.rule is not None
        and said.rule.name in _LOCKS
        and said.motion is not Motion.MOVING
    ]


def least_sure(all_said: Iterable[Said]) -> Confidence:
    """
    How sure is what several threads tell together?

    Args:
        all_said: What they tell.
    """
    sure = all(
        s.rule is not None and s.rule.confidence == "likely" for s in all_said
    )
    return "likely" if sure else "possible"


_MOST_NAME = 80
# What these wait for, the kernel knows.
_BY_KERNEL = frozenset({Cause.IO_WAIT, Cause.LOCK_DEADLOCK})


def location_of(
    process: ProcessStacks, said: Said, main: Said
) -> Location | None:
    """
    Find the line of the user, or the next best one.

    Args:
        process: The process.

        said: What the thread tells that tells most.

        main: What the main thread tells.
    """
    best = python_line(own_frames(said.thread, process))
    if said is not main and (best is None or not is_users(best)):
        # A backward pass runs in a thread that knows nothing of the user.
        outer = python_line(own_frames(main.thread, process))
        if outer is not None and (best is None or is_users(outer)):
            best = outer
    return where(best)


def is_of_user(location: Location | None) -> bool:
    """
    Whether a place is in the code of the user.

    Args:
        location: The place, if it is known.
    """
    if location is None:
        return False
    return is_users(
        StackFrame(location.function, location.file, location.line)
    )


def python_line(frames: Iterable[StackFrame]) -> StackFrame | None:
    """
    Find the line of Python that a person can do something about.

    Args:
        frames: Innermost first.
    """
    best = user_frame(frames)
    return None if best is None or is_native(best) else best


def note_of(said: Said) -> str:
    """
    Name what is known of a wait that has no line of Python, or goes on in
    the kernel.

    Args:
        said: What the thread tells.
    """
    call = said.thread.system_call
    if said.cause in _BY_KERNEL and call is not None and call.target:
        return f"({call.name} of {call.target})"
    frames = said.thread.frames
    has_python = not all(map(is_native, frames))
    if said.frame is None or has_python or not is_native(said.frame):
        return ""
    return f"(in {said.frame.name[:_MOST_NAME]})"


# Functions of the interpreter that every loop in Python calls.
_QUICK = re.compile(
    r"^_*(Py|py)|^(long|float|unicode|list|dict|tuple|set|object|type|bool|int"
    r"|slot|gen|range\w*|method|builtin|cfunction|vectorcall|binary|mapping"
    r"|frame|gc|lookdict|insertdict|enum|zip|map|bytes|free|malloc|_int_free"
    r"|_int_malloc|mem\w+|cfree|deallocate|subtype)_?(?!.*(sort|pow))\w*"
)

IsInLoop = Callable[[str, int], bool | None]


def cause_of_running(sight: Sight, is_in_loop: IsInLoop) -> Cause | None:
    """
    Tell a loop in Python from native code.

    Args:
        sight: The thread.

        is_in_loop: Tells of a file and line whether it can run again and
            again without a new call.

    Returns:
        What it does; ``None`` if it does not run.
    """
    innermost = sight.innermost
    if not sight.runs or innermost is None:
        return None

    if not _computes(sight, innermost, is_in_loop):
        return Cause.PYTHON_LOOP
    # The host turns round and round until its GPU is done.
    return Cause.GPU_SYNC_WAIT if sight.gpu else Cause.NATIVE_SPIN


def _computes(
    sight: Sight, innermost: StackFrame, is_in_loop: IsInLoop
) -> bool:
    """
    Whether a thread that runs is in native code, and not in Python.
    """
    if sight.natives and not is_native(innermost):
        return not all(_QUICK.match(f.name) for f in sight.natives)

    thread, a = sight.thread, sight.thread.activity
    was_watched = a is not None and is_busy(a)
    if not thread.owns_gil and (
        # Libraries compute in native code.
        sight.gpu or not is_users(innermost) or thread.owns_gil is False
    ):
        return True
    if was_watched and a is not None and a.has_moved is False:
        # Who calls native code again and again holds the lock in between.
        if a.has_let_go:
            return True
        # In the same line all the time, and it is no loop.
        return is_in_loop(innermost.filename, innermost.line) is False
    return is_native(innermost)


_COMPUTES = frozenset({Cause.PYTHON_LOOP, Cause.NATIVE_SPIN})
_ASK_AGAIN = re.compile(r"take native stacks \(--native\)[^,;]*, or ")
_SEE_WHY = "see why this function does not come to its end: what it is given"


def is_computing(said: Said) -> bool:
    """
    Whether a thread computes, and no rule knows what.

    Args:
        said: What it tells.
    """
    return said.rule is None and said.cause in _COMPUTES


def computing_of(said: Said, *, with_name: bool = True) -> str:
    """
    Say what a thread is doing that computes, as a predicate.

    Args:
        said: What it tells.

        with_name: Whether to name the native function, if it is known.
    """
    name = _function(said.thread)
    named = f" ({name})" if name and with_name else ""
    if said.cause is Cause.PYTHON_LOOP:
        return f"is running Python code{named}"
    if said.motion is Motion.MOVING:
        return f"is running native code{named}, again and again"
    if name:
        return f"is running native code{named} that does not return"
    return "is in native code"


def looks_of(said: Said) -> str:
    """
    Say how often a thread was seen in native code without a name, if often.

    Args:
        said: What it tells.
    """
    is_nameless = said.cause is Cause.NATIVE_SPIN and not _function(
        said.thread
    )
    is_same = said.motion is Motion.SPINNING
    return "at every look" if is_nameless and is_same else ""


def remedy_of(said: Said, remedy: str) -> str:
    """
    Leave out of a remedy what was done already.

    Args:
        said: What a thread tells.

        remedy: What is to be done about its cause.
    """
    if not said.thread.native and not _function(said.thread):
        return remedy
    if said.cause is Cause.NATIVE_SPIN and "--native" in remedy:
        return _SEE_WHY
    return _ASK_AGAIN.sub("", remedy)


def _function(thread: ThreadStack) -> str:
    return native_name(thread.native or thread.frames)[:_MOST_NAME]


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


_COMMUNICATION = re.compile(
    r"(^|/)(torch/(_ops|distributed/(?!elastic|launcher|checkpoint|fsdp)[\w/]+"
    r"|nn/parallel/distributed)|deepspeed/comm/\w+|torch/utils/_contextlib"
    r"|torch/_dynamo/eval_frame|megatron/core/pipeline_parallel/p2p_\w+"
    r"|horovod/.*|(vllm|sglang)/(srt/)?distributed/.*)\.py$"
)
# What is around a call, and says nothing.
_WRAPPERS = frozenset(
    {
        "wrapper",
        "_fn",
        "inner",
        "log_wrapper",
        "decorate_context",
        "wrapped_fn",
        "__call__",
        "wait_tensor",
        "wait",
        "_wait",
        "__torch_dispatch__",
        "__torch_function__",
    }
)
_MESSAGE = re.compile(r"\b(i(?:send|recv))\(.{0,400}\)\.wait\(")
_P2P = re.compile(r"(^|_)i?(send|recv)(_|$)|^(receive|batch_isend_irecv)")
_RECEIVES = re.compile(
    r"(^|_)i?recv(_|$)|^receive|^recv_(forward|backward|prev|next|object)"
)


def operation_of(view: ProcessView) -> str:
    """
    Name the call that the user, or a framework, made.

    Args:
        view: What a rank does.

    Returns:
        Such as ``"all_reduce"``; ``""`` if it is not known.
    """
    frames = view.thread.frames if view.thread else ()
    found = innermost = ""
    for frame in frames:
        if is_native(frame):
            continue
        path = frame.filename.replace("\\", "/")
        if not _COMMUNICATION.search(path[-300:]):
            break
        name = last_name(frame.name)
        innermost = innermost or name
        if name not in _WRAPPERS:
            found = name
    return found or innermost or _message_of(frames)


def _message_of(frames: Sequence[StackFrame]) -> str:
    """
    Name the message that a line waits for, as torch itself has no line there.
    """
    line = next((f.code for f in frames if not is_native(f)), "")
    told = _MESSAGE.search(line)
    return told[1] if told else ""


def is_message(operation: str) -> bool:
    """
    Whether a call concerns one other rank only.

    Args:
        operation: What :func:`operation_of` returned.
    """
    return bool(_P2P.search(operation))


def is_receiving(view: ProcessView) -> bool:
    """
    Whether a rank waits for a message of one other rank.

    Args:
        view: What the rank does.
    """
    return bool(_RECEIVES.search(operation_of(view)))
