"""
Simulated jobs, and the dumps they would have left.
"""

from __future__ import annotations

import gzip
import json
import pickle
import pickletools

import pytest

from distdebug.testing import SimulatedJob, make_dumps, plain_dump
from distdebug.testing.dumps import torch_pickle


@pytest.fixture(name="job")
def _job():
    """
    Four ranks in two pairs.
    """
    return SimulatedJob(4)


def last(job, rank, **options):
    """
    The last record of a rank.
    """
    return plain_dump(job, rank, **options)["entries"][-1]


class TestCollective:
    def test_completes(self, job):
        """
        A collective that all members entered is complete.
        """
        job.collective("all_reduce")

        entry = last(job, 0)

        assert ("completed", True) == (entry["state"], entry["retired"])
        assert entry["time_created_ns"] < entry["time_discovered_completed_ns"]

    def test_waits(self, job):
        """
        It is not complete if somebody is missing.
        """
        job.collective("all_reduce", ranks=[0, 1, 3])

        entry = last(job, 0)

        assert ("scheduled", False) == (entry["state"], entry["retired"])
        assert entry["time_discovered_completed_ns"] is None
        assert [] == plain_dump(job, 2)["entries"]

    def test_meets_late(self, job):
        """
        Who was left out meets the others with the next call.
        """
        job.collective("all_reduce", ranks=[0, 1, 3])
        job.wait(10)
        job.collective("all_reduce", ranks=[2])

        assert "completed" == last(job, 0)["state"] == last(job, 2)["state"]
        assert 1 == last(job, 2)["collective_seq_id"]

    def test_mismatch(self, job):
        """
        Different operations never complete.
        """
        job.collective("all_reduce", ranks=[0, 1, 3])
        job.collective("broadcast", ranks=[2])

        assert "scheduled" == last(job, 0)["state"]
        assert "nccl:broadcast" == last(job, 2)["profiling_name"]

    def test_told_state(self, job):
        """
        What is recorded can be told.
        """
        job.collective("all_reduce", state="scheduled")

        assert ("scheduled", False) == (
            last(job, 0)["state"],
            last(job, 0)["retired"],
        )

    def test_shape(self, job):
        """
        Sizes and types are recorded.
        """
        job.collective(
            "gather", sizes=[[2]], output_sizes=[[2], [2]], dtype="Half"
        )

        entry = last(job, 0)

        assert [[2]] == entry["input_sizes"]
        assert [[2], [2]] == entry["output_sizes"]
        assert ["Half", "Half"] == entry["output_dtypes"]

    def test_late(self, job):
        """
        A straggler has the latest start and the shortest duration.
        """
        job.collective("all_reduce", late={2: 1.5})

        durations = [last(job, r, timed=True)["duration_ms"] for r in range(4)]

        assert durations[2] + 1499 < min(durations[:2])
        assert (
            last(job, 2)["time_created_ns"] - last(job, 0)["time_created_ns"]
            == 1_500_000_000
        )

    def test_started(self, job):
        """
        With timing, what waits has started; what is behind it has not.
        """
        job.collective("all_reduce", ranks=[0])
        job.collective("all_reduce", ranks=[0])

        states = [
            e["state"] for e in plain_dump(job, 0, timed=True)["entries"]
        ]

        assert ["started", "scheduled"] == states

    def test_dump_moment(self, job):
        """
        A dump knows nothing of what comes later.
        """
        job.collective("all_reduce", ranks=[0, 1, 3])
        job.dump(1)
        job.collective("all_reduce", ranks=[2])
        job.collective("all_reduce")

        assert ["scheduled"] == [
            e["state"] for e in plain_dump(job, 1)["entries"]
        ]
        assert 2 == len(plain_dump(job, 0)["entries"])


