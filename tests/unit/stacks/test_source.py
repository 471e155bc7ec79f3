"""
Lines of source code.
"""

from __future__ import annotations

import threading

from pathlib import Path

import pytest

from distdebug.stacks.source import SourceLines, source_line


CODE = """\
def f(items):
    total = 0
    for item in items:
        total += item

        print(total)
    while total:
        total -= 1
    return [
        x for x in items
    ]
class A:
    b = g(
        1)
"""


@pytest.fixture(name="file")
def source_file(tmp_path):
    """
    A file with loops.
    """
    file = tmp_path / "a.py"
    file.write_text(CODE)
    return str(file)


def test_once(file):
    """
    A file is read once.
    """
    lines = SourceLines()

    assert "    total = 0" == lines(file, 2)
    Path(file).unlink()
    assert "    total = 0" == lines(file, 2)
    assert "" == source_line(file, 2)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (2, False),
        (3, True),
        (4, True),
        (5, None),
        (6, True),
        (8, True),
        (9, False),
        (10, True),
        (13, False),
        (99, None),
    ],
)
def test_loop(file, line, expected):
    """
    It is known which lines can run again without a new call.
    """
    assert expected is SourceLines().is_in_loop(file, line)


def test_top(tmp_path):
    """
    A line of a module is in no loop, if none is around it.
    """
    file = tmp_path / "a.py"
    file.write_text("a = 1\nif a:\n    b()\n")

    assert SourceLines().is_in_loop(str(file), 3) is False


def test_patience(file, monkeypatch):
    """
    A file system that does not answer is not waited for, and not asked again.
    """
    asked = []
    answers = threading.Event()

    def never(name):
        asked.append(name)
        answers.wait()
        return []

    monkeypatch.setattr("distdebug.stacks.source._read", never)
    lines = SourceLines(patience_s=0.01)

    got = [lines(file, 1), lines(file + "x", 1)]
    answers.set()

    assert ["", ""] == got
    assert [file] == asked


def test_many(file, monkeypatch):
    """
    Endless names of files do not fill the memory.
    """
    monkeypatch.setattr("distdebug.stacks.source._MOST_FILES", 0)

    assert "" == SourceLines()(file, 1)
