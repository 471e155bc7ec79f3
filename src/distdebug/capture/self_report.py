"""
Read Python stacks of another process by signal.

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
import stat
import time

from collections.abc import Iterator
from typing import NamedTuple

import attrs

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
from ..stacks import ThreadStack, parse_stacks
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
        args: Status, detail, and remedy, as of an `Attempt`.
    """


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
    def bit(self) -> int:
        """
        The signal as a bit of the masks in ``/proc``.
        """
        return 1 << (self.signal - 1)

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
                "another process is asking it right now",
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
    owner, is_denied = (state.pid_inside, state.start_ticks), False
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
            is_own = (offer.pid, offer.start_ticks) == owner
            if is_own and signal.SIGRTMIN <= offer.signal <= signal.SIGRTMAX:
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
        "it does not offer its stacks",
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
    root, name = OFFERS_ROOT.lstrip("/"), offer_folder_name(uid)
    folder = _open(parent, _FOLDER_FLAGS, None, opened)
    folder = _open(root, _FOLDER_FLAGS | flags, folder, opened)
    folder = _open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, folder, opened)
    if is_private(folder, uid):
        return folder

    msg = "another user could have put files there"
    raise OSError(msg)


def _open_locked_file(
    name: str, folder: int, uid: int, opened: contextlib.ExitStack
) -> int | None:
    try:
        fd = _open(name, _FILE_FLAGS, folder, opened)
    except OSError:
        return None

    status = os.fstat(fd)
    is_its_own = (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == uid
        and status.st_nlink == 1
    )
    return fd if is_its_own and is_offer_locked(fd) else None


def _open(
    name: str, flags: int, folder: int | None, opened: contextlib.ExitStack
) -> int:
    fd = os.open(name, flags, dir_fd=folder)
    opened.callback(os.close, fd)
    return fd


# PIDFD_THREAD, since Linux 6.9.
_PIDFD_THREAD = os.O_EXCL

_POLL_S = 0.0005
_IDLE_SAMPLES = 4


class _ThreadSignals(NamedTuple):
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


def _read_signals(pid: int, thread_id: int) -> _ThreadSignals | None:
    """
    Return pending and blocked signals of a thread; ``None`` if it has ended.
    """
    path = f"/proc/{pid}/task/{thread_id}/status"
    status = parse_status(read_proc(path))
    try:
        masks = (int(status[name], 16) for name in ("SigPnd", "SigBlk"))
        return _ThreadSignals(status["Name"], status["State"][0], *masks)
    except (KeyError, IndexError, ValueError):
        return None


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
            request.ask(also_running=also_running)
        attempt = request.summarize()
    except SelfReportError as exc:
        attempt = _make_attempt(*exc.args)
    except OSError as exc:
        attempt = _make_attempt(
            CaptureStatus.TOOL_FAILED, f"it could not be asked: {exc}"
        )
    seconds = time.monotonic() - start
    return tuple(threads), attrs.evolve(attempt, seconds=seconds)


