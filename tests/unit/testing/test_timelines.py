"""
The checks of timelines find what is wrong with one.
"""

from __future__ import annotations

import json

import pytest

from tests.timelines import read_timeline


def _slice(pid=0, tid=1, ts=0.0, dur=10.0):
    return {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur}


def _names(pid=0, tid=1):
    for what in ("process_name", "thread_name"):
        yield {
            "ph": "M",
            "pid": pid,
            "tid": tid,
            "name": what,
            "args": {"name": "x"},
        }


def _end(ph, pid, ts, number=1):
    return {"ph": ph, "pid": pid, "tid": 1, "ts": ts, "id": number}


SOUND = [
    *_names(),
    *_names(1),
    _slice(),
    _slice(ts=10.0),
    _slice(1, ts=2.0),
    {"ph": "i", "pid": 0, "tid": 1, "ts": 3.0},
    _end("s", 0, 3.0),
    _end("f", 1, 4.0),
]


def _read(folder, events):
    file = folder / "t.json"
    file.write_text(json.dumps({"traceEvents": events, "otherData": {}}))
    return read_timeline(file)


def test_sound(tmp_path):
    """
    What keeps to all rules is read.
    """
    drawn = _read(tmp_path, SOUND)

    assert (3, 1, 1) == (
        len(drawn.slices),
        len(drawn.marks),
        len(drawn.arrows),
    )


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([{"ph": "B"}], "events"),
        ([_slice(ts=15.0)], "do not overlap"),
        ([_slice(ts=5.0)], "come in order"),
        ([_slice(tid=2, ts=-1.0)], "before zero"),
        ([_slice(tid=2, dur=-1.0)], "before it begins"),
        ([_slice(tid=2)], "every track has a name"),
        ([{"ph": "i", "pid": 0, "ts": -1.0}], "no mark is before zero"),
        ([{"ph": "i", "pid": 7, "ts": 1.0}], "marks are of processes"),
        ([_end("s", 0, 1.0, 2)], "two ends"),
        # Arrows lead from slices of one process to later ones of another.
        ([_end("s", 0, 3.0, 2), _end("f", 0, 4.0, 2)], "join processes"),
        ([_end("s", 0, 9.0, 2), _end("f", 1, 4.0, 2)], "leads backwards"),
        ([_end("s", 0, 3.0, 2), _end("f", 1, 12.0, 2)], "ends in slices"),
    ],
    ids=[
        *("kind", "overlap", "order", "early", "inside out", "nameless"),
        *("early mark", "stray mark", "half an arrow"),
        *("within one", "backwards", "nowhere"),
    ],
)
def test_broken(tmp_path, events, rule):
    """
    Whatever breaks a rule is told with the rule.
    """
    with pytest.raises(AssertionError, match=rule):
        _read(tmp_path, [*SOUND, *events])


def test_nameless_process(tmp_path):
    """
    A process needs a name.
    """
    events = [e for e in SOUND if e.get("name") != "process_name"]

    with pytest.raises(AssertionError, match="every process has a name"):
        _read(tmp_path, events)
