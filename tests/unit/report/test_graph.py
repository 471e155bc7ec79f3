"""
Who waits for whom, as a picture of few boxes.
"""

from __future__ import annotations

import re

from itertools import pairwise

import attrs
import pytest

from distdebug.diagnosis import Seen
from distdebug.findings import (
    Cause,
    CollectiveRef,
    Diagnosis,
    Evidence,
    Finding,
    GroupRef,
    Missing,
)
from distdebug.flight_recorder import Dumps, FlightReport, analyze_dumps
from distdebug.report import report_html
from distdebug.report.sections.graph import graph_section
from distdebug.report.sections.graph.boxes import Box, Graph, graph_of
from distdebug.report.sections.graph.folding import circles, fold
from distdebug.report.sections.graph.layout import lay_out
from distdebug.report.sections.graph.routes import HEIGHT, WIDTH
from distdebug.report.sections.graph.words import (
    box_note,
    few_ranks,
    many_ranks,
    sentences,
    shortened,
)
from distdebug.stacks import ProcessStacks
from distdebug.testing import SimulatedJob, make_dumps
from distdebug.waits import Wait


def seen_in(folder, job, **options):
    """
    The diagnosis of what a job left.
    """
    make_dumps(folder, job, **options)
    flight = analyze_dumps(folder)
    return attrs.evolve(flight.to_diagnosis(), seen=Seen(flight=flight))


def stuck(*waits, cause=Cause.RANK_NOT_ARRIVED, ranks=(), findings=()):
    """
    A diagnosis of waits that no dump tells of.
    """
    verdict = Finding(cause=cause, ranks=ranks, summary="stuck")
    flight = FlightReport(
        findings=(verdict, *findings),
        groups=(),
        waits=waits,
        victims=(),
        missing=(),
        outdated=(),
        dumps=Dumps(by_rank={}, groups=(), ops=(), shapes=()),
    )
    return Diagnosis(
        verdict=verdict,
        findings=(verdict, *findings),
        seen=Seen(flight=flight),
    )


def wait(waiting, awaited, *, group="0", op="all_reduce", seq=9, **rest):
    """
    A call in which some wait for others.
    """
    return Wait(
        group=group,
        op=op,
        seq=seq,
        p2p=rest.pop("p2p", False),
        waiting=tuple(waiting),
        awaited=tuple(awaited),
        **rest,
    )


def told(diagnosis):
    """
    What the picture says in words.
    """
    return graph_section(diagnosis).values["told"]


def places_of(section, kind=0):
    """
    Where each box stands, by its first line.
    """
    names = [box["name"] for box in section.values["boxes"]]
    places = section.values["pictures"][kind]["places"]
    return dict(zip(names, places, strict=True))


def arrows_of(section):
    """
    The arrows of the picture for wide screens.
    """
    return section.values["pictures"][0]["arrows"]


def points_on(path):
    """
    Points along a path that SVG draws.
    """
    numbers = [float(n) for n in re.findall(r"-?\d+", path)]
    stops = list(zip(numbers[::2], numbers[1::2], strict=True))
    commands = re.findall("[MCLQ]", path)
    found, at = [stops[0]], 1
    for command in commands[1:]:
        count = {"C": 3, "L": 1, "Q": 2}[command]
        line = [found[-1], *stops[at : at + count]]
        at += count
        found += [bezier(line, step / 20) for step in range(1, 21)]
    return found


def bezier(points, t):
    """
    A point on a curve, after De Casteljau.
    """
    while len(points) > 1:
        points = [
            (a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t)
            for a, b in pairwise(points)
        ]
    return points[0]


def boxes_of(diagnosis):
    """
    Kind and first line of each box.
    """
    boxes = graph_section(diagnosis).values["boxes"]
    return sorted((box["kind"], box["name"]) for box in boxes)


def mesh(world=16, tp=4):
    """
    A job with two dimensions.
    """
    job = SimulatedJob(world)
    rows = [job.new_group(range(i, i + tp), "tp") for i in range(0, world, tp)]
    columns = [job.new_group(range(i, world, tp), "dp") for i in range(tp)]
    for group in (*rows, *columns):
        job.collective("all_reduce", group)
    return job, rows, columns


