"""
Which lines are one message that a terminal or a launcher broke?

Terminals break at their last column, in the middle of words and numbers;
loggers break between words and indent.  Both are undone by putting the parts
together without anything between them: the patterns that read the result need
no blanks.
"""

from __future__ import annotations

import re

from collections import deque
from collections.abc import Iterator

import attrs

from ..._lines import LogLine, parse_line
from .rows import AFTER, Row
from .words import spaced


__all__ = ["whole_lines"]

_NUMBER = r"-?\d{1,20}"
# A line with the first is only whole if it has the second, too.
_STAGES: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(spaced(begin)), re.compile(spaced(end)))
    for begin, end in (
        (
            r"SeqNum=|Watchdog caught|timed out in bl",
            r"before timing out|blocking wait",
        ),
        (
            (
                r"detected by watchdog|Timeout at \w{1,8} work|signal due to"
                r"|ast enqueued|PG status"
            ),
            rf"last completed (?:\w{{1,8}} )?work: {_NUMBER}",
        ),
        (
            r"mismatch between coll|is running collective",
            (
                r"but Rank \d{1,7} is running collective: CollectiveFingerPrint"
                r"\([^\n]{0,60}?OpType=\w{1,40}[,)]"
            ),
        ),
        (r"waiting for clients", r"\d{1,7}/\d{1,7} clients joined"),
        (
            r"failed to pass moni|failed to pass monitoredBarrier",
            r"monitoredBarrier in \d{1,12} ms",
        ),
        (r"client socket has timed", r"to connect to \([^)\n]{1,300}\)"),
        (r"watchdog got stuck", r"stuck for \d{1,9} seconds"),
    )
)
_SOURCE = re.compile(r"ProcessGroup[A-Z]\w{1,20}\.c|ProcessGroup\w{0,20}$")
_ONLY_SOURCE = re.compile(r"ProcessGroup\w{2,20}\.cpp:\d{1,6}\]\s*$")
# Who begins like this does not go on with something.
_ANEW = re.compile(
    r"\[[DIWEFCV]\d{3,4} \d\d:|\[[DIWEFCV] ProcessGroup|Traceback |frame #"
    r"|Exception raised|terminate called|\s*what\(\)|\[?20\d\d[-/]\d\d"
    r"|File \"|[\w.-]{1,80}:\d{1,9}:\d{1,9} \[\d"
)
_NAMED = re.compile(r"\[(?:Rank|PG) ")
# A logger may put all that torch prints before a message on a line of its own,
# or break within it.
_HEAD = re.compile(
    r"\[rank\d{1,7}\]:?\s{0,4}"
    r"(?:\[[DIWEFCV]\d{0,4}(?:\s{1,4}[\w:.]{0,60}\]?)?)?\s*$"
)
_HEADLESS = re.compile(
    r"\s{0,40}(?:\[[DIWEFCV]\d{0,4} |\d\d:\d\d:[\d.]{2,16} |\[(?:Rank|PG) "
    r"|ProcessGroup\w{2,20}\.cpp|Watchdog|WorkNCCL|Received a dump| failure det"
    r"|Exception \(|Timeout at)"
)
_END_NUMBER = re.compile(r"\d$")
_MORE_DIGITS = re.compile(r"\s{0,4}(\d{1,19}\.?)\s*$")


def whole_lines(rows: Iterator[Row], source: str) -> Iterator[LogLine]:
    """
    Put together what was broken.

    Args:
        rows: Lines of one file, in their order.

        source: The file.

    Yields:
        The lines that could be about a collective; a broken one bears the
        number of its first part.
    """
    ahead: deque[Row] = deque()
    while True:
        row = ahead.popleft() if ahead else next(rows, None)
        if row is None:
            return
        if not row.is_hit:
            continue
        *bars, last = _pieces(_with_head(row), source)
        yield from bars
        if _is_open(last.text):
            while len(ahead) < AFTER and (more := next(rows, None)):
                ahead.append(more)
            last = _joined(last, ahead)
        yield last


def _with_head(row: Row) -> Row:
    """
    Add the name of a rank that was left behind on the line before.
    """
    head = _HEAD.search(row.before)
    if head is None or not _HEADLESS.match(row.text):
        return row
    return attrs.evolve(row, text=f"{head[0].rstrip()} {row.text.lstrip()}")


def _pieces(row: Row, source: str) -> list[LogLine]:
    # A progress bar writes over itself, and others write behind it.
    pieces = [x for x in row.text.split("\r") if x and not x.isspace()]
    return [
        parse_line(piece, number=row.number, source=source)
        for piece in pieces or [""]
    ]


def _joined(line: LogLine, ahead: deque[Row]) -> LogLine:
    """
    Add the lines that complete this one, and take them away; or neither.
    """
    text, width = line.text, 0
    may_be_named = _ONLY_SOURCE.search(text) is not None
    for used, row in enumerate(ahead, 1):
        if row.number != line.number + used:
            break
        more = parse_line(row.text)
        if _is_anew(more, line) or (
            _NAMED.match(more.text) and not (may_be_named and used == 1)
        ):
            break
        text += more.text.lstrip()
        width = max(width, len(more.text))
        if _is_open(text):
            continue
        tail = ahead[used] if used < len(ahead) else None
        if tail and len(more.text) == width > 40 and _END_NUMBER.search(text):
            digits = _MORE_DIGITS.match(tail.text)
            text += digits[1] if digits else ""
        for _ in range(used):
            ahead.popleft()
        return line._replace(text=text)
    return line


def _is_anew(more: LogLine, line: LogLine) -> bool:
    if more.origin is not None and more.origin != line.origin:
        return True
    if more.origin is not None and more.origin.rank is not None:
        return True
    return _ANEW.match(more.text) is not None


def _is_open(text: str) -> bool:
    """
    Whether a message begins here whose end is not here.
    """
    begun = [end for begin, end in _STAGES if begin.search(text)]
    if begun:
        return not all(end.search(text) for end in begun)
    return _SOURCE.search(text) is not None
