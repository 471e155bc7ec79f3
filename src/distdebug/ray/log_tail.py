"""
Read matching records and crash details from large Ray logs.

A record begins with the time in brackets and may span many lines.  Only blocks
that contain a search word are split into lines, so most of a log passes at the
speed of reading.
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
_RECORD_START = re.compile(rb"\[(?:20\d\d-|state-dump)")
_MOST_QUOTE = 600
_MOST_RECORD = 1 << 16
_CONTROLS = re.compile(rb"[^\t\n\x20-\x7e]")


@attrs.frozen(kw_only=True)
class Record:
    """
    One record of a Ray log.

    Attributes:
        text: Its lines, without control characters.

        number: The line number of its first line, from 1.

        source: The path of the log.
    """

    text: str
    number: int
    source: str

    @property
    def time(self) -> float | None:
        """
        Return the time of the record, in seconds since the epoch.
        """
        return parse_time(self.text)

    @property
    def evidence(self) -> Evidence:
        """
        Return the record as evidence.
        """
        return Evidence(
            kind="log",
            source=self.source,
            location=f"line {self.number}",
            quote=self.text[:_MOST_QUOTE],
        )


def read_records(path: Path, words: Sequence[bytes]) -> Iterator[Record]:
    """
    Yield the records of a log whose first line contains a search word.

    Args:
        words: The search words.

    Yields:
        The records, each at most 120 lines long.

    Raises:
        OSError: The log cannot be read.

        ValueError: It is not an ordinary file.
    """
    source = os.fspath(path)
    record_lines: list[bytes] = []
    first = 0
    for number, line in _scan_lines(path, words):
        if line is None or _RECORD_START.match(line):
            if record_lines:
                yield _make_record(record_lines, first, source)
            is_match = line is not None and any(x in line for x in words)
            record_lines, first = ([line] if line and is_match else []), number
        elif record_lines and len(record_lines) < _MOST_LINES:
            record_lines.append(line)
    if record_lines:
        yield _make_record(record_lines, first, source)


def decode_log(data: bytes) -> str:
    """
    Decode bytes of a log and remove control characters.
    """
    text = data.decode("utf-8", "replace")
    # Most logs have no controls, and the search is much faster than the
    # cleaning.
    return without_controls(text) if _CONTROLS.search(data) else text


def _scan_lines(
    path: Path, words: Sequence[bytes]
) -> Iterator[tuple[int, bytes | None]]:
    number, rest = 0, b""
    is_open = False  # the record may continue in the next block
    with open_log(path) as file:
        while block := file.read(_BLOCK):
            lines, rest = split_block(rest, block)
            has_word = any(word in block for word in words) or any(
                word in line for line in lines[:1] for word in words
            )
            if has_word or is_open:
                yield from enumerate(lines, number + 1)
            else:
                yield number, None  # no search word in this block
            number += len(lines)
            is_open = has_word
    if rest:
        yield number + 1, rest


def _make_record(lines: list[bytes], number: int, source: str) -> Record:
    text = decode_log(b"\n".join(lines)[:_MOST_RECORD]).rstrip()
    return Record(text=text, number=number, source=source)


@attrs.frozen(kw_only=True)
class WorkerExit:
    """
    The end of a worker, as one log line reports it.

    Attributes:
        worker_id: Ray's id of the worker.

        time: In seconds since the epoch.

        exit_type: Ray's exit type; ``""`` if the line has none.

        detail: Ray's explanation.

        node_id: Ray's id of the node.

        ip: The address of the node.

        pid: The process id on that node.

        evidence: The log line.
    """

    worker_id: str
    time: float | None = None
    exit_type: str = ""
    detail: str = ""
    node_id: str | None = None
    ip: str | None = None
    pid: int | None = None
    evidence: Evidence


@attrs.frozen(kw_only=True)
class Orphan:
    """
    A worker that was killed because its owner had died.
    """

    worker_id: str
    owner: str
    time: float | None
    evidence: Evidence


@attrs.frozen(kw_only=True)
class MemoryUse:
    """
    The memory of a process, in bytes, when its node ran out of memory.
    """

    pid: int
    size: int
    node_id: str | None = None
    worker_id: str | None = None
    command: str = ""


@attrs.frozen(kw_only=True)
class MemoryKill:
    """
    A worker that Ray killed to free memory.
    """

    worker_id: str
    time: float | None
    detail: str
    pid: int | None = None
    node_id: str | None = None
    evidence: Evidence


@attrs.frozen(kw_only=True)
class NodeEnd:
    """
    A node that left the cluster.
    """

    node_id: str | None
    time: float | None
    reason: str
    is_expected: bool
    ip: str | None = None
    evidence: Evidence


@attrs.frozen(kw_only=True)
class JobEnd:
    """
    The end of a job's driver.
    """

    job_id: str
    time: float | None


@attrs.frozen(kw_only=True)
class Placement:
    """
    The process, actor, and node of a worker.
    """

    worker_id: str
    actor_id: str | None = None
    node_id: str | None = None
    pid: int | None = None


@attrs.frozen(kw_only=True)
class NotStarted:
    """
    Worker processes that did not register with Ray in time.
    """

    time: float | None
    evidence: Evidence


Note = (
    WorkerExit
    | Orphan
    | MemoryUse
    | MemoryKill
    | NodeEnd
    | JobEnd
    | Placement
    | NotStarted
)


_TAIL_BYTES = 1 << 16
_LAST_LINES = 20
# A traceback that ends a process is the last thing in its log.
_TRACEBACK_BYTES = 1 << 14
_MOST_FRAMES = 40

# Crash lines of Ray's signal handler and of Python's faulthandler.
_RAY_SIGNAL = re.compile(
    r"\*\*\* (?P<name>SIG[A-Z]{2,10}) received at time=(?P<time>\d{9,11})"
)
_PYTHON_FATAL = re.compile(
    r"Fatal Python error: (?P<what>Segmentation fault|Aborted|Bus error|"
    r"Illegal instruction|Floating[- ]point exception)"
)
_FATAL_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
}
_FAULTHANDLER_FRAME = re.compile(
    r'^ {2}File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9}) in '
    r"(?P<function>[^\n]{1,200})$",
    re.MULTILINE,
)
_NATIVE_FRAME = re.compile(
    r"^(?:PC: @|    @) {5,}0x[0-9a-f]{1,16} {2,}(?P<frame>[^\n]{1,300})$",
    re.MULTILINE,
)
# Messages that native code prints before it aborts.
_NATIVE_ERRORS = (
    *("terminate called after throwing", "what(): ", "CUDA error: "),
    *("Assertion ", "corrupted ", "double free", "free(): ", "Check failed: "),
)
_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout|failure detected by "
    r"watchdog|Exception \(either an error or timeout\) detected by watchdog"
    r"|ProcessGroupNCCL's watchdog got stuck|To avoid data inconsistency, we "
    r"are taking the entire process down"
)
# Errors of a worker that lost its peer.
_LOST_PEER = re.compile(
    r"Connection (?:closed|reset) by peer|NCCL communicator was aborted|"
    r"ncclRemoteError|RayActorError|ActorDiedError|ActorUnavailableError|"
    r"NodeDiedError|OwnerDiedError|WorkerCrashedError|remote process exited|"
    r"Broken pipe|recvValue failed|Failed to recv, got 0 bytes|"
    r"socket timeout|DistStoreError"
)
_ERROR_LINE = re.compile(
    r"^(?P<error>(?:[A-Za-z_][\w]{0,60}\.){0,8}[A-Za-z_]\w{0,80}"
    r"(?:Error|Exception|Exit|Interrupt|Warning)\b(?::[^\n]{0,400})?)$",
    re.MULTILINE,
)
_TRACEBACK_FRAME = re.compile(
    r'^ {2}File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9}), in '
    r"(?P<function>[^\n]{1,200})$",
    re.MULTILINE,
)


@attrs.frozen(kw_only=True)
class LogTail:
    """
    Crash details from the end of a worker's error log.

    Attributes:
        signal: The signal, such as ``"SIGSEGV"``.

        time: When the signal arrived, in seconds since the epoch.

        error: The message before a crash, or the last line of a traceback.

        python_frames: The Python stack, innermost first.

        native_frames: The native stack, as the log shows it.

        is_watchdog: Whether torch's watchdog reports a timeout.

        has_lost_peer: Whether an error reports a lost peer.

        lines: The last lines.
    """

    signal: str | None = None
    time: float | None = None
    error: str | None = None
    python_frames: tuple[Location, ...] = ()
    native_frames: tuple[str, ...] = ()
    is_watchdog: bool = False
    has_lost_peer: bool = False
    lines: tuple[str, ...] = ()


def read_log_tail(parts: Sequence[LogPart]) -> str:
    """
    Read the end of a log.

    Args:
        parts: Its files, oldest first.

    Returns:
        At most the last 64 KiB, without control characters; ``""`` if no file
        can be read.
    """
    text = b""
    for part in reversed(parts):
        if len(text) >= _TAIL_BYTES:
            break
        try:
            text = read_tail(part.path, _TAIL_BYTES - len(text)) + text
        except (OSError, ValueError):  # rotated meanwhile, or no ordinary file
            continue
    return decode_log(text)


def parse_log_tail(text: str) -> LogTail:
    """
    Parse crash details from the end of a worker's error log.

    Args:
        text: The end of the log.
    """
    lines = [x for x in text.splitlines() if x.strip() and x[0] != ":"]
    received, fatal = (
        _find_signal(_RAY_SIGNAL, text),
        _find_last(_PYTHON_FATAL, text),
    )
    signal = received["name"] if received else None
    if signal is None and fatal is not None:
        signal = _FATAL_SIGNALS.get(fatal["what"], "SIGFPE")
    begins = [x.start() for x in (received, fatal) if x]
    crash = text[min(begins) :] if begins else ""
    errors = (
        [x for x in lines if any(word in x for word in _NATIVE_ERRORS)]
        if signal
        else _ERROR_LINE.findall(text[-_TRACEBACK_BYTES:])
    )
    return LogTail(
        signal=signal,
        time=float(received["time"]) if received else None,
        error=clean(errors[-1], limit=400) if errors else None,
        python_frames=_faulthandler_frames(crash)
        if signal
        else _traceback_frames(text),
        native_frames=tuple(
            clean(x["frame"]) for x in _NATIVE_FRAME.finditer(crash)
        )[:_MOST_FRAMES],
        is_watchdog=_WATCHDOG.search(text) is not None,
        has_lost_peer=_LOST_PEER.search(text) is not None,
        lines=tuple(clean(x, limit=400) for x in lines[-_LAST_LINES:]),
    )


def _find_signal(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """
    Return the first report of the last signal.

    Ray reports each signal twice.
    """
    found = list(pattern.finditer(text))
    return next((x for x in found if x[0] == found[-1][0]), None)


def _find_last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return found[-1] if found else None


def _faulthandler_frames(text: str) -> tuple[Location, ...]:
    # An empty line ends the stack of the current thread.
    begin = text.find("most recent call first")
    if begin < 0:
        return ()

    stack = text[begin:].split("\n\n", 1)[0].split("\nThread 0x", 1)[0]
    found = list(_FAULTHANDLER_FRAME.finditer(stack))[:_MOST_FRAMES]
    return tuple(map(_make_location, found))


def _traceback_frames(text: str) -> tuple[Location, ...]:
    begin = text.rfind("Traceback (most recent call last)")
    begin = max(begin, text.rfind("Exception raised in creation task"))
    if begin < 0:
        return ()

    found = list(_TRACEBACK_FRAME.finditer(text, begin))[-_MOST_FRAMES:]
    return tuple(map(_make_location, reversed(found)))


def _make_location(found: re.Match[str]) -> Location:
    return Location(
        function=clean(found["function"]),
        file=clean(found["file"], limit=500),
        line=int(found["line"]),
    )
