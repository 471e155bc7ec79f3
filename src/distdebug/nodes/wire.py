"""
How does what a command left travel as one line of text?
"""

from __future__ import annotations

import base64
import json

from .model import Ended, NodeStatus, Trouble


__all__ = ["ended_from_line", "ended_to_line"]


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
