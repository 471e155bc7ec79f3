"""
The parts of the page about logs, the start-up, and nodes.
"""

from __future__ import annotations

import json
import re

from pathlib import Path

import attrs
import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.diagnosis import DiagnosisInputs, LogEvidence
from distdebug.findings import Diagnosis, Finding, Location
from distdebug.health import NodeFacts, parse_node_json
from distdebug.logs import (
    Harmless,
    Hit,
    LogGroup,
    PhaseReport,
    PhaseState,
    Progress,
    PyError,
    ScanReport,
    TraceGroup,
    read_collective_logs,
)
from distdebug.logs.lines import LogLine, Origin
from distdebug.ray import Death, Deaths, DriverLog, Failure


VERDICT = Finding(cause=Cause.KILLED, ranks=(3,), summary="rank 3 was killed")
NOTE = Finding(cause=Cause.HEALTHY, ranks=(), summary="NCCL says little")
BARE = NodeFacts(host="n1", taken=0.0)
HOSTILE = "</script><script>alert(1)</script>\x1b[31m\u202e\x00\ud800"


def seen_in(**kwargs):
    """
    A diagnosis that was made from logs.
    """
    logs = LogEvidence(**kwargs)
    return Diagnosis(
        verdict=VERDICT, seen=DiagnosisInputs(paths=("/job",), logs=logs)
    )


def watchdog(rank, seq=5, op="ALLREDUCE", group="dp"):
    """
    What the watchdog of a rank prints if a call takes too long.
    """
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0("
        f"{group}) Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=4, NumelOut=4, "
        "Timeout(ms)=600000) ran for 600001 milliseconds before timing out."
    )


