"""
A rank that watches itself, by a real thread and a child that is made up.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
import time

from functools import partial
from pathlib import Path

import pytest

import distdebug

from distdebug import watch
from distdebug.errors import CaptureError, ConfigError
from distdebug.findings import Cause
from distdebug.flight_recorder import plan_flight_recorder
from distdebug.flight_recorder.recording.current import (
    Recording,
    begin_recording,
    end_recording,
)
from distdebug.watching import Hang, HangDebugConfig, Response
from distdebug.watching import inside as module
from distdebug.watching import log as log_room
from distdebug.watching.senses import sources


NAME = "distdebug watch"
FOLDER = Path("/shared/hang")
PATIENCE_S = 30
QUICK = {"floor_s": 0.1, "start_s": 0.1, "poll_s": 0.05}


class Rank:
    """
    What this process shows, and how often somebody looked at it.
    """

    def __init__(self):
        self.moves, self.looks, self.pids = False, 0, set()
        self.asked = []
        self.answers = []
        self.stop = None
        self._seen = threading.Condition()

    def switches(self, pids):
        """
        Show whether the main thread moves.
        """
        with self._seen:
            self.pids.add(tuple(pids))
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

    def ask(self, reason, order, stop):
        """
        Answer instead of a child.
        """
        self.asked.append((reason, order))
        self.stop = stop
        answer = self.answers.pop(0) if self.answers else hanging
        if callable(answer):
            answer = answer(reason)
        if isinstance(answer, Exception):
            raise answer
        return answer


def hanging(reason):
    """
    It hangs.
    """
    verdict = {"cause": Cause.SLEEPING, "summary": "rank 3 sleeps"}
    hang = Hang(reason=reason, folder=FOLDER, data={"verdict": verdict})
    return Response("explained", "rank 3 sleeps", FOLDER, hang)


def threads():
    """
    The threads of watches.
    """
    return [x for x in threading.enumerate() if x.name == NAME]


@pytest.fixture(name="rank")
def _rank(monkeypatch):
    """
    This process, which shows nothing but its main thread.
    """
    rank = Rank()
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "read_progress", lambda: None)
    monkeypatch.setattr(module, "switches", rank.switches)
    monkeypatch.setattr(module, "ask_child", rank.ask)
    monkeypatch.setattr(sources, "_beats", [0])
    yield rank
    assert [] == threads()


class Told:
    """
    A hook that takes note, and can be waited for.
    """

    def __init__(self, error=None):
        self.hangs, self.threads, self.error = [], [], error
        self._event = threading.Event()

    def __call__(self, hang):
        self.hangs.append(hang)
        self.threads.append(threading.current_thread().name)
        self._event.set()
        if self.error is not None:
            raise self.error

    def wait(self):
        """
        Wait until it was called.
        """
        assert self._event.wait(PATIENCE_S)


class TestWatch:
    def test_hang(self, rank, caplog):
        """
        A stall is looked at once, and told once, not on the main thread.
        """
        told = Told()

        with watch(on_hang=told, **QUICK) as watching:
            told.wait()
            rank.wait_for_looks(5)

        ((reason, order),) = rank.asked
        assert {(os.getpid(),)} == rank.pids
        assert ("no progress", (os.getpid(),)) == (reason.kind, reason.pids)
        assert os.getpid() == order.inside
        assert ["distdebug"] == told.threads
        assert tuple(told.hangs) == watching.hangs
        assert "distdebug: no progress for 0 s: rank 3 sleeps" in caplog.text
        assert "  see /shared/hang/REPORT.txt" in caplog.text

    def test_moves(self, rank):
        """
        As long as it moves, nobody is asked.
        """
        rank.moves = True

        with watch(floor_s=20.0, start_s=20.0, poll_s=0.05) as watching:
            rank.wait_for_looks(5)

        assert [] == rank.asked
        assert () == watching.hangs

    def test_several_hooks(self, rank, caplog):
        """
        A hook that fails costs neither the others nor the watch.
        """
        first, last = Told(ValueError("a bug")), Told()

        with watch(on_hang=[first, last], **QUICK):
            last.wait()
            rank.wait_for_looks(3)
            (thread,) = threads()
            assert thread.is_alive()

        assert (1, 1) == (len(first.hangs), len(last.hangs))
        assert "a hook failed" in caplog.text

    def test_child_fails(self, rank, caplog):
        """
        If the child fails, another one is asked when it has lasted on.
        """
        told = Told()
        rank.answers = [CaptureError("no answer"), Response("fine", "slow")]

        with watch(on_hang=told, **QUICK):
            told.wait()

        stalls = [reason.stalled[0][1] for reason, _ in rank.asked]
        assert 3 == len(stalls)
        assert stalls[1] > 2 * stalls[0]
        assert stalls[2] > 2 * stalls[1]
        assert "no answer" in caplog.text

    def test_wait(self, rank, tmp_path):
        """
        A configuration tells when to look in any case, and where to write.
        """
        rank.moves = True
        told = Told()
        config = HangDebugConfig(enabled=True, wait_seconds=0.01)

        with watch(
            config, log_dir=tmp_path, on_hang=told, poll_s=0.05
        ) as watching:
            told.wait()

        ((reason, order),) = rank.asked
        assert "wait" == reason.kind
        assert tmp_path / "backtraces" == order.output_dir
        assert 1 == len(watching.hangs)

    def test_disabled(self, rank):
        """
        A configuration that does not ask for it starts nothing.
        """
        with watch(HangDebugConfig(), **QUICK) as watching:
            assert [] == threads()
            watching.step()

        assert () == watching.hangs
        assert 0 == rank.looks

    def test_ended(self, rank, caplog, monkeypatch):
        """
        Whatever goes wrong in the watch, the job goes on.
        """

        def fail(*_, **__):
            raise RuntimeError

        monkeypatch.setattr(module, "watch_processes", fail)

        with watch(**QUICK):
            for thread in threads():
                thread.join(PATIENCE_S)

        assert "the watch has ended" in caplog.text

    def test_closed_before(self, rank):
        """
        Who is closed starts no child any more.
        """
        watching = watch(floor_s=20.0)
        watching.close()

        with pytest.raises(CaptureError, match="closed"):
            watching._look(None, None)

        assert [] == rank.asked

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
        What makes no sense is told at once, and nothing starts.
        """
        with pytest.raises(ConfigError):
            watch(**options)

        assert [] == threads()


