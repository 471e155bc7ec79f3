"""
A healthy process computes, and gets somewhere.
"""

from __future__ import annotations

import math


def simulate(steps: int) -> float:
    """
    Walk about.
    """
    place = 0.0
    for step in range(steps):
        place += math.sin(step)
    return place


def summarize(values: list[float]) -> float:
    """
    Find the middle.
    """
    middle = 0.0
    for value in values * 50:
        middle += value / len(values)
    return middle


def describe(value: float) -> str:
    """
    Write a number in all its digits.
    """
    text = ""
    for digit in range(20_000):
        text = str(value * digit)
    return text


print("ready", flush=True)
while True:
    describe(summarize([simulate(n) for n in range(300)]))
