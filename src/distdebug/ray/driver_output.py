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
from ..findings import Location, Missing
from ..logs import READ_ERRORS, LogLine, Origin, read_lines
from .death_model import parse_memory_notes, parse_rank
from .driver_model import DriverLog, DriverSource, Failure, FailureKind


_MOST_LINES = 200
_MOST_OPEN = 4096
_MOST_LINE = 4000

_FAILURE_START = re.compile(
    r"ray::(?:[^()\n:]{1,100}:)?[\w.<>]{1,200}\(\)[^(\n]{0,20}\(pid=\d"
    r"|\bThe actor died (?:unexpectedly before|because of an error)"
    r"|ActorUnavailableError: The actor [0-9a-f]{32}"
    r"|ActorUnavailableError: The actor is "
    r"|WorkerCrashedError: The worker died"
    r"|worker died or was killed while executing a task"
    r"|killed due to the node running low on memory"
    r"|NodeDiedError: "
    r"|has been marked dead because the detector"
    r"|OwnerDiedError: |RuntimeEnvSetupError: |UnschedulableError: "
    r"|have not registered within the timeout"
)
# The last line of a traceback: an exception's name, not indented.
_ERROR_LINE = re.compile(
    r"^(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}(?:\([\w.]{1,80}\))?"
    r"(?::|$)"
)
_CONTINUATION = re.compile(
    r"^\s|^PID\t|^\d{1,10}\t|^(?:OOM kill|Object store|Ray killed|Considered|"
    r"Selected|Total non-|To see|Top \d|Memory on|Eviction|Refer to|The actor|"
    r"During handling|The above exception|Traceback|- \w|\]|\(global)"
)
_ONE_LINE_FAILURES = (
    "worker died or was killed",
    "not registered within",
    "marked dead",
)


@attrs.frozen(kw_only=True)
class FailureBlock:
    """
    The lines of one failure.

    Attributes:
        number: The number of the first line.

        lines: The lines, without prefixes.

        is_own: Whether the driver itself printed them.
    """

    number: int
    lines: tuple[str, ...]
    is_own: bool = False


def split_failures(lines: Iterable[LogLine]) -> Iterator[FailureBlock]:
    """
    Split the lines of a driver into blocks of one failure each.

    Yields:
        The blocks, by their last lines.
    """
    open_blocks: dict[tuple[object, ...], tuple[int, list[str]]] = {}
    for line in lines:
        origin = line.origin
        key = (origin.name, origin.pid, origin.ip) if origin else ()
        open_lines = open_blocks.get(key)
        text = line.text[:_MOST_LINE]
        if _FAILURE_START.search(text):
            if open_lines is not None and _is_nested(open_lines[1], text):
                open_lines[1].append(text)
                continue
            if open_lines is not None:
                yield _close_block(key, open_blocks.pop(key))
            if len(open_blocks) < _MOST_OPEN:
                open_blocks[key] = (line.number, [text])
            continue
        if open_lines is None:
            continue
        if _is_continuation(open_lines[1], text):
            open_lines[1].append(text)
            continue
        is_end = _is_traceback(open_lines[1]) and _ERROR_LINE.match(text)
        if is_end:
            open_lines[1].append(text)
        yield _close_block(key, open_blocks.pop(key))
    for source_key, rest in sorted(
        open_blocks.items(), key=lambda pair: pair[1][0]
    ):
        yield _close_block(source_key, rest)


def _close_block(
    key: tuple[object, ...], open_lines: tuple[int, list[str]]
) -> FailureBlock:
    return FailureBlock(
        number=open_lines[0], lines=tuple(open_lines[1]), is_own=not key
    )


def _is_traceback(open_lines: list[str]) -> bool:
    return any("ray::" in line for line in open_lines)


def _is_nested(open_lines: list[str], text: str) -> bool:
    """
    Return whether an exception passed through several tasks.
    """
    is_inner = text.startswith(("ray.exceptions.", "ray::"))
    return (
        is_inner
        and _is_traceback(open_lines)
        and len(open_lines) < _MOST_LINES
    )


