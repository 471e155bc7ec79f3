"""
Explain what one process is doing, and choose the thread that shows it.

Usually this is the main thread.  Where that only waits for another thread of
the same process, the other one is reported: backward passes, training loops of
Ray, and the holder of the GIL run in other threads.
"""

from __future__ import annotations

import re

from collections.abc import Callable, Iterable, Sequence

import attrs

from ..findings import Cause, Confidence, Location
from .frame_origin import (
    ReadLine,
    SourceLines,
    find_user_frame,
    function_name,
    innermost_native_name,
    is_library_frame,
    is_native,
    is_user_frame,
    to_location,
)
from .model import ProcessStacks, StackFrame, ThreadStack
from .motion import (
    Motion,
    classify_motion,
    find_gil_holder,
    is_busy,
    is_waiting_for_gil,
    wakes_per_s,
)
from .process_view import ProcessView, make_evidence
from .rules import (
    DEFAULT_DOING,
    MatchContext,
    Matcher,
    Rule,
    RuleBook,
    count_task_frames,
    is_in_event_loop,
    is_program_thread,
    is_threading_thread,
    read_rules,
    task_frames,
    uses_gpu,
)


# The rule for a thread that waits until another thread wakes it.
EVENT_RULE = "event"

# Ray actors train in a separate thread; their rules begin with this.
_ACTOR_RULE_PREFIX = "Ray worker"

# This thread waits for another one; report that one instead.
DEFERRING_CAUSES = frozenset(
    {
        Cause.FUTURE_WAIT,
        Cause.QUEUE_WAIT,
        Cause.LOCK_DEADLOCK,
        Cause.IDLE,
        Cause.EVENT_LOOP_IDLE,
        Cause.SLEEPING,
    }
)

