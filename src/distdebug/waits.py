"""
Wait graph of stuck calls: its cycles, and the calls where the waiting begins.

A call that does not complete waits for ranks; those ranks wait in other calls.
The graph is over *calls* (one stuck call per process group or pair of ranks),
never rank by rank: a world of 16,384 ranks that waits in one collective is one
node, not 268 million edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from ._text import time_text


@attrs.frozen(kw_only=True)
class Wait:
    """
    One stuck call, the ranks that wait in it, and the ranks they wait for.

    Attributes:
        group: Name of the process group.

        op: The operation without its backend.

        seq: Its sequence number in the group.

        p2p: Whether it is point-to-point.

        waiting: Ranks whose call is not complete, ascending.

        awaited: Ranks that did not enter it, ascending.

        since_ns: When the first of *waiting* entered it, in nanoseconds since
            the epoch by the clock of its host; 0 if unknown.

        desc: Description of the process group.
    """

    group: str
    op: str
    seq: int
    p2p: bool
    waiting: tuple[int, ...]
    awaited: tuple[int, ...]
    since_ns: int = 0
    desc: str = ""


def waiting_text(count: int, seconds: float | None, where: str = "") -> str:
    """
    Say how many ranks have waited, and for how long if that is known.

    Args:
        where: In which call, or for whom, with a blank in front.

    >>> from distdebug.waits import waiting_text
    >>> waiting_text(3, 36)
    '3 ranks have been waiting for 36 s'
    """
    who = f"{count} rank{'s' if count != 1 else ''}"
    if not seconds:
        return f"{who} {'are' if count != 1 else 'is'} waiting{where}"
    have = "have" if count != 1 else "has"
    comma = "," if where else ""
    shown = time_text(seconds)
    return f"{who} {have} been waiting{where}{comma} for {shown}"


def strongly_connected_components(
    edges: Sequence[Iterable[int]],
) -> list[list[int]]:
    """
    Find the strongly connected components of a graph, and so its cycles.

    Args:
        edges: For each node ``0 … n-1``, the nodes it points to.

    Returns:
        The components (Tarjan 1972); each comes after every component that it
        points to.  Each is sorted.
    """
    state = _Tarjan(edges)
    for node in range(len(edges)):
        if node not in state.index:
            state.visit(node)

    return state.found


class _Tarjan:
    """
    A depth-first search without recursion: chains can be long.
    """

    def __init__(self, edges: Sequence[Iterable[int]]) -> None:
        self.edges = [sorted(set(targets)) for targets in edges]
        self.index: dict[int, int] = {}
        self.low: dict[int, int] = {}
        self.stack: list[int] = []
        self.on_stack: set[int] = set()
        self.found: list[list[int]] = []

    def visit(self, start: int) -> None:
        """
        Search every node that *start* leads to.
        """
        path = [(start, iter(self._enter(start)))]
        while path:
            node, targets = path[-1]
            for target in targets:
                if target not in self.index:
                    path.append((target, iter(self._enter(target))))
                    break
                if target in self.on_stack:
                    self.low[node] = min(self.low[node], self.index[target])
            else:
                path.pop()
                self._leave(node, path[-1][0] if path else None)

    def _enter(self, node: int) -> list[int]:
        self.index[node] = self.low[node] = len(self.index)
        self.stack.append(node)
        self.on_stack.add(node)
        return self.edges[node]

    def _leave(self, node: int, parent: int | None) -> None:
        if parent is not None:
            self.low[parent] = min(self.low[parent], self.low[node])
        if self.low[node] != self.index[node]:
            return

        members = [self.stack.pop()]
        while members[-1] != node:
            members.append(self.stack.pop())
        self.on_stack.difference_update(members)
        self.found.append(sorted(members))


def find_sinks(
    parts: Sequence[Sequence[int]], edges: Sequence[Iterable[int]]
) -> list[Sequence[int]]:
    """
    Find the components that point to no other one: there the waiting begins.

    Args:
        parts: Returned by :func:`strongly_connected_components`.

        edges: Its argument.

    Returns:
        The sinks among *parts*, in the same order.
    """
    part_of = {node: i for i, part in enumerate(parts) for node in part}
    return [
        part
        for i, part in enumerate(parts)
        if all(part_of[t] == i for node in part for t in edges[node])
    ]


def find_reachable(
    starts: Iterable[int], edges: Mapping[int, Iterable[int]]
) -> set[int]:
    """
    Find every node that *starts* lead to, *starts* included.

    Args:
        edges: For each node, the nodes it points to; a missing node has none.
    """
    seen = set(starts)
    todo = list(seen)
    while todo:
        for target in edges.get(todo.pop(), ()):
            if target not in seen:
                seen.add(target)
                todo.append(target)

    return seen
