"""
Find OOM kills, Xid errors, and other events in the kernel log of a node.
"""

from __future__ import annotations

import os
import re
import time

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import attrs

from .._proc import find_tool, run_tool
from .._rules import read_toml
from .._text import clean, reason_of, time_text
from ..causes import Cause
from ..findings import Confidence, Evidence, Finding
from ..logs import parse_time, read_tail
from ..processes import whole_number
from .gpu import Gpu, parse_bus_id
from .judgements import ranks_of


_MAX_RECORD_BYTES = 1 << 13
_MAX_RECORDS = 1 << 20
# Syslog files are long, and only their end is recent.
_TAIL_BYTES = 1 << 23
_SYSLOG_FILES = ("kern.log", "messages", "syslog")
_MAX_TEXT = 400

_LEVEL_PREFIX = re.compile(r"<\d{1,4}>")
_BOOT_TIME_PREFIX = re.compile(r"\[ {0,12}(\d{1,12}\.\d{1,9})\] ?")
_CTIME_PREFIX = re.compile(r"\[[A-Z][a-z]{2} [^\]]{12,30}\] ?")
_JOURNAL_PREFIX = re.compile(r"(\d{9,11}\.\d{1,9}) \S{1,255} kernel: ?")
_SYSLOG_PREFIX = re.compile(
    r"(?:\S{19,40}|[A-Z][a-z]{2} {1,2}\d{1,2} [\d:.]{8,15}) "
    r"\S{1,255} kernel(?:\[\d{1,9}\])?: ?"
)


@attrs.frozen(kw_only=True)
class KernelLine:
    """
    One kernel message.

    Attributes:
        text: The cleaned message without time and host.

        time: Seconds since the epoch; ``None`` if unknown.
    """

    text: str
    time: float | None = None


@attrs.frozen(kw_only=True)
class KernelLog:
    """
    Messages of the kernel.

    Attributes:
        lines: The selected messages, in order.

        source: The device, tool, or folder that was read.

        begins: Time of the first message that the log still holds, selected
            or not, in seconds since the epoch; ``None`` if unknown.
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
    Read the kernel log from the first source that is readable.

    Sources are ``/dev/kmsg``, ``dmesg``, ``journalctl``, and syslog files.

    Args:
        timeout_s: Limit in seconds.

        keep: Selects lines; all by default.

        device: The device file of kernel messages.

        folder: The folder of syslog files.

    Raises:
        OSError: No source is readable; the message has the error of each.
    """
    deadline = time.monotonic() + timeout_s
    journal = ("journalctl", "-k", "-b", "-q", "--no-pager", "-o")
    sources: dict[str, Callable[[], list[str]]] = {
        device: lambda: _read_device(device, deadline),
        "dmesg": lambda: _run_log_tool(deadline, "dmesg"),
        "journalctl": lambda: _run_log_tool(deadline, *journal, "short-unix"),
        folder: lambda: _read_syslog(folder),
    }
    errors = []
    for name, read in sources.items():
        try:
            lines = read()
        except (OSError, ValueError) as exc:
            errors.append(f"{name}: {clean(reason_of(exc), limit=80)}")
        else:
            first = parse_kernel_lines(lines[:1])
            return KernelLog(
                lines=parse_kernel_lines(lines, keep=keep),
                source=name,
                begins=first[0].time if first else None,
            )
    raise OSError("; ".join(errors))


def parse_kernel_lines(
    lines: Iterable[str],
    *,
    booted: float | None = None,
    now: float | None = None,
    keep: Callable[[str], bool] | None = None,
) -> tuple[KernelLine, ...]:
    """
    Parse lines of ``dmesg``, the journal, and syslog.

    Args:
        booted: Boot time in seconds since the epoch; by default that of this
            machine.

        now: Reference time for dates without a year.

        keep: Selects lines; all by default.
    """
    start = boot_time() if booted is None else booted
    selected = (x for x in lines if x.strip() and (keep is None or keep(x)))
    return tuple(_parse_line(line, start, now) for line in selected)


def _parse_line(line: str, booted: float, now: float | None) -> KernelLine:
    text = _LEVEL_PREFIX.sub("", line[: 2 * _MAX_TEXT], count=1).strip()
    timestamp: float | None = None
    if match := _JOURNAL_PREFIX.match(text):
        timestamp = float(match[1])
    elif match := (_CTIME_PREFIX.match(text) or _SYSLOG_PREFIX.match(text)):
        timestamp = parse_time(match[0], now=now)
    text = text[match.end() :] if match else text
    # Syslog may print the kernel's time after its own.
    if match := _BOOT_TIME_PREFIX.match(text):
        timestamp = (
            booted + float(match[1]) if timestamp is None else timestamp
        )
        text = text[match.end() :]
    return KernelLine(text=clean(text, limit=_MAX_TEXT), time=timestamp)


