"""
Check whether this node lets distdebug capture stacks: tools and permissions.
"""

from __future__ import annotations

import faulthandler
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, cast

from ..processes import parse_status, read_link, read_proc, read_state
from .blockers import (
    Check,
    explain_denial,
    explain_failure,
    has_ptrace_capability,
    is_proc_foreign,
    is_ptrace_filtered,
    read_yama_scope,
    remedy_for_missing,
    yama_remedy,
)
from .node import parallel_map
from .tool import find_tool, run_tool


_TIMEOUT_S = 5.0

# Ends when this process ends, because its standard input closes.
_TRIAL_PROGRAM = "import sys; print(flush=True); sys.stdin.read()"

# PTRACE_SEIZE, which does not stop the process; detaches by ending.  It is a
# separate process, as tools are: a parent may trace its own child.
_SEIZE_PROGRAM = (
    "import ctypes as c, sys; libc = c.CDLL(None, use_errno=True); "
    "libc.ptrace.argtypes = (c.c_long, c.c_int, c.c_void_p, c.c_void_p); "
    "failed = libc.ptrace(0x4206, int(sys.argv[1]), None, None); "
    "raise SystemExit(100 + c.get_errno() if failed else 0)"
)


def check_trial_process() -> tuple[Check, ...]:
    """
    Check reading of, and attaching to, a process started for this purpose.
    """
    try:
        with _trial_process() as pid:
            return _try_reading(pid), _try_attaching(pid)
    except OSError as exc:
        detail = f"no process can be started: {exc}"
        return (Check("trial", ok=False, detail=detail),)


@contextmanager
def _trial_process() -> Iterator[int]:
    argv = [sys.executable, "-I", "-S", "-c", _TRIAL_PROGRAM]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            cast(IO[bytes], process.stdout).readline()  # it has started
            yield process.pid
        finally:
            process.kill()


def _try_reading(pid: int) -> Check:
    name, tool = "Python stacks", find_tool("py-spy")
    if tool is None:
        detail = "cannot be tried: py-spy is not there"
        return Check(name, ok=False, detail=detail)

    state = read_state(pid)
    argv = [tool, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    result = run_tool(argv, timeout_s=_TIMEOUT_S)
    if result.status == 0:
        return Check(name, ok=True, detail="of a process of ours were read")

    failure = explain_failure(
        "py-spy", pid, result.status, result.complaint, state
    )
    return Check(name, ok=False, detail=failure.detail, remedy=failure.remedy)


def _try_attaching(pid: int) -> Check:
    name = "attaching"
    argv = [sys.executable, "-I", "-S", "-c", _SEIZE_PROGRAM, str(pid)]
    result = run_tool(argv, timeout_s=_TIMEOUT_S)
    if result.status == 0:
        return Check(name, ok=True, detail="to a process of ours works")

    number = (result.status or 0) - 100
    reason = os.strerror(number) if number > 0 else "it was killed"
    _, remedy = explain_denial(pid) or ("", "")
    return Check(
        name, ok=False, detail=f"{reason}: no native stacks", remedy=remedy
    )


_VERSION = re.compile(r"\b(\d{1,4}(?:\.\d{1,6}){1,3})\b")

# The other tools are optional.
_REQUIRED_TOOLS = {"py-spy"}
_TOOL_USES = {
    "pystack": "native stacks with the least pause",
    "gdb": "native stacks of programs that are not Python",
    "cuda-gdb": "kernels on GPUs",
}


def check_tool(name: str) -> Check:
    """
    Check that a tool is installed and starts.
    """
    ok = False if name in _REQUIRED_TOOLS else None
    path = find_tool(name)
    if path is None:
        use = f", for {_TOOL_USES[name]}" if name in _TOOL_USES else ""
        return Check(name, ok, f"not there{use}", remedy_for_missing(name))

    try:
        result = run_tool([path, "--version"], timeout_s=_TIMEOUT_S)
    except OSError as exc:
        return Check(name, ok, f"cannot be run: {exc}", f"reinstall {name}")

    found = _VERSION.search(result.output)
    if result.status != 0 or found is None:
        detail = f"{path} does not tell its version"
        return Check(name, ok, detail, f"reinstall {name}")

    version = found[1]
    if name == "cuda-gdb" and version.startswith("11."):
        return Check(
            name,
            ok=True,
            detail=f"{version}, whose unwinder is broken; it is replaced",
        )
    return Check(name, ok=True, detail=version)


_ALL_CHECKS_TIMEOUT_S = 10.0
_MIN_FREE_SPACE = 200 << 20
_MIN_FREE_MEMORY = 1 << 30
# PROC_PID_INIT_INO of the kernel.
_INITIAL_NAMESPACE = "pid:[4026531836]"

_ADD_CAPABILITY = (
    "run as root, and in a container with --cap-add SYS_PTRACE (Kubernetes: "
    "securityContext.capabilities.add: [SYS_PTRACE])"
)


def check_capture() -> tuple[Check, ...]:
    """
    Check what this node and container allow, before a job hangs.

    Nothing is changed.  A small process is started to try the tools on.

    Returns:
        All checks; those that failed have a remedy.
    """
    if sys.platform != "linux":
        detail = f"this is {sys.platform}"
        return (Check("Linux", ok=False, detail=detail, remedy="use Linux"),)

    todo: list[Callable[[], tuple[Check, ...]]] = [
        check_trial_process,
        *(lambda name=name: (check_tool(name),) for name in _TOOLS),
        lambda: tuple(check() for check in _CHECKS),
    ]
    done = parallel_map(
        lambda check: check(), todo, timeout_s=_ALL_CHECKS_TIMEOUT_S
    )
    late = Check("checks", ok=False, detail="some were not done in time")
    checks = [c for found in done for c in (found or (late,))]
    return tuple(checks)


def _check_capability() -> Check:
    if has_ptrace_capability(parse_status(read_proc("/proc/self/status"))):
        return Check("CAP_SYS_PTRACE", ok=True, detail="in effect")
    # Processes of root have capabilities that this one lacks.
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
    scope = read_yama_scope()
    is_allowed = has_ptrace_capability(
        parse_status(read_proc("/proc/self/status"))
    )
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
    elif not is_ptrace_filtered():
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
    if is_proc_foreign():
        return Check(
            "PID namespace",
            ok=False,
            detail="/proc shows another one than ours",
            remedy="enter both: nsenter -t PID -p -m, or mount -t proc proc "
            "/proc",
        )
    if read_link("/proc/self/ns/pid") == _INITIAL_NAMESPACE:
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

    memory = _available_memory()
    detail = f"{free >> 20} MiB free in {folder}, {memory >> 20} MiB of memory"
    ok = free >= _MIN_FREE_SPACE and memory >= _MIN_FREE_MEMORY
    remedy = "set TMPDIR to a folder with more space, or use fewer tools"
    return Check("space", ok or None, detail, "" if ok else remedy)


def _available_memory() -> int:
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
