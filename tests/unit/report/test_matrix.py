"""
Which rank made which call, and what became of it.
"""

from __future__ import annotations

import json
import re
import zlib

from base64 import b64decode

import attrs
import numpy as np
import pytest

from distdebug.diagnosis import Seen
from distdebug.findings import Cause, Diagnosis, Finding
from distdebug.flight_recorder import analyze_dumps, read_dumps
from distdebug.report import report_html
from distdebug.report.sections.matrix import cells as matrix_cells
from distdebug.report.sections.matrix import (
    lateness,
    latest,
    lines,
    matrix_section,
    packed,
    recorded,
    section,
)
from distdebug.report.sections.matrix.recorded import State, look_at
from distdebug.report.sections.matrix.views import views_of
from distdebug.testing import SimulatedJob, make_dumps


STACK = [
    ("all_reduce", "/site/torch/distributed/c10d.py", 9),
    ("step", "/job/train.py", 41),
]


def seen_in(folder, job=None, **options):
    """
    The diagnosis of what a job left.
    """
    if job is not None:
        make_dumps(folder, job, **options)
    flight = analyze_dumps(folder)
    return attrs.evolve(flight.to_diagnosis(), seen=Seen(flight=flight))


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


def unpacked(data, number=0):
    """
    A view as a browser sees it.
    """
    view = data["views"][number]
    raw = zlib.decompress(b64decode(view["blob"]))

    def take(place):
        kind, offset, size = place
        return np.frombuffer(
            raw, {"u8": "u1", "u32": "<u4"}[kind], size, offset
        )

    names = ("columns", "ranks", "group", "kind", "states", "programs")
    found = {name: take(view[name]) for name in (*names, "stacks")}
    found["traced"] = view["traced"]
    shape = view["kinds"], len(found["columns"])
    found["states"] = found["states"].reshape(shape)
    if view["late"]:
        late = take(view["late"]["late"])
        found["late"] = late.reshape(view["rows"], -1)
    return found


def stacks_of(data, number=0):
    """
    By kind of rank, which stack each of its calls has; -1 if none is known.
    """
    view = unpacked(data, number)
    rows = view["stacks"].astype(np.int32).reshape(-1, len(view["columns"]))
    return dict(zip(view["traced"], rows.tolist(), strict=True))


def cells_of(diagnosis, number=0):
    """
    The state of each call, by rank.
    """
    view = unpacked(matrix_section(diagnosis).data, number)
    return {
        rank: view["states"][kind].tolist()
        for rank, kind in zip(
            view["ranks"].tolist(), view["kind"].tolist(), strict=True
        )
    }


def test_no_dumps():
    """
    Without dumps there is no matrix.
    """
    verdict = Finding(cause=Cause.IO_WAIT, ranks=(1,), summary="reads")

    assert matrix_section(Diagnosis(verdict=verdict)) is None


def test_dumps_without_calls(tmp_path):
    """
    Dumps that hold nothing have no matrix.
    """
    assert matrix_section(seen_in(tmp_path, SimulatedJob(2))) is None


def test_rank_that_is_away(tmp_path):
    """
    The culprit did not enter what the others wait in.
    """
    cells = cells_of(seen_in(tmp_path, away_job()))

    assert [State.COMPLETED] * 4 + [State.NOT_ENTERED] == cells.pop(5)
    assert {(*[State.COMPLETED] * 4, State.SCHEDULED)} == {
        tuple(row) for row in cells.values()
    }


def test_equal_ranks_are_written_once(tmp_path):
    """
    Eight ranks of two kinds are two rows of states.
    """
    made = matrix_section(seen_in(tmp_path, away_job()))

    assert 2 == made.data["views"][0]["kinds"]
    assert "8 ranks, 5 calls" == made.summary


def test_folded_table(tmp_path):
    """
    The calls around the stuck one, the culprit first.
    """
    table = matrix_section(seen_in(tmp_path, away_job())).values["tables"][0]

    assert [2, 3, 4, 5] == [column.seq for column in table.columns]
    assert ["barrier"] == [c.op for c in table.columns if c.is_focus]
    assert [("rank 5", 1, True), ("ranks 0-4,6-7", 7, False)] == [
        (row.ranks, row.count, row.is_culprit) for row in table.rows
    ]
    assert [State.NOT_ENTERED, State.SCHEDULED] == [
        row.cells[-1].state for row in table.rows
    ]


