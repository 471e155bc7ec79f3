"""
What times in dumps mean, and where slices lie.
"""

from __future__ import annotations

import os

import attrs
import numpy as np
import pytest

from tests.timelines import read_timeline

from distdebug import read_dumps, write_timeline
from distdebug.testing import SimulatedJob, make_dumps


pytestmark = pytest.mark.usefixtures("decoded_here")


def _read(folder, job, hosts=(), **options):
    """
    Dump a job whose ranks run on these hosts.
    """
    for path in make_dumps(folder, job, **options).values():
        os.utime(path, (job.clock, job.clock))
    dumps = read_dumps(folder)
    on = dict(enumerate(hosts))
    by_rank = {
        dump.rank: attrs.evolve(dump, host=on.get(dump.rank)) for dump in dumps
    }
    return attrs.evolve(dumps, by_rank=by_rank)


@pytest.fixture
def clocks_of(tmp_path):
    """
    How the clocks of the hosts of a job are set, by the timeline of it.
    """

    def compare(job, hosts, **options):
        dumps = _read(tmp_path / "d", job, hosts, **options)
        return write_timeline(dumps, tmp_path / "t.json").clocks

    return compare


def _busy(ranks=4, calls=20, **options):
    job = SimulatedJob(ranks, **options)
    for _ in range(calls):
        job.collective("all_reduce")
        job.wait(0.05)
    return job


class TestClocks:
    def test_another_host_is_ahead(self, clocks_of, tmp_path):
        """
        A clock that is ahead by more than the doubt is set back, for all
        ranks of its host.
        """
        first, second = clocks_of(
            _busy(), ["a", "a", "b", "b"], clock_offsets_s={2: 1.5, 3: 1.5}
        )

        assert (0, False) == (first.ahead_ns, first.corrected)
        assert pytest.approx(1.5e9, abs=1e7) == second.ahead_ns
        assert second.corrected
        drawn = read_timeline(tmp_path / "t.json")
        starts = [s["ts"] for s in drawn.slices if s["args"]["record"] == 0]
        assert [0] * 4 == pytest.approx(starts, abs=1e4)

    def test_groups_pass_it_on(self, clocks_of):
        """
        Hosts that share no group are compared through one that both know.
        """
        job = SimulatedJob(3)
        pairs = [job.new_group([0, 1], "x"), job.new_group([1, 2], "y")]
        for _ in range(20):
            for pair in pairs:
                job.collective("all_reduce", pair)
            job.wait(0.05)

        _, b, c = clocks_of(
            job, ["a", "b", "c"], clock_offsets_s={1: 1.0, 2: -2.0}
        )

        assert pytest.approx(1e9, abs=1e7) == b.ahead_ns
        assert pytest.approx(-2e9, abs=1e7) == c.ahead_ns
        assert c.doubt_ns > b.doubt_ns > 0

    @pytest.mark.parametrize(
        ("calls", "hosts", "offset_s", "corrected"),
        [
            # Ranks of one host share its clock.
            (20, ["a", "a"], 0.0, [False]),
            # What is within the doubt may be no difference at all.
            (20, ["a", "b"], 0.004, [False, False]),
            (20, ["a", "b"], 0.4, [False, True]),
            # Where nothing was completed together, nothing is known.
            (2, ["a", "b"], 0.0, [False, None]),
        ],
        ids=["one host", "in doubt", "ahead", "too few"],
    )
    def test_two_ranks(self, clocks_of, calls, hosts, offset_s, corrected):
        """
        Clocks are compared by host, and corrected beyond doubt.
        """
        job = _busy(2, calls=calls)

        clocks = clocks_of(job, hosts, clock_offsets_s={1: offset_s})

        assert hosts[: len(clocks)] == [c.host for c in clocks]
        assert corrected == [
            None if c.ahead_ns is None else c.corrected for c in clocks
        ]
        assert [c.ahead_ns is None for c in clocks] == [
            c.doubt_ns is None for c in clocks
        ]

    def test_group_without_calls(self, clocks_of):
        """
        A member that called nothing in a group says nothing there.
        """
        job = SimulatedJob(3)
        for _ in range(10):
            job.collective("all_reduce", ranks=[0, 1])
        job.collective("all_reduce", job.new_group([2], "own"))

        clocks = clocks_of(job, ["a", "b", "c"])

        assert [0, None, None] == [clock.ahead_ns for clock in clocks]

    def test_different_windows(self, tmp_path):
        """
        Only calls that all members have on record are compared.
        """
        dumps = _read(tmp_path, _busy(2), ["a", "b"], clock_offsets_s={1: 3.0})
        older = dumps[0].entries.take(np.arange(17))
        dumps.by_rank[0] = attrs.evolve(dumps[0], entries=older)

        _, second = write_timeline(dumps, tmp_path / "t.json").clocks

        assert pytest.approx(3e9, abs=1e7) == second.ahead_ns

    def test_timeline_tells(self, tmp_path):
        """
        The result says what was shifted, and the slices fit together then.
        """
        job = _busy(4)
        dumps = _read(
            tmp_path / "d",
            job,
            ["a", "a", "b", "c"],
            clock_offsets_s={2: 5.0, 3: 0.001},
        )

        made = write_timeline(dumps, tmp_path / "t.json")

        assert "shifted b -5,0" in str(made)
        assert "2 taken as they are" in str(made)
        assert made.span_ns < 2 * 10**9
        drawn = read_timeline(tmp_path / "t.json")
        assert "rank 2 (b)" == drawn.processes[2]
        assert [False, True, False] == [
            clock["corrected"] for clock in drawn.about["clocks"]
        ]

    def test_unknown_is_told(self, tmp_path):
        """
        Hosts that could not be compared are named.
        """
        dumps = _read(tmp_path / "d", _busy(2, calls=1), ["a", "b"])

        made = write_timeline(dumps, tmp_path / "t.json")

        assert "not compared: b; 1 taken as they are" in str(made)


