"""
Simulate jobs and write the dumps that their ranks would leave.

Simulate a job with :class:`SimulatedJob`, and write what its ranks would have
recorded with :func:`make_dumps`.
"""

from __future__ import annotations

from .dumps import make_dumps, plain_dump
from .jobs import SimulatedGroup, SimulatedJob, Stack


__all__ = [
    "SimulatedGroup",
    "SimulatedJob",
    "Stack",
    "make_dumps",
    "plain_dump",
]
