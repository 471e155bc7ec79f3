"""
Explain what one process is doing, and choose the thread that shows it.

Usually this is the main thread.  Where that only waits for another thread of
the same process, the other one is reported: backward passes, training loops of
Ray, and the holder of the GIL run in other threads.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import attrs

from .._lazy import late_pattern
from ..causes import Cause, Trait
from ..findings import Confidence, Evidence, Location
from ..processes import ENDED_STATES
from ..usercode import (
    Layer,
    find_user_frame,
    frame_layer,
    is_user_code,
    is_user_frame,
    to_location,
    user_location,
)
from .model import (
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    callsite,
    is_native,
    python_frames,
    short_kernel_name,
)
from .motion import (
    GilHolder,
    Motion,
    bytes_per_s,
    find_gil_holder,
    is_waiting_for_gil,
)
from .process_view import LOOK_AGAIN, NO_THREAD, ProcessView, make_evidence
from .rules import (
    MOST_NAME,
    RuleBook,
    SourceLines,
    ThreadState,
    builtin_rules,
    is_in_event_loop,
    is_program_thread,
    is_threading_thread,
)


# Causes that explain no more than the wait itself.
_UNINFORMATIVE_CAUSES = frozenset({Cause.FUTURE_WAIT, Cause.UNKNOWN})
# Waits of a thread that has no work.
_WORK_WAITS = frozenset(
    {Cause.IDLE, Cause.EVENT_LOOP_IDLE, Cause.QUEUE_WAIT, Cause.SLEEPING}
)


def waits_for_work(state: ThreadState) -> bool:
    """
    Return whether a thread waits in the function that it was started for.

    Servers and pools wait like this in every healthy job.
    """
    python = python_frames(state.thread.frames)
    task_code = [f for f in python if frame_layer(f) < Layer.LIBRARY]
    if not task_code:
        return bool(python) and not state.explains_wait
    is_event = state.awaits == "event"
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
        ambiguous.  An event may be set by a thread that runs user code.
    """
    if main.awaits == "event":
        return next(filter(_is_working, others), None)
    if main.awaits not in {"thread", "pool"}:
        return None

    known = [o for o in others if o.cause not in _UNINFORMATIVE_CAUSES]
    if main.awaits == "pool":
        # The result cannot come from a thread that has no work, but from one
        # that waits for a result itself.
        nested = [o for o in others if o.awaits == "pool" and o.runs_user_code]
        known = [o for o in known if not waits_for_work(o)] or nested
    busy = [o for o in known if Trait.DEFERS not in o.cause.traits]
    if not busy and len({o.cause for o in known}) > 1:
        return None
    return next(iter(busy or known), None)


def _is_working(state: ThreadState) -> bool:
    if waits_for_work(state) or not state.runs_user_code:
        return False
    return state.motion in {Motion.MOVING, Motion.SPINNING} or (
        state.rule is None and state.is_explained
    )


def choose_thread(
    main: ThreadState, others: Sequence[ThreadState]
) -> ThreadState:
    """
    Choose the thread to report: the main thread, or one that it waits for.

    Args:
        main: State of the main thread.

        others: States of all other threads that are not helpers.
    """
    better = [o for o in others if o.explains_wait]
    if main.may_defer and better:
        return better[0]
    if not main.cause.is_idle:
        return main
    is_actor = main.awaits == "task"
    busy = (
        o
        for o in others
        if not o.cause.is_idle and (o.is_explained or is_actor)
    )
    return next(busy, main)


# Waits whose target the kernel reports.
_KERNEL_WAITS = frozenset({Cause.IO_WAIT, Cause.LOCK_DEADLOCK})
_NO_FILES = ("/dev/", "/proc/", "/sys/")


def choose_location(state: ThreadState, main: ThreadState) -> Location | None:
    """
    Return the line of the user's code, or the next best one.

    Args:
        state: State of the thread to report.

        main: State of the main thread.
    """
    best = find_python_frame(state.task_frames)
    if state is not main and (best is None or not is_user_frame(best)):
        # A backward pass runs in a thread without user code.
        outer = find_python_frame(main.task_frames)
        if outer is not None and (best is None or is_user_frame(outer)):
            best = outer
    return to_location(best)


