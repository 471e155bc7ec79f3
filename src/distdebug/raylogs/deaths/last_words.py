"""
What did a worker print last, and what killed it as its own words tell?
"""

from __future__ import annotations

import re

from collections.abc import Sequence

import attrs

from ..._lines import read_tail
from ..._text import clean
from ...findings import Location
from ..model import LogPart
from .scan import decoded


__all__ = ["LastWords", "hear", "read_end"]

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
