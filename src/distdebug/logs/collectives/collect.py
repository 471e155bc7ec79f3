"""
Collect records about collectives from log files, and map files to ranks.
"""

from __future__ import annotations

import os
import re
import time

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._search import Places
from ...errors import LogError
from ...findings import Missing
from ..engine import (
    Block,
    FilePart,
    LinePosition,
    LogReader,
    read_lines_for,
    read_parts,
)
from ..lines import (
    RANK_TAG,
    LogLine,
    LogWalk,
    find_file_ranks,
    no_logs_error,
    parse_attempt,
    parse_line,
    paths_of,
    strip_log_prefix,
    world_size_from_files,
)
from .model import (
    RECORD_FIELDS,
    CollectiveLogs,
    GroupMember,
    LogRecord,
    NcclInit,
    NcclNote,
    loosen_spaces,
    read_records,
    split_by_rank,
)


_MAX_CALLS = 32
_MAX_COMMUNICATORS = 1 << 16
_CALL = b" opcount "
_COMMUNICATOR = b" comm 0x"
#: The words by which calls are found.
CALL_WORDS = frozenset({_CALL, _COMMUNICATOR})
# A line is: host:pid:tid [device] NCCL INFO Name: opCount ... comm 0x1 ...
_NAME_BYTES, _PREFIX_BYTES = 32, 48
# Blanks between host and INFO.
_PREFIX_BLANKS = 3
_ARGUMENT_BYTES, _POINTER_BYTES = 256, 16
_BLANK = ord(" ")
_MULTIPLIERS = np.array(
    [
        *(0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9),
        *(0x27D4EB2F165667C5, 0x85EBCA77C2B2AE63, 0xFF51AFD7ED558CCD),
        *(0x94D049BB133111EB, 0xBF58476D1CE4E5B9),
    ],
    np.uint64,
)


class Reporter(NamedTuple):
    """
    What printed lines: one start of a job, in one file.

    Attributes:
        source: The file.

        rank: The rank of the file; ``None`` if unknown.

        attempt: How many times the job was restarted before.
    """

    source: str
    rank: int | None
    attempt: int


# The number of a line about a call of NCCL, the line, and what printed it.
Call = tuple[int, bytes, Reporter]


def is_call(line: str) -> bool:
    """
    Return whether a line is about a call of NCCL.
    """
    # A message of a watchdog may quote a call.
    return " opCount " in line and "SeqNum=" not in line


class _Part(NamedTuple):
    """
    The last calls in a part of a block: where they stand, by communicator.
    """

    block: Block
    places: dict[bytes, list[int]]
    reporter: Reporter


