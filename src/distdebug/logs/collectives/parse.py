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

from collections.abc import Callable, Iterator
from typing import Any, Literal

from ..._text import clean
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


_RANK_LIST = r"\[(?P<members>[\d,\s]{1,200000})\]"
_DESYNC_JOINED = re.compile(
    loosen_spaces(
        _RANK_LIST + r" joined but didn't finish collective #(?P<seq>\d{1,19})"
    )
)
_DESYNC_FINISHED = re.compile(
    loosen_spaces(
        _RANK_LIST + r" finished collective #(?P<seq>\d{1,19}),"
        r" but didn't join collective"
    )
)
_DESYNC_ABSENT = re.compile(
    loosen_spaces(
        r"ranks " + _RANK_LIST + r" are the lagging ranks[^\n]{0,80}?"
        r"(?:They)? never joined any collectives"
    )
)


def read_desync(context: LineContext, text: str) -> Iterator[DesyncReport]:
    """
    Parse the desync report of torch; *text* is the part of one rank.
    """
    if "collective" not in text or "join" not in text:
        return
    for kind, pattern in (
        ("joined", _DESYNC_JOINED),
        ("finished", _DESYNC_FINISHED),
        ("absent", _DESYNC_ABSENT),
    ):
        for match in pattern.finditer(text):
            members = {
                int(x) for x in match["members"].split(",") if x.strip()
            }
            seq = match.groupdict().get("seq")
            yield DesyncReport(
                **context.fields_at(text, match.start()),
                kind=kind,  # type: ignore[arg-type]
                members=tuple(sorted(members)),
                seq=int(seq) if seq else None,
            )


_WORK_TIMEOUT = re.compile(
    loosen_spaces(
        rf"Work\w{{1,12}}\( SeqNum=(?P<seq>{INTEGER}), OpType=(?P<op>\w{{1,60}})"
        rf"(?:, NumelIn=(?P<numel_in>{INTEGER}))?"
        rf"(?:, NumelOut=(?P<numel_out>{INTEGER}))?"
        rf"(?:, Timeout\(ms\)=(?P<timeout>{INTEGER}))?\)"
        rf"(?: ran for (?P<ran>{INTEGER}) milliseconds)?"
        r"(?P<blocking> timed out in blocking wait)?"
    )
)
_PROGRESS = loosen_spaces(
    rf"ast enqueued (?:\w{{1,8}} )?work:? (?P<enqueued>{INTEGER})"
    r"(?: \([^)\n]{0,80}\))?"
    rf"(?:, last started (?:\w{{1,8}} )?work:? (?P<started>{INTEGER})"
    r"(?: \([^)\n]{0,80}\))?)?"
    rf", last completed (?:\w{{1,8}} )?work:? (?P<completed>{INTEGER})"
)
_FAILED_STATUS = re.compile(
    loosen_spaces(
        r"(?:detected by watchdog at work|Timeout at \w{1,8} work)"
        rf"(?: sequence id)?: (?P<failed>{INTEGER})"
        r"(?:(?:,| PG status:|\.)? [Ll]" + _PROGRESS + r")?"
    )
)
_PG_STATUS = re.compile(loosen_spaces(r"PG status: l" + _PROGRESS))
_DUMP_SIGNAL = re.compile(
    loosen_spaces(
        r"dump signal due to a collective timeout from "
        r"(?:(?P<own>this local rank)|rank (?P<sender>\d{1,7}))"
        r"[^\n]{0,200}?[Ll]" + _PROGRESS
    )
)
_WATCHDOG_STUCK = re.compile(
    loosen_spaces(r"watchdog got stuck for (?P<seconds>\d{1,9}) seconds")
)
_MONITOR_TIMEOUT = re.compile(loosen_spaces(r"Heartbeat monitor timed out"))
_GROUP_OPTIONS = re.compile(
    loosen_spaces(
        r"ProcessGroup\w{2,12} initialization options: size: (?P<size>\d{1,7}),"
        r" global rank: (?P<rank>\d{1,7})"
    )
)


