"""
How far does a client reach?

Either to the sockets of its own node, or to the relays of many others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs

from ...processes.model import Worker
from .calls import Peer
from .model import LostNode, Silent


__all__ = ["Reach", "Reached"]


@attrs.frozen(kw_only=True)
class Reached:
    """
    Who can be asked now?

    Attributes:
        peers: The ranks, by their sockets.

        silent: Those that cannot be connected to.

        lost: Nodes that cannot be asked.

        idle: Nodes on which nobody listens.
    """

    peers: Mapping[str, Peer] = attrs.field(factory=dict)
    silent: tuple[Silent, ...] = ()
    lost: tuple[LostNode, ...] = ()
    idle: tuple[str, ...] = ()


class Reach(Protocol):
    """
    Where ranks are looked for.
    """

    timeout_s: float

    def peers(self) -> Reached:
        """
        Who can be asked now?
        """

    def broken(self) -> tuple[LostNode, ...]:
        """
        Which nodes were lost since they were asked?
        """

    def outside(self, silent: Iterable[Silent]) -> tuple[str, ...]:
        """
        Where are those that do not answer, as seen from outside?
        """

    def unarmed(self) -> tuple[Worker, ...]:
        """
        Which other ranks of the job were started without us?
        """

    def close(self) -> None:
        """
        Hang up.
        """
