"""
Run a function on local ranks, each a process of its own, and end them.
"""

from __future__ import annotations

import io
import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import time

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import ClassVar, Literal

import attrs

from .._io import read_ordinary
from .._proc import child_has_ended, kill_group, uninterrupted
from ..errors import DistdebugError


_POLL_S = 0.02
# Importing torch takes seconds, on a busy node a minute.
_START_S = 180.0
# How long the others have, once a rank has failed, to fail as well.
_CONSEQUENCES_S = 3.0
#: How long processes have to end after the function has returned.
EXIT_S = 20.0
_REAP_S = 5.0
_MAX_REPORT_BYTES = 1 << 24
_MAX_OUTPUT_BYTES = 1 << 16


@attrs.frozen
class RankEnd:
    """
    How the function ended on one rank.

    Attributes:
        kind: Whether it has returned, raised an exception, skipped the test or
            expects it to fail, or whether its process died.

        at_s: When, on the monotonic clock.

        printed: How many bytes the rank had printed by then.

        summary: The exception, or how the process died.

        traceback: The traceback of the exception.
    """

    kind: Literal["returned", "raised", "skip", "xfail", "died"]
    at_s: float
    printed: int
    summary: str = ""
    traceback: str = ""

    @property
    def is_failure(self) -> bool:
        """
        Return whether the rank has raised an exception, or has died.
        """
        return self.kind in {"raised", "died"}


@attrs.define
class LocalRanks:
    """
    Ranks on this node that run one function.

    Attributes:
        folder: The folder of the run, with ``dumps`` and ``logs``.

        processes: The process of each rank.

        ends: How the function ended, by rank.
    """

    folder: Path
    processes: list[subprocess.Popen[bytes]]
    ends: dict[int, RankEnd] = attrs.Factory(dict)
    _release: Callable[[], object] = attrs.field(kw_only=True)

    @property
    def running(self) -> dict[int, int]:
        """
        Return the PIDs of the processes that have not ended, by rank.
        """
        return {
            rank: process.pid
            for rank, process in enumerate(self.processes)
            if process.returncode is None
        }

    @property
    def failed(self) -> list[int]:
        """
        Return the ranks that have failed, those that died first.
        """
        ends = {i: end for i, end in self.ends.items() if end.is_failure}
        # A lost peer is noticed earlier by its neighbours than by us.
        return sorted(ends, key=lambda i: (ends[i].kind, ends[i].at_s))

    def log(self, rank: int) -> Path:
        """
        Return the file that holds the output of a rank.
        """
        return self.folder / "logs" / f"rank_{rank}.log"

    def output(self, rank: int) -> str:
        """
        Return the last 64 KiB that the function has printed on a rank.
        """
        output, end = self.log(rank).read_bytes(), self.ends.get(rank)
        if end is not None:
            output = output[: end.printed]
        return output[-_MAX_OUTPUT_BYTES:].decode("utf-8", "replace")

    def wait(self, timeout_s: float) -> None:
        """
        Wait until all processes have ended, or a rank has failed.

        Args:
            timeout_s: How long the function may take, in seconds, once it runs
                on all ranks.
        """
        self._wait(self._has_started, _START_S)
        self._wait(self._has_ended, timeout_s)
        if not self.failed and self._has_ended():
            self._release()
            self._wait(lambda: False, EXIT_S)
        deadline = time.monotonic() + _CONSEQUENCES_S
        while self.failed and self._may_fail and time.monotonic() < deadline:
            self._look()

    def _has_started(self) -> bool:
        marks = map("{}.started".format, range(len(self.processes)))
        return all((self.folder / mark).exists() for mark in marks)

    def _has_ended(self) -> bool:
        return len(self.ends) == len(self.processes)

    @property
    def _may_fail(self) -> bool:
        """
        Return whether a process still runs that does not wait for the others.
        """
        waiting = {i for i, end in self.ends.items() if end.kind != "raised"}
        return bool(self.running.keys() - waiting)

    def _wait(self, is_over: Callable[[], bool], most_s: float) -> None:
        """
        Wait for a condition, for a failure, or for the end of all processes.
        """
        deadline = time.monotonic() + most_s
        while self.running and not self.failed and not is_over():
            if time.monotonic() > deadline:
                return
            self._look()

    def _look(self) -> None:
        time.sleep(_POLL_S)
        for rank in self.running:
            self._look_at(rank)

    def _look_at(self, rank: int) -> None:
        process = self.processes[rank]
        # In this order: a rank reports before its process ends.
        has_ended = child_has_ended(process.pid)
        if rank not in self.ends:
            with suppress(OSError, ValueError, TypeError):
                self.ends[rank] = _read_end(self.folder / f"{rank}.end")
        if not has_ended:
            return

        kill_group(process)  # also what the rank has left
        status, end = process.wait(), self.ends.get(rank)
        if end is None or (status and not end.is_failure):
            printed = self.log(rank).stat().st_size
            self.ends[rank] = _death(status, printed, is_late=end is not None)


