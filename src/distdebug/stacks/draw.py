"""
Which branches does a tree of stacks have?

What nobody parts from is one branch, with the ranks that went there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .._showing import Branch
from .._text import clean
from .frames import normal_frames
from .model import StackFrame
from .places import native_name


if TYPE_CHECKING:
    from .merge import StackTree


__all__ = ["branches"]

_WIDTH = 96
# Frames of frameworks in a row that are shown: the first, and the last.
_MOST_FOREIGN = 3
_MOST_WHO = 40


def branches(tree: StackTree) -> list[Branch]:
    """
    Which branches does this tree have?

    Args:
        tree: The merged stacks.

    Returns:
        Each with the processes that took it; ``*`` marks lines of the user;
        the innermost frame comes last.
    """
    below: list[list[int]] = [[] for _ in tree.frames]
    roots: list[int] = []
    for node, parent in enumerate(tree.parents):
        (below[parent] if parent >= 0 else roots).append(node)
    return [*_branches(tree, below, roots), *_absent(tree)]


def _branches(
    tree: StackTree, below: Sequence[Sequence[int]], roots: Sequence[int]
) -> Iterator[Branch]:
    # Stacks may be deeper than Python can call itself.
    todo = [(0, node) for node in _largest_last(tree, roots)]
    while todo:
        depth, node = todo.pop()
        chain = [node]
        while len(below[node]) == 1 and not tree.ends[node]:
            (node,) = below[node]
            chain.append(node)

        who = clean(tree.who(tree.members[node]), limit=_MOST_WHO)
        parts = [*_shown(tree, chain)]
        if name := native_function(tree, node):
            parts.append(f"{clean(name, limit=_WIDTH)} (native)")
        yield Branch(depth, who, parts)
        if tree.ends[node] and below[node]:
            here = clean(tree.who(tree.ends[node]), limit=_MOST_WHO)
            yield Branch(depth + 1, f"{here} (here)")
        todo += (
            (depth + 1, child) for child in _largest_last(tree, below[node])
        )


def _largest_last(tree: StackTree, nodes: Sequence[int]) -> list[int]:
    # What is pushed last is drawn first.
    return sorted(nodes, key=lambda n: (len(tree.members[n]), -n))


def _shown(tree: StackTree, chain: Sequence[int]) -> Iterator[str]:
    """
    The frames of a chain; of many foreign ones in a row, two.
    """
    foreign: list[int] = []
    for node in chain:
        if tree.own[node]:
            yield from _foreign(tree, foreign)
            foreign = []
            yield f"* {_brief(tree.frames[node])}"
        else:
            foreign.append(node)
    yield from _foreign(tree, foreign)


def _foreign(tree: StackTree, nodes: Sequence[int]) -> Iterator[str]:
    if len(nodes) <= _MOST_FOREIGN:
        yield from (_brief(tree.frames[node]) for node in nodes)
    else:
        yield _brief(tree.frames[nodes[0]])
        yield f"… {len(nodes) - 2} more"
        yield _brief(tree.frames[nodes[-1]])


def native_function(tree: StackTree, node: int) -> str:
    """
    Which native function are all in that are at this place?

    Args:
        tree: The merged stacks.

        node: A position in its columns.

    Returns:
        Its name, as a tool told it; ``""`` if it is unknown, or if there are
        several.
    """
    names = set()
    for member in tree.ends[node]:
        thread = tree.processes[member].main_thread
        # Of other threads it is not known which one ends here.
        if thread is None or not thread.native or not thread.frames:
            return ""
        is_here = tree.frames[node] == normal_frames(thread.frames)[0]
        names.add(native_name(thread.native) if is_here else "")
    return names.pop() if len(names) == 1 else ""


def _brief(frame: StackFrame) -> str:
    return clean(str(frame), limit=_WIDTH)


def _absent(tree: StackTree) -> Iterator[Branch]:
    """
    Processes that have no stack, by their state.
    """
    seen = {member for ends in tree.ends for member in ends}
    states: dict[str, list[int]] = {}
    for member, process in enumerate(tree.processes):
        if member not in seen:
            states.setdefault(process.state, []).append(member)
    for state, members in states.items():
        why = f" (state {clean(state)})" if state else ""
        who = clean(tree.who(members), limit=_MOST_WHO)
        yield Branch(0, who, [f"no stack{why}"])
