"""
What a rank asks of its child, and what it believes of the answer.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading

from pathlib import Path

import attrs
import pytest

from distdebug.bundle import (
    Manifest,
    Wanted,
    join_bundle,
    node_name,
    write_manifest,
)
from distdebug.errors import CaptureError
from distdebug.findings import Cause
from distdebug.nodes import Ended
from distdebug.processes import workers_of
from distdebug.watching import Hang, HangReason, Order, Response
from distdebug.watching import child as module
from distdebug.watching import respond as respond_module
from distdebug.watching.child import ask_child
from distdebug.watching.suspects import run_of


REASON = HangReason(
    kind="no progress",
    elapsed_s=700.5,
    pids=(7, 8),
    stalled=(("rank 3", 65.25), ("rank 4", 61.0)),
)
WAIT = HangReason(kind="wait", elapsed_s=1800.0, pids=())


@pytest.fixture(name="order")
def _order(tmp_path, monkeypatch):
    """
    What to take, quickly, and with a lock that nobody else has.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return Order(
        output_dir=tmp_path / "hang", wanted=Wanted(pids=[os.getpid()])
    )


@pytest.fixture(name="child")
def _child(monkeypatch):
    """
    A child in this process, its orders, and what it answers.
    """
    child = Child()
    monkeypatch.setattr(module, "run_process", child.run)
    monkeypatch.setattr(respond_module, "respond", child.respond)
    return child


class Child:
    """
    Runs the program of the child without a process.
    """

    def __init__(self):
        self.answer = Response("fine", "it compiles")
        self.noise = ""
        self.got = self.bound = self.environment = self.argv = None

    def respond(self, reason, order):
        """
        Answer.
        """
        self.got = (reason, order)
        return self.answer

    def run(self, argv, *, environment, bound, data):
        """
        Run the program.
        """
        self.argv, self.environment, self.bound = argv, environment, bound
        stdout = io.StringIO()
        stdout.write(self.noise)
        task = io.StringIO(data.decode())
        status = module.main(task, stdout)
        stdout.write("and more\n")
        return Ended(status, stdout.getvalue().encode(), b"")


class TestRoundTrip:
    def test_task(self, child, tmp_path):
        """
        The child is asked for exactly what the rank wants.
        """
        order = Order(
            output_dir=tmp_path / "hang",
            wanted=Wanted(
                dump_dir=tmp_path / "dumps",
                pids=[7, 8],
                patterns=["train"],
                logs=["a.log", tmp_path / "b.log"],
                native="classes",
                timeout_s=7.5,
            ),
            inside=7,
            but=frozenset({tmp_path / "x", tmp_path / "y"}),
            patience_s=12.5,
        )

        ask_child(REASON, order, threading.Event())

        assert (REASON, order) == child.got

    def test_little(self, child, tmp_path):
        """
        What the rank leaves open is open to the child too.
        """
        order = Order(output_dir=tmp_path, wanted=Wanted())

        ask_child(WAIT, order, threading.Event())

        assert (WAIT, order) == child.got

    @pytest.mark.parametrize("noise", ["", "7\n", "{}\n", "no line end"])
    def test_answer(self, child, order, noise):
        """
        The rank gets what the child found, whatever else that prints.
        """
        data = {"verdict": {"cause": Cause.SLEEPING, "summary": "it\nsleeps"}}
        folder = Path("/shared/hang")
        hang = Hang(
            reason=REASON, folder=folder, data=data, report="it\nsleeps"
        )
        child.noise = noise
        child.answer = Response("explained", "it sleeps", folder, hang)

        got = ask_child(REASON, order, threading.Event())

        assert child.answer == got
        assert Cause.SLEEPING is got.hang.cause

    def test_how(self, child, order, monkeypatch):
        """
        The child is no rank, has this package, and an end.
        """
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
        monkeypatch.setenv("PYTHONPATH", "/mine")
        monkeypatch.setenv("NCCL_DEBUG", "INFO")
        stop = threading.Event()

        ask_child(WAIT, order, stop)

        source = str(Path(module.__file__).parents[2])
        assert not {"RANK", "LOCAL_WORLD_SIZE"} & child.environment.keys()
        assert f"{source}:/mine" == child.environment["PYTHONPATH"]
        assert "INFO" == child.environment["NCCL_DEBUG"]
        assert child.bound.stop is stop
        assert order.wanted.timeout_s < child.bound.timeout_s < 1000
        assert child.bound.grace_s > 0

    def test_only_package(self, child, order, monkeypatch):
        """
        Without a path of the user, there is only ours: not the folder here.
        """
        monkeypatch.delenv("PYTHONPATH", raising=False)

        ask_child(WAIT, order, threading.Event())

        source = str(Path(module.__file__).parents[2])
        assert source == child.environment["PYTHONPATH"]
        assert "-P" in child.argv


