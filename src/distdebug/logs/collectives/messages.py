"""
Parse log lines of watchdog, Gloo, NCCL, and the TCP store into records.

The forms of the watchdog changed with nearly every torch release: numbers of
elements came in 2.2, the rank before the line in 2.3, times and groups in 2.4,
names of groups in 2.5, one sentence instead of two in 2.6, and the last
started work in 2.13.  Other accelerators print the same about ``WorkXCCL`` and
the like.  Source of the forms: ``ProcessGroupNCCL.cpp`` and ``TraceUtils.h``.
"""

from __future__ import annotations

import re

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..._text import clean
from ..rules import LOST_PEER
from .model import (
    INTEGER,
    BarrierFailure,
    DesyncReport,
    DumpSignal,
    FingerPrint,
    FingerPrintMismatch,
    GlooError,
    GroupMember,
    Heartbeat,
    LineContext,
    LogRecord,
    NcclCall,
    NcclInit,
    NcclNote,
    StoreTimeout,
    WorkStatus,
    WorkTimeout,
    loosen_spaces,
    normalize_op,
    parse_integer,
)


class _Form(NamedTuple):
    """
    One form of a message.

    Attributes:
        record: What it becomes.

        literal: A text in it, without which the pattern is not tried.

        pattern: Named groups are attributes of the record.

        kind: The ``kind`` of the record, if it has one.
    """

    record: type[LogRecord]
    literal: str
    pattern: re.Pattern[str]
    kind: str = ""

    def parse(self, context: LineContext, found: re.Match[str]) -> LogRecord:
        """
        Make the record of a match.
        """
        kind = {"kind": self.kind} if self.kind else {}
        fields = context.fields_at(found.start())
        return self.record(**fields | kind | _parse_groups(found))


def _form(
    record: type[LogRecord], literal: str, pattern: str, kind: str = ""
) -> _Form:
    return _Form(record, literal, re.compile(loosen_spaces(pattern)), kind)


def _parse_seq(text: str) -> int | None:
    seq = parse_integer(text)
    return seq if seq is not None and seq >= 0 else None


_DURATION = re.compile(r"(-?\d{1,20})\s*(s\b|seconds)?")


def _parse_duration(text: str) -> float | None:
    """
    Parse ``30 seconds``, ``30 s``, or milliseconds with or without a unit.
    """
    digits, unit = _DURATION.findall(text)[0]
    number = parse_integer(digits)
    return None if number is None else number / (1 if unit else 1000)


def _parse_members(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(x) for x in text.split(",") if x.strip()}))


def _parse_address(text: str) -> str:
    host, comma, port = text.strip().partition(",")
    return clean(f"{host.strip()}:{port.strip()}" if comma else text)


def _parse_text(text: str) -> str:
    return clean(text[:300])


# How each named group is parsed; as a whole number if it is not here.
_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "seq": _parse_seq,
    "failed": _parse_seq,
    "op": normalize_op,
    "timeout": _parse_duration,
    "ran": _parse_duration,
    "seconds": _parse_duration,
    "blocking": bool,
    "members": _parse_members,
    "absent": _parse_members,
    "address": _parse_address,
    "keys": clean,
    "reason": _parse_text,
    "text": _parse_text,
    "host": str,
    "comm": str,
    "dtype": str,
    "number": lambda text: int(text, 16),
    "is_complete": lambda text: text == "COMPLETE",
}


def _parse_groups(found: re.Match[str]) -> dict[str, Any]:
    return {
        name: _PARSERS.get(name, parse_integer)(text)
        for name, text in found.groupdict().items()
        if text is not None
    }


