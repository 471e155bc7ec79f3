"""
A node with a made-up nsys and Ray, for the tests of profiles.
"""

from __future__ import annotations

import os
import sys

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from distdebug.nsight import patch, ranges


DATA = Path(__file__).parents[2] / "data" / "ray_nsight"


class FakeProcess:
    """
    A process with this command line; without any, it is gone.
    """

    def __init__(self, pid: int, *words: str, started: float = 0.0) -> None:
        self.pid, self._words, self._started = pid, list(words), started

    def cmdline(self) -> list[str]:
        """
        Its words, if it is still there.
        """
        if not self._words:
            raise psutil.NoSuchProcess(self.pid)
        return self._words

    def create_time(self) -> float:
        """
        When it started.
        """
        return self._started


@pytest.fixture(autouse=True)
def quiet_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    No process runs here, no environment names anything to profile, and
    nothing was found out yet.
    """
    monkeypatch.setattr(psutil, "process_iter", list)
    for name in list(os.environ):
        if "_NSYS_" in name or name == "RAY_TMPDIR":
            monkeypatch.delenv(name)
    for name in list(sys.modules):
        if name.partition(".")[0] in {"ray", "torch"}:
            monkeypatch.delitem(sys.modules, name)
    # What a process finds out once holds for its life, and no door forgets it.
    ranges._load_range_api.cache_clear()
    ranges._load_cudart.cache_clear()
    patch._apply_once.cache_clear()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """
    Lets a process run on this node.
    """
    found: list[FakeProcess] = []
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(found))
    return lambda *words, **known: found.append(FakeProcess(*words, **known))


@pytest.fixture
def make_ray() -> Callable[..., Path]:
    """
    Makes as much of Ray as matters here, and gives its plugin.
    """

    def make(root: Path, version: str = "2.50.1") -> Path:
        folder = root / "ray" / "_private" / "runtime_env"
        folder.mkdir(parents=True)
        (root / "ray" / "__init__.py").write_text("raise SystemExit\n")
        (root / "ray" / "_version.py").write_text(f'version = "{version}"\n')
        plugin = folder / "nsight.py"
        plugin.write_bytes((DATA / f"ray-{version}.txt").read_bytes())
        return plugin

    return make


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    """
    Makes a program for the shell, and gives its path.
    """

    def make(text: str, name: str = "bin/nsys", shell: str = "/bin/sh") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{shell}\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make
