"""
How is a running job asked for its dumps?
"""

import json
import os

from pathlib import Path

import pytest

from distdebug.flight_recorder import DumpRequest, request_dumps
from distdebug.flight_recorder import request as request_module
from distdebug.flight_recorder.recording.listener import (
    Listener,
    drain,
    open_request_pipe,
)


TOKEN = "1700000000-42"


@pytest.fixture
def rank(tmp_path):
    """
    Starts a rank that answers a request by calling something.
    """
    opened = []

    def start(name, answer=lambda: None):
        fd = open_request_pipe(tmp_path / name)

        def react():
            drain(fd)
            answer()

        listener = Listener({fd: react})
        listener.start()
        opened.append((fd, listener))

    yield start
    for fd, listener in opened:
        listener.stop()
        os.close(fd)


def dump(folder, token=TOKEN, rank=0, *, name=None, link=True):
    """
    Write what a rank would write.
    """
    file = folder / f"{token}-1_rank_{rank}"
    file.write_bytes(b"dump")
    if link:
        (folder / f"latest_rank_{rank}").symlink_to(file.name)
    data = {
        "kind": "distdebug-sidecar",
        "rank": rank,
        "world_size": 8,
        "dump": file.name if name is None else name,
    }
    side = folder / f"{token}.tmp"
    side.write_text(json.dumps(data))
    side.rename(f"{file}.sidecar.json")


def test_dumped(tmp_path, rank):
    """
    Every rank that answers is told with its dump.
    """
    for r in (1, 0):
        rank(
            f"170000000{r}-4_request_{r}.pipe",
            lambda r=r: dump(tmp_path, f"170000000{r}-4", r),
        )

    rows = request_dumps(tmp_path)

    assert [(0, "dumped"), (1, "dumped")] == [
        (row.rank, row.status) for row in rows
    ]
    assert [tmp_path / f"170000000{r}-4-1_rank_{r}" for r in (0, 1)] == [
        row.path for row in rows
    ]


def test_selected(tmp_path, rank):
    """
    Only the ranks that are meant are asked; one without a pipe is absent.
    """
    asked = []
    rank(f"{TOKEN}_request_0.pipe", lambda: asked.append(0))

    rows = request_dumps(tmp_path, ranks=[5])

    assert [(5, "absent", "it has no pipe")] == [
        (r.rank, r.status, r.reason) for r in rows
    ]
    assert [] == asked


def test_prefix(tmp_path, rank):
    """
    torch's own pipe is found by what its name starts with, and not waited
    for.
    """
    rank("nccl_0.pipe")
    rank("other_1.pipe")

    rows = request_dumps(tmp_path / "nccl_")

    pipe = tmp_path / "nccl_0.pipe"
    assert (DumpRequest(0, "asked", pipe),) == rows


def test_unknown_rank(tmp_path, rank):
    """
    A process that did not know its rank tells it with its answer.
    """
    rank(f"{TOKEN}_request_unknown.pipe", lambda: dump(tmp_path, rank=6))

    (row,) = request_dumps(tmp_path)

    assert (6, "dumped") == (row.rank, row.status)


def test_restarted(tmp_path, rank):
    """
    Where a job was restarted, the process that lives is asked.
    """
    os.mkfifo(tmp_path / "1800000000-1_request_0.pipe")
    rank(f"{TOKEN}_request_0.pipe", lambda: dump(tmp_path))

    (row,) = request_dumps(tmp_path)

    assert "dumped" == row.status


def test_torch_answers_for_us(tmp_path, rank):
    """
    Where nobody listens at our pipe, torch's is tried.
    """
    os.mkfifo(tmp_path / f"{TOKEN}_request_0.pipe")
    rank(f"{TOKEN}_nccl_0.pipe")

    (row,) = request_dumps(tmp_path)

    assert (0, "asked") == (row.rank, row.status)


@pytest.mark.parametrize("make", [Path.touch, lambda p: p.symlink_to("x")])
def test_not_a_pipe(tmp_path, make):
    """
    What only looks like a pipe is not written to.
    """
    make(tmp_path / "nccl_0.pipe")

    (row,) = request_dumps(tmp_path)

    assert "failed" == row.status
    assert "not a pipe" in row.reason


def test_full(tmp_path, rank):
    """
    A pipe that is full of requests will be answered as well.
    """
    pipe = tmp_path / f"{TOKEN}_request_0.pipe"
    fd = open_request_pipe(pipe)
    os.write(fd, b"x" * 65536)

    (row,) = request_dumps(tmp_path, timeout_s=0)
    os.close(fd)

    assert "silent" == row.status


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": 1}'])
def test_bad_answer(tmp_path, rank, text):
    """
    An answer that is no side-car is a failure of that rank.
    """
    path = tmp_path / f"{TOKEN}-1_rank_0.sidecar.json"
    rank(f"{TOKEN}_request_0.pipe", lambda: path.write_text(text))

    (row,) = request_dumps(tmp_path)

    assert (0, "failed", path) == (row.rank, row.status, row.path)


def test_nothing_to_dump(tmp_path, rank):
    """
    So is one without a dump.
    """
    rank(f"{TOKEN}_request_0.pipe", lambda: dump(tmp_path, name=""))

    (row,) = request_dumps(tmp_path)

    assert "failed" == row.status


def test_link_comes_later(tmp_path, rank, monkeypatch):
    """
    An answer is complete when the link shows it.
    """
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if (tmp_path / f"{TOKEN}-1_rank_0").exists() and len(pauses) > 1:
            link = tmp_path / "latest_rank_0"
            link.unlink(missing_ok=True)
            link.symlink_to(f"{TOKEN}-1_rank_0")

    monkeypatch.setattr(request_module.time, "sleep", pause)
    rank(f"{TOKEN}_request_0.pipe", lambda: dump(tmp_path, link=False))

    (row,) = request_dumps(tmp_path)

    assert "dumped" == row.status
    assert len(pauses) > 1


def test_no_link(tmp_path, rank):
    """
    Where there can be no link, the dump counts when time is up.
    """
    rank(f"{TOKEN}_request_0.pipe", lambda: dump(tmp_path, link=False))

    (row,) = request_dumps(tmp_path, timeout_s=0.5)

    assert "dumped" == row.status


def test_nowhere(tmp_path):
    """
    Where there is no folder, there is nobody to ask.
    """
    assert () == request_dumps(tmp_path / "a" / "b")
