"""
How does a command run on this node?
"""

from __future__ import annotations

import os
import socket
import sys
import time

from collections.abc import Iterator, Sequence

import attrs

from .model import Arrival, Bound
from .process import run_errand


__all__ = ["Here"]


@attrs.frozen(kw_only=True)
class Here:
    """
    The node that we are on.

    Attributes:
        python: The Python that runs functions; by default this one.
    """

    python: str = sys.executable

    def run(
        self, argv: Sequence[str], *, data: bytes | None, timeout_s: float
    ) -> Iterator[Arrival]:
        """
        What does a command leave here?

        Args:
            argv: The command.

            data: What it reads from its standard input, if anything.

            timeout_s: How long it may take, in seconds.

        Yields:
            The one answer.
        """
        begin = time.monotonic()
        ended = run_errand(
            argv,
            environment=os.environ,
            bound=Bound(timeout_s=timeout_s),
            data=data,
        )
        seconds = time.monotonic() - begin
        yield Arrival(socket.gethostname(), ended, seconds=seconds)
