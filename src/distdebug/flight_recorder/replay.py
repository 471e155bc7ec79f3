"""
Write a short program that hangs or fails on Gloo as a recorded job did.

It makes the calls around the fault, in the groups concerned, with as few ranks as
show it: those at fault, and two others of each group.
"""

from __future__ import annotations

import math
import os
import pprint
import re

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import attrs

from .._io import output_to, write_whole
from .._text import clean
from ..errors import DumpError
from ..findings import CollectiveRef, Finding, GroupRef, described
from ..usercode import user_location
from .analysis.analyze import analyze_dumps
from .analysis.job import Job
from .analysis.report import FlightReport
from .reading.columns import Dumps


_MOST_RANKS = 8
_MOST_AT_FAULT = 4
_OTHERS_OF_A_GROUP = 2
_CALLS_BEFORE = 2
# The first of them that cannot complete holds up all later ones.
_MOST_CALLS = 12
# Larger tensors show nothing more; different sizes stay different.
_MOST_ELEMENTS = 4096
_MOST_COLUMNS = 110
_MOST_NAME = 60
_P2P = frozenset({"recv", "send"})
_DTYPES = {
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float": "float32",
    "Double": "float64",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int32",
    "Int": "int32",
    "Long": "int64",
    "Bool": "bool",
}
# By what the name of an operation contains; the first that fits counts.
_OPERATIONS = (
    (r"reduce_?scatter", "reduce_scatter_tensor"),
    (r"all_?gather", "all_gather"),
    (r"all_?to_?all", "all_to_all_single"),
    (r"barrier", "barrier"),
    (r"all_?reduce", "all_reduce"),
    (r"broadcast", "broadcast"),
    (r"reduce", "reduce"),
    (r"gather", "gather"),
    (r"scatter", "scatter"),
    (r"send", "send"),
    (r"recv", "recv"),
)


@attrs.frozen(kw_only=True)
class Replay:
    """
    A program that hangs or fails as a recorded job did.

    Attributes:
        text: The program, for torchrun.

        ranks: The ranks of the job that it plays, by their number in it.
    """

    text: str
    ranks: tuple[int, ...]


class _Call(NamedTuple):
    """
    One call of a rank, as the program makes it.
    """

    op: str
    group: str
    size: int
    dtype: str
    peer: int | None = None


def write_replay(
    source: FlightReport | Dumps | str | os.PathLike[str],
    path: str | os.PathLike[str],
) -> Replay:
    """
    Write a program that hangs or fails as a recorded job did.

    Example::

        distdebug.write_replay("dumps/", "repro.py")

    Args:
        source: Dumps, their analysis, or where they lie.

        path: The program; it is replaced if it exists.

    Returns:
        The program.

    Raises:
        NoDumpsError: There are no dumps.

        OutputError: The program cannot be written.

        DumpError: The dumps show no call in which something is wrong.
    """
    replay = make_replay(source)
    with output_to(path):
        write_whole(Path(path), replay.text.encode())
    return replay


def make_replay(
    source: FlightReport | Dumps | str | os.PathLike[str],
) -> Replay:
    """
    Return a program that hangs or fails as a recorded job did.

    Args:
        source: Dumps, their analysis, or where they lie.

    Raises:
        NoDumpsError: There are no dumps.

        DumpError: The dumps show no call in which something is wrong.
    """
    report = (
        source if isinstance(source, FlightReport) else analyze_dumps(source)
    )
    verdict = report.verdict
    if verdict.group is None or verdict.collective is None:
        msg = f"nothing to replay: {verdict.summary}"
        raise DumpError(msg, remedy=_NO_FAULT_REMEDY)
    return _Selection(
        report, verdict, verdict.group, verdict.collective, Job(report.dumps)
    ).replay()


_NO_FAULT_REMEDY = (
    "name dumps of a job that hangs; calls that are not on record, such as send "
    "and recv of Gloo, cannot be replayed"
)