def find_python_frame(frames: Iterable[StackFrame]) -> StackFrame | None:
    """
    Return the Python frame that the user can change.

    Args:
        frames: Innermost first.
    """
    best = find_user_frame(frames)
    return None if best is None or is_native(best) else best


def find_blocked_call(state: ThreadState) -> SystemCall | None:
    """
    Return the system call that a thread waits in, if its target matters.

    Files matter in every wait but that for other ranks; connections and pipes
    only if there is no better explanation.
    """
    call = state.thread.system_call
    if call is None or not call.target or state.motion is Motion.MOVING:
        return None
    is_file = call.target.startswith("/")
    is_file &= not call.target.startswith(_NO_FILES)
    is_wait = is_file and not (
        state.cause.is_peer_wait or state.cause.is_computing
    )
    return call if is_wait or state.cause in _KERNEL_WAITS else None


def describe_native(state: ThreadState) -> str:
    """
    Name the native function of a thread without a Python line.
    """
    frames = state.thread.frames
    has_python = not all(map(is_native, frames))
    if state.frame is None or has_python or not is_native(state.frame):
        return ""
    return f"(in {state.frame.name[:MOST_NAME]})"


_NATIVE_STACKS_HINT = late_pattern(
    r"take native stacks \(--native\)[^,;]*, or "
)
_FIFO_REMEDY = "start the process that should open the other end of this FIFO"
_NOT_RETURNING_REMEDY = (
    "see why this function does not return: look at its arguments"
)


def describe_computing(state: ThreadState, *, with_name: bool = True) -> str:
    """
    Describe a computing thread as a predicate.

    Args:
        with_name: Whether to name the native function, if it is known.
    """
    name = state.native_function
    named = f" ({name})" if name and with_name else ""
    if state.cause is Cause.PYTHON_LOOP:
        return f"is running Python code{named}"
    if state.motion is Motion.MOVING:
        return f"is running native code{named}, again and again"
    if name:
        return f"is running native code{named} that does not return"
    return "is in native code"


# What a thread seems to do that reads or writes large files, piece by piece.
_MAY_MOVE_DATA = frozenset(
    {
        Cause.CHECKPOINTING,
        Cause.IO_WAIT,
        Cause.NATIVE_SPIN,
        Cause.PYTHON_LOOP,
        Cause.SLEEPING,
        Cause.UNKNOWN,
    }
)
_MOVES_DATA = "is reading or writing data"
_MOST_THREADS = 256
# A communication kernel waits for other ranks, and is not the cause.
_COLLECTIVE_KERNEL = late_pattern(
    r"nccl|rccl|nvshmem|all_?reduce|allgather|hccl", re.IGNORECASE
)


