"""
Load TOML, and check that regular expressions of users match in bounded time.

The matcher tries one alternative after the other.  The check counts those that
a pattern allows, and refuses too many: also some that would do no harm.
"""

from __future__ import annotations

import math
import os
import re
import reprlib

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar, get_args

from ._io import read_ordinary
from ._lazy import late_pattern
from ._text import reason_of
from .errors import RulesError


Rule = TypeVar("Rule")


_MOST_PATTERN = 2000
_MOST_DEPTH = 20
_MOST_REPEATS = 12
_MOST_TIMES = 10_000
# The texts that are searched are about as long.
_LONGEST = 300
_MOST_WAYS = (_LONGEST + 1) ** 3

# The names that re._parser gives to parts of a pattern.
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_GROUPS = frozenset({"SUBPATTERN", "ATOMIC_GROUP", "ASSERT", "ASSERT_NOT"})


def check_pattern(text: str) -> None:
    """
    Refuse a regular expression whose matching may take exponential time.

    Raises:
        ValueError: It may, or it is not a regular expression.
    """
    if len(text) > _MOST_PATTERN:
        msg = f"pattern longer than {_MOST_PATTERN} characters"
        raise ValueError(msg)
    try:
        tree = re._parser.parse(text)  # type: ignore[attr-defined]  # noqa: SLF001 nothing else tells
    except (re.error, OverflowError, RecursionError) as exc:
        msg = f"pattern {text!r:.60}: {exc}"
        raise ValueError(msg) from None

    counter = _Counter()
    ways = counter.of_sequence(tree, 0)
    if ways > _MOST_WAYS or counter.repeats > _MOST_REPEATS:
        msg = (
            f"pattern {text!r:.60}: too many ways to match; a repeated group "
            f"must be plain, and at most {_MOST_REPEATS} things repeated"
        )
        raise ValueError(msg)


class _Counter:
    """
    Count the ways in which parts of a pattern may match, and its repeats.
    """

    def __init__(self) -> None:
        self.repeats = 0
        self._times = 1

    def of_sequence(self, parts: Iterable[Any], depth: int) -> float:
        """
        Multiply the ways of all parts: each way of one goes with each of the next.
        """
        if depth > _MOST_DEPTH:
            return math.inf
        return math.prod(self._of_part(part, depth) for part in parts)

    def _of_part(self, part: tuple[Any, Any], depth: int) -> float:
        kind, body = str(part[0]), part[1]
        if kind in _REPEATS:
            return self._of_repeat(body, depth)
        if kind in _GROUPS:
            inner = body if kind == "ATOMIC_GROUP" else body[-1]
            return self.of_sequence(inner, depth + 1)
        if kind == "BRANCH":
            return sum(self.of_sequence(b, depth + 1) for b in body[1])
        if kind == "GROUPREF":
            return math.inf  # each try compares texts of any length
        if kind == "GROUPREF_EXISTS":
            choices = (b for b in body[1:] if b is not None)
            return sum(self.of_sequence(b, depth + 1) for b in choices)
        return 1

    def _of_repeat(
        self, repeat: tuple[int, int, Iterable[Any]], depth: int
    ) -> float:
        least, most, body = repeat
        # Repeating a part that matches nothing takes time, too.
        before, self._times = self._times, self._times * max(int(least), 1)
        if self._times > _MOST_TIMES:
            return math.inf
        ways = self.of_sequence(body, depth + 1)
        self._times = before
        if int(least) == int(most) and ways == 1:
            return 1

        self.repeats += 1
        if int(most) <= 1:
            return 1 + ways
        if ways > 1:
            return math.inf
        return max(min(int(most), _LONGEST) - int(least), 0) + 1


_MOST_BYTES = 1 << 20
# tomllib takes quadratic time for a dotted key, which is one line.
_MOST_LINE = 4000


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """
    Read a TOML file of at most 1 MiB and 4,000 characters per line.

    Raises:
        OSError: It cannot be read.

        ValueError: It is not a regular file, too large, or not TOML.
    """
    text = read_ordinary(path, _MOST_BYTES).decode()
    if max(map(len, text.split("\n"))) > _MOST_LINE:
        msg = f"a line is longer than {_MOST_LINE:,} characters"
        raise ValueError(msg)

    # A watch in a job checks patterns, and reads no TOML.
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        msg = "nested too deeply"
        raise ValueError(msg) from None


