"""
Load framework rules: patterns of phases, failures, and endings in logs.

The rules are data, one file in TOML per framework in ``frameworks`` beside
this file; users can add files of their own.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from re import Pattern
from typing import Any, Literal

import attrs

from ..._rules import (
    check_table,
    one_of,
    parse_tables,
    read_rules_file,
    refuse_unknown_tables,
)
from ..._search import (
    TextIndex,
    find_each,
    make_text_index,
    required_literals,
)
from ...causes import Cause
from ...errors import RulesError
from ...findings import Confidence
from ..rules import LogRule, built_in_rules
from ..signatures import read_signatures
from ..tracebacks import TRACEBACK_HEADER
from .progress_bars import BAR_LITERALS


FrameworkKind = Literal["orchestrator", "trainer", "engine", "common"]
Outcome = Literal["completed", "failed", "killed"]

_VALID_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def _compile_all(texts: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text) for text in texts)


def _check_name(text: object) -> str:
    if not isinstance(text, str) or not _VALID_NAME.fullmatch(text):
        msg = f"a name is small letters, digits, and _: {text!r:.60}"
        raise ValueError(msg)

    return text


def _find_rules(names: Iterable[str]) -> tuple[LogRule, ...]:
    known = {rule.name: rule for rule in built_in_rules()}
    try:
        return tuple(known[name] for name in names)
    except KeyError as exc:
        msg = f"no rule of signatures.toml has the name {exc}"
        raise ValueError(msg) from None


def _within_line(rule: LogRule) -> re.Pattern[str]:
    """
    Return a pattern that matches a line from its beginning as a rule does.
    """
    if rule.pattern is None:
        body, flags = "|".join(map(re.escape, rule.words)), re.IGNORECASE
    else:
        body = rule.pattern.pattern.removeprefix("(?i)")
        flags = re.RegexFlag(rule.pattern.flags & re.IGNORECASE)
    return re.compile(rf".{{0,300}}?(?:{body})", flags)


def _pattern_field() -> Any:
    return attrs.field(converter=_compile_all, default=())


@attrs.frozen(kw_only=True)
class Phase:
    """
    One phase of a start-up, and the patterns that show it in a log.

    A pattern is a regular expression that has to fit at the beginning of what
    was printed, after times, levels, and names of files; begin it with
    ``.{0,80}`` to find it further inside.  Named groups are kept as facts.
    These are special: *done* and *total*, the progress; *next*, which step
    comes next; *part*, which of several equal parts the line is about, such as
    a rank; and *of*, how many parts there are.

    Attributes:
        name: The name in results.

        title: The name in sentences, as in "loading the dataset".

        what: What happens in it.

        begin: Patterns that only match once it has begun.

        progress: Patterns that match while it goes on.

        bars: Patterns for the names of its progress bars: searched for in what
            stands before the percentage.  An empty name is ``"^$"``.

        side_bars: The same for bars that show that it goes on, but not how far
            it is.

        end: Patterns that end it.

        end_part: Patterns that end one part of it.

        fail: Patterns that show that it failed.

        facts: Patterns that show facts about it at any time.

        until: Which later phases end it, if it goes on beside others; by
            default every later one.

        typical_s: How many seconds it usually takes.

        alarming_s: After how many seconds it takes too long.

        silent_s: For how many seconds nothing may be printed in it.

        then: What follows in silence once its bar is at 100 %.  Without it,
            the bar ends the phase.

        then_silent_s: How many seconds of that silence are normal.

        reason: Why it usually stalls.

        remedy: What to do about that.

        then_reason: Why it usually stalls at 100 %.

        then_remedy: What to do about that.

        trains: Whether it is training itself, so that the start-up is over.

        serves: Whether a server is ready once this has ended, and may then be
            silent for ever.

        part_of: The phase inside which it comes again and again, as the
            generation of samples does in every step of training.  It is only
            looked for once that has begun.

        weight: How much its patterns show the framework: 0 if all jobs print
            them.
    """

    name: str = attrs.field(converter=_check_name)
    title: str
    what: str = ""
    begin: tuple[re.Pattern[str], ...] = _pattern_field()
    progress: tuple[re.Pattern[str], ...] = _pattern_field()
    bars: tuple[re.Pattern[str], ...] = _pattern_field()
    side_bars: tuple[re.Pattern[str], ...] = _pattern_field()
    end: tuple[re.Pattern[str], ...] = _pattern_field()
    end_part: tuple[re.Pattern[str], ...] = _pattern_field()
    fail: tuple[re.Pattern[str], ...] = _pattern_field()
    facts: tuple[re.Pattern[str], ...] = _pattern_field()
    until: tuple[str, ...] = attrs.field(converter=tuple, default=())
    typical_s: float = 60.0
    alarming_s: float = 1800.0
    silent_s: float = 600.0
    then: str = ""
    then_silent_s: float = 600.0
    reason: str = ""
    remedy: str = ""
    then_reason: str = ""
    then_remedy: str = ""
    trains: bool = False
    serves: bool = False
    part_of: str = ""
    weight: float = 1.0

    def __attrs_post_init__(self) -> None:
        if not (self.begin or self.progress or self.bars):
            msg = "neither begin, progress, nor bars are given"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Failure:
    """
    A failure in any phase, or harmless lines that look like one.

    Attributes:
        name: The name in results.

        rules: Names of rules of ``signatures.toml`` that show it.

        patterns: Further patterns that show it.

        more: Patterns that add facts, searched for in that line and, unless it
            has facts itself, in the 20 after it by the same process.  Then
            each is about one actor, and what comes after that about another,
            but for patterns with a group *again*.

        cause: The cause of the finding; by default that of the first rule.

        summary: One sentence; ``{pid}`` stands for the group of that name, and
            what is in square brackets is left out if a group is missing.

        reason: Why it usually happens.

        remedy: What to do about it.

        confidence: How sure the finding is.

        harmless: Whether it means nothing.

        fatal: Whether the job ends by it, unless it goes on to train.
    """

    name: str = attrs.field(converter=_check_name)
    rules: tuple[LogRule, ...] = attrs.field(converter=_find_rules, default=())
    patterns: tuple[re.Pattern[str], ...] = _pattern_field()
    more: tuple[re.Pattern[str], ...] = _pattern_field()
    cause: Cause = attrs.field(converter=Cause)
    summary: str
    reason: str = ""
    remedy: str = ""
    confidence: Confidence = attrs.field(
        default="likely", validator=one_of(Confidence)
    )
    harmless: bool = False
    fatal: bool = False

    @cause.default
    def _cause_of_rules(self) -> Cause:
        return self.rules[0].cause if self.rules else Cause.UNKNOWN

    def __attrs_post_init__(self) -> None:
        if not (self.rules or self.patterns):
            msg = "neither rules nor patterns are given"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Ending:
    """
    How a job ended, and the patterns that show it.

    Attributes:
        how: ``"completed"``, ``"failed"``, or ``"killed"``.

        patterns: Patterns that show it.

        is_sure: Whether only a job that did all of its work prints it.
    """

    how: Outcome = attrs.field(validator=one_of(Outcome))
    patterns: tuple[re.Pattern[str], ...] = attrs.field(converter=_compile_all)
    is_sure: bool = False


@attrs.frozen(kw_only=True)
class FrameworkRules:
    """
    The rules of one framework.

    Attributes:
        name: The name in results and for the argument *framework*.

        title: The framework's own name.

        kind: ``"orchestrator"``, which may run trainers and engines;
            ``"trainer"``; ``"engine"``; or ``"common"``, which fits any job.
            A log belongs to the outermost framework in it.

        start: Patterns of the first lines of a job.  If one of them comes
            again, the job was started again.

        decisive: Patterns that only this framework prints.

        actors: Names of Ray actors and tasks that only this framework has, as
            Ray writes them before what they print.

        shared_actors: Names of actors that other frameworks may have, too:
            they show the framework only together with something else.

        covers: Which phases of the common rules this framework describes
            better.

        table: The pattern after which a table of seconds follows.

        phases: The phases, in their order.

        failures: The failures.

        endings: The endings.
    """

    name: str = attrs.field(converter=_check_name)
    title: str
    kind: FrameworkKind = attrs.field(
        default="orchestrator", validator=one_of(FrameworkKind)
    )
    start: tuple[re.Pattern[str], ...] = _pattern_field()
    decisive: tuple[re.Pattern[str], ...] = _pattern_field()
    actors: tuple[re.Pattern[str], ...] = _pattern_field()
    shared_actors: tuple[re.Pattern[str], ...] = _pattern_field()
    covers: tuple[str, ...] = attrs.field(converter=tuple, default=())
    table: re.Pattern[str] | None = attrs.field(
        converter=attrs.converters.optional(re.compile), default=None
    )
    phases: tuple[Phase, ...] = ()
    failures: tuple[Failure, ...] = ()
    endings: tuple[Ending, ...] = ()

    def __attrs_post_init__(self) -> None:
        names = [phase.name for phase in self.phases]
        if len(names) != len(set(names)):
            msg = "two phases have one name"
            raise ValueError(msg)
        wholes = {phase.name for phase in self.phases if not phase.part_of}
        for phase in self.phases:
            if phase.part_of and phase.part_of not in wholes:
                msg = f"{phase.name} is part of no phase of this book"
                raise ValueError(msg)


# The arrays of tables in a file, and what each of their tables becomes.
_TABLES = {"phase": Phase, "failure": Failure, "ending": Ending}
_FRAMEWORKS_FOLDER = Path(__file__).with_name("frameworks")


def load_framework_rules(path: str | os.PathLike[str]) -> FrameworkRules:
    """
    Load the rules of one framework.

    Args:
        path: A file in TOML, with a table ``[framework]`` and tables
            ``[[phase]]``, ``[[failure]]``, and ``[[ending]]``, whose keys are
            the attributes of :class:`FrameworkRules`, :class:`Phase`,
            :class:`Failure`, and :class:`Ending`.

    Raises:
        RulesError: It cannot be read, or is not made of such rules.
    """
    return _load(path, is_built_in=False)


def _load(
    path: str | os.PathLike[str], *, is_built_in: bool
) -> FrameworkRules:
    table, name = read_rules_file(path), os.fspath(path)
    refuse_unknown_tables(table, {"framework", *_TABLES}, name)

    def make(kind: Any, row: Any) -> Any:
        return kind(**check_table(kind, row, is_built_in=is_built_in))

    made: dict[str, Any] = {
        f"{key}s": (
            *parse_tables(table.get(key, []), key, name, partial(make, kind)),
        )
        for key, kind in _TABLES.items()
    }
    framework = table.get("framework", {})
    try:
        checked = check_table(
            FrameworkRules, framework, is_built_in=is_built_in, without=made
        )
        return FrameworkRules(**checked, **made)
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"[framework]: {exc}"
        raise RulesError(msg, name) from None


def read_framework_rules(
    paths: Iterable[str | os.PathLike[str]] = (),
) -> tuple[FrameworkRules, ...]:
    """
    Load the framework rules of users and the built-in ones.

    Args:
        paths: Files of the user.  One whose framework has the name of a
            built-in one takes its place.

    Returns:
        All framework rules, those of the user first.

    Raises:
        RulesError: One of the files cannot be used.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    own = {x.name: x for x in map(load_framework_rules, paths)}
    built_in = [x for x in _built_in_frameworks() if x.name not in own]
    return (*own.values(), *built_in)