class ProcessExplainer:
    """
    Explains processes, and caches the rules that match each callsite.

    Args:
        book: The rules.
    """

    def __init__(self, book: RuleBook) -> None:
        self.book = book
        self._lines = SourceLines()

    def explain_state(self, process: ProcessStacks) -> ProcessView | None:
        """
        Explain a process that has died, is stopped, or is blocked in the kernel.

        Returns:
            ``None`` if the process is none of these.
        """
        found = next(_state_causes(process), None)
        if found is None:
            return None

        cause, doing, confidence = found
        current = (t for t in process.threads if t.is_current)
        thread = next(current, process.main_thread) or NO_THREAD
        return self._describe(
            process,
            cause,
            doing,
            thread,
            location=user_location(thread.frames),
            confidence=confidence,
        )

    def explain(self, process: ProcessStacks) -> ProcessView | None:
        """
        Explain what a process is doing; ``None`` if it has no stack.
        """
        view = self._explain_stacks(process)
        if view is not None:
            view = self._add_kernels(view)
        if process.state != "Z" or not _has_live_thread(process.threads):
            return view
        if view is None:
            doing = "has ended its main thread, but not all others"
            return self._describe(process, Cause.UNKNOWN, doing)
        return view.with_note("its main thread has ended")

    def _describe(
        self,
        process: ProcessStacks,
        cause: Cause,
        doing: str,
        thread: ThreadStack = NO_THREAD,
        **more: Any,
    ) -> ProcessView:
        """
        Make a view with the texts of a cause, and the innermost frame.

        Args:
            doing: By default that of the cause.

            more: Other attributes of the view.
        """
        known = {
            "doing": doing or self.book.doing.get(cause, ""),
            "frame": next(iter(thread.frames or thread.native), None),
            "remedy": self.book.remedy.get(cause, ""),
        }
        return ProcessView(
            process=process, cause=cause, thread=thread, **{**known, **more}
        )

    def _add_kernels(self, view: ProcessView) -> ProcessView:
        """
        Explain a wait for the GPU by the kernel that runs on it.
        """
        kernels = view.process.kernels
        if not kernels or Trait.GPU_WAIT not in view.cause.traits:
            return view

        compute_kernels = [
            k for k in kernels if not _COLLECTIVE_KERNEL.search(k.name[:200])
        ]
        kernel = (compute_kernels or kernels)[0]
        cause = Cause.GPU_KERNEL if compute_kernels else Cause.COLLECTIVE_WAIT
        name = short_kernel_name(kernel)
        device = "" if kernel.device is None else f"device {kernel.device}"
        of_device = f" of {device}" if device else ""
        evidence = Evidence(
            kind="gpu",
            source=view.process.source,
            location=device,
            quote=kernel.name,
        )
        return attrs.evolve(
            view,
            cause=cause,
            doing=f"is waiting for the kernel {name}{of_device}",
            confidence="likely",
            remedy=self.book.remedy.get(cause, ""),
            evidence=(evidence, *view.evidence),
        )

    def _explain_stacks(self, process: ProcessStacks) -> ProcessView | None:
        threads = [t for t in process.threads if t.frames or t.native]
        main = next((t for t in threads if t.is_main), None)
        main = main or next(filter(is_program_thread, threads), None)
        main = main or self._choose_main(threads, process)
        if main is not None:
            return self._explain_threads(process, main, threads)
        if not process.kernels:
            return None
        doing = "runs a kernel on its GPU"
        return ProcessView(process=process, cause=Cause.UNKNOWN, doing=doing)

    def _explain_threads(
        self,
        process: ProcessStacks,
        main: ThreadStack,
        threads: Sequence[ThreadStack],
    ) -> ProcessView:
        state = self._thread_state(main, process)
        others = self._other_states(state)
        gil = find_gil_holder(threads, main)
        has_own_rule = state.rule is not None and state.rule.file is not None
        # A main thread with the GIL, in a wait that has its own rule.
        if gil is not None and not (
            gil[0] is main and has_own_rule and not is_waiting_for_gil(main)
        ):
            return self._gil_view(process, gil)
        locks = [s for s in (state, *others) if s.waits_for_lock]
        if len(locks) > 1:
            return self._lock_view(locks)

        joined = find_joined_thread(state, others)
        if joined is not None and not is_in_event_loop(main):
            view = self._make_view(joined, state)
            # Another thread may set the event.
            is_sure = state.awaits != "event"
            return _joined_view(view, joined.thread, is_sure=is_sure)
        better = choose_thread(state, others)
        view = self._make_view(better, state)
        is_vague = better is state and Trait.DEFERS in state.cause.traits
        return self._add_other_thread(view, others) if is_vague else view

    def _choose_main(
        self, threads: Sequence[ThreadStack], process: ProcessStacks
    ) -> ThreadStack | None:
        """
        Choose a thread instead of a missing main thread, if one is not idle.
        """
        if len(threads) == 1 and not is_threading_thread(threads[0]):
            # The dump was shortened to the thread that matters.
            return threads[0]
        for thread in threads[:_MOST_THREADS]:
            if not self.book.is_helper(thread):
                state = self._thread_state(thread, process)
                if not waits_for_work(state):
                    return thread
        return None

    def _add_other_thread(
        self, view: ProcessView, others: Sequence[ThreadState]
    ) -> ProcessView:
        """
        Add the activity of another thread that this one may wait for.
        """
        other = next(
            (s for s in others if s.is_explained and not s.cause.is_idle), None
        )
        if other is None or view.cause.is_idle:
            return view

        place = to_location(find_python_frame(other.thread.frames))
        name = other.thread.name or "another"
        text = f"thread {name} {self._doing_text(other)}"
        known = view.location
        if known and is_user_code(known.file) and place is not None:
            text += f" in {place.brief}"
            place = known
        evidence = make_evidence(view.process, other.thread, other.frame)
        view = attrs.evolve(view, location=place)
        return view.with_note(text, evidence)

    def _other_states(self, main: ThreadState) -> Sequence[ThreadState]:
        if not main.may_defer:
            return ()

        threads = (
            t
            for t in main.process.threads
            if t is not main.thread and t.frames and not self.book.is_helper(t)
        )
        found = (
            self._thread_state(t, main.process)
            for t in islice(threads, _MOST_THREADS)
        )
        return [
            s
            for s in found
            if (s.explains_wait or s.runs_user_code)
            and not self._is_monitor(s, is_locked=main.waits_for_lock)
        ]

    def _is_monitor(self, state: ThreadState, *, is_locked: bool) -> bool:
        """
        Return whether a thread is named as a monitor and waits for its turn.

        A thread that waits outside a loop is no monitor: it may hold the lock.
        """
        is_named = self.book.has_helper_name(state.thread)
        if not (is_named and waits_for_work(state)):
            return False

        place = user_location(state.thread.frames)
        return (
            not is_locked
            or place is None
            or self._lines.is_in_loop(place.file, place.line) is not False
        )

    def _thread_state(
        self, thread: ThreadStack, process: ProcessStacks
    ) -> ThreadState:
        return ThreadState(thread, process, self.book, self._lines)

    def _make_view(self, state: ThreadState, main: ThreadState) -> ProcessView:
        call, of_many = find_blocked_call(state), ""
        note = "" if call else describe_native(state)
        cause, rule = state.cause, state.rule
        remedy = (rule.remedy if rule else "") or self._remedy(state, cause)
        if self._is_computing(state):
            # Ranks at the same line may be in different native functions.
            of_many = describe_computing(state, with_name=False)
            is_same = state.cause is Cause.NATIVE_SPIN and (
                state.motion is Motion.SPINNING
            )
            is_nameless = not state.native_function
            note = "at every look" if is_same and is_nameless else ""
        view = ProcessView(
            process=state.process,
            cause=cause,
            doing=self._doing_text(state),
            doing_of_many=of_many,
            thread=state.thread,
            frame=state.frame,
            location=choose_location(state, main),
            motion=state.motion,
            confidence=rule.confidence if rule else "likely",
            remedy=_FIFO_REMEDY if call and call.is_fifo else remedy,
            rule=rule.name if rule else "",
            note=note,
            blocked_in=call,
        )
        if main is not state:
            evidence = make_evidence(main.process, main.thread, main.frame)
            view = attrs.evolve(view, evidence=(evidence,))
        if cause in _MAY_MOVE_DATA and (rate := bytes_per_s(state.thread)):
            return _as_moving_data(view, rate)
        may_block = Trait.BLOCKS_LOOP in cause.traits or not state.is_explained
        if may_block and is_in_event_loop(state.thread):
            return self._as_loop_stall(view, state)
        return view

    def _as_loop_stall(
        self, view: ProcessView, state: ThreadState
    ) -> ProcessView:
        # A healthy event loop computes for short times, too.
        is_short = not state.is_explained or state.cause.is_computing
        is_unsure = is_short and state.motion is Motion.UNKNOWN
        return attrs.evolve(
            view,
            cause=Cause.EVENT_LOOP_STALL,
            doing=f"is blocking its event loop: it {view.doing}",
            doing_of_many="",
            confidence="possible" if is_unsure else view.confidence,
            remedy=self._remedy(state, Cause.EVENT_LOOP_STALL),
        )

    def _remedy(self, state: ThreadState, cause: Cause) -> str:
        """
        Return what to do about a cause, without steps that are already done.
        """
        remedy = self.book.remedy.get(cause, "")
        if not state.thread.native and not state.native_function:
            return remedy
        if state.cause is Cause.NATIVE_SPIN and "--native" in remedy:
            return _NOT_RETURNING_REMEDY
        return _NATIVE_STACKS_HINT.sub("", remedy)

    def _doing_text(self, state: ThreadState) -> str:
        if state.rule is not None and state.rule.doing:
            return state.rule.doing

        if self._is_computing(state):
            return describe_computing(state)
        return self.book.doing.get(state.cause, "")

    def _is_computing(self, state: ThreadState) -> bool:
        # Texts of user rules come before the built-in ones.
        own_text = builtin_rules().doing.get(state.cause)
        text = self.book.doing.get(state.cause)
        is_computing = state.rule is None and state.cause.is_computing
        return is_computing and text == own_text

    def _gil_view(self, process: ProcessStacks, gil: GilHolder) -> ProcessView:
        thread, doing, confidence = gil
        frames = thread.frames or thread.native
        # From function to function: a pool that computes, for example.
        moves = (
            thread.activity is not None and thread.activity.has_left is True
        )
        return self._describe(
            process,
            Cause.GIL_CONTENTION,
            doing,
            thread,
            location=to_location(find_python_frame(frames)),
            motion=Motion.MOVING if moves else Motion.STILL,
            confidence="possible" if moves else confidence,
        )

    def _lock_view(self, locks: Sequence[ThreadState]) -> ProcessView:
        first, *others = locks
        process = first.process
        places = [user_location(s.thread.frames) for s in locks]
        also = ", ".join(p.brief for p in places[1:4] if p is not None)
        is_likely = all(
            s.rule and s.rule.confidence == "likely" for s in locks
        )
        return self._describe(
            process,
            Cause.LOCK_DEADLOCK,
            "has threads that wait for each other's locks",
            first.thread,
            frame=first.frame,
            location=places[0],
            motion=first.motion,
            confidence="likely" if is_likely else "possible",
            note=f"and in {also}" if also else "",
            rule="cycle of locks",
            evidence=tuple(
                make_evidence(process, s.thread, s.frame) for s in others[:3]
            ),
        )


