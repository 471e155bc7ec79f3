"""
What the tests of the Flight Recorder share.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import signal
import subprocess
import sys
import textwrap

from pathlib import Path

import pytest

from distdebug.flight_recorder import (
    VARIABLES,
    current_recording,
    disable_flight_recorder,
    enable,
    enable_flight_recorder,
    read,
)
from distdebug.flight_recorder.reading import decode
from distdebug.flight_recorder.recording import dump
from distdebug.flight_recorder.recording.dump import end_recording
from distdebug.flight_recorder.timeline import clocks, write


# A torch that records one call, for programs that have no time for the real
# one.
FAKE_TORCH = """
from types import SimpleNamespace

__version__ = "2.13.0"
_C = SimpleNamespace(
    _distributed_c10d=SimpleNamespace(
        _dump_fr_trace=lambda *args: b"record_id gloo:all_reduce",
        _dump_fr_trace_json=lambda *args: "{}",
    )
)
"""


@pytest.fixture
def no_settings(monkeypatch):
    """
    An environment in which nothing is set, and that stays so.
    """
    names = [s.name for v in VARIABLES for s in v.spellings]
    for name in [*names, "DISTDEBUG_DUMP_DIR", "TORCHELASTIC_RUN_ID"]:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    disable_flight_recorder()


@pytest.fixture
def recording(no_settings, rank_3, fake_torch, tmp_path):
    """
    The recording of this process, which is rank 3, and does nothing by itself.
    """
    enable_flight_recorder(dump_dir=tmp_path / "d", extras=False)
    return current_recording()


@pytest.fixture
def with_extras(no_settings, rank_3, fake_torch, tmp_path):
    """
    The recording of this process, which listens and hooks its end.
    """
    enable_flight_recorder(dump_dir=tmp_path / "d")
    return current_recording()


@pytest.fixture
def at_end(monkeypatch, no_settings, rank_3, fake_torch, tmp_path):
    """
    Lets this program, which records, end as far as we notice.
    """
    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    enable_flight_recorder(dump_dir=tmp_path / "d")

    def end():
        registered[0]()
        # Nothing comes after the end of a program: what it has stopped must
        # not be stopped again by our own tear-down.
        enable._enabled.clear()

    yield end
    end_recording()


@pytest.fixture
def sidecars():
    """
    Reads the side-cars of a recording, in the order of their names.
    """

    def read_all(recording):
        folder = recording.settings.dump_dir
        paths = sorted(folder.glob("*.sidecar.json"))
        return [json.loads(path.read_text()) for path in paths]

    return read_all


@pytest.fixture
def no_complaints(monkeypatch):
    """
    Nothing has gone wrong yet: what is known to go wrong in this process is
    said once, and tests share a process.
    """
    monkeypatch.setattr(dump, "_logged", set())


@pytest.fixture
def signal_state():
    """
    What this process does about a signal, by Python or not.
    """

    def state(number):
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        sets = dict(line.split(":\t") for line in lines if "Sig" in line)
        for name in ("Ign", "Cgt"):
            if int(sets[f"Sig{name}"], 16) >> (number - 1) & 1:
                return {"Ign": "ignored", "Cgt": "caught"}[name]
        return "default"

    return state


@pytest.fixture
def no_watchdogs():
    """
    A process without faulthandler and alarms, which pytest has for its
    time-outs: where they are in use a recording leaves them alone.
    """
    was_enabled = faulthandler.is_enabled()
    faulthandler.disable()
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    # Instead of the time-out of pytest, which is an alarm.
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)
    if was_enabled:
        faulthandler.enable(file=sys.__stderr__)


@pytest.fixture
def run_rank(tmp_path):
    """
    Runs a program as rank 3 that records to a folder called ``d``, with a
    torch that takes no time to load; it gets a signal, if any, once it says
    that it is ready.
    """
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "torch.py").write_text(FAKE_TORCH)

    def run(code, *, enable=True, send=None, **environ):
        begin = "import torch, os, signal, sys, time\nimport distdebug\n"
        if enable:
            begin += "distdebug.enable_flight_recorder(dump_dir='d')\n"
        process = subprocess.Popen(
            [sys.executable, "-c", begin + textwrap.dedent(code)],
            env={
                **{k: v for k, v in os.environ.items() if "TORCH" not in k},
                "PYTHONPATH": os.pathsep.join(
                    [str(tmp_path / "lib"), os.environ.get("PYTHONPATH", "")]
                ).rstrip(os.pathsep),
                "RANK": "3",
                "WORLD_SIZE": "8",
                **environ,
            },
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            said = ""
            if send is not None:
                lines = iter(process.stdout.readline, "")
                said = "".join(iter(lambda: next(lines, "ready\n"), "ready\n"))
                process.send_signal(send)
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
        return subprocess.CompletedProcess(
            code, process.returncode, said + stdout, stderr
        )

    return run


@pytest.fixture(params=["c", "careful"])
def unpickler(request):
    """
    With a limit on memory, the unpickler of Python is used, else ours.
    """
    return request.param


@pytest.fixture
def decoded_here(monkeypatch, request):
    """
    Files are decoded in this process: what a child does, which knows nothing
    of this package, is seen by no measurement, and each would take a while.
    """
    can_limit = True
    if "unpickler" in request.fixturenames:
        can_limit = request.getfixturevalue("unpickler") == "c"

    def limit(*_):
        # This process must not limit its own memory.
        if not can_limit:
            raise OSError

    def ask(path, **request):
        name = os.fsencode(path).decode("latin-1")
        return path, decode.answer_request({"path": name, **request})

    monkeypatch.setattr(pytest.importorskip("resource"), "setrlimit", limit)
    monkeypatch.setattr(
        read, "decode_files", lambda paths, **_: map(ask, paths)
    )
    monkeypatch.setattr(
        read,
        "decode_frames",
        lambda wanted: (ask(p, rows=list(wanted[p])) for p in wanted),
    )


@pytest.fixture
def small_batches(monkeypatch):
    """
    A timeline holds as much in memory at once as a few calls are; what it
    really may hold no test reaches in reasonable time.
    """
    monkeypatch.setattr(clocks, "_MERGE_SIZE", 3)
    monkeypatch.setattr(write, "_MAX_CACHED", 2)
