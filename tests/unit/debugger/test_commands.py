"""
What is typed at the prompt of the debugger.

The expected meanings were written down from the grammar alone.
"""

from __future__ import annotations

import time

import pytest

from distdebug.debugger import Command, help_text, parse_command
from distdebug.errors import DebuggerError, RankSyntaxError
from distdebug.ranks import parse_ranks


MESH = {"pp": 2, "dp": 3, "tp": 2}
ALL = tuple(range(12))


def cases(*rows):
    """
    One parameter set each, named after the line that is typed.
    """
    return [
        pytest.param(*row, id=ascii(row[0])[1:60].strip("'")) for row in rows
    ]


def said(text):
    """
    How a line is refused, in full.
    """
    with pytest.raises((DebuggerError, RankSyntaxError)) as refused:
        parse_command(text)
    return "\n".join([str(refused.value), *refused.value.__notes__])


@pytest.mark.parametrize(
    ("text", "command"),
    cases(
        ("list", Command(name="list")),
        ("l", Command(name="list")),
        ("  l \t\n", Command(name="list")),
        ("list\r\n", Command(name="list")),
        (
            "list g ranks(0)",
            Command(name="list", group="g", ranks=parse_ranks("ranks(0)")),
        ),
        ("h", Command(name="help")),
        ("help c", Command(name="help", line="continue")),
        ("help ranks", Command(name="help", line="ranks")),
        ("q", Command(name="quit")),
        ("quit", Command(name="quit")),
        ("detach", Command(name="detach")),
        ("c", Command(name="continue")),
        ("stack", Command(name="stack")),
        ("cast #2 p n", Command(name="cast", number=2, line="p n")),
        ("eval #12 n + 1", Command(name="eval", number=12, line="n + 1")),
        ("continue #1", Command(name="continue", number=1)),
        ("stack #1", Command(name="stack", number=1)),
        ("abort #1", Command(name="abort", number=1)),
        ("extend #1 30", Command(name="extend", number=1, minutes=30.0)),
        ("extend 30", Command(name="extend", minutes=30.0)),
        (
            "extend g ranks(0) 1.5",
            Command(
                name="extend",
                group="g",
                ranks=parse_ranks("ranks(0)"),
                minutes=1.5,
            ),
        ),
    ),
)
def test_understood(text, command):
    """
    Each form of a command means one thing.
    """
    assert command == parse_command(text)


@pytest.mark.parametrize(
    ("text", "group", "rank", "number"),
    cases(
        ("attach 3", None, 3, None),
        ("a 3", None, 3, None),
        ("a\t003 ", None, 3, None),
        ("a job-1 3", "job-1", 3, None),
        ("a my_job 0", "my_job", 0, None),
        ("a 7 3", "7", 3, None),
        ("a - 3", "-", 3, None),
        ("a ranks 3", "ranks", 3, None),
        ("attach attach 1", "attach", 1, None),
        ("a #2", None, None, 2),
        ("a " + "9" * 9000, None, int("9" * 20), None),
    ),
)
def test_attach(text, group, rank, number):
    """
    A rank is named, with or without its group, or the number of a session.
    """
    found = parse_command(text)

    assert ("attach", group) == (found.name, found.group)
    assert (rank, number) == (found.rank, found.number)


@pytest.mark.parametrize(
    ("selection", "ranks"),
    cases(
        # what Monarch's change names
        ("3", [3]),
        ("1,3,5", [1, 3, 5]),
        ("1:10:2", [1, 3, 5, 7, 9]),
        ("pp=1, dp=(1,2), tp=0:8", [8, 9, 10, 11]),
        # what means nobody, or has no end
        ("5:1", []),
        ("0:99999999999999999999", ALL),
        ("9" * 9000, []),
        ("zz=0", []),
        # blanks
        (" 1 : 10 : 2 ", [1, 3, 5, 7, 9]),
        ("\t1\t,\t3\t", [1, 3]),
        ("\n1\n", [1]),
        (" dp = ( 0 , 2 ) , tp = 0:1 , pp = 0 ", [0, 4]),
    ),
)
@pytest.mark.parametrize("group", ["", "g "], ids=["alone", "group"])
def test_selected(selection, ranks, group):
    """
    Each selection means these of twelve ranks, with or without a group.
    """
    command = parse_command(f"cast {group}ranks({selection}) p x")

    assert tuple(ranks) == command.ranks.resolve(MESH, 12)
    assert (group.strip() or None) == command.group
    assert "p x" == command.line


LINES = (
    "n|!x = 1|(a, b)|[a for a in b]|p ranks(0)|p ranks(|list|quit|detach|"
    "cast ranks(1) n|p 'it''s'|p x;;p y|p x # y|p {'a': (1,2)}|p ')'|) n|"
    "?|= 1|p  x"
)


