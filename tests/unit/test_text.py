"""
Results as text.
"""

from __future__ import annotations

import pytest

from distdebug._text import (
    clean,
    list_text,
    reason_of,
    size_text,
    text_table,
    time_text,
)


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
            "\N{HANGUL FILLER}red\N{HANGUL CHOSEONG FILLER}",
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

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("\x1b]0;red", "0;red"), ("a" * 5, "aaa…"), ("a" * 4, "aaaa")],
        ids=["endless title", "too long", "fits"],
    )
    def test_shortened(self, text, expected):
        """
        A title that never ends swallows nothing; what is too long for the
        limit ends in an ellipsis.
        """
        limit = 4 if text.startswith("a") else 200

        assert expected == clean(text, limit=limit)


@pytest.mark.parametrize(
    ("headers", "rows", "expected"),
    [
        (
            *(["rank", "what"], [(0, "0012"), (10, "1e5")]),
            ["rank    what", "------  ------", "0       0012", "10      1e5"],
        ),
        (["what"], [["a\n\x1b[2Jb"]], ["what", "------", "a b"]),
        (["what"], [], ["what", "------"]),
    ],
    ids=["numbers", "unclean", "empty"],
)
def test_table(headers, rows, expected):
    """
    Cells are shown as they are, but cannot break the table or the terminal;
    without rows there are the titles.
    """
    shown = text_table(headers, rows).splitlines()

    assert expected == [line.rstrip() for line in shown]


class TestSentences:
    def test_list(self):
        """
        Of many only a few are named.
        """
        assert "1, 2, and 3 more" == list_text(range(1, 6), most=2)
        assert "1" == list_text([1])

    def test_size(self):
        """
        Sizes have the unit that makes them short.
        """
        assert ["512 B", "1.5 KiB", "200 MiB", "2048 PiB"] == [
            size_text(x) for x in (512, 1536, 200 << 20, 1 << 61)
        ]

    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [
            (-5, "0 s"),
            (45, "45 s"),
            (720, "12 min"),
            (11_100, "3 h 5 min"),
            (7200, "2 h"),
            (187_200, "2 d 4 h"),
            (172_800, "2 d"),
        ],
    )
    def test_time(self, seconds, expected):
        """
        Durations are written as people say them.
        """
        assert expected == time_text(seconds)

    @pytest.mark.parametrize(
        ("exc", "expected"),
        [
            (FileNotFoundError(2, "No such file", "/a"), "No such file"),
            (OSError("nvidia-smi: no"), "nvidia-smi: no"),
            (ValueError("damaged"), "damaged"),
            (TimeoutError(), "TimeoutError"),
        ],
        ids=["of the system", "of a tool", "of a value", "without words"],
    )
    def test_reason(self, exc, expected):
        """
        An error is shown by its words, or else by its name.
        """
        assert expected == reason_of(exc)
