"""
What went wrong, as gigabytes of logs tell?

Any file of text is searched, whoever wrote it.  What the lines mean is told by
rules, which are data, and to which users add their own.
"""

from __future__ import annotations

from .model import Hit, LogGroup, ScanReport, TraceGroup
from .pyerror import PyError, PyFrame
from .rules import LogRule, load_rules
from .scan import scan_logs


__all__ = [
    "Hit",
    "LogGroup",
    "LogRule",
    "PyError",
    "PyFrame",
    "ScanReport",
    "TraceGroup",
    "load_rules",
    "scan_logs",
]
