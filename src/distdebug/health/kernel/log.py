"""
What did the kernel of this node say since it was started?

Where that may be read differs: ``/dev/kmsg``, ``dmesg``, the journal, and the
files of syslog are tried in this order.  In a container often none is allowed.
"""

from __future__ import annotations

import os
import re
import time

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs

from ..._lines import parse_time, read_tail
from ..._text import clean, reason_of
from ...capture.tool import find_tool, run_tool
from ...processes.procfs import whole_number


__all__ = ["KernelLine", "KernelLog", "parse_kernel_lines", "read_kernel_log"]

_RECORD = 1 << 13
_MOST_RECORDS = 1 << 20
# Files of syslog are long, and only their end is of now.
_TAIL = 1 << 23
_FILES = ("kern.log", "messages", "syslog")
_LONGEST = 400

_LEVEL = re.compile(r"<\d{1,4}>")
_SINCE_BOOT = re.compile(r"\[ {0,12}(\d{1,12}\.\d{1,9})\] ?")
_CTIME = re.compile(r"\[[A-Z][a-z]{2} [^\]]{12,30}\] ?")
_EPOCH = re.compile(r"(\d{9,11}\.\d{1,9}) \S{1,255} kernel: ?")
_SYSLOG = re.compile(
    r"(?:\S{19,40}|[A-Z][a-z]{2} {1,2}\d{1,2} [\d:.]{8,15}) "
    r"\S{1,255} kernel(?:\[\d{1,9}\])?: ?"
)


@attrs.frozen(kw_only=True)
class KernelLine:
    """
    One message.

    Attributes:
        text: What the kernel said, cleaned, without time and host.

        time: When, in seconds since the epoch; ``None`` if that is unknown.
    """

    text: str
    time: float | None = None


@attrs.frozen(kw_only=True)
class KernelLog:
    """
    What the kernel said.

    Attributes:
        lines: Its messages in order, as far as they were wanted.

        source: Where they were read.

        begins: When the first that is left was said, wanted or not, in seconds
            since the epoch; ``None`` if that is unknown.
    """

    lines: tuple[KernelLine, ...] = ()
    source: str = ""
    begins: float | None = None


def read_kernel_log(
    *,
    timeout_s: float = 5.0,
    keep: Callable[[str], bool] | None = None,
    device: str = "/dev/kmsg",
    folder: str = "/var/log",
) -> KernelLog:
    """
    Read the log of the kernel.

    Args:
        timeout_s: How long it may take, in seconds.

        keep: Which lines to keep; all by default.

        device: Where the kernel gives its messages.

        folder: Where syslog keeps its files.

    Returns:
        The messages.

    Raises:
        OSError: None of the ways is allowed; it says what each said.
    """
    deadline = time.monotonic() + timeout_s
    complaints = []
    ways: tuple[tuple[str, Callable[[], list[str]]], ...] = (
        (device, lambda: _by_device(device, deadline)),
        ("dmesg", lambda: _by_tool(deadline, "dmesg")),
        (
            "journalctl",
            lambda: _by_tool(
                deadline,
                *("journalctl", "-k", "-b", "-q", "--no-pager"),
                *("-o", "short-unix"),
            ),
        ),
        (folder, lambda: _by_file(folder)),
    )
    for name, read in ways:
        try:
            lines = read()
        except (OSError, ValueError) as exc:
            why = reason_of(exc)
            complaints.append(f"{name}: {clean(why, limit=80)}")
        else:
            first = parse_kernel_lines(lines[:1])
            return KernelLog(
                lines=parse_kernel_lines(lines, keep=keep),
                source=name,
                begins=first[0].time if first else None,
            )
    raise OSError("; ".join(complaints))


def parse_kernel_lines(
    lines: Iterable[str],
    *,
    booted: float | None = None,
    now: float | None = None,
    keep: Callable[[str], bool] | None = None,
) -> tuple[KernelLine, ...]:
    """
    Understand lines as ``dmesg``, the journal, and syslog print them.

    Args:
        lines: The lines.

        booted: When the kernel was started, in seconds since the epoch; that
            of this machine by default.

        now: The time by which a year is chosen where none is told.

        keep: Which lines to keep; all by default.

    Returns:
        The messages in the same order.
    """
    since = _booted() if booted is None else booted
    kept = (x for x in lines if x.strip() and (keep is None or keep(x)))
    return tuple(_parse(line, since, now) for line in kept)


def _parse(line: str, booted: float, now: float | None) -> KernelLine:
    text = _LEVEL.sub("", line[: 2 * _LONGEST], count=1).strip()
    when: float | None = None
    if found := _EPOCH.match(text):
        when = float(found[1])
    elif found := (_CTIME.match(text) or _SYSLOG.match(text)):
        when = parse_time(found[0], now=now)
    text = text[found.end() :] if found else text
    # syslog may add the kernel's own time to that of its own.
    if found := _SINCE_BOOT.match(text):
        when = booted + float(found[1]) if when is None else when
        text = text[found.end() :]
    return KernelLine(text=clean(text, limit=_LONGEST), time=when)


def _booted() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _by_device(device: str, deadline: float) -> list[str]:
    fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return list(_records(fd, deadline))
    finally:
        os.close(fd)


def _records(fd: int, deadline: float) -> Iterator[str]:
    for _ in range(_MOST_RECORDS):
        if time.monotonic() > deadline:
            return
        try:
            record = os.read(fd, _RECORD)
        except BlockingIOError:
            return
        except BrokenPipeError:  # older ones were overwritten meanwhile
            continue
        if not record:
            return
        # "6,339,5140900,-;text", and what follows describes the device
        head, _, text = record.decode("utf-8", "replace").partition(";")
        parts = head.split(",")
        since = whole_number(parts[2]) if len(parts) > 2 else None
        if since is not None:
            yield f"[{since / 1e6:.6f}] {text.partition(chr(10))[0]}"


def _by_tool(deadline: float, name: str, *options: str) -> list[str]:
    tool = find_tool(name)
    if tool is None:
        msg = "not installed"
        raise FileNotFoundError(msg)

    left = max(deadline - time.monotonic(), 0.1)
    got = run_tool([tool, *options], timeout_s=left)
    if got.status is None:
        msg = f"not done within {left:.1f} s"
        raise TimeoutError(msg)
    if got.status != 0 or not got.output.strip():
        raise OSError(got.complaint or "prints nothing")
    return got.output.splitlines()


def _by_file(folder: str) -> list[str]:
    reason: Exception = FileNotFoundError("no file of syslog")
    for name in _FILES:
        try:
            data = read_tail(Path(folder, name), _TAIL)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as exc:
            reason = exc
            continue
        lines = data.decode("utf-8", "replace").splitlines()
        return [x for x in lines if " kernel" in x[:300]]
    raise reason
