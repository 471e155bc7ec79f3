"""
Waits that Gloo does not record.
"""

from __future__ import annotations

import json

import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadStack,
    stacks_to_json,
)
from distdebug.testing import SimulatedJob, make_dumps


TORCH = "torch/distributed/distributed_c10d.py"
BARRIER = (("monitored_barrier", TORCH, 5435), ("main", "train.py", 37))
RECV = (("recv", TORCH, 2799), ("main", "train.py", 59))
QUEUE = (
    ("wait", "/usr/lib/python3.11/threading.py", 327),
    ("get", "/usr/lib/python3.11/queue.py", 171),
    ("main", "train.py", 36),
)
LOCK = (
    ("acquire", "/usr/lib/python3.11/threading.py", 180),
    ("refresh", "train.py", 44),
)
SAVING = (
    ("save", "torch/serialization.py", 966),
    ("checkpoint", "train.py", 88),
)
COMPUTING = (("weigh", "train.py", 90),)
TIMED_OUT = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
    "unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation"
)


@pytest.fixture(name="job")
def _job(tmp_path, write_side):
    """
    A job of four whose last call completed so many seconds before its dumps.
    """

    def write(
        stacks,
        silent_s,
        others="request",
        everybody=False,
        late=None,
        **of_rank_3,
    ):
        job = SimulatedJob(4)
        for _ in range(40):
            job.collective("all_reduce", late=late)
            job.wait(1)
        job.wait(silent_s - 1)
        make_dumps(tmp_path, job)
        written = max(r.created for r in job.records[0]) + silent_s
        for rank, stack in enumerate(stacks):
            more = {"reason": others, "error": ""}
            if rank == 3 or everybody:
                more |= of_rank_3
            dump = f"nccl_trace_rank_{rank}"
            write_side(
                tmp_path, rank, *stack, written=written, dump=dump, **more
            )
        return diagnose(tmp_path)

    return write


@pytest.mark.parametrize("call", [BARRIER, RECV])
def test_waits_unrecorded(job, call):
    """
    A rank that is elsewhere while the others wait in an unrecorded call is
    named, with the time since the last record.
    """
    verdict = job([call] * 3 + [QUEUE], 20).verdict

    assert (Cause.QUEUE_WAIT, (3,)) == (verdict.cause, verdict.ranks)
    assert "no call is on record for 20 s" in verdict.summary


def test_victims(job):
    """
    The ranks that wait there are victims.
    """
    assert (0, 1, 2) == job([RECV] * 3 + [QUEUE], 20).victims


@pytest.mark.parametrize("silent_s", [0.5, 1.8, 4.0])
def test_short_silence(job, silent_s):
    """
    A silence that is no longer than usual, or short, is none.
    """
    verdict = job([RECV] * 3 + [QUEUE], silent_s).verdict

    assert Cause.HEALTHY is verdict.cause
    assert "on record" not in verdict.summary


def test_nobody_waits(job):
    """
    If no rank is seen to wait for others, the job may be healthy, which is
    only possible.
    """
    verdict = job([COMPUTING] * 4, 20).verdict

    assert (Cause.HEALTHY, "possible") == (verdict.cause, verdict.confidence)
    assert "no call is on record for 20 s" in verdict.summary
    assert "distdebug stacks" in verdict.remedy


def test_all_locked(job):
    """
    If all ranks wait for something of their own for longer than healthy jobs
    do, that is reported, although no rank waits for others.
    """
    verdict = job([LOCK] * 4, 20).verdict

    assert (Cause.LOCK_DEADLOCK, (0, 1, 2, 3)) == (
        verdict.cause,
        verdict.ranks,
    )
    assert "possible" == verdict.confidence
    assert "refresh" == verdict.location.function
    assert "no call is on record for 20 s" in verdict.summary


def test_ended(job, tmp_path):
    """
    A rank without a process is at fault, also if all others poll for a file.
    """
    nap = StackFrame("poll", "train.py", 62)
    thread = ThreadStack(
        name="MainThread",
        frames=(nap,),
        is_main=True,
        system_call=SystemCall(name="clock_nanosleep"),
    )
    job([LOCK] * 3, 20)
    (tmp_path / "nccl_trace_rank_3").unlink()
    for rank in range(3):
        seen = ProcessStacks(
            pid=100 + rank,
            rank=rank,
            source="",
            threads=(thread,),
            absent_peers=(3,),
        )
        path = tmp_path / f"pyspy_node_{100 + rank}.json"
        path.write_text(stacks_to_json(seen))

    verdict = diagnose(tmp_path).verdict

    assert (Cause.DEAD, (3,), "likely") == (
        verdict.cause,
        verdict.ranks,
        verdict.confidence,
    )
    assert "; no call is on record for 20 s" in verdict.summary


