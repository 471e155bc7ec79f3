"""
A healthy process computes, and gets somewhere.
"""

from __future__ import annotations

import math


def weigh(value: float) -> float:
    """
    Compute something small.
    """
    return sum(math.sin(value * n) for n in range(50))


def explore(value: float, depth: int) -> float:
    """
    Walk through a tree whose paths have all lengths.
    """
    best = weigh(value)
    for step in (1, 4):
        if depth >= step:
            best = max(best, explore(value + step, depth - step))
    return best


print("ready", flush=True)
while True:
    explore(1.0, 40)
