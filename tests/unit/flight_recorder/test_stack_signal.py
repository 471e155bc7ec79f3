"""
How can a stuck process be asked where it is, by who may not trace it?
"""

import errno
import faulthandler
import os
import signal
import subprocess
import sys

from pathlib import Path

import pytest

# Only here can the folder be chosen; who enables recording offers in /tmp.
from distdebug.flight_recorder.recording.signals import (
    disable_stack_signal,
    enable_stack_signal,
)
from distdebug.processes import offer_folder_name, own_offer


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="signals are read from /proc"
)

NUMBERS = range(signal.SIGRTMIN + 12, signal.SIGRTMIN + 20)


@pytest.fixture(autouse=True)
def undisturbed():
    """
    A process whose signals have no use, before and after.
    """
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
    yield
    disable_stack_signal()
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)


def names_in(folder):
    """
    Names of all that is in a folder.
    """
    return [entry.name for entry in folder.iterdir()]


def files_in(folder):
    """
    Names of the files of this user.
    """
    return names_in(folder / offer_folder_name(os.geteuid()))


def test_offered(tmp_path):
    """
    A file is there for who asks, for its owner alone, and empty before.
    """
    offer = enable_stack_signal(tmp_path)

    status = offer.path.stat()
    assert [own_offer(offer.signal).name] == files_in(tmp_path)
    assert (0, 0o600) == (status.st_size, status.st_mode & 0o777)
    assert 0o700 == offer.path.parent.stat().st_mode & 0o777
    assert not os.get_inheritable(offer.file.fd)


def test_asked(tmp_path):
    """
    The signal has the thread write where it is.
    """
    offer = enable_stack_signal(tmp_path)

    os.kill(os.getpid(), offer.signal)

    text = offer.path.read_text()
    assert text.startswith("Stack (most recent call first):\n")
    assert "in test_asked" in text


def test_once(tmp_path, signal_state):
    """
    There is one offer, until it is not wanted any more.
    """
    first, second = (
        enable_stack_signal(tmp_path),
        enable_stack_signal(tmp_path),
    )
    found = [signal_state(first.signal), first.path.exists()]
    disable_stack_signal()
    found += [signal_state(first.signal), first.path.exists()]
    disable_stack_signal()

    assert first is second
    assert ["caught", True, "ignored", False] == found
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(first.file.fd)


def test_again(tmp_path):
    """
    A signal that was ours is ignored since, which ends no process, and ours
    again.
    """
    first = enable_stack_signal(tmp_path)
    disable_stack_signal()
    os.kill(os.getpid(), first.signal)
    second = enable_stack_signal(tmp_path)

    assert first.signal == second.signal


@pytest.mark.process
def test_signals_in_use(run_rank):
    """
    A signal that has a handler, or is ignored, is left alone.
    """
    ended = run_rank(
        """
        first = signal.SIGRTMIN + 12
        handler = signal.signal(first, lambda *_: print("theirs", flush=True))
        signal.signal(first + 1, signal.SIG_IGN)
        distdebug.enable_flight_recorder(dump_dir="d")
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), first + 1)
        folder = f"/tmp/distdebug-stacks-{os.geteuid()}"
        names = (name.split("-") for name in os.listdir(folder))
        mine = [n for n in names if n[0] == str(os.getpid())]
        print([int(n[2][:2]) - first for n in mine])
        """,
        enable=False,
    )

    assert ("theirs\n[2]\n", "") == (ended.stdout, ended.stderr)


def test_all_in_use(tmp_path):
    """
    Where every signal has a use nothing is offered.
    """
    for number in NUMBERS:
        signal.signal(number, lambda *_: None)

    with pytest.raises(OSError, match="no signal"):
        enable_stack_signal(tmp_path)

    assert [] == names_in(tmp_path)


def test_late_handler(tmp_path):
    """
    A handler that came after ours stays.
    """
    offer = enable_stack_signal(tmp_path)
    calls = []
    signal.signal(offer.signal, lambda *_: calls.append(1))
    disable_stack_signal()
    os.kill(os.getpid(), offer.signal)

    assert [1] == calls


def test_late_faulthandler(tmp_path):
    """
    So does another file of faulthandler.
    """
    offer = enable_stack_signal(tmp_path)
    with (tmp_path / "theirs").open("w") as file:
        faulthandler.register(offer.signal, file=file, all_threads=False)
        disable_stack_signal()
        os.kill(os.getpid(), offer.signal)
        faulthandler.unregister(offer.signal)

    assert "test_late" in (tmp_path / "theirs").read_text()


@pytest.mark.parametrize("reopened", [False, True])
def test_closed(tmp_path, reopened):
    """
    A descriptor that the program has closed is not closed again.
    """
    offer = enable_stack_signal(tmp_path)
    number = offer.file.fd
    os.close(number)
    with (tmp_path / "theirs").open("w") as theirs:
        if reopened:
            os.dup2(theirs.fileno(), number)
        disable_stack_signal()
        if reopened:
            os.fstat(number)
            os.close(number)

    assert not offer.path.exists()


def test_somebody_elses_folder(tmp_path):
    """
    Where another user could put files nothing is offered.
    """
    folder = tmp_path / offer_folder_name(os.geteuid())
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(PermissionError):
        enable_stack_signal(tmp_path)

    assert [] == names_in(folder)


def test_linked_folder(tmp_path):
    """
    No link is followed.
    """
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / offer_folder_name(os.geteuid())).symlink_to("elsewhere")

    with pytest.raises(OSError, match="Not a directory"):
        enable_stack_signal(tmp_path)

    assert [] == names_in(tmp_path / "elsewhere")


@pytest.mark.process
def test_swept(tmp_path):
    """
    What dead processes have left is removed; other files stay, and so does
    the offer of a process that lives.
    """
    folder = tmp_path / offer_folder_name(os.geteuid())
    folder.mkdir(mode=0o700)
    offer = enable_stack_signal(tmp_path)
    (folder / "2-3-46.stacks").touch()
    (folder / "2-4-46.stacks").mkdir()
    (folder / "other").touch()

    code = (
        "from distdebug.flight_recorder.recording.signals import *; "
        f"enable_stack_signal({str(tmp_path)!r}); disable_stack_signal()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

    left = {offer.path.name, "2-4-46.stacks", "other"}
    assert left == set(files_in(tmp_path))


def test_no_name(tmp_path, monkeypatch, signal_state):
    """
    If the file cannot have its name, the signal is given back.
    """

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)

    with pytest.raises(OSError, match="No space"):
        enable_stack_signal(tmp_path)

    assert {"default", "ignored"} >= set(map(signal_state, NUMBERS))
    assert [] == files_in(tmp_path)


@pytest.mark.process
def test_forgotten(run_rank):
    """
    A forked child does not answer, and leaves the file to its parent.
    """
    ended = run_rank(
        """
        from pathlib import Path
        folder = Path(f"/tmp/distdebug-stacks-{os.geteuid()}")
        (mine,) = folder.glob(f"{os.getpid()}-*.stacks")
        number = int(mine.stem.split("-")[2])
        if pid := os.fork():
            status = os.waitpid(pid, 0)[1]
            print("parent", status, mine.exists(), mine.read_text() == "")
        else:
            os.kill(os.getpid(), number)
            os._exit(0)
        """
    )

    assert ("parent 0 True True\n", "") == (ended.stdout, ended.stderr)
