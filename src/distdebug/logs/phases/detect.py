"""
Detect the phase of a job from its logs, and judge whether it is stuck.

:func:`detect_phase` reads the logs, merges their timelines, chooses the
framework, and writes the verdict: phase, progress, silence, failures, ending.
"""

from __future__ import annotations

import os
import re

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from ..._text import clean, time_text
from ...causes import Cause
from ...errors import LogError
from ...findings import CONFIDENCES, Confidence, Evidence, Finding, Missing
from ...ranks import ranks_text
from ..engine import FilePart, read_lines_for, read_parts
from ..lines import (
    LogLine,
    LogWalk,
    find_file_ranks,
    no_logs_error,
    paths_of,
)
from .framework_rules import (
    Outcome,
    Phase,
    read_framework_rules,
)
from .model import Harmless, PhaseReport, PhaseState
from .reader import PhaseReader, is_consequence
from .timeline import (
    FailureRecord,
    Timeline,
    choose_framework,
    current_phase,
    merge_timelines,
    phase_states,
)


def is_in_silent_part(state: PhaseState, phase: Phase) -> bool:
    """
    Return whether the bar is full, and silent work of the phase follows.
    """
    full = state.progress is not None and state.progress.is_full
    return bool(phase.then) and full and state.state == "begun"


def phase_text(state: PhaseState, phase: Phase) -> str:
    """
    Describe a phase: "loading the model's weights, shards 40 % (2/5)".
    """
    parts = [phase.title]
    progress = state.progress
    if progress and state.state != "done":
        name = clean(progress.name, limit=60)
        unit = "shards" if "shard" in name else name
        if phase.trains:
            unit = "step"
        parts.append(f"{unit} {progress}".strip())
    elif state.of:
        parts.append(f"{state.parts} of {state.of}")
    available, needed = state.facts.get("have"), state.facts.get("want")
    if available and needed:
        parts.append(f"{clean(available)} of {clean(needed)} GPUs")
    if is_in_silent_part(state, phase):
        parts.append(f"now {phase.then}")
    if state.state == "done":
        parts.append("done, and nothing is known of what follows")
    return ", ".join(parts)


def state_text(report: PhaseReport, text: str, limit: float) -> str:
    """
    Describe a job without problems in one sentence.

    Args:
        text: The phase and its progress, as :func:`phase_text` returns it.

        limit: For how many seconds the job may be silent in it.
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
    Return the sentence that a server is ready.
    """
    subject = report.title if report.framework == state.framework else ""
    text = f"{subject or 'The server'} is ready, serving"
    if report.silent_s is not None:
        silent = time_text(report.silent_s)
        text += f": silent for {silent} is normal while it has no requests"
    return f"{text}."


_HOW_ENDED = {
    "completed": "The job is completed",
    "failed": "The job failed",
    "killed": "The job was killed",
}


def ending_text(report: PhaseReport, reason: LogLine | None = None) -> str:
    """
    Describe how a job ended, in one clause; without an end, say so.

    Args:
        reason: The line with the cause.
    """
    state = report.current
    if report.ended is None:
        return "No phase of a start-up is known in this log"

    how = _HOW_ENDED[report.ended]
    if report.ended == "completed":
        return f"{how}, after {state.title}" if state else how
    why = f": {clean(reason.text).strip(' .:')}" if reason else ""
    if report.ended == "killed" and " " not in why.strip(": "):
        why = ""  # such as "Killed"
    if state is None:
        return f"{how}{why}"
    where = state.title + (f", {state.progress}" if state.progress else "")
    when = "after" if state.state == "done" else "while"
    return f"{how} {when} {where}{why}"


def ending_reason(timelines: Iterable[Timeline]) -> LogLine | None:
    """
    Return the line that shows why a job ended, if there is one.

    It is the exception of the log that ended first, preferably one that is no
    consequence of another; else the line that ends the job.
    """
    ended = sorted(
        (x for x in timelines if x.ending or x.reason),
        key=lambda x: float("inf") if x.ended_at is None else x.ended_at,
    )
    lines = [
        *(x.reason for x in ended if x.reason),
        *(x.ending[1] for x in ended if x.ending),
    ]
    return min(lines, key=lambda one: is_consequence(one.text), default=None)


