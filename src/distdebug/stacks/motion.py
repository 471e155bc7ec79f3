"""
Is this thread stuck, or merely slow?

Its stack alone cannot tell: whoever waits for a slow peer shows the same lines
at every look.  But who waits in vain does not even wake up.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence
from enum import Enum

import attrs

from ..findings import Confidence
from .model import ThreadActivity, ThreadStack
from .model import wants_gil as wants_gil_by_native_stack


# Nobody waits this long within a step that was watched.
_LONG_S = 30.0
# A thread that only looks whether something happened needs some 50 µs.
_WORK_S = 500e-6
# Who waits in these calls only wakes up if something happened.
_WITHOUT_END = frozenset(
    {"accept", "accept4", "flock", "open", "openat", "wait4", "waitid"}
)
_BUSY = 0.5
_QUIET = 0.02


class Motion(Enum):
    """
    What became of a thread while it was watched.
    """

    UNKNOWN = "unknown"
    STILL = "still"  # did not run, or only looked whether it may go on
    SPINNING = "spinning"  # ran all the time, in the same place
    MOVING = "moving"


def motion_of(thread: ThreadStack, wakes: float | None = None) -> Motion:
    """
    Tell what became of a thread.

    Args:
        thread: The thread.

        wakes: How often per second it wakes up at most although nothing
            happens; ``None`` if unknown.

    Returns:
        Whether it moves; unknown if it was looked at only once, or wants a
        processor that it does not get.
    """
    a = thread.activity
    if a is None or a.seconds <= 0:
        has_slept = thread.idle_s is not None and thread.idle_s > _LONG_S
        # The kernel forgets when a thread ran, if that is about to run.
        is_awake = thread.state == "R" or thread.active
        return Motion.STILL if has_slept and not is_awake else Motion.UNKNOWN
    if a.has_left or (a.has_moved and a.has_left is None):
        return Motion.MOVING
    if is_busy(a):
        # Its place was seen once, as the other looks failed.
        if a.has_moved is None and thread.frames:
            return Motion.UNKNOWN
        # In the same functions, but called anew: a recursion, for example.
        return Motion.MOVING if a.has_returned else Motion.SPINNING
    call = thread.system_call.name if thread.system_call else ""
    if call in _WITHOUT_END:
        wakes = 0.0
    is_eager = _is_eager(thread, a)
    if _is_awake(a, wakes) or (is_eager and a.has_returned):
        return Motion.MOVING
    return Motion.UNKNOWN if is_eager else Motion.STILL


def _is_awake(a: ThreadActivity, wakes: float | None) -> bool:
    if wakes is not None and a.voluntary / a.seconds > wakes:
        return True
    return a.voluntary > 0 and a.cpu_s / a.voluntary > _WORK_S


def is_busy(a: ThreadActivity) -> bool:
    """
    Whether a thread wanted the processor all the time.

    On a busy machine it gets less than a processor, but it never waits.

    Args:
        a: What became of it.
    """
    share = cpu_share(a)
    never_waits = a.voluntary <= a.seconds and a.involuntary > 10 * a.seconds
    return share >= _BUSY or (never_waits and share > _QUIET)


def _is_eager(thread: ThreadStack, a: ThreadActivity) -> bool:
    """
    Whether it wants the processor, however little of it it gets: beside one
    other program, the nicest has a seventieth.
    """
    return thread.state == "R" and a.voluntary <= a.seconds


def wakes_per_s(thread: ThreadStack) -> float:
    """
    How often a thread gave up the processor, per second.

    Args:
        thread: The thread; 0 if it was not watched.
    """
    a = thread.activity
    return a.voluntary / a.seconds if a and a.seconds > 0 else 0.0


def cpu_share(a: ThreadActivity | None) -> float:
    """
    Which part of a processor a thread used; 0 if it was not watched.

    Args:
        a: What became of it.
    """
    return a.cpu_s / a.seconds if a and a.seconds > 0 else 0.0


def is_running(thread: ThreadStack) -> bool | None:
    """
    Whether a thread was running on a processor; ``None`` if unknown.

    Args:
        thread: The thread.
    """
    a = thread.activity
    if a is not None:
        if is_busy(a):
            return True
        if cpu_share(a) <= _QUIET:
            # Who was never driven away may have been asleep until now.
            is_starved = a.involuntary > a.voluntary or None
            return is_starved if _is_eager(thread, a) else False
    if thread.system_call is not None and thread.system_call.name != "running":
        return False
    if thread.state:
        return thread.state == "R"
    return thread.active


_CALLS = 16
_RUNS_PYTHON = re.compile(r"^_?PyEval_(EvalFrame|EvalCode|Vector)")
# Functions of Python itself give the lock up before they wait.
_LETS_GO = re.compile(
    r"lock_PyThread_acquire|acquire_timed|PySleep|pysleep|time_sleep|^select_"
    r"|^sock_|^_io_|^os_\w+_impl|^_Py_(read|write|open)|gil_scoped_release"
    r"|PyEval_SaveThread|semlock_acquire|_PySemaphore|PyThread_acquire_lock"
)

# Whoever waits for the lock looks every 5 ms whether it is free; on a busy
# machine less often.
_WAKES = (60.0, 600.0)
_MOST_CPU = 0.2
# Between two waits it may do some work.
_CONVOY = 0.35
_HOG = 0.2
_INTERRUPTED = 100.0
_LITTLE = 0.02
_NO_CALL = frozenset({"", "futex", "running"})

Trouble = tuple[ThreadStack, str, Confidence]


def find_gil_trouble(
    threads: Sequence[ThreadStack],
    main: ThreadStack,
) -> Trouble | None:
    """
    Find out whether one thread keeps the main thread from running.

    Args:
        threads: Those with stacks.

        main: The main thread.

    Returns:
        The thread that holds the lock (or waits for it, if the holder is not
        known), what it is doing as a predicate, and how sure that is.
    """
    owner = _owner(threads)
    waiting = [t for t in threads if t is not owner and wants_gil(t)]
    hog = next((t for t in threads if _hogs(t, main)), None)
    if hog is not None and (main in waiting or _looks_for_it(main, _CONVOY)):
        doing = "does not let go of the lock of the interpreter"
        return hog, _say(hog, doing, [main]), "likely"
    if owner is None:
        return _without_owner(threads, waiting, main)

    is_blocked = _is_blocked(owner)
    if is_blocked and (waiting or _is_sure(owner)):
        doing = "holds the lock of the interpreter while it waits"
        sure = _is_sure(owner) and bool(waiting)
        return owner, _say(owner, doing, waiting), _sure(is_sure=sure)
    if waiting and is_running(owner) is None:
        doing = "holds the lock of the interpreter"
        return owner, _say(owner, doing, waiting), "possible"
    return None


def wants_gil(thread: ThreadStack) -> bool:
    """
    Whether a thread waits for the lock of the interpreter.

    Args:
        thread: The thread.
    """
    if thread.waits_for_gil is not None:
        return thread.waits_for_gil

    call = thread.system_call.name if thread.system_call else ""
    return _is_seen_waiting(thread) or (
        _looks_for_it(thread) and call in _NO_CALL
    )


def _is_seen_waiting(thread: ThreadStack) -> bool:
    frames = thread.native or thread.frames
    return bool(thread.waits_for_gil or wants_gil_by_native_stack(frames))


def _looks_for_it(thread: ThreadStack, most_cpu: float = _MOST_CPU) -> bool:
    """
    Whether a thread wakes up as often as one that waits for the lock.
    """
    low, high = _WAKES
    return (
        low <= wakes_per_s(thread) <= high
        and cpu_share(thread.activity) <= most_cpu
    )


def _owner(threads: Iterable[ThreadStack]) -> ThreadStack | None:
    return next((t for t in threads if t.owns_gil), None)


def _is_blocked(owner: ThreadStack) -> bool:
    """
    Whether the owner waits for something else.
    """
    return is_running(owner) is False and not wants_gil(owner)


def _is_sure(owner: ThreadStack) -> bool:
    """
    Whether it was seen to wait for longer than a moment.
    """
    return motion_of(owner, 0.0) is Motion.STILL


def _hogs(thread: ThreadStack, main: ThreadStack) -> bool:
    """
    Whether a thread runs Python all the time, and the main thread hardly does.
    """
    if thread is main or not any(not f.is_native for f in thread.frames):
        return False
    if thread.activity is None:
        return bool(thread.owns_gil and thread.active)

    a, share = thread.activity, cpu_share(thread.activity)
    # Who is asked for the lock gives it up, and waits for it, too; and who
    # goes from line to line is not in native code.
    runs_python = (
        thread.owns_gil is True
        or wakes_per_s(thread) >= wakes_per_s(main) / 4
        or (a.has_moved is True and a.has_left is False)
    )
    # On a busy machine it gets little, but is interrupted whenever it runs.
    wants_more = a.involuntary >= _INTERRUPTED * a.seconds and share > _LITTLE
    is_greedy = share >= _HOG or wants_more
    return is_greedy and runs_python and share >= 2 * cpu_share(main.activity)


def _without_owner(
    threads: Sequence[ThreadStack],
    waiting: Sequence[ThreadStack],
    main: ThreadStack,
) -> Trouble | None:
    """
    Who holds it, if the tool does not tell?
    """
    # Nobody may hold it: others wake up as often as who waits for it.
    waiting = [t for t in waiting if _is_seen_waiting(t)]
    if not waiting or motion_of(main) is Motion.MOVING:
        return None
    if main in waiting:
        return main, "is waiting for the lock of the interpreter", "likely"

    others = [t for t in threads if t not in waiting and _may_hold(t)]
    if others != [main] or is_running(main):
        return None
    doing = "seems to hold the lock of the interpreter while it waits"
    return main, _say(main, doing, waiting), "possible"


def _may_hold(thread: ThreadStack) -> bool:
    """
    Whether a native stack lets it be that the thread holds the lock.
    """
    natives = [f.name for f in (thread.native or thread.frames)[:200]]
    return any(map(_RUNS_PYTHON.match, natives)) and not any(
        map(_LETS_GO.search, natives[:_CALLS])
    )


def _say(
    owner: ThreadStack, doing: str, waiting: Sequence[ThreadStack]
) -> str:
    name = owner.name or owner.thread_id
    who = (
        f"has a thread ({name}) that {doing}"
        if name
        else f"has a thread that {doing}"
    )
    if owner.is_main:
        who = doing
    if not waiting:
        return who
    many = (
        "another thread waits"
        if len(waiting) == 1
        else (f"{len(waiting)} other threads wait")
    )
    return f"{who} ({many} for it)"


def _sure(*, is_sure: bool) -> Confidence:
    return "certain" if is_sure else "likely"


def _compile(text: str) -> re.Pattern[str]:
    return re.compile(text)


@attrs.frozen(kw_only=True)
class Background:
    """
    One kind of thread.

    Attributes:
        file: Is searched for in the file of a frame.

        function: Has to match the name of that frame, without its class.

        within: How many of the innermost frames to look at.

        unless: If one of the frames matches this, it is at work.
    """

    file: re.Pattern[str] = attrs.field(converter=_compile, default="")
    function: re.Pattern[str] = attrs.field(converter=_compile, default=".*")
    within: int = 1_000_000
    unless: re.Pattern[str] | None = None


_WORKS = re.compile(r".*(runExecute|AsyncWork|evaluate_function|execute).*")

BACKGROUND = (
    Background(
        file=r"concurrent/futures/thread\.py$", function="_worker", within=1
    ),
    Background(file=r"concurrent/futures/process\.py$", function="run"),
    Background(file=r"tqdm/_monitor\.py$"),
    Background(file=r"torch/utils/data/_utils/pin_memory\.py$"),
    Background(file=r"torch/_inductor/compile_worker/"),
    Background(file=r"torch/distributed/elastic/timer/"),
    Background(file=r"multiprocessing/queues\.py$", function="_feed"),
    Background(
        file=r"multiprocessing/pool\.py$",
        function="_?(handle_(workers|tasks|results)|worker|wait_for_updates)",
    ),
    Background(file=r"multiprocessing/resource_sharer\.py$"),
    Background(file=r"logging/handlers\.py$", function="_monitor"),
    Background(file=r"tensorboard/summary/writer/event_file_writer\.py$"),
    Background(file=r"(^|/)wandb/sdk/"),
    Background(file=r"prometheus_client/"),
    Background(file=r"zmq/utils/garbage\.py$"),
    Background(file=r"distdebug/"),
    Background(
        function=r".*watchdog.*|_?heartbeat\w*|.*[Hh]eartbeatMonitor.*"
    ),
    Background(function=r".*ncclCommWatchdog.*|.*workCleanupLoop.*"),
    Background(
        function=r".*StoreDaemon.*|.*StoreMasterDaemon.*|.*BackgroundThread.*"
    ),
    Background(
        function=r"(torch::autograd::)?(ReadyQueue::pop|Engine::thread_main).*",
        unless=_WORKS,
    ),
    Background(function=r"c10d::ProcessGroupGloo::runLoop.*", unless=_WORKS),
    Background(function=r"gloo::transport::\w+::Loop::run.*", unless=_WORKS),
    Background(
        function=r"gomp_thread_start|__kmp_\w+|blas_thread_server|"
        r"ncclProxy(Service|Progress)\w*|ncclAsyncThread\w*"
    ),
)

# Names that only such threads have.
_NAMES = re.compile(
    r"cuda-?\w*|ZMQbg/.*|jemalloc_bg\w*|grpc\w*|event_engine|tqdm.*"
    r"|QueueFeederThread|wandb.*|asyncio_\d+|gloo_tcp_loop|pt_tcpstore\w*"
)
# Names of threads that also work; if nothing is seen of them, they wait.
_SILENT = re.compile(r"pt_(nccl_|autograd|gloo|elastic)\w*")


def is_background(thread: ThreadStack) -> bool:
    """
    Does this thread only wait for work?

    Args:
        thread: Any thread.

    Returns:
        Whether it can be left out where there are many; never for a main
        thread.
    """
    if thread.is_main:
        return False
    if not thread.frames and _NAMES.fullmatch(thread.name):
        return True
    if not thread.frames and not thread.native:
        return _SILENT.fullmatch(thread.name) is not None

    # Python says what a thread is for; the rest says how it waits.
    python = [f for f in thread.frames if not f.is_native]
    frames = [
        (f.filename.replace("\\", "/"), f.name.rpartition(".")[2])
        for f in python or thread.frames or thread.native
    ]
    return any(_fits(kind, frames) for kind in BACKGROUND)


def _fits(kind: Background, frames: list[tuple[str, str]]) -> bool:
    if kind.unless and any(kind.unless.fullmatch(name) for _, name in frames):
        return False
    return any(
        kind.file.search(file) and kind.function.fullmatch(name)
        for file, name in frames[: kind.within]
    )
