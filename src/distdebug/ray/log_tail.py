"""
Which records of a large log of Ray hold one of these words?

A record begins with the time in brackets and may go on over many lines.  Only
blocks that hold a word are taken apart, so gigabytes pass as fast as they are
read.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from .._text import clean, without_controls
from ..findings import Evidence, Location
from ..logs import open_log, parse_time, read_tail, split_block
from .sessions import LogPart


_BLOCK = 1 << 20
_MOST_LINES = 120
_BEGINS = re.compile(rb"\[(?:20\d\d-|state-dump)")
_QUOTED = 600
_LONGEST = 1 << 16
_CONTROLS = re.compile(rb"[^\t\n\x20-\x7e]")


@attrs.frozen(kw_only=True)
class Record:
    """
    What one record of a log says.

    Attributes:
        text: Its lines, without controls.

        number: The number of the first one, from 1.

        source: The file.
    """

    text: str
    number: int
    source: str

    @property
    def time(self) -> float | None:
        """
        When it was written, in seconds since the epoch.
        """
        return parse_time(self.text)

    @property
    def seen(self) -> Evidence:
        """
        The same as evidence.
        """
        return Evidence(
            kind="log",
            source=self.source,
            location=f"line {self.number}",
            quote=self.text[:_QUOTED],
        )


def read_records(path: Path, words: Sequence[bytes]) -> Iterator[Record]:
    """
    Find the records of a log that hold one of these words.

    Args:
        path: The log.

        words: What the first line of a record has to hold one of.

    Yields:
        The records, each at most 120 lines long.

    Raises:
        OSError: The log cannot be read.

        ValueError: It is no ordinary file.
    """
    source = os.fspath(path)
    kept: list[bytes] = []
    first = 0
    for number, line in _lines(path, words):
        if line is None or _BEGINS.match(line):
            if kept:
                yield _record(kept, first, source)
            is_wanted = line is not None and any(x in line for x in words)
            kept, first = ([line] if line and is_wanted else []), number
        elif kept and len(kept) < _MOST_LINES:
            kept.append(line)
    if kept:
        yield _record(kept, first, source)


def decoded(data: bytes) -> str:
    """
    What do these bytes of a log say?

    Args:
        data: Any bytes.

    Returns:
        The text, without controls.
    """
    text = data.decode("utf-8", "replace")
    # Most logs are plain, and are seen to be so far faster than cleaned.
    return without_controls(text) if _CONTROLS.search(data) else text


def _lines(
    path: Path, words: Sequence[bytes]
) -> Iterator[tuple[int, bytes | None]]:
    number, rest = 0, b""
    goes_on = False  # what follows a word belongs to its record
    with open_log(path) as file:
        while block := file.read(_BLOCK):
            lines, rest = split_block(rest, block)
            holds = any(word in block for word in words) or any(
                word in line for line in lines[:1] for word in words
            )
            if holds or goes_on:
                yield from enumerate(lines, number + 1)
            else:
                yield number, None  # nothing in here is wanted
            number += len(lines)
            goes_on = holds
    if rest:
        yield number + 1, rest


def _record(lines: list[bytes], number: int, source: str) -> Record:
    text = decoded(b"\n".join(lines)[:_LONGEST]).rstrip()
    return Record(text=text, number=number, source=source)


@attrs.frozen(kw_only=True)
class Exit:
    """
    A worker ended.

    Attributes:
        worker_id: Which.

        time: When, in seconds since the epoch.

        exit_type: Ray's word for it; ``""`` if the line has none.

        detail: What Ray says about it.

        node_id: The node.

        ip: Its address.

        pid: The number of the process.

        seen: The line.
    """

    worker_id: str
    time: float | None = None
    exit_type: str = ""
    detail: str = ""
    node_id: str | None = None
    ip: str | None = None
    pid: int | None = None
    seen: Evidence


@attrs.frozen(kw_only=True)
class Orphan:
    """
    A worker was killed because its owner was dead.
    """

    worker_id: str
    owner: str
    time: float | None
    seen: Evidence


@attrs.frozen(kw_only=True)
class Memory:
    """
    How much memory a process had when there was too little of it.
    """

    pid: int
    size: int
    node_id: str | None = None
    worker_id: str | None = None
    command: str = ""


@attrs.frozen(kw_only=True)
class Killing:
    """
    Ray killed a worker to regain memory.
    """

    worker_id: str
    time: float | None
    detail: str
    pid: int | None = None
    node_id: str | None = None
    seen: Evidence


@attrs.frozen(kw_only=True)
class NodeEnd:
    """
    A node left the cluster.
    """

    node_id: str | None
    time: float | None
    reason: str
    is_expected: bool
    ip: str | None = None
    seen: Evidence


@attrs.frozen(kw_only=True)
class JobEnd:
    """
    The driver of a job was gone.
    """

    job_id: str
    time: float | None


@attrs.frozen(kw_only=True)
class Placement:
    """
    Which process a worker is, which actor it became, and where.
    """

    worker_id: str
    actor_id: str | None = None
    node_id: str | None = None
    pid: int | None = None


@attrs.frozen(kw_only=True)
class NotStarted:
    """
    Worker processes never told Ray that they run.
    """

    time: float | None
    seen: Evidence


Note = (
    Exit
    | Orphan
    | Memory
    | Killing
    | NodeEnd
    | JobEnd
    | Placement
    | NotStarted
)


_TAIL = 1 << 16
_KEPT = 20
# A traceback that killed a process is the last thing it prints.
_ENDS = 1 << 14
_MOST_FRAMES = 40

# What Ray's own handler prints, and what Python's prints.
_SIGNAL = re.compile(
    r"\*\*\* (?P<name>SIG[A-Z]{2,10}) received at time=(?P<time>\d{9,11})"
)
_FATAL = re.compile(
    r"Fatal Python error: (?P<what>Segmentation fault|Aborted|Bus error|"
    r"Illegal instruction|Floating[- ]point exception)"
)
_FATAL_NAMES = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
}
_PYTHON = re.compile(
    r'^ {2}File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9}) in '
    r"(?P<function>[^\n]{1,200})$",
    re.MULTILINE,
)
_NATIVE = re.compile(
    r"^(?:PC: @|    @) {5,}0x[0-9a-f]{1,16} {2,}(?P<frame>[^\n]{1,300})$",
    re.MULTILINE,
)
# What native code says before it gives up.
_BEFORE = (
    *("terminate called after throwing", "what(): ", "CUDA error: "),
    *("Assertion ", "corrupted ", "double free", "free(): ", "Check failed: "),
)
_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout|failure detected by "
    r"watchdog|Exception \(either an error or timeout\) detected by watchdog"
    r"|ProcessGroupNCCL's watchdog got stuck|To avoid data inconsistency, we "
    r"are taking the entire process down"
)
# A worker that says so lost somebody else before.
_LOST_PEER = re.compile(
    r"Connection (?:closed|reset) by peer|NCCL communicator was aborted|"
    r"ncclRemoteError|RayActorError|ActorDiedError|ActorUnavailableError|"
    r"NodeDiedError|OwnerDiedError|WorkerCrashedError|remote process exited|"
    r"Broken pipe|recvValue failed|Failed to recv, got 0 bytes|"
    r"socket timeout|DistStoreError"
)
_ERROR = re.compile(
    r"^(?P<error>(?:[A-Za-z_][\w]{0,60}\.){0,8}[A-Za-z_]\w{0,80}"
    r"(?:Error|Exception|Exit|Interrupt|Warning)\b(?::[^\n]{0,400})?)$",
    re.MULTILINE,
)
_TRACE = re.compile(
    r'^ {2}File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9}), in '
    r"(?P<function>[^\n]{1,200})$",
    re.MULTILINE,
)


@attrs.frozen(kw_only=True)
class LastWords:
    """
    What the end of an error log tells.

    Attributes:
        signal: Such as ``"SIGSEGV"``.

        time: When it was received, in seconds since the epoch.

        error: What stood before a crash, or the last line of a traceback.

        python_frames: Where it was, innermost first.

        native_frames: The same in native code.

        is_watchdog: Whether torch's watchdog complains of a time-out.

        lost_peer: Whether it complains that somebody else is gone.

        lines: The last lines.
    """

    signal: str | None = None
    time: float | None = None
    error: str | None = None
    python_frames: tuple[Location, ...] = ()
    native_frames: tuple[str, ...] = ()
    is_watchdog: bool = False
    lost_peer: bool = False
    lines: tuple[str, ...] = ()


def read_end(parts: Sequence[LogPart]) -> str:
    """
    What is at the end of a log?

    Args:
        parts: Its files, oldest first.

    Returns:
        At most the last 64 KiB, without controls; ``""`` if nothing can be
        read.
    """
    text = b""
    for part in reversed(parts):
        if len(text) >= _TAIL:
            break
        try:
            text = read_tail(part.path, _TAIL - len(text)) + text
        except (OSError, ValueError):  # rotated away meanwhile, or no file
            continue
    return decoded(text)


def hear(text: str) -> LastWords:
    """
    What killed a process, as the end of its error log tells?

    Args:
        text: The end of the log.

    Returns:
        What was found.
    """
    lines = [x for x in text.splitlines() if x.strip() and x[0] != ":"]
    received, fatal = _same(_SIGNAL, text), _last(_FATAL, text)
    signal = received["name"] if received else None
    if signal is None and fatal is not None:
        signal = _FATAL_NAMES.get(fatal["what"], "SIGFPE")
    begins = [x.start() for x in (received, fatal) if x]
    crash = text[min(begins) :] if begins else ""
    errors = (
        [x for x in lines if any(word in x for word in _BEFORE)]
        if signal
        else _ERROR.findall(text[-_ENDS:])
    )
    return LastWords(
        signal=signal,
        time=float(received["time"]) if received else None,
        error=clean(errors[-1], limit=400) if errors else None,
        python_frames=_frames(crash) if signal else _traceback(text),
        native_frames=tuple(
            clean(x["frame"]) for x in _NATIVE.finditer(crash)
        )[:_MOST_FRAMES],
        is_watchdog=_WATCHDOG.search(text) is not None,
        lost_peer=_LOST_PEER.search(text) is not None,
        lines=tuple(clean(x, limit=400) for x in lines[-_KEPT:]),
    )


def _same(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """
    Ray tells of a signal twice: the first time of the last one counts.
    """
    found = list(pattern.finditer(text))
    return next((x for x in found if x[0] == found[-1][0]), None)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return found[-1] if found else None


def _frames(text: str) -> tuple[Location, ...]:
    # The stacks of other threads follow after an empty line.
    begin = text.find("most recent call first")
    if begin < 0:
        return ()

    stack = text[begin:].split("\n\n", 1)[0].split("\nThread 0x", 1)[0]
    found = list(_PYTHON.finditer(stack))[:_MOST_FRAMES]
    return tuple(map(_location, found))


def _traceback(text: str) -> tuple[Location, ...]:
    begin = text.rfind("Traceback (most recent call last)")
    begin = max(begin, text.rfind("Exception raised in creation task"))
    if begin < 0:
        return ()

    found = list(_TRACE.finditer(text, begin))[-_MOST_FRAMES:]
    return tuple(map(_location, reversed(found)))


def _location(found: re.Match[str]) -> Location:
    return Location(
        function=clean(found["function"]),
        file=clean(found["file"], limit=500),
        line=int(found["line"]),
    )
