"""
What of all that is read is kept?
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

import attrs

from ..._lines import LogLine
from ...findings import Missing
from .broken import whole_lines
from .checks import read_checks
from .gloo import read_gloo
from .logs import CollectiveLogs
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
from .nccl import read_nccl
from .rows import Row
from .speaker import speakers
from .stores import read_stores
from .watchdog import read_watchdog


__all__ = ["Kept"]

_FIELDS: dict[type[LogRecord], str] = {
    WorkTimeout: "timeouts",
    WorkStatus: "statuses",
    DumpSignal: "dump_signals",
    Heartbeat: "heartbeats",
    DesyncReport: "desyncs",
    FingerPrintMismatch: "mismatches",
    BarrierFailure: "barriers",
    StoreTimeout: "stores",
    GlooError: "gloo",
    GroupMember: "members",
    NcclInit: "inits",
    NcclNote: "notes",
    NcclCall: "calls",
}
_READERS = (read_watchdog, read_checks, read_stores, read_gloo, read_nccl)
# Where a line stands does not make it another one.
_PLACE = frozenset({"line", "time", "quote", "count", "source", "origin"})
# Every run prints these.
_HEALTHY = (NcclNote, NcclInit, GroupMember)
_MOST = 200_000
_MOST_CALLS = 32
_MOST_STREAMS = 1 << 16
_RESTART = "will restart worker group"


class Kept:
    """
    Collects what is found, each thing once, and not without bound.
    """

    def __init__(self) -> None:
        self._records: dict[str, dict[object, LogRecord]] = {
            name: {} for name in _FIELDS.values()
        }
        self._calls: dict[tuple[str, str], deque[tuple[Row, str]]] = {}
        self._restarts = 0
        self._lost: dict[str, int] = defaultdict(int)

    def read(
        self,
        rows: Iterator[Row],
        source: str,
        rank: int | None,
        attempt: int,
    ) -> None:
        """
        Take what one file says.
        """
        is_new = False
        for line in whole_lines(self._without_calls(rows, source), source):
            if _RESTART in line.text:
                attempt += is_new
                is_new = False
            elif self._take(line, rank, attempt):
                is_new = True
        self._restarts = max(self._restarts, attempt)

    def _without_calls(
        self, rows: Iterator[Row], source: str
    ) -> Iterator[Row]:
        """
        Keep the last calls of each communicator; there are millions of them.
        """
        for row in rows:
            if " opCount " not in row.text or "SeqNum=" in row.text:
                yield row
                continue
            who = row.text[: row.text.find("] NCCL INFO")]
            _, _, comm = row.text.rpartition(" comm ")
            key = (who[-80:], comm[:18])
            if key not in self._calls and len(self._calls) < _MOST_STREAMS:
                self._calls[key] = deque(maxlen=_MOST_CALLS)
            if key in self._calls:
                self._calls[key].append((row, source))

    def _take(self, line: LogLine, rank: int | None, attempt: int) -> bool:
        is_any = False
        for speaker in speakers(line, rank=rank, attempt=attempt):
            for read in _READERS:
                for record in read(speaker, speaker.text):
                    self._keep(record)
                    is_any |= not isinstance(record, _HEALTHY)
        return is_any

    def _keep(self, record: LogRecord) -> None:
        kind = _FIELDS[type(record)]
        known = self._records[kind]
        key = _key(record)
        if key not in known and len(known) < _MOST:
            known[key] = record
        elif key not in known:
            self._lost[kind] += 1

    def result(
        self,
        world_size: int | None,
        missing: list[Missing],
        files: int | None = None,
    ) -> CollectiveLogs:
        """
        All of it; of *files* ranks there are files.
        """
        for rows in self._calls.values():
            for row, source in rows:
                lines = whole_lines(iter([row]), source)
                for line in lines:
                    self._take(line, None, 0)
        for kind, count in self._lost.items():
            reason = f"{count} lines of this kind are more than are kept"
            missing.append(Missing(what=f"log: {kind}", reason=reason))
        records = {
            kind: tuple(found.values())
            for kind, found in self._records.items()
        }
        logs = CollectiveLogs(
            **records,  # type: ignore[arg-type]
            attempts=self._restarts + 1,
            missing=tuple(missing),
        )
        size = _size_of(logs, files) if world_size is None else world_size
        return attrs.evolve(logs, world_size=size)


def _key(record: LogRecord) -> tuple[object, ...]:
    told = tuple(
        getattr(record, field.name)
        for field in attrs.fields(type(record))
        if field.name not in _PLACE
    )
    # Without a rank, only the place tells speakers apart.
    if record.rank is None:
        told += (record.source, record.origin)
    return (type(record), *told)


def _size_of(logs: CollectiveLogs, files: int | None) -> int | None:
    """
    How many ranks there are, by the largest communicator or group; else by
    how many have a file.
    """
    sizes = [x.size for x in logs.inits] + [x.size for x in logs.members]
    size = max(sizes, default=files)
    ranks = (x.rank for x in logs.records if x.rank is not None)
    if size is None or any(rank >= size for rank in ranks):
        return None
    return size
