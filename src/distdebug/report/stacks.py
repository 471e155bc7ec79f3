"""
Build the section on stacks: merged tree, threads, downloads.

Its size stays bounded for any number of processes and any depth.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from .._text import clean
from ..diagnosis import combine_stacks, inputs_of
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
    return {
        "rank": [p.rank for p in tree.processes],
        "pid": [p.pid for p in tree.processes],
        "host": [tables.add_text(p.host or "") for p in tree.processes],
        "role": [tables.add_text(p.role) for p in tree.processes],
        "job": [tables.add_text(p.job) for p in tree.processes],
        "set": sets,
        **tables.columns(),
    }


class _ThreadTables:
    """
    Growing tables of texts, frames, stacks, and threads.
    """

    def __init__(self) -> None:
        # By name: the number of each distinct entry, in order of appearance.
        self._tables: dict[str, dict[Hashable, int]] = {
            name: {}
            for name in ("texts", "frames", "stacks", "threads", "sets")
        }
        self._seen: dict[tuple[object, ...], int] = {}
        self._written: dict[StackFrame, int] = {}
        self._room = {
            "stacks": _MAX_STORED_FRAMES,
            "sets": _MAX_STORED_THREADS,
        }

    @property
    def has_room(self) -> bool:
        """
        Return whether another process fits.
        """
        return min(self._room.values()) > 0

    def columns(self) -> dict[str, list[Any]]:
        """
        Return all tables as JSON data.
        """
        return {name: list(table) for name, table in self._tables.items()}

    def _add(self, name: str, entry: Hashable, size: int = 0) -> int:
        """
        Return the number of an entry; a new one takes *size* of the room.
        """
        table = self._tables[name]
        if entry not in table and size:
            self._room[name] -= size
        return table.setdefault(entry, len(table))

    def add_text(self, text: str) -> int:
        """
        Return the number of a text, which is cleaned.
        """
        return self._add("texts", clean(text))

    def add_process(self, process: ProcessStacks) -> int:
        """
        Add the threads and GPU kernels of a process, and return their number.
        """
        main = process.main_thread
        chosen = process.threads[:_MAX_PROCESS_THREADS]
        threads = [self._thread(t, is_main=t is main) for t in chosen]
        left_out = len(process.threads) - len(chosen)
        kernels = tuple(
            self.add_text(short_kernel_name(k))
            for k in process.kernels[:_MAX_KERNELS]
        )
        entry = (tuple(threads), left_out, kernels)
        return self._add("sets", entry, len(threads))

    def _thread(self, thread: ThreadStack, *, is_main: bool) -> int:
        # Equal frames are nearly always the same object, and comparing ids is
        # faster.
        details = tuple(_thread_details(thread, is_main=is_main))
        places = (*map(id, thread.frames), 0, *map(id, thread.native))
        key = thread.name, thread.is_main, details, places
        if (known := self._seen.get(key)) is not None:
            return known

        other = _BACKGROUND if is_background(thread) else 0
        entry = (
            self.add_text(thread.name),
            self._add("texts", " · ".join(details)),
            _MAIN if is_main else other,
            self._stack(thread.frames),
            self._stack(thread.native),
        )
        number = self._seen[key] = self._add("threads", entry)
        return number

    def _stack(self, frames: tuple[StackFrame, ...]) -> int:
        # Outermost first, like the merged stacks.
        numbers = [self._frame(f) for f in frames[:_MAX_STACK_END]]
        more = frames[_MAX_STACK_END:]
        outer = more[-_MAX_STACK_END:]
        if left_out := len(more) - len(outer):
            numbers.append(-left_out)
        numbers += map(self._frame, outer)
        return self._add("stacks", tuple(reversed(numbers)), len(numbers))

    def _frame(self, frame: StackFrame) -> int:
        if (known := self._written.get(frame)) is not None:
            return known

        line = frame_line(frame)
        flags = _OWN * is_user_frame(frame) | _NATIVE * is_native(frame)
        name = self._add("texts", line.name)
        place = self._add("texts", f"{line.folder}{line.place}")
        number = self._add("frames", (name, place, flags))
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
    inputs = inputs_of(diagnosis)
    processes = inputs.stacks
    # Sidecars have the stacks of all other ranks.
    if inputs.flight is not None:
        processes = combine_stacks(inputs.flight.dumps, processes)
    tree = merge_stacks(processes)
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
            "branch": picture["branch_of"],
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
