"""
Findings and diagnoses: the result types of all checks.

Every check returns :class:`Finding` objects, and :func:`distdebug.diagnose`
joins them into one :class:`Diagnosis`.
"""

from __future__ import annotations

import os

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import attrs

from ._render import (
    Block,
    Entries,
    Entry,
    Lines,
    Shown,
    Table,
    as_plain,
    blocks_markdown,
    frame_of,
)
from ._text import clean, reason_of
from .causes import Cause
from .ranks import fold_ranks, ranks_text


if TYPE_CHECKING:
    import pandas as pd


Confidence = Literal["certain", "likely", "possible"]
#: All values, most certain first.
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)


def described(desc: str) -> str:
    """
    Return the description of a process group; ``""`` if nobody gave it one.

    Torch calls such a group ``"undefined"``.
    """
    return "" if desc == "undefined" else desc


@attrs.frozen(kw_only=True)
class GroupRef:
    """
    A process group.

    Attributes:
        name: Torch's name of the group, such as ``"0"``.

        desc: Its description, such as ``"default_pg"`` or ``"mesh_tp"``.

        ranks: Its members as global ranks, ascending.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        # The name comes from the job, and is printed.
        return clean(described(self.desc) or self.name)


@attrs.frozen(kw_only=True)
class CollectiveRef:
    """
    A call in a process group.

    Attributes:
        op: The operation without its backend, such as ``"all_reduce"``.

        seq: Sequence number within its group, counted from 1.

        p2p: Whether it is a point-to-point operation; *seq* then counts
            point-to-point operations.
    """

    op: str
    seq: int
    p2p: bool = False

    def __str__(self) -> str:
        return f"{self.op} #{self.seq}"


@attrs.frozen(kw_only=True)
class Location:
    """
    A line of source code.
    """

    function: str
    file: str
    line: int

    @property
    def brief(self) -> str:
        """
        Return it without folders, as in ``"read_shard (train.py:41)"``.
        """
        name = self.file.replace("\\", "/").rpartition("/")[2]
        return f"{self.function} ({name}:{self.line})"

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@attrs.frozen(kw_only=True)
class Evidence:
    """
    A piece of evidence, with its source.

    Attributes:
        kind: ``"dump"``, ``"stack"``, ``"sidecar"``, ``"log"``, ….

        source: The file it comes from.

        location: The line, record, or thread within *source*.

        quote: The text there.
    """

    kind: str
    source: str
    location: str = ""
    quote: str = ""


@attrs.frozen(kw_only=True)
class Activity:
    """
    What a rank does on its host.

    Attributes:
        rank: The rank; ``None`` if unknown.

        doing: A predicate, such as ``"is waiting for data"``.

        call: The system call that it is blocked in, such as ``"openat"``;
            ``""`` if that is unknown or does not matter.

        target: The object of that call: a path, peer, pipe, or process.

        note: What is particular about it, such as ``"held by process 7"``.
    """

    rank: int | None = None
    doing: str
    call: str = ""
    target: str = ""
    note: str = ""


Link = Literal["because", "perhaps because", "but", "and", "doing"]


@attrs.frozen(kw_only=True)
class Clause:
    """
    What further evidence adds to a finding.

    Attributes:
        link: How it belongs to it: ``"because"`` and ``"perhaps because"`` give
            a reason, ``"but"`` contradicts, ``"and"`` adds a fact, and
            ``"doing"`` says what a rank at fault does.

        text: A main clause without a full stop, such as ``"rank 3 is sleeping"``.
    """

    link: Link
    text: str


@attrs.frozen(kw_only=True)
class Cost:
    """
    What slow ranks cost the others.

    Attributes:
        side: Whether they are slow on their ``"host"``, their ``"device"``, or
            their ``"link"`` to another node; ``"rank"`` if that is not known.

        seconds: How long the others waited in all.

        share: The same as a share of the time on record, from 0 to 1.

        per_call_s: How long they typically wait, in seconds.

        calls: In how many calls.

        of_calls: How many calls were compared.
    """

    side: str
    seconds: float
    share: float
    per_call_s: float
    calls: int
    of_calls: int


@attrs.frozen(kw_only=True)
class Finding(Shown):
    """
    One conclusion, with its evidence.

    Attributes:
        cause: The cause.

        ranks: The ranks at fault, or suspected, ascending.

        summary: One sentence, fit for a ticket, with all *clauses*.

        confidence: ``"certain"``, ``"likely"``, or ``"possible"``.

        remedy: What to do about it.

        group: The process group concerned.

        collective: The first call concerned.

        detail_cause: Why a rank did not arrive, according to its host stack.

        location: The line of user code concerned.

        activity: What the first rank at fault does on its host.

        waiting: The ranks that wait in the call, ascending.

        waited_s: How long the first of them has waited, in seconds.

        evidence: The evidence.

        clauses: What further evidence added to the summary.

        cost: What slow ranks cost the others; ``None`` for other causes.

        is_consequence: Whether it only followed from the first finding, such as
            what a launcher did to the other ranks.
    """

    cause: Cause
    ranks: tuple[int, ...]
    summary: str
    confidence: Confidence = "likely"
    remedy: str | None = None
    group: GroupRef | None = None
    collective: CollectiveRef | None = None
    detail_cause: Cause | None = None
    location: Location | None = None
    activity: Activity | None = None
    waiting: tuple[int, ...] = ()
    waited_s: float | None = None
    evidence: tuple[Evidence, ...] = ()
    clauses: tuple[Clause, ...] = ()
    cost: Cost | None = None
    is_consequence: bool = False

    def with_clause(
        self,
        link: Link,
        text: str | Finding,
        *,
        behind: Iterable[Evidence] = (),
        **changes: Any,
    ) -> Self:
        """
        Return the finding with what further evidence says about it.

        Args:
            link: How that belongs to the finding.

            text: A main clause without a full stop, or another finding.

            behind: Evidence that goes behind what is known already.

            changes: Other attributes to replace; ``evidence`` goes before
                what is known already.
        """
        text = text.summary if isinstance(text, Finding) else text
        before = changes.get("evidence", ())
        changes["evidence"] = (*before, *self.evidence, *behind)
        return attrs.evolve(
            self,
            summary=_append_clause(self.summary, link, text),
            clauses=(*self.clauses, Clause(link=link, text=text)),
            **changes,
        )

    def _blocks_(self) -> Iterable[Block]:
        yield Entries([finding_entry(self)])


def _append_clause(summary: str, link: Link, text: str) -> str:
    if link == "doing":
        return f"{summary}. {text[:1].upper()}{text[1:]}"
    return (
        f"{summary}; {text}" if link == "and" else f"{summary}; {link} {text}"
    )


def blames_ranks(finding: Finding) -> bool:
    """
    Return whether the ranks are at fault, not only reporting or affected.
    """
    members = finding.group.ranks if finding.group else ()
    return not finding.cause.is_blameless or (
        finding.cause is Cause.COLLECTIVE_STUCK_IN_FLIGHT
        and not set(members) <= set(finding.ranks)
    )


@attrs.frozen(kw_only=True)
class Missing:
    """
    Input that could not be read.

    Attributes:
        what: ``"dump"``, ``"sidecar"``, ``"stack"``, ….

        reason: One sentence.

        rank: Its rank, if known.

        source: The file concerned, if there is one.
    """

    what: str
    reason: str
    rank: int | None = None
    source: str | None = None

    @classmethod
    def log(
        cls, path: str | os.PathLike[str], why: str | BaseException
    ) -> Missing:
        """
        Return an entry for a log, or a part of one, that could not be read.

        Args:
            path: The file, or the folder of logs.

            why: One sentence, or the exception.
        """
        reason = why if isinstance(why, str) else reason_of(why)
        return cls(what="log", reason=reason, source=os.fspath(path))


@attrs.frozen(kw_only=True)
class GroupProgress:
    """
    Progress of one process group.

    Attributes:
        name: Torch's name of the group.

        desc: Its description.

        ranks: Its members as global ranks, ascending.

        last_completed: Highest sequence number that is known to be complete.

        furthest: Highest sequence number that any member enqueued.

        waiting: Members whose call is not complete.

        absent: Members that the waiting ones wait for.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]
    last_completed: int
    furthest: int
    waiting: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()


