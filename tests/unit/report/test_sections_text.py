"""
The parts of the page that are text: findings, progress, what is missing, files.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug import diagnose, report_html
from distdebug.diagnosis import LogEvidence, Seen
from distdebug.findings import (
    Cause,
    CollectiveRef,
    Diagnosis,
    Evidence,
    Finding,
    GroupProgress,
    GroupRef,
    Location,
    Missing,
)
from distdebug.raylogs import Death, Deaths
from distdebug.report.sections.files import files_section
from distdebug.report.sections.findings import findings_section
from distdebug.report.sections.missing import missing_section
from distdebug.report.sections.progress import progress_section
from distdebug.stacks import ProcessStacks
from distdebug.testing import SimulatedJob, make_dumps


VERDICT = Finding(
    cause=Cause.RANK_NOT_ARRIVED, ranks=(3,), summary="rank 3 is late"
)


def group(name, **kwargs):
    """
    A process group of two ranks that made one call.
    """
    given = {"ranks": (0, 1), "last_completed": 1, "furthest": 1} | kwargs
    return GroupProgress(name=name, desc=given.pop("desc", "dp"), **given)


def diagnosis(**kwargs):
    """
    A diagnosis with the same verdict.
    """
    return Diagnosis(verdict=VERDICT, **kwargs)


class TestFindings:
    def test_none(self):
        """
        A verdict that rests on nothing has no part of its own.
        """
        assert findings_section(diagnosis()) is None
        assert findings_section(diagnosis(findings=(VERDICT,))) is None

    def test_verdict_first(self):
        """
        The verdict comes first, and only once.
        """
        other = attrs.evolve(VERDICT, cause=Cause.IDLE, summary="rank 1 idles")

        part = findings_section(diagnosis(findings=(other, VERDICT)))

        shown = part.values["findings"]
        assert ["Rank 3 is late.", "Rank 1 idles."] == [
            f.sentence for f in shown
        ]
        assert ["culprit", "fine"] == [f.tone for f in shown]
        assert "the verdict and 1 more" == part.summary

    def test_details(self):
        """
        Group, call, line, and what the host does are told.
        """
        finding = attrs.evolve(
            VERDICT,
            group=GroupRef(name="1", desc="mesh_dp", ranks=(2, 3)),
            collective=CollectiveRef(op="all_reduce", seq=5),
            location=Location(function="read", file="train.py", line=41),
            detail_cause=Cause.IO_WAIT,
        )

        part = findings_section(diagnosis(findings=(finding,)))

        assert (
            ("call", "all_reduce #5"),
            ("group", "mesh_dp"),
            ("line", "read (train.py:41)"),
            ("on its host", "io_wait"),
        ) == part.values["findings"][1].facts

    def test_evidence(self):
        """
        A quote is told with its place, seen from what was given.
        """
        evidence = Evidence(
            kind="dump",
            source="/home/alice/run/dumps/rank_3",
            location="record 7",
            quote="all_reduce\x1b[31m #5",
        )
        verdict = attrs.evolve(VERDICT, evidence=(evidence,))
        seen = Seen(paths=("/home/alice/run",))

        part = findings_section(Diagnosis(verdict=verdict, seen=seen))

        (quote,) = part.values["findings"][0].evidence
        assert ("dump", "run/dumps/rank_3, record 7", "all_reduce #5") == quote
        assert "the evidence for the verdict" == part.summary

    def test_many(self):
        """
        Of thousands, what is left out is counted.
        """
        evidence = tuple(
            Evidence(kind="log", source="", quote=str(n)) for n in range(1000)
        )
        found = [
            attrs.evolve(VERDICT, ranks=(n,), evidence=evidence)
            for n in range(1000)
        ]

        part = findings_section(diagnosis(findings=tuple(found)))

        verdict, *others = part.values["findings"]
        assert 1000 == part.values["more"] + len(others)
        assert 1000 == others[0].more + len(others[0].evidence)
        assert () == verdict.evidence


class TestProgress:
    def test_none(self):
        """
        Without groups there is no part.
        """
        assert progress_section(diagnosis()) is None

    def test_stuck_first(self):
        """
        Groups that are stuck come first, with who waits for whom.
        """
        stuck = group("7", furthest=2, waiting=(0,), absent=(1,))

        part = progress_section(diagnosis(groups=(group("1"), stuck)))

        first, second = part.values["rows"]
        assert "1 of 2 groups stuck" == part.summary
        assert ("7", (0,), (1,)) == (
            first.name,
            first.waiting.first,
            first.absent.first,
        )
        assert (("waiting", 50.0), ("absent", 50.0)) == first.shares
        assert (("fine", 100.0),) == second.shares

    def test_blamed_first(self):
        """
        Hundreds that are stuck behind others do not hide those that matter.
        """
        behind = [
            group(
                str(n),
                ranks=(n, n + 1, n + 2),
                waiting=(n, n + 1),
                absent=(n + 2,),
            )
            for n in range(10, 300)
        ]
        blamed = group("blamed", ranks=(3, 4), waiting=(4,), absent=(3,))
        named = group("named", ranks=(3, 5), waiting=(5,), absent=(3,))
        verdict = attrs.evolve(
            VERDICT, group=GroupRef(name="named", desc="tp", ranks=(3, 5))
        )
        found = Diagnosis(verdict=verdict, groups=(*behind, blamed, named))

        rows = progress_section(found).values["rows"]
        lines = str(found).splitlines()

        assert ["named", "blamed"] == [row.name for row in rows[:2]]
        table = lines[
            next(n for n, x in enumerate(lines) if x[:5] == "-----") :
        ]
        assert ["named:", "blamed:"] == [x.split()[0] for x in table[1:3]]

    def test_folded(self):
        """
        Groups that got equally far are one row; stuck ones each have theirs.
        """
        fine = [group(str(n), ranks=(2 * n, 2 * n + 1)) for n in range(4096)]
        stuck = [
            group(f"s{n}", ranks=(n, n + 1), waiting=(n,)) for n in range(3)
        ]

        part = progress_section(diagnosis(groups=(*fine, *stuck)))

        rows = part.values["rows"]
        assert [1, 1, 1, 4096] == [row.number for row in rows]
        assert "0-8191" == rows[-1].ranks

    def test_many_stuck(self):
        """
        Of thousands that are stuck, the first are seen at once.
        """
        stuck = [group(str(n), waiting=(0,)) for n in range(5000)]

        part = progress_section(diagnosis(groups=tuple(stuck)))

        values = part.values
        assert len(values["rows"]) < len(values["others"]) < 1000
        assert 5000 == sum(
            (len(values["rows"]), len(values["others"]), values["more"])
        )

    def test_shown(self):
        """
        The page tells who is waited for, and marks only whom the verdict names.
        """
        stuck = group(
            "7", ranks=(1, 2, 3), waiting=(1,), absent=(2, 3), furthest=-1
        )

        html = report_html(diagnosis(groups=(stuck, group("8"), group("9"))))

        table = html[html.index('<table class="groups">') :]
        assert 'class="rank is-culprit" href="#rank=3"' in table
        assert 'class="rank" href="#rank=2"' in table
        assert '33 % wait, 67 % are waited for"' in table
        assert "\u00d7 2 groups" in table


class TestMissing:
    def test_none(self):
        """
        If nothing is missing, there is no part.
        """
        assert missing_section(diagnosis()) is None

    def test_folded(self):
        """
        What is missing for the same reason is told once, with all ranks.
        """
        lost = [
            Missing(what="dump", reason="none", rank=n, source=f"/x/{n}")
            for n in range(100)
        ]
        alone = Missing(what="log", reason="too old")

        part = missing_section(
            diagnosis(missing=(*lost, alone), seen=Seen(paths=("/x",)))
        )

        first, second = part.values["rows"]
        assert (100, "None.", "0-99") == (
            first.number,
            first.reason,
            first.ranks.folded,
        )
        assert "x/0" == first.sources[0]
        assert 100 == first.more + len(first.sources)
        assert ("log", 1, ()) == (second.what, second.number, second.sources)
        assert "101 things could not be looked at" == part.summary
        assert not part.is_open

    def test_many(self):
        """
        Of thousands of reasons, what is left out is counted.
        """
        lost = tuple(Missing(what="log", reason=str(n)) for n in range(3000))

        part = missing_section(diagnosis(missing=lost))

        assert 3000 == part.values["more"] + len(part.values["rows"])

    def test_one(self):
        """
        One thing is told as one.
        """
        lost = Missing(what="dump", reason="there is no dump", rank=2)

        part = missing_section(diagnosis(missing=(lost,)))

        assert "1 thing could not be looked at" == part.summary


class TestFiles:
    def test_none(self):
        """
        A diagnosis from another process does not tell of files.
        """
        assert files_section(diagnosis()) is None

    def test_all_kinds(self, tmp_path):
        """
        All that was read is told by its kind, size, and short name.
        """
        log = tmp_path / "train.log"
        log.write_text("x" * 2048)
        ray = Death(kind="node_died", log=tmp_path / "raylet.err")
        stacks = ProcessStacks(
            pid=1, source=str(tmp_path / "gone"), threads=()
        )
        seen = Seen(
            paths=(str(tmp_path),),
            stacks=(stacks, stacks),
            logs=LogEvidence(
                files=(str(log), str(tmp_path / "a" / "node.json")),
                deaths=Deaths(deaths=(ray, Death(kind="node_died"))),
            ),
        )

        part = files_section(diagnosis(seen=seen))

        kinds = {kind.name: kind for kind in part.values["kinds"]}
        assert ["stacks", "logs", "facts of nodes", "logs of Ray"] == list(
            kinds
        )
        assert [(f"{tmp_path.name}/train.log", "2.0 KiB")] == list(
            kinds["logs"].files
        )
        assert [(f"{tmp_path.name}/gone", "")] == list(kinds["stacks"].files)
        assert "4 files" == part.summary

    def test_dumps(self, tmp_path):
        """
        Dumps and their side-cars are told.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        make_dumps(tmp_path, job)

        part = files_section(diagnose(tmp_path))

        (dumps,) = part.values["kinds"]
        assert ("dumps", 2) == (dumps.name, dumps.number)

    @pytest.mark.parametrize("count", [1, 20_000])
    def test_counted(self, count):
        """
        However many there are, a part of them is named and all are counted.
        """
        files = tuple(f"/nowhere/{n}.log" for n in range(count))
        seen = Seen(paths=("/nowhere",), logs=LogEvidence(files=files))

        part = files_section(diagnosis(seen=seen))

        (logs,) = part.values["kinds"]
        assert count == logs.number
        assert min(count, 400) == len(logs.files)
        assert part.summary in {"1 file", "20,000 files"}
