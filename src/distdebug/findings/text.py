"""
How is a conclusion shown?

The verdict comes first, and its first line alone is fit for a ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .._showing import Block, Entries, Entry, Lines, Table
from .._text import clean
from ..ranks import fold_ranks, ranks_text
from .model import Diagnosis, Evidence, Finding, GroupProgress, Missing


__all__ = [
    "diagnosis_blocks",
    "finding_entries",
    "finding_entry",
    "group_block",
    "group_order",
    "missing_block",
]

# Long enough for the lines of the user, behind those of libraries.
_MOST_QUOTED = 400
_MOST_EVIDENCE = 6


def diagnosis_blocks(d: Diagnosis) -> Iterator[Block]:
    """
    What is there to show of a diagnosis?

    Args:
        d: The diagnosis.

    Returns:
        The verdict first, then what it rests on.
    """
    yield Entries([finding_entry(d.verdict)])
    others = [f for f in d.findings if f != d.verdict]
    yield Entries([finding_entry(f, before="also:") for f in others])
    if d.groups:
        yield group_block(sorted(d.groups, key=group_order(d)))
    if d.victims:
        yield f"merely waiting: {ranks_text(d.victims)}"
    yield missing_block(d.missing)


def finding_entries(findings: Sequence[Finding], most: int = 3) -> Entries:
    """
    What is there to show of several findings?

    Args:
        findings: The most important one first.

        most: How many are shown at first.
    """
    more = "finding" if len(findings) == most + 1 else "findings"
    return Entries([finding_entry(f) for f in findings], most, more)


def finding_entry(finding: Finding, before: str = "") -> Entry:
    """
    What is there to show of one finding?

    Args:
        finding: The finding.

        before: What leads to it.

    Returns:
        The sentence, then evidence and remedy.
    """
    facts = [("cause", f"{finding.cause} ({finding.confidence})")]
    facts += [
        (e.kind, clean(_where(e) + e.quote, limit=_MOST_QUOTED))
        for e in finding.evidence[:_MOST_EVIDENCE]
    ]
    if finding.remedy:
        facts.append(("next", finding.remedy))
    return Entry(finding.summary, facts, before)


def _where(evidence: Evidence) -> str:
    """
    The place within its source; of logs, of which there are many, with that.

    Terminals open ``path:line`` on a click.
    """
    line = evidence.location.removeprefix("line ")
    if evidence.kind == "log" and line.isdecimal() and evidence.source:
        return f"{evidence.source}:{line}: "

    source = evidence.source.replace("\\", "/").rpartition("/")[2]
    parts = [source if evidence.kind == "log" else "", evidence.location]
    return ", ".join(filter(None, parts)) + ": " if any(parts) else ""


def group_order(d: Diagnosis) -> Callable[[GroupProgress], tuple[int, ...]]:
    """
    Which groups are to be read first?

    Of a large job hundreds are stuck, most of them behind a few others.

    Args:
        d: The diagnosis.

    Returns:
        A key to sort by: of those that are stuck, first the group of the
        verdict, then those that wait for whom it blames, then large ones.
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
    What is there to show of the progress of groups?

    Args:
        groups: The groups, what is to be read first first.
    """
    rows = [
        (
            f"{g.name}: {g.desc}" if g.desc else g.name,
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
    What is there to show of what could not be looked at?

    Args:
        missing: What could not be looked at.

    Returns:
        Lines, equal reasons folded.
    """
    by_reason: dict[tuple[str, str], list[Missing]] = {}
    for m in missing:
        by_reason.setdefault((m.what, m.reason), []).append(m)
    return Lines([_missing(*key, rows) for key, rows in by_reason.items()])


def _missing(what: str, reason: str, rows: Sequence[Missing]) -> str:
    ranks = [m.rank for m in rows if m.rank is not None]
    who = f" of {ranks_text(ranks)}" if ranks else ""
    is_one = len(rows) == 1 and rows[0].source
    source = f" [{rows[0].source}]" if is_one else ""
    return clean(f"missing: {what}{who}: {reason}{source}", limit=300)
