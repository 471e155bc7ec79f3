"""
Cut merged stacks into branches that fit on a page.

Shows the branches of culprits and the largest ones; counts the others, so that
a tree of any size and depth gives a page that opens.
"""

from __future__ import annotations

import heapq

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import Any

import attrs

from .._text import clean, count_text, list_text
from ..causes import Cause
from ..processes import STATE_NAMES
from ..stacks import (
    ProcessStacks,
    ProcessView,
    StackFrame,
    StackTree,
    conjugate,
    explain_ranks,
    group_by_key,
    native_function,
    short_kernel_name,
)


_MAX_BRANCHES = 400
_MAX_LINES = 6_000
# Browsers cut nesting at 512; readers need much less.
_MAX_DEPTH = 30


@attrs.define(kw_only=True)
class BranchCut:
    """
    Branch to show.

    Attributes:
        chain: Its nodes, from the outermost.

        depth: Number of branches above it.

        culprits: Members of the branch that are at fault.

        below: Positions of its child branches.

        rest: First nodes of child branches that are not shown.
    """

    chain: Sequence[int]
    depth: int
    culprits: Sequence[int]
    below: list[int] = attrs.field(factory=list)
    rest: list[int] = attrs.field(factory=list)


def choose_cuts(
    tree: StackTree, culprits: AbstractSet[int]
) -> tuple[list[BranchCut], list[int], list[int]]:
    """
    Choose the branches to show.

    Args:
        tree: The merged stacks.

        culprits: Processes at fault, as positions in the tree's *processes*.

    Returns:
        The branches, parents first; positions of the top branches; first nodes
        of top branches that are not shown.
    """
    cuts: list[BranchCut] = []
    roots: list[int] = []
    hidden: list[int] = []
    lines = 0
    queue = [
        _branch_priority(tree, culprits, n, -1) for n in tree.children[-1]
    ]
    heapq.heapify(queue)
    while queue:
        _, _, head, above = heapq.heappop(queue)
        depth = cuts[above].depth + 1 if above >= 0 else 0
        is_full = len(cuts) >= _MAX_BRANCHES or lines >= _MAX_LINES
        if is_full or depth > _MAX_DEPTH:
            (cuts[above].rest if above >= 0 else hidden).append(head)
            continue

        chain = tree.chain(head)
        lines += min(len(chain), _MAX_LINES // 20)
        (cuts[above].below if above >= 0 else roots).append(len(cuts))
        for child in tree.children[chain[-1]]:
            heapq.heappush(
                queue, _branch_priority(tree, culprits, child, len(cuts))
            )
        found = [m for m in tree.members[head] if m in culprits]
        cuts.append(BranchCut(chain=chain, depth=depth, culprits=found))
    return cuts, roots, hidden


def _branch_priority(
    tree: StackTree, culprits: AbstractSet[int], node: int, above: int
) -> tuple[bool, int, int, int]:
    members = tree.members[node]
    return culprits.isdisjoint(members), -len(members), node, above


_MAX_NAME = 160
_MAX_FILE = 300
# Limit of runs at the beginning, and at the end, of a branch.
_MAX_RUNS = 40
_MAX_PERIOD = 8
_MIN_REPEATS = 3
# Folding so few library lines saves no space.
_MAX_PLAIN_LINES = 2


@attrs.frozen(kw_only=True)
class FrameLine:
    """
    One frame.

    Attributes:
        name: The function.

        folder: Folder of its file with a slash at the end, or ``""``.

        place: File name, with the line if it is known.

        is_own: Whether it is user code.
    """

    name: str
    folder: str
    place: str
    is_own: bool = False


@attrs.frozen(kw_only=True)
class FrameRun:
    """
    Consecutive frames that are shown alike.

    Attributes:
        lines: The frames, outermost first.

        is_folded: Whether only *label* is visible at first.

        label: A short description.

        times: Number of repeats.

        left_out: Number of omitted frames; such a run has no lines.
    """

    lines: tuple[FrameLine, ...] = ()
    is_folded: bool = False
    label: str = ""
    times: int = 1
    left_out: int = 0


def frame_line(frame: StackFrame, *, is_own: bool = False) -> FrameLine:
    """
    Format a frame as a line.
    """
    file = frame.filename.replace("\\", "/")
    folder, slash, name = file.rpartition("/")
    place = f"{name}:{frame.line}" if frame.line else name
    return FrameLine(
        name=clean(frame.name, limit=_MAX_NAME) or "?",
        folder=clean(folder, limit=_MAX_FILE) + slash,
        place=clean(place, limit=_MAX_FILE),
        is_own=is_own,
    )


def fold_frames(tree: StackTree, chain: Sequence[int]) -> tuple[FrameRun, ...]:
    """
    Fold the frames of a branch into runs.

    Args:
        tree: The merged stacks.

        chain: Nodes of the branch, from the outermost.

    Returns:
        All frames in few runs; if there are too many runs, the first and the
        last.
    """
    runs = list(_fold_runs(tree, chain))
    if len(runs) > 2 * _MAX_RUNS:
        middle = runs[_MAX_RUNS:-_MAX_RUNS]
        left_out = sum(len(run.lines) * run.times for run in middle)
        gap = FrameRun(left_out=left_out)
        runs = [*runs[:_MAX_RUNS], gap, *runs[-_MAX_RUNS:]]
    return tuple(_join_plain_runs(runs))


def _join_plain_runs(runs: Iterable[FrameRun]) -> Iterator[FrameRun]:
    """
    Join consecutive plain runs.
    """
    for is_plain, group in groupby(runs, _is_plain):
        if is_plain:
            yield FrameRun(
                lines=tuple(line for run in group for line in run.lines)
            )
        else:
            yield from group


def _is_plain(run: FrameRun) -> bool:
    return bool(run.lines) and not run.is_folded and run.times == 1


def _fold_runs(tree: StackTree, chain: Sequence[int]) -> Iterator[FrameRun]:
    foreign: list[int] = []
    for nodes, times in _fold_repeats([tree.frames[n] for n in chain], chain):
        (first, *_) = nodes
        if times == 1 and not tree.own[first]:
            foreign.append(first)
            continue

        yield from _library_runs(tree, foreign)
        foreign = []
        lines = _frame_lines(tree, nodes)
        is_own = any(line.is_own for line in lines)
        label = "" if times == 1 else _run_label(tree, nodes)
        yield FrameRun(
            lines=lines, label=label, is_folded=not is_own, times=times
        )
    yield from _library_runs(tree, foreign)


def _library_runs(tree: StackTree, nodes: Sequence[int]) -> Iterator[FrameRun]:
    if len(nodes) > _MAX_PLAIN_LINES:
        *folded, last = nodes
        yield FrameRun(
            lines=_frame_lines(tree, folded),
            label=_run_label(tree, folded),
            is_folded=True,
        )
        nodes = [last]
    if nodes:
        yield FrameRun(lines=_frame_lines(tree, nodes))


def _frame_lines(
    tree: StackTree, nodes: Sequence[int]
) -> tuple[FrameLine, ...]:
    return tuple(
        frame_line(tree.frames[node], is_own=tree.own[node]) for node in nodes
    )


def _run_label(tree: StackTree, nodes: Sequence[int]) -> str:
    packages = dict.fromkeys(_package(tree.frames[node]) for node in nodes)
    known = list_text((clean(p, limit=40) for p in packages if p), most=3)
    count = count_text(len(nodes), "frame")
    return f"{count} of {known}" if known else count


def _package(frame: StackFrame) -> str:
    if frame.filename.startswith("<"):
        return "python"
    top = frame.filename.lstrip("/").partition("/")[0]
    return top.removesuffix(".py")


def _fold_repeats(
    frames: Sequence[StackFrame], nodes: Sequence[int]
) -> Iterator[tuple[Sequence[int], int]]:
    """
    Fold repeated frames, as in a recursion.
    """
    numbers: dict[StackFrame, int] = {}
    frame_numbers = [numbers.setdefault(f, len(numbers)) for f in frames]
    start = 0
    while start < len(frame_numbers):
        period, times = _find_repeat(frame_numbers, start)
        yield nodes[start : start + period], times
        start += period * times


def _find_repeat(frame_numbers: Sequence[int], start: int) -> tuple[int, int]:
    for period in range(1, _MAX_PERIOD + 1):
        end = start + period
        while (
            end < len(frame_numbers)
            and frame_numbers[end] == frame_numbers[end - period]
        ):
            end += 1
        times = (end - start) // period
        if times >= _MIN_REPEATS:
            return period, times
    return 1, 1


_MAX_MEMBERS_TEXT = 60


def members_text(
    tree: StackTree, members: Sequence[int], *, limit: int = _MAX_MEMBERS_TEXT
) -> str:
    """
    Return the names of processes, such as ``"ranks 0-2,4"``.

    Args:
        tree: The merged stacks.

        members: Positions in its *processes*.

        limit: Maximum length.
    """
    text = tree.who(dict.fromkeys(members))
    if text[:1].isdigit():
        text = f"rank{'' if len(members) == 1 else 's'} {text}"
    return clean(text, limit=limit)


# Limit of processes to explain per node and state.
_MAX_EXPLAINED = 64
_MAX_NOTES = 3
_MAX_NOTE = 300

_ProcessKey = tuple[str, str | None, int]


def describe_ends(
    tree: StackTree, nodes: Iterable[int], culprits: AbstractSet[int]
) -> Mapping[int, tuple[str, ...]]:
    """
    Describe what processes do whose stacks end at these nodes.

    Args:
        tree: The merged stacks.

        nodes: The nodes.

        culprits: Processes at fault, as positions in the tree's *processes*.

    Returns:
        By node: activity by the rules, native function, and GPU kernels, as
        far as they are known.
    """
    known = {node: tree.ends[node] for node in nodes if tree.ends[node]}
    processes = _select_processes(tree, known.values(), culprits)
    views = {
        _process_key(view.process): view for view in explain_ranks(processes)
    }
    return {node: tuple(_end_notes(tree, views, node)) for node in known}


def _end_notes(
    tree: StackTree, views: Mapping[_ProcessKey, ProcessView], node: int
) -> Iterator[str]:
    ends = tree.ends[node]
    doing = tuple(_activity_notes(tree, views, ends))
    yield from doing
    yield from _kernel_notes(tree, ends, " ".join(doing))
    if name := native_function(tree, node):
        yield f"{clean(name, limit=_MAX_NOTE)} (native)"


def _select_processes(
    tree: StackTree,
    places: Iterable[Sequence[int]],
    culprits: AbstractSet[int],
) -> Iterator[ProcessStacks]:
    """
    Yield some processes of each node and state, with their children.
    """
    known = tree.processes
    chosen = set(culprits)
    for ends in places:
        for members in group_by_key(
            ends, lambda m: (known[m].state, known[m].job)
        ):
            chosen.update(members[:_MAX_EXPLAINED])

    pids = {(known[m].host, known[m].pid) for m in chosen}
    for member, process in enumerate(known):
        if member in chosen or (process.host, process.parent_pid) in pids:
            yield process


def _process_key(process: ProcessStacks) -> _ProcessKey:
    return process.job, process.host, process.pid


def _activity_notes(
    tree: StackTree,
    views: Mapping[_ProcessKey, ProcessView],
    ends: Sequence[int],
) -> Iterator[str]:
    found: dict[str, list[int]] = {}
    for member in ends:
        view = views.get(_process_key(tree.processes[member]))
        if view is not None and view.cause is not Cause.UNKNOWN:
            doing = view.doing_of_many or view.doing
            found.setdefault(doing, []).append(member)
    states = {tree.processes[member].state for member in ends}
    # Processes in the same state do the same as the explained ones.
    is_one = len(found) == 1 and len(states) == 1
    yield from _note_lines(
        tree, dict.fromkeys(found, ends) if is_one else found, ends
    )


def _kernel_notes(
    tree: StackTree, ends: Sequence[int], activity_text: str
) -> Iterator[str]:
    found: dict[str, list[int]] = {}
    for member in ends:
        kernels = map(short_kernel_name, tree.processes[member].kernels)
        for name in dict.fromkeys(kernels):
            doing = f"has {name} on the GPU"
            if name not in activity_text:
                found.setdefault(doing, []).append(member)
    yield from _note_lines(tree, found, ends)


def _note_lines(
    tree: StackTree, found: Mapping[str, Sequence[int]], ends: Sequence[int]
) -> Iterator[str]:
    """
    Yield the most common notes, with names unless all processes share one.
    """
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    for doing, members in ordered[:_MAX_NOTES]:
        prefix = members_text(tree, members) + " "
        processes = [tree.processes[member] for member in members]
        note = clean(conjugate(processes, doing), limit=_MAX_NOTE)
        yield note if len(members) == len(ends) else prefix + note
    if len(ordered) > _MAX_NOTES:
        yield f"{len(ordered) - _MAX_NOTES:,} more"


def describe_absent(tree: StackTree) -> tuple[str, ...]:
    """
    Describe the processes that have no stack.

    Returns:
        One text per process state.
    """
    known = tree.processes
    absent = (member for member, node in enumerate(tree.mains) if node < 0)
    by_state = group_by_key(
        absent, lambda m: STATE_NAMES.get(known[m].state, "")
    )
    texts = []
    for members in by_state:
        state = STATE_NAMES.get(known[members[0]].state)
        why = f"{state}, no stack" if state else "no stack"
        who = members_text(tree, members, limit=_MAX_NOTE)
        texts.append(f"{who}: {why}")
    return tuple(texts)


# A tree with at most this many branches is fully unfolded.
_MAX_OPEN = 8
_MAX_RANKS = 16
_MAX_WHOLE_TEXT = 1_000


def build_picture(
    tree: StackTree, culprits: AbstractSet[int]
) -> dict[str, Any]:
    """
    Build the shown part of a tree.

    Args:
        tree: The merged stacks.

        culprits: Processes at fault, as positions in the tree's *processes*.

    Returns:
        Template variables: a few hundred branches at most, those of culprits
        first, then the largest; the processes in top branches that are not
        shown; and the branch of each process, as number, -1 for none.
    """
    cuts, roots, rest = choose_cuts(tree, culprits)
    notes = describe_ends(tree, [cut.chain[-1] for cut in cuts], culprits)
    built: dict[int, dict[str, Any]] = {}
    # Children have higher numbers than their parents.
    for number in range(len(cuts) - 1, -1, -1):
        cut = cuts[number]
        is_top = not cut.depth
        built[number] = {
            **_branch_values(tree, cut),
            "number": number,
            "notes": notes.get(cut.chain[-1], ()),
            "is_open": cut.culprits or is_top or len(cuts) <= _MAX_OPEN,
            "below": [built.pop(child) for child in cut.below],
        }
    return {
        "branches": [built[number] for number in roots],
        "rest": _rest_text(tree, rest),
        "branch_of": _branch_numbers(tree, cuts),
    }


def _branch_numbers(
    tree: StackTree, cuts: Sequence[BranchCut]
) -> tuple[int, ...]:
    found = [-1] * len(tree.processes)
    for number, cut in enumerate(cuts):
        for node in cut.rest:
            for member in tree.members[node]:
                found[member] = number
        for member in tree.ends[cut.chain[-1]]:
            found[member] = number
    return tuple(found)


def _branch_values(tree: StackTree, cut: BranchCut) -> dict[str, Any]:
    """
    Return the template variables of a branch, without its child branches.
    """
    members = tree.members[cut.chain[0]]
    ends = tree.ends[cut.chain[-1]]
    is_forked = ends and (cut.below or cut.rest)
    is_culprit = len(cut.culprits) == len(members)
    whole = members_text(tree, members, limit=_MAX_WHOLE_TEXT)
    short = clean(whole, limit=_MAX_MEMBERS_TEXT)
    return {
        "who": short,
        "whole": "" if short == whole else whole,
        "count": len(members),
        "role": _common_role(tree, members),
        "runs": fold_frames(tree, cut.chain),
        # Visible while it is folded.
        "leads": _leads_text(tree, cut),
        # Processes that stay at its end while others go on.
        "here": members_text(tree, ends) if is_forked else "",
        "ranks": _end_ranks(tree, ends),
        "is_culprit": is_culprit,
        "culprits": "" if is_culprit else members_text(tree, cut.culprits),
        "rest": _rest_text(tree, cut.rest),
    }


def _leads_text(tree: StackTree, cut: BranchCut) -> str:
    """
    Return the innermost user line of a branch, and its innermost line.
    """
    own = next((n for n in reversed(cut.chain) if tree.own[n]), None)
    nodes = dict.fromkeys(
        (cut.chain[-1] if own is None else own, cut.chain[-1])
    )
    lines = [frame_line(tree.frames[node]) for node in nodes]
    text = " → ".join(
        f"{line.name} ({line.place})" if line.place else line.name
        for line in lines
    )
    places = len(cut.below) + len(cut.rest)
    if places:
        text += f" → {count_text(places, 'branch')}"
    return clean(text)


def _common_role(tree: StackTree, members: Sequence[int]) -> str:
    roles = {tree.processes[member].role for member in members}
    role = roles.pop() if len(roles) == 1 else ""
    return "" if role == "rank" else clean(role)


def _end_ranks(tree: StackTree, ends: Sequence[int]) -> tuple[int, ...]:
    # With several jobs, a rank is ambiguous.
    if len(ends) > _MAX_RANKS or tree.has_jobs:
        return ()

    found = {tree.processes[member].rank for member in ends}
    return tuple(sorted(rank for rank in found if rank is not None))


def _rest_text(tree: StackTree, heads: Sequence[int]) -> str:
    if not heads:
        return ""

    members = sorted({m for head in heads for m in tree.members[head]})
    number = count_text(len(heads), "branch").replace(" ", " more ")
    return f"{number}: {members_text(tree, members)}"
