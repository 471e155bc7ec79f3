"""
Run tools that attach to a process (pystack, gdb, …), and clean up after them.

They run under a guard process (:mod:`distdebug.capture.guard_program`), which
outlives its caller.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from collections.abc import Sequence
from contextlib import suppress
from typing import IO, cast

import attrs

from .._io import scratch_file
from .._proc import stoppable
from ..errors import CaptureError
from ..processes import ENDED_STATES, list_numbers, parse_stat, read_proc
from . import guard_program
from .guard_program import MAX_BYTES, TargetState, read_target_state, resume


# Time for the guard to end a tool and to watch for late stops.
_CLEANING_S = 12.0
_DEBUGGERS = {
    *("cuda-gdb", "gdb", "gdbserver", "lldb", "lldb-server", "ltrace"),
    *("py-spy", "pystack", "rr", "strace"),
}


@attrs.frozen(kw_only=True)
class AttachedOutput:
    """
    Output of a tool that attached to a process, and its effect on that.

    Attributes:
        status: Its exit status, negative if a signal ended it; ``None`` if it
            was killed on timeout, or could not be killed.

        output: Standard output, at most 64 MiB.

        complaint: Standard error.

        seconds: How long it took.

        paused_s: How long the process could not run, at most, in seconds.

        resumed: Whether the process was left stopped, and SIGCONT was sent.

        killed: Whether the tool had to be killed.

        trouble: What could not be cleaned up, or ``""``.
    """

    status: int | None
    output: str
    complaint: str = ""
    seconds: float = 0.0
    paused_s: float = 0.0
    resumed: bool = False
    killed: bool = False
    trouble: str = ""


def run_attached(
    argv: Sequence[str],
    pid: int,
    *,
    timeout_s: float,
    start_ticks: int | None = None,
) -> AttachedOutput:
    """
    Run a tool that attaches to a process, and never leave that stopped.

    This holds if the tool, the guard, or the caller is killed.  Exceptions
    such as KeyboardInterrupt propagate after the cleanup.

    Args:
        argv: The tool and its arguments.

        pid: The process that it attaches to.

        timeout_s: Time limit of the tool, in seconds.  Cleanup may take a few
            seconds more.

        start_ticks: Expected start time, in clock ticks since boot; None
            accepts any process with this PID.

    Raises:
        CaptureError: The process has ended, or must not be attached to.

        OSError: The guard cannot be started.
    """
    before = _check_target(pid, start_ticks)
    begin = time.monotonic()
    with scratch_file() as out, scratch_file() as err:
        files = out.fileno(), err.fileno()
        line, resumed = _run_guard(argv, pid, before, timeout_s, files)
        output, complaint = (_read_guard_text(fd) for fd in files)
    status, paused_s, *flags = line.split() or ("-", "0", "0", "1", "0")
    return AttachedOutput(
        status=None if status == "-" else int(status),
        output=output,
        complaint=complaint,
        seconds=time.monotonic() - begin,
        paused_s=float(paused_s),
        resumed=resumed or flags[0] == "1",
        killed=flags[1] == "1",
        trouble=_find_problem(pid, before, is_left=flags[2] == "1"),
    )


def exclusion_reason(pid: int) -> str:
    """
    Return why no tool may attach to a process, or ``""`` if one may.

    Excluded are this process and its ancestors, which wait for it and would
    stop with it, and debuggers with their targets.
    """
    if pid in ancestors(os.getpid()):
        return f"process {pid} is ourselves, or waits for us"

    state = read_target_state(pid)
    if state is not None and state.tracer:
        return f"process {pid} is traced by process {state.tracer}"
    if pid <= 1 and state is None:
        return f"{pid} is no process"
    if _is_debugger(pid):
        return f"process {pid} is a debugger"
    return ""


def _check_target(pid: int, start_ticks: int | None) -> TargetState:
    before = read_target_state(pid)
    if before is None or (start_ticks or before.ticks) != before.ticks:
        msg = f"process {pid} has ended"
        raise CaptureError(msg, remedy="look at its exit status and its log")
    reason = exclusion_reason(pid)
    if reason:
        msg = f"no tool is attached: {reason}"
        raise CaptureError(msg, remedy="name a process of the job")
    return before


def ancestors(pid: int) -> set[int]:
    """
    Return the PIDs of a process and its ancestors.
    """
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        stat = parse_stat(read_proc(f"/proc/{pid}/stat"))
        pid = stat.parent_pid if stat is not None else 0
    return found


def _is_debugger(pid: int) -> bool:
    stat = parse_stat(read_proc(f"/proc/{pid}/stat"))
    if stat is not None and stat.name in _DEBUGGERS:
        return True
    states = (read_target_state(other) for other in list_numbers("/proc"))
    return any(s is not None and s.tracer == pid for s in states)


def _run_guard(
    argv: Sequence[str],
    pid: int,
    before: TargetState,
    timeout_s: float,
    files: tuple[int, int],
) -> tuple[str, bool]:
    """
    Return the line of the guard, and whether SIGCONT was sent without it.
    """
    line, resumed, limit = "", False, timeout_s + _CLEANING_S
    guard = _start_guard(argv, pid, before, timeout_s, files)
    stdin, stdout = cast(IO[bytes], guard.stdin), cast(IO[bytes], guard.stdout)
    try:
        try:
            with stoppable(stdin.close):
                line = _read_answer(stdout, limit)
        except BaseException:
            stdin.close()  # the guard then kills the tool
            line = _read_answer(stdout, _CLEANING_S)
            raise
    finally:
        stdin.close()
        if not line:
            resumed = _clean_up(guard, pid, before)
        stdout.close()
        with suppress(subprocess.TimeoutExpired):
            # The guard stays while a tool in state D cannot be killed.
            guard.wait(1)
    return line, resumed


def _start_guard(
    argv: Sequence[str],
    pid: int,
    before: TargetState,
    timeout_s: float,
    files: tuple[int, int],
) -> subprocess.Popen[bytes]:
    numbers = (pid, before.ticks, timeout_s, *files)
    program = [sys.executable, "-I", "-S", guard_program.__file__]
    environ = {**os.environ, "LC_ALL": "C.UTF-8"}
    # Tools would download symbols while the process is stopped.
    environ.pop("DEBUGINFOD_URLS", None)
    return subprocess.Popen(
        [*program, *map(str, numbers), *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=files,
        env=environ,
        start_new_session=True,
    )


def _read_answer(stdout: IO[bytes], limit_s: float) -> str:
    """
    Return the line of the guard; empty if it timed out or was killed.
    """
    fd, end, line = stdout.fileno(), time.monotonic() + limit_s, b""
    poll = select.poll()  # unlike select, it accepts descriptors above 1023
    poll.register(fd, select.POLLIN)
    while not line.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return ""
        chunk = os.read(fd, 256)
        if not chunk:
            return ""
        line += chunk
    return line.decode()


def _clean_up(
    guard: subprocess.Popen[bytes], pid: int, before: TargetState
) -> bool:
    # Until the guard is reaped, its PID and session ID are not reused: all
    # processes of the session are its children.
    end = time.monotonic() + _CLEANING_S / 2
    guard.kill()
    while _kill_session(guard.pid) and time.monotonic() < end:
        time.sleep(0.01)
    return resume(pid, before, watch_s=1.0)


def _kill_session(session: int) -> bool:
    """
    Kill all processes of a session; return whether there were any.
    """
    found = False
    for pid in list_numbers("/proc"):
        stat = parse_stat(read_proc(f"/proc/{pid}/stat"))
        if stat is not None and not stat.has_ended:
            with suppress(OSError):
                if os.getsid(pid) == session:
                    os.kill(pid, signal.SIGKILL)
                    found = True
    return found


def _find_problem(pid: int, before: TargetState, *, is_left: bool) -> str:
    if is_left:
        return "the tool waits inside the kernel and could not be ended yet"
    after = read_target_state(pid)
    if (
        after is None
        or after.ticks != before.ticks
        or after.letter in ENDED_STATES
    ):
        return f"process {pid} ended meanwhile"
    if after.letter == "T" != before.letter:
        return f"process {pid} is stopped: kill -CONT {pid}"
    return ""


def _read_guard_text(fd: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read(MAX_BYTES).decode("utf-8", "replace")
