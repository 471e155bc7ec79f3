"""
How long does it take to ask ranks that are stopped on other nodes?

Run it as ``pytest benchmarks/test_debugger_nodes.py``.  The nodes are on this
machine, each with a folder of its own for its sockets: four of a Slurm, two of
a Ray cluster, and 128 hosts that a stand-in for ssh reaches, with 4 ranks each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.living import end, having
from tests.integration.ray_lab import two_nodes
from tests.integration.slurm_lab import slurm_lab

from distdebug.debugger import DebugClient, connect
from distdebug.errors import DebuggerError, NodesError


Place = tuple[dict[str, Any], int]

HOSTS, RANKS_PER_HOST = 128, 4
SOURCE = Path(__file__).parents[1] / "src"

RANK = """
import os
from distdebug.debugger import arm, set_trace
def step(loss):
    set_trace()
    return loss
def main(rank):
    os.environ["RANK"] = str(rank)
    arm()
    step(1.5)
"""
SLURM = "main(os.environ['SLURM_PROCID'])"
HERE = """
import sys, distdebug.debugger.inside.prompt
folder, hosts, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for rank in range(hosts * each):
    if os.fork() == 0:
        os.environ["DISTDEBUG_DIR"] = f"{folder}/node-{rank // each}"
        main(rank)
        os._exit(0)
sys.stdin.read()
"""
RAY = """
import sys, ray
ray.init(sys.argv[1], log_to_driver=False)
nodes = ["head", "other", "head", "other"]
task = ray.remote(num_cpus=0)(main)
ray.get([
    task.options(resources={n: 1}).remote(r) for r, n in enumerate(nodes)
])
"""
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
export DISTDEBUG_DIR="{folder}/$2"
exec sh -c "$3"
"""


@pytest.fixture(scope="module")
def folder():
    """
    A folder; its path is short, as sockets want.
    """
    path = Path(tempfile.mkdtemp(prefix="n", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SOURCE))
        patch.setenv("DISTDEBUG_LIMIT", "600")
        for name in ("DISTDEBUG", "DISTDEBUG_DIR", "RAY_ADDRESS"):
            patch.delenv(name, raising=False)
        yield path
    end(having(f"{path}/"))
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def in_slurm(folder: Path) -> Iterator[Place]:
    """
    A rank on each of four nodes.
    """
    with slurm_lab(folder, "lab-1", "lab-2", "lab-3", "lab-4") as lab:
        number = lab.allocate()
        lab.spawn(
            *("srun", "--overlap", f"--jobid={number}", "-N4", "-n4"),
            *("--mpi=none", sys.executable, "-c", RANK + SLURM),
            name="job",
        )
        yield {"slurm": number}, 4


@contextmanager
def in_ray(folder: Path) -> Iterator[Place]:
    """
    Two tasks on each of two nodes.
    """
    with two_nodes(folder) as address:
        program = folder / "tasks.py"
        program.write_text(RANK + RAY)
        with subprocess.Popen(
            [sys.executable, program, address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as driver:
            yield {"ray": address}, 4
            driver.kill()


@contextmanager
def by_ssh(folder: Path) -> Iterator[Place]:
    """
    Ranks on hosts that have a name and a folder, and no machine.
    """
    stand_in = folder / "bin" / "ssh"
    stand_in.parent.mkdir()
    stand_in.write_text(SSH.format(folder=folder))
    stand_in.chmod(0o755)
    counts = str(HOSTS), str(RANKS_PER_HOST)
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(
            [sys.executable, "-c", RANK + HERE, folder, *counts],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as ranks,
    ):
        path = f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}"
        patch.setenv("PATH", path)
        hosts = [f"node-{number}" for number in range(HOSTS)]
        yield {"hosts": hosts}, HOSTS * RANKS_PER_HOST
        os.killpg(ranks.pid, 9)


PLACES = {"Slurm": in_slurm, "Ray": in_ray, "ssh": by_ssh}


@pytest.fixture(scope="module", params=PLACES)
def place(request, folder):
    """
    Where ranks are stopped, and how many.
    """
    (folder / request.param).mkdir()
    with PLACES[request.param](folder / request.param) as made:
        wait_for_stops(*made).close()
        yield made


@pytest.fixture
def client(place):
    """
    A client that has met all of them.
    """
    with wait_for_stops(*place) as made:
        yield made


def wait_for_stops(where: dict[str, Any], count: int) -> DebugClient:
    """
    A client, as soon as so many ranks are stopped.
    """
    seen: object = None
    until = time.monotonic() + 200
    while time.monotonic() < until:
        try:
            # Nodes that join later are not known to one that is connected.
            client = connect(**where, timeout_s=20)
        except (NodesError, DebuggerError) as error:
            seen = error
            time.sleep(0.5)
            continue
        seen = client.list()
        if count == sum(p.is_stopped for p in seen):
            return client
        client.close()
        time.sleep(0.5)
    pytest.fail(str(seen))


def test_connect(benchmark, place):
    """
    Start a relay on each node, and list what listens there.
    """
    where, count = place
    clients: list[DebugClient] = []

    def begin():
        clients.append(connect(**where, timeout_s=20))
        return clients[-1].list()

    def end_last():
        if clients:
            clients.pop().close()

    listing = benchmark.pedantic(begin, setup=end_last, rounds=3)

    end_last()
    assert count == len(listing.processes)


def test_list(benchmark, place, client):
    """
    List all ranks once more.
    """
    listing = benchmark.pedantic(client.list, rounds=10)

    assert place[1] == len(listing.processes)


def test_cast(benchmark, place, client):
    """
    Evaluate an expression in all ranks.
    """
    answers = benchmark.pedantic(
        client.cast, ("ranks(:)", "p loss"), rounds=10
    )

    assert place[1] == len(answers.outputs)
    assert {"1.5"} == {output.text.strip() for output in answers.outputs}
