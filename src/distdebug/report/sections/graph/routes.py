"""
How does an arrow run from one box to another?
"""

from __future__ import annotations

import math

from collections.abc import Callable, Iterable


__all__ = ["HEIGHT", "WIDTH", "Point", "along", "between"]

# Of a box, in pixels.
WIDTH, HEIGHT = 176, 52
# What the tip of an arrow takes.
_TIP = 3

Point = tuple[float, float]


def along(
    start: Point,
    bends: Iterable[tuple[float, float, float]],
    end: Point,
    turned: Callable[[Point], Point],
) -> str:
    """
    How does an arrow run from layer to layer?

    Args:
        start: The middle of the box that it leaves, where layers run from
            left to right.

        bends: From where to where it runs straight between, and how high.

        end: The middle of the box that it points to.

        turned: Puts a point onto the paper.

    Returns:
        The path that SVG draws.
    """
    half = abs(turned((WIDTH / 2, HEIGHT / 2))[0])
    x, y = start[0] + half, start[1]
    steps = [f"M{_written(turned((x, y)))}"]
    last = end[0] - half - _TIP
    for left, right, height in (*bends, (last, last, end[1])):
        reach = min(max((left - x) / 2, 20), 90)
        stops = ((x + reach, y), (left - reach, height), (left, height))
        steps.append(f"C{' '.join(_written(turned(p)) for p in stops)}")
        if right > left:
            steps.append(f"L{_written(turned((right, height)))}")
        x, y = right, height

    return "".join(steps)


def between(start: Point, end: Point) -> str:
    """
    How does an arrow run within a circle?

    It runs from border to border along the line between the middles, bent a
    little to its left, so that two ways between the same boxes stay apart.

    Args:
        start: The middle of the box that it leaves, on paper.

        end: The middle of the box that it points to.

    Returns:
        The path that SVG draws.
    """
    (x1, y1), (x2, y2) = start, end
    middle = (
        (x1 + x2) / 2 + 0.14 * (y2 - y1),
        (y1 + y2) / 2 - 0.14 * (x2 - x1),
    )
    begin, tip = _border(start, middle, 0), _border(end, middle, _TIP + 1)
    return f"M{_written(begin)}Q{_written(middle)} {_written(tip)}"


def _border(box: Point, towards: Point, gap: float) -> Point:
    """
    Where the way from a box to a point leaves the box.
    """
    dx, dy = towards[0] - box[0], towards[1] - box[1]
    scale = min(
        (WIDTH / 2 + gap) / abs(dx) if dx else math.inf,
        (HEIGHT / 2 + gap) / abs(dy) if dy else math.inf,
    )
    return (box[0] + dx * scale, box[1] + dy * scale)


def _written(point: Point) -> str:
    return f"{point[0]:.0f} {point[1]:.0f}"
