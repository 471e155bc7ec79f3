"""
How is any log read line by line: who printed a line, when, and how often?

Everything that reads logs begins here, so that colors, prefixes of launchers,
progress bars, junk, and files that are no files are dealt with once.
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
    Who printed a line, as the prefix of a launcher tells?

    Attributes:
        name: The actor, task, or component, such as ``"SglEngine"`` or
            ``"raylet"``; of an actor with a ``__repr__`` what that returns.

        pid: The number of its process, on its node.

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
    One line, without what a launcher and a terminal added.

    A tuple, because millions of them are made: one takes a quarter of the time
    that a frozen class of attrs does.

    Attributes:
        text: What was printed, without colors, controls, and prefixes.

        number: Its number in the file, from 1; the parts of a line that
            carriage returns divide have the same one.

        source: The file, or ``""``.

        origin: Who printed it, if a prefix tells.

        count: How many lines it stands for: Ray folds what several processes
            print into one line.
    """

    text: str
    number: int = 0
    source: str = ""
    origin: Origin | None = None
    # (in place of a method of tuples that nobody needs here)
    count: int = 1  # type: ignore[assignment]

    @property
    def time(self) -> float | None:
        """
        When it was printed, in seconds since the epoch, if it tells.
        """

        return parse_time(self.text)


# An actor may name itself NamedRepr(rank=0), so a name may hold brackets.
_RAY = (
    r"\((?P<name>[^\n]{0,200}?) ?\bpid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[^)\s]{1,60}))?\) ?"
)
_COMPONENT = (
    r"\((?:pid=)?"
    r"(?P<component>raylet|gcs_server|autoscaler|scheduler|dashboard)"
    r"(?: \+[\dhms]{1,20})?(?:, ip=(?P<its_ip>[^)\s]{1,60}))?\) ?"
)
_RANK = r"\[rank(?P<rank>\d{1,7})\]: ?"
_LOCAL = r"\[[A-Za-z_]{1,40}(?P<local_rank>\d{1,5})\]:"
_PREFIX = re.compile(f"{_RAY}|{_COMPONENT}|{_RANK}|{_LOCAL}")
# Most names hold no "=", so that the first one is behind "pid".  That is found
# in half the time.
_USUAL = r"\([^=\n]{0,200}(?<=\bpid)=\d{1,10}(?:, ip=[^)\s]{1,60})?\) ?"
_PREFIXES = re.compile(f"(?:{_USUAL}|{_PREFIX.pattern}){{1,4}}")
_REPEATED = re.compile(
    r"\s*\[repeated (?P<count>\d{1,9})x across cluster\]"
    r"(?: \(Ray deduplicates logs[^\n]{0,300})?\s*$"
)


def parse_line(raw: str, number: int = 0, source: str = "") -> LogLine:
    """
    Take a line apart.

    Args:
        raw: The line as it stands in a file or came from a terminal.

        number: Its number in the file, from 1.

        source: The file.

    Returns:
        What was printed, by whom, and how often.
    """
    text = raw if raw.isprintable() else without_controls(raw)
    return parse_clean_line(text, number, source)


