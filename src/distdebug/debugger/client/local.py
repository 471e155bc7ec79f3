"""
Who listens on this node?
"""

from __future__ import annotations

import os
import re
import tempfile
import time

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import attrs

from ..._text import clean, time_text, without_controls
from ...capture import run_tool
from ...errors import DebuggerError
from ...processes import Worker, find_workers
from ..protocol import (
    base_folder,
    check_folder,
    job_folders,
    make_folder,
    peer_uid,
    socket_paths,
)
from .calls import Peer, Reached, open_line
from .model import LostNode, Silent, ranks_told


_FIRST = (3, 14)
_KILL_SWITCH = "PYTHON_DISABLE_REMOTE_DEBUG"
_VERSION = re.compile(r"python3\.(\d{1,3})")
_MOST_MAPS = 1 << 22
_MOST_NAMED = 8
# What Ray keeps on each node for itself.
_OF_RAY_ITSELF = re.compile(r"ray::(?:IDLE|\w{0,40}Agent)\b")
_ASK = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
_OTHERWISE = (
    "see its stack: python -m distdebug stacks --pid {pid}; next time, start "
    "it with PYTHONBREAKPOINT=distdebug.debugger.set_trace and DISTDEBUG=1, "
    "and call distdebug.arm()"
)


@attrs.frozen(kw_only=True)
class Armed:
    """
    A process that can be debugged now.

    Attributes:
        pid: Its number on this node.

        path: Its socket.
    """

    pid: int
    path: str

    def __str__(self) -> str:
        return f"process {self.pid} listens at {self.path}"


def unarmed_workers(armed: Iterable[int]) -> tuple[Worker, ...]:
    """
    Which ranks run on this node, and cannot be asked?

    Args:
        armed: The processes that can.

    Returns:
        The others of the same job, by rank; of all jobs, if nobody can be
        asked.  Only those that this user may debug.
    """
    known = frozenset(armed)
    workers = find_workers(include_children=False)
    jobs = {w.job for w in workers if w.pid in known and w.job}
    return tuple(
        worker
        for worker in workers
        if worker.role == "rank"
        and worker.uid == os.geteuid()
        and worker.pid not in known
        and (worker.job in jobs if known else _is_of_a_job(worker))
    )


def _is_of_a_job(worker: Worker) -> bool:
    """
    Whether it is more than a program that happens to use torch.
    """
    if worker.framework == "ray":
        return not _OF_RAY_ITSELF.match(worker.title)
    return worker.rank is not None


def how_to_arm(workers: Iterable[Worker]) -> tuple[str, ...]:
    """
    What can be done about ranks that cannot be asked?

    Args:
        workers: Processes of this node.

    Returns:
        One line per job, for those that can be armed as they run, and for
        the others.
    """
    by_kind: dict[tuple[str, bool], list[Worker]] = {}
    for worker in workers:
        with suppress(OSError):
            lets_in = (_version(worker.pid) or (0, 0)) >= _FIRST
            by_kind.setdefault((worker.job, lets_in), []).append(worker)
    return tuple(
        f"{_who(found)}; to arm it as it runs: "
        f"python -m distdebug dbg{_pids('--arm', found)}"
        if lets_in
        else f"{_who(found)}, and Python lets nobody in before 3.14; to see "
        f"where it is: python -m distdebug stacks{_pids('--pid', found)}"
        for (_, lets_in), found in by_kind.items()
    )


def _who(workers: list[Worker]) -> str:
    known = [w.rank for w in workers if w.rank is not None]
    job = workers[0].job and f" of job {clean(workers[0].job)}"
    ranks = ranks_told(known) if known else "workers"
    return f"not armed on this node: {ranks}{job}"


def _pids(option: str, workers: list[Worker]) -> str:
    more = " …" if len(workers) > _MOST_NAMED else ""
    named = (f" {option} {w.pid}" for w in workers[:_MOST_NAMED])
    return "".join(named) + more


def arm_process(pid: int, *, timeout_s: float = 5.0) -> Armed:
    """
    Arm a process of this node that called nothing to be debugged.

    It runs :func:`distdebug.arm` between two lines of its main thread, and
    then stops at each ``breakpoint()``.  Nothing else is changed in it.

    Args:
        pid: The process; it has to be ours, and to run Python 3.14 or later.

        timeout_s: How long to wait until it has done so, in seconds.

    Returns:
        Where it listens.

    Raises:
        DebuggerError: It cannot be armed, or has not come to a line of Python
            in time.  In the latter case it is armed as soon as it does.
    """
    _check(pid)
    folder = base_folder() / "arming"
    make_folder(folder)
    _sweep(folder)
    with tempfile.NamedTemporaryFile(
        "w", dir=folder, prefix=f"{pid}.", suffix=".py", delete=False
    ) as file:
        script = Path(file.name)
        file.write(_script(script))
    try:
        _ask(pid, script, timeout_s)
    except BaseException:
        script.unlink(missing_ok=True)
        raise

    return _reply(pid, script.with_suffix(".reply"), timeout_s)


