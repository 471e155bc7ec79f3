"""
At which line of Python is this process?

py-spy reads the memory of the process from outside, so the process need not
cooperate, and is not stopped.
"""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
import time

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import psutil

from ..errors import CaptureError
from ..findings import Missing
from ..identity import identify
from ..stacks.model import ProcessStacks
from ..stacks.parse import parse_stacks
from ..stacks.write import stacks_to_json, stacks_to_text
from .tool import ToolOutput, find_tool, run_tool


__all__ = ["Captured", "capture_process", "capture_processes"]

# py-spy waits for the memory of a process rather than for a processor.
_AT_ONCE = 8
_TRIES = 3
_DENIED = ("permission", "eperm", "not permitted")

_MAY_TRACE = (
    "run as root, start the container with --cap-add SYS_PTRACE, or set "
    "sysctl kernel.yama.ptrace_scope=0"
)


@attrs.frozen(kw_only=True)
class Captured:
    """
    What became of capturing several processes.

    Attributes:
        stacks: The processes that could be captured.

        missing: Those that could not, and why.

        files: What was written, if it was asked for.
    """

    stacks: tuple[ProcessStacks, ...]
    missing: tuple[Missing, ...] = ()
    files: tuple[Path, ...] = ()


def capture_process(pid: int, *, timeout_s: float = 20.0) -> ProcessStacks:
    """
    Where is every Python thread of a process right now?

    Args:
        pid: A process of this node.

        timeout_s: How long it may take, in seconds.

    Returns:
        Its threads.

    Raises:
        CaptureError: py-spy is missing, is not permitted to look, took too
            long; or there is no such process, or it is not one of Python.
    """
    tool = find_tool("py-spy")
    if tool is None:
        msg = "py-spy is not installed"
        raise CaptureError(msg, remedy="pip install py-spy")

    argv = [tool, "dump", "--json", "--nonblocking", "--full-filenames"]
    deadline = time.monotonic() + timeout_s
    for attempt in itertools.count(1):
        left = max(deadline - time.monotonic(), 0.1)
        try:
            got = run_tool([*argv, "--pid", str(pid)], timeout_s=left)
        except OSError as exc:
            msg = f"py-spy cannot be run: {exc}"
            raise CaptureError(msg) from exc
        if got.status == 0:
            break
        failure = _failure(pid, got, timeout_s)
        # A process that runs may change under the eyes of py-spy.
        if failure.remedy is not None or attempt == _TRIES:
            raise failure

    return _with_identity(pid, got.output)


def capture_processes(
    pids: Iterable[int],
    folder: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = 20.0,
) -> Captured:
    """
    Where are the Python threads of several processes right now?

    They are looked at side by side; one that fails does not lose the others.

    Args:
        pids: Processes of this node.

        folder: Where to write ``pyspy_HOST_PID.json`` and ``.txt``; by
            default nothing is written.

        timeout_s: How long each may take, in seconds.

    Returns:
        What could be captured, and what not.
    """
    chosen = tuple(dict.fromkeys(pids))
    with ThreadPoolExecutor(_AT_ONCE, "distdebug capture") as pool:
        results = list(pool.map(lambda p: _try_one(p, timeout_s), chosen))
    stacks = [r for r in results if isinstance(r, ProcessStacks)]
    missing = [r for r in results if isinstance(r, Missing)]
    files: list[Path] = []
    for process in stacks if folder is not None else ():
        try:
            files += _write(process, Path(folder or "."))
        except OSError as exc:
            missing.append(_missing(process.pid, f"not written: {exc}"))
    return Captured(
        stacks=tuple(stacks), missing=tuple(missing), files=tuple(files)
    )


def _try_one(pid: int, timeout_s: float) -> ProcessStacks | Missing:
    try:
        return capture_process(pid, timeout_s=timeout_s)
    except CaptureError as exc:
        remedy = f" (try: {exc.remedy})" if exc.remedy else ""
        return _missing(pid, f"{exc}{remedy}")


def _missing(pid: int, reason: str) -> Missing:
    return Missing(what="stack", reason=reason, source=f"pid {pid}")


def _failure(pid: int, got: ToolOutput, timeout_s: float) -> CaptureError:
    text = " ".join(got.complaint.partition("Stack backtrace:")[0].split())
    if got.status is None:
        msg = f"py-spy did not answer within {timeout_s:g} s for pid {pid}"
        return CaptureError(msg, remedy="try again, with a longer timeout_s")
    if not psutil.pid_exists(pid) or _is_zombie(pid):
        msg = f"process {pid} has ended"
        return CaptureError(msg, remedy="look at its exit status and its log")
    if any(word in text.lower() for word in _DENIED):
        msg = f"no permission to look into process {pid}"
        return CaptureError(msg, remedy=_MAY_TRACE)
    if "python version" in text:
        msg = f"process {pid} is not a Python process"
        return CaptureError(msg, remedy="name a process that runs Python")

    return CaptureError(f"py-spy failed for pid {pid}: {text[:300]}")


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _with_identity(pid: int, output: str) -> ProcessStacks:
    try:
        (stacks,) = parse_stacks(output, "py-spy")
    except ValueError as exc:
        msg = f"py-spy wrote something unexpected about pid {pid}: {exc}"
        raise CaptureError(msg) from exc

    process, parent = _process(pid), None
    try:
        parent = process and process.parent()
        command = " ".join(process.cmdline()) if process else ""
    except psutil.Error:
        command = ""
    rank = _rank(process)
    return attrs.evolve(
        stacks,
        host=socket.gethostname(),
        command=command,
        parent_pid=parent.pid if parent else None,
        # Children inherit the environment of the rank that started them.
        rank=None if rank == _rank(parent) else rank,
    )


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _rank(process: psutil.Process | None) -> int | None:
    try:
        return identify(process.environ()).rank if process else None
    except psutil.Error:
        return None


def _write(process: ProcessStacks, folder: Path) -> list[Path]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stem = f"pyspy_{process.host}_{process.pid}"
    return [
        _write_whole(folder / f"{stem}.json", stacks_to_json(process)),
        _write_whole(folder / f"{stem}.txt", stacks_to_text(process)),
    ]


def _write_whole(path: Path, text: str) -> Path:
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".pyspy-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

    return path
