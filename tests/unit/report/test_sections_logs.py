"""
The parts of the page about logs, the start-up, and nodes.
"""

from __future__ import annotations

import json

from pathlib import Path

import attrs
import pytest

from distdebug import diagnose, report_html
from distdebug._lines import LogLine, Origin
from distdebug.diagnosis import LogEvidence, Seen
from distdebug.findings import Cause, Diagnosis, Finding
from distdebug.health import Gpu, NodeFacts
from distdebug.health.disks import Disk
from distdebug.health.memory.read import Memory
from distdebug.health.network.interfaces import Interface
from distdebug.health.pressure import Pressure
from distdebug.logscan import (
    CollectiveLogs,
    Hit,
    LogGroup,
    PyError,
    PyFrame,
    ScanReport,
    TraceGroup,
)
from distdebug.logscan.collectives.model import (
    Heartbeat,
    WorkTimeout,
)
from distdebug.logscan.collectives.model import (
    LogGroup as NamedGroup,
)
from distdebug.raylogs import Death, Deaths, DriverLog, Failure
from distdebug.report.sections.logs import logs_section
from distdebug.report.sections.nodes import nodes_section
from distdebug.report.sections.phase import phase_section
from distdebug.startup import Harmless, PhaseReport, PhaseState, Progress


VERDICT = Finding(cause=Cause.KILLED, ranks=(3,), summary="rank 3 was killed")
HOSTILE = "</script><script>alert(1)</script>\x1b[31m\u202e\x00\ud800"


def seen_in(**kwargs):
    """
    A diagnosis that logs told.
    """
    logs = LogEvidence(**kwargs)
    return Diagnosis(verdict=VERDICT, seen=Seen(paths=("/job",), logs=logs))


def lines(**kwargs):
    """
    Lines that tell of the same.
    """
    hit = Hit(
        text="RuntimeError: boom",
        source="/job/train.log",
        line=7,
        time=1_750_000_000.0,
        origin=Origin(name="Trainer"),
    )
    given = {
        "rule": "r",
        "cause": Cause.NATIVE_CRASH,
        "priority": 3,
        "count": 1,
        "first": hit,
        "last": hit,
        "ranks": (3,),
    } | kwargs
    return LogGroup(**given)


