"""
Define records of watchdog, store, Gloo, and NCCL lines; quote their lines.
"""

from __future__ import annotations

import re

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import attrs

from ..._render import Block, Shown, Table, as_plain
from ..._text import clean
from ...causes import Cause
from ...findings import (
    CollectiveRef,
    Confidence,
    Evidence,
    Finding,
    Missing,
    described,
)
from ...ranks import ranks_text
from ..lines import RANK_TAG, LogLine, Origin, parse_time


Value = TypeVar("Value")

_MAX_ROWS = 200


@attrs.frozen
class LogGroup:
    """
    Identify the process group that a line names.

    Attributes:
        name: The name torch gave it, such as ``"0"``.  Before torch 2.5, each
            process numbers its groups on its own.

        desc: Its description, such as ``"default_pg"``; ``""`` if unknown.

        is_assumed: Whether no line names it: it is that of all ranks, as the
            numbers of the ranks show.
    """

    name: str
    desc: str = ""
    is_assumed: bool = False

    @property
    def is_default(self) -> bool:
        """
        Return whether this is the group of all ranks, where global rank and
        group rank are equal.
        """
        return self.desc == "default_pg" or (
            self.name == "0" and not self.desc
        )

    def __str__(self) -> str:
        return described(self.desc) or self.name


@attrs.frozen(kw_only=True)
class LogRecord:
    """
    Hold what every record has.

    Attributes:
        rank: The global rank that printed the line; ``None`` if unknown.

        group_rank: Its rank *within the group*, which torch prints in
            ``[Rank 3]`` and in ``[PG … Rank 3]``.

        group: The process group; ``None`` if the line names none.

        origin: Process and node from the launcher's log prefix.

        line: Line number, from 1.

        time: Seconds since the epoch; ``None`` if the line has no time.

        quote: The text of the line, shortened.

        count: How many lines it stands for: Ray folds equal lines.

        attempt: How many times the job was restarted before.
    """

    rank: int | None = None
    group_rank: int | None = None
    group: LogGroup | None = None
    origin: Origin | None = None
    source: str = ""
    line: int = 0
    time: float | None = None
    quote: str = ""
    count: int = 1
    attempt: int = 0


@attrs.frozen(kw_only=True)
class WorkTimeout(LogRecord):
    """
    A collective or point-to-point call that timed out.

    Attributes:
        seq: Its sequence number within the group; ``None`` if torch set or
            printed none.

        op: The operation as in Flight Recorder dumps, such as
            ``"all_reduce"``.

        numel_in: Number of input elements.

        numel_out: Number of output elements.

        timeout: Allowed seconds.

        ran: Seconds until the watchdog gave up.

        blocking: Whether the rank's own thread waited (blocking wait).
    """

    seq: int | None = None
    op: str
    numel_in: int | None = None
    numel_out: int | None = None
    timeout: float | None = None
    ran: float | None = None
    blocking: bool = False

    @property
    def is_p2p(self) -> bool:
        """
        Return whether only two ranks take part, so that its sequence number
        cannot be compared with other ranks.
        """
        return self.op in {"send", "recv", "recvanysource"}


@attrs.frozen(kw_only=True)
class WorkStatus(LogRecord):
    """
    How far a rank got in a process group.

    Attributes:
        failed: Sequence number of the call that failed, if one did.

        enqueued: Last call that the host enqueued on the GPU.

        started: Last call that the GPU started.  Only torch 2.13 and later
            print it, and only with timing enabled.

        completed: Last call that completed.
    """

    failed: int | None = None
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None


@attrs.frozen(kw_only=True)
class DumpSignal(WorkStatus):
    """
    A rank got the signal to write a Flight Recorder dump.

    Attributes:
        sender: Global rank whose call timed out; ``None`` if it is this rank.
    """

    sender: int | None = None


@attrs.frozen(kw_only=True)
class Heartbeat(LogRecord):
    """
    The watchdog of a rank was stuck.

    Attributes:
        seconds: For how long.
    """

    seconds: float | None = None


@attrs.frozen(kw_only=True)
class DesyncReport(LogRecord):
    """
    The desync report of torch (``TORCH_NCCL_DESYNC_DEBUG=1``).

    Attributes:
        kind: ``"joined"`` a call and did not finish it, ``"finished"`` a call
            and did not join the next, or ``"absent"`` from the start.

        members: Ranks within the group.

        seq: Sequence number of the call that they joined or finished.
    """

    kind: Literal["joined", "finished", "absent"]
    members: tuple[int, ...]
    seq: int | None = None