@attrs.frozen(kw_only=True)
class Checked:
    """
    What came of playing the recorded schedule forward without the root cause.

    Attributes:
        ranks: The ranks that were let go on.

        calls: How many calls are stuck.

        completed: How many of them complete then.

        awaited: Ranks that the other ones wait for, ascending.

        later: How many calls after a mismatch are on record on both sides.

        agreeing: How many of them agree, up to the first that does not, if the
            odd call is removed, added, or made like that of the others.
    """

    ranks: tuple[int, ...]
    calls: int
    completed: int
    awaited: tuple[int, ...] = ()
    later: int = 0
    agreeing: int = 0

    def __str__(self) -> str:
        parts = (self._waits_text(), self._later_text())
        return "; ".join(filter(None, parts))

    def _later_text(self) -> str:
        if self.later < 2:
            return ""
        text = (
            f"with the call made right, {self.agreeing} of the {self.later} "
            "calls after it agree"
        )
        if 2 * self.agreeing >= self.later:
            return text
        return f"{text}: these ranks are on another path through the code"

    def _waits_text(self) -> str:
        if self.calls < 2:
            return ""
        verb = "goes on" if len(self.ranks) == 1 else "go on"
        then = (
            f"{ranks_text(self.ranks)} {verb}"
            if self.ranks
            else "this call ends"
        )
        if self.completed == self.calls:
            return f"if {then}, all {self.calls} stuck calls complete"
        text = (
            f"if {then}, {self.completed} of {self.calls} stuck calls complete"
        )
        if not self.awaited:
            return text
        return f"{text}; the others wait for {ranks_text(self.awaited)}"


