"""
What decoding one file may take.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from distdebug.flight_recorder.reading.limits import limit_process


resource = pytest.importorskip("resource")


def run(code):
    """
    Run code in another process.
    """
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from distdebug.flight_recorder.reading import limits\n"
            "import resource\n" + code,
        ],
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_memory():
    """
    On Linux a process can limit its memory, again and again, up or down.
    """
    got = run("""
assert limits.limit_process(0)
try:
    bytes(1 << 30)
except MemoryError:
    print("limited")
assert limits.limit_process(1 << 25)
bytes(1 << 30)
""")

    assert ("limited\n", "", 0) == (got.stdout, got.stderr, got.returncode)


def test_hard_limit():
    """
    A limit that is there already is not exceeded.
    """
    got = run("""
now = resource.RLIMIT_CPU
resource.setrlimit(now, (3, 3))
limits.limit_process(1 << 30)
print(resource.getrlimit(now), resource.getrlimit(resource.RLIMIT_CORE)[0])
""")

    assert ("(3, 3) 0\n", "") == (got.stdout, got.stderr)


def test_time():
    """
    A process that takes too long is ended by the system.
    """
    got = run("""
limits._SECONDS_BASE = 0
limits.limit_process(0)
while True:
    pass
""")

    assert got.returncode < 0


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_refused(monkeypatch, error):
    """
    Where memory cannot be limited, that is known.
    """

    def refuse(*args):
        raise error

    monkeypatch.setattr(resource, "setrlimit", refuse)

    assert not limit_process(1 << 30)


def test_nobody_minds(monkeypatch):
    """
    Where nobody minds the limit, that is known.
    """
    monkeypatch.setattr(resource, "setrlimit", lambda *args: None)
    monkeypatch.setattr(sys, "platform", "darwin")

    assert not limit_process(1 << 30)


def test_unknown(monkeypatch):
    """
    Some systems know no limits.
    """
    monkeypatch.setitem(sys.modules, "resource", None)

    assert not limit_process(1 << 30)
