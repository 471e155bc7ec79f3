"""
How is a page left beside what a snapshot took?
"""

from __future__ import annotations

from pathlib import Path

from ..findings import Diagnosis
from .page import write_report


__all__ = ["PAGE", "leave_report"]

PAGE = "report.html"


def leave_report(diagnosis: Diagnosis, folder: Path) -> Path | None:
    """
    Leave a page in a snapshot, if that can be done.

    The snapshot is finished without it, and nothing depends on it.

    Args:
        diagnosis: What the snapshot tells.

        folder: The folder of the snapshot.

    Returns:
        Where it lies; ``None`` if *jinja2* is not installed, or if anything
        else is in the way.
    """
    try:
        return write_report(diagnosis, folder / PAGE)
    except Exception:  # noqa: BLE001 whatever it is, the snapshot is there
        return None
