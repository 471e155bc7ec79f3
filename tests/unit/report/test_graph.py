"""
Who waits for whom, as a picture of few boxes.
"""

from __future__ import annotations

import re

from itertools import combinations, pairwise

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.diagnosis import DiagnosisInputs
from distdebug.findings import (
    CollectiveRef,
    Diagnosis,
    Evidence,
    Finding,
    GroupRef,
    Missing,
)
from distdebug.flight_recorder import Dumps, FlightReport, analyze_dumps
from distdebug.stacks import ProcessStacks
from distdebug.testing import SimulatedJob, make_dumps
from distdebug.waits import Wait


def stuck(*waits, cause=Cause.RANK_NOT_ARRIVED, ranks=(), findings=()):
    """
    A diagnosis of waits without a dump.
    """
    verdict = Finding(cause=cause, ranks=ranks, summary="stuck")
    flight = FlightReport(
        findings=(verdict, *findings),
        groups=(),
        waits=waits,
        victims=(),
        missing=(),
        outdated=(),
        dumps=Dumps(by_rank={}, groups=(), ops=()),
    )
    return Diagnosis(
        verdict=verdict,
        findings=(verdict, *findings),
        seen=DiagnosisInputs(flight=flight),
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


class Picture:
    """
    A picture as the page has it, for wide screens or for narrow ones.
    """

    def __init__(self, node):
        (self.svg,) = node.all("svg")
        self.size = [int(self.svg.given[x]) for x in ("width", "height")]
        self.boxes = [Box(x) for x in node.all("g.box")]
        self.arrows = [
            ((arrow.classes - {"arrow"}).pop(), points_on(arrow.given["d"]))
            for arrow in node.all("path.arrow")
        ]

    def named(self):
        """
        The boxes by their first line.
        """
        return {box.name: box for box in self.boxes}

    def kinds(self):
        """
        Kind and first line of each box.
        """
        return sorted((box.kind, box.name) for box in self.boxes)


class Box:
    """
    A box of a picture: what it says, and the corners that it lies between.
    """

    def __init__(self, node):
        kinds = {"culprit", "suspect", "victim", "lost", "call"}
        self.is_lost = "lost" in node.classes
        self.kind = min(node.classes & kinds)
        self.full = node.one("title").text
        self.name, self.note = (
            " ".join(node.texts(f"text.{x}")) for x in ("name", "note")
        )
        rect = node.one("rect").given
        self.x, self.y = map(
            int, re.findall(r"-?\d+", node.given["transform"])
        )
        self.end_x = self.x + int(rect["width"])
        self.end_y = self.y + int(rect["height"])

    def holds(self, x, y):
        """
        Whether a point lies within it.
        """
        return self.x < x < self.end_x and self.y < y < self.end_y

    def touches(self, x, y):
        """
        Whether an arrow that ends at a point leads to it.
        """
        near = 10
        return (
            self.x - near <= x <= self.end_x + near
            and self.y - near <= y <= self.end_y + near
        )


@pytest.fixture
def graph(part):
    """
    The part with both pictures; with neither if there is none.
    """

    def make(diagnosis):
        found = part("graph", diagnosis)
        if found is not None:
            found.wide, found.tall = map(Picture, found.all("div.graph"))
            found.told = found.texts("ul.graph-told li")
            assert found.wide.kinds() == found.tall.kinds()
        return found

    return make


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


def cascade(world, tp, late):
    """
    A job in which a rank does not come, and all others wait behind its group.
    """
    job, rows, columns = mesh(world, tp)
    for row in rows:
        ranks = [r for r in row.ranks if r != late]
        job.collective("all_gather", row, ranks=ranks)
    for column in columns:
        ranks = [r for r in column.ranks if r not in rows[late // tp].ranks]
        job.collective("all_reduce", column, ranks=ranks)
    return job


def all_known_to_be_inside(job):
    """
    Record that all members have entered the last call of each rank.
    """
    for rank in job.records:
        job.records[rank][-1].call.members |= {-1}


def test_nobody_waits(graph, seen_in):
    """
    A healthy job has no such picture.
    """
    job, _, _ = mesh()

    assert graph(seen_in(job)) is None


def test_cascade(graph, seen_in):
    """
    Who waits for a victim stands left of it, and all roads lead to the culprit.
    """
    found = graph(seen_in(cascade(16, 4, late=5)))

    assert "15 ranks wait for rank 5" == found.summary
    assert (
        "Ranks 4,6-7 wait in all_gather #2 (group tp) for rank 5."
        in found.told
    )
    wide, tall = found.wide.named(), found.tall.named()
    names = ("ranks 0,8,12", "rank 4", "rank 5")
    assert [wide[n].x for n in names] == sorted(wide[n].x for n in names)
    assert [tall[n].y for n in names] == sorted(tall[n].y for n in names)
    assert ["did not arrive"] == [
        box.note for box in found.wide.boxes if box.kind == "culprit"
    ]


def test_large_cascade_is_folded(graph, seen_in):
    """
    Many ranks are as many boxes as there are roles.
    """
    found = graph(seen_in(cascade(64, 8, late=21)))

    assert 7 == len(found.wide.boxes)
    assert "7 groups of dp" in [box.note for box in found.wide.boxes]
    assert all(len(line) < 200 for line in found.told)


@pytest.mark.parametrize(
    ("op", "note"),
    [("broadcast", "called something else"), ("all_reduce", "another size")],
)
def test_mismatch(graph, seen_in, op, note):
    """
    The others wait for the rank that called something else, though it is
    inside.
    """
    job = SimulatedJob(8)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1, 2, 4, 5, 6, 7], sizes=[[64]])
    job.collective(
        op, ranks=[3], sizes=[[65]], state="scheduled", duration_s=1e6
    )
    all_known_to_be_inside(job)

    found = graph(seen_in(job))

    assert [
        "Ranks 0-2,4-7 wait in all_reduce #2 (group default_pg) for rank 3."
    ] == found.told
    assert note in found.wide.named()["rank 3"].note


def test_order_of_groups(graph, seen_in):
    """
    Two calls whose members wait for each other are a circle.
    """
    job = SimulatedJob(4)
    a, b = job.new_group(range(4), "dp"), job.new_group(range(4), "ep")
    job.collective("all_reduce", a, ranks=[0, 1])
    job.collective("all_gather", b, ranks=[2, 3])

    found = graph(seen_in(job))

    assert "a cycle: none of them can continue" == found.summary
    assert "Ranks 0-3 wait for each other: a deadlock." == found.told[0]
    assert ["circle"] * 4 == [kind for kind, _ in found.wide.arrows]


def test_order_of_groups_when_nothing_blocks(graph, seen_in):
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

    found = graph(seen_in(job))

    assert (
        "Ranks 0-1 wait in all_reduce #1 (group dp) for ranks 2-3."
        in found.told
    )
    assert found.all("li.circle")


@pytest.mark.parametrize(("world", "boxes"), [(3, 6), (64, 2)])
def test_ring_of_receives(graph, seen_in, world, boxes):
    """
    A small ring is drawn rank by rank, a large one as two boxes.
    """
    job = SimulatedJob(world)
    for rank in range(world):
        job.recv(rank, (rank - 1) % world)

    found = graph(seen_in(job))

    assert boxes == len(found.wide.boxes)
    assert {"circle"} == {kind for kind, _ in found.wide.arrows}
    # If it is small, a transfer tells who sends to whom.
    assert (boxes == 6) == (
        "Rank 1 waits in recv #1 (rank 0 to rank 1) for rank 0." in found.told
    )


def test_crash(graph, seen_in):
    """
    Ranks without a dump are drawn as such.
    """
    job = SimulatedJob(8)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[r for r in range(8) if r != 6])

    boxes = graph(seen_in(job, missing=[6])).wide.boxes

    assert [("culprit", "rank 6", "left no dump")] == [
        (box.kind, box.name, box.note) for box in boxes if box.is_lost
    ]


