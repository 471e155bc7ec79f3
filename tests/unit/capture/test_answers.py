"""
Where does a process write when it is asked where it is?
"""

import contextlib
import errno
import fcntl
import os
import sys

import attrs
import pytest

from distdebug.capture.asking import answers as answers_module
from distdebug.capture.asking.answers import NotAskedError, open_answers
from distdebug.capture.model import CaptureStatus
from distdebug.processes import folder_name, own_offer, read_state


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are known from /proc"
)

SIGNAL = 46


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """
    Files of this test are not those of the user.
    """
    monkeypatch.setattr(answers_module, "ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(root):
    """
    The folder of this user.
    """
    folder = root / folder_name(os.geteuid())
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def file(folder):
    """
    What this process writes to, with an earlier answer in it.
    """
    file = folder / own_offer(SIGNAL).name
    file.write_text("an earlier answer")
    with file.open("rb") as kept:
        fcntl.flock(kept, fcntl.LOCK_SH)
        yield file


def status_of(**changes):
    """
    Why this process, or one a little different, cannot be asked.
    """
    state = attrs.evolve(read_state(os.getpid()), **changes)
    with pytest.raises(NotAskedError) as caught:
        with open_answers(os.getpid(), state):
            pass

    assert caught.value.detail
    assert caught.value.remedy
    return caught.value.status


def test_read(file):
    """
    The file is empty at first, and again at last.
    """
    with open_answers(os.getpid(), read_state(os.getpid())) as answers:
        sizes = [answers.size]
        with file.open("a") as theirs:
            theirs.write("an answer")
        sizes += [answers.size]
        text = answers.read(3)

    assert ([0, 9], "answer") == (sizes, text)
    assert (SIGNAL, 0) == (answers.signal, file.stat().st_size)


def test_emptied_after_error(file):
    """
    It is empty even when something went wrong.
    """
    with contextlib.suppress(ValueError):
        with open_answers(os.getpid(), read_state(os.getpid())):
            file.write_text("an answer")
            raise ValueError

    assert 0 == file.stat().st_size


def test_nothing():
    """
    A user of whom there is no folder offers nothing.
    """
    assert CaptureStatus.TOOL_MISSING is status_of()


@pytest.mark.parametrize(
    "changes", [{"start_ticks": 1}, {"pid_inside": 1}, {"uid": 12345}]
)
def test_somebody_else(file, changes):
    """
    The file of another process is not taken for this one's.
    """
    assert CaptureStatus.TOOL_MISSING is status_of(**changes)


@pytest.mark.parametrize("number", [0, 9, 31, 99])
def test_deadly_signal(file, number):
    """
    A file cannot make us send whatever signal it wants.
    """
    file.rename(file.with_name(own_offer(number).name))

    assert CaptureStatus.TOOL_MISSING is status_of()


def test_not_kept(folder):
    """
    What nobody holds was left by a program that is gone.
    """
    (folder / own_offer(SIGNAL).name).touch()

    assert CaptureStatus.TOOL_MISSING is status_of()


@pytest.mark.parametrize("trick", ["folder", "pipe", "symlink", "hard link"])
def test_tricks(file, tmp_path, trick):
    """
    What is no file of its own is left alone.
    """
    victim = tmp_path / "victim"
    file.rename(victim)
    {
        "folder": file.mkdir,
        "pipe": lambda: os.mkfifo(file),
        "symlink": lambda: file.symlink_to(victim),
        "hard link": lambda: file.hardlink_to(victim),
    }[trick]()

    assert CaptureStatus.TOOL_MISSING is status_of()
    assert "an earlier answer" == victim.read_text()


@pytest.mark.parametrize("trick", ["symlink", "writable"])
def test_folder_tricks(folder, tmp_path, trick):
    """
    Nor is a folder trusted that others can change.
    """
    if trick == "symlink":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to("elsewhere")
    else:
        folder.chmod(0o777)

    assert CaptureStatus.TOOL_MISSING is status_of()


def test_other_user(file, monkeypatch):
    """
    A folder that may not be opened belongs to somebody else.
    """

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(answers_module, "_open_folder", refuse)

    assert CaptureStatus.OTHER_USER is status_of()


def test_in_container(file, monkeypatch):
    """
    What cannot be seen as the process sees it is looked for from here.
    """
    seen = answers_module._open_folder

    def refuse(parent, *rest):
        if parent != "/":
            raise PermissionError(errno.EACCES, "Permission denied")
        return seen(parent, *rest)

    monkeypatch.setattr(answers_module, "_open_folder", refuse)

    with open_answers(os.getpid(), read_state(os.getpid())) as answers:
        assert SIGNAL == answers.signal


def test_busy(file, monkeypatch):
    """
    Two do not ask at the same time.
    """

    def refuse(*_):
        raise BlockingIOError(errno.EAGAIN, "Resource unavailable")

    monkeypatch.setattr(fcntl, "lockf", refuse)

    assert CaptureStatus.SKIPPED is status_of()
