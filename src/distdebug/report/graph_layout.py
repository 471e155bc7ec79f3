"""
Where on paper does each box stand, and how do the arrows run?

Layers run from left to right, or on narrow screens from top to bottom.  Boxes
that wait for each other stand in a circle, which takes one place in its layer.
"""

from __future__ import annotations

import math

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import attrs

from ..waits import components


_SWEEPS = 4

Link = tuple[int, int]


@attrs.frozen(kw_only=True)
class Layers:
    """
    What stands beside what.

    Attributes:
        layers: The numbers of each layer, in order; numbers from *count* on
            are bends.

        bends: For each link, the bends that it is led through, so that it
            passes behind nothing.
    """

    layers: list[list[int]]
    bends: Mapping[Link, tuple[int, ...]]


def in_layers(count: int, links: Iterable[Link]) -> Layers:
    """
    In which layer does each thing stand, and in which order?

    Args:
        count: How many there are; each points to smaller numbers only.

        links: Which points to which.

    Returns:
        The layers, from the first to the last.
    """
    links = sorted(links)
    layers = _by_depth(count, links)
    ways = _bent(layers, links)
    steps = {step for way in ways.values() for step in pairwise(way)}
    return Layers(
        layers=_in_order(layers, sorted(steps)),
        bends={link: tuple(way[1:-1]) for link, way in ways.items()},
    )


def _by_depth(count: int, links: Iterable[Link]) -> list[list[int]]:
    """
    The last layer waits for nobody.
    """
    depth = [0] * count
    for a, b in links:
        depth[a] = max(depth[a], depth[b] + 1)
    layers: dict[int, list[int]] = defaultdict(list)
    for part in range(count):
        layers[depth[part]].append(part)

    return [layers[d] for d in sorted(layers, reverse=True)]


def _bent(
    layers: list[list[int]], links: Iterable[Link]
) -> dict[Link, list[int]]:
    """
    Give each link a place in the layers between; one for all with one target.
    """
    layer_of = {part: i for i, layer in enumerate(layers) for part in layer}
    bends: dict[Link, int] = {}
    ways = {}
    for a, b in links:
        between = [
            bends.setdefault((layer, b), len(layer_of) + len(bends))
            for layer in range(layer_of[a] + 1, layer_of[b])
        ]
        ways[a, b] = [a, *between, b]
    for (layer, _), bend in bends.items():
        layers[layer].append(bend)

    return ways


def _in_order(
    layers: list[list[int]], steps: Sequence[Link]
) -> list[list[int]]:
    """
    Order each layer so that few arrows cross (barycenters).
    """
    around: dict[int, list[int]] = defaultdict(list)
    for a, b in steps:
        around[a].append(b)
        around[b].append(a)
    height = {
        part: i - len(layer) / 2
        for layer in layers
        for i, part in enumerate(layer)
    }
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 else reversed(layers):
            mean = {
                part: sum(height[o] for o in around[part])
                / max(len(around[part]), 1)
                for part in layer
            }
            layer.sort(key=lambda part: (mean[part], part))
            for i, part in enumerate(layer):
                height[part] = i - len(layer) / 2

    return layers


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