def _as_moving_data(view: ProcessView, rate: float) -> ProcessView:
    return attrs.evolve(
        view,
        cause=Cause.PROGRESSING,
        doing=_MOVES_DATA,
        doing_of_many=_MOVES_DATA,
        motion=Motion.MOVING,
        note=f"({rate / 1e6:.1f} MB/s)",
        blocked_in=None,
        remedy=LOOK_AGAIN,
    )


def _joined_view(
    view: ProcessView, thread: ThreadStack, *, is_sure: bool
) -> ProcessView:
    """
    Say that the main thread waits for this thread.
    """
    name = f"its thread {thread.name!r:.99}" if thread.name else "a thread"
    return attrs.evolve(
        view,
        doing=f"is waiting for {name}, which {view.doing}",
        doing_of_many=f"is waiting for a thread each, which {view.doing}",
        confidence=view.confidence if is_sure else "possible",
    )


# The cause that keeps a process from running, as a predicate, and how certain.
StateCause = tuple[Cause, str, Confidence]

# How long a busy disk may take.
_SHORT_WAIT_S = 1.0
_LONG_WAIT_S = 10.0


def _state_causes(process: ProcessStacks) -> Iterator[StateCause]:
    """
    Yield what keeps a process from running; the first one counts.
    """
    error, tracer = process.fatal_error, process.tracer_pid
    if error:
        # What aborts has printed why, elsewhere.
        is_abort = "abort" in error.lower() or error == "SIGABRT"
        doing = f"died of a fatal error ({error})"
        yield Cause.NATIVE_CRASH, doing, "likely" if is_abort else "certain"
    if process.state == "Z" and not _has_live_thread(process.threads):
        doing = "has ended, and its parent has not reaped it (a zombie)"
        yield Cause.DEAD, doing, "certain"
    if process.state in ENDED_STATES - {"Z"}:
        yield Cause.DEAD, "has ended meanwhile", "certain"
    if process.state == "t" or (process.state == "T" and tracer):
        who = f"process {tracer}, a debugger" if tracer else "a debugger"
        yield Cause.STOPPED, f"is stopped by {who}", "certain"
    if process.state == "T":
        yield Cause.STOPPED, "is stopped by a signal", "certain"
    main = process.main_thread
    if process.state == "D" or (main is not None and main.state == "D"):
        yield from _uninterruptible_causes(main)