@cache
def _built_in_frameworks() -> tuple[FrameworkRules, ...]:
    endings = tuple(Ending(**row) for row in read_signatures()["ending"])
    loaded = (
        _load(path, is_built_in=True)
        for path in sorted(_FRAMEWORKS_FOLDER.glob("*.toml"))
    )
    return tuple(
        attrs.evolve(x, endings=endings) if x.name == "common" else x
        for x in loaded
    )


# Bytes of a block from which on an index is faster.
_LARGE_BLOCK = 1 << 15

# The kinds of patterns, by the attributes that hold them.
_KINDS: Mapping[type, Mapping[str, str]] = {
    FrameworkRules: {
        "start": "start",
        "decisive": "decisive",
        "actors": "actor",
        "shared_actors": "shared_actor",
        "table": "table",
    },
    Phase: {
        x: x for x in ("end", "end_part", "begin", "progress", "fail", "facts")
    },
    Failure: {"patterns": "failure", "more": "more"},
    Ending: {"patterns": "ending"},
}
_WEIGHTS: dict[str, float] = {
    "decisive": 3.0,
    "actor": 2.0,
    "shared_actor": 1.5,
    "facts": 0.0,
    "start": 0.0,
}


@attrs.frozen(kw_only=True, eq=False)
class Rule:
    """
    One pattern and its meaning.

    Attributes:
        framework: The rules that it belongs to.

        owner: What it shows: a phase, a failure, an ending, or the framework.

        kind: How it shows that; the name of the attribute, without plural.

        words: One of them occurs where it matches, in any case; ``()`` if the
            pattern itself shows what does.

        unless: Searched for in the same text; there is no match if found.
    """

    framework: FrameworkRules
    owner: FrameworkRules | Phase | Failure | Ending
    kind: str
    pattern: re.Pattern[str]
    words: tuple[str, ...] = ()
    unless: Pattern[str] | None = None

    def find(self, text: str) -> re.Match[str] | None:
        """
        Match a text; a bounded prefix only at the beginning.
        """
        if self.unless and self.unless.search(text):
            return None
        is_at_start = self.pattern.pattern.startswith(".{0,")
        match = self.pattern.match if is_at_start else self.pattern.search
        return match(text)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """
        Return texts of which one stands where it matches: its words in small
        letters, which stand in any case, or as they are.
        """
        return self.words or tuple(required_literals(self.pattern))

    @cached_property
    def hit_key(self) -> str:
        """
        Return the key of the rule in the hits of its framework.
        """
        return f"{self.kind} {self.pattern.pattern}"

    @cached_property
    def weight(self) -> float:
        """
        Return how much a match shows the framework.
        """
        if isinstance(self.owner, Phase) and self.kind != "facts":
            return self.owner.weight
        return _WEIGHTS.get(self.kind, 1.0)


