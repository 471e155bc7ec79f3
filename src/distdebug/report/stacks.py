"""
Where is every process, on one page?

The merged stacks are cut into branches and lines that a page can hold, however
many processes there are and however deep they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from .._text import clean
from ..diagnosis import Seen, all_stacks, seen_by
from ..findings import Diagnosis
from ..stacks import (
    ProcessStacks,
    StackFrame,
    StackTree,
    ThreadStack,
    is_background,
    is_native,
    is_own,
    merge_stacks,
    short_name,
    to_collapsed,
    to_speedscope,
)
from .format import Section
from .stack_tree import absent_from, cut_tree, line_of


# A stack is written out once per place, so a deep tree would be large.
_MOST_FRAMES = 20_000
_MOST_CHARACTERS = 400_000


def downloads_of(tree: StackTree) -> Mapping[str, str]:
    """
    Which files for other tools can be made of this tree?

    Args:
        tree: The merged stacks.

    Returns:
        Texts by name of file; those that are too large for a page are left
        out.
    """
    if _frames(tree) > _MOST_FRAMES:
        return {}

    texts = {
        "stacks.collapsed.txt": to_collapsed(tree, who=True),
        "stacks.speedscope.json": to_speedscope(tree),
    }
    return {
        name: text
        for name, text in texts.items()
        if len(text) <= _MOST_CHARACTERS
    }


def _frames(tree: StackTree) -> int:
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    ends = zip(depths, tree.ends, strict=True)
    return sum(depth for depth, members in ends if members)


def processes_seen(seen: Seen) -> tuple[ProcessStacks, ...]:
    """
    Whose stacks are known?

    Args:
        seen: What a diagnosis was made from.

    Returns:
        What was captured from outside; of ranks of which nothing was, what
        they noted of themselves.
    """
    if seen.flight is None:
        return seen.stacks

    return all_stacks(seen.flight.dumps, seen.stacks)


def culprits_of(diagnosis: Diagnosis, tree: StackTree) -> frozenset[int]:
    """
    Which of these processes does the verdict blame?

    Args:
        diagnosis: Its verdict names ranks; in its evidence, processes
            without one.

    tree: Who was merged.

    Returns:
        Positions in the tree's *processes*; nobody if nothing is wrong.
    """
    if diagnosis.is_healthy:
        return frozenset()

    blamed = set(diagnosis.verdict.ranks)
    quoted = {
        (e.source, e.location.partition(",")[0])
        for e in diagnosis.verdict.evidence
    }
    jobs = {p.job for p in tree.processes if (p.source, _name_of(p)) in quoted}
    is_told = tree.has_jobs and jobs
    return frozenset(
        member
        for member, process in enumerate(tree.processes)
        if (not is_told or process.job in jobs)
        and (
            process.rank in blamed
            if process.rank is not None
            else (process.source, _name_of(process)) in quoted
        )
    )


def _name_of(process: ProcessStacks) -> str:
    # As quotes of stacks call it.
    if process.rank is None:
        return f"pid {process.pid}"
    return f"rank {process.rank}"


# Numbers in all stacks, and in all sets of threads.
_THREADS_MOST_FRAMES = 60_000
_MOST_THREADS = 60_000
# Of one stack, from its outer and from its inner end.
_MOST_OF_STACK = 100
_MOST_OF_PROCESS = 200
_MOST_KERNELS = 4

_STATES = {
    "D": "waits in the kernel",
    "R": "running",
    "S": "sleeps",
    "T": "stopped",
    "t": "stopped",
}
_OWN, _NATIVE = 1, 2
_BACKGROUND, _MAIN = 1, 2


def threads_of(tree: StackTree, first: AbstractSet[int]) -> dict[str, Any]:
    """
    What do all threads of each process do?

    Args:
        tree: Knows the processes.

        first: Who is kept if there is not room for all.

    Returns:
        Tables that refer to each other, and columns with one value for each
        process; its *set* is -1 if there was no room for its threads.
    """
    tables = _Tables()
    size = len(tree.processes)
    sets = [-1] * size
    for member in (
        *sorted(first),
        *(m for m in range(size) if m not in first),
    ):
        if tables.has_room:
            sets[member] = tables.set_of(tree.processes[member])
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


class _Numbers:
    """
    Things in the order in which they were first seen.
    """

    def __init__(self) -> None:
        self.found: dict[Hashable, int] = {}

    def number(self, thing: Hashable) -> int:
        """
        The number of a thing, from 0.
        """
        return self.found.setdefault(thing, len(self.found))


class _Tables:
    """
    Tables that grow.
    """

    def __init__(self) -> None:
        self.texts = _Numbers()
        self._frames = _Numbers()
        self._stacks = _Numbers()
        self._threads = _Numbers()
        self._sets = _Numbers()
        self._seen: dict[tuple[object, ...], int] = {}
        self._written: dict[StackFrame, int] = {}
        self._room = [_THREADS_MOST_FRAMES, _MOST_THREADS]

    @property
    def has_room(self) -> bool:
        """
        Whether one more process may be kept.
        """
        return min(self._room) > 0

    def columns(self) -> dict[str, list[Any]]:
        """
        All tables, as JSON knows them.
        """
        return {
            "texts": list(self.texts.found),
            "frames": list(self._frames.found),
            "stacks": list(self._stacks.found),
            "threads": list(self._threads.found),
            "sets": list(self._sets.found),
        }

    def set_of(self, process: ProcessStacks) -> int:
        """
        The number of all threads of a process, and what its GPUs run.
        """
        main = process.main_thread
        chosen = process.threads[:_MOST_OF_PROCESS]
        threads = [self._thread(t, is_main=t is main) for t in chosen]
        left_out = len(process.threads) - len(chosen)
        kernels = tuple(
            self.texts.number(clean(short_name(k)))
            for k in process.kernels[:_MOST_KERNELS]
        )
        before = len(self._sets.found)
        number = self._sets.number((tuple(threads), left_out, kernels))
        if len(self._sets.found) > before:
            self._room[1] -= len(threads)
        return number

    def _thread(self, thread: ThreadStack, *, is_main: bool) -> int:
        # Frames that are equal are the same object almost always, and to
        # compare places in memory is faster.
        words = tuple(_words(thread, is_main=is_main))
        places = (*map(id, thread.frames), 0, *map(id, thread.native))
        key = thread.name, thread.is_main, words, places
        if (known := self._seen.get(key)) is not None:
            return known

        other = _BACKGROUND if is_background(thread) else 0
        flag = _MAIN if is_main else other
        number = self._threads.number(
            (
                self.texts.number(clean(thread.name)),
                self.texts.number(" · ".join(words)),
                flag,
                self._stack(thread.frames),
                self._stack(thread.native),
            )
        )
        self._seen[key] = number
        return number

    def _stack(self, frames: tuple[StackFrame, ...]) -> int:
        # Outermost first, as the merged stacks are drawn.
        numbers = [self._frame(f) for f in frames[:_MOST_OF_STACK]]
        more = frames[_MOST_OF_STACK:]
        outer = more[-_MOST_OF_STACK:]
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

        line = line_of(frame)
        flags = _OWN * is_own(frame) | _NATIVE * is_native(frame)
        place = f"{line.folder}{line.place}"
        numbers = self.texts.number(line.name), self.texts.number(place)
        number = self._frames.number((*numbers, flags))
        self._written[frame] = number
        return number


def _words(thread: ThreadStack, *, is_main: bool) -> Iterator[str]:
    """
    What is known of a thread beside its stack.
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
        yield _STATES.get(thread.state, f"state {clean(thread.state)}")


def stacks_section(diagnosis: Diagnosis) -> Section | None:
    """
    Where is every process?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The merged stacks of the main threads, and all threads of each
        process for those who ask; None if there is no stack at all.
    """
    tree = merge_stacks(processes_seen(seen_by(diagnosis)))
    if not tree.frames:
        return None

    culprits = culprits_of(diagnosis, tree)
    picture = cut_tree(tree, culprits)
    downloads = downloads_of(tree)
    return Section(
        name="stacks",
        title="Where every process is",
        summary=_summary(tree),
        values={
            "picture": picture,
            "absent": absent_from(tree),
            "downloads": tuple(downloads),
        },
        data={
            **threads_of(tree, culprits),
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
