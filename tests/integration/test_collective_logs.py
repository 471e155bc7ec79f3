"""
Real jobs whose collectives fail, and what their logs tell.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys

from pathlib import Path

import pytest

from distdebug.causes import Cause
from distdebug.logs import collective_findings, read_collective_logs


torch = pytest.importorskip("torch")

PROGRAM = Path(__file__).parent / "programs" / "late_rank.py"
LIMIT_S = 120
RANKS = 4
CULPRIT = 2


def run_job(folder, kind, **environment):
    """
    Run a job until all of its ranks ended, the one to blame last.
    """
    job = subprocess.Popen(
        [sys.executable, PROGRAM, kind, folder, str(CULPRIT)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(RANKS),
            **environment,
        },
        start_new_session=True,
    )
    try:
        assert 0 == job.wait(LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def lost_neighbour(log):
    """
    Whether a rank that is not to blame saw a closed connection.
    """
    return log.name != f"rank{CULPRIT}.log" and (
        b"Connection closed by peer" in log.read_bytes()
    )


@pytest.mark.parametrize(
    ("kind", "environment", "cause"),
    [
        ("late", {}, Cause.RANK_NOT_ARRIVED),
        ("barrier", {}, Cause.RANK_NOT_ARRIVED),
        (
            "late",
            {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
            Cause.RANK_NOT_ARRIVED,
        ),
        (
            "operation",
            {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
            Cause.TYPE_MISMATCH,
        ),
        ("size", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, Cause.SIZE_MISMATCH),
        ("empty", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, Cause.TYPE_MISMATCH),
    ],
    ids=["late", "barrier", "checked", "operation", "size", "empty"],
)
def test_the_logs_of_a_real_job_name_the_rank(
    tmp_path, kind, environment, cause
):
    """
    Whatever it does, the rank to blame is found, and nobody else.

    A rank whose neighbour times out a moment before it sees a closed
    connection, just as the late one does: then no log tells the two apart, and
    the job runs again.
    """
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        run_job(folder, kind, **environment)
        if kind != "late" or not any(
            map(lost_neighbour, folder.glob("*.log"))
        ):
            break

    logs = read_collective_logs(sorted(folder.glob("*.log")))
    findings = collective_findings(logs)

    assert [(cause, (CULPRIT,))] == [(x.cause, x.ranks) for x in findings]
    assert all(Path(x.source).exists() for x in findings[0].evidence)


def run_store(folder, code):
    """
    Run something that fails, and keep what it prints.
    """
    log = folder / "store.log"
    with log.open("wb") as file:
        subprocess.run(
            [
                *(sys.executable, "-c"),
                (
                    "import datetime, torch.distributed as dist\n"
                    f"limit = datetime.timedelta(seconds=2)\n{code}"
                ),
            ],
            stdout=file,
            stderr=file,
            timeout=LIMIT_S,
        )
    return log


def test_a_store_that_waits_for_a_client_tells_how_many_came(tmp_path):
    """
    One of two is missing.
    """
    log = run_store(
        tmp_path, "dist.TCPStore('127.0.0.1', 0, 2, True, timeout=limit)"
    )

    (finding,) = collective_findings(read_collective_logs(log))

    assert Cause.RENDEZVOUS_TIMEOUT == finding.cause
    assert "1 of 2 processes joined" in finding.summary


def test_a_client_that_finds_no_store_tells_where_it_looked(tmp_path):
    """
    Nobody listens there.
    """
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        log = run_store(
            tmp_path,
            f"dist.TCPStore('127.0.0.1', {port}, 2, False, timeout=limit)",
        )

    (finding,) = collective_findings(read_collective_logs(log))

    assert Cause.RENDEZVOUS_TIMEOUT == finding.cause
    assert f"127.0.0.1:{port}" in finding.summary


def test_a_key_that_nobody_sets_is_told(tmp_path):
    """
    The store names it.
    """
    log = run_store(
        tmp_path,
        "store = dist.TCPStore('127.0.0.1', 0, 1, True, timeout=limit)\n"
        "store.get('weights_ready')",
    )

    (finding,) = collective_findings(read_collective_logs(log))

    assert Cause.RENDEZVOUS_TIMEOUT == finding.cause
    assert "waited for /weights_ready" in finding.summary
