"""
Attach pystack, py-spy, gdb, or cuda-gdb to a process, and clean up after them.

The tools run under a guard process (:mod:`distdebug.capture.guard_program`),
which outlives its caller; the node is locked meanwhile.

cuda-gdb stops the process and its GPUs for seconds.  A GPU core dump on request
(``CUDA_ENABLE_USER_TRIGGERED_COREDUMP``) takes less, but the process does not
survive it: with driver 580 the CUDA context fails afterwards, whatever the flags,
``skip_abort`` included.  So none is ever requested.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
import time

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple, cast

import attrs

from .._io import file_lock, open_lock, read_ordinary, scratch_file
from .._proc import stoppable
from .._text import without_controls
from ..errors import CaptureError, NodeBusyError
from ..processes import (
    ENDED_STATES,
    ProcessState,
    list_numbers,
    parse_stat,
    read_proc,
    read_state,
)
from ..stacks import GpuKernel, ThreadStack, parse_kernels, parse_stacks
from . import guard_program
from .blockers import (
    ENDED_REMEDY,
    attach_blocker,
    exclusion_reason,
    explain_failure,
    map_thread_ids,
    remedy_for_missing,
    tool_argv,
)
from .guard_program import MAX_BYTES, TargetState, read_target_state, resume
from .model import Attempt, CaptureStatus


# Time for the guard to end a tool and to watch for late stops.
_CLEANING_S = 12.0


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
    max_file_bytes: int = MAX_BYTES,
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

        max_file_bytes: Size limit of each file that the tool writes.

    Raises:
        CaptureError: The process has ended, or must not be attached to.

        OSError: The guard cannot be started.
    """
    before = _check_target(pid, start_ticks)
    begin = time.monotonic()
    with scratch_file() as out, scratch_file() as err:
        files = out.fileno(), err.fileno()
        task = pid, before.ticks, timeout_s, *files, max_file_bytes
        guard = _start_guard([*map(str, task), *argv], files)
        line, resumed = _await_guard(guard, pid, before, timeout_s)
        output, complaint = map(_read_text, (out, err))
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


def _await_guard(
    guard: subprocess.Popen[bytes],
    pid: int,
    before: TargetState,
    timeout_s: float,
) -> tuple[str, bool]:
    """
    Return the line of the guard, and whether SIGCONT was sent without it.
    """
    line, resumed, limit = "", False, timeout_s + _CLEANING_S
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
    arguments: Sequence[str], files: tuple[int, int]
) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-I", "-S", guard_program.__file__]
    environ = {**os.environ, "LC_ALL": "C.UTF-8"}
    # Tools would download symbols while the process is stopped.
    environ.pop("DEBUGINFOD_URLS", None)
    return subprocess.Popen(
        [*program, *arguments],
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


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MAX_BYTES).decode("utf-8", "replace")


Threads = tuple[ThreadStack, ...]


class Tool(NamedTuple):
    """
    Command line of a tool that attaches.

    Attributes:
        name: Label of its attempts.

        program: The program to run.

        arguments: Its arguments; the PID follows.

        max_file_bytes: Size limit of each file that it writes.
    """

    name: str
    program: str
    arguments: Sequence[str]
    max_file_bytes: int = MAX_BYTES


class ToolResult(NamedTuple):
    """
    Result of a tool that attached, or was not allowed to.

    Attributes:
        threads: The threads of the process; empty if there is no result.

        text: The output, without control characters.

        attempt: Status, detail, and remedy.
    """

    threads: Threads
    text: str
    attempt: Attempt


def attach(
    tool: Tool, pid: int, timeout_s: float, start_ticks: int | None
) -> ToolResult:
    """
    Run a tool on a process, unless its state or a missing right forbids it.

    Args:
        timeout_s: Time limit, in seconds.

        start_ticks: Expected start time, in clock ticks since boot; None
            accepts any process with this PID.
    """
    state, blocker = read_state(pid), attach_blocker(pid)
    if blocker and blocker[0] is not CaptureStatus.OTHER_NAMESPACE:
        return _not_attached(tool, *blocker)
    if state is None or start_ticks not in {None, state.start_ticks}:
        return _not_attached(tool, CaptureStatus.EXITED, ENDED_REMEDY)

    command = tool_argv(tool.program, pid, state)
    if command is None:
        remedy = remedy_for_missing(tool.program)
        missing = CaptureStatus.TOOL_MISSING, remedy
        return _not_attached(tool, *(blocker or missing))

    prefix, number = command
    try:
        result = run_attached(
            [*prefix, *tool.arguments, str(number)],
            pid,
            timeout_s=timeout_s,
            start_ticks=state.start_ticks,
            max_file_bytes=tool.max_file_bytes,
        )
    except (CaptureError, OSError) as exc:
        attempt = explain_failure(tool.program, pid, 1, str(exc), state)
        return ToolResult((), "", attrs.evolve(attempt, tool=tool.name))

    threads = map_thread_ids(_parse_threads(result.output), pid, number)
    attempt = _make_attempt(tool, pid, result, threads, state)
    # Names of threads and functions may hold anything.
    return ToolResult(threads, without_controls(result.output), attempt)


