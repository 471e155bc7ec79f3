"""
Faults of simulated schedules are named, and no others.
"""

from __future__ import annotations

import random

import pytest

from tests.schedules import EDITS, TWO, findings_of, judge, make_case


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    # A call too many after which nobody calls anything is as if all the others
    # had stopped.
    "kinds",
    ["", *(x for x in [*EDITS, *TWO] if "extra" not in x)],
)
def test_schedules(kinds, seed):
    """
    Whatever one rank does otherwise than the others, it is named.
    """
    chance = random.Random(f"{kinds} {seed}")
    case = make_case([x for x in kinds.split("+") if x], 16, chance)

    assert judge(case, findings_of(case)) == ""
