"""
How does a stack show what a thread waits for?

The rules are data, in ``rules.toml`` beside this file; users can add files of
their own.  The first rule that fits wins, so the particular comes before the
general: a queue inside a data loader is a data loader.
"""

from __future__ import annotations

import os
import re
import tomllib

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import attrs

from ..errors import RulesError
from ..findings import Cause, Confidence


__all__ = [
    "DOING",
    "Helper",
    "Rule",
    "RuleBook",
    "load_rules",
    "read_rules",
]

_MOST_PATTERN = 2000
_MOST_BYTES = 1 << 20
_EVERYWHERE = 1_000_000

# All others are texts.
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "waits": bool,
    "gpu": bool,
    "wakes": (int, float),
    "within": int,
    "native_within": int,
}

# Of a repeated group that itself repeats or branches, matching may take for
# ever; so it may with many "anything" in a row.
_REPEATED = re.compile(r"[+*?]|\{\d*,?\d*\}")
_ENDLESS = re.compile(r"[+*]|\{\d*,\}")
_MOST_ENDLESS = 4


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None

    if len(text) > _MOST_PATTERN:
        msg = f"pattern longer than {_MOST_PATTERN} characters"
        raise ValueError(msg)
    try:
        pattern = re.compile(text)
    except re.error as exc:
        msg = f"pattern {text!r:.60}: {exc}"
        raise ValueError(msg) from None
    if _may_explode(text):
        msg = f"pattern {text!r:.60}: a repeated group must be plain"
        raise ValueError(msg)

    return pattern


def _may_explode(text: str) -> bool:
    """
    Whether a group is repeated without end that holds a choice or repeats.
    """
    # What stands for one character cannot nest.
    text = re.sub(r"\\.", "x", text)
    text = re.sub(r"\[\^?\]?[^\]]*\]", "x", text)
    starts: list[int] = []
    for index, char in enumerate(text):
        if char == "(":
            starts.append(index + 1)
        elif char == ")" and starts:
            inside = text[starts.pop() : index]
            is_plain = not _REPEATED.search(inside.removeprefix("?:"))
            repeats = _ENDLESS.match(text, index + 1)
            if repeats and not (is_plain and "|" not in inside):
                return True

    # Choices are tried one after the other, and do not add up.
    return any(
        len(_ENDLESS.findall(choice)) > _MOST_ENDLESS
        for choice in text.split("|")
    )


@attrs.frozen(kw_only=True)
class Rule:
    """
    If a thread looks like this, then it does that.

    Everything that is given has to hold.  Patterns are regular expressions;
    paths are written with slashes.

    Attributes:
        cause: What the thread is doing.

        name: What the rule is called, for those who read the evidence.

        file: Is searched for in the name of a file …

        function: … and this has to match the function of the same line of the
            Python stack, without its class.

        within: How many of the innermost lines of Python to look at.

        native: Is searched for in the names of native functions that the
            innermost function of Python called.

        native_within: How many of the innermost of these to look at.

        library: Is searched for in the files of the same native functions.

        call: Has to match the name of the system call it waits in.

        target: Is searched for in what that call is about.

        code: Is searched for in the code of the innermost line.  Functions
            written in C leave no line in a Python stack; who calls them does.

        under: Is searched for in ``file:function`` of every line; one has to
            match.

        unless: The same; none may match.

        waits: Whether it only fits a thread that does not run.

        gpu: Whether it only fits a process that may use a GPU.

        wakes: How often per second a thread wakes up at most although nothing
            happens.  ``None`` if unknown.

        doing: What the rank is doing, as a predicate; by default that of
            its cause.

        remedy: What to do about it; by default that of its cause.

        confidence: How sure this is.
    """

    cause: Cause = attrs.field(converter=Cause)
    name: str = ""
    file: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    function: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    within: int = _EVERYWHERE
    native: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    native_within: int = 40
    library: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    call: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    target: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    code: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    under: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    unless: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    waits: bool = False
    gpu: bool = False
    wakes: float | None = None
    doing: str = ""
    remedy: str = ""
    confidence: Confidence = "likely"

    def __attrs_post_init__(self) -> None:
        asks = (self.file, self.function, self.native, self.call, self.code)
        if not any(asks):
            msg = "neither file, function, native, call, nor code is given"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Helper:
    """
    A thread that looks like this works for others, and tells nothing.

    Attributes:
        thread: Has to match its name.

        place: Is searched for in ``file:function`` of the lines of Python.

        within: In how many of the innermost ones.

        native: Is searched for in the names of its native functions.
    """

    thread: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    place: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    within: int = _EVERYWHERE
    native: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )


