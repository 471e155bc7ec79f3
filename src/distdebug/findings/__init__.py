"""
What does a conclusion look like?

Every primitive returns :class:`Finding` objects in this one shape, and
:func:`distdebug.diagnose` joins them into one :class:`Diagnosis`.
"""

from __future__ import annotations

from .model import (
    Cause,
    CollectiveRef,
    Confidence,
    Diagnosis,
    Evidence,
    Finding,
    GroupProgress,
    GroupRef,
    Location,
    Missing,
)


__all__ = [
    "Cause",
    "CollectiveRef",
    "Confidence",
    "Diagnosis",
    "Evidence",
    "Finding",
    "GroupProgress",
    "GroupRef",
    "Location",
    "Missing",
]
