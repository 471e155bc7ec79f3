"""
Distinguish stuck threads from slow ones, and find the holder of the GIL.

One stack cannot show this: a thread that waits for a slow peer has the same
frames in every sample.  But a thread that waits in vain does not even wake up.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence
from enum import Enum

import attrs

from ..findings import Confidence
from .model import ThreadActivity, ThreadStack, is_gil_wait


# A thread that makes progress does not sleep longer than this.
_MOST_STEP_S = 30.0
# A thread that only polls needs about 50 µs per wakeup.
_POLL_CPU_S = 500e-6
# System calls that only return when something has happened.
_BLOCKING_CALLS = frozenset(
    {"accept", "accept4", "flock", "open", "openat", "wait4", "waitid"}
)
_BUSY_SHARE = 0.5
_QUIET_SHARE = 0.02


class Motion(Enum):
    """
    The progress of a thread between its samples.
    """

    UNKNOWN = "unknown"
    STILL = "still"  # did not run, or only polled
    SPINNING = "spinning"  # ran all the time, in the same place
    MOVING = "moving"


def classify_motion(thread: ThreadStack, wakes: float | None = None) -> Motion:
    """
    Classify the progress of a thread.

    Args:
        wakes: How often it wakes up at most without progress, per second;
            ``None`` if unknown.

    Returns:
        Unknown if there is one sample only, or if the thread is runnable but
        gets no CPU.
    """
    activity = thread.activity
    if activity is None or activity.seconds <= 0:
        has_slept = thread.idle_s is not None and thread.idle_s > _MOST_STEP_S
        # The kernel does not report this time for a runnable thread.
        is_awake = thread.state == "R" or thread.active
        return Motion.STILL if has_slept and not is_awake else Motion.UNKNOWN
    if activity.has_left or (activity.has_moved and activity.has_left is None):
        return Motion.MOVING
    if is_busy(activity):
        # There is one stack only, as the other samples failed.
        if activity.has_moved is None and thread.frames:
            return Motion.UNKNOWN
        # The same functions, but called again: a recursion, for example.
        return Motion.MOVING if activity.has_returned else Motion.SPINNING
    call = thread.system_call.name if thread.system_call else ""
    if call in _BLOCKING_CALLS:
        wakes = 0.0
    is_eager = _is_runnable(thread, activity)
    if _does_work(activity, wakes) or (is_eager and activity.has_returned):
        return Motion.MOVING
    return Motion.UNKNOWN if is_eager else Motion.STILL


def _does_work(activity: ThreadActivity, wakes: float | None) -> bool:
    if wakes is not None and activity.voluntary / activity.seconds > wakes:
        return True
    return (
        activity.voluntary > 0
        and activity.cpu_s / activity.voluntary > _POLL_CPU_S
    )


def is_busy(activity: ThreadActivity) -> bool:
    """
    Return whether a thread wanted a CPU all the time.

    On a busy machine it gets less than one CPU, but it never blocks.
    """
    share = cpu_share(activity)
    never_waits = (
        activity.voluntary <= activity.seconds
        and activity.involuntary > 10 * activity.seconds
    )
    return share >= _BUSY_SHARE or (never_waits and share > _QUIET_SHARE)


def _is_runnable(thread: ThreadStack, activity: ThreadActivity) -> bool:
    """
    Return whether a thread wants a CPU, however little it gets.

    Beside one other program, a thread of the lowest priority gets a
    seventieth.
    """
    return thread.state == "R" and activity.voluntary <= activity.seconds


def wakes_per_s(thread: ThreadStack) -> float:
    """
    Return how often a thread blocked, per second; 0 without samples.
    """
    activity = thread.activity
    return (
        activity.voluntary / activity.seconds
        if activity and activity.seconds > 0
        else 0.0
    )


def cpu_share(activity: ThreadActivity | None) -> float:
    """
    Return the share of a CPU that a thread used; 0 without samples.
    """
    return (
        activity.cpu_s / activity.seconds
        if activity and activity.seconds > 0
        else 0.0
    )


def is_running(thread: ThreadStack) -> bool | None:
    """
    Return whether a thread was running on a CPU; ``None`` if unknown.
    """
    activity = thread.activity
    if activity is not None:
        if is_busy(activity):
            return True
        if cpu_share(activity) <= _QUIET_SHARE:
            # A thread that was never preempted may have just woken up.
            is_starved = activity.involuntary > activity.voluntary or None
            return is_starved if _is_runnable(thread, activity) else False
    if thread.system_call is not None and thread.system_call.name != "running":
        return False
    if thread.state:
        return thread.state == "R"
    return thread.active


_INNER_FRAMES = 16
_RUNS_PYTHON = re.compile(r"^_?PyEval_(EvalFrame|EvalCode|Vector)")
# Functions that release the GIL before they wait.
_RELEASES_GIL = re.compile(
    r"lock_PyThread_acquire|acquire_timed|PySleep|pysleep|time_sleep|^select_"
    r"|^sock_|^_io_|^os_\w+_impl|^_Py_(read|write|open)|gil_scoped_release"
    r"|PyEval_SaveThread|semlock_acquire|_PySemaphore|PyThread_acquire_lock"
)

# A thread that waits for the GIL polls it every 5 ms; less often on a busy
# machine.  Lower and upper limit, per second.
_GIL_WAITER_WAKES_PER_S = (60.0, 600.0)
_GIL_WAITER_CPU_SHARE = 0.2
# CPU share of a thread that does some work between two waits for the GIL.
_CONVOY_CPU_SHARE = 0.35
_HOG_CPU_SHARE = 0.2
_HOG_INTERRUPTS_PER_S = 100.0
_STARVED_HOG_CPU_SHARE = 0.02
_GIL_WAIT_CALLS = frozenset({"", "futex", "running"})

GilHolder = tuple[ThreadStack, str, Confidence]


def find_gil_holder(
    threads: Sequence[ThreadStack],
    main: ThreadStack,
) -> GilHolder | None:
    """
    Find the thread that blocks the main thread by holding the GIL.

    Args:
        threads: The threads with stacks.

    Returns:
        The thread that holds the GIL (or waits for it, if the holder is
        unknown), what it is doing as a predicate, and the confidence.
    """
    owner = _gil_owner(threads)
    waiting = [t for t in threads if t is not owner and is_waiting_for_gil(t)]
    holder = next((t for t in threads if _hogs_gil(t, main)), None)
    if holder is not None and (
        main in waiting or _wakes_like_gil_waiter(main, _CONVOY_CPU_SHARE)
    ):
        doing = "does not let go of the lock of the interpreter"
        return holder, _describe_holder(holder, doing, [main]), "likely"
    if owner is None:
        return _guess_holder(threads, waiting, main)

    is_blocked = _is_blocked(owner)
    if is_blocked and (waiting or _is_still(owner)):
        doing = "holds the lock of the interpreter while it waits"
        is_certain = _is_still(owner) and bool(waiting)
        return (
            owner,
            _describe_holder(owner, doing, waiting),
            _confidence(is_certain=is_certain),
        )
    if waiting and is_running(owner) is None:
        doing = "holds the lock of the interpreter"
        return owner, _describe_holder(owner, doing, waiting), "possible"
    return None


def is_waiting_for_gil(thread: ThreadStack) -> bool:
    """
    Return whether a thread waits for the GIL.
    """
    if thread.waits_for_gil is not None:
        return thread.waits_for_gil

    call = thread.system_call.name if thread.system_call else ""
    return _stack_shows_gil_wait(thread) or (
        _wakes_like_gil_waiter(thread) and call in _GIL_WAIT_CALLS
    )


def _stack_shows_gil_wait(thread: ThreadStack) -> bool:
    frames = thread.native or thread.frames
    return bool(thread.waits_for_gil or is_gil_wait(frames))


def _wakes_like_gil_waiter(
    thread: ThreadStack, most_cpu: float = _GIL_WAITER_CPU_SHARE
) -> bool:
    """
    Return whether a thread wakes up as often as one that waits for the GIL.
    """
    low, high = _GIL_WAITER_WAKES_PER_S
    return (
        low <= wakes_per_s(thread) <= high
        and cpu_share(thread.activity) <= most_cpu
    )


def _gil_owner(threads: Iterable[ThreadStack]) -> ThreadStack | None:
    return next((t for t in threads if t.owns_gil), None)


def _is_blocked(owner: ThreadStack) -> bool:
    """
    Return whether the owner of the GIL waits for something else.
    """
    return is_running(owner) is False and not is_waiting_for_gil(owner)


def _is_still(owner: ThreadStack) -> bool:
    """
    Return whether the owner of the GIL waited longer than a moment.
    """
    return classify_motion(owner, 0.0) is Motion.STILL


def _hogs_gil(thread: ThreadStack, main: ThreadStack) -> bool:
    """
    Return whether a thread runs Python all the time, and the main hardly does.
    """
    if thread is main or not any(not f.is_native for f in thread.frames):
        return False
    if thread.activity is None:
        return bool(thread.owns_gil and thread.active)

    activity, share = thread.activity, cpu_share(thread.activity)
    # A Python thread releases the GIL on request, and then waits for it, too.
    # A thread that moves from line to line is not in native code.
    runs_python = (
        thread.owns_gil is True
        or wakes_per_s(thread) >= wakes_per_s(main) / 4
        or (activity.has_moved is True and activity.has_left is False)
    )
    # On a busy machine it gets little CPU, but is preempted whenever it runs.
    wants_more = (
        activity.involuntary >= _HOG_INTERRUPTS_PER_S * activity.seconds
        and share > _STARVED_HOG_CPU_SHARE
    )
    uses_much_cpu = share >= _HOG_CPU_SHARE or wants_more
    return (
        uses_much_cpu and runs_python and share >= 2 * cpu_share(main.activity)
    )


def _guess_holder(
    threads: Sequence[ThreadStack],
    waiting: Sequence[ThreadStack],
    main: ThreadStack,
) -> GilHolder | None:
    """
    Guess the holder of the GIL, if the tool does not report it.
    """
    # Threads that do not wait for the GIL may wake up as often.
    waiting = [t for t in waiting if _stack_shows_gil_wait(t)]
    if not waiting or classify_motion(main) is Motion.MOVING:
        return None
    if main in waiting:
        return main, "is waiting for the lock of the interpreter", "likely"

    others = [t for t in threads if t not in waiting and _may_hold_gil(t)]
    if others != [main] or is_running(main):
        return None
    doing = "seems to hold the lock of the interpreter while it waits"
    return main, _describe_holder(main, doing, waiting), "possible"


def _may_hold_gil(thread: ThreadStack) -> bool:
    """
    Return whether a native stack allows that the thread holds the GIL.
    """
    natives = [f.name for f in (thread.native or thread.frames)[:200]]
    return any(map(_RUNS_PYTHON.match, natives)) and not any(
        map(_RELEASES_GIL.search, natives[:_INNER_FRAMES])
    )


def _describe_holder(
    owner: ThreadStack, doing: str, waiting: Sequence[ThreadStack]
) -> str:
    name = owner.name or owner.thread_id
    text = (
        f"has a thread ({name}) that {doing}"
        if name
        else f"has a thread that {doing}"
    )
    if owner.is_main:
        text = doing
    if not waiting:
        return text
    waiters = (
        "another thread waits"
        if len(waiting) == 1
        else (f"{len(waiting)} other threads wait")
    )
    return f"{text} ({waiters} for it)"


def _confidence(*, is_certain: bool) -> Confidence:
    return "certain" if is_certain else "likely"


def _compile(text: str) -> re.Pattern[str]:
    return re.compile(text)


@attrs.frozen(kw_only=True)
class BackgroundRule:
    """
    A pattern for threads that only wait for work.

    Attributes:
        file: Searched for in the file of a frame.

        function: Has to match the function of that frame, without its class.

        within: How many of the innermost frames to search.

        unless: If this matches one of the frames, the thread is at work.
    """

    file: re.Pattern[str] = attrs.field(converter=_compile, default="")
    function: re.Pattern[str] = attrs.field(converter=_compile, default=".*")
    within: int = 1_000_000
    unless: re.Pattern[str] | None = None


_WORK_FUNCTIONS = re.compile(
    r".*(runExecute|AsyncWork|evaluate_function|execute).*"
)

BACKGROUND_RULES = (
    BackgroundRule(
        file=r"concurrent/futures/thread\.py$", function="_worker", within=1
    ),
    BackgroundRule(file=r"concurrent/futures/process\.py$", function="run"),
    BackgroundRule(file=r"tqdm/_monitor\.py$"),
    BackgroundRule(file=r"torch/utils/data/_utils/pin_memory\.py$"),
    BackgroundRule(file=r"torch/_inductor/compile_worker/"),
    BackgroundRule(file=r"torch/distributed/elastic/timer/"),
    BackgroundRule(file=r"multiprocessing/queues\.py$", function="_feed"),
    BackgroundRule(
        file=r"multiprocessing/pool\.py$",
        function="_?(handle_(workers|tasks|results)|worker|wait_for_updates)",
    ),
    BackgroundRule(file=r"multiprocessing/resource_sharer\.py$"),
    BackgroundRule(file=r"logging/handlers\.py$", function="_monitor"),
    BackgroundRule(file=r"tensorboard/summary/writer/event_file_writer\.py$"),
    BackgroundRule(file=r"(^|/)wandb/sdk/"),
    BackgroundRule(file=r"prometheus_client/"),
    BackgroundRule(file=r"zmq/utils/garbage\.py$"),
    BackgroundRule(file=r"distdebug/"),
    BackgroundRule(
        function=r".*watchdog.*|_?heartbeat\w*|.*[Hh]eartbeatMonitor.*"
    ),
    BackgroundRule(function=r".*ncclCommWatchdog.*|.*workCleanupLoop.*"),
    BackgroundRule(
        function=r".*StoreDaemon.*|.*StoreMasterDaemon.*|.*BackgroundThread.*"
    ),
    BackgroundRule(
        function=r"(torch::autograd::)?(ReadyQueue::pop|Engine::thread_main).*",
        unless=_WORK_FUNCTIONS,
    ),
    BackgroundRule(
        function=r"c10d::ProcessGroupGloo::runLoop.*", unless=_WORK_FUNCTIONS
    ),
    BackgroundRule(
        function=r"gloo::transport::\w+::Loop::run.*", unless=_WORK_FUNCTIONS
    ),
    BackgroundRule(
        function=r"gomp_thread_start|__kmp_\w+|blas_thread_server|"
        r"ncclProxy(Service|Progress)\w*|ncclAsyncThread\w*"
    ),
)

# Names that only background threads have.
_BACKGROUND_NAMES = re.compile(
    r"cuda-?\w*|ZMQbg/.*|jemalloc_bg\w*|grpc\w*|event_engine|tqdm.*"
    r"|QueueFeederThread|wandb.*|asyncio_\d+|gloo_tcp_loop|pt_tcpstore\w*"
)
# Names of threads that also work; one without a stack waits.
_NAMES_WITHOUT_STACK = re.compile(r"pt_(nccl_|autograd|gloo|elastic)\w*")


def is_background(thread: ThreadStack) -> bool:
    """
    Return whether a thread only waits for work.

    Such a thread can be left out of a list of many; a main thread never is
    one.
    """
    if thread.is_main:
        return False
    if not thread.frames and _BACKGROUND_NAMES.fullmatch(thread.name):
        return True
    if not thread.frames and not thread.native:
        return _NAMES_WITHOUT_STACK.fullmatch(thread.name) is not None

    # Python frames show what a thread is for, native frames how it waits.
    python = [f for f in thread.frames if not f.is_native]
    frames = [
        (f.filename.replace("\\", "/"), f.name.rpartition(".")[2])
        for f in python or thread.frames or thread.native
    ]
    return any(_matches(rule, frames) for rule in BACKGROUND_RULES)


def _matches(rule: BackgroundRule, frames: list[tuple[str, str]]) -> bool:
    if rule.unless and any(rule.unless.fullmatch(name) for _, name in frames):
        return False
    return any(
        rule.file.search(file) and rule.function.fullmatch(name)
        for file, name in frames[: rule.within]
    )
