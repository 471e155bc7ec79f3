"""
Results as Markdown: what would be markup, or call somebody, is only text.
"""

from __future__ import annotations

import pytest

from distdebug._render import Entries, Entry, Lines, Table, blocks_markdown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b and *c*", r"a\_b and \*c\*"),
        ("<script>", r"\<script\>"),
        ("[x](http://y)", r"\[x\](http://y)"),
        ("@everyone #1", r"\@everyone \#1"),
    ],
)
def test_escaped(text, expected):
    """
    Text from a log makes no markup.
    """
    assert expected == blocks_markdown([text])
    assert f"**{expected}**" == blocks_markdown([Entries([Entry(text)])])
    assert expected == blocks_markdown([Lines([text])])


def test_entry():
    """
    Evidence is folded, and no quote ends the block that it is in.
    """
    entry = Entry(
        "rank 3 waits",
        [("cause", "io_wait")],
        "also:",
        [("log", "a.log:3", "```\n# x"), ("stack", "", "f")],
    )

    text = blocks_markdown([Entries([entry])])

    assert text.startswith("also:\n\n**rank 3 waits**\n\n- cause: io\\_wait\n")
    assert "<details><summary>evidence (2)</summary>" in text
    assert "\n````text\nlog: a.log:3: ``` # x\nstack: f\n````\n" in text


def test_table():
    """
    A cell cannot end its row, and what is left out is counted.
    """
    table = Table(["a"], [["x|y"], *([n] for n in range(60))], more="rows")

    lines = blocks_markdown([table]).splitlines()

    assert lines[2].startswith(r"| x\|y ")
    assert "… and 11 more rows" == lines[-1]


def test_rest():
    """
    Many findings are counted, and nothing is nothing.
    """
    many = Entries([Entry(str(n)) for n in range(9)], most=2)

    assert blocks_markdown([many]).endswith("\n\n… and 7 more findings")
    assert "" == blocks_markdown(["", Lines([])])
