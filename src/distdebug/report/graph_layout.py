"""
Lay out a graph in layers: positions of boxes, paths of arrows.

Layers run from left to right, or on narrow screens from top to bottom.  Boxes
that wait for each other form a circle, which takes one place in its layer.
"""

from __future__ import annotations

import math

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import attrs


_ORDER_SWEEPS = 4

Link = tuple[int, int]


def _assign_layers(
    count: int, links: Iterable[Link]
) -> tuple[list[list[int]], dict[Link, list[int]]]:
    """
    Assign parts to layers, and order each layer.

    Args:
        count: Number of parts; each points to smaller numbers only.

        links: Pairs of parts.

    Returns:
        The parts of each layer, in order, where numbers from *count* on are
        bends; and the bends that route each link around parts.
    """
    links = sorted(links)
    layers = _layers_by_depth(count, links)
    routes = _route_links(layers, links)
    steps = {step for route in routes.values() for step in pairwise(route)}
    bends = {link: route[1:-1] for link, route in routes.items()}
    return _reduce_crossings(layers, sorted(steps)), bends


def _layers_by_depth(count: int, links: Iterable[Link]) -> list[list[int]]:
    """
    Sort nodes into layers; the last layer waits for nothing.
    """
    depth = [0] * count
    for a, b in links:
        depth[a] = max(depth[a], depth[b] + 1)
    layers: dict[int, list[int]] = defaultdict(list)
    for part in range(count):
        layers[depth[part]].append(part)

    return [layers[d] for d in sorted(layers, reverse=True)]


def _route_links(
    layers: list[list[int]], links: Iterable[Link]
) -> dict[Link, list[int]]:
    """
    Add bends in the layers between; links with the same target share them.
    """
    layer_of = {part: i for i, layer in enumerate(layers) for part in layer}
    bends: dict[Link, int] = {}
    routes = {}
    for a, b in links:
        bends_between = [
            bends.setdefault((layer, b), len(layer_of) + len(bends))
            for layer in range(layer_of[a] + 1, layer_of[b])
        ]
        routes[a, b] = [a, *bends_between, b]
    for (layer, _), bend in bends.items():
        layers[layer].append(bend)

    return routes


