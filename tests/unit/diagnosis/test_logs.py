"""
What logs add to a diagnosis, and what they tell alone.
"""

from __future__ import annotations

import json
import os
import shutil

from pathlib import Path

import attrs
import pytest

from distdebug._lines import Origin
from distdebug.diagnosis import LogEvidence, diagnose
from distdebug.diagnosis.logs import places as places_module
from distdebug.diagnosis.logs import read as read_module
from distdebug.diagnosis.logs.join import diagnose_logs, join_logs
from distdebug.diagnosis.logs.order import log_findings
from distdebug.diagnosis.logs.places import find_places
from distdebug.diagnosis.logs.read import read_logs
from distdebug.errors import NoDumpsError
from distdebug.findings import Cause, Diagnosis, Evidence, Finding, Missing
from distdebug.logscan import Hit, LogGroup, ScanReport
from distdebug.raylogs import Death, Deaths, DriverLog, Failure
from distdebug.startup import PhaseReport, PhaseState
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
MEMORY = (
    "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
    "2.00 GiB. GPU 2 has a total capacity of 79.15 GiB\n"
)


DATA = Path(__file__).parents[2] / "data" / "ray_sessions"
RAY = DATA / "2.40.0" / "actors"
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
        summary=f"it was {cause}.",
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
    What logs tell, if only single lines tell anything.
    """
    return LogEvidence(
        is_any=True, scan=ScanReport(findings=findings), **kwargs
    )


def by_dumps(*findings, victims=()):
    """
    What dumps tell.
    """
    return Diagnosis(verdict=findings[0], findings=findings, victims=victims)


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
            (tmp_path / name).write_text("x")

        found = find_places([tmp_path])

        assert sorted(names[:8]) == sorted(path.name for path in found.logs)
        assert () == found.missing

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

        assert ((path,) if is_log else ()) == find_places([path]).logs

    def test_unreadable(self, tmp_path, monkeypatch):
        """
        What cannot be opened is no log.
        """

        def refuse(*_):
            raise PermissionError(13, "Permission denied")

        (tmp_path / "train").write_text("x")
        monkeypatch.setattr(places_module, "open_ordinary", refuse)

        assert () == find_places([tmp_path / "train"]).logs

    def test_missing(self, tmp_path):
        """
        A log that is not there is told, a dump is not: others do that.
        """
        found = find_places([tmp_path / "a.log", tmp_path / "dump_rank_0"])

        assert [str(tmp_path / "a.log")] == [m.source for m in found.missing]

    def test_session(self, tmp_path):
        """
        The logs of a Ray session are those of its workers, not any log.
        """
        logs = tmp_path / "session_2026-02-20_02-03-57_123456_4711" / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.out").write_text("x")
        (tmp_path / "driver.log").write_text("x")

        found = find_places([tmp_path])

        assert [logs.resolve()] == [s.logs.resolve() for s in found.sessions]
        assert [tmp_path / "driver.log"] == list(found.logs)

    def test_nodes(self, tmp_path):
        """
        The facts of a snapshot are found by the names of its nodes.
        """
        for host in ("n1", "n2"):
            (tmp_path / host).mkdir()
            (tmp_path / host / "node.json").write_text("{}")

        found = find_places([tmp_path])
        one = find_places([tmp_path / "n1"])

        assert ["n1", "n2"] == sorted(host for host, _ in found.nodes)
        assert [("n1", tmp_path / "n1" / "node.json")] == list(one.nodes)


class TestAlone:
    def test_exception(self, tmp_path):
        """
        Who raised comes first; who only waited in vain is told as waiting.
        """
        waiting = "".join(WATCHDOG.format(rank=r) for r in (0, 1, 3))
        (tmp_path / "train.log").write_text(TRACE + waiting)

        diagnosis = diagnose(tmp_path)

        verdict = diagnosis.verdict
        assert (Cause.RANK_CRASHED, (2,)) == (verdict.cause, verdict.ranks)
        assert "the shard is empty" in verdict.summary
        assert (0, 1, 3) == diagnosis.victims
        assert "only logs" in diagnosis.missing[0].reason

    def test_watchdog(self, tmp_path):
        """
        Without a cause, whoever is missing among those that wait is named.
        """
        waiting = "".join(WATCHDOG.format(rank=r) for r in (0, 1, 3))
        (tmp_path / "train.log").write_text(waiting)

        diagnosis = diagnose(tmp_path / "train.log")

        assert (0, 1, 3) == diagnosis.victims
        assert not diagnosis.is_healthy

    def test_quiet(self, tmp_path):
        """
        A log without anything wrong says nothing about a job that hangs.
        """
        (tmp_path / "train.log").write_text("hello\n")

        diagnosis = diagnose(tmp_path)

        assert Cause.UNKNOWN is diagnosis.verdict.cause
        assert "distdebug stacks" in diagnosis.verdict.remedy

    def test_ended(self):
        """
        A job that says that it came to its end is healthy.
        """
        training = PhaseState(name="t", title="training", framework="x")
        phase = PhaseReport(
            current=training, ended="completed", verdict="training is done"
        )

        diagnosis = diagnose_logs(LogEvidence(is_any=True, phase=phase))

        assert diagnosis.is_healthy
        assert "training is done" in diagnosis.verdict.summary

    def test_going(self):
        """
        How far a job came is told with the unknown.
        """
        loading = PhaseState(name="l", title="loading", framework="x")
        phase = PhaseReport(current=loading, verdict="loading, 40 %")

        diagnosis = diagnose_logs(LogEvidence(is_any=True, phase=phase))

        assert Cause.UNKNOWN is diagnosis.verdict.cause
        assert diagnosis.verdict.summary.endswith("wrong: loading, 40 %")

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
        A message that never came is told as the log tells it, with the line
        at which it was waited for.
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
        Stacks that tell neither who nor where add nothing.
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
        Who was seen to wait is not dead of what its log tells.
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
        What somebody printed whose death is told is not told again, but for
        what may be its cause.
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
        A death that the cluster tells is not told by the driver again.
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
        A line is told once, by what knows most of it.
        """
        bare = attrs.evolve(finding(Cause.KILLED), evidence=())
        logs = scanned(
            finding(Cause.DISK_FULL), finding(Cause.RANK_CRASHED), bare
        )

        found = log_findings(logs)

        assert [Cause.DISK_FULL, Cause.KILLED] == [f.cause for f in found]


