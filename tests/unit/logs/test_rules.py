"""
Rules about lines of logs, as data.
"""

from __future__ import annotations

import os
import re
import time

import pytest

from distdebug.causes import Cause
from distdebug.errors import RulesError
from distdebug.logs import LogRule, load_rules
from distdebug.logs.collectives.collect import read_collective_logs
from distdebug.logs.collectives.model import read_forms
from distdebug.logs.rules import make_rule_set, match_text, read_rules


MINE = r"""
[[rule]]
name = "token server"
words = ["TokenServer", "tokens gone"]
pattern = 'TokenServer \w{1,20} lost shard (?P<key>\d{1,9}) of rank (?P<rank>\d{1,9})'
unless = 'for a test'
cause = "io_wait"
says = "the token server lost a shard"
remedy = "ask #tokens"
priority = 1
confidence = "certain"

[[rule]]
name = "our chatter"
words = ["No space left on device (simulated)"]
is_harmless = true
"""


@pytest.fixture
def write(tmp_path):
    """
    Writes a file of rules.
    """

    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


def test_own():
    """
    Ours have different names, and each that matters has words for people.
    """
    rules = read_rules()

    bad = [rule for rule in rules if not rule.is_harmless]

    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.says and rule.remedy for rule in bad)
    assert all(rule.cause is not Cause.UNKNOWN for rule in bad)
    assert all(
        rule.says[0].islower()
        or rule.says[:2].isupper()
        or rule.says.split()[0] in {"Ray", "Slurm", "InfiniBand"}
        for rule in bad
    )
    assert all(rule.is_harmless for rule in rules[: len(rules) - len(bad)])


@pytest.mark.parametrize("rule", read_rules(), ids=lambda rule: rule.name)
def test_examples(rule):
    """
    Of all rules, the first that fits an example is the one that has it.
    """
    rule_set = make_rule_set(read_rules())

    rule.check_examples()

    assert rule is match_text(rule.example, rule_set)


FORMS = [
    (section, form)
    for section in ("each", "first", "nccl")
    for form in read_forms(section)
]


@pytest.mark.parametrize(
    ("section", "form"), FORMS, ids=lambda x: getattr(x, "example", x)[:40]
)
def test_examples_of_messages(section, form):
    """
    A line that is an example becomes the record that its form says.
    """
    prefix = "n1:7:9 [0] NCCL INFO " if section == "nccl" else ""

    records = read_collective_logs(f"{prefix}{form.example}\n").records

    assert form.word in form.example
    assert [form.record] == [type(x) for x in records]
    assert not form.kind or form.kind == records[0].kind


@pytest.mark.parametrize(
    ("key", "line", "message"),
    [
        ("example", "hello", "does not match 'hello'"),
        ("counterexample", "TokenServer 1 lost shard 1 of rank 1", "matches"),
    ],
)
def test_wrong_example(write, key, line, message):
    """
    A rule of the user is refused if its example does not fit it.
    """
    rule, _, _ = MINE[1:].partition("\n\n")

    with pytest.raises(RulesError, match=message):
        load_rules(write(f"{rule}\n{key} = '{line}'\n"))


def test_users(scan, write):
    """
    Rules of the user are tried first, and what they say is reported.
    """
    report = scan(
        "TokenServer x lost shard 17 of rank 3\n"
        "TokenServer x lost shard 17 of rank 4\n"
        "TokenServer y lost shard 18 of rank 4\n"
        "TokenServer y lost shard 19 of rank 4 for a test\n"
        "No space left on device (simulated)\n",
        rules=[write(MINE)],
    )

    assert ["17", "18"] == [x.key for x in report.groups]
    assert [(3, 4), (4,)] == [x.ranks for x in report.findings]
    assert (
        "ranks 3-4: the token server lost a shard (17) (2 lines)"
        == report.findings[0].summary
    )
    assert "ask #tokens" == report.findings[0].remedy
    assert {"our chatter": 1} == report.harmless


