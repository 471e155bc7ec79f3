"""
What does torch's watchdog say in this line?

The forms changed with nearly every release: numbers of elements came in 2.2,
the rank before the line in 2.3, times and groups in 2.4, names of groups in
2.5, one sentence instead of two in 2.6, and what had started in 2.13.  Other
accelerators print the same about ``WorkXCCL`` and the like.  The words are
those of ``ProcessGroupNCCL.cpp`` and ``TraceUtils.h``.
"""

from __future__ import annotations

import re

from collections.abc import Callable, Iterator
from typing import Any, Literal

from ..._text import clean
from .model import (
    BarrierFailure,
    DesyncReport,
    DumpSignal,
    FingerPrint,
    FingerPrintMismatch,
    GlooError,
    GroupMember,
    Heartbeat,
    LogRecord,
    NcclCall,
    NcclInit,
    NcclNote,
    Number,
    Speaker,
    StoreTimeout,
    WorkStatus,
    WorkTimeout,
    op_name,
    spaced,
    to_number,
)


_RANKS = r"\[(?P<members>[\d,\s]{1,200000})\]"
_JOINED = re.compile(
    spaced(_RANKS + r" joined but didn't finish collective #(?P<seq>\d{1,19})")
)
_FINISHED = re.compile(
    spaced(
        _RANKS + r" finished collective #(?P<seq>\d{1,19}),"
        r" but didn't join collective"
    )
)
_ABSENT = re.compile(
    spaced(
        r"ranks " + _RANKS + r" are the lagging ranks[^\n]{0,80}?"
        r"(?:They)? never joined any collectives"
    )
)


def read_desync(speaker: Speaker, text: str) -> Iterator[DesyncReport]:
    """
    Read the report of torch.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Ranks that came as far as each other.
    """
    if "collective" not in text or "join" not in text:
        return
    for kind, pattern in (
        ("joined", _JOINED),
        ("finished", _FINISHED),
        ("absent", _ABSENT),
    ):
        for found in pattern.finditer(text):
            members = {
                int(x) for x in found["members"].split(",") if x.strip()
            }
            seq = found.groupdict().get("seq")
            yield DesyncReport(
                **speaker.at(text, found.start()),
                kind=kind,  # type: ignore[arg-type]
                members=tuple(sorted(members)),
                seq=int(seq) if seq else None,
            )


_WORK = re.compile(
    spaced(
        rf"Work\w{{1,12}}\( SeqNum=(?P<seq>{Number}), OpType=(?P<op>\w{{1,60}})"
        rf"(?:, NumelIn=(?P<numel_in>{Number}))?"
        rf"(?:, NumelOut=(?P<numel_out>{Number}))?"
        rf"(?:, Timeout\(ms\)=(?P<timeout>{Number}))?\)"
        rf"(?: ran for (?P<ran>{Number}) milliseconds)?"
        r"(?P<blocking> timed out in blocking wait)?"
    )
)
_ENQUEUED = spaced(
    rf"ast enqueued (?:\w{{1,8}} )?work:? (?P<enqueued>{Number})"
    r"(?: \([^)\n]{0,80}\))?"
    rf"(?:, last started (?:\w{{1,8}} )?work:? (?P<started>{Number})"
    r"(?: \([^)\n]{0,80}\))?)?"
    rf", last completed (?:\w{{1,8}} )?work:? (?P<completed>{Number})"
)
_STATUS = re.compile(
    spaced(
        r"(?:detected by watchdog at work|Timeout at \w{1,8} work)"
        rf"(?: sequence id)?: (?P<failed>{Number})"
        r"(?:(?:,| PG status:|\.)? [Ll]" + _ENQUEUED + r")?"
    )
)
_PG_STATUS = re.compile(spaced(r"PG status: l" + _ENQUEUED))
_SIGNAL = re.compile(
    spaced(
        r"dump signal due to a collective timeout from "
        r"(?:(?P<own>this local rank)|rank (?P<sender>\d{1,7}))"
        r"[^\n]{0,200}?[Ll]" + _ENQUEUED
    )
)
_HEARTBEAT = re.compile(
    spaced(r"watchdog got stuck for (?P<seconds>\d{1,9}) seconds")
)
_MONITOR = re.compile(spaced(r"Heartbeat monitor timed out"))
_MADE = re.compile(
    spaced(
        r"ProcessGroup\w{2,12} initialization options: size: (?P<size>\d{1,7}),"
        r" global rank: (?P<rank>\d{1,7})"
    )
)


