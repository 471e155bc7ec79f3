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

import pytest

import distdebug

from distdebug._proc import Completed
from distdebug.causes import Cause
from distdebug.errors import CaptureError
from distdebug.snapshots import (
    Manifest,
    SharedBundle,
    SnapshotOptions,
    node_name,
    write_manifest,
)
from distdebug.watching import (
    CaptureRequest,
    Hang,
    HangReason,
    Response,
    child,
    response,
)


SOURCE = str(Path(distdebug.__file__).parents[1])
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
    What to take, quickly, and with a lock of its own.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return CaptureRequest(
        output_dir=tmp_path / "hang",
        wanted=SnapshotOptions(pids=[os.getpid()]),
    )


def ask(order, reason=WAIT, stop=None):
    """
    Ask a child.
    """
    return child.ask_child(reason, order, stop or threading.Event())


class InProcess:
    """
    Runs the program of the child without a process, so that both of its ends
    can be seen: what is asked of it, and what it answers.
    """

    def __init__(self):
        self.answer = Response("fine", "it compiles")
        self.ended = None
        self.noise = ""
        self.got = self.limits = self.environment = self.argv = None

    def respond(self, reason, order):
        """
        Answer.
        """
        self.got = (reason, order)
        return self.answer

    def run(self, argv, *, environment, data, **limits):
        """
        Run the program, or end as it was said.
        """
        self.argv, self.environment, self.limits = argv, environment, limits
        if self.ended is not None:
            return self.ended(json.loads(data)["mark"])
        stdout = io.StringIO()
        stdout.write(self.noise)
        status = child.main(io.StringIO(data.decode()), stdout)
        stdout.write("and more\n")
        return Completed(status, stdout.getvalue().encode(), b"")


@pytest.fixture(name="inner")
def _inner(monkeypatch):
    """
    A child in this process.
    """
    inner = InProcess()
    monkeypatch.setattr(child, "run_child", inner.run)
    monkeypatch.setattr(response, "respond", inner.respond)
    return inner


class TestRoundTrip:
    @pytest.mark.parametrize("is_much", [True, False])
    def test_task(self, inner, tmp_path, is_much):
        """
        The child is asked for exactly what the rank wants, and what that
        leaves open is open to the child too.
        """
        order = CaptureRequest(output_dir=tmp_path, wanted=SnapshotOptions())
        if is_much:
            order = CaptureRequest(
                output_dir=tmp_path / "hang",
                wanted=SnapshotOptions(
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
        reason = REASON if is_much else WAIT

        ask(order, reason)

        assert (reason, order) == inner.got

    @pytest.mark.parametrize("noise", ["", "7\n", "{}\n", "no line end"])
    def test_answer(self, inner, order, noise):
        """
        The rank gets what the child found, whatever else that prints.
        """
        data = {"verdict": {"cause": Cause.SLEEPING, "summary": "it\nsleeps"}}
        folder = Path("/shared/hang")
        hang = Hang(
            reason=REASON, folder=folder, data=data, report="it\nsleeps"
        )
        inner.noise = noise
        inner.answer = Response("explained", "it sleeps", folder, hang)

        got = ask(order, REASON)

        assert inner.answer == got
        assert Cause.SLEEPING is got.hang.cause

    @pytest.mark.parametrize("path", ["", "/mine"])
    def test_how(self, inner, order, monkeypatch, path):
        """
        The child is no rank, and has an end; it finds this package, and else
        only what the user names, not what is in the folder here.
        """
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
        monkeypatch.setenv("SLURM_PROCID", "3")
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.setenv("NCCL_DEBUG", "INFO")
        stop = threading.Event()

        ask(order, stop=stop)

        paths = [SOURCE, path] if path else [SOURCE]
        mine = {"RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID"}
        assert not {*mine, "OMPI_COMM_WORLD_SIZE"} & inner.environment.keys()
        assert ":".join(paths) == inner.environment["PYTHONPATH"]
        assert "INFO" == inner.environment["NCCL_DEBUG"]
        assert "-P" in inner.argv
        assert inner.limits["stop"] is stop
        assert order.wanted.timeout_s < inner.limits["timeout_s"] < 1000
        assert inner.limits["grace_s"] > 0


class TestNoAnswer:
    @pytest.mark.parametrize("output", ["", "7\n", "null\n", "{}\n", "\xff"])
    def test_nothing(self, inner, order, output):
        """
        Output without the mark is no answer; the error has the reason.
        """
        stderr = b"x" * 10_000 + b"\x1b[31mno space\nleft"
        inner.ended = lambda _: Completed(1, output.encode("latin-1"), stderr)

        with pytest.raises(CaptureError) as caught:
            ask(order)

        text = str(caught.value)
        assert "status 1" in text
        assert text.endswith("xno space left")
        assert len(text) < 600

    def test_half(self, inner, order):
        """
        Half an answer is none.
        """
        inner.ended = lambda mark: Completed(
            None, f'\n{mark} {{"outcome": "fi'.encode(), b""
        )

        with pytest.raises(CaptureError, match="no end"):
            ask(order)


@pytest.mark.process
class TestReal:
    def test_elsewhere(self, order):
        """
        A real child finds what was taken.
        """
        run = f"{node_name()}: [{os.getpid()}]"
        for host in ("another", node_name()):
            bundle = SharedBundle(
                order.output_dir, host, window_s=300.0, run=run
            )
            part = bundle.join()
        write_manifest(part.folder, Manifest(version="1", created=5.0))

        got = ask(order)

        assert ("elsewhere", part.bundle) == (got.outcome, got.bundle)

    def test_stopped(self, order):
        """
        A real child ends when the rank sets the stop event.
        """
        stop = threading.Event()
        stop.set()

        with pytest.raises(CaptureError, match="no end"):
            ask(order, stop=stop)

    def test_cannot_start(self, order, monkeypatch):
        """
        Without a Python there is no child.
        """
        monkeypatch.setattr(sys, "executable", "/no/python")

        with pytest.raises(FileNotFoundError):
            ask(order)

    def test_program(self):
        """
        What is no task ends the program, and nothing is printed.
        """
        ended = subprocess.run(
            [sys.executable, "-m", "distdebug.watching.child"],
            input=b"",
            env={**os.environ, "PYTHONPATH": SOURCE},
            capture_output=True,
            timeout=60,
        )

        assert ended.returncode not in {0, -signal.SIGKILL}
        assert b"" == ended.stdout
