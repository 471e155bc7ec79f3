"""
Which call a rank would have entered next, if several wait for it.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder import analyze_dumps
from distdebug.testing import SimulatedJob


TENSOR, REPLICAS, STAGES = 2, 2, 2
LAYERS, MICRO_BATCHES = 2, 2
# Every rank makes that many calls in a step.
CALLS = MICRO_BATCHES * 2 * (LAYERS * 2 + 1) + 2


class Step(NamedTuple):
    """
    One call of a training loop; *peer* is for sends and receives.
    """

    op: str
    group: str
    peer: int = -1


def place(rank):
    """
    Which part of the tensors, which replica, and which stage.
    """
    rest, part = divmod(rank, TENSOR)
    stage, replica = divmod(rest, REPLICAS)
    return part, replica, stage


def loop_of(rank):
    """
    One training step of a model in pieces, layers, stages, and copies.
    """
    part, replica, stage = place(rank)
    tensor, copies = f"tp{replica}{stage}", f"dp{part}{stage}"
    pipe, peer = f"pp{part}{replica}", (rank + 4) % 8
    layers = [
        Step("all_gather", tensor),
        Step("reduce_scatter", tensor),
    ] * LAYERS
    ahead = Step("send" if stage == 0 else "recv", pipe, peer)
    back = Step("recv" if stage == 0 else "send", pipe, peer)
    once = [*layers, ahead, *layers, back]
    if stage:
        once = [ahead, *layers, *layers, back]
    end = [Step("all_reduce", copies), Step("all_reduce", "world")]
    return once * MICRO_BATCHES + end


class Training:
    """
    Eight ranks that get as far as they can until one of them stops.
    """

    def __init__(self, culprit, last, steps=3, describe=str):
        self.job = SimulatedJob(8)
        self.loops = [loop_of(rank) * steps for rank in range(8)]
        self.loops[culprit] = self.loops[culprit][:last]
        members = {}
        for rank in range(8):
            for step in self.loops[rank]:
                members.setdefault(step.group, set()).add(rank)
        self.members = members
        self.groups = {
            name: self.job.new_group(sorted(ranks), describe(name))
            for name, ranks in sorted(members.items())
        }
        self.entered = Counter()
        self.count = Counter()

    def run(self):
        """
        Let everybody go on until nobody can.
        """
        waits = dict.fromkeys(range(8))
        while True:
            free = [
                rank
                for rank, key in waits.items()
                if self.loops[rank] and (key is None or self._is_met(key))
            ]
            if not free:
                return self.job
            for rank in free:
                waits[rank] = self._enter(rank, self.loops[rank].pop(0))

    def _enter(self, rank, step):
        group = self.groups[step.group]
        if step.peer < 0:
            self.job.collective(step.op, group, ranks=[rank])
            what = step.group
        elif step.op == "send":
            self.job.send(rank, step.peer, group)
            what = (rank, step.peer)
        else:
            self.job.recv(rank, step.peer, group)
            what = (step.peer, rank)
        self.count[rank, what] += 1
        key = (what, self.count[rank, what])
        self.entered[key] += 1
        return key

    def _is_met(self, key):
        what, _ = key
        size = 2 if isinstance(what, tuple) else len(self.members[what])
        return self.entered[key] == size


@pytest.mark.parametrize("culprit", [0, 3, 6])
@pytest.mark.parametrize("at", range(CALLS))
def test_place_in_loop(dumps_of, culprit, at):
    """
    Of all calls that wait for a rank, that one is named which it would have
    entered, wherever in its loop it is.
    """
    step = loop_of(culprit)[at]
    job = Training(culprit, 2 * CALLS + at).run()

    verdict = analyze_dumps(dumps_of(job)).verdict

    assert (Cause.RANK_NOT_ARRIVED, (culprit,)) == (
        verdict.cause,
        verdict.ranks,
    )
    assert step.group == verdict.group.desc
    assert (step.peer >= 0) == verdict.collective.p2p


@pytest.mark.parametrize("culprit", [0, 3, 6])
@pytest.mark.parametrize("at", range(CALLS))
def test_lost_in_loop(dumps_of, culprit, at):
    """
    Of a rank that left no dump, ranks in the same position tell which call it
    would have entered.
    """
    step = loop_of(culprit)[at]
    training = Training(culprit, 2 * CALLS + at, describe=lambda x: x[:2])
    dumps = dumps_of(training.run(), missing=[culprit])

    verdict = analyze_dumps(dumps).verdict

    assert (Cause.RANK_CRASHED, (culprit,)) == (verdict.cause, verdict.ranks)
    assert training.groups[step.group].name == verdict.group.name
    assert (step.peer >= 0) == verdict.collective.p2p


def test_lost_among_nameless_groups(dumps_of):
    """
    Where groups have no descriptions, what is called most often is due.
    """
    job = SimulatedJob(4)
    seldom, often = job.new_group([0, 2]), job.new_group([2, 3])
    for _ in range(3):
        job.collective("all_reduce", often)
    job.collective("all_reduce", seldom, ranks=[0])
    job.collective("all_reduce", often, ranks=[3])

    verdict = analyze_dumps(dumps_of(job, missing=[2])).verdict

    assert often.name == verdict.group.name


def test_other_end(dumps_of):
    """
    Of a transfer, its other end is what is missing.
    """
    job = SimulatedJob(2)
    job.recv(1, 0, job.new_group([0, 1], "pp"))

    first, *_ = analyze_dumps(dumps_of(job)).findings

    assert first.summary.startswith(
        "rank 0 never entered the send to rank 1 in group 'pp' (1 rank waits"
    )
