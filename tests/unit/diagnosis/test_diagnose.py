"""
From files of any kind to one diagnosis.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug import diagnose, read_dumps, read_stacks, scan_logs
from distdebug.__main__ import main
from distdebug.capture import Capture, CaptureStatus, ProcessCapture
from distdebug.causes import Cause
from distdebug.diagnosis import inputs_of
from distdebug.errors import NoDumpsError
from distdebug.findings import Missing
from distdebug.flight_recorder import analyze_dumps
from distdebug.processes import Worker
from distdebug.stacks import ThreadActivity
from distdebug.testing import SimulatedJob, make_dumps


READING = ("read_shard", "train.py", 41)
SLEEPING = ("sleep", "train.py", 40)
TRAINING = ("step", "train.py", 50)
MOVING = ThreadActivity(
    seconds=2.0,
    voluntary=40,
    involuntary=0,
    cpu_s=1.0,
    has_moved=True,
    has_left=True,
)
WAITING = ("all_reduce", "torch/distributed/distributed_c10d.py", 7)


@pytest.fixture(name="hang")
def _hang(tmp_path):
    """
    The dumps of four ranks, of which one is absent.
    """
    job = SimulatedJob(4)
    job.collective("all_reduce")
    job.collective("all_reduce", ranks=[0, 1, 3])
    make_dumps(tmp_path, job)
    return tmp_path


def test_odd_folder(tmp_path, write_stack):
    """
    A folder is a folder, also if there is a line break in its name.
    """
    folder = tmp_path / "a\nb"
    folder.mkdir()
    write_stack(folder, 0, READING)

    for named in (folder, str(folder)):
        assert ["dump"] == [lost.what for lost in diagnose(named).missing]


def test_dumps(hang):
    """
    Dumps alone name the rank and the call.
    """
    verdict = diagnose(hang).verdict

    assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)
    assert verdict.summary.startswith("rank 2 never entered all_reduce #2")


def test_stacks(hang, write_stack):
    """
    Stacks beside them name the line and the reason.
    """
    write_stack(hang, 2, ("sleep", "train.py", 40), READING)

    verdict = diagnose(hang).verdict

    assert Cause.SLEEPING is verdict.detail_cause


@pytest.fixture(name="two_jobs")
def _two_jobs(tmp_path, write_side, write_stack):
    """
    The dumps of a job where nothing is stuck, and the stacks of that job and
    of another one, of which rank 1 sleeps.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce")
    make_dumps(tmp_path, job)
    sources = []
    for name, pid, where in (("own", 7, TRAINING), ("other", 20, SLEEPING)):
        for rank, line in enumerate((WAITING, where)):
            path = write_stack(tmp_path, rank, line, pid=pid + rank)
            (stack,) = read_stacks(path)
            sources.append(attrs.evolve(stack, job=name))
            path.unlink()
    for rank in range(2):
        write_side(tmp_path, rank, size=2)
    return [read_dumps(tmp_path), *sources]


