"""
Which logs belong to this actor?
"""

from __future__ import annotations

import math
import os
import re
import threading
import time

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import attrs

from .._io import is_folder, open_ordinary
from ..errors import LogError
from ..logs import (
    BROKEN,
    PACKED,
    LogLine,
    Origin,
    parse_line,
    read_lines,
    split_block,
    walk_logs,
)
from .sessions import (
    LogPart,
    RaySession,
    WorkerLog,
    find_ray_sessions,
    taken_apart,
)
from .workers import (
    MAGIC,
    explained,
    has_exports,
    is_told,
    read_heads,
    worker_files,
)


Place = str | os.PathLike[str] | RaySession
Places = Place | Iterable[Place] | None

_ID = re.compile(r"[0-9a-f]{6,56}")
_MOST_PID_DIGITS = 7


def find_actor_logs(
    actor: str | int, sessions: Places = None
) -> tuple[WorkerLog, ...]:
    """
    Find what an actor printed, on whatever node it was.

    Args:
        actor: A pattern of a shell such as ``"TrainerActor*"``, which is
            compared with the class, the ``__repr__``, and the name of each
            actor; the number of a process; at least six digits of the id of an
            actor or a worker; or the beginning of a line of the driver, such
            as ``"(SglEngine pid=514428, ip=10.0.0.2)"``.

        sessions: Sessions, or places where to look for them; by default where
            Ray has them on this machine.

    Returns:
        The logs, those of one node after the other; none if nobody is called
        so.

    Raises:
        NoLogsError: There is no session.

        LogError: *actor* is empty, or neither a text nor a number.
    """
    if not isinstance(actor, str | int):
        msg = f"which actor? A pattern or a number, and not {actor!r:.60}"
        raise LogError(msg, remedy='name it first: find_actor_logs("*", …)')
    if isinstance(actor, str) and not actor.strip():
        msg = "which actor? The pattern is empty"
        raise LogError(msg, remedy='"*" is everybody')

    found = sessions_of(sessions)
    logs = worker_files(found)
    origin = _origin(actor)
    if origin:
        heads = read_heads(_with_pid(logs, origin))
        return _of_origin(explained(heads, found), origin)

    text = str(actor).strip()
    by_file = [log for log in logs if _is_file_of(log, text)]
    if by_file:
        return explained(read_heads(by_file), found)
    heads = read_heads(logs)
    if not _ID.fullmatch(text) and not any(map(has_exports, found)):
        # Those that nothing else can tell more of need not be looked up.
        heads = [x for x in heads if _is_called(x, text) or not is_told(x)]
    return tuple(x for x in explained(heads, found) if _is_called(x, text))


def sessions_of(sessions: Places) -> tuple[RaySession, ...]:
    """
    Take sessions as they are, and look for others in places.

    Args:
        sessions: Sessions, places, or both; ``None`` for the usual places.

    Returns:
        The sessions.

    Raises:
        NoLogsError: There is no session in the places.
    """
    if sessions is None:
        return find_ray_sessions()
    if isinstance(sessions, (str, os.PathLike, RaySession)):
        sessions = (sessions,)
    given = list(sessions)
    known = [x for x in given if isinstance(x, RaySession)]
    places = [x for x in given if not isinstance(x, RaySession)]
    if places or not known:
        known += find_ray_sessions(*places)
    return tuple(known)


def _origin(actor: str | int) -> Origin | None:
    """
    Who printed a line, if it is one.
    """
    if isinstance(actor, str):
        line = parse_line(actor.strip())
        if line.origin and line.origin.pid is not None:
            return line.origin
    return None


def _with_pid(logs: Iterable[WorkerLog], origin: Origin) -> list[WorkerLog]:
    return [
        log
        for log in logs
        if log.pid == origin.pid
        and (origin.ip is None or log.session.ip in {None, origin.ip})
    ]


def _of_origin(
    logs: tuple[WorkerLog, ...], origin: Origin
) -> tuple[WorkerLog, ...]:
    """
    Those of that name; numbers of processes are the same on other nodes.
    """
    is_sure: tuple[Callable[[WorkerLog], bool], ...] = (
        lambda log: origin.ip is not None and log.session.ip == origin.ip,
        lambda log: _is_named(log, origin.name),
        # Ray leaves out the address of the driver's own node.
        lambda log: origin.ip is None and log.session.is_head,
    )
    for is_it in is_sure:
        logs = tuple(filter(is_it, logs)) or logs
    return logs


def _is_named(log: WorkerLog, name: str) -> bool:
    # Ray writes the name of a task where there is no actor.
    return name in {
        *(log.actor_class, log.actor_repr, log.actor_name),
        *log.task_names,
    }


def _is_file_of(log: WorkerLog, text: str) -> bool:
    if text.isdecimal() and len(text) <= _MOST_PID_DIGITS:
        return log.pid == int(text)
    return _begins(log.worker_id, text)