def read_watchdog(context: LineContext, text: str) -> Iterator[LogRecord]:
    """
    Parse timeouts, statuses, dump signals, and heartbeats of the watchdog, and
    groups that were created.
    """
    for match in _WORK_TIMEOUT.finditer(text):
        yield WorkTimeout(
            **context.fields_at(text, match.start()),
            seq=_parse_seq(match["seq"]),
            op=normalize_op(match["op"]),
            numel_in=parse_integer(match["numel_in"]),
            numel_out=parse_integer(match["numel_out"]),
            timeout=_parse_milliseconds(match["timeout"]),
            ran=_parse_milliseconds(match["ran"]),
            blocking=match["blocking"] is not None,
        )
    yield from _read_progress(context, text)
    yield from _read_heartbeat(context, text)
    yield from read_desync(context, text)
    if options := _GROUP_OPTIONS.search(text):
        fields = context.fields_at(text, options.start())
        yield GroupMember(
            **fields | {"rank": int(options["rank"])},
            size=int(options["size"]),
        )


def _read_progress(context: LineContext, text: str) -> Iterator[WorkStatus]:
    """
    Parse how far a rank got, once for each place that prints it.
    """
    seen_ends = set()
    for match in _DUMP_SIGNAL.finditer(text):
        seen_ends.add(match.end())
        sender = parse_integer(match["sender"])
        yield DumpSignal(
            **context.fields_at(text, match.start()),
            sender=sender,
            **_progress_fields(match),
        )
    for pattern in (_FAILED_STATUS, _PG_STATUS):
        for match in pattern.finditer(text):
            if match.end() not in seen_ends:
                seen_ends.add(match.end())
                failed = match.groupdict().get("failed")
                yield WorkStatus(
                    **context.fields_at(text, match.start()),
                    failed=_parse_seq(failed),
                    **_progress_fields(match),
                )


def _read_heartbeat(context: LineContext, text: str) -> Iterator[Heartbeat]:
    match = _WATCHDOG_STUCK.search(text)
    if match:
        seconds = float(match["seconds"])
        yield Heartbeat(
            **context.fields_at(text, match.start()), seconds=seconds
        )
    elif match := _MONITOR_TIMEOUT.search(text):
        yield Heartbeat(**context.fields_at(text, match.start()))


def _progress_fields(match: re.Match[str]) -> dict[str, Any]:
    """
    Return how far a rank got, without impossible numbers.
    """
    enqueued = parse_integer(match["enqueued"])
    completed = parse_integer(match["completed"])
    started = parse_integer(match["started"])
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


def _parse_seq(text: str | None) -> int | None:
    seq = parse_integer(text)
    return seq if seq is not None and seq >= 0 else None


def _parse_milliseconds(text: str | None) -> float | None:
    number = parse_integer(text)
    return None if number is None else number / 1000


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
_BARRIER_ABSENT = re.compile(
    loosen_spaces(
        r"Ranks? (?P<ranks>\d[\d,\s]{0,100000}?) failed to pass "
        r"monitoredBarrier in (?P<ms>\d{1,12}) ms"
    )
)
_BARRIER_REACHED = re.compile(
    loosen_spaces(
        r"Rank (?P<rank>\d{1,7}) successfully reached monitoredBarrier"
    )
)
_BARRIER_TIMEOUT = re.compile(
    loosen_spaces(
        r"Rank (?P<ranks>\d{1,7}) timed out in monitoredBarrier after "
        r"(?P<ms>\d{1,12}) ms"
    )
)


def read_debug_checks(context: LineContext, text: str) -> Iterator[LogRecord]:
    """
    Parse fingerprint mismatches and monitored barriers that failed
    (``TORCH_DISTRIBUTED_DEBUG=DETAIL``).
    """
    if "FingerPrint" in text:
        for match in _MISMATCH.finditer(text):
            own = _parse_fingerprint(match, 1)
            fields = context.fields_at(text, match.start()) | {
                "group_rank": own.rank
            }
            yield FingerPrintMismatch(
                **fields, own=own, other=_parse_fingerprint(match, 2)
            )
    if "onitored" not in text:
        return
    for pattern in (_BARRIER_ABSENT, _BARRIER_TIMEOUT):
        for match in pattern.finditer(text):
            ranks = {int(x) for x in match["ranks"].split(",") if x.strip()}
            yield BarrierFailure(
                **context.fields_at(text, match.start()),
                absent=tuple(sorted(ranks)),
                timeout=int(match["ms"]) / 1000,
            )
    for match in _BARRIER_REACHED.finditer(text):
        fields = context.fields_at(text, match.start())
        yield BarrierFailure(**fields | {"group_rank": int(match["rank"])})


