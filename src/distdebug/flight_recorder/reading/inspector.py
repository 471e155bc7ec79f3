"""
Translate the files of NCCL Inspector to what torch's recorder writes.

NCCL Inspector is a profiler plugin that comes with NCCL since 2.28
(``inspector_json.cc`` in ``plugins/profiler/inspector``; before 2.30
``inspector.cc``, up to 2.29.3 in ``ext-profiler/inspector``).  Each process writes one file,
with a line of JSON per call that completed:

- ``header``: the communicator, and the rank in it; not the rank in the job.
- ``metadata``: host, process, and when the line was written.
- ``coll_perf``: a collective, numbered for each communicator *and function*
  from 0; or since 2.30 ``p2p_perf``: a send or receive.
- With ``NCCL_INSPECTOR_DUMP_VERBOSE=1``, when it was launched and when it ran.

The time of a call is that of its kernel, so it includes the wait for the
others.  Like `extract`, this runs in the child processes that decode dumps.
"""

from __future__ import annotations

import json
import re

from collections.abc import Iterator
from typing import Any, BinaryIO

from .extract import INVALID_ERRORS, Entry, check_number, check_text


#: A file grows as long as the job runs; this much of its end is read …
TAIL_BYTES = 8 << 20
# … and no more calls than a large ring of torch's recorder holds.
_MOST_CALLS = 4096
_HEAD = re.compile(
    rb'\s*\{\s*"header"\s*:\s*\{\s*"id"\s*:\s*"0x[^\n]{0,3000}?"n_ranks"\s*:'
)

# No rank leaves these before all have entered.  The root of a broadcast, or a
# leaf of a reduction, may leave at once: that its call is short says nothing.
_COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "AllGatherV": "all_gather_v",
    "ReduceScatter": "reduce_scatter",
    "All2All": "all_to_all",
}
_TRANSFERS = {"Send": ("send", "->"), "Recv": ("recv", "<-")}
_TRANSFER_GROUP = "transfers"
_NO_NAME = "unknown"
# Taken from the launch on, and so longer the further a host is ahead of its GPU.
_LAUNCH_TIMED = "collective_cpu"

# A record that a check of all records refuses, and counts.
_BROKEN: Entry = {}


def is_inspector(head: bytes) -> bool:
    """
    Return whether a file that begins so is one of NCCL Inspector.
    """
    return _HEAD.match(head) is not None


def read_inspector(file: BinaryIO, size: int) -> dict[str, Any]:
    """
    Read the newest calls of a file of NCCL Inspector.

    Args:
        file: The file, at any position.

        size: Its length in bytes.

    Returns:
        A dump; its ``inspector`` holds host and PID of the process, and its
        ranks as communicator, rank in it, and number of ranks.
    """
    start = max(size - TAIL_BYTES, 0)
    file.seek(start)
    lines = file.read(TAIL_BYTES).split(b"\n")
    # The first line may be cut off; the last one is yet to be written.
    lines = lines[1 if start else 0 : -1][-_MOST_CALLS:]
    process: dict[str, Any] = {"host": "", "pid": 0, "ranks": []}
    ranks: set[tuple[str, int, int]] = set()
    entries = [
        entry
        for line in lines
        if line.strip()
        for entry in _parse_line(line, process, ranks)
    ]
    _order(entries)
    process["ranks"] = sorted(ranks)
    return {"entries": entries, "inspector": process}


def _parse_line(
    line: bytes, process: dict[str, Any], ranks: set[tuple[str, int, int]]
) -> Iterator[Entry]:
    """
    Yield the call of a line, if it shows who was late.
    """
    try:
        record = json.loads(line)
        header, metadata = record["header"], record["metadata"]
        id_ = check_text(header["id"])
        rank, size = map(check_number, (header["rank"], header["n_ranks"]))
        own = id_, _check_rank(rank, size), size
        name = check_text(header.get("comm_name", _NO_NAME))
        process["host"] = check_text(metadata["hostname"])
        process["pid"] = check_number(metadata["pid"])
        written_us = check_number(metadata["dump_timestamp_us"], bits=52)
        call = _parse_call(record, own, id_ if name == _NO_NAME else name)
    except (*INVALID_ERRORS, RecursionError):
        yield _BROKEN
        return

    ranks.add(own)
    if call:
        # When it began at the latest, for calls without times of their own.
        took_us = int(call["duration_ms"] * 1000)
        call.setdefault("time_created_ns", (written_us - took_us) * 1000)
        yield call