def read_watchdog(speaker: Speaker, text: str) -> Iterator[LogRecord]:
    """
    Read what the watchdog, or the thread that watches it, says.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Time-outs, how far ranks had come, and what else there is.
    """
    for found in _WORK.finditer(text):
        yield WorkTimeout(
            **speaker.at(text, found.start()),
            seq=_seq(found["seq"]),
            op=op_name(found["op"]),
            numel_in=to_number(found["numel_in"]),
            numel_out=to_number(found["numel_out"]),
            timeout=_seconds(found["timeout"]),
            ran=_seconds(found["ran"]),
            blocking=found["blocking"] is not None,
        )
    yield from _progress(speaker, text)
    yield from _stuck(speaker, text)
    yield from read_desync(speaker, text)
    if made := _MADE.search(text):
        told = speaker.at(text, made.start())
        yield GroupMember(
            **told | {"rank": int(made["rank"])}, size=int(made["size"])
        )


def _progress(speaker: Speaker, text: str) -> Iterator[WorkStatus]:
    """
    How far a rank had come, once for each place that tells it.
    """
    seen = set()
    for found in _SIGNAL.finditer(text):
        seen.add(found.end())
        sender = to_number(found["sender"])
        yield DumpSignal(
            **speaker.at(text, found.start()), sender=sender, **_reach(found)
        )
    for pattern in (_STATUS, _PG_STATUS):
        for found in pattern.finditer(text):
            if found.end() not in seen:
                seen.add(found.end())
                failed = found.groupdict().get("failed")
                yield WorkStatus(
                    **speaker.at(text, found.start()),
                    failed=_seq(failed),
                    **_reach(found),
                )


def _stuck(speaker: Speaker, text: str) -> Iterator[Heartbeat]:
    found = _HEARTBEAT.search(text)
    if found:
        seconds = float(found["seconds"])
        yield Heartbeat(**speaker.at(text, found.start()), seconds=seconds)
    elif found := _MONITOR.search(text):
        yield Heartbeat(**speaker.at(text, found.start()))


def _reach(found: re.Match[str]) -> dict[str, Any]:
    """
    How far a rank had come, as far as the numbers can be true.
    """
    enqueued = to_number(found["enqueued"])
    completed = to_number(found["completed"])
    started = to_number(found["started"])
    if enqueued is None or (completed or 0) > enqueued:
        completed = None
    if started is not None and started < max(completed or 0, 1):
        # Where calls are not timed, nothing ever seems to start.
        started = None
    return {
        # -1 is before the first call.
        "enqueued": None if enqueued is None else max(enqueued, 0),
        "started": started,
        "completed": None if completed is None else max(completed, 0),
    }


def _seq(text: str | None) -> int | None:
    seq = to_number(text)
    return seq if seq is not None and seq >= 0 else None


def _seconds(text: str | None) -> float | None:
    number = to_number(text)
    return None if number is None else number / 1000


# Calls without tensors are printed without a comma, too.
_PRINT = (
    r"Rank (?P<rank{n}>\d{{1,7}}) is running collective:"
    r" CollectiveFingerPrint\((?: SequenceNumber=(?P<seq{n}>\d{{1,19}}),?)?"
    r" OpType=(?P<op{n}>\w{{1,40}}?)"
    r"(?:, TensorShape=(?P<shape{n}>\[[\d, ]{{0,400}}\]))?"
    r"(?:, TensorDtypes=(?P<dtype{n}>[\w ,]{{1,200}}?))?"
    r"(?:,? TensorDeviceTypes=|\))"
)
_MISMATCH = re.compile(
    spaced(_PRINT.format(n=1) + r"[^\n]{0,1200}?but " + _PRINT.format(n=2))
    .replace(r"[\d,\s{0,9}]", r"[\d,\s]")
    .replace(r"[\w\s{0,9},]", r"[\w\s,]")
)
_CHECKS_ABSENT = re.compile(
    spaced(
        r"Ranks? (?P<ranks>\d[\d,\s]{0,100000}?) failed to pass "
        r"monitoredBarrier in (?P<ms>\d{1,12}) ms"
    )
)
_REACHED = re.compile(
    spaced(r"Rank (?P<rank>\d{1,7}) successfully reached monitoredBarrier")
)
_LATE = re.compile(
    spaced(
        r"Rank (?P<ranks>\d{1,7}) timed out in monitoredBarrier after "
        r"(?P<ms>\d{1,12}) ms"
    )
)


