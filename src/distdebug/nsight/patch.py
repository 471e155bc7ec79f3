"""
Patch Ray's nsight plugin so that workers start with the right Python.

Ray's plugin replaces the interpreter of a worker by whatever ``python`` is
on ``PATH``.  The patch keeps the interpreter that the worker would have.
"""

from __future__ import annotations

import ast
import errno
import functools
import importlib.util
import logging
import os
import re
import stat
import time

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import attrs

from .._io import (
    file_lock,
    is_file,
    is_folder,
    is_there,
    matching,
    open_ordinary,
    open_whole,
    read_ordinary,
)
from .._render import Block, Lines, Shown, as_plain
from ..processes import read_proc


_AGENT_PROGRAM = "_private/runtime_env/agent/main.py"
# Newer versions replace the command line by this title.
_AGENT_TITLE = "ray::RuntimeEnvAgent"
_MAX_MAPS_BYTES = 1 << 22


def find_stale_agents(plugin: Path) -> tuple[int, ...]:
    """
    Return the process IDs of agents that started before the plugin changed.

    Agents of other installations of Ray are left out.

    Args:
        plugin: The file of the plugin.
    """
    import psutil

    pids = []
    with suppress(OSError, IndexError):
        written = plugin.stat().st_mtime
        package = plugin.resolve().parents[2]
        for process in list_node_processes():
            with suppress(psutil.Error, OSError):
                if process.create_time() < written and _is_agent(
                    process.pid, process.cmdline(), package
                ):
                    pids.append(process.pid)
    return tuple(sorted(pids))


def _is_agent(pid: int, argv: list[str], package: Path) -> bool:
    if argv and argv[0].startswith(_AGENT_TITLE):
        maps = read_proc(f"/proc/{pid}/maps", limit=_MAX_MAPS_BYTES)
        library = bytes(package / "_raylet.so")
        return maps is None or library in maps

    # The interpreter, its options, and then the program.
    for argument in argv[1:5]:
        if argument.endswith(_AGENT_PROGRAM) and argument.startswith("/"):
            return Path(argument).resolve().is_relative_to(package)
    return False


_HEADER_BYTES = 16
# Header flags of PEP 552: the file holds a hash; Python compares it.
_HAS_HASH, _CHECKS_SOURCE = 1, 2


def _stale_bytecode(plugin: Path, source: bytes) -> tuple[str, ...]:
    """
    Return compiled files that Python would load despite another source.

    These are files with an unchecked hash, of every version of Python and
    every optimization level.
    """
    digest = importlib.util.source_hash(source)
    files = _compiled_files(plugin)
    return tuple(str(file) for file in files if _is_stale(file, digest))


def _compiled_files(source: Path) -> list[Path]:
    pattern = re.compile(rf"{re.escape(source.stem)}\.[\w-]+(\.opt-\w+)?\.pyc")
    # Both are the same folder, unless PYTHONPYCACHEPREFIX is set.
    folders = {source.parent / "__pycache__"}
    with suppress(NotImplementedError):
        cached = importlib.util.cache_from_source(str(source))
        folders.add(Path(cached).parent)
    return [
        file
        for folder in sorted(folders)
        for file in matching(folder, "*.pyc")
        if pattern.fullmatch(file.name)
    ]


def _is_stale(file: Path, source_hash: bytes) -> bool:
    try:
        with open_ordinary(file, "not an ordinary file") as stream:
            header = stream.read(_HEADER_BYTES)
    except (OSError, ValueError):
        return False

    flags = int.from_bytes(header[4:8], "little")
    is_unchecked = flags & _HAS_HASH and not flags & _CHECKS_SOURCE
    return bool(is_unchecked) and header[8:16] != source_hash


_PLUGIN_FOLDER = Path("_private", "runtime_env")
_PLUGIN_NAME = "nsight.py"
_MAX_VERSION_BYTES = 1 << 16
_VERSION_LINE = re.compile(
    r"""^\s{0,9}version\s{0,9}=\s{0,9}["']([^"'\n]{1,100})["']""", re.MULTILINE
)


