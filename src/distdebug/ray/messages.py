"""
Parse records, memory notes, and crashes in Ray's logs, and look up meanings.

The logs of Ray and the output of a driver report the same ends in the same
words, so there is one table of these, ``meanings.toml`` beside this file.

A record begins with the time in brackets and may span many lines.  Only blocks
that contain a search word are split into lines, so most of a log passes at the
speed of reading.
"""

from __future__ import annotations

import json
import os
import re

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from .._rules import read_toml
from .._search import search_pattern
from .._text import clean, without_controls
from ..causes import Cause
from ..findings import Confidence, Evidence, Location
from ..logs import (
    TRACEBACK_HEADER,
    TracebackReader,
    explain_error,
    open_log,
    parse_frames,
    parse_time,
    read_blocks,
    read_tail,
    text_pattern,
)
from .sessions import LogPart


DeathKind = Literal[
    "native_crash",
    "collective_timeout",
    "killed_or_exited",
    "exit_code",
    "terminated",
    "init_error",
    "ray_oom",
    "host_oom",
    "node_died",
    "owner_died",
    "job_ended",
    "intended",
]
FailureKind = Literal[
    "task_error",
    "init_error",
    "actor_died",
    "actor_unavailable",
    "owner_died",
    "worker_crashed",
    "out_of_memory",
    "node_died",
    "start_timeout",
    "not_started",
]


@attrs.frozen(kw_only=True)
class Meaning:
    """
    What one kind of death or failure means.

    Attributes:
        label: The name in tables.

        says: What happened.  In a driver's output a sentence with the fields
            of the failure in braces, else the words behind the name of who
            died.

        follows: The same if it follows from another death.

        cause: The cause of a finding, unless an error names a more exact one.

        confidence: How certain the kind is.

        remedy: What to do about it.
    """

    label: str = ""
    says: str = ""
    follows: str = "after another one, or complaining of it"
    cause: Cause = attrs.field(converter=Cause, default=Cause.ACTOR_DIED)
    confidence: Confidence = "likely"
    remedy: str = ""


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(
        pattern.replace("{lost_peer}", text_pattern("lost_peer"))
    )


_TABLE = read_toml(Path(__file__).with_name("meanings.toml"))
DEATHS: Mapping[DeathKind, Meaning] = {
    kind: Meaning(**row) for kind, row in _TABLE["death"].items()
}
_OTHERWISE = _TABLE["failure"]["actor_died"]
FAILURES: Mapping[FailureKind, Meaning] = {
    kind: Meaning(**_OTHERWISE | _TABLE["failure"].get(kind, {}))
    for kind in get_args(FailureKind)
}
#: Of workers that did not register in time, as the logs report it.
NOT_STARTED = Meaning(**_TABLE["not_started"])
#: Of an exception that only reports that another rank did not answer.
WAITED_IN_VAIN = Meaning(**_TABLE["waited_in_vain"])
#: Texts of failures in a driver's output; the first match counts.
FAILURE_TEXTS: Mapping[str, FailureKind] = dict(_TABLE["driver"]["texts"])
#: Failures that a component of Ray reports in a single line.
ONE_LINE_FAILURES = tuple(_TABLE["driver"]["one_line"])
#: Other texts, by what they mean.
PATTERNS = {name: _compile(x) for name, x in _TABLE["pattern"].items()}
_ERROR_CAUSES = [
    (_compile(row["pattern"]), Cause(row["cause"])) for row in _TABLE["error"]
]


def find_error_cause(error: str, otherwise: Cause) -> Cause:
    """
    Return the cause that the message of an exception names.

    Args:
        error: The class of the exception and its message.

        otherwise: The cause if the message names none.
    """
    for pattern, cause in _ERROR_CAUSES:
        if pattern.search(error):
            return cause
    rule = explain_error(error)
    is_known = rule is not None and not rule.is_harmless
    return (
        rule.cause
        if rule and is_known and _says_why(rule.cause)
        else otherwise
    )


def _says_why(cause: Cause) -> bool:
    """
    Return whether a cause says why an exception was raised.
    """
    is_end = cause.ends_process and cause is not Cause.RANK_CRASHED
    return is_end or cause is Cause.LOSS_NOT_FINITE


def label_process(
    name: str, rank: int | None, pid: int | None, place: str | None
) -> str:
    """
    Return a label such as ``"Trainer (rank 3, pid 4711, node-7)"``.
    """
    known = [
        "" if rank is None else f"rank {rank}",
        "" if pid is None else f"pid {pid}",
        place,
    ]
    shown = ", ".join(filter(None, known))
    return f"{name} ({shown})" if shown else name


