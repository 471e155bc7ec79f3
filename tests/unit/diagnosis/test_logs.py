"""
What logs add to a diagnosis, and what they yield alone.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil

from pathlib import Path

import attrs
import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.diagnosis import LogEvidence, inputs_of
from distdebug.diagnosis import log_evidence as read_module
from distdebug.diagnosis.order import join_logs, log_findings
from distdebug.errors import NoDumpsError
from distdebug.findings import Diagnosis, Evidence, Finding, Missing
from distdebug.logs import Hit, LogGroup, PhaseReport, ScanReport
from distdebug.logs.lines import Origin
from distdebug.ray import Death, Deaths, DriverLog, Failure
from distdebug.testing import SimulatedJob, make_dumps


WATCHDOG = (
    "[rank{rank}]:[E1120 10:10:1{rank}.5 ProcessGroupNCCL.cpp:616] [Rank "
    "{rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for "
    "600040 milliseconds before timing out.\n"
)
TRACE = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/job/train.py", line 41, in <module>
[rank2]:     main()
[rank2]:   File "/job/train.py", line 17, in main
[rank2]:     raise RuntimeError("the shard is empty")
[rank2]: RuntimeError: the shard is empty
"""
LOADING = """\
INFO 02-20 02:03:10 [core.py:69] Initializing a V1 LLM engine (v0.11.0)
INFO 02-20 02:03:20 [gpu_model_runner.py:17] Starting to load model m...
"""
MEMORY = (
    "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
    "2.00 GiB. GPU 2 has a total capacity of 79.15 GiB\n"
)


DATA = Path(__file__).parents[2] / "data" / "ray_sessions"
RAY = DATA / "2.40.0" / "actors"
STEP = ("step", "/job/train.py", 50)
OUT_OF_MEMORY = Cause.HOST_OUT_OF_MEMORY
XID = (
    "[Fri Feb 20 02:03:57 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, "
    "name=python, GPU has fallen off the bus."
)


def finding(cause, *ranks, confidence="likely", line=1, source="a.log"):
    """
    A finding of a line.
    """
    seen = Evidence(kind="log", source=source, location=f"line {line}")
    return Finding(
        cause=cause,
        ranks=ranks,
        summary=f"it was {cause}",
        confidence=confidence,
        remedy="mend it",
        evidence=(seen,),
    )


def group(cause, *, line, priority=1, **kwargs):
    """
    Lines of one kind.
    """
    hit = Hit(text="x", source="a.log", line=line)
    return LogGroup(
        rule="x",
        cause=cause,
        priority=priority,
        count=1,
        first=hit,
        last=hit,
        **kwargs,
    )


def scanned(*findings, **kwargs):
    """
    The evidence of logs in which only single lines count.
    """
    return LogEvidence(scan=ScanReport(findings=findings), **kwargs)


def by_dumps(*findings, victims=()):
    """
    The diagnosis of dumps.
    """
    return Diagnosis(verdict=findings[0], findings=findings, victims=victims)


def read_logs(*paths):
    """
    The evidence of logs; empty where there is nothing to diagnose.
    """
    try:
        return inputs_of(diagnose(*paths)).logs
    except NoDumpsError:
        return LogEvidence()


