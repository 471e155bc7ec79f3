"""
Which rank made which call, and what became of it.
"""

from __future__ import annotations

import re
import zlib

from base64 import b64decode

import attrs
import numpy as np
import pytest

from distdebug.causes import Cause
from distdebug.findings import CollectiveRef, Finding, GroupRef
from distdebug.report.call_matrix import build_views, read_recorded_calls
from distdebug.report.matrix import compute_lateness
from distdebug.testing import SimulatedJob


STACK = [
    ("all_reduce", "/site/torch/distributed/c10d.py", 9),
    ("step", "/job/train.py", 41),
]
# What is said of the call of a rank; a sign tells that it is another call.
DONE, WAITS, RUNS = "completed", "entered, waits", "started"
LOST, AWAY, ELSEWHERE = "not recorded", "not entered", "waits elsewhere"
OTHER = "≠ "


def late_job(world=4, *, steps=40):
    """
    A job in which rank 2 is always late.
    """
    job = SimulatedJob(world)
    for step in range(steps):
        job.wait(0.05)
        late = {r: 0.001 * ((step + r) % 3) for r in range(world)}
        job.collective("all_reduce", late={**late, 2: 0.02})
    return job


def away_job(world=8, away=5, *, steps=4):
    """
    A job in which a rank does not come to the last call.
    """
    job = SimulatedJob(world)
    for _ in range(steps):
        job.collective("all_reduce", stack=STACK)
    ranks = [r for r in range(world) if r != away]
    job.collective("barrier", ranks=ranks, stack=STACK)
    return job


class View:
    """
    A view of the matrix as the script of the page unpacks it.
    """

    def __init__(self, data, view):
        raw = zlib.decompress(b64decode(view["blob"]))

        def take(place):
            kind, offset, size = place
            form = {"u8": "u1", "u32": "<u4"}[kind]
            return np.frombuffer(raw, form, size, offset)

        self.told, self.data = view, data
        self.columns = take(view["columns"]).tolist()
        self.ranks = take(view["ranks"]).tolist()
        self.kind = take(view["kind"]).tolist()
        self.states = take(view["states"]).reshape(view["kinds"], -1)
        self.programs = take(view["programs"]).tolist()
        self.late = None
        if view["late"]:
            late = take(view["late"]["late"])
            self.late = late.reshape(view["rows"], -1)
        self._stacks = take(view["stacks"]).astype(np.int32)

    def stacks(self):
        """
        By kind of rank, which stack each of its calls has; -1 for none.
        """
        rows = self._stacks.reshape(-1, len(self.columns)).tolist()
        return dict(zip(self.told["traced"], rows, strict=True))

    def cells(self):
        """
        What became of each call, by rank.
        """
        words = [word for _, _, word in self.data["states"]]
        words += [f"{OTHER}{word}" for word in words]
        return {
            rank: [words[state] for state in self.states[kind]]
            for rank, kind in zip(self.ranks, self.kind, strict=True)
        }

    def late_ns(self):
        """
        By rank and call, how much later than the first one it came.
        """
        steps = (self.late.astype(float) - 1) / self.told["late"]["steps"]
        return 1e3 * 10**steps


@pytest.fixture
def matrix(part):
    """
    The part with all calls, its views by name, and the first one of them.
    """

    def make(diagnosis):
        found = part("matrix", diagnosis)
        if found is not None and found.data is not None:
            views = [View(found.data, view) for view in found.data["views"]]
            found.views = {view.told["name"]: view for view in views}
            found.view = views[0]
        return found

    return make


def focus_of(table):
    """
    The calls that a table marks as those that matter.
    """
    return [x.text for x in table.all("th.is-focus")]


def columns_of(table):
    """
    The calls that a table shows.
    """
    return table.texts("thead th")[1:]


def healthy(diagnosis):
    """
    The same with nothing wrong in it.
    """
    fine = Finding(cause=Cause.HEALTHY, ranks=(), summary="fine")
    return attrs.evolve(diagnosis, verdict=fine, findings=())


