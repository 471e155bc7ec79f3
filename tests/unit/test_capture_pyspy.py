"""
Capturing processes, with a stand-in for py-spy.
"""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from distdebug.capture import pyspy
from distdebug.capture.pyspy import capture_process, capture_processes
from distdebug.errors import CaptureError
from distdebug.stacks.parse import read_stacks


ANSWER = """\
import json, sys
pid = int(sys.argv[-1])
frame = {"name": "f", "filename": "/a.py", "line": 1}
print(json.dumps([{"pid": pid, "thread_id": 1, "thread_name": "MainThread",
                   "frames": [frame]}]))
"""


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """
    Writes a stand-in for py-spy.
    """
    path = tmp_path / "py-spy"

    def write(code):
        path.write_text(f"#!{sys.executable} -S\n{code}")
        path.chmod(0o755)
        monkeypatch.setattr(pyspy, "find_tool", lambda _: str(path))

    return write


@pytest.fixture
def sleeper():
    """
    A rank that does nothing.
    """
    code = "import time; print(flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "RANK": "3"},
    )
    with process:
        process.stdout.readline()
        yield process
        process.kill()


class TestCaptureProcess:
    def test_identity(self, tool, sleeper):
        """
        Rank, command, and parent are added to what py-spy says.
        """
        tool(ANSWER)

        got = capture_process(sleeper.pid)

        assert (sleeper.pid, 3, os.getpid(), "py-spy") == (
            got.pid,
            got.rank,
            got.parent_pid,
            got.source,
        )
        assert "time.sleep(600)" in got.command
        assert "f" == got.main_thread.frames[0].name

    def test_child_of_rank(self, tool, sleeper, monkeypatch):
        """
        A child that inherits the number of its rank is not that rank.
        """
        tool(ANSWER)
        monkeypatch.setattr(pyspy, "_rank", lambda _: 3)

        assert capture_process(sleeper.pid).rank is None

    @pytest.mark.parametrize(
        ("code", "message", "remedy"),
        [
            (
                "sys.exit('Error: Permission Denied: Try sudo')",
                "no permission",
                "SYS_PTRACE",
            ),
            (
                "sys.exit('EPERM: Operation not permitted')",
                "no permission",
                "ptrace_scope",
            ),
            (
                "sys.exit('Failed to find python version from target')",
                "not a Python process",
                "runs Python",
            ),
            ("sys.exit('what?\\nStack backtrace:\\n0: x')", "what\\?$", None),
            ("print('[')", "something unexpected", None),
        ],
    )
    def test_failures(self, tool, code, message, remedy):
        """
        Each way to fail is told, with what to do about it.
        """
        tool(f"import sys; {code}")

        with pytest.raises(CaptureError, match=message) as caught:
            capture_process(os.getpid())

        assert (remedy or "") in (caught.value.remedy or "")

    def test_ended(self, tool):
        """
        A process that has ended is told so, whatever py-spy says.
        """
        tool("import sys; sys.exit('Permission denied (os error 13)')")
        zombie = subprocess.Popen([sys.executable, "-S", "-c", ""])
        psutil_zombie = psutil.Process(zombie.pid)
        while psutil_zombie.status() != psutil.STATUS_ZOMBIE:
            pass

        with pytest.raises(CaptureError, match="has ended"):
            capture_process(zombie.pid)

        zombie.wait()

        with pytest.raises(CaptureError, match="has ended"):
            capture_process(zombie.pid)

    def test_ends_meanwhile(self, monkeypatch):
        """
        A process may end between two looks at it.
        """

        def gone(pid):
            raise psutil.NoSuchProcess(pid)

        monkeypatch.setattr(psutil, "Process", gone)

        assert pyspy._is_zombie(1)
        assert pyspy._process(1) is None
        assert pyspy._rank(None) is None

    def test_identity_is_refused(self, tool, sleeper, monkeypatch):
        """
        Where the system tells nothing about a process, the stacks remain.
        """

        def refuse(self):
            raise psutil.AccessDenied(self.pid)

        tool(ANSWER)
        monkeypatch.setattr(psutil.Process, "cmdline", refuse)
        monkeypatch.setattr(psutil.Process, "environ", refuse)

        got = capture_process(sleeper.pid)

        assert ("", None) == (got.command, got.rank)

    def test_slow(self, tool):
        """
        The time is limited.
        """
        tool("import time; time.sleep(600)")

        with pytest.raises(CaptureError, match=r"within 0\.5 s"):
            capture_process(os.getpid(), timeout_s=0.5)

    def test_once_more(self, tool, tmp_path):
        """
        A process that changes while it is looked at is looked at again.
        """
        flag = tmp_path / "flag"
        tool(
            f"import os, sys\nif not os.path.exists({str(flag)!r}):\n"
            f"    open({str(flag)!r}, 'w'); sys.exit('changed')\n" + ANSWER
        )

        assert os.getpid() == capture_process(os.getpid()).pid

    def test_no_tool(self, monkeypatch):
        """
        Without py-spy there is a way to get it.
        """
        monkeypatch.setattr(pyspy, "find_tool", lambda _: None)

        with pytest.raises(CaptureError) as caught:
            capture_process(1)

        assert "pip install py-spy" == caught.value.remedy

    def test_broken_tool(self, tool, tmp_path):
        """
        A tool that cannot be started is told.
        """
        tool(ANSWER)
        (tmp_path / "py-spy").write_text("#!/none\n")

        with pytest.raises(CaptureError, match="cannot be run"):
            capture_process(1)


class TestCaptureProcesses:
    def test_one_fails(self, tool, sleeper):
        """
        A process that cannot be captured does not lose the others.
        """
        tool(
            "import sys\nif sys.argv[-1] == '999999999': sys.exit('no')\n"
            + ANSWER
        )

        got = capture_processes([999999999, sleeper.pid, sleeper.pid])

        assert [sleeper.pid] == [p.pid for p in got.stacks]
        ((what, source),) = [(m.what, m.source) for m in got.missing]
        assert ("stack", "pid 999999999") == (what, source)
        assert "has ended (try: " in got.missing[0].reason
        assert () == got.files

    def test_files(self, tool, sleeper, tmp_path):
        """
        Files can be read again, and say the same.
        """
        tool(ANSWER)
        folder = tmp_path / "new" / "stacks"

        got = capture_processes([sleeper.pid], folder)

        (process,) = got.stacks
        stem = f"pyspy_{process.host}_{process.pid}"
        assert [f"{stem}.json", f"{stem}.txt"] == [f.name for f in got.files]
        assert sorted(got.files) == sorted(folder.iterdir())
        (again,) = read_stacks(folder)
        assert process.threads == again.threads
        assert (process.host, process.rank, process.command) == (
            again.host,
            again.rank,
            again.command,
        )

    def test_cannot_write(self, tool, sleeper, tmp_path):
        """
        What cannot be written is told, and not lost.
        """
        tool(ANSWER)
        (tmp_path / "file").touch()

        got = capture_processes([sleeper.pid], tmp_path / "file")

        assert 1 == len(got.stacks)
        assert "not written" in got.missing[0].reason

    def test_half_written(self, tmp_path, monkeypatch):
        """
        A file is there whole, or not at all.
        """

        def fail(*_):
            raise OSError

        monkeypatch.setattr("pathlib.Path.replace", fail)

        with pytest.raises(OSError):
            pyspy._write_whole(tmp_path / "a", "text")

        assert [] == list(tmp_path.iterdir())
