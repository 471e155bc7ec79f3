"""
Debuggable processes on this node: find their sockets, arm them, get stacks.
"""

from __future__ import annotations

import os
import re
import tempfile
import time

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import attrs

from ..._proc import run_tool
from ..._text import clean, count_text, time_text, without_controls
from ...errors import DebuggerError
from ...processes import Worker, find_workers, read_proc
from ..protocol import (
    base_folder,
    check_folder,
    job_folders,
    make_folder,
    peer_uid,
    socket_paths,
    socket_rank,
)
from .connections import Peer, open_connection
from .model import Listing, LostNode, SilentProcess, format_rank_phrase


_MIN_PYTHON = (3, 14)
_DISABLE_VARIABLE = "PYTHON_DISABLE_REMOTE_DEBUG"
_VERSION = re.compile(r"python3\.(\d{1,3})")
_MAX_MAPS_BYTES = 1 << 22
_MAX_PIDS_LISTED = 8
# Processes that Ray runs on each node for itself.
_RAY_INTERNAL = re.compile(r"ray::(?:IDLE|\w{0,40}Agent)\b")
_REMOTE_EXEC = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
_REMEDY = (
    "see its stack: python -m distdebug stacks --pid {pid}; next time, start "
    "it with PYTHONBREAKPOINT=distdebug.debugger.set_trace and DISTDEBUG=1, "
    "and call distdebug.arm()"
)


@attrs.frozen(kw_only=True)
class ArmedProcess:
    """
    A process that can be debugged now.

    Attributes:
        path: Its socket.
    """

    pid: int
    path: str

    def __str__(self) -> str:
        return f"process {self.pid} listens at {self.path}"


def unarmed_workers(armed: Iterable[int]) -> tuple[Worker, ...]:
    """
    Find the ranks on this node that are not armed.

    Args:
        armed: The PIDs of the armed processes.

    Returns:
        The other ranks of the same jobs that this user may debug; of all jobs,
        if *armed* is empty.
    """
    armed_pids = frozenset(armed)
    workers = find_workers(include_children=False)
    jobs = {w.job for w in workers if w.pid in armed_pids and w.job}
    return tuple(
        worker
        for worker in workers
        if worker.role == "rank"
        and worker.uid == os.geteuid()
        and worker.pid not in armed_pids
        and (worker.job in jobs if armed_pids else _is_job_worker(worker))
    )


def _is_job_worker(worker: Worker) -> bool:
    """
    Return whether it is a worker, and not just any program with torch.
    """
    if worker.framework == "ray":
        return not _RAY_INTERNAL.match(worker.title)
    return worker.rank is not None


def arming_hints(workers: Iterable[Worker]) -> tuple[str, ...]:
    """
    Return hints on how to arm ranks that are not armed.

    Args:
        workers: Processes of this node.

    Returns:
        One line per job for ranks that can be armed while they run, and one
        for the others.
    """
    by_kind: dict[tuple[str, bool], list[Worker]] = {}
    for worker in workers:
        with suppress(OSError):
            can_arm = (_python_version(worker.pid) or (0, 0)) >= _MIN_PYTHON
            by_kind.setdefault((worker.job, can_arm), []).append(worker)
    return tuple(
        f"{_describe_unarmed(found)}; to arm it as it runs: "
        f"python -m distdebug dbg{_pid_options('--arm', found)}"
        if can_arm
        else f"{_describe_unarmed(found)}, and Python does not allow attaching before 3.14; to see "
        f"where it is: python -m distdebug stacks{_pid_options('--pid', found)}"
        for (_, can_arm), found in by_kind.items()
    )


def _describe_unarmed(workers: list[Worker]) -> str:
    numbers = [w.rank for w in workers if w.rank is not None]
    job = workers[0].job and f" of job {clean(workers[0].job)}"
    ranks = format_rank_phrase(numbers) if numbers else "workers"
    return f"not armed on this node: {ranks}{job}"


def _pid_options(option: str, workers: list[Worker]) -> str:
    more = " …" if len(workers) > _MAX_PIDS_LISTED else ""
    named = (f" {option} {w.pid}" for w in workers[:_MAX_PIDS_LISTED])
    return "".join(named) + more


