"""
Collect records about collectives from log files, and map files to ranks.
"""

from __future__ import annotations

import os
import re
import time

from collections import Counter, defaultdict, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ...errors import LogError, NoLogsError
from ...findings import Missing
from ..lines import (
    PADDING,
    LogLine,
    build_index,
    find_words,
    open_log,
    parse_line,
    walk_logs,
)
from .model import (
    BarrierFailure,
    CollectiveLogs,
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
    loosen_spaces,
    split_by_rank,
)
from .parse import (
    read_debug_checks,
    read_gloo,
    read_nccl,
    read_store_timeouts,
    read_watchdog,
)


# A message that a terminal broke continues in at most this many lines.
_CONTINUATION_LINES = 8

_BLOCK_BYTES = 1 << 22
_MAX_LINE = 1 << 16
_PREVIOUS_TAIL = 200
_PADDING = bytes(PADDING)

_KEYWORDS = (
    *("atchdog", "SeqNum=", "NCCL work", "ast enqueued", "dump signal"),
    *("ProcessGroup", "in blocking wait", "FingerPrint", "onitoredBarrier"),
    *("clients joined", "waiting for clients", "client socket has "),
    *("wait timeout after", "gloo/", "Gloo connectFullMesh", "ncclUniqueId"),
    *("store based barrier", "collective #", "joined any collectives"),
    *("NCCL WARN", " - Init ", "Using network", "Bootstrap", " : Using "),
    *("opCount", "NCCL version", "restart worker group", "Socket Timeout"),
    *("TCP client failed", "connect() timed out", "RendezvousTimeoutError"),
    *("server socket has failed", "remote process exited"),
)
_KEYWORD_INDEX = build_index(word.encode() for word in _KEYWORDS)
# The index ignores case; a hit must have exactly this case.
_KEYWORD_BYTES = {word.lower().encode(): word.encode() for word in _KEYWORDS}


@attrs.frozen
class RawLine:
    """
    A line of a file.

    Attributes:
        number: Line number, from 1.

        is_hit: Whether it contains a keyword.  Other lines only matter because
            a message may continue in them.

        previous_end: The end of the line before a hit: a message may begin
            there.
    """

    number: int
    text: str
    is_hit: bool
    previous_end: str = ""


def scan_file(path: str | os.PathLike[str]) -> Iterator[RawLine]:
    """
    Find the lines of a file that could be about a collective.

    Args:
        path: The file, compressed or not.

    Yields:
        Hits, each with the lines in which it may continue, in file order.

    Raises:
        OSError: The file cannot be read.

        ValueError: It is not a regular file.
    """
    number, pending, unread, last_line = 1, 0, b"", b""
    with open_log(path) as file:
        while block := file.read(_BLOCK_BYTES):
            text = b"".join((unread, block, _PADDING))
            end = text.rfind(b"\n") + 1
            if end:
                number, pending = yield from _scan_block(
                    text, end, number, pending, last_line
                )
                last_line = _previous_line(text, end)
            # Drop the rest of a line longer than the limit.
            unread = text[end:-PADDING][:_MAX_LINE]
    if unread:
        text = unread + b"\n" + _PADDING
        yield from _scan_block(
            text, len(unread) + 1, number, pending, last_line
        )


def scan_lines(lines: Iterable[str]) -> Iterator[RawLine]:
    """
    Mark the lines that could be about a collective, and yield all lines.
    """
    previous_end = ""
    for number, line in enumerate(lines, 1):
        text = line[:_MAX_LINE].rstrip("\n")
        is_hit = any(word in line for word in _KEYWORDS)
        yield RawLine(number, text, is_hit, previous_end if is_hit else "")
        previous_end = text[-_PREVIOUS_TAIL:]


def _scan_block(
    text: bytes, end: int, number: int, pending: int, last_line: bytes
) -> Generator[RawLine, None, tuple[int, int]]:
    """
    Yield the hits of a block and their continuation lines; skip the others.
    """
    position = 0
    for hit in [*_hit_starts(text, end), end]:
        while pending and position < hit:
            raw, position = _read_raw_line(text, position, number)
            yield raw
            number, pending = number + 1, pending - 1
        if position < hit:
            number += text.count(b"\n", position, hit)
        if hit < end:
            raw, position = _read_raw_line(text, hit, number)
            previous_end = _previous_line(text, hit) if hit else last_line
            yield attrs.evolve(
                raw,
                is_hit=True,
                previous_end=_decode(previous_end[-_PREVIOUS_TAIL:]),
            )
            number, pending = number + 1, _CONTINUATION_LINES
    return number, pending


