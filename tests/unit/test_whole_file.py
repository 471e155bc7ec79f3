"""
How does a file appear whole or not at all?
"""

import errno
import os
import resource
import stat
import tempfile

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distdebug._io import open_whole, replace_link, scratch_file, write_whole


class TestScratch:
    @pytest.mark.parametrize("has_folder", [True, False])
    def test_empty(self, has_folder, monkeypatch):
        """
        What is written is read again, and was not there before; where no
        folder takes a file, it is in memory.
        """

        def refuse():
            raise FileNotFoundError(errno.ENOENT, "no usable folder")

        if not has_folder:
            monkeypatch.setattr(tempfile, "TemporaryFile", refuse)

        with scratch_file() as file:
            assert b"" == file.read()
            file.write(b"x")
            file.seek(0)

            assert b"x" == file.read()

    def test_no_more_room(self, tmp_path):
        """
        Where no more can be written the earlier file stays, and nothing else.
        """
        write_whole(tmp_path / "f", b"one")
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))

        try:
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                write_whole(tmp_path / "f", bytes(200_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

        assert b"one" == (tmp_path / "f").read_bytes()
        assert [tmp_path / "f"] == list(tmp_path.iterdir())

    def test_link_in_the_way(self, tmp_path, monkeypatch):
        """
        A link where the temporary file goes is not followed.
        """
        monkeypatch.setattr(os, "urandom", bytes)
        (tmp_path / "precious").write_text("keep")
        (tmp_path / f".f.{'00' * 6}.tmp").symlink_to(tmp_path / "precious")

        with pytest.raises(FileExistsError):
            write_whole(tmp_path / "f", b"x")

        assert "keep" == (tmp_path / "precious").read_text()

    def test_link_meanwhile(self, tmp_path, monkeypatch):
        """
        A link that takes the place of the temporary file, as soon as that is
        there, is not followed.
        """
        precious, really = tmp_path / "precious", os.open
        precious.write_text("keep")

        def open_and_lose(path, *arguments):
            number = really(path, *arguments)
            Path(path).unlink()
            Path(path).symlink_to(precious)
            return number

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", open_and_lose)
            write_whole(tmp_path / "f", b"x")

        assert "keep" == precious.read_text()

    def test_private(self, tmp_path):
        """
        Whatever the umask, it is for its owner alone from the beginning.
        """
        before = os.umask(0)
        try:
            with open_whole(tmp_path / "f") as file:
                (temporary,) = tmp_path.iterdir()
                mode = stat.S_IMODE(temporary.stat().st_mode)
                file.write(b"x")
        finally:
            os.umask(before)

        assert 0o600 == mode
        assert b"x" == (tmp_path / "f").read_bytes()

    def test_link(self, tmp_path):
        """
        A link is replaced; what it leads to stays as it is.
        """
        (tmp_path / "old").write_text("keep")
        (tmp_path / "f").symlink_to(tmp_path / "old")

        write_whole(tmp_path / "f", b"new")

        assert "keep" == (tmp_path / "old").read_text()
        assert not (tmp_path / "f").is_symlink()

    @pytest.mark.parametrize("is_linked", [False, True])
    def test_no_ordinary_file(self, tmp_path, is_linked):
        """
        What is no ordinary file, such as a device, is never replaced.
        """
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        path = tmp_path / "link" if is_linked else pipe
        if is_linked:
            path.symlink_to(pipe)

        with pytest.raises(FileExistsError, match="no ordinary file"):
            write_whole(path, b"x")

        assert pipe.is_fifo()
        assert is_linked == path.is_symlink()

    def test_side_by_side(self, tmp_path):
        """
        Of several who write at once, each writes all or nothing.
        """
        path = tmp_path / "f"
        texts = [bytes([65 + i]) * 100_000 for i in range(4)]

        with ThreadPoolExecutor(4) as pool:
            for _ in range(10):
                list(pool.map(write_whole, [path] * 4, texts))
                assert path.read_bytes() in texts

        assert [path] == list(tmp_path.iterdir())


def test_replace_link(tmp_path):
    """
    A link moves to its new target.
    """
    replace_link(tmp_path / "latest", "a")
    replace_link(tmp_path / "latest", "b")

    assert "b" == str((tmp_path / "latest").readlink())
