"""
Sample a process without stopping it, and compare samples to find progress.

py-spy reads the memory of the process while it runs; everything else comes
from files in ``/proc`` that every user may read.
"""

from __future__ import annotations

import json
import re
import time

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs

from .._proc import find_tool, run_tool
from ..processes import (
    BlockedCall,
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
    SystemCall,
    ThreadActivity,
    ThreadStack,
    parse_stacks,
)
from .blockers import ENDED_REMEDY, explain_failure, explain_state
from .model import Attempt, CaptureStatus


_MAX_DIGEST_FRAMES = 8
_MAX_VARIABLES = 64
_MAX_TEXT = 64
# Immutable values.  The text of others can change through another thread.
_NUMBER = re.compile(r"-?\d[\d.]*(?:e[+-]?\d+)?|True|False|None")
_MALFORMED = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


class Digest(NamedTuple):
    """
    Hashes of the local variables of a thread.

    Attributes:
        whole: Of its innermost frames.

        callers: Of the same frames without the innermost one, which sets its
            own variables even if it never returns.
    """

    whole: int
    callers: int


def parse_digests(output: str) -> tuple[Digest, ...]:
    """
    Return a digest of the local variables of each thread.

    A digest changes if a variable of the innermost frames was set to a new
    value.  Digests of different processes cannot be compared.

    Args:
        output: Output of ``py-spy dump --json --locals``.

    Returns:
        One digest per thread, in the order of py-spy; empty if the output is
        malformed.
    """
    try:
        threads = json.loads(output)
        stacks = [thread["frames"] for thread in threads]
        return tuple(Digest(_hash(x), _hash(x[1:])) for x in stacks)
    except _MALFORMED:
        return ()


def _hash(frames: list[Mapping[str, Any]]) -> int:
    return hash(tuple(_variables(frames)))


def _variables(frames: list[Mapping[str, Any]]) -> Iterator[object]:
    for frame in frames[:_MAX_DIGEST_FRAMES]:
        yield frame["name"], frame["line"]
        for variable in (frame.get("locals") or ())[:_MAX_VARIABLES]:
            text = variable.get("repr") or ""
            is_number = _NUMBER.fullmatch(text[:_MAX_TEXT])
            value = text[:_MAX_TEXT] if is_number else ""
            yield variable["name"], variable["addr"], value


_MAX_TRIES = 3
# In deep recursion, two of five tries fail with EFAULT: py-spy reads a frame
# that has returned meanwhile.
_MAX_TRIES_AT_EFAULT = 10
_EFAULT_TEXT = "(os error 14)"
# A process that changed while py-spy read it may be readable the next time,
# and even be recognized as Python.
_RETRYABLE = {
    CaptureStatus.TOOL_FAILED,
    CaptureStatus.EXITED,
    CaptureStatus.UNSUPPORTED_PYTHON,
}


class PythonDump(NamedTuple):
    """
    Python stacks of a process, read by py-spy.

    Attributes:
        threads: Its threads; empty if it could not be read.

        attempt: How that went.

        digests: One per thread; empty if not requested or not available.
    """

    threads: tuple[ThreadStack, ...]
    attempt: Attempt
    digests: tuple[Digest, ...] = ()


def dump_python(
    pid: int,
    state: ProcessState | None,
    *,
    timeout_s: float,
    with_digests: bool = False,
) -> PythonDump:
    """
    Read the Python stacks of a process with py-spy, with retries.

    Args:
        pid: A process of this node.

        state: State of the process.

        timeout_s: Time limit, in seconds.

        with_digests: Whether to read local variables too; only hashes of their
            values are kept.
    """
    start = time.monotonic()
    best = PythonDump((), Attempt(tool="py-spy", status=CaptureStatus.SKIPPED))
    is_final, failures, cut_off = False, 0, 0
    while not is_final:
        left_s = start + timeout_s - time.monotonic()
        # If reading variables fails, the next try does without.
        reads_digests = with_digests and not failures
        share_s = max(left_s, 0.1) / (2 if reads_digests else 1)
        dump = _dump_once(pid, state, share_s, with_digests=reads_digests)
        if dump.threads:
            best, failures, cut_off = dump, 0, cut_off + 1
            is_late = time.monotonic() >= start + timeout_s
            is_whole = not _is_truncated(dump.threads)
            is_final = is_whole or is_late or cut_off == _MAX_TRIES
        else:
            best, failures = best if cut_off else dump, failures + 1
            is_torn = _EFAULT_TEXT in dump.attempt.detail
            most = _MAX_TRIES_AT_EFAULT if is_torn else _MAX_TRIES
            may_help = reads_digests or dump.attempt.status in _RETRYABLE
            is_final = failures >= most or not may_help

    attempt = attrs.evolve(best.attempt, seconds=time.monotonic() - start)
    return best._replace(attempt=attempt)


