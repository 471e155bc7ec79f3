"""
Where does a process write when it is asked where it is?

See :mod:`distdebug.processes.stack_signal`.  The process is not trusted, as we may
be the superuser: no link is followed, and its file must be its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import stat
import sys
import threading
import time

from collections.abc import Callable, Iterator
from types import FrameType
from typing import NamedTuple

import attrs

from ..identity import current_identity
from ..processes import (
    ROOT,
    ProcessState,
    folder_name,
    is_kept,
    is_private,
    list_numbers,
    parse_name,
    parse_stat,
    parse_status,
    read_proc,
    read_state,
)
from ..stacks import ProcessStacks, StackFrame, ThreadStack, parse_faulthandler
from .blockers import enter_namespace, proc_is_foreign, status_of_state
from .model import Attempt, CaptureStatus


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# 100 frames of 1,000 characters are all that a thread ever writes.
_MOST_BYTES = 1 << 20


class NotAskedError(Exception):
    """
    The process cannot be asked.

    Args:
        status: Why.

        detail: The same in words.

        remedy: What to do about it.
    """

    def __init__(
        self, status: CaptureStatus, detail: str, remedy: str
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.remedy = remedy


class Answers(NamedTuple):
    """
    What a process has to say.

    Attributes:
        fd: The file that it writes to, open for us alone.

        signal: Number of the signal that it answers.
    """

    fd: int
    signal: int

    @property
    def size(self) -> int:
        """
        How much it has written, in bytes.
        """
        return os.fstat(self.fd).st_size

    def read(self, start: int) -> str:
        """
        What has it written?

        Args:
            start: From which byte on.
        """
        data = os.pread(self.fd, _MOST_BYTES, start)
        return data.decode("utf-8", "replace")


@contextlib.contextmanager
def open_answers(pid: int, state: ProcessState) -> Iterator[Answers]:
    """
    Find and empty the file that a process writes to; empty it again after.

    Args:
        pid: The process.

        state: What the kernel tells about it.

    Returns:
        The file, and the signal.

    Raises:
        NotAskedError: The process offers nothing, or somebody else is asking.

        OSError: The file cannot be emptied.
    """
    with contextlib.ExitStack() as opened:
        answers = _find(pid, state, opened)
        try:
            fcntl.lockf(answers.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotAskedError(
                CaptureStatus.SKIPPED,
                "somebody else is asking it just now",
                "try again",
            ) from None

        os.ftruncate(answers.fd, 0)
        try:
            yield answers
        finally:
            os.ftruncate(answers.fd, 0)


def _find(
    pid: int, state: ProcessState, opened: contextlib.ExitStack
) -> Answers:
    is_denied = False
    for parent, flags in ((f"/proc/{pid}/root", os.O_NOFOLLOW), ("/", 0)):
        try:
            folder = _open_folder(parent, flags, state.uid, opened)
            names = os.listdir(folder)  # noqa: PTH208 only it takes a number
        except PermissionError:
            is_denied = parent == "/"
            continue
        except OSError:
            continue

        for offer in filter(None, map(parse_name, names)):
            if (offer.pid, offer.start_ticks) == (
                state.pid_inside,
                state.start_ticks,
            ) and signal.SIGRTMIN <= offer.signal <= signal.SIGRTMAX:
                fd = _open_kept(offer.name, folder, state.uid, opened)
                if fd is not None:
                    return Answers(fd, offer.signal)

    if is_denied:
        raise NotAskedError(
            CaptureStatus.OTHER_USER,
            f"it belongs to the user with the number {state.uid}",
            "run as that user, or as root",
        )
    raise NotAskedError(
        CaptureStatus.TOOL_MISSING,
        "it has not offered to tell its stacks",
        "call distdebug.enable_flight_recorder() at the top of its script",
    )


def _open_folder(
    parent: str, flags: int, uid: int, opened: contextlib.ExitStack
) -> int:
    """
    Open the folder of a user; in a container, as the process sees it.

    What a container calls ``/tmp`` may be a link that leads out of it.
    """
    above = _keep(os.open(parent, _FOLDER), opened)
    root = os.open(ROOT.lstrip("/"), _FOLDER | flags, dir_fd=above)
    folder = os.open(
        folder_name(uid),
        _FOLDER | os.O_NOFOLLOW,
        dir_fd=_keep(root, opened),
    )
    _keep(folder, opened)
    if is_private(folder, uid):
        return folder

    msg = "somebody else could have put files there"
    raise OSError(msg)


def _open_kept(
    name: str, folder: int, uid: int, opened: contextlib.ExitStack
) -> int | None:
    try:
        fd = _keep(os.open(name, _FILE, dir_fd=folder), opened)
    except OSError:
        return None

    status = os.fstat(fd)
    is_its_own = (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == uid
        and status.st_nlink == 1
    )
    return fd if is_its_own and is_kept(fd) else None


def _keep(fd: int, opened: contextlib.ExitStack) -> int:
    opened.callback(os.close, fd)
    return fd


# Linux 6.9 and later can hold on to a thread.
_PIDFD_THREAD = os.O_EXCL

_PAUSE_S = 0.0005
_LOOKS = 4


class ThreadSignals(NamedTuple):
    """
    How a thread stands to signals.

    Attributes:
        name: Its name of at most 15 characters.

        letter: Its state, such as ``"S"``.

        pending: Bit *n - 1* is set if signal *n* waits for it.

        blocked: Bit *n - 1* is set if it takes no signal *n* now: always, or
            because it is handling one.
    """

    name: str
    letter: str
    pending: int
    blocked: int


def read_signals(pid: int, thread_id: int) -> ThreadSignals | None:
    """
    How does a thread stand to signals?

    Args:
        pid: The process.

        thread_id: The thread.

    Returns:
        What the kernel tells anybody; ``None`` if the thread is gone.
    """
    path = f"/proc/{pid}/task/{thread_id}/status"
    status = parse_status(read_proc(path))
    try:
        return ThreadSignals(
            status["Name"],
            status["State"][0],
            int(status["SigPnd"], 16),
            int(status["SigBlk"], 16),
        )
    except (KeyError, IndexError, ValueError):
        return None


def knock(
    pid: int, thread_id: int, number: int, check: Callable[[], object]
) -> None:
    """
    Send a signal to one thread.

    Args:
        pid: The process.

        thread_id: The thread.

        number: The signal.

        check: Called last of all; nothing is sent if it raises an error.

    Raises:
        OSError: It may not be sent, or the thread is gone.
    """
    # From here on, no other thread can have this number.
    held = _hold(thread_id)
    try:
        check()
        if held is None:
            _tgkill(pid, thread_id, number)
        else:
            signal.pidfd_send_signal(held, number)
    finally:
        if held is not None:
            os.close(held)


def await_handled(
    pid: int,
    thread_id: int,
    number: int,
    has_written: Callable[[], bool],
    deadline: float,
) -> bool:
    """
    Wait until a thread has handled a signal.

    While its handler runs the kernel blocks the signal.  Between that and the
    time when it was pending is a moment in which it is neither; a thread that
    has nothing to say looks the same, but for longer.

    Args:
        pid: The process.

        thread_id: The thread.

        number: The signal.

        has_written: Whether the handler has begun to write.

        deadline: Until when, by ``time.monotonic()``.

    Returns:
        Whether it is done.
    """
    bit, looks = 1 << (number - 1), 0
    while time.monotonic() < deadline:
        has_begun = has_written()
        thread = read_signals(pid, thread_id)
        if thread is None:
            return True

        if (thread.pending | thread.blocked) & bit:
            looks = 0
        elif has_begun or (looks >= _LOOKS and thread.letter != "R"):
            return True
        looks += 1
        time.sleep(_PAUSE_S)
    return False


def _hold(thread_id: int) -> int | None:
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(thread_id, _PIDFD_THREAD)
    return None


def _tgkill(pid: int, thread_id: int, number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.tgkill(pid, thread_id, number):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


_MOST_THREADS = 512
_MOST_FRAMES = 200


def own_stacks() -> ProcessStacks:
    """
    Where are the Python threads of this process?

    To be called by a thread that watches; it is left out, unless it is the
    main thread.  Nothing is stopped, and no right is needed; but while native
    code holds the interpreter lock, the thread that calls has to wait.

    Returns:
        The threads, the main thread first, 512 at most, with the innermost
        200 frames of each.
    """
    identity = current_identity()
    return ProcessStacks(
        pid=os.getpid(),
        source="python",
        threads=_threads(),
        rank=identity.rank,
        world_size=identity.world_size,
        host=socket.gethostname(),
        command=" ".join(sys.orig_argv),
        parent_pid=os.getppid(),
        taken=time.time(),
    )


def _threads() -> tuple[ThreadStack, ...]:
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sys._current_frames()  # noqa: SLF001 there is no other way
    if own != main:
        del frames[own]
    known = {t.ident: t for t in threading.enumerate()}
    chosen = sorted(frames, key=lambda ident: ident != main)[:_MOST_THREADS]
    return tuple(
        _thread(known.get(ident), frames[ident], is_main=ident == main)
        for ident in chosen
    )


def _thread(
    thread: threading.Thread | None, frame: FrameType, *, is_main: bool
) -> ThreadStack:
    name = thread.name if thread is not None else ""
    return ThreadStack(
        name="MainThread" if is_main else name,
        frames=_stack(frame),
        thread_id=thread.native_id if thread is not None else None,
        is_main=is_main,
    )


def _stack(frame: FrameType | None) -> tuple[StackFrame, ...]:
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    found: list[StackFrame] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        found.append(
            StackFrame(code.co_qualname, code.co_filename, frame.f_lineno or 0)
        )
        frame = frame.f_back
    return tuple(found)


# How long a thread may take to fall asleep, and to answer, in seconds.
_SETTLE_S, _ANSWER_S = 0.05, 1.0
_INSIDE_PAUSE_S = 0.002

# They know no Python, and the job needs them most.
_NATIVE = (
    *("cuda", "gloo", "jemalloc", "nccl", "ucx"),
    *("pt_gloo", "pt_nccl", "pt_tcpstore"),
)


def ask_process(
    pid: int,
    *,
    timeout_s: float = 5.0,
    start_ticks: int | None = None,
    also_running: bool = False,
) -> tuple[tuple[ThreadStack, ...], Attempt]:
    """
    Have the threads of a process tell where they are, one after the other.

    The process must have called
    :func:`~distdebug.flight_recorder.enable.enable_flight_recorder`; then
    everybody can ask who may send it signals.  A process that does not handle
    the signal does not get it.

    What a thread was waiting for goes on as far as the kernel can do that:
    ``sleep()`` of C ends early, as with any signal.

    Args:
        pid: A process of this node.

        timeout_s: How long it may take, in seconds.

        start_ticks: When it started, in clock ticks since boot, if nobody else
            is meant who may have got its number since.

        also_running: Whether to ask also threads that run just now.  A stack
            that changes under the hands of who writes it can end the process:
            it did, 5 times in 146,000, where threads did nothing but compile
            and run new code, and never elsewhere.

    Returns:
        The Python stacks of its threads, the main thread first, and how it
        went.
    """
    start = time.monotonic()
    threads: list[ThreadStack] = []
    try:
        state = _may_be_asked(pid, start_ticks)
        with open_answers(pid, state) as answers:
            talk = _Talk(pid, state, answers, start + timeout_s, threads)
            _ask_all(talk, also_running=also_running)
        attempt = _result(talk)
    except NotAskedError as exc:
        attempt = _attempt(exc.status, exc.detail, exc.remedy)
    except OSError as exc:
        attempt = _attempt(
            CaptureStatus.TOOL_FAILED, f"it could not be asked: {exc}"
        )
    seconds = time.monotonic() - start
    return tuple(threads), attrs.evolve(attempt, seconds=seconds)


@attrs.define
class _Talk:
    pid: int
    state: ProcessState
    answers: Answers
    deadline: float
    threads: list[ThreadStack]
    running: int = 0
    is_late: bool = False
    paused_s: float = 0.0


def _may_be_asked(pid: int, start_ticks: int | None) -> ProcessState:
    if proc_is_foreign():
        raise NotAskedError(
            CaptureStatus.OTHER_NAMESPACE,
            "/proc counts the processes of another PID namespace",
            enter_namespace(pid, 0),
        )
    if pid == os.getpid():
        raise NotAskedError(
            CaptureStatus.SKIPPED, "it is ourselves", "call own_stacks()"
        )

    state = read_state(pid)
    told = status_of_state(state, pid)
    if told is not None and told[0] is CaptureStatus.UNINTERRUPTIBLE:
        is_main = state is not None and pid in state.uninterruptible
        told = told if is_main else None
    if told is not None or state is None:
        status, remedy = told or (CaptureStatus.EXITED, "")
        raise NotAskedError(status, "it could not answer", remedy)
    if start_ticks not in {None, state.start_ticks}:
        raise NotAskedError(
            CaptureStatus.EXITED,
            "another process has its number now",
            "look at its exit status and its log",
        )
    return state


def _ask_all(talk: _Talk, *, also_running: bool) -> None:
    """
    Ask the main thread, then the others, until one does not answer.
    """
    for thread_id in _thread_ids(talk.pid):
        talk.is_late |= time.monotonic() >= talk.deadline
        if talk.is_late:
            break
        thread = _settled(talk, thread_id)
        if thread is None or not _can_answer(thread, talk.answers.signal):
            continue
        if thread.letter == "R" and not also_running:
            talk.running += 1
            continue
        _ask_one(talk, thread_id, thread.letter)


def _thread_ids(pid: int) -> Iterator[int]:
    others = list_numbers(f"/proc/{pid}/task")[:_MOST_THREADS]
    yield pid
    yield from (x for x in others if x != pid)


def _settled(talk: _Talk, thread_id: int) -> ThreadSignals | None:
    """
    A thread that runs may soon wait.
    """
    until = min(time.monotonic() + _SETTLE_S, talk.deadline)
    while True:
        thread = read_signals(talk.pid, thread_id)
        if thread is None or thread.letter != "R":
            return thread
        if time.monotonic() >= until:
            return thread
        time.sleep(_INSIDE_PAUSE_S)


def _can_answer(thread: ThreadSignals, signal: int) -> bool:
    bit = 1 << (signal - 1)
    return (
        thread.letter in "SR"
        and not (thread.pending | thread.blocked) & bit
        and not thread.name.casefold().startswith(_NATIVE)
    )


def _ask_one(talk: _Talk, thread_id: int, letter: str) -> None:
    number, before = talk.answers.signal, talk.answers.size
    start = time.monotonic()
    try:
        knock(talk.pid, thread_id, number, lambda: _check(talk))
    except ProcessLookupError:
        return

    talk.is_late = not await_handled(
        talk.pid,
        thread_id,
        number,
        lambda: talk.answers.size > before,
        min(start + _ANSWER_S, talk.deadline),
    )
    talk.paused_s = max(talk.paused_s, time.monotonic() - start)
    is_main = thread_id == talk.pid
    talk.threads += (
        attrs.evolve(
            thread,
            thread_id=thread_id,
            is_main=is_main,
            name=thread.name or ("MainThread" if is_main else ""),
            state=letter,
        )
        for thread in parse_faulthandler(talk.answers.read(before))
        if thread.frames
    )


def _check(talk: _Talk) -> None:
    """
    Is it the same process, and does it handle the signal, and nobody else?

    Raises:
        NotAskedError: It is not, or does not.
    """
    stat = parse_stat(read_proc(f"/proc/{talk.pid}/stat"))
    status = parse_status(read_proc(f"/proc/{talk.pid}/status"))
    if stat is None or stat.start_ticks != talk.state.start_ticks:
        raise NotAskedError(
            CaptureStatus.EXITED,
            "it has ended meanwhile",
            "look at its exit status and its log",
        )
    if status.get("TracerPid") != "0":
        raise NotAskedError(
            CaptureStatus.TRACED_BY_OTHER,
            "a debugger would get the signal",
            "detach the debugger",
        )
    if not int(status.get("SigCgt", "0"), 16) >> (talk.answers.signal - 1) & 1:
        raise NotAskedError(
            CaptureStatus.TOOL_MISSING,
            f"it no longer handles signal {talk.answers.signal}",
            "call distdebug.enable_flight_recorder() again",
        )


def _result(talk: _Talk) -> Attempt:
    running = f"{talk.running} of its threads run and were not asked"
    if talk.threads:
        notes = [running] if talk.running else []
        if not any(thread.is_main for thread in talk.threads):
            notes.append("its main thread did not answer")
        if talk.is_late:
            notes.append("not all of its threads answered in time")
        attempt = _attempt(CaptureStatus.OK, "; ".join(notes))
    elif talk.is_late:
        attempt = _attempt(
            CaptureStatus.TIMED_OUT,
            "it did not answer in time",
            "try again with a longer timeout_s",
        )
    elif talk.running:
        attempt = _attempt(
            CaptureStatus.SKIPPED,
            running,
            "ask_process(…, also_running=True), or py-spy",
        )
    else:
        attempt = _attempt(
            CaptureStatus.TOOL_FAILED,
            "it had nothing to say, or could not write it",
            "see whether /tmp is full (df /tmp)",
        )
    return attrs.evolve(attempt, paused_s=talk.paused_s)


def _attempt(status: CaptureStatus, detail: str, remedy: str = "") -> Attempt:
    return Attempt(
        tool="faulthandler", status=status, detail=detail, remedy=remedy
    )
