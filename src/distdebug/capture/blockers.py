"""
Why could a process not be looked into, and what can be done about it?

What a tool says is seldom the reason: "Operation not permitted" may mean a
zombie, another debugger, a missing right.  So the kernel is asked first.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import attrs

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
)
from ..stacks import ThreadStack
from .model import CaptureStatus
from .tool import find_tool, why_never


_SYS_PTRACE = 1 << 19

_IN_CONTAINER = (
    "start the container with --cap-add SYS_PTRACE (Kubernetes: "
    "securityContext.capabilities.add: [SYS_PTRACE], or kubectl debug "
    "--profile=sysadmin)"
)

# Asked of nobody, so that only a filter in between can refuse it.  As a
# program of its own, because some filters kill whoever asks.
_ASK_FILTER = (
    "import ctypes as c; libc = c.CDLL(None, use_errno=True); "
    "libc.ptrace(17, -1, None, None); raise SystemExit(100 + c.get_errno())"
)
_REFUSALS = {
    -signal.SIGSYS,
    *(100 + e for e in (errno.EPERM, errno.EACCES, errno.ENOSYS)),
}


def why_denied(pid: int) -> tuple[CaptureStatus, str] | None:
    """
    Would the kernel refuse to let a tool attach to this process, and why?

    Args:
        pid: A process of this node, that is not ourselves.

    Returns:
        The reason, and what to do about it; ``None`` if nothing stands against
        it.
    """
    if ptrace_is_filtered():
        remedy = (
            "start the container with --cap-add SYS_PTRACE, or with "
            "--security-opt seccomp=unconfined"
        )
        return CaptureStatus.SECCOMP, remedy

    refused, scope = _may_not_open(pid), yama_scope()
    if refused == errno.ENOENT:
        return CaptureStatus.EXITED, "look at its exit status and its log"

    ours = parse_status(read_proc("/proc/self/status"))
    theirs = parse_status(read_proc(f"/proc/{pid}/status"))
    if refused is not None:
        return _reason(pid, ours, theirs, scope)
    # Yama lets us look into what we started; the tools that we start, not.
    if scope and not can_trace(ours) and _is_below_us(pid):
        return CaptureStatus.YAMA, yama_remedy(scope)
    return None


def why_hidden(pid: int) -> tuple[CaptureStatus, str] | None:
    """
    Is a process there although ``/proc`` does not show it?

    Args:
        pid: A process that could not be found.

    Returns:
        Why, and what to do about it; ``None`` if there is no such process.
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


def can_trace(status: dict[str, str]) -> bool:
    """
    Is CAP_SYS_PTRACE in effect?

    Args:
        status: What the kernel tells about a process.
    """
    return bool(_mask(status, "CapEff") & _SYS_PTRACE)


def yama_scope() -> int:
    """
    How far does Yama restrict who may attach: 0 (not) to 3 (nobody may)?
    """
    try:
        return int(read_proc("/proc/sys/kernel/yama/ptrace_scope") or 0)
    except ValueError:
        return 0


def yama_remedy(scope: int) -> str:
    """
    What to do about Yama.

    Args:
        scope: How far it restricts who may attach.
    """
    if scope >= 3:
        return (
            "kernel.yama.ptrace_scope is 3: nobody may attach before the "
            "node is started again with a lower one; the Python stacks of a "
            "job that called enable_flight_recorder() need no attaching"
        )
    return (
        f"kernel.yama.ptrace_scope is {scope}: sysctl -w "
        "kernel.yama.ptrace_scope=0 (on the node, as root), or run as root "
        "with CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
    )


