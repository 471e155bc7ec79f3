"""
Records, turned into columns, and what goes in and out of calls.
"""

from __future__ import annotations

import json
import math
import pickle

import attrs
import numpy as np
import pytest

from distdebug.flight_recorder import (
    COMPLETED,
    STARTED,
    entry_rows,
    read_dumps,
    shape_texts,
)
from distdebug.testing import SimulatedJob, make_dumps, plain_dump


pytestmark = pytest.mark.usefixtures("decoded_here")


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


@pytest.fixture
def read(tmp_path):
    """
    Reads a dump of rank 0.
    """

    def read_dump(dump):
        (tmp_path / "rank_0").write_bytes(pickle.dumps(dump, 2))
        return read_dumps(tmp_path)

    return read_dump


@pytest.fixture
def read_entries(read):
    """
    Reads a dump of rank 0 with these records.
    """
    return lambda entries: read({"version": "2.10", "entries": entries})


def ids(dumps):
    """
    The numbers of the records that were read.
    """
    return dumps[0].entries.record_id.tolist()


class TestRecords:
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
            {"input_sizes": [[2.5]]},
            {"input_sizes": [[None]]},
            {"input_sizes": [3]},
            {"input_sizes": None},
            {"input_sizes": "ab"},
            {"input_sizes": {}},
            {"input_dtypes": [1]},
            {"output_sizes": [[1 << 64]]},
            {"time_created_ns": "now"},
            {"duration_ms": "long"},
            {"timeout_ms": "600"},
            {"state": []},
        ],
        ids=str,
    )
    def test_one_is_wrong(self, entries, damage, read_entries, unpickler):
        """
        A record that does not fit is left out, and the others stay.
        """
        entries[1] |= damage

        dumps = read_entries(entries)

        assert [0, 2] == ids(dumps)
        assert ["1 of 3 records cannot be read"] == [
            p.reason for p in dumps.problems
        ]

    @pytest.mark.parametrize("bad", [None, 3, "x", [], {}])
    def test_no_record(self, entries, bad, read_entries):
        """
        What is no record at all is left out, wherever it stands.
        """
        for place in range(4):
            mixed = [*entries[:place], bad, *entries[place:]]
            assert [0, 1, 2] == ids(read_entries(mixed))

    def test_nothing_right(self, read_entries):
        """
        Nothing but rubbish leaves no record.
        """
        dumps = read_entries([None, {}])

        assert [] == ids(dumps)
        assert 1 == len(dumps.problems)

    def test_unsorted(self, entries, read_entries):
        """
        The oldest record comes first.
        """
        dumps = read_entries(entries[::-1])

        assert [0, 1, 2] == ids(dumps)
        assert [1, 1, 2] == dumps[0].entries.seq.tolist()

    @pytest.mark.parametrize("unpickler", ["careful"], indirect=True)
    def test_bomb(self, entries, read_entries, unpickler):
        """
        What would grow when it is copied is refused before it is copied.
        """
        bomb: list[object] = []
        for _ in range(100):
            bomb = [bomb, bomb]
        entries[1]["input_sizes"] = bomb

        assert [0, 2] == ids(read_entries(entries))

    def test_keys_of_some(self, entries, read_entries):
        """
        A key that only some records have is taken where it is.
        """
        del entries[1]["op_id"]
        entries[0]["duration_ms"] = 0.25

        e = read_entries(entries)[0].entries

        assert [1, 0, 2] == e.op_id.tolist()
        assert 0.25 == e.duration_ms[0]
        assert all(map(math.isnan, e.duration_ms[1:]))

    def test_unnumbered(self, entries, read_entries):
        """
        If only some records are numbered, all are numbered anew.
        """
        for entry in entries:
            entry["record_id"] += 7
        del entries[1]["record_id"]

        assert [0, 1, 2] == ids(read_entries(entries))

    def test_unknown_state(self, entries, read_entries):
        """
        A state of the future is no proof that anything started.
        """
        entries[0]["state"] = "aborted"

        state = read_entries(entries)[0].entries.state

        assert state[0] not in {STARTED, COMPLETED}
        assert COMPLETED == state[1]

    def test_early_p2p(self, read_entries):
        """
        Early formats tell point-to-point operations by their names only.
        """
        dumps = read_entries(
            [
                {"seq_id": 4, "pg_id": 2, "profiling_name": "nccl:send 0->1"},
                {"seq_id": 5, "pg_id": 2, "profiling_name": "nccl:all_reduce"},
            ]
        )

        e = dumps[0].entries
        assert [4, 0] == e.p2p_seq.tolist()
        assert [4, 5] == e.seq.tolist()
        assert [True, False] == e.is_p2p.tolist()
        assert (("2", ""),) == dumps.groups


