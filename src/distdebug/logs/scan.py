"""
Scan logs of any size for known errors, with threads and bounded memory.
"""

from __future__ import annotations

import os
import threading

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import attrs

from .._text import list_text
from ..errors import LogError
from ..findings import Missing
from .event_groups import (
    EventGroup,
    GroupKey,
    build_groups,
    count_harmless,
    group_events,
    make_finding,
    merge_event_groups,
)
from .file_search import Event, FilePart, is_packed, read_part
from .lines import READ_ERRORS, LogWalk, find_file_ranks, no_logs_error
from .model import LogGroup, ScanReport, TraceGroup
from .rules import RuleSet, make_rule_set, read_rules


_PART_BYTES = 1 << 27
# A packed file may unpack to blanks that take days to read.
_MOST_UNPACKED = 1 << 34


def split_files(
    sizes: Mapping[str, int], most_bytes: int | None
) -> tuple[list[FilePart], list[Missing]]:
    """
    Split files into parts for threads.

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
            most = _MOST_UNPACKED if most_bytes is None else share
            parts.append(FilePart(path=path, start=0, stop=most, size=most))
            continue
        begin = size - share
        if begin:
            reason = f"its first {begin:,} bytes were not read"
            missing.append(Missing.log(path, reason))
        for start in range(begin, size, _PART_BYTES):
            stop = min(start + _PART_BYTES, size)
            parts.append(
                FilePart(path=path, start=start, stop=stop, size=size)
            )
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

    Files are read up to the size that they have in the beginning, by several
    threads, in bounded memory; those that end in ``.gz``, ``.bz2``, or ``.xz``
    are unpacked.  A file that cannot be read is reported, and the others are
    read.  Of a flood of lines that match the same rule only some are read, and
    the count is then a lower bound; of a flood of lines with a word of a rule
    that match none, too, which ``missing`` reports.

    Args:
        paths: Files, and folders to be searched for logs.  Links out of a
            folder are not followed.

        rules: Files of rules of your own, which are tried first; see
            :func:`~distdebug.logs.rules.load_rules`.

        tell: Called a few times per second with the number of bytes that were
            read and the number of all bytes.

        most_bytes: How many bytes to read at most.  Where there are more, the
            ends of large files are read.

        threads: How many threads read; by default one per core, at most 4.

    Returns:
        What was found, the first cause first.

    Raises:
        NoLogsError: There is no log.

        LogError: *most_bytes* or *threads* is less than one.

        RulesError: One of the files of rules cannot be used.
    """
    _check_positive(most_bytes=most_bytes, threads=threads)
    rule_set = make_rule_set(read_rules(rules))
    sizes, missing = _find_logs(paths)
    parts, skipped = split_files(sizes, most_bytes)
    total = sum(
        sizes[x.path] if is_packed(x.path) else x.stop - x.start for x in parts
    )
    results = _read_parts(
        parts,
        partial(_read_one_part, find_file_ranks([*sizes]), rule_set),
        threads or _default_threads(),
        partial(_report_progress, tell, total),
    )
    event_groups = merge_event_groups(_with_lines_before(parts, results))
    groups = build_groups(event_groups)
    unreadable = [m for result in results for m in result.missing]
    return ScanReport(
        findings=tuple(make_finding(rule, group) for rule, group in groups),
        groups=tuple(g for _, g in groups if isinstance(g, LogGroup)),
        tracebacks=tuple(g for _, g in groups if isinstance(g, TraceGroup)),
        harmless=count_harmless(event_groups),
        missing=(*missing, *skipped, *unreadable),
        files=len({part.path for part in parts}),
        bytes_read=sum(result.size for result in results),
    )


@attrs.define(kw_only=True)
class _PartResult:
    """
    The events of one part, and how far it was read.
    """

    event_groups: Mapping[GroupKey, EventGroup] = attrs.field(factory=dict)
    size: int = 0
    lines: int = 0
    missing: list[Missing] = attrs.field(factory=list)


def _check_positive(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            msg = f"{name} is at least 1: {value}"
            raise LogError(msg)


def _find_logs(paths: Any) -> tuple[dict[str, int], tuple[Missing, ...]]:
    """
    Return the size of each log below *paths*, and what cannot be read.
    """
    paths = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    walk = LogWalk(paths)
    sizes, gone = {}, []
    for path in walk:
        try:
            sizes[str(path)] = path.stat().st_size
        except OSError as exc:  # rotated away meanwhile
            gone.append(Missing.log(path, exc))
    missing = (*walk.missing, *gone)
    if not sizes:
        raise no_logs_error(paths, missing)
    return sizes, missing


def _default_threads() -> int:
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        count = os.cpu_count() or 1
    return min(count, _MOST_THREADS)


def _report_progress(
    on_progress: Callable[[int, int], None] | None, total: int, size: int
) -> None:
    if on_progress is not None:
        on_progress(min(size, total), total)


def _read_parts(
    parts: list[FilePart],
    read: Callable[[FilePart, _PartResult, threading.Event], None],
    threads: int,
    on_progress: Callable[[int], None],
) -> list[_PartResult]:
    stop = threading.Event()
    results = [_PartResult() for _ in parts]
    with ThreadPoolExecutor(threads, "distdebug-logs") as pool:
        try:
            waiting = {
                pool.submit(read, part, result, stop)
                for part, result in zip(parts, results, strict=True)
            }
        except RuntimeError:  # the limit of threads is reached
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            results = [_PartResult() for _ in parts]
            for part, result in zip(parts, results, strict=True):
                read(part, result, threading.Event())
            return results
        try:
            while waiting:
                ended, waiting = wait(
                    waiting, _PROGRESS_SECONDS, FIRST_COMPLETED
                )
                for future in ended:
                    future.result()
                on_progress(sum(result.size for result in results))
        except BaseException:  # as on Ctrl-C; else the threads go on
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return results


def _read_one_part(
    ranks: Mapping[str, int],
    rule_set: RuleSet,
    part: FilePart,
    result: _PartResult,
    stop: threading.Event,
) -> None:
    def count_read(size: int, lines: int) -> None:
        if stop.is_set():
            raise InterruptedError
        result.size += size
        result.lines += lines

    paused_words: set[bytes] = set()
    events = read_part(part, rule_set, count_read, paused_words)
    events = _until_unreadable(events, part, result)
    result.event_groups = group_events(events, part.path, ranks.get(part.path))
    if paused_words:
        words = list_text(sorted(repr(x.decode()) for x in paused_words))
        reason = f"there are too many lines with {words} to look at each"
        result.missing.append(
            Missing(what="lines", reason=reason, source=part.path)
        )
    if is_packed(part.path) and result.size >= part.stop:
        reason = f"only its first {part.stop:,} bytes, unpacked, were read"
        result.missing.append(Missing.log(part.path, reason))


def _until_unreadable(
    events: Iterator[Event], part: FilePart, result: _PartResult
) -> Iterator[Event]:
    try:
        yield from events
    except READ_ERRORS as exc:
        result.missing.append(Missing.log(part.path, exc))


def _with_lines_before(
    parts: list[FilePart], results: list[_PartResult]
) -> Iterator[tuple[int | None, Mapping[GroupKey, EventGroup]]]:
    """
    Yield the groups of each part, and the number of lines before it.
    """
    path, lines = "", None
    for part, result in zip(parts, results, strict=True):
        if part.path != path:
            path, lines = part.path, None if part.start else 0
        yield lines, result.event_groups
        if lines is not None:
            lines += result.lines
