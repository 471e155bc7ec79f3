"""
What became of a command on a node, and what may run one?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import attrs


__all__ = ["Engine", "NodeResult", "NodeStatus", "Place", "Trouble"]


class NodeStatus(StrEnum):
    """
    How it went on a node.
    """

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    DEAD = "dead"


@attrs.frozen(kw_only=True)
class NodeResult:
    """
    What one node answered, or why it did not.

    Attributes:
        host: The name of the node.

        status: How it went.

        value: What the function returned there, as JSON data; ``None`` for a
            command.

        output: The last 8,000 characters that it printed.

        reason: Why there is no value, in one line, or ``""``.

        remedy: What to do about it, or ``""``.

        seconds: How long it took.
    """

    host: str
    status: NodeStatus
    value: Any = None
    output: str = ""
    reason: str = ""
    remedy: str = ""
    seconds: float = 0.0


class Place(NamedTuple):
    """
    A node, and how a command gets there.

    Attributes:
        host: The name of the node.

        prefix: What stands before a command, so that it runs there.
    """

    host: str
    prefix: tuple[str, ...] = ()


class Trouble(NamedTuple):
    """
    What the complaint of an engine means.

    Attributes:
        status: How it went, then.

        reason: What happened, in one line.

        remedy: What to do about it, or ``""``.
    """

    status: NodeStatus
    reason: str
    remedy: str = ""


class Engine(Protocol):
    """
    What brings commands to the nodes of a job.
    """

    @property
    def python(self) -> str:
        """
        Which Python runs functions on a node?
        """

    @property
    def at_once(self) -> int:
        """
        How many nodes may be asked at the same time?
        """

    @property
    def grace_s(self) -> float:
        """
        How long may it clean up when its time is over, in seconds?
        """

    def places(self) -> Sequence[Place]:
        """
        Which nodes are there, and how is each reached?

        Raises:
            NodesError: Nobody can tell.
        """

    def environment(self) -> Mapping[str, str]:
        """
        Which environment do its commands run in?
        """

    def explain(self, complaint: str) -> Trouble | None:
        """
        What does it mean that a command failed with this complaint?

        Args:
            complaint: What was printed to the standard error.

        Returns:
            The trouble of the engine; ``None`` if it has nothing to do with
            the engine.
        """
