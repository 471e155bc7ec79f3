"""
Files of NCCL Inspector: which rank, node, or link is slow.
"""

from __future__ import annotations

import json
import random
import shutil

from pathlib import Path

import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.errors import NoDumpsError
from distdebug.flight_recorder import (
    make_schedule,
    read_dumps,
    write_timeline,
)
from distdebug.flight_recorder.reading import inspector
from distdebug.testing import SimulatedJob, make_dumps


pytestmark = pytest.mark.usefixtures("decoded_here")

RECORDERS = Path(__file__).parents[2] / "data" / "recorders"
START_US = 1_795_900_000_000_000
WORLD = "0x7f8c496ae9f661"
SLOW = (Cause.STRAGGLER, (3,))


def record(comm, rank, size, took_us, **more):
    """
    A line as ``inspectorCommInfoDumpColl`` and its namesake for p2p write it.
    """
    about = {
        "number": 0,
        "op": "AllReduce",
        "kind": "coll",
        "peer": {},
        "times": None,
        "written_us": START_US,
        "name": {},
        **more,
    }
    kind, times = about["kind"], about["times"]
    perf = {
        kind: about["op"],
        f"{kind}_sn": about["number"],
        **about["peer"],
        f"{kind}_msg_size_bytes": 1 << 26,
        f"{kind}_exec_time_us": took_us,
        f"{kind}_timing_source": "kernel_gpu",
        f"{kind}_algobw_gbs": 98.5,
        f"{kind}_busbw_gbs": 172.4,
    }
    if times:
        launched, began, ended = times
        channel = {
            "channel_id": 0,
            "kernel_start_ts": began,
            "kernel_stop_ts": ended,
            "kernel_record_ts": ended,
        }
        perf["event_trace_ts"] = {
            f"{kind}_start_ts": launched,
            f"{kind}_stop_ts": launched + 4,
            "kernel_events": [channel],
        }
    return {
        "header": {
            "id": comm,
            **about["name"],
            "rank": rank,
            "n_ranks": size,
            "nnodes": 2,
        },
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": about["written_us"],
            "hostname": f"node{rank // 4}",
            "pid": 4000 + rank,
        },
        f"{kind}_perf": perf,
    }


def write(folder, records, rank, name=None):
    """
    The file of the process of a rank.
    """
    lines = [json.dumps(r, separators=(",", ":")) for r in records]
    path = folder / (name or f"node{rank // 4}-pid{4000 + rank}.log")
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def calls(late, **options):
    """
    The calls of each rank in one communicator.

    Args:
        late: By how many microseconds each rank comes late in each call.

        options: How many *ranks* and *calls*, whether with *times* (of the
            call), and whether *at_once* (written at the end); *start_us*, and
            more about each record.
    """
    options = {"ranks": 8, "calls": 40, "times": False, **options}
    size, count = options.pop("ranks"), options.pop("calls")
    times, at_once = options.pop("times"), options.pop("at_once", False)
    now = options.pop("start_us", START_US)
    end_us = now + count * 60_000
    noise = random.Random(1)
    comm = options.pop("comm", WORLD)
    by_rank = {rank: [] for rank in range(size)}
    for i in range(count):
        came = [
            now + 50_000 + noise.randrange(300) + late(rank, i)
            for rank in range(size)
        ]
        now = max(came) + 3000
        for rank, at in enumerate(came):
            more = {
                "number": i,
                "written_us": end_us if at_once else now + 400,
                "times": (at - 90, at, now) if times else None,
            }
            own = record(comm, rank, size, now - at, **{**more, **options})
            by_rank[rank].append(own)
    return by_rank


def write_job(folder, *args, **options):
    """
    The files of a job; see `calls`.
    """
    for rank, records in calls(*args, **options).items():
        write(folder, records, rank)


def third_is_late(rank, number):
    """
    Rank 3 comes 20 ms after the others.
    """
    return 20_000 * (rank == 3 and number > 0)


def verdict_of(*paths):
    """
    Cause and ranks.
    """
    verdict = diagnose(*paths).verdict
    return verdict.cause, verdict.ranks


class TestRecorded:
    @pytest.mark.parametrize(
        ("folder", "side", "rank"),
        [
            ("nccl-inspector-2.28", "rank", 1),
            ("nccl-inspector-2.30-verbose", "host", 2),
        ],
    )
    def test_recorded(self, folder, side, rank):
        """
        Both versions of the format show who is slow.
        """
        verdict = diagnose(RECORDERS / folder).verdict

        assert (Cause.STRAGGLER, (rank,), "likely") == (
            verdict.cause,
            verdict.ranks,
            verdict.confidence,
        )
        assert side == verdict.cost.side


