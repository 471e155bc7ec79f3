"""
The words of the page: sentences, commands, ranks, paths, times, what was seen.
"""

from __future__ import annotations

import re

from pathlib import Path

import attrs
import pytest

from distdebug import diagnose
from distdebug.diagnosis import LogEvidence, Seen
from distdebug.findings import Cause, Diagnosis, Finding
from distdebug.findings.meanings import meaning_of
from distdebug.flight_recorder import Sidecar
from distdebug.health import NodeFacts
from distdebug.logscan import CollectiveLogs
from distdebug.report import report_html
from distdebug.report.about import about
from distdebug.report.paths import given_name, short_path
from distdebug.report.ranks import rank_links
from distdebug.report.times import moment_text, span_text
from distdebug.report.top import top_of
from distdebug.report.words import (
    Piece,
    as_sentence,
    cause_words,
    pieces_of,
    tone_of,
    unbroken,
)
from distdebug.stacks import ProcessStacks
from distdebug.testing import SimulatedJob, make_dumps


VERDICT = Finding(cause=Cause.KILLED, ranks=(3,), summary="rank 3 was killed")


@pytest.mark.parametrize("cause", Cause, ids=str)
def test_meanings(cause):
    """
    Every cause has a meaning of one sentence.
    """
    meaning = meaning_of(cause)

    assert re.fullmatch(r"[A-Z][^.]{5,150}\.", meaning)


class TestWords:
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
        ids=[
            "plain",
            "question",
            "none",
            "code",
            "file",
            "node",
            "lines",
            "long",
        ],
    )
    def test_sentence(self, text, expected):
        """
        A part of a sentence becomes one; names of code stay as they are.
        """
        assert expected == as_sentence(text)

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
    def test_causes(self, cause, words, tone):
        """
        A cause is called in words, and has a tone.
        """
        assert words == cause_words(cause)
        assert tone == tone_of(cause)

    def test_commands(self):
        """
        What can be typed is told from what is merely read.
        """
        text = "run `dmesg -T` now (distdebug stacks --native), or wait"

        assert (
            Piece("run "),
            Piece("dmesg -T", is_command=True),
            Piece(" now ("),
            Piece("distdebug stacks --native", is_command=True),
            Piece("), or wait"),
        ) == pieces_of(text)

    def test_no_commands(self):
        """
        A sentence without any is one piece; nothing is none.
        """
        assert (Piece("a ` b"),) == pieces_of("a ` b")
        assert () == pieces_of("")


class TestRanks:
    def test_few(self):
        """
        A few ranks are shown one by one.
        """
        links = rank_links([5, 3, 3])

        assert (2, "3,5", (3, 5)) == (links.count, links.folded, links.first)
        assert links

    def test_many(self):
        """
        Many are folded, and cut where even that is long.
        """
        links = rank_links(range(0, 16384, 2))

        assert (8192, ()) == (links.count, links.first)
        assert links.folded.startswith("0,2,4,")
        assert links.folded.endswith(",…")
        assert len(links.folded) < 310

    def test_none(self):
        """
        None are none; and none has a number below zero.
        """
        assert not rank_links([-1])


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
        ],
    )
    def test_short(self, path, expected):
        """
        A file is called as seen from what was given, and without its home.
        """
        given = ["/home/al/run", "logs", "../else"]

        assert expected == short_path(path, given)

    def test_absolute(self):
        """
        A file below a relative folder is told as relative, too.
        """
        assert "logs/a" == short_path(str(Path("logs/a").absolute()), ["logs"])

    @pytest.mark.parametrize(
        ("path", "expected"),
        [("/a/b/", "b"), ("a/b/", "a/b"), ("/", "/"), (".", ".")],
    )
    def test_given(self, path, expected):
        """
        What was given is called as it was, but for where it lies.
        """
        assert expected == given_name(path)


class TestTimes:
    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [
            (1_750_000_000, "2025-06-15 15:06:40 UTC"),
            (None, ""),
            (0, ""),
            (-1, ""),
            (1e18, ""),
            (float("nan"), ""),
        ],
        ids=str,
    )
    def test_moment(self, seconds, expected):
        """
        A moment is told in UTC; what is none is not told.
        """
        assert expected == moment_text(seconds)

    @pytest.mark.parametrize(
        ("last", "expected"),
        [
            (1_750_000_000, "2025-06-15 15:06:40 UTC"),
            (1_750_000_001, "2025-06-15 15:06:40 to 15:06:41 UTC"),
            (
                1_750_100_000,
                "2025-06-15 15:06:40 to 2025-06-16 18:53:20 UTC",
            ),
            (1e18, "2025-06-15 15:06:40 UTC"),
        ],
        ids=["same", "later", "another day", "damaged"],
    )
    def test_span(self, last, expected):
        """
        A span names its day once.
        """
        assert expected == span_text(1_750_000_000, last)


