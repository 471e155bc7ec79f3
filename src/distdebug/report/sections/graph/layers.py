"""
In which layer does each box stand, and in which order?

Layers run from who waits to who is waited for (Sugiyama's way in small): what
nobody holds up stands in the last one, and whoever waits stands before what it
waits for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import attrs


__all__ = ["Layers", "in_layers"]

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
