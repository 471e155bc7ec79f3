"""
Nodes of a real Slurm job: one controller and three daemons on this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from distdebug.causes import Cause
from distdebug.errors import NodesError
from distdebug.nodes import Slurm, run_on_nodes
from distdebug.snapshots import collect, snapshot_everywhere
from distdebug.snapshots.bundle import read_manifest

from .living import wait_until
from .slurm_lab import slurm_lab


NODES = ("lab-1", "lab-2", "lab-9")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """
    A Slurm that runs while these tests do.
    """
    # The path of a socket may have 107 characters.
    with slurm_lab(tmp_path_factory.mktemp("s"), *NODES) as lab:
        yield lab


@pytest.fixture(scope="module")
def job(lab):
    """
    The number of a job on all nodes.
    """
    return lab.allocate()


def by_host(results):
    """
    The results, by node.
    """
    return {result.host: result for result in results}


def test_function(job):
    """
    A function runs once on every node of the job, inside the job.
    """

    def function():
        print("shown")
        names = ("SLURMD_NODENAME", "SLURM_JOB_ID", "SLURM_NTASKS")
        return [os.environ[name] for name in names]

    got = by_host(run_on_nodes(function, engine=Slurm(job=job), timeout_s=60))

    assert {node: [node, job, "1"] for node in NODES} == {
        host: result.value for host, result in got.items()
    }
    assert {"shown"} == {result.output for result in got.values()}


def test_large_value(job):
    """
    What is returned may be large, and so may the function.
    """
    sent = os.urandom(1 << 20)

    results = run_on_nodes(
        lambda: "x" * len(sent) * 3, engine=Slurm(job=job), timeout_s=60
    )

    assert {3 << 20} == {len(result.value) for result in results}


@pytest.fixture
def rank():
    """
    The number of a process that sleeps, and is a rank.
    """
    code = "import time\nprint(flush=True)\ntime.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
    ) as process:
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_snapshot(job, rank, tmp_path):
    """
    A snapshot of all nodes has a part of each, and one diagnosis.
    """
    taken = snapshot_everywhere(
        tmp_path / "hang", engine=Slurm(job=job), pids=[rank]
    )

    assert ["ok"] * 3 == [n.status for n in taken.manifest.nodes]
    assert () == taken.manifest.skipped
    assert Cause.SLEEPING is taken.diagnosis.verdict.cause


def test_snapshot_hangs(lab, job, rank, tmp_path, monkeypatch):
    """
    A node that hangs while it collects costs its own part only, in bound.
    """
    monkeypatch.setattr(collect, "_START_UP_S", 1.0)
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(
            snapshot_everywhere,
            tmp_path / "hang",
            engine=Slurm(job=job),
            pids=[rank],
            timeout_s=19,
        )
        assert wait_until(lambda: pythons(lab, "lab-2"))
        for task in pythons(lab, "lab-2"):
            task.suspend()
        taken = future.result()

    assert time.monotonic() - begin < 45
    assert [("lab-1", "ok"), ("lab-2", "failed"), ("lab-9", "ok")] == [
        (node.host, node.status) for node in taken.manifest.nodes
    ]
    (missing,) = taken.manifest.skipped
    assert ("node", "lab-2") == (missing.what, missing.source)
    assert "no answer after 20 s" in missing.reason
    assert taken.manifest == read_manifest(taken.folder)
    assert Cause.SLEEPING is taken.diagnosis.verdict.cause


def pythons(lab, node):
    """
    What collects on a node, and no longer is the shell that Slurm starts.
    """
    found = []
    for task in lab.tasks(node):
        with suppress(psutil.Error):
            found += [task] * task.name().startswith("python")
    return found


def test_hang(lab, job):
    """
    A node that hangs is given up in time, and nothing stays behind on it.
    """
    code = (
        "import os, time; print('hangs', flush=True); "
        "time.sleep(600 * (os.environ['SLURMD_NODENAME'] == 'lab-2'))"
    )

    got = by_host(
        run_on_nodes(
            [sys.executable, "-c", code],
            engine=Slurm(job=job),
            timeout_s=15,
        )
    )

    assert got["lab-2"].seconds < 40
    assert {"lab-1": "ok", "lab-2": "timed_out", "lab-9": "ok"} == {
        host: result.status for host, result in got.items()
    }
    assert "hangs" in got["lab-2"].output
    wait_until(lambda: len(lab.tasks("lab-2")) == 1)
    assert ["sleep"] == [task.name() for task in lab.tasks("lab-2")]


def test_wrong_job(lab):
    """
    A job that does not exist is told as such.
    """
    with pytest.raises(NodesError, match="Slurm knows no job 4711"):
        Slurm(job="4711").srun_prefixes()


def test_node_dies(lab, job):
    """
    A node that dies during the run costs its own result only, in bound.
    """
    code = 'test "$SLURMD_NODENAME" != lab-9 || sleep 600; true'
    begin = time.monotonic()
    results = run_on_nodes(
        ["sh", "-c", code], engine=Slurm(job=job), timeout_s=20
    )

    got = {}
    for result in results:
        got[result.host] = result.status
        if len(got) == 2:
            assert wait_until(lambda: len(lab.tasks("lab-9")) == 2)
            lab.lose("lab-9")

    assert time.monotonic() - begin < 40
    assert {"lab-1": "ok", "lab-2": "ok"} == {
        host: status for host, status in got.items() if host != "lab-9"
    }
    assert got["lab-9"] in {"timed_out", "dead", "failed"}


def test_dead_node(lab, job):
    """
    A node that is dead is told as such, and the others answer.
    """
    lab.kill("lab-9")

    results = run_on_nodes(
        lambda: os.environ["SLURMD_NODENAME"],
        engine=Slurm(job=job),
        timeout_s=60,
    )
    got = by_host(results)

    assert ("lab-1", "lab-2") == (got["lab-1"].value, got["lab-2"].value)
    assert "dead" == got["lab-9"].status
    assert "does not reach the node" in got["lab-9"].reason


def test_snapshot_of_dead(lab, job, rank, tmp_path):
    """
    A snapshot without a node that died says so.
    """
    lab.kill("lab-9")

    taken = snapshot_everywhere(
        tmp_path / "hang", engine=Slurm(job=job), pids=[rank]
    )

    assert [("lab-1", "ok"), ("lab-2", "ok"), ("lab-9", "failed")] == [
        (node.host, node.status) for node in taken.manifest.nodes
    ]
    assert "does not reach the node" in taken.manifest.skipped[0].reason
    assert Cause.SLEEPING is taken.diagnosis.verdict.cause