def ending_finding(
    report: PhaseReport, reason: LogLine | None
) -> Finding | None:
    """
    Return the finding of a job that failed or was killed.

    Returns:
        ``None`` if it did not fail, or if another finding names the cause.
    """
    if report.ended not in {"failed", "killed"}:
        return None
    if any(f.cause is not Cause.LOSS_NOT_FINITE for f in report.findings):
        return None

    # A rank that lost its peer did not crash by itself.
    is_own = reason is not None and not is_consequence(reason.text)
    is_killed = report.ended == "killed"
    return _make_finding(
        ending_text(report, reason),
        "",
        "find out what ended it: the scheduler, a limit, or a person; the "
        "kernel log shows whether memory ran out"
        if is_killed
        else "fix what the exception reports, or look above it in the log",
        reason,
        "likely",
        cause=Cause.KILLED if is_killed else Cause.RANK_CRASHED,
        ranks=_ranks_of(reason) if is_own else (),
    )


def _ranks_of(line: LogLine | None) -> tuple[int, ...]:
    origin = line.origin if line else None
    return () if origin is None or origin.rank is None else (origin.rank,)


def _quote(line: LogLine | None) -> tuple[Evidence, ...]:
    if line is None:
        return ()
    return (
        Evidence(
            kind="log",
            source=line.source,
            location=f"line {line.number}",
            quote=clean(line.text),
        ),
    )


_SILENT_STEPS = 10.0
# Steps without one that is made, and at least so many seconds.
_IDLE_STEPS, _LEAST_IDLE = 30.0, 600.0
# Seconds of silence that are normal after the last phase ended.
_SILENT_AFTER_END = 600.0


PhaseRules = Mapping[tuple[str, str], Phase]


def add_verdict(
    report: PhaseReport,
    phases: PhaseRules,
    reason: LogLine | None = None,
) -> PhaseReport:
    """
    Add the verdict, and findings of phases that failed or take too long.

    Args:
        phases: The rules of all phases, by framework and name.

        reason: The line that shows why the job ended.

    Returns:
        The report with a verdict that begins with the worst finding.
    """
    state, finding = report.current, None
    is_known = report.silent_s is not None
    if report.ended or state is None:
        finding, is_known = ending_finding(report, reason), bool(report.ended)
        verdict = f"{ending_text(report, reason)}."
    elif state.state == "done" and phases[state.framework, state.name].serves:
        verdict, is_known = ready_text(report, state), True
    else:
        focus = _focus(report, state, phases)
        finding = _phase_finding(focus)
        verdict = state_text(report, focus.text, focus.limit)
        verdict = f"{finding.summary}." if finding else verdict
    if report.findings and report.ended not in {"failed", "killed"}:
        order = CONFIDENCES.index
        surest = min(report.findings, key=lambda f: order(f.confidence))
        verdict = f"{surest.summary}. Phase: {verdict}"
    findings = (*report.findings, *([finding] if finding else []))
    return attrs.evolve(
        report,
        findings=findings,
        is_normal=False if findings else True if is_known else None,
        verdict=verdict,
    )


def _phase_finding(focus: _Focus) -> Finding | None:
    """
    Return what is wrong with the active phase, if anything is.
    """
    state, phase = focus.current, focus.whole
    if state.state != "failed":
        stall = _stall_finding(focus) or _idle_finding(focus)
        if stall is not None:
            return _name_behind(stall, focus.report.behind)
        return _too_long_finding(focus)
    return _make_finding(
        f"{phase_text(state, phase)}: it failed",
        phase.reason,
        phase.remedy,
        state.line,
        "certain",
    )


@attrs.frozen
class _Focus:
    """
    The current phase and its rules, the active one inside it and its rules,
    and the text of both, with how many seconds they may be silent.
    """

    report: PhaseReport
    current: PhaseState
    whole: Phase
    state: PhaseState
    phase: Phase
    text: str
    limit: float


def _focus(
    report: PhaseReport, state: PhaseState, phases: PhaseRules
) -> _Focus:
    whole = phases[state.framework, state.name]
    inner = report.inner or state
    phase = phases[inner.framework, inner.name]
    text, limit = phase_text(inner, phase), _silence_limit(inner, phase)
    if inner.part_of:
        text = f"{phase_text(state, whole)}; now {text}"
        # A slow step may have slow parts.
        limit = max(limit, _silence_limit(state, whole))
    return _Focus(report, state, whole, inner, phase, text, limit)


