"""
Where is a process, in its own words?

Nothing here needs the right to trace a process: it is asked by a signal
(:func:`ask_process`), or looks at itself (:func:`own_stacks`).
"""

from __future__ import annotations

import os
import time

from collections.abc import Iterator

import attrs

from ...processes.model import ProcessState
from ...processes.procfs import (
    list_numbers,
    parse_stat,
    parse_status,
    read_proc,
)
from ...processes.threads import read_state
from ...stacks.formats.faulthandler import parse_faulthandler
from ...stacks.model import ThreadStack
from ..model import Attempt, CaptureStatus
from ..permission.namespace import enter_namespace, proc_is_foreign
from ..permission.status import status_of_state
from .answers import Answers, NotAskedError, open_answers
from .knock import ThreadSignals, await_handled, knock, read_signals
from .own import own_stacks


__all__ = ["ask_process", "own_stacks"]

# How long a thread may take to fall asleep, and to answer, in seconds.
_SETTLE_S, _ANSWER_S = 0.05, 1.0
_PAUSE_S = 0.002

_MOST_THREADS = 512

# They know no Python, and the job needs them most.
_NATIVE = (
    *("cuda", "gloo", "jemalloc", "nccl", "ucx"),
    *("pt_gloo", "pt_nccl", "pt_tcpstore"),
)


def ask_process(
    pid: int,
    *,
    timeout_s: float = 5.0,
    start_ticks: int | None = None,
    also_running: bool = False,
) -> tuple[tuple[ThreadStack, ...], Attempt]:
    """
    Have the threads of a process tell where they are, one after the other.

    The process must have called
    :func:`~distdebug.flight_recorder.enable.enable_flight_recorder`; then
    everybody can ask who may send it signals.  A process that does not handle
    the signal does not get it.

    What a thread was waiting for goes on as far as the kernel can do that:
    ``sleep()`` of C ends early, as with any signal.

    Args:
        pid: A process of this node.

        timeout_s: How long it may take, in seconds.

        start_ticks: When it started, in clock ticks since boot, if nobody else
            is meant who may have got its number since.

        also_running: Whether to ask also threads that run just now.  A stack
            that changes under the hands of who writes it can end the process:
            it did, 5 times in 146,000, where threads did nothing but compile
            and run new code, and never elsewhere.

    Returns:
        The Python stacks of its threads, the main thread first, and how it
        went.
    """
    start = time.monotonic()
    threads: list[ThreadStack] = []
    try:
        state = _may_be_asked(pid, start_ticks)
        with open_answers(pid, state) as answers:
            talk = _Talk(pid, state, answers, start + timeout_s, threads)
            _ask_all(talk, also_running=also_running)
        attempt = _result(talk)
    except NotAskedError as exc:
        attempt = _attempt(exc.status, exc.detail, exc.remedy)
    except OSError as exc:
        attempt = _attempt(
            CaptureStatus.TOOL_FAILED, f"it could not be asked: {exc}"
        )
    seconds = time.monotonic() - start
    return tuple(threads), attrs.evolve(attempt, seconds=seconds)


@attrs.define
class _Talk:
    pid: int
    state: ProcessState
    answers: Answers
    deadline: float
    threads: list[ThreadStack]
    running: int = 0
    is_late: bool = False
    paused_s: float = 0.0


def _may_be_asked(pid: int, start_ticks: int | None) -> ProcessState:
    if proc_is_foreign():
        raise NotAskedError(
            CaptureStatus.OTHER_NAMESPACE,
            "/proc counts the processes of another PID namespace",
            enter_namespace(pid, 0),
        )
    if pid == os.getpid():
        raise NotAskedError(
            CaptureStatus.SKIPPED, "it is ourselves", "call own_stacks()"
        )

    state = read_state(pid)
    told = status_of_state(state, pid)
    if told is not None and told[0] is CaptureStatus.UNINTERRUPTIBLE:
        is_main = state is not None and pid in state.uninterruptible
        told = told if is_main else None
    if told is not None or state is None:
        status, remedy = told or (CaptureStatus.EXITED, "")
        raise NotAskedError(status, "it could not answer", remedy)
    if start_ticks not in {None, state.start_ticks}:
        raise NotAskedError(
            CaptureStatus.EXITED,
            "another process has its number now",
            "look at its exit status and its log",
        )
    return state


