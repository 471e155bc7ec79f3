"""
Convert the records of one dump to columns, and check every value.

Records of hooks are translated to what torch's own recorders write.

This module runs in the child processes that decode dumps: it needs nothing
but the standard library, and trusts no input.  It relies on the keys that are
present, never on the version of the format.

Good files are converted by C code, column by column.  Fields with few distinct
values (operations, groups, shapes) are checked once per value.  Records are
checked one by one only if a column does not fit.
"""

from __future__ import annotations

import json
import marshal
import re
import struct

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat, takewhile
from math import nan, prod
from operator import itemgetter
from typing import Any


# Raised by values of the wrong type or range.
INVALID_ERRORS = (
    *(AttributeError, KeyError, OverflowError, TypeError, ValueError),
    struct.error,
)

# Longer names are cut.
TEXT_LIMIT = 1000


def check_text(value: Any) -> str:
    """
    Return a string, shortened if it is very long.
    """
    if not isinstance(value, str):
        msg = "not a string"
        raise TypeError(msg)

    return value[:TEXT_LIMIT]


def check_number(value: Any, *, bits: int = 63) -> int:
    """
    Return an integer that fits into *bits* bits and a sign.
    """
    if not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits:
        msg = "not a number of this size"
        raise TypeError(msg)

    return value


def check_sequence(value: Any) -> list[Any] | tuple[Any, ...]:
    """
    Return a list or tuple, with any items.
    """
    if not isinstance(value, list | tuple):
        msg = "not a list"
        raise TypeError(msg)

    return value


# More do not fit into 64 bits; only a malicious file has them.
_MAX_ELEMENTS = 1 << 62

_NUMBERS_JSON = r"\[(?:-?\d{1,19}(?:,-?\d{1,19})*)?\]"
_CHARACTERS_JSON = r'[^"\\\x00-\x1f]*+'
_ESCAPE_JSON = r'\\(?:["\\/bfnrt]|u[0-9a-f]{4})'
_STRING_JSON = rf'"{_CHARACTERS_JSON}(?:{_ESCAPE_JSON}{_CHARACTERS_JSON})*+"'
_SIZES_JSON = rf"\[(?:{_NUMBERS_JSON}(?:,{_NUMBERS_JSON})*)?\]"
_DTYPES_JSON = rf"\[(?:{_STRING_JSON}(?:,{_STRING_JSON})*)?\]"

# Input sizes, input types, output sizes, and output types.
SHAPE_JSON = re.compile(
    rf"\[{_SIZES_JSON},{_DTYPES_JSON},{_SIZES_JSON},{_DTYPES_JSON}\]"
)
# A longer text may hold a type name that has to be cut.
_SHAPE_LIMIT = 1000

shape_to_json = json.JSONEncoder(separators=(",", ":")).encode


def encode_shapes(raws: Iterable[bytes]) -> dict[str, list[Any]]:
    """
    Encode shapes as JSON, and count their elements.

    Args:
        raws: Each as in the dump, packed by `marshal`.

    Returns:
        Plain data: *shapes*, the texts; *elements*, the number of input and
        of output elements of each; *types*, an index into *dtypes* for each;
        and *dtypes*, the distinct pairs of input and output types.
    """
    shapes = [marshal.loads(raw) for raw in raws]  # noqa: S302
    texts = _encode_plain(shapes)
    if texts is None:
        shapes = list(map(check_shape, shapes))
        texts = list(map(shape_to_json, shapes))
    dtypes: dict[Any, int] = {}
    types = [
        dtypes.setdefault((tuple(inputs), tuple(outputs)), len(dtypes))
        for _, inputs, _, outputs in shapes
    ]
    return {
        "shapes": texts,
        "elements": [
            [count_elements(shape[part]) for shape in shapes]
            for part in (0, 2)
        ],
        "types": types,
        "dtypes": list(dtypes),
    }