class TestPointToPoint:
    def test_pair(self, job):
        """
        A send and its receive complete each other; ranks are group-local.
        """
        pair = job.new_group([3, 1], "pp")
        job.collective("barrier", pair)
        job.send(3, 1, pair)
        job.recv(1, 3, pair)

        sent, received = last(job, 3), last(job, 1)

        assert "nccl:send 0->1" == sent["profiling_name"]
        assert "nccl:recv 1<-0" == received["profiling_name"]
        assert "completed" == sent["state"] == received["state"]
        assert (1, 1, 2, True) == tuple(
            sent[key]
            for key in ("collective_seq_id", "p2p_seq_id", "op_id", "is_p2p")
        )

    def test_in_order(self, job):
        """
        The first send meets the first receive.
        """
        job.send(0, 1)
        job.send(0, 1)
        job.recv(1, 0)

        states = [e["state"] for e in plain_dump(job, 0)["entries"]]

        assert ["completed", "scheduled"] == states

    def test_coalesced(self, job):
        """
        Each part is recorded, and an end that has their number.
        """
        job.coalesced(0, [("send", 1), ("recv", 1)])
        job.coalesced(1, [("recv", 0), ("send", 0)])

        entries = plain_dump(job, 0)["entries"]

        assert ["nccl:send 0->1", "nccl:recv 0<-1", "nccl:coalesced"] == [
            e["profiling_name"] for e in entries
        ]
        assert [1, 1, 1] == [e["p2p_seq_id"] for e in entries]
        assert [1, 2, 2] == [e["op_id"] for e in entries]
        assert ["scheduled", "scheduled", "completed"] == [
            e["state"] for e in entries
        ]
        assert [] == entries[-1]["input_sizes"]

    def test_coalesced_waits(self, job):
        """
        A batch waits for all its parts.
        """
        job.coalesced(0, [("send", 1), ("recv", 1)])
        job.coalesced(1, [("recv", 0)])

        assert "scheduled" == last(job, 0)["state"]
        assert "completed" == last(job, 1)["state"]


class TestHeader:
    def test_groups(self, job):
        """
        Only groups that were used are known, with ranks as a string.
        """
        job.new_group([0, 1], "unused")
        pair = job.new_group([0, 2], "tp")
        job.collective("all_reduce", pair)

        dump = plain_dump(job, 2)

        assert {"2": {"name": "2", "desc": "tp", "ranks": "[0, 2]"}} == (
            dump["pg_config"]
        )
        assert ["1"] == list(dump["pg_status"])
        assert 1 == dump["entries"][0]["pg_id"]

    def test_status(self, job):
        """
        Both kinds of operations overwrite the same counters.
        """
        job.collective("all_reduce")
        job.collective("all_reduce")
        job.send(0, 1)

        assert {
            "last_enqueued_collective": 1,
            "last_started_collective": -1,
            "last_completed_collective": 2,
        } == plain_dump(job, 0)["pg_status"]["0"]

    def test_in_launch(self, job):
        """
        Who never returns from enqueueing has not counted it.
        """
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 1], in_launch=[0])

        assert [1, 2] == [
            plain_dump(job, r)["pg_status"]["0"]["last_enqueued_collective"]
            for r in (0, 1)
        ]

    @pytest.mark.parametrize(
        ("version", "keys"),
        [
            ("1.1", {"version", "pg_config", "entries"}),
            ("2.3", {"version", "pg_config", "pg_status", "entries"}),
            (
                "2.9",
                {
                    *("version", "pg_config", "pg_status", "entries"),
                    "nccl_version",
                },
            ),
            (
                "2.10",
                {
                    *("version", "pg_config", "pg_status", "entries"),
                    "comm_lib_version",
                },
            ),
        ],
    )
    def test_versions(self, job, version, keys):
        """
        Each version has its keys.
        """
        job.collective("all_reduce")

        assert keys == plain_dump(job, 0, version=version).keys()

    def test_bare_list(self, job):
        """
        Up to torch 2.2 a dump was a list, without numbers of records.
        """
        job.collective("all_reduce")

        (entry,) = plain_dump(job, 0, version="")

        assert 1 == entry["seq_id"]
        assert not {"record_id", "process_group", "is_p2p"} & entry.keys()


class TestGloo:
    def test_records(self):
        """
        Nothing is ever completed, only retired; messages are just counted.
        """
        job = SimulatedJob(2, backend="gloo")
        job.collective("all_reduce")
        job.send(0, 1)
        job.collective("all_reduce", ranks=[0])

        dump = plain_dump(job, 0, timed=True, only_active=True)

        assert ["scheduled", "scheduled"] == [
            e["state"] for e in dump["entries"]
        ]
        assert [True, False] == [e["retired"] for e in dump["entries"]]
        assert [1, 3] == [e["collective_seq_id"] for e in dump["entries"]]
        assert dump["entries"][0]["time_discovered_completed_ns"] is None
        assert {"": {"name": "", "desc": "", "ranks": "[]"}} == (
            dump["pg_config"]
        )
        assert {
            "last_enqueued_collective": 3,
            "last_started_collective": -1,
            "last_completed_collective": 1,
        } == dump["pg_status"]["0"]


