"""
How results show themselves, as text and in notebooks.
"""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import re
import sys

from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import attrs
import pytest

import distdebug

from distdebug._render import (
    Branch,
    Entries,
    Entry,
    Lines,
    Shown,
    Table,
    Tree,
    blocks_html,
    blocks_text,
)
from distdebug.capture import Capture, CaptureStatus, Check, ProcessCapture
from distdebug.causes import Cause
from distdebug.debugger import (
    Answers,
    Listing,
    LostNode,
    Output,
    Process,
    SilentProcess,
)
from distdebug.errors import MissingDependencyError
from distdebug.findings import (
    Diagnosis,
    Evidence,
    Finding,
    GroupProgress,
    Missing,
)
from distdebug.flight_recorder import (
    DumpRequest,
    Timeline,
    analyze_dumps,
    plan_flight_recorder,
    read_dumps,
)
from distdebug.flight_recorder.timeline.clocks import HostClock
from distdebug.health import EnvironmentHealth, NodeFacts, NodeHealth
from distdebug.logs import detect_phase, read_collective_logs, scan_logs
from distdebug.nodes import NodeResult, NodeStatus
from distdebug.nsight import (
    NsysHealth,
    PatchStatus,
    collect_nsys_reports,
    find_nsys_reports,
)
from distdebug.nsight.reports import ReportRow, ReportSummary
from distdebug.processes import Worker
from distdebug.ray import (
    Death,
    Deaths,
    RayDebuggerCheck,
    RayDebugSession,
    RaySession,
    WorkerLog,
    read_driver_log,
)
from distdebug.snapshots import Manifest, Snapshot
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    merge_stacks,
)
from distdebug.testing import SimulatedJob, make_dumps
from distdebug.watching import Hang, HangReason


HOSTILE = "</pre><script>alert(1)</script> & \x1b[31mred \u202egnp.exe"


def _finding() -> Finding:
    return Finding(
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=(3,),
        summary=f"rank 3 is late: {HOSTILE}",
        remedy="look at rank 3",
        evidence=(
            Evidence(
                kind="log", source="/a/b.log", location="line 3", quote=HOSTILE
            ),
        ),
    )


def _stacks(number: int = 2) -> tuple[ProcessStacks, ...]:
    frames = (
        StackFrame(name="read", filename="/job/train.py", line=7),
        StackFrame(name=HOSTILE, filename="/job/train.py", line=9),
    )
    return tuple(
        ProcessStacks(
            pid=100 + rank,
            source="here",
            rank=rank,
            threads=(ThreadStack(name="", frames=frames[rank % 2 :]),),
        )
        for rank in range(number)
    )


def _session() -> RaySession:
    return RaySession(
        root=Path("/s"), logs=Path("/s/logs"), name=HOSTILE, host=HOSTILE
    )


def _capture() -> Capture:
    processes = [
        ProcessCapture(
            worker=Worker(
                pid=stacks.pid,
                start_ticks=1,
                parent_pid=1,
                uid=0,
                title=HOSTILE,
                framework="torchrun",
                rank=stacks.rank,
            ),
            status=CaptureStatus.OK,
            stacks=stacks,
        )
        for stacks in _stacks()
    ]
    return Capture(host=HOSTILE, processes=tuple(processes))


def _diagnosis() -> Diagnosis:
    group = GroupProgress(
        name="0",
        desc=HOSTILE,
        ranks=(0, 1, 2, 3),
        last_completed=8,
        furthest=9,
        waiting=(0, 1, 2),
        absent=(3,),
    )
    return Diagnosis(
        verdict=_finding(),
        findings=(_finding(),),
        victims=(0, 1, 2),
        missing=(Missing(what="dump", reason=HOSTILE, rank=2),),
        groups=(group,),
    )


def _flight(folder):
    job = SimulatedJob(4)
    job.collective("all_reduce", job.world)
    make_dumps(folder, job)
    return analyze_dumps(folder)


def _log(folder, text="[rank3]: RuntimeError: CUDA out of memory."):
    log = folder / "train.log"
    log.write_text(f"{text} {HOSTILE}\n", "utf-8")
    return log


def _reports(folder):
    (folder / "policy_1.nsys-rep").write_bytes(b"")
    found = find_nsys_reports(folder)
    (report,) = found
    hostile = attrs.evolve(report, path=HOSTILE, is_raw=True)
    return attrs.evolve(found, reports=(hostile,))


_CHECK = Check("ptrace", False, HOSTILE, remedy="ask your administrator")
_HANG = {"cause": "unknown", "summary": HOSTILE, "confidence": "possible"}