@attrs.frozen(kw_only=True)
class RuleBook:
    """
    All that is known about stacks.

    Attributes:
        rules: In the order in which they are tried.

        helpers: Threads to be left out.

        doing: What a rank is doing, by cause, as a predicate.

        remedy: What to do about it, by cause.
    """

    rules: tuple[Rule, ...] = ()
    helpers: tuple[Helper, ...] = ()
    doing: Mapping[Cause, str] = attrs.field(factory=dict)
    remedy: Mapping[Cause, str] = attrs.field(factory=dict)


def load_rules(path: str | os.PathLike[str]) -> RuleBook:
    """
    Read a file of rules.

    Args:
        path: A file in TOML, with tables ``[[rule]]`` and ``[[helper]]``
            whose keys are the attributes of :class:`Rule` and
            :class:`Helper`.

    Returns:
        Its rules.

    Raises:
        RulesError: It cannot be read, or is not made of rules.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            msg = f"larger than {_MOST_BYTES:,} bytes"
            raise RulesError(msg, name)
        table = tomllib.loads(data.decode())
    except (OSError, ValueError, RecursionError) as exc:
        if isinstance(exc, RulesError):
            raise
        raise RulesError(str(exc), name) from None

    return _book(table, name)


def read_rules(paths: Iterable[str | os.PathLike[str]] = ()) -> RuleBook:
    """
    Gather the rules of these files and our own.

    Args:
        paths: Files of the user, whose rules are tried first.

    Returns:
        All rules.

    Raises:
        RulesError: One of the files cannot be used.
    """
    books = [*map(load_rules, paths), _own_rules()]
    return RuleBook(
        rules=tuple(rule for book in books for rule in book.rules),
        helpers=tuple(helper for book in books for helper in book.helpers),
        doing={k: v for book in books[::-1] for k, v in book.doing.items()},
        remedy={k: v for book in books[::-1] for k, v in book.remedy.items()},
    )


@cache
def _own_rules() -> RuleBook:
    return load_rules(Path(__file__).with_name("rules.toml"))


class _Doing(Mapping[Cause, str]):
    """
    What a rank is doing, by cause; read when it is asked for.
    """

    def __getitem__(self, cause: Cause) -> str:
        return _own_rules().doing[cause]

    def __iter__(self) -> Iterator[Cause]:
        return iter(_own_rules().doing)

    def __len__(self) -> int:
        return len(_own_rules().doing)


DOING: Mapping[Cause, str] = _Doing()


def _book(table: Mapping[str, Any], name: str) -> RuleBook:
    if unknown := set(table) - {"rule", "helper", "cause"}:
        msg = f"no such table: {min(unknown)!r:.60}"
        raise RulesError(msg, name)

    causes = table.get("cause", {})
    try:
        texts = {Cause(key): _texts(value) for key, value in causes.items()}
    except (ValueError, TypeError, AttributeError) as exc:
        msg = f"[cause]: {exc}"
        raise RulesError(msg, name) from None

    return RuleBook(
        rules=tuple(_items(Rule, table.get("rule", []), "rule", name)),
        helpers=tuple(_items(Helper, table.get("helper", []), "helper", name)),
        doing={c: t["doing"] for c, t in texts.items() if "doing" in t},
        remedy={c: t["remedy"] for c, t in texts.items() if "remedy" in t},
    )


def _texts(value: Mapping[str, Any]) -> Mapping[str, str]:
    return {str(key): str(text) for key, text in value.items()}


def _items(kind: Any, tables: Any, what: str, name: str) -> Iterable[Any]:
    if not isinstance(tables, list):
        msg = f"write [[{what}]], not [{what}]"
        raise RulesError(msg, name)

    for number, table in enumerate(tables, start=1):
        try:
            yield kind(**_checked(kind, table))
        except (TypeError, ValueError) as exc:
            msg = f"{what} {number}: {exc}"
            raise RulesError(msg, name) from None


def _checked(kind: Any, table: Mapping[str, Any]) -> Mapping[str, Any]:
    known = {field.name for field in attrs.fields(kind)}
    for key, value in table.items():
        if key not in known:
            msg = f"no such key: {key!r:.60}"
            raise ValueError(msg)
        if not isinstance(value, _TYPES.get(key, str)):
            msg = f"{key} has the wrong type: {value!r:.60}"
            raise TypeError(msg)
    sure = table.get("confidence", "likely")
    if sure not in get_args(Confidence):
        msg = f"confidence is {' or '.join(get_args(Confidence))}"
        raise ValueError(msg)

    return table