def test_mismatch_is_marked(tmp_path):
    """
    A cell tells that another call was made, and which one.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1, 3], sizes=[[64]])
    job.collective("broadcast", ranks=[2], sizes=[[64]])
    diagnosis = seen_in(tmp_path, job)

    made = matrix_section(diagnosis)

    assert State.DIFFERS | State.SCHEDULED == cells_of(diagnosis)[2][1]
    assert State.SCHEDULED == cells_of(diagnosis)[0][1]
    view = made.data["views"][0]
    [[_, column, call]] = view["others"]
    assert (1, ["nccl:broadcast", "[64] Float", "[64] Float"]) == (
        column,
        made.data["calls"][call],
    )
    culprit = made.values["tables"][0].rows[0]
    assert ("rank 2", "broadcast") == (culprit.ranks, culprit.cells[1].instead)


def test_sizes_that_differ_are_told(tmp_path):
    """
    Where the operation is the same, the table tells the size.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce", ranks=[0, 1, 3], sizes=[[64]])
    job.collective("all_reduce", ranks=[2], sizes=[[65]])
    for rank in job.records:
        job.records[rank][-1].call.members |= {-1}
    job.wait(300)

    [table] = matrix_section(seen_in(tmp_path, job)).values["tables"]

    assert "all_reduce [65] Float" == table.rows[0].cells[0].instead


def test_differences_beyond_the_limit(tmp_path, monkeypatch):
    """
    Whoever is out of step to the end differs, even where it is not told how.
    """
    monkeypatch.setattr(matrix_cells, "_MOST_DIFFERENCES", 0)
    job = SimulatedJob(4)
    job.collective("all_reduce", ranks=[0, 1, 3])
    job.collective("broadcast", ranks=[2])

    [table] = matrix_section(seen_in(tmp_path, job)).values["tables"]

    assert "another call" == table.rows[0].cells[0].instead


def test_two_against_two_are_judged_by_the_verdict(tmp_path):
    """
    Where there is no majority, whoever is blamed is the one that differs.
    """
    job = SimulatedJob(4)
    for _ in range(3):
        job.collective("all_reduce")
    job.collective("broadcast", ranks=[0, 1])
    job.collective("all_reduce", ranks=[2, 3])
    diagnosis = seen_in(tmp_path, job)
    blamed = attrs.evolve(diagnosis.verdict, ranks=(0, 1))

    cells = cells_of(attrs.evolve(diagnosis, verdict=blamed))

    assert [True, True, False, False] == [
        bool(cells[rank][-1] & State.DIFFERS) for rank in range(4)
    ]


def test_groups_of_a_mesh_are_one_picture(tmp_path):
    """
    Each rank has one row in the picture of a dimension of the mesh.
    """
    job = SimulatedJob(8)
    for first in (0, 4):
        job.collective(
            "all_reduce", job.new_group(range(first, first + 4), "tp")
        )
    job.collective("barrier")
    diagnosis = seen_in(tmp_path, job)

    found = matrix_section(diagnosis).data["views"]

    assert [("default_pg", 8, 1), ("tp", 8, 2)] == sorted(
        (v["name"], v["rows"], len(v["groups"])) for v in found
    )


def test_groups_that_share_ranks_are_pictures_of_their_own(tmp_path):
    """
    No rank has two rows in a picture.
    """
    job = SimulatedJob(4)
    for ranks in ([0, 1], [1, 2]):
        job.collective("all_reduce", job.new_group(ranks))

    found = matrix_section(seen_in(tmp_path, job)).data["views"]

    assert ["group 1", "group 2"] == sorted(v["name"] for v in found)