def _not_attached(
    tool: Tool, status: CaptureStatus, remedy: str
) -> ToolResult:
    attempt = Attempt(tool=tool.name, status=status, remedy=remedy)
    return ToolResult((), "", attempt)


def _parse_threads(text: str) -> Threads:
    try:
        found = [t for p in parse_stacks(text) for t in p.threads]
    except ValueError:
        return ()
    return tuple(found) if any(t.frames for t in found) else ()


def _make_attempt(
    tool: Tool,
    pid: int,
    result: AttachedOutput,
    threads: Threads,
    state: ProcessState,
) -> Attempt:
    attempt = Attempt(tool=tool.name, status=CaptureStatus.OK)
    # Some tools exit with an error after they have printed the stacks.
    if result.killed or not threads:
        text = result.complaint if result.complaint.strip() else result.output
        ended = None if result.killed else result.status
        attempt = explain_failure(tool.program, pid, ended, text, state)
    problems = filter(None, (attempt.detail, result.trouble))
    return attrs.evolve(
        attempt,
        tool=tool.name,
        detail="; ".join(problems),
        seconds=result.seconds,
        paused_s=result.paused_s,
        resumed=result.resumed,
    )


# Set before the process is loaded.  gdb only warns about a setting that its
# version does not know.
_GDB_OPTIONS = (
    "set auto-load off",
    "set debuginfod enabled off",
    "set confirm off",
    "set pagination off",
    "set width 0",
    "set height 0",
    "set style enabled off",
    "set print frame-arguments none",
    "set print thread-events off",
    # The innermost frames are enough; deep recursion must not fill the disk.
    "set backtrace limit 500",
)

# All but these are properties of the process: another tool would fail, too.
_PROCESS_BLOCKERS = {*CaptureStatus} - {
    CaptureStatus.OK,
    CaptureStatus.OTHER_NAMESPACE,
    CaptureStatus.NOT_PYTHON,
    CaptureStatus.UNSUPPORTED_PYTHON,
    CaptureStatus.TOOL_MISSING,
    CaptureStatus.TOOL_FAILED,
    CaptureStatus.TIMED_OUT,
}


class AttachedStacks(NamedTuple):
    """
    Stacks of a process, by tools that attached to it.

    Attributes:
        threads: Its threads on the host; empty if every tool failed.

        attempts: One per tool that was tried.

        kernels: Kernels that its GPUs were running.

        cuda_text: Output of cuda-gdb, with a line that says so if it failed;
            ``""`` if it was not to be run.
    """

    threads: Threads
    attempts: tuple[Attempt, ...]
    kernels: tuple[GpuKernel, ...] = ()
    cuda_text: str = ""


def read_native_stacks(
    pid: int,
    *,
    timeout_s: float = 60.0,
    tools: Sequence[str] = ("pystack", "py-spy", "gdb"),
    start_ticks: int | None = None,
) -> AttachedStacks:
    """
    Return the native stacks of a process from the first tool that succeeds.

    Args:
        timeout_s: Time limit for all tools together, in seconds.

        tools: Tools to try, in this order.

        start_ticks: Expected start time, in clock ticks since boot; None
            accepts any process with this PID.
    """
    deadline = time.monotonic() + timeout_s
    attempts: list[Attempt] = []
    for number, name in enumerate(tools, 1):
        left_s = max(deadline - time.monotonic(), 0.1)
        # A tool that hangs must leave time for the next one.
        share_s = left_s if number == len(tools) else left_s / 2
        result = attach(_TOOLS[name], pid, share_s, start_ticks)
        attempts.append(result.attempt)
        if result.threads or result.attempt.status in _PROCESS_BLOCKERS:
            return AttachedStacks(result.threads, tuple(attempts))
    return AttachedStacks((), tuple(attempts))


def gdb_arguments(*commands: str, more: Sequence[str] = ()) -> list[str]:
    """
    Return arguments for gdb or cuda-gdb that run commands and exit.

    Args:
        commands: Commands, in order.

        more: Further settings, applied before anything is loaded.
    """
    before = (p for option in (*_GDB_OPTIONS, *more) for p in ("-iex", option))
    after = (part for command in commands for part in ("-ex", command))
    return ["-nx", "-batch", *before, *after]


_GDB = Tool("gdb", "gdb", [*gdb_arguments("thread apply all bt"), "-p"])
_TOOLS = {
    "pystack": Tool(
        "pystack", "pystack", ("remote", "--native-all", "--no-color")
    ),
    "py-spy": Tool(
        *("py-spy --native", "py-spy"),
        ("dump", "--json", "--native", "--full-filenames", "--pid"),
    ),
    "gdb": _GDB,
}


# Scripts around cuda-gdb search for this line.
_FAILED_LINE = "ERROR: cuda-gdb failed or timed out"

_CUDA_GDB_SHARE = 5 / 6  # the rest is for gdb, if cuda-gdb fails
# cuda-gdb writes each module of the GPU to a temporary file; that of NCCL is
# larger than all that other tools write.
_MODULE_BYTES = 1 << 31
# The unwinder of cuda-gdb 11.8 fails on every frame: it treats the answer of
# Python that there is nothing to unwind as an error.
_UNWINDER_FIX = (
    "set python print-stack none",
    "python gdb._execute_unwinders = None",
)


