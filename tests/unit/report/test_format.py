"""
The words of the page: sentences, commands, ranks, paths, times, what was seen.
"""

from __future__ import annotations

import re

from pathlib import Path

import attrs
import pytest

from distdebug import diagnose
from distdebug.causes import Cause
from distdebug.diagnosis import DiagnosisInputs, LogEvidence
from distdebug.findings import Diagnosis, Evidence, Finding
from distdebug.flight_recorder import Sidecar
from distdebug.health import NodeFacts
from distdebug.logs import CollectiveLogs
from distdebug.ray import Death, Deaths
from distdebug.stacks import ProcessStacks
from distdebug.testing import SimulatedJob, make_dumps


VERDICT = Finding(cause=Cause.KILLED, ranks=(3,), summary="rank 3 was killed")


def saying(**changes):
    """
    A diagnosis whose verdict is another one.
    """
    return Diagnosis(verdict=attrs.evolve(VERDICT, **changes))


def seeing(**seen):
    """
    A diagnosis that was made from this.
    """
    return Diagnosis(verdict=VERDICT, seen=DiagnosisInputs(**seen))


@pytest.fixture
def about(page):
    """
    What the page says of what was looked at.
    """
    return lambda diagnosis: page(diagnosis).root.pairs("dl.about")


def test_meanings(part):
    """
    Every cause has a meaning of one sentence.
    """
    causes = list(Cause)
    meanings = set()
    for few in (causes[i : i + 30] for i in range(0, len(causes), 30)):
        found = [attrs.evolve(VERDICT, cause=c, summary=str(c)) for c in few]
        shown = part("findings", attrs.evolve(saying(), findings=found))
        titles = [x.given.get("title") for x in shown.all("p.what span")]
        meanings.update(filter(None, titles))

    assert len(causes) == len(meanings)
    assert [] == [
        x for x in meanings if not re.fullmatch(r"[A-Z][^.]{5,150}\.", x)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank 3 is late", "Rank 3 is late."),
        ("is it?", "Is it?"),
        ("", ""),
        ("all_reduce hangs", "all_reduce hangs."),
        ("train.py:3 raised", "train.py:3 raised."),
        ("node-a: full", "node-a: full."),
        ("a\nb\x1b[31m", "A b."),
        ("é" * 2000, "É" + "é" * 998 + "…"),
    ],
    ids=["plain", "question", "none", "code", "file", "node", "lines", "long"],
)
def test_sentence(page, text, expected):
    """
    A part of a sentence becomes one; names of code stay as they are.
    """
    heading = page(saying(summary=text)).root.one("h1")

    assert expected == heading.text


def test_headings(page):
    """
    No line ends within what stands in short brackets.
    """
    text = f"Late (3 ranks wait) in f (t.py:1): ({'x' * 40})"

    heading = page(saying(summary=text)).root.one("h1")

    assert f"{text}." == heading.text
    assert ["(3 ranks wait)", "(t.py:1)"] == heading.texts("span.whole")


@pytest.mark.parametrize(
    ("cause", "words", "tone"),
    [
        (Cause.RANK_NOT_ARRIVED, "Rank not arrived", "culprit"),
        (Cause.GPU_FAULT, "GPU fault", "culprit"),
        (Cause.IO_WAIT, "IO wait", "culprit"),
        (Cause.NSIGHT_WRONG_PYTHON, "Nsight wrong python", "culprit"),
        (Cause.UNKNOWN, "Unknown", "unknown"),
        (Cause.IDLE, "Idle", "fine"),
    ],
    ids=str,
)
def test_causes(page, cause, words, tone):
    """
    A cause is called in words, and has a tone.
    """
    header = page(saying(cause=cause)).root.one("header")

    assert words == header.one("p.badge b").text
    assert {f"is-{tone}"} == header.classes


@pytest.mark.parametrize(
    ("remedy", "shown", "commands"),
    [
        (
            "run `dmesg -T` now (distdebug stacks --native), or wait",
            "Run dmesg -T now (distdebug stacks --native), or wait.",
            ["dmesg -T", "distdebug stacks --native"],
        ),
        ("press a ` b", "Press a ` b.", []),
    ],
    ids=["two", "none"],
)
def test_commands(page, remedy, shown, commands):
    """
    What can be typed is marked in what is merely read.
    """
    found = page(saying(remedy=remedy)).root.one("div.remedy p")

    assert (shown, commands) == (found.text, found.texts("code"))


