"""
Find many words at once in gigabytes of bytes; find patterns by their words.
"""

from __future__ import annotations

import re

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray


SHORTEST_WORD = 5
# This many bytes must follow the bytes that are searched.
PADDING = 16

_CHUNK = 1 << 19  # fits into the caches of a core
_UINT32 = np.dtype("<u4")
_LOWER_CASE_BITS = np.uint32(0x20202020)  # one bit makes a letter small
_MULTIPLIER = np.uint32(0x9E3779B1)
_SECOND_MULTIPLIER = np.uint32(0x85EBCA6B)
_HASH_BITS = 18
_HASH_SHIFT = np.uint32(32 - _HASH_BITS)
# The bytes of the second half of a window that count, by its width.
_WINDOW_MASKS = {
    width: np.uint32((1 << 8 * (width - 4)) - 1) for width in range(4, 9)
}
# Frequent text of healthy logs, and its characters, most frequent first.
_COMMON_TEXT = (
    b"info: warning: debug: train.py step: epoch iteration loss: loss= norm: "
    b"grad_norm: grad norm: learning rate: time: elapsed memory allocated "
    b"global batch size: samples tokens throughput seconds error: errors "
    b"process rank connection timeout server client worker actor model "
    b"request response file file: failed running reqs, waiting used nan "
    b"number of nan iterations: 0 out of the not to in on at for is an in no "
    b"nccl info opcount sendbuff recvbuff count comm received "
)
_COMMON_BYTES = b" e0t1ao2nis3r4l5d6c7m8u9p.:g,h_/f-=by[]'(w)kvx"

_BoolArray = NDArray[np.bool_]
_UInt32Array = NDArray[np.uint32]
#: Offsets in a block.
Places = NDArray[np.intp]


@attrs.frozen(kw_only=True, eq=False)
class WordIndex:
    """
    A hash index of words, for :func:`find_places`.

    It hashes windows of five to eight bytes, read as two 32-bit numbers, so
    that numpy can compare whole blocks.

    Attributes:
        words: The words, in small letters.

        first: By hash: whether a window may begin with these four bytes.

        masks: By the same hash: which of the next four bytes count.

        whole: By the hash of all bytes that count: whether a window may match.

        grams: By the first four bytes of a window: the words with it, and its
            place in each.
    """

    words: frozenset[bytes]
    first: _BoolArray
    masks: _UInt32Array
    whole: _BoolArray
    grams: Mapping[int, tuple[tuple[bytes, int], ...]]


def build_index(words: Iterable[bytes]) -> WordIndex:
    """
    Build an index of words.

    Args:
        words: At least :data:`SHORTEST_WORD` bytes each; the case of ASCII
            letters does not matter.
    """
    known = frozenset(word.lower() for word in words)
    places: list[tuple[bytes, int]] = []
    windows: list[bytes] = []
    for word in sorted(known):
        width = min(len(word) - 1, 8)
        start = _rarest_window(word, width)
        for place in (start, start + 1):
            places.append((word, place))
            windows.append(word[place : place + width])

    packed = b"".join(window.ljust(8, b"\0") for window in windows)
    first_halves, second_halves = (
        (np.frombuffer(packed, _UINT32) | _LOWER_CASE_BITS).reshape(-1, 2).T
    )
    hashed = _hash(first_halves)
    first, whole = (np.zeros(1 << _HASH_BITS, bool) for _ in range(2))
    masks = np.full(1 << _HASH_BITS, _WINDOW_MASKS[8])
    # Windows with the same hash are compared by the bytes that all have.
    widths = np.array([_WINDOW_MASKS[len(window)] for window in windows])
    np.bitwise_and.at(masks, hashed, widths)
    first[hashed] = True
    whole[_hash_pair(first_halves, second_halves & masks[hashed])] = True
    grams: dict[int, list[tuple[bytes, int]]] = {}
    for first_half, entry in zip(first_halves.tolist(), places, strict=True):
        grams.setdefault(first_half, []).append(entry)
    return WordIndex(
        words=known,
        first=first,
        masks=masks,
        whole=whole,
        grams={key: tuple(value) for key, value in grams.items()},
    )


