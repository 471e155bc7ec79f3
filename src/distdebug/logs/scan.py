"""
Scan logs of any size for known errors, with threads and bounded memory.
"""

from __future__ import annotations

import os
import time

from collections.abc import Callable, Iterable, Mapping, Sequence

from .._text import list_text
from ..errors import LogError
from ..findings import Missing
from .engine import (
    MOST_UNPACKED,
    Block,
    FilePart,
    is_packed,
    read_parts,
)
from .event_groups import (
    EventGroup,
    FileEvents,
    GroupKey,
    build_groups,
    count_harmless,
    make_finding,
    merge_event_groups,
)
from .file_search import PartSearch
from .lines import LogWalk, find_file_ranks, no_logs_error
from .model import ScanReport, TraceGroup
from .process_ranks import NO_PROCESSES, ProcessRanks
from .rules import make_rule_set, read_rules


def select_parts(
    sizes: Mapping[str, int], most_bytes: int | None
) -> tuple[list[FilePart], list[Missing]]:
    """
    Select what to read of each file.

    Args:
        sizes: The size of each file in bytes.

        most_bytes: How many bytes to read in all.  Where that is too little,
            small files are read whole, and of large ones the end.

    Returns:
        The parts, in the order of the files, and what is left out.
    """
    parts, missing = [], []
    shares = _shares(list(sizes.values()), most_bytes)
    for (path, size), share in zip(sizes.items(), shares, strict=True):
        if is_packed(path):
            most = MOST_UNPACKED if most_bytes is None else share
            parts.append(FilePart(path=path, stop=most, size=most))
            continue
        begin = size - share
        if begin:
            reason = f"its first {begin:,} bytes were not read"
            missing.append(Missing.log(path, reason))
        if share:
            part = FilePart(path=path, start=begin, stop=size, size=size)
            parts.append(part)
    return parts, missing


