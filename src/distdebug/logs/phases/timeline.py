"""
What does one log tell of its job?
"""

from __future__ import annotations

import re

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import attrs

from ..lines import LogLine
from .framework_rules import Book, Failure, How, Phase, Rule, RuleBook
from .model import PhaseState, State
from .progress_bars import Progress


_MOST_BARS = 4096
_MOST_FACTS = 32
_MOST_PARTS = 1 << 16
# Of so many bars, one may go on without a name before it.
_FEW = 64


@attrs.define
class Track:
    """
    One phase, as far as a log was read.

    Times are seconds since the epoch; *begun* and *touched* count what was
    seen, so they tell the order also where no times are.
    """

    phase: Phase
    begun: int | None = None
    touched: int = 0
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
        It goes on.
        """
        if self.begun is None:
            self.begun, self.begun_at = order, time
        self.touched, self.line = order, line
        self.last_at = self.last_at if time is None else time

    def end(self, time: float | None) -> None:
        """
        It is over.
        """
        self.is_ended, self.ended_at = True, time

    def reopen(self) -> None:
        """
        It was not over.
        """
        self.is_ended, self.ended_at = False, None

    def repeat(self, time: float | None) -> None:
        """
        It comes again, and counts from the beginning.
        """
        self.reopen()
        self.bars.clear()
        self.step, self.begun_at = None, time

    def add_bar(
        self, who: object, bar: Progress, series: tuple[str, str]
    ) -> None:
        """
        One of its bars moved; the newest comes last.
        """
        key = (who, *series) if who else self._goes_on(bar, series)
        self.bars.pop(key, None)
        if len(self.bars) < _MOST_BARS:
            self.bars[key] = bar

    def _goes_on(
        self, bar: Progress, series: tuple[str, str]
    ) -> tuple[object, str, str]:
        """
        Which bar continues one that nobody signed?

        Ray signs what an actor prints, but only where a line begins.
        """
        same = [
            (key, self.bars[key])
            for key in islice(reversed(self.bars), _FEW)
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
        One of its parts is done, of how many processes ever.
        """
        if len(self.parts) < _MOST_PARTS:
            self.parts.add(part[:80])
        self.more_parts += count - 1

    def counts(self, bar: Progress) -> bool:
        """
        Does a bar without a name count what the others counted?

        Loops over other things, such as evaluation, have another total.
        """
        if self.of is not None:
            return bar.total == self.of

        known = [one for one in self.bars.values() if not one.name]
        if not known or known[-1].total == bar.total:
            return True
        # Something else was counted before.
        told = self.line is not None and "loss" in self.line.text
        if known[-1].is_full and not told:
            self.bars.clear()
            return True
        return False

    def add_step(self, step: Progress, time: float | None) -> None:
        """
        A line tells how far it is.
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
        What a pattern found.
        """
        for name, value in groups.items():
            if value is None:
                continue
            if name in self.facts or len(self.facts) < _MOST_FACTS:
                self.facts[name] = value.strip()[:200]

    @property
    def done_parts(self) -> int:
        """
        How many of its parts are done.
        """
        return len(self.parts) + self.more_parts

    def progress(self) -> Progress | None:
        """
        How far it is: that of the slowest bar which goes on.
        """
        if self.bars:
            bars = list(self.bars.values())
            # Who began another bar is done with the one before.
            newest = {
                key[:-1]: bar
                for key, bar in self.bars.items()
                if not bar.is_full
            }
            going = list(newest.values())
            # Ray leaves out what other processes printed alike.
            lost = self.is_deduplicated and len(going) < len(bars)
            if going and not lost:
                return min(going, key=lambda bar: bar.percent or 0.0)
            return bars[-1]
        if self.step:
            return self._stepwise(self.step)
        if self.of and (self.done_parts or self.phase.trains):
            done = min(float(self.done_parts), self.of)
            return Progress(done=done, total=self.of)
        return None

    def _stepwise(self, step: Progress) -> Progress:
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


_MOST_MORE = 20


@attrs.define
class Seen:
    """
    One failure, and what was learned about it.
    """

    failure: Failure
    line: LogLine
    count: int
    # Up to which line more is told about it.
    open_until: int
    last: int
    facts: dict[str, str] = attrs.field(factory=dict)

    def learn(self, found: re.Match[str]) -> None:
        """
        A pattern tells more about it.
        """
        for name, value in found.groupdict().items():
            if value and len(self.facts) < _MOST_MORE:
                self.facts.setdefault(name, value[:200])

    def differs(self, found: re.Match[str]) -> bool:
        """
        Does a pattern tell something else than is known already?
        """
        return any(
            value and self.facts.get(name, value[:200]) != value[:200]
            for name, value in found.groupdict().items()
        )

    @property
    def is_told(self) -> bool:
        """
        Whether it is known whom it is about.
        """
        return not self.facts.keys().isdisjoint({"actor", "pid", "ip"})


