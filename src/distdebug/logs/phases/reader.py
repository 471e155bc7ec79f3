"""
Read what matters of a log, and record its phases, failures, and ending.

A start-up stands at the beginning of a log, and the current state at its end;
between them may be gigabytes, of which only the surroundings of lines that
match a relevant rule are read.
"""

from __future__ import annotations

import re

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import attrs

from ..._search import TextIndex, all_literals, make_text_index
from ...findings import Missing
from ..engine import Block, FilePart, LogReader, line_bounds
from ..lines import (
    LineBlock,
    LogLine,
    Origin,
    begins_message,
    parse_line,
    strip_log_prefix,
)
from ..signatures import lost_peer
from ..tracebacks import TRACEBACK_HEADER, TracebackReader
from .framework_rules import (
    Ending,
    Failure,
    FrameworkRules,
    Phase,
    Rule,
    RuleIndex,
    make_rule_index,
)
from .progress_bars import (
    BAR_LITERALS,
    BlockLines,
    LogClock,
    Progress,
    bar_name,
    bar_series,
    parse_bars,
    parse_number,
)
from .timeline import PhaseTrack, Timeline


# Messages that follow from an error elsewhere.
_CONSEQUENCE = re.compile(
    r"ChildFailedError|[Ss]ee (?:the )?(?:root cause|stack trace|logs?) above"
    r"|EngineDeadError"
    r"|Engine core initialization failed|EngineCore failed to start"
    r"|NCCL communicator was aborted"
)
# A traceback ends its log if at most this many lines follow.
_MOST_LINES_AFTER_END = 60
_MOST_TRACEBACK_LINES = 400
_LONGEST_EXCEPTION = 1000
_MOST_OPEN = 1024
_MOST_EXCEPTIONS = 4096


def is_consequence(text: str) -> bool:
    """
    Return whether an exception is only a consequence of another process's.
    """
    text = text[:_LONGEST_EXCEPTION]
    return any(x.search(text) for x in (_CONSEQUENCE, lost_peer()))


def _follows(line: LogLine) -> bool:
    return is_consequence(line.text)


@attrs.define
class TracebackTracker:
    """
    Track tracebacks in a log, and find the exception that ended the job.
    """

    # The line at which an open traceback began, and its reader, by origin.
    _open: dict[Origin | None, tuple[int, TracebackReader]] = attrs.field(
        factory=dict
    )
    # The last exception of a process, and how many lines were read by then.
    _raised: dict[Origin | None, tuple[int, LogLine]] = attrs.field(
        factory=dict
    )

    @property
    def is_open(self) -> bool:
        """
        Return whether a traceback has begun without its exception yet.
        """
        return bool(self._open)

    def read(self, line: LogLine, lines: int) -> None:
        """
        Read a line: of an open traceback, or the header of another one.
        """
        since, reader = self._open.get(line.origin, (lines, None))
        if reader is None:
            oldest = next(iter(self._open.items()), None)
            if oldest and lines - oldest[1][0] > _MOST_TRACEBACK_LINES:
                del self._open[oldest[0]]
        else:
            reader.read(line.text)
            if reader.errors or lines - since > _MOST_TRACEBACK_LINES:
                del self._open[line.origin]
            if reader.errors:
                self._add(line._replace(text=str(reader.errors[-1])), lines)
        head, header, _ = line.text.partition(TRACEBACK_HEADER)
        if header:
            self._open.pop(line.origin, None)  # keep the oldest first
            if len(self._open) < _MOST_OPEN:
                self._open[line.origin] = (lines, TracebackReader(head))

    def _add(self, raised: LogLine, lines: int) -> None:
        """
        Record the last exception of a process, unless it is a consequence.
        """
        origin = raised.origin
        known = self._raised.pop(origin, None)
        if known and is_consequence(raised.text):
            raised = min((raised, known[1]), key=_follows)
        if known or len(self._raised) < _MOST_EXCEPTIONS:
            self._raised[origin] = lines, raised

    def set_ending(self, timeline: Timeline) -> None:
        """
        Set the ending and its reason, once the log is read.
        """
        if timeline.ending is None:
            last = self._find_final(timeline)
            if last is None:
                return
            timeline.ending = ("failed", last)
        elif timeline.ending[0] != "failed":
            return
        # The job survived all exceptions before it trained last.
        since = timeline.last_training
        timeline.reason = min(
            (x for at, x in self._raised.values() if at >= since),
            key=_follows,
            default=None,
        )

    def _find_final(self, timeline: Timeline) -> LogLine | None:
        """
        Return the exception of the driver, or of a rank, that ends this log.
        """
        of_driver = [
            raised
            for origin, raised in self._raised.items()
            if origin is None or origin.pid is None
        ]
        if not of_driver:
            return None

        at, final = max(of_driver, key=lambda x: x[0])
        orders = [
            track.last_order
            for track in timeline.tracks.values()
            if not _is_reported_late(track)
        ]
        is_last = timeline.lines - at <= _MOST_LINES_AFTER_END
        return final if is_last and max(orders, default=0) <= at else None


