"""
What Gloo does not record, and who waits there all the same.
"""

from __future__ import annotations

import json

import pytest

from distdebug import diagnose
from distdebug.diagnosis.hosts import HostView
from distdebug.diagnosis.unrecorded import without_waiting
from distdebug.findings import Cause, Finding
from distdebug.flight_recorder import Sidecar, write_sidecar
from distdebug.flight_recorder.sidecar import SidecarFrame
from distdebug.testing import SimulatedJob, make_dumps
from distdebug.waits import Wait


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
def _job(tmp_path):
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
            frames = tuple(SidecarFrame(*line) for line in stack)
            more = {"reason": others, "error": ""}
            if rank == 3 or everybody:
                more |= of_rank_3
            sidecar = Sidecar(
                path="",
                rank=rank,
                world_size=4,
                host="node1",
                pid=100 + rank,
                started=0.0,
                written=written,
                threads=(("MainThread", frames),),
                dump=f"nccl_trace_rank_{rank}",
                **more,
            )
            write_sidecar(sidecar, tmp_path / f"nccl_trace_rank_{rank}")
        return diagnose(tmp_path)

    return write


@pytest.mark.parametrize("call", [BARRIER, RECV])
def test_waits_unrecorded(job, call):
    """
    Who is elsewhere while the others wait in a call that no dump shows is
    named, and for how long nothing was recorded.
    """
    verdict = job([call] * 3 + [QUEUE], 20).verdict

    assert (Cause.QUEUE_WAIT, (3,)) == (verdict.cause, verdict.ranks)
    assert "no call is on record for 20 s" in verdict.summary


def test_victims(job):
    """
    Who waits there merely waits.
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
    Where nobody is seen to wait for others, the job may be healthy, and that
    is only possible.
    """
    verdict = job([COMPUTING] * 4, 20).verdict

    assert (Cause.HEALTHY, "possible") == (verdict.cause, verdict.confidence)
    assert "no call is on record for 20 s" in verdict.summary
    assert "distdebug stacks" in verdict.remedy


def test_all_locked(job):
    """
    Where all ranks wait for something of their own that healthy jobs do not
    wait for so long, that is told, although nobody waits for others.
    """
    verdict = job([LOCK] * 4, 20).verdict

    assert (Cause.LOCK_DEADLOCK, (0, 1, 2, 3)) == (
        verdict.cause,
        verdict.ranks,
    )
    assert "possible" == verdict.confidence
    assert "refresh" == verdict.location.function
    assert "no call is on record for 20 s" in verdict.summary


def test_all_pause(job):
    """
    Where all ranks do what takes healthy jobs long, the job may be healthy,
    and it is told what they do.
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
    Who lost its peers because a signal ended them tells nothing else.
    """
    lost = "RuntimeError: [gloo/x.cc] Connection closed by peer [::1]"

    verdict = job(
        [RECV] * 4, 0.5, others=reason, error=lost, reason="exception"
    ).verdict

    assert expected is verdict.cause


def test_all_failed(job):
    """
    If all failed, it is told at which lines, and nobody else is to be looked
    at.
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
    Who was killed left no dump; the others failed because of that.
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
            "ranks 2-3 left no dump, and all others lost them: ranks 0-1 "
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


def view(rank, cause):
    """
    A rank that does this.
    """
    return HostView(rank=rank, cause=cause)


def absent(*ranks):
    """
    Ranks that did not arrive.
    """
    return Finding(
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=ranks,
        summary="as the dumps say",
        confidence="certain",
    )


def wait(group, op, seq, waiting, awaited):
    """
    A stuck collective.
    """
    return Wait(
        group=group,
        op=op,
        seq=seq,
        p2p=False,
        waiting=waiting,
        awaited=awaited,
    )


WAITS = [
    wait("1", "all_reduce", 29, (4,), (5,)),
    wait("2", "all_gather", 3, (3,), (1,)),
]
WAITING = [view(0, Cause.COLLECTIVE_WAIT), view(5, Cause.COLLECTIVE_WAIT)]


def test_only_who_waits_for_nobody():
    """
    Of those that did not arrive, who waits in what is not recorded is left
    out, and the call is one that waits for who is left.
    """
    views = {v.rank: v for v in [*WAITING, view(1, Cause.LOCK_DEADLOCK)]}

    found = without_waiting(absent(0, 1, 5), views, WAITS)

    assert ((1,), "likely") == (found.ranks, found.confidence)
    assert (
        "rank 1 never entered all_gather #3 of group '2' "
        "(ranks 0,5 wait elsewhere, not on record)" == found.summary
    )
    assert ("2", (1, 3)) == (found.group.name, found.group.ranks)
    assert ("all_gather", 3) == (found.collective.op, found.collective.seq)


def test_no_call_waits_for_it():
    """
    It may be that no recorded call waits for who is left.
    """
    views = {v.rank: v for v in WAITING}

    found = without_waiting(absent(0, 5, 7), views, WAITS)

    assert (7,) == found.ranks
    assert found.summary.startswith("rank 7 entered no call (ranks 0,5 wait")


def test_all_or_none_wait():
    """
    Nothing is changed where all of them wait, or none.
    """
    views = {v.rank: v for v in WAITING}

    for finding in (absent(0, 5), absent(1, 2)):
        assert finding == without_waiting(finding, views, WAITS)
