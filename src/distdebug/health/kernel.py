"""
What did the kernel of a node say about it?
"""

from __future__ import annotations

import os
import re
import time
import tomllib

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import attrs

from .._text import clean, reason_of, time_text
from ..capture import find_tool, run_tool
from ..findings import Cause, Confidence, Evidence, Finding
from ..logs import parse_time, read_tail
from ..processes import whole_number
from .gpu import Gpu, bus_key


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


# Of a line that comes again and again, the last ones.
_MOST = 256


@attrs.frozen(kw_only=True)
class EventRule:
    """
    How does the kernel say this, and what does it mean?

    Attributes:
        name: What the rule is called.

        words: A line has one of them, in small letters.

        pattern: What is searched for in the line.  Its groups tell the
            process (``pid``, ``name``), the place on the PCI bus (``bus``),
            the ``device``, and the number of the ``xid``.

        cause: What is wrong.

        says: One sentence about it, with the groups in braces.

        remedy: What to do about it.

        confidence: How sure this is.

        over: What is searched for in a later line that takes it back, for the
            same ``device``.

        lasting: Whether it is of interest also if it happened before the job.

        ours: Whether it is of interest only for processes of the job.
    """

    name: str
    words: tuple[str, ...] = attrs.field(converter=tuple)
    pattern: re.Pattern[str] = attrs.field(converter=re.compile)
    cause: Cause = attrs.field(converter=Cause)
    says: str
    remedy: str
    confidence: Confidence = "likely"
    over: re.Pattern[str] | None = attrs.field(
        converter=attrs.converters.optional(re.compile), default=None
    )
    lasting: bool = False
    ours: bool = False


@attrs.frozen(kw_only=True)
class KernelEvent:
    """
    One kind of trouble that the kernel told of.

    Attributes:
        rule: The name of the rule that knows it.

        time: When it was told last, in seconds since the epoch; ``None`` if
            unknown.

        count: How often.

        pid: The process concerned, as the node numbers it.

        name: What the kernel calls that process, or its control group.

        bus_id: The place of the device on the PCI bus.

        device: The disk, interface, or server.

        xid: The number of an Xid.

        seconds: For how long, if it tells.

        quote: The line.
    """

    rule: str
    time: float | None = None
    count: int = 1
    pid: int | None = None
    name: str = ""
    bus_id: str = ""
    device: str = ""
    xid: int | None = None
    seconds: str = ""
    quote: str = ""


def is_suspicious(line: str) -> bool:
    """
    Whether a line may tell of trouble, or that it is over.
    """
    small = line.lower()
    return any(word in small for word in _words())


def find_events(lines: Iterable[KernelLine]) -> tuple[KernelEvent, ...]:
    """
    Find what tells of trouble, and is not over.

    Args:
        lines: What the kernel said, in order.

    Returns:
        One event for each thing that happened to each process or device, the
        last ones if there are very many.
    """
    found: dict[tuple[object, ...], KernelEvent] = {}
    for line in lines:
        if not is_suspicious(line.text):
            continue
        _forget(found, line.text)
        event = _event(line)
        if event is None:
            continue
        key = (event.rule, event.pid, event.bus_id, event.device, event.xid)
        before = found.pop(key, None)
        if before is not None:
            event = _joined(before, event)
        found[key] = event
        if len(found) > _MOST:
            del found[next(iter(found))]
    return tuple(found.values())


@cache
def event_rules() -> dict[str, EventRule]:
    """
    The rules by name, in the order in which they are tried.
    """
    text = Path(__file__).with_name("kernel.toml").read_text("utf-8")
    rules = (EventRule(**rule) for rule in tomllib.loads(text)["rule"])
    return {rule.name: rule for rule in rules}


@cache
def _words() -> frozenset[str]:
    words = {word for rule in event_rules().values() for word in rule.words}
    return frozenset({*words, "link is up", "link up", "connection restored"})


