"""
Real jobs of four ranks that are stopped, asked, and steered from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time

from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug.debugger import connect
from distdebug.errors import DebuggerError


pytest.importorskip("torch")

SOURCE = Path(distdebug.__file__).parents[1]
PROGRAM = Path(__file__).parent / "programs" / "debug_rank.py"
PATIENCE_S = 120


class Job:
    """
    A job under torchrun, and the client that talks to it.
    """

    def __init__(self, folder, scenario):
        self.folder = folder
        self.sockets = folder / "s"
        self.log = folder / "log.txt"
        command = [sys.executable, "-m", "torch.distributed.run"]
        command += ["--standalone", "--nproc-per-node", "4"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, PROGRAM, scenario, folder],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(SOURCE),
                    "OMP_NUM_THREADS": "1",
                    "PYTHONBREAKPOINT": "distdebug.debugger.set_trace",
                    "DISTDEBUG": "1",
                    "DISTDEBUG_DIR": str(self.sockets),
                },
            )

    def wait_until(self, condition):
        """
        Wait until the list of ranks is as it should be, and return it.
        """
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            # It is not there before the first rank has made it.
            with (
                contextlib.suppress(DebuggerError),
                connect(self.sockets, timeout_s=20) as client,
            ):
                listing = client.list()
                if condition(listing):
                    return listing
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        pytest.fail(self.log.read_text())

    def wait_for_stops(self, ranks):
        """
        Wait until exactly these ranks are stopped.
        """
        return self.wait_until(
            lambda listing: ranks == {p.rank for p in listing if p.is_stopped}
        )

    def end(self):
        """
        Wait for the end of the job, and return its exit status and its log.
        """
        status = self.process.wait(PATIENCE_S)
        return status, self.log.read_text()


@pytest.fixture
def start(tmp_path):
    """
    Starts a job, and ends it with all its ranks.
    """
    jobs = []

    def begin(scenario):
        jobs.append(Job(tmp_path, scenario))
        return jobs[-1]

    yield begin
    for job in jobs:
        family = [job.process]
        with contextlib.suppress(psutil.NoSuchProcess):
            family += psutil.Process(job.process.pid).children(recursive=True)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        job.process.wait(PATIENCE_S)


def texts(answers):
    """
    What each rank said.
    """
    return {o.rank: o.text.strip() for o in answers.outputs}


@pytest.mark.smoke
def test_a_whole_session(start):
    """
    Ranks are listed, asked, stepped, left, found again, and let go.
    """
    job = start("steps")
    listing = job.wait_for_stops({0, 1, 2, 3})

    assert [{"dp": 0, "tp": 1}] == [p.coords for p in listing if p.rank == 1]
    assert {"step"} == {s.function for _, s in listing.sessions}
    for process in listing:
        assert 0o600 == stat.S_IMODE(Path(process.path).stat().st_mode)

    with connect(job.sockets, timeout_s=20) as client:
        asked = client.cast("ranks(:)", "p loss")

        assert str(asked).startswith("[2] nan\n[0-1,3] 1.5")

        stepped = client.cast("ranks(0, 0)", "next")
        place = client.attach(0).send("p 1").text

        assert "again = loss" in texts(stepped)[0]
        assert "1" == place
        assert "1.5" == client.attach(1).last().text

    # A client that is killed leaves nothing behind.
    killed = subprocess.Popen(
        [sys.executable, "-m", "distdebug", "dbg", "--dir", job.sockets],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        text=True,
    )
    killed.stdin.write("attach 1\np 'typed'\n")
    killed.stdin.flush()
    while "typed" not in killed.stdout.readline():
        assert killed.poll() is None
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=PATIENCE_S)

    with connect(job.sockets, timeout_s=20) as client:
        again = client.attach(1)

        assert "'typed'" in again.last().text
        assert "1" == again.send("p rank").text
        assert "ended" == again.send("q").state

        client.cast("ranks(:)", "continue")
        job.wait_for_stops(set())
        blocked = job.wait_until(
            lambda found: (
                {"main"} == {p.function for p in found if p.rank != 3}
            )
        )
        values = client.eval("ranks(:)", "(rank, tensor.sum().item())")
        stacks = client.stack("ranks(0:3)")

        assert "main" == next(p.function for p in blocked if p.rank == 1)
        assert {0: "(0, 0.0)", 1: "(1, 2.0)", 2: "(2, 4.0)"} == {
            rank: text for rank, text in texts(values).items() if rank < 3
        }
        assert all("dist.all_reduce" in s for s in texts(stacks).values())

        blocked = client.interrupt("ranks(0)", wait_s=2.0)
        stopped = client.interrupt("ranks(3)", wait_s=30.0)

        assert "blocked in native code" in texts(blocked)[0]
        assert "stopped" in texts(stopped)[3]
        assert "wait_for(" in texts(client.cast("ranks(3)", "where"))[3]

        client.resume()
    (job.folder / "go").touch()

    status, log = job.end()
    assert 0 == status, log
    assert 4 == log.count("is done: 6")
    typed = [
        json.loads(line)["line"]
        for line in (job.sockets / "audit.jsonl").read_text().splitlines()
    ]
    assert "p loss" in typed


def test_the_limit_of_a_pause(start):
    """
    Ranks that nobody asks go on by themselves, and say so.
    """
    job = start("limit")

    status, log = job.end()

    assert 0 == status, log
    assert 2 == log.count("no command for 1 s: this rank continues")
    assert 4 == log.count("is done")


def test_a_rank_that_fails(start):
    """
    A rank that raises is held, with no breakpoint, before its job is ended.
    """
    job = start("crash")
    job.wait_for_stops({2})

    with connect(job.sockets, timeout_s=20) as client:
        told = client.attach(2).last().text
        value = client.cast("ranks(2)", "p secret")
        refused = client.cast("ranks(2)", "next")
        others = client.cast("ranks(:)", "where")
        with pytest.raises(DebuggerError, match="rank 1 is not stopped"):
            client.attach(1)

        assert "ValueError: rank 2 exploded" in told
        assert {2: "42"} == texts(value)
        assert "post mortem" in texts(refused)[2]
        assert {0, 1, 3} == {p.rank for p in others.not_stopped}

        client.cast("ranks(2)", "continue")
    status, log = job.end()
    assert 0 != status
    assert "ValueError: rank 2 exploded" in log


LONELY = """
import threading
from distdebug.debugger import arm
arm()
def helper():
    mine = "of the helper"
    breakpoint()
