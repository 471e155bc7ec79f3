"""
Explain why a process cannot be inspected or traced, with a remedy for each.

The message of a tool is seldom the reason: "Operation not permitted" may mean
a zombie, another debugger, or a missing capability.  So the kernel is asked
first.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import time

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import attrs

from .._proc import find_tool, run_tool
from .._render import Block, Lines, Table
from .._text import clean
from ..processes import (
    ProcessState,
    list_numbers,
    parse_stat,
    parse_status,
    read_link,
    read_proc,
    read_state,
    whole_number,
)
from ..stacks import ThreadStack
from .guard_program import read_target_state
from .model import Attempt, CaptureStatus


# Why a process cannot be looked into, and the remedy.
Blocker = tuple[CaptureStatus, str]

_SYS_PTRACE = 1 << 19

_IN_CONTAINER = (
    "start the container with --cap-add SYS_PTRACE (Kubernetes: "
    "securityContext.capabilities.add: [SYS_PTRACE], or kubectl debug "
    "--profile=sysadmin)"
)

SECCOMP_REMEDY = (
    "start the container with --cap-add SYS_PTRACE, or with --security-opt "
    "seccomp=unconfined"
)

# ptrace on PID -1: only a filter can refuse it.  It runs in a process of its
# own because some filters kill the caller.
_PTRACE_PROBE = (
    "import ctypes as c; libc = c.CDLL(None, use_errno=True); "
    "libc.ptrace(17, -1, None, None); raise SystemExit(100 + c.get_errno())"
)
_PROBE_REFUSED = {
    -signal.SIGSYS,
    *(100 + e for e in (errno.EPERM, errno.EACCES, errno.ENOSYS)),
}


def explain_denial(pid: int) -> Blocker | None:
    """
    Return why the kernel would refuse ptrace on a process, and the remedy.

    Args:
        pid: A process of this node other than this one.

    Returns:
        Status and remedy; ``None`` if ptrace is allowed.
    """
    if is_ptrace_filtered():
        return CaptureStatus.SECCOMP, SECCOMP_REMEDY

    refused, scope = _memory_errno(pid), read_yama_scope()
    if refused == errno.ENOENT:
        return CaptureStatus.EXITED, "look at its exit status and its log"

    if refused is not None and scope >= 3:
        return CaptureStatus.YAMA, yama_remedy(scope)
    own = parse_status(read_proc("/proc/self/status"))
    if refused is not None:
        target = parse_status(read_proc(f"/proc/{pid}/status"))
        return _explain_refusal(pid, own, target, scope)
    # Yama lets us trace our descendants, but not the tools that we start.
    is_ours = scope and os.getpid() in _ancestors(pid)
    if is_ours and not has_ptrace_capability(own):
        return CaptureStatus.YAMA, yama_remedy(scope)
    return None


def explain_hidden(pid: int) -> Blocker | None:
    """
    Return why ``/proc`` does not show an existing process, and the remedy.

    Args:
        pid: A process that is not in ``/proc``.

    Returns:
        Status and remedy; ``None`` if there is no such process.
    """
    try:
        os.kill(pid, 0)
    except PermissionError:
        return CaptureStatus.OTHER_USER, (
            "/proc hides the processes of other users (hidepid): run as the "
            "user of the job, or as root"
        )
    except (OSError, OverflowError):
        return None
    return CaptureStatus.TOOL_FAILED, (
        "allow more open files (ulimit -n), and see whether /proc is mounted"
    )


def has_ptrace_capability(status: dict[str, str]) -> bool:
    """
    Return whether CAP_SYS_PTRACE is in effect.

    Args:
        status: Fields of ``/proc/PID/status``.
    """
    return bool(_capabilities(status, "CapEff") & _SYS_PTRACE)


def read_yama_scope() -> int:
    """
    Return ``kernel.yama.ptrace_scope``: 0 (no limit) to 3 (no attach at all).
    """
    text = read_proc("/proc/sys/kernel/yama/ptrace_scope") or b""
    return whole_number(text.strip()) or 0


def yama_remedy(scope: int) -> str:
    """
    Return the remedy for a Yama restriction.

    Args:
        scope: Value of ``kernel.yama.ptrace_scope``.
    """
    if scope >= 3:
        return (
            "kernel.yama.ptrace_scope is 3: no process may attach until "
            "the node is rebooted with a lower value; the Python stacks of a "
            "job that called enable_flight_recorder() need no attaching"
        )
    return (
        f"kernel.yama.ptrace_scope is {scope}: sysctl -w "
        "kernel.yama.ptrace_scope=0 (on the node, as root), or run as root "
        "with CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
    )


@cache  # a filter cannot be removed once it is installed
def is_ptrace_filtered() -> bool:
    """
    Return whether a seccomp filter denies ``ptrace`` to us and our tools.
    """
    status = parse_status(read_proc("/proc/self/status"))
    if status.get("Seccomp", "0") == "0":
        return False

    argv = [sys.executable, "-I", "-S", "-c", _PTRACE_PROBE]
    try:
        return run_tool(argv, timeout_s=10).status in _PROBE_REFUSED
    except OSError:
        return False


def _memory_errno(pid: int) -> int | None:
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as exc:
        return exc.errno
    return None


def _explain_refusal(
    pid: int, own: dict[str, str], target: dict[str, str], scope: int
) -> Blocker:
    if has_ptrace_capability(own):
        return CaptureStatus.NOT_PERMITTED, (
            "run in the user namespace of the process, such as by "
            f"nsenter -t {pid} -U -p -m, and look for AppArmor or SELinux in "
            f"/proc/{pid}/attr/current"
        )
    own_user, users = _user_ids(own)[1:2], _user_ids(target)
    is_root, is_same_user = own_user == ["0"], {*users[:3]} <= {*own_user}
    if not is_same_user and not is_root:
        user = (users or ["?"])[0]
        return CaptureStatus.OTHER_USER, (
            f"run as its user or as root: sudo -u '#{user}' python -m "
            "distdebug stacks …"
        )
    lacking = _capabilities(target, "CapPrm") & ~_capabilities(own, "CapPrm")
    if not is_same_user or lacking:
        return CaptureStatus.NO_CAPABILITY, _IN_CONTAINER
    if not is_root and _is_not_dumpable(pid):
        return CaptureStatus.NOT_DUMPABLE, (
            "the process asked not to be looked into (PR_SET_DUMPABLE 0), or "
            "its program may not be read: run as root: sudo python -m "
            "distdebug stacks …"
        )
    if scope:
        return CaptureStatus.YAMA, yama_remedy(scope)
    return CaptureStatus.NOT_PERMITTED, (
        f"run as root: sudo python -m distdebug stacks …; or {_IN_CONTAINER}"
    )


def _user_ids(status: dict[str, str]) -> list[str]:
    return status.get("Uid", "").split()


def _capabilities(status: dict[str, str], name: str) -> int:
    try:
        return int(status.get(name, "0"), 16)
    except ValueError:
        return 0


def _is_not_dumpable(pid: int) -> bool:
    """
    Return whether root owns the files of the process in ``/proc``.
    """
    try:
        return os.stat(f"/proc/{pid}/environ").st_uid == 0  # noqa: PTH116
    except OSError:
        return False


# Searched below the root folder of the process.
_TOOL_FOLDERS = (
    *("usr/local/bin", "usr/bin", "bin"),
    *("opt/conda/bin", "opt/venv/bin"),
)


def is_proc_foreign() -> bool:
    """
    Return whether ``/proc`` belongs to another PID namespace than ours.
    """
    return read_link("/proc/self") not in {"", str(os.getpid())}


def namespace_remedy(pid: int, inside: int = 0) -> str:
    """
    Return the remedy "run inside the container of this process".

    Args:
        pid: Its PID here.

        inside: Its PID inside the container; 0 if unknown.
    """
    pid_option = f" --pid {inside}" if inside not in {0, pid} else ""
    return (
        f"run in its container: nsenter -t {pid} -p -m -- python -m distdebug "
        f"stacks{pid_option}, docker exec, or kubectl debug -it POD "
        "--target=CONTAINER --profile=sysadmin"
    )


def tool_argv(
    tool: str, pid: int, state: ProcessState
) -> tuple[list[str], int] | None:
    """
    Return how to run a tool on a process, inside its container if it has one.

    Args:
        state: State of the process.

    Returns:
        The start of the command line, and the PID to pass to the tool;
        ``None`` if the tool is not installed, or the container cannot be
        entered.
    """
    if state.pid_inside in {0, pid}:
        path = find_tool(tool)
        return None if path is None else ([path], pid)

    enter, path = find_tool("nsenter"), _find_in_container(tool, pid)
    if enter is None or path is None or os.geteuid() != 0:
        return None
    return [enter, "-t", str(pid), "-p", "-m", "--", path], state.pid_inside


def map_thread_ids(
    threads: tuple[ThreadStack, ...], pid: int, inside: int
) -> tuple[ThreadStack, ...]:
    """
    Replace thread IDs from inside a container by those of this node.

    Args:
        threads: Threads as the tool printed them.

        pid: PID of their process here.

        inside: Its PID inside the container.
    """
    if inside == pid:
        return threads

    numbers = {}
    for thread in list_numbers(f"/proc/{pid}/task"):
        status = parse_status(read_proc(f"/proc/{pid}/task/{thread}/status"))
        numbers[(status.get("NSpid", "").split() or [""])[-1]] = thread
    return tuple(
        attrs.evolve(t, thread_id=numbers.get(str(t.thread_id), t.thread_id))
        for t in threads
    )


def _find_in_container(tool: str, pid: int) -> str | None:
    paths = (f"/{folder}/{tool}" for folder in _TOOL_FOLDERS)
    root = f"/proc/{pid}/root"
    return next((x for x in paths if os.access(root + x, os.X_OK)), None)


# The error message is at the beginning or at the end of the output.
_MAX_OUTPUT = 1 << 14

_INSTALL_COMMANDS = {
    "py-spy": "pip install py-spy",
    "pystack": "pip install pystack",
    "gdb": "apt-get install gdb (or dnf install gdb)",
    "cuda-gdb": (
        "install the CUDA toolkit's debugger (apt-get install cuda-gdb-12-8, "
        "or nvidia-cuda-gdb of Debian), or put it on PATH"
    ),
}
# Remedy for a process that no longer exists.
ENDED_REMEDY = "it has ended: look at its exit status and its log"

_TOOL_MISSING = re.compile(
    r"cannot be run: \[Errno (2|13|8)\]|command not found|"
    r"failed to execute .*: (No such file|Permission)"
)
_NOT_PYTHON = re.compile(
    r"python version from|python interpreter|gil_thread_id|"
    r"[Ff]ree.?threaded|[Uu]nsupported (python )?version|"
    r"not a python process|version of Python",
    re.IGNORECASE,
)
_NAMESPACE = re.compile(r"UNW_EBADREG|different PID namespaces|setns")
_DENIED = re.compile(
    r"EPERM|permission denied|not permitted|os error (1|13)\)|"
    r"cannot be traced|elevated permissions",
    re.IGNORECASE,
)
_GONE = re.compile(
    r"No such process|os error [23]\)|No such file or directory|"
    r"process is running|/task\b|ESRCH"
)
_TRACED = re.compile(r"already traced by process (\d+)")
# Lines that tools also print on success.
_NOISE = re.compile(
    r"^(\[|Using host lib|Reading symbols|BFD: |0x[0-9a-f]+ in |#|"
    r"warning: (`|File|Error disabling|Unable to open|could not find))"
)


def explain_state(state: ProcessState | None, pid: int) -> Blocker | None:
    """
    Return the state that keeps a process from being inspected, and the remedy.

    Args:
        state: State of the process; None if it could not be read.

        pid: The process, also one that ``/proc`` hides.

    Returns:
        Status and remedy; ``None`` if the state does not matter.
    """
    if state is None or state.letter in "Xx":
        hidden = None if state else explain_hidden(pid)
        return hidden or (CaptureStatus.EXITED, ENDED_REMEDY)
    if state.letter == "Z":
        return CaptureStatus.ZOMBIE, (
            f"{ENDED_REMEDY}, and at its parent, which has not noticed yet "
            f"(ps -o ppid= -p {pid})"
        )
    if state.tracer_pid:
        return CaptureStatus.TRACED_BY_OTHER, _tracer_remedy(state.tracer_pid)
    if state.letter in "Tt":
        return CaptureStatus.STOPPED, (
            f"it is stopped; resume it with kill -CONT {pid}"
        )
    if state.letter == "D" or state.uninterruptible:
        return CaptureStatus.UNINTERRUPTIBLE, (
            "it waits inside the kernel, for a disk, a network file system, "
            "or a driver, and nothing can attach before that is over: see "
            f"/proc/{pid}/stack as root, and dmesg"
        )
    return None


def explain_failure(
    tool: str,
    pid: int,
    exit_status: int | None,
    text: str,
    state_before: ProcessState | None,
) -> Attempt:
    """
    Return why a tool failed on a process, and the remedy.

    Args:
        exit_status: Exit status of the tool; None if it timed out.

        text: Output of the tool.

        state_before: State of the process before the tool ran.
    """
    if len(text) > 2 * _MAX_OUTPUT:
        text = f"{text[:_MAX_OUTPUT]}\n{text[-_MAX_OUTPUT:]}"
    detail = _summarize(text)
    is_missing = exit_status in {126, 127} or _TOOL_MISSING.search(text)
    missing = CaptureStatus.TOOL_MISSING, remedy_for_missing(tool)
    status, remedy = (
        (missing if is_missing else None)
        or _explain_exit(pid, state_before)
        or _explain_by_state(pid, exit_status, state_before, text)
        or _explain_by_output(tool, pid, state_before, text)
    )
    return Attempt(tool=tool, status=status, detail=detail, remedy=remedy)


def remedy_for_missing(tool: str) -> str:
    """
    Return how to install a tool.
    """
    return _INSTALL_COMMANDS.get(tool, f"install {tool}, or put it on PATH")


def _explain_exit(pid: int, before: ProcessState | None) -> Blocker | None:
    now = read_state(pid)
    if now is None:
        return explain_state(None, pid)
    if before is None or now.start_ticks != before.start_ticks:
        return CaptureStatus.EXITED, ENDED_REMEDY
    return explain_state(now, pid) if now.has_ended else None


def _explain_by_state(
    pid: int, exit_status: int | None, before: ProcessState | None, text: str
) -> Blocker | None:
    traced = _TRACED.search(text)
    if traced:
        return CaptureStatus.TRACED_BY_OTHER, _tracer_remedy(int(traced[1]))

    blocker = explain_state(before, pid)
    if exit_status is None:
        return blocker or _explain_timeout(pid)
    # No state keeps tools that only read memory from working, and many threads
    # are in state D for a moment.
    if blocker is None or blocker[0] is CaptureStatus.UNINTERRUPTIBLE:
        return None
    return None if _NOT_PYTHON.search(text) else blocker


def _explain_timeout(pid: int) -> Blocker:
    blocker = explain_state(read_state(pid), pid)
    if blocker is not None and blocker[0] is CaptureStatus.UNINTERRUPTIBLE:
        return blocker
    return CaptureStatus.TIMED_OUT, (
        "allow more time: on a busy node, or with symbols on a slow file "
        "system, it takes longer"
    )


def _explain_by_output(
    tool: str, pid: int, before: ProcessState | None, text: str
) -> Blocker:
    inside = before.pid_inside if before is not None else 0
    if _NOT_PYTHON.search(text):
        return _explain_not_python(tool, pid)
    if _NAMESPACE.search(text) or is_proc_foreign():
        return CaptureStatus.OTHER_NAMESPACE, namespace_remedy(pid, inside)
    if _DENIED.search(text):
        return _explain_permission(pid)
    if inside not in {0, pid}:
        return CaptureStatus.OTHER_NAMESPACE, namespace_remedy(pid, inside)
    remedy = (
        "a thread ended meanwhile: try again" if _GONE.search(text) else ""
    )
    return CaptureStatus.TOOL_FAILED, remedy


def _explain_permission(pid: int) -> Blocker:
    now = read_state(pid)
    if now is not None and now.tracer_pid:
        return CaptureStatus.TRACED_BY_OTHER, _tracer_remedy(now.tracer_pid)
    return explain_denial(pid) or (
        CaptureStatus.NOT_PERMITTED,
        "run as root, and in a container with --cap-add SYS_PTRACE",
    )


def _tracer_remedy(tracer: int) -> str:
    stat = parse_stat(read_proc(f"/proc/{tracer}/stat"))
    name = f" ({clean(stat.name)})" if stat is not None else ""
    return (
        f"process {tracer}{name} is attached to it, and only one debugger can "
        "be: detach or end that one"
    )


def _explain_not_python(tool: str, pid: int) -> Blocker:
    if not _is_python(pid):
        return CaptureStatus.NOT_PYTHON, "name a process that runs Python"
    return CaptureStatus.UNSUPPORTED_PYTHON, (
        f"this {tool} does not know the Python of the process (too new, "
        f"free-threaded, or stripped): pip install --upgrade {tool}, or look "
        "with gdb: python -m distdebug stacks --native"
    )


def _is_python(pid: int) -> bool:
    program = read_link(f"/proc/{pid}/exe").rpartition("/")[2]
    if program.startswith(("python", "pypy")):
        return True
    maps = read_proc(f"/proc/{pid}/maps", limit=1 << 24) or b""
    return b"/libpython" in maps


def _summarize(text: str) -> str:
    """
    Return the error lines of an output, without known noise, in one line.
    """
    stripped = map(
        str.strip, text.partition("Stack backtrace:")[0].splitlines()
    )
    lines = [x for x in stripped if x and not _NOISE.search(x)]
    errors = [x for x in lines if _is_error_line(x)]
    return clean(" ".join((errors or lines)[-4:]), limit=300)


def _is_error_line(line: str) -> bool:
    known = (_NOT_PYTHON, _NAMESPACE, _DENIED, _GONE, _TRACED, _TOOL_MISSING)
    return "rror" in line or any(k.search(line) for k in known)


_CHECK_LABELS = {True: "ok", False: "PROBLEM", None: "note"}


@attrs.frozen
class Check:
    """
    Result of one check of what stack capture needs.

    Attributes:
        name: What was checked.

        ok: Whether it passed; ``None`` if the check is optional and failed.

        detail: What was found.

        remedy: What to do about it, or ``""``.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def check_blocks(checks: Sequence[Check]) -> Iterator[Block]:
    """
    Yield a table of checks, and the remedies of those that did not pass.
    """
    rows = [(_CHECK_LABELS[c.ok], c.name, c.detail) for c in checks]
    yield Table(("", "check", "found"), rows, most=len(rows))
    failed = (c for c in checks if c.ok is not True and c.remedy)
    yield Lines([f"{c.name}: {c.remedy}" for c in failed])


