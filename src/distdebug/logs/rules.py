"""
Load the rules for log lines and match them, except where text quotes errors.

The rules are data, in ``signatures.toml`` beside this file; users can add files
of their own.  The first rule that matches a line wins, so specific rules come
before general ones; rules of harmless lines win over all.
"""

from __future__ import annotations

import math
import os
import re

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from re import Pattern
from typing import Any

import attrs

from .._rules import (
    check_table,
    convert_patterns,
    one_of,
    parse_tables,
    read_rules_file,
    refuse_unknown_tables,
)
from .._search import SHORTEST_WORD
from ..causes import Cause
from ..findings import Confidence
from .signatures import SIGNATURES_FILE, read_signatures
from .tracebacks import TRACEBACK_HEADER, Trace


_CHARS_BEFORE, _CHARS_AFTER = 400, 120

# Labels of text that a model reads or writes.
_ROLE_LABEL = re.compile(
    r"(?:^|[\s\[\"'{<(|#*])(?:prompt|response|question|answer|completion"
    r"|generated(?:[ _]text)?|generation[ _]text|user|human|assistant|instruction|query"
    r"|(?:input|output|sample|raw|decoded)[ _]text|text|content|reference"
    r"|prediction|predicted|hypothesis|document|caption|explanation|reasoning|chosen"
    r"|rejected|trajectory|ground[ _]truth)s?(?: #?\d{1,6})?"
    r"(?:[\"'*]{0,3}\s?:|\]|\|?>)|^\s{0,8}[QA]:",
    re.IGNORECASE,
)
# Structured logs use some of these labels as keys.
_STRUCTURED = re.compile(r'"(?:level|levelname|severity|record|lvl)"\s?:')
_QUESTION = re.compile(
    r"\b(?:why|what|how|when|explain)\b(?!\()[^?]{0,300}\?", re.IGNORECASE
)
_CONVERSATION = re.compile(
    r"\bI(?:'m|'ve| am| have)? (?:get|got|see|saw|getting|receive|hit|had|ran"
    r"|keep)\b|\b[Mm]y (?:program|code|script|model|training|job|GPU|app)\b"
    r"|\b(?:[Ee]xplain|[Tt]roubleshoot|[Hh]ow to (?:fix|solve|avoid|debug))\b"
    r"|\b(?:usually|often|typically|generally) (?:means?|indicates?)\b"
    r"|\b(?:says?|said|prints?) [\"'“]$"
)
# Text about handling such an error.
_ERROR_HANDLING = re.compile(
    r"\b(?:fix(?:e[sd]|ing)?|handl(?:es?|ed|ing)|catch(?:es|ing)?"
    r"|avoid(?:s|ing)?|prevent(?:s|ing)?|rais(?:es?|ing)|(?:retry|retries"
    r"|retrying|skip|stop|abort) on|do(?:es)? not (?:die|crash|fail)"
    r"|don't (?:die|crash|fail)|what to do|simulat\w{1,5}|inject\w{0,5}"
    r"|tolerat\w{1,5}|recover(?:s|ed|ing)? from|test(?:s|ing)? (?:for|of))\b"
    r"[^.:;()\[\]]{0,40}$",
    re.IGNORECASE,
)
_EXCEPTION_TYPE = re.compile(
    r"(?:\b[A-Za-z_][\w.]{0,100}(?:Error|Exception):? ?)$"
)
_EXPLANATION = re.compile(
    r"(?:[^\s.:]{0,12}|\([^)\n]{0,30}\))[\"'`”]{0,2} (?:errors? )?(?:(?:can|could|may|might"
    r"|should) (?:also |often |usually |sometimes )?(?:be|happen|occur|mean"
    r"|appear|come)\b|(?:usually |often |typically |also )?means? |indicates? |(?:occurs|happens) (?:when|if|be)"
    r"|is (?:usually|often|typically|caused by|raised (?:when|if)|an? ))",
    re.IGNORECASE,
)
# Source code, as in tracebacks and diffs.
_SOURCE_CODE = re.compile(
    r"\braise [A-Za-z_][\w.]{0,80}\(|\b(?:log(?:ger|ging)?|warnings?|console)"
    r"\.\w{1,20}\([rf]?[\"']|\bprint\([rf]?[\"']"
)
# A shell trace, a row of a help text, or a heading.
_COMMAND_LINE = re.compile(
    r"#{2,6} [A-Z]|\+{1,6} [\w./'\"\[{(:]|\s{0,20}--?[A-Za-z][\w-]{0,60}(?:[ ,=\[]|$)"
)