@pytest.mark.parametrize(
    "line",
    [
        *LINES.split("|"),
        *("p \xe9", "p\tx", "p '\x1b[31m'"),
        pytest.param(f"p '{'x' * 50000}'", id="long"),
    ],
)
@pytest.mark.parametrize("blank", ["", " ", "\t"], ids=["", "blank", "tab"])
def test_line_of_pdb(line, blank):
    """
    What follows the ranks is for them, whatever it is.
    """
    command = parse_command(f"cast ranks(0){blank}{line}")

    assert line == command.line


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("cast 0-3 p loss", (0, 1, 2, 3)),
        ("cast 0-1,7 p loss", (0, 1, 7)),
        ("stack 0-1", (0, 1)),
        ("extend 0-1 30", (0, 1)),
    ],
)
def test_folded(line, ranks):
    """
    Ranks are understood as answers write them.
    """
    command = parse_command(line)

    assert command.group is None
    assert ranks == command.ranks.resolve(None, 8)


@pytest.mark.parametrize("line", ["abort 0-3", "eval 0-3 x", "cast 3 p x"])
def test_not_folded(line):
    """
    What ends ranks, an expression, or what may be a group is written in full.
    """
    with pytest.raises(DebuggerError, match=r"needs ranks\(\.\.\.\)"):
        parse_command(line)


@pytest.mark.parametrize(
    "group",
    ["job", "7", "007", "a-b", "a_b", "-", "_", "ranks", "cast", "1e5"],
)
def test_group(group):
    """
    A group may look like anything of letters, digits, dashes, and underscores.
    """
    assert group == parse_command(f"cast {group} ranks(0) n").group
    assert group == parse_command(f"stack {group} ranks(0)").group
    assert group == parse_command(f"attach {group} 0").group


@pytest.mark.parametrize("word", ["list", "continue", "stack", "abort"])
@pytest.mark.parametrize(
    ("who", "group"), [("2", None), ("job 2", "job")], ids=["rank", "group"]
)
def test_one_rank(word, who, group):
    """
    Where nothing follows, one rank is named as for attach.
    """
    expected = Command(name=word, group=group, ranks=parse_ranks("ranks(2)"))

    assert expected == parse_command(f"{word} {who}")


def test_wider():
    """
    A value is asked for further out, and a stack of all threads.
    """
    outer = parse_command("eval ranks(0) up 2: loss")
    plain = parse_command("eval ranks(0) up")
    everything = parse_command("stack job ranks(0) all")

    assert (2, "loss") == (outer.up, outer.line)
    assert (0, "up") == (plain.up, plain.line)
    assert ("job", True) == (everything.group, everything.is_full)
    assert parse_command("stack all").is_full


@pytest.mark.parametrize("word", ["list", "continue", "stack", "interrupt"])
@pytest.mark.parametrize(
    ("who", "group", "ranks"),
    [("", None, None), ("ranks(1)", None, (1,)), ("g ranks(1)", "g", (1,))],
    ids=["all", "ranks", "group"],
)
def test_others(word, who, group, ranks):
    """
    Other commands mean some ranks, or all of them.
    """
    command = parse_command(f"{word} {who}")

    found = command.ranks and command.ranks.resolve(MESH, 12)
    assert (word, group, ranks) == (command.name, command.group, found)


NO_COMMANDS = (
    "?|#|1|l x|list;|list()|quit now|detach 3|attach|attach x|attach -1|"
    "attach +1|attach 1.0|attach 1e3|attach 0x1|attach 1_0|attach 1 2 3|"
    "attach 3,4|attach ranks(3)|attach 'job' 3|attach #|attach # 2|"
    "attach #-1|castranks(0) n|cast|cast g|cast n|cast ranks (1) n|"
    "cast ranks[1] n|cast rank(1) n|cast [1] n|cast granks(0) n|"
    "cast g h ranks(0) n|cast g.h ranks(0) n|cast 'g' ranks(0) n|"
    "cast ranks(0)|eval x|eval ranks(0)|continue x|continue ranks(0) x|"
    "cranks(1)|abort|continue 0 x|continue #x|list #1|interrupt #1|"
    "cast 1 n|cast #1n|eval #1|eval #1 up 1: x|eval ranks(0) up 1:|"
    "abort 1 2 3|abort g|extend|extend -1|extend inf|extend ranks(0)|"
    "extend 5 ranks(0)|extend 1e5|help flying"
)


