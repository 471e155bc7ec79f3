"""
Native stacks, with stand-ins for the tools.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from distdebug.capture import capture_node, capture_process, node_lock
from distdebug.processes import read_state


pytestmark = pytest.mark.process


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
FAILS = "Error: Failed to find python version from target process"


@pytest.fixture
def look(sleeper):
    """
    Looks at a process that sleeps; gives its threads, and what was tried.
    """

    def give(**options):
        got = capture_process(sleeper.pid, native=True, **options)
        tried = [a for a in got.attempts if a.tool in TOOLS]
        native = [t.native or t.frames for t in got.stacks.threads]
        return [frames[0].name for frames in native if frames], tried

    return give


TOOLS = ("pystack", "py-spy --native", "gdb", "lock", "native stacks")


class TestTools:
    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_order(self, tools, look, number):
        """
        The next tool is tried when one fails.
        """
        tools.complain("pystack", FAILS)
        tools.complain("py-spy", FAILS)
        name, text, frame = (
            ("pystack", PYSTACK, "run"),
            ("py-spy", PY_SPY, "f"),
            ("gdb", GDB, "poll"),
        )[number]
        tools.say(name, text)

        names, tried = look()

        assert list(TOOLS[: number + 1]) == [a.tool for a in tried]
        assert "ok" == tried[-1].status
        assert frame in names

    def test_arguments(self, tools, look):
        """
        No tool reads the configuration of the user, or asks something.
        """
        tools.write("gdb", 'echo "$@" >&2')

        _, (*_, attempt) = look()

        expected = "-nx -batch -iex set auto-load off -iex set debuginfod en"
        assert attempt.detail.startswith(expected)

    def test_none(self, tools, look):
        """
        Without tools, there is a way to get each.
        """
        names, tried = look()

        assert [] == names
        assert ["tool_missing"] * 3 == [a.status for a in tried]
        assert "pip install pystack" == tried[0].remedy

    def test_ended(self, tools):
        """
        On a process that is not there no tool is tried.
        """
        tools.write("pystack", "exit 7")

        got = capture_process(999_999_999, native=True)

        assert "exited" == got.attempts[-1].status

    def test_another_process(self, tools, kernel, sleeper):
        """
        A number that is used again is not that process.
        """
        log = tools.folder / "log"
        tools.write("pystack", f"touch {log}")
        kernel.reuse(sleeper.pid)

        (got,) = capture_node(
            pids=[sleeper.pid],
            native="all",
            samples=1,
            tell=lambda *_: kernel.answers.clear(),
        ).processes

        assert "exited" == got.attempts[-1].status
        assert not log.exists()

    def test_time(self, tools, look):
        """
        A tool that hangs leaves time for the next one, and all is bounded.
        """
        tools.write("pystack", "exec sleep 600")
        tools.complain("py-spy", FAILS)
        tools.say("gdb", GDB)
        begin = time.monotonic()

        names, tried = look(timeout_s=4)

        assert ["timed_out", "not_python", "ok"] == [a.status for a in tried]
        assert "poll" in names
        assert time.monotonic() - begin < 20

    def test_bad_end(self, tools, look):
        """
        A tool that said everything may end as it likes.
        """
        tools.say("gdb", GDB, "exit 1")

        _, tried = look()

        assert "ok" == tried[-1].status

    def test_nonsense(self, tools, look):
        """
        A tool that prints what cannot be parsed has failed.
        """
        tools.say("py-spy", "?")

        _, (_, attempt, _) = look()

        assert ("tool_failed", "?") == (attempt.status, attempt.detail)

    def test_resumed(self, tools, look):
        """
        It is reported when a tool left the process stopped, and what it said
        before its time was over is kept.
        """
        tools.say("gdb", GDB, "kill -STOP $last; exec sleep 600")
        path = tools.folder / "gdb"
        path.write_text(
            path.read_text().replace("cat", "for last; do :; done\ncat", 1)
        )

        names, tried = look(timeout_s=1.5)

        assert "poll" in names
        assert "timed_out" == tried[-1].status
        assert tried[-1].resumed
        assert tried[-1].paused_s > 0

    def test_no_guard(self, tools, look, monkeypatch):
        """
        Where no guard can be started, no tool is.
        """
        log = tools.folder / "log"
        tools.write("pystack", f"touch {log}")
        monkeypatch.setattr(sys, "executable", str(tools.folder / "none"))

        _, (attempt, *_) = look()

        assert "tool_failed" == attempt.status
        assert not log.exists()

    def test_container(self, tools, kernel, look, sleeper):
        """
        A process of a container is reported as such if the tool is not there.
        """
        status = f"/proc/{sleeper.pid}/status"
        inside = f"NSpid:\t{sleeper.pid}"
        kernel.change(status, inside, f"{inside}\t3")

        _, tried = look()

        assert {"other_namespace"} == {a.status for a in tried}
        assert "stacks --pid 3" in tried[0].remedy


class TestWhich:
    @pytest.fixture
    def node(self, py_spy, tools):
        """
        Starts processes that sleep, with a function that each is in.
        """
        made = []
        both = f"{PYSTACK.replace('7', '$pid')}\n{PYSTACK}"
        code = f"for pid; do :; done\ncat <<END\n{both}\nEND"
        tools.write("pystack", code)

        def start(*functions):
            for function in functions:
                process = subprocess.Popen(["/bin/sleep", "600"])
                made.append(process)
                py_spy.sees(process.pid, ((function, "a.py", 1),))
            return [process.pid for process in made]

        yield start
        for process in made:
            process.kill()
            process.wait()

    @staticmethod
    def look(pids, **options):
        """
        What was looked into, and all that was seen.
        """
        got = capture_node(pids=pids, samples=1, **options)
        tools = {
            process.worker.pid: process.attempts[-1].tool
            for process in got.processes
        }
        return [p for p in pids if tools[p] == "pystack"], got

    def test_none(self, node, tmp_path, monkeypatch):
        """
        What is not asked for is left alone, and nothing is locked.
        """
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
        monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
        pids = node("wait")

        stopped, got = self.look(pids)

        assert [] == stopped
        assert ["py-spy"] == [a.tool for a in got.processes[0].attempts]

    def test_all(self, node):
        """
        All of them, if it is asked for; native frames are put beside those of
        Python, thread by thread, and what py-spy knows is not forgotten.
        """
        pids = node(*["wait"] * 6)
        told = []

        stopped, got = self.look(
            pids, native="all", tell=lambda *what: told.append(what)
        )

        assert pids == stopped
        main, other = got.processes[0].stacks.threads
        assert ("wait", "run", True) == (
            main.frames[0].name,
            main.native[0].name,
            main.is_main,
        )
        assert ((), 7, "run") == (
            other.frames,
            other.thread_id,
            other.native[0].name,
        )
        assert ("native stacks", 6, 6) == told[-1]

    def test_classes(self, node):
        """
        One of those that do the same, and all that stand apart; if all do, a
        few of them are enough.
        """
        pids = node(*["wait"] * 5, "read")

        stopped, _ = self.look(pids, native="classes")
        different, _ = self.look(
            node(*(f"f{n}" for n in range(10)))[6:], native="classes"
        )

        assert [pids[0], pids[5]] == stopped
        assert 8 == len(different)

    def test_no_time_left(self, node):
        """
        When the time is over, nothing is stopped any more.
        """
        pids = node("wait")

        stopped, got = self.look(pids, native="all", timeout_s=0)

        last = got.processes[0].attempts[-1]
        assert [] == stopped
        assert ("native stacks", "timed_out") == (last.tool, last.status)
        assert "more time" in last.remedy
        assert "wait" == got.processes[0].stacks.threads[0].frames[0].name

    def test_locked(self, node, tmp_path, monkeypatch):
        """
        If another collector is at work, that is said, and nothing is lost.
        """
        # It is waited for as long as a few tools take, which no user can set.
        monkeypatch.setattr("distdebug.capture.node._LOCK_S", 0.05)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        pids = node("wait")

        with node_lock():
            stopped, got = self.look(pids, native="all")

        last = got.processes[0].attempts[-1]
        assert [] == stopped
        assert ("lock", "skipped") == (last.tool, last.status)
        assert f"process {os.getpid()} is attaching" in last.detail
        assert "wait" == got.processes[0].stacks.threads[0].frames[0].name

    def test_interrupt(self, node, tools):
        """
        Ctrl-C ends the tools that are attached, and no process is left
        stopped.
        """
        pids = node("wait", "wait")
        path = tools.folder / "started"
        first = (tools.folder / "pystack").read_text()
        tools.write(
            "pystack",
            f'case "$*" in *" {pids[1]}") kill -STOP {pids[1]}; '
            f"echo $$ >{path}; exec sleep 600;; esac\n{first}",
        )

        def interrupt(stage, *_):
            if stage == "native stacks":
                while not (path.exists() and path.read_text().strip()):
                    time.sleep(0.01)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.look(pids, native="all", tell=interrupt)

        # Its own time would be over after half a minute.
        deadline = time.monotonic() + 20
        pid = int(path.read_text())
        while read_state(pid) or read_state(pids[1]).letter != "S":
            assert time.monotonic() < deadline
            time.sleep(0.01)
