"""
Read log files line by line: launcher prefixes, times, packed files.

All readers of logs start here, so that colors, prefixes of launchers, progress
bars, binary junk, and special files are handled once.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import time
import zlib

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import attrs
import numpy as np

from .._io import FileWalk, open_ordinary
from .._lazy import late_pattern
from .._text import list_text, size_text, without_controls
from ..errors import NoLogsError
from ..findings import Missing
from ..identity import (
    MPI_TAG,
    POD_TAG,
    RAY_PREFIX,
    TASK_LABEL,
    rank_in_name,
    ranks_in_text,
)


@attrs.frozen(kw_only=True)
class Origin:
    """
    The process that printed a line, as the prefix of a launcher shows.

    Attributes:
        name: The actor, task, or component, such as ``"SglEngine"`` or
            ``"raylet"``; of an actor with a ``__repr__`` what that returns.

        pid: The process id, on its node.

        ip: The address of its node, or its name; Ray leaves out that of the
            driver.

        rank: The global rank, of ``[rank3]:`` or in the name.

        local_rank: The rank on its node, of torchrun's ``[default3]:``.

        node_rank: The rank of its node, of ``srun --label`` if each task
            launches the ranks of a node.
    """

    name: str = ""
    pid: int | None = None
    ip: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None

    @property
    def node(self) -> str:
        """
        The rank of its node, or its address; ``""`` if unknown.
        """
        return (
            (self.ip or "") if self.node_rank is None else str(self.node_rank)
        )


class LogLine(NamedTuple):
    """
    One log line, without what launcher and terminal added.

    A tuple, because millions of them are made: one takes a quarter of the time
    that a frozen class of attrs does.

    Attributes:
        text: The text, without colors, controls, and prefixes.

        number: The line number in the file, from 1; carriage returns divide a
            line into several with the same number.

        source: The file, or ``""``.

        origin: The process that printed it, if a prefix shows it.

        count: How many lines it stands for: Ray folds what several processes
            print into one line.

        stamp: The prefix of a log collector, which may have the time.
    """

    text: str
    number: int = 0
    source: str = ""
    origin: Origin | None = None
    # It hides tuple.count, which is not needed here.
    count: int = 1  # type: ignore[assignment]
    stamp: str = ""

    @property
    def time(self) -> float | None:
        """
        Return the time of the line in seconds since the epoch, if it has one.
        """
        return self.time_before(None)

    def time_before(self, latest: float | None) -> float | None:
        """
        Return the time of the line, as :attr:`time` does.

        Args:
            latest: The latest possible time, by default now.
        """
        time = parse_time(self.text, now=latest)
        if time is None:
            time = parse_time(self.stamp, now=latest)
        return time


_COMPONENT_PREFIX = (
    r"\((?:pid=)?"
    r"(?P<component>raylet|gcs_server|autoscaler|scheduler|dashboard)"
    r"(?: \+[\dhms]{1,20})?(?:, ip=(?P<its_ip>[^)\s]{1,60}))?\) ?"
)
#: The rank that torch prints before messages.
RANK_TAG = r"\[rank(?P<rank>\d{1,7})\]"
# The role may have any name, but ranks of other kinds are not local ranks.
_LOCAL_RANK_TAG = (
    r"\[(?:(?![A-Za-z_]*rank\d)[A-Za-z_]{1,40}|local_rank)"
    r"(?P<local_rank>\d{1,5})\]"
)
# As in Lightning: [rank: 3] text
_LIGHTNING_TAG = r"\[rank: (?P<its_rank>\d{1,7})\] ?"
_PREFIX = late_pattern(
    f"{RAY_PREFIX}|{_COMPONENT_PREFIX}|{RANK_TAG}: ?|{_LIGHTNING_TAG}"
    f"|{_LOCAL_RANK_TAG}:"
)
# Most names hold no "=", so the first one is that of "pid="; this is matched
# in half the time.
_COMMON_RAY_PREFIX = (
    r"\([^=\n]{0,200}(?<=\bpid)=\d{1,10}(?:, ip=[^)\s]{1,60})?\) ?"
)
_PREFIXES = late_pattern(f"(?:{_COMMON_RAY_PREFIX}|{_PREFIX.pattern}){{1,4}}")
_REPEATED = late_pattern(
    r"\s*\[repeated (?P<count>\d{1,9})x across cluster\]"
    r"(?: \(Ray deduplicates logs[^\n]{0,300})?\s*$"
)


def parse_line(raw: str, number: int = 0, source: str = "") -> LogLine:
    """
    Parse a log line: text, origin, and how many lines it stands for.

    Args:
        raw: The line as it stands in a file or came from a terminal.

        number: The line number in the file, from 1.

        source: The file.
    """
    text = raw if raw.isprintable() else without_controls(raw)
    return parse_clean_line(text, number, source)


def parse_clean_line(text: str, number: int, source: str) -> LogLine:
    """
    Parse a log line without controls; see :func:`parse_line`.
    """
    text = text.rstrip()
    count = 1
    if text.endswith((")", "]")) and "x across cluster]" in text:
        found = _REPEATED.search(text[-400:])
        if found:
            count = int(found["count"])
            text = text[: len(text) - len(found[0])].rstrip()

    origin = None
    if text.startswith(("(", "[")) and (prefixes := _PREFIXES.match(text)):
        origin, text = _parse_origin(prefixes[0]), text[prefixes.end() :]
    return LogLine(text, number, source, origin, count)


# A log has many lines and few origins.
@lru_cache(maxsize=4096)
def _parse_origin(prefixes: str) -> Origin:
    name, ip = "", None
    numbers: dict[str, int] = {}
    for found in _PREFIX.finditer(prefixes):
        name = found["name"] or found["component"] or name
        ip = found["ip"] or found["its_ip"] or ip
        if (rank := rank_in_name(found["name"] or "")) is not None:
            numbers["rank"] = rank
        for key in ("pid", "rank", "its_rank", "local_rank"):
            if found[key]:
                numbers[key.removeprefix("its_")] = int(found[key])
    return Origin(name=name.strip(), ip=ip, **numbers)


_LABELS = re.sub(r"\?P<\w+>", "?:", f"{MPI_TAG}|{TASK_LABEL}|{POD_TAG}")
_LOG_PREFIX = late_pattern(
    # 2025-11-22T03:52:01.123456789Z stderr F text
    r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) "
    r"(?:std(?:out|err) [FP] )?"
    # trainer-1  | text
    r"|[\w.-]{0,60}[-_.]\d{1,4} {1,20}\| "
    # Nov 22 03:52:01 host python[123]: text
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [\w./-]{1,60}"
    rf"(?:\[\d{{1,9}}\])?: |{_LABELS}){{1,2}}"
)


def strip_log_prefix(line: str) -> str:
    """
    Remove the prefixes of log collectors, such as kubectl, docker, or srun.

    Args:
        line: The line as it stands in a file.
    """
    found = _LOG_PREFIX.match(line)
    return line[found.end() :] if found else line


_LONGEST_PREFIX = 240
_LEVELS = frozenset(
    {
        *("info", "debug", "warn", "warning", "error", "critical", "fatal"),
        *("trace", "success", "notice"),
    }
)
_LOGGER_WORDS = _LEVELS | frozenset(
    {
        *("stdout", "stderr", "f", "p", "i"),
        *("w", "e", "am", "pm", "utc", "gmt", "rank", "worker", "node"),
        *("mon", "tue", "wed", "thu", "fri", "sat", "sun", "root"),
        *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep"),
        *("oct", "nov", "dec"),
    }
)
_ROLE_WORD = late_pattern(
    r"\W*(?:user|assistant|human|system|prompt|response|answer|question|text"
    r"|sample|output|input|content|messages?|completion|generated?|label"
    r"|target|reward|tool|role|value|description|predict(?:ed|ion)s?|reference"
    r"|hypothesis|transcript(?:ion)?|decoded)\W*",
    re.IGNORECASE,
)
_QUOTES = tuple("\"'`{\u201c\u201d\u2018\u2019\xab\xbb")
_DIGIT = late_pattern(r"\d")
_WORD = late_pattern(r"[A-Za-z_][\w.]{0,80}")
_SEPARATORS = frozenset({"-", "|", ">>", "::", "\u2014", "\u2013"})


def begins_message(text: str, start: int) -> bool:
    """
    Return whether only the prefix of a logger stands before a text.

    Args:
        text: The line, without the prefix of a launcher.

        start: Where the text begins.
    """
    before = text[:start].strip()
    if not before:
        return True
    if len(before) > _LONGEST_PREFIX or before.endswith(_QUOTES):
        return False

    tokens = before.split()
    return all(
        _is_logger_token(token, tokens[i - 1 : i] + tokens[i + 1 : i + 2])
        for i, token in enumerate(tokens)
    )


def _is_logger_token(token: str, around: list[str]) -> bool:
    if _DIGIT.search(token):
        return True
    if _ROLE_WORD.fullmatch(token):
        return False
    if token.endswith((":", "]", ")", "|", ">")) or token[0] in "[(<":
        return True
    if not any(char.isalnum() for char in token):
        return True
    if token.strip("-:|,").lower() in _LOGGER_WORDS:
        return True
    neighbours = {one.strip("-:|,[]").lower() for one in around}
    is_beside_logger_token = not _SEPARATORS.isdisjoint(around) or bool(
        neighbours & _LEVELS
    )
    return is_beside_logger_token and bool(_WORD.fullmatch(token))


_TIME_OF_DAY = (
    r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-5]\d)"
    r"(?:[.,](?P<f>\d{1,9}))?"
)
_MONTHS = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_MONTH_NAMES = "|".join(_MONTHS)
_TIME_FORMATS = (
    # 2026-02-20 02:03:57,123 and variants
    late_pattern(
        r"(?<!\d)(?P<Y>20\d\d)[-/](?P<M>[01]?\d)[-/](?P<D>[0-3]?\d)[T _]"
        + _TIME_OF_DAY
        + r"(?P<zone> ?Z|[+-]\d\d:?\d\d\b)?"
    ),
    # E321 02:07:08.408271257 of torch, whose month has no leading zero; I0220
    late_pattern(
        r"(?:^|[\[\s:])[DIWEFCV](?P<M>1[0-2]|0?[1-9])(?P<D>[0-3]\d) "
        + _TIME_OF_DAY
    ),
    # INFO 02-20 02:03:57 of vLLM, 02/20/2026 02:03:57 of transformers
    late_pattern(
        r"(?:^|[\[\s(])(?P<M>[01]\d)[-/](?P<D>[0-3]\d)"
        r"(?:[-/](?P<Y>20\d\d))? (?:- )?" + _TIME_OF_DAY
    ),
    # Fri Feb 20 02:03:57 2026, Feb 20 02:03:57
    late_pattern(
        rf"\b(?P<name>{_MONTH_NAMES}) {{1,2}}(?P<D>[0-3]?\d) {_TIME_OF_DAY}"
        r"(?: (?:[A-Z]{3,4} )?(?P<Y>20\d\d)\b)?",
        re.IGNORECASE,
    ),
)
# Most lines have no time: this is found out in a tenth of the time.
_ANY_TIME = late_pattern(r"[0-2]\d:[0-5]\d:[0-5]\d")
# Times are searched for in this many characters of a line.
_TIME_WITHIN = 120


def parse_time(text: str, *, now: float | None = None) -> float | None:
    """
    Parse the time at the beginning of a line.

    Args:
        text: The line, without colors.

        now: The latest possible time, which decides the year of times without
            one; by default that of this machine.

    Returns:
        Seconds since the epoch, or ``None`` if there is no time.
    """
    head = text[:_TIME_WITHIN]
    if not _ANY_TIME.search(head):
        return None

    for time_format in _TIME_FORMATS:
        found = time_format.search(head)
        if found:
            return _epoch_seconds(found.groupdict(), now)
    return None


def _epoch_seconds(
    parts: dict[str, str | None], now: float | None
) -> float | None:
    name, year = parts.get("name"), parts.get("Y")
    month = _MONTHS.index(name.lower()) + 1 if name else int(parts["M"] or 0)
    clock = f"{parts['h']}:{parts['m']}:{parts['s']}"
    # A datetime would drop nanoseconds.
    fraction = float(f"0.{parts['f'] or 0}")
    zone = (parts.get("zone") or "").strip()
    rest = f"{month:02}-{int(parts['D'] or 0):02}T{clock}{zone}"
    latest = time.time() if now is None else now
    years = [year]
    if not year:
        this_year = datetime.fromtimestamp(latest, UTC).year
        years = [str(this_year + i) for i in (1, 0, -1)]
    found = None
    for candidate in years:
        try:
            moment = datetime.fromisoformat(f"{candidate}-{rest}")
            found = moment.timestamp() + fraction
        except (ValueError, OverflowError, OSError):
            continue
        # Without a year, the time is the latest that is not in the future.
        if year or found <= latest + 86_400:
            break
    return found


_OPENERS: Mapping[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
#: What reading a damaged file may raise.
READ_ERRORS = (OSError, ValueError, EOFError, zlib.error, lzma.LZMAError)
#: How the names of packed files end.
PACKED_SUFFIXES = frozenset(_OPENERS)
# Files that are no text, or never the output of a job.
_OTHER_SUFFIXES = frozenset(
    {
        *(".bin", ".ckpt", ".distcp", ".json", ".nsys-rep", ".npy", ".npz"),
        *(".pickle", ".pkl", ".pt", ".pth", ".py", ".pyc", ".qdstrm", ".so"),
        *(".safetensors", ".sock", ".sqlite", ".tar", ".tgz", ".whl", ".zip"),
        *(".html", ".lock", ".parquet", ".arrow", ".png", ".yaml", ".yml"),
    }
)
# Large logs seldom shrink to a fiftieth; larger ratios are zip bombs.
# Small files may repeat one line, but must not take minutes to read.
_MOST_RATIO = 4096
_MOST_RATIO_OF_LARGE = 48
_SMALL_RATIO_SIZE = 1 << 28
_LEAST_UNPACKED_LIMIT = 1 << 24
# Byte order marks of UTF-16.
_UTF16_MARKS = frozenset({b"\xff\xfe", b"\xfe\xff"})
_MOST_DEPTH = 32
_BLOCK = 1 << 18


class _LimitedReader(io.RawIOBase):
    """
    Read an unpacked file, up to a limit.
    """

    def __init__(self, file: Any, most: int) -> None:
        self._file = file
        self._most = most
        self._count = 0

    def readable(self) -> bool:
        """
        Return True.
        """
        return True

    def readinto(self, buffer: Any) -> int:
        """
        Read into *buffer*.

        Raises:
            ValueError: The file unpacks to more than the limit.
        """
        count = int(self._file.readinto(buffer))
        self._count += count
        if self._count > self._most:
            msg = (
                f"it unpacks to more than {size_text(self._most)}; if it is a "
                "log, unpack it, and it is read to its end"
            )
            raise ValueError(msg)
        return count


@contextmanager
def open_log(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """
    Open a log for reading; unpack it if it is packed.

    Args:
        path: The file; one that ends in ``.gz``, ``.bz2``, or ``.xz`` is
            unpacked while it is read.

    Yields:
        The file in binary mode; it is closed at the end.

    Raises:
        OSError: It cannot be opened or read.

        ValueError: It is no ordinary file, it is damaged, it unpacks to far
            more than any log, or it is in UTF-16, in which no pattern matches.
    """
    with open_ordinary(path, "not an ordinary file") as file:
        if os.pread(file.fileno(), 2, 0) in _UTF16_MARKS:
            msg = "text in UTF-16: iconv -f UTF-16 -t UTF-8 makes it readable"
            raise ValueError(msg)

        unpack = _OPENERS.get(os.path.splitext(os.fspath(path))[1])  # noqa: PTH122 str is enough
        if unpack is None:
            yield file
            return

        most = _unpacked_limit(os.fstat(file.fileno()).st_size)
        try:
            with (
                unpack(file) as unpacked,
                io.BufferedReader(_LimitedReader(unpacked, most)) as bounded,
            ):
                yield bounded
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as exc:
            msg = f"damaged: {exc}"
            raise ValueError(msg) from exc


def _unpacked_limit(size: int) -> int:
    large = _SMALL_RATIO_SIZE + _MOST_RATIO_OF_LARGE * size
    return max(_LEAST_UNPACKED_LIMIT, min(_MOST_RATIO * size, large))


def read_tail(path: str | os.PathLike[str], most: int) -> bytes:
    """
    Read at most the last *most* bytes of a log, which may be packed.

    Raises:
        OSError: It cannot be opened or read.

        ValueError: It is no ordinary file, or what is packed is damaged.
    """
    with open_log(path) as file:
        if Path(path).suffix not in PACKED_SUFFIXES:
            file.seek(max(os.fstat(file.fileno()).st_size - most, 0))
            return file.read(most)

        # A packed file can only be read from its beginning.
        tail = b""
        while block := file.read(_BLOCK):
            tail = (tail + block)[-most:]
        return tail


class LogWalk:
    """
    Iterate over the logs below some paths, sorted by name, each file once.

    Args:
        paths: Files and folders.  A file that is named is read whatever its
            suffix; links inside a folder are followed only if they stay in it.

        is_log: Whether a name in a folder is that of a log; by default all but
            those of some other kinds of files.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
        is_log: Callable[[str], bool] | None = None,
    ) -> None:
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        is_log = is_log or _may_be_log
        self._walk = FileWalk(
            paths,
            is_wanted=lambda entry, _: is_log(entry.name) or entry.is_dir(),
        )

    def __iter__(self) -> Iterator[Path]:
        for file in self._walk:
            yield Path(file.path)

    @property
    def missing(self) -> list[Missing]:
        """
        Return what cannot be read, and why, as far as was walked.
        """
        return [Missing.log(path, why) for path, why in self._walk.problems]


