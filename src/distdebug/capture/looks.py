"""
What is one process doing, and is it the same as a moment ago?

Nothing here stops a process: py-spy reads its memory while it runs, and the
kernel tells the rest to anybody.
"""

from __future__ import annotations

import time

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import attrs

from ..processes.model import ProcessState, Worker
from ..processes.procfs import parse_stat, read_proc
from ..processes.threads import (
    ThreadFacts,
    idle_seconds,
    read_state,
    read_system_call,
    read_threads,
)
from ..stacks.model import (
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
)
from .model import Attempt, CaptureStatus
from .permission.status import HAS_ENDED, status_of_state
from .pyspy import dump_python
from .values import Digest


__all__ = ["Look", "describe_process", "no_look", "take_look"]


@attrs.frozen(kw_only=True)
class Look:
    """
    What was seen of one process at one moment.

    Attributes:
        when: By the monotonic clock, in seconds.

        state: What the kernel told; ``None`` if it told nothing, or the
            process is gone.

        facts: What the kernel told of every thread.

        threads: What py-spy saw.

        attempt: How that went.

        values: What stands for the variables of each of these threads, if
            that was looked at.
    """

    when: float
    state: ProcessState | None
    facts: Mapping[int, ThreadFacts]
    threads: tuple[ThreadStack, ...]
    attempt: Attempt
    values: tuple[Digest, ...] = ()


def take_look(worker: Worker, *, timeout_s: float) -> Look:
    """
    Look at a process once.

    Args:
        worker: The process.

        timeout_s: How long it may take, in seconds.
    """
    when = time.monotonic()
    state = _without_us(read_state(worker.pid))
    told = status_of_state(state, worker.pid)
    # One that could not be read when it was named has no time of birth.
    if state and worker.start_ticks not in {0, state.start_ticks}:
        state, told = None, (CaptureStatus.EXITED, HAS_ENDED)
    if told and (state is None or state.has_ended):
        status, remedy = told
        is_unread = state is None and status is not CaptureStatus.EXITED
        nothing = Attempt(
            tool="proc",
            status=status,
            detail="it is there, but /proc tells nothing" if is_unread else "",
            remedy=remedy,
        )
        # The main thread may have ended, and others go on.
        facts = read_threads(worker.pid) if state else {}
        return Look(
            when=when, state=state, facts=facts, threads=(), attempt=nothing
        )

    # Before py-spy, so that a second look tells what happened between.
    facts = read_threads(worker.pid)
    # Whoever waits gets no new values.
    is_busy = any(f.state == "R" for f in facts.values())
    threads, attempt, values = dump_python(
        worker.pid, state, timeout_s=timeout_s, values=is_busy
    )
    return Look(
        when=when,
        state=state,
        facts=facts,
        threads=threads,
        attempt=attempt,
        values=values,
    )


def _without_us(state: ProcessState | None) -> ProcessState | None:
    """
    A process that another collector of ours holds is not stopped for long.
    """
    if state is None or not state.tracer_pid:
        return state

    stat = parse_stat(read_proc(f"/proc/{state.tracer_pid}/stat"))
    parent = stat.parent_pid if stat else 0
    command = read_proc(f"/proc/{parent}/cmdline") or b""
    if b"/guard_program.py\0" not in command:
        return state

    return attrs.evolve(state, letter="S", tracer_pid=0)


def no_look() -> Look:
    """
    Tell that even the kernel did not answer in time.
    """
    return Look(
        when=time.monotonic(),
        state=None,
        facts={},
        threads=(),
        attempt=Attempt(
            tool="proc",
            status=CaptureStatus.TIMED_OUT,
            detail="the kernel did not answer about this process",
            remedy="look at it with: ps -o pid,stat,wchan:32,cmd -p PID; a "
            "file system or a driver does not answer",
        ),
    )