def test_dumps_without_calls(matrix, seen_in):
    """
    Dumps that hold nothing have no matrix.
    """
    assert matrix(seen_in(SimulatedJob(2))) is None


@pytest.mark.parametrize(
    ("options", "away", "others"),
    [
        ({}, [*[DONE] * 4, AWAY], WAITS),
        ({"timed": True}, [*[DONE] * 4, AWAY], RUNS),
        ({"missing": [5]}, ["no dump"] * 5, WAITS),
    ],
    ids=["away", "timed", "no dump"],
)
def test_rank_that_is_away(matrix, seen_in, options, away, others):
    """
    The culprit did not enter what the others wait in, or run if times are
    measured; a rank without a dump has a row that says so.
    """
    cells = matrix(seen_in(away_job(), **options)).view.cells()

    assert away == cells.pop(5)
    assert {(*[DONE] * 4, others)} == {tuple(row) for row in cells.values()}


@pytest.mark.parametrize("world", [8, 64])
def test_equal_ranks_are_written_once(matrix, seen_in, world):
    """
    However many ranks there are, those of two kinds are two rows of states.
    """
    found = matrix(seen_in(away_job(world)))

    assert (world, 2) == (len(found.view.ranks), len(found.view.states))
    assert f"{world} ranks, 5 calls" == found.summary


def test_folded_table(matrix, seen_in):
    """
    The calls around the stuck one, the culprit first.
    """
    table = matrix(seen_in(away_job())).one("table.calls")

    assert [
        *("#2 all_reduce", "#3 all_reduce", "#4 all_reduce", "#5 barrier")
    ] == columns_of(table)
    assert ["#5 barrier"] == focus_of(table)
    assert [
        ["rank 5", *["✓ completed"] * 3, "○ not entered"],
        ["ranks 0-4,6-7 (7)", *["✓ completed"] * 3, "… entered, waits"],
    ] == table.rows()
    assert ["rank 5"] == table.texts("th.culprit")


def test_mismatch_is_marked(matrix, seen_in):
    """
    A cell shows that another call was made, and which one.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1, 3], sizes=[[64]])
    job.collective("broadcast", ranks=[2], sizes=[[64]])

    found = matrix(seen_in(job))

    cells = found.view.cells()
    assert (WAITS, OTHER + WAITS) == (cells[0][1], cells[2][1])
    [[_, column, call]] = found.view.told["others"]
    assert (1, ["nccl:broadcast", "[64] Float", "[64] Float"]) == (
        column,
        found.data["calls"][call],
    )
    assert ["rank 2", "✓ completed", "≠ broadcast, entered, waits"] == (
        found.rows("table.calls")[0]
    )


def test_sizes_that_differ_are_told(matrix, seen_in):
    """
    Where the operation is the same, the table shows the size.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce", ranks=[0, 1, 3], sizes=[[64]])
    job.collective("all_reduce", ranks=[2], sizes=[[65]])
    for rank in job.records:
        job.records[rank][-1].call.members |= {-1}
    job.wait(300)

    rows = matrix(seen_in(job)).rows("table.calls")

    assert "≠ all_reduce [65] Float, entered, waits" == rows[0][1]


def test_differences_beyond_the_limit(matrix, seen_in):
    """
    A rank that is out of step to the end differs, even where its call is not
    named.
    """
    job = SimulatedJob(4)
    for _ in range(260):
        job.collective("all_reduce", ranks=[0, 1, 3], state="completed")
        job.collective("broadcast", ranks=[2], state="completed")
    job.collective("all_reduce", ranks=[0, 1, 3])
    job.collective("broadcast", ranks=[2])

    diagnosis = seen_in(job)
    last = CollectiveRef(op="all_reduce", seq=261)
    verdict = attrs.evolve(diagnosis.verdict, collective=last)
    found = matrix(attrs.evolve(diagnosis, verdict=verdict, findings=()))

    assert {OTHER + DONE} == set(found.view.cells()[2][:260])
    assert 256 == len(found.view.told["others"])
    assert (
        "≠ another call, entered, waits" == (found.rows("table.calls")[0][-1])
    )