def _may_be_log(name: str) -> bool:
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 of thousands
    return suffix not in _OTHER_SUFFIXES


# Text without blanks that has a slash or a suffix of logs.
_PATH_LIKE = late_pattern(
    r"(?:[^\s\x00/]{0,255}/){1,64}[^\s\x00/]{0,255}"
    r"|[^\s\x00/]{1,255}\.(?:log|out|err|txt|gz|xz|bz2|zst)(?:\.\d{1,3})?"
)


def paths_of(source: Any) -> list[str | os.PathLike[str]] | None:
    """
    Return the paths that *source* names, or ``None`` if it is lines.

    Args:
        source: A path, or a text of several lines; or a collection: of paths
            if each names an existing file or looks like a path.
    """
    if isinstance(source, str):
        return None if "\n" in source else [source]
    if isinstance(source, os.PathLike):
        return [source]
    if not isinstance(source, list | tuple | set | frozenset) or not source:
        return None
    return list(source) if all(map(_is_path, source)) else None


def _is_path(one: Any) -> bool:
    if isinstance(one, os.PathLike):
        return True
    try:
        return _PATH_LIKE.fullmatch(one) is not None or Path(one).exists()
    except (OSError, TypeError, ValueError):
        return False


def no_logs_error(
    paths: Iterable[str | os.PathLike[str]], missing: Iterable[Missing]
) -> NoLogsError:
    """
    Return the error that says why there is no log in *paths*.
    """
    names = list_text(map(str, paths), most=3) or "nothing"
    reasons = list_text((x.reason for x in missing), most=3)
    return NoLogsError(
        f"no log in {names}{': ' if reasons else ''}{reasons}",
        remedy="name a log, or a folder of logs, as torchrun and Ray write",
    )


