"""
The calls of every rank, one by one.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.flight_recorder import entry_rows, read_dumps, tables
from distdebug.flight_recorder.columns import Shape
from distdebug.testing import SimulatedJob, make_dumps


@pytest.fixture
def dumps(tmp_path):
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


def test_rows(dumps):
    """
    Every record is a row, by rank, oldest first.
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


def test_filters(dumps):
    """
    Ranks and groups can be chosen, groups by name or description.
    """
    (by_desc,) = entry_rows(dumps, ranks=[1], groups=["dp"])
    (by_name,) = entry_rows(dumps, ranks=[1], groups=[by_desc.group])

    assert by_desc == by_name
    assert "nccl:broadcast" == by_desc.op
    assert [] == list(entry_rows(dumps, groups=["nonsense"]))


def test_stacks(dumps):
    """
    Stacks are read where they are asked for.
    """
    rows = list(entry_rows(dumps, stack_traces=True))

    assert all(row.frames for row in rows)


def test_lazy(dumps):
    """
    Rows are made one at a time.
    """
    rows = entry_rows(dumps)

    assert 0 == next(rows).record


def test_plain(dumps):
    """
    A row is plain data for JSON.
    """
    row = next(entry_rows(dumps))

    assert attrs.asdict(row) == row.to_dict()


@pytest.mark.parametrize(
    ("state", "retired", "expected"),
    [
        (2, True, "completed"),
        (1, True, "returned"),
        (1, False, "started"),
        (0, False, "scheduled"),
    ],
)
def test_state(state, retired, expected):
    """
    That it returned says more than that it was once scheduled.
    """
    assert expected == tables.state_text(state, retired=retired)


def test_tensors():
    """
    Equal tensors in a row are counted; what has no type has none.
    """
    shape = Shape(((2,), (2,), (3, 4)), ("Int", "Int"), (), ())

    assert ("2x[2] Int, [3, 4]", "") == tables.shape_texts(shape)
