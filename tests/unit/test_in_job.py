"""
Threads and descriptors inside a job stay apart from the program.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading

from pathlib import Path

import pytest

from distdebug._in_job import OwnDescriptor, OwnThread, program_signals
from distdebug._proc import in_time


@pytest.fixture
def blocked():
    """
    A program that has blocked a signal.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    yield {signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})


def mask():
    """
    What this thread blocks.
    """
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


class TestOwnThread:
    """
    Threads that take no signals.
    """

    def test_takes_none(self, blocked):
        """
        All are blocked but those that a thread causes itself.
        """
        masks = []
        thread = OwnThread(lambda: masks.append(mask()), "name")

        thread.start()
        thread.join()

        taken = signal.valid_signals() - masks[0]
        assert {"SIGKILL", "SIGSTOP", "SIGABRT", "SIGBUS", "SIGFPE"} | {
            *("SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"),
        } == {x.name for x in taken}
        assert ("name", True) == (thread.name, thread.daemon)
        assert blocked == mask()

    def test_cannot_start(self, monkeypatch, blocked):
        """
        Without a thread the program has its signals all the same.
        """

        def refused(thread):
            raise RuntimeError

        monkeypatch.setattr(threading.Thread, "start", refused)

        with pytest.raises(RuntimeError):
            OwnThread(int).start()

        assert blocked == mask()

    def test_code_of_the_program(self, blocked):
        """
        Its code and children have the mask of the thread that started it all.
        """
        masks = []

        def work():
            with program_signals():
                masks.append(mask())
            masks.append(len(mask()))

        thread = OwnThread(lambda: in_time(work, 5.0))
        thread.start()
        thread.join()

        assert masks[0] == blocked
        assert masks[1] > len(blocked)

    def test_in_other_threads(self, blocked):
        """
        There nothing changes.
        """
        with program_signals():
            assert blocked == mask()


class TestOwnDescriptor:
    """
    Descriptors that the program may close.
    """

    @pytest.fixture
    def own(self):
        """
        One of ours.
        """
        reader, writer = os.pipe()
        os.close(writer)
        own = OwnDescriptor(reader)
        yield own
        own.close()

    def test_has_a_high_number(self, own):
        """
        The kernel gives it to nobody by itself; children do not inherit it.
        """
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

        assert min(soft, 8192) * 3 // 4 <= own.fd
        assert not os.get_inheritable(own.fd)
        assert own.is_intact()

    def test_no_high_number(self, monkeypatch):
        """
        Where none is free it stays where it is.
        """
        monkeypatch.setattr(os, "sysconf", lambda _: -1)
        fd = os.open("/dev/null", os.O_RDONLY)

        own = OwnDescriptor(fd)

        assert fd == own.fd
        own.close()

    def test_closed(self, own):
        """
        What is closed is not intact, and can be closed again.
        """
        os.close(own.fd)

        assert not own.is_intact()
        own.close()

    def test_reused(self, own):
        """
        Another file of that number is left alone.
        """
        with Path(os.devnull).open() as theirs:
            os.dup2(theirs.fileno(), own.fd)

            own.close()

            assert not own.is_intact()
            assert os.fstat(own.fd)
            os.close(own.fd)


@pytest.mark.process
def test_children_of_hooks_can_be_ended():
    """
    A command that a hook runs has no signal blocked.
    """
    told = []

    def work():
        with program_signals():
            line = ["grep", "SigBlk", "/proc/self/status"]
            told.append(subprocess.check_output(line, text=True).split())

    thread = OwnThread(work)
    thread.start()
    thread.join()

    assert [["SigBlk:", "0" * 16]] == told


CHANGING_STACKS = '''
import gc, sys, threading, time
from distdebug import _in_job

class Garbage:
    """
    A cycle, whose finalizer lets other threads run.
    """
    def __init__(self):
        self.own = self
    def __del__(self):
        time.sleep(0.0005)

def deep(n):
    deep(n - 1) if n else time.sleep(0.0003)

def start_threads():
    while True:
        thread = threading.Thread(target=deep, args=(30,), daemon=True)
        thread.start()
        thread.join()

for _ in range(4):
    threading.Thread(target=start_threads, daemon=True).start()
gc.set_threshold(5)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    Garbage()
    stacks = _in_job.stacks_of_threads()
print(len(stacks) > 1, gc.isenabled())
'''


@pytest.mark.process
def test_collection_while_stacks_are_read():
    """
    Garbage that is collected meanwhile does not crash or block the job.

    With the collector on, this process always hangs under Python 3.11.7.
    """
    job = subprocess.run(
        [sys.executable, "-c", CHANGING_STACKS, "3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ["True", "True"] == job.stdout.split(), job.stderr