def test_nobody_waits(tmp_path):
    """
    A healthy job has no such picture.
    """
    job, _, _ = mesh()

    section = graph_section(seen_in(tmp_path, job))

    assert section is None


def test_cascade(tmp_path):
    """
    Who waits for a victim stands left of it, and all roads lead to the culprit.
    """
    job, rows, columns = mesh()
    for row in rows:
        ranks = [r for r in row.ranks if r != 5]
        job.collective("all_gather", row, ranks=ranks)
    for column in columns:
        ranks = [r for r in column.ranks if r not in rows[1].ranks]
        job.collective("all_reduce", column, ranks=ranks)

    section = graph_section(seen_in(tmp_path, job))

    assert "15 ranks wait for rank 5" == section.summary
    assert (
        "Ranks 4,6-7 wait in all_gather #2 (group tp) for rank 5."
        in (section.values["told"])
    )
    wide, tall = places_of(section), places_of(section, 1)
    names = ("ranks 0,8,12", "rank 4", "rank 5")
    assert [wide[n][0] for n in names] == sorted(wide[n][0] for n in names)
    assert [tall[n][1] for n in names] == sorted(tall[n][1] for n in names)
    culprits = [b for b in section.values["boxes"] if b["kind"] == "culprit"]
    assert ["did not arrive"] == [box["note"] for box in culprits]


def test_large_cascade_is_folded(tmp_path):
    """
    Many ranks are as many boxes as there are roles.
    """
    job, rows, columns = mesh(64, 8)
    for row in rows:
        ranks = [r for r in row.ranks if r != 21]
        job.collective("all_gather", row, ranks=ranks)
    for column in columns:
        ranks = [r for r in column.ranks if r not in rows[2].ranks]
        job.collective("all_reduce", column, ranks=ranks)

    section = graph_section(seen_in(tmp_path, job))

    assert 7 == len(section.values["boxes"])
    notes = [box["note"] for box in section.values["boxes"]]
    assert "7 groups of dp" in notes
    assert all(len(line) < 200 for line in section.values["told"])


@pytest.mark.parametrize(
    ("op", "note"),
    [("broadcast", "called something else"), ("all_reduce", "another size")],
)
def test_mismatch(tmp_path, op, note):
    """
    The others wait for whoever called something else, though it is inside.
    """
    job = SimulatedJob(8)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1, 2, 4, 5, 6, 7], sizes=[[64]])
    job.collective(
        op, ranks=[3], sizes=[[65]], state="scheduled", duration_s=1e6
    )
    for rank in job.records:
        job.records[rank][-1].call.members |= {-1}

    section = graph_section(seen_in(tmp_path, job))

    assert [
        "Ranks 0-2,4-7 wait in all_reduce #2 (group default_pg) for rank 3."
    ] == section.values["told"]
    culprit = next(
        b for b in section.values["boxes"] if b["kind"] == "culprit"
    )
    assert note in culprit["note"]


def test_order_of_groups(tmp_path):
    """
    Two calls whose members wait for each other are a circle.
    """
    job = SimulatedJob(4)
    a, b = job.new_group(range(4), "dp"), job.new_group(range(4), "ep")
    job.collective("all_reduce", a, ranks=[0, 1])
    job.collective("all_gather", b, ranks=[2, 3])

    section = graph_section(seen_in(tmp_path, job))

    assert "a circle: nobody can go on" == section.summary
    assert (
        "Ranks 0-3 wait for each other: a deadlock."
        == (section.values["told"][0])
    )
    assert ["circle"] * 4 == [a["kind"] for a in arrows_of(section)]


def test_order_of_groups_when_nothing_blocks(tmp_path):
    """
    A rank that entered both calls waits in the one that it entered first.
    """
    job = SimulatedJob(4)
    a, b = job.new_group(range(4), "dp"), job.new_group(range(4), "ep")
    for group, ranks in ((a, [0, 1]), (b, [2, 3]), (b, [0, 1]), (a, [2, 3])):
        job.collective("all_reduce", group, ranks=ranks)
    for rank in job.records:
        for record in job.records[rank]:
            record.call.members |= {-1}
    job.wait(300)

    section = graph_section(seen_in(tmp_path, job))

    assert (
        "Ranks 0-1 wait in all_reduce #1 (group dp) for ranks 2-3."
        in (section.values["told"])
    )
    assert section.values["is_circle"]


