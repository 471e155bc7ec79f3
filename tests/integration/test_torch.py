"""
The torch that is installed here: does what is known of it hold?

``nox -s torches`` asks so of every release.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time

from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

import distdebug

from distdebug.causes import Cause
from distdebug.flight_recorder import VARIABLES, plan_flight_recorder
from distdebug.flight_recorder.recording.plan import parse_version


pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)

PROGRAM = Path(__file__).with_name("programs") / "torch_hang.py"
SOURCE = Path(distdebug.__file__).parents[1]
# Where to keep what this torch writes: it becomes a sample of the unit tests.
SAMPLES = os.environ.get("DISTDEBUG_SAMPLES")

NOT_KEPT = shutil.ignore_patterns("*.pipe", "latest_*")

LONG_ENOUGH_S = 1.5

# Only builds for Intel's devices know this name.
XPU_ONLY = "TORCH_FR_DEBUG_INFO_PIPE_FILE"

# The first that records on Gloo.
RECORDS_GLOO = (2, 8)
_NAME = re.compile(rb"TORCH_(?:NCCL|FR|SYMBOLIZE)_[A-Z_]{1,60}")


@pytest.fixture(name="release")
def _release():
    """
    Major and minor number of the torch that is installed.
    """
    return parse_version(version("torch"))


@contextmanager
def hanging_job(folder):
    """
    Two ranks, of which one waits for the other, which waits for data.
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, folder / "dumps", folder / "store"],
            env={
                **{k: v for k, v in os.environ.items() if "TORCH" not in k},
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(SOURCE),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for rank in ranks:
            # Some releases of Gloo print something, too.
            assert "ready\n" in iter(rank.stdout.readline, "")
        yield folder / "dumps"
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def ask(dumps):
    """
    What both ranks say when they are asked, once rank 0 has waited.
    """
    deadline = time.monotonic() + 30
    while not is_waiting(dumps):
        assert time.monotonic() < deadline
    # Nobody calls it a hang before.
    time.sleep(LONG_ENOUGH_S)
    return distdebug.request_dumps(dumps)


def is_waiting(dumps):
    """
    Whether rank 0 is in the call that never ends: ask it.
    """
    distdebug.request_dumps(dumps, ranks=[0])
    told = max(dumps.glob("*_0.sidecar.json"), key=os.path.getmtime)
    frames = json.loads(told.read_text())["threads"].get("MainThread", ())
    return "all_reduce" in {frame["name"] for frame in frames}


def names_in_libraries():
    """
    The names of variables that stand in the libraries of torch.
    """
    (root,) = importlib.util.find_spec("torch").submodule_search_locations
    found = set()
    for library in Path(root, "lib").glob("libtorch_c*.so"):
        with library.open("rb") as file:
            rest = b""
            while block := file.read(1 << 24):
                found.update(_NAME.findall(rest + block))
                rest = block[-100:]
    return {name.decode() for name in found}


@pytest.mark.smoke
def test_hang(release, tmp_path):
    """
    A hang on Gloo is explained; by its calls, if this torch records them.
    """
    with hanging_job(tmp_path) as dumps:
        rows = ask(dumps)

    if SAMPLES:
        kept = Path(SAMPLES) / "torch-{}.{}".format(*release)
        shutil.copytree(dumps, kept, ignore=NOT_KEPT)
    verdict = distdebug.diagnose(dumps).verdict
    assert ((1,), "load_batch") == (verdict.ranks, verdict.location.function)
    if release < RECORDS_GLOO:
        assert Cause.QUEUE_WAIT is verdict.cause
    else:
        assert {"dumped"} == {row.status for row in rows}
        assert (Cause.RANK_NOT_ARRIVED, Cause.QUEUE_WAIT) == (
            verdict.cause,
            verdict.detail_cause,
        )
        assert "all_reduce #5" in verdict.summary


def test_size(release, tmp_path):
    """
    This torch reads how many calls it is to remember, under a name of the plan.
    """
    if release < RECORDS_GLOO:
        pytest.skip("this torch records nothing on Gloo")

    with hanging_job(tmp_path) as dumps:
        ask(dumps)

    read = distdebug.read_dumps(dumps)
    assert [(0, 4), (1, 4)] == [(d.rank, len(d.entries)) for d in read]


def test_names(release):
    """
    This torch knows each name that is set for it, and no better one.
    """
    known = names_in_libraries()
    has_nccl = "TORCH_NCCL_DUMP_ON_TIMEOUT" in known
    plan = plan_flight_recorder(
        {}, version("torch"), cpp_stacks=True, timing=True
    )
    wanted = {
        s.name
        for s in plan.variables
        if s.action == "set" and (has_nccl or "_NCCL_" not in s.name)
    }
    every = {s for v in VARIABLES for s in v.spellings if s.name in known}
    assert wanted - {XPU_ONLY} <= known
    assert [] == [s for s in every if s.since > release]
