"""
How is a process armed that was started without us?

Since Python 3.14 a process takes a script from outside, at the next line of
Python that its main thread comes to; see
https://docs.python.org/3/library/sys.html#sys.remote_exec and :pep:`768`.
Before, nobody can get in safely, and py-spy only looks.
"""

from __future__ import annotations

import os
import re
import tempfile
import time

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import attrs

from ..._text import clean, without_controls
from ...capture import run_tool
from ...errors import DebuggerError
from ...processes import Worker, find_workers
from ..protocol import base_folder, make_folder
from .model import ranks_told


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
