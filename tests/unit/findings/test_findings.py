"""
The shape of conclusions, as data and as text.
"""

from __future__ import annotations

import json
import re

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.findings import (
    Clause,
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


GROUP = GroupRef(name="0", desc="default_pg", ranks=(0, 1, 2, 3))
FINDING = Finding(
    cause=Cause.RANK_NOT_ARRIVED,
    ranks=(3,),
    summary="rank 3 never entered all_reduce #9 of group 'default_pg'",
    confidence="certain",
    remedy="look at rank 3",
    group=GROUP,
    collective=CollectiveRef(op="all_reduce", seq=9),
    detail_cause=Cause.DATALOADER_WAIT,
    location=Location(function="read_shard", file="train.py", line=41),
    evidence=(Evidence(kind="stack", source="pyspy_1.txt", quote="read"),),
)


@pytest.fixture(name="diagnosis")
def _diagnosis():
    """
    One rank is absent, another one left no dump.
    """
    return Diagnosis(
        verdict=FINDING,
        findings=(FINDING,),
        victims=(0, 1, 2),
        missing=(Missing(what="dump", rank=5, reason="there is no dump"),),
        groups=(
            GroupProgress(
                name="0",
                desc="default_pg",
                ranks=(0, 1, 2, 3),
                last_completed=8,
                furthest=9,
                waiting=(0, 1, 2),
                absent=(3,),
            ),
        ),
    )


class TestNames:
    def test_group(self):
        """
        A group goes by its description, or else by its name.
        """
        assert "default_pg" == str(GROUP)
        assert "7" == str(GroupRef(name="7", desc="undefined", ranks=()))
        assert "7" == str(GroupRef(name="7", desc="", ranks=()))
        assert "dp" == str(GroupRef(name="7", desc="d\u202ep\x1b", ranks=()))

    def test_collective(self):
        """
        A call goes by its operation and number.
        """
        assert "all_reduce #9" == str(FINDING.collective)

    def test_location(self):
        """
        A line goes by its function, file, and number.
        """
        assert "read_shard (train.py:41)" == str(FINDING.location)


class TestClauses:
    @pytest.mark.parametrize(
        ("link", "text"),
        [
            ("because", "it died; because rank 3 slept"),
            ("perhaps because", "it died; perhaps because rank 3 slept"),
            ("but", "it died; but rank 3 slept"),
            ("and", "it died; rank 3 slept"),
            ("doing", "it died. Rank 3 slept"),
        ],
    )
    def test_link(self, link, text):
        """
        A clause is kept as data, and ends the sentence.
        """
        finding = attrs.evolve(FINDING, summary="it died")
        new = Evidence(kind="log", source="a.log")

        longer = finding.with_clause(
            link, "rank 3 slept", evidence=[new], confidence="possible"
        )

        assert text == longer.summary
        assert (Clause(link=link, text="rank 3 slept"),) == longer.clauses
        assert (new, *finding.evidence) == longer.evidence
        assert "possible" == longer.confidence


class TestToDict:
    def test_layout(self, diagnosis):
        """
        The layout is that of the command line's JSON; it may only grow.
        """
        data = diagnosis.to_dict()

        verdict = {
            "cause": "rank_not_arrived",
            "ranks": [3],
            "summary": FINDING.summary,
            "confidence": "certain",
            "remedy": "look at rank 3",
            "group": {
                "name": "0",
                "desc": "default_pg",
                "ranks": [0, 1, 2, 3],
            },
            "collective": {"op": "all_reduce", "seq": 9, "p2p": False},
            "detail_cause": "dataloader_wait",
            "location": {
                "function": "read_shard",
                "file": "train.py",
                "line": 41,
            },
            "activity": None,
            "waiting": [],
            "waited_s": None,
            "evidence": [
                {
                    "kind": "stack",
                    "source": "pyspy_1.txt",
                    "location": "",
                    "quote": "read",
                }
            ],
            "clauses": [],
            "cost": None,
            "is_consequence": False,
        }
        assert {
            "verdict": verdict,
            "findings": [verdict],
            "victims": [0, 1, 2],
            "missing": [
                {
                    "what": "dump",
                    "reason": "there is no dump",
                    "rank": 5,
                    "source": None,
                }
            ],
            "groups": [
                {
                    "name": "0",
                    "desc": "default_pg",
                    "ranks": [0, 1, 2, 3],
                    "last_completed": 8,
                    "furthest": 9,
                    "waiting": [0, 1, 2],
                    "absent": [3],
                }
            ],
            "known_bugs": [],
            "checked": None,
        } == data

    def test_json(self, diagnosis):
        """
        It is plain data all the way down, causes included.
        """
        data = diagnosis.to_dict()

        assert data == json.loads(json.dumps(data))
        assert type(data["verdict"]["cause"]) is str

    def test_empty(self):
        """
        What does not apply is null.
        """
        data = Finding(cause=Cause.HEALTHY, ranks=(), summary="-").to_dict()

        assert {
            "remedy",
            "group",
            "collective",
            "detail_cause",
            "location",
            "activity",
            "waited_s",
            "cost",
        } == {key for key, value in data.items() if value is None}

    def test_records(self, diagnosis):
        """
        One record per finding makes a data frame.
        """
        assert [FINDING.to_dict()] == diagnosis.to_records()


class TestText:
    def test_first_line(self, diagnosis):
        """
        The first line alone is fit for a ticket.
        """
        assert FINDING.summary == str(diagnosis).splitlines()[0]

    def test_all(self, diagnosis):
        """
        Evidence, remedy, progress, victims, and what is missing follow.
        """
        lines = [line.strip() for line in str(diagnosis).splitlines()]

        assert "cause: rank_not_arrived (certain)" in lines
        assert "stack: read" in lines
        assert "next: look at rank 3" in lines
        assert "waiting on others: ranks 0-2" in lines
        assert "note: dump of rank 5: there is no dump" in lines
        assert any(line.startswith("0: default_pg  0-3") for line in lines)

    def test_others(self, diagnosis):
        """
        Other findings come after the verdict; many are only counted.
        """
        others = tuple(
            Finding(cause=Cause.STRAGGLER, ranks=(r,), summary=f"slow {r}")
            for r in range(20)
        )

        text = str(Diagnosis(verdict=FINDING, findings=(FINDING, *others)))

        assert "also:\nslow 0" in text
        assert "slow 19" not in text
        assert "… and 15 more findings" in text

    def test_hostile(self):
        """
        What a job wrote cannot steer the terminal.
        """
        evil = "\x1b[31mred\x07"
        finding = Finding(
            cause=Cause.UNKNOWN,
            ranks=(),
            summary=evil,
            evidence=(Evidence(kind="log", source="x", quote=evil),),
        )
        group = GroupProgress(
            name=evil, desc=evil, ranks=(0,), last_completed=0, furthest=1
        )
        missing = Missing(what="dump", reason=evil, source=evil)

        text = str(
            Diagnosis(verdict=finding, groups=(group,), missing=(missing,))
        )

        assert "red" in text
        assert text.replace("\n", "").isprintable()

    def test_folded(self):
        """
        Equal reasons are told once; the file is named if there is only one.
        """
        missing = (
            *(Missing(what="dump", rank=r, reason="gone") for r in (1, 2)),
            Missing(what="dump", reason="broken", source="x.bin"),
        )

        text = str(Diagnosis(verdict=FINDING, missing=missing))

        assert "note: dump of ranks 1-2: gone" in text
        assert "note: dump: broken [x.bin]" in text

    def test_many(self):
        """
        Thousands of groups or problems do not hide the verdict.
        """
        groups = tuple(
            GroupProgress(
                name=str(i),
                desc="",
                ranks=(i,),
                last_completed=0,
                furthest=1,
                waiting=(i,) if i == 77 else (),
            )
            for i in range(100)
        )
        missing = tuple(
            Missing(what="log", reason=f"reason {i}") for i in range(100)
        )

        lines = str(
            Diagnosis(verdict=FINDING, groups=groups, missing=missing)
        ).splitlines()

        assert len(lines) < 70
        assert "… and 76 more groups" in lines
        assert "… and 76 more" in lines
        assert any(line.startswith("77 ") for line in lines)

    def test_notebook(self, diagnosis):
        """
        IPython shows the same text.
        """

        class Printer:
            said = ""

            def text(self, text):
                self.said = text

        printer = Printer()
        diagnosis._repr_pretty_(printer, cycle=False)
        plain = printer.said
        diagnosis._repr_pretty_(printer, cycle=True)

        assert (str(diagnosis), "...") == (plain, printer.said)


@pytest.mark.parametrize("cause", list(Cause))
def test_healthy(cause):
    """
    Only causes that need no mending mean that all is well.
    """
    verdict = Finding(cause=cause, ranks=(), summary="-")

    healthy = Diagnosis(verdict=verdict).is_healthy

    fine = {"healthy", "progressing", "idle", "event_loop_idle"}
    assert (cause in fine) == healthy


def test_costs(diagnosis):
    """
    Several slow ranks are compared by what they cost.
    """
    costs = [
        Cost(
            side="host",
            seconds=seconds,
            share=seconds / 100,
            per_call_s=0.1,
            calls=10,
            of_calls=20,
        )
        for seconds in (4.0, 31.5)
    ]
    slow = [
        attrs.evolve(FINDING, cause=Cause.STRAGGLER, ranks=(rank,), cost=cost)
        for rank, cost in enumerate(costs)
    ]
    several = attrs.evolve(diagnosis, verdict=slow[0], findings=tuple(slow))

    lines = str(several).splitlines()

    assert [
        ["1", "31.5 s", "32%", "10 of 20"],
        ["0", "4.0 s", "4%", "10 of 20"],
    ] == [
        [line.split()[0], *re.findall(r"[\d.]+ s|\d+%|\d+ of \d+", line)]
        for line in lines
        if "of 20" in line
    ]
