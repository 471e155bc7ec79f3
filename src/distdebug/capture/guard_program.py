"""
How is a debugger ended without harm to the process it is attached to?

This file is also a program: the parent of a tool that attaches.  It outlives
whoever asked for the tool, however they are killed, and so can always undo
what the tool did.  Run by ``python -I -S``, it knows the standard library
alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import time

from collections.abc import Callable
from typing import NamedTuple, NoReturn


# Bounds what a tool can write, also to a disk.
MOST_BYTES = 1 << 26

_PR_SET_PDEATHSIG = 1
_UNSTOPPABLE = {signal.SIGKILL, signal.SIGSTOP}
# A debugger that is asked to end may leave the process stopped, or hand the
# request on to it, which ends it.  Only a kill is harmless.
_POLITE = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
_STOP_IS_PENDING = 1 << (signal.SIGSTOP - 1)
# A stop that the killed tool had asked for can arrive after its end.
_LATE_S = 1.0
# A tool that waits inside the kernel cannot be ended before that is over.
_REAP_S = 5.0
_LINGER_S = 600.0


class Sight(NamedTuple):
    """
    How a process looks from outside.

    Attributes:
        ticks: When it started, in clock ticks since boot.

        letter: State of its main thread.

        tracer: The debugger attached to it; 0 if there is none.
    """

    ticks: int
    letter: str
    tracer: int


def sight_of(pid: int) -> Sight | None:
    """
    How does this process look?

    Args:
        pid: A process of this node.

    Returns:
        Its looks; ``None`` if there is no such process.
    """
    try:
        # A name may contain anything, also parentheses and blanks.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        status = _status_of(f"/proc/{pid}/status")
        letter, ticks = fields[0].decode(), int(fields[19])
        return Sight(ticks, letter, int(status.get(b"TracerPid", b"0")))
    except (OSError, IndexError, ValueError):
        return None


def resume(pid: int, before: Sight, *, watch_s: float) -> bool:
    """
    Was the process left stopped, and could that be undone?

    Args:
        pid: The process that a tool was attached to.

        before: How it looked before.

        watch_s: How long to wait for stops that arrive late, in seconds.

    Returns:
        Whether it had to be sent SIGCONT.
    """
    resumed, end = False, time.monotonic() + watch_s
    patience = end + _REAP_S
    while True:
        now, seen = time.monotonic(), sight_of(pid)
        if seen is None or seen.ticks != before.ticks or before.letter == "T":
            return resumed

        if seen.tracer:  # the kernel detaches when the tool is quite gone
            end = min(patience, max(end, now + _LATE_S))
        elif _is_stopping(pid):
            try:
                os.kill(pid, signal.SIGCONT)
            except OSError:
                return resumed
            resumed, end = True, min(patience, now + _LATE_S)
        if now >= end:
            return resumed

        time.sleep(0.01)


def main(argv: list[str]) -> None:
    """
    What does the tool print, and what did it do to the process?

    Standard input stays open as long as the answer is wanted.  Standard
    output gets one line: exit status or ``-``, seconds for which the process
    could not run, whether it had to be resumed, whether the tool was killed,
    and whether it is still there.

    Args:
        argv: Number and start of the process, seconds for the tool, its two
            files, and its command line.
    """
    for number in signal.valid_signals() - _UNSTOPPABLE:
        signal.signal(number, signal.SIG_IGN)
    # Children whose end is ignored cannot be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    pid, ticks, out, err = (int(argv[i]) for i in (0, 1, 3, 4))
    deadline = time.monotonic() + float(argv[2])
    before = sight_of(pid)
    if before is None or before.ticks != ticks or _is_alone(0):
        return

    tool = _start(argv[5:], out, err)
    paused, is_held, killed, status = 0.0, False, True, None
    try:
        paused, is_held, killed = _watch(tool, pid, before, deadline)
    finally:
        status = _end(tool, killed=killed)
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
            _linger(tool, pid, before)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 pathlib is slow to import
        return file.read()


def _status_of(path: str) -> dict[bytes, bytes]:
    lines = (line.partition(b":\t") for line in _read(path).splitlines())
    return {name: value.strip() for name, _, value in lines}


def _is_stopping(pid: int) -> bool:
    """
    A stop may be there, or wait for a thread to see it.
    """
    try:
        with os.scandir(f"/proc/{pid}/task") as folder:
            threads = [entry.name for entry in folder]
    except OSError:
        return False

    for thread in threads:
        with contextlib.suppress(OSError, ValueError):
            status = _status_of(f"/proc/{pid}/task/{thread}/status")
            pending = int(status[b"SigPnd"], 16) | int(status[b"ShdPnd"], 16)
            is_free = status[b"TracerPid"] == b"0"
            is_stopped = status[b"State"].startswith(b"T")
            if is_free and (is_stopped or pending & _STOP_IS_PENDING):
                return True
    return False


def _start(command: list[str], out: int, err: int) -> int:
    import ctypes  # here, because whoever imports this file needs it not

    # Looked up beforehand: there is no telling what may be called after fork.
    prctl = ctypes.CDLL(None).prctl
    guard, tool = os.getpid(), os.fork()
    if not tool:
        _become(command, out, err, lambda: _die_with(guard, prctl))
    with contextlib.suppress(OSError):
        os.setpgid(tool, tool)
    return tool


# Nobody measures what runs between fork and exec.
def _become(  # pragma: no cover
    command: list[str], out: int, err: int, prepare: Callable[[], None]
) -> NoReturn:
    try:
        os.setpgid(0, 0)
        prepare()
        for number in signal.valid_signals() - _UNSTOPPABLE:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, _POLITE)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(fd, target)
        for fd in (nothing, out, err):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.execvp(command[0], command)  # noqa: S606 that is our purpose
    except BaseException as exc:  # noqa: BLE001
        os.write(2, f"{command[0]} cannot be run: {exc}\n".encode())
    os._exit(127)


def _die_with(  # pragma: no cover
    guard: int, prctl: Callable[[int, int], int]
) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:  # it was killed a moment ago
        os._exit(1)


def _watch(
    tool: int, pid: int, before: Sight, deadline: float
) -> tuple[float, bool, bool]:
    paused, was_held, begin = 0.0, False, time.monotonic()
    last = begin
    while True:
        has_ended = _has_ended(tool)
        seen, now = sight_of(pid), time.monotonic()
        is_held = seen is not None and (
            bool(seen.tracer) or (seen.letter == "T" != before.letter)
        )
        # All of a step counts if an end of it does: it is "at most".
        paused += now - last if is_held or was_held else 0.0
        last, was_held = now, is_held
        if has_ended or now >= deadline:
            return paused, is_held, not has_ended

        step = 0.002 if now - begin < 1 else 0.01
        if _is_alone(min(step, max(deadline - now, 0))):
            return paused, is_held, True


def _has_ended(tool: int) -> bool:
    # Not reaped yet, so that the number of its group cannot be used again.
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, tool, flags) is not None


_PARENT = os.getppid()


def _is_alone(wait_s: float) -> bool:
    """
    Is there nobody any more who wants the answer?
    """
    ended, _, _ = select.select([0], [], [], wait_s)
    return bool(ended) or os.getppid() != _PARENT


def _end(tool: int, *, killed: bool) -> int | None:
    # Also after a good end, for what the tool itself started.
    with contextlib.suppress(OSError):
        os.killpg(tool, signal.SIGKILL)
    if killed:
        with contextlib.suppress(OSError):
            os.kill(tool, signal.SIGKILL)
    return _reap(tool, _REAP_S, 0.005)


def _reap(tool: int, patience_s: float, step_s: float) -> int | None:
    end = time.monotonic() + patience_s
    while True:
        pid, status = os.waitpid(tool, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(step_s)


def _linger(tool: int, pid: int, before: Sight) -> None:
    if _reap(tool, _LINGER_S, 1.0) is not None:
        resume(pid, before, watch_s=_LATE_S)


if __name__ == "__main__":
    main(sys.argv[1:])