def _is_reported_late(track: PhaseTrack) -> bool:
    """
    Return whether an actor may report this end after its driver has died.
    """
    origin = track.line.origin if track.line else None
    is_actor = origin is not None and origin.pid is not None
    return is_actor and track.is_ended and not track.phase.trains


_TABLE_ROW = re.compile(
    r" {1,8}(?P<name>\S.{0,80}?)[ .:]{2,80}(?P<seconds>\d{1,9}\.\d{1,3}) ?s\b"
)
# First lines of the logs of Ray actors and tasks.
_NAME_LINES = (":actor_name:", ":task_name:")
ACTOR_KINDS = frozenset({"actor", "shared_actor"})
_TABLE_LINES = 40
_COUNT_GROUPS = frozenset({"done", "total", "next", "part", "of"})
_RESTART_PERCENT = 10.0


class BarPhase(NamedTuple):
    """
    A phase that a progress bar belongs to.

    Attributes:
        main: The pattern that matches, if the bar shows the progress of the
            phase.

        side: The pattern that matches, if the bar only shows that it goes on.
    """

    framework: FrameworkRules
    phase: Phase
    main: str | None
    side: str | None


@lru_cache(maxsize=4096)
def _find_candidates(
    rules: RuleIndex, texts: tuple[str, ...]
) -> tuple[Rule, ...]:
    """
    Return the rules that may match lines with the same literal texts.
    """
    found = dict.fromkeys(x for text in texts for x in rules.by_text[text])
    # Rules that add facts come last: they need a recorded failure.
    ordered = sorted(found, key=lambda rule: rule.kind == "more")
    return (*ordered, *rules.always)


# A log has many states of few bars.
@lru_cache(maxsize=1024)
def _find_bar_phases(rules: RuleIndex, name: str) -> list[BarPhase]:
    """
    Return the phases that a bar with a name belongs to.
    """
    found = (
        BarPhase(
            framework,
            phase,
            _first_match(phase.bars, name),
            _first_match(phase.side_bars, name),
        )
        for framework in rules.frameworks
        for phase in framework.phases
    )
    return [x for x in found if x.main or x.side]


def _first_match(
    patterns: tuple[re.Pattern[str], ...], name: str
) -> str | None:
    return next((p.pattern for p in patterns if p.search(name)), None)


# Of a block with more lines that have a text of a rule, some of the first and
# the last are read: few logs have lines so short, and reading them takes long.
_MOST_HITS, _FIRST_HITS = 1 << 13, 1 << 10


