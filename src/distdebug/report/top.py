"""
What does a person have to read first?
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

import attrs

from .._text import clean
from ..findings import Cause, Diagnosis, Finding, meaning_of
from .about import About, about
from .ranks import RankLinks, rank_links
from .words import (
    Piece,
    as_sentence,
    cause_words,
    pieces_of,
    tone_of,
    unbroken,
)


__all__ = ["Top", "top_of"]

# Of these, ranks tell, or suffer from them.
_NOBODYS = {Cause.COLLECTIVE_TIMEOUT, Cause.UNKNOWN}
_SURE = {
    "certain": "the evidence leaves no other explanation",
    "likely": "the evidence fits, and nothing speaks against it",
    "possible": "the evidence hints at it; look for more",
}


@attrs.frozen(kw_only=True)
class Top:
    """
    What stands at the top of the page.

    Attributes:
        title: The title of the window.

        tone: ``"culprit"``, ``"fine"``, or ``"unknown"``.

        badge: The cause in words.

        sentence: The verdict.

        heading: The same in parts; no line ends in each second one.

        cause: Its cause as scripts write it.

        meaning: What that means.

        culprits: Who is at fault, or tells of it.

        are_to_blame: Whether they are at fault.

        sure: How sure that is, and what this means.

        facts: Where it shows: labels and texts.

        remedy: What to do.

        victims: Who merely waits.

        about: What was looked at.

        version: Which *distdebug* wrote the page.
    """

    title: str
    tone: str
    badge: str
    sentence: str
    heading: tuple[str, ...]
    cause: str
    meaning: str
    culprits: RankLinks
    are_to_blame: bool
    sure: str
    facts: tuple[tuple[str, str], ...]
    remedy: tuple[Piece, ...]
    victims: RankLinks
    about: About
    version: str


def top_of(diagnosis: Diagnosis) -> Top:
    """
    What does a person have to read first?

    Args:
        diagnosis: Any diagnosis.

    Returns:
        What the template shows.
    """
    verdict = diagnosis.verdict
    sentence = as_sentence(verdict.summary)
    looked_at = about(diagnosis)
    return Top(
        title=f"{clean(verdict.summary, limit=100)} · distdebug",
        tone=tone_of(verdict.cause),
        badge=cause_words(verdict.cause),
        sentence=sentence,
        heading=unbroken(sentence),
        cause=verdict.cause.value,
        meaning=meaning_of(verdict.cause),
        culprits=rank_links(verdict.ranks),
        are_to_blame=verdict.cause not in _NOBODYS,
        sure=_sure(verdict),
        facts=tuple(_facts(verdict)),
        remedy=pieces_of(as_sentence(verdict.remedy or "")),
        victims=rank_links(diagnosis.victims),
        about=looked_at,
        version=_version(),
    )


def _facts(verdict: Finding) -> Iterable[tuple[str, str]]:
    if verdict.collective:
        yield "Call", clean(str(verdict.collective))
    if verdict.group:
        yield "Group", clean(f"{verdict.group}")
    if verdict.location:
        yield "Line", clean(str(verdict.location))


def _sure(verdict: Finding) -> str:
    # Nobody asks how sure it is that nothing is known.
    if verdict.cause is Cause.UNKNOWN:
        return ""

    return f"{verdict.confidence}: {_SURE[verdict.confidence]}"


def _version() -> str:
    # An import of the package would look like one of all rooms.
    package = import_module(__name__.partition(".")[0])
    return str(package.__version__)
