"""
Translate logs of torchcomms' ``ClogHook`` to what torch's recorder writes.

Version 1 of the format is published beside its writer, in
``comms/torchcomms/hooks/clog`` of meta-pytorch/torchcomms
(``AI_TOOL_INSTRUCTIONS_V1.md``).  Lines of fields between bars define each
distinct call once (``C1|sig|all_reduce|…|comm=world``), and then say when one is
enqueued, begins, and ends (``C1|Q|…|+0.001``, ``S``, ``E``).

- An event names a definition, not a call: equal calls of a communicator end in
  the order in which they were made.
- Calls in CUDA graphs (``G…``) are left out: a replay logs none being made.
- Only with the event ``LIFECYCLE`` is it known which calls end.

Like `extract`, this runs in the child processes that decode dumps.
"""

from __future__ import annotations

import re

from collections import defaultdict, deque
from typing import Any, BinaryIO

from .extract import INVALID_ERRORS, ISSUED, Entry, check_text


_HEAD = re.compile(rb"V\|1\|base_timestamp=[\d.]+\s*$", re.MULTILINE)
_MOST_CALLS = 20_000
# A larger communicator comes from a damaged line.
_MAX_RANKS = 1 << 17
_TRANSFERS = {"send": "->", "recv": "<-"}
_BATCH = "batch_op_issue"
_Shape = dict[str, list[Any]]
_COUNTS = ("count", "counts", "splits")


def is_clog(head: bytes) -> bool:
    """
    Return whether a file that begins so is a log of ``ClogHook``, version 1.
    """
    return _HEAD.match(head) is not None


def read_clog(file: BinaryIO) -> dict[str, Any]:
    """
    Read the newest calls of a log.

    Returns:
        A dump; a group of one rank without a name shows whose it is.
    """
    log = _Log(file.readline())
    for line in file:
        if line[:1] == b"V" and is_clog(line):
            log = _Log(line)  # a later run, which was appended
        # The last one may be yet to be written.
        elif line.endswith(b"\n"):
            log.add(line[:-1].decode("utf-8", "replace"))
    return log.to_dump()