class TestLogs:
    def test_none(self):
        """
        Without anything that went wrong there is no part.
        """
        assert logs_section(Diagnosis(verdict=VERDICT)) is None

    def test_errors(self):
        """
        What brings a job down comes first, with place, time, and rank.
        """
        grave = lines(cause=Cause.KILLED, priority=1, count=1000, is_more=True)
        scan = ScanReport(groups=(lines(), grave), files=2, bytes_read=2048)

        part = logs_section(seen_in(scan=scan))

        first, second = part.values["excerpts"]
        assert ("Killed", "1,000+") == (first.words, first.number)
        assert (
            "Trainer",
            "2025-06-15 15:06:40 UTC",
            "job/train.log, line 7",
            (3,),
        ) == (second.who, second.when, second.where, second.ranks.first)
        assert "2 files, 2.0 KiB" == part.values["read"]
        assert "2 kinds of error" == part.summary

    def test_traceback(self):
        """
        A traceback is shown with its innermost lines, the error last.
        """
        frames = tuple(
            PyFrame(function=f"f{n}", file="a.py", line=n) for n in range(20)
        )
        errors = (PyError(type="KeyError", message="'x'", frames=frames),)
        trace = TraceGroup(errors=errors, group=lines())

        part = logs_section(
            seen_in(scan=ScanReport(tracebacks=(trace,), files=1))
        )

        (excerpt,) = part.values["excerpts"]
        assert "  … 8 more" == excerpt.trace[0]
        assert ("  f19 (a.py:19)", "KeyError: 'x'") == excerpt.trace[-2:]
        assert "1 kind of error" == part.summary

    def test_watchdogs(self):
        """
        What many ranks say of one call is told once, with all of them.
        """
        said = [
            WorkTimeout(
                rank=n,
                seq=5,
                op="all_reduce",
                group=NamedGroup("0", "dp"),
                source="/job/train.log",
                line=n + 1,
                quote=f"[Rank {n}] Watchdog caught",
            )
            for n in range(8)
        ]
        beat = Heartbeat(rank=None, quote="no beat")
        logs = CollectiveLogs(timeouts=tuple(said), heartbeats=(beat,))

        part = logs_section(seen_in(collectives=logs))

        first, second = part.values["statements"]
        assert (8, "dp", "0-7", "job/train.log, line 1") == (
            first.number,
            first.group,
            first.ranks.folded,
            first.where,
        )
        assert ("no beat", 0, "") == (
            second.text,
            second.ranks.count,
            second.where,
        )
        assert "2 statements of watchdogs" == part.summary

    def test_deaths(self):
        """
        Who died is told in the order of time, the first cause marked.
        """
        first = Death(
            kind="native_crash",
            worker_id="ab",
            actor="Trainer",
            time=2.0,
            signal="SIGSEGV",
            rank=1,
            is_first=True,
            log=Path("/job/worker.err"),
            last_lines=("Fatal Python error",) * 50,
        )
        later = Death(kind="node_died", time=3.0, is_collateral=True)
        early = Death(kind="terminated", worker_id="cd", time=1.0)
        wanted = Death(kind="intended", worker_id="ef")

        part = logs_section(
            seen_in(deaths=Deaths(deaths=(early, first, later, wanted)))
        )

        shown = part.values["deaths"]
        assert ["", "first", "follows"] == [row.mark for row in shown]
        assert ("native crash, SIGSEGV", "job/worker.err", (1,)) == (
            shown[1].how,
            shown[1].where,
            shown[1].ranks.first,
        )
        assert ("Fatal Python error",) * 12 == shown[1].lines
        assert "3 deaths" == part.summary

    def test_drivers(self):
        """
        What drivers were told is told, but for what they wanted.
        """
        failed = Failure(
            kind="task_error",
            line=7,
            error="ValueError",
            message="shape",
            rank=2,
            quote="ray::f() failed",
            ended_driver=True,
        )
        plain = Failure(kind="node_died", line=8)
        wanted = Failure(kind="actor_died", line=9, exit_type="INTENDED_EXIT")
        driver = DriverLog(
            path="/job/driver.log", failures=(failed, plain, wanted)
        )

        part = logs_section(seen_in(drivers=(driver,)))

        first, second = part.values["failures"]
        assert ("ended the driver", "ValueError shape") == (
            first.mark,
            first.how,
        )
        assert "job/driver.log, line 7" == first.where
        assert ("", "node_died", ()) == (
            second.mark,
            second.how,
            second.lines,
        )
        assert "2 failed calls" == part.summary

    def test_many(self):
        """
        Of thousands of each kind, what is left out is counted.
        """
        died = Death(kind="node_died")
        failed = Failure(kind="task_error", line=1)
        stuck = [WorkTimeout(seq=n, op="x") for n in range(1000)]

        part = logs_section(
            seen_in(
                scan=ScanReport(groups=(lines(),) * 1000),
                deaths=Deaths(deaths=(died,) * 1000),
                drivers=(DriverLog(path="x", failures=(failed,) * 1000),),
                collectives=CollectiveLogs(timeouts=tuple(stuck)),
            )
        )

        for name in ("excerpts", "deaths", "failures", "statements"):
            shown, more = part.values[name], part.values[f"more_{name}"]
            assert 1000 == len(shown) + more
            assert 0 < len(shown) <= 200

    def test_shown(self):
        """
        Everything is in the page, and nothing of it is a tag.
        """
        hit = Hit(text=HOSTILE, source=HOSTILE, origin=Origin(name=HOSTILE))
        group = lines(first=hit, last=hit, priority=1)
        error = PyError(
            type=HOSTILE,
            message=HOSTILE,
            frames=(PyFrame(function=HOSTILE, file=HOSTILE, line=1),),
        )
        death = Death(
            kind="init_error",
            worker_id="x",
            actor=HOSTILE,
            error=HOSTILE,
            last_lines=(HOSTILE,),
            log=Path("x"),
        )
        failure = Failure(
            kind="task_error", line=1, error=HOSTILE, quote=HOSTILE
        )
        said = WorkTimeout(
            seq=1, op=HOSTILE, group=NamedGroup(HOSTILE), quote=HOSTILE
        )

        html = report_html(
            seen_in(
                scan=ScanReport(
                    groups=(group,),
                    tracebacks=(TraceGroup(errors=(error,), group=group),),
                    files=1,
                    harmless={"x": 3},
                ),
                deaths=Deaths(deaths=(death,)),
                drivers=(DriverLog(path=HOSTILE, failures=(failure,)),),
                collectives=CollectiveLogs(timeouts=(said,)),
            )
        )

        assert "could not be shown" not in html
        assert "<script>alert" not in html
        assert 10 < html.count("&lt;script&gt;alert(1)")
        assert "3 lines only look bad" in html
        assert not set("\x00\x1b\u202e\ud800") & set(html)


