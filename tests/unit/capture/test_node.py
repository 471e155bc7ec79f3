"""
Capturing a node, with stand-ins for its processes and tools.
"""

from __future__ import annotations

import json
import stat
import time

from types import SimpleNamespace

import attrs
import pytest

from distdebug.capture import (
    capture_node,
    capture_process,
    fallback,
    files,
    node,
)
from distdebug.capture.looks import Look
from distdebug.capture.model import Attempt, CaptureStatus
from distdebug.findings import Cause
from distdebug.processes import ProcessState, ThreadFacts, Worker
from distdebug.stacks import StackFrame, ThreadStack, read_stacks


C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WAITING = (
    StackFrame("all_reduce", C10D, 2800),
    StackFrame("train", "/home/me/train.py", 12),
)
READING = (
    StackFrame("readinto", "/v/lib/python3.11/socket.py", 706),
    StackFrame("fetch", "/home/me/data.py", 7),
)
OK = Attempt(tool="py-spy", status=CaptureStatus.OK)


def worker(rank, **kwargs):
    """
    The worker of a rank.
    """
    return Worker(
        pid=1000 + rank,
        start_ticks=5,
        parent_pid=1,
        uid=0,
        title="python train.py",
        framework="torchrun",
        rank=rank,
        world_size=4,
        local_rank=rank,
        local_world_size=4,
        **kwargs,
    )


@pytest.fixture
def nodes(monkeypatch):
    """
    A node on which rank 2 reads from a socket, and the others wait.
    """
    scene = SimpleNamespace(
        workers=[worker(rank) for rank in range(4)],
        frames={1000: WAITING, 1001: WAITING, 1002: READING, 1003: WAITING},
        states={},
        attempts={},
        asked=[],
        looks=0,
    )

    def look(who, *, timeout_s):
        scene.looks += 1
        frames = scene.frames.get(who.pid, ())
        main = ThreadStack(
            name="MainThread", frames=frames, thread_id=who.pid, is_main=True
        )
        return Look(
            when=time.monotonic(),
            state=scene.states.get(
                who.pid, ProcessState(letter="S", start_ticks=5)
            ),
            facts={
                who.pid: ThreadFacts(
                    name="python",
                    state="S",
                    voluntary=7,
                    involuntary=0,
                    cpu_s=1.0,
                )
            },
            threads=(main,) if frames else (),
            attempt=scene.attempts.get(who.pid, OK),
        )

    def ask(pid, *, timeout_s, start_ticks):
        scene.asked.append(pid)
        no = CaptureStatus.NOT_PERMITTED
        return (), Attempt(tool="faulthandler", status=no, detail="no offer")

    def by_pid(pids):
        known = {w.pid: w for w in scene.workers}
        return tuple(known[pid] for pid in pids if pid in known)

    monkeypatch.setattr(node, "find_workers", lambda _: tuple(scene.workers))
    monkeypatch.setattr(node, "workers_of", by_pid)
    monkeypatch.setattr(node, "take_look", look)
    monkeypatch.setattr(fallback, "ask_process", ask)
    return scene


def capture(*args, **kwargs):
    """
    Capture without waiting.
    """
    return capture_node(*args, **{"interval_s": 0.0, **kwargs})