thread = threading.Thread(target=helper, name="loader")
thread.start()
breakpoint()
thread.join()
print("done")
"""


@pytest.fixture
def alone(tmp_path):
    """
    Starts one process without torch that stops, and ends it.
    """
    processes = []

    def begin(program, **environ):
        base = {k: v for k, v in os.environ.items() if "DISTDEBUG" not in k}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={
                    **base,
                    "PYTHONPATH": str(SOURCE),
                    "PYTHONBREAKPOINT": "distdebug.debugger.set_trace",
                    "DISTDEBUG_DIR": str(tmp_path / "s"),
                    "RANK": "0",
                    **environ,
                },
            )
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def connect_when(folder, count):
    """
    A client, as soon as so many threads are stopped.
    """
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(DebuggerError):
            client = connect(folder, timeout_s=20)
            states = [s.state for _, s in client.list().sessions]
            if ["stopped"] * count == states:
                return client
            client.close()
        time.sleep(0.05)
    pytest.fail("they do not stop")


def test_two_threads_of_one_rank(alone, tmp_path):
    """
    Threads that stop at the same rank do not collide; no port is opened.
    """
    process = alone(LONELY)

    with connect_when(tmp_path / "s", 2) as client:
        ports = psutil.Process(process.pid).net_connections("inet")
        with pytest.raises(DebuggerError, match="more than once") as caught:
            client.attach(0)
        mine = client.cast("ranks(0)", "p mine")
        client.resume()

    assert [] == ports
    assert "attach #1" in caught.value.remedy
    assert {"": True, "loader": False} == {
        o.name: "NameError" in o.text for o in mine.outputs
    }
    assert "done\n" == process.communicate(timeout=PATIENCE_S)[0][-5:]
    assert 0 == process.returncode


@pytest.mark.parametrize(
    ("environ", "logged"),
    [({}, True), ({"DISTDEBUG": "0"}, False)],
    ids=["nobody asked for it", "switched off"],
)
def test_nobody_is_there(alone, environ, logged):
    """
    A breakpoint that nobody could reach stops nothing.
    """
    program = "breakpoint()\nimport sys\nprint(sys.gettrace())"

    text, _ = alone(program, **environ).communicate(timeout=PATIENCE_S)

    assert text.endswith("None\n")
    assert logged == ("passed a breakpoint at <string>:1" in text)


FORKED = """
import multiprocessing, os, sys
from distdebug.debugger import arm
arm()
def work():
    index = 7
    breakpoint()
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
sys.exit(child.exitcode)
"""


@pytest.mark.parametrize(
    "environ", [{"DISTDEBUG": "1"}, {}], ids=["variable", "armed"]
)
def test_a_forked_worker(alone, tmp_path, environ):
    """
    A worker that was forked is stopped for itself, at a socket of its own.
    """
    process = alone(FORKED, **environ)

    with connect_when(tmp_path / "s", 1) as client:
        held = [(p.pid, p.is_stopped) for p in client.list()]
        value = client.cast("ranks(:)", "p index")
        client.resume()

    assert (process.pid, False) in held
    assert 2 == len(held)
    assert ["7"] == [o.text for o in value.outputs]
    process.communicate(timeout=PATIENCE_S)
    assert 0 == process.returncode


ASYNC = """
import asyncio
from distdebug.debugger import arm, scope
arm()
async def endpoint():
    with scope("endpoint"):
        answer = 42
        breakpoint()
    await asyncio.sleep(0)
    return answer
