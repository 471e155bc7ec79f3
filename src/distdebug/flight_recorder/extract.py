"""
How do the records of one dump become columns?

This module runs in the child processes that decode dumps: it needs nothing
but the standard library, and takes nothing for granted about its input.  It
goes by the keys that are there, never by the version of the format.

Good files are turned over by C code, column by column.  What few different
values there are (operations, groups, shapes) is checked once per value.  Only
if something does not fit, each record is tried on its own.
"""

from __future__ import annotations

import marshal
import re
import sys

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from math import nan
from operator import itemgetter, lt
from typing import Any


__all__ = [
    "COLUMNS",
    "KEYS",
    "STATES",
    "NotADumpError",
    "describe",
    "frames_of",
    "tabulate",
]

Entry = dict[str, Any]

STATES = ("scheduled", "started", "completed")

# What stands in a dump of some version, and in hardly any other file.
KEYS = (
    "comm_lib_version",
    "entries",
    "nccl_comm_state",
    "nccl_version",
    "pg_config",
    "pg_status",
    "profiling_name",
    "record_id",
    "seq_id",
)

# The columns of an answer in their order, with their type codes.
COLUMNS = {
    "kind": "i",
    "shape": "i",
    "record_id": "q",
    "seq": "q",
    "p2p_seq": "q",
    "op_id": "q",
    "created_ns": "q",
    "started_ns": "q",
    "completed_ns": "q",
    "duration_ms": "d",
}

# Stands in for a key that a version of the format does not have.
_DEFAULTS: Mapping[str, Any] = {
    "record_id": None,
    "pg_id": 0,
    "process_group": None,
    "p2p_seq_id": None,
    "op_id": 0,
    "time_created_ns": 0,
    "input_sizes": (),
    "input_dtypes": (),
    "output_sizes": (),
    "output_dtypes": (),
    "state": "scheduled",
    "time_discovered_started_ns": 0,
    "time_discovered_completed_ns": 0,
    "retired": False,
    "timeout_ms": 0,
    "is_p2p": None,
}

_WRONG = (AttributeError, KeyError, OverflowError, TypeError, ValueError)

_P2P = re.compile(r"(?:^|:)(?:send|recv)\b")

_TEXT_LIMIT = 1000

_NO_TABLES: Mapping[str, Any] = {"is_numbered": True, "kinds": [], "shapes": []}


class NotADumpError(Exception):
    """
    The file holds something else.
    """


def describe(value: Any) -> tuple[dict[str, Any], list[Any]]:
    """
    What does a dump say about itself, and which records does it hold?

    Args:
        value: What the file holds: a dictionary, or (up to torch 2.2) the
            bare list of records.

    Returns:
        Version, configurations and counters of the process groups, fit for
        JSON; and the records, unchecked.

    Raises:
        NotADumpError: *value* is something else.
    """
    if isinstance(value, list):
        value = {"entries": value}
        if not any(isinstance(e, dict) for e in value["entries"]):
            msg = "it holds a list, but not of records"
            raise NotADumpError(msg)

    if not isinstance(value, dict) or not (
        {"entries", "pg_config", "pg_status"} & value.keys()
    ):
        msg = "it does not hold what the Flight Recorder writes"
        raise NotADumpError(msg)

    entries = value.get("entries") or []
    if not isinstance(entries, list):
        msg = "its entries are not a list"
        raise NotADumpError(msg)

    version = value.get("version")
    library = value.get("comm_lib_version") or value.get("nccl_version")
    header = {
        "version": version[:20] if isinstance(version, str) else "",
        "comm_lib_version": library[:20] if isinstance(library, str) else "",
        "configs": list(_configs(value.get("pg_config"))),
        "status": dict(_status(value.get("pg_status"))),
    }
    return header, entries