def is_quoted(text: str, start: int, end: int) -> bool:
    """
    Return whether an error message is only quoted, as in a prompt.

    Args:
        text: The line, without prefixes of launchers.

        start: Where the message begins.

        end: Where it ends.
    """
    lead = text[max(start - _CHARS_BEFORE, 0) : start]
    rest = text[end : end + _CHARS_AFTER]
    if _COMMAND_LINE.match(text) or _EXPLANATION.match(rest):
        return True

    has_role_label = _ROLE_LABEL.search(lead) and not _STRUCTURED.search(text)
    is_in_backticks = lead.count("`") % 2 == 1 and "`" in rest
    is_code = is_in_backticks or _SOURCE_CODE.search(lead)
    if has_role_label or is_code or _CONVERSATION.search(lead):
        return True

    question = _QUESTION.search(lead + text[start:end] + rest)
    is_question = question is not None and question.start() < len(lead)
    return is_question or bool(
        _ERROR_HANDLING.search(_EXCEPTION_TYPE.sub("", lead))
    )


#: From this priority on, lines follow when another process is gone, or mean
#: nothing.
FOLLOWS_PRIORITY = 4
LEAST_PRIORITY = 5
#: Groups of patterns that name the process, node, or GPU at fault.
NAMING_GROUPS = frozenset({"pid", "host", "pci"})
_BEFORE_GROUPS = NAMING_GROUPS | {"rank"}
# What the message of an exception may show, besides the exception.
_TRACE_GROUPS = NAMING_GROUPS | {"ranks"}

_MOST_WORDS = 40
_LONGEST_WORD = 100
# Rules of users search this many characters around a word.
_USER_RULE_REACH = 150


def _lower_words(texts: Iterable[str]) -> tuple[str, ...]:
    if isinstance(texts, str):
        msg = "words is a list"
        raise TypeError(msg)

    return tuple(text.lower() for text in texts)


