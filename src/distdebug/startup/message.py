"""
Does a text begin what was printed, or does it only stand somewhere in it?

Logs also hold what models say and what configurations quote.  A message comes
after times, levels, names of loggers and files, ranks, and signs; not after
words.
"""

from __future__ import annotations

import re


__all__ = ["begins_message"]

_LONGEST = 240
_LEVELS = frozenset(
    {
        *("info", "debug", "warn", "warning", "error", "critical", "fatal"),
        *("trace", "success", "notice"),
    }
)
_WORDS = _LEVELS | frozenset(
    {
        *("stdout", "stderr", "f", "p", "i"),
        *("w", "e", "am", "pm", "utc", "gmt", "rank", "worker", "node"),
        *("mon", "tue", "wed", "thu", "fri", "sat", "sun", "root"),
        *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep"),
        *("oct", "nov", "dec"),
    }
)
_SAID = re.compile(
    r"\W*(?:user|assistant|human|system|prompt|response|answer|question|text"
    r"|sample|output|input|content|messages?|completion|generated?|label"
    r"|target|reward|tool|role|value|description)\W*",
    re.IGNORECASE,
)
_QUOTES = tuple("\"'`{\u201c\u201d\u2018\u2019\xab\xbb")
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"[A-Za-z_][\w.]{0,80}")
_SEPARATORS = frozenset({"-", "|", ">>", "::", "\u2014", "\u2013"})


def begins_message(text: str, start: int) -> bool:
    """
    Does a message begin here?

    Args:
        text: The line, without the prefix of a launcher.

        start: Where the text in question begins.

    Returns:
        Whether only what loggers write stands before it.
    """
    before = text[:start].strip()
    if not before:
        return True
    if len(before) > _LONGEST or before.endswith(_QUOTES):
        return False

    tokens = before.split()
    return all(
        _is_of_logger(token, tokens[i - 1 : i] + tokens[i + 1 : i + 2])
        for i, token in enumerate(tokens)
    )


def _is_of_logger(token: str, around: list[str]) -> bool:
    if _DIGIT.search(token):
        return True
    if _SAID.fullmatch(token):
        return False
    if token.endswith((":", "]", ")", "|", ">")) or token[0] in "[(<":
        return True
    if not any(char.isalnum() for char in token):
        return True
    if token.strip("-:|,").lower() in _WORDS:
        return True
    near = {one.strip("-:|,[]").lower() for one in around}
    is_near = not _SEPARATORS.isdisjoint(around) or bool(near & _LEVELS)
    return is_near and bool(_WORD.fullmatch(token))
