"""
Slow ranks of simulated jobs are named, and no others.
"""

from __future__ import annotations

import random

import pytest

from tests.delays import KINDS, Plan, dumps_of, judge, make_plan

from distdebug.causes import Cause
from distdebug.flight_recorder import analyze_dumps


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_delays(kind, seed):
    """
    Whatever the clocks, the watchdogs, and the jitter, a rank is blamed only if
    it is slow; and it is, where that costs a tenth of the time.
    """
    chance = random.Random(f"{kind} {seed}")
    plan, cost = make_plan(kind, 32, chance)
    plan.is_hidden |= cost < 0.1

    found = analyze_dumps(dumps_of(plan, chance)).findings

    assert judge(plan, found) == ""


@pytest.mark.parametrize(
    ("turns", "named"),
    [
        ([5, 2, 9, 5, 12, 7, 5], set()),
        ([5, 5, 5, 2, 5, 5, 5], {5}),
    ],
)
def test_turns(turns, named):
    """
    Who is slow for three steps at a time had one turn, and not three; by chance a
    rank has more turns than others.
    """
    plan = Plan(world=16, tp=2, per_node=4, steps=21, step_s=0.2)
    plan.on_host = lambda r, step, call: (
        0.08 if call == 0 and turns[step // 3] == r else 0.0
    )

    found = analyze_dumps(dumps_of(plan, random.Random(1))).findings

    slow = [f for f in found if f.cause is Cause.STRAGGLER]
    assert {rank for finding in slow for rank in finding.ranks} == named