@attrs.frozen(kw_only=True, field_transformer=convert_patterns)
class LogRule:
    """
    A rule that assigns a cause to log lines.

    Attributes:
        name: The name of the rule.

        words: At least one of them must occur, in any case; each has 5 to 100
            characters of ASCII.  Lines without any are skipped, which makes
            the scan fast.

        pattern: Searched for in the line, without colors and prefixes of
            launchers.  Groups may be named ``rank``, ``local_rank``, and
            ``key``; lines with different keys are counted apart.  ``ranks``
            is a list of all ranks at fault; ``pid``, ``host``, and ``pci``
            name the process, node, or GPU at fault, whose rank other lines
            may show.  ``None`` if a word is enough.

        unless: Searched for in the same text; the rule does not match if
            found.

        before: A pattern that is searched for in the lines before; its groups
            ``rank``, ``pid``, ``host``, and ``pci`` count like those of
            *pattern*.

        after: A pattern whose group ``rank`` is the rank at fault, in each of
            the lines behind that it matches.

        cause: The cause of the finding.

        says: What happened, as a sentence without its end.

        priority: Severity: 1 = ends a job, 2 = error that may have a deeper
            reason, 3 = death or delay without a reason, 4 = consequence of
            another process being gone, 5 = may mean nothing.

        confidence: How sure the finding is.

        remedy: What to do about it.

        ratio: The rule matches only if the number in the group ``high`` of the
            pattern is at least so many times that in ``low``; 0 for no such
            groups.

        is_harmless: Whether such lines only look bad.

        is_of_node: Whether it is about the whole node that prints it.

        example: A line that the rule matches.

        counterexample: A line that it does not match.

        is_built_in: Whether the rule is shipped: its patterns were measured on
            lines of any length, and it skips text that only quotes an error.
            Rules of users search 300 characters around the word, so that they
            end in time.
    """

    name: str
    words: tuple[str, ...] = attrs.field(converter=_lower_words)
    pattern: Pattern[str] | None = None
    unless: Pattern[str] | None = None
    before: Pattern[str] | None = None
    after: Pattern[str] | None = None
    cause: Cause = attrs.field(converter=Cause, default=Cause.UNKNOWN)
    says: str = ""
    priority: int = 2
    confidence: Confidence = attrs.field(
        default="likely", validator=one_of(Confidence)
    )
    remedy: str = ""
    ratio: float = 0.0
    is_harmless: bool = False
    is_of_node: bool = False
    example: str = ""
    counterexample: str = ""
    is_built_in: bool = False

    def __attrs_post_init__(self) -> None:
        if not 0 < len(self.words) <= _MOST_WORDS:
            msg = f"give 1 to {_MOST_WORDS} words"
            raise ValueError(msg)
        for word in self.words:
            if not (
                SHORTEST_WORD <= len(word) <= _LONGEST_WORD and word.isascii()
            ):
                msg = f"not 5 to 100 characters of ASCII: {word!r:.60}"
                raise ValueError(msg)
        if not (self.is_harmless or self.says):
            msg = "neither says nor is_harmless is given"
            raise ValueError(msg)
        if self.after and "rank" not in self.after.groupindex:
            msg = "after has no group called rank"
            raise ValueError(msg)
        if self.before and not self.before.groupindex.keys() & _BEFORE_GROUPS:
            msg = "before has no group called rank, pid, host, or pci"
            raise ValueError(msg)
        groups = self.pattern.groupindex if self.pattern else {}
        if self.ratio and not {"low", "high"} <= groups.keys():
            msg = "ratio is given, but the pattern has no groups low and high"
            raise ValueError(msg)
        if not 1 <= self.priority <= LEAST_PRIORITY:
            msg = f"priority is 1 to {LEAST_PRIORITY}"
            raise ValueError(msg)

    def check_examples(self) -> None:
        """
        Check that the rule matches its example, and not its counterexample.

        Raises:
            ValueError: It does not.
        """
        for text, is_match in (
            (self.example, True),
            (self.counterexample, False),
        ):
            fits = self.has_word(text.lower()) and self.match(text) is not None
            if text and fits is not is_match:
                does = "does not match" if is_match else "matches"
                msg = f"it {does} {text!r:.100}"
                raise ValueError(msg)

    def has_word(self, lowered: str) -> bool:
        """
        Return whether one of the words occurs in a text in small letters.
        """
        return any(word in lowered for word in self.words)

    def match(self, text: str) -> Mapping[str, str] | None:
        """
        Match the rule against a line in which one of its words occurs.

        Returns:
            The named groups of the pattern that matched, or ``None``.
        """
        start, end = self._word_span(text)
        area = (0, len(text))
        if not self.is_built_in:
            area = (max(start - _USER_RULE_REACH, 0), start + _USER_RULE_REACH)
        if self.unless and self.unless.search(text, *area):
            return None

        found = self.pattern.search(text, *area) if self.pattern else None
        if self.pattern and found is None:
            return None

        may_quote = self.is_built_in and not self.is_harmless
        if may_quote and is_quoted(text, start, end):
            return None

        groups = found.groupdict() if found else {}
        if self.ratio and not (
            _number(groups["high"]) >= self.ratio * _number(groups["low"]) > 0
        ):
            return None
        return {name: value for name, value in groups.items() if value}

    def _word_span(self, text: str) -> tuple[int, int]:
        """
        Return the span of the first of the words.
        """
        lowered = text.lower()
        places = ((lowered.find(word), len(word)) for word in self.words)
        start, size = min(
            ((at, size) for at, size in places if at >= 0), default=(0, 0)
        )
        return start, start + size


def load_rules(path: str | os.PathLike[str]) -> tuple[LogRule, ...]:
    """
    Load a file of rules.

    Args:
        path: A file in TOML, with tables ``[[rule]]`` whose keys are the
            attributes of :class:`LogRule`.

    Raises:
        RulesError: It cannot be read, or is not made of rules.
    """
    tables, name = read_rules_file(path), os.fspath(path)
    refuse_unknown_tables(tables, {"rule"}, name)
    return _parse(tables.get("rule", []), name, is_built_in=False)


def read_rules(
    paths: Iterable[str | os.PathLike[str]] = (),
) -> tuple[LogRule, ...]:
    """
    Load the rules of users and the built-in ones, in the order of matching.

    Args:
        paths: Files of the user, whose rules are tried first.

    Raises:
        RulesError: One of the files cannot be used.
    """
    rule_lists = [*map(load_rules, paths), built_in_rules()]
    rules = [rule for rule_list in rule_lists for rule in rule_list]
    return tuple(sorted(rules, key=lambda rule: not rule.is_harmless))


def _number(text: str | None) -> float:
    """
    Return a number; one that is none compares to nothing.
    """
    with suppress(ValueError):
        return float(text or "nan")
    return math.nan


