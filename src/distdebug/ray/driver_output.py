"""
Read the output of a Ray driver: count lines per source, parse failures.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from .._text import clean
from ..errors import DistdebugError, LogError, NoLogsError
from ..findings import Missing
from ..identity import rank_in_names
from ..logs import (
    READ_ERRORS,
    TRACEBACK_HEADER,
    LogLine,
    Origin,
    begins_message,
    parse_error_line,
    parse_frames,
    read_lines,
)
from .driver_model import (
    DriverLog,
    DriverSource,
    Failure,
    Sources,
    find_source,
    index_sources,
)
from .messages import (
    FAILURE_TEXTS,
    ONE_LINE_FAILURES,
    PATTERNS,
    RAY_SIGNAL,
    FailureKind,
    parse_memory_notes,
    search_fields,
)


_MOST_LINES = 200
_MOST_OPEN = 4096
_FAILURE_START = PATTERNS["failure_start"]
_MOST_LINE = 4000

_CONTINUATION = re.compile(
    r"^\s|^PID\t|^\d{1,10}\t|^(?:OOM kill|Object store|Ray killed|Considered|"
    r"Selected|Total non-|To see|Top \d|Memory on|Eviction|Refer to|The actor|"
    r"During handling|The above exception|Traceback|- \w|\]|\(global)"
)


@attrs.frozen
class FailureBlock:
    """
    The lines of one failure.

    Attributes:
        number: The number of the first line.

        lines: The lines, without prefixes.

        is_own: Whether the driver itself printed them.

        logger: What a logger put before each line of the message, as that of
            vLLM does.
    """

    number: int
    lines: list[str]
    is_own: bool
    logger: str

    @property
    def is_traceback(self) -> bool:
        """
        Return whether it is the traceback of a task or method.
        """
        return any("ray::" in line for line in self.lines)

    def takes(self, text: str, *, is_start: bool) -> bool:
        """
        Return whether a line continues the block.

        Args:
            text: The line.

            is_start: Whether a failure may begin with it.
        """
        if len(self.lines) >= _MOST_LINES:
            return False
        if is_start:
            # An exception may pass through several tasks.
            is_inner = text.startswith(("ray.exceptions.", "ray::"))
            return is_inner and self.is_traceback
        if any(x in self.lines[0] for x in ONE_LINE_FAILURES):
            return False
        return _CONTINUATION.match(text) is not None


def _logger_prefix(text: str) -> str:
    """
    Return what a logger put before an exception of Ray.
    """
    starts = (text.find(word) for word in ("ray.exceptions.", "ray::"))
    at = min((x for x in starts if x >= 0), default=0)
    return text[:at] if begins_message(text, at) else ""


def split_failures(lines: Iterable[LogLine]) -> Iterator[FailureBlock]:
    """
    Split the lines of a driver into blocks of one failure each.

    Yields:
        The blocks, by their last lines.
    """
    open_blocks: dict[tuple[object, ...], FailureBlock] = {}
    for line in lines:
        origin = line.origin
        key = (origin.name, origin.pid, origin.ip) if origin else ()
        block = open_blocks.get(key)
        text = line.text[:_MOST_LINE]
        if block is not None:
            text = text.removeprefix(block.logger)
        is_start = _FAILURE_START.search(text) is not None
        if block is not None and block.takes(text, is_start=is_start):
            block.lines.append(text)
            continue
        if block is not None:
            is_last = block.is_traceback and parse_error_line(text)
            if is_last and not is_start:
                block.lines.append(text)
            yield open_blocks.pop(key)
        if is_start and len(open_blocks) < _MOST_OPEN:
            logger = _logger_prefix(text)
            plain = text.removeprefix(logger)
            open_blocks[key] = FailureBlock(
                line.number, [plain], not key, logger
            )
    yield from sorted(open_blocks.values(), key=lambda block: block.number)


_MOST_FRAMES = 40
_CALL = re.compile(
    r"ray::(?:(?P<name>[^()\n:]{1,100}):)?(?P<function>[\w.<>]{1,200})\(\)"
    r"[^(\n]{0,20}\((?P<about>[^\n]{1,600})"
)
# Names the exception if its own lines are cut off.
_WRAPPED_ERROR = re.compile(
    r"RayTaskError\((?P<error>[A-Za-z_][\w.]{0,100})\)"
)
_CALL_FIELDS = {
    "pid": re.compile(r"\bpid=(\d{1,10})"),
    "ip": re.compile(r"\bip=([^,)\s]{1,60})"),
    "actor_id": re.compile(r"\bactor_id=([0-9a-f]{32})"),
    "actor_repr": re.compile(r"\brepr=([^\n]{1,300}?)\)?$"),
}


def _parse_error(line: str) -> tuple[str, str]:
    """
    Parse the last line of a traceback.

    Args:
        line: Such as ``"torch.cuda.OutOfMemoryError: CUDA out of memory"``.

    Returns:
        The class without its module, and the message; both empty if it is no
        such line.
    """
    found = parse_error_line(line)
    return (found.name, found.message) if found else ("", "")


def _parse_exception(
    base: Failure, lines: Sequence[str], index: int, call: re.Match[str]
) -> Failure:
    """
    Parse the exception of a task or method.

    Args:
        index: The index of the line that names the call that raised.
    """
    is_last = index == len(lines) - 1
    error, message = _parse_error("" if is_last else lines[-1])
    wrapped = _WRAPPED_ERROR.search(call.string[: call.start()])
    if not error and wrapped:
        error = wrapped["error"].rpartition(".")[2]
    found = search_fields(call["about"], _CALL_FIELDS)
    name = clean(call["function"])
    frames = parse_frames("\n".join(lines[index:]))
    return attrs.evolve(
        base,
        function=name,
        actor_class=name.split(".")[0] if "." in name else None,
        actor_id=found.get("actor_id"),
        actor_name=clean(call["name"]) if call["name"] else None,
        actor_repr=_own_repr(found.get("actor_repr")),
        rank=rank_in_names([found.get("actor_repr")]),
        pid=int(found["pid"]) if "pid" in found else None,
        ip=found.get("ip"),
        error=error,
        message=message,
        frames=tuple(reversed(frames))[:_MOST_FRAMES],
    )


def _own_repr(text: str | None) -> str | None:
    """
    Return the ``__repr__`` of an actor; ``None`` for Python's default one.
    """
    if text is None or " object at 0x" in text:
        return None
    is_open = text.count(")") > text.count("(")
    return clean(text.removesuffix(")") if is_open else text)


_MOST_BLOCK = 1 << 16
_ACTOR_FIELD = re.compile(
    r"^\s{1,8}(?P<key>class_name|actor_id|pid|name|ip): (?P<value>[^\n]{0,200})$",
    re.MULTILINE,
)
_UNAVAILABLE = re.compile(r"The actor (?P<id>[0-9a-f]{32}) is unavailable")
_REASON = re.compile(r"^The actor is dead because [^\n]{1,1000}", re.MULTILINE)
_TASK = re.compile(
    r"(?:task name|, name)=(?P<name>[\w.<>]{1,200})[^\n]{0,200}?"
    r"\bpid=(?P<pid>\d{1,10})"
)


def parse_failures(block: FailureBlock) -> Iterator[Failure]:
    """
    Parse the failures in a block.

    Yields:
        One failure, or one for each worker that Ray killed for memory.
    """
    text = "\n".join(block.lines)[:_MOST_BLOCK]
    calls = [
        (i, call)
        for i, line in enumerate(block.lines)
        if (call := _CALL.search(line))
    ]
    kinds = (
        kind
        for word, kind in FAILURE_TEXTS.items()
        if word in text and (kind != "init_error" or calls)
    )
    otherwise: FailureKind = "task_error" if calls else "actor_died"
    kind = next(kinds, otherwise)
    base = Failure(
        kind=kind, line=block.number, quote=clean(block.lines[0], limit=400)
    )
    if kind == "out_of_memory":
        yield from _parse_memory_kills(base, text)
    elif kind in {"task_error", "init_error"}:
        # The innermost call raised; the others waited for it.
        yield _parse_exception(base, block.lines, *calls[-1])
    else:
        yield _parse_death(base, text)


def _parse_death(base: Failure, text: str) -> Failure:
    error, message = _parse_error(text.partition("\n")[0])
    fields = {m["key"]: clean(m["value"]) for m in _ACTOR_FIELD.finditer(text)}
    found = search_fields(text)
    unavailable = _UNAVAILABLE.search(text)
    pid = fields.get("pid") or found.get("pid") or ""
    reason = _REASON.search(text)
    detail = found.get("detail", reason[0] if reason else "")
    return attrs.evolve(
        base,
        actor_class=fields.get("class_name") or None,
        actor_id=fields.get("actor_id")
        or (unavailable["id"] if unavailable else None),
        actor_name=fields.get("name") or None,
        pid=int(pid) if pid.isdecimal() else None,
        ip=fields.get("ip") or found.get("ip"),
        node_id=found.get("node_id"),
        worker_id=found.get("worker_id"),
        exit_type=found.get("exit_type"),
        detail=clean(detail.partition("\n")[0], limit=1000),
        rank=rank_in_names([fields.get("name")]),
        error=error,
        message=message,
    )


def _parse_memory_kills(base: Failure, text: str) -> Iterator[Failure]:
    found = search_fields(text)
    listed = [*parse_memory_notes(text)]
    # A message that is cut off still begins with the task that was killed.
    first = listed[: "where the task (" in text]
    notes = {x.pid: x for x in listed if x.worker_id} or {
        x.pid: x for x in first
    }
    base = attrs.evolve(
        base,
        error="OutOfMemoryError",
        ip=found.get("ip"),
        node_id=found.get("node_id"),
        exit_type="NODE_OUT_OF_MEMORY",
        detail=clean(text, limit=1000),
    )
    if not notes:
        yield base
    functions = {x["pid"]: x["name"] for x in _TASK.finditer(text)}
    for note in notes.values():
        function = functions.get(str(note.pid), "")
        yield attrs.evolve(
            base,
            pid=note.pid,
            node_id=note.node_id,
            worker_id=note.worker_id,
            memory=note.size,
            function=function,
            actor_class=function.split(".")[0] if "." in function else None,
        )


_MOST_SOURCES = 100_000
_MOST_NAMES = 8
# Frame and last line of an uncaught Ray exception in the driver.
_OUTERMOST_FRAME = re.compile(r"in (?:<module>|_run_module_as_main)\s*$")
_RAY_EXCEPTION = re.compile(r"(?:ray\.exceptions\.\w{1,60}|ray::)")
# Lines that may follow it: of the driver itself, and of all sources.
_MOST_OWN_AFTER = 50
_MOST_AFTER = 2000


@attrs.define(kw_only=True)
class _SourceCount:
    # A DriverSource that can change, because there are millions of lines.
    origin: Origin
    first_line: int
    names: tuple[str, ...] = ()
    last_line: int = 0
    lines: int = 0
    count: int = 0
    last_text: str = ""
    signal: str | None = None


# Ray Train lists its workers once they are placed.
_WORLD_RANK = " world_rank="
_PLACE = re.compile(
    r"\bip=(?P<ip>[^,()\s]{1,60}), pid=(?P<pid>\d{1,10})\) world_rank="
    r"(?P<rank>\d{1,7}),"
)
_MOST_RANKS = 1 << 16


@attrs.define
class _LineCounts:
    """
    What is known of the lines up to the current one.

    Attributes:
        lines: The number of all lines.

        own: The number of lines without a prefix, which are the driver's.

        is_traceback_start: Whether the last own line begins a traceback.

        is_outermost: Whether the latest traceback begins outside all
            functions; that of a caught exception begins where it was caught.

        sources: By name (if there is no process id), process id, and address.

        ranks: By process id and address, as Ray Train lists them.
    """

    lines: int = 0
    own: int = 0
    is_traceback_start: bool = False
    is_outermost: bool = False
    sources: dict[tuple[str, int | None, str | None], _SourceCount] = (
        attrs.field(factory=dict)
    )
    ranks: dict[tuple[int | None, str | None], int] = attrs.field(factory=dict)

    def add(self, line: LogLine) -> None:
        """
        Count a line, and track the tracebacks of the driver itself.
        """
        self.lines += 1
        if _WORLD_RANK in line.text and (found := _PLACE.search(line.text)):
            process = int(found["pid"]), found["ip"]
            if process in self.ranks or len(self.ranks) < _MOST_RANKS:
                self.ranks[process] = int(found["rank"])  # of the last attempt
        if line.origin is not None:
            self._add_to_source(line, line.origin)
            return

        self.own += 1
        if self.is_traceback_start:
            frame = _OUTERMOST_FRAME.search(line.text[:2000])
            self.is_outermost = frame is not None
        self.is_traceback_start = line.text.startswith(TRACEBACK_HEADER)

    def _add_to_source(self, line: LogLine, origin: Origin) -> None:
        if not origin.name and origin.pid is None:
            return

        # Once an actor is created, its name may change to its __repr__.
        name = origin.name if origin.pid is None else ""
        key = name, origin.pid, origin.ip
        source = self.sources.get(key)
        if source is None:
            if len(self.sources) >= _MOST_SOURCES:
                return
            source = _SourceCount(origin=origin, first_line=line.number)
            self.sources[key] = source
        if source.origin is not origin:
            source.origin = _merge_origins(source.origin, origin)
        if origin.name not in source.names:
            source.names = (*source.names, origin.name)[-_MOST_NAMES:]
        source.last_line, source.last_text = line.number, line.text
        source.lines += 1
        source.count += line.count
        if "*** SIG" in line.text:
            found = RAY_SIGNAL.search(line.text[:200])
            source.signal = found[1] if found else source.signal


def _merge_origins(known: Origin, origin: Origin) -> Origin:
    """
    Return the new prefix, with the ranks that only an earlier one had.
    """
    rank, local_rank = origin.rank, origin.local_rank
    return attrs.evolve(
        origin,
        rank=known.rank if rank is None else rank,
        local_rank=known.local_rank if local_rank is None else local_rank,
    )


def _read_failures(
    blocks: Iterable[FailureBlock], counts: _LineCounts
) -> list[Failure]:
    """
    Parse all failures, and mark the one that ended the driver.

    Args:
        blocks: The blocks, read one after the other.

        counts: The line counts, which advance while the blocks are read.

    Returns:
        The failures, including repeated reports.
    """
    failures: list[Failure] = []
    last = range(0)
    own_then, lines_then = 0, 0
    for block in blocks:
        begin = len(failures)
        failures += parse_failures(block)
        if block.is_own:
            is_uncaught = _RAY_EXCEPTION.match(block.lines[0]) is not None
            is_last = is_uncaught and counts.is_outermost
            last = range(begin, len(failures) if is_last else begin)
            own_then, lines_then = counts.own, counts.lines
    own, lines = counts.own - own_then, counts.lines - lines_then
    if own <= _MOST_OWN_AFTER and lines <= _MOST_AFTER:
        for i in last:
            failures[i] = attrs.evolve(failures[i], ended_driver=True)
    return failures


_MOST_FAILURES = 10_000


def driver_lines(
    source: str | os.PathLike[str] | Iterable[str],
) -> Iterator[LogLine]:
    """
    Read the output of a driver line by line.

    Colors and Ray's prefixes are removed, progress bar states joined by
    carriage returns become lines, and folded lines
    (``[repeated 17x across cluster]``) become a count.

    Args:
        source: The file, or its lines.

    Yields:
        The lines, with their sources.

    Raises:
        LogError: The file cannot be read.

        NoLogsError: There is no such file.
    """
    try:
        yield from read_lines(source)
    except DistdebugError:
        raise
    except FileNotFoundError:
        msg = f"no such file: {source}"
        raise NoLogsError(msg, remedy="name the file it was sent to") from None
    except READ_ERRORS as exc:
        msg = f"cannot read {_get_path(source) or 'the lines'}: {exc}"
        raise LogError(
            msg,
            remedy="see whether it is whole, a text in UTF-8, and may be read",
        ) from exc


def read_driver_log(
    source: str | os.PathLike[str] | Iterable[str],
) -> DriverLog:
    """
    Read the sources and failures in the output of a driver.

    An exception in an actor's method appears only here: the log of the actor
    does not contain it.

    Args:
        source: The file that the output was written to, or its lines.

    Returns:
        Sources and failures.  A file that cannot be read to its end is in
        *missing*.

    Raises:
        NoLogsError: There is no such file.
    """
    path = _get_path(source)
    missing: list[Missing] = []
    counts = _LineCounts()

    def count_lines() -> Iterator[LogLine]:
        try:
            for line in driver_lines(source):
                counts.add(line)
                yield line
        except NoLogsError:
            raise
        except LogError as exc:
            missing.append(Missing.log(path, exc.__cause__ or exc))

    failures = _read_failures(split_failures(count_lines()), counts)
    sources = tuple(map(_make_source, counts.sources.values()))
    by_process = index_sources(sources)
    failures += _find_crashes(sources, by_process, failures)
    merged = _complete_details(_merge_repeats(failures))
    return DriverLog(
        path=path,
        lines=counts.lines,
        sources=sources,
        failures=tuple(
            _identify_process(x, by_process, counts.ranks) for x in merged
        ),
        missing=tuple(missing),
    )


def _get_path(source: str | os.PathLike[str] | Iterable[str]) -> str:
    if isinstance(source, str):
        return "" if "\n" in source else source
    return os.fspath(source) if isinstance(source, os.PathLike) else ""


def _make_source(counted: _SourceCount) -> DriverSource:
    counted.last_text = clean(counted.last_text, limit=400)
    return DriverSource(**attrs.asdict(counted, recurse=False))


def _find_crashes(
    sources: Iterable[DriverSource],
    by_process: Sources,
    failures: Iterable[Failure],
) -> list[Failure]:
    """
    Return crashes that the driver did not report as failures.
    """
    reported = {find_source(x, by_process) for x in failures}
    return [
        Failure(
            kind="worker_crashed",
            line=source.last_line,
            pid=source.origin.pid,
            ip=source.origin.ip,
            quote=f"{source} {source.signal} received",
        )
        for source in sources
        if source.signal not in {None, "SIGTERM"} and source not in reported
    ]


def _complete_details(failures: Sequence[Failure]) -> Iterator[Failure]:
    """
    Replace truncated details by the full text of the same process.

    A driver may print only the beginning of Ray's message.
    """
    longest: dict[tuple[int | None, str | None], str] = {}
    for x in failures:
        known = longest.get((x.pid, x.ip), "")
        longest[x.pid, x.ip] = max(known, x.detail, key=len)
    for x in failures:
        detail = longest[x.pid, x.ip]
        is_cut = x.pid is not None and x.detail and detail.startswith(x.detail)
        yield attrs.evolve(x, detail=detail) if is_cut else x


def _identify_process(
    failure: Failure,
    sources: Sources,
    ranks: Mapping[tuple[int | None, str | None], int],
) -> Failure:
    """
    Add the name in a process's own lines to a failure without one, and a rank.

    Args:
        ranks: The ranks of workers of Ray Train, whose names have none.
    """
    source, rank = find_source(failure, sources), failure.rank
    if source is not None and failure.actor_repr is None:
        own = next((x for x in source.names if "(" in x), None)
        first = source.names[0].partition("(")[0]
        failure = attrs.evolve(
            failure, actor_class=failure.actor_class or first, actor_repr=own
        )
        if rank is None:
            rank = rank_in_names((own, *source.names))
    if rank is None:
        rank = ranks.get((failure.pid, failure.ip))
    return attrs.evolve(failure, rank=rank)


def _merge_repeats(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """
    Merge repeated reports of one failure.

    Each process that waits for a dead actor reports its death again.
    """
    found: dict[tuple[object, ...], Failure] = {}
    for failure in failures:
        process = failure.actor_id or failure.worker_id or failure.pid
        function = failure.function if process is None else ""
        error = failure.kind, failure.error, failure.message, function
        key = process, failure.ip, error
        known = found.get(key)
        if known is not None:
            found[key] = attrs.evolve(
                known,
                count=known.count + 1,
                line=min(known.line, failure.line),
                ended_driver=known.ended_driver or failure.ended_driver,
            )
        elif len(found) < _MOST_FAILURES:
            found[key] = failure
    return tuple(sorted(found.values(), key=lambda x: x.line))
