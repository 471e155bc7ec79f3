"""
Reading the dumps of a whole job.
"""

from __future__ import annotations

import json
import pickle
import struct

from concurrent.futures import Executor, Future
from pathlib import Path

import attrs
import numpy as np
import pytest

from distdebug.errors import NoDumpsError
from distdebug.findings import Missing
from distdebug.flight_recorder import (
    COMPLETED,
    SIDECAR_SUFFIX,
    STARTED,
    Frame,
    GroupStatus,
    read_dumps,
)
from distdebug.testing import SimulatedJob, make_dumps, plain_dump


VERSIONS = ["", "1.1", "1.4", "2.1", "2.3", "2.6", "2.9", "2.10", "2.11"]


@pytest.fixture(name="job")
def _job():
    """
    Four ranks in pairs; rank 2 is missing in the last call.
    """
    job = SimulatedJob(4, stack_depth=3)
    pairs = [job.new_group(r, "tp") for r in ([0, 1], [2, 3])]
    for _ in range(3):
        job.collective("all_reduce", sizes=[[2, 3]])
        for pair in pairs:
            job.collective("all_gather", pair, sizes=[[1]], output_sizes=[[2]])
    job.collective("all_reduce", ranks=[0, 1, 3])
    return job


def note(path, rank, **fields):
    """
    Write a side-car beside a dump.
    """
    data = {
        "kind": "distdebug-sidecar",
        "rank": rank,
        "world_size": 4,
        "dump": path.name,
        **fields,
    }
    path.with_name(path.name + SIDECAR_SUFFIX).write_text(
        json.dumps(data), encoding="utf-8"
    )


def reasons(dumps):
    """
    Rank, file name, and reason of each problem.
    """
    return [(p.rank, Path(p.source).name, p.reason) for p in dumps.problems]


class TestContent:
    def test_all(self, job, tmp_path):
        """
        Every field of every record of every rank is there.
        """
        make_dumps(tmp_path, job, timed=True)

        dumps = read_dumps(tmp_path)

        assert (0, 1, 2, 3) == dumps.ranks
        assert () == dumps.problems
        assert 4 == dumps.world_size == len(dumps)
        dump = dumps[2]
        e = dump.entries
        assert (2, "2.10", False, False, None, None) == (
            dump.rank,
            dump.version,
            dump.wrapped,
            dump.truncated,
            dump.host,
            dump.sidecar,
        )
        assert [("0", "default_pg", (0, 1, 2, 3)), ("2", "tp", (2, 3))] == [
            attrs.astuple(config) for config in dump.configs
        ]
        assert {0: GroupStatus(3, 3, 3), 1: GroupStatus(3, 3, 3)} == (
            dump.status
        )
        assert list(range(6)) == e.record_id.tolist()
        assert [1, 1, 2, 2, 3, 3] == e.seq.tolist() == e.op_id.tolist()
        assert [0, 1] * 3 == e.pg_id.tolist()
        assert [("0", "default_pg"), ("2", "tp")] * 3 == [
            dumps.groups[g] for g in e.group
        ]
        assert ["nccl:all_reduce", "nccl:all_gather"] * 3 == [
            dumps.ops[op] for op in e.op
        ]
        assert (((1,),), ("Float",), ((2,),), ("Float",)) == attrs.astuple(
            dumps.shapes[e.shape[1]]
        )
        assert [COMPLETED] * 6 == e.state.tolist()
        assert (e.created_ns <= e.started_ns).all()
        assert (e.started_ns < e.completed_ns).all()
        assert e.duration_ms == pytest.approx([0.5] * 6, abs=0.01)
        assert e.retired.all()
        assert not e.is_p2p.any()
        assert [600_000] * 6 == e.timeout_ms.tolist()
        assert STARTED == dumps[0].entries.state[-1]

    @pytest.mark.usefixtures("decoded_here")
    @pytest.mark.parametrize("as_json", [False, True])
    @pytest.mark.parametrize("version", VERSIONS)
    def test_versions(self, job, tmp_path, version, as_json):
        """
        Any version, as pickle or JSON, says the same about the same calls.
        """
        job.send(0, 1)
        make_dumps(tmp_path, job, version=version, as_json=as_json)

        dumps = read_dumps(tmp_path)
        e = dumps[0].entries

        assert () == dumps.problems
        assert version == dumps[0].version
        assert [1, 1, 2, 2, 3, 3, 4] == e.seq[:7].tolist()
        assert [COMPLETED] * 6 == e.state[:6].tolist()
        assert (e.state[6:] < STARTED).all()
        assert [False] * 7 + [True] == e.is_p2p.tolist()
        assert e.p2p_seq[-1] > 0
        assert np.isnan(e.duration_ms).all()
        assert not dumps[0].wrapped

    def test_gloo(self, tmp_path):
        """
        Gloo knows no members.
        """
        job = SimulatedJob(2, backend="gloo")
        job.collective("all_reduce")
        make_dumps(tmp_path, job)

        dumps = read_dumps(tmp_path)

        assert [("", "", ())] == [attrs.astuple(c) for c in dumps[0].configs]
        assert dumps.world_size is None
        assert dumps[0].entries.retired.all()

    @pytest.mark.parametrize("ranks", ["[__import__('os')]", "[0, 999999999]"])
    def test_nonsense_config(self, ranks, tmp_path):
        """
        Ranks of a group are never evaluated, and none is beyond any job.
        """
        config = {"name": "0", "desc": "x", "ranks": ranks}
        data = {"version": "2.10", "pg_config": {"0": config}, "entries": []}
        (tmp_path / "rank_0").write_bytes(pickle.dumps(data, 2))

        dumps = read_dumps(tmp_path)

        assert [("0", "x", ())] == [attrs.astuple(c) for c in dumps[0].configs]
        assert 0 == len(dumps[0].entries)
        assert not dumps[0].wrapped


