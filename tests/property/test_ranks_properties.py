"""
Laws of selections of ranks, for any input.
"""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from distdebug.errors import RankSyntaxError
from distdebug.ranks import (
    Mesh,
    fold_ranks,
    parse_rank_option,
    parse_ranks,
    unfold_ranks,
)


NAMES = ["pp", "dp", "tp", "_x1"]

blanks = st.sampled_from(["", "", " ", "\t", "\n  "])
numbers = st.integers(0, 12) | st.integers(0, 10**40)
slices = st.tuples(
    st.none() | numbers,
    st.none() | numbers,
    st.none() | numbers.filter(bool),
)
lists = st.lists(numbers, min_size=2, max_size=5)
choices = numbers | slices | lists
meshes = st.lists(
    st.sampled_from(NAMES), min_size=1, max_size=4, unique=True
).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: st.integers(1, 5) for name in names}
    )
)


def written(choice, *, nested):
    """
    A choice in the grammar.
    """
    match choice:
        case int():
            return str(choice)
        case tuple():
            start, stop, step = ("" if n is None else n for n in choice)
            return f"{start} : {stop}" + (f":{step}" if step else "")
        case _:
            joined = ",".join(map(str, choice))
            return f"({joined})" if nested else joined


def is_meant(choice, number):
    """
    Whether a choice means a number, decided one number at a time.
    """
    match choice:
        case int():
            return number == choice
        case (start, stop, step) if isinstance(choice, tuple):
            first = start or 0
            return (
                first <= number
                and (stop is None or number < stop)
                and (number - first) % (step or 1) == 0
            )
        case _:
            return number in choice


@given(choice=choices, world_size=st.integers(0, 40))
def test_global_ranks_as_one_by_one(choice, world_size):
    """
    Selecting ranks equals asking each rank whether it is meant.
    """
    selection = parse_ranks(f"ranks({written(choice, nested=False)})")

    assert tuple(
        rank for rank in range(world_size) if is_meant(choice, rank)
    ) == selection.resolve(None, world_size)


@given(
    mesh=meshes,
    wanted=st.dictionaries(st.sampled_from(NAMES), choices, min_size=1),
    blank=blanks,
)
def test_dimensions_as_one_by_one(mesh, wanted, blank):
    """
    Selecting by dimension equals asking each rank for its coordinates.
    """
    world_size = math.prod(mesh.values())
    parts = (
        f"{name}{blank}={blank}{written(choice, nested=True)}"
        for name, choice in wanted.items()
    )
    selection = parse_ranks(f"ranks({f',{blank}'.join(parts)})")

    got = selection.resolve(mesh, world_size)

    where = {rank: Mesh(mesh).coordinates(rank) for rank in range(world_size)}
    assert got == tuple(
        rank
        for rank, at in where.items()
        if all(
            name in at and is_meant(choice, at[name])
            for name, choice in wanted.items()
        )
    )
    assert set(selection.unknown_dimensions(mesh)) == set(wanted) - set(mesh)


@given(text=st.text() | st.text("ranks()dptp=,:0123456789 -"))
@example("ranks(0:9,")
@example("ranks(0:9)")
@example("0-3,7")
def test_any_text(text):
    """
    Any text is a selection or a syntax error, and never anything else.
    """
    for parse in (parse_ranks, parse_rank_option):
        try:
            ranks = parse(text).resolve(None, 20)
        except RankSyntaxError:
            continue

        assert list(ranks) == sorted(set(ranks))
        assert set(ranks) <= set(range(20))


@given(ranks=st.lists(st.integers(0, 60) | st.integers(0, 10**6)))
def test_fold_and_unfold(ranks):
    """
    Unfolding what was folded gives the ranks, ascending and each once.
    """
    folded = fold_ranks(ranks)

    assert tuple(sorted(set(ranks))) == unfold_ranks(folded)
    assert folded == fold_ranks(unfold_ranks(folded))


@given(ranks=st.sets(st.integers(0, 60), min_size=1))
def test_folded_ranks_select_themselves(ranks):
    """
    Ranks as we print them are understood on the command line.
    """
    selection = parse_rank_option(fold_ranks(ranks))

    assert tuple(sorted(ranks)) == selection.resolve(None, 61)


@given(mesh=meshes, data=st.data())
def test_coordinates_and_back(mesh, data):
    """
    Every rank sits at the coordinates that lead back to it.
    """
    whole = Mesh(mesh)
    rank = data.draw(st.integers(0, whole.world_size - 1))

    assert rank == whole.rank_of(whole.coordinates(rank))