def arm_process(pid: int, *, timeout_s: float = 5.0) -> ArmedProcess:
    """
    Arm a running process of this node that has not called ``arm()``.

    :func:`distdebug.debugger.arm` runs between two lines of its main thread.
    Then the process stops at each ``breakpoint()``.  Nothing else changes in
    it.

    Args:
        pid: A process of this user that runs Python 3.14 or later.

        timeout_s: How long to wait until the process is armed, in seconds.

    Raises:
        DebuggerError: The process cannot be armed, or has not reached a line
            of Python in time.  In the latter case it is armed as soon as it
            does.
    """
    _check_can_arm(pid)
    folder = base_folder() / "arming"
    make_folder(folder)
    _remove_stale_scripts(folder)
    with tempfile.NamedTemporaryFile(
        "w", dir=folder, prefix=f"{pid}.", suffix=".py", delete=False
    ) as file:
        script = Path(file.name)
        file.write(_arming_script(script))
    try:
        _remote_exec(pid, script, timeout_s)
    except BaseException:
        script.unlink(missing_ok=True)
        raise

    return _wait_for_reply(pid, script.with_suffix(".reply"), timeout_s)


def _remove_stale_scripts(folder: Path) -> None:
    """
    Remove the files of processes that have ended.
    """
    for path in folder.iterdir():
        if not os.path.exists(f"/proc/{path.name.partition('.')[0]}"):  # noqa: PTH110
            path.unlink(missing_ok=True)


def _check_can_arm(pid: int) -> None:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 lighter
        version = _python_version(pid)
    except FileNotFoundError:
        msg = f"there is no process {pid}"
        raise DebuggerError(msg, remedy="see: ps -e") from None
    except OSError:
        uid, version = -1, None
    # Its Python is started below, and must not run as another user.
    if uid != os.geteuid():
        _raise_not_armed(
            pid, "belongs to another user", "arm it as its own user"
        )
    if version is None:
        _raise_not_armed(pid, "does not seem to run Python", "see: ps -e")
    if version < _MIN_PYTHON:
        version_text = ".".join(map(str, version))
        _raise_not_armed(
            pid,
            f"runs Python {version_text}, which does not allow attaching; 3.14 does",
        )
    if os.environ.get(_DISABLE_VARIABLE):
        _raise_not_armed(
            pid, f"must not be armed: {_DISABLE_VARIABLE} is set here"
        )


def _raise_not_armed(pid: int, reason: str, remedy: str = _REMEDY) -> NoReturn:
    msg = f"process {pid} {reason}"
    raise DebuggerError(msg, remedy=remedy.format(pid=pid))


def _python_version(pid: int) -> tuple[int, int] | None:
    """
    Return the Python version of a process, from the names of its files.
    """
    names = [os.readlink(f"/proc/{pid}/exe")]  # noqa: PTH115 it may have ended
    with open(f"/proc/{pid}/maps", "rb") as maps:  # noqa: PTH123 no file
        text = maps.read(_MAX_MAPS_BYTES).decode(errors="replace")
    names += {x for x in text.split() if "/libpython3." in x}
    for name in names:
        if found := _VERSION.search(os.path.basename(name)):  # noqa: PTH119
            return 3, int(found[1])

    return None


def _arming_script(script: Path) -> str:
    """
    Return the script that arms the process; it needs only our code.
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
    private = lambda path, flags: os.open(path, flags, 0o600)
    with open(reply + ".part", "w", opener=private) as file:
        file.write(told)
    os.replace(reply + ".part", reply + ".reply")
arm_this_process()
del arm_this_process
"""


def _remote_exec(pid: int, script: Path, timeout_s: float) -> None:
    python = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 it may be gone
    # Only the same Python works; -I ignores PYTHON* variables.
    argv = [
        python,
        "-I",
        "-S",
        "-c",
        _REMOTE_EXEC,
        str(pid),
        os.fspath(script),
    ]
    try:
        result = run_tool(argv, timeout_s=max(timeout_s, 5.0))
    except OSError as exc:
        _raise_not_armed(pid, f"runs a Python that is not here: {exc}")
    if result.status != 0:
        lines = result.complaint.strip().splitlines() or ["it takes too long"]
        _raise_not_armed(
            pid, f"does not allow attaching: {clean(lines[-1], limit=300)}"
        )


