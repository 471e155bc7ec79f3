"""
Who printed what into the output of a driver, and what failed?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from .._text import clean
from ..errors import DistdebugError, LogError, NoLogsError
from ..findings import Location, Missing
from ..logs import BROKEN, LogLine, Origin, read_lines
from .death_model import memory_notes, rank_of
from .driver import DriverLog, DriverSource, Failure, FailureKind


_MOST_LINES = 200
_MOST_OPEN = 4096
_LONGEST = 4000

_BEGINS = re.compile(
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
# Ends a traceback: a line at the margin with the name of an exception.
_ERROR = re.compile(
    r"^(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}(?:\([\w.]{1,80}\))?"
    r"(?::|$)"
)
_CONTINUES = re.compile(
    r"^\s|^PID\t|^\d{1,10}\t|^(?:OOM kill|Object store|Ray killed|Considered|"
    r"Selected|Total non-|To see|Top \d|Memory on|Eviction|Refer to|The actor|"
    r"During handling|The above exception|Traceback|- \w|\]|\(global)"
)
_ONE_LINE = (
    "worker died or was killed",
    "not registered within",
    "marked dead",
)


@attrs.frozen(kw_only=True)
class Block:
    """
    Lines that tell of one failure.

    Attributes:
        number: The number of the first line.

        lines: The lines, without prefixes.

        is_own: Whether the driver printed them itself.
    """

    number: int
    lines: tuple[str, ...]
    is_own: bool = False


def gather_blocks(lines: Iterable[LogLine]) -> Iterator[Block]:
    """
    Gather the lines that tell of failures.

    Args:
        lines: All lines.

    Yields:
        Those of one failure each, in the order of their ends.
    """
    opened: dict[tuple[object, ...], tuple[int, list[str]]] = {}
    for line in lines:
        origin = line.origin
        key = (origin.name, origin.pid, origin.ip) if origin else ()
        held = opened.get(key)
        text = line.text[:_LONGEST]
        if _BEGINS.search(text):
            if held is not None and _is_nested(held[1], text):
                held[1].append(text)
                continue
            if held is not None:
                yield _closed(key, opened.pop(key))
            if len(opened) < _MOST_OPEN:
                opened[key] = (line.number, [text])
            continue
        if held is None:
            continue
        if _goes_on(held[1], text):
            held[1].append(text)
            continue
        is_end = _is_traceback(held[1]) and _ERROR.match(text)
        if is_end:
            held[1].append(text)
        yield _closed(key, opened.pop(key))
    for whose, rest in sorted(opened.items(), key=lambda pair: pair[1][0]):
        yield _closed(whose, rest)


def _closed(key: tuple[object, ...], held: tuple[int, list[str]]) -> Block:
    return Block(number=held[0], lines=tuple(held[1]), is_own=not key)


def _is_traceback(held: list[str]) -> bool:
    return any("ray::" in line for line in held)


def _is_nested(held: list[str], text: str) -> bool:
    """
    Whether an exception passed through several tasks.
    """
    is_inner = text.startswith(("ray.exceptions.", "ray::"))
    return is_inner and _is_traceback(held) and len(held) < _MOST_LINES


def _goes_on(held: list[str], text: str) -> bool:
    if len(held) >= _MOST_LINES or any(x in held[0] for x in _ONE_LINE):
        return False
    return _CONTINUES.match(text) is not None


_MOST_FRAMES = 40
_CALL = re.compile(
    r"ray::(?:(?P<name>[^()\n:]{1,100}):)?(?P<function>[\w.<>]{1,200})\(\)"
    r"[^(\n]{0,20}\((?P<about>[^\n]{1,600})"
)
# What Ray calls the exception, if its own lines are cut off.
_WRAPPED = re.compile(r"RayTaskError\((?P<error>[A-Za-z_][\w.]{0,100})\)")
_ABOUT = {
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
_RAISED_ERROR = re.compile(
    r"^(?P<error>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80})"
    r"(?:: (?P<message>[^\n]{0,1000}))?$"
)


def calls_in(lines: Sequence[str]) -> list[tuple[int, re.Match[str]]]:
    """
    Find the lines that tell in which call something was raised.

    Args:
        lines: Some lines.

    Returns:
        Where each of them is, and what it tells.
    """
    found = ((i, _CALL.search(line)) for i, line in enumerate(lines))
    return [(i, call) for i, call in found if call]


def error_in(line: str) -> tuple[str, str]:
    """
    Read the last line of a traceback.

    Args:
        line: Such as ``"torch.cuda.OutOfMemoryError: CUDA out of memory"``.

    Returns:
        The class without its module, and the message; both empty if it is no
        such line.
    """
    found = _RAISED_ERROR.match(line)
    if found is None:
        return "", ""

    error = clean(found["error"]).rpartition(".")[2]
    return error, clean(found["message"] or "", limit=400)


def found_in(
    patterns: Mapping[str, re.Pattern[str]], text: str
) -> dict[str, str]:
    """
    Look for several patterns.

    Args:
        patterns: By name; of each the first group counts.

        text: Where to look.

    Returns:
        What was found, by name.
    """
    found = ((name, x.search(text)) for name, x in patterns.items())
    return {name: x[1] for name, x in found if x}


def raised_failure(base: Failure, block: Block) -> Failure:
    """
    Read what a method raised.

    Args:
        base: What is known already.

        block: The lines; some of them tell of a call.

    Returns:
        The failure.
    """
    # The innermost call is where it happened; the others only waited.
    index, call = calls_in(block.lines)[-1]
    is_last = index == len(block.lines) - 1
    error, message = error_in("" if is_last else block.lines[-1])
    wrapped = _WRAPPED.search(call.string[: call.start()])
    if not error and wrapped:
        error = wrapped["error"].rpartition(".")[2]
    about = found_in(_ABOUT, call["about"])
    name = clean(call["function"])
    return attrs.evolve(
        base,
        function=name,
        actor_class=name.split(".")[0] if "." in name else None,
        actor_id=about.get("actor_id"),
        actor_name=clean(call["name"]) if call["name"] else None,
        actor_repr=_own_repr(about.get("actor_repr")),
        rank=rank_of((about.get("actor_repr"),), ""),
        pid=int(about["pid"]) if "pid" in about else None,
        ip=about.get("ip"),
        error=error,
        message=message,
        frames=_frames("\n".join(block.lines[index:])),
    )


def _frames(text: str) -> tuple[Location, ...]:
    """
    The innermost first.
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
    That of an object without a ``__repr__`` tells nothing.
    """
    if text is None or " object at 0x" in text:
        return None
    return clean(
        text.removesuffix(")") if text.count(")") > text.count("(") else text
    )


_FAILURES_LONGEST = 1 << 16
_FIELD = re.compile(
    r"^\s{1,8}(?P<key>class_name|actor_id|pid|name|ip): (?P<value>[^\n]{0,200})$",
    re.MULTILINE,
)
_EXIT = re.compile(r"[Ww]orker exit type: (?P<type>\w{1,40})")
_DETAIL = re.compile(r"[Ww]orker exit detail: (?P<detail>[^\n]{0,2000})")
_WORKER = {
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
_RAN = re.compile(
    r"(?:task name|, name)=(?P<name>[\w.<>]{1,200})[^\n]{0,200}?"
    r"\bpid=(?P<pid>\d{1,10})"
)
# What killed the worker, by what is told; the first that fits.
_KINDS: tuple[tuple[str, FailureKind], ...] = (
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


def failures_of(block: Block) -> Iterator[Failure]:
    """
    Read what failed out of the lines that tell it.

    Args:
        block: The lines.

    Yields:
        The failures: one, or one for each worker that Ray killed for memory.
    """
    text = "\n".join(block.lines)[:_FAILURES_LONGEST]
    kind = _kind(text, block)
    base = Failure(
        kind=kind, line=block.number, quote=clean(block.lines[0], limit=400)
    )
    if kind == "out_of_memory":
        yield from _killed(base, text)
    elif kind in {"task_error", "init_error"}:
        yield raised_failure(base, block)
    else:
        yield _died(base, text)


def _kind(text: str, block: Block) -> FailureKind:
    calls = calls_in(block.lines)
    for word, kind in _KINDS:
        if word in text and (kind != "init_error" or calls):
            return kind
    return "task_error" if calls else "actor_died"


def _died(base: Failure, text: str) -> Failure:
    error, message = error_in(text.partition("\n")[0])
    fields = {m["key"]: clean(m["value"]) for m in _FIELD.finditer(text)}
    found = found_in(_WORKER, text)
    kind, detail = _EXIT.search(text), _DETAIL.search(text)
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
        else _reason(text),
        rank=rank_of((fields.get("name"),), ""),
        error=error,
        message=message,
    )


def _reason(text: str) -> str:
    found = re.search(
        r"^The actor is dead because [^\n]{1,1000}", text, re.MULTILINE
    )
    return clean(found[0], limit=1000) if found else ""


def _killed(base: Failure, text: str) -> Iterator[Failure]:
    found = found_in(_WORKER, text)
    known = memory_notes(text)
    notes = {note.pid: note for note in known if note.worker_id}
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
    functions = {x["pid"]: x["name"] for x in _RAN.finditer(text)}
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


# So begins what Python prints of an exception of Ray that nobody caught.
_OUTERMOST = re.compile(r"in (?:<module>|_run_module_as_main)\s*$")
_UNCAUGHT = re.compile(r"(?:ray\.exceptions\.\w{1,60}|ray::)")
# What may still come then: of the driver itself, and of all that still runs.
_LAST_OWN = 50
_LAST = 2000


@attrs.define(kw_only=True)
class Counts:
    """
    How many lines were read until now.

    Attributes:
        lines: All of them.

        own: Those without a prefix, which are the driver's.

        is_head: Whether the last own one begins a traceback.

        is_outermost: Whether the latest traceback comes from outside of all
            functions; that of an exception that was caught begins where it
            was caught.
    """

    lines: int = 0
    own: int = 0
    is_head: bool = False
    is_outermost: bool = False


def count_own(counts: Counts, line: LogLine) -> None:
    """
    Count a line, and watch the tracebacks of the driver itself.

    Args:
        counts: What was counted before; it is changed.

        line: The next line.
    """
    counts.lines += 1
    if line.origin is not None:
        return

    counts.own += 1
    if counts.is_head:
        counts.is_outermost = _OUTERMOST.search(line.text[:2000]) is not None
    counts.is_head = line.text.startswith("Traceback (most recent call last)")


def failures_in(blocks: Iterable[Block], counts: Counts) -> list[Failure]:
    """
    Read all failures, and tell which one the driver did not outlive.

    Args:
        blocks: The lines of each failure, read one after the other.

        counts: How far the lines were read when a block comes.

    Returns:
        The failures, as often as they are told.
    """
    failures: list[Failure] = []
    last = range(0)
    then = Counts()
    for block in blocks:
        begin = len(failures)
        failures += failures_of(block)
        if block.is_own:
            is_uncaught = _UNCAUGHT.match(block.lines[0]) is not None
            is_last = is_uncaught and counts.is_outermost
            last = range(begin, len(failures) if is_last else begin)
            then = attrs.evolve(counts)
    own, lines = counts.own - then.own, counts.lines - then.lines
    if own <= _LAST_OWN and lines <= _LAST:
        for i in last:
            failures[i] = attrs.evolve(failures[i], ended_driver=True)
    return failures


def completed(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """
    Tell all of why somebody died, where a line of it breaks off.

    Args:
        failures: What failed.

    Returns:
        The same; a driver may print only the begin of what Ray tells it.
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
class _Tally:
    # It can be changed, because there are millions of lines.
    origin: Origin
    first: LogLine
    last: LogLine
    names: list[str] = attrs.field(factory=list)
    lines: int = 0
    count: int = 0
    signal: str | None = None


