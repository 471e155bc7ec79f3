"""
In which group did it begin?

A rank that waits in one group is missing in all others, so most time-outs are
consequences.  Where those who are missing in a group wait in another one, the
other one comes first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs

from ...findings import Cause, Finding
from ...ranks import ranks_text
from .blame import judge
from .cases import find_cases
from .logs import CollectiveLogs
from .quoting import evidence_of
from .remedies import REMEDIES
from .silence import name_silent
from .verdict import Verdict
from .wording import explain_verdict, global_ranks


__all__ = ["explain_cascade"]

_Run = tuple[int, int]
_MOST_ROOTS = 16


def explain_cascade(logs: CollectiveLogs) -> list[Finding]:
    """
    Who holds up whom, as watchdogs tell?

    Args:
        logs: What was read.

    Returns:
        Where it began, for each run of the job, the last run first.
    """
    runs: dict[_Run, list[Verdict]] = defaultdict(list)
    for case in find_cases(logs):
        verdict = judge(case)
        if verdict is not None:
            runs[case.run].append(verdict)
    findings: list[Finding] = []
    for number, run in sorted(enumerate(sorted(runs), 1), reverse=True):
        which = f" (run {number} of {len(runs)})" if len(runs) > 1 else ""
        findings += _of_run(runs[run], which, logs.world_size)
    return findings


def _of_run(
    verdicts: Sequence[Verdict], which: str, world_size: int | None
) -> list[Finding]:
    timed = [v for v in verdicts if v.case.timeouts or v.case.desyncs]
    # Unless nobody timed out, who is a little behind elsewhere is no news.
    verdicts = name_silent(sorted(timed or verdicts, key=_begin), world_size)
    waits: dict[int, set[int]] = defaultdict(set)
    for i, verdict in enumerate(verdicts):
        for rank in global_ranks(verdict.case, verdict.waiting):
            waits[rank].add(i)
    caused = []
    for i, verdict in enumerate(verdicts):
        verdicts[i], causes = _narrowed(verdict, waits)
        caused.append(causes)
    roots = [i for i, by in enumerate(caused) if not by]
    if not roots:
        return [_circle(verdicts, which)]
    return _told(verdicts, roots, caused, which)


def _told(
    verdicts: Sequence[Verdict],
    roots: Sequence[int],
    caused: Sequence[set[int]],
    which: str,
) -> list[Finding]:
    blaming = [i for i in roots if verdicts[i].members or verdicts[i].ranks]
    # Where nobody can be blamed, the first group that waited stands for all.
    shown = blaming[:_MOST_ROOTS] or roots[:1]
    # Who says nothing at all holds up all who do not know for whom they wait.
    is_silent = not any(verdicts[i].members for i in blaming)
    alike = len(roots) - len(shown) if is_silent else 0
    return [
        explain_verdict(
            verdicts[i],
            following=alike + sum(i in by for by in caused),
            run=which,
        )
        for i in shown
    ]


def _begin(verdict: Verdict) -> tuple[bool, bool, float]:
    begin = verdict.case.begin
    return not verdict.members, begin is None, begin or 0.0


def _narrowed(
    verdict: Verdict, waits: Mapping[int, set[int]]
) -> tuple[Verdict, set[int]]:
    """
    Who of those to blame does not wait elsewhere; and if nobody is left, the
    groups in which they wait.
    """
    case = verdict.case
    free, causes = [], set()
    for member in verdict.members:
        ranks = global_ranks(case, [member])
        elsewhere = set().union(*(waits.get(r, set()) for r in ranks))
        causes |= elsewhere
        if not elsewhere:
            free.append(member)
    if verdict.cause != Cause.RANK_NOT_ARRIVED or not causes:
        return verdict, set()
    if free:
        return attrs.evolve(verdict, members=tuple(free)), set()
    return verdict, causes


def _circle(verdicts: Sequence[Verdict], which: str) -> Finding:
    """
    Everyone who is missing in a group waits in another one.
    """
    blamed = [global_ranks(v.case, v.members) for v in verdicts]
    parts = ", ".join(
        f"{ranks_text(ranks)} did not come to {v.op or 'call'} #{v.seq} of "
        f"group {str(v.case.group)!r}"
        for v, ranks in list(zip(verdicts, blamed, strict=True))[:4]
    )
    return Finding(
        cause=Cause.GROUP_ORDER_DEADLOCK,
        ranks=tuple(sorted({rank for ranks in blamed for rank in ranks})),
        summary=f"ranks wait for each other in several groups: {parts}{which}",
        confidence="likely",
        remedy=REMEDIES[Cause.GROUP_ORDER_DEADLOCK],
        evidence=evidence_of(
            record for verdict in verdicts for record in verdict.evidence[:2]
        ),
    )
