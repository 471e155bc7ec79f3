"""
Write the dumps of a simulated job, in each version of the format.
"""

from __future__ import annotations

import gzip
import json
import os
import struct

from collections.abc import Collection, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .jobs import Record, SimulatedGroup, SimulatedJob


def torch_pickle(value: Any) -> bytes:
    """
    Pickle plain data as torch pickles a dump.

    Args:
        value: The dump.  Stacks are lists under the key ``"frames"``; frames that
            are the same object are written once.
    """
    writer = _Writer()
    writer.write(value)
    # Torch remembers the outermost value, which nothing refers to.
    if isinstance(value, dict):
        writer.remember("outermost")
    return b"\x80\x02" + bytes(writer.out) + b"."


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray()
        self._memo: dict[Hashable, int] = {}

    def write(self, value: Any) -> None:  # noqa: C901, PLR0912
        # One chain of tests, because this runs fifty times per record.
        out = self.out
        kind = type(value)
        if kind is str:
            if not self.recall(value):
                data = value.encode("utf-8", "surrogatepass")
                out += b"X" + struct.pack("<I", len(data)) + data
                self.remember(value)
        elif kind is bool:
            out += b"\x88" if value else b"\x89"
        elif kind is int:
            out += _number(value)
        elif value is None:
            out += b"N"
        elif kind is float:
            out += b"G" + struct.pack(">d", value)
        elif kind is dict:
            out += b"}("
            for key, item in value.items():
                self.write(key)
                if key == "frames":
                    self.write_frames(item)
                else:
                    self.write(item)
            out += b"u"
        elif kind is list:
            out += b"]("
            for item in value:
                self.write(item)
            out += b"e"
        else:
            first, second = value
            self.write(first)
            self.write(second)
            out += b"\x86"

    def write_frames(self, frames: list[dict[str, Any]]) -> None:
        self.out += b"]("
        for frame in frames:
            # A frame lives as long as the dump, so its address is its name.
            if not self.recall(id(frame)):
                self.write(frame)
                self.remember(id(frame))
        self.out += b"e"

    def recall(self, key: Hashable) -> bool:
        index = self._memo.get(key)
        if index is None:
            return False

        if index < 256:
            self.out += b"h" + index.to_bytes(1)
        else:
            self.out += b"j" + struct.pack("<I", index)
        return True

    def remember(self, key: Hashable) -> None:
        index = self._memo[key] = len(self._memo)
        if index < 256:
            self.out += b"q" + index.to_bytes(1)
        else:
            self.out += b"r" + struct.pack("<I", index)


def _number(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + value.to_bytes(1)

    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)

    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)

    return b"\x8a\x08" + struct.pack("<q", value)