def count_elements(sizes: Iterable[Sequence[int]]) -> int:
    """
    Return the number of elements of all tensors, limited to 64 bits.
    """
    count = sum(map(prod, sizes))
    return max(min(count, _MAX_ELEMENTS), -_MAX_ELEMENTS)


def _encode_plain(shapes: list[Any]) -> list[str] | None:
    """
    Encode shapes all at once; `None` if each value has to be checked.
    """
    try:
        text = shape_to_json(shapes)
    except RecursionError:
        return None

    texts: list[str] = SHAPE_JSON.findall(text, 1)
    is_all = text == f"[{','.join(texts)}]"
    is_short = max(map(len, texts), default=0) <= _SHAPE_LIMIT
    return texts if is_all and is_short else None


def check_shape(raw: Any) -> tuple[Any, ...]:
    """
    Check every value of a shape, and cut long type names.

    Raises:
        TypeError: A part has the wrong type.

        ValueError: It has more or fewer parts.
    """
    sizes_in, dtypes_in, sizes_out, dtypes_out = raw
    return (
        _check_sizes(sizes_in),
        [check_text(dtype) for dtype in check_sequence(dtypes_in)],
        _check_sizes(sizes_out),
        [check_text(dtype) for dtype in check_sequence(dtypes_out)],
    )


def _check_sizes(raw: Any) -> list[list[int]]:
    # int() also converts bool, which JSON writes as true.
    return [
        [int(check_number(n)) for n in check_sequence(size)]
        for size in check_sequence(raw)
    ]


Entry = dict[str, Any]

#: Of a call whose end its recorder does not see.
ISSUED = "issued"
STATES = ("scheduled", "started", "completed", ISSUED)

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

# Values of keys that a version of the format lacks.
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

# Keys with few distinct values, each checked once: the arguments of
# `_check_kind`.
_KIND_KEYS = (
    *("process_group", "pg_id", "profiling_name", "state"),
    *("retired", "is_p2p", "timeout_ms"),
)
_SHAPE_KEYS = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
# Keys that differ from record to record, besides the numbers of the record and
# of the collective; the latter has another key in early formats.
_NUMBER_KEYS = (
    *("p2p_seq_id", "op_id", "time_created_ns"),
    *("time_discovered_started_ns", "time_discovered_completed_ns"),
)

_P2P = re.compile(r"(?:^|:)(?:send|recv)\b")

_NO_TABLES: Mapping[str, Any] = {
    "is_numbered": True,
    "kinds": [],
    **encode_shapes([]),
}


def build_columns(
    entries: list[Any], *, strict: bool = False
) -> tuple[dict[str, Any], list[bytes], list[Entry]]:
    """
    Convert records to columns.

    Args:
        entries: Items that should be records.

        strict: Check every value before it is copied, because this process has
            no memory limit.

    Returns:
        The tables that *kind* and *shape* refer to, fit for JSON; the columns
        named in `COLUMNS`, little-endian; and the valid records, oldest first.
    """
    if not entries:
        return dict(_NO_TABLES), [b""] * len(COLUMNS), []

    try:
        return _build_sorted(entries, strict=strict)
    except INVALID_ERRORS:
        filled = [_with_defaults(e) for e in entries if isinstance(e, dict)]
        valid = [entry for entry in filled if _is_valid(entry, strict=strict)]

    return _build_sorted(valid, strict=strict) if valid else build_columns([])


