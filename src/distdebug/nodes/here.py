"""
How does a command run on this node?
"""

from __future__ import annotations

import os
import socket
import sys

from collections.abc import Mapping, Sequence

import attrs

from .model import Place, Trouble


__all__ = ["Here"]


@attrs.frozen(kw_only=True)
class Here:
    """
    The node that we are on.

    Attributes:
        python: The Python that runs functions; by default this one.

        at_once: How many nodes are asked at the same time.

        grace_s: How long a command may clean up, in seconds.
    """

    python: str = sys.executable
    at_once: int = 1
    grace_s: float = 0.0

    def places(self) -> Sequence[Place]:
        """
        Which nodes are there?

        Returns:
            This one.
        """
        return [Place(socket.gethostname())]

    def environment(self) -> Mapping[str, str]:
        """
        Which environment do commands run in?

        Returns:
            That of this process.
        """
        return os.environ

    def explain(self, complaint: str) -> Trouble | None:  # noqa: ARG002
        """
        What does a complaint mean?

        Args:
            complaint: What was printed to the standard error.

        Returns:
            ``None``: there is nobody between us and the command.
        """
        return None
