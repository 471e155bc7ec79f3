"""
Running tools that must not outlive their time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from distdebug.capture import find_tool, run_tool
from distdebug.processes import read_state


pytestmark = pytest.mark.process


def sh(code):
    """
    The command line of a small program.
    """
    return ["/bin/sh", "-c", code]


def wait_until_gone(pid):
    """
    Wait until a process has ended, and its new parent has noticed.
    """
    deadline = time.monotonic() + 30
    while (state := read_state(pid)) and not state.has_ended:
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestRunTool:
    def test_output(self):
        """
        Output, complaint, and status are kept apart.
        """
        got = run_tool(sh("echo out; echo err >&2; exit 3"), timeout_s=60)

        assert (3, "out\n", "err\n") == got

    def test_deadline(self):
        """
        A tool and its children are killed when the time is over.
        """
        begin = time.monotonic()

        got = run_tool(sh("sleep 600 & echo $!; wait"), timeout_s=0.5)

        assert got.status is None
        assert time.monotonic() - begin < 30
        wait_until_gone(int(got.output))

    def test_bounds(self):
        """
        A tool can neither compute for ever, nor fill a disk, when we are gone.
        """
        code = (
            "import resource as r\n"
            "while r.getrlimit(r.RLIMIT_CORE)[1]: pass\n"
            "for n in r.RLIMIT_CPU, r.RLIMIT_FSIZE: print(r.getrlimit(n)[0])"
        )

        got = run_tool([sys.executable, "-S", "-c", code], timeout_s=60)

        assert f"62\n{1 << 26}\n" == got.output

    def test_inside_the_kernel(self, monkeypatch):
        """
        A tool that cannot be killed yet is not waited for.
        """
        # Which is some seconds in earnest, and no user can set it.
        monkeypatch.setattr("distdebug.capture.tool._REAP_S", 0.0)
        made, popen = [], subprocess.Popen

        def start(*args, **options):
            made.append(popen(*args, **options))
            return made[0]

        monkeypatch.setattr(subprocess, "Popen", start)
        monkeypatch.setattr(os, "killpg", lambda *_: None)

        got = run_tool(["/bin/sleep", "600"], timeout_s=0.1)

        assert got.status is None
        assert made[0].poll() is None
        made[0].kill()
        made[0].wait()

    def test_interrupted(self, monkeypatch):
        """
        A tool does not outlive a caller that is interrupted.
        """
        started = []
        wait = subprocess.Popen.wait

        def interrupt(self, timeout=None):
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return wait(self, timeout)

        monkeypatch.setattr(subprocess.Popen, "wait", interrupt)

        with pytest.raises(KeyboardInterrupt):
            run_tool(["/bin/sleep", "600"], timeout_s=60)

        assert -9 == started[0].returncode

    def test_not_there(self):
        """
        What cannot be started is an error of the system.
        """
        with pytest.raises(OSError, match="none"):
            run_tool(["/none"], timeout_s=1)


class TestFindTool:
    def test_beside_python(self, tmp_path, monkeypatch):
        """
        The tool that was installed with this Python comes first.
        """
        for folder in ("ours", "path"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "tool").touch(mode=0o755)
        monkeypatch.setattr("sys.executable", str(tmp_path / "ours/python"))
        monkeypatch.setenv("PATH", str(tmp_path / "path"))

        assert str(tmp_path / "ours/tool") == find_tool("tool")
        (tmp_path / "ours/tool").unlink()
        assert str(tmp_path / "path/tool") == find_tool("tool")
        assert find_tool("nonsense") is None