def _reduce_crossings(
    layers: list[list[int]], steps: Sequence[Link]
) -> list[list[int]]:
    """
    Order each layer so that few arrows cross (barycenter method).
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
    for sweep in range(_ORDER_SWEEPS):
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


# Size of a box, in pixels.
WIDTH, HEIGHT = 176, 52
# Length of an arrow tip, in pixels.
_ARROW_TIP = 3

Point = tuple[float, float]


def layer_path(
    start: Point,
    bends: Iterable[tuple[float, float, float]],
    end: Point,
    to_page: Callable[[Point], Point],
) -> str:
    """
    Return the path of an arrow between layers.

    Args:
        start: Center of its source, with layers from left to right.

        bends: Per bend: where the straight part begins and ends, and its
            height.

        end: Center of its target.

        to_page: Converts a point to the orientation of the page.

    Returns:
        Path data of SVG.
    """
    half = abs(to_page((WIDTH / 2, HEIGHT / 2))[0])
    x, y = start[0] + half, start[1]
    steps = [f"M{_point_text(to_page((x, y)))}"]
    last = end[0] - half - _ARROW_TIP
    for left, right, height in (*bends, (last, last, end[1])):
        reach = min(max((left - x) / 2, 20), 90)
        controls = ((x + reach, y), (left - reach, height), (left, height))
        steps.append(f"C{' '.join(_point_text(to_page(p)) for p in controls)}")
        if right > left:
            steps.append(f"L{_point_text(to_page((right, height)))}")
        x, y = right, height

    return "".join(steps)


def circle_path(start: Point, end: Point) -> str:
    """
    Return the path of an arrow within a circle.

    It runs from border to border, bent a little to its left, so that two
    arrows between the same boxes stay apart.

    Args:
        start: Center of its source, on the page.

        end: Center of its target.

    Returns:
        Path data of SVG.
    """
    (x1, y1), (x2, y2) = start, end
    middle = (
        (x1 + x2) / 2 + 0.14 * (y2 - y1),
        (y1 + y2) / 2 - 0.14 * (x2 - x1),
    )
    begin, tip = (
        _border_point(start, middle, 0),
        _border_point(end, middle, _ARROW_TIP + 1),
    )
    return f"M{_point_text(begin)}Q{_point_text(middle)} {_point_text(tip)}"


def _border_point(box: Point, towards: Point, gap: float) -> Point:
    """
    Return the point where the line from a box to a point leaves the box.
    """
    dx, dy = towards[0] - box[0], towards[1] - box[1]
    scale = min(
        (WIDTH / 2 + gap) / abs(dx) if dx else math.inf,
        (HEIGHT / 2 + gap) / abs(dy) if dy else math.inf,
    )
    return (box[0] + dx * scale, box[1] + dy * scale)


def _point_text(point: Point) -> str:
    return f"{point[0]:.0f} {point[1]:.0f}"


# Gaps between layers, and between boxes of a layer, in pixels.
_LAYER_GAP, _BOX_GAP = 54, 20
_MARGIN = 8
# Space for an arrow that passes a layer, in pixels.
_BEND_HEIGHT = 6


@attrs.frozen(kw_only=True)
class Layout:
    """
    Positions in a graph.

    Attributes:
        size: Width and height, in pixels.

        places: The center of each box.

        paths: Path data of SVG for each arrow.
    """

    size: tuple[int, int]
    places: tuple[Point, ...]
    paths: tuple[str, ...]


@attrs.frozen
class _LayerSpot:
    """
    Center of a part, and the width of its layer.
    """

    x: float
    y: float
    width: float

    @property
    def sides(self) -> tuple[float, float, float]:
        """
        Return left and right end of the layer, and the height of the center.
        """
        return self.x - self.width / 2, self.x + self.width / 2, self.y


def layout_graph(
    parts: Sequence[Sequence[int]],
    arrows: Sequence[tuple[int, int]],
    *,
    is_tall: bool = False,
) -> Layout:
    """
    Compute positions of boxes and paths of arrows.

    Args:
        parts: All boxes, as index, targets first; those that wait for each
            other are one part, in order.

        arrows: Pairs of boxes.

        is_tall: Whether layers run from top to bottom.

    Returns:
        The layout; the same for the same arguments.
    """
    to_page = _swap_axes if is_tall else _keep_axes
    part_of = {box: i for i, part in enumerate(parts) for box in part}
    links = {(part_of[a], part_of[b]) for a, b in arrows}
    layers, routes = _assign_layers(
        len(parts), {(a, b) for a, b in links if a != b}
    )
    extents = [to_page(_part_extent(part)) for part in parts]
    spots, size = _place_parts(layers, extents)
    # Positions for layers from left to right; the page may swap the axes.
    flat = dict(_flat_places(parts, spots, to_page))
    bends = {k: [spots[i].sides for i in v] for k, v in routes.items()}
    places = [to_page(flat[i]) for i in range(len(flat))]
    paths = [
        circle_path(places[a], places[b])
        if (link := (part_of[a], part_of[b])) not in bends
        else layer_path(flat[a], bends[link], flat[b], to_page)
        for a, b in arrows
    ]
    return Layout(
        size=(round(to_page(size)[0]), round(to_page(size)[1])),
        places=tuple(places),
        paths=tuple(paths),
    )


def _flat_places(
    parts: Sequence[Sequence[int]],
    spots: Mapping[int, _LayerSpot],
    to_page: Callable[[Point], Point],
) -> Iterator[tuple[int, Point]]:
    for i, part in enumerate(parts):
        offsets = map(to_page, _circle_offsets(len(part)))
        for box, (x, y) in zip(part, offsets, strict=True):
            yield box, (spots[i].x + x, spots[i].y + y)


def _keep_axes(point: Point) -> Point:
    return point


def _swap_axes(point: Point) -> Point:
    return point[1], point[0]


def _place_parts(
    layers: Sequence[Sequence[int]], extents: Sequence[Point]
) -> tuple[dict[int, _LayerSpot], Point]:
    """
    Return the position of every part, and the size of the picture.
    """
    height_of = dict(enumerate(extent[1] for extent in extents))
    heights = [
        sum(height_of.get(part, _BEND_HEIGHT) for part in layer)
        + _BOX_GAP * (len(layer) - 1)
        for layer in layers
    ]
    tallest = max(heights, default=0)
    spots: dict[int, _LayerSpot] = {}
    x = float(_MARGIN)
    for layer, height in zip(layers, heights, strict=True):
        width = max(extents[part][0] for part in layer if part in height_of)
        y = _MARGIN + (tallest - height) / 2
        for part in layer:
            part_height = height_of.get(part, _BEND_HEIGHT)
            spots[part] = _LayerSpot(x + width / 2, y + part_height / 2, width)
            y += part_height + _BOX_GAP
        x += width + _LAYER_GAP

    return spots, (x - _LAYER_GAP + _MARGIN, tallest + 2 * _MARGIN)


def _circle_offsets(count: int) -> list[Point]:
    """
    Return offsets around a center, clockwise from the left.
    """
    if count == 1:
        return [(0.0, 0.0)]

    rx, ry = _circle_radii(count)
    angles = [math.pi + 2 * math.pi * i / count for i in range(count)]
    return [(rx * math.cos(a), ry * math.sin(a)) for a in angles]


def _circle_radii(count: int) -> Point:
    return (
        max(WIDTH * 0.78, count * WIDTH * 0.19),
        0 if count == 2 else max(HEIGHT * 1.7, count * HEIGHT * 0.42),
    )


def _part_extent(part: Sequence[int]) -> Point:
    rx, ry = _circle_radii(len(part)) if len(part) > 1 else (0, 0)
    return WIDTH + 2 * rx, HEIGHT + 2 * ry
