"""
Which answer of which rank stands in a page of torch's debug server?

The pages are made for people.  Up to torch 2.13 at least, what the ranks
answered stands in them as it is, with all its ``<``; if it was escaped as HTML
demands, that is undone.
"""

from __future__ import annotations

import html
import re

import attrs

from ..._text import clean
from .fetch import LATE, Place, parse_place


__all__ = ["Section", "read_addresses", "read_page"]

_HEADING = re.compile(
    r"<h[1-6]>\s{0,9}Rank (?P<rank>[0-9]{1,7}): (?P<url>[^<\n]{1,400})</h[1-6]>"
)
_URL = re.compile(r"http://(?P<place>[^/\s]{1,300})")
_FAILED = re.compile(r"<p>Failed to fetch: status=(?P<status>[0-9]{1,4})</p>")
_BEGIN, _END = "<pre>", "</pre>"
_STORED = re.compile(
    r"^[ \t]{0,40}debug_server/rank(?P<rank>[0-9]{1,7}): "
    r"b(?:'|\"|&#39;|&#x27;)http://(?P<place>[^\s'\"&<>]{1,300})"
    r"(?:'|\"|&#39;|&#x27;)[ \t]{0,40}$",
    re.MULTILINE,
)
# No job has more, and each is worth a line about what is missing.
_MOST_RANKS = 1 << 17
# What the server itself says of a worker that it did not reach.
_REASONS = {"408": LATE, "503": "no connection"}


@attrs.frozen(kw_only=True)
class Section:
    """
    What a page shows of one rank.

    Attributes:
        place: Where its worker listens; ``None`` if it cannot be told.

        text: What it answered, or ``""``.

        reason: Why there is no answer, or ``""``.

        is_silent: Whether the server could not reach the rank, or in vain
            waited for it.
    """

    place: Place | None
    text: str = ""
    reason: str = ""
    is_silent: bool = False


def read_page(page: str) -> dict[int, Section]:
    """
    What did each rank answer?

    Args:
        page: A page of the debug server with a heading for each rank.

    Returns:
        What stands below the heading of each rank; nothing if it is another
        page.
    """
    headings = list(_HEADING.finditer(page))
    bounds = [*(match.start() for match in headings), len(page)]
    return {
        int(match["rank"]): _section(match["url"], page[match.end() : end])
        for match, end in zip(headings, bounds[1:], strict=True)
        if int(match["rank"]) < _MOST_RANKS
    }


def read_addresses(page: str) -> dict[int, Place]:
    """
    Where do the workers of the debug server listen?

    Args:
        page: Its page of the keys in the store.  Long values are cut off
            there; those are left out.

    Returns:
        The places by rank.
    """
    places = (
        (int(match["rank"]), _place(match["place"]))
        for match in _STORED.finditer(page)
    )
    return {rank: at for rank, at in places if at and rank < _MOST_RANKS}


def _section(url: str, body: str) -> Section:
    match = _URL.match(html.unescape(url))
    place = _place(match["place"]) if match else None
    begin, end = body.find(_BEGIN), body.rfind(_END)
    if not 0 <= begin < end:
        return Section(place=place, reason="the page ends before its answer")

    text = body[begin + len(_BEGIN) : end]
    if "&" in text and not ("<" in text or '"' in text):
        text = html.unescape(text)
    if failed := _FAILED.search(body, 0, begin):
        known = _REASONS.get(failed["status"])
        said = f"status {failed['status']}: {clean(text, limit=80)}"
        return Section(
            place=place, reason=known or said, is_silent=known is not None
        )

    return Section(place=place, text=text)


def _place(address: str) -> Place | None:
    try:
        return parse_place(address)
    except ValueError:
        return None
