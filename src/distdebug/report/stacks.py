"""
Build the section on stacks: merged tree, threads, downloads.

Its size stays bounded for any number of processes and any depth.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from .._text import clean
from ..diagnosis import DiagnosisInputs, combine_stacks, inputs_of
from ..findings import Diagnosis
from ..stacks import (
    ProcessStacks,
    StackFrame,
    StackTree,
    ThreadStack,
    is_background,
    is_native,
    merge_stacks,
    short_kernel_name,
    to_collapsed,
    to_speedscope,
)
from ..usercode import is_user_frame
from .format import Section
from .stack_tree import build_picture, describe_absent, frame_line


# Downloads repeat the whole stack per leaf, so a deep tree is too large.
_MAX_DOWNLOAD_FRAMES = 20_000
_MAX_DOWNLOAD_SIZE = 400_000


def make_downloads(tree: StackTree) -> Mapping[str, str]:
    """
    Export the merged stacks for other tools.

    Returns:
        Texts by file name, without those too large for a page.
    """
    if _count_frames(tree) > _MAX_DOWNLOAD_FRAMES:
        return {}

    texts = {
        "stacks.collapsed.txt": to_collapsed(tree, who=True),
        "stacks.speedscope.json": to_speedscope(tree),
    }
    return {
        name: text
        for name, text in texts.items()
        if len(text) <= _MAX_DOWNLOAD_SIZE
    }


def _count_frames(tree: StackTree) -> int:
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    ends = zip(depths, tree.ends, strict=True)
    return sum(depth for depth, members in ends if members)


def collect_processes(inputs: DiagnosisInputs) -> tuple[ProcessStacks, ...]:
    """
    Return the captured processes, and sidecar stacks of all other ranks.

    Args:
        inputs: Evidence behind the diagnosis.
    """
    if inputs.flight is None:
        return inputs.stacks

    return combine_stacks(inputs.flight.dumps, inputs.stacks)


def find_culprits(diagnosis: Diagnosis, tree: StackTree) -> frozenset[int]:
    """
    Find the processes that the verdict blames, by rank or by evidence.

    Returns:
        Positions in the tree's *processes*; empty if nothing is wrong.
    """
    if diagnosis.is_healthy:
        return frozenset()

    blamed = set(diagnosis.verdict.ranks)
    quoted = {
        (e.source, e.location.partition(",")[0])
        for e in diagnosis.verdict.evidence
    }
    jobs = {
        p.job
        for p in tree.processes
        if (p.source, _evidence_name(p)) in quoted
    }
    is_by_job = tree.has_jobs and jobs
    return frozenset(
        member
        for member, process in enumerate(tree.processes)
        if (not is_by_job or process.job in jobs)
        and (
            process.rank in blamed
            if process.rank is not None
            else (process.source, _evidence_name(process)) in quoted
        )
    )


def _evidence_name(process: ProcessStacks) -> str:
    # The same name as in the evidence of findings.
    if process.rank is None:
        return f"pid {process.pid}"
    return f"rank {process.rank}"


# Limits of frame numbers in all stacks, and of threads in all sets.
_MAX_STORED_FRAMES = 60_000
_MAX_STORED_THREADS = 60_000
# Limit of frames from each end of a stack.
_MAX_STACK_END = 100
_MAX_PROCESS_THREADS = 200
_MAX_KERNELS = 4

_STATE_NAMES = {
    "D": "waits in the kernel",
    "R": "running",
    "S": "sleeps",
    "T": "stopped",
    "t": "stopped",
}
_OWN, _NATIVE = 1, 2
_BACKGROUND, _MAIN = 1, 2


def build_thread_tables(
    tree: StackTree, preferred: AbstractSet[int]
) -> dict[str, Any]:
    """
    Build tables of all threads of each process.

    Args:
        tree: The merged stacks.

        preferred: Processes to store first if space is short.

    Returns:
        Tables that refer to each other, and columns with one value per
        process; *set* is -1 for a process whose threads did not fit.
    """
    tables = _ThreadTables()
    size = len(tree.processes)
    sets = [-1] * size
    for member in (
        *sorted(preferred),
        *(m for m in range(size) if m not in preferred),
    ):
        if tables.has_room:
            sets[member] = tables.add_process(tree.processes[member])
    texts = tables.texts
    return {
        "rank": [p.rank for p in tree.processes],
        "pid": [p.pid for p in tree.processes],
        "host": [texts.number(clean(p.host or "")) for p in tree.processes],
        "role": [texts.number(clean(p.role)) for p in tree.processes],
        "job": [texts.number(clean(p.job)) for p in tree.processes],
        "set": sets,
        **tables.columns(),
    }


class _Numbering:
    """
    Numbers for distinct things, in order of appearance.
    """

    def __init__(self) -> None:
        self.found: dict[Hashable, int] = {}

    def number(self, thing: Hashable) -> int:
        """
        Return the number of a thing, from 0.
        """
        return self.found.setdefault(thing, len(self.found))


class _ThreadTables:
    """
    Growing tables of texts, frames, stacks, and threads.
    """

    def __init__(self) -> None:
        self.texts = _Numbering()
        self._count_frames = _Numbering()
        self._stacks = _Numbering()
        self._threads = _Numbering()
        self._sets = _Numbering()
        self._seen: dict[tuple[object, ...], int] = {}
        self._written: dict[StackFrame, int] = {}
        self._room = [_MAX_STORED_FRAMES, _MAX_STORED_THREADS]

    @property
    def has_room(self) -> bool:
        """
        Return whether another process fits.
        """
        return min(self._room) > 0

    def columns(self) -> dict[str, list[Any]]:
        """
        Return all tables as JSON data.
        """
        return {
            "texts": list(self.texts.found),
            "frames": list(self._count_frames.found),
            "stacks": list(self._stacks.found),
            "threads": list(self._threads.found),
            "sets": list(self._sets.found),
        }

    def add_process(self, process: ProcessStacks) -> int:
        """
        Add the threads and GPU kernels of a process, and return their number.
        """
        main = process.main_thread
        chosen = process.threads[:_MAX_PROCESS_THREADS]
        threads = [self._thread(t, is_main=t is main) for t in chosen]
        left_out = len(process.threads) - len(chosen)
        kernels = tuple(
            self.texts.number(clean(short_kernel_name(k)))
            for k in process.kernels[:_MAX_KERNELS]
        )
        before = len(self._sets.found)
        number = self._sets.number((tuple(threads), left_out, kernels))
        if len(self._sets.found) > before:
            self._room[1] -= len(threads)
        return number

    def _thread(self, thread: ThreadStack, *, is_main: bool) -> int:
        # Equal frames are nearly always the same object, and comparing ids is
        # faster.
        details = tuple(_thread_details(thread, is_main=is_main))
        places = (*map(id, thread.frames), 0, *map(id, thread.native))
        key = thread.name, thread.is_main, details, places
        if (known := self._seen.get(key)) is not None:
            return known

        other = _BACKGROUND if is_background(thread) else 0
        flag = _MAIN if is_main else other
        number = self._threads.number(
            (
                self.texts.number(clean(thread.name)),
                self.texts.number(" · ".join(details)),
                flag,
                self._stack(thread.frames),
                self._stack(thread.native),
            )
        )
        self._seen[key] = number
        return number

    def _stack(self, frames: tuple[StackFrame, ...]) -> int:
        # Outermost first, like the merged stacks.
        numbers = [self._frame(f) for f in frames[:_MAX_STACK_END]]
        more = frames[_MAX_STACK_END:]
        outer = more[-_MAX_STACK_END:]
        if left_out := len(more) - len(outer):
            numbers.append(-left_out)
        numbers += map(self._frame, outer)
        before = len(self._stacks.found)
        number = self._stacks.number(tuple(reversed(numbers)))
        if len(self._stacks.found) > before:
            self._room[0] -= len(numbers)
        return number

    def _frame(self, frame: StackFrame) -> int:
        if (known := self._written.get(frame)) is not None:
            return known

        line = frame_line(frame)
        flags = _OWN * is_user_frame(frame) | _NATIVE * is_native(frame)
        place = f"{line.folder}{line.place}"
        numbers = self.texts.number(line.name), self.texts.number(place)
        number = self._count_frames.number((*numbers, flags))
        self._written[frame] = number
        return number


def _thread_details(thread: ThreadStack, *, is_main: bool) -> Iterator[str]:
    """
    Yield facts about a thread besides its stack.
    """
    if is_main:
        yield "main"
    if thread.owns_gil:
        yield "holds the interpreter lock"
    if thread.waits_for_gil:
        yield "wants the interpreter lock"
    if thread.system_call is not None:
        yield clean(str(thread.system_call))
    elif thread.active:
        yield "running"
    elif thread.state:
        yield _STATE_NAMES.get(thread.state, f"state {clean(thread.state)}")


def stacks_section(diagnosis: Diagnosis) -> Section | None:
    """
    Return the section on stacks; None if there is no stack.

    Shows the merged stacks of main threads, and all threads on demand.
    """
    tree = merge_stacks(collect_processes(inputs_of(diagnosis)))
    if not tree.frames:
        return None

    culprits = find_culprits(diagnosis, tree)
    picture = build_picture(tree, culprits)
    downloads = make_downloads(tree)
    return Section(
        name="stacks",
        title="Where every process is",
        summary=_summary(tree),
        values={
            "picture": picture,
            "absent": describe_absent(tree),
            "downloads": tuple(downloads),
        },
        data={
            **build_thread_tables(tree, culprits),
            "branch": picture.branch_of,
            "downloads": downloads,
        },
    )


def _summary(tree: StackTree) -> str:
    size = sum(node >= 0 for node in tree.mains)
    places = len({node for node in tree.mains if node >= 0})
    if size == 1:
        return "one process"
    if places == 1:
        return f"all {size:,} processes are at the same place"
    return f"{size:,} processes at {places:,} places"
