"""
What people write: ranks, meshes, patterns, steps; and names of processes.
"""

from __future__ import annotations

import re

from distdebug.errors import MeshError, PatternError
from distdebug.identity import coordinates_in_title, identify
from distdebug.nsight import match_worker
from distdebug.nsight.runtime_env import parse_step_range
from distdebug.processes import as_patterns
from distdebug.processes.roles import rank_from_coordinates
from distdebug.ranks import (
    Mesh,
    fold_ranks,
    parse_rank_option,
    parse_ranks,
    unfold_ranks,
)

from ..target import target


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@target()
def ranks(data: bytes) -> object:
    """
    A selection of ranks.
    """
    selection = parse_ranks(_text(data))
    parse_ranks(str(selection))
    try:
        chosen = selection.resolve({"dp": 4, "pp": 2, "tp": 8}, 64)
    except MeshError:
        return selection
    assert set(chosen) <= set(range(64))
    return selection, fold_ranks(chosen)


@target()
def rank_option(data: bytes) -> object:
    """
    The same as an option of the command line.
    """
    return parse_rank_option(_text(data))


@target(ValueError)
def folded_ranks(data: bytes) -> object:
    """
    Ranks as a report writes them.
    """
    return fold_ranks(unfold_ranks(_text(data)))


@target()
def mesh(data: bytes) -> object:
    """
    Sizes of dimensions, with any names.
    """
    pairs = [x.partition("=") for x in _text(data).split(",")]
    sizes = {
        name: int(size) if size.isdecimal() and len(size) < 30 else 0
        for name, _, size in pairs
    }
    known = Mesh(sizes)
    known.coordinates(0)
    return known


@target()
def worker_patterns(data: bytes) -> object:
    """
    Wildcards that name workers, and a worker.
    """
    patterns, _, name = _text(data).partition("\n")
    return match_worker(name, patterns) is None


@target()
def step_range(data: bytes) -> object:
    """
    Which steps are profiled.
    """
    return parse_step_range(_text(data))


@target(PatternError)
def process_pattern(data: bytes) -> object:
    """
    A regular expression for command lines.
    """
    pattern, _, line = _text(data).partition("\n")
    found = as_patterns([pattern])
    return [re.search(x, line[:400]) is None for x in found]


@target()
def titles(data: bytes) -> object:
    """
    What a process calls itself, and what its environment says.
    """
    text = _text(data)
    pairs = [x.partition("=") for x in text.split("\n")]
    identify({name: value for name, _, value in pairs})
    return rank_from_coordinates(coordinates_in_title(text))