# What each class of results may look like; it gets a folder to work in.
SAMPLES = {
    "Answers": lambda _: Answers(
        outputs=(Output(group="job", rank=None, text=f"1\n{HOSTILE}"),),
        silent=(SilentProcess(host="node-1", pid=7),),
    ),
    "Capture": lambda _: _capture(),
    "CollectedReports": lambda folder: attrs.evolve(
        collect_nsys_reports(_reports(folder), folder / "out"),
        copied=("a",),
        left=(HOSTILE,),
    ),
    "CollectiveLogs": lambda folder: read_collective_logs(
        _log(folder, "n1:1:2 [0] NCCL WARN Call failed:")
    ),
    "Deaths": lambda _: Deaths(
        deaths=(Death(kind="exit_code", actor=HOSTILE, worker_id="w"),)
    ),
    "Diagnosis": lambda _: _diagnosis(),
    "DriverLog": lambda folder: read_driver_log(_log(folder)),
    "DumpRequest": lambda _: DumpRequest(0, "failed", Path("/d"), HOSTILE),
    "Dumps": lambda folder: attrs.evolve(
        _flight(folder).dumps,
        problems=(Missing(what="dump", reason=HOSTILE, rank=2),),
    ),
    "EnvironmentHealth": lambda _: EnvironmentHealth(
        hosts=("a", "b"), processes=2, findings=(_finding(),)
    ),
    "Finding": lambda _: _finding(),
    "FlightReport": _flight,
    "Hang": lambda _: Hang(
        reason=HangReason(kind="wait", elapsed_s=3.0, pids=(1,)),
        folder=Path("/tmp"),
        data={"verdict": _HANG},
    ),
    "Listing": lambda _: Listing(
        processes=(
            Process(
                path="/s",
                group="job",
                rank=3,
                coords={"dp": 1},
                host="node-1",
                pid=9,
                function=HOSTILE,
            ),
        ),
        lost=(LostNode(host="node-2", reason=HOSTILE),),
    ),
    "NodeHealth": lambda _: NodeHealth(
        facts=NodeFacts(host=HOSTILE, taken=0.0), findings=(_finding(),)
    ),
    "NodeResult": lambda _: NodeResult(
        host=HOSTILE,
        status=NodeStatus.FAILED,
        value={"a": 1},
        output=f"one\n{HOSTILE}",
        reason=HOSTILE,
        remedy="look at the node",
    ),
    "NsysHealth": lambda _: NsysHealth(
        checks=(_CHECK,), findings=(_finding(),)
    ),
    "NsysReports": _reports,
    "PatchStatus": lambda _: PatchStatus(state="absent", detail=HOSTILE),
    "PhaseReport": lambda folder: detect_phase(_log(folder)),
    "PreflightReport": lambda _: attrs.evolve(
        distdebug.preflight(), checks=(_CHECK,)
    ),
    "ProcessCapture": lambda _: attrs.evolve(
        _capture().processes[0], remedy=HOSTILE
    ),
    "ProcessStacks": lambda _: _stacks()[0],
    "RayDebugSession": lambda _: RayDebugSession(
        kind="debugpy", host="a", port=1, node=HOSTILE, note=HOSTILE
    ),
    "RayDebuggerCheck": lambda _: RayDebuggerCheck(checks=(_CHECK,)),
    "RaySession": lambda _: _session(),
    "Timeline": lambda _: Timeline(
        path=HOSTILE,
        size=1,
        ranks=(0, 1),
        start_ns=0,
        span_ns=1,
        slices=2,
        tracks=2,
        open=1,
        unended=1,
        late=1,
        arrows=1,
        arrows_left_out=1,
        records_left_out=1,
        clocks=tuple(
            HostClock(host=host, ahead_ns=ns, doubt_ns=1, corrected=bool(ns))
            for host, ns in (("a", 0), (HOSTILE, 5), ("c", None))
        ),
        undated=(0,),
    ),
    "RecorderSettings": lambda folder: plan_flight_recorder(
        {}, "2.9.1", dump_dir=folder / "d"
    ),
    "ReportSummary": lambda _: ReportSummary(
        path="a", ranges=(ReportRow(name=HOSTILE, total_s=1.0, count=2),)
    ),
    "ScanReport": lambda folder: scan_logs(_log(folder)),
    "Snapshot": lambda _: Snapshot(
        Path("/tmp"), _diagnosis(), Manifest(version="1", created=0.0)
    ),
    "StackTree": lambda _: merge_stacks(_stacks()),
    "Worker": lambda _: attrs.evolve(
        _capture().processes[0].worker, coordinates=((HOSTILE, 1),)
    ),
    "WorkerLog": lambda _: WorkerLog(
        session=_session(), worker_id="w", pid=7, actor_name=HOSTILE
    ),
}