@pytest.mark.usefixtures("decoded_here")
class TestWrapped:
    @pytest.mark.parametrize("version", ["", "1.4", "2.10"])
    def test_ring(self, job, tmp_path, version):
        """
        If the ring lost records, that is known in any version.
        """
        make_dumps(tmp_path, job, version=version, ring=4)

        dumps = read_dumps(tmp_path)

        assert all(dump.wrapped for dump in dumps)
        assert 4 == len(dumps[0].entries)

    def test_largest_number(self, job, tmp_path):
        """
        A number as large as can be is no reason to stop.
        """
        dump = plain_dump(job, 0)
        dump["entries"][-1]["record_id"] = 2**63 - 1
        (tmp_path / "rank_0").write_bytes(pickle.dumps(dump, 2))

        dumps = read_dumps(tmp_path)

        assert dumps[0].wrapped
        assert dumps[0].is_filtered

    def test_only_active(self, job, tmp_path):
        """
        If only active records were written, older ones are not in the file.
        """
        make_dumps(tmp_path, job, only_active=True)

        dumps = read_dumps(tmp_path)

        assert all(dump.wrapped for dump in dumps)
        assert [1, 1, 0, 1] == [len(dump.entries) for dump in dumps]


class TestFrames:
    def test_on_demand(self, job, tmp_path):
        """
        Stacks are read when they are asked for, by row.
        """
        make_dumps(tmp_path, job)

        dumps = read_dumps(tmp_path)
        (first, last) = dumps.frames(0, [0, 6])

        assert (
            (
                Frame(
                    "all_reduce", "torch/distributed/distributed_c10d.py", 3245
                )
            )
            == first[0]
            == last[0]
        )
        assert 3 == len(first)
        assert [] == dumps.frames(0, [])

    def test_rows_of_kept(self, job, tmp_path):
        """
        Rows count the records that are there.
        """
        path = make_dumps(tmp_path, job)[0]
        data = pickle.loads(path.read_bytes())
        data["entries"][0] = None
        path.write_bytes(pickle.dumps(data, 2))

        dumps = read_dumps(tmp_path)

        assert "all_gather" == dumps.frames(0, [0])[0][0].name

    def test_gone(self, job, tmp_path):
        """
        If the file is gone, stacks are empty.
        """
        path = make_dumps(tmp_path, job)[0]
        dumps = read_dumps(tmp_path)
        path.unlink()

        assert [(), ()] == dumps.frames(0, [0, 1])

    def test_travels(self, job, tmp_path):
        """
        Dumps can be sent to another process, which can read the stacks.
        """
        make_dumps(tmp_path, job)

        dumps = pickle.loads(pickle.dumps(read_dumps(tmp_path)))

        assert 3 == len(dumps.frames(0, [0])[0])


