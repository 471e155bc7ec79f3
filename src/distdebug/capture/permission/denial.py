"""
Why does the kernel not let us look into a process?

The answer to a refused attach is EPERM, whatever the reason.  So the reason is
looked up: the kernel asks the same questions, in this order, when ``mem`` of a
process is opened, which stops nobody.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

from functools import cache

from ...processes.procfs import parse_stat, parse_status, read_proc
from ..model import CaptureStatus


__all__ = [
    "can_trace",
    "ptrace_is_filtered",
    "why_denied",
    "why_hidden",
    "yama_remedy",
    "yama_scope",
]

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