def test_victims_elsewhere(tmp_path):
    """
    A rank that waits in another group is told from one that is away.
    """
    job = SimulatedJob(4)
    row = job.new_group([0, 1], "tp")
    for group in (row, job.world):
        job.collective("all_reduce", group)
    job.collective("all_reduce", row, ranks=[0])
    job.collective("all_reduce", ranks=[2, 3])
    diagnosis = seen_in(tmp_path, job)
    names = [v["name"] for v in matrix_section(diagnosis).data["views"]]

    cells = cells_of(diagnosis, names.index("default_pg"))

    assert [State.ELSEWHERE, State.NOT_ENTERED] == [cells[0][1], cells[1][1]]


def test_missing_rank(tmp_path):
    """
    A rank without a dump has a row that says so.
    """
    job = away_job(4, 2)

    cells = cells_of(seen_in(tmp_path, job, missing=[2]))

    assert [State.NO_DUMP] * 5 == cells[2]


def test_ring_that_lost_old_calls(tmp_path):
    """
    What the ring lost is not recorded, which says nothing about the rank.
    """
    job = SimulatedJob(2)
    row = job.new_group([0], "own")
    for _ in range(6):
        job.collective("all_reduce", row)
        job.collective("all_reduce")

    cells = cells_of(seen_in(tmp_path, job, ring=6), 0)

    assert 3 == cells[0].count(State.NOT_RECORDED)
    assert 0 == cells[1].count(State.NOT_RECORDED)


def test_rank_whose_records_are_lost(tmp_path):
    """
    The counters of torch tell how far a rank got whose records are lost.
    """
    job = SimulatedJob(2)
    busy = job.new_group([0], "own")
    for _ in range(2):
        job.collective("all_reduce")
    job.collective("barrier", ranks=[1])
    for _ in range(4):
        job.collective("all_reduce", busy)
    diagnosis = seen_in(tmp_path, job, ring=4)
    names = [v["name"] for v in matrix_section(diagnosis).data["views"]]

    cells = cells_of(diagnosis, names.index("default_pg"))

    assert [
        State.NOT_RECORDED,
        State.NOT_RECORDED,
        State.NOT_ENTERED,
    ] == cells[0]


def test_older_dump(tmp_path):
    """
    A dump that is older than the others shows nobody to be away.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce")
    job.dump(0)
    job.wait(1)
    for _ in range(2):
        job.collective("all_reduce")

    cells = cells_of(seen_in(tmp_path, job))

    assert [State.COMPLETED, State.NOT_RECORDED, State.NOT_RECORDED] == (
        cells[0]
    )


def test_call_that_was_aborted(tmp_path):
    """
    A call that ended without being complete has failed.
    """
    job = SimulatedJob(2, timeout_s=10)
    job.collective("all_reduce")
    job.collective("all_reduce", duration_s=10)

    cells = cells_of(seen_in(tmp_path, job))

    assert [State.COMPLETED, State.FAILED] == cells[0]


def test_started_call(tmp_path):
    """
    Where times are measured, what runs is told from what is in the queue.
    """
    cells = cells_of(seen_in(tmp_path, away_job(), timed=True))

    assert State.STARTED == cells[0][-1]


def test_line_of_code(tmp_path):
    """
    The stack of each call is that of the user, without torch, up to the last
    one that its rank made.
    """
    data = matrix_section(seen_in(tmp_path, away_job())).data

    assert [["step (/job/train.py:41)"]] == data["stacks"]
    assert {0: [0] * 5, 1: [0] * 4 + [-1]} == stacks_of(data)


def test_stack_that_is_all_of_torch(tmp_path):
    """
    A stack without code of the user is shown as it is.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce", ranks=[0], stack=STACK[:1])
    job.wait(400)

    data = matrix_section(seen_in(tmp_path, job)).data

    assert [["all_reduce (/site/torch/distributed/c10d.py:9)"]] == data[
        "stacks"
    ]


def test_no_stacks(tmp_path):
    """
    Dumps without stacks have no lines.
    """
    diagnosis = seen_in(tmp_path, away_job(), as_json=True)

    data = matrix_section(diagnosis).data

    assert [] == data["stacks"]
    assert {} == stacks_of(data)