def _sweep(folder: Path) -> None:
    """
    Remove what was left for, or by, processes that have ended.
    """
    for path in folder.iterdir():
        if not os.path.exists(f"/proc/{path.name.partition('.')[0]}"):  # noqa: PTH110
            path.unlink(missing_ok=True)


def _check(pid: int) -> None:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 lighter
        version = _version(pid)
    except FileNotFoundError:
        msg = f"there is no process {pid}"
        raise DebuggerError(msg, remedy="see: ps -e") from None
    except OSError:
        uid, version = -1, None
    # Its own Python is run to ask it, and may not be run as somebody else.
    if uid != os.geteuid():
        _refuse(pid, "belongs to another user", "arm it as its own user")
    if version is None:
        _refuse(pid, "does not seem to run Python", "see: ps -e")
    if version < _FIRST:
        told = ".".join(map(str, version))
        _refuse(pid, f"runs Python {told}, which lets nobody in; 3.14 does")
    if os.environ.get(_KILL_SWITCH):
        _refuse(pid, f"must not be armed: {_KILL_SWITCH} is set here")


def _refuse(pid: int, reason: str, remedy: str = _OTHERWISE) -> NoReturn:
    msg = f"process {pid} {reason}"
    raise DebuggerError(msg, remedy=remedy.format(pid=pid))


def _version(pid: int) -> tuple[int, int] | None:
    """
    Which Python does it run, as its files are called?
    """
    names = [os.readlink(f"/proc/{pid}/exe")]  # noqa: PTH115 it may be gone
    with open(f"/proc/{pid}/maps", "rb") as maps:  # noqa: PTH123 no file
        text = maps.read(_MOST_MAPS).decode(errors="replace")
    names += {x for x in text.split() if "/libpython3." in x}
    for name in names:
        if found := _VERSION.search(os.path.basename(name)):  # noqa: PTH119
            return 3, int(found[1])

    return None


def _script(script: Path) -> str:
    """
    What the process is to do; it needs our code, and nothing else.
    """
    home = Path(__file__).parents[3]
    return f"""\
def arm_this_process():
    import os, sys
    script, home = {os.fspath(script)!r}, {os.fspath(home)!r}
    os.unlink(script)
    try:
        if home not in sys.path:
            sys.path.append(home)
        from distdebug.debugger import arm
        path = arm(breakpoints=True)
        told = f"at {{path}}" if path else "no: the debugger is off there"
    except BaseException as exc:
        told = f"no: {{type(exc).__name__}}: {{exc}}"
    reply = script[:-3]
    with open(reply + ".part", "w") as file:
        file.write(told)
    os.replace(reply + ".part", reply + ".reply")
arm_this_process()
del arm_this_process
"""


def _ask(pid: int, script: Path, timeout_s: float) -> None:
    python = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 it may be gone
    # It has to be the very same Python; -I lets no variable change it.
    argv = [python, "-I", "-S", "-c", _ASK, str(pid), os.fspath(script)]
    try:
        said = run_tool(argv, timeout_s=max(timeout_s, 5.0))
    except OSError as exc:
        _refuse(pid, f"runs a Python that is not here: {exc}")
    if said.status != 0:
        lines = said.complaint.strip().splitlines() or ["it takes too long"]
        _refuse(pid, f"lets nobody in: {clean(lines[-1], limit=300)}")


def _reply(pid: int, reply: Path, timeout_s: float) -> Armed:
    end = time.monotonic() + timeout_s
    while not reply.exists():
        if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110 lighter
            _refuse(pid, "has ended")
        if time.monotonic() > end:
            _refuse(
                pid,
                f"came to no line of Python for {timeout_s:g} s",
                "it is armed as soon as the native code returns that it is in; "
                + _OTHERWISE,
            )
        time.sleep(0.02)
    told = without_controls(reply.read_text(errors="replace"))[:1000]
    with suppress(OSError):
        reply.unlink()
    word, _, rest = told.partition(" ")
    if word != "at":
        _refuse(pid, f"was not armed: {rest}")

    return Armed(pid=pid, path=rest)


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
            _local_sweep(Path(path), pid)
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


def _local_sweep(path: Path, pid: int) -> None:
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
