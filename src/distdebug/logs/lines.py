"""
Read log files line by line: launcher prefixes, times, packed files.

All readers of logs start here, so that colors, prefixes of launchers, progress
bars, binary junk, and special files are handled once.  :func:`find_words`
finds many words at once in gigabytes of bytes.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import time
import zlib

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import attrs
import numpy as np

from numpy.typing import NDArray

from .._io import open_ordinary, stays_in
from .._text import size_text, without_controls
from ..findings import Missing


@attrs.frozen(kw_only=True)
class Origin:
    """
    The process that printed a line, as the prefix of a launcher shows.

    Attributes:
        name: The actor, task, or component, such as ``"SglEngine"`` or
            ``"raylet"``; of an actor with a ``__repr__`` what that returns.

        pid: The process id, on its node.

        ip: The address of its node; Ray leaves out that of the driver.

        rank: The global rank, of ``[rank3]:``.

        local_rank: The rank on its node, of torchrun's ``[default3]:``.
    """

    name: str = ""
    pid: int | None = None
    ip: str | None = None
    rank: int | None = None
    local_rank: int | None = None


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
    """

    text: str
    number: int = 0
    source: str = ""
    origin: Origin | None = None
    # It hides tuple.count, which is not needed here.
    count: int = 1  # type: ignore[assignment]

    @property
    def time(self) -> float | None:
        """
        Return the time of the line in seconds since the epoch, if it has one.
        """

        return parse_time(self.text)


# The __repr__ of an actor, such as NamedRepr(rank=0), may hold brackets.
_RAY_PREFIX = (
    r"\((?P<name>[^\n]{0,200}?) ?\bpid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[^)\s]{1,60}))?\) ?"
)
_COMPONENT_PREFIX = (
    r"\((?:pid=)?"
    r"(?P<component>raylet|gcs_server|autoscaler|scheduler|dashboard)"
    r"(?: \+[\dhms]{1,20})?(?:, ip=(?P<its_ip>[^)\s]{1,60}))?\) ?"
)
_RANK_PREFIX = r"\[rank(?P<rank>\d{1,7})\]: ?"
_LOCAL_RANK_PREFIX = r"\[[A-Za-z_]{1,40}(?P<local_rank>\d{1,5})\]:"
_PREFIX = re.compile(
    f"{_RAY_PREFIX}|{_COMPONENT_PREFIX}|{_RANK_PREFIX}|{_LOCAL_RANK_PREFIX}"
)
# Most names hold no "=", so the first one is that of "pid="; this is matched
# in half the time.
_COMMON_RAY_PREFIX = (
    r"\([^=\n]{0,200}(?<=\bpid)=\d{1,10}(?:, ip=[^)\s]{1,60})?\) ?"
)
_PREFIXES = re.compile(f"(?:{_COMMON_RAY_PREFIX}|{_PREFIX.pattern}){{1,4}}")
_REPEATED = re.compile(
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
        for key in ("pid", "rank", "local_rank"):
            if found[key]:
                numbers[key] = int(found[key])
    return Origin(name=name.strip(), ip=ip, **numbers)


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
    re.compile(
        r"(?<!\d)(?P<Y>20\d\d)[-/](?P<M>[01]?\d)[-/](?P<D>[0-3]?\d)[T _]"
        + _TIME_OF_DAY
        + r"(?P<zone> ?Z|[+-]\d\d:?\d\d\b)?"
    ),
    # E321 02:07:08.408271257 of torch, whose month has no leading zero; I0220
    re.compile(
        r"(?:^|[\[\s:])[DIWEFCV](?P<M>1[0-2]|0?[1-9])(?P<D>[0-3]\d) "
        + _TIME_OF_DAY
    ),
    # INFO 02-20 02:03:57 of vLLM, 02/20/2026 02:03:57 of transformers
    re.compile(
        r"(?:^|[\[\s(])(?P<M>[01]\d)[-/](?P<D>[0-3]\d)"
        r"(?:[-/](?P<Y>20\d\d))? (?:- )?" + _TIME_OF_DAY
    ),
    # Fri Feb 20 02:03:57 2026, Feb 20 02:03:57
    re.compile(
        rf"\b(?P<name>{_MONTH_NAMES}) {{1,2}}(?P<D>[0-3]?\d) {_TIME_OF_DAY}"
        r"(?: (?:[A-Z]{3,4} )?(?P<Y>20\d\d)\b)?",
        re.IGNORECASE,
    ),
)
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
    if ":" not in head:
        return None

    for time_format in _TIME_FORMATS:
        found = time_format.search(head)
        if found:
            return _epoch_seconds(found.groupdict(), now)
    return None