class TestAbout:
    def test_nothing(self):
        """
        Of a diagnosis from another process nothing is known.
        """
        assert not attrs.asdict(about(Diagnosis(verdict=VERDICT)))["facts"]

    def test_dumps(self, tmp_path):
        """
        Who was seen and who was not, when, and how to look closer.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce", ranks=[0, 1, 2])
        make_dumps(tmp_path / "dumps", job, missing=[3])

        told = about(diagnose(tmp_path / "dumps"))

        assert (4, 3, (3,)) == (
            told.world_size,
            told.ranks.count,
            told.unseen.first,
        )
        assert {"Taken", "Versions", "Evidence", "From"} == {
            label for label, _ in told.facts
        }
        assert "python -m distdebug diagnose dumps" == told.commands[0]
        assert (
            "python -m distdebug analyze dumps --ranks 3 --entries "
            "--stack-traces" == told.commands[1]
        )

    def test_all_kinds(self):
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
        seen = Seen(
            paths=("my logs", "dumps"),
            stacks=tuple(stacks),
            logs=LogEvidence(
                files=("a", "b", "node.json"),
                facts=(NodeFacts(host="n7", taken=0.0),),
            ),
        )

        told = about(Diagnosis(verdict=VERDICT, seen=seen))

        assert {
            "Job": "job 7",
            "Nodes": "3 hosts: n2, n7, n10",
            "Taken": "2025-06-15 15:06:40 to 15:06:41 UTC",
            "Evidence": "2 processes with stacks, 2 logs, 1 node",
            "From": "my logs, dumps",
        } == dict(told.facts)
        assert (
            "python -m distdebug stacks 'my logs' dumps" == (told.commands[-1])
        )

    def test_sidecars(self, tmp_path):
        """
        Hosts, job, and version are told by what lies beside the dumps.
        """
        job = SimulatedJob(1)
        job.collective("all_reduce")
        make_dumps(tmp_path, job)
        diagnosis = diagnose(tmp_path)
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
        seen = Seen(flight=attrs.evolve(flight, dumps=dumps))

        told = dict(about(attrs.evolve(diagnosis, seen=seen)).facts)

        assert ("run 9", "1 host: n5") == (told["Job"], told["Nodes"])
        assert told["Versions"].startswith("torch 2.9.1")

    def test_logs_alone(self):
        """
        Logs tell how many ranks there are, and who is missing is not known.
        """
        logs = LogEvidence(collectives=CollectiveLogs(world_size=8))

        told = about(Diagnosis(verdict=VERDICT, seen=Seen(logs=logs)))

        assert (8, 0, 0) == (
            told.world_size,
            told.ranks.count,
            told.unseen.count,
        )

    def test_strange_names(self):
        """
        A name that would be taken for an option is in no command.
        """
        seen = Seen(paths=("-rf",))

        assert () == about(Diagnosis(verdict=VERDICT, seen=seen)).commands


class TestTop:
    def test_victims(self):
        """
        Who merely waits is told apart from who is at fault.
        """
        top = top_of(Diagnosis(verdict=VERDICT, victims=(0, 1)))

        assert ((3,), (0, 1)) == (top.culprits.first, top.victims.first)

    def test_timeout(self):
        """
        Who reports that a call timed out is not to blame for it.
        """
        timeout = attrs.evolve(VERDICT, cause=Cause.COLLECTIVE_TIMEOUT)

        html = report_html(Diagnosis(verdict=timeout))

        assert "<dt>Told by</dt>" in html
        assert "At fault" not in html
        assert top_of(Diagnosis(verdict=VERDICT)).are_to_blame

    def test_sure(self):
        """
        It is told how sure the verdict is, unless there is none.
        """
        unknown = attrs.evolve(VERDICT, cause=Cause.UNKNOWN)

        assert top_of(Diagnosis(verdict=VERDICT)).sure.startswith("likely: ")
        assert "" == top_of(Diagnosis(verdict=unknown)).sure


def test_headings():
    """
    No line ends within what stands in short brackets.
    """
    text = f"Late (3 ranks wait) in f (t.py:1): ({'x' * 40})"

    parts = unbroken(text)

    assert text == "".join(parts)
    assert ("(3 ranks wait)", "(t.py:1)") == parts[1::2]
