"""
How does a file appear whole or not at all?
"""

import errno
import os
import tempfile

from pathlib import Path

import pytest

from distdebug._files import (
    replace_link,
    scratch_file,
    write_whole,
)


class TestScratch:
    def test_empty(self):
        """
        What is written is read again, and was not there before.
        """
        with scratch_file() as file:
            assert b"" == file.read()
            file.write(b"x")
            file.seek(0)

            assert b"x" == file.read()

    def test_no_folder(self, monkeypatch):
        """
        Where no folder takes a file, it is in memory.
        """

        def refuse():
            raise FileNotFoundError(errno.ENOENT, "no usable folder")

        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)

        with scratch_file() as file:
            assert 3 == file.write(b"abc")

    def test_full_disk(self, monkeypatch):
        """
        A file on a full disk is not used.
        """
        full = []

        def last():
            full.append(os.fdopen(os.open("/dev/full", os.O_RDWR), "r+b", 0))
            return full[0]

        monkeypatch.setattr(tempfile, "TemporaryFile", last)

        with scratch_file() as file:
            assert 3 == file.write(b"abc")

        assert full[0].closed


class TestWriteWhole:
    def test_replaces(self, tmp_path):
        """
        A file is replaced, and nothing but the file is left.
        """
        write_whole(tmp_path / "f", b"one")
        write_whole(tmp_path / "f", b"two")

        assert b"two" == (tmp_path / "f").read_bytes()
        assert [tmp_path / "f"] == list(tmp_path.iterdir())
        assert 0o600 == (tmp_path / "f").stat().st_mode & 0o777

    def test_fails(self, tmp_path):
        """
        What cannot be put in place leaves nothing behind.
        """
        (tmp_path / "d").mkdir()

        with pytest.raises(IsADirectoryError):
            write_whole(tmp_path / "d", b"x")

        assert [tmp_path / "d"] == list(tmp_path.iterdir())

    def test_full_disk(self, tmp_path, monkeypatch):
        """
        On a full disk the earlier file stays, and nothing is left behind.
        """

        def refuse(*_):
            raise OSError(errno.ENOSPC, "full")

        write_whole(tmp_path / "f", b"one")
        monkeypatch.setattr(Path, "write_bytes", refuse)

        with pytest.raises(OSError, match="full"):
            write_whole(tmp_path / "f", b"two")

        assert b"one" == (tmp_path / "f").read_bytes()
        assert [tmp_path / "f"] == list(tmp_path.iterdir())

    def test_link_in_the_way(self, tmp_path):
        """
        A link where the temporary file goes is not followed.
        """
        (tmp_path / "precious").write_text("keep")
        (tmp_path / f".f.{os.getpid()}.tmp").symlink_to(tmp_path / "precious")

        write_whole(tmp_path / "f", b"x")

        assert "keep" == (tmp_path / "precious").read_text()


def test_replace_link(tmp_path):
    """
    A link moves to its new target.
    """
    replace_link(tmp_path / "latest", "a")
    replace_link(tmp_path / "latest", "b")

    assert "b" == str((tmp_path / "latest").readlink())
