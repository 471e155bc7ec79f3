"""
What does the page show of the waits?
"""

from __future__ import annotations

from typing import Any

from ...._text import clean
from ....findings import Diagnosis
from ...section import Section
from .boxes import Box, Graph, graph_of
from .folding import circles, fold
from .layout import Layout, lay_out
from .routes import HEIGHT, WIDTH
from .words import (
    box_name,
    box_note,
    few_ranks,
    many_ranks,
    sentences,
    shortened,
)


__all__ = ["graph_section"]

_MARKS = {
    "culprit": "✕",
    "suspect": "!",
    "lost": "?",
    "victim": "",
    "call": "",
}


def graph_section(diagnosis: Diagnosis) -> Section | None:
    """
    Who waits for whom?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        A picture, and the same in sentences; None if nobody waits.
    """
    whole = graph_of(diagnosis)
    if whole is None:
        return None

    graph = fold(whole)
    rings = circles(graph)
    arrows = sorted(graph.arrows)
    boxes = [_box(box, diagnosis) for box in graph.boxes]
    told = sentences(graph, rings)
    return Section(
        name="graph",
        title="Who waits for whom",
        summary=_summary(whole, rings),
        values={
            "boxes": boxes,
            "pictures": [
                _picture(graph, arrows, rings, is_tall=is_tall)
                for is_tall in (False, True)
            ],
            "box_size": (WIDTH, HEIGHT),
            "told": told,
            "is_circle": bool(rings),
            "kinds": sorted({box["kind"] for box in boxes}),
        },
        data={"ranks": [_span(box) for box in graph.boxes]},
    )


def _picture(
    graph: Graph,
    arrows: list[tuple[int, int]],
    rings: list[list[int]],
    *,
    is_tall: bool,
) -> dict[str, Any]:
    """
    One for wide screens, one for narrow ones: nobody scrolls for a culprit.
    """
    layout = lay_out(len(graph.boxes), arrows, rings, is_tall=is_tall)
    return {
        "kind": "tall" if is_tall else "wide",
        "size": layout.size,
        "places": [
            (round(x - WIDTH / 2), round(y - HEIGHT / 2))
            for x, y in layout.places
        ],
        "arrows": _arrows(arrows, layout, graph),
    }


def _box(box: Box, diagnosis: Diagnosis) -> dict[str, Any]:
    findings = (diagnosis.verdict, *diagnosis.findings)
    name, note = box_name(box), box_note(box, findings)
    wait = box.waits[0] if box.waits else None
    mark = "" if wait else _MARKS[box.role]
    # Fonts differ: so much fits in wide ones.
    longest = (22, 20) if wait else (15 if mark else 18, 22)
    short = shortened if wait else few_ranks
    return {
        "kind": box.role,
        "is_lost": box.is_lost,
        "mark": mark,
        "name": short(name, longest[0]),
        "note": shortened(note, longest[1]),
        "full": shortened(f"{name}: {note}" if note else name, 300),
        "rank": None if wait or len(box.ranks) != 1 else box.ranks[0],
        "group": clean(wait.group) if wait and len(box.waits) == 1 else None,
        "seq": wait.seq if wait and len(box.waits) == 1 else None,
    }


def _arrows(
    arrows: list[tuple[int, int]], layout: Layout, graph: Graph
) -> list[dict[str, Any]]:
    ring_of = {box: i for i, ring in enumerate(layout.rings) for box in ring}
    return [
        {
            "path": path,
            "kind": "circle"
            if a in ring_of and ring_of[a] == ring_of.get(b)
            else "blame"
            if graph.boxes[b].role == "culprit"
            else "wait",
        }
        for (a, b), path in zip(arrows, layout.paths, strict=True)
    ]


def _summary(graph: Graph, rings: list[list[int]]) -> str:
    culprits = [b for b in graph.boxes if b.role == "culprit"]
    at_fault = sorted({r for b in culprits for r in b.ranks})
    boxes = [graph.boxes[i] for i in sorted({a for a, _ in graph.arrows})]
    waiting = {r for b in boxes if not b.waits for r in b.ranks}
    waiting.difference_update(at_fault)
    if rings:
        return "a circle: nobody can go on"
    if not at_fault:
        return f"{len(waiting):,} ranks wait"

    text = many_ranks(at_fault)
    if not waiting:
        return f"it begins at {text}"

    verb = "waits" if len(waiting) == 1 else "wait"
    noun = "rank" if len(waiting) == 1 else "ranks"
    return f"{len(waiting):,} {noun} {verb} for {text}"


def _span(box: Box) -> list[list[int]]:
    """
    The ranks of a box as ranges, so that a rank is found in it.
    """
    spans: list[list[int]] = []
    for rank in () if box.waits else box.ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])

    return spans