@attrs.define(eq=False)
class _Selection:
    """
    The part of a job that shows its fault.
    """

    report: FlightReport
    verdict: Finding
    group: GroupRef
    call: CollectiveRef
    job: Job
    # By what they stand for: the same for one size, and different for others.
    _sizes: dict[int, int] = attrs.field(init=False, factory=dict)

    def replay(self) -> Replay:
        """
        Return the program.
        """
        calls = {
            number: (*islice(self._calls(rank), _MOST_CALLS),)
            for rank, number in self.numbers.items()
        }
        text = _TEMPLATE.format(
            title=_literal_text(self.verdict.summary),
            world=self.job.dumps.world_size or len(self.numbers),
            mapping=", ".join(f"{i} is {r}" for r, i in self.numbers.items()),
            count=len(self.numbers),
            groups=_format_groups(
                {self._label(i): m for i, m in self.members.items()}
            ),
            calls=_format_calls(calls),
            arguments=_format_arguments(
                c.op for x in calls.values() for c in x
            ),
            ends=pprint.pformat(self._ends()),
            ahead=self.is_ahead,
        )
        return Replay(text=text, ranks=tuple(self.numbers))

    @cached_property
    def groups(self) -> list[int]:
        """
        The groups concerned: that of the verdict first.
        """
        faulty = set(self.verdict.ranks)
        names = [self.group.name]
        names += [
            wait.group
            for wait in self.report.waits
            if not faulty.isdisjoint((*wait.waiting, *wait.awaited))
        ]
        return [
            i
            for name in dict.fromkeys(names)
            for i, group in enumerate(self.job.groups)
            if group.name == name
            and not faulty.union(self.group.ranks).isdisjoint(group.order)
        ][:_MOST_RANKS]

    @cached_property
    def numbers(self) -> dict[int, int]:
        """
        The number in the program of each rank that it plays, ascending.
        """
        found = dict.fromkeys(self.verdict.ranks[:_MOST_AT_FAULT])
        waiting = {r for w in self.report.waits for r in w.waiting}
        for i in self.groups:
            others = [
                r
                for r in self.job.groups[i].order
                if r not in self.verdict.ranks and r in self.job.dumps.by_rank
            ]
            others.sort(key=lambda rank: rank not in waiting)
            found |= dict.fromkeys(others[:_OTHERS_OF_A_GROUP])
        ranks = sorted([*found][:_MOST_RANKS])
        return {rank: number for number, rank in enumerate(ranks)}

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """
        The members in the program of each group that has several there.
        """
        members = {
            i: [
                self.numbers[rank]
                for rank in self.job.groups[i].order
                if rank in self.numbers
            ]
            for i in self.groups
        }
        return {i: found for i, found in members.items() if len(found) > 1}

    def _calls(self, rank: int) -> Iterable[_Call]:
        """
        Yield the calls of a rank around the fault, in their order.
        """
        has_dump = rank in self.job.dumps.by_rank
        # A rank without a dump made the calls that others saw complete.
        source = rank if has_dump else self._witness()
        for row, index in self._rows(source):
            operation = self.job.operation(source, row)
            name = _usual_name(operation.name)
            seq = self.job.dumps[source].entries.seq[row]
            if not has_dump and (
                name in _P2P
                or self.numbers[rank] not in self.members[index]
                or seq > self.job.states[index].sync_done
            ):
                continue
            peer = None
            if name in _P2P:
                ends = operation.ends_in(self.job.groups[index]) or (-1, -1)
                peer = self.numbers.get(ends[1 if operation.is_send else 0])
                if peer is None:
                    continue
                name = f"i{name}" if self.is_ahead else name
            size, dtype = self._tensor(source, row)
            yield _Call(name, self._label(index), size, dtype, peer)

    def _rows(self, rank: int) -> Iterable[tuple[int, int]]:
        """
        Yield the records of a rank around the fault, each with its group.
        """
        dump = self.job.dumps[rank]
        entries, of_group = dump.entries, self.job.group_indices(dump)
        is_p2p, done = self.job.is_p2p(dump), self.job.is_done(dump)
        is_batch_end = self.job.flags(dump, "ends_batch")
        first = {i: self._first_call(i) for i in self.members}
        for row in entries.record_id.argsort().tolist():
            index = int(of_group[row])
            if index not in first or is_batch_end[row]:
                continue
            # What was sent before need not be in all rings.
            is_old = (
                done[row] if is_p2p[row] else entries.seq[row] < first[index]
            )
            if not is_old:
                yield row, index

    def _witness(self) -> int:
        """
        Return a rank with a dump that took part in what is stuck.
        """
        known = [r for r in self.numbers if r in self.job.dumps.by_rank]
        return min(known, key=lambda rank: rank not in self.group.ranks)

    def _label(self, index: int) -> str:
        group = self.job.groups[index]
        # Several groups may have one name, on ranks of their own.
        same = [
            i for i, g in enumerate(self.job.groups) if g.name == group.name
        ]
        is_plain = described(group.desc) in {"", "default_pg"}
        name = group.name if is_plain else f"{group.name}: {group.desc}"
        if len(name) > _MOST_NAME:
            return f"{name[:_MOST_NAME]}… ({index})"
        return name if len(same) == 1 else f"{name} ({same.index(index)})"

    @cached_property
    def is_ahead(self) -> bool:
        """
        Whether ranks made calls while earlier ones were pending.
        """
        return any(
            (
                ~self.job.is_done(dump)[dump.entries.record_id.argsort()][:-1]
            ).any()
            for dump in self.job.dumps
        )

    def _first_call(self, index: int) -> int:
        """
        Return the number of the first call in a group to replay.
        """
        cause, group = self.verdict.cause, self.job.groups[index]
        base = self.job.states[index].sync_done + 1
        is_odd_call = cause.is_mismatch or cause.is_miscount
        if is_odd_call and group.ref == self.group:
            base = self.call.seq
        streams = (
            self.job.stream(rank, index)
            for rank in group.order
            if rank in self.numbers and rank in self.job.dumps.by_rank
        )
        # Rings begin at different calls; earlier ones were made by all.
        kept = [int(x.seq[0]) if x is not None else base for x in streams]
        return min(max([base - _CALLS_BEFORE, *kept]), base)

    def _tensor(self, rank: int, row: int) -> tuple[int, str]:
        shape = self.job.shape(rank, row)
        size = sum(map(math.prod, shape.input_sizes))
        dtypes = shape.input_dtypes or shape.output_dtypes or ("Float",)
        return self._small(size), _DTYPES.get(dtypes[0], "float32")

    def _small(self, size: int) -> int:
        # A call of no elements does not wait.
        if size <= _MOST_ELEMENTS:
            return max(size, 1)
        smaller = _MOST_ELEMENTS + 1 + len(self._sizes)
        return self._sizes.setdefault(size, smaller)

    def _ends(self) -> dict[int, str]:
        """
        Return what ranks do after their calls, where it is not to wait.
        """
        if not self.verdict.cause.is_absence:
            return {}
        return {
            self.numbers[rank]: f"is elsewhere{self._place(rank)}"
            for rank in self.verdict.ranks
            if rank in self.numbers
        }

    def _place(self, rank: int) -> str:
        dump = self.job.dumps.by_rank.get(rank)
        if dump is None:
            return ", and left no dump"
        if dump.sidecar is None:
            return ""
        threads = dict(dump.sidecar.threads)
        where = user_location(threads.get("MainThread", ()))
        return f": {where.brief}" if where else ""


