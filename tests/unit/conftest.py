"""
What the unit tests share.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import threading

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest

from distdebug.debugger.inside.agent import listen
from distdebug.debugger.protocol import MessageDecoder, encode_message
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    stacks_to_json,
)


# What the test that runs has started, but for the decoder of dumps.
_started: list[str] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """
    Note that a process is started; Python tells of everything before.
    """
    if event == "subprocess.Popen":
        if "sandboxed" not in str(arguments[1]):
            _started.append(str(arguments[0]))
    elif event in {"os.fork", "os.forkpty", "os.posix_spawn"}:
        _started.append(event)


sys.addaudithook(_note)


@pytest.fixture(autouse=True)
def _marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """
    A test that starts a process is marked so: ``nox -s quick`` has none.
    """
    _started.clear()
    yield
    if _started and not request.node.get_closest_marker("process"):
        pytest.fail(f"mark it `process`, as it started {_started[0]}")


class FakeTorch(ModuleType):
    """
    As much of torch as a recording looks at, with one call on record.
    """

    def __init__(self) -> None:
        super().__init__("torch")
        self.__version__ = "2.13.0"
        self.asked: list[tuple[bool, ...]] = []
        self.entries = b"record_id gloo:all_reduce"
        self.unfinished = 0
        self.c10d = SimpleNamespace(
            _dump_fr_trace=self.dump, _dump_fr_trace_json=self.status
        )
        self._C = SimpleNamespace(_distributed_c10d=self.c10d)

    def dump(self, *args: bool) -> bytes:
        """
        Give what torch would give.
        """
        self.asked.append(args)
        return self.entries + (b" frames" if args[1] else b"")

    def status(self, *args: bool) -> str:
        """
        Give the counters that torch would give.
        """
        last = f'"last_enqueued_collective": {4 + self.unfinished}'
        done = '"last_completed_collective": 4'
        return f'{{"pg_status": {{"0": {{{last}, {done}}}}}}}'


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """
    A torch that records, and none of the real one.
    """
    fake = FakeTorch()
    for name in list(sys.modules):
        if name.partition(".")[0] == "torch":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@pytest.fixture
def rank_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    This process is rank 3 of 8.
    """
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")