print(asyncio.run(endpoint()))
"""


def test_a_coroutine(alone, tmp_path):
    """
    Whoever steps on and on in a coroutine never gets into the event loop.
    """
    process = alone(ASYNC)

    with connect_when(tmp_path / "s", 1) as client:
        held = client.attach(0)
        places = []
        for _ in range(20):
            output = held.send("step", wait_s=PATIENCE_S)
            places.append(output.text)
            if output.state == "ended" or output.is_error:
                break

    assert output.is_error or "ended" == output.state
    assert not [p for p in places if "asyncio" in p]
    assert "42\n" == process.communicate(timeout=PATIENCE_S)[0][-3:]


DEAF = """
import ctypes, sys
from distdebug.debugger import arm
arm()
def hold_the_interpreter():
    ctypes.PyDLL(None).sleep(int(sys.argv[1]))
print("now", flush=True)
hold_the_interpreter()
"""


@pytest.mark.skipif(
    shutil.which("py-spy") is None
    and not Path(sys.executable).with_name("py-spy").exists(),
    reason="py-spy is not installed",
)
def test_a_rank_that_holds_its_interpreter(alone, tmp_path):
    """
    Of a rank in which no thread can run, py-spy tells where it is.
    """
    process = alone(DEAF.replace("sys.argv[1]", "'600'"))
    assert "now\n" == process.stdout.readline()

    with connect(tmp_path / "s", timeout_s=0.5) as client:
        text = str(client.stack())

    assert f"process {process.pid} does not answer" in text
    assert "in hold_the_interpreter" in text


FORKS = """
import os
from distdebug.debugger import arm
arm()
breakpoint()
pid = os.fork()
if pid == 0:
    os._exit(7)
status = os.waitpid(pid, 0)[1]
print(os.waitstatus_to_exitcode(status))
"""


def test_a_fork_that_is_stepped_over(alone, tmp_path):
    """
    Whoever steps over a fork steps in the parent; the child runs on.
    """
    process = alone(FORKS)

    with connect_when(tmp_path / "s", 1) as client:
        parent = client.attach(0)
        states = [parent.send("n").state for _ in range(4)]
        parent.send("q")

    assert ["stopped"] * 4 == states
    assert "7\n" == process.communicate(timeout=PATIENCE_S)[0][-2:]


ACTORS = """
import os, sys, ray
@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self, rank):
        from distdebug.debugger import arm
        self.rank = rank
        arm(labels={"group": "trainer", "rank": rank}, breakpoints=True)
    def step(self):
        loss = self.rank % 2
        breakpoint()
        return loss
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
trainers = [Trainer.remote(rank) for rank in range(3)]
print(ray.get([trainer.step.remote() for trainer in trainers]))
"""


def test_actors_of_ray(alone, tmp_path):
    """
    Actors of Ray are stopped and asked in the same way.
    """
    pytest.importorskip("ray")
    process = alone(
        ACTORS,
        HOME=str(tmp_path),
        RAY_AUTH_MODE="disabled",
        RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",
    )

    with connect_when(tmp_path / "s", 3) as client:
        answers = client.cast("ranks(:)", "p loss", group="trainer")
        client.resume()

    assert "[1] 1\n[0,2] 0" == str(answers)
    assert "[0, 1, 0]\n" == process.communicate(timeout=PATIENCE_S)[0][-10:]
