"""
Dumps of recorder hooks: of torch since 2.14, and of torchcomms.
"""

from __future__ import annotations

import json
import math

from pathlib import Path

import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.flight_recorder import analyze_dumps, read_dumps


pytestmark = pytest.mark.usefixtures("decoded_here")

RECORDERS = Path(__file__).parents[2] / "data" / "recorders"
START_NS = 1_795_900_000_000_000_000


def record(number, name, group=("0", "default_pg"), **more):
    """
    A record that was retired when its call was issued, as hooks write it.
    """
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": list(group),
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": START_NS + number * 1_000_000,
        "duration_ms": 0.5,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        **more,
    }


def write(folder, entries_by_rank, groups=(("0", "default_pg"),), **more):
    """
    Write dumps as JSON, with counters of operations.
    """
    ranks = str(list(entries_by_rank))
    for rank, entries in entries_by_rank.items():
        last = {
            "last_enqueued_collective": str(len(entries) - 1),
            "last_started_collective": "-1",
            "last_completed_collective": str(len(entries) - 1),
        }
        config = {
            name: {"name": name, "desc": desc, "ranks": ranks}
            for name, desc in groups
        }
        data = {
            "version": "2.10",
            "comm_lib_version": "",
            "pg_config": config,
            "pg_status": {"0": last},
            "entries": entries,
            **more,
        }
        path = folder / f"comm_lib_trace_rank_{rank}.json"
        path.write_text(json.dumps(data))


def seqs(dump):
    """
    Numbers of the collectives of a dump by its groups' codes.
    """
    e = dump.entries
    pairs = zip(e.group[~e.is_p2p], e.seq[~e.is_p2p], strict=True)
    return [(int(group), int(seq)) for group, seq in pairs]


class TestTorch:
    def test_real(self):
        """
        What Gloo and a hook recorded of the same calls counts once.
        """
        verdict = diagnose(RECORDERS / "torch-2.14-hook").verdict

        assert Cause.RANK_NOT_ARRIVED is verdict.cause
        assert (1,) == verdict.ranks
        assert "all_reduce #4 of group 'default_pg'" in verdict.summary

    def test_issued(self, tmp_path):
        """
        A call that was only issued is complete if all ranks entered it.
        """
        calls = [record(n, "c10d:allreduce") for n in range(4)]
        write(tmp_path, {0: calls, 1: calls[:3]})

        report = analyze_dumps(tmp_path)

        (finding,) = report.findings
        assert (Cause.RANK_NOT_ARRIVED, (1,)) == (finding.cause, finding.ranks)
        assert "allreduce #4" in finding.summary
        assert [3] == [g.last_completed for g in report.groups]
        assert ["calls"] == [m.what for m in report.missing]

    def test_never_entered(self, tmp_path):
        """
        A rank that entered no call at all is what the others wait for.
        """
        calls = [record(n, "mpi:all_reduce") for n in range(2)]
        write(tmp_path, {0: calls, 1: []}, pg_status={})

        (finding,) = analyze_dumps(tmp_path).findings

        assert (Cause.RANK_NOT_ARRIVED, (1,)) == (finding.cause, finding.ranks)
        assert "all_reduce #1" in finding.summary

    def test_completions(self, tmp_path):
        """
        Where a hook sees calls end, one that does not end is stuck.
        """
        over = {"state": "completed", "time_discovered_completed_ns": 1}
        calls = [record(n, "nccl2:all_reduce", **over) for n in range(3)]
        open_call = record(3, "nccl2:all_reduce", retired=False)
        write(tmp_path, {0: [*calls, open_call], 1: [*calls, open_call]})

        report = analyze_dumps(tmp_path)

        (finding,) = report.findings
        assert Cause.COLLECTIVE_STUCK_IN_FLIGHT is finding.cause
        assert () == report.missing

    def test_counters(self, tmp_path):
        """
        Counters of operations are not taken for those of collectives.
        """
        calls = [record(0, "nccl2:all_reduce"), record(1, "nccl2:all_reduce")]
        write(tmp_path, {0: calls})

        assert {} == read_dumps(tmp_path)[0].status

    def test_transfer_without_peer(self, tmp_path):
        """
        A receive from any rank is no collective.
        """
        calls = [record(0, "c10d:allreduce")]
        calls.append(record(1, "nccl2:recv 0<-?", is_p2p=True))
        write(tmp_path, {0: calls, 1: calls[:1]})

        assert () == analyze_dumps(tmp_path).findings

    def test_damaged(self, tmp_path):
        """
        Records that cannot be translated are left out, as ever.
        """
        calls = [record(0, "c10d:allreduce"), {"profiling_name": ["x"]}, 3]
        write(tmp_path, {0: calls})

        assert 1 == len(read_dumps(tmp_path)[0].entries)


WORLD, PAIR = ("world", "ncclx"), ("pair", "ncclx")


def torchcomms(*calls, first=0):
    """
    Records of torchcomms: one counter, and no word of the peer of a transfer.
    """
    return [
        record(n, f"ncclx:{name}", group, collective_seq_id=n)
        for n, (name, group) in enumerate(calls, start=first)
    ]


class TestTorchcomms:
    def test_real_format(self):
        """
        A rank that made other calls before is compared by those of a group.
        """
        verdict = diagnose(RECORDERS / "torchcomms-hook").verdict

        assert Cause.RANK_NOT_ARRIVED is verdict.cause
        assert (2,) == verdict.ranks
        assert "all_reduce #3 of group 'world'" in verdict.summary

    def test_numbers(self, tmp_path):
        """
        Collectives are counted by group, transfers by themselves.
        """
        reduce, send = ("all_reduce", WORLD), ("send", WORLD)
        calls = torchcomms(reduce, send, ("all_gather", PAIR), reduce)
        write(tmp_path, {0: calls}, [WORLD, PAIR])

        dump = read_dumps(tmp_path)[0]

        assert [(0, 1), (1, 1), (0, 2)] == seqs(dump)
        assert [False, True, False, False] == dump.entries.is_p2p.tolist()
        # What is recorded is how long it took to issue them.
        assert all(map(math.isnan, dump.entries.duration_ms.tolist()))

    def test_damaged(self, tmp_path):
        """
        A record without a number blames no rank: those before it count.
        """
        calls = [("all_reduce", WORLD), ("barrier", PAIR), ("barrier", WORLD)]
        files = {rank: torchcomms(*calls) for rank in range(3)}
        files[0][1]["record_id"] = 1e999
        write(tmp_path, files, groups=[WORLD, PAIR])

        dumps = read_dumps(tmp_path)

        assert dumps[0].truncated
        assert 1 == len(dumps[0].entries)
        assert () == analyze_dumps(dumps).findings

    def test_overwritten(self, tmp_path):
        """
        Once the first records are gone, the common counter is kept.
        """
        calls = torchcomms(*[("all_reduce", WORLD)] * 3, first=7)
        write(tmp_path, {0: calls}, [WORLD])

        dump = read_dumps(tmp_path)[0]

        assert [8, 9, 10] == dump.entries.seq.tolist()
        assert dump.wrapped
