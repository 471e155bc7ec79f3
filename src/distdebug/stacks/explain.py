"""
What do the stacks of a job say together?

Most ranks of a hung job wait for somebody, and are innocent.  Whoever is
somewhere else is looked at first.
"""

from __future__ import annotations

import os

from collections.abc import Iterable

import attrs

from ..findings import Cause, Finding
from .family import find_family
from .jobs import split_jobs, without_strangers
from .look import Looker, explain_process
from .model import ProcessStacks
from .rules import read_rules
from .source import SourceLines
from .verdict import judge, views_of
from .view import ProcessView


__all__ = [
    "ProcessView",
    "explain_process",
    "explain_ranks",
    "explain_stacks",
]

# A job that is so comes after one that is stuck.
_HARMLESS = frozenset({Cause.PROGRESSING, Cause.IDLE, Cause.EVENT_LOOP_IDLE})


def explain_stacks(
    stacks: Iterable[ProcessStacks],
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
) -> tuple[Finding, ...]:
    """
    Why does this job not go on, and at which line?

    Processes that do the same at the same line are one finding.  Those that
    wait in a collective wait for the others, so they are left out unless
    there are no others; so are children, which are told by their parents.

    Args:
        stacks: Processes; those of several jobs are judged apart, if it is
            known whose they are.

        rules: Files of rules to be tried before our own.

    Returns:
        The findings, the verdict first; nothing if no stack tells anything.

    Raises:
        RulesError: A file of rules cannot be used.
    """
    looker = Looker(read_rules(rules), SourceLines())
    known = without_strangers(stacks)
    jobs = split_jobs(known)
    if len(jobs.keys() - {""}) < 2:
        return judge(known, looker)

    found = [
        [_of_job(f, job) for f in judge(members, looker)]
        for job, members in jobs.items()
    ]
    found.sort(key=lambda fs: not fs or fs[0].cause in _HARMLESS)
    return tuple(f for findings in found for f in findings)


def explain_ranks(
    stacks: Iterable[ProcessStacks],
    *,
    rules: Iterable[str | os.PathLike[str]] = (),
) -> tuple[ProcessView, ...]:
    """
    What is each rank doing, whoever is to blame?

    Args:
        stacks: Processes of one job.

        rules: Files of rules to be tried before our own.

    Returns:
        A view for each process that is nobody's child, joined with what its
        children do.  Those without any stack, and with nothing wrong about
        their state, have none.

    Raises:
        RulesError: A file of rules cannot be used.
    """
    known = tuple(stacks)
    if not known and not rules:  # to read our own takes a while
        return ()

    looker = Looker(read_rules(rules), SourceLines())
    gone, living = views_of(find_family(known), looker)
    return (*gone, *living)


def _of_job(found: Finding, job: str) -> Finding:
    if not job:
        return found

    return attrs.evolve(found, summary=f"job {job}: {found.summary}")
