"""
Books of phases, as data.
"""

from __future__ import annotations

import re

import pytest

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdebug._search import all_literals, required_literals
from distdebug.errors import LogError, RulesError
from distdebug.logs import (
    detect_phase,
    load_framework_rules,
    read_framework_rules,
)
from distdebug.logs.phases.framework_rules import make_rule_index


PATTERNS = list(
    dict.fromkeys(
        rule.pattern
        for index in [make_rule_index(read_framework_rules())]
        for rules in index.by_text.values()
        for rule in rules
    )
)

MINE = r"""
[framework]
name = "ourtrainer"
title = "Our trainer"
start = ['=== boot ===']

[[phase]]
name = "tokens"
title = "asking the token server"
begin = ['asking (?P<server>\S{1,60}) for tokens']
end = ['tokens (?P<tokens>\d{1,12}) received']
silent_s = 60
reason = "the token server is down"
remedy = "ask #tokens"

[[phase]]
name = "go"
title = "training"
begin = ['LETS GO']
progress = ['tick (?P<done>\d{1,9}) of (?P<total>\d{1,9})']
trains = true

[[failure]]
name = "no_tokens"
cause = "io_wait"
patterns = ['token server refused']
summary = "the token server refused[ {why}]"

[[ending]]
how = "completed"
patterns = ['that was all']
"""


@pytest.fixture
def write(tmp_path):
    """
    Writes a file of rules.
    """

    def write(text):
        file = tmp_path / "mine.toml"
        file.write_text(text)
        return file

    return write


def test_own():
    """
    Our own books name every framework, and say what to do about each phase.
    """
    books = {book.name: book for book in read_framework_rules()}

    assert {
        *("torchspec", "nemo_rl", "verl", "slime", "openrlhf", "skyrl"),
        *("vllm", "sglang", "torchtitan", "megatron", "huggingface"),
        *("common", "failures"),
    } == set(books)
    assert 7 == len(books["torchspec"].phases)
    for book in books.values():
        for phase in book.phases:
            names = {other.name for other in book.phases}
            assert phase.reason
            assert phase.remedy
            assert set(phase.until) <= names
            assert phase.typical_s < phase.alarming_s


def test_own_are_fast():
    """
    Each pattern of ours can be looked for by a plain text.
    """
    for book in read_framework_rules():
        for phase in book.phases:
            for kind in ("begin", "progress", "end", "end_part", "fail"):
                for pattern in getattr(phase, kind):
                    assert required_literals(pattern), pattern.pattern


@settings(
    max_examples=150, suppress_health_check=[*HealthCheck], deadline=None
)
@given(st.data())
def test_literals(data):
    """
    Whatever a pattern matches holds a text of each of its sets of literals, so
    that looking for those first loses nothing.
    """
    pattern = data.draw(st.sampled_from(PATTERNS))
    text = data.draw(st.from_regex(pattern))
    found = pattern.search(text)

    assert all(
        any(literal in found[0] for literal in texts)
        for texts in all_literals(pattern)
    )


def test_mine(write):
    """
    A book of the user makes its framework known.
    """
    log = "=== boot ===\n12: asking tok-1:80 for tokens\n"

    report = detect_phase(log, rules=[write(MINE)])

    assert "ourtrainer" == report.framework
    assert "Our trainer" == report.title
    assert "tokens" == report.current.name
    assert "tok-1:80" == report.current.facts["server"]


def test_mine_trains(write):
    """
    Its steps, failures, and ends count as ours do.
    """
    log = "LETS GO\ntick 3 of 12\ntoken server refused\nthat was all\n"

    report = detect_phase(log, rules=write(MINE))

    assert 25 == report.percent
    assert "completed" == report.ended
    assert "the token server refused" == report.findings[0].summary
    assert report.findings[0].remedy is None


@pytest.mark.parametrize(
    ("line", "is_full"),
    [
        ("OSError: No space left on device", True),
        ("open failed: no space LEFT on device", True),
        ("DISK_FULL_ACTION=wait, as when the disk is full", False),
    ],
)
def test_mine_by_name(write, line, is_full):
    """
    A failure may name rules of logs; their words count in any case.
    """
    old = "cause = \"io_wait\"\npatterns = ['token server refused']"
    mine = write(MINE.replace(old, "rules = ['disk full']"))

    findings = detect_phase(f"LETS GO\n{line}\n", rules=mine).findings

    mine = [x for x in findings if "token server" in x.summary]
    assert is_full == bool(mine)
    assert {"disk_full"} >= {x.cause for x in findings}


