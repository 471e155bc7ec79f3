"""
``dump``: asking a running job.
"""

from __future__ import annotations

import json
import os

import pytest

from distdebug.__main__ import main
from distdebug.flight_recorder import Sidecar, write_sidecar


@pytest.fixture
def listens(tmp_path):
    """
    Lets ranks listen at pipes, as those of torch do, which do not answer.
    """
    opened = []

    def make(*ranks):
        for rank in ranks:
            pipe = tmp_path / f"p_{rank}.pipe"
            os.mkfifo(pipe)
            opened.append(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))

    yield make
    for fd in opened:
        os.close(fd)


def rows_of(text):
    """
    The rank and the answer in each row of a table.
    """
    return [tuple(line.split()[:2]) for line in text.splitlines()[2:]]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [("0-1", 0), ("1-2", 1), ("2-3", 2)],
    ids=["all", "some", "none"],
)
def test_status(listens, tmp_path, capsys, ranks, expected):
    """
    The status says whether all, some, or none of the ranks were reached.
    """
    listens(0, 1)

    assert expected == main(["dump", str(tmp_path), "--ranks", ranks])
    first = int(ranks[0])
    assert [
        (str(rank), "asked" if rank < 2 else "absent")
        for rank in (first, first + 1)
    ] == rows_of(capsys.readouterr().out)


def test_unknown_rank(listens, tmp_path, capsys):
    """
    A process that does not know its rank has an answer all the same.
    """
    listens("unknown")

    assert 0 == main(["dump", str(tmp_path)])
    assert [("?", "asked")] == rows_of(capsys.readouterr().out)


def test_json(listens, tmp_path, capsys):
    """
    The answers are there as JSON.
    """
    listens(0)

    assert 0 == main(["dump", str(tmp_path), "--json"])
    path = str(tmp_path / "p_0.pipe")
    assert [
        {"rank": 0, "status": "asked", "path": path, "reason": ""}
    ] == json.loads(capsys.readouterr().out)["ranks"]


def test_pipe(listens, tmp_path, capsys):
    """
    The pipes of torch are asked by what their names begin with.
    """
    listens(0, 1, 2, 9)
    argv = ["dump", "--pipe", str(tmp_path / "p_"), "--ranks", "0-2,9"]

    assert 0 == main([*argv, "--timeout", "3"])
    assert [(r, "asked") for r in "0129"] == rows_of(capsys.readouterr().out)
    assert 2 == main(["dump", "--pipe", str(tmp_path / "q_")])


def test_mesh(listens, tmp_path, capsys):
    """
    The mesh is that of the side-cars; what is no side-car is not read.
    """
    listens(0, 1, 2, 3)
    sidecar = Sidecar(
        path="",
        rank=0,
        world_size=4,
        host="",
        pid=1,
        started=0,
        written=0,
        reason="call",
        mesh=(("dp", 2), ("tp", 2)),
    )
    write_sidecar(sidecar, tmp_path / "a")
    write_sidecar(sidecar._replace(mesh=()), tmp_path / "b")
    (tmp_path / "c.sidecar.json").write_text("[]")

    assert 0 == main(["dump", str(tmp_path), "--ranks", "ranks(tp=1)"])
    assert [(r, "asked") for r in "13"] == rows_of(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["."], "enable_flight_recorder"),
        (["none"], "there is no folder"),
        ([".", "--ranks", "ranks(tp=1)"], "in no mesh we know of"),
    ],
    ids=["no process listens", "no folder", "no mesh"],
)
def test_nobody(tmp_path, monkeypatch, capsys, argv, told):
    """
    If there is no rank to ask, there is something to do about it.
    """
    monkeypatch.chdir(tmp_path)

    assert 2 == main(["dump", *argv])
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "nan", "x"])
def test_bad_timeout(text, tmp_path, capsys):
    """
    A time-out is a positive number.
    """
    with pytest.raises(SystemExit, match="2"):
        main(["dump", str(tmp_path), "--timeout", text])
