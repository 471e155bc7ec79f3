"""
Build the timeline of a job: phases by log, merged over logs, with states.

It also chooses the framework that the logs belong to, and the current phase.
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Sequence
from itertools import islice

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
from .progress_bars import Progress, parse_bars


_MOST_BARS = 4096
_MOST_FACTS = 32
_MOST_PARTS = 1 << 16
# At most this many bars are searched for the one that continues.
_MOST_UNSIGNED = 64


@attrs.define
class PhaseTrack:
    """
    The record of one phase in a log.

    Times are seconds since the epoch; *last_order* is the number of lines that
    were read by then, so it shows the order also without times.

    More than facts was seen of it if *has_begun*.
    """

    framework: FrameworkRules
    phase: Phase
    has_begun: bool = False
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
        newest = islice(reversed(self.bars), _MOST_UNSIGNED)
        same = [key for key in newest if key[1:] == series]
        before = [
            key
            for key in same
            if self.bars[key].total == bar.total
            and self.bars[key].done <= bar.done
        ]
        if before:
            return min(before, key=lambda key: self.bars[key].done)
        return same[0] if same else (None, *series)

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
            unfinished = [x for x in self.bars.items() if not x[1].is_full]
            active = list({key[:-1]: bar for key, bar in unfinished}.values())
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


_MOST_FAILURES = 64
_MOST_FAILURE_FACTS = 20
_LINES_WITH_FACTS = 20


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

    def is_same(self, found: re.Match[str], line: LogLine, lines: int) -> bool:
        """
        Return whether a line belongs to this failure.

        A failure with facts, such as an actor that died, ends with them: what
        comes after that is about another one.

        Args:
            lines: How many lines of the log were read.
        """
        if not self.failure.more or self.last == lines:
            return True
        if self.line.origin != line.origin or lines > self.open_until:
            return False
        return not self.is_attributed or bool(found.groupdict().get("again"))

    @property
    def is_attributed(self) -> bool:
        """
        Return whether the actor, process, or node is known.
        """
        return not self.facts.keys().isdisjoint({"actor", "pid", "ip"})


_NO_LINE = LogLine("")
_DECISIVE_HITS = ("decisive ", "actor ", "shared_actor ")


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
    # Whether the job surely did all of its work.
    is_complete: bool = False
    ended_at: float | None = None
    reason: LogLine | None = None
    attempt: int = 1
    attempt_at: float | None = None
    last_line: LogLine | None = None
    last_is_timed: bool = False
    time: float | None = None
    mtime: float | None = None
    # The line that is being read, and how many were read with it.
    line: LogLine = _NO_LINE
    lines: int = 0
    starts: set[tuple[object, str]] = attrs.field(factory=set)
    done_at_end: float = 0.0

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
            x.phase.trains and x.has_begun for x in self.tracks.values()
        )

    @property
    def last_training(self) -> int:
        """
        Return how many lines were read when it trained last; 0 for never.
        """
        tracks = (x for x in self.tracks.values() if x.phase.trains)
        return max((x.last_order for x in tracks), default=0)

    @property
    def idle_s(self) -> float | None:
        """
        Return how long before the last line the last step was, if it trains.
        """
        tracks = [x for x in self.tracks.values() if x.last_at]
        newest = max(tracks, key=lambda x: x.last_at or 0.0, default=None)
        if not (self.trains and newest and self.time) or self.ending:
            return None
        # Steps without a time may have gone on long after the last time.
        line = newest.line
        if line and line.time is None and not any(parse_bars(line.text)):
            return None
        return max(self.time - (newest.last_at or 0.0), 0.0)

    def track(
        self,
        framework: FrameworkRules,
        phase: Phase,
        time: float | None,
        *,
        is_start: bool,
    ) -> PhaseTrack | None:
        """
        Return the track of a phase that a line is about.

        Args:
            is_start: Whether the line stands at the beginning of the phase, so
                that the job was started again if it had ended.

        Returns:
            The track; ``None`` for a part whose whole has not begun.
        """
        if phase.part_of and not self.begun(framework, phase.part_of):
            return None
        if self.ending and is_start and not (phase.trains or phase.part_of):
            self.restart(time)
        key = (framework.name, phase.name)
        return self.tracks.setdefault(key, PhaseTrack(framework, phase))

    def begun(self, framework: FrameworkRules, name: str) -> PhaseTrack | None:
        """
        Return the track of a phase that has begun.
        """
        track = self.tracks.get((framework.name, name))
        return track if track and track.has_begun else None

    def score(self, framework: FrameworkRules) -> float:
        """
        Return how much a framework is shown.
        """
        return sum(self.hits.get(framework.name, {}).values())

    def is_decided(self, framework: FrameworkRules) -> bool:
        """
        Return whether there is a hit that only this framework prints.
        """
        hits = self.hits.get(framework.name, ())
        return any(key.startswith(_DECISIVE_HITS) for key in hits)

    def is_identified(self, framework: FrameworkRules) -> bool:
        """
        Return whether more than names of actors that others use show it.
        """
        return any(
            weight > 0 and not key.startswith("shared_actor ")
            for key, weight in self.hits.get(framework.name, {}).items()
        )

    def touch(
        self, track: PhaseTrack, time: float | None, *, is_at_work: bool
    ) -> None:
        """
        Record that the line is about a phase.

        Args:
            is_at_work: Whether it shows that the phase goes on.
        """
        if is_at_work:
            self._resume(track, time)
        track.is_deduplicated |= self.line.count > 1
        self._touch(track, time)

    def _touch(self, track: PhaseTrack, time: float | None) -> None:
        if not track.has_begun:
            track.has_begun, track.begun_at = True, time
        track.last_order, track.line = self.lines, self.line
        track.last_at = track.last_at if time is None else time

    def _resume(self, track: PhaseTrack, time: float | None) -> None:
        """
        Reopen a phase that has ended, unless a later phase has begun.

        A part that goes on shows that its whole does, and ends other parts.
        """
        framework = track.framework
        if whole := track.phase.part_of:
            self._touch(self.tracks[framework.name, whole], time)
            for other in framework.phases:
                known = self.tracks.get((framework.name, other.name))
                is_other = known is not track and other.part_of == whole
                if known is not None and is_other:
                    known.end(time)
            if track.is_ended:
                track.repeat(time)
        elif track.is_ended:
            names = [p.name for p in framework.phases if not p.part_of]
            later = names[names.index(track.phase.name) + 1 :]
            if not any(self.begun(framework, name) for name in later):
                track.reopen()

    def start(self, rules: RuleIndex, rule: Rule, time: float | None) -> None:
        """
        Record a first line of a job, which may begin another attempt.

        Each rank may print it; so the job only starts again if the same
        process printed it before, or if the job had come further.
        """
        kinds = {x.name: x.kind for x in rules.frameworks}
        if rule.framework.kind == "engine" and any(
            kinds[name] in {"orchestrator", "trainer"} for name in self.hits
        ):
            return  # only an engine inside the job restarts

        origin = self.line.origin
        key = (origin, rule.pattern.pattern)
        is_same = origin is not None and key in self.starts
        if self.starts and (
            is_same or self.ending is not None or self._has_advanced(rule)
        ):
            self.restart(time)
        self.starts.add(key)
        if self.attempt_at is None:
            self.attempt_at = time

    def _has_advanced(self, rule: Rule) -> bool:
        framework = rule.framework
        is_any = not framework.phases or framework.kind == "common"
        return any(
            track.has_begun and (track.phase.trains or track.is_ended)
            for (name, _), track in self.tracks.items()
            if is_any or name == framework.name
        )

    def add_training_step(self, done: float) -> None:
        """
        Record a step of training; it takes back an ending but completion.

        Args:
            done: How many steps are done.
        """
        ending = self.ending
        if ending and ending[0] != "completed" and done > self.done_at_end:
            self.ending = None
        if self.ending is None:
            self.done_at_end = done

    def add_failure(self, failure: Failure, found: re.Match[str]) -> None:
        """
        Record a match of a pattern of a failure, or of harmless lines.
        """
        known = self.harmless if failure.harmless else self.failures
        for record in reversed(known):
            if record.failure is failure and record.is_same(
                found, self.line, self.lines
            ):
                # Two patterns may match one line.
                if record.last != self.lines:
                    record.count += self.line.count
                record.last = self.lines
                return
        if len(known) < _MOST_FAILURES:
            until = self.lines + _LINES_WITH_FACTS
            record = FailureRecord(
                failure, self.line, self.line.count, until, self.lines
            )
            record.add_facts(found)
            known.append(record)

    def add_failure_facts(self, failure: object, found: re.Match[str]) -> None:
        """
        Record facts about a failure in the lines just before.
        """
        line = self.line
        for record in reversed(self.failures):
            if (
                record.failure is not failure
                or record.line.origin != line.origin
                or self.lines > record.open_until
            ):
                continue
            if record.line.number == line.number and record.last == self.lines:
                record.open_until = self.lines  # all facts are in one line
            elif record.contradicts(found):
                record.open_until = 0  # the facts are about another failure
                return
            record.add_facts(found)
            return

    def restart(self, time: float | None) -> None:
        """
        Begin another attempt: drop what was recorded before.
        """
        self.tracks.clear()
        self.failures.clear()
        self.timings.clear()
        self.starts.clear()
        self.ending = None
        self.is_complete = False
        self.attempt += 1
        self.attempt_at = time


_CLOCK_TOLERANCE = 60.0


def merge_timelines(timelines: Sequence[Timeline]) -> Timeline:
    """
    Merge the phases and the hits of several logs of one job.

    If one of them shows a restart, phases that were last seen before it are
    dropped from all.
    """
    since = max(
        (x.attempt_at or 0.0 for x in timelines if x.attempt > 1), default=0.0
    )
    tracks: dict[tuple[str, str], list[PhaseTrack]] = {}
    hits: dict[str, dict[str, float]] = {}
    for timeline in timelines:
        for name, found in timeline.hits.items():
            hits.setdefault(name, {}).update(found)
        for key, track in timeline.tracks.items():
            last = track.last_at
            if last is None or last >= since - _CLOCK_TOLERANCE:
                tracks.setdefault(key, []).append(track)
    return Timeline(
        tracks={key: _merge_tracks(some) for key, some in tracks.items()},
        hits=hits,
    )


def _merge_tracks(tracks: Sequence[PhaseTrack]) -> PhaseTrack:
    """
    Merge the tracks of one phase from several logs.
    """
    newest = max(tracks, key=lambda t: (t.last_at or 0.0, t.last_order))
    if len(tracks) == 1:
        return newest

    track_with_step = next((t for t in (newest, *tracks) if t.step), newest)
    ended = [t for t in tracks if t.is_ended]
    begun = [t.begun_at for t in tracks if t.begun_at is not None]
    joined = attrs.evolve(
        newest,
        begun_at=min(begun, default=None),
        has_begun=any(t.has_begun for t in tracks),
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
    # It ends with its last part, and goes on while a bar does.
    if joined.of and joined.done_parts >= joined.of and joined.phase.end_part:
        joined.is_ended = True
    elif all(bar.is_full for bar in joined.bars.values()):
        joined.is_ended = bool(ended)
    return joined


_KINDS_OUTER_FIRST = ("orchestrator", "trainer", "engine")
# One decisive hit, or two ordinary ones.
_DECIDING_SCORE = 2.0


def choose_framework(
    merged: Timeline,
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
        return next((x for x in frameworks if x.name == requested), None)

    for kind in _KINDS_OUTER_FIRST:
        some = [
            framework
            for framework in frameworks
            # Without a decisive hit, the texts may be those of what it runs.
            if framework.kind == kind
            and (merged.is_decided(framework) or not framework.decisive)
        ]
        best = max(some, key=merged.score, default=None)
        if best and merged.score(best) >= _DECIDING_SCORE:
            return best
    # Other frameworks may use the same actor names.
    identified = list(filter(merged.is_identified, frameworks))
    scores = list(map(merged.score, identified))
    # A tie shows no framework.
    is_tie = scores.count(max(scores, default=0.0)) != 1
    return None if is_tie else max(identified, key=merged.score)


def inner_frameworks(
    merged: Timeline,
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
    inside = [
        one
        for one in frameworks
        if order.index(one.kind) > order.index(framework.kind)
        and (one.kind == "common" or merged.score(one) >= _DECIDING_SCORE)
    ]
    return [framework, *sorted(inside, key=lambda x: order.index(x.kind))]


def phase_states(
    merged: Timeline,
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
        merged.begun(framework, phase.name)
        for phase in framework.phases
        if phase.trains
    )
    for one in inner_frameworks(merged, framework, frameworks):
        is_inner = framework is not None and one is not framework
        covered = (
            framework.covers if framework and one.kind == "common" else ()
        )
        for phase in one.phases:
            is_own_phase = one is framework and not phase.part_of
            is_hidden = phase.name in covered or (is_inner and phase.trains)
            track = merged.begun(one, phase.name)
            if is_own_phase or (track and not is_hidden):
                over = trains and one is not framework
                key = one.name, phase.name
                seen = merged.tracks.get(key) or PhaseTrack(one, phase)
                states.append(_state(merged, seen, is_over=over))
    return tuple(states)


def _state(
    merged: Timeline, track: PhaseTrack, *, is_over: bool
) -> PhaseState:
    phase = track.phase
    how, ended_at = _status_and_end(merged, track)
    return PhaseState(
        name=phase.name,
        title=phase.title,
        framework=track.framework.name,
        state="done" if is_over and how == "begun" else how,
        begun_at=track.begun_at,
        ended_at=ended_at,
        last_at=track.last_at,
        progress=track.progress(),
        parts=track.done_parts,
        of=None if track.of is None else int(track.of),
        facts=dict(track.facts),
        line=track.line,
        what=phase.what,
        typical_s=phase.typical_s,
        trains=phase.trains,
        part_of=phase.part_of,
    )


def _status_and_end(
    merged: Timeline, track: PhaseTrack
) -> tuple[PhaseStatus, float | None]:
    framework, phases = track.framework, track.framework.phases
    if not track.has_begun:
        return "not begun", None
    if track.is_ended:
        return "done", track.ended_at
    later = [
        other
        for phase in phases[phases.index(track.phase) + 1 :]
        if _can_end(phase, track.phase)
        and (other := merged.begun(framework, phase.name))
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
