"""
Whatever call to the system fails: is the answer an answer, or an error of ours?

Each public function that touches the world is called over and over, while the
first, second, third … call of each kind fails.  With ``DISTDEBUG_FAULTS=all``
every one of them does, and with every error; otherwise the first ones and some
of the later, which are loops over files of the same kind.
"""

from __future__ import annotations

import errno
import functools
import signal
import time
import warnings

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name

import pytest

import distdebug

from .checking import (
    IS_THOROUGH,
    contents,
    inventory,
    is_whole,
    left_over,
    objection,
    outcome,
)
from .injector import CALLS, ERRORS, Fault, inject
from .scenes import ELSEWHERE, IN_JOB, MAKES, REACH, SCENES


FIRST, LATER = (2, 1)
# These take longer, and thousands of their calls read files of the kernel.
FIRST_OF_SLOW, LATER_OF_SLOW = 1, 0
MOST_OF_SLOW = 200
SLOW = (
    *("analyze_dumps", "cli.watch.watch", "DebugClient.stack", "diagnose"),
    *("find_workers", "preflight", "report_html", "snapshot", "Watch.hangs"),
    *("write_replay", "write_report", "write_timeline"),
)
# The rest is done by a child process, or by what other scenes call.
ONLY = {
    "cli.watch.watch": {"mkdir", "rename", "start", "thread", "write"},
    "Watch.hangs": {"thread"},
    "write_report": {"open", "rename", "stat", "write"},
}
# What waits for something has limits of its own, of some seconds.
MOST_S = 60.0

# When somebody presses Ctrl-C.
MOMENTS = {"open", "read", "write", "start", "rename", "socket"}
FEW, EVERY = (1, 0), (20, 20)

PAIRS = [
    pytest.param(name, call, id=f"{name}-{call}")
    for name in sorted(SCENES)
    for call in CALLS
    if call in ONLY.get(name, CALLS)
][:: 1 if IS_THOROUGH else 2]


def positions(calls: int, first: int, later: int) -> list[int]:
    """
    Which of so many calls are to fail?
    """
    every = range(1, calls + 1)
    if calls <= first + later:
        return list(every)
    if not later:
        return list(every[:first])
    step = max(1, (calls - first) // later)
    return [*every[:first], *every[first + step - 1 :: step]]


def faults(name: str, call: str, calls: int) -> Iterator[Fault]:
    """
    Which faults are tried of a kind of call that happens so often?
    """
    is_slow = name in SLOW
    numbers = (FIRST_OF_SLOW, LATER_OF_SLOW) if is_slow else (FIRST, LATER)
    if IS_THOROUGH:
        numbers = (MOST_OF_SLOW, MOST_OF_SLOW) if is_slow else (calls, 0)
    for nth in positions(calls, *numbers):
        has_all = IS_THOROUGH or (nth == 1 and not is_slow)
        for error in ERRORS[call] if has_all else ERRORS[call][:1]:
            yield Fault(call=call, nth=nth, error=error)
    if calls:  # from now on, nothing works
        yield Fault(call=call, nth=1, error=errno.EIO, is_lasting=True)


@pytest.fixture(name="count", scope="session")
def _count(target, tmp_path_factory):
    """
    Counts how often a scene calls what may fail.
    """

    @functools.cache
    def count(name):
        folder = tmp_path_factory.mktemp("count")
        prepare(name, folder / "warm", target)[0]()  # imports are done
        act, _ = prepare(name, folder / "good", target)
        with ExitStack() as stack:
            seen = {
                call: stack.enter_context(inject(Fault(call=call)))
                for call in CALLS
            }
            act()
        return {call: found.calls for call, found in seen.items()}

    return count


def test_all_are_sorted():
    """
    Each public function is sorted by what it reaches, and tried if it does.
    """
    functions = {
        name
        for name in distdebug.__all__
        if callable(getattr(distdebug, name)) and name.islower()
    }
    others = set(REACH) - functions
    reaching = {name for name, reached in REACH.items() if reached}

    assert functions <= set(REACH)
    with warnings.catch_warnings():
        # Those of the modules debugger, nsight, and ray were on top once.
        warnings.simplefilter("ignore", DeprecationWarning)
        assert all(resolve_name(f"distdebug.{name}") for name in others)
    assert reaching == {*SCENES, *ELSEWHERE}
    assert set(IN_JOB) <= reaching


@pytest.mark.parametrize(("name", "call"), PAIRS)
def test_every_call(name, call, count, target, tmp_path):
    """
    A failing call gives a result, or an error of ours that has a remedy;
    a job is never hurt; nothing is left running, open, or lost.
    """
    calls = count(name)[call]

    for number, fault in enumerate(faults(name, call, calls)):
        folder = tmp_path / str(number)
        error = try_fault(name, fault, folder, target)
        assert "" == objection(error, in_job=name in IN_JOB), fault


# An interrupt between a call and its "with" leaves a thread, as everywhere.
@pytest.mark.parametrize("name", sorted({*SCENES} - {"watch"}))
def test_interrupted(name, count, target, tmp_path):
    """
    Whoever presses Ctrl-C at any moment gets what was asked for, or an
    interrupt; nothing is left running, open, or lost.
    """
    for call in MOMENTS & ONLY.get(name, MOMENTS):
        for nth in positions(
            count(name)[call], *(EVERY if IS_THOROUGH else FEW)
        ):
            fault = Fault(call=call, nth=nth, instead=interrupt)
            folder = tmp_path / call / str(nth)
            error = try_fault(name, fault, folder, target)
            is_fine = isinstance(error, KeyboardInterrupt)
            assert is_fine or "" == objection(error), fault


def interrupt() -> None:
    """
    Do as Ctrl-C does, which only the main thread notices.
    """
    signal.raise_signal(signal.SIGINT)


def prepare(
    name: str, folder: Path, target: int
) -> tuple[Callable[[], object], dict[str, str]]:
    """
    Prepare a scene in a new folder, and tell what lies there.
    """
    folder.mkdir(parents=True)
    act = functools.partial(outcome, SCENES[name](folder, target))
    return act, contents(folder)


def try_fault(
    name: str, fault: Fault, folder: Path, target: int
) -> BaseException | None:
    """
    Play a scene in which something fails, and see what is left of the world.
    """
    act, evidence = prepare(name, folder, target)
    before, start = inventory(), time.monotonic()

    with inject(fault):
        error = act()

    assert time.monotonic() - start < MOST_S, fault
    assert "" == left_over(before), fault
    now = contents(folder)
    for path, content in evidence.items():
        is_old = now.get(path) == content
        assert is_old or is_whole(folder / path), (path, fault)
    if error is None and name in MAKES:
        made = {str(x.relative_to(folder)) for x in folder.glob(MAKES[name])}
        assert any(now.get(x) != evidence.get(x) for x in made), fault
    if fault.call != "unlink":
        rest = [x for x in folder.rglob(".*") if x.suffix in {".tmp", ".part"}]
        assert [] == rest, fault
    return error


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
