"""
How does a process say that it can be asked for its stacks?
"""

import fcntl
import os
import sys

import pytest

from distdebug.processes import (
    is_offer_locked,
    is_private,
    offer_folder_name,
    own_offer,
    parse_offer_name,
    read_state,
)


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are known from /proc"
)


def test_names():
    """
    A name says all about an offer.
    """
    offer = parse_offer_name("12-345-46.stacks")

    assert (12, 345, 46) == (offer.pid, offer.start_ticks, offer.signal)
    assert "12-345-46.stacks" == offer.name
    assert offer_folder_name(0) != offer_folder_name(1)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "12-345.stacks",
        ".12-345-46.stacks",
        "12-345-46.stacks.tmp",
        "12-345-046.stacks",
        "१२-345-46.stacks",
        "12345678901-1-46.stacks",
    ],
)
def test_other_names(name):
    """
    Other files offer nothing.
    """
    assert parse_offer_name(name) is None


def test_own():
    """
    A process knows itself by the same numbers as others do.
    """
    offer = own_offer(46)

    ticks = read_state(os.getpid()).start_ticks
    assert (os.getpid(), ticks, 46) == offer


def test_own_unknown(monkeypatch):
    """
    Without the kernel's word there is no offer.
    """

    def refuse(*_):
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(OSError, match="/proc does not say"):
            own_offer(46)


@pytest.mark.parametrize(
    ("mode", "uid", "expected"),
    [(0o700, 0, True), (0o755, 0, True), (0o770, 0, False), (0o700, 1, False)],
)
def test_private(tmp_path, mode, uid, expected):
    """
    A folder is private if only its owner, and the right one, may write.
    """
    tmp_path.chmod(mode)
    fd = os.open(tmp_path, os.O_RDONLY)

    found = is_private(fd, os.geteuid() + uid)

    os.close(fd)
    assert expected is found


def test_kept(tmp_path):
    """
    Asking whether another holds the lock does not take it.
    """
    file = tmp_path / "file"
    file.touch()
    with file.open() as ours, file.open() as theirs:
        found = [is_offer_locked(ours.fileno())]
        fcntl.flock(theirs, fcntl.LOCK_SH)
        found += [
            is_offer_locked(ours.fileno()),
            is_offer_locked(ours.fileno()),
        ]
        fcntl.flock(theirs, fcntl.LOCK_UN)
        found += [is_offer_locked(ours.fileno())]

    assert [False, True, True, False] == found
