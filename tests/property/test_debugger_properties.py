"""
Laws of what is typed at the prompt of the debugger, for any input.
"""

from __future__ import annotations

import string

from hypothesis import example, given
from hypothesis import strategies as st

from distdebug.debugger.client.commands import WORDS, parse_command
from distdebug.debugger.client.model import Output, merge_outputs, plain_text
from distdebug.debugger.selecting import is_selected
from distdebug.debugger.wire import Feed, pack
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
def test_only_known_errors(text):
    """
    Any text is a command, or refused.
    """
    try:
        command = parse_command(text)
    except (DebuggerError, RankSyntaxError):
        return

    assert command.word in WORDS


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
    shown = plain_text(text)

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
    data = b"".join(map(pack, messages))
    feed = Feed()

    found = [
        message
        for start in range(0, len(data), size)
        for message in feed.take(data[start : start + size])
    ]

    assert messages == found