class TestEnds:
    def test_gloo_notes_no_end(self, tmp_path):
        """
        On Gloo a call is drawn until its last rank arrived.
        """
        job = SimulatedJob(2, backend="gloo")
        job.collective("all_reduce", late={1: 0.5})
        job.collective("broadcast")
        dumps = _read(tmp_path / "d", job, ["a", "a"])

        made = write_timeline(dumps, tmp_path / "t.json")

        drawn = read_timeline(tmp_path / "t.json")
        durations = {(s["pid"], s["name"]): s["dur"] for s in drawn.slices}
        assert pytest.approx(500_001) == durations[0, "all_reduce"]
        assert 1 == durations[1, "all_reduce"] == durations[0, "broadcast"]
        assert 4 == made.unended
        assert "no end on record of 4 calls" in str(made)
        assert {
            "not recorded; drawn until the last rank arrived",
            "not recorded",
        } == {s["args"]["end"] for s in drawn.slices}

    def test_parts_of_a_batch(self, tmp_path):
        """
        The parts of a batch reach to the next one, its end to its completion.
        """
        job = SimulatedJob(2)
        job.coalesced(0, [("send", 1), ("recv", 1)])
        job.wait(0.1)
        job.coalesced(1, [("recv", 0), ("send", 0)])
        dumps = _read(tmp_path / "d", job, ["a", "a"])

        write_timeline(dumps, tmp_path / "t.json")

        drawn = read_timeline(tmp_path / "t.json")
        here = [s for s in drawn.slices if s["pid"] == 0]
        assert {
            "send 0->1": 0.0,
            "recv 0<-1": 0.0,
            "coalesced": pytest.approx(100_500, rel=0.1),
        } == {s["name"]: s["dur"] for s in here}
        assert {
            "default_pg (0) with rank 1",
            "default_pg (0) batches",
        } == {drawn.tracks[s["pid"], s["tid"]] for s in here}

    def test_timed_out(self, tmp_path):
        """
        A call that a watchdog ended did not complete.
        """
        job = SimulatedJob(2, timeout_s=5)
        job.collective("all_reduce")
        dumps = _read(tmp_path / "d", job, ["a", "a"])
        entries = dumps[0].entries
        late = attrs.evolve(
            entries, completed_ns=entries.created_ns + 5 * 10**9
        )
        dumps.by_rank[0] = attrs.evolve(dumps[0], entries=late)

        write_timeline(dumps, tmp_path / "t.json")

        first = read_timeline(tmp_path / "t.json").slices[0]
        assert "all_reduce: timed out" == first["name"]
        assert "terrible" == first["cname"]

    def test_peers_of_unknown_groups(self, tmp_path):
        """
        Where members are not known, a track goes by their numbers.
        """
        job = SimulatedJob(3)
        job.send(0, 2)
        dumps = _read(tmp_path / "d", job)
        dumps = attrs.evolve(
            dumps,
            world_size=None,
            by_rank={
                rank: attrs.evolve(dumps[rank], configs=(), sidecar=None)
                for rank in dumps.ranks
            },
        )

        write_timeline(dumps, tmp_path / "t.json")

        drawn = read_timeline(tmp_path / "t.json")
        assert {"default_pg (0) members 0 and 2"} == set(drawn.tracks.values())