class _Log:
    """
    What the lines so far have said.
    """

    def __init__(self, head: bytes) -> None:
        self.base_ms = _milliseconds(head.decode("ascii").partition("=")[2])
        self.entries: deque[Entry] = deque(maxlen=_MOST_CALLS)
        self.made = 0
        self.ends_calls = False
        self._sizes: dict[str, tuple[int, int]] = {}  # own rank, and all
        self._splits: dict[str, tuple[str, list[int]]] = {}
        # By definition: operation, parameters, and sizes.
        self._calls: dict[str, tuple[str, dict[str, str], _Shape]] = {}
        self._counts: dict[tuple[str, bool], int] = defaultdict(int)
        # By definition and event: calls that are to begin, and to end.
        self._due: dict[tuple[str, str], deque[Entry]] = defaultdict(deque)

    def add(self, line: str) -> None:
        """
        Add a line; one that is damaged counts as a broken record.
        """
        kind, *fields = line.split("|")
        try:
            if kind == "new_comm":
                f = _fields(fields)
                self._sizes[f["comm"]] = int(f["rank"]), int(f["world_size"])
            elif kind == "split":
                f = _fields(fields)
                ranks = [int(x) for x in f["ranks"].split(",") if x]
                self._splits[f["child"]] = f["parent"], ranks
            elif kind[:1] == "C" and fields[0] == "sig":
                op, parameters = check_text(fields[1]), _fields(fields[2:])
                self._calls[kind] = op, parameters, _shape(op, parameters)
            elif kind[:1] == "C" and fields[0] == "Q":
                self._enqueue(kind, fields)
            elif kind[:1] == "C" and fields[0] in {"S", "E", "W"}:
                self._advance(kind, fields[0], self._time_ns(fields))
        except (*INVALID_ERRORS, IndexError, RecursionError):
            self.entries.append({})

    def _time_ns(self, fields: list[str]) -> int:
        return (self.base_ms + _milliseconds(fields[-1])) * 1_000_000

    def _enqueue(self, kind: str, fields: list[str]) -> None:
        op, parameters, shape = self._calls[kind]
        comm = check_text(parameters["comm"])
        is_p2p = op in _TRANSFERS or op == _BATCH
        self._counts[comm, is_p2p] += 1
        self.made += 1
        number = self._counts[comm, is_p2p]
        entry = {
            "record_id": self.made - 1,
            "process_group": (comm, ""),
            "profiling_name": self._name(op, comm, parameters),
            "collective_seq_id": 0 if is_p2p else number,
            "p2p_seq_id": number if is_p2p else 0,
            "op_id": number,
            # A call without its time still counts.
            "time_created_ns": self._time_ns(fields),
            **shape,
            "state": "scheduled",
            "time_discovered_started_ns": 0,
            "time_discovered_completed_ns": 0,
            "retired": False,
            "is_p2p": is_p2p,
        }
        self.entries.append(entry)
        # A log without ends would keep all calls alive.
        may_end = self.ends_calls or self.made <= _MOST_CALLS
        for event in "SE" if may_end else "":
            self._due[kind, event].append(entry)

    def _name(self, op: str, comm: str, parameters: dict[str, str]) -> str:
        if op not in _TRANSFERS:
            return op
        rank = self._own_rank(comm)
        return f"{op} {rank}{_TRANSFERS[op]}{int(parameters['peer'])}"

    def _advance(self, kind: str, event: str, time_ns: int) -> None:
        self.ends_calls = True
        due = self._due[kind, event]
        if not due:
            return  # a wait, or a call that this log does not hold
        entry = due.popleft()
        if event == "S":
            entry["time_discovered_started_ns"] = time_ns
            if not entry["retired"]:
                entry["state"] = "started"
        else:
            entry["time_discovered_completed_ns"] = time_ns
            entry.update(state="completed", retired=True)

    def _own_rank(self, comm: str) -> int:
        """
        Return the own rank in a communicator.

        Raises:
            KeyError, ValueError: It is not known.
        """
        if comm in self._sizes:
            return self._sizes[comm][0]
        parent, ranks = self._splits[comm]
        return ranks.index(self._own_rank(parent)) if parent != comm else -1

    def to_dump(self) -> dict[str, Any]:
        """
        Return the calls, and the members of the communicators.
        """
        if not self.ends_calls:
            for entry in filter(None, self.entries):
                entry.update(state=ISSUED, retired=True)
        return {
            "entries": [*self.entries],
            "pg_config": {g["name"]: g for g in self._groups()},
        }

    def _groups(self) -> list[dict[str, Any]]:
        most = max((size for _, size in self._sizes.values()), default=0)
        worlds = [x for x, (_, size) in self._sizes.items() if size == most]
        own = {self._sizes[name][0] for name in worlds}
        is_possible = most <= _MAX_RANKS and own.issubset(range(most))
        if len(own) != 1 or not is_possible:
            return []
        members = {name: list(range(most)) for name in worlds}
        members |= {
            child: ranks
            for child, (parent, ranks) in self._splits.items()
            if parent in worlds and own.issubset(ranks)
        }
        members[""] = [*own]
        return [
            {"name": name, "desc": "", "ranks": ranks}
            for name, ranks in members.items()
        ]


def _fields(texts: list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (x.partition("=") for x in texts)}


def _milliseconds(text: str) -> int:
    return round(float(text) * 1000)


def _shape(op: str, parameters: dict[str, str]) -> _Shape:
    """
    Return sizes and types; none for operations whose ranks pass other sizes.
    """
    shape: _Shape = {}
    for side, key in (("in", "input"), ("out", "output")):
        found = [parameters.get(f"{side}_{x}", "") for x in _COUNTS]
        text = "" if op.endswith("_v") else ",".join(filter(None, found))
        sizes = [[int(count)] for count in text.split(",") if count]
        shape[f"{key}_sizes"] = sizes
        shape[f"{key}_dtypes"] = [parameters["dtype"]] if sizes else []
    return shape