def write_facts(folder, **facts):
    """
    Write the facts of a node.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "node.json").write_text(json.dumps(facts))


def session_in(folder):
    """
    Make the folder of the logs of a Ray session.
    """
    logs = folder / "session_2026-02-20_02-03-57_123456_4711" / "logs"
    logs.mkdir(parents=True)
    return logs


class TestPlaces:
    def test_folder(self, tmp_path):
        """
        In a folder, only what is called like a log is one.
        """
        names = [
            *("train.log", "rank3.err", "slurm-77.out", "job.o1234", "stdout"),
            *("a.log.1", "b.out.2.gz", "c.log-20260220"),
            *("nccl_trace_rank_0", "pyspy_n1_7.txt", "REPORT.txt", "notes"),
            *("requirements.txt", "vocab.txt", "model.py", "x.json"),
        ]
        for name in names:
            opened = gzip.open if name.endswith("gz") else open
            with opened(tmp_path / name, "wb") as file:
                file.write(b"Killed\n")

        logs = read_logs(tmp_path)

        assert sorted(names[:8]) == sorted(Path(x).name for x in logs.files)
        assert () == logs.missing

    @pytest.mark.parametrize(
        ("name", "data", "is_log"),
        [
            ("train", b"step 1\n", True),
            ("x.log", b"\0\0", True),
            ("model", b"PK\0\1", False),
            ("x.json", b"{}", False),
            ("pyspy_n1_7.txt", b"Thread 1", False),
            ("nccl_trace_rank_0", b"x", False),
        ],
    )
    def test_named(self, tmp_path, name, data, is_log):
        """
        What is named is a log, unless it is seen to be something else.
        """
        path = tmp_path / name
        path.write_bytes(data)

        assert is_log == bool(read_module.read_logs([path]).files)

    def test_unreadable(self, tmp_path, monkeypatch):
        """
        What cannot be opened is no log.
        """
        (tmp_path / "train").write_text("x")
        real = os.open

        def refuse(path, *args, **options):
            if str(path) == str(tmp_path / "train"):
                raise PermissionError(13, "Permission denied")
            return real(path, *args, **options)

        monkeypatch.setattr(os, "open", refuse)

        assert not read_logs(tmp_path / "train").is_any

    def test_missing(self, tmp_path):
        """
        A missing log is reported; a missing dump is not, which others do.
        """
        (tmp_path / "train.log").write_text("x")

        logs = read_module.read_logs(
            tmp_path / name for name in ("train.log", "a.log", "dump_rank_0")
        )

        assert [str(tmp_path / "a.log")] == [m.source for m in logs.missing]

    def test_session(self, tmp_path):
        """
        The logs of a Ray session are those of its workers, not any log.
        """
        (session_in(tmp_path) / "raylet.out").write_text(TRACE)
        (tmp_path / "driver.log").write_text("x")

        logs = read_logs(tmp_path)

        assert ["driver.log"] == [Path(name).name for name in logs.files]

    @pytest.mark.parametrize("place", ["", "n1"])
    def test_nodes(self, tmp_path, place):
        """
        The facts of a snapshot are found by the names of its nodes.
        """
        for host in ("n1", "n2"):
            write_facts(tmp_path / host)
            (tmp_path / host / "train.log").write_text(LOADING)

        logs = read_logs(tmp_path / place)

        hosts = ["n1"] if place else ["n1", "n2"]
        assert hosts == sorted(facts.host for facts in logs.facts)


class TestAlone:
    def test_exception(self, tmp_path):
        """
        The rank that raised comes first; ranks that only waited in vain are
        victims.
        """
        waiting = "".join(WATCHDOG.format(rank=r) for r in (0, 1, 3))
        (tmp_path / "train.log").write_text(TRACE + waiting)

        diagnosis = diagnose(tmp_path)

        verdict = diagnosis.verdict
        assert (Cause.RANK_CRASHED, (2,)) == (verdict.cause, verdict.ranks)
        assert "the shard is empty" in verdict.summary
        assert (0, 1, 3) == diagnosis.victims
        assert "logs only" in diagnosis.missing[0].reason

    def test_watchdog(self, tmp_path):
        """
        Without a cause, the rank that is missing among those that wait is
        named.
        """
        waiting = "".join(WATCHDOG.format(rank=r) for r in (0, 1, 3))
        (tmp_path / "train.log").write_text(waiting)

        diagnosis = diagnose(tmp_path / "train.log")

        assert (0, 1, 3) == diagnosis.victims
        assert not diagnosis.is_healthy

    def test_quiet(self, tmp_path):
        """
        A log of which no line is known says nothing about a job.
        """
        (tmp_path / "train.log").write_text("hello\n")
        gone = tmp_path / "gone.log"

        with pytest.raises(NoDumpsError) as caught:
            diagnose(tmp_path, gone)

        assert "nothing to judge in" in str(caught.value)
        assert f"{gone}: No such file" in str(caught.value)
        assert "distdebug stacks" in caught.value.remedy

    def test_ended(self, tmp_path):
        """
        A job that says that it came to its end is healthy.
        """
        (tmp_path / "train.log").write_text(
            f"{LOADING}Training completed: 30 steps in 3.0s\n"
        )

        diagnosis = diagnose(tmp_path)

        assert diagnosis.is_healthy
        assert "The job is completed" in diagnosis.verdict.summary

    def test_going(self, tmp_path):
        """
        A job that goes on may be healthy; how far it is stands in the verdict.
        """
        (tmp_path / "train.log").write_text(LOADING)

        diagnosis = diagnose(tmp_path)

        assert (Cause.HEALTHY, "possible") == (
            diagnosis.verdict.cause,
            diagnosis.verdict.confidence,
        )
        assert "nothing suspicious" in diagnosis.verdict.summary
        assert "distdebug stacks" in diagnosis.verdict.remedy

    def test_survived(self, tmp_path):
        """
        A server that answered after all its errors works; what it survived
        stands below.
        """
        answers = "".join(
            f'INFO:  10.0.0.7:{port} - "POST /v1/completions HTTP/1.1" 200 OK\n'
            for port in range(40_000, 40_199)
        )
        (tmp_path / "server.log").write_text(
            f"{LOADING}INFO 02-20 02:05:10 [api_server.py:1] Starting vLLM API "
            "server 0 on http://0.0.0.0:8000\n"
            "INFO:     Application startup complete.\n"
            "Traceback (most recent call last):\n"
            '  File "/opt/vllm/serving.py", line 5, in check\n'
            f"ValueError: the prompt is too long\n{answers}"
        )

        diagnosis = diagnose(tmp_path)

        assert (Cause.HEALTHY, "possible") == (
            diagnosis.verdict.cause,
            diagnosis.verdict.confidence,
        )
        assert diagnosis.verdict.summary.startswith("the job survived all err")
        assert [Cause.RANK_CRASHED] == [x.cause for x in diagnosis.findings]

    @pytest.mark.parametrize(
        ("last", "is_told"),
        [
            # The clock of the log goes on, and the steps do not.
            ("10:11:20", True),
            ("10:05:00", False),
        ],
    )
    def test_idle(self, tmp_path, last, is_told):
        """
        Steps that stop are seen by the clock of the log itself.
        """
        steps = "".join(
            f"2026-03-01 10:00:0{second} INFO step {second} loss 1.2\n"
            for second in range(0, 8, 2)
        )
        (tmp_path / "train.log").write_text(
            f"{steps}2026-03-01 {last} INFO the scheduler still runs\n"
        )

        verdict = diagnose(tmp_path).verdict

        assert is_told == ("no step was made for 11 min" in verdict.summary)
        assert is_told == (Cause.UNKNOWN is verdict.cause)

    @pytest.mark.parametrize(
        ("last", "is_told"),
        [
            ("10:11:20", True),
            ("10:05:00", False),
            # As of a clock in another time zone.
            ("13:00:08", False),
        ],
    )
    def test_behind(self, tmp_path, last, is_told):
        """
        That all ranks are silent is seen by the clock of another log, and who
        stopped elsewhere by the last line of each.
        """
        for rank in range(6):
            (tmp_path / f"rank{rank}.log").write_text(
                "".join(
                    f"2026-03-01 10:00:0{second} INFO step {second} loss 1.{rank}"
                    f"\n2026-03-01 10:00:0{second} INFO fetch batch {second}\n"
                    for second in range(2, 8)
                )
                + (
                    ""
                    if rank == 3
                    else "2026-03-01 10:00:08 INFO backward 8\n"
                )
            )
        (tmp_path / "gpus.log").write_text(
            f"2026-03-01 10:00:01 power 600 W\n2026-03-01 {last} power 70 W\n"
        )

        verdict = diagnose(tmp_path).verdict

        assert is_told == ("no step was made for 11 min" in verdict.summary)
        assert (3,) * is_told == verdict.ranks
        assert is_told == ("only rank 3 ended at: " in verdict.summary)
        assert is_told == any(
            "fetch batch 7" in x.quote for x in verdict.evidence[:1]
        )

    def test_some_behind(self, tmp_path):
        """
        Where many ranks stopped elsewhere, none is named.
        """
        for rank in range(6):
            (tmp_path / f"rank{rank}.log").write_text(
                "2026-03-01 10:00:01 INFO step 1 loss 1.5\n"
                "2026-03-01 10:00:02 INFO step 2 loss 1.5\n"
                f"2026-03-01 10:00:03 INFO {('fetch', 'backward')[rank % 2]}\n"
            )
        (tmp_path / "gpus.log").write_text("2026-03-01 10:40:00 power 70 W\n")

        verdict = diagnose(tmp_path).verdict

        assert ("no step was made" in verdict.summary, ()) == (
            True,
            verdict.ranks,
        )

    @pytest.mark.parametrize(
        "end", ["training finished", "step 900/900 loss 1.1"]
    )
    def test_not_idle(self, tmp_path, end):
        """
        After the end of training no step is missed.
        """
        (tmp_path / "train.log").write_text(
            "2026-03-01 10:00:00 INFO step 898/900 loss 1.2\n"
            "2026-03-01 10:00:02 INFO step 899/900 loss 1.2\n"
            f"2026-03-01 10:00:04 INFO {end}\n"
            "2026-03-01 11:00:00 INFO uploaded\n"
        )

        assert diagnose(tmp_path).is_healthy

    def test_nothing(self, tmp_path):
        """
        A folder without any evidence is an error, as before.
        """
        (tmp_path / "model.py").write_text("x")

        with pytest.raises(NoDumpsError):
            diagnose(tmp_path)


TIMED_OUT = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/job/train.py", line 41, in <module>
[rank{rank}]:     exchange()
[rank{rank}]:   File "/job/train.py", line 17, in exchange
[rank{rank}]:     {code}
{more}\
[rank{rank}]: RuntimeError: [/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] \
Timed out waiting 10000ms for recv operation to complete
"""
INSIDE = """\
[rank{rank}]:   File "/lib/torch/distributed/distributed_c10d.py", line 2799, \
in recv
[rank{rank}]:     work.wait()
"""


