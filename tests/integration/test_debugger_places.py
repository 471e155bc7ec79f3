"""
Real programs that are stopped where it is hard: in workers, threads, loops, and
functions whose file is elsewhere; or asked although they know nothing of us.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug.debugger import connect, job_environment
from distdebug.debugger.client import connections
from distdebug.errors import DebuggerError


SOURCE = Path(distdebug.__file__).parents[1]
PATIENCE_S = 120


class Program:
    """
    A program of ours, and who talks to it.
    """

    def __init__(self, folder, text, *, command, environ):
        self.sockets = folder / "s"
        self.log = folder / "log.txt"
        self.path = folder / "program.py"
        self.path.write_text(text)
        base = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("DISTDEBUG", "RANK", "WORLD_SIZE", "SLURM_"))
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, self.path],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={
                    **base,
                    "PYTHONPATH": str(SOURCE),
                    "OMP_NUM_THREADS": "1",
                    "PYTHONBREAKPOINT": "distdebug.debugger.set_trace",
                    "DISTDEBUG_DIR": str(self.sockets),
                    **environ,
                },
            )

    def when(self, condition):
        """
        A client, as soon as the list of ranks is as it should be.
        """
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            # The folder is not there before the first rank has made it.
            with contextlib.suppress(DebuggerError):
                client = connect(self.sockets, timeout_s=20)
                if condition(client.list()):
                    return client
                client.close()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        pytest.fail(self.log.read_text())

    def when_stopped(self, count):
        """
        A client, as soon as so many threads are stopped.
        """
        return self.when(
            lambda found: (
                ["stopped"] * count == [s.state for _, s in found.sessions]
            )
        )

    def end(self):
        """
        Wait for the end, and return what was printed.
        """
        status = self.process.wait(PATIENCE_S)
        text = self.log.read_text()
        assert 0 == status, text
        return text


@pytest.fixture
def start(tmp_path):
    """
    Starts a program, and ends it with all its children.
    """
    programs = []

    def begin(text, *, command=(), **environ):
        programs.append(
            Program(tmp_path, text, command=command, environ=environ)
        )
        return programs[-1]

    yield begin
    for program in programs:
        family = [program.process]
        with contextlib.suppress(psutil.NoSuchProcess):
            family += psutil.Process(program.process.pid).children(
                recursive=True
            )
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        program.process.wait(PATIENCE_S)


def outputs(answers):
    """
    What was printed, sorted.
    """
    return sorted(o.text.strip() for o in answers.outputs)


LOADER = """
import sys, torch
from torch.utils.data import DataLoader, Dataset
from distdebug.debugger import arm, post_mortem
class Numbers(Dataset):
    def __len__(self):
        return 2
    @post_mortem()
    def __getitem__(self, index):
        value = index * 10
        breakpoint()
        if index == 1 and "fail" in sys.argv[0] + METHOD_FAILS:
            raise ValueError("bad sample")
        return value
if __name__ == "__main__":
    arm(labels={"rank": 3})
    loader = DataLoader(
        Numbers(), num_workers=2, multiprocessing_context="METHOD"
    )
    try:
        print([int(x) for x in loader])
    except ValueError:
        print("failed")
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
def test_workers_of_a_loader(start, method, fails):
    """
    Workers that load data stop, each for itself, and where they fail as well.
    """
    pytest.importorskip("torch")
    text = LOADER.replace("METHOD_FAILS", "'fail'" if fails else "''")
    program = start(text.replace("METHOD", method), DISTDEBUG="1", RANK="3")

    with program.when_stopped(2) as client:
        sessions = client.list().sessions
        values = client.cast("ranks(3)", "p value")
        stepped = client.cast("ranks(:)", "next")
        client.resume()

    assert {3} == {p.rank for p, _ in sessions}
    assert 2 == len({s.key for _, s in sessions})
    assert all("Process-" in s.thread for _, s in sessions), sessions
    assert ["0", "10"] == outputs(values)
    assert all("if index == 1" in o.text for o in stepped.outputs)
    if fails:
        with program.when_stopped(1) as client:
            assert "ValueError" in client.attach(3).last().text
            assert ["10"] == outputs(client.cast("ranks(3)", "p value"))
            client.resume()
    assert ("failed" if fails else "[0, 10]") in program.end()


