"""
What does Gloo say in this line?
"""

from __future__ import annotations

import re

from collections.abc import Iterator
from typing import Literal

from ..._text import clean
from .model import GlooError
from .speaker import Speaker
from .words import spaced


__all__ = ["read_gloo"]

_GLOO = re.compile(r"gloo/(?:\w{1,20}/){1,6}\w{1,40}\.(?:cc|h):\d{1,6}\]")
_FULL_MESH = re.compile(spaced(r"Gloo connectFullMesh failed"))
_WAITED = re.compile(
    spaced(r"Timed out waiting (?P<ms>\d{1,12}) ?ms for (?:send|recv)")
)
_KINDS: tuple[tuple[str, Literal["timeout", "closed", "connect"]], ...] = (
    ("timed out", "timeout"),
    ("timeout", "timeout"),
    ("closed by peer", "closed"),
    ("connection reset", "closed"),
    ("broken pipe", "closed"),
    ("connection refused", "connect"),
    ("no route", "connect"),
    ("connect", "connect"),
)
_PEER = re.compile(r"(\[[0-9a-fA-F:.%\w]{2,80}\](?::\d{1,5})?)")


def read_gloo(speaker: Speaker, text: str) -> Iterator[GlooError]:
    """
    Read what Gloo says.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Those that waited in vain, or lost somebody.
    """
    place = _GLOO.search(text) if "loo" in text else None
    if place is None and _FULL_MESH.search(text) is None:
        return
    start = place.start() if place else 0
    said = text[place.end() if place else 0 :][:600]
    lower = said.lower()
    kind = next((k for word, k in _KINDS if word in lower), None)
    waited, peer = _WAITED.search(said), _PEER.search(said)
    if place is None or "connectFullMesh" in text:
        kind = "connect"
    if kind is None and "enforce fail" not in text:
        return
    yield GlooError(
        **speaker.at(text, start),
        kind=kind or "other",
        timeout=int(waited["ms"]) / 1000 if waited else None,
        peer=clean(peer[1]) if peer else "",
    )