def _silence_limit(state: PhaseState, phase: Phase) -> float:
    """
    Return for how many seconds a phase may be silent.
    """
    progress = state.progress
    if state.state == "done":
        return max(phase.then_silent_s, _SILENT_AFTER_END)
    if phase.then and progress and progress.is_full:
        return phase.then_silent_s
    if phase.trains and progress and progress.rate:
        return max(phase.silent_s, _SILENT_STEPS / progress.rate)
    return phase.silent_s


def _stall_finding(focus: _Focus) -> Finding | None:
    silent = focus.report.silent_s
    if silent is None or silent < focus.limit:
        return None

    phase = focus.phase
    reason, remedy = phase.reason, phase.remedy
    if is_in_silent_part(focus.state, phase):
        reason = phase.then_reason or reason
        remedy = phase.then_remedy or remedy
    return _make_finding(
        f"{focus.text}: nothing was printed for {time_text(silent)}",
        reason,
        remedy,
        focus.state.line,
        "likely" if silent >= 2 * focus.limit else "possible",
    )


def _idle_finding(focus: _Focus) -> Finding | None:
    """
    Return that no step is made, although other lines are printed.
    """
    progress = focus.state.progress
    is_done = focus.current.state == "done"
    is_over = is_done or (progress and progress.is_full)
    if is_over or not focus.whole.trains:
        return None

    limit = focus.limit
    if progress and progress.rate:
        limit = max(_LEAST_IDLE, _IDLE_STEPS / progress.rate)
    idle = focus.report.idle_s
    if idle is None or idle < limit:
        return None
    return _make_finding(
        f"{focus.text}: no step was made for {time_text(idle)}, while other "
        "lines were printed",
        "",
        focus.phase.remedy,
        focus.state.line,
        "possible",
        cause=Cause.UNKNOWN,
    )


def _name_behind(finding: Finding, behind: Mapping[int, LogLine]) -> Finding:
    """
    Add the few ranks that stopped elsewhere than the others.
    """
    if not behind:
        return finding

    ranks = tuple(sorted(behind))
    last = clean(behind[ranks[0]].text, limit=100)
    quotes = (x for rank in ranks[:_MOST_QUOTED] for x in _quote(behind[rank]))
    return finding.with_clause(
        "and",
        f"only {ranks_text(ranks)} ended at: {last}",
        ranks=ranks,
        evidence=quotes,
    )


def _too_long_finding(focus: _Focus) -> Finding | None:
    state, phase = focus.current, focus.whole
    seconds = _elapsed_seconds(focus.report, state)
    if phase.trains or state.state == "done" or seconds < phase.alarming_s:
        return None

    return _make_finding(
        f"{phase_text(state, phase)}: it takes {time_text(seconds)} already, "
        f"and usually {time_text(phase.typical_s)}",
        phase.reason,
        phase.remedy,
        state.line,
        "possible",
    )


def _elapsed_seconds(report: PhaseReport, state: PhaseState) -> float:
    """
    Return the duration of a phase by the clock of the log; 0 if unknown.
    """
    shown = state.facts.get("elapsed", "")
    elapsed = float(shown) if shown.isdecimal() else 0.0
    if state.begun_at is None or report.last_time is None:
        return elapsed
    last = report.last_time + (report.silent_s or 0.0)
    return max(elapsed, last - state.begun_at)


def _make_finding(  # noqa: PLR0913 all of a finding
    summary: str,
    reason: str,
    remedy: str,
    line: LogLine | None,
    confidence: Confidence,
    *,
    cause: Cause = Cause.START_UP_STALLED,
    ranks: tuple[int, ...] = (),
) -> Finding:
    return Finding(
        cause=cause,
        ranks=ranks,
        summary=f"{summary}; likely {reason}" if reason else summary,
        remedy=remedy or None,
        confidence=confidence,
        evidence=_quote(line),
    )


_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# So many times more ranks than those that are behind printed the same last.
_LEAST_SHARE = 3
_MOST_QUOTED = 3
_OPTIONAL_PART = re.compile(r"\[([^\[\]]{0,200})\]")
_PLACEHOLDER = re.compile(r"\{(\w{1,40})\}")


def failure_findings(timelines: Iterable[Timeline]) -> tuple[Finding, ...]:
    """
    Return one finding per failure in the logs, in the order of the lines.

    A job survived what it met before it trained, if it completed then.
    """
    known: dict[tuple[str, str], FailureRecord] = {}
    for timeline in timelines:
        is_done = timeline.ending and timeline.ending[0] == "completed"
        trained = timeline.last_training if is_done else 0
        for record in timeline.failures:
            if record.last < trained and not record.failure.cause.is_lasting:
                continue
            key = (record.failure.name, record.facts.get("pid", ""))
            known.setdefault(key, record)
    attributed = {x.failure.name for x in known.values() if x.is_attributed}
    return tuple(
        _failure_finding(record)
        for record in known.values()
        if record.is_attributed or record.failure.name not in attributed
    )