@attrs.frozen(kw_only=True)
class KnownBug:
    """
    A published bug that fits a diagnosis.

    Attributes:
        name: Its name, such as ``"nccl-abort-hang"``.

        title: What goes wrong, as a clause.

        component: What it is in, such as ``"nccl"``.

        version: The affected version on record; ``""`` if none is, and a text
            that is typical of it was found.

        affected: The affected versions, such as ``">=2.14,<2.17.1"``.

        fixed_in: The release that mends it, or ``""``.

        workaround: What helps without a new release, or ``""``.

        source: Where it was published.
    """

    name: str
    title: str
    component: str
    version: str
    affected: str
    fixed_in: str
    workaround: str
    source: str

    def __str__(self) -> str:
        which = self.version or self.affected
        ways = [
            self.fixed_in and f"fixed in {self.fixed_in}",
            self.workaround and f"until then, {self.workaround}"
            if self.fixed_in
            else self.workaround,
        ]
        text = f"{self.title} ({self.component} {which})"
        return "; ".join(filter(None, [text, *ways, self.source]))


@attrs.frozen(kw_only=True)
class Diagnosis(Shown):
    """
    Verdict on a job, with all findings.

    Attributes:
        verdict: The root cause, or ``healthy``, or ``unknown`` with what to
            collect next as its remedy.

        findings: All findings, most important first.

        victims: Ranks that only wait for others.

        missing: Input that could not be read, and why.

        groups: The progress of every process group.

        known_bugs: Published bugs that fit, the most certain first.

        checked: What completes without the root cause, if dumps show that.

        seen: The input, for a report; it is neither pickled nor compared.
    """

    verdict: Finding
    findings: tuple[Finding, ...] = ()
    victims: tuple[int, ...] = ()
    missing: tuple[Missing, ...] = ()
    groups: tuple[GroupProgress, ...] = ()
    known_bugs: tuple[KnownBug, ...] = ()
    checked: Checked | None = None
    seen: object = attrs.field(default=None, eq=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # *seen* may hold gigabytes of dumps.
        fields = attrs.asdict(
            self, recurse=False, filter=lambda field, _: field.name != "seen"
        )
        return partial(Diagnosis, **fields), ()

    def __repr__(self) -> str:
        verdict = self.verdict
        where = f", {ranks_text(verdict.ranks)}" if verdict.ranks else ""
        return f"<Diagnosis: {verdict.cause} ({verdict.confidence}){where}>"

    @property
    def is_healthy(self) -> bool:
        """
        Return whether the verdict needs no action.
        """
        return self.verdict.cause.is_fine

    def to_dict(self) -> dict[str, Any]:
        """
        Return plain data in the layout of the command line's ``--json``.
        """
        return {
            "verdict": self.verdict.to_dict(),
            "findings": [f.to_dict() for f in self.findings],
            "victims": list(self.victims),
            "missing": [attrs.asdict(m) for m in self.missing],
            "groups": [as_plain(g) for g in self.groups],
            "known_bugs": [attrs.asdict(b) for b in self.known_bugs],
            "checked": self.checked and as_plain(self.checked),
        }

    def _blocks_(self) -> Iterable[Block]:
        return diagnosis_blocks(self)

    def _picture_(self) -> str:
        # The page is a room above, looked up only where a notebook asks.
        try:
            report = import_module("distdebug.report")
            return str(report.notebook_graph(self))
        except Exception:  # noqa: BLE001 the rest can still be shown
            return ""

    def to_markdown(self) -> str:
        """
        Return Markdown for an issue or a chat; evidence is folded.
        """
        return blocks_markdown(self._blocks_())

    def to_records(self) -> list[dict[str, Any]]:
        """
        Return one plain dictionary per finding, for a data frame.
        """
        return [f.to_dict() for f in self.findings]

    def to_frame(self) -> pd.DataFrame:
        """
        Return a data frame of *pandas* with one row per finding.

        Parts have columns of their own, such as ``location_file``.

        Raises:
            MissingDependencyError: *pandas* is not installed.
        """
        records = self.to_records()
        for record in records:
            del record["evidence"], record["clauses"]  # each has several
        return frame_of(records, flat=True)


# Long enough to show the user's lines after those of libraries.
_MAX_QUOTE = 400
_MAX_EVIDENCE = 6
_MAX_BRIEF = 140


def diagnosis_blocks(d: Diagnosis) -> Iterator[Block]:
    """
    Yield the blocks of a diagnosis: the verdict, then its evidence.
    """
    yield Entries([finding_entry(d.verdict)])
    yield Lines([clean(f"known bug: {bug}") for bug in d.known_bugs])
    if d.checked and (text := str(d.checked)):
        yield f"checked: {text}"
    others = [f for f in d.findings if f != d.verdict]
    yield Entries(
        [
            finding_entry(f, before="also:")
            for f in others
            if not f.is_consequence
        ]
    )
    after = [
        clean(f.summary, limit=_MAX_BRIEF) for f in others if f.is_consequence
    ]
    yield Lines([f"followed by: {text}" for text in after])
    if len(costly(d.findings)) > 1:
        yield cost_block(d)
    if d.groups:
        yield group_block(sorted(d.groups, key=group_sort_key(d)))
    if d.victims:
        yield f"waiting on others: {ranks_text(d.victims)}"
    yield missing_block(d.missing)


def costly(findings: Iterable[Finding]) -> list[Finding]:
    """
    Return the findings about slow ranks, the most expensive first.
    """
    slow = [f for f in findings if f.cost is not None]
    return sorted(
        slow, key=lambda f: f.cost.seconds if f.cost else 0, reverse=True
    )


def cost_block(d: Diagnosis) -> Table:
    """
    Return a table of slow ranks, and of what they cost the others.
    """
    rows = [
        (
            fold_ranks(f.ranks),
            f"{cost.side}, at {f.location.brief}" if f.location else cost.side,
            f"{cost.seconds:,.1f} s",
            f"{cost.share:.0%}",
            f"{cost.calls:,} of {cost.of_calls:,}",
        )
        for f in costly(d.findings)
        if (cost := f.cost)
    ]
    headers = ("slow", "on its", "others wait", "of the time", "in calls")
    return Table(headers, rows)


def finding_entries(findings: Sequence[Finding], most: int = 3) -> Entries:
    """
    Return several findings as entries.

    Args:
        findings: The most important one first.

        most: How many are shown at first.
    """
    more = "finding" if len(findings) == most + 1 else "findings"
    return Entries([finding_entry(f) for f in findings], most, more)


def finding_entry(finding: Finding, before: str = "") -> Entry:
    """
    Return one finding as an entry: the summary, then evidence and remedy.

    Args:
        before: Text in front of the summary.
    """
    facts = [("cause", f"{finding.cause} ({finding.confidence})")]
    if finding.remedy:
        facts.append(("next", finding.remedy))
    quotes = [
        (e.kind, _place_of(e), clean(e.quote, limit=_MAX_QUOTE))
        for e in finding.evidence[:_MAX_EVIDENCE]
    ]
    return Entry(finding.summary, facts, before, quotes)


def _place_of(evidence: Evidence) -> str:
    """
    Return the place within the source; for a log, with its path.

    Terminals open ``path:line`` on a click.
    """
    line = evidence.location.removeprefix("line ")
    if evidence.kind == "log" and line.isdecimal() and evidence.source:
        return f"{evidence.source}:{line}"

    source = evidence.source.replace("\\", "/").rpartition("/")[2]
    parts = [source if evidence.kind == "log" else "", evidence.location]
    return ", ".join(filter(None, parts))


def group_sort_key(d: Diagnosis) -> Callable[[GroupProgress], tuple[int, ...]]:
    """
    Return a key that sorts groups by their importance for a diagnosis.

    Hundreds of groups of a large job are stuck, most of them behind a few
    others.  Stuck groups come first; among them the group of the verdict, then
    groups that wait for the blamed ranks, then large ones.
    """
    verdict = d.verdict.group
    blamed = frozenset(d.verdict.ranks)

    def key(g: GroupProgress) -> tuple[int, ...]:
        return (
            not (g.waiting or g.absent),
            verdict is None
            or (g.name, g.ranks) != (verdict.name, verdict.ranks),
            blamed.isdisjoint(g.absent),
            -len(g.waiting),
            -len(g.ranks),
        )

    return key


def group_block(groups: Sequence[GroupProgress]) -> Table:
    """
    Return the progress of groups as a table, in the given order.
    """
    rows = [
        (
            f"{g.name}: {desc}" if (desc := described(g.desc)) else g.name,
            fold_ranks(g.ranks),
            g.last_completed,
            g.furthest,
            fold_ranks(g.waiting) if g.waiting else "-",
            fold_ranks(g.absent) if g.absent else "-",
        )
        for g in groups
    ]
    headers = ("group", "ranks", "completed", "furthest", "waiting", "absent")
    return Table(headers, rows, more="groups")


def missing_block(missing: Sequence[Missing]) -> Lines:
    """
    Return one line per reason for input that could not be read.
    """
    by_reason: dict[tuple[str, str], list[Missing]] = {}
    for m in missing:
        by_reason.setdefault((m.what, m.reason), []).append(m)
    return Lines(
        [_missing_line(*key, rows) for key, rows in by_reason.items()]
    )


def _missing_line(what: str, reason: str, rows: Sequence[Missing]) -> str:
    ranks = [m.rank for m in rows if m.rank is not None]
    of_ranks = f" of {ranks_text(ranks)}" if ranks else ""
    is_one = len(rows) == 1 and rows[0].source
    source = f" [{rows[0].source}]" if is_one else ""
    # Of dumps as a whole, the reason says that there are none.
    is_whole = what == "dump" and not ranks and rows[0].source is None
    subject = "" if is_whole else f"{what}{of_ranks}: "
    return clean(f"note: {subject}{reason}{source}", limit=300)
