"""
The plugin of pytest: tests on ranks that pass, hang, raise, and die.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time

from importlib.metadata import entry_points
from xml.etree import ElementTree as ET

import psutil
import pytest


MODULE = "distdebug.integrations.pytest_plugin"
PROGRAM = "distdebug.testing.rank_program"
# A checkout that is not installed declares no entry point.
LOADED = any(x.value == MODULE for x in entry_points(group="pytest11"))
OPTIONS = ["--strict-markers", *([] if LOADED else ["-p", MODULE])]

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is not installed",
    ),
    pytest.mark.process,
]

HANGS = """
import os
import queue
import signal
import time

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ranks(2, timeout_s=3)


def reduce():
    dist.all_reduce(torch.ones(4))


def test_early():
    reduce()
    if dist.get_rank() == 1:
        return
    reduce()  # after the return


def test_mismatch():
    reduce()
    if dist.get_rank() == 1:
        dist.broadcast(torch.ones(4), 0)
    else:
        reduce()


def test_sleep():
    reduce()
    if dist.get_rank() == 1:
        time.sleep(1000)  # here
    reduce()


def test_exception():
    reduce()
    if dist.get_rank() == 1:
        print("before it fails")
        assert dist.get_world_size() == 7  # here
    reduce()


def test_killed():
    reduce()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    reduce()


def test_exit():
    if dist.get_rank() == 0:
        os._exit(3)
    reduce()


def test_checkpoint(tmp_path):
    path = tmp_path / "checkpoint"
    if dist.get_rank() == 0:
        os.mkfifo(path)
        path.open("w")
    dist.barrier()


def test_loader():
    batches = queue.Queue(2)
    for x in range(1 if dist.get_rank() else 2):
        batches.put(torch.ones(4) * x)
    for _ in range(2):
        dist.all_reduce(batches.get())  # next batch
"""

HEALTHY = """
import os
import threading

import pytest
import torch
import torch.distributed as dist

from helper import ones


class TestIt:
    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("size", [3])
    def test_fixtures(self, size, conf, tmp_path):
        total = ones(size)
        dist.all_reduce(total)
        assert total.sum() == 2 * size
        assert conf.name == "conf"
        rank = int(os.environ["RANK"])
        assert (rank, "2") == (dist.get_rank(), os.environ["WORLD_SIZE"])
        (tmp_path / str(rank)).touch()
        dist.barrier()
        assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.ranks(2)
def test_skip():
    pytest.skip("not today")


def test_here():
    assert "RANK" not in os.environ
"""

SCHEDULED = """
import os

import pytest
import torch
import torch.distributed as dist


@pytest.mark.ranks(2, schedule=True)
@pytest.mark.parametrize("size", [4])
def test_steps(size):
    for _ in range(3):
        dist.all_reduce(torch.ones(size))
    if "MORE" in os.environ:
        dist.broadcast(torch.ones(2), 0)  # here
    dist.barrier()


@pytest.mark.ranks(2, schedule="kept.txt")
def test_dtypes():
    is_odd = dist.get_rank() and "MORE" in os.environ
    dtype = torch.int32 if is_odd else torch.float32
    dist.all_reduce(torch.ones(4, dtype=dtype))


@pytest.mark.ranks(2, schedule=True)
def test_no_calls(): ...


@pytest.mark.ranks(2)
def test_fixture(collective_schedule):
    assert collective_schedule.name == "test_it-test_fixture.txt"
    for _ in range(2 if "MORE" in os.environ else 1):
        dist.barrier()
"""

# In the style of the unit tests of DeepSpeed's communication: a class for each
# collective, its sizes as parameters, and a result that is known beforehand.
SUBGROUPS = """
import pytest
import torch
import torch.distributed as dist


@pytest.mark.parametrize("numel", [3])
@pytest.mark.ranks(4, timeout_s=4)
class TestReduceInSubgroups:
    @pytest.fixture
    def meshes(self):
        return {"dp": [[0, 2], [1, 3]], "tp": [[0, 1], [2, 3]]}

    def run(self, meshes, numel, order):
        rank = dist.get_rank()
        groups = {}
        for name, members in meshes.items():
            made = [dist.new_group(x, group_desc=name) for x in members]
            groups[name] = next(
                g for g, x in zip(made, members) if rank in x
            )
        x = torch.ones(numel) * (rank + 1)
        for name in order:
            dist.all_reduce(x, group=groups[name])
        assert torch.all(x == sum(range(1, dist.get_world_size() + 1)))

    def test_in_order(self, meshes, numel):
        self.run(meshes, numel, ["dp", "tp"])

    def test_crossed(self, meshes, numel):
        is_odd = dist.get_rank() in {0, 3}
        self.run(meshes, numel, ["tp", "dp"] if is_odd else ["dp", "tp"])
