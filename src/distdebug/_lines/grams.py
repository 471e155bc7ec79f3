"""
Where in these bytes may one of many words stand, in whatever case?

Of every word two neighboring windows of up to eight bytes are known.  One of
the two begins at an even place, so looking up what begins at even places finds
each occurrence once, however many words there are.  numpy does that without
holding the lock of the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs
import numpy as np

from numpy.typing import NDArray


__all__ = ["PADDING", "SHORTEST", "Index", "build_index", "find_words"]

SHORTEST = 5
# So many bytes behind what is searched must exist.
PADDING = 16

_CHUNK = 1 << 19  # fits into the caches of a core
_WORD = np.dtype("<u4")
_FOLD = np.uint32(0x20202020)  # one bit makes a letter small
_MULTIPLIER = np.uint32(0x9E3779B1)
_OTHER = np.uint32(0x85EBCA6B)
_BITS = 18
_SHIFT = np.uint32(32 - _BITS)
# How much of a window counts, by its width.
_MASKS = {
    width: np.uint32((1 << 8 * (width - 4)) - 1) for width in range(4, 9)
}
# What healthy logs are full of, and characters from the most common on.
_VOCABULARY = (
    b"info: warning: debug: train.py step: epoch iteration loss: loss= norm: "
    b"grad_norm: grad norm: learning rate: time: elapsed memory allocated "
    b"global batch size: samples tokens throughput seconds error: errors "
    b"process rank connection timeout server client worker actor model "
    b"request response file file: failed running reqs, waiting used nan "
    b"number of nan iterations: 0 out of the not to in on at for is an in no "
    b"nccl info opcount sendbuff recvbuff count comm received "
)
_COMMON = b" e0t1ao2nis3r4l5d6c7m8u9p.:g,h_/f-=by[]'(w)kvx"

_Bools = NDArray[np.bool_]
_Words = NDArray[np.uint32]


@attrs.frozen(kw_only=True, eq=False)
class Index:
    """
    Words to be found.

    Attributes:
        words: In small letters.

        first: Whether a window may begin with the four bytes of this hash.

        masks: Which of the next four bytes count, by the same hash.

        whole: Whether all that counts may have this hash.

        grams: Words, and where in them the window begins, by the first four
            bytes of the window.
    """

    words: frozenset[bytes]
    first: _Bools
    masks: _Words
    whole: _Bools
    grams: Mapping[int, tuple[tuple[bytes, int], ...]]


def build_index(words: Iterable[bytes]) -> Index:
    """
    Prepare words to be found.

    Args:
        words: At least :data:`SHORTEST` bytes each; in ASCII their case does
            not matter.

    Returns:
        What :func:`find_words` needs.
    """
    known = frozenset(word.lower() for word in words)
    places: list[tuple[bytes, int]] = []
    windows: list[bytes] = []
    for word in sorted(known):
        width = min(len(word) - 1, 8)
        start = _rarest(word, width)
        for place in (start, start + 1):
            places.append((word, place))
            windows.append(word[place : place + width])

    packed = b"".join(window.ljust(8, b"\0") for window in windows)
    ones, others = (np.frombuffer(packed, _WORD) | _FOLD).reshape(-1, 2).T
    hashed = _hash(ones)
    first, whole = (np.zeros(1 << _BITS, bool) for _ in range(2))
    masks = np.full(1 << _BITS, _MASKS[8])
    # What shares a place in the table is told apart by what all have.
    widths = np.array([_MASKS[len(window)] for window in windows])
    np.bitwise_and.at(masks, hashed, widths)
    first[hashed] = True
    whole[_hash_pair(ones, others & masks[hashed])] = True
    grams: dict[int, list[tuple[bytes, int]]] = {}
    for one, entry in zip(ones.tolist(), places, strict=True):
        grams.setdefault(one, []).append(entry)
    return Index(
        words=known,
        first=first,
        masks=masks,
        whole=whole,
        grams={key: tuple(value) for key, value in grams.items()},
    )


def find_words(
    index: Index, data: NDArray[np.uint8]
) -> list[tuple[int, bytes]]:
    """
    Find all words.

    Args:
        index: The words.

        data: Where to look; nothing is found in its last :data:`PADDING`
            bytes.

    Returns:
        Where a word begins, and which, by place.
    """
    found: list[tuple[int, bytes]] = []
    for begin in range(0, data.size - PADDING, _CHUNK):
        for start in (begin, begin + 2):
            piece = data[start : min(start + _CHUNK + 4, data.size)]
            words = piece[: piece.size // 4 * 4].view(_WORD) | _FOLD
            for rows, word, place in _candidates(index, words):
                places = _checked(data, start - place + 4 * rows, word)
                found += [(at, word) for at in places]
    found.sort()
    return found


def _candidates(
    index: Index, words: _Words
) -> Iterator[tuple[NDArray[np.intp], bytes, int]]:
    """
    Where words may be: rows, the word, and how far it began before them.
    """
    hashed = _hash(words[:-1])
    rows = np.flatnonzero(index.first.take(hashed, mode="wrap"))
    if not rows.size:
        return
    ones = words[rows]
    others = words[rows + 1] & index.masks[hashed[rows]]
    keep = index.whole[_hash_pair(ones, others)]
    rows, ones = rows[keep], ones[keep]
    # Where there are many, those that begin alike are looked at together.
    for one in dict.fromkeys(ones.tolist()):
        for word, place in index.grams.get(one, ()):
            yield rows[ones == one], word, place


def _checked(
    data: NDArray[np.uint8], starts: NDArray[np.intp], word: bytes
) -> list[int]:
    """
    At which places does the word stand?
    """
    starts = starts[(starts >= 0) & (starts + len(word) <= data.size)]
    # Its end tells most, since its beginning may be what was looked up.
    for place in (-1, 0, *range(len(word) - 2, 0, -1)):
        letter = word[place]
        there = data[starts + place % len(word)]
        small = there == letter
        if 97 <= letter <= 122:
            small |= there == letter - 32
        starts = starts[small]
        if not starts.size:
            break
    found: list[int] = starts.tolist()
    return found


def _hash(words: _Words) -> NDArray[np.intp]:
    hashed = words * _MULTIPLIER
    hashed >>= _SHIFT
    # numpy would convert them again for each look-up, and slower.
    return hashed.astype(np.intp)


def _hash_pair(ones: _Words, others: _Words) -> NDArray[np.intp]:
    return _hash(ones ^ others * _OTHER)


def _rarest(word: bytes, width: int) -> int:
    """
    Where a window begins that healthy text seldom has.
    """

    def rarity(start: int) -> tuple[bool, int]:
        ranks = (_COMMON.find(x) for x in word[start : start + width + 1])
        return (
            all(
                word[x : x + 4] not in _VOCABULARY for x in (start, start + 1)
            ),
            sum(len(_COMMON) if rank < 0 else rank for rank in ranks),
        )

    return max(range(len(word) - width), key=rarity)