def _is_called(log: WorkerLog, text: str) -> bool:
    names = [log.actor_class, log.actor_repr, log.actor_name]
    if log.actor_class:
        names.append(log.actor_class.rpartition(".")[2])
    if _begins(log.worker_id, text) or _begins(log.actor_id, text):
        return True
    # A representation may hold brackets, which mean something in a pattern.
    return any(x and (x == text or fnmatchcase(x, text)) for x in names)


def _begins(name: str | None, text: str) -> bool:
    return bool(name and name.startswith(text) and _ID.fullmatch(text))


Stream = Literal["out", "err"]
One = WorkerLog | LogPart | str | os.PathLike[str]
Readable = One | Iterable[One]

_BLOCK = 1 << 16
_LONGEST = 1 << 16
_MOST_BYTES = 1 << 26
_MOST_OF_PACKED = 10_000


def read_parts(log: Readable, *, stream: Stream = "err") -> Iterator[LogLine]:
    """
    Read a log from its beginning, whatever it was rotated into.

    A part that is deleted meanwhile, or cannot be read, is left out.

    Args:
        log: The log of a worker, or parts or paths of one log, oldest first.

        stream: Which stream of a worker; ``logging`` goes to ``"err"``, and
            what is printed to ``"out"``.

    Yields:
        The lines, without those by which Ray marks jobs and actors; each with
        its file and number in that file.

    Raises:
        LogError: There is no such stream.
    """
    for path in paths_of(log, stream):
        try:
            for line in read_lines(path):
                if not line.text.startswith(MAGIC):
                    yield line
        except BROKEN:
            continue


def read_tail(
    log: Readable, *, lines: int = 20, stream: Stream = "err"
) -> tuple[LogLine, ...]:
    """
    Read the last lines of a log.

    Files are read from their end, at most 64 MiB in all, so that their size
    does not matter; therefore lines have no numbers.

    Args:
        log: The log of a worker, or parts or paths of one log, oldest first.

        lines: How many lines.

        stream: Which stream of a worker.

    Returns:
        At most so many, oldest first.

    Raises:
        LogError: There is no such stream.
    """
    found: deque[LogLine] = deque()
    budget = _MOST_BYTES
    for path in reversed(paths_of(log, stream)):
        try:
            for line in _backwards(path, budget):
                if len(found) >= lines:
                    return tuple(found)
                found.appendleft(line)
            budget -= path.stat().st_size
        except BROKEN:
            continue
        if budget <= 0:
            break
    return tuple(found)


def paths_of(log: Readable, stream: str = "err") -> list[Path]:
    """
    Which files are meant?

    Args:
        log: Workers, parts, or paths.

        stream: Which stream of workers.

    Returns:
        The files.

    Raises:
        LogError: There is no such stream.
    """
    if stream not in {"out", "err"}:
        msg = f"a worker has no stream {stream!r}"
        raise LogError(msg, remedy='give "out" or "err"')

    if isinstance(log, WorkerLog):
        return [x.path for x in (log.out if stream == "out" else log.err)]
    if isinstance(log, LogPart):
        return [log.path]
    if isinstance(log, (str, os.PathLike)):
        return [Path(log)]
    return [path for one in log for path in paths_of(one, stream)]


def _backwards(path: Path, most: int) -> Iterator[LogLine]:
    """
    The lines of a file, the last one first.
    """
    source = str(path)
    pieces = (
        # What is packed can only be read from its beginning.
        _last_of_packed(source)
        if path.suffix in PACKED
        else _pieces(path, most)
    )
    for piece in pieces:
        text = piece.decode("utf-8", "replace")
        if not text.strip():
            continue
        line = parse_line(text, source=source)
        if not line.text.startswith(MAGIC):
            yield line


def _pieces(path: Path, most: int) -> Iterator[bytes]:
    with open_ordinary(path, "not an ordinary file") as file:
        position = size = file.seek(0, os.SEEK_END)
        rest = b""
        while position > max(0, size - most):
            begin = max(0, position - _BLOCK)
            file.seek(begin)
            block = file.read(position - begin) + rest
            # A line may begin in the block before.
            rest, *whole = block.replace(b"\r", b"\n").split(b"\n")
            yield from (x[:_LONGEST] for x in reversed(whole))
            rest, position = rest[:_LONGEST], begin
        yield rest


def _last_of_packed(source: str) -> Iterator[bytes]:
    last = deque(read_lines(source), maxlen=_MOST_OF_PACKED)
    yield from (line.text.encode() for line in reversed(last))


Followed = str | os.PathLike[str] | LogPart | WorkerLog

_POLL_S = 0.2
_SEARCH_S = 2.0
_FOLLOWING_BLOCK = 1 << 18
# How much of one file is read before the others have their turn.
_BLOCKS = 4
_MOST_PARTS = 20


@attrs.frozen(kw_only=True)
class _Place:
    """
    How far a file was read.

    Attributes:
        inode: Which file it was, whatever it is called now.

        offset: Where the next block begins.

        rest: The beginning of a line whose end is not there yet.

        is_behind: Whether there is more to be read already.
    """

    inode: tuple[int, int] | None = None
    offset: int = 0
    rest: bytes = b""
    is_behind: bool = False