"""

# pytest does so with the modules of each plugin that is installed.
REWRITTEN = """
import pytest

pytest.register_assert_rewrite("distdebug")
"""

CONFTEST = """
import pytest


class Conf:
    name = "conf"


@pytest.fixture
def conf():
    return Conf()
"""


def ranks_alive():
    """
    The processes of ranks that run.
    """
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if PROGRAM in (process.info["cmdline"] or ())
    ]


# The functions by which Accelerate tests its operations.
KNOWN = """
import pytest
from accelerate import PartialState
from accelerate.test_utils.scripts import test_ops as ops

pytestmark = pytest.mark.ranks(2, timeout_s=10)


def test_unguarded():
    state = PartialState(cpu=True)
    for test in (ops.test_gather_object, ops.test_pad_across_processes):
        test(state)


def test_guarded():
    state = PartialState(cpu=True)
    ops.test_gather(state)
    if state.is_main_process:
        ops.test_pad_across_processes(state)  # main only
    ops.test_reduce_sum(state)  # all
"""


def run(folder, *options):
    """
    Run pytest in a folder; its output.
    """
    command = [sys.executable, "-m", "pytest", *OPTIONS, *options]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=280
    )
    return done.stdout + done.stderr


def line_of(text, code):
    """
    The number of the line that holds some code.
    """
    lines = text.splitlines()
    (number,) = (i for i, x in enumerate(lines, start=1) if code in x)
    return number


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """
    The message of each test that hangs or fails, run by two processes.
    """
    folder = tmp_path_factory.mktemp("hangs")
    folder.joinpath("test_hangs.py").write_text(HANGS)
    folder.joinpath("conftest.py").write_text(REWRITTEN)
    output = run(folder, "-n2", "--junitxml=out.xml", "--basetemp=kept")
    file = folder / "out.xml"
    assert file.exists(), output
    cases = ET.parse(file).getroot().iter("testcase")
    texts = {case.get("name"): "".join(case.itertext()) for case in cases}
    return folder, texts, output


@pytest.mark.parametrize(
    ("name", "verdict", "code"),
    [
        ("early", "rank 1 never entered all_reduce #2", None),
        ("mismatch", "rank 1 called broadcast", "dist.broadcast"),
        ("sleep", "rank 1 never entered all_reduce #2", "sleep(1000)"),
        ("checkpoint", "rank 0 never entered barrier #1", 'open("w")'),
        ("loader", "rank 1 never entered all_reduce #2", "# next batch"),
    ],
)
def test_a_hang_is_explained(failures, name, verdict, code):
    """
    The message begins with the verdict, and has the line and the stacks.
    """
    _, texts, _ = failures
    text = texts[f"test_{name}"]

    assert text.startswith(verdict)
    assert "stacks:\n" in text
    assert "the time limit of 3 s is over" in text
    if code:
        assert f"test_hangs.py:{line_of(HANGS, code)}" in text
    else:
        assert "has returned from the test function" in text


def test_an_exception_is_shown(failures):
    """
    The rank that raised comes first, with its traceback; then the others.
    """
    _, texts, _ = failures
    text = texts["test_exception"]
    number = line_of(HANGS, "== 7")

    assert text.startswith("rank 1: AssertionError: assert 2 == 7")
    assert ">           assert dist.get_world_size() == 7" in text
    assert f"test_hangs.py:{number}: AssertionError" in text
    assert "then rank 0: RuntimeError: " in text
    assert "before it fails" in text
    assert text.count("Traceback (most recent call last)") == 0


@pytest.mark.parametrize(
    ("name", "rank", "how"),
    [
        ("killed", 1, "the process was killed by SIGKILL"),
        ("exit", 0, "the process ended with exit status 3"),
    ],
)
def test_a_death_is_named(failures, name, rank, how):
    """
    The rank that died comes first, and how it died.
    """
    _, texts, _ = failures
    text = texts[f"test_{name}"]

    assert text.startswith(f"rank {rank}: {how}")
    assert f"rank {rank} left no dump" in text or "rank_crashed" in text


@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None,
    reason="accelerate is not installed",
)
def test_a_deadlock_in_a_known_project(tmp_path):
    """
    A test of Accelerate's own operations, one of which only the main process
    enters, fails with the lines of both branches.
    """
    tmp_path.joinpath("test_ops.py").write_text(KNOWN)

    output = run(tmp_path)

    assert "1 failed, 1 passed" in output
    assert "cause: type_mismatch" in output
    for mark in ("# main only", "# all"):
        assert f"test_ops.py:{line_of(KNOWN, mark)}" in output


def test_no_process_is_left(failures):
    """
    No rank outlives its test.
    """
    folder, texts, output = failures

    assert len(texts) == 8, output
    assert [] == [x for x in ranks_alive() if str(folder) in str(x.cmdline())]


def test_ranks_that_pass(tmp_path):
    """
    Arguments reach the ranks, other tests run here, and no folder is left.
    """
    tmp_path.joinpath("test_ok.py").write_text(HEALTHY)
    tmp_path.joinpath("conftest.py").write_text(CONFTEST)
    tmp_path.joinpath("helper.py").write_text(
        "import torch\nones = torch.ones\n"
    )

    output = run(tmp_path, "-rs", "--basetemp=kept")

    assert "2 passed, 1 skipped" in output
    assert "not today" in output
    assert [] == [*tmp_path.joinpath("kept").glob("ranks*")]


def test_a_schedule_is_kept(tmp_path, monkeypatch):
    """
    What a change does to the collectives fails the test, at its line.
    """
    tmp_path.joinpath("test_it.py").write_text(SCHEDULED)

    written = run(tmp_path, "--update-schedules")
    kept = (tmp_path / "schedules" / "test_it-test_steps-4.txt").read_text()
    monkeypatch.setenv("MORE", "1")
    changed = run(tmp_path)

    assert "4 passed" in written
    assert (
        "ranks 0-1\n  3 x gloo:all_reduce of 'default_pg': [4] Float @" in kept
    )
    assert "3 failed, 1 passed" in changed
    assert "ranks 0-1: call 2 is new: gloo:barrier" in changed
    place = f"test_it.py:{line_of(SCHEDULED, '# here')}"
    assert (
        "ranks 0-1: call 4 is new: gloo:broadcast of 'default_pg'" in changed
    )
    assert place in changed
    assert "the ranks diverge: " in changed
    assert "dtype_mismatch" in changed


def test_a_missing_schedule_is_said(tmp_path):
    """
    The message names the file that is not there, and how to write it.
    """
    tmp_path.joinpath("test_it.py").write_text(SCHEDULED)

    output = run(tmp_path, "-k", "test_fixture")

    assert "1 failed" in output
    assert "no schedule in " in output
    assert "schedules/test_it-test_fixture.txt: No such file" in output
    assert "Try: pytest --update-schedules, which writes it" in output


def test_subgroups_in_another_order(tmp_path):
    """
    A test of a mesh in which ranks reduce in their groups in another order
    fails with the circle; the one in order passes.
    """
    tmp_path.joinpath("test_mesh.py").write_text(SUBGROUPS)

    output = run(tmp_path)

    assert "1 failed, 1 passed" in output
    assert "ranks 0-3 wait for each other: " in output
    assert "cause: group_order_deadlock (certain)" in output
    assert f"test_mesh.py:{line_of(SUBGROUPS, 'group=groups')}" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_ends_the_ranks(tmp_path, number):
    """
    Whatever ends pytest also ends its ranks.
    """
    text = HANGS.replace("timeout_s=3", "timeout_s=300")
    tmp_path.joinpath("test_hangs.py").write_text(text)
    command = [sys.executable, "-m", "pytest", *OPTIONS, "-k", "sleep"]
    process = subprocess.Popen(
        [*command, "--basetemp=kept"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if len([*tmp_path.glob("kept/ranks0/*.started")]) == 2:
                break
            time.sleep(0.1)
        started = [x for x in ranks_alive() if x.ppid() == process.pid]
        os.kill(process.pid, number)
        process.wait(30)
    finally:
        process.kill()
    _, alive = psutil.wait_procs(started, timeout=10)

    assert len(started) == 2
    assert [] == alive