def describe_process(
    worker: Worker, looks: Sequence[Look], *, host: str
) -> ProcessStacks:
    """
    Put together what several looks at a process tell.

    Args:
        worker: The process.

        looks: At least one, in the order of time.

        host: Name of this node.

    Returns:
        The last stacks that were seen, and what became of each thread.
    """
    state, letter = looks[-1].state, _letter(looks[-1])
    # One that ended meanwhile, or could not be read this time, keeps what was
    # seen of it.
    while len(looks) > 1 and not looks[-1].threads:
        looks = looks[:-1]
    return ProcessStacks(
        pid=worker.pid,
        source=looks[-1].attempt.tool,
        threads=tuple(_threads(worker.pid, looks)),
        rank=worker.rank,
        world_size=worker.world_size,
        coordinates=worker.coordinates,
        role=worker.role,
        job=worker.job,
        host=host,
        command=worker.title,
        parent_pid=worker.parent_pid,
        state=letter,
        tracer_pid=(state.tracer_pid if state else 0) or None,
        taken=time.time(),
    )


def _letter(look: Look) -> str:
    if look.state is not None:
        return look.state.letter

    # That nobody answered does not mean that it is gone.
    return "X" if look.attempt.status is CaptureStatus.EXITED else ""


def _threads(pid: int, looks: Sequence[Look]) -> Iterable[ThreadStack]:
    last = looks[-1]
    seen = [{_number(pid, t): t for t in look.threads} for look in looks]
    values = _values(pid, looks)
    unlocked = [not any(t.owns_gil for t in look.threads) for look in looks]
    # A thread that is not of Python has no stack, but it too works or waits.
    for number in (*seen[-1], *(t for t in last.facts if t not in seen[-1])):
        facts = last.facts.get(number)
        thread = seen[-1].get(number) or ThreadStack(
            name=facts.name if facts else "", frames=()
        )
        yield attrs.evolve(
            thread,
            thread_id=number,
            is_main=number == pid,
            state=facts.state if facts else "",
            system_call=_system_call(pid, number),
            idle_s=idle_seconds(pid, number),
            activity=_activity(
                number,
                looks,
                [s.get(number) for s in seen],
                values.get(number, []),
                unlocked,
            ),
        )


def _number(pid: int, thread: ThreadStack) -> int:
    # Before Python 3.11 py-spy may not know the number in the system.
    if thread.is_main or thread.thread_id is None:
        return pid

    return thread.thread_id


def _system_call(pid: int, tid: int) -> SystemCall | None:
    found = read_system_call(pid, tid)
    return SystemCall(name=found[0], target=found[1]) if found else None


def _values(pid: int, looks: Sequence[Look]) -> Mapping[int, list[Digest]]:
    """
    What stood for the variables of each thread, whenever it was looked at.
    """
    found: dict[int, list[Digest]] = {}
    for look in looks:
        for thread, value in zip(look.threads, look.values, strict=False):
            found.setdefault(_number(pid, thread), []).append(value)
    return found


def _activity(
    number: int,
    looks: Sequence[Look],
    seen: Sequence[ThreadStack | None],
    values: Sequence[Digest],
    unlocked: Sequence[bool],
) -> ThreadActivity | None:
    first, last = looks[0], looks[-1]
    before, after = first.facts.get(number), last.facts.get(number)
    if before is None or after is None or first is last:
        return None

    stacks = [t.frames for t in seen if t is not None]
    functions = [[(f.name, f.filename) for f in frames] for frames in stacks]
    return ThreadActivity(
        seconds=last.when - first.when,
        voluntary=after.voluntary - before.voluntary,
        involuntary=after.involuntary - before.involuntary,
        cpu_s=after.cpu_s - before.cpu_s,
        has_moved=_differ(stacks),
        has_left=_differ(functions),
        has_new_values=_differ([v.whole for v in values]),
        has_returned=_has_returned(stacks, values),
        has_let_go=_has_let_go(seen, unlocked),
    )


def _has_returned(
    stacks: Sequence[Sequence[StackFrame]], values: Sequence[Digest]
) -> bool | None:
    """
    Whether those went on that had called the innermost function.
    """
    lines = _differ([frames[1:] for frames in stacks])
    return lines or _differ([v.callers for v in values])


def _has_let_go(
    seen: Sequence[ThreadStack | None], unlocked: Sequence[bool]
) -> bool | None:
    """
    Whether a thread was seen while nobody held the interpreter lock.
    """
    known = [
        is_unlocked
        for thread, is_unlocked in zip(seen, unlocked, strict=True)
        if thread is not None and thread.owns_gil is not None
    ]
    return any(known) if known else None


def _differ(seen: Sequence[object]) -> bool | None:
    return any(a != b for a, b in pairwise(seen)) if len(seen) > 1 else None
