"""
What is to be taken when a job makes no progress, and what was done?

Ranks that watch themselves load this, and not what takes and explains.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import attrs

from ..bundle.wanted import Wanted
from .hang import Hang


__all__ = ["Order", "Outcome", "Response"]

Outcome = Literal["explained", "taken", "elsewhere", "busy", "fine"]


@attrs.frozen(kw_only=True)
class Order:
    """
    What to take when a job makes no progress, and where to.

    Attributes:
        output_dir: The folder; the same on all nodes if they share it.

        wanted: What to take.  Without processes, the workers of the job that
            *inside* belongs to are taken.

        inside: The rank that asks for it; ``None`` if nobody of the job does.

        but: Snapshots that had part in before.

        patience_s: For how many seconds a job may write a checkpoint or
            compile.

        running_s: For how many seconds a rank may compute while the others
            wait for it.
    """

    output_dir: Path
    wanted: Wanted
    inside: int | None = None
    but: frozenset[Path] = frozenset()
    patience_s: float = 1800.0
    running_s: float = 300.0


class Response(NamedTuple):
    """
    What was done.

    Attributes:
        outcome: ``"explained"``; ``"taken"`` if another node explains it;
            ``"elsewhere"`` if another watcher of this node took it already;
            ``"busy"`` if one does so now; ``"fine"`` if nothing hangs.

        summary: Why, in one line.

        bundle: The folder of all nodes, if there is one.

        hang: What was found, if it was explained here.
    """

    outcome: Outcome
    summary: str
    bundle: Path | None = None
    hang: Hang | None = None
