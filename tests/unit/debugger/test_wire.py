"""
Messages between a rank and a client, and the folder of their sockets.
"""

from __future__ import annotations

import os
import socket
import stat

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.debugger import arm, connect
from distdebug.errors import DebuggerError


MAX_MESSAGE_BYTES = 1 << 20


class TestMessages:
    def test_pieces(self, armed, raw):
        """
        Messages are whole, wherever the pieces are cut.
        """
        data = '{"op":"é\\n","id":"é"}\n{"op":"list","id":2}\n'.encode()

        for cut in range(len(data)):
            with raw.connected(armed) as client:
                client.sendall(data[:cut])
                client.sendall(data[cut:])
                client.shutdown(socket.SHUT_WR)
                first, second = client.makefile("rb")

            assert b'{"id":"\\u00e9","error":"unknown operation' in first
            assert second.startswith(b'{"id":2,"process":')

    @pytest.mark.parametrize(
        "line",
        [
            b"nonsense",
            b"[1]",
            b"3",
            b"\xff",
            b"\x80\x04}",
            b"",
            b"[" * 100_000,
            b'{"a":' * 100_000,
        ],
        ids=["text", "list", "number", "bytes", "pickle", "none", "deep", "a"],
    )
    def test_malformed(self, armed, raw, line):
        """
        What is no object of JSON ends the conversation, and only that.
        """
        with raw.connected(armed) as client:
            answer = raw.said(client, line + b"\n")

            assert b"" == client.recv(10)
        assert "a message is not" in answer["error"]
        assert 7 == raw.asked(armed, op="list", id=7)["id"]

    @pytest.mark.parametrize("end", [b"", b"\n"], ids=["open", "closed"])
    def test_oversized(self, armed, raw, end):
        """
        A line that is too long is refused, whether it ends or not.
        """
        with raw.connected(armed) as client:
            answer = raw.said(
                client, b'"' + b"x" * MAX_MESSAGE_BYTES + b'"' + end
            )

        assert answer is None or "longer" in answer["error"]
        assert 7 == raw.asked(armed, op="list", id=7)["id"]

    def test_too_long_to_send(self, armed, raw):
        """
        What the other end would refuse is not sent.
        """
        number = "x" * (MAX_MESSAGE_BYTES - 150)

        answer = raw.asked(armed, op="list", id=number)

        assert "longer than 1,048,576 bytes" in answer["error"]
        with connect() as client:
            with pytest.raises(DebuggerError, match="longer") as caught:
                client.eval(None, "x" * MAX_MESSAGE_BYTES)
            (answer,) = client.eval(None, "1 + 1").outputs
        assert isinstance(caught.value, ValueError)
        assert "2" == answer.text


class TestFolder:
    def test_base(self, socket_folder, monkeypatch):
        """
        The folder of all jobs is that of the user.
        """
        monkeypatch.delenv("DISTDEBUG_DIR")
        monkeypatch.setattr(Path, "exists", lambda _: False)

        with pytest.raises(DebuggerError) as caught:
            connect()

        assert str(caught.value).startswith(
            "no job of yours listens on this node, below "
            f"/tmp/distdebug-{os.geteuid()}"
        )

    @pytest.mark.parametrize(
        ("job", "name"),
        [
            ("", "job"),
            ("../../etc", "etc"),
            ("run 7", "run-7"),
            ("x" * 40, "x" * 23 + "-bd913ff6"),
        ],
        ids=["none", "hostile", "blank", "long"],
    )
    def test_named_after_the_job(self, folder, base, monkeypatch, job, name):
        """
        The folder bears the name of the job, as far as that is safe; it and
        that of all jobs are ours alone, and it is found again.
        """
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
        base.chmod(0o700)

        path = arm()

        assert base / name == path.parent
        assert len(name) <= 32
        assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)
        with connect() as client:
            assert str(path) == client.list().processes[0].path

    def test_made(self, folder, base):
        """
        The folder of all jobs is made, for the user alone.
        """
        base.rmdir()

        arm()

        assert 0o700 == stat.S_IMODE(base.stat().st_mode)

    @pytest.mark.parametrize("kind", ["open", "link", "file"])
    def test_unsafe(self, folder, caplog, kind):
        """
        What others may enter, a link, or a file is not a folder for sockets.
        """
        path = folder / "f"
        if kind == "link":
            (folder / "real").mkdir(mode=0o700)
            path.symlink_to(folder / "real")
        elif kind == "file":
            path.touch(mode=0o700)
        else:
            path.mkdir()
            path.chmod(0o750)

        assert arm(dir=path) is None

        expected = {"open": "others may enter", "link": "not a folder"}
        assert expected.get(kind, "File exists") in caplog.text
        if kind != "file":
            with pytest.raises(DebuggerError, match=expected[kind]):
                connect(path)

    def test_of_somebody_else(self, folder, monkeypatch, caplog):
        """
        A folder of another user is refused, but for root who only reads it.
        """
        theirs = SimpleNamespace(st_mode=stat.S_IFDIR | 0o700, st_uid=54321)
        monkeypatch.setattr(os, "lstat", lambda _: theirs)

        monkeypatch.setattr(os, "geteuid", lambda: 1234)
        with pytest.raises(DebuggerError, match="belongs to user 54321"):
            connect(folder)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        with connect(folder) as client:
            assert () == client.list().processes
        assert arm() is None
        assert "belongs to user 54321" in caplog.text

    def test_sockets(self, folder, monkeypatch):
        """
        A socket is named after the rank and its process, and not confused with
        other files.
        """
        monkeypatch.setenv("RANK", "3")
        path = arm()
        for name in ("audit.jsonl", "x.y.sock", "7.1.sock.1"):
            (folder / name).touch()

        with connect() as client:
            listing = client.list()

        namespace = Path("/proc/self/ns/pid").stat().st_ino
        assert f"3.{namespace:x}.{os.getpid()}.sock" == path.name
        assert [str(path)] == [process.path for process in listing]
        assert () == listing.silent

    def test_no_namespaces(self, folder, monkeypatch):
        """
        Where the kernel hides the namespace, there is one only.
        """
        look = os.stat

        def refuse(path, **options):
            if path == "/proc/self/ns/pid":
                raise PermissionError
            return look(path, **options)

        monkeypatch.setattr(os, "stat", refuse)

        assert f"x.0.{os.getpid()}.sock" == arm().name

    def test_too_long(self, folder, caplog):
        """
        The kernel would cut a long path, so it is refused.
        """
        assert arm(dir=folder / ("x" * 100)) is None

        assert "is too long for a socket" in caplog.text