@attrs.frozen(kw_only=True, eq=False)
class RuleIndex:
    """
    The rules of all frameworks, by literal texts that a line must contain.

    Attributes:
        frameworks: The frameworks that they come from.

        by_text: The rules that may match where that text stands.

        any_case: Those of the texts that stand in any case.

        always: The rules without a literal text, tried on every line.
    """

    frameworks: tuple[FrameworkRules, ...]
    by_text: dict[str, list[Rule]]
    any_case: frozenset[str]
    always: tuple[Rule, ...]

    @cached_property
    def text_index(self) -> TextIndex:
        """
        Return the index of the literal texts, for large blocks.
        """
        return make_text_index(
            (text.encode() for text in self.by_text),
            any_case={text.encode() for text in self.any_case},
        )

    def find_texts(self, block: bytes) -> list[tuple[int, str]]:
        """
        Find the literal texts in a block: the offset of each, and the text.

        They are in the order of the rules.
        """
        places: dict[str, list[int]] = {text: [] for text in self.by_text}
        if len(block) < _LARGE_BLOCK:
            lowered = block.lower()
            for text, offsets in places.items():
                data = lowered if text in self.any_case else block
                offsets.extend(find_each(data, text.encode()))
        else:
            for offset, found in self.text_index.find(block):
                places[found.decode()].append(offset)
        return [
            (at, text) for text, offsets in places.items() for at in offsets
        ]


