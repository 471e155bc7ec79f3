"""
What kind of call is this, and which calls belong together?

Names are read by their pattern, never by a list of known backends:
``nccl:all_reduce``, ``gloo:barrier``, ``nccl2:send 0->1``.
"""

from __future__ import annotations

import re

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from ..shapes import Shape, as_shapes


__all__ = ["Operation", "Signatures", "parse_operation"]

_PEER = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)", re.ASCII)

# The call completes on no rank before every rank has entered it.
_SYNCHRONIZING = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier",
    re.IGNORECASE,
)

# Ranks may rightly pass different sizes, or (as the root) empty ones.
_UNEVEN = re.compile(
    r"all_?to_?all|^gather|^scatter|_oop|gatherv|send|recv",
    re.IGNORECASE,
)


_SPREAD, _MASK = np.uint64(0x9E3779B97F4A7C15), np.uint64((1 << 62) - 1)


@attrs.frozen(kw_only=True)
class Operation:
    """
    What the name of a record says.

    Attributes:
        name: The operation without its backend, such as ``"all_reduce"``.

        backend: Such as ``"nccl"``; ``""`` if the name has none.

        is_send: Whether it sends to another rank.

        is_recv: Whether it receives from another rank.

        source: For these two, the sending rank *within the group*.

        target: For these two, the receiving rank *within the group*.

        ends_batch: Whether it closes a batch of coalesced calls.

        synchronizes: Whether completing it proves that every rank entered it.

        is_even: Whether every rank must pass the same sizes.

        has_events: Whether its state follows the device; Gloo has none.
    """

    name: str
    backend: str = ""
    is_send: bool = False
    is_recv: bool = False
    source: int = -1
    target: int = -1
    ends_batch: bool = False
    synchronizes: bool = False
    is_even: bool = True
    has_events: bool = True

    @property
    def is_p2p(self) -> bool:
        """
        Whether it is between two ranks.
        """
        return self.is_send or self.is_recv


def parse_operation(text: str) -> Operation:
    """
    Read the name of a record.

    Args:
        text: Such as ``"nccl:recv 1<-0"``.

    >>> from distdebug.flight_recorder.analysis.operations import (
    ...     parse_operation,
    ... )
    >>> op = parse_operation("nccl2:recv 1<-0")
    >>> op.backend, op.source, op.target
    ('nccl2', 0, 1)
    """
    backend, colon, name = text.partition(":")
    if not colon:
        backend, name = "", text
    if peer := _PEER.fullmatch(name):
        kind, a, arrow, b = peer.groups()
        source, target = (a, b) if arrow == "->" else (b, a)
        return Operation(
            name=kind,
            backend=backend,
            is_send=kind == "send",
            is_recv=kind == "recv",
            source=int(source),
            target=int(target),
            is_even=False,
        )

    return Operation(
        name=name,
        backend=backend,
        ends_batch=name.lower().endswith("coalesced") and _is_batch(name),
        synchronizes=_SYNCHRONIZING.search(name) is not None,
        is_even=_UNEVEN.search(name) is None,
        has_events=backend != "gloo",
    )


def _is_batch(name: str) -> bool:
    # "allreduce_coalesced" is one call over many tensors, but torch closes a
    # batch with "coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced".
    return name == "coalesced" or name.split("_", maxsplit=1)[0].isupper()


class Signatures:
    """
    Which calls could be the same call, seen from different ranks?

    Ranks agree in a call if their signatures are equal: same operation and,
    where the operation demands it, same number of elements and same types.

    Args:
        ops: The names that records refer to.

        shapes: The sizes and types that records refer to.
    """

    def __init__(self, ops: Sequence[str], shapes: Sequence[Shape]) -> None:
        self.operations = [parse_operation(op) for op in ops]
        self._columns: dict[str, NDArray[np.bool_]] = {}
        names: dict[str, int] = {}
        self._name = np.array(
            [names.setdefault(op.name, len(names)) for op in self.operations],
            np.uint64,
        )
        # What has to be equal: a communication library sees counts, not
        # shapes.  Hashed, because there may be millions.
        known = as_shapes(shapes)
        self._amount = _mixed(*known.elements.T, known.types)

    def column(self, attribute: str) -> NDArray[np.bool_]:
        """
        One truth per operation code.

        Args:
            attribute: Of :class:`Operation`, such as ``"is_send"``.
        """
        # Every rank asks, and a large job has an operation per pair of ranks.
        if attribute not in self._columns:
            self._columns[attribute] = np.array(
                [getattr(op, attribute) for op in self.operations], np.bool_
            )
        return self._columns[attribute]

    def of(
        self, op: NDArray[np.int32], shape: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """
        The signatures of records, as integers without further meaning.
        """
        is_even = self.column("is_even")[op]
        amount = np.where(is_even, self._amount[shape], np.uint64(0))
        # Spread, so that the sum over a batch tells sets of calls apart.
        return (_mixed(self._name[op], amount) & _MASK).astype(np.int64)


def _mixed(*numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """
    One number for each row that is equal where all of them are.
    """
    mixed = np.zeros(len(numbers[0]), np.uint64)
    for column in numbers:
        mixed = (mixed ^ column.astype(np.uint64)) * _SPREAD
        # The upper bits depend on all below them.
        mixed ^= mixed >> np.uint64(32)
    return mixed
