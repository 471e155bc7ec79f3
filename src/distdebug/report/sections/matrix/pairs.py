"""
Which ranks sent something to which, and was it received?

Transfers have no place in the matrix: their numbers compare only within a pair
of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ...._text import clean
from ....flight_recorder.analysis.operations import Signatures
from ....flight_recorder.analysis.p2p import Channel, Side, find_channels
from .recorded import Recorded


__all__ = ["Pair", "Pairs", "pairs_of"]

_MOST = 16


@attrs.frozen(kw_only=True)
class Pair:
    """
    What one rank sent to another in a group.

    Attributes:
        source: Who sends.

        target: Who receives.

        group: The group, by name or description.

        sent: How many sends are on record.

        sending: How many of these are not complete.

        received: How many receives are on record.

        receiving: How many of these are not complete.

        has_source: Whether the sender recorded any.

        has_target: Whether the receiver recorded any.
    """

    source: int
    target: int
    group: str
    sent: int = 0
    sending: int = 0
    received: int = 0
    receiving: int = 0
    has_source: bool = True
    has_target: bool = True

    @property
    def is_stuck(self) -> bool:
        """
        Whether one of both waits.
        """
        return bool(self.sending or self.receiving)


@attrs.frozen(kw_only=True)
class Pairs:
    """
    All transfers.

    Attributes:
        shown: The pairs that are shown, those that wait first.

        stuck: How many pairs wait.

        fine: How many do not.
    """

    shown: tuple[Pair, ...]
    stuck: int
    fine: int

    @property
    def left_out(self) -> int:
        """
        How many pairs are not shown.
        """
        return self.stuck + self.fine - len(self.shown)


def pairs_of(recorded: Recorded, culprits: Sequence[int]) -> Pairs | None:
    """
    Which transfers are there?

    Args:
        recorded: What all ranks recorded.

        culprits: The ranks at fault; their transfers come first.

    Returns:
        The pairs; None if nothing was sent.
    """
    dumps, membership = recorded.dumps, recorded.membership
    signatures = Signatures(dumps.ops, dumps.shapes)
    names = [clean(str(group.ref)) for group in membership.groups]
    pairs = [
        _pair(channel, names[channel.group])
        for channel in find_channels(dumps, membership, signatures)
    ]
    if not pairs:
        return None

    blamed = set(culprits)
    pairs.sort(
        key=lambda p: (
            not p.is_stuck,
            blamed.isdisjoint((p.source, p.target)),
            p.source,
            p.target,
        )
    )
    stuck = sum(pair.is_stuck for pair in pairs)
    return Pairs(
        shown=tuple(pairs[:_MOST]), stuck=stuck, fine=len(pairs) - stuck
    )


def _pair(channel: Channel, group: str) -> Pair:
    sent, sending = _counts(channel.send)
    received, receiving = _counts(channel.recv)
    return Pair(
        source=channel.source,
        target=channel.target,
        group=group,
        sent=sent,
        sending=sending,
        received=received,
        receiving=receiving,
        has_source=channel.send is not None,
        has_target=channel.recv is not None,
    )


def _counts(side: Side | None) -> tuple[int, int]:
    return (0, 0) if side is None else (len(side.rows), side.pending)
