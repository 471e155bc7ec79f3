"""
What can only a worker of a Ray cluster tell?

This module travels by value: nothing of *distdebug* need be installed where it
runs, so it uses nothing but the standard library.
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
_AT_ONCE = 4
# Both debuggers of Ray.
_DEBUGGER = re.compile(r"(?:^|[/\\])ray[/\\]util[/\\](?:debugpy|rpdb)\.py$")


def tell_environment() -> str:
    """
    What does a breakpoint find in the environment of this worker?

    Returns:
        JSON: versions, and what the debugger is told by the environment.
    """
    told = {
        "ray": _version("ray")[0],
        "python": platform.python_version(),
        "executable": sys.executable,
        "RAY_DEBUG": os.environ.get("RAY_DEBUG"),
        "RAY_DEBUG_POST_MORTEM": os.environ.get("RAY_DEBUG_POST_MORTEM"),
    }
    told["debugpy"], told["reason"] = _version("debugpy")
    return json.dumps(told)


def _version(name: str) -> tuple[str | None, str]:
    try:
        return str(import_module(name).__version__), ""
    except Exception as exc:  # noqa: BLE001 -- whatever keeps it from loading
        return None, f"{type(exc).__name__}: {exc}"[:_MOST_REASON]


def see_processes(pids: Sequence[int], timeout_s: float) -> str:
    """
    Where are these processes of the node, as py-spy sees them?

    Args:
        pids: Their numbers.

        timeout_s: How long each may take, in seconds.

    Returns:
        JSON: of each, by its number, ``title``, ``cwd``, and either
        ``places`` or ``reason``.  There is a place for each thread that is
        inside Ray's debugger: function, file, and line of who called it, or
        ``null`` if an error did, whose frames are gone.
    """
    tool = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    tool = tool or shutil.which("py-spy")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        seen = {str(x): pool.submit(_look, x, tool, timeout_s) for x in pids}
    return json.dumps({pid: look.result() for pid, look in seen.items()})


def _look(pid: int, tool: str | None, timeout_s: float) -> dict[str, Any]:
    home = Path("/proc") / str(pid)
    seen: dict[str, Any] = {"title": "", "cwd": "", "reason": ""}
    try:
        title = (home / "cmdline").read_bytes()[:4096]
        seen["title"] = title.decode("utf-8", "replace").strip("\0 ")
        seen["cwd"] = str((home / "cwd").readlink())
        seen |= _places(pid, tool, timeout_s)
    except Exception as exc:  # noqa: BLE001 -- one costs no other its look
        seen["reason"] = f"{type(exc).__name__}: {exc}"[:_MOST_REASON]
    return seen


def _places(pid: int, tool: str | None, timeout_s: float) -> dict[str, Any]:
    if tool is None:
        return {"reason": "py-spy is not installed there"}
    argv = [tool, "dump", "--json", "--nonblocking", "--full-filenames"]
    got = subprocess.run(
        [*argv, "--pid", str(pid)],
        capture_output=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if got.returncode == 0:
        # All of it would be too much for the way back, from many.
        return {"places": list(_waiting(json.loads(got.stdout)))}
    complaint = got.stderr.decode("utf-8", "replace").strip()
    first = complaint.partition("\n")[0]
    return {"reason": f"py-spy: {first}"[:_MOST_REASON]}


def _waiting(
    threads: Iterable[Mapping[str, Any]],
) -> Iterator[list[object] | None]:
    for thread in threads:
        # The innermost is the first.
        frames = thread["frames"]
        inside = [
            i for i, x in enumerate(frames) if _DEBUGGER.search(x["filename"])
        ]
        if not inside:
            continue
        failed = any("_post_mortem" in frames[i]["name"] for i in inside)
        caller = frames[inside[-1] + 1 :][:1]
        if failed or not caller:
            yield None
        else:
            yield [caller[0][key] for key in ("name", "filename", "line")]
