"""
How is a tool run so that it neither outlives its time nor its caller?
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple, cast

import attrs

from .._io import scratch_file
from ..errors import CaptureError
from ..processes import ENDED, list_numbers, parse_stat, read_proc
from . import guard_program
from .guard_program import MOST_BYTES, Sight, resume, sight_of


# The JSON of 10,000 threads stays below.
_MOST_BYTES = 1 << 26
_MOST_COMPLAINT = 1 << 16
_MOST_SECRET = 1 << 25
# What waits inside the kernel cannot be killed before that is over.
_REAP_S = 5.0

# How to stop the tools that run now.  Threads that wait for them cannot be
# interrupted, so whoever is interrupted in their place stops the tools.
_stops: set[Callable[[], object]] = set()


class ToolOutput(NamedTuple):
    """
    What a tool left.

    Attributes:
        status: Its exit status; ``None`` if its time was over.

        output: What it printed, at most 64 MiB.

        complaint: What it printed to its standard error, at most 64 KiB.
    """

    status: int | None
    output: str
    complaint: str


def find_tool(name: str) -> str | None:
    """
    Where is this tool?

    Args:
        name: Such as ``"py-spy"``.

    Returns:
        The one that belongs to this Python, or else the one on ``PATH``.
    """
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=beside) or shutil.which(name)


def run_tool(
    argv: Sequence[str], *, timeout_s: float, is_secret: bool = False
) -> ToolOutput:
    """
    What does this tool print?

    It is for tools that stop nobody.  It runs in a process group of its own,
    which is killed when the time is over or the caller is interrupted.

    Args:
        argv: The tool and its arguments.

        timeout_s: How long it may take, in seconds.

        is_secret: Whether its output may not come near a disk.  Then it is
            kept in memory, and may be 32 MiB at most.

    Returns:
        What it left.

    Raises:
        OSError: It cannot be started.
    """
    # Files, because a pipe is only at its end when all that inherited it are
    # gone.
    with _file(in_memory=is_secret) as out, _file() as err:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        status: int | None = None
        try:
            with stoppable(lambda: _kill(process)):
                most = _MOST_SECRET if is_secret else _MOST_BYTES
                _bound(process.pid, timeout_s, most)
                status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(process)
        output = _text_of(out.fileno(), _MOST_BYTES)
        complaint = _text_of(err.fileno(), _MOST_COMPLAINT)

    return ToolOutput(status, output, complaint)


def stop_tools() -> None:
    """
    End every tool of this process that runs now.

    Those who wait for one get what it left so far.
    """
    for stop in tuple(_stops):
        stop()


@contextmanager
def stoppable(stop: Callable[[], object]) -> Iterator[None]:
    """
    Let `stop_tools` end something while the block runs.

    Args:
        stop: What ends it; may be called from any thread, and more than once.
    """
    _stops.add(stop)
    try:
        yield
    finally:
        _stops.discard(stop)


def _file(*, in_memory: bool = False) -> IO[bytes]:
    if in_memory:
        return os.fdopen(os.memfd_create("distdebug"), "w+b")
    return scratch_file()


def _bound(pid: int, timeout_s: float, most_bytes: int) -> None:
    """
    Let the kernel see to it that a tool ends when we are killed meanwhile.

    It neither computes for ever, nor fills a disk with output or with an
    image of itself.
    """
    seconds = int(timeout_s) + 2
    for limit, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, most_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(OSError, ValueError):
            resource.prlimit(pid, limit, (most, most))


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Only as long as it was not waited for is the number surely its own.
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    _kill(process)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)


def _text_of(fd: int, most: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read(most).decode("utf-8", "replace")


# What the guard may take to end a tool and to watch for late stops.
_CLEANING_S = 12.0
_DEBUGGERS = {
    *("cuda-gdb", "gdb", "gdbserver", "lldb", "lldb-server", "ltrace"),
    *("py-spy", "pystack", "rr", "strace"),
}


@attrs.frozen(kw_only=True)
class AttachedOutput:
    """
    What a tool left that was attached to a process.

    Attributes:
        status: Its exit status, negative if a signal ended it; ``None`` if it
            was killed by us, or could not be ended.

        output: What it printed, at most 64 MiB.

        complaint: What it printed to its standard error.

        seconds: How long it took.

        paused_s: How long the process could not run, at most, in seconds.

        resumed: Whether the process was left stopped, and was sent SIGCONT.

        killed: Whether the tool had to be killed.

        trouble: What could not be put right, or ``""``.
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
    What does a tool print that attaches to this process?

    Whatever happens, to the tool, to us, or to the guard: the process is not
    left stopped.  An exception, such as the one of Ctrl-C, passes through when
    that is made sure of.

    Args:
        argv: The tool and its arguments.

        pid: The process it attaches to.

        timeout_s: How long the tool may take, in seconds.  Cleaning up after
            it may take a few seconds more.

        start_ticks: When the process started, in clock ticks since boot, if
            it must be that very process.

    Returns:
        What the tool left, and what it did to the process.

    Raises:
        CaptureError: The process is gone, or must not be attached to.

        OSError: The guard cannot be started.
    """
    before = _check(pid, start_ticks)
    begin = time.monotonic()
    with scratch_file() as out, scratch_file() as err:
        files = out.fileno(), err.fileno()
        line, resumed = _guarded(argv, pid, before, timeout_s, files)
        output, complaint = (_guard_text_of(fd) for fd in files)
    status, paused_s, *flags = line.split() or ("-", "0", "0", "1", "0")
    return AttachedOutput(
        status=None if status == "-" else int(status),
        output=output,
        complaint=complaint,
        seconds=time.monotonic() - begin,
        paused_s=float(paused_s),
        resumed=resumed or flags[0] == "1",
        killed=flags[1] == "1",
        trouble=_trouble(pid, before, is_left=flags[2] == "1"),
    )


def why_never(pid: int) -> str:
    """
    Is this a process that no tool must ever be attached to?

    That is ourselves and whoever waits for us, who would stop with it; and
    debuggers, and what they hold.

    Args:
        pid: A process of this node.

    Returns:
        Why not; ``""`` if nothing speaks against it.
    """
    if pid in _ourselves():
        return f"process {pid} is ourselves, or waits for us"

    seen = sight_of(pid)
    if seen is not None and seen.tracer:
        return f"process {pid} is traced by process {seen.tracer}"
    if pid <= 1 and seen is None:
        return f"{pid} is no process"
    if _is_debugger(pid):
        return f"process {pid} is a debugger"
    return ""


def _check(pid: int, start_ticks: int | None) -> Sight:
    before = sight_of(pid)
    if before is None or (start_ticks or before.ticks) != before.ticks:
        msg = f"process {pid} has ended"
        raise CaptureError(msg, remedy="look at its exit status and its log")
    reason = why_never(pid)
    if reason:
        msg = f"no tool is attached: {reason}"
        raise CaptureError(msg, remedy="name a process of the job")
    return before


def _ourselves() -> set[int]:
    """
    This process, and those that wait for it.
    """
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        stat = parse_stat(read_proc(f"/proc/{pid}/stat"))
        pid = stat.parent_pid if stat is not None else 0
    return found


def _is_debugger(pid: int) -> bool:
    stat = parse_stat(read_proc(f"/proc/{pid}/stat"))
    if stat is not None and stat.name in _DEBUGGERS:
        return True
    sights = (sight_of(other) for other in list_numbers("/proc"))
    return any(s is not None and s.tracer == pid for s in sights)


def _guarded(
    argv: Sequence[str],
    pid: int,
    before: Sight,
    timeout_s: float,
    files: tuple[int, int],
) -> tuple[str, bool]:
    """
    The line of the guard; whether we had to resume the process ourselves.
    """
    line, resumed, limit = "", False, timeout_s + _CLEANING_S
    guard = _start(argv, pid, before, timeout_s, files)
    wish, answer = cast(IO[bytes], guard.stdin), cast(IO[bytes], guard.stdout)
    try:
        try:
            with stoppable(wish.close):
                line = _line_of(answer, limit)
        except BaseException:
            wish.close()  # tells the guard to come to an end
            line = _line_of(answer, _CLEANING_S)
            raise
    finally:
        wish.close()
        if not line:
            resumed = _clean_up(guard, pid, before)
        answer.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            # It may stay to wait for a tool that cannot be ended yet.
            guard.wait(1)
    return line, resumed


def _start(
    argv: Sequence[str],
    pid: int,
    before: Sight,
    timeout_s: float,
    files: tuple[int, int],
) -> subprocess.Popen[bytes]:
    numbers = (pid, before.ticks, timeout_s, *files)
    program = [sys.executable, "-I", "-S", guard_program.__file__]
    environ = {**os.environ, "LC_ALL": "C.UTF-8"}
    # It would have tools download symbols while the process waits.
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


def _line_of(answer: IO[bytes], limit_s: float) -> str:
    """
    What the guard says; nothing if it takes too long, or was killed.
    """
    fd, end, said = answer.fileno(), time.monotonic() + limit_s, b""
    poll = select.poll()  # unlike select, it knows no highest number
    poll.register(fd, select.POLLIN)
    while not said.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return ""
        some = os.read(fd, 256)
        if not some:
            return ""
        said += some
    return said.decode()


def _clean_up(guard: subprocess.Popen[bytes], pid: int, before: Sight) -> bool:
    # Not waited for yet, it keeps its number and that of its session from
    # being used again: whoever is in that session was started by it.
    end = time.monotonic() + _CLEANING_S / 2
    guard.kill()
    while _kill_session(guard.pid) and time.monotonic() < end:
        time.sleep(0.01)
    return resume(pid, before, watch_s=1.0)


def _kill_session(session: int) -> bool:
    """
    Was there anybody left to be killed?
    """
    found = False
    for pid in list_numbers("/proc"):
        stat = parse_stat(read_proc(f"/proc/{pid}/stat"))
        if stat is not None and not stat.has_ended:
            with contextlib.suppress(OSError):
                if os.getsid(pid) == session:
                    os.kill(pid, signal.SIGKILL)
                    found = True
    return found


def _trouble(pid: int, before: Sight, *, is_left: bool) -> str:
    if is_left:
        return "the tool waits inside the kernel and could not be ended yet"
    after = sight_of(pid)
    if after is None or after.ticks != before.ticks or after.letter in ENDED:
        return f"process {pid} ended meanwhile"
    if after.letter == "T" != before.letter:
        return f"process {pid} is stopped: kill -CONT {pid}"
    return ""


def _guard_text_of(fd: int) -> str:
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read(MOST_BYTES).decode("utf-8", "replace")