class TestBlocked:
    """
    Whatever blocks for ever, the watch goes on, and the process ends.
    """

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch):
        """
        Nobody is waited for as long as in earnest.
        """
        monkeypatch.setattr(module, "_HOOK_S", 0.2)
        monkeypatch.setattr(log_room, "_PATIENCE_S", 0.2)

    @pytest.fixture(name="end")
    def _end(self):
        """
        Set when the test is over.
        """
        end = threading.Event()
        yield end
        end.set()

    def test_hook(self, rank, end):
        """
        A hook that blocks keeps neither the others nor the watch.
        """
        told = Told()

        with watch(on_hang=[lambda _: end.wait(30), told], **QUICK):
            told.wait()
            rank.wait_for_looks(3)

    def test_close(self, rank, end, monkeypatch):
        """
        Who closes a watch waits 2 s for a hook, and not longer.
        """
        monkeypatch.setattr(module, "_HOOK_S", 30)
        begun = threading.Event()

        def block(_):
            begun.set()
            end.wait(30)

        watching = watch(on_hang=block, **QUICK)
        begun.wait(PATIENCE_S)
        (thread,) = threads()

        before = time.monotonic()
        watching.close()

        assert 5 > time.monotonic() - before
        assert thread.is_alive()
        end.set()
        thread.join(PATIENCE_S)

    def test_sense(self, rank, end, monkeypatch):
        """
        What takes a lock that the job holds is not waited for.
        """
        monkeypatch.setattr(
            module, "InTime", partial(sources.InTime, patience_s=0.01)
        )
        told = Told()

        def block():
            end.wait(30)

        with watch(sense=block, on_hang=told, **QUICK):
            told.wait()
            rank.wait_for_looks(3)
            end.set()

    def test_log(self, rank, end):
        """
        A log that nobody reads costs no hook, and not the watch.
        """

        class Pipe(logging.Handler):
            def emit(self, record):
                end.wait(30)

        told, pipe = Told(), Pipe()
        logger = logging.getLogger("distdebug")
        logger.addHandler(pipe)

        try:
            with watch(on_hang=told, **QUICK) as watching:
                told.wait()
                rank.wait_for_looks(3)
        finally:
            end.set()
            logger.removeHandler(pipe)

        assert 1 == len(watching.hangs)

    def test_closed_log(self, rank, monkeypatch):
        """
        A log that is closed costs no hook, and not the watch.
        """

        def fail(*_, **__):
            raise ValueError

        monkeypatch.setattr(logging.Logger, "callHandlers", fail)
        told = Told(ValueError("a bug"))

        with watch(on_hang=told, **QUICK):
            told.wait()
            rank.wait_for_looks(3)