def _hit_starts(text: bytes, end: int) -> list[int]:
    """
    Return the start offsets of lines that contain a keyword.
    """
    matches = find_words(
        _KEYWORD_INDEX, np.frombuffer(text, np.uint8, end + PADDING)
    )
    starts = {
        text.rfind(b"\n", 0, position) + 1
        for position, keyword in matches
        if position < end
        and text.startswith(_KEYWORD_BYTES[keyword], position)
    }
    return sorted(starts)


def _read_raw_line(
    text: bytes, start: int, number: int
) -> tuple[RawLine, int]:
    end = text.find(b"\n", start)
    line = text[start : min(end, start + _MAX_LINE)]
    return RawLine(number, _decode(line), is_hit=False), end + 1


def _previous_line(text: bytes, start: int) -> bytes:
    return text[text.rfind(b"\n", 0, start - 1) + 1 : start - 1]


def _decode(line: bytes) -> str:
    return line.decode("utf-8", "replace")


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
    r"\[rank\d{1,7}\]:?\s{0,4}"
    r"(?:\[[DIWEFCV]\d{0,4}(?:\s{1,4}[\w:.]{0,60}\]?)?)?\s*$"
)
_WITHOUT_PREFIX = re.compile(
    r"\s{0,40}(?:\[[DIWEFCV]\d{0,4} |\d\d:\d\d:[\d.]{2,16} |\[(?:Rank|PG) "
    r"|ProcessGroup\w{2,20}\.cpp|Watchdog|WorkNCCL|Received a dump| failure det"
    r"|Exception \(|Timeout at)"
)
_ENDS_WITH_DIGIT = re.compile(r"\d$")
_ONLY_DIGITS = re.compile(r"\s{0,4}(\d{1,19}\.?)\s*$")


def join_broken_lines(
    raw_lines: Iterator[RawLine], source: str
) -> Iterator[LogLine]:
    """
    Join messages that were broken into several lines.

    Args:
        raw_lines: Lines of one file, in file order.

    Yields:
        The lines that could be about a collective; a joined line has the
        number of its first part.
    """
    ahead: deque[RawLine] = deque()
    while True:
        raw = ahead.popleft() if ahead else next(raw_lines, None)
        if raw is None:
            return
        if not raw.is_hit:
            continue
        *overwritten, last = _split_progress_bar(_restore_prefix(raw), source)
        yield from overwritten
        if _is_incomplete(last.text):
            while len(ahead) < _CONTINUATION_LINES and (
                continuation := next(raw_lines, None)
            ):
                ahead.append(continuation)
            last = _join_continuation(last, ahead)
        yield last


def _restore_prefix(raw: RawLine) -> RawLine:
    """
    Add the rank prefix that was left on the previous line.
    """
    prefix = _TRAILING_PREFIX.search(raw.previous_end)
    if prefix is None or not _WITHOUT_PREFIX.match(raw.text):
        return raw
    return attrs.evolve(raw, text=f"{prefix[0].rstrip()} {raw.text.lstrip()}")


def _split_progress_bar(raw: RawLine, source: str) -> list[LogLine]:
    # A progress bar overwrites its line, and messages may follow it there.
    pieces = [x for x in raw.text.split("\r") if x and not x.isspace()]
    return [
        parse_line(piece, number=raw.number, source=source)
        for piece in pieces or [""]
    ]


def _join_continuation(line: LogLine, ahead: deque[RawLine]) -> LogLine:
    """
    Add the lines that complete this one and consume them, or do neither.
    """
    text, width = line.text, 0
    may_have_group = _ENDS_WITH_SOURCE_FILE.search(text) is not None
    for used, raw in enumerate(ahead, 1):
        if raw.number != line.number + used:
            break
        continuation = parse_line(raw.text)
        if _is_new_message(continuation, line) or (
            _GROUP_PREFIX_START.match(continuation.text)
            and not (may_have_group and used == 1)
        ):
            break
        text += continuation.text.lstrip()
        width = max(width, len(continuation.text))
        if _is_incomplete(text):
            continue
        next_line = ahead[used] if used < len(ahead) else None
        if (
            next_line
            and len(continuation.text) == width > 40
            and _ENDS_WITH_DIGIT.search(text)
        ):
            digits = _ONLY_DIGITS.match(next_line.text)
            text += digits[1] if digits else ""
        for _ in range(used):
            ahead.popleft()
        return line._replace(text=text)
    return line