def _has_live_thread(threads: Iterable[ThreadStack]) -> bool:
    # The main thread may end before the others.
    return any(t.state and t.state not in ENDED_STATES for t in threads)


def _has_run(activity: ThreadActivity) -> bool:
    return bool(
        activity.voluntary
        or activity.involuntary
        or activity.cpu_s > 0
        or activity.has_moved
        or activity.has_left
        or activity.has_new_values
    )


def _uninterruptible_causes(main: ThreadStack | None) -> Iterator[StateCause]:
    """
    Yield the cause if a process is in the kernel longer than a disk needs.
    """
    if main is None:
        yield Cause.UNINTERRUPTIBLE, "", "likely"
        return

    call, activity, idle_s = main.system_call, main.activity, main.idle_s
    is_short = activity is None or activity.seconds < _SHORT_WAIT_S
    was_awake = idle_s is not None and idle_s < _SHORT_WAIT_S
    has_run = activity is not None and _has_run(activity)
    if has_run or (is_short and was_awake):
        return
    doing = ""
    if call is not None and call.name != "running":
        doing = f"cannot be interrupted while it waits in the kernel: {call}"
    is_certain = activity is not None or (idle_s or 0) > _LONG_WAIT_S
    yield Cause.UNINTERRUPTIBLE, doing, "certain" if is_certain else "likely"


