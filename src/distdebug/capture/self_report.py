"""
Read Python stacks of another process by signal, or those of this process.

The file and the signal are described in
:mod:`distdebug.processes.stack_signal`.  The process is not trusted, as this
may run as root: no link is followed, and the file must belong to the process.
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
    OFFERS_ROOT,
    ProcessState,
    is_offer_locked,
    is_private,
    list_numbers,
    offer_folder_name,
    parse_offer_name,
    parse_stat,
    parse_status,
    read_proc,
    read_state,
)
from ..stacks import ProcessStacks, StackFrame, ThreadStack, parse_faulthandler
from .blockers import explain_state, is_proc_foreign, namespace_remedy
from .model import Attempt, CaptureStatus


_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# faulthandler writes at most 100 frames of 1,000 characters per thread.
_MAX_BYTES = 1 << 20


class SelfReportError(Exception):
    """
    The process cannot report its stacks.

    Args:
        status: The reason.

        detail: The same as text.

        remedy: What to do about it.
    """

    def __init__(
        self, status: CaptureStatus, detail: str, remedy: str
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.remedy = remedy


class ReportFile(NamedTuple):
    """
    File that a process writes its stacks to on a signal.

    Attributes:
        fd: Descriptor of the file.

        signal: Number of the signal.
    """

    fd: int
    signal: int

    @property
    def size(self) -> int:
        """
        Bytes written so far.
        """
        return os.fstat(self.fd).st_size

    def read(self, start: int) -> str:
        """
        Return the text from a byte offset on.
        """
        data = os.pread(self.fd, _MAX_BYTES, start)
        return data.decode("utf-8", "replace")


@contextlib.contextmanager
def open_report_file(pid: int, state: ProcessState) -> Iterator[ReportFile]:
    """
    Open, lock, and empty the report file of a process; empty it again at exit.

    Raises:
        SelfReportError: The process offers none, or another collector uses it.

        OSError: The file cannot be emptied.
    """
    with contextlib.ExitStack() as opened:
        report = _find_report_file(pid, state, opened)
        try:
            fcntl.lockf(report.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SelfReportError(
                CaptureStatus.SKIPPED,
                "somebody else is asking it just now",
                "try again",
            ) from None

        os.ftruncate(report.fd, 0)
        try:
            yield report
        finally:
            os.ftruncate(report.fd, 0)


def _find_report_file(
    pid: int, state: ProcessState, opened: contextlib.ExitStack
) -> ReportFile:
    is_denied = False
    for parent, flags in ((f"/proc/{pid}/root", os.O_NOFOLLOW), ("/", 0)):
        try:
            folder = _open_folder(parent, flags, state.uid, opened)
            names = os.listdir(folder)  # noqa: PTH208 pathlib takes no descriptor
        except PermissionError:
            is_denied = parent == "/"
            continue
        except OSError:
            continue

        for offer in filter(None, map(parse_offer_name, names)):
            if (offer.pid, offer.start_ticks) == (
                state.pid_inside,
                state.start_ticks,
            ) and signal.SIGRTMIN <= offer.signal <= signal.SIGRTMAX:
                fd = _open_locked_file(offer.name, folder, state.uid, opened)
                if fd is not None:
                    return ReportFile(fd, offer.signal)

    if is_denied:
        raise SelfReportError(
            CaptureStatus.OTHER_USER,
            f"it belongs to the user with the number {state.uid}",
            "run as that user, or as root",
        )
    raise SelfReportError(
        CaptureStatus.TOOL_MISSING,
        "it has not offered to tell its stacks",
        "call distdebug.enable_flight_recorder() at the top of its script",
    )


def _open_folder(
    parent: str, flags: int, uid: int, opened: contextlib.ExitStack
) -> int:
    """
    Open the folder of a user, as seen from inside the container of the
    process.

    ``/tmp`` of a container may be a link that leads out of it.
    """
    above = _close_later(os.open(parent, _FOLDER_FLAGS), opened)
    root = os.open(
        OFFERS_ROOT.lstrip("/"), _FOLDER_FLAGS | flags, dir_fd=above
    )
    folder = os.open(
        offer_folder_name(uid),
        _FOLDER_FLAGS | os.O_NOFOLLOW,
        dir_fd=_close_later(root, opened),
    )
    _close_later(folder, opened)
    if is_private(folder, uid):
        return folder

    msg = "somebody else could have put files there"
    raise OSError(msg)


def _open_locked_file(
    name: str, folder: int, uid: int, opened: contextlib.ExitStack
) -> int | None:
    try:
        fd = _close_later(os.open(name, _FILE_FLAGS, dir_fd=folder), opened)
    except OSError:
        return None

    status = os.fstat(fd)
    is_its_own = (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == uid
        and status.st_nlink == 1
    )
    return fd if is_its_own and is_offer_locked(fd) else None


def _close_later(fd: int, opened: contextlib.ExitStack) -> int:
    opened.callback(os.close, fd)
    return fd


# PIDFD_THREAD, since Linux 6.9.
_PIDFD_THREAD = os.O_EXCL

_POLL_S = 0.0005
_IDLE_SAMPLES = 4


class ThreadSignals(NamedTuple):
    """
    Pending and blocked signals of a thread.

    Attributes:
        name: Its name of at most 15 characters.

        letter: Its state, such as ``"S"``.

        pending: Bit *n - 1* is set if signal *n* is pending for the thread.

        blocked: Bit *n - 1* is set if signal *n* is blocked: always, or while
            its handler runs.
    """

    name: str
    letter: str
    pending: int
    blocked: int


def read_signals(pid: int, thread_id: int) -> ThreadSignals | None:
    """
    Return pending and blocked signals of a thread; ``None`` if it has ended.
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


