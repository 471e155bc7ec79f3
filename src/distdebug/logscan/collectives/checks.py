"""
What do torch's own checks say in this line: the wrapper that compares calls
before they are made, and the barrier that knows who did not come?

The first prints with ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` in the words of
``ProcessGroupWrapper.cpp``, the second in those of ``ProcessGroupGloo.cpp``.
"""

from __future__ import annotations

import re

from collections.abc import Iterator

from .model import (
    BarrierFailure,
    FingerPrint,
    FingerPrintMismatch,
    LogRecord,
)
from .speaker import Speaker
from .words import op_name, spaced


__all__ = ["read_checks"]

# Calls without tensors are printed without a comma, too.
_PRINT = (
    r"Rank (?P<rank{n}>\d{{1,7}}) is running collective:"
    r" CollectiveFingerPrint\((?: SequenceNumber=(?P<seq{n}>\d{{1,19}}),?)?"
    r" OpType=(?P<op{n}>\w{{1,40}}?)"
    r"(?:, TensorShape=(?P<shape{n}>\[[\d, ]{{0,400}}\]))?"
    r"(?:, TensorDtypes=(?P<dtype{n}>[\w ,]{{1,200}}?))?"
    r"(?:,? TensorDeviceTypes=|\))"
)
_MISMATCH = re.compile(
    spaced(_PRINT.format(n=1) + r"[^\n]{0,1200}?but " + _PRINT.format(n=2))
    .replace(r"[\d,\s{0,9}]", r"[\d,\s]")
    .replace(r"[\w\s{0,9},]", r"[\w\s,]")
)
_ABSENT = re.compile(
    spaced(
        r"Ranks? (?P<ranks>\d[\d,\s]{0,100000}?) failed to pass "
        r"monitoredBarrier in (?P<ms>\d{1,12}) ms"
    )
)
_REACHED = re.compile(
    spaced(r"Rank (?P<rank>\d{1,7}) successfully reached monitoredBarrier")
)
_LATE = re.compile(
    spaced(
        r"Rank (?P<ranks>\d{1,7}) timed out in monitoredBarrier after "
        r"(?P<ms>\d{1,12}) ms"
    )
)


def read_checks(speaker: Speaker, text: str) -> Iterator[LogRecord]:
    """
    Read what torch found out by itself.

    Args:
        speaker: Whose line it is.

        text: The line.

    Yields:
        Calls that differ, and barriers that failed.
    """
    if "FingerPrint" in text:
        for found in _MISMATCH.finditer(text):
            own = _print_of(found, 1)
            told = speaker.at(text, found.start()) | {"group_rank": own.rank}
            yield FingerPrintMismatch(
                **told, own=own, other=_print_of(found, 2)
            )
    if "onitored" not in text:
        return
    for pattern in (_ABSENT, _LATE):
        for found in pattern.finditer(text):
            ranks = {int(x) for x in found["ranks"].split(",") if x.strip()}
            yield BarrierFailure(
                **speaker.at(text, found.start()),
                absent=tuple(sorted(ranks)),
                timeout=int(found["ms"]) / 1000,
            )
    for found in _REACHED.finditer(text):
        told = speaker.at(text, found.start())
        yield BarrierFailure(**told | {"group_rank": int(found["rank"])})


def _print_of(found: re.Match[str], n: int) -> FingerPrint:
    shape, dtype = found[f"shape{n}"], found[f"dtype{n}"]
    return FingerPrint(
        rank=int(found[f"rank{n}"]),
        op=op_name(found[f"op{n}"]),
        seq=int(found[f"seq{n}"] or 0),
        shape=None if shape is None else re.sub(r"\s", "", shape),
        dtype=None if dtype is None else dtype.strip(),
        is_own=n == 1,
    )