#: Longer lines are cut.
LONGEST_LINE = 1 << 16
# Only from the beginning of a line: it would be quadratic else.
_LONG_LINE = late_pattern(rb"(?<![^\r\n])([^\r\n]{%d})[^\r\n]+" % LONGEST_LINE)
_LONG_STEP = LONGEST_LINE // 2
_NEWLINE = ord("\n")


class LineBlock(NamedTuple):
    """
    A block of lines of a log.

    Attributes:
        data: The lines, in UTF-8, each cut at 64 KiB, and so each state of a
            progress bar; the last may have no end.

        number: The line number of the first of them, from 1.
    """

    data: bytes
    number: int

    @classmethod
    def cut(cls, data: bytes, number: int) -> LineBlock:
        """
        Return a block, with long lines cut.
        """
        # A line that is longer fills one of these steps.
        is_long = any(
            data.find(b"\n", at, at + _LONG_STEP) < 0
            for at in range(0, len(data) - _LONG_STEP + 1, _LONG_STEP)
        )
        return cls(_LONG_LINE.sub(rb"\1", data) if is_long else data, number)


def read_blocks(path: str | os.PathLike[str]) -> Iterator[LineBlock]:
    """
    Read a log as blocks of whole lines.

    A progress bar may overwrite itself for hours without the end of a line, so
    blocks also end at carriage returns.

    Raises:
        OSError: The file cannot be read.

        ValueError: It is no ordinary file, or is not packed as its name says.
    """
    number, rest = 1, b""
    with open_log(path) as file:
        while block := file.read(_BLOCK):
            data = rest + block
            stop = (data.rfind(b"\n") + 1) or (data.rfind(b"\r") + 1)
            rest = data[stop:] if stop else data[:LONGEST_LINE]
            if stop:
                yield LineBlock.cut(data[:stop], number)
                # numpy is many times faster than bytes.count.
                is_end = np.frombuffer(data, np.uint8, stop) == _NEWLINE
                number += int(np.count_nonzero(is_end))
    if rest:
        yield LineBlock.cut(rest, number)


