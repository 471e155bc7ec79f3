"""
What do these logs say about collectives?
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
    spaced,
    speakers,
)
from .parse import (
    read_checks,
    read_gloo,
    read_nccl,
    read_stores,
    read_watchdog,
)


# A message that a terminal broke goes on in the lines after it.
AFTER = 8

_BLOCK = 1 << 22
_LONGEST = 1 << 16
_BEFORE = 200
_PADDING = bytes(PADDING)

_WORDS = (
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
_INDEX = build_index(word.encode() for word in _WORDS)
# They are looked for in whatever case, but stand in these lines as here.
_EXACT = {word.lower().encode(): word.encode() for word in _WORDS}


@attrs.frozen
class Row:
    """
    One line as it stands in a file.

    Attributes:
        number: From 1.

        text: What stands there.

        is_hit: Whether it holds one of the words; other lines only matter
            because a message may go on in them.

        before: The end of the line before, of a hit: a message may have begun
            there.
    """

    number: int
    text: str
    is_hit: bool
    before: str = ""


def rows_of_file(path: str | os.PathLike[str]) -> Iterator[Row]:
    """
    Find the lines of a file that could be about a collective.

    Args:
        path: The file, packed or not.

    Yields:
        Hits, each with the lines in which it may go on, in their order.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    number, owed, rest, last = 1, 0, b"", b""
    with open_log(path) as file:
        while block := file.read(_BLOCK):
            text = b"".join((rest, block, _PADDING))
            end = text.rfind(b"\n") + 1
            if end:
                number, owed = yield from _near(text, end, number, owed, last)
                last = _line_before(text, end)
            # What is thrown away is behind the longest line that is kept.
            rest = text[end:-PADDING][:_LONGEST]
    if rest:
        text = rest + b"\n" + _PADDING
        yield from _near(text, len(rest) + 1, number, owed, last)


def rows_of_lines(lines: Iterable[str]) -> Iterator[Row]:
    """
    Mark the lines that could be about a collective.

    Args:
        lines: Lines of a log, in their order.

    Yields:
        All of them.
    """
    before = ""
    for number, line in enumerate(lines, 1):
        text = line[:_LONGEST].rstrip("\n")
        is_hit = any(word in line for word in _WORDS)
        yield Row(number, text, is_hit, before if is_hit else "")
        before = text[-_BEFORE:]


def _near(
    text: bytes, end: int, number: int, owed: int, last: bytes
) -> Generator[Row, None, tuple[int, int]]:
    """
    The lines of a block that may matter, without looking at the others.
    """
    at = 0
    for hit in [*_hits(text, end), end]:
        while owed and at < hit:
            row, at = _row(text, at, number)
            yield row
            number, owed = number + 1, owed - 1
        if at < hit:
            number += text.count(b"\n", at, hit)
        if hit < end:
            row, at = _row(text, hit, number)
            before = _line_before(text, hit) if hit else last
            yield attrs.evolve(
                row, is_hit=True, before=_decoded(before[-_BEFORE:])
            )
            number, owed = number + 1, AFTER
    return number, owed


def _hits(text: bytes, end: int) -> list[int]:
    """
    Where the lines begin that hold one of the words.
    """
    found = find_words(_INDEX, np.frombuffer(text, np.uint8, end + PADDING))
    starts = {
        text.rfind(b"\n", 0, at) + 1
        for at, word in found
        if at < end and text.startswith(_EXACT[word], at)
    }
    return sorted(starts)


def _row(text: bytes, start: int, number: int) -> tuple[Row, int]:
    end = text.find(b"\n", start)
    line = text[start : min(end, start + _LONGEST)]
    return Row(number, _decoded(line), is_hit=False), end + 1


def _line_before(text: bytes, start: int) -> bytes:
    return text[text.rfind(b"\n", 0, start - 1) + 1 : start - 1]


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "replace")


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


