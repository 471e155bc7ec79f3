"""
What does each line of a log tell?
"""

from __future__ import annotations

import re

from .._lines import LogLine, parse_line
from .attempts import note_ending, note_start
from .bars import BAR_LITERALS, parse_bars
from .blocks import Block
from .book import Book
from .carriers import without_carrier
from .clock import Clock
from .complaints import note_failure, note_more
from .literals import literals_of
from .message import begins_message
from .phases import BarPhase, note_bar, note_phase, phases_of_bar
from .rulebook import TRACEBACK, Rule, RuleBook
from .series import plain_name
from .story import Story
from .tracebacks import Tracebacks


__all__ = ["Reader"]

_TABLE_ROW = re.compile(
    r" {1,8}(?P<name>\S.{0,80}?)[ .:]{2,80}(?P<seconds>\d{1,9}\.\d{1,3}) ?s\b"
)
# How the logs of Ray's actors and tasks begin.
_MAGIC = (":actor_name:", ":task_name:")
_ACTORS = frozenset({"actor", "shared_actor"})
_LONGEST = 1 << 16
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
        plain = without_carrier(raw[:_LONGEST])
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