class TimelineReader:
    """
    Read the blocks of one log, in their order, into a timeline.
    """

    def __init__(self, rules: RuleIndex, clock: LogClock) -> None:
        self.rules = rules
        self.clock = clock
        self.timeline = Timeline()
        self.last: tuple[BlockLines, int] | None = None
        # Lines before this block, and how many of it were counted.
        self.block_lines = (0, 0)
        # Number and start of the last line of a block, which may go on.
        self.file_line: tuple[int, str] = (0, "")
        self.known_texts: set[str] = set()
        self.table_until = 0
        self.has_left_out = False
        self.traceback = TracebackTracker()

    def read(self, block: LineBlock) -> int:
        """
        Read the lines of a block that matter.

        Returns:
            How many lines with a text of a rule were read.
        """
        lines = BlockLines(block)
        if not lines:
            return 0
        texts = self._texts_by_line(block, lines)
        hits = sorted(texts)
        if len(hits) > _MOST_HITS:
            self.has_left_out = True
            hits = [*hits[:_FIRST_HITS], *hits[_FIRST_HITS - _MOST_HITS :]]
        self.block_lines = (self.timeline.lines, 0)
        index = 0
        for hit in (*hits, len(lines)):
            # Few lines matter that have no text of a rule.
            while index < hit and (
                self.traceback.is_open
                or self.block_lines[0] + index < self.table_until
                or self.rules.always
            ):
                self._read_line(lines, index, ())
                index += 1
            if hit < len(lines):
                self._read_line(lines, hit, tuple(texts[hit]))
            index = hit + 1
        self._advance(lines, len(lines))
        self.last = (lines, len(lines) - 1)
        number = lines.number(-1)
        if number != self.file_line[0]:
            self.file_line = (number, lines[lines.first_state(-1)][:1000])
        return len(hits)

    def _texts_by_line(
        self, block: LineBlock, lines: BlockLines
    ) -> dict[int, list[str]]:
        """
        Return the literal texts in each line that has any.
        """
        found = self.rules.find_texts(block.data)
        by_line: dict[int, list[str]] = {}
        for index, (_, text) in zip(
            lines.at([offset for offset, _ in found]), found, strict=True
        ):
            # Those of actors that have matched already are skipped.
            if text not in self.known_texts:
                texts = by_line.setdefault(index, [])
                if texts[-1:] != [text]:
                    texts.append(text)
        return by_line

    def _advance(self, lines: BlockLines, stop: int) -> None:
        """
        Count the lines of a block before an index.
        """
        before, first = self.block_lines
        self.clock.add(lines, first, stop)
        self.block_lines = (before, stop)
        self.timeline.lines = before + stop

    def _read_line(
        self, lines: BlockLines, index: int, present: tuple[str, ...]
    ) -> None:
        self._advance(lines, index + 1)
        timeline, line = self.timeline, self._parse(lines, index)
        timeline.line = line
        if timeline.lines <= self.table_until and (
            row := _TABLE_ROW.match(line.text)
        ):
            name = row["name"].rstrip(" .:")
            timeline.timings[name] = float(row["seconds"])
        self.traceback.read(line, timeline.lines)
        if any(text in present for text in BAR_LITERALS):
            self._read_bars()
        self._match_line(present)

    def _parse(self, lines: BlockLines, index: int) -> LogLine:
        """
        Parse a line; all states of a bar have the origin of the first of them.
        """
        number = lines.number(index)
        plain = strip_log_prefix(lines[index])
        line = parse_line(plain, number, self.timeline.source)
        if line.origin is not None:
            return line
        if number == self.file_line[0]:
            start = self.file_line[1]
        elif (first := lines.first_state(index)) != index:
            start = lines[first][:1000]
        else:
            return line
        return line._replace(origin=parse_line(strip_log_prefix(start)).origin)

    def _match_line(self, texts: tuple[str, ...]) -> None:
        timeline, text = self.timeline, self.timeline.line.text
        for rule in _find_candidates(self.rules, texts):
            if rule.kind in ACTOR_KINDS:
                self._match_actor(rule)
                continue
            known = timeline.hits.get(rule.framework.name, ())
            if rule.kind == "decisive" and rule.hit_key in known:
                continue
            found = rule.find(text)
            if found and begins_message(text, found.start()):
                self._apply(rule, found)

    def _match_actor(self, rule: Rule) -> None:
        """
        Match the name of an actor that prints a line, or begins its own log.
        """
        line = self.timeline.line
        name = line.origin.name if line.origin else ""
        if not name and line.text.startswith(_NAME_LINES):
            name = line.text.rpartition(":")[2]
        if rule.pattern.match(name):
            self.timeline.add_hit(rule.framework, rule.hit_key, rule.weight)
            self.known_texts.update(rule.texts)

    def _apply(self, rule: Rule, found: re.Match[str]) -> None:
        timeline, owner = self.timeline, rule.owner
        if rule.kind == "more":
            timeline.add_failure_facts(owner, found)
            return

        timeline.add_hit(rule.framework, rule.hit_key, rule.weight)
        time = self.clock.line_time(timeline.line)
        if rule.kind == "start":
            timeline.start(self.rules, rule, time)
        elif rule.kind == "table":
            self.table_until = timeline.lines + _TABLE_LINES
        elif isinstance(owner, Failure):
            timeline.add_failure(owner, found)
        elif isinstance(owner, Ending):
            if timeline.ending is None or owner.is_sure:
                timeline.ending = owner.how, timeline.line
                timeline.ended_at = time
            timeline.is_complete |= owner.is_sure
        elif isinstance(owner, Phase):
            self._read_phase(rule, owner, found.groupdict(), time)

    def _read_phase(
        self,
        rule: Rule,
        phase: Phase,
        groups: Mapping[str, str | None],
        time: float | None,
    ) -> None:
        """
        Record a match of a pattern of a phase.
        """
        timeline, is_begin = self.timeline, rule.kind == "begin"
        track = timeline.track(rule.framework, phase, time, is_start=is_begin)
        if track is None:
            return
        track.add_facts(
            {k: v for k, v in groups.items() if k not in _COUNT_GROUPS}
        )
        if of := groups.get("of"):
            track.of = parse_number(of)
        if rule.kind == "facts":
            return
        is_at_work = is_begin or rule.kind == "progress"
        timeline.touch(track, time, is_at_work=is_at_work)
        self._update_counts(track, groups, time)
        is_last = track.of is None or track.done_parts >= track.of
        if rule.kind == "end" or (rule.kind == "end_part" and is_last):
            track.end(time)
        elif rule.kind == "fail":
            track.has_failed = True

    def _update_counts(
        self,
        track: PhaseTrack,
        groups: Mapping[str, str | None],
        time: float | None,
    ) -> None:
        part, done, following, total = map(
            groups.get, ("part", "done", "next", "total")
        )
        if part:
            track.add_part(part, self.timeline.line.count)
        if not (done or following):
            return
        number = parse_number(done or following or "")
        step = Progress(
            done=number if done else max(number - 1, 0.0),
            total=parse_number(total) if total else None,
        )
        if track.phase.trains:
            self.timeline.add_training_step(step.done)
        # Without the time of the announced step: much else happens before it.
        track.add_step(step, time if done else None)

    def _read_bars(self) -> None:
        line = self.timeline.line
        for bar in parse_bars(line.text):
            name = bar_name(bar.name)
            time = self.clock.bar_time(line, name, bar)
            for bar_phase in _find_bar_phases(self.rules, name):
                self._read_bar(bar_phase, name, bar, time)

    def _read_bar(
        self, bar_phase: BarPhase, name: str, bar: Progress, time: float | None
    ) -> None:
        """
        Record a state of a progress bar for a phase that it belongs to.
        """
        framework, phase, main, side = bar_phase
        timeline = self.timeline
        is_start = (bar.percent or 0.0) <= _RESTART_PERCENT
        track = timeline.track(framework, phase, time, is_start=is_start)
        if track is None or not (name or track.is_same_loop(bar)):
            return
        if name:
            # An orchestrator shows the bars of what it runs.
            weight = 0.0 if framework.kind == "orchestrator" else phase.weight
            timeline.add_hit(framework, f"bar {main or side}", weight)
        timeline.touch(track, time, is_at_work=not bar.is_full)
        if not main:
            return
        if phase.trains:
            timeline.add_training_step(bar.done)
        track.add_bar(timeline.line.origin, bar, bar_series(bar.name))
        is_done = all(one.is_full for one in track.bars.values())
        if is_done and not phase.then and not phase.trains:
            track.end(time)

    def finish(self) -> None:
        """
        Set the last line, its time, and the ending, once the log is read.
        """
        if self.last is None:
            return

        timeline = self.timeline
        lines, index = self.last
        timeline.last_line = self._parse(lines, index)
        self.clock.add(lines, index, index + 1)
        timeline.time = self.clock.line_time(timeline.last_line)
        timeline.last_is_timed = self.clock.is_exact
        self.traceback.set_ending(timeline)