def follow_lines(
    paths: Followed | Iterable[Followed],
    *,
    stop: threading.Event | None = None,
    timeout_s: float | None = None,
    from_start: bool = False,
) -> Iterator[LogLine]:
    """
    Read what is appended to files, as ``tail -F`` does.

    Files may be rotated, cut, deleted, and appear again, and need not be
    there yet.  What was written to one shortly before it was rotated is read
    under its new name.  No file is kept open, so there may be thousands.

    Args:
        paths: Files, logs of workers (both streams), and folders, in which
            logs may appear.

        stop: Ends it when it is set, after one more look.

        timeout_s: When to end it, in seconds; by default never.

        from_start: Whether to give what is in the files already; what was
            rotated before is not read again.

    Yields:
        The lines, without those by which Ray marks jobs and actors, as soon as
        they are whole; progress bars state by state.  They have no numbers.

    Raises:
        LogError: There is nothing to follow.
    """
    wanted = _wanted(paths)
    if not wanted:
        msg = "no file to follow"
        raise LogError(msg, remedy="name files or folders")

    stop = stop or threading.Event()
    if timeout_s is not None and math.isnan(timeout_s):
        msg = "timeout_s is no number of seconds"
        raise LogError(msg)
    end = math.inf if timeout_s is None else time.monotonic() + timeout_s
    places = {x: _Place() if from_start else _end(x) for x in _files(wanted)}
    searched = time.monotonic()
    is_over = False
    while not is_over:
        now = time.monotonic()
        is_over = stop.is_set() or now >= end
        if is_over or now - searched > _SEARCH_S:
            searched = now
            places = {x: _Place() for x in _files(wanted)} | places
        for path, place in places.items():
            places[path], lines = _news(path, place)
            yield from _parsed(lines, path)
        if not is_over and not any(x.is_behind for x in places.values()):
            stop.wait(min(_POLL_S, end - now))
    for path, place in places.items():
        yield from _parsed([place.rest], path)


def _wanted(paths: Followed | Iterable[Followed]) -> list[Path]:
    if isinstance(paths, WorkerLog):
        return [x[-1].path for x in (paths.out, paths.err) if x]
    if isinstance(paths, (LogPart, str, os.PathLike)):
        return paths_of(paths)
    return [path for one in paths for path in _wanted(one)]


def _files(wanted: Iterable[Path]) -> Iterator[Path]:
    for path in wanted:
        if not is_folder(path):
            yield path
            continue
        for found in walk_logs(path):
            # Those are the same lines under another name.
            _, stream, index = taken_apart(found.name)
            is_old = found.parent.name == "old" or (stream and index)
            if not is_old and found.suffix not in PACKED:
                yield found


def _end(path: Path) -> _Place:
    status = _status(path)
    if status is None:
        return _Place()
    return _Place(inode=_inode(status), offset=status.st_size)


def _news(path: Path, place: _Place) -> tuple[_Place, list[bytes]]:
    status = _status(path)
    lines: list[bytes] = []
    if place.inode and (status is None or _inode(status) != place.inode):
        lines = _left(path, place)
        place = _Place()
    if status is None:
        return place, lines

    if status.st_size < place.offset:  # it was cut
        place = _Place()
    place = attrs.evolve(place, inode=_inode(status))
    place, more = _read(path, place)
    return place, lines + more


def _left(path: Path, place: _Place) -> list[bytes]:
    """
    What was not read yet of a file that has another name now.
    """
    names = [f"{path.name}.{n}" for n in range(1, _MOST_PARTS + 1)]
    moved = [path.parent / "old" / path.name, *map(path.with_name, names)]
    for other in moved:
        status = _status(other)
        if status and _inode(status) == place.inode:
            place, lines = _read(other, place)
            return [*lines, place.rest]
    return [place.rest]


def _read(path: Path, place: _Place) -> tuple[_Place, list[bytes]]:
    lines: list[bytes] = []
    offset, rest, block = place.offset, place.rest, b""
    with (
        suppress(OSError, ValueError),
        open_ordinary(path, "not an ordinary file") as file,
    ):
        file.seek(offset)
        for _ in range(_BLOCKS):
            block = file.read(_FOLLOWING_BLOCK)
            offset += len(block)
            whole, rest = split_block(rest, block.replace(b"\r", b"\n"))
            lines += whole
            if len(block) < _FOLLOWING_BLOCK:
                break
    is_behind = len(block) == _FOLLOWING_BLOCK
    return (
        attrs.evolve(place, offset=offset, rest=rest, is_behind=is_behind),
        lines,
    )


def _parsed(lines: Iterable[bytes], path: Path) -> Iterator[LogLine]:
    for raw in lines:
        text = raw.decode("utf-8", "replace")
        if text.strip():
            line = parse_line(text, source=str(path))
            if not line.text.startswith(MAGIC):
                yield line


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