def phase(name, **kwargs):
    """
    A phase of some framework.
    """
    given = {"state": "done", "title": f"doing {name}"} | kwargs
    return PhaseState(name=name, framework="verl", **given)


class TestPhase:
    @pytest.mark.parametrize(
        "report",
        [
            None,
            PhaseReport(),
            PhaseReport(phases=(phase("a", state="not begun"),)),
        ],
        ids=["no log", "no phase", "none begun"],
    )
    def test_none(self, report):
        """
        If no log tells of a phase, there is no part.
        """
        assert phase_section(seen_in(phase=report)) is None

    def test_durations(self):
        """
        Each phase that began has its time, and its place in all of it.
        """
        current = phase("load", state="begun", begun_at=110.0, of=8, parts=3)
        report = PhaseReport(
            phases=(
                phase("init", begun_at=100.0, ended_at=110.0, typical_s=5.0),
                current,
                phase("train", state="not begun"),
            ),
            current=current,
            last_time=140.0,
            last_line=LogLine("loading"),
            verdict="loading takes too long",
        )

        part = phase_section(seen_in(phase=report))

        first, second = part.values["rows"]
        assert ("10 s", "5 s", 0.0, 25.0) == (
            first.took,
            first.typical,
            first.bar.start,
            first.bar.width,
        )
        assert ("30 s", "3 of 8", 25.0, 75.0) == (
            second.took,
            second.progress,
            second.bar.start,
            second.bar.width,
        )
        assert ["doing train"] == part.values["rest"]
        assert "loading takes too long" == part.summary
        assert ("loading", "1970-01-01 00:02:20 UTC") == part.values["last"]

    def test_no_times(self):
        """
        A log without times has phases without durations.
        """
        report = PhaseReport(
            phases=(
                phase("init"),
                phase("load", begun_at=5.0),
                phase("save", begun_at=5.0, ended_at=5.0),
            )
        )

        part = phase_section(seen_in(phase=report))

        assert [None] * 3 == [row.bar for row in part.values["rows"]]
        assert ["", "", "0 s"] == [row.took for row in part.values["rows"]]
        assert ("", "") == part.values["last"]

    def test_trained(self):
        """
        What a job has behind it is folded.
        """
        training = phase("train", state="begun", trains=True)
        report = PhaseReport(phases=(training,), current=training)

        part = phase_section(seen_in(phase=report))

        assert not part.is_open

    def test_shown(self):
        """
        Everything is in the page, and nothing of it is a tag.
        """
        current = phase(
            HOSTILE,
            title=HOSTILE,
            what=HOSTILE,
            state="failed",
            begun_at=1.0,
            facts={HOSTILE: HOSTILE},
            progress=Progress(done=1.0, total=4.0),
        )
        done = phase("a", part_of="b", begun_at=1.0, ended_at=9.0)
        line = LogLine(HOSTILE)
        report = PhaseReport(
            title=HOSTILE,
            phases=(current, attrs.evolve(done, framework="vllm")),
            current=current,
            verdict=HOSTILE,
            last_line=line,
            attempt=2,
            harmless=(
                Harmless(
                    name="x", summary=HOSTILE, why=HOSTILE, count=3, line=line
                ),
            ),
        )

        html = report_html(seen_in(phase=report))

        assert "could not be shown" not in html
        assert "<script>alert" not in html
        assert "✕ failed" in html
        assert ", attempt 2" in html
        assert not set("\x00\x1b\u202e\ud800") & set(html)


