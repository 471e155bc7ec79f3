"""
Who is in which group, recorded or guessed.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.flight_recorder import (
    GroupStatus,
    Sidecar,
    SidecarGroup,
    find_groups,
    group_status,
)
from distdebug.testing import SimulatedJob


def members_of(dumps):
    """
    Members by description, and whether they are known.
    """
    return {(g.desc, g.order, g.is_known) for g in find_groups(dumps).groups}


def mesh(backend, world=4, used=range(4)):
    """
    Two groups of two in each dimension, not used by all.
    """
    job = SimulatedJob(world, backend=backend)
    for a in range(0, world, 2):
        pair = job.new_group([a, a + 1], "mesh_tp")
        inside = [r for r in pair.ranks if r in used]
        if inside:
            job.collective("all_reduce", pair, ranks=inside)
    return job


class TestRecorded:
    def test_configs(self, dumps_of):
        """
        NCCL's dumps say who is in a group, in which order; a reference sorts
        the ranks.
        """
        job = SimulatedJob(3)
        job.collective("all_reduce", job.new_group([2, 0], "pp"))
        dumps = dumps_of(job)

        (group,) = find_groups(dumps).groups

        assert {("pp", (2, 0), True)} == members_of(dumps)
        assert (0, 2) == group.ref.ranks

    def test_damaged(self, dumps_of):
        """
        Of more members than any job has, only those count that left something.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        dumps = dumps_of(job)
        claimed = tuple(range(1 << 18))
        claims = {
            dump.rank: attrs.evolve(
                dump,
                configs=tuple(
                    attrs.evolve(c, ranks=claimed) for c in dump.configs
                ),
            )
            for dump in dumps
        }
        sidecar = Sidecar(
            rank=0,
            world_size=1 << 30,
            **dict.fromkeys(("path", "host", "reason"), ""),
            **dict.fromkeys(("pid", "started", "written"), 0),
        )

        found = find_groups(
            attrs.evolve(dumps, by_rank=claims, sidecars={0: sidecar})
        )

        assert [(0, 1)] == [group.order for group in found.groups]
        assert (0, 1) == found.world

    def test_same_name(self, dumps_of):
        """
        Groups of one name and different members are different groups.
        """
        job = SimulatedJob(4)
        left = job.new_group([0, 1], "half", name="x")
        right = job.new_group([2, 3], "half", name="y")
        job.collective("all_reduce", left)
        job.collective("all_reduce", right)
        for rank in (2, 3):
            job.records[rank] = [
                r._replace(group=right._replace(name="x"))
                for r in job.records[rank]
            ]
        job.groups[-1] = right._replace(name="x")

        assert {("half", (0, 1), True), ("half", (2, 3), True)} == members_of(
            dumps_of(job)
        )

    def test_sidecar(self, dumps_of):
        """
        On Gloo, side-cars say it; groups without the rank are not believed.
        """
        job = SimulatedJob(2, backend="gloo")
        job.collective("all_reduce")
        groups = (
            SidecarGroup("0", "default_pg", (0, 1, 2), "gloo"),
            SidecarGroup("1", "forged", (1, 2), "gloo"),
        )
        sidecar = Sidecar("", 0, 3, "n", 1, 0.0, 0.0, "call", groups=groups)

        found = members_of(dumps_of(job, sidecars={0: sidecar}))

        assert {("default_pg", (0, 1, 2), True)} == found