def _usual_name(operation: str) -> str:
    name = operation.lower()
    return next(
        (usual for part, usual in _OPERATIONS if re.search(part, name)),
        "all_reduce",
    )


def _literal_text(text: str) -> str:
    # It stands in the docstring of a program.
    return clean(text, limit=300).replace("\\", "/").replace('"', "'")


def _format_groups(groups: Mapping[str, Sequence[int]]) -> str:
    if len(groups) == 1:
        return repr({**groups})
    rows = [f"    {name!r}: {members},\n" for name, members in groups.items()]
    return "{\n" + "".join(rows) + "}"


def _format_arguments(operations: Iterable[str]) -> str:
    """
    Format what the program passes to each function that it calls.
    """
    passed = {op: _ARGUMENTS[op] for op in sorted({*operations})}
    needed = " ".join(passed.values())
    lines = [line for word, line in _PREPARATIONS.items() if word in needed]
    rows = [f"        {op!r}: {what}," for op, what in passed.items()]
    return "\n".join([*lines, "    arguments = {", *rows, "    }"])


def _format_calls(calls: Mapping[int, tuple[_Call, ...]]) -> str:
    """
    Format the calls of ranks, those that do the same together.
    """
    alike: dict[tuple[_Call, ...], list[int]] = {}
    for rank, own in calls.items():
        alike.setdefault(own, []).append(rank)
    rows = []
    for own, ranks in alike.items():
        row = f"    {tuple(ranks)!r}: ["
        for call in own:
            step = repr(tuple(call if call.peer is not None else call[:4]))
            if len(row) + len(step) > _MOST_COLUMNS:
                rows.append(row.rstrip())
                row = " " * 8
            row += f"{step}, "
        rows.append(f"{row.rstrip(', ')}],")
    return "\n".join(["{", *rows, "}"])


