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

import json
import marshal
import re
import struct

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from math import nan, prod
from operator import itemgetter
from typing import Any


# What a value of the wrong kind raises, sooner or later.
WRONG = (
    *(AttributeError, KeyError, OverflowError, TypeError, ValueError),
    struct.error,
)

# Longer names say nothing more.
TEXT_LIMIT = 1000


def text(value: Any) -> str:
    """
    A string, shortened if it is very long.
    """
    if not isinstance(value, str):
        msg = "not a string"
        raise TypeError(msg)

    return value[:TEXT_LIMIT]


def number(value: Any, *, bits: int = 63) -> int:
    """
    A whole number that fits into so many bits and a sign.
    """
    if not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits:
        msg = "not a number of this size"
        raise TypeError(msg)

    return value


def sequence(value: Any) -> list[Any] | tuple[Any, ...]:
    """
    A list or tuple, whatever is in it.
    """
    if not isinstance(value, list | tuple):
        msg = "not a list"
        raise TypeError(msg)

    return value


# More do not fit into 64 bits; who says so is hostile.
_MOST_ELEMENTS = 1 << 62

_NUMBERS = r"\[(?:-?\d{1,19}(?:,-?\d{1,19})*)?\]"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-f]{4}))*"'
_SIZES = rf"\[(?:{_NUMBERS}(?:,{_NUMBERS})*)?\]"
_DTYPES = rf"\[(?:{_STRING}(?:,{_STRING})*)?\]"

# Input sizes, input types, output sizes, and output types.
SHAPE_TEXT = re.compile(rf"\[{_SIZES},{_DTYPES},{_SIZES},{_DTYPES}\]")
# In what is longer, the name of a type may have to be cut.
_LONGEST = 1000

write_shape = json.JSONEncoder(separators=(",", ":")).encode


def describe_shapes(raws: Iterable[bytes]) -> dict[str, list[Any]]:
    """
    Write down some shapes.

    Args:
        raws: Each as a dump has it, by `marshal`.

    Returns:
        What is fit for JSON: *shapes*, the texts; *elements*, how many go in
        and how many come out of each; *types*, which of *dtypes* each has;
        and *dtypes*, the different types that go in and come out.
    """
    shapes, texts = [], []
    for raw in raws:
        shape = marshal.loads(raw)  # noqa: S302
        written = _written(shape)
        if len(written) > _LONGEST or not SHAPE_TEXT.fullmatch(written):
            shape = check_shape(shape)
            written = write_shape(shape)
        shapes.append(shape)
        texts.append(written)
    dtypes: dict[Any, int] = {}
    types = [
        dtypes.setdefault((tuple(given), tuple(got)), len(dtypes))
        for _, given, _, got in shapes
    ]
    return {
        "shapes": texts,
        "elements": [
            [count_elements(shape[0]) for shape in shapes],
            [count_elements(shape[2]) for shape in shapes],
        ],
        "types": types,
        "dtypes": list(dtypes),
    }


def count_elements(sizes: Iterable[Sequence[int]]) -> int:
    """
    How many elements do these tensors have together, if that can be?
    """
    count = sum(map(prod, sizes))
    return max(min(count, _MOST_ELEMENTS), -_MOST_ELEMENTS)


def _written(raw: Any) -> str:
    try:
        return write_shape(raw)
    except RecursionError:
        return ""


def check_shape(raw: Any) -> tuple[Any, ...]:
    """
    Look at every value of a shape, and cut long names.

    Args:
        raw: What a dump has.

    Raises:
        TypeError: It is something else.

        ValueError: It has more or fewer parts.
    """
    sizes_in, dtypes_in, sizes_out, dtypes_out = raw
    return (
        _sizes(sizes_in),
        [text(dtype) for dtype in sequence(dtypes_in)],
        _sizes(sizes_out),
        [text(dtype) for dtype in sequence(dtypes_out)],
    )


def _sizes(raw: Any) -> list[list[int]]:
    # Truths are numbers, too, but not in JSON.
    return [[int(number(n)) for n in sequence(size)] for size in sequence(raw)]


Entry = dict[str, Any]

STATES = ("scheduled", "started", "completed")

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

# What few values there are of, so that each is checked once; the arguments of
# `_kind`.
_KIND = (
    *("process_group", "pg_id", "profiling_name", "state"),
    *("retired", "is_p2p", "timeout_ms"),
)
_SHAPE = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
# What differs from record to record, beside its own number and that of the
# collective, which is called differently in early formats.
_EXTRACT_NUMBERS = (
    *("p2p_seq_id", "op_id", "time_created_ns"),
    *("time_discovered_started_ns", "time_discovered_completed_ns"),
)

_P2P = re.compile(r"(?:^|:)(?:send|recv)\b")

_NO_TABLES: Mapping[str, Any] = {
    "is_numbered": True,
    "kinds": [],
    **describe_shapes([]),
}


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
        return _in_order(entries, strict=strict)
    except WRONG:
        filled = [_filled(e) for e in entries if isinstance(e, dict)]
        kept = [entry for entry in filled if _is_sound(entry, strict=strict)]

    return _in_order(kept, strict=strict) if kept else tabulate([])