_MEMBER_LIST = r"\[(?P<members>[\d,\s]{1,200000})\]"
# These may come several times in a line.
_FORMS = (
    _form(
        WorkTimeout,
        "OpType=",
        rf"Work\w{{1,12}}\((?: SeqNum=(?P<seq>{INTEGER}),)?"
        r" OpType=(?P<op>\w{1,60})"
        r"(?:, TensorShape=\[[\d, ]{0,400}\])?"
        rf"(?:, NumelIn=(?P<numel_in>{INTEGER}))?"
        rf"(?:, NumelOut=(?P<numel_out>{INTEGER}))?"
        rf"(?:, Timeout\(ms\)=(?P<timeout>{INTEGER}))?\)"
        rf"(?: ran for (?P<ran>{INTEGER}) milliseconds)?"
        r"(?P<blocking> timed out in blocking wait)?"
        r"(?! raised the following async exception)",
    ),
    _form(
        DesyncReport,
        "join",
        _MEMBER_LIST
        + r" joined but didn't finish collective #(?P<seq>\d{1,19})",
        "joined",
    ),
    _form(
        DesyncReport,
        "join",
        _MEMBER_LIST + r" finished collective #(?P<seq>\d{1,19}),"
        r" but didn't join collective",
        "finished",
    ),
    _form(
        DesyncReport,
        "join",
        r"ranks " + _MEMBER_LIST + r" are the lagging ranks[^\n]{0,80}?"
        r"(?:They)? never joined any collectives",
        "absent",
    ),
    _form(
        BarrierFailure,
        "onitored",
        r"Ranks? (?P<absent>\d[\d,\s]{0,100000}?) failed to pass "
        r"monitoredBarrier in (?P<timeout>\d{1,12} ms)",
    ),
    _form(
        BarrierFailure,
        "onitored",
        r"Rank (?P<absent>\d{1,7}) timed out in monitoredBarrier after "
        r"(?P<timeout>\d{1,12} ms)",
    ),
    _form(
        BarrierFailure,
        "onitored",
        r"Rank (?P<group_rank>\d{1,7}) successfully reached monitoredBarrier",
    ),
)
# Of these, the first form of a kind that is in a line has the most detail.
_SINGLE_FORMS = (
    _form(
        GroupMember,
        "initialization",
        r"ProcessGroup\w{2,12} initialization options: size: (?P<size>\d{1,7}),"
        r" global rank: (?P<rank>\d{1,7})",
    ),
    _form(
        Heartbeat,
        "stuck",
        r"watchdog got stuck for (?P<seconds>\d{1,9} seconds)",
    ),
    _form(Heartbeat, "Heartbeat", r"Heartbeat monitor timed out"),
    _form(
        StoreTimeout,
        "clients",
        r"Timed out after (?P<timeout>\d{1,9} seconds) waiting for clients\."
        r" (?P<joined>\d{1,7})/(?P<expected>\d{1,7}) clients joined",
        "clients",
    ),
    _form(
        StoreTimeout,
        "client",
        r"client socket has timed out after (?P<timeout>\d{1,12}(?: ?(?:ms|s)\b)?)"
        r"[^\n(]{0,40}? to connect to \((?P<address>[^,)\n]{1,250}, \d{1,5})\)",
        "connect",
    ),
    _form(
        StoreTimeout,
        "validate",
        r"TCP client failed to connect/validate to host"
        r" (?P<address>[^\s]{1,250}) - timed out \(try=\d{1,9},"
        r" timeout=(?P<timeout>\d{1,12} ?ms)\)",
        "connect",
    ),
    _form(
        StoreTimeout,
        "client",
        r"Error: The client socket has failed to connect to any network address of"
        r" \((?P<address>[^,)\n]{1,250}, \d{1,5})\)",
        "connect",
    ),
    _form(
        StoreTimeout,
        "connect()",
        r"connect\(\) timed out\."
        r"(?: Original timeout was (?P<timeout>\d{1,12} ms))?",
        "connect",
    ),
    _form(
        StoreTimeout,
        "server",
        r"(?P<reason>Error: The server socket has failed to listen on any local"
        r" network)",
        "listen",
    ),
    _form(
        StoreTimeout,
        "barrier",
        r"in store based barrier on rank: (?P<group_rank>\d{1,7}),? for key:"
        r" (?P<keys>[^\s(]{1,200}) \(world_size=(?P<expected>\d{1,7}),"
        r" (?:num_workers_joined|worker_count)=(?P<joined>\d{1,7})",
        "barrier",
    ),
    # A node that missed one deadline may still join later.
    _Form(
        StoreTimeout,
        "Rendezvous",
        re.compile(r"(?P<reason>(?<!of type )\bRendezvousTimeoutError\b)"),
        "rendezvous",
    ),
    _form(
        StoreTimeout,
        "communicator",
        r"\[(?:rank)?(?P<group_rank>\d{1,7})\] is setting up \w{1,8} communicator"
        r" and retrieving \w{1,10}UniqueId from \[\d{1,7}\]"
        r"[^\n]{0,200}?(?:got error: (?P<reason>[^\n]{1,300}))?$",
        "unique_id",
    ),
    _form(
        StoreTimeout,
        "wait",
        r"wait timeout after (?P<timeout>\d{1,12} ?ms)"
        r"(?:, keys: (?P<keys>[^\s,]{1,300}))?",
        "keys",
    ),
    _form(
        StoreTimeout,
        "Socket",
        r"(?P<reason>\b\w{3,30}Error: Socket Timeout\b)",
        "keys",
    ),
)