_MOST_LINES = 120
_RECORD_START = re.compile(rb"\[(?:20\d\d-|state-dump)")
_MOST_QUOTE = 600
_MOST_RECORD = 1 << 16
_MOST_JSON = 1 << 18
_PLAIN = bytes((9, 10, *range(32, 127)))


@attrs.frozen(kw_only=True)
class Record:
    """
    One record of a Ray log.

    Attributes:
        text: Its lines, without control characters.

        number: The line number of its first line, from 1; 0 if unknown.

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
        location = f"line {self.number}" if self.number else ""
        return quote_log(self.source, location, self.text)


def quote_log(
    source: str | os.PathLike[str] | None, location: str, text: str
) -> Evidence:
    """
    Return a text of a log, at most 600 characters of it, as evidence.
    """
    return Evidence(
        kind="log",
        source=os.fspath(source or ""),
        location=location,
        quote=text[:_MOST_QUOTE],
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
    lines: list[bytes] = []
    first = 0
    for number, line in chain(_scan_lines(path, words), [(0, None)]):
        if line is not None and not _RECORD_START.match(line):
            if lines and len(lines) < _MOST_LINES:
                lines.append(line)
            continue
        if lines:
            text = decode_log(b"\n".join(lines)[:_MOST_RECORD]).rstrip()
            yield Record(text=text, number=first, source=os.fspath(path))
        is_match = line is not None and any(x in line for x in words)
        lines, first = ([line] if line and is_match else []), number


def decode_log(data: bytes) -> str:
    """
    Decode bytes of a log and remove control characters.
    """
    text = data.decode("utf-8", "replace")
    # Most logs have no others, and this is much faster than the cleaning.
    return without_controls(text) if data.translate(None, _PLAIN) else text


def read_json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Yield the JSON objects in the lines of a log, with their line numbers.

    Raises:
        OSError: The log cannot be read.

        ValueError: It is not an ordinary file.
    """
    with open_log(path) as file:
        number = 0
        while line := file.readline(_MOST_JSON):
            number += 1
            # Cheaper than an exception for most lines that are not JSON.
            if not line.lstrip().startswith(b"{"):
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                yield number, found


def _scan_lines(
    path: Path, words: Sequence[bytes]
) -> Iterator[tuple[int, bytes | None]]:
    """
    Yield numbered lines; ``None`` for a block that can be skipped.
    """
    is_open = False  # the record may continue in the next block
    for block in read_blocks(path):
        has_word = any(word in block.data for word in words)
        if has_word or is_open:
            lines = block.data.removesuffix(b"\n").split(b"\n")
            yield from enumerate(lines, block.number)
        else:
            yield block.number, None
        is_open = has_word


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


# How Ray describes a worker in events, and in the output of a driver.
_WORKER_FIELDS = {
    "worker_id": re.compile(r"Worker ID: ([0-9a-f]{56})"),
    "node_id": re.compile(
        r"(?:[Nn]ode (?:ID|id)|\(IP: [^,\s]{1,60}, ID): ([0-9a-f]{56})"
    ),
    "ip": re.compile(
        r"(?:Worker IP address: |and address: |\(IP: )([^,\s]{1,60})"
    ),
    "pid": re.compile(r"Worker PID: (\d{1,10})"),
    "exit_type": re.compile(r"[Ww]orker exit type: (\w{1,40})"),
    "detail": re.compile(r"[Ww]orker exit detail: (.*)", re.DOTALL),
}


def search_fields(
    text: str, patterns: Mapping[str, re.Pattern[str]] = _WORKER_FIELDS
) -> dict[str, str]:
    """
    Search a text for several patterns.

    Args:
        patterns: The patterns by name; by default those of the fields in which
            Ray describes a worker.

    Returns:
        The first group of each match, by name.
    """
    found = ((name, x.search(text)) for name, x in patterns.items())
    return {name: x[1].strip() for name, x in found if x}


_GB = 1 << 30
# Ray >= 2.56: "pid=1, actual memory used=1.29GB, worker ID=…", one per line;
# older: "pid=1, memory used=1.29GB) … Ray killed this worker (ID: …)".
_MEMORY_PROCESS = re.compile(
    r"\bpid=(?P<pid>\d{1,10}), (?:actual )?memory used="
    r"(?P<size>[\d.]{1,12})GB"
)
_MEMORY_WORKER = re.compile(
    r"(?:worker ID=|killed this worker \(ID: )(?P<id>[0-9a-f]{56})"
)
_MOST_DISTANCE = 400
_TOP_USER = re.compile(
    r"^(?:Top \d{1,3} memory users: )?(?P<pid>\d{1,10})[\t ]{1,9}"
    r"(?P<size>\d{1,6}\.\d{1,3})[\t ]{1,9}(?P<command>\S[^\n]{0,200})$",
    re.MULTILINE,
)