@pytest.mark.parametrize(("world", "boxes"), [(3, 6), (64, 2)])
def test_ring_of_receives(tmp_path, world, boxes):
    """
    A small ring is drawn rank by rank, a large one as two boxes.
    """
    job = SimulatedJob(world)
    for rank in range(world):
        job.recv(rank, (rank - 1) % world)

    section = graph_section(seen_in(tmp_path, job))

    assert boxes == len(section.values["boxes"])
    assert section.values["is_circle"]
    assert all(a["kind"] == "circle" for a in arrows_of(section))


def test_ring_names_both_ends(tmp_path):
    """
    A transfer tells who sends to whom.
    """
    job = SimulatedJob(3)
    for rank in range(3):
        job.recv(rank, (rank - 1) % 3)

    lines = told(seen_in(tmp_path, job))

    assert "Rank 1 waits in recv #1 (rank 0 to rank 1) for rank 0." in lines


def test_crash(tmp_path):
    """
    Ranks without a dump are drawn as such.
    """
    job = SimulatedJob(8)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[r for r in range(8) if r != 6])

    diagnosis = seen_in(tmp_path, job, missing=[6])

    boxes = graph_section(diagnosis).values["boxes"]
    lost = [box for box in boxes if box["is_lost"]]
    assert [("culprit", "rank 6", "left no dump", 6)] == [
        (b["kind"], b["name"], b["note"], b["rank"]) for b in lost
    ]


def test_lost_rank_that_is_not_to_blame():
    """
    A rank that left nothing is no culprit unless a finding says so.
    """
    diagnosis = attrs.evolve(
        stuck(wait([0], [1, 2]), ranks=(1,)),
        missing=(Missing(what="dump", reason="there is none", rank=2),),
    )

    boxes = {
        box["name"]: box for box in graph_section(diagnosis).values["boxes"]
    }

    assert ("lost", "left no dump") == (
        boxes["rank 2"]["kind"],
        boxes["rank 2"]["note"],
    )


