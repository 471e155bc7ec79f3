"""
How is a selection of ranks written?

::

    ranks = "ranks(" ( dims | slice | list | INT ) ")"
    dims  = dim { "," dim }
    dim   = NAME "=" ( slice | "(" list ")" | INT )
    list  = INT "," INT { "," INT }
    slice = [INT] ":" [INT] [ ":" [INT] ]

Numbers and names are ASCII.  Blanks are allowed around every token, and
``ranks(`` is one token.  Whatever is written becomes ranges of integers: a
slice is one, a number is one of length one.
"""

from __future__ import annotations

import re
import sys

from typing import NoReturn

from .errors import RankSyntaxError


Ranges = tuple[range, ...]
Selected = tuple[Ranges, tuple[tuple[str, Ranges], ...]]

# No rank, index, or step is larger; range() can still count this many.
_LARGEST = sys.maxsize - 1

_OPEN, _NUMBER, _NAME, _END = "ranks(", "a number", "a dimension", "the end"
_TOKENS = {
    token: re.compile(rf"[ \t\r\n]*({pattern})")
    for token, pattern in {
        _NUMBER: "[0-9]+",
        _NAME: "[A-Za-z_][A-Za-z0-9_]*",
        _END: r"\Z",
        **{mark: re.escape(mark) for mark in [_OPEN, *"(),:=-"]},
    }.items()
}


def read_selection(text: str) -> Selected:
    """
    What does ``ranks(...)`` select, by rank or by dimension?

    Raises:
        distdebug.errors.RankSyntaxError: *text* is something else.
    """
    return _selection(_Reader(text))


def read_option(text: str) -> Selected:
    """
    What does ``ranks(...)`` or ``0-3,7`` select, by rank or by dimension?

    Raises:
        distdebug.errors.RankSyntaxError: *text* is something else.
    """
    reader = _Reader(text)
    if reader.sees(_NUMBER):
        return _ranges(reader), ()

    return _selection(reader)


def read_ranges(text: str) -> Ranges:
    """
    Which ranges does ``0-3,7`` name?

    Raises:
        distdebug.errors.RankSyntaxError: *text* is something else.
    """
    return _ranges(_Reader(text))


class _Reader:
    """
    Reads a text token by token, and knows what could have come instead.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.start = 0  # of the token that was accepted last
        self.position = 0  # behind that token
        self.missed: list[str] = []  # what was looked for since then

    def sees(self, token: str) -> re.Match[str] | None:
        """
        Find out whether *token* comes next, and note if not.
        """
        match = _TOKENS[token].match(self.text, self.position)
        if match is None:
            self.missed.append(token if " " in token else repr(token))

        return match

    def accept(self, token: str) -> str | None:
        """
        Read *token* if it comes next.
        """
        match = self.sees(token)
        if match is None:
            return None

        self.start, self.position = match.span(1)
        self.missed.clear()
        return match[1]

    def expect(self, token: str) -> str:
        """
        Read *token*, which must come next.
        """
        found = self.accept(token)
        if found is None:
            self._fail_here()

        return found

    def number(self) -> int:
        """
        Read a number, which must come next.
        """
        digits = self.expect(_NUMBER).lstrip("0") or "0"
        # int() refuses thousands of digits.
        return min(int(digits[:20]), _LARGEST)

    def fail(self, message: str) -> NoReturn:
        """
        Refuse the token that was accepted last.
        """
        raise RankSyntaxError(message, self.text, self.start)

    def _fail_here(self) -> NoReturn:
        *most, last = dict.fromkeys(self.missed)
        wanted = f"{', '.join(most)} or {last}" if most else last
        rest = self.text[self.position :].lstrip(" \t\r\n")
        self.start = len(self.text) - len(rest)
        self.fail(
            f"expected {wanted}, found {repr(rest[0]) if rest else _END}"
        )


def _selection(reader: _Reader) -> Selected:
    by_rank: Ranges = ()
    by_dimension: dict[str, Ranges] = {}
    reader.expect(_OPEN)
    if reader.sees(_NAME):
        by_dimension = _dimensions(reader)
    else:
        choice = _slice_or_number(reader)
        by_rank = (
            _list(reader, choice) if isinstance(choice, int) else (choice,)
        )
    reader.expect(")")
    reader.expect(_END)
    return by_rank, tuple(by_dimension.items())


def _dimensions(reader: _Reader) -> dict[str, Ranges]:
    found: dict[str, Ranges] = {}
    while not found or reader.accept(","):
        name = reader.expect(_NAME)
        if name in found:
            reader.fail(f"the dimension {name} occurs twice")

        reader.expect("=")
        found[name] = _indexes(reader)

    return found


def _indexes(reader: _Reader) -> Ranges:
    if not reader.accept("("):
        choice = _slice_or_number(reader)
        return (_only(choice) if isinstance(choice, int) else choice,)

    numbers = _list(reader, reader.number())
    # dp=(1) may be a slip for dp=1 or for dp=(1,2): ask for the comma.
    if len(numbers) == 1:
        reader.expect(",")
    reader.expect(")")
    return numbers


def _slice_or_number(reader: _Reader) -> range | int:
    if reader.accept(":"):
        return _slice(reader, 0)

    number = reader.number()
    return _slice(reader, number) if reader.accept(":") else number


def _slice(reader: _Reader, start: int) -> range:
    stop = reader.number() if reader.sees(_NUMBER) else _LARGEST
    step = 1
    if reader.accept(":") and reader.sees(_NUMBER):
        step = reader.number()
        if step == 0:
            reader.fail("the step must not be 0")

    return range(start, stop, step)


def _list(reader: _Reader, first: int) -> Ranges:
    ranges = [_only(first)]
    while reader.accept(","):
        ranges.append(_only(reader.number()))

    return tuple(ranges)


def _only(number: int) -> range:
    return range(number, number + 1)


def _ranges(reader: _Reader) -> Ranges:
    found: list[range] = []
    while not found or reader.accept(","):
        first = reader.number()
        last = reader.number() if reader.accept("-") else first
        if last < first:
            reader.fail(f"the range {first}-{last} is backwards")

        found.append(range(first, last + 1))

    reader.expect(_END)
    return tuple(found)
