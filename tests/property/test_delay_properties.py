"""
Slow ranks of simulated jobs are named, and no others.
"""

from __future__ import annotations

import random

import pytest

from tests.delays import KINDS, dumps_of, judge, make_plan

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