def test_two_against_two_are_judged_by_the_verdict(matrix, seen_in):
    """
    Where there is no majority, the ranks that are blamed differ.
    """
    job = SimulatedJob(4)
    for _ in range(3):
        job.collective("all_reduce")
    job.collective("broadcast", ranks=[0, 1])
    job.collective("all_reduce", ranks=[2, 3])
    diagnosis = seen_in(job)
    blamed = attrs.evolve(diagnosis.verdict, ranks=(0, 1))

    cells = matrix(attrs.evolve(diagnosis, verdict=blamed)).view.cells()

    assert [True, True, False, False] == [
        cells[rank][-1].startswith(OTHER) for rank in range(4)
    ]


def test_groups_of_a_mesh_are_one_picture(matrix, seen_in):
    """
    Each rank has one row in the picture of a dimension of the mesh.
    """
    job = SimulatedJob(8)
    for first in (0, 4):
        group = job.new_group(range(first, first + 4), "tp")
        job.collective("all_reduce", group)
    job.collective("barrier")

    views = matrix(seen_in(job)).views

    assert {"default_pg": (8, 1), "tp": (8, 2)} == {
        name: (len(view.ranks), len(view.told["groups"]))
        for name, view in views.items()
    }


def test_groups_that_share_ranks_are_pictures_of_their_own(matrix, seen_in):
    """
    No rank has two rows in a picture.
    """
    job = SimulatedJob(4)
    for ranks in ([0, 1], [1, 2]):
        job.collective("all_reduce", job.new_group(ranks))

    assert {"group 1", "group 2"} == matrix(seen_in(job)).views.keys()


def test_victims_elsewhere(matrix, seen_in):
    """
    A rank that waits in another group is shown apart from one that is away.
    """
    job = SimulatedJob(4)
    row = job.new_group([0, 1], "tp")
    for group in (row, job.world):
        job.collective("all_reduce", group)
    job.collective("all_reduce", row, ranks=[0])
    job.collective("all_reduce", ranks=[2, 3])

    cells = matrix(seen_in(job)).views["default_pg"].cells()

    assert [ELSEWHERE, AWAY] == [cells[0][1], cells[1][1]]


def test_ring_that_lost_old_calls(matrix, seen_in):
    """
    What the ring lost is not recorded, which says nothing about the rank.
    """
    job = SimulatedJob(2)
    row = job.new_group([0], "own")
    for _ in range(6):
        job.collective("all_reduce", row)
        job.collective("all_reduce")

    cells = matrix(seen_in(job, ring=6)).view.cells()

    assert (3, 0) == (cells[0].count(LOST), cells[1].count(LOST))


def test_rank_whose_records_are_lost(matrix, seen_in):
    """
    The counters of torch show how far a rank got whose records are lost.
    """
    job = SimulatedJob(2)
    busy = job.new_group([0], "own")
    for _ in range(2):
        job.collective("all_reduce")
    job.collective("barrier", ranks=[1])
    for _ in range(4):
        job.collective("all_reduce", busy)

    cells = matrix(seen_in(job, ring=4)).views["default_pg"].cells()

    assert [LOST, LOST, AWAY] == cells[0]


def test_older_dump(matrix, seen_in):
    """
    A dump that is older than the others shows no rank to be away.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce")
    job.dump(0)
    job.wait(1)
    for _ in range(2):
        job.collective("all_reduce")

    cells = matrix(seen_in(job)).view.cells()

    assert [DONE, LOST, LOST] == cells[0]


def test_call_that_was_aborted(matrix, seen_in):
    """
    A call that ended without being complete has failed.
    """
    job = SimulatedJob(2, timeout_s=10)
    job.collective("all_reduce")
    job.collective("all_reduce", duration_s=10)

    cells = matrix(seen_in(job)).view.cells()

    assert [DONE, "failed"] == cells[0]


def test_line_of_code(matrix, seen_in):
    """
    The stack of each call is that of the user, without torch, up to the last
    one that its rank made.
    """
    found = matrix(seen_in(away_job()))

    assert [["step (/job/train.py:41)"]] == found.data["stacks"]
    assert {0: [0] * 5, 1: [0] * 4 + [-1]} == found.view.stacks()


def test_no_lines_of_code(matrix, seen_in, tmp_path):
    """
    Dumps without stacks have no lines; a stack without code of the user is
    shown as it is.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce", ranks=[0], stack=STACK[:1])
    job.wait(400)

    none = matrix(seen_in(away_job(), tmp_path / "a", as_json=True))
    torch = matrix(seen_in(job, tmp_path / "b"))

    assert ([], {}) == (none.data["stacks"], none.view.stacks())
    assert [["all_reduce (/site/torch/distributed/c10d.py:9)"]] == torch.data[
        "stacks"
    ]


