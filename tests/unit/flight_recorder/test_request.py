"""
How is a running job asked for its dumps?
"""

import json
import logging
import os
import socket
import sys
import threading
import time

from pathlib import Path

import pytest

from distdebug.flight_recorder import (
    DumpRequest,
    current_recording,
    disable_flight_recorder,
    enable_flight_recorder,
    request_dumps,
)


TOKEN = "1700000000-42"


@pytest.fixture
def rank(tmp_path):
    """
    Starts a rank that answers each request by calling something.
    """
    opened = []

    def start(name, answer=lambda: None):
        os.mkfifo(tmp_path / name)
        fd = os.open(tmp_path / name, os.O_RDWR)

        def listen():
            while not os.read(fd, 1 << 16).endswith(b"stop"):
                answer()

        thread = threading.Thread(target=listen)
        thread.start()
        opened.append((fd, thread))

    yield start
    for fd, thread in opened:
        os.write(fd, b"stop")
        thread.join()
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


def test_rank_known_later(tmp_path, rank):
    """
    A rank that had no number yet when it began is found by what it answers.
    """
    rank(
        f"{TOKEN}_request_unknown.pipe",
        lambda: dump(tmp_path, rank=3),
    )

    first, second = request_dumps(tmp_path, ranks=[3, 5], timeout_s=5)

    assert (3, "dumped") == (first.rank, first.status)
    assert (5, "absent", "it has no pipe") == (
        *(second.rank, second.status, second.reason),
    )


