"""
Translate dumps of recorder hooks to what torch's own recorders write.

Hooks record the calls of backends without a recorder of their own: torch's
``FlightRecorderHook`` since torch 2.14, and that of torchcomms.  They write the
fields of torch's recorder (``FlightRecorder.hpp`` in either project), but:

- Without a completion hook, a record is retired once its call is *issued*.
- torch counts operations in ``pg_status``, where others count collectives.
- torch 2.14 also records what Gloo records itself, just before it.
- torchcomms has one counter for all groups, from 0, and counts transfers, too;
  it describes each group by its backend.

Like `extract`, this runs in the child processes that decode dumps.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count, takewhile
from typing import Any

from .extract import INVALID_ERRORS, ISSUED, Entry


# Backends with a recorder: ``recordsFlightRecorderNatively`` in torch.
_NATIVE = frozenset({"", "gloo", "nccl", "xccl"})
_TRANSFERS = frozenset({"send", "recv", "batch_op_issue"})
_OVER = ("started", "completed")


def translate_hooks(
    header: dict[str, Any], entries: list[Any]
) -> tuple[dict[str, Any], list[Any]]:
    """
    Translate the records of a hook, if there are any.

    Args:
        header: As `extract.read_header` returns it.

        entries: Its records, unchecked.

    Returns:
        Both, without counters that count something else.  Records of other
        recorders, and damaged ones, are left as they are.
    """
    try:
        if is_torchcomms := bool(entries) and _is_torchcomms(entries[0]):
            # Without the number of one, those of calls after it are unknown.
            whole = [*takewhile(_is_whole, entries)]
            is_torchcomms = all(map(_is_torchcomms, whole))
            if is_torchcomms and len(whole) < len(entries):
                header = {**header, "damage": "the next one is damaged"}
                entries = whole
        hooked = {_backend(name) for name in _names(entries)} - _NATIVE
        if not entries or not (hooked or is_torchcomms):
            return header, entries

        entries = sorted(entries, key=lambda entry: int(entry["record_id"]))
        if is_torchcomms:
            configs = [
                (name, "", ranks) for name, _, ranks in header["configs"]
            ]
            numbered = list(map(_issued, _number_by_group(entries)))
            return {**header, "configs": configs}, numbered

        counted = {
            e.get("pg_id")
            for e in entries
            if _backend(e["profiling_name"]) in hooked
        }
        status = {
            k: v for k, v in header["status"].items() if k not in counted
        }
        return {**header, "status": status}, _translate(entries, hooked)
    except INVALID_ERRORS:
        return header, entries


def _names(entries: list[Any]) -> set[str]:
    return {entry["profiling_name"] for entry in entries}


def _is_whole(entry: Any) -> bool:
    try:
        _is_torchcomms(entry)
        return isinstance(entry["collective_seq_id"] + entry["record_id"], int)
    except INVALID_ERRORS:
        return False


def _backend(name: str) -> str:
    return name.partition(":")[0] if ":" in name else ""


def _is_torchcomms(entry: Entry) -> bool:
    """
    Return whether its group is described by the backend, as only there.
    """
    _, description = entry["process_group"]
    backend, _, name = entry["profiling_name"].partition(":")
    is_plain = entry["p2p_seq_id"] == 0 and not entry["is_p2p"]
    return is_plain and bool(name) and description == backend


def _number_by_group(entries: list[Entry]) -> list[Entry]:
    """
    Count the collectives of each group from 1.

    Once the first ones are overwritten, the common counter is all there is: it
    matches between ranks if all make the same calls.
    """
    is_whole = entries[0]["record_id"] == 0
    counters: dict[Any, Any] = defaultdict(lambda: count(1))
    numbered = []
    for entry in entries:
        is_p2p = entry["profiling_name"].partition(":")[2] in _TRANSFERS
        seq = entry["collective_seq_id"] + 1
        if is_whole:
            seq = next(counters[entry["process_group"][0], is_p2p])
        key = "p2p_seq_id" if is_p2p else "collective_seq_id"
        name, _ = entry["process_group"]
        known = {"process_group": (name, ""), "is_p2p": is_p2p, key: seq}
        numbered.append({**entry, **known})
    return numbered


def _translate(entries: list[Entry], hooked: set[str]) -> list[Entry]:
    """
    Join the records of Gloo with those that a hook wrote just before them.
    """
    # A backend that reports starts or ends retires calls when they end.
    reporting = {
        _backend(e["profiling_name"]) for e in entries if e["state"] in _OVER
    }
    joined: list[Entry] = []
    for entry in entries:
        backend = _backend(entry["profiling_name"])
        if joined and _is_echo(joined[-1], entry, hooked):
            # The hook counts the calls of all backends of the group.
            seq = joined.pop()["collective_seq_id"]
            joined.append({**entry, "collective_seq_id": seq})
        elif backend in hooked and backend not in reporting:
            joined.append(_issued(entry))
        else:
            joined.append(entry)
    if len(joined) == len(entries):
        return joined

    numbers = count(joined[0]["record_id"])
    return [{**entry, "record_id": next(numbers)} for entry in joined]


def _is_echo(entry: Entry, after: Entry, hooked: set[str]) -> bool:
    return (
        _backend(entry["profiling_name"]) in hooked
        and _backend(after["profiling_name"]) not in hooked
        and entry["process_group"] == after["process_group"]
    )


def _issued(entry: Entry) -> Entry:
    """
    Mark a record that was retired when its call was issued.

    Its duration, if any, is that of issuing it.
    """
    if entry["retired"] and entry["state"] != "completed":
        return {**entry, "state": ISSUED, "duration_ms": None}
    return entry