def test_few_files_are_read_again(tmp_path, monkeypatch):
    """
    However many kinds of ranks there are, few stacks are asked for.
    """
    monkeypatch.setattr(lines, "_MOST", 1)

    data = matrix_section(seen_in(tmp_path, away_job())).data

    assert 1 == len(stacks_of(data))


def test_straggler(tmp_path):
    """
    The rank that is late is the first of a table, and the picture shows times.
    """
    made = matrix_section(seen_in(tmp_path, late_job(), timed=True))

    rows = made.values["late"]["rows"]
    assert (2, True, 100.0) == tuple(
        rows[0][key] for key in ("rank", "is_culprit", "share")
    )
    assert rows[0]["mean"].endswith(" ms")
    assert "late" == made.data["color"]
    assert () == made.values["tables"]


@pytest.mark.parametrize("what", ["group", "times"])
def test_straggler_without_its_times(tmp_path, monkeypatch, what):
    """
    Where the times of the group are not known, there is no such table.
    """
    diagnosis = seen_in(tmp_path, late_job(), timed=True)
    if what == "group":
        other = attrs.evolve(diagnosis.verdict.group, name="other")
        verdict = attrs.evolve(diagnosis.verdict, group=other)
        diagnosis = attrs.evolve(diagnosis, verdict=verdict)
    else:
        monkeypatch.setattr(section, "lateness_of", lambda *_: None)

    made = matrix_section(diagnosis)

    assert made.values["late"] is None


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (float("nan"), "?"),
        (5e3, "5 µs"),
        (1.25e6, "1.2 ms"),
        (2.5e9, "2.5 s"),
    ],
)
def test_durations_in_words(ns, text):
    """
    A duration is told in the unit that fits.
    """
    assert text == latest.duration_text(ns)


def test_times_older_than_the_picture(tmp_path, monkeypatch):
    """
    A rank that came only to calls that are not shown has no times.
    """
    monkeypatch.setattr(matrix_cells, "_MOST_COLUMNS", 1)
    job = SimulatedJob(2)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0])

    late = unpacked(matrix_section(seen_in(tmp_path, job)).data)["late"]

    assert [[1], [0]] == late.tolist()


def test_group_without_times(tmp_path):
    """
    A group whose records are all lost has no times; others like it have.
    """
    job = SimulatedJob(4)
    for ranks in ([0, 1], [2, 3]):
        job.collective("all_reduce", job.new_group(ranks, "tp"))
    busy = job.new_group([2, 3], "busy")
    for _ in range(4):
        job.collective("all_reduce", busy)
    diagnosis = seen_in(tmp_path, job, ring=4)
    names = [v["name"] for v in matrix_section(diagnosis).data["views"]]

    late = unpacked(matrix_section(diagnosis).data, names.index("tp"))["late"]

    assert [[1], [1], [0], [0]] == late.tolist()


def test_times_of_arrival(tmp_path):
    """
    A byte per cell tells how much later than the first a rank came.
    """
    made = matrix_section(seen_in(tmp_path, late_job(), timed=True))

    late = unpacked(made.data)["late"]
    ns = lateness.from_scale_ns(late)
    assert 1 == late.min()
    assert 20e6 == pytest.approx(np.median(ns[2]), rel=0.06)
    assert 2e6 > np.median(ns[0])


def test_clocks_are_corrected(tmp_path):
    """
    A clock that is an hour ahead makes nobody late.
    """
    job = late_job()
    offsets = {1: 3600.0}

    made = matrix_section(
        seen_in(tmp_path, job, timed=True, clock_offsets_s=offsets)
    )

    ns = lateness.from_scale_ns(unpacked(made.data)["late"])
    assert 5e6 > np.median(ns[1])
    assert 4 == made.data["views"][0]["late"]["clocks"]


def test_only_the_newest_times_are_kept(tmp_path):
    """
    Of very large jobs, the page holds a part of the times.
    """
    make_dumps(tmp_path, late_job())
    dumps = read_dumps(tmp_path)

    seen = look_at(dumps, most_times=40)

    assert {10} == {len(a.seq) for a in seen.arrivals.values()}
    assert {31} == {int(a.seq[0]) for a in seen.arrivals.values()}


