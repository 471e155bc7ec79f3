"""
Find process groups and their members, and parse operations and signatures.

The same name can mean different members on different ranks, and Gloo does not
record members at all.  So a group is identified by its name *and* its members.
These come from sidecars, else from the dumps, else from the ranks that used
the name.
"""

from __future__ import annotations

import re

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from ..._lazy import late_pattern
from ...findings import GroupRef
from ..reading.columns import Dumps, GroupStatus, RankDump, Shape, Shapes
from ..reading.extract import count_elements


@attrs.frozen(kw_only=True, eq=False)
class Group:
    """
    One process group of the job.

    Attributes:
        name: The name that torch gave it.

        desc: Its description.

        order: Global ranks, ordered by their rank in the group.

        is_known: Whether the members were recorded; else they are inferred.
    """

    name: str
    desc: str
    order: tuple[int, ...]
    is_known: bool

    @property
    def ref(self) -> GroupRef:
        """
        Reference to this group for findings.
        """
        return GroupRef(
            name=self.name, desc=self.desc, ranks=tuple(sorted(self.order))
        )


@attrs.frozen(kw_only=True, eq=False)
class Membership:
    """
    The process groups of a job, and the names that each rank has for them.

    Groups are referred to by their index in *groups*.

    Attributes:
        groups: All groups.

        by_code: Per rank, the group of each code in :attr:`Entries.group`.

        by_name: Per rank, the group of each name that it uses.

        world_size: Number of ranks of the job.

        world: All ranks; only those with files if *world_size* is implausible.
    """

    groups: tuple[Group, ...]
    by_code: Mapping[int, Mapping[int, int]]
    by_name: Mapping[int, Mapping[str, int]]
    world_size: int
    world: tuple[int, ...]


def find_groups(dumps: Dumps) -> Membership:
    """
    Find the process groups of a job and their members.
    """
    finder = _GroupFinder(dumps)
    for dump in dumps:
        finder.add_recorded(dump)
    for dump in dumps:
        finder.add_used(dump)

    return Membership(
        groups=tuple(finder.groups),
        by_code=finder.by_code,
        by_name=finder.by_name,
        world_size=finder.world_size,
        world=finder.world,
    )


# A larger world size comes from a damaged file.
_MAX_RANKS = 1 << 17
_MemberSet = tuple[tuple[int, ...], frozenset[int]]


