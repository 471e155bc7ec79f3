"""
What does torch's Flight Recorder hold right now?

torch is never imported: where it is not loaded there is nothing to dump.

This module is imported inside training jobs: it needs nothing but the standard
library.
"""

from __future__ import annotations

import json
import os
import sys
import time

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ...errors import NotRecordingError
from .symbolizer import without_inductor
from .variables import VARIABLES, lookup, parse_version


__all__ = ["Progress", "is_in_flight", "read_progress", "read_trace"]

Progress = tuple[tuple[str, object, object, object], ...]

_BUFFER_SIZE = next(v for v in VARIABLES if v.key == "buffer_size")

# First torch that records where nobody asked for it.
_ON_BY_DEFAULT = (2, 11)

_PAUSE_S = 0.01

# Neither calls nor only those in flight.
_STATUS_ONLY = (False, False)
_BEGUN, _DONE = "last_enqueued_collective", "last_completed_collective"
_STARTED = "last_started_collective"

_REMEDY = "call enable_flight_recorder() before init_process_group()"


def read_trace(*, stacks: bool, only_active: bool = False) -> bytes:
    """
    Dump the recorder that has seen calls: NCCL's, or everybody else's.

    Args:
        stacks: Whether to name the line of every call.  That needs the
            interpreter; without, it is quick and safe.

        only_active: Whether to leave out calls that are finished.

    Returns:
        A dump, as torch writes it to files.

    Raises:
        NotRecordingError: There is no recorder, or it is off.
    """
    torch = sys.modules.get("torch")
    dumpers = _dumpers(torch)
    if torch is None or not dumpers:
        msg = "this process has no Flight Recorder"
        raise NotRecordingError(
            msg,
            remedy="load a torch that has one: 2.5 or later for NCCL, "
            "2.8 or later for the other backends",
        )

    with without_inductor(torch):
        for dump in dumpers:
            data = dump(*(True, stacks, only_active))
            if b"record_id" in data:
                return data

    if _is_off(torch):
        msg = "the Flight Recorder of this process is off"
        raise NotRecordingError(msg, remedy=_REMEDY)
    return data


def is_in_flight(patience_s: float = 0.5) -> bool:
    """
    Is this process in the middle of a collective call?

    Args:
        patience_s: For how long a call must be unfinished, in seconds: torch
            notes the end of one some time after it.

    Returns:
        Whether some process group has begun what it has not completed.
        ``False`` where that cannot be told.
    """
    deadline = time.monotonic() + patience_s
    while _has_unfinished():
        if time.monotonic() >= deadline:
            return True
        time.sleep(_PAUSE_S)
    return False


def read_progress() -> Progress | None:
    """
    How far has this process got with its collective calls?

    It costs some microseconds, and neither reads calls nor waits for any.

    Returns:
        For each process group its name, and the numbers of the last call that
        was begun, started, and completed; ``None`` if nothing was recorded.
    """
    found = tuple(
        (name, group.get(_BEGUN), group.get(_STARTED), group.get(_DONE))
        for status in _statuses()
        for name, group in status.items()
    )
    return found or None


def _has_unfinished() -> bool:
    for status in _statuses():
        with suppress(KeyError, TypeError, ValueError):
            if any(int(g[_BEGUN]) > int(g[_DONE]) for g in status.values()):
                return True
    return False


def _statuses() -> Iterator[dict[str, Any]]:
    c10d = _c10d(sys.modules.get("torch"))
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        try:
            status = json.loads(getattr(c10d, name)(*_STATUS_ONLY))
            yield {k: dict(v) for k, v in status["pg_status"].items()}
        except Exception:  # noqa: BLE001, S112 another torch, or none
            continue


def _c10d(torch: Any) -> Any:
    try:
        return torch._C._distributed_c10d  # noqa: SLF001 no public door
    except AttributeError:
        return None


def _dumpers(torch: Any) -> list[Callable[[bool, bool, bool], bytes]]:
    found = (
        getattr(_c10d(torch), name, None)
        for name in ("_dump_nccl_trace", "_dump_fr_trace")
    )
    return [dump for dump in found if dump is not None]


def _is_off(torch: Any) -> bool:
    found = lookup(_BUFFER_SIZE, os.environ)
    if found is not None:
        return not found[1].strip().lstrip("+0")

    version = parse_version(getattr(torch, "__version__", None))
    return version is not None and version < _ON_BY_DEFAULT
