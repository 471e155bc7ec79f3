"""
Real processes that hang, die, and are asked for dumps.
"""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from contextlib import contextmanager
from pathlib import Path

import pytest

from distdebug.causes import Cause
from distdebug.debugger import connect
from distdebug.diagnosis import diagnose
from distdebug.flight_recorder import request_dumps

from .living import wait_for


C10D = "torch._C._distributed_c10d"
PROGRAMS = Path(__file__).with_name("programs")

# The limits that the operating system keeps, and some for a busy machine.
TERM_LIMIT_S = 15 + 10
ABORT_LIMIT_S = 16 + 10
HELD_S = 6
PATIENCE_S = 60


def start(program, *args, rank: int | None = 0, world_size=1):
    """
    Start a program as one rank.
    """
    return subprocess.Popen(
        [sys.executable, PROGRAMS / program, *map(str, args)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            **({} if rank is None else {"RANK": str(rank)}),
            "WORLD_SIZE": str(world_size),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    """
    End a program, whatever it does.
    """
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def wait_ready(process):
    """
    Wait until a program says that it is ready.
    """
    lines = iter(process.stdout.readline, "")
    # Some releases of Gloo print something, too.
    line = next((x for x in lines if not x.startswith("[Gloo]")), "").split()
    assert ["ready"] == line[:1], process.stderr.read()
    return line[1:]


@contextmanager
def alone(behavior, dump_dir):
    """
    Run a rank without peers and without torch.
    """
    process = start("record_alone.py", behavior, dump_dir)
    try:
        yield process
    finally:
        end(process)


def need_recorder():
    """
    Skip a test where torch is not there, or records nothing on Gloo.
    """
    pytest.importorskip("torch.distributed")
    if not hasattr(importlib.import_module(C10D), "_dump_fr_trace"):
        pytest.skip("this torch records nothing on Gloo")


@contextmanager
def gloo_job(behavior, dump_dir):
    """
    Run two ranks of a Gloo job, and let rank 0 begin when both are ready.
    """
    need_recorder()
    store = dump_dir.with_name("store")
    ranks = [
        start(
            "record_rank.py", behavior, dump_dir, store, rank=r, world_size=2
        )
        for r in (0, 1)
    ]
    try:
        for process in ranks:
            wait_ready(process)
        print("go", file=ranks[0].stdin, flush=True)
        yield ranks
    finally:
        for process in ranks:
            end(process)


def sidecars(dump_dir, rank=0, reason=None):
    """
    The side-cars of a rank, oldest first.
    """
    found = [
        json.loads(path.read_text())
        for path in sorted(dump_dir.glob(f"*_rank_{rank}.sidecar.json"))
    ]
    return [s for s in found if reason in {None, s["reason"]}]


def is_hanging(dump_dir, rank=0):
    """
    Whether the rank has a call in flight: ask it.
    """
    (row,) = request_dumps(dump_dir, ranks=[rank])
    if row.status != "dumped":
        return False

    (sidecar,) = [
        s for s in sidecars(dump_dir, rank) if s["dump"] == row.path.name
    ]
    frames = sidecar["threads"]["MainThread"]
    return any(f["name"] == "hang" for f in frames)


class TestRequest:
    def test_hang(self, tmp_path):
        """
        Ranks that hang in C++ answer, each with a dump that has stacks, and
        tell what torch does not.
        """
        with gloo_job("hang", tmp_path / "d") as ranks:
            wait_for(lambda: is_hanging(tmp_path / "d"), seconds=30)
            rows = request_dumps(tmp_path / "d")

            assert [(0, "dumped"), (1, "dumped")] == [
                (r.rank, r.status) for r in rows
            ]
            assert [None, None] == [process.poll() for process in ranks]

        for row in rows:
            assert b"gloo:all_reduce" in row.path.read_bytes()
            assert b"record_rank.py" in row.path.read_bytes()
            assert 0o600 == row.path.stat().st_mode & 0o777
        (sidecar,) = [
            s
            for s in sidecars(tmp_path / "d")
            if s["dump"] == rows[0].path.name
        ]
        assert (0, 2) == (sidecar["rank"], sidecar["world_size"])
        assert "request" == sidecar["reason"]
        assert [0, 1] == sidecar["groups"][0]["ranks"]
        assert "gloo" == sidecar["groups"][0]["backend"]
        assert "hang" in {f["name"] for f in sidecar["threads"]["MainThread"]}

    def test_second(self, tmp_path):
        """
        A second dump leaves the first alone, and the link shows the second.
        """
        with gloo_job("hang", tmp_path / "d"):
            (first,) = request_dumps(tmp_path / "d", ranks=[1])
            (second,) = request_dumps(tmp_path / "d", ranks=[1])

        assert first.path != second.path
        assert first.path.exists()
        assert second.path == (tmp_path / "d/latest_rank_1").resolve()

    def test_nothing_to_dump(self, tmp_path):
        """
        A process without a recorder says so.
        """
        with alone("wait", tmp_path / "d") as process:
            wait_ready(process)
            (row,) = request_dumps(tmp_path / "d")

        assert (0, "failed") == (row.rank, row.status)
        assert "nothing to dump" in row.reason

    def test_dead(self, tmp_path):
        """
        Nobody listens at the pipe of a process that was killed.
        """
        with alone("wait", tmp_path / "d") as process:
            wait_ready(process)
        (row,) = request_dumps(tmp_path / "d")

        assert (0, "absent") == (row.rank, row.status)

    def test_stuck(self, tmp_path):
        """
        A process whose interpreter is stuck is silent, and the wait ends.
        """
        with alone("hold_gil", tmp_path / "d") as process:
            wait_ready(process)
            (row,) = request_dumps(tmp_path / "d", timeout_s=0.5)

        assert (0, "silent") == (row.rank, row.status)


class TestEnds:
    def test_exception(self, tmp_path):
        """
        An exception leaves a dump, and the exception itself in one line.
        """
        with gloo_job("fail", tmp_path / "d") as (process, other):
            wait_for(
                lambda: sidecars(tmp_path / "d", reason="exit"), seconds=30
            )
            other.stdin.close()  # or torch would wait for it
            _, err = process.communicate(timeout=30)

        (sidecar,) = sidecars(tmp_path / "d", reason="exception")
        assert 1 == process.returncode
        assert "ValueError: no data" in err
        assert "ValueError: no data left" == sidecar["error"]
        assert b"all_reduce" in (tmp_path / "d" / sidecar["dump"]).read_bytes()
        assert ["fail", "<module>"] == [
            f["name"] for f in sidecar["threads"]["MainThread"]
        ]

    def test_line_of_exception(self, tmp_path):
        """
        The diagnosis names the line that raised the exception.
        """
        with gloo_job("fail", tmp_path / "d") as (process, other):
            wait_for(
                lambda: sidecars(tmp_path / "d", reason="exit"), seconds=30
            )
            other.stdin.close()
            process.communicate(timeout=30)

        verdict = diagnose(tmp_path / "d").verdict
        lines = (PROGRAMS / "record_rank.py").read_text().splitlines()
        assert (Cause.RANK_CRASHED, (0,)) == (verdict.cause, verdict.ranks)
        assert "fail" == verdict.location.function
        assert "    raise ValueError(msg)" == lines[verdict.location.line - 1]

    def test_exit_in_flight(self, tmp_path):
        """
        A rank that leaves in the middle of a call leaves a dump.
        """
        with gloo_job("exit_in_flight", tmp_path / "d") as (process, other):
            wait_for(
                lambda: sidecars(tmp_path / "d", reason="exit"), seconds=30
            )
            other.stdin.close()
            process.communicate(timeout=30)

        (sidecar,) = sidecars(tmp_path / "d", reason="exit-after-error")
        assert 3 == process.returncode
        assert (tmp_path / "d" / sidecar["dump"]).exists()

    def test_normal(self, tmp_path):
        """
        A rank that is done leaves a side-car, and no pipe.
        """
        with gloo_job("finish", tmp_path / "d") as (process, _):
            process.communicate(timeout=30)

        (sidecar,) = sidecars(tmp_path / "d")
        assert 0 == process.returncode
        assert ("exit", "") == (sidecar["reason"], sidecar["dump"])
        assert [] == list((tmp_path / "d").glob("*_0.pipe"))


class TestSignals:
    def test_sigterm(self, tmp_path):
        """
        A rank that hangs in C++ dumps on SIGTERM, and still dies of it.
        """
        with gloo_job("hang", tmp_path / "d") as (process, _):
            wait_for(lambda: is_hanging(tmp_path / "d"), seconds=30)
            process.terminate()
            process.communicate(timeout=30)

        (sidecar,) = sidecars(tmp_path / "d", reason="SIGTERM")
        dump = tmp_path / "d" / sidecar["dump"]
        assert -signal.SIGTERM == process.returncode
        assert b"record_rank.py" in dump.read_bytes()
        text = dump.with_name(f"{dump.name}.traceback.txt").read_text()
        assert " in hang" in text
        assert [] == list((tmp_path / "d").glob("*_0.pipe"))

    def test_terminate(self, tmp_path):
        """
        std::terminate leaves a dump, and its stacks go to stderr as well.
        """
        # Six seconds of the clock are promised: where the whole machine stood
        # still for as long, that tells nothing.
        for attempt in "abc":
            with gloo_job("terminate", tmp_path / attempt) as (process, _):
                began = time.monotonic()
                _, err = process.communicate(timeout=30)
            if time.monotonic() - began < HELD_S:
                break

        if "AttributeError" in err or "OSError" in err:
            pytest.skip("there is no libstdc++")
        left = sorted(path.name for path in (tmp_path / attempt).iterdir())
        found = sidecars(tmp_path / attempt, reason="SIGABRT")
        assert [-signal.SIGABRT, 1] == [process.returncode, len(found)], left
        assert "Fatal Python error: Aborted" in err
        assert found[0]["dump"] in left

    def test_own_handler(self, tmp_path):
        """
        A handler that the program had before is called as ever.
        """
        with alone("handle_sigterm", tmp_path / "d") as process:
            wait_ready(process)
            process.terminate()
            process.communicate(timeout=30)

        assert 7 == process.returncode

    def test_ignored(self, tmp_path):
        """
        A signal that the program ignores is still ignored.
        """
        with alone("ignore_sigterm", tmp_path / "d") as process:
            wait_ready(process)
            process.terminate()
            process.stdin.close()
            process.wait(30)

        assert 0 == process.returncode

    def test_own_faulthandler(self, tmp_path):
        """
        Where faulthandler is enabled, its words go where they went, at once.
        """
        with alone("own_faulthandler", tmp_path / "d") as process:
            _, err = process.communicate(timeout=30)

        assert -signal.SIGABRT == process.returncode
        assert "Fatal Python error: Aborted" in err

    def test_stuck(self, tmp_path):
        """
        A process whose interpreter is stuck dies of either signal in time.
        """
        with (
            alone("hold_gil", tmp_path / "a") as termed,
            alone("hold_gil", tmp_path / "b") as aborted,
        ):
            wait_ready(termed)
            wait_ready(aborted)
            termed.terminate()
            aborted.send_signal(signal.SIGABRT)
            termed.wait(TERM_LIMIT_S)
            aborted.wait(ABORT_LIMIT_S)

        assert -signal.SIGALRM == termed.returncode
        assert -signal.SIGALRM == aborted.returncode


class TestForks:
    def test_child_is_killed(self, tmp_path):
        """
        A forked child dies of SIGTERM at once, and its parent does not mind.
        """
        with alone("fork", tmp_path / "d") as process:
            child = wait_ready(process)[0]
            os.kill(int(child), signal.SIGTERM)
            wait_ready(process)
            (row,) = request_dumps(tmp_path / "d")
            process.stdin.close()
            process.wait(30)

        assert 0 == process.returncode
        assert "failed" == row.status  # it answers: there is nothing
        assert [] == sidecars(tmp_path / "d", reason="SIGTERM")

    def test_child_ends(self, tmp_path):
        """
        A forked child that ends takes nothing of its parent's away.
        """
        with alone("fork_that_ends", tmp_path / "d") as process:
            wait_ready(process)
            pipes = list((tmp_path / "d").glob("*.pipe"))
            noted = sidecars(tmp_path / "d", reason="exit")
            process.terminate()
            process.wait(30)

        assert 1 == len(pipes)
        assert [] == noted
        assert -signal.SIGTERM == process.returncode


def test_folder_vanishes(tmp_path):
    """
    Without its folder a rank cannot dump; it dies as it would have.
    """
    with gloo_job("hang_without_folder", tmp_path / "d") as (process, _):
        wait_for(lambda: not (tmp_path / "d").exists(), seconds=30)
        process.terminate()
        _, err = process.communicate(timeout=30)

    assert -signal.SIGTERM == process.returncode
    assert 1 == err.count("recording goes on without")


def test_no_space(tmp_path):
    """
    Where no byte can be written a rank goes on, whoever asks for dumps.
    """
    with gloo_job("hang_without_space", tmp_path / "d") as (process, _):
        wait_ready(process)
        (row,) = request_dumps(tmp_path / "d", ranks=[0], timeout_s=1)
        alive = process.poll() is None
        process.terminate()
        process.communicate(timeout=30)

    assert "silent" == row.status
    assert alive
    assert -signal.SIGTERM == process.returncode
    assert [] == [p.name for p in (tmp_path / "d").glob(".*")]


@pytest.mark.smoke
def test_spawned_children(tmp_path):
    """
    A spawned rank is known by the number that it gave torch, and its
    exception is noted although Python calls no hook there.
    """
    need_recorder()

    process = start(
        "record_spawn.py", tmp_path / "d", tmp_path / "store", rank=None
    )
    process.communicate(timeout=60)

    (sidecar,) = sidecars(tmp_path / "d", rank=1, reason="exit-after-error")
    assert "ValueError: out of luck" == sidecar["error"]
    assert (1, 2) == (sidecar["rank"], sidecar["world_size"])
    assert (tmp_path / "d" / sidecar["dump"]).exists()


def test_cost(tmp_path):
    """
    A dump with stacks imports nothing.
    """
    need_recorder()

    process = start("record_cost.py", tmp_path / "d")
    out, err = process.communicate(timeout=60)

    assert "0 True\n" == out, err


@pytest.mark.smoke
def test_torchrun(tmp_path):
    """
    Under torchrun, what torchrun would do after an error is changed.
    """
    pytest.importorskip("torch.distributed.run")

    got = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--standalone", "--nproc-per-node=2"),
            *(PROGRAMS / "record_launched.py", tmp_path / "d"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert ["1 3", "1 3"] == got.stdout.splitlines(), got.stderr
    assert ["exit", "exit"] == [
        s["reason"] for r in (0, 1) for s in sidecars(tmp_path / "d", r)
    ]


def test_loads_nothing(tmp_path):
    """
    Threads of ours import nothing in a rank that is recorded, watched, and
    debugged: a child that is forked meanwhile inherits the locks of modules.
    """
    pytest.importorskip("torch.distributed")
    folder = Path(tempfile.mkdtemp(prefix="dd", dir="/tmp"))  # for a socket

    rank = start("quiet_rank.py", folder)
    try:
        wait_ready(rank)
        (dumped,) = request_dumps(folder / "dumps")
        with connect(folder / "s", timeout_s=20) as client:
            client.stack()
        printed = rank.stdout.readline()
        rank.terminate()
        printed += rank.stdout.read()
    finally:
        end(rank)
        shutil.rmtree(folder)

    assert "dumped" == dumped.status
    assert "told True\n" == printed