class _GroupFinder:
    def __init__(self, dumps: Dumps) -> None:
        self.dumps = dumps
        users = _ranks_by_code(dumps)
        self.world_size = _find_world_size(dumps, users)
        self._ranks_with_files = {*dumps.ranks, *dumps.sidecars}
        self.world = self._drop_implausible(range(self.world_size))
        self.groups: list[Group] = []
        self.by_code: dict[int, dict[int, int]] = {}
        self.by_name: dict[int, dict[str, int]] = {}
        self._index: dict[tuple[str, int], int] = {}
        self._canonical: dict[tuple[int, ...], _MemberSet] = {}
        self._by_id: dict[int, _MemberSet] = {}
        self._ranks_by_code = _complete_mesh_groups(
            users, dumps, range(self.world_size)
        )

    def add_recorded(self, dump: RankDump) -> None:
        """
        Add the groups whose members this rank recorded.
        """
        names = self.by_name.setdefault(dump.rank, {})
        for name, desc, ranks in self._recorded_groups(dump):
            names[name] = self._add_group(name, desc, ranks, is_known=True)

    def add_used(self, dump: RankDump) -> None:
        """
        Map the group codes in the records of this rank to groups.
        """
        names = self.by_name[dump.rank]
        codes = self.by_code.setdefault(dump.rank, {})
        for code in sorted(set(dump.entries.group.tolist())):
            name, desc = self.dumps.groups[code]
            if name not in names:
                is_world = desc == "default_pg"
                members = self.world if is_world else self._ranks_by_code[code]
                names[name] = self._add_group(
                    name, desc, members, is_known=False
                )
            codes[code] = names[name]

    def _add_group(
        self, name: str, desc: str, ranks: tuple[int, ...], *, is_known: bool
    ) -> int:
        ranks, _ = self._canonical_members(ranks)
        key = name, id(ranks)
        if key not in self._index:
            self._index[key] = len(self.groups)
            self.groups.append(
                Group(name=name, desc=desc, order=ranks, is_known=is_known)
            )
            # A member without a dump, or without records, is still a member.
            for rank in ranks:
                names = self.by_name.setdefault(rank, {})
                names.setdefault(name, self._index[key])
        return self._index[key]

    def _drop_implausible(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """
        Return *ranks*; if they are too many, only those with files.
        """
        if len(ranks) <= _MAX_RANKS:
            return tuple(ranks)

        return tuple(r for r in ranks if r in self._ranks_with_files)

    def _recorded_groups(
        self, dump: RankDump
    ) -> Iterable[tuple[str, str, tuple[int, ...]]]:
        seen = set()
        for g in dump.sidecar.groups if dump.sidecar else ():
            if dump.rank in self._canonical_members(g.ranks)[1]:
                seen.add(g.name)
                yield g.name, g.desc, g.ranks
        for c in dump.configs:
            # On Gloo the name is empty, so the members may be of any group.
            is_new = c.name and c.name not in seen
            if is_new and dump.rank in self._canonical_members(c.ranks)[1]:
                yield c.name, c.desc, c.ranks

    def _canonical_members(self, ranks: tuple[int, ...]) -> _MemberSet:
        """
        Return the first tuple equal to *ranks*, and its members as a set.
        """
        # All ranks share the same long tuples, so each is processed once.
        # The ids stay valid because the tuples live as long as the dumps.
        found = self._by_id.get(id(ranks))
        if found is None:
            known = self._drop_implausible(ranks)
            found = self._canonical.setdefault(
                known, (known, frozenset(known))
            )
            self._by_id[id(ranks)] = found
        return found


def group_status(
    dump: RankDump, membership: Membership
) -> dict[int, GroupStatus]:
    """
    Return the counters of each group, which have process-local ids in dumps.

    Records map ids to groups.  An idle rank has no records; then ids and
    numeric names are paired by their order, because both count creations.

    Returns:
        Counters by group index.
    """
    codes = membership.by_code[dump.rank]
    e = dump.entries
    pairs = np.unique(e.pg_id.astype(np.int64) << 32 | e.group)
    group_of = {
        pair >> 32: codes[pair & 0xFFFFFFFF] for pair in pairs.tolist()
    }
    names = [c.name for c in dump.configs if c.name.isdecimal()]
    if len(names) == len(dump.status):
        by_name = membership.by_name[dump.rank]
        for pg_id, name in zip(
            sorted(dump.status), sorted(names, key=int), strict=True
        ):
            if name in by_name:
                group_of.setdefault(pg_id, by_name[name])

    return {
        group_of[pg_id]: status
        for pg_id, status in dump.status.items()
        if pg_id in group_of
    }


def _ranks_by_code(dumps: Dumps) -> dict[int, set[int]]:
    """
    Return the ranks that used each group code.
    """
    users: dict[int, set[int]] = defaultdict(set)
    for dump in dumps:
        for code in np.unique(dump.entries.group).tolist():
            users[code].add(dump.rank)

    return users


def _complete_mesh_groups(
    users: dict[int, set[int]], dumps: Dumps, world: range
) -> dict[int, tuple[int, ...]]:
    """
    Add members that did not use their mesh group yet.

    The groups of one mesh dimension have equal size, and every rank is in
    exactly one of them.  So if exactly as many ranks are left over as one
    group lacks, they are its missing members.
    """
    for codes in _mesh_dimensions(users, dumps):
        size = max(len(users[code]) for code in codes)
        left = sorted(set(world).difference(*(users[code] for code in codes)))
        # Too few for another group: they belong to the only one.
        if len(codes) == 1 and len(left) < max(size, 2):
            size += len(left)
        short = [code for code in codes if len(users[code]) < size]
        if len(short) == 1 and len(left) == size - len(users[short[0]]):
            users[short[0]].update(left)

    return {code: tuple(sorted(ranks)) for code, ranks in users.items()}


def _mesh_dimensions(
    users: Mapping[int, set[int]], dumps: Dumps
) -> list[list[int]]:
    """
    Return the codes of mesh groups, one list per dimension.
    """
    dimensions: dict[str, list[int]] = defaultdict(list)
    for code in users:
        desc = dumps.groups[code][1]
        if desc.startswith("mesh_"):
            dimensions[desc].append(code)

    return list(dimensions.values())


def _find_world_size(dumps: Dumps, users: Mapping[int, set[int]]) -> int:
    if dumps.world_size is not None:
        return dumps.world_size

    seen = max([*dumps.ranks, *dumps.sidecars], default=-1) + 1
    meshes = [
        len(codes) * max(len(users[code]) for code in codes)
        for codes in _mesh_dimensions(users, dumps)
    ]
    return max([seen, *meshes, _gathered_world_size(dumps)])


def _gathered_world_size(dumps: Dumps) -> int:
    """
    Return output by input size of all-gathers in the world; 0 if unknown.
    """
    gathers = np.array(["all_gather" in op for op in dumps.ops], bool)
    of_world = np.array([desc == "default_pg" for _, desc in dumps.groups])
    # A rank may pass a wrong size, so the ranks vote.
    votes: Counter[int] = Counter()
    for dump in dumps:
        e = dump.entries
        if len(e):
            shapes = e.shape[gathers[e.op] & of_world[e.group]]
            votes.update(
                {
                    _all_gather_ratio(dumps.shapes[x])
                    for x in set(shapes.tolist())
                }
            )
    del votes[0]
    return max(votes, key=lambda size: (votes[size], size), default=0)


def _all_gather_ratio(shape: Shape) -> int:
    if len(shape.input_sizes) != 1 or len(shape.output_sizes) != 1:
        return 0

    sent = count_elements(shape.input_sizes)
    received = count_elements(shape.output_sizes)
    return received // sent if sent and received % sent == 0 else 0


_P2P_OP = late_pattern(r"(send|recv) (\d+)(->|<-)(\d+)", re.ASCII)

# The call completes on no rank before every rank has entered it.
_SYNCHRONIZING_OP = late_pattern(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier",
    re.IGNORECASE,
)

# Ranks may rightly pass different sizes, or (as the root) empty ones.
_UNEVEN_OP = late_pattern(
    r"all_?to_?all|^gather|^scatter|_oop|gatherv|send|recv",
    re.IGNORECASE,
)


_HASH_MULTIPLIER, _SIGNATURE_MASK = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64((1 << 62) - 1),
)


