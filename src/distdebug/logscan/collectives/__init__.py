"""
Who was missing in a collective, as the lines of watchdogs and of NCCL tell?

No Flight Recorder dump is needed: the lines that torch's watchdog, its store,
Gloo, and NCCL print say in which call each rank waited, and how far the others
had come.
"""

from __future__ import annotations

from .collect import PathsOrLines, read_collective_logs
from .conclude import collective_findings
from .model import (
    BarrierFailure,
    CollectiveLogs,
    DesyncReport,
    DumpSignal,
    FingerPrint,
    FingerPrintMismatch,
    GlooError,
    GroupMember,
    Heartbeat,
    LogGroup,
    LogRecord,
    NcclCall,
    NcclInit,
    NcclNote,
    RankOrigin,
    StoreTimeout,
    WorkStatus,
    WorkTimeout,
    rank_origins,
)


__all__ = [
    "BarrierFailure",
    "CollectiveLogs",
    "DesyncReport",
    "DumpSignal",
    "FingerPrint",
    "FingerPrintMismatch",
    "GlooError",
    "GroupMember",
    "Heartbeat",
    "LogGroup",
    "LogRecord",
    "NcclCall",
    "NcclInit",
    "NcclNote",
    "PathsOrLines",
    "RankOrigin",
    "StoreTimeout",
    "WorkStatus",
    "WorkTimeout",
    "collective_findings",
    "rank_origins",
    "read_collective_logs",
]