def test_many_kinds_of_ranks(matrix, seen_in):
    """
    However much the ranks differ, the table is short, and few stacks are asked
    for.
    """
    job = SimulatedJob(20)
    job.collective("all_reduce", stack=STACK)
    for rank in range(1, 20):
        job.collective(f"op{rank}", ranks=[rank], stack=STACK)

    found = matrix(seen_in(job))

    assert 12 == len(found.rows("table.calls"))
    assert "8 more kinds of ranks are in the matrix below." in found.text
    assert 12 == len(found.view.stacks())


def test_straggler(matrix, seen_in):
    """
    The rank that is late is the first of a table, and the picture shows times.
    """
    found = matrix(seen_in(late_job(), timed=True))

    rank, mean, _, worst = found.rows("table.late")[0]
    assert "rank 2" == rank == found.one("table.late a.is-culprit").text
    assert mean.endswith(" ms")
    assert worst.endswith(" ms")
    assert "width: 100.0%" == found.one("span.is-culprit").given["style"]
    assert "late" == found.data["color"]
    assert [] == found.all("table.calls")


def test_straggler_without_its_times(matrix, seen_in):
    """
    Where the times of the group are not known, there is no such table.
    """
    diagnosis = seen_in(late_job(), timed=True)
    other = attrs.evolve(diagnosis.verdict.group, name="other")
    verdict = attrs.evolve(diagnosis.verdict, group=other)

    found = matrix(attrs.evolve(diagnosis, verdict=verdict))

    assert [] == found.all("table.late")


def test_durations_in_words(matrix, seen_in):
    """
    A duration is written in the unit that fits, to a twentieth of its size.
    """
    job = SimulatedJob(5)
    for _ in range(4):
        job.wait(10)
        late = {1: 5e-6, 2: 1.3e-3, 3: 2.5}
        job.collective("all_reduce", late=late, duration_s=9)
    diagnosis = seen_in(job, missing=[4])
    slow = Finding(
        cause=Cause.STRAGGLER,
        ranks=(3,),
        summary="slow",
        group=GroupRef(name="0", desc="default_pg", ranks=tuple(range(5))),
    )

    rows = matrix(attrs.evolve(diagnosis, verdict=slow)).rows("table.late")

    assert [
        ("rank 3", "2.6 s"),
        ("rank 2", "1.3 ms"),
        ("rank 1", "5 µs"),
        ("rank 0", "1 µs"),
        ("rank 4", "?"),
    ] == [(rank, mean) for rank, mean, *_ in rows]


def test_group_without_times(matrix, seen_in):
    """
    A group whose records are all lost has no times; others like it have.
    """
    job = SimulatedJob(4)
    for ranks in ([0, 1], [2, 3]):
        job.collective("all_reduce", job.new_group(ranks, "tp"))
    busy = job.new_group([2, 3], "busy")
    for _ in range(4):
        job.collective("all_reduce", busy)

    late = matrix(seen_in(job, ring=4)).views["tp"].late

    assert [[1], [1], [0], [0]] == late.tolist()


def test_times_of_arrival(matrix, seen_in):
    """
    A byte per cell holds how much later than the first a rank came.
    """
    view = matrix(seen_in(late_job(), timed=True)).view

    ns = view.late_ns()
    assert 1 == view.late.min()
    assert 20e6 == pytest.approx(np.median(ns[2]), rel=0.06)
    assert 2e6 > np.median(ns[0])


