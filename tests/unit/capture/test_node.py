"""
Capturing a node, with stand-ins for its processes and tools.
"""

from __future__ import annotations

import errno
import json
import stat
import threading
import time

from types import SimpleNamespace

import attrs
import pytest

from distdebug.capture import (
    Attempt,
    CaptureStatus,
    capture_node,
    capture_process,
)
from distdebug.causes import Cause
from distdebug.errors import PatternError
from distdebug.processes import read_state
from distdebug.stacks import read_stacks


pytestmark = pytest.mark.process


C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WAITING = (
    ("all_reduce", C10D, 2800),
    ("train", "/home/me/train.py", 12),
    ("<module>", "/home/me/train.py", 40),
)
READING = (
    ("readinto", "/v/lib/python3.11/socket.py", 706),
    ("fetch", "/home/me/data.py", 7),
    ("<module>", "/home/me/train.py", 40),
)


@pytest.fixture
def node(kernel, py_spy):
    """
    A node on which rank 2 reads from a socket, and the others wait.
    """
    pids = [kernel.rank(rank) for rank in range(4)]
    for pid in pids:
        py_spy.sees(pid, READING if pid == pids[2] else WAITING)
    return SimpleNamespace(kernel=kernel, py_spy=py_spy, pids=pids)


def capture(*args, **kwargs):
    """
    Capture without waiting.
    """
    return capture_node(*args, **{"interval_s": 0.0, "samples": 2, **kwargs})


@pytest.fixture
def impatient(monkeypatch):
    """
    What does not come back is not waited for long.

    How long that is, no user can set.
    """
    monkeypatch.setattr("distdebug.capture.node._GRACE_S", 0.1)


