"""
Which branches of a tree does a page show?

The ones of the culprits, and the largest.  Of the others it is told how many
there are, so that a tree of any size and depth makes a page that opens.
"""

from __future__ import annotations

import heapq

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import Any

import attrs

from .._text import clean, list_text
from ..findings import Cause
from ..stacks import (
    ProcessStacks,
    ProcessView,
    StackFrame,
    StackTree,
    agree,
    explain_ranks,
    native_function,
    short_name,
)


_MOST_BRANCHES = 400
_MOST_LINES = 6_000
# Browsers cut what is nested 512 times; people do earlier.
_MOST_DEPTH = 30


@attrs.define(kw_only=True)
class Cut:
    """
    A branch that will be shown.

    Attributes:
        chain: Its nodes, each below the one before.

        depth: How many branches are above it.

        culprits: Who of those that took it is to blame.

        below: Positions of the branches that follow.

        rest: The first nodes of those that follow and are not shown.
    """

    chain: Sequence[int]
    depth: int
    culprits: Sequence[int]
    below: list[int] = attrs.field(factory=list)
    rest: list[int] = attrs.field(factory=list)


def choose_cuts(
    tree: StackTree, culprits: AbstractSet[int]
) -> tuple[list[Cut], list[int], list[int]]:
    """
    Which branches are shown?

    Args:
        tree: The merged stacks.

        culprits: Who is to blame, as positions in the tree's *processes*.

    Returns:
        Those branches, each after the one above it; positions of the
        outermost ones; the first nodes of outermost ones that are not shown.
    """
    forks: list[list[int]] = [[] for _ in tree.frames]
    heads: list[int] = []
    for node, parent in enumerate(tree.parents):
        (forks[parent] if parent >= 0 else heads).append(node)

    cuts: list[Cut] = []
    roots: list[int] = []
    rest: list[int] = []
    lines = 0
    todo = [_order(tree, culprits, node, -1) for node in heads]
    heapq.heapify(todo)
    while todo:
        _, _, head, above = heapq.heappop(todo)
        depth = cuts[above].depth + 1 if above >= 0 else 0
        is_full = len(cuts) >= _MOST_BRANCHES or lines >= _MOST_LINES
        if is_full or depth > _MOST_DEPTH:
            (cuts[above].rest if above >= 0 else rest).append(head)
            continue

        chain = _chain(tree, forks, head)
        lines += min(len(chain), _MOST_LINES // 20)
        (cuts[above].below if above >= 0 else roots).append(len(cuts))
        for child in forks[chain[-1]]:
            heapq.heappush(todo, _order(tree, culprits, child, len(cuts)))
        found = [m for m in tree.members[head] if m in culprits]
        cuts.append(Cut(chain=chain, depth=depth, culprits=found))
    return cuts, roots, rest


def _order(
    tree: StackTree, culprits: AbstractSet[int], node: int, above: int
) -> tuple[bool, int, int, int]:
    members = tree.members[node]
    return culprits.isdisjoint(members), -len(members), node, above


def _chain(
    tree: StackTree, forks: Sequence[Sequence[int]], head: int
) -> Sequence[int]:
    chain = [head]
    while len(forks[chain[-1]]) == 1 and not tree.ends[chain[-1]]:
        chain.append(forks[chain[-1]][0])
    return chain


_MOST_NAME = 160
_MOST_FILE = 300
# Runs at the beginning, and at the end, of one branch.
_MOST_RUNS = 40
_LONGEST_PERIOD = 8
_FEWEST_TURNS = 3
# So many lines of libraries take no more room than a word about them.
_MOST_PLAIN = 2


@attrs.frozen(kw_only=True)
class Line:
    """
    One frame.

    Attributes:
        name: The function.

        folder: Where its file is, with a slash at the end, or ``""``.

        place: The file, with the line if it is known.

        is_own: Whether it is a line of the user.
    """

    name: str
    folder: str
    place: str
    is_own: bool = False


@attrs.frozen(kw_only=True)
class Run:
    """
    Frames that follow each other and are shown alike.

    Attributes:
        lines: The frames, outermost first.

        is_folded: Whether only *label* is seen at first.

        label: What they are, in a few words.

        times: How often they follow each other.

        left_out: How many frames there are for which there is no room; such
            a run has no lines.
    """

    lines: tuple[Line, ...] = ()
    is_folded: bool = False
    label: str = ""
    times: int = 1
    left_out: int = 0


def line_of(frame: StackFrame, *, is_own: bool = False) -> Line:
    """
    How is a frame written?

    Args:
        frame: A frame, of any length.

        is_own: Whether it is a line of the user.
    """
    file = frame.filename.replace("\\", "/")
    folder, slash, name = file.rpartition("/")
    place = f"{name}:{frame.line}" if frame.line else name
    return Line(
        name=clean(frame.name, limit=_MOST_NAME) or "?",
        folder=clean(folder, limit=_MOST_FILE) + slash,
        place=clean(place, limit=_MOST_FILE),
        is_own=is_own,
    )


def runs_of(tree: StackTree, chain: Sequence[int]) -> tuple[Run, ...]:
    """
    How are the frames of one branch written?

    Args:
        tree: The merged stacks.

        chain: Nodes of it, each below the one before.

    Returns:
        All frames in few runs; if they do not fit into few, the first and the
        last ones.
    """
    runs = list(_runs(tree, chain))
    if len(runs) > 2 * _MOST_RUNS:
        middle = runs[_MOST_RUNS:-_MOST_RUNS]
        left_out = sum(len(run.lines) * run.times for run in middle)
        gap = Run(left_out=left_out)
        runs = [*runs[:_MOST_RUNS], gap, *runs[-_MOST_RUNS:]]
    return tuple(_joined(runs))


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """
    Join plain lines that follow each other.
    """
    for is_plain, group in groupby(runs, _is_plain):
        if is_plain:
            yield Run(lines=tuple(line for run in group for line in run.lines))
        else:
            yield from group


def _is_plain(run: Run) -> bool:
    return bool(run.lines) and not run.is_folded and run.times == 1


def _runs(tree: StackTree, chain: Sequence[int]) -> Iterator[Run]:
    foreign: list[int] = []
    for nodes, times in _turns([tree.frames[n] for n in chain], chain):
        (first, *_) = nodes
        if times == 1 and not tree.own[first]:
            foreign.append(first)
            continue

        yield from _foreign(tree, foreign)
        foreign = []
        lines = _lines(tree, nodes)
        is_own = any(line.is_own for line in lines)
        label = "" if times == 1 else _label(tree, nodes)
        yield Run(lines=lines, label=label, is_folded=not is_own, times=times)
    yield from _foreign(tree, foreign)


def _foreign(tree: StackTree, nodes: Sequence[int]) -> Iterator[Run]:
    if len(nodes) > _MOST_PLAIN:
        *folded, last = nodes
        yield Run(
            lines=_lines(tree, folded),
            label=_label(tree, folded),
            is_folded=True,
        )
        nodes = [last]
    if nodes:
        yield Run(lines=_lines(tree, nodes))


def _lines(tree: StackTree, nodes: Sequence[int]) -> tuple[Line, ...]:
    return tuple(
        line_of(tree.frames[node], is_own=tree.own[node]) for node in nodes
    )


def _label(tree: StackTree, nodes: Sequence[int]) -> str:
    packages = dict.fromkeys(_package(tree.frames[node]) for node in nodes)
    known = list_text((clean(p, limit=40) for p in packages if p), most=3)
    count = f"{len(nodes):,} frame{'' if len(nodes) == 1 else 's'}"
    return f"{count} of {known}" if known else count


def _package(frame: StackFrame) -> str:
    if frame.filename.startswith("<"):
        return "python"
    top = frame.filename.lstrip("/").partition("/")[0]
    return top.removesuffix(".py")


def _turns(
    frames: Sequence[StackFrame], nodes: Sequence[int]
) -> Iterator[tuple[Sequence[int], int]]:
    """
    Fold what follows itself several times, as in a recursion.
    """
    numbers: dict[StackFrame, int] = {}
    found = [numbers.setdefault(f, len(numbers)) for f in frames]
    start = 0
    while start < len(found):
        period, times = _turn(found, start)
        yield nodes[start : start + period], times
        start += period * times


def _turn(found: Sequence[int], start: int) -> tuple[int, int]:
    for period in range(1, _LONGEST_PERIOD + 1):
        end = start + period
        while end < len(found) and found[end] == found[end - period]:
            end += 1
        times = (end - start) // period
        if times >= _FEWEST_TURNS:
            return period, times
    return 1, 1


_MOST_WHO = 60


def who_text(
    tree: StackTree, members: Sequence[int], *, limit: int = _MOST_WHO
) -> str:
    """
    Which processes are these?

    Args:
        tree: Knows them.

        members: Positions in its *processes*.

        limit: How many characters to keep.

    Returns:
        Such as ``"ranks 0-2,4"``; nothing for nobody.
    """
    who = tree.who(dict.fromkeys(members))
    if who[:1].isdigit():
        who = f"rank{'' if len(members) == 1 else 's'} {who}"
    return clean(who, limit=limit)


# Who is asked what it does, of those who are at one place in the same state.
_MOST_ASKED = 64
_MOST_NOTES = 3
_MOST_NOTE = 300
_STATES = {"T": "stopped", "t": "stopped", "Z": "dead", "X": "dead"}

_Key = tuple[str, str | None, int]


def notes_on(
    tree: StackTree, nodes: Iterable[int], culprits: AbstractSet[int]
) -> Mapping[int, tuple[str, ...]]:
    """
    What do those do who are at these places?

    Args:
        tree: The merged stacks.

        nodes: The places.

        culprits: Who is to blame, as positions in the tree's *processes*.

    Returns:
        By node: what the rules say of them, what they are in natively, and
        what their GPUs run, as far as it is known.
    """
    known = {node: tree.ends[node] for node in nodes if tree.ends[node]}
    asked = _asked(tree, known.values(), culprits)
    views = {_key(view.process): view for view in explain_ranks(asked)}
    return {node: _notes(tree, views, node) for node in known}


def _notes(
    tree: StackTree, views: Mapping[_Key, ProcessView], node: int
) -> tuple[str, ...]:
    ends = tree.ends[node]
    doing = tuple(_doing(tree, views, ends))
    kernels = tuple(_kernels(tree, ends, " ".join(doing)))
    return (*doing, *kernels, *_natively(tree, node))


def _asked(
    tree: StackTree,
    places: Iterable[Sequence[int]],
    culprits: AbstractSet[int],
) -> Iterator[ProcessStacks]:
    """
    Some of those who are at one place, in each state; and their children.
    """
    chosen = set(culprits)
    for ends in places:
        states: dict[tuple[str, str], list[int]] = {}
        for member in ends:
            process = tree.processes[member]
            key = process.state, process.job
            states.setdefault(key, []).append(member)
        for members in states.values():
            chosen.update(members[:_MOST_ASKED])

    pids = {(tree.processes[m].host, tree.processes[m].pid) for m in chosen}
    for member, process in enumerate(tree.processes):
        if member in chosen or (process.host, process.parent_pid) in pids:
            yield process


def _key(process: ProcessStacks) -> _Key:
    return process.job, process.host, process.pid


def _natively(tree: StackTree, node: int) -> Iterator[str]:
    if name := native_function(tree, node):
        yield f"{clean(name, limit=_MOST_NOTE)} (native)"


def _doing(
    tree: StackTree, views: Mapping[_Key, ProcessView], ends: Sequence[int]
) -> Iterator[str]:
    found: dict[str, list[int]] = {}
    for member in ends:
        view = views.get(_key(tree.processes[member]))
        if view is not None and view.cause is not Cause.UNKNOWN:
            doing = view.doing_of_many or view.doing
            found.setdefault(doing, []).append(member)
    states = {tree.processes[member].state for member in ends}
    # Those who were not asked do the same, if they are in the same state.
    is_one = len(found) == 1 and len(states) == 1
    yield from _told(
        tree, dict.fromkeys(found, ends) if is_one else found, ends
    )


def _kernels(tree: StackTree, ends: Sequence[int], said: str) -> Iterator[str]:
    found: dict[str, list[int]] = {}
    for member in ends:
        kernels = map(short_name, tree.processes[member].kernels)
        for name in dict.fromkeys(kernels):
            doing = f"has {name} on the GPU"
            if name not in said:
                found.setdefault(doing, []).append(member)
    yield from _told(tree, found, ends)


def _told(
    tree: StackTree, found: Mapping[str, Sequence[int]], ends: Sequence[int]
) -> Iterator[str]:
    """
    What the most do; with their names, unless all do it.
    """
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    for doing, members in ordered[:_MOST_NOTES]:
        who = who_text(tree, members) + " "
        processes = [tree.processes[member] for member in members]
        said = clean(agree(processes, doing), limit=_MOST_NOTE)
        yield said if len(members) == len(ends) else who + said
    if len(ordered) > _MOST_NOTES:
        yield f"{len(ordered) - _MOST_NOTES:,} more"


def absent_from(tree: StackTree) -> tuple[str, ...]:
    """
    Who has no stack?

    Args:
        tree: The merged stacks.

    Returns:
        One text per state in which they are.
    """
    states: dict[str, list[int]] = {}
    for member, node in enumerate(tree.mains):
        if node < 0:
            state = tree.processes[member].state
            states.setdefault(_STATES.get(state, ""), []).append(member)
    return tuple(
        f"{who_text(tree, members, limit=_MOST_NOTE)}: "
        + (f"{state}, no stack" if state else "no stack")
        for state, members in states.items()
    )


# A tree of so few branches is open as a whole.
_MOST_OPEN = 8
_MOST_RANKS = 16
_MOST_WHOLE = 1_000


@attrs.frozen(kw_only=True)
class Branch:
    """
    Frames that nobody parts from, and what comes below them.

    Attributes:
        number: Its position among all that are shown.

        who: The processes that took it, in few words.

        whole: The same in more words, if they were too many.

        count: How many they are.

        role: What they do in their job, if they are no ranks, or ``""``.

        runs: Its frames.

        leads: Where it leads to, for those who see it folded.

        here: Who stays at its end while others go on, or ``""``.

        ranks: Who is at its end, if they are few.

        notes: What those at its end do.

        is_culprit: Whether the verdict blames all of them.

        culprits: Which of them it blames, if not all, or ``""``.

        is_open: Whether it is unfolded at first.

        below: The branches that follow.

        rest: Who takes branches that are not shown, or ``""``.
    """

    number: int
    who: str
    whole: str
    count: int
    role: str
    runs: tuple[Run, ...]
    leads: str
    here: str
    ranks: tuple[int, ...]
    notes: tuple[str, ...]
    is_culprit: bool
    culprits: str
    is_open: bool
    below: tuple[Branch, ...]
    rest: str


@attrs.frozen(kw_only=True)
class Picture:
    """
    What is shown of a tree.

    Attributes:
        branches: The outermost branches.

        rest: Who takes outermost branches that are not shown, or ``""``.

        branch_of: The number of the branch in which each process is; -1 if
            it is not shown.
    """

    branches: tuple[Branch, ...]
    rest: str
    branch_of: tuple[int, ...]


def cut_tree(tree: StackTree, culprits: AbstractSet[int]) -> Picture:
    """
    Which branches does a page show, and what stands in them?

    Args:
        tree: The merged stacks.

        culprits: Who is to blame, as positions in the tree's *processes*.

    Returns:
        At most some hundred branches; those of culprits first, then the
        largest.
    """
    cuts, roots, rest = choose_cuts(tree, culprits)
    notes = notes_on(tree, [cut.chain[-1] for cut in cuts], culprits)
    made: dict[int, Branch] = {}
    # What is below a branch was found after it.
    for number in range(len(cuts) - 1, -1, -1):
        cut = cuts[number]
        made[number] = _branch(
            tree,
            cut,
            number=number,
            below=tuple(made.pop(child) for child in cut.below),
            notes=tuple(notes.get(cut.chain[-1], ())),
            is_open=bool(cut.culprits)
            or not cut.depth
            or len(cuts) <= _MOST_OPEN,
        )
    return Picture(
        branches=tuple(made[number] for number in roots),
        rest=_rest(tree, rest),
        branch_of=_branch_of(tree, cuts),
    )


def _branch_of(tree: StackTree, cuts: Sequence[Cut]) -> tuple[int, ...]:
    found = [-1] * len(tree.processes)
    for number, cut in enumerate(cuts):
        for node in cut.rest:
            for member in tree.members[node]:
                found[member] = number
        for member in tree.ends[cut.chain[-1]]:
            found[member] = number
    return tuple(found)


def _branch(
    tree: StackTree, cut: Cut, *, below: tuple[Branch, ...], **values: Any
) -> Branch:
    members = tree.members[cut.chain[0]]
    ends = tree.ends[cut.chain[-1]]
    goes_on = bool(below or cut.rest)
    is_culprit = len(cut.culprits) == len(members)
    whole = who_text(tree, members, limit=_MOST_WHOLE)
    who = clean(whole, limit=_MOST_WHO)
    return Branch(
        who=who,
        whole="" if who == whole else whole,
        count=len(members),
        role=_role(tree, members),
        runs=runs_of(tree, cut.chain),
        leads=_leads(tree, cut),
        here=who_text(tree, ends) if ends and goes_on else "",
        ranks=_ranks(tree, ends),
        is_culprit=is_culprit,
        culprits="" if is_culprit else who_text(tree, cut.culprits),
        below=below,
        rest=_rest(tree, cut.rest),
        **values,
    )


def _leads(tree: StackTree, cut: Cut) -> str:
    """
    The innermost line of the user in a branch, and its innermost line.
    """
    own = next((n for n in reversed(cut.chain) if tree.own[n]), None)
    nodes = dict.fromkeys(
        (cut.chain[-1] if own is None else own, cut.chain[-1])
    )
    lines = [line_of(tree.frames[node]) for node in nodes]
    said = " → ".join(
        f"{line.name} ({line.place})" if line.place else line.name
        for line in lines
    )
    places = len(cut.below) + len(cut.rest)
    if places:
        said += f" → {_count(places, 'branch')}"
    return clean(said)


def _role(tree: StackTree, members: Sequence[int]) -> str:
    roles = {tree.processes[member].role for member in members}
    role = roles.pop() if len(roles) == 1 else ""
    return "" if role == "rank" else clean(role)


def _ranks(tree: StackTree, ends: Sequence[int]) -> tuple[int, ...]:
    # In several jobs, a number does not tell who is meant.
    if len(ends) > _MOST_RANKS or tree.has_jobs:
        return ()

    found = {tree.processes[member].rank for member in ends}
    return tuple(sorted(rank for rank in found if rank is not None))


def _rest(tree: StackTree, heads: Sequence[int]) -> str:
    if not heads:
        return ""

    members = sorted({m for head in heads for m in tree.members[head]})
    number = _count(len(heads), "more branch")
    return f"{number}: {who_text(tree, members)}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 'es'}"