class TestNodes:
    def test_none(self):
        """
        Without facts about nodes there is no part.
        """
        assert nodes_section(seen_in()) is None

    def test_facts(self):
        """
        Each node is told in a line.
        """
        facts = NodeFacts(
            host="n1",
            taken=7200.0,
            booted=3600.0,
            gpus=(Gpu(index=0, name="H100"), Gpu(index=1, name="H100")),
            memory=Memory(total=4 << 30, available=1 << 30),
            disks=(
                Disk(name="tmp", path="/tmp", free=2 << 30),
                Disk(name="x", path="/x"),
            ),
            pressure=Pressure(cpus=64),
            interfaces=(
                Interface(name="eth0", addresses=("10.0.0.1/8", "fe80::1")),
                Interface(name="lo", kind="loopback"),
                Interface(name="eth1", is_up=False),
            ),
        )
        bare = NodeFacts(host="n2", taken=0.0)

        part = nodes_section(seen_in(facts=(facts, bare)))

        first, second = part.values["nodes"]
        assert (
            "n1",
            "60 min",
            "64",
            "1.0 GiB of 4.0 GiB",
            "2\u00d7 H100",
            "tmp 2.0 GiB",
            "eth0 10.0.0.1/8",
        ) == first
        assert ("n2", "", "", "", "", "", "") == second
        assert "2 nodes, nothing wrong seen" == part.summary
        assert not part.is_open

    def test_troubles(self):
        """
        What is wrong with a node is told, with what to do.
        """
        trouble = Finding(
            cause=Cause.DISK_FULL,
            ranks=(),
            summary="the disk of n1 is full",
            remedy="free space",
        )

        note = attrs.evolve(
            trouble, cause=Cause.HEALTHY, summary="note: NCCL says little"
        )

        part = nodes_section(seen_in(nodes=(note, *(trouble,) * 100)))

        shown, _ = part.values["troubles"]
        assert "The disk of n1 is full." == shown.sentences[0]
        assert 100 == len(shown.sentences) + shown.more
        assert "0 nodes, 100 remarks" == part.summary
        assert part.is_open

    def test_note(self):
        """
        What is only worth a note is no remark, and not called healthy.
        """
        note = Finding(
            cause=Cause.HEALTHY, ranks=(), summary="note: NCCL says little"
        )

        part = nodes_section(seen_in(nodes=(note,)))

        (shown,) = part.values["troubles"]
        assert ("Note", ("NCCL says little.",)) == (
            shown.words,
            shown.sentences,
        )
        assert "0 nodes, nothing wrong seen" == part.summary
        assert not part.is_open

    def test_variables(self):
        """
        Variables on which the workers do not agree come first.
        """
        environs = {
            "n1": (
                {"RANK": "0", "NCCL_A": "1", "NCCL_B": "1", "NCCL_C": "1"},
            ),
            "n2": ({"RANK": "1", "NCCL_A": "2", "NCCL_B": "1"},),
        }
        facts = NodeFacts(host="n1", taken=0.0)

        part = nodes_section(seen_in(facts=(facts,), environs=environs))

        shown = {v.name: v for v in part.values["variables"]}
        assert ["NCCL_A", "NCCL_C", "NCCL_B", "RANK"] == list(shown)
        assert (("1", "n1"), ("2", "n2")) == shown["NCCL_A"].values
        assert (("1", "n1"), ("not set", "some workers")) == shown[
            "NCCL_C"
        ].values
        assert (("1", ""),) == shown["NCCL_B"].values
        assert not shown["RANK"].differs

    def test_alike(self):
        """
        A launcher is no rank, files of each rank differ, and so do jobs.
        """
        environs = {
            "n1": (
                {"OMP_NUM_THREADS": "1"},
                *(
                    {
                        "MASTER_ADDR": "n1",
                        "MASTER_PORT": port,
                        "RANK": str(rank),
                        "TORCHELASTIC_ERROR_FILE": f"/tmp/{port}/{rank}",
                    }
                    for port in ("1", "2")
                    for rank in range(2)
                ),
            )
        }
        facts = NodeFacts(host="n1", taken=0.0)

        part = nodes_section(seen_in(facts=(facts,), environs=environs))

        variables = part.values["variables"]
        assert "TORCHELASTIC_ERROR_FILE" in {v.name for v in variables}
        assert [] == [v.name for v in variables if v.differs]

    def test_many_values(self):
        """
        Of very many values, the commonest are told.
        """
        environs = {f"n{n}": ({"NCCL_A": str(n)},) for n in range(100)}

        part = nodes_section(
            seen_in(facts=(NodeFacts(host="x", taken=0.0),), environs=environs)
        )

        (variable,) = part.values["variables"]
        assert ("… and 94 more values", "") == variable.values[-1]

    def test_shown(self, tmp_path):
        """
        The facts of a snapshot are in the page, and nothing of it is a tag.
        """
        folder = tmp_path / "bundle" / "n1"
        folder.mkdir(parents=True)
        told = {
            "taken": 1_750_000_000,
            "gpus": [{"name": HOSTILE[:-1], "index": "0"}],
            "interfaces": [{"name": "eth0", "addresses": [HOSTILE[:-1]]}],
            "variables": [
                {"pids": [1], "variables": {"NCCL_DEBUG": HOSTILE[:-1]}},
                {"pids": [2], "variables": {"NCCL_DEBUG": ""}},
            ],
        }
        (folder / "node.json").write_text(json.dumps(told))
        (folder / "train.log").write_text("CUDA error: device-side assert\n")

        html = report_html(diagnose(tmp_path / "bundle"))

        assert "could not be shown" not in html
        assert '<section id="nodes"' in html
        assert "NCCL_DEBUG" in html
        assert "(empty)" in html
        assert "<script>alert" not in html
        assert str(tmp_path) not in html