def make_dumps(  # noqa: PLR0913
    folder: str | os.PathLike[str],
    job: SimulatedJob,
    *,
    prefix: str = "nccl_trace_rank_",
    version: str = "2.10",
    missing: Collection[int] = (),
    ring: int = 2000,
    clock_offsets_s: Mapping[int, float] | None = None,
    timed: bool = False,
    only_active: bool = False,
    as_json: bool = False,
    compress: bool = False,
) -> dict[int, Path]:
    """
    Write the dumps of a simulated job.

    Args:
        folder: Where to; it is made if it does not exist.

        job: The job.

        prefix: The beginning of their names, before the rank.

        version: Version of the format, from ``"1.1"`` to ``"2.11"``; or
            ``""`` for the bare list that torch wrote up to 2.2.

        missing: Ranks that leave no dump.

        ring: How many records a rank keeps.

        clock_offsets_s: By how many seconds the clocks of ranks are ahead.

        timed: Whether starts and durations are recorded.

        only_active: Whether completed calls are left out.

        as_json: Whether to write JSON, which has no stacks.

        compress: Whether to compress by gzip.

    Returns:
        The file of each rank.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    suffix = (".json" if as_json else "") + (".gz" if compress else "")
    paths = {}
    for rank in job.records:
        if rank in missing:
            continue

        data = plain_dump(
            job,
            rank,
            version=version,
            ring=ring,
            clock_offset_s=(clock_offsets_s or {}).get(rank, 0.0),
            timed=timed,
            only_active=only_active,
        )
        raw = _json(data) if as_json else torch_pickle(data)
        paths[rank] = folder / f"{prefix}{rank}{suffix}"
        paths[rank].write_bytes(gzip.compress(raw, 1) if compress else raw)

    return paths


def plain_dump(  # noqa: PLR0913
    job: SimulatedJob,
    rank: int,
    *,
    version: str = "2.10",
    ring: int = 2000,
    clock_offset_s: float = 0.0,
    timed: bool = False,
    only_active: bool = False,
) -> Any:
    """
    Return the dump of one rank before it is pickled.

    Args:
        job: The job.

        rank: Global rank.

        version: Version of the format; ``""`` for the bare list.

        ring: How many records the rank keeps.

        clock_offset_s: By how many seconds its clock is ahead.

        timed: Whether starts and durations are recorded.

        only_active: Whether completed calls are left out.
    """
    moment = job.dumped.get(rank, job.clock)
    seen = [r for r in job.records[rank] if r.created <= moment]
    pg_ids = _pg_ids(job, rank)
    ended = [_Ended(record, moment) for record in seen]
    _note_starts(ended, timed=timed and job.backend != "gloo")
    form = _Format.of(version)
    writing = _Writing(job, form, pg_ids, clock_offset_s, {})
    entries = [
        writing.entry(number, end)
        for number, end in enumerate(ended)
        if not (only_active and end.is_complete and job.backend != "gloo")
    ][-ring:]
    if not version:
        return entries

    dump: dict[str, Any] = {
        "version": version,
        "pg_config": _pg_config(job, ended),
    }
    if form.has_library:
        key = "comm_lib_version" if form.is_neutral else "nccl_version"
        dump[key] = "" if job.backend == "gloo" else "2.27.3"
    if form.has_types:
        dump["pg_status"] = _pg_status(job, pg_ids, ended)
    if entries or not only_active:
        dump["entries"] = entries
    return dump


class _Ended:
    """
    A record in its state at the time of the dump.
    """

    def __init__(self, record: Record, moment: float) -> None:
        self.record = record
        completed = record.call.completed if record.call else None
        self.completed: float | None = None
        if completed is not None and completed <= moment:
            self.completed = completed
        self.is_complete = self.completed is not None
        if record.state is not None:
            self.is_complete = record.state == "completed"
        self.started: float | None = None


def _note_starts(ended: Iterable[_Ended], *, timed: bool) -> None:
    """
    Within one group, a call starts when the one before has completed.
    """
    busy: set[tuple[str, bool]] = set()
    for end in ended:
        record = end.record
        stream = (record.group.name, record.is_p2p)
        if timed and record.call is not None and stream not in busy:
            end.started = record.reached or record.created
        # Torch never completes the parts of a batch, which occupy nothing.
        if record.call is not None and not end.is_complete:
            busy.add(stream)


class _Format(NamedTuple):
    """
    The keys that a version of the format has.
    """

    has_record_id: bool
    has_groups: bool
    has_types: bool
    has_library: bool
    has_threads: bool
    is_neutral: bool

    @classmethod
    def of(cls, version: str) -> _Format:
        level = tuple(map(int, version.split("."))) if version else (0,)
        since = [(1, 2), (2, 1), (2, 3), (2, 6), (2, 9), (2, 10)]
        return cls(*(level >= first for first in since))


class _Writing(NamedTuple):
    """
    Shared state of the records of one dump.
    """

    job: SimulatedJob
    format: _Format
    pg_ids: Mapping[str, int]
    clock_offset_s: float
    frames: dict[tuple[str, str, int], dict[str, Any]]

    def entry(self, number: int, end: _Ended) -> dict[str, Any]:
        """
        Return one record, its keys in the order of genuine dumps.
        """
        record = end.record
        # Equal frames are the same object.
        stack = [self.frames.get(x) or self._frame(x) for x in record.stack]
        return {
            **({"frames": stack} if stack else {}),
            **({"record_id": number} if self.format.has_record_id else {}),
            "pg_id": self.pg_ids[record.group.name],
            **self._numbers(record),
            "profiling_name": f"{self.job.backend}:{record.op}",
            "time_created_ns": self._nanoseconds(record.created),
            **_duration(end),
            **self._shape(record),
            **self._outcome(end),
        }

    def _frame(self, line: tuple[str, str, int]) -> dict[str, Any]:
        names = ("name", "filename", "line")
        frame = self.frames[line] = dict(zip(names, line, strict=True))
        return frame

    def _nanoseconds(self, moment: float) -> int:
        return int((moment + self.clock_offset_s) * 1e6) * 1000

    def _numbers(self, record: Record) -> dict[str, Any]:
        if not self.format.has_groups:
            # There was one counter for both kinds of operations.
            return {"seq_id": record.op_id}

        numbers: dict[str, Any] = {
            "process_group": (record.group.name, record.group.desc)
        }
        if self.format.has_threads:
            numbers["thread_name"] = "python3"
            numbers["thread_id"] = "140424616795008"
        numbers["collective_seq_id"] = record.seq
        numbers["p2p_seq_id"] = record.p2p_seq
        if self.format.has_types:
            numbers["op_id"] = record.op_id
        return numbers

    def _shape(self, record: Record) -> dict[str, Any]:
        inputs, input_dtypes, outputs, output_dtypes = record.shape
        shape = {
            "input_sizes": [list(size) for size in inputs],
            "input_dtypes": list(input_dtypes),
            "output_sizes": [list(size) for size in outputs],
            "output_dtypes": list(output_dtypes),
        }
        if not self.format.has_types:
            del shape["input_dtypes"], shape["output_dtypes"]
        return shape

    def _outcome(self, end: _Ended) -> dict[str, Any]:
        times = (end.started, end.completed)
        if self.job.backend == "gloo":
            times = (None, None)
        state, retired = _state(self.job, end)
        started, completed = (
            None if moment is None else self._nanoseconds(moment)
            for moment in times
        )
        timeout = {"timeout_ms": int(self.job.timeout_s * 1000)}
        is_p2p = {"is_p2p": end.record.is_p2p}
        return {
            "state": state,
            "time_discovered_started_ns": started,
            "time_discovered_completed_ns": completed,
            "retired": retired,
            **(timeout if self.format.has_types else {}),
            **(is_p2p if self.format.has_groups else {}),
        }


def _duration(end: _Ended) -> dict[str, float]:
    if end.started is None or end.completed is None:
        return {}

    return {"duration_ms": (end.completed - end.started) * 1e3}


def _state(job: SimulatedJob, end: _Ended) -> tuple[str, bool]:
    if job.backend == "gloo":
        return "scheduled", end.is_complete

    if end.record.state is not None:
        return end.record.state, end.is_complete

    if end.is_complete:
        return "completed", True

    return ("scheduled" if end.started is None else "started"), False


def _pg_ids(job: SimulatedJob, rank: int) -> dict[str, int]:
    """
    Number the groups that a process is a member of.
    """
    own = [group.name for group in job.groups if rank in group.ranks]
    return {name: pg_id for pg_id, name in enumerate(own)}


def _pg_config(
    job: SimulatedJob, ended: Iterable[_Ended]
) -> dict[str, dict[str, str]]:
    if job.backend == "gloo":
        # Torch notes the group before it has a name.
        return {"": {"name": "", "desc": "", "ranks": "[]"}}

    used: list[SimulatedGroup] = sorted({end.record.group for end in ended})
    return {
        name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
        for name, desc, ranks in used
    }


def _pg_status(
    job: SimulatedJob, pg_ids: Mapping[str, int], ended: Iterable[_Ended]
) -> dict[str, dict[str, int]]:
    status: dict[str, dict[str, int]] = {}
    for end in ended:
        record = end.record
        last = status.setdefault(
            str(pg_ids[record.group.name]),
            {
                f"last_{what}_collective": -1
                for what in ("enqueued", "started", "completed")
            },
        )
        # Both kinds of operations overwrite the same counters.
        number = record.p2p_seq if record.is_p2p else record.seq
        if job.backend == "gloo":
            number = record.op_id
        if record.call is None:
            continue

        if not record.in_launch:
            last["last_enqueued_collective"] = number
        if end.started is not None:
            last["last_started_collective"] = number
        if end.is_complete:
            last["last_completed_collective"] = number

    return status


def _json(data: Any) -> bytes:
    if isinstance(data, dict):
        data = {**data, "nccl_comm_state": {}}
        entries = [_json_entry(entry) for entry in data.pop("entries", ())]
        if entries:
            data["entries"] = entries
        data["pg_status"] = {
            pg_id: {what: str(number) for what, number in status.items()}
            for pg_id, status in data.get("pg_status", {}).items()
        }
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _json_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: 0 if value is None else value
        for key, value in entry.items()
        if key != "frames"
    }
