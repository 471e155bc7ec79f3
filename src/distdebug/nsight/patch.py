"""
Does Ray's own nsight plugin start the right Python, and if not, how is it
mended?
"""

from __future__ import annotations

import ast
import errno
import fcntl
import importlib.util
import logging
import os
import re
import stat
import threading
import time

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import attrs
import psutil

from .._io import is_folder, is_there, matching, open_ordinary, read_ordinary
from .._render import Block, Lines, Shown
from ..processes import read_proc


_PROGRAM = "_private/runtime_env/agent/main.py"
# What replaces its command line in newer versions.
_TITLE = "ray::RuntimeEnvAgent"
_MOST_MAPS = 1 << 22


def stale_agents(plugin: Path) -> tuple[int, ...]:
    """
    Which agents on this node started before the plugin was last written?

    Args:
        plugin: The file.

    Returns:
        Their numbers; those that surely are of other installations are left
        out.
    """
    import psutil

    try:
        written = plugin.stat().st_mtime
        package = plugin.resolve().parents[2]
    except (OSError, IndexError):
        return ()

    found = []
    for process in all_processes():
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            if _is_agent(process.pid, words, package) and (
                process.create_time() < written
            ):
                found.append(process.pid)
    return tuple(sorted(found))


def _is_agent(pid: int, words: list[str], package: Path) -> bool:
    if words and words[0].startswith(_TITLE):
        loaded = read_proc(f"/proc/{pid}/maps", limit=_MOST_MAPS)
        library = bytes(package / "_raylet.so")
        return loaded is None or library in loaded

    # An interpreter, perhaps its options, and then the program.
    for word in words[1:5]:
        if word.endswith(_PROGRAM) and word.startswith("/"):
            return Path(word).resolve().is_relative_to(package)
    return False


_HEAD = 16
# Flags of the header: a hash stands in it; and that is compared.
_HAS_HASH, _IS_CHECKED = 1, 2


def stale_bytecode(source: Path) -> tuple[str, ...]:
    """
    Which compiled files would be loaded although the source is another?

    Args:
        source: The source.

    Returns:
        The files, of every version of Python and every optimization.
    """
    try:
        with open_ordinary(source, "not an ordinary file") as file:
            wanted = importlib.util.source_hash(file.read())
    except (OSError, ValueError):
        return ()

    return tuple(
        str(file) for file in _compiled(source) if _is_stale(file, wanted)
    )


def remove_bytecode(source: Path) -> None:
    """
    Remove all compiled files of a source, as far as we may.

    Args:
        source: The source.
    """
    for file in _compiled(source):
        with suppress(OSError):
            file.unlink()


def _compiled(source: Path) -> list[Path]:
    name = re.compile(rf"{re.escape(source.stem)}\.[\w-]+(\.opt-\w+)?\.pyc")
    # The second is the same, unless PYTHONPYCACHEPREFIX is set.
    folders = {source.parent / "__pycache__"}
    with suppress(NotImplementedError):
        cached = importlib.util.cache_from_source(str(source))
        folders.add(Path(cached).parent)
    found = []
    for folder in sorted(folders):
        with suppress(OSError):
            found += [x for x in folder.iterdir() if name.fullmatch(x.name)]
    return sorted(found)


def _is_stale(file: Path, wanted: bytes) -> bool:
    try:
        with open_ordinary(file, "not an ordinary file") as opened:
            head = opened.read(_HEAD)
    except (OSError, ValueError):
        return False

    flags = int.from_bytes(head[4:8], "little")
    is_unchecked = flags & _HAS_HASH and not flags & _IS_CHECKED
    return bool(is_unchecked) and head[8:16] != wanted


_FOLDER = Path("_private", "runtime_env")
_PLUGIN = "nsight.py"
_MOST_BYTES = 1 << 16


def locate_plugin(
    path: str | os.PathLike[str] | None = None,
) -> Path | None:
    """
    Where is the source of Ray's nsight plugin?

    Args:
        path: The file itself, the package ``ray``, or a folder that it is
            installed in, such as ``site-packages`` or a virtual environment;
            by default what ``import ray`` would load.

    Returns:
        The file; ``None`` if there is none.
    """
    if path is None:
        package = _package()
        return package and _ordinary(package / _FOLDER / _PLUGIN)

    given = Path(os.path.abspath(path))  # noqa: PTH100 links stay as they are
    if given.name == _PLUGIN:
        return _ordinary(given)

    folders = [given, given / "ray"]
    folders += matching(given, "lib*/python3*/site-packages/ray")
    files = (_ordinary(folder / _FOLDER / _PLUGIN) for folder in folders)
    return next(filter(None, files), None)