def find_lines(
    path: str | os.PathLike[str], words: Sequence[bytes]
) -> Iterator[tuple[int, bytes]]:
    """
    Find the lines of a log in which one of some words occurs.

    Blocks without any are not split into lines, which makes it fast.

    Yields:
        The number of the line, from 1, and the line.

    Raises:
        OSError: The file cannot be read.

        ValueError: It is no ordinary file, or is not packed as its name says.
    """
    for block in read_blocks(path):
        if any(word in block.data for word in words):
            lines = enumerate(block.data.split(b"\n"), block.number)
            yield from (
                x for x in lines if any(word in x[1] for word in words)
            )


_COLOR_CODES = late_pattern(rb"\x1b\[[0-9;]*m")
# Lines and states of a bar that hold nothing but colors.
_ONLY_COLOR_CODES = late_pattern(
    rb"\x1b(?<![!-~]\x1b)\[[0-9;]*m(?:[\t ]|\x1b\[[0-9;]*m)*(?:[\r\n]|$)"
)
_PLAIN_BYTES = b"\t\n\r" + bytes(range(0x20, 0x7F))


def read_lines(
    source: str | os.PathLike[str] | Iterable[str],
) -> Iterator[LogLine]:
    """
    Read a log line by line.

    Progress bars overwrite themselves by carriage returns: each state is a
    line of its own here, with the number of the line in the file.

    Args:
        source: A path; or lines, such as a list of them or a text of several.

    Yields:
        The lines that are not blank, each cut at 64 KiB.

    Raises:
        OSError: The file cannot be read.

        ValueError: It is no ordinary file.
    """
    if isinstance(source, str) and "\n" in source:
        source = source.split("\n")
    if not isinstance(source, (str, os.PathLike)):
        # They may come from what still runs: none waits for others.
        lines = (line[:LONGEST_LINE] for line in source)
        yield from _parse_lines(lines, 1, "", parse_line)
        return
    for block in read_blocks(source):
        text, parse = _decode_block(block.data)
        yield from _parse_lines(
            text.split("\n"), block.number, os.fspath(source), parse
        )