def test_no_remedy(page):
    """
    Where nothing can be done, nothing is said about it.
    """
    assert [] == page(saying(remedy="")).root.all("div.remedy")


class TestRanks:
    def test_few(self, page):
        """
        A few ranks are shown one by one, each as a link.
        """
        facts = page(saying(ranks=(5, 3, 3))).root.one("dl.facts")

        links = facts.all("a.rank.is-culprit")
        assert ["rank 3", "rank 5"] == [link.text for link in links]
        assert ["#rank=3", "#rank=5"] == [link.given["href"] for link in links]

    def test_many(self, page):
        """
        Many are folded, and cut where even that is long.
        """
        facts = page(saying(ranks=range(0, 16384, 2))).root.pairs("dl.facts")

        assert facts["At fault"].startswith("8,192 ranks: 0,2,4,")
        assert facts["At fault"].endswith(",…")
        assert len(facts["At fault"]) < 330

    def test_none(self, page):
        """
        No rank has a number below zero.
        """
        assert {} == page(saying(ranks=(-1,))).root.pairs("dl.facts")


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("/home/al/run/dumps/r_3", "run/dumps/r_3"),
            ("/home/al/run", "run"),
            ("/home/al/running", "~/running"),
            ("/home/al/other.log", "~/other.log"),
            ("/root/x.log", "~/x.log"),
            ("/var/log/x", "/var/log/x"),
            ("logs/a/../b", "logs/b"),
            ("../else/c.log", "else/c.log"),
            ("py-spy", "py-spy"),
            (str(Path("logs/a").absolute()), "logs/a"),
        ],
    )
    def test_short(self, part, path, expected):
        """
        A file is called as seen from what was given, and without its home.
        """
        evidence = Evidence(kind="log", source=path, quote="x")
        diagnosis = attrs.evolve(
            saying(evidence=(evidence,)),
            seen=DiagnosisInputs(paths=("/home/al/run", "logs", "../else")),
        )

        shown = part("findings", diagnosis)

        (place,) = (x for x in shown.all("li span") if "data-place" in x.given)
        assert expected == place.text

    @pytest.mark.parametrize(
        ("path", "expected"),
        [("/a/b/", "b"), ("a/b/", "a/b"), ("/", "/"), (".", ".")],
    )
    def test_given(self, about, path, expected):
        """
        What was given is called as it was, but for where it lies.
        """
        assert expected == about(seeing(paths=(path,)))["From"]


class TestTimes:
    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [
            (1_750_000_000, "2025-06-15 15:06:40 UTC"),
            (None, "\u2013"),
            (0, "\u2013"),
            (-1, "\u2013"),
            (1e18, "\u2013"),
            (float("nan"), "\u2013"),
        ],
        ids=str,
    )
    def test_moment(self, part, seconds, expected):
        """
        A moment is written in UTC; what is none is left out.
        """
        died = Deaths(deaths=(Death(kind="node_died", time=seconds),))

        shown = part("logs", seeing(logs=LogEvidence(deaths=died)))

        assert expected == shown.one("td.when").text

    @pytest.mark.parametrize(
        ("last", "expected"),
        [
            (1_750_000_000, "2025-06-15 15:06:40 UTC"),
            (1_750_000_001, "2025-06-15 15:06:40 to 15:06:41 UTC"),
            (1_750_100_000, "2025-06-15 15:06:40 to 2025-06-16 18:53:20 UTC"),
            (1e18, "2025-06-15 15:06:40 UTC"),
        ],
        ids=["same", "later", "another day", "damaged"],
    )
    def test_span(self, about, last, expected):
        """
        A span names its day once.
        """
        stacks = tuple(
            ProcessStacks(pid=1, source="x", threads=(), taken=taken)
            for taken in (1_750_000_000, last)
        )

        assert expected == about(seeing(stacks=stacks))["Taken"]