def _check_target(pid: int, start_ticks: int | None) -> ProcessState:
    if is_proc_foreign():
        raise SelfReportError(
            CaptureStatus.OTHER_NAMESPACE,
            "/proc counts the processes of another PID namespace",
            namespace_remedy(pid, 0),
        )
    if pid == os.getpid():
        raise SelfReportError(
            CaptureStatus.SKIPPED,
            "it is ourselves",
            "call faulthandler.dump_traceback()",
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


@attrs.define
class _Request:
    """
    A request for the stacks of a process, one thread after the other.

    Attributes:
        deadline: Time limit, by ``time.monotonic()``.

        threads: The stacks so far.

        asked: Number of threads that were sent the signal.

        running: Number of threads that run and were not asked.

        is_late: Whether the time is over, or a thread did not answer.

        paused_s: How long a thread was kept from its work, at most.
    """

    pid: int
    state: ProcessState
    report: ReportFile
    deadline: float
    threads: list[ThreadStack]
    asked: int = 0
    running: int = 0
    is_late: bool = False
    paused_s: float = 0.0

    def ask(self, *, also_running: bool) -> None:
        """
        Ask the main thread, then others, until one does not answer.
        """
        others = list_numbers(f"/proc/{self.pid}/task")[:_MAX_THREADS]
        for thread_id in dict.fromkeys((self.pid, *others)):
            self.is_late |= time.monotonic() >= self.deadline
            if self.is_late:
                break
            thread = self._wait_until_idle(thread_id)
            if thread is None or not self._can_answer(thread):
                continue
            if thread.letter == "R" and not also_running:
                self.running += 1
                continue
            self._ask_thread(thread_id, thread.letter)

    def _wait_until_idle(self, thread_id: int) -> _ThreadSignals | None:
        """
        Wait briefly until a thread is no longer running.
        """
        until = min(time.monotonic() + _SETTLE_S, self.deadline)
        while True:
            thread = _read_signals(self.pid, thread_id)
            is_idle = thread is None or thread.letter != "R"
            if is_idle or time.monotonic() >= until:
                return thread
            time.sleep(_SETTLE_POLL_S)

    def _can_answer(self, thread: _ThreadSignals) -> bool:
        return (
            thread.letter in "SR"
            and not (thread.pending | thread.blocked) & self.report.bit
            and not thread.name.casefold().startswith(_NATIVE_THREADS)
        )

    def _ask_thread(self, thread_id: int, letter: str) -> None:
        before, start = self.report.size, time.monotonic()
        try:
            self._signal(thread_id)
        except ProcessLookupError:
            return

        self.asked += 1
        until = min(start + _ANSWER_S, self.deadline)
        self.is_late = not self._wait_until_handled(thread_id, before, until)
        self.paused_s = max(self.paused_s, time.monotonic() - start)
        is_main = thread_id == self.pid
        self.threads += (
            attrs.evolve(
                thread,
                thread_id=thread_id,
                is_main=is_main,
                name=thread.name or ("MainThread" if is_main else ""),
                state=letter,
            )
            for thread in parse_report(self.report.read(before))
        )

    def _signal(self, thread_id: int) -> None:
        """
        Send the signal to one thread, if the process is still the same.

        Raises:
            OSError: It may not be sent, or the thread has ended.
        """
        # The pidfd keeps the thread ID from being reused.
        pidfd = _open_pidfd(thread_id)
        try:
            self._check_unchanged()
            if pidfd is None:
                _tgkill(self.pid, thread_id, self.report.signal)
            else:
                signal.pidfd_send_signal(pidfd, self.report.signal)
        finally:
            if pidfd is not None:
                os.close(pidfd)

    def _check_unchanged(self) -> None:
        """
        Check that the same process still handles the signal, without a
        debugger.
        """
        stat = parse_stat(read_proc(f"/proc/{self.pid}/stat"))
        status = parse_status(read_proc(f"/proc/{self.pid}/status"))
        if stat is None or stat.start_ticks != self.state.start_ticks:
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
        if not int(status.get("SigCgt", "0"), 16) & self.report.bit:
            raise SelfReportError(
                CaptureStatus.TOOL_MISSING,
                f"it no longer handles signal {self.report.signal}",
                "call distdebug.enable_flight_recorder() again",
            )

    def _wait_until_handled(
        self, thread_id: int, before: int, until: float
    ) -> bool:
        """
        Wait until a thread has handled the signal; return whether it has.

        The kernel blocks the signal while its handler runs.  Between pending
        and blocked there is a moment in which it is neither.  A handler that
        writes nothing looks the same, but for longer.

        Args:
            before: Size of the report before the handler wrote to it.

            until: Time limit, by ``time.monotonic()``.
        """
        samples = 0
        while time.monotonic() < until:
            has_begun = self.report.size > before
            thread = _read_signals(self.pid, thread_id)
            if thread is None:
                return True

            is_quiet = samples >= _IDLE_SAMPLES and thread.letter != "R"
            if (thread.pending | thread.blocked) & self.report.bit:
                samples = 0
            elif has_begun or is_quiet:
                return True
            samples += 1
            time.sleep(_POLL_S)
        return False

    def summarize(self) -> Attempt:
        """
        Say how it went.
        """
        running = f"{self.running} of its threads run and were not asked"
        if self.threads:
            is_main_there = any(thread.is_main for thread in self.threads)
            notes = {
                running: self.running,
                "its main thread did not answer": not is_main_there,
                "not all of its threads answered in time": self.is_late,
            }
            detail = "; ".join(text for text, holds in notes.items() if holds)
            attempt = _make_attempt(CaptureStatus.OK, detail)
        elif self.is_late:
            attempt = _make_attempt(
                CaptureStatus.TIMED_OUT,
                "it did not answer in time",
                "try again with a longer timeout_s",
            )
        elif self.running:
            attempt = _make_attempt(
                CaptureStatus.SKIPPED,
                running,
                "ask_process(…, also_running=True), or py-spy",
            )
        elif not self.asked:
            attempt = _make_attempt(
                CaptureStatus.TOOL_FAILED,
                "none of its threads takes the signal that asks for stacks",
                "use py-spy, or ask again: they may have blocked it for now",
            )
        else:
            attempt = _make_attempt(
                CaptureStatus.TOOL_FAILED,
                "it had nothing to say, or could not write it",
                "see whether /tmp is full (df /tmp)",
            )
        return attrs.evolve(attempt, paused_s=self.paused_s)


def parse_report(text: str) -> list[ThreadStack]:
    """
    Return the thread that a report shows: the last one, or none.

    There are several if another program has sent the signal, too.
    """
    try:
        threads = parse_stacks(text)[-1].threads
    except ValueError:
        return []
    return [t for t in threads if t.frames][-1:]


def _make_attempt(
    status: CaptureStatus, detail: str, remedy: str = ""
) -> Attempt:
    return Attempt(
        tool="faulthandler", status=status, detail=detail, remedy=remedy
    )