class TestJoin:
    def test_lost_connections(self):
        """
        Who was killed explains why the others lost their connections.
        """
        told = finding(Cause.NETWORK_FAILURE, 0, source="sidecar")
        nameless = finding(Cause.KILLED, line=1)
        killed = finding(Cause.KILLED, 3, line=2)
        groups = {
            ("a.log", f"line {n}"): group(Cause.KILLED, line=n, priority=3)
            for n in (1, 2)
        }

        got = join_logs(
            by_dumps(told), scanned(nameless, killed, groups=groups)
        )

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
        line = group(cause, line=2)
        logs = scanned(
            finding(cause, *ranks, line=2), groups={("a.log", "line 2"): line}
        )

        got = join_logs(by_dumps(told), logs)

        assert told == got.verdict
        assert is_news == (len(got.findings) > 1)

    def test_exit_status(self):
        """
        What the launcher reports of a rank without a dump is told with it.
        """
        told = finding(Cause.RANK_CRASHED, 2, source="dump")
        report = finding(Cause.RANK_CRASHED, 2, line=2)
        lines = group(Cause.RANK_CRASHED, line=2, priority=4)
        logs = scanned(report, groups={("a.log", "line 2"): lines})

        verdict = join_logs(by_dumps(told), logs).verdict

        assert "; because " in verdict.summary
        assert report.evidence[0] in verdict.evidence

    def test_named_by_torch(self):
        """
        Whom torch itself names is not open any more; that somebody waited,
        the dumps say themselves.
        """
        told = finding(Cause.COLLECTIVE_TIMEOUT, source="sidecar")
        named = finding(Cause.RANK_NOT_ARRIVED, 2)
        waited = finding(Cause.COLLECTIVE_TIMEOUT, 1)

        assert named == join_logs(by_dumps(told), scanned(named)).verdict
        assert told == join_logs(by_dumps(told), scanned(waited)).verdict

    @pytest.mark.parametrize(
        "cause", [Cause.RANK_NOT_ARRIVED, Cause.DISK_FULL]
    )
    def test_slow(self, cause):
        """
        A failure comes before a rank that was slow.
        """
        told = finding(Cause.STRAGGLER, 0, source="dump")

        got = join_logs(by_dumps(told), scanned(finding(cause, 2)))

        assert (cause, (2,)) == (got.verdict.cause, got.verdict.ranks)

    def test_waited_for(self):
        """
        The rank that is waited for is told with what became of it.
        """
        told = finding(Cause.RANK_NOT_ARRIVED, 2, source="dump")
        fatal = finding(Cause.GPU_OUT_OF_MEMORY, 2)
        fatal = attrs.evolve(fatal, summary="Rank 2: the GPU was full.")
        other = finding(Cause.DISK_FULL, 1, line=9)

        got = join_logs(by_dumps(told, victims=(0, 1)), scanned(other, fatal))

        verdict = got.verdict
        assert Cause.RANK_NOT_ARRIVED is verdict.cause
        assert Cause.GPU_OUT_OF_MEMORY is verdict.detail_cause
        assert verdict.summary.endswith("; because rank 2: the GPU was full")
        assert (verdict, other) == got.findings
        assert (0, 1) == got.victims

    def test_several(self):
        """
        Of several ranks, the one that is known to have died is named.
        """
        told = finding(Cause.RANK_CRASHED, 2, 3, source="dump")

        got = join_logs(by_dumps(told), scanned(finding(Cause.KILLED, 3)))

        assert "because rank 3: it was killed" in got.verdict.summary

    @pytest.mark.parametrize(("priority", "is_told"), [(3, True), (4, False)])
    def test_killed(self, priority, is_told):
        """
        Who left no dump was killed; what a launcher did to it tells nothing.
        """
        told = finding(Cause.RANK_CRASHED, 2, source="dump")
        lines = group(Cause.KILLED, line=1, priority=priority)
        logs = scanned(
            finding(Cause.KILLED, 2), groups={("a.log", "line 1"): lines}
        )

        verdict = join_logs(by_dumps(told), logs).verdict

        assert is_told == (verdict.detail_cause is Cause.KILLED)

    def test_nameless(self):
        """
        A death without a rank may be that of the rank that left no dump.
        """
        told = finding(Cause.RANK_CRASHED, 2, source="dump")

        got = join_logs(by_dumps(told), scanned(finding(Cause.KILLED)))

        assert "; perhaps because it was killed" in got.verdict.summary

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

        got = join_logs(by_dumps(told), scanned(fatal), alive=alive)

        is_told = fatal.confidence != "possible"
        assert told == got.verdict
        assert ((told, fatal) if is_told else (told,)) == got.findings

    def test_known_already(self):
        """
        What the stack of a rank shows is not replaced by its end.
        """
        told = finding(Cause.RANK_NOT_ARRIVED, 2, source="dump")
        told = attrs.evolve(told, detail_cause=Cause.DATALOADER_WAIT)

        got = join_logs(by_dumps(told), scanned(finding(Cause.DISK_FULL, 2)))

        assert told == got.verdict

    @pytest.mark.parametrize("cause", [Cause.UNKNOWN, Cause.HEALTHY])
    def test_open(self, cause):
        """
        Where dumps tell nothing, logs decide.
        """
        told, fatal = finding(cause, source="dump"), finding(Cause.KILLED, 1)

        got = join_logs(by_dumps(told, victims=(0, 1)), scanned(fatal))

        assert fatal == got.verdict
        assert (0,) == got.victims

    def test_ended_well(self):
        """
        A job that ended well is healthy, whatever it printed on its way.
        """
        told, fatal = finding(Cause.HEALTHY), finding(Cause.KILLED, 1, line=2)

        got = join_logs(by_dumps(told), scanned(fatal), has_ended_well=True)

        assert told == got.verdict

    def test_missing(self):
        """
        What could not be read of the logs is told as well.
        """
        lost = Missing(what="log", reason="gone")
        told = finding(Cause.RANK_NOT_ARRIVED, 2)

        got = join_logs(by_dumps(told), scanned(missing=(lost,)))

        assert (lost,) == got.missing
        assert told == got.verdict

    def test_real_dumps(self, tmp_path):
        """
        Dumps name the rank, the log beside them why it did not arrive.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 1, 3])
        make_dumps(tmp_path, job)
        (tmp_path / "train.log").write_text(MEMORY)

        verdict = diagnose(tmp_path).verdict

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)
        assert Cause.GPU_OUT_OF_MEMORY is verdict.detail_cause

    def test_unreadable_log(self, tmp_path):
        """
        A log that cannot be read costs nothing of what the dumps tell.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce")
        job.collective("all_reduce", ranks=[0, 1, 3])
        make_dumps(tmp_path, job)
        log = tmp_path / "train.log"
        log.write_text(MEMORY, encoding="utf-16")

        got = diagnose(tmp_path)

        assert (2,) == got.verdict.ranks
        assert [str(log)] == [
            one.source for one in got.missing if "UTF-16" in one.reason
        ]