@attrs.define
class Story:
    """
    What one log tells of the last attempt to run the job.
    """

    source: str = ""
    tracks: dict[tuple[str, str], Track] = attrs.field(factory=dict)
    hits: dict[str, dict[str, float]] = attrs.field(factory=dict)
    failures: list[Seen] = attrs.field(factory=list)
    harmless: list[Seen] = attrs.field(factory=list)
    timings: dict[str, float] = attrs.field(factory=dict)
    ending: tuple[How, LogLine] | None = None
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
    # Why the rest of the log could not be read.
    lost: list[Exception] = attrs.field(factory=list)

    def hit(self, book: Book, what: str, weight: float) -> None:
        """
        Something was printed that tells the framework.
        """
        if book.kind != "common":
            self.hits.setdefault(book.name, {})[what] = weight

    @property
    def trains(self) -> bool:
        """
        Whether the job has come as far as its training.
        """
        return any(
            track.phase.trains and track.begun is not None
            for track in self.tracks.values()
        )

    def begin_again(self, time: float | None) -> None:
        """
        The job was started again: what was seen belongs to the past.
        """
        self.tracks.clear()
        self.failures.clear()
        self.timings.clear()
        self.starts.clear()
        self.ending = None
        self.attempt += 1
        self.attempt_at = time


_CLOCKS_DIFFER = 60.0
_DECISIVE = ("decisive ", "actor ", "shared_actor ")


@attrs.frozen(kw_only=True)
class Merged:
    """
    What all logs of a job tell.
    """

    stories: tuple[Story, ...]
    tracks: Mapping[tuple[str, str], Track]
    scores: Mapping[str, float]
    decided: frozenset[str]
    # Those of which more is known than a name that others use, too.
    told: frozenset[str]


def merge(stories: Sequence[Story]) -> Merged:
    """
    Put together what several logs of one job tell.

    Args:
        stories: What each tells; of those that were begun again, only what
            came since is kept, also in the others.

    Returns:
        All of it.
    """
    begun = [
        story.attempt_at
        for story in stories
        if story.attempt > 1 and story.attempt_at is not None
    ]
    since = max(begun, default=None)
    tracks: dict[tuple[str, str], list[Track]] = {}
    hits: dict[str, dict[str, float]] = {}
    for story in stories:
        for book, found in story.hits.items():
            hits.setdefault(book, {}).update(found)
        for key, track in story.tracks.items():
            if not _is_old(track, since):
                tracks.setdefault(key, []).append(track)
    return Merged(
        stories=tuple(stories),
        tracks={key: _joined(some) for key, some in tracks.items()},
        scores={book: sum(found.values()) for book, found in hits.items()},
        decided=frozenset(
            book
            for book, found in hits.items()
            if any(what.startswith(_DECISIVE) for what in found)
        ),
        told=frozenset(
            book
            for book, found in hits.items()
            if any(
                weight > 0 and not what.startswith("shared_actor ")
                for what, weight in found.items()
            )
        ),
    )


def _is_old(track: Track, since: float | None) -> bool:
    if since is None or track.last_at is None:
        return False

    return track.last_at < since - _CLOCKS_DIFFER


def _joined(tracks: Sequence[Track]) -> Track:
    """
    One phase, as several logs tell of it.
    """
    newest = max(tracks, key=lambda t: (t.last_at or 0.0, t.touched))
    if len(tracks) == 1:
        return newest

    stepper = next((t for t in (newest, *tracks) if t.step), newest)
    ended = [t for t in tracks if t.is_ended]
    joined = attrs.evolve(
        newest,
        begun_at=_least(t.begun_at for t in tracks),
        begun=_least(t.begun for t in tracks),
        is_ended=bool(ended),
        ended_at=ended[0].ended_at if ended else None,
        has_failed=any(t.has_failed for t in tracks),
        is_deduplicated=any(t.is_deduplicated for t in tracks),
        bars={
            ((number, who), ranks, name): bar
            for number, track in enumerate(tracks)
            for (who, ranks, name), bar in track.bars.items()
        },
        parts=set().union(*(t.parts for t in tracks)),
        more_parts=sum(t.more_parts for t in tracks),
        of=max((t.of for t in tracks if t.of is not None), default=None),
        step=stepper.step,
        first_step=stepper.first_step,
        last_step=stepper.last_step,
        facts={k: v for t in (*tracks, newest) for k, v in t.facts.items()},
    )
    _correct_end(joined, newest)
    return joined


