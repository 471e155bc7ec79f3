"""
Does a traceback end this log, and what does it tell?
"""

from __future__ import annotations

import re

import attrs

from .._lines import LogLine, Origin
from .message import begins_message
from .story import Story
from .tracks import Track


__all__ = ["Tracebacks", "is_consequence"]

_EXCEPTION = re.compile(
    r"(?<![\w.])(?:[\w.]{1,160}\.)?"
    r"\w{0,60}(?:Error|Exception|Interrupt|Exit|Failure|Expired|Iteration)"
    r"(?::|$)"
)
# What only tells that something went wrong elsewhere.
_CONSEQUENCE = re.compile(
    r"ChildFailedError|[Ss]ee (?:the )?(?:root cause|stack trace|logs?) above"
    r"|[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer"
    r"|[Bb]roken pipe|remote process exited|EngineDeadError"
    r"|Engine core initialization failed|EngineCore failed to start"
    r"|NCCL communicator was aborted"
)
_MOST_LINES = 400
# A traceback ends its log if hardly anything follows.
_LAST_WORDS = 60
_LONGEST = 1000
_MOST_OPEN = 1024
_MOST_KEPT = 4096


def is_consequence(text: str) -> bool:
    """
    Does an exception follow from what went wrong elsewhere?

    Args:
        text: What it says.

    Returns:
        Whether it does.
    """
    return _CONSEQUENCE.search(text[:_LONGEST]) is not None


@attrs.define
class Tracebacks:
    """
    The tracebacks of a log, as far as it was read.
    """

    # By who printed them: since which line those go on ...
    _open: dict[Origin | None, int] = attrs.field(factory=dict)
    # ... and their last exceptions, with the numbers of line and order.
    _said: dict[Origin | None, tuple[int, int, LogLine]] = attrs.field(
        factory=dict
    )

    @property
    def is_open(self) -> bool:
        """
        Whether one began, and its exception is still to come.
        """
        return bool(self._open)

    def begin(self, line: LogLine, lines: int) -> None:
        """
        One begins in this line, which is that of this number.
        """
        self._open.pop(line.origin, None)  # the oldest stays the first
        if len(self._open) < _MOST_OPEN:
            self._open[line.origin] = lines

    def read(self, line: LogLine, lines: int, order: int) -> None:
        """
        Is this the exception of one that is open?
        """
        since = self._open.get(line.origin)
        if since is None:
            self._forget(lines)
            return

        text = line.text[:_LONGEST]
        found = _EXCEPTION.search(text)
        if lines - since > _MOST_LINES:
            del self._open[line.origin]
        elif found and begins_message(text, found.start()):
            del self._open[line.origin]
            said = line._replace(text=line.text[found.start() :])
            self._keep(said, lines, order)

    def _forget(self, lines: int) -> None:
        if self._open:
            oldest = next(iter(self._open))
            if lines - self._open[oldest] > _MOST_LINES:
                del self._open[oldest]

    def _keep(self, line: LogLine, lines: int, order: int) -> None:
        """
        The last of each process counts, unless it only follows from one.
        """
        known = self._said.get(line.origin)
        if known and is_consequence(line.text):
            if not is_consequence(known[2].text):
                line = known[2]
        elif known is None and len(self._said) >= _MOST_KEPT:
            return
        self._said.pop(line.origin, None)
        self._said[line.origin] = (lines, order, line)

    def conclude(self, story: Story, lines: int) -> None:
        """
        The log is read: was the last of them the end of all, and why?
        """
        if story.ending is None:
            last = self._last_of_driver(story, lines)
            if last is None:
                return
            story.ending = ("failed", last)
        elif story.ending[0] != "failed":
            return
        since = _last_step(story)
        late = [one for _, at, one in self._said.values() if at >= since]
        story.reason = min(
            late, key=lambda one: is_consequence(one.text), default=None
        )

    def _last_of_driver(self, story: Story, lines: int) -> LogLine | None:
        """
        The exception of the driver, or of a rank, that ends this log.
        """
        mine = [
            (number, order, line)
            for who, (number, order, line) in self._said.items()
            if who is None or who.pid is None
        ]
        if not mine:
            return None

        number, order, line = max(mine, key=lambda one: one[0])
        touched = [
            track.touched
            for track in story.tracks.values()
            if not _is_late(track)
        ]
        is_last = lines - number <= _LAST_WORDS
        return line if is_last and max(touched, default=0) <= order else None


def _is_late(track: Track) -> bool:
    """
    Might an actor tell what is done while its driver is dead already?
    """
    origin = track.line.origin if track.line else None
    is_actor = origin is not None and origin.pid is not None
    return is_actor and track.is_ended and not track.phase.trains


def _last_step(story: Story) -> int:
    """
    When the job last trained: what was complained of before, it survived.
    """
    touched = [
        track.touched for track in story.tracks.values() if track.phase.trains
    ]
    return max(touched, default=0)
