"""
Is this still moving, with times that are made up?
"""

from __future__ import annotations

import pytest

from distdebug.errors import ConfigError
from distdebug.watching import ProgressSensor


def moved(times, **kwargs):
    """
    A sensor that saw a change at each of these times.
    """
    sensor = ProgressSensor(**kwargs)
    for time in times:
        sensor.update(time, time)
    return sensor


@pytest.mark.parametrize(
    ("times", "options", "limit_s"),
    [
        # The first change may take longer, but not for ever.
        ([0], {}, 600),
        # How long the start took does not make the limit higher.
        ([0, 500], {}, 60),
        # A job with quick steps is stuck after the floor, and not before.
        ([0, 1, 2], {}, 60),
        # A long checkpoint that was seen once is no hang the second time.
        ([0, 1, 2, 302], {}, 1500),
        # What is long ago does not count any more.
        ([0, 1, 1001, *range(1002, 2002)], {}, 60),
        # After it moved again, the next stall is one again.
        ([0, 1, 100], {"factor": 1}, 99),
    ],
    ids=["start", "started", "steps", "checkpoint", "forgets", "again"],
)
def test_limit(times, options, limit_s):
    """
    How long to wait is learned from the job.
    """
    sensor = moved(times, **options)

    assert limit_s == sensor.limit_s
    assert not sensor.is_hung(times[-1] + limit_s)
    assert sensor.is_hung(times[-1] + limit_s + 0.1)


def test_nothing_seen():
    """
    A sensor that never saw anything neither reports a hang nor excuses
    anything.
    """
    sensor = ProgressSensor()

    sensor.update(0, None)
    sensor.ignore_change("x")
    before = (sensor.is_hung(1e9), sensor.stalled_s(1e9))
    sensor.update(0, "y")

    assert (False, 0) == before
    assert 600 == sensor.limit_s


def test_unseen():
    """
    What cannot be seen for a while did not move; a clock that goes back is no
    stall.
    """
    sensor = moved([0, 1])

    sensor.update(50, None)

    assert 49 == sensor.stalled_s(50)
    assert 0 == sensor.stalled_s(0)


def test_excuse():
    """
    A change that is not its own does not count.
    """
    sensor = moved([0, 1])

    sensor.ignore_change("other")
    sensor.ignore_change(None)
    sensor.update(100, "other")

    assert sensor.is_hung(100)


def test_mended():
    """
    A hang that was mended makes no other hang wait longer.
    """
    sensor = moved([0, 1, 2])

    sensor.update(100, "moved", learns=False)

    assert 60 == sensor.limit_s
    assert sensor.is_hung(161)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"floor_s": 0},
        {"floor_s": float("nan")},
        {"floor_s": float("inf")},
        {"floor_s": 1e-9},
        {"floor_s": "a"},
        {"floor_s": True},
        {"floor_s": 10**400},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"start_s": -1},
    ],
)
def test_refused(kwargs):
    """
    Limits that would call every job stuck are refused.
    """
    with pytest.raises(ConfigError, match="must be a number from"):
        ProgressSensor(**kwargs)
