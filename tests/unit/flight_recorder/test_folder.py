"""
Where may dumps be put?
"""

import os
import stat
import tempfile

from types import SimpleNamespace

import pytest

from distdebug.errors import RecorderError
from distdebug.flight_recorder import make_folder
from distdebug.flight_recorder.recording.folder import default_root


@pytest.fixture
def root(tmp_path, monkeypatch):
    """
    Where folders of dumps are made.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return default_root()


def test_default(root):
    """
    Folders that anybody could guess are for their owner alone, all of them.
    """
    make_folder(root / "job")
    make_folder(root / "job")

    assert [0o700, 0o700] == [
        stat.S_IMODE(p.stat().st_mode) for p in (root, root / "job")
    ]


def test_link(root, tmp_path):
    """
    A link in place of such a folder is not followed.
    """
    (tmp_path / "elsewhere").mkdir()
    root.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(RecorderError, match="somebody else") as caught:
        make_folder(root / "job")

    assert "dump_dir=" in caught.value.remedy


def test_somebody_elses(root, monkeypatch):
    """
    Neither is such a folder used if it is somebody else's.
    """
    root.mkdir()
    monkeypatch.setattr(
        type(root),
        "lstat",
        lambda self: SimpleNamespace(
            st_mode=stat.S_IFDIR, st_uid=os.getuid() + 1
        ),
    )

    with pytest.raises(RecorderError, match="somebody else"):
        make_folder(root / "job")


def test_users(tmp_path):
    """
    A folder that the user names may be a link.
    """
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")

    make_folder(tmp_path / "link" / "a" / "b")

    assert (tmp_path / "d/a/b").is_dir()


def test_impossible(tmp_path):
    """
    What cannot be a folder is an error with a remedy.
    """
    (tmp_path / "f").touch()

    with pytest.raises(RecorderError, match="cannot make"):
        make_folder(tmp_path / "f" / "d")


def test_read_only(tmp_path, monkeypatch):
    """
    So is a folder that cannot be written to.
    """
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(RecorderError, match="cannot write"):
        make_folder(tmp_path)
