"""
What the tests of the watch share.
"""

from __future__ import annotations

import json
import sys
import threading

import pytest

from distdebug.watching import loop


FAKE_PYTHON = """#!/bin/sh
cd "${0%/*}" || exit 1
n=1
while ! mkdir "call.$n" 2>/dev/null; do n=$((n + 1)); done
cat > task.part && mv task.part "call.$n/task"
mark=$(sed 's/.*"mark": "\\([^"]*\\)".*/\\1/' "call.$n/task")
[ ! -e "answer.$n" ] || . "./answer.$n"
printf '\\n%s %s\\n' "$mark" "$(cat answer)"
"""
HANGING = {
    "outcome": "explained",
    "summary": "rank 3 sleeps",
    "bundle": "/shared/hang",
    "hang": {
        "folder": "/shared/hang",
        "data": {"verdict": {"cause": "sleeping", "summary": "rank 3 sleeps"}},
        "report": "",
    },
}


class FakeChild:
    """
    A program in the place of the Python by which a rank looks at its job.
    """

    def __init__(self, folder):
        self.folder = folder
        (folder / "answer").write_text(json.dumps(HANGING))
        self.program = folder / "python"
        self.program.write_text(FAKE_PYTHON)
        self.program.chmod(0o755)

    def does(self, *scripts):
        """
        Set what it does, in the shell's words, for each call; after that, and
        for all later calls, it reports a hang.
        """
        for number, script in enumerate(scripts, 1):
            (self.folder / f"answer.{number}").write_text(script)

    @property
    def tasks(self):
        """
        What it was asked for, in order.
        """
        calls = sorted(self.folder.glob("call.*/task"))
        return [json.loads(path.read_text()) for path in calls]


@pytest.fixture
def fake_child(tmp_path, monkeypatch):
    """
    A child that reports at once that the job hangs, and its tasks.
    """
    folder = tmp_path / "child"
    folder.mkdir()
    child = FakeChild(folder)
    monkeypatch.setattr(sys, "executable", str(child.program))
    return child


@pytest.fixture
def no_rank(monkeypatch):
    """
    This process is no rank, and no step of it was counted: steps count for a
    whole process, which the tests share, so there is no other way back.
    """
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(loop, "_step_counter", [0])


class Told:
    """
    A hook that takes note, and can be waited for.
    """

    def __init__(self, error=None):
        self.hangs, self.threads, self.error = [], [], error
        self._event = threading.Event()

    def __call__(self, hang):
        self.hangs.append(hang)
        self.threads.append(threading.current_thread().name)
        self._event.set()
        if self.error is not None:
            raise self.error

    def is_called(self, seconds):
        """
        Whether it was called, or is in so many seconds.
        """
        return self._event.wait(seconds)

    def wait(self):
        """
        Wait until it was called.
        """
        assert self.is_called(30)


@pytest.fixture
def told():
    """
    A hook that takes note.
    """
    return Told()


@pytest.fixture
def told_by():
    """
    Makes hooks that take note, and then fail.
    """
    return Told
