"""
Parse the text of a rank selection.

::

    ranks = "ranks(" ( dims | slice | list | INT ) ")"
    dims  = dim { "," dim }
    dim   = NAME "=" ( slice | "(" list ")" | INT )
    list  = INT "," INT { "," INT }
    slice = [INT] ":" [INT] [ ":" [INT] ]

Numbers and names are ASCII.  Blanks are allowed around every token, and
``ranks(`` is one token.  The result is ranges of integers; a number is a range
of length one.
"""

from __future__ import annotations

import re
import sys

from typing import NoReturn

from ._lazy import late_pattern
from .errors import RankSyntaxError


Ranges = tuple[range, ...]
Selection = tuple[Ranges, tuple[tuple[str, Ranges], ...]]

# No rank, index, or step is larger; range() can still count this many.
_MAX_NUMBER = sys.maxsize - 1

_OPEN, _NUMBER, _NAME, _END = "ranks(", "a number", "a dimension", "the end"
_TOKENS = {
    token: late_pattern(rf"[ \t\r\n]*({pattern})")
    for token, pattern in {
        _NUMBER: "[0-9]+",
        _NAME: "[A-Za-z_][A-Za-z0-9_]*",
        _END: r"\Z",
        **{mark: re.escape(mark) for mark in [_OPEN, *"(),:=-"]},
    }.items()
}


def parse_selection(text: str) -> Selection:
    """
    Parse ``ranks(...)`` into ranges by rank or by dimension.

    Raises:
        distdebug.errors.RankSyntaxError: *text* is something else.
    """
    return _parse_selection(_Reader(text))


def parse_option(text: str) -> Selection:
    """
    Parse ``ranks(...)`` or ``0-3,7`` into ranges by rank or by dimension.

    Raises:
        distdebug.errors.RankSyntaxError: *text* is something else.
    """
    reader = _Reader(text)
    if reader.is_next(_NUMBER):
        return _parse_ranges(reader), ()

    return _parse_selection(reader)


def parse_ranges(text: str) -> Ranges:
    """
    Parse folded ranks such as ``0-3,7`` into ranges.

    Raises:
        distdebug.errors.RankSyntaxError: *text* is something else.
    """
    return _parse_ranges(_Reader(text))


class _Reader:
    """
    Token reader that notes the tokens it could have accepted next.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.start = 0  # of the token that was accepted last
        self.position = 0  # after that token
        self.expected: list[str] = []  # tokens that were tried since then

    def is_next(self, token: str) -> re.Match[str] | None:
        """
        Match *token* at the current position; note it as expected if absent.
        """
        match = _TOKENS[token].match(self.text, self.position)
        if match is None:
            self.expected.append(token if " " in token else repr(token))

        return match

    def accept(self, token: str) -> str | None:
        """
        Read *token* if it comes next.
        """
        match = self.is_next(token)
        if match is None:
            return None

        self.start, self.position = match.span(1)
        self.expected.clear()
        return match[1]

    def expect(self, token: str) -> str:
        """
        Read *token*; raise an error if it does not come next.
        """
        found = self.accept(token)
        if found is None:
            self._fail_unexpected()

        return found

    def number(self) -> int:
        """
        Read a number; raise an error if none comes next.
        """
        digits = self.expect(_NUMBER).lstrip("0") or "0"
        # int() refuses thousands of digits.
        return min(int(digits[:20]), _MAX_NUMBER)

    def fail(self, message: str) -> NoReturn:
        """
        Raise an error at the token that was accepted last.
        """
        raise RankSyntaxError(message, self.text, self.start)

    def _fail_unexpected(self) -> NoReturn:
        *others, last = dict.fromkeys(self.expected)
        expected = f"{', '.join(others)} or {last}" if others else last
        rest = self.text[self.position :].lstrip(" \t\r\n")
        self.start = len(self.text) - len(rest)
        self.fail(
            f"expected {expected}, found {repr(rest[0]) if rest else _END}"
        )


def _parse_selection(reader: _Reader) -> Selection:
    by_rank: Ranges = ()
    by_dimension: dict[str, Ranges] = {}
    reader.expect(_OPEN)
    if reader.is_next(_NAME):
        by_dimension = _parse_dimensions(reader)
    else:
        choice = _parse_slice_or_number(reader)
        by_rank = (
            _parse_list(reader, choice)
            if isinstance(choice, int)
            else (choice,)
        )
    reader.expect(")")
    reader.expect(_END)
    return by_rank, tuple(by_dimension.items())


def _parse_dimensions(reader: _Reader) -> dict[str, Ranges]:
    found: dict[str, Ranges] = {}
    while not found or reader.accept(","):
        name = reader.expect(_NAME)
        if name in found:
            reader.fail(f"the dimension {name} occurs twice")

        reader.expect("=")
        found[name] = _parse_indexes(reader)

    return found


def _parse_indexes(reader: _Reader) -> Ranges:
    if not reader.accept("("):
        choice = _parse_slice_or_number(reader)
        return (_single(choice) if isinstance(choice, int) else choice,)

    numbers = _parse_list(reader, reader.number())
    # dp=(1) may be a typo for dp=1 or for dp=(1,2): require the comma.
    if len(numbers) == 1:
        reader.expect(",")
    reader.expect(")")
    return numbers


def _parse_slice_or_number(reader: _Reader) -> range | int:
    if reader.accept(":"):
        return _parse_slice(reader, 0)

    number = reader.number()
    return _parse_slice(reader, number) if reader.accept(":") else number


def _parse_slice(reader: _Reader, start: int) -> range:
    stop = reader.number() if reader.is_next(_NUMBER) else _MAX_NUMBER
    step = 1
    if reader.accept(":") and reader.is_next(_NUMBER):
        step = reader.number()
        if step == 0:
            reader.fail("the step must not be 0")

    return range(start, stop, step)


def _parse_list(reader: _Reader, first: int) -> Ranges:
    ranges = [_single(first)]
    while reader.accept(","):
        ranges.append(_single(reader.number()))

    return tuple(ranges)


def _single(number: int) -> range:
    return range(number, number + 1)


def _parse_ranges(reader: _Reader) -> Ranges:
    found: list[range] = []
    while not found or reader.accept(","):
        first = reader.number()
        last = reader.number() if reader.accept("-") else first
        if last < first:
            reader.fail(f"the range {first}-{last} is backwards")

        found.append(range(first, last + 1))

    reader.expect(_END)
    return tuple(found)
