"""
Reading logs of workers over all their parts, from either end.
"""

from __future__ import annotations

import gzip
import os

import pytest

from distdebug.errors import LogError
from distdebug.ray import LogPart, RaySession, WorkerLog, read_parts, read_tail


@pytest.fixture
def log(tmp_path):
    """
    The log of a worker in three parts, and its errors in none.
    """
    session = RaySession(root=tmp_path, logs=tmp_path, name="session_x")
    parts = []
    for number in (2, 1, 0):
        path = tmp_path / f"out.{number}"
        first = (2 - number) * 3
        lines = [f"line {first + n}\n" for n in range(3)]
        path.write_text(":actor_name:A\n" + "".join(lines))
        parts.append(LogPart(path=path, index=number))
    return WorkerLog(
        session=session, worker_id="ab" * 28, pid=7, out=tuple(parts)
    )


def texts(lines):
    """
    What was printed.
    """
    return [line.text for line in lines]


def test_parts(log):
    """
    All parts are read in their order, without marks, with files and numbers.
    """
    lines = list(read_parts(log, stream="out"))

    assert [f"line {n}" for n in range(9)] == texts(lines)
    assert (str(log.out[0].path), 2) == (lines[0].source, lines[0].number)
    assert [] == list(read_parts(log))


def test_lost_part(log, tmp_path):
    """
    A part that is gone, or is not a file, costs nothing but itself.
    """
    log.out[0].path.unlink()
    log.out[1].path.unlink()
    os.mkfifo(log.out[1].path)
    packed = tmp_path / "x.gz"
    packed.write_bytes(b"junk")

    paths = [packed, *log.out]

    assert ["line 6", "line 7", "line 8"] == texts(read_parts(paths))
    assert ["line 6", "line 7", "line 8"] == texts(read_tail(paths))


@pytest.mark.parametrize("lines", [0, 1, 3, 4, 9, 100])
def test_tail(log, lines):
    """
    The last lines are those of all parts together.
    """
    expected = [f"line {n}" for n in range(9)][max(0, 9 - lines) :]

    assert expected == texts(read_tail(log, lines=lines, stream="out"))


def test_blocks(tmp_path):
    """
    Where blocks end makes no difference, neither do missing ends of lines,
    carriage returns, and junk.
    """
    path = tmp_path / "log"
    data = b"one\n\ntwo 1%\rtwo 2%\r\n\x00\xff three\n\xc3\xa4nd\n"
    expected = ["one", "two 1%", "two 2%", "\ufffd three", "änd"]
    path.write_bytes(data[:-1])
    assert expected == texts(read_tail(path))

    # Blocks of 64 KiB are read from the end.
    for before in range(len(data)):
        path.write_bytes(data + b"." * ((1 << 16) - before))

        found = texts(read_tail(path))

        assert expected == found[:-1], before
        assert expected[-1:] == texts(read_tail([str(path)], lines=2))[:-1]


def test_long_line(tmp_path):
    """
    Of a line without an end only so much is kept.
    """
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"x" * (1 << 20))

    first, last = read_tail(path)

    assert "first" == first.text
    assert len(last.text) <= 1 << 16


def test_most(tmp_path):
    """
    No more than 64 MiB are read.
    """
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("older\n")
    with new.open("wb") as file:
        file.write(b"first\n")
        file.seek(64 << 20)
        file.write(b"\nlast\n")

    found = texts(read_tail([old, new], lines=1000))

    assert "last" == found[-1]
    assert not {"first", "older"} & set(found)


def test_packed(tmp_path):
    """
    What is packed is read from its beginning, and gives the same.
    """
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\nthree\n"))

    assert ["two", "three"] == texts(read_tail(path, lines=2))
    assert ["one", "two", "three"] == texts(read_parts(path))


def test_prefix(tmp_path):
    """
    Prefixes and colors are taken off.
    """
    path = tmp_path / "log"
    path.write_text("\x1b[36m(A pid=7)\x1b[0m text\n")

    (line,) = read_tail(LogPart(path=path))

    assert ("text", 7) == (line.text, line.origin.pid)


def test_no_stream(log):
    """
    A stream that no worker has is refused.
    """
    with pytest.raises(LogError, match="'log'"):
        read_tail(log, stream="log")