class TestStragglers:
    def test_shortest(self, tmp_path):
        """
        Who is shortest in each call came last: the others wait for it.
        """
        write_job(tmp_path, third_is_late)

        verdict = diagnose(tmp_path).verdict

        assert SLOW == (verdict.cause, verdict.ranks)
        assert "rank" == verdict.cost.side
        assert verdict.cost.per_call_s == pytest.approx(0.02, abs=0.001)
        assert verdict.cost.seconds == pytest.approx(0.78, abs=0.03)

    def test_with_times(self, tmp_path):
        """
        A host that launches its calls late is told from a device that is slow.
        """
        write_job(tmp_path, third_is_late, times=True)

        verdict = diagnose(tmp_path).verdict

        assert ("host", SLOW) == (
            verdict.cost.side,
            (verdict.cause, verdict.ranks),
        )

    def test_slow_device(self, tmp_path):
        """
        A rank that launches with the others, and begins late, has a slow GPU.
        """
        for rank, records in calls(third_is_late, times=True).items():
            for i, one in enumerate(records):
                trace = one["coll_perf"]["event_trace_ts"]
                trace["coll_start_ts"] -= third_is_late(rank, i)
            write(tmp_path, records, rank)

        verdict = diagnose(tmp_path).verdict

        assert ("device", SLOW) == (
            verdict.cost.side,
            (verdict.cause, verdict.ranks),
        )

    def test_written_at_the_end(self, tmp_path):
        """
        By default, all is written at the end: shares are an upper bound.
        """
        write_job(tmp_path, third_is_late, at_once=True)

        verdict = diagnose(tmp_path).verdict

        assert SLOW == (verdict.cause, verdict.ranks)
        assert verdict.cost.share < 1
        assert "up to" in verdict.summary

    def test_node(self, tmp_path):
        """
        A node is named if all of its ranks are slow.
        """
        write_job(
            tmp_path,
            lambda rank, _: 20_000 * (rank // 4 == 1),
            ranks=16,
            times=True,
        )

        verdict = diagnose(tmp_path).verdict

        assert (4, 5, 6, 7) == verdict.ranks
        assert "all on node1" in verdict.summary

    def test_nobody(self, tmp_path):
        """
        A job without a slow rank is fine, as far as can be seen.
        """
        write_job(tmp_path, lambda *_: 0)

        verdict = diagnose(tmp_path).verdict

        assert Cause.HEALTHY == verdict.cause
        assert "possible" == verdict.confidence
        assert "a call that hangs is not" in verdict.summary

    def test_broadcast(self, tmp_path):
        """
        The root of a broadcast does not wait, and is not slow for that.
        """
        write_job(tmp_path, third_is_late, op="Broadcast")

        with pytest.raises(NoDumpsError):
            diagnose(tmp_path)

    def test_launch_timed(self, tmp_path):
        """
        A time from the launch on does not show who came last.
        """
        by_rank = calls(third_is_late)
        for rank, records in by_rank.items():
            for one in records:
                one["coll_perf"]["coll_timing_source"] = "collective_cpu"
            write(tmp_path, records, rank)

        with pytest.raises(NoDumpsError):
            diagnose(tmp_path)

    def test_numbers_by_function(self, tmp_path):
        """
        Each function of a communicator has its own numbers: equal ones of two
        are not the same call.
        """
        gathered = calls(lambda *_: 0, op="AllGather", start_us=START_US + 9)
        for rank, records in calls(third_is_late).items():
            write(tmp_path, [*records, *gathered[rank]], rank)

        assert SLOW == verdict_of(tmp_path)

    def test_pair_that_waits_for_a_victim(self, tmp_path):
        """
        Only who costs most is named if times do not show who waited elsewhere.
        """
        # Ranks 0-3 wait for rank 3, and so come late to pairs with ranks 4-7.
        four = calls(third_is_late, ranks=4, comm="0xa", at_once=True)
        pairs = calls(
            lambda rank, i: 20_000 * (rank == 0 and i > 0),
            ranks=2,
            comm="0xb",
            at_once=True,
        )
        world = calls(lambda *_: 0, calls=4, at_once=True)
        for rank, records in world.items():
            pair = json.loads(json.dumps(pairs[rank // 4]))
            for one in pair:
                one["header"]["id"] = f"0xb{rank % 4}"
                one["metadata"] = records[0]["metadata"]
            write(tmp_path, [*four.get(rank, []), *records, *pair], rank)

        found = diagnose(tmp_path).findings

        assert [(Cause.STRAGGLER, (3,), "possible")] == [
            (f.cause, f.ranks, f.confidence) for f in found
        ]

    def test_scale(self, tmp_path):
        """
        Members of a large communicator are kept once, not once for each rank.
        """
        write_job(tmp_path, lambda *_: 0, ranks=64, calls=2)

        dumps = read_dumps(tmp_path)

        members = {id(d.configs[0].ranks) for d in dumps.inspector.values()}
        assert 64 == len(dumps.inspector)
        assert "files of NCCL Inspector of ranks 0-63" in str(dumps)
        assert 1 == len(members)


class TestLinks:
    def test_slow_link(self, tmp_path):
        """
        Transfers of one pair of nodes that take longer than those of others.
        """
        for own in range(4):  # one on each node
            records = [
                record(
                    WORLD,
                    own,
                    4,
                    9000 if {own, peer} == {1, 3} else 1000,
                    number=i,
                    op=op,
                    kind="p2p",
                    peer={"p2p_peer": peer},
                    written_us=START_US + i * 60_000,
                )
                for i in range(20)
                for peer in range(4)
                for op in ("Send", "Recv")
                if peer != own
            ]
            for one in records:
                one["metadata"]["hostname"] = f"node{own}"
            write(tmp_path, records, own)

        verdict = diagnose(tmp_path).verdict

        assert (Cause.SLOW_LINK, (1, 3)) == (verdict.cause, verdict.ranks)


class TestSilence:
    def test_behind(self, tmp_path):
        """
        A rank whose file ends long before the others', and who recorded fewer
        calls, is named as what it is: not recorded any more.
        """
        for rank, records in calls(lambda *_: 0, calls=2000).items():
            write(tmp_path, records[:300] if rank == 5 else records, rank)

        verdict = diagnose(tmp_path).verdict

        assert (Cause.UNKNOWN, (5,)) == (verdict.cause, verdict.ranks)
        assert "possible" == verdict.confidence
        assert "#300 of all_reduce" in verdict.evidence[0].quote

    def test_all_end(self, tmp_path):
        """
        Files that end within a minute of each other show nothing.
        """
        for rank, records in calls(lambda *_: 0).items():
            write(tmp_path, records[: 40 - rank], rank)

        assert (Cause.HEALTHY, ()) == verdict_of(tmp_path)


class TestBeside:
    def test_dumps(self, tmp_path):
        """
        Where dumps show nothing, the files of NCCL Inspector may.
        """
        job = SimulatedJob(8)
        job.collective("all_reduce")
        make_dumps(tmp_path, job)
        write_job(tmp_path, third_is_late)

        diagnosis = diagnose(tmp_path)

        assert SLOW == (diagnosis.verdict.cause, diagnosis.verdict.ranks)
        assert not any(m.what == "file" for m in diagnosis.missing)

    def test_hang(self, tmp_path):
        """
        A hang is the verdict, not who was slow before.
        """
        job = SimulatedJob(8)
        job.collective("all_reduce", ranks=[0, 1, 2, 3, 4, 5, 7])
        make_dumps(tmp_path, job)
        write_job(tmp_path, third_is_late)

        assert (Cause.RANK_NOT_ARRIVED, (6,)) == verdict_of(tmp_path)

    def test_stacks(self, tmp_path):
        """
        Who is slow is told beside what stacks show.
        """
        stacks = RECORDERS.parent / "stacks" / "pyspy_gloo.txt"
        shutil.copy(stacks, tmp_path)
        write_job(tmp_path, third_is_late)

        found = diagnose(tmp_path).findings

        assert SLOW in [(f.cause, f.ranks) for f in found]
        assert len(found) > 1

    def test_log(self, tmp_path):
        """
        A death in a log is the verdict; the files are not read as logs.
        """
        write_job(tmp_path, third_is_late)
        path = tmp_path / "rank_5.log"
        path.write_text("torch.OutOfMemoryError: CUDA out of memory.\n")

        diagnosis = diagnose(tmp_path)

        assert Cause.GPU_OUT_OF_MEMORY == diagnosis.verdict.cause
        assert (str(path),) == diagnosis.seen.logs.files


class TestRanks:
    def test_any_name(self, tmp_path):
        """
        Files are known by their first bytes, whatever they are called.
        """
        for rank, records in calls(third_is_late).items():
            write(tmp_path, records, rank, name=f"{rank}.inspector")

        assert SLOW == verdict_of(tmp_path)

    def test_named_itself(self, tmp_path):
        """
        The files may be named, too; no stack is missed in them.
        """
        write_job(tmp_path, third_is_late)

        assert SLOW == verdict_of(*tmp_path.iterdir())
        missing = diagnose(*tmp_path.iterdir()).missing
        assert not any(m.what == "stack" for m in missing)

    def test_no_world(self, tmp_path):
        """
        Without a communicator of all, nobody knows the ranks of the job.
        """
        for half in range(2):
            for rank, records in calls(third_is_late, ranks=4).items():
                for one in records:
                    one["header"]["id"] = f"0x{half}"
                    one["metadata"]["pid"] = own = half * 4 + rank
                write(tmp_path, records, own)

        with pytest.raises(NoDumpsError) as caught:
            diagnose(tmp_path)

        assert "none spans most processes" in str(caught.value)

    def test_sidecars(self, tmp_path):
        """
        Sidecars know the ranks of processes.
        """
        for half in range(2):
            by_rank = calls(third_is_late, ranks=4, comm=f"0x{half}")
            for rank, records in by_rank.items():
                for one in records:
                    one["metadata"]["pid"] = pid = 4000 + half * 4 + rank
                write(tmp_path, records, 0, name=f"node0-pid{pid}.log")
                data = {
                    "kind": "distdebug-sidecar",
                    "host": "node0",
                    "pid": pid,
                    "rank": 7 - half * 4 - rank,
                    "world_size": 8,
                }
                path = tmp_path / f"{pid}.sidecar.json"
                path.write_text(json.dumps(data))

        dumps = read_dumps(tmp_path)

        assert [*range(8)] == [*dumps.inspector]
        assert "node0-pid4000.log" == Path(dumps.inspector[7].path).name

    def test_equal_processes(self, tmp_path):
        """
        Containers that share a host have processes with equal names and PIDs.
        """
        for rank, records in calls(third_is_late).items():
            for one in records:
                one["metadata"].update(hostname="node0", pid=1)
            write(tmp_path, records, rank)

        dumps = read_dumps(tmp_path)

        assert [*range(8)] == [*dumps.inspector]
        assert SLOW == verdict_of(tmp_path)

    def test_earlier_run(self, tmp_path):
        """
        Files that an earlier run left in the folder are not used.
        """
        write_job(tmp_path, third_is_late)
        earlier = calls(
            lambda *_: 0, comm="0xb", start_us=START_US - 3_600_000_000
        )
        for rank, records in earlier.items():
            for one in records:
                one["metadata"]["pid"] = 77 + rank
            write(tmp_path, records, rank, name=f"old-pid{rank}.log")

        diagnosis = diagnose(tmp_path)

        assert SLOW == (diagnosis.verdict.cause, diagnosis.verdict.ranks)
        assert 8 == sum(
            m.reason.startswith("stale") for m in diagnosis.missing
        )

    def test_lost_file(self, tmp_path):
        """
        Without the file of one rank, the others are still compared, and a note
        says so.
        """
        write_job(tmp_path, third_is_late)
        (tmp_path / "node1-pid4006.log").unlink()

        diagnosis = diagnose(tmp_path)

        assert SLOW == (diagnosis.verdict.cause, diagnosis.verdict.ranks)
        assert any(
            "ranks 0-5,7 only, of 8" in m.reason for m in diagnosis.missing
        )

    def test_several_ranks_of_a_process(self, tmp_path):
        """
        A process with several GPUs is not a rank.
        """
        by_rank = calls(third_is_late, ranks=4)
        for records in by_rank.values():
            for one in records:
                one["metadata"]["pid"] = 1
        write(tmp_path, [x for own in by_rank.values() for x in own], 0)

        with pytest.raises(NoDumpsError) as caught:
            diagnose(tmp_path)

        assert "several ranks of one communicator" in str(caught.value)


class TestDamage:
    @staticmethod
    def reasons(folder, by_rank):
        """
        Why files are not read in full; the slow rank is found all the same.
        """
        for rank, records in by_rank.items():
            write(folder, records, rank)

        diagnosis = diagnose(folder)

        assert SLOW == (diagnosis.verdict.cause, diagnosis.verdict.ranks)
        return [m.reason for m in diagnosis.missing if m.source]

    def test_cut(self, tmp_path):
        """
        The last line may be yet to be written; that is no damage.
        """
        write_job(tmp_path, third_is_late)
        path = tmp_path / "node0-pid4000.log"
        path.write_text(path.read_text()[:-40])

        diagnosis = diagnose(tmp_path)

        assert SLOW == (diagnosis.verdict.cause, diagnosis.verdict.ranks)
        assert ["calls"] == [m.what for m in diagnosis.missing]

    @pytest.mark.parametrize(
        "line",
        [
            "{",
            "[" * 100_000,
            "null",
            '{"header":{"id":"0x1"}}',
            '{"header":[],"metadata":{},"coll_perf":{}}',
            "1" * 5000,
        ],
    )
    def test_broken_line(self, tmp_path, line):
        """
        A line that is broken loses no other, and is counted.
        """
        write_job(tmp_path, third_is_late)
        path = tmp_path / "node0-pid4000.log"
        path.write_text(f"{path.read_text()}{line}\n")

        diagnosis = diagnose(tmp_path)

        assert SLOW == (diagnosis.verdict.cause, diagnosis.verdict.ranks)
        reasons = [m.reason for m in diagnosis.missing if m.source]
        assert ["1 of 41 records cannot be read"] == reasons

    @pytest.mark.parametrize(
        ("part", "key", "value"),
        [
            ("coll_perf", "coll_exec_time_us", 1 << 200),
            ("coll_perf", "coll_exec_time_us", "12"),
            ("coll_perf", "coll_sn", -(1 << 60)),
            ("coll_perf", "coll", ["AllReduce"]),
            ("coll_perf", "coll_msg_size_bytes", 1e300),
            ("coll_perf", "event_trace_ts", {"coll_start_ts": 1}),
            ("header", "rank", None),
            ("header", "id", {}),
            ("metadata", "dump_timestamp_us", 1 << 90),
            ("metadata", "pid", "x"),
        ],
    )
    def test_wrong_value(self, tmp_path, part, key, value):
        """
        A record with a value that it cannot have is left out, and counted.
        """
        by_rank = calls(third_is_late)
        by_rank[0][20][part][key] = value
        assert ["1 of 40 records cannot be read"] == self.reasons(
            tmp_path, by_rank
        )

    @pytest.mark.parametrize("rank", [-1, 8, 1 << 40])
    def test_impossible_rank(self, tmp_path, rank):
        """
        A rank that its communicator cannot have is no rank.
        """
        by_rank = calls(third_is_late)
        for one in by_rank[0]:
            one["header"]["rank"] = rank
        assert ["40 of 40 records cannot be read"] == self.reasons(
            tmp_path, by_rank
        )

    def test_other_time(self, tmp_path):
        """
        One process with a wrong clock makes the others no earlier run.
        """
        by_rank = calls(third_is_late)
        for one in by_rank[0]:
            one["metadata"]["dump_timestamp_us"] += 1 << 50
            one["header"].update(id="0xff", n_ranks=16_384)
        for rank, records in by_rank.items():
            write(tmp_path, records, rank)

        assert SLOW == verdict_of(tmp_path)

    def test_endless_line(self, tmp_path):
        """
        A file without a line that was written to its end is named.
        """
        write_job(tmp_path, third_is_late)
        path = tmp_path / "node0-pid4000.log"
        path.write_text(path.read_text().replace("\n", " "))

        problems = read_dumps(tmp_path).problems

        assert [str(path)] == [m.source for m in problems if m.source]

    def test_other_log(self, tmp_path):
        """
        A log of JSON that only begins alike is read as a log.
        """
        (tmp_path / "train.log").write_text(
            '{"header": {"id": "0x7f"}}\n'
            "torch.OutOfMemoryError: CUDA out of memory.\n"
        )

        assert Cause.GPU_OUT_OF_MEMORY == diagnose(tmp_path).verdict.cause

    def test_no_calls(self, tmp_path):
        """
        What needs calls in their order says that there are none.
        """
        write_job(tmp_path, third_is_late)
        dumps = read_dumps(tmp_path)

        with pytest.raises(NoDumpsError, match="only files of NCCL Inspector"):
            make_schedule(dumps)
        with pytest.raises(NoDumpsError, match="only files of NCCL Inspector"):
            write_timeline(dumps, tmp_path / "timeline.json")

    def test_tail(self, tmp_path, monkeypatch):
        """
        Of a file that grew for days, the end is read.
        """
        monkeypatch.setattr(inspector, "TAIL_BYTES", 20_000)
        write_job(tmp_path, third_is_late, calls=400)

        entries = read_dumps(tmp_path).inspector[0].entries

        assert 400 == entries.seq[-1]
        assert 30 < len(entries) < 60
        assert SLOW == verdict_of(tmp_path)