class TestMakeDumps:
    @pytest.mark.parametrize("compress", [False, True])
    def test_pickle(self, job, tmp_path, compress):
        """
        A pickle holds just that.
        """
        job.collective("all_reduce")

        path = make_dumps(tmp_path / "new", job, compress=compress)[1]
        raw = path.read_bytes()
        if compress:
            raw = gzip.decompress(raw)

        assert plain_dump(job, 1) == pickle.loads(raw)

    def test_json(self, job, tmp_path):
        """
        JSON has zeros for nothing, and strings for counters.
        """
        job.collective("all_reduce", ranks=[0])

        path = make_dumps(tmp_path, job, as_json=True)[0]
        dump = json.loads(path.read_bytes())

        assert 0 == dump["entries"][0]["time_discovered_completed_ns"]
        assert ["0", "default_pg"] == dump["entries"][0]["process_group"]
        assert "1" == dump["pg_status"]["0"]["last_enqueued_collective"]

    def test_idle(self, job, tmp_path):
        """
        An idle rank that dumps only what is active has no records at all.
        """
        job.collective("all_reduce")

        assert "entries" not in plain_dump(job, 0, only_active=True)
        path = make_dumps(tmp_path, job, only_active=True, as_json=True)[0]
        assert "entries" not in json.loads(path.read_bytes())

    def test_json_list(self, job, tmp_path):
        """
        The bare list can be JSON, too.
        """
        job.collective("all_reduce")

        path = make_dumps(tmp_path, job, version="", as_json=True)[0]

        assert 1 == len(json.loads(path.read_bytes()))

    def test_missing_and_prefix(self, job, tmp_path):
        """
        Ranks may leave no dump, and names may be chosen.
        """
        paths = make_dumps(tmp_path, job, prefix="_dump_", missing=[2])

        assert {0: "_dump_0", 1: "_dump_1", 3: "_dump_3"} == {
            rank: path.name for rank, path in paths.items()
        }

    def test_ring(self, job):
        """
        The ring keeps the newest records, with their numbers.
        """
        for _ in range(5):
            job.collective("all_reduce")

        entries = plain_dump(job, 0, ring=2)["entries"]

        assert [3, 4] == [e["record_id"] for e in entries]

    def test_clocks(self, job):
        """
        Clocks may be off.
        """
        job.collective("all_reduce")

        ahead = last(job, 0, clock_offset_s=2.0)

        assert 2_000_000_000 == (
            ahead["time_created_ns"] - last(job, 0)["time_created_ns"]
        )


class TestTorchPickle:
    @pytest.mark.parametrize(
        "value",
        [0, 255, 256, 65535, 65536, -1, 2**31, -(2**31), -(2**31) - 1, "", []],
    )
    def test_values(self, value):
        """
        Whatever it holds, a pickle is read as what was written.
        """
        assert [value] == pickle.loads(torch_pickle([value]))

    def test_opcodes(self, job):
        """
        Nothing but the opcodes of genuine dumps is used.
        """
        job = SimulatedJob(2, stack_depth=12)
        for n in range(300):
            job.collective("all_reduce", sizes=[[n, 70_000]])
        raw = torch_pickle(plain_dump(job, 0, timed=True))

        assert {op.name for op, _, _ in pickletools.genops(raw)} <= {
            *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
            *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
            *("BINUNICODE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
            *("EMPTY_DICT", "SETITEMS", "EMPTY_LIST", "APPENDS", "TUPLE2"),
        }

    def test_size(self):
        """
        Records are about as long as genuine ones, because frames are shared.
        """
        job = SimulatedJob(2, stack_depth=12)
        for _ in range(2000):
            job.collective("all_reduce")

        size = len(torch_pickle(plain_dump(job, 0)))

        assert 130 * 2000 < size < 180 * 2000

    def test_stacks(self, job):
        """
        A stack can be given; otherwise it is as deep as asked for.
        """
        stack = [("f", "a.py", 1)]
        job.collective("all_reduce", stack=stack)
        deep = SimulatedJob(1, stack_depth=12)
        deep.collective("all_reduce", deep.new_group([0], name="named"))

        assert [{"name": "f", "filename": "a.py", "line": 1}] == (
            last(job, 0)["frames"]
        )
        assert 12 == len(last(deep, 0)["frames"])
