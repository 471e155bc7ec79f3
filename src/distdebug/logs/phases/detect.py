"""
In which phase of its start-up is this job, and is that too long?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import attrs

from ..._text import clean, time_text
from ...errors import LogError, NoLogsError
from ...findings import Cause, Confidence, Evidence, Finding, Missing
from ..lines import LogLine, walk_logs
from .framework_rules import Book, Phase, make_rules, read_books
from .model import Harmless, PhaseReport, PhaseState
from .reader import follow_log, is_consequence
from .timeline import (
    Seen,
    Story,
    choose_book,
    current_phase,
    merge,
    phase_states,
)


def is_between(state: PhaseState, phase: Phase) -> bool:
    """
    Is its bar full, so that it is busy with what follows in silence?

    Args:
        state: The phase.

        phase: Its rules.

    Returns:
        Whether it is.
    """
    full = state.progress is not None and state.progress.is_full
    return bool(phase.then) and full and state.state == "begun"


def place_text(state: PhaseState, phase: Phase) -> str:
    """
    Tell where a phase is.

    Args:
        state: The phase.

        phase: Its rules.

    Returns:
        Such as "loading the model's weights, shards 40 % (2/5)".
    """
    parts = [phase.title]
    progress = state.progress
    if progress and state.state != "done":
        name = clean(progress.name, limit=60)
        thing = "shards" if "shard" in name else name
        if phase.trains:
            thing = "step"
        parts.append(f"{thing} {progress}".strip())
    elif state.of:
        parts.append(f"{state.parts} of {state.of}")
    have, want = state.facts.get("have"), state.facts.get("want")
    if have and want:
        parts.append(f"{clean(have)} of {clean(want)} GPUs")
    if is_between(state, phase):
        parts.append(f"now {phase.then}")
    if state.state == "done":
        parts.append("done, and nothing is known of what follows")
    return ", ".join(parts)


def state_text(report: PhaseReport, text: str, limit: float) -> str:
    """
    Tell how it stands where nothing is wrong.

    Args:
        report: Everything that is known.

        text: Where the job is.

        limit: For how many seconds it may be silent there.

    Returns:
        One sentence.
    """
    state, focus = report.current, report.inner
    if state and focus and not focus.part_of:
        text = f"{state.title}; inside it {focus.framework}: {text}"
    if state and report.left_s and state.state == "begun":
        text += f", about {time_text(report.left_s)} left"
    if report.silent_s is not None:
        silent = time_text(report.silent_s)
        text += (
            f": silent for {silent} is normal, "
            f"alarming after {time_text(limit)}"
        )
    return f"{text}."


def ready_text(report: PhaseReport, state: PhaseState) -> str:
    """
    Tell that a server is ready.

    Args:
        report: Everything that is known.

        state: Its last phase.

    Returns:
        One sentence.
    """
    who = report.title if report.framework == state.framework else ""
    text = f"{who or 'The server'} is ready, serving"
    if report.silent_s is not None:
        silent = time_text(report.silent_s)
        text += f": silent for {silent} is normal, as long as nobody asks it"
    return f"{text}."


def ending_text(report: PhaseReport, reason: LogLine | None = None) -> str:
    """
    Tell how a job ended, or that nothing is known.

    Args:
        report: Everything that is known.

        reason: The line that tells why.

    Returns:
        One sentence.
    """
    state = report.current
    if report.ended is None:
        return "No phase of a start-up is known in this log."

    how = {
        "completed": "The job is completed",
        "failed": "The job failed",
        "killed": "The job was killed",
    }[report.ended]
    if report.ended == "completed":
        return f"{how}, after {state.title}." if state else f"{how}."
    why = f": {clean(reason.text).strip(' .:')}" if reason else ""
    if report.ended == "killed" and " " not in why.strip(": "):
        why = ""  # such as "Killed"
    if state is None:
        return f"{how}{why}."
    where = f"{state.title}"
    if state.progress:
        where += f", {state.progress}"
    when = "after" if state.state == "done" else "while"
    return f"{how} {when} {where}{why}."


def ending_reason(stories: Iterable[Story]) -> LogLine | None:
    """
    Which line tells why a job ended?

    Args:
        stories: What its logs tell.

    Returns:
        The exception of the log that ended first, rather one that follows from
        no other; or else the line that tells the end; ``None`` if there is
        neither.
    """
    ended = sorted(
        (story for story in stories if story.ending or story.reason),
        key=lambda s: float("inf") if s.ended_at is None else s.ended_at,
    )
    lines = [
        *(story.reason for story in ended if story.reason),
        *(story.ending[1] for story in ended if story.ending),
    ]
    return min(lines, key=lambda one: is_consequence(one.text), default=None)


def ending_finding(
    report: PhaseReport, reason: LogLine | None
) -> Finding | None:
    """
    What is wrong if a job failed or was killed?

    Args:
        report: Everything that is known.

        reason: The line that tells why.

    Returns:
        The finding, or ``None`` if it did not, or if another one tells it.
    """
    if report.ended not in {"failed", "killed"}:
        return None
    if any(f.cause is not Cause.LOSS_NOT_FINITE for f in report.findings):
        return None

    evidence: tuple[Evidence, ...] = ()
    rank = None
    if reason is not None:
        # Whose peer is gone has not crashed by itself.
        if reason.origin and not is_consequence(reason.text):
            rank = reason.origin.rank
        evidence = (
            Evidence(
                kind="log",
                source=reason.source,
                location=f"line {reason.number}",
                quote=clean(reason.text),
            ),
        )
    is_killed = report.ended == "killed"
    return Finding(
        cause=Cause.KILLED if is_killed else Cause.RANK_CRASHED,
        ranks=() if rank is None else (rank,),
        summary=ending_text(report, reason).rstrip("."),
        remedy="find out who ended it: the scheduler, a limit, or a person; "
        "the kernel log tells whether memory ran out"
        if is_killed
        else "mend what the exception tells, or look above it in the log",
        confidence="likely",
        evidence=evidence,
    )


_SLOW_STEPS = 10.0
# What is said of a phase that ended when nothing followed.
_AFTER = 600.0


def judge(
    report: PhaseReport,
    phases: dict[tuple[str, str], Phase],
    reason: LogLine | None = None,
) -> PhaseReport:
    """
    Say in one sentence how it stands, and what is wrong.

    Args:
        report: Everything that is known.

        phases: The rules of its phases, by framework and name.

        reason: The line that tells why the job ended.

    Returns:
        The same with a verdict, which begins with the worst that was found.
    """
    state = report.current
    if report.ended or state is None:
        return _judge_end(report, reason)
    if state.state == "done" and phases[state.framework, state.name].serves:
        return attrs.evolve(
            report,
            is_normal=not report.findings,
            verdict=_worst_first(report, ready_text(report, state)),
        )

    focus = _focus(report, state, phases)
    finding = (
        _failed(state, phases[state.framework, state.name])
        if state.state == "failed"
        else _stall(report, focus) or _too_long(report, state, phases)
    )
    findings = (*report.findings, *([finding] if finding else []))
    known = report.silent_s is not None
    return attrs.evolve(
        report,
        findings=findings,
        is_normal=False if findings else True if known else None,
        verdict=_worst_first(
            report,
            f"{finding.summary}."
            if finding
            else state_text(report, focus.text, focus.limit),
        ),
    )


def _judge_end(report: PhaseReport, reason: LogLine | None) -> PhaseReport:
    finding = ending_finding(report, reason)
    findings = (*report.findings, *([finding] if finding else []))
    verdict = ending_text(report, reason)
    if report.ended not in {"failed", "killed"}:
        verdict = _worst_first(report, verdict)
    return attrs.evolve(
        report,
        findings=findings,
        is_normal=False if findings else True if report.ended else None,
        verdict=verdict,
    )


def _worst_first(report: PhaseReport, text: str) -> str:
    """
    Begin with what the log complains of, and then tell where the job is.
    """
    order = get_args(Confidence)
    worst = min(
        report.findings, key=lambda f: order.index(f.confidence), default=None
    )
    return text if worst is None else f"{worst.summary}. Phase: {text}"


@attrs.frozen
class _Focus:
    """
    What the job is busy with, where that is, and how long it may be silent.
    """

    state: PhaseState
    phase: Phase
    text: str
    limit: float


def _focus(
    report: PhaseReport,
    state: PhaseState,
    phases: dict[tuple[str, str], Phase],
) -> _Focus:
    whole = phases[state.framework, state.name]
    inner = report.inner
    if inner is None:
        return _Focus(
            state, whole, place_text(state, whole), _limit(state, whole)
        )

    phase = phases[inner.framework, inner.name]
    text, limit = place_text(inner, phase), _limit(inner, phase)
    if inner.part_of:
        text = f"{place_text(state, whole)}; now {text}"
        # Slow steps have slow parts.
        limit = max(limit, _limit(state, whole))
    return _Focus(inner, phase, text, limit)


def _limit(state: PhaseState, phase: Phase) -> float:
    """
    For how many seconds it may be silent.
    """
    progress = state.progress
    if state.state == "done":
        return max(phase.then_silent_s, _AFTER)
    if phase.then and progress and progress.is_full:
        return phase.then_silent_s
    if phase.trains and progress and progress.rate:
        return max(phase.silent_s, _SLOW_STEPS / progress.rate)
    return phase.silent_s


def _stall(report: PhaseReport, focus: _Focus) -> Finding | None:
    silent = report.silent_s
    if silent is None or silent < focus.limit:
        return None

    phase = focus.phase
    reason, remedy = phase.reason, phase.remedy
    if is_between(focus.state, phase):
        reason = phase.then_reason or reason
        remedy = phase.then_remedy or remedy
    return _finding(
        f"{focus.text}: nothing was printed for {time_text(silent)}",
        reason,
        remedy,
        focus.state,
        "likely" if silent >= 2 * focus.limit else "possible",
    )


def _too_long(
    report: PhaseReport,
    state: PhaseState,
    phases: dict[tuple[str, str], Phase],
) -> Finding | None:
    phase = phases[state.framework, state.name]
    if phase.trains or state.state == "done":
        return None

    seconds = _took(report, state)
    if seconds is None or seconds < phase.alarming_s:
        return None
    usual = time_text(phase.typical_s)
    return _finding(
        f"{place_text(state, phase)}: it takes {time_text(seconds)} already, "
        f"and usually {usual}",
        phase.reason,
        phase.remedy,
        state,
        "possible",
    )


def _took(report: PhaseReport, state: PhaseState) -> float | None:
    """
    For how long it goes on, by the clock of the log.
    """
    told = [
        float(x) for x in [state.facts.get("elapsed", "")] if x.isdecimal()
    ]
    last = report.last_time
    if state.begun_at is not None and last is not None:
        told.append(last - state.begun_at + (report.silent_s or 0.0))
    return max(told, default=None)


def _failed(state: PhaseState, phase: Phase) -> Finding:
    return _finding(
        f"{place_text(state, phase)}: it failed",
        phase.reason,
        phase.remedy,
        state,
        "certain",
    )


def _finding(
    summary: str,
    reason: str,
    remedy: str,
    state: PhaseState,
    confidence: Confidence,
) -> Finding:
    line = state.line
    evidence = (
        (
            Evidence(
                kind="log",
                source=line.source,
                location=f"line {line.number}",
                quote=clean(line.text),
            ),
        )
        if line
        else ()
    )
    return Finding(
        cause=Cause.START_UP_STALLED,
        ranks=(),
        summary=f"{summary}; likely {reason}" if reason else summary,
        remedy=remedy or None,
        confidence=confidence,
        evidence=evidence,
    )


_OPTIONAL = re.compile(r"\[([^\[\]]{0,200})\]")
_PLACE = re.compile(r"\{(\w{1,40})\}")


def failure_findings(stories: Iterable[Story]) -> tuple[Finding, ...]:
    """
    What went wrong, as lines of the logs say?

    Args:
        stories: What the logs tell.

    Returns:
        One finding per failure, in the order in which they were printed.
    """
    known: dict[tuple[str, str], Seen] = {}
    for story in stories:
        for seen in story.failures:
            who = (seen.failure.name, seen.facts.get("pid", ""))
            known.setdefault(who, seen)
    told = {seen.failure.name for seen in known.values() if seen.is_told}
    return tuple(
        _failures_finding(seen)
        for seen in known.values()
        if seen.is_told or seen.failure.name not in told
    )


def harmless_lines(stories: Iterable[Story]) -> tuple[Harmless, ...]:
    """
    What only looks bad?

    Args:
        stories: What the logs tell.

    Returns:
        One per rule.
    """
    known: dict[str, Seen] = {}
    for story in stories:
        for seen in story.harmless:
            name = seen.failure.name
            if name in known:
                known[name].count += seen.count
            else:
                known[name] = seen
    return tuple(
        Harmless(
            name=name,
            summary=seen.failure.summary,
            why=seen.failure.reason,
            count=seen.count,
            line=seen.line,
        )
        for name, seen in known.items()
    )


def _failures_finding(seen: Seen) -> Finding:
    failure = seen.failure
    summary = _filled(failure.summary, seen.facts)
    reason = f"; likely {failure.reason}" if failure.reason else ""
    line = seen.line
    return Finding(
        cause=failure.cause,
        ranks=_ranks(seen),
        summary=f"{summary}{reason}",
        remedy=_filled(failure.remedy, seen.facts) or None,
        confidence=failure.confidence,
        evidence=(
            Evidence(
                kind="log",
                source=line.source,
                location=f"line {line.number}",
                quote=clean(line.text),
            ),
        ),
    )


def _ranks(seen: Seen) -> tuple[int, ...]:
    origin = seen.line.origin
    return () if origin is None or origin.rank is None else (origin.rank,)


def _filled(text: str, facts: dict[str, str]) -> str:
    """
    Put in what is known, and leave out what needs more.
    """

    def optional(found: re.Match[str]) -> str:
        names = _PLACE.findall(found[1])
        return found[1] if all(name in facts for name in names) else ""

    return _PLACE.sub(
        lambda found: clean(facts.get(found[1], "?")),
        _OPTIONAL.sub(optional, text),
    )


# Clocks differ, and writers keep some lines back.
_JITTER = 120.0
_ZONE_STEP = 900.0
_FARTHEST_ZONE = 14 * 3600.0


def silence_of(stories: Iterable[Story], now: float | None) -> float | None:
    """
    For how many seconds did none of these logs say anything?

    The times in the text are believed, but for those that cannot be: of a
    clock in another zone, or of lines that tell none while the file was
    written further.

    Args:
        stories: What the logs tell.

        now: The time, in seconds since the epoch.

    Returns:
        The seconds, or ``None`` if that cannot be known.
    """
    if now is None:
        return None

    last = [_last_written(story, now) for story in stories]
    known = [time for time in last if time is not None]
    return max(now - max(known), 0.0) if known else None


def _last_written(story: Story, now: float) -> float | None:
    written = story.mtime
    if written is not None and written > now + _JITTER:
        written = None  # a copy that is younger than the moment in question
    told = story.time
    if told is None:
        return written
    if written is None:
        return told if told <= now + _JITTER else None
    if told > now + _JITTER or told > written + _JITTER:
        return written
    if _is_zone(written - told):
        return written
    # A bar moves and tells no time; a whole line would have told its own.
    return told if story.last_is_timed else max(written, told)


def _is_zone(seconds: float) -> bool:
    """
    Do two clocks show the same moment in different zones?
    """
    steps = round(seconds / _ZONE_STEP)
    return (
        steps >= 1
        and abs(seconds - steps * _ZONE_STEP) <= _JITTER / 2
        and seconds <= _FARTHEST_ZONE
    )


# What has no blanks, and either a folder or what names of logs end with.
_PATH = re.compile(
    r"(?:[^\s\x00/]{0,255}/){1,64}[^\s\x00/]{0,255}"
    r"|[^\s\x00/]{1,255}\.(?:log|out|err|txt|gz|xz|bz2|zst)(?:\.\d{1,3})?"
)


def detect_phase(
    path_or_lines: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    now: float | None = None,
    framework: str | None = None,
    rules: Iterable[str | os.PathLike[str]] = (),
) -> PhaseReport:
    """
    Tell in which phase a job is, and whether that takes too long.

    Args:
        path_or_lines: A log, a folder of logs, or several of them, such as
            the driver's and those of the workers; or the lines of one log.  A
            list of texts is taken for files if all name such, or look as if
            they did.

        now: The time in seconds since the epoch, as of ``time.time()``.
            Without it, nothing is said about silence.

        framework: Whose logs they are; by default what the logs show.

        rules: Books of the user, as
            :func:`~distdebug.logs.phases.framework_rules.load_book` reads them.

    Returns:
        The phases, how far each is, and a verdict.

    Raises:
        NoLogsError: There is no log.

        LogError: The framework is not known.

        RulesError: A book cannot be used.
    """
    books = read_books(rules)
    _check_framework(framework, books)
    stories, missing = _stories(path_or_lines, books, now)
    merged = merge(stories)
    book = choose_book(merged, books, framework)
    states = phase_states(merged, book, books)
    current, inner = current_phase(states, book)
    report = PhaseReport(
        framework=book.name if book else None,
        title=book.title if book else "",
        phases=states,
        current=current,
        inner=inner,
        missing=missing,
    )
    report = _with_logs(report, stories, now)
    by_name = {(b.name, p.name): p for b in books for p in b.phases}
    return judge(report, by_name, ending_reason(stories))


def _with_logs(
    report: PhaseReport, stories: Sequence[Story], now: float | None
) -> PhaseReport:
    """
    The same, with what the logs tell whatever the phases are.
    """
    latest = max(stories, key=lambda s: (s.mtime or 0.0, s.time or 0.0))
    timed = [story.time for story in stories if story.time is not None]
    ended = _ending(stories)
    return attrs.evolve(
        report,
        last_line=latest.last_line,
        last_time=max(timed, default=None),
        silent_s=silence_of(stories, now),
        ended=ended.ending[0] if ended and ended.ending else None,
        findings=failure_findings(stories),
        harmless=harmless_lines(stories),
        timings={k: v for s in stories for k, v in s.timings.items()},
        attempt=max(story.attempt for story in stories),
    )


def _check_framework(framework: str | None, books: Sequence[Book]) -> None:
    names = [book.name for book in books if book.phases]
    if framework is not None and framework not in names:
        msg = f"no such framework: {framework!r:.60}"
        raise LogError(msg, remedy=f"one of {', '.join(sorted(names))}")


def _stories(
    source: Any, books: tuple[Book, ...], now: float | None
) -> tuple[list[Story], tuple[Missing, ...]]:
    rules = make_rules(books)
    paths = _paths(source)
    if paths is None:
        return [follow_log(source, rules, now=now)], ()

    walk = walk_logs(paths)
    stories, missing = [], []
    for path in walk:
        try:
            stories.append(follow_log(path, rules, now=now))
        except (OSError, ValueError) as exc:
            missing.append(Missing.log(path, exc))
        else:
            missing += (Missing.log(path, exc) for exc in stories[-1].lost)
    missing = [*walk.missing, *missing]
    if not stories:
        named = ", ".join(map(str, paths[:3])) or "nothing"
        reasons = "; ".join(one.reason for one in missing[:3])
        msg = f"no log in {named}" + (f": {reasons}" if reasons else "")
        raise NoLogsError(msg, remedy="name a log, or a folder of logs")
    return stories, tuple(missing)


def _paths(source: Any) -> list[str | os.PathLike[str]] | None:
    """
    The paths that are meant, or ``None`` if these are lines.
    """
    if isinstance(source, str):
        return None if "\n" in source else [source]
    if isinstance(source, os.PathLike):
        return [source]
    if not isinstance(source, list | tuple) or not source:
        return None
    return list(source) if all(map(_is_path, source)) else None


def _is_path(one: Any) -> bool:
    """
    Does this name a file, be it one that is not there?
    """
    if isinstance(one, os.PathLike):
        return True
    try:
        return _PATH.fullmatch(one) is not None or Path(one).exists()
    except (OSError, TypeError, ValueError):
        return False


def _ending(stories: Sequence[Story]) -> Story | None:
    """
    The log that tells the end, unless another one goes on after it.
    """
    ended = [story for story in stories if story.ending]
    if not ended:
        return None

    last = max(ended, key=lambda s: s.ended_at or 0.0)
    newer = [
        track.last_at
        for story in stories
        for track in story.tracks.values()
        if track.phase.trains and track.last_at is not None
    ]
    if (
        last.ended_at is not None
        and max(newer, default=0) > last.ended_at + 60
    ):
        return None
    return last
