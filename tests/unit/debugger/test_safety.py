"""
What a debugger inside a job must not do to it, whatever happens there.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
import threading

from types import SimpleNamespace

import pytest

from distdebug.debugger import arm, set_trace


@pytest.fixture
def run(start):
    """
    Runs a program of its own, which listens in that folder; gives its output.
    """

    def run_it(*program):
        process = start(
            *program,
            PYTHONBREAKPOINT="distdebug.set_trace",
            DISTDEBUG_LIMIT="0.1",
        )
        output, errors = process.communicate(timeout=60)
        assert 0 == process.returncode, errors
        return output

    return run_it


class TestBreakpoint:
    """
    A breakpoint where no client can be waited for.
    """

    @pytest.mark.process
    def test_folder_out_of_reach(self, run):
        """
        Where the socket cannot be looked at, the program goes on.
        """
        output = run(
            "import os, distdebug",
            "path = distdebug.arm()",
            "def refuse(*_, **__):",
            "    raise PermissionError(13, 'Permission denied')",
            "os.stat = os.lstat = os.mkdir = refuse",
            "breakpoint()",
            "print('went on')",
        )

        assert "went on\n" == output

    @pytest.mark.process
    def test_no_more_files(self, run):
        """
        What a breakpoint needs is loaded before no file can be opened.
        """
        output = run(
            "import os, resource, distdebug",
            "distdebug.arm()",
            "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))",
            "files = []",
            "try:",
            "    while True:",
            "        files.append(os.open('/dev/null', 0))",
            "except OSError:",
            "    pass",
            "breakpoint()",
            "print('went on')",
        )

        assert "went on\n" == output

    def test_folder_that_is_gone(self, folder, monkeypatch, caplog):
        """
        A folder that is relative to none is not a folder.
        """
        gone = folder / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        monkeypatch.setenv("DISTDEBUG_DIR", "relative")
        monkeypatch.setenv("DISTDEBUG", "1")

        set_trace()

        assert "cannot be debugged: [Errno 2]" in caplog.text
        assert "passed a breakpoint" in caplog.text

    def test_no_name(self, folder, caplog):
        """
        A name that no file can have is reported, and that is all.
        """
        assert arm(dir=f"{folder}/a\0b") is None
        assert "null" in caplog.text

    def test_together(self, folder, caplog):
        """
        Threads that come to breakpoints at once all pass a folder that is gone.
        """
        arm()
        shutil.rmtree(folder)
        folder.symlink_to("/")
        barrier = threading.Barrier(8)

        def come():
            barrier.wait()
            set_trace()

        threads = [threading.Thread(target=come) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        folder.unlink()

        assert not any(thread.is_alive() for thread in threads)
        assert "stopped (" not in caplog.text
        assert "is not a folder" in caplog.text


@pytest.mark.process
class TestClosedFiles:
    """
    A program that closes all files, and those of ours with them.
    """

    def test_connections_of_the_program(self, run):
        """
        The program accepts its own connections, and can be held afterwards.
        """
        output = run(
            "import os, socket, threading, time, distdebug",
            "path = distdebug.arm()",
            "def ask():",
            "    with socket.socket(socket.AF_UNIX) as client:",
            "        client.connect(str(path))",
            '        client.sendall(b\'{"op":"list"}\\n\')',
            "        return bool(client.recv(10))",
            "def is_awake(thread):",
            "    name = f'/proc/self/task/{thread.native_id}/stat'",
            "    with open(name) as file:",
            "        rest = file.read().rpartition(')')[2]",
            "    return not rest.startswith(' S')",
            "ask()",
            "time.sleep(0.1)  # it waits for the next one",
            "while any(map(is_awake, threading.enumerate()[1:])):",
            "    time.sleep(0.01)",
            "os.closerange(3, 64)",
            "own = socket.create_server(('127.0.0.1', 0))",
            "print(ask())",
            "with socket.create_connection(own.getsockname()) as client:",
            "    client.settimeout(30)",
            "    own.settimeout(30)",
            "    with own.accept()[0] as accepted:",
            "        accepted.sendall(b'hello')",
            "    print(client.recv(10))",
            "breakpoint()",
            "print(ask(), own.fileno() > 0)",
        )

        assert "True\nb'hello'\nTrue True\n" == output

    def test_answer(self, start, raw, folder):
        """
        An answer is not written into a file of the program.
        """
        process = start(
            "import os, sys, distdebug",
            "def replace():",
            "    file = os.open(f'{path.parent}/file', os.O_CREAT | os.O_RDWR)",
            "    for number in map(int, os.listdir('/proc/self/fd')):",
            "        if number > 2 and number != file:",
            "            os.dup2(file, number)",
            "path = distdebug.arm()",
            "print(path, flush=True)",
            "sys.stdin.read()",
        )
        path = process.stdout.readline().strip()

        answer = raw.asked(path, op="eval", expression="replace()")
        process.communicate("", timeout=60)

        assert answer is None
        assert 0 == process.returncode
        assert "" == (folder / "file").read_text()


@pytest.mark.parametrize("has_room", [True, False])
def test_interrupt(armed, raw, monkeypatch, has_room):
    """
    As long as a call of the interpreter is to come, no other is asked for; if
    it takes none, that is an error, and the next request tries again.
    """
    asked = []

    def add(function, _):
        asked.append(function)
        return 0 if has_room else -1

    fake = SimpleNamespace(Py_AddPendingCall=add)
    monkeypatch.setattr(ctypes, "pythonapi", fake)

    first, second = (raw.asked(armed, op="interrupt", wait=0) for _ in "12")
    raw.asked(armed, op="resume")

    if has_room:
        assert "blocked in native code" in first["output"]
        assert "blocked in native code" in second["output"]
        for function in asked:
            assert 0 == function(None)
        # Before Python 3.12, a second one would spin for ever.
        assert len(asked) == 1 or (3, 12) <= sys.version_info
    else:
        for answer in (first, second):
            assert "takes no more calls at the moment" in answer["error"]
        assert 2 == len(asked)