@pytest.mark.usefixtures("node")
class TestCaptureNode:
    def test_verdict(self, node):
        """
        The one that stands apart is named, with the line.
        """
        got = capture(samples=3)

        verdict = got.findings[0]
        assert (Cause.IO_WAIT, (2,)) == (verdict.cause, verdict.ranks)
        assert "fetch" == verdict.location.function
        assert () == got.missing
        assert 12 == len(node.py_spy.calls)
        assert str(got).startswith("rank 2 is")

    def test_patience(self, node):
        """
        What may be slow as well as stuck is looked at for longer.
        """
        told = []
        later = ("step", "/home/me/train.py", 13), READING[-1]
        node.py_spy.sees(node.pids[2], *[READING] * 3, later, READING)

        got = capture(
            samples=2,
            patience_s=0.3,
            tell=lambda stage, *_: told.append(stage),
        )

        activity = got.processes[2].stacks.threads[0].activity
        assert activity.has_left
        assert 0.3 <= activity.seconds < 30
        assert 5 * 4 == len(node.py_spy.calls)
        assert {"look 1 of 2", "look 1 of 3"} <= {*told}

    def test_no_patience(self, node):
        """
        What is surely stuck is not.
        """
        node.py_spy.sees(node.pids[2], WAITING)

        capture(samples=2, patience_s=60.0)

        assert 2 * 4 == len(node.py_spy.calls)

    def test_order(self, node):
        """
        Ranks come in order, and before those that are none.
        """
        node.kernel.rank(9, parent=node.pids[0], name="pt_data_worker")

        got = capture(samples=1)

        ranks = [p.worker.rank for p in got.processes]
        assert [0, 1, 2, 3, None] == ranks

    def test_rank_is_not_there(self, node):
        """
        A rank that should be on this node and is not is reported, unless
        others were named; its peers know that it is absent in any case.
        """
        node.kernel.path(node.pids[1], "stat").unlink()

        got = capture(samples=1)
        named = capture(pids=[node.pids[2]] * 2, samples=1)

        assert [("worker", 1)] == [(m.what, m.rank) for m in got.missing]
        assert [2] == [p.worker.rank for p in named.processes]
        assert () == named.missing
        assert {(1,)} == {s.absent_peers for s in (*got.stacks, *named.stacks)}

    def test_process_that_is_gone(self, node):
        """
        A number that no process has is reported, and loses nothing.
        """
        got = capture(pids=[999_999_999, node.pids[0]], samples=1)

        assert [CaptureStatus.OK, CaptureStatus.EXITED] == [
            p.status for p in got.processes
        ]
        assert ["pid 999999999"] == [m.source for m in got.missing]

    def test_refused(self, node):
        """
        One that may not be looked into is asked; if in vain, the remedy is
        reported.
        """
        pid = node.pids[2]
        node.py_spy.sees(pid, "Error: EPERM: Operation not permitted")
        node.kernel.answers |= {
            f"/proc/{pid}/mem": PermissionError(errno.EACCES, "no"),
            "/proc/sys/kernel/yama/ptrace_scope": "3\n",
        }

        got = capture()

        process = got.processes[2]
        assert "faulthandler" == process.attempts[-1].tool
        assert CaptureStatus.YAMA is process.status
        assert "ptrace_scope is 3" in process.remedy
        assert [2] == [m.rank for m in got.missing]
        # Not the reason of one tool with the remedy of another.
        assert "not permitted (try: kernel.yama" in got.missing[0].reason

    @pytest.mark.parametrize(
        ("letter", "status"),
        [
            ("T", CaptureStatus.STOPPED),
            ("D", CaptureStatus.UNINTERRUPTIBLE),
            ("Z", CaptureStatus.ZOMBIE),
        ],
    )
    def test_state_first(self, node, letter, status):
        """
        The state of a process says more than what tools say about it.
        """
        pid = node.kernel.rank(4, state=letter)
        node.py_spy.sees(pid, WAITING)

        got = capture_process(pid)

        assert status is got.status
        assert letter == got.stacks.state

    def test_one_look(self, node):
        """
        One look takes no time, and says nothing about who moves.
        """
        got = capture(samples=1, interval_s=3600.0)

        assert 4 == len(node.py_spy.calls)
        assert all(p.threads[0].activity is None for p in got.stacks)

    def test_nothing_to_look_at(self, monkeypatch):
        """
        Where no process is, none is waited for.
        """
        monkeypatch.setattr(time, "sleep", None)

        got = capture_node(pids=[], samples=3, interval_s=600.0)

        assert ((), ()) == (got.processes, got.missing)

    def test_single_pattern(self):
        """
        A single pattern may be given as it is.
        """
        # Its first character alone would match this process too.
        got = capture_node(patterns="no-such-process-[0-9]", samples=1)

        assert () == got.processes
        with pytest.raises(PatternError):
            capture_node(patterns="(")

    def test_no_time_for_another_look(self, node):
        """
        The limit for all comes before the number of looks.
        """
        got = capture(samples=100, interval_s=10.0, timeout_s=5.0)

        assert 4 == len(node.py_spy.calls)
        assert got.seconds < 5
        assert "only 1 of 100 looks" in got.missing[0].reason

    def test_silent_kernel(self, node, impatient):
        """
        If even the kernel does not answer, the process is reported as silent,
        and the others are seen.
        """
        stat = node.kernel.path(node.pids[1], "stat")
        # From the first look on.
        node.py_spy.sees(node.pids[1], "oops")
        node.py_spy.does(node.pids[1], 0, f"rm {stat}; mkfifo {stat}")
        node.kernel.end_with(stat)

        got = capture(timeout_s=1.0)

        assert [CaptureStatus.TIMED_OUT] == [
            p.status for p in got.processes if p.worker.rank == 1
        ]
        assert 3 == sum(p.status is CaptureStatus.OK for p in got.processes)

    def test_silent_kernel_at_the_end(self, node, impatient):
        """
        Nor is a kernel waited for that falls silent after the looks.
        """
        pid = node.pids[1]
        node.kernel.hang(node.kernel.path(pid, f"task/{pid}/syscall"))
        start = time.monotonic()

        got = capture(samples=1, timeout_s=0.5)

        assert [1] == [
            p.worker.rank for p in got.processes if not p.stacks.threads
        ]
        assert time.monotonic() - start < 20

    def test_tell(self):
        """
        It says how far it is.
        """
        told = []

        capture(samples=2, tell=lambda *what: told.append(what))

        assert ("look 1 of 2", 1, 4) == told[0]
        assert ("look 2 of 2", 4, 4) == told[-1]

    def test_interrupt(self, node):
        """
        Ctrl-C stops the tools instead of waiting for them.
        """
        pid, path = node.pids[1], node.py_spy.folder / "started"
        node.py_spy.does(pid, 0, f"echo $$ >{path}; exec sleep 600")

        def interrupt(_stage, done, _total):
            while done == 3 and not (path.exists() and path.read_text()):
                time.sleep(0.01)
            if done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            capture(tell=interrupt)

        # Its own time would be over after ten seconds.
        deadline = time.monotonic() + 7
        while read_state(int(path.read_text())) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @pytest.mark.parametrize("left", [0, 1])
    def test_no_threads(self, node, monkeypatch, left):
        """
        On a node where no more threads can be started, it goes slower.
        """
        start, started = threading.Thread.start, []

        def full(thread):
            is_ours = thread.name == "distdebug capture"
            if is_ours and len(started) == left:
                msg = "can't start new thread"
                raise RuntimeError(msg)
            started.extend([thread] * is_ours)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", full)

        got = capture(pids=node.pids, samples=1)

        assert [0, 1, 2, 3] == [
            p.worker.rank for p in got.processes if p.stacks.threads
        ]