def test_no_times_are_kept(tmp_path):
    """
    A picture without times says so.
    """
    make_dumps(tmp_path, late_job())
    diagnosis = seen_in(tmp_path)
    flight = diagnosis.seen.flight
    seen = look_at(flight.dumps, most_times=0)

    [view] = views_of(seen, diagnosis, flight)

    assert lateness.lateness_of(view, seen) is None


def test_times_of_groups_with_gaps(tmp_path):
    """
    A member without a dump, or without the call, has no time.
    """
    made = matrix_section(seen_in(tmp_path, away_job(4, 1), missing=[3]))

    late = unpacked(made.data)["late"]
    assert [0, 0] == [late[3].max(), late[1][-1]]
    assert late[0].min() > 0


@pytest.mark.parametrize(
    ("ns", "step"),
    [(np.nan, 0), (0, 1), (1e3, 1), (1e4, 25), (1e6, 73), (1e30, 255)],
)
def test_scale(ns, step):
    """
    Durations of any size are one byte.
    """
    assert [step] == lateness.on_scale(np.array([float(ns)])).tolist()


def test_transfers(tmp_path):
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

    pairs = matrix_section(seen_in(tmp_path, job)).values["pairs"]

    assert (1, 1, 0) == (pairs.stuck, pairs.fine, pairs.left_out)
    first = pairs.shown[0]
    assert (2, 3, 1, 0, 2, 1) == (
        first.source,
        first.target,
        first.sent,
        first.sending,
        first.received,
        first.receiving,
    )


def test_only_transfers(tmp_path):
    """
    A job without collectives has a table of pairs, and no picture.
    """
    job = SimulatedJob(2)
    job.recv(1, 0)
    diagnosis = seen_in(tmp_path, job)

    made = matrix_section(diagnosis)

    assert "only from rank to rank" == made.summary
    assert made.data is None
    assert "none on record" in report_html(diagnosis)


def test_many_columns(tmp_path, monkeypatch):
    """
    Of very long recordings the newest calls are shown, and it is said.
    """
    monkeypatch.setattr(matrix_cells, "_MOST_COLUMNS", 3)

    made = matrix_section(seen_in(tmp_path, away_job()))

    assert 2 == made.data["views"][0]["cut"]
    assert [3, 4, 5] == unpacked(made.data)["columns"].tolist()


def test_old_calls_without_a_column(tmp_path, monkeypatch):
    """
    A rank whose calls are all older than the picture has none in it.
    """
    monkeypatch.setattr(matrix_cells, "_MOST_COLUMNS", 2)
    job = SimulatedJob(2)
    job.collective("all_reduce")
    for _ in range(3):
        job.collective("all_reduce", ranks=[0])

    cells = cells_of(seen_in(tmp_path, job))

    assert [State.NOT_ENTERED] * 2 == cells[1]


def test_many_kinds_of_ranks(tmp_path):
    """
    The table is short, however much the ranks differ.
    """
    job = SimulatedJob(20)
    job.collective("all_reduce")
    for rank in range(1, 20):
        job.collective(f"op{rank}", ranks=[rank])

    table = matrix_section(seen_in(tmp_path, job)).values["tables"][0]

    assert 12 == len(table.rows)
    assert 8 == table.more


def test_dumps_of_active_calls(tmp_path):
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

    tables = matrix_section(seen_in(tmp_path, job, only_active=True)).values[
        "tables"
    ]

    assert [[("all_reduce", 4)], [("all_gather", 31)]] == sorted(
        ([(c.op, c.seq) for c in table.columns] for table in tables),
        reverse=True,
    )


def test_groups_of_who_is_blamed_come_first(tmp_path):
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

    tables = matrix_section(seen_in(tmp_path, job)).values["tables"]

    assert [("tp", 22), ("dp", 22)] == [
        (table.name, table.rows[0].first) for table in tables[:2]
    ]


