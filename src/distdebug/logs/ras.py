"""
Read the status of NCCL's RAS, as ``ncclras`` prints it, as text or JSON.

NCCL 2.24 and later keeps a thread per process that reports how many operations
each rank has launched in each communicator, and which processes do not answer.
Ray Train 2.60 and later asks for it again and again; when a job hangs, it writes
the answers to files, and prints the last one into the log of its controller.
Source of both forms: ``src/ras/client_support.cc`` of NCCL 2.24 to 2.31.
"""

from __future__ import annotations

import json
import os
import re

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Literal

import attrs

from .._io import read_ordinary
from .._text import clean
from ..causes import Cause
from ..findings import Evidence, Finding
from ..ranks import ranks_text
from .collectives.model import normalize_op
from .engine import BYTES_AFTER, Block, LogReader


_MOST_BYTES = 1 << 28
_MOST_QUOTED = 4
_LOG_WORDS = frozenset({b"job summary"})
# A prefix of the first line in characters, in UTF-8.
_MOST_BEFORE = 4 * 200
_JSON_START = re.compile(
    rb'^(?:\s*(?:SERVER PROTOCOL \d+|OK)\n)*\s*\{\s*"nccl_version"'
)
# Whoever asks by a socket, without ncclras, gets these lines, too.
_PROTOCOL_LINE = re.compile(r"^(?:SERVER PROTOCOL \d+|OK)$", re.MULTILINE)

Problem = Literal["behind", "missing", "dead"]


@attrs.frozen(kw_only=True)
class RasRank:
    """
    A rank that RAS lists because something is wrong with it.

    Attributes:
        rank: Its rank within the communicator.

        problem: ``"behind"`` in launching operations; ``"missing"``: its
            process did not answer; ``"dead"``: nor does RAS expect it to.

        launched: How many operations it has launched, if it is behind.

        others: How many those have launched that are ahead of it.

        op: The operation, such as ``"all_reduce"``; ``""`` if RAS counts all.

        place: Its GPU, process, and node, as printed.

        line: The line number in the file, from 1; 0 in JSON.
    """

    rank: int
    problem: Problem
    launched: int = 0
    others: int = 0
    op: str = ""
    place: str = ""
    line: int = 0

    @property
    def is_behind(self) -> bool:
        """
        Return whether others have launched more.
        """
        return self.launched < self.others


@attrs.frozen(kw_only=True)
class RasCommunicator:
    """
    A communicator, and the ranks of it with which something is wrong.

    Attributes:
        name: Its hash, in hexadecimal digits.

        size: How many ranks it has; 0 if unknown.

        ranks: The ranks that are listed.
    """

    name: str
    size: int = 0
    ranks: tuple[RasRank, ...] = ()


@attrs.frozen(kw_only=True)
class RasStatus:
    """
    One status of a job.

    Attributes:
        source: The file.

        communicators: Those with which something is wrong.

        gpus: How many GPUs the job has, one per rank; 0 if unknown.

        silent: The first line about processes that do not answer, as printed,
            and where it stands; ``None`` if all do.

        nccl_version: The version of NCCL; ``""`` if it is not given.
    """

    source: str = ""
    communicators: tuple[RasCommunicator, ...] = ()
    gpus: int = 0
    silent: tuple[str, int] | None = None
    nccl_version: str = ""


def is_ras_status(head: bytes) -> bool:
    """
    Return whether a file is the status of RAS in JSON.

    As text, it is read like any log: others may write to the same file.

    Args:
        head: Its first bytes.
    """
    return _JSON_START.match(head) is not None


def read_ras_status(path: str | os.PathLike[str]) -> tuple[RasStatus, ...]:
    """
    Read all statuses in a file of JSON, in their order.

    Args:
        path: What ``ncclras`` printed, once or again and again.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file, too large, or damaged.
    """
    data = read_ordinary(path, _MOST_BYTES)
    text = data.decode("utf-8", "replace")
    return tuple(_read_documents(text, os.fspath(path)))


_DECODER = json.JSONDecoder()
# NCCL 2.28.9 leaves out the comma between two lists.
_NO_COMMA = re.compile(r"\]([^\S\n]*\n\s*)(?=\")")
_NOT_BLANK = re.compile(r"\S")
_INVALID_ERRORS = (
    *(AttributeError, KeyError, OverflowError, TypeError, ValueError),
)


