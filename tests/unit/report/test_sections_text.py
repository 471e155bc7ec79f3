"""
The parts of the page that are text: findings, progress, what is missing, files.
"""

from __future__ import annotations

import re

import attrs
import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.diagnosis import DiagnosisInputs, LogEvidence
from distdebug.findings import (
    CollectiveRef,
    Cost,
    Diagnosis,
    Evidence,
    Finding,
    GroupProgress,
    GroupRef,
    Location,
    Missing,
)
from distdebug.ray import Death, Deaths
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


def more(node, noun):
    """
    How many more of these a list says that there are.
    """
    found = re.fullmatch(rf"… and ([0-9,]+) {noun} more", node.text)
    return int(found[1].replace(",", ""))


class TestFindings:
    def test_verdict_first(self, part):
        """
        The verdict comes first, and only once.
        """
        other = attrs.evolve(VERDICT, cause=Cause.IDLE, summary="rank 1 idles")

        shown = part("findings", diagnosis(findings=(other, VERDICT)))

        assert ["Rank 3 is late.", "Rank 1 idles."] == shown.texts("h3")
        assert [{"finding", "is-culprit"}, {"finding", "is-fine"}] == [
            article.classes for article in shown.all("article")
        ]
        assert "the verdict and 1 more" == shown.summary

    def test_details(self, part):
        """
        Group, call, line, and what the host does are shown.
        """
        finding = attrs.evolve(
            VERDICT,
            group=GroupRef(name="1", desc="mesh_dp", ranks=(2, 3)),
            collective=CollectiveRef(op="all_reduce", seq=5),
            location=Location(function="read", file="train.py", line=41),
            detail_cause=Cause.IO_WAIT,
        )

        shown = part("findings", diagnosis(findings=(finding,)))

        told = shown.one("p.what").text
        assert told.endswith(
            "call all_reduce #5 group mesh_dp line read (train.py:41) "
            "on its host io_wait"
        )

    def test_evidence(self, part):
        """
        A quote is shown with its place, seen from what was given.
        """
        evidence = Evidence(
            kind="dump",
            source="/home/alice/run/dumps/rank_3",
            location="record 7",
            quote="all_reduce\x1b[31m #5",
        )
        verdict = attrs.evolve(VERDICT, evidence=(evidence,))
        seen = DiagnosisInputs(paths=("/home/alice/run",))

        shown = part("findings", Diagnosis(verdict=verdict, seen=seen))

        assert [
            "dump run/dumps/rank_3, record 7 all_reduce #5"
        ] == shown.texts("ul.evidence li")
        assert "the evidence for the verdict" == shown.summary

    def test_many(self, part):
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

        shown = part("findings", diagnosis(findings=tuple(found)))

        verdict, *others = shown.all("article")
        assert 1000 == len(others) + more(shown.all("p.muted")[-1], "findings")
        assert 1000 == len(others[0].all("li")) + more(
            others[0].one("details p.muted"), "pieces"
        )
        assert "1,000 pieces of evidence" == others[0].one("summary").text
        assert [] == verdict.all("li")


class TestCosts:
    def test_sorted(self, part):
        """
        What each slow rank costs, the worst first.
        """
        costs = {
            rank: Cost(
                side="host",
                seconds=seconds,
                share=seconds / 100,
                per_call_s=0.25,
                calls=10,
                of_calls=20,
            )
            for rank, seconds in ((3, 4.0), (5, 31.5))
        }
        slow = tuple(
            Finding(
                cause=Cause.STRAGGLER, ranks=(rank,), summary="slow", cost=cost
            )
            for rank, cost in costs.items()
        )

        shown = part("costs", diagnosis(findings=slow))

        first, second = shown.rows("table.groups")
        assert "36% of the time" == shown.summary
        assert ["rank 5", "host", "\u2013", "31.5 s", "250.0 ms"] == first[:5]
        assert "10 of 20" == second[5]
        assert second[6].startswith("4%")

    def test_none(self, part):
        """
        Where nobody is slow, there is no table.
        """
        assert part("costs", diagnosis()) is None