# What the arguments of some functions need before.
_PREPARATIONS = {
    "copies": "    copies = [torch.ones_like(x) for _ in members]",
    "root": "    # Roots are not on record: a rank that is elsewhere, or else the "
    "first one.\n"
    "    root = next((r for r in members if r in ENDS), members[0])",
}
# What the program passes to each function.
_ARGUMENTS = {
    "all_gather": "(copies, x)",
    "all_reduce": "(x,)",
    "all_to_all_single": "(torch.cat(copies), torch.cat(copies))",
    "barrier": "()",
    "broadcast": "(x, root)",
    "gather": "(x, copies if rank == root else None, root)",
    "irecv": "(x, peer)",
    "isend": "(x, peer)",
    "recv": "(x, peer)",
    "reduce": "(x, root)",
    "reduce_scatter_tensor": "(x, torch.cat(copies))",
    "scatter": "(x, copies if rank == root else None, root)",
    "send": "(x, peer)",
}

_TEMPLATE = '''\
"""
{title}

Made from the dumps of a job of {world} ranks; of the ranks here, {mapping} there.
Run it: torchrun --nproc-per-node {count} THIS_FILE
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

GROUPS = {groups}
# By ranks: operation, group, number of elements, their type, and the peer.
CALLS = {calls}
# What ranks do after their calls, and whether they make them before earlier ones end.
ENDS, AHEAD = {ends}, {ahead}


def call(op, group, size, dtype, peer=None):
    print(f"rank {{rank}}: {{op}} of {{size}} in group {{group!r}}\\n", end="", flush=True)
    members, x = GROUPS[group], torch.ones(size, dtype=getattr(torch, dtype))
{arguments}[op]
    keywords = {{"group": groups[group]}} | ({{"async_op": AHEAD}} if peer is None else {{}})
    # One line for all, as which of two calls comes first is not known.
    return getattr(dist, op)(*arguments, **keywords)


dist.init_process_group("gloo", timeout=timedelta(minutes=30))
rank = dist.get_rank()
groups = {{name: dist.new_group(members) for name, members in GROUPS.items()}}
dist.barrier()
steps = next((steps for ranks, steps in CALLS.items() if rank in ranks), [])
for work in filter(None, [call(*step) for step in steps]):
    work.wait()
print(f"rank {{rank}} {{ENDS.get(rank, 'has made its calls')}}\\n", end="", flush=True)
time.sleep(3600)
'''
