"""
What was a diagnosis made from?
"""

from __future__ import annotations

import attrs

from ..findings import Diagnosis
from ..flight_recorder.analysis.report import FlightReport
from ..stacks.model import ProcessStacks
from .log_evidence import LogEvidence


__all__ = ["Seen", "seen_by"]


@attrs.frozen(kw_only=True, eq=False)
class Seen:
    """
    All that was looked at to diagnose a job, for those who show more of it.

    Attributes:
        paths: The files and folders that were given.

        flight: What the dumps say; None if there are none.

        stacks: The stacks of all processes.

        logs: What logs and the facts of nodes tell.
    """

    paths: tuple[str, ...] = ()
    flight: FlightReport | None = None
    stacks: tuple[ProcessStacks, ...] = ()
    logs: LogEvidence = attrs.field(factory=LogEvidence)


def seen_by(diagnosis: Diagnosis) -> Seen:
    """
    What was this diagnosis made from?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        All of it; nothing if the diagnosis comes from another process.
    """
    seen = diagnosis.seen
    return seen if isinstance(seen, Seen) else Seen()