def test_all_arrived(tmp_path):
    """
    If everyone is in the call, nobody is drawn as culprit.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce")
    job.collective("all_reduce")
    for rank in job.records:
        job.records[rank][-1].call.members |= {-1}
    job.wait(300)

    section = graph_section(seen_in(tmp_path, job))

    assert "4 ranks wait" == section.summary
    assert [
        (
            "Ranks 0-3 wait in all_reduce #2 (group default_pg), which nobody "
            "is known to hold up."
        )
    ] == section.values["told"]


def test_left_behind_in_a_call():
    """
    A rank that is stuck in what its peers completed is at fault.
    """
    diagnosis = stuck(
        wait([2, 4], [], group="c", since_ns=3),
        wait([2], [], group="a", seq=5, since_ns=7),
        wait([0, 1], [2], group="b"),
        ranks=(2,),
    )
    verdict = attrs.evolve(
        diagnosis.verdict,
        cause=Cause.COLLECTIVE_STUCK_IN_FLIGHT,
        group=GroupRef(name="a", desc="", ranks=(2, 3)),
        collective=CollectiveRef(op="all_reduce", seq=5),
    )

    section = graph_section(
        attrs.evolve(diagnosis, verdict=verdict, findings=(verdict,))
    )

    culprit = next(
        b for b in section.values["boxes"] if b["kind"] == "culprit"
    )
    assert ("rank 2", "stuck inside the call") == (
        culprit["name"],
        culprit["note"],
    )
    assert any("all_reduce #5" in line for line in section.values["told"])


def test_straggler():
    """
    Where nothing is stuck, the others wait for the rank that is late.
    """
    group = GroupRef(name="0", desc="dp", ranks=(0, 1, 2, 3))
    verdict = Finding(
        cause=Cause.STRAGGLER, ranks=(2,), summary="slow", group=group
    )

    lines = told(Diagnosis(verdict=verdict, findings=(verdict,)))

    assert ["Ranks 0-1,3 wait for rank 2."] == lines


def test_other_job():
    """
    A rank of another job is nobody's suspect here.
    """
    stacks = tuple(
        ProcessStacks(pid=i, source=job, threads=(), rank=rank, job=job)
        for i, (job, rank) in enumerate((j, r) for j in "ab" for r in range(3))
    )
    verdict, other = (
        Finding(
            cause=Cause.IO_WAIT,
            ranks=(rank,),
            summary="reads",
            evidence=(Evidence(kind="stack", source=job),),
        )
        for job, rank in (("a", 1), ("b", 2))
    )
    diagnosis = Diagnosis(
        verdict=verdict,
        findings=(verdict, other),
        victims=(0, 2),
        seen=Seen(stacks=stacks),
    )

    found = boxes_of(diagnosis)

    assert [("culprit", "rank 1"), ("victim", "ranks 0,2")] == found


def test_only_stacks():
    """
    Without dumps, the victims wait for the culprits.
    """
    verdict = Finding(cause=Cause.IO_WAIT, ranks=(1,), summary="reads")
    diagnosis = Diagnosis(verdict=verdict, victims=(0, 2))

    section = graph_section(diagnosis)

    assert [("culprit", "rank 1"), ("victim", "ranks 0,2")] == boxes_of(
        diagnosis
    )
    assert ["Ranks 0,2 wait for rank 1."] == section.values["told"]
    assert "io wait" == section.values["boxes"][1]["note"]


def test_only_a_finding_with_its_call():
    """
    A finding that names a call is drawn with it.
    """
    verdict = Finding(
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=(1,),
        summary="away",
        group=GroupRef(name="3", desc="", ranks=(0, 1)),
        collective=CollectiveRef(op="barrier", seq=7),
    )

    lines = told(Diagnosis(verdict=verdict, victims=(0,)))

    assert ["Rank 0 waits in barrier #7 (group 3) for rank 1."] == lines


@pytest.mark.parametrize(
    ("cause", "ranks", "victims"),
    [
        (Cause.UNKNOWN, (1,), (0,)),
        (Cause.IO_WAIT, (), (0,)),
        (Cause.IO_WAIT, (1,), ()),
    ],
    ids=["nobody-knows", "no-culprit", "no-victim"],
)
def test_nothing_to_draw(cause, ranks, victims):
    """
    A picture needs somebody who waits, and somebody to wait for.
    """
    verdict = Finding(cause=cause, ranks=ranks, summary="?")

    section = graph_section(Diagnosis(verdict=verdict, victims=victims))

    assert section is None


def test_several_waits_that_do_not_touch():
    """
    Waits of their own are drawn one below the other.
    """
    other = Finding(cause=Cause.RANK_NOT_ARRIVED, ranks=(5,), summary="too")
    diagnosis = stuck(
        wait([0], [1], group="1"),
        wait([4], [5], group="2", seq=3),
        ranks=(1,),
        findings=(other,),
    )

    section = graph_section(diagnosis)

    boxes = {b["name"]: b for b in section.values["boxes"]}
    assert ("culprit", "suspect") == (
        boxes["rank 1"]["kind"],
        boxes["rank 5"]["kind"],
    )
    places = places_of(section)
    assert places["rank 1"][1] != places["rank 5"][1]


@pytest.mark.parametrize(
    ("cause", "kind", "note"),
    [
        (Cause.RANK_CRASHED, "suspect", "crashed"),
        (Cause.COLLECTIVE_TIMEOUT, "victim", "waits"),
    ],
)
def test_what_else_is_told_of_a_rank(cause, kind, note):
    """
    Who merely noticed that a call timed out is no suspect.
    """
    other = Finding(cause=cause, ranks=(0,), summary="told by a log")
    diagnosis = stuck(wait([0], [1]), ranks=(1,), findings=(other,))

    boxes = graph_section(diagnosis).values["boxes"]

    box = next(box for box in boxes if box["name"] == "rank 0")
    assert (kind, note) == (box["kind"], box["note"])


def test_suspects_of_several_findings():
    """
    Each is said to be at fault for what it did, and they wait as well.
    """
    found = [
        Finding(cause=cause, ranks=(rank,), summary="")
        for rank, cause in (
            (1, Cause.GPU_OUT_OF_MEMORY),
            (2, Cause.RANK_CRASHED),
        )
    ]

    section = graph_section(
        stuck(wait([0, 1, 2], [3]), ranks=(3,), findings=found)
    )

    notes = {box["name"]: box["note"] for box in section.values["boxes"]}
    assert "3 ranks wait for rank 3" == section.summary
    assert "gpu out of memory" == notes["rank 1"]
    assert "crashed" == notes["rank 2"]
    both = Box(ranks=(1, 2), role="suspect")
    assert "several findings" == box_note(both, found)


def test_hundreds_of_waits_of_their_own():
    """
    What does not fit is counted, and those at fault are never left out.
    """
    waits = [
        wait([2 * i], [2 * i + 1], group=f"g{i}", op=f"op{i}")
        for i in range(300)
    ]

    section = graph_section(stuck(*waits, ranks=(401,)))

    boxes = section.values["boxes"]
    assert 24 >= len(boxes)
    assert "rank 401" in {b["name"] for b in boxes if b["kind"] == "culprit"}
    assert section.values["told"][-1].startswith("Calls queued behind these")
    assert "300 ranks wait for rank 401" == section.summary


def test_calls_are_shown_with_who_waits():
    """
    No call is left over of which all that wait are left out.
    """
    waits = [wait([i], [i + 1], group="g", seq=1) for i in range(40)]

    for most in range(2, 24):
        graph = fold(graph_of(stuck(*waits, ranks=(40,))), few=0, most=most)
        entered = {b for _, b in graph.arrows}
        assert all(
            i in entered for i, box in enumerate(graph.boxes) if box.waits
        )


def test_many_sentences_are_counted():
    """
    The list beside the picture is short.
    """
    waits = [
        wait([2 * i], [2 * i + 1], group=f"g{i}", op=f"op{i}")
        for i in range(4)
    ]
    diagnosis = stuck(*waits, ranks=(1,))
    graph = graph_of(diagnosis)

    shown = fold(graph, few=99, most=99)

    assert 12 == len(shown.boxes)
    assert [] == circles(shown)


def test_many_waits_are_not_all_told():
    """
    What the list leaves out, the picture still shows.
    """
    calls = [wait([0], [], seq=i) for i in range(14)]
    boxes = [Box(ranks=(0,), role="call", waits=(call,)) for call in calls]
    graph = Graph(
        boxes=(*boxes, Box(ranks=(0,), role="victim")),
        arrows=frozenset((14, i) for i in range(14)),
        left_out=1,
    )

    lines = sentences(graph, [])

    assert 14 == len(lines)
    assert [
        "More waits: 2.",
        "Calls queued behind these, or left out: 1.",
    ] == lines[-2:]


@pytest.mark.parametrize("has_dump", [True, False])
def test_rank_in_two_calls_that_no_record_orders(tmp_path, has_dump):
    """
    Without its records, a rank waits in the older call.
    """
    diagnosis = stuck(
        wait([0], [1], group="a", since_ns=5),
        wait([0], [2], group="b", since_ns=3),
        ranks=(2,),
    )
    if has_dump:
        make_dumps(tmp_path, SimulatedJob(1))
        dumps = analyze_dumps(tmp_path).dumps
        flight = attrs.evolve(diagnosis.seen.flight, dumps=dumps)
        diagnosis = attrs.evolve(diagnosis, seen=Seen(flight=flight))

    lines = told(diagnosis)

    assert [
        "Rank 0 waits in all_reduce #9 (group b) for rank 2.",
        "Calls queued behind these, or left out: 1.",
    ] == lines


def test_circle_that_grows_finer_forever():
    """
    Waits in a long row are not alike: the nearest to the culprit are shown.
    """
    waits = [wait([i], [i + 1], group="g", seq=1) for i in range(40)]

    boxes = boxes_of(stuck(*waits, ranks=(40,)))

    assert 24 >= len(boxes)
    assert ("culprit", "rank 40") in boxes


def test_one_victim_of_several_findings():
    """
    Numbers of ranks are written as people say them.
    """
    one = graph_section(stuck(wait([0], [1]), ranks=(1,)))
    nobody = graph_section(stuck(wait([0], [1]), ranks=(0, 1)))

    assert "1 rank waits for rank 1" == one.summary
    assert "it begins at ranks 0-1" == nobody.summary


def test_call_that_someone_left_for_another():
    """
    A finding about another group, or without ranks of the call, explains nothing.
    """
    verdict = Finding(
        cause=Cause.SIZE_MISMATCH,
        ranks=(9,),
        summary="other",
        group=GroupRef(name="0", desc="", ranks=(0, 1, 9)),
    )
    diagnosis = stuck(wait([0, 1], []), cause=Cause.UNKNOWN)
    diagnosis = attrs.evolve(diagnosis, findings=(diagnosis.verdict, verdict))

    lines = told(diagnosis)

    assert [
        (
            "Ranks 0-1 wait in all_reduce #9 (group 0), which nobody is known "
            "to hold up."
        )
    ] == lines


def test_name_of_several_calls():
    """
    Calls that differ in number are named from the first to the last one.
    """
    waits = [
        wait([2 * i], [2 * i + 1], group=f"g{i}", desc="dp", seq=4 + i)
        for i in range(20)
    ]

    boxes = boxes_of(stuck(*waits))

    assert ("call", "all_reduce #4 to #23") in boxes


@pytest.mark.parametrize("is_tall", [False, True])
def test_everything_stands_apart(is_tall):
    """
    No two boxes overlap, and all lie within the picture.
    """
    arrows = [(0, 1), (1, 2), (3, 1), (4, 3), (4, 5), (5, 6), (6, 7), (7, 5)]

    layout = lay_out(8, arrows, [[5, 6, 7]], is_tall=is_tall)

    width, height = layout.size
    for i, (x, y) in enumerate(layout.places):
        assert WIDTH / 2 <= x <= width - WIDTH / 2
        assert HEIGHT / 2 <= y <= height - HEIGHT / 2
        for a, b in layout.places[:i]:
            assert abs(a - x) >= WIDTH or abs(b - y) >= HEIGHT
    assert len(arrows) == len(layout.paths)
    assert ((5, 6, 7),) == layout.rings


@pytest.mark.parametrize("is_tall", [False, True])
def test_whoever_waits_stands_first(is_tall):
    """
    Arrows run from left to right, or from top to bottom.
    """
    layout = lay_out(3, [(2, 1), (1, 0)], is_tall=is_tall)

    assert [2, 1, 0] == sorted(
        range(3), key=lambda i: layout.places[i][is_tall]
    )


@pytest.mark.parametrize("is_tall", [False, True])
def test_long_arrows_pass_no_box(is_tall):
    """
    An arrow that leads over several layers runs between their boxes.
    """
    arrows = [(i, i - 1) for i in range(1, 6)] + [(5, 0), (4, 0), (6, 3)]

    layout = lay_out(7, arrows, is_tall=is_tall)

    for (a, b), path in zip(arrows, layout.paths, strict=True):
        others = [p for i, p in enumerate(layout.places) if i not in {a, b}]
        for x, y in points_on(path):
            assert not any(
                abs(x - p) < WIDTH / 2 and abs(y - q) < HEIGHT / 2
                for p, q in others
            )
            assert 0 <= x <= layout.size[0]
            assert 0 <= y <= layout.size[1]


def test_longest_ranks():
    """
    A thousand scattered ranks are counted; a few are named.
    """
    text = many_ranks(range(0, 2000, 2))

    assert text.startswith("1,000 ranks (0,2,4,")
    assert text.endswith(",…)")
    assert "ranks 0-3" == many_ranks(range(4))
    assert "ranks 384-388,…" == few_ranks("ranks 384-388,390-396", 18)
    assert "ranks 0-3,8" == few_ranks("ranks 0-3,8", 11)
    assert "ranks 1234567…" == few_ranks("ranks 123456789-987654321", 14)
    assert "abc…" == shortened("abcdefgh", 4)
    assert "all_ga… #4280" == shortened("all_gather_into #4280", 13)


def test_hostile_names_are_harmless():
    """
    Names of groups and operations are text, whatever they hold.
    """
    evil = "</svg><script>alert(1)</script>\x1b[31m\u202e"
    diagnosis = stuck(
        wait([0], [1], group=evil, desc=evil, op=evil), ranks=(1,)
    )

    html = report_html(diagnosis)

    assert "<script>alert" not in html
    assert "&lt;/svg&gt;" in html
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_picture_is_accessible():
    """
    The picture has a name and says in words what it shows.
    """
    html = report_html(stuck(wait([0], [1]), ranks=(1,)))

    for kind in ("wide", "tall"):
        names = f'aria-labelledby="graph-name-{kind} graph-told-{kind}"'
        assert f'role="img" {names}' in html
    assert "Rank 0 waits in all_reduce #9 (group 0) for rank 1." in html
