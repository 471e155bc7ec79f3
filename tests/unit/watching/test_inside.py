"""
A rank that watches itself, by a real thread and a child that is made up.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time

from functools import partial
from pathlib import Path
from unittest import mock

import pytest

import distdebug

from distdebug import watch
from distdebug.errors import ConfigError
from distdebug.flight_recorder import (
    disable_flight_recorder,
    enable_flight_recorder,
)
from distdebug.watching import Hang, HangDebugConfig, Watch, hang, inside


NAME = "distdebug watch"
PATIENCE_S = 30
QUICK = {"floor_s": 0.1, "start_s": 0.1, "poll_s": 0.05}
SLOW = {"floor_s": 20.0, "poll_s": 0.05}


class Rank:
    """
    What this process shows, and how often it was looked at.
    """

    def __init__(self):
        self.moves, self.looks = False, 0
        self._seen = threading.Condition()

    def __call__(self):
        with self._seen:
            self.looks += 1
            self._seen.notify_all()
            return self.looks if self.moves else 7

    def wait_for_looks(self, count):
        """
        Wait until it was looked at so many times more.
        """
        with self._seen:
            end = self.looks + count
            assert self._seen.wait_for(lambda: self.looks >= end, PATIENCE_S)


def threads():
    """
    The threads of watches.
    """
    return [x for x in threading.enumerate() if x.name == NAME]


def wait_until(is_there):
    """
    Wait until something is there, and return it.
    """
    end = time.monotonic() + PATIENCE_S
    while not (seen := is_there()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return seen


@pytest.fixture(name="rank")
def _rank(no_rank):
    """
    This process, which shows nothing but what a test sets.
    """
    yield Rank()
    assert [] == threads()


class TestWatch:
    @pytest.mark.process
    @pytest.mark.parametrize(
        ("number", "name"), [(None, "this process"), ("3", "rank 3")]
    )
    def test_hang(
        self, rank, fake_child, told, *, caplog, monkeypatch, number, name
    ):
        """
        A stall is looked at once, and reported once, not on the main thread.
        """
        if number:
            monkeypatch.setenv("RANK", number)

        with watch(sense=rank, on_hang=told, **QUICK) as watching:
            told.wait()
            rank.wait_for_looks(5)

        (task,) = fake_child.tasks
        reason = task["reason"]
        assert ("no progress", [os.getpid()]) == (
            reason["kind"],
            reason["pids"],
        )
        assert [name] == [stalled for stalled, _ in reason["stalled"]]
        assert os.getpid() == task["request"]["inside"]
        assert ["distdebug"] == told.threads
        assert tuple(told.hangs) == watching.hangs
        assert re.search(r"no progress for \d+ s: rank 3 sleeps", caplog.text)
        assert "  see /shared/hang/REPORT.txt" in caplog.text

    @pytest.mark.process
    def test_messages(self, rank, fake_child, told):
        """
        What this rank has found is there to be told, and where it lies.
        """
        with watch(sense=rank, on_hang=told, **QUICK) as watching:
            assert () == watching.messages()
            told.wait()

        (message,) = watching.messages()
        assert message.startswith("rank 3 sleeps\n/shared/hang on ")

    @pytest.mark.process
    def test_messages_of_others(self, rank, fake_child, told, tmp_path):
        """
        So is what another rank has found, once its report is there.
        """
        first = {"outcome": "elsewhere", "summary": "", "hang": None}
        answer = json.dumps({**first, "bundle": str(tmp_path)})
        fake_child.does(f"echo; echo \"$mark\" '{answer}'; exit")

        with watch(sense=rank, on_hang=told, **QUICK) as watching:
            rank.moves = False
            wait_until(lambda: fake_child.tasks)
            wait_until(lambda: watching._handler.request.but)
            assert () == watching.messages()
            report = tmp_path / "REPORT.txt"
            report.write_text("rank 3 sleeps\n  cause: sleeping\n")

            (message,) = watching.messages()

        assert message.startswith(f"rank 3 sleeps\n{tmp_path} on ")

    def test_moves(self, rank, fake_child, caplog):
        """
        As long as it moves, no child is started, and the log stays empty.
        """
        caplog.set_level(logging.INFO, "distdebug")
        rank.moves = True

        with watch(sense=rank, start_s=20.0, **SLOW) as watching:
            rank.wait_for_looks(5)

        assert [] == fake_child.tasks
        assert () == watching.hangs
        assert "" == caplog.text

    @pytest.mark.process
    def test_phase(self, rank, fake_child, told):
        """
        A phase without steps is no hang, also within another one; as soon as it
        ends, or has taken its time, it is one.
        """
        with watch(sense=rank, on_hang=told, **QUICK) as watching:
            with watching.phase(), watching.phase(most_s=0.0):
                rank.wait_for_looks(12)
                assert [] == fake_child.tasks
            told.wait()

        with watch(sense=rank, on_hang=told, **QUICK) as watching:
            with watching.phase(most_s=0.2):
                told.wait()

    @pytest.mark.process
    def test_phases_end_in_any_order(self, rank, fake_child, told):
        """
        Each phase has its own time, also if the one begun first ends first.
        """
        with watch(sense=rank, on_hang=told, **QUICK) as watching:
            first, second = watching.phase(most_s=0.0), watching.phase()
            with second:
                with first:
                    pass
                rank.wait_for_looks(12)
                assert [] == fake_child.tasks
            long, short = watching.phase(), watching.phase(most_s=0.0)
            long.__enter__()
            with short:
                long.__exit__(None, None, None)
                told.wait()

    @pytest.mark.process
    def test_several_hooks(self, rank, fake_child, told, told_by, caplog):
        """
        A hook that fails costs neither the others nor the watch.
        """
        first = told_by(ValueError("a bug"))

        with watch(sense=rank, on_hang=[first, told], **QUICK):
            told.wait()
            rank.wait_for_looks(3)
            (thread,) = threads()
            assert thread.is_alive()

        assert (1, 1) == (len(first.hangs), len(told.hangs))
        assert "a hook failed" in caplog.text

    @pytest.mark.process
    def test_child_fails(self, rank, fake_child, told, caplog):
        """
        If the child fails, another one is asked when it has lasted on.
        """
        fine = '{"outcome": "fine", "summary": "", "bundle": null, "hang": '
        fake_child.does(
            "echo 'no answer' >&2; exit 1",
            f"echo; echo \"$mark\" '{fine} null}}'; exit",
        )

        with watch(sense=rank, on_hang=told, **QUICK):
            told.wait()

        stalls = [x["reason"]["stalled"][0][1] for x in fake_child.tasks]
        assert 3 == len(stalls)
        assert stalls[1] > 2 * stalls[0]
        assert stalls[2] > 2 * stalls[1]
        assert "no answer" in caplog.text

    @pytest.mark.process
    def test_wait(self, rank, fake_child, told, tmp_path):
        """
        A configuration sets when to look in any case, and where to write.
        """
        rank.moves = True
        config = HangDebugConfig(enabled=True, wait_seconds=0.01)

        with watch(
            config, log_dir=tmp_path, on_hang=told, sense=rank, poll_s=0.05
        ) as watching:
            told.wait()

        (task,) = fake_child.tasks
        assert "wait" == task["reason"]["kind"]
        assert str(tmp_path / "backtraces") == task["request"]["output_dir"]
        assert 1 == len(watching.hangs)

    def test_disabled(self, rank):
        """
        A configuration that does not ask for it starts nothing.
        """
        with watch(HangDebugConfig(), sense=rank, **QUICK) as watching:
            assert [] == threads()
            watching.step()

        assert () == watching.hangs
        assert 0 == rank.looks

    def test_ended(self, rank, caplog, monkeypatch):
        """
        Whatever goes wrong in the watch, the job goes on.
        """
        wait = threading.Event.wait

        def fail(event, timeout=None):
            # Not where it starts a thread itself, for the log.
            if timeout and threading.current_thread().name == NAME:
                raise RuntimeError
            return wait(event, timeout)

        monkeypatch.setattr(threading.Event, "wait", fail)

        with watch(sense=rank, **SLOW):
            for thread in threads():
                thread.join(PATIENCE_S)

        assert "the watch has ended" in caplog.text

    @pytest.mark.parametrize(
        "options",
        [
            {"floor_s": 0},
            {"factor": 0.5},
            {"start_s": -1},
            {"poll_s": 0},
            {"poll_s": float("nan")},
            {"poll_s": 1e308},
            {"timeout_s": float("inf")},
            {"timeout_s": -5},
            {"timeout_s": None},
            {"timeout_s": "x"},
            {"sense": 5},
            {"on_hang": 5},
            {"on_hang": [1]},
            {"on_hang": "scancel"},
            {"output_dir": ""},
            {"output_dir": "a\0b"},
            {"output_dir": b"a"},
            {"log_dir": 5},
            {"dump_dir": 5},
            {"logs": [5]},
            {"progress_files": 5},
            {"config": 5},
            {"config": {"enabled": 5}},
            {"config": "/no/such/file"},
        ],
    )
    def test_mistake(self, rank, options):
        """
        What makes no sense is refused at once, and nothing starts; for the
        text of a command, the remedy is to use `command_hook`.
        """
        with pytest.raises(ConfigError) as caught:
            watch(**options)

        assert [] == threads()
        is_command = options == {"on_hang": "scancel"}
        assert is_command == ("command_hook" in str(caught.value.remedy))

    def test_public(self):
        """
        It is where users look for it.
        """
        assert distdebug.Watch is Watch
        assert distdebug.watching.Hang is Hang


@pytest.mark.process
class TestBlocked:
    """
    Whatever blocks for ever, the watch goes on, and the process ends.
    """

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch):
        """
        Waits that take minutes in earnest are short.
        """
        monkeypatch.setattr(inside, "_HOOK_TIMEOUT_S", 0.2)
        monkeypatch.setattr(hang, "_LOG_TIMEOUT_S", 0.2)
        quick = partial(inside.TimedCall, timeout_s=0.01)
        monkeypatch.setattr(inside, "TimedCall", quick)

    @pytest.fixture(name="end")
    def _end(self):
        """
        Set when the test is over.
        """
        end = threading.Event()
        yield end
        end.set()

    def test_hook(self, rank, fake_child, told, end):
        """
        A hook that blocks keeps neither the others nor the watch.
        """
        hooks = [lambda _: end.wait(30), told]

        with watch(sense=rank, on_hang=hooks, **QUICK):
            told.wait()
            rank.wait_for_looks(3)

    def test_sense(self, rank, fake_child, told, end):
        """
        What takes a lock that the job holds is not waited for.
        """

        with watch(sense=lambda: end.wait(30), on_hang=told, **QUICK):
            told.wait()
            end.set()

        assert 1 == len(told.hangs)

    def test_log(self, rank, fake_child, told, end):
        """
        A log that blocks costs no hook, and not the watch.
        """

        class Pipe(logging.Handler):
            def emit(self, record):
                end.wait(30)

        pipe = Pipe()
        logger = logging.getLogger("distdebug")
        logger.addHandler(pipe)

        try:
            with watch(sense=rank, on_hang=told, **QUICK) as watching:
                told.wait()
                rank.wait_for_looks(3)
        finally:
            end.set()
            logger.removeHandler(pipe)

        assert 1 == len(watching.hangs)

    def test_closed_log(self, rank, fake_child, told_by, monkeypatch):
        """
        A log that is closed costs no hook, and not the watch.
        """

        def fail(*_, **__):
            raise ValueError

        monkeypatch.setattr(logging.Logger, "callHandlers", fail)
        told = told_by(ValueError("a bug"))

        with watch(sense=rank, on_hang=told, **QUICK):
            told.wait()
            rank.wait_for_looks(3)


@pytest.mark.process
def test_close_during_hook(rank, fake_child):
    """
    Closing a watch waits 2 s for a hook, and not longer.
    """
    begun, end = threading.Event(), threading.Event()

    def block(_):
        begun.set()
        end.wait(30)

    watching = watch(sense=rank, on_hang=block, **QUICK)
    begun.wait(PATIENCE_S)
    (thread,) = threads()

    before = time.monotonic()
    watching.close()

    assert 5 > time.monotonic() - before
    assert thread.is_alive()
    end.set()
    thread.join(PATIENCE_S)


@pytest.mark.process
class TestCaptureRequest:
    @pytest.fixture(name="order")
    def _order(self, rank, fake_child, told, tmp_path, monkeypatch):
        """
        What a watch asks its child to take.
        """
        monkeypatch.chdir(tmp_path)

        def order(config=None, **options):
            with watch(config, sense=rank, on_hang=told, **QUICK, **options):
                told.wait()
            return fake_child.tasks[0]["request"]

        return order

    @pytest.mark.parametrize(
        ("options", "output_dir", "dump_dir", "logs"),
        [
            ({}, "backtraces", None, []),
            ({"log_dir": "/logs"}, "/logs/backtraces", None, []),
            (
                {"output_dir": "a", "log_dir": "/logs", "dump_dir": "/d"},
                *("a", "/d", []),
            ),
            (
                {"logs": "train.log", "dump_dir": Path("d")},
                *("backtraces", "d", ["train.log"]),
            ),
            (
                {"config": {"enabled": True, "output_dir": "/x"}},
                *("/x", None, []),
            ),
        ],
    )
    def test_paths(
        self, order, tmp_path, *, options, output_dir, dump_dir, logs
    ):
        """
        Where the job is when it starts, its snapshots are; what the caller
        names comes first, and every path is a whole one.
        """
        got = order(timeout_s=7.0, **options)

        wanted = got["wanted"]
        assert str(tmp_path / output_dir) == got["output_dir"]
        assert (dump_dir and str(tmp_path / dump_dir)) == wanted["dump_dir"]
        assert [str(tmp_path / log) for log in logs] == wanted["logs"]
        assert 7.0 == wanted["timeout_s"]

    def test_job_file(self, order, tmp_path):
        """
        The path of a job file will do.
        """
        pytest.importorskip("yaml")
        job = tmp_path / "job.yaml"
        job.write_text("debug: {enabled: true, output_dir: /y}")

        assert "/y" == order(job)["output_dir"]

    def test_gone(self, order, tmp_path, monkeypatch):
        """
        Where the folder that the job is in is gone, whole paths are wanted.
        """
        folder = tmp_path / "gone"
        folder.mkdir()
        monkeypatch.chdir(folder)
        folder.rmdir()

        with pytest.raises(ConfigError, match="nowhere") as caught:
            watch()

        assert "give a whole path" == caught.value.remedy
        assert "/a" == order(log_dir="/b", output_dir="/a")["output_dir"]

    def test_recording(self, order, fake_torch, tmp_path):
        """
        Where this rank records, dumps are asked for.
        """
        with mock.patch.dict(os.environ):
            enable_flight_recorder(dump_dir=tmp_path / "d", extras=False)
            try:
                got = order()
            finally:
                disable_flight_recorder()

        assert str(tmp_path / "d") == got["wanted"]["dump_dir"]


class TestClose:
    def test_interrupted(self, rank, monkeypatch):
        """
        Ctrl-C while a watch begins leaves no thread behind.
        """
        start = threading.Thread.start

        def interrupted(thread):
            start(thread)
            raise KeyboardInterrupt

        monkeypatch.setattr(threading.Thread, "start", interrupted)

        with pytest.raises(KeyboardInterrupt):
            watch(**SLOW)

        assert [] == threads()

    def test_no_thread(self, rank, monkeypatch, caplog):
        """
        Where no thread can be had, the job goes on, and the log says so.
        """

        def start(_):
            raise RuntimeError

        monkeypatch.setattr(threading.Thread, "start", start)

        with watch(**SLOW) as watching:
            watching.step()

        assert () == watching.hangs
        assert "this rank is not watched" in caplog.text

    def test_twice(self, rank):
        """
        A watch that is closed looks no more, however often it is closed.
        """
        watching = watch(sense=rank, **SLOW)
        rank.wait_for_looks(2)

        watching.close()
        before = rank.looks
        watching.close()
        watching.step()

        assert [] == threads()
        assert before == rank.looks

    def test_long_poll(self, rank):
        """
        Closing does not wait for the next look.
        """
        watching = watch(sense=rank, floor_s=1e5, poll_s=1e5)

        watching.close()

        assert [] == threads()
        assert 1 >= rank.looks

    @pytest.mark.process
    def test_in_hook(self, rank, fake_child, told, caplog):
        """
        A hook may end the watch that calls it; no other child is started.
        """

        def close(_):
            watching.close()

        rank.moves = True
        watching = watch(sense=rank, on_hang=[close, told], **QUICK)
        (thread,) = threads()
        rank.moves = False
        told.wait()

        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert 1 == len(watching.hangs) == len(fake_child.tasks)
        assert "failed" not in caplog.text

    @pytest.mark.process
    def test_during_snapshot(self, rank, fake_child):
        """
        A child that takes a snapshot is ended, with what it started.
        """
        fake_child.does("sleep 600 & echo $! > pid; wait")
        watching = watch(sense=rank, **QUICK)
        pid = fake_child.folder / "pid"
        wait_until(lambda: pid.exists() and pid.read_text())

        watching.close()

        assert [] == threads()
        assert () == watching.hangs
        assert 1 == len(fake_child.tasks)
        wait_until(lambda: not is_running(int(pid.read_text())))

    def test_at_exit(self, rank, monkeypatch):
        """
        It ends with the process, and is forgotten when it is closed before.
        """
        known = []
        monkeypatch.setattr(atexit, "register", known.append)
        monkeypatch.setattr(atexit, "unregister", known.remove)

        watching = watch(floor_s=20.0)
        during = list(known)
        watching.close()

        assert [watching.close] == during
        assert [] == known


def is_running(pid):
    """
    Whether a process is there, and is no zombie.
    """
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


SCRIPT = """
import os, sys, distdebug
watching = distdebug.watch(floor_s=60)
with watching._stop._cond:  # as if the thread had just been about to rest
    pid = os.fork()
