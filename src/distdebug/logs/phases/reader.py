"""
Read a log line by line and record its phases, failures, and ending.

Handled here: which rules match, prefixes that log collectors and loggers add,
progress bars, and the exception that ended the job.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs

from ..lines import LogLine, Origin, parse_line
from .framework_rules import (
    TRACEBACK_HEADER,
    FrameworkRules,
    Phase,
    Rule,
    RuleIndex,
    required_literals,
)
from .prefilter import Block, Prefilter, read_blocks, select_blocks
from .progress_bars import (
    BAR_LITERALS,
    LogClock,
    Progress,
    bar_name,
    bar_series,
    parse_bars,
    parse_number,
)
from .timeline import (
    FailureRecord,
    PhaseTrack,
    Timeline,
    note_ending,
    note_restart,
    note_start,
    note_step,
)


def get_track(
    timeline: Timeline, framework: FrameworkRules, phase: Phase
) -> PhaseTrack:
    """
    Return the track of a phase; create it if nothing was seen of the phase.
    """
    key = (framework.name, phase.name)
    if key not in timeline.tracks:
        timeline.tracks[key] = PhaseTrack(phase)
    return timeline.tracks[key]


def can_be_active(
    timeline: Timeline, framework: FrameworkRules, part: Phase
) -> bool:
    """
    Return whether a phase can be active: a part only once its whole has begun.
    """
    if not part.part_of:
        return True
    whole = timeline.tracks.get((framework.name, part.part_of))
    return whole is not None and whole.first_order is not None


def resume_phase(
    timeline: Timeline,
    framework: FrameworkRules,
    track: PhaseTrack,
    line: LogLine,
    time: float | None,
) -> None:
    """
    Mark a phase as going on, and reopen it unless a later phase has begun.
    """
    if track.phase.part_of:
        _enter_part(timeline, framework, track, line, time)
    elif track.is_ended:
        names = [p.name for p in framework.phases if not p.part_of]
        later = names[names.index(track.phase.name) + 1 :]
        tracks = [
            timeline.tracks.get((framework.name, name)) for name in later
        ]
        if all(other is None or other.first_order is None for other in tracks):
            track.reopen()


def _enter_part(
    timeline: Timeline,
    framework: FrameworkRules,
    track: PhaseTrack,
    line: LogLine,
    time: float | None,
) -> None:
    """
    Mark a part and its whole as going on, which ends the other parts.
    """
    whole = track.phase.part_of
    timeline.tracks[framework.name, whole].touch(timeline.order, time, line)
    for other in framework.phases:
        known = timeline.tracks.get((framework.name, other.name))
        if known is None or known is track or other.part_of != whole:
            continue
        known.end(time)
    if track.is_ended:
        track.repeat(time)


_COUNT_GROUPS = frozenset({"done", "total", "next", "part", "of"})
_RESTART_PERCENT = 10.0


class BarPhase(NamedTuple):
    """
    A phase that a progress bar belongs to.

    Attributes:
        phase: The phase.

        main: The pattern that matches, if the bar shows the progress of the
            phase.

        side: The pattern that matches, if the bar only shows that it goes on.
    """

    phase: Phase
    main: str | None
    side: str | None


def note_phase(
    timeline: Timeline,
    rule: Rule,
    found: re.Match[str],
    line: LogLine,
    time: float | None,
) -> None:
    """
    Record a match of a pattern of a phase.

    Args:
        time: The time of the line, in seconds since the epoch.
    """
    phase = rule.phase
    if phase is None or not can_be_active(timeline, rule.framework, phase):
        return
    if rule.kind == "begin" and not (phase.trains or phase.part_of):
        note_restart(timeline, time)
    track = get_track(timeline, rule.framework, phase)
    groups = {k: v for k, v in found.groupdict().items() if v is not None}
    track.add_facts(
        {k: v for k, v in groups.items() if k not in _COUNT_GROUPS}
    )
    if "of" in groups:
        track.of = parse_number(groups["of"])
    if rule.kind == "facts":
        return

    if rule.kind in {"begin", "progress"}:
        resume_phase(timeline, rule.framework, track, line, time)
    track.is_deduplicated |= line.count > 1
    track.touch(timeline.order, time, line)
    _update_counts(timeline, track, groups, line, time)
    is_last = track.of is None or track.done_parts >= track.of
    if rule.kind == "end" or (rule.kind == "end_part" and is_last):
        track.end(time)
    elif rule.kind == "fail":
        track.has_failed = True


def _update_counts(
    timeline: Timeline,
    track: PhaseTrack,
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
            note_step(timeline, step.done)
        # Without the time of the announced step: much else happens before it.
        track.add_step(step, time if "done" in groups else None)


def phases_of_bar(
    framework: FrameworkRules, name: str
) -> tuple[BarPhase, ...]:
    """
    Return the phases of a framework that a progress bar belongs to.

    Args:
        name: The name of the bar, as :func:`~.progress_bars.bar_name` returns
            it.
    """
    found = (
        BarPhase(
            phase,
            _first_match(phase.bars, name),
            _first_match(phase.side_bars, name),
        )
        for phase in framework.phases
    )
    return tuple(x for x in found if x.main or x.side)


def note_bar(  # noqa: PLR0913, PLR0917 all that is known of a bar
    timeline: Timeline,
    framework: FrameworkRules,
    phases: Iterable[BarPhase],
    name: str,
    bar: Progress,
    line: LogLine,
    time: float | None,
) -> None:
    """
    Record a state of a progress bar for the phases that it belongs to.

    Args:
        phases: The result of :func:`phases_of_bar`.

        name: The name of the bar, as :func:`~.progress_bars.bar_name` returns
            it.

        time: The time of the line, in seconds since the epoch.
    """
    for phase, main, side in phases:
        if not can_be_active(timeline, framework, phase):
            continue
        is_early = not (phase.trains or phase.part_of)
        if is_early and (bar.percent or 0.0) <= _RESTART_PERCENT:
            note_restart(timeline, time)
        track = get_track(timeline, framework, phase)
        if not name and not track.is_same_loop(bar):
            continue
        if name:
            # An orchestrator shows the bars of what it runs.
            weight = 0.0 if framework.kind == "orchestrator" else phase.weight
            timeline.add_hit(framework, f"bar {main or side}", weight)
        if not bar.is_full:
            resume_phase(timeline, framework, track, line, time)
        track.is_deduplicated |= line.count > 1
        track.touch(timeline.order, time, line)
        if main:
            _update_bar(timeline, track, bar, line, time)


def _update_bar(
    timeline: Timeline,
    track: PhaseTrack,
    bar: Progress,
    line: LogLine,
    time: float | None,
) -> None:
    phase = track.phase
    if phase.trains:
        note_step(timeline, bar.done)
    track.add_bar(line.origin, bar, bar_series(bar.name))
    everything = all(one.is_full for one in track.bars.values())
    if everything and not phase.then and not phase.trains:
        track.end(time)


def _first_match(
    patterns: tuple[re.Pattern[str], ...], name: str
) -> str | None:
    return next((p.pattern for p in patterns if p.search(name)), None)


_LINES_WITH_FACTS = 20
_MOST_FAILURES = 64


def note_failure(
    timeline: Timeline,
    rule: Rule,
    found: re.Match[str],
    line: LogLine,
    lines: int,
) -> None:
    """
    Record a match of a pattern of a failure, or of harmless lines.

    Args:
        lines: How many lines of the log were read.
    """
    failure = rule.failure
    if failure is None:
        return

    known = timeline.harmless if failure.harmless else timeline.failures
    same = [record for record in known if record.failure is failure]
    for record in reversed(same):
        if _is_same_failure(record, found, line, lines):
            if record.last != lines:  # two patterns may match one line
                record.count += line.count
            record.last = lines
            return
    if len(known) < _MOST_FAILURES:
        known.append(
            FailureRecord(
                failure, line, line.count, lines + _LINES_WITH_FACTS, lines
            )
        )
        known[-1].add_facts(found)


def note_failure_facts(
    timeline: Timeline,
    rule: Rule,
    found: re.Match[str],
    line: LogLine,
    lines: int,
) -> None:
    """
    Record facts about a failure in the lines just before.

    Args:
        lines: How many lines of the log were read.
    """
    for record in reversed(timeline.failures):
        if record.failure is not rule.failure:
            continue
        if record.line.origin != line.origin or lines > record.open_until:
            continue
        if record.line.number == line.number and record.last == lines:
            record.open_until = lines  # all facts are in one line
        elif record.contradicts(found):
            record.open_until = 0  # the facts are about another failure
            return
        record.add_facts(found)
        return


def _is_same_failure(
    record: FailureRecord, found: re.Match[str], line: LogLine, lines: int
) -> bool:
    """
    Return whether a line belongs to a failure that is recorded already.

    A failure with facts, such as an actor that died, ends with them: what
    comes after that is about another one.
    """
    if not record.failure.more or record.last == lines:
        return True
    if record.line.origin != line.origin or lines > record.open_until:
        return False
    return not record.is_attributed or bool(found.groupdict().get("again"))


_LOG_PREFIX = re.compile(
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


def strip_log_prefix(line: str) -> str:
    """
    Remove the prefixes of log collectors, such as kubectl, docker, or srun.

    Args:
        line: The line as it stands in a file.
    """
    found = _LOG_PREFIX.match(line)
    return line[found.end() :] if found else line


_LONGEST_PREFIX = 240
_LEVELS = frozenset(
    {
        *("info", "debug", "warn", "warning", "error", "critical", "fatal"),
        *("trace", "success", "notice"),
    }
)
_LOGGER_WORDS = _LEVELS | frozenset(
    {
        *("stdout", "stderr", "f", "p", "i"),
        *("w", "e", "am", "pm", "utc", "gmt", "rank", "worker", "node"),
        *("mon", "tue", "wed", "thu", "fri", "sat", "sun", "root"),
        *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep"),
        *("oct", "nov", "dec"),
    }
)
_ROLE_WORD = re.compile(
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
    Return whether only the prefix of a logger stands before a text.

    Args:
        text: The line, without the prefix of a launcher.

        start: Where the text begins.
    """
    before = text[:start].strip()
    if not before:
        return True
    if len(before) > _LONGEST_PREFIX or before.endswith(_QUOTES):
        return False

    tokens = before.split()
    return all(
        _is_logger_token(token, tokens[i - 1 : i] + tokens[i + 1 : i + 2])
        for i, token in enumerate(tokens)
    )