class _Page(HTMLParser):
    """
    The words that a page shows, and the elements that it has.
    """

    def __init__(self, page: str, *, is_styled: bool = True) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self._hidden = "dd-text" if is_styled else "dd-page"
        self._hiding: int | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        """
        Note the element, and whether it hides what it holds.
        """
        self.tags.append(tag)
        self.open.append(tag)
        names = dict(attrs).get("class", "")
        if tag == "style" or {self._hidden, "distdebug-graph"} & {names}:
            self._hiding = self._hiding or len(self.open)

    def handle_endtag(self, tag):
        """
        An element ends that was begun last.
        """
        assert tag == self.open[-1]

        if self._hiding == len(self.open):
            self._hiding = None
        self.open.pop()

    def handle_data(self, data):
        """
        Note what is seen.
        """
        if self._hiding is None:
            self.words += data.split()


def _words(text: str) -> list[str]:
    """
    The words of a text, without what only draws tables and trees.
    """
    return sorted(w for w in text.split() if set(w) - set("-─▸→"))


def _all_results() -> set[str]:
    for module in pkgutil.walk_packages(distdebug.__path__, "distdebug."):
        if module.name.endswith("__main__"):
            continue
        # Adapters need their frameworks; none of them makes results.
        is_adapter = module.name.startswith("distdebug.integrations.")
        with suppress(*([ImportError] if is_adapter else [])):
            importlib.import_module(module.name)
    return {c.__name__ for c in Shown.__subclasses__()}


class TestEveryResult:
    def test_has_a_sample(self):
        """
        No class of results is left out of these tests.
        """
        assert _all_results() == SAMPLES.keys() - {"RecorderSettings"}

    @pytest.mark.process
    @pytest.mark.parametrize("name", SAMPLES)
    def test_same_words(self, name, tmp_path):
        """
        Text and HTML of every result say the same, also where a notebook takes
        styles away.
        """
        result = SAMPLES[name](tmp_path)

        pages = [
            _Page(result._repr_html_(), is_styled=is_styled)
            for is_styled in (True, False)
        ]

        for page in pages:
            assert _words(str(result)) == _words(" ".join(page.words))
            assert [] == page.open

    def test_picture(self, monkeypatch, tmp_path):
        """
        A diagnosis shows who waits for whom; pictures share no identifiers,
        and one that cannot be drawn is left out.
        """
        result = SAMPLES["Diagnosis"](tmp_path)

        pages = [result._repr_html_() for _ in range(2)]
        monkeypatch.setattr(
            distdebug.report.page, "graph_section", lambda _: 1 / 0
        )
        bare = result._repr_html_()

        first, second = (
            set(re.findall(r'id="(graph-[^"]+)"', x)) for x in pages
        )
        assert len(first) == len(second) == 5
        assert first.isdisjoint(second)
        assert "<svg" not in bare
        assert "dd-page" in bare

    @pytest.mark.process
    @pytest.mark.parametrize("name", SAMPLES)
    def test_harmless(self, name, tmp_path):
        """
        What a job wrote is neither HTML nor an order to a terminal.
        """
        result = SAMPLES[name](tmp_path)

        page = _Page(result._repr_html_())

        assert "script" not in page.tags
        assert "\x1b" not in str(result)
        assert "\u202e" not in result._repr_html_()

    @pytest.mark.process
    @pytest.mark.parametrize("name", SAMPLES)
    def test_pretty(self, name, tmp_path):
        """
        An interactive session shows the text.
        """
        pretty = pytest.importorskip("IPython.lib.pretty")
        result = SAMPLES[name](tmp_path)

        shown = pretty.pretty(result)

        assert str(result) == shown

    @pytest.mark.process
    @pytest.mark.parametrize("name", sorted(SAMPLES))
    def test_frame(self, name, tmp_path):
        """
        Every result is a data frame with one row per record.
        """
        pytest.importorskip("pandas")
        result = SAMPLES[name](tmp_path)

        frame = result.to_frame()

        assert len(result.to_records()) == len(frame)


