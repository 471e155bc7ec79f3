"""
Inspect Python environments and paused processes on Ray worker nodes.

Ray sends this module by value: *distdebug* need not be installed on the
worker, so only the standard library is imported.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any


_MOST_REASON = 500
_PARALLEL = 4
# Files of Ray's two debuggers.
_DEBUGGER_FILE = re.compile(
    r"(?:^|[/\\])ray[/\\]util[/\\](?:debugpy|rpdb)\.py$"
)


def tell_environment() -> str:
    """
    Return versions and debugger settings of this worker, as JSON.
    """
    facts = {
        "ray": _version("ray")[0],
        "python": platform.python_version(),
        "executable": sys.executable,
        "RAY_DEBUG": os.environ.get("RAY_DEBUG"),
        "RAY_DEBUG_POST_MORTEM": os.environ.get("RAY_DEBUG_POST_MORTEM"),
    }
    facts["debugpy"], facts["reason"] = _version("debugpy")
    return json.dumps(facts)


def _version(name: str) -> tuple[str | None, str]:
    try:
        return str(import_module(name).__version__), ""
    except Exception as exc:  # noqa: BLE001 -- an import may raise anything
        return None, f"{type(exc).__name__}: {exc}"[:_MOST_REASON]


def see_processes(pids: Sequence[int], timeout_s: float) -> str:
    """
    Find the lines where processes of this node wait in Ray's debugger.

    Args:
        pids: The process ids.

        timeout_s: The timeout for each process, in seconds.

    Returns:
        JSON: for each process id ``title``, ``cwd``, and either ``places`` or
        ``reason``.  There is a place for each thread inside Ray's debugger:
        function, file, and line of its caller, or ``null`` after an exception,
        whose frames are gone.
    """
    tool = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    tool = tool or shutil.which("py-spy")

    with ThreadPoolExecutor(_PARALLEL) as pool:
        futures = {
            str(x): pool.submit(_inspect_process, x, tool, timeout_s)
            for x in pids
        }
    return json.dumps(
        {pid: pending.result() for pid, pending in futures.items()}
    )


def _inspect_process(
    pid: int, tool: str | None, timeout_s: float
) -> dict[str, Any]:
    proc_dir = Path("/proc") / str(pid)
    details: dict[str, Any] = {"title": "", "cwd": "", "reason": ""}
    try:
        title = (proc_dir / "cmdline").read_bytes()[:4096]
        details["title"] = title.decode("utf-8", "replace").strip("\0 ")
        details["cwd"] = str((proc_dir / "cwd").readlink())
        details |= _find_paused_threads(pid, tool, timeout_s)
    except Exception as exc:  # noqa: BLE001 -- the others go on
        details["reason"] = f"{type(exc).__name__}: {exc}"[:_MOST_REASON]
    return details


def _find_paused_threads(
    pid: int, tool: str | None, timeout_s: float
) -> dict[str, Any]:
    if tool is None:
        return {"reason": "py-spy is not installed there"}
    argv = [tool, "dump", "--json", "--nonblocking", "--full-filenames"]
    completed = subprocess.run(
        [*argv, "--pid", str(pid)],
        capture_output=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if completed.returncode == 0:
        # Return only the callers; full stacks of many threads are too large.
        return {"places": list(_find_callers(json.loads(completed.stdout)))}
    complaint = completed.stderr.decode("utf-8", "replace").strip()
    first = complaint.partition("\n")[0]
    return {"reason": f"py-spy: {first}"[:_MOST_REASON]}


def _find_callers(
    threads: Iterable[Mapping[str, Any]],
) -> Iterator[list[object] | None]:
    for thread in threads:
        # py-spy lists the innermost frame first.
        frames = thread["frames"]
        inside = [
            i
            for i, x in enumerate(frames)
            if _DEBUGGER_FILE.search(x["filename"])
        ]
        if not inside:
            continue
        is_post_mortem = any(
            "_post_mortem" in frames[i]["name"] for i in inside
        )
        caller = frames[inside[-1] + 1 :][:1]
        if is_post_mortem or not caller:
            yield None
        else:
            yield [caller[0][key] for key in ("name", "filename", "line")]
