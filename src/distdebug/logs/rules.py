"""
Which lines of a log tell that something went wrong?

The rules are data, in ``rules.toml`` beside this file; users can add files of
their own.  Of the rules that fit a line the first wins, so the particular
comes before the general; but what is harmless wins over all.
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, get_args

import attrs

from .._rules import check_pattern, read_toml
from ..errors import RulesError
from ..findings import Cause, Confidence
from .lines import SHORTEST, Index, build_index
from .tracebacks import HEADER, Trace


_BEFORE, _BEHIND = 400, 120

# Who says it: a text that a model reads or writes.
_SPEAKER = re.compile(
    r"(?:^|[\s\[\"'{<(|#*])(?:prompt|response|question|answer|completion"
    r"|generated(?:[ _]text)?|generation[ _]text|user|human|assistant|instruction|query"
    r"|(?:input|output|sample|raw|decoded)[ _]text|text|content|reference"
    r"|prediction|hypothesis|document|caption|explanation|reasoning|chosen"
    r"|rejected|trajectory|ground[ _]truth)s?(?: #?\d{1,6})?"
    r"(?:[\"'*]{0,3}\s?:|\]|\|?>)|^\s{0,8}[QA]:",
    re.IGNORECASE,
)
# Structured logs have messages under such keys, too.
_STRUCTURED = re.compile(r'"(?:level|levelname|severity|record|lvl)"\s?:')
_QUESTION = re.compile(
    r"\b(?:why|what|how|when|explain)\b(?!\()[^?]{0,300}\?", re.IGNORECASE
)
_TELLING = re.compile(
    r"\bI(?:'m|'ve| am| have)? (?:get|got|see|saw|getting|receive|hit|had|ran"
    r"|keep)\b|\b[Mm]y (?:program|code|script|model|training|job|GPU|app)\b"
    r"|\b(?:[Ee]xplain|[Tt]roubleshoot|[Hh]ow to (?:fix|solve|avoid|debug))\b"
    r"|\b(?:usually|often|typically|generally) (?:means?|indicates?)\b"
    r"|\b(?:says?|said|prints?) [\"'“]$"
)
# What was, is, or shall be done about such an error.
_ABOUT = re.compile(
    r"\b(?:fix(?:e[sd]|ing)?|handl(?:es?|ed|ing)|catch(?:es|ing)?"
    r"|avoid(?:s|ing)?|prevent(?:s|ing)?|rais(?:es?|ing)|(?:retry|retries"
    r"|retrying|skip|stop|abort) on|do(?:es)? not (?:die|crash|fail)"
    r"|don't (?:die|crash|fail)|what to do|simulat\w{1,5}|inject\w{0,5}"
    r"|tolerat\w{1,5}|recover(?:s|ed|ing)? from|test(?:s|ing)? (?:for|of))\b"
    r"[^.:;()\[\]]{0,40}$",
    re.IGNORECASE,
)
_TYPES = re.compile(r"(?:\b[A-Za-z_][\w.]{0,100}(?:Error|Exception):? ?)$")
_EXPLAINED = re.compile(
    r"(?:[^\s.:]{0,12}|\([^)\n]{0,30}\))[\"'`”]{0,2} (?:errors? )?(?:(?:can|could|may|might"
    r"|should) (?:also |often |usually |sometimes )?(?:be|happen|occur|mean"
    r"|appear|come)\b|(?:usually |often |typically |also )?means? |indicates? |(?:occurs|happens) (?:when|if|be)"
    r"|is (?:usually|often|typically|caused by|raised (?:when|if)|an? ))",
    re.IGNORECASE,
)
# Lines of programs, as tracebacks and lists of changes show them.
_CODE = re.compile(
    r"\braise [A-Za-z_][\w.]{0,80}\(|\b(?:log(?:ger|ging)?|warnings?|console)"
    r"\.\w{1,20}\([rf]?[\"']|\bprint\([rf]?[\"']"
)
# Traced by a shell; a row of a help text; a heading.
_COMMAND = re.compile(
    r"#{2,6} [A-Z]|\+{1,6} [\w./'\"\[{(:]|\s{0,20}--?[A-Za-z][\w-]{0,60}(?:[ ,=\[]|$)"
)


def is_quoted(text: str, start: int, end: int) -> bool:
    """
    Whether the words of an error are part of a text about errors.

    Args:
        text: The line, without prefixes of launchers.

        start: Where the words begin.

        end: Where they end.
    """
    lead = text[max(start - _BEFORE, 0) : start]
    rest = text[end : end + _BEHIND]
    if _COMMAND.match(text) or _EXPLAINED.match(rest):
        return True

    is_spoken = _SPEAKER.search(lead) and not _STRUCTURED.search(text)
    is_marked = lead.count("`") % 2 == 1 and "`" in rest
    is_code = is_marked or _CODE.search(lead)
    if is_spoken or is_code or _TELLING.search(lead):
        return True

    asked = _QUESTION.search(lead + text[start:end] + rest)
    is_asked = asked is not None and asked.start() < len(lead)
    return is_asked or bool(_ABOUT.search(_TYPES.sub("", lead)))


LEAST_PRIORITY = 5

_MOST_WORDS = 40
_LONGEST_WORD = 100
# How much before and behind a word is looked at by rules of the user.
_AROUND = 150
_TEXTS = ("name", "cause", "says", "remedy", "confidence")
_PATTERNS = ("pattern", "unless", "before")


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None

    try:
        return re.compile(text)
    except re.error as exc:
        msg = f"pattern {text!r:.60}: {exc}"
        raise ValueError(msg) from None


def _words(texts: Iterable[str]) -> tuple[str, ...]:
    if isinstance(texts, str):
        msg = "words is a list"
        raise TypeError(msg)

    return tuple(text.lower() for text in texts)


@attrs.frozen(kw_only=True)
class LogRule:
    """
    If a line looks like this, then that went wrong.

    Attributes:
        name: What the rule is called.

        words: One of them has to occur, in whatever case; each has 5 to 100
            characters of ASCII.  Lines without any are never looked at, which
            makes it fast.

        pattern: Is searched for in the line, without colors and prefixes of
            launchers.  Its groups may be named ``rank``, ``local_rank``, and
            ``key``, which tells apart what is to be counted apart.  ``None``
            if a word is enough.

        unless: Is searched for in the same text, and must not be there.

        before: A pattern whose group ``rank`` is searched for in the lines
            before.

        cause: What is wrong.

        says: What happened, as a sentence without its end.

        priority: From 1, what brings a job down, over 2, an error that may
            have a deeper reason, 3, a death or a delay without a reason, and
            4, what follows when another process is gone, to 5, what may mean
            nothing.

        confidence: How sure this is.

        remedy: What to do about it.

        is_harmless: Whether such lines only look bad.

        is_ours: Whether it was measured with lines of any length, and is not
            meant for text that only quotes an error.  Rules of others look
            at 300 characters around the word, so that they end in time.
    """

    name: str
    words: tuple[str, ...] = attrs.field(converter=_words)
    pattern: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    unless: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    before: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    cause: Cause = attrs.field(converter=Cause, default=Cause.UNKNOWN)
    says: str = ""
    priority: int = 2
    confidence: Confidence = "likely"
    remedy: str = ""
    is_harmless: bool = False
    is_ours: bool = False

    def __attrs_post_init__(self) -> None:
        if not 0 < len(self.words) <= _MOST_WORDS:
            msg = f"give 1 to {_MOST_WORDS} words"
            raise ValueError(msg)
        for word in self.words:
            if not (SHORTEST <= len(word) <= _LONGEST_WORD and word.isascii()):
                msg = f"not 5 to 100 characters of ASCII: {word!r:.60}"
                raise ValueError(msg)
        if not (self.is_harmless or self.says):
            msg = "neither says nor is_harmless is given"
            raise ValueError(msg)
        if self.before and "rank" not in self.before.groupindex:
            msg = "before has no group called rank"
            raise ValueError(msg)
        if not 1 <= self.priority <= LEAST_PRIORITY:
            msg = f"priority is 1 to {LEAST_PRIORITY}"
            raise ValueError(msg)

    def match(self, text: str) -> Mapping[str, str] | None:
        """
        What the groups of the pattern are in a line, if the rule fits it.

        Args:
            text: A line in which one of the words occurs.
        """
        area = (0, len(text)) if self.is_ours else self._around(text)
        if self.unless and self.unless.search(text, *area):
            return None

        found = self.pattern.search(text, *area) if self.pattern else None
        if self.pattern and found is None:
            return None

        may_quote = self.is_ours and not self.is_harmless
        if may_quote and is_quoted(text, *self._word(text)):
            return None

        groups = found.groupdict() if found else {}
        return {name: value for name, value in groups.items() if value}

    def _around(self, text: str) -> tuple[int, int]:
        """
        Where a pattern may look that was not measured.
        """
        start, _ = self._word(text)
        return max(start - _AROUND, 0), min(start + _AROUND, len(text))

    def _word(self, text: str) -> tuple[int, int]:
        """
        Where the first of the words stands.
        """
        small = text.lower()
        places = ((small.find(word), len(word)) for word in self.words)
        start, size = min(
            ((at, size) for at, size in places if at >= 0), default=(0, 0)
        )
        return start, start + size


def load_rules(path: str | os.PathLike[str]) -> tuple[LogRule, ...]:
    """
    Read a file of rules.

    Args:
        path: A file in TOML, with tables ``[[rule]]`` whose keys are the
            attributes of :class:`LogRule`.

    Returns:
        Its rules.

    Raises:
        RulesError: It cannot be read, or is not made of rules.
    """
    return _load(path, is_ours=False)


def read_rules(
    paths: Iterable[str | os.PathLike[str]] = (),
) -> tuple[LogRule, ...]:
    """
    Gather the rules of these files and our own.

    Args:
        paths: Files of the user, whose rules are tried first.

    Returns:
        All rules, in the order in which they are tried.

    Raises:
        RulesError: One of the files cannot be used.
    """
    books = [*map(load_rules, paths), _own_rules()]
    rules = [rule for book in books for rule in book]
    return tuple(sorted(rules, key=lambda rule: not rule.is_harmless))


@cache
def _own_rules() -> tuple[LogRule, ...]:
    return _load(Path(__file__).with_name("rules.toml"), is_ours=True)


def _load(
    path: str | os.PathLike[str], *, is_ours: bool
) -> tuple[LogRule, ...]:
    name = os.fspath(path)
    try:
        table = read_toml(path)
    except (OSError, ValueError) as exc:
        raise RulesError(str(exc), name) from None

    if unknown := set(table) - {"rule"}:
        msg = f"no such table: {min(unknown)!r:.60}"
        raise RulesError(msg, name)
    return tuple(_items(table.get("rule", []), name, is_ours=is_ours))


def _items(tables: Any, name: str, *, is_ours: bool) -> Iterator[LogRule]:
    if not isinstance(tables, list):
        msg = "write [[rule]], not [rule]"
        raise RulesError(msg, name)

    for number, table in enumerate(tables, start=1):
        try:
            rule = _checked(table, is_ours=is_ours)
            yield LogRule(**rule, is_ours=is_ours)
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"rule {number}: {exc}"
            raise RulesError(msg, name) from None


def _checked(table: Any, *, is_ours: bool) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        msg = f"not a table: {table!r:.60}"
        raise TypeError(msg)

    known = {field.name for field in attrs.fields(LogRule)} - {"is_ours"}
    for key, value in table.items():
        if key not in known:
            msg = f"no such key: {key!r:.60}"
            raise ValueError(msg)
        if not _fits(key, value):
            msg = f"{key} has the wrong type: {value!r:.60}"
            raise TypeError(msg)
        # Ours were measured, and have more choices than we can count.
        if key in _PATTERNS and not is_ours:
            check_pattern(value)
    if table.get("confidence", "likely") not in get_args(Confidence):
        msg = f"confidence is {' or '.join(get_args(Confidence))}"
        raise ValueError(msg)

    return table


def _fits(key: str, value: Any) -> bool:
    if key == "words":
        return isinstance(value, list) and all(
            isinstance(word, str) for word in value
        )
    if key in {*_TEXTS, *_PATTERNS}:
        return isinstance(value, str)
    return type(value) is (bool if key == "is_harmless" else int)


# So many lines that a rule fits are looked at in each part of a file.
MOST_ALIKE = 2_000
HEADER_WORD = HEADER.lower().encode()

EXCEPTION = LogRule(
    name="Python exception",
    words=(HEADER,),
    cause=Cause.RANK_CRASHED,
    says="an exception was raised",
    remedy="look at the traceback",
)
_IGNORED = LogRule(
    name="exception that Python ignored", words=(HEADER,), is_harmless=True
)
_SOFT = attrs.evolve(EXCEPTION, priority=LEAST_PRIORITY, confidence="possible")


@attrs.frozen(kw_only=True, eq=False)
class Plan:
    """
    What is looked for.

    Attributes:
        rules: In the order in which they are tried.

        by_word: The numbers of rules, by word.

        index: The words.
    """

    rules: tuple[LogRule, ...]
    by_word: Mapping[bytes, tuple[int, ...]]
    index: Index


@lru_cache(maxsize=4)
def make_plan(rules: tuple[LogRule, ...]) -> Plan:
    """
    Prepare to look for what rules ask for.

    Args:
        rules: In the order in which they are tried.
    """
    by_word: dict[bytes, list[int]] = {}
    for number, rule in enumerate(rules):
        for word in rule.words:
            by_word.setdefault(word.encode(), []).append(number)
    return Plan(
        rules=rules,
        by_word={word: tuple(numbers) for word, numbers in by_word.items()},
        index=build_index({*by_word, HEADER_WORD}),
    )


def words_of(plan: Plan, seen: Mapping[str, int]) -> frozenset[bytes]:
    """
    Which words lead to nothing but rules that fitted often enough?

    Args:
        plan: The rules.

        seen: How often each fitted, by name; tracebacks by their header.

    Returns:
        The words.
    """
    full = {name for name, count in seen.items() if count >= MOST_ALIKE}
    words = {
        word
        for word, numbers in plan.by_word.items()
        if all(plan.rules[number].name in full for number in numbers)
    }
    return frozenset(words | {HEADER_WORD} if HEADER in full else words)


@lru_cache(maxsize=32)
def without(plan: Plan, dropped: frozenset[bytes]) -> Index:
    """
    What finds all words of a plan but some?

    Args:
        plan: The rules.

        dropped: The words that are not looked for.
    """
    return build_index(plan.index.words - dropped)


def classify(trace: Trace, plan: Plan) -> LogRule:
    """
    Which rule fits what a traceback tells of?

    Args:
        trace: The traceback.

        plan: The rules.

    Returns:
        Of those that fit one of its exceptions the one that matters most;
        :data:`EXCEPTION` if none does.
    """
    if trace.is_ignored:
        return _IGNORED
    if trace.is_soft:
        return _SOFT

    own = [e for e in trace.errors if not e.is_wrapper] or trace.errors
    rules = [_fitting(str(error), plan) for error in own]
    known = [rule for rule in rules if rule is not None]
    return min(known, key=lambda rule: rule.priority, default=EXCEPTION)


def _fitting(text: str, plan: Plan) -> LogRule | None:
    small = text.lower()
    fitting = (
        rule
        for rule in plan.rules
        if any(word in small for word in rule.words)
        and rule.match(text) is not None
    )
    return next(fitting, None)