class LastCalls:
    """
    The last calls of each communicator, with bounded memory.

    Most calls of a part are superseded by those of the next one, and their
    lines are never cut out.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[int, bytes], deque[Call]] = {}
        self._part: _Part | None = None

    def __iter__(self) -> Iterator[Call]:
        self._keep(None)
        for calls in self._calls.values():
            yield from calls

    def add(
        self, block: Block, span: tuple[int, int], reporter: Reporter
    ) -> None:
        """
        Add the calls in a part of a block.

        Args:
            span: Where the part begins and ends in the data of the block.
        """
        places = block.places_of(_CALL, span)
        if places.size:
            pointers = block.places_of(_COMMUNICATOR, span)
            last = dict(_last_of_communicators(block, places, pointers))
            self._keep(_Part(block, last, reporter))

    def _keep(self, new: _Part | None) -> None:
        """
        Keep of the newest part what another one does not supersede.
        """
        old, self._part = self._part, new
        if old is None:
            return
        is_same = new is not None and new.reporter == old.reporter
        later = new.places if new and is_same else {}
        kept: list[tuple[int, deque[Call]]] = []
        for key, places in old.places.items():
            most = _MAX_CALLS - len(later.get(key, ()))
            known = old.reporter.attempt, key
            calls = self._calls.get(known)
            if calls is None and len(self._calls) < _MAX_COMMUNICATORS:
                calls = self._calls[known] = deque(maxlen=_MAX_CALLS)
            if calls is not None and most > 0:
                kept += ((at, calls) for at in places[-most:])
        kept.sort(key=lambda x: x[0])
        lines = old.block.lines_at([at for at, _ in kept])
        for (_, calls), (number, line) in zip(kept, lines, strict=True):
            calls.append((number, line, old.reporter))


def _last_of_communicators(
    block: Block, places: Places, pointers: Places
) -> Iterator[tuple[bytes, list[int]]]:
    """
    Yield a key of each communicator, and the places of its last calls.
    """
    rows = _keys(np.frombuffer(block.data, np.uint8), places, pointers)
    hashed = (rows.view(np.uint64) * _MULTIPLIERS).sum(axis=1, dtype=np.uint64)
    order = np.argsort(hashed, kind="stable")
    ends = np.flatnonzero(np.diff(hashed[order])) + 1
    for of_one in np.split(order, ends):
        key = rows[of_one[0]].tobytes()
        yield key, places[of_one[-_MAX_CALLS:]].tolist()


def _keys(
    data: NDArray[np.uint8], places: Places, pointers: Places
) -> NDArray[np.uint8]:
    """
    Return a row of bytes per call that identifies process and communicator.

    Before the process may stand a time, which does not count.
    """
    name = _window(data, places, -_NAME_BYTES)
    ends = places - np.argmax(name[:, ::-1] <= _BLANK, axis=1)
    prefix = _window(data, ends, -_PREFIX_BYTES)
    blanks = np.cumsum((prefix <= _BLANK)[:, ::-1], axis=1)[:, ::-1]
    following = np.append(pointers, data.size)
    starts = following[following.searchsorted(places)]
    pointer = _window(data, starts + len(_COMMUNICATOR), _POINTER_BYTES)
    is_behind = np.cumsum(pointer <= _BLANK, axis=1) > 0
    is_behind[starts - places > _ARGUMENT_BYTES] = True
    return np.concatenate(
        (
            np.where(blanks <= _PREFIX_BLANKS, prefix, 0),
            np.where(is_behind, 0, pointer),
        ),
        axis=1,
        dtype=np.uint8,
    )


def _window(
    data: NDArray[np.uint8], places: Places, size: int
) -> NDArray[np.uint8]:
    """
    Return the bytes behind some places, or before them if *size* is negative.
    """
    at = places[:, None] + np.arange(min(size, 0), max(size, 0))
    found: NDArray[np.uint8] = data.take(at, mode="clip")
    found[at < 0] = _BLANK
    return found


# A message that a terminal broke continues in at most this many lines.
_CONTINUATION_LINES = 8

_PREVIOUS_TAIL = 200

_KEYWORDS = (
    *("atchdog", "SeqNum=", "NCCL work", "ast enqueued", "dump signal"),
    *("ProcessGroup", "in blocking wait", "FingerPrint", "onitoredBarrier"),
    *("clients joined", "waiting for clients", "client socket has "),
    *("wait timeout after", "gloo/", "Gloo connectFullMesh", "ncclUniqueId"),
    *("store based barrier", "collective #", "joined any collectives"),
    *("NCCL WARN", " - Init ", "Using network", "Bootstrap", " : Using "),
    *("NCCL version", "restart worker group", "Socket Timeout"),
    *("TCP client failed", "connect() timed out", "RendezvousTimeoutError"),
    *("server socket has failed", "remote process exited"),
)
_RESTART = b"restart worker group"
# The keywords as they are, by the same in small letters.
_KEYWORD_OF = {word.lower().encode(): word.encode() for word in _KEYWORDS}
_WORDS = CALL_WORDS | _KEYWORD_OF.keys()


_INTEGER = r"-?\d{1,20}"
# A line that matches the first is complete if it matches the second, too.
_MESSAGE_ENDS: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(loosen_spaces(begin)), re.compile(loosen_spaces(end)))
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
            rf"last completed (?:\w{{1,8}} )?work: {_INTEGER}",
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
_SOURCE_FILE = re.compile(
    r"ProcessGroup[A-Z]\w{1,20}\.c|ProcessGroup\w{0,20}$"
)
_ENDS_WITH_SOURCE_FILE = re.compile(r"ProcessGroup\w{2,20}\.cpp:\d{1,6}\]\s*$")
# A line that begins like this does not continue another one.
_NEW_MESSAGE = re.compile(
    r"\[[DIWEFCV]\d{3,4} \d\d:|\[[DIWEFCV] ProcessGroup|Traceback |frame #"
    r"|Exception raised|terminate called|\s*what\(\)|\[?20\d\d[-/]\d\d"
    r"|File \"|[\w.-]{1,80}:\d{1,9}:\d{1,9} \[\d"
)
_GROUP_PREFIX_START = re.compile(r"\[(?:Rank|PG) ")
# A logger may put the prefix that torch prints before a message on its own
# line, or break within it.
_TRAILING_PREFIX = re.compile(
    RANK_TAG + r":?\s{0,4}"
    r"(?:\[[DIWEFCV]\d{0,4}(?:\s{1,4}[\w:.]{0,60}\]?)?)?\s*$"
)
_WITHOUT_PREFIX = re.compile(
    r"\s{0,40}(?:\[[DIWEFCV]\d{0,4} |\d\d:\d\d:[\d.]{2,16} |\[(?:Rank|PG) "
    r"|ProcessGroup\w{2,20}\.cpp|Watchdog|WorkNCCL|Received a dump| failure det"
    r"|Exception \(|Timeout at)"
)
_ENDS_WITH_DIGIT = re.compile(r"\d$")
_ONLY_DIGITS = re.compile(r"\s{0,4}(\d{1,19}\.?)\s*$")


def _is_overwritten(position: LinePosition) -> bool:
    """
    Return whether a line is a state of a bar, with others on both sides.
    """
    data, start, end = position.block.data, position.start, position.end
    return data[start - 1 : start] == data[end : end + 1] == b"\r"


def _previous_end(position: LinePosition) -> str:
    """
    Return the end of the line before, unless that is a state of a bar.
    """
    data, end = position.block.data, max(position.start - 1, 0)
    if data[end : end + 1] != b"\n":
        return ""
    before = data[max(end - _PREVIOUS_TAIL, 0) : end]
    return before.rpartition(b"\n")[2].decode("utf-8", "replace")


def _continuation_lines(position: LinePosition) -> Iterator[tuple[str, int]]:
    """
    Yield the lines in which a message may continue, and where each ends.
    """
    data = position.block.data
    for after in position.following():
        text = after.raw.decode("utf-8", "replace")
        is_behind_return = data[after.start - 1 : after.start] == b"\r"
        if is_behind_return and not text:  # the end of the line before
            continue
        if is_behind_return or is_call(text):
            return
        yield text, after.end


def _join_continuation(
    line: LogLine, position: LinePosition
) -> tuple[LogLine, int]:
    """
    Add the lines that complete this one, or do nothing.

    Returns:
        The line, and where in the block it ends.
    """
    text, width = line.text, 0
    may_have_group = _ENDS_WITH_SOURCE_FILE.search(text) is not None
    following = _continuation_lines(position)
    for raw, end in islice(following, _CONTINUATION_LINES):
        continuation = parse_line(strip_log_prefix(raw))
        if _is_new_message(continuation, line) or (
            _GROUP_PREFIX_START.match(continuation.text) and not may_have_group
        ):
            break
        text += continuation.text.lstrip()
        width = max(width, len(continuation.text))
        may_have_group = False
        if _is_incomplete(text):
            continue
        is_full = len(continuation.text) == width > 40
        if is_full and _ENDS_WITH_DIGIT.search(text):
            digits = _ONLY_DIGITS.match(next(following, ("", 0))[0])
            text += digits[1] if digits else ""
        return line._replace(text=text), end
    return line, position.end


def _is_new_message(continuation: LogLine, line: LogLine) -> bool:
    origin = continuation.origin
    if origin is not None and (
        origin != line.origin or origin.rank is not None
    ):
        return True
    return _NEW_MESSAGE.match(continuation.text) is not None


def _is_incomplete(text: str) -> bool:
    """
    Return whether a message begins here and does not end here.
    """
    ends = [end for begin, end in _MESSAGE_ENDS if begin.search(text)]
    if ends:
        return not all(end.search(text) for end in ends)
    return _SOURCE_FILE.search(text) is not None


# Records that differ only in these are equal.
_LOCATION_FIELDS = frozenset(
    {"line", "time", "quote", "count", "source", "origin"}
)
# Runs without a failure print these, too.
_ROUTINE_RECORDS = (NcclNote, NcclInit, GroupMember)
_MAX_RECORDS = 200_000
_MAX_KNOWN = 1 << 12
# So many states of bars are read in a file, which a name may make hits.
_MAX_STATES = 1 << 12
_RESTART_TEXT = "will restart worker group"


class RecordCollector(LogReader):
    """
    Collect records about collectives, each once, with bounded memory.
    """

    def __init__(
        self, ranks: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        super().__init__()
        self._ranks = ranks
        self._records: dict[str, dict[object, LogRecord]] = {
            name: {} for name in RECORD_FIELDS.values()
        }
        self._calls = LastCalls()
        self._restarts = 0
        self._dropped: dict[str, int] = defaultdict(int)

    def begin(self, part: FilePart) -> None:
        """
        Begin with a file.
        """
        super().begin(part)
        rank, attempt = self._ranks.get(part.path), parse_attempt(part.path)
        self._reporter = Reporter(part.path, rank, attempt)
        self._is_new = False
        self._joined = 0
        self._states = 0
        self._known: set[str] = set()
        self._latest: float | None = None

    def words(self, _stop: int) -> AbstractSet[bytes]:
        """
        Return the keywords.
        """
        return _WORDS

    def read(self, block: Block) -> None:
        """
        Add the records of a block.
        """
        self._latest = block.latest
        begin = block.own
        hits = (
            (at, word)
            for at, word in block.hits(_KEYWORD_OF.keys())
            if block.data.startswith(_KEYWORD_OF[word], at)
        )
        for position in block.lines_with(hits):
            if _RESTART in position.words:
                self._add_calls(block, begin, position.start)
                begin = position.start
            is_state = _is_overwritten(position)
            self._states += is_state
            is_one_of_many = is_state and self._states > _MAX_STATES
            # Lines that were joined to one before come again.
            is_new = position.offset >= self._joined
            if is_new and not is_one_of_many:
                self._read_message(position)
        self._add_calls(block, begin, block.end)

    def _add_calls(self, block: Block, begin: int, end: int) -> None:
        self._calls.add(block, (begin, end), self._reporter)

    def _read_message(self, position: LinePosition) -> None:
        """
        Add the records of a message that begins in a line.
        """
        block, text = position.block, position.raw.decode("utf-8", "replace")
        # A logger may have left the rank on the line before.
        prefix = _TRAILING_PREFIX.search(_previous_end(position))
        if is_call(text) or (text in self._known and not prefix):
            return  # millions may be as one before
        whole = text
        if prefix and _WITHOUT_PREFIX.match(text):
            whole = f"{prefix[0].rstrip()} {text.lstrip()}"
        number = block.line_number(position.start)
        line = parse_line(whole, number, self.part.path)
        if not _is_incomplete(line.text):
            if len(self._known) < _MAX_KNOWN:
                self._known.add(text)
        else:
            line, end = _join_continuation(line, position)
            self._joined = block.offset + end
        if _RESTART_TEXT in line.text:
            attempt = self._reporter.attempt + self._is_new
            self._reporter = self._reporter._replace(attempt=attempt)
            self._is_new = False
            self._known.clear()
        else:
            self._is_new |= self._add_line(line, self._reporter)

    def end(self, error: Exception | None) -> None:
        """
        Count the attempts that the file shows.
        """
        super().end(error)
        self._restarts = max(self._restarts, self._reporter.attempt)

    def _add_line(self, line: LogLine, reporter: Reporter) -> bool:
        has_failure = False
        for context in split_by_rank(
            line, reporter.rank, reporter.attempt, self._latest
        ):
            for record in read_records(context):
                self._add_record(record)
                has_failure |= not isinstance(record, _ROUTINE_RECORDS)
        return has_failure

    def _add_record(self, record: LogRecord) -> None:
        field = RECORD_FIELDS[type(record)]
        records = self._records[field]
        key = _record_key(record)
        if key not in records and len(records) < _MAX_RECORDS:
            records[key] = record
        elif key not in records:
            self._dropped[field] += 1

    def result(
        self,
        files: Sequence[str] = (),
        world_size: int | None = None,
        missing: Iterable[Missing] = (),
    ) -> CollectiveLogs:
        """
        Return all records, with what the files themselves show.

        Args:
            missing: What was not read.
        """
        missing = [*missing, *self.missing]
        self._latest = None  # calls of NCCL are of all files
        for number, raw, reporter in self._calls:
            text = raw.decode("utf-8", "replace")
            if not is_call(text):  # it was read already
                continue
            for piece in text.split("\r"):
                line = parse_line(piece, number, reporter.source)
                self._add_line(line, reporter)
        for kind, count in self._dropped.items():
            reason = f"{count} lines of this kind are more than are kept"
            missing.append(Missing(what=f"log: {kind}", reason=reason))
        logs = CollectiveLogs(
            **{kind: (*x.values(),) for kind, x in self._records.items()},  # type: ignore[arg-type]
            attempts=self._restarts + 1,
            quiet=_seconds_since_write(files),
            missing=tuple(missing),
        )
        if world_size is None:
            world_size = _infer_world_size(logs, files)
        return attrs.evolve(logs, world_size=world_size)


def _record_key(record: LogRecord) -> tuple[object, ...]:
    # Without a rank, source and origin keep ranks apart.
    where = (record.source, record.origin) if record.rank is None else ()
    return (
        type(record),
        *where,
        *(
            getattr(record, field.name)
            for field in attrs.fields(type(record))
            if field.name not in _LOCATION_FIELDS
        ),
    )


def _infer_world_size(
    logs: CollectiveLogs, files: Iterable[str]
) -> int | None:
    """
    Infer the world size from the largest communicator or group, or *files*.
    """
    sizes = [x.size for x in logs.inits] + [x.size for x in logs.members]
    size = max(sizes, default=None) or world_size_from_files(files)
    ranks = (x.rank for x in logs.records if x.rank is not None)
    if size is None or any(rank >= size for rank in ranks):
        return None
    return size


_MAX_RANKS = 1 << 24


def read_collective_logs(
    paths_or_lines: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    world_size: int | None = None,
) -> CollectiveLogs:
    """
    Collect what watchdogs, NCCL, Gloo, and the store wrote.

    Args:
        paths_or_lines: A file, a folder, or several of them; or lines, as one
            text or as an iterable.

        world_size: Number of ranks of the job.  Without it, a rank without any
            line is only reported as missing if lines of NCCL have the number
            of ranks, or if the files of one launch, also empty ones, are those
            of ranks 0 to N - 1.

    Returns:
        The records, without repetitions.

    Raises:
        NoLogsError: There is no log.

        LogError: *world_size* is not a valid number of ranks.
    """
    if world_size is not None and not 1 <= world_size <= _MAX_RANKS:
        is_short = abs(world_size) < _MAX_RANKS
        shown = world_size if is_short else "so many"
        msg = f"a job has 1 to {_MAX_RANKS:,} ranks, not {shown}"
        raise LogError(msg)

    paths = paths_of(paths_or_lines)
    if paths is None:
        collector = RecordCollector()
        read_lines_for(collector, paths_or_lines)  # type: ignore[arg-type]
        return collector.result(world_size=world_size)

    walk = LogWalk(paths)
    files = [str(path) for path in walk]
    if not files:
        raise no_logs_error(paths, walk.missing)
    collector = RecordCollector(find_file_ranks(files))
    read_parts((FilePart(path=file), [collector]) for file in files)
    return collector.result(files, world_size, walk.missing)


def _seconds_since_write(files: Iterable[str]) -> float | None:
    """
    Return the seconds since the last write to any of the files.
    """
    written = []
    for file in files:
        with suppress(OSError):  # gone meanwhile
            written.append(os.stat(file).st_mtime)  # noqa: PTH116
    return max(time.time() - max(written), 0.0) if written else None
