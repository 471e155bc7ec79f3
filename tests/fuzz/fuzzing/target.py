"""
What is fed, and what may come of it?
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from distdebug.errors import DistdebugError


__all__ = ["HERE", "TARGETS", "Target", "target"]

HERE = Path(__file__).resolve().parents[1]


class Target(NamedTuple):
    """
    A parser that is fed bytes.

    Attributes:
        name: What it is called.

        parse: Feeds it; whatever it returns is shown afterwards.

        allowed: The exceptions that its documentation tells of.

        seeds: Makes samples that are not kept as files.

        seconds: How long it may take for 1 MiB, in seconds of a processor.

        mebibytes: How much memory it may take for 1 MiB.

        most: How many bytes it reads at most, if it refuses more.
    """

    name: str
    parse: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...]
    seeds: Callable[[], list[bytes]]
    seconds: float
    mebibytes: float
    most: int | None


TARGETS: dict[str, Target] = {}


def _no_seeds() -> list[bytes]:
    return []


def target(
    *allowed: type[BaseException],
    seeds: Callable[[], list[bytes]] = _no_seeds,
    seconds: float = 2.0,
    mebibytes: float = 200.0,
    most: int | None = None,
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:
    """
    Make a target of a function that takes bytes.
    """

    def add(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
        name = parse.__name__
        assert name not in TARGETS, name
        TARGETS[name] = Target(
            name,
            parse,
            (DistdebugError, *allowed),
            seeds,
            seconds,
            mebibytes,
            most,
        )
        return parse

    return add
