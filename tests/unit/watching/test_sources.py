"""
What can be seen to change, on nodes and in folders that are made up.
"""

from __future__ import annotations

import os
import threading

import pytest

from distdebug.watching import FilesState, last_known
from distdebug.watching.senses import sources
from distdebug.watching.senses.sources import (
    InTime,
    files_state,
    newest_file,
    processor_time,
    step,
    steps,
    switches,
)


@pytest.fixture(name="kernel")
def _kernel(tmp_path):
    """
    Writes what the kernel tells about a process's main thread.
    """

    def write(pid, voluntary, ticks):
        folder = tmp_path / f"{pid}/task/{pid}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "status").write_text(
            f"Name:\tpython\nvoluntary_ctxt_switches:\t{voluntary}\n"
        )
        rest = " ".join(["0"] * 9 + [f"{ticks} 1"] + ["0"] * 6 + ["500"])
        (folder / "stat").write_text(f"{pid} (py) S 1 {rest}")

    return write


class TestSteps:
    @pytest.fixture(autouse=True)
    def forget(self, monkeypatch):
        """
        No step was counted yet.
        """
        monkeypatch.setattr(sources, "_beats", [0])

    def test_none(self):
        """
        Where no step was ever told, nothing is known.
        """
        assert steps() is None

    def test_count(self):
        """
        Every step counts.
        """
        step()
        step()

        assert 2 == steps()


class TestFiles:
    def test_grows(self, tmp_path):
        """
        A log that grows is not as it was.
        """
        log = tmp_path / "job.log"
        log.write_text("a")
        before = files_state([log])

        log.write_text("ab")

        assert before != files_state([log])
        assert files_state([log]) == files_state([str(log)])

    def test_folder(self, tmp_path):
        """
        A folder stands for the files in it, and not for those below.
        """
        for name in ("b", "a"):
            (tmp_path / name).write_text(name)
            os.utime(tmp_path / name, ns=(5, 7))
        (tmp_path / "below").mkdir()

        got = files_state([tmp_path, tmp_path / "a"])

        assert ((f"{tmp_path}/a", 1, 7), (f"{tmp_path}/b", 1, 7)) == got

    @pytest.mark.parametrize("path", ["none", "none/at/all", "a\0b"])
    def test_none(self, tmp_path, path):
        """
        What is not there is not known, and no error.
        """
        assert files_state([f"{tmp_path}/{path}"]) is None
        assert newest_file(f"{tmp_path}/{path}") is None

    def test_gone(self, tmp_path):
        """
        A link to a file that is gone is passed over.
        """
        (tmp_path / "link").symlink_to(tmp_path / "gone")

        assert files_state([tmp_path]) is None

    def test_vanishes(self, tmp_path, monkeypatch):
        """
        A file that vanishes while we look is passed over.
        """
        monkeypatch.setattr(sources, "_files", lambda _: ["/none/at/all"])

        assert files_state([tmp_path]) is None

    def test_many(self, tmp_path, monkeypatch):
        """
        A folder with very many files is looked at in part.
        """
        monkeypatch.setattr(sources, "_MOST_FILES", 2)
        for name in "abc":
            (tmp_path / name).touch()

        assert 2 == len(files_state([tmp_path]))

    def test_newest(self, tmp_path):
        """
        Of a folder of dumps, their number and the newest count.
        """
        for name, written in (("a", 9), ("b", 7)):
            (tmp_path / name).touch()
            os.utime(tmp_path / name, ns=(5, written))

        assert (2, 9) == newest_file(tmp_path)


class TestKernel:
    def test_sums(self, kernel, tmp_path):
        """
        The main threads of all processes count together.
        """
        kernel(7, 100, 30)
        kernel(8, 5, 4)

        assert 105 == switches([7, 8, 9], root=str(tmp_path))
        assert 36 == processor_time([7, 8, 9], root=str(tmp_path))

    def test_gone(self, tmp_path):
        """
        Of processes that are gone, nothing is known.
        """
        assert switches([7], root=str(tmp_path)) is None
        assert processor_time([7], root=str(tmp_path)) is None

    def test_strange(self, kernel, tmp_path):
        """
        What is no number is not counted.
        """
        kernel(7, "many", "long")

        assert switches([7], root=str(tmp_path)) is None
        assert processor_time([7], root=str(tmp_path)) is None

    def test_real(self):
        """
        This very process has given up its processor, and has run.
        """
        assert switches([os.getpid()]) > 0
        assert processor_time([os.getpid()]) >= 0


class TestFilesState:
    def test_nothing(self):
        """
        Without files nothing is seen.
        """
        assert FilesState([])() is None

    def test_change(self, tmp_path):
        """
        What was written since is seen.
        """
        log = tmp_path / "job.log"
        look = FilesState(iter([log]))
        before = look()
        log.write_text("a")

        assert before is None
        assert files_state([log]) == look()

    def test_hangs(self, monkeypatch):
        """
        A file system that does not answer keeps one thread, and nobody else;
        until it answers, nothing has moved.
        """
        answers, begun = threading.Event(), []

        def look(paths):
            begun.append(paths)
            answers.wait(30)
            return len(begun)

        monkeypatch.setattr(sources, "files_state", look)
        files = FilesState(["/gone"], patience_s=0.01)

        seen = [files(), files()]
        answers.set()
        files._asking.join(30)

        assert [None, None] == seen
        assert [("/gone",)] == begun
        files._patience_s = 30
        assert 2 == files()


class TestInTime:
    def test_no_thread(self, monkeypatch):
        """
        Where no thread can be started, nothing has moved.
        """
        answers = iter([1, 2])
        ask = InTime(lambda: next(answers), patience_s=30)

        before = ask()
        monkeypatch.setattr(threading.Thread, "start", no_thread)

        assert [1, 1] == [before, ask()]


def no_thread(_):
    """
    Python ends.
    """
    raise RuntimeError


def test_last_known():
    """
    Joined senses move if one of them does, and keep what they saw.
    """
    first, second = iter([None, 1, None, 1]), iter([None, None, 2, 2])
    sense = last_known(lambda _: next(first), lambda _: next(second))

    assert [None, (1, None), (1, 2), (1, 2)] == [sense(()) for _ in range(4)]