def entry_frames(entry: Entry) -> list[tuple[str, str, int]]:
    """
    Return the Python stack of a record, innermost line first.
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


def _with_defaults(entry: Entry) -> Entry:
    """
    Return a record with all keys, so that all records can be read together.
    """
    filled = {**_DEFAULTS, **entry}
    if isinstance(filled["process_group"], list):
        filled["process_group"] = tuple(filled["process_group"])
    if "collective_seq_id" not in filled and "seq_id" in filled:
        filled["collective_seq_id"] = filled["seq_id"]
    return filled


def _is_valid(entry: Entry, *, strict: bool) -> bool:
    try:
        _build_columns([entry], strict=strict)
    except INVALID_ERRORS:
        return False

    return True


def _build_sorted(
    entries: list[Entry], *, strict: bool
) -> tuple[dict[str, Any], list[bytes], list[Entry]]:
    tables, columns, ids = _build_columns(entries, strict=strict)
    if ids == sorted(ids):
        return tables, columns, entries

    entries = sorted(entries, key=itemgetter("record_id"))
    return *_build_columns(entries, strict=strict)[:2], entries


def _build_columns(
    entries: list[Entry], *, strict: bool
) -> tuple[dict[str, Any], list[bytes], list[int]]:
    """
    Convert records fast; raise one of `INVALID_ERRORS` if any is invalid.
    """
    seq = "collective_seq_id"
    if seq not in entries[0]:
        seq = "seq_id"
    kinds, kind = _intern(_raw_kinds(entries))
    shapes, shape = _intern(_raw_shapes(entries, strict=strict))
    numbers = _read_fields(entries, "record_id", seq, *_NUMBER_KEYS)
    ids, seqs, p2p_seqs, op_ids, *times = zip(*numbers, strict=True)
    tables: dict[str, Any] = {
        "is_numbered": None not in ids,
        "kinds": [_check_kind(*raw) for raw in kinds],
        **encode_shapes(shapes),
    }
    found = list(ids if tables["is_numbered"] else range(len(kind)))
    columns = [
        *(kind, shape, found, seqs),
        _fill_p2p_seqs(p2p_seqs, seqs, kind, tables["kinds"]),
        op_ids,
        *map(_none_to_zero, times),
        _read_durations(entries),
    ]
    codes = COLUMNS.values()
    packed = [_pack_column(*pair) for pair in zip(codes, columns, strict=True)]
    return tables, packed, found


def _read_fields(
    entries: list[Entry], *keys: str
) -> Iterator[tuple[Any, ...]]:
    """
    Return some fields of each record.

    Fields that this version of the format lacks get their defaults.
    """
    first = entries[0]
    if all(key in first for key in keys):
        # By far the fastest way.
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


def _intern(values: Iterable[Any]) -> tuple[dict[Any, int], list[int]]:
    """
    Number the distinct values by their first appearance.
    """
    codes: dict[Any, int] = defaultdict(count().__next__)
    return codes, list(map(codes.__getitem__, values))


def _raw_kinds(entries: list[Entry]) -> Iterator[Any]:
    kinds = _read_fields(entries, *_KIND_KEYS)
    if isinstance(entries[0].get("process_group"), list):
        # JSON has no tuples, and lists cannot be keys.
        return ((tuple(group), *rest) for group, *rest in kinds)

    return kinds


def _check_kind(  # noqa: PLR0913, PLR0917
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
        check_text(name),
        check_text(desc),
        check_number(pg_id, bits=31),
        check_text(op),
        STATES.index(state) if state in STATES else 0,
        bool(retired),
        bool(is_p2p),
        check_number(timeout_ms or 0),
    )


def _raw_shapes(entries: list[Entry], *, strict: bool) -> Iterator[bytes]:
    """
    Return shapes, which are lists of lists, as hashable bytes.

    The version of `marshal` matters: later ones refer to objects seen before,
    so that equal shapes differ.
    """
    shapes: Iterator[Any] = _read_fields(entries, *_SHAPE_KEYS)
    if strict:
        shapes = map(check_shape, shapes)
    return map(marshal.dumps, shapes, repeat(2))


def _fill_p2p_seqs(
    found: Sequence[Any],
    seqs: Sequence[int],
    kind: list[int],
    kinds: list[Any],
) -> Sequence[int]:
    """
    Fill missing point-to-point numbers: early formats have only one counter.
    """
    if None not in found:
        return found

    return [
        p2p if p2p is not None else seq if kinds[code][6] else 0
        for p2p, seq, code in zip(found, seqs, kind, strict=True)
    ]


def _read_durations(entries: list[Entry]) -> Sequence[float]:
    """
    Return the durations; NaN for a call that was not timed or not completed.
    """
    found = map(dict.get, entries, repeat("duration_ms"))
    return [nan if duration is None else duration for duration in found]


def _none_to_zero(column: Sequence[Any]) -> Sequence[int]:
    if all(column):
        return column

    # Most columns are either full or empty.
    return (
        [value or 0 for value in column] if any(column) else [0] * len(column)
    )


def _pack_column(code: str, column: Sequence[Any]) -> bytes:
    return struct.pack(f"<{len(column)}{code}", *column)


# Keys of dumps of any version that hardly any other file has.
KEYS = (
    *("comm_lib_version", "entries", "nccl_comm_state", "nccl_version"),
    *("pg_config", "pg_status", "profiling_name", "record_id", "seq_id"),
)


_PARTS = ("entries", "pg_config", "pg_status")


class NotADumpError(Exception):
    """
    The file is not a Flight Recorder dump.
    """


def read_header(value: Any) -> tuple[dict[str, Any], list[Any]]:
    """
    Read the header of a dump, and return its records unchecked.

    Args:
        value: Content of the file: a dictionary, or (up to torch 2.2) the
            bare list of records.

    Returns:
        Version, configurations and counters of the process groups, fit for
        JSON; and the records.

    Raises:
        NotADumpError: *value* is something else.
    """
    problem = ""
    if isinstance(value, list):
        if not any(isinstance(e, dict) for e in value):
            problem = "it holds a list, but not of records"
        value = {"entries": value}
    elif not isinstance(value, dict) or value.keys().isdisjoint(_PARTS):
        problem = "it does not hold what the Flight Recorder writes"
        value = {}
    entries = value.get("entries") or []
    if not isinstance(entries, list):
        problem = "its entries are no list"
    if problem:
        raise NotADumpError(problem)

    version = value.get("version")
    library = value.get("comm_lib_version") or value.get("nccl_version")
    header = {
        "version": version[:20] if isinstance(version, str) else "",
        "comm_lib_version": library[:20] if isinstance(library, str) else "",
        "configs": list(_group_configs(value.get("pg_config"))),
        "status": dict(_group_status(value.get("pg_status"))),
    }
    return header, entries


def _group_configs(data: Any) -> Iterator[tuple[str, str, str]]:
    """
    Yield name, description, and ranks (as ``"[0, 1]"``) of each group.
    """
    for key, config in data.items() if isinstance(data, dict) else ():
        try:
            ranks = config.get("ranks", "")
            if not isinstance(ranks, str):
                ranks = str([check_number(rank, bits=31) for rank in ranks])
            yield (
                check_text(config.get("name", key)),
                check_text(config.get("desc", "")),
                ranks,
            )
        except INVALID_ERRORS:
            continue


def _group_status(data: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """
    Yield the counters of each group, by its number in the process.
    """
    steps = [
        f"last_{x}_collective" for x in ("enqueued", "started", "completed")
    ]
    for key, status in data.items() if isinstance(data, dict) else ():
        try:
            # JSON has them as strings.
            counters = tuple(check_number(int(status[x])) for x in steps)
            yield check_number(int(key), bits=31), counters
        except INVALID_ERRORS:
            continue


# Hooks record the calls of backends without a recorder of their own: torch's
# ``FlightRecorderHook`` since torch 2.14, and that of torchcomms.  They write the
# fields of torch's recorder (``FlightRecorder.hpp`` in either project), but:
#
# - Without a completion hook, a record is retired once its call is *issued*.
# - torch counts operations in ``pg_status``, where others count collectives.
# - torch 2.14 also records what Gloo records itself, just before it.
# - torchcomms has one counter for all groups, from 0, and counts transfers, too;
#   it describes each group by its backend.
#
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
        header: As `read_header` returns it.

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
