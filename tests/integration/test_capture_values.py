"""
Whether variables of real programs change, and that their values stay there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from pathlib import Path

import pytest

from distdebug.capture import capture_node


pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        sys.platform != "linux", reason="processes are looked at on Linux"
    ),
    pytest.mark.skipif(
        shutil.which("py-spy", path=Path(sys.executable).parent) is None
        and shutil.which("py-spy") is None,
        reason="py-spy is not installed",
    ),
]

PROGRAMS = Path(__file__).with_name("programs")
SECRET = "xyzzy-plugh-40499"


def capture(folder, program, *arguments):
    """
    What a program does, as seen three times and written to files.
    """
    with subprocess.Popen(
        [sys.executable, PROGRAMS / program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert "ready\n" == process.stdout.readline()
            return capture_node(folder, pids=[process.pid], interval_s=0.3)
        finally:
            process.kill()


def test_loop(tmp_path):
    """
    A loop sets its variables; what they hold is in no file, and in no answer.
    """
    got = capture(tmp_path, "count_secret.py", SECRET[::-1])

    (process,) = got.stacks
    texts = [f.read_text() for f in tmp_path.rglob("*") if f.is_file()]
    assert process.main_thread.activity.has_new_values
    assert texts
    assert not any(SECRET in text for text in [*texts, repr(got)])


def test_native_code(tmp_path):
    """
    Native code that does not return sets none.
    """
    got = capture(tmp_path, "hangs/native_spin.py")

    (process,) = got.stacks
    assert process.main_thread.activity.has_new_values is False