def _is_new_message(continuation: LogLine, line: LogLine) -> bool:
    if continuation.origin is not None and continuation.origin != line.origin:
        return True
    if (
        continuation.origin is not None
        and continuation.origin.rank is not None
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


_FIELD_BY_TYPE: dict[type[LogRecord], str] = {
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
_LINE_READERS = (
    read_watchdog,
    read_debug_checks,
    read_store_timeouts,
    read_gloo,
    read_nccl,
)
# Records that differ only in these are equal.
_LOCATION_FIELDS = frozenset(
    {"line", "time", "quote", "count", "source", "origin"}
)
# Runs without a failure print these, too.
_ROUTINE_RECORDS = (NcclNote, NcclInit, GroupMember)
_MAX_RECORDS = 200_000
_MAX_CALLS = 32
_MAX_COMMUNICATORS = 1 << 16
_RESTART_TEXT = "will restart worker group"


class RecordCollector:
    """
    Collect records about collectives, each once, with bounded memory.
    """

    def __init__(self) -> None:
        self._records: dict[str, dict[object, LogRecord]] = {
            name: {} for name in _FIELD_BY_TYPE.values()
        }
        self._calls: dict[tuple[str, str], deque[tuple[RawLine, str]]] = {}
        self._restarts = 0
        self._dropped: dict[str, int] = defaultdict(int)

    def read(
        self,
        raw_lines: Iterator[RawLine],
        source: str,
        rank: int | None,
        attempt: int,
    ) -> None:
        """
        Add the records of one file.

        Args:
            rank: The rank of the file; ``None`` if unknown.

            attempt: How many times the job was restarted before this file.
        """
        is_new = False
        for line in join_broken_lines(
            self._set_aside_calls(raw_lines, source), source
        ):
            if _RESTART_TEXT in line.text:
                attempt += is_new
                is_new = False
            elif self._add_line(line, rank, attempt):
                is_new = True
        self._restarts = max(self._restarts, attempt)

    def _set_aside_calls(
        self, raw_lines: Iterator[RawLine], source: str
    ) -> Iterator[RawLine]:
        """
        Keep the last calls of each communicator only; there are millions.
        """
        for raw in raw_lines:
            if " opCount " not in raw.text or "SeqNum=" in raw.text:
                yield raw
                continue
            prefix = raw.text[: raw.text.find("] NCCL INFO")]
            _, _, comm = raw.text.rpartition(" comm ")
            key = (prefix[-80:], comm[:18])
            if (
                key not in self._calls
                and len(self._calls) < _MAX_COMMUNICATORS
            ):
                self._calls[key] = deque(maxlen=_MAX_CALLS)
            if key in self._calls:
                self._calls[key].append((raw, source))

    def _add_line(self, line: LogLine, rank: int | None, attempt: int) -> bool:
        has_failure = False
        for context in split_by_rank(line, rank=rank, attempt=attempt):
            for read in _LINE_READERS:
                for record in read(context, context.text):
                    self._add_record(record)
                    has_failure |= not isinstance(record, _ROUTINE_RECORDS)
        return has_failure

    def _add_record(self, record: LogRecord) -> None:
        field = _FIELD_BY_TYPE[type(record)]
        records = self._records[field]
        key = _record_key(record)
        if key not in records and len(records) < _MAX_RECORDS:
            records[key] = record
        elif key not in records:
            self._dropped[field] += 1

    def result(
        self,
        world_size: int | None,
        missing: list[Missing],
        files: int | None = None,
    ) -> CollectiveLogs:
        """
        Return all records.

        Args:
            missing: What could not be read; dropped records are added to it.

            files: Number of ranks that have a file; ``None`` if unknown.
        """
        for raw_lines in self._calls.values():
            for raw, source in raw_lines:
                lines = join_broken_lines(iter([raw]), source)
                for line in lines:
                    self._add_line(line, None, 0)
        for kind, count in self._dropped.items():
            reason = f"{count} lines of this kind are more than are kept"
            missing.append(Missing(what=f"log: {kind}", reason=reason))
        records = {
            kind: tuple(by_key.values())
            for kind, by_key in self._records.items()
        }
        logs = CollectiveLogs(
            **records,  # type: ignore[arg-type]
            attempts=self._restarts + 1,
            missing=tuple(missing),
        )
        inferred = (
            _infer_world_size(logs, files)
            if world_size is None
            else world_size
        )
        return attrs.evolve(logs, world_size=inferred)


def _record_key(record: LogRecord) -> tuple[object, ...]:
    values = tuple(
        getattr(record, field.name)
        for field in attrs.fields(type(record))
        if field.name not in _LOCATION_FIELDS
    )
    # Without a rank, source and origin keep ranks apart.
    if record.rank is None:
        values += (record.source, record.origin)
    return (type(record), *values)


def _infer_world_size(logs: CollectiveLogs, files: int | None) -> int | None:
    """
    Infer the world size from the largest communicator or group, or *files*.
    """
    sizes = [x.size for x in logs.inits] + [x.size for x in logs.members]
    size = max(sizes, default=files)
    ranks = (x.rank for x in logs.records if x.rank is not None)
    if size is None or any(rank >= size for rank in ranks):
        return None
    return size


PathsOrLines = (
    str
    | os.PathLike[str]
    | Iterable[str]
    | Iterable[os.PathLike[str]]
    | Iterable[str | os.PathLike[str]]
)
_MAX_PATH = 256


def split_inputs(
    inputs: PathsOrLines,
) -> tuple[list[str | os.PathLike[str]] | None, Iterable[str]]:
    """
    Split the input into paths and lines.

    Returns:
        The paths, or ``None`` and the lines.
    """
    if isinstance(inputs, str) and "\n" in inputs:
        return None, inputs.split("\n")
    if isinstance(inputs, (str, os.PathLike)):
        return [inputs], ()
    if isinstance(inputs, (list, tuple, set, frozenset)):
        items = list(inputs)
        if items and all(map(_is_path, items)):
            return items, ()
        return None, items
    return None, inputs  # type: ignore[return-value]


def _is_path(item: object) -> bool:
    if isinstance(item, os.PathLike):
        return True

    text = str(item)
    if " " not in text and "/" in text:
        return len(text) < _MAX_PATH
    # os.path.exists returns False for an invalid path, such as a long line.
    return os.path.exists(text)  # noqa: PTH110 Path.exists raises


def parse_attempt(path: str) -> int:
    """
    Parse the restart count of torchrun from a path.

    Args:
        path: Such as ``attempt_1/3/stderr.log``.
    """
    _, separator, rest = path.rpartition("attempt_")
    digits = re.split(r"[/\\]", rest)[0]
    return (
        int(digits)
        if separator and digits.isdecimal() and len(digits) < 5
        else 0
    )


_RANK_FILE_NAME = re.compile(
    r"(?:^|[^a-z])(?:global_?)?rank[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE
)
_TORCHRUN_PATH = re.compile(r"attempt_\d{1,4}[/\\](\d{1,6})[/\\][^/\\]{1,40}$")
# Names with a worker number, used only if no file is that of a leader.
_WORKER_FILE_NAME = re.compile(
    r"^(.{0,200}?(?:worker|proc(?:ess)?|trainer|task)[_\-.]?)(\d{1,7})(\.\D.*|)$",
    re.IGNORECASE,
)
_LEADER_FILE_NAME = re.compile(
    r"master|chief|launcher|coordinator", re.IGNORECASE
)
_HEADER_BYTES = 1 << 14
_MAX_HEADER_FILES = 4096
# Header lines with the rank, by torch, Lightning, Accelerate, and scripts.
_RANK_HEADERS = (
    re.compile(
        r"store_based_barrier_key:\d{1,9} to store for rank: (\d{1,7})"
    ),
    re.compile(r"GLOBAL_RANK: (\d{1,7}), MEMBER: \d{1,7}/\d"),
    re.compile(r"^Process index: (\d{1,7})\s*$", re.MULTILINE),
    re.compile(
        r"(?:^|[\s:(\[])(?<!node )(?<!local )(?<!machine )(?:global[ _])?rank[ :=]{0,3}(\d{1,7}) ?(?:/|of) ?\d",
        re.IGNORECASE,
    ),
    re.compile(r"^RANK=(\d{1,7})\s*$", re.MULTILINE),
)


def find_file_ranks(paths: Sequence[str]) -> dict[str, int]:
    """
    Map log files to ranks by name, launcher layout, or header lines.

    Args:
        paths: Such as ``rank3.log``; or ``attempt_0/3/stderr.log`` of
            torchrun, whose local rank is only used if there is one node.

    Returns:
        The ranks of the files whose rank is known.
    """
    ranks, local_ranks = {}, {}
    for path in paths:
        match = _RANK_FILE_NAME.search(_basename(path))
        if match:
            ranks[path] = int(match[1])
        elif match := _TORCHRUN_PATH.search(path):
            local_ranks[path] = (path[: match.start()], int(match[1]))
    if len({folder for folder, _ in local_ranks.values()}) == 1:
        ranks |= {path: rank for path, (_, rank) in local_ranks.items()}
    if not ranks and 1 < len(paths) <= _MAX_HEADER_FILES:
        return _ranks_from_headers(paths) or _ranks_from_worker_names(paths)
    return ranks


def world_size_from_files(paths: Iterable[str]) -> int | None:
    """
    Infer the world size from the names of log files, also of empty ones.

    Args:
        paths: Such as ``attempt_0/3/stderr.log`` of torchrun, or
            ``rank3.log``.

    Returns:
        The world size if the files of one launch are those of ranks 0 to N - 1
        without a gap; otherwise ``None``.
    """
    ranks_by_start: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in paths:
        name = _basename(path)
        if match := _RANK_FILE_NAME.search(name):
            folder = path[: len(path) - len(name)]
        elif match := _TORCHRUN_PATH.search(path):
            folder = path[: match.start()]
        else:
            continue
        # Restarted workers have one folder per start.
        ranks_by_start[folder, parse_attempt(path)].add(int(match[1]))
    if len({folder for folder, _ in ranks_by_start}) != 1:
        return None

    ranks, *others = ranks_by_start.values()
    has_no_gap = ranks == set(range(len(ranks))) and len(ranks) > 1
    return (
        len(ranks) if has_no_gap and all(x == ranks for x in others) else None
    )


def _ranks_from_headers(paths: Iterable[str]) -> dict[str, int]:
    """
    Return ranks of files if each header names at most one rank, each once.
    """
    ranks = {}
    for path in paths:
        header_ranks = _header_ranks(path)
        if len(header_ranks) > 1:
            return {}
        if header_ranks:
            (ranks[path],) = header_ranks
    return ranks if _has_unique_ranks(ranks) else {}


def _header_ranks(path: str) -> set[int]:
    """
    Return the ranks that the header lines of a file name.
    """
    try:
        with open_log(path) as file:
            head = file.read(_HEADER_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError, EOFError):
        # The full read reports that the file cannot be read.
        return set()
    return {int(x) for pattern in _RANK_HEADERS for x in pattern.findall(head)}


def _ranks_from_worker_names(paths: Iterable[str]) -> dict[str, int]:
    """
    Return ranks of files in one folder whose names differ in a worker number.
    """
    series: dict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
    for path in paths:
        name = _basename(path)
        if _LEADER_FILE_NAME.search(name):
            return {}
        if match := _WORKER_FILE_NAME.match(name):
            folder = path[: len(path) - len(name)]
            series[folder, match[1], match[3]][path] = int(match[2])
    found_ranks: dict[str, int] = {}
    for (folder, stem, _), ranks in series.items():
        is_only_series = all(x[:2] == (folder, stem) for x in series)
        if (
            is_only_series
            and len(ranks) > 1
            and sorted(ranks.values()) == list(range(len(ranks)))
        ):
            found_ranks |= ranks
    return found_ranks


def _has_unique_ranks(ranks: Mapping[str, int]) -> bool:
    return len(ranks) > 1 and max(Counter(ranks.values()).values()) == 1


def _basename(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]


_MAX_RANKS = 1 << 24


def read_collective_logs(
    paths_or_lines: PathsOrLines, *, world_size: int | None = None
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

    paths, lines = split_inputs(paths_or_lines)
    collector = RecordCollector()
    if paths is None:
        collector.read(scan_lines(lines), "", None, 0)
        return collector.result(world_size, [])

    files, missing = _find_files(paths)
    ranks = find_file_ranks(files)
    for file in files:
        try:
            collector.read(
                scan_file(file), file, ranks.get(file), parse_attempt(file)
            )
        except (OSError, ValueError, EOFError) as exc:
            missing.append(Missing.log(file, exc))
    logs = collector.result(world_size, missing, world_size_from_files(files))
    return attrs.evolve(logs, quiet=_seconds_since_write(files))


def _find_files(
    paths: list[str | os.PathLike[str]],
) -> tuple[list[str], list[Missing]]:
    walk = walk_logs(paths)
    files = [str(path) for path in walk]
    if not files:
        reasons = "; ".join(f"{x.source}: {x.reason}" for x in walk.missing)
        raise NoLogsError(
            reasons or "no log there",
            remedy="give the files or folders that torchrun or Ray wrote to",
        )
    return files, list(walk.missing)


def _seconds_since_write(files: Iterable[str]) -> float | None:
    """
    Return the seconds since the last write to any of the files.
    """
    last_write = None
    for file in files:
        try:
            written = os.stat(file).st_mtime  # noqa: PTH116
        except OSError:  # gone meanwhile
            continue
        last_write = (
            written if last_write is None else max(last_write, written)
        )
    return None if last_write is None else max(time.time() - last_write, 0.0)
