"""
What a timeline looks like in the file, whatever was recorded.
"""

from __future__ import annotations

import gzip
import json
import os

import attrs
import pytest

from tests.timelines import read_timeline

from distdebug import (
    DistdebugError,
    analyze_dumps,
    diagnose,
    read_dumps,
    write_timeline,
)
from distdebug.causes import Cause
from distdebug.errors import NoDumpsError, OutputError
from distdebug.findings import Diagnosis, Finding
from distdebug.flight_recorder import Timeline
from distdebug.testing import SimulatedJob, make_dumps


pytestmark = pytest.mark.usefixtures("decoded_here")


@pytest.fixture(name="hung")
def _hung(tmp_path):
    """
    Four ranks and two groups; rank 2 was late once, then never arrived.
    """
    job = SimulatedJob(4, timeout_s=20.0, stack_depth=2)
    dp = job.new_group([0, 2], "dp")
    for _ in range(10):
        job.collective("all_reduce", sizes=[[3, 4]])
        job.wait(0.01)
    job.collective("all_reduce", late={2: 0.2})
    job.collective("broadcast", dp)
    job.wait(0.5)
    job.collective("all_reduce", ranks=[0, 1, 3])
    job.wait(20)
    return _written(tmp_path / "dumps", job)


def _written(folder, job, **options):
    paths = make_dumps(folder, job, **options)
    for path in paths.values():
        os.utime(path, (job.clock, job.clock))
    return folder


def _draw(folder, path, **options):
    made = write_timeline(folder, path, **options)
    return made, read_timeline(path)