# Bytes that are read, or searched, at once.
_PIECE_BYTES = 1 << 16
# Bytes at the end of a log that are read whole.
_TAIL_BYTES = 1 << 18
# Bytes before and after a text of a relevant rule that are read with it.
_BYTES_BEFORE, _BYTES_AFTER = 1 << 13, 1 << 15
_LONGEST_PART = 1 << 12


def _surroundings(
    block: Block, start: int, stop: int, places: Iterable[int]
) -> Iterator[LineBlock]:
    """
    Yield the lines around some places of a piece of a block, in order.
    """
    spans: list[tuple[int, int]] = []
    for place in sorted(places):
        begin, end = max(place - _BYTES_BEFORE, start), place + _BYTES_AFTER
        if spans and begin <= spans[-1][1]:
            begin = spans.pop()[0]
        spans.append((begin, end))
    for begin, end in spans:
        first = block.data.rfind(b"\n", start, begin) + 1 or start
        last = block.data.find(b"\n", end, stop) + 1 or stop
        yield block.cut(first, last)


# What matches in more blocks than this does not mark a change.
_MOST_BLOCKS_OF_RULE = 4
# So many lines with a text are tried: millions may have it and not match.
_MOST_TRIES = 1 << 8
# Bytes at the beginning that are read whole, and after training has begun.
_HEAD_BYTES = 16 << 20
_HEAD_BYTES_IN_TRAINING = 1 << 16
# Shorter lines count as so many.
_BYTES_PER_HIT = 160
_ALWAYS_RELEVANT = frozenset({"start", "ending"})
_STARTUP_KINDS = frozenset({"begin", "end", "end_part", "fail"})