def read_records(context: LineContext) -> Iterator[LogRecord]:
    """
    Parse all messages in the part of a line that one rank printed.
    """
    text = context.text
    for form in _FORMS:
        if form.literal in text:
            for found in form.pattern.finditer(text):
                yield form.parse(context, found)
    seen = set()
    for form in _SINGLE_FORMS:
        key = (form.record, form.kind)
        if form.literal not in text or key in seen:
            continue
        match = form.pattern.search(text)
        is_consequence = form.kind == "keys" and (
            (StoreTimeout, "unique_id") in seen
        )
        if match and not is_consequence:
            seen.add(key)
            yield form.parse(context, match)
    yield from _read_progress(context)
    yield from _read_mismatches(context)
    yield from _read_gloo(context)
    yield from _read_nccl(context)


_PROGRESS = (
    rf"ast enqueued (?:\w{{1,8}} )?work:? (?P<enqueued>{INTEGER})"
    r"(?: \([^)\n]{0,80}\))?"
    rf"(?:, last started (?:\w{{1,8}} )?work:? (?P<started>{INTEGER})"
    r"(?: \([^)\n]{0,80}\))?)?"
    rf", last completed (?:\w{{1,8}} )?work:? (?P<completed>{INTEGER})"
)
# A place that prints how far a rank got is read by the first form that fits.
_PROGRESS_FORMS = (
    _form(
        DumpSignal,
        "signal",
        r"dump signal due to a collective timeout from "
        r"(?:this local rank|rank (?P<sender>\d{1,7}))"
        r"[^\n]{0,200}?[Ll]" + _PROGRESS,
    ),
    _form(
        WorkStatus,
        "work",
        r"(?:detected by watchdog at work|Timeout at \w{1,8} work)"
        rf"(?: sequence id)?: (?P<failed>{INTEGER})"
        r"(?:(?:,| PG status:|\.)? [Ll]" + _PROGRESS + r")?",
    ),
    _form(WorkStatus, "status", r"PG status: l" + _PROGRESS),
)


def _read_progress(context: LineContext) -> Iterator[WorkStatus]:
    seen_ends = set()
    for form in _PROGRESS_FORMS:
        if form.literal not in context.text:
            continue
        for found in form.pattern.finditer(context.text):
            if found.end() not in seen_ends:
                seen_ends.add(found.end())
                fields = _parse_groups(found) | _progress_fields(found)
                yield form.record(  # type: ignore[misc]
                    **context.fields_at(found.start()) | fields
                )


