"""
Real programs that hang, each in one way, and what is said about them.

Quiet ones are started together and looked at once; those that compute are
looked at alone, so that they do not take the processor from each other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from distdebug.capture import capture_node
from distdebug.causes import Cause
from distdebug.findings import Finding
from distdebug.stacks import ProcessStacks, explain_stacks


pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        sys.platform != "linux", reason="hung processes are looked at on Linux"
    ),
    pytest.mark.skipif(
        shutil.which("py-spy", path=Path(sys.executable).parent) is None
        and shutil.which("py-spy") is None,
        reason="py-spy is not installed",
    ),
]

PROGRAMS = Path(__file__).with_name("programs") / "hangs"

# Program, cause, and the function that is named.
QUIET = [
    ("file_fifo", Cause.IO_WAIT, "load_shard"),
    ("file_read", Cause.IO_WAIT, "next_record"),
    ("future_result", Cause.FUTURE_WAIT, "gather"),
    ("gil_held", Cause.GIL_CONTENTION, "call_driver"),
    ("gil_held_by_main", Cause.GIL_CONTENTION, "close_communicator"),
    ("import_lock", Cause.IMPORT_LOCK, "load"),
    ("lock_cycle", Cause.LOCK_DEADLOCK, ("pay", "refund")),
    ("lock_main", Cause.LOCK_DEADLOCK, "update"),
    ("join_thread", Cause.IO_WAIT, "upload"),
    ("loop_idle", Cause.EVENT_LOOP_IDLE, "<module>"),
    ("loop_stalled", Cause.EVENT_LOOP_STALL, "handle"),
    ("queue_get", Cause.QUEUE_WAIT, "next_batch"),
    ("queue_processes", Cause.QUEUE_WAIT, "next_batch"),
    ("sleeping", Cause.SLEEPING, "back_off"),
    ("sleeping_often", Cause.SLEEPING, "wait_for_flag"),
    ("socket_recv", Cause.IO_WAIT, "ask"),
    ("stopped", Cause.STOPPED, "<module>"),
    ("subprocess_pipe", Cause.SUBPROCESS_WAIT, "list_files"),
    ("subprocess_wait", Cause.SUBPROCESS_WAIT, "convert"),
    ("uninterruptible", Cause.UNINTERRUPTIBLE, "launch"),
    ("zombie", Cause.DEAD, None),
]

BUSY = [
    ("gil_convoy", Cause.GIL_CONTENTION, "augment"),
    ("native_spin", Cause.NATIVE_SPIN, "derive_key"),
    ("native_spin_locked", Cause.NATIVE_SPIN, "check"),
    ("python_loop", Cause.PYTHON_LOOP, "find_seed"),
]

# Scenario, cause, ranks, and the function.
JOBS = [
    ("backward", Cause.SLEEPING, (2,), "wait_for_user"),
    ("checkpoint", Cause.CHECKPOINTING, (0,), "save_model"),
    ("crossed", Cause.P2P_DEADLOCK, (0, 1, 2, 3), "crossed"),
    ("loader", Cause.DATALOADER_WAIT, (1,), "read_shard"),
    ("mismatch", Cause.TYPE_MISMATCH, (0,), "log_metrics"),
    pytest.param(
        *("outlier", Cause.IO_WAIT, (3,), "read_labels"),
        marks=pytest.mark.smoke,
    ),
    ("rendezvous", Cause.RENDEZVOUS_WAIT, (0, 1, 2), "run"),
    ("spin", Cause.PYTHON_LOOP, (1,), "pack_sequences"),
]


@contextlib.contextmanager
def hung(
    program: str, folder: Path, *arguments: str, reports: int = 1
) -> Iterator[list[int]]:
    """
    A program in the state that it is about, and the processes that reported.
    """
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, PROGRAMS / f"{program}.py", *arguments, folder],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            pids = []
            for _ in range(reports):
                words = process.stdout.readline().split()
                assert ["ready"] == words[:1], f"{program} died"
                pids.append(int(words[-1]) if words[1:] else process.pid)
            yield pids
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def look(pids: Sequence[int]) -> dict[int, ProcessStacks]:
    """
    What these processes do, as seen several times.
    """
    capture = capture_node(pids=pids, interval_s=0.7)
    return {process.pid: process for process in capture.stacks}


def wait_until_still(pids: Sequence[int]) -> None:
    """
    Wait until a job does not get on any more.
    """
    for _ in range(20):
        seen = capture_node(pids=pids, samples=2, interval_s=0.3).stacks
        mains = [process.main_thread for process in seen]
        moves = [t.activity and t.activity.has_moved for t in mains if t]
        if not any(moves):
            return


def function_of(finding: Finding) -> str | None:
    """
    The function that a finding names, without its class.
    """
    if finding.location is None:
        return None

    return finding.location.function.rpartition(".")[2]


def children_of(pids: Sequence[int]) -> list[int]:
    """
    The processes that these started.
    """
    found = []
    for pid in pids:
        for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, tasks.read_text().split())
    return found


@pytest.fixture(scope="module", name="quiet")
def seen_together(tmp_path_factory):
    """
    All programs that wait, looked at once.
    """
    folder = tmp_path_factory.mktemp("quiet")
    names = [name for name, _, _ in QUIET]
    if shutil.which("cc") is None:
        names.remove("uninterruptible")
    with contextlib.ExitStack() as stack:
        pids = {
            name: stack.enter_context(hung(name, folder / name))[0]
            for name in names
        }
        seen = look(list(pids.values()))
    return {name: seen[pid] for name, pid in pids.items()}


@pytest.mark.smoke
@pytest.mark.parametrize(("program", "cause", "function"), QUIET)
def test_quiet(quiet, program, cause, function):
    """
    What a program waits for is named, and the line it waits at.
    """
    if program not in quiet:
        pytest.skip("there is no C compiler")

    first = explain_stacks([quiet[program]])[0]

    assert cause is first.cause
    assert function_of(first) in (
        function if isinstance(function, tuple) else (function,)
    )
    assert first.remedy
    assert first.evidence[0].source


@pytest.mark.parametrize(("program", "cause", "function"), BUSY)
def test_busy(tmp_path, program, cause, function):
    """
    Loops in Python, native code, and threads that hog the interpreter are
    told from each other.
    """
    with hung(program, tmp_path / program) as pids:
        seen = look(pids)

    first = explain_stacks(seen.values())[0]

    assert (cause, function) == (first.cause, function_of(first))


@pytest.mark.smoke
def test_cycle(quiet):
    """
    Of a cycle of locks, both lines are named.
    """
    (found,) = explain_stacks([quiet["lock_cycle"]])

    assert "pay" in found.summary
    assert "refund" in found.summary


@pytest.mark.parametrize(("scenario", "cause", "ranks", "function"), JOBS)
def test_job(tmp_path, scenario, cause, ranks, function):
    """
    The ranks that are to blame are named, with their own cause and line.
    """
    pytest.importorskip("torch")
    reports = 3 if scenario == "rendezvous" else 4
    with hung("job", tmp_path / "job", scenario, reports=reports) as pids:
        known = mains = list(pids)
        if scenario == "loader":
            # A worker reported; ranks are the parents of workers.
            mains = children_of([os.getpgid(pids[0])])
            known = [*mains, *children_of(mains)]
        # They report before they enter what they hang in.
        wait_until_still(mains)
        seen = look(known)

    first = explain_stacks(seen.values())[0]

    assert (cause, ranks) == (first.cause, first.ranks)
    assert function == function_of(first)


@pytest.mark.parametrize(
    ("scenario", "ranks"), [("healthy", None), ("straggler", (3,))]
)
def test_moving(tmp_path, scenario, ranks):
    """
    A job that trains is not said to hang; whom the others wait for is named.
    """
    pytest.importorskip("torch")
    with hung("job", tmp_path / "job", scenario, reports=4) as pids:
        seen = look(pids)

    (found,) = explain_stacks(seen.values())

    assert Cause.PROGRESSING is found.cause
    assert ranks is None or ranks == found.ranks


def test_compiler(tmp_path):
    """
    A compiler that torch started is told from other children.
    """
    pytest.importorskip("torch")
    with hung("compiler", tmp_path / "compiler") as pids:
        seen = look(pids)

    first = explain_stacks(seen.values())[0]

    assert (Cause.COMPILING, "step") == (first.cause, function_of(first))


@pytest.mark.parametrize("program", ["compute", "evaluate"])
def test_computing(tmp_path, program):
    """
    Nor is a process that computes, also if that is in one native function.
    """
    with hung(program, tmp_path / program) as pids:
        seen = look(pids)

    (found,) = explain_stacks(seen.values())

    assert Cause.PROGRESSING is found.cause