class TestOtherJobs:
    """
    Of several jobs on a node, only one may have dumps.
    """

    def test_hang(self, two_jobs):
        """
        A job that hangs comes before one where nothing is stuck.
        """
        diagnosis = diagnose(two_jobs)

        assert Cause.SLEEPING is diagnosis.verdict.cause
        assert (1,) == diagnosis.verdict.ranks
        assert diagnosis.verdict.summary.startswith("job other: rank 1 is")
        assert Cause.HEALTHY is diagnosis.findings[-1].cause

    def test_same_ranks(self, two_jobs, tmp_path):
        """
        The reason why a rank is absent is not that of another job's rank.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce", ranks=[0])
        make_dumps(tmp_path / "stuck", job)
        for side in tmp_path.glob("*.sidecar.json"):
            side.rename(tmp_path / "stuck" / side.name)
        _, *stacks = two_jobs

        diagnosis = diagnose([read_dumps(tmp_path / "stuck"), *stacks])

        verdict, other = diagnosis.findings
        assert (Cause.RANK_NOT_ARRIVED, (1,)) == (verdict.cause, verdict.ranks)
        assert Cause.SLEEPING is not verdict.detail_cause
        assert other.summary.startswith("job other: rank 1 is sleeping")

    def test_none(self, two_jobs):
        """
        What another job does is not what the ranks of this one do.
        """
        dumps, *stacks = two_jobs

        diagnosis = diagnose([dumps, *stacks[:2]])

        assert Cause.HEALTHY is diagnosis.verdict.cause
        assert () == diagnosis.findings


class TestResults:
    """
    What earlier steps returned is diagnosed as their files are.
    """

    def test_dumps(self, hang):
        dumps = read_dumps(hang)

        for source in (dumps, analyze_dumps(dumps)):
            assert diagnose(hang).to_dict() == diagnose(source).to_dict()

    def test_stacks(self, hang, write_stack):
        """
        Stacks beside dumps name the reason; a list holds several results.
        """
        write_stack(hang, 2, ("sleep", "train.py", 40), READING)
        stacks = read_stacks(hang)

        verdict = diagnose([read_dumps(hang), *stacks]).verdict

        assert Cause.SLEEPING is verdict.detail_cause
        assert diagnose(stacks).verdict.ranks == (2,)

    def test_capture(self, hang, write_stack):
        """
        A capture is of processes that are alive; what it lacks is told.
        """
        write_stack(hang, 2, ("sleep", "train.py", 40), READING)
        (stacks,) = read_stacks(hang)
        lost = Missing(what="stack", reason="it is gone", rank=3)
        worker = Worker(
            pid=7,
            start_ticks=5,
            parent_pid=1,
            uid=0,
            title="python train.py",
            framework="torchrun",
            rank=2,
        )
        process = ProcessCapture(
            worker=worker,
            status=CaptureStatus.OK,
            stacks=attrs.evolve(stacks, source="py-spy"),
        )
        capture = Capture(host="a", processes=(process,), missing=(lost,))

        diagnosis = diagnose(hang / "none", read_dumps(hang), capture)

        assert Cause.SLEEPING is diagnosis.verdict.detail_cause
        assert lost in diagnosis.missing
        assert inputs_of(diagnosis).stacks == capture.stacks

    def test_logs(self, tmp_path):
        path = tmp_path / "rank_3.log"
        path.write_text("torch.OutOfMemoryError: CUDA out of memory.\n")

        verdict = diagnose(scan_logs(path)).verdict

        assert diagnose(path).verdict == verdict
        assert (Cause.GPU_OUT_OF_MEMORY, (3,)) == (
            verdict.cause,
            verdict.ranks,
        )

    def test_stands_for_its_kind(self, hang, tmp_path):
        """
        Dumps that are given are not joined with others of the folders.
        """
        other = tmp_path / "other"
        make_dumps(other, SimulatedJob(2))

        assert diagnose(hang).verdict == (
            diagnose(other, read_dumps(hang)).verdict
        )

    def test_nothing(self, tmp_path):
        """
        A log without an error is nothing to judge, also if it was scanned.
        """
        path = tmp_path / "a.log"
        path.write_text("hello\n")

        with pytest.raises(NoDumpsError, match="no error of a log"):
            diagnose(scan_logs(path))

    def test_no_result(self):
        with pytest.raises(TypeError, match="earlier step, not int"):
            diagnose(17)


def test_frame(hang):
    """
    A data frame has a flat row for each finding; the object itself is short.
    """
    pytest.importorskip("pandas")
    diagnosis = diagnose(hang)

    (row,) = diagnosis.to_frame().to_dict("records")

    assert ("rank_not_arrived", [2], "all_reduce", 2, [0, 1, 3]) == (
        row["cause"],
        row["ranks"],
        row["collective_op"],
        row["collective_seq"],
        row["waiting"],
    )
    assert "evidence" not in row
    assert "<Diagnosis: rank_not_arrived (certain), rank 2>" == repr(diagnosis)


def test_contradiction(hang, write_stack):
    """
    If the stacks show that the job goes on, that is not hidden.
    """
    for rank in range(4):
        write_stack(
            hang, rank, ("step", "/home/me/train.py", 40), activity=MOVING
        )

    diagnosis = diagnose(hang)

    assert (Cause.RANK_NOT_ARRIVED, "possible") == (
        diagnosis.verdict.cause,
        diagnosis.verdict.confidence,
    )
    assert "; but ranks 0-3 are making progress" in diagnosis.verdict.summary
    assert {*diagnosis.findings[-1].evidence} <= {*diagnosis.verdict.evidence}
    assert diagnosis.verdict == diagnosis.findings[0]
    assert Cause.PROGRESSING is diagnosis.findings[-1].cause


@pytest.mark.parametrize(
    ("waited_s", "is_healthy"), [(2.0, True), (9.0, False)]
)
def test_short_wait(hang, write_stack, waited_s, is_healthy):
    """
    If ranks move and the wait has just begun, the job goes on.
    """
    for rank in range(4):
        write_stack(hang, rank, ("step", "train.py", 40), activity=MOVING)
    flight = analyze_dumps(read_dumps(hang))
    found = attrs.evolve(flight.verdict, waited_s=waited_s)
    flight = attrs.evolve(flight, findings=(found,))

    diagnosis = diagnose(flight, read_stacks(hang))

    assert is_healthy == diagnosis.is_healthy
    assert is_healthy == (Cause.PROGRESSING is diagnosis.findings[0].cause)
    assert {Cause.PROGRESSING, Cause.RANK_NOT_ARRIVED} == {
        f.cause for f in diagnosis.findings
    }


def test_slow_storage(hang, write_stack):
    """
    A rank that is late because it writes a large file is slow, perhaps.
    """
    writing = attrs.evolve(
        MOVING,
        voluntary=4,
        cpu_s=0.0,
        has_moved=False,
        has_left=False,
        io_bytes=4_000_000,
    )
    write_stack(
        hang,
        2,
        *(("sleep", "throttle.py", 4), ("save", "/home/me/train.py", 40)),
        activity=writing,
    )

    verdict = diagnose(hang).verdict

    assert (Cause.PROGRESSING, "possible") == (
        verdict.cause,
        verdict.confidence,
    )
    assert 1 == verdict.summary.count("reading or writing data")


def test_sidecar(hang, write_side):
    """
    So does the stack in a side-car.
    """
    write_side(
        hang,
        2,
        *(("sleep", "train.py", 40), READING),
        dump="nccl_trace_rank_2",
    )

    verdict = diagnose(hang).verdict

    assert Cause.SLEEPING is verdict.detail_cause
    assert ". Rank 2 is sleeping in" in verdict.summary


@pytest.mark.parametrize(
    ("is_recording", "lost"),
    [(False, ["dump", "dump"]), (True, ["calls"])],
    ids=["no recorder", "no calls"],
)
def test_only_sidecars(is_recording, lost, tmp_path, write_side):
    """
    Where torch recorded nothing, side-cars are enough.
    """
    if is_recording:
        make_dumps(tmp_path, SimulatedJob(2))
    for rank, lines in enumerate(([WAITING, TRAINING], [READING])):
        dump = f"nccl_trace_rank_{rank}" if is_recording else ""
        write_side(tmp_path, rank, *lines, size=2, dump=dump)

    diagnosis = diagnose(tmp_path)

    assert (1,) == diagnosis.verdict.ranks
    assert "read_shard" == diagnosis.verdict.location.function
    assert (0,) == diagnosis.victims
    assert lost == [missing.what for missing in diagnosis.missing]


def test_only_stacks(tmp_path, write_stack):
    """
    Stacks alone give findings, and say what is missing.
    """
    one = write_stack(tmp_path, 1, ("sleep", "train.py", 40))

    diagnosis = diagnose(one)

    assert (Cause.SLEEPING, (1,)) == (
        diagnosis.verdict.cause,
        diagnosis.verdict.ranks,
    )
    assert ["dump"] == [m.what for m in diagnosis.missing]


def test_different_stacks(tmp_path, write_stack):
    """
    If no rank is seen to wait for another, the first is but a suspect.
    """
    write_stack(tmp_path, 1, ("sleep", "train.py", 40))
    write_stack(
        tmp_path, 2, ("synchronize", "torch/cuda/__init__.py", 9), READING
    )

    diagnosis = diagnose(tmp_path)

    assert (Cause.SLEEPING, "possible") == (
        diagnosis.verdict.cause,
        diagnosis.verdict.confidence,
    )
    assert 2 == len(diagnosis.findings)
    assert "enable the Flight Recorder" in diagnosis.verdict.remedy


def test_outlier(tmp_path, write_stack):
    """
    The rank that is not where the others wait is to blame, without any dump.
    """
    for rank in (0, 1, 3):
        write_stack(
            tmp_path,
            rank,
            (
                "all_reduce",
                "/v/site-packages/torch/distributed/distributed_c10d.py",
                2800,
            ),
        )
    write_stack(tmp_path, 2, ("sleep", "train.py", 40))

    diagnosis = diagnose(tmp_path)

    assert (Cause.SLEEPING, (2,), "likely", (0, 1, 3)) == (
        diagnosis.verdict.cause,
        diagnosis.verdict.ranks,
        diagnosis.verdict.confidence,
        diagnosis.victims,
    )


def test_log(tmp_path):
    """
    Stacks that were pasted into a log are found there.
    """
    log = tmp_path / "job.log"
    log.write_text(
        "[rank1]: Process 7: python train.py\n"
        '[rank1]: Thread 7 (idle): "MainThread"\n'
        "[rank1]:     sleep (train.py:40)\n"
    )

    diagnosis = diagnose(log)

    assert (Cause.SLEEPING, (1,)) == (
        diagnosis.verdict.cause,
        diagnosis.verdict.ranks,
    )


def test_unknown_stacks(tmp_path, write_stack):
    """
    Stacks that match no rule lead to an unknown cause.
    """
    write_stack(tmp_path, 1, ("f", "train.py", 40))

    diagnosis = diagnose(tmp_path)

    assert Cause.UNKNOWN is diagnosis.verdict.cause
    assert "native" in diagnosis.verdict.remedy


def test_unreadable_dumps(tmp_path, write_stack):
    """
    A dump that cannot be read does not keep us from the stacks.
    """
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02}")
    write_stack(tmp_path, 1, ("sleep", "train.py", 40))

    diagnosis = diagnose(tmp_path)

    assert Cause.SLEEPING is diagnosis.verdict.cause
    assert [0] == [m.rank for m in diagnosis.missing]


@pytest.fixture(name="ended")
def _ended(tmp_path, write_side):
    """
    The side-cars of two ranks that ended well, and no dump.
    """
    for rank in (0, 1):
        write_side(tmp_path, rank, size=2, reason="exit")
    return tmp_path


def test_ended(ended):
    """
    A job that ended well leaves no dump, and needs none.
    """
    diagnosis = diagnose(ended)

    assert diagnosis.is_healthy
    assert () == diagnosis.missing
    assert "the job ended without an error on ranks 0-1" == (
        diagnosis.verdict.summary
    )


def test_ended_exit_status(ended, capsys):
    """
    To a shell that is success.
    """
    status = main(["diagnose", str(ended)])

    assert 0 == status
    assert capsys.readouterr().out.startswith("the job ended without an error")


def test_ended_before_stacks(ended, write_stack):
    """
    What it did before its end does not matter then.
    """
    write_stack(ended, 1, ("sleep", "train.py", 40))

    assert diagnose(ended).is_healthy


def test_ended_after_hang(hang, write_side):
    """
    Dumps from before the end do not matter either.
    """
    for rank in range(4):
        write_side(hang, rank, reason="exit", written=1_750_000_900.0)

    assert diagnose(hang).is_healthy


def test_nothing(tmp_path):
    """
    Without anything there is nothing to look at.
    """
    with pytest.raises(NoDumpsError, match="nor are there stacks") as caught:
        diagnose(tmp_path)

    assert "switch recording on" not in caught.value.remedy


def test_linked_folders(tmp_path, write_stack):
    """
    Stacks behind a link that stays in the folder are read; links that lead out
    are named, once, and read only if they are named.
    """
    for name in ("job", "elsewhere"):
        (tmp_path / name / "node").mkdir(parents=True)
    write_stack(tmp_path / "elsewhere" / "node", 1, READING)
    (tmp_path / "job" / "out").symlink_to(tmp_path / "elsewhere" / "node")

    with pytest.raises(NoDumpsError, match="are not followed: out;"):
        diagnose(tmp_path / "job")

    write_stack(tmp_path / "job" / "node", 0, READING)
    (tmp_path / "job" / "node").rename(tmp_path / "job" / ".node")
    (tmp_path / "job" / "node").symlink_to(".node")
    some = diagnose(tmp_path / "job")
    both = diagnose(tmp_path / "job", tmp_path / "job" / "out")

    assert (0,) == some.verdict.ranks
    (left_out,) = (m for m in some.missing if "links" in m.reason)
    assert left_out.reason.startswith(
        "links that lead out of it are not followed: out; name them"
    )
    assert (0, 1) == both.verdict.ranks


def test_no_such_place(tmp_path):
    """
    A slip in a path is no matter of recording.
    """
    with pytest.raises(NoDumpsError, match="no such file or folder") as caught:
        diagnose(tmp_path / "dunps", tmp_path / "stakcs")

    assert "stakcs" in str(caught.value)
    assert "check the path" in caught.value.remedy


def test_progress(hang):
    """
    The progress of reading is reported.
    """
    seen = []

    diagnose(hang, progress=lambda done, of: seen.append((done, of)))

    assert [(1, 4), (2, 4), (3, 4), (4, 4)] == seen


def test_no_evidence_at_all(tmp_path):
    """
    Where no dump can be read, and nothing else is there, the reasons are said.
    """
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"")
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"\x80\x02}.")

    with pytest.raises(NoDumpsError) as caught:
        diagnose(tmp_path)

    assert "nccl_trace_rank_0: the file is empty" in str(caught.value)
    assert "nccl_trace_rank_1: " in str(caught.value)