#: By name, if there is no process; number of the process; and node.
Tallies = dict[tuple[str, int | None, str | None], _Tally]


def count_line(tallies: Tallies, line: LogLine) -> None:
    """
    Count a line for whom it is of.

    Args:
        tallies: What was counted before; it is changed.

        line: The next line; one without a prefix does not count.
    """
    origin = line.origin
    if origin is None or not (origin.name or origin.pid is not None):
        return

    # Once an actor is made, its name may become what its __repr__ returns.
    name = origin.name if origin.pid is None else ""
    key = name, origin.pid, origin.ip
    tally = tallies.get(key)
    if tally is None:
        if len(tallies) >= _MOST_SOURCES:
            return
        tally = tallies[key] = _Tally(origin=origin, first=line, last=line)
    if tally.origin is not origin:
        tally.origin = _later(tally.origin, origin)
    if origin.name not in tally.names:
        tally.names = [*tally.names, origin.name][-_MOST_NAMES:]
    tally.last = line
    tally.lines += 1
    tally.count += line.count
    if "*** SIG" in line.text and (found := _SIGNAL.search(line.text[:200])):
        tally.signal = found[1]


def sources_of(tallies: Tallies) -> tuple[DriverSource, ...]:
    """
    Tell what was counted.

    Args:
        tallies: What was counted.

    Returns:
        Each who printed, in the order of their first lines.
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
        for x in tallies.values()
    )


def _later(known: Origin, origin: Origin) -> Origin:
    """
    The new prefix, with the ranks that only an earlier one told.
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

    Colors and Ray's prefixes are taken off, states of progress bars that are
    glued by carriage returns become lines, and what Ray folded (``[repeated
    17x across cluster]``) becomes a count.

    Args:
        source: The file, or its lines.

    Yields:
        The lines, with who printed them.

    Raises:
        LogError: The file cannot be read, or not on.

        NoLogsError: There is no such file.
    """
    try:
        yield from _lines(source)
    except DistdebugError:
        raise
    except BROKEN as exc:
        msg = f"cannot read {_path(source) or 'the lines'}: {exc}"
        raise LogError(
            msg,
            remedy="see whether it is whole, a text in UTF-8, and may be read",
        ) from exc


def _lines(
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
    Tell who printed into the output of a driver, and what failed.

    An exception in a method of an actor is told nowhere else: the log of the
    actor does not have it.

    Args:
        source: The file that the output was sent to, or its lines.

    Returns:
        What it tells.  A file that breaks off is in *missing*.

    Raises:
        NoLogsError: There is no such file.
    """
    path = _path(source)
    tallies: Tallies = {}
    missing: list[Missing] = []
    counts = Counts()

    def counted() -> Iterator[LogLine]:
        try:
            for line in _lines(source):
                count_own(counts, line)
                count_line(tallies, line)
                yield line
        except NoLogsError:
            raise
        except BROKEN as exc:
            missing.append(Missing.log(path, exc))

    failures = failures_in(gather_blocks(counted()), counts)
    sources = sources_of(tallies)
    failures += _seen_to_crash(sources, failures)
    by_pid = {(x.origin.pid, x.origin.ip): x for x in sources}
    return DriverLog(
        path=path,
        lines=counts.lines,
        sources=sources,
        failures=tuple(
            _named(x, by_pid) for x in completed(_told_once(failures))
        ),
        missing=tuple(missing),
    )


def _path(source: str | os.PathLike[str] | Iterable[str]) -> str:
    if isinstance(source, str):
        return "" if "\n" in source else source
    return os.fspath(source) if isinstance(source, os.PathLike) else ""


def _seen_to_crash(
    sources: Iterable[DriverSource], failures: Iterable[Failure]
) -> list[Failure]:
    """
    Those whose deaths nobody told, since nobody waited for them.
    """
    told = {x.pid for x in failures}
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
        and source.origin.pid not in told
    ]


def _named(
    failure: Failure,
    sources: Mapping[tuple[int | None, str | None], DriverSource],
) -> Failure:
    """
    Call a process as its own lines are called, where nothing else names it.
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
        rank=rank_of((own, *source.names), "")
        if failure.rank is None
        else failure.rank,
    )


def _told_once(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """
    Whoever waits for a dead actor tells its death again.
    """
    found: dict[tuple[object, ...], Failure] = {}
    for failure in failures:
        who = failure.actor_id or failure.worker_id or failure.pid
        what = failure.function if who is None else ""
        how = failure.kind, failure.error, failure.message, what
        key = who, failure.ip, how
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