def signal_thread(
    pid: int, thread_id: int, number: int, check: Callable[[], object]
) -> None:
    """
    Send a signal to one thread.

    Args:
        number: The signal.

        check: Called just before; nothing is sent if it raises.

    Raises:
        OSError: It may not be sent, or the thread has ended.
    """
    # The pidfd keeps the thread ID from being reused.
    pidfd = _open_pidfd(thread_id)
    try:
        check()
        if pidfd is None:
            _tgkill(pid, thread_id, number)
        else:
            signal.pidfd_send_signal(pidfd, number)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def wait_until_handled(
    pid: int,
    thread_id: int,
    number: int,
    has_written: Callable[[], bool],
    deadline: float,
) -> bool:
    """
    Wait until a thread has handled a signal.

    The kernel blocks the signal while its handler runs.  Between pending and
    blocked there is a moment in which it is neither.  A handler that writes
    nothing looks the same, but for longer.

    Args:
        number: The signal.

        has_written: Return whether the handler has begun to write.

        deadline: Time limit, by ``time.monotonic()``.

    Returns:
        Whether the signal was handled in time.
    """
    bit, samples = 1 << (number - 1), 0
    while time.monotonic() < deadline:
        has_begun = has_written()
        thread = read_signals(pid, thread_id)
        if thread is None:
            return True

        if (thread.pending | thread.blocked) & bit:
            samples = 0
        elif has_begun or (samples >= _IDLE_SAMPLES and thread.letter != "R"):
            return True
        samples += 1
        time.sleep(_POLL_S)
    return False


def _open_pidfd(thread_id: int) -> int | None:
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(thread_id, _PIDFD_THREAD)
    return None