def _parse_lines(
    lines: Iterable[str],
    first: int,
    source: str,
    parse: Callable[[str, int, str], LogLine],
) -> Iterator[LogLine]:
    for number, line in enumerate(lines, first):
        for piece in line.split("\r") if "\r" in line else (line,):
            if piece and not piece.isspace():
                yield parse(piece, number, source)


def _decode_block(
    data: bytes,
) -> tuple[str, Callable[[str, int, str], LogLine]]:
    # Most blocks are ASCII and have no controls but colors.  One check of all
    # lines together takes a fraction of the time.
    without_colors = _COLOR_CODES.sub(b"", data)
    is_plain = not without_colors.translate(None, _PLAIN_BYTES)
    if is_plain and (
        without_colors == data or not _ONLY_COLOR_CODES.search(data)
    ):
        return without_colors.decode("ascii"), parse_clean_line
    return data.decode("utf-8", "replace"), parse_line


# torchrun --log-dir: <run>_<random>/attempt_0/3/stderr.log
_TORCHRUN_PATH = late_pattern(
    r"(?:^|[/\\])attempt_\d{1,4}[/\\](?P<local_rank>\d{1,6})[/\\][^/\\]{1,40}$"
)
_ATTEMPT = late_pattern(r"attempt_(\d{1,4})(?=[/\\]|$)")
# Names with a worker number, used only if no file is that of a leader.
_WORKER_FILE_NAME = late_pattern(
    r"^(.{0,200}?(?:worker|proc(?:ess)?|trainer|task)[_\-.]?)(\d{1,7})(\.\D.*|)$",
    re.IGNORECASE,
)
_LEADER_FILE_NAME = late_pattern(
    r"master|chief|launcher|coordinator", re.IGNORECASE
)
_HEADER_BYTES = 1 << 14
_MAX_HEADER_FILES = 4096
# Header lines with the rank, by torch, Lightning, Accelerate, and shells; and
# what follows the rank in those of scripts, such as "rank 3/8".
_RANK_HEADERS = (
    late_pattern(
        r"store_based_barrier_key:\d{1,9} to store for rank: (\d{1,7})"
    ),
    late_pattern(r"GLOBAL_RANK: (\d{1,7}), MEMBER: \d{1,7}/\d"),
    late_pattern(r"^Process index: (\d{1,7})\s*$", re.MULTILINE),
    late_pattern(r"^RANK=(\d{1,7})\s*$", re.MULTILINE),
)
_OF_WORLD_SIZE = late_pattern(r" ?(?:/|of) ?\d")