class TestGuessed:
    def test_users(self, dumps_of):
        """
        On Gloo, each rank that used a group is in it, and all ranks are in the
        default group, used or not.
        """
        job = SimulatedJob(4, backend="gloo")
        job.collective("all_reduce", ranks=[0, 1])
        job.collective("all_reduce", job.new_group([1, 3], "x"))
        job.collective("all_reduce", job.new_group([2], "y"))

        assert {
            ("default_pg", (0, 1, 2, 3), False),
            ("x", (1, 3), False),
            ("y", (2,), False),
        } == members_of(dumps_of(job))

    @pytest.mark.parametrize("missing", [[], [3]])
    def test_mesh(self, dumps_of, missing):
        """
        Who is left over is in the mesh group that is too small, which also
        shows the size of the world.
        """
        job = mesh("gloo", used=[0, 1, 2])
        dumps = dumps_of(job, missing=missing)

        assert {
            ("mesh_tp", (0, 1), False),
            ("mesh_tp", (2, 3), False),
        } == members_of(dumps)
        assert 4 == find_groups(dumps).world_size

    @pytest.mark.parametrize(
        ("world", "used", "expected"),
        [
            # Too few for a group of their own.
            (2, [1], {(0, 1)}),
            # Groups of their own, or more of this one?
            (4, [0, 1], {(0, 1)}),
            # Two groups are too small: who is in which?
            (4, [0, 2], {(0,), (2,)}),
        ],
    )
    def test_mesh_rest(self, dumps_of, world, used, expected):
        """
        Who is left over joins a group only if there is no other choice.
        """
        dumps = dumps_of(mesh("gloo", world, used))

        assert expected == {g.order for g in find_groups(dumps).groups}

    @pytest.mark.parametrize(
        ("sizes", "outputs", "size"),
        [
            ([[3]], [[4, 3]], 4),
            # What does not divide says nothing.
            ([[3]], [[10]], 3),
            ([[0]], [[0]], 3),
            ([[3], [3]], [[12], [12]], 3),
            ([], [], 3),
        ],
        ids=range(5),
    )
    def test_gathered(self, dumps_of, sizes, outputs, size):
        """
        The output of an all-gather shows the size of the world.
        """
        job = SimulatedJob(4, backend="gloo")
        job.collective("all_gather", sizes=sizes, output_sizes=outputs)

        membership = find_groups(dumps_of(job, missing=[3]))

        assert size == membership.world_size

    @pytest.mark.parametrize("odd", [0, 1])
    def test_gathered_elsewhere(self, dumps_of, odd):
        """
        All dumps count, as one may have no all-gather, or a wrong one.
        """
        job = SimulatedJob(4, backend="gloo")
        job.collective("all_reduce")
        job.collective(
            "all_gather", ranks=[1, 2], sizes=[[3]], output_sizes=[[12]]
        )
        if odd:
            job.collective(
                "all_gather", ranks=[0], sizes=[[1]], output_sizes=[[12]]
            )

        assert 4 == find_groups(dumps_of(job, missing=[3])).world_size


class TestStatus:
    @pytest.mark.parametrize("only_active", [False, True])
    def test_counters(self, dumps_of, only_active):
        """
        Records tie the counters to groups; without any, numbers and names are
        paired by their order.
        """
        job = SimulatedJob(2)
        pair = job.new_group([0, 1], "tp")
        job.collective("all_reduce")
        job.collective("all_reduce", pair)
        job.collective("all_reduce", pair)
        dumps = dumps_of(job, only_active=only_active)

        membership = find_groups(dumps)
        status = group_status(dumps[1], membership)

        assert only_active == (not len(dumps[1].entries))
        assert {"default_pg": 1, "tp": 2} == {
            membership.groups[i].desc: s.completed for i, s in status.items()
        }

    def test_foreign_config(self, dumps_of):
        """
        Counters of a group that the rank is no member of are left out.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        dumps = dumps_of(job, only_active=True)
        (config,) = dumps[1].configs
        odd = attrs.evolve(
            dumps[1], configs=(attrs.evolve(config, ranks=(0,)),)
        )
        dumps = attrs.evolve(dumps, by_rank={1: odd}, world_size=2)

        assert {} == group_status(odd, find_groups(dumps))

    def test_unknown(self, dumps_of):
        """
        Counters that belong to no known group are left out.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        dumps = dumps_of(job)
        known, foreign = GroupStatus(1, -1, 1), GroupStatus(9, 9, 9)
        odd = attrs.evolve(dumps[0], status={0: known, 77: foreign})

        assert {0: known} == group_status(odd, find_groups(dumps))
