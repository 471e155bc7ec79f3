"""
Laws of what is typed at the prompt of the debugger, for any input.
"""

from __future__ import annotations

import ast
import string

from hypothesis import example, given
from hypothesis import strategies as st

from distdebug.debugger import Listing, listing_text, parse_command
from distdebug.debugger.client.commands import ABBREVIATIONS, COMMANDS
from distdebug.debugger.client.model import (
    Output,
    Process,
    Session,
    clean_text,
    merge_outputs,
)
from distdebug.debugger.client.shell import (
    changes_text,
    parse_multi_rank_command,
)
from distdebug.debugger.protocol import (
    MessageDecoder,
    encode_message,
    is_selected,
)
from distdebug.errors import DebuggerError, RankSyntaxError
from distdebug.ranks import Mesh, parse_ranks, unfold_ranks


blanks = st.text(" \t", min_size=1, max_size=3)
groups = st.none() | st.text(
    f"{string.ascii_letters}{string.digits}-_", min_size=1, max_size=9
)
sizes = st.fixed_dictionaries(
    {name: st.integers(1, 4) for name in ("pp", "dp", "tp")}
)
indexes = st.integers(0, 5).map(str) | st.sampled_from(
    ["1:", ":2", "::2", "(0,3)", "( 1 , 2 )", ":"]
)
selections = st.sampled_from(
    ["ranks(:)", "ranks(3)", "ranks( 1 , 5,1)", "ranks(1:10:2)"]
) | st.dictionaries(
    st.sampled_from(["pp", "dp", "tp"]), indexes, min_size=1
).map(lambda d: f"ranks({', '.join(f'{k}={v}' for k, v in d.items())})")
lines = st.text(st.characters(codec="utf-8", exclude_characters="\r\n")).map(
    lambda line: line.strip(" \t")
)


@given(blanks, groups, selections, lines.filter(bool))
def test_cast_is_read_as_written(blank, group, selection, line):
    """
    Whatever the line is, a cast has its group, its ranks, and its line.
    """
    who = selection if group is None else f"{group}{blank}{selection}"

    command = parse_command(f"cast{blank}{who}{blank}{line}")

    assert group == command.group
    assert parse_ranks(selection) == command.ranks
    assert line == command.line


@given(st.text() | st.text("castranks(),:= 0123#dp\n"))
@example("cast ranks(" + "(" * 10_000)
@example("cast ranks(" + "9" * 10_000 + ") n")
@example("cast ranks(\x1b[31m) n")
def test_only_known_errors(text):
    """
    Any text is a command, or refused in a short message that can be shown.
    """
    try:
        command = parse_command(text)
    except (DebuggerError, RankSyntaxError) as exc:
        message = "\n".join([str(exc), *exc.__notes__])
        assert 800 > len(message)
        assert "\x1b" not in message
        return

    assert command.name in COMMANDS


@given(
    st.sampled_from(COMMANDS),
    st.none() | groups,
    selections,
    blanks,
    st.sampled_from(["", " ", "\t "]),
)
def test_blanks_mean_nothing(word, group, selection, blank, around):
    """
    However wide the blanks are, a command means the same.
    """
    line = {"cast": "n", "eval": "x", "extend": "5"}.get(word, "")
    who = [] if word in {"help", "quit", "detach", "attach"} else [selection]
    if group and who:
        who = [group, *who]
    words = [word, *who, *([line] if line else [])]
    if word == "attach":
        words.append("3")

    wide = parse_command(f"{around}{blank.join(words)}{around}")

    assert parse_command(" ".join(words)) == wide
    assert word == wide.name


@given(st.sampled_from(sorted(ABBREVIATIONS)), groups, selections)
def test_short_forms(short, group, selection):
    """
    A short form means what the word means.
    """
    word = ABBREVIATIONS[short]
    rest = {
        "attach": f" {group} 3" if group else " #3",
        "help": " cast",
        "quit": "",
    }.get(word, f" {group or ''} {selection}")

    assert parse_command(word + rest) == parse_command(short + rest)