@cache  # a filter, once there, cannot be taken away
def ptrace_is_filtered() -> bool:
    """
    Does a seccomp filter refuse ``ptrace`` to us and to our tools?
    """
    status = parse_status(read_proc("/proc/self/status"))
    if status.get("Seccomp", "0") == "0":
        return False

    argv = [sys.executable, "-I", "-S", "-c", _ASK_FILTER]
    try:
        answer = subprocess.run(
            argv, capture_output=True, timeout=10, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer in _REFUSALS


def _may_not_open(pid: int) -> int | None:
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as exc:
        return exc.errno
    return None


def _reason(
    pid: int, ours: dict[str, str], theirs: dict[str, str], scope: int
) -> tuple[CaptureStatus, str]:
    if scope >= 3:
        return CaptureStatus.YAMA, yama_remedy(scope)
    if can_trace(ours):
        return CaptureStatus.NOT_PERMITTED, (
            "run in the user namespace of the process, such as by "
            f"nsenter -t {pid} -U -p -m, and look for AppArmor or SELinux in "
            f"/proc/{pid}/attr/current"
        )
    return _reason_without_right(pid, ours, theirs, scope)


def _reason_without_right(
    pid: int, ours: dict[str, str], theirs: dict[str, str], scope: int
) -> tuple[CaptureStatus, str]:
    is_root = _ids(ours)[1:2] == ["0"]
    is_same_user = set(_ids(theirs)[:3]) <= {*_ids(ours)[1:2]}
    if not is_same_user and not is_root:
        user = (_ids(theirs) or ["?"])[0]
        return CaptureStatus.OTHER_USER, (
            f"run as its user or as root: sudo -u '#{user}' python -m "
            "distdebug stacks …"
        )
    if not is_same_user or _mask(theirs, "CapPrm") & ~_mask(ours, "CapPrm"):
        return CaptureStatus.NO_CAPABILITY, _IN_CONTAINER
    if not is_root and _keeps_secrets(pid):
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


def _is_below_us(pid: int) -> bool:
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        stat = parse_stat(read_proc(f"/proc/{pid}/stat"))
        pid = stat.parent_pid if stat is not None else 0
        if pid == os.getpid():
            return True
    return False


def _ids(status: dict[str, str]) -> list[str]:
    return status.get("Uid", "").split()


def _mask(status: dict[str, str], name: str) -> int:
    try:
        return int(status.get(name, "0"), 16)
    except ValueError:
        return 0


def _keeps_secrets(pid: int) -> bool:
    """
    The kernel gives the files of those to root who must not be looked into.
    """
    try:
        return os.stat(f"/proc/{pid}/environ").st_uid == 0  # noqa: PTH116
    except OSError:
        return False


# The root of the process shows what is installed there.
_PLACES = ("usr/local/bin", "usr/bin", "bin", "opt/conda/bin", "opt/venv/bin")


def proc_is_foreign() -> bool:
    """
    Does ``/proc`` show the processes of another PID namespace than ours?
    """
    return read_link("/proc/self") not in {"", str(os.getpid())}


def enter_namespace(pid: int, inside: int = 0) -> str:
    """
    What to do to look from inside the container of a process.

    Args:
        pid: Its number here.

        inside: Its number there; 0 if unknown.
    """
    there = f" --pid {inside}" if inside not in {0, pid} else ""
    return (
        f"run in its container: nsenter -t {pid} -p -m -- python -m distdebug "
        f"stacks{there}, docker exec, or kubectl debug -it POD "
        "--target=CONTAINER --profile=sysadmin"
    )


def argv_inside(
    tool: str, pid: int, state: ProcessState
) -> tuple[list[str], int] | None:
    """
    How is a tool run on a process, from inside the container of that?

    Args:
        tool: Such as ``"gdb"``.

        pid: The process.

        state: What the kernel told about it.

    Returns:
        The start of a command line, and the number of the process for it;
        ``None`` if the tool is neither here nor there, or we may not go there.
    """
    if state.pid_inside in {0, pid}:
        path = find_tool(tool)
        return None if path is None else ([path], pid)

    enter, path = find_tool("nsenter"), _path_inside(tool, pid)
    if enter is None or path is None or os.geteuid() != 0:
        return None
    return [enter, "-t", str(pid), "-p", "-m", "--", path], state.pid_inside


def outer_numbers(
    threads: tuple[ThreadStack, ...], pid: int, inside: int
) -> tuple[ThreadStack, ...]:
    """
    What are the threads called here that a tool saw from inside a container?

    Args:
        threads: What the tool told.

        pid: The number of their process here.

        inside: Its number there.
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


def _path_inside(
    tool: str, pid: int, places: Sequence[str] = _PLACES
) -> str | None:
    for place in places:
        path = f"/{place}/{tool}"
        if os.access(f"/proc/{pid}/root{path}", os.X_OK):
            return path
    return None


# Tools tell what is wrong at once, or last.
_MOST_SAID = 1 << 14

_INSTALL = {
    "py-spy": "pip install py-spy",
    "pystack": "pip install pystack",
    "gdb": "apt-get install gdb (or dnf install gdb)",
    "cuda-gdb": (
        "install the CUDA toolkit's debugger (apt-get install cuda-gdb-12-8, "
        "or nvidia-cuda-gdb of Debian), or put it on PATH"
    ),
}
# What to do about a process that is not there any more.
HAS_ENDED = "it has ended: look at its exit status and its log"

_IS_MISSING = re.compile(
    r"cannot be run: \[Errno (2|13|8)\]|command not found|"
    r"failed to execute .*: (No such file|Permission)"
)
_NO_PYTHON = re.compile(
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
    r"process is running|/task\b|ESRCH",
)
_TRACED = re.compile(r"already traced by process (\d+)")
# Said on the way, also when all goes well.
_NOISE = re.compile(
    r"^(\[|Using host lib|Reading symbols|BFD: |0x[0-9a-f]+ in |#|"
    r"warning: (`|File|Error disabling|Unable to open|could not find))"
)


class Explanation(NamedTuple):
    """
    Why an attempt failed.

    Attributes:
        status: The reason.

        detail: What the tool said, in one line.

        remedy: What to do about it, or ``""``.
    """

    status: CaptureStatus
    detail: str
    remedy: str


def status_of_state(
    state: ProcessState | None, pid: int | None = None
) -> tuple[CaptureStatus, str] | None:
    """
    Does its state keep a process from being looked into, or from running?

    Args:
        state: What the kernel told; ``None`` if it told nothing.

        pid: Its number, if the remedy is to name it, and to tell one that is
            gone from one of which nothing could be read.

    Returns:
        What is the matter, and what to do about it; ``None`` if nothing is.
    """
    name = "PID" if pid is None else str(pid)
    if state is None or state.letter in "Xx":
        hidden = None if state or pid is None else why_hidden(pid)
        return hidden or (CaptureStatus.EXITED, HAS_ENDED)
    if state.letter == "Z":
        return CaptureStatus.ZOMBIE, (
            f"{HAS_ENDED}, and at its parent, which has not noticed yet "
            f"(ps -o ppid= -p {name})"
        )
    if state.tracer_pid:
        return CaptureStatus.TRACED_BY_OTHER, _end_tracer(state.tracer_pid)
    if state.letter in "Tt":
        return CaptureStatus.STOPPED, (
            f"somebody stopped it; it goes on with kill -CONT {name}"
        )
    if state.letter == "D" or state.uninterruptible:
        return CaptureStatus.UNINTERRUPTIBLE, (
            "it waits inside the kernel, for a disk, a network file system, "
            "or a driver, and nothing can attach before that is over: see "
            f"/proc/{name}/stack as root, and dmesg"
        )
    return None


def explain_failure(
    tool: str,
    pid: int,
    exit_status: int | None,
    text: str,
    state_before: ProcessState | None,
) -> Explanation:
    """
    Why did a tool fail on a process?

    Args:
        tool: Such as ``"py-spy"``.

        pid: The process.

        exit_status: What the tool ended with; ``None`` if its time was over.

        text: What it said.

        state_before: What the kernel told about the process before.

    Returns:
        The reason, in the words of the tool, and what to do.
    """
    text = _ends_of(text)
    detail = _gist(text)
    status, remedy = (
        _of_tool(tool, exit_status, text)
        or _of_end(pid, state_before)
        or _of_state(pid, exit_status, state_before, text)
        or _of_text(tool, pid, state_before, text)
    )
    return Explanation(status, detail, remedy)


def remedy_for_missing(tool: str) -> str:
    """
    How is this tool installed?

    Args:
        tool: Such as ``"py-spy"``.
    """
    return _INSTALL.get(tool, f"install {tool}, or put it on PATH")


def _of_tool(
    tool: str, exit_status: int | None, text: str
) -> tuple[CaptureStatus, str] | None:
    if exit_status in {126, 127} or _IS_MISSING.search(text):
        return CaptureStatus.TOOL_MISSING, remedy_for_missing(tool)
    return None


def _of_end(
    pid: int, before: ProcessState | None
) -> tuple[CaptureStatus, str] | None:
    now = read_state(pid)
    if now is None:
        return status_of_state(None, pid)
    if before is None or now.start_ticks != before.start_ticks:
        return CaptureStatus.EXITED, HAS_ENDED
    return status_of_state(now, pid) if now.has_ended else None


def _of_state(
    pid: int, exit_status: int | None, before: ProcessState | None, text: str
) -> tuple[CaptureStatus, str] | None:
    traced = _TRACED.search(text)
    if traced:
        return CaptureStatus.TRACED_BY_OTHER, _end_tracer(int(traced[1]))

    told = status_of_state(before, pid)
    if exit_status is None:
        return told or _why_late(pid)
    # Tools that only read memory are not kept from it by any state; and many
    # a thread waits inside the kernel for a moment.
    if told is None or told[0] is CaptureStatus.UNINTERRUPTIBLE:
        return None
    return None if _NO_PYTHON.search(text) else told


def _why_late(pid: int) -> tuple[CaptureStatus, str]:
    told = status_of_state(read_state(pid), pid)
    if told is not None and told[0] is CaptureStatus.UNINTERRUPTIBLE:
        return told
    return CaptureStatus.TIMED_OUT, (
        "allow more time: on a busy node, or with symbols on a slow file "
        "system, it takes longer"
    )


def _of_text(
    tool: str, pid: int, before: ProcessState | None, text: str
) -> tuple[CaptureStatus, str]:
    inside = before.pid_inside if before is not None else 0
    if _NO_PYTHON.search(text):
        return _which_python(tool, pid)
    if _NAMESPACE.search(text) or proc_is_foreign():
        return CaptureStatus.OTHER_NAMESPACE, enter_namespace(pid, inside)
    if _DENIED.search(text):
        return _who_denies(pid)
    if inside not in {0, pid}:
        return CaptureStatus.OTHER_NAMESPACE, enter_namespace(pid, inside)
    remedy = (
        "a thread ended meanwhile: try again" if _GONE.search(text) else ""
    )
    return CaptureStatus.TOOL_FAILED, remedy


def _who_denies(pid: int) -> tuple[CaptureStatus, str]:
    now = read_state(pid)
    if now is not None and now.tracer_pid:
        return CaptureStatus.TRACED_BY_OTHER, _end_tracer(now.tracer_pid)
    return why_denied(pid) or (
        CaptureStatus.NOT_PERMITTED,
        "run as root, and in a container with --cap-add SYS_PTRACE",
    )


def _end_tracer(tracer: int) -> str:
    stat = parse_stat(read_proc(f"/proc/{tracer}/stat"))
    name = f" ({clean(stat.name)})" if stat is not None else ""
    return (
        f"process {tracer}{name} is attached to it, and only one debugger can "
        "be: detach or end that one"
    )


def _which_python(tool: str, pid: int) -> tuple[CaptureStatus, str]:
    if not _runs_python(pid):
        return CaptureStatus.NOT_PYTHON, "name a process that runs Python"
    return CaptureStatus.UNSUPPORTED_PYTHON, (
        f"this {tool} does not know the Python of the process (too new, "
        f"free-threaded, or stripped): pip install --upgrade {tool}, or look "
        "with gdb: python -m distdebug stacks --native"
    )


def _runs_python(pid: int) -> bool:
    program = read_link(f"/proc/{pid}/exe").rpartition("/")[2]
    if program.startswith(("python", "pypy")):
        return True
    maps = read_proc(f"/proc/{pid}/maps", limit=1 << 24) or b""
    return b"/libpython" in maps


def _ends_of(text: str) -> str:
    """
    The beginning and the end of what a tool that did not stop said.
    """
    if len(text) <= 2 * _MOST_SAID:
        return text
    return f"{text[:_MOST_SAID]}\n{text[-_MOST_SAID:]}"


def _gist(text: str) -> str:
    """
    What a tool said, less what it says always, in one line.
    """
    lines = [
        line.strip()
        for line in text.partition("Stack backtrace:")[0].splitlines()
        if line.strip() and not _NOISE.search(line.strip())
    ]
    telling = [s for s in lines if _is_telling(s)]
    return clean(" ".join((telling or lines)[-4:]), limit=300)


def _is_telling(line: str) -> bool:
    known = (_NO_PYTHON, _NAMESPACE, _DENIED, _GONE, _TRACED, _IS_MISSING)
    return "rror" in line or any(k.search(line) for k in known)


_WORDS = {True: "ok", False: "PROBLEM", None: "note"}


@attrs.frozen
class Check:
    """
    One thing that capturing depends on.

    Attributes:
        name: What was checked.

        ok: Whether it is as it should be; ``None`` if one can do without.

        detail: What was found.

        remedy: What to do about it, or ``""``.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def check_blocks(checks: Sequence[Check]) -> Iterator[Block]:
    """
    What is there to show of some checks?

    Args:
        checks: What was checked.

    Returns:
        A table, and what to do where something is not as it should be.
    """
    rows = [(_WORDS[c.ok], c.name, c.detail) for c in checks]
    yield Table(("", "check", "found"), rows, most=len(rows))
    yield Lines(
        [
            f"{c.name}: {c.remedy}"
            for c in checks
            if c.ok is not True and c.remedy
        ]
    )


# Who reads a file waits inside the kernel for a moment, again and again.
_LOOKS, _BETWEEN_S = 4, 0.05


def attach_hindrance(pid: int) -> tuple[CaptureStatus, str] | None:
    """
    What keeps a tool from attaching to this process?

    It is found out without touching the process.

    Args:
        pid: A process of this node.

    Returns:
        What is in the way, and what to do about it; ``None`` if a tool may
        try.
    """
    state = read_state(pid)
    reason = "" if state is None or state.tracer_pid else why_never(pid)
    if reason:
        return CaptureStatus.SKIPPED, f"{reason}: name a process of the job"

    told = status_of_state(state, pid)
    if state is None:
        return told
    if told is not None and told[0] is CaptureStatus.UNINTERRUPTIBLE:
        told = _settled(pid)
    if told is not None:
        return told

    if proc_is_foreign():
        return CaptureStatus.OTHER_NAMESPACE, enter_namespace(pid, 0)
    denied = why_denied(pid)
    if denied is None and state.pid_inside != pid:
        remedy = enter_namespace(pid, state.pid_inside)
        return CaptureStatus.OTHER_NAMESPACE, remedy
    return denied


def _settled(pid: int) -> tuple[CaptureStatus, str] | None:
    """
    Does a thread stay uninterruptible for longer than a moment?
    """
    state: ProcessState | None = read_state(pid)
    stuck = _waiting(state)
    for _ in range(_LOOKS):
        time.sleep(_BETWEEN_S)
        state = read_state(pid)
        stuck &= _waiting(state)
        if not stuck:
            break
    told = status_of_state(state, pid)
    if told is not None and told[0] is CaptureStatus.UNINTERRUPTIBLE:
        return told if stuck else None
    return told


def _waiting(state: ProcessState | None) -> set[int]:
    return set(state.uninterruptible) if state is not None else set()
