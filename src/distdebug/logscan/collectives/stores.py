"""
Who did not find whom, as the lines of torch's store say?

The words are those of ``TCPStore.cpp``, ``socket.cpp``, and of what calls
them, from torch 1.8 on.
"""

from __future__ import annotations

import re

from collections.abc import Callable, Iterator
from typing import Any

from ..._text import clean
from .model import StoreTimeout
from .speaker import Speaker
from .words import spaced


__all__ = ["read_stores"]

_Found = re.Match[str]
_CLIENTS = re.compile(
    spaced(
        r"Timed out after (?P<seconds>\d{1,9}) seconds waiting for clients\."
        r" (?P<joined>\d{1,7})/(?P<expected>\d{1,7}) clients joined"
    )
)
_NEVER = re.compile(
    spaced(
        r"Error: The client socket has failed to connect to any network address of"
        r" \((?P<host>[^,)\n]{1,250}), (?P<port>\d{1,5})\)"
    )
)
_OLD_CONNECT = re.compile(
    spaced(
        r"connect\(\) timed out\.(?: Original timeout was (?P<ms>\d{1,12}) ms)?"
    )
)
_LISTEN = re.compile(
    spaced(
        r"Error: The server socket has failed to listen on any local network"
    )
)
_CONNECT = re.compile(
    spaced(
        r"client socket has timed out after (?P<ms>\d{1,12}) ?(?P<unit>ms|s)?"
        r"[^\n(]{0,40}? to connect to \((?P<host>[^,)\n]{1,250}),"
        r" (?P<port>\d{1,5})\)"
    )
)
_LAST_TRY = re.compile(
    spaced(
        r"TCP client failed to connect/validate to host"
        r" (?P<address>[^\s]{1,250}) - timed out \(try=\d{1,9},"
        r" timeout=(?P<ms>\d{1,12}) ?ms\)"
    )
)
_BARRIER = re.compile(
    spaced(
        r"in store based barrier on rank: (?P<rank>\d{1,7}),? for key:"
        r" (?P<keys>[^\s(]{1,200}) \(world_size=(?P<expected>\d{1,7}),"
        r" (?:num_workers_joined|worker_count)=(?P<joined>\d{1,7})"
    )
)
_UNIQUE_ID = re.compile(
    spaced(
        r"\[(?:rank)?(?P<rank>\d{1,7})\] is setting up \w{1,8} communicator and"
        r" retrieving \w{1,10}UniqueId from \[(?P<first>\d{1,7})\]"
        r"[^\n]{0,200}?(?:got error: (?P<reason>[^\n]{1,300}))?$"
    )
)
_KEYS = re.compile(
    spaced(r"wait timeout after (?P<ms>\d{1,12}) ?ms(?:, keys: ")
    + r"(?P<keys>[^\s,]{1,300}))?"
)
_OLD_KEYS = re.compile(spaced(r"\b\w{3,30}Error: Socket Timeout\b"))
# A node that was not heard of in time may be heard of later.
_RENDEZVOUS = re.compile(r"(?<!of type )\bRendezvousTimeoutError\b")


def read_stores(speaker: Speaker, text: str) -> Iterator[StoreTimeout]:
    """
    Read what the store says, and those who use it.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Those that waited in vain.
    """
    kinds = set()
    for pattern, kind, told in _READERS:
        found = pattern.search(text)
        # The first that tells more goes before others of its kind.
        if found and kind not in kinds:
            kinds.add(kind)
            if kind == "keys" and "unique_id" in kinds:
                continue
            at = speaker.at(text, found.start())
            yield StoreTimeout(**at | told(found), kind=kind)  # type: ignore[arg-type]


def _clients(found: _Found) -> dict[str, Any]:
    return {
        "joined": int(found["joined"]),
        "expected": int(found["expected"]),
        "timeout": float(found["seconds"]),
    }


def _connect(found: _Found) -> dict[str, Any]:
    unit = 1.0 if found["unit"] == "s" else 1000.0
    return {"timeout": int(found["ms"]) / unit, **_never(found)}


def _never(found: _Found) -> dict[str, Any]:
    return {"address": clean(f"{found['host'].strip()}:{found['port']}")}


def _last_try(found: _Found) -> dict[str, Any]:
    return {**_waited(found), "address": clean(found["address"])}


def _waited(found: _Found) -> dict[str, Any]:
    return {"timeout": int(found["ms"]) / 1000 if found["ms"] else None}


def _barrier(found: _Found) -> dict[str, Any]:
    return {
        "group_rank": int(found["rank"]),
        "joined": int(found["joined"]),
        "expected": int(found["expected"]),
        "keys": clean(found["keys"]),
    }


def _unique_id(found: _Found) -> dict[str, Any]:
    return {
        "group_rank": int(found["rank"]),
        "reason": clean(found["reason"] or ""),
    }


def _keys(found: _Found) -> dict[str, Any]:
    return {**_waited(found), "keys": clean(found["keys"] or "")}


def _nothing(found: _Found) -> dict[str, Any]:
    return {"reason": clean(found[0][:300])}


_READERS: tuple[
    tuple[re.Pattern[str], str, Callable[[_Found], dict[str, Any]]], ...
] = (
    (_CLIENTS, "clients", _clients),
    (_CONNECT, "connect", _connect),
    (_LAST_TRY, "connect", _last_try),
    (_NEVER, "connect", _never),
    (_OLD_CONNECT, "connect", _waited),
    (_LISTEN, "listen", _nothing),
    (_BARRIER, "barrier", _barrier),
    (_RENDEZVOUS, "rendezvous", _nothing),
    (_UNIQUE_ID, "unique_id", _unique_id),
    (_KEYS, "keys", _keys),
    (_OLD_KEYS, "keys", _nothing),
)