def compile_pattern(
    text: str | re.Pattern[str] | None,
) -> re.Pattern[str] | None:
    """
    Compile the pattern of a rule, if it has one, unless it is built-in.

    Raises:
        ValueError: It is not a regular expression.
    """
    if not isinstance(text, str):
        return text

    try:
        return re.compile(text)
    except re.error as exc:
        msg = f"pattern {text!r:.60}: {exc}"
        raise ValueError(msg) from None


def convert_patterns(_: Any, fields: list[Any]) -> list[Any]:
    """
    Transform the fields of an attrs class: compile those that are patterns.
    """
    return [
        x.evolve(converter=compile_pattern) if "Pattern" in str(x.type) else x
        for x in fields
    ]


def read_rules_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """
    Read the tables of a file of rules.

    Raises:
        RulesError: It cannot be read, or is not TOML.
    """
    try:
        return read_toml(path)
    except (OSError, ValueError) as exc:
        raise RulesError(reason_of(exc), os.fspath(path)) from None


def refuse_unknown_tables(
    tables: Iterable[str], known: Collection[str], path: str
) -> None:
    """
    Refuse a table of a file of rules that no rule could have.

    Raises:
        RulesError: One of *tables* is not *known*.
    """
    if unknown := set(tables) - set(known):
        msg = f"no such table: {min(unknown)!r:.60}"
        raise RulesError(msg, path)


def parse_tables(
    tables: object, name: str, path: str, parse: Callable[[Any], Rule]
) -> Iterator[Rule]:
    """
    Parse each table of an array of tables ``[[name]]``.

    Args:
        tables: What the file has under *name*.

        name: The name of the array.

        path: The file.

        parse: Makes a rule of a table; raises if the table is wrong.

    Raises:
        RulesError: It is not an array, or one of its tables is wrong; the
            error names its position.
    """
    if not isinstance(tables, list):
        msg = f"write [[{name}]], not [{name}]"
        raise RulesError(msg, path)

    for number, table in enumerate(tables, start=1):
        try:
            yield parse(table)
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"{name} {number}: {exc}"
            raise RulesError(msg, path) from None


_MOST_NUMBER = 1e9


def one_of(choices: Any) -> Callable[[Any, Any, Any], None]:
    """
    Return a validator of attrs that accepts the texts of a ``Literal``.
    """
    known = get_args(choices)

    def validate(_: Any, attribute: Any, value: Any) -> None:
        """
        Refuse a value that is none of them.
        """
        if value not in known:
            msg = f"{attribute.name} is {' or '.join(known)}"
            raise ValueError(msg)

    return validate


def check_table(
    kind: Any,
    table: object,
    *,
    is_built_in: bool,
    without: Collection[str] = (),
) -> Mapping[str, Any]:
    """
    Check that the keys and values of a table fit the attributes of a class.

    Args:
        kind: A class of attrs.  The annotations of its attributes are texts;
            what is neither a number, a truth value, nor a tuple is a text in
            the file.

        table: The table.

        is_built_in: Whether the file is shipped: its patterns were measured,
            and are too large for :func:`check_pattern`; single ones are
            compiled when they are first used.

        without: Attributes that no file may give.

    Raises:
        TypeError: It is not a table, or a value has the wrong type or range.

        ValueError: A key is unknown, or a pattern may take too long.
    """
    if not isinstance(table, Mapping):
        msg = f"not a table: {table!r:.60}"
        raise TypeError(msg)

    import attrs

    types = {x.name: str(x.type) for x in attrs.fields(kind)}
    checked = dict(table)
    for key, value in table.items():
        if key not in types or key in without:
            msg = f"no such key: {key!r:.60}"
            raise ValueError(msg)
        if not _fits(types[key], value):
            # Plain repr() fails for a value that is nested deeply.
            shown = reprlib.repr(value)
            msg = f"{key} has the wrong type or value: {shown:.60}"
            raise TypeError(msg)
        if is_built_in and types[key].startswith("Pattern"):
            checked[key] = late_pattern(value)
        elif not is_built_in and "Pattern" in types[key]:
            for text in [value] if isinstance(value, str) else value:
                check_pattern(text)
    return checked


def _fits(annotation: str, value: Any) -> bool:
    if annotation in {"bool", "int"}:
        return type(value).__name__ == annotation
    if annotation in {"float", "float | None"}:
        # A comparison with NaN is false, so it is refused here, too.
        return type(value) in {int, float} and 0 <= value <= _MOST_NUMBER
    if annotation.startswith("tuple["):
        return isinstance(value, list) and all(
            isinstance(item, str) for item in value
        )
    return isinstance(value, str)