def boot_time() -> float:
    """
    Return when this machine booted, in seconds since the epoch.
    """
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _read_device(device: str, deadline: float) -> list[str]:
    fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return list(_read_records(fd, deadline))
    finally:
        os.close(fd)


def _read_records(fd: int, deadline: float) -> Iterator[str]:
    for _ in range(_MAX_RECORDS):
        if time.monotonic() > deadline:
            return
        try:
            record = os.read(fd, _MAX_RECORD_BYTES)
        except BlockingIOError:
            return
        except BrokenPipeError:  # old records were overwritten
            continue
        if not record:
            return
        # "6,339,5140900,-;text"; the lines after it describe the device.
        head, _, text = record.decode("utf-8", "replace").partition(";")
        parts = head.split(",")
        microseconds = whole_number(parts[2]) if len(parts) > 2 else None
        if microseconds is not None:
            yield f"[{microseconds / 1e6:.6f}] {text.partition(chr(10))[0]}"


def _run_log_tool(deadline: float, name: str, *options: str) -> list[str]:
    tool = find_tool(name)
    if tool is None:
        msg = "not installed"
        raise FileNotFoundError(msg)

    left = max(deadline - time.monotonic(), 0.1)
    result = run_tool([tool, *options], timeout_s=left)
    if result.status is None:
        msg = f"not done within {left:.1f} s"
        raise TimeoutError(msg)
    if result.status != 0 or not result.output.strip():
        raise OSError(result.complaint or "prints nothing")
    return result.output.splitlines()


def _read_syslog(folder: str) -> list[str]:
    reason: Exception = FileNotFoundError("no file of syslog")
    for name in _SYSLOG_FILES:
        try:
            data = read_tail(Path(folder, name), _TAIL_BYTES)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as exc:
            reason = exc
            continue
        lines = data.decode("utf-8", "replace").splitlines()
        return [x for x in lines if " kernel" in x[:300]]
    raise reason


# Bounds the memory for a log that repeats itself.
_MAX_EVENTS = 256


