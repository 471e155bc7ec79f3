"""
One collector at a time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
import time

import pytest

from distdebug.capture import node_lock
from distdebug.errors import CaptureError, NodeBusyError


def refused(folder=None, **options):
    """
    Why the lock is not to be had.
    """
    folder = folder and str(folder)
    with (
        pytest.raises(CaptureError) as caught,
        node_lock(folder=folder, **options),
    ):
        pass
    return caught.value


class TestNodeLock:
    def test_busy(self, tmp_path):
        """
        The second one learns which process is the first.
        """
        with node_lock(folder=str(tmp_path)):
            why = refused(tmp_path)

        assert isinstance(why, NodeBusyError)
        assert str(why).startswith(f"process {os.getpid()} is att")

    def test_free_again(self, tmp_path):
        """
        When the first is done, or failed, the next one may go on; what a
        holder that was killed has left is used again.
        """
        with pytest.raises(ZeroDivisionError), node_lock(folder=str(tmp_path)):
            raise ZeroDivisionError
        old = tmp_path / f"distdebug-{os.getuid()}.lock"
        old.write_text("12345678\n")

        with node_lock(folder=str(tmp_path)) as path:
            assert (old, f"{os.getpid()}\n") == (path, path.read_text())
        with node_lock(folder=str(tmp_path)) as path:
            assert 0o600 == path.stat().st_mode & 0o777
        assert not [*tmp_path.iterdir()]

    def test_of_others(self, tmp_path):
        """
        What another has put in its place is left there.
        """
        with node_lock(folder=str(tmp_path)) as path:
            path.unlink()
            path.write_text("theirs")

        assert "theirs" == path.read_text()

    def test_strange_disk(self, tmp_path, monkeypatch):
        """
        A disk that never shows what was opened does not keep us for ever.
        """
        monkeypatch.setattr(os.path, "samestat", lambda *_: False)

        with node_lock(folder=str(tmp_path)) as path:
            assert path.exists()

    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
    def test_no_locks(self, tmp_path, monkeypatch, number):
        """
        A file system that cannot lock is an error of ours, with a remedy.
        """

        def fail(*_):
            raise OSError(number, "no")

        monkeypatch.setattr(fcntl, "flock", fail)

        why = refused(tmp_path)

        assert "the lock" in str(why)
        assert "TMPDIR" in why.remedy

    def test_many(self, tmp_path):
        """
        Of many that come and go, there is one at a time, and each gets it.
        """
        inside, most = [], []

        def hold():
            for _ in range(30):
                with node_lock(30, folder=str(tmp_path)):
                    inside.append(1)
                    most.append(len(inside))
                    time.sleep(0.0005)
                    inside.pop()

        holders = [threading.Thread(target=hold) for _ in range(6)]
        for holder in holders:
            holder.start()
        for holder in holders:
            holder.join()

        assert [1] * 180 == most
        assert not [*tmp_path.iterdir()]

    def test_holder_unknown(self, tmp_path):
        """
        A file may hold anything.
        """
        with node_lock(folder=str(tmp_path)) as path:
            path.write_text("99999999999999999999 \x1b[31m")

            assert str(refused(tmp_path)).startswith("another process is")

    def test_link(self, tmp_path):
        """
        Where all may write, a link leads nowhere.
        """
        precious = tmp_path / "precious"
        precious.write_text("keep")
        path = tmp_path / f"distdebug-{os.getuid()}.lock"
        path.symlink_to(precious)

        why = refused(tmp_path)

        assert "cannot be used" in str(why)
        assert "TMPDIR" in why.remedy
        assert "keep" == precious.read_text()

    @pytest.mark.parametrize("is_pipe", [True, False])
    def test_no_file(self, tmp_path, monkeypatch, is_pipe):
        """
        A pipe in its place is not waited for, and the file of another user is
        not used.
        """
        if is_pipe:
            os.mkfifo(tmp_path / f"distdebug-{os.getuid()}.lock")
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 999999)

        why = refused(tmp_path)

        assert "belongs to user" in str(why)
        assert "or is not a file" in str(why)
        assert not isinstance(why, NodeBusyError)

    def test_place(self, tmp_path, monkeypatch):
        """
        The directory of the user comes before that of all.
        """
        other = tmp_path / "other"
        other.mkdir()
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(other))

        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        with node_lock() as own:
            pass
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
        with node_lock() as everybodys:
            pass

        assert (tmp_path, other) == (own.parent, everybodys.parent)

    def test_no_place(self, monkeypatch):
        """
        Where no folder takes a file, that is an error of ours.
        """

        def fail():
            raise FileNotFoundError(2, "No usable temporary directory")

        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setattr(tempfile, "gettempdir", fail)

        why = refused()

        assert "No usable temp" in str(why)
        assert "TMPDIR" in why.remedy

    def test_full_disk(self, tmp_path, monkeypatch):
        """
        A lock that cannot name its holder locks all the same.
        """

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "pwrite", fail)

        with node_lock(folder=str(tmp_path)):
            why = refused(tmp_path)

        assert isinstance(why, NodeBusyError)
        assert "another process" in str(why)

    def test_names(self, tmp_path):
        """
        What locks something else is let in; what locks the same is not.
        """
        folder = str(tmp_path)

        with (
            node_lock(folder=folder) as first,
            node_lock(folder=folder, name="watch-1") as second,
        ):
            why = refused(tmp_path, name="watch-1")

        assert isinstance(why, NodeBusyError)
        assert f"distdebug-{os.getuid()}.lock" == first.name
        assert f"watch-1-{os.getuid()}.lock" == second.name