def _is_truncated(threads: Sequence[ThreadStack]) -> bool:
    """
    Return whether the stack of a main thread lacks its ``<module>`` frame.

    A generator that yields while py-spy follows its callers has none from then
    on.  A thread that waits does not change meanwhile.  Callers of the module
    (``python -m``) do not matter.
    """
    mains = [t for t in threads if t.is_main and t.active and t.frames]
    return any("<module>" not in {f.name for f in t.frames} for t in mains)


def _dump_once(
    pid: int,
    state: ProcessState | None,
    timeout_s: float,
    *,
    with_digests: bool,
) -> PythonDump:
    tool = find_tool("py-spy")
    if tool is None:
        return PythonDump((), explain_failure("py-spy", pid, 127, "", state))

    argv = [tool, "dump", "--json", "--nonblocking", "--full-filenames"]
    if with_digests:
        argv.append("--locals")
    try:
        result = run_tool([*argv, "--pid", str(pid)], timeout_s=timeout_s)
    except OSError as exc:
        broken = Attempt(
            tool="py-spy",
            status=CaptureStatus.TOOL_FAILED,
            detail=f"py-spy cannot be run: {exc}",
        )
        return PythonDump((), broken)

    problem = result.complaint
    if result.status == 0:
        try:
            return _parse_dump(result.output, with_digests=with_digests)
        except ValueError as exc:
            problem = f"py-spy wrote something unexpected: {exc}"
    attempt = explain_failure("py-spy", pid, result.status, problem, state)
    return PythonDump((), attempt)


def _parse_dump(output: str, *, with_digests: bool) -> PythonDump:
    (process,) = parse_stacks(output, "py-spy")
    digests = parse_digests(output) if with_digests else ()
    is_whole = len(digests) == len(process.threads)
    attempt = Attempt(tool="py-spy", status=CaptureStatus.OK)
    return PythonDump(process.threads, attempt, digests if is_whole else ())


@attrs.frozen
class Sample:
    """
    State and stacks of one process at one moment.

    Attributes:
        when: Time by the monotonic clock, in seconds.

        state: State of the process; ``None`` if it has ended or could not be
            read.

        facts: Counters of every thread, by thread ID.

        threads: Stacks from py-spy.

        attempt: How that went.

        digests: One per thread in *threads*; empty if not requested.

        calls: System calls that threads are blocked in, by thread ID.
    """

    when: float
    state: ProcessState | None
    facts: Mapping[int, ThreadFacts]
    threads: tuple[ThreadStack, ...]
    attempt: Attempt
    digests: tuple[Digest, ...] = ()
    calls: Mapping[int, BlockedCall | None] = MappingProxyType({})


def take_sample(worker: Worker, *, timeout_s: float) -> Sample:
    """
    Take one sample of a process.

    Args:
        timeout_s: Time limit, in seconds.
    """
    when = time.monotonic()
    state = _ignore_own_tracer(read_state(worker.pid))
    blocker = explain_state(state, worker.pid)
    # A worker that could not be read has start_ticks 0.
    if state and worker.start_ticks not in {0, state.start_ticks}:
        state, blocker = None, (CaptureStatus.EXITED, ENDED_REMEDY)
    if blocker and (state is None or state.has_ended):
        status, remedy = blocker
        is_unread = state is None and status is not CaptureStatus.EXITED
        detail = "it exists, but /proc has no information about it"
        nothing = Attempt(
            tool="proc",
            status=status,
            detail=detail if is_unread else "",
            remedy=remedy,
        )
        # The main thread may have ended, and others go on.
        facts = read_threads(worker.pid) if state else {}
        return Sample(when, state, facts, (), nothing)

    # Before py-spy, so that counters of two samples cover the same interval.
    facts = read_threads(worker.pid)
    # Variables of threads that wait do not change.
    is_busy = any(f.state == "R" for f in facts.values())
    threads, attempt, digests = dump_python(
        worker.pid, state, timeout_s=timeout_s, with_digests=is_busy
    )
    # Now, as the process may have ended at the next look.
    calls = {number: read_system_call(worker.pid, number) for number in facts}
    return Sample(when, state, facts, threads, attempt, digests, calls)


def _ignore_own_tracer(state: ProcessState | None) -> ProcessState | None:
    """
    Hide a tracer that is a tool of another distdebug, as it detaches soon.
    """
    if state is None or not state.tracer_pid:
        return state

    stat = parse_stat(read_proc(f"/proc/{state.tracer_pid}/stat"))
    parent = stat.parent_pid if stat else 0
    command = read_proc(f"/proc/{parent}/cmdline") or b""
    if b"/guard_program.py\0" not in command:
        return state

    return attrs.evolve(state, letter="S", tracer_pid=0)


