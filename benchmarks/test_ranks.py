"""
Selecting and folding ranks takes time in proportion to their number.
"""

from __future__ import annotations

import pytest

from distdebug.ranks import fold_ranks, parse_ranks, unfold_ranks


WORLD_SIZES = [1_000, 10_000, 100_000]


@pytest.fixture(params=WORLD_SIZES, ids=lambda n: f"{n}-ranks")
def world_size(request):
    """
    How many ranks the job has.
    """
    return request.param


def test_resolve_dimensions(benchmark, world_size):
    """
    Select half of the ranks by their place in a mesh.
    """
    mesh = {"pp": 10, "dp": world_size // 100, "tp": 10}
    selection = parse_ranks("ranks(dp=::2, tp=0:10)")

    ranks = benchmark(selection.resolve, mesh, world_size)

    assert world_size // 2 == len(ranks)


def test_fold_every_other(benchmark, world_size):
    """
    Fold ranks none of which are neighbours, the worst case.
    """
    ranks = range(0, 2 * world_size, 2)

    folded = benchmark(fold_ranks, ranks)

    assert world_size == folded.count(",") + 1


def test_unfold_every_other(benchmark, world_size):
    """
    Unfold them again.
    """
    folded = fold_ranks(range(0, 2 * world_size, 2))

    ranks = benchmark(unfold_ranks, folded)

    assert world_size == len(ranks)