def _parse_fingerprint(match: re.Match[str], n: int) -> FingerPrint:
    shape, dtype = match[f"shape{n}"], match[f"dtype{n}"]
    return FingerPrint(
        rank=int(match[f"rank{n}"]),
        op=normalize_op(match[f"op{n}"]),
        seq=int(match[f"seq{n}"] or 0),
        shape=None if shape is None else re.sub(r"\s", "", shape),
        dtype=None if dtype is None else dtype.strip(),
        is_own=n == 1,
    )


_GLOO_SOURCE = re.compile(
    r"gloo/(?:\w{1,20}/){1,6}\w{1,40}\.(?:cc|h):\d{1,6}\]"
)
_GLOO_FULL_MESH = re.compile(loosen_spaces(r"Gloo connectFullMesh failed"))
_GLOO_TIMEOUT = re.compile(
    loosen_spaces(r"Timed out waiting (?P<ms>\d{1,12}) ?ms for (?:send|recv)")
)
_GLOO_KINDS: tuple[
    tuple[str, Literal["timeout", "closed", "connect"]], ...
] = (
    ("timed out", "timeout"),
    ("timeout", "timeout"),
    ("closed by peer", "closed"),
    ("connection reset", "closed"),
    ("broken pipe", "closed"),
    ("connection refused", "connect"),
    ("no route", "connect"),
    ("connect", "connect"),
)
_PEER_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%\w]{2,80}\](?::\d{1,5})?)")


def read_gloo(context: LineContext, text: str) -> Iterator[GlooError]:
    """
    Parse errors of Gloo: timeouts, closed connections, failed connects.
    """
    source = _GLOO_SOURCE.search(text) if "loo" in text else None
    if source is None and _GLOO_FULL_MESH.search(text) is None:
        return
    start = source.start() if source else 0
    message = text[source.end() if source else 0 :][:600]
    lower = message.lower()
    kind = next((k for word, k in _GLOO_KINDS if word in lower), None)
    timeout, peer = (
        _GLOO_TIMEOUT.search(message),
        _PEER_ADDRESS.search(message),
    )
    if source is None or "connectFullMesh" in text:
        kind = "connect"
    if kind is None and "enforce fail" not in text:
        return
    yield GlooError(
        **context.fields_at(text, start),
        kind=kind or "other",
        timeout=int(timeout["ms"]) / 1000 if timeout else None,
        peer=clean(peer[1]) if peer else "",
    )


_NCCL_PREFIX = re.compile(
    r"(?P<host>[\w.-]{1,200}):(?P<pid>\d{1,10}):\d{1,10} \[\d{1,4}\]"
    r"[^\n]{0,80}?\b(?:NCCL|RCCL) (?P<level>INFO|WARN|VERSION)\b:?\s{0,4}"
)
_NCCL_INIT = re.compile(
    loosen_spaces(
        r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) n[rR]anks"
        r" (?P<size>\d{1,7})[^\n]{0,300}? - Init (?P<stage>START|COMPLETE)"
    )
)
_NCCL_COMM_ID = re.compile(r"commId (0x[0-9a-f]{1,16})")
_NCCL_CALL = re.compile(
    r"(?P<op>[A-Z]\w{1,30}): opCount (?P<number>[0-9a-f]{1,16}) "
    r"[^\n]{0,120}?count (?P<count>\d{1,19}) datatype (?P<dtype>\d{1,3})"
    r"[^\n]{0,60}?comm (?P<comm>0x[0-9a-f]{1,16})"
    r"(?: \[nranks=(?P<size>\d{1,7})\])?"
)
_NCCL_INTERFACE = re.compile(
    r"(?:Bootstrap ?: Using|NET/Socket ?: Using)\s{0,4}"
    r"(?P<all>(?:\[\d{1,3}\])?[\w.@-]{1,64}:[0-9a-fA-F.:\[\]%]{2,60}<\d{1,5}>"
    r"[^\n]{0,400})"
)
_NCCL_NETWORK = re.compile(r"Using network (?P<name>[^\n]{1,80})")
_NCCL_VERSION = re.compile(
    r"(?:NCCL|RCCL) version ?:? ?(?P<version>\d[\w.+-]{1,60})"
)
_NCCL_LOST = re.compile(
    loosen_spaces(
        r"NCCL error[^\n]{0,300}?remote process exited or there was a"
    )
)