@pytest.mark.parametrize(
    "text",
    [
        *NO_COMMANDS.split("|"),
        *(
            "",
            "attach g\xe9 1",
            "attach \uff11",
            "cast ranks(0) ",
            "cast ranks(0) a\nb",
            "cast ranks(0) a\rb",
            "\x00",
            "list\x00",
            "\x1b[31mlist",
            "l\u200bist",
            "\xa0list",
            "cast\xa0ranks(0) n",
            "cast\x0branks(0) n",
        ),
    ],
    ids=ascii,
)
def test_no_command(text):
    """
    What is no command is refused, and not guessed.
    """
    with pytest.raises(DebuggerError):
        parse_command(text)


NO_SELECTIONS = (
    "-1|+1|1.5|1e3|0x1|1_0|all|*|[1,2]|1:3,5:7|1,2:3|1 2|1,|,1|1,,2|(1,2)|"
    "1;2|1-3|1:2:3:4|1:2:0|::00|dp=|dp=(1)|dp=(1:3)|dp=()|dp=(1,)|dp=-1|"
    "dp==1|=1|dp=1 tp=0|dp=1,|dp=1,3|1,dp=3|dp=1,dp=2|1dp=0|d-p=0|dp=::0|"
    "dp='0'|ranks(1)"
)


@pytest.mark.parametrize(
    "selection",
    [
        *NO_SELECTIONS.split("|"),
        *(
            "",
            " ",
            "\uff11",
            "\u0661",
            "d\xfc=0",
            "\x00",
            "\x1b[31m1",
            "1\xa0,2",
        ),
    ],
    ids=ascii,
)
def test_no_selection(selection):
    """
    A selection that cannot be read is refused, with its place.
    """
    text = said(f"cast ranks({selection}) n")

    assert "at position" in text
    assert "ranks(1:10:2)" in text


@pytest.mark.parametrize(
    ("text", "hint"),
    cases(
        ("LIST", "lower case: list"),
        ("Attach 3", "lower case: attach"),
        ("C", "lower case: c"),
        ("lst", "did you mean list?"),
        ("interupt ranks(0)", "did you mean interrupt?"),
        ("exit", "to leave, say quit"),
        ("p loss", "cast ranks(:) p loss"),
        ("!x = 1", "attach to a rank first"),
        ("xyzzy", "one of abort, attach"),
        ("x" * 100_000, "one of abort, attach"),
        ("cast ranks (1) n", "ranks( is one word"),
        ("cast Ranks(1) n", "in lower case"),
        ("cast g.h ranks(1) n", "letters, digits, - and _"),
        ("cast 3 n", "write cast ranks(3) p x"),
        ("abort 1,2", "write abort ranks(1,2)"),
        ("stack job", "write stack job ranks(:)"),
        ("continue Policy", "write continue Policy ranks(:)"),
        ("cast Policy p loss", "write cast Policy ranks(:) p loss"),
        ("cast p loss", "write cast ranks(:) p loss"),
        ("cast", "write cast ranks(:) p x"),
        ("eval x", "write eval ranks(:) x"),
        ("eval #1 up 1: x", "cast #1 up"),
        ("abort", "write abort ranks(:)"),
        ("attach x", "attach #2"),
        ("quit now", "help quit"),
        ("extend soon", "extend 30"),
        ("help flying", "help on one of"),
        ("cast ranks(dp=0,dp=1) n", "the dimension dp occurs twice"),
        ("cast ranks(1:2:0) n", "the step must not be 0"),
        ("cast ranks(-1) n", "found '-' at position 6"),
        ("cast ranks(1.5) n", "found '.' at position 7"),
    ),
)
def test_hint(text, hint):
    """
    A line that is refused comes with what to type instead.
    """
    assert hint in said(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("cast ranks(" + "(" * 50_000, id="open"),
        pytest.param("cast ranks(" + "1," * 50_000, id="list"),
        pytest.param("cast ranks(" + "d" * 50_000 + "=1,d=x)", id="name"),
        pytest.param("cast " * 20_000, id="words"),
        pytest.param("a " * 50_000, id="attach"),
        pytest.param("x" * 100_000, id="word"),
        pytest.param("\x1b" * 100_000, id="escapes"),
    ],
)
def test_long(text):
    """
    A line of any length is refused soon, in a short message for one line.
    """
    short_s, _ = took(text[: len(text) // 10])
    seconds, message = took(text)

    # Ten times the length would take a hundred times as long if it were
    # compared with itself.
    assert 40 * max(short_s, 0.025) > seconds
    assert 800 > len(message)
    assert "\x1b" not in message


def took(text):
    """
    What is said of a text, after how many seconds of a processor.
    """
    start = time.process_time()
    message = said(text)
    return time.process_time() - start, message


def test_words():
    """
    All words of Monarch are there, with their short forms.
    """
    words = {line.split()[0] for line in help_text().splitlines() if line}
    short = {parse_command(line).name for line in ("a 1", "l", "h", "c", "q")}

    assert {"attach", "list", "help", "continue", "quit"} == short
    assert {*short, "cast", "detach"} <= words
