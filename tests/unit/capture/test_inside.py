"""
Where is a process, in its own words?
"""

import os
import signal
import subprocess
import sys
import threading
import time

import attrs
import pytest

from distdebug.capture.asking import inside, knock
from distdebug.capture.asking.inside import ask_process, own_stacks
from distdebug.capture.asking.knock import (
    ThreadSignals,
    await_handled,
    read_signals,
)
from distdebug.capture.model import CaptureStatus
from distdebug.processes import read_state


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are known from /proc"
)

SPARE = signal.SIGRTMIN + 25

OFFER = """
import sys
from distdebug.flight_recorder.recording.stack_offer import offer_stacks
offer_stacks()
def wait():
    print("ready", flush=True)
    sys.stdin.read()
wait()
"""


@pytest.fixture
def process():
    """
    A process that can be asked.
    """
    with subprocess.Popen(
        [sys.executable, "-c", OFFER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert "ready\n" == started.stdout.readline()
        deadline = time.monotonic() + 20
        while read_state(started.pid).letter != "S":
            assert time.monotonic() < deadline
        yield started
        started.kill()


@pytest.fixture
def thread_id():
    """
    A thread of ours that waits.
    """
    end, begun = threading.Event(), threading.Event()

    def wait():
        begun.set()
        end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    yield thread.native_id
    end.set()
    thread.join()


class TestAskProcess:
    def test_answer(self, process):
        """
        The stack of the main thread is told, and how long that took.
        """
        (thread,), attempt = ask_process(process.pid)

        assert ["wait", "<module>"] == [f.name for f in thread.frames]
        assert ("MainThread", True, "S") == (
            *(thread.name, thread.is_main),
            thread.state,
        )
        assert process.pid == thread.thread_id
        assert ("faulthandler", CaptureStatus.OK, "") == (
            *(attempt.tool, attempt.status),
            attempt.detail,
        )
        assert 0 < attempt.paused_s <= attempt.seconds < 5

    def test_ourselves(self):
        """
        This very process is looked at in another way.
        """
        _, attempt = ask_process(os.getpid())

        assert CaptureStatus.SKIPPED is attempt.status
        assert "own_stacks" in attempt.remedy

    def test_foreign_numbers(self, monkeypatch):
        """
        Numbers of another namespace would hit somebody else.
        """
        monkeypatch.setattr(inside, "proc_is_foreign", lambda: True)

        _, attempt = ask_process(os.getppid())

        assert CaptureStatus.OTHER_NAMESPACE is attempt.status

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"letter": "T"}, CaptureStatus.STOPPED),
            ({"tracer_pid": 1}, CaptureStatus.TRACED_BY_OTHER),
            ({"letter": "Z"}, CaptureStatus.ZOMBIE),
        ],
    )
    def test_states(self, process, monkeypatch, changes, expected):
        """
        The state of the process comes first.
        """
        state = attrs.evolve(read_state(process.pid), **changes)
        monkeypatch.setattr(inside, "read_state", lambda _pid: state)

        _, attempt = ask_process(process.pid)

        assert expected is attempt.status

    @pytest.mark.parametrize(
        ("is_main", "expected"),
        [(True, CaptureStatus.UNINTERRUPTIBLE), (False, CaptureStatus.OK)],
    )
    def test_uninterruptible(self, process, monkeypatch, is_main, expected):
        """
        Only a main thread that waits in the kernel cannot answer.
        """
        waits = (process.pid + (not is_main),)
        state = attrs.evolve(read_state(process.pid), uninterruptible=waits)
        monkeypatch.setattr(inside, "read_state", lambda _pid: state)

        _, attempt = ask_process(process.pid)

        assert expected is attempt.status

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            (b"SigCgt:", b"Other:", CaptureStatus.TOOL_MISSING),
            (
                b"TracerPid:\t0",
                b"TracerPid:\t1",
                CaptureStatus.TRACED_BY_OTHER,
            ),
        ],
    )
    def test_changed(self, process, monkeypatch, old, new, expected):
        """
        What has changed at the last moment is seen.
        """
        read = inside.read_proc
        monkeypatch.setattr(
            inside, "read_proc", lambda path: read(path).replace(old, new)
        )

        _, attempt = ask_process(process.pid)

        assert expected is attempt.status
        assert process.poll() is None

    def test_ended_meanwhile(self, process, monkeypatch):
        """
        So is a process that has ended.
        """
        monkeypatch.setattr(inside, "read_proc", lambda _path: None)

        _, attempt = ask_process(process.pid)

        assert CaptureStatus.EXITED is attempt.status

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (ProcessLookupError, CaptureStatus.TOOL_FAILED),
            (PermissionError, CaptureStatus.TOOL_FAILED),
        ],
    )
    def test_not_sent(self, process, monkeypatch, error, expected):
        """
        A signal that cannot be sent is no answer.
        """

        def fail(*_):
            raise error

        monkeypatch.setattr(inside, "knock", fail)

        _, attempt = ask_process(process.pid)

        assert expected is attempt.status

    @pytest.mark.parametrize("timeout_s", [0.05, 0.0])
    def test_silent(self, process, monkeypatch, timeout_s):
        """
        The time ends, also when nobody answers.
        """
        monkeypatch.setattr(inside, "knock", lambda *_: None)
        monkeypatch.setattr(inside, "await_handled", lambda *_: False)

        _, attempt = ask_process(process.pid, timeout_s=timeout_s)

        assert CaptureStatus.TIMED_OUT is attempt.status

    def test_half_silent(self, process, monkeypatch):
        """
        What the first have said is kept when another one is silent.
        """
        handled = inside.await_handled
        monkeypatch.setattr(
            inside, "await_handled", lambda *args: handled(*args) and False
        )

        threads, attempt = ask_process(process.pid)

        assert 1 == len(threads)
        assert CaptureStatus.OK is attempt.status
        assert "in time" in attempt.detail

    @pytest.mark.parametrize(
        ("thread", "expected"),
        [
            (ThreadSignals("python", "R", 0, 0), CaptureStatus.SKIPPED),
            (ThreadSignals("python", "D", 0, 0), CaptureStatus.TOOL_FAILED),
            (ThreadSignals("NCCL Pro", "S", 0, 0), CaptureStatus.TOOL_FAILED),
            (ThreadSignals("python", "S", 0, -1), CaptureStatus.TOOL_FAILED),
            (ThreadSignals("python", "S", -1, 0), CaptureStatus.TOOL_FAILED),
            (None, CaptureStatus.TOOL_FAILED),
        ],
    )
    def test_left_alone(self, process, monkeypatch, thread, expected):
        """
        Threads that cannot answer, or should not, get no signal.
        """
        monkeypatch.setattr(inside, "read_signals", lambda *_: thread)

        _, attempt = ask_process(process.pid)

        assert expected is attempt.status


