"""
What does each line of a log tell?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs

from ..lines import LogLine, Origin, parse_line
from .framework_rules import (
    TRACEBACK,
    Book,
    Phase,
    Rule,
    RuleBook,
    literals_of,
)
from .prefilter import Block, Sieve, passages, read_blocks
from .progress_bars import (
    BAR_LITERALS,
    Clock,
    Progress,
    parse_bars,
    parse_number,
    plain_name,
    series_of,
)
from .timeline import (
    Seen,
    Story,
    Track,
    note_ending,
    note_restart,
    note_start,
    note_step,
)


def track_of(story: Story, book: Book, phase: Phase) -> Track:
    """
    What was seen of a phase so far?

    Args:
        story: What is known.

        book: Whose phase it is.

        phase: The phase.

    Returns:
        Its track, begun or not.
    """
    key = (book.name, phase.name)
    if key not in story.tracks:
        story.tracks[key] = Track(phase)
    return story.tracks[key]


def is_inside(story: Story, book: Book, part: Phase) -> bool:
    """
    Can this phase be now?  A part can once the whole has begun.

    Args:
        story: What is known.

        book: Whose phases they are.

        part: The phase, which may be a part of another.

    Returns:
        Whether it can.
    """
    if not part.part_of:
        return True
    whole = story.tracks.get((book.name, part.part_of))
    return whole is not None and whole.begun is not None


def go_on(
    story: Story, book: Book, track: Track, line: LogLine, time: float | None
) -> None:
    """
    A phase goes on: it was not over, if nothing later has begun.

    Args:
        story: What is known.

        book: Whose phase it is.

        track: What was seen of it.

        line: The line that tells.

        time: When it was printed.
    """
    if track.phase.part_of:
        _enter_part(story, book, track, line, time)
    elif track.is_ended:
        names = [p.name for p in book.phases if not p.part_of]
        later = names[names.index(track.phase.name) + 1 :]
        tracks = [story.tracks.get((book.name, name)) for name in later]
        if all(other is None or other.begun is None for other in tracks):
            track.reopen()


def _enter_part(
    story: Story, book: Book, track: Track, line: LogLine, time: float | None
) -> None:
    """
    A part goes on, so the others are over, and the whole goes on.
    """
    whole = track.phase.part_of
    story.tracks[book.name, whole].touch(story.order, time, line)
    for other in book.phases:
        known = story.tracks.get((book.name, other.name))
        if known is None or known is track or other.part_of != whole:
            continue
        known.end(time)
    if track.is_ended:
        track.repeat(time)


_COUNTED = frozenset({"done", "total", "next", "part", "of"})
_HARDLY_BEGUN = 10.0


class BarPhase(NamedTuple):
    """
    A phase that a bar belongs to.

    Attributes:
        phase: The phase.

        main: The pattern that says so, if it tells how far the phase is.

        side: The pattern that says so, if it only tells that it goes on.
    """

    phase: Phase
    main: str | None
    side: str | None


def note_phase(
    story: Story,
    rule: Rule,
    found: re.Match[str],
    line: LogLine,
    time: float | None,
) -> None:
    """
    A text of a phase was printed.

    Args:
        story: What is known.

        rule: Whose text it is.

        found: Where it fits.

        line: The line.

        time: When it was printed.
    """
    phase = rule.phase
    if phase is None or not is_inside(story, rule.book, phase):
        return
    if rule.kind == "begin" and not (phase.trains or phase.part_of):
        note_restart(story, time)
    track = track_of(story, rule.book, phase)
    groups = {k: v for k, v in found.groupdict().items() if v is not None}
    track.add_facts({k: v for k, v in groups.items() if k not in _COUNTED})
    if "of" in groups:
        track.of = parse_number(groups["of"])
    if rule.kind == "facts":
        return

    if rule.kind in {"begin", "progress"}:
        go_on(story, rule.book, track, line, time)
    track.is_deduplicated |= line.count > 1
    track.touch(story.order, time, line)
    _count(story, track, groups, line, time)
    is_last = track.of is None or track.done_parts >= track.of
    if rule.kind == "end" or (rule.kind == "end_part" and is_last):
        track.end(time)
    elif rule.kind == "fail":
        track.has_failed = True


def _count(
    story: Story,
    track: Track,
    groups: Mapping[str, str],
    line: LogLine,
    time: float | None,
) -> None:
    if "part" in groups:
        track.add_part(groups["part"], line.count)
    if "done" in groups or "next" in groups:
        total = groups.get("total")
        step = Progress(
            done=parse_number(groups["done"])
            if "done" in groups
            else max(parse_number(groups["next"]) - 1, 0.0),
            total=parse_number(total) if total else None,
        )
        if track.phase.trains:
            note_step(story, step.done)
        # Before the first step, much else is done.
        track.add_step(step, time if "done" in groups else None)


def phases_of_bar(book: Book, name: str) -> tuple[BarPhase, ...]:
    """
    Which phases of this book does a bar of this name belong to?

    Args:
        book: The book.

        name: The name of the bar, without what a logger wrote before it.

    Returns:
        Each with the pattern of a main bar, and of a side bar, that fits.
    """
    found = (
        BarPhase(
            phase, _first(phase.bars, name), _first(phase.side_bars, name)
        )
        for phase in book.phases
    )
    return tuple(x for x in found if x.main or x.side)


def note_bar(  # noqa: PLR0913, PLR0917 all that is known of a bar
    story: Story,
    book: Book,
    phases: Iterable[BarPhase],
    name: str,
    bar: Progress,
    line: LogLine,
    time: float | None,
) -> None:
    """
    A bar moved: tell the phase of this book that it belongs to.

    Args:
        story: What is known.

        book: The book.

        phases: What :func:`phases_of_bar` says of it.

        name: The name of the bar, without what a logger wrote before it.

        bar: How far it is.

        line: The line.

        time: When it was printed.
    """
    for phase, main, side in phases:
        if not is_inside(story, book, phase):
            continue
        is_early = not (phase.trains or phase.part_of)
        if is_early and (bar.percent or 0.0) <= _HARDLY_BEGUN:
            note_restart(story, time)
        track = track_of(story, book, phase)
        if not name and not track.counts(bar):
            continue
        if name:
            # Who runs others shows their bars.
            weight = 0.0 if book.kind == "orchestrator" else phase.weight
            story.hit(book, f"bar {main or side}", weight)
        if not bar.is_full:
            go_on(story, book, track, line, time)
        track.is_deduplicated |= line.count > 1
        track.touch(story.order, time, line)
        if main:
            _move(story, track, bar, line, time)


def _move(
    story: Story,
    track: Track,
    bar: Progress,
    line: LogLine,
    time: float | None,
) -> None:
    phase = track.phase
    if phase.trains:
        note_step(story, bar.done)
    track.add_bar(line.origin, bar, series_of(bar.name))
    everything = all(one.is_full for one in track.bars.values())
    if everything and not phase.then and not phase.trains:
        track.end(time)


def _first(patterns: tuple[re.Pattern[str], ...], name: str) -> str | None:
    return next((p.pattern for p in patterns if p.search(name)), None)


_MORE_LINES = 20
_MOST = 64


def note_failure(
    story: Story, rule: Rule, found: re.Match[str], line: LogLine, lines: int
) -> None:
    """
    A text was printed that tells of a failure, or only looks so.

    Args:
        story: What is known.

        rule: Whose text it is.

        found: Where it fits.

        line: The line.

        lines: How many lines were read.
    """
    failure = rule.failure
    if failure is None:
        return

    known = story.harmless if failure.harmless else story.failures
    same = [seen for seen in known if seen.failure is failure]
    for seen in reversed(same):
        if _is_same(seen, found, line, lines):
            if seen.last != lines:  # two patterns may fit one line
                seen.count += line.count
            seen.last = lines
            return
    if len(known) < _MOST:
        known.append(
            Seen(failure, line, line.count, lines + _MORE_LINES, lines)
        )
        known[-1].learn(found)


def note_more(
    story: Story, rule: Rule, found: re.Match[str], line: LogLine, lines: int
) -> None:
    """
    A text was printed that may tell more about a failure just before it.

    Args:
        story: What is known.

        rule: Whose text it is.

        found: Where it fits.

        line: The line.

        lines: How many lines were read.
    """
    for seen in reversed(story.failures):
        if seen.failure is not rule.failure:
            continue
        if seen.line.origin != line.origin or lines > seen.open_until:
            continue
        if seen.line.number == line.number and seen.last == lines:
            seen.open_until = lines  # it told all in one line
        elif seen.differs(found):
            seen.open_until = 0  # that is about another one
            return
        seen.learn(found)
        return


def _is_same(
    seen: Seen, found: re.Match[str], line: LogLine, lines: int
) -> bool:
    """
    Does a line go on with what an earlier one complained of?

    Where more is told, as of an actor that died, what comes after that is
    about another one.
    """
    if not seen.failure.more or seen.last == lines:
        return True
    if seen.line.origin != line.origin or lines > seen.open_until:
        return False
    return not seen.is_told or bool(found.groupdict().get("again"))


_CARRIER = re.compile(
    # 2025-11-22T03:52:01.123456789Z stderr F text
    r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) "
    r"(?:std(?:out|err) [FP] )?"
    # [pod/trainer-0/main] text
    r"|\[pod/[^\]\s]{1,200}\] "
    # trainer-1  | text
    r"|[\w.-]{0,60}[-_.]\d{1,4} {1,20}\| "
    # 12: text
    r"|\d{1,5}: "
    # [1,0]<stdout>:text
    r"|\[\d{1,6},\d{1,6}\]<std(?:out|err|diag)>: ?"
    # Nov 22 03:52:01 host python[123]: text
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [\w./-]{1,60}"
    r"(?:\[\d{1,9}\])?: ){1,2}"
)


def without_carrier(line: str) -> str:
    """
    Take off what the carriers of a line wrote before it.

    Args:
        line: The line as it stands in a file.

    Returns:
        The line as a job printed it.
    """
    found = _CARRIER.match(line)
    return line[found.end() :] if found else line


_LONGEST = 240
_LEVELS = frozenset(
    {
        *("info", "debug", "warn", "warning", "error", "critical", "fatal"),
        *("trace", "success", "notice"),
    }
)
_WORDS = _LEVELS | frozenset(
    {
        *("stdout", "stderr", "f", "p", "i"),
        *("w", "e", "am", "pm", "utc", "gmt", "rank", "worker", "node"),
        *("mon", "tue", "wed", "thu", "fri", "sat", "sun", "root"),
        *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep"),
        *("oct", "nov", "dec"),
    }
)
_SAID = re.compile(
    r"\W*(?:user|assistant|human|system|prompt|response|answer|question|text"
    r"|sample|output|input|content|messages?|completion|generated?|label"
    r"|target|reward|tool|role|value|description)\W*",
    re.IGNORECASE,
)
_QUOTES = tuple("\"'`{\u201c\u201d\u2018\u2019\xab\xbb")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"[A-Za-z_][\w.]{0,80}")
_SEPARATORS = frozenset({"-", "|", ">>", "::", "\u2014", "\u2013"})


def begins_message(text: str, start: int) -> bool:
    """
    Does a message begin here?

    Args:
        text: The line, without the prefix of a launcher.

        start: Where the text in question begins.

    Returns:
        Whether only what loggers write stands before it.
    """
    before = text[:start].strip()
    if not before:
        return True
    if len(before) > _LONGEST or before.endswith(_QUOTES):
        return False

    tokens = before.split()
    return all(
        _is_of_logger(token, tokens[i - 1 : i] + tokens[i + 1 : i + 2])
        for i, token in enumerate(tokens)
    )


def _is_of_logger(token: str, around: list[str]) -> bool:
    if _DIGIT.search(token):
        return True
    if _SAID.fullmatch(token):
        return False
    if token.endswith((":", "]", ")", "|", ">")) or token[0] in "[(<":
        return True
    if not any(char.isalnum() for char in token):
        return True
    if token.strip("-:|,").lower() in _WORDS:
        return True
    near = {one.strip("-:|,[]").lower() for one in around}
    is_near = not _SEPARATORS.isdisjoint(around) or bool(near & _LEVELS)
    return is_near and bool(_WORD.fullmatch(token))


_EXCEPTION = re.compile(
    r"(?<![\w.])(?:[\w.]{1,160}\.)?"
    r"\w{0,60}(?:Error|Exception|Interrupt|Exit|Failure|Expired|Iteration)"
    r"(?::|$)"
)
# What only tells that something went wrong elsewhere.
_CONSEQUENCE = re.compile(
    r"ChildFailedError|[Ss]ee (?:the )?(?:root cause|stack trace|logs?) above"
    r"|[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer"
    r"|[Bb]roken pipe|remote process exited|EngineDeadError"
    r"|Engine core initialization failed|EngineCore failed to start"
    r"|NCCL communicator was aborted"
)
_MOST_LINES = 400
# A traceback ends its log if hardly anything follows.
_LAST_WORDS = 60
_TRACEBACKS_LONGEST = 1000
_MOST_OPEN = 1024
_MOST_KEPT = 4096


def is_consequence(text: str) -> bool:
    """
    Does an exception follow from what went wrong elsewhere?

    Args:
        text: What it says.

    Returns:
        Whether it does.
    """
    return _CONSEQUENCE.search(text[:_TRACEBACKS_LONGEST]) is not None


@attrs.define
class Tracebacks:
    """
    The tracebacks of a log, as far as it was read.
    """

    # By who printed them: since which line those go on ...
    _open: dict[Origin | None, int] = attrs.field(factory=dict)
    # ... and their last exceptions, with the numbers of line and order.
    _said: dict[Origin | None, tuple[int, int, LogLine]] = attrs.field(
        factory=dict
    )

    @property
    def is_open(self) -> bool:
        """
        Whether one began, and its exception is still to come.
        """
        return bool(self._open)

    def begin(self, line: LogLine, lines: int) -> None:
        """
        One begins in this line, which is that of this number.
        """
        self._open.pop(line.origin, None)  # the oldest stays the first
        if len(self._open) < _MOST_OPEN:
            self._open[line.origin] = lines

    def read(self, line: LogLine, lines: int, order: int) -> None:
        """
        Is this the exception of one that is open?
        """
        since = self._open.get(line.origin)
        if since is None:
            self._forget(lines)
            return

        text = line.text[:_TRACEBACKS_LONGEST]
        found = _EXCEPTION.search(text)
        if lines - since > _MOST_LINES:
            del self._open[line.origin]
        elif found and begins_message(text, found.start()):
            del self._open[line.origin]
            said = line._replace(text=line.text[found.start() :])
            self._keep(said, lines, order)

    def _forget(self, lines: int) -> None:
        if self._open:
            oldest = next(iter(self._open))
            if lines - self._open[oldest] > _MOST_LINES:
                del self._open[oldest]

    def _keep(self, line: LogLine, lines: int, order: int) -> None:
        """
        The last of each process counts, unless it only follows from one.
        """
        known = self._said.get(line.origin)
        if known and is_consequence(line.text):
            if not is_consequence(known[2].text):
                line = known[2]
        elif known is None and len(self._said) >= _MOST_KEPT:
            return
        self._said.pop(line.origin, None)
        self._said[line.origin] = (lines, order, line)

    def conclude(self, story: Story, lines: int) -> None:
        """
        The log is read: was the last of them the end of all, and why?
        """
        if story.ending is None:
            last = self._last_of_driver(story, lines)
            if last is None:
                return
            story.ending = ("failed", last)
        elif story.ending[0] != "failed":
            return
        since = _last_step(story)
        late = [one for _, at, one in self._said.values() if at >= since]
        story.reason = min(
            late, key=lambda one: is_consequence(one.text), default=None
        )

    def _last_of_driver(self, story: Story, lines: int) -> LogLine | None:
        """
        The exception of the driver, or of a rank, that ends this log.
        """
        mine = [
            (number, order, line)
            for who, (number, order, line) in self._said.items()
            if who is None or who.pid is None
        ]
        if not mine:
            return None

        number, order, line = max(mine, key=lambda one: one[0])
        touched = [
            track.touched
            for track in story.tracks.values()
            if not _is_late(track)
        ]
        is_last = lines - number <= _LAST_WORDS
        return line if is_last and max(touched, default=0) <= order else None


def _is_late(track: Track) -> bool:
    """
    Might an actor tell what is done while its driver is dead already?
    """
    origin = track.line.origin if track.line else None
    is_actor = origin is not None and origin.pid is not None
    return is_actor and track.is_ended and not track.phase.trains


def _last_step(story: Story) -> int:
    """
    When the job last trained: what was complained of before, it survived.
    """
    touched = [
        track.touched for track in story.tracks.values() if track.phase.trains
    ]
    return max(touched, default=0)


_TABLE_ROW = re.compile(
    r" {1,8}(?P<name>\S.{0,80}?)[ .:]{2,80}(?P<seconds>\d{1,9}\.\d{1,3}) ?s\b"
)
# How the logs of Ray's actors and tasks begin.
_MAGIC = (":actor_name:", ":task_name:")
_ACTORS = frozenset({"actor", "shared_actor"})
_READER_LONGEST = 1 << 16
_TABLE_LINES = 40
_MOST_BARS = 1000


class Reader:
    """
    Reads the blocks of one log, in their order.
    """

    def __init__(self, rules: RuleBook, clock: Clock) -> None:
        self.rules = rules
        self.clock = clock
        self.story = Story()
        self.lines = 0
        self.last = ("", 0)
        # Of the line in the file, of which a bar may write many states.
        self.whole: tuple[int, str] = (0, "")
        self.seen: set[str] = set()
        # Phases by the name of a bar.
        self.bars: dict[str, list[tuple[Book, tuple[BarPhase, ...]]]] = {}
        self.table_until = 0
        self.traceback = Tracebacks()

    def read(self, block: Block) -> None:
        """
        Read a block line by line.
        """
        # An actor that is known has told all that its name tells.
        texts = [
            text
            for text in self.rules.texts_in(block.data)
            if text not in self.seen
        ]
        number = block.number
        for raw in block.text.split("\n"):
            for piece in raw.split("\r"):
                if piece and not piece.isspace():
                    self._piece(piece, number, texts)
            number += 1

    def _piece(self, raw: str, number: int, texts: list[str]) -> None:
        self.lines += 1
        self.clock.add(raw)
        self.last = (raw, number)
        if self.whole[0] != number:
            self.whole = (number, raw[:1000])
        there = [text for text in texts if text in raw]
        is_open = self.lines <= self.table_until or self.traceback.is_open
        if not (there or is_open or self.rules.always):
            return

        line = self._line(raw, number)
        self.story.order += 1
        if self.lines <= self.table_until:
            self._table_row(line)
        self.traceback.read(line, self.lines, self.story.order)
        if TRACEBACK in there:
            self.traceback.begin(line, self.lines)
        if any(text in there for text in BAR_LITERALS):
            self._bars(line)
        self._rules(line, there)

    def _line(self, raw: str, number: int) -> LogLine:
        """
        The line; the states of a bar have the prefix of the first of them.
        """
        source = self.story.source
        plain = without_carrier(raw[:_READER_LONGEST])
        line = parse_line(plain, number=number, source=source)
        if line.origin is None and self.whole[1] != raw[:1000]:
            first = parse_line(without_carrier(self.whole[1]))
            if first.origin is not None:
                return LogLine(
                    text=line.text,
                    number=number,
                    source=source,
                    origin=first.origin,
                    count=line.count,
                )
        return line

    def _bars(self, line: LogLine) -> None:
        for bar in parse_bars(line.text):
            name = plain_name(bar.name)
            time = self.clock.of_bar(line, name, bar)
            for book, phases in self._phases_of(name):
                note_bar(self.story, book, phases, name, bar, line, time)

    def _phases_of(self, name: str) -> list[tuple[Book, tuple[BarPhase, ...]]]:
        """
        The phases of each book that a bar belongs to, which writes many states.
        """
        if name not in self.bars:
            if len(self.bars) >= _MOST_BARS:
                self.bars.clear()
            found = [(x, phases_of_bar(x, name)) for x in self.rules.books]
            self.bars[name] = [(x, phases) for x, phases in found if phases]
        return self.bars[name]

    def _rules(self, line: LogLine, there: list[str]) -> None:
        tried: set[int] = set()
        begins: dict[int, bool] = {}
        rules = [r for text in there for r in self.rules.by_text[text]]
        # More is told of what is known.
        rules.sort(key=lambda rule: rule.kind == "more")
        for rule in (*rules, *self.rules.always):
            if id(rule) in tried:
                continue
            tried.add(id(rule))
            if rule.kind == "decisive" and self._is_known(rule):
                continue
            if rule.kind in _ACTORS:
                self._actor(rule, line)
                continue
            found = rule.find(line.text)
            if found is None:
                continue
            start = found.start()
            if start not in begins:
                begins[start] = begins_message(line.text, start)
            if begins[start]:
                self._found(rule, found, line)

    def _is_known(self, rule: Rule) -> bool:
        return rule.told in self.story.hits.get(rule.book.name, ())

    def _actor(self, rule: Rule, line: LogLine) -> None:
        """
        Who prints this, or opens its own log with its name?
        """
        name = line.origin.name if line.origin else ""
        if not name and line.text.startswith(_MAGIC):
            name = line.text.rpartition(":")[2]
        if rule.pattern.match(name):
            self.story.hit(rule.book, rule.told, rule.weight)
            self.seen.update(literals_of(rule.pattern))

    def _found(self, rule: Rule, found: re.Match[str], line: LogLine) -> None:
        story = self.story
        if rule.kind == "more":
            note_more(story, rule, found, line, self.lines)
            return

        story.hit(rule.book, rule.told, rule.weight)
        time = self.clock.of_line(line)
        if rule.kind == "start":
            note_start(story, self.rules, rule, line, time)
        elif rule.kind == "table":
            self.table_until = self.lines + _TABLE_LINES
        elif rule.kind == "failure":
            note_failure(story, rule, found, line, self.lines)
        elif rule.kind == "ending":
            note_ending(story, rule, line, time)
        else:
            note_phase(story, rule, found, line, time)

    def _table_row(self, line: LogLine) -> None:
        found = _TABLE_ROW.match(line.text)
        if found:
            name = found["name"].rstrip(" .:")
            self.story.timings[name] = float(found["seconds"])

    def close(self) -> None:
        """
        The log is read.
        """
        if not self.lines:
            return

        story = self.story
        story.last_line = self._line(*self.last)
        self.clock.add(self.last[0])
        story.time = self.clock.of_line(story.last_line)
        story.last_is_timed = self.clock.is_told
        self.traceback.conclude(story, self.lines)


def follow_log(
    source: str | os.PathLike[str] | Iterable[str],
    rules: RuleBook,
    *,
    now: float | None = None,
) -> Story:
    """
    Read a log, and note what it tells of each phase.

    Args:
        source: A path; or lines, or a text of several.

        rules: What to look for.

        now: The time by which years are chosen where none are told.

    Returns:
        What its last attempt tells.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    reader = Reader(rules, Clock(now=now))
    story = reader.story
    if isinstance(source, os.PathLike) or (
        isinstance(source, str) and "\n" not in source
    ):
        story.source = os.fspath(source)
        story.mtime = os.stat(source).st_mtime  # noqa: PTH116 may be a text
    sieve = Sieve(rules=rules, story=story)
    blocks = read_blocks(source, lose=story.lost.append)
    for block in passages(blocks, sieve.lets_through):
        reader.read(block)
    reader.close()
    return story