def find_plugin(path: str | os.PathLike[str] | None = None) -> Path | None:
    """
    Return the file of Ray's nsight plugin; ``None`` if there is none.

    Args:
        path: The file itself, the package ``ray``, or a folder that it is
            installed in, such as ``site-packages`` or a virtual environment;
            by default the package that ``import ray`` would load.
    """
    if path is None:
        package = _find_ray_package()
        folders = [package] if package else []
    else:
        absolute = Path(os.path.abspath(path))  # noqa: PTH100 links stay as they are
        if absolute.name == _PLUGIN_NAME:
            return absolute if is_file(absolute) else None
        folders = [absolute, absolute / "ray"]
        folders += matching(absolute, "lib*/python3*/site-packages/ray")
    files = (folder / _PLUGIN_FOLDER / _PLUGIN_NAME for folder in folders)
    return next(filter(is_file, files), None)


def ray_version(plugin: Path) -> str | None:
    """
    Return the version of the Ray package of a plugin; ``None`` if unknown.

    Args:
        plugin: As `find_plugin` returns it.
    """
    try:
        text = read_ordinary(
            plugin.parents[2] / "_version.py", _MAX_VERSION_BYTES
        )
    except (OSError, ValueError, IndexError):
        return None

    match = _VERSION_LINE.search(text.decode("utf-8", "replace"))
    return match[1] if match else None


def has_py_executable() -> bool | None:
    """
    Return whether the installed Ray supports ``py_executable``.

    Returns:
        ``None`` if Ray is not installed.
    """
    package = _find_ray_package()
    if package is None:
        return None

    return is_there(package / _PLUGIN_FOLDER / "py_executable.py")


def _find_ray_package() -> Path | None:
    try:
        spec = importlib.util.find_spec("ray")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin:
        return None

    # In an archive, the folder does not exist.
    folder = Path(spec.origin).parent
    return folder if is_folder(folder) else None


PatchState = Literal[
    "needs_patch",
    "patched",
    "fixed_upstream",
    "unknown",
    "absent",
    "read_only",
    "not_permitted",
    "busy",
]

_STATE_TEXTS: dict[PatchState, str] = {
    "needs_patch": "starts workers with whatever 'python' is on PATH",
    "patched": "is patched: it starts workers with the right Python",
    "fixed_upstream": "starts workers with the right Python by itself",
    "unknown": "has a text that is not known, and is left alone",
    "absent": "is not installed here",
    "read_only": "cannot be changed: its file system is read-only",
    "not_permitted": "cannot be changed by this user",
    "busy": "was not changed",
}
_REMEDIES: dict[PatchState, str] = {
    "needs_patch": "run 'distdebug nsight patch' on every node before "
    "'ray start', or start workers by mode=\"py_executable\"",
    "unknown": "look at the line that sets context.py_executable, or start "
    'workers by mode="py_executable"',
    "absent": "name the environment that Ray runs in",
    "read_only": "patch it while the image is built, or start workers by "
    'mode="py_executable"',
    "not_permitted": "let the owner of the file run 'distdebug nsight patch', "
    'or start workers by mode="py_executable"',
    "busy": "try again",
}


