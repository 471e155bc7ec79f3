"""
What do the lines about collectives say, one by one?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import attrs

from ..._render import Block, Shown, Table
from ..._text import clean
from ...findings import (
    Cause,
    CollectiveRef,
    Confidence,
    Evidence,
    Finding,
    Missing,
    as_plain,
)
from ...ranks import ranks_text
from ..lines import LogLine, Origin, parse_time


@attrs.frozen
class LogGroup:
    """
    Which process group does a line name?

    Attributes:
        name: The name torch gave it, such as ``"0"``; before 2.5 a number
            that each process counts for itself.

        desc: Its description, such as ``"default_pg"``; ``""`` if untold.
    """

    name: str
    desc: str = ""

    @property
    def is_default(self) -> bool:
        """
        Whether it is the group of all ranks, where both ways to count agree.
        """
        return self.desc == "default_pg" or (
            self.name == "0" and not self.desc
        )

    def __str__(self) -> str:
        return self.desc if self.desc not in {"", "undefined"} else self.name


@attrs.frozen(kw_only=True)
class LogRecord:
    """
    What is known of every line.

    Attributes:
        rank: The global rank that printed it; ``None`` if that is not told.

        group_rank: Its rank *within the group*, which is what torch prints in
            ``[Rank 3]`` and in ``[PG … Rank 3]``.

        group: The group, if it is told.

        origin: Process and node, as the prefix of a launcher tells.

        source: The file.

        line: Number of the line, from 1.

        time: Seconds since the epoch, if the line tells.

        quote: What stands there.

        count: How many lines it stands for: Ray folds equal ones.

        attempt: How often the job had been restarted before.
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
    A call that did not end in time.

    Attributes:
        seq: Its number within the group; ``None`` if torch set none.

        op: The operation as in dumps, such as ``"all_reduce"``.

        numel_in: How many elements went in.

        numel_out: How many come out.

        timeout: Seconds that were allowed.

        ran: Seconds after which it was given up.

        blocking: Whether the rank's own thread waited for it.
    """

    seq: int | None
    op: str
    numel_in: int | None = None
    numel_out: int | None = None
    timeout: float | None = None
    ran: float | None = None
    blocking: bool = False

    @property
    def is_p2p(self) -> bool:
        """
        Whether only two ranks take part, so that numbers mean nothing to
        others.
        """
        return self.op in {"send", "recv", "recvanysource"}


@attrs.frozen(kw_only=True)
class WorkStatus(LogRecord):
    """
    How far a rank had come in a group.

    Attributes:
        failed: The call that failed there, if one did.

        enqueued: The last call that its host passed to the GPU.

        started: The last call that its GPU began; only torch 2.13 and later
            tell, and only if they time calls.

        completed: The last call that ended.
    """

    failed: int | None = None
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None


@attrs.frozen(kw_only=True)
class DumpSignal(WorkStatus):
    """
    A rank was told by another one to leave a dump.

    Attributes:
        sender: The global rank whose call timed out; ``None`` if its own.
    """

    sender: int | None = None


@attrs.frozen(kw_only=True)
class Heartbeat(LogRecord):
    """
    The watchdog of a rank did not move.

    Attributes:
        seconds: For how long.
    """

    seconds: float | None = None


@attrs.frozen(kw_only=True)
class DesyncReport(LogRecord):
    """
    What torch itself says of who lags behind (``TORCH_NCCL_DESYNC_DEBUG=1``).

    Attributes:
        kind: ``"joined"`` without finishing, ``"finished"`` without joining
            the next call, or ``"absent"`` from the beginning.

        members: The ranks within the group.

        seq: The call that they joined or finished.
    """

    kind: Literal["joined", "finished", "absent"]
    members: tuple[int, ...]
    seq: int | None = None


@attrs.frozen(kw_only=True)
class FingerPrint:
    """
    What one rank was about to call.

    Attributes:
        rank: Rank within the group.

        op: The operation as in dumps.

        seq: Its number within the group.

        shape: Sizes of the first tensor, as printed.

        dtype: Types of the tensors, as printed.

        is_own: Whether the rank told it itself.  What one rank tells of
            another may be wrong: torch reads sizes as if they were names of
            operations where the lengths differ.
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
        own: The call of the rank that complains.

        other: The call of the first rank that differs.
    """

    own: FingerPrint
    other: FingerPrint


@attrs.frozen(kw_only=True)
class BarrierFailure(LogRecord):
    """
    A monitored barrier failed.

    Attributes:
        absent: The ranks within the group that did not come; empty where a
            rank only says that it came itself.

        timeout: Seconds that were allowed.
    """

    absent: tuple[int, ...] = ()
    timeout: float | None = None


@attrs.frozen(kw_only=True)
class StoreTimeout(LogRecord):
    """
    Processes did not find each other, or a key that others should set.

    Attributes:
        kind: ``"clients"`` (the store waited for them), ``"connect"`` (the
            store was not reached), ``"barrier"`` (members were missing while a
            group was made), ``"unique_id"`` (the first rank of a group did not
            tell how to reach it), ``"listen"`` (its port was taken),
            ``"rendezvous"`` (nodes did not find each other), or ``"keys"``.

        joined: How many came.

        expected: How many should have come.

        timeout: Seconds that were allowed.

        address: Where the store was looked for.

        keys: What was waited for.

        reason: Why, as far as is told.
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
        kind: ``"timeout"``, ``"closed"`` (the other side is gone),
            ``"connect"`` (it was never reached), or ``"other"``.

        timeout: Seconds that were allowed.

        peer: Address of the other side.
    """

    kind: Literal["timeout", "closed", "connect", "other"]
    timeout: float | None = None
    peer: str = ""


@attrs.frozen(kw_only=True)
class NcclInit(LogRecord):
    """
    A rank began to set up a communicator, or was done with it.

    Attributes:
        host: Name of its node.

        pid: Its process there.

        comm: The communicator, within the process.

        comm_id: The communicator, for all of its ranks; ``""`` if untold.

        member: The rank within the communicator.

        size: How many ranks it has.

        is_complete: Whether it was done.
    """

    host: str
    pid: int
    comm: str
    comm_id: str = ""
    member: int
    size: int
    is_complete: bool = False


@attrs.frozen(kw_only=True)
class GroupMember(LogRecord):
    """
    A rank made a group of which it is a member (``TORCH_CPP_LOG_LEVEL=INFO``).

    Attributes:
        size: How many members the group has.
    """

    size: int


@attrs.frozen(kw_only=True)
class NcclNote(LogRecord):
    """
    What NCCL says of a process: its network, its version, a warning.

    Attributes:
        host: Name of its node; ``""`` if untold.

        pid: Its process there.

        kind: ``"interface"``, ``"network"``, ``"version"``, ``"warning"``, or
            ``"lost"`` (torch tells that another rank was gone).

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
    A call as NCCL prints it (``NCCL_DEBUG_SUBSYS=COLL``).

    Attributes:
        host: Name of its node.

        pid: Its process there.

        comm: The communicator, within the process.

        op: The operation as in dumps.

        number: How many calls the communicator had made.

        elements: How many elements.

        dtype: The type, as the number that NCCL gives it.

        size: How many ranks the communicator has, if told.
    """

    host: str
    pid: int
    comm: str
    op: str
    number: int
    elements: int | None = None
    dtype: str = ""
    size: int | None = None


_NO_RECORDS = frozenset({"world_size", "attempts", "quiet", "missing"})


@attrs.frozen(kw_only=True)
class CollectiveLogs(Shown):
    """
    All that logs say about collectives.

    Attributes:
        timeouts: Calls that did not end in time; one per rank and call,
            however often it was printed.

        statuses: How far ranks had come.

        dump_signals: Who was told to leave a dump, and how far it had come.

        heartbeats: Ranks whose watchdog did not move.

        desyncs: What torch itself says of who lags behind.

        mismatches: Ranks that were about to make different calls.

        barriers: Monitored barriers that failed.

        stores: Processes that did not find each other.

        gloo: Calls over Gloo that failed.

        members: Groups that were made, as their members tell.

        inits: Communicators that were set up.

        notes: Networks, versions, warnings of NCCL.

        calls: The last calls that NCCL printed, of each communicator of each
            process.

        world_size: How many ranks the job has, if known.

        attempts: How many runs of the job the logs hold.

        quiet: For how many seconds nobody had written to any of the files
            when they were read; ``None`` if they were no files.

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
        Everything that was said, in the order of the attributes.
        """
        return tuple(
            record
            for field in attrs.fields(CollectiveLogs)
            for record in (
                getattr(self, field.name)
                if field.name not in _NO_RECORDS
                else ()
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Plain data.
        """
        return as_plain(self)

    def to_records(self) -> list[dict[str, Any]]:
        """
        One plain dictionary per line, for a data frame.
        """
        return [
            {"kind": type(record).__name__} | as_plain(record)
            for record in self.records
        ]

    def _blocks_(self) -> Iterable[Block]:

        return logs_blocks(self)


