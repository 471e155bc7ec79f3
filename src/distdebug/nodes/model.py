"""
What became of a command on a node, and what may run one?
"""

from __future__ import annotations

import threading

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import attrs

from .._showing import Block, Entries, Entry, Lines, Shown
from .._text import clean


__all__ = [
    "Arrival",
    "Bound",
    "Ended",
    "Engine",
    "NodeResult",
    "NodeStatus",
    "Trouble",
]


class NodeStatus(StrEnum):
    """
    How it went on a node.
    """

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    DEAD = "dead"


@attrs.frozen(kw_only=True)
class NodeResult(Shown):
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

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data; *value* is as it came.
        """
        return {
            **attrs.asdict(self, recurse=False),
            "status": str(self.status),
        }

    def _blocks_(self) -> Iterable[Block]:
        told = {"reason": self.reason, "next": self.remedy}
        facts = [(label, clean(text)) for label, text in told.items() if text]
        head = f"{clean(self.host)}: {self.status} after {self.seconds:.1f} s"
        yield Entries([Entry(head, facts)])
        yield Lines(
            [clean(line) for line in self.output.splitlines()], most=20
        )


class Trouble(NamedTuple):
    """
    What an engine knows about a command that went wrong.

    Attributes:
        status: How it went, then.

        reason: What happened, in one line.

        remedy: What to do about it, or ``""``.
    """

    status: NodeStatus
    reason: str
    remedy: str = ""


class Ended(NamedTuple):
    """
    What a command left.

    Attributes:
        status: Its exit status; ``None`` if it was ended by us.

        output: The last 32 MiB that it printed.

        complaint: The last 32 MiB of its standard error.

        trouble: What the engine knows about it; ``None`` if it is not the
            engine's.
    """

    status: int | None = None
    output: bytes = b""
    complaint: bytes = b""
    trouble: Trouble | None = None


class Arrival(NamedTuple):
    """
    What came back from one node.

    Attributes:
        host: The name of the node.

        ended: What the command left there.

        total: How many nodes there are.

        seconds: How long it took.
    """

    host: str
    ended: Ended
    total: int = 1
    seconds: float = 0.0


@attrs.frozen(kw_only=True)
class Bound:
    """
    When a command is ended.

    Attributes:
        timeout_s: How long it may take, in seconds.

        grace_s: How long after SIGTERM it is killed, in seconds; with 0 it is
            killed at once.

        stop: Set by who wants no more of it.
    """

    timeout_s: float
    grace_s: float = 0.0
    stop: threading.Event = attrs.field(factory=threading.Event)


class Engine(Protocol):
    """
    What brings commands to the nodes of a job.
    """

    @property
    def python(self) -> str:
        """
        Which Python runs functions on a node?
        """

    def run(
        self, argv: Sequence[str], *, data: bytes | None, timeout_s: float
    ) -> Iterator[Arrival]:
        """
        What does a command leave on each node, as they come?

        What still runs when the iterator is closed is ended.

        Args:
            argv: The command.

            data: What it reads from its standard input, if anything.

            timeout_s: How long it may take on each node, in seconds.

        Raises:
            NodesError: The nodes are not known.
        """
