"""
One dump file, decoded in this process.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import sys

import pytest

from distdebug.flight_recorder.reading import decode
from distdebug.flight_recorder.reading.decode import (
    LENGTHS,
    answer,
    main,
    pack,
)
from distdebug.testing import SimulatedJob, make_dumps, plain_dump
from distdebug.testing.torch_pickle import torch_pickle


@pytest.fixture(name="is_limited", params=[True, False], ids=["c", "careful"])
def _is_limited(request):
    """
    With a limit on memory, the unpickler of Python is used.
    """
    return request.param


@pytest.fixture(autouse=True)
def _unlimited(monkeypatch, request):
    """
    These tests must not limit the memory of their own process.
    """
    is_limited = True
    if "is_limited" in request.fixturenames:
        is_limited = request.getfixturevalue("is_limited")
    monkeypatch.setattr(decode, "limit_process", lambda size: is_limited)


@pytest.fixture(name="job")
def _job():
    """
    Two ranks and three calls.
    """
    job = SimulatedJob(2, stack_depth=3)
    for _ in range(3):
        job.collective("all_reduce")
    return job


def ask(path, **request):
    """
    The header of an answer.
    """
    name = os.fsencode(path).decode("latin-1")
    message = answer({"path": name, **request})
    size, rest = LENGTHS.unpack_from(message)
    assert len(message) == LENGTHS.size + size + rest
    return json.loads(message[LENGTHS.size : LENGTHS.size + size])


def ask_bytes(folder, raw):
    """
    The header of the answer about a file with that content.
    """
    path = folder / "nccl_trace_rank_0"
    path.write_bytes(raw)
    return ask(path)


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


class TestRecognized:
    @pytest.mark.parametrize("compress", [False, True])
    @pytest.mark.parametrize("as_json", [False, True])
    def test_by_content(self, tmp_path, job, is_limited, as_json, compress):
        """
        Pickles and JSON, compressed or not, are told by what is in them.
        """
        made = make_dumps(tmp_path, job, as_json=as_json, compress=compress)
        path = made[0].rename(tmp_path / "x.gz")

        header = ask(path)

        assert (3, 0, "") == (
            header["count"],
            header["unreadable"],
            header["damage"],
        )

    def test_odd_name(self, tmp_path, job):
        """
        A name that is not text is found.
        """
        path = make_dumps(tmp_path, job)[0]
        odd = path.rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff_0"))

        assert 3 == ask(odd)["count"]

    @pytest.mark.parametrize(
        ("raw", "reason"),
        [
            (b"", "the file is empty"),
            (b"Thu Nov 20 step 3 loss 0.1", "it is neither a pickle nor JSON"),
            (b'{"traceEvents": []}', "it is not a Flight Recorder dump"),
            (
                b'{"version": 1, "note": "seq_id"}',
                "it does not hold what the Flight Recorder writes",
            ),
            (b'["seq_id"]', "it holds a list, but not of records"),
            (b'"seq_id"', "it is neither a pickle nor JSON"),
            (pickle.dumps({"a": 1}), "it is not a Flight Recorder dump"),
            (pickle.dumps("seq_id"), "it does not hold what"),
            (b'{"entries": {"0": 1}}', "its entries are not a list"),
            (gzip.compress(b"", mtime=0), "the file is empty"),
        ],
    )
    def test_something_else(self, tmp_path, is_limited, raw, reason):
        """
        Other files are no dumps, and why is told.
        """
        header = ask_bytes(tmp_path, raw)

        assert "alien" == header["failure"]
        assert header["reason"].startswith(reason)

    def test_pipe(self, tmp_path):
        """
        A named pipe is not waited for.
        """
        path = tmp_path / "nccl_trace_rank_0.pipe"
        os.mkfifo(path)

        assert "it is not a regular file" == ask(path)["reason"]

    def test_gone(self, tmp_path):
        """
        A file that is gone is a failure.
        """
        header = ask(tmp_path / "nccl_trace_rank_0")

        assert {
            "failure": "broken",
            "reason": "No such file or directory",
        } == header


class TestHostile:
    @pytest.mark.parametrize("position", ["first", "last"])
    def test_code(self, tmp_path, job, is_limited, position):
        """
        Code in a pickle is refused, not run; what stood before it is used.
        """
        victim = tmp_path / "made-by-pickle"
        dump = plain_dump(job, 0)
        dump = (
            {"a": _Evil(str(victim)), **dump}
            if position == "first"
            else {**dump, "z": _Evil(str(victim))}
        )

        header = ask_bytes(tmp_path, pickle.dumps(dump, 2))

        assert not victim.exists()
        assert "" != header.get("reason", header.get("damage"))

    def test_name_of_code(self, tmp_path):
        """
        Which code was asked for is told.
        """
        header = ask_bytes(tmp_path, pickle.dumps(_Evil("x"), 2))

        assert "alien" == header["failure"]
        assert "posix.mkdir" in header["reason"]

    def test_large_dump_of_something(self, tmp_path):
        """
        Of other pickles only the beginning is read.
        """
        raw = pickle.dumps({"weights": list(range(100_000))}, 2)

        assert (
            "it is not a Flight Recorder dump"
            == (ask_bytes(tmp_path, raw)["reason"])
        )

    def test_persistent_id(self, tmp_path):
        """
        References to objects outside of the file are refused.
        """
        header = ask_bytes(tmp_path, b"\x80\x02}(X\x07\0\0\0entriesK\x01Qu.")

        assert "outside" in header["reason"]

    def test_memo_bomb(self, tmp_path, job, monkeypatch):
        """
        Where the unpickler takes too much memory, the careful one is used.
        """

        class Hungry:
            def __init__(self, file):
                self.file = file

            def load(self):
                raise MemoryError

        monkeypatch.setattr(decode, "_PlainUnpickler", Hungry)

        header = ask_bytes(tmp_path, torch_pickle(plain_dump(job, 0)))

        assert (3, "") == (header["count"], header["damage"])

    def test_memory(self, tmp_path, monkeypatch):
        """
        Too little memory is a failure of that file.
        """

        def hungry(data):
            raise MemoryError

        monkeypatch.setattr(decode, "_load", hungry)

        assert "memory" in ask_bytes(tmp_path, b"")["reason"]

    def test_surprise(self, tmp_path, monkeypatch):
        """
        Whatever goes wrong is a failure of that file.
        """

        def surprised(path):
            raise ZeroDivisionError(3)

        monkeypatch.setattr(decode, "_load", surprised)

        header = ask_bytes(tmp_path, b"")

        assert (
            "it cannot be decoded: ZeroDivisionError: 3" == (header["reason"])
        )

    def test_deep_json(self, tmp_path):
        """
        JSON that is nested very deeply is a failure.
        """
        header = ask_bytes(tmp_path, b'{"seq_id":' + b"[" * 200_000)

        assert "its JSON is nested too deeply" == header["reason"]

    def test_broken_json(self, tmp_path):
        """
        JSON that ends too early is a failure.
        """
        header = ask_bytes(tmp_path, b'{"entries":[{"seq_id":')

        assert header["reason"].startswith("its JSON is broken: ")

    @pytest.mark.parametrize("compress", [gzip.compress, bytes])
    def test_huge(self, tmp_path, monkeypatch, compress):
        """
        What is huge, perhaps only when decompressed, is not read.
        """
        monkeypatch.setattr(decode, "SIZE_LIMIT", 5 << 20)

        header = ask_bytes(tmp_path, compress(bytes(6 << 20)))

        assert "it is larger than any dump" == header["reason"]

    def test_truncated_gzip(self, tmp_path, job, is_limited):
        """
        The whole records of a compressed file that was cut are used.
        """
        for _ in range(500):
            job.collective("broadcast")
        raw = gzip.compress(torch_pickle(plain_dump(job, 0)))

        header = ask_bytes(tmp_path, raw[: len(raw) // 2])

        assert 0 < header["count"] < 503
        assert "the file ends too early" in header["damage"]

    def test_damaged_gzip(self, tmp_path, job):
        """
        A compressed file that is damaged at once holds nothing.
        """
        raw = bytearray(gzip.compress(torch_pickle(plain_dump(job, 0))))
        raw[10:30] = b"\xff" * 20

        assert "the file is empty" == ask_bytes(tmp_path, raw)["reason"]


def test_cut_in_header(tmp_path, job):
    """
    A dump without a single whole record tells nothing, and is a failure.
    """
    raw = torch_pickle(plain_dump(job, 0))

    header = ask_bytes(tmp_path, raw[:80])

    assert "broken" == header["failure"]
    assert "the file ends too early at byte 80" == header["reason"]


def test_frames(tmp_path, job):
    """
    Stacks are read by the number of the record.
    """
    path = make_dumps(tmp_path, job)[0]

    (first, outside) = ask(path, rows=[0, 99])["frames"]

    assert ["all_reduce", "torch/distributed/distributed_c10d.py", 3245] == (
        first[0]
    )
    assert 3 == len(first)
    assert [] == outside


def test_alignment():
    """
    Columns begin where NumPy likes numbers to be.
    """
    for width in range(20):
        size, _ = LENGTHS.unpack_from(pack({"x": "y" * width}, [b"z"]))
        assert 0 == size % 8


def test_main(tmp_path, job, monkeypatch):
    """
    Each line is a request, and each has an answer.
    """
    path = make_dumps(tmp_path, job)[0]
    line = json.dumps({"path": str(path)}).encode() + b"\n"
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line * 2)))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output))

    main()
    sys.stdout.detach()

    assert 2 * answer({"path": str(path)}) == output.getvalue()