# Unsigned numbers that were never set are printed as the largest there is.
_MOST = 1 << 62
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_GLUED = re.compile(r"all(?=reduce|gather|to_?all)")

Number = r"-?\d{1,20}"


def spaced(pattern: str) -> str:
    """
    Let a pattern match however many blanks stand where it has one, or none.

    >>> from distdebug.logs.collectives.model import spaced
    >>> spaced("ran for")
    'ran\\\\s{0,9}for'
    """
    return pattern.replace(" ", r"\s{0,9}")


def to_number(text: str | None) -> int | None:
    """
    Read a number; ``None`` if there is none, or if it never was set.
    """
    if text is None:
        return None

    number = int(text)
    return number if -1 <= number < _MOST else None


def op_name(text: str) -> str:
    """
    What is an operation of torch or NCCL called in dumps?

    >>> from distdebug.logs.collectives.model import op_name
    >>> op_name("_ALLGATHER_BASE"), op_name("ReduceScatter")
    ('_all_gather_base', 'reduce_scatter')
    """
    if not text.isupper():
        text = _CAMEL.sub("_", text)
    name = _GLUED.sub("all_", text.lower())
    return {
        "all_toall": "all_to_all",
        "all_toall_base": "all_to_all",
        "all_to_all_base": "all_to_all",
        "all_to_all_v": "all_to_all",
    }.get(name, name)


