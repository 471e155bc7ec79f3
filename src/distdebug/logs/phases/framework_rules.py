"""
What is known about a framework: its phases, failures, and ends?
"""

from __future__ import annotations

import os
import re

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

import attrs
import numpy as np

from ..._rules import check_pattern, read_toml
from ...errors import RulesError
from ...findings import Cause, Confidence
from ..lines import PADDING, SHORTEST, Index, build_index, find_words
from .progress_bars import BAR_LITERALS


Kind = Literal["orchestrator", "trainer", "engine", "common"]
How = Literal["completed", "failed", "killed"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def _patterns(texts: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text) for text in texts)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else _patterns([text])[0]


def _name(text: object) -> str:
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        msg = f"a name is small letters, digits, and _: {text!r:.60}"
        raise ValueError(msg)

    return text


def _patterns_field() -> Any:
    return attrs.field(converter=_patterns, default=())


@attrs.frozen(kw_only=True)
class Phase:
    """
    One step of a start-up, and how it shows in a log.

    A pattern is a regular expression that has to fit at the beginning of what
    was printed, after times, levels, and names of files; begin it with
    ``.{0,80}`` to find it further inside.  Named groups are kept as facts.
    These mean more: *done* and *total*, how far it is; *next*, which step comes
    next; *part*, which of several equal parts it is about, such as a rank; and
    *of*, how many parts there are.

    Attributes:
        name: What it is called in results.

        title: What it is called in sentences, as in "loading the dataset".

        what: What happens in it.

        begin: Texts that only appear once it has begun.

        progress: Texts that appear while it goes on.

        bars: What progress bars of it are called: searched for in what stands
            before the percentage.  An empty name is ``"^$"``.

        side_bars: The same for bars that tell that it goes on, but not how
            far it is.

        end: Texts that end it.

        end_part: Texts that end one part of it.

        fail: Texts that tell that it failed.

        facts: Texts that tell something about it at any time.

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

        trains: Whether the job has started, and trains.

        serves: Whether a server is ready once this has ended, and may then
            be silent for ever.

        part_of: The phase inside which it comes again and again, as the
            generation of samples does in every step of training.  It is only
            looked for once that has begun.

        weight: How much its texts tell about the framework: 0 if all jobs
            print them.
    """

    name: str = attrs.field(converter=_name)
    title: str
    what: str = ""
    begin: tuple[re.Pattern[str], ...] = _patterns_field()
    progress: tuple[re.Pattern[str], ...] = _patterns_field()
    bars: tuple[re.Pattern[str], ...] = _patterns_field()
    side_bars: tuple[re.Pattern[str], ...] = _patterns_field()
    end: tuple[re.Pattern[str], ...] = _patterns_field()
    end_part: tuple[re.Pattern[str], ...] = _patterns_field()
    fail: tuple[re.Pattern[str], ...] = _patterns_field()
    facts: tuple[re.Pattern[str], ...] = _patterns_field()
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
    What goes wrong in any phase, or only looks so.

    Attributes:
        name: What it is called in results.

        patterns: Texts that tell it.

        more: Texts that tell more, searched for in that line and, unless it
            tells some itself, in the 20 after it by the same process.  Then
            each is about one actor, and what comes after that about another,
            but for patterns with a group *again*.

        cause: What is wrong.

        summary: One sentence; ``{pid}`` stands for the group of that name,
            and what is in square brackets is left out if a group is missing.

        reason: Why it usually happens.

        remedy: What to do about it.

        confidence: How sure this is.

        harmless: Whether it means nothing.

        fatal: Whether the job ends by it, unless it goes on to train.
    """

    name: str = attrs.field(converter=_name)
    patterns: tuple[re.Pattern[str], ...] = attrs.field(converter=_patterns)
    more: tuple[re.Pattern[str], ...] = _patterns_field()
    cause: Cause = attrs.field(converter=Cause, default=Cause.UNKNOWN)
    summary: str
    reason: str = ""
    remedy: str = ""
    confidence: Confidence = "likely"
    harmless: bool = False
    fatal: bool = False

    def __attrs_post_init__(self) -> None:
        if self.confidence not in get_args(Confidence):
            msg = f"confidence is {' or '.join(get_args(Confidence))}"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Ending:
    """
    How a log tells that its job is over.

    Attributes:
        how: ``"completed"``, ``"failed"``, or ``"killed"``.

        patterns: Texts that tell it.
    """

    how: How
    patterns: tuple[re.Pattern[str], ...] = attrs.field(converter=_patterns)

    def __attrs_post_init__(self) -> None:
        if self.how not in get_args(How):
            msg = f"how is {' or '.join(get_args(How))}"
            raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Book:
    """
    All that is known about one framework.

    Attributes:
        name: What it is called in results and by those who ask.

        title: Its own name.

        kind: ``"orchestrator"``, which may run trainers and engines;
            ``"trainer"``; ``"engine"``; or ``"common"``, which fits any job.
            Who runs others is the framework of a log.

        start: The first texts of a job.  If one of them comes again, the job
            was started again.

        decisive: Texts that only this framework prints.

        actors: Names of Ray actors and tasks that only this framework has, as
            Ray writes them before what they print.

        shared_actors: Names of such that others may have, too: they tell the
            framework only together with something else.

        covers: Which phases of the common book it tells better.

        table: The text after which a table of seconds follows.

        phases: In their order.

        failures: What goes wrong.

        endings: How jobs end.
    """

    name: str = attrs.field(converter=_name)
    title: str
    kind: Kind = "orchestrator"
    start: tuple[re.Pattern[str], ...] = _patterns_field()
    decisive: tuple[re.Pattern[str], ...] = _patterns_field()
    actors: tuple[re.Pattern[str], ...] = _patterns_field()
    shared_actors: tuple[re.Pattern[str], ...] = _patterns_field()
    covers: tuple[str, ...] = attrs.field(converter=tuple, default=())
    table: re.Pattern[str] | None = attrs.field(
        converter=_pattern, default=None
    )
    phases: tuple[Phase, ...] = ()
    failures: tuple[Failure, ...] = ()
    endings: tuple[Ending, ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            msg = f"kind is {' or '.join(get_args(Kind))}"
            raise ValueError(msg)
        names = [phase.name for phase in self.phases]
        if len(names) != len(set(names)):
            msg = "two phases have one name"
            raise ValueError(msg)
        wholes = {phase.name for phase in self.phases if not phase.part_of}
        for phase in self.phases:
            if phase.part_of and phase.part_of not in wholes:
                msg = f"{phase.name} is part of no phase of this book"
                raise ValueError(msg)


_MOST_SECONDS = 1e9
_BOOKS = Path(__file__).with_name("frameworks")


def load_book(path: str | os.PathLike[str]) -> Book:
    """
    Read what is known about one framework.

    Args:
        path: A file in TOML, with a table ``[framework]`` and tables
            ``[[phase]]``, ``[[failure]]``, and ``[[ending]]``, whose keys are
            the attributes of :class:`~distdebug.logs.phases.framework_rules.Book`,
            :class:`~distdebug.logs.phases.framework_rules.Phase`,
            :class:`~distdebug.logs.phases.framework_rules.Failure`, and
            :class:`~distdebug.logs.phases.framework_rules.Ending`.

    Returns:
        The book.

    Raises:
        RulesError: It cannot be read, or is not such a book.
    """
    return _load(path, is_ours=False)


def _load(path: str | os.PathLike[str], *, is_ours: bool) -> Book:
    name = os.fspath(path)
    try:
        table = read_toml(path)
    except (OSError, ValueError) as exc:
        raise RulesError(str(exc), name) from None

    parts = {"framework", "phase", "failure", "ending"}
    if unknown := set(table) - parts:
        msg = f"no such table: {min(unknown)!r:.60}"
        raise RulesError(msg, name)
    items = partial(_items, path=name, is_ours=is_ours)
    made: dict[str, Any] = {
        "phases": tuple(items(Phase, table, "phase")),
        "failures": tuple(items(Failure, table, "failure")),
        "endings": tuple(items(Ending, table, "ending")),
    }
    framework = table.get("framework", {})
    try:
        checked = _checked(Book, framework, is_ours=is_ours, leave=set(made))
        return Book(**checked, **made)
    except (TypeError, ValueError, RecursionError) as exc:
        msg = f"[framework]: {exc}"
        raise RulesError(msg, name) from None


def read_books(
    paths: Iterable[str | os.PathLike[str]] = (),
) -> tuple[Book, ...]:
    """
    Gather the books of these files and our own.

    Args:
        paths: Files of the user.  One whose framework has the name of one of
            ours takes its place.

    Returns:
        All books, those of the user first.

    Raises:
        RulesError: One of the files cannot be used.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    books = {book.name: book for book in map(load_book, paths)}
    for book in _own_books():
        books.setdefault(book.name, book)
    return tuple(books.values())


