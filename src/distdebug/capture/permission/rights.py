"""
Shall we be able to look into processes, once a job hangs?
"""

from __future__ import annotations

import faulthandler
import os
import resource
import shutil
import sys
import tempfile

from collections.abc import Callable

from ...processes.procfs import parse_status, read_link, read_proc
from ..pool import each
from .check import Check
from .denial import can_trace, ptrace_is_filtered, yama_remedy, yama_scope
from .hindrance import attach_hindrance
from .namespace import proc_is_foreign
from .trial import trial_checks
from .versions import tool_check


__all__ = ["Check", "attach_hindrance", "check_capture"]

_TIMEOUT_S = 10.0
_ENOUGH_SPACE = 200 << 20
_ENOUGH_MEMORY = 1 << 30
# The kernel's own number for the first namespace.
_FIRST_NAMESPACE = "pid:[4026531836]"

_ADD_CAPABILITY = (
    "run as root, and in a container with --cap-add SYS_PTRACE (Kubernetes: "
    "securityContext.capabilities.add: [SYS_PTRACE])"
)


def check_capture() -> tuple[Check, ...]:
    """
    What does this node, and this container, let us see of a job?

    Nothing is changed.  A tiny process of our own is started and looked at.

    Returns:
        Every check, what is in the way being told with its remedy.
    """
    if sys.platform != "linux":
        detail = f"this is {sys.platform}"
        return (Check("Linux", ok=False, detail=detail, remedy="use Linux"),)

    todo: list[Callable[[], tuple[Check, ...]]] = [
        trial_checks,
        *(lambda name=name: (tool_check(name),) for name in _TOOLS),
        lambda: tuple(check() for check in _CHECKS),
    ]
    done = each(lambda check: check(), todo, timeout_s=_TIMEOUT_S)
    late = Check("checks", ok=False, detail="some were not done in time")
    checks = [c for found in done for c in (found or (late,))]
    return tuple(checks)


def _check_capability() -> Check:
    if can_trace(parse_status(read_proc("/proc/self/status"))):
        return Check("CAP_SYS_PTRACE", ok=True, detail="in effect")
    # The processes of root have rights that we then do not have.
    is_root = os.geteuid() == 0
    detail = (
        "not in effect, although this is root: processes with more rights "
        "cannot be seen"
        if is_root
        else "not in effect: only processes of this user can be seen"
    )
    return Check(
        "CAP_SYS_PTRACE",
        ok=False if is_root else None,
        detail=detail,
        remedy=_ADD_CAPABILITY,
    )


def _check_yama() -> Check:
    scope = yama_scope()
    is_allowed = can_trace(parse_status(read_proc("/proc/self/status")))
    if not scope or (is_allowed and scope < 3):
        return Check("Yama", ok=True, detail=f"ptrace_scope is {scope}")
    return Check(
        "Yama",
        ok=False,
        detail=f"ptrace_scope is {scope}",
        remedy=yama_remedy(scope),
    )


def _check_seccomp() -> Check:
    status = parse_status(read_proc("/proc/self/status"))
    if status.get("Seccomp", "0") == "0":
        detail = "no filter"
    elif not ptrace_is_filtered():
        detail = "a filter, which lets ptrace pass"
    else:
        return Check(
            "seccomp",
            ok=False,
            detail="a filter refuses ptrace: no native stacks",
            remedy="start the container with --cap-add SYS_PTRACE, or "
            "with --security-opt seccomp=unconfined",
        )
    if status.get("NoNewPrivs") == "1":
        detail += "; no_new_privs is set: sudo does not work here"
    return Check("seccomp", ok=True, detail=detail)


def _check_namespace() -> Check:
    if proc_is_foreign():
        return Check(
            "PID namespace",
            ok=False,
            detail="/proc shows another one than ours",
            remedy="enter both: nsenter -t PID -p -m, or mount -t proc proc "
            "/proc",
        )
    if read_link("/proc/self/ns/pid") == _FIRST_NAMESPACE:
        return Check("PID namespace", ok=True, detail="that of the node")
    return Check(
        "PID namespace",
        ok=True,
        detail="of a container: only its own processes can be seen",
    )


def _check_proc() -> Check:
    mounts = (read_proc("/proc/self/mounts") or b"").decode(errors="replace")
    lines = (line.split() for line in mounts.splitlines())
    options = next(
        (f[3] for f in lines if len(f) > 3 and f[1:3] == ["/proc", "proc"]), ""
    )
    hidden = [o for o in options.split(",") if o.startswith("hidepid=")]
    if hidden and hidden[0][8:] not in {"0", "off"} and os.geteuid():
        return Check(
            "/proc",
            ok=None,
            detail=f"{hidden[0]}: processes of other users are hidden",
            remedy="run as the user of the job, or as root",
        )
    return Check("/proc", ok=True, detail="shows every process")


def _check_space() -> Check:
    try:
        folder = tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        detail = f"no temporary folder can be used: {exc.strerror or exc}"
        remedy = "set TMPDIR to a folder that can be written, and has space"
        return Check("space", ok=False, detail=detail, remedy=remedy)

    memory = _memory()
    detail = f"{free >> 20} MiB free in {folder}, {memory >> 20} MiB of memory"
    ok = free >= _ENOUGH_SPACE and memory >= _ENOUGH_MEMORY
    remedy = "set TMPDIR to a folder with more space, or use fewer tools"
    return Check("space", ok or None, detail, "" if ok else remedy)


def _memory() -> int:
    found = parse_status(read_proc("/proc/meminfo")).get("MemAvailable", "")
    return int((found.split() or ["0"])[0]) << 10


def _check_core_dumps() -> Check:
    pattern = read_proc("/proc/sys/kernel/core_pattern") or b""
    name = pattern.decode(errors="replace").strip()
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    if name.startswith("|"):
        detail = f"go to {name[1:].split()[0]}"
        return Check("core dumps", ok=True, detail=detail)
    if soft == 0:
        return Check(
            "core dumps",
            ok=None,
            detail="are off: a crash leaves no stack of machine code",
            remedy="ulimit -c unlimited, before the job starts",
        )
    return Check("core dumps", ok=True, detail=f"are written to {name!r}")


def _check_faulthandler() -> Check:
    can = hasattr(faulthandler, "register")
    detail = (
        "a job that called enable_flight_recorder() shows its Python stacks "
        "also where nothing may attach"
    )
    return Check("faulthandler", can or None, detail)


_TOOLS = ("py-spy", "pystack", "gdb", "cuda-gdb")
_CHECKS = (
    *(_check_capability, _check_yama, _check_seccomp),
    *(_check_namespace, _check_proc, _check_space),
    *(_check_core_dumps, _check_faulthandler),
)
