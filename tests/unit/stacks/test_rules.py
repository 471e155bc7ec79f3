"""
Rules about stacks, as data.
"""

from __future__ import annotations

import os
import pickle
import re
import tomllib

from importlib.resources import files

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.diagnosis.known_bugs import built_in_bugs
from distdebug.errors import RulesError
from distdebug.logs.rules import built_in_rules
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadStack,
    explain_stacks,
)
from distdebug.stacks.rules import builtin_rules


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


LOCK = """
[[rule]]
cause = "lock_deadlock"
function = "enter"
awaits = "{}"
"""


def explain(*frames, rules):
    """
    What these rules make of a thread with these frames.
    """
    stack = ThreadStack(name="", frames=frames, is_main=True)
    process = ProcessStacks(pid=1, source="", threads=(stack,))
    return explain_stacks([process], rules=rules)


@pytest.fixture(name="write")
def writer(tmp_path):
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
    Every cause that a rule of ours names has its words and its remedy.
    """
    own = files("distdebug.stacks").joinpath("rules.toml").read_bytes()
    table = tomllib.loads(own.decode())

    rules, words = table["rule"], table["cause"]

    causes = {rule["cause"] for rule in rules} | {"python_loop"}
    assert causes <= {c for c, said in words.items() if said.get("remedy")}
    assert all(words[c]["doing"].split()[0] in {"is", "has"} for c in words)
    assert len({rule["name"] for rule in rules}) == len(rules)


def test_users_first(write):
    """
    Rules of the user come before ours, and so do their words.
    """
    rules = [write(MINE)]
    reduce = StackFrame(
        "all_reduce", "torch/distributed/distributed_c10d.py", 1
    )
    sleep = StackFrame("sleep", "/x/tenacity/nap.py", 1)

    (found,) = explain(
        reduce, StackFrame("next_tokens", "/a.py", 2), rules=rules
    )
    (nap,) = explain(sleep, rules=rules)

    assert Cause.DATALOADER_WAIT is found.cause
    assert "ask the tokens team" == found.remedy
    assert "is waiting for tokens" in found.summary
    assert "has a nap" in nap.summary


@pytest.mark.parametrize("awaits", ["lock", "event"])
def test_awaits(write, awaits):
    """
    A rule of the user says what is awaited: threads that wait for locks may
    hold those of each other.
    """
    rules = [write(LOCK.format(awaits))]
    frames = (StackFrame("enter", "/home/me/a.py", 1),)
    threads = [
        ThreadStack(name=name, frames=frames, is_main=not name)
        for name in ("", "other")
    ]
    process = ProcessStacks(pid=1, source="", threads=tuple(threads))

    (found,) = explain_stacks([process], rules=rules)

    is_cycle = "each other's locks" in found.summary
    assert (awaits == "lock") == is_cycle


@pytest.mark.parametrize(("name", "count"), [("telemetry", 0), ("other", 1)])
def test_users_helpers(name, count, write):
    """
    A thread that the user named as a helper tells nothing.
    """
    frames = (StackFrame("recv", "/home/me/a.py", 1),)
    stacks = [
        ThreadStack(name=n, frames=frames, system_call=SystemCall(name="read"))
        for n in (name, "telemetry")
    ]
    process = ProcessStacks(pid=1, source="", threads=tuple(stacks))

    found = explain_stacks([process], rules=[write(MINE)])

    assert count == len(found)


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
    ("[[rule]]\ncause = 'sleeping'\nfile = 3", "wrong type or value: 3"),
    ("[[rule]]\ncause = 'sleeping'\nfil = 'a'", "no such key: 'fil'"),
    ("[[rule]]\ncause = 'sleeping'\nfile = 'a'\nwithin = 'b'", "within"),
    (
        "[[rule]]\ncause = 'sleeping'\nfile = 'a'\nconfidence = 'no'",
        "certain or likely or possible",
    ),
    (
        "[[rule]]\ncause = 'sleeping'\nfile = 'a'\nawaits = 'x'",
        "awaits is ",
    ),
    ("[[rules]]\ncause = 'sleeping'", "no such table: 'rules'"),
    ("[roles]\nwrapper = []", "no such table: 'roles'"),
    ("[cause.naps]\ndoing = 'a'", "[cause]: 'naps'"),
    ("[cause]\nsleeping = 'a'", "[cause]"),
    ("cause = 3", "[cause]"),
    ("[cause.sleeping]\ndoings = 'a'", "no such key: 'doings'"),
    ("[cause.sleeping]\nremedy = 3", "remedy has the wrong type"),
    ("a = ", "Invalid value"),
    ("[[helper]]\nplace = '[' ", "helper 1: pattern"),
]


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_bad(write, text, reason):
    """
    A bad file is told, with its name and the reason.
    """
    file = write(text)

    with pytest.raises(RulesError) as info:
        explain_stacks([], rules=[file])

    assert str(file) in str(info.value)
    assert reason in str(info.value)
    assert str(file) == info.value.path
    assert str(info.value) == str(pickle.loads(pickle.dumps(info.value)))


def test_unreadable(tmp_path, write):
    """
    So is one that is not there, or is not a file of rules at all.
    """
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    large = write("#" * (1 << 20) + "\n")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    for file in (tmp_path / "none", binary, large, pipe, tmp_path):
        with pytest.raises(RulesError):
            explain_stacks([], rules=[file])


@pytest.mark.parametrize(
    "text",
    [
        "(ab)+",
        "[(]+x",
        r"\(a+\)+",
        "(?:abc)*",
        "(^|/)a",
        "(a|b)?",
        r"(^|/)my_lib/(data|model)/.*\.py$",
        r"_?save_(checkpoint|pretrained|sharded)\w*",
        r"(?!torch)\w+::(read|write)@.{3}",
        r"(a)?(?(1)b|c)",
        r"(?>ab)+",
        r"\s*(a|b)*\s*",
    ],
)
def test_plain(write, text):
    """
    Patterns that people write, and that end in bounded time, are taken.
    """
    rule = write(f"[[rule]]\ncause = 'sleeping'\nfunction = '{text}'")

    assert () == explain_stacks([], rules=[rule])


@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
def test_explodes(write, text):
    """
    Patterns that may take for ever are refused.
    """
    rule = write(f"[[rule]]\ncause = 'sleeping'\nfunction = '{text}'")

    with pytest.raises(RulesError, match="pattern"):
        explain_stacks([], rules=[rule])


@pytest.mark.parametrize(
    "rules",
    [
        builtin_rules().rules,
        builtin_rules().helpers,
        built_in_rules(),
        built_in_bugs(),
    ],
    ids=["stacks", "helpers", "logs", "bugs"],
)
def test_built_in_patterns(rules):
    """
    Patterns that are compiled late, because we ship them, do compile.
    """
    patterns = [
        value
        for rule in rules
        for value in attrs.asdict(rule, recurse=False).values()
        if hasattr(value, "fullmatch")
    ]

    assert patterns
    assert all(re.compile(pattern.pattern) for pattern in patterns)
