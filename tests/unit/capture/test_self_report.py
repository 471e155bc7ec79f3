"""
Where is a process, in its own words?
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
import sys
import time

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.capture import CaptureStatus, capture_process
from distdebug.capture.self_report import ask_process, parse_report
from distdebug.processes import (
    list_numbers,
    offer_folder_name,
    own_offer,
    read_state,
)


pytestmark = pytest.mark.process


SIGNAL = 46
OFFER = """
import sys, threading
from distdebug.flight_recorder.recording.signals import enable_stack_signal
enable_stack_signal()
def rest():
    threading.Event().wait()
threading.Thread(target=rest, daemon=True, name="rest").start()
def wait():
    print("ready", flush=True)
    sys.stdin.read()
wait()
"""
MISSING = CaptureStatus.TOOL_MISSING


@pytest.fixture
def process():
    """
    A process of two threads that can be asked.
    """
    with subprocess.Popen(
        [sys.executable, "-c", OFFER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert "ready\n" == started.stdout.readline()
        deadline = time.monotonic() + 20
        while "R" in letters(started.pid):
            assert time.monotonic() < deadline
        yield started
        started.kill()


def letters(pid):
    """
    The states of its threads.
    """
    tasks = f"/proc/{pid}/task"
    return [read_state(t, tasks).letter for t in list_numbers(tasks)]


@pytest.fixture
def sent(monkeypatch):
    """
    Sends no signal, but notes where it would go; an error can be given, or
    what to do instead.
    """
    calls = SimpleNamespace(error=0, then=lambda *_: None, threads=[])

    def no(*_):
        raise OSError(errno.EINVAL, "no handle of a thread")

    def tgkill(pid, thread_id, number):
        calls.threads.append(thread_id)
        calls.then(pid, thread_id, number)
        return -1 if calls.error else 0

    libc = SimpleNamespace(tgkill=tgkill)
    monkeypatch.setattr(os, "pidfd_open", no, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: libc)
    monkeypatch.setattr(ctypes, "get_errno", lambda: calls.error)
    return calls


@pytest.fixture
def unasked(process, sent):
    """
    A process that could be asked, and why it gets no signal.
    """

    def why():
        _, attempt = ask_process(process.pid)
        assert [] == sent.threads
        return attempt.status

    return SimpleNamespace(pid=process.pid, why=why)


class TestAskProcess:
    @pytest.mark.parametrize("is_old", [False, True])
    def test_answer(self, process, monkeypatch, is_old):
        """
        The stack of each thread is reported, that of the main thread first,
        and how long that took; also by an older kernel.
        """

        def no(*_):
            raise OSError(errno.EINVAL, "no handle of a thread")

        if is_old:
            monkeypatch.setattr(os, "pidfd_open", no, raising=False)

        (main, other), attempt = ask_process(process.pid)

        assert ["wait", "<module>"] == [f.name for f in main.frames]
        assert ("MainThread", True, "S", process.pid) == (
            *(main.name, main.is_main, main.state),
            main.thread_id,
        )
        assert "rest" in [f.name for f in other.frames]
        assert ("faulthandler", CaptureStatus.OK, "") == (
            *(attempt.tool, attempt.status),
            attempt.detail,
        )
        assert 0 < attempt.paused_s <= attempt.seconds < 5

    def test_in_place_of_tools(self, process, tools):
        """
        What a process says by itself is as good as what a tool sees.
        """
        got = capture_process(process.pid)

        main, other = got.stacks.threads
        assert CaptureStatus.OK is got.status
        assert "faulthandler" == got.stacks.source
        assert "wait" == main.frames[0].name
        assert main.is_main
        assert "rest" in [f.name for f in other.frames]

    def test_ourselves(self):
        """
        This very process is looked at in another way.
        """
        _, attempt = ask_process(os.getpid())

        assert CaptureStatus.SKIPPED is attempt.status
        assert "faulthandler" in attempt.remedy

    def test_foreign_numbers(self, kernel, unasked):
        """
        Numbers of another namespace would hit another process.
        """
        kernel.link("/proc/self", "1")

        assert CaptureStatus.OTHER_NAMESPACE is unasked.why()

    def test_another_process(self, sent, process):
        """
        A number that is used again is not that process.
        """
        _, attempt = ask_process(process.pid, start_ticks=1)

        assert CaptureStatus.EXITED is attempt.status
        assert [] == sent.threads

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            (") S", ") T", CaptureStatus.STOPPED),
            (") S", ") Z", CaptureStatus.ZOMBIE),
            (
                "TracerPid:\t0",
                "TracerPid:\t1",
                CaptureStatus.TRACED_BY_OTHER,
            ),
        ],
    )
    def test_states(self, kernel, unasked, old, new, expected):
        """
        The state of the process comes first.
        """
        file = "status" if "Pid" in old else "stat"
        kernel.change(f"/proc/{unasked.pid}/{file}", old, new)

        assert expected is unasked.why()

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ("SigCgt:", "Other:", MISSING),
            (
                "TracerPid:\t0",
                "TracerPid:\t1",
                CaptureStatus.TRACED_BY_OTHER,
            ),
            (") S", "?", CaptureStatus.EXITED),
        ],
        ids=["no handler", "debugger", "ended"],
    )
    def test_changed(self, kernel, unasked, old, new, expected):
        """
        What has changed at the last moment is seen, and no signal is sent.
        """
        file = "stat" if ")" in old else "status"
        kernel.change_later(f"/proc/{unasked.pid}/{file}", old, new)

        assert expected is unasked.why()

    @pytest.mark.parametrize("is_main", [True, False])
    def test_uninterruptible(self, kernel, process, is_main):
        """
        Only a main thread that waits in the kernel cannot answer.
        """
        pid = process.pid
        (other,) = set(list_numbers(f"/proc/{pid}/task")) - {pid}
        path = f"/proc/{pid}/task/{pid if is_main else other}/stat"
        kernel.change(path, ") S", ") D")

        _, attempt = ask_process(pid)

        expected = CaptureStatus.UNINTERRUPTIBLE
        assert (expected if is_main else CaptureStatus.OK) is attempt.status

    @pytest.mark.parametrize("error", [errno.ESRCH, errno.EPERM])
    def test_not_sent(self, process, sent, error):
        """
        A signal that cannot be sent is no answer.
        """
        sent.error = error

        threads, attempt = ask_process(process.pid)

        assert ((), CaptureStatus.TOOL_FAILED) == (threads, attempt.status)

    def test_nothing_written(self, process, sent):
        """
        A thread that has nothing to say is not waited for.
        """
        threads, attempt = ask_process(process.pid)

        assert ((), CaptureStatus.TOOL_FAILED) == (threads, attempt.status)
        assert 2 == len(sent.threads)

    @pytest.mark.parametrize("timeout_s", [0.05, 0.0])
    @pytest.mark.parametrize("field", ["SigPnd", "SigBlk"])
    def test_silent(self, kernel, process, sent, timeout_s, field):
        """
        The time ends, also when a thread never handles the signal.
        """
        path = f"/proc/{process.pid}/task/{process.pid}/status"
        sent.then = lambda *_: set_signals(kernel, path, field)

        _, attempt = ask_process(process.pid, timeout_s=timeout_s)

        assert CaptureStatus.TIMED_OUT is attempt.status
        assert len(sent.threads) == (timeout_s > 0)

    def test_half_silent(self, kernel, process):
        """
        What the first have said is kept when another one is silent.
        """
        pid = process.pid
        (other,) = set(list_numbers(f"/proc/{pid}/task")) - {pid}
        path = f"/proc/{pid}/task/{other}/status"
        first = Path(path).read_text(encoding="utf-8")
        set_signals(kernel, path, "SigBlk")
        kernel.answers[path] = (first, kernel.answers[path])

        threads, attempt = ask_process(pid, timeout_s=0.3)

        assert process.pid == threads[0].thread_id
        assert CaptureStatus.OK is attempt.status
        assert "in time" in attempt.detail

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ("State:\tS", "State:\tR", CaptureStatus.SKIPPED),
            ("State:\tS", "State:\tD", CaptureStatus.TOOL_FAILED),
            ("Name:\t", "Name:\tNCCL Pro", CaptureStatus.TOOL_FAILED),
            ("SigBlk", None, CaptureStatus.TOOL_FAILED),
            ("SigPnd", None, CaptureStatus.TOOL_FAILED),
            ("State", "Gone", CaptureStatus.TOOL_FAILED),
        ],
    )
    def test_left_alone(self, kernel, unasked, old, new, expected):
        """
        Threads that cannot answer, or should not, get no signal.
        """
        for thread in list_numbers(f"/proc/{unasked.pid}/task"):
            path = f"/proc/{unasked.pid}/task/{thread}/status"
            if new:
                kernel.change(path, old, new)
            else:
                set_signals(kernel, path, old)

        assert expected is unasked.why()


def set_signals(kernel, path, field):
    """
    Let a thread have all signals pending, or blocked.
    """
    lines = Path(kernel.place(path)).read_text(encoding="utf-8").splitlines()
    kernel.answers[path] = "\n".join(
        f"{field}:\t{'f' * 16}" if line.startswith(f"{field}:") else line
        for line in lines
    )


class TestParseReport:
    def test_last(self):
        """
        If another program asked, too, the last stack is the answer.
        """
        stack = (
            'Stack (most recent call first):\n  File "a.py", line {} in f\n'
        )

        (got,) = parse_report(stack.format(1) + stack.format(2))

        assert [2] == [frame.line for frame in got.frames]

    def test_nothing(self):
        """
        A text without a stack is no answer.
        """
        assert [] == parse_report("nothing")


class TestOffer:
    """
    Where a process writes, as far as that can be trusted.
    """

    @pytest.fixture
    def folder(self, kernel, sleeper, tmp_path):
        """
        The folder of this user, as a process that sleeps sees it.
        """
        folder = tmp_path / "root/tmp" / offer_folder_name(os.geteuid())
        folder.mkdir(parents=True)
        folder.chmod(0o700)
        kernel.link(f"/proc/{sleeper.pid}/root", tmp_path / "root")
        return folder

    @pytest.fixture
    def file(self, folder, sleeper):
        """
        What that process writes to, with an earlier answer in it.
        """
        ticks = read_state(sleeper.pid).start_ticks
        offer = own_offer(SIGNAL)._replace(pid=sleeper.pid, start_ticks=ticks)
        file = folder / offer.name
        file.write_text("an earlier answer")
        with file.open("rb") as kept:
            fcntl.flock(kept, fcntl.LOCK_SH)
            yield file

    @pytest.fixture
    def why(self, kernel, sleeper, sent):
        """
        Gives the reason why that process cannot be asked; in the end because
        it has no handler of the signal, without which it does not get it.
        """

        def give():
            threads, attempt = ask_process(sleeper.pid)
            assert ((), []) == (threads, sent.threads)
            assert attempt.remedy
            return attempt.status, attempt.detail

        return give

    NOTHING = MISSING, "it does not offer its stacks"

    def test_trusted(self, why, file):
        """
        Its own file is found, and empty afterwards.
        """
        found = why()

        assert (MISSING, f"it no longer handles signal {SIGNAL}") == found
        assert 0 == file.stat().st_size

    def test_nothing(self, why):
        """
        A user of whom there is no folder offers nothing.
        """
        assert self.NOTHING == why()

    @pytest.mark.parametrize(
        "changes",
        [
            {"start_ticks": 1},
            {"pid": 1},
            # A file cannot make us send whatever signal it wants.
            *({"signal": number} for number in (0, 9, 31, 99)),
        ],
    )
    def test_other_offers(self, why, file, sleeper, changes):
        """
        The file of another process, or for another signal, is not taken for
        this one's.
        """
        ticks = read_state(sleeper.pid).start_ticks
        offer = own_offer(SIGNAL)._replace(pid=sleeper.pid, start_ticks=ticks)
        file.rename(file.with_name(offer._replace(**changes).name))

        assert self.NOTHING == why()

    def test_not_kept(self, why, folder, file):
        """
        What is not held was left by a program that is gone.
        """
        file.unlink()
        file.touch()

        assert self.NOTHING == why()

    @pytest.mark.parametrize(
        "trick", ["folder", "pipe", "symlink", "hard link"]
    )
    def test_tricks(self, why, file, tmp_path, trick):
        """
        What is not a file of its own is left alone.
        """
        victim = tmp_path / "victim"
        file.rename(victim)
        {
            "folder": file.mkdir,
            "pipe": lambda: os.mkfifo(file),
            "symlink": lambda: file.symlink_to(victim),
            "hard link": lambda: file.hardlink_to(victim),
        }[trick]()

        assert self.NOTHING == why()
        assert "an earlier answer" == victim.read_text()

    @pytest.mark.parametrize("trick", ["symlink", "writable", "link of tmp"])
    def test_folder_tricks(self, why, folder, file, tmp_path, trick):
        """
        Nor is a folder trusted that others can change.
        """
        if trick == "symlink":
            folder.rename(tmp_path / "elsewhere")
            folder.symlink_to(tmp_path / "elsewhere")
        elif trick == "writable":
            folder.chmod(0o777)
        else:
            folder.parent.rename(tmp_path / "elsewhere")
            folder.parent.symlink_to(tmp_path / "elsewhere")

        assert self.NOTHING == why()
        assert "an earlier answer" == next(
            path.read_text() for path in tmp_path.rglob("*.stacks")
        )

    def test_other_user(self, why, kernel, sleeper):
        """
        A folder that may not be opened belongs to another user.
        """
        refused = PermissionError(errno.EACCES, "Permission denied")
        kernel.answers |= {f"/proc/{sleeper.pid}/root": refused, "/": refused}

        status, _ = why()

        assert CaptureStatus.OTHER_USER is status

    def test_in_container(self, kernel, process):
        """
        What cannot be seen as the process sees it is looked for from here.
        """
        refused = PermissionError(errno.EACCES, "Permission denied")
        kernel.answers[f"/proc/{process.pid}/root"] = refused

        _, attempt = ask_process(process.pid)

        assert CaptureStatus.OK is attempt.status

    def test_busy(self, why, file, monkeypatch):
        """
        Two do not ask at the same time.
        """

        def refuse(*_):
            raise BlockingIOError(errno.EAGAIN, "Resource unavailable")

        monkeypatch.setattr(fcntl, "lockf", refuse)

        status, _ = why()

        assert CaptureStatus.SKIPPED is status