def test_all_pause(job):
    """
    If all ranks do what takes healthy jobs long, the job may be healthy, and
    the summary has what they do.
    """
    verdict = job([SAVING] * 4, 20).verdict

    assert (Cause.HEALTHY, "possible") == (verdict.cause, verdict.confidence)
    assert "in checkpoint (train.py:88)" in verdict.summary


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("SIGTERM", Cause.HEALTHY), ("request", Cause.NETWORK_FAILURE)],
)
def test_lost_to_signal(job, reason, expected):
    """
    A rank that lost its peers because a signal ended them adds nothing.
    """
    lost = "RuntimeError: [gloo/x.cc] Connection closed by peer [::1]"

    verdict = job(
        [RECV] * 4, 0.5, others=reason, error=lost, reason="exception"
    ).verdict

    assert expected is verdict.cause


def test_all_failed(job):
    """
    If all failed, their lines are reported, and no other rank is suspected.
    """
    send = (("send", TORCH, 2753), ("main", "train.py", 61))

    verdict = job(
        [RECV, RECV, send, send],
        20,
        others="exception",
        error=TIMED_OUT,
        everybody=True,
    ).verdict

    assert Cause.COLLECTIVE_TIMEOUT is verdict.cause
    assert (
        "at main (train.py:59) (ranks 0-1), main (train.py:61) (ranks 2-3)"
        in verdict.summary
    )
    assert "compare the lines" in verdict.remedy


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ({}, (Cause.RANK_CRASHED, (2, 3))),
        # Who left the others by itself told so.
        ({"reason": "exit"}, (Cause.NETWORK_FAILURE, ())),
        ({"error": "ValueError: x"}, (Cause.RANK_CRASHED, (2,))),
    ],
    ids=["killed", "ended", "failed"],
)
def test_killed(job, tmp_path, started, expected):
    """
    A rank that was killed left no dump; the others failed because of that.
    """
    lost = "RuntimeError: [gloo/x.cc] Connection closed by peer [::1]"
    job([RECV] * 4, 0.5, error=lost, reason="exception", everybody=True)
    for rank in (2, 3):
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
        path = tmp_path / f"nccl_trace_rank_{rank}.sidecar.json"
        told = json.loads(path.read_text())
        told |= {"reason": "start", "error": "", "dump": "", "threads": {}}
        path.write_text(json.dumps(told | started))

    verdict = diagnose(tmp_path).verdict

    assert expected == (verdict.cause, verdict.ranks)
    if not started:
        assert "likely" == verdict.confidence
        assert verdict.summary.startswith(
            "ranks 2-3 left no dump, and all others lost them; ranks 0-1 "
            "failed in calls that no dump shows (RuntimeError: "
        )
        assert "exit of these ranks" in verdict.remedy


def test_slow_before(job):
    """
    That a rank was slow before explains no failure.
    """
    found = job(
        [RECV] * 4, 20, late={1: 0.5}, error=TIMED_OUT, reason="exception"
    ).findings

    assert [Cause.COLLECTIVE_TIMEOUT, Cause.STRAGGLER] == [
        f.cause for f in found
    ]


def test_slow_and_silent(job):
    """
    Nor does it explain that nothing goes on.
    """
    verdict = job([RECV] * 3 + [QUEUE], 20, late={1: 0.5}).verdict

    assert (Cause.QUEUE_WAIT, (3,)) == (verdict.cause, verdict.ranks)


def test_failed(job):
    """
    A job that died of a call that no dump shows was not healthy.
    """
    verdict = job([RECV] * 4, 20, error=TIMED_OUT, reason="exception").verdict

    assert Cause.COLLECTIVE_TIMEOUT is verdict.cause
    assert verdict.summary.startswith("rank 3 failed in calls that no dump")
    assert "at main (train.py:59)" in verdict.summary
    assert () == verdict.ranks