@attrs.frozen(kw_only=True)
class FingerPrint:
    """
    The call that one rank was about to make.

    Attributes:
        rank: Rank within the group.

        op: The operation as in Flight Recorder dumps.

        seq: Sequence number within the group.

        shape: Sizes of the first tensor, as printed.

        dtype: Types of the tensors, as printed.

        is_own: Whether the rank printed its own call.  What one rank prints
            about another may be wrong: torch reads sizes as operation names
            where the lengths differ.
    """

    rank: int
    op: str
    seq: int
    shape: str | None = None
    dtype: str | None = None
    is_own: bool = True


@attrs.frozen(kw_only=True)
class FingerPrintMismatch(LogRecord):
    """
    Two ranks were about to make different calls
    (``TORCH_DISTRIBUTED_DEBUG=DETAIL``).

    Attributes:
        own: The call of the rank that reports it.

        other: The call of the first rank that differs.
    """

    own: FingerPrint
    other: FingerPrint


@attrs.frozen(kw_only=True)
class BarrierFailure(LogRecord):
    """
    A monitored barrier failed.

    Attributes:
        absent: Ranks within the group that did not arrive; empty where a rank
            only reports that it arrived itself.

        timeout: Allowed seconds.
    """

    absent: tuple[int, ...] = ()
    timeout: float | None = None


@attrs.frozen(kw_only=True)
class StoreTimeout(LogRecord):
    """
    A timeout or an error of the store, or of a rendezvous that uses it.

    Attributes:
        kind: ``"clients"`` (the store waited for clients), ``"connect"`` (the
            store was unreachable), ``"barrier"`` (members were missing while a
            group was created), ``"unique_id"`` (the first rank of a group did
            not publish its address), ``"listen"`` (the port was taken),
            ``"rendezvous"`` (nodes did not find each other), or ``"keys"``.

        joined: Number of processes that joined.

        expected: Number of processes that should have joined.

        timeout: Allowed seconds.

        address: Host and port of the store.

        keys: The keys that were waited for.

        reason: The printed reason; ``""`` if there is none.
    """

    kind: Literal[
        "clients",
        "connect",
        "barrier",
        "unique_id",
        "listen",
        "rendezvous",
        "keys",
    ]
    joined: int | None = None
    expected: int | None = None
    timeout: float | None = None
    address: str = ""
    keys: str = ""
    reason: str = ""


@attrs.frozen(kw_only=True)
class GlooError(LogRecord):
    """
    A call over Gloo failed.

    Attributes:
        kind: ``"timeout"``, ``"closed"`` (the peer closed the connection),
            ``"connect"`` (the peer was never reached), or ``"other"``.

        timeout: Allowed seconds.

        peer: Address of the peer.
    """

    kind: Literal["timeout", "closed", "connect", "other"]
    timeout: float | None = None
    peer: str = ""


@attrs.frozen(kw_only=True)
class NcclInit(LogRecord):
    """
    A rank started or completed the set-up of an NCCL communicator.

    Attributes:
        host: Host name.

        pid: Process ID on that host.

        comm: Address of the communicator within the process.

        comm_id: ID of the communicator, equal on all its ranks; ``""`` if
            unknown.

        member: Rank within the communicator.

        size: Number of ranks in the communicator.

        bus: The address of its GPU on the PCI bus, as NCCL prints it; ``""``
            if unknown.

        is_complete: Whether the set-up is complete.
    """

    host: str
    pid: int
    comm: str
    comm_id: str = ""
    member: int
    size: int
    bus: str = ""
    is_complete: bool = False


@attrs.frozen(kw_only=True)
class GroupMember(LogRecord):
    """
    A rank created a group that it belongs to (``TORCH_CPP_LOG_LEVEL=INFO``).

    Attributes:
        size: Number of members of the group.
    """

    size: int


@attrs.frozen(kw_only=True)
class NcclNote(LogRecord):
    """
    A line of NCCL about a process: its network, version, or a warning.

    Attributes:
        host: Host name; ``""`` if unknown.

        pid: Process ID on that host.

        kind: ``"interface"``, ``"network"``, ``"version"``, ``"warning"``, or
            ``"lost"`` (torch reports that a remote process exited).

        text: Interfaces with addresses, the network, the version, or the
            warning.
    """

    host: str = ""
    pid: int | None = None
    kind: Literal["interface", "network", "version", "warning", "lost"]
    text: str


