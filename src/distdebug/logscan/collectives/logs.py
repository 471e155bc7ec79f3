"""
What do logs say about collectives, all in all?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from ..._showing import Block, Shown
from ...findings import Missing, as_plain
from .model import (
    BarrierFailure,
    DesyncReport,
    DumpSignal,
    FingerPrintMismatch,
    GlooError,
    GroupMember,
    Heartbeat,
    LogRecord,
    NcclCall,
    NcclInit,
    NcclNote,
    StoreTimeout,
    WorkStatus,
    WorkTimeout,
)


__all__ = ["CollectiveLogs"]

_NO_RECORDS = frozenset({"world_size", "attempts", "quiet", "missing"})


@attrs.frozen(kw_only=True)
class CollectiveLogs(Shown):
    """
    All that logs say about collectives.

    Attributes:
        timeouts: Calls that did not end in time; one per rank and call,
            however often it was printed.

        statuses: How far ranks had come.

        dump_signals: Who was told to leave a dump, and how far it had come.

        heartbeats: Ranks whose watchdog did not move.

        desyncs: What torch itself says of who lags behind.

        mismatches: Ranks that were about to make different calls.

        barriers: Monitored barriers that failed.

        stores: Processes that did not find each other.

        gloo: Calls over Gloo that failed.

        members: Groups that were made, as their members tell.

        inits: Communicators that were set up.

        notes: Networks, versions, warnings of NCCL.

        calls: The last calls that NCCL printed, of each communicator of each
            process.

        world_size: How many ranks the job has, if known.

        attempts: How many runs of the job the logs hold.

        quiet: For how many seconds nobody had written to any of the files
            when they were read; ``None`` if they were no files.

        missing: What could not be read, and why.
    """

    timeouts: tuple[WorkTimeout, ...] = ()
    statuses: tuple[WorkStatus, ...] = ()
    dump_signals: tuple[DumpSignal, ...] = ()
    heartbeats: tuple[Heartbeat, ...] = ()
    desyncs: tuple[DesyncReport, ...] = ()
    mismatches: tuple[FingerPrintMismatch, ...] = ()
    barriers: tuple[BarrierFailure, ...] = ()
    stores: tuple[StoreTimeout, ...] = ()
    gloo: tuple[GlooError, ...] = ()
    members: tuple[GroupMember, ...] = ()
    inits: tuple[NcclInit, ...] = ()
    notes: tuple[NcclNote, ...] = ()
    calls: tuple[NcclCall, ...] = ()
    world_size: int | None = None
    attempts: int = 1
    quiet: float | None = None
    missing: tuple[Missing, ...] = ()

    @property
    def records(self) -> tuple[LogRecord, ...]:
        """
        Everything that was said, in the order of the attributes.
        """
        return tuple(
            record
            for field in attrs.fields(CollectiveLogs)
            for record in (
                getattr(self, field.name)
                if field.name not in _NO_RECORDS
                else ()
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per line, for a data frame.
        """
        return [
            {"kind": type(record).__name__} | as_plain(record)
            for record in self.records
        ]

    def _blocks_(self) -> Iterable[Block]:
        from .telling import logs_blocks

        return logs_blocks(self)