class TestOrder:
    def order(self, **options):
        """
        What a watch would take.
        """
        with watch(HangDebugConfig(), **options) as watching:
            return watching._duty.order

    def test_plain(self, rank, tmp_path, monkeypatch):
        """
        Where the job is when it starts, its snapshots are.
        """
        monkeypatch.chdir(tmp_path)

        order = self.order(timeout_s=7.0)

        assert tmp_path / "backtraces" == order.output_dir
        assert 7.0 == order.wanted.timeout_s
        assert order.wanted.dump_dir is None

    def test_named(self, rank, tmp_path, monkeypatch):
        """
        What the caller names comes first; whole paths survive a chdir.
        """
        monkeypatch.chdir(tmp_path)

        order = self.order(output_dir="a", log_dir="/logs", dump_dir="/d")

        assert (tmp_path / "a", Path("/d")) == (
            order.output_dir,
            order.wanted.dump_dir,
        )

    def test_chdir(self, rank, tmp_path, monkeypatch):
        """
        One path need not be in a list, and is that of now.
        """
        monkeypatch.chdir(tmp_path)

        order = self.order(logs="train.log", dump_dir=Path("d"))

        assert (tmp_path / "train.log",) == order.wanted.logs
        assert tmp_path / "d" == order.wanted.dump_dir

    def test_gone(self, rank, tmp_path, monkeypatch):
        """
        Where the folder that the job is in is gone, whole paths are wanted.
        """
        folder = tmp_path / "gone"
        folder.mkdir()
        monkeypatch.chdir(folder)
        folder.rmdir()

        with pytest.raises(ConfigError, match="nowhere") as caught:
            self.order()

        assert "give a whole path" == caught.value.remedy
        assert (
            Path("/a") == self.order(log_dir="/b", output_dir="/a").output_dir
        )

    def test_section(self, rank, tmp_path):
        """
        The section of a job file will do, or its path.
        """
        section = {"enabled": False, "output_dir": "/x"}
        job = tmp_path / "job.yaml"
        job.write_text("debug: {output_dir: /y}")

        with watch(section) as watching:
            first = watching._duty.order.output_dir
        pytest.importorskip("yaml")
        with watch(job) as watching:
            second = watching._duty.order.output_dir

        assert (Path("/x"), Path("/y")) == (first, second)

    def test_command(self, rank):
        """
        Who gives the text of a command is told how to run one.
        """
        with pytest.raises(ConfigError) as caught:
            watch(on_hang="scancel 5")

        assert "command_hook" in caught.value.remedy

    def test_recording(self, rank, tmp_path):
        """
        Where this rank records, dumps are asked for.
        """
        settings = plan_flight_recorder(
            {}, "2.13", dump_dir=tmp_path / "d", token="1-2"
        )
        begin_recording(Recording(settings))

        try:
            order = self.order()
        finally:
            end_recording()

        assert tmp_path / "d" == order.wanted.dump_dir


class TestClose:
    def test_interrupted(self, rank, monkeypatch):
        """
        Whoever presses Ctrl-C while a watch begins leaves none behind.
        """
        start = threading.Thread.start

        def interrupted(thread):
            start(thread)
            raise KeyboardInterrupt

        monkeypatch.setattr(threading.Thread, "start", interrupted)

        with pytest.raises(KeyboardInterrupt):
            watch(floor_s=20.0, poll_s=0.05)

        assert [] == threads()

    def test_twice(self, rank):
        """
        A watch that is closed looks no more, however often it is closed.
        """
        watching = watch(floor_s=20.0, poll_s=0.05)
        rank.wait_for_looks(2)

        watching.close()
        before = rank.looks
        watching.close()
        watching.step()

        assert [] == threads()
        assert before == rank.looks

    def test_long_poll(self, rank):
        """
        Nobody waits for the next look.
        """
        watching = watch(floor_s=1e5, poll_s=1e5)

        watching.close()

        assert [] == threads()
        assert 1 >= rank.looks

    def test_in_hook(self, rank, caplog):
        """
        A hook may end the watch that calls it.
        """
        told = Told()

        def close(_):
            watching.close()

        rank.moves = True
        watching = watch(on_hang=[close, told], **QUICK)
        (thread,) = threads()
        rank.moves = False
        told.wait()

        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert 1 == len(watching.hangs)
        assert "failed" not in caplog.text

    def test_during_snapshot(self, rank):
        """
        Whoever takes a snapshot is told to stop.
        """
        begun = threading.Event()

        def take(_):
            begun.set()
            assert rank.stop.wait(PATIENCE_S)
            return CaptureError("it was ended")

        rank.answers = [take]
        watching = watch(**QUICK)
        assert begun.wait(PATIENCE_S)

        watching.close()

        assert [] == threads()
        assert () == watching.hangs
        assert 1 == len(rank.asked)

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

    def test_other_process(self, rank):
        """
        A forked child ends neither the watch of its parent nor waits for it.
        """
        with watch(floor_s=20.0, poll_s=0.05) as watching:
            watching._pid += 1  # as a child sees it

            watching.close()
            rank.wait_for_looks(3)
            watching._pid -= 1


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