def tabulate(
    entries: list[Any], *, strict: bool = False
) -> tuple[dict[str, Any], list[bytes], list[Entry]]:
    """
    Turn records into columns.

    Args:
        entries: What should be records.

        strict: Look into every value before it is copied, because no limit
            guards the memory of this process.

    Returns:
        The tables that *kind* and *shape* refer to, fit for JSON; the columns
        named in `COLUMNS`, little-endian; and the records that were kept,
        oldest first.
    """
    if not entries:
        return dict(_NO_TABLES), [b""] * len(COLUMNS), []

    try:
        kept = _oldest_first(entries)
        return *_columns(kept, strict=strict), kept
    except _WRONG:
        filled = [_filled(e) for e in entries if isinstance(e, dict)]
        kept = [entry for entry in filled if _is_sound(entry, strict=strict)]

    if not kept:
        return tabulate([])

    kept = _oldest_first(kept)
    return *_columns(kept, strict=strict), kept


def frames_of(entry: Entry) -> list[tuple[str, str, int]]:
    """
    Which lines of code did a record come from, innermost first?
    """
    frames = entry.get("frames")
    return [
        (f["name"][:_TEXT_LIMIT], f["filename"][:_TEXT_LIMIT], f["line"])
        for f in (frames if isinstance(frames, list) else ())
        if isinstance(f, dict)
        and isinstance(f.get("name"), str)
        and isinstance(f.get("filename"), str)
        and isinstance(f.get("line"), int)
    ]


def _filled(entry: Entry) -> Entry:
    """
    A record with all keys, so that it can be read together with any other.
    """
    filled = {**_DEFAULTS, **entry}
    if isinstance(filled["process_group"], list):
        filled["process_group"] = tuple(filled["process_group"])
    if "collective_seq_id" not in filled and "seq_id" in filled:
        filled["collective_seq_id"] = filled["seq_id"]
    return filled


def _is_sound(entry: Entry, *, strict: bool) -> bool:
    try:
        _columns([entry], strict=strict)
    except _WRONG:
        return False

    return True


def _oldest_first(entries: list[Entry]) -> list[Entry]:
    if "record_id" not in entries[0]:
        return entries

    ids = list(map(itemgetter("record_id"), entries))
    if None in ids or not any(map(lt, ids[1:], ids)):
        return entries

    return sorted(entries, key=itemgetter("record_id"))


def _columns(
    entries: list[Entry], *, strict: bool
) -> tuple[dict[str, Any], list[bytes]]:
    """
    The fast path; raises one of `_WRONG` if any record does not fit.
    """
    first = entries[0]

    def get(key: str) -> Iterator[Any]:
        if key in first:
            return map(itemgetter(key), entries)

        return repeat(_DEFAULTS[key], len(entries))

    seq = "collective_seq_id" if "collective_seq_id" in first else "seq_id"
    kinds, kind = _interned(_raw_kinds(get))
    shapes, shape = _interned(_raw_shapes(get, strict=strict))
    tables: dict[str, Any] = {
        "is_numbered": first.get("record_id") is not None,
        "kinds": [_kind(*raw) for raw in kinds],
        "shapes": [_shape(marshal.loads(raw)) for raw in shapes],  # noqa: S302
    }
    seqs = list(map(itemgetter(seq), entries))
    ids = list(get("record_id"))
    numbers = [
        range(len(ids)) if None in ids else ids,
        seqs,
        _p2p_seqs(list(get("p2p_seq_id")), seqs, kind, tables["kinds"]),
        list(get("op_id")),
        _or_zero(get("time_created_ns")),
        _or_zero(get("time_discovered_started_ns")),
        _or_zero(get("time_discovered_completed_ns")),
    ]
    columns = [
        array("i", kind),
        array("i", shape),
        *(array("q", column) for column in numbers),
        _durations(entries),
    ]
    return tables, [_little_endian(column) for column in columns]


def _interned(raw: Iterable[Any]) -> tuple[dict[Any, int], list[int]]:
    """
    Number the different values by their first appearance.
    """
    values = list(raw)
    codes = dict.fromkeys(values, 0)
    for code, value in enumerate(codes):
        codes[value] = code

    return codes, list(map(codes.__getitem__, values))


def _raw_kinds(get: Callable[[str], Iterator[Any]]) -> Iterator[Any]:
    groups = list(get("process_group"))
    if isinstance(groups[0], list):
        # JSON has no tuples, and lists cannot be keys.
        groups = list(map(tuple, groups))

    return zip(
        groups,
        get("pg_id"),
        get("profiling_name"),
        get("state"),
        get("retired"),
        get("is_p2p"),
        get("timeout_ms"),
        strict=True,
    )