def _event(line: KernelLine) -> KernelEvent | None:
    small = line.text.lower()
    for rule in event_rules().values():
        if not any(word in small for word in rule.words):
            continue
        found = rule.pattern.search(line.text)
        if found is None:
            continue
        told = {k: v for k, v in found.groupdict().items() if v}
        pid = told.get("pid") or told.get("victim")
        return KernelEvent(
            rule=rule.name,
            time=line.time,
            pid=int(pid) if pid else None,
            name=told.get("name") or told.get("task", ""),
            bus_id=told.get("bus") or "",
            device=told.get("device") or told.get("other", ""),
            xid=int(told["xid"]) if "xid" in told else None,
            seconds=told.get("seconds", ""),
            quote=line.text,
        )
    return None


def _joined(before: KernelEvent, event: KernelEvent) -> KernelEvent:
    # Two lines tell of one process that was killed, and one has no name.
    is_same = event.pid is not None and event.rule == "out of memory"
    return attrs.evolve(
        event,
        count=before.count + (not is_same),
        name=event.name or before.name,
        time=before.time if event.time is None else event.time,
    )


def _forget(found: dict[tuple[object, ...], KernelEvent], text: str) -> None:
    for rule in event_rules().values():
        over = rule.over.search(text) if rule.over else None
        if over is not None:
            key = (rule.name, None, "", over["device"], None)
            found.pop(key, None)


XidKind = Literal["program", "hardware", "driver", "result", "note", "unknown"]


@attrs.frozen(kw_only=True)
class Xid:
    """
    What is known of one number.

    Attributes:
        number: The number.

        kind: Whose fault it is: ``"program"`` (the GPU is well),
            ``"hardware"``, ``"driver"``, ``"result"`` (of another error),
            ``"note"`` (nothing to do now), or ``"unknown"``.

        means: What happened, as a clause.

        action: What to do.
    """

    number: int
    kind: XidKind
    means: str
    action: str


def explain_xid(number: int) -> Xid:
    """
    Look a number up.

    Args:
        number: The number behind ``Xid (PCI:…):`` in the kernel log.

    Returns:
        What it means; of kind ``"unknown"`` if it is not in the table.
    """
    known = _table().get(number)
    return known or Xid(
        number=number,
        kind="unknown",
        means="an error without a public meaning",
        action="look the number up in NVIDIA's catalog of Xid errors",
    )


@cache
def _table() -> dict[int, Xid]:
    text = Path(__file__).with_name("xids.toml").read_text("utf-8")
    data = tomllib.loads(text)
    return {
        int(number): Xid(
            number=int(number),
            kind=entry["kind"],
            means=entry["means"],
            action=entry.get("action", data["action"][entry["kind"]]),
        )
        for number, entry in data["xid"].items()
    }


# So long before the first worker started, something may have to do with it.
_MARGIN_S = 60.0
# Without knowing when the job began.
_RECENT_S = 600.0
_WINDOW_S = 86_400.0
_PYTHON = ("python", "pt_", "ray::", "torchrun", "vllm", "sglang", "uvicorn")
_GPU_RULES = frozenset({"xid", "gpu lost", "gpu start", "sxid", "pci express"})


@attrs.frozen(kw_only=True)
class Circumstances:
    """
    On whose behalf is a node looked at?

    Attributes:
        host: The node.

        now: The time, in seconds since the epoch.

        since: When the job began; ``None`` if unknown.

        ranks: The rank of each process that is known, by its number on the
            node.

        pids: The processes of the job.

        gpus: The GPUs of the node.
    """

    host: str = ""
    now: float
    since: float | None = None
    ranks: Mapping[int, int] = attrs.field(factory=dict)
    pids: Collection[int] = frozenset()
    gpus: tuple[Gpu, ...] = ()

    @property
    def begin(self) -> float:
        """
        What is older did not happen to the job.
        """
        if self.since is None:
            return self.now - _WINDOW_S
        return self.since - _MARGIN_S


def judge_events(
    events: Iterable[KernelEvent], about: Circumstances
) -> tuple[Finding, ...]:
    """
    Tell what the kernel's messages mean for a job.

    Args:
        events: What the kernel told of.

        about: The node and the job.

    Returns:
        What was found, nothing for what is over or none of the job's
        business.
    """
    found = (_finding(event, about) for event in events)
    return tuple(finding for finding in found if finding is not None)