def _progress_fields(found: re.Match[str]) -> dict[str, int | None]:
    """
    Return how far a rank got, without impossible numbers.
    """
    enqueued, started, completed = (
        parse_integer(found[x]) for x in ("enqueued", "started", "completed")
    )
    if enqueued is None or (completed or 0) > enqueued:
        completed = None
    if started is not None and started < max(completed or 0, 1):
        # Without timing, torch never updates the last started work.
        started = None
    return {
        # torch prints -1 before the first call.
        "enqueued": None if enqueued is None else max(enqueued, 0),
        "started": started,
        "completed": None if completed is None else max(completed, 0),
    }


# Calls without tensors may be printed without a comma.
_FINGERPRINT = (
    r"Rank (?P<rank{n}>\d{{1,7}}) is running collective:"
    r" CollectiveFingerPrint\((?: SequenceNumber=(?P<seq{n}>\d{{1,19}}),?)?"
    r" OpType=(?P<op{n}>\w{{1,40}}?)"
    r"(?:, TensorShape=(?P<shape{n}>\[[\d, ]{{0,400}}\]))?"
    r"(?:, TensorDtypes=(?P<dtype{n}>[\w ,]{{1,200}}?))?"
    r"(?:,? TensorDeviceTypes=|\))"
)
_MISMATCH = re.compile(
    loosen_spaces(
        _FINGERPRINT.format(n=1)
        + r"[^\n]{0,1200}?but "
        + _FINGERPRINT.format(n=2)
    )
    .replace(r"[\d,\s{0,9}]", r"[\d,\s]")
    .replace(r"[\w\s{0,9},]", r"[\w\s,]")
)


def _read_mismatches(context: LineContext) -> Iterator[FingerPrintMismatch]:
    if "FingerPrint" not in context.text:
        return
    for found in _MISMATCH.finditer(context.text):
        own, other = (_parse_fingerprint(found, n) for n in (1, 2))
        fields = context.fields_at(found.start()) | {"group_rank": own.rank}
        yield FingerPrintMismatch(**fields, own=own, other=other)


def _parse_fingerprint(found: re.Match[str], n: int) -> FingerPrint:
    shape, dtype = found[f"shape{n}"], found[f"dtype{n}"]
    return FingerPrint(
        rank=int(found[f"rank{n}"]),
        op=normalize_op(found[f"op{n}"]),
        seq=int(found[f"seq{n}"] or 0),
        shape=None if shape is None else re.sub(r"\s", "", shape),
        dtype=None if dtype is None else dtype.strip(),
        is_own=n == 1,
    )


_GLOO_SOURCE = re.compile(
    r"gloo/(?:\w{1,20}/){1,6}\w{1,40}\.(?:cc|h):\d{1,6}\]"
)
_GLOO_FULL_MESH = re.compile(loosen_spaces(r"Gloo connectFullMesh failed"))
_GLOO_TIMEOUT = re.compile(
    loosen_spaces(
        r"Timed out waiting (?P<timeout>\d{1,12} ?ms) for (?:send|recv)"
    )
)
_GLOO_KINDS = (
    (re.compile(r"timed out|timeout", re.IGNORECASE), "timeout"),
    (LOST_PEER, "closed"),
    (re.compile(r"connect|no route", re.IGNORECASE), "connect"),
)
_PEER_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%\w]{2,80}\](?::\d{1,5})?)")


def _read_gloo(context: LineContext) -> Iterator[GlooError]:
    """
    Parse errors of Gloo: timeouts, closed connections, failed connects.
    """
    text = context.text
    source = _GLOO_SOURCE.search(text) if "loo" in text else None
    if source is None and _GLOO_FULL_MESH.search(text) is None:
        return
    message = text[source.end() if source else 0 :][:600]
    kind = next((k for x, k in _GLOO_KINDS if x.search(message)), None)
    if source is None or "connectFullMesh" in text:
        kind = "connect"
    if kind is None and "enforce fail" not in text:
        return
    timeout = _GLOO_TIMEOUT.search(message)
    peer = _PEER_ADDRESS.search(message)
    yield GlooError(
        **context.fields_at(source.start() if source else 0),
        kind=kind or "other",  # type: ignore[arg-type]
        timeout=_parse_duration(timeout["timeout"]) if timeout else None,
        peer=clean(peer[1]) if peer else "",
    )