class TestCaptureNode:
    def test_verdict(self, nodes):
        """
        Who stands apart is named, with the line.
        """
        got = capture()

        verdict = got.findings[0]
        assert (Cause.IO_WAIT, (2,)) == (verdict.cause, verdict.ranks)
        assert "fetch" == verdict.location.function
        assert () == got.missing
        assert 12 == nodes.looks

    def test_order(self, nodes):
        """
        Ranks come in order, and before those that are none.
        """
        nodes.workers = [
            attrs.evolve(worker(9), rank=None, role="dataloader"),
            worker(3),
            worker(1),
        ]

        got = capture()

        assert [1, 3, None] == [p.worker.rank for p in got.processes]

    def test_rank_is_not_there(self, nodes):
        """
        A rank that should be on this node and is not is told.
        """
        del nodes.workers[1]

        got = capture()

        assert [("worker", 1)] == [(m.what, m.rank) for m in got.missing]

    def test_named_processes(self, nodes):
        """
        Who names processes gets these, and is not told of others.
        """
        got = capture(pids=[1002, 1002])

        assert [1002] == [p.worker.pid for p in got.processes]
        assert () == got.missing

    def test_process_that_is_gone(self, nodes):
        """
        A number that no process has is told, and loses nothing.
        """
        nodes.states[4] = None
        gone = Attempt(tool="proc", status=CaptureStatus.EXITED)
        nodes.attempts[4] = gone

        got = capture(pids=[4, 1000])

        assert [CaptureStatus.OK, CaptureStatus.EXITED] == [
            p.status for p in got.processes
        ]
        assert ["pid 4"] == [m.source for m in got.missing]

    def test_refused(self, nodes):
        """
        Who may not be looked into is asked; if in vain, the remedy is told.
        """
        nodes.frames[1002] = ()
        nodes.attempts[1002] = Attempt(
            tool="py-spy",
            status=CaptureStatus.YAMA,
            detail="EPERM",
            remedy="sysctl -w kernel.yama.ptrace_scope=0",
        )

        got = capture()

        process = got.processes[2]
        assert [1002] == nodes.asked
        assert CaptureStatus.YAMA is process.status
        assert "ptrace_scope=0" in process.remedy
        assert [2] == [m.rank for m in got.missing]
        # Not the reason of one tool with the remedy of another.
        assert got.missing[0].reason.startswith("EPERM (try: sysctl")

    def test_answers(self, nodes, monkeypatch):
        """
        What a process tells by itself is as good as what a tool sees.
        """
        nodes.frames[1002] = ()
        answer = ThreadStack(
            name="MainThread", frames=READING, thread_id=1002, is_main=True
        )
        extra = ThreadStack(name="t", frames=READING, thread_id=7)
        told = Attempt(tool="faulthandler", status=CaptureStatus.OK)
        monkeypatch.setattr(
            fallback, "ask_process", lambda *_, **__: ((answer, extra), told)
        )

        got = capture()

        process = got.processes[2]
        assert CaptureStatus.OK is process.status
        assert "faulthandler" == process.stacks.source
        assert READING == process.stacks.main_thread.frames
        assert process.stacks.main_thread.is_main
        assert [1002, 7] == [t.thread_id for t in process.stacks.threads]
        assert (2,) == got.findings[0].ranks

    @pytest.mark.parametrize(
        ("letter", "status"),
        [
            ("T", CaptureStatus.STOPPED),
            ("D", CaptureStatus.UNINTERRUPTIBLE),
            ("Z", CaptureStatus.ZOMBIE),
        ],
    )
    def test_state_first(self, nodes, letter, status):
        """
        The state of a process says more than what tools say about it.
        """
        nodes.states[1002] = ProcessState(letter=letter, start_ticks=5)

        got = capture()

        assert status is got.processes[2].status
        assert letter == got.processes[2].stacks.state

    def test_one_look(self, nodes):
        """
        One look takes no time, and tells nothing about who moves.
        """
        got = capture(looks=1, interval_s=3600.0)

        assert 4 == nodes.looks
        assert all(p.threads[0].activity is None for p in got.stacks)

    def test_nobody_to_look_at(self, nodes, monkeypatch):
        """
        Where nobody is, nobody is waited for.
        """
        monkeypatch.setattr(time, "sleep", None)

        capture = capture_node(pids=[], looks=3, interval_s=600.0)

        assert ((), ()) == (capture.processes, capture.missing)

    def test_no_time_for_another_look(self, nodes):
        """
        The limit for all comes before the number of looks.
        """
        start = time.monotonic()

        got = capture(looks=100, interval_s=10.0, timeout_s=5.0)

        assert 4 == nodes.looks
        assert time.monotonic() - start < 5
        assert "only 1 of 100 looks" in got.missing[0].reason

    def test_nobody_answers(self, nodes, monkeypatch):
        """
        If even the kernel does not answer, the process is told to be silent.
        """
        monkeypatch.setattr(node, "_GRACE_S", 0.1)

        def never(who, *, timeout_s):
            if who.pid == 1001:
                time.sleep(3)
            return look(who, timeout_s=timeout_s)

        look = node.take_look
        monkeypatch.setattr(node, "take_look", never)

        got = capture(looks=1, timeout_s=0.2)

        assert [CaptureStatus.TIMED_OUT] == [
            p.status for p in got.processes if p.worker.rank == 1
        ]
        assert 3 == sum(p.status is CaptureStatus.OK for p in got.processes)

    def test_nobody_answers_at_the_end(self, nodes, monkeypatch):
        """
        Nor is a kernel waited for that falls silent after the looks.
        """
        monkeypatch.setattr(node, "_GRACE_S", 0.1)

        def never(who, looks, *, host):
            if who.pid == 1001 and looks[-1].threads:
                time.sleep(3)
            return describe(who, looks, host=host)

        describe = node.describe_process
        monkeypatch.setattr(node, "describe_process", never)
        start = time.monotonic()

        got = capture(looks=1, timeout_s=0.2)

        assert [1] == [
            p.worker.rank for p in got.processes if not p.stacks.threads
        ]
        assert time.monotonic() - start < 3

    def test_tell(self, nodes):
        """
        It tells how far it is.
        """
        told = []

        capture(looks=2, tell=lambda *what: told.append(what))

        assert ("look 1 of 2", 1, 4) == told[0]
        assert ("look 2 of 2", 4, 4) == told[-1]