class TestKnock:
    @pytest.mark.parametrize("is_old", [False, True])
    def test_one_thread(self, thread_id, monkeypatch, is_old):
        """
        One thread gets the signal, also from an older kernel.
        """
        if is_old:
            monkeypatch.setattr(knock, "_PIDFD_THREAD", 1 << 20)
        number = SPARE + is_old
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        before = signal.signal(number, lambda *_: None)

        knock.knock(os.getpid(), os.getpid(), number, lambda: None)
        pending = read_signals(os.getpid(), os.getpid()).pending
        other = read_signals(os.getpid(), thread_id).pending

        assert number == signal.sigwait([number])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        signal.signal(number, before)
        assert (1, 0) == (pending >> (number - 1) & 1, other)

    def test_refused(self):
        """
        Nothing is sent when something speaks against it.
        """

        def refuse():
            raise InterruptedError

        with pytest.raises(InterruptedError):
            knock.knock(os.getpid(), os.getpid(), signal.SIGKILL, refuse)

    def test_gone(self, monkeypatch):
        """
        A thread that is gone is told.
        """
        monkeypatch.setattr(knock, "_PIDFD_THREAD", 1 << 20)

        with pytest.raises(ProcessLookupError):
            knock.knock(os.getpid(), 1 << 30, SPARE, lambda: None)

    def test_no_such_thread(self):
        """
        What the kernel does not tell is unknown.
        """
        assert read_signals(os.getpid(), 1 << 30) is None

    @pytest.mark.parametrize(
        ("looks", "has_written", "expected"),
        [
            ([ThreadSignals("", "S", 0, 0)], True, True),
            ([ThreadSignals("", "S", 0, 0)], False, True),
            ([ThreadSignals("", "S", 1, 0)], True, False),
            ([ThreadSignals("", "R", 0, 1)], True, False),
            ([ThreadSignals("", "R", 0, 0)], False, False),
            ([None], False, True),
        ],
    )
    def test_handled(self, monkeypatch, looks, has_written, expected):
        """
        A signal is handled when it is neither pending nor blocked any more.
        """
        monkeypatch.setattr(knock, "read_signals", lambda *_: looks[0])

        done = await_handled(
            1, 1, 1, lambda: has_written, time.monotonic() + 0.05
        )

        assert expected is done


class TestOwnStacks:
    def test_main(self, monkeypatch):
        """
        Who asks from the main thread sees the line that asks.
        """
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("WORLD_SIZE", "8")

        stacks = own_stacks()

        main = stacks.main_thread
        assert (True, "MainThread") == (main.is_main, main.name)
        assert "TestOwnStacks.test_main" == main.frames[0].name
        assert (__file__, os.getpid()) == (
            main.frames[0].filename,
            main.thread_id,
        )
        assert (os.getpid(), 3, 8) == (
            *(stacks.pid, stacks.rank),
            stacks.world_size,
        )

    def test_watcher(self, thread_id):
        """
        A thread that watches does not see itself, but all others.
        """
        found = []
        watcher = threading.Thread(
            target=lambda: found.append(own_stacks()), name="watcher"
        )
        watcher.start()
        watcher.join()

        (stacks,) = found
        threads = {t.thread_id: t for t in stacks.threads}
        assert stacks.threads[0].is_main
        assert thread_id in threads
        assert "Event.wait" in {f.name for f in threads[thread_id].frames}
        assert "watcher" not in {t.name for t in stacks.threads}

    def test_unknown_thread(self, monkeypatch):
        """
        A thread that Python did not start has no name.
        """
        monkeypatch.setattr(threading, "enumerate", list)

        (main, *_) = own_stacks().threads

        assert ("MainThread", None) == (main.name, main.thread_id)

    def test_bounded(self):
        """
        Of an endless recursion the innermost frames are kept.
        """

        def recurse(depth):
            return own_stacks() if depth == 0 else recurse(depth - 1)

        main = recurse(300).main_thread

        assert 200 == len(main.frames)
        assert main.frames[0].name.endswith("recurse")
