"""
What the tests of faults share.
"""

from __future__ import annotations

import subprocess
import sys

from collections.abc import Iterator

import pytest


SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture(scope="session")
def target() -> Iterator[int]:
    """
    A process that sleeps, to be looked at.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert b"ready\n" == process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    No variable of a job, or of a debugger, is set; and no torch is loaded.
    """
    for name in ("DISTDEBUG", "DISTDEBUG_DIR", "DISTDEBUG_DUMP_DIR", "RANK"):
        monkeypatch.delenv(name, raising=False)
    if "torch" in sys.modules:
        monkeypatch.delitem(sys.modules, "torch")
