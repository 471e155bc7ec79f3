"""
Messages between a rank and a client, and the folder of their sockets.
"""

from __future__ import annotations

import json
import os
import socket
import stat

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.debugger import folders
from distdebug.debugger.folders import (
    base_folder,
    check_folder,
    job_folder,
    job_folders,
    make_folder,
    socket_path,
    socket_paths,
)
from distdebug.debugger.wire import (
    LIMIT_BYTES,
    Feed,
    WireError,
    may_talk,
    pack,
    peer_uid,
)
from distdebug.errors import DebuggerError


class TestFeed:
    def test_pieces(self):
        """
        Messages are whole, wherever the pieces are cut.
        """
        data = pack({"a": 1}) + pack({"b": "é\n"})

        for cut in range(len(data)):
            feed = Feed()

            got = feed.take(data[:cut]) + feed.take(data[cut:])

            assert [{"a": 1}, {"b": "é\n"}] == got

    @pytest.mark.parametrize(
        "line",
        [b"nonsense", b"[1]", b"3", b"\xff", b"", b"[" * 100_000],
        ids=["text", "list", "number", "bytes", "nothing", "deep"],
    )
    def test_malformed(self, line):
        """
        What is no object of JSON is refused.
        """
        with pytest.raises(WireError):
            Feed().take(line + b"\n")

    @pytest.mark.parametrize("end", [b"", b"\n"], ids=["open", "closed"])
    def test_oversized(self, end):
        """
        A line that is too long is refused, whether it ends or not.
        """
        with pytest.raises(WireError, match="longer"):
            Feed().take(b'"' + b"x" * LIMIT_BYTES + b'"' + end)

    def test_pack_oversized(self):
        """
        What the other end would refuse is not sent.
        """
        with pytest.raises(WireError, match="longer"):
            pack({"text": "x" * LIMIT_BYTES})


def test_peer_is_us():
    """
    The kernel tells that we are at the other end, and we may talk.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        uid = peer_uid(ours)

    assert os.geteuid() == uid
    assert may_talk(uid)
    assert may_talk(0)
    assert not may_talk(uid + 54321)


class TestFolders:
    @pytest.fixture(autouse=True)
    def base(self, tmp_path, monkeypatch):
        """
        The folder of all jobs is one of the test.
        """
        base = tmp_path / "base"
        monkeypatch.setattr(folders, "base_folder", lambda: base)
        for name in list(os.environ):
            if name.startswith(("DISTDEBUG", "TORCHELASTIC", "MASTER_")):
                monkeypatch.delenv(name)
        return base

    def test_base(self):
        """
        The folder of all jobs is that of the user.
        """
        assert f"/tmp/distdebug-{os.geteuid()}" == str(base_folder())

    def test_chosen(self, monkeypatch):
        """
        The user may choose the folder.
        """
        monkeypatch.setenv("DISTDEBUG_DIR", "/somewhere/else")

        assert Path("/somewhere/else") == job_folder()

    @pytest.mark.parametrize(
        ("job", "name"),
        [
            ("", "job"),
            ("../../etc", "etc"),
            ("run 7", "run-7"),
            ("x" * 40, "x" * 23 + "-9f4aedf4"),
        ],
        ids=["none", "hostile", "blank", "long"],
    )
    def test_named_after_the_job(self, base, monkeypatch, job, name):
        """
        The folder bears the name of the job, as far as that is safe.
        """
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)

        found = job_folder()

        assert base == found.parent
        assert name[:10] == found.name[:10]
        assert len(found.name) <= 32

    def test_made(self, base):
        """
        A folder that is made is ours alone, and found again.
        """
        assert () == job_folders()

        make_folder(base / "run")

        assert 0o700 == (base / "run").stat().st_mode & 0o777
        assert 0o700 == base.stat().st_mode & 0o777
        assert (base / "run",) == job_folders()

    def test_open_to_others(self, tmp_path):
        """
        A folder that others may enter is refused.
        """
        (tmp_path / "f").mkdir(mode=0o700)
        (tmp_path / "f").chmod(0o750)

        with pytest.raises(DebuggerError, match="others may enter"):
            make_folder(tmp_path / "f")

    def test_link(self, tmp_path):
        """
        A link is refused, wherever it leads.
        """
        (tmp_path / "real").mkdir(mode=0o700)
        (tmp_path / "link").symlink_to(tmp_path / "real")

        with pytest.raises(DebuggerError, match="not a folder"):
            make_folder(tmp_path / "link")

    def test_of_somebody_else(self, tmp_path, monkeypatch):
        """
        A folder of another user is refused, but for root who only reads it.
        """
        theirs = SimpleNamespace(st_mode=stat.S_IFDIR | 0o700, st_uid=54321)
        monkeypatch.setattr(os, "lstat", lambda _: theirs)

        monkeypatch.setattr(os, "geteuid", lambda: 1234)
        with pytest.raises(DebuggerError, match="belongs to user 54321"):
            check_folder(tmp_path, or_anothers=True)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        check_folder(tmp_path, or_anothers=True)
        with pytest.raises(DebuggerError, match="belongs to user 54321"):
            check_folder(tmp_path)
        with pytest.raises(DebuggerError, match="belongs to user 54321"):
            make_folder(tmp_path)

    def test_sockets(self, tmp_path):
        """
        Sockets are told from what else lies there.
        """
        path = socket_path(tmp_path, 3)
        unknown = socket_path(tmp_path, None)
        for one in (path, unknown, tmp_path / "audit.jsonl"):
            one.touch()
        (tmp_path / "x.y.sock").touch()

        found = dict(socket_paths(tmp_path))

        assert {path: os.getpid(), unknown: os.getpid()} == found
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        assert f"3.{namespace:x}.{os.getpid()}.sock" == path.name

    def test_no_namespaces(self, tmp_path, monkeypatch):
        """
        Where the kernel does not tell the namespace, there is one only.
        """

        def refuse(_):
            raise PermissionError

        monkeypatch.setattr(os, "stat", refuse)

        path = socket_path(tmp_path, 3)

        assert f"3.0.{os.getpid()}.sock" == path.name

    def test_too_long(self, tmp_path):
        """
        The kernel would cut a long path, so it is refused.
        """
        with pytest.raises(DebuggerError, match="too long"):
            socket_path(tmp_path / ("x" * 100), 0)


def test_pack_is_one_line():
    """
    A message is one line, whatever is in it.
    """
    line = pack({"text": "a\nb"})

    assert 1 == line.count(b"\n")
    assert {"text": "a\nb"} == json.loads(line)
