"""
Guard a tool that attaches: end it without leaving the process stopped.

This file is also a program: the parent process of a tool that attaches.  It
outlives its caller, however that is killed, and so can always undo what the
tool did.  It runs by ``python -I -S`` and imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import time

from typing import NamedTuple, NoReturn


# Limit for every file that most tools write.
MAX_BYTES = 1 << 26

_PR_SET_PDEATHSIG = 1
_UNCATCHABLE = {signal.SIGKILL, signal.SIGSTOP}
# On these, a debugger may leave the process stopped, or pass the signal on and
# so end the process.  Only SIGKILL is harmless.
_TERMINATION_SIGNALS = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
}
_STOP_IS_PENDING = 1 << (signal.SIGSTOP - 1)
# A stop requested by the killed tool can arrive after its end.
_LATE_S = 1.0
# A tool in state D ends only when the kernel releases it.
_REAP_S = 5.0
_LINGER_S = 600.0


class TargetState(NamedTuple):
    """
    State of the process that a tool attaches to.

    Attributes:
        ticks: Start time, in clock ticks since boot.

        letter: State of its main thread.

        tracer: PID of the debugger attached to it; 0 if there is none.
    """

    ticks: int
    letter: str
    tracer: int


def read_target_state(pid: int) -> TargetState | None:
    """
    Return the state of a process; ``None`` if there is no such process.
    """
    try:
        # A name may contain anything, also parentheses and blanks.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        status = _read_status(f"/proc/{pid}/status")
        letter, ticks = fields[0].decode(), int(fields[19])
        return TargetState(ticks, letter, int(status.get(b"TracerPid", b"0")))
    except (OSError, IndexError, ValueError):
        return None


def resume(pid: int, before: TargetState, *, watch_s: float) -> bool:
    """
    Send SIGCONT to a process that a tool left stopped.

    Args:
        pid: The process that a tool was attached to.

        before: Its state before that.

        watch_s: How long to wait for stops that arrive late, in seconds.

    Returns:
        Whether SIGCONT was sent.
    """
    if before.letter == "T":
        return False

    resumed, end = False, time.monotonic() + watch_s
    latest = end + _REAP_S
    while True:
        now, state = time.monotonic(), read_target_state(pid)
        if state is None or state.ticks != before.ticks:
            return resumed

        if state.tracer:  # the kernel detaches once the tool has ended
            end = min(latest, max(end, now + _LATE_S))
        elif _is_stopping(pid):
            try:
                os.kill(pid, signal.SIGCONT)
            except OSError:
                return resumed
            resumed, end = True, min(latest, now + _LATE_S)
        if now >= end:
            return resumed

        time.sleep(0.01)


def end_with_parent(
    parent: int, number: signal.Signals = signal.SIGKILL
) -> bool:
    """
    Have the kernel send this process a signal when its parent dies.

    Elsewhere than on Linux, it only looks at the parent.

    Args:
        parent: The PID of the parent.

        number: The signal.

    Returns:
        Whether the parent is still the same.
    """
    import ctypes  # here: modules that import this file do not need it

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def main(argv: list[str]) -> None:
    """
    Run a tool on a process, and print one line about both.

    The caller keeps standard input open as long as it wants the answer.  The
    line on standard output is: exit status or ``-``, seconds for which the
    process could not run, whether it had to be resumed, whether the tool was
    killed, and whether the tool still exists.

    Args:
        argv: PID and start time of the process, time limit of the tool in
            seconds, descriptors of its output files, size limit of each file
            that it writes, and its command line.
    """
    for number in signal.valid_signals() - _UNCATCHABLE:
        signal.signal(number, signal.SIG_IGN)
    # While SIGCHLD is ignored, children cannot be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    pid, ticks, out, err, max_bytes = (int(argv[i]) for i in (0, 1, 3, 4, 5))
    deadline = time.monotonic() + float(argv[2])
    before = read_target_state(pid)
    if before is None or before.ticks != ticks or _is_abandoned(0):
        return

    tool = _start_tool(argv[6:], out, err, max_bytes)
    paused, is_held, killed, status = 0.0, False, True, None
    try:
        paused, is_held, killed = _supervise(tool, pid, before, deadline)
    finally:
        status = _kill_and_reap(tool, killed=killed)
        clean = status is not None and not killed and status >= 0
        watch_s = _LATE_S if not clean else 0.1 if status or is_held else 0.0
        resumed = resume(pid, before, watch_s=watch_s)
        shown = "-" if killed or status is None else status
        flags = int(resumed), int(killed), int(status is None)
        with contextlib.suppress(OSError):
            line = " ".join(map(str, (shown, f"{paused:.4f}", *flags)))
            os.write(1, f"{line}\n".encode())
            os.close(1)
        if status is None:
            _resume_after_exit(tool, pid, before)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 pathlib is slow to import
        return file.read()


def _read_status(path: str) -> dict[bytes, bytes]:
    lines = (line.partition(b":\t") for line in _read(path).splitlines())
    return {name: value.strip() for name, _, value in lines}


def _is_stopping(pid: int) -> bool:
    """
    Return whether a thread is stopped, or has a pending SIGSTOP.
    """
    try:
        with os.scandir(f"/proc/{pid}/task") as folder:
            threads = [entry.name for entry in folder]
    except OSError:
        return False

    for thread in threads:
        with contextlib.suppress(OSError, ValueError):
            status = _read_status(f"/proc/{pid}/task/{thread}/status")
            pending = int(status[b"SigPnd"], 16) | int(status[b"ShdPnd"], 16)
            is_free = status[b"TracerPid"] == b"0"
            is_stopped = status[b"State"].startswith(b"T")
            if is_free and (is_stopped or pending & _STOP_IS_PENDING):
                return True
    return False


def _start_tool(command: list[str], out: int, err: int, max_bytes: int) -> int:
    import ctypes  # noqa: F401 before fork: the tool's process loads nothing

    guard, tool = os.getpid(), os.fork()
    if not tool:
        _exec_tool(command, (out, err), max_bytes, guard)
    with contextlib.suppress(OSError):
        os.setpgid(tool, tool)
    return tool


# Coverage cannot measure what runs between fork and exec.
def _exec_tool(  # pragma: no cover
    command: list[str],
    files: tuple[int, int],
    max_bytes: int,
    guard: int,
) -> NoReturn:
    try:
        os.setpgid(0, 0)
        if not end_with_parent(guard):  # it was killed meanwhile
            os._exit(1)
        for number in signal.valid_signals() - _UNCATCHABLE:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINATION_SIGNALS)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, fd in enumerate((nothing, *files)):
            os.dup2(fd, target)
        for fd in (nothing, *files):
            os.close(fd)
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        if most != resource.RLIM_INFINITY:  # only root may exceed it
            max_bytes = min(max_bytes, most)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.execvp(command[0], command)  # noqa: S606 that is our purpose
    except BaseException as exc:  # noqa: BLE001
        os.write(2, f"{command[0]} cannot be run: {exc}\n".encode())
    os._exit(127)


def _supervise(
    tool: int, pid: int, before: TargetState, deadline: float
) -> tuple[float, bool, bool]:
    paused, was_held, begin = 0.0, False, time.monotonic()
    last = begin
    while True:
        has_ended = _has_ended(tool)
        state, now = read_target_state(pid), time.monotonic()
        is_held = state is not None and (
            bool(state.tracer) or (state.letter == "T" != before.letter)
        )
        # A step counts fully if the process was held at either end of it.
        paused += now - last if is_held or was_held else 0.0
        last, was_held = now, is_held
        if has_ended or now >= deadline:
            return paused, is_held, not has_ended

        step = 0.002 if now - begin < 1 else 0.01
        if _is_abandoned(min(step, max(deadline - now, 0))):
            return paused, is_held, True


def _has_ended(tool: int) -> bool:
    # WNOWAIT: until it is reaped, its process group ID is not reused.
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, tool, flags) is not None


_PARENT = os.getppid()


def _is_abandoned(wait_s: float) -> bool:
    """
    Return whether the caller has ended or no longer wants the answer.
    """
    ended, _, _ = select.select([0], [], [], wait_s)
    return bool(ended) or os.getppid() != _PARENT


def _kill_and_reap(tool: int, *, killed: bool) -> int | None:
    # Also after success, for children of the tool.
    with contextlib.suppress(OSError):
        os.killpg(tool, signal.SIGKILL)
    if killed:
        with contextlib.suppress(OSError):
            os.kill(tool, signal.SIGKILL)
    return _reap(tool, _REAP_S, 0.005)


def _reap(tool: int, timeout_s: float, step_s: float) -> int | None:
    end = time.monotonic() + timeout_s
    while True:
        pid, status = os.waitpid(tool, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(step_s)


def _resume_after_exit(tool: int, pid: int, before: TargetState) -> None:
    if _reap(tool, _LINGER_S, 1.0) is not None:
        resume(pid, before, watch_s=_LATE_S)


if __name__ == "__main__":
    main(sys.argv[1:])
