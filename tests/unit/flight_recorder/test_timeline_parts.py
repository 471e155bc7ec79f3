"""
What times in dumps mean, and where slices lie.
"""

from __future__ import annotations

import os

import attrs
import numpy as np
import pytest

from distdebug import read_dumps, write_timeline
from distdebug.flight_recorder import Dumps, Group, Signatures, find_groups
from distdebug.flight_recorder.timeline import arrivals as arrivals_module
from distdebug.flight_recorder.timeline import words as words_module
from distdebug.flight_recorder.timeline.arrivals import gather_arrivals
from distdebug.flight_recorder.timeline.clocks import (
    compare_clocks,
    rank_offsets,
)
from distdebug.flight_recorder.timeline.tracks import (
    assign_lanes,
    group_label,
)
from distdebug.testing import SimulatedJob, make_dumps
from distdebug.testing.timelines import read_timeline


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


def _clocks(dumps: Dumps):
    signatures = Signatures(dumps.ops, dumps.shapes)
    return compare_clocks(dumps, find_groups(dumps), signatures)


def _busy(ranks=4, calls=20, **options):
    job = SimulatedJob(ranks, **options)
    for _ in range(calls):
        job.collective("all_reduce")
        job.wait(0.05)
    return job


class TestClocks:
    def test_one_host(self, tmp_path):
        """
        Ranks of one host share its clock.
        """
        dumps = _read(tmp_path, _busy(), ["a"] * 4)

        (clock,) = _clocks(dumps)

        assert ("a", 0, 0, False) == attrs.astuple(clock)

    def test_another_host_is_ahead(self, tmp_path):
        """
        A clock that is ahead by more than the doubt is set back.
        """
        dumps = _read(
            tmp_path,
            _busy(),
            ["a", "a", "b", "b"],
            clock_offsets_s={2: 1.5, 3: 1.5},
        )

        first, second = _clocks(dumps)

        assert (0, False) == (first.ahead_ns, first.corrected)
        assert pytest.approx(1.5e9, abs=1e7) == second.ahead_ns
        assert second.corrected
        offsets = rank_offsets(dumps, (first, second))
        assert {0: 0, 1: 0} == {r: offsets[r] for r in (0, 1)}
        assert offsets[2] == offsets[3] == second.ahead_ns

    def test_small_difference_is_left(self, tmp_path):
        """
        What is within the doubt may be no difference at all.
        """
        dumps = _read(
            tmp_path, _busy(2), ["a", "b"], clock_offsets_s={1: 0.004}
        )

        _, second = _clocks(dumps)

        assert not second.corrected
        assert 0 == rank_offsets(dumps, (second,))[1]

    def test_groups_pass_it_on(self, tmp_path):
        """
        Hosts that share no group are compared through one that both know.
        """
        job = SimulatedJob(3)
        pairs = [job.new_group([0, 1], "x"), job.new_group([1, 2], "y")]
        for _ in range(20):
            for pair in pairs:
                job.collective("all_reduce", pair)
            job.wait(0.05)
        dumps = _read(
            tmp_path, job, ["a", "b", "c"], clock_offsets_s={1: 1.0, 2: -2.0}
        )

        _, b, c = _clocks(dumps)

        assert pytest.approx(1e9, abs=1e7) == b.ahead_ns
        assert pytest.approx(-2e9, abs=1e7) == c.ahead_ns
        assert c.doubt_ns > b.doubt_ns > 0

    def test_too_few_calls(self, tmp_path):
        """
        Where nothing was completed together, nothing is known.
        """
        dumps = _read(tmp_path, _busy(2, calls=2), ["a", "b"])

        _, second = _clocks(dumps)

        assert (None, None) == (second.ahead_ns, second.doubt_ns)

    def test_group_without_calls(self, tmp_path):
        """
        A member that called nothing in a group tells nothing there.
        """
        job = SimulatedJob(3)
        for _ in range(10):
            job.collective("all_reduce", ranks=[0, 1])
        job.collective("all_reduce", job.new_group([2], "own"))
        dumps = _read(tmp_path, job, ["a", "b", "c"])

        clocks = _clocks(dumps)

        assert [0, None, None] == [clock.ahead_ns for clock in clocks]

    def test_different_windows(self, tmp_path):
        """
        Only calls that all members have on record are compared.
        """
        dumps = _read(tmp_path, _busy(2), ["a", "b"], clock_offsets_s={1: 3.0})
        older = dumps[0].entries.take(np.arange(17))
        dumps = attrs.evolve(
            dumps,
            by_rank={0: attrs.evolve(dumps[0], entries=older), 1: dumps[1]},
        )

        _, second = _clocks(dumps)

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
            ([(0, 2), (2, 3), (3, 3), (3, 4)], [0, 0, 0, 0]),
            ([(0, 5), (1, 2), (2, 9), (5, 6)], [0, 1, 1, 0]),
            ([(0, 9), (1, 9), (2, 9)], [0, 1, 2]),
            ([], []),
        ],
        ids=["in turn", "overlapping", "all at once", "none"],
    )
    def test_as_few_as_possible(self, slices, expected):
        """
        Slices that overlap lie on different lanes, and only these.
        """
        start, end = np.array(slices, np.int64).reshape(-1, 2).T

        assert expected == assign_lanes(start, end).tolist()

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
    [("dp", "dp (3)"), ("undefined", "group 3"), ("", "group 3")],
)
def test_group_label(desc, expected):
    """
    A group goes by what it is for, if that is known.
    """
    group = Group(name="3", desc=desc, order=(0,), is_known=True)

    assert expected == group_label(group)


def test_arrivals_in_batches(tmp_path, monkeypatch):
    """
    Arrivals that are merged again and again are the same.
    """
    dumps = _read(tmp_path, _busy(5, calls=7))
    about = (find_groups(dumps), Signatures(dumps.ops, dumps.shapes))
    offsets = dict.fromkeys(range(5), 0)

    once = gather_arrivals(dumps, *about, offsets)
    monkeypatch.setattr(arrivals_module, "_BATCH", 3)
    often = gather_arrivals(dumps, *about, offsets)

    assert 7 == len(once)
    assert 35 == once.count.sum()
    for field in attrs.fields(type(once)):
        expected = getattr(once, field.name).tolist()
        assert expected == getattr(often, field.name).tolist()


def test_words_are_forgotten(tmp_path, monkeypatch):
    """
    However many kinds of calls there are, few of their words are kept.
    """
    job = SimulatedJob(1)
    for size in range(5):
        job.collective("all_reduce", sizes=[[size + 1]])
    dumps = _read(tmp_path / "d", job)
    write_timeline(dumps, tmp_path / "a.json")

    monkeypatch.setattr(words_module, "_MOST_KEPT", 2)
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
