"""
What does NCCL say in this line?

``host:pid:tid [device] NCCL INFO …`` as ``NCCL_DEBUG=INFO`` prints it, or
``… file.cc:NN NCCL WARN …``; RCCL prints the same.
"""

from __future__ import annotations

import re

from collections.abc import Iterator
from typing import Any

from ..._text import clean
from .model import LogRecord, NcclCall, NcclInit, NcclNote
from .speaker import Speaker
from .words import op_name, spaced


__all__ = ["read_nccl"]

_WHO = re.compile(
    r"(?P<host>[\w.-]{1,200}):(?P<pid>\d{1,10}):\d{1,10} \[\d{1,4}\]"
    r"[^\n]{0,80}?\b(?:NCCL|RCCL) (?P<level>INFO|WARN|VERSION)\b:?\s{0,4}"
)
_INIT = re.compile(
    spaced(
        r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) n[rR]anks"
        r" (?P<size>\d{1,7})[^\n]{0,300}? - Init (?P<stage>START|COMPLETE)"
    )
)
_COMM_ID = re.compile(r"commId (0x[0-9a-f]{1,16})")
_CALL = re.compile(
    r"(?P<op>[A-Z]\w{1,30}): opCount (?P<number>[0-9a-f]{1,16}) "
    r"[^\n]{0,120}?count (?P<count>\d{1,19}) datatype (?P<dtype>\d{1,3})"
    r"[^\n]{0,60}?comm (?P<comm>0x[0-9a-f]{1,16})"
    r"(?: \[nranks=(?P<size>\d{1,7})\])?"
)
_INTERFACE = re.compile(
    r"(?:Bootstrap ?: Using|NET/Socket ?: Using)\s{0,4}"
    r"(?P<all>(?:\[\d{1,3}\])?[\w.@-]{1,64}:[0-9a-fA-F.:\[\]%]{2,60}<\d{1,5}>"
    r"[^\n]{0,400})"
)
_NETWORK = re.compile(r"Using network (?P<name>[^\n]{1,80})")
_VERSION = re.compile(
    r"(?:NCCL|RCCL) version ?:? ?(?P<version>\d[\w.+-]{1,60})"
)
_LOST = re.compile(
    spaced(r"NCCL error[^\n]{0,300}?remote process exited or there was a")
)


def read_nccl(speaker: Speaker, text: str) -> Iterator[LogRecord]:
    """
    Read what NCCL says.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Communicators that are set up, networks, versions, warnings, and calls.
    """
    who = _WHO.search(text)
    if version := _VERSION.search(text):
        yield NcclNote(
            **speaker.at(text, version.start()),
            **_process(who),
            kind="version",
            text=version["version"],
        )
    if lost := _LOST.search(text):
        yield NcclNote(
            **speaker.at(text, lost.start()),
            kind="lost",
            text=clean(lost[0][:300]),
        )
    if who is None:
        return

    said = text[who.end() :]
    if who["level"] == "WARN":
        yield NcclNote(
            **speaker.at(text, who.start()),
            **_process(who),
            kind="warning",
            text=clean(said[:600], limit=300),
        )
        return
    yield from _info(speaker, text, who, said)


def _info(
    speaker: Speaker, text: str, who: re.Match[str], said: str
) -> Iterator[LogRecord]:
    told = {**speaker.at(text, who.start()), **_process(who)}
    if found := _INIT.search(said):
        comm_id = _COMM_ID.search(said)
        yield NcclInit(
            **told,
            comm=found["comm"],
            comm_id=comm_id[1] if comm_id else "",
            member=int(found["rank"]),
            size=int(found["size"]),
            is_complete=found["stage"] == "COMPLETE",
        )
    elif found := _CALL.search(said):
        yield NcclCall(
            **told,
            comm=found["comm"],
            op=op_name(found["op"]),
            number=int(found["number"], 16),
            elements=int(found["count"]),
            dtype=found["dtype"],
            size=int(found["size"]) if found["size"] else None,
        )
    elif found := _INTERFACE.search(said):
        yield NcclNote(**told, kind="interface", text=clean(found["all"]))
    elif found := _NETWORK.search(said):
        yield NcclNote(**told, kind="network", text=clean(found["name"]))


def _process(who: re.Match[str] | None) -> dict[str, Any]:
    return {} if who is None else {"host": who["host"], "pid": int(who["pid"])}
