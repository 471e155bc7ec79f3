"""
What the tests of captures share: stand-ins for the kernel, and for tools.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import json
import os
import subprocess
import sys

from pathlib import Path

import pytest

from distdebug.capture import blockers
from distdebug.processes import read_state


# No process has such a number; nothing that is sent there arrives.
FIRST_PID = 5_001_000


class Kernel:
    """
    What ``/proc`` says where a test wants something else than it does.
    """

    def __init__(self, fake_proc, folder, patch):
        self.fake_proc, self.folder = fake_proc, folder
        self.patch = patch
        self.answers, self._pipes = {}, []
        self._numbers = itertools.count()

    def rank(self, rank, size=4, **options):
        """
        Add a process of this rank; its number.
        """
        env = {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": size,
            "TORCHELASTIC_RUN_ID": "none",
            **options.pop("environ", {}),
        }
        pid = FIRST_PID + rank
        options = {"start": 5, "environ": env, **options}
        self.fake_proc.add(pid, "python", "train.py", **options)
        return pid

    def path(self, pid, name):
        """
        A file of a process that does not exist.
        """
        return self.fake_proc.folder(pid) / name

    def change(self, path, old, new):
        """
        Say something else in a file of the kernel.
        """
        text = Path(self.place(path)).read_text(encoding="utf-8")
        assert old in text
        self.answers[path] = text.replace(old, new)

    def change_later(self, path, old, new):
        """
        Say something else from the second time on.
        """
        now = Path(self.place(path)).read_text(encoding="utf-8")
        self.change(path, old, new)
        self.answers[path] = (now, self.answers[path])

    def reuse(self, pid):
        """
        Let another process have had the number of this one before.
        """
        ticks = read_state(pid).start_ticks
        self.change(f"/proc/{pid}/stat", f" {ticks} ", " 1 ")

    def run_as(self, uid):
        """
        Let us be this user.
        """
        self.patch.setattr(os, "geteuid", lambda: uid)

    def hang(self, path):
        """
        Do not answer what reads this file.
        """
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        self.end_with(path)

    def end_with(self, path):
        """
        Answer at the end of the test, if this does not answer before.
        """
        self._pipes.append(path)

    def end(self):
        """
        Answer all that wait.
        """
        for path in self._pipes:
            with contextlib.suppress(OSError):  # nobody waits
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    def place(self, path):
        """
        Where the answer is to be found.
        """
        if not isinstance(path, str):
            return path
        answer = self.answers.get(path)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, list):  # errors, each of them once
            raise (
                answer.pop() if len(answer) > 1 else self.answers.pop(path)[0]
            )
        if isinstance(answer, tuple):  # now the one, and then the other
            answer, self.answers[path] = answer
        if isinstance(answer, Path):
            return str(answer)
        if answer is not None:  # a new file, as others may read the last one
            place = self.folder / f"{next(self._numbers)}"
            place.write_text(answer)
            return str(place)
        if not path.startswith("/proc"):
            return path
        root, number = self.fake_proc.root, path.split("/")[2:3]
        is_ours = not number or os.path.lexists(f"{root}/{number[0]}")
        if is_ours and Path(root).is_dir():
            return root + path.removeprefix("/proc")
        return path

    def link(self, path, target):
        """
        Have a link of the kernel point somewhere.
        """
        link = self.folder / f"{next(self._numbers)}"
        link.symlink_to(target)
        self.answers[path] = link


@pytest.fixture
def kernel(fake_proc, tmp_path, monkeypatch):
    """
    A kernel that knows processes which do not exist.
    """
    folder = tmp_path / "kernel"
    folder.mkdir()
    kernel = Kernel(fake_proc, folder, monkeypatch)

    def wrapped(real):
        def call(path=".", *args, **options):
            return real(kernel.place(path), *args, **options)

        return call

    for name in ("open", "readlink", "listdir", "scandir", "stat", "access"):
        monkeypatch.setattr(os, name, wrapped(getattr(os, name)))
    monkeypatch.setattr(builtins, "open", wrapped(open))
    # It is kept for as long as the process lives, and so for all tests.
    blockers.is_ptrace_filtered.cache_clear()
    yield kernel
    monkeypatch.undo()
    blockers.is_ptrace_filtered.cache_clear()
    kernel.end()


class Tools:
    """
    Stand-ins for tools; besides them there are none.
    """

    def __init__(self, folder):
        self.folder = folder

    def write(self, name, code):
        """
        Write a tool in the language of the shell.
        """
        path = self.folder / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{code}\n")
        path.chmod(0o755)
        return path

    def say(self, name, text, then=""):
        """
        Write a tool that prints something.
        """
        return self.write(name, f"cat <<'END'\n{text}\nEND\n{then}")

    def complain(self, name, text, status=1):
        """
        Write a tool that fails.
        """
        code = f"cat >&2 <<'END'\n{text}\nEND\nexit {status}"
        return self.write(name, code)

    def python(self, name, code):
        """
        Write a tool in Python.
        """
        path = self.write(name, "")
        path.write_text(
            f"#!{sys.executable} -IS\nimport os, signal, sys, time\n{code}"
        )
        return path


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """
    Writes stand-ins for tools; only those are there.
    """
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(folder))
    return Tools(folder)


class PySpy:
    """
    A stand-in for py-spy, with an answer for each process and each time.
    """

    def __init__(self, folder, tools):
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        tools.write(
            "py-spy",
            f"cd {folder}\n"
            'echo "$@" >>log\n'
            "for pid; do :; done\n"
            "n=$(cat $pid.count 2>/dev/null || echo 0)\n"
            "echo $((n + 1)) >$pid.count\n"
            "test -e $pid.$n || n=last\n"
            ". ./$pid.$n",
        )

    def sees(self, pid, *answers):
        """
        Say what is to be seen: at each time frames, threads, or a text that
        is a complaint.
        """
        for number, answer in enumerate(answers):
            if isinstance(answer, str):
                code = f"cat >&2 <<'END'\n{answer}\nEND\nexit 1"
            else:
                code = f"cat <<'END'\n{self.text(pid, answer)}\nEND"
            (self.folder / f"{pid}.{number}").write_text(code)
            (self.folder / f"{pid}.last").write_text(code)

    def does(self, pid, number, code):
        """
        Do something before an answer.
        """
        path = self.folder / f"{pid}.{number}"
        path.write_text(f"{code}\n{path.read_text()}")

    @staticmethod
    def text(pid, answer):
        """
        What py-spy prints: of frames, those of the main thread.
        """
        if answer and isinstance(answer[0], dict):
            return json.dumps(answer)
        keys = ("name", "filename", "line")
        thread = {
            "pid": pid,
            "thread_id": 1,
            "os_thread_id": pid,
            "thread_name": "MainThread",
            "frames": [dict(zip(keys, f, strict=False)) for f in answer],
        }
        return json.dumps([thread])

    @property
    def calls(self):
        """
        With which arguments it was called.
        """
        return self.log.read_text().splitlines()


@pytest.fixture
def py_spy(tools, tmp_path):
    """
    A stand-in for py-spy.
    """
    folder = tmp_path / "py_spy"
    folder.mkdir()
    return PySpy(folder, tools)


@pytest.fixture
def sleeper():
    """
    A process that does nothing.
    """
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        while read_state(process.pid).letter != "S":
            pass
        yield process
        process.kill()
