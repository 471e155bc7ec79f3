"""
Telling that variables changed, without keeping them.
"""

from __future__ import annotations

import json

import pytest

from distdebug.capture.values import digests_of


def digests(*variables, name="f", line=1):
    """
    The digests of a thread with these variables: name, address, text.
    """
    known = [{"name": n, "addr": a, "repr": r} for n, a, r in variables]
    frame = {"name": name, "line": line, "locals": known}
    return digests_of(json.dumps([{"frames": [frame]}]))


SAME = digests(("x", 1, "3"), ("y", 2, "[1]"))


@pytest.mark.parametrize(
    ("variables", "is_same"),
    [
        ([("x", 1, "3"), ("y", 2, "[1]")], True),
        ([("x", 1, "4"), ("y", 2, "[1]")], False),
        ([("x", 5, "3"), ("y", 2, "[1]")], False),
        ([("x", 1, "3"), ("y", 2, "[1, 2]")], True),
        ([("x", 1, "3")], False),
    ],
    ids=["same", "number", "place", "changed by another", "fewer"],
)
def test_changes(variables, is_same):
    """
    A variable that is set changes the number; what it holds does not, if
    another thread could change that.
    """
    assert is_same == (SAME == digests(*variables))


def test_line():
    """
    Another line is another number.
    """
    assert digests(line=1) != digests(line=2)


def test_callers():
    """
    What the innermost function sets is apart from what its callers set.
    """

    def digest(inner, outer):
        frames = [
            {"name": name, "line": 1, "locals": [{"name": "n", **value}]}
            for name, value in (("weigh", inner), ("explore", outer))
        ]
        (only,) = digests_of(json.dumps([{"frames": frames}]))
        return only

    one, two = {"addr": 1, "repr": "1"}, {"addr": 2, "repr": "2"}

    assert digest(one, one).callers == digest(two, one).callers
    assert digest(one, one).callers != digest(one, two).callers
    assert digest(one, one).whole != digest(two, one).whole


@pytest.mark.parametrize(
    "output",
    ["", "[", "{}", "[1]", "[{}]", '[{"frames": 1}]', "[" * 100_000],
)
def test_malformed(output):
    """
    What was not expected tells nothing.
    """
    assert () == digests_of(output)


def test_without_variables():
    """
    Lines of C have none.
    """
    frame = {"name": "f", "line": 0, "locals": None}

    got = digests_of(json.dumps([{"frames": [frame]}, {"frames": []}]))

    assert 2 == len(got)
