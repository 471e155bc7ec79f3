"""
``dump``: asking a running job.
"""

from __future__ import annotations

import json

from pathlib import Path

import pytest

import distdebug

from distdebug.__main__ import main
from distdebug.flight_recorder import DumpRequest, Sidecar, write_sidecar


@pytest.fixture
def answers(monkeypatch):
    """
    What ranks answer, and what was asked.
    """
    asked = []

    def prepare(*statuses):
        def request(where, *, ranks, timeout_s):
            asked.append((where, ranks, timeout_s))
            return tuple(
                DumpRequest(rank, status, Path(f"dump{rank}"), "why")
                for rank, status in enumerate(statuses)
            )

        monkeypatch.setattr(distdebug, "request_dumps", request, raising=False)
        return asked

    return prepare


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["dumped", "asked"], 0),
        (["dumped", "silent"], 1),
        (["absent", "failed"], 2),
    ],
)
def test_status(statuses, expected, answers, tmp_path, capsys):
    """
    The status tells whether all, some, or none of the ranks were reached.
    """
    answers(*statuses)

    assert expected == main(["dump", str(tmp_path)])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert statuses == [row.split()[1] for row in rows]


def test_unknown_rank(monkeypatch, tmp_path, capsys):
    """
    A process that does not know its rank has an answer all the same.
    """
    row = DumpRequest(None, "dumped", Path("x"))
    monkeypatch.setattr(
        distdebug, "request_dumps", lambda *_, **__: (row,), raising=False
    )

    assert 0 == main(["dump", str(tmp_path)])
    assert "?" in capsys.readouterr().out


def test_json(answers, tmp_path, capsys):
    """
    The answers are there as JSON.
    """
    answers("dumped")

    assert 0 == main(["dump", str(tmp_path), "--json"])
    assert [
        {"rank": 0, "status": "dumped", "path": "dump0", "reason": "why"}
    ] == json.loads(capsys.readouterr().out)["ranks"]


def test_pipe(answers, capsys):
    """
    The pipes of torch are asked by what their names begin with.
    """
    asked = answers("asked")

    assert 0 == main(
        ["dump", "--pipe", "/x/p_", "--ranks", "0-2,9", "--timeout", "3"]
    )
    assert [("/x/p_", (0, 1, 2, 9), 3.0)] == asked


def test_mesh(answers, tmp_path, capsys):
    """
    The mesh is that of the side-cars; what is no side-car is not read.
    """
    asked = answers("dumped")
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
    assert (1, 3) == asked[0][1]


def test_no_mesh(answers, tmp_path, capsys):
    """
    Without a mesh nobody sits in it.
    """
    answers("dumped")

    assert 2 == main(["dump", str(tmp_path), "--ranks", "ranks(tp=1)"])
    assert "in no mesh we know of" in capsys.readouterr().err


def test_nobody(answers, tmp_path, capsys):
    """
    If nobody listens, there is something to do about it.
    """
    answers()

    assert 2 == main(["dump", str(tmp_path)])
    assert "enable_flight_recorder" in capsys.readouterr().err


def test_no_folder(tmp_path, capsys):
    """
    A folder that is not there is told.
    """
    assert 2 == main(["dump", str(tmp_path / "none")])
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "nan", "x"])
def test_bad_timeout(text, tmp_path, capsys):
    """
    A time-out is a positive number.
    """
    with pytest.raises(SystemExit, match="2"):
        main(["dump", str(tmp_path), "--timeout", text])