def _least(values: Iterable[Any]) -> Any:
    return min((one for one in values if one is not None), default=None)


def _correct_end(joined: Track, newest: Track) -> None:
    """
    A phase ends with its last part, and goes on while a bar does.
    """
    if joined.of and joined.done_parts >= joined.of and joined.phase.end_part:
        joined.is_ended = True
    elif any(not bar.is_full for bar in joined.bars.values()):
        joined.is_ended = newest.is_ended


_KINDS = ("orchestrator", "trainer", "engine")
# Something that only this framework prints, or two things that it prints.
_ENOUGH = 2.0


def choose_book(
    merged: Merged, books: Iterable[Book], wanted: str | None = None
) -> Book | None:
    """
    Whose log is it?

    Args:
        merged: What it tells.

        books: The choice.

        wanted: What the caller says.

    Returns:
        The book of what runs the others, or ``None`` if nothing tells.
    """
    books = list(books)
    if wanted is not None:
        return next((book for book in books if book.name == wanted), None)

    scores = merged.scores
    for kind in _KINDS:
        some = [
            book
            for book in books
            # Their texts are also those of what they run.
            if book.kind == kind
            and (book.name in merged.decided or not book.decisive)
        ]
        best = max(some, key=lambda b: scores.get(b.name, 0.0), default=None)
        if best and scores.get(best.name, 0.0) >= _ENOUGH:
            return best
    # Anybody may call an actor an engine.
    every = [book for book in books if book.name in merged.told]
    every.sort(key=lambda book: scores[book.name], reverse=True)
    ranked = [scores[book.name] for book in every]
    # What two print alike does not tell which it is.
    return every[0] if every and ranked[0] not in ranked[1:] else None


def inner_books(
    merged: Merged, book: Book | None, books: Iterable[Book]
) -> list[Book]:
    """
    Which books tell of this job: its own, and those of what runs inside it?

    Args:
        merged: What the logs tell.

        book: Whose they are.

        books: All books.

    Returns:
        Its own first; only what is common where nobody knows whose it is.
    """
    if book is None:
        return [one for one in books if one.kind == "common"]

    order = (*_KINDS, "common")
    rank = order.index(book.kind)
    inside = [
        one
        for one in books
        if one is not book
        and order.index(one.kind) > rank
        and (
            one.kind == "common" or merged.scores.get(one.name, 0.0) >= _ENOUGH
        )
    ]
    inside.sort(key=lambda one: order.index(one.kind))
    return [book, *inside]


def phase_states(
    merged: Merged, book: Book | None, books: Iterable[Book]
) -> tuple[PhaseState, ...]:
    """
    What is the state of each phase?

    Args:
        merged: What the logs tell.

        book: Whose they are.

        books: All books.

    Returns:
        The phases of that book, then those that were seen of others inside.
    """
    found: list[PhaseState] = []
    trains = book is not None and any(
        (track := merged.tracks.get((book.name, phase.name)))
        and track.begun is not None
        for phase in book.phases
        if phase.trains
    )
    for one in inner_books(merged, book, books):
        covered = book.covers if book and one.kind == "common" else ()
        for index, phase in enumerate(one.phases):
            track = merged.tracks.get((one.name, phase.name))
            is_begun = track is not None and track.begun is not None
            is_ours = one is book and not phase.part_of
            if not is_ours and (phase.name in covered or not is_begun):
                continue
            if one is not book and phase.trains and book is not None:
                continue
            over = trains and one is not book
            found.append(_state(merged, one, index, is_over=over))
    return tuple(found)


def _state(
    merged: Merged, book: Book, index: int, *, is_over: bool
) -> PhaseState:
    phase = book.phases[index]
    state = PhaseState(
        name=phase.name,
        title=phase.title,
        framework=book.name,
        what=phase.what,
        typical_s=phase.typical_s,
        trains=phase.trains,
        part_of=phase.part_of,
    )
    track = merged.tracks.get((book.name, phase.name))
    if track is None:
        return state

    how, ended_at = _how(merged, book, index, track)
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


