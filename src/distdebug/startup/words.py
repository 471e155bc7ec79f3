"""
Which of these texts stand in a block of a log?
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np

from .._lines.grams import PADDING, SHORTEST, Index, build_index, find_words


__all__ = ["Words", "make_words"]


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
