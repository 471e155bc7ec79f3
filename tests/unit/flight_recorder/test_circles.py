"""
Where the waiting begins: who is to blame, and in which call, if ranks wait for
each other, in several places or in a circle.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from distdebug.causes import Cause
from distdebug.flight_recorder import analyze_dumps
from distdebug.testing import SimulatedJob


ATTENTION, EXPERTS, GRADIENTS, LOSS = 10, 20, 30, 40
EVALUATION = 50


class Step(NamedTuple):
    """
    One call of a training loop; *peer* is for sends and receives.
    """

    op: str
    group: str
    line: int = 1
    peer: int = -1


def run(todo, *, backend="nccl", with_stacks=True, describe=lambda x: x[:2]):
    """
    Let all ranks do what is to be done, until none can go on.
    """
    job = SimulatedJob(len(todo), backend=backend)
    left = {rank: list(steps) for rank, steps in todo.items()}
    members = {}
    for rank, steps in left.items():
        for step in steps:
            members.setdefault(step.group, []).append(rank)
    groups = {
        name: job.new_group(sorted(set(ranks)), describe(name))
        for name, ranks in sorted(members.items())
        if name != "world"
    }
    groups["world"] = job.world
    count, entered, waits = Counter(), Counter(), dict.fromkeys(left)

    def is_met(key):
        what, _ = key
        size = 2 if isinstance(what, tuple) else len(groups[what].ranks)
        return entered[key] == size

    while free := [
        r for r in left if left[r] and (not waits[r] or is_met(waits[r]))
    ]:
        for r in free:
            step = left[r].pop(0)
            group, what = groups[step.group], step.group
            if step.peer < 0:
                stack = [("train", "train.py", step.line)]
                job.collective(
                    step.op,
                    group,
                    ranks=[r],
                    stack=stack if with_stacks else None,
                )
            else:
                getattr(job, step.op)(r, step.peer, group)
                ends = (r, step.peer)
                what = ends if step.op == "send" else ends[::-1]
            count[r, what] += 1
            waits[r] = what, count[r, what]
            entered[waits[r]] += 1
    return job


def joined(steps):
    """
    What each rank does, from what it does step by step.
    """
    return {r: [call for one in steps[r] for call in one] for r in steps}


def found(dumps):
    """
    All causes and ranks.
    """
    return [(f.cause, f.ranks) for f in analyze_dumps(dumps).findings]


class TestRoots:
    def test_two_circles(self, dumps_of):
        """
        Circles that have nothing in common are kept apart.
        """
        job = SimulatedJob(4)
        for pair in ([0, 1], [2, 3]):
            a, b = (job.new_group(pair, name) for name in "ab")
            job.collective("all_reduce", a, ranks=pair[:1])
            job.collective("all_reduce", b, ranks=pair[1:])

        assert [
            (Cause.GROUP_ORDER_DEADLOCK, (0, 1)),
            (Cause.GROUP_ORDER_DEADLOCK, (2, 3)),
        ] == found(dumps_of(job))

    def test_circle_of_many(self, dumps_of):
        """
        A ring of receives names every rank in it, and who waits for the ring
        is a victim.
        """
        job = SimulatedJob(4)
        for rank in range(3):
            job.recv(rank, (rank + 1) % 3)
        job.recv(3, 0)

        report = analyze_dumps(dumps_of(job))

        summary = report.verdict.summary
        assert (Cause.P2P_DEADLOCK, (0, 1, 2)) == (
            report.verdict.cause,
            report.verdict.ranks,
        )
        assert (3,) == report.victims
        assert "wait for each other: rank 0 in recv #1" in summary

    def test_absent_and_circle(self, dumps_of):
        """
        Who waits in a circle and who is absent elsewhere are two findings.
        """
        job = SimulatedJob(4)
        job.recv(0, 1)
        job.recv(1, 0)
        job.collective("all_reduce", job.new_group([2, 3], "x"), ranks=[2])

        assert [
            (Cause.P2P_DEADLOCK, (0, 1)),
            (Cause.RANK_NOT_ARRIVED, (3,)),
        ] == found(dumps_of(job))

    def test_lost_dump_in_circle(self, dumps_of):
        """
        A member without a dump breaks the circle: what it does is unknown.
        """
        job = SimulatedJob(3)
        for rank in range(3):
            job.recv(rank, (rank + 1) % 3)

        assert [(Cause.RANK_CRASHED, (2,))] == found(
            dumps_of(job, missing=[2])
        )

    def test_crash_of_a_node(self, dumps_of):
        """
        Ranks that are gone together are one finding.
        """
        job = SimulatedJob(8)
        pairs = [job.new_group([r, r + 4], "dp") for r in range(4)]
        for pair in pairs:
            job.collective("all_reduce", pair)
        for pair in pairs:
            job.collective("all_reduce", pair, ranks=pair.ranks[:1])

        assert [(Cause.RANK_CRASHED, (4, 5, 6, 7))] == found(
            dumps_of(job, missing=[4, 5, 6, 7])
        )

    def test_unused_group(self, dumps_of):
        """
        A group that was never used says nothing about who is gone.
        """
        job = SimulatedJob(4)
        job.new_group([1, 2], "unused")
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 3])

        assert [(Cause.RANK_CRASHED, (1, 2))] == found(
            dumps_of(job, missing=[1, 2])
        )

    def test_elsewhere(self, dumps_of):
        """
        A rank that is gone, and that no proven root touches, stays a suspect.
        """
        job = SimulatedJob(4)
        for name, ranks in (("left", [0, 1]), ("right", [2, 3])):
            group = job.new_group(ranks, name)
            job.collective("all_reduce", group, ranks=ranks[:1])

        assert [
            (Cause.RANK_NOT_ARRIVED, (1,)),
            (Cause.RANK_CRASHED, (3,)),
        ] == found(dumps_of(job, missing=[3]))


class TestOddOneOut:
    def stray(self, *descs):
        """
        Rank 3 of a mesh of 2 x 2 goes into a barrier of the world, while all
        others step on.
        """
        job = SimulatedJob(4)
        tp, dp = descs
        across = [job.new_group(ranks, tp) for ranks in ([0, 1], [2, 3])]
        along = [job.new_group(ranks, dp) for ranks in ([0, 2], [1, 3])]
        for group in (*across, *along) * 3:
            job.collective("all_reduce", group)
        job.collective("barrier", ranks=[3])
        job.collective("all_reduce", across[0])
        job.collective("all_reduce", across[1], ranks=[2])
        job.collective("all_reduce", along[0], ranks=[0])
        job.collective("all_reduce", along[1], ranks=[1])
        return job

    @pytest.mark.parametrize(
        "descs", [("mesh_tp", "mesh_dp"), ("undefined", "undefined")]
    )
    def test_one(self, dumps_of, descs):
        """
        The rank that contradicts all others left their order.
        """
        report = analyze_dumps(dumps_of(self.stray(*descs)))

        (finding,) = report.findings
        assert (Cause.GROUP_ORDER_DEADLOCK, (3,)) == (
            finding.cause,
            finding.ranks,
        )
        assert finding.summary.startswith(
            "rank 3 left the order of the others: "
        )
        assert "rank 3 in barrier #1 of group 'default_pg'" in finding.summary
        assert (0, 1, 2) == report.victims

    def test_one_against_one(self, dumps_of):
        """
        Of two ranks that contradict each other, neither is the odd one.
        """
        job = SimulatedJob(2)
        tp = job.new_group([0, 1], "mesh_tp")
        job.collective("barrier", ranks=[1])
        job.collective("all_reduce", tp, ranks=[0])

        assert [(Cause.GROUP_ORDER_DEADLOCK, (0, 1))] == found(dumps_of(job))

    def test_nameless_groups(self, dumps_of):
        """
        Groups without a description are not of one kind: that rank 2 called
        more in one than rank 0 in another contradicts nothing.
        """
        job = SimulatedJob(4)
        tp = job.new_group([0, 1], "mesh_tp")
        often, seldom = job.new_group([1, 2]), job.new_group([0, 3])
        for _ in range(5):
            job.collective("all_reduce", often)
        job.collective("all_reduce", seldom)
        job.collective("barrier", ranks=[0, 3])
        job.collective("all_reduce", tp, ranks=[1])
        job.collective("all_reduce", often, ranks=[2])

        assert [(Cause.GROUP_ORDER_DEADLOCK, (0, 1, 2))] == found(
            dumps_of(job)
        )

    def test_two_against_two(self, dumps_of):
        """
        Where no single rank explains the circle, all are named.
        """
        job = SimulatedJob(4)
        a, b = (job.new_group(range(4), name) for name in "ab")
        job.collective("all_reduce", a, ranks=[0, 1])
        job.collective("all_reduce", b, ranks=[2, 3])

        dumps = dumps_of(job)

        assert [(Cause.GROUP_ORDER_DEADLOCK, (0, 1, 2, 3))] == found(dumps)
        assert (
            "ranks 0-3 wait for each other: ranks 0-1 in all_reduce #1 of "
            "group 'a', ranks 2-3 in all_reduce #1 of group 'b'"
            == analyze_dumps(dumps).verdict.summary
        )

    def test_large(self, dumps_of):
        """
        In a circle of very many not every two ranks are compared.
        """
        job = SimulatedJob(66)
        a, b = (job.new_group(range(66), name) for name in "ab")
        job.collective("all_reduce", a, ranks=[0])
        job.collective("all_reduce", b, ranks=range(1, 66))

        assert [(Cause.GROUP_ORDER_DEADLOCK, tuple(range(66)))] == found(
            dumps_of(job)
        )


def step(rank, number=0):
    """
    The calls of a step of eight ranks: experts in fours, in pairs of tensors,
    and copies of both.
    """
    layer = [
        Step("all_reduce", f"tp{rank // 2}", ATTENTION),
        Step("all_to_all", f"ep{rank // 4}", EXPERTS),
        Step("all_to_all", f"ep{rank // 4}", EXPERTS + 2),
    ]
    end = [Step("all_reduce", f"dp{rank % 4}", GRADIENTS)]
    if number % 3 == 2:
        end.append(Step("all_reduce", "world", LOSS))
    return layer * 2 + end


def loops(steps=5):
    """
    What each rank does, step by step.
    """
    return {r: [step(r, n) for n in range(steps)] for r in range(8)}


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("culprit", range(8))
@pytest.mark.parametrize("layer", [0, 1])
def test_skipped(dumps_of, culprit, layer, backend):
    """
    Who goes past the line of two calls has skipped them; its partner, which
    makes them, is a victim.
    """
    todo = loops()
    first = 3 * layer + 1
    del todo[culprit][3][first : first + 2]

    report = analyze_dumps(dumps_of(run(joined(todo), backend=backend)))
    verdict = report.verdict

    assert (Cause.SKIPPED_COLLECTIVE, (culprit,), "likely") == (
        verdict.cause,
        verdict.ranks,
        verdict.confidence,
    )
    assert ("ep", "all_to_all") == (verdict.group.desc, verdict.collective.op)
    assert f"rank {culprit} skipped all_to_all #" in verdict.summary
    assert culprit not in report.victims


@pytest.mark.parametrize("culprit", range(8))
def test_changed_order(dumps_of, culprit):
    """
    A line that makes both calls has made them in another order.
    """
    todo = loops()
    for r in todo:
        for calls in todo[r]:
            calls[:] = [Step(op, name, ATTENTION) for op, name, *_ in calls]
    calls = todo[culprit][4]
    calls[0], calls[1] = calls[1], calls[0]

    verdict = analyze_dumps(dumps_of(run(joined(todo)))).verdict

    assert (Cause.GROUP_ORDER_DEADLOCK, (culprit,), "likely") == (
        verdict.cause,
        verdict.ranks,
        verdict.confidence,
    )
    assert "left the order of the others: " in verdict.summary


@pytest.mark.parametrize("culprit", range(8))
def test_other_branch(dumps_of, culprit):
    """
    A usual call from a line of its own may come before the one that was due.
    """
    todo = loops()
    calls = todo[culprit][4]
    calls[:2] = [
        calls[1]._replace(line=EVALUATION),
        calls[0]._replace(line=EVALUATION + 1),
    ]

    verdict = analyze_dumps(dumps_of(run(joined(todo)))).verdict

    assert (Cause.GROUP_ORDER_DEADLOCK, (culprit,)) == (
        verdict.cause,
        verdict.ranks,
    )


@pytest.mark.parametrize("with_stacks", [True, False])
@pytest.mark.parametrize("culprits", [(5,), (2, 3), (0, 1, 2, 3)])
def test_left_loop(dumps_of, culprits, with_stacks):
    """
    Who evaluates while all others begin another step has left out a call, if
    another rank waits there for it; without stacks it only left the order.
    """
    todo = loops(6)
    for r in todo:
        todo[r][5 - (r in culprits) :] = [
            *([] if r in culprits else [step(r, 5)]),
            [Step("all_gather", "world", EVALUATION)],
        ]
    is_skipped = with_stacks and len(culprits) == 1

    verdict = analyze_dumps(
        dumps_of(run(joined(todo), with_stacks=with_stacks))
    ).verdict

    assert culprits == verdict.ranks
    assert verdict.cause is (
        Cause.SKIPPED_COLLECTIVE if is_skipped else Cause.GROUP_ORDER_DEADLOCK
    )


def test_stayed_in_loop(dumps_of):
    """
    If most ranks go on to something new, those that do as always are late.
    """
    todo = loops(6)
    for r in todo:
        todo[r][5:] = [
            *([step(r, 5)] if r in {4, 5} else []),
            [Step("all_gather", "world", EVALUATION)],
        ]

    verdict = analyze_dumps(dumps_of(run(joined(todo)))).verdict

    assert (Cause.GROUP_ORDER_DEADLOCK, (4, 5)) == (
        verdict.cause,
        verdict.ranks,
    )


def test_first_step(dumps_of):
    """
    Where nothing is usual yet, all that wait for each other are named.
    """
    todo = loops()
    del todo[1][0][1:3]

    verdict = analyze_dumps(dumps_of(run(joined(todo)))).verdict

    assert (Cause.GROUP_ORDER_DEADLOCK, (0, 1)) == (
        verdict.cause,
        verdict.ranks,
    )


TENSOR, REPLICAS = 2, 2
LAYERS, MICRO_BATCHES = 2, 2
# Every rank makes that many calls in a step.
CALLS = MICRO_BATCHES * 2 * (LAYERS * 2 + 1) + 2


def loop_of(rank):
    """
    One training step of a model in pieces, layers, stages, and copies.
    """
    rest, part = divmod(rank, TENSOR)
    stage, replica = divmod(rest, REPLICAS)
    tensor, copies = f"tp{replica}{stage}", f"dp{part}{stage}"
    pipe, peer = f"pp{part}{replica}", (rank + 4) % 8
    layers = [
        Step("all_gather", tensor),
        Step("reduce_scatter", tensor),
    ] * LAYERS
    ahead = Step("send" if stage == 0 else "recv", pipe, peer=peer)
    back = Step("recv" if stage == 0 else "send", pipe, peer=peer)
    once = [*layers, ahead, *layers, back]
    if stage:
        once = [ahead, *layers, *layers, back]
    end = [Step("all_reduce", copies), Step("all_reduce", "world")]
    return once * MICRO_BATCHES + end


@pytest.mark.parametrize("culprit", [0, 3, 6])
@pytest.mark.parametrize("at", range(CALLS))
@pytest.mark.parametrize("is_lost", [False, True])
def test_place_in_loop(dumps_of, culprit, at, is_lost):
    """
    Of all calls that wait for a rank, that one is named which it would have
    entered, wherever in its loop it is; if it left no dump, ranks in the same
    position tell which call that is.
    """
    due = loop_of(culprit)[at]
    todo = {r: loop_of(r) * 3 for r in range(8)}
    del todo[culprit][2 * CALLS + at :]
    job = run(
        todo, with_stacks=False, describe=lambda x: x[:2] if is_lost else x
    )
    dumps = dumps_of(job, missing=[culprit] if is_lost else [])

    verdict = analyze_dumps(dumps).verdict

    cause = Cause.RANK_CRASHED if is_lost else Cause.RANK_NOT_ARRIVED
    assert (cause, (culprit,)) == (verdict.cause, verdict.ranks)
    names = sorted({s.group for r in range(8) for s in loop_of(r)} - {"world"})
    number = 0 if due.group == "world" else 1 + names.index(due.group)
    assert str(number) == verdict.group.name
    assert (due.peer >= 0) == verdict.collective.p2p


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
        "rank 0 never entered the send to rank 1 in group 'pp'; 1 rank is"
    )
