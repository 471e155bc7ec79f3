"""
Where on paper does each box stand, and how do the arrows run?

Layers run from left to right, or on narrow screens from top to bottom.  Boxes
that wait for each other stand in a circle, which takes one place in its layer.
"""

from __future__ import annotations

import math

from collections.abc import Sequence

import attrs

from ....waits import components
from .layers import in_layers
from .routes import HEIGHT, WIDTH, Point, along, between


__all__ = ["Layout", "lay_out"]

# The room between layers, and within them, in pixels.
_ACROSS, _DOWN = 54, 20
_MARGIN = 8
# Of an arrow that passes a layer.
_BEND = 6


@attrs.frozen(kw_only=True)
class Layout:
    """
    A picture without words.

    Attributes:
        size: Width and height, in pixels.

        places: The middle of each box.

        paths: For each arrow, the path that SVG draws.

        rings: The boxes that stand in a circle, by circle.
    """

    size: tuple[int, int]
    places: tuple[Point, ...]
    paths: tuple[str, ...]
    rings: tuple[tuple[int, ...], ...]


@attrs.frozen
class _Spot:
    """
    The middle of what stands in a layer, and how wide that layer is.
    """

    x: float
    y: float
    width: float

    @property
    def sides(self) -> tuple[float, float, float]:
        """
        From where to where the layer runs, and how high.
        """
        return self.x - self.width / 2, self.x + self.width / 2, self.y


def lay_out(
    count: int,
    arrows: Sequence[tuple[int, int]],
    circles: Sequence[Sequence[int]] = (),
    *,
    is_tall: bool = False,
) -> Layout:
    """
    Find a place for each box and a way for each arrow.

    Args:
        count: How many boxes there are.

        arrows: Which points to which, as index.

        circles: Boxes that wait for each other, in order.

        is_tall: Whether the layers run from top to bottom.

    Returns:
        The layout; the same for the same arguments.
    """
    turned = _swapped if is_tall else _kept
    parts = _parts(count, arrows, circles)
    part_of = {box: i for i, part in enumerate(parts) for box in part}
    links = {(part_of[a], part_of[b]) for a, b in arrows}
    layers = in_layers(len(parts), {(a, b) for a, b in links if a != b})
    extents = [turned(_extent(part)) for part in parts]
    spots, size = _spots(layers.layers, extents)
    # Where layers run from left to right, whatever the paper is like.
    flat = {
        box: (spots[i].x + turned(offset)[0], spots[i].y + turned(offset)[1])
        for i, part in enumerate(parts)
        for box, offset in zip(part, _ring(len(part)), strict=True)
    }
    bends = {
        link: [spots[bend].sides for bend in passed]
        for link, passed in layers.bends.items()
    }
    places = {box: turned(place) for box, place in flat.items()}
    return Layout(
        size=(round(turned(size)[0]), round(turned(size)[1])),
        places=tuple(places[i] for i in range(count)),
        paths=tuple(
            between(places[a], places[b])
            if part_of[a] == part_of[b]
            else along(flat[a], bends[part_of[a], part_of[b]], flat[b], turned)
            for a, b in arrows
        ),
        rings=tuple(tuple(part) for part in parts if len(part) > 1),
    )


def _kept(point: Point) -> Point:
    return point


def _swapped(point: Point) -> Point:
    return point[1], point[0]


def _parts(
    count: int,
    arrows: Sequence[tuple[int, int]],
    circles: Sequence[Sequence[int]],
) -> list[list[int]]:
    """
    Each circle, and each other box alone; what is pointed to comes first.
    """
    targets: list[list[int]] = [[] for _ in range(count)]
    for a, b in arrows:
        targets[a].append(b)
    ordered = {frozenset(circle): list(circle) for circle in circles}
    return [
        ordered.get(frozenset(part), list(part))
        for part in components(targets)
    ]


def _spots(
    layers: Sequence[Sequence[int]], extents: Sequence[Point]
) -> tuple[dict[int, _Spot], Point]:
    """
    Where everything stands, and how large the picture is.
    """
    high = dict(enumerate(extent[1] for extent in extents))
    heights = [
        sum(high.get(part, _BEND) for part in layer) + _DOWN * (len(layer) - 1)
        for layer in layers
    ]
    tallest = max(heights, default=0)
    spots: dict[int, _Spot] = {}
    x = float(_MARGIN)
    for layer, height in zip(layers, heights, strict=True):
        width = max(extents[part][0] for part in layer if part in high)
        y = _MARGIN + (tallest - height) / 2
        for part in layer:
            own = high.get(part, _BEND)
            spots[part] = _Spot(x + width / 2, y + own / 2, width)
            y += own + _DOWN
        x += width + _ACROSS

    return spots, (x - _ACROSS + _MARGIN, tallest + 2 * _MARGIN)


def _ring(count: int) -> list[Point]:
    """
    Places around the middle, clockwise from the left.
    """
    if count == 1:
        return [(0.0, 0.0)]

    rx, ry = _radii(count)
    angles = [math.pi + 2 * math.pi * i / count for i in range(count)]
    return [(rx * math.cos(a), ry * math.sin(a)) for a in angles]


def _radii(count: int) -> Point:
    return (
        max(WIDTH * 0.78, count * WIDTH * 0.19),
        0 if count == 2 else max(HEIGHT * 1.7, count * HEIGHT * 0.42),
    )


def _extent(part: Sequence[int]) -> Point:
    rx, ry = _radii(len(part)) if len(part) > 1 else (0, 0)
    return WIDTH + 2 * rx, HEIGHT + 2 * ry