@attrs.frozen(kw_only=True)
class Operation:
    """
    An operation, parsed from the name of a record.

    Attributes:
        name: The operation without its backend, such as ``"all_reduce"``.

        backend: Such as ``"nccl"``; ``""`` if the name has none.

        is_p2p: Whether it is a send or receive.

        source: Sending rank *within the group*; -1 for collectives.

        target: Receiving rank *within the group*; -1 for collectives.

        ends_batch: Whether it closes a batch of coalesced calls.

        synchronizes: Whether its completion proves that every rank entered it.

        is_even: Whether every rank must pass the same sizes.

        has_events: Whether its state follows device events; Gloo has none.
    """

    name: str
    backend: str = ""
    is_send: bool = False
    is_p2p: bool = False
    source: int = -1
    target: int = -1
    ends_batch: bool = False
    synchronizes: bool = False
    is_even: bool = True
    has_events: bool = True

    def ends_in(self, group: Group) -> tuple[int, int] | None:
        """
        Return source and target as global ranks; ``None`` if unknown.
        """
        if not self.is_p2p or len(group.order) <= max(
            self.source, self.target
        ):
            return None

        return group.order[self.source], group.order[self.target]


def parse_operation(text: str) -> Operation:
    """
    Parse the name of a record.

    Args:
        text: Such as ``"nccl:recv 1<-0"``.

    >>> from distdebug.flight_recorder.analysis.membership import (
    ...     parse_operation,
    ... )
    >>> op = parse_operation("nccl2:recv 1<-0")
    >>> op.backend, op.source, op.target
    ('nccl2', 0, 1)
    """
    backend, colon, name = text.partition(":")
    if not colon:
        backend, name = "", text
    if peer := _P2P_OP.fullmatch(name):
        kind, a, arrow, b = peer.groups()
        source, target = (a, b) if arrow == "->" else (b, a)
        return Operation(
            name=kind,
            backend=backend,
            is_send=kind == "send",
            is_p2p=True,
            source=int(source),
            target=int(target),
            is_even=False,
        )

    return Operation(
        name=name,
        backend=backend,
        ends_batch=name.lower().endswith("coalesced") and _is_batch_end(name),
        synchronizes=_SYNCHRONIZING_OP.search(name) is not None,
        is_even=_UNEVEN_OP.search(name) is None,
        has_events=backend != "gloo",
    )


def _is_batch_end(name: str) -> bool:
    # "allreduce_coalesced" is one call over many tensors, but torch closes a
    # batch with "coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced".
    return name == "coalesced" or name.split("_", maxsplit=1)[0].isupper()


class Signatures:
    """
    Signatures of calls, to match a call between ranks.

    Signatures are equal if the operations are equal and, where the operation
    requires it, the numbers of elements and the dtypes.

    Args:
        ops: Names that records refer to by code.

        shapes: Sizes and dtypes that records refer to by code.
    """

    def __init__(self, ops: Sequence[str], shapes: Shapes) -> None:
        self.operations = [parse_operation(op) for op in ops]
        self._columns: dict[str, NDArray[np.bool_]] = {}
        names: dict[str, int] = {}
        self._name = np.array(
            [names.setdefault(op.name, len(names)) for op in self.operations],
            np.uint64,
        )
        # Communication libraries compare counts, not shapes.  Hashes keep
        # millions of shapes fast.
        self._amount = _hash_rows(*shapes.elements.T, shapes.types)

    def column(self, attribute: str) -> NDArray[np.bool_]:
        """
        Return one attribute of :class:`Operation` for every operation code.

        Args:
            attribute: A boolean one, such as ``"is_send"``.
        """
        # Cached, because large jobs have one operation per pair of ranks.
        if attribute not in self._columns:
            self._columns[attribute] = np.array(
                [getattr(op, attribute) for op in self.operations], np.bool_
            )
        return self._columns[attribute]

    def of(
        self, op: NDArray[np.int32], shape: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """
        Return the signatures of records, as opaque integers.
        """
        is_even = self.column("is_even")[op]
        amount = np.where(is_even, self._amount[shape], np.uint64(0))
        # Hashed, so that sums over batches differ for different sets of calls.
        return (_hash_rows(self._name[op], amount) & _SIGNATURE_MASK).astype(
            np.int64
        )


def _hash_rows(*numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """
    Return one hash per row over all columns.
    """
    hashes = np.zeros(len(numbers[0]), np.uint64)
    for column in numbers:
        hashes = (hashes ^ column.astype(np.uint64)) * _HASH_MULTIPLIER
        # Fold the upper bits, which depend on all lower ones, into these.
        hashes ^= hashes >> np.uint64(32)
    return hashes