def _is_logger_token(token: str, around: list[str]) -> bool:
    if _DIGIT.search(token):
        return True
    if _ROLE_WORD.fullmatch(token):
        return False
    if token.endswith((":", "]", ")", "|", ">")) or token[0] in "[(<":
        return True
    if not any(char.isalnum() for char in token):
        return True
    if token.strip("-:|,").lower() in _LOGGER_WORDS:
        return True
    neighbours = {one.strip("-:|,[]").lower() for one in around}
    is_beside_logger_token = not _SEPARATORS.isdisjoint(around) or bool(
        neighbours & _LEVELS
    )
    return is_beside_logger_token and bool(_WORD.fullmatch(token))


_EXCEPTION = re.compile(
    r"(?<![\w.])(?:[\w.]{1,160}\.)?"
    r"\w{0,60}(?:Error|Exception|Interrupt|Exit|Failure|Expired|Iteration)"
    r"(?::|$)"
)
# Messages that follow from an error elsewhere.
_CONSEQUENCE = re.compile(
    r"ChildFailedError|[Ss]ee (?:the )?(?:root cause|stack trace|logs?) above"
    r"|[Cc]onnection (?:was )?(?:closed|reset) by (?:remote )?peer"
    r"|[Bb]roken pipe|remote process exited|EngineDeadError"
    r"|Engine core initialization failed|EngineCore failed to start"
    r"|NCCL communicator was aborted"
)
_MOST_TRACEBACK_LINES = 400
# A traceback ends its log if at most this many lines follow.
_MOST_LINES_AFTER_END = 60
_LONGEST_EXCEPTION = 1000
_MOST_OPEN = 1024
_MOST_EXCEPTIONS = 4096


