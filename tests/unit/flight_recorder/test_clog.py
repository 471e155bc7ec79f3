"""
Logs of torchcomms' ClogHook: read like dumps.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.errors import NoDumpsError
from distdebug.flight_recorder import COMPLETED, read_dumps
from distdebug.flight_recorder.reading import clog


pytestmark = pytest.mark.usefixtures("decoded_here")

RECORDERS = Path(__file__).parents[2] / "data" / "recorders"
BASE = "V|1|base_timestamp=1795900000.250"
REDUCE = (
    "C1|sig|all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum"
    "|async_op=f|comm=world"
)


def write(folder, rank, *lines, size=2, head=BASE):
    """
    The log of one rank, which is not in its name.
    """
    path = folder / f"process-{'abcd'[rank]}.clog"
    new = f"new_comm|comm=world|rank={rank}|world_size={size}"
    path.write_text("".join(f"{line}\n" for line in (head, new, *lines)))
    return path


def call(number, *, ends=True, begins=True, at=0.0, id_="C1"):
    """
    The events of one call.
    """
    events = [f"{id_}|Q|work_id={number}|+{at + number:.3f}"]
    events += [f"{id_}|S|+{at + number + 0.001:.3f}"] * begins
    return [*events, *[f"{id_}|E|+{at + number + 0.005:.3f}"] * ends]


def verdict_of(folder):
    """
    Cause and ranks.
    """
    verdict = diagnose(folder).verdict
    return verdict.cause, verdict.ranks


class TestCalls:
    def test_recorded(self):
        """
        A job is diagnosed by its logs, as by dumps.
        """
        verdict = diagnose(RECORDERS / "torchcomms-clog").verdict

        assert (Cause.RANK_NOT_ARRIVED, (3,)) == (verdict.cause, verdict.ranks)
        assert 4 == verdict.collective.seq

    def test_not_arrived(self, tmp_path):
        """
        Who did not make the call that the other is in is named.
        """
        write(tmp_path, 0, REDUCE, *call(1), *call(2, ends=False))
        write(tmp_path, 1, REDUCE, *call(1))

        verdict = diagnose(tmp_path).verdict

        assert (Cause.RANK_NOT_ARRIVED, (1,)) == (verdict.cause, verdict.ranks)
        assert ("all_reduce", 2) == (
            verdict.collective.op,
            verdict.collective.seq,
        )

    def test_columns(self, tmp_path):
        """
        Calls have their sizes, types, times, and numbers.
        """
        write(tmp_path, 0, REDUCE, *call(1), size=1)

        dumps = read_dumps(tmp_path)

        entries = dumps[0].entries
        assert [COMPLETED] == entries.state.tolist()
        assert [1] == entries.seq.tolist()
        assert [1_795_900_001_250_000_000] == entries.created_ns.tolist()
        assert [1_795_900_001_255_000_000] == entries.completed_ns.tolist()
        assert ((1024,),) == dumps.shapes[0].input_sizes
        assert ("f32",) == dumps.shapes[0].output_dtypes

    def test_equal_calls(self, tmp_path):
        """
        Equal calls that overlap end in the order in which they were made.
        """
        lines = [*call(1, ends=False), *call(2, ends=False), "C1|E|+2.500"]
        write(tmp_path, 0, REDUCE, *lines, size=1)

        entries = read_dumps(tmp_path)[0].entries

        assert [True, False] == entries.retired.tolist()

    def test_without_ends(self, tmp_path):
        """
        Without the event LIFECYCLE, a call that all entered counts as complete.
        """
        enqueued = {"ends": False, "begins": False}
        write(tmp_path, 0, REDUCE, *call(1, **enqueued), *call(2, **enqueued))
        write(tmp_path, 1, REDUCE, *call(1, **enqueued), *call(2, **enqueued))

        diagnosis = diagnose(tmp_path)

        assert Cause.HEALTHY == diagnosis.verdict.cause
        assert any(
            "does not see calls end" in m.reason for m in diagnosis.missing
        )

    def test_size_mismatch(self, tmp_path):
        """
        Calls with other sizes are compared.
        """
        for rank, size in enumerate((1024, 1024, 512)):
            other = REDUCE.replace("1024", str(size))
            write(tmp_path, rank, other, *call(1, ends=False), size=3)

        assert (Cause.SIZE_MISMATCH, (2,)) == verdict_of(tmp_path)

    def test_uneven(self, tmp_path):
        """
        Operations that take other sizes on each rank are no mismatch.
        """
        for rank in range(3):
            uneven = (
                f"C1|sig|all_gather_v|in_count={rank + 1}|out_counts=1,2,3"
                "|dtype=f32|async_op=f|comm=world"
            )
            write(tmp_path, rank, uneven, *call(1), size=3)

        assert (Cause.HEALTHY, ()) == verdict_of(tmp_path)

    def test_split(self, tmp_path):
        """
        A communicator that was split off has its members and its numbers.
        """
        inner = REDUCE.replace("C1", "C2").replace("world", "tp")
        split = "split|parent=world|child=tp|ranks=2,3"
        for rank in (2, 3):
            lines = (REDUCE, *call(1), split, inner)
            more = call(2, ends=rank != 2, begins=rank == 2, id_="C2")
            write(tmp_path, rank, *lines, *more[: 1 + 2 * (rank == 2)], size=4)
        for rank in (0, 1):
            write(tmp_path, rank, REDUCE, *call(1), size=4)

        dumps = read_dumps(tmp_path)

        configs = {c.name: c.ranks for c in dumps[2].configs if c.name}
        assert {"world": (0, 1, 2, 3), "tp": (2, 3)} == configs
        assert [1, 1] == dumps[2].entries.seq.tolist()

    def test_transfer(self, tmp_path):
        """
        A send that nobody receives is found.
        """
        text = "C1|sig|{}|in_count=4|out_count=0|dtype=f32|peer={}|async_op=f"
        send = f"{text.format('send', 1)}|comm=world"
        write(tmp_path, 0, send, *call(1, ends=False))
        write(tmp_path, 1, REDUCE)

        verdict = diagnose(tmp_path).verdict

        assert (Cause.RANK_NOT_ARRIVED, (1,)) == (verdict.cause, verdict.ranks)

    def test_graphs(self, tmp_path):
        """
        Calls in CUDA graphs are left out, and so are warnings.
        """
        graph = [
            "G42|C1|Q|work_id=9|+1.000",
            "G42|R1|C1|S|+2.001",
            "WARN|post-hook missing work_id for op_id 3",
        ]
        write(tmp_path, 0, REDUCE, *call(1), *graph, size=1)

        dumps = read_dumps(tmp_path)

        assert 1 == len(dumps[0].entries)
        assert () == dumps.problems


class TestDamage:
    @pytest.mark.parametrize(
        "line",
        [
            "C9|Q|work_id=1|+1.0",
            "C1|Q|work_id=1|+nan",
            "C1|Q|work_id=1|+1e999",
            "C1|Q|work_id=1|+x",
            "C1",
            "new_comm|rank=x",
            "split|parent=world|ranks=1,y",
            "C1|E|",
        ],
    )
    def test_broken_line(self, tmp_path, line):
        """
        A line that is broken loses no other, and is counted.
        """
        write(tmp_path, 0, REDUCE, *call(1), line, size=1)

        dumps = read_dumps(tmp_path)

        assert 1 == len(dumps[0].entries)
        assert ["1 of 2 records cannot be read"] == [
            p.reason for p in dumps.problems
        ]

    def test_cut(self, tmp_path):
        """
        The last line may be yet to be written; that is no damage.
        """
        path = write(tmp_path, 0, REDUCE, *call(1), size=1)
        path.write_text(path.read_text() + "C1|Q|work")

        dumps = read_dumps(tmp_path)

        assert 1 == len(dumps[0].entries)
        assert () == dumps.problems

    def test_damaged_time(self, tmp_path):
        """
        A call whose time is damaged counts: the numbers after it stay right.
        """
        for rank in range(2):
            more = call(3, ends=False) if rank == 0 else ()
            path = write(tmp_path, rank, REDUCE, *call(1), *call(2), *more)
        path.write_text(path.read_text().replace("+1.000", "+x"))

        verdict = diagnose(tmp_path).verdict

        assert (Cause.RANK_NOT_ARRIVED, (1,)) == (verdict.cause, verdict.ranks)
        assert 3 == verdict.collective.seq

    def test_appended(self, tmp_path):
        """
        Of runs that were written one after the other, the last one counts.
        """
        write(tmp_path, 0, REDUCE, *call(1), *call(2, ends=False))
        path = write(tmp_path, 1, REDUCE, *call(1))
        path.write_text(path.read_text() * 2)

        assert (Cause.RANK_NOT_ARRIVED, (1,)) == verdict_of(tmp_path)

    def test_other_log(self, tmp_path):
        """
        A log to people that only begins alike is read as a log.
        """
        (tmp_path / "train.log").write_text(
            "V|1|base_timestamp=1.0 begins such a log\n"
            "torch.OutOfMemoryError: CUDA out of memory.\n"
        )

        assert (Cause.GPU_OUT_OF_MEMORY, ()) == verdict_of(tmp_path)

    def test_circle(self, tmp_path):
        """
        Communicators that were split off each other have no ranks.
        """
        send = "C1|sig|send|in_count=4|dtype=f32|peer=1|comm=a"
        circle = (
            "split|parent=a|child=b|ranks=0",
            "split|parent=b|child=a|ranks=0",
        )
        write(tmp_path, 0, *circle, send, *call(1), size=1)

        dumps = read_dumps(tmp_path)

        assert 0 == len(dumps.by_rank.get(0, ()).entries)

    @pytest.mark.parametrize("size", [0, 1 << 40])
    def test_impossible_size(self, tmp_path, size):
        """
        A world of an impossible size shows no rank, and loses no other file.
        """
        write(tmp_path, 0, REDUCE, *call(1), size=1)
        write(tmp_path, 1, REDUCE, *call(1), size=size)

        dumps = read_dumps(tmp_path)

        assert (0,) == dumps.ranks
        assert "shows the rank" in dumps.problems[0].reason

    def test_other_version(self, tmp_path):
        """
        Only the version that is known is read.
        """
        write(tmp_path, 0, REDUCE, *call(1), head=BASE.replace("1", "2", 1))

        with pytest.raises(NoDumpsError):
            diagnose(tmp_path)

    def test_long(self, tmp_path, monkeypatch):
        """
        Of a long log, the newest calls are kept, and numbered as made.
        """
        monkeypatch.setattr(clog, "_MOST_CALLS", 4)
        lines = [x for i in range(9) for x in call(i)]
        write(tmp_path, 0, REDUCE, *lines, size=1)

        dump = read_dumps(tmp_path)[0]

        assert [6, 7, 8, 9] == dump.entries.seq.tolist()
        assert dump.wrapped
