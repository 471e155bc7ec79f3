"""
The jobs for GPUs, with Gloo in place of NCCL.
"""

from __future__ import annotations

import subprocess
import sys

from pathlib import Path

import pytest


torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


def test_gloo(tmp_path):
    """
    Each job is run, looked at, and judged; its evidence is packed.
    """
    argv = [sys.executable, "-m", "tests.gpu", str(tmp_path / "out")]
    argv += ["healthy_timed", "shard_never_comes", "watched"]

    done = subprocess.run(
        [*argv, "--backend", "gloo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert "9 of 9 right" in done.stdout, done.stdout + done.stderr
    assert 0 == done.returncode
    assert (tmp_path / "out" / "evidence.tar.xz").stat().st_size > 1000


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(tmp_path):
    """
    Without a GPU, it says so, and is no failure.
    """
    argv = [sys.executable, "-m", "tests.gpu", str(tmp_path / "out")]

    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)

    assert 0 == done.returncode
    assert done.stdout.startswith("not run: torch sees no GPU here")