def find_places(
    index: WordIndex, data: NDArray[np.uint8]
) -> dict[bytes, Places]:
    """
    Find all words of an index in a block of bytes.

    Args:
        data: The block; nothing is found in its last :data:`PADDING` bytes.

    Returns:
        The offsets of each word that was found, ascending.
    """
    found: dict[bytes, list[Places]] = {}
    for begin in range(0, data.size - PADDING, _CHUNK):
        for start in (begin, begin + 2):
            piece = data[start : min(start + _CHUNK + 4, data.size)]
            words = (
                piece[: piece.size // 4 * 4].view(_UINT32) | _LOWER_CASE_BITS
            )
            for rows, word, place in _candidates(index, words):
                places = _verify(data, start - place + 4 * rows, word)
                if places.size:
                    found.setdefault(word, []).append(places)
    most = data.size - PADDING
    joined = ((word, np.sort(np.concatenate(x))) for word, x in found.items())
    return {
        word: places[: places.searchsorted(most)] for word, places in joined
    }


def in_order(places: Mapping[bytes, Places]) -> list[tuple[int, bytes]]:
    """
    Return the offset and the word of each hit, by offset.
    """
    return sorted(
        (at, word) for word, of in places.items() for at in of.tolist()
    )


def _candidates(
    index: WordIndex, words: _UInt32Array
) -> Iterator[tuple[NDArray[np.intp], bytes, int]]:
    """
    Yield possible hits: rows of *words*, the word, and its bytes before them.
    """
    hashed = _hash(words[:-1])
    rows = np.flatnonzero(index.first.take(hashed, mode="wrap"))
    if not rows.size:
        return
    first_halves = words[rows]
    second_halves = words[rows + 1] & index.masks[hashed[rows]]
    keep = index.whole[_hash_pair(first_halves, second_halves)]
    rows, first_halves = rows[keep], first_halves[keep]
    # Hits that begin with the same four bytes are handled together.
    for first_half in dict.fromkeys(first_halves.tolist()):
        for word, place in index.grams.get(first_half, ()):
            yield rows[first_halves == first_half], word, place


def _verify(data: NDArray[np.uint8], starts: Places, word: bytes) -> Places:
    """
    Return the offsets in *starts* at which the word really stands.
    """
    starts = starts[(starts >= 0) & (starts + len(word) <= data.size)]
    # The last byte first: the first ones may be the window that matched.
    for place in (-1, 0, *range(len(word) - 2, 0, -1)):
        letter = word[place]
        there = data[starts + place % len(word)]
        small = there == letter
        if 97 <= letter <= 122:
            small |= there == letter - 32
        starts = starts[small]
        if not starts.size:
            break
    return starts


def _hash(words: _UInt32Array) -> NDArray[np.intp]:
    hashed = words * _MULTIPLIER
    hashed >>= _HASH_SHIFT
    # As indices: numpy would convert them at each look-up, more slowly.
    return hashed.astype(np.intp)


def _hash_pair(
    first_halves: _UInt32Array, second_halves: _UInt32Array
) -> NDArray[np.intp]:
    return _hash(first_halves ^ second_halves * _SECOND_MULTIPLIER)


def _rarest_window(word: bytes, width: int) -> int:
    """
    Return where in a word its window is rarest in healthy logs.
    """

    def rareness(start: int) -> tuple[bool, int]:
        ranks = (
            _COMMON_BYTES.find(x) for x in word[start : start + width + 1]
        )
        return (
            all(
                word[x : x + 4] not in _COMMON_TEXT for x in (start, start + 1)
            ),
            sum(len(_COMMON_BYTES) if rank < 0 else rank for rank in ranks),
        )

    return max(range(len(word) - width), key=rareness)


@attrs.frozen(kw_only=True, eq=False)
class TextIndex:
    """
    Literal texts, prepared for searching in blocks of bytes.

    Attributes:
        short: The texts that are too short for an index.

        by_word: The other texts, by the same in small letters.

        any_case: Texts in small letters that are found in any case.
    """

    short: tuple[bytes, ...]
    by_word: dict[bytes, list[bytes]]
    any_case: frozenset[bytes] = frozenset()

    def find(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """
        Yield the offset and the text of each hit in *data*.
        """
        padded = np.frombuffer(data + bytes(PADDING), np.uint8)
        places = find_places(self._index, padded)
        yield from self.find_texts(data, in_order(places), 0, len(data))

    def find_texts(
        self,
        data: bytes,
        words: Iterable[tuple[int, bytes]],
        begin: int,
        end: int,
    ) -> Iterator[tuple[int, bytes]]:
        """
        Yield the offset and the text of each hit in a part of *data*.

        Args:
            words: The offset and the word of each hit of :attr:`by_word` there.
        """
        for offset, word in words:
            for text in self.by_word[word]:
                if text in self.any_case or data.startswith(text, offset):
                    yield offset, text
        for text in self.short:
            for offset in find_each(data, text, begin, end):
                yield offset, text

    @cached_property
    def _index(self) -> WordIndex:
        return build_index(self.by_word)


def find_each(
    data: bytes, text: bytes, begin: int = 0, end: int | None = None
) -> Iterator[int]:
    """
    Yield the offset of each hit of a text in *data*, or in a part of it.
    """
    offset = data.find(text, begin, end)
    while offset >= 0:
        yield offset
        offset = data.find(text, offset + len(text), end)


def make_text_index(
    texts: Iterable[bytes], *, any_case: Collection[bytes] = ()
) -> TextIndex:
    """
    Prepare texts in UTF-8 for searching.

    Args:
        any_case: Those in small letters, of five bytes or more, that are found
            in any case.
    """
    short: list[bytes] = []
    by_word: dict[bytes, list[bytes]] = {}
    for text in texts:
        if len(text) < SHORTEST_WORD:
            short.append(text)
        else:
            by_word.setdefault(text.lower(), []).append(text)
    return TextIndex(
        short=tuple(short),
        by_word=by_word,
        any_case=frozenset(any_case),
    )


_GROUP_OPS = frozenset({"SUBPATTERN", "ATOMIC_GROUP"})
_REPEAT_OPS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_SHORTEST_LITERAL = 3


@cache
def required_literals(pattern: re.Pattern[str]) -> frozenset[str]:
    """
    Return literal texts of which one stands wherever a pattern matches.

    The set is empty if none are known.
    """
    return frozenset(next(iter(all_literals(pattern)), ()))


@cache
def all_literals(pattern: re.Pattern[str]) -> tuple[tuple[str, ...], ...]:
    """
    Return sets of literal texts; wherever a pattern matches, each has one.

    That of the longest texts is the first.  The parse tree of :mod:`re` gives
    them, since nothing public does.
    """
    if pattern.flags & re.IGNORECASE:
        return ()

    tree = re._parser.parse(pattern.pattern)  # type: ignore[attr-defined]  # noqa: SLF001 nothing else tells
    found = sorted(
        (tuple(sorted(texts)) for texts in _literals_of_sequence(tree)),
        key=_shortest_length,
        reverse=True,
    )
    return tuple(x for x in found if _shortest_length(x) >= _SHORTEST_LITERAL)


def _shortest_length(texts: Iterable[str]) -> int:
    return min(map(len, texts), default=0)


def _literals_of_sequence(parts: Iterable[Any]) -> Iterator[set[str]]:
    run = ""
    for kind, body in [*parts, ("END", None)]:
        if str(kind) == "LITERAL":
            run += chr(body)
            continue
        yield {run}
        yield from _literals_of_part(str(kind), body)
        run = ""


def _literals_of_part(kind: str, body: Any) -> Iterator[set[str]]:
    if kind in _GROUP_OPS:
        yield from _literals_of_sequence(
            body if kind == "ATOMIC_GROUP" else body[-1]
        )
    elif kind == "BRANCH":
        # Of each branch, the set whose shortest text is the longest.
        choices = [
            max(_literals_of_sequence(branch), key=_shortest_length)
            for branch in body[1]
        ]
        if all(map(_shortest_length, choices)):
            yield set().union(*choices)
    elif kind in _REPEAT_OPS and int(body[0]) > 0:
        yield from _literals_of_sequence(body[2])


def search_pattern(
    pattern: re.Pattern[str], text: str
) -> re.Match[str] | None:
    """
    Search for a pattern, if one of the literal texts that it needs occurs.

    In a text of kilobytes, this takes a fraction of the time of the pattern.
    """
    texts = required_literals(pattern)
    if texts and not any(x in text for x in texts):
        return None
    return pattern.search(text)
