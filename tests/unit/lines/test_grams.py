"""
Finding many words in many bytes.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from distdebug._lines import grams
from distdebug._lines.grams import PADDING, build_index, find_words
from distdebug.logscan import blocks
from distdebug.logscan.blocks import Part, read_blocks


WORDS = [b"fatal", b"Traceback", b": nan", b"out of memory", b"memory pool"]
WORDS += [b"segfault", b"sixers", b"sevens7", b"a-very-long-word-indeed"]


def find(data, words=WORDS):
    """
    All words in some bytes.
    """
    index = build_index(words)
    return find_words(index, np.frombuffer(data + bytes(PADDING), np.uint8))


def expected(data, words=WORDS):
    """
    The same, by searching for one after the other.
    """
    small = data.lower()
    return sorted(
        (at, word.lower())
        for word in words
        for at in range(len(small))
        if small.startswith(word.lower(), at)
    )


@pytest.mark.parametrize("chunk", [64, 1 << 19])
def test_found(monkeypatch, chunk):
    """
    Each word is found wherever it begins, in whatever case, and only once.
    """
    monkeypatch.setattr(grams, "_CHUNK", chunk)
    generator = random.Random(7)
    pieces = []
    for _ in range(400):
        word = generator.choice(WORDS)
        pieces += [
            generator.choice([word, word.upper(), word.title(), word[:-1]]),
            bytes(
                generator.randrange(256) for _ in range(generator.randrange(9))
            ),
        ]
    data = b"".join(pieces)

    found = find(data)

    assert expected(data) == found
    assert 200 < len(found)


def test_at_the_ends():
    """
    Words are found at the very beginning and at the very end.
    """
    assert [(0, b"fatal"), (6, b"segfault")] == find(b"fatal segfault")
    assert [] == find(b"")


def test_almost(monkeypatch):
    """
    What is only like a word is none, even if its hash is the same.
    """
    monkeypatch.setattr(grams, "_hash_pair", lambda one, _: one % 1)
    data = b"@atal fAtal out of menory out\x0fof memory segfaulT"

    assert expected(data) == find(data)


@pytest.mark.parametrize("start", [0, 1, 700, 999])
def test_blocks(tmp_path, monkeypatch, start):
    """
    Blocks give each byte of a part once, with what is around it.
    """
    monkeypatch.setattr(blocks, "_SIZE", 100)
    monkeypatch.setattr(blocks, "BEHIND", 30)
    monkeypatch.setattr(blocks, "AHEAD", 20)
    data = random.Random(3).randbytes(1000)
    (tmp_path / "a.log").write_bytes(data)
    part = Part(
        path=str(tmp_path / "a.log"), start=start, stop=1000, size=1000
    )

    own, around = b"", []
    for block in read_blocks(part):
        own += bytes(block.data[block.own : block.end])
        around.append(
            data[block.offset : block.offset + block.size]
            == block.data[: block.size]
        )

    assert data[start:] == own
    assert all(around)


def test_blocks_of_parts(tmp_path, monkeypatch):
    """
    A part ends where the next begins, and sees what is behind.
    """
    monkeypatch.setattr(blocks, "_SIZE", 64)
    monkeypatch.setattr(blocks, "BEHIND", 30)
    monkeypatch.setattr(blocks, "AHEAD", 20)
    data = random.Random(3).randbytes(1000)
    (tmp_path / "a.log").write_bytes(data)
    name = str(tmp_path / "a.log")

    own = b"".join(
        bytes(block.data[block.own : block.end])
        for start in range(0, 1000, 150)
        for block in read_blocks(
            Part(
                path=name, start=start, stop=min(start + 150, 1000), size=1000
            )
        )
    )

    assert data == own


def test_shrunk(tmp_path):
    """
    A file that has become shorter is read as far as it goes.
    """
    (tmp_path / "a.log").write_bytes(b"x" * 10)
    part = Part(path=str(tmp_path / "a.log"), start=0, stop=99, size=99)
    gone = Part(path=str(tmp_path / "a.log"), start=50, stop=99, size=99)

    assert [10] == [block.end for block in read_blocks(part)]
    assert [] == list(read_blocks(gone))
