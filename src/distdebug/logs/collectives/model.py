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

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
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
from ..signatures import lost_peer, read_signatures


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

        present: The ranks that have printed something.

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
    present: tuple[int, ...] = ()
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
    line: LogLine, rank: int | None, attempt: int, latest: float | None
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

    record: type[LogRecord]
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
        kinds = {kind.__name__: kind for kind in RECORD_FIELDS}
        record = kinds[row["record"]]
        return cls(
            **dict(row) | {"record": record, "pattern": re.compile(pattern)}
        )

    def parse(self, fields: dict[str, Any], found: re.Match[str]) -> LogRecord:
        """
        Make the record of a match.

        Args:
            fields: What the line shows besides.
        """
        fields = fields | _parse_groups(found)
        if self.kind:
            fields["kind"] = self.kind
        if issubclass(self.record, WorkStatus):
            fields |= _possible_progress(fields)
        return self.record(**fields)


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
    ends = set()
    for form in read_forms("each"):
        if form.word not in text:
            continue
        for found in form.pattern.finditer(text):
            # Of several forms that end at a place, the first one counts.
            if found.end() not in ends:
                ends.add(found.end())
                yield form.parse(context.fields_at(found.start()), found)
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
            yield form.parse(context.fields_at(match.start()), match)
    yield from _read_mismatches(context)
    yield from _read_gloo(context)
    yield from _read_nccl(context)


def _possible_progress(groups: Mapping[str, Any]) -> dict[str, int | None]:
    """
    Return how far a rank got, without impossible numbers.
    """
    enqueued, started, completed = map(
        groups.get, ("enqueued", "started", "completed")
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
            yield form.parse(fields, found)
            return


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