PathsOrLines = (
    str
    | os.PathLike[str]
    | Iterable[str]
    | Iterable[os.PathLike[str]]
    | Iterable[str | os.PathLike[str]]
)
_LONGEST_PATH = 256


def told_apart(
    given: PathsOrLines,
) -> tuple[list[str | os.PathLike[str]] | None, Iterable[str]]:
    """
    Tell paths from lines.

    Args:
        given: Either of them.

    Returns:
        The paths, or ``None`` and the lines.
    """
    if isinstance(given, str) and "\n" in given:
        return None, given.split("\n")
    if isinstance(given, (str, os.PathLike)):
        return [given], ()
    if isinstance(given, (list, tuple, set, frozenset)):
        items = list(given)
        if items and all(map(_is_path, items)):
            return items, ()
        return None, items
    return None, given  # type: ignore[return-value]


def _is_path(item: object) -> bool:
    if isinstance(item, os.PathLike):
        return True

    text = str(item)
    if " " not in text and "/" in text:
        return len(text) < _LONGEST_PATH
    # A line is no path that is too long, or has other faults.
    return os.path.exists(text)  # noqa: PTH110 that of a path raises


def attempt_of(path: str) -> int:
    """
    How often had torchrun restarted the job, by the name of a log?

    Args:
        path: Such as ``attempt_1/3/stderr.log``.
    """
    _, found, rest = path.rpartition("attempt_")
    digits = re.split(r"[/\\]", rest)[0]
    return (
        int(digits) if found and digits.isdecimal() and len(digits) < 5 else 0
    )