class TestRead:
    def test_node(self, tmp_path):
        """
        What the kernel said of a GPU is found in a snapshot.
        """
        facts = {
            "schema": 1,
            "taken": 1.77e9,
            "machine": {"booted": 1.7e9},
            "kernel": [XID],
        }
        (tmp_path / "n1").mkdir()
        (tmp_path / "n1" / "node.json").write_text(json.dumps(facts))

        logs = read_logs([tmp_path], ranks={("n1", 4711): 3})

        assert logs.is_any
        assert Cause.GPU_FAULT in {f.cause for f in logs.nodes}
        assert {(3,)} == {f.ranks for f in logs.nodes if f.ranks}

    @pytest.mark.parametrize(
        ("workers", "expected"),
        [
            ('[{"start_ticks": 500000}]', set()),
            ('[{"start_ticks": 1000}, {}, 7]', {Cause.HOST_OUT_OF_MEMORY}),
            ("{", {Cause.HOST_OUT_OF_MEMORY}),
            ("[]", {Cause.HOST_OUT_OF_MEMORY}),
        ],
        ids=["before", "during", "broken", "nobody"],
    )
    def test_before_the_job(self, tmp_path, workers, expected):
        """
        What the kernel did before the job began is none of its business.
        """
        line = "Out of memory: Killed process 7 (python) total-vm:9kB"
        facts = {
            "taken": 1.7e9 + 6000,
            "machine": {"booted": 1.7e9},
            "kernel": [f"{1.7e9 + 900} localhost kernel: {line}"],
        }
        (tmp_path / "n1").mkdir()
        (tmp_path / "n1" / "node.json").write_text(json.dumps(facts))
        (tmp_path / "n1" / "workers.json").write_text(workers)

        logs = read_logs([tmp_path])

        assert expected == {f.cause for f in logs.nodes}
        # Dumps tell, too, when the job began.
        assert not read_logs([tmp_path], since=1.7e9 + 5000).nodes or (
            workers.startswith('[{"start_ticks": 1000}')
        )

    @pytest.mark.parametrize("text", ["{", "[]", "[" * 10_000])
    def test_bad_facts(self, tmp_path, text):
        """
        Facts that are none cost nothing else.
        """
        (tmp_path / "node.json").write_text(text)
        (tmp_path / "train.log").write_text(TRACE)

        logs = read_logs([tmp_path])

        assert () == logs.nodes
        assert ["facts of node"] == [m.what for m in logs.missing]
        assert logs.scan.findings

    @pytest.mark.parametrize("place", [", ip=192.0.2.2", ""])
    def test_rank_by_watchdog(self, tmp_path, place):
        """
        Who died has the rank that its watchdog told to the driver.
        """
        shutil.copytree(RAY, tmp_path / "ray")
        prefix = f"(SglEngine pid=1339{place}) "
        (tmp_path / "train.log").write_text(prefix + WATCHDOG.format(rank=3))

        verdict = diagnose(tmp_path).verdict

        assert (Cause.NATIVE_CRASH, (3,)) == (verdict.cause, verdict.ranks)

    def test_wrong_python(self, tmp_path):
        """
        Workers that nsys started by another Python never register.
        """
        logs = tmp_path / "session_2026-02-20_02-03-57_123456_4711" / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.err").write_text(
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

        logs = read_logs([tmp_path])

        assert any(
            x.source == str(log) and "UTF-16" in x.reason for x in logs.missing
        )
        assert logs.deaths.first

    def test_killed_by_kernel(self, tmp_path):
        """
        Whom the kernel killed for want of memory, did not just vanish.
        """
        shutil.copytree(RAY, tmp_path / "ray")
        line = "Out of memory: Killed process 1369 (ray::Killed) total-vm:9kB"
        facts = {"kernel": [f"1795317657.1 localhost kernel: {line}"]}
        (tmp_path / "192.0.2.2").mkdir()
        (tmp_path / "192.0.2.2" / "node.json").write_text(json.dumps(facts))

        logs = read_logs([tmp_path])

        assert [1369] == [
            x.pid for x in logs.deaths.deaths if x.kind == "host_oom"
        ]

    def test_variables(self, tmp_path):
        """
        Variables of workers are compared with the interfaces of their nodes.
        """
        variables = {"NCCL_SOCKET_IFNAME": "=ib7"}
        facts = {
            "variables": [{"pids": [7], "variables": variables}],
            "interfaces": [{"name": "eth0", "addresses": ["10.0.0.2/24"]}],
        }
        (tmp_path / "node.json").write_text(json.dumps(facts))

        logs = read_logs([tmp_path])

        assert Cause.NETWORK_MISCONFIGURED in {f.cause for f in logs.nodes}

    def test_nothing(self, tmp_path):
        """
        Where nothing is, there is nothing.
        """
        assert not read_logs([tmp_path]).is_any

    def test_line_break(self, tmp_path):
        """
        A name with a line break in it is a name.
        """
        log = tmp_path / "a\nb.log"
        log.write_text(TRACE)

        assert read_logs([os.fspath(log)]).scan.findings

    @pytest.mark.parametrize("size", [1 << 22, 5])
    def test_driver(self, tmp_path, monkeypatch, size):
        """
        A driver of Ray tells of methods that raised, and of actors that died.
        """
        monkeypatch.setattr(read_module, "_BLOCK", size)
        (tmp_path / "quiet.log").write_text("ray::\n")
        driver = tmp_path / "driver.log"
        driver.write_text(
            "ray.exceptions.RayTaskError(ValueError): ray::Trainer.step() "
            "(pid=4711, ip=10.0.0.2, actor_id="
            + "a"
            * 32
            + ", repr=Trainer)\n"
            '  File "/job/train.py", line 17, in step\n'
            "ValueError: the shard is empty\n"
        )

        logs = read_logs([tmp_path])

        assert ["task_error"] == [
            failure.kind for one in logs.drivers for failure in one.failures
        ]

    @pytest.mark.parametrize(
        ("ranks", "expected"),
        [
            ({("n1", 7): 3}, 3),
            ({("10.0.0.2", 7): 4, ("n2", 7): 5}, 4),
            ({("n2", 7): 5}, 5),
            ({("n2", 7): 5, ("n3", 7): 6}, None),
            ({("n1", 8): 3}, None),
        ],
    )
    def test_ranks_of_dead(self, monkeypatch, tmp_path, ranks, expected):
        """
        Who died has the rank that dumps or stacks know of that process.
        """
        death = Death(kind="native_crash", pid=7, host="n1", ip="10.0.0.2")
        named = attrs.evolve(death, pid=8, rank=9)
        logs = tmp_path / "session_2026-02-20_02-03-57_123456_4711" / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.out").write_text("x")
        monkeypatch.setattr(
            read_module,
            "find_deaths",
            lambda *_, **__: Deaths(deaths=(death, named)),
        )

        got = read_logs([Path(tmp_path)], ranks=ranks).deaths.deaths

        assert [expected, 9] == [x.rank for x in got]
