"""
The page: one file that shows a diagnosis, whatever is in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re

from importlib.resources import files

import attrs
import pytest

from distdebug import diagnose, report_html, write_report
from distdebug.__main__ import main
from distdebug.causes import Cause
from distdebug.diagnosis import DiagnosisInputs
from distdebug.errors import (
    DistdebugError,
    OutputError,
)
from distdebug.findings import (
    CollectiveRef,
    Diagnosis,
    Evidence,
    Finding,
    GroupProgress,
    GroupRef,
    Location,
    Missing,
)
from distdebug.report import page as module
from distdebug.report import try_write_report
from distdebug.report.format import Section
from distdebug.testing import SimulatedJob, make_dumps


HOSTILE = (
    "</script></style></title><script>alert(1)</script><img src=x onerror=a>"
    "&amp;\"'--><!--\x1b[31mred\x1b]0;title\x07\u202egnp.exe\x00\ud800\u2028"
)
# A page without data has only these.
PLAIN = Diagnosis(
    verdict=Finding(
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=(3,),
        summary="rank 3 never entered all_reduce #5",
        confidence="certain",
        remedy="look at `py-spy dump` of rank 3",
    )
)


def hostile_diagnosis():
    """
    A diagnosis in which every text is hostile.
    """
    evidence = Evidence(
        kind=HOSTILE, source=HOSTILE, location=HOSTILE, quote=HOSTILE
    )
    finding = Finding(
        cause=Cause.IO_WAIT,
        ranks=(1, 2),
        summary=HOSTILE,
        remedy=HOSTILE,
        group=GroupRef(name=HOSTILE, desc=HOSTILE, ranks=(0, 1)),
        collective=CollectiveRef(op=HOSTILE, seq=1),
        location=Location(function=HOSTILE, file=HOSTILE, line=1),
        evidence=(evidence,),
    )
    return Diagnosis(
        verdict=finding,
        findings=(finding, attrs.evolve(finding, ranks=(5,))),
        victims=(7,),
        missing=(Missing(what=HOSTILE, reason=HOSTILE, source=HOSTILE),),
        groups=(
            GroupProgress(
                name=HOSTILE,
                desc=HOSTILE,
                ranks=(0, 1),
                last_completed=1,
                furthest=2,
                waiting=(0,),
                absent=(1,),
            ),
        ),
        seen=DiagnosisInputs(paths=(HOSTILE,)),
    )


@pytest.fixture
def only(monkeypatch):
    """
    Let the page have one part, whose template is that of missing things.
    """

    def set_part(make):
        make.__name__ = "missing_section"
        # No diagnosis makes a part of ours fail, and yet a part may.
        monkeypatch.setattr(module, "SECTIONS", (make,))

    return set_part


def section(**kwargs):
    """
    A part without anything in it.
    """
    values = {"rows": [], "more": 0}
    return Section(name="missing", title="Part", values=values, **kwargs)


class TestReportHtml:
    def test_verdict_first(self, page):
        """
        The verdict, who is at fault, and what to do come before all parts.
        """
        shown = page(PLAIN)

        header = shown.root.one("header")
        assert shown.html.index("</header>") < shown.html.index("<main")
        assert "Rank 3 never entered all_reduce #5." == header.one("h1").text
        assert "Rank not arrived" == header.one("p.badge b").text
        assert "certain: the evidence leaves no" in header.text
        assert {"At fault": "rank 3"} == header.pairs("dl.facts")
        assert (
            "Look at py-spy dump of rank 3." == header.one("div.remedy p").text
        )

    @pytest.mark.parametrize(
        ("cause", "tone", "mark"),
        [
            (Cause.HEALTHY, "fine", "✓"),
            (Cause.UNKNOWN, "unknown", "?"),
            (Cause.KILLED, "culprit", "✕"),
        ],
        ids=["healthy", "unknown", "killed"],
    )
    def test_tones(self, page, cause, tone, mark):
        """
        Healthy, unknown, and guilty differ by color, sign, and words.
        """
        verdict = attrs.evolve(PLAIN.verdict, cause=cause)

        header = page(Diagnosis(verdict=verdict)).root.one("header")

        assert {f"is-{tone}"} == header.classes
        assert mark == header.one("span.mark").text

    def test_same_again(self, page):
        """
        The same diagnosis gives the same page; without anything to show but
        the verdict, it has no parts.
        """
        again = attrs.evolve(PLAIN, findings=(PLAIN.verdict,))

        assert report_html(PLAIN) == report_html(PLAIN) == report_html(again)
        assert [] == page(PLAIN).root.all("section")

    def test_self_contained(self, page):
        """
        Nothing in the page refers to anything outside of it.
        """
        nodes = list(page(PLAIN).root.inside())

        links = [
            value
            for node in nodes
            for name, value in node.given.items()
            if name in {"src", "href", "action", "srcset", "data"}
        ]
        assert links
        assert all(link.startswith("#") for link in links)
        assert not {"link", "iframe", "object", "base"} & {
            node.tag for node in nodes
        }

    def test_policy(self, page):
        """
        Browsers run the scripts of the page, and no others.
        """
        shown = page(PLAIN)

        (policy,) = (
            meta.given["content"]
            for meta in shown.root.all("meta")
            if meta.given.get("http-equiv") == "Content-Security-Policy"
        )
        scripts = re.findall(r"<script>(.*?)</script>", shown.html, re.DOTALL)
        hashes = {
            "'sha256-"
            + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()
            + "'"
            for s in scripts
        }
        assert scripts
        assert hashes == set(policy.partition("script-src ")[2].split())
        assert "default-src 'none'" in policy

    def test_ids(self, page):
        """
        No two things have one name, and every link leads to one of them.
        """
        root = page(hostile_diagnosis()).root

        ids = [n.given["id"] for n in root.inside() if "id" in n.given]
        links = {link.given["href"][1:] for link in root.all("a")}
        assert sorted(set(ids)) == sorted(ids)
        assert {x for x in links if not x.startswith("rank=")} <= set(ids)

    def test_hostile(self, page):
        """
        What a job wrote never becomes a tag, nor what a terminal obeys.
        """
        shown = page(hostile_diagnosis())

        scripts = ["".join(x.parts) for x in shown.root.all("script")]
        nodes = list(shown.root.inside())
        assert [] == shown.root.all("p.failed")
        assert "alert(1)" in shown.root.text
        assert not any("alert" in script for script in scripts)
        assert "img" not in {node.tag for node in nodes}
        assert not re.search("[\x00\x07\x1b\u2028\u202e\ud800]", shown.html)
        assert not any(
            name.startswith("on") for node in nodes for name in node.given
        )

    def test_long(self):
        """
        A line of 10 MB does not make a page of 10 MB.
        """
        line = "x" * 10_000_000
        evidence = Evidence(kind="log", source=line, quote=line)
        verdict = attrs.evolve(
            PLAIN.verdict, summary=line, remedy=line, evidence=(evidence,)
        )
        missing = Missing(what=line, reason=line, source=line)

        html = report_html(
            Diagnosis(verdict=verdict, missing=(missing,), findings=(verdict,))
        )

        assert len(html) < 100_000


class TestParts:
    def test_data(self, only, page):
        """
        Data come back from the page as they were, whatever is in them.
        """
        data = {"text": HOSTILE, "numbers": [1, 2.5, None]}
        only(lambda _: section(data=data))

        shown = page(PLAIN)

        (script,) = (
            "".join(x.parts) for x in shown.root.all("script") if x.given
        )
        assert data == json.loads(script)
        assert not set("<>&") & set(script)

    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
            (lambda _: Section(name="missing", title="x"), "UndefinedError"),
            (lambda _: section(data={"x": float("nan")}), "ValueError"),
            (lambda _: section(data=object()), "TypeError"),
        ],
        ids=["computing", "template", "nan", "no JSON"],
    )
    def test_failing(self, only, page, make, reason):
        """
        A part that fails says so in its place, and the page is there.
        """
        only(make)

        root = page(PLAIN).root

        assert root.one("h1").text.startswith("Rank 3 never entered")
        assert "Missing could not be shown" == root.one("summary").text
        assert reason in root.one("p.failed").text

    def test_none(self, only, page):
        """
        A part without anything to show is left out.
        """
        only(lambda _: None)

        root = page(PLAIN).root

        assert [[]] == [main.all("") for main in root.all("main")]
        assert [] == root.all("nav")

    @pytest.mark.parametrize("is_open", [True, False])
    def test_open(self, only, part, is_open):
        """
        A part is unfolded at first, if it wants to be.
        """
        only(lambda _: section(is_open=is_open))

        assert is_open == part("missing", PLAIN).is_open


def colors(css):
    """
    The colors of the light and of the dark page, by name.
    """
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block))
        for block in re.findall(r":root[^{]* \{(.*?)\}", css, re.DOTALL)
    )
    return {"light": light, "dark": {**light, **dark}}


def luminance(color):
    """
    How bright a color is, as WCAG 2 has it.
    """
    digits = (
        color[1:] if len(color) == 7 else "".join(c * 2 for c in color[1:])
    )
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [
        p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4
        for p in parts
    ]
    return sum(
        w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


class TestStyle:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize(
        "name",
        ["fg", "muted", "link", "culprit", "victim", "fine", "unknown"],
    )
    def test_contrast(self, page, scheme, name):
        """
        Every color of text is readable on every ground that it stands on.
        """
        css = page(PLAIN).root.all("style")[0]
        told = colors("".join(css.parts))[scheme]
        grounds = {"bg", "soft", f"{name}-soft"} & set(told)
        if name in {"fg", "muted"}:
            grounds |= {ground for ground in told if ground.endswith("-soft")}

        ratios = {}
        for ground in grounds:
            pair = sorted(luminance(told[x]) for x in (name, ground))
            ratios[ground] = (pair[1] + 0.05) / (pair[0] + 0.05)

        assert {} == {k: v for k, v in ratios.items() if v < 4.5}

    def test_only_tokens(self):
        """
        No part has colors of its own.
        """
        styles = [
            style.read_text("utf-8")
            for style in (files("distdebug.report") / "static").iterdir()
            if style.name.endswith(".css") and style.name != "colors.css"
        ]

        assert styles
        assert [] == re.findall(r"#[0-9a-f]{3,8}\b(?=[;, )])", "".join(styles))


class TestWriteReport:
    def test_written(self, tmp_path):
        """
        The page is a file that only its owner may read.
        """
        path = write_report(PLAIN, tmp_path / "report.html")

        assert tmp_path / "report.html" == path
        assert report_html(PLAIN) == path.read_text("utf-8")
        assert 0o600 == path.stat().st_mode & 0o777

    def test_no_folder(self, tmp_path):
        """
        If it cannot be written, the error says so, and what helps.
        """
        with pytest.raises(OutputError, match="cannot write to") as caught:
            write_report(PLAIN, tmp_path / "nowhere" / "report.html")

        assert caught.value.remedy

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            ("jinja2.PackageLoader", PermissionError(13, "not permitted")),
            ("jinja2.PackageLoader", ValueError("no folder")),
            ("pathlib.Path.read_text", PermissionError(13, "not permitted")),
        ],
        ids=["templates", "no folder", "styles"],
    )
    def test_own_files(self, monkeypatch, name, error):
        """
        If our own templates cannot be read, the error says so.
        """

        def fail(*_):
            raise error

        monkeypatch.setattr(name, fail)

        with pytest.raises(DistdebugError, match="templates") as caught:
            report_html(PLAIN)

        assert error.args[-1] in str(caught.value)
        assert caught.value.remedy

    def test_not_left_in_snapshot(self, tmp_path):
        """
        A snapshot whose page cannot be written is complete without it.
        """
        assert try_write_report(PLAIN, tmp_path / "nowhere") is None
        assert [] == list(tmp_path.iterdir())

    def test_left_in_snapshot(self, tmp_path):
        """
        A snapshot gets a page beside what it took.
        """
        assert tmp_path / "report.html" == try_write_report(PLAIN, tmp_path)
        assert (tmp_path / "report.html").is_file()


class TestCommand:
    def test_html(self, tmp_path, capsys):
        """
        ``diagnose --html`` also writes the page, and says where it lies.
        """
        job = SimulatedJob(4)
        job.collective("all_reduce", ranks=[0, 1, 2])
        make_dumps(tmp_path / "dumps", job)
        page = tmp_path / "report.html"

        status = main(
            [
                "diagnose",
                str(tmp_path / "dumps"),
                "--json",
                "--html",
                str(page),
            ]
        )

        told = capsys.readouterr()
        assert 1 == status
        assert f"report: {page}\n" == told.err
        assert [3] == json.loads(told.out)["verdict"]["ranks"]
        assert "Rank 3 never entered all_reduce #1" in page.read_text("utf-8")


def test_sources(tmp_path):
    """
    What `diagnose` takes will do in the place of its diagnosis.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce", ranks=[0])
    make_dumps(tmp_path, job)

    page = report_html(tmp_path)

    assert report_html(diagnose(tmp_path)) == page
    assert "rank 1 never entered all_reduce #1" in page
    assert write_report([tmp_path], tmp_path / "r.html").exists()