LOST = (
    "[default{rank}]:[rank{rank}]: RuntimeError: [gloo/transport/tcp/pair.cc:537] "
    "Read error [127.0.0.1]:1607{rank}: Connection reset by peer.\n"
)
TORCHRUN = """\
W1128 11:20:30.737000 4281 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 4288 closing signal SIGTERM
E1128 11:20:30.936000 4281 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: {rank} (pid: 4290) of binary: /usr/bin/python3
"""


class TestLauncher:
    def test_killed(self, tmp_path):
        """
        The exit status that a launcher saw says more than who did not complain.
        """
        log = tmp_path / "torchrun.log"
        log.write_text(
            LOST.format(rank=2)
            + LOST.format(rank=0)
            + TORCHRUN.format(code=-9, rank=3)
        )

        diagnosis = diagnose(log)

        verdict = diagnosis.verdict
        assert (Cause.KILLED, (3,)) == (verdict.cause, verdict.ranks)
        assert not any((1,) == f.ranks for f in diagnosis.findings)
        assert "\nfollowed by: ranks 0,2: another process" in str(diagnosis)
        assert all(f.is_consequence for f in diagnosis.findings[1:])

    @pytest.mark.parametrize(("other", "ranks"), [(2, (2,)), (1, ())])
    def test_copy(self, tmp_path, other, ranks):
        """
        The output of torchrun repeats what the files of its ranks hold; that of
        another node has local ranks of its own.
        """
        folder = tmp_path / "logs/none_ab1/attempt_0/2"
        folder.mkdir(parents=True)
        lines = TRACE.replace("[rank2]: ", "")
        (folder / "stderr.log").write_text(lines)
        prefixed = "".join(
            f"[default{other}]:{x}\n" for x in lines.splitlines()
        )
        log = tmp_path / "torchrun.log"
        log.write_text(prefixed + TORCHRUN.format(code=1, rank=other))

        verdict = diagnose(tmp_path / "logs", log).verdict

        assert ranks == verdict.ranks

    def test_told_to_end(self, tmp_path):
        """
        A launcher that is told to end is no sign of a failed rank.
        """
        log = tmp_path / "torchrun.log"
        log.write_text(
            "W1128 11:31:02.100000 4842 torch/distributed/elastic/agent/server/"
            "api.py:1010] Received 15 death signal, shutting down workers\n"
        )

        assert "the launcher was told to end" in diagnose(log).verdict.summary