def _is_continuation(open_lines: list[str], text: str) -> bool:
    if len(open_lines) >= _MOST_LINES or any(
        x in open_lines[0] for x in _ONE_LINE_FAILURES
    ):
        return False
    return _CONTINUATION.match(text) is not None


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
_FRAME = re.compile(
    r'^\s{1,40}File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9}), in '
    r"(?P<function>[^\n]{1,200})$",
    re.MULTILINE,
)
_EXCEPTION_LINE = re.compile(
    r"^(?P<error>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80})"
    r"(?:: (?P<message>[^\n]{0,1000}))?$"
)


def find_calls(lines: Sequence[str]) -> list[tuple[int, re.Match[str]]]:
    """
    Find the lines that name the call in which an exception was raised.

    Returns:
        Index and match of each line.
    """
    found = ((i, _CALL.search(line)) for i, line in enumerate(lines))
    return [(i, call) for i, call in found if call]


def parse_error(line: str) -> tuple[str, str]:
    """
    Parse the last line of a traceback.

    Args:
        line: Such as ``"torch.cuda.OutOfMemoryError: CUDA out of memory"``.

    Returns:
        The class without its module, and the message; both empty if it is no
        such line.
    """
    found = _EXCEPTION_LINE.match(line)
    if found is None:
        return "", ""

    error = clean(found["error"]).rpartition(".")[2]
    return error, clean(found["message"] or "", limit=400)


def search_fields(
    patterns: Mapping[str, re.Pattern[str]], text: str
) -> dict[str, str]:
    """
    Search a text for several patterns.

    Returns:
        The first group of each match, by name.
    """
    found = ((name, x.search(text)) for name, x in patterns.items())
    return {name: x[1] for name, x in found if x}


def parse_exception(base: Failure, block: FailureBlock) -> Failure:
    """
    Parse the exception of a task or method.

    Args:
        base: The fields that are known already.

        block: Its lines, at least one of which names a call.
    """
    # The innermost call raised; the others waited for it.
    index, call = find_calls(block.lines)[-1]
    is_last = index == len(block.lines) - 1
    error, message = parse_error("" if is_last else block.lines[-1])
    wrapped = _WRAPPED_ERROR.search(call.string[: call.start()])
    if not error and wrapped:
        error = wrapped["error"].rpartition(".")[2]
    call_fields = search_fields(_CALL_FIELDS, call["about"])
    name = clean(call["function"])
    return attrs.evolve(
        base,
        function=name,
        actor_class=name.split(".")[0] if "." in name else None,
        actor_id=call_fields.get("actor_id"),
        actor_name=clean(call["name"]) if call["name"] else None,
        actor_repr=_own_repr(call_fields.get("actor_repr")),
        rank=parse_rank((call_fields.get("actor_repr"),), ""),
        pid=int(call_fields["pid"]) if "pid" in call_fields else None,
        ip=call_fields.get("ip"),
        error=error,
        message=message,
        frames=_frames("\n".join(block.lines[index:])),
    )


def _frames(text: str) -> tuple[Location, ...]:
    """
    Parse the stack, innermost first.
    """
    frames = [
        Location(
            function=clean(x["function"]),
            file=clean(x["file"], limit=500),
            line=int(x["line"]),
        )
        for x in _FRAME.finditer(text)
    ]
    return tuple(reversed(frames))[:_MOST_FRAMES]


def _own_repr(text: str | None) -> str | None:
    """
    Return the ``__repr__`` of an actor; ``None`` for Python's default one.
    """
    if text is None or " object at 0x" in text:
        return None
    return clean(
        text.removesuffix(")") if text.count(")") > text.count("(") else text
    )