_PREFIX = re.compile(r"\[rank(\d{1,7})\]:?")
_GROUP = re.compile(
    spaced(
        r"\[PG ID (?P<id>\d{1,9}) PG GUID (?P<uid>[^\s(\]]{1,80}?)"
        r"(?: \((?P<desc>[^)\]]{0,200})\))? Rank (?P<rank>\d{1,7})\]"
        r"|\[PG (?P<old>[^\s(\]]{1,80}?)(?: \((?P<old_desc>[^)\]]{0,200})\))?"
        r" Rank (?P<old_rank>\d{1,7})\]"
    )
)
_RANK = re.compile(spaced(r"\[Rank (\d{1,7})\]"))
_QUOTE = 400
# So near before what they say, ranks are named.
_NEAR = 2000


@attrs.frozen
class Speaker:
    """
    Who prints a line, as far as it is the same for all of it.

    Attributes:
        line: The line.

        rank: The global rank, if it is told.

        text: The part of the line that is this rank's.

        attempt: How often the job had been restarted.
    """

    line: LogLine
    rank: int | None
    text: str
    attempt: int = 0

    def at(self, text: str, position: int) -> dict[str, Any]:
        """
        What a record has to know that is told at this position of the text.
        """
        group, member = _named(text[max(0, position - _NEAR) : position])
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
            "time": parse_time(text),
            "quote": clean(text[: 2 * _QUOTE], limit=_QUOTE),
            "count": self.line.count,
            "attempt": self.attempt,
        }


def speakers(
    line: LogLine, *, rank: int | None, attempt: int
) -> Iterator[Speaker]:
    """
    Who speaks in this line?

    Several ranks do where lines were written at once, or behind a progress
    bar.

    Args:
        line: The line.

        rank: Whose file it is, if its name tells.

        attempt: How often the job had been restarted.

    Yields:
        Each of them, with what it says.
    """
    origin: Origin | None = line.origin
    first = rank if origin is None or origin.rank is None else origin.rank
    head, *others = _PREFIX.split(line.text)
    if head.strip():
        yield Speaker(line, first, head, attempt)
    for number, text in zip(others[::2], others[1::2], strict=True):
        yield Speaker(line, int(number), text, attempt)


def _named(before: str) -> tuple[LogGroup | None, int | None]:
    """
    The group and the rank in it that were named last.
    """
    group = member = None
    for found in _GROUP.finditer(before):
        uid = found["uid"] or found["old"]
        group = LogGroup(uid, found["desc"] or found["old_desc"] or "")
        member = int(found["rank"] or found["old_rank"])
    for found in _RANK.finditer(before):
        member = int(found[1])
    return group, member