_FILE = re.compile(
    r"(?:^|[^a-z])(?:global_?)?rank[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE
)
_TORCHRUN = re.compile(r"attempt_\d{1,4}[/\\](\d{1,6})[/\\][^/\\]{1,40}$")
# One process each, unless a further one leads them.
_WORKER = re.compile(
    r"^(.{0,200}?(?:worker|proc(?:ess)?|trainer|task)[_\-.]?)(\d{1,7})(\.\D.*|)$",
    re.IGNORECASE,
)
_LEADER = re.compile(r"master|chief|launcher|coordinator", re.IGNORECASE)
_WHOSE_HEAD = 1 << 14
_MOST_HEADS = 4096
# Who a process says it is, by torch, Lightning, Accelerate, and many scripts.
_SELF = (
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


def ranks_of_files(paths: Sequence[str]) -> dict[str, int]:
    """
    Whose logs are these?

    Args:
        paths: Such as ``rank3.log``; or ``attempt_0/3/stderr.log`` of
            torchrun, which counts the ranks of its node, so that it only tells
            if there is one node.

    Returns:
        The ranks of those files that tell.
    """
    ranks, local = {}, {}
    for path in paths:
        found = _FILE.search(_name(path))
        if found:
            ranks[path] = int(found[1])
        elif found := _TORCHRUN.search(path):
            local[path] = (path[: found.start()], int(found[1]))
    if len({folder for folder, _ in local.values()}) == 1:
        ranks |= {path: rank for path, (_, rank) in local.items()}
    if not ranks and 1 < len(paths) <= _MOST_HEADS:
        return _introduced(paths) or _numbered(paths)
    return ranks


def size_by_files(paths: Iterable[str]) -> int | None:
    """
    How many ranks have a file, an empty one too?

    Args:
        paths: Such as ``attempt_0/3/stderr.log`` of torchrun, or
            ``rank3.log``.

    Returns:
        How many there are, if the files of one launch are those of ranks 0 to
        N - 1 without a gap; otherwise ``None``.
    """
    starts: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in paths:
        name = _name(path)
        if found := _FILE.search(name):
            folder = path[: len(path) - len(name)]
        elif found := _TORCHRUN.search(path):
            folder = path[: found.start()]
        else:
            continue
        # Workers that are started again have a folder for each start.
        starts[folder, attempt_of(path)].add(int(found[1]))
    if len({folder for folder, _ in starts}) != 1:
        return None

    ranks, *others = starts.values()
    is_whole = ranks == set(range(len(ranks))) and len(ranks) > 1
    return len(ranks) if is_whole and all(x == ranks for x in others) else None


def _introduced(paths: Iterable[str]) -> dict[str, int]:
    """
    Ranks of files in which just one rank says who it is, and nobody else does.
    """
    found = {}
    for path in paths:
        said = _said(path)
        if len(said) > 1:
            return {}
        if said:
            (found[path],) = said
    return found if _is_each_once(found) else {}


def _said(path: str) -> set[int]:
    try:
        with open_log(path) as file:
            head = file.read(_WHOSE_HEAD).decode("utf-8", "replace")
    except (OSError, ValueError, EOFError):
        # Whoever reads all of it tells that it cannot be read.
        return set()
    return {int(x) for words in _SELF for x in words.findall(head)}


def _numbered(paths: Iterable[str]) -> dict[str, int]:
    """
    Ranks of files of one folder whose names differ in the number of a worker.
    """
    series: dict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
    for path in paths:
        name = _name(path)
        if _LEADER.search(name):
            return {}
        if found := _WORKER.match(name):
            folder = path[: len(path) - len(name)]
            series[folder, found[1], found[3]][path] = int(found[2])
    found_ranks: dict[str, int] = {}
    for (folder, stem, _), ranks in series.items():
        is_alone = all(x[:2] == (folder, stem) for x in series)
        if (
            is_alone
            and len(ranks) > 1
            and sorted(ranks.values()) == list(range(len(ranks)))
        ):
            found_ranks |= ranks
    return found_ranks


def _is_each_once(ranks: Mapping[str, int]) -> bool:
    return len(ranks) > 1 and max(Counter(ranks.values()).values()) == 1


def _name(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]


_MOST_RANKS = 1 << 24


def read_collective_logs(
    paths_or_lines: PathsOrLines, *, world_size: int | None = None
) -> CollectiveLogs:
    """
    Find what watchdogs, NCCL, Gloo, and the store wrote.

    Args:
        paths_or_lines: A file, a folder, several of them; or lines, as a text
            or one by one.

        world_size: How many ranks the job has.  Without it, a rank that wrote
            nothing is only missed if NCCL's own lines tell how many there are,
            or the files of one launch, an empty one too, are those of ranks 0
            to N - 1.

    Returns:
        What was found, without repetitions.

    Raises:
        NoLogsError: There is no log.

        LogError: *world_size* is no number of ranks.
    """
    if world_size is not None and not 1 <= world_size <= _MOST_RANKS:
        is_short = abs(world_size) < _MOST_RANKS
        told = world_size if is_short else "so many"
        msg = f"a job has 1 to {_MOST_RANKS:,} ranks, not {told}"
        raise LogError(msg)

    paths, lines = told_apart(paths_or_lines)
    found = Kept()
    if paths is None:
        found.read(rows_of_lines(lines), "", None, 0)
        return found.result(world_size, [])

    files, missing = _files(paths)
    ranks = ranks_of_files(files)
    for file in files:
        try:
            found.read(
                rows_of_file(file), file, ranks.get(file), attempt_of(file)
            )
        except (OSError, ValueError, EOFError) as exc:
            missing.append(Missing.log(file, exc))
    logs = found.result(world_size, missing, size_by_files(files))
    return attrs.evolve(logs, quiet=_quiet(files))


def _files(
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


def _quiet(files: Iterable[str]) -> float | None:
    """
    For how long nobody has written to them.
    """
    last = None
    for file in files:
        try:
            written = os.stat(file).st_mtime  # noqa: PTH116 a path is no gain
        except OSError:  # gone meanwhile
            continue
        last = written if last is None else max(last, written)
    return None if last is None else max(time.time() - last, 0.0)