@attrs.frozen(kw_only=True)
class EventRule:
    """
    A rule of ``kernel.toml`` that recognizes one kind of kernel event.

    Attributes:
        name: The name of the rule.

        words: The prefilter: a line holds one of these words, in lower case.

        pattern: The regular expression.  Its groups name the process
            (``pid``, ``name``), the PCI bus ID (``bus``), the ``device``, and
            the ``xid``.

        cause: The cause.

        says: A sentence, with the groups in braces.

        remedy: What to do about it.

        confidence: The confidence.

        over: Matches a later line that reports recovery of the same
            ``device``.

        lasting: Whether the event still matters if it is older than the job.

        ours: Whether the event matters for processes of the job only.
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
    A kernel event; repeated ones are counted.

    Attributes:
        rule: The name of the rule.

        time: The last occurrence in seconds since the epoch; ``None`` if
            unknown.

        count: The number of occurrences.

        pid: The process ID, in the namespace of the node.

        name: The name of the process or its cgroup.

        bus_id: The PCI bus ID of the device.

        device: The disk, interface, or server.

        xid: The Xid number.

        seconds: The duration, if the line has one.

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

    @property
    def meaning(self) -> Xid | None:
        """
        Return the meaning of the Xid; ``None`` if it is another event.

        It is of kind ``"unknown"`` if ``xids.toml`` does not have the number.
        """
        is_xid = self.rule == "xid"
        return _load_xids().get(self.xid or 0, Xid()) if is_xid else None


def is_suspicious(line: str) -> bool:
    """
    Return whether a line may report a problem or its recovery.

    This is a prefilter: it never rejects a line that a rule matches.
    """
    lower = line.lower()
    return any(word in lower for word in _prefilter_words())


def find_events(lines: Iterable[KernelLine]) -> tuple[KernelEvent, ...]:
    """
    Find events in kernel messages, without those that recovered.

    Args:
        lines: The messages, in order.

    Returns:
        One event per rule and process or device; the last 256 if there are
        more.
    """
    events: dict[tuple[object, ...], KernelEvent] = {}
    for line in lines:
        if not is_suspicious(line.text):
            continue
        _drop_recovered(events, line.text)
        event = _match_event(line)
        if event is None:
            continue
        key = (event.rule, event.pid, event.bus_id, event.device, event.xid)
        previous = events.pop(key, None)
        if previous is not None:
            event = _merge_events(previous, event)
        events[key] = event
        if len(events) > _MAX_EVENTS:
            del events[next(iter(events))]
    return tuple(events.values())


@cache
def load_event_rules() -> dict[str, EventRule]:
    """
    Return the rules of ``kernel.toml`` by name, in the order of matching.
    """
    data = read_toml(Path(__file__).with_name("kernel.toml"))
    rules = (EventRule(**rule) for rule in data["rule"])
    return {rule.name: rule for rule in rules}


@cache
def _prefilter_words() -> frozenset[str]:
    words = {
        word for rule in load_event_rules().values() for word in rule.words
    }
    return frozenset({*words, "link is up", "link up", "connection restored"})


def _match_event(line: KernelLine) -> KernelEvent | None:
    lower = line.text.lower()
    for rule in load_event_rules().values():
        has_word = any(word in lower for word in rule.words)
        match = rule.pattern.search(line.text) if has_word else None
        if match is None:
            continue
        groups = {k: v for k, v in match.groupdict().items() if v}
        pid = groups.get("pid") or groups.get("victim")
        return KernelEvent(
            rule=rule.name,
            time=line.time,
            pid=int(pid) if pid else None,
            name=groups.get("name") or groups.get("task", ""),
            bus_id=groups.get("bus") or "",
            device=groups.get("device") or groups.get("other", ""),
            xid=int(groups["xid"]) if "xid" in groups else None,
            seconds=groups.get("seconds", ""),
            quote=line.text,
        )
    return None


def _merge_events(previous: KernelEvent, event: KernelEvent) -> KernelEvent:
    # An OOM kill has two lines for one process, one of them without a name.
    is_same = event.pid is not None and event.rule == "out of memory"
    return attrs.evolve(
        event,
        count=previous.count + (not is_same),
        name=event.name or previous.name,
        time=previous.time if event.time is None else event.time,
    )


def _drop_recovered(
    events: dict[tuple[object, ...], KernelEvent], text: str
) -> None:
    for rule in load_event_rules().values():
        recovery = rule.over.search(text) if rule.over else None
        if recovery is not None:
            key = (rule.name, None, "", recovery["device"], None)
            events.pop(key, None)


XidKind = Literal["program", "hardware", "driver", "result", "note", "unknown"]


@attrs.frozen(kw_only=True)
class Xid:
    """
    The meaning of an Xid number: an entry of ``xids.toml``.

    Attributes:
        kind: The origin: ``"program"`` (the GPU is healthy), ``"hardware"``,
            ``"driver"``, ``"result"`` (of another error), ``"note"`` (no
            action), or ``"unknown"``.

        means: What happened, as a clause.

        action: What to do.
    """

    kind: XidKind = "unknown"
    means: str = "an error without a public meaning"
    action: str = "look the number up in NVIDIA's catalog of Xid errors"


@cache
def _load_xids() -> dict[int, Xid]:
    data = read_toml(Path(__file__).with_name("xids.toml"))
    return {
        int(number): Xid(**{"action": data["action"][entry["kind"]]} | entry)
        for number, entry in data["xid"].items()
    }


# Events shortly before the first worker started may concern the job.
_BEFORE_JOB_S = 60.0
# These hold if the start of the job is unknown.
_RECENT_S = 600.0
_SAME_FAULT_S = 2.0
_WINDOW_S = 86_400.0
_JOB_NAMES = (
    *("python", "pt_", "ray::", "torchrun", "vllm", "sglang", "uvicorn"),
)
_GPU_RULES = frozenset({"xid", "gpu lost", "gpu start", "sxid", "pci express"})


@attrs.frozen(kw_only=True)
class JobContext:
    """
    The node and the job that events are rated for.

    Attributes:
        host: The node.

        now: The time, in seconds since the epoch.

        since: Start of the job, in seconds since the epoch; ``None`` if
            unknown.

        ranks: Ranks by process ID, in the namespace of the node.

        pids: The processes of the job.

        gpus: The GPUs of the node.

        knows_all: Whether *pids* holds all processes that the job had on the
            node, also those that have ended.
    """

    host: str = ""
    now: float
    since: float | None = None
    ranks: Mapping[int, int] = attrs.field(factory=dict)
    pids: Collection[int] = frozenset()
    gpus: tuple[Gpu, ...] = ()
    knows_all: bool = False

    @property
    def begin(self) -> float:
        """
        Return the time before which events do not concern the job.
        """
        if self.since is None:
            return self.now - _WINDOW_S
        return self.since - _BEFORE_JOB_S


def check_kernel_events(
    events: Iterable[KernelEvent], context: JobContext
) -> Iterator[Finding]:
    """
    Yield findings about the events that concern a job.
    """
    events = tuple(events)
    foreign = [x for x in events if _is_of_other_program(x, context)]
    for event in events:
        if any(_is_same_fault(event, x) for x in foreign):
            continue
        confidence = _rate_event(event, context)
        if confidence is not None:
            yield _event_finding(event, confidence, context)


def _is_of_other_program(event: KernelEvent, context: JobContext) -> bool:
    """
    Return whether a GPU reports a fault of a program that is not of the job.
    """
    return (
        context.knows_all
        and _is_program_fault(event)
        and event.pid is not None
        and event.pid not in context.pids
    )


def _is_program_fault(event: KernelEvent) -> bool:
    return event.meaning is not None and event.meaning.kind == "program"


def _is_same_fault(event: KernelEvent, other: KernelEvent) -> bool:
    """
    Return whether two events report one fault of a program on one GPU.

    Of several lines about a fault, only the last names the process.
    """
    if event is other:
        return True
    if not _is_program_fault(event) or event.pid is not None:
        return False
    return event.bus_id == other.bus_id and (
        event.time is not None
        and other.time is not None
        and abs(event.time - other.time) <= _SAME_FAULT_S
    )


def _event_finding(
    event: KernelEvent, confidence: Confidence, context: JobContext
) -> Finding:
    rule, xid = load_event_rules()[event.rule], event.meaning
    bus_id = parse_bus_id(event.bus_id)
    gpus = (x for x in context.gpus if parse_bus_id(x.bus_id) == bus_id)
    gpu = next(gpus, None) if bus_id else None
    # A PCI error at the bus ID of a GPU is a GPU fault.
    is_fault = gpu is not None and event.rule in _GPU_RULES
    pids = [event.pid] if event.pid is not None else []
    if gpu is not None and not pids:
        pids = [x.pid for x in gpu.processes]
    evidence = Evidence(
        kind="kernel",
        source=context.host,
        location="kernel log",
        quote=event.quote,
    )
    return Finding(
        cause=Cause.GPU_FAULT if is_fault else rule.cause,
        ranks=tuple(sorted(ranks_of(pids, context.ranks))),
        summary=_summary(event, gpu, context),
        confidence=confidence,
        remedy=xid.action if xid else rule.remedy,
        evidence=(evidence,),
    )


def _rate_event(event: KernelEvent, context: JobContext) -> Confidence | None:
    """
    Return the confidence of an event, or None if it does not matter.
    """
    rule = load_event_rules()[event.rule]
    is_known = event.pid in context.ranks or event.pid in context.pids
    # A dead process is not in the list of running ones.
    is_of_job = (
        is_known
        or event.rule == "xid"
        or event.name.lower().startswith(_JOB_NAMES)
    )
    if rule.ours and not is_of_job:
        return None

    kind = event.meaning.kind if event.meaning else ""
    is_lasting = rule.lasting and kind not in {"program", "result", "note"}
    begin = context.begin
    if rule.ours and not is_known and context.since is not None:
        begin = context.since  # it only has the name of a worker
    is_old = event.time is not None and event.time < begin
    if is_old and not is_lasting:
        return None
    if event.time is None or is_old or kind in {"note", "result"}:
        return "possible"
    if event.pid in context.ranks:
        return "certain"
    is_recent = (
        context.since is not None or context.now - event.time < _RECENT_S
    )
    is_other_process = event.pid is not None and not (is_recent and is_of_job)
    is_sure = (is_recent or is_lasting) and not is_other_process
    return rule.confidence if is_sure else "possible"


def _summary(event: KernelEvent, gpu: Gpu | None, context: JobContext) -> str:
    summary = load_event_rules()[event.rule].says.format(
        pid=event.pid,
        name=event.name or "unknown",
        device=event.device or "unknown",
        seconds=event.seconds,
        xid=event.xid,
    )
    if event.meaning:
        summary += f": {event.meaning.means}"
    if event.bus_id:
        summary += f" on {f'GPU {gpu.index}' if gpu else event.bus_id}"
    if event.count > 1:
        summary += f", {event.count} times"
    if event.time is None:
        return summary
    if context.since is not None and event.time < context.begin:
        ago = time_text(context.since - event.time)
        return f"{summary}, {ago} before the job began"
    return f"{summary}, {time_text(max(context.now - event.time, 0.0))} ago"
