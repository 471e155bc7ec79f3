"""
Real jobs, started as users start them, and found.
"""

import os
import subprocess
import sys

from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from distdebug.processes import (
    absent_peers,
    find_workers,
    find_workers_by_pid,
)

from .living import free_ports, wait_for


PROGRAMS = Path(__file__).with_name("programs")


@contextmanager
def job(*arguments, ready=1, **variables):
    """
    Start a job, wait until its processes are ready, and end all of them.
    """
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        for _ in range(ready):
            line = process.stdout.readline()
            assert line.startswith("ready"), f"it ended: {line}"
        yield process
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        for one in (process, *family):
            one.kill()
        process.wait()
        process.stdout.close()


def family_of(process):
    """
    Workers that descend from a process, and it; other jobs may run here.
    """
    root = psutil.Process(process.pid)
    pids = {root.pid, *(p.pid for p in root.children(recursive=True))}
    return [w for w in find_workers() if w.pid in pids]


class TestTorchrun:
    def test_job(self):
        """
        Launcher, ranks, and data loaders are found, each for what it is; a
        rank that was killed is missed.
        """
        pytest.importorskip("torch.distributed")
        with job(
            *("-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=4", PROGRAMS / "find_rank.py"),
            ready=4,
        ) as process:
            workers = family_of(process)
            alone = find_workers(include_children=False)
            matching = find_workers([r"find_rank\.py"])

            victim = next(w for w in workers if w.rank == 2)
            (one,) = find_workers_by_pid([victim.pid])
            rest = [w for w in workers if w.rank != 2]

        roles = [(w.role, w.rank, w.local_rank) for w in workers]
        launcher = [w.pid for w in workers if w.role == "launcher"]
        ranks = {w.pid for w in workers if w.role == "rank"}
        loaders = [w for w in workers if w.role == "dataloader"]
        assert [("rank", r, r) for r in range(4)] == roles[:4]
        assert [process.pid] == launcher
        assert 4 + 1 + 8 == len(workers)
        assert ranks == {w.parent_pid for w in loaders}
        assert {("torchrun", "memory", 4)} == {
            (w.framework, w.source, w.world_size) for w in workers[:4]
        }
        assert not {w.pid for w in loaders} & {w.pid for w in alone}
        assert {w.pid for w in workers} <= {w.pid for w in matching}
        assert victim == one
        assert {} == absent_peers(workers)
        assert {(2,)} == {*absent_peers(rest).values()}


class TestSpawn:
    def test_met(self):
        """
        Ranks whose number is nowhere but in their arguments are found, and
        what spawned them is no rank.
        """
        pytest.importorskip("torch.distributed")
        store = f"tcp://127.0.0.1:{free_ports(1)[0]}"
        with job(PROGRAMS / "find_spawn.py", store, 2, ready=2) as process:
            workers = wait_for(lambda: family_of(process))

        assert ["rank", "rank", "launcher"] == [w.role for w in workers]
        assert process.pid == workers[-1].pid

    def test_waiting(self):
        """
        So are ranks that wait for one that never comes.
        """
        pytest.importorskip("torch.distributed")
        store = f"tcp://127.0.0.1:{free_ports(1)[0]}"
        with job(PROGRAMS / "find_spawn.py", store, 3, ready=2) as process:
            workers = wait_for(
                lambda: [x] if len(x := family_of(process)) == 3 else []
            )[0]

        assert ["rank", "rank", "launcher"] == [w.role for w in workers]


class TestAlone:
    def test_title(self):
        """
        A title that overwrote the environment does not hide it.
        """
        pytest.importorskip("setproctitle")
        title = "sglang::scheduler_TP1"
        with job(
            PROGRAMS / "find_alone.py", title, MASTER_ADDR="h", MASTER_PORT="1"
        ) as process:
            start = Path(f"/proc/{process.pid}/environ").read_bytes()
            (worker,) = family_of(process)

        assert b"" == start.strip(b"\0")
        assert ("sglang", "rank", 1) == (
            worker.framework,
            worker.role,
            worker.rank,
        )
        assert (title, "title", "h:1") == (
            worker.title,
            worker.source,
            worker.job,
        )

    def test_plain_title(self):
        """
        So a rank is known whose title says nothing.
        """
        pytest.importorskip("setproctitle")
        with job(
            PROGRAMS / "find_alone.py", "my job", RANK="3", WORLD_SIZE="4"
        ) as process:
            (worker,) = family_of(process)

        assert ("torch", "my job") == (worker.framework, worker.title)
        assert (3, 4, "memory") == (
            worker.rank,
            worker.world_size,
            worker.source,
        )

    def test_run_time(self):
        """
        A rank is known that set its variables itself.
        """
        with job(PROGRAMS / "find_alone.py", "environ") as process:
            (worker,) = family_of(process)

        assert ("torch", "rank", 5, 8, 1) == (
            worker.framework,
            worker.role,
            worker.rank,
            worker.world_size,
            worker.local_rank,
        )

    def test_wrapper(self):
        """
        The shell that has the command line of a worker is not found.
        """
        code = "import time; print('ready', flush=True); time.sleep(600)"
        line = f'{sys.executable} -c "{code} # sglang"; true'
        process = subprocess.Popen(
            ["bash", "-c", line], stdout=subprocess.PIPE, text=True
        )
        try:
            process.stdout.readline()
            (worker,) = family_of(process)
        finally:
            for one in psutil.Process(process.pid).children():
                one.kill()
            process.wait()
            process.stdout.close()

        assert process.pid == worker.parent_pid
        assert "sglang" == worker.framework