def ray_version(plugin: Path) -> str | None:
    """
    Which version of Ray does this plugin belong to?

    Args:
        plugin: As `locate_plugin` gives it.

    Returns:
        Such as ``"2.60.0"``; ``None`` if its package does not tell.
    """
    try:
        told = read_ordinary(plugin.parents[2] / "_version.py", _MOST_BYTES)
    except (OSError, ValueError, IndexError):
        return None

    for line in told.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == "version":
            return value.strip().strip("\"'") or None
    return None


def has_py_executable() -> bool | None:
    """
    Does the Ray that is installed here start workers by a ``py_executable``?

    Returns:
        Whether it does; ``None`` if there is no Ray.
    """
    package = _package()
    if package is None:
        return None

    return is_there(package / _FOLDER / "py_executable.py")


def _package() -> Path | None:
    try:
        spec = importlib.util.find_spec("ray")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin:
        return None

    # Within an archive, there is no such folder.
    folder = Path(spec.origin).parent
    return folder if is_folder(folder) else None


def _ordinary(path: Path) -> Path | None:
    try:
        return path if path.is_file() else None
    except OSError:
        return None


_STEP_S = 0.02
# Some file systems know no such locks.  Who renames a whole file in place
# needs them only so as not to do the same work twice.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@contextmanager
def file_lock(path: Path, wait_s: float) -> Iterator[None]:
    """
    Let one process at a time change a file.

    Args:
        path: The file of the lock; it is gone afterwards.

        wait_s: How long to wait for another process, in seconds.

    Raises:
        TimeoutError: The other one did not end in time.

        OSError: The lock cannot be made.
    """
    end = time.monotonic() + wait_s
    while True:
        fd = _open(path)
        if _locked(fd, path, end):
            break
        os.close(fd)
    try:
        yield
    finally:
        # While it is held: who waits for it sees that it is gone.
        with suppress(OSError):
            path.unlink()
        os.close(fd)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags | os.O_NONBLOCK, 0o644)


def _locked(fd: int, path: Path, end: float) -> bool:
    """
    Wait for the lock; whether its file is still the one of that name.
    """
    try:
        _wait(fd, path, end)
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
    except BaseException:
        os.close(fd)
        raise


def _wait(fd: int, path: Path, end: float) -> None:
    while not _tried(fd):
        if time.monotonic() >= end:
            msg = "somebody else is changing it"
            raise TimeoutError(errno.ETIMEDOUT, msg, str(path))
        time.sleep(_STEP_S)


