"""
What do processes do at the place where they are?
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ...._text import clean
from ....findings import Cause
from ....stacks.draw import native_function
from ....stacks.explain import explain_ranks
from ....stacks.kernels import short_name
from ....stacks.merge import StackTree
from ....stacks.model import ProcessStacks
from ....stacks.view import ProcessView, agree
from .who import who_text


__all__ = ["absent_from", "notes_on"]

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
