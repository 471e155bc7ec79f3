"""
How does a tree of stacks look on a terminal?

What nobody parts from is drawn on few lines; what follows a fork is indented
below it, with the ranks that went there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .._text import clean
from .frames import normal_frames
from .model import StackFrame
from .places import native_name


if TYPE_CHECKING:
    from .merge import StackTree


__all__ = ["draw_tree"]

_WIDTH = 96
# Frames of frameworks in a row that are shown: the first, and the last.
_MOST_FOREIGN = 3
_MOST_WHO = 40


def draw_tree(tree: StackTree) -> str:
    """
    How does this tree look?

    Args:
        tree: The merged stacks.

    Returns:
        Its lines.  A branch begins with the processes that took it; ``*``
        marks lines of the user; the innermost frame comes last.
    """
    below: list[list[int]] = [[] for _ in tree.frames]
    roots: list[int] = []
    for node, parent in enumerate(tree.parents):
        (below[parent] if parent >= 0 else roots).append(node)
    lines = list(_branches(tree, below, roots))
    lines += _absent(tree)
    return "\n".join(lines)


def _branches(
    tree: StackTree, below: Sequence[Sequence[int]], roots: Sequence[int]
) -> Iterator[str]:
    # Stacks may be deeper than Python can call itself.
    todo = [("", node, True) for node in _largest_last(tree, roots)]
    while todo:
        indent, node, is_root = todo.pop()
        chain = [node]
        while len(below[node]) == 1 and not tree.ends[node]:
            (node,) = below[node]
            chain.append(node)

        who = clean(tree.who(tree.members[node]), limit=_MOST_WHO)
        yield f"{indent}{'' if is_root else '▸ '}{who}"
        inner = indent + ("  " if is_root else "    ")
        parts = [*_shown(tree, chain), *_natively(tree, node)]
        yield from _wrapped(inner, parts)
        if tree.ends[node] and below[node]:
            here = clean(tree.who(tree.ends[node]), limit=_MOST_WHO)
            yield f"{inner}▸ {here} (here)"
        todo += (
            (inner, child, False) for child in _largest_last(tree, below[node])
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


def _natively(tree: StackTree, node: int) -> Iterator[str]:
    """
    The native function that all are in that are at a node, if it is one.
    """
    names = set()
    for member in tree.ends[node]:
        thread = tree.processes[member].main_thread
        # Of other threads it is not known which one ends here.
        if thread is None or not thread.native or not thread.frames:
            return
        is_here = tree.frames[node] == normal_frames(thread.frames)[0]
        names.add(native_name(thread.native) if is_here else "")
    if len(names) == 1 and (name := names.pop()):
        yield f"{clean(name, limit=_WIDTH)} (native)"


def _brief(frame: StackFrame) -> str:
    return clean(str(frame), limit=_WIDTH)


def _wrapped(indent: str, parts: Sequence[str]) -> Iterator[str]:
    line = ""
    for part in parts:
        longer = f"{line} → {part}" if line else part
        if line and len(indent) + len(longer) > _WIDTH:
            yield f"{indent}{line} →"
            line = part
        else:
            line = longer
    yield f"{indent}{line}"


def _absent(tree: StackTree) -> Iterator[str]:
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
        yield f"{clean(tree.who(members), limit=_MOST_WHO)}\n  no stack{why}"