_COMMUNICATION_FILES = late_pattern(
    r"(^|/)(torch/(_ops|distributed/(?!elastic|launcher|checkpoint|fsdp)[\w/]+"
    r"|nn/parallel/distributed)|deepspeed/comm/\w+|torch/utils/_contextlib"
    r"|torch/_dynamo/eval_frame|megatron/core/pipeline_parallel/p2p_\w+"
    r"|horovod/.*|(vllm|sglang)/(srt/)?distributed/.*)\.py$"
)
# Wrappers around a call; their names are not the operation.
_WRAPPER = late_pattern(
    r"(?:log_)?wrapper|_fn|inner|wrapped_fn|decorate_context|__call__"
    r"|_?wait|wait_tensor|__torch_(?:dispatch|function)__"
)
_P2P_WAIT = late_pattern(r"\b(i(?:send|recv))\(.{0,400}\)\.wait\(")
_P2P_NAME = late_pattern(
    r"(^|_)i?(send|recv)(_|$)|^(receive|batch_isend_irecv)"
)
_RECEIVE_NAME = late_pattern(
    r"(^|_)i?recv(_|$)|^receive|^recv_(forward|backward|prev|next|object)"
)


def find_operation(view: ProcessView) -> str:
    """
    Return the communication call of a rank, as its caller names it.

    Returns:
        Such as ``"all_reduce"``; ``""`` if unknown.
    """
    frames = python_frames(view.thread.frames)
    found = innermost = ""
    for path, name in map(callsite, frames):
        if not _COMMUNICATION_FILES.search(path):
            break
        innermost = innermost or name
        if not _WRAPPER.fullmatch(name):
            found = name
    # The send or receive that a line of source code waits for.
    match = _P2P_WAIT.search(frames[0].code) if frames else None
    return found or innermost or (match[1] if match else "")


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


def is_sending(view: ProcessView) -> bool:
    """
    Return whether a rank waits until one other rank takes its message.
    """
    return is_p2p_operation(find_operation(view)) and not is_receiving(view)