def harmless_lines(timelines: Iterable[Timeline]) -> tuple[Harmless, ...]:
    """
    Return the lines that only look bad, one entry per rule.
    """
    records: dict[str, list[FailureRecord]] = {}
    for timeline in timelines:
        for record in timeline.harmless:
            records.setdefault(record.failure.name, []).append(record)
    return tuple(
        Harmless(
            name=name,
            summary=same[0].failure.summary,
            why=same[0].failure.reason,
            count=sum(record.count for record in same),
            line=same[0].line,
        )
        for name, same in records.items()
    )


def _failure_finding(record: FailureRecord) -> Finding:
    failure = record.failure
    return _make_finding(
        _fill_in(failure.summary, record.facts),
        failure.reason,
        _fill_in(failure.remedy, record.facts),
        record.line,
        failure.confidence,
        cause=failure.cause,
        ranks=_ranks_of(record.line),
    )


def _fill_in(text: str, facts: dict[str, str]) -> str:
    """
    Replace ``{name}`` by facts; drop ``[…]`` parts whose facts are missing.
    """

    def optional(found: re.Match[str]) -> str:
        names = _PLACEHOLDER.findall(found[1])
        return found[1] if all(name in facts for name in names) else ""

    return _PLACEHOLDER.sub(
        lambda found: clean(facts.get(found[1], "?")),
        _OPTIONAL_PART.sub(optional, text),
    )


# Clocks differ, and writers buffer lines.
_CLOCK_TOLERANCE = 120.0
_ZONE_STEP_SECONDS = 900.0
_LARGEST_ZONE_OFFSET = 14 * 3600.0


def silent_seconds(
    timelines: Iterable[Timeline], now: float | None
) -> float | None:
    """
    Return for how many seconds none of the logs has grown.

    The times in the text count, unless they cannot be right: those of a clock
    in another time zone, or of a log whose file was written later by lines
    without a time.

    Args:
        now: The current time, in seconds since the epoch.

    Returns:
        The seconds, or ``None`` if unknown.
    """
    if now is None:
        return None

    last = [_last_written(timeline, now) for timeline in timelines]
    known = [time for time in last if time is not None]
    return max(now - max(known), 0.0) if known else None


def _last_written(timeline: Timeline, now: float) -> float | None:
    written = timeline.mtime
    if written is not None and written > now + _CLOCK_TOLERANCE:
        written = None  # a copy that was made after *now*
    logged = timeline.time
    if logged is None:
        return written
    if written is None:
        return logged if logged <= now + _CLOCK_TOLERANCE else None
    if logged > now + _CLOCK_TOLERANCE or logged > written + _CLOCK_TOLERANCE:
        return written
    if _is_zone_offset(written - logged):
        return written
    # A bar may have moved since, without a time; a line would have one.
    return logged if timeline.last_is_timed else max(written, logged)


def _is_zone_offset(seconds: float) -> bool:
    """
    Return whether a difference of two clocks is that of two time zones.
    """
    steps = round(seconds / _ZONE_STEP_SECONDS)
    return (
        steps >= 1
        and abs(seconds - steps * _ZONE_STEP_SECONDS) <= _CLOCK_TOLERANCE / 2
        and seconds <= _LARGEST_ZONE_OFFSET
    )