def test_lost_rank_that_is_not_to_blame(graph):
    """
    A rank that left nothing is no culprit unless a finding says so.
    """
    diagnosis = attrs.evolve(
        stuck(wait([0], [1, 2]), ranks=(1,)),
        missing=(Missing(what="dump", reason="there is none", rank=2),),
    )

    box = graph(diagnosis).wide.named()["rank 2"]

    assert ("lost", "left no dump") == (box.kind, box.note)


def test_all_arrived(graph, seen_in):
    """
    If all ranks are in the call, none is drawn as culprit.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce")
    job.collective("all_reduce")
    all_known_to_be_inside(job)
    job.wait(300)

    found = graph(seen_in(job))

    assert "4 ranks wait" == found.summary
    assert [
        (
            "Ranks 0-3 wait in all_reduce #2 (group default_pg), and no rank "
            "is known to hold it up."
        )
    ] == found.told


def test_left_behind_in_a_call(graph):
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

    found = graph(
        attrs.evolve(diagnosis, verdict=verdict, findings=(verdict,))
    )

    culprit = found.wide.named()["rank 2"]
    assert ("culprit", "stuck inside the call") == (culprit.kind, culprit.note)
    assert any("all_reduce #5" in line for line in found.told)


def test_other_job(graph):
    """
    A rank of another job is no suspect here.
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
        seen=DiagnosisInputs(stacks=stacks),
    )

    found = graph(diagnosis).wide.kinds()

    assert [("culprit", "rank 1"), ("victim", "ranks 0,2")] == found