class TestTimedOut:
    @pytest.mark.parametrize(
        ("code", "more", "where"),
        [
            ("dist.recv(x, 1)", INSIDE, "rank {rank} is waiting in recv"),
            (
                "dist.irecv(x, 1).wait()",
                "",
                "rank {rank} is waiting in irecv in exchange (train.py:17)",
            ),
            (
                "dist.isend(x, 1).wait()",
                "",
                "rank {rank} is waiting in isend in exchange (train.py:17)",
            ),
            ("req.wait()", "", "rank {rank} in exchange (train.py:17)"),
        ],
        ids=["recv", "irecv", "isend", "handle"],
    )
    @pytest.mark.parametrize("rank", [0, 3])
    def test_one(self, tmp_path, code, more, where, rank):
        """
        A message that never came is reported as in the log, with the line at
        which it was waited for.
        """
        text = TIMED_OUT.format(
            rank=rank, code=code, more=more.format(rank=rank)
        )
        (tmp_path / "train.log").write_text(text)

        verdict = diagnose(tmp_path / "train.log").verdict

        assert Cause.COLLECTIVE_TIMEOUT is verdict.cause
        assert f"rank {rank} waited" in verdict.summary
        assert "within 10 s" in verdict.summary
        assert where.format(rank=rank) in verdict.summary
        assert ("exchange", 17) == (
            verdict.location.function,
            verdict.location.line,
        )

    def test_several(self, tmp_path):
        """
        Sends and receives are calls, and no collectives.
        """
        (tmp_path / "train.log").write_text(
            "".join(
                TIMED_OUT.format(rank=rank, code=code, more="")
                for rank, code in (
                    (0, "dist.irecv(x, 1).wait()"),
                    (2, "dist.isend(x, 1).wait()"),
                )
            )
        )

        verdict = diagnose(tmp_path / "train.log").verdict

        assert Cause.COLLECTIVE_TIMEOUT is verdict.cause
        assert "ranks 0,2 waited" in verdict.summary
        assert "ranks are in different calls" in verdict.summary

    @pytest.mark.parametrize(
        ("ranks", "where"), [((), None), ((1,), None)], ids=["who", "where"]
    )
    def test_nothing_to_add(self, ranks, where):
        """
        Stacks without a rank or a line add nothing.
        """
        timeout = finding(Cause.COLLECTIVE_TIMEOUT, 1)
        told = attrs.evolve(finding(Cause.UNKNOWN, *ranks), location=where)

        joined = join_logs(by_dumps(told), scanned(timeout))

        assert timeout == joined.verdict

    def test_last_words(self, tmp_path):
        """
        The stack that a process printed when it died is no hang.
        """
        (tmp_path / "train.log").write_text(
            "terminate called after throwing an instance of "
            "'gloo::EnforceNotMet'\n"
            "  what():  [enforce fail at /p/gloo/transport/tcp/pair.cc:456] "
            "op.preamble.length <= op.nbytes. 13064 vs 4. Received data size "
            "doesn't match expected size. Is there a distributed collective "
            "mismatch in your code?\n"
            "Fatal Python error: Aborted\n\n"
            "Thread 0x00007fc04c45fb80 (most recent call first):\n"
            '  File "/v/torch/distributed/distributed_c10d.py", line 3252 in '
            "all_reduce\n"
            '  File "/job/train.py", line 30 in mean_loss\n'
            '  File "/job/train.py", line 41 in <module>\n'
        )

        verdict = diagnose(tmp_path / "train.log").verdict

        assert Cause.SIZE_MISMATCH is verdict.cause
        assert "sent more bytes than it waits for" in verdict.summary
        assert "(13064 vs 4)" in verdict.summary
        assert "mean_loss (train.py:30)" in verdict.summary

    def test_alive(self):
        """
        A rank that was seen to wait is not dead, whatever its log contains.
        """
        timeout = finding(Cause.COLLECTIVE_TIMEOUT, 1)
        told = finding(Cause.COLLECTIVE_WAIT, 1)

        joined = join_logs(by_dumps(told), scanned(timeout), alive={1})

        assert told == joined.verdict


