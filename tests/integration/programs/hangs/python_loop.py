"""
A loop in Python does not end.
"""

from __future__ import annotations


def find_seed(seed: int) -> int:
    """
    Look for a number that there is not.
    """
    print("ready", flush=True)
    while seed >= 0:
        seed = (seed * 5 + 3) % 65536
        if seed == 65536:
            break
    return seed


find_seed(1)
