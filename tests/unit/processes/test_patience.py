"""
One process that never answers does not keep us from the others.
"""

from __future__ import annotations

import os
import threading
import time

import pytest

from distdebug.processes.proc.patience import ask_each
from distdebug.processes.roles import scan
from distdebug.processes.roles.scan import list_processes


@pytest.fixture
def ending():
    """
    An event that is set at the end of a test.
    """
    event = threading.Event()
    yield event
    event.set()


class TestAskEach:
    def test_all(self):
        """
        All are asked, in order.
        """
        assert {3: 6, 1: 2} == ask_each([3, 1], lambda pid: pid * 2)

    def test_nobody(self):
        """
        Nobody to ask is no reason to wait.
        """
        assert {} == ask_each([], lambda pid: pid)

    def test_stuck(self, ending):
        """
        Whoever does not answer is left out, and the others are asked.
        """

        def ask(pid):
            if pid % 3 == 0:
                ending.wait(60)
            return pid

        begin = time.monotonic()

        got = ask_each(range(8), ask, patience_s=0.05)

        assert {1, 2, 4, 5, 7} == got.keys()
        assert time.monotonic() - begin < 20

    def test_slow(self):
        """
        Whoever is slow, but answers, is waited for.
        """
        got = ask_each(
            range(5), lambda pid: time.sleep(0.05) or pid, patience_s=0.2
        )

        assert 5 == len(got)

    def test_too_many(self, ending):
        """
        When nobody answers, it ends all the same.
        """
        begin = time.monotonic()

        got = ask_each(range(1000), lambda _: ending.wait(60), patience_s=0.01)

        assert {} == got
        assert time.monotonic() - begin < 20


def test_locked_memory(fake_proc, monkeypatch):
    """
    A process whose command line cannot be read is known by its short name.
    """
    monkeypatch.setattr(
        scan,
        "ask_each",
        lambda pids, ask: ask_each(pids, ask, patience_s=0.1),
    )
    fake_proc.add(5, "python", "train.py")
    folder = fake_proc.add(6, "python", "train.py", name="pt_main", state="D")
    (folder / "cmdline").unlink()
    os.mkfifo(folder / "cmdline")  # whoever opens it waits for a writer

    try:
        got = list_processes(fake_proc.root)
    finally:
        os.close(os.open(folder / "cmdline", os.O_WRONLY))

    assert [5, 6] == list(got)
    assert ("pt_main", ()) == (got[6].text, got[6].arguments)
    assert got[6].is_python