class PathRank(NamedTuple):
    """
    The rank that the path of a log file shows.

    Attributes:
        kind: ``"rank"``, or ``"local_rank"`` in the folders of torchrun.

        number: The rank.

        launch: The folder that the files of all ranks of the launch share.
    """

    kind: Literal["rank", "local_rank"]
    number: int
    launch: str


def rank_from_path(path: str) -> PathRank | None:
    """
    Return the rank in the name of a file, of torchrun's folders, or its folder.
    """
    *folders, name = re.split(r"[/\\]", path)
    number = rank_in_name(name)
    if number is not None:
        return PathRank("rank", number, path[: len(path) - len(name)])
    if found := _TORCHRUN_PATH.search(path):
        launch = path[: found.start()]
        return PathRank("local_rank", int(found["local_rank"]), launch)

    number = rank_in_name(folders[-1]) if folders else None
    if number is not None:
        launch = path[: len(path) - len(folders[-1]) - len(name) - 1]
        return PathRank("rank", number, launch)
    return None


def find_file_ranks(paths: Sequence[str]) -> dict[str, int]:
    """
    Map log files to ranks by name, launcher layout, or header lines.

    Args:
        paths: Such as ``rank3.log``; or ``attempt_0/3/stderr.log`` of
            torchrun, whose local rank is only used if there is one node.

    Returns:
        The ranks of the files whose rank is known.
    """
    every = {path: rank_from_path(path) for path in paths}
    places = {path: place for path, place in every.items() if place}
    nodes = {x.launch for x in places.values() if x.kind == "local_rank"}
    ranks = {
        path: place.number
        for path, place in places.items()
        if place.kind == "rank" or len(nodes) == 1
    }
    if ranks or not 1 < len(paths) <= _MAX_HEADER_FILES:
        return ranks
    heads = {path: _read_head(path) for path in paths}
    named = {path: _header_ranks(head) for path, head in heads.items()}
    if any(len(x) > 1 for x in named.values()) or any(
        map(_NODE_HEADER.search, heads.values())
    ):
        return {}  # they are of nodes
    found = {path: x.pop() for path, x in named.items() if x}
    is_unique = len(set(found.values())) == len(found) > 1
    return found if is_unique else _ranks_from_worker_names(paths)


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
    # Restarted workers have one folder per start.
    ranks: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in paths:
        if place := rank_from_path(path):
            ranks[place.launch, parse_attempt(path)].add(place.number)
    size = max(map(len, ranks.values()), default=0)
    has_no_gap = all(x == set(range(size)) for x in ranks.values())
    is_one_launch = len({launch for launch, _ in ranks}) == 1
    return size if size > 1 and has_no_gap and is_one_launch else None