_NCCL_PREFIX = re.compile(
    r"(?P<host>[\w.-]{1,200}):(?P<pid>\d{1,10}):\d{1,10} \[\d{1,4}\]"
    r"[^\n]{0,80}?\b(?:NCCL|RCCL) (?P<level>INFO|WARN|VERSION)\b:?\s{0,4}"
)
_NCCL_VERSION = re.compile(
    r"(?:NCCL|RCCL) version ?:? ?(?P<text>\d[\w.+-]{1,60})"
)
_NCCL_LOST = re.compile(
    loosen_spaces(
        r"(?P<text>NCCL error[^\n]{0,300}?remote process exited or there was a)"
    )
)
# Of the lines with the prefix of NCCL, each is read by the first that fits.
_NCCL_FORMS = (
    _form(
        NcclInit,
        "Init",
        r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<member>\d{1,7}) n[rR]anks"
        r" (?P<size>\d{1,7})[^\n]{0,300}? - Init"
        r" (?P<is_complete>START|COMPLETE)",
    ),
    _Form(
        NcclCall,
        "opCount",
        re.compile(
            r"(?P<op>[A-Z]\w{1,30}): opCount (?P<number>[0-9a-f]{1,16}) "
            r"[^\n]{0,120}?count (?P<elements>\d{1,19}) datatype (?P<dtype>\d{1,3})"
            r"[^\n]{0,60}?comm (?P<comm>0x[0-9a-f]{1,16})"
            r"(?: \[nranks=(?P<size>\d{1,7})\])?"
        ),
    ),
    _Form(
        NcclNote,
        "Using",
        re.compile(
            r"(?:Bootstrap ?: Using|NET/Socket ?: Using)\s{0,4}"
            r"(?P<text>(?:\[\d{1,3}\])?[\w.@-]{1,64}:[0-9a-fA-F.:\[\]%]{2,60}<\d{1,5}>"
            r"[^\n]{0,400})"
        ),
        "interface",
    ),
    _Form(
        NcclNote,
        "Using",
        re.compile(r"Using network (?P<text>[^\n]{1,80})"),
        "network",
    ),
)
_NCCL_IDS = re.compile(
    r"busId (?P<bus>[0-9a-f]{1,16})|commId (?P<comm_id>0x[0-9a-f]{1,16})"
)


def _read_nccl(context: LineContext) -> Iterator[LogRecord]:
    """
    Parse lines of NCCL: communicators, networks, versions, warnings, calls.
    """
    text = context.text
    prefix = _NCCL_PREFIX.search(text)
    process: dict[str, Any] = (
        {"host": prefix["host"], "pid": int(prefix["pid"])} if prefix else {}
    )
    if found := _NCCL_VERSION.search(text):
        fields = context.fields_at(found.start()) | process
        yield NcclNote(**fields, kind="version", text=found["text"])
    if found := _NCCL_LOST.search(text):
        fields = context.fields_at(found.start())
        yield NcclNote(**fields, kind="lost", **_parse_groups(found))
    if prefix is None:
        return

    message = text[prefix.end() :]
    fields = context.fields_at(prefix.start()) | process
    if prefix["level"] == "WARN":
        warning = clean(message[:600], limit=300)
        yield NcclNote(**fields, kind="warning", text=warning)
        return
    for form in _NCCL_FORMS:
        if form.literal in message and (found := form.pattern.search(message)):
            if form.record is NcclInit:
                for ids in _NCCL_IDS.finditer(message):
                    fields |= {k: v for k, v in ids.groupdict().items() if v}
            if form.kind:
                fields["kind"] = form.kind
            yield form.record(**fields | _parse_groups(found))
            return