def test_clocks_are_corrected(matrix, seen_in):
    """
    A clock that is an hour ahead makes no rank late.
    """
    ahead = {1: 3600.0}

    view = matrix(seen_in(late_job(), timed=True, clock_offsets_s=ahead)).view

    assert 5e6 > np.median(view.late_ns()[1])
    assert 4 == view.told["late"]["clocks"]


def test_only_the_newest_times_are_kept(seen_in):
    """
    Of jobs with millions of calls, the page holds a part of the times, or none;
    ranks that did the same share their record.
    """
    # Dumps of so many calls take too long to make, so the limit is given.
    diagnosis = seen_in(late_job())
    flight = diagnosis.seen.flight

    some = read_recorded_calls(diagnosis, flight, max_times=40)
    none = read_recorded_calls(diagnosis, flight, max_times=0)

    assert {10} == {len(a.seq) for a in some.arrivals.values()}
    assert {31} == {int(a.seq[0]) for a in some.arrivals.values()}
    [view] = build_views(none)
    assert compute_lateness(view, none) is None
    assert (1, 4) == (len(some.records), len(some.record_of))


def test_times_of_groups_with_gaps(matrix, seen_in):
    """
    A member without a dump, or without the call, has no time.
    """
    late = matrix(seen_in(away_job(4, 1), missing=[3])).view.late

    assert [0, 0] == [late[3].max(), late[1][-1]]
    assert late[0].min() > 0


