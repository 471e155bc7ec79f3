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
from types import SimpleNamespace

import psutil
import pytest

from distdebug.demo import job as job_module
from distdebug.demo.job import TrainingJob, start_job, watch_job
from distdebug.errors import DistdebugError


# Starts a child that would outlive it, as the ranks of torchrun do.
LAUNCHER = """
import subprocess, sys, time
subprocess.Popen(
    [sys.executable, "-S", "-c", "import time; print('step 1', flush=True);"
     "time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""


# The second of two ranks writes a file when the first one dies.
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

SOURCE = Path(job_module.__file__).parents[2]


class FakeJob:
    """
    A job that makes steps as it is told.
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
        The next step that was told.
        """
        return self.steps.pop(0)


class Clock:
    """
    A clock that runs only while somebody sleeps.
    """

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        """
        The time.
        """
        return self.now

    def sleep(self, _):
        """
        A second goes by.
        """
        self.now += 1.0


@pytest.fixture
def told(monkeypatch):
    """
    What was told; time flies.
    """
    monkeypatch.setattr(job_module, "time", Clock())
    return []


class TestWatchJob:
    def test_stuck(self, told):
        """
        A job that made steps and makes none any more is stuck.
        """
        job = FakeJob(0, 0, 1, 2, *[2] * 9)

        assert "stuck" == watch_job(job, tell=told.append, quiet_s=3)
        assert ["step 1", "step 2"] == told

    def test_slow_start(self, told):
        """
        Before its first step a job is not stuck, however long it takes.
        """
        job = FakeJob(*[0] * 50, 1, *[1] * 9)

        assert "stuck" == watch_job(job, tell=told.append, quiet_s=3)
        assert len(job.steps) < 9

    def test_running(self, told):
        """
        A job that makes steps for long enough is well.
        """
        job = FakeJob(*range(100))

        assert "running" == watch_job(job, tell=told.append, enough_s=8)

    def test_ended(self, told):
        """
        A job may end by itself.
        """
        assert "ended" == watch_job(FakeJob(1, 2), tell=told.append)

    def test_no_start(self, told):
        """
        A job that never makes a step is an error.
        """
        job = FakeJob(*[0] * 500)

        with pytest.raises(DistdebugError, match=r"no step within 120 s"):
            watch_job(job, tell=told.append)


class TestStartJob:
    @pytest.fixture
    def program(self, tmp_path, monkeypatch):
        """
        A program, which a stand-in for torchrun does not run.
        """
        package = tmp_path / "fake" / "torch" / "distributed"
        package.mkdir(parents=True)
        for folder in (package.parent, package):
            (folder / "__init__.py").touch()
        (package / "run.py").write_text(LAUNCHER)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
        return tmp_path / "program.py"

    def wait_for_step(self, job):
        """
        Wait until the job has made a step, or is dead.
        """
        while not job.last_step():
            assert not job.has_ended

    def test_nothing_is_left(self, program):
        """
        When the block is over, so are the launcher and its children.
        """
        with start_job(program, program.parent / "dumps", 4) as job:
            self.wait_for_step(job)
            (child,) = job.processes()

        assert job.has_ended
        assert [] == job.processes()
        gone, alive = psutil.wait_procs([child], timeout=60)
        assert ([child], []) == (gone, alive)

    def test_nobody_sees_it(self, program, monkeypatch):
        """
        No rank lives to tell that it lost another one.
        """
        launcher = program.parent / "fake" / "torch" / "distributed" / "run.py"
        launcher.write_text(PAIR)

        def slowly(process):
            kill(process)
            time.sleep(0.5)

        kill = job_module._kill
        monkeypatch.setattr(job_module, "_kill", slowly)
        with start_job(program, program.parent / "dumps", 2) as job:
            self.wait_for_step(job)

        assert not program.with_name("lost").exists()

    def test_interrupted(self, program):
        """
        So they are if the block is interrupted.
        """
        started = []

        def interrupt():
            with start_job(program, program.parent / "dumps", 4) as job:
                self.wait_for_step(job)
                started.extend(job.processes())
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupt()

        assert (started, []) == psutil.wait_procs(started, timeout=60)

    def test_interrupted_again(self, program, monkeypatch):
        """
        So they are if Ctrl-C is pressed twice while they are ended.
        """
        started, end = [], TrainingJob.end

        def ended(job):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            end(job)

        monkeypatch.setattr(TrainingJob, "end", ended)

        with start_job(program, program.parent / "dumps", 4) as job:
            self.wait_for_step(job)
            started.extend(job.processes())

        assert (started, []) == psutil.wait_procs(started, timeout=60)
        assert signal.default_int_handler is signal.getsignal(signal.SIGINT)

    @pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
    def test_killed(self, program):
        """
        The launcher ends with whoever started it, also if that is killed.
        """
        code = (
            "import sys, time\n"
            "sys.path.insert(0, sys.argv[2])\n"
            "from pathlib import Path\n"
            "from distdebug.demo import job\n"
            "path = Path(sys.argv[1])\n"
            "with job.start_job(path, path.parent / 'dumps', 4) as it:\n"
            "    while it.last_step() < 1:\n"
            "        time.sleep(0.05)\n"
            "    print(it.torchrun.pid, flush=True)\n"
            "    time.sleep(600)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, program, SOURCE],
            stdout=subprocess.PIPE,
            text=True,
        ) as player:
            launcher = psutil.Process(int(player.stdout.readline()))
            (child,) = launcher.children()

            player.kill()
            gone, _ = psutil.wait_procs([launcher], timeout=60)

        child.kill()  # which torchrun would have ended
        assert [launcher] == gone

    def test_elsewhere(self, program):
        """
        A job ends as well where a thread runs it, which no one interrupts.
        """

        def run():
            with start_job(program, program.parent / "dumps", 4) as job:
                self.wait_for_step(job)
            return job.has_ended

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(run).result(timeout=120)

    def test_arguments(self, program, monkeypatch):
        """
        The launcher is told the number of processes and the folder.
        """
        commands = []

        def start(command, **_):
            commands.append(command)
            return SimpleNamespace(pid=0)

        monkeypatch.setattr(job_module.subprocess, "Popen", start)
        monkeypatch.setattr(TrainingJob, "end", lambda _: None)

        with start_job(program, program.parent / "dumps", 6):
            pass

        ((executable, *arguments),) = commands
        assert sys.executable == executable
        assert "6" == arguments[arguments.index("--nproc-per-node") + 1]
        assert [str(program), str(program.parent / "dumps")] == arguments[-2:]


class TestEnd:
    def test_already_gone(self, tmp_path):
        """
        A job that has ended is not killed once more.
        """
        log = tmp_path / "log"
        log.touch()
        with subprocess.Popen([sys.executable, "-S", "-c", ""]) as torchrun:
            torchrun.wait()
            job = TrainingJob(torchrun, log)

            job.end()

        assert job.has_ended
        assert 0 == job.last_step()

    def test_impatient(self, tmp_path, monkeypatch):
        """
        Whoever interrupts the end of a job ends it all the same.
        """
        waits = [KeyboardInterrupt]
        code = "import time; time.sleep(600)"
        with subprocess.Popen([sys.executable, "-S", "-c", code]) as torchrun:
            job = TrainingJob(torchrun, tmp_path / "log")
            wait = torchrun.wait

            def interrupted(timeout=None):
                if waits:
                    raise waits.pop()
                return wait(timeout)

            monkeypatch.setattr(torchrun, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                job.end()

            assert job.has_ended

    def test_gone_meanwhile(self):
        """
        A process that ends while it is being killed is as good as killed.
        """
        with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
            known = psutil.Process(process.pid)

        job_module._kill(known)

        assert not known.is_running()
