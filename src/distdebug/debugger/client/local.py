"""
Who listens on this node?
"""

from __future__ import annotations

import os
import re
import time

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from ..._text import clean, time_text, without_controls
from ...errors import DebuggerError
from ...processes import Worker
from ..protocol import check_folder, job_folders, peer_uid, socket_paths
from .attach import unarmed_workers
from .calls import Peer, Reached, open_line
from .model import LostNode, Silent, ranks_told


_TIMEOUT_S = 15.0
# A node has seldom more ranks.
_AT_ONCE = 8


def stacks_from_outside(pids: Iterable[int]) -> tuple[str, ...]:
    """
    What does py-spy say of some processes that do not answer?

    Args:
        pids: Processes of this node.

    Returns:
        The stack of each, or why there is none.
    """
    return _stacks((pid, f"process {pid} does not answer") for pid in pids)


def stacks_of_unarmed(workers: Iterable[Worker]) -> tuple[str, ...]:
    """
    What does py-spy say of ranks that were started without us?

    Args:
        workers: Ranks of this node.

    Returns:
        The stack of each, or why there is none.
    """
    return _stacks(
        (w.pid, f"{ranks_told([w.rank])} (process {w.pid}) is not armed")
        for w in workers
    )


def _stacks(asked: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(lambda one: _stack(*one), asked))


def _stack(pid: int, why: str) -> str:
    from ...capture import capture_process
    from ...errors import DistdebugError

    head = f"{why}; seen from outside:"
    try:
        found = capture_process(pid, timeout_s=_TIMEOUT_S)
    except (DistdebugError, OSError) as exc:
        return f"{head} {without_controls(str(exc))}"

    if found.stacks is None:
        return f"{head} {without_controls(found.remedy)}"

    lines = [
        f"  {frame.filename}:{frame.line} in {frame.name}"
        for thread in found.stacks.threads
        if thread.is_main
        for frame in reversed(thread.frames)
    ]
    return without_controls("\n".join([head, *lines]))


_MOST_JOBS = 8
_MOST_COMMAND = 4096


@attrs.define
class Here:
    """
    The ranks whose sockets are in one folder of this node.

    Args:
        folder: The folder.

        timeout_s: How long a rank may take to answer, in seconds.
    """

    folder: Path
    timeout_s: float = 2.0
    _peers: dict[str, Peer] = attrs.field(factory=dict, init=False)

    def peers(self) -> Reached:
        """
        Connect to whoever is new, and forget who has gone.
        """
        check_folder(self.folder, or_anothers=True)
        paths = {str(path): pid for path, pid in socket_paths(self.folder)}
        self._hang_up(
            path
            for path, peer in self._peers.items()
            if path not in paths or not peer.line.is_open()
        )
        mute = [
            Silent(host="", pid=pid)
            for path, pid in paths.items()
            if path not in self._peers and not self._connect(path, pid)
        ]
        return Reached(peers=dict(self._peers), silent=tuple(mute))

    def broken(self) -> tuple[LostNode, ...]:
        """
        We are still there.
        """
        return ()

    def outside(self, silent: Iterable[Silent]) -> tuple[str, ...]:
        """
        Where are those that do not answer?
        """
        return stacks_from_outside(one.pid for one in silent)

    def unarmed(self) -> tuple[Worker, ...]:
        """
        Which other ranks of the job run on this node?
        """
        armed = [pid for _, pid in socket_paths(self.folder)]
        return unarmed_workers(armed) if armed else ()

    def close(self) -> None:
        """
        Hang up.
        """
        self._hang_up(self._peers)

    def _connect(self, path: str, pid: int) -> bool:
        try:
            line = open_line(Path(path), self.timeout_s)
        except (ConnectionRefusedError, FileNotFoundError):
            _sweep(Path(path), pid)
            return True
        except OSError:
            return False

        self._peers[path] = Peer(line, pid, peer_uid(line.socket))
        return True

    def _hang_up(self, paths: Iterable[str]) -> None:
        for path in list(paths):
            self._peers.pop(path).line.close()