class TestProgress:
    def test_stuck_first(self, part):
        """
        Groups that are stuck come first, with who waits for whom.
        """
        stuck = group("7", furthest=2, waiting=(0,), absent=(1,))

        shown = part("progress", diagnosis(groups=(group("1"), stuck)))

        first, second = shown.rows("table.groups")
        assert "1 of 2 groups stuck" == shown.summary
        assert ["dp 7", "rank 0", "rank 1", "#1", "#2"] == first[:5]
        assert ["dp 1", "none", "\u2013", "#1", "#1"] == second[:5]
        assert [
            "50 % wait, 50 % are waited for",
            "100 % are not in a call that is stuck",
        ] == [bar.given["aria-label"] for bar in shown.all("svg.bar")]

    def test_blamed_first(self, part):
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

        rows = part("progress", found).rows("table.groups")
        lines = str(found).splitlines()

        assert ["dp named", "dp blamed"] == [row[0] for row in rows[:2]]
        rule = next(n for n, x in enumerate(lines) if x[:5] == "-----")
        assert ["named:", "blamed:"] == [
            x.split()[0] for x in lines[rule + 1 : rule + 3]
        ]

    def test_folded(self, part):
        """
        Groups that got equally far are one row; stuck ones each have theirs.
        """
        fine = [group(str(n), ranks=(2 * n, 2 * n + 1)) for n in range(4096)]
        stuck = [
            group(f"s{n}", ranks=(n, n + 1), waiting=(n,)) for n in range(3)
        ]

        rows = part("progress", diagnosis(groups=(*fine, *stuck))).rows(
            "table.groups"
        )

        assert ["dp s0", "dp s1", "dp s2", "dp \u00d7 4,096 groups"] == [
            row[0] for row in rows
        ]
        assert rows[-1][-1].startswith("2 each 0-8191")

    def test_many_stuck(self, part):
        """
        Of thousands that are stuck, the first are seen at once.
        """
        stuck = [group(str(n), waiting=(0,)) for n in range(5000)]

        shown = part("progress", diagnosis(groups=tuple(stuck)))

        (folded,) = shown.one("div.body").all("details")
        rows = len(shown.rows("table.groups"))
        others = len(folded.rows("table.groups"))
        assert rows - others < others < 1000
        assert 5000 == rows + more(folded.all("p.muted")[-1], "kinds")

    def test_blamed(self, part):
        """
        Of those who are waited for, only whom the verdict names is marked.
        """
        stuck = group(
            "7", ranks=(1, 2, 3), waiting=(1,), absent=(2, 3), furthest=-1
        )

        shown = part(
            "progress", diagnosis(groups=(stuck, group("8"), group("9")))
        )

        links = {link.text: link for link in shown.all("a")}
        assert {"rank", "is-culprit"} == links["rank 3"].classes
        assert {"rank"} == links["rank 2"].classes
        assert "#rank=3" == links["rank 3"].given["href"]
        assert "\u2013" == shown.rows("table.groups")[0][4]


class TestMissing:
    def test_folded(self, part):
        """
        What is missing for the same reason is listed once, with all ranks.
        """
        lost = [
            Missing(what="dump", reason="none", rank=n, source=f"/x/{n}")
            for n in range(100)
        ]
        alone = Missing(what="log", reason="too old")

        shown = part(
            "missing",
            diagnosis(
                missing=(*lost, alone), seen=DiagnosisInputs(paths=("/x",))
            ),
        )

        first, second = shown.rows("table")
        assert ["dump \u00d7 100", "100 ranks: 0-99"] == first[:2]
        assert first[2].startswith("None. x/0, x/1, ")
        assert 100 == first[2].count("x/") + int(first[2].split()[-2])
        assert ["log", "\u2013", "Too old."] == second
        assert "101 things could not be inspected" == shown.summary
        assert not shown.is_open

    @pytest.mark.parametrize(
        ("count", "summary"), [(1, "1 thing"), (3000, "3,000 things")]
    )
    def test_many(self, part, count, summary):
        """
        All are counted; of thousands of reasons, a part is shown.
        """
        lost = tuple(Missing(what="log", reason=str(n)) for n in range(count))

        shown = part("missing", diagnosis(missing=lost))

        assert f"{summary} could not be inspected" == shown.summary
        assert count == len(shown.rows("table")) + sum(
            more(node, "reasons") for node in shown.all("p.muted")
        )


class TestFiles:
    def test_all_kinds(self, part, tmp_path):
        """
        All that was read is listed by its kind, size, and short name.
        """
        log = tmp_path / "train.log"
        log.write_text("x" * 2048)
        ray = Death(kind="node_died", log=tmp_path / "raylet.err")
        stacks = ProcessStacks(
            pid=1, source=str(tmp_path / "gone"), threads=()
        )
        seen = DiagnosisInputs(
            paths=(str(tmp_path),),
            stacks=(stacks, stacks),
            logs=LogEvidence(
                files=(str(log), str(tmp_path / "a" / "node.json")),
                deaths=Deaths(deaths=(ray, Death(kind="node_died"))),
            ),
        )

        shown = part("files", diagnosis(seen=seen))

        assert [
            *("1 stacks 0 B", "1 logs 2.0 KiB", "1 facts of nodes 0 B"),
            "1 logs of Ray 0 B",
        ] == shown.texts("div.body summary")
        name = tmp_path.name
        assert [
            [f"{name}/gone", "gone"],
            [f"{name}/train.log", "2.0 KiB"],
            [f"{name}/a/node.json", "gone"],
            [f"{name}/raylet.err", "gone"],
        ] == shown.rows("table.files")
        assert "4 files" == shown.summary

    def test_dumps(self, part, tmp_path):
        """
        Dumps are listed.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        make_dumps(tmp_path, job)

        shown = part("files", diagnose(tmp_path))

        (dumps,) = shown.texts("div.body summary")
        assert dumps.startswith("2 dumps ")

    @pytest.mark.parametrize(
        ("count", "summary", "named"),
        [(1, "1 file", 1), (20_000, "20,000 files", 400)],
    )
    def test_counted(self, part, count, summary, named):
        """
        However many there are, a part of them is named and all are counted.
        """
        files = tuple(f"/nowhere/{n}.log" for n in range(count))
        seen = DiagnosisInputs(
            paths=("/nowhere",), logs=LogEvidence(files=files)
        )

        shown = part("files", diagnosis(seen=seen))

        assert summary == shown.summary
        assert f"{count:,} logs 0 B" == shown.one("div.body summary").text
        assert named == len(shown.rows("table.files"))