def _tgkill(pid: int, thread_id: int, number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.tgkill(pid, thread_id, number):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


_MAX_THREADS = 512
_MAX_FRAMES = 200


def own_stacks() -> ProcessStacks:
    """
    Return the Python stacks of this process.

    The calling thread is left out unless it is the main thread.  Nothing is
    stopped, and no permission is needed; but the caller waits while native
    code holds the GIL.

    Returns:
        At most 512 threads, the main thread first, with the innermost 200
        frames of each.
    """
    identity = current_identity()
    return ProcessStacks(
        pid=os.getpid(),
        source="python",
        threads=_own_threads(),
        rank=identity.rank,
        world_size=identity.world_size,
        host=socket.gethostname(),
        command=" ".join(sys.orig_argv),
        parent_pid=os.getppid(),
        taken=time.time(),
    )


def _own_threads() -> tuple[ThreadStack, ...]:
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sys._current_frames()  # noqa: SLF001 there is no other way
    if own != main:
        del frames[own]
    known = {t.ident: t for t in threading.enumerate()}
    chosen = sorted(frames, key=lambda ident: ident != main)[:_MAX_THREADS]
    return tuple(
        _describe_thread(
            known.get(ident), frames[ident], is_main=ident == main
        )
        for ident in chosen
    )


def _describe_thread(
    thread: threading.Thread | None, frame: FrameType, *, is_main: bool
) -> ThreadStack:
    name = thread.name if thread is not None else ""
    return ThreadStack(
        name="MainThread" if is_main else name,
        frames=_own_frames(frame),
        thread_id=thread.native_id if thread is not None else None,
        is_main=is_main,
    )


def _own_frames(frame: FrameType | None) -> tuple[StackFrame, ...]:
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    found: list[StackFrame] = []
    while frame is not None and len(found) < _MAX_FRAMES:
        code = frame.f_code
        found.append(
            StackFrame(code.co_qualname, code.co_filename, frame.f_lineno or 0)
        )
        frame = frame.f_back
    return tuple(found)


# Time limits for a thread to leave state R, and to answer, in seconds.
_SETTLE_S, _ANSWER_S = 0.05, 1.0
_SETTLE_POLL_S = 0.002

# Threads without Python stack that the job depends on.
_NATIVE_THREADS = (
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
    Request the stacks of a process: signal its threads, one after the other.

    The process must have called
    :func:`~distdebug.flight_recorder.enable.enable_flight_recorder`; then
    every user who may send it signals can request them.  A process that does
    not handle the signal does not get it.

    Interrupted system calls are restarted as far as the kernel can do that:
    ``sleep()`` of C ends early, as with any signal.

    Args:
        pid: A process of this node.

        timeout_s: Time limit, in seconds.

        start_ticks: Expected start time, in clock ticks since boot; None
            accepts any process with this PID.

        also_running: Also signal threads that are running.  A stack that
            changes while its thread writes it can crash the process: it did 5
            times in 146,000, where threads did nothing but compile and run new
            code, and never elsewhere.

    Returns:
        The Python stacks of its threads, the main thread first, and how it
        went.
    """
    start = time.monotonic()
    threads: list[ThreadStack] = []
    try:
        state = _check_target(pid, start_ticks)
        with open_report_file(pid, state) as report:
            request = _Request(pid, state, report, start + timeout_s, threads)
            _ask_threads(request, also_running=also_running)
        attempt = _summarize(request)
    except SelfReportError as exc:
        attempt = _make_attempt(exc.status, exc.detail, exc.remedy)
    except OSError as exc:
        attempt = _make_attempt(
            CaptureStatus.TOOL_FAILED, f"it could not be asked: {exc}"
        )
    seconds = time.monotonic() - start
    return tuple(threads), attrs.evolve(attempt, seconds=seconds)


@attrs.define
class _Request:
    pid: int
    state: ProcessState
    report: ReportFile
    deadline: float
    threads: list[ThreadStack]
    running: int = 0
    is_late: bool = False
    paused_s: float = 0.0


def _check_target(pid: int, start_ticks: int | None) -> ProcessState:
    if is_proc_foreign():
        raise SelfReportError(
            CaptureStatus.OTHER_NAMESPACE,
            "/proc counts the processes of another PID namespace",
            namespace_remedy(pid, 0),
        )
    if pid == os.getpid():
        raise SelfReportError(
            CaptureStatus.SKIPPED, "it is ourselves", "call own_stacks()"
        )

    state = read_state(pid)
    blocker = explain_state(state, pid)
    if blocker is not None and blocker[0] is CaptureStatus.UNINTERRUPTIBLE:
        is_main = state is not None and pid in state.uninterruptible
        blocker = blocker if is_main else None
    if blocker is not None or state is None:
        status, remedy = blocker or (CaptureStatus.EXITED, "")
        raise SelfReportError(status, "it could not answer", remedy)
    if start_ticks not in {None, state.start_ticks}:
        raise SelfReportError(
            CaptureStatus.EXITED,
            "another process has its number now",
            "look at its exit status and its log",
        )
    return state


def _ask_threads(request: _Request, *, also_running: bool) -> None:
    """
    Request the main thread's stack, then others, until one does not answer.
    """
    for thread_id in _thread_ids(request.pid):
        request.is_late |= time.monotonic() >= request.deadline
        if request.is_late:
            break
        thread = _wait_until_idle(request, thread_id)
        if thread is None or not _can_answer(thread, request.report.signal):
            continue
        if thread.letter == "R" and not also_running:
            request.running += 1
            continue
        _ask_thread(request, thread_id, thread.letter)


def _thread_ids(pid: int) -> Iterator[int]:
    others = list_numbers(f"/proc/{pid}/task")[:_MAX_THREADS]
    yield pid
    yield from (x for x in others if x != pid)


def _wait_until_idle(
    request: _Request, thread_id: int
) -> ThreadSignals | None:
    """
    Wait briefly until a thread is no longer running.
    """
    until = min(time.monotonic() + _SETTLE_S, request.deadline)
    while True:
        thread = read_signals(request.pid, thread_id)
        if thread is None or thread.letter != "R":
            return thread
        if time.monotonic() >= until:
            return thread
        time.sleep(_SETTLE_POLL_S)


def _can_answer(thread: ThreadSignals, signal: int) -> bool:
    bit = 1 << (signal - 1)
    return (
        thread.letter in "SR"
        and not (thread.pending | thread.blocked) & bit
        and not thread.name.casefold().startswith(_NATIVE_THREADS)
    )


def _ask_thread(request: _Request, thread_id: int, letter: str) -> None:
    number, before = request.report.signal, request.report.size
    start = time.monotonic()
    try:
        signal_thread(
            request.pid, thread_id, number, lambda: _check_unchanged(request)
        )
    except ProcessLookupError:
        return

    request.is_late = not wait_until_handled(
        request.pid,
        thread_id,
        number,
        lambda: request.report.size > before,
        min(start + _ANSWER_S, request.deadline),
    )
    request.paused_s = max(request.paused_s, time.monotonic() - start)
    is_main = thread_id == request.pid
    request.threads += (
        attrs.evolve(
            thread,
            thread_id=thread_id,
            is_main=is_main,
            name=thread.name or ("MainThread" if is_main else ""),
            state=letter,
        )
        for thread in parse_faulthandler(request.report.read(before))
        if thread.frames
    )


def _check_unchanged(request: _Request) -> None:
    """
    Check that the same process still handles the signal, without a debugger.
    """
    stat = parse_stat(read_proc(f"/proc/{request.pid}/stat"))
    status = parse_status(read_proc(f"/proc/{request.pid}/status"))
    if stat is None or stat.start_ticks != request.state.start_ticks:
        raise SelfReportError(
            CaptureStatus.EXITED,
            "it has ended meanwhile",
            "look at its exit status and its log",
        )
    if status.get("TracerPid") != "0":
        raise SelfReportError(
            CaptureStatus.TRACED_BY_OTHER,
            "a debugger would get the signal",
            "detach the debugger",
        )
    if (
        not int(status.get("SigCgt", "0"), 16) >> (request.report.signal - 1)
        & 1
    ):
        raise SelfReportError(
            CaptureStatus.TOOL_MISSING,
            f"it no longer handles signal {request.report.signal}",
            "call distdebug.enable_flight_recorder() again",
        )


def _summarize(request: _Request) -> Attempt:
    running = f"{request.running} of its threads run and were not asked"
    if request.threads:
        notes = [running] if request.running else []
        if not any(thread.is_main for thread in request.threads):
            notes.append("its main thread did not answer")
        if request.is_late:
            notes.append("not all of its threads answered in time")
        attempt = _make_attempt(CaptureStatus.OK, "; ".join(notes))
    elif request.is_late:
        attempt = _make_attempt(
            CaptureStatus.TIMED_OUT,
            "it did not answer in time",
            "try again with a longer timeout_s",
        )
    elif request.running:
        attempt = _make_attempt(
            CaptureStatus.SKIPPED,
            running,
            "ask_process(…, also_running=True), or py-spy",
        )
    else:
        attempt = _make_attempt(
            CaptureStatus.TOOL_FAILED,
            "it had nothing to say, or could not write it",
            "see whether /tmp is full (df /tmp)",
        )
    return attrs.evolve(attempt, paused_s=request.paused_s)


def _make_attempt(
    status: CaptureStatus, detail: str, remedy: str = ""
) -> Attempt:
    return Attempt(
        tool="faulthandler", status=status, detail=detail, remedy=remedy
    )
