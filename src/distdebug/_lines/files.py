"""
Which files of a folder are logs, and how is one opened without harm?
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import zlib

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .._io import open_ordinary, stays_in
from .._text import size_text
from ..findings import Missing
from .parse import LogLine, parse_clean_line, parse_line


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
