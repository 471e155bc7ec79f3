"""
Find the exception that ended a job among those in its log.
"""

from __future__ import annotations

import re

from typing import NamedTuple

import attrs

from ..lines import LogLine, Origin
from ..signatures import lost_peer
from ..tracebacks import TRACEBACK_HEADER, TracebackReader
from .timeline import PhaseTrack, Timeline


# Messages that follow from an error elsewhere.
_CONSEQUENCE = re.compile(
    r"ChildFailedError|[Ss]ee (?:the )?(?:root cause|stack trace|logs?) above"
    r"|EngineDeadError"
    r"|Engine core initialization failed|EngineCore failed to start"
    r"|NCCL communicator was aborted"
)
# A traceback ends its log if at most this many lines follow.
_MOST_LINES_AFTER_END = 60
_MOST_TRACEBACK_LINES = 400
_LONGEST_EXCEPTION = 1000
_MOST_OPEN = 1024
_MOST_EXCEPTIONS = 4096


def is_consequence(text: str) -> bool:
    """
    Return whether an exception is only a consequence of another process's.
    """
    text = text[:_LONGEST_EXCEPTION]
    return any(x.search(text) for x in (_CONSEQUENCE, lost_peer()))


class _Raised(NamedTuple):
    """
    The last exception of a process, with its line number and order.
    """

    number: int
    order: int
    line: LogLine


@attrs.define
class TracebackTracker:
    """
    Track tracebacks in a log, and find the exception that ended the job.
    """

    # The line at which an open traceback began, and its reader, by origin.
    _open: dict[Origin | None, tuple[int, TracebackReader]] = attrs.field(
        factory=dict
    )
    _raised: dict[Origin | None, _Raised] = attrs.field(factory=dict)

    @property
    def is_open(self) -> bool:
        """
        Return whether a traceback has begun without its exception yet.
        """
        return bool(self._open)

    def read(self, line: LogLine, lines: int, order: int) -> None:
        """
        Read a line: of an open traceback, or the header of another one.
        """
        since, reader = self._open.get(line.origin, (lines, None))
        if reader is None:
            self._drop_stale(lines)
        else:
            reader.read(line.text)
            if reader.errors or lines - since > _MOST_TRACEBACK_LINES:
                del self._open[line.origin]
            if reader.errors:
                raised = line._replace(text=str(reader.errors[-1]))
                self._add(_Raised(lines, order, raised))
        head, header, _ = line.text.partition(TRACEBACK_HEADER)
        if header:
            self._open.pop(line.origin, None)  # keep the oldest first
            if len(self._open) < _MOST_OPEN:
                self._open[line.origin] = (lines, TracebackReader(head))

    def _drop_stale(self, lines: int) -> None:
        oldest = next(iter(self._open), None)
        if self._open and lines - self._open[oldest][0] > (
            _MOST_TRACEBACK_LINES
        ):
            del self._open[oldest]

    def _add(self, raised: _Raised) -> None:
        """
        Record the last exception of a process, unless it is a consequence.
        """
        origin = raised.line.origin
        known = self._raised.pop(origin, None)
        if (
            known
            and is_consequence(raised.line.text)
            and not is_consequence(known.line.text)
        ):
            raised = raised._replace(line=known.line)
        if known or len(self._raised) < _MOST_EXCEPTIONS:
            self._raised[origin] = raised

    def set_ending(self, timeline: Timeline, lines: int) -> None:
        """
        Set the ending and its reason, once the log is read.
        """
        if timeline.ending is None:
            last = self._find_final(timeline, lines)
            if last is None:
                return
            timeline.ending = ("failed", last)
        elif timeline.ending[0] != "failed":
            return
        tracks = timeline.tracks.values()
        # The job survived all exceptions before it trained last.
        since = max(
            (x.last_order for x in tracks if x.phase.trains), default=0
        )
        timeline.reason = min(
            (x.line for x in self._raised.values() if x.order >= since),
            key=lambda line: is_consequence(line.text),
            default=None,
        )

    def _find_final(self, timeline: Timeline, lines: int) -> LogLine | None:
        """
        Return the exception of the driver, or of a rank, that ends this log.
        """
        of_driver = [
            raised
            for origin, raised in self._raised.items()
            if origin is None or origin.pid is None
        ]
        if not of_driver:
            return None

        final = max(of_driver, key=lambda x: x.number)
        orders = [
            track.last_order
            for track in timeline.tracks.values()
            if not _is_reported_late(track)
        ]
        is_last = lines - final.number <= _MOST_LINES_AFTER_END
        is_last &= max(orders, default=0) <= final.order
        return final.line if is_last else None


def _is_reported_late(track: PhaseTrack) -> bool:
    """
    Return whether an actor may report this end after its driver has died.
    """
    origin = track.line.origin if track.line else None
    is_actor = origin is not None and origin.pid is not None
    return is_actor and track.is_ended and not track.phase.trains
