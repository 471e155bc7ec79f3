"""
Every scenario as a real job: started, watched, ended, and diagnosed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug.demo import SCENARIOS


SOURCE = Path(distdebug.__file__).parents[1]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def start_demo(*options):
    """
    Start the demo from the command line.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "distdebug", "demo", *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def play(scenario, folder):
    """
    The verdict on a scenario, all of the JSON, and the exit status.
    """
    with start_demo("--scenario", scenario, "--keep", folder, "--json") as p:
        out, err = p.communicate(timeout=200)

    assert out, err
    got = json.loads(out)
    return got["verdict"], got, p.returncode


def line_of(folder, code):
    """
    Where a line of a program is: file and number.
    """
    program = folder.resolve() / "train.py"
    lines = program.read_text("utf-8").splitlines()
    (number,) = (i for i, x in enumerate(lines, start=1) if code in x)
    return str(program), number


# A rank that is late is late in both of its groups.
EITHER = {"mesh_dp", "mesh_tp"}

# Scenario: cause, detail, ranks, group, call, function, code of the line.
EXPECTED = {
    "dataloader": (
        *("rank_not_arrived", "dataloader_wait", [3], EITHER),
        *("all_reduce #5", "read_shard", "path.read_bytes()"),
    ),
    "cascade": (
        *("rank_not_arrived", "lock_deadlock", [1], EITHER),
        *("all_reduce #5", "update_weights", "with weights_lock:"),
    ),
    "mismatch": (
        *("size_mismatch", None, [2], {"default_pg"}),
        *("all_reduce #5", "mismatch", "320 if is_wrong"),
    ),
    "skip": (
        *("skipped_collective", None, [2], {"default_pg"}),
        *("all_reduce #9", "skip", "dist.broadcast("),
    ),
    "extra": (
        *("extra_collective", None, [0], {"default_pg"}),
        *("all_reduce #3", "extra", "dtype=torch.int32"),
    ),
}


@pytest.mark.parametrize("scenario", EXPECTED)
def test_planted(scenario, tmp_path):
    """
    Cause, rank, group, call, and line are those that were planted.
    """
    verdict, got, status = play(scenario, tmp_path)

    cause, detail, ranks, group, call, function, code = EXPECTED[scenario]
    assert 0 == status
    assert (cause, detail, ranks) == (
        verdict["cause"],
        verdict["detail_cause"],
        verdict["ranks"],
    )
    assert verdict["group"]["desc"] in group
    assert call == "{op} #{seq}".format(**verdict["collective"])
    where = verdict["location"]
    assert function == where["function"]
    assert line_of(tmp_path, code) == (where["file"], where["line"])
    assert sorted({0, 1, 2, 3} - {*ranks}) == got["victims"]


@pytest.mark.smoke
def test_order(tmp_path):
    """
    Of two ranks that wait for each other, the one is named that left the order
    of all steps before.
    """
    verdict, got, status = play("order", tmp_path)

    assert 0 == status
    assert ("group_order_deadlock", [3]) == (
        verdict["cause"],
        verdict["ranks"],
    )
    assert [0, 1, 2] == got["victims"]
    assert verdict["location"]["function"] == "order"


@pytest.mark.smoke
def test_crash(tmp_path):
    """
    A rank that was killed is named, though it left nothing.
    """
    verdict, got, status = play("crash", tmp_path)

    assert 0 == status
    assert ("rank_crashed", [2]) == (verdict["cause"], verdict["ranks"])
    assert "all_reduce" == verdict["collective"]["op"]
    assert [2] == [m["rank"] for m in got["missing"]]


def test_straggler(tmp_path):
    """
    A slow rank is named, and the job is not taken for a stuck one.
    """
    verdict, got, status = play("straggler", tmp_path)

    assert 0 == status
    assert ("straggler", [1]) == (verdict["cause"], verdict["ranks"])
    assert [] == got["victims"]


def test_healthy(tmp_path):
    """
    Where nothing is wrong, nothing is found.
    """
    verdict, got, status = play("healthy", tmp_path)

    assert 0 == status
    assert "healthy" == verdict["cause"]
    assert [] == got["findings"]


def test_all_scenarios_are_tested():
    """
    Every scenario is played here.
    """
    others = {"order", "crash", "straggler", "healthy"}

    assert set(SCENARIOS) == EXPECTED.keys() | others


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
)
def test_nothing_is_left(number, tmp_path):
    """
    A demo that is interrupted takes its job with it.
    """
    log = tmp_path / "job.log"
    with start_demo("--scenario", "healthy", "--keep", tmp_path) as demo:
        deadline = time.monotonic() + 120
        while not (log.exists() and b"step 2" in log.read_bytes()):
            assert demo.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        job = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(number)
        demo.communicate(timeout=60)

    assert 128 + number == demo.returncode
    assert len(job) > 4
    assert [] == psutil.wait_procs(job, timeout=60)[1]
