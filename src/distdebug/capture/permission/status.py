"""
Why could a process not be looked into, and what can be done about it?

What a tool says is seldom the reason: "Operation not permitted" may mean a
zombie, another debugger, a missing right.  So the kernel is asked first.
"""

from __future__ import annotations

import re

from typing import NamedTuple

from ..._text import clean
from ...processes.model import ProcessState
from ...processes.procfs import parse_stat, read_link, read_proc
from ...processes.threads import read_state
from ..model import CaptureStatus
from .denial import why_denied, why_hidden
from .namespace import enter_namespace, proc_is_foreign


__all__ = [
    "HAS_ENDED",
    "Explanation",
    "explain_failure",
    "remedy_for_missing",
    "status_of_state",
]

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