def read_checks(speaker: Speaker, text: str) -> Iterator[LogRecord]:
    """
    Read what torch found out by itself.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Calls that differ, and barriers that failed.
    """
    if "FingerPrint" in text:
        for found in _MISMATCH.finditer(text):
            own = _print_of(found, 1)
            told = speaker.at(text, found.start()) | {"group_rank": own.rank}
            yield FingerPrintMismatch(
                **told, own=own, other=_print_of(found, 2)
            )
    if "onitored" not in text:
        return
    for pattern in (_CHECKS_ABSENT, _LATE):
        for found in pattern.finditer(text):
            ranks = {int(x) for x in found["ranks"].split(",") if x.strip()}
            yield BarrierFailure(
                **speaker.at(text, found.start()),
                absent=tuple(sorted(ranks)),
                timeout=int(found["ms"]) / 1000,
            )
    for found in _REACHED.finditer(text):
        told = speaker.at(text, found.start())
        yield BarrierFailure(**told | {"group_rank": int(found["rank"])})


def _print_of(found: re.Match[str], n: int) -> FingerPrint:
    shape, dtype = found[f"shape{n}"], found[f"dtype{n}"]
    return FingerPrint(
        rank=int(found[f"rank{n}"]),
        op=op_name(found[f"op{n}"]),
        seq=int(found[f"seq{n}"] or 0),
        shape=None if shape is None else re.sub(r"\s", "", shape),
        dtype=None if dtype is None else dtype.strip(),
        is_own=n == 1,
    )


_GLOO = re.compile(r"gloo/(?:\w{1,20}/){1,6}\w{1,40}\.(?:cc|h):\d{1,6}\]")
_FULL_MESH = re.compile(spaced(r"Gloo connectFullMesh failed"))
_WAITED = re.compile(
    spaced(r"Timed out waiting (?P<ms>\d{1,12}) ?ms for (?:send|recv)")
)
_KINDS: tuple[tuple[str, Literal["timeout", "closed", "connect"]], ...] = (
    ("timed out", "timeout"),
    ("timeout", "timeout"),
    ("closed by peer", "closed"),
    ("connection reset", "closed"),
    ("broken pipe", "closed"),
    ("connection refused", "connect"),
    ("no route", "connect"),
    ("connect", "connect"),
)
_PEER = re.compile(r"(\[[0-9a-fA-F:.%\w]{2,80}\](?::\d{1,5})?)")


def read_gloo(speaker: Speaker, text: str) -> Iterator[GlooError]:
    """
    Read what Gloo says.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Those that waited in vain, or lost somebody.
    """
    place = _GLOO.search(text) if "loo" in text else None
    if place is None and _FULL_MESH.search(text) is None:
        return
    start = place.start() if place else 0
    said = text[place.end() if place else 0 :][:600]
    lower = said.lower()
    kind = next((k for word, k in _KINDS if word in lower), None)
    waited, peer = _WAITED.search(said), _PEER.search(said)
    if place is None or "connectFullMesh" in text:
        kind = "connect"
    if kind is None and "enforce fail" not in text:
        return
    yield GlooError(
        **speaker.at(text, start),
        kind=kind or "other",
        timeout=int(waited["ms"]) / 1000 if waited else None,
        peer=clean(peer[1]) if peer else "",
    )


