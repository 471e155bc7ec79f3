"""
Rules about stacks, as data.
"""

from __future__ import annotations

import os
import pickle

import pytest

from distdebug._patterns import check_pattern
from distdebug.errors import RulesError
from distdebug.findings import Cause
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    explain_stacks,
)
from distdebug.stacks.rules import DOING, load_rules, read_rules


MINE = """
[[rule]]
cause = "dataloader_wait"
function = "next_tokens"
doing = "is waiting for tokens"
remedy = "ask the tokens team"

[[helper]]
thread = "telemetry"

[cause.sleeping]
doing = "has a nap"
"""


def write(tmp_path, text):
    """
    A file of rules.
    """
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return file


def test_own():
    """
    Every cause that a rule names has its words and its remedy.
    """
    book = read_rules()

    causes = {rule.cause for rule in book.rules}

    assert causes <= set(DOING)
    assert causes <= set(book.remedy)
    assert len(DOING) == len(list(DOING))
    assert all(doing.split()[0] in {"is", "has"} for doing in DOING.values())
    assert len({rule.name for rule in book.rules}) == len(book.rules)


def test_users_first(tmp_path):
    """
    Rules of the user come before ours, and so do their words.
    """
    file = write(tmp_path, MINE)
    frames = (
        StackFrame("all_reduce", "torch/distributed/distributed_c10d.py", 1),
        StackFrame("next_tokens", "/a.py", 2),
    )
    thread = ThreadStack(name="", frames=frames, is_main=True)

    (found,) = explain_stacks(
        [ProcessStacks(pid=1, source="", threads=(thread,))], rules=[file]
    )
    book = read_rules([file])

    assert Cause.DATALOADER_WAIT is found.cause
    assert "ask the tokens team" == found.remedy
    assert "is waiting for tokens" in found.summary
    assert "has a nap" == book.doing[Cause.SLEEPING]
    assert book.helpers[0].thread.fullmatch("telemetry")


BAD = [
    ("rule = 3", "[[rule]]"),
    ("[[rule]]\ncause = 'naps'\nfunction = 'f'", "rule 1: 'naps'"),
    ("[[rule]]\ncause = 'sleeping'", "neither file"),
    ("[[rule]]\ncause = 'sleeping'\nfunction = '('", "pattern '('"),
    ("[[rule]]\ncause = 'sleeping'\nfunction = '(a+)+'", "must be plain"),
    ("[[rule]]\ncause = 'sleeping'\nfunction = '(a|ab)*'", "must be plain"),
    ("[[rule]]\ncause = 'sleeping'\nfunction = '(a?){9,}'", "must be plain"),
    ("rule = [1, 2]", "rule 1: not a table: 1"),
    ("[[rule]]\ncause = 'sleeping'\nfile = 'a'\nwithin = 0", "within"),
    ("[[rule]]\ncause = 'sleeping'\nfile = 'a'\nwithin = true", "within"),
    ("[[rule]]\ncause = 'sleeping'\nfile = 'a'\nwakes = -1", "wakes"),
    ("[[rule]]\ncause = 'sleeping'\nfile = 'a'\nwakes = nan", "wakes"),
    ("[[rule]]\ncause = 'sleeping'\nfile = 'a'\nwakes = inf", "wakes"),
    (f"[[rule]]\ncause = 'idle'\nfile = 'a'\nwakes = 1{'0' * 400}", "wakes"),
    ("[[rule]]\ncause = 'sleeping'\nfunction = '.*.*.*.*.*x'", "plain"),
    (f"[[rule]]\ncause = 'sleeping'\nfile = '{'a' * 3000}'", "longer than"),
    ("[[rule]]\ncause = 'sleeping'\nfile = 3", "wrong type: 3"),
    ("[[rule]]\ncause = 'sleeping'\nfil = 'a'", "no such key: 'fil'"),
    ("[[rule]]\ncause = 'sleeping'\nfile = 'a'\nwithin = 'b'", "within"),
    (
        "[[rule]]\ncause = 'sleeping'\nfile = 'a'\nconfidence = 'no'",
        "certain or likely or possible",
    ),
    ("[[rules]]\ncause = 'sleeping'", "no such table: 'rules'"),
    ("[cause.naps]\ndoing = 'a'", "[cause]: 'naps'"),
    ("[cause]\nsleeping = 'a'", "[cause]"),
    ("cause = 3", "[cause]"),
    ("[cause.sleeping]\ndoings = 'a'", "no such key: 'doings'"),
    ("[cause.sleeping]\nremedy = 3", "remedy is not a text"),
    ("a = ", "Invalid value"),
    ("[[helper]]\nplace = '[' ", "helper 1: pattern"),
]


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_bad(tmp_path, text, reason):
    """
    A bad file is told, with its name and the reason.
    """
    file = write(tmp_path, text)

    with pytest.raises(RulesError) as info:
        load_rules(file)

    assert str(file) in str(info.value)
    assert reason in str(info.value)
    assert str(file) == info.value.path
    assert str(info.value) == str(pickle.loads(pickle.dumps(info.value)))


def test_unreadable(tmp_path, monkeypatch):
    """
    So is one that is not there, or is no file of rules at all.
    """
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    large = write(tmp_path, "#" * 100)
    monkeypatch.setattr("distdebug._toml._MOST_BYTES", 50)

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    for file in (tmp_path / "none", binary, large, pipe, tmp_path):
        with pytest.raises(RulesError):
            load_rules(file)


@pytest.mark.parametrize(
    "text", ["(ab)+", "[(]+x", r"\(a+\)+", "(?:abc)*", "(^|/)a", "(a|b)?"]
)
def test_plain(tmp_path, text):
    """
    Patterns that end in bounded time are taken.
    """
    file = write(
        tmp_path, f"[[rule]]\ncause = 'sleeping'\nfunction = '{text}'"
    )

    assert 1 == len(load_rules(file).rules)


EXPLODES = [
    "(?:a{1,30}){1,30}$",
    "(a?){40}a{40}",
    "(a|aa){1,60}",
    "(?:a|a|a){60}$",
    "(?:a?a?){30}$",
    "([a]{1,60}){1,60}$",
    "(?x)(a +) + $",
    "a?" * 60 + "a" * 60,
    "(a|aa)" * 40,
    ".{0,8}" * 10 + "x",
    "(?=(a+)+)b",
    "(?:(?=.)){4294967290}",
    "(?:(?:(?=.)){200}){200}",
    "(?>(a+)+)b",
    "(a)?(?(1)b+|c+)+x",
    ".*.*.*.*x",
    "(" * 40 + "a" + ")" * 40,
    "(" * 900 + "a" + ")" * 900,
    "a{99999999999}",
]


@pytest.mark.parametrize("text", EXPLODES)
def test_explodes(text):
    """
    Patterns that may take for ever are refused.
    """
    with pytest.raises(ValueError, match="pattern"):
        check_pattern(text)


@pytest.mark.parametrize(
    "text",
    [
        r"(^|/)my_lib/(data|model)/.*\.py$",
        r"_?save_(checkpoint|pretrained|sharded)\w*",
        r"(?!torch)\w+::(read|write)@.{3}",
        r"(a)?(?(1)b|c)",
        r"(?>ab)+",
        r"\s*(a|b)*\s*",
    ],
)
def test_does_not_explode(text):
    """
    Those that people write are taken.
    """
    check_pattern(text)