@pytest.mark.parametrize(
    ("cause", "verdict", "victims", "told"),
    [
        (Cause.IO_WAIT, {}, (0, 2), "Ranks 0,2 wait for rank 1."),
        (
            Cause.STRAGGLER,
            {"group": GroupRef(name="0", desc="dp", ranks=(0, 1, 2, 3))},
            (),
            "Ranks 0,2-3 wait for rank 1.",
        ),
        (
            Cause.RANK_NOT_ARRIVED,
            {
                "group": GroupRef(name="3", desc="", ranks=(0, 1)),
                "collective": CollectiveRef(op="barrier", seq=7),
            },
            (0,),
            "Rank 0 waits in barrier #7 (group 3) for rank 1.",
        ),
        (Cause.UNKNOWN, {}, (0,), None),
        (Cause.IO_WAIT, {"ranks": ()}, (0,), None),
        (Cause.IO_WAIT, {}, (), None),
    ],
    ids=[
        *("victims", "straggler", "call"),
        *("nobody-knows", "no-culprit", "no-victim"),
    ],
)
def test_without_dumps(graph, cause, verdict, victims, told):
    """
    Without dumps, the victims, or all in the group, wait for the culprits, in
    the call that the verdict names; a picture needs both.
    """
    given = {"cause": cause, "ranks": (1,), "summary": "?", **verdict}

    found = graph(Diagnosis(verdict=Finding(**given), victims=victims))

    assert (told and [told]) == (found and found.told)


def test_several_waits_that_do_not_touch(graph):
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

    boxes = graph(diagnosis).wide.named()

    first, second = boxes["rank 1"], boxes["rank 5"]
    assert ("culprit", "suspect") == (first.kind, second.kind)
    assert first.y != second.y


def test_what_else_is_told_of_ranks(graph):
    """
    Each is said to be at fault for what it did, and they wait as well; a rank
    that merely noticed that a call timed out is no suspect.
    """
    findings = [
        Finding(cause=cause, ranks=(rank,), summary="")
        for rank, cause in (
            (0, Cause.COLLECTIVE_TIMEOUT),
            (1, Cause.GPU_OUT_OF_MEMORY),
            (2, Cause.RANK_CRASHED),
        )
    ]

    found = graph(stuck(wait([0, 1, 2], [3]), ranks=(3,), findings=findings))

    boxes = found.wide.named()
    assert "3 ranks wait for rank 3" == found.summary
    assert [
        ("victim", "waits"),
        ("suspect", "gpu out of memory"),
        ("suspect", "crashed"),
    ] == [
        (boxes[x].kind, boxes[x].note) for x in ("rank 0", "rank 1", "rank 2")
    ]


