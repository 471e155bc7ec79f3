"""
Running tools that must not outlive their time.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import psutil
import pytest

from distdebug.capture import find_tool, run_tool, tool
from distdebug.capture.tool import stop_tools


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

    def test_stopped(self):
        """
        A tool that another thread waits for can be stopped.
        """
        got = []
        thread = threading.Thread(
            target=lambda: got.append(
                run_tool(python("import time; time.sleep(600)"), timeout_s=60)
            )
        )
        thread.start()
        while not tool._stops:
            time.sleep(0.001)

        stop_tools()
        thread.join(30)

        assert [-9] == [g.status for g in got]

    def test_bounds(self):
        """
        A tool can neither compute for ever, nor fill a disk, when we are gone.
        """
        code = (
            "import resource as r\n"
            "while r.getrlimit(r.RLIMIT_CORE)[1]: pass\n"
            "for n in r.RLIMIT_CPU, r.RLIMIT_FSIZE: print(r.getrlimit(n)[0])"
        )

        got = run_tool(python(code), timeout_s=60)

        assert f"62\n{1 << 26}\n" == got.output

    def test_inside_the_kernel(self, monkeypatch):
        """
        A tool that cannot be killed yet is not waited for.
        """
        monkeypatch.setattr(tool, "_REAP_S", 0.0)
        with subprocess.Popen(
            python("import time; time.sleep(600)")
        ) as process:
            monkeypatch.setattr(tool, "_kill", lambda _: None)

            tool._end(process)

            assert process.poll() is None
            process.kill()

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