def make_rule_index(frameworks: tuple[FrameworkRules, ...]) -> RuleIndex:
    """
    Index the rules of frameworks by literal texts.
    """
    by_text: dict[str, list[Rule]] = {
        text: [] for text in (*BAR_LITERALS, TRACEBACK_HEADER)
    }
    always: list[Rule] = []
    any_case: set[str] = set()
    for rule in _iterate_rules(frameworks):
        for text in rule.texts:
            by_text.setdefault(text, []).append(rule)
        any_case.update(rule.texts if rule.words else ())
        if not rule.texts:
            always.append(rule)
    return RuleIndex(
        frameworks=frameworks,
        by_text=by_text,
        any_case=frozenset(any_case),
        always=tuple(always),
    )


def _iterate_rules(frameworks: Iterable[FrameworkRules]) -> Iterator[Rule]:
    for framework in frameworks:
        owners: list[Any] = [
            framework,
            *framework.phases,
            *framework.failures,
            *framework.endings,
        ]
        for owner in owners:
            for name, kind in _KINDS[type(owner)].items():
                value = getattr(owner, name)
                patterns = value if isinstance(value, tuple) else (value,)
                for pattern in filter(None, patterns):
                    yield Rule(
                        framework=framework,
                        owner=owner,
                        kind=kind,
                        pattern=pattern,
                    )
        for failure in framework.failures:
            for rule in failure.rules:
                yield Rule(
                    framework=framework,
                    owner=failure,
                    kind="failure",
                    pattern=_within_line(rule),
                    words=rule.words,
                    unless=rule.unless,
                )
