"""
Which samples does a target start from?
"""

from __future__ import annotations

from functools import cache

from .target import HERE, TARGETS


__all__ = ["regressions_of", "seeds_of"]


@cache
def seeds_of(name: str) -> tuple[bytes, ...]:
    """
    Samples of what a parser is for, what broke it once, and what led a fuzzer
    to other lines of it.
    """
    made = TARGETS[name].seeds()
    kept = _files("seeds", name)
    led = _files("corpus", name)
    return (*kept, *made, *regressions_of(name), *led, b"")


@cache
def regressions_of(name: str) -> tuple[bytes, ...]:
    """
    Inputs that broke a parser once.
    """
    return tuple(x for x in _files("regressions", name) if len(x) < 1 << 16)


def _files(folder: str, name: str) -> tuple[bytes, ...]:
    files = sorted((HERE / folder / name).glob("*"))
    return tuple(x.read_bytes() for x in files)