def _kind(  # noqa: PLR0913, PLR0917
    group: Any,
    pg_id: Any,
    op: Any,
    state: Any,
    retired: Any,
    is_p2p: Any,
    timeout_ms: Any,
) -> tuple[str, str, int, str, int, bool, bool, int]:
    if group is None:
        # Early formats know groups by their number only.
        group = (str(pg_id), "")
    name, desc = group
    if is_p2p is None:
        is_p2p = _P2P.search(op) is not None

    return (
        _text(name),
        _text(desc),
        _number(pg_id, bits=31),
        _text(op),
        STATES.index(state) if state in STATES else 0,
        bool(retired),
        bool(is_p2p),
        _number(timeout_ms or 0),
    )


def _raw_shapes(
    get: Callable[[str], Iterator[Any]], *, strict: bool
) -> Iterator[bytes]:
    """
    Make shapes, which are lists of lists, fit to be keys.

    The version of `marshal` matters: later ones refer to objects seen before,
    so that equal shapes differ.
    """
    shapes = zip(
        get("input_sizes"),
        get("input_dtypes"),
        get("output_sizes"),
        get("output_dtypes"),
        strict=True,
    )
    if strict:
        shapes = map(_shape, shapes)  # type: ignore[assignment]
    return map(marshal.dumps, shapes, repeat(2))


def _shape(raw: Any) -> tuple[Any, ...]:
    sizes_in, dtypes_in, sizes_out, dtypes_out = raw
    return (
        [
            [_number(n) for n in _sequence(size)]
            for size in _sequence(sizes_in)
        ],
        [_text(dtype) for dtype in _sequence(dtypes_in)],
        [
            [_number(n) for n in _sequence(size)]
            for size in _sequence(sizes_out)
        ],
        [_text(dtype) for dtype in _sequence(dtypes_out)],
    )


def _p2p_seqs(
    found: list[Any], seqs: list[int], kind: list[int], kinds: list[Any]
) -> list[int]:
    """
    Early formats have one counter for both sorts of operations.
    """
    if None not in found:
        return found

    return [
        p2p if p2p is not None else seq if kinds[code][6] else 0
        for p2p, seq, code in zip(found, seqs, kind, strict=True)
    ]


def _durations(entries: list[Entry]) -> array[float]:
    """
    Only what was timed and completed has a duration.
    """
    found = list(map(dict.get, entries, repeat("duration_ms")))
    if not any(found):
        return array("d", [nan]) * len(found)

    return array("d", [nan if x is None else x for x in found])


def _configs(data: Any) -> Iterator[tuple[str, str, str]]:
    """
    Name, description, and ranks of each group, as ``"[0, 1]"``.
    """
    for key, config in data.items() if isinstance(data, dict) else ():
        if not isinstance(config, dict):
            continue

        ranks = config.get("ranks", "")
        try:
            if not isinstance(ranks, str):
                ranks = str([_number(rank, bits=31) for rank in ranks])
            yield (
                _text(config.get("name", key)),
                _text(config.get("desc", "")),
                ranks,
            )
        except _WRONG:
            continue


def _status(data: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """
    The counters of each group, by its number in the process.
    """
    for key, status in data.items() if isinstance(data, dict) else ():
        try:
            yield (
                _number(int(key), bits=31),
                tuple(
                    # JSON has them as strings.
                    _number(int(status[f"last_{what}_collective"]))
                    for what in ("enqueued", "started", "completed")
                ),
            )
        except _WRONG:
            continue


def _text(value: Any) -> str:
    if not isinstance(value, str):
        msg = "not a string"
        raise TypeError(msg)

    return value[:_TEXT_LIMIT]


def _number(value: Any, *, bits: int = 63) -> int:
    if not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits:
        msg = "not a number of this size"
        raise TypeError(msg)

    return value


def _sequence(value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        msg = "not a list"
        raise TypeError(msg)

    return value


def _or_zero(column: Iterable[Any]) -> list[int]:
    return [value or 0 for value in column]


def _little_endian(column: array[Any]) -> bytes:
    if sys.byteorder == "big":
        column.byteswap()

    return column.tobytes()