def is_consequence(text: str) -> bool:
    """
    Return whether an exception is only a consequence of another process's.
    """
    return _CONSEQUENCE.search(text[:_LONGEST_EXCEPTION]) is not None


@attrs.define
class TracebackTracker:
    """
    Track tracebacks in a log, and find the exception that ended the job.
    """

    # The line at which an open traceback began, by origin.
    _open: dict[Origin | None, int] = attrs.field(factory=dict)
    # The last exception with its line number and order, by origin.
    _exceptions: dict[Origin | None, tuple[int, int, LogLine]] = attrs.field(
        factory=dict
    )

    @property
    def is_open(self) -> bool:
        """
        Return whether a traceback has begun without its exception yet.
        """
        return bool(self._open)

    def begin(self, line: LogLine, lines: int) -> None:
        """
        Begin a traceback at a line.
        """
        self._open.pop(line.origin, None)  # keep the oldest first
        if len(self._open) < _MOST_OPEN:
            self._open[line.origin] = lines

    def read(self, line: LogLine, lines: int, order: int) -> None:
        """
        Read a line, which may be the exception of an open traceback.
        """
        since = self._open.get(line.origin)
        if since is None:
            self._drop_stale(lines)
            return

        text = line.text[:_LONGEST_EXCEPTION]
        found = _EXCEPTION.search(text)
        if lines - since > _MOST_TRACEBACK_LINES:
            del self._open[line.origin]
        elif found and begins_message(text, found.start()):
            del self._open[line.origin]
            exception = line._replace(text=line.text[found.start() :])
            self._add_exception(exception, lines, order)

    def _drop_stale(self, lines: int) -> None:
        if self._open:
            oldest = next(iter(self._open))
            if lines - self._open[oldest] > _MOST_TRACEBACK_LINES:
                del self._open[oldest]

    def _add_exception(self, line: LogLine, lines: int, order: int) -> None:
        """
        Record the last exception of a process, unless it is a consequence.
        """
        known = self._exceptions.get(line.origin)
        if known and is_consequence(line.text):
            if not is_consequence(known[2].text):
                line = known[2]
        elif known is None and len(self._exceptions) >= _MOST_EXCEPTIONS:
            return
        self._exceptions.pop(line.origin, None)
        self._exceptions[line.origin] = (lines, order, line)

    def set_ending(self, timeline: Timeline, lines: int) -> None:
        """
        Set the ending and its reason, once the log is read.
        """
        if timeline.ending is None:
            last = self._find_final_exception(timeline, lines)
            if last is None:
                return
            timeline.ending = ("failed", last)
        elif timeline.ending[0] != "failed":
            return
        since = _last_training_order(timeline)
        candidates = [
            one for _, at, one in self._exceptions.values() if at >= since
        ]
        timeline.reason = min(
            candidates, key=lambda one: is_consequence(one.text), default=None
        )

    def _find_final_exception(
        self, timeline: Timeline, lines: int
    ) -> LogLine | None:
        """
        Return the exception of the driver, or of a rank, that ends this log.
        """
        driver_exceptions = [
            (number, order, line)
            for origin, (number, order, line) in self._exceptions.items()
            if origin is None or origin.pid is None
        ]
        if not driver_exceptions:
            return None

        number, order, line = max(driver_exceptions, key=lambda one: one[0])
        orders = [
            track.last_order
            for track in timeline.tracks.values()
            if not _is_reported_late(track)
        ]
        is_last = lines - number <= _MOST_LINES_AFTER_END
        return line if is_last and max(orders, default=0) <= order else None