def test_mine_takes_the_place_of_ours(write):
    """
    A book with the name of one of ours takes its place.
    """
    mine = write(MINE.replace("ourtrainer", "verl"))

    books = {book.name: book for book in read_framework_rules([mine])}

    assert "Our trainer" == books["verl"].title


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[framework]", "[framework", "Expected"),
        ("[[ending]]", "[[odd]]", "no such table: 'odd'"),
        ("[[failure]]", "[failure]", "write [[failure]]"),
        ("silent_s = 60", "silent = 60", "no such key: 'silent'"),
        ("silent_s = 60", "silent_s = nan", "silent_s has the wrong type"),
        ("silent_s = 60", "silent_s = -1", "silent_s has the wrong type"),
        ("silent_s = 60", "silent_s = true", "silent_s has the wrong type"),
        ("trains = true", "trains = 1", "trains has the wrong type"),
        ("begin = ['LETS GO']", "begin = 'LETS GO'", "begin has the wrong"),
        ("begin = ['LETS GO']", "begin = [3]", "begin has the wrong"),
        ("begin = ['LETS GO']", "begin = ['(']", "phase 2: pattern"),
        ("begin = ['LETS GO']", "begin = ['(a+)+b']", "too many ways"),
        ('name = "go"', 'name = "tokens"', "two phases have one name"),
        ("trains = true", 'part_of = "odd"', "go is part of no phase"),
        ('name = "go"', 'name = "Go Go"', "a name is small letters"),
        ('title = "training"', "", "title"),
        ('how = "completed"', 'how = "fine"', "how is completed or"),
        ('cause = "io_wait"', 'cause = "rain"', "rain"),
        ('cause = "io_wait"', 'confidence = "sure"', "confidence is certain"),
        (
            "patterns = ['token server refused']",
            "rules = ['rain']",
            "no rule of signatures.toml has the name 'rain'",
        ),
        (
            "patterns = ['token server refused']",
            "",
            "neither rules nor patterns",
        ),
        ("start =", 'kind = "boat"\nstart =', "kind is orchestrator"),
        ("start =", "phases = []\nstart =", "no such key: 'phases'"),
        ("start =", "table = '(a+)+'\nstart =", "too many ways"),
        ("start =", "table = '('\nstart =", "pattern"),
        (
            "begin = ['LETS GO']\nprogress",
            "facts",
            "neither begin, progress, nor bars",
        ),
    ],
)
def test_bad(write, old, new, said):
    """
    A file that is no book is refused, with the file and what is wrong.
    """
    file = write(MINE.replace(old, new, 1))

    with pytest.raises(RulesError, match=re.escape(said)) as caught:
        load_framework_rules(file)

    assert str(file) == caught.value.path


@pytest.mark.parametrize(
    "text",
    ["framework = 3\n", "phase = [3]\n", "x = " + "[" * 2000],
    ids=["framework", "phase", "deep"],
)
def test_odd(write, text):
    """
    So is TOML of another form.
    """
    with pytest.raises(RulesError):
        load_framework_rules(write(text))


def test_none(tmp_path):
    """
    So is a file that is not there.
    """
    with pytest.raises(RulesError, match="No such file"):
        read_framework_rules([tmp_path / "none.toml"])


def test_unknown_framework():
    """
    The error about an unknown framework names those that are known.
    """
    with pytest.raises(LogError, match="no such framework: 'jax'") as caught:
        detect_phase(["x"], framework="jax")

    assert "torchspec" in caught.value.remedy
    assert "failures" not in caught.value.remedy


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"Lets \w+\b", "Lets go"),
        (r"\d+ (?:cats|dogs)x", "3 dogsx"),
        (r"(?:cats|d)", "d"),
        (r"(?i)lets go", "Lets GO"),
        (r"(?:abc){2}", "abcabc"),
        (r"(?:abc)?x", "x"),
        (r"(?:abc|)\d", "3"),
        (r"(?>abcd)", "abcd"),
        (r"[ab]\d", "b3"),
    ],
)
def test_patterns(write, pattern, line):
    """
    Lines are found whether or not a pattern has a plain text to look for.
    """
    book = write(MINE.replace("LETS GO", pattern))

    report = detect_phase(["quiet", line], rules=book)

    assert ("go", 2) == (report.current.name, report.current.line.number)