def _shares(sizes: Sequence[int], most: int | None) -> list[int]:
    if most is None or sum(sizes) <= most:
        return list(sizes)

    shares = [0] * len(sizes)
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    for done, number in enumerate(order):
        shares[number] = min(sizes[number], most // (len(sizes) - done))
        most -= shares[number]
    return shares


_MOST_THREADS = 4
_PROGRESS_SECONDS = 0.2


def scan_logs(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
    tell: Callable[[int, int], None] | None = None,
    most_bytes: int | None = None,
    threads: int | None = None,
) -> ScanReport:
    """
    Scan logs of any size for known errors.

    Files are read up to the size that they have in the beginning, in bounded
    memory, while threads search what was read; those that end in ``.gz``,
    ``.bz2``, or ``.xz`` are unpacked.  A file that cannot be read is reported, and the others are
    read.  Of a flood of lines that match the same rule only some are read, and
    the count is then a lower bound; of a flood of lines with a word of a rule
    that match none, too, which ``missing`` reports.

    Example::

        report = distdebug.scan_logs("train.log")
        print(report.findings[0])

    Args:
        paths: Files, and folders to be searched for logs.  Links out of a
            folder are not followed.

        rules: Files of rules of your own, which are tried first; see
            :func:`~distdebug.logs.rules.load_rules`.

        tell: Called a few times per second with the number of bytes that were
            read and the number of all bytes.

        most_bytes: How many bytes to read at most.  Where there are more, the
            ends of large files are read.

        threads: How many threads search; by default one per core, at most 4.

    Returns:
        What was found, the first cause first.

    Raises:
        NoLogsError: There is no log.

        LogError: *most_bytes* or *threads* is less than one.

        RulesError: One of the files of rules cannot be used.
    """
    _check_positive(most_bytes=most_bytes, threads=threads)
    paths = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    sizes, missing = find_logs(paths)
    if not sizes:
        raise no_logs_error(paths, missing)
    scan = ErrorScan(find_file_ranks([*sizes]), rules)
    parts, skipped = select_parts(sizes, most_bytes)
    read_parts(
        [(part, [scan]) for part in parts],
        threads=threads or default_threads(),
        on_progress=Progress(tell, parts, sizes).add,
    )
    return scan.report((*missing, *skipped))


class ErrorScan:
    """
    Read logs for known errors; see ``engine.LogReader``.

    Args:
        ranks: The ranks of files, as far as they are known.
    """

    def __init__(
        self,
        ranks: Mapping[str, int],
        rules: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        self._rule_set = make_rule_set(read_rules(rules))
        self._ranks = ranks
        self._groups: dict[GroupKey, EventGroup] = {}
        self._missing: list[Missing] = []
        self._files: set[str] = set()
        self._size = 0
        self._size_before = 0

    def begin(self, part: FilePart) -> None:
        """
        Begin with a file.
        """
        self._part = part
        self._size_before = self._size
        self._files.add(part.path)
        self._search = PartSearch(part, self._rule_set)
        self._file_events = FileEvents(part.path, self._ranks.get(part.path))

    def words(self, stop: int) -> frozenset[bytes]:
        """
        Return the words of rules that are not skipped.
        """
        return self._search.words(stop)

    def read(self, block: Block) -> None:
        """
        Find the events of a block.
        """
        for event in self._search.events(block):
            self._file_events.add(event)
        self._size += block.end - block.own

    def end(self, error: Exception | None) -> None:
        """
        Add the events of the file to those of the others.
        """
        part, missing = self._part, self._missing
        merge_event_groups(self._groups, self._file_events.groups)
        if error is not None:
            missing.append(Missing.log(part.path, error))
        if self._search.paused:
            words = list_text(map(repr, self._search.paused))
            reason = f"there are too many lines with {words} to look at each"
            missing.append(
                Missing(what="lines", reason=reason, source=part.path)
            )
        if (
            is_packed(part.path)
            and self._size - self._size_before >= part.stop
        ):
            reason = f"only its first {part.stop:,} bytes, unpacked, were read"
            missing.append(Missing.log(part.path, reason))

    def report(
        self,
        missing: Iterable[Missing] = (),
        processes: ProcessRanks = NO_PROCESSES,
    ) -> ScanReport:
        """
        Return what was found, the first cause first.

        Args:
            missing: What was not read.

            processes: The known ranks of processes, nodes, and GPUs.
        """
        groups = build_groups(self._groups, processes)
        return ScanReport(
            findings=tuple(make_finding(*pair) for pair in groups),
            groups=tuple(group for x, group in groups if not x.shape),
            tracebacks=tuple(
                TraceGroup(errors=x.errors, group=group)
                for x, group in groups
                if x.shape
            ),
            harmless=count_harmless(self._groups),
            missing=(*missing, *self._missing),
            files=len(self._files),
            bytes_read=self._size,
        )


def _check_positive(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            msg = f"{name} is at least 1: {value}"
            raise LogError(msg)


def find_logs(
    paths: Iterable[str | os.PathLike[str]],
) -> tuple[dict[str, int], tuple[Missing, ...]]:
    """
    Return the size of each log below *paths*, and what cannot be read.
    """
    walk = LogWalk(paths)
    sizes, gone = {}, []
    for path in walk:
        try:
            sizes[str(path)] = path.stat().st_size
        except OSError as exc:  # rotated away meanwhile
            gone.append(Missing.log(path, exc))
    return sizes, (*walk.missing, *gone)


def default_threads() -> int:
    """
    Return how many threads search logs: one per core, at most 4.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        count = os.cpu_count() or 1
    return min(count, _MOST_THREADS)


class Progress:
    """
    Report how far logs are read, a few times per second.
    """

    def __init__(
        self,
        on_progress: Callable[[int, int], None] | None,
        parts: Iterable[FilePart],
        sizes: Mapping[str, int],
    ) -> None:
        self._on_progress = on_progress
        self._total = sum(
            sizes[x.path] if is_packed(x.path) else x.stop - x.start
            for x in parts
        )
        self._size = 0
        self._reported = 0.0

    def add(self, size: int) -> None:
        """
        Count bytes that were read.
        """
        self._size += size
        now = time.monotonic()
        is_last = self._size >= self._total
        if self._on_progress and (
            is_last or now - self._reported > _PROGRESS_SECONDS
        ):
            self._reported = now
            self._on_progress(min(self._size, self._total), self._total)
