"""
Every known piece of evidence gets the verdict that it got before.

See ``python -m tests.golden --help`` for how to accept a change.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.findings import Diagnosis, Finding, Location

from . import gate
from .cases import SETS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SETS)
def test_verdicts(name):
    """
    Verdicts are as they were; where one is known to be wrong, it may be right.
    The first line of text of each cause is as it was, too.
    """
    result = gate.run(name)

    differences = [
        *gate.compare(result, gate.kept(name), gate.known_misses()),
        *gate.compare_lines(result, gate.first_lines()),
    ]

    assert not differences, f"\n{gate.table(differences)}"


def test_misses_are_wrong():
    """
    A known miss is a case whose kept verdict is wrong, with its reason.
    """
    misses = gate.known_misses()
    expected = {
        f"{name}/{case}": facts
        for name in SETS
        for case, facts in gate.kept(name).items()
    }

    assert [] == [
        case
        for case, right in misses.items()
        if gate.is_right(expected[case], right) or not right.get("why")
    ]


def test_enough():
    """
    The gate has cases of every kind of evidence, and most causes.
    """
    kept = {name: gate.kept(name) for name in SETS}
    causes = {
        f.get("cause") for facts in kept.values() for f in facts.values()
    }

    assert sum(map(len, kept.values())) > 1500
    assert len(causes & {str(cause) for cause in Cause}) > 45
    assert all(kept.values())


FINDING = Finding(
    cause=Cause.RANK_NOT_ARRIVED,
    ranks=(1, 2),
    summary="a sentence that does not count",
    location=Location(function="f", file="/a/b.py", line=3),
)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cause": Cause.RANK_CRASHED}, "cause"),
        ({"ranks": (1,)}, "ranks"),
        ({"confidence": "possible"}, "confidence"),
        ({"detail_cause": Cause.IO_WAIT}, "detail"),
        ({"location": None}, "at"),
        ({"summary": "another sentence"}, None),
    ],
)
def test_differences(change, field):
    """
    Each field that counts is compared, and sentences are not.
    """
    was = gate.facts_of(Diagnosis(verdict=FINDING))
    now = gate.facts_of(Diagnosis(verdict=attrs.evolve(FINDING, **change)))

    found = list(
        gate.compare(gate.Result("s", {"c": now}, {}), {"c": was}, {})
    )

    assert [field] * len(found) == [d.field for d in found]
    assert (field is not None) == bool(found)


def test_further_findings():
    """
    The order of further findings counts.
    """
    one = attrs.evolve(FINDING, cause=Cause.KILLED, ranks=())
    other = attrs.evolve(FINDING, cause=Cause.DEAD, ranks=(4, 5))
    whole = Diagnosis(verdict=FINDING, findings=(FINDING, one, other))

    assert ["killed ", "dead 4-5"] == gate.facts_of(whole)["then"]


def test_known_miss():
    """
    A known miss that becomes right is no difference; any other change is.
    """
    was, right = {"cause": "healthy"}, {"cause": "straggler", "why": "x"}

    def differences(cause):
        result = gate.Result("s", {"c": {"cause": cause}}, {})
        return list(gate.compare(result, {"c": was}, {"s/c": right}))

    assert [] == differences("healthy")
    assert [] == differences("straggler")
    assert 1 == len(differences("unknown"))


def test_new_and_gone():
    """
    Cases that are new or gone are differences, and the table names them.
    """
    result = gate.Result("s", {"new": {"cause": "killed"}}, {})

    found = list(gate.compare(result, {"gone": {"cause": "dead"}}, {}))

    assert ["s/gone", "s/new"] == [d.case for d in found]
    assert "cause=killed" in gate.table(found)


def test_wording():
    """
    A first line of text that is kept and changes is a difference of its own.
    """
    result = gate.Result("s", {}, {"c": "now", "d": "not kept"})

    (found,) = gate.compare_lines(result, {"s/c": "was"})

    assert ("s/c", "text", "was", "now") == found
