"""
The page: one file that shows a diagnosis, whatever is in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys

from html.parser import HTMLParser
from unittest.mock import Mock

import attrs
import pytest

from distdebug import report_html, write_report
from distdebug.__main__ import main
from distdebug.diagnosis import Seen
from distdebug.errors import (
    DistdebugError,
    MissingDependencyError,
    OutputError,
)
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
from distdebug.report import leave_report
from distdebug.report import page as module
from distdebug.report.section import Section
from distdebug.report.sections import SECTIONS
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


class Page(HTMLParser):
    """
    What a browser finds in a page.
    """

    def __init__(self, html):
        super().__init__()
        self.tags, self.ids, self.texts, self.open = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        """
        Remember it, and what it is called.
        """
        given = dict(attributes)
        self.tags.append((tag, given))
        self.ids += [given["id"]] if "id" in given else []
        self.open.append(tag)

    def handle_endtag(self, tag):
        """
        Whatever was opened in it is over.
        """
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        """
        Remember what is read, and where it stands.
        """
        self.texts.append((self.open[-1] if self.open else "", data))

    def text(self):
        """
        What a person reads.
        """
        shown = (t for tag, t in self.texts if tag not in {"script", "style"})
        return re.sub(r"\s+", " ", " ".join(shown))


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
        seen=Seen(paths=(HOSTILE,)),
    )


@pytest.fixture
def only(monkeypatch):
    """
    Let the page have one part, whose template is that of missing things.
    """

    def set_part(make):
        make.__name__ = "missing_section"
        monkeypatch.setattr(module, "SECTIONS", (make,))

    return set_part


def section(**kwargs):
    """
    A part without anything in it.
    """
    values = {"rows": [], "more": 0}
    return Section(name="missing", title="Part", values=values, **kwargs)


class TestReportHtml:
    def test_verdict_first(self):
        """
        The verdict, who is at fault, and what to do come before all parts.
        """
        html = report_html(PLAIN)

        text = Page(html).text()
        assert "Rank 3 never entered all_reduce #5." in text
        assert "Rank not arrived certain: the evidence leaves no" in text
        assert "At fault rank 3" in text
        assert "What to do Look at py-spy dump of rank 3." in text
        assert "<code>py-spy dump</code>" in html
        assert html.index("What to do") < html.index("<main")

    @pytest.mark.parametrize(
        ("cause", "tone", "mark"),
        [
            (Cause.HEALTHY, "fine", "✓"),
            (Cause.UNKNOWN, "unknown", "?"),
            (Cause.KILLED, "culprit", "✕"),
        ],
        ids=["healthy", "unknown", "killed"],
    )
    def test_tones(self, cause, tone, mark):
        """
        Healthy, unknown, and guilty differ by color, sign, and words.
        """
        verdict = attrs.evolve(PLAIN.verdict, cause=cause)

        html = report_html(Diagnosis(verdict=verdict))

        assert f'<header id="verdict" class="is-{tone}">' in html
        assert f'aria-hidden="true">{mark}</span>' in html

    def test_same_again(self):
        """
        The same diagnosis gives the same page.
        """
        assert report_html(PLAIN) == report_html(PLAIN)

    def test_self_contained(self):
        """
        Nothing in the page refers to anything outside of it.
        """
        page = Page(report_html(PLAIN))

        links = [
            value
            for _, given in page.tags
            for name, value in given.items()
            if name in {"src", "href", "action", "srcset", "data"}
        ]
        assert links
        assert all(link.startswith("#") for link in links)
        assert not {"link", "iframe", "object", "base", "form"} & {
            tag for tag, _ in page.tags if tag != "form"
        }

    def test_policy(self):
        """
        Browsers run the scripts of the page, and no others.
        """
        html = report_html(PLAIN)

        (policy,) = (
            given["content"]
            for tag, given in Page(html).tags
            if given.get("http-equiv") == "Content-Security-Policy"
        )
        scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
        hashes = {
            "'sha256-"
            + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()
            + "'"
            for s in scripts
        }
        assert scripts
        assert hashes == set(policy.partition("script-src ")[2].split())
        assert "default-src 'none'" in policy

    def test_ids(self):
        """
        No two things have one name, and every link leads to one of them.
        """
        html = report_html(hostile_diagnosis())

        page = Page(html)
        assert sorted(set(page.ids)) == sorted(page.ids)
        inside = {
            given["href"][1:]
            for tag, given in page.tags
            if tag == "a" and not given["href"].startswith("#rank=")
        }
        assert inside <= set(page.ids)

    def test_hostile(self):
        """
        What a job wrote never becomes a tag, nor what a terminal obeys.
        """
        html = report_html(hostile_diagnosis())

        page = Page(html)
        assert "could not be shown" not in page.text()
        assert "alert(1)" in page.text()
        assert not any(
            "alert" in t for tag, t in page.texts if tag == "script"
        )
        assert "img" not in {tag for tag, _ in page.tags}
        assert not re.search("[\x00\x07\x1b\u2028\u202e\ud800]", html)
        assert not any(
            name.startswith("on") for _, given in page.tags for name in given
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
    def test_data(self, only):
        """
        Data come back from the page as they were, whatever is in them.
        """
        data = {"text": HOSTILE, "numbers": [1, 2.5, None]}
        only(lambda _: section(data=data))

        html = report_html(PLAIN)

        found = re.search(
            r'<script type="application/json" id="data-missing">(.*?)</script>',
            html,
            re.DOTALL,
        )
        assert data == json.loads(found[1])
        assert not set("<>&") & set(found[1])

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
    def test_failing(self, only, make, reason):
        """
        A part that fails says so in its place, and the page is there.
        """
        only(make)

        text = Page(report_html(PLAIN)).text()

        assert "Rank 3 never entered" in text
        assert "Missing could not be shown" in text
        assert reason in text

    def test_none(self, only):
        """
        A part without anything to show is left out.
        """
        only(lambda _: None)

        page = Page(report_html(PLAIN))

        assert {"verdict", "parts", "selection"} == set(page.ids)

    @pytest.mark.parametrize("is_open", [True, False])
    def test_open(self, only, is_open):
        """
        A part is unfolded at first, if it wants to be.
        """
        only(lambda _: section(is_open=is_open))

        page = Page(report_html(PLAIN))

        assert is_open == (("details", {"open": None}) in page.tags)


def colors(css):
    """
    The colors of the light and of the dark page, by name.
    """
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block))
        for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]
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
    def test_contrast(self, scheme, name):
        """
        Every color of text is readable on every ground that it stands on.
        """
        (css,) = module._static(["page"], "css")
        told = colors(css)[scheme]
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
        names = [make.__name__.removesuffix("_section") for make in SECTIONS]

        styles = "".join(module._static(["top", *names], "css"))

        assert styles
        assert [] == re.findall(r"#[0-9a-f]{3,8}\b(?=[;, )])", styles)


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

    @pytest.mark.parametrize("name", ["_static", "_templates"])
    def test_own_files(self, monkeypatch, name):
        """
        If our own templates cannot be read, the error says so.
        """
        trouble = Mock(side_effect=PermissionError(13, "Permission denied"))
        monkeypatch.setattr(module, name, trouble)

        with pytest.raises(DistdebugError, match="templates") as caught:
            report_html(PLAIN)

        assert caught.value.remedy

    def test_no_templates(self, monkeypatch):
        """
        So it does if their folder is not there.
        """
        monkeypatch.setattr(
            "jinja2.PackageLoader", Mock(side_effect=ValueError("no folder"))
        )

        with pytest.raises(DistdebugError, match="no folder"):
            report_html(PLAIN)

    def test_without_jinja(self, tmp_path, monkeypatch):
        """
        Without jinja2 the error tells what to install; a snapshot is silent.
        """
        monkeypatch.setitem(sys.modules, "jinja2", None)

        with pytest.raises(MissingDependencyError, match="jinja2") as caught:
            write_report(PLAIN, tmp_path / "report.html")

        assert 'pip install "distdebug[report]"' == caught.value.remedy
        assert leave_report(PLAIN, tmp_path) is None
        assert [] == list(tmp_path.iterdir())

    def test_left_in_snapshot(self, tmp_path):
        """
        A snapshot gets a page beside what it took.
        """
        assert tmp_path / "report.html" == leave_report(PLAIN, tmp_path)
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
