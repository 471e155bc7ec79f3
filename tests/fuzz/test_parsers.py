"""
Every parser bears every input: in bounded time and memory, it returns what can
be shown, or raises what its documentation tells of.
"""

from __future__ import annotations

import random
import re
import resource
import time

import fuzzing.everything  # noqa: F401 it fills the table
import pytest

from fuzzing.demand import (
    MIB,
    DefectError,
    check_cost,
    cost_of,
    feed,
    slowness,
)
from fuzzing.junk import junk_for
from fuzzing.mutate import mutate
from fuzzing.seeds import regressions_of, seeds_of
from fuzzing.target import HERE, TARGETS, Target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


# Python warns of what a pattern of somebody may mean; that is no defect.
pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = sorted(TARGETS)
# What CI has time for; ``run.py --costs`` takes a whole MiB of each.
_SIZE = MIB // 16
# The same in every run: to try something new is what the fuzzer is for.
_PATIENT = settings(
    deadline=None,
    database=None,
    derandomize=True,
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
    for _, data in junk_for(name, _SIZE):
        check_cost(TARGETS[name], data)


@pytest.mark.parametrize("name", NAMES)
def test_long_field(name):
    """
    A field that no reader of tables takes is borne, with real lines before it.
    """
    target = TARGETS[name]
    size = min(MIB // 4, target.most or MIB)
    head, _, _ = seeds_of(name)[0].partition(b"\n")

    cost = check_cost(target, (head + b"\n").ljust(size, b"a"))

    assert cost.seconds >= 0


def test_table():
    """
    The documentation names all targets, and no others.
    """
    page = HERE.parents[1] / "docs" / "explanation" / "security.md"
    _, _, table = page.read_text().partition("| targets of `tests/fuzz` |")
    cells = [row.split("|")[2] for row in table.splitlines() if "|" in row]

    named = re.findall(r"`(\w+)`", " ".join(cells))

    assert NAMES == sorted(named)


def test_regressions():
    """
    What broke a parser once belongs to one that exists.
    """
    folders = {x.name for x in (HERE / "regressions").iterdir()}

    assert folders <= set(NAMES)
    assert all(regressions_of(name) for name in folders)


def slow(text):
    """
    A target that looks at every pair of letters, many times.
    """

    def parse(_):
        end = time.process_time() + 0.05
        while time.process_time() < end:
            sum(a == b for a in text for b in text)

    return Target("x", parse, (), list, 1.0, 200.0, None)


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
            "x", lambda _: bytes([1]) * (64 * MIB), (), list, 1.0, 99.0, None
        )

        seconds, mebibytes = cost_of(target, b"")

        assert seconds > 0
        assert mebibytes is None or 50 < mebibytes < 100

    @pytest.mark.parametrize("check", [check_cost, feed])
    def test_too_slow(self, monkeypatch, check):
        """
        A parser that needs far more time than its size allows is one.
        """
        monkeypatch.setattr("fuzzing.demand.LEAST_S", 0.001)
        begin = time.process_time()

        with pytest.raises(DefectError, match=r"takes .* s instead of"):
            check(slow("x" * 10), b"x" * 10)

        assert time.process_time() - begin > 0.01

    @pytest.mark.parametrize("check", [check_cost, feed])
    def test_too_large(self, check):
        """
        So is one that needs far more memory, even if only for a moment.
        """
        # More than this process ever had.
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        target = Target(
            "x",
            lambda _: len(bytes([1]) * (most + 64 * MIB)),
            *((), list, 1.0, 32.0, None),
        )

        with pytest.raises(DefectError, match=r"takes .* MiB instead of 32"):
            check(target, b"")

    def test_slow_machine(self, monkeypatch):
        """
        A machine that has no time for us is no defect.
        """
        monkeypatch.setattr("fuzzing.demand.LEAST_S", 0.1)
        target = Target(
            "x", lambda _: time.sleep(0.3), (), list, 0.1, 200.0, None
        )

        assert check_cost(target, b"").seconds < 0.1

    @pytest.mark.parametrize(
        ("usual_s", "least", "most"), [(1e-4, 50, 1e6), (1e4, 1, 1)]
    )
    def test_slow_processor(self, monkeypatch, usual_s, least, most):
        """
        A processor that is slower is given more time; a faster one no less.
        """

        def parse(_):
            end = time.process_time() + 0.6
            while time.process_time() < end:
                pass

        target = Target("x", parse, (), list, 1.0, 200.0, None)
        monkeypatch.setattr("fuzzing.demand._USUAL_S", usual_s)

        assert least <= slowness() <= most
        assert cost_of(target, b"").seconds * least < 0.9
