"""
What is one process doing, and is it the same as a moment ago?

Nothing here stops a process: py-spy reads its memory while it runs, and the
kernel tells the rest to anybody.
"""

from __future__ import annotations

import itertools
import json
import re
import time

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import attrs

from ..processes import (
    ProcessState,
    ThreadFacts,
    Worker,
    idle_seconds,
    parse_stat,
    read_proc,
    read_state,
    read_system_call,
    read_threads,
)
from ..stacks import (
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    parse_stacks,
)
from .blockers import HAS_ENDED, explain_failure, status_of_state
from .model import Attempt, CaptureStatus
from .tool import ToolOutput, find_tool, run_tool


_FRAMES = 8
_VARIABLES = 64
_MOST_TEXT = 64
# What cannot change while it stays in its place in memory; others may be
# changed by another thread.
_NUMBER = re.compile(r"-?\d[\d.]*(?:e[+-]?\d+)?|True|False|None")
_MALFORMED = (
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)


class Digest(NamedTuple):
    """
    What stands for the variables of a thread.

    Attributes:
        whole: For those of its innermost functions.

        callers: For the same, but of the innermost one, which sets its own
            also if it never returns.
    """

    whole: int
    callers: int


def digests_of(output: str) -> tuple[Digest, ...]:
    """
    What stands for the local variables of each thread?

    Args:
        output: What ``py-spy dump --json --locals`` wrote.

    Returns:
        Numbers per thread, in the order of py-spy.  In this process, they are
        others if a variable of the innermost frames was set anew.
        Nothing if the output is not what was expected.
    """
    try:
        threads = json.loads(output)
        return tuple(_digest(t["frames"]) for t in threads)
    except _MALFORMED:
        return ()


def _digest(frames: list[Mapping[str, Any]]) -> Digest:
    return Digest(
        whole=hash(tuple(_variables(frames))),
        callers=hash(tuple(_variables(frames[1:]))),
    )


def _variables(frames: list[Mapping[str, Any]]) -> Iterator[object]:
    for frame in frames[:_FRAMES]:
        yield frame["name"], frame["line"]
        for variable in (frame.get("locals") or ())[:_VARIABLES]:
            text = variable.get("repr") or ""
            is_number = _NUMBER.fullmatch(text[:_MOST_TEXT])
            value = text[:_MOST_TEXT] if is_number else ""
            yield variable["name"], variable["addr"], value


_TRIES = 3
# Two of five tries at a deep recursion come to a function that has returned
# meanwhile: what it holds lies at no address (EFAULT).
_TRIES_IF_MOVING = 10
_MOVES = "(os error 14)"
# Whoever changes under the eyes of py-spy may be read the next time, and even
# found to be Python.
_WORTH_ANOTHER_TRY = {
    CaptureStatus.TOOL_FAILED,
    CaptureStatus.EXITED,
    CaptureStatus.UNSUPPORTED_PYTHON,
}


class PythonDump(NamedTuple):
    """
    What py-spy saw of a process.

    Attributes:
        threads: Its threads, none if it could not be read.

        attempt: How that went.

        values: What stands for the variables of each of the threads; nothing
            if that was not asked for, or not seen.
    """

    threads: tuple[ThreadStack, ...]
    attempt: Attempt
    values: tuple[Digest, ...] = ()


def dump_python(
    pid: int,
    state: ProcessState | None,
    *,
    timeout_s: float,
    values: bool = False,
) -> PythonDump:
    """
    Where is every Python thread of a process right now?

    Args:
        pid: A process of this node.

        state: What the kernel told about it.

        timeout_s: How long it may take, in seconds.

        values: Whether to see, too, if variables get new values; of the
            values themselves nothing is kept.

    Returns:
        What was seen.
    """
    start = time.monotonic()
    seen = _read(pid, state, timeout_s, values=values)
    for _ in range(_TRIES - 1):
        left_s = start + timeout_s - time.monotonic()
        if left_s <= 0 or not _is_cut_off(seen.threads):
            break
        again = _read(pid, state, left_s, values=values)
        seen = again if again.threads else seen

    attempt = attrs.evolve(seen.attempt, seconds=time.monotonic() - start)
    return seen._replace(attempt=attempt)


def _is_cut_off(threads: Sequence[ThreadStack]) -> bool:
    """
    Whether a generator gave way while py-spy followed its callers.

    From then on it has none.  Who waits does not change meanwhile.  What
    calls the module (``python -m``) does not matter.
    """
    mains = [t for t in threads if t.is_main and t.active and t.frames]
    return any("<module>" not in {f.name for f in t.frames} for t in mains)


def _read(
    pid: int, state: ProcessState | None, timeout_s: float, *, values: bool
) -> PythonDump:
    """
    Try until py-spy gets hold of the process.
    """
    start = time.monotonic()
    for number in itertools.count(1):
        left_s = max(start + timeout_s - time.monotonic(), 0.1)
        # Nothing is lost if that part does not work.
        with_values = values and number == 1
        dump = _dump_once(
            pid,
            state,
            left_s / 2 if with_values else left_s,
            values=with_values,
        )
        if dump.threads or number >= _most_tries(dump.attempt):
            break
        if _is_final(dump.attempt) and not with_values:
            break
    return dump


def _most_tries(attempt: Attempt) -> int:
    return _TRIES_IF_MOVING if _MOVES in attempt.detail else _TRIES


def _is_final(attempt: Attempt) -> bool:
    return attempt.status not in _WORTH_ANOTHER_TRY


def _dump_once(
    pid: int, state: ProcessState | None, timeout_s: float, *, values: bool
) -> PythonDump:
    tool = find_tool("py-spy")
    if tool is None:
        missing = CaptureStatus.TOOL_MISSING
        remedy = "pip install py-spy"
        return PythonDump(
            (), Attempt(tool="py-spy", status=missing, remedy=remedy)
        )

    argv = [tool, "dump", "--json", "--nonblocking", "--full-filenames"]
    if values:
        argv.append("--locals")
    try:
        got = run_tool(
            [*argv, "--pid", str(pid)], timeout_s=timeout_s, is_secret=values
        )
    except OSError as exc:
        failed = CaptureStatus.TOOL_FAILED
        detail = f"py-spy cannot be run: {exc}"
        return PythonDump(
            (), Attempt(tool="py-spy", status=failed, detail=detail)
        )

    dump = _parsed(pid, state, got)
    digests = digests_of(got.output) if values and dump.threads else ()
    is_whole = len(digests) == len(dump.threads)
    return dump._replace(values=digests) if is_whole else dump


def _parsed(
    pid: int, state: ProcessState | None, got: ToolOutput
) -> PythonDump:
    problem = got.complaint
    if got.status == 0:
        try:
            (process,) = parse_stacks(got.output, "py-spy")
        except ValueError as exc:
            problem = f"py-spy wrote something unexpected: {exc}"
        else:
            ok = CaptureStatus.OK
            return PythonDump(
                process.threads, Attempt(tool="py-spy", status=ok)
            )

    status, detail, remedy = explain_failure(
        "py-spy", pid, got.status, problem, state
    )
    return PythonDump(
        (),
        Attempt(tool="py-spy", status=status, detail=detail, remedy=remedy),
    )


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
