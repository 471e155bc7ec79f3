"""
Who left the usual order, if ranks wait for each other in a circle.
"""

from __future__ import annotations

from collections import Counter

import pytest

from distdebug.findings import Cause
from distdebug.flight_recorder import analyze_dumps
from distdebug.testing import SimulatedJob


ATTENTION, EXPERTS, GRADIENTS, LOSS = 10, 20, 30, 40
EVALUATION = 50


def step(rank, number=0):
    """
    Operation, group, and line of each call of a step of eight ranks: experts
    in fours, in pairs of tensors, and copies of both.
    """
    layer = [
        ("all_reduce", f"tp{rank // 2}", ATTENTION),
        ("all_to_all", f"ep{rank // 4}", EXPERTS),
        ("all_to_all", f"ep{rank // 4}", EXPERTS + 2),
    ]
    end = [("all_reduce", f"dp{rank % 4}", GRADIENTS)]
    if number % 3 == 2:
        end.append(("all_reduce", "world", LOSS))
    return layer * 2 + end


def loops(steps=5):
    """
    What each rank does, step by step.
    """
    return {r: [step(r, n) for n in range(steps)] for r in range(8)}


def run(todo, *, backend="nccl", with_stacks=True):
    """
    Let all ranks go on until nobody can.
    """
    job = SimulatedJob(8, backend=backend)
    left = {r: [call for one in todo[r] for call in one] for r in todo}
    names = {call[1] for r in left for call in left[r]} - {"world"}
    groups = {
        name: job.new_group(
            [r for r in left if any(c[1] == name for c in left[r])], name[:2]
        )
        for name in sorted(names)
    }
    groups["world"] = job.world
    count, entered, waits = Counter(), Counter(), dict.fromkeys(left)
    while free := [
        r
        for r in left
        if left[r]
        and (
            waits[r] is None
            or entered[waits[r]] == len(groups[waits[r][0]].ranks)
        )
    ]:
        for r in free:
            op, name, line = left[r].pop(0)
            stack = [("train", "train.py", line)]
            job.collective(
                op,
                groups[name],
                ranks=[r],
                stack=stack if with_stacks else None,
            )
            count[r, name] += 1
            waits[r] = name, count[r, name]
            entered[waits[r]] += 1
    return job


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

    report = analyze_dumps(dumps_of(run(todo, backend=backend)))
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
            calls[:] = [(op, name, ATTENTION) for op, name, _ in calls]
    calls = todo[culprit][4]
    calls[0], calls[1] = calls[1], calls[0]

    verdict = analyze_dumps(dumps_of(run(todo))).verdict

    assert (Cause.GROUP_ORDER_DEADLOCK, (culprit,), "likely") == (
        verdict.cause,
        verdict.ranks,
        verdict.confidence,
    )
    assert "left the order of the others: " in verdict.summary


@pytest.mark.parametrize("with_stacks", [True, False])
@pytest.mark.parametrize("culprits", [(5,), (2, 3), (0, 1, 2, 3)])
def test_left_loop(dumps_of, culprits, with_stacks):
    """
    Who evaluates while all others begin another step has left out a call, if
    somebody waits there for it; without stacks it only left the order.
    """
    todo = loops(6)
    for r in todo:
        todo[r][5 - (r in culprits) :] = [
            *([] if r in culprits else [step(r, 5)]),
            [("all_gather", "world", EVALUATION)],
        ]
    is_skipped = with_stacks and len(culprits) == 1

    verdict = analyze_dumps(
        dumps_of(run(todo, with_stacks=with_stacks))
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
            [("all_gather", "world", EVALUATION)],
        ]

    verdict = analyze_dumps(dumps_of(run(todo))).verdict

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

    verdict = analyze_dumps(dumps_of(run(todo))).verdict

    assert (Cause.GROUP_ORDER_DEADLOCK, (0, 1)) == (
        verdict.cause,
        verdict.ranks,
    )
