"""
Read a log line by line and record its phases, failures, and ending.

Handled here: which rules match, and progress bars.
"""

from __future__ import annotations

import re

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import attrs

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
from .timeline import FailureRecord, PhaseTrack, Timeline


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


class _Raised(NamedTuple):
    """
    The last exception of a process, with its line number and order.
    """

    number: int
    order: int
    line: LogLine


@attrs.define
class TracebackTracker:
    """
    Track tracebacks in a log, and find the exception that ended the job.
    """

    # The line at which an open traceback began, and its reader, by origin.
    _open: dict[Origin | None, tuple[int, TracebackReader]] = attrs.field(
        factory=dict
    )
    _raised: dict[Origin | None, _Raised] = attrs.field(factory=dict)

    @property
    def is_open(self) -> bool:
        """
        Return whether a traceback has begun without its exception yet.
        """
        return bool(self._open)

    def read(self, line: LogLine, lines: int, order: int) -> None:
        """
        Read a line: of an open traceback, or the header of another one.
        """
        since, reader = self._open.get(line.origin, (lines, None))
        if reader is None:
            self._drop_stale(lines)
        else:
            reader.read(line.text)
            if reader.errors or lines - since > _MOST_TRACEBACK_LINES:
                del self._open[line.origin]
            if reader.errors:
                raised = line._replace(text=str(reader.errors[-1]))
                self._add(_Raised(lines, order, raised))
        head, header, _ = line.text.partition(TRACEBACK_HEADER)
        if header:
            self._open.pop(line.origin, None)  # keep the oldest first
            if len(self._open) < _MOST_OPEN:
                self._open[line.origin] = (lines, TracebackReader(head))

    def _drop_stale(self, lines: int) -> None:
        oldest = next(iter(self._open), None)
        if self._open and lines - self._open[oldest][0] > (
            _MOST_TRACEBACK_LINES
        ):
            del self._open[oldest]

    def _add(self, raised: _Raised) -> None:
        """
        Record the last exception of a process, unless it is a consequence.
        """
        origin = raised.line.origin
        known = self._raised.pop(origin, None)
        if (
            known
            and is_consequence(raised.line.text)
            and not is_consequence(known.line.text)
        ):
            raised = raised._replace(line=known.line)
        if known or len(self._raised) < _MOST_EXCEPTIONS:
            self._raised[origin] = raised

    def set_ending(self, timeline: Timeline, lines: int) -> None:
        """
        Set the ending and its reason, once the log is read.
        """
        if timeline.ending is None:
            last = self._find_final(timeline, lines)
            if last is None:
                return
            timeline.ending = ("failed", last)
        elif timeline.ending[0] != "failed":
            return
        tracks = timeline.tracks.values()
        # The job survived all exceptions before it trained last.
        since = max(
            (x.last_order for x in tracks if x.phase.trains), default=0
        )
        timeline.reason = min(
            (x.line for x in self._raised.values() if x.order >= since),
            key=lambda line: is_consequence(line.text),
            default=None,
        )

    def _find_final(self, timeline: Timeline, lines: int) -> LogLine | None:
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

        final = max(of_driver, key=lambda x: x.number)
        orders = [
            track.last_order
            for track in timeline.tracks.values()
            if not _is_reported_late(track)
        ]
        is_last = lines - final.number <= _MOST_LINES_AFTER_END
        is_last &= max(orders, default=0) <= final.order
        return final.line if is_last else None


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
_LONGEST_LINE = 1 << 16
_TABLE_LINES = 40
_COUNT_GROUPS = frozenset({"done", "total", "next", "part", "of"})
_RESTART_PERCENT = 10.0
_LINES_WITH_FACTS = 20
_MOST_FAILURES = 64


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


