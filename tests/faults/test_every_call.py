"""
Whatever call to the system fails: is the answer an answer, or an error of ours?

Each public function that touches the world is called over and over, while the
first, second, third … call of each kind fails.  With ``DISTDEBUG_FAULTS=all``
every one of them does, and with every error; otherwise the first ones and some
of the later, which are loops over files of the same kind.
"""

from __future__ import annotations

import errno
import os
import time

from collections.abc import Iterator
from pathlib import Path

import pytest

import distdebug

from .checking import contents, inventory, left_over, objection, outcome
from .injector import CALLS, ERRORS, Fault, inject
from .scenes import ELSEWHERE, IN_JOB, REACH, SCENES


IS_THOROUGH = os.environ.get("DISTDEBUG_FAULTS") == "all"
FIRST, LATER = (5, 3)
# A snapshot takes seconds.
FIRST_OF_SLOW, LATER_OF_SLOW, SLOW = 1, 2, ("snapshot",)
# What waits for something has limits of its own, of some seconds.
MOST_S = 30.0

PAIRS = [
    pytest.param(name, call, id=f"{name}-{call}")
    for name in sorted(SCENES)
    for call in CALLS
]


def positions(calls: int, first: int, later: int) -> list[int]:
    """
    Which of so many calls are to fail?
    """
    every = range(1, calls + 1)
    if IS_THOROUGH or calls <= first + later:
        return list(every)
    step = max(1, (calls - first) // later)
    return [*every[:first], *every[first + step - 1 :: step]]


def faults(name: str, call: str, calls: int) -> Iterator[Fault]:
    """
    Which faults are tried of a kind of call that happens so often?
    """
    is_slow = name in SLOW
    numbers = (FIRST_OF_SLOW, LATER_OF_SLOW) if is_slow else (FIRST, LATER)
    for nth in positions(calls, *numbers):
        has_all = IS_THOROUGH or (nth <= 2 and not is_slow)
        for error in ERRORS[call] if has_all else ERRORS[call][:1]:
            yield Fault(call=call, nth=nth, error=error)
    if calls:  # from now on, nothing works
        yield Fault(call=call, nth=1, error=errno.EIO, is_lasting=True)


def test_all_are_sorted():
    """
    Each public function is sorted by what it reaches, and tried if it does.
    """
    functions = {
        name
        for name in distdebug.__all__
        if callable(getattr(distdebug, name)) and name.islower()
    }
    reaching = {name for name, reached in REACH.items() if reached}

    assert functions == set(REACH)
    assert reaching == {*SCENES, *ELSEWHERE}
    assert set(IN_JOB) <= reaching


@pytest.mark.parametrize(("name", "call"), PAIRS)
def test_every_call(name, call, target, tmp_path):
    """
    A failing call gives a result, or an error of ours that has a remedy;
    a job is never hurt; nothing is left running, open, or lost.
    """
    SCENES[name](folder_of(tmp_path, 0), target)()  # imports are done
    act = SCENES[name](folder_of(tmp_path, 1), target)
    with inject(Fault(call=call)) as seen:
        act()

    for number, fault in enumerate(faults(name, call, seen.calls), 2):
        try_fault(name, fault, folder_of(tmp_path, number), target)


def folder_of(tmp_path: Path, number: int) -> Path:
    """
    A new folder.
    """
    folder = tmp_path / str(number)
    folder.mkdir()
    return folder


def try_fault(name: str, fault: Fault, folder: Path, target: int) -> None:
    """
    Play a scene in which something fails, and see what becomes of it.
    """
    act = SCENES[name](folder, target)
    evidence, before = contents(folder), inventory()
    start = time.monotonic()

    with inject(fault):
        error = outcome(act)

    assert time.monotonic() - start < MOST_S, fault
    assert "" == objection(error, in_job=name in IN_JOB), fault
    assert "" == left_over(before), fault
    if "writes" not in REACH[name]:
        now = contents(folder)
        assert evidence == {x: now.get(x) for x in evidence}, fault
    elif fault.call != "unlink":
        rest = [x for x in folder.rglob(".*") if x.suffix in {".tmp", ".part"}]
        assert [] == rest, fault


def test_injector_counts_and_strikes(tmp_path):
    """
    The third read of a file fails, and only that one.
    """
    path = tmp_path / "file"
    path.write_bytes(b"x")

    with inject(Fault(call="read", nth=3, error=errno.ENOSPC)) as seen:
        read = [outcome(path.read_bytes) for _ in range(5)]

    assert [errno.ENOSPC] == [e.errno for e in read if e is not None]
    assert 1 == seen.failed
    assert seen.calls >= 5
