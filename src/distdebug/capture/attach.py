"""
What does one tool tell about one process, if it may attach to it at all?
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from .._text import without_controls
from ..errors import CaptureError, NodeBusyError
from ..processes import ProcessState, parse_stat, read_proc, read_state
from ..stacks import ThreadStack, parse_gdb, parse_pystack, parse_stacks
from .blockers import (
    HAS_ENDED,
    argv_inside,
    attach_hindrance,
    explain_failure,
    outer_numbers,
    remedy_for_missing,
)
from .model import Attempt, CaptureStatus
from .tool import AttachedOutput, run_attached


Threads = tuple[ThreadStack, ...]

_ELSEWHERE = CaptureStatus.OTHER_NAMESPACE


class Tool(NamedTuple):
    """
    How a tool is used.

    Attributes:
        name: What attempts with it are called.

        program: The program to run.

        arguments: Called with the number of the process.

        parse: What reads its output.
    """

    name: str
    program: str
    arguments: Callable[[int], list[str]]
    parse: Callable[[str], Threads]


class Told(NamedTuple):
    """
    What a tool told.

    Attributes:
        threads: The threads of the process; none if it did not tell.

        text: What it printed, fit for a terminal.

        attempt: How it went.
    """

    threads: Threads
    text: str
    attempt: Attempt


def attach(
    tool: Tool, pid: int, *, timeout_s: float, start_ticks: int | None = None
) -> Told:
    """
    What does a tool tell about a process?

    The process is asked for its state first.  If that, or a missing right,
    speaks against it, then nothing is attached.

    Args:
        tool: How the tool is used.

        pid: The process.

        timeout_s: How long it may take, in seconds.

        start_ticks: When the process started, in clock ticks since boot, if
            it must be that very process.
    """
    state, hindrance = read_state(pid), attach_hindrance(pid)
    if hindrance is not None and hindrance[0] is not _ELSEWHERE:
        return _refused(tool, *hindrance)
    if state is None or start_ticks not in {None, state.start_ticks}:
        return _refused(tool, CaptureStatus.EXITED, HAS_ENDED)

    command = argv_inside(tool.program, pid, state)
    if command is None:
        remedy = remedy_for_missing(tool.program)
        missing = CaptureStatus.TOOL_MISSING, remedy
        return _refused(tool, *(hindrance or missing))
    return _run(tool, command, pid, state, timeout_s)


def _run(
    tool: Tool,
    command: tuple[list[str], int],
    pid: int,
    state: ProcessState,
    timeout_s: float,
) -> Told:
    prefix, number = command
    try:
        got = run_attached(
            [*prefix, *tool.arguments(number)],
            pid,
            timeout_s=timeout_s,
            start_ticks=state.start_ticks,
        )
    except (CaptureError, OSError) as exc:
        why = explain_failure(tool.program, pid, 1, str(exc), state)
        return Told((), "", Attempt(tool=tool.name, **why._asdict()))

    threads = outer_numbers(_parsed(tool, got.output), pid, number)
    attempt = _attempt(tool, pid, got, threads, state)
    # Names of threads and functions may hold anything.
    return Told(threads, without_controls(got.output), attempt)


def _refused(tool: Tool, status: CaptureStatus, remedy: str) -> Told:
    attempt = Attempt(tool=tool.name, status=status, remedy=remedy)
    return Told((), "", attempt)


def _parsed(tool: Tool, text: str) -> Threads:
    try:
        threads = tool.parse(text)
    except ValueError:
        return ()
    return threads if any(t.frames for t in threads) else ()


def _attempt(
    tool: Tool,
    pid: int,
    got: AttachedOutput,
    threads: Threads,
    state: ProcessState,
) -> Attempt:
    status, detail, remedy = CaptureStatus.OK, "", ""
    # Many a tool ends badly after it has told what it was asked.
    if got.killed or not threads:
        text = got.complaint if got.complaint.strip() else got.output
        ended = None if got.killed else got.status
        status, detail, remedy = explain_failure(
            tool.program, pid, ended, text, state
        )
    return Attempt(
        tool=tool.name,
        status=status,
        detail="; ".join(part for part in (detail, got.trouble) if part),
        remedy=remedy,
        seconds=got.seconds,
        paused_s=got.paused_s,
        resumed=got.resumed,
    )


# Given before the process is loaded.  What a version does not know, it says so
# of, and goes on.
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
    # The innermost frames tell; endless recursion must not fill a disk.
    "set backtrace limit 500",
)

# What is said of the process, and not of the tool.
_NO_TOOL_CAN = {
    CaptureStatus.EXITED,
    CaptureStatus.ZOMBIE,
    CaptureStatus.STOPPED,
    CaptureStatus.TRACED_BY_OTHER,
    CaptureStatus.UNINTERRUPTIBLE,
    CaptureStatus.OTHER_USER,
    CaptureStatus.YAMA,
    CaptureStatus.NO_CAPABILITY,
    CaptureStatus.SECCOMP,
    CaptureStatus.NOT_DUMPABLE,
    CaptureStatus.NOT_PERMITTED,
    CaptureStatus.SKIPPED,
}


def capture_native(
    pid: int,
    *,
    timeout_s: float = 60.0,
    tools: Sequence[str] = ("pystack", "py-spy", "gdb"),
    start_ticks: int | None = None,
) -> tuple[Threads, tuple[Attempt, ...]]:
    """
    In which machine code is every thread of this process?

    Args:
        pid: A process of this node.

        timeout_s: How long it may take in all, in seconds.

        tools: What to try, in this order.

        start_ticks: When the process started, in clock ticks since boot, if
            it must be that very process.

    Returns:
        Its threads, none if no tool could tell; and how it went with each
        tool that was tried.
    """
    deadline = time.monotonic() + timeout_s
    attempts: list[Attempt] = []
    for number, name in enumerate(tools, 1):
        left_s = max(deadline - time.monotonic(), 0.1)
        # A tool that hangs must leave time for the next one.
        share_s = left_s if number == len(tools) else left_s / 2
        told = attach(
            _TOOLS[name], pid, timeout_s=share_s, start_ticks=start_ticks
        )
        attempts.append(told.attempt)
        if told.threads or told.attempt.status in _NO_TOOL_CAN:
            return told.threads, tuple(attempts)
    return (), tuple(attempts)


def gdb_arguments(*commands: str, more: Sequence[str] = ()) -> list[str]:
    """
    With which arguments does gdb, or cuda-gdb, print and end?

    Args:
        commands: What to do, in order.

        more: What else to set before anything is loaded.
    """
    before = (p for option in (*_GDB_OPTIONS, *more) for p in ("-iex", option))
    after = (part for command in commands for part in ("-ex", command))
    return ["-nx", "-batch", *before, *after]


def _pystack(pid: int) -> list[str]:
    return ["remote", "--native-all", "--no-color", str(pid)]


def _py_spy(pid: int) -> list[str]:
    options = ("--json", "--native", "--full-filenames")
    return ["dump", *options, "--pid", str(pid)]


def _first_process(text: str) -> Threads:
    return next((p.threads for p in parse_stacks(text, "py-spy")), ())


def _gdb(pid: int) -> list[str]:
    return [*gdb_arguments("thread apply all bt"), "-p", str(pid)]


GDB = Tool("gdb", "gdb", _gdb, parse_gdb)

_TOOLS = {
    "pystack": Tool("pystack", "pystack", _pystack, parse_pystack),
    "py-spy": Tool("py-spy --native", "py-spy", _py_spy, _first_process),
    "gdb": GDB,
}


_STEP_S = 0.05
# There are file systems that tell two things about one file.
_MOST_REMOVED = 1000


@contextmanager
def node_lock(
    wait_s: float = 0.0,
    folder: str | None = None,
    *,
    name: str = "distdebug",
) -> Iterator[Path]:
    """
    Let only one collector of this user attach on this node at a time.

    Args:
        wait_s: How long to wait for another one, in seconds.

        folder: Where the lock is; by default the user's runtime directory, or
            else the directory for temporary files.

        name: What is locked; those who name something else are let in.

    Yields:
        The file that is locked.

    Raises:
        NodeBusyError: Another collector is at work.

        CaptureError: The file of the lock cannot be opened, or belongs to
            somebody else.
    """
    path = Path(folder or _folder()) / f"{name}-{os.getuid()}.lock"
    fd = _lock(path, wait_s)
    try:
        # On a full disk it is a lock still, which does not tell of whom.
        with suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield path
    finally:
        # Before it is given back: who gets it sees that it is gone.
        with suppress(OSError):
            if _is_at(fd, path):
                path.unlink()
        os.close(fd)


def _folder() -> str:
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


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_NONBLOCK, 0o600)
    except OSError as exc:
        msg = f"the lock {path} cannot be opened: {exc.strerror}"
        raise CaptureError(msg, remedy=_other_folder(path)) from exc

    # In a folder for everybody, somebody else may have been there first.
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid():
        os.close(fd)
        msg = f"the lock {path} belongs to user {seen.st_uid}, or is no file"
        raise CaptureError(msg, remedy=_other_folder(path))
    return fd


def _other_folder(path: Path) -> str:
    return f"remove {path}, or set TMPDIR to a folder of your own"


def _lock(path: Path, wait_s: float) -> int:
    """
    A descriptor of the file, which is locked as long as it is open.
    """
    end, removed = time.monotonic() + wait_s, 0
    while True:
        fd = _open(path)
        try:
            if _try_lock(fd, path, is_last=time.monotonic() >= end):
                # Whoever had it may have removed it since it was opened.
                if _is_at(fd, path) or removed >= _MOST_REMOVED:
                    return fd
                removed += 1
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _try_lock(fd: int, path: Path, *, is_last: bool) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        if is_last:
            holder = _holder(fd)
            msg = f"{holder} is attaching to processes of this node"
            raise NodeBusyError(
                msg, remedy=f"wait for {holder} to end, or end it ({path})"
            ) from exc
        time.sleep(_STEP_S)
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _holder(fd: int) -> str:
    text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    found = (
        parse_stat(read_proc(f"/proc/{text}/stat")) if text.isdigit() else None
    )
    return f"process {text}" if found is not None else "another process"
