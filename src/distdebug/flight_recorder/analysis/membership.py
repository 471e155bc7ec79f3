"""
Who is in which process group?

The same name can mean different members on different ranks, and Gloo does not
record members at all.  Groups are therefore told apart by name *and* members,
taken from side-cars, then from the dumps, and only then guessed from who used
the name.
"""

from __future__ import annotations

import re

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from numpy.typing import NDArray

from ...findings import GroupRef
from ..reading.columns import Dumps, GroupStatus, RankDump, Shape, as_shapes
from ..reading.extract import count_elements


@attrs.frozen(kw_only=True, eq=False)
class Group:
    """
    One process group of the job.

    Attributes:
        name: The name torch gave it.

        desc: Its description.

        order: Global ranks by their rank in the group.

        is_known: Whether the members were recorded, or only guessed.
    """

    name: str
    desc: str
    order: tuple[int, ...]
    is_known: bool

    @property
    def ref(self) -> GroupRef:
        """
        The group as findings name it.
        """
        return GroupRef(
            name=self.name, desc=self.desc, ranks=tuple(sorted(self.order))
        )


@attrs.frozen(kw_only=True, eq=False)
class Membership:
    """
    The process groups of a job, and how each rank refers to them.

    Attributes:
        groups: All groups.

        by_code: Per rank, the group (as index) behind each code in
            :attr:`Entries.group`.

        by_name: Per rank, the group (as index) behind each name it knows.

        world_size: How many ranks the job has.

        world: These ranks; if they are more than any job has, those that left
            something.
    """

    groups: tuple[Group, ...]
    by_code: Mapping[int, Mapping[int, int]]
    by_name: Mapping[int, Mapping[str, int]]
    world_size: int
    world: tuple[int, ...]


def find_groups(dumps: Dumps) -> Membership:
    """
    Find the process groups of a job and their members.

    Args:
        dumps: What the ranks recorded.

    Returns:
        The groups, and who calls them what.
    """
    world_size = _world_size(dumps)
    finder = _Finder(dumps, world_size)
    for dump in dumps:
        finder.add_known(dump)
    for dump in dumps:
        finder.add_used(dump)

    return Membership(
        groups=tuple(finder.groups),
        by_code=finder.by_code,
        by_name=finder.by_name,
        world_size=world_size,
        world=finder.world,
    )


# No job has so many ranks: what tells of more is damaged.
_MOST_RANKS = 1 << 17
_Members = tuple[tuple[int, ...], frozenset[int]]


