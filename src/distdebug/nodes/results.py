"""
What became of a command on a node, and what may run one?
"""

from __future__ import annotations

import base64
import json
import threading

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import attrs

from .._render import Block, Entries, Entry, Lines, Shown
from .._text import clean


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


def ended_to_line(ended: Ended) -> str:
    """
    How is it told elsewhere?

    Args:
        ended: What a command left.

    Returns:
        One line of JSON, in ASCII.
    """
    return json.dumps(
        {
            "status": ended.status,
            "output": base64.b64encode(ended.output).decode(),
            "complaint": base64.b64encode(ended.complaint).decode(),
            "trouble": ended.trouble,
        }
    )


def ended_from_line(line: object) -> Ended:
    """
    What was told?

    Args:
        line: What is said to be such a line.

    Returns:
        What the command left; that nobody understands it is a trouble.
    """
    try:
        told = json.loads(_text(line))
        status = told["status"]
        return Ended(
            None if status is None else int(status),
            base64.b64decode(_text(told["output"])),
            base64.b64decode(_text(told["complaint"])),
            _trouble(told["trouble"]),
        )
    except (
        *(LookupError, OverflowError, RecursionError),
        *(TypeError, ValueError),
    ):
        return Ended(
            trouble=Trouble(
                NodeStatus.FAILED,
                "nobody understands what the node answered",
                "install the same distdebug there",
            )
        )


def _trouble(told: object) -> Trouble | None:
    if told is None:
        return None
    if not isinstance(told, list):
        raise TypeError
    status, reason, remedy = map(_text, told)
    return Trouble(NodeStatus(status), reason, remedy)


def _text(told: object) -> str:
    if not isinstance(told, str):
        raise TypeError
    return told


def trouble_of(
    status: int | None, complaint: str, timeout_s: float
) -> Trouble:
    """
    What can be told of a command that left no answer?

    Args:
        status: Its exit status; ``None`` if it was ended by us.

        complaint: What it wrote to its standard error.

        timeout_s: How long it was waited for, in seconds.

    Returns:
        What happened, and what helps.
    """
    if status is None:
        return Trouble(
            NodeStatus.TIMED_OUT,
            f"no answer after {timeout_s:g} s",
            "give it more time, or look at the node itself",
        )
    return Trouble(
        NodeStatus.FAILED,
        _last_words(status, complaint),
        _missing_remedy(complaint),
    )


def _last_words(status: int, complaint: str) -> str:
    lines = [line for line in map(clean, complaint.splitlines()) if line]
    ended = f"signal {-status}" if status < 0 else f"status {status}"
    return f"it ended with {ended}" + (f": {lines[-1]}" if lines else "")


def _missing_remedy(complaint: str) -> str:
    if "No module named" in complaint:
        return "install distdebug on the node, or in its container"
    return ""