def parse_memory_notes(text: str) -> Iterator[MemoryUse]:
    """
    Parse the process memory sizes in Ray's out-of-memory message.

    Args:
        text: The record, of several lines.

    Yields:
        The listed processes; those that Ray killed have a worker id.
    """
    node_id = search_fields(text).get("node_id")
    for found in _MEMORY_PROCESS.finditer(text):
        worker = _MEMORY_WORKER.search(
            text, found.end(), found.end() + _MOST_DISTANCE
        )
        yield MemoryUse(
            pid=int(found["pid"]),
            size=_parse_size(found["size"]),
            node_id=node_id,
            worker_id=worker["id"] if worker else None,
        )
    if "memory users" in text:
        for found in _TOP_USER.finditer(text):
            yield MemoryUse(
                pid=int(found["pid"]),
                size=_parse_size(found["size"]),
                node_id=node_id,
                command=found["command"],
            )


def _parse_size(text: str) -> int:
    try:
        return int(float(text) * _GB)
    except ValueError:  # such as 1.2.3
        return 0


_TAIL_BYTES = 1 << 16
_LAST_LINES, _LAST_BYTES = 20, 1 << 12
# A traceback that ends a process is the last thing in its log.
_TRACEBACK_BYTES = 1 << 14
_MOST_FRAMES = 40

# Crash lines of Ray's signal handler and of Python's faulthandler.
RAY_SIGNAL = re.compile(
    r"\*\*\* (?P<name>SIG[A-Z]{2,10}) received at time=(?P<time>\d{1,11})"
)
_FATAL_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
}
_PYTHON_FATAL = re.compile(
    rf"Fatal Python error: (?P<what>{'|'.join(_FATAL_SIGNALS)})"
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

        lines: The last lines.
    """

    signal: str | None = None
    time: float | None = None
    error: str | None = None
    python_frames: tuple[Location, ...] = ()
    native_frames: tuple[str, ...] = ()
    is_watchdog: bool = False
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
    received = [*RAY_SIGNAL.finditer(text)]
    # Ray reports each signal twice.
    received = [x for x in received if x[0] == received[-1][0]][:1]
    fatal = [*_PYTHON_FATAL.finditer(text)][-1:]
    signals = [
        *(x["name"] for x in received),
        *(_FATAL_SIGNALS[x["what"]] for x in fatal),
    ]
    crash = ""
    if signals:
        crash = text[min(x.start() for x in (*received, *fatal)) :]
        errors = [
            line
            for line in _text_lines(text)
            if any(word in line for word in _NATIVE_ERRORS)
        ]
        frames = _faulthandler_frames(crash)
    else:
        errors, frames = _read_last_traceback(text[-_TRACEBACK_BYTES:])
    return LogTail(
        signal=signals[0] if signals else None,
        time=float(received[0]["time"]) if received else None,
        error=clean(errors[-1], limit=400) if errors else None,
        python_frames=frames,
        native_frames=tuple(
            clean(x["frame"]) for x in _NATIVE_FRAME.finditer(crash)
        )[:_MOST_FRAMES],
        is_watchdog=search_pattern(PATTERNS["watchdog"], text) is not None,
        lines=_last_lines(text),
    )


def _text_lines(text: str) -> list[str]:
    """
    Return the lines of a worker's log that its code printed.
    """
    return [x for x in text.splitlines() if x.strip() and x[0] != ":"]


def _last_lines(text: str) -> tuple[str, ...]:
    lines = _text_lines(text[-_LAST_BYTES:])
    if len(lines) <= _LAST_LINES:  # they are long
        lines = _text_lines(text)
    return tuple(clean(x, limit=400) for x in lines[-_LAST_LINES:])


def _faulthandler_frames(text: str) -> tuple[Location, ...]:
    # An empty line ends the stack of the current thread.
    _, _, stack = text.partition("most recent call first")
    stack = stack.split("\n\n", 1)[0].split("\nThread 0x", 1)[0]
    return tuple(parse_frames(stack)[:_MOST_FRAMES])


def _read_last_traceback(
    text: str,
) -> tuple[list[str], tuple[Location, ...]]:
    """
    Return the exceptions of the last traceback, and its innermost frames.
    """
    begin = max(
        text.rfind(TRACEBACK_HEADER),
        text.rfind("Exception raised in creation task"),
    )
    if begin < 0:
        return [], ()
    reader = TracebackReader("")
    for line in text[begin:].split("\n")[1:]:
        if not reader.is_over:
            reader.read(line)
    frames = parse_frames(text[begin:])[-_MOST_FRAMES:]
    return [*map(str, reader.errors)], tuple(reversed(frames))
