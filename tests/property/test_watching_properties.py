"""
Laws of sensing progress, for any job.
"""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from distdebug.watching import ProgressSensor


gaps = st.lists(st.integers(1, 10_000), min_size=2, max_size=50)
floors = st.integers(1, 1000)
factors = st.integers(1, 10)


def job(sensor, gaps):
    """
    The time after changes with these gaps between them.
    """
    now = 0
    sensor.update(now, now)
    for gap in gaps:
        now += gap
        sensor.update(now, now)
    return now


@given(gaps, factors, st.floats(0, 1))
def test_never_below_the_floor(gaps, factor, part):
    """
    Silence: a job whose every gap is within the floor is never hung.
    """
    floor = max(gaps)
    sensor = ProgressSensor(floor_s=floor, factor=factor, start_s=0)
    now = 0
    sensor.update(now, now)

    for gap in gaps:
        assert not sensor.is_hung(now + part * gap)

        now += gap
        assert not sensor.is_hung(now)  # also if it was not seen yet

        sensor.update(now, now)


@given(gaps, floors, factors)
def test_always_in_bound(gaps, floor, factor):
    """
    Certainty: what stops is hung after the limit, and not before.
    """
    sensor = ProgressSensor(floor_s=floor, factor=factor)
    last = job(sensor, gaps)

    # The first gap is the start.
    bound = max(floor, factor * max(gaps[1:]))

    assert not sensor.is_hung(last + bound)
    assert sensor.is_hung(last + bound + 1)


@given(gaps, floors, factors)
def test_seen_once(gaps, floor, factor):
    """
    Learning: no gap that was seen is a hang when it comes again.
    """
    sensor = ProgressSensor(floor_s=floor, factor=factor)
    last = job(sensor, gaps)

    assert not any(sensor.is_hung(last + gap) for gap in gaps[1:])


@given(gaps, floors, factors)
def test_arms_again(gaps, floor, factor):
    """
    Return: one change ends a hang, and the next one is found too.
    """
    sensor = ProgressSensor(floor_s=floor, factor=factor)
    hung = job(sensor, gaps) + sensor.limit_s + 1
    assert sensor.is_hung(hung)

    sensor.update(hung, "moved")

    assert not sensor.is_hung(hung)
    assert sensor.is_hung(hung + sensor.limit_s + 1)


@given(gaps, st.lists(st.sampled_from([None, "same"]), max_size=10))
def test_only_change_counts(gaps, looks):
    """
    Indifference: looks that show nothing new change nothing.
    """
    sensor = ProgressSensor()
    last = job(sensor, gaps)
    sensor.update(last, "same")
    assume(sensor.limit_s > 0)
    before = sensor.limit_s

    for number, value in enumerate(looks):
        sensor.update(last + number, value)

    assert before == sensor.limit_s
    assert 100 == sensor.stalled_s(last + 100)
