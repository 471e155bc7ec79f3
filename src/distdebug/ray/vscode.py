"""
Write a VS Code launch.json that attaches to paused Ray processes.

The format is that of VS Code's Python debugger.  It does not need Ray's
extension, and other debugpy clients read it, too.
"""

from __future__ import annotations

import json
import os
import re
import stat

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._io import is_folder, read_ordinary, write_whole
from .._text import clean
from ..errors import LaunchFileError
from .debugger_sessions import RayDebuggerCheck, RayDebugSession


# Entries with this prefix are replaced.
_NAME_PREFIX = "distdebug Ray: "
_COMPOUND_NAME = f"{_NAME_PREFIX}all"
_MOST_BYTES = 1 << 20
_MOST_NAME = 150
# Where Ray unpacks the working folder and modules of a job.
_UNPACKED_FOLDER = re.compile(
    r"(?P<root>.{1,1000}?/runtime_resources/(?:working_dir_files|"
    r"py_modules_files)/[^/]{1,255})(?:/|$)"
)


def launch_json(
    waiting: RayDebuggerCheck | Iterable[RayDebugSession],
    *,
    path_mappings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """
    Return a ``launch.json`` that attaches to waiting processes.

    Args:
        waiting: The result of `ray_debug_sessions` or `check_ray_debugger`;
            only the former has the lines for the names.

        path_mappings: Local folders where VS Code runs, each with its folder
            on the nodes; by default Ray's copy of the working folder is mapped
            to the open workspace, and all else has the same path.

    Returns:
        A configuration for each debugpy session, and a compound that starts
        all.  Sessions of the older debugger have none, because VS Code cannot
        attach to them.
    """
    if isinstance(waiting, RayDebuggerCheck):
        waiting = waiting.sessions
    sessions = [s for s in waiting if s.kind == "debugpy"]
    names = [*map(_make_name, sessions)]
    configurations = [
        {
            "name": name,
            "type": "debugpy",
            "request": "attach",
            "connect": {"host": session.host, "port": session.port},
            "justMyCode": False,
            **_make_mappings(session, path_mappings),
        }
        for name, session in zip(names, sessions, strict=True)
    ]
    compounds = (
        [{"name": _COMPOUND_NAME, "configurations": names}] if names else []
    )
    return {
        "version": "0.2.0",
        "configurations": configurations,
        "compounds": compounds,
    }


def write_launch_json(
    path: str | os.PathLike[str], launch: Mapping[str, Any]
) -> Path:
    """
    Merge configurations into a ``launch.json`` file.

    Other entries stay as they are.  Earlier entries of distdebug are replaced,
    because their ports are no longer valid.

    Args:
        path: The file, or a folder that contains ``.vscode/launch.json``.

        launch: The result of `launch_json`.

    Returns:
        The file.

    Raises:
        LaunchFileError: The file is not plain JSON (comments would be lost),
            or cannot be read or written.
    """
    file = _find_target(Path(path))
    existing = _read_existing(file)
    merged = {**existing}
    for key in ("version", "configurations", "compounds"):
        merged.setdefault(key, launch[key])
    for key in ("configurations", "compounds"):
        entries = existing.get(key, [])
        if not isinstance(entries, list):
            raise _make_error(file, f"{key!r} is no list in it")
        others = [x for x in entries if not _is_own_entry(x)]
        merged[key] = [*others, *launch[key]]
    text = json.dumps(merged, indent=4, ensure_ascii=False) + "\n"
    try:
        mode = stat.S_IMODE(file.stat().st_mode) if existing else None
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text.encode("utf-8", "surrogatepass"))
        if mode is not None:
            file.chmod(mode)
    except OSError as exc:
        raise _make_error(file, f"it cannot be written: {exc}") from exc
    return file


def _find_target(path: Path) -> Path:
    file = path / ".vscode" / "launch.json" if is_folder(path) else path
    try:
        # Write to the target, so a link stays a link.
        return file.resolve()
    except (OSError, RuntimeError) as exc:
        raise _make_error(file, f"it cannot be found: {exc}") from exc


def _make_name(session: RayDebugSession) -> str:
    """
    Return a name for a session; the address makes it unique.
    """
    line = ""
    if session.location is not None:
        line = f" {session.location.brief.rpartition('(')[2].rstrip(')')}"
    title = clean(f"{session.title}{line}", limit=_MOST_NAME)
    node = clean(session.node, limit=_MOST_NAME)
    address = f"{clean(session.host)}:{session.port}"
    return f"{_NAME_PREFIX}{title}, {node} {address}"


def _make_mappings(
    session: RayDebugSession, mappings: Mapping[str, str] | None
) -> dict[str, Any]:
    if mappings is None:
        paths = [*(x.file for x in session.locations), f"{session.cwd}/"]
        roots = filter(None, map(_UNPACKED_FOLDER.match, paths))
        pairs = {("${workspaceFolder}", x["root"]): None for x in roots}
    else:
        pairs = dict.fromkeys(mappings.items())
    found = [
        {"localRoot": local, "remoteRoot": remote} for local, remote in pairs
    ]
    return {"pathMappings": found} if found else {}


def _read_existing(file: Path) -> dict[str, Any]:
    try:
        data = read_ordinary(file, _MOST_BYTES)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise _make_error(file, f"it cannot be read: {exc}") from exc
    try:
        existing = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as exc:
        reason = f"it is no plain JSON, perhaps for its comments: {exc}"
        raise _make_error(file, reason) from exc
    if not isinstance(existing, dict):
        raise _make_error(file, "it is no launch.json")
    return existing


def _is_own_entry(entry: object) -> bool:
    name = entry.get("name") if isinstance(entry, dict) else None
    return isinstance(name, str) and name.startswith(_NAME_PREFIX)


def _make_error(file: Path, reason: str) -> LaunchFileError:
    msg = f"{file} is left as it is: {reason}"
    return LaunchFileError(
        msg, remedy="write to another file, and copy what you want of it"
    )