@cache
def _own_books() -> tuple[Book, ...]:
    return tuple(
        _load(path, is_ours=True) for path in sorted(_BOOKS.glob("*.toml"))
    )


def _items(
    kind: Any, book: Mapping[str, Any], word: str, *, path: str, is_ours: bool
) -> Iterable[Any]:
    tables = book.get(word, [])
    if not isinstance(tables, list):
        msg = f"write [[{word}]], not [{word}]"
        raise RulesError(msg, path)

    for number, table in enumerate(tables, start=1):
        try:
            yield kind(**_checked(kind, table, is_ours=is_ours))
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"{word} {number}: {exc}"
            raise RulesError(msg, path) from None


def _checked(
    kind: Any, table: Any, *, is_ours: bool, leave: Iterable[str] = ()
) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        msg = f"not a table: {table!r:.60}"
        raise TypeError(msg)

    fields = {field.name: field for field in attrs.fields(kind)}
    for key, value in table.items():
        if key not in fields or key in leave:
            msg = f"no such key: {key!r:.60}"
            raise ValueError(msg)
        _check_value(key, fields[key], value)
        # Ours were measured, and have more choices than can be counted.
        if not is_ours and "Pattern" in str(fields[key].type):
            for text in [value] if isinstance(value, str) else value:
                check_pattern(text)
    return table