@pytest.mark.usefixtures("node")
class TestFiles:
    def test_names(self, node, tmp_path):
        """
        The files have the names that are known, and only the owner reads them.
        """
        got = capture(tmp_path / "new")

        folder = tmp_path / "new" / got.host
        names = {
            f"pyspy_{got.host}_{pid}.{kind}"
            for pid in node.pids
            for kind in ("json", "txt")
        }
        assert {*names, "workers.json"} == {f.name for f in folder.iterdir()}
        assert sorted(got.files) == sorted(folder.iterdir())
        assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
        assert {0o600} == {stat.S_IMODE(f.stat().st_mode) for f in got.files}

    def test_read_again(self, tmp_path):
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

    def test_workers(self, node, tmp_path):
        """
        There is a list of all processes.
        """
        got = capture(tmp_path)

        rows = json.loads((tmp_path / got.host / "workers.json").read_text())
        assert [(n, pid, "ok") for n, pid in enumerate(node.pids)] == [
            (row["rank"], row["pid"], row["status"]) for row in rows
        ]

    def test_twice(self, tmp_path):
        """
        A second capture does not overwrite the first.
        """
        first, second = capture(tmp_path), capture(tmp_path)

        assert f"{first.host}.2" == second.files[0].parent.name
        assert all(path.exists() for path in first.files)

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            ("pathlib.Path.replace", OSError(5, "Input/output error")),
            ("builtins.open", OSError(28, "No space left on device")),
        ],
    )
    def test_half_written(self, tmp_path, monkeypatch, call, error):
        """
        A file is there whole, or not at all; what was seen is reported anyway.
        """

        real = open

        def fail(*args, **options):
            if call.endswith("open") and args[1:2] != ("xb",):
                return real(*args, **options)
            raise error

        monkeypatch.setattr(call, fail)

        got = capture(tmp_path / "new")

        assert [] == [f for f in (tmp_path / "new").rglob("*") if f.is_file()]
        assert () == got.files
        assert {f"not written: {error.strerror}"} == {
            m.reason for m in got.missing
        }
        assert (2,) == got.findings[0].ranks

    def test_not_a_folder(self, node, tmp_path):
        """
        Where no folder can be made, that is said before a process is looked at.
        """
        (tmp_path / "file").touch()

        with pytest.raises(OSError, match="file"):
            capture(tmp_path / "file")

        assert [] == node.py_spy.calls


