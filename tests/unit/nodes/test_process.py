"""
Running commands that must not get out of hand.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import psutil
import pytest

from distdebug.nodes import CommandLimits, run_process


pytestmark = pytest.mark.process


def run(code, *, timeout_s=60.0, grace_s=0.0, stop=None):
    """
    Run a small program of the shell.
    """
    limits = CommandLimits(
        timeout_s=timeout_s, grace_s=grace_s, stop=stop or threading.Event()
    )
    return run_process(
        ["sh", "-c", code], environment=os.environ, limits=limits
    )


def is_alive(pid):
    """
    Whether a process runs.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def bounded():
    """
    Each of these ends in less than half a minute.
    """
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < 30


class TestRunProcess:
    def test_output(self):
        """
        Output, complaint, and status are kept apart.
        """
        got = run("echo out; echo err >&2; exit 3")

        assert (3, b"out\n", b"err\n") == got[:3]

    def test_deadline(self):
        """
        A command and its children are killed when the time is over.
        """
        got = run("sleep 600 & echo $!; wait", timeout_s=0.5)

        assert got.status is None
        while is_alive(int(got.output)):
            time.sleep(0.05)

    def test_grace(self):
        """
        What cleans up on SIGTERM has the time to say so.
        """
        code = "trap 'echo cleaned >&2; exit' TERM; sleep 600 & echo up; wait"

        got = run(code, timeout_s=0.5, grace_s=30)

        assert (None, b"up\n", b"cleaned\n") == got[:3]

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

    def test_unkillable(self, monkeypatch):
        """
        What waits inside the kernel is not waited for without end.
        """
        made = []

        class Recorded(subprocess.Popen):
            def __init__(self, *args, **options):
                super().__init__(*args, **options)
                made.append(self)

        # No user can set this, and no test can make such a process.
        monkeypatch.setattr("distdebug.nodes.process._REAP_S", 0.1)
        monkeypatch.setattr(subprocess, "Popen", Recorded)
        tried = []
        monkeypatch.setattr(os, "killpg", lambda *call: tried.append(call))

        got = run("exec sleep 600", timeout_s=0.2)

        assert got.status is None
        assert [(made[0].pid, signal.SIGKILL)] == tried
        made[0].kill()
        made[0].wait(30)