@given(
    st.text("castevlndihpx =+.,()[]0123'", max_size=20)
    | st.tuples(
        st.sampled_from([*COMMANDS, *ABBREVIATIONS, "p", "ranks"]),
        st.sampled_from(
            [" = 3", ".x", "(x)", " in x", " if x else y", "[0]", " + 1", ""]
        ),
    ).map("".join)
)
@example("cast in x")
@example("attach # 3")
def test_python_stays_with_the_rank(line):
    """
    What is Python is never taken from the rank that one is attached to.
    """
    try:
        ast.parse(line.strip())
    except (SyntaxError, ValueError):
        return

    assert parse_multi_rank_command(line) is None


def held(rank, stops):
    """
    A process with some threads that are held.
    """
    place = {"function": "step", "file": "train.py", "line": 7}
    return Process(
        path=f"{rank}.sock",
        group="job",
        rank=rank,
        coords={},
        host="node",
        pid=rank,
        sessions=tuple(
            Session(
                key=f"{rank}:{n}",
                number=n,
                thread="MainThread",
                reason="breakpoint",
                state="stopped",
                left_s=1000,
                **{**place, "line": line},
            )
            for n, line in enumerate(stops)
        ),
        **place,
    )


@given(
    st.lists(st.lists(st.integers(1, 3), max_size=2), min_size=1, max_size=90)
)
def test_listed(stops):
    """
    A list shows every rank and every number, folded or not.
    """
    processes = tuple(held(rank, lines) for rank, lines in enumerate(stops))
    listing = Listing(processes=processes)

    rows = [row.split() for row in listing_text(listing).splitlines()]
    cells = [row for row in rows if "job" in row]

    columns = [row[row.index("job") + 1] for row in cells]
    assert {*range(len(stops))} == {
        rank for cell in columns for rank in unfold_ranks(cell)
    }
    numbers = [
        n for r in cells if r[0] != "job" for n in unfold_ranks(r[0][1:])
    ]
    assert [*range(1, len(listing.sessions) + 1)] == sorted(numbers)


@given(
    st.lists(st.lists(st.integers(1, 3), max_size=2), max_size=9),
    st.lists(st.lists(st.integers(1, 3), max_size=2), max_size=9),
)
def test_news(before, after):
    """
    There is news if and only if somebody stopped, went on, or has ended.
    """
    old = Listing(processes=tuple(held(n, s) for n, s in enumerate(before)))
    new = Listing(processes=tuple(held(n, s) for n, s in enumerate(after)))

    keys = [{s.key for _, s in listing.sessions} for listing in (old, new)]
    is_same = keys[0] == keys[1] and len(before) <= len(after)
    assert is_same == (not changes_text(old, new))


@given(selections, sizes)
def test_selected_as_resolved(selection, mesh):
    """
    A rank that knows its place selects as one who knows the whole job.
    """
    job, wanted = Mesh(mesh), parse_ranks(selection)

    found = [
        rank
        for rank in range(job.world_size)
        if is_selected(
            wanted.by_rank, wanted.by_dimension, rank, job.coordinates(rank)
        )
    ]

    assert list(wanted.resolve(mesh, job.world_size)) == found


@given(st.dictionaries(st.integers(0, 99), st.sampled_from("abc"), min_size=1))
def test_merged(texts):
    """
    Merging loses nobody, and whom few agree with comes first.
    """
    merged = merge_outputs(
        Output(group="job", rank=rank, text=text)
        for rank, text in texts.items()
    )

    ranks = [unfold_ranks(who) for who, _ in merged]
    assert sorted(texts) == sorted(r for group in ranks for r in group)
    assert [len(r) for r in ranks] == sorted(len(r) for r in ranks)
    assert all(
        texts[r] == text for (who, text) in merged for r in unfold_ranks(who)
    )


@given(st.text())
def test_plain(text):
    """
    What is shown holds nothing that a terminal would obey.
    """
    shown = clean_text(text)

    assert all(c.isprintable() or c in "\n\t" for c in shown)


@given(
    st.lists(
        st.dictionaries(st.text(), st.text() | st.integers(), max_size=3)
    ),
    st.integers(1, 50),
)
def test_feed(messages, size):
    """
    Messages arrive as they were sent, in pieces of any size.
    """
    data = b"".join(map(encode_message, messages))
    feed = MessageDecoder()

    found = [
        message
        for start in range(0, len(data), size)
        for message in feed.decode(data[start : start + size])
    ]

    assert messages == found