def _finding(event: KernelEvent, about: Circumstances) -> Finding | None:
    rule = event_rules()[event.rule]
    xid = None if event.rule != "xid" else explain_xid(event.xid or 0)
    confidence = _weigh(rule, event, xid, about)
    if confidence is None:
        return None

    gpu = _gpu(event, about)
    ranks = _ranks(event, gpu, about)
    return Finding(
        cause=_cause(rule, event, gpu),
        ranks=ranks,
        summary=_summary(rule, event, xid, gpu, about),
        confidence=confidence,
        remedy=xid.action if xid else rule.remedy,
        evidence=(
            Evidence(
                kind="kernel",
                source=about.host,
                location="kernel log",
                quote=event.quote,
            ),
        ),
    )


def _weigh(
    rule: EventRule,
    event: KernelEvent,
    xid: Xid | None,
    about: Circumstances,
) -> Confidence | None:
    """
    How sure is it that this matters; `None` if it does not.
    """
    is_rank = event.pid is not None and event.pid in about.ranks
    is_ours = is_rank or _is_ours(event, about)
    if rule.ours and not is_ours:
        return None

    is_lasting = rule.lasting and (xid is None or xid.kind in _BROKEN)
    is_before = event.time is not None and event.time < about.begin
    if is_before and not is_lasting:
        return None
    if event.time is None or is_before or _is_note(xid):
        return "possible"
    if is_rank:
        return "certain"
    is_now = about.since is not None or about.now - event.time < _RECENT_S
    is_other = event.pid is not None and not (is_now and is_ours)
    is_sure = (is_now or is_lasting) and not is_other
    return rule.confidence if is_sure else "possible"


def _is_note(xid: Xid | None) -> bool:
    return xid is not None and xid.kind in {"note", "result"}


_BROKEN = frozenset({"hardware", "driver", "unknown"})


def _is_ours(event: KernelEvent, about: Circumstances) -> bool:
    if event.pid in about.pids:
        return True
    # Who is dead is in no list of those that run.
    return event.rule == "xid" or event.name.lower().startswith(_PYTHON)


def _gpu(event: KernelEvent, about: Circumstances) -> Gpu | None:
    place = bus_key(event.bus_id) if event.bus_id else None
    gpus = (x for x in about.gpus if place and bus_key(x.bus_id) == place)
    return next(gpus, None)


def _cause(rule: EventRule, event: KernelEvent, gpu: Gpu | None) -> Cause:
    # An error of the bus is one of the GPU if that is what sits there.
    if gpu is not None and event.rule in _GPU_RULES:
        return Cause.GPU_FAULT
    return rule.cause


def _ranks(
    event: KernelEvent, gpu: Gpu | None, about: Circumstances
) -> tuple[int, ...]:
    if event.pid is not None:
        return (about.ranks[event.pid],) if event.pid in about.ranks else ()
    users = [] if gpu is None else [x.pid for x in gpu.processes]
    return tuple(sorted({about.ranks[x] for x in users if x in about.ranks}))


def _summary(
    rule: EventRule,
    event: KernelEvent,
    xid: Xid | None,
    gpu: Gpu | None,
    about: Circumstances,
) -> str:
    says = rule.says.format(
        pid=event.pid,
        name=event.name or "unknown",
        device=event.device or "unknown",
        seconds=event.seconds,
        xid=event.xid,
    )
    if xid is not None:
        says = f"{says}: {xid.means}"
    place = f" on GPU {gpu.index}" if gpu else ""
    if event.bus_id and not gpu:
        place = f" on {event.bus_id}"
    where = f"{about.host}: " if about.host else ""
    often = f", {event.count} times" if event.count > 1 else ""
    return f"{where}{says}{place}{often}{_when(event, about)}"


def _when(event: KernelEvent, about: Circumstances) -> str:
    if event.time is None:
        return ""
    if about.since is not None and event.time < about.begin:
        return f", {time_text(about.since - event.time)} before the job began"

    ago = max(about.now - event.time, 0.0)
    return f", {time_text(ago)} ago"