_MOST_BLOCK = 1 << 16
_ACTOR_FIELD = re.compile(
    r"^\s{1,8}(?P<key>class_name|actor_id|pid|name|ip): (?P<value>[^\n]{0,200})$",
    re.MULTILINE,
)
_EXIT_TYPE = re.compile(r"[Ww]orker exit type: (?P<type>\w{1,40})")
_EXIT_DETAIL = re.compile(r"[Ww]orker exit detail: (?P<detail>[^\n]{0,2000})")
_WORKER_FIELDS = {
    "worker_id": re.compile(r"Worker ID: ([0-9a-f]{56})"),
    "node_id": re.compile(
        r"(?:[Nn]ode (?:ID|id)|\(IP: [^,\s]{1,60}, ID): ([0-9a-f]{56})"
    ),
    "ip": re.compile(
        r"(?:Worker IP address: |and address: |\(IP: )([^,\s]{1,60})"
    ),
    "pid": re.compile(r"Worker PID: (\d{1,10})"),
}
_UNAVAILABLE = re.compile(r"The actor (?P<id>[0-9a-f]{32}) is unavailable")
_TASK = re.compile(
    r"(?:task name|, name)=(?P<name>[\w.<>]{1,200})[^\n]{0,200}?"
    r"\bpid=(?P<pid>\d{1,10})"
)
# Kinds of failure by their words; the first match counts.
_KIND_WORDS: tuple[tuple[str, FailureKind], ...] = (
    ("not registered within the timeout", "start_timeout"),
    ("running low on memory", "out_of_memory"),
    ("RuntimeEnvSetupError: ", "not_started"),
    ("UnschedulableError: ", "not_started"),
    ("error raised in its creation task", "init_error"),
    ("owner has died", "owner_died"),
    ("OwnerDiedError", "owner_died"),
    ("marked dead", "node_died"),
    ("NodeDiedError", "node_died"),
    ("its node has died", "node_died"),
    ("class_name:", "actor_died"),
    ("ActorUnavailableError", "actor_unavailable"),
    ("worker died or was killed", "worker_crashed"),
    ("WorkerCrashedError", "worker_crashed"),
)


def parse_failures(block: FailureBlock) -> Iterator[Failure]:
    """
    Parse the failures in a block.

    Yields:
        One failure, or one for each worker that Ray killed for memory.
    """
    text = "\n".join(block.lines)[:_MOST_BLOCK]
    kind = _classify(text, block)
    base = Failure(
        kind=kind, line=block.number, quote=clean(block.lines[0], limit=400)
    )
    if kind == "out_of_memory":
        yield from _parse_memory_kills(base, text)
    elif kind in {"task_error", "init_error"}:
        yield parse_exception(base, block)
    else:
        yield _parse_death(base, text)


def _classify(text: str, block: FailureBlock) -> FailureKind:
    calls = find_calls(block.lines)
    for word, kind in _KIND_WORDS:
        if word in text and (kind != "init_error" or calls):
            return kind
    return "task_error" if calls else "actor_died"


def _parse_death(base: Failure, text: str) -> Failure:
    error, message = parse_error(text.partition("\n")[0])
    fields = {m["key"]: clean(m["value"]) for m in _ACTOR_FIELD.finditer(text)}
    found = search_fields(_WORKER_FIELDS, text)
    kind, detail = _EXIT_TYPE.search(text), _EXIT_DETAIL.search(text)
    unavailable = _UNAVAILABLE.search(text)
    pid = fields.get("pid") or found.get("pid") or ""
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
        exit_type=kind["type"] if kind else None,
        detail=clean(detail["detail"], limit=1000)
        if detail
        else _parse_reason(text),
        rank=parse_rank((fields.get("name"),), ""),
        error=error,
        message=message,
    )


def _parse_reason(text: str) -> str:
    found = re.search(
        r"^The actor is dead because [^\n]{1,1000}", text, re.MULTILINE
    )
    return clean(found[0], limit=1000) if found else ""


def _parse_memory_kills(base: Failure, text: str) -> Iterator[Failure]:
    found = search_fields(_WORKER_FIELDS, text)
    listed = parse_memory_notes(text)
    notes = {note.pid: note for note in listed if note.worker_id}
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


