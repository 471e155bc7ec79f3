"""
What is noted beside a dump?
"""

import json
import os

import pytest

from distdebug.flight_recorder import Sidecar, read_sidecar, write_sidecar
from distdebug.flight_recorder.sidecar import (
    SidecarFrame,
    SidecarGroup,
    parse_sidecar,
)


SIDECAR = Sidecar(
    path="",
    rank=3,
    world_size=8,
    host="node",
    pid=42,
    started=1.5,
    written=2.5,
    reason="request",
    error="ValueError: \x1b[31m\ud800",
    dump="d_rank_3",
    job="run",
    torch="2.13",
    groups=(SidecarGroup("0", "default_pg", (0, 3), "gloo"),),
    mesh=(("dp", 4), ("tp", 2)),
    threads=(("MainThread", (SidecarFrame("f", "a.py", 7),)),),
)


def test_round_trip(tmp_path):
    """
    What is written is what is read.
    """
    path = write_sidecar(SIDECAR, tmp_path / "d_rank_3")

    found = parse_sidecar(json.loads(path.read_text()), str(path))

    assert SIDECAR == found._replace(path="")
    assert tmp_path / "d_rank_3.sidecar.json" == path
    assert 0o600 == path.stat().st_mode & 0o777


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "x"},
        {"rank": -1},
        {"rank": "3"},
        {"groups": [{}]},
        {"groups": 1},
        {"threads": {"a": [{"name": "f", "filename": "a"}]}},
        {"mesh": {"dp": None}},
        {"world_size": 2**31 - 1},
        {"rank": 1 << 20},
        {"groups": [{"name": "0", "ranks": [1 << 20]}]},
        {"started": -1.0},
        {"written": float("nan")},
        {"written": float("inf")},
        {"written": 1e300},
    ],
)
def test_not_a_sidecar(change):
    """
    What is not a side-car is refused.
    """
    data = {**SIDECAR.to_json(), **change}

    with pytest.raises((ValueError, TypeError, KeyError)):
        parse_sidecar(data, "x")


def test_defaults():
    """
    Two numbers and the kind are enough.
    """
    data = {"kind": "distdebug-sidecar", "rank": 0, "world_size": 1}

    found = parse_sidecar(data, "x")

    assert ("x", 0, 1, "", ()) == (
        found.path,
        found.rank,
        found.world_size,
        found.reason,
        found.groups,
    )


@pytest.mark.parametrize(
    "change", [{"mesh": []}, {"threads": []}, {"started": 10**400}]
)
def test_read_nonsense(tmp_path, change):
    """
    Whatever a file holds instead of a side-car, the error is the same.
    """
    path = tmp_path / "x"
    path.write_text(json.dumps({**SIDECAR.to_json(), **change}))

    with pytest.raises(ValueError, match="not a side-car"):
        read_sidecar(path)


def test_read_pipe(tmp_path):
    """
    Nobody waits for what a pipe in the place of a side-car may say.
    """
    path = tmp_path / "x"
    os.mkfifo(path)

    with pytest.raises(ValueError, match="no regular file"):
        read_sidecar(path)