class TestArguments:
    def test_ranks(self, job, tmp_path):
        """
        Only the ranks that are wanted are read, and their side-cars.
        """
        for rank, path in make_dumps(tmp_path, job).items():
            note(path, rank)

        dumps = read_dumps(tmp_path, ranks=[3, 1])

        assert (1, 3) == dumps.ranks == tuple(dumps.sidecars)
        assert () == read_dumps(tmp_path, ranks=[9]).ranks
        for ranks in ("1,3", "ranks(1:4:2)"):
            assert (1, 3) == read_dumps(tmp_path, ranks=ranks).ranks

    def test_calls(self, job, tmp_path):
        """
        All calls are one data frame; what is printed for debugging is short.
        """
        pytest.importorskip("pandas")
        make_dumps(tmp_path, job)
        dumps = read_dumps(tmp_path)

        calls = dumps.calls(ranks="1-2")

        assert {1, 2} == {*calls["rank"]}
        assert sum(len(dumps[r].entries) for r in (1, 2)) == len(calls)
        assert {"op", "seq", "group", "state", "created_ns"} <= {*calls}
        assert repr(dumps[1]).startswith("<Dump of rank 1: ")
        assert "frames" not in calls
        assert dumps.calls(groups=["no such group"]).empty

    def test_paths(self, job, tmp_path):
        """
        A file, or several places, will do.
        """
        paths = make_dumps(tmp_path, job)

        assert (2,) == read_dumps(paths[2]).ranks
        assert (0, 2) == read_dumps([paths[2], str(paths[0])]).ranks

    @pytest.mark.parametrize(
        "header", [None, {"version": 1}, {"failure": "x", "y": 1}]
    )
    def test_nonsense_answer(self, job, tmp_path, header):
        """
        A machine that was taken over, where files are decoded, cannot do harm.
        """
        make_dumps(tmp_path, job)
        raw = json.dumps(header).encode()
        answer = struct.pack("<II", len(raw), 0) + raw if header else b""

        class TakenOver(Executor):
            def submit(self, function, batch, *options):
                future = Future()
                future.set_result([(path, answer) for path in batch])
                return future

        dumps = read_dumps(tmp_path, executor=TakenOver())

        assert () == dumps.ranks
        assert [0, 1, 2, 3] == [p.rank for p in dumps.problems]

    def test_progress(self, job, tmp_path):
        """
        Progress is reported after each file.
        """
        make_dumps(tmp_path, job)
        seen = []

        read_dumps(tmp_path, progress=lambda *now: seen.append(now))

        assert [(1, 4), (2, 4), (3, 4), (4, 4)] == seen

    def test_nothing(self, tmp_path):
        """
        Where there is no dump, what to do is told.
        """
        (tmp_path / "notes.txt").write_text("x", encoding="utf-8")

        with pytest.raises(NoDumpsError, match="no Flight Recorder") as info:
            read_dumps(tmp_path)

        assert "switch recording on" in info.value.remedy

    def test_nowhere(self, tmp_path):
        """
        A place that does not exist has no dumps.
        """
        with pytest.raises(NoDumpsError, match="no such file or folder"):
            read_dumps(tmp_path / "none")

    def test_one_place_is_gone(self, job, tmp_path):
        """
        Of several places one may not exist.
        """
        make_dumps(tmp_path / "a", job)

        dumps = read_dumps([tmp_path / "a", tmp_path / "b"])

        assert (0, 1, 2, 3) == dumps.ranks
        assert [
            (None, "b", "cannot be read: No such file or directory")
        ] == reasons(dumps)


