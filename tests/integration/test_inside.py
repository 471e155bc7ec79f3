"""
Real processes that are asked where they are, without being traced.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

from contextlib import contextmanager
from pathlib import Path

import pytest

from distdebug.capture.model import CaptureStatus
from distdebug.capture.self_report import ask_process
from distdebug.processes import read_state

from .living import wait_for


PROGRAM = Path(__file__).with_name("programs") / "tell_stacks.py"

# Asked like this, by one who has no right of a superuser.
ASK = """
import json, sys
from distdebug.capture.self_report import ask_process
threads, attempt = ask_process(int(sys.argv[1]))
names = [[f.name for f in t.frames] for t in threads]
print(json.dumps([attempt.status, names]))
"""
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--no-new-privs")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are asked by way of /proc"
)


@contextmanager
def running(behavior, folder, *before):
    """
    A process that does as it is told; what it said when it was ready.
    """
    process = subprocess.Popen(
        [*before, sys.executable, PROGRAM, behavior, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        word, *rest = process.stdout.readline().split()
        assert "ready" == word
        process.words = rest
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def asleep(pid):
    """
    Whether the main thread of a process waits.
    """
    return read_state(pid).letter == "S"


def names_of(thread):
    """
    The functions of a thread, innermost first.
    """
    return [frame.name for frame in thread.frames]


@pytest.mark.parametrize(
    ("behavior", "function"),
    [
        ("waits", "wait_for_data"),
        ("holds the gil", "hold_gil"),
        ("own faulthandler", "wait_for_data"),
        ("private", "wait_for_data"),
    ],
)
def test_asked(tmp_path, behavior, function):
    """
    Each thread tells where it is, again and again, and goes on.
    """
    with running(behavior, tmp_path) as process:
        wait_for(lambda: asleep(process.pid), seconds=20)
        for _ in range(20):
            threads, attempt = ask_process(process.pid)

            main, *others = threads
            assert CaptureStatus.OK is attempt.status
            assert (True, process.pid) == (main.is_main, main.thread_id)
            assert function == main.frames[0].name
            assert ["wait_in_thread"] == [
                t.frames[2].name for t in others if len(t.frames) > 2
            ][-1:]
        process.stdin.close()
        assert process.poll() is None
        assert asleep(process.pid)


def test_goes_on(tmp_path):
    """
    A process that was asked ends as it would have, and leaves no file.
    """
    with running("ends", tmp_path) as process:
        file = Path(process.words[0])
        _, attempt = ask_process(process.pid)
        size = file.stat().st_size
        process.stdin.write("\n")
        process.stdin.flush()
        status = process.wait(60)

    assert (CaptureStatus.OK, 0) == (attempt.status, size)
    assert 0 == status
    assert not file.exists()


@pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="setpriv is not installed"
)
def test_without_rights(tmp_path):
    """
    Who may not trace a process may ask it.
    """
    with running("private", tmp_path, *WITHOUT_RIGHTS) as process:
        wait_for(lambda: asleep(process.pid), seconds=20)
        got = subprocess.run(
            [*WITHOUT_RIGHTS, sys.executable, "-c", ASK, str(process.pid)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        spied = subprocess.run(
            [*WITHOUT_RIGHTS, "cat", f"/proc/{process.pid}/environ"],
            capture_output=True,
        )

    status, threads = json.loads(got.stdout)
    assert "ok" == status
    assert "wait_for_data" == threads[0][0]
    assert 0 != spied.returncode


@pytest.mark.parametrize(
    ("behavior", "status"),
    [
        ("silent", CaptureStatus.TOOL_MISSING),
        ("taken", CaptureStatus.TOOL_MISSING),
        ("disabled", CaptureStatus.TOOL_MISSING),
        ("closed", CaptureStatus.TOOL_MISSING),
        ("gone", CaptureStatus.TOOL_MISSING),
        ("became another", CaptureStatus.TOOL_MISSING),
        ("replaced", CaptureStatus.TOOL_FAILED),
        ("full", CaptureStatus.TOOL_FAILED),
    ],
)
def test_refused(tmp_path, behavior, status):
    """
    Who cannot answer is told apart, and lives on.
    """
    with running(behavior, tmp_path) as process:
        wait_for(lambda: asleep(process.pid), seconds=20)
        threads, attempt = ask_process(process.pid)

        assert ((), status) == (threads, attempt.status)
        assert attempt.remedy
        assert process.poll() is None
        assert asleep(process.pid)


def test_another(tmp_path):
    """
    A program that comes after ours, under the same number, is not asked.
    """
    with running("became another", tmp_path) as process:
        wait_for(lambda: b"input()" in _command(process.pid), seconds=20)
        wait_for(lambda: asleep(process.pid), seconds=20)
        _, attempt = ask_process(process.pid)

        assert CaptureStatus.TOOL_MISSING is attempt.status
        assert process.poll() is None


def _command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_running(tmp_path):
    """
    A thread that runs is asked only by who insists.
    """
    with running("runs", tmp_path) as process:
        gentle, attempt = ask_process(process.pid)
        insistent, _ = ask_process(process.pid, also_running=True)

        assert not any(t.is_main for t in gentle)
        assert "1 of its threads run" in attempt.detail
        assert "loop" == insistent[0].frames[0].name
        assert process.poll() is None


def test_blocked(tmp_path):
    """
    A thread that blocks the signal is left alone.
    """
    with running("blocked", tmp_path) as process:
        wait_for(lambda: asleep(process.pid), seconds=20)
        threads, attempt = ask_process(process.pid)
        main = Path(f"/proc/{process.pid}/task/{process.pid}/status")

        assert ((), CaptureStatus.TOOL_FAILED) == (threads, attempt.status)
        assert "none of its threads takes the signal" in attempt.detail
        assert "SigPnd:\t0000000000000000" in main.read_text()


def test_forked(tmp_path):
    """
    A forked child does not answer, and cannot be killed by the signal.
    """
    with running("forked", tmp_path) as process:
        child = int(process.words[0])
        wait_for(lambda: asleep(process.pid) and asleep(child), seconds=20)
        of_child, attempt = ask_process(child)
        os.kill(child, signal.SIGRTMIN + 12)
        of_parent, _ = ask_process(process.pid)
        is_alive = asleep(child)
        os.kill(child, signal.SIGKILL)

    assert ((), CaptureStatus.TOOL_MISSING) == (of_child, attempt.status)
    assert is_alive
    assert 1 == sum(t.is_main for t in of_parent)


def test_stopped(tmp_path):
    """
    A stopped process is not asked; it would answer when no process listens.
    """
    with running("waits", tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: read_state(process.pid).letter == "T", seconds=20)
        threads, attempt = ask_process(process.pid)

    assert ((), CaptureStatus.STOPPED) == (threads, attempt.status)


def test_ended(tmp_path):
    """
    Who has ended is not asked, nor who got the number afterwards.
    """
    with running("waits", tmp_path) as process:
        _, other = ask_process(process.pid, start_ticks=1)
        process.kill()
        wait_for(lambda: read_state(process.pid).letter == "Z", seconds=20)
        _, zombie = ask_process(process.pid)
        process.wait()
        _, gone = ask_process(process.pid)

    found = [a.status for a in (other, zombie, gone)]
    assert [
        CaptureStatus.EXITED,
        CaptureStatus.ZOMBIE,
        CaptureStatus.EXITED,
    ] == found