def _read_documents(text: str, source: str) -> Iterator[RasStatus]:
    text = _NO_COMMA.sub(r"],\1", _PROTOCOL_LINE.sub("", text))
    position = 0
    while start := _NOT_BLANK.search(text, position):
        try:
            document, end = _DECODER.raw_decode(text, start.start())
        except RecursionError:
            msg = "its JSON is nested too deeply"
            raise ValueError(msg) from None
        except ValueError:
            if position:
                return  # the last one is cut off
            raise
        yield _parse_document(document, source)
        position = end


def _parse_document(document: Any, source: str) -> RasStatus:
    try:
        communicators = tuple(
            _parse_communicator(one) for one in document["communicators"]
        )
    except _INVALID_ERRORS as exc:
        msg = f"not what ncclras writes: {type(exc).__name__}: {exc}"
        raise ValueError(msg) from None

    return RasStatus(
        source=source,
        communicators=tuple(x for x in communicators if x.ranks),
        gpus=max((x.size for x in communicators), default=0),
        nccl_version=str(document.get("nccl_version") or ""),
    )


def _parse_communicator(data: Mapping[str, Any]) -> RasCommunicator:
    size, known = int(data["size"]), list(data.get("ranks") or ())
    for one in (*(data.get("missing_ranks") or ()), *known):
        if not 0 <= int(one["rank"]) < size:
            msg = "a rank that its communicator cannot have"
            raise ValueError(msg)

    found: list[RasRank] = []
    for one in data.get("missing_ranks") or ():
        is_dead = (one.get("status") or {}).get("considered_dead") is True
        problem: Problem = "dead" if is_dead else "missing"
        found.append(
            RasRank(rank=int(one["rank"]), problem=problem, place=_place(one))
        )
    ops = known[0]["collective_counts"] if known else ()
    for op in ops:
        counts = [int(one["collective_counts"][op]) for one in known]
        most = max(counts)
        found += (
            RasRank(
                rank=int(one["rank"]),
                problem="behind",
                launched=count,
                others=most,
                op=normalize_op(str(op)),
                place=_place(one),
            )
            for one, count in zip(known, counts, strict=True)
            if count < most
        )
    return RasCommunicator(
        name=str(data["hash"]).removeprefix("0x"),
        size=size,
        ranks=tuple(found),
    )


def _place(one: Mapping[str, Any]) -> str:
    return f"GPU {one['cuda_dev']}, process {one['pid']} on {one['host']}"


# In a log, each line has the prefix of who printed it.
_STATUS_START = re.compile(
    r"^(?P<prefix>.{0,200}?)Job summary\s*\n(?P=prefix)=+\s*$", re.MULTILINE
)
# Other programs print a summary of a job, too.
_TABLE_HEAD = re.compile(r"\s*Nodes\s+Processes\s+GPUs\b")
_TOTAL_GPUS = re.compile(r"\s*\d+\s+\d+\s+\d+\s+\d+\s+(\d+)")
_GROUP_ROW = re.compile(
    r"\s*(\d+)(?:\s+[\d-]+){3}\s+(\d+)\s+\d+(?:\s+[A-Z]+){2}"
)
_COMMUNICATOR = re.compile(r"#(\d+)-\d+ \(([0-9a-f]+)\) ([A-Z]+)")
_OPERATION = re.compile(
    r"\s+Communicator ranks have different (\w+) operation"
)
_COUNT = re.compile(
    r"\s+(?:\d+ ranks?|Rank \d+) ha(?:ve|s)"
    r" (?:launched up to operation (?P<count>\d{1,18})|not launched any operations)"
)
_SILENT = re.compile(
    r"\s+(?:Missing communicator data from \d+ job process"
    r"|\d+ job process(?:es are| is) considered dead)"
)
_LISTED = re.compile(r"\s+Rank (?P<rank>\d{1,9}) .*?-- (?P<place>.{1,200})")


