"""
How can a stuck process be asked where it is, by who may not trace it?
"""

import errno
import faulthandler
import os
import signal
import sys

from pathlib import Path

import pytest

from distdebug.flight_recorder.recording import stack_offer
from distdebug.flight_recorder.recording.c_signals import (
    disposition,
    get_handler,
    restore_action,
    save_action,
)
from distdebug.flight_recorder.recording.stack_offer import (
    offer_stacks,
    withdraw_stacks,
)
from distdebug.processes import folder_name, own_offer


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="signals are read from /proc"
)


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch):
    """
    A process that has never offered anything, before and after.
    """
    numbers = range(signal.SIGRTMIN + 12, signal.SIGRTMIN + 20)
    before = {n: save_action(n) for n in numbers}
    # Another test may have left an offer of this very process.
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    monkeypatch.setattr(stack_offer, "_offers", [])
    monkeypatch.setattr(stack_offer, "_ignored", set())
    yield
    while stack_offer._offers:
        withdraw_stacks()
    for number, action in before.items():
        signal.signal(number, signal.SIG_DFL)
        restore_action(number, action)


def names_in(folder):
    """
    Names of all that is in a folder.
    """
    return [entry.name for entry in folder.iterdir()]


def files_in(folder):
    """
    Names of the files of this user.
    """
    return names_in(folder / folder_name(os.geteuid()))


def test_offered(tmp_path):
    """
    A file is there for who asks, and nothing is in it before.
    """
    offer = offer_stacks(tmp_path)

    status = offer.path.stat()
    assert [own_offer(offer.signal).name] == files_in(tmp_path)
    assert (0, 0o600) == (status.st_size, status.st_mode & 0o777)
    assert 0o700 == offer.path.parent.stat().st_mode & 0o777
    assert not os.get_inheritable(offer.fd)


def test_asked(tmp_path):
    """
    The signal has the thread write where it is.
    """
    offer = offer_stacks(tmp_path)

    os.kill(os.getpid(), offer.signal)

    text = offer.path.read_text()
    assert text.startswith("Stack (most recent call first):\n")
    assert "in test_asked" in text


def test_several_want_it(tmp_path):
    """
    There is one offer, until nobody wants it any more.
    """
    first, second = offer_stacks(tmp_path), offer_stacks(tmp_path)
    withdraw_stacks()
    found = [disposition(first.signal), first.path.exists()]
    withdraw_stacks()
    found += [disposition(first.signal), first.path.exists()]
    withdraw_stacks()

    assert first is second
    assert ["caught", True, "ignored", False] == found
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(first.fd)


def test_again(tmp_path):
    """
    A signal that was ours, and is ignored since, is ours again.
    """
    first = offer_stacks(tmp_path)
    withdraw_stacks()
    os.kill(os.getpid(), first.signal)
    second = offer_stacks(tmp_path)

    assert first.signal == second.signal


def test_signal_in_use(tmp_path):
    """
    A signal that has a handler, or is ignored, is left alone.
    """
    first = signal.SIGRTMIN + 12
    signal.signal(first, lambda *_: None)
    signal.signal(first + 1, signal.SIG_IGN)
    handlers = [get_handler(first), get_handler(first + 1)]

    offer = offer_stacks(tmp_path)

    assert first + 2 == offer.signal
    assert handlers == [get_handler(first), get_handler(first + 1)]


def test_all_in_use(tmp_path, monkeypatch):
    """
    Where every signal has a use nothing is offered.
    """
    monkeypatch.setattr(stack_offer, "disposition", lambda _n: "caught")

    with pytest.raises(OSError, match="no signal"):
        offer_stacks(tmp_path)

    assert [] == names_in(tmp_path)


def test_late_handler(tmp_path):
    """
    A handler that came after ours stays.
    """
    offer = offer_stacks(tmp_path)
    calls = []
    signal.signal(offer.signal, lambda *_: calls.append(1))
    withdraw_stacks()
    os.kill(os.getpid(), offer.signal)

    assert [1] == calls


def test_late_faulthandler(tmp_path):
    """
    So does another file of faulthandler.
    """
    offer = offer_stacks(tmp_path)
    with (tmp_path / "theirs").open("w") as file:
        faulthandler.register(offer.signal, file=file, all_threads=False)
        withdraw_stacks()
        os.kill(os.getpid(), offer.signal)
        faulthandler.unregister(offer.signal)

    assert "test_late" in (tmp_path / "theirs").read_text()


@pytest.mark.parametrize("reopened", [False, True])
def test_closed(tmp_path, reopened):
    """
    A descriptor that the program has closed is not closed again.
    """
    offer = offer_stacks(tmp_path)
    number = offer.fd
    os.close(number)
    with (tmp_path / "theirs").open("w") as theirs:
        if reopened:
            os.dup2(theirs.fileno(), number)
        withdraw_stacks()
        if reopened:
            os.fstat(number)
            os.close(number)

    assert not offer.path.exists()


def test_somebody_elses_folder(tmp_path):
    """
    Where somebody else could put files nothing is offered.
    """
    folder = tmp_path / folder_name(os.geteuid())
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(PermissionError):
        offer_stacks(tmp_path)

    assert [] == names_in(folder)


def test_linked_folder(tmp_path):
    """
    No link is followed.
    """
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / folder_name(os.geteuid())).symlink_to("elsewhere")

    with pytest.raises(OSError, match="Not a directory"):
        offer_stacks(tmp_path)

    assert [] == names_in(tmp_path / "elsewhere")


def test_swept(tmp_path):
    """
    What a dead process has left is removed; other files stay.
    """
    folder = tmp_path / folder_name(os.geteuid())
    folder.mkdir(mode=0o700)
    (folder / "2-3-46.stacks").touch()
    (folder / "2-4-46.stacks").mkdir()
    (folder / "other").touch()

    offer = offer_stacks(tmp_path)

    left = {offer.path.name, "2-4-46.stacks", "other"}
    assert left == set(files_in(tmp_path))


def test_living_stay(tmp_path):
    """
    What a living process has left there is not removed.
    """
    offer = offer_stacks(tmp_path)
    folder = os.open(offer.path.parent, os.O_RDONLY)

    stack_offer._sweep(folder)

    os.close(folder)
    assert offer.path.exists()


def test_no_name(tmp_path, monkeypatch):
    """
    If the file cannot have its name, the signal is given back.
    """

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)

    with pytest.raises(OSError, match="No space"):
        offer_stacks(tmp_path)

    assert "caught" != disposition(signal.SIGRTMIN + 12)
    assert [] == files_in(tmp_path)


def test_forgotten(tmp_path):
    """
    A forked child gives the signal back, and leaves the file to its parent.
    """
    offer = offer_stacks(tmp_path)

    stack_offer._forget()
    stack_offer._forget()

    assert "ignored" == disposition(offer.signal)
    assert offer.path.exists()