def detect_phase(
    path_or_lines: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    now: float | None = None,
    framework: str | None = None,
    rules: Iterable[str | os.PathLike[str]] = (),
) -> PhaseReport:
    """
    Detect in which phase a job is, and whether it takes too long.

    Example::

        print(distdebug.detect_phase("train.log").verdict)

    Args:
        path_or_lines: A log, a folder of logs, or several of them, such as the
            driver's and those of the workers; or the lines of one log.  A list
            of strings is a list of files if each names an existing file or
            looks like a path.

        now: The current time in seconds since the epoch, as of
            ``time.time()``.  Without it, silence is not judged.

        framework: The name of the framework; by default the one that the logs
            show.

        rules: Files of framework rules of your own, as
            :func:`~distdebug.logs.phases.framework_rules.load_framework_rules`
            reads them.

    Returns:
        The phases, how far each is, and a verdict.

    Raises:
        NoLogsError: There is no log.

        LogError: The framework is not known.

        RulesError: A file of rules cannot be used.
    """
    frameworks = read_framework_rules(rules)
    names = [one.name for one in frameworks if one.phases]
    if framework is not None and framework not in names:
        msg = f"no such framework: {framework!r:.60}"
        raise LogError(msg, remedy=f"one of {', '.join(sorted(names))}")

    reader = PhaseReader(frameworks, now)
    paths = paths_of(path_or_lines)
    if paths is None:
        read_lines_for(reader, path_or_lines)  # type: ignore[arg-type]
        return make_report(reader, framework=framework, now=now)

    walk = LogWalk(paths)
    read_parts((FilePart(path=str(path)), [reader]) for path in walk)
    missing = (*walk.missing, *reader.missing)
    if not reader.timelines:
        raise no_logs_error(paths, missing)
    return make_report(reader, framework=framework, now=now, missing=missing)


def make_report(
    reader: PhaseReader,
    *,
    framework: str | None = None,
    now: float | None = None,
    missing: tuple[Missing, ...] = (),
) -> PhaseReport:
    """
    Return the phases that logs show; see :func:`detect_phase`.

    Args:
        reader: What has read them: one or more.
    """
    timelines, frameworks = [*reader.timelines.values()], reader.frameworks
    merged = merge_timelines(timelines)
    log_framework = choose_framework(merged, frameworks, framework)
    states = phase_states(merged, log_framework, frameworks)
    current, inner = current_phase(states, log_framework)
    latest = max(timelines, key=lambda s: (s.mtime or 0.0, s.time or 0.0))
    times = [x.time for x in timelines if x.time is not None]
    report = PhaseReport(
        framework=log_framework.name if log_framework else None,
        title=log_framework.title if log_framework else "",
        phases=states,
        current=current,
        inner=inner,
        last_line=latest.last_line,
        last_time=max(times, default=None),
        silent_s=silent_seconds(timelines, now),
        idle_s=_idle_seconds(timelines),
        behind=_ranks_behind(timelines),
        ended=_find_ending(timelines),
        findings=failure_findings(timelines),
        harmless=harmless_lines(timelines),
        timings={k: v for s in timelines for k, v in s.timings.items()},
        attempt=max(timeline.attempt for timeline in timelines),
        missing=missing,
    )
    by_name = {(b.name, p.name): p for b in frameworks for p in b.phases}
    return add_verdict(report, by_name, ending_reason(timelines))


def _idle_seconds(timelines: Iterable[Timeline]) -> float | None:
    """
    Return how long before the last line of all logs the last step was.
    """
    known = [(x.time, x.idle_s) for x in timelines if x.time is not None]
    steps = [time - idle for time, idle in known if idle is not None]
    if not steps:
        return None

    seconds = max(time for time, _ in known) - max(steps)
    if _is_zone_offset(seconds):  # another log has another clock
        return min(idle for _, idle in known if idle is not None)
    return seconds


def _ranks_behind(timelines: Iterable[Timeline]) -> dict[int, LogLine]:
    """
    Return the last lines of the few ranks that stopped elsewhere.

    Numbers do not count, such as those of steps, times, and losses.
    """
    lines = {x.source: x.last_line for x in timelines if x.last_line}
    ranks = find_file_ranks([*lines])
    kinds = {path: _NUMBER.sub("", lines[path].text) for path in ranks}
    usual, count = next(iter(Counter(kinds.values()).most_common(1)), ("", 0))
    others = [path for path in ranks if kinds[path] != usual]
    if len(others) * _LEAST_SHARE > count:
        return {}
    return {ranks[path]: lines[path] for path in sorted(others)}


def _find_ending(timelines: Sequence[Timeline]) -> Outcome | None:
    """
    Return how the last log ended, unless another one trains after it.
    """
    ended = [timeline for timeline in timelines if timeline.ending]
    last = max(ended, key=lambda s: s.ended_at or 0.0, default=None)
    if last is None or last.ending is None:
        return None

    newer = [
        track.last_at
        for timeline in timelines
        for track in timeline.tracks.values()
        if track.phase.trains and track.last_at is not None
    ]
    ended_at = float("inf") if last.ended_at is None else last.ended_at
    return None if max(newer, default=0) > ended_at + 60 else last.ending[0]