def test_hundreds_of_waits_of_their_own(graph):
    """
    What does not fit is counted, and those at fault are never left out.
    """
    waits = [
        wait([2 * i], [2 * i + 1], group=f"g{i}", op=f"op{i}")
        for i in range(300)
    ]

    found = graph(stuck(*waits, ranks=(401,)))

    assert 24 >= len(found.wide.boxes)
    assert "culprit" == found.wide.named()["rank 401"].kind
    assert found.told[-1].startswith("Calls queued behind these")
    assert "300 ranks wait for rank 401" == found.summary


def test_many_waits_are_not_all_told(graph):
    """
    What the list leaves out, the picture still shows.
    """
    rings = [(i, i - 2 if i % 3 == 2 else i + 1) for i in range(12)]
    waits = [wait([a], [b], group=f"g{a}", op=f"op{a}") for a, b in rings]

    found = graph(stuck(*waits))

    assert 24 == len(found.wide.boxes)
    assert 13 == len(found.told)
    assert "More waits: 4." == found.told[-1]


@pytest.mark.parametrize("has_dump", [True, False])
def test_rank_in_two_calls_that_no_record_orders(graph, tmp_path, has_dump):
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
        diagnosis = attrs.evolve(
            diagnosis, seen=DiagnosisInputs(flight=flight)
        )

    assert [
        "Rank 0 waits in all_reduce #9 (group b) for rank 2.",
        "Calls queued behind these, or left out: 1.",
    ] == graph(diagnosis).told


@pytest.mark.parametrize("length", [*range(2, 14), 40])
def test_waits_in_a_long_row(graph, length):
    """
    Waits in a row are not alike: the nearest to the culprit are shown, and no
    call of which all that wait are left out.
    """
    waits = [wait([i], [i + 1], group="g", seq=1) for i in range(length)]

    found = graph(stuck(*waits, ranks=(length,)))

    boxes = found.wide.boxes
    assert 24 >= len(boxes)
    assert ("culprit", f"rank {length}") in found.wide.kinds()
    # A box at the end of no arrow is a call that is left over.
    calls = [box for box in boxes if box.kind == "call"]
    assert not [
        box.full
        for box in calls
        if not any(box.touches(*arrow[-1]) for _, arrow in found.wide.arrows)
    ]


def test_summary_of_one_victim_and_of_none(graph):
    """
    Numbers of ranks are written as people say them.
    """
    one = graph(stuck(wait([0], [1]), ranks=(1,)))
    none = graph(stuck(wait([0], [1]), ranks=(0, 1)))

    assert "1 rank waits for rank 1" == one.summary
    assert "it begins at ranks 0-1" == none.summary


def test_call_that_someone_left_for_another(graph):
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

    assert [
        (
            "Ranks 0-1 wait in all_reduce #9 (group 0), and no rank is known "
            "to hold it up."
        )
    ] == graph(diagnosis).told


@pytest.mark.parametrize(
    ("waits", "name"),
    [
        (
            [
                wait([2 * i], [2 * i + 1], group=f"g{i}", seq=4 + i)
                for i in range(20)
            ],
            "all_reduce #4 to #23",
        ),
        (
            [wait([0], [1], op="all_gather_into_tensor_out", seq=4280)],
            "all_gather_into… #4280",
        ),
    ],
    ids=["several", "long"],
)
def test_name_of_calls(graph, waits, name):
    """
    Calls that differ in number are named from the first to the last one, and
    numbers stay, however long the name is.
    """
    assert ("call", name) in graph(stuck(*waits)).wide.kinds()