def test_dumped(tmp_path, rank):
    """
    Every rank that answers is listed with its dump.
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


@pytest.mark.parametrize(
    ("dead", "alive", "expected"),
    [
        # A process that did not know its rank gives it with its answer.
        ([], f"{TOKEN}_request_unknown.pipe", (6, "dumped")),
        # Where a job was restarted, the process that lives is asked.
        (
            ["1800000000-1_request_6.pipe"],
            f"{TOKEN}_request_6.pipe",
            (6, "dumped"),
        ),
        # Where none of ours listens, torch's pipe is tried, and not waited
        # for.
        ([f"{TOKEN}_request_6.pipe"], f"{TOKEN}_nccl_6.pipe", (6, "asked")),
        ([], "nccl_6.pipe", (6, "asked")),
    ],
    ids=["unknown rank", "restarted", "torch for us", "torch"],
)
def test_pipes(tmp_path, rank, dead, alive, expected):
    """
    Of the pipes of a rank, that one is written to at which a process listens.
    """
    for name in dead:
        os.mkfifo(tmp_path / name)
    is_ours = "request" in alive
    rank(alive, lambda: dump(tmp_path, rank=6) if is_ours else None)

    (row,) = request_dumps(tmp_path)

    assert expected == (row.rank, row.status)


def test_prefix(tmp_path, rank):
    """
    Pipes are chosen by what their names start with.
    """
    rank("nccl_0.pipe")
    rank("other_1.pipe")

    rows = request_dumps(tmp_path / "nccl_")

    assert (DumpRequest(0, "asked", tmp_path / "nccl_0.pipe"),) == rows


@pytest.mark.parametrize("make", [Path.touch, lambda p: p.symlink_to("x")])
def test_not_a_pipe(tmp_path, make):
    """
    What only looks like a pipe is not written to.
    """
    make(tmp_path / "nccl_0.pipe")

    (row,) = request_dumps(tmp_path)

    assert "failed" == row.status
    assert "not a pipe" in row.reason


def test_full(tmp_path):
    """
    A pipe that is full of requests will be answered as well.
    """
    pipe = tmp_path / f"{TOKEN}_request_0.pipe"
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDWR)
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

    monkeypatch.setattr(time, "sleep", pause)
    rank(f"{TOKEN}_request_0.pipe", lambda: dump(tmp_path, link=False))

    (row,) = request_dumps(tmp_path)

    assert "dumped" == row.status
    assert len(pauses) > 1


def test_no_link(tmp_path, rank):
    """
    Where there can be no link, the dump counts when time is up.
    """
    rank(f"{TOKEN}_request_0.pipe", lambda: dump(tmp_path, link=False))

    (row,) = request_dumps(tmp_path, timeout_s=1.0)

    assert "dumped" == row.status


def test_texts(tmp_path):
    """
    An answer is plain data, and a table shows it without control characters.
    """
    row = DumpRequest(None, "failed", tmp_path / "x\x1b[31m", "a\nb")

    assert str(tmp_path / "x\x1b[31m") == row.to_dict()["path"]
    assert str(row).startswith("a rank: failed")
    assert "\x1b" not in str(row)


def test_nowhere(tmp_path):
    """
    Where there is no folder, there is no rank to ask.
    """
    assert () == request_dumps(tmp_path / "a" / "b")


def pipe_of(recording):
    """
    The pipe at which this process listens.
    """
    return Path(f"{recording.settings.request_prefix}3.pipe")


def ask(recording):
    """
    Ask this process for a dump.
    """
    (row,) = request_dumps(recording.settings.dump_dir, timeout_s=30)
    return row.rank, row.status


class TestListener:
    def test_name(self, with_extras):
        """
        One thread listens, which is named after us.
        """
        names = [thread.name for thread in threading.enumerate()]

        assert 1 == names.count("distdebug listener")

    def test_goes_on(self, with_extras, monkeypatch):
        """
        A request that fails does not end the listening.
        """
        failed = threading.Event()

        def fail():
            failed.set()
            raise ValueError

        with monkeypatch.context() as patch:
            patch.setattr(socket, "gethostname", fail)
            pipe_of(with_extras).write_bytes(b"1")
            assert failed.wait(30)

        assert (3, "dumped") == ask(with_extras)

    def test_drained(self, with_extras):
        """
        However many requests are in a pipe, all of them are one.
        """
        pipe_of(with_extras).write_bytes(b"x" * 65536)

        assert [(3, "dumped")] * 2 == [ask(with_extras), ask(with_extras)]
        assert len(with_extras.dumps) <= 4

    @pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
    def test_busy(self, with_extras, fake_torch, monkeypatch):
        """
        A listener that is busy is not waited for, and keeps its pipes.
        """
        gate, busy = threading.Event(), threading.Event()

        def wait(*_):
            busy.set()
            gate.wait(30)
            return b"record_id"

        def is_pipe(fd):
            return fd.is_symlink() and fd.readlink().name.startswith(pipe.name)

        pipe = pipe_of(with_extras)
        (listener,) = (
            t for t in threading.enumerate() if t.name.endswith(" listener")
        )
        join = threading.Thread.join
        fake_torch.c10d._dump_fr_trace = wait
        pipe.write_bytes(b"1")
        assert busy.wait(30)
        monkeypatch.setattr(threading.Thread, "join", lambda t, s: join(t, 0))

        disable_flight_recorder()
        still_open = list(filter(is_pipe, Path("/proc/self/fd").iterdir()))
        gate.set()
        join(listener, 30)

        assert 1 == len(still_open)
        assert not listener.is_alive()
        os.close(int(still_open[0].name))

    def test_disabled(self, with_extras):
        """
        Once recording is disabled nothing listens.
        """
        disable_flight_recorder()

        assert () == request_dumps(with_extras.settings.dump_dir)


@pytest.mark.usefixtures("no_settings", "rank_3", "fake_torch")
class TestPipe:
    @pytest.fixture
    def path(self, tmp_path, monkeypatch):
        """
        Where this process will make its pipe.
        """
        monkeypatch.setattr(time, "time", lambda: 1_700_000_000.5)
        return tmp_path / f"1700000000-{os.getpid()}_request_3.pipe"

    def test_leftover(self, path):
        """
        What a dead process left is replaced; only its owner may write.
        """
        os.mkfifo(path)
        path.chmod(0o666)

        enable_flight_recorder(dump_dir=path.parent)

        assert 0o600 == path.stat().st_mode & 0o777
        assert (3, "dumped") == ask(current_recording())

    def test_file_in_the_way(self, path, caplog, no_complaints):
        """
        A file in place of the pipe is not replaced, and the job goes on.
        """
        path.write_text("keep")

        with caplog.at_level(logging.WARNING, "distdebug"):
            enable_flight_recorder(dump_dir=path.parent)

        assert "keep" == path.read_text()
        assert "FileExistsError" in caplog.text