THREAD = """
import threading, torch, torch.distributed as dist
from distdebug.debugger import arm
arm(post_mortem=True)
dist.init_process_group("gloo")
rank = dist.get_rank()
def helper():
    mine = rank * 7
    if rank == 1:
        breakpoint()
        dist.all_reduce(torch.ones(1))
        raise ValueError("helper failed")
thread = threading.Thread(target=helper, name="helper")
thread.start()
if rank == 0:
    dist.all_reduce(torch.ones(1))
thread.join()
print("rank", rank, "is done", flush=True)
"""

TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
)


def test_a_helper_thread(start):
    """
    A thread beside the main one stops while others wait in a collective.
    """
    pytest.importorskip("torch")
    program = start(THREAD, command=TORCHRUN, DISTDEBUG="1")

    with program.when_stopped(1) as client:
        ((process, session),) = client.list().sessions
        value = client.cast("ranks(1)", "p mine").outputs[0]
        asked = client.eval("ranks(1)", "thread.is_alive()")
        client.resume("ranks(1)")

    assert (1, "helper") == (process.rank, session.thread)
    assert ("7", "helper") == (value.text, value.name)
    assert ["True"] == outputs(asked)
    with program.when_stopped(1) as client:
        ((_, session),) = client.list().sessions

        assert ("post mortem", "helper") == (session.reason, session.thread)
        assert ["7"] == outputs(client.cast("ranks(1)", "p mine"))
        client.resume()
    assert 2 == program.end().count("is done")


LOOP = """
import asyncio
from distdebug.debugger import arm, post_mortem
arm(labels={"rank": 0})
async def other(ticks):
    while True:
        ticks.append(1)
        await asyncio.sleep(0.01)
@post_mortem()
async def endpoint(number):
    await asyncio.sleep(0)
    local = number * 2
    breakpoint()
    await asyncio.sleep(0)
    return 1 / (number - 1)
async def main():
    ticks = []
    task = asyncio.create_task(other(ticks))
    found = [await endpoint(5)]
    found += await asyncio.gather(endpoint(1), return_exceptions=True)
    task.cancel()
    print(found)
asyncio.run(main())
"""


def test_an_event_loop(start):
    """
    Coroutines of one loop stop one after the other, and where they fail.
    """
    program = start(LOOP)
    seen = []

    for _ in range(3):
        with program.when_stopped(1) as client:
            held = client.attach(0)
            text = held.send("p local").text
            seen.append((held.session.reason, text))
            if len(seen) == 1:
                # It steps over an await, and not into the loop.
                held.send("next")
                after = held.send("next").text
            client.resume()

    assert "-> return 1 / (number - 1)" in after
    assert [
        ("breakpoint", "10"),
        ("breakpoint", "2"),
        ("post mortem", "2"),
    ] == seen
    assert "[0.25, ZeroDivisionError" in program.end()


BY_VALUE = '''
"""
A driver: what it defines exists nowhere else.
"""
import sys
import cloudpickle
from distdebug.debugger import post_mortem


@post_mortem()
def endpoint(numbers):
    total = 0
    breakpoint()
    total += sum(n * 2 for n in numbers)
    total += inner(total)
    return total


def inner(total):
    half = total // 2
    if half > 5:
        raise ValueError(half)
    return half


with open(sys.argv[1], "wb") as file:
    cloudpickle.dump(endpoint, file)
'''

RUN_PICKLE = """
import pickle
from distdebug.debugger import arm
arm(labels={"rank": 0})
with open("endpoint.pickle", "rb") as file:
    endpoint = pickle.load(file)
# As cloudpickle did before 3.1.3, which leaves the file out.
for function in (endpoint.__wrapped__, endpoint.__wrapped__.__globals__["inner"]):
    function.__code__ = function.__code__.replace(co_filename=DRIVER)
print(endpoint([1, 2]))
try:
    endpoint([10])
except ValueError as error:
    print("raised", error)
"""


