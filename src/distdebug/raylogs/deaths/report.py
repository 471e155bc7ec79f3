"""
What do the deaths of a cluster mean, as findings?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ..._text import clean
from ...findings import Cause, Evidence, Finding
from .causes import FOLDED, cause_of, confidence_in, remedy_of, story_of
from .model import Death, DeathKind, Deaths
from .wording import clock


__all__ = ["death_findings"]

_MOST_OTHERS = 20
_MOST_QUOTES = 4


def death_findings(deaths: Deaths) -> tuple[Finding, ...]:
    """
    Tell what the deaths of a Ray cluster mean.

    Args:
        deaths: What :func:`~distdebug.raylogs.deaths.find.find_deaths` returned.

    Returns:
        The cause first, then deaths of their own, those that follow from
        others, and workers that never started; nothing if all ends were
        intended.
    """
    found: list[Finding] = []
    first = deaths.first
    if first is not None:
        found.append(_of_first(first, deaths))
    found += _of_others(deaths)
    follows = [
        x for x in deaths.deaths if x.is_collateral and x.kind != "job_ended"
    ]
    if follows and first is not None:
        found.append(_of_followers(follows, first))
    if deaths.not_started:
        found.append(_of_not_started(deaths.not_started))
    return tuple(found)


def _of_first(first: Death, deaths: Deaths) -> Finding:
    when = f" at {clock(first.time)} UTC" if first.time is not None else ""
    others = sum(not x.is_intended for x in deaths.deaths) - 1
    before = f", before {others} others died" if others > 0 else ""
    partial = any("gcs_server" in x.reason for x in deaths.missing)
    sure = confidence_in(first)
    return Finding(
        cause=cause_of(first),
        ranks=() if first.rank is None else (first.rank,),
        summary=f"{story_of(first)}{when}{before}.",
        confidence="likely" if partial and others > 0 else sure,
        remedy=remedy_of(first),
        location=first.python_frames[0] if first.python_frames else None,
        evidence=_evidence(first),
    )


def _evidence(death: Death) -> tuple[Evidence, ...]:
    quotes = [
        Evidence(
            kind=x.kind,
            source=x.source,
            location=x.location,
            quote=clean(x.quote, limit=400),
        )
        for x in death.evidence[:_MOST_QUOTES]
    ]
    if death.last_lines and death.log is not None:
        quotes.append(
            Evidence(
                kind="log",
                source=str(death.log),
                location="last lines",
                quote=" | ".join(death.last_lines[-3:]),
            )
        )
    return tuple(quotes)


def _of_others(deaths: Deaths) -> Iterator[Finding]:
    """
    Those that neither came first nor follow: alike ones together.
    """
    alike: dict[tuple[DeathKind, str], list[Death]] = {}
    for death in deaths.unintended:
        if death.is_first or death.is_collateral or death.is_intended:
            continue
        key = death.kind, death.actor_class or death.actor
        alike.setdefault(key, []).append(death)
    for group in list(alike.values())[:_MOST_OTHERS]:
        death = group[0]
        more = f", and {len(group) - 1} more alike" if len(group) > 1 else ""
        yield Finding(
            cause=cause_of(death),
            ranks=_ranks(group),
            summary=f"Later, {story_of(death)}{more}; whether it follows from "
            "the first death is not told.",
            confidence="possible",
            remedy=remedy_of(death),
            location=death.python_frames[0] if death.python_frames else None,
            evidence=_evidence(death),
        )


def _of_followers(follows: list[Death], first: Death) -> Finding:
    counts = Counter(
        FOLDED.get(x.kind, "after another one, or complaining of it")
        for x in follows
    )
    told = "; ".join(f"{n} {what}" for what, n in counts.most_common())
    names = ", ".join(clean(x.label) for x in follows[:3])
    more = ", …" if len(follows) > 3 else ""
    noun = "death follows" if len(follows) == 1 else "deaths follow"
    return Finding(
        cause=Cause.ACTOR_DIED,
        ranks=(),  # none of them is at fault
        summary=f"{len(follows)} {noun} from another one ({told}): "
        f"{names}{more}.",
        confidence="likely",
        remedy=f"nothing to be done here; see to {clean(first.label)} first",
        evidence=tuple(e for x in follows[:3] for e in _evidence(x)[:1]),
    )


def _of_not_started(seen: tuple[Evidence, ...]) -> Finding:
    times = "once" if len(seen) == 1 else f"{len(seen)} times"
    return Finding(
        cause=Cause.RAY_WORKER_START_TIMEOUT,
        ranks=(),
        summary=f"Worker processes did not register with Ray in time {times}: "
        "they hang or die before they run any code of the job.",
        confidence="likely",
        remedy="see what the new processes print (raylet.err, worker-*.err, "
        "runtime_env_setup-*.log): a wrong interpreter of the runtime "
        "environment, imports from a slow file system, too few processors, or "
        "a profiler in front of the interpreter; "
        "RAY_worker_register_timeout_seconds is how long Ray waits",
        evidence=tuple(
            Evidence(
                kind=x.kind,
                source=x.source,
                location=x.location,
                quote=clean(x.quote, limit=400),
            )
            for x in seen[:_MOST_QUOTES]
        ),
    )


def _ranks(deaths: Iterable[Death]) -> tuple[int, ...]:
    return tuple(sorted({x.rank for x in deaths if x.rank is not None}))
