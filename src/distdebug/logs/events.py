"""
Events in logs: lines and tracebacks that match a rule, and those of one kind.
"""

from __future__ import annotations

import re

from collections.abc import Mapping

import attrs

from .lines import LogLine, Origin
from .model import Hit
from .process_ranks import NodeKey
from .rules import NAMING_GROUPS, LogRule
from .tracebacks import PyError, Trace


# Each rank may be named in its own file.
_MOST_NAMED = 1 << 14
_MOST_RANKS = 20_000
# Ranks alone, or with the nodes that they are on.
_RANK_NUMBERS = re.compile(r"(?:^|rank=|(?<=\d),\s?)(\d{1,7})")

GroupKey = tuple[str, str]


@attrs.frozen(kw_only=True)
class Event:
    """
    A line or a traceback that matches a rule.

    Attributes:
        rule: The rule.

        line: The line.

        number: The line number in the part, from 1.

        offset: The byte offset of the line in the file.

        groups: The named groups that the pattern of the rule matched.

        time: The time of the line, in seconds since the epoch.

        trace: The traceback, if it is one.

        is_last: Whether no more events of this kind are reported for this
            part.
    """

    rule: LogRule
    line: LogLine
    number: int
    offset: int
    groups: Mapping[str, str]
    time: float | None
    trace: Trace | None
    is_last: bool

    @property
    def errors(self) -> tuple[PyError, ...]:
        """
        Return the exceptions of the traceback.
        """
        return self.trace.errors if self.trace else ()


@attrs.define(kw_only=True, eq=False)
class EventGroup:
    """
    Events of one kind, while they are counted.

    Attributes:
        key: The group ``key`` of the rule's pattern, or ``""``.

        shape: The shape of the traceback (:func:`traceback_shape`), or ``""``.

        errors: The exceptions of the first traceback.

        count: The number of lines that match.

        is_more: Whether there are more lines than were counted.

        before: The last event of the files before the one that is read; of two
            files, the one that ends later has the last event.

        files: The files, each with the byte offset of its last event.

        begins: The files, each with the byte offset of its first event.

        ranks_in: Global ranks, by file.

        tasks: Numbers of tasks of Slurm, by file.

        local_ranks: Pairs of a node, as path and label show it, and a local
            rank.

        origins: The processes that printed them, as prefixes show.

        named: The processes, nodes, and GPUs at fault that they name, each as
            the name of the group of the pattern and what it matched.
    """

    rule: LogRule
    key: str
    shape: str
    first: Hit
    last: Hit
    before: Hit | None = None
    errors: tuple[PyError, ...] = ()
    count: int = 0
    is_more: bool = False
    files: dict[str, int] = attrs.field(factory=dict)
    begins: dict[str, int] = attrs.field(factory=dict)
    ranks_in: dict[str, set[int]] = attrs.field(factory=dict)
    tasks: dict[str, set[int]] = attrs.field(factory=dict)
    local_ranks: set[tuple[NodeKey, int]] = attrs.field(factory=set)
    origins: dict[Origin, None] = attrs.field(factory=dict)
    named: dict[tuple[str, str], None] = attrs.field(factory=dict)

    @property
    def ranks(self) -> set[int]:
        """
        Return the global ranks in all files.
        """
        return set().union(*self.ranks_in.values())

    @property
    def has_ranks(self) -> bool:
        """
        Return whether it shows which ranks it is about.
        """
        return bool(self.ranks or self.local_ranks)

    def add(self, event: Event, hit: Hit, node: str) -> None:
        """
        Count an event.

        Args:
            node: What the path of the file shows of the node.
        """
        if hit.source not in self.files and _is_before(hit, self.first):
            self.first, self.errors = hit, event.errors
        if hit.source not in self.files:
            self.before = self.last if self.files else None
        self.last = hit
        if self.before is not None and _is_before(hit, self.before):
            self.last = self.before
        self.files[hit.source] = hit.offset
        self.begins.setdefault(hit.source, hit.offset)
        self.count += event.line.count
        self.is_more |= event.is_last
        for name in NAMING_GROUPS & event.groups.keys():
            if len(self.named) < _MOST_NAMED:
                self.named[name, event.groups[name]] = None
        self._add_ranks(event, hit, node)
        if hit.origin and len(self.origins) < _MOST_NAMED:
            self.origins[hit.origin] = None

    def _add_ranks(self, event: Event, hit: Hit, node: str) -> None:
        ranks = self.ranks_in.setdefault(hit.source, set())
        if "ranks" in event.groups:
            numbers = _RANK_NUMBERS.findall(event.groups["ranks"])
            if self.rule.after:  # each report lists all ranks anew
                ranks.clear()
            ranks.update(map(int, numbers[:_MOST_RANKS]))
        elif hit.rank is not None:
            ranks.add(hit.rank)
        elif hit.local_rank is not None:
            label = hit.origin.node if hit.origin else ""
            self.local_ranks.add(((node, label), hit.local_rank))

    def shares_file(self, other: EventGroup) -> bool:
        """
        Return whether both are in one file.
        """
        return not self.files.keys().isdisjoint(other.files)


def _is_before(one: Hit, other: Hit) -> bool:
    if one.time is None or other.time is None:
        return False
    return one.time < other.time
