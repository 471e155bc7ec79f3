"""
What can be seen to change, in folders that are made up.
"""

from __future__ import annotations

import itertools
import os
import threading
import time

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from distdebug.watching import combine_senses, watch_files


def look_at(*paths):
    """
    What is seen of files now.
    """
    return watch_files(paths, timeout_s=30)()


class TestFiles:
    def test_grows(self, tmp_path):
        """
        A log that grows is not as it was.
        """
        log = tmp_path / "job.log"
        look = watch_files(iter([log]), timeout_s=30)
        seen = [look()]
        for text in ("a", "ab"):
            log.write_text(text)
            seen.append(look())

        assert seen[0] is None
        assert 3 == len(set(seen))
        assert look_at(log) == look_at(str(log)) == seen[-1]

    def test_folder(self, tmp_path):
        """
        A folder stands for the files in it, and not for those below.
        """
        for name in ("b", "a"):
            (tmp_path / name).write_text(name)
            os.utime(tmp_path / name, ns=(5, 7))
        (tmp_path / "below").mkdir()

        got = look_at(tmp_path, tmp_path / "a")

        assert ((f"{tmp_path}/a", 1, 7), (f"{tmp_path}/b", 1, 7)) == got

    @pytest.mark.parametrize("path", [None, "none", "none/at/all", "a\0b"])
    def test_none(self, tmp_path, path):
        """
        What is not there is not known, and no error; nor is a link to a file
        that is gone.
        """
        (tmp_path / "link").symlink_to(tmp_path / "gone")

        assert look_at(*([f"{tmp_path}/{path}"] if path else [])) is None
        assert look_at(tmp_path) is None

    def test_many(self, tmp_path, monkeypatch):
        """
        A folder with files without end is looked at in part.
        """
        seen = itertools.count()
        entries = (
            SimpleNamespace(path=f"/none/{number}", is_file=lambda: True)
            for number in seen
        )
        monkeypatch.setattr(os, "scandir", lambda _: nullcontext(entries))

        assert look_at(tmp_path) is None
        assert 10_000 <= next(seen) <= 10_001

    def test_hangs(self, monkeypatch):
        """
        A file system that does not answer keeps one thread, and no caller;
        until it answers, nothing has moved.
        """
        answers, begun, real = threading.Event(), [], os.scandir

        def scan(path):
            if path != "/gone":
                return real(path)
            begun.append(path)
            answers.wait(30)
            raise NotADirectoryError

        monkeypatch.setattr(os, "scandir", scan)
        files = watch_files(["/gone", __file__], timeout_s=0.01)

        seen, asked = [files(), files()], list(begun)
        answers.set()
        end = time.monotonic() + 30
        while (state := files()) is None and time.monotonic() < end:
            pass

        assert [None, None] == seen
        assert ["/gone"] == asked
        assert __file__ == state[0][0]

    def test_no_thread(self, monkeypatch, tmp_path):
        """
        Where no thread can be started, nothing has moved.
        """
        files = watch_files([tmp_path / "log"], timeout_s=30)
        (tmp_path / "log").write_text("a")
        before = files()
        (tmp_path / "log").write_text("ab")
        monkeypatch.setattr(threading.Thread, "start", no_thread)

        assert before == files()


def no_thread(_):
    """
    Python ends.
    """
    raise RuntimeError


def test_combine_senses():
    """
    Joined senses move if one of them does, and keep what they saw.
    """
    first, second = iter([None, 1, None, 1]), iter([None, None, 2, 2])
    sense = combine_senses(lambda _: next(first), lambda _: next(second))

    assert [None, (1, None), (1, 2), (1, 2)] == [sense(()) for _ in range(4)]
