"""
What went wrong, as gigabytes of logs tell?
"""

from __future__ import annotations

import os
import threading

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import attrs

from .._text import list_text
from ..errors import LogError, NoLogsError
from ..findings import Missing
from .groups import (
    Key,
    Tally,
    conclude,
    gather,
    groups_of,
    harmless_of,
    join_tallies,
)
from .lines import BROKEN, walk_logs
from .model import LogGroup, ScanReport, TraceGroup
from .part import Event, Part, is_packed, read_part
from .rules import Plan, make_plan, read_rules


_PART = 1 << 27
# A packed file may hold nothing but blanks, for days.
_MOST_UNPACKED = 1 << 34


@attrs.frozen(kw_only=True)
class Found:
    """
    Files to be read.

    Attributes:
        sizes: How many bytes each has, by path.

        missing: What cannot be looked at, and why.
    """

    sizes: dict[str, int]
    missing: tuple[Missing, ...] = ()


def find_files(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
) -> Found:
    """
    Find the logs below some paths.

    Args:
        paths: Files and folders.
    """
    walk = walk_logs(paths)
    sizes, missing = {}, []
    for path in walk:
        try:
            sizes[str(path)] = Path(path).stat().st_size
        except OSError as exc:  # rotated away meanwhile
            missing.append(Missing.log(path, exc))
    return Found(sizes=sizes, missing=(*walk.missing, *missing))


def find_parts(
    found: Found, most_bytes: int | None
) -> tuple[list[Part], list[Missing]]:
    """
    Divide files among threads.

    Args:
        found: The files.

        most_bytes: How many bytes to read.  Where that is too little, small
            files are read whole, and of large ones the end.

    Returns:
        The parts, in the order of the files, and what is left out.
    """
    parts, missing = [], []
    shares = _shares(list(found.sizes.values()), most_bytes)
    for (path, size), share in zip(found.sizes.items(), shares, strict=True):
        if is_packed(path):
            most = _MOST_UNPACKED if most_bytes is None else share
            parts.append(Part(path=path, start=0, stop=most, size=most))
            continue
        begin = size - share
        if begin:
            reason = f"its first {begin:,} bytes were not read"
            missing.append(Missing.log(path, reason))
        parts += [
            Part(path=path, start=x, stop=min(x + _PART, size), size=size)
            for x in range(begin, size, _PART)
        ]
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
_TELL_S = 0.2


def scan_logs(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
    tell: Callable[[int, int], None] | None = None,
    most_bytes: int | None = None,
    threads: int | None = None,
) -> ScanReport:
    """
    Find out what went wrong, as logs of any size tell.

    Files are read up to the size that they have in the beginning, by several
    threads, in bounded memory; those that end in ``.gz``, ``.bz2``, or
    ``.xz`` are unpacked.  A file that cannot be read is reported, and the
    others are read.  Of a flood of lines that tell the same only some are
    looked at, and the count is then a lower bound; of a flood that holds a
    word that matters, and tells nothing, too, which ``missing`` says.

    Args:
        paths: Files, and folders to be searched for logs.  Links out of a
            folder are not followed.

        rules: Files of rules of your own, which are tried first; see
            :func:`~distdebug.logs.rules.load_rules`.

        tell: Is called a few times per second with how many bytes were read
            and how many there are.

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
    _check(most_bytes=most_bytes, threads=threads)
    plan = make_plan(read_rules(rules))
    found = _found(paths)
    parts, left_out = find_parts(found, most_bytes)
    total = sum(
        found.sizes[x.path] if is_packed(x.path) else x.stop - x.start
        for x in parts
    )
    done = _read_all(
        parts, plan, threads or _cores(), partial(_tell, tell, total)
    )
    tallies = join_tallies(_numbered(parts, done))
    groups = groups_of(tallies)
    broken = [m for result in done for m in result.missing]
    return ScanReport(
        findings=tuple(conclude(rule, group) for rule, group in groups),
        groups=tuple(g for _, g in groups if isinstance(g, LogGroup)),
        tracebacks=tuple(g for _, g in groups if isinstance(g, TraceGroup)),
        harmless=harmless_of(tallies),
        missing=(*found.missing, *left_out, *broken),
        files=len({part.path for part in parts}),
        bytes_read=sum(result.size for result in done),
    )


@attrs.define(kw_only=True)
class _Done:
    """
    What one part told, and how far it was read.
    """

    tallies: Mapping[Key, Tally] = attrs.field(factory=dict)
    size: int = 0
    lines: int = 0
    missing: list[Missing] = attrs.field(factory=list)


def _check(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            msg = f"{name} is at least 1: {value}"
            raise LogError(msg)


def _found(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
) -> Found:
    found = find_files(paths)
    if not found.sizes:
        reasons = [f"{m.source}: {m.reason}" for m in found.missing]
        raise NoLogsError(
            "; ".join(reasons[:3]) or "no logs there",
            remedy="name files, or folders that hold logs",
        )
    return found


def _cores() -> int:
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        count = os.cpu_count() or 1
    return min(count, _MOST_THREADS)


def _tell(
    tell: Callable[[int, int], None] | None, total: int, size: int
) -> None:
    if tell is not None:
        tell(min(size, total), total)


def _read_all(
    parts: list[Part], plan: Plan, threads: int, tell: Callable[[int], None]
) -> list[_Done]:
    stop = threading.Event()
    done = [_Done() for _ in parts]
    with ThreadPoolExecutor(threads, "distdebug-logs") as pool:
        try:
            waiting = {
                pool.submit(_read, part, plan, result, stop)
                for part, result in zip(parts, done, strict=True)
            }
        except RuntimeError:  # no more threads can be had
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            return [_read_here(part, plan) for part in parts]

        try:
            while waiting:
                ended, waiting = wait(waiting, _TELL_S, FIRST_COMPLETED)
                for future in ended:
                    future.result()
                tell(sum(result.size for result in done))
        except BaseException:  # such as Ctrl-C: the threads would go on
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return done


def _read_here(part: Part, plan: Plan) -> _Done:
    result = _Done()
    _read(part, plan, result, threading.Event())
    return result


def _read(
    part: Part, plan: Plan, result: _Done, stop: threading.Event
) -> None:
    def tell(size: int, lines: int) -> None:
        if stop.is_set():
            raise InterruptedError
        result.size += size
        result.lines += lines

    paused: set[bytes] = set()
    events = read_part(part, plan, tell, paused)
    events = _while_readable(events, part, result)
    result.tallies = gather(events, part.path)
    if paused:
        words = list_text(sorted(repr(x.decode()) for x in paused))
        reason = f"there are too many lines with {words} to look at each"
        result.missing.append(
            Missing(what="lines", reason=reason, source=part.path)
        )
    if is_packed(part.path) and result.size >= part.stop:
        reason = f"only its first {part.stop:,} bytes, unpacked, were read"
        result.missing.append(Missing.log(part.path, reason))


def _while_readable(
    events: Iterator[Event], part: Part, result: _Done
) -> Iterator[Event]:
    try:
        yield from events
    except BROKEN as exc:
        result.missing.append(Missing.log(part.path, exc))


def _numbered(
    parts: list[Part], done: list[_Done]
) -> Iterator[tuple[int | None, Mapping[Key, Tally]]]:
    """
    How many lines of its file are before each part?
    """
    path, lines = "", None
    for part, result in zip(parts, done, strict=True):
        if part.path != path:
            path, lines = part.path, None if part.start else 0
        yield lines, result.tallies
        if lines is not None:
            lines += result.lines