class TestOrder:
    def test_kinds(self):
        """
        Deaths, then causes, then what follows, then what is only possible.
        """
        death = Death(
            kind="native_crash", pid=7, worker_id="a" * 56, is_first=True
        )
        raised = Failure(
            kind="task_error", line=1, error="ValueError", function="f"
        )
        cause = finding(Cause.DISK_FULL, line=1)
        follower = finding(Cause.KILLED, line=2)
        timeout = finding(Cause.COLLECTIVE_TIMEOUT, line=3)
        node = finding(Cause.GPU_FAULT, line=4)
        maybe = finding(Cause.IO_WAIT, line=5, confidence="possible")
        note = finding(Cause.HEALTHY, line=6)
        stall = finding(Cause.START_UP_STALLED, line=7)
        quoted = finding(Cause.NATIVE_CRASH, line=8)
        logs = scanned(
            *(timeout, follower, cause),
            deaths=Deaths(deaths=(death,)),
            drivers=(DriverLog(path="d.log", failures=(raised,)),),
            nodes=(note, maybe, node),
            phase=PhaseReport(findings=(quoted, stall)),
            groups={
                ("a.log", "line 1"): group(Cause.DISK_FULL, line=1),
                ("a.log", "line 2"): group(Cause.KILLED, line=2, priority=3),
            },
        )

        found = log_findings(logs)

        assert [
            *(Cause.NATIVE_CRASH, Cause.RANK_CRASHED, Cause.DISK_FULL),
            *(Cause.GPU_FAULT, Cause.COLLECTIVE_TIMEOUT, Cause.KILLED),
            *(Cause.START_UP_STALLED, Cause.IO_WAIT),
        ] == [f.cause for f in found]

    @pytest.mark.parametrize(
        ("cause", "told", "count"),
        [
            (Cause.NATIVE_CRASH, {"files": ("/s/w-7.err",)}, 1),
            (Cause.NATIVE_CRASH, {"origins": (Origin(pid=7),)}, 1),
            (Cause.NATIVE_CRASH, {"origins": (Origin(pid=8),)}, 2),
            (Cause.NATIVE_CRASH, {}, 2),
            (Cause.GPU_FAULT, {"origins": (Origin(pid=7),)}, 2),
        ],
        ids=["file", "prefix", "other", "untold", "other cause"],
    )
    def test_last_words(self, cause, told, count):
        """
        Last words of a process whose death is known are not reported again,
        unless they may be the cause.
        """
        death = Death(
            kind="native_crash",
            pid=7,
            worker_id="a" * 56,
            is_first=True,
            log=Path("/s/w-7.err"),
        )
        logs = scanned(
            finding(cause),
            deaths=Deaths(deaths=(death,)),
            groups={("a.log", "line 1"): group(cause, line=1, **told)},
        )

        assert count == len(log_findings(logs))

    def test_driver_knows_less(self):
        """
        A death that the cluster reports is not reported by the driver again.
        """
        death = Death(
            kind="native_crash", pid=7, worker_id="a" * 56, is_first=True
        )
        failures = [
            Failure(kind="actor_died", line=1, pid=7),
            Failure(kind="actor_died", line=2, pid=8),
            Failure(kind="task_error", line=3, pid=7, error="ValueError"),
        ]
        logs = scanned(
            deaths=Deaths(deaths=(death,)),
            drivers=(DriverLog(path="d.log", failures=tuple(failures)),),
        )

        assert [Cause.NATIVE_CRASH, Cause.ACTOR_DIED, Cause.RANK_CRASHED] == [
            f.cause for f in log_findings(logs)
        ]

    @pytest.mark.parametrize(("priority", "first"), [(1, 1), (2, 0), (4, 0)])
    def test_network(self, priority, first):
        """
        A link that broke is a cause, a connection that was closed is none.
        """
        told = finding(Cause.NETWORK_FAILURE, line=1)
        other = finding(Cause.DISK_FULL, line=2)
        lines = group(Cause.NETWORK_FAILURE, line=1, priority=priority)
        logs = scanned(told, other, groups={("a.log", "line 1"): lines})

        assert (told, other)[1 - first] == log_findings(logs)[0]

    def test_once(self):
        """
        A line is reported once, by the most specific finding.
        """
        bare = attrs.evolve(finding(Cause.KILLED), evidence=())
        logs = scanned(
            finding(Cause.DISK_FULL), finding(Cause.RANK_CRASHED), bare
        )

        found = log_findings(logs)

        assert [Cause.DISK_FULL, Cause.KILLED] == [f.cause for f in found]


def joined(told, *findings, priority=None, alive=(), victims=(), **options):
    """
    The diagnosis of dumps with one finding, joined with that of logs with
    several; *priority* is that of the lines of the logs.
    """
    groups = {}
    for number, found in enumerate(findings if priority else (), 1):
        seen = found.evidence[0]
        line = group(found.cause, line=number, priority=priority)
        groups[seen.source, seen.location] = line
    return join_logs(
        by_dumps(told, victims=victims),
        scanned(*findings, groups=groups, **options),
        alive=alive,
    )