def lines(**kwargs):
    """
    Lines that say the same.
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
    def test_errors(self, part):
        """
        What brings a job down comes first, with place, time, and rank.
        """
        grave = lines(cause=Cause.KILLED, priority=1, count=1000, is_more=True)
        scan = ScanReport(groups=(lines(), grave), files=2, bytes_read=2048)

        shown = part("logs", seen_in(scan=scan))

        first, second = shown.texts("ol.excerpts p.head")
        assert first.startswith("Killed \u00d7 1,000+rank 3")
        assert (
            "Native crashrank 3Trainer 2025-06-15 15:06:40 UTC "
            "job/train.log, line 7"
        ) == second
        assert [{"is-grave"}, set()] == [
            item.classes for item in shown.all("ol.excerpts li")
        ]
        assert "2 files, 2.0 KiB were searched." in shown.text
        assert "2 kinds of error" == shown.summary

    def test_traceback(self, part):
        """
        A traceback is shown with its innermost lines, the error last.
        """
        frames = tuple(
            Location(function=f"f{n}", file="a.py", line=n) for n in range(20)
        )
        errors = (PyError(type="KeyError", message="'x'", frames=frames),)
        trace = TraceGroup(errors=errors, group=lines())

        shown = part(
            "logs", seen_in(scan=ScanReport(tracebacks=(trace,), files=1))
        )

        trace = "".join(shown.one("ol.excerpts pre").parts).splitlines()
        assert "  … 8 more" == trace[0]
        assert ["  f19 (a.py:19)", "KeyError: 'x'"] == trace[-2:]
        assert "1 kind of error" == shown.summary

    def test_watchdogs(self, part, tmp_path):
        """
        What many ranks say of one call is shown once, with all of them.
        """
        log = tmp_path / "train.log"
        beat = "Heartbeat monitor timed out! watchdog"
        log.write_text("\n".join([*map(watchdog, range(8)), beat]))

        logs = read_collective_logs(log)
        shown = part("logs", seen_in(collectives=logs))

        first, second = shown.texts("ol.excerpts p.head")
        assert "\u00d7 8rank 0rank 1rank 2" in first
        assert "group dp" in first
        assert first.endswith("train.log, line 1")
        assert "rank" not in second
        assert beat in shown.texts("ol.excerpts blockquote")[1]
        assert "2 statements of watchdogs" == shown.summary

    def test_deaths(self, part):
        """
        Deaths are listed in the order of time, the first cause marked.
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

        shown = part(
            "logs",
            seen_in(deaths=Deaths(deaths=(early, first, later, wanted))),
        )

        rows = shown.all("table.ends tbody tr")
        assert ["", "first", "follows"] == [
            " ".join(row.texts("td.when b")) for row in rows
        ]
        assert [set(), {"is-first"}, set()] == [row.classes for row in rows]
        assert "rank 1" == rows[1].one("a.is-culprit").text
        end = shown.rows("table.ends")[1][3]
        assert end.startswith("native crash, SIGSEGV job/worker.err last")
        assert 12 == end.count("Fatal Python error")
        assert "3 deaths" == shown.summary

    def test_drivers(self, part):
        """
        Failures that drivers saw are listed, but for those that were intended.
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

        shown = part("logs", seen_in(drivers=(driver,)))

        first, second = shown.rows("table.ends")
        assert "\u2013 ended the driver" == first[0]
        assert (
            "ValueError shape job/driver.log, line 7 last lines "
            "ray::f() failed"
        ) == first[3]
        assert ("\u2013", "node_died job/driver.log, line 8") == (
            second[0],
            second[3],
        )
        assert "2 failed calls" == shown.summary

    def test_many(self, part, tmp_path):
        """
        Of thousands of each kind, what is left out is counted.
        """
        died = Death(kind="node_died")
        failed = Failure(kind="task_error", line=1)
        log = tmp_path / "train.log"
        stuck = (watchdog(0, seq=n) for n in range(1000))
        log.write_text("\n".join(stuck))

        shown = part(
            "logs",
            seen_in(
                scan=ScanReport(groups=(lines(),) * 1000),
                deaths=Deaths(deaths=(died,) * 1000),
                drivers=(DriverLog(path="x", failures=(failed,) * 1000),),
                collectives=read_collective_logs(log),
            ),
        )

        tables = shown.all("table.ends") + shown.all("ol.excerpts")
        sizes = [
            len(table.all("tbody tr") + table.all("li")) for table in tables
        ]
        left_out = re.findall(
            r"… and (\d+) (?:death|failure|kind|statement)s more", shown.text
        )
        assert [1000] * 4 == [
            size + int(more)
            for size, more in zip(sizes, left_out, strict=True)
        ]
        assert 0 < min(sizes) <= max(sizes) <= 200

    def test_shown(self, page, tmp_path):
        """
        Everything is in the page, and nothing of it is a tag.
        """
        hit = Hit(text=HOSTILE, source=HOSTILE, origin=Origin(name=HOSTILE))
        group = lines(first=hit, last=hit, priority=1)
        error = PyError(
            type=HOSTILE,
            message=HOSTILE,
            frames=(Location(function=HOSTILE, file=HOSTILE, line=1),),
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
        log = tmp_path / "train.log"
        log.write_text(watchdog(0, group=HOSTILE[:-1]) + HOSTILE[:-1])

        shown = page(
            seen_in(
                scan=ScanReport(
                    groups=(group,),
                    tracebacks=(TraceGroup(errors=(error,), group=group),),
                    files=1,
                    harmless={"x": 3},
                ),
                deaths=Deaths(deaths=(death,)),
                drivers=(DriverLog(path=HOSTILE, failures=(failure,)),),
                collectives=read_collective_logs(log),
            )
        )

        logs = shown.part("logs")
        assert [] == logs.all("script")
        assert 10 < logs.text.count("<script>alert(1)")
        assert "3 lines only look bad" in logs.text
        assert 2 == len(logs.all("ol.excerpts"))
        assert not set("\x00\x1b\u202e\ud800") & set(shown.html)


def phase(name, **kwargs):
    """
    A phase of some framework.
    """
    given = {"state": "done", "title": f"doing {name}"} | kwargs
    return PhaseState(name=name, framework="verl", **given)


def bars(part):
    """
    Where the bar of each phase begins, and how wide it is.
    """
    return [
        (float(bar.given["x"]), float(bar.given["width"]))
        for bar in part.all("svg.gantt rect")
    ]


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
    def test_none(self, part, report):
        """
        If no log shows a phase, there is no part.
        """
        assert part("phase", seen_in(phase=report)) is None

    def test_durations(self, part):
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

        shown = part("phase", seen_in(phase=report))

        assert [["10 s", "5 s", ""], ["30 s", "\u2013", "3 of 8"]] == [
            row[3:] for row in shown.rows("table.phases")
        ]
        assert [(0.0, 25.0), (25.0, 75.0)] == bars(shown)
        assert "Not begun: doing train." in shown.text
        assert "loading takes too long" == shown.summary
        assert "Last line, 1970-01-01 00:02:20 UTC: loading" in shown.text

    def test_no_times(self, part):
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

        shown = part("phase", seen_in(phase=report))

        assert [] == bars(shown)
        assert ["\u2013", "\u2013", "0 s"] == [
            row[3] for row in shown.rows("table.phases")
        ]
        assert "Last line" not in shown.text

    def test_trained(self, part):
        """
        What a job has behind it is folded.
        """
        training = phase("train", state="begun", trains=True)
        report = PhaseReport(phases=(training,), current=training)

        assert not part("phase", seen_in(phase=report)).is_open

    def test_shown(self, page):
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

        shown = page(seen_in(phase=report))

        phases = shown.part("phase")
        assert [] == phases.all("script")
        assert 6 < phases.text.count("<script>alert(1)")
        assert "✕ failed" in phases.text
        assert ", attempt 2" in phases.text
        assert not set("\x00\x1b\u202e\ud800") & set(shown.html)


def variables(part):
    """
    The values of each variable, and whether the workers agree on it.
    """
    rows = part.rows("table.variables")
    return {
        name.removesuffix(" differs"): (values, name.endswith(" differs"))
        for name, values in rows
    }


class TestNodes:
    def test_facts(self, part):
        """
        Each node is described in a line.
        """
        told = {
            "taken": 7200,
            "machine": {
                "booted": 3600,
                "cpus": 64,
                "memory": {"total": 4 << 30, "available": 1 << 30},
                "disks": {"tmp": {"free": 2 << 30}, "x": {}},
            },
            "gpus": [{"name": "H100"}, {"name": "H100"}],
            "interfaces": [
                {"name": "eth0", "addresses": ["10.0.0.1/8", "fe80::1"]},
                {"name": "lo"},
                {"name": "eth1", "is_up": False},
            ],
        }
        nodes = (
            parse_node_json(told, host="n1"),
            parse_node_json({}, host="n2"),
        )

        shown = part("nodes", seen_in(facts=nodes))

        first, second = shown.rows("table.nodes")
        assert [
            "n1",
            "2\u00d7 H100",
            "64",
            "1.0 GiB of 4.0 GiB",
            "tmp 2.0 GiB",
            "eth0 10.0.0.1/8",
            "60 min",
        ] == first
        assert ["n2", *["\u2013"] * 6] == second
        assert "2 nodes, nothing wrong seen" == shown.summary
        assert not shown.is_open

    def test_troubles(self, part):
        """
        What is wrong with a node is shown, with what to do.
        """
        trouble = Finding(
            cause=Cause.DISK_FULL,
            ranks=(),
            summary="the disk of n1 is full",
            remedy="free space",
        )

        shown = part("nodes", seen_in(nodes=(NOTE, *(trouble,) * 100)))

        first, _ = (
            item for item in shown.all("ul.troubles li") if item.all("b")
        )
        *sentences, more = first.texts("ul li")
        assert {"The disk of n1 is full."} == set(sentences)
        assert f"… and {100 - len(sentences)} more" == more
        assert "What to do: Free space." == first.one("span").text
        assert "0 nodes, 100 remarks" == shown.summary
        assert shown.is_open

    def test_note(self, part):
        """
        What is only worth a note is no remark, and not called healthy.
        """
        shown = part("nodes", seen_in(nodes=(NOTE,)))

        assert "Note NCCL says little." == shown.one("ul.troubles").text
        assert "0 nodes, nothing wrong seen" == shown.summary
        assert not shown.is_open

    def test_variables(self, part):
        """
        Variables on which the workers do not agree come first.
        """
        environs = {
            "n1": (
                {"RANK": "0", "NCCL_A": "1", "NCCL_B": "1", "NCCL_C": "1"},
            ),
            "n2": ({"RANK": "1", "NCCL_A": "2", "NCCL_B": "1"},),
        }

        shown = variables(
            part("nodes", seen_in(facts=(BARE,), environs=environs))
        )

        assert ["NCCL_A", "NCCL_C", "NCCL_B", "RANK"] == list(shown)
        assert ("1 n1 2 n2", True) == shown["NCCL_A"]
        assert ("1 n1 not set some workers", True) == shown["NCCL_C"]
        assert ("1", False) == shown["NCCL_B"]
        assert not shown["RANK"][1]

    def test_alike(self, part):
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

        shown = variables(
            part("nodes", seen_in(facts=(BARE,), environs=environs))
        )

        assert "TORCHELASTIC_ERROR_FILE" in shown
        assert [] == [name for name, (_, differs) in shown.items() if differs]

    def test_many_values(self, part):
        """
        Of very many values, the commonest are shown.
        """
        environs = {f"n{n}": ({"NCCL_A": str(n)},) for n in range(100)}

        shown = variables(
            part("nodes", seen_in(facts=(BARE,), environs=environs))
        )

        assert shown["NCCL_A"][0].endswith("… and 94 more values")

    def test_shown(self, page, tmp_path):
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

        shown = page(diagnose(tmp_path / "bundle"))

        nodes = shown.part("nodes")
        assert "(empty)" in variables(nodes)["NCCL_DEBUG"][0]
        assert [] == nodes.all("script")
        assert 2 < nodes.text.count("<script>alert(1)")
        assert [] == shown.root.all("p.failed")
        assert str(tmp_path) not in shown.html