_WHO = re.compile(
    r"(?P<host>[\w.-]{1,200}):(?P<pid>\d{1,10}):\d{1,10} \[\d{1,4}\]"
    r"[^\n]{0,80}?\b(?:NCCL|RCCL) (?P<level>INFO|WARN|VERSION)\b:?\s{0,4}"
)
_INIT = re.compile(
    spaced(
        r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) n[rR]anks"
        r" (?P<size>\d{1,7})[^\n]{0,300}? - Init (?P<stage>START|COMPLETE)"
    )
)
_COMM_ID = re.compile(r"commId (0x[0-9a-f]{1,16})")
_CALL = re.compile(
    r"(?P<op>[A-Z]\w{1,30}): opCount (?P<number>[0-9a-f]{1,16}) "
    r"[^\n]{0,120}?count (?P<count>\d{1,19}) datatype (?P<dtype>\d{1,3})"
    r"[^\n]{0,60}?comm (?P<comm>0x[0-9a-f]{1,16})"
    r"(?: \[nranks=(?P<size>\d{1,7})\])?"
)
_INTERFACE = re.compile(
    r"(?:Bootstrap ?: Using|NET/Socket ?: Using)\s{0,4}"
    r"(?P<all>(?:\[\d{1,3}\])?[\w.@-]{1,64}:[0-9a-fA-F.:\[\]%]{2,60}<\d{1,5}>"
    r"[^\n]{0,400})"
)
_NETWORK = re.compile(r"Using network (?P<name>[^\n]{1,80})")
_VERSION = re.compile(
    r"(?:NCCL|RCCL) version ?:? ?(?P<version>\d[\w.+-]{1,60})"
)
_LOST = re.compile(
    spaced(r"NCCL error[^\n]{0,300}?remote process exited or there was a")
)


def read_nccl(speaker: Speaker, text: str) -> Iterator[LogRecord]:
    """
    Read what NCCL says.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Communicators that are set up, networks, versions, warnings, and calls.
    """
    who = _WHO.search(text)
    if version := _VERSION.search(text):
        yield NcclNote(
            **speaker.at(text, version.start()),
            **_process(who),
            kind="version",
            text=version["version"],
        )
    if lost := _LOST.search(text):
        yield NcclNote(
            **speaker.at(text, lost.start()),
            kind="lost",
            text=clean(lost[0][:300]),
        )
    if who is None:
        return

    said = text[who.end() :]
    if who["level"] == "WARN":
        yield NcclNote(
            **speaker.at(text, who.start()),
            **_process(who),
            kind="warning",
            text=clean(said[:600], limit=300),
        )
        return
    yield from _info(speaker, text, who, said)


def _info(
    speaker: Speaker, text: str, who: re.Match[str], said: str
) -> Iterator[LogRecord]:
    told = {**speaker.at(text, who.start()), **_process(who)}
    if found := _INIT.search(said):
        comm_id = _COMM_ID.search(said)
        yield NcclInit(
            **told,
            comm=found["comm"],
            comm_id=comm_id[1] if comm_id else "",
            member=int(found["rank"]),
            size=int(found["size"]),
            is_complete=found["stage"] == "COMPLETE",
        )
    elif found := _CALL.search(said):
        yield NcclCall(
            **told,
            comm=found["comm"],
            op=op_name(found["op"]),
            number=int(found["number"], 16),
            elements=int(found["count"]),
            dtype=found["dtype"],
            size=int(found["size"]) if found["size"] else None,
        )
    elif found := _INTERFACE.search(said):
        yield NcclNote(**told, kind="interface", text=clean(found["all"]))
    elif found := _NETWORK.search(said):
        yield NcclNote(**told, kind="network", text=clean(found["name"]))


def _process(who: re.Match[str] | None) -> dict[str, Any]:
    return {} if who is None else {"host": who["host"], "pid": int(who["pid"])}


