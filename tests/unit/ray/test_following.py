"""
Following files that grow, are rotated, cut, deleted, and appear.

A thread that writes is not needed: what the reader waits by does the writing.
"""

from __future__ import annotations

import itertools
import math
import threading
import time

import pytest

from distdebug.errors import LogError
from distdebug.ray import LogPart, RaySession, WorkerLog, follow_lines


class Steps(threading.Event):
    """
    Does the next thing whenever the reader waits, and then says stop.
    """

    def __init__(self, *steps):
        super().__init__()
        self.steps = list(steps)

    def wait(self, timeout=None):
        """
        Do the next thing.
        """
        if self.steps:
            self.steps.pop(0)()
        else:
            self.set()
        return self.is_set()


@pytest.fixture
def path(tmp_path):
    """
    A file with one line.
    """
    path = tmp_path / "logs" / "worker.out"
    path.parent.mkdir()
    path.write_text("old\n")
    return path


def append(path, text):
    """
    Something that appends to a file.
    """

    def step():
        with path.open("a") as file:
            file.write(text)

    return step


def follow(paths, *steps, **options):
    """
    The lines that are given while these things happen.
    """
    stop = Steps(*steps)
    return [x.text for x in follow_lines(paths, stop=stop, **options)]


def test_growing(path):
    """
    Only what is appended is given, when its line is whole, without marks.
    """
    steps = append(path, "on"), append(path, "e\n:job_id:1\ntwo\nthr")

    assert ["one", "two", "thr"] == follow(path, *steps)


def test_from_start(path):
    """
    What is there is given if wanted.
    """
    lines = follow_lines(path, stop=Steps(), from_start=True)

    assert [("old", str(path))] == [(x.text, x.source) for x in lines]


def test_progress_bar(path):
    """
    A bar that writes over itself is given state by state.
    """
    steps = append(path, "1%\r"), append(path, "2%\r\n")

    assert ["1%", "2%"] == follow(path, *steps)


@pytest.mark.parametrize(
    "moved",
    ["worker.out.1", "worker.1.out", "worker.out.30", "old/worker.out"],
)
def test_rotated(path, moved):
    """
    What was written before and after a rotation is given, each once.
    """
    target = path.parent / moved
    target.parent.mkdir(exist_ok=True)

    def rotate():
        append(path, "before\nlast")()
        path.rename(target)
        path.write_text("after\n")

    for paths in (path, path.parent):
        target.unlink(missing_ok=True)
        path.write_text("old\n")

        got = follow(paths, append(path, "one\n"), rotate, append(path, "x\n"))

        assert ["one", "before", "last", "after", "x"] == got


def test_much_before_a_rotation(path):
    """
    A rotated file is read to its end, however long that is.
    """

    def rotate():
        append(path, ("x" * 100_000 + "\n") * 50)()
        path.rename(path.with_name("worker.out.1"))
        path.write_text("after\n")

    got = follow(path, rotate, append(path, "x\n"))

    assert [*["x" * 65_536] * 50, "after", "x"] == [x[:65_536] for x in got]


@pytest.mark.parametrize("name", ["stdout", "train.txt.log"])
def test_rotated_file_of_another_program(path, name):
    """
    Logs of any name may be rotated by numbers.
    """
    own = path.with_name(name)
    own.write_text("")

    def rotate():
        append(own, "last\n")()
        own.rename(own.with_name(f"{name}.2"))
        own.write_text("after\n")

    assert ["last", "after"] == follow(own, rotate, lambda: None)


def test_moved_away(path):
    """
    A file that is moved away and stays away is no harm.
    """

    def move():
        append(path, "last\n")()
        path.rename(path.with_name("worker.out.3"))

    assert ["last"] == follow(path, move, lambda: None)


def test_cut(path):
    """
    A file that is cut is read from its new beginning.
    """
    append(path, "more and more\n")()

    def cut():
        path.write_text("new\n")

    assert ["new", "x"] == follow(path, cut, append(path, "x\n"))


def test_deleted(path):
    """
    A file may be deleted, in the middle of a line, and appear again.
    """

    def again():
        path.write_text("new\n")

    got = follow(path, append(path, "half"), path.unlink, again)

    assert ["half", "new"] == got


def test_appearing(path):
    """
    Files need not be there yet, whether they are named or their folder is.
    """
    late = path.with_name("late.out")

    assert ["x"] == follow(late, append(late, "x\n"))
    late.unlink()
    assert ["x"] == follow(path.parent, append(late, "x\n"))


def test_appearing_for_a_while(path, monkeypatch):
    """
    Folders are searched every now and then.
    """
    late = path.with_name("late.out")
    clock = itertools.count(step=3.0)
    monkeypatch.setattr(time, "monotonic", clock.__next__)

    got = follow(path.parent, append(late, "x\n"), late.unlink)

    assert ["x"] == got


def test_folder(path):
    """
    In a folder, parts that were rotated and what is packed are left out.
    """
    for name in ("worker.out.1", "worker.1.out", "b.log.gz"):
        path.with_name(name).write_text("x\n")
    (path.parent / "old").mkdir()
    (path.parent / "old" / "worker.err").write_text("x\n")

    assert ["old"] == follow(path.parent, from_start=True)


def test_worker(path):
    """
    Of a worker both streams are followed, in their newest parts.
    """
    session = RaySession(root=path.parent, logs=path.parent, name="s")
    err = path.with_name("worker.err")
    parts = (LogPart(path=path.with_name("gone"), index=1), LogPart(path=path))
    log = WorkerLog(
        session=session,
        worker_id="ab" * 28,
        pid=7,
        out=parts,
        err=(LogPart(path=err),),
    )

    got = follow([log], append(path, "a\n"), append(err, "b\n"))

    assert ["a", "b"] == got


def test_much(path):
    """
    Much is read in turns, without waiting between them.
    """
    path.write_text(("x" * 100_000 + "\n") * 50)

    lines = list(follow_lines(path, stop=Steps(), from_start=True))

    assert 50 == len(lines)


def test_time_out(path):
    """
    It ends when its time is over, although nothing happens.
    """
    begin = time.monotonic()

    lines = list(follow_lines(path, timeout_s=0.05))

    assert [] == lines
    assert 0.05 <= time.monotonic() - begin < 5


def test_thread(path):
    """
    Who waits is woken when another thread says stop.
    """
    stop = threading.Event()
    lines = follow_lines(path, stop=stop, timeout_s=60)
    thread = threading.Timer(0.01, stop.set)
    begin = time.monotonic()

    thread.start()
    got = list(lines)
    thread.join()

    assert [] == got
    assert time.monotonic() - begin < 10


def test_nothing():
    """
    Following nothing is refused.
    """
    with pytest.raises(LogError, match="no file to follow"):
        list(follow_lines([]))


def test_no_time(tmp_path):
    """
    What is not a number of seconds is refused, and not waited for.
    """
    with pytest.raises(LogError):
        next(follow_lines(tmp_path, timeout_s=math.nan))
