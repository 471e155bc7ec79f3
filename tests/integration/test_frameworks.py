"""
Real jobs of training frameworks that hang, and say why by one line of ours.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from pathlib import Path

import psutil
import pytest

import distdebug

from .living import end, end_all, wait_for


pytest.importorskip("torch", reason="torch is not installed")

SOURCE = Path(distdebug.__file__).parents[1]
PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 300


@pytest.fixture(name="hang_of")
def _hang_of(tmp_path):
    """
    Runs a job of two ranks until it has explained why it hangs.
    """
    jobs = []

    def hang_of(framework, fault):
        environ = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "DS_ACCELERATOR": "cpu",
            "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
            "FAULT": fault,
            "RUN": str(tmp_path / "run"),
            "DUMPS": str(tmp_path / "dumps"),
        }
        launch = ["-m", "torch.distributed.run", "--standalone"]
        launch += ["--nproc-per-node", "2"]
        if framework == "ray_train":  # it starts its workers itself
            launch = []
        with (tmp_path / "log.txt").open("wb") as log:
            jobs.append(
                subprocess.Popen(
                    [
                        *(sys.executable, *launch),
                        PROGRAMS / f"{framework}_job.py",
                    ],
                    stdout=log,
                    stderr=log,
                    env=environ,
                    cwd=tmp_path,
                    start_new_session=True,
                )
            )
        hangs = tmp_path / "run" / "hangs"
        wait_for((hangs / "REPORT.txt").exists, seconds=PATIENCE_S)
        verdict = distdebug.diagnose(hangs).verdict
        log = tmp_path / "log.txt"
        wait_for(
            lambda: verdict.summary[:40] in log.read_text(errors="replace")
        )
        return verdict, log

    yield hang_of
    for job in jobs:
        # Titles hide the environment of Ray's servers; ranks under torchrun
        # are of sessions of their own.
        children = psutil.Process(job.pid).children(recursive=True)
        end_all(str(tmp_path))
        end(children)
        job.wait()


def _line(framework, fault):
    text = (PROGRAMS / f"{framework}_job.py").read_text()
    lines = enumerate(text.splitlines(), 1)
    return next(n for n, x in lines if x.endswith(f"# HERE {fault}"))


def _skip_without(framework):
    needed = {
        "plain": "torch",
        "fully_sharded": "torch",
        "ray_train": "pyarrow",
    }
    if not importlib.util.find_spec(needed.get(framework, framework)):
        pytest.skip(f"{framework} is not installed")


@pytest.mark.parametrize(
    ("framework", "fault"),
    [
        ("plain", "locks"),
        ("accelerate", "sleeps"),
        ("lightning", "locks"),
        ("transformers", "sleeps"),
        ("ray_train", "locks"),
        ("deepspeed", "sleeps"),
        ("fully_sharded", "sleeps"),
    ],
)
def test_hang(hang_of, framework, fault):
    """
    The snapshot lies in the folder of the run, and names rank and line; the
    verdict is in the log of the job, too.
    """
    _skip_without(framework)

    verdict, _ = hang_of(framework, fault)

    assert verdict.ranks == (1,)
    assert verdict.location.line == _line(framework, fault)
    found = {verdict.cause, verdict.detail_cause}
    assert {"sleeps": "rank_not_arrived", "locks": "lock_deadlock"}[
        fault
    ] in found


@pytest.mark.parametrize(
    "framework", ["accelerate", "lightning", "transformers"]
)
def test_exception(hang_of, framework, tmp_path):
    """
    An exception that ends the job later carries the verdict, and where the
    evidence lies, in the log.
    """
    _skip_without(framework)

    verdict, log = hang_of(framework, "raises")

    hangs = tmp_path / "run" / "hangs"
    expected = (
        "TimeoutError",
        f"distdebug: {verdict.summary}",
        f"{hangs} on",
    )
    wait_for(
        lambda: all(x in log.read_text(errors="replace") for x in expected)
    )
    assert verdict.location.line == _line(framework, "raises")
