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
from functools import cache
from typing import Any

import attrs

from ..._text import clean
from ..signatures import lost_peer, read_signatures
from .model import (
    RECORD_FIELDS,
    FingerPrint,
    FingerPrintMismatch,
    GlooError,
    LineContext,
    LogRecord,
    NcclInit,
    NcclNote,
    StoreTimeout,
    WorkStatus,
    loosen_spaces,
    normalize_op,
    parse_integer,
)


def _record_type(name: str) -> type[LogRecord]:
    return next(x for x in RECORD_FIELDS if x.__name__ == name)


@attrs.frozen(kw_only=True)
class MessageForm:
    """
    One form of a message.

    Attributes:
        record: The name of the class of records that it becomes.

        word: A text in it, without which the pattern is not tried.

        pattern: Named groups are attributes of the record.  A blank matches
            any number of blanks, or none.

        exact: Whether a blank in the pattern is one blank.

        kind: The ``kind`` of the record, if it has one.

        example: A line that it matches.
    """

    record: type[LogRecord] = attrs.field(converter=_record_type)
    word: str
    exact: bool = False
    pattern: re.Pattern[str]
    kind: str = ""
    example: str = ""

    @classmethod
    def from_table(cls, row: Mapping[str, Any]) -> MessageForm:
        """
        Make a form of a table of ``signatures.toml``.
        """
        text = row["pattern"]
        pattern = text if row.get("exact") else loosen_spaces(text)
        return cls(**{**row, "pattern": re.compile(pattern)})

    def parse(self, context: LineContext, found: re.Match[str]) -> LogRecord:
        """
        Make the record of a match.
        """
        kind = {"kind": self.kind} if self.kind else {}
        fields = context.fields_at(found.start())
        return self.record(**fields | kind | _parse_groups(found))


@cache
def read_forms(section: str) -> tuple[MessageForm, ...]:
    """
    Return the forms ``[[message.section]]`` of ``signatures.toml``.
    """
    rows = read_signatures()["message"][section]
    return tuple(MessageForm.from_table(row) for row in rows)


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


def read_records(context: LineContext) -> Iterator[LogRecord]:
    """
    Parse all messages in the part of a line that one rank printed.
    """
    text = context.text
    for form in read_forms("each"):
        if form.word in text:
            for found in form.pattern.finditer(text):
                yield form.parse(context, found)
    seen = set()
    for form in read_forms("first"):
        key = (form.record, form.kind)
        if form.word not in text or key in seen:
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


def _read_progress(context: LineContext) -> Iterator[WorkStatus]:
    seen_ends = set()
    for form in read_forms("progress"):
        if form.word not in context.text:
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
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_NOT_CONNECTED = re.compile(r"connect|no route", re.IGNORECASE)
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
    kinds = {
        "timeout": _TIMED_OUT,
        "closed": lost_peer(),
        "connect": _NOT_CONNECTED,
    }
    kind = next((k for k, x in kinds.items() if x.search(message)), None)
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
    for form in read_forms("nccl"):
        if form.word in message and (found := form.pattern.search(message)):
            if form.record is NcclInit:
                for ids in _NCCL_IDS.finditer(message):
                    fields |= {k: v for k, v in ids.groupdict().items() if v}
            if form.kind:
                fields["kind"] = form.kind
            yield form.record(**fields | _parse_groups(found))
            return
