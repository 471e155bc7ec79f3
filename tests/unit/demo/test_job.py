"""
Running and watching a job, with a stand-in for torchrun.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug.demo.play import start_job, watch_job
from distdebug.errors import DistdebugError


pytestmark = pytest.mark.process


# Starts a child that would outlive it, as the ranks of torchrun do, and ends
# when it has; what it was told is kept.
LAUNCHER = """
import json, subprocess, sys, time
open("argv", "w").write(json.dumps(sys.argv[1:]))
subprocess.Popen(
    [sys.executable, "-S", "-c", "import time; print('step 1', flush=True);"
     "time.sleep(600)"], start_new_session=True).wait()
"""

# The second of two ranks writes a file when the first one dies; the launcher
# does not mind.
PAIR = """
import os, subprocess, sys, time
ours, theirs = os.pipe()
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"],
    pass_fds=[theirs])
os.close(theirs)
subprocess.Popen([sys.executable, "-S", "-c", "print('step 1', flush=True);"
    f"open({ours}).read(); open('lost', 'w')"], pass_fds=[ours])
time.sleep(600)
"""

SOURCE = Path(distdebug.__file__).parents[1]


class FakeJob:
    """
    A job that makes given steps.
    """

    log = "job.log"

    def __init__(self, *steps):
        self.steps = list(steps)

    @property
    def has_ended(self):
        """
        Whether no step is left.
        """
        return not self.steps

    def last_step(self):
        """
        The next of these steps.
        """
        return self.steps.pop(0)


@pytest.fixture
def watch(monkeypatch):
    """
    Watches a job that makes these steps, one in a second, which flies.
    """
    now = [1000.0]

    def sleep(_):
        now[0] += 1.0

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)

    def run(*steps):
        told, job = [], FakeJob(*steps)
        return watch_job(job, tell=told.append), told, len(job.steps)

    return run


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([0, 0, 1, 2, *[2] * 9], ("stuck", ["step 1", "step 2"], 6)),
        ([*[0] * 50, 1, *[1] * 9], ("stuck", ["step 1"], 6)),
        (range(100), ("running", [f"step {n}" for n in range(1, 10)], 90)),
        ([1, 2], ("ended", ["step 1", "step 2"], 0)),
    ],
    ids=["stuck", "slow start", "running", "ended"],
)
def test_watch(watch, steps, expected):
    """
    A job is stuck if it made steps and makes none any more, not before its
    first one; it is well if it makes some for long enough, and may end.
    """
    assert expected == watch(*steps)


def test_no_start(watch):
    """
    A job that never makes a step is an error.
    """
    with pytest.raises(DistdebugError, match=r"no step within 120 s"):
        watch(*[0] * 500)


@pytest.fixture
def play(tmp_path, monkeypatch):
    """
    Starts a job under a stand-in for torchrun, waits for its first step, and
    does something; returns all of its processes, which have to end.
    """
    package = tmp_path / "fake" / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))

    def run(launcher=LAUNCHER, do=lambda job: None):
        (package / "run.py").write_text(launcher)
        program = tmp_path / "program.py"
        with start_job(program, ("dumps",), 4) as job:
            while launcher and not job.last_step():
                assert not job.has_ended
            started.extend(job.processes())
            do(job)
        assert job.has_ended
        assert [] == job.processes()
        return job

    started = []
    yield run
    assert [] == psutil.wait_procs(started, timeout=60)[1]


class TestStartJob:
    def test_nothing_is_left(self, play, tmp_path):
        """
        When the block is over, so are the launcher and its children; it got
        the number of processes, the program, and its arguments.
        """
        play()

        arguments = (tmp_path / "argv").read_text()
        assert '"--nproc-per-node", "4"' in arguments
        assert arguments.endswith(f'"{tmp_path / "program.py"}", "dumps"]')

    def test_nobody_sees_it(self, play, tmp_path, monkeypatch):
        """
        No rank lives long enough to see that it lost another one, and a
        launcher that does not end by itself is ended.
        """
        kill = psutil.Process.kill

        def slowly(process):
            kill(process)
            time.sleep(0.5)

        monkeypatch.setattr(psutil.Process, "kill", slowly)
        play(PAIR)

        assert not (tmp_path / "lost").exists()

    def test_interrupted(self, play):
        """
        The processes end if the block is interrupted.
        """

        def interrupt(_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            play(do=interrupt)

    def test_interrupted_again(self, play, monkeypatch):
        """
        So they do if Ctrl-C is pressed twice while they are ended.
        """
        suspend = psutil.Process.suspend

        def interrupted(process):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            suspend(process)

        monkeypatch.setattr(psutil.Process, "suspend", interrupted)

        play()

        assert signal.default_int_handler is signal.getsignal(signal.SIGINT)

    def test_impatient(self, play, monkeypatch):
        """
        So they do if the wait for them fails.
        """

        def fail_once(job):
            wait, fails = job.torchrun.wait, [KeyboardInterrupt]

            def interrupted(timeout=None):
                if fails:
                    raise fails.pop()
                return wait(timeout)

            monkeypatch.setattr(job.torchrun, "wait", interrupted)

        with pytest.raises(KeyboardInterrupt):
            play(do=fail_once)

    @pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
    def test_killed(self, play, tmp_path):
        """
        The launcher ends with the process that started it, also if that is
        killed.
        """
        play()
        code = (
            "import sys, time\n"
            "sys.path.insert(0, sys.argv[2])\n"
            "from pathlib import Path\n"
            "from distdebug.demo import play\n"
            "path = Path(sys.argv[1])\n"
            "with play.start_job(path, ('dumps',), 4) as it:\n"
            "    while it.last_step() < 1:\n"
            "        time.sleep(0.05)\n"
            "    print(it.torchrun.pid, flush=True)\n"
            "    time.sleep(600)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, tmp_path / "program.py", SOURCE],
            stdout=subprocess.PIPE,
            text=True,
        ) as player:
            launcher = psutil.Process(int(player.stdout.readline()))
            (child,) = launcher.children()

            player.kill()
            gone, _ = psutil.wait_procs([launcher], timeout=60)

        child.kill()  # which torchrun would have ended
        assert [launcher] == gone

    def test_elsewhere(self, play):
        """
        A job ends as well where a thread runs it, which no one interrupts.
        """
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(play).result(timeout=120).has_ended

    def test_already_gone(self, play):
        """
        A job that has ended is not killed once more.
        """
        job = play("", do=lambda job: job.torchrun.wait(60))

        assert (0, 0) == (job.torchrun.returncode, job.last_step())

    def test_gone_meanwhile(self, play, monkeypatch):
        """
        A process that ends while it is being killed is as good as killed.
        """
        kill = psutil.Process.kill

        def twice(process):
            kill(process)
            process.wait(60)
            kill(process)

        monkeypatch.setattr(psutil.Process, "kill", twice)

        assert play().has_ended