@attrs.define(kw_only=True)
class Prefilter:
    """
    Select relevant parts of a log, whose blocks must come in their order.

    Attributes:
        rules: The rules of all frameworks.

        timeline: What was read so far; it grows while selected blocks are
            read.

        unfiltered_bytes: How many more bytes are selected without a search.
    """

    rules: RuleIndex
    timeline: Timeline
    unfiltered_bytes: int = _HEAD_BYTES
    _blocks: Counter[Rule] = attrs.field(factory=Counter)
    _tries: Counter[bytes] = attrs.field(factory=Counter)
    _by_text: dict[bytes, list[Rule]] = attrs.field(factory=dict)
    _texts: TextIndex = attrs.field(factory=lambda: make_text_index(()))
    _stage: tuple[int, bool] | None = None

    def words(self) -> AbstractSet[bytes]:
        """
        Return the words that blocks should be searched for.
        """
        if self.unfiltered_bytes > 0:
            return frozenset()
        self._update_texts()
        return self._texts.by_word.keys()

    def select(
        self, block: Block, start: int, stop: int
    ) -> Iterable[LineBlock]:
        """
        Return the parts of a piece of a block that are read line by line.
        """
        if self.unfiltered_bytes > 0:
            self.unfiltered_bytes -= stop - start
            if self.timeline.trains:
                self.unfiltered_bytes = min(
                    self.unfiltered_bytes, _HEAD_BYTES_IN_TRAINING
                )
            return [block.cut(start, stop)]

        self._update_texts()
        found = [
            (offset, rule)
            for offset, text in self._find_texts(block, start, stop)
            if (rule := self._matching_rule(block.data, offset, text))
        ]
        rules = {rule for _, rule in found}
        self._blocks.update(rules)
        if any(self._blocks[x] > _MOST_BLOCKS_OF_RULE for x in rules):
            self._stage = None
        if any(rule.kind == "start" for rule in rules):
            self.unfiltered_bytes = _HEAD_BYTES
        return _surroundings(block, start, stop, (at for at, _ in found))

    def _find_texts(
        self, block: Block, start: int, stop: int
    ) -> Iterator[tuple[int, bytes]]:
        """
        Return the place and the text of each hit in a piece of a block.
        """
        # A block may have been searched before its words were known.
        block.search_also(self._texts.by_word.keys())
        words = (
            (at, word)
            for word in self._texts.by_word.keys() & block.places.keys()
            for at in block.places_of(word, (start, stop)).tolist()
        )
        return self._texts.find_texts(block.data, words, start, stop)

    def _matching_rule(
        self, data: bytes, offset: int, text: bytes
    ) -> Rule | None:
        """
        Return a rule that may match the line with a text.
        """
        self._tries[text] += 1
        if self._tries[text] > _MOST_TRIES:  # look for other texts
            self._stage = None
        low, high = max(offset - _LONGEST_PART, 0), offset + _LONGEST_PART
        start, end = line_bounds(data, offset, low, high)
        line = data[start:end].decode("utf-8", "replace")
        plain = ""
        for rule in self._by_text[text]:
            if rule.kind in ACTOR_KINDS or rule.find(line):
                return rule
            # A pattern may only match at the beginning of a message.
            plain = plain or parse_line(strip_log_prefix(line)).text
            if rule.find(plain):
                return rule
        return None

    def _update_texts(self) -> None:
        """
        Choose the texts of rules that can still change the timeline.
        """
        is_training = self.timeline.trains and self.timeline.ending is None
        stage = (len(self.timeline.hits), is_training)
        if stage == self._stage:
            return
        self._stage = stage
        self._by_text = {}
        for rule in dict.fromkeys(chain(*self.rules.by_text.values())):
            if self._is_relevant_rule(rule, is_training=is_training):
                for text in self._texts_to_look_for(rule):
                    self._by_text.setdefault(text, []).append(rule)
        any_case = {text.encode() for text in self.rules.any_case}
        self._texts = make_text_index(self._by_text, any_case=any_case)

    def _texts_to_look_for(self, rule: Rule) -> list[bytes]:
        """
        Return texts of which one stands where a rule matches, and seldom else.
        """
        if rule.words:
            found = [text.encode() for text in rule.texts]
            return [x for x in found if self._tries[x] <= _MOST_TRIES]
        for texts in all_literals(rule.pattern):
            found = [text.encode() for text in texts]
            if all(self._tries[text] <= _MOST_TRIES for text in found):
                return found
        return []

    def _is_relevant_rule(self, rule: Rule, *, is_training: bool) -> bool:
        if self._blocks[rule] > _MOST_BLOCKS_OF_RULE or (
            rule.framework.kind != "common"
            and rule.framework.name not in self.timeline.hits
        ):
            return False
        if rule.kind == "failure":
            return isinstance(rule.owner, Failure) and not rule.owner.harmless
        if isinstance(rule.owner, Phase) and rule.owner.part_of:
            return False
        return rule.kind in _ALWAYS_RELEVANT or (
            rule.kind in _STARTUP_KINDS and not is_training
        )


