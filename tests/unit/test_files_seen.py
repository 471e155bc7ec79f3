"""
What is there, as far as can be seen; and where do results go?
"""

from __future__ import annotations

import errno
import os
import stat

from pathlib import Path

import pytest

from distdebug._io import (
    FileWalk,
    is_file,
    is_folder,
    is_there,
    matching,
    open_ordinary,
    output_to,
    remembered_walks,
    resolved,
    stays_in,
)
from distdebug.errors import OutputError


@pytest.fixture
def gone(monkeypatch):
    """
    A server of files that does not answer any more.
    """

    def fail(*args, **kwargs):
        raise OSError(errno.ESTALE, "Stale file handle")

    for name in ("stat", "lstat", "scandir", "readlink"):
        monkeypatch.setattr(os, name, fail)


def test_there(tmp_path):
    """
    What is there is seen as what it is, links included; those that lead to
    each other are left as they are.
    """
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "stray").symlink_to("nothing")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    assert is_file(tmp_path / "file")
    assert is_file(tmp_path / "link")
    assert is_folder(tmp_path)
    assert not is_there(tmp_path / "stray")
    assert tmp_path / "file" == resolved(tmp_path / "link")
    assert tmp_path / "a" == resolved(tmp_path / "a")
    assert [tmp_path / "link", tmp_path / "stray"] == matching(
        tmp_path, "[ls]*"
    )


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("file", True),
        ("sub/../file", True),
        ("nothing", True),
        (".", True),
        ("link", True),
        ("..", False),
        ("/etc/passwd", False),
        ("../folder2/file", False),
    ],
)
def test_stays_in(tmp_path, target, expected):
    """
    A link stays in a folder if what it leads to does; one in a circle does.
    """
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "folder2").mkdir()
    (folder / "link").symlink_to(target)

    assert expected == stays_in(folder / "link", folder)
    assert stays_in(folder / "link", "/")


def test_gone(tmp_path, gone):
    """
    What cannot be seen is not there, and nothing is raised.
    """
    assert not is_file(tmp_path)
    assert not is_folder(tmp_path)
    assert not is_there(tmp_path)
    assert [] == matching(tmp_path, "*/x")
    assert tmp_path.absolute() == resolved(tmp_path)


def test_output_to(tmp_path):
    """
    The error names the place, the reason, and what helps.
    """
    with pytest.raises(OutputError, match="No space left") as caught:
        with output_to(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")

    assert str(tmp_path) in str(caught.value)
    assert "name another folder" in caught.value.remedy


def test_open_fails_later(tmp_path, monkeypatch):
    """
    A file about which nothing can be learned is closed again.
    """
    (tmp_path / "file").touch()

    def fail(mode):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(stat, "S_ISREG", fail)

    with pytest.raises(OSError, match="Input"):
        open_ordinary(tmp_path / "file", "no file")


def test_walked_once(tmp_path, monkeypatch):
    """
    Readers of the same folders look at each file once, if they are told to
    remember; what comes later is not seen by them.
    """
    looked = []
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").touch()
    for name in ("stat", "scandir"):
        original = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda path, original=original: (
                looked.append(path) or original(path)
            ),
        )

    with remembered_walks():
        found = [[*FileWalk([tmp_path])] for _ in range(3)]
        (tmp_path / "late").touch()
        found.append([*FileWalk([tmp_path])])

    assert 4 * [["file"]] == [[Path(f.path).name for f in x] for x in found]
    assert len(set(looked)) + 2 == len(looked)  # two folders are listed, too
    assert ["file", "late"] == [
        Path(f.path).name for f in FileWalk([tmp_path])
    ]