def timed_out_sample() -> Sample:
    """
    Return a sample that says that the kernel did not answer in time.
    """
    attempt = Attempt(
        tool="proc",
        status=CaptureStatus.TIMED_OUT,
        detail="the kernel did not answer about this process",
        remedy="look at it with: ps -o pid,stat,wchan:32,cmd -p PID; a "
        "file system or a driver does not answer",
    )
    return Sample(time.monotonic(), None, {}, (), attempt)


def describe_process(
    worker: Worker, samples: Sequence[Sample], *, host: str
) -> ProcessStacks:
    """
    Combine several samples of a process.

    Args:
        samples: At least one, in the order of time.

        host: Name of this node.

    Returns:
        The last stacks that could be read, with the activity of each thread
        since the first sample.
    """
    state, letter = samples[-1].state, _state_letter(samples[-1])
    # If the last samples have no stacks, use the last one that has.
    while len(samples) > 1 and not samples[-1].threads:
        samples = samples[:-1]
    return ProcessStacks(
        pid=worker.pid,
        source=samples[-1].attempt.tool,
        threads=tuple(_describe_threads(worker.pid, samples)),
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


def _state_letter(sample: Sample) -> str:
    if sample.state is not None:
        return sample.state.letter

    # A timeout does not mean that the process has ended.
    return "X" if sample.attempt.status is CaptureStatus.EXITED else ""


class _SampledThread(NamedTuple):
    """
    A thread as one sample shows it.

    Attributes:
        is_gil_free: Whether no thread held the GIL.
    """

    stack: ThreadStack
    digest: Digest | None
    is_gil_free: bool


def _sampled_threads(pid: int, sample: Sample) -> dict[int, _SampledThread]:
    is_gil_free = not any(t.owns_gil for t in sample.threads)
    digests = sample.digests or repeat(None)
    # Before Python 3.11 py-spy may not know the thread ID of the system.
    return {
        pid if stack.is_main else stack.thread_id or pid: _SampledThread(
            stack, digest, is_gil_free
        )
        for stack, digest in zip(sample.threads, digests, strict=False)
    }


def _describe_threads(
    pid: int, samples: Sequence[Sample]
) -> Iterable[ThreadStack]:
    last = samples[-1]
    threads = [_sampled_threads(pid, sample) for sample in samples]
    # Threads without Python stack have counters, too.
    for number in dict.fromkeys((*threads[-1], *last.facts)):
        facts, call = last.facts.get(number), last.calls.get(number)
        looks = [x[number] for x in threads if number in x]
        thread = ThreadStack(name=facts.name if facts else "", frames=())
        if number in threads[-1]:
            thread = looks[-1].stack
        yield attrs.evolve(
            thread,
            thread_id=number,
            is_main=number == pid,
            state=facts.state if facts else "",
            system_call=SystemCall(**call._asdict()) if call else None,
            idle_s=idle_seconds(pid, number),
            activity=_thread_activity(number, samples, looks),
        )


def _thread_activity(
    number: int, samples: Sequence[Sample], looks: Sequence[_SampledThread]
) -> ThreadActivity | None:
    first, last = samples[0], samples[-1]
    before, after = first.facts.get(number), last.facts.get(number)
    if before is None or after is None or first is last:
        return None

    stacks = [x.stack.frames for x in looks]
    functions = [[(f.name, f.filename) for f in frames] for frames in stacks]
    digests = [x.digest for x in looks if x.digest is not None]
    # py-spy does not always know who holds the GIL.
    is_free = [x.is_gil_free for x in looks if x.stack.owns_gil is not None]
    return ThreadActivity(
        seconds=last.when - first.when,
        voluntary=after.voluntary - before.voluntary,
        involuntary=after.involuntary - before.involuntary,
        cpu_s=after.cpu_s - before.cpu_s,
        has_moved=_has_changed(stacks),
        has_left=_has_changed(functions),
        has_new_values=_has_changed([v.whole for v in digests]),
        # A caller of the innermost function went on.
        has_returned=_has_changed([frames[1:] for frames in stacks])
        or _has_changed([v.callers for v in digests]),
        has_let_go=any(is_free) if is_free else None,
        io_bytes=None
        if after.io_bytes is None or before.io_bytes is None
        else after.io_bytes - before.io_bytes,
    )


def _has_changed(values: Sequence[object]) -> bool | None:
    return (
        any(a != b for a, b in pairwise(values)) if len(values) > 1 else None
    )
