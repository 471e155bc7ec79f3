"""
What is said about files that no reader took for evidence.
"""

from __future__ import annotations

import pytest

from distdebug import diagnose
from distdebug.testing import SimulatedJob, make_dumps


@pytest.fixture(name="hang")
def make_hang(tmp_path):
    """
    The dumps of a job that hangs.
    """
    job = SimulatedJob(2)
    job.collective("all_reduce")
    folder = tmp_path / "dumps"
    folder.mkdir()
    make_dumps(folder, job)
    return folder


@pytest.fixture
def notes(hang):
    """
    What the diagnosis of a folder says about files, by what it was given.
    """

    def say(*paths):
        missing = diagnose(hang, *paths).missing
        return {m.source: m.reason for m in missing if m.what == "file"}

    return say


def test_none(hang, notes):
    """
    Dumps, logs, stacks, what a snapshot writes, and sources are no matter.
    """
    for name in (
        *("job.log", "rank0.txt", "node.json", "REPORT.txt", "a.html"),
        *("train.py", "job.yaml"),
    ):
        (hang / name).write_text("hello\n")
    for folder in (".git", "__pycache__"):
        (hang / folder).mkdir()
        (hang / folder / "config").write_text("x")

    assert {} == notes()


def test_some(hang, notes):
    """
    The first are named, with what to do about them.
    """
    (hang / "data").mkdir()  # of the job, without any evidence in it
    for name in ("a.csv", "b.csv", "c.pt", "d.bin", "e.webp", "data/f.bin"):
        (hang / name).write_bytes(b"\0x")

    assert {
        str(hang): "5 files were not read (a.csv, b.csv, c.pt, d.bin, "
        "and 1 more): they are no evidence by name and first bytes; name a log "
        "itself to have it read"
    } == notes()


def test_core_dumps(hang, notes):
    """
    For the memory of a process there are other tools.
    """
    (hang / "core.1234").write_bytes(b"\x7fELF\0")

    (reason,) = notes().values()

    assert reason.startswith("core.1234: a core dump is for a debugger")


def test_named(tmp_path, hang, notes):
    """
    A file that was named is said not to be evidence.
    """
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\0\1\2")

    assert {
        str(path): "it is no dump, stack, or log by its name and first bytes"
    } == notes(path)


def test_ray_sessions(tmp_path, hang, notes):
    """
    A session of Ray has a reader of its own.
    """
    logs = tmp_path / "session_2026-02-20_02-03-57_123456_4711/logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("[2026-02-20 02:03:57,123 I] x\n")
    (logs / "dashboard.bin").write_bytes(b"\0")

    assert {} == notes(logs.parent)
