"""
How does VS Code attach to all who wait in Ray's debugger, at once?

The form is that of a ``launch.json`` for the Python debugger of VS Code.  It
does without Ray's extension, and each client of debugpy reads it.
"""

from __future__ import annotations

import json
import os
import re
import stat

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._io import is_folder, read_ordinary, write_whole
from .._text import clean
from ..errors import LaunchFileError
from .debugger_sessions import RayDebuggerCheck, RayDebugSession


# What begins so is ours, and is replaced as a whole.
_OURS = "distdebug Ray: "
_ALL = f"{_OURS}all"
_MOST_BYTES = 1 << 20
_MOST_NAME = 150
# Where Ray unpacks what a job brings.
_UNPACKED = re.compile(
    r"(?P<root>.{1,1000}?/runtime_resources/(?:working_dir_files|"
    r"py_modules_files)/[^/]{1,255})(?:/|$)"
)


def launch_json(
    waiting: RayDebuggerCheck | Iterable[RayDebugSession],
    *,
    path_mappings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """
    Which configurations attach to these sessions?

    Args:
        waiting: What `ray_debug_sessions` or `check_ray_debugger` returned;
            of the former the names tell the lines.

        path_mappings: Folders of the nodes, by the folder that holds the same
            files where VS Code runs; by default the copy of the working
            folder that Ray made for the job stands for the folder opened
            there, and all else lies at the same path.

    Returns:
        A whole ``launch.json``: a configuration for each session of debugpy,
        and a compound that starts all.  Sessions of the older debugger have
        none, since VS Code cannot attach to them.
    """
    if isinstance(waiting, RayDebuggerCheck):
        waiting = waiting.sessions
    sessions = [s for s in waiting if s.kind == "debugpy"]
    names = _names(sessions)
    configurations = [
        {
            "name": name,
            "type": "debugpy",
            "request": "attach",
            "connect": {"host": session.host, "port": session.port},
            "justMyCode": False,
            **_mappings(session, path_mappings),
        }
        for name, session in zip(names, sessions, strict=True)
    ]
    compounds = [{"name": _ALL, "configurations": names}] if names else []
    return {
        "version": "0.2.0",
        "configurations": configurations,
        "compounds": compounds,
    }


def write_launch_json(
    path: str | os.PathLike[str], launch: Mapping[str, Any]
) -> Path:
    """
    Put these configurations into a ``launch.json``.

    What else is there stays as it is.  Our own configurations of an earlier
    time go, because their ports do not last.

    Args:
        path: The file, or a folder, whose ``.vscode/launch.json`` it is then.

        launch: What `launch_json` returned.

    Returns:
        The file.

    Raises:
        LaunchFileError: What is there is no plain JSON, such as one with
            comments, which would be lost, or cannot be read or written.
    """
    file = _target(Path(path))
    there = _existing(file)
    merged = {**there}
    for key in ("version", "configurations", "compounds"):
        merged.setdefault(key, launch[key])
    for key in ("configurations", "compounds"):
        merged[key] = _merged(there.get(key, []), launch[key], key, file)
    text = json.dumps(merged, indent=4, ensure_ascii=False) + "\n"
    try:
        mode = stat.S_IMODE(file.stat().st_mode) if there else None
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text.encode("utf-8", "surrogatepass"))
        if mode is not None:
            file.chmod(mode)
    except OSError as exc:
        raise _refused(file, f"it cannot be written: {exc}") from exc
    return file


def _target(path: Path) -> Path:
    file = path / ".vscode" / "launch.json" if is_folder(path) else path
    try:
        # A link stays one.
        return file.resolve()
    except (OSError, RuntimeError) as exc:
        raise _refused(file, f"it cannot be found: {exc}") from exc


def _names(sessions: Sequence[RayDebugSession]) -> list[str]:
    """
    A name for each, which its address makes the only one.
    """
    return [
        _OURS
        + clean(f"{session.title}{_where(session)}", limit=_MOST_NAME)
        + f", {clean(session.node, limit=_MOST_NAME)} "
        + f"{clean(session.host)}:{session.port}"
        for session in sessions
    ]


def _where(session: RayDebugSession) -> str:
    place = session.location
    if place is None:
        return ""
    return f" {place.brief.rpartition('(')[2].rstrip(')')}"


def _mappings(
    session: RayDebugSession, given: Mapping[str, str] | None
) -> dict[str, Any]:
    if given is None:
        files = [place.file for place in session.locations]
        roots = [_UNPACKED.match(x) for x in [*files, f"{session.cwd}/"]]
        found = dict.fromkeys(match["root"] for match in roots if match)
        pairs = [("${workspaceFolder}", root) for root in found]
    else:
        pairs = list(given.items())
    if not pairs:
        return {}
    return {
        "pathMappings": [
            {"localRoot": local, "remoteRoot": remote}
            for local, remote in pairs
        ]
    }


def _existing(file: Path) -> dict[str, Any]:
    try:
        data = read_ordinary(file, _MOST_BYTES)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise _refused(file, f"it cannot be read: {exc}") from exc
    try:
        there = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as exc:
        reason = f"it is no plain JSON, perhaps for its comments: {exc}"
        raise _refused(file, reason) from exc
    if not isinstance(there, dict):
        raise _refused(file, "it is no launch.json")
    return there


def _merged(
    old: object, new: Sequence[Any], key: str, file: Path
) -> list[Any]:
    if not isinstance(old, list):
        raise _refused(file, f"{key!r} is no list in it")
    return [*(entry for entry in old if not _is_ours(entry)), *new]


def _is_ours(entry: object) -> bool:
    name = entry.get("name") if isinstance(entry, dict) else None
    return isinstance(name, str) and name.startswith(_OURS)


def _refused(file: Path, reason: str) -> LaunchFileError:
    msg = f"{file} is left as it is: {reason}"
    return LaunchFileError(
        msg, remedy="write to another file, and copy what you want of it"
    )
