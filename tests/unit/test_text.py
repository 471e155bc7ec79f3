"""
Results as text.
"""

from __future__ import annotations

import pytest

from distdebug._text import clean, text_table


class TestClean:
    @pytest.mark.parametrize(
        "text", ["", "all_reduce", "train.py:41", "na\xefve \N{SNOWMAN}"]
    )
    def test_harmless(self, text):
        """
        Text that can be printed stays as it is.
        """
        assert text == clean(text)

    @pytest.mark.parametrize(
        "text",
        [
            "\x1b[31mred\x1b[0m",
            "\x9b31mred",
            "\x1b]0;title\x07red",
            "\x1b]8;;http://x\x1b\\red\x1b]8;;\x1b\\",
            "\x1b(Bred",
            "\x1bcred",
            "r\x00e\x08d\x7f",
            "\N{RIGHT-TO-LEFT OVERRIDE}red\N{POP DIRECTIONAL FORMATTING}",
            "r\N{ZERO WIDTH SPACE}e\N{SOFT HYPHEN}d",
            "re\udcffd",
            "\nred\r\n",
        ],
    )
    def test_harmful(self, text):
        """
        What steers a terminal or hides text is taken out.
        """
        assert "red" == clean(text)

    @pytest.mark.parametrize("text", ["a\nb", "a\tb", "a\xa0b", "a\u2028b"])
    def test_one_line(self, text):
        """
        Line breaks and other blanks become plain blanks.
        """
        assert "a b" == clean(text)

    def test_unfinished_sequence(self):
        """
        A title that never ends does not swallow what follows.
        """
        assert "0;red" == clean("\x1b]0;red")

    def test_shortened(self):
        """
        What is too long ends in an ellipsis and fits the limit.
        """
        assert "aaa…" == clean("a" * 5, limit=4)
        assert "aaaa" == clean("a" * 4, limit=4)


class TestTextTable:
    def test_table(self):
        """
        Cells are shown as they are, numbers included.
        """
        got = text_table(["rank", "what"], [(0, "0012"), (10, "1e5")])

        assert [
            "rank    what",
            "------  ------",
            "0       0012",
            "10      1e5",
        ] == got.splitlines()

    def test_cells_are_cleaned(self):
        """
        A cell cannot break the table or the terminal.
        """
        got = text_table(["what"], [["a\n\x1b[2Jb"]])

        assert ["what", "------", "a b"] == got.splitlines()

    def test_empty(self):
        """
        Without rows there are the titles.
        """
        assert text_table(["what"], []).startswith("what")
