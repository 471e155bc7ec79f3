"""
What one file says, whatever is in it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pickle
import tracemalloc
import zlib

import pytest

from distdebug.errors import NoDumpsError
from distdebug.flight_recorder import read_dumps
from distdebug.flight_recorder.reading.decode import load_plain_pickle
from distdebug.testing import SimulatedJob, make_dumps, plain_dump
from distdebug.testing.dumps import torch_pickle


pytestmark = pytest.mark.usefixtures("decoded_here")

NAME = "nccl_trace_rank_0"
BUILTIN = [None, True, False, (), [], {}, "", 0, -1, 0.5]


@pytest.fixture(name="job")
def _job():
    """
    Two ranks and three calls.
    """
    job = SimulatedJob(2, stack_depth=3)
    for _ in range(3):
        job.collective("all_reduce")
    return job


def read_raw(folder, raw):
    """
    The dump in a file with that content, if any, and what is wrong with it.
    """
    (folder / NAME).write_bytes(raw)
    dumps = read_dumps(folder / NAME)
    why = "; ".join(problem.reason for problem in dumps.problems)
    return dumps.by_rank.get(0), why


def reason(folder, raw):
    """
    Why a file with that content is no dump.
    """
    dump, why = read_raw(folder, raw)
    assert dump is None
    return why


class Evil:
    """
    Code that makes a folder when it is unpickled.
    """

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


class TestRecognized:
    @pytest.mark.parametrize("compress", [False, True])
    @pytest.mark.parametrize("as_json", [False, True])
    def test_by_content(self, tmp_path, job, unpickler, as_json, compress):
        """
        Pickles and JSON, compressed or not, are recognized by what is in them.
        """
        made = make_dumps(tmp_path, job, as_json=as_json, compress=compress)

        dump, why = read_raw(tmp_path, made[0].read_bytes())

        assert (3, "") == (len(dump.entries), why)

    def test_odd_name(self, tmp_path, job):
        """
        A name that is not text is found.
        """
        path = make_dumps(tmp_path, job)[0]
        odd = path.rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff_0"))

        assert 3 == len(read_dumps(odd)[0].entries)

    @pytest.mark.parametrize(
        ("raw", "expected"),
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
            (
                pickle.dumps({"weights": list(range(100_000))}, 2),
                "it is not a Flight Recorder dump",
            ),
            (pickle.dumps("seq_id"), "it does not hold what"),
            (b'{"entries": {"0": 1}}', "its entries are no list"),
            (b'{"entries":[{"seq_id":', "its JSON is broken: "),
            (
                b'{"seq_id":' + b"[" * 200_000,
                "its JSON is nested too deeply",
            ),
            (gzip.compress(b"", mtime=0), "the file is empty"),
            (gzip.compress(b"x", mtime=0)[:10] + b"\xff" * 9, "the file is"),
        ],
        ids=range(14),
    )
    def test_something_else(self, tmp_path, unpickler, raw, expected):
        """
        Other files are no dumps, and the reason is given.
        """
        assert reason(tmp_path, raw).startswith(expected)

    def test_pipe(self, tmp_path, job):
        """
        A pipe in place of a file is not waited for, not even if it takes the
        place of one that is just being read.
        """
        os.mkfifo(tmp_path / "nccl_trace_rank_7")
        with pytest.raises(NoDumpsError):
            read_dumps(tmp_path)

        paths = make_dumps(tmp_path, job)

        def replace(*_):
            for path in paths.values():
                path.unlink(missing_ok=True)
                os.mkfifo(path)

        dumps = read_dumps(tmp_path, progress=replace)

        assert 1 == len(dumps)
        (problem,) = dumps.problems
        assert "it is not a regular file" == problem.reason

    def test_gone(self, tmp_path, job):
        """
        A file that is gone when it should be read is a failure.
        """
        paths = make_dumps(tmp_path, job)

        dumps = read_dumps(
            tmp_path,
            progress=lambda *_: [
                p.unlink(missing_ok=True) for p in paths.values()
            ],
        )

        assert ["No such file or directory"] == [
            p.reason for p in dumps.problems
        ]


class TestHostile:
    @pytest.mark.parametrize("position", ["first", "last"])
    def test_code(self, tmp_path, job, unpickler, position):
        """
        Code in a pickle is refused, not run; what stood before it is used.
        """
        victim = tmp_path / "made-by-pickle"
        dump, evil = plain_dump(job, 0), Evil(str(victim))
        dump = (
            {"a": evil, **dump} if position == "first" else {**dump, "z": evil}
        )

        found, why = read_raw(tmp_path, pickle.dumps(dump, 2))

        assert not victim.exists()
        assert "" != why
        assert (position == "last") == (found is not None)

    def test_name_of_code(self, tmp_path):
        """
        The reason names the code that was asked for, which cannot steer the
        terminal.
        """
        raw = b"\x80\x02cos\x1b[31m\nsystem\n(X\x02\0\0\0idtR."

        assert "posix.mkdir" in reason(tmp_path, pickle.dumps(Evil("x"), 2))
        assert "it asks for the code os.system, which was refused" == reason(
            tmp_path, raw
        )

    def test_persistent_id(self, tmp_path):
        """
        References to objects outside of the file are refused.
        """
        raw = b"\x80\x02}(X\x07\0\0\0entriesK\x01Qu."

        assert "outside" in reason(tmp_path, raw)

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (MemoryError, "it takes more memory to decode than a dump"),
            (ZeroDivisionError(3), "it cannot be decoded: ZeroDivisionErr"),
        ],
    )
    def test_surprise(self, tmp_path, monkeypatch, error, expected):
        """
        Whatever goes wrong is a failure of that file.
        """
        open_file = os.open

        def surprised(path, flags, *args, **options):
            if str(path).endswith(NAME):
                raise error
            return open_file(path, flags, *args, **options)

        monkeypatch.setattr(os, "open", surprised)

        assert reason(tmp_path, b"x").startswith(expected)

    @pytest.mark.parametrize("compressed", [False, True])
    def test_huge(self, tmp_path, compressed):
        """
        What is huge, perhaps only when decompressed, is not read.
        """
        block = bytes(1 << 20)
        (tmp_path / NAME).touch()
        if compressed:
            stream = zlib.compressobj(wbits=31)
            head = stream.compress(block) + stream.flush(zlib.Z_FULL_FLUSH)
            block = stream.compress(block) + stream.flush(zlib.Z_FULL_FLUSH)
            (tmp_path / NAME).write_bytes(head + block * 128)
        else:
            os.truncate(tmp_path / NAME, 129 << 20)

        (problem,) = read_dumps(tmp_path).problems

        assert "it is larger than any dump" == problem.reason

    @pytest.mark.parametrize("unpickler", ["careful"], indirect=True)
    def test_memo_bomb(self, tmp_path, unpickler):
        """
        A high index into the memo takes no memory.
        """
        raw = b"\x80\x02}r\xff\xff\xff\x7f(X\x07\0\0\0entries]u."

        tracemalloc.start()
        dump, why = read_raw(tmp_path, raw)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert (0, "") == (len(dump.entries), why)
        assert peak < 1 << 24


class TestPickle:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    @pytest.mark.parametrize(
        "value",
        [
            BUILTIN,
            [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
            [255, 256, 65536, -(2**31), 2**40, 2**2100, -(2**2100)],
            ["x" * 300, "na\xefve \N{SNOWMAN}", "\udc80", "x" * 70_000],
            {"a": {"b": [{"c": 1}]}, 1: None, None: 2},
            {str(n): n for n in range(2500)},
            list(range(2500)),
        ],
        ids=lambda value: f"{value!r:.20}",
    )
    def test_values(self, tmp_path, job, unpickler, value, protocol):
        """
        Whatever plain data a dump holds beside the records, in any protocol
        since 2, the records are read.
        """
        dump = {"pg_status": {}, "x": value, **plain_dump(job, 0)}
        raw = pickle.dumps(dump, protocol)

        dump, why = read_raw(tmp_path, raw)

        assert ([0, 1, 2], "") == (dump.entries.record_id.tolist(), why)

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_careful(self, protocol):
        """
        The careful unpickler reads plain data as Python does.
        """
        value = {"a": [(), (1,), (1, 2), (1, 2, 3), (1, (2, [3]), {}, 4)]}
        value["b"] = [{"c": (5, 6, 7, 8, 9)}, *BUILTIN]

        found = load_plain_pickle(pickle.dumps(value, protocol))

        assert (value, "") == found

    def test_recursive(self, tmp_path, job, unpickler):
        """
        A value may contain itself.
        """
        inner: list[object] = []
        inner.append((inner,))

        dump, why = read_raw(
            tmp_path, pickle.dumps({"x": inner[0], **plain_dump(job, 0)}, 2)
        )

        assert (3, "") == (len(dump.entries), why)

    @pytest.mark.parametrize(
        ("raw", "damage"),
        [
            (b"", "the file ends too early"),
            (b"\x80\x09.", "a protocol that is not known"),
            (b"cos\nsystem\n.", "opcode b'c'"),
            (b"NR.", "opcode b'R'"),
            (b"X\xff\xff\xff\xff.", "the file ends too early"),
            (b"X\x01\x00\x00\x00\xff.", "a string that is not UTF-8"),
            (b"\x8b\xff\xff\xff\xff.", "the file ends too early"),
            (b"\x8d" + b"\xff" * 8, "the file ends too early"),
            (b"h\x00.", "nothing is remembered as 0"),
            (b"q\x00.", "nothing to remember"),
            (b".", "nothing to take from the stack"),
            (b"e.", "no mark to go back to"),
            (b"N(Ne.", "no list to fill"),
            (b"}(Nu.", "a dictionary with broken keys"),
            (b"})Ns.", "a dictionary with broken keys"),
            (b"(" * 1000, "nested too deeply"),
        ],
        ids=range(16),
    )
    @pytest.mark.parametrize("unpickler", ["careful"], indirect=True)
    def test_broken(self, tmp_path, unpickler, raw, damage):
        """
        The reason says what is wrong with a pickle, and where.
        """
        # What a dump has to begin with, taken off the stack again.
        begin = b"\x80\x02X\x07\0\0\0entries0"

        why = reason(tmp_path, begin + raw)

        assert why.startswith(damage)
        assert " at byte " in why

    def test_any_cut(self, tmp_path, job, unpickler):
        """
        Wherever a dump is cut, what is left are its first whole records; and
        without any it is a failure.
        """
        raw = torch_pickle(plain_dump(job, 0))

        counts = []
        for cut in itertools.chain(range(8, len(raw), 7), [len(raw) - 1]):
            dump, why = read_raw(tmp_path, raw[:cut])
            count = 0 if dump is None else len(dump.entries)
            ids = [] if dump is None else dump.entries.record_id.tolist()
            assert list(range(count)) == ids
            assert "" != why
            assert dump is None or dump.truncated
            counts.append(count)

        assert sorted(counts) == counts
        assert {0, 1, 2, 3} == set(counts)

    @pytest.mark.parametrize("protocol", [2, 4])
    def test_repickled(self, tmp_path, job, protocol):
        """
        So it is if Python wrote it, in batches of a thousand.
        """
        dump = plain_dump(job, 0)
        dump["entries"] *= 500

        found, _ = read_raw(tmp_path, pickle.dumps(dump, protocol)[:-1000])

        assert 1000 < len(found.entries) < 1500
        assert dump["version"] == found.version

    def test_list(self, tmp_path, job):
        """
        So it is if the dump is a bare list.
        """
        raw = torch_pickle(plain_dump(job, 0)["entries"])

        dump, why = read_raw(tmp_path, raw[:-10])

        assert [0, 1] == dump.entries.record_id.tolist()
        assert "only 2 records could be read: the file ends too" in why

    def test_odd_key(self, tmp_path, job):
        """
        What is not called by a name is left out.
        """
        raw = pickle.dumps({1: 2, **plain_dump(job, 0)}, 2)

        dump, _ = read_raw(tmp_path, raw[:-2])

        assert "2.10" == dump.version

    def test_cut_in_header(self, tmp_path, job):
        """
        A dump without a single whole record is a failure.
        """
        raw = torch_pickle(plain_dump(job, 0))

        why = reason(tmp_path, raw[:80])

        assert "the file ends too early at byte 80" == why

    def test_truncated_gzip(self, tmp_path, job, unpickler):
        """
        The whole records of a compressed file that was cut are used.
        """
        for _ in range(100):
            job.collective("broadcast")
        raw = gzip.compress(torch_pickle(plain_dump(job, 0)))

        dump, why = read_raw(tmp_path, raw[: len(raw) // 2])

        assert 0 < len(dump.entries) < 103
        assert "the file ends too early" in why


def test_stacks(tmp_path, job):
    """
    Stacks are read by the number of the record; lines that are not whole are
    left out, and a record that is not there has none.
    """
    dump = plain_dump(job, 0)
    good = {"name": "f", "filename": "a.py", "line": 3}
    dump["entries"][1]["frames"] = [
        *(good, None, {"name": "f"}),
        {**good, "line": "3"},
    ]
    dump["entries"][2]["frames"] = "x"
    (tmp_path / NAME).write_text(json.dumps(dump))

    first, second, *others = read_dumps(tmp_path).frames(0, [0, 1, 2, 99])

    assert 3 == len(first)
    assert ("all_reduce", "torch/distributed/distributed_c10d.py", 3245) == (
        first[0].name,
        first[0].filename,
        first[0].line,
    )
    assert [("f", "a.py", 3)] == [(f.name, f.filename, f.line) for f in second]
    assert [(), ()] == others