def _check_rank(rank: int, size: int) -> int:
    if not 0 <= rank < size:
        msg = "a rank that its communicator cannot have"
        raise ValueError(msg)

    return rank


def _parse_call(
    record: dict[str, Any], own: tuple[str, int, int], name: str
) -> Entry | None:
    """
    Return the call of a record, or None if it is of no use here.
    """
    kind = "p2p" if "p2p_perf" in record else "coll"
    perf = record[f"{kind}_perf"]
    found = _operation(perf, kind, own[1])
    is_launch = perf.get(f"{kind}_timing_source") == _LAUNCH_TIMED
    if not found or is_launch:
        return None

    op, group = found
    is_p2p = group == _TRANSFER_GROUP
    # From 0; torch counts from 1.
    number = check_number(perf[f"{kind}_sn"], bits=52) + 1
    sizes = [[check_number(perf[f"{kind}_msg_size_bytes"])]]
    return {
        "process_group": (f"{own[0]} {group}", f"{group} of {name}"),
        "profiling_name": f"nccl:{op}",
        "collective_seq_id": 0 if is_p2p else number,
        "p2p_seq_id": number if is_p2p else 0,
        "op_id": number,
        "input_sizes": sizes,
        "input_dtypes": ["Byte"],
        "output_sizes": sizes,
        "output_dtypes": ["Byte"],
        "state": "completed",
        "retired": True,
        "is_p2p": is_p2p,
        "duration_ms": check_number(perf[f"{kind}_exec_time_us"], bits=52)
        / 1000,
        **_times(perf.get("event_trace_ts"), kind),
    }


def _operation(
    perf: dict[str, Any], kind: str, rank: int
) -> tuple[str, str] | None:
    """
    Return an operation as torch writes it, and what calls count together.
    """
    function = check_text(perf[kind])
    if function in _TRANSFERS:
        word, arrow = _TRANSFERS[function]
        peer = check_number(perf["p2p_peer"], bits=31)
        return f"{word} {rank}{arrow}{peer}", _TRANSFER_GROUP
    op = _COLLECTIVES.get(function)
    return (op, op) if op else None


def _times(trace: Any, kind: str) -> dict[str, int]:
    """
    Return when a call was launched, began, and ended, by the clock of its host.
    """
    if trace is None:
        return {
            "time_discovered_started_ns": 0,
            "time_discovered_completed_ns": 0,
        }

    launched = check_number(trace[f"{kind}_start_ts"], bits=52)
    channels = trace["kernel_events"]
    begun, ended = (
        [check_number(c[f"kernel_{x}_ts"], bits=52) for c in channels]
        for x in ("start", "stop")
    )
    return {
        "time_created_ns": launched * 1000,
        "time_discovered_started_ns": min(begun, default=0) * 1000,
        "time_discovered_completed_ns": max(ended, default=0) * 1000,
    }


def _order(entries: list[Entry]) -> None:
    """
    Sort the calls by time, and number them.

    Without times of their own, those that were written together follow each
    other: so their times add up to how long they took at least.
    """
    found = [entry for entry in entries if entry]
    if all(entry["time_discovered_started_ns"] for entry in found):
        entries.sort(key=lambda entry: entry.get("time_created_ns", 0))
    else:
        ended = 0
        for entry in found:
            ended = max(entry["time_created_ns"], ended)
            entry["time_created_ns"] = ended
            ended += int(entry["duration_ms"] * 1e6)
    # From 1, because nobody knows whether these are the first ones.
    for number, entry in enumerate(found, 1):
        entry["record_id"] = number
