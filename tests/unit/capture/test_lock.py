"""
One collector at a time.
"""

from __future__ import annotations

import os
import threading
import time

import pytest

from distdebug.capture import node_lock
from distdebug.capture.attaching import lock
from distdebug.errors import CaptureError, NodeBusyError


class TestNodeLock:
    def test_busy(self, tmp_path):
        """
        The second one is told who is the first.
        """
        with (
            node_lock(folder=str(tmp_path)),
            pytest.raises(
                NodeBusyError, match=f"process {os.getpid()} is att"
            ),
            node_lock(folder=str(tmp_path)),
        ):
            pass

    def test_free_again(self, tmp_path):
        """
        When the first is done, or failed, the next one may go on.
        """
        with pytest.raises(ZeroDivisionError), node_lock(folder=str(tmp_path)):
            raise ZeroDivisionError

        with node_lock(folder=str(tmp_path)) as path:
            assert f"{os.getpid()}\n" == path.read_text()
            assert 0o600 == path.stat().st_mode & 0o777

        assert not [*tmp_path.iterdir()]

    def test_killed(self, tmp_path):
        """
        What a holder that was killed has left is used again.
        """
        old = tmp_path / f"distdebug-{os.getuid()}.lock"
        old.write_text("12345678\n")

        with node_lock(folder=str(tmp_path)) as path:
            assert (old, f"{os.getpid()}\n") == (path, path.read_text())

    def test_of_others(self, tmp_path):
        """
        What somebody else has put in its place is left there.
        """
        with node_lock(folder=str(tmp_path)) as path:
            path.unlink()
            path.write_text("theirs")

        assert "theirs" == path.read_text()

    def test_strange_disk(self, tmp_path, monkeypatch):
        """
        A disk that never shows what was opened does not keep us for ever.
        """
        monkeypatch.setattr(lock, "_is_at", lambda *_: False)

        with node_lock(folder=str(tmp_path)) as path:
            assert path.exists()

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

    def test_wait(self, tmp_path):
        """
        Whoever waits gets it when the first is done.
        """
        entered, leave = threading.Event(), threading.Timer(0.2, lambda: None)

        def hold():
            with node_lock(folder=str(tmp_path)):
                entered.set()
                leave.start()
                leave.join()

        holder = threading.Thread(target=hold)
        holder.start()
        entered.wait()

        with node_lock(30, folder=str(tmp_path)):
            assert leave.finished.is_set()

        holder.join()

    def test_holder_unknown(self, tmp_path):
        """
        A file may tell anything.
        """
        with node_lock(folder=str(tmp_path)) as path:
            path.write_text("99999999999999999999 \x1b[31m")

            with (
                pytest.raises(CaptureError, match=r"^another process is"),
                node_lock(folder=str(tmp_path)),
            ):
                pass

    def test_link(self, tmp_path):
        """
        Where everybody may write, a link leads nowhere.
        """
        precious = tmp_path / "precious"
        precious.write_text("keep")
        path = tmp_path / f"distdebug-{os.getuid()}.lock"
        path.symlink_to(precious)

        with (
            pytest.raises(CaptureError, match="cannot be opened") as caught,
            node_lock(folder=str(tmp_path)),
        ):
            pass

        assert "TMPDIR" in caught.value.remedy
        assert "keep" == precious.read_text()

    def test_no_file(self, tmp_path):
        """
        A pipe in its place is not waited for.
        """
        os.mkfifo(tmp_path / f"distdebug-{os.getuid()}.lock")

        with (
            pytest.raises(CaptureError, match="or is no file") as caught,
            node_lock(folder=str(tmp_path)),
        ):
            pass

        assert not isinstance(caught.value, NodeBusyError)

    def test_of_somebody_else(self, tmp_path, monkeypatch):
        """
        Somebody else's file is not used.
        """
        monkeypatch.setattr(lock.os, "geteuid", lambda: 999999)

        with (
            pytest.raises(CaptureError, match="belongs to user"),
            node_lock(folder=str(tmp_path)),
        ):
            pass

    def test_place(self, tmp_path, monkeypatch):
        """
        The directory of the user comes before that of everybody.
        """
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

        assert str(tmp_path) == lock._folder()

        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
        monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: "/x")

        assert "/x" == lock._folder()

    def test_no_place(self, monkeypatch):
        """
        Where no folder takes a file, that is an error of ours.
        """

        def fail():
            raise FileNotFoundError(2, "No usable temporary directory")

        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setattr(lock.tempfile, "gettempdir", fail)

        with (
            pytest.raises(CaptureError, match="No usable temp") as caught,
            node_lock(),
        ):
            pass

        assert "TMPDIR" in caught.value.remedy

    def test_full_disk(self, tmp_path, monkeypatch):
        """
        A lock that cannot tell of whom it is locks all the same.
        """

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(lock.os, "pwrite", fail)

        with (
            node_lock(folder=str(tmp_path)),
            pytest.raises(NodeBusyError, match="another process"),
            node_lock(folder=str(tmp_path)),
        ):
            pass

    def test_names(self, tmp_path):
        """
        Who locks something else is let in; who locks the same is not.
        """
        folder = str(tmp_path)

        with node_lock(folder=folder) as first:
            with node_lock(folder=folder, name="watch-1") as second:
                with (
                    pytest.raises(NodeBusyError),
                    node_lock(folder=folder, name="watch-1"),
                ):
                    pass

        assert f"distdebug-{os.getuid()}.lock" == first.name
        assert f"watch-1-{os.getuid()}.lock" == second.name
