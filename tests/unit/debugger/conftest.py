"""
What the tests of the debugger share.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time

from pathlib import Path

import pytest

import distdebug

from distdebug.debugger import arm, connect, disarm, protocol
from distdebug.debugger.client import local
from distdebug.debugger.inside import arming, settings
from distdebug.processes import Worker


PATIENCE_S = 60


@pytest.fixture
def folder(socket_folder, monkeypatch):
    """
    Where this process listens, if it does; it knows nothing of itself.
    """
    # Labels and hooks are for the life of a program; a test must not leave any.
    monkeypatch.setattr(settings, "_own_labels", {})
    monkeypatch.setattr(settings, "_mesh", {})
    monkeypatch.setattr(settings, "_label_sources", [])
    monkeypatch.setattr(arming, "_hooks", [sys.excepthook])
    yield socket_folder
    disarm()


@pytest.fixture
def armed(folder):
    """
    The socket of this process, which answers.
    """
    return arm()


@pytest.fixture
def base(socket_folder, monkeypatch):
    """
    The folder of all jobs of the user, and none that was chosen.

    It is at a fixed place below /tmp, where jobs of the user may listen, and
    where no setting puts another.
    """
    monkeypatch.delenv("DISTDEBUG_DIR")
    for name in list(os.environ):
        if name.startswith(("TORCHELASTIC", "MASTER_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(protocol, "base_folder", lambda: socket_folder)
    return socket_folder


class Raw:
    """
    A client that talks to a socket by itself.
    """

    @staticmethod
    @contextlib.contextmanager
    def connected(path):
        """
        A socket that is connected to it.
        """
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(str(path))
            yield client

    @staticmethod
    def said(client, data):
        """
        The first line that is answered, as an object; nothing if it hangs up.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(data)
        with client.makefile("rb") as file:
            with contextlib.suppress(ConnectionResetError):
                line = file.readline()
                return json.loads(line) if line else None
        return None

    def asked(self, path, **request):
        """
        What is answered to one request.
        """
        with self.connected(path) as client:
            return self.said(client, json.dumps(request).encode() + b"\n")


@pytest.fixture
def raw():
    """
    Talks to sockets without our client.
    """
    return Raw()


@pytest.fixture
def peer_is(monkeypatch):
    """
    Make the kernel report this user at the other end of every socket.
    """

    def make(uid):
        monkeypatch.setattr(
            socket.socket,
            "getsockopt",
            lambda *_: b"".join(
                number.to_bytes(4, sys.byteorder) for number in (1, uid, 1)
            ),
            raising=False,
        )

    return make


@pytest.fixture
def from_outside(monkeypatch):
    """
    Decide what is seen of a process from outside, by its number.
    """

    def see(look):
        monkeypatch.setattr(
            "distdebug.capture.capture_process",
            lambda pid, timeout_s: look(pid),
        )

    return see


@pytest.fixture
def start(folder):
    """
    Starts a program of its own that can be written to; it is ended at last.
    """
    source = Path(distdebug.__file__).parents[1]
    with contextlib.ExitStack() as stack:

        def begin(*program, **environ):
            process = subprocess.Popen(
                [sys.executable, "-c", "\n".join(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(source), **environ},
            )
            stack.callback(process.communicate, timeout=60)
            stack.callback(process.kill)
            return process

        yield begin


@pytest.fixture
def workers(monkeypatch):
    """
    Decide which workers of jobs run on this node; each search is counted.
    """

    def make(*rows):
        asked = []
        usual = {
            "start_ticks": 1,
            "parent_pid": 1,
            "uid": os.geteuid(),
            "title": "python train.py",
            "framework": "torchrun",
        }
        found = [Worker(**{**usual, **row}) for row in rows]
        monkeypatch.setattr(
            local, "find_workers", lambda **_: asked.append(True) or found
        )
        return asked

    return make


class Held:
    """
    A function that runs in a thread, and the client that steers it.
    """

    def __init__(self, function, folder):
        self.result = self.error = self.trace = None
        self.client = connect(folder)
        self.thread = threading.Thread(target=self.run, args=(function,))
        self.thread.start()

    def run(self, function):
        """
        Keep what the function returns or raises, and the tracer at its end.
        """
        try:
            self.result = function()
        except BaseException as exc:  # noqa: BLE001 it is looked at
            self.error = exc
        self.trace = sys.gettrace()

    def session(self, count=1):
        """
        The first thread, as soon as so many are stopped.
        """
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            sessions = [s for _, s in self.client.list().sessions]
            if count <= sum(s.state == "stopped" for s in sessions):
                return self.client.attach(number=1)
            time.sleep(0.005)
        pytest.fail("it does not stop")

    def says(self, *lines):
        """
        What is printed for each line.
        """
        session = self.session()
        return [session.send(line, wait_s=PATIENCE_S).text for line in lines]

    def end(self, *, is_traced=False):
        """
        Wait for the end of the function; by then, no thread is held, or traced
        without a reason.
        """
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        assert [] == list(self.client.list().sessions)
        assert is_traced or "Prompt" not in repr(self.trace)
        return self.result


@pytest.fixture
def hold(folder):
    """
    Runs a function in a thread that can be stopped.
    """
    held = []

    def begin(function, where=folder):
        arm()
        held.append(Held(function, where))
        return held[-1]

    yield begin
    for one in held:
        one.client.resume()
        one.thread.join(PATIENCE_S)
        one.client.close()