class TestLanes:
    @pytest.mark.parametrize(
        ("slices", "expected"),
        [
            ([(0, 2), (2, 3), (3, 3), (3, 4)], 1),
            ([(0, 5), (1, 2), (2, 9), (5, 6)], 2),
            ([(0, 9), (1, 9), (2, 9)], 3),
        ],
        ids=["in turn", "overlapping", "all at once"],
    )
    def test_as_few_as_possible(self, tmp_path, slices, expected):
        """
        Slices that overlap lie on different tracks, and only these.
        """
        dumps = _read(tmp_path, _busy(1, calls=len(slices)))
        entries = dumps[0].entries
        start, end = np.array(slices, np.int64).T * 1000 + 10**18
        entries = attrs.evolve(entries, created_ns=start, completed_ns=end)
        dumps.by_rank[0] = attrs.evolve(dumps[0], entries=entries)

        made = write_timeline(dumps, tmp_path / "t.json")

        assert expected == made.tracks
        # This looks that none overlap.
        assert len(slices) == len(read_timeline(tmp_path / "t.json").slices)

    def test_lanes_are_tracks(self, tmp_path):
        """
        Calls in flight at once lie on tracks of their own.
        """
        dumps = _read(tmp_path / "d", _busy(2, calls=3), ["a", "a"])
        for dump in dumps:
            dump.entries.completed_ns[:] = dump.entries.created_ns + 10**9

        made = write_timeline(dumps, tmp_path / "t.json")

        tracks = read_timeline(tmp_path / "t.json").tracks
        assert 6 == made.tracks
        assert ["default_pg (0)"] + 2 * ["default_pg (0), also"] == [
            tracks[0, tid] for tid in (1, 2, 3)
        ]


@pytest.mark.parametrize(
    ("desc", "expected"),
    [("dp", "dp (1)"), ("undefined", "group 1"), ("", "group 1")],
)
def test_group_label(tmp_path, desc, expected):
    """
    A group goes by what it is for, if that is known.
    """
    job = SimulatedJob(1)
    job.collective("all_reduce", job.new_group([0], desc))
    dumps = _read(tmp_path, job)

    write_timeline(dumps, tmp_path / "t.json")

    drawn = read_timeline(tmp_path / "t.json")
    assert {expected} == set(drawn.tracks.values())


def test_bounded(tmp_path, request):
    """
    However many calls there are, and kinds of them, few are held in memory at
    once, and the timeline is the same.
    """
    job = SimulatedJob(5)
    for size in range(7):
        job.collective("all_reduce", sizes=[[size + 1]], late={2: 0.1})
    dumps = _read(tmp_path / "d", job)

    write_timeline(dumps, tmp_path / "a.json")
    request.getfixturevalue("small_batches")
    write_timeline(dumps, tmp_path / "b.json")

    expected = (tmp_path / "a.json").read_bytes()
    assert expected == (tmp_path / "b.json").read_bytes()


def test_empty_rank(tmp_path):
    """
    A rank that recorded nothing is a process without slices.
    """
    job = _busy(2, calls=3)
    dumps = _read(tmp_path / "d", job, ["a", "a"])
    empty = dumps[1].entries.take(np.array([], np.int64))
    dumps = attrs.evolve(
        dumps,
        by_rank={0: dumps[0], 1: attrs.evolve(dumps[1], entries=empty)},
    )

    made = write_timeline(dumps, tmp_path / "t.json")

    assert {0: "rank 0 (a)", 1: "rank 1 (a)"} == read_timeline(
        tmp_path / "t.json"
    ).processes
    assert (3, 1) == (made.slices, made.tracks)