_MOST_EVIDENCE = 6


def evidence_of(records: Iterable[LogRecord]) -> tuple[Evidence, ...]:
    """
    Quote lines.

    Args:
        records: What stands in them.
    """
    found = dict.fromkeys(
        Evidence(
            kind="log",
            source=record.source,
            location=f"line {record.line}",
            quote=record.quote,
        )
        for record in records
    )
    return tuple(found)[:_MOST_EVIDENCE]


def nccl_finding(  # noqa: PLR0913 all of a finding
    cause: Cause,
    summary: str,
    evidence: Iterable[LogRecord],
    remedy: str,
    *,
    ranks: Iterable[int] = (),
    confidence: Confidence = "likely",
    collective: CollectiveRef | None = None,
) -> Finding:
    """
    Put what NCCL says into a finding.

    Args:
        cause: What is wrong.

        summary: The same as a sentence.

        evidence: The lines that show it.

        remedy: What to do about it.

        ranks: Those at fault.

        confidence: How sure that is.

        collective: The call for which others wait.
    """
    return Finding(
        cause=cause,
        ranks=tuple(sorted(set(ranks))),
        summary=summary,
        confidence=confidence,
        remedy=remedy,
        collective=collective,
        evidence=evidence_of(evidence),
    )


def ranks_of(records: Iterable[LogRecord]) -> tuple[int, ...]:
    """
    Which global ranks say this?

    Args:
        records: What they say.
    """
    return tuple(sorted({x.rank for x in records if x.rank is not None}))


def who_waited(records: Iterable[LogRecord]) -> str:
    """
    Name those who say this.

    Args:
        records: What they say.
    """
    ranks = ranks_of(records)
    return ranks_text(ranks) if ranks else "a process"


def within(records: Iterable[StoreTimeout | GlooError]) -> str:
    """
    Tell for how long they waited, such as ``" within 30 s"``.

    Args:
        records: What they say.

    Returns:
        The text; empty if no line tells.
    """
    spent = next((x.timeout for x in records if x.timeout), None)
    return f" within {spent:.0f} s" if spent else ""


_MOST_ROWS = 200


@attrs.frozen(kw_only=True)
class RankOrigin:
    """
    Where does a rank run?

    Attributes:
        rank: Global rank.

        pid: Its process, if a line tells.

        ip: Address of its node, if a line tells.

        host: Name of its node, if NCCL tells.

        source: The file that it writes to.
    """

    rank: int
    pid: int | None = None
    ip: str | None = None
    host: str | None = None
    source: str = ""


def rank_origins(logs: CollectiveLogs) -> dict[int, RankOrigin]:
    """
    Where do the ranks run that wrote something?

    Args:
        logs: What was read.

    Returns:
        By global rank, as much as prefixes of Ray and lines of NCCL tell.
    """
    found: dict[int, RankOrigin] = {}
    for record in logs.records:
        rank = record.rank
        if rank is None:
            continue
        known = found.get(rank, RankOrigin(rank=rank, source=record.source))
        origin = record.origin
        if origin is not None:
            known = attrs.evolve(
                known,
                pid=origin.pid if known.pid is None else known.pid,
                ip=known.ip or origin.ip,
            )
        found[rank] = known
    for init in logs.inits:
        if init.size == logs.world_size:
            known = found.get(
                init.member,
                RankOrigin(rank=init.member, source=init.source),
            )
            found[init.member] = attrs.evolve(
                known,
                host=init.host,
                pid=init.pid if known.pid is None else known.pid,
            )
    return dict(sorted(found.items()))


def logs_blocks(logs: CollectiveLogs) -> Iterator[Block]:
    """
    What is there to show of what was read?

    Args:
        logs: What was read.

    Returns:
        A table.
    """
    rows = [
        (
            type(record).__name__,
            "?" if record.rank is None else record.rank,
            record.group or "",
            f"{record.source}:{record.line}".lstrip(":"),
            record.quote,
        )
        for record in logs.records
    ]
    if rows:
        headers = ("what", "rank", "group", "where", "line")
        yield Table(headers, rows, _MOST_ROWS, more="")
    else:
        yield "no line about a collective"