def _check_value(key: str, field: Any, value: Any) -> None:
    """
    Values of the wrong type, and numbers that no clock shows, are refused.
    """
    if str(field.type) == "float":
        is_right = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 <= value <= _MOST_SECONDS
        )
    elif str(field.type) == "bool":
        is_right = isinstance(value, bool)
    elif str(field.type).startswith(("tuple[str", "tuple[re.Pattern")):
        is_right = isinstance(value, list) and all(
            isinstance(item, str) for item in value
        )
    else:
        is_right = isinstance(value, str)
    if not is_right:
        msg = f"{key} has the wrong type or value: {value!r:.60}"
        raise TypeError(msg)


_ONE = frozenset({"LITERAL"})
_GROUPS = frozenset({"SUBPATTERN", "ATOMIC_GROUP"})
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_SHORTEST = 3


@cache
def literals_of(pattern: re.Pattern[str]) -> frozenset[str]:
    """
    Tell texts of which one stands wherever a pattern fits.

    Args:
        pattern: The pattern.

    Returns:
        The texts; none if nothing is known.
    """
    if pattern.flags & re.IGNORECASE:
        return frozenset()

    tree = re._parser.parse(pattern.pattern)  # type: ignore[attr-defined]  # noqa: SLF001 nothing else tells
    found = _of_sequence(tree)
    return frozenset(found) if _worth(found) >= _SHORTEST else frozenset()


def _worth(texts: Iterable[str]) -> int:
    return min(map(len, texts), default=0)


def _of_sequence(parts: Iterable[Any]) -> set[str]:
    """
    The best choice of those that the parts give, one after the other.
    """
    best: set[str] = set()
    run = ""
    for kind, body in [*parts, ("END", None)]:
        if str(kind) in _ONE:
            run += chr(body)
            continue
        choices = [{run}, _of_part(str(kind), body)]
        best = max([best, *choices], key=_worth)
        run = ""
    return best


def _of_part(kind: str, body: Any) -> set[str]:
    if kind in _GROUPS:
        return _of_sequence(body if kind == "ATOMIC_GROUP" else body[-1])
    if kind == "BRANCH":
        choices = [_of_sequence(branch) for branch in body[1]]
        return set().union(*choices) if all(map(_worth, choices)) else set()
    if kind in _REPEATS and int(body[0]) > 0:
        return _of_sequence(body[2])
    return set()


@attrs.frozen(kw_only=True, eq=False)
class Words:
    """
    Texts to look for.

    Attributes:
        index: Those that can be indexed.

        short: The others.

        by_word: The former by what they are in small letters.
    """

    index: Index
    short: tuple[bytes, ...]
    by_word: dict[bytes, list[bytes]]

    def inside(self, data: bytes) -> list[bytes]:
        """
        Which of them stand there, in this case?

        Args:
            data: The block.

        Returns:
            The texts.
        """
        padded = np.frombuffer(data + bytes(PADDING), np.uint8)
        maybe = {word for _, word in find_words(self.index, padded)}
        texts = [text for word in maybe for text in self.by_word[word]]
        return [text for text in (*self.short, *texts) if text in data]