class TestJoin:
    def test_lost_connections(self):
        """
        A rank that was killed explains why the others lost their connections.
        """
        told = finding(Cause.NETWORK_FAILURE, 0, source="sidecar")
        killed = finding(Cause.KILLED, 3, line=2)

        got = joined(told, finding(Cause.KILLED), killed, priority=3)

        assert (Cause.KILLED, (3,)) == (got.verdict.cause, got.verdict.ranks)

    @pytest.mark.parametrize(
        ("cause", "ranks", "is_news"),
        [
            (Cause.SIZE_MISMATCH, (), False),
            (Cause.SIZE_MISMATCH, (1,), True),
            (Cause.GPU_OUT_OF_MEMORY, (), True),
        ],
    )
    def test_mismatch(self, cause, ranks, is_news):
        """
        That ranks differ is no news where it is known which one does.
        """
        told = finding(Cause.SKIPPED_COLLECTIVE, 3, source="dump")

        got = joined(told, finding(cause, *ranks, line=2), priority=1)

        assert told == got.verdict
        assert is_news == (len(got.findings) > 1)

    def test_exit_status(self):
        """
        The launcher's report of a rank without a dump is part of its finding.
        """
        told = finding(Cause.RANK_CRASHED, 2, source="dump")
        report = finding(Cause.RANK_CRASHED, 2, line=2)

        verdict = joined(told, report, priority=4).verdict

        assert "; because " in verdict.summary
        assert report.evidence[0] in verdict.evidence

    @pytest.mark.parametrize(
        ("told", "fatal", "is_verdict"),
        [
            # Whom torch itself names is not open any more; that somebody
            # waited, the dumps say themselves.
            (Cause.COLLECTIVE_TIMEOUT, Cause.RANK_NOT_ARRIVED, True),
            (Cause.COLLECTIVE_TIMEOUT, Cause.COLLECTIVE_TIMEOUT, False),
            # A failure comes before a rank that was slow.
            (Cause.STRAGGLER, Cause.RANK_NOT_ARRIVED, True),
            (Cause.STRAGGLER, Cause.DISK_FULL, True),
            # Where dumps tell nothing, logs decide.
            (Cause.UNKNOWN, Cause.KILLED, True),
            (Cause.HEALTHY, Cause.KILLED, True),
        ],
    )
    def test_open(self, told, fatal, is_verdict):
        """
        Logs decide where dumps leave open what is wrong.
        """
        told, fatal = finding(told, source="dump"), finding(fatal, 1)

        got = joined(told, fatal, victims=(0, 1))

        assert (fatal if is_verdict else told) == got.verdict
        assert (0,) == got.victims or not is_verdict

    @pytest.mark.parametrize("alive", [(), (1,)])
    def test_killed_at_rest(self, alive):
        """
        A job of which a rank was killed is not healthy, unless it is seen alive.
        """
        told = finding(Cause.HEALTHY, source="dump")
        killed = finding(Cause.KILLED, 1)

        got = joined(told, killed, priority=3, alive=alive)

        assert (told if alive else killed) == got.verdict
        assert killed in got.findings

    def test_lost_and_killed(self):
        """
        That a rank was killed makes sure that it did not merely leave no dump.
        """
        told = finding(Cause.RANK_CRASHED, 1, confidence="possible")
        killed = finding(Cause.KILLED, 1, confidence="likely")

        got = joined(told, killed, priority=3)

        assert ("likely", Cause.KILLED) == (
            *(got.verdict.confidence, got.verdict.detail_cause),
        )

    def test_waited_for(self):
        """
        The rank that is waited for is reported with its death.
        """
        told = finding(Cause.RANK_NOT_ARRIVED, 2, source="dump")
        fatal = finding(Cause.GPU_OUT_OF_MEMORY, 2)
        fatal = attrs.evolve(fatal, summary="rank 2: the GPU was full")
        other = finding(Cause.DISK_FULL, 1, line=9)

        got = joined(told, other, fatal, victims=(0, 1))

        verdict = got.verdict
        assert Cause.RANK_NOT_ARRIVED is verdict.cause
        assert Cause.GPU_OUT_OF_MEMORY is verdict.detail_cause
        assert verdict.summary.endswith("; because rank 2: the GPU was full")
        assert (verdict, other) == got.findings
        assert (0, 1) == got.victims

    @pytest.mark.parametrize(
        ("ranks", "fatal", "summary"),
        [
            # Of several ranks, the one that is known to have died is named.
            ((2, 3), (3,), "; because rank 3: it was killed"),
            # A death without a rank may be that of the one without a dump.
            ((2,), (), "; perhaps because it was killed"),
        ],
    )
    def test_because(self, ranks, fatal, summary):
        """
        The summary of a rank without a dump has the reason.
        """
        told = finding(Cause.RANK_CRASHED, *ranks, source="dump")

        got = joined(told, finding(Cause.KILLED, *fatal))

        assert summary in got.verdict.summary

    @pytest.mark.parametrize(("priority", "is_told"), [(3, True), (4, False)])
    def test_killed(self, priority, is_told):
        """
        A rank without a dump was killed; a kill by the launcher explains
        nothing.
        """
        told = finding(Cause.RANK_CRASHED, 2, source="dump")

        got = joined(told, finding(Cause.KILLED, 2), priority=priority)

        assert is_told == (got.verdict.detail_cause is Cause.KILLED)

    @pytest.mark.parametrize(
        ("fatal", "alive"),
        [
            (finding(Cause.KILLED, 3), ()),
            (finding(Cause.KILLED), ()),
            (finding(Cause.KILLED, 2), {2}),
            (finding(Cause.KILLED, 2, confidence="possible"), ()),
            (finding(Cause.LOSS_NOT_FINITE, 2), ()),
            (finding(Cause.KILLED, 2), ()),
        ],
        ids=[
            *("other", "nameless", "alive", "possible", "not fatal"),
            "killed afterwards",
        ],
    )
    def test_unrelated(self, fatal, alive):
        """
        What need not be about the rank that is waited for comes behind.
        """
        told = finding(Cause.RANK_NOT_ARRIVED, 2, source="dump")

        got = joined(told, fatal, alive=alive)

        is_told = fatal.confidence != "possible"
        assert told == got.verdict
        assert ((told, fatal) if is_told else (told,)) == got.findings

    def test_known_already(self):
        """
        What the stack of a rank shows is not replaced by its end.
        """
        told = finding(Cause.RANK_NOT_ARRIVED, 2, source="dump")
        told = attrs.evolve(told, detail_cause=Cause.DATALOADER_WAIT)

        assert told == joined(told, finding(Cause.DISK_FULL, 2)).verdict

    def test_ended_well(self):
        """
        A job that ended well is healthy, whatever it printed on its way.
        """
        told, fatal = finding(Cause.HEALTHY), finding(Cause.KILLED, 1, line=2)

        got = join_logs(
            by_dumps(told), scanned(fatal), has_exited_cleanly=True
        )

        assert told == got.verdict

    def test_missing(self):
        """
        Logs that could not be read are reported as well.
        """
        lost = Missing(what="log", reason="gone")
        told = finding(Cause.RANK_NOT_ARRIVED, 2)

        got = joined(told, missing=(lost,))

        assert (lost,) == got.missing
        assert told == got.verdict

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
    def test_real_dumps(self, tmp_path, encoding):
        """
        Dumps name the rank, the log beside them why it did not arrive; an
        unreadable log costs nothing of what the dumps show.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 1, 3])
        make_dumps(tmp_path, job)
        log = tmp_path / "train.log"
        log.write_text(MEMORY, encoding=encoding)

        got = diagnose(tmp_path)

        is_read = encoding == "utf-8"
        lost = [x.source for x in got.missing if "UTF-16" in x.reason]
        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (
            got.verdict.cause,
            got.verdict.ranks,
        )
        assert is_read == (got.verdict.detail_cause is not None)
        assert ([] if is_read else [str(log)]) == lost


class TestRead:
    def test_node(self, tmp_path, write_stack):
        """
        What the kernel said of a GPU is found in a snapshot.
        """
        write_facts(
            tmp_path / "n1",
            schema=1,
            taken=1.77e9,
            machine={"booted": 1.7e9},
            kernel=[XID],
        )
        write_stack(tmp_path / "n1", 3, STEP, host="n1", pid=4711)

        logs = read_logs(tmp_path)

        assert logs.is_any
        assert Cause.GPU_FAULT in {f.cause for f in logs.nodes}
        assert {(3,)} == {f.ranks for f in logs.nodes if f.ranks}

    @pytest.mark.parametrize(
        ("workers", "begun", "expected"),
        [
            ('[{"start_ticks": 500000}]', None, set()),
            ('[{"start_ticks": 1000}, {}, 7]', None, {OUT_OF_MEMORY}),
            ("{", None, {OUT_OF_MEMORY}),
            ("[]", None, {OUT_OF_MEMORY}),
            # Dumps tell, too, when the job began.
            ("[]", 1.7e9 + 5000, set()),
            # A worker that began before is that of another job.
            ('[{"start_ticks": 1000}]', 1.7e9 + 5000, set()),
        ],
        ids=["before", "during", "broken", "nobody", "dumps", "other job"],
    )
    def test_before_the_job(
        self, tmp_path, write_side, *, workers, begun, expected
    ):
        """
        What the kernel did before the job began is none of its business.
        """
        line = "Out of memory: Killed process 7 (python) total-vm:9kB"
        write_facts(
            tmp_path / "n1",
            taken=1.7e9 + 6000,
            machine={"booted": 1.7e9},
            kernel=[f"{1.7e9 + 900} localhost kernel: {line}"],
        )
        (tmp_path / "n1" / "workers.json").write_text(workers)
        (tmp_path / "train.log").write_text("x")
        if begun:
            write_side(tmp_path, 0, size=1, started=begun, written=begun)

        logs = read_logs(tmp_path)

        assert expected == {f.cause for f in logs.nodes}

    @pytest.mark.parametrize("text", ["{", "[]", "[" * 10_000])
    def test_bad_facts(self, tmp_path, text):
        """
        Facts that are none cost nothing else.
        """
        (tmp_path / "node.json").write_text(text)
        (tmp_path / "train.log").write_text(TRACE)

        logs = read_logs(tmp_path)

        assert () == logs.nodes
        assert ["facts of node"] == [m.what for m in logs.missing]
        assert logs.scan.findings

    @pytest.mark.parametrize("place", [", ip=192.0.2.2", ""])
    def test_rank_by_watchdog(self, tmp_path, place):
        """
        A process that died has the rank that its watchdog printed.
        """
        shutil.copytree(RAY, tmp_path / "ray")
        prefix = f"(SglEngine pid=1339{place}) "
        (tmp_path / "train.log").write_text(prefix + WATCHDOG.format(rank=3))

        verdict = diagnose(tmp_path).verdict

        assert (Cause.NATIVE_CRASH, (3,)) == (verdict.cause, verdict.ranks)

    @pytest.mark.parametrize(
        ("ranks", "expected"),
        [
            ({("192.0.2.2", 1339): 4, ("n2", 1339): 5}, 4),
            ({("n2", 1339): 5}, 5),
            ({("n2", 1339): 5, ("n3", 1339): 6}, None),
            ({("192.0.2.2", 1338): 3}, None),
        ],
    )
    def test_rank_by_stack(self, tmp_path, ranks, expected, write_stack):
        """
        A process that died has the rank of its dump or stack; a rank that the
        cluster knows stays.
        """
        shutil.copytree(RAY, tmp_path / "ray")
        for (host, pid), rank in {**ranks, ("192.0.2.2", 1246): 9}.items():
            write_stack(tmp_path, rank, STEP, host=host, pid=pid)

        deaths = {x.pid: x.rank for x in read_logs(tmp_path).deaths.deaths}

        assert (expected, 0) == (deaths[1339], deaths[1246])

    def test_wrong_python(self, tmp_path):
        """
        Workers that nsys started by another Python never register.
        """
        (session_in(tmp_path) / "raylet.err").write_text(
            "Program not found: python\n"
            "Some workers of the worker process(7) have not registered within "
            "the timeout.\n"
        )

        verdict = diagnose(tmp_path).verdict

        assert Cause.NSIGHT_WRONG_PYTHON is verdict.cause

    def test_raylet_unreadable(self, tmp_path):
        """
        A log of a raylet that cannot be read costs nothing else.
        """
        shutil.copytree(RAY, tmp_path / "ray")
        log = next(tmp_path.rglob("session_*/logs")) / "raylet.err"
        log.write_text("Program not found: python", "utf-16")

        logs = read_logs(tmp_path)

        assert any(
            x.source == str(log) and "UTF-16" in x.reason for x in logs.missing
        )
        assert logs.deaths.first

    def test_killed_by_kernel(self, tmp_path):
        """
        A process that the kernel killed for want of memory did not just
        vanish.
        """
        shutil.copytree(RAY, tmp_path / "ray")
        line = "Out of memory: Killed process 1369 (ray::Killed) total-vm:9kB"
        write_facts(
            tmp_path / "192.0.2.2",
            kernel=[f"1795317657.1 localhost kernel: {line}"],
        )

        logs = read_logs(tmp_path)

        assert [1369] == [
            x.pid for x in logs.deaths.deaths if x.kind == "host_oom"
        ]

    def test_variables(self, tmp_path):
        """
        Variables of workers are compared with the interfaces of their nodes.
        """
        variables = {"NCCL_SOCKET_IFNAME": "=ib7"}
        write_facts(
            tmp_path,
            variables=[{"pids": [7], "variables": variables}],
            interfaces=[{"name": "eth0", "addresses": ["10.0.0.2/24"]}],
        )

        logs = read_logs(tmp_path)

        assert Cause.NETWORK_MISCONFIGURED in {f.cause for f in logs.nodes}

    def test_line_break(self, tmp_path):
        """
        A name with a line break in it is a name.
        """
        log = tmp_path / "a\nb.log"
        log.write_text(TRACE)

        assert read_logs(os.fspath(log)).scan.findings

    def test_driver(self, tmp_path):
        """
        The log of a Ray driver shows methods that raised.
        """
        (tmp_path / "quiet.log").write_text("ray::\n")
        (tmp_path / "driver.log").write_text(
            "ray.exceptions.RayTaskError(ValueError): ray::Trainer.step() "
            f"(pid=4711, ip=10.0.0.2, actor_id={'a' * 32}, repr=Trainer)\n"
            '  File "/job/train.py", line 17, in step\n'
            "ValueError: the shard is empty\n"
        )

        logs = read_logs(tmp_path)

        assert ["task_error"] == [
            failure.kind for one in logs.drivers for failure in one.failures
        ]


def test_rank_of_header(tmp_path):
    """
    Where names of logs show no rank, the first lines do, for all readers.
    """
    memory = MEMORY.partition(": ")[2]
    (tmp_path / "a.log").write_text("Rank 0/2\nstep 1\n")
    (tmp_path / "b.log").write_text(f"Rank 1/2\nstep 1\n{memory}")

    verdict = diagnose(tmp_path).findings[0]

    assert (Cause.GPU_OUT_OF_MEMORY, (1,)) == (verdict.cause, verdict.ranks)


def test_linked_folder(tmp_path):
    """
    A link out of the folder is told of, and read where it is named.
    """
    node = tmp_path / "elsewhere"
    node.mkdir()
    make_dumps(tmp_path / "hang", SimulatedJob(2))
    (node / "rank1.log").write_text(MEMORY.replace("rank2", "rank1"))
    link = tmp_path / "hang" / "node1"
    link.symlink_to(node)

    alone, both = diagnose(link.parent), diagnose(link.parent, link)

    assert any("node1" in m.reason for m in alone.missing)
    assert Cause.GPU_OUT_OF_MEMORY in {f.cause for f in both.findings}


def test_lasting_loss(tmp_path):
    """
    A job may be completed, and its loss is not a number all the same; an error of
    another process that it survived does not count.
    """
    (tmp_path / "driver.log").write_text(
        "Job 'raysubmit_1' running\nJob 'raysubmit_1' succeeded\n"
    )
    rank = tmp_path / "rank1.log"

    rank.write_text("OSError: [Errno 28] No space left on device\n")
    survived = diagnose(tmp_path).verdict
    rank.write_text("{'loss': nan, 'grad_norm': nan, 'epoch': 0.1}\n" * 3)
    lasting = diagnose(tmp_path).verdict

    assert Cause.HEALTHY is survived.cause
    assert (Cause.LOSS_NOT_FINITE, (1,)) == (lasting.cause, lasting.ranks)