class TestHeader:
    def test_configs(self, read):
        """
        Ranks of groups come as strings or lists; what is neither is left out.
        """
        dumps = read(
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

        assert [("0", "default_pg", (0,)), ("1", "", (0, 2))] == [
            attrs.astuple(c) for c in dumps[0].configs
        ]

    def test_status(self, read):
        """
        Counters come as numbers or strings; what is neither is left out.
        """
        names = ("enqueued", "started", "completed")
        good = {f"last_{n}_collective": "3" for n in names}

        dump = read(
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
        )[0]

        assert {0: (3, 3, 3), 3: (-1, -1, -1)} == {
            pg: attrs.astuple(status) for pg, status in dump.status.items()
        }
        assert ("", ()) == (dump.version, dump.configs)


@pytest.fixture
def shapes_of(read_entries, entries):
    """
    What is read of shapes: input sizes and types, output sizes and types.
    """
    names = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")

    def read_shapes(*shapes):
        return read_entries(
            [
                {**entries[0], **dict(zip(names, shape, strict=True))}
                | {"record_id": n}
                for n, shape in enumerate(shapes)
            ]
        ).shapes

    return read_shapes


ONE = ([[2, 3]], ["Float"], [[6], []], ["Half", 'a "b"\\\n'])
OTHER = ([[2, 3]], ["Float"], [[6], []], ['a "b"\\\n', "Half"])
NONE = ([], [], [], [])


class TestShapes:
    def test_back(self, shapes_of):
        """
        A shape is the same when it is looked at, whatever types are called.
        """
        shapes = shapes_of(ONE, OTHER, ONE)

        assert [json.dumps(shape) for shape in (ONE, OTHER)] == [
            json.dumps(attrs.astuple(shape)) for shape in shapes
        ]
        assert (shapes[1],) == shapes[1:]
        assert "<2 shapes>" == repr(shapes)

    def test_numbers(self, shapes_of):
        """
        Calls are compared by numbers of elements, of which a scalar is one and
        no tensor none, and by sets of types.
        """
        shapes = shapes_of(ONE, OTHER, NONE)

        assert [[6, 7], [6, 7], [0, 0]] == shapes.elements.tolist()
        assert [0, 0, 1] == shapes.types.tolist()

    def test_equal(self, shapes_of):
        """
        They are equal if all of them are, and travel as they are.
        """
        shapes = shapes_of(ONE)

        assert shapes == pickle.loads(pickle.dumps(shapes))
        assert shapes != shapes_of(OTHER)
        assert shapes != [ONE]

    def test_odd(self, shapes_of):
        """
        Truths become numbers, and long names are cut.
        """
        (shape,) = shapes_of(([[True]], ["x" * 5000], ((2,),), ()))

        assert (((1,),), ("x" * 1000,), ((2,),), ()) == attrs.astuple(shape)

    @pytest.mark.parametrize(
        "odd",
        [
            ([[True]], ["Float"], [], []),
            ([], ["x" * 5000], [], []),
            ([], ['"],[],[]],[[],["'], [], []),
            ([], [], [], ["],[[],[],[],[]],["]),
        ],
    )
    def test_odd_among_others(self, shapes_of, odd):
        """
        The other shapes of a file are read alike, whatever one looks like.
        """
        shapes = shapes_of(ONE, odd, OTHER)

        assert (shapes_of(ONE)[0], shapes_of(odd)[0], shapes_of(OTHER)[0]) == (
            shapes[:]
        )

    def test_deep(self, entries, tmp_path):
        """
        What is nested too deeply to be written down is left out.
        """
        entries[1]["input_sizes"] = "DEEP"
        raw = pickle.dumps({"entries": entries}, 2)
        deep = b"]" * 1500 + b"a" * 1499
        raw = raw.replace(b"X\4\0\0\0DEEP", deep)
        (tmp_path / "rank_0").write_bytes(raw)

        assert [0, 2] == ids(read_dumps(tmp_path))

    def test_too_many(self, shapes_of):
        """
        Numbers that cannot be are bounded, so that they fit.
        """
        most = (1 << 63) - 1

        shapes = shapes_of(
            ([[most, most]], [], [], []), ([[most, -most]], [], [], [])
        )

        assert [[1 << 62, 0], [-(1 << 62), 0]] == shapes.elements.tolist()

    def test_shared(self, tmp_path):
        """
        The same shape of two ranks is one.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce", sizes=[[2, 3]])
        make_dumps(tmp_path, job)

        (shape,) = read_dumps(tmp_path).shapes

        assert ((2, 3),) == shape.input_sizes

    def test_texts(self, shapes_of):
        """
        Equal tensors in a row are counted; what has no type has none.
        """
        (shape,) = shapes_of(([[2], [2], [3, 4]], ["Int", "Int"], [], []))

        assert ("2x[2] Int, [3, 4]", "") == shape_texts(shape)


class TestRows:
    """
    The calls of every rank, one by one.
    """

    @pytest.fixture(name="dumps")
    def _dumps(self, tmp_path):
        """
        A job of two ranks and two groups.
        """
        job = SimulatedJob(2, stack_depth=3)
        dp = job.new_group([0, 1], desc="dp")
        job.collective("all_reduce", sizes=[[3, 4]])
        job.collective("broadcast", group=dp)
        job.collective("all_reduce", ranks=[0])
        make_dumps(tmp_path, job)
        return read_dumps(tmp_path)

    def test_all(self, dumps):
        """
        Every record is a row of plain data, by rank, oldest first.
        """
        rows = list(entry_rows(dumps))

        assert [
            (0, "nccl:all_reduce", 1, "default_pg", "completed"),
            (0, "nccl:broadcast", 1, "dp", "completed"),
            (0, "nccl:all_reduce", 2, "default_pg", "scheduled"),
            (1, "nccl:all_reduce", 1, "default_pg", "completed"),
            (1, "nccl:broadcast", 1, "dp", "completed"),
        ] == [(r.rank, r.op, r.seq, r.desc, r.state) for r in rows]
        assert "[3, 4] Float" == rows[0].inputs
        assert rows[0].took_ms > 0
        assert rows[2].took_ms is None
        assert () == rows[0].frames
        assert attrs.asdict(rows[0]) == rows[0].to_dict()

    def test_filters(self, dumps):
        """
        Ranks and groups can be chosen, groups by name or description.
        """
        (by_desc,) = entry_rows(dumps, ranks=[1], groups=["dp"])
        (by_name,) = entry_rows(dumps, ranks=[1], groups=[by_desc.group])

        assert by_desc == by_name
        assert "nccl:broadcast" == by_desc.op
        assert [] == list(entry_rows(dumps, groups=["nonsense"]))

    def test_stacks(self, dumps):
        """
        Stacks are read where they are asked for.
        """
        rows = list(entry_rows(dumps, stack_traces=True))

        assert all(row.frames for row in rows)

    def test_lazy(self, dumps):
        """
        Rows are made one at a time.
        """
        assert 0 == next(entry_rows(dumps)).record

    @pytest.mark.parametrize(
        ("state", "retired", "expected"),
        [
            ("completed", True, "completed"),
            ("started", True, "returned"),
            ("started", False, "started"),
            ("scheduled", False, "scheduled"),
        ],
    )
    def test_state(self, entries, read_entries, state, retired, expected):
        """
        That a call returned says more than that it was once scheduled.
        """
        dumps = read_entries(
            [{**entries[0], "state": state} | {"retired": retired}]
        )

        (row,) = entry_rows(dumps)

        assert expected == row.state

    @pytest.mark.parametrize(
        ("seconds", "retired", "expected"),
        [
            (8.9, [True, False], "scheduled"),
            # The dump was written at the moment when the call ended.
            (0.09, [True, False], "completed"),
            # A job without a watchdog retires no call.
            (8.9, [False, False], "completed"),
            (8.9, [True, True], "completed"),
        ],
    )
    def test_not_on_gpu_yet(
        self, entries, read_entries, seconds, retired, expected
    ):
        """
        A call that NCCL still sets up on the host is written as completed, with
        the time of the dump; that it was not retired shows that it is not.
        """
        calls = [
            {
                **entries[i],
                "state": "completed",
                "time_created_ns": 10**18,
                "time_discovered_completed_ns": 10**18 + int(seconds * 1e9),
                "retired": is_retired,
            }
            for i, is_retired in enumerate(retired)
        ]

        *_, last = entry_rows(read_entries(calls))

        assert expected == last.state
        assert (last.took_ms is None) == (expected == "scheduled")


@pytest.mark.parametrize(
    ("first", "dtype"),
    [(0, np.int32), ((1 << 31) - 2, np.int64), (1 << 40, np.int64)],
)
def test_counters(entries, first, dtype, tmp_path):
    """
    Counters take four bytes while they fit, and are exact when they do not.
    """
    expected = [first + number for number in range(len(entries))]
    for entry, number in zip(entries, expected, strict=True):
        entry["collective_seq_id"] = number
    (tmp_path / "dump_0").write_bytes(pickle.dumps({"entries": entries}))

    columns = read_dumps(tmp_path)[0].entries

    assert expected == columns.seq.tolist()
    assert dtype == columns.seq.dtype
