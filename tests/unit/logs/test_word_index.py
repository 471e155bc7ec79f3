"""
Finding many words in many bytes, as the scanner of logs does it.
"""

from __future__ import annotations

import random

import pytest

from distdebug.logs import scan_logs


WORDS = ["w-fatal", "w-: nan", "out of memory pool", "sixer6", "five5"]
WORDS += ["sevens7", "eightsx8", "a-very-long-word-indeed"]
# Words are looked for in so many bytes at once.
CHUNK = 1 << 19


@pytest.fixture
def counts(tmp_path):
    """
    Counts the lines that hold words.
    """
    rules = tmp_path / "mine.toml"
    rules.write_text(
        "".join(
            f"[[rule]]\nname = {word!r}\nwords = [{word!r}]\nsays = 'x'\n"
            for word in WORDS
        )
    )

    def count(data):
        (tmp_path / "a.log").write_bytes(data)
        report = scan_logs(tmp_path / "a.log", rules=[rules])
        return {group.rule: group.count for group in report.groups}

    return count


def test_found(counts):
    """
    Each word is found wherever it begins, in whatever case, and only once.
    """
    generator = random.Random(7)
    others = b"#%&*+<>{}~^"
    expected = dict.fromkeys(WORDS, 0)
    lines = []
    for _ in range(2000):
        word = generator.choice(WORDS)
        shown = generator.choice(
            [word, word.upper(), word.title(), word[:-1], word[1:]]
        )
        expected[word] += len(shown) == len(word)
        around = [
            bytes(generator.choices(others, k=generator.randrange(9)))
            for _ in range(2)
        ]
        lines.append(shown.encode().join(around))

    found = counts(b"\n".join(lines))

    assert expected == found


@pytest.mark.parametrize("word", ["five5", "eightsx8"])
def test_borders(counts, word):
    """
    Words are found at the beginning, at the end, and where two pieces meet.
    """
    line = word.encode()
    filler = line + b"\n" + (b"-" * 99 + b"\n") * (CHUNK // 100 + 1)

    for before in range(len(line) + 9):
        head = filler[: CHUNK - before - 1] + b"\n"

        assert {word: 2} == counts(head + line)


def test_almost(counts):
    """
    What is only like a word is none, even if only one bit is another.
    """
    almost = b"out\0of memory pool, `-FATAL, w-\x1a nan, W\r-: nan, sixes6"

    assert {} == counts(almost)
    assert {"out of memory pool": 1} == counts(
        almost + b"\nout of memory pool"
    )


def test_nothing(counts):
    """
    In an empty log nothing is found.
    """
    assert {} == counts(b"")
