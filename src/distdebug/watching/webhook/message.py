"""
Which words does this service understand?

Some services refuse a message for a single key that they do not know, so each
gets what it knows and nothing else.  Everybody else gets all of our data, and a
``text``, which is what Mattermost, Rocket.Chat, and most others look for.
"""

from __future__ import annotations

import json
import re

from collections.abc import Callable, Mapping
from typing import Any

from .address import Address


__all__ = ["message_for"]

# Services cut longer texts, or refuse them.
_MOST_TEXT = 1800
_MOST_BYTES = 1 << 18
# What wakes up everybody: it may stand in the name of a file.
_CALLS = re.compile(
    r"@(?=all\b|channel\b|everyone\b|here\b)|<(?=[!@#]|users/)"
)
_ZERO_WIDTH_SPACE = "\u200b"


def message_for(address: Address, text: str, data: Mapping[str, Any]) -> bytes:
    """
    Write a message in the words of the service that gets it.

    Args:
        address: Where it goes; the service is known by the name of the host.

        text: What people shall read.

        data: What programs may want to know.  Only services that no key can
            upset get it, and never more of it than 256 KiB: then ``diagnosis``
            is left out.

    Returns:
        JSON.
    """
    quiet = _CALLS.sub(lambda x: x[0] + _ZERO_WIDTH_SPACE, text[:_MOST_TEXT])
    words = _words_of(address)
    if words is not None:
        return _json(words(quiet))

    message = {**data, "text": quiet}
    body = _json(message)
    if len(body) > _MOST_BYTES:
        message.pop("diagnosis", None)
        body = _json(message)
    return body


def _json(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode()


def _text(text: str) -> dict[str, Any]:
    return {"text": text}


def _slack(text: str) -> dict[str, Any]:
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(char, entity)
    return {"text": text}


def _discord(text: str) -> dict[str, Any]:
    return {"content": text, "allowed_mentions": {"parse": []}}


def _teams(text: str) -> dict[str, Any]:
    block = {"type": "TextBlock", "text": text, "wrap": True}
    card = {"type": "AdaptiveCard", "version": "1.2", "body": [block]}
    kind = "application/vnd.microsoft.card.adaptive"
    return {
        "type": "message",
        "attachments": [{"contentType": kind, "content": card}],
    }


_WORDS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "slack.com": _slack,
    "slack-gov.com": _slack,
    "chat.googleapis.com": _text,
    "discord.com": _discord,
    "discordapp.com": _discord,
    "webhook.office.com": _text,
    # Workflows, which took the place of the connectors of Teams.
    "logic.azure.com": _teams,
    "powerautomate.com": _teams,
    "powerplatform.com": _teams,
}


def _words_of(address: Address) -> Callable[[str], dict[str, Any]] | None:
    for name, words in _WORDS.items():
        if f".{address.host}".endswith(f".{name}"):
            # Discord speaks the language of others at addresses of their own.
            is_slack = words is _discord and address.path.endswith("/slack")
            return _slack if is_slack else words
    return None
