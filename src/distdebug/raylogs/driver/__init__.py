"""
What does the output of a driver tell about all the others?
"""

from __future__ import annotations

from .model import (
    DriverLog,
    DriverSource,
    Failure,
    FailureKind,
    OriginMatch,
    find_driver_logs,
    map_origins,
)
from .read import driver_lines, read_driver_log
from .report import driver_findings


__all__ = [
    "DriverLog",
    "DriverSource",
    "Failure",
    "FailureKind",
    "OriginMatch",
    "driver_findings",
    "driver_lines",
    "find_driver_logs",
    "map_origins",
    "read_driver_log",
]
