"""
What is noted beside a dump?
"""

import json
import os

import pytest

from distdebug.flight_recorder import (
    Sidecar,
    SidecarFrame,
    SidecarGroup,
    read_sidecar,
    write_sidecar,
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

    found = read_sidecar(path)

    assert SIDECAR._replace(path=str(path)) == found
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
        {"threads": []},
        {"mesh": {"dp": None}},
        {"mesh": []},
        {"world_size": 2**31 - 1},
        {"rank": 1 << 20},
        {"groups": [{"name": "0", "ranks": [1 << 20]}]},
        {"started": -1.0},
        {"started": 10**400},
        {"written": float("nan")},
        {"written": float("inf")},
        {"written": 1e300},
    ],
    ids=str,
)
def test_not_a_sidecar(tmp_path, change):
    """
    Whatever a file holds instead of a side-car, the error is the same.
    """
    path = tmp_path / "x"
    path.write_text(json.dumps({**SIDECAR.to_json(), **change}))

    with pytest.raises(ValueError, match="not a sidecar"):
        read_sidecar(path)


def test_defaults(tmp_path):
    """
    Two numbers and the kind are enough.
    """
    path = tmp_path / "x"
    data = {"kind": "distdebug-sidecar", "rank": 0, "world_size": 1}
    path.write_text(json.dumps(data))

    found = read_sidecar(path)

    assert (str(path), 0, 1, "", ()) == (
        found.path,
        found.rank,
        found.world_size,
        found.reason,
        found.groups,
    )


def test_read_pipe(tmp_path):
    """
    A pipe in the place of a side-car is not waited for.
    """
    path = tmp_path / "x"
    os.mkfifo(path)

    with pytest.raises(ValueError, match="not a regular file"):
        read_sidecar(path)