# Frame and last line of an uncaught Ray exception in the driver.
_OUTERMOST_FRAME = re.compile(r"in (?:<module>|_run_module_as_main)\s*$")
_RAY_EXCEPTION = re.compile(r"(?:ray\.exceptions\.\w{1,60}|ray::)")
# Lines that may follow it: of the driver itself, and of all sources.
_MOST_OWN_AFTER = 50
_MOST_AFTER = 2000


@attrs.define(kw_only=True)
class LineCounts:
    """
    Line counts up to the current line.

    Attributes:
        lines: All lines.

        own: Lines without a prefix, which are the driver's.

        is_traceback_start: Whether the last own line begins a traceback.

        is_outermost: Whether the latest traceback begins outside all
            functions; that of a caught exception begins where it was caught.
    """

    lines: int = 0
    own: int = 0
    is_traceback_start: bool = False
    is_outermost: bool = False


def count_driver_line(counts: LineCounts, line: LogLine) -> None:
    """
    Count a line, and track the tracebacks of the driver itself.

    Args:
        counts: The counts so far; changed in place.

        line: The next line.
    """
    counts.lines += 1
    if line.origin is not None:
        return

    counts.own += 1
    if counts.is_traceback_start:
        counts.is_outermost = (
            _OUTERMOST_FRAME.search(line.text[:2000]) is not None
        )
    counts.is_traceback_start = line.text.startswith(
        "Traceback (most recent call last)"
    )


def read_failures(
    blocks: Iterable[FailureBlock], counts: LineCounts
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
    counts_then = LineCounts()
    for block in blocks:
        begin = len(failures)
        failures += parse_failures(block)
        if block.is_own:
            is_uncaught = _RAY_EXCEPTION.match(block.lines[0]) is not None
            is_last = is_uncaught and counts.is_outermost
            last = range(begin, len(failures) if is_last else begin)
            counts_then = attrs.evolve(counts)
    own, lines = counts.own - counts_then.own, counts.lines - counts_then.lines
    if own <= _MOST_OWN_AFTER and lines <= _MOST_AFTER:
        for i in last:
            failures[i] = attrs.evolve(failures[i], ended_driver=True)
    return failures


def complete_details(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """
    Replace truncated details by the full text of the same process.

    A driver may print only the beginning of Ray's message.
    """
    failures = tuple(failures)
    longest: dict[tuple[int | None, str | None], str] = {}
    for x in failures:
        key = x.pid, x.ip
        longest[key] = max(longest.get(key, ""), x.detail, key=len)
    return tuple(
        attrs.evolve(x, detail=longest[x.pid, x.ip])
        if x.pid is not None
        and x.detail
        and longest[x.pid, x.ip].startswith(x.detail)
        else x
        for x in failures
    )


_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z]{2,10}) received at time=")
_MOST_SOURCES = 100_000
_MOST_NAMES = 8


@attrs.define(kw_only=True)
class _SourceCount:
    # Mutable, because there are millions of lines.
    origin: Origin
    first: LogLine
    last: LogLine
    names: list[str] = attrs.field(factory=list)
    lines: int = 0
    count: int = 0
    signal: str | None = None


#: By name (if there is no process id), process id, and node address.
SourceCounts = dict[tuple[str, int | None, str | None], _SourceCount]


def count_source_line(source_counts: SourceCounts, line: LogLine) -> None:
    """
    Count a line for its source.

    Args:
        source_counts: The counts so far; changed in place.

        line: The next line; one without a prefix is not counted.
    """
    origin = line.origin
    if origin is None or not (origin.name or origin.pid is not None):
        return

    # Once an actor is created, its name may change to its __repr__.
    name = origin.name if origin.pid is None else ""
    key = name, origin.pid, origin.ip
    source_count = source_counts.get(key)
    if source_count is None:
        if len(source_counts) >= _MOST_SOURCES:
            return
        source_count = source_counts[key] = _SourceCount(
            origin=origin, first=line, last=line
        )
    if source_count.origin is not origin:
        source_count.origin = _merge_origins(source_count.origin, origin)
    if origin.name not in source_count.names:
        source_count.names = [*source_count.names, origin.name][-_MOST_NAMES:]
    source_count.last = line
    source_count.lines += 1
    source_count.count += line.count
    if "*** SIG" in line.text and (found := _SIGNAL.search(line.text[:200])):
        source_count.signal = found[1]