def read_nccl(context: LineContext, text: str) -> Iterator[LogRecord]:
    """
    Parse lines of NCCL: communicators, networks, versions, warnings, calls.
    """
    prefix = _NCCL_PREFIX.search(text)
    if version := _NCCL_VERSION.search(text):
        yield NcclNote(
            **context.fields_at(text, version.start()),
            **_process_fields(prefix),
            kind="version",
            text=version["version"],
        )
    if lost := _NCCL_LOST.search(text):
        yield NcclNote(
            **context.fields_at(text, lost.start()),
            kind="lost",
            text=clean(lost[0][:300]),
        )
    if prefix is None:
        return

    message = text[prefix.end() :]
    if prefix["level"] == "WARN":
        yield NcclNote(
            **context.fields_at(text, prefix.start()),
            **_process_fields(prefix),
            kind="warning",
            text=clean(message[:600], limit=300),
        )
        return
    yield from _read_nccl_info(context, text, prefix, message)


def _read_nccl_info(
    context: LineContext, text: str, prefix: re.Match[str], message: str
) -> Iterator[LogRecord]:
    fields = {
        **context.fields_at(text, prefix.start()),
        **_process_fields(prefix),
    }
    if match := _NCCL_INIT.search(message):
        comm_id = _NCCL_COMM_ID.search(message)
        yield NcclInit(
            **fields,
            comm=match["comm"],
            comm_id=comm_id[1] if comm_id else "",
            member=int(match["rank"]),
            size=int(match["size"]),
            is_complete=match["stage"] == "COMPLETE",
        )
    elif match := _NCCL_CALL.search(message):
        yield NcclCall(
            **fields,
            comm=match["comm"],
            op=normalize_op(match["op"]),
            number=int(match["number"], 16),
            elements=int(match["count"]),
            dtype=match["dtype"],
            size=int(match["size"]) if match["size"] else None,
        )
    elif match := _NCCL_INTERFACE.search(message):
        yield NcclNote(**fields, kind="interface", text=clean(match["all"]))
    elif match := _NCCL_NETWORK.search(message):
        yield NcclNote(**fields, kind="network", text=clean(match["name"]))


def _process_fields(prefix: re.Match[str] | None) -> dict[str, Any]:
    return (
        {}
        if prefix is None
        else {"host": prefix["host"], "pid": int(prefix["pid"])}
    )


_Match = re.Match[str]
_STORE_CLIENTS = re.compile(
    loosen_spaces(
        r"Timed out after (?P<seconds>\d{1,9}) seconds waiting for clients\."
        r" (?P<joined>\d{1,7})/(?P<expected>\d{1,7}) clients joined"
    )
)
_CONNECT_FAILED = re.compile(
    loosen_spaces(
        r"Error: The client socket has failed to connect to any network address of"
        r" \((?P<host>[^,)\n]{1,250}), (?P<port>\d{1,5})\)"
    )
)
_OLD_CONNECT_TIMEOUT = re.compile(
    loosen_spaces(
        r"connect\(\) timed out\.(?: Original timeout was (?P<ms>\d{1,12}) ms)?"
    )
)
_LISTEN_FAILED = re.compile(
    loosen_spaces(
        r"Error: The server socket has failed to listen on any local network"
    )
)
_CONNECT_TIMEOUT = re.compile(
    loosen_spaces(
        r"client socket has timed out after (?P<ms>\d{1,12}) ?(?P<unit>ms|s)?"
        r"[^\n(]{0,40}? to connect to \((?P<host>[^,)\n]{1,250}),"
        r" (?P<port>\d{1,5})\)"
    )
)
_VALIDATE_TIMEOUT = re.compile(
    loosen_spaces(
        r"TCP client failed to connect/validate to host"
        r" (?P<address>[^\s]{1,250}) - timed out \(try=\d{1,9},"
        r" timeout=(?P<ms>\d{1,12}) ?ms\)"
    )
)
_STORE_BARRIER = re.compile(
    loosen_spaces(
        r"in store based barrier on rank: (?P<rank>\d{1,7}),? for key:"
        r" (?P<keys>[^\s(]{1,200}) \(world_size=(?P<expected>\d{1,7}),"
        r" (?:num_workers_joined|worker_count)=(?P<joined>\d{1,7})"
    )
)
_UNIQUE_ID = re.compile(
    loosen_spaces(
        r"\[(?:rank)?(?P<rank>\d{1,7})\] is setting up \w{1,8} communicator and"
        r" retrieving \w{1,10}UniqueId from \[(?P<first>\d{1,7})\]"
        r"[^\n]{0,200}?(?:got error: (?P<reason>[^\n]{1,300}))?$"
    )
)
_KEYS_TIMEOUT = re.compile(
    loosen_spaces(r"wait timeout after (?P<ms>\d{1,12}) ?ms(?:, keys: ")
    + r"(?P<keys>[^\s,]{1,300}))?"
)
_OLD_KEYS_TIMEOUT = re.compile(
    loosen_spaces(r"\b\w{3,30}Error: Socket Timeout\b")
)
# A node that missed one deadline may still join later.
_RENDEZVOUS_TIMEOUT = re.compile(r"(?<!of type )\bRendezvousTimeoutError\b")