def _wait_for_reply(pid: int, reply: Path, timeout_s: float) -> ArmedProcess:
    end = time.monotonic() + timeout_s
    while not reply.exists():
        if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110 lighter
            _raise_not_armed(pid, "has ended")
        if time.monotonic() > end:
            _raise_not_armed(
                pid,
                f"reached no line of Python for {timeout_s:g} s",
                "it is armed as soon as the native code returns that it is in; "
                + _REMEDY,
            )
        time.sleep(0.02)
    reply_text = without_controls(reply.read_text(errors="replace"))[:1000]
    with suppress(OSError):
        reply.unlink()
    word, _, rest = reply_text.partition(" ")
    if word != "at":
        _raise_not_armed(pid, f"was not armed: {rest}")

    return ArmedProcess(pid=pid, path=rest)


_STACK_TIMEOUT_S = 15.0
# A node seldom has more ranks.
_MAX_PARALLEL = 8


def external_stacks(reasons: Mapping[int, str]) -> tuple[str, ...]:
    """
    Capture the stacks of processes on this node by py-spy.

    Args:
        reasons: Why each process does not report its stack itself, by PID.

    Returns:
        The stack of each, or why it is missing.
    """
    with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
        return tuple(pool.map(_external_stack, reasons, reasons.values()))


def unarmed_stacks(workers: Iterable[Worker]) -> tuple[str, ...]:
    """
    Capture the stacks of unarmed ranks on this node by py-spy.
    """
    return external_stacks(
        {
            w.pid: f"{format_rank_phrase([w.rank])} (process {w.pid}) is not armed"
            for w in workers
        }
    )


def _external_stack(pid: int, reason: str) -> str:
    from ...capture import capture_process
    from ...errors import DistdebugError

    head = f"{reason}; seen from outside:"
    try:
        found = capture_process(pid, timeout_s=_STACK_TIMEOUT_S)
    except (DistdebugError, OSError) as exc:
        return f"{head} {without_controls(str(exc))}"

    lines = [
        f"  {frame.filename}:{frame.line} in {frame.name}"
        for thread in found.stacks.threads
        if thread.is_main
        for frame in reversed(thread.frames)
    ]
    if not lines:
        return f"{head} {without_controls(found.remedy)}"
    return without_controls("\n".join([head, *lines]))


_MAX_JOBS_LISTED = 8
_MAX_CMDLINE_BYTES = 4096


@attrs.define
class LocalTransport:
    """
    The connections to the ranks with sockets in one folder of this node.

    Args:
        timeout_s: How long a rank may take to answer, in seconds.
    """

    folder: Path
    timeout_s: float = 2.0
    _peers: dict[str, Peer] = attrs.field(factory=dict, init=False)

    def peers(self) -> tuple[dict[str, Peer], Listing]:
        """
        Connect to new ranks, and drop closed connections.

        Returns:
            The ranks by socket path, and what accepts no connection.
        """
        check_folder(self.folder, allow_other_owner=True)
        paths = {str(path): pid for path, pid in socket_paths(self.folder)}
        self._hang_up(
            path
            for path, peer in self._peers.items()
            if path not in paths or not peer.connection.is_open()
        )
        silent_processes = [
            SilentProcess(host="", pid=pid, rank=socket_rank(path))
            for path, pid in paths.items()
            if path not in self._peers and not self._connect(path, pid)
        ]
        return dict(self._peers), Listing(silent=tuple(silent_processes))

    def lost_nodes(self) -> tuple[LostNode, ...]:
        """
        Return nothing: this node is never lost.
        """
        return ()

    def external_stacks(
        self, silent: Iterable[SilentProcess]
    ) -> tuple[str, ...]:
        """
        Capture the stacks of silent processes with py-spy.
        """
        return external_stacks(
            {x.pid: f"process {x.pid} does not answer" for x in silent}
        )

    def unarmed(self) -> tuple[Worker, ...]:
        """
        Return the unarmed ranks of the job on this node.
        """
        armed = [pid for _, pid in socket_paths(self.folder)]
        return unarmed_workers(armed) if armed else ()

    def close(self) -> None:
        """
        Close all connections.
        """
        self._hang_up(self._peers)

    def _connect(self, path: str, pid: int) -> bool:
        try:
            connection = open_connection(Path(path), self.timeout_s)
        except (ConnectionRefusedError, FileNotFoundError):
            _remove_stale_socket(Path(path), pid)
            return True
        except OSError:
            return False

        self._peers[path] = Peer(connection, pid, peer_uid(connection.socket))
        return True

    def _hang_up(self, paths: Iterable[str]) -> None:
        for path in list(paths):
            self._peers.pop(path).connection.close()