@cache
def built_in_rules() -> tuple[LogRule, ...]:
    """
    Return the rules that are shipped, in the order of their file.
    """
    name = os.fspath(SIGNATURES_FILE)
    return _parse(read_signatures()["rule"], name, is_built_in=True)


def _parse(
    tables: object, name: str, *, is_built_in: bool
) -> tuple[LogRule, ...]:
    def parse(row: Any) -> LogRule:
        table = check_table(
            LogRule, row, is_built_in=is_built_in, without={"is_built_in"}
        )
        rule = LogRule(**table, is_built_in=is_built_in)
        if not is_built_in:  # a test tries those that are shipped
            rule.check_examples()
        return rule

    return tuple(parse_tables(tables, "rule", name, parse))


TRACEBACK_WORD = TRACEBACK_HEADER.lower().encode()

EXCEPTION = LogRule(
    name="Python exception",
    words=(TRACEBACK_HEADER,),
    cause=Cause.RANK_CRASHED,
    says="an exception was raised",
    remedy="look at the traceback",
)
_IGNORED_EXCEPTION = LogRule(
    name="exception that Python ignored",
    words=(TRACEBACK_HEADER,),
    is_harmless=True,
)
_LOGGED_WARNING = attrs.evolve(
    EXCEPTION, priority=LEAST_PRIORITY, confidence="possible"
)


@attrs.frozen(kw_only=True, eq=False)
class RuleSet:
    """
    Rules, prepared for searching.

    Attributes:
        rules: The rules, in the order in which they are tried.

        by_word: The indices of the rules, by word.

        words: All words, and that of tracebacks.
    """

    rules: tuple[LogRule, ...]
    by_word: Mapping[bytes, tuple[int, ...]]
    words: frozenset[bytes]

    def having(self, words: Iterable[bytes]) -> Iterator[LogRule]:
        """
        Yield the rules with one of some words, in their order.
        """
        numbers = {n for word in words for n in self.by_word.get(word, ())}
        return map(self.rules.__getitem__, sorted(numbers))


@lru_cache(maxsize=4)
def make_rule_set(rules: tuple[LogRule, ...]) -> RuleSet:
    """
    Prepare rules for searching.

    Args:
        rules: The rules, in the order in which they are tried.
    """
    by_word: dict[bytes, list[int]] = {}
    for number, rule in enumerate(rules):
        for word in rule.words:
            by_word.setdefault(word.encode(), []).append(number)
    return RuleSet(
        rules=rules,
        by_word={word: tuple(numbers) for word, numbers in by_word.items()},
        words=frozenset({*by_word, TRACEBACK_WORD}),
    )


def match_traceback(
    trace: Trace, rule_set: RuleSet
) -> tuple[LogRule, Mapping[str, str]]:
    """
    Match the exceptions of a traceback.

    Returns:
        The most severe rule that matches one; :data:`EXCEPTION` if none does.
        And the groups that name who is at fault.
    """
    if trace.is_ignored:
        return _IGNORED_EXCEPTION, {}
    if trace.is_warning:
        return _LOGGED_WARNING, {}

    root_errors = [e for e in trace.errors if not e.is_wrapper] or trace.errors
    rules = [match_text(str(error), rule_set) for error in root_errors]
    known = [rule for rule in rules if rule is not None]
    rule = min(known, key=lambda rule: rule.priority, default=EXCEPTION)
    groups = next(filter(None, map(rule.match, map(str, trace.errors))), {})
    return rule, {k: v for k, v in groups.items() if k in _TRACE_GROUPS}


def explain_error(text: str) -> LogRule | None:
    """
    Return the built-in rule for the message of one error; loads all of them.
    """
    return match_text(text, _built_in_rule_set())


@cache
def _built_in_rule_set() -> RuleSet:
    return make_rule_set(read_rules())


def match_text(text: str, rule_set: RuleSet) -> LogRule | None:
    """
    Return the rule that matches a line, or the message of an exception.
    """
    lowered = text.lower()
    rules = (rule for rule in rule_set.rules if rule.has_word(lowered))
    found = first_match(rules, text)
    return found[0] if found else None


def first_match(
    rules: Iterable[LogRule], text: str
) -> tuple[LogRule, Mapping[str, str]] | None:
    """
    Return the first of some rules that matches a text, and its groups.
    """
    matches = ((rule, rule.match(text)) for rule in rules)
    return next(
        ((x, found) for x, found in matches if found is not None), None
    )