_Found = re.Match[str]
_CLIENTS = re.compile(
    spaced(
        r"Timed out after (?P<seconds>\d{1,9}) seconds waiting for clients\."
        r" (?P<joined>\d{1,7})/(?P<expected>\d{1,7}) clients joined"
    )
)
_NEVER = re.compile(
    spaced(
        r"Error: The client socket has failed to connect to any network address of"
        r" \((?P<host>[^,)\n]{1,250}), (?P<port>\d{1,5})\)"
    )
)
_OLD_CONNECT = re.compile(
    spaced(
        r"connect\(\) timed out\.(?: Original timeout was (?P<ms>\d{1,12}) ms)?"
    )
)
_LISTEN = re.compile(
    spaced(
        r"Error: The server socket has failed to listen on any local network"
    )
)
_CONNECT = re.compile(
    spaced(
        r"client socket has timed out after (?P<ms>\d{1,12}) ?(?P<unit>ms|s)?"
        r"[^\n(]{0,40}? to connect to \((?P<host>[^,)\n]{1,250}),"
        r" (?P<port>\d{1,5})\)"
    )
)
_LAST_TRY = re.compile(
    spaced(
        r"TCP client failed to connect/validate to host"
        r" (?P<address>[^\s]{1,250}) - timed out \(try=\d{1,9},"
        r" timeout=(?P<ms>\d{1,12}) ?ms\)"
    )
)
_BARRIER = re.compile(
    spaced(
        r"in store based barrier on rank: (?P<rank>\d{1,7}),? for key:"
        r" (?P<keys>[^\s(]{1,200}) \(world_size=(?P<expected>\d{1,7}),"
        r" (?:num_workers_joined|worker_count)=(?P<joined>\d{1,7})"
    )
)
_UNIQUE_ID = re.compile(
    spaced(
        r"\[(?:rank)?(?P<rank>\d{1,7})\] is setting up \w{1,8} communicator and"
        r" retrieving \w{1,10}UniqueId from \[(?P<first>\d{1,7})\]"
        r"[^\n]{0,200}?(?:got error: (?P<reason>[^\n]{1,300}))?$"
    )
)
_KEYS = re.compile(
    spaced(r"wait timeout after (?P<ms>\d{1,12}) ?ms(?:, keys: ")
    + r"(?P<keys>[^\s,]{1,300}))?"
)
_OLD_KEYS = re.compile(spaced(r"\b\w{3,30}Error: Socket Timeout\b"))
# A node that was not heard of in time may be heard of later.
_RENDEZVOUS = re.compile(r"(?<!of type )\bRendezvousTimeoutError\b")


def read_stores(speaker: Speaker, text: str) -> Iterator[StoreTimeout]:
    """
    Read what the store says, and those who use it.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Those that waited in vain.
    """
    kinds = set()
    for pattern, kind, told in _READERS:
        found = pattern.search(text)
        # The first that tells more goes before others of its kind.
        if found and kind not in kinds:
            kinds.add(kind)
            if kind == "keys" and "unique_id" in kinds:
                continue
            at = speaker.at(text, found.start())
            yield StoreTimeout(**at | told(found), kind=kind)  # type: ignore[arg-type]


def _clients(found: _Found) -> dict[str, Any]:
    return {
        "joined": int(found["joined"]),
        "expected": int(found["expected"]),
        "timeout": float(found["seconds"]),
    }


def _connect(found: _Found) -> dict[str, Any]:
    unit = 1.0 if found["unit"] == "s" else 1000.0
    return {"timeout": int(found["ms"]) / unit, **_never(found)}


def _never(found: _Found) -> dict[str, Any]:
    return {"address": clean(f"{found['host'].strip()}:{found['port']}")}


def _last_try(found: _Found) -> dict[str, Any]:
    return {**_waited(found), "address": clean(found["address"])}


def _waited(found: _Found) -> dict[str, Any]:
    return {"timeout": int(found["ms"]) / 1000 if found["ms"] else None}


def _barrier(found: _Found) -> dict[str, Any]:
    return {
        "group_rank": int(found["rank"]),
        "joined": int(found["joined"]),
        "expected": int(found["expected"]),
        "keys": clean(found["keys"]),
    }


def _unique_id(found: _Found) -> dict[str, Any]:
    return {
        "group_rank": int(found["rank"]),
        "reason": clean(found["reason"] or ""),
    }


def _keys(found: _Found) -> dict[str, Any]:
    return {**_waited(found), "keys": clean(found["keys"] or "")}


def _nothing(found: _Found) -> dict[str, Any]:
    return {"reason": clean(found[0][:300])}


_READERS: tuple[
    tuple[re.Pattern[str], str, Callable[[_Found], dict[str, Any]]], ...
] = (
    (_CLIENTS, "clients", _clients),
    (_CONNECT, "connect", _connect),
    (_LAST_TRY, "connect", _last_try),
    (_NEVER, "connect", _never),
    (_OLD_CONNECT, "connect", _waited),
    (_LISTEN, "listen", _nothing),
    (_BARRIER, "barrier", _barrier),
    (_RENDEZVOUS, "rendezvous", _nothing),
    (_UNIQUE_ID, "unique_id", _unique_id),
    (_KEYS, "keys", _keys),
    (_OLD_KEYS, "keys", _nothing),
)