@pytest.mark.usefixtures("decoded_here")
class TestForeignFiles:
    def test_silence(self, job, tmp_path):
        """
        What is no dump, and not called like one, is not mentioned.
        """
        make_dumps(tmp_path, job)
        (tmp_path / "notes.txt").write_text("rank 3", encoding="utf-8")
        (tmp_path / "rank_3.log").write_text("step 1", encoding="utf-8")
        (tmp_path / "pyspy_n1_4711.json").write_text("[]", encoding="utf-8")
        (tmp_path / "stacks_rank_2.json").write_text("{}", encoding="utf-8")
        (tmp_path / "model.pkl").write_bytes(pickle.dumps({"version": [1]}))

        dumps = read_dumps(tmp_path)

        assert (0, 1, 2, 3) == dumps.ranks
        assert () == dumps.problems

    def test_broken(self, job, tmp_path):
        """
        What is called like the other dumps, but is none, is a problem.
        """
        make_dumps(tmp_path, job)[1].write_bytes(b"Killed")

        dumps = read_dumps(tmp_path)

        reason = "it is neither a pickle nor JSON"
        assert (0, 2, 3) == dumps.ranks
        assert [(1, "nccl_trace_rank_1", reason)] == reasons(dumps)

    def test_unknown_rank(self, tmp_path):
        """
        A dump whose rank is unknown is a problem.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        make_dumps(tmp_path, job)[0].rename(tmp_path / "trace")

        dumps = read_dumps(tmp_path)

        assert (1,) == dumps.ranks
        assert "shows the rank" in dumps.problems[0].reason

    def test_rank_from_groups(self, job, tmp_path):
        """
        If only one rank is in all its groups, it must be that one.
        """
        row = job.new_group([0, 2], "dp")
        job.collective("all_reduce", row)
        make_dumps(tmp_path, job)[2].rename(tmp_path / "trace")

        dumps = read_dumps(tmp_path / "trace")

        assert (2,) == dumps.ranks
        assert 2 == dumps[2].rank

    def test_numbered_by_node(self, job, tmp_path):
        """
        If each node numbers its files anew, the groups tell the ranks.
        """
        for ranks, name in (([0, 1], "tp"), ([2, 3], "tp")):
            job.collective("all_reduce", job.new_group(ranks, name))
        for ranks in ([0, 2], [1, 3]):
            job.collective("all_reduce", job.new_group(ranks, "dp"))
        for rank, path in make_dumps(tmp_path, job).items():
            node = tmp_path / f"node{rank // 2}"
            node.mkdir(exist_ok=True)
            path.rename(node / f"nccl_trace_rank_{rank % 2}")

        dumps = read_dumps(tmp_path)

        assert (0, 1, 2, 3) == dumps.ranks
        assert () == dumps.problems
        assert [f"node{r // 2}/nccl_trace_rank_{r % 2}" for r in range(4)] == [
            str(Path(dumps[r].path).relative_to(tmp_path)) for r in range(4)
        ]


@pytest.mark.usefixtures("decoded_here")
class TestSeveralFiles:
    def test_newer_content(self, job, tmp_path):
        """
        Of two dumps of a rank the one with the later record is used.
        """
        make_dumps(tmp_path / "a", job)
        job.collective("barrier")
        make_dumps(tmp_path / "b", job, missing=[0, 1, 2])

        dumps = read_dumps(tmp_path)

        assert str(tmp_path / "b" / "nccl_trace_rank_3") == dumps[3].path
        ((rank, name, reason),) = reasons(dumps)
        assert (3, "nccl_trace_rank_3") == (rank, name)
        assert reason.startswith(
            f"not used: {tmp_path}/b/nccl_trace_rank_3 is newer; if that is of "
            "another node, name the files by their rank"
        )

    def test_same_as_json(self, job, tmp_path):
        """
        The same dump as JSON is passed over in silence.
        """
        paths = make_dumps(tmp_path, job)
        make_dumps(tmp_path, job, as_json=True)

        dumps = read_dumps(tmp_path)

        assert () == dumps.problems
        assert str(paths[0]) == dumps[0].path

    def test_same_process(self, job, tmp_path):
        """
        Older dumps of the same process are passed over in silence.
        """
        same = {"pid": 7, "started": 5.0, "job": "a"}
        old = make_dumps(tmp_path, job, prefix="1_rank_")[0]
        new = make_dumps(tmp_path, job, prefix="2_rank_")[0]
        note(old, 0, written=6.0, **same)
        note(new, 0, written=7.0, **same)

        dumps = read_dumps(tmp_path, ranks=[0])

        assert str(new) == dumps[0].path
        assert 7.0 == dumps.sidecars[0].written == dumps[0].sidecar.written
        assert () == dumps.problems

    def test_newest_is_broken(self, job, tmp_path):
        """
        If the newest dump of a process is broken, the one before is used.
        """
        old = make_dumps(tmp_path, job, prefix="1_rank_")[0]
        new = make_dumps(tmp_path, job, prefix="2_rank_")[0]
        new.write_bytes(b"")
        note(old, 0, written=6.0)
        note(new, 0, written=7.0)
        seen = []

        dumps = read_dumps(
            [old.parent], ranks=[0], progress=lambda *now: seen.append(now)
        )

        assert str(old) == dumps[0].path
        assert [(0, new.name, "the file is empty")] == reasons(dumps)
        assert [(1, 2), (2, 2)] == seen

    def test_earlier_notes(self, job, tmp_path):
        """
        What the same process noted before is kept; not what another one did.
        """
        notes = [(5.0, 4.0, 6), (6.0, 6.5, 7), (6.0, 6.1, 7), (6.0, 7.0, 7)]
        for n, (started, written, pid) in enumerate(notes):
            path = make_dumps(tmp_path, job, prefix=f"{n}_rank_")[0]
            note(path, 0, started=started, written=written, pid=pid)

        dumps = read_dumps(tmp_path, ranks=[0])

        assert 7.0 == dumps.sidecars[0].written
        assert [6.1, 6.5] == [s.written for s in dumps.earlier[0]]

    def test_earlier_process(self, job, tmp_path):
        """
        What an earlier process of the rank left is stale.
        """
        old = make_dumps(tmp_path, job, prefix="1_rank_")[0]
        new = make_dumps(tmp_path, job, prefix="2_rank_")[0]
        note(old, 0, started=6.0, pid=1)
        note(new, 0, started=7.0, pid=2)

        dumps = read_dumps(tmp_path, ranks=[0])

        assert str(new) == dumps[0].path
        assert [
            (0, old.name, f"stale: {new.name} is of a later process")
        ] == reasons(dumps)

    def test_earlier_job(self, job, tmp_path):
        """
        What an earlier run of the job left is stale, as are its side-cars.
        """
        for rank, path in make_dumps(tmp_path, job).items():
            run = 1 if rank == 2 else 2
            note(path, rank, job=f"run{run}", started=1000.0 * run)

        dumps = read_dumps(tmp_path)

        assert (0, 1, 3) == dumps.ranks == tuple(dumps.sidecars)
        assert [
            (
                2,
                "nccl_trace_rank_2",
                "stale: an earlier run, or another job, left it",
            )
        ] == reasons(dumps)

    def test_only_sidecars(self, job, tmp_path):
        """
        Side-cars without dumps are kept.
        """
        paths = make_dumps(tmp_path, job)
        for rank, path in paths.items():
            note(path, rank, world_size=8)
            path.unlink()

        dumps = read_dumps(tmp_path)

        assert () == dumps.ranks
        assert [0, 1, 2, 3] == list(dumps.sidecars)
        assert 8 == dumps.world_size

    def test_broken_sidecar(self, job, tmp_path):
        """
        A broken side-car is a problem, and its dump is used.
        """
        path = make_dumps(tmp_path, job)[0]
        broken = path.with_name(path.name + SIDECAR_SUFFIX)
        broken.write_text("{", encoding="utf-8")

        dumps = read_dumps(tmp_path)

        assert 0 in dumps.ranks
        (problem,) = dumps.problems
        assert isinstance(problem, Missing)
        assert "sidecar" == problem.what
