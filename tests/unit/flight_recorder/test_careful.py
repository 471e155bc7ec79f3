"""
Pickles of plain data, read opcode by opcode.
"""

from __future__ import annotations

import pickle
import tracemalloc

import pytest

from distdebug.flight_recorder.reading.careful import load_plain
from distdebug.testing import SimulatedJob, plain_dump
from distdebug.testing.torch_pickle import torch_pickle


@pytest.fixture(name="dump")
def _dump():
    """
    A dump of three calls.
    """
    job = SimulatedJob(2, stack_depth=3)
    for _ in range(3):
        job.collective("all_reduce")
    return plain_dump(job, 0)


class TestWhole:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    @pytest.mark.parametrize(
        "value",
        [
            None,
            [True, False, (), [], {}, "", 0, -1, 0.5],
            (1,),
            (1, 2),
            (1, 2, 3),
            (1, 2, 3, 4),
            [255, 256, 65536, -(2**31), 2**40, 2**2100, -(2**2100)],
            ["x" * 300, "na\xefve \N{SNOWMAN}", "\udc80"],
            {"a": {"b": [{"c": 1}]}, 1: None, None: 2},
            {str(n): n for n in range(2500)},
            list(range(2500)),
        ],
        ids=lambda value: f"{value!r:.30}",
    )
    def test_like_pickle(self, value, protocol):
        """
        Plain data of any protocol since 2 is what `pickle` says it is.
        """
        raw = pickle.dumps(value, protocol)

        assert (value, "") == load_plain(raw)

    def test_recursive(self):
        """
        A value may contain itself.
        """
        inner: list[object] = []
        value = (inner,)
        inner.append(value)

        got = load_plain(pickle.dumps(value, 2)).value

        assert got is got[0][0]

    def test_torch(self, dump):
        """
        What torch writes is understood.
        """
        assert (dump, "") == load_plain(torch_pickle(dump))


class TestDamaged:
    @pytest.mark.parametrize(
        ("raw", "damage"),
        [
            (b"", "the file ends too early"),
            (b"\x80\x02", "the file ends too early"),
            (b"\x80\x09.", "a protocol that is not known"),
            (b"\x80\x02cos\nsystem\n.", "opcode b'c'"),
            (b"\x80\x02NR.", "opcode b'R'"),
            (b"\x80\x02X\xff\xff\xff\xff.", "the file ends too early"),
            (b"\x80\x02X\x01\x00\x00\x00\xff.", "a string that is not UTF-8"),
            (b"\x80\x02\x8b\xff\xff\xff\xff.", "the file ends too early"),
            (b"\x80\x02\x8d" + b"\xff" * 8, "the file ends too early"),
            (b"\x80\x02h\x00.", "nothing is remembered as 0"),
            (b"\x80\x02q\x00.", "nothing to remember"),
            (b"\x80\x02.", "nothing to take from the stack"),
            (b"\x80\x02e.", "no mark to go back to"),
            (b"\x80\x02N(Ne.", "no list to fill"),
            (b"\x80\x02}(Nu.", "a dictionary with broken keys"),
            (b"\x80\x02})Ns.", "a dictionary with broken keys"),
            (b"\x80\x02" + b"(" * 1000, "nested too deeply"),
        ],
    )
    def test_reason(self, raw, damage):
        """
        What is wrong, and where, is told.
        """
        outcome = load_plain(raw)

        assert outcome.damage.startswith(damage)
        assert " at byte " in outcome.damage

    def test_memo_bomb(self):
        """
        A high index into the memo takes no memory.
        """
        raw = b"\x80\x02]r\xff\xff\xff\x7f."

        tracemalloc.start()
        outcome = load_plain(raw)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert ([], "") == outcome
        assert peak < 1 << 20


class TestSalvaged:
    def test_any_cut(self, dump):
        """
        Wherever a dump is cut, what is left are its first whole records.
        """
        raw = torch_pickle(dump)

        counts = []
        for cut in range(len(raw)):
            value = load_plain(raw[:cut]).value or {}
            entries = value.get("entries", [])
            assert dump["entries"][: len(entries)] == entries
            counts.append(len(entries))

        assert sorted(counts) == counts
        assert {0, 1, 2, 3} == set(counts)

    @pytest.mark.parametrize("protocol", [2, 4])
    def test_repickled(self, dump, protocol):
        """
        So it is if Python wrote it, in batches of a thousand.
        """
        dump["entries"] *= 500
        raw = pickle.dumps(dump, protocol)

        value = load_plain(raw[:-1000]).value

        assert 1000 < len(value["entries"]) < 1500
        assert dump["version"] == value["version"]

    def test_list(self, dump):
        """
        So it is if the dump is a bare list.
        """
        raw = torch_pickle(dump["entries"])

        assert dump["entries"][:2] == load_plain(raw[:-10]).value

    def test_no_header(self, dump):
        """
        Where a value of the header is unfinished, it is left out.
        """
        raw = torch_pickle(dump)

        value = load_plain(raw[: raw.index(b"default_pg")]).value

        assert {"version": "2.10"} == value

    def test_odd_key(self):
        """
        What is not called by a name is left out.
        """
        raw = pickle.dumps({1: 2, "version": "2.10"}, 2)

        assert {"version": "2.10"} == load_plain(raw[:-2]).value

    def test_something_else(self):
        """
        Of other data nothing is salvaged.
        """
        assert load_plain(pickle.dumps("text", 2)[:-1]).value is None