def _read_end(path: Path) -> RankEnd:
    return RankEnd(**json.loads(read_ordinary(path, _MAX_REPORT_BYTES)))


def _death(status: int, printed: int, *, is_late: bool) -> RankEnd:
    how = f"the process ended with exit status {status}"
    if status < 0:
        with suppress(ValueError):
            how = f"the process was killed by {signal.Signals(-status).name}"
    when = ", after the test function had returned" if is_late else ""
    return RankEnd("died", time.monotonic(), printed, how + when)


@contextmanager
def local_ranks(call: bytes, count: int, folder: Path) -> Iterator[LocalRanks]:
    """
    Run a function on local ranks, and kill what is left of them at the end.

    Args:
        call: A pickle of the function and its keyword arguments.

        count: The number of ranks.

        folder: An empty folder, for dumps, logs, and the rendezvous.

    Raises:
        OSError: A process cannot be started.
    """
    (folder / "logs").mkdir()
    (folder / "call").write_bytes(call)
    # All ranks read one end; they end when the other one is closed.
    gate, latch = map(os.fdopen, os.pipe(), ("rb", "wb"))
    processes: list[subprocess.Popen[bytes]] = []
    ranks = LocalRanks(folder, processes, release=latch.close)
    with gate, latch:
        try:
            environ = _environment(count)
            # One by one: if one cannot be started, those before it are ended.
            processes.extend(
                _start(ranks, rank, gate.fileno(), environ)
                for rank in range(count)
            )
            yield ranks
        finally:
            with uninterrupted():
                _end(processes)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        kill_group(process)
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)


def _start(
    ranks: LocalRanks, rank: int, gate: int, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    arguments = [str(os.getpid()), str(ranks.folder), str(gate)]
    with ranks.log(rank).open("wb") as log:
        return subprocess.Popen(
            # -P: modules beside the program do not hide others.
            [sys.executable, "-P", "-m", _PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            pass_fds=[gate],
            start_new_session=True,
        )


_PROGRAM = "distdebug.testing.rank_program"


def _environment(count: int) -> dict[str, str]:
    """
    Return the environment of the ranks, as torchrun would set it.
    """
    entries: list[object] = [*sys.path]  # some put other objects there
    paths = [x or str(Path.cwd()) for x in entries if isinstance(x, str)]
    return {
        "OMP_NUM_THREADS": "1",
        # Names of hosts cannot be resolved everywhere.
        "GLOO_SOCKET_IFNAME": "lo",
        **os.environ,
        # What can be imported here can be imported there.
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def pickle_call(
    function: Callable[..., object],
    arguments: Mapping[str, object],
    modules: Iterable[ModuleType],
) -> bytes:
    """
    Pickle a function and its keyword arguments, for :func:`local_ranks`.

    Args:
        modules: Modules that the ranks may not be able to import: what is
            defined in them travels by value.

    Raises:
        DistdebugError: Something cannot be pickled; the message names it.
    """
    import cloudpickle

    known = cloudpickle.list_registry_pickle_by_value()
    with ExitStack() as stack:
        for module in modules:
            if module.__name__ not in known:
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        # One by one first, so that an error names the culprit.
        for name, value in arguments.items():
            _pickle(value, f"the argument {name!r}")
        return _pickle((function, {**arguments}), "the function")


def _pickle(value: object, what: str) -> bytes:
    try:
        return _dumps(value)
    except Exception as exc:
        reason = f"{type(exc).__name__}: {exc}"
        msg = f"{what} cannot be passed on to the ranks: {reason}"
        remedy = "make it in the function, which runs on every rank"
        raise DistdebugError(msg, remedy=remedy) from exc


def _dumps(value: object) -> bytes:
    """
    Pickle a value by *cloudpickle*, and keep the file names of its code.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar = ChainMap(
            {CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
        )

    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def _reduce_code(code: CodeType) -> tuple[object, tuple[bytes]]:
    return marshal.loads, (marshal.dumps(code),)