@pytest.fixture(
    params=[
        [(0, 1), (1, 2), (3, 1), (4, 3, 5), (5, 6), (6, 7), (7, 5)],
        [(1, 0), (2, 1), (3, 2), (4, 3, 0), (5, 4, 0), (6, 3)],
    ],
    ids=["circle", "long"],
)
def tangled(request, graph):
    """
    The pictures of forks, a circle, and arrows over several layers.
    """
    waits = [
        wait([a], awaited, group=f"g{a}", op=f"op{a}")
        for a, *awaited in request.param
    ]
    return graph(stuck(*waits, ranks=(0, 2)))


@pytest.mark.parametrize("kind", ["wide", "tall"])
def test_everything_stands_apart(tangled, kind):
    """
    No two boxes overlap, and all lie within the picture.
    """
    picture = getattr(tangled, kind)

    width, height = picture.size
    assert 12 <= len(picture.boxes) <= len(picture.arrows) + 1
    for box in picture.boxes:
        assert 0 <= box.x < box.end_x <= width
        assert 0 <= box.y < box.end_y <= height
    for a, b in combinations(picture.boxes, 2):
        assert min(a.end_x, b.end_x) <= max(a.x, b.x) or min(
            a.end_y, b.end_y
        ) <= max(a.y, b.y)


@pytest.mark.parametrize("kind", ["wide", "tall"])
def test_arrows_pass_no_box(tangled, kind):
    """
    An arrow touches the boxes at its ends, and runs between all others.
    """
    picture = getattr(tangled, kind)

    # An arrow into a circle may cross it, to reach its other side.
    rings = [points[-1] for kind, points in picture.arrows if kind == "circle"]
    for _, points in picture.arrows:
        assert not [
            box.name
            for box in picture.boxes
            if any(box.holds(x, y) for x, y in points[1:-1])
            and not any(box.touches(*end) for end in rings)
        ]
        assert all(0 <= x <= picture.size[0] for x, _ in points)
        assert all(0 <= y <= picture.size[1] for _, y in points)


def test_longest_ranks(graph):
    """
    A thousand scattered ranks are counted; a few are named.
    """
    waiting = tuple(range(0, 2000, 2))
    found = graph(stuck(wait(waiting, [123456789]), ranks=(123456789,)))

    (told,) = found.told
    assert told.startswith("1,000 ranks (0,2,4,")
    assert ",…) wait in all_reduce #9 (group 0) for rank 123456789" in told
    victim = next(b for b in found.wide.boxes if b.kind == "victim")
    assert re.fullmatch(r"ranks (\d+,)+…", victim.name)
    assert victim.full.startswith("ranks 0,2,4,6,8,10,")


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([0, 1, 2, 3, 8], "ranks 0-3,8"),
        ([*range(384, 389), *range(390, 397)], "ranks 384-388,…"),
        ([*range(1234567890, 1234567895)], "ranks 12345678…"),
    ],
    ids=["all", "first", "cut"],
)
def test_name_of_ranks(graph, ranks, name):
    """
    The first ranks are named; no number is cut in two if it fits.
    """
    found = graph(stuck(wait([7], ranks), ranks=tuple(ranks)))

    assert ("culprit", name) in found.wide.kinds()


def test_hostile_names_are_harmless(page):
    """
    Names of groups and operations are text, whatever they hold.
    """
    evil = "</svg><script>alert(1)</script>\x1b[31m\u202e"
    diagnosis = stuck(
        wait([0], [1], group=evil, desc=evil, op=evil), ranks=(1,)
    )

    shown = page(diagnosis)

    assert [] == shown.part("graph").all("script")
    assert "</svg><script>alert(1)" in shown.part("graph").text
    assert not set("\x1b\u202e") & set(shown.html)


def test_picture_is_accessible(graph):
    """
    The picture has a name and says in words what it shows.
    """
    found = graph(stuck(wait([0], [1]), ranks=(1,)))

    words = ["Rank 0 waits in all_reduce #9 (group 0) for rank 1."]
    assert words == found.told
    for picture in (found.wide, found.tall):
        assert "img" == picture.svg.given["role"]
        name, told = picture.svg.given["aria-labelledby"].split()
        ids = {x.given.get("id"): x.text for x in picture.svg.inside()}
        assert ("Who waits for whom", *words) == (ids[name], ids[told])