def _how(
    merged: Merged, book: Book, index: int, track: Track
) -> tuple[State, float | None]:
    if track.begun is None:
        return "not begun", None
    if track.is_ended:
        return "done", track.ended_at
    later = [
        other
        for phase in book.phases[index + 1 :]
        if _ends(phase, track.phase)
        and (other := merged.tracks.get((book.name, phase.name)))
        and other.begun is not None
    ]
    # What is common comes in any order.
    if later and (book.kind != "common" or _is_up(later[-1], track)):
        times = [t.begun_at for t in later if t.begun_at is not None]
        return "done", min(times, default=None)
    if track.has_failed:
        return "failed", None
    return "begun", None


def _is_up(later: Track, track: Track) -> bool:
    """
    Has the job started, or is its server ready, so that all else is done?
    """
    ready = later.phase.serves and later.is_ended
    return later.phase.trains or (ready and later.touched > track.touched)


def _ends(later: Phase, phase: Phase) -> bool:
    if later.part_of or phase.part_of:
        return False
    return later.trains or not phase.until or later.name in phase.until


def current_phase(
    states: Sequence[PhaseState], book: Book | None
) -> tuple[PhaseState | None, PhaseState | None]:
    """
    What is the job busy with?

    Args:
        states: Its phases.

        book: Whose they are.

    Returns:
        The deepest phase of the book that is not done, and what goes on
        inside it; or else the last that is done.
    """
    own = [
        s
        for s in states
        if (book is None or s.framework == book.name) and not s.part_of
    ]
    begun = [s for s in own if s.state != "not begun"]
    unfinished = [s for s in begun if s.state != "done"]
    inside = [s for s in states if s not in own and s.state == "begun"]
    inner = _newest(s for s in inside if not s.part_of)
    if book is None and unfinished:
        trains = [s for s in unfinished if s.trains]
        return trains[-1] if trains else _newest(unfinished), None
    if unfinished:
        last = unfinished[-1]
        parts = [s for s in inside if s.part_of == last.name]
        return last, _newest(parts) if last.trains else inner
    if any(s.trains for s in begun):
        return begun[-1], None
    if inner is not None and not (begun and _is_past(inner)):
        return inner, None
    return (begun[-1] if begun else None), None


def _newest(states: Iterable[PhaseState]) -> PhaseState | None:
    return max(states, key=lambda s: s.last_at or 0.0, default=None)


def _is_past(inner: PhaseState) -> bool:
    """
    Was that of a phase which is done: a full bar that nothing ends?
    """
    full = inner.progress is not None and inner.progress.is_full
    return full and inner.framework == "common"


def note_start(
    story: Story,
    rules: RuleBook,
    rule: Rule,
    line: LogLine,
    time: float | None,
) -> None:
    """
    A text was printed that begins a job.

    Each rank may print it; so it only begins again if the same process
    printed it before, or if the job had come further.

    Args:
        story: What is known.

        rules: All rules.

        rule: Whose text it is.

        line: The line.

        time: When it was printed.
    """
    kinds = {book.name: book.kind for book in rules.books}
    if rule.book.kind == "engine" and any(
        kinds[name] in {"orchestrator", "trainer"} for name in story.hits
    ):
        return  # an engine inside it is started again

    who = (line.origin, rule.pattern.pattern)
    is_same = line.origin is not None and who in story.starts
    if story.starts and (
        is_same or story.ending is not None or _came_further(story, rule)
    ):
        story.begin_again(time)
    story.starts.add(who)
    if story.attempt_at is None:
        story.attempt_at = time


def note_restart(story: Story, time: float | None) -> None:
    """
    An early phase begins: after the end of a job, it is another attempt.

    Args:
        story: What is known.

        time: When it begins.
    """
    if story.ending is not None:
        story.begin_again(time)


def note_step(story: Story, done: float) -> None:
    """
    The job trains: it was not over.

    Args:
        story: What is known.

        done: How many steps are done.
    """
    ending = story.ending
    if ending and ending[0] != "completed" and done > story.done_at_end:
        story.ending = None
    if story.ending is None:
        story.done_at_end = done


def note_ending(
    story: Story, rule: Rule, line: LogLine, time: float | None
) -> None:
    """
    A text was printed that ends a job.

    Args:
        story: What is known.

        rule: Whose text it is.

        line: The line.

        time: When it was printed.
    """
    if rule.ending is not None and story.ending is None:
        story.ending = (rule.ending.how, line)
        story.ended_at = time


def _came_further(story: Story, rule: Rule) -> bool:
    names = {phase.name for phase in rule.book.phases}
    return any(
        track.begun is not None and (track.phase.trains or track.is_ended)
        for (book, _), track in story.tracks.items()
        if book == rule.book.name or not names or rule.book.kind == "common"
    )
