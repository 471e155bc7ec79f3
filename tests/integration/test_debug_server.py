"""
The debug server of torch in a real job that hangs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from pathlib import Path

import pytest

import distdebug

from distdebug import Cause, diagnose
from distdebug.flight_recorder import read_dumps
from distdebug.snapshots import debug_server as server_module
from distdebug.snapshots.debug_server import collect_debug_server
from distdebug.stacks import read_stacks

from .living import free_ports


SOURCE = Path(distdebug.__file__).parents[1]
PROGRAM = Path(__file__).parent / "programs" / "debug_server_rank.py"
FETCH_TIMEOUT_S = 5.0
BIN = Path(sys.executable).parent
HAS_PYSPY = shutil.which("py-spy", path=f"{BIN}:{os.environ['PATH']}")


def environ(rank, port, path):
    """
    What a launcher tells a rank.
    """
    return {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PATH": path,
        "PYTHONPATH": str(SOURCE),
        "RANK": str(rank),
        "WORLD_SIZE": "4",
    }


def end(process):
    """
    End a rank with all that it started, the server among it.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def await_server(port):
    """
    Wait until the pages are there; they come from a process of their own.
    """
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        try:
            socket.create_connection(("localhost", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return

    pytest.fail("the debug server did not start")


@contextlib.contextmanager
def hanging_job(folder, path):
    """
    Four ranks, the third of which never arrives: the port, and the processes.
    """
    pytest.importorskip("torch.distributed.debug")
    port, store = free_ports(2)
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(4):
            process = subprocess.Popen(
                [
                    *(sys.executable, PROGRAM, str(port)),
                    *(str(FETCH_TIMEOUT_S), folder / "shard"),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environ(rank, store, path),
                start_new_session=True,
            )
            ranks.append(stack.enter_context(process))
            stack.callback(end, process)
        for process in ranks:
            assert "ready\n" == process.stdout.readline()
        ready = time.monotonic()
        await_server(port)
        # Whoever waits for less than a second may be in the middle of a step.
        time.sleep(max(ready + 1.5 - time.monotonic(), 0))
        yield port, ranks


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """
    A job with py-spy at hand, if it is here.
    """
    folder = tmp_path_factory.mktemp("job")
    os.mkfifo(folder / "shard")
    with hanging_job(folder, f"{BIN}:{os.environ['PATH']}") as found:
        yield found


def assert_explained(diagnosis):
    """
    The verdict names rank, collective, and line.
    """
    verdict = diagnosis.verdict
    assert Cause.RANK_NOT_ARRIVED == verdict.cause
    assert (2,) == verdict.ranks
    assert "all_reduce" == verdict.collective.op
    assert "read_shard" == verdict.location.function
    assert "debug_server_rank.py" in verdict.location.file


def take(port, folder, seconds, host="localhost"):
    """
    What is taken, within its time.
    """
    start = time.monotonic()
    files, missing = collect_debug_server(
        f"{host}:{port}", folder, start + seconds
    )

    assert time.monotonic() - start < seconds + 1
    assert set(files) == {f for f in folder.rglob("*") if f.is_file()}
    return missing


def test_a_server_explains_the_hang(job, tmp_path):
    """
    With nothing but the debug server in a job, the line is found.
    """
    port, ranks = job

    missing = take(port, tmp_path, 30)

    assert not missing
    assert_explained(diagnose(tmp_path))
    dumps = read_dumps(tmp_path)
    assert [0, 1, 2, 3] == list(dumps.ranks)
    assert 4 == dumps.world_size
    if HAS_PYSPY:
        assert {
            (rank, socket.gethostname(), process.pid)
            for rank, process in enumerate(ranks)
        } == {(p.rank, p.host, p.pid) for p in read_stacks(tmp_path)}


def test_pages_explain_the_hang(monkeypatch, job, tmp_path):
    """
    So do the pages of the server, if the ranks cannot be asked themselves.
    """
    pytest.importorskip("requests")
    monkeypatch.setattr(server_module, "read_addresses", lambda _page: {})
    port, _ = job

    missing = take(port, tmp_path, 30)

    assert not missing
    assert_explained(diagnose(tmp_path))


def test_a_stopped_rank_costs_only_itself(job, tmp_path):
    """
    If a rank is stopped, the others tell all the same, and soon.
    """
    port, ranks = job
    ranks[1].send_signal(signal.SIGSTOP)
    try:
        missing = take(port, tmp_path, 6)
    finally:
        ranks[1].send_signal(signal.SIGCONT)

    assert {("stack", 1), ("dump", 1)} == {(m.what, m.rank) for m in missing}
    assert {"no answer in time"} == {m.reason for m in missing}
    assert_explained(diagnose(tmp_path))


def test_time_holds_with_pages_of_a_stopped_job(monkeypatch, job, tmp_path):
    """
    The server waits longer for a rank than we do for the server.
    """
    pytest.importorskip("requests")
    monkeypatch.setattr(server_module, "read_addresses", lambda _page: {})
    port, ranks = job
    ranks[1].send_signal(signal.SIGSTOP)
    try:
        missing = take(port, tmp_path, 2)
    finally:
        ranks[1].send_signal(signal.SIGCONT)

    assert {"debug server"} == {m.what for m in missing}
    assert all("no answer in time" in m.reason for m in missing)


def test_a_killed_rank_costs_only_itself(job, tmp_path):
    """
    If a rank is gone, the others tell all the same.
    """
    port, ranks = job
    end(ranks[3])
    ranks[3].wait()

    missing = take(port, tmp_path, 30)

    assert {("stack", 3), ("dump", 3)} == {(m.what, m.rank) for m in missing}
    assert {"no connection: Connection refused"} == {m.reason for m in missing}
    assert 2 in diagnose(tmp_path).verdict.ranks
    assert 4 == read_dumps(tmp_path).world_size


def test_without_pyspy(tmp_path):
    """
    Where the job has no py-spy, the processes tell their stacks themselves.
    """
    output = tmp_path / "out"
    os.mkfifo(tmp_path / "shard")
    with hanging_job(tmp_path, os.fspath(tmp_path)) as (port, _):
        missing = take(port, output, 30)

    assert not missing
    assert_explained(diagnose(output))
    assert ["stacks-rank2.txt"] == [f.name for f in output.glob("*2.txt")]


def test_a_rank_that_holds_the_interpreter_lock(tmp_path):
    """
    It cannot tell its own stack, but what it recorded; so it is found.
    """
    output = tmp_path / "out"
    with hanging_job(tmp_path, os.fspath(tmp_path)) as (port, _):
        missing = take(port, output, 12)

    assert {("stack", 2)} == {(m.what, m.rank) for m in missing}
    assert missing[0].reason.endswith("no answer in time")
    verdict = diagnose(output).verdict
    assert Cause.RANK_NOT_ARRIVED == verdict.cause
    assert (2,) == verdict.ranks
    assert "all_reduce" == verdict.collective.op