class TestCaptureProcess:
    def test_one(self, nodes):
        """
        One process is as good as many.
        """
        got = capture_process(1002)

        assert (2, CaptureStatus.OK) == (got.worker.rank, got.status)


class TestFiles:
    def test_names(self, nodes, tmp_path):
        """
        The files have the names that are known, and only the owner reads them.
        """
        got = capture(tmp_path / "new")

        folder = tmp_path / "new" / got.host
        names = {
            f"pyspy_{got.host}_{pid}.{kind}"
            for pid in range(1000, 1004)
            for kind in ("json", "txt")
        }
        assert {*names, "workers.json"} == {f.name for f in folder.iterdir()}
        assert sorted(got.files) == sorted(folder.iterdir())
        assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
        assert {0o600} == {stat.S_IMODE(f.stat().st_mode) for f in got.files}

    def test_read_again(self, nodes, tmp_path):
        """
        What is read again says the same.
        """
        got = capture(tmp_path)

        again = {p.rank: p for p in read_stacks(tmp_path)}
        assert {0, 1, 2, 3} == set(again)
        for process in got.stacks:
            read = again[process.rank]
            assert process.main_thread.frames == read.main_thread.frames
            assert (process.state, process.host, process.world_size) == (
                read.state,
                read.host,
                read.world_size,
            )
            assert not read.main_thread.activity.has_moved

    def test_workers(self, nodes, tmp_path):
        """
        There is a list of all processes.
        """
        got = capture(tmp_path)

        rows = json.loads((tmp_path / got.host / "workers.json").read_text())
        assert [(0, 1000, "ok"), (1, 1001, "ok")] == [
            (row["rank"], row["pid"], row["status"]) for row in rows[:2]
        ]

    def test_twice(self, nodes, tmp_path):
        """
        A second capture does not overwrite the first.
        """
        first, second = capture(tmp_path), capture(tmp_path)

        assert f"{first.host}.2" == second.files[0].parent.name
        assert all(path.exists() for path in first.files)

    def test_disk_is_full(self, nodes, tmp_path, monkeypatch):
        """
        What cannot be written is told, leaves nothing half, and loses nothing.
        """

        def full(process):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(files, "stacks_to_text", full)

        got = capture(tmp_path)

        assert 4 == len(got.processes)
        assert {"not written: No space left on device"} == {
            m.reason for m in got.missing
        }
        left = [f.name for f in got.files[0].parent.iterdir()]
        assert not [name for name in left if name.startswith(".")]

    def test_half_written(self, nodes, tmp_path, monkeypatch):
        """
        A file is there whole, or not at all; what was seen is told anyway.
        """

        def fail(*_):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("pathlib.Path.replace", fail)

        got = capture(tmp_path)

        assert [] == [f for f in tmp_path.rglob("*") if f.is_file()]
        assert () == got.files
        assert {"not written: Input/output error"} == {
            m.reason for m in got.missing
        }
        assert (2,) == got.findings[0].ranks

    def test_not_a_folder(self, nodes, tmp_path):
        """
        Where no folder can be made, that is said before anybody is looked at.
        """
        (tmp_path / "file").touch()

        with pytest.raises(OSError, match="file"):
            capture(tmp_path / "file")

        assert 0 == nodes.looks

    def test_cuda_text(self, nodes, tmp_path, monkeypatch):
        """
        What cuda-gdb printed has a file of its own.
        """

        def deeper(processes, **_):
            first, *others = processes
            return [attrs.evolve(first, cuda_text="no kernels"), *others]

        monkeypatch.setattr(node, "look_deeper", deeper)

        got = capture(tmp_path, cuda=True)

        path = tmp_path / got.host / f"cudagdb_{got.host}_1000.txt"
        assert "no kernels" == path.read_text()


