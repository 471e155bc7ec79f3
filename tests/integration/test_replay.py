"""
Programs that were written from dumps, and hang on Gloo as the jobs did.
"""

from __future__ import annotations

import re

import pytest

import distdebug

from distdebug.__main__ import main
from distdebug.causes import Cause
from distdebug.demo import run_replay
from distdebug.testing import SimulatedJob, make_dumps


pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(name="replay")
def _replay(tmp_path):
    """
    Writes a program from the dumps of a job, runs it, and diagnoses that.
    """

    def replay(job):
        make_dumps(tmp_path / "job", job)
        program = tmp_path / "repro.py"
        made = distdebug.write_replay(tmp_path / "job", program)
        verdict = run_replay(program, len(made.ranks), tell=print).verdict
        named = tuple(made.ranks[rank] for rank in verdict.ranks)
        return made, verdict, named

    return replay


def training(world_size: int = 8):
    """
    Pairs in tensor parallelism, and fours in data parallelism.
    """
    job = SimulatedJob(world_size)
    tp = [job.new_group([n, n + 1]) for n in range(0, world_size, 2)]
    dp = [job.new_group(range(n, world_size, 2)) for n in (0, 1)]
    for _ in range(5):
        step(job, tp, dp)
    return job, tp, dp


def step(job, tp, dp):
    """
    Make one step.
    """
    for group in tp:
        job.collective("_all_gather_base", group)
    for group in dp:
        job.collective("all_reduce", group, sizes=((70_000,),))
    job.collective("broadcast", sizes=((8,),))


def not_arrived():
    """
    A rank does not come to a call of its group.
    """
    job, tp, dp = training()
    for group in tp:
        job.collective("_all_gather_base", group)
    job.collective("all_reduce", dp[0])
    job.collective("all_reduce", dp[1], ranks=[1, 3, 7])
    return job, Cause.RANK_NOT_ARRIVED, (5,)


def other_operation():
    """
    A rank makes another operation than the others.
    """
    job, *_ = training()
    job.collective("all_reduce", ranks=[0, 1, 2, 3, 4, 6, 7])
    job.collective("_all_gather_base", ranks=[5])
    return job, Cause.TYPE_MISMATCH, (5,)


def other_size():
    """
    A rank passes one element more.
    """
    job, *_ = training()
    job.collective("all_reduce", ranks=range(7), sizes=((90_000,),))
    job.collective("all_reduce", ranks=[7], sizes=((90_001,),))
    return job, Cause.SIZE_MISMATCH, (7,)


def other_dtype():
    """
    A rank passes another data type.
    """
    job, *_ = training()
    job.collective("all_reduce", ranks=range(7))
    job.collective("all_reduce", ranks=[7], dtype="Half")
    return job, Cause.DTYPE_MISMATCH, (7,)


def skipped():
    """
    A rank leaves out a call, and goes on.
    """
    job, tp, dp = training()
    others = [r for r in range(8) if r != 3]
    job.collective("reduce", ranks=others)
    for _ in range(2):
        step(job, tp, dp)
    return job, Cause.SKIPPED_COLLECTIVE, (3,)


def extra():
    """
    A rank makes a call that the others do not make, and goes on.
    """
    job, tp, dp = training()
    job.collective("reduce", ranks=[3])
    for _ in range(2):
        step(job, tp, dp)
    return job, Cause.EXTRA_COLLECTIVE, (3,)


def circle():
    """
    Two ranks use two groups in the opposite order.
    """
    job, tp, dp = training(4)
    job.collective("_all_gather_base", tp[0], ranks=[1])
    job.collective("all_reduce", dp[0], ranks=[0])
    job.collective("_all_gather_base", tp[1], ranks=[2])
    job.collective("all_reduce", dp[1], ranks=[3])
    return job, Cause.GROUP_ORDER_DEADLOCK, (0, 3)


def receives():
    """
    All ranks receive before they send.
    """
    job = SimulatedJob(4)
    for _ in range(4):
        job.collective("all_reduce")
    for rank in range(4):
        job.recv((rank - 1) % 4, rank)
    return job, Cause.P2P_DEADLOCK, (0, 1, 2, 3)


@pytest.mark.parametrize(
    "make",
    [
        *(not_arrived, other_operation, other_size, other_dtype),
        *(skipped, extra, circle, receives),
    ],
)
def test_same_verdict(replay, make):
    """
    The program is short, takes few ranks, and gets the same verdict.
    """
    job, cause, ranks = make()

    made, verdict, named = replay(job)

    assert (cause, ranks) == (verdict.cause, named)
    assert len(made.text.splitlines()) <= 60
    assert len(made.ranks) <= 8


def test_command(tmp_path, capsys):
    """
    The command runs it, too, and leaves nothing but the program.
    """
    job, *_ = not_arrived()
    make_dumps(tmp_path / "job", job)
    program = tmp_path / "hang.py"

    status = main(
        ["replay", str(tmp_path / "job"), "-o", str(program), "--run"]
    )

    out, err = capsys.readouterr()
    here = re.search(r"(\d) is 5", program.read_text("utf-8"))[1]
    assert 1 == status
    assert out.startswith(f"rank {here} never entered all_reduce #")
    assert "ranks wrote a dump" in err
    assert {"job", "hang.py"} == {path.name for path in tmp_path.iterdir()}
