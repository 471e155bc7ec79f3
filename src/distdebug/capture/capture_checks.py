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
from itertools import chain
from typing import IO, cast

from .._proc import find_tool, run_tool
from ..processes import has_node_pids, parse_status, read_proc, read_state
from .blockers import (
    SECCOMP_REMEDY,
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


Result = tuple[bool | None, str, str]
"""``ok``, ``detail``, and ``remedy`` of a `Check`."""


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
        _check_trial_process,
        *(lambda name=name: (_check_tool(name),) for name in _TOOL_USES),
        lambda: tuple(Check(name, *call()) for name, call in _CHECKS.items()),
    ]
    late = Check("checks", ok=False, detail="some were not done in time")
    done = parallel_map(
        lambda check: check(),
        todo,
        timeout_s=_ALL_CHECKS_TIMEOUT_S,
        late=lambda _: (late,),
    )
    return tuple(chain.from_iterable(done))


def _check_trial_process() -> tuple[Check, ...]:
    """
    Check reading of, and attaching to, a process started for this purpose.
    """
    try:
        with _trial_process() as pid:
            return (
                Check("Python stacks", *_try_reading(pid)),
                Check("attaching", *_try_attaching(pid)),
            )
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


def _try_reading(pid: int) -> Result:
    tool = find_tool("py-spy")
    if tool is None:
        return False, "cannot be tried: py-spy is not there", ""

    state = read_state(pid)
    argv = [tool, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    result = run_tool(argv, timeout_s=_TIMEOUT_S)
    if result.status == 0:
        return True, "of a process of ours were read", ""

    why = explain_failure(
        "py-spy", pid, result.status, result.complaint, state
    )
    return False, why.detail, why.remedy


def _try_attaching(pid: int) -> Result:
    argv = [sys.executable, "-I", "-S", "-c", _SEIZE_PROGRAM, str(pid)]
    result = run_tool(argv, timeout_s=_TIMEOUT_S)
    if result.status == 0:
        return True, "to a process of ours works", ""

    number = (result.status or 0) - 100
    reason = os.strerror(number) if number > 0 else "it was killed"
    _, remedy = explain_denial(pid) or ("", "")
    return False, f"{reason}: no native stacks", remedy


_VERSION = re.compile(r"\b(\d{1,4}(?:\.\d{1,6}){1,3})\b")

# The tools, and what the optional ones are for.
_TOOL_USES = {
    "py-spy": "",
    "pystack": "native stacks with the least pause",
    "gdb": "native stacks of programs that are not Python",
    "cuda-gdb": "kernels on GPUs",
}


def _check_tool(name: str) -> Check:
    """
    Check that a tool is installed and starts.
    """
    ok, reinstall = None if _TOOL_USES[name] else False, f"reinstall {name}"
    path = find_tool(name)
    if path is None:
        use = f", for {_TOOL_USES[name]}" if _TOOL_USES[name] else ""
        return Check(name, ok, f"not there{use}", remedy_for_missing(name))

    try:
        result = run_tool([path, "--version"], timeout_s=_TIMEOUT_S)
    except OSError as exc:
        return Check(name, ok, f"cannot be run: {exc}", reinstall)

    found = _VERSION.search(result.output)
    if result.status != 0 or found is None:
        detail = f"{path} does not report its version"
        return Check(name, ok, detail, reinstall)

    version = found[1]
    if name == "cuda-gdb" and version.startswith("11."):
        version += ", whose unwinder is broken; it is replaced"
    return Check(name, ok=True, detail=version)


_ALL_CHECKS_TIMEOUT_S = 10.0
_MIN_FREE_SPACE = 200 << 20
_MIN_FREE_MEMORY = 1 << 30

_ADD_CAPABILITY = (
    "run as root, and in a container with --cap-add SYS_PTRACE (Kubernetes: "
    "securityContext.capabilities.add: [SYS_PTRACE])"
)


def _own_status() -> dict[str, str]:
    return parse_status(read_proc("/proc/self/status"))


def _check_capability() -> Result:
    if has_ptrace_capability(_own_status()):
        return True, "in effect", ""
    # Processes of root have capabilities that this one lacks.
    if os.geteuid() == 0:
        detail = (
            "not in effect, although this is root: processes with more "
            "rights cannot be seen"
        )
        return False, detail, _ADD_CAPABILITY
    detail = "not in effect: only processes of this user can be seen"
    return None, detail, _ADD_CAPABILITY


def _check_yama() -> Result:
    scope = read_yama_scope()
    is_allowed = scope < 3 and has_ptrace_capability(_own_status())
    ok = not scope or is_allowed
    return ok, f"ptrace_scope is {scope}", "" if ok else yama_remedy(scope)


def _check_seccomp() -> Result:
    status = _own_status()
    if status.get("Seccomp", "0") == "0":
        detail = "no filter"
    elif not is_ptrace_filtered():
        detail = "a filter, which lets ptrace pass"
    else:
        detail = "a filter refuses ptrace: no native stacks"
        return False, detail, SECCOMP_REMEDY
    if status.get("NoNewPrivs") == "1":
        detail += "; no_new_privs is set: sudo does not work here"
    return True, detail, ""


def _check_namespace() -> Result:
    if is_proc_foreign():
        return (
            False,
            "/proc shows another one than ours",
            "enter both: nsenter -t PID -p -m, or mount -t proc proc /proc",
        )
    container = "of a container: only its own processes can be seen"
    return True, "that of the node" if has_node_pids() else container, ""


def _check_proc() -> Result:
    mounts = (read_proc("/proc/self/mounts") or b"").decode(errors="replace")
    lines = (line.split() for line in mounts.splitlines())
    options = next(
        (f[3] for f in lines if len(f) > 3 and f[1:3] == ["/proc", "proc"]), ""
    )
    hidden = [o for o in options.split(",") if o.startswith("hidepid=")]
    if hidden and hidden[0][8:] not in {"0", "off"} and os.geteuid():
        detail = f"{hidden[0]}: processes of other users are hidden"
        return None, detail, "run as the user of the job, or as root"
    return True, "shows every process", ""


def _check_space() -> Result:
    try:
        folder = tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        detail = f"no temporary folder can be used: {exc.strerror or exc}"
        remedy = "set TMPDIR to a folder that can be written, and has space"
        return False, detail, remedy

    found = parse_status(read_proc("/proc/meminfo")).get("MemAvailable", "")
    memory = int((found.split() or ["0"])[0]) << 10
    detail = f"{free >> 20} MiB free in {folder}, {memory >> 20} MiB of memory"
    if free >= _MIN_FREE_SPACE and memory >= _MIN_FREE_MEMORY:
        return True, detail, ""
    remedy = "set TMPDIR to a folder with more space, or use fewer tools"
    return None, detail, remedy


def _check_core_dumps() -> Result:
    pattern = read_proc("/proc/sys/kernel/core_pattern") or b""
    name = pattern.decode(errors="replace").strip()
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    if name.startswith("|"):
        return True, f"go to {name[1:].split()[0]}", ""
    if soft == 0:
        detail = "are off: a crash leaves no stack of machine code"
        return None, detail, "ulimit -c unlimited, before the job starts"
    return True, f"are written to {name!r}", ""


def _check_faulthandler() -> Result:
    detail = (
        "a job that called enable_flight_recorder() shows its Python stacks "
        "also where nothing may attach"
    )
    return hasattr(faulthandler, "register") or None, detail, ""


_CHECKS = {
    "CAP_SYS_PTRACE": _check_capability,
    "Yama": _check_yama,
    "seccomp": _check_seccomp,
    "PID namespace": _check_namespace,
    "/proc": _check_proc,
    "space": _check_space,
    "core dumps": _check_core_dumps,
    "faulthandler": _check_faulthandler,
}