def make_words(texts: Iterable[bytes]) -> Words:
    """
    Prepare texts to be found.

    Args:
        texts: The texts, in UTF-8.

    Returns:
        What finds them.
    """
    short: list[bytes] = []
    by_word: dict[bytes, list[bytes]] = {}
    for text in texts:
        if len(text) < SHORTEST:
            short.append(text)
        else:
            by_word.setdefault(text.lower(), []).append(text)
    return Words(
        index=build_index(by_word), short=tuple(short), by_word=by_word
    )


RuleKind = Literal[
    "start",
    "decisive",
    "actor",
    "shared_actor",
    "table",
    "begin",
    "progress",
    "end",
    "end_part",
    "fail",
    "facts",
    "failure",
    "more",
    "ending",
]
# Where an index is worth its making.
_LARGE = 1 << 17
TRACEBACK = "Traceback (most recent call last)"

_OF_PHASES: tuple[RuleKind, ...] = (
    *("end", "end_part", "begin", "progress", "fail", "facts"),
)
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
    One pattern, and what it means.
    """

    book: Book
    kind: RuleKind
    pattern: re.Pattern[str]
    phase: Phase | None = None
    failure: Failure | None = None
    ending: Ending | None = None

    def find(self, text: str) -> re.Match[str] | None:
        """
        Where does it fit?  What may stand anywhere is not tried everywhere.
        """
        if self.pattern.pattern.startswith(".{0,"):
            return self.pattern.match(text)
        return self.pattern.search(text)

    @property
    def told(self) -> str:
        """
        What it tells about the framework, in words that only it has.
        """
        return f"{self.kind} {self.pattern.pattern}"

    @property
    def weight(self) -> float:
        """
        How much it tells about the framework.
        """
        if self.phase is not None and self.kind != "facts":
            return self.phase.weight
        return _WEIGHTS.get(self.kind, 1.0)


@attrs.frozen(kw_only=True, eq=False)
class RuleBook:
    """
    All rules, by the plain texts that have to stand in a line.

    Attributes:
        books: Those they come from.

        by_text: The rules of which one may fit where that text stands.

        always: Those that have no such text.
    """

    books: tuple[Book, ...]
    by_text: dict[str, list[Rule]]
    always: tuple[Rule, ...]

    @cached_property
    def words(self) -> Words:
        """
        The plain texts, prepared to be found in large blocks.
        """
        return make_words(text.encode() for text in self.by_text)

    def texts_in(self, block: bytes) -> list[str]:
        """
        Which of the plain texts stand in this block of lines?
        """
        if len(block) < _LARGE:
            text = block.decode("utf-8", "replace")
            return [one for one in self.by_text if one in text]
        return [one.decode() for one in self.words.inside(block)]


def make_rules(books: tuple[Book, ...]) -> RuleBook:
    """
    Put the rules of some books in order.

    Args:
        books: The books.

    Returns:
        Their rules.
    """
    by_text: dict[str, list[Rule]] = {
        text: [] for text in (*BAR_LITERALS, TRACEBACK)
    }
    always = []
    for rule in _rules(books):
        texts = literals_of(rule.pattern)
        for text in texts:
            by_text.setdefault(text, []).append(rule)
        if not texts:
            always.append(rule)
    return RuleBook(books=books, by_text=by_text, always=tuple(always))


def _rules(books: Iterable[Book]) -> Iterator[Rule]:
    for book in books:
        for pattern in book.start:
            yield Rule(book=book, kind="start", pattern=pattern)
        for pattern in book.decisive:
            yield Rule(book=book, kind="decisive", pattern=pattern)
        for pattern in book.actors:
            yield Rule(book=book, kind="actor", pattern=pattern)
        for pattern in book.shared_actors:
            yield Rule(book=book, kind="shared_actor", pattern=pattern)
        if book.table:
            yield Rule(book=book, kind="table", pattern=book.table)
        for phase in book.phases:
            for kind in _OF_PHASES:
                for pattern in getattr(phase, kind):
                    yield Rule(
                        book=book, kind=kind, pattern=pattern, phase=phase
                    )
        yield from _of_failures(book)


def _of_failures(book: Book) -> Iterator[Rule]:
    for failure in book.failures:
        for pattern in failure.patterns:
            yield Rule(
                book=book, kind="failure", pattern=pattern, failure=failure
            )
        for pattern in failure.more:
            yield Rule(
                book=book, kind="more", pattern=pattern, failure=failure
            )
    for ending in book.endings:
        for pattern in ending.patterns:
            yield Rule(
                book=book, kind="ending", pattern=pattern, ending=ending
            )