@contextmanager
def wrap_folder_errors() -> Iterator[None]:
    """
    Turn an ``OSError`` of the socket folder into a ``DebuggerError``.

    Raises:
        DebuggerError: The folder is missing or cannot be read.
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


def _remove_stale_socket(path: Path, pid: int) -> None:
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
    Choose the folder of the job to debug.

    Args:
        folder: The folder that the user named, if any.

        timeout_s: How long a rank may take to answer, in seconds.

    Returns:
        *folder*, ``DISTDEBUG_DIR``, or the folder of the only job of this user
        that listens here; inside a Slurm job, of that job.  ``None`` if no job
        listens.

    Raises:
        DebuggerError: The folder is not private, or several jobs listen.

        OSError: The folder cannot be read.
    """
    chosen = folder or os.environ.get("DISTDEBUG_DIR")
    path = Path(chosen).absolute() if chosen else _only_job(timeout_s)
    if path:
        check_folder(path, allow_other_owner=bool(chosen))
    return path


def _only_job(timeout_s: float) -> Path | None:
    alive = [f for f in job_folders() if _listens(f, timeout_s)]
    if number := os.environ.get("SLURM_JOB_ID"):
        # The steps of a Slurm job have different names with the same start.
        own = re.escape(number) + r"(?!\d)"
        alive = [f for f in alive if re.match(own, f.name)] or alive
    if len(alive) > 1:
        msg = f"{len(alive)} jobs listen on this node"
        names = "; ".join(
            f"--dir {job_text(f)}" for f in alive[:_MAX_JOBS_LISTED]
        )
        raise DebuggerError(msg, remedy=f"choose one by its folder: {names}")

    return alive[0] if alive else None


def _listens(folder: Path, timeout_s: float) -> bool:
    check_folder(folder)
    for path, _ in socket_paths(folder):
        with suppress(OSError):
            open_connection(path, timeout_s).close()
            return True

    return False


def job_text(folder: Path) -> str:
    """
    Describe the job of a folder: its path, processes, program, and age.
    """
    alive = [
        (path, pid)
        for path, pid in socket_paths(folder)
        if os.path.exists(f"/proc/{pid}")  # noqa: PTH110 lighter
    ]
    if not alive:
        return str(folder)

    count = count_text(len(alive), "process")
    path, pid = min(alive)
    age = ""
    with suppress(OSError):
        age = f", for {time_text(time.time() - path.stat().st_mtime)}"
    return f"{folder} ({count} of {_program(pid)}{age}, such as {pid})"


def _program(pid: int) -> str:
    """
    Return the name of the script or module that a process runs.
    """
    path = f"/proc/{pid}/cmdline"
    data = read_proc(path, limit=_MAX_CMDLINE_BYTES) or b""
    command_line = data.decode(errors="replace").rstrip("\0")
    program, *rest = command_line.split("\0")
    script = next((word for word in rest if word.endswith(".py")), "")
    if not script and "-m" in rest[:-1]:
        script = f"-m {rest[rest.index('-m') + 1]}"
    return clean(script.rpartition("/")[2] or program, limit=100) or "unknown"
