"""
Who lags behind, as torch itself finds out with ``TORCH_NCCL_DESYNC_DEBUG=1``?

The words are those of ``TraceUtils.h``.
"""

from __future__ import annotations

import re

from collections.abc import Iterator

from .model import DesyncReport
from .speaker import Speaker
from .words import spaced


__all__ = ["read_desync"]

_RANKS = r"\[(?P<members>[\d,\s]{1,200000})\]"
_JOINED = re.compile(
    spaced(_RANKS + r" joined but didn't finish collective #(?P<seq>\d{1,19})")
)
_FINISHED = re.compile(
    spaced(
        _RANKS + r" finished collective #(?P<seq>\d{1,19}),"
        r" but didn't join collective"
    )
)
_ABSENT = re.compile(
    spaced(
        r"ranks " + _RANKS + r" are the lagging ranks[^\n]{0,80}?"
        r"(?:They)? never joined any collectives"
    )
)


def read_desync(speaker: Speaker, text: str) -> Iterator[DesyncReport]:
    """
    Read the report of torch.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Ranks that came as far as each other.
    """
    if "collective" not in text or "join" not in text:
        return
    for kind, pattern in (
        ("joined", _JOINED),
        ("finished", _FINISHED),
        ("absent", _ABSENT),
    ):
        for found in pattern.finditer(text):
            members = {
                int(x) for x in found["members"].split(",") if x.strip()
            }
            seq = found.groupdict().get("seq")
            yield DesyncReport(
                **speaker.at(text, found.start()),
                kind=kind,  # type: ignore[arg-type]
                members=tuple(sorted(members)),
                seq=int(seq) if seq else None,
            )
