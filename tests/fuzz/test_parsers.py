"""
Every parser bears every input: in bounded time and memory, it returns what can
be shown, or raises what its documentation tells of.
"""

from __future__ import annotations

import random

import fuzzing.everything  # noqa: F401 it fills the table
import pytest

from fuzzing.demand import DefectError, cost_of, feed
from fuzzing.junk import junk_for
from fuzzing.mutate import mutate
from fuzzing.seeds import regressions_of, seeds_of
from fuzzing.target import HERE, TARGETS, Target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


NAMES = sorted(TARGETS)
_MIB = 1 << 20
# What CI has time for; ``run.py --costs`` takes a whole MiB of each.
_SIZE = _MIB // 16
# The clock of a machine that others use is not to be trusted for less.
_LEAST_S = 0.5
_PATIENT = settings(
    deadline=None,
    database=None,
    max_examples=15,
    suppress_health_check=list(HealthCheck),
)


def feed_all(name, samples):
    """
    Feed a target with samples.
    """
    return [feed(TARGETS[name], sample) for sample in samples]


@pytest.mark.parametrize("name", NAMES)
def test_samples(name):
    """
    A parser takes real samples and all that broke it once.
    """
    samples = seeds_of(name)

    shown = feed_all(name, samples)

    assert len(samples) == len(shown) > 1


@pytest.mark.parametrize("name", NAMES)
@_PATIENT
@given(data=st.binary(max_size=2000))
def test_bytes(name, data):
    """
    A parser bears any bytes.
    """
    assert isinstance(feed(TARGETS[name], data), str)


@pytest.mark.parametrize("name", NAMES)
@_PATIENT
@given(data=st.data())
def test_changed_samples(name, data):
    """
    A parser bears samples with bytes, numbers, and lines changed.
    """
    samples = seeds_of(name)
    sample = data.draw(st.sampled_from(samples))
    seed = data.draw(st.integers(0, 1 << 32))

    changed = mutate(sample, samples, random.Random(seed))

    assert isinstance(feed(TARGETS[name], changed), str)


@pytest.mark.parametrize("name", NAMES)
def test_costs(name):
    """
    Junk of any kind takes no more time and memory than its size allows.
    """
    target = TARGETS[name]
    for kind, data in junk_for(name, _SIZE):
        seconds, mebibytes = cost_of(target, data)

        share = _SIZE / _MIB
        assert max(target.seconds * share, _LEAST_S) > seconds, kind
        assert mebibytes is None or target.mebibytes > mebibytes, kind


def test_regressions():
    """
    What broke a parser once belongs to one that exists.
    """
    folders = {x.name for x in (HERE / "regressions").iterdir()}

    assert folders <= set(NAMES)
    assert all(regressions_of(name) for name in folders)


class TestDemand:
    """
    The bench sees what it is there for.
    """

    @pytest.mark.parametrize(
        ("parse", "match"),
        [
            (lambda _: {}["x"], "KeyError"),
            (lambda _: "a\x1b[31m", "shows"),
            (lambda _: ["a", "b\r"], "shows"),
            (lambda _: (_ for _ in ()).throw(MemoryError), "memory"),
        ],
        ids=["exception", "escape", "carriage return", "memory"],
    )
    def test_defects(self, parse, match):
        """
        An exception that nobody told of, or a control character, is one.
        """
        target = Target("x", parse, (ValueError,), list, 1.0, 1.0, None)

        with pytest.raises(DefectError, match=match):
            feed(target, b"")

    def test_hang(self, monkeypatch):
        """
        So is one that does not end, also within a pattern.
        """
        monkeypatch.setattr("fuzzing.demand.HANG_S", 0.2)
        parse = __import__("re").compile(r"(a+)+$").match
        target = Target(
            "x", lambda _: parse("a" * 40 + "b"), (), list, 1.0, 1.0, None
        )

        with pytest.raises(DefectError, match="hangs"):
            feed(target, b"")

    def test_cost(self):
        """
        Time and memory are those of the parser.
        """
        target = Target(
            "x", lambda _: bytes([1]) * (64 * _MIB), (), list, 1.0, 1.0, None
        )

        seconds, mebibytes = cost_of(target, b"")

        assert seconds > 0
        assert mebibytes is None or 50 < mebibytes < 100
