"""
Which blocks of a huge log matter?

What begins does; later, what tells of a change.
"""

from __future__ import annotations

from collections import Counter

import attrs

from .rulebook import Rule, RuleBook
from .story import Story
from .words import Words, make_words


__all__ = ["Sieve"]

# A text that stands in so many blocks does not begin anything.
_TOO_COMMON = 8
# How much is read whole at the beginning, and once training has begun.
_HEAD = 16 << 20
_TRAINS = 1 << 20
_ALWAYS = frozenset({"start", "ending"})
_OF_PHASES = frozenset({"begin", "end", "end_part", "fail"})


@attrs.define(kw_only=True)
class Sieve:
    """
    Chooses blocks, in their order.

    Attributes:
        rules: All rules.

        story: What is known; it grows by what is let through.

        head: How many bytes more are let through unseen.
    """

    rules: RuleBook
    story: Story
    head: int = attrs.field(factory=lambda: _HEAD)
    _blocks: Counter[bytes] = attrs.field(factory=Counter)
    _by_text: dict[bytes, list[Rule]] = attrs.field(factory=dict)
    _words: Words | None = None
    _came: tuple[int, bool] | None = None

    def lets_through(self, data: bytes) -> bool:
        """
        Does this block matter?

        Args:
            data: The block.

        Returns:
            Whether it is to be read line by line.
        """
        if self.head > 0:
            self.head -= len(data)
            if self.story.trains:
                self.head = min(self.head, _TRAINS)
            return True

        there = self._telling().inside(data)
        self._blocks.update(there)
        if any(self._blocks[text] > _TOO_COMMON for text in there):
            self._words = None
        rules = (rule for text in there for rule in self._by_text[text])
        if any(rule.kind == "start" for rule in rules):
            self.head = _HEAD
        return bool(there)

    def _telling(self) -> Words:
        """
        The texts that tell of a change, as far as the job has come.
        """
        goes_on = self.story.trains and self.story.ending is None
        came = (len(self.story.hits), goes_on)
        if self._words is None or came != self._came:
            self._came = came
            self._by_text = {
                text.encode(): rules
                for text, rules in self.rules.by_text.items()
                if any(self._matters(rule, goes_on=goes_on) for rule in rules)
            }
            self._words = make_words(
                text
                for text in self._by_text
                if self._blocks[text] <= _TOO_COMMON
            )
        return self._words

    def _matters(self, rule: Rule, *, goes_on: bool) -> bool:
        if (
            rule.book.kind != "common"
            and rule.book.name not in self.story.hits
        ):
            return False
        if rule.kind == "failure":
            return rule.failure is not None and not rule.failure.harmless
        if rule.phase is not None and rule.phase.part_of:
            return False
        return rule.kind in _ALWAYS or (
            rule.kind in _OF_PHASES and not goes_on
        )
