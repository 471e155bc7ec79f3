"""
What went wrong, as gigabytes of logs tell?

Any file of text is searched, whoever wrote it.  What the lines mean is told by
rules, which are data, and to which users add their own.
"""

from __future__ import annotations


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .collectives.collect import (
        read_collective_logs as read_collective_logs,
    )
    from .collectives.conclude import (
        collective_findings as collective_findings,
    )
    from .collectives.model import CollectiveLogs as CollectiveLogs
    from .collectives.model import LogRecord as LogRecord
    from .collectives.model import rank_origins as rank_origins
    from .model import Hit as Hit
    from .model import LogGroup as LogGroup
    from .model import ScanReport as ScanReport
    from .model import TraceGroup as TraceGroup
    from .rules import LogRule as LogRule
    from .rules import load_rules as load_rules
    from .scan import scan_logs as scan_logs
    from .tracebacks import PyError as PyError
    from .tracebacks import PyFrame as PyFrame
else:
    from .._lazy import lazy_names

    __getattr__, __dir__ = lazy_names(__name__)
