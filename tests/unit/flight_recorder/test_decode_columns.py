"""
Records, turned into columns.
"""

from __future__ import annotations

import math

from array import array

import pytest

from distdebug.flight_recorder.reading.extract import (
    COLUMNS,
    frames_of,
    tabulate,
)
from distdebug.flight_recorder.reading.header import NotADumpError, describe
from distdebug.testing import SimulatedJob, plain_dump


@pytest.fixture(name="entries")
def _entries():
    """
    The records of two groups, of which the last is not complete.
    """
    job = SimulatedJob(4)
    pair = job.new_group([0, 1], "tp")
    job.collective("all_reduce", sizes=[[2, 3]])
    job.collective("all_gather", pair, sizes=[[2]], output_sizes=[[4]])
    job.collective("all_reduce", sizes=[[2, 3]], ranks=[0, 1])
    return plain_dump(job, 0)["entries"]


def columns_of(entries, **options):
    """
    Tables, columns by name, and what was kept.
    """
    tables, raw, kept = tabulate(entries, **options)
    columns = {}
    for (name, code), data in zip(COLUMNS.items(), raw, strict=True):
        columns[name] = array(code, data).tolist()
    return tables, columns, kept


class TestTabulate:
    @pytest.mark.parametrize("strict", [False, True])
    def test_good(self, entries, strict):
        """
        Each field is in its column, and what repeats is in a table.
        """
        tables, columns, kept = columns_of(entries, strict=strict)

        times = [e["time_created_ns"] for e in entries]
        assert entries == kept
        assert [0, 1, 2] == columns["record_id"]
        assert [1, 1, 2] == columns["seq"]
        assert [0, 0, 0] == columns["p2p_seq"] == columns["started_ns"]
        assert times == columns["created_ns"]
        assert 0 == columns["completed_ns"][2]
        assert all(map(math.isnan, columns["duration_ms"]))
        assert [0, 1, 0] == columns["shape"]
        assert [
            '[[[2,3]],["Float"],[[2,3]],["Float"]]',
            '[[[2]],["Float"],[[4]],["Float"]]',
        ] == tables["shapes"]
        assert [[6, 2], [6, 4]] == tables["elements"]
        assert [
            ("0", "default_pg", 0, "nccl:all_reduce", 2, True, False, 600000),
            ("1", "tp", 1, "nccl:all_gather", 2, True, False, 600000),
            ("0", "default_pg", 0, "nccl:all_reduce", 0, False, False, 600000),
        ] == tables["kinds"]

    def test_none(self):
        """
        No records make empty columns.
        """
        tables, columns, kept = columns_of([])

        assert ([], []) == (tables["kinds"], kept)
        assert all([] == column for column in columns.values())

    @pytest.mark.parametrize(
        "damage",
        [
            {"record_id": "0"},
            {"record_id": 1.5},
            {"record_id": 1 << 63},
            {"collective_seq_id": None},
            {"pg_id": 1 << 40},
            {"pg_id": "0"},
            {"process_group": ["0"]},
            {"process_group": ("0", 1)},
            {"process_group": 3},
            {"profiling_name": None},
            {"profiling_name": 7},
            {"input_sizes": [["1"]]},
            {"input_sizes": [3]},
            {"input_sizes": None},
            {"input_dtypes": [1]},
            {"output_sizes": [[1 << 64]]},
            {"time_created_ns": "now"},
            {"duration_ms": "long"},
            {"timeout_ms": "600"},
            {"state": []},
            {"input_sizes": print},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("strict", [False, True])
    def test_one_is_wrong(self, entries, damage, strict):
        """
        A record that does not fit is left out, and the others stay.
        """
        bad = {**entries[1], **damage}

        _, columns, kept = columns_of(
            [entries[0], bad, entries[2]], strict=strict
        )

        assert [0, 2] == columns["record_id"]
        assert [0, 2] == [e["record_id"] for e in kept]

    @pytest.mark.parametrize("bad", [None, 3, "x", [], {}])
    def test_no_record(self, entries, bad):
        """
        What is no record at all is left out, wherever it stands.
        """
        for place in range(4):
            mixed = [*entries[:place], bad, *entries[place:]]
            assert [0, 1, 2] == columns_of(mixed)[1]["record_id"]

    def test_nothing_right(self):
        """
        Nothing but rubbish leaves no record.
        """
        assert [] == columns_of([None, {}])[2]

    def test_unsorted(self, entries):
        """
        The oldest record comes first.
        """
        _, columns, kept = columns_of(entries[::-1])

        assert [0, 1, 2] == columns["record_id"]
        assert entries == kept

    def test_bomb(self, entries):
        """
        What would grow when it is copied is refused before it is copied.
        """
        bomb: list[object] = []
        for _ in range(100):
            bomb = [bomb, bomb]
        entries[1] = {**entries[1], "input_sizes": bomb}

        assert 2 == len(columns_of(entries, strict=True)[2])

    def test_keys_of_some(self, entries):
        """
        A key that only some records have is taken where it is.
        """
        del entries[1]["op_id"]
        entries[0]["duration_ms"] = 0.25

        columns = columns_of(entries)[1]

        assert [1, 0, 2] == columns["op_id"]
        assert 0.25 == columns["duration_ms"][0]
        assert math.isnan(columns["duration_ms"][1])

    def test_unnumbered(self, entries):
        """
        If only some records are numbered, all are numbered anew.
        """
        del entries[1]["record_id"]

        assert [0, 1, 2] == columns_of(entries)[1]["record_id"]

    def test_unknown_state(self, entries):
        """
        A state of the future is no proof that anything started.
        """
        entries[0]["state"] = "aborted"

        assert 0 == columns_of(entries)[0]["kinds"][0][4]

    def test_json(self, entries):
        """
        JSON has lists instead of tuples, and zeros instead of nothing.
        """
        for entry in entries:
            entry["process_group"] = list(entry["process_group"])
            entry["time_discovered_started_ns"] = 0

        assert 3 == len(columns_of(entries)[2])

    def test_early_p2p(self):
        """
        Early formats tell point-to-point operations by their names only.
        """
        entries = [
            {"seq_id": 4, "pg_id": 2, "profiling_name": "nccl:send 0->1"},
            {"seq_id": 5, "pg_id": 2, "profiling_name": "nccl:all_reduce"},
        ]

        tables, columns, _ = columns_of(entries)

        assert [4, 0] == columns["p2p_seq"]
        assert [4, 5] == columns["seq"]
        assert ("2", "") == tables["kinds"][0][:2]
        assert [True, False] == [kind[6] for kind in tables["kinds"]]
        assert not tables["is_numbered"]

    def test_byte_order(self, entries):
        """
        Answers are little-endian on any machine.
        """
        raw = tabulate(entries[:1])[1]

        assert b"\x01\x00\x00\x00\x00\x00\x00\x00" == raw[3]


class TestDescribe:
    def test_bare_list(self):
        """
        Up to torch 2.2 a dump was a list.
        """
        header, entries = describe([{"seq_id": 1}])

        assert ("", [], {}) == (
            header["version"],
            header["configs"],
            header["status"],
        )
        assert [{"seq_id": 1}] == entries

    def test_configs(self):
        """
        Ranks of groups come as strings or lists; what is neither is left out.
        """
        header, _ = describe(
            {
                "pg_config": {
                    "0": {"name": "0", "desc": "default_pg", "ranks": "[0]"},
                    "1": {"ranks": [0, 2]},
                    "2": {"ranks": 7},
                    "3": {"ranks": ["x"]},
                    "4": "x",
                    5: {"desc": 1},
                }
            }
        )

        assert [("0", "default_pg", "[0]"), ("1", "", "[0, 2]")] == (
            header["configs"]
        )

    def test_status(self):
        """
        Counters come as numbers or strings; what is neither is left out.
        """
        names = ("enqueued", "started", "completed")
        good = {f"last_{n}_collective": "3" for n in names}

        header, _ = describe(
            {
                "version": 2.1,
                "pg_config": 1,
                "pg_status": {
                    "0": good,
                    "x": good,
                    "1": {},
                    "2": None,
                    "3": dict.fromkeys(good, -1),
                },
            }
        )

        assert {0: (3, 3, 3), 3: (-1, -1, -1)} == header["status"]
        assert "" == header["version"]

    @pytest.mark.parametrize("value", [None, [], [1], {}, {"version": "1"}])
    def test_something_else(self, value):
        """
        Other data is no dump.
        """
        with pytest.raises(NotADumpError):
            describe(value)


def test_frames_of():
    """
    Lines of a stack that are not whole are left out.
    """
    good = {"name": "f", "filename": "a.py", "line": 3}

    assert [("f", "a.py", 3)] == frames_of(
        {"frames": [good, None, {"name": "f"}, {**good, "line": "3"}]}
    )
    assert [] == frames_of({"frames": "x"}) == frames_of({})