class TestText:
    def test_text(self, nodes):
        """
        Verdict, tree, and table are shown.
        """
        nodes.states[1003] = ProcessState(letter="T", start_ticks=5)

        text = str(capture())

        assert "4 processes (4 of torchrun; ranks 0-3)" in text
        assert "fetch (data.py:7)" in text
        assert "stopped" in text

    def test_many(self, nodes):
        """
        Of very many processes some are shown.
        """
        nodes.workers = [worker(rank) for rank in range(40)]
        nodes.frames = {w.pid: WAITING for w in nodes.workers}

        assert "… and 8 more processes" in str(capture())

    def test_many_findings(self, nodes):
        """
        Of very many findings some are shown, and the others are counted.
        """
        nodes.workers = [worker(rank, job=str(rank)) for rank in range(6)]
        nodes.frames = {
            w.pid: (StackFrame("sleep", f"/home/me/{w.pid}.py", 1),)
            for w in nodes.workers
        }

        text = str(capture())

        assert "… and 3 more findings" in text

    def test_two_jobs(self, nodes):
        """
        If there are several jobs, each row names its own.
        """
        nodes.workers = [
            worker(0, job="none 127.0.0.1:29500"),
            worker(1, job="a-name-that-is-too-long 127.0.0.1:29501"),
        ]

        text = str(capture())

        assert "none 127.0.0.1:29500" in text
        assert "…oo-long 127.0.0.1:29501" in text

    def test_child(self, nodes):
        """
        Children have the rank of their parent in brackets.
        """
        child = attrs.evolve(
            worker(9), rank=None, role="dataloader", parent_pid=1002
        )
        nodes.workers.append(child)

        lines = str(capture()).splitlines()

        assert any(line.startswith("(2)") and "1009" in line for line in lines)

    def test_verdict_first(self, nodes):
        """
        The first line is fit for a ticket.
        """
        first = str(capture()).splitlines()[0]

        assert first.startswith("rank 2 is")

    def test_hostile_title(self, nodes):
        """
        A name that a process chose does nothing to the terminal.
        """
        nodes.frames[1002] = (StackFrame("f\x1b[2Jg", "/a\x07.py", 1),)

        assert "\x1b" not in str(capture())
        assert "\x07" not in str(capture())

    def test_pauses(self, nodes, monkeypatch):
        """
        Who was stopped by our tools is told, and who had to be resumed.
        """
        paused = Attempt(
            tool="gdb", status=CaptureStatus.OK, paused_s=2.5, resumed=True
        )
        failed = Attempt(
            tool="gdb", status=CaptureStatus.TIMED_OUT, detail="too slow"
        )

        def deeper(processes, **_):
            first, *others = processes
            tried = (*first.attempts, paused, failed)
            return [attrs.evolve(first, attempts=tried), *others]

        monkeypatch.setattr(node, "look_deeper", deeper)

        text = str(capture(native="all"))

        assert "stopped for a moment: once, 2.5 s at most" in text
        assert "gdb left pid 1000 stopped" in text
        assert "gdb, 1 process: too slow" in text

    def test_records(self, nodes):
        """
        There is a row for each process, of plain data.
        """
        got = capture()

        assert json.loads(json.dumps(got.to_dict()))["workers"][2]["rank"] == 2
        assert [0, 1, 2, 3] == [row["rank"] for row in got.to_records()]

    def test_repr_pretty(self, nodes):
        """
        A notebook shows the text.
        """
        shown = []
        printer = SimpleNamespace(text=shown.append)
        got = capture(looks=1)

        got._repr_pretty_(printer, cycle=False)
        got._repr_pretty_(printer, cycle=True)

        assert [str(got), "..."] == shown