class _Finder:
    def __init__(self, dumps: Dumps, world_size: int) -> None:
        self.dumps = dumps
        self._left_any = {*dumps.ranks, *dumps.sidecars}
        self.world = self._plausible(range(world_size))
        self.groups: list[Group] = []
        self.by_code: dict[int, dict[int, int]] = {}
        self.by_name: dict[int, dict[str, int]] = {}
        self._index: dict[tuple[str, int], int] = {}
        self._same: dict[tuple[int, ...], _Members] = {}
        self._seen: dict[int, _Members] = {}
        self._users = _fill_meshes(_users(dumps), dumps, range(world_size))

    def add_known(self, dump: RankDump) -> None:
        """
        Note the groups whose members this rank recorded.
        """
        names = self.by_name.setdefault(dump.rank, {})
        for name, desc, ranks in self._recorded(dump):
            names[name] = self._group(name, desc, ranks, is_known=True)

    def add_used(self, dump: RankDump) -> None:
        """
        Tie the codes in the records of this rank to groups.
        """
        names = self.by_name[dump.rank]
        codes = self.by_code.setdefault(dump.rank, {})
        for code in sorted(set(dump.entries.group.tolist())):
            name, desc = self.dumps.groups[code]
            if name not in names:
                is_world = desc == "default_pg"
                members = self.world if is_world else self._users[code]
                names[name] = self._group(name, desc, members, is_known=False)
            codes[code] = names[name]

    def _group(
        self, name: str, desc: str, ranks: tuple[int, ...], *, is_known: bool
    ) -> int:
        ranks, _ = self._members(ranks)
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

    def _plausible(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """
        The ranks; of more than any job has, only those that left something.
        """
        if len(ranks) <= _MOST_RANKS:
            return tuple(ranks)

        return tuple(r for r in ranks if r in self._left_any)

    def _recorded(
        self, dump: RankDump
    ) -> Iterable[tuple[str, str, tuple[int, ...]]]:
        seen = set()
        for g in dump.sidecar.groups if dump.sidecar else ():
            if dump.rank in self._members(g.ranks)[1]:
                seen.add(g.name)
                yield g.name, g.desc, g.ranks
        for c in dump.configs:
            # On Gloo the name is empty and the members are those of any group.
            is_told = c.name and c.name not in seen
            if is_told and dump.rank in self._members(c.ranks)[1]:
                yield c.name, c.desc, c.ranks

    def _members(self, ranks: tuple[int, ...]) -> _Members:
        """
        The first list that is equal to this one, and who is in it.
        """
        # All ranks repeat the same long lists, and share most of them: each
        # is looked at once.  They live as long as the dumps.
        found = self._seen.get(id(ranks))
        if found is None:
            known = self._plausible(ranks)
            found = self._same.setdefault(known, (known, frozenset(known)))
            self._seen[id(ranks)] = found
        return found


def group_status(
    dump: RankDump, membership: Membership
) -> dict[int, GroupStatus]:
    """
    Find the counters of each group, which torch files under process-local ids.

    Records tie ids to groups.  An idle rank has no records; then ids and
    numeric names are paired by their order, because both count creations.

    Args:
        dump: What the rank recorded.

        membership: The groups of the job.

    Returns:
        The counters by group (as index).
    """
    codes = membership.by_code[dump.rank]
    e = dump.entries
    group_of = {
        pg_id: codes[code]
        for pg_id, code in set(
            zip(e.pg_id.tolist(), e.group.tolist(), strict=True)
        )
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


def _users(dumps: Dumps) -> dict[int, set[int]]:
    """
    Find who used each group, by its code.
    """
    users: dict[int, set[int]] = defaultdict(set)
    for dump in dumps:
        for code in set(dump.entries.group.tolist()):
            users[code].add(dump.rank)

    return users


def _fill_meshes(
    users: dict[int, set[int]], dumps: Dumps, world: range
) -> dict[int, tuple[int, ...]]:
    """
    Add the members that did not get to use their group.

    The groups of one mesh dimension are equally large, and every rank is in
    exactly one of them.  So where just enough ranks are left over, they are
    the missing members.
    """
    for codes in _mesh_dimensions(users, dumps):
        size = max(len(users[code]) for code in codes)
        left = sorted(set(world).difference(*(users[code] for code in codes)))
        # Too few for a group of their own: they belong to the only one.
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
    Sort the codes of mesh groups by their dimension.
    """
    dimensions: dict[str, list[int]] = defaultdict(list)
    for code in users:
        desc = dumps.groups[code][1]
        if desc.startswith("mesh_"):
            dimensions[desc].append(code)

    return list(dimensions.values())


def _world_size(dumps: Dumps) -> int:
    if dumps.world_size is not None:
        return dumps.world_size

    seen = max([*dumps.ranks, *dumps.sidecars], default=-1) + 1
    users = _users(dumps)
    meshes = [
        len(codes) * max(len(users[code]) for code in codes)
        for codes in _mesh_dimensions(users, dumps)
    ]
    return max([seen, *meshes, *_gathered(dumps)])


def _gathered(dumps: Dumps) -> Iterable[int]:
    """
    The world sizes that the outputs of all-gathers of the world betray.
    """
    for dump in dumps:
        e = dump.entries
        for op, shape, code in {
            *zip(
                e.op.tolist(), e.shape.tolist(), e.group.tolist(), strict=True
            )
        }:
            if (
                dumps.groups[code][1] == "default_pg"
                and "all_gather" in dumps.ops[op]
            ):
                yield _ratio(dumps.shapes[shape])
        return  # Every rank of the world says the same.


def _ratio(shape: Shape) -> int:
    if len(shape.input_sizes) != 1 or len(shape.output_sizes) != 1:
        return 0

    given = count_elements(shape.input_sizes)
    got = count_elements(shape.output_sizes)
    return got // given if given and got % given == 0 else 0


_PEER = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)", re.ASCII)

# The call completes on no rank before every rank has entered it.
_SYNCHRONIZING = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier",
    re.IGNORECASE,
)

# Ranks may rightly pass different sizes, or (as the root) empty ones.
_UNEVEN = re.compile(
    r"all_?to_?all|^gather|^scatter|_oop|gatherv|send|recv",
    re.IGNORECASE,
)


_SPREAD, _MASK = np.uint64(0x9E3779B97F4A7C15), np.uint64((1 << 62) - 1)


@attrs.frozen(kw_only=True)
class Operation:
    """
    What the name of a record says.

    Attributes:
        name: The operation without its backend, such as ``"all_reduce"``.

        backend: Such as ``"nccl"``; ``""`` if the name has none.

        is_send: Whether it sends to another rank.

        is_recv: Whether it receives from another rank.

        source: For these two, the sending rank *within the group*.

        target: For these two, the receiving rank *within the group*.

        ends_batch: Whether it closes a batch of coalesced calls.

        synchronizes: Whether completing it proves that every rank entered it.

        is_even: Whether every rank must pass the same sizes.

        has_events: Whether its state follows the device; Gloo has none.
    """

    name: str
    backend: str = ""
    is_send: bool = False
    is_recv: bool = False
    source: int = -1
    target: int = -1
    ends_batch: bool = False
    synchronizes: bool = False
    is_even: bool = True
    has_events: bool = True

    @property
    def is_p2p(self) -> bool:
        """
        Whether it is between two ranks.
        """
        return self.is_send or self.is_recv


def parse_operation(text: str) -> Operation:
    """
    Read the name of a record.

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
    if peer := _PEER.fullmatch(name):
        kind, a, arrow, b = peer.groups()
        source, target = (a, b) if arrow == "->" else (b, a)
        return Operation(
            name=kind,
            backend=backend,
            is_send=kind == "send",
            is_recv=kind == "recv",
            source=int(source),
            target=int(target),
            is_even=False,
        )

    return Operation(
        name=name,
        backend=backend,
        ends_batch=name.lower().endswith("coalesced") and _is_batch(name),
        synchronizes=_SYNCHRONIZING.search(name) is not None,
        is_even=_UNEVEN.search(name) is None,
        has_events=backend != "gloo",
    )


def _is_batch(name: str) -> bool:
    # "allreduce_coalesced" is one call over many tensors, but torch closes a
    # batch with "coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced".
    return name == "coalesced" or name.split("_", maxsplit=1)[0].isupper()


class Signatures:
    """
    Which calls could be the same call, seen from different ranks?

    Ranks agree in a call if their signatures are equal: same operation and,
    where the operation demands it, same number of elements and same types.

    Args:
        ops: The names that records refer to.

        shapes: The sizes and types that records refer to.
    """

    def __init__(self, ops: Sequence[str], shapes: Sequence[Shape]) -> None:
        self.operations = [parse_operation(op) for op in ops]
        self._columns: dict[str, NDArray[np.bool_]] = {}
        names: dict[str, int] = {}
        self._name = np.array(
            [names.setdefault(op.name, len(names)) for op in self.operations],
            np.uint64,
        )
        # What has to be equal: a communication library sees counts, not
        # shapes.  Hashed, because there may be millions.
        known = as_shapes(shapes)
        self._amount = _mixed(*known.elements.T, known.types)

    def column(self, attribute: str) -> NDArray[np.bool_]:
        """
        One truth per operation code.

        Args:
            attribute: Of :class:`Operation`, such as ``"is_send"``.
        """
        # Every rank asks, and a large job has an operation per pair of ranks.
        if attribute not in self._columns:
            self._columns[attribute] = np.array(
                [getattr(op, attribute) for op in self.operations], np.bool_
            )
        return self._columns[attribute]

    def of(
        self, op: NDArray[np.int32], shape: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """
        The signatures of records, as integers without further meaning.
        """
        is_even = self.column("is_even")[op]
        amount = np.where(is_even, self._amount[shape], np.uint64(0))
        # Spread, so that the sum over a batch tells sets of calls apart.
        return (_mixed(self._name[op], amount) & _MASK).astype(np.int64)


def _mixed(*numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """
    One number for each row that is equal where all of them are.
    """
    mixed = np.zeros(len(numbers[0]), np.uint64)
    for column in numbers:
        mixed = (mixed ^ column.astype(np.uint64)) * _SPREAD
        # The upper bits depend on all below them.
        mixed ^= mixed >> np.uint64(32)
    return mixed
