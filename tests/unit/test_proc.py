"""
Children and calls that must not get out of hand.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from distdebug import _proc
from distdebug._proc import (
    answers_in_time,
    find_tool,
    in_time,
    map_with_timeout,
    run_child,
    run_tool,
    stop_children,
    write_in_time,
)


def run(code, *, timeout_s=60.0, **limits):
    """
    Run a small program of the shell.
    """
    return run_child(["sh", "-c", code], timeout_s=timeout_s, **limits)


def wait_until_gone(pid):
    """
    Wait until a process has ended.
    """
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(name="started")
def _started(monkeypatch):
    """
    The processes that were started.
    """
    made = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    return made


@pytest.fixture
def bounded():
    """
    Each of these ends in less than half a minute.
    """
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < 30


@pytest.mark.process
@pytest.mark.usefixtures("bounded")
class TestRunChild:
    def test_output(self):
        """
        Output, complaint, and status are kept apart.
        """
        got = run("echo out; echo err >&2; exit 3")

        assert (3, b"out\n", b"err\n") == got

    def test_logged(self, caplog):
        """
        On request, each command is logged with its time, without secrets.
        """
        caplog.set_level(logging.DEBUG, "distdebug.commands")

        run_child(["sh", "-c", "exit 3", "--api-key", "abc"], timeout_s=60)
        run_child(["sleep", "60"], timeout_s=0.01)

        first, second = caplog.messages
        assert re.fullmatch(
            r"\d\.\d\d s, exit 3: sh -c 'exit 3' --api-key \*\*\*", first
        )
        assert second.endswith("s, killed at its timeout: sleep 60")

    def test_input(self, tmp_path):
        """
        It gets its input, environment, and working folder.
        """
        got = run(
            "cat; echo $NAME; pwd",
            data=b"in\n",
            environment={**os.environ, "NAME": "value"},
            folder=tmp_path,
        )

        assert f"in\nvalue\n{tmp_path}\n".encode() == got.output

    def test_deadline(self):
        """
        A command and its children are killed when the time is over.
        """
        got = run("sleep 600 & echo $!; wait", timeout_s=0.5)

        assert got.status is None
        wait_until_gone(int(got.output))

    def test_grace(self):
        """
        What cleans up on SIGTERM has the time to say so.
        """
        code = "trap 'echo cleaned >&2; exit' TERM; sleep 600 & echo up; wait"

        got = run(code, timeout_s=0.5, grace_s=30)

        assert (None, b"up\n", b"cleaned\n") == got

    def test_deaf(self):
        """
        What does not end on SIGTERM is killed.
        """
        got = run("trap '' TERM; sleep 600", timeout_s=0.3, grace_s=0.2)

        assert got.status is None

    def test_child_keeps_pipe(self):
        """
        A child that keeps the output open does not keep us.
        """
        got = run("setsid sleep 600 & echo $!")

        psutil.Process(int(got.output)).kill()
        assert 0 == got.status

    @pytest.mark.parametrize("kill_rest", [True, False])
    def test_rest(self, kill_rest):
        """
        What a command leaves in its group stays, unless it is to be killed.
        """
        got = run("sleep 600 >&- 2>&- & echo $!", kill_rest=kill_rest)

        if not kill_rest:
            psutil.Process(int(got.output)).kill()
        wait_until_gone(int(got.output))
        assert 0 == got.status

    def test_closed_output(self):
        """
        What closes its output and goes on is waited for.
        """
        assert 7 == run("exec >&- 2>&-; sleep 0.15; exit 7").status

    def test_long_output(self):
        """
        Of long output only the end is kept.
        """
        got = run("head -c 90000000 /dev/zero; echo last")

        assert 0 == got.status
        assert len(got.output) <= (1 << 26) + (1 << 16)
        assert got.output.endswith(b"\0last\n")

    def test_endless_output(self):
        """
        Of endless output the time is held.
        """
        got = run("yes", timeout_s=0.3)

        assert got.status is None
        assert got.output.startswith(b"y\n")

    def test_stop(self):
        """
        After a stop nothing is waited for.
        """
        stop = threading.Event()
        stop.set()

        assert run("sleep 600", stop=stop).status is None

    def test_stop_children(self):
        """
        Another thread can end all that is waited for.
        """
        timer = threading.Timer(0.2, stop_children)
        timer.start()

        assert -9 == run("exec sleep 600").status

    def test_interrupted(self, started):
        """
        A command does not outlive a caller that is interrupted.
        """

        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                run("exec sleep 600")
        finally:
            signal.signal(signal.SIGALRM, before)

        assert [-9] == [process.returncode for process in started]

    def test_ignored_children(self):
        """
        A program that ignores the end of its children waits for them too.
        """
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            got = run("echo out")
        finally:
            signal.signal(signal.SIGCHLD, before)

        assert b"out\n" == got.output

    def test_unkillable(self, monkeypatch, started):
        """
        What waits inside the kernel is not waited for without end.
        """
        # No user can set this, and no test can make such a process.
        monkeypatch.setattr(_proc, "_REAP_S", 0.1)
        tried = []
        monkeypatch.setattr(os, "killpg", lambda *call: tried.append(call))

        got = run("exec sleep 600", timeout_s=0.2)

        assert got.status is None
        assert [(started[0].pid, signal.SIGKILL)] == tried
        started[0].kill()
        started[0].wait(30)

    def test_not_there(self):
        """
        What cannot be started is an error of the system.
        """
        with pytest.raises(OSError, match="none"):
            run_child(["/none"], timeout_s=1)


class TestWriteInTime:
    def test_read(self):
        """
        More than a pipe holds arrives as it is read.
        """
        reader, writer = os.pipe()
        data = b"x" * (1 << 20)
        with os.fdopen(reader, "rb") as file:
            heard = []
            thread = threading.Thread(target=lambda: heard.append(file.read()))
            thread.start()
            with os.fdopen(writer, "wb"):
                write_in_time(writer, data, 60)
            thread.join(60)

        assert [data] == heard

    def test_not_read(self):
        """
        What nobody reads is not waited for without end.
        """
        reader, writer = os.pipe()
        with os.fdopen(reader), os.fdopen(writer, "wb"):
            with pytest.raises(TimeoutError):
                write_in_time(writer, b"x" * (1 << 20), 0.1)

    def test_closed(self):
        """
        A pipe that is closed at the other end is an error.
        """
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb"), pytest.raises(BrokenPipeError):
            write_in_time(writer, b"x", 60)


@pytest.mark.process
def test_tool():
    """
    A tool can neither compute for ever, nor fill a disk, when we are gone.
    """
    code = (
        "import resource as r\n"
        "while r.getrlimit(r.RLIMIT_CORE)[1]: pass\n"
        "for n in r.RLIMIT_CPU, r.RLIMIT_FSIZE: print(r.getrlimit(n)[0])"
    )

    got = run_tool([sys.executable, "-S", "-c", code], timeout_s=60)

    assert (0, f"62\n{1 << 26}\n", "") == got


def test_beside_python(tmp_path, monkeypatch):
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


class TestMapWithTimeout:
    def test_late(self):
        """
        Late and failed answers are left out; all others are there.
        """
        hang = threading.Event()

        def ask_one(number):
            if number == 3:
                hang.wait(30)
            return 6 // number

        deadline = time.monotonic() + 0.4
        answers = dict(answers_in_time(ask_one, range(5), deadline, threads=2))
        hang.set()

        assert {1: 6, 2: 3, 4: 1} == answers

    def test_rest_is_given_up(self):
        """
        What was not begun in time is not begun afterwards.
        """
        go_on, begun = threading.Event(), []

        def wait(number):
            begun.append(number)
            go_on.wait()

        got = list(map_with_timeout(wait, [1, 2], quiet_s=0.2, threads=1))
        go_on.set()

        assert [] == got
        assert [1] == begun

    def test_error(self):
        """
        An exception is an answer too.
        """
        ((item, future),) = map_with_timeout(lambda number: 1 // number, [0])

        assert 0 == item
        assert isinstance(future.exception(), ZeroDivisionError)

    def test_no_threads(self, monkeypatch):
        """
        Without a thread there is no answer in time, but perhaps a late one.
        """

        def start(self):
            msg = "can't start new thread"
            raise RuntimeError(msg)

        monkeypatch.setattr(threading.Thread, "start", start)

        with pytest.raises(TimeoutError, match="no thread"):
            in_time(lambda: 1, 1.0)

        assert [] == list(map_with_timeout(str, [1, 2]))
        got = map_with_timeout(str, [1, 2], may_block=True)
        assert ["1", "2"] == [future.result() for _, future in got]