def read_store_timeouts(
    context: LineContext, text: str
) -> Iterator[StoreTimeout]:
    """
    Parse timeouts and errors of the TCP store and of rendezvous.
    """
    kinds = set()
    for pattern, kind, parse_fields in _STORE_PATTERNS:
        match = pattern.search(text)
        # The first match of a kind has the most detail.
        if match and kind not in kinds:
            kinds.add(kind)
            if kind == "keys" and "unique_id" in kinds:
                continue
            fields = context.fields_at(text, match.start())
            yield StoreTimeout(**fields | parse_fields(match), kind=kind)  # type: ignore[arg-type]


def _clients_fields(match: _Match) -> dict[str, Any]:
    return {
        "joined": int(match["joined"]),
        "expected": int(match["expected"]),
        "timeout": float(match["seconds"]),
    }


def _connect_fields(match: _Match) -> dict[str, Any]:
    unit = 1.0 if match["unit"] == "s" else 1000.0
    return {"timeout": int(match["ms"]) / unit, **_address_fields(match)}


def _address_fields(match: _Match) -> dict[str, Any]:
    return {"address": clean(f"{match['host'].strip()}:{match['port']}")}


def _validate_fields(match: _Match) -> dict[str, Any]:
    return {**_timeout_fields(match), "address": clean(match["address"])}


def _timeout_fields(match: _Match) -> dict[str, Any]:
    return {"timeout": int(match["ms"]) / 1000 if match["ms"] else None}


def _barrier_fields(match: _Match) -> dict[str, Any]:
    return {
        "group_rank": int(match["rank"]),
        "joined": int(match["joined"]),
        "expected": int(match["expected"]),
        "keys": clean(match["keys"]),
    }


def _unique_id_fields(match: _Match) -> dict[str, Any]:
    return {
        "group_rank": int(match["rank"]),
        "reason": clean(match["reason"] or ""),
    }


def _keys_fields(match: _Match) -> dict[str, Any]:
    return {**_timeout_fields(match), "keys": clean(match["keys"] or "")}


def _reason_fields(match: _Match) -> dict[str, Any]:
    return {"reason": clean(match[0][:300])}


_STORE_PATTERNS: tuple[
    tuple[re.Pattern[str], str, Callable[[_Match], dict[str, Any]]], ...
] = (
    (_STORE_CLIENTS, "clients", _clients_fields),
    (_CONNECT_TIMEOUT, "connect", _connect_fields),
    (_VALIDATE_TIMEOUT, "connect", _validate_fields),
    (_CONNECT_FAILED, "connect", _address_fields),
    (_OLD_CONNECT_TIMEOUT, "connect", _timeout_fields),
    (_LISTEN_FAILED, "listen", _reason_fields),
    (_STORE_BARRIER, "barrier", _barrier_fields),
    (_RENDEZVOUS_TIMEOUT, "rendezvous", _reason_fields),
    (_UNIQUE_ID, "unique_id", _unique_id_fields),
    (_KEYS_TIMEOUT, "keys", _keys_fields),
    (_OLD_KEYS_TIMEOUT, "keys", _reason_fields),
)
