"""
What a command left, as text.
"""

from __future__ import annotations

import json

import pytest

from distdebug.nodes import Ended
from distdebug.nodes.model import NodeStatus, Trouble
from distdebug.nodes.wire import ended_from_line, ended_to_line


@pytest.mark.parametrize(
    "ended",
    [
        Ended(),
        Ended(0, bytes(range(256)), b"\n"),
        Ended(None, b"", b"", Trouble(NodeStatus.DEAD, "gone\n", "wait")),
    ],
)
def test_round_trip(ended):
    """
    It arrives as it was, in one line.
    """
    line = ended_to_line(ended)

    assert line.isascii()
    assert "\n" not in line
    assert ended == ended_from_line(line)


def changed(**changes):
    """
    A line of which something is not as it should be.
    """
    return json.dumps(json.loads(ended_to_line(Ended(0))) | changes)


@pytest.mark.parametrize(
    "line",
    [
        None,
        b"[]",
        "",
        "3",
        "{}",
        pytest.param("[" * 100_000, id="deep"),
        changed(status="x"),
        changed(status=[]),
        changed(output=3),
        changed(output="\u00e4"),
        changed(complaint=None),
        changed(trouble="dead"),
        changed(trouble=["dead", "x"]),
        changed(trouble=["alive", "x", "y"]),
        changed(trouble=["dead", 3, "y"]),
    ],
)
def test_hostile(line):
    """
    What nobody understands is told as such.
    """
    got = ended_from_line(line)

    assert got.status is None
    assert NodeStatus.FAILED is got.trouble.status
    assert "nobody understands" in got.trouble.reason