class Checklist:
    """
    Base of results that are a list of checks, before `Shown`.

    Attributes:
        checks: All checks, with remedies.
    """

    __slots__ = ()
    checks: tuple[Check, ...]

    @property
    def is_ready(self) -> bool:
        """
        Return whether no check failed.
        """
        return all(check.ok is not False for check in self.checks)

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per check, for a data frame.
        """
        return [attrs.asdict(check) for check in self.checks]

    def _blocks_(self) -> Iterable[Block]:
        return check_blocks(self.checks)


_DEBUGGERS = {
    *("cuda-gdb", "gdb", "gdbserver", "lldb", "lldb-server", "ltrace"),
    *("py-spy", "pystack", "rr", "strace"),
}


def exclusion_reason(pid: int) -> str:
    """
    Return why no tool may attach to a process, or ``""`` if one may.

    Excluded are this process and its ancestors, which wait for it and would
    stop with it, and debuggers with their targets.
    """
    if pid in _ancestors(os.getpid()):
        return f"process {pid} is ourselves, or waits for us"

    state = read_target_state(pid)
    if state is not None and state.tracer:
        return f"process {pid} is traced by process {state.tracer}"
    if pid <= 1 and state is None:
        return f"{pid} is no process"
    if _is_debugger(pid):
        return f"process {pid} is a debugger"
    return ""


def _ancestors(pid: int) -> set[int]:
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


# A thread that reads files is in state D again and again, each time briefly.
_STATE_SAMPLES, _SAMPLE_STEP_S = 4, 0.05


def attach_blocker(pid: int) -> Blocker | None:
    """
    Return what prevents a tool from attaching to a process, and the remedy.

    The process itself is not touched.

    Returns:
        Status and remedy; ``None`` if nothing prevents it.
    """
    state = read_state(pid)
    reason = "" if state is None or state.tracer_pid else exclusion_reason(pid)
    if reason:
        return CaptureStatus.SKIPPED, f"{reason}: name a process of the job"

    blocker = explain_state(state, pid)
    if state is None:
        return blocker
    if blocker is not None and blocker[0] is CaptureStatus.UNINTERRUPTIBLE:
        blocker = _recheck_state(pid)
    if blocker is not None:
        return blocker

    if is_proc_foreign():
        return CaptureStatus.OTHER_NAMESPACE, namespace_remedy(pid, 0)
    denied = explain_denial(pid)
    if denied is None and state.pid_inside != pid:
        remedy = namespace_remedy(pid, state.pid_inside)
        return CaptureStatus.OTHER_NAMESPACE, remedy
    return denied


def _recheck_state(pid: int) -> Blocker | None:
    """
    Sample the state again; ignore a thread that is in state D only briefly.
    """
    state = read_state(pid)
    stuck = set(state.uninterruptible if state else ())
    for _ in range(_STATE_SAMPLES):
        time.sleep(_SAMPLE_STEP_S)
        state = read_state(pid)
        stuck &= set(state.uninterruptible if state else ())
        if not stuck:
            break
    blocker = explain_state(state, pid)
    if blocker is not None and blocker[0] is CaptureStatus.UNINTERRUPTIBLE:
        return blocker if stuck else None
    return blocker
