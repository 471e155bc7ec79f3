"""
What is looked for in logs, and which rule fits an exception?
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import attrs

from .._lines.grams import Index, build_index
from ..findings import Cause
from .reader import HEADER
from .rules import LEAST_PRIORITY, LogRule
from .trace import Trace


__all__ = [
    "EXCEPTION",
    "HEADER_WORD",
    "MOST_ALIKE",
    "Plan",
    "classify",
    "make_plan",
    "without",
    "words_of",
]

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