@pytest.mark.usefixtures("node")
class TestText:
    def test_text(self, node):
        """
        Verdict, tree, and table are shown; children have the rank of their
        parent in brackets.
        """
        reader = node.kernel.rank(
            9, parent=node.pids[2], name="pt_data_worker", state="T"
        )

        text = str(capture())

        assert "5 processes (5 of torchrun; ranks 0-3)" in text
        assert "fetch (data.py:7)" in text
        assert "stopped" in text
        assert any(
            line.startswith("(2)") and str(reader) in line
            for line in text.splitlines()
        )

    def test_many(self, node):
        """
        Of very many processes some are shown.
        """
        for rank in range(4, 40):
            node.py_spy.sees(node.kernel.rank(rank), WAITING)

        assert "… and 8 more processes" in str(capture(samples=1))

    def test_many_findings(self, node):
        """
        Of very many findings some are shown, and the others are counted; each
        row names its own job.
        """
        pids = [
            node.kernel.rank(
                rank, environ={"TORCHELASTIC_RUN_ID": f"{'x' * 60}{rank}"}
            )
            for rank in range(4, 10)
        ]
        for pid in pids:
            frames = (("sleep", f"/home/me/{pid}.py", 1),)
            node.py_spy.sees(pid, frames)

        text = str(capture(pids=pids))

        assert "… and 3 more findings" in text
        assert "…xxxx" in text
        assert "xxx9" in text

    def test_hostile_title(self, node):
        """
        A name that a process chose does nothing to the terminal.
        """
        node.py_spy.sees(node.pids[2], (("f\x1b[2Jg", "/a\x07.py", 1),))

        text = str(capture())

        assert "\x1b" not in text
        assert "\x07" not in text
        assert "fg (a.py:1)" in text

    def test_pauses(self):
        """
        What was stopped by our tools is reported, and what had to be resumed.
        """
        got = capture(samples=1)
        first, *others = got.processes
        ok, late = CaptureStatus.OK, CaptureStatus.TIMED_OUT
        tried = (
            *first.attempts,
            Attempt(tool="gdb", status=ok, paused_s=2.5, resumed=True),
            Attempt(tool="gdb", status=late, detail="too slow"),
        )
        first = attrs.evolve(first, attempts=tried)

        text = str(attrs.evolve(got, processes=(first, *others)))

        assert "stopped for a moment: once, 2.5 s at most" in text
        assert f"gdb left pid {first.worker.pid} stopped" in text
        assert "gdb, 1 process: too slow" in text

    def test_denied(self):
        """
        What may not be looked into is said first, with what allows it, and with
        what works without.
        """
        got = capture(samples=1)
        first, second, *others = got.processes
        denied = [
            attrs.evolve(x, status=CaptureStatus.SECCOMP, remedy="ask\x1b[2J")
            for x in (first, second)
        ]

        text = str(attrs.evolve(got, processes=(*denied, *others)))

        lines = text.splitlines()
        assert lines[0] == (
            "tracing is denied, so 2 processes cannot be read: seccomp"
        )
        assert lines[1] == "  to allow it: ask"
        assert "enable_flight_recorder()" in lines[2]
        assert "tracing is denied" not in str(got)

    def test_records(self):
        """
        There is a row for each process, of plain data.
        """
        got = capture()

        assert json.loads(json.dumps(got.to_dict()))["workers"][2]["rank"] == 2
        assert [0, 1, 2, 3] == [row["rank"] for row in got.to_records()]

    def test_repr_pretty(self):
        """
        A notebook shows the text.
        """
        shown = []
        printer = SimpleNamespace(text=shown.append)
        got = capture(samples=1)

        got._repr_pretty_(printer, cycle=False)
        got._repr_pretty_(printer, cycle=True)

        assert [str(got), "..."] == shown