# Causes of another thread that explain more than the wait for it.
_INFORMATIVE_CAUSES = frozenset(
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

# Rules for a lock, and not for an event or a file.
_LOCK_RULES = frozenset(
    {
        "lock",
        "lock, in the kernel",
        "lock, in native code",
        "line that locks",
        "line that locks, and waits",
    }
)

# Rules for a wait for the end of a thread.
_JOIN_RULES = frozenset(
    {"end of a thread", "end of the program", "line that waits for a thread"}
)
# Causes that explain no more than the wait itself.
_UNINFORMATIVE_CAUSES = frozenset({None, Cause.FUTURE_WAIT, Cause.UNKNOWN})
_POOL_RULES = frozenset(
    {"future inside a pool", "answer of a pool of vLLM, Ray, or the like"}
)

# Waits of a thread that has no work.
_WORK_WAITS = frozenset(
    {
        Cause.IDLE,
        Cause.EVENT_LOOP_IDLE,
        Cause.QUEUE_WAIT,
        Cause.SLEEPING,
    }
)

IDLE_CAUSES = frozenset({Cause.IDLE, Cause.EVENT_LOOP_IDLE})


@attrs.frozen
class ThreadState:
    """
    What one thread is doing, according to the rules.

    Attributes:
        cause: ``None`` if no rule matches and the thread does not run.

        rule: The rule that matches; ``None`` if none does.

        frame: The frame that the rule matches.

        motion: Whether the thread makes progress.
    """

    thread: ThreadStack
    cause: Cause | None
    rule: Rule | None
    frame: StackFrame | None
    motion: Motion


def is_informative(state: ThreadState) -> bool:
    """
    Return whether a thread runs user code or has a cause worth reporting.
    """
    return state.cause in _INFORMATIVE_CAUSES or any(
        map(is_user_frame, state.thread.frames)
    )


def waits_for_work(state: ThreadState) -> bool:
    """
    Return whether a thread waits in the function that it was started for.

    Servers and pools wait like this in every healthy job.
    """
    python = [f for f in state.thread.frames if not is_native(f)]
    task_code = [f for f in python if not is_library_frame(f)]
    if not task_code:
        return bool(python) and state.cause not in _INFORMATIVE_CAUSES
    is_event = state.rule is not None and state.rule.name == EVENT_RULE
    selects = python[0].filename.endswith("selectors.py")
    is_wait = state.cause in _WORK_WAITS or is_event or selects
    return is_wait and len(task_code) == 1


def find_joined_thread(
    main: ThreadState, others: Iterable[ThreadState]
) -> ThreadState | None:
    """
    Find the thread that the main thread waits for.

    Args:
        main: State of the main thread.

        others: States of all other threads that are not helpers.

    Returns:
        ``None`` if the main thread waits for no thread, or the thread is
        ambiguous.
    """
    name = main.rule.name if main.rule is not None else ""
    if name not in _JOIN_RULES | _POOL_RULES:
        return None

    known = [o for o in others if o.cause not in _UNINFORMATIVE_CAUSES]
    if name in _POOL_RULES:
        # The result cannot come from a thread that has no work.
        known = [o for o in known if not waits_for_work(o)]
    busy = [o for o in known if o.cause not in DEFERRING_CAUSES]
    causes = {o.cause for o in known}
    if busy:
        return busy[0]
    return known[0] if len(causes) == 1 else None


def find_user_worker(
    main: ThreadState, others: Iterable[ThreadState]
) -> ThreadState | None:
    """
    Find a busy user thread while the main thread waits for an event.

    Args:
        main: State of the main thread.

        others: States of all other threads that are not helpers.

    Returns:
        ``None`` if the main thread waits for something else, or no thread is
        busy.
    """
    if main.rule is None or main.rule.name != EVENT_RULE:
        return None

    return next((o for o in others if _is_working(o)), None)


def _is_working(state: ThreadState) -> bool:
    if waits_for_work(state) or not any(
        map(is_user_frame, state.thread.frames)
    ):
        return False
    return state.motion in {Motion.MOVING, Motion.SPINNING} or (
        state.rule is None and state.cause is not None
    )


def choose_thread(
    main: ThreadState, others: Iterable[ThreadState]
) -> ThreadState:
    """
    Choose the thread to report: the main thread, or one that it waits for.

    Args:
        main: State of the main thread.

        others: States of all other threads that are not helpers.
    """
    is_backward = main.rule is not None and "backward" in main.rule.name
    if main.cause in DEFERRING_CAUSES or main.cause is None or is_backward:
        for other in others:
            if other.cause in _INFORMATIVE_CAUSES:
                return other
    is_actor = main.rule is not None and main.rule.name.startswith(
        _ACTOR_RULE_PREFIX
    )
    if main.cause in IDLE_CAUSES:
        for other in others:
            if other.cause not in IDLE_CAUSES and (other.cause or is_actor):
                return other
    return main


def has_specific_wait(main: ThreadState, owner: ThreadStack) -> bool:
    """
    Return whether the main thread holds the GIL in a wait with its own rule.

    Args:
        main: State of the main thread.

        owner: The thread that holds the GIL.
    """
    return (
        owner is main.thread
        and not is_waiting_for_gil(owner)
        and main.rule is not None
        and main.rule.file is not None
    )


def find_lock_waits(states: Iterable[ThreadState]) -> Sequence[ThreadState]:
    """
    Return the threads that wait for a lock that another thread holds.
    """
    return [
        state
        for state in states
        if state.cause is Cause.LOCK_DEADLOCK
        and state.rule is not None
        and state.rule.name in _LOCK_RULES
        and state.motion is not Motion.MOVING
    ]


def combine_confidence(states: Iterable[ThreadState]) -> Confidence:
    """
    Return the confidence of a verdict that rests on several threads.
    """
    is_likely = all(
        s.rule is not None and s.rule.confidence == "likely" for s in states
    )
    return "likely" if is_likely else "possible"


_MOST_NAME = 80
# Waits whose target the kernel reports.
_KERNEL_WAITS = frozenset({Cause.IO_WAIT, Cause.LOCK_DEADLOCK})


def choose_location(
    process: ProcessStacks, state: ThreadState, main: ThreadState
) -> Location | None:
    """
    Return the line of the user's code, or the next best one.

    Args:
        state: State of the thread to report.

        main: State of the main thread.
    """
    best = find_python_frame(task_frames(state.thread, process))
    if state is not main and (best is None or not is_user_frame(best)):
        # A backward pass runs in a thread without user code.
        outer = find_python_frame(task_frames(main.thread, process))
        if outer is not None and (best is None or is_user_frame(outer)):
            best = outer
    return to_location(best)


def is_user_location(location: Location | None) -> bool:
    """
    Return whether a location is in user code.
    """
    if location is None:
        return False
    return is_user_frame(
        StackFrame(location.function, location.file, location.line)
    )


def find_python_frame(frames: Iterable[StackFrame]) -> StackFrame | None:
    """
    Return the Python frame that the user can change.

    Args:
        frames: Innermost first.
    """
    best = find_user_frame(frames)
    return None if best is None or is_native(best) else best


def describe_wait(state: ThreadState) -> str:
    """
    Describe a wait in the kernel, or in native code without a Python line.
    """
    call = state.thread.system_call
    if state.cause in _KERNEL_WAITS and call is not None and call.target:
        return f"({call.name} of {call.target})"
    frames = state.thread.frames
    has_python = not all(map(is_native, frames))
    if state.frame is None or has_python or not is_native(state.frame):
        return ""
    return f"(in {state.frame.name[:_MOST_NAME]})"


# Interpreter functions that every Python loop calls.
_INTERPRETER_FUNCTIONS = re.compile(
    r"^_*(Py|py)|^(long|float|unicode|list|dict|tuple|set|object|type|bool|int"
    r"|slot|gen|range\w*|method|builtin|cfunction|vectorcall|binary|mapping"
    r"|frame|gc|lookdict|insertdict|enum|zip|map|bytes|free|malloc|_int_free"
    r"|_int_malloc|mem\w+|cfree|deallocate|subtype)_?(?!.*(sort|pow))\w*"
)

IsInLoop = Callable[[str, int], bool | None]


def classify_running(
    context: MatchContext, is_in_loop: IsInLoop
) -> Cause | None:
    """
    Distinguish a running Python loop from native code.

    Args:
        is_in_loop: Returns whether a line of a file can run repeatedly without
            a new call.

    Returns:
        ``None`` if the thread does not run.
    """
    innermost = context.innermost
    if not context.is_running or innermost is None:
        return None

    if not _runs_native_code(context, innermost, is_in_loop):
        return Cause.PYTHON_LOOP
    # The host spins until its GPU is done.
    return Cause.GPU_SYNC_WAIT if context.gpu else Cause.NATIVE_SPIN


def _runs_native_code(
    context: MatchContext, innermost: StackFrame, is_in_loop: IsInLoop
) -> bool:
    """
    Return whether a running thread is in native code, and not in Python.
    """
    if context.natives and not is_native(innermost):
        return not all(
            _INTERPRETER_FUNCTIONS.match(f.name) for f in context.natives
        )

    thread, activity = context.thread, context.thread.activity
    was_watched = activity is not None and is_busy(activity)
    if not thread.owns_gil and (
        # Libraries compute in native code without the GIL.
        context.gpu or not is_user_frame(innermost) or thread.owns_gil is False
    ):
        return True
    if was_watched and activity is not None and activity.has_moved is False:
        # A loop that calls native code holds the GIL in between.
        if activity.has_let_go:
            return True
        # A line that stays the same outside a loop is one native call.
        return is_in_loop(innermost.filename, innermost.line) is False
    return is_native(innermost)


_COMPUTING_CAUSES = frozenset({Cause.PYTHON_LOOP, Cause.NATIVE_SPIN})
_NATIVE_STACKS_HINT = re.compile(r"take native stacks \(--native\)[^,;]*, or ")
_NOT_RETURNING_REMEDY = (
    "see why this function does not come to its end: what it is given"
)


def is_computing(state: ThreadState) -> bool:
    """
    Return whether a thread computes and no rule matches.
    """
    return state.rule is None and state.cause in _COMPUTING_CAUSES


def describe_computing(state: ThreadState, *, with_name: bool = True) -> str:
    """
    Describe a computing thread as a predicate.

    Args:
        with_name: Whether to name the native function, if it is known.
    """
    name = _native_function(state.thread)
    named = f" ({name})" if name and with_name else ""
    if state.cause is Cause.PYTHON_LOOP:
        return f"is running Python code{named}"
    if state.motion is Motion.MOVING:
        return f"is running native code{named}, again and again"
    if name:
        return f"is running native code{named} that does not return"
    return "is in native code"


def describe_samples(state: ThreadState) -> str:
    """
    Say that unnamed native code was seen in every sample, if so.
    """
    is_nameless = state.cause is Cause.NATIVE_SPIN and not _native_function(
        state.thread
    )
    is_same = state.motion is Motion.SPINNING
    return "at every look" if is_nameless and is_same else ""


def trim_remedy(state: ThreadState, remedy: str) -> str:
    """
    Remove steps from a remedy that are already done.
    """
    if not state.thread.native and not _native_function(state.thread):
        return remedy
    if state.cause is Cause.NATIVE_SPIN and "--native" in remedy:
        return _NOT_RETURNING_REMEDY
    return _NATIVE_STACKS_HINT.sub("", remedy)


def _native_function(thread: ThreadStack) -> str:
    return innermost_native_name(thread.native or thread.frames)[:_MOST_NAME]


_MOST_THREADS = 256
_QUIET_CAUSES = frozenset({None, *IDLE_CAUSES})
# Causes that block an event loop, if one of its callbacks has them.
_LOOP_BLOCKERS = frozenset(
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


# Those that a healthy event loop shows for short times, too.
_MAYBE_SHORT_CAUSES = frozenset({None, Cause.PYTHON_LOOP, Cause.NATIVE_SPIN})


class ProcessExplainer:
    """
    Explains processes, and caches the rules that match each callsite.

    Args:
        book: The rules.

        read_line: Returns the source code of a line of a file.
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
        Explain what a process is doing; ``None`` if it has no stack.
        """
        threads = [t for t in process.threads if t.frames or t.native]
        main = next((t for t in threads if t.is_main), None)
        main = main or next(filter(is_program_thread, threads), None)
        main = main or self._choose_main(threads, process)
        if main is None:
            return _gpu_only_view(process) if process.kernels else None

        state = self._thread_state(main, process)
        others = self._other_states(process, main, state)
        gil = find_gil_holder(threads, main)
        if gil is not None and not has_specific_wait(state, gil[0]):
            return self._gil_view(process, gil)
        if len(locks := find_lock_waits([state, *others])) > 1:
            return self._lock_view(process, locks)

        joined = None
        if not is_in_event_loop(main):
            joined = find_joined_thread(state, others) or find_user_worker(
                state, others
            )
        better = joined or choose_thread(state, others)
        view = self._make_view(process, better, state)
        if joined is not None:
            view = _joined_view(view, joined.thread)
            if state.rule is not None and state.rule.name == EVENT_RULE:
                # Another thread may set the event.
                view = attrs.evolve(view, confidence="possible")
            return view
        if better is state and state.cause in DEFERRING_CAUSES:
            return self._add_other_thread(view, others)
        return view

    def _choose_main(
        self, threads: Sequence[ThreadStack], process: ProcessStacks
    ) -> ThreadStack | None:
        """
        Choose a thread instead of a missing main thread, if one is not idle.
        """
        if len(threads) == 1 and not is_threading_thread(threads[0]):
            # The dump was shortened to the thread that matters.
            return threads[0]
        for thread in filter(self._is_not_helper, threads[:_MOST_THREADS]):
            if not waits_for_work(self._thread_state(thread, process)):
                return thread
        return None

    def _add_other_thread(
        self, view: ProcessView, others: Sequence[ThreadState]
    ) -> ProcessView:
        """
        Add the activity of another thread that this one may wait for.
        """
        other = next((s for s in others if s.cause not in _QUIET_CAUSES), None)
        if other is None or view.cause in IDLE_CAUSES:
            return view

        place = to_location(find_python_frame(other.thread.frames))
        text = (
            f"thread {other.thread.name or 'another'} "
            f"{self._doing_text(other)}"
        )
        if is_user_location(view.location) and place is not None:
            text += f" in {place.brief}"
            place = view.location
        return attrs.evolve(
            view,
            note=f"{view.note} ({text})".strip(),
            location=place,
            evidence=(
                *view.evidence,
                make_evidence(view.process, other.thread, other.frame),
            ),
        )

    def _is_not_helper(self, thread: ThreadStack) -> bool:
        return not self.matcher.is_helper(thread)

    def _other_states(
        self, process: ProcessStacks, main: ThreadStack, state: ThreadState
    ) -> Sequence[ThreadState]:
        is_backward = state.rule is not None and "backward" in state.rule.name
        if (
            state.cause is not None
            and state.cause not in DEFERRING_CAUSES
            and not is_backward
        ):
            return ()

        threads = (
            t
            for t in process.threads
            if t is not main and self._is_not_helper(t) and t.frames
        )
        found = [
            self._thread_state(t, process)
            for _, t in zip(range(_MOST_THREADS), threads, strict=False)
        ]
        is_locked = bool(find_lock_waits([state]))
        return [
            s
            for s in found
            if is_informative(s)
            and not self._is_monitor(s, is_locked=is_locked)
        ]

    def _is_monitor(self, state: ThreadState, *, is_locked: bool) -> bool:
        """
        Return whether a thread is named as a monitor and waits for its turn.

        A thread that waits outside a loop is no monitor: it may hold the lock.
        """
        if not (
            self.matcher.has_helper_name(state.thread)
            and waits_for_work(state)
        ):
            return False

        place = to_location(find_user_frame(state.thread.frames))
        return (
            not is_locked
            or place is None
            or self._is_in_loop(place.file, place.line) is not False
        )

    def _thread_state(
        self, thread: ThreadStack, process: ProcessStacks
    ) -> ThreadState:
        frame_limit = count_task_frames(thread, process)
        gpu = uses_gpu(process)
        context = MatchContext(thread, self._read_line, frame_limit, gpu=gpu)
        hit = self.matcher.first_match(context)
        if hit is not None:
            rule, frame = hit
            motion = classify_motion(thread, rule.wakes)
            return ThreadState(thread, rule.cause, rule, frame, motion)

        cause = classify_running(context, self._is_in_loop)
        motion = classify_motion(thread)
        if cause is Cause.NATIVE_SPIN and _has_returned(thread):
            motion = Motion.MOVING
        return ThreadState(thread, cause, None, context.innermost, motion)

    def _make_view(
        self, process: ProcessStacks, state: ThreadState, main: ThreadState
    ) -> ProcessView:
        cause = state.cause
        doing, of_many = self._doing_text(state), ""
        note = describe_wait(state)
        if self._is_computing(state):
            # Ranks at the same line may be in different native functions.
            of_many = describe_computing(state, with_name=False)
            note = describe_samples(state)
        confidence: Confidence = (
            state.rule.confidence if state.rule else "likely"
        )
        remedy = state.rule.remedy if state.rule else ""
        if cause in _LOOP_BLOCKERS and is_in_event_loop(state.thread):
            doing = f"is blocking its event loop: it {doing}"
            of_many = ""
            if state.motion is Motion.UNKNOWN and cause in _MAYBE_SHORT_CAUSES:
                confidence = "possible"
            cause, remedy = Cause.EVENT_LOOP_STALL, ""
        cause = cause or Cause.UNKNOWN
        return ProcessView(
            process=process,
            cause=cause,
            doing=doing,
            doing_of_many=of_many,
            thread=state.thread,
            frame=state.frame,
            location=choose_location(process, state, main),
            motion=state.motion,
            confidence=confidence,
            remedy=remedy
            or trim_remedy(state, self.book.remedy.get(cause, "")),
            rule=state.rule.name if state.rule else "",
            note=note,
            evidence=(make_evidence(process, main.thread, main.frame),)
            if main is not state
            else (),
        )

    def _doing_text(self, state: ThreadState) -> str:
        if state.rule is not None and state.rule.doing:
            return state.rule.doing

        if self._is_computing(state):
            return describe_computing(state)
        return self.book.doing.get(state.cause or Cause.UNKNOWN, "")

    def _is_computing(self, state: ThreadState) -> bool:
        # Texts of user rules come before the built-in ones.
        cause = state.cause or Cause.UNKNOWN
        is_ours = self.book.doing.get(cause) == DEFAULT_DOING.get(cause)
        return is_ours and is_computing(state)

    def _gil_view(
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
            location=to_location(find_python_frame(frames)),
            motion=Motion.STILL,
            confidence=confidence,
            remedy=self.book.remedy.get(cause, ""),
        )

    def _lock_view(
        self, process: ProcessStacks, locks: Sequence[ThreadState]
    ) -> ProcessView:
        first, *others = locks
        places = [to_location(find_user_frame(s.thread.frames)) for s in locks]
        also = ", ".join(p.brief for p in places[1:4] if p is not None)
        return ProcessView(
            process=process,
            cause=Cause.LOCK_DEADLOCK,
            doing="has threads that wait for each other's locks",
            thread=first.thread,
            frame=first.frame,
            location=places[0],
            motion=first.motion,
            confidence=combine_confidence(locks),
            remedy=self.book.remedy.get(Cause.LOCK_DEADLOCK, ""),
            note=f"and in {also}" if also else "",
            rule="cycle of locks",
            evidence=tuple(
                make_evidence(process, s.thread, s.frame) for s in others[:3]
            ),
        )


def _has_returned(thread: ThreadStack) -> bool:
    """
    Return whether native code that a thread runs returned between samples.

    A thread that spins in native code neither waits nor sets a variable.
    """
    activity = thread.activity
    has_new = activity is not None and activity.has_new_values is True
    return has_new or wakes_per_s(thread) > 0


def _gpu_only_view(process: ProcessStacks) -> ProcessView:
    """
    Make the view of a process of which only GPU kernels are known.
    """
    return ProcessView(
        process=process,
        cause=Cause.UNKNOWN,
        doing="runs a kernel on its GPU",
    )


def _joined_view(view: ProcessView, thread: ThreadStack) -> ProcessView:
    """
    Say that the main thread waits for this thread.
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
    Explain what a process is doing.

    Args:
        book: The rules; the built-in ones by default.

        read_line: Returns the source code of a line of a file, or ``""``; by
            default it reads the file on this machine.

    Returns:
        ``None`` if the process has no stack.
    """
    book = read_rules() if book is None else book
    return ProcessExplainer(book, read_line or SourceLines()).explain(process)


_COMMUNICATION_FILES = re.compile(
    r"(^|/)(torch/(_ops|distributed/(?!elastic|launcher|checkpoint|fsdp)[\w/]+"
    r"|nn/parallel/distributed)|deepspeed/comm/\w+|torch/utils/_contextlib"
    r"|torch/_dynamo/eval_frame|megatron/core/pipeline_parallel/p2p_\w+"
    r"|horovod/.*|(vllm|sglang)/(srt/)?distributed/.*)\.py$"
)
# Wrappers around a call; their names are not the operation.
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
_P2P_WAIT = re.compile(r"\b(i(?:send|recv))\(.{0,400}\)\.wait\(")
_P2P_NAME = re.compile(r"(^|_)i?(send|recv)(_|$)|^(receive|batch_isend_irecv)")
_RECEIVE_NAME = re.compile(
    r"(^|_)i?recv(_|$)|^receive|^recv_(forward|backward|prev|next|object)"
)


def find_operation(view: ProcessView) -> str:
    """
    Return the communication call of a rank, as its caller names it.

    Returns:
        Such as ``"all_reduce"``; ``""`` if unknown.
    """
    frames = view.thread.frames if view.thread else ()
    found = innermost = ""
    for frame in frames:
        if is_native(frame):
            continue
        path = frame.filename.replace("\\", "/")
        if not _COMMUNICATION_FILES.search(path[-300:]):
            break
        name = function_name(frame.name)
        innermost = innermost or name
        if name not in _WRAPPERS:
            found = name
    return found or innermost or _p2p_operation(frames)


def _p2p_operation(frames: Sequence[StackFrame]) -> str:
    """
    Return the send or receive that a line of source code waits for.
    """
    line = next((f.code for f in frames if not is_native(f)), "")
    match = _P2P_WAIT.search(line)
    return match[1] if match else ""


def is_p2p_operation(operation: str) -> bool:
    """
    Return whether a call communicates with one other rank only.

    Args:
        operation: From :func:`find_operation`.
    """
    return bool(_P2P_NAME.search(operation))


def is_receiving(view: ProcessView) -> bool:
    """
    Return whether a rank waits for a message from one other rank.
    """
    return bool(_RECEIVE_NAME.search(find_operation(view)))
