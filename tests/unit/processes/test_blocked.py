"""
One process that never answers does not keep us from the others.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

import pytest

from distdebug.processes import find_workers, scan


@pytest.fixture
def impatient(monkeypatch):
    """
    Sets how long each answer is waited for.
    """

    def make(seconds):
        monkeypatch.setattr(scan, "_QUIET_S", seconds)

    return make


@pytest.fixture
def pipe():
    """
    Makes a file of a process a pipe: what reads it waits for a writer.
    """
    paths = []

    def make(path):
        path.unlink()
        os.mkfifo(path)
        paths.append(path)
        return path

    yield make
    for path in paths:
        with contextlib.suppress(OSError):  # where nothing waits
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def test_stuck(fake_proc, pipe, impatient):
    """
    What does not answer is known by its short name, and others are asked.
    """
    impatient(0.05)
    for pid in range(10, 18):
        folder = fake_proc.add(pid, "python", "x", name="sglang::schedul")
        if pid % 3 == 0:
            pipe(folder / "cmdline")

    found = find_workers(root=fake_proc.root)

    assert {12, 15} == {w.pid for w in found}
    assert {("sglang::schedul", "sglang")} == {
        (w.title, w.framework) for w in found
    }


def test_stuck_maps(fake_proc, pipe, impatient):
    """
    Of a process whose maps cannot be read, the title is left.
    """
    impatient(0.05)
    for pid in (5, 6):
        folder = fake_proc.add(
            pid, f"sglang::scheduler_TP{pid}", environ={"SLURM_JOB_ID": 9}
        )
    pipe(folder / "maps")

    found = find_workers(root=fake_proc.root)

    assert [(5, "9"), (6, "")] == [(w.rank, w.job) for w in found]


def test_slow(fake_proc, pipe, impatient):
    """
    What is slow, but answers, is waited for.
    """
    impatient(0.2)
    pids = range(5, 10)
    paths = [pipe(fake_proc.add(pid, "x") / "cmdline") for pid in pids]

    def answer():
        for path in paths:
            with path.open("wb") as file:
                time.sleep(0.05)
                file.write(b"sglang::scheduler\0")

    thread = threading.Thread(target=answer)
    thread.start()
    found = find_workers(root=fake_proc.root)
    thread.join()

    assert ["sglang::scheduler"] * 5 == [w.title for w in found]


def test_too_many(fake_proc, pipe, impatient):
    """
    When none of many answers, the search ends all the same, and leaves few
    threads behind.
    """
    before = set(threading.enumerate())
    impatient(0.01)
    for pid in range(5, 45):
        folder = fake_proc.add(pid, "python", name="sglang::schedul")
        pipe(folder / "cmdline")
    begin = time.monotonic()

    found = find_workers(root=fake_proc.root)

    left = {*threading.enumerate()} - before
    assert 40 == len(found)
    assert len(left) <= 16
    assert time.monotonic() - begin < 20
