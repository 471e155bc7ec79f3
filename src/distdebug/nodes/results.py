"""
Results of commands on nodes, and the protocol of engines that run them.
"""

from __future__ import annotations

import base64
import json

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import attrs

from .._render import Block, Entries, Entry, Lines, Shown
from .._text import clean


class NodeStatus(StrEnum):
    """
    Outcome of a command on a node.
    """

    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    DEAD = "dead"


@attrs.frozen(kw_only=True)
class NodeResult(Shown):
    """
    The answer of one node, or the reason why there is none.

    Attributes:
        value: What the function returned, as JSON data; ``None`` for a
            command.

        output: The last 8,000 characters of its output and standard error.

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
        Return plain data; *value* is unchanged.
        """
        return {
            **attrs.asdict(self, recurse=False),
            "status": str(self.status),
        }

    def _blocks_(self) -> Iterable[Block]:
        texts = {"reason": self.reason, "next": self.remedy}
        facts = [(label, clean(text)) for label, text in texts.items() if text]
        head = f"{clean(self.host)}: {self.status} after {self.seconds:.1f} s"
        yield Entries([Entry(head, facts)])
        yield Lines(
            [clean(line) for line in self.output.splitlines()], most=20
        )


class NodeFailure(NamedTuple):
    """
    Why a command failed on a node.

    Attributes:
        reason: The reason in one line.

        remedy: What to do about it, or ``""``.
    """

    status: NodeStatus
    reason: str
    remedy: str = ""


class CompletedCommand(NamedTuple):
    """
    Exit status and output of a command.

    Attributes:
        status: The exit status; ``None`` if it was killed at the timeout.

        output: The last 32 MiB of its standard output.

        stderr: The last 32 MiB of its standard error.

        failure: A failure of the engine, not of the command.
    """

    status: int | None = None
    output: bytes = b""
    stderr: bytes = b""
    failure: NodeFailure | None = None


class NodeReply(NamedTuple):
    """
    What came back from one node.

    Attributes:
        total: The number of nodes.

        seconds: How long it took.
    """

    host: str
    completed: CompletedCommand
    total: int = 1
    seconds: float = 0.0


class Engine(Protocol):
    """
    Runs commands on the nodes of a job.
    """

    @property
    def python(self) -> str:
        """
        Return the Python that runs functions on a node.
        """

    def run(
        self, argv: Sequence[str], *, data: bytes | None, timeout_s: float
    ) -> Iterator[NodeReply]:
        """
        Run a command on each node and yield the replies as they arrive.

        Closing the iterator ends what still runs.

        Args:
            data: Its standard input; ``None`` for an empty one.

            timeout_s: How long it may take on each node, in seconds.

        Raises:
            NodesError: The nodes are unknown.
        """


def completed_to_line(completed: CompletedCommand) -> str:
    """
    Return the result as one line of JSON in ASCII.
    """
    return json.dumps(
        {
            "status": completed.status,
            "output": base64.b64encode(completed.output).decode(),
            "complaint": base64.b64encode(completed.stderr).decode(),
            "trouble": completed.failure,
        }
    )


def completed_from_line(line: object) -> CompletedCommand:
    """
    Parse a line of :func:`completed_to_line`; a wrong line gives a failure.
    """
    try:
        data = json.loads(_check_text(line))
        status, trouble = data["status"], data["trouble"]
        failure = None
        if trouble is not None:
            kind, reason, remedy = map(_check_text, trouble)
            failure = NodeFailure(NodeStatus(kind), reason, remedy)
        return CompletedCommand(
            None if status is None else int(status),
            base64.b64decode(data["output"]),
            base64.b64decode(data["complaint"]),
            failure,
        )
    except (
        *(LookupError, OverflowError, RecursionError),
        *(TypeError, ValueError),
    ):
        reason = "the answer of the node is not understood"
        remedy = "install the same distdebug there"
        failure = NodeFailure(NodeStatus.FAILED, reason, remedy)
        return CompletedCommand(failure=failure)


def _check_text(data: object) -> str:
    if not isinstance(data, str):
        raise TypeError
    return data


def closed_failure(status: int | None, stderr: str) -> NodeFailure:
    """
    Return the failure of a program that has closed its output.

    Args:
        status: Its exit status; ``None`` if it still runs.
    """
    if status in {None, 0}:
        return NodeFailure(NodeStatus.FAILED, "the connection broke")
    return exit_failure(status, stderr, 0.0)


def exit_failure(
    status: int | None, stderr: str, timeout_s: float
) -> NodeFailure:
    """
    Return the failure of a command that gave no answer.

    Args:
        status: Its exit status; ``None`` if it was killed at the timeout.

        timeout_s: The timeout in seconds, for the message.
    """
    if status is None:
        return NodeFailure(
            NodeStatus.TIMED_OUT,
            f"no answer after {timeout_s:g} s",
            "give it more time, or look at the node itself",
        )
    lines = [line for line in map(clean, stderr.splitlines()) if line]
    reason = f"signal {-status}" if status < 0 else f"status {status}"
    reason = ": ".join([f"it ended with {reason}", *lines[-1:]])
    remedy = ""
    if "No module named" in stderr:
        remedy = "install distdebug on the node, or in its container"
    return NodeFailure(NodeStatus.FAILED, reason, remedy)