@contextmanager
def unreadable_told() -> Iterator[None]:
    """
    Tell by one error of ours that sockets cannot be looked for.

    Raises:
        DebuggerError: Something in the block said that a folder is gone, or
            cannot be read.
    """
    try:
        yield
    except OSError as exc:
        where = exc.filename or "the folder of sockets"
        msg = f"cannot look into {where}: {exc.strerror or exc}"
        raise DebuggerError(
            msg,
            remedy="see whether the job still runs, and as which user; name "
            "its folder by dir= or DISTDEBUG_DIR",
        ) from exc


def _sweep(path: Path, pid: int) -> None:
    """
    Remove the socket of a process that was killed.
    """
    if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110 lighter
        with suppress(OSError):
            path.unlink()


def choose_folder(
    folder: str | os.PathLike[str] | None, timeout_s: float = 2.0
) -> Path | None:
    """
    In which folder do the ranks of the job listen?

    Args:
        folder: The one that was asked for, if any.

        timeout_s: How long a rank may take to answer, in seconds.

    Returns:
        That one, ``DISTDEBUG_DIR``, or that of the only job of this user that
        listens here; within a Slurm job, its own.  ``None`` if none does.

    Raises:
        DebuggerError: It is not ours alone, or several jobs listen.

        OSError: It cannot be read.
    """
    chosen = folder or os.environ.get("DISTDEBUG_DIR")
    path = Path(chosen).absolute() if chosen else _only_job(timeout_s)
    if path:
        check_folder(path, or_anothers=bool(chosen))
    return path


def _only_job(timeout_s: float) -> Path | None:
    alive = [f for f in job_folders() if _listens(f, timeout_s)]
    if number := os.environ.get("SLURM_JOB_ID"):
        # Steps of one Slurm job have names of their own, which begin alike.
        own = re.escape(number) + r"(?!\d)"
        alive = [f for f in alive if re.match(own, f.name)] or alive
    if len(alive) > 1:
        msg = f"{len(alive)} jobs listen on this node"
        names = "; ".join(f"--dir {job_text(f)}" for f in alive[:_MOST_JOBS])
        raise DebuggerError(msg, remedy=f"choose one by its folder: {names}")

    return alive[0] if alive else None


def _listens(folder: Path, timeout_s: float) -> bool:
    check_folder(folder)
    for path, _ in socket_paths(folder):
        with suppress(OSError):
            open_line(path, timeout_s).close()
            return True

    return False


def job_text(folder: Path) -> str:
    """
    Which job listens in a folder, in the words of a person?

    Args:
        folder: The folder of its sockets.

    Returns:
        The folder, and how many processes run which program, and since when
        they listen.
    """
    alive = [
        (path, pid)
        for path, pid in socket_paths(folder)
        if os.path.exists(f"/proc/{pid}")  # noqa: PTH110 lighter
    ]
    if not alive:
        return str(folder)

    count = f"{len(alive)} process{'es' * (len(alive) > 1)}"
    path, pid = min(alive)
    age = ""
    with suppress(OSError):
        age = f", for {time_text(time.time() - path.stat().st_mtime)}"
    return f"{folder} ({count} of {_program(pid)}{age}, such as {pid})"


def _program(pid: int) -> str:
    """
    What does a process run, in one word?
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 no file
            words = file.read(_MOST_COMMAND).decode(errors="replace")
    except OSError:
        words = ""
    program, *rest = words.rstrip("\0").split("\0")
    script = next((word for word in rest if word.endswith(".py")), "")
    if not script and "-m" in rest[:-1]:
        script = f"-m {rest[rest.index('-m') + 1]}"
    return clean(script.rpartition("/")[2] or program, limit=100) or "unknown"