def _epoch_seconds(
    parts: dict[str, str | None], now: float | None
) -> float | None:
    name = parts.get("name")
    month = _MONTHS.index(name.lower()) + 1 if name else int(parts["M"] or 0)
    year = parts.get("Y")
    latest = time.time() if now is None else now
    years = (
        [int(year)]
        if year
        else [datetime.fromtimestamp(latest, UTC).year + i for i in (1, 0, -1)]
    )
    zone = _parse_zone(parts.get("zone"))
    fraction = float(f"0.{parts['f']}") if parts["f"] else 0.0
    hour, minute, second = (int(parts[x] or 0) for x in ("h", "m", "s"))
    clock = timedelta(hours=hour, minutes=minute, seconds=second)
    found = None
    for candidate in years:
        try:
            day = datetime(candidate, month, int(parts["D"] or 0), tzinfo=zone)
            found = (day + clock).timestamp() + fraction
        except (ValueError, OverflowError, OSError):
            continue
        # Without a year, the time is the latest that is not in the future.
        if year or found <= latest + 86_400:
            break
    return found


def _parse_zone(text: str | None) -> timezone | None:
    if text is None:
        return None

    digits = text.strip().replace(":", "")
    if digits == "Z":
        return UTC
    sign = -1 if digits[0] == "-" else 1
    minutes = int(digits[1:3]) * 60 + int(digits[3:5])
    return timezone(sign * timedelta(minutes=min(minutes, 1439)))


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
# Logs seldom shrink to a hundredth; larger ratios are zip bombs.
# Small files may repeat one line, but must not take minutes to read.
_MOST_RATIO = 4096
_MOST_RATIO_OF_LARGE = 128
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

    Attributes:
        missing: What cannot be read, and why, as far as was walked.
    """

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str]
    ) -> None:
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        self.missing: list[Missing] = []
        self._paths = [Path(path) for path in paths]
        self._seen: set[tuple[int, int]] = set()

    def __iter__(self) -> Iterator[Path]:
        for path in self._paths:
            try:
                status = path.stat()
            except (OSError, ValueError) as exc:
                self.missing.append(Missing.log(path, exc))
                continue
            if stat.S_ISDIR(status.st_mode):
                yield from self._walk_folder(path, path.resolve(), 0)
            elif not stat.S_ISREG(status.st_mode):
                self.missing.append(Missing.log(path, "not an ordinary file"))
            elif self._is_new(status):
                yield path

    def _walk_folder(
        self, folder: Path, root: Path, depth: int
    ) -> Iterator[Path]:
        try:
            with os.scandir(folder) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError as exc:
            self.missing.append(Missing.log(folder, exc))
            return
        for entry in entries:
            path = folder / entry.name
            try:
                if entry.is_symlink() and not stays_in(path, root):
                    continue
                status = entry.stat()
            except (
                OSError,
                RuntimeError,
            ):  # deleted, or a broken link
                continue
            is_dir = stat.S_ISDIR(status.st_mode)
            if is_dir and depth < _MOST_DEPTH and self._is_new(status):
                yield from self._walk_folder(path, root, depth + 1)
            elif (
                stat.S_ISREG(status.st_mode)
                and path.suffix.lower() not in _OTHER_SUFFIXES
                and self._is_new(status)
            ):
                yield path

    def _is_new(self, status: os.stat_result) -> bool:
        key = (status.st_dev, status.st_ino)
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new


def walk_logs(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
) -> LogWalk:
    """
    Find the logs below some paths, files or folders.

    Returns:
        An iterator over the logs, which also holds what is missing.
    """
    return LogWalk(paths)


_LONGEST_LINE = 1 << 16
_COLOR_CODES = re.compile(rb"\x1b\[[0-9;]*m")
# Lines and states of a bar that hold nothing but colors.
_ONLY_COLOR_CODES = re.compile(
    rb"\x1b(?<![!-~]\x1b)\[[0-9;]*m(?:[\t ]|\x1b\[[0-9;]*m)*(?:[\r\n]|$)"
)
_PLAIN_BYTES = b"\t\n\r" + bytes(range(0x20, 0x7F))

# Lines, and the function that parses them.
_ParsedBlock = tuple[Iterable[str], Callable[[str, int, str], LogLine]]


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
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        blocks = _read_blocks(name)
    else:
        name, blocks = "", iter([(source, parse_line)])
    number = 0
    for lines, parse in blocks:
        for line in lines:
            number += 1
            for piece in line.split("\r") if "\r" in line else (line,):
                if piece and not piece.isspace():
                    yield parse(piece, number, name)


def split_block(rest: bytes, block: bytes) -> tuple[list[bytes], bytes]:
    """
    Split a block of bytes into lines.

    Args:
        rest: The incomplete last line of the blocks before.

        block: The next block.

    Returns:
        The complete lines without their ends, each cut at 64 KiB; and the
        incomplete last line.
    """
    *lines, last = block.split(b"\n")
    if lines:
        lines[0] = rest + lines[0]
        rest = b""
    return [x[:_LONGEST_LINE] for x in lines], (rest + last)[:_LONGEST_LINE]


def _read_blocks(path: str) -> Iterator[_ParsedBlock]:
    rest = b""
    with open_log(path) as file:
        while block := file.read(_BLOCK):
            lines, rest = split_block(rest, block)
            if lines:
                yield _decode_block(lines)
    if rest:
        yield _decode_block([rest])


def _decode_block(lines: list[bytes]) -> _ParsedBlock:
    # Most blocks are ASCII and have no controls but colors.  One check of all
    # lines together takes a fraction of the time.
    data = b"\n".join(lines)
    without_colors = _COLOR_CODES.sub(b"", data)
    is_plain = not without_colors.translate(None, _PLAIN_BYTES)
    if is_plain and (
        without_colors == data or not _ONLY_COLOR_CODES.search(data)
    ):
        return without_colors.decode("ascii").split("\n"), parse_clean_line
    return [x.decode("utf-8", "replace") for x in lines], parse_line


SHORTEST_WORD = 5
# This many bytes must follow the bytes that are searched.
PADDING = 16

_CHUNK = 1 << 19  # fits into the caches of a core
_UINT32 = np.dtype("<u4")
_LOWER_CASE_BITS = np.uint32(0x20202020)  # one bit makes a letter small
_MULTIPLIER = np.uint32(0x9E3779B1)
_SECOND_MULTIPLIER = np.uint32(0x85EBCA6B)
_HASH_BITS = 18
_HASH_SHIFT = np.uint32(32 - _HASH_BITS)
# The bytes of the second half of a window that count, by its width.
_WINDOW_MASKS = {
    width: np.uint32((1 << 8 * (width - 4)) - 1) for width in range(4, 9)
}
# Frequent text of healthy logs, and its characters, most frequent first.
_COMMON_TEXT = (
    b"info: warning: debug: train.py step: epoch iteration loss: loss= norm: "
    b"grad_norm: grad norm: learning rate: time: elapsed memory allocated "
    b"global batch size: samples tokens throughput seconds error: errors "
    b"process rank connection timeout server client worker actor model "
    b"request response file file: failed running reqs, waiting used nan "
    b"number of nan iterations: 0 out of the not to in on at for is an in no "
    b"nccl info opcount sendbuff recvbuff count comm received "
)
_COMMON_BYTES = b" e0t1ao2nis3r4l5d6c7m8u9p.:g,h_/f-=by[]'(w)kvx"

_BoolArray = NDArray[np.bool_]
_UInt32Array = NDArray[np.uint32]


@attrs.frozen(kw_only=True, eq=False)
class WordIndex:
    """
    A hash index of words, for :func:`find_words`.

    It hashes windows of five to eight bytes, read as two 32-bit numbers, so
    that numpy can compare whole blocks.

    Attributes:
        words: The words, in small letters.

        first: By hash: whether a window may begin with these four bytes.

        masks: By the same hash: which of the next four bytes count.

        whole: By the hash of all bytes that count: whether a window may match.

        grams: By the first four bytes of a window: the words with it, and its
            place in each.
    """

    words: frozenset[bytes]
    first: _BoolArray
    masks: _UInt32Array
    whole: _BoolArray
    grams: Mapping[int, tuple[tuple[bytes, int], ...]]


def build_index(words: Iterable[bytes]) -> WordIndex:
    """
    Build an index of words.

    Args:
        words: At least :data:`SHORTEST_WORD` bytes each; the case of ASCII
            letters does not matter.
    """
    known = frozenset(word.lower() for word in words)
    places: list[tuple[bytes, int]] = []
    windows: list[bytes] = []
    for word in sorted(known):
        width = min(len(word) - 1, 8)
        start = _rarest_window(word, width)
        for place in (start, start + 1):
            places.append((word, place))
            windows.append(word[place : place + width])

    packed = b"".join(window.ljust(8, b"\0") for window in windows)
    first_halves, second_halves = (
        (np.frombuffer(packed, _UINT32) | _LOWER_CASE_BITS).reshape(-1, 2).T
    )
    hashed = _hash(first_halves)
    first, whole = (np.zeros(1 << _HASH_BITS, bool) for _ in range(2))
    masks = np.full(1 << _HASH_BITS, _WINDOW_MASKS[8])
    # Windows with the same hash are compared by the bytes that all have.
    widths = np.array([_WINDOW_MASKS[len(window)] for window in windows])
    np.bitwise_and.at(masks, hashed, widths)
    first[hashed] = True
    whole[_hash_pair(first_halves, second_halves & masks[hashed])] = True
    grams: dict[int, list[tuple[bytes, int]]] = {}
    for first_half, entry in zip(first_halves.tolist(), places, strict=True):
        grams.setdefault(first_half, []).append(entry)
    return WordIndex(
        words=known,
        first=first,
        masks=masks,
        whole=whole,
        grams={key: tuple(value) for key, value in grams.items()},
    )


def find_words(
    index: WordIndex, data: NDArray[np.uint8]
) -> list[tuple[int, bytes]]:
    """
    Find all words of an index in a block of bytes.

    Args:
        data: The block; nothing is found in its last :data:`PADDING` bytes.

    Returns:
        The offset and the word of each hit, by offset.
    """
    found: list[tuple[int, bytes]] = []
    for begin in range(0, data.size - PADDING, _CHUNK):
        for start in (begin, begin + 2):
            piece = data[start : min(start + _CHUNK + 4, data.size)]
            words = (
                piece[: piece.size // 4 * 4].view(_UINT32) | _LOWER_CASE_BITS
            )
            for rows, word, place in _candidates(index, words):
                places = _verify(data, start - place + 4 * rows, word)
                found += [(at, word) for at in places]
    found.sort()
    return found


def _candidates(
    index: WordIndex, words: _UInt32Array
) -> Iterator[tuple[NDArray[np.intp], bytes, int]]:
    """
    Yield possible hits: rows of *words*, the word, and its bytes before them.
    """
    hashed = _hash(words[:-1])
    rows = np.flatnonzero(index.first.take(hashed, mode="wrap"))
    if not rows.size:
        return
    first_halves = words[rows]
    second_halves = words[rows + 1] & index.masks[hashed[rows]]
    keep = index.whole[_hash_pair(first_halves, second_halves)]
    rows, first_halves = rows[keep], first_halves[keep]
    # Hits that begin with the same four bytes are handled together.
    for first_half in dict.fromkeys(first_halves.tolist()):
        for word, place in index.grams.get(first_half, ()):
            yield rows[first_halves == first_half], word, place


def _verify(
    data: NDArray[np.uint8], starts: NDArray[np.intp], word: bytes
) -> list[int]:
    """
    Return the offsets in *starts* at which the word really stands.
    """
    starts = starts[(starts >= 0) & (starts + len(word) <= data.size)]
    # The last byte first: the first ones may be the window that matched.
    for place in (-1, 0, *range(len(word) - 2, 0, -1)):
        letter = word[place]
        there = data[starts + place % len(word)]
        small = there == letter
        if 97 <= letter <= 122:
            small |= there == letter - 32
        starts = starts[small]
        if not starts.size:
            break
    found: list[int] = starts.tolist()
    return found


def _hash(words: _UInt32Array) -> NDArray[np.intp]:
    hashed = words * _MULTIPLIER
    hashed >>= _HASH_SHIFT
    # As indices: numpy would convert them at each look-up, more slowly.
    return hashed.astype(np.intp)


def _hash_pair(
    first_halves: _UInt32Array, second_halves: _UInt32Array
) -> NDArray[np.intp]:
    return _hash(first_halves ^ second_halves * _SECOND_MULTIPLIER)


def _rarest_window(word: bytes, width: int) -> int:
    """
    Return where in a word its window is rarest in healthy logs.
    """

    def rareness(start: int) -> tuple[bool, int]:
        ranks = (
            _COMMON_BYTES.find(x) for x in word[start : start + width + 1]
        )
        return (
            all(
                word[x : x + 4] not in _COMMON_TEXT for x in (start, start + 1)
            ),
            sum(len(_COMMON_BYTES) if rank < 0 else rank for rank in ranks),
        )

    return max(range(len(word) - width), key=rareness)