class TestDumps:
    def test_rows(self, tmp_path):
        """
        A rank is a row, whatever it did last, also nothing.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce", ranks=[0, 1])
        job.send(1, 0)
        make_dumps(tmp_path, job)

        dumps = read_dumps(tmp_path)

        rows = [
            (r["rank"], r["records"], r["groups"], r["newest"])
            for r in dumps.to_records()
        ]
        assert [
            (0, 1, 1, "nccl:all_reduce #1"),
            (1, 2, 1, "nccl:send 1->0 #1"),
            (2, 0, 0, ""),
        ] == rows
        assert dumps.to_dict()["ranks"] == dumps.to_records()

    def test_short(self, tmp_path):
        """
        Millions of records are not printed.
        """
        dumps = _flight(tmp_path).dumps

        assert "<Dumps of 4 ranks>" == repr(dumps)
        assert "<Entries of 1 calls>" == repr(dumps[0].entries)

    def test_none(self, tmp_path):
        """
        There may be problems only.
        """
        dumps = attrs.evolve(_flight(tmp_path).dumps, by_rank={})

        assert "dumps of 0 ranks, 0 records" == str(dumps)


class TestTimeline:
    def test_many_ranks(self, tmp_path):
        """
        Ranks that do not fold are counted, not listed.
        """
        timeline = attrs.evolve(
            SAMPLES["Timeline"](tmp_path), ranks=tuple(range(0, 400, 2))
        )

        assert "calls of 200 ranks in" in str(timeline)


class TestShown:
    def test_no_pandas(self, monkeypatch):
        """
        Without pandas, the error says what to install.
        """
        monkeypatch.setitem(sys.modules, "pandas", None)

        with pytest.raises(MissingDependencyError) as caught:
            _finding().to_frame()

        assert "pip install pandas" == caught.value.remedy

    def test_not_made_yet(self):
        """
        A class that says neither what to show nor what it has is a mistake, and
        says so.
        """
        with pytest.raises(NotImplementedError):
            Shown()._blocks_()
        with pytest.raises(attrs.exceptions.NotAnAttrsClassError):
            Shown().to_records()

    def test_what_was_seen_stays(self):
        """
        A diagnosis travels without the gigabytes that it was made from.
        """
        diagnosis = attrs.evolve(_diagnosis(), seen=print)

        copy = pickle.loads(pickle.dumps(diagnosis))

        assert diagnosis == copy
        assert copy.seen is None


LONG = {
    "lines": Lines(["a", "b", "c"], 1, "lines"),
    "entries": Entries([Entry(x) for x in "abc"], 1, "sentences"),
    "table": Table(["x"], [["a"], ["b"], ["c"]], 1, "rows"),
}


class TestBlocks:
    @pytest.mark.parametrize("kind", LONG)
    def test_long(self, kind):
        """
        Of what is long the beginning is shown, and how much more there is; in
        a notebook the rest is folded, and on request all of it is shown.
        """
        text = blocks_text([LONG[kind]])
        full = blocks_text([LONG[kind]], full=True)
        page = _Page(blocks_html([LONG[kind]]))

        assert {"a", "b", "c"} & set(text.split()) == {"a"}
        assert "… and 2 more" in text
        assert {"a", "b", "c"} <= set(full.split())
        assert "more" not in full
        assert "details" in page.tags
        assert {"a", "b", "c", "more"} <= set(page.words)

    def test_nothing(self):
        """
        What is empty takes no room.
        """
        blocks = ["", Lines([]), Entries([]), Tree([])]

        assert "" == blocks_text(blocks)
        assert [] == _Page(blocks_html(blocks)).words

    def test_tree(self):
        """
        What parts from a branch is shown below it; one that is long goes on in
        the next line.
        """
        long = ["a" * 60, "b" * 60]
        tree = Tree(
            [
                Branch(0, "0-3", ["main"]),
                Branch(1, "0-2", ["* train", "wait"]),
                Branch(2, "1"),
                Branch(1, "3"),
                Branch(0, "4", long),
            ]
        )

        assert [
            "0-3",
            "  main",
            "  ▸ 0-2",
            "      * train → wait",
            "      ▸ 1",
            "  ▸ 3",
            "4",
            f"  {long[0]} →",
            f"  {long[1]}",
        ] == blocks_text([tree]).splitlines()

    def test_deep(self):
        """
        Stacks may be deeper than a browser nests.
        """
        tree = Tree([Branch(depth, str(depth)) for depth in range(5_000)])

        page = _Page(blocks_html([tree]))

        assert [] == page.open
        assert "4999" in page.words

    def test_bounded(self):
        """
        A line of a log may be long; a page of a notebook is not.
        """
        long = "x" * 10_000_000

        page = blocks_html(
            [Lines([long]), Entries([Entry(long, [("a", long)])])]
        )

        assert len(page) < 100_000
