"""
The documentation explains every cause, by what really shows it.
"""

from __future__ import annotations

import re

from pathlib import Path

import pytest

from distdebug import diagnose
from distdebug.causes import Cause


DOCS = Path(__file__).parents[2] / "docs"
PAGES = DOCS / "explanation" / "causes"
# A raylet's own log is known by where it lies.
NAMES = {
    Cause.NSIGHT_WRONG_PYTHON: "session_2026-02-20_02-03-57_123456_4711/logs/"
    "raylet.err"
}

if not DOCS.is_dir():
    pytest.skip("the documentation is not here", allow_module_level=True)


def _sections() -> dict[str, tuple[str, str]]:
    """
    The page and the text of each section that is called after a cause.
    """
    found = {}
    for page in sorted(PAGES.glob("*.md")):
        parts = re.split(
            r"^#{2,3} (.*)$", page.read_text("utf-8"), flags=re.MULTILINE
        )
        for title, text in zip(parts[1::2], parts[2::2], strict=True):
            if title.startswith("`"):
                assert title not in found, f"{title} is explained twice"
                found[title.strip("`")] = (page.name, text)
    return found


SECTIONS = _sections()


def _excerpt(cause: str) -> str:
    (found,) = re.findall(
        r"^```text\n(.*?)^```", SECTIONS[cause][1], re.MULTILINE | re.DOTALL
    )
    return found


LOGS = [cause for cause in SECTIONS if "  cause: " not in _excerpt(cause)]


def test_all():
    """
    Every cause is explained, and nothing else.
    """
    assert sorted(Cause) == sorted(SECTIONS)


def test_reference():
    """
    The list names each with its meaning, and leads to its explanation.
    """
    text = (DOCS / "reference" / "causes.md").read_text("utf-8")
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(\.\./explanation/causes/([\w.-]+)#(\w+)\) \| (.+) \|$",
        text,
        re.MULTILINE,
    )

    assert [
        (cause, SECTIONS[cause][0], cause, cause.meaning)
        for cause in (Cause(row[0]) for row in rows)
    ] == rows
    assert sorted(Cause) == sorted(row[0] for row in rows)


@pytest.mark.parametrize("cause", sorted(SECTIONS))
def test_parts(cause):
    """
    Each says why it happens, what to do, and what it is mistaken for.
    """
    text = SECTIONS[cause][1]

    leads = re.findall(r"^\*\*(.+?)\.\*\*  \S", text, re.MULTILINE)

    assert ["Why", "Do", "Mistaken for"] == leads
    assert len(text.strip().splitlines()) <= 30


@pytest.mark.parametrize("cause", sorted(set(SECTIONS) - set(LOGS)))
def test_finding(cause):
    """
    An excerpt of what we print is about that cause.
    """
    (shown,) = re.findall(r"^  cause: (\w+) \(", _excerpt(cause), re.MULTILINE)

    assert cause == shown


@pytest.mark.parametrize("cause", sorted(LOGS))
def test_log(tmp_path, cause):
    """
    An excerpt of a log, given to us, yields that cause.
    """
    log = tmp_path / NAMES.get(Cause(cause), "job.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(_excerpt(cause), encoding="utf-8")

    verdict = diagnose(tmp_path).verdict

    assert cause == verdict.cause


def test_logs_are_found():
    """
    Excerpts of logs are distinguished from those of what we print.
    """
    assert Cause.DISK_FULL in LOGS
    assert len(LOGS) > 10


def test_other_words():
    """
    What another analyzer says is told in causes that there are.
    """
    text = (DOCS / "reference" / "causes.md").read_text("utf-8")
    _, _, table = text.partition("## In the words of")
    rows = re.findall(r"^\| .* \| (.*) \|$", table, re.MULTILINE)[1:]

    named = {x for row in rows for x in re.findall(r"`([a-z_]+)`", row)}

    assert len(rows) > 10
    assert named - {"missing", "possible", "detail_cause"} <= {*Cause}