def capture_cuda(
    pid: int, *, timeout_s: float, start_ticks: int | None = None
) -> AttachedStacks:
    """
    Return the GPU kernels of a process, and its host threads.

    Args:
        timeout_s: Time limit for all tools together, in seconds.

        start_ticks: Expected start time, in clock ticks since boot; None
            accepts any process with this PID.
    """
    deadline = time.monotonic() + timeout_s
    share_s = timeout_s * _CUDA_GDB_SHARE
    result = attach(_CUDA_GDB, pid, share_s, start_ticks)
    threads, text, attempts = result.threads, result.text, [result.attempt]
    if result.attempt.status is not CaptureStatus.OK:
        left_s = max(deadline - time.monotonic(), 0.1)
        fallback = attach(_GDB, pid, left_s, start_ticks)
        threads = fallback.threads or threads
        text = _failed_text(result, fallback)
        attempts.append(fallback.attempt)
    kernels = parse_kernels(result.text)
    return AttachedStacks(threads, tuple(attempts), kernels, text)


def _failed_text(result: ToolResult, fallback: ToolResult) -> str:
    failure = result.attempt
    reason = ": ".join(filter(None, (failure.status, failure.detail)))
    remedy = f"\nTry: {failure.remedy}" if failure.remedy else ""
    gdb_text = f"# What gdb saw\n\n{fallback.text}" if fallback.threads else ""
    parts = (result.text, f"{_FAILED_LINE} ({reason}){remedy}\n", gdb_text)
    return "\n".join(filter(None, parts))


_CUDA_GDB_COMMANDS = (
    r"echo # CUDA Kernel Information\n",
    "info cuda kernels",
    r"echo # Thread Backtraces\n",
    "thread apply all bt",
)
_CUDA_GDB = Tool(
    *("cuda-gdb", "cuda-gdb"),
    [*gdb_arguments(*_CUDA_GDB_COMMANDS, more=_UNWINDER_FIX), "-p"],
    _MODULE_BYTES,
)


@contextmanager
def node_lock(
    wait_s: float = 0.0, folder: str | None = None, *, name: str = "distdebug"
) -> Iterator[Path]:
    """
    Let only one collector of this user attach on this node at a time.

    Args:
        wait_s: Maximum wait for another collector, in seconds.

        folder: Where the lock file is; by default ``XDG_RUNTIME_DIR``, or the
            directory for temporary files.

        name: Name of the lock; locks of different names are independent.

    Yields:
        The lock file.

    Raises:
        NodeBusyError: Another collector holds the lock.

        CaptureError: The lock file cannot be opened or locked, or belongs to
            another user.
    """
    path = Path(folder or _lock_folder()) / f"{name}-{os.getuid()}.lock"
    with ExitStack() as stack:
        try:
            lock = file_lock(path, wait_s, _open_lock_file)
            file, is_exclusive = stack.enter_context(lock)
        except BlockingIOError as exc:
            holder = _describe_holder(path)
            msg = f"{holder} is attaching to processes of this node"
            raise NodeBusyError(
                msg, remedy=f"wait for {holder} to end, or end it ({path})"
            ) from exc
        except OSError as exc:
            msg = f"the lock {path} cannot be used: {exc.strerror}"
            raise CaptureError(msg, remedy=_lock_remedy(path)) from exc
        if not is_exclusive:
            msg = f"the lock {path} is on a file system without locks"
            raise CaptureError(msg, remedy=_lock_remedy(path))

        # On a full disk the lock works, but does not name its holder.
        with suppress(OSError):
            file.truncate(0)
            os.pwrite(file.fileno(), f"{os.getpid()}\n".encode(), 0)
        yield path


def _lock_remedy(path: object) -> str:
    return f"remove {path}, or set TMPDIR to a folder of your own"


def _lock_folder() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.access(runtime, os.W_OK):
        return runtime

    try:
        return tempfile.gettempdir()
    except OSError as exc:
        msg = f"there is no place for a lock: {exc.strerror or exc}"
        raise CaptureError(
            msg, remedy="set TMPDIR to a folder with space"
        ) from exc


def _open_lock_file(path: str, flags: int) -> int:
    fd = open_lock(path, flags, 0o600)
    # In a shared folder another user may have created the file first.
    file = os.fstat(fd)
    if not stat.S_ISREG(file.st_mode) or file.st_uid != os.geteuid():
        os.close(fd)
        msg = (
            f"the lock {path} belongs to user {file.st_uid}, or is not a file"
        )
        raise CaptureError(msg, remedy=_lock_remedy(path))
    return fd


def _describe_holder(path: Path) -> str:
    found, text = None, ""
    with suppress(OSError, ValueError):
        text = read_ordinary(path, 32).decode("ascii").strip()
        if text.isdigit():
            found = parse_stat(read_proc(f"/proc/{text}/stat"))
    return f"process {text}" if found is not None else "another process"
