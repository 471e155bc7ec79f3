"""
How is any log read line by line: who printed a line, when, and how often?

Everything that reads logs begins here, so that colors, prefixes of launchers,
progress bars, junk, and files that are no files are dealt with once.
"""

from __future__ import annotations

from .files import (
    BROKEN,
    PACKED,
    Walk,
    open_log,
    read_lines,
    read_tail,
    split_block,
    walk_logs,
)
from .parse import LogLine, Origin, parse_line, parse_time


__all__ = [
    "BROKEN",
    "PACKED",
    "LogLine",
    "Origin",
    "Walk",
    "open_log",
    "parse_line",
    "parse_time",
    "read_lines",
    "read_tail",
    "split_block",
    "walk_logs",
]