def frames_of(entry: Entry) -> list[tuple[str, str, int]]:
    """
    Which lines of code did a record come from, innermost first?
    """
    frames = entry.get("frames")
    return [
        (f["name"][:TEXT_LIMIT], f["filename"][:TEXT_LIMIT], f["line"])
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
    except WRONG:
        return False

    return True


def _in_order(
    entries: list[Entry], *, strict: bool
) -> tuple[dict[str, Any], list[bytes], list[Entry]]:
    tables, columns, ids = _columns(entries, strict=strict)
    if ids == sorted(ids):
        return tables, columns, entries

    entries = sorted(entries, key=itemgetter("record_id"))
    return *_columns(entries, strict=strict)[:2], entries


def _columns(
    entries: list[Entry], *, strict: bool
) -> tuple[dict[str, Any], list[bytes], list[int]]:
    """
    The fast path; raises one of `WRONG` if any record does not fit.
    """
    seq = "collective_seq_id"
    if seq not in entries[0]:
        seq = "seq_id"
    kinds, kind = _interned(_raw_kinds(entries))
    shapes, shape = _interned(_raw_shapes(entries, strict=strict))
    numbers = _fields(entries, "record_id", seq, *_EXTRACT_NUMBERS)
    ids, seqs, p2p_seqs, op_ids, *times = zip(*numbers, strict=True)
    tables: dict[str, Any] = {
        "is_numbered": None not in ids,
        "kinds": [_kind(*raw) for raw in kinds],
        **describe_shapes(shapes),
    }
    found = list(ids if tables["is_numbered"] else range(len(kind)))
    columns = [
        *(kind, shape, found, seqs),
        _p2p_seqs(p2p_seqs, seqs, kind, tables["kinds"]),
        op_ids,
        *map(_or_zero, times),
        _durations(entries),
    ]
    codes = COLUMNS.values()
    packed = [_packed(*pair) for pair in zip(codes, columns, strict=True)]
    return tables, packed, found


def _fields(entries: list[Entry], *keys: str) -> Iterator[tuple[Any, ...]]:
    """
    Some fields of each record, with what stands in for those that a version
    of the format does not have.
    """
    first = entries[0]
    if all(key in first for key in keys):
        # By far the fastest way through some megabytes.
        return map(itemgetter(*keys), entries)

    return zip(
        *(
            map(itemgetter(key), entries)
            if key in first
            else repeat(_DEFAULTS[key], len(entries))
            for key in keys
        ),
        strict=True,
    )


def _interned(values: Iterable[Any]) -> tuple[dict[Any, int], list[int]]:
    """
    Number the different values by their first appearance.
    """
    codes: dict[Any, int] = defaultdict(count().__next__)
    return codes, list(map(codes.__getitem__, values))


def _raw_kinds(entries: list[Entry]) -> Iterator[Any]:
    kinds = _fields(entries, *_KIND)
    if isinstance(entries[0].get("process_group"), list):
        # JSON has no tuples, and lists cannot be keys.
        return ((tuple(group), *rest) for group, *rest in kinds)

    return kinds


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
        text(name),
        text(desc),
        number(pg_id, bits=31),
        text(op),
        STATES.index(state) if state in STATES else 0,
        bool(retired),
        bool(is_p2p),
        number(timeout_ms or 0),
    )


def _raw_shapes(entries: list[Entry], *, strict: bool) -> Iterator[bytes]:
    """
    Make shapes, which are lists of lists, fit to be keys.

    The version of `marshal` matters: later ones refer to objects seen before,
    so that equal shapes differ.
    """
    shapes: Iterator[Any] = _fields(entries, *_SHAPE)
    if strict:
        shapes = map(check_shape, shapes)
    return map(marshal.dumps, shapes, repeat(2))


def _p2p_seqs(
    found: Sequence[Any],
    seqs: Sequence[int],
    kind: list[int],
    kinds: list[Any],
) -> Sequence[int]:
    """
    Early formats have one counter for both sorts of operations.
    """
    if None not in found:
        return found

    return [
        p2p if p2p is not None else seq if kinds[code][6] else 0
        for p2p, seq, code in zip(found, seqs, kind, strict=True)
    ]


def _durations(entries: list[Entry]) -> Sequence[float]:
    """
    Only what was timed and completed has a duration.
    """
    if not any(map(dict.__contains__, entries, repeat("duration_ms"))):
        return [nan] * len(entries)

    found = map(dict.get, entries, repeat("duration_ms"))
    return [nan if duration is None else duration for duration in found]


def _or_zero(column: Sequence[Any]) -> Sequence[int]:
    if all(column):
        return column

    # Most columns are either full or empty.
    return (
        [value or 0 for value in column] if any(column) else [0] * len(column)
    )


def _packed(code: str, column: Sequence[Any]) -> bytes:
    return struct.pack(f"<{len(column)}{code}", *column)


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
                ranks = str([number(rank, bits=31) for rank in ranks])
            yield (
                text(config.get("name", key)),
                text(config.get("desc", "")),
                ranks,
            )
        except WRONG:
            continue


def _status(data: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """
    The counters of each group, by its number in the process.
    """
    for key, status in data.items() if isinstance(data, dict) else ():
        try:
            yield (
                number(int(key), bits=31),
                tuple(
                    # JSON has them as strings.
                    number(int(status[f"last_{what}_collective"]))
                    for what in ("enqueued", "started", "completed")
                ),
            )
        except WRONG:
            continue
