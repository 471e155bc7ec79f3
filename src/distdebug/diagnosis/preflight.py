"""
Will it be possible to find out what is wrong, once something is?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from .._showing import Block, Shown
from ..capture.permission.check import Check, check_blocks
from ..capture.permission.rights import check_capture


__all__ = ["PreflightReport", "preflight"]


@attrs.frozen
class PreflightReport(Shown):
    """
    What was checked.

    Attributes:
        checks: Every check, with what to do where something is not as it
            should be.
    """

    checks: tuple[Check, ...]

    @property
    def is_ready(self) -> bool:
        """
        Whether no check failed.
        """
        return all(check.ok is not False for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data in the layout of the command line's ``--json``.
        """
        return {"ready": self.is_ready, "checks": self.to_records()}

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per check, for a data frame.
        """
        return [attrs.asdict(check) for check in self.checks]

    def _blocks_(self) -> Iterable[Block]:
        return check_blocks(self.checks)


def preflight() -> PreflightReport:
    """
    Check whether this node lets us look into the processes of a job.

    It changes nothing, and is done within seconds.

    Returns:
        What was found, and what to do about it before a job hangs.
    """
    return PreflightReport(check_capture())