class TestSense:
    def sense(self, **options):
        """
        What a watch sees that is off.
        """
        with watch(HangDebugConfig(), **options) as watching:
            return watching._sense((os.getpid(),))

    def test_nothing(self, rank):
        """
        Without anything better, the main thread tells.
        """
        assert {"this process": 7} == self.sense()

    def test_rank(self, rank, monkeypatch):
        """
        A rank is called by its number.
        """
        monkeypatch.setenv("RANK", "3")

        assert {"rank 3": 7} == self.sense()

    def test_recorder(self, rank, monkeypatch):
        """
        What is recorded counts more than a thread that wakes up.
        """
        seen = (("0", 5, 5, 4),)
        monkeypatch.setattr(module, "read_progress", lambda: seen)

        assert {"this process": (seen, None, None, None)} == self.sense()
        assert 0 == rank.looks

    def test_steps(self, rank):
        """
        Steps count from the first one.
        """
        with watch(HangDebugConfig()) as watching:
            watching.step()
            watching.step()

            seen = watching._sense(())

        assert {"this process": (None, 2, None, None)} == seen

    def test_own(self, rank):
        """
        What the user tells counts, too; what it does not see has not moved.
        """
        told = iter([5, None, 6])
        with watch(HangDebugConfig(), sense=lambda: next(told)) as watching:
            seen = [watching._sense(()) for _ in range(3)]

        assert [5, 5, 6] == [x["this process"][-1] for x in seen]

    def test_own_fails(self, rank, caplog):
        """
        What fails is told once, and not asked again.
        """

        def fail():
            raise ValueError

        with watch(HangDebugConfig(), sense=fail) as watching:
            seen = [watching._sense(()) for _ in range(2)]

        assert [{"this process": 7}] * 2 == seen
        assert 1 == caplog.text.count("is not called again")

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_own_exits(self, rank, caplog, error):
        """
        What wants to exit has failed.
        """

        def leave():
            raise error

        with watch(HangDebugConfig(), sense=leave) as watching:
            seen = [watching._sense(()) for _ in range(2)]

        assert [{"this process": 7}] * 2 == seen
        assert 1 == caplog.text.count("is not called again")

    def test_one_file(self, rank, tmp_path):
        """
        One file need not be in a list.
        """
        log = tmp_path / "train.log"
        log.write_text("step 1")

        ((name, _, _),) = self.sense(progress_files=str(log))["this process"][
            2
        ]

        assert str(log) == name

    def test_files(self, rank, tmp_path):
        """
        A file that changes is progress; before it is there, nothing is seen.
        """
        log = tmp_path / "train.log"
        options = {"progress_files": iter([str(log)])}
        with watch(HangDebugConfig(), **options) as watching:
            before = watching._sense(())
            log.write_text("step 1")
            first = watching._sense(())
            again = watching._sense(())
            log.write_text("step 1, step 2")
            second = watching._sense(())

        assert {"this process": 7} == before
        assert first == again
        assert len({str(x) for x in (before, first, second)}) == 3


def test_quiet(rank, caplog):
    """
    A watch that sees nothing wrong does not fill the log.
    """
    caplog.set_level(logging.INFO, "distdebug")

    with watch(floor_s=20.0, poll_s=0.05):
        rank.wait_for_looks(5)

    assert "" == caplog.text


def test_public():
    """
    It is where users look for it.
    """
    assert distdebug.watch is watch
    assert distdebug.Watch is module.Watch
    assert distdebug.Hang is Hang