def test_before(scan):
    """
    The rank may stand in a line before.
    """
    report = scan(
        "Root Cause (first observed failure):\n"
        "[0]:\n"
        "  time      : 2026-02-20_02:03:57\n"
        "  host      : n1\n"
        "  rank      : 11 (local_rank: 3)\n"
        "  exitcode  : -9 (pid: 42)\n"
        "  error_file: <N/A>\n"
    )

    killed = next(x for x in report.findings if x.cause is Cause.KILLED)
    assert (11,) == killed.ranks


# The beginning of a rule that is right so far.
GOOD = "[[rule]]\nname='a'\nwords=['hello']\nsays='x'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule = 1", "write [[rule]]"),
        ("x = 1", "no such table: 'x'"),
        ("rule = [1]", "not a table"),
        ("[[rule", "Expected"),
        ("[[rule]]\nname = 'a'", "words"),
        ("[[rule]]\nname='a'\nx=1", "no such key: 'x'"),
        (
            "[[rule]]\nname='a'\nis_built_in=true",
            "no such key: 'is_built_in'",
        ),
        ("[[rule]]\nname = 1\nwords = ['hello']", "name has the wrong type"),
        ("[[rule]]\nname = 'a'\nwords = ['hello']", "neither says nor"),
        (GOOD.replace("['hello']", "[]"), "1 to 40 words"),
        (GOOD.replace("['hello']", "'hello'"), "words has the wrong type"),
        (GOOD.replace("'hello'", "1"), "words has the wrong type"),
        (GOOD.replace("hello", "abcd"), "5 to 100"),
        (GOOD.replace("hello", "ärger"), "ASCII"),
        (GOOD + "priority = 9", "priority is 1 to 5"),
        (GOOD + "priority = true", "priority has the wrong type"),
        (GOOD + "is_harmless = 1", "is_harmless has the wrong type"),
        (GOOD + "before = 'x'", "no group called rank, pid"),
        (GOOD + "after = 'x'", "no group called rank"),
        (GOOD + "pattern = '('", "pattern"),
        (GOOD + "pattern = '(a+)+b'", "too many ways"),
        (GOOD + "confidence = 'no'", "confidence is"),
        (GOOD + "cause = 'no'", "no"),
    ],
)
def test_refused(write, text, message):
    """
    A file that is not a file of rules is refused, with the reason.
    """
    file = write(text)

    with pytest.raises(RulesError, match=re.escape(message)) as caught:
        load_rules(file)

    assert os.fspath(file) in str(caught.value)


def test_refused_in_python():
    """
    So is a rule that a program makes of the wrong things.
    """
    with pytest.raises(TypeError, match="words is a list"):
        LogRule(name="a", words="hello", says="x")
    with pytest.raises(ValueError, match="pattern"):
        LogRule(name="a", words=["hello"], says="x", pattern="(")


def test_missing(tmp_path):
    """
    A file that is not there is reported.
    """
    with pytest.raises(RulesError, match="No such file"):
        load_rules(tmp_path / "none.toml")


def test_word_is_enough():
    """
    Without a pattern a word is enough, unless something forbids it.
    """
    rule = LogRule(name="a", words=["hello"], says="x", unless="world")

    assert {} == rule.match("hello")
    assert rule.match("hello world") is None


def test_bounded():
    """
    None of ours takes long, whatever a line holds.
    """
    took = {}
    for rule in read_rules():
        start = time.process_time()
        for word in rule.words[:5]:
            for text in (word * 700, f"{word} " * 700, "a_" * 1600 + word):
                rule.match(text[:3300])
        took[rule.name] = time.process_time() - start

    assert 1 > max(took.values()), max(took, key=took.get)


def test_users_end_in_time(write):
    """
    A pattern of the user sees 300 characters, so that it ends in time.
    """
    slow = r"""
[[rule]]
name = "slow"
words = ["token server"]
pattern = 'a*a*b.*shard (?P<key>\d)'
before = '(a*)a*b(?P<rank>\d)'
cause = "io_wait"
says = "the token server is slow"
"""
    rules = load_rules(write(slow))
    far = "token server" + "a" * 3_000 + "b shard 1"
    near = "x" * 3_000 + "ab token server shard 7" + "x" * 3_000

    start = time.perf_counter()
    found = [rules[0].match(text) for text in (far, near)]
    seconds = time.perf_counter() - start

    assert [None, {"key": "7"}] == found
    assert 2 > seconds