if pid == 0:
    watching.close()
    sys.exit(3)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(status, watching._thread.is_alive())
"""


@pytest.mark.process
def test_real_process():
    """
    A process that forks and never closes its watch ends, and so its child.
    """
    source = str(Path(distdebug.__file__).parents[1])

    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ("3 True\n", "", 0) == (
        ended.stdout,
        ended.stderr,
        ended.returncode,
    )


@pytest.mark.process
class TestSense:
    @pytest.mark.parametrize(
        "sign", ["main thread", "recorder", "step", "file", "sense"]
    )
    def test_moves(
        self, no_rank, fake_child, told, *, fake_torch, tmp_path, sign
    ):
        """
        Each sign of progress counts: a stall is reported soon only after the
        sign has moved; while another sign is seen, a main thread that wakes up
        is none.
        """
        log, moves = tmp_path / "train.log", [0]
        options = {**QUICK, "start_s": 1000.0, "factor": 1.0, "on_hang": told}
        if sign != "main thread":
            # Something is always seen, and the main thread does not count.
            options["sense"] = lambda: moves[0] if sign == "sense" else 0
        if sign == "file":
            options["progress_files"] = iter([str(log)])
        if sign != "recorder":
            del sys.modules["torch"]

        with watch(**options) as watching:
            while not told.is_called(0.5):
                moves[0] += 1
                assert moves[0] < 60
                if sign == "recorder":
                    fake_torch.unfinished += 1
                if sign == "step":
                    watching.step()
                if sign == "file":
                    log.write_text("x" * moves[0])

        assert 1 == len(told.hangs)

    @pytest.mark.parametrize(
        "error", [ValueError, SystemExit, KeyboardInterrupt]
    )
    def test_own_fails(self, rank, fake_child, told, caplog, error):
        """
        A sense that fails, or wants to exit, is logged once, and not called
        again.
        """
        calls = []

        def fail():
            calls.append(1)
            raise error

        with watch(sense=fail, on_hang=told, **QUICK):
            told.wait()

        assert [1] == calls
        assert 1 == caplog.text.count("is not called again")
