"""
Running tools that must not outlive their time.
"""

from __future__ import annotations

import sys
import time

import psutil
import pytest

from distdebug.capture.tool import find_tool, run_tool


def python(code):
    """
    The command line of a small program.
    """
    return [sys.executable, "-S", "-c", code]


def _is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestRunTool:
    def test_output(self):
        """
        Output, complaint, and status are kept apart.
        """
        code = "import sys; print('out'); sys.stderr.write('err'); sys.exit(3)"

        got = run_tool(python(code), timeout_s=60)

        assert (3, "out\n", "err") == got

    def test_deadline(self):
        """
        A tool and its children are killed when the time is over.
        """
        code = (
            "import subprocess, sys, time; "
            "p = subprocess.Popen([sys.executable, '-S', '-c', "
            "'import time; time.sleep(600)']); "
            "print(p.pid, flush=True); time.sleep(600)"
        )
        begin = time.monotonic()

        got = run_tool(python(code), timeout_s=2)

        assert got.status is None
        assert time.monotonic() - begin < 30
        # Killed it is; to be gone, its new parent has to reap it.
        deadline = time.monotonic() + 30
        while _is_alive(int(got.output)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not _is_alive(int(got.output))

    def test_interrupted(self, monkeypatch):
        """
        A tool does not outlive a caller that is interrupted.
        """
        import subprocess

        started = []
        wait = subprocess.Popen.wait

        def interrupt(self, timeout=None):
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return wait(self, timeout)

        monkeypatch.setattr(subprocess.Popen, "wait", interrupt)

        with pytest.raises(KeyboardInterrupt):
            run_tool(python("import time; time.sleep(600)"), timeout_s=60)

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
