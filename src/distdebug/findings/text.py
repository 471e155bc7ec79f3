"""
How is a conclusion shown on a terminal?

The verdict comes first, and its first line alone is fit for a ticket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._text import clean, text_table
from ..ranks import fold_ranks, ranks_text
from .model import Diagnosis, Evidence, Finding, GroupProgress, Missing


__all__ = [
    "diagnosis_text",
    "finding_lines",
    "group_table",
    "missing_lines",
]

_MOST_ROWS = 24
# Long enough for the lines of the user, behind those of libraries.
_MOST_QUOTED = 400
_MOST_FINDINGS = 5


def diagnosis_text(d: Diagnosis) -> str:
    """
    Write a diagnosis as text: the verdict first, then what it rests on.

    Args:
        d: The diagnosis.
    """
    parts = ["\n".join(finding_lines(d.verdict))]
    others = [f for f in d.findings if f != d.verdict]
    parts += [
        "\n".join(["also:", *finding_lines(f)])
        for f in others[:_MOST_FINDINGS]
    ]
    if len(others) > _MOST_FINDINGS:
        parts.append(f"… and {len(others) - _MOST_FINDINGS} more findings")
    if d.groups:
        parts.append(group_table(d.groups))
    if d.victims:
        parts.append(f"merely waiting: {ranks_text(d.victims)}")
    if d.missing:
        parts.append("\n".join(missing_lines(d.missing)))

    return "\n\n".join(parts)


def finding_lines(finding: Finding) -> Iterable[str]:
    """
    Write one finding as lines: the sentence, then evidence and remedy.

    Args:
        finding: The finding.
    """
    yield clean(finding.summary, limit=400)
    yield f"  cause: {finding.cause} ({finding.confidence})"
    for e in finding.evidence[:6]:
        where = _where(e)
        yield f"  {e.kind}: {clean(where + e.quote, limit=_MOST_QUOTED)}"
    if finding.remedy:
        yield f"  next: {finding.remedy}"


def _where(evidence: Evidence) -> str:
    """
    The place within its source; of logs, of which there are many, with that.
    """
    source = evidence.source.replace("\\", "/").rpartition("/")[2]
    parts = [source if evidence.kind == "log" else "", evidence.location]
    return ", ".join(filter(None, parts)) + ": " if any(parts) else ""


def group_table(groups: Sequence[GroupProgress]) -> str:
    """
    Write the progress of groups as a table, the stuck ones first.

    Args:
        groups: The groups; of many, some are left out.
    """
    ordered = sorted(groups, key=lambda g: (not g.waiting, -len(g.ranks)))
    rows = [
        (
            f"{g.name}: {g.desc}" if g.desc else g.name,
            fold_ranks(g.ranks),
            g.last_completed,
            g.furthest,
            fold_ranks(g.waiting) if g.waiting else "-",
            fold_ranks(g.absent) if g.absent else "-",
        )
        for g in ordered[:_MOST_ROWS]
    ]
    headers = ("group", "ranks", "completed", "furthest", "waiting", "absent")
    table = text_table(headers, rows)
    hidden = len(ordered) - len(rows)
    return f"{table}\n… and {hidden} more groups" if hidden else table


def missing_lines(missing: Sequence[Missing]) -> Iterable[str]:
    """
    Write what could not be looked at as lines, equal reasons folded.

    Args:
        missing: What could not be looked at; of many, some are left out.
    """
    by_reason: dict[tuple[str, str], list[Missing]] = {}
    for m in missing:
        by_reason.setdefault((m.what, m.reason), []).append(m)
    for (what, reason), rows in list(by_reason.items())[:_MOST_ROWS]:
        ranks = [m.rank for m in rows if m.rank is not None]
        who = f" of {ranks_text(ranks)}" if ranks else ""
        source = (
            f" [{rows[0].source}]" if len(rows) == 1 and rows[0].source else ""
        )
        yield clean(f"missing: {what}{who}: {reason}{source}", limit=300)
    if len(by_reason) > _MOST_ROWS:
        yield f"… and {len(by_reason) - _MOST_ROWS} more"
