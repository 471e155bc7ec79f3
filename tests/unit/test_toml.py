"""
Files that users write in TOML are read in bounded time.
"""

from __future__ import annotations

import pytest

from distdebug._toml import read_toml


@pytest.fixture
def file(tmp_path):
    """
    Write a file.
    """

    def write(text):
        path = tmp_path / "rules.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_tables(file):
    """
    Tables are read as they are.
    """
    expected = {"rule": [{"name": "x", "words": ["a"]}]}

    actual = read_toml(file("[[rule]]\nname = 'x'\nwords = ['a']\n"))

    assert expected == actual


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a = ", "value"),
        (b"\xff", "utf-8"),
        ("#" * ((1 << 20) + 1), "larger"),
        ("a." * 100_000 + "b = 1", "line is longer"),
        ("a = " + "[" * 3000, "nested"),
    ],
    ids=["no value", "no text", "large", "long key", "deep"],
)
def test_refused(text, match, file):
    """
    What is no TOML, or would take long to read, is refused.
    """
    path = file(text)

    with pytest.raises(ValueError, match=match):
        read_toml(path)


def test_missing(tmp_path):
    """
    A file that is not there is an error of the system.
    """
    with pytest.raises(OSError, match="No such file"):
        read_toml(tmp_path / "none")