class TestSlices:
    def test_every_record_is_drawn_once(self, hung, tmp_path):
        """
        Each record of each rank is one slice, and no slice is anything else.
        """
        dumps = read_dumps(hung)

        made, drawn = _draw(dumps, tmp_path / "t.json.gz")

        assert {
            (dump.rank, number)
            for dump in dumps
            for number in dump.entries.record_id.tolist()
        } == {(s["pid"], s["args"]["record"]) for s in drawn.slices}
        assert made.slices == len(drawn.slices) == 49

    def test_a_slice_tells_its_call(self, hung, tmp_path):
        """
        A slice says what was called with what, in which group, and its end.
        """
        _, drawn = _draw(hung, tmp_path / "t.json")

        first = drawn.slices[0]
        assert "all_reduce" == first["name"]
        assert {
            "op": "nccl:all_reduce",
            "group": "0",
            "desc": "default_pg",
            "in": "[3, 4] Float",
            "out": "[3, 4] Float",
            "state": "completed",
            "end": "when torch noticed the completion",
            "timeout_ms": 20000,
            "seq": 1,
            "record": 0,
        } == first["args"]

    def test_times_are_relative(self, hung, tmp_path):
        """
        The first call begins at zero, and the file says what zero is.
        """
        made, drawn = _draw(hung, tmp_path / "t.json")

        assert 0 == min(s["ts"] for s in drawn.slices)
        assert 1_750_000_000 * 10**9 == made.start_ns
        assert made.start_ns == drawn.about["zero_ns_since_epoch"]
        assert pytest.approx(20.8, abs=0.1) == made.span_ns / 1e9

    def test_open_calls_reach_to_the_dump(self, hung, tmp_path):
        """
        A call that is not complete is marked, and reaches to the dump.
        """
        made, drawn = _draw(hung, tmp_path / "t.json")

        last = [s for s in drawn.slices if "not complete" in s["name"]]
        assert {0, 1, 3} == {s["pid"] for s in last}
        assert 3 == made.open
        assert {"terrible"} == {s["cname"] for s in last}
        for s in last:
            assert pytest.approx(20e6, rel=0.01) == s["dur"]

    def test_names(self, hung, tmp_path):
        """
        A rank is a process, and a group a track, by what it is for.
        """
        _, drawn = _draw(hung, tmp_path / "t.json")

        assert {r: f"rank {r}" for r in range(4)} == drawn.processes
        assert {"default_pg (0)", "dp (1)"} == set(drawn.tracks.values())

    @pytest.mark.parametrize("depth", [0, 2])
    def test_lines_of_code(self, tmp_path, depth):
        """
        The line of each call is given where it was asked for, and recorded.
        """
        job = SimulatedJob(2, stack_depth=depth)
        job.collective("all_reduce")
        folder = _written(tmp_path / "d", job)

        _, plain = _draw(folder, tmp_path / "t.json")
        _, lines = _draw(folder, tmp_path / "u.json", stack_traces=True)

        assert not any("line" in s["args"] for s in plain.slices)
        assert [depth > 0] * 2 == [
            ":" in s["args"].get("line", "") for s in lines.slices
        ]

    def test_device_times(self, tmp_path):
        """
        Starts and durations are given where they were recorded.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce", duration_s=0.25)
        folder = _written(tmp_path / "d", job, timed=True)

        _, drawn = _draw(folder, tmp_path / "t.json")

        args = drawn.slices[0]["args"]
        assert pytest.approx(250.0) == args["on device ms"]
        assert 0.0 == args["start noticed after ms"]


class TestWhoIsLate:
    def test_mark(self, hung, tmp_path):
        """
        The rank that all others waited for is marked, and only there.
        """
        made, drawn = _draw(hung, tmp_path / "t.json")

        marks = [m for m in drawn.marks if m["name"] == "arrived last"]
        assert [2] == [m["pid"] for m in marks]
        assert pytest.approx(200) == marks[0]["args"]["ms after the first"]
        assert 4 == marks[0]["args"]["ranks"]
        assert 1 == made.late
        assert ["bad"] == [
            s["cname"] for s in drawn.slices if s["pid"] == 2 and "cname" in s
        ]

    def test_absent(self, hung, tmp_path):
        """
        The rank that never came is marked on its own process.
        """
        _, drawn = _draw(hung, tmp_path / "t.json")

        marks = [m for m in drawn.marks if m["name"] == "did not arrive"]
        assert [(2, "all_reduce #12", 3)] == [
            (m["pid"], m["args"]["call"], m["args"]["ranks that wait"])
            for m in marks
        ]
        assert "rank_not_arrived" == drawn.labels[2]
        assert "waits for others" == drawn.labels[0]

    def test_arrows_lead_from_the_last(self, hung, tmp_path):
        """
        Of the late call, arrows lead from the late rank to all that waited.
        """
        made, drawn = _draw(hung, tmp_path / "t.json")

        late = next(s for s in drawn.slices if s.get("cname") == "bad")
        here = [(a, b) for a, b in drawn.arrows if a["ts"] == late["ts"]]
        assert {2} == {a["pid"] for a, _ in here}
        assert {0, 1, 3} == {b["pid"] for _, b in here}
        assert made.arrows == len(drawn.arrows)

    def test_arrows_are_bounded(self, hung, tmp_path):
        """
        Few arrows are those of the longest wait, and the rest is told.
        """
        made, drawn = _draw(hung, tmp_path / "t.json", most_arrows=4)

        assert 3 == len(drawn.arrows)
        assert {2} == {a["pid"] for a, _ in drawn.arrows}
        assert made.arrows_left_out > 30

    def test_arrows_of_wrong_clocks(self, tmp_path):
        """
        What only a wrong clock makes long takes no arrow from real waits.
        """
        job = SimulatedJob(4)
        pair = job.new_group([2, 3], "pair")
        for _ in range(30):
            job.wait(0.01)
            job.collective("all_reduce")
            job.collective("all_reduce", pair, late={3: 0.005})
        folder = _written(tmp_path / "d", job, clock_offsets_s={1: 0.011})

        _, drawn = _draw(folder, tmp_path / "t.json", most_arrows=8)

        assert 4 == len(drawn.arrows)
        assert {(3, 2)} == {(a["pid"], b["pid"]) for a, b in drawn.arrows}

    def test_arrows_of_large_groups(self, tmp_path):
        """
        Of a call of many ranks, some are joined.
        """
        job = SimulatedJob(100)
        for _ in range(5):
            job.collective("all_reduce", late={7: 0.1})
        folder = _written(tmp_path / "d", job)

        made, drawn = _draw(folder, tmp_path / "t.json")

        assert {7} == {a["pid"] for a, _ in drawn.arrows}
        assert 5 * 20 < made.arrows <= 5 * 32


class TestChoice:
    def test_ranks(self, hung, tmp_path):
        """
        Only the chosen ranks are drawn, and marks tell of all.
        """
        made, drawn = _draw(hung, tmp_path / "t.json", ranks=[2, 3, 99])

        assert {2, 3} == set(drawn.processes)
        assert (2, 3) == made.ranks
        assert any(m["args"].get("ranks") == 4 for m in drawn.marks)

    def test_absent_rank_left_out(self, hung, tmp_path):
        """
        What is said of a rank is left out with it.
        """
        _, drawn = _draw(hung, tmp_path / "t.json", ranks=[0, 1])

        assert [] == drawn.marks

    @pytest.mark.parametrize("name", ["dp", "1"])
    def test_groups(self, hung, tmp_path, name):
        """
        Groups are chosen by name or description.
        """
        made, drawn = _draw(hung, tmp_path / "t.json", groups=[name])

        assert {"dp (1)"} == set(drawn.tracks.values())
        assert 2 == made.slices
        assert 47 == made.records_left_out

    def test_last(self, hung, tmp_path):
        """
        The newest calls of each rank are drawn.
        """
        made, drawn = _draw(hung, tmp_path / "t.json", last=1)

        assert [12, 12, 1, 12] == [s["args"]["seq"] for s in drawn.slices]
        assert 45 == made.records_left_out

    @pytest.mark.parametrize(
        ("name", "options", "reason"),
        [
            ("t.json", {"ranks": [17]}, "no call that was asked for"),
            ("t.json", {"last": 0}, "are none"),
            ("t.txt", {}, "no format of timelines"),
            ("t.gz", {}, "no format of timelines"),
            ("json", {}, "no format of timelines"),
            ("nowhere/t.json", {}, "cannot write to"),
        ],
        ids=["no rank", "no call", "txt", "gz", "no suffix", "no folder"],
    )
    def test_refused(self, hung, tmp_path, name, options, reason):
        """
        What leaves nothing, has no format, or cannot be written is an error
        that says what helps, and no file.
        """
        kinds = {"no call that was asked for": NoDumpsError}
        kinds["cannot write to"] = OutputError

        with pytest.raises(
            kinds.get(reason, DistdebugError), match=reason
        ) as caught:
            write_timeline(hung, tmp_path / name, **options)

        assert caught.value.remedy
        assert not (tmp_path / name).exists()

    def test_nothing_read(self, tmp_path):
        """
        Where no dump could be read, the reason is told, and no other choice.
        """
        (tmp_path / "nccl_trace_rank_0").write_bytes(b"no dump")

        with pytest.raises(NoDumpsError, match="no dump could be read: "):
            write_timeline(tmp_path, tmp_path / "t.json")

        assert not (tmp_path / "t.json").exists()


class TestSources:
    def test_all_say_the_same(self, hung, tmp_path):
        """
        A path, dumps, a report, and a diagnosis give the same timeline.
        """
        dumps = read_dumps(hung)
        sources = [hung, dumps, analyze_dumps(dumps), diagnose(hung)]

        files = []
        for i, source in enumerate(sources):
            write_timeline(source, tmp_path / f"{i}.json")
            files.append((tmp_path / f"{i}.json").read_bytes())

        assert 1 == len(set(files))

    def test_diagnosis_of_something_else(self, tmp_path):
        """
        A diagnosis without dumps says what is missing.
        """
        fine = Finding(cause=Cause.HEALTHY, ranks=(), summary="fine")

        with pytest.raises(NoDumpsError, match="rests on no dumps"):
            write_timeline(Diagnosis(verdict=fine), tmp_path / "t.json")

    def test_compressed(self, hung, tmp_path):
        """
        A compressed file holds the same, and is the same again.
        """
        for name in ("a.json", "b.json.gz", "c.json.gz"):
            write_timeline(hung, tmp_path / name)

        packed = (tmp_path / "b.json.gz").read_bytes()
        assert (tmp_path / "a.json").read_bytes() == gzip.decompress(packed)
        assert packed == (tmp_path / "c.json.gz").read_bytes()

    def test_steps_are_told(self, hung, tmp_path):
        """
        Progress is reported step by step.
        """
        told = []

        write_timeline(
            hung, tmp_path / "t.json", tell=lambda *step: told.append(step)
        )

        assert ("reading dumps", 4, 4) in told
        assert ("comparing ranks", 4, 4) in told
        assert ("drawing ranks", 4, 4) == told[-1]


class TestResult:
    def test_text(self, hung, tmp_path):
        """
        The result says what is in the file, and how to open it.
        """
        made = write_timeline(hung, tmp_path / "t.json", last=2)

        lines = str(made).splitlines()
        assert "8 calls of ranks 0-3" in lines[0]
        assert "3 not complete" in lines[1]
        assert "  clocks: 4 taken as they are" == lines[2]
        assert "left out: 41 records" in str(made)
        assert "ui.perfetto.dev" in lines[-1]

    def test_plain_data(self, hung, tmp_path):
        """
        The result is plain data, with the same numbers.
        """
        made = write_timeline(hung, tmp_path / "t.json")

        data = json.loads(json.dumps(made.to_dict()))
        assert made.slices == data["slices"]
        assert {f.name for f in attrs.fields(Timeline)} == set(data)

    def test_copied_dumps(self, tmp_path):
        """
        The time of a file that was copied later is not believed.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        job.wait(1)
        job.collective("all_reduce", ranks=[0])
        make_dumps(tmp_path / "d", job)

        made, drawn = _draw(tmp_path / "d", tmp_path / "t.json")

        assert (0, 1) == made.undated
        assert made.span_ns < 2 * 10**9
        assert "is not known of ranks 0-1" in str(made)
        assert 1 == sum("not complete" in s["name"] for s in drawn.slices)

    def test_hostile_hosts(self, hung, tmp_path):
        """
        So are the names of hosts, also if no encoding knows them.
        """
        dumps = read_dumps(hung)
        named = {
            d.rank: attrs.evolve(d, host="h\ud800\x1b[31m") for d in dumps
        }
        path = tmp_path / "t.json"

        write_timeline(attrs.evolve(dumps, by_rank=named), path)

        assert '"rank 0 (h)"' in path.read_text("utf-8")

    def test_hostile_names(self, tmp_path):
        """
        Whatever a group is called, the file is sound and the names are clean.
        """
        job = SimulatedJob(2)
        group = job.new_group([0, 1], 'a"b\\</script>\x1b[31m\u202e')
        job.collective("all_reduce", group)
        folder = _written(tmp_path / "d", job)

        _, drawn = _draw(folder, tmp_path / "t.json")

        assert {'a"b\\</script> (1)'} == set(drawn.tracks.values())