@attrs.frozen(kw_only=True)
class NcclCall(LogRecord):
    """
    A call that NCCL printed (``NCCL_DEBUG_SUBSYS=COLL``).

    Attributes:
        host: Host name.

        pid: Process ID on that host.

        comm: Address of the communicator within the process.

        op: The operation as in Flight Recorder dumps.

        number: The ``opCount``: calls made on the communicator before.

        elements: Number of elements.

        dtype: The type, as NCCL's number.

        size: Number of ranks in the communicator, if printed.
    """

    host: str
    pid: int
    comm: str
    op: str
    number: int
    elements: int | None = None
    dtype: str = ""
    size: int | None = None


@attrs.frozen(kw_only=True)
class CollectiveLogs(Shown):
    """
    All records about collectives in a set of logs.

    Attributes:
        timeouts: Calls that timed out; one per rank and call, however often
            it was printed.

        statuses: How far ranks got.

        dump_signals: Ranks that got the signal to dump, and how far they got.

        heartbeats: Ranks whose watchdog was stuck.

        desyncs: Desync reports of torch.

        mismatches: Ranks that were about to make different calls.

        barriers: Monitored barriers that failed.

        stores: Timeouts and errors of the store and of rendezvous.

        gloo: Calls over Gloo that failed.

        members: Groups that were created, from the lines of their members.

        inits: NCCL communicators that were set up.

        notes: Networks, versions, and warnings of NCCL.

        calls: The last calls that NCCL printed for each communicator of each
            process.

        world_size: Number of ranks of the job; ``None`` if unknown.

        attempts: Number of runs of the job in these logs.

        quiet: Seconds between the last write to any of the files and reading
            them; ``None`` if the input was not files.

        missing: What could not be read, and why.
    """

    timeouts: tuple[WorkTimeout, ...] = ()
    statuses: tuple[WorkStatus, ...] = ()
    dump_signals: tuple[DumpSignal, ...] = ()
    heartbeats: tuple[Heartbeat, ...] = ()
    desyncs: tuple[DesyncReport, ...] = ()
    mismatches: tuple[FingerPrintMismatch, ...] = ()
    barriers: tuple[BarrierFailure, ...] = ()
    stores: tuple[StoreTimeout, ...] = ()
    gloo: tuple[GlooError, ...] = ()
    members: tuple[GroupMember, ...] = ()
    inits: tuple[NcclInit, ...] = ()
    notes: tuple[NcclNote, ...] = ()
    calls: tuple[NcclCall, ...] = ()
    world_size: int | None = None
    attempts: int = 1
    quiet: float | None = None
    missing: tuple[Missing, ...] = ()

    @property
    def records(self) -> tuple[LogRecord, ...]:
        """
        Return all records, in the order of the attributes.
        """
        return tuple(
            record
            for name in RECORD_FIELDS.values()
            for record in getattr(self, name)
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data.
        """
        return as_plain(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per record, for a data frame.
        """
        return [
            {"kind": type(record).__name__} | as_plain(record)
            for record in self.records
        ]

    def _blocks_(self) -> Iterator[Block]:

        rows = [
            (
                type(record).__name__,
                "?" if record.rank is None else record.rank,
                record.group or "",
                f"{record.source}:{record.line}".lstrip(":"),
                record.quote,
            )
            for record in self.records
        ]
        if rows:
            headers = ("what", "rank", "group", "where", "line")
            yield Table(headers, rows, _MAX_ROWS, more="")
        else:
            yield "no line about a collective"


#: The attributes of CollectiveLogs that hold records, by the type of these.
RECORD_FIELDS: dict[type[LogRecord], str] = {
    get_args(hint)[0]: name
    for name, hint in get_type_hints(CollectiveLogs).items()
    if get_origin(hint) is tuple and issubclass(get_args(hint)[0], LogRecord)
}

# torch prints an unset unsigned number as the largest one.
_MIN_UNSET = 1 << 62
_CAMEL_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
_ALL_TO_ALL = re.compile(r"^all_to(?:_all_v|_?all_base|all)$")
_ALL_PREFIX = re.compile(r"all(?=reduce|gather|to_?all)")


def loosen_spaces(pattern: str) -> str:
    """
    Let each blank of a pattern match any number of blanks, or none.

    >>> from distdebug.logs.collectives.model import loosen_spaces
    >>> loosen_spaces("ran for")
    'ran\\\\s{0,9}for'
    """
    return pattern.replace(" ", r"\s{0,9}")


def parse_integer(text: str | None) -> int | None:
    """
    Parse an integer; return ``None`` if there is none or it was never set.
    """
    if text is None:
        return None

    number = int(text)
    return number if -1 <= number < _MIN_UNSET else None


def normalize_op(text: str) -> str:
    """
    Return the name in Flight Recorder dumps of an operation of torch or NCCL.

    >>> from distdebug.logs.collectives.model import normalize_op
    >>> normalize_op("_ALLGATHER_BASE"), normalize_op("ReduceScatter")
    ('_all_gather_base', 'reduce_scatter')
    """
    if not text.isupper():
        text = _CAMEL_BOUNDARY.sub("_", text)
    name = _ALL_PREFIX.sub("all_", text.lower())
    return _ALL_TO_ALL.sub("all_to_all", name)


_RANK_PREFIX = re.compile(f"{RANK_TAG}:?")
_GROUP_PREFIX = re.compile(
    loosen_spaces(
        r"\[PG ID (?P<id>\d{1,9}) PG GUID (?P<uid>[^\s(\]]{1,80}?)"
        r"(?: \((?P<desc>[^)\]]{0,200})\))? Rank (?P<rank>\d{1,7})\]"
        r"|\[PG (?P<old>[^\s(\]]{1,80}?)(?: \((?P<old_desc>[^)\]]{0,200})\))?"
        r" Rank (?P<old_rank>\d{1,7})\]"
    )
)
_GROUP_RANK_PREFIX = re.compile(loosen_spaces(r"\[Rank (\d{1,7})\]"))
_MAX_QUOTE = 400
# A rank prefix at most this far before a message belongs to it.
_PREFIX_REACH = 2000


@attrs.frozen
class LineContext:
    """
    The part of a line that one rank printed, and what is known about it.

    Attributes:
        rank: The global rank; ``None`` if unknown.

        text: The text of this rank.

        attempt: How many times the job was restarted before.

        latest: A time that no line of the file is after, which decides the
            year of times without one; ``None`` stands for now.
    """

    line: LogLine
    rank: int | None
    text: str
    attempt: int = 0
    latest: float | None = None

    def fields_at(self, position: int) -> dict[str, Any]:
        """
        Return the fields of a :class:`LogRecord` at *position* of the text.
        """
        text = self.text
        group, member = _last_group_and_rank(
            text[max(0, position - _PREFIX_REACH) : position]
        )
        rank = self.rank
        if rank is None and group is not None and group.is_default:
            rank = member
        return {
            "rank": rank,
            "group_rank": member,
            "group": group,
            "origin": self.line.origin,
            "source": self.line.source,
            "line": self.line.number,
            "time": parse_time(text, now=self.latest),
            "quote": clean(text[: 2 * _MAX_QUOTE], limit=_MAX_QUOTE),
            "count": self.line.count,
            "attempt": self.attempt,
        }


def split_by_rank(
    line: LogLine,
    *,
    rank: int | None,
    attempt: int,
    latest: float | None = None,
) -> Iterator[LineContext]:
    """
    Split a line into the parts that different ranks printed.

    A line holds several ranks where they wrote at once, or behind a progress
    bar.

    Args:
        rank: The rank of the file; ``None`` if unknown.

        attempt: How many times the job was restarted before.

        latest: A time that no line of the file is after; ``None`` stands for
            now.
    """
    origin: Origin | None = line.origin
    line_rank = rank if origin is None or origin.rank is None else origin.rank
    before_prefix, *parts = _RANK_PREFIX.split(line.text)
    if before_prefix.strip():
        yield LineContext(line, line_rank, before_prefix, attempt, latest)
    for number, text in zip(parts[::2], parts[1::2], strict=True):
        yield LineContext(line, int(number), text, attempt, latest)


def _last_group_and_rank(before: str) -> tuple[LogGroup | None, int | None]:
    """
    Return the last group and the last group rank named in *before*.
    """
    group = member = None
    for found in _GROUP_PREFIX.finditer(before):
        uid = found["uid"] or found["old"]
        group = LogGroup(uid, found["desc"] or found["old_desc"] or "")
        member = int(found["rank"] or found["old_rank"])
    for found in _GROUP_RANK_PREFIX.finditer(before):
        member = int(found[1])
    return group, member


_MAX_EVIDENCE = 6


def log_finding(  # noqa: PLR0913 all of a finding
    cause: Cause,
    summary: str,
    records: Iterable[LogRecord],
    remedy: str | None = None,
    *,
    ranks: Iterable[int] = (),
    confidence: Confidence = "likely",
    collective: CollectiveRef | None = None,
) -> Finding:
    """
    Create a finding that quotes the lines of *records*.

    Args:
        remedy: By default that of the cause.

        ranks: Global ranks at fault.

        collective: The call that the other ranks wait in.
    """
    # Each line is quoted once.
    evidence = dict.fromkeys(
        Evidence(
            kind="log",
            source=record.source,
            location=f"line {record.line}",
            quote=record.quote,
        )
        for record in records
    )
    return Finding(
        cause=cause,
        ranks=tuple(sorted(set(ranks))),
        summary=summary,
        confidence=confidence,
        remedy=cause.remedy if remedy is None else remedy,
        collective=collective,
        evidence=tuple(evidence)[:_MAX_EVIDENCE],
    )


def group_members(
    values: Mapping[int, Value],
) -> list[tuple[Value, list[int]]]:
    """
    Return each value with the members that have it, the most common first.
    """
    members: dict[Value, list[int]] = {}
    for member, value in sorted(values.items()):
        members.setdefault(value, []).append(member)
    return sorted(members.items(), key=lambda x: -len(x[1]))


def first_difference(
    calls: Mapping[int, Value],
    aspects: Iterable[tuple[Cause, Callable[[Value], str]]],
) -> tuple[Cause, list[tuple[str, list[int]]]] | None:
    """
    Return the first aspect in which calls differ, and the members by it.

    Args:
        calls: The call of each member.

        aspects: In which calls may differ, the most specific first: what it
            shows, and how it is named.
    """
    for cause, show in aspects:
        kinds = group_members({m: show(x) for m, x in calls.items()})
        if len(kinds) > 1:
            return cause, kinds
    return None


def reporting_ranks(records: Iterable[LogRecord]) -> tuple[int, ...]:
    """
    Return the global ranks that printed *records*, ascending.
    """
    return tuple(sorted({x.rank for x in records if x.rank is not None}))


def ranks_label(records: Iterable[LogRecord]) -> str:
    """
    Return a text that names the ranks that printed *records*.
    """
    ranks = reporting_ranks(records)
    return ranks_text(ranks) if ranks else "a process"


def timeout_text(
    records: Iterable[StoreTimeout | GlooError | BarrierFailure],
) -> str:
    """
    Return the timeout as text, such as ``" within 30 s"``; empty if no
    record has one.
    """
    timeout = next((x.timeout for x in records if x.timeout), None)
    return f" within {timeout:.0f} s" if timeout else ""


@attrs.frozen(kw_only=True)
class RankOrigin:
    """
    Where a rank runs.

    Attributes:
        rank: Global rank.

        pid: Process ID; ``None`` if unknown.

        ip: Address of the node; ``None`` if unknown.

        host: Host name as NCCL prints it; ``None`` if unknown.

        source: The log file of the rank.
    """

    rank: int
    pid: int | None = None
    ip: str | None = None
    host: str | None = None
    source: str = ""


def rank_origins(logs: CollectiveLogs) -> dict[int, RankOrigin]:
    """
    Return process, node, and file of each rank that wrote something.

    Returns:
        By global rank, from log prefixes of Ray and from lines of NCCL.
    """
    facts: dict[int, dict[str, Any]] = {}
    for record in logs.records:
        if record.rank is not None:
            known = facts.setdefault(record.rank, {"source": record.source})
            origin = record.origin or Origin()
            if origin.pid is not None:
                known.setdefault("pid", origin.pid)
            if origin.ip is not None:
                known.setdefault("ip", origin.ip)
    for init in logs.inits:
        if init.size == logs.world_size:
            known = facts.setdefault(init.member, {"source": init.source})
            known.setdefault("pid", init.pid)
            known["host"] = init.host  # the newest one counts
    return {x: RankOrigin(rank=x, **facts[x]) for x in sorted(facts)}