@attrs.frozen(kw_only=True)
class PatchStatus(Shown):
    """
    The state of Ray's nsight plugin in one installation.

    Attributes:
        state: ``"needs_patch"``, ``"patched"``, ``"fixed_upstream"``,
            ``"unknown"`` (an unknown text), ``"absent"`` (no such file), or
            why a needed change was not made: ``"read_only"``,
            ``"not_permitted"``, or ``"busy"``.

        path: The file.

        ray_version: The version of its package, if known.

        changed: Whether this call changed the file.

        detail: The error message, if something failed.

        stale_bytecode: Compiled files that Python would load although they do
            not belong to the source.

        stale_agents: Processes of Ray on this node that loaded the plugin
            before it was changed.
    """

    state: PatchState
    path: str | None = None
    ray_version: str | None = None
    changed: bool = False
    detail: str = ""
    stale_bytecode: tuple[str, ...] = ()
    stale_agents: tuple[int, ...] = ()

    @property
    def is_fine(self) -> bool:
        """
        Return whether new workers start with the right Python.
        """
        is_good = self.state in {"patched", "fixed_upstream"}
        return is_good and not self.stale_bytecode and not self.stale_agents

    @property
    def remedy(self) -> str | None:
        """
        Return what to do; ``None`` if nothing.
        """
        if self.state in _REMEDIES:
            return _REMEDIES[self.state]
        if self.stale_bytecode:
            return f"remove {', '.join(self.stale_bytecode)}"
        if self.stale_agents:
            return "restart Ray on this node: 'ray stop', then 'ray start'"
        return None

    @property
    def meaning(self) -> str:
        """
        Return what the state means, as a clause about the plugin.
        """
        return _STATE_TEXTS[self.state]

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        return {**as_plain(self), "fine": self.is_fine, "remedy": self.remedy}

    def _blocks_(self) -> Iterable[Block]:
        version = f" {self.ray_version}" if self.ray_version else ""
        lines = [f"Ray{version}'s nsight plugin {self.meaning}"]
        if self.changed:
            lines[0] += " (changed just now)"
        lines += [f"  {self.path}"] if self.path else []
        lines += [f"  {self.detail}"] if self.detail else []
        lines += [f"  stale byte code: {x}" for x in self.stale_bytecode]
        if self.stale_agents:
            pids = ", ".join(map(str, self.stale_agents))
            lines.append(
                "  Ray runs here already and will not see it: process "
                f"{pids} started before the file got as it is"
            )
        lines += [f"  Try: {self.remedy}"] if self.remedy else []
        yield Lines(lines)


def _replace_plugin(plugin: Path, data: bytes) -> None:
    """
    Replace the file atomically, and keep its mode and owner.

    Raises:
        OSError: It cannot be replaced; the old file is unchanged.
    """
    status = plugin.stat()
    owner = status.st_uid, status.st_gid
    with open_whole(plugin) as file:
        fd = file.fileno()
        created = os.fstat(fd)
        if (created.st_uid, created.st_gid) != owner:
            os.fchown(fd, *owner)
        os.fchmod(fd, stat.S_IMODE(status.st_mode))
        file.write(data)
        file.flush()
        os.fsync(fd)
    _sync_folder(plugin.parent)


def _leftovers(plugin: Path) -> list[Path]:
    """
    Return temporary files of processes that died while they replaced it.
    """
    return matching(plugin.parent, f".{plugin.name}.*.tmp")


# Writing the small file takes no longer, also on a slow file server.
_MAX_WRITE_S = 600.0


def _remove_leftovers(plugin: Path, *, is_exclusive: bool) -> None:
    old = time.time() - _MAX_WRITE_S
    for file in _leftovers(plugin):
        with suppress(OSError):
            # Without a lock, another process may be writing it.
            if is_exclusive or file.lstat().st_mtime < old:
                file.unlink()


def _sync_folder(folder: Path) -> None:
    # Not every file system supports it; the file is in place anyway.
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# Exactly the line of Ray since 2.7, and the line of NeMo RL's patch, so that
# each recognizes the other's patch.
_ORIGINAL_LINE = (
    b'context.py_executable = " ".join(self.nsight_cmd) + " python"'
)
_PATCHED_LINE = (
    b'context.py_executable = " ".join(self.nsight_cmd) + '
    b'f" {context.py_executable}"'
)
_KNOWN_LINES: dict[bytes, PatchState] = {
    _ORIGINAL_LINE: "needs_patch",
    _PATCHED_LINE: "patched",
}
# A line that uses one of these keeps the interpreter.
_INTERPRETER_NAMES = frozenset({"context.py_executable", "sys.executable"})