class FakeProc:
    """
    A folder that looks like ``/proc``, with processes that do not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self._folder = root

    def folder(self, pid: int) -> Path:
        """
        Where the files of a process are.
        """
        return self._folder / str(pid)

    def add(
        self,
        pid: int,
        *arguments: str,
        parent: int = 1,
        name: str | None = None,
        state: str = "S",
        environ: Mapping[str, object] | None = None,
        exe: str | None = None,
        maps: str = "",
        threads: Iterable[str] = (),
        start: int | None = None,
    ) -> Path:
        """
        Add a process.

        Args:
            pid: Its number.

            arguments: Its command line.

            parent: Who started it.

            name: What the kernel calls it; by default its program.

            state: The letter of its state.

            environ: Its environment; ``None`` if nobody may read it.

            exe: Its program; ``None`` if nobody may know.

            maps: A library that is mapped into it, such as ``"libtorch.so"``.

            threads: Names of its threads but the first.

            start: When it started; by default those of higher number later.
        """
        folder = self.folder(pid)
        (folder / "net").mkdir(parents=True)
        (folder / "fd").mkdir()
        if name is None:
            name = arguments[0].rpartition("/")[2][:15] if arguments else ""
        line = b"\0".join(os.fsencode(x) for x in arguments)
        (folder / "cmdline").write_bytes(line + b"\0" if line else b"")
        self._stat(
            folder,
            pid,
            name,
            state,
            parent=parent,
            start=pid if start is None else start,
        )
        for n, thread in enumerate([name, *threads]):
            task = folder / "task" / str(pid + n)
            task.mkdir(parents=True)
            self._stat(task, pid + n, thread, state, parent=parent, start=pid)
            (task / "comm").write_text(f"{thread}\n")
        if environ is not None:
            text = "\0".join(
                f"{key}={value}" for key, value in environ.items()
            )
            (folder / "environ").write_text(f"{text}\0")
            (folder / "maps").write_text(
                f"7000-8000 r-xp 00000000 08:01 7 {' ' * 20}/x/{maps}\n"
            )
        if exe is not None:
            (folder / "exe").symlink_to(exe)
        return folder

    @staticmethod
    def _stat(
        folder: Path,
        pid: int,
        name: str,
        state: str,
        *,
        parent: int,
        start: int,
    ) -> None:
        """
        Write what the kernel tells anybody.
        """
        numbers = " ".join(["0"] * 9)
        (folder / "stat").write_text(
            f"{pid} ({name}) {state} {parent} {numbers} 150 50 0 0 20 0 1 0 "
            f"{start} 1000 10\n"
        )
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n")
        (folder / "status").write_text(
            f"Name:\t{escaped}\nState:\t{state} (fake)\nTracerPid:\t0\n"
            "Uid:\t1000\t1001\t1000\t1000\n"
            f"NSpid:\t{pid}\nSigCgt:\t0000000000000200\nSeccomp:\t0\n"
            "voluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n"
        )


@pytest.fixture
def fake_proc(tmp_path: Path) -> FakeProc:
    """
    A folder that looks like ``/proc``, without any process yet.
    """
    return FakeProc(tmp_path / "proc")


class AnsweringRank:
    """
    A process that answers as it was told to.
    """

    def __init__(self, folder: Path, rank: int, **options: Any) -> None:
        self.rank = rank
        self.pid = 1000 + rank
        self.path = folder / f"{rank}.{os.getpid()}.sock"
        self.listener = listen(self.path)
        self.coords = options.get("coords", {})
        self.group = options.get("group", "job")
        self.thread = "MainThread"
        self.state = options.get("state", "stopped")
        self.last = "> train.py(7)step()"
        self.lines: list[str] = []
        self.mute: Iterable[str] = ()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        """
        Talk to whoever comes.
        """
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(
                    target=self.talk, args=(client,), daemon=True
                ).start()

    def talk(self, client: socket.socket) -> None:
        """
        Answer a client until it hangs up.
        """
        feed = MessageDecoder()
        with client, contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                for request in feed.decode(data):
                    if request["op"] in self.mute:
                        continue
                    answer = self.answer(request)
                    client.sendall(
                        encode_message({"id": request["id"], **answer})
                    )

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """
        Answer one request.
        """
        op, key = request["op"], f"node:1:2:3:{self.rank}"
        place = {"function": "step", "file": "train.py", "line": 7}
        if op == "list":
            stop = {"key": key, "number": 1, "thread": self.thread, **place}
            stop.update(state=self.state, reason="breakpoint", left_s=5.0)
            return {
                "process": {
                    "group": self.group,
                    "rank": self.rank,
                    "coords": self.coords,
                    "host": "node",
                    "pid": self.pid,
                },
                "main": place,
                "stops": [stop] if self.state else [],
            }
        self.lines.append(request.get("line", op))
        if op in {"eval", "interrupt", "resume"}:
            return {"output": f"{op} {self.rank}", "state": ""}
        if op == "stack":
            return {"threads": [{"thread": "MainThread", "frames": [place]}]}
        if op == "last":
            said = {"state": self.state, "output": self.last}
        elif request.get("line") in {"c", "detach", "abort"}:
            self.state = ""
            said = {"state": "ended", "output": ""}
        else:
            said = {"state": "stopped", "output": f"did {self.lines[-1]}\n"}
        return {"stops": dict.fromkeys(request["keys"], said)}


@pytest.fixture
def answering_rank() -> Iterator[Callable[..., AnsweringRank]]:
    """
    Makes ranks that answer in a folder.
    """
    made = []

    def make(folder: Path, rank: int, **options: Any) -> AnsweringRank:
        made.append(AnsweringRank(folder, rank, **options))
        return made[-1]

    yield make
    for rank in made:
        # This wakes up who waits in accept().
        with contextlib.suppress(OSError):
            rank.listener.shutdown(socket.SHUT_RDWR)
        rank.listener.close()


@pytest.fixture
def socket_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """
    A folder for sockets, and no settings from outside; its path is short, as
    the kernel wants.
    """
    path = Path(tempfile.mkdtemp(prefix="dd", dir="/tmp"))
    for name in list(os.environ):
        if name.startswith(("DISTDEBUG", "RANK", "WORLD_SIZE", "LOCAL_RANK")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DISTDEBUG_DIR", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def write_stack():
    """
    Writes what was seen of the main thread of a rank.
    """

    def write(folder, rank, *lines, host="node1", pid=None, activity=None):
        thread = ThreadStack(
            name="MainThread",
            frames=tuple(StackFrame(*line) for line in lines),
            thread_id=7 + rank,
            is_main=True,
            activity=activity,
        )
        pid = pid or 7 + rank
        process = ProcessStacks(
            pid=pid, source="", threads=(thread,), rank=rank, role="rank"
        )
        path = folder / f"pyspy_{host}_{pid}.json"
        path.write_text(stacks_to_json(attrs.evolve(process, host=host)))
        return path

    return write