class RasReader(LogReader):
    """
    Read the statuses in the text of logs.

    Attributes:
        found: The statuses, by file and in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[RasStatus] = []

    def words(self, _stop: int) -> AbstractSet[bytes]:
        """
        Return what each status begins with.
        """
        return _LOG_WORDS

    def read(self, block: Block) -> None:
        """
        Read the statuses that begin in a block.
        """
        places = [at for at, _ in block.hits(_LOG_WORDS)]
        for at, after in pairwise([*places, block.size]):
            # A line of gigabytes may have the words again and again.
            first = max(at - _MOST_BEFORE, 0)
            start = block.data.rfind(b"\n", first, at) + 1
            if not start and first:
                continue
            stop = min(after, at + BYTES_AFTER, block.size)
            text = block.data[start:stop].decode("utf-8", "replace")
            number = block.line_number(at)
            self.found += _read_text(text, self.part.path, number)


def _read_text(text: str, source: str, first: int) -> Iterator[RasStatus]:
    found = [*_STATUS_START.finditer(text)]
    ends = [*(x.start() for x in found[1:]), len(text)]
    for head, end in zip(found, ends, strict=bool(found)):
        reader, prefix, start = _TextReader(), head["prefix"], head.start()
        before = text.count("\n", 0, start) + first
        lines = text[start:end].split("\n")
        for number, line in enumerate(lines, before):
            if line.startswith(prefix):
                own = line[len(prefix) :]
                reader.read(own[:1000].rstrip(), number)
        if reader.is_status:
            yield RasStatus(
                source=source,
                communicators=reader.communicators(),
                gpus=reader.gpus,
                silent=reader.silent,
            )


@attrs.define
class _TextReader:
    """
    Read the lines of one status, if it is one.
    """

    is_status: bool = False
    gpus: int = 0
    silent: tuple[str, int] | None = None
    sizes: dict[str, int] = attrs.field(factory=dict)
    found: list[tuple[RasCommunicator, list[RasRank]]] = attrs.field(
        factory=list
    )
    # Of the communicator that is being read.
    is_incomplete: bool = False
    op: str | None = None
    launched: int = 0
    # How far the first ranks are, by communicator and operation.
    most: dict[tuple[int, str], int] = attrs.field(factory=dict)

    def read(self, line: str, number: int) -> None:
        """
        Read a line.
        """
        if not self.is_status:
            self.is_status = _TABLE_HEAD.match(line) is not None
        elif not self.gpus and (row := _TOTAL_GPUS.fullmatch(line)):
            self.gpus = int(row[1])
        elif row := _GROUP_ROW.fullmatch(line):
            self.sizes[row[1]] = int(row[2])
        elif row := _COMMUNICATOR.match(line):
            group, name, error = row.groups()
            self.is_incomplete = error == "INCOMPLETE"
            size = self.sizes.get(group, 0)
            self.found.append((RasCommunicator(name=name, size=size), []))
            self.op = None
        elif row := _OPERATION.match(line):
            self.op = "" if row[1] == "collective" else normalize_op(row[1])
        elif self.found:
            self._read_rank(line, number)
        elif self.silent is None and _SILENT.match(line):
            self.silent = line.strip(), number

    def _read_rank(self, line: str, number: int) -> None:
        if count := _COUNT.match(line):
            key = len(self.found) - 1, self.op or ""
            self.launched = int(count["count"] or 0)
            self.most[key] = max(self.most.get(key, 0), self.launched)
        listed = _LISTED.fullmatch(line)
        if listed is None or (self.op is None and not self.is_incomplete):
            return

        _, ranks = self.found[-1]
        ranks.append(
            RasRank(
                rank=int(listed["rank"]),
                problem="missing" if self.is_incomplete else "behind",
                launched=self.launched,
                op=self.op or "",
                place=listed["place"],
                line=number,
            )
        )

    def communicators(self) -> tuple[RasCommunicator, ...]:
        """
        Return those with which something is wrong.
        """
        known = []
        for index, (one, listed) in enumerate(self.found):
            ranks = (
                attrs.evolve(x, others=self.most.get((index, x.op), 0))
                for x in listed
            )
            wrong = (x for x in ranks if x.problem != "behind" or x.is_behind)
            known.append(attrs.evolve(one, ranks=tuple(wrong)))
        return tuple(x for x in known if x.ranks)


def ras_findings(statuses: Iterable[RasStatus]) -> tuple[Finding, ...]:
    """
    Report the ranks that hold up the others, and those that do not answer.

    Args:
        statuses: In the order of time; the last one of each file, or of a
            history of files, counts, and the one before it shows whether ranks
            have moved since.
    """
    series: dict[str, list[RasStatus]] = {}
    for status in sorted(statuses, key=_place_in_history):
        series.setdefault(_history_of(status), []).append(status)
    findings: list[Finding] = []
    # Of what several say, the surest counts.
    for several in sorted(series.values(), key=lambda x: not x[1:]):
        before = set(_positions(several[-2])) if several[1:] else None
        last = several[-1]
        # The largest communicator first: it names global ranks.
        found = [
            finding
            for one in sorted(last.communicators, key=lambda x: -x.size)
            for finding in _communicator_findings(last, one, before)
            # Each node of a job answers for all of it.
            if finding.summary not in {x.summary for x in findings}
        ]
        if last.silent and not any(
            x.cause is Cause.RANK_CRASHED for x in found
        ):
            found.insert(0, _silent_finding(last, *last.silent))
        findings += found
    return tuple(findings)


# Ray Train writes the answer to each question to a file named by its time, and
# the last one as ncclras_report.txt beside them.
_HISTORY_FILE = re.compile(r"ncclras_[\w.-]+\.(?:json|txt)")


def _history_of(status: RasStatus) -> str:
    path = PurePath(status.source)
    is_part = _HISTORY_FILE.fullmatch(path.name) is not None
    return str(path.parent if is_part else path)


def _place_in_history(status: RasStatus) -> tuple[bool, str]:
    path = PurePath(status.source)
    if not _HISTORY_FILE.fullmatch(path.name):
        return False, ""
    # The report is as old as the last document, which has more in it.
    return path.suffix == ".json", path.name


_Position = tuple[str, int, str, int]


def _positions(status: RasStatus) -> Iterator[_Position]:
    for one in status.communicators:
        for rank in one.ranks:
            yield one.name, rank.rank, rank.op, rank.launched


def _communicator_findings(
    status: RasStatus, one: RasCommunicator, before: set[_Position] | None
) -> Iterator[Finding]:
    if gone := [x for x in one.ranks if x.problem != "behind"]:
        yield _make_finding(
            Cause.RANK_CRASHED,
            status,
            one,
            gone,
            f"{'does' if len(gone) == 1 else 'do'} not answer NCCL: ended, "
            "stopped, or on a node that cannot be reached",
            is_confirmed=any(x.problem == "dead" for x in gone),
        )
    # Who has moved since is late at most.
    behind: dict[str, list[RasRank]] = {}
    for x in one.ranks:
        position = (one.name, x.rank, x.op, x.launched)
        if x.problem == "behind" and (before is None or position in before):
            behind.setdefault(x.op, []).append(x)
    for op, same in behind.items():
        yield _make_finding(
            Cause.RANK_NOT_ARRIVED,
            status,
            one,
            same,
            f"launched {op or 'operation'} #{min(x.launched for x in same)} "
            f"last, and others #{same[0].others}",
            is_confirmed=before is not None,
        )


def _make_finding(  # noqa: PLR0913 the parts of one sentence
    cause: Cause,
    status: RasStatus,
    one: RasCommunicator,
    listed: Sequence[RasRank],
    text: str,
    *,
    is_confirmed: bool,
) -> Finding:
    numbers = sorted({x.rank for x in listed})
    is_world = 0 < one.size == status.gpus
    of_group = "" if is_world else f" of communicator {one.name}"
    ask_again = "ask again (ncclras) after a minute; if it is the same, "
    return Finding(
        cause=cause,
        ranks=tuple(numbers) if is_world else (),
        summary=f"{ranks_text(numbers)}{of_group} {text}",
        # Calls that are being launched make ranks differ, too.
        confidence="likely" if is_confirmed else "possible",
        remedy=f"{'' if is_confirmed else ask_again}{cause.remedy}",
        evidence=tuple(
            _quote(status, f"rank {x.rank}: {x.place}", x.line)
            for x in listed[:_MOST_QUOTED]
        ),
    )


def _quote(status: RasStatus, text: str, number: int) -> Evidence:
    return Evidence(
        kind="log",
        source=status.source,
        location=f"line {number}" if number else "",
        quote=clean(text),
    )


def _silent_finding(status: RasStatus, line: str, number: int) -> Finding:
    return Finding(
        cause=Cause.RANK_CRASHED,
        ranks=(),
        summary="processes do not answer NCCL: ended, stopped, or on a node "
        "that cannot be reached",
        confidence="likely" if "dead" in line else "possible",
        remedy=Cause.RANK_CRASHED.remedy,
        evidence=(_quote(status, line, number),),
    )
