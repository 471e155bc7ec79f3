"""
What is typed at the prompt of the debugger.
"""

from __future__ import annotations

import pytest

from distdebug.debugger.client.commands import Command, parse_command
from distdebug.errors import DebuggerError, RankSyntaxError
from distdebug.ranks import parse_ranks


def cast(ranks, line, group=None):
    """
    A cast that was understood.
    """
    return Command(
        word="cast", group=group, ranks=parse_ranks(ranks), line=line
    )


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("list", Command(word="list")),
        ("l", Command(word="list")),
        ("  l \t\n", Command(word="list")),
        ("h", Command(word="help")),
        ("q", Command(word="quit")),
        ("detach", Command(word="detach")),
        ("c", Command(word="continue")),
        ("attach 3", Command(word="attach", rank=3)),
        ("a 003", Command(word="attach", rank=3)),
        ("a job-1 3", Command(word="attach", group="job-1", rank=3)),
        ("a 7 3", Command(word="attach", group="7", rank=3)),
        ("a #2", Command(word="attach", number=2)),
        ("a " + "9" * 9000, Command(word="attach", rank=int("9" * 20))),
        ("cast ranks(3) n", cast("ranks(3)", "n")),
        ("cast ranks(3)n", cast("ranks(3)", "n")),
        ("cast\tranks( 1 : 2 )\tp x", cast("ranks( 1 : 2 )", "p x")),
        (
            "cast g ranks(1,3,5) p (a, b)",
            cast("ranks(1,3,5)", "p (a, b)", "g"),
        ),
        ("cast ranks ranks(0) n", cast("ranks(0)", "n", "ranks")),
        ("cast ranks(0) !x = 1", cast("ranks(0)", "!x = 1")),
        (
            "cast ranks(pp=2, dp=(1,3), tp=2:8) p ranks(1)",
            cast("ranks(pp=2, dp=(1,3), tp=2:8)", "p ranks(1)"),
        ),
        (
            "eval job ranks(:) loss.item()",
            Command(
                word="eval",
                group="job",
                ranks=parse_ranks("ranks(:)"),
                line="loss.item()",
            ),
        ),
        (
            "continue ranks(1:10:2)",
            Command(word="continue", ranks=parse_ranks("ranks(1:10:2)")),
        ),
        ("stack", Command(word="stack")),
        ("extend 30", Command(word="extend", minutes=30.0)),
        (
            "extend g ranks(0) 1.5",
            Command(
                word="extend",
                group="g",
                ranks=parse_ranks("ranks(0)"),
                minutes=1.5,
            ),
        ),
        (
            "abort ranks(0)",
            Command(word="abort", ranks=parse_ranks("ranks(0)")),
        ),
    ],
)
def test_understood(text, command):
    """
    Each form of a command means one thing.
    """
    assert command == parse_command(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "exit",
        "LIST",
        "List",
        "l x",
        "quit now",
        "list()",
        "attach",
        "attach x",
        "attach -1",
        "attach +1",
        "attach 1.0",
        "attach 1 2 3",
        "attach g\u00e9 1",
        "attach \uff11",
        "attach #",
        "castranks(0) n",
        "cast",
        "cast g",
        "cast n",
        "cast ranks (1) n",
        "cast ranks(0)",
        "cast granks(0) n",
        "cast g h ranks(0) n",
        "cast g.h ranks(0) n",
        "cast ranks(0) a\nb",
        "eval x",
        "continue x",
        "continue ranks(0) x",
        "abort",
        "extend",
        "extend -1",
        "extend ranks(0)",
        "extend 1e5",
    ],
)
def test_no_command(text):
    """
    What is no command is refused, and not guessed.
    """
    with pytest.raises(DebuggerError):
        parse_command(text)


@pytest.mark.parametrize(
    "text",
    [
        "cast ranks() n",
        "cast ranks(-1) n",
        "cast ranks(+1) n",
        "cast ranks(1.5) n",
        "cast ranks(0x1) n",
        "cast ranks(1_0) n",
        "cast ranks(\uff11) n",
        "cast ranks(all) n",
        "cast ranks(*) n",
        "cast ranks([1,2]) n",
        "cast ranks(1:3,5:7) n",
        "cast ranks(dp=1, 3) n",
        "cast ranks(dp=1,dp=2) n",
        "cast ranks(dp=(1)) n",
        "cast ranks(dp=(1:3)) n",
        "cast ranks(1:2:0) n",
        "cast ranks(1 n",
        "continue ranks(",
    ],
)
def test_no_selection(text):
    """
    A selection that cannot be read is refused, with its place.
    """
    with pytest.raises(RankSyntaxError):
        parse_command(text)