def test_a_function_that_came_by_value(start, tmp_path, monkeypatch):
    """
    The source of a function of another ``__main__`` comes from the client.
    """
    driver = tmp_path / "elsewhere" / "driver.py"
    driver.parent.mkdir()
    driver.write_text(BY_VALUE)
    subprocess.run(
        [sys.executable, driver, tmp_path / "endpoint.pickle"],
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    driver.unlink()
    program = start(RUN_PICKLE.replace("DRIVER", repr(str(driver))))
    with program.when_stopped(1) as client:
        before = client.attach(0).send("list").text
        refused = client.attach(0).send(f"b {driver}:14").text

    assert f"{driver} is not on this node" in before
    assert f"{driver} is not on this node" in refused

    monkeypatch.setattr(
        connections,
        "read_ordinary",
        lambda file, most: BY_VALUE.encode() if str(driver) == file else b"",
    )
    line = 1 + BY_VALUE.split("\n").index("    half = total // 2")
    with program.when_stopped(1) as client:
        held = client.attach(0)
        listed = held.send("list").text
        told = held.send(f"b {driver}:{line}").text
        held.send("c")
    with program.when_stopped(1) as client:
        held = client.attach(0)
        hit = held.last().text
        value = held.send("p half").text, held.send("n").text
        client.resume()

    assert "total += sum(n * 2 for n in numbers)" in listed
    assert "Breakpoint" in told
    assert "-> half = total // 2" in hit
    assert "NameError" in value[0]
    assert "if half > 5" in value[1]
    with program.when_stopped(1) as client:
        client.resume()
    with program.when_stopped(1) as client:
        held = client.attach(0)
        trace = held.send("where").text
        held.send("up")
        outer = held.send("p total").text
        client.resume()

    assert "-> raise ValueError(half)" in trace
    assert "-> total += inner(total)" in trace
    assert "20" == outer
    text = program.end()
    assert "9\n" in text
    assert "raised 10" in text


HUNG = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
epoch = 5 + rank
if rank == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(2))
"""


def test_a_job_that_knows_nothing_of_us(start):
    """
    Where only the environment was set, a hung job is asked, and has no port.
    """
    pytest.importorskip("torch")
    environ = job_environment({"PYTHONPATH": str(SOURCE)})
    program = start(HUNG, command=TORCHRUN, **environ)

    with program.when(
        lambda found: (
            [(0, 8), (1, 7)]
            == [(p.rank, p.line) for p in found if p.file == str(program.path)]
        )
    ) as client:
        stacks = client.stack("ranks(0)")
        values = client.eval("ranks(:)", "(rank, epoch)")
        pids = [p.pid for p in client.list()]

    assert "dist.all_reduce(torch.ones(2))" in stacks.outputs[0].text
    assert ["(0, 5)", "(1, 6)"] == outputs(values)
    assert 2 == len(pids)
    listening = [
        c
        for pid in pids
        for c in psutil.Process(pid).net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    # Those of torch and gloo, which are there without us, too.
    owned = _listeners_without_us(start)
    assert owned == len(listening)


def _listeners_without_us(start):
    """
    How many ports ranks of the same job listen at that nobody debugs.
    """
    program = start(
        HUNG.replace(
            "time.sleep(600)", "print('here', flush=True) or time.sleep(600)"
        ),
        command=TORCHRUN,
        DISTDEBUG="0",
    )
    end = time.monotonic() + PATIENCE_S
    while "here" not in program.log.read_text():
        assert time.monotonic() < end, program.log.read_text()
        time.sleep(0.05)
    return sum(
        c.status == psutil.CONN_LISTEN
        for child in psutil.Process(program.process.pid).children(
            recursive=True
        )
        for c in child.net_connections("inet")
    )
