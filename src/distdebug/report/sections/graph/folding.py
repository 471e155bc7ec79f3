"""
How do hundreds of waits become a picture that is read at a glance?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ....findings import GroupRef
from ....waits import components
from .boxes import Box, Graph


__all__ = ["circles", "fold"]

# So many boxes are read one by one.
_FEW = 14
_MOST = 24
_ROUNDS = 12


def fold(graph: Graph, *, few: int = _FEW, most: int = _MOST) -> Graph:
    """
    Join what is alike, and leave out what matters least.

    Boxes are alike if they look the same and point to, and are pointed to by,
    boxes that are alike (the coarsest such partition, by refinement).

    Args:
        graph: All waits.

        few: So many boxes are left as they are.

        most: So many are shown at most.

    Returns:
        A graph of at most *most* boxes.
    """
    if len(graph.boxes) > few:
        graph = _joined(graph, _classes(graph))

    return _cut(graph, most)


def circles(graph: Graph) -> list[list[int]]:
    """
    Which boxes wait for each other?

    Args:
        graph: Any graph.

    Returns:
        Each circle in the order of its arrows, as far as it has one.
    """
    targets = _targets(graph)
    return [
        _walk(part, targets)
        for part in components(targets)
        if len(part) > 1 or part[0] in targets[part[0]]
    ]


def _walk(part: Sequence[int], targets: Sequence[Sequence[int]]) -> list[int]:
    members, order, todo = set(part), dict[int, None](), [part[0]]
    while todo:
        node = todo.pop()
        if node not in order:
            order[node] = None
            todo += [t for t in reversed(targets[node]) if t in members]

    return list(order)


def _targets(graph: Graph) -> list[list[int]]:
    targets: list[list[int]] = [[] for _ in graph.boxes]
    for a, b in sorted(graph.arrows):
        targets[a].append(b)

    return targets


def _classes(graph: Graph) -> list[int]:
    colors = _numbered([_look(box) for box in graph.boxes])
    for _ in range(_ROUNDS):
        around: list[set[tuple[bool, int]]] = [set() for _ in colors]
        for a, b in graph.arrows:
            around[a].add((True, colors[b]))
            around[b].add((False, colors[a]))
        finer = _numbered(
            [(c, frozenset(s)) for c, s in zip(colors, around, strict=True)]
        )
        if len(set(finer)) == len(set(colors)):
            break
        colors = finer

    return colors


def _look(box: Box) -> object:
    if not box.waits:
        return box.role, box.is_lost

    wait = box.waits[0]
    ref = GroupRef(name=wait.group, desc=wait.desc, ranks=())
    return str(ref) if wait.desc else "", wait.op.partition(" ")[0], wait.p2p


def _numbered(keys: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _joined(graph: Graph, colors: Sequence[int]) -> Graph:
    alike: dict[int, list[Box]] = defaultdict(list)
    for box, color in zip(graph.boxes, colors, strict=True):
        alike[color].append(box)
    boxes = [
        Box(
            ranks=tuple(sorted({r for b in same for r in b.ranks})),
            role=same[0].role,
            is_lost=same[0].is_lost,
            waits=tuple(w for b in same for w in b.waits),
        )
        for _, same in sorted(alike.items())
    ]
    arrows = frozenset((colors[a], colors[b]) for a, b in graph.arrows)
    return Graph(boxes=tuple(boxes), arrows=arrows, left_out=graph.left_out)


def _cut(graph: Graph, most: int) -> Graph:
    """
    Keep what is nearest to those at fault, and count the other calls.
    """
    if len(graph.boxes) <= most:
        return graph

    nearest = set(_by_importance(graph)[:most])
    entered = {b for a, b in graph.arrows if a in nearest}
    # A call without those who wait in it explains nothing.
    kept = sorted(
        i for i in nearest if i in entered or not graph.boxes[i].waits
    )
    new = {old: i for i, old in enumerate(kept)}
    gone = [b for i, b in enumerate(graph.boxes) if i not in new]
    return Graph(
        boxes=tuple(graph.boxes[i] for i in kept),
        arrows=frozenset(
            (new[a], new[b]) for a, b in graph.arrows if a in new and b in new
        ),
        left_out=graph.left_out + sum(len(box.waits) for box in gone),
    )


def _by_importance(graph: Graph) -> list[int]:
    around: list[list[int]] = [[] for _ in graph.boxes]
    for a, b in sorted(graph.arrows):
        around[b].append(a)
        around[a].append(b)
    in_circle = {i for circle in circles(graph) for i in circle}
    rank = {"culprit": 0, "suspect": 1, "lost": 2, "call": 3, "victim": 4}
    order = sorted(
        range(len(graph.boxes)),
        key=lambda i: (
            rank[graph.boxes[i].role],
            i not in in_circle,
            -len(graph.boxes[i].ranks),
            i,
        ),
    )
    found: dict[int, None] = {}
    for start in order:
        todo = [start]
        for node in todo:
            if node not in found:
                found[node] = None
                todo += around[node]

    return list(found)