def list_sources(source_counts: SourceCounts) -> tuple[DriverSource, ...]:
    """
    Return the counted sources, by first line.
    """
    return tuple(
        DriverSource(
            origin=x.origin,
            names=tuple(x.names),
            first_line=x.first.number,
            last_line=x.last.number,
            lines=x.lines,
            count=x.count,
            last_text=clean(x.last.text, limit=400),
            signal=x.signal,
        )
        for x in source_counts.values()
    )


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
        yield from _read_lines(source)
    except DistdebugError:
        raise
    except READ_ERRORS as exc:
        msg = f"cannot read {_get_path(source) or 'the lines'}: {exc}"
        raise LogError(
            msg,
            remedy="see whether it is whole, a text in UTF-8, and may be read",
        ) from exc


def _read_lines(
    source: str | os.PathLike[str] | Iterable[str],
) -> Iterator[LogLine]:
    try:
        yield from read_lines(source)
    except FileNotFoundError:
        msg = f"no such file: {source}"
        raise NoLogsError(msg, remedy="name the file it was sent to") from None


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
    source_counts: SourceCounts = {}
    missing: list[Missing] = []
    counts = LineCounts()

    def count_lines() -> Iterator[LogLine]:
        try:
            for line in _read_lines(source):
                count_driver_line(counts, line)
                count_source_line(source_counts, line)
                yield line
        except NoLogsError:
            raise
        except READ_ERRORS as exc:
            missing.append(Missing.log(path, exc))

    failures = read_failures(split_failures(count_lines()), counts)
    sources = list_sources(source_counts)
    failures += _find_crashes(sources, failures)
    by_pid = {(x.origin.pid, x.origin.ip): x for x in sources}
    return DriverLog(
        path=path,
        lines=counts.lines,
        sources=sources,
        failures=tuple(
            _add_name(x, by_pid)
            for x in complete_details(_merge_repeats(failures))
        ),
        missing=tuple(missing),
    )


def _get_path(source: str | os.PathLike[str] | Iterable[str]) -> str:
    if isinstance(source, str):
        return "" if "\n" in source else source
    return os.fspath(source) if isinstance(source, os.PathLike) else ""


def _find_crashes(
    sources: Iterable[DriverSource], failures: Iterable[Failure]
) -> list[Failure]:
    """
    Return crashes that the driver did not report as failures.
    """
    reported = {x.pid for x in failures}
    return [
        Failure(
            kind="worker_crashed",
            line=source.last_line,
            pid=source.origin.pid,
            ip=source.origin.ip,
            quote=f"{source} {source.signal} received",
        )
        for source in sources
        if source.signal not in {None, "SIGTERM"}
        and source.origin.pid not in reported
    ]


def _add_name(
    failure: Failure,
    sources: Mapping[tuple[int | None, str | None], DriverSource],
) -> Failure:
    """
    Add the name in a process's own lines to a failure without a name.
    """
    if failure.pid is None or failure.actor_repr is not None:
        return failure
    places = ((failure.pid, failure.ip), (failure.pid, None))
    source = next((sources[x] for x in places if x in sources), None)
    if source is None:
        return failure

    own = next((x for x in source.names if "(" in x), None)
    classes = (x.partition("(")[0] for x in source.names)
    return attrs.evolve(
        failure,
        actor_class=failure.actor_class or next(classes),
        actor_repr=own,
        rank=parse_rank((own, *source.names), "")
        if failure.rank is None
        else failure.rank,
    )


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