def _header_ranks(head: str) -> set[int]:
    """
    Return the ranks that the header lines of a file name.
    """
    return {int(x) for rule in _RANK_HEADERS for x in rule.findall(head)} | {
        x.number
        for line in head.split("\n")
        for x in ranks_in_text(line)
        if x.is_global and _OF_WORLD_SIZE.match(line, x.stop)
    }


def _read_head(path: str) -> str:
    try:
        with open_log(path) as file:
            return file.read(_HEADER_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError, EOFError):
        # The full read reports that the file cannot be read.
        return ""


#: What the launcher of a node's ranks logs: torchrun's agent, not what its
#: ``@record`` prints in a rank, and DeepSpeed's.
NODE_LAUNCHER = (
    r"(?:torch[/.]distributed[/.](?:run|launcher|elastic[/.](?:agent|rendezvous"
    r"|multiprocessing[/.]api))\b[\w./]{0,60}:|\[launch\.py:)"
)
_NODE_HEADER = late_pattern(f"{NODE_LAUNCHER}|nproc[-_]per[-_]node")


def _ranks_from_worker_names(paths: Iterable[str]) -> dict[str, int]:
    """
    Return ranks of files in one folder whose names differ in a worker number.
    """
    series: dict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
    for path in paths:
        name = re.split(r"[/\\]", path)[-1]
        if _LEADER_FILE_NAME.search(name):
            return {}
        if match := _WORKER_FILE_NAME.match(name):
            folder = path[: len(path) - len(name)]
            series[folder, match[1], match[3]][path] = int(match[2])
    found_ranks: dict[str, int] = {}
    for (folder, stem, _), ranks in series.items():
        is_only_series = all(x[:2] == (folder, stem) for x in series)
        numbers = sorted(ranks.values())
        if is_only_series and numbers == [*range(max(len(ranks), 2))]:
            found_ranks |= ranks
    return found_ranks


def parse_attempt(path: str) -> int:
    """
    Parse the restart count of torchrun from a path.

    Args:
        path: Such as ``attempt_1/3/stderr.log``.
    """
    attempts = _ATTEMPT.findall(path)
    return int(attempts[-1]) if attempts else 0