def _is_reported_late(track: PhaseTrack) -> bool:
    """
    Return whether an actor may report this end after its driver has died.
    """
    origin = track.line.origin if track.line else None
    is_actor = origin is not None and origin.pid is not None
    return is_actor and track.is_ended and not track.phase.trains


def _last_training_order(timeline: Timeline) -> int:
    """
    Return when the job last trained; it survived all exceptions before.
    """
    orders = [
        track.last_order
        for track in timeline.tracks.values()
        if track.phase.trains
    ]
    return max(orders, default=0)


_TABLE_ROW = re.compile(
    r" {1,8}(?P<name>\S.{0,80}?)[ .:]{2,80}(?P<seconds>\d{1,9}\.\d{1,3}) ?s\b"
)
# First lines of the logs of Ray actors and tasks.
_NAME_LINES = (":actor_name:", ":task_name:")
_ACTOR_KINDS = frozenset({"actor", "shared_actor"})
_LONGEST_LINE = 1 << 16
_TABLE_LINES = 40
_MOST_BARS = 1000


class LogReader:
    """
    Read the blocks of one log, in their order, into a timeline.
    """

    def __init__(self, rules: RuleIndex, clock: LogClock) -> None:
        self.rules = rules
        self.clock = clock
        self.timeline = Timeline()
        self.lines = 0
        self.last = ("", 0)
        # Number and start of the whole line, which may hold many bar states.
        self.file_line: tuple[int, str] = (0, "")
        self.known_texts: set[str] = set()
        # Phases by framework, for each name of a bar.
        self.bars: dict[
            str, list[tuple[FrameworkRules, tuple[BarPhase, ...]]]
        ] = {}
        self.table_until = 0
        self.traceback = TracebackTracker()

    def read(self, block: Block) -> None:
        """
        Read a block line by line.
        """
        # Skip texts of actors that have matched already.
        texts = [
            text
            for text in self.rules.texts_in(block.data)
            if text not in self.known_texts
        ]
        number = block.number
        for raw in block.text.split("\n"):
            for piece in raw.split("\r"):
                if piece and not piece.isspace():
                    self._read_line(piece, number, texts)
            number += 1

    def _read_line(self, raw: str, number: int, texts: list[str]) -> None:
        self.lines += 1
        self.clock.add(raw)
        self.last = (raw, number)
        if self.file_line[0] != number:
            self.file_line = (number, raw[:1000])
        present = [text for text in texts if text in raw]
        is_open = self.lines <= self.table_until or self.traceback.is_open
        if not (present or is_open or self.rules.always):
            return

        line = self._parse(raw, number)
        self.timeline.order += 1
        if self.lines <= self.table_until:
            self._read_table_row(line)
        self.traceback.read(line, self.lines, self.timeline.order)
        if TRACEBACK_HEADER in present:
            self.traceback.begin(line, self.lines)
        if any(text in present for text in BAR_LITERALS):
            self._read_bars(line)
        self._match_rules(line, present)

    def _parse(self, raw: str, number: int) -> LogLine:
        """
        Parse a line; all states of a bar have the origin of the first of them.
        """
        source = self.timeline.source
        plain = strip_log_prefix(raw[:_LONGEST_LINE])
        line = parse_line(plain, number=number, source=source)
        if line.origin is None and self.file_line[1] != raw[:1000]:
            first = parse_line(strip_log_prefix(self.file_line[1]))
            if first.origin is not None:
                return LogLine(
                    text=line.text,
                    number=number,
                    source=source,
                    origin=first.origin,
                    count=line.count,
                )
        return line

    def _read_bars(self, line: LogLine) -> None:
        for bar in parse_bars(line.text):
            name = bar_name(bar.name)
            time = self.clock.bar_time(line, name, bar)
            for framework, phases in self._phases_of(name):
                note_bar(
                    self.timeline, framework, phases, name, bar, line, time
                )

    def _phases_of(
        self, name: str
    ) -> list[tuple[FrameworkRules, tuple[BarPhase, ...]]]:
        """
        Return the phases of a bar by framework, cached by name.
        """
        if name not in self.bars:
            if len(self.bars) >= _MOST_BARS:
                self.bars.clear()
            found = [
                (x, phases_of_bar(x, name)) for x in self.rules.frameworks
            ]
            self.bars[name] = [(x, phases) for x, phases in found if phases]
        return self.bars[name]

    def _match_rules(self, line: LogLine, present: list[str]) -> None:
        tried: set[int] = set()
        begins: dict[int, bool] = {}
        rules = [r for text in present for r in self.rules.by_text[text]]
        # Rules that add facts come last: they need a recorded failure.
        rules.sort(key=lambda rule: rule.kind == "more")
        for rule in (*rules, *self.rules.always):
            if id(rule) in tried:
                continue
            tried.add(id(rule))
            if rule.kind == "decisive" and self._is_known(rule):
                continue
            if rule.kind in _ACTOR_KINDS:
                self._match_actor(rule, line)
                continue
            found = rule.find(line.text)
            if found is None:
                continue
            start = found.start()
            if start not in begins:
                begins[start] = begins_message(line.text, start)
            if begins[start]:
                self._apply(rule, found, line)

    def _is_known(self, rule: Rule) -> bool:
        return rule.hit_key in self.timeline.hits.get(rule.framework.name, ())

    def _match_actor(self, rule: Rule, line: LogLine) -> None:
        """
        Match the name of an actor that prints a line, or begins its own log.
        """
        name = line.origin.name if line.origin else ""
        if not name and line.text.startswith(_NAME_LINES):
            name = line.text.rpartition(":")[2]
        if rule.pattern.match(name):
            self.timeline.add_hit(rule.framework, rule.hit_key, rule.weight)
            self.known_texts.update(required_literals(rule.pattern))

    def _apply(self, rule: Rule, found: re.Match[str], line: LogLine) -> None:
        timeline = self.timeline
        if rule.kind == "more":
            note_failure_facts(timeline, rule, found, line, self.lines)
            return

        timeline.add_hit(rule.framework, rule.hit_key, rule.weight)
        time = self.clock.line_time(line)
        if rule.kind == "start":
            note_start(timeline, self.rules, rule, line, time)
        elif rule.kind == "table":
            self.table_until = self.lines + _TABLE_LINES
        elif rule.kind == "failure":
            note_failure(timeline, rule, found, line, self.lines)
        elif rule.kind == "ending":
            note_ending(timeline, rule, line, time)
        else:
            note_phase(timeline, rule, found, line, time)

    def _read_table_row(self, line: LogLine) -> None:
        found = _TABLE_ROW.match(line.text)
        if found:
            name = found["name"].rstrip(" .:")
            self.timeline.timings[name] = float(found["seconds"])

    def finish(self) -> None:
        """
        Set the last line, its time, and the ending, once the log is read.
        """
        if not self.lines:
            return

        timeline = self.timeline
        timeline.last_line = self._parse(*self.last)
        self.clock.add(self.last[0])
        timeline.time = self.clock.line_time(timeline.last_line)
        timeline.last_is_timed = self.clock.is_exact
        self.traceback.set_ending(timeline, self.lines)


def read_timeline(
    source: str | os.PathLike[str] | Iterable[str],
    rules: RuleIndex,
    *,
    now: float | None = None,
) -> Timeline:
    """
    Read a log, and record its phases, failures, and ending.

    Args:
        source: A path; or lines, or a text of several.

        now: The latest possible time, which decides the year of times without
            one.

    Returns:
        The timeline of its last attempt.

    Raises:
        OSError: It cannot be read.

        ValueError: It is no ordinary file.
    """
    reader = LogReader(rules, LogClock(now=now))
    timeline = reader.timeline
    if isinstance(source, os.PathLike) or (
        isinstance(source, str) and "\n" not in source
    ):
        timeline.source = os.fspath(source)
        timeline.mtime = os.stat(source).st_mtime  # noqa: PTH116 may be a text
    prefilter = Prefilter(rules=rules, timeline=timeline)
    blocks = read_blocks(source, on_error=timeline.read_errors.append)
    for block in select_blocks(blocks, prefilter.is_relevant):
        reader.read(block)
    reader.finish()
    return timeline
