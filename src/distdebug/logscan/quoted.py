"""
Does this line only speak of an error, rather than being one?

Prompts, answers of models, documents, help texts, lists of changes, and traced
shell commands are full of the words of errors.
"""

from __future__ import annotations

import re


__all__ = ["is_quoted"]

_BEFORE, _BEHIND = 400, 120

# Who says it: a text that a model reads or writes.
_SPEAKER = re.compile(
    r"(?:^|[\s\[\"'{<(|#*])(?:prompt|response|question|answer|completion"
    r"|generated(?:[ _]text)?|generation[ _]text|user|human|assistant|instruction|query"
    r"|(?:input|output|sample|raw|decoded)[ _]text|text|content|reference"
    r"|prediction|hypothesis|document|caption|explanation|reasoning|chosen"
    r"|rejected|trajectory|ground[ _]truth)s?(?: #?\d{1,6})?"
    r"(?:[\"'*]{0,3}\s?:|\]|\|?>)|^\s{0,8}[QA]:",
    re.IGNORECASE,
)
# Structured logs have messages under such keys, too.
_STRUCTURED = re.compile(r'"(?:level|levelname|severity|record|lvl)"\s?:')
_QUESTION = re.compile(
    r"\b(?:why|what|how|when|explain)\b(?!\()[^?]{0,300}\?", re.IGNORECASE
)
_TELLING = re.compile(
    r"\bI(?:'m|'ve| am| have)? (?:get|got|see|saw|getting|receive|hit|had|ran"
    r"|keep)\b|\b[Mm]y (?:program|code|script|model|training|job|GPU|app)\b"
    r"|\b(?:[Ee]xplain|[Tt]roubleshoot|[Hh]ow to (?:fix|solve|avoid|debug))\b"
    r"|\b(?:usually|often|typically|generally) (?:means?|indicates?)\b"
    r"|\b(?:says?|said|prints?) [\"'“]$"
)
# What was, is, or shall be done about such an error.
_ABOUT = re.compile(
    r"\b(?:fix(?:e[sd]|ing)?|handl(?:es?|ed|ing)|catch(?:es|ing)?"
    r"|avoid(?:s|ing)?|prevent(?:s|ing)?|rais(?:es?|ing)|(?:retry|retries"
    r"|retrying|skip|stop|abort) on|do(?:es)? not (?:die|crash|fail)"
    r"|don't (?:die|crash|fail)|what to do|simulat\w{1,5}|inject\w{0,5}"
    r"|tolerat\w{1,5}|recover(?:s|ed|ing)? from|test(?:s|ing)? (?:for|of))\b"
    r"[^.:;()\[\]]{0,40}$",
    re.IGNORECASE,
)
_TYPES = re.compile(r"(?:\b[A-Za-z_][\w.]{0,100}(?:Error|Exception):? ?)$")
_EXPLAINED = re.compile(
    r"(?:[^\s.:]{0,12}|\([^)\n]{0,30}\))[\"'`”]{0,2} (?:errors? )?(?:(?:can|could|may|might"
    r"|should) (?:also |often |usually |sometimes )?(?:be|happen|occur|mean"
    r"|appear|come)\b|(?:usually |often |typically |also )?means? |indicates? |(?:occurs|happens) (?:when|if|be)"
    r"|is (?:usually|often|typically|caused by|raised (?:when|if)|an? ))",
    re.IGNORECASE,
)
# Lines of programs, as tracebacks and lists of changes show them.
_CODE = re.compile(
    r"\braise [A-Za-z_][\w.]{0,80}\(|\b(?:log(?:ger|ging)?|warnings?|console)"
    r"\.\w{1,20}\([rf]?[\"']|\bprint\([rf]?[\"']"
)
# Traced by a shell; a row of a help text; a heading.
_COMMAND = re.compile(
    r"#{2,6} [A-Z]|\+{1,6} [\w./'\"\[{(:]|\s{0,20}--?[A-Za-z][\w-]{0,60}(?:[ ,=\[]|$)"
)


def is_quoted(text: str, start: int, end: int) -> bool:
    """
    Whether the words of an error are part of a text about errors.

    Args:
        text: The line, without prefixes of launchers.

        start: Where the words begin.

        end: Where they end.
    """
    lead = text[max(start - _BEFORE, 0) : start]
    rest = text[end : end + _BEHIND]
    if _COMMAND.match(text) or _EXPLAINED.match(rest):
        return True

    is_spoken = _SPEAKER.search(lead) and not _STRUCTURED.search(text)
    is_marked = lead.count("`") % 2 == 1 and "`" in rest
    is_code = is_marked or _CODE.search(lead)
    if is_spoken or is_code or _TELLING.search(lead):
        return True

    asked = _QUESTION.search(lead + text[start:end] + rest)
    is_asked = asked is not None and asked.start() < len(lead)
    return is_asked or bool(_ABOUT.search(_TYPES.sub("", lead)))