def classify_source(source: bytes) -> PatchState:
    """
    Return whether the source of a plugin needs the patch.

    Args:
        source: The content of ``nsight.py``.

    Returns:
        ``"needs_patch"``, ``"patched"``, ``"fixed_upstream"``, or
        ``"unknown"``.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "unknown"

    assignments = [
        (function, line)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for line in ast.walk(function)
        if isinstance(line, ast.Assign) and _sets_executable(line)
    ]
    if len(assignments) != 1:
        return "unknown"

    ((function, line),) = assignments
    for known, state in _KNOWN_LINES.items():
        is_same = ast.unparse(line) == ast.unparse(ast.parse(known))
        if is_same and source.count(known) == 1:
            return state
    return "fixed_upstream" if _uses_interpreter(function, line) else "unknown"


def patch_source(source: bytes, *, undo: bool = False) -> bytes:
    """
    Return the source with the patch, or without it; nothing else is changed.

    Args:
        source: The content of ``nsight.py``.

        undo: Take the patch out, so that all bytes are as before.

    Raises:
        ValueError: The source is not one that needs, or has, the patch.
    """
    old, new = _ORIGINAL_LINE, _PATCHED_LINE
    if undo:
        old, new = new, old
    replaced = source.replace(old, new)
    state = "needs_patch" if undo else "patched"
    if source.count(old) != 1 or classify_source(replaced) != state:
        msg = "the text is not one that is known"
        raise ValueError(msg)

    return replaced


def _sets_executable(line: ast.Assign) -> bool:
    return any(ast.unparse(x) == "context.py_executable" for x in line.targets)


def _uses_interpreter(function: ast.FunctionDef, line: ast.Assign) -> bool:
    """
    Return whether the assigned value depends on the old interpreter.
    """
    reachable = _names(line.value)
    for node in reversed(list(ast.walk(function))):
        if isinstance(node, ast.Assign) and node is not line:
            targets = {ast.unparse(x) for x in node.targets}
            reachable |= _names(node.value) if targets & reachable else set()
    return bool(_INTERPRETER_NAMES & reachable)


def _names(value: ast.AST) -> set[str]:
    kinds = (ast.Name, ast.Attribute)
    return {ast.unparse(x) for x in ast.walk(value) if isinstance(x, kinds)}


_MAX_PLUGIN_BYTES = 1 << 20
_WAIT_S = 30.0


def ray_nsight_status(
    path: str | os.PathLike[str] | None = None,
) -> PatchStatus:
    """
    Return the state of Ray's nsight plugin.

    Ray is not imported, and nothing is changed.

    Args:
        path: The plugin, the package ``ray``, or the folder that it is
            installed in; by default the package that ``import ray`` would
            load.

    Returns:
        The state, and the running agents that loaded an older plugin.
    """
    plugin = find_plugin(path)
    if plugin is None:
        shown_path = None if path is None else os.fspath(path)
        return PatchStatus(state="absent", path=shown_path)

    status = PatchStatus(
        state="unknown", path=str(plugin), ray_version=ray_version(plugin)
    )
    try:
        source = read_ordinary(plugin, _MAX_PLUGIN_BYTES)
    except (OSError, ValueError) as exc:
        return _failed_status(status, exc)

    state = classify_source(source)
    return attrs.evolve(
        status,
        state=state,
        stale_bytecode=_stale_bytecode(plugin, source),
        stale_agents=find_stale_agents(plugin) if state == "patched" else (),
    )


def patch_ray_nsight(
    path: str | os.PathLike[str] | None = None, *, wait_s: float = _WAIT_S
) -> PatchStatus:
    """
    Patch Ray's nsight plugin to start workers with the right Python.

    Only the one wrong line is changed, and only if the file still parses.  A
    new file of the same mode and owner replaces the old one atomically, so
    other environments that share it by hard links keep theirs.

    Args:
        path: As for `ray_nsight_status`.

        wait_s: How long to wait for another process that does the same, in
            seconds.

    Returns:
        The new state.  Failures are states, too; nothing is raised.
    """
    return _change_plugin(path, wait_s)


def revert_ray_nsight(
    path: str | os.PathLike[str] | None = None, *, wait_s: float = _WAIT_S
) -> PatchStatus:
    """
    Restore the original text of Ray's nsight plugin, byte for byte.

    Args:
        path: As for `ray_nsight_status`.

        wait_s: How long to wait for another process that does the same, in
            seconds.

    Returns:
        The new state.
    """
    return _change_plugin(path, wait_s, undo=True)


def _change_plugin(
    path: str | os.PathLike[str] | None, wait_s: float, *, undo: bool = False
) -> PatchStatus:
    before = ray_nsight_status(path)
    if before.path is None or before.state == "absent":
        return before

    plugin = Path(before.path)
    is_expected = before.state == _state_before(undo=undo)
    lock = plugin.with_name(f".{plugin.name}.lock")
    # A process that was killed may have left an unfinished change.
    is_clean = not (before.stale_bytecode or _leftovers(plugin))
    if not is_expected and is_clean and not os.path.lexists(lock):
        return before

    try:
        # The replacement is atomic: a lock only avoids double work.
        with file_lock(lock, wait_s) as (_, is_exclusive):
            _remove_leftovers(plugin, is_exclusive=is_exclusive)
            changed = _rewrite_plugin(plugin, undo=undo)
    except (OSError, ValueError) as exc:
        return _failed_status(before, exc) if is_expected else before

    after = ray_nsight_status(plugin)
    agents = find_stale_agents(plugin) if changed else after.stale_agents
    return attrs.evolve(after, changed=changed, stale_agents=agents)


def _state_before(*, undo: bool) -> PatchState:
    return "patched" if undo else "needs_patch"


def _rewrite_plugin(plugin: Path, *, undo: bool) -> bool:
    source = read_ordinary(plugin, _MAX_PLUGIN_BYTES)
    # Another process may have changed it before this one had the lock.
    is_expected = classify_source(source) == _state_before(undo=undo)
    if is_expected:
        _replace_plugin(plugin, patch_source(source, undo=undo))
    for file in _compiled_files(plugin):
        with suppress(OSError):
            file.unlink()
    return is_expected


def _failed_status(status: PatchStatus, exc: Exception) -> PatchStatus:
    states: tuple[tuple[type[Exception], PatchState], ...] = (
        (PermissionError, "not_permitted"),
        (ValueError, "unknown"),
        (FileNotFoundError, "absent"),
    )
    detail = getattr(exc, "strerror", None) or str(exc)
    if isinstance(exc, BlockingIOError):
        detail = "another process is changing it"
    other: PatchState = (
        "read_only" if getattr(exc, "errno", 0) == errno.EROFS else "busy"
    )
    return attrs.evolve(
        status,
        state=next((x for kind, x in states if isinstance(exc, kind)), other),
        detail=detail,
    )


_logger = logging.getLogger("distdebug.nsight")
_ERROR_STATES = ("read_only", "not_permitted", "busy")
# This runs during an import, which must not take long.
_IMPORT_WAIT_S = 5.0


def apply_ray_nsight_patch() -> PatchStatus | None:
    """
    Patch Ray's nsight plugin once, before the application starts Ray.

    Call it in the ``__init__.py`` of an application.  It does not import Ray,
    never raises, and logs only if it changed the file or failed.  It also logs
    if a running cluster does not use the change.

    Returns:
        The state of the plugin; ``None`` if it is unknown.
    """
    return _apply_once()


# Threads that call it at the same time wait for each other by the lock of the
# file.
@functools.cache
def _apply_once() -> PatchStatus | None:
    status = None
    with suppress(Exception):
        status = patch_ray_nsight(wait_s=_IMPORT_WAIT_S)
        is_wrong = status.changed and not status.is_fine
        if status.state in _ERROR_STATES or is_wrong:
            _logger.warning("%s", status)
        elif status.changed:
            _logger.info("%s", status)
    return status


def list_node_processes() -> Iterator[Any]:
    """
    Yield the visible processes of this node; none if listing fails.
    """
    import psutil

    with suppress(OSError):
        yield from psutil.process_iter()