def _tried(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        if exc.errno not in _NO_LOCKS:
            raise
    return True


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

_SENTENCES: dict[PatchState, str] = {
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
            ``"unknown"`` (no text that we know), ``"absent"`` (no such file),
            or why nothing was changed that should be: ``"read_only"``,
            ``"not_permitted"``, or ``"busy"``.

        path: The file.

        ray_version: The version of its package, if that tells.

        changed: Whether this call changed the file.

        detail: What the system said, if something went wrong.

        stale_bytecode: Compiled files that Python would load although they do
            not belong to the source.

        stale_agents: Processes of Ray on this node that loaded the plugin
            before the file got as it is, and so know nothing of it.
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
        Whether workers that Ray starts from now on get the right Python.
        """
        is_good = self.state in {"patched", "fixed_upstream"}
        return is_good and not self.stale_bytecode and not self.stale_agents

    @property
    def remedy(self) -> str | None:
        """
        What to do about it; ``None`` if nothing.
        """
        if self.state in _REMEDIES:
            return _REMEDIES[self.state]
        if self.stale_bytecode:
            return f"remove {', '.join(self.stale_bytecode)}"
        if self.stale_agents:
            return "restart Ray on this node: 'ray stop', then 'ray start'"
        return None

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {
            **attrs.asdict(self),
            "stale_bytecode": list(self.stale_bytecode),
            "stale_agents": list(self.stale_agents),
            "fine": self.is_fine,
            "remedy": self.remedy,
        }

    def _blocks_(self) -> Iterable[Block]:
        version = f" {self.ray_version}" if self.ray_version else ""
        lines = [f"Ray{version}'s nsight plugin {_SENTENCES[self.state]}"]
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


def replace_text(path: Path, data: bytes) -> None:
    """
    Replace a file by a new one of the same mode and owner.

    Args:
        path: The file.

        data: All that it is to hold.

    Raises:
        OSError: It cannot be replaced; it is as it was.
    """
    status = path.stat()
    temporary = _temporary(path)
    try:
        _write(temporary, data, status)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync(path.parent)


def lock_of(path: Path) -> Path:
    """
    Which file is locked while another is replaced?

    Args:
        path: The file that is replaced.

    Returns:
        The file of the lock, beside it.
    """
    return path.with_name(f".{path.name}.lock")


def leftovers(path: Path) -> list[Path]:
    """
    What is left by those that were killed while they replaced a file?

    Args:
        path: The file.

    Returns:
        New files that never took its place.
    """
    return matching(path.parent, f".{path.name}.*.distdebug")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.distdebug")


def _write(path: Path, data: bytes, like: os.stat_result) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:  # noqa: PTH123 it has no path
        fd = file.fileno()
        made = os.fstat(fd)
        if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
            os.fchown(fd, like.st_uid, like.st_gid)
        os.fchmod(fd, stat.S_IMODE(like.st_mode))
        file.write(data)
        file.flush()
        os.fsync(fd)


def _sync(folder: Path) -> None:
    # Not every file system can; the file is there nevertheless.
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# Exactly as Ray has it since 2.7, and as NeMo RL patches it: both see each
# other's work.
_BROKEN = b'context.py_executable = " ".join(self.nsight_cmd) + " python"'
_MENDED = (
    b'context.py_executable = " ".join(self.nsight_cmd) + '
    b'f" {context.py_executable}"'
)
# What keeps the interpreter, in whatever form.
_KEEPERS = frozenset({"context.py_executable", "sys.executable"})


def judge_source(source: bytes) -> PatchState:
    """
    With which Python does this plugin start workers?

    Args:
        source: The text of ``nsight.py``.

    Returns:
        ``"needs_patch"``, ``"patched"``, ``"fixed_upstream"``, or
        ``"unknown"``.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "unknown"

    found = [
        (function, line)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for line in ast.walk(function)
        if isinstance(line, ast.Assign) and _sets_executable(line)
    ]
    if len(found) != 1:
        return "unknown"

    ((function, line),) = found
    code = ast.unparse(line).encode()
    if code == _normal(_BROKEN):
        return "needs_patch" if source.count(_BROKEN) == 1 else "unknown"
    if code == _normal(_MENDED):
        return "patched" if source.count(_MENDED) == 1 else "fixed_upstream"
    return "fixed_upstream" if _keeps(function, line) else "unknown"


def mend_source(source: bytes) -> bytes:
    """
    Let the plugin start workers with the Python that they should have.

    Args:
        source: A text that needs it.

    Returns:
        The mended text; nothing else is changed.

    Raises:
        ValueError: The text is not one that can be mended.
    """
    return _swapped(source, _BROKEN, _MENDED, "patched")


def unmend_source(source: bytes) -> bytes:
    """
    Take the mending back.

    Args:
        source: A text that was mended.

    Returns:
        The text from before, byte by byte.

    Raises:
        ValueError: The text is not one that was mended.
    """
    return _swapped(source, _MENDED, _BROKEN, "needs_patch")


def _swapped(
    source: bytes, old: bytes, new: bytes, wanted: PatchState
) -> bytes:
    swapped = source.replace(old, new)
    if source.count(old) != 1 or judge_source(swapped) != wanted:
        msg = "the text is not one that is known"
        raise ValueError(msg)

    return swapped


def _normal(code: bytes) -> bytes:
    return ast.unparse(ast.parse(code)).encode()


def _sets_executable(line: ast.Assign) -> bool:
    return any(ast.unparse(x) == "context.py_executable" for x in line.targets)


def _keeps(function: ast.FunctionDef, line: ast.Assign) -> bool:
    """
    Does what is assigned come from the Python there was, through any names?
    """
    reached = _names(line.value)
    for node in reversed(list(ast.walk(function))):
        if isinstance(node, ast.Assign) and node is not line:
            targets = {ast.unparse(x) for x in node.targets}
            reached |= _names(node.value) if targets & reached else set()
    return bool(_KEEPERS & reached)


def _names(value: ast.AST) -> set[str]:
    kinds = (ast.Name, ast.Attribute)
    return {ast.unparse(x) for x in ast.walk(value) if isinstance(x, kinds)}


_CHANGE_MOST_BYTES = 1 << 20
_WAIT_S = 30.0


def ray_nsight_status(
    path: str | os.PathLike[str] | None = None,
) -> PatchStatus:
    """
    With which Python does Ray's nsight plugin start workers?

    Ray is not imported, and nothing is changed.

    Args:
        path: The plugin, the package ``ray``, or what it is installed in; by
            default what ``import ray`` would load.

    Returns:
        The state of the plugin, and which running agents do not know it.
    """
    plugin = locate_plugin(path)
    if plugin is None:
        where = None if path is None else os.fspath(path)
        return PatchStatus(state="absent", path=where)

    status = PatchStatus(
        state="unknown", path=str(plugin), ray_version=ray_version(plugin)
    )
    try:
        state = judge_source(read_ordinary(plugin, _CHANGE_MOST_BYTES))
    except (OSError, ValueError) as exc:
        return _failed(status, exc)

    return attrs.evolve(
        status,
        state=state,
        stale_bytecode=stale_bytecode(plugin),
        stale_agents=stale_agents(plugin) if state == "patched" else (),
    )


def patch_ray_nsight(
    path: str | os.PathLike[str] | None = None, *, wait_s: float = _WAIT_S
) -> PatchStatus:
    """
    Let Ray's nsight plugin start workers with the right Python.

    Only the one line that is known to be wrong is changed, and only if all the
    rest of the file is Python still.  The file is replaced by another of the
    same mode and owner, so that nobody ever sees half of it, and other
    environments that share it by links keep theirs.

    Args:
        path: As for `ray_nsight_status`.

        wait_s: How long to wait for another process that does the same, in
            seconds.

    Returns:
        The state afterwards.  What cannot be changed is a state as well, and
        raises nothing.
    """
    return _change(path, "needs_patch", mend_source, wait_s)


def revert_ray_nsight(
    path: str | os.PathLike[str] | None = None, *, wait_s: float = _WAIT_S
) -> PatchStatus:
    """
    Give Ray's nsight plugin the text back that it came with, byte by byte.

    Args:
        path: As for `ray_nsight_status`.

        wait_s: How long to wait for another process that does the same, in
            seconds.

    Returns:
        The state afterwards.
    """
    return _change(path, "patched", unmend_source, wait_s)


def _change(
    path: str | os.PathLike[str] | None,
    wanted: PatchState,
    rewrite: Callable[[bytes], bytes],
    wait_s: float,
) -> PatchStatus:
    before = ray_nsight_status(path)
    if before.path is None or before.state == "absent":
        return before

    plugin, is_wanted = Path(before.path), before.state == wanted
    lock = lock_of(plugin)
    # Also what is done may have been left in the midst of it.
    is_whole = not (before.stale_bytecode or leftovers(plugin))
    if not is_wanted and is_whole and not os.path.lexists(lock):
        return before

    try:
        with file_lock(lock, wait_s):
            changed = _rewrite(plugin, wanted, rewrite)
    except (OSError, ValueError) as exc:
        return _failed(before, exc) if is_wanted else before

    after = ray_nsight_status(plugin)
    agents = stale_agents(plugin) if changed else after.stale_agents
    return attrs.evolve(after, changed=changed, stale_agents=agents)


def _rewrite(
    plugin: Path, wanted: PatchState, rewrite: Callable[[bytes], bytes]
) -> bool:
    for file in leftovers(plugin):
        with suppress(OSError):
            file.unlink()
    source = read_ordinary(plugin, _CHANGE_MOST_BYTES)
    # Meanwhile, somebody else may have done it.
    is_wanted = judge_source(source) == wanted
    if is_wanted:
        replace_text(plugin, rewrite(source))
    remove_bytecode(plugin)
    return is_wanted


def _failed(status: PatchStatus, exc: Exception) -> PatchStatus:
    detail = getattr(exc, "strerror", None) or str(exc)
    return attrs.evolve(status, state=_state_of(exc), detail=detail)


def _state_of(exc: Exception) -> PatchState:
    if isinstance(exc, PermissionError):
        return "not_permitted"
    if isinstance(exc, ValueError):
        return "unknown"
    if isinstance(exc, FileNotFoundError):
        return "absent"
    is_read_only = getattr(exc, "errno", None) == errno.EROFS
    return "read_only" if is_read_only else "busy"


_logger = logging.getLogger("distdebug.nsight")
_lock = threading.Lock()
_done: list[PatchStatus | None] = []
_HINDRANCES = ("read_only", "not_permitted", "busy")
# An import must not wait for long.
_APPLICATION_WAIT_S = 5.0


def apply_ray_nsight_patch() -> PatchStatus | None:
    """
    Mend Ray's nsight plugin once, before the application starts Ray.

    For the ``__init__.py`` of an application.  It imports nothing of Ray,
    never raises, and says nothing unless it changed the file or could not.  A
    cluster that runs already does not see the change; that is said, too.

    Returns:
        The state of the plugin; ``None`` if that could not be told.
    """
    with _lock:
        if not _done:
            _done.append(None)
            with suppress(Exception):
                status = patch_ray_nsight(wait_s=_APPLICATION_WAIT_S)
                _done[0] = status
                _tell(status)
        return _done[0]


def _forget() -> None:
    global _lock  # noqa: PLW0603 who holds it does not exist in a child
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _tell(status: PatchStatus) -> None:
    if status.state in _HINDRANCES or (status.changed and not status.is_fine):
        _logger.warning("%s", status)
    elif status.changed:
        _logger.info("%s", status)


def all_processes() -> Iterator[psutil.Process]:
    """
    Which processes does this node show?

    Yields:
        All of them; none where even their list is not shown.
    """
    with suppress(OSError):
        yield from psutil.process_iter()
