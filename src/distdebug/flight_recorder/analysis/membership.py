"""
Who is in which process group?

The same name can mean different members on different ranks, and Gloo does not
record members at all.  Groups are therefore told apart by name *and* members,
taken from side-cars, then from the dumps, and only then guessed from who used
the name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import attrs

from ...findings import GroupRef
from ..columns import Dumps, GroupStatus, RankDump
from ..reading.sizes import count_elements
from ..shapes import Shape


__all__ = ["Group", "Membership", "find_groups", "group_status"]


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