def parse_clean_line(text: str, number: int, source: str) -> LogLine:
    """
    Take a line apart that holds no controls.

    Args:
        text: The line.

        number: Its number in the file, from 1.

        source: The file.

    Returns:
        What was printed, by whom, and how often.
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
        origin, text = _origin(prefixes[0]), text[prefixes.end() :]
    return LogLine(text, number, source, origin, count)


# A log has many lines, and few who write them.
@lru_cache(maxsize=4096)
def _origin(prefixes: str) -> Origin:
    name, ip = "", None
    numbers: dict[str, int] = {}
    for found in _PREFIX.finditer(prefixes):
        name = found["name"] or found["component"] or name
        ip = found["ip"] or found["its_ip"] or ip
        for key in ("pid", "rank", "local_rank"):
            if found[key]:
                numbers[key] = int(found[key])
    return Origin(name=name.strip(), ip=ip, **numbers)


_CLOCK = (
    r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-5]\d)"
    r"(?:[.,](?P<f>\d{1,9}))?"
)
_MONTHS = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_NAMES = "|".join(_MONTHS)
_FORMS = (
    # 2026-02-20 02:03:57,123 and all its relatives
    re.compile(
        r"(?<!\d)(?P<Y>20\d\d)[-/](?P<M>[01]?\d)[-/](?P<D>[0-3]?\d)[T _]"
        + _CLOCK
        + r"(?P<zone> ?Z|[+-]\d\d:?\d\d\b)?"
    ),
    # E321 02:07:08.408271257 of torch, whose month has no leading zero; I0220
    re.compile(
        r"(?:^|[\[\s:])[DIWEFCV](?P<M>1[0-2]|0?[1-9])(?P<D>[0-3]\d) " + _CLOCK
    ),
    # INFO 02-20 02:03:57 of vLLM, 02/20/2026 02:03:57 of transformers
    re.compile(
        r"(?:^|[\[\s(])(?P<M>[01]\d)[-/](?P<D>[0-3]\d)"
        r"(?:[-/](?P<Y>20\d\d))? (?:- )?" + _CLOCK
    ),
    # Fri Feb 20 02:03:57 2026, Feb 20 02:03:57
    re.compile(
        rf"\b(?P<name>{_NAMES}) {{1,2}}(?P<D>[0-3]?\d) {_CLOCK}"
        r"(?: (?:[A-Z]{3,4} )?(?P<Y>20\d\d)\b)?",
        re.IGNORECASE,
    ),
)
# Times stand at the beginning of lines.
_WITHIN = 120


def parse_time(text: str, *, now: float | None = None) -> float | None:
    """
    Find the time at the beginning of a line.

    Args:
        text: The line, without colors.

        now: The time by which a year is chosen where none is told; by default
            that of this machine.

    Returns:
        Seconds since the epoch, or ``None`` if no time is there.
    """
    head = text[:_WITHIN]
    if ":" not in head:
        return None

    for form in _FORMS:
        found = form.search(head)
        if found:
            return _seconds(found.groupdict(), now)
    return None


def _seconds(parts: dict[str, str | None], now: float | None) -> float | None:
    name = parts.get("name")
    month = _MONTHS.index(name.lower()) + 1 if name else int(parts["M"] or 0)
    year = parts.get("Y")
    limit = time.time() if now is None else now
    years = (
        [int(year)]
        if year
        else [datetime.fromtimestamp(limit, UTC).year + i for i in (1, 0, -1)]
    )
    zone = _zone(parts.get("zone"))
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
        # Who knows no year was printed before now; clocks differ a little.
        if year or found <= limit + 86_400:
            break
    return found


def _zone(text: str | None) -> timezone | None:
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
BROKEN = (OSError, ValueError, EOFError, zlib.error, lzma.LZMAError)
#: How the names of packed files end.
PACKED = frozenset(_OPENERS)
# Neither text nor ever printed by a job.
_OTHERS = frozenset(
    {
        *(".bin", ".ckpt", ".distcp", ".json", ".nsys-rep", ".npy", ".npz"),
        *(".pickle", ".pkl", ".pt", ".pth", ".py", ".pyc", ".qdstrm", ".so"),
        *(".safetensors", ".sock", ".sqlite", ".tar", ".tgz", ".whl", ".zip"),
        *(".html", ".lock", ".parquet", ".arrow", ".png", ".yaml", ".yml"),
    }
)
# Logs seldom shrink to a hundredth; what unpacks to far more is made to harm.
# Short ones may repeat one line, but not so long that it takes minutes.
_MOST_TIMES = 4096
_MOST_TIMES_OF_LARGE = 128
_SMALL = 1 << 28
_LEAST_MOST = 1 << 24
# What a text in UTF-16 begins with.
_WIDE = frozenset({b"\xff\xfe", b"\xfe\xff"})
_MOST_DEPTH = 32
_BLOCK = 1 << 18


class _Unpacked(io.RawIOBase):
    """
    What is packed in a file, up to a limit.
    """

    def __init__(self, file: Any, most: int) -> None:
        self._file = file
        self._most = most
        self._count = 0

    def readable(self) -> bool:
        """
        It can be read.
        """
        return True

    def readinto(self, buffer: Any) -> int:
        """
        Read what fits.

        Raises:
            ValueError: It was too much.
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
    Open a log to be read, unpacked if it is packed.

    Args:
        path: The file; one that ends in ``.gz``, ``.bz2``, or ``.xz`` is
            unpacked while it is read.

    Yields:
        The file; it is closed at the end.

    Raises:
        OSError: It cannot be opened or read.

        ValueError: It is no ordinary file, what is packed is damaged, or far
            more than any log, or it is a text of two bytes per character, in
            which nothing is found.
    """
    with open_ordinary(path, "not an ordinary file") as file:
        if os.pread(file.fileno(), 2, 0) in _WIDE:
            msg = "text in UTF-16: iconv -f UTF-16 -t UTF-8 makes it readable"
            raise ValueError(msg)

        unpack = _OPENERS.get(os.path.splitext(os.fspath(path))[1])  # noqa: PTH122 str is enough
        if unpack is None:
            yield file
            return

        most = _most_unpacked(os.fstat(file.fileno()).st_size)
        try:
            with (
                unpack(file) as unpacked,
                io.BufferedReader(_Unpacked(unpacked, most)) as bounded,
            ):
                yield bounded
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as exc:
            msg = f"damaged: {exc}"
            raise ValueError(msg) from exc


def _most_unpacked(size: int) -> int:
    large = _SMALL + _MOST_TIMES_OF_LARGE * size
    return max(_LEAST_MOST, min(_MOST_TIMES * size, large))


def read_tail(path: str | os.PathLike[str], most: int) -> bytes:
    """
    Read the end of a log.

    Args:
        path: The file, which may be packed.

        most: How many bytes to read.

    Returns:
        At most so many.

    Raises:
        OSError: It cannot be opened or read.

        ValueError: It is no ordinary file, or what is packed is damaged.
    """
    with open_log(path) as file:
        if Path(path).suffix not in PACKED:
            file.seek(max(os.fstat(file.fileno()).st_size - most, 0))
            return file.read(most)

        # What is packed can only be read from its beginning.
        tail = b""
        while block := file.read(_BLOCK):
            tail = (tail + block)[-most:]
        return tail


class Walk:
    """
    The logs below some paths, and what was left out.

    Iterating gives the logs, in the order of their names; each once, however
    many ways lead to it.

    Args:
        paths: Files and folders.  A file that is named is read whatever it is
            called; links inside a folder are followed only if they stay in it.

    Attributes:
        missing: What could not be looked at, and why, as far as was walked.
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
                yield from self._below(path, path.resolve(), 0)
            elif not stat.S_ISREG(status.st_mode):
                self.missing.append(Missing.log(path, "not an ordinary file"))
            elif self._is_new(status):
                yield path

    def _below(self, folder: Path, root: Path, depth: int) -> Iterator[Path]:
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
            except (OSError, RuntimeError):  # gone, or a link to nothing
                continue
            is_dir = stat.S_ISDIR(status.st_mode)
            if is_dir and depth < _MOST_DEPTH and self._is_new(status):
                yield from self._below(path, root, depth + 1)
            elif (
                stat.S_ISREG(status.st_mode)
                and path.suffix.lower() not in _OTHERS
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
) -> Walk:
    """
    Find the logs below some paths.

    Args:
        paths: Files and folders.

    Returns:
        The logs, found while it is iterated over, and what was left out.
    """
    return Walk(paths)


