"""
Build the timeline of a job: phases by log, merged over logs, with states.

It also chooses the framework that the logs belong to, and the current phase.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import attrs

from ..lines import LogLine
from .framework_rules import (
    Failure,
    FrameworkRules,
    Outcome,
    Phase,
    Rule,
    RuleIndex,
)
from .model import PhaseState, PhaseStatus
from .progress_bars import Progress


_MOST_BARS = 4096
_MOST_FACTS = 32
_MOST_PARTS = 1 << 16
# At most this many bars are searched for the one that continues.
_MOST_UNSIGNED = 64


@attrs.define
class PhaseTrack:
    """
    The record of one phase in a log.

    Times are seconds since the epoch; *first_order* and *last_order* number
    what was seen, so they show the order also without times.
    """

    phase: Phase
    first_order: int | None = None
    last_order: int = 0
    begun_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None
    is_ended: bool = False
    has_failed: bool = False
    is_deduplicated: bool = False
    line: LogLine | None = None
    bars: dict[tuple[object, str, str], Progress] = attrs.field(factory=dict)
    parts: set[str] = attrs.field(factory=set)
    more_parts: int = 0
    of: float | None = None
    step: Progress | None = None
    first_step: tuple[float, float] | None = None
    last_step: tuple[float, float] | None = None
    facts: dict[str, str] = attrs.field(factory=dict)

    def touch(self, order: int, time: float | None, line: LogLine) -> None:
        """
        Record that the phase goes on.
        """
        if self.first_order is None:
            self.first_order, self.begun_at = order, time
        self.last_order, self.line = order, line
        self.last_at = self.last_at if time is None else time

    def end(self, time: float | None) -> None:
        """
        End the phase.
        """
        self.is_ended, self.ended_at = True, time

    def reopen(self) -> None:
        """
        Take back the end of the phase.
        """
        self.is_ended, self.ended_at = False, None

    def repeat(self, time: float | None) -> None:
        """
        Begin the phase again, and reset its progress.
        """
        self.reopen()
        self.bars.clear()
        self.step, self.begun_at = None, time

    def add_bar(
        self, origin: object, bar: Progress, series: tuple[str, str]
    ) -> None:
        """
        Record a state of a progress bar; the newest bar is the last.
        """
        key = (
            (origin, *series)
            if origin
            else self._find_unsigned_bar(bar, series)
        )
        self.bars.pop(key, None)
        if len(self.bars) < _MOST_BARS:
            self.bars[key] = bar

    def _find_unsigned_bar(
        self, bar: Progress, series: tuple[str, str]
    ) -> tuple[object, str, str]:
        """
        Return the key of the bar that a bar without an origin continues.

        Ray prefixes what an actor prints only at the beginning of a line.
        """
        same = [
            (key, self.bars[key])
            for key in islice(reversed(self.bars), _MOST_UNSIGNED)
            if key[1:] == series
        ]
        before = [
            (known.done, key)
            for key, known in same
            if known.total == bar.total and known.done <= bar.done
        ]
        if before:
            return min(before, key=itemgetter(0))[1]
        return same[0][0] if same else (None, *series)

    def add_part(self, part: str, count: int) -> None:
        """
        Record that a part is done, by *count* processes.
        """
        if len(self.parts) < _MOST_PARTS:
            self.parts.add(part[:80])
        self.more_parts += count - 1

    def is_same_loop(self, bar: Progress) -> bool:
        """
        Return whether a bar without a name belongs to the loop of the others.

        Loops over other things, such as evaluation, have another total.
        """
        if self.of is not None:
            return bar.total == self.of

        known = [one for one in self.bars.values() if not one.name]
        if not known or known[-1].total == bar.total:
            return True
        # A full bar before may have counted something else.
        has_loss = self.line is not None and "loss" in self.line.text
        if known[-1].is_full and not has_loss:
            self.bars.clear()
            return True
        return False

    def add_step(self, step: Progress, time: float | None) -> None:
        """
        Record a step that a line shows.
        """
        self.step = step
        if time is None:
            return

        if self.last_step and step.done < self.last_step[1]:
            self.first_step = None
        self.first_step = self.first_step or (time, step.done)
        self.last_step = (time, step.done)

    def add_facts(self, groups: dict[str, str | None]) -> None:
        """
        Record the named groups of a pattern.
        """
        for name, value in groups.items():
            if value is None:
                continue
            if name in self.facts or len(self.facts) < _MOST_FACTS:
                self.facts[name] = value.strip()[:200]

    @property
    def done_parts(self) -> int:
        """
        Return how many parts are done.
        """
        return len(self.parts) + self.more_parts

    def progress(self) -> Progress | None:
        """
        Return the progress of the slowest active bar, or of steps or parts.
        """
        if self.bars:
            bars = list(self.bars.values())
            # A process that began another bar is done with the one before.
            newest = {
                key[:-1]: bar
                for key, bar in self.bars.items()
                if not bar.is_full
            }
            active = list(newest.values())
            # Ray leaves out lines that other processes printed, too.
            lost = self.is_deduplicated and len(active) < len(bars)
            if active and not lost:
                return min(active, key=lambda bar: bar.percent or 0.0)
            return bars[-1]
        if self.step:
            return self._step_progress(self.step)
        if self.of and (self.done_parts or self.phase.trains):
            done = min(float(self.done_parts), self.of)
            return Progress(done=done, total=self.of)
        return None

    def _step_progress(self, step: Progress) -> Progress:
        total = step.total or self.of
        rate = step.rate
        if self.first_step and self.last_step:
            seconds = self.last_step[0] - self.first_step[0]
            steps = self.last_step[1] - self.first_step[1]
            rate = steps / seconds if seconds > 0 and steps > 0 else rate
        left = None
        if rate and total is not None:
            left = max(total - step.done, 0.0) / rate
        return attrs.evolve(step, total=total, rate=rate, left_s=left)


_MOST_FAILURE_FACTS = 20


@attrs.define
class FailureRecord:
    """
    A failure in a log, and the facts about it.
    """

    failure: Failure
    line: LogLine
    count: int
    # Facts are read up to this line.
    open_until: int
    last: int
    facts: dict[str, str] = attrs.field(factory=dict)

    def add_facts(self, found: re.Match[str]) -> None:
        """
        Record the named groups of a pattern.
        """
        for name, value in found.groupdict().items():
            if value and len(self.facts) < _MOST_FAILURE_FACTS:
                self.facts.setdefault(name, value[:200])

    def contradicts(self, found: re.Match[str]) -> bool:
        """
        Return whether the groups of a pattern differ from known facts.
        """
        return any(
            value and self.facts.get(name, value[:200]) != value[:200]
            for name, value in found.groupdict().items()
        )

    @property
    def is_attributed(self) -> bool:
        """
        Return whether the actor, process, or node is known.
        """
        return not self.facts.keys().isdisjoint({"actor", "pid", "ip"})


@attrs.define
class Timeline:
    """
    What one log shows of the last attempt to run the job.
    """

    source: str = ""
    tracks: dict[tuple[str, str], PhaseTrack] = attrs.field(factory=dict)
    hits: dict[str, dict[str, float]] = attrs.field(factory=dict)
    failures: list[FailureRecord] = attrs.field(factory=list)
    harmless: list[FailureRecord] = attrs.field(factory=list)
    timings: dict[str, float] = attrs.field(factory=dict)
    ending: tuple[Outcome, LogLine] | None = None
    ended_at: float | None = None
    reason: LogLine | None = None
    attempt: int = 1
    attempt_at: float | None = None
    last_line: LogLine | None = None
    last_is_timed: bool = False
    time: float | None = None
    mtime: float | None = None
    order: int = 0
    starts: set[tuple[object, str]] = attrs.field(factory=set)
    done_at_end: float = 0.0
    # The errors that kept the rest of the log from being read.
    read_errors: list[Exception] = attrs.field(factory=list)

    def add_hit(
        self, framework: FrameworkRules, hit_key: str, weight: float
    ) -> None:
        """
        Record a match of a pattern that shows the framework.
        """
        if framework.kind != "common":
            self.hits.setdefault(framework.name, {})[hit_key] = weight

    @property
    def trains(self) -> bool:
        """
        Return whether training has begun.
        """
        return any(
            track.phase.trains and track.first_order is not None
            for track in self.tracks.values()
        )

    def restart(self, time: float | None) -> None:
        """
        Begin another attempt: drop what was recorded before.
        """
        self.tracks.clear()
        self.failures.clear()
        self.timings.clear()
        self.starts.clear()
        self.ending = None
        self.attempt += 1
        self.attempt_at = time


_CLOCK_TOLERANCE = 60.0
_DECISIVE_HITS = ("decisive ", "actor ", "shared_actor ")


@attrs.frozen(kw_only=True)
class MergedTimelines:
    """
    The timelines of all logs of a job, merged.
    """

    timelines: tuple[Timeline, ...]
    tracks: Mapping[tuple[str, str], PhaseTrack]
    scores: Mapping[str, float]
    decided: frozenset[str]
    # Frameworks with a hit other than an actor name that others use, too.
    identified: frozenset[str]


def merge_timelines(timelines: Sequence[Timeline]) -> MergedTimelines:
    """
    Merge the timelines of several logs of one job.

    If one of them shows a restart, phases that were last seen before it are
    dropped from all.
    """
    restarts = [
        timeline.attempt_at
        for timeline in timelines
        if timeline.attempt > 1 and timeline.attempt_at is not None
    ]
    since = max(restarts, default=None)
    tracks: dict[tuple[str, str], list[PhaseTrack]] = {}
    hits: dict[str, dict[str, float]] = {}
    for timeline in timelines:
        for name, found in timeline.hits.items():
            hits.setdefault(name, {}).update(found)
        for key, track in timeline.tracks.items():
            if not _is_of_earlier_attempt(track, since):
                tracks.setdefault(key, []).append(track)
    return MergedTimelines(
        timelines=tuple(timelines),
        tracks={key: _merge_tracks(some) for key, some in tracks.items()},
        scores={name: sum(found.values()) for name, found in hits.items()},
        decided=frozenset(
            name
            for name, found in hits.items()
            if any(hit_key.startswith(_DECISIVE_HITS) for hit_key in found)
        ),
        identified=frozenset(
            name
            for name, found in hits.items()
            if any(
                weight > 0 and not hit_key.startswith("shared_actor ")
                for hit_key, weight in found.items()
            )
        ),
    )


def _is_of_earlier_attempt(track: PhaseTrack, since: float | None) -> bool:
    if since is None or track.last_at is None:
        return False

    return track.last_at < since - _CLOCK_TOLERANCE


def _merge_tracks(tracks: Sequence[PhaseTrack]) -> PhaseTrack:
    """
    Merge the tracks of one phase from several logs.
    """
    newest = max(tracks, key=lambda t: (t.last_at or 0.0, t.last_order))
    if len(tracks) == 1:
        return newest

    track_with_step = next((t for t in (newest, *tracks) if t.step), newest)
    ended = [t for t in tracks if t.is_ended]
    joined = attrs.evolve(
        newest,
        begun_at=_minimum(t.begun_at for t in tracks),
        first_order=_minimum(t.first_order for t in tracks),
        is_ended=bool(ended),
        ended_at=ended[0].ended_at if ended else None,
        has_failed=any(t.has_failed for t in tracks),
        is_deduplicated=any(t.is_deduplicated for t in tracks),
        bars={
            ((number, origin), ranks, name): bar
            for number, track in enumerate(tracks)
            for (origin, ranks, name), bar in track.bars.items()
        },
        parts=set().union(*(t.parts for t in tracks)),
        more_parts=sum(t.more_parts for t in tracks),
        of=max((t.of for t in tracks if t.of is not None), default=None),
        step=track_with_step.step,
        first_step=track_with_step.first_step,
        last_step=track_with_step.last_step,
        facts={k: v for t in (*tracks, newest) for k, v in t.facts.items()},
    )
    _correct_end(joined, newest)
    return joined


def _minimum(values: Iterable[Any]) -> Any:
    return min((one for one in values if one is not None), default=None)


def _correct_end(joined: PhaseTrack, newest: PhaseTrack) -> None:
    """
    End a merged phase with its last part; reopen it while a bar goes on.
    """
    if joined.of and joined.done_parts >= joined.of and joined.phase.end_part:
        joined.is_ended = True
    elif any(not bar.is_full for bar in joined.bars.values()):
        joined.is_ended = newest.is_ended


_KINDS_OUTER_FIRST = ("orchestrator", "trainer", "engine")
# One decisive hit, or two ordinary ones.
_DECIDING_SCORE = 2.0


def choose_framework(
    merged: MergedTimelines,
    frameworks: Iterable[FrameworkRules],
    requested: str | None = None,
) -> FrameworkRules | None:
    """
    Choose the framework that the logs belong to: the outermost one.

    Args:
        requested: The name that the caller asks for; by default hits decide.

    Returns:
        Its rules, or ``None`` if nothing shows it.
    """
    frameworks = list(frameworks)
    if requested is not None:
        return next(
            (
                framework
                for framework in frameworks
                if framework.name == requested
            ),
            None,
        )

    scores = merged.scores
    for kind in _KINDS_OUTER_FIRST:
        some = [
            framework
            for framework in frameworks
            # Without a decisive hit, the texts may be those of what it runs.
            if framework.kind == kind
            and (framework.name in merged.decided or not framework.decisive)
        ]
        best = max(some, key=lambda b: scores.get(b.name, 0.0), default=None)
        if best and scores.get(best.name, 0.0) >= _DECIDING_SCORE:
            return best
    # Other frameworks may use the same actor names.
    identified = [
        framework
        for framework in frameworks
        if framework.name in merged.identified
    ]
    identified.sort(key=lambda framework: scores[framework.name], reverse=True)
    ranked_scores = [scores[framework.name] for framework in identified]
    # A tie shows no framework.
    return (
        identified[0]
        if identified and ranked_scores[0] not in ranked_scores[1:]
        else None
    )


def inner_frameworks(
    merged: MergedTimelines,
    framework: FrameworkRules | None,
    frameworks: Iterable[FrameworkRules],
) -> list[FrameworkRules]:
    """
    Return the rules that apply to a job: its framework's, and those inside it.

    Args:
        framework: The framework of the job, or ``None`` if unknown; then only
            the common rules apply.
    """
    if framework is None:
        return [one for one in frameworks if one.kind == "common"]

    order = (*_KINDS_OUTER_FIRST, "common")
    rank = order.index(framework.kind)
    inside = [
        one
        for one in frameworks
        if one is not framework
        and order.index(one.kind) > rank
        and (
            one.kind == "common"
            or merged.scores.get(one.name, 0.0) >= _DECIDING_SCORE
        )
    ]
    inside.sort(key=lambda one: order.index(one.kind))
    return [framework, *inside]


def phase_states(
    merged: MergedTimelines,
    framework: FrameworkRules | None,
    frameworks: Iterable[FrameworkRules],
) -> tuple[PhaseState, ...]:
    """
    Return the state of each phase.

    Returns:
        The phases of the framework, then those that were seen of others
        inside.
    """
    states: list[PhaseState] = []
    trains = framework is not None and any(
        (track := merged.tracks.get((framework.name, phase.name)))
        and track.first_order is not None
        for phase in framework.phases
        if phase.trains
    )
    for one in inner_frameworks(merged, framework, frameworks):
        covered = (
            framework.covers if framework and one.kind == "common" else ()
        )
        for index, phase in enumerate(one.phases):
            track = merged.tracks.get((one.name, phase.name))
            is_begun = track is not None and track.first_order is not None
            is_own_phase = one is framework and not phase.part_of
            if not is_own_phase and (phase.name in covered or not is_begun):
                continue
            if one is not framework and phase.trains and framework is not None:
                continue
            over = trains and one is not framework
            states.append(_state(merged, one, index, is_over=over))
    return tuple(states)


def _state(
    merged: MergedTimelines,
    framework: FrameworkRules,
    index: int,
    *,
    is_over: bool,
) -> PhaseState:
    phase = framework.phases[index]
    state = PhaseState(
        name=phase.name,
        title=phase.title,
        framework=framework.name,
        what=phase.what,
        typical_s=phase.typical_s,
        trains=phase.trains,
        part_of=phase.part_of,
    )
    track = merged.tracks.get((framework.name, phase.name))
    if track is None:
        return state

    how, ended_at = _status_and_end(merged, framework, index, track)
    return attrs.evolve(
        state,
        state="done" if is_over and how == "begun" else how,
        begun_at=track.begun_at,
        ended_at=ended_at,
        last_at=track.last_at,
        progress=track.progress(),
        parts=track.done_parts,
        of=None if track.of is None else int(track.of),
        facts=dict(track.facts),
        line=track.line,
    )


def _status_and_end(
    merged: MergedTimelines,
    framework: FrameworkRules,
    index: int,
    track: PhaseTrack,
) -> tuple[PhaseStatus, float | None]:
    if track.first_order is None:
        return "not begun", None
    if track.is_ended:
        return "done", track.ended_at
    later = [
        other
        for phase in framework.phases[index + 1 :]
        if _can_end(phase, track.phase)
        and (other := merged.tracks.get((framework.name, phase.name)))
        and other.first_order is not None
    ]
    # Common phases come in any order.
    if later and (
        framework.kind != "common" or _shows_completion(later[-1], track)
    ):
        times = [t.begun_at for t in later if t.begun_at is not None]
        return "done", min(times, default=None)
    if track.has_failed:
        return "failed", None
    return "begun", None


def _shows_completion(later: PhaseTrack, track: PhaseTrack) -> bool:
    """
    Return whether training, or a ready server, shows that all else is done.
    """
    ready = later.phase.serves and later.is_ended
    return later.phase.trains or (
        ready and later.last_order > track.last_order
    )


def _can_end(later: Phase, phase: Phase) -> bool:
    if later.part_of or phase.part_of:
        return False
    return later.trains or not phase.until or later.name in phase.until


def current_phase(
    states: Sequence[PhaseState], framework: FrameworkRules | None
) -> tuple[PhaseState | None, PhaseState | None]:
    """
    Return the phase that the job is in, and the active one inside it.

    Returns:
        The deepest phase of the framework that is not done, and what goes on
        inside it; or else the last that is done.
    """
    own = [
        s
        for s in states
        if (framework is None or s.framework == framework.name)
        and not s.part_of
    ]
    begun = [s for s in own if s.state != "not begun"]
    unfinished = [s for s in begun if s.state != "done"]
    inside = [s for s in states if s not in own and s.state == "begun"]
    inner = _newest(s for s in inside if not s.part_of)
    if framework is None and unfinished:
        trains = [s for s in unfinished if s.trains]
        return trains[-1] if trains else _newest(unfinished), None
    if unfinished:
        last = unfinished[-1]
        parts = [s for s in inside if s.part_of == last.name]
        return last, _newest(parts) if last.trains else inner
    if any(s.trains for s in begun):
        return begun[-1], None
    if inner is not None and not (begun and _is_leftover_bar(inner)):
        return inner, None
    return (begun[-1] if begun else None), None


def _newest(states: Iterable[PhaseState]) -> PhaseState | None:
    return max(states, key=lambda s: s.last_at or 0.0, default=None)


def _is_leftover_bar(inner: PhaseState) -> bool:
    """
    Return whether this is a full bar of a finished phase, which nothing ended.
    """
    full = inner.progress is not None and inner.progress.is_full
    return full and inner.framework == "common"


def note_start(
    timeline: Timeline,
    rules: RuleIndex,
    rule: Rule,
    line: LogLine,
    time: float | None,
) -> None:
    """
    Record a first line of a job, which may begin another attempt.

    Each rank may print it; so the job only starts again if the same process
    printed it before, or if the job had come further.

    Args:
        time: The time of the line, in seconds since the epoch.
    """
    kinds = {framework.name: framework.kind for framework in rules.frameworks}
    if rule.framework.kind == "engine" and any(
        kinds[name] in {"orchestrator", "trainer"} for name in timeline.hits
    ):
        return  # only an engine inside the job restarts

    key = (line.origin, rule.pattern.pattern)
    is_same = line.origin is not None and key in timeline.starts
    if timeline.starts and (
        is_same or timeline.ending is not None or _has_advanced(timeline, rule)
    ):
        timeline.restart(time)
    timeline.starts.add(key)
    if timeline.attempt_at is None:
        timeline.attempt_at = time


def note_restart(timeline: Timeline, time: float | None) -> None:
    """
    Begin another attempt if an early phase begins after the end of a job.
    """
    if timeline.ending is not None:
        timeline.restart(time)


def note_step(timeline: Timeline, done: float) -> None:
    """
    Record a step of training; it takes back an ending other than completion.

    Args:
        done: How many steps are done.
    """
    ending = timeline.ending
    if ending and ending[0] != "completed" and done > timeline.done_at_end:
        timeline.ending = None
    if timeline.ending is None:
        timeline.done_at_end = done


def note_ending(
    timeline: Timeline, rule: Rule, line: LogLine, time: float | None
) -> None:
    """
    Record the end of a job, unless it has ended already.
    """
    if rule.ending is not None and timeline.ending is None:
        timeline.ending = (rule.ending.how, line)
        timeline.ended_at = time


def _has_advanced(timeline: Timeline, rule: Rule) -> bool:
    names = {phase.name for phase in rule.framework.phases}
    return any(
        track.first_order is not None
        and (track.phase.trains or track.is_ended)
        for (name, _), track in timeline.tracks.items()
        if name == rule.framework.name
        or not names
        or rule.framework.kind == "common"
    )