class TestAbout:
    def test_nothing(self, about):
        """
        Of a diagnosis from another process nothing is known.
        """
        assert {} == about(saying())

    def test_dumps(self, page, tmp_path):
        """
        Who was seen and who was not, when, and how to look closer.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce", ranks=[0, 1, 2])
        make_dumps(tmp_path / "dumps", job, missing=[3])

        top = page(diagnose(tmp_path / "dumps")).root.one("header")

        facts = top.pairs("dl.about")
        assert "3 of 4; nothing of rank 3" == facts.pop("Ranks seen")
        assert {"Taken", "Versions", "Evidence", "From"} == facts.keys()
        assert [
            "python -m distdebug diagnose dumps",
            (
                "python -m distdebug analyze dumps --ranks 3 --entries "
                "--stack-traces"
            ),
        ] == top.texts("details.closer code")

    def test_all_kinds(self, page):
        """
        Each kind of evidence is counted, and nodes and job are named.
        """
        stacks = [
            ProcessStacks(
                pid=n,
                source="x",
                threads=(),
                rank=n,
                world_size=4,
                host=("n2", "n10")[n],
                job="job 7",
                taken=1_750_000_000.0 + n,
            )
            for n in range(2)
        ]
        logs = LogEvidence(
            files=("a", "b", "node.json"),
            facts=(NodeFacts(host="n7", taken=0.0),),
        )

        top = page(
            seeing(paths=("my logs", "dumps"), stacks=tuple(stacks), logs=logs)
        ).root.one("header")

        assert {
            "Ranks seen": "2 of 4; nothing of ranks 2-3",
            "Job": "job 7",
            "Nodes": "3 hosts: n2, n7, n10",
            "Taken": "2025-06-15 15:06:40 to 15:06:41 UTC",
            "Evidence": "2 processes with stacks, 2 logs, 1 node",
            "From": "my logs, dumps",
        } == top.pairs("dl.about")
        assert (
            "python -m distdebug stacks 'my logs' dumps"
            == top.texts("details.closer code")[-1]
        )

    def test_sidecars(self, about, seen_in):
        """
        Hosts, job, and version are taken from what lies beside the dumps.
        """
        job = SimulatedJob(1)
        job.collective("all_reduce")
        diagnosis = seen_in(job)
        flight = diagnosis.seen.flight
        sidecar = Sidecar(
            path="",
            rank=0,
            world_size=1,
            host="n5",
            pid=1,
            started=1.0,
            written=2.0,
            reason="call",
            job="run 9",
            torch="2.9.1",
        )
        dumps = attrs.evolve(flight.dumps, sidecars={0: sidecar})
        seen = DiagnosisInputs(flight=attrs.evolve(flight, dumps=dumps))

        told = about(attrs.evolve(diagnosis, seen=seen))

        assert ("run 9", "1 host: n5") == (told["Job"], told["Nodes"])
        assert told["Versions"].startswith("torch 2.9.1")

    def test_logs_alone(self, page):
        """
        If only logs say how many ranks there are, none is called missing.
        """
        logs = LogEvidence(collectives=CollectiveLogs(world_size=8))

        shown = page(seeing(logs=logs))

        assert {} == shown.root.pairs("dl.about")
        assert "nothing of" not in shown.root.text

    def test_strange_names(self, page):
        """
        A name that would be taken for an option is in no command.
        """
        shown = page(seeing(paths=("-rf",)))

        assert "-rf" == shown.root.pairs("dl.about")["From"]
        assert [] == shown.root.all("details.closer")


class TestTop:
    @pytest.mark.parametrize(
        ("victims", "expected"),
        [
            ((0, 1), "2 ranks rank 0rank 1"),
            ((9,), "1 rank rank 9"),
            (range(99), "99 ranks 0-98"),
        ],
        ids=["two", "one", "many"],
    )
    def test_victims(self, page, victims, expected):
        """
        Ranks that merely wait are shown apart from those at fault.
        """
        diagnosis = attrs.evolve(saying(), victims=tuple(victims))

        facts = page(diagnosis).root.pairs("dl.facts")

        assert {"At fault": "rank 3", "Merely waiting": expected} == facts

    def test_timeout(self, page):
        """
        Who reports that a call timed out is not to blame for it.
        """
        shown = page(saying(cause=Cause.COLLECTIVE_TIMEOUT)).root

        assert {"Told by": "rank 3"} == shown.pairs("dl.facts")
        assert [] == shown.all("dl.facts a.is-culprit")

    def test_sure(self, page):
        """
        The page says how sure the verdict is, unless there is none.
        """
        likely = page(saying()).root.one("span.sure")
        unknown = page(saying(cause=Cause.UNKNOWN)).root

        assert likely.text.startswith("likely: ")
        assert [] == unknown.all("span.sure")
