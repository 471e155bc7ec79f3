"""
Ray's own debugger on a real cluster, whose tasks stop at breakpoints.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug.errors import NodesError
from distdebug.ray import check_ray_debugger, launch_json, ray_debug_sessions

from .living import end_all


PROGRAM = Path(__file__).parent / "programs" / "ray_breakpoints.py"
LINES = PROGRAM.read_text().splitlines()


def line_of(function):
    """
    Where this function of the program stops.
    """
    start = next(i for i, x in enumerate(LINES) if f"def {function}(" in x)
    return next(
        number
        for number, x in enumerate(LINES[start:], start + 1)
        if "breakpoint()" in x
    )


class Cluster:
    """
    A Ray cluster in a process of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {**os.environ, "RAY_TMPDIR": str(folder)}
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
                start_new_session=True,
            )
        told = self.process.stdout.readline()
        if not told:
            self.stop()
            pytest.skip("Ray is installed and does not start")
        self.address = json.loads(told)["address"]

    def ask(self, line):
        """
        Have the program do something.
        """
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["answer"]

    def waiting(self, count):
        """
        The sessions, once there are so many that are seen.
        """
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            found = ray_debug_sessions(self.address, timeout_s=60)
            if len(found) == count:
                return found
        raise AssertionError([str(session) for session in found])

    def stop(self):
        """
        Stop it, and all that it leaves behind.
        """
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.wait(20)
        self.process.stdout.close()
        end_all(str(self.folder))
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def cluster():
    """
    A cluster that runs while these tests do.
    """
    if find_spec("ray") is None or find_spec("debugpy") is None:
        pytest.skip("ray or debugpy is not installed")
    with pytest.MonkeyPatch.context() as patch:
        root = str(Path(distdebug.__file__).parents[1])
        patch.setenv("PYTHONPATH", root)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        for name in ("RAY_ADDRESS", "RAY_DEBUG", "RAY_DEBUG_POST_MORTEM"):
            patch.delenv(name, raising=False)
        # The path of a socket may have 107 characters.
        cluster = Cluster(Path(tempfile.mkdtemp(prefix="d", dir="/tmp")))
        try:
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="module")
def stopped(cluster):
    """
    An actor and a task, stopped at their breakpoints.
    """
    cluster.ask("first")
    cluster.ask("evaluate")
    return {session.task: session for session in cluster.waiting(2)}


def by_name(report):
    """
    The checks of a report.
    """
    return {check.name: check for check in report.checks}


class Client:
    """
    As much of an editor as it takes to attach, look, and go on.
    """

    def __init__(self, configuration):
        connect = configuration["connect"]
        where = connect["host"], connect["port"]
        self.link = socket.create_connection(where, 20)
        self.link.settimeout(30)
        self.file = self.link.makefile("rb")
        self.seq = 0

    def send(self, command, **arguments):
        """
        Send a request.
        """
        self.seq += 1
        body = json.dumps(
            {
                "seq": self.seq,
                "type": "request",
                "command": command,
                "arguments": arguments,
            }
        ).encode()
        self.link.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def until(self, name):
        """
        The next event or answer of this name.
        """
        while True:
            length = 0
            while line := self.file.readline().strip():
                length = int(line.split(b":")[1])
            message = json.loads(self.file.read(length))
            if name in {message.get("event"), message.get("command")}:
                return message.get("body")

    def attach(self, configuration):
        """
        Attach as the editor would, and wait until it has stopped.
        """
        self.send("initialize", adapterID="debugpy", clientID="test")
        self.until("initialize")
        self.send("attach", **configuration)
        self.until("initialized")
        self.send("configurationDone")
        return self.until("stopped")

    def evaluate(self, thread, expression):
        """
        What is this in the innermost frame?
        """
        self.send("stackTrace", threadId=thread)
        frame = self.until("stackTrace")["stackFrames"][0]
        self.send("evaluate", expression=expression, frameId=frame["id"])
        return frame["line"], self.until("evaluate")["result"]

    def leave(self):
        """
        Let it go on.
        """
        self.send("disconnect", terminateDebuggee=False)
        self.until("disconnect")
        self.file.close()
        self.link.close()


def test_sessions(stopped):
    """
    An actor and a task that wait are told with function, file, and line.
    """
    actor, task = stopped["Trainer.step"], stopped["evaluate"]

    places = {
        name: (s.location.function, s.location.file, s.location.line)
        for name, s in stopped.items()
    }
    file = str(PROGRAM)
    assert {
        "Trainer.step": ("Trainer.step", file, line_of("step")),
        "evaluate": ("evaluate", file, line_of("evaluate")),
    } == places
    assert ("first", "") == (actor.actor, task.actor)
    assert {socket.gethostname()} == {s.node for s in stopped.values()}
    assert ["ray::evaluate"] == [
        part.strip() for part in psutil.Process(task.pid).cmdline() if part
    ][:1]
    assert all(session.note == "" for session in stopped.values())