def test_many_stuck_groups(tmp_path):
    """
    Few groups have a table; the others are counted.
    """
    job = SimulatedJob(10)
    groups = [job.new_group([i, i + 1], "tp") for i in range(0, 10, 2)]
    for group in groups:
        job.collective("all_reduce", group)
        job.collective("all_reduce", group, ranks=group.ranks[:1])

    made = matrix_section(seen_in(tmp_path, job))

    assert (3, 2) == (len(made.values["tables"]), made.values["more"])
    assert "2 more groups are stuck" in report_html(seen_in(tmp_path))


def test_difference_that_holds_up_nobody(tmp_path):
    """
    Without a stuck call, the first difference is what is shown.
    """
    job = SimulatedJob(4)
    for step in range(8):
        op = "all_gather" if step == 2 else "all_reduce"
        job.collective(op, ranks=[3], state="completed")
        job.collective("all_reduce", ranks=[0, 1, 2], state="completed")
    diagnosis = seen_in(tmp_path, job)
    healthy = Finding(cause=Cause.HEALTHY, ranks=(), summary="fine")
    diagnosis = attrs.evolve(diagnosis, verdict=healthy, findings=())

    focus = matrix_section(diagnosis).data["views"][0]["focus"]

    assert 2 == focus[1]


def test_healthy_job_shows_its_newest_calls(tmp_path):
    """
    Where nothing is wrong, the newest calls of the largest group are shown.
    """
    job = SimulatedJob(4)
    for _ in range(9):
        job.collective("all_reduce")

    [table] = matrix_section(seen_in(tmp_path, job)).values["tables"]

    assert [6, 7, 8, 9] == [column.seq for column in table.columns]
    assert ["ranks 0-3"] == [row.ranks for row in table.rows]


def test_scattered_ranks_are_cut(tmp_path):
    """
    A row names some of many ranks, and their number.
    """
    job = SimulatedJob(128)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=range(0, 128, 2))

    table = matrix_section(seen_in(tmp_path, job)).values["tables"][0]

    assert all(row.ranks.endswith(",…") for row in table.rows)
    assert [64, 64] == [row.count for row in table.rows]


def test_calls_beyond_the_limit(tmp_path, monkeypatch):
    """
    Of very many different calls, some are not named.
    """
    monkeypatch.setattr(packed, "_MOST_CALLS", 0)

    made = matrix_section(seen_in(tmp_path, away_job()))

    assert {0xFFFFFFFF} == set(unpacked(made.data)["programs"].tolist())


def test_hostile_names_are_harmless(tmp_path):
    """
    Names of groups and operations are text, whatever they hold.
    """
    evil = "</script><b onclick=x>&\x1b[31m\u202e\u2028"
    job = SimulatedJob(2)
    job.collective(evil, job.new_group([0, 1], evil, evil), ranks=[0])
    job.wait(400)

    html = report_html(seen_in(tmp_path, job))

    assert "<b onclick" not in html
    assert not re.search("[\x1b\u202e\u2028]", html)


def test_data_are_plain(tmp_path):
    """
    What a script gets is JSON, and the same for the same dumps.
    """
    diagnosis = seen_in(tmp_path, away_job())

    one, two = (
        json.dumps(matrix_section(diagnosis).data, allow_nan=False)
        for _ in range(2)
    )

    assert one == two


def test_time_is_linear_in_ranks(tmp_path):
    """
    Twice the ranks are twice the rows, but no more kinds of them.
    """
    kinds = []
    for world in (64, 128):
        folder = tmp_path / str(world)
        made = matrix_section(seen_in(folder, away_job(world)))
        kinds.append(made.data["views"][0]["kinds"])

    assert [2, 2] == kinds


def test_states_have_names():
    """
    Each state has a name, a sign, and a word.
    """
    last = max(
        n
        for name, n in vars(State).items()
        if name.isupper() and name != "DIFFERS"
    )

    assert last + 1 == len(section._STATES)
    assert State.DIFFERS > last
    assert len(section._STATES) == len(
        {sign for _, sign, _ in section._STATES}
    )


def test_records_are_kept_once(tmp_path):
    """
    Ranks that did the same share their record.
    """
    make_dumps(tmp_path, away_job())

    seen = recorded.look_at(read_dumps(tmp_path))

    assert (2, 8) == (len(seen.records), len(seen.of))