class LogReader:
    """
    Read the blocks of one log, in their order, into a timeline.
    """

    def __init__(self, rules: RuleIndex, clock: LogClock) -> None:
        self.rules = rules
        self.clock = clock
        self.timeline = Timeline()
        self.lines = 0
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
        self.block_lines = (self.lines, 0)
        index = 0
        for hit in (*hits, len(lines)):
            while index < hit and self._reads_on(index):
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

    def _reads_on(self, index: int) -> bool:
        """
        Return whether a line matters that has no text of a rule.
        """
        return (
            self.traceback.is_open
            or self.block_lines[0] + index < self.table_until
            or bool(self.rules.always)
        )

    def _advance(self, lines: BlockLines, stop: int) -> None:
        """
        Count the lines of a block before an index.
        """
        before, first = self.block_lines
        self.clock.add(lines, first, stop)
        self.block_lines = (before, stop)
        self.lines = before + stop

    def _read_line(
        self, lines: BlockLines, index: int, present: tuple[str, ...]
    ) -> None:
        self._advance(lines, index + 1)
        line = self._parse(lines, index)
        self.timeline.order += 1
        if self.lines <= self.table_until and (
            row := _TABLE_ROW.match(line.text)
        ):
            name = row["name"].rstrip(" .:")
            self.timeline.timings[name] = float(row["seconds"])
        self.traceback.read(line, self.lines, self.timeline.order)
        if any(text in present for text in BAR_LITERALS):
            self._read_bars(line)
        self._match_line(line, present)

    def _parse(self, lines: BlockLines, index: int) -> LogLine:
        """
        Parse a line; all states of a bar have the origin of the first of them.
        """
        number = lines.number(index)
        plain = strip_log_prefix(lines[index][:_LONGEST_LINE])
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

    def _match_line(self, line: LogLine, texts: tuple[str, ...]) -> None:
        hits = self.timeline.hits
        for rule in _find_candidates(self.rules, texts):
            if rule.kind in ACTOR_KINDS:
                self._match_actor(rule, line)
                continue
            known = hits.get(rule.framework.name, ())
            if rule.kind == "decisive" and rule.hit_key in known:
                continue
            found = rule.find(line.text)
            if found and begins_message(line.text, found.start()):
                self._apply(rule, found, line)

    def _match_actor(self, rule: Rule, line: LogLine) -> None:
        """
        Match the name of an actor that prints a line, or begins its own log.
        """
        name = line.origin.name if line.origin else ""
        if not name and line.text.startswith(_NAME_LINES):
            name = line.text.rpartition(":")[2]
        if rule.pattern.match(name):
            self.timeline.add_hit(rule.framework, rule.hit_key, rule.weight)
            self.known_texts.update(rule.texts)

    def _apply(self, rule: Rule, found: re.Match[str], line: LogLine) -> None:
        timeline, owner = self.timeline, rule.owner
        if rule.kind == "more":
            self._add_failure_facts(rule, found, line)
            return

        timeline.add_hit(rule.framework, rule.hit_key, rule.weight)
        time = self.clock.line_time(line)
        if rule.kind == "start":
            timeline.start(self.rules, rule, line, time)
        elif rule.kind == "table":
            self.table_until = self.lines + _TABLE_LINES
        elif isinstance(owner, Failure):
            self._add_failure(owner, found, line)
        elif isinstance(owner, Ending):
            if timeline.ending is None or owner.is_sure:
                timeline.ending, timeline.ended_at = (owner.how, line), time
            timeline.is_complete |= owner.is_sure
        elif isinstance(owner, Phase):
            self._read_phase(rule, owner, found, line, time)

    def _read_phase(
        self,
        rule: Rule,
        phase: Phase,
        found: re.Match[str],
        line: LogLine,
        time: float | None,
    ) -> None:
        """
        Record a match of a pattern of a phase.
        """
        timeline = self.timeline
        if not timeline.can_be_active(rule.framework, phase):
            return
        is_early = not (phase.trains or phase.part_of)
        if timeline.ending and rule.kind == "begin" and is_early:
            timeline.restart(time)
        track = timeline.track(rule.framework, phase)
        groups = found.groupdict()
        track.add_facts(
            {k: v for k, v in groups.items() if k not in _COUNT_GROUPS}
        )
        if of := groups.get("of"):
            track.of = parse_number(of)
        if rule.kind == "facts":
            return
        if rule.kind in {"begin", "progress"}:
            timeline.resume(rule.framework, track, line, time)
        track.is_deduplicated |= line.count > 1
        timeline.touch(track, line, time)
        self._update_counts(track, groups, line, time)
        is_last = track.of is None or track.done_parts >= track.of
        if rule.kind == "end" or (rule.kind == "end_part" and is_last):
            track.end(time)
        elif rule.kind == "fail":
            track.has_failed = True

    def _update_counts(
        self,
        track: PhaseTrack,
        groups: Mapping[str, str | None],
        line: LogLine,
        time: float | None,
    ) -> None:
        part, done, following, total = map(
            groups.get, ("part", "done", "next", "total")
        )
        if part:
            track.add_part(part, line.count)
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

    def _read_bars(self, line: LogLine) -> None:
        for bar in parse_bars(line.text):
            name = bar_name(bar.name)
            time = self.clock.bar_time(line, name, bar)
            for bar_phase in _find_bar_phases(self.rules, name):
                self._read_bar(bar_phase, name, bar, line, time)

    def _read_bar(
        self,
        bar_phase: BarPhase,
        name: str,
        bar: Progress,
        line: LogLine,
        time: float | None,
    ) -> None:
        """
        Record a state of a progress bar for a phase that it belongs to.
        """
        framework, phase, main, side = bar_phase
        timeline = self.timeline
        if not timeline.can_be_active(framework, phase):
            return
        is_early = not (phase.trains or phase.part_of)
        is_start = is_early and (bar.percent or 0.0) <= _RESTART_PERCENT
        if timeline.ending and is_start:
            timeline.restart(time)
        track = timeline.track(framework, phase)
        if not name and not track.is_same_loop(bar):
            return
        if name:
            # An orchestrator shows the bars of what it runs.
            weight = 0.0 if framework.kind == "orchestrator" else phase.weight
            timeline.add_hit(framework, f"bar {main or side}", weight)
        if not bar.is_full:
            timeline.resume(framework, track, line, time)
        track.is_deduplicated |= line.count > 1
        timeline.touch(track, line, time)
        if not main:
            return
        if phase.trains:
            timeline.add_training_step(bar.done)
        track.add_bar(line.origin, bar, bar_series(bar.name))
        is_done = all(one.is_full for one in track.bars.values())
        if is_done and not phase.then and not phase.trains:
            track.end(time)

    def _add_failure(
        self, failure: Failure, found: re.Match[str], line: LogLine
    ) -> None:
        """
        Record a match of a pattern of a failure, or of harmless lines.
        """
        timeline = self.timeline
        known = timeline.harmless if failure.harmless else timeline.failures
        for record in reversed(known):
            if record.failure is failure and record.is_same(
                found, line, self.lines
            ):
                if (
                    record.last != self.lines
                ):  # two patterns may match one line
                    record.count += line.count
                record.last = self.lines
                return
        if len(known) < _MOST_FAILURES:
            until = self.lines + _LINES_WITH_FACTS
            known.append(
                FailureRecord(failure, line, line.count, until, self.lines)
            )
            known[-1].add_facts(found)

    def _add_failure_facts(
        self, rule: Rule, found: re.Match[str], line: LogLine
    ) -> None:
        """
        Record facts about a failure in the lines just before.
        """
        for record in reversed(self.timeline.failures):
            if (
                record.failure is not rule.owner
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
        self.traceback.set_ending(timeline, self.lines)