def _ask_all(talk: _Talk, *, also_running: bool) -> None:
    """
    Ask the main thread, then the others, until one does not answer.
    """
    for thread_id in _thread_ids(talk.pid):
        talk.is_late |= time.monotonic() >= talk.deadline
        if talk.is_late:
            break
        thread = _settled(talk, thread_id)
        if thread is None or not _can_answer(thread, talk.answers.signal):
            continue
        if thread.letter == "R" and not also_running:
            talk.running += 1
            continue
        _ask_one(talk, thread_id, thread.letter)


def _thread_ids(pid: int) -> Iterator[int]:
    others = list_numbers(f"/proc/{pid}/task")[:_MOST_THREADS]
    yield pid
    yield from (x for x in others if x != pid)


def _settled(talk: _Talk, thread_id: int) -> ThreadSignals | None:
    """
    A thread that runs may soon wait.
    """
    until = min(time.monotonic() + _SETTLE_S, talk.deadline)
    while True:
        thread = read_signals(talk.pid, thread_id)
        if thread is None or thread.letter != "R":
            return thread
        if time.monotonic() >= until:
            return thread
        time.sleep(_PAUSE_S)


def _can_answer(thread: ThreadSignals, signal: int) -> bool:
    bit = 1 << (signal - 1)
    return (
        thread.letter in "SR"
        and not (thread.pending | thread.blocked) & bit
        and not thread.name.casefold().startswith(_NATIVE)
    )


def _ask_one(talk: _Talk, thread_id: int, letter: str) -> None:
    number, before = talk.answers.signal, talk.answers.size
    start = time.monotonic()
    try:
        knock(talk.pid, thread_id, number, lambda: _check(talk))
    except ProcessLookupError:
        return

    talk.is_late = not await_handled(
        talk.pid,
        thread_id,
        number,
        lambda: talk.answers.size > before,
        min(start + _ANSWER_S, talk.deadline),
    )
    talk.paused_s = max(talk.paused_s, time.monotonic() - start)
    is_main = thread_id == talk.pid
    talk.threads += (
        attrs.evolve(
            thread,
            thread_id=thread_id,
            is_main=is_main,
            name=thread.name or ("MainThread" if is_main else ""),
            state=letter,
        )
        for thread in parse_faulthandler(talk.answers.read(before))
        if thread.frames
    )


def _check(talk: _Talk) -> None:
    """
    Is it the same process, and does it handle the signal, and nobody else?

    Raises:
        NotAskedError: It is not, or does not.
    """
    stat = parse_stat(read_proc(f"/proc/{talk.pid}/stat"))
    status = parse_status(read_proc(f"/proc/{talk.pid}/status"))
    if stat is None or stat.start_ticks != talk.state.start_ticks:
        raise NotAskedError(
            CaptureStatus.EXITED,
            "it has ended meanwhile",
            "look at its exit status and its log",
        )
    if status.get("TracerPid") != "0":
        raise NotAskedError(
            CaptureStatus.TRACED_BY_OTHER,
            "a debugger would get the signal",
            "detach the debugger",
        )
    if not int(status.get("SigCgt", "0"), 16) >> (talk.answers.signal - 1) & 1:
        raise NotAskedError(
            CaptureStatus.TOOL_MISSING,
            f"it no longer handles signal {talk.answers.signal}",
            "call distdebug.enable_flight_recorder() again",
        )


def _result(talk: _Talk) -> Attempt:
    running = f"{talk.running} of its threads run and were not asked"
    if talk.threads:
        notes = [running] if talk.running else []
        if not any(thread.is_main for thread in talk.threads):
            notes.append("its main thread did not answer")
        if talk.is_late:
            notes.append("not all of its threads answered in time")
        attempt = _attempt(CaptureStatus.OK, "; ".join(notes))
    elif talk.is_late:
        attempt = _attempt(
            CaptureStatus.TIMED_OUT,
            "it did not answer in time",
            "try again with a longer timeout_s",
        )
    elif talk.running:
        attempt = _attempt(
            CaptureStatus.SKIPPED,
            running,
            "ask_process(…, also_running=True), or py-spy",
        )
    else:
        attempt = _attempt(
            CaptureStatus.TOOL_FAILED,
            "it had nothing to say, or could not write it",
            "see whether /tmp is full (df /tmp)",
        )
    return attrs.evolve(attempt, paused_s=talk.paused_s)


def _attempt(status: CaptureStatus, detail: str, remedy: str = "") -> Attempt:
    return Attempt(
        tool="faulthandler", status=status, detail=detail, remedy=remedy
    )
