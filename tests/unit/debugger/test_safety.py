"""
What a debugger inside a job must not do to it, whatever happens there.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading

from pathlib import Path
from types import SimpleNamespace

import pytest

import distdebug

from distdebug.debugger import arm
from distdebug.debugger.inside import agent, arming, pending, sockets
from distdebug.debugger.inside.arming import disarm, is_armed


@pytest.fixture
def folder(socket_folder):
    """
    Where this process listens, if it does.
    """
    yield socket_folder
    disarm()


@pytest.fixture
def run(folder):
    """
    Runs a program of its own, which listens in that folder; gives its output.
    """

    def run_it(program):
        got = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(distdebug.__file__).parents[1]),
                "PYTHONBREAKPOINT": "distdebug.set_trace",
                "DISTDEBUG_LIMIT": "0.1",
            },
        )
        assert 0 == got.returncode, got.stderr
        return got.stdout

    return run_it


class TestBreakpoint:
    """
    A breakpoint where nobody can be waited for.
    """

    def test_folder_out_of_reach(self, run):
        """
        Where the socket cannot be looked at, the program goes on.
        """
        program = (
            "import os, distdebug\n"
            "path = distdebug.arm()\n"
            "def refuse(*_, **__):\n"
            "    raise PermissionError(13, 'Permission denied')\n"
            "os.stat = os.lstat = os.mkdir = refuse\n"
            "breakpoint()\n"
            "print('went on')"
        )

        assert "went on\n" == run(program)

    def test_no_more_files(self, run):
        """
        What a breakpoint needs is loaded before no file can be opened.
        """
        program = (
            "import os, resource, distdebug\n"
            "distdebug.arm()\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
            "files = []\n"
            "try:\n"
            "    while True:\n"
            "        files.append(os.open('/dev/null', 0))\n"
            "except OSError:\n"
            "    pass\n"
            "breakpoint()\n"
            "print('went on')"
        )

        assert "went on\n" == run(program)

    def test_folder_that_is_gone(self, folder, monkeypatch, caplog):
        """
        A folder that is relative to none is no folder.
        """
        gone = folder / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        monkeypatch.setenv("DISTDEBUG_DIR", "relative")
        monkeypatch.setenv("DISTDEBUG", "1")

        assert not arming.ready_to_stop()
        assert "cannot be debugged: [Errno 2]" in caplog.text

    def test_no_name(self, folder, caplog):
        """
        A name that no file can have is told of, and that is all.
        """
        assert arm(dir=f"{folder}/a\0b") is None
        assert "null" in caplog.text

    def test_together(self, folder, monkeypatch):
        """
        Threads that come to breakpoints at once all pass a folder that is gone.
        """
        arm()
        shutil.rmtree(folder)
        folder.symlink_to("/")
        barrier = threading.Barrier(8)
        found = []

        def come():
            barrier.wait()
            found.append(arming.ready_to_stop())

        threads = [threading.Thread(target=come) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        folder.unlink()

        assert [False] * 8 == found


class TestClosedFiles:
    """
    A program that closes all files, and those of ours with them.
    """

    def test_number_of_another(self):
        """
        Where another file has the number, that is neither used nor closed.
        """
        one, other = socket.socketpair()
        was = sockets.opened(one)
        with Path(os.devnull).open() as file, other:
            os.dup2(file.fileno(), one.fileno())
            number = one.fileno()

            assert not sockets.is_own(one, was)
            sockets.close_own(one, was)

            assert os.fstat(number).st_rdev == os.fstat(file.fileno()).st_rdev
            os.close(number)

    def test_closed(self):
        """
        What is closed is not ours any more.
        """
        one, other = socket.socketpair()
        was = sockets.opened(one)
        one.close()
        other.close()

        assert not sockets.is_own(one, was)

    def test_connections_of_the_program(self, run):
        """
        The program accepts its own connections, and can be held afterwards.
        """
        program = (
            "import os, socket, threading, time, distdebug\n"
            "from distdebug.debugger.inside.arming import ready_to_stop\n"
            "path = distdebug.arm()\n"
            "def ask():\n"
            "    with socket.socket(socket.AF_UNIX) as client:\n"
            "        client.connect(str(path))\n"
            '        client.sendall(b\'{"op":"list"}\\n\')\n'
            "        return bool(client.recv(10))\n"
            "def is_awake(thread):\n"
            "    with open(f'/proc/self/task/{thread.native_id}/stat') as file:\n"
            "        return not file.read().rpartition(')')[2].startswith(' S')\n"
            "ask()\n"
            "time.sleep(0.1)  # it waits for the next one\n"
            "while any(map(is_awake, threading.enumerate()[1:])):\n"
            "    time.sleep(0.01)\n"
            "os.closerange(3, 64)\n"
            "own = socket.create_server(('127.0.0.1', 0))\n"
            "print(ask())\n"
            "with socket.create_connection(own.getsockname()) as client:\n"
            "    client.settimeout(30)\n"
            "    own.settimeout(30)\n"
            "    with own.accept()[0] as accepted:\n"
            "        accepted.sendall(b'hello')\n"
            "    print(client.recv(10))\n"
            "print(ready_to_stop(), ask(), own.fileno() > 0)\n"
        )

        assert "True\nb'hello'\nTrue True True\n" == run(program)

    def test_answer(self, folder):
        """
        An answer is not written into a file of the program.
        """
        client, other = socket.socketpair()
        with other, client:
            agent._clients[client] = (0, 0)
            other.sendall(b'{"op":"list"}\n')

            agent._converse(client, folder, os.geteuid())

            del agent._clients[client]
            client.setblocking(False)
            assert b'{"op":"list"}\n' == client.recv(100)


class TestInterrupt:
    """
    The call that the interpreter is asked for.
    """

    @pytest.fixture
    def calls(self, monkeypatch):
        """
        What the interpreter was asked to call; it calls nothing by itself.
        """
        asked = []

        def add(function, _):
            asked.append(function)
            return len(asked) - 1  # for a second one, there is no room

        fake = SimpleNamespace(Py_AddPendingCall=add)
        monkeypatch.setattr(ctypes, "pythonapi", fake)
        monkeypatch.setattr(pending, "_asked", {})
        monkeypatch.setattr(pending, "_MAY_SPIN", True)
        return asked

    def test_once(self, calls):
        """
        As long as a call is to come, no other is asked for.
        """
        pending.interrupt_main(0.0)
        pending.interrupt_main(0.0)
        assert pending.cancel_interrupt()

        assert 1 == len(calls)
        assert 0 == pending._on_main(None)
        assert {} == pending._asked
        assert 0 == pending._on_main(None)

    def test_no_room(self, calls):
        """
        If the interpreter takes none, the next who asks tries again.
        """
        calls.append(None)

        for _ in range(2):
            with pytest.raises(RuntimeError, match="no more calls"):
                pending.interrupt_main(0.0)
        pending.cancel_interrupt()

        assert 3 == len(calls)


def test_armed_once(folder):
    """
    A process that is armed stays so as long as its socket is there.
    """
    arm()

    assert arming.ready_to_stop()
    assert is_armed()