def test_check(cluster, stopped):
    """
    Where all is well but the dashboard, only that is a problem.
    """
    report = check_ray_debugger(cluster.address, timeout_s=100)

    assert ["dashboard"] == [c.name for c in report.checks if c.ok is False]
    assert by_name(report)["debugpy"].ok, report
    assert by_name(report)["RAY_DEBUG of the workers"].ok
    assert 2 == len(report.sessions)
    assert socket.gethostname() == report.head_node


def test_command(cluster, stopped, tmp_path):
    """
    The command lists the sessions, and adds them to a launch.json.
    """
    base = [sys.executable, "-m", "distdebug", "ray-debugger"]
    run = {"capture_output": True, "text": True, "timeout": 120}
    where = ["--ray", cluster.address]

    listed = subprocess.run([*base, "sessions", *where], **run)
    written = subprocess.run(
        [*base, "launch-json", *where, "--output", str(tmp_path)], **run
    )

    assert (0, 0) == (listed.returncode, written.returncode), listed.stderr
    assert f"{PROGRAM}:{line_of('step')}" in listed.stdout
    launch = json.loads((tmp_path / ".vscode" / "launch.json").read_text())
    assert 2 == len(launch["compounds"][0]["configurations"])


def test_missing(cluster, stopped, tmp_path):
    """
    An actor whose debugpy is too old, or cannot be loaded, is told.
    """
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "debugpy.py").write_text("__version__ = '1.6.7'\n")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "debugpy.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'debugpy'\")\n"
    )
    for name in ("old", "none"):
        variables = {"PYTHONPATH": str(tmp_path / name), "RAY_DEBUG": "0"}
        cluster.ask(f"{name} {json.dumps(variables)}")
        cluster.ask(f"result {name}")

    report = by_name(check_ray_debugger(cluster.address, timeout_s=100))

    assert report["debugpy"].ok is False
    assert "debugpy 1.6.7 is older than 1.8.0" in report["debugpy"].detail
    assert "debugpy is not installed" in report["debugpy"].detail
    assert report["RAY_DEBUG of the workers"].ok is False
    assert "breakpoint() does nothing" in (
        report["RAY_DEBUG of the workers"].detail
    )


def test_legacy(cluster, stopped):
    """
    Who waits in the older debugger is listed, and is none for VS Code.
    """
    cluster.ask('old_debugger {"RAY_DEBUG": "legacy"}')

    sessions = cluster.waiting(3)

    (legacy,) = (s for s in sessions if s.kind == "legacy")
    assert line_of("step") == legacy.location.line
    assert "old_debugger" == legacy.actor
    assert 2 == len(launch_json(sessions)["configurations"])
    with socket.create_connection((legacy.host, legacy.port), 20) as link:
        link.sendall(b"continue\n")
        assert 13 == cluster.ask("result old_debugger")
    assert 2 == len(cluster.waiting(2))


def test_post_mortem(cluster, stopped):
    """
    A task that failed waits, too, and its line is not made up.
    """
    cluster.ask('failing {"RAY_DEBUG_POST_MORTEM": "1"}')

    sessions = cluster.waiting(3)

    (failed,) = (s for s in sessions if s.actor == "failing")
    assert failed.location is None
    assert "an error ended" in failed.note
    os.kill(failed.pid, signal.SIGKILL)
    assert 2 == len(cluster.waiting(2))


def test_attach(cluster, stopped):
    """
    With the configurations that are written, a client attaches to both; then
    nobody waits any more, and the job goes on.
    """
    launch = launch_json(stopped.values())
    seen = {}

    clients = [Client(x) for x in launch["configurations"]]
    for client, configuration in zip(
        clients, launch["configurations"], strict=True
    ):
        event = client.attach(configuration)
        seen[configuration["name"].split()[2]] = client.evaluate(
            event["threadId"], "loss"
        )
    for client in clients:
        client.leave()

    assert {"3", "5"} == {value for _, value in seen.values()}
    assert 13 == cluster.ask("result first")
    assert -5 == cluster.ask("result evaluate")
    assert () == ray_debug_sessions(cluster.address)


def test_silent():
    """
    A head that says nothing is given up in time, and nothing runs on.
    """
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        begin = time.monotonic()

        with pytest.raises(NodesError, match="Ray cluster"):
            ray_debug_sessions(address, timeout_s=3)

        assert time.monotonic() - begin < 20
    assert [] == [line for line in lines_below() if "ray_debugger" in line]


def lines_below():
    """
    The command lines of the processes below this one.
    """
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            yield " ".join(child.cmdline())