def test_transfers(matrix, seen_in):
    """
    Pairs of ranks have a table of their own, those that wait first.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce")
    job.send(0, 1)
    job.recv(1, 0)
    job.send(2, 3)
    job.recv(3, 2)
    job.recv(3, 2)

    found = matrix(seen_in(job))

    assert "1 pair waits, 1 does not." in found.text
    assert [
        ["rank 2", "rank 3", "1", "2 … 1 waiting"],
        ["rank 0", "rank 1", "1", "1"],
    ] == [row[:4] for row in found.rows("table.pairs")]
    assert "left out" not in found.text


def test_only_transfers(matrix, seen_in):
    """
    A job without collectives has a table of pairs, and no picture.
    """
    job = SimulatedJob(2)
    job.recv(1, 0)

    found = matrix(seen_in(job))

    assert "only from rank to rank" == found.summary
    assert found.data is None
    assert "none on record" == found.rows("table.pairs")[0][2]


def test_many_columns(matrix, seen_in, monkeypatch):
    """
    Of very long recordings the newest calls are shown, and it is said; a rank
    whose calls are all older has neither a call nor a time in it.
    """
    # Dumps of tens of thousands of calls take seconds to make.
    monkeypatch.setattr("distdebug.report.call_matrix._MAX_COLUMNS", 2)
    job = SimulatedJob(2)
    for ranks in ([0, 1], [0, 1], [0], [0]):
        job.collective("all_reduce", ranks=ranks)

    view = matrix(seen_in(job)).view

    assert (2, [3, 4]) == (view.told["cut"], view.columns)
    assert [AWAY] * 2 == view.cells()[1]
    assert [[1, 1], [0, 0]] == view.late.tolist()


def test_calls_beyond_the_limit(matrix, seen_in, monkeypatch):
    """
    Of very many different calls, some are not named.
    """
    monkeypatch.setattr("distdebug.report.matrix._MAX_CALLS", 0)

    found = matrix(seen_in(away_job()))

    assert [] == found.data["calls"]
    assert {0xFFFFFFFF} == set(found.view.programs)


def test_dumps_of_active_calls(matrix, seen_in):
    """
    The table shows the calls of its group, not those of groups like it.
    """
    job = SimulatedJob(4)
    near, far = (job.new_group(r, "tp") for r in ([0, 1], [2, 3]))
    for _ in range(30):
        job.collective("all_reduce", far)
    job.collective("all_gather", far, ranks=[2])
    for _ in range(3):
        job.collective("all_reduce", near)
    job.collective("all_reduce", near, ranks=[0])
    job.wait(600)

    tables = matrix(seen_in(job, only_active=True)).all("table.calls")

    assert [["#31 all_gather"], ["#4 all_reduce"]] == sorted(
        map(columns_of, tables)
    )


def test_groups_of_who_is_blamed_come_first(matrix, seen_in):
    """
    The tables are about the groups of the culprit, not of those behind it.
    """
    job = SimulatedJob(32)
    rows = [job.new_group(range(i, i + 4), "tp") for i in range(0, 32, 4)]
    columns = [job.new_group(range(i, 32, 4), "dp") for i in range(4)]
    for group in (*rows, *columns):
        job.collective("all_reduce", group)
    job.collective("all_gather", rows[5], ranks=[20, 21, 23])
    for column in columns:
        ranks = [r for r in column.ranks if r not in rows[5].ranks]
        job.collective("all_reduce", column, ranks=ranks)

    tables = matrix(seen_in(job)).all("table.calls")

    assert [("tp", "rank 22"), ("dp", "rank 22")] == [
        (table.one("caption b").text, table.rows()[0][0])
        for table in tables[:2]
    ]


def test_many_stuck_groups(matrix, seen_in):
    """
    Few groups have a table; the others are counted.
    """
    job = SimulatedJob(10)
    groups = [job.new_group([i, i + 1], "tp") for i in range(0, 10, 2)]
    for group in groups:
        job.collective("all_reduce", group)
        job.collective("all_reduce", group, ranks=group.ranks[:1])

    found = matrix(seen_in(job))

    assert 3 == len(found.all("table.calls"))
    assert "2 more groups are stuck" in found.text


def test_difference_that_holds_up_nobody(matrix, seen_in):
    """
    Without a stuck call, the first difference is what is shown.
    """
    job = SimulatedJob(4)
    for step in range(8):
        op = "all_gather" if step == 2 else "all_reduce"
        job.collective(op, ranks=[3], state="completed")
        job.collective("all_reduce", ranks=[0, 1, 2], state="completed")

    view = matrix(healthy(seen_in(job))).view

    assert 2 == view.told["focus"][1]


def test_healthy_job_shows_its_newest_calls(matrix, seen_in):
    """
    Where nothing is wrong, the newest calls of the largest group are shown.
    """
    job = SimulatedJob(4)
    for _ in range(9):
        job.collective("all_reduce")

    table = matrix(seen_in(job)).one("table.calls")

    assert [f"#{n} all_reduce" for n in (6, 7, 8, 9)] == columns_of(table)
    assert ["ranks 0-3 (4)"] == [row[0] for row in table.rows()]


def test_scattered_ranks_are_cut(matrix, seen_in):
    """
    A row names some of many ranks, and their number.
    """
    job = SimulatedJob(128)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=range(0, 128, 2))

    rows = matrix(seen_in(job)).rows("table.calls")

    assert [True, True] == [row[0].endswith(",… (64)") for row in rows]


def test_hostile_names_are_harmless(page, seen_in):
    """
    Names of groups and operations are text, whatever they hold.
    """
    evil = "</script><b onclick=x>&\x1b[31m\u202e\u2028"
    job = SimulatedJob(2)
    job.collective(evil, job.new_group([0, 1], evil, evil), ranks=[0])
    job.wait(400)

    shown = page(seen_in(job))

    assert not any("onclick" in x.given for x in shown.root.inside())
    assert "<b onclick=x>" in shown.part("matrix").text
    assert not re.search("[\x1b\u202e\u2028]", shown.html)


def test_data_are_the_same(matrix, seen_in):
    """
    The same dumps give the same data, in which each state has its own sign.
    """
    diagnosis = seen_in(away_job())

    one, two = matrix(diagnosis).data, matrix(diagnosis).data

    assert one == two
    assert [8] * 3 == [
        len(set(texts)) for texts in zip(*one["states"], strict=True)
    ]