_LONGEST = 1 << 16
_COLORS = re.compile(rb"\x1b\[[0-9;]*m")
# A line or a state of a bar counts even if it has nothing else.
_ONLY_COLORS = re.compile(
    rb"\x1b(?<![!-~]\x1b)\[[0-9;]*m(?:[\t ]|\x1b\[[0-9;]*m)*(?:[\r\n]|$)"
)
_ORDINARY = b"\t\n\r" + bytes(range(0x20, 0x7F))

# Lines, and how to take them apart.
_Block = tuple[Iterable[str], Callable[[str, int, str], LogLine]]


def read_lines(
    source: str | os.PathLike[str] | Iterable[str],
) -> Iterator[LogLine]:
    """
    Read a log line by line.

    Progress bars write over themselves by carriage returns: each state is a
    line of its own here, with the number of the line that it stands in.

    Args:
        source: A path; or lines, such as a list of them or a text of several.

    Yields:
        The lines that hold anything, each at most 64 KiB of it.

    Raises:
        OSError: The file cannot be read.

        ValueError: It is no ordinary file.
    """
    if isinstance(source, str) and "\n" in source:
        source = source.split("\n")
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        blocks = _blocks(name)
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
    Which lines end in this block?

    Args:
        rest: The beginning of a line, out of the blocks before.

        block: The next block.

    Returns:
        The lines without their ends, each cut at 64 KiB; and the beginning of
        the next.
    """
    *lines, last = block.split(b"\n")
    if lines:
        lines[0] = rest + lines[0]
        rest = b""
    # What is thrown away here is behind the longest line that is kept.
    return [x[:_LONGEST] for x in lines], (rest + last)[:_LONGEST]


def _blocks(path: str) -> Iterator[_Block]:
    rest = b""
    with open_log(path) as file:
        while block := file.read(_BLOCK):
            lines, rest = split_block(rest, block)
            if lines:
                yield _block(lines)
    if rest:
        yield _block([rest])


def _block(lines: list[bytes]) -> _Block:
    # Most blocks are ASCII and have no controls but colors.  To see that for
    # all of their lines at once takes a fraction of the time.
    data = b"\n".join(lines)
    clean = _COLORS.sub(b"", data)
    is_plain = not clean.translate(None, _ORDINARY)
    if is_plain and (clean == data or not _ONLY_COLORS.search(data)):
        return clean.decode("ascii").split("\n"), parse_clean_line
    return [x.decode("utf-8", "replace") for x in lines], parse_line


SHORTEST = 5
# So many bytes behind what is searched must exist.
PADDING = 16

_CHUNK = 1 << 19  # fits into the caches of a core
_WORD = np.dtype("<u4")
_FOLD = np.uint32(0x20202020)  # one bit makes a letter small
_MULTIPLIER = np.uint32(0x9E3779B1)
_OTHER = np.uint32(0x85EBCA6B)
_BITS = 18
_SHIFT = np.uint32(32 - _BITS)
# How much of a window counts, by its width.
_MASKS = {
    width: np.uint32((1 << 8 * (width - 4)) - 1) for width in range(4, 9)
}
# What healthy logs are full of, and characters from the most common on.
_VOCABULARY = (
    b"info: warning: debug: train.py step: epoch iteration loss: loss= norm: "
    b"grad_norm: grad norm: learning rate: time: elapsed memory allocated "
    b"global batch size: samples tokens throughput seconds error: errors "
    b"process rank connection timeout server client worker actor model "
    b"request response file file: failed running reqs, waiting used nan "
    b"number of nan iterations: 0 out of the not to in on at for is an in no "
    b"nccl info opcount sendbuff recvbuff count comm received "
)
_COMMON = b" e0t1ao2nis3r4l5d6c7m8u9p.:g,h_/f-=by[]'(w)kvx"

_Bools = NDArray[np.bool_]
_Words = NDArray[np.uint32]


@attrs.frozen(kw_only=True, eq=False)
class Index:
    """
    Words to be found.

    Attributes:
        words: In small letters.

        first: Whether a window may begin with the four bytes of this hash.

        masks: Which of the next four bytes count, by the same hash.

        whole: Whether all that counts may have this hash.

        grams: Words, and where in them the window begins, by the first four
            bytes of the window.
    """

    words: frozenset[bytes]
    first: _Bools
    masks: _Words
    whole: _Bools
    grams: Mapping[int, tuple[tuple[bytes, int], ...]]


def build_index(words: Iterable[bytes]) -> Index:
    """
    Prepare words to be found.

    Args:
        words: At least :data:`SHORTEST` bytes each; in ASCII their case does
            not matter.

    Returns:
        What :func:`find_words` needs.
    """
    known = frozenset(word.lower() for word in words)
    places: list[tuple[bytes, int]] = []
    windows: list[bytes] = []
    for word in sorted(known):
        width = min(len(word) - 1, 8)
        start = _rarest(word, width)
        for place in (start, start + 1):
            places.append((word, place))
            windows.append(word[place : place + width])

    packed = b"".join(window.ljust(8, b"\0") for window in windows)
    ones, others = (np.frombuffer(packed, _WORD) | _FOLD).reshape(-1, 2).T
    hashed = _hash(ones)
    first, whole = (np.zeros(1 << _BITS, bool) for _ in range(2))
    masks = np.full(1 << _BITS, _MASKS[8])
    # What shares a place in the table is told apart by what all have.
    widths = np.array([_MASKS[len(window)] for window in windows])
    np.bitwise_and.at(masks, hashed, widths)
    first[hashed] = True
    whole[_hash_pair(ones, others & masks[hashed])] = True
    grams: dict[int, list[tuple[bytes, int]]] = {}
    for one, entry in zip(ones.tolist(), places, strict=True):
        grams.setdefault(one, []).append(entry)
    return Index(
        words=known,
        first=first,
        masks=masks,
        whole=whole,
        grams={key: tuple(value) for key, value in grams.items()},
    )


def find_words(
    index: Index, data: NDArray[np.uint8]
) -> list[tuple[int, bytes]]:
    """
    Find all words.

    Args:
        index: The words.

        data: Where to look; nothing is found in its last :data:`PADDING`
            bytes.

    Returns:
        Where a word begins, and which, by place.
    """
    found: list[tuple[int, bytes]] = []
    for begin in range(0, data.size - PADDING, _CHUNK):
        for start in (begin, begin + 2):
            piece = data[start : min(start + _CHUNK + 4, data.size)]
            words = piece[: piece.size // 4 * 4].view(_WORD) | _FOLD
            for rows, word, place in _candidates(index, words):
                places = _checked(data, start - place + 4 * rows, word)
                found += [(at, word) for at in places]
    found.sort()
    return found


def _candidates(
    index: Index, words: _Words
) -> Iterator[tuple[NDArray[np.intp], bytes, int]]:
    """
    Where words may be: rows, the word, and how far it began before them.
    """
    hashed = _hash(words[:-1])
    rows = np.flatnonzero(index.first.take(hashed, mode="wrap"))
    if not rows.size:
        return
    ones = words[rows]
    others = words[rows + 1] & index.masks[hashed[rows]]
    keep = index.whole[_hash_pair(ones, others)]
    rows, ones = rows[keep], ones[keep]
    # Where there are many, those that begin alike are looked at together.
    for one in dict.fromkeys(ones.tolist()):
        for word, place in index.grams.get(one, ()):
            yield rows[ones == one], word, place


def _checked(
    data: NDArray[np.uint8], starts: NDArray[np.intp], word: bytes
) -> list[int]:
    """
    At which places does the word stand?
    """
    starts = starts[(starts >= 0) & (starts + len(word) <= data.size)]
    # Its end tells most, since its beginning may be what was looked up.
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


def _hash(words: _Words) -> NDArray[np.intp]:
    hashed = words * _MULTIPLIER
    hashed >>= _SHIFT
    # numpy would convert them again for each look-up, and slower.
    return hashed.astype(np.intp)


def _hash_pair(ones: _Words, others: _Words) -> NDArray[np.intp]:
    return _hash(ones ^ others * _OTHER)


def _rarest(word: bytes, width: int) -> int:
    """
    Where a window begins that healthy text seldom has.
    """

    def rarity(start: int) -> tuple[bool, int]:
        ranks = (_COMMON.find(x) for x in word[start : start + width + 1])
        return (
            all(
                word[x : x + 4] not in _VOCABULARY for x in (start, start + 1)
            ),
            sum(len(_COMMON) if rank < 0 else rank for rank in ranks),
        )

    return max(range(len(word) - width), key=rarity)
