"""
What is known of one line of a log?
"""

from __future__ import annotations

from typing import NamedTuple

import attrs


__all__ = ["LogLine", "Origin"]


@attrs.frozen(kw_only=True)
class Origin:
    """
    Who printed a line, as the prefix of a launcher tells?

    Attributes:
        name: The actor, task, or component, such as ``"SglEngine"`` or
            ``"raylet"``; of an actor with a ``__repr__`` what that returns.

        pid: The number of its process, on its node.

        ip: The address of its node; Ray leaves out that of the driver.

        rank: The global rank, of ``[rank3]:``.

        local_rank: The rank on its node, of torchrun's ``[default3]:``.
    """

    name: str = ""
    pid: int | None = None
    ip: str | None = None
    rank: int | None = None
    local_rank: int | None = None


class LogLine(NamedTuple):
    """
    One line, without what a launcher and a terminal added.

    A tuple, because millions of them are made: one takes a quarter of the time
    that a frozen class of attrs does.

    Attributes:
        text: What was printed, without colors, controls, and prefixes.

        number: Its number in the file, from 1; the parts of a line that
            carriage returns divide have the same one.

        source: The file, or ``""``.

        origin: Who printed it, if a prefix tells.

        count: How many lines it stands for: Ray folds what several processes
            print into one line.
    """

    text: str
    number: int = 0
    source: str = ""
    origin: Origin | None = None
    # (in place of a method of tuples that nobody needs here)
    count: int = 1  # type: ignore[assignment]

    @property
    def time(self) -> float | None:
        """
        When it was printed, in seconds since the epoch, if it tells.
        """
        from .times import parse_time

        return parse_time(self.text)
