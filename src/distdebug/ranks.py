"""
Rank selections, device meshes, and folded lists of ranks.

A selection such as ``ranks(1:10:2)`` or ``ranks(pp=2, dp=(1,3), tp=2:8)`` is
parsed once and resolved against each job.  Lists of ranks are printed folded,
as ``0-3,7``.
"""

from __future__ import annotations

import math
import sys

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import attrs

from ._rank_syntax import parse_option, parse_ranges, parse_selection
from ._text import clean
from .errors import DistdebugError, MeshError, RankSyntaxError


# More ranks than any job has; a range from outside must not fill the memory.
_MAX_RANKS = 1 << 20

_BLANKS_TO_SPACE = dict.fromkeys(map(ord, "\t\r\n"), " ")


def _to_pairs(
    sizes: Mapping[str, int] | Iterable[tuple[str, int]],
) -> tuple[tuple[str, int], ...]:
    items = sizes.items() if isinstance(sizes, Mapping) else sizes
    return tuple((name, size) for name, size in items)


@attrs.frozen(repr=False)
class Mesh(Mapping[str, int]):
    """
    Device mesh: how the ranks of a job are arranged.

    A mapping from the name of each dimension to its size, outermost first.
    Ranks are counted in row-major order: the last dimension varies fastest.

    Args:
        sizes: The size of each dimension by name, as a mapping or as pairs.

    Raises:
        distdebug.errors.MeshError: A name occurs twice, or a size is not
            positive.
    """

    _sizes: tuple[tuple[str, int], ...] = attrs.field(
        converter=_to_pairs, alias="sizes"
    )

    def __attrs_post_init__(self) -> None:
        if len(dict(self._sizes)) != len(self._sizes):
            msg = f"a mesh dimension occurs twice: {self}"
            raise MeshError(msg)

        if any(size < 1 for size in self.values()):
            msg = f"the size of a mesh dimension must be positive: {self}"
            raise MeshError(msg)

    def __getitem__(self, name: str) -> int:
        return dict(self._sizes)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __repr__(self) -> str:
        return f"Mesh({dict(self._sizes)!r})"

    def __str__(self) -> str:
        # Names may come from untrusted sidecars.
        names = (f"{clean(name)}={size}" for name, size in self._sizes)
        return ", ".join(names)

    @property
    def world_size(self) -> int:
        """
        Return the number of ranks in the mesh.
        """
        return math.prod(self.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """
        Return the index of a rank in each dimension, outermost first.

        Raises:
            distdebug.errors.MeshError: There is no such rank.
        """
        if not 0 <= rank < self.world_size:
            msg = f"rank {rank} is not in the mesh {self}"
            raise MeshError(msg)

        found = {}
        for name, size in reversed(self._sizes):
            rank, found[name] = divmod(rank, size)

        return {name: found[name] for name in self}

    def rank_of(self, coordinates: Mapping[str, int]) -> int:
        """
        Return the global rank at *coordinates*.

        Args:
            coordinates: The index in each dimension, in any order.

        Raises:
            distdebug.errors.MeshError: A dimension is missing or unknown, or
                an index is outside of its dimension.
        """
        if coordinates.keys() != self.keys() or any(
            not 0 <= coordinates[name] < size for name, size in self.items()
        ):
            msg = f"{dict(coordinates)} is not in the mesh {self}"
            raise MeshError(msg)

        rank = 0
        for name, size in self.items():
            rank = rank * size + coordinates[name]

        return rank


@attrs.frozen(kw_only=True)
class RankSelection:
    """
    A selection of ranks that is not tied to a job yet.

    Either *by_rank* or *by_dimension* is empty.  Ranges may exceed the job.

    Attributes:
        by_rank: Global ranks, as ranges that may overlap.

        by_dimension: Selected indexes in some dimensions of a mesh, by name of
            the dimension.  Other dimensions are not restricted.

        text: The original text.
    """

    by_rank: tuple[range, ...] = ()
    by_dimension: tuple[tuple[str, tuple[range, ...]], ...] = ()
    text: str = attrs.field(default="", eq=False)

    def __str__(self) -> str:
        # The parser also treats line breaks as blanks.
        return self.text.translate(_BLANKS_TO_SPACE)

    def resolve(
        self, mesh: Mapping[str, int] | None, world_size: int
    ) -> tuple[int, ...]:
        """
        Return the selected ranks of a job.

        Ranks outside of the job, and dimensions that the mesh lacks, select
        nothing.

        Args:
            mesh: Size of each dimension, outermost first; `None` or empty if
                the job has no mesh.

            world_size: Number of ranks of the job.

        Returns:
            Global ranks, ascending, each once.

        Raises:
            distdebug.errors.MeshError: Dimensions are selected, and *mesh*
                does not hold exactly *world_size* ranks.
        """
        if not self.by_dimension:
            return _merge_ranges(self.by_rank, world_size)

        if self.unknown_dimensions(mesh):
            return ()

        full_mesh = Mesh(mesh or {})
        if full_mesh.world_size != world_size:
            msg = (
                f"a mesh of {full_mesh.world_size} ranks ({full_mesh}) "
                f"does not cover a job of {world_size}"
            )
            raise MeshError(msg)

        ranges = dict(self.by_dimension)
        ranks = [0]
        for name, size in full_mesh.items():
            indexes = _merge_ranges(ranges.get(name, (range(size),)), size)
            ranks = [
                rank * size + index for rank in ranks for index in indexes
            ]

        return tuple(ranks)

    def unknown_dimensions(
        self, mesh: Mapping[str, int] | None
    ) -> tuple[str, ...]:
        """
        Return the selected dimensions that the mesh lacks.

        If there is one, the selection selects nothing.

        Args:
            mesh: Size of each dimension, or `None`.

        Returns:
            Names, in the order of the selection.
        """
        return tuple(
            name for name, _ in self.by_dimension if name not in (mesh or {})
        )


def parse_ranks(text: str) -> RankSelection:
    """
    Parse a rank selection such as ``ranks(1:10:2)``.

    Args:
        text: ``ranks(3)``, ``ranks(1,3,5)``, ``ranks(1:10:2)``, or
            ``ranks(pp=2, dp=(1,3), tp=2:8)``.

    Returns:
        The selection, to be resolved against a job.

    Raises:
        distdebug.errors.RankSyntaxError: *text* is something else.
    """
    by_rank, by_dimension = parse_selection(text)
    return RankSelection(by_rank=by_rank, by_dimension=by_dimension, text=text)


def parse_rank_option(text: str) -> RankSelection:
    """
    Parse a rank selection from the command line.

    Args:
        text: As for :func:`parse_ranks`, or folded ranks such as ``0-3,7``.

    Returns:
        The selection, to be resolved against a job.

    Raises:
        distdebug.errors.RankSyntaxError: *text* is something else.
    """
    by_rank, by_dimension = parse_option(text)
    return RankSelection(by_rank=by_rank, by_dimension=by_dimension, text=text)


RankChoice = int | str | RankSelection | Iterable[int]
"""What a parameter *ranks* takes: numbers, a selection, or its text."""


def select_ranks(
    ranks: RankChoice, mesh: Mapping[str, int], world_size: int
) -> tuple[int, ...]:
    """
    Return the ranks of a job that a parameter *ranks* means.

    Args:
        ranks: A number or several, a selection, or its text, such as ``0-3,7``
            or ``ranks(tp=0)``.

        mesh: Size of each dimension of the job, outermost first; may be empty.

        world_size: Number of ranks of the job.

    Returns:
        Global ranks, ascending, each once.

    Raises:
        distdebug.errors.RankSyntaxError: A text is no selection.

        distdebug.errors.MeshError: The mesh does not cover the job.

        distdebug.errors.DistdebugError: A selection selects nothing: a report
            about no rank would say that all is well.
    """
    if isinstance(ranks, int):
        return (ranks,)
    if isinstance(ranks, str):
        ranks = parse_rank_option(ranks)
    if not isinstance(ranks, RankSelection):
        return tuple(sorted(set(ranks)))

    found = ranks.resolve(mesh, world_size)
    if not found:
        sizes = ", ".join(f"{clean(n)}={size}" for n, size in mesh.items())
        where = f"in a mesh of {sizes}" if sizes else "in no mesh we know of"
        msg = f"{ranks} selects no rank of this job"
        raise DistdebugError(
            msg, remedy=f"there are {world_size} ranks, {where}"
        )
    return found


def fold_ranks(ranks: Iterable[int]) -> str:
    """
    Format ranks as ascending ranges, such as ``"0-3,7"``.

    Args:
        ranks: Ranks in any order, none of them negative.

    Returns:
        The text; ``""`` if there is no rank.
    """
    parts = []
    # Within a run of neighbours, a rank and its position differ by a constant.
    ordered = enumerate(sorted(set(ranks)))
    for _, run in groupby(ordered, key=lambda pair: pair[1] - pair[0]):
        first, *others = (rank for _, rank in run)
        parts.append(f"{first}-{others[-1]}" if others else f"{first}")

    return ",".join(parts)


def ranks_text(ranks: Iterable[int]) -> str:
    """
    Format ranks for a sentence.

    Returns:
        ``"rank 3"``, or ``"ranks 0-3,7"``.
    """
    folded = fold_ranks(ranks)
    return f"rank {folded}" if folded.isdecimal() else f"ranks {folded}"


def unfold_ranks(text: str) -> tuple[int, ...]:
    """
    Parse a folded text such as ``0-3,7``.

    Args:
        text: Returned by :func:`fold_ranks`.

    Returns:
        Ranks, ascending, each once.

    Raises:
        distdebug.errors.RankSyntaxError: *text* is something else, or has more
            ranks than any job.
    """
    if not text.strip(" \t\r\n"):
        return ()

    ranges = parse_ranges(text)
    if sum(map(len, ranges)) > _MAX_RANKS:
        msg = f"expected at most {_MAX_RANKS} ranks"
        raise RankSyntaxError(msg, text, 0)

    return _merge_ranges(ranges, sys.maxsize)


def _merge_ranges(ranges: tuple[range, ...], size: int) -> tuple[int, ...]:
    below = [range(r.start, min(r.stop, size), r.step) for r in ranges]
    if len(below) == 1:
        return tuple(below[0])

    return tuple(sorted({n for r in below for n in r}))