class PhaseReader(LogReader):
    """
    Read logs for phases.

    Args:
        now: The latest possible time, which decides the year of times without
            one.
    """

    def __init__(
        self, frameworks: tuple[FrameworkRules, ...], now: float | None = None
    ) -> None:
        super().__init__()
        #: What each log shows of its last attempt, by its path.
        self.timelines: dict[str, Timeline] = {}
        self.frameworks = frameworks
        self._rules = make_rule_index(frameworks)
        self._now = now

    def begin(self, part: FilePart) -> None:
        """
        Begin the timeline of a file.
        """
        super().begin(part)
        self._reader = TimelineReader(self._rules, LogClock(now=self._now))
        self._prefilter = Prefilter(
            rules=self._rules, timeline=self._reader.timeline
        )
        self._reader.timeline.source = part.path
        # The pieces that are read whole if nothing more comes.
        self._tail: deque[tuple[Block, int, int]] = deque()
        self._tail_size = 0

    def words(self, _stop: int) -> AbstractSet[bytes]:
        """
        Return the words of rules that can still change the timeline.
        """
        return self._prefilter.words()

    def read(self, block: Block) -> None:
        """
        Read what matters in a block, once it is not the end of the file.
        """
        if block.latest is not None and self._now is None:
            self._reader.clock.now = block.latest
        for start, stop in block.pieces(_PIECE_BYTES):
            self._tail.append((block, start, stop))
            self._tail_size += stop - start
            while self._tail_size > _TAIL_BYTES:
                first = self._tail.popleft()
                self._tail_size -= first[2] - first[1]
                for selected in self._prefilter.select(*first):
                    self._read_lines(selected)

    def end(self, error: Exception | None) -> None:
        """
        Read the end of the file, and keep its timeline.
        """
        super().end(error)
        path, timeline = self.part.path, self._reader.timeline
        for block, start, stop in self._tail:
            self._read_lines(block.cut(start, stop))
        self._reader.finish()
        if self._reader.has_left_out:
            reason = "states of bars, or other short lines, were left out"
            self.missing.append(Missing.log(path, reason))
        if path:
            with suppress(OSError):
                timeline.mtime = Path(path).stat().st_mtime
        if error is None or self._reader.last is not None:
            self.timelines[path] = timeline

    def _read_lines(self, block: LineBlock) -> None:
        hits = self._reader.read(block)
        self._prefilter.unfiltered_bytes -= max(
            hits * _BYTES_PER_HIT - len(block.data), 0
        )
