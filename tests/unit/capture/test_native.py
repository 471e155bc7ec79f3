"""
Native stacks, with stand-ins for the tools.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from distdebug.capture.attaching import attach as attach_module
from distdebug.capture.attaching.attach import Tool, attach
from distdebug.capture.attaching.native import capture_native, gdb_arguments
from distdebug.capture.model import CaptureStatus
from distdebug.capture.permission import namespace
from distdebug.errors import CaptureError
from distdebug.stacks import parse_gdb


GDB = """\
Thread 1 (Thread 0x7f00 (LWP 7) "python"):
#0  0x0001 in poll () from /lib/libc.so.6
#1  0x0002 in main ()
"""
PYSTACK = """\
Traceback for thread 7 (python) [Has the GIL] (most recent call last):
    (Python) File "/a.py", line 3, in run
"""
PY_SPY = json.dumps(
    [
        {
            "pid": 7,
            "thread_id": 7,
            "thread_name": "MainThread",
            "frames": [{"name": "f", "filename": "/a.py", "line": 1}],
        }
    ]
)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """
    Writes stand-ins for tools; only those are there.
    """

    def write(**codes):
        for name, code in codes.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(
                f"#!{sys.executable} -IS\nimport sys, time\n{code}"
            )
            path.chmod(0o755)

    def find(name):
        path = tmp_path / name
        return str(path) if path.exists() else None

    monkeypatch.setattr(namespace, "find_tool", find)
    return write


@pytest.fixture
def sleeper():
    """
    A process that does nothing.
    """
    code = "import time; print(flush=True); time.sleep(600)"
    argv = [sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def says(text):
    """
    The program of a tool that prints something.
    """
    return f"print({text!r})"


FAILS = "sys.exit('Error: Failed to find python version from target process')"


class TestCaptureNative:
    @pytest.mark.parametrize(
        ("codes", "expected", "name"),
        [
            ({"pystack": says(PYSTACK)}, ["pystack"], "run"),
            (
                {"pystack": FAILS, "py_spy": says(PY_SPY)},
                ["pystack", "py-spy --native"],
                "f",
            ),
            (
                {"pystack": "", "py_spy": FAILS, "gdb": says(GDB)},
                ["pystack", "py-spy --native", "gdb"],
                "poll",
            ),
        ],
    )
    def test_order(self, tools, sleeper, codes, expected, name):
        """
        The next tool is tried when one fails.
        """
        tools(**codes)

        threads, attempts = capture_native(sleeper.pid)

        assert expected == [a.tool for a in attempts]
        assert "ok" == attempts[-1].status
        assert name == threads[0].frames[0].name
        assert {7} == {t.thread_id for t in threads}

    def test_arguments(self, tools, sleeper):
        """
        No tool reads the configuration of the user, or asks something.
        """
        tools(gdb="print(*sys.argv[1:], file=sys.stderr)")

        _, (attempt,) = capture_native(sleeper.pid, tools=("gdb",))

        assert attempt.detail.startswith("-nx -batch -iex set auto-load off")
        arguments = gdb_arguments("x", more=("set y",))
        assert ["-iex", "set y", "-ex", "x"] == arguments[-4:]

    def test_none(self, tools, sleeper):
        """
        Without tools, it is told how to get each.
        """
        threads, attempts = capture_native(sleeper.pid)

        assert () == threads
        assert ["tool_missing"] * 3 == [a.status for a in attempts]
        assert "pip install pystack" == attempts[0].remedy

    def test_ended(self, tools):
        """
        On a process that is not there no tool is tried.
        """
        tools(gdb=says(GDB))

        threads, (attempt,) = capture_native(999999999)

        assert ((), "exited") == (threads, attempt.status)

    def test_another_process(self, tools, sleeper):
        """
        A number that is used again is not that process.
        """
        tools(gdb=says(GDB))

        threads, (attempt,) = capture_native(
            sleeper.pid, tools=("gdb",), start_ticks=1
        )

        assert ((), "exited") == (threads, attempt.status)

    def test_time(self, tools, sleeper):
        """
        A tool that hangs leaves time for the next one, and all is bounded.
        """
        tools(pystack="time.sleep(600)", gdb=says(GDB))
        begin = time.monotonic()

        threads, attempts = capture_native(
            sleeper.pid, tools=("pystack", "gdb"), timeout_s=2
        )

        assert ["timed_out", "ok"] == [a.status for a in attempts]
        assert threads
        assert time.monotonic() - begin < 20

    def test_partly(self, tools, sleeper):
        """
        What a tool told before its time was over is kept.
        """
        code = f"print({GDB!r}, flush=True); time.sleep(600)"
        tools(gdb=code)

        threads, (attempt,) = capture_native(
            sleeper.pid, tools=("gdb",), timeout_s=1
        )

        assert ("timed_out", 1) == (attempt.status, len(threads))

    def test_bad_end(self, tools, sleeper):
        """
        A tool that told everything may end as it likes.
        """
        tools(gdb=f"print({GDB!r}); sys.exit(1)")

        _, (attempt,) = capture_native(sleeper.pid, tools=("gdb",))

        assert "ok" == attempt.status

    def test_resumed(self, tools, sleeper):
        """
        It is told when a tool left the process stopped.
        """
        code = "import os, signal\nos.kill(int(sys.argv[-1]), signal.SIGSTOP)"
        tools(gdb=f"{code}\nprint({GDB!r})")

        _, (attempt,) = capture_native(sleeper.pid, tools=("gdb",))

        assert attempt.resumed
        assert attempt.paused_s > 0


class TestAttach:
    TOOL = Tool("gdb", "gdb", lambda pid: [str(pid)], parse_gdb)

    def test_nonsense(self, tools, sleeper):
        """
        A tool that prints what cannot be understood has failed.
        """

        def refuse(text):
            raise ValueError(text)

        tools(gdb="print('?')")
        tool = self.TOOL._replace(parse=refuse)

        told = attach(tool, sleeper.pid, timeout_s=60)

        assert ("tool_failed", "?") == (
            told.attempt.status,
            told.attempt.detail,
        )

    @pytest.mark.parametrize("error", [CaptureError("no"), OSError("no")])
    def test_cannot_guard(self, tools, sleeper, monkeypatch, error):
        """
        Where no guard can be started, no tool is.
        """

        def fail(*_, **__):
            raise error

        tools(gdb="")
        monkeypatch.setattr(attach_module, "run_attached", fail)

        told = attach(self.TOOL, sleeper.pid, timeout_s=60)

        assert ("tool_failed", "no") == (
            told.attempt.status,
            told.attempt.detail,
        )

    def test_container(self, tools, sleeper, monkeypatch):
        """
        A process of a container is told so if the tool is not there.
        """
        elsewhere = CaptureStatus.OTHER_NAMESPACE, "go there"
        monkeypatch.setattr(
            attach_module, "attach_hindrance", lambda _: elsewhere
        )

        told = attach(self.TOOL, sleeper.pid, timeout_s=60)

        assert elsewhere == (told.attempt.status, told.attempt.remedy)