class TestNoAnswer:
    @pytest.mark.parametrize("output", ["", "7\n", "null\n", "{}\n", "\xff"])
    def test_nothing(self, order, monkeypatch, output):
        """
        What has not the mark is no answer; the end tells why.
        """
        complaint = b"x" * 10_000 + b"\x1b[31mno space\nleft"
        ended = Ended(1, output.encode("latin-1"), complaint)
        monkeypatch.setattr(module, "run_process", lambda *_, **__: ended)

        with pytest.raises(CaptureError) as caught:
            ask_child(WAIT, order, threading.Event())

        text = str(caught.value)
        assert "status 1" in text
        assert text.endswith("xno space left")
        assert len(text) < 600

    def test_half(self, order, monkeypatch):
        """
        Half an answer is none.
        """

        def run(argv, *, data, **_):
            mark = json.loads(data)["mark"]
            text = f'\n{mark} {{"outcome": "fi'
            return Ended(None, text.encode(), b"")

        monkeypatch.setattr(module, "run_process", run)

        with pytest.raises(CaptureError, match="no end"):
            ask_child(WAIT, order, threading.Event())


class TestReal:
    def test_busy(self, order, monkeypatch):
        """
        A real child finds out that somebody else is at work.
        """
        monkeypatch.setattr(
            respond_module,
            "_respond",
            lambda *_: ask_child(WAIT, order, threading.Event()),
        )

        got = respond_module.respond(WAIT, order)

        assert "busy" == got.outcome
        assert "another watcher" in got.summary

    def test_elsewhere(self, order):
        """
        A real child finds what was taken.
        """
        run = run_of(workers_of([os.getpid()]), node_name())
        for host in ("another", node_name()):
            part = join_bundle(order.output_dir, host, window_s=300.0, run=run)
        write_manifest(part.folder, Manifest(version="1", created=5.0))

        got = ask_child(WAIT, order, threading.Event())

        assert ("elsewhere", part.bundle) == (got.outcome, got.bundle)

    def test_no_folder(self, order, tmp_path):
        """
        A real child that can keep nothing tells what it saw.
        """
        (tmp_path / "file").write_text("")
        order = attrs.evolve(order, output_dir=tmp_path / "file" / "hang")

        got = ask_child(WAIT, order, threading.Event())

        assert got.bundle is None
        assert order.output_dir == got.hang.folder
        (lost,) = got.hang.data["manifest"]["skipped"]
        assert "Not a directory" == lost["reason"]

    def test_stopped(self, order):
        """
        A real child ends when nobody wants it any more.
        """
        stop = threading.Event()
        stop.set()

        with pytest.raises(CaptureError, match="no end"):
            ask_child(WAIT, order, stop)

    def test_cannot_start(self, order, monkeypatch):
        """
        Without a Python there is no child.
        """
        monkeypatch.setattr(sys, "executable", "/no/python")

        with pytest.raises(FileNotFoundError):
            ask_child(WAIT, order, threading.Event())

    def test_program(self):
        """
        What is no task ends the program, and nothing is printed.
        """
        ended = subprocess.run(
            [sys.executable, "-m", "distdebug.watching.child"],
            input=b"",
            env=module._environment(),
            capture_output=True,
            timeout=60,
        )

        assert ended.returncode not in {0, -signal.SIGKILL}
        assert b"" == ended.stdout
