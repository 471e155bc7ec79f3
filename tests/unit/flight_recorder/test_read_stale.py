"""
Files that are left over from an earlier run.
"""

from __future__ import annotations

import pytest

from distdebug.flight_recorder import Sidecar, read_dumps, write_sidecar
from distdebug.testing import SimulatedJob, make_dumps


pytestmark = pytest.mark.usefixtures("decoded_here")

NOW = 1_750_000_000.0


def run(started=NOW, *, calls=20, stuck=None, world_size=5, **options):
    """
    A run of a job, at the end of which everybody waits for one rank.
    """
    job = SimulatedJob(world_size, started=started, **options)
    for _ in range(calls):
        job.collective("all_reduce")
    if stuck is not None:
        job.collective(
            "all_reduce", ranks=[r for r in range(world_size) if r != stuck]
        )
    return job


def stale_ranks(folder):
    """
    The ranks whose files are called stale.
    """
    dumps = read_dumps(folder)
    stale = [p.rank for p in dumps.problems if p.reason.startswith("stale: ")]
    assert not set(stale) & set(dumps.ranks)
    return stale


class TestFound:
    @pytest.mark.parametrize("backend", ["nccl", "gloo"])
    @pytest.mark.parametrize("age", [120, 3600, 86400 * 30])
    def test_earlier_run(self, tmp_path, age, backend):
        """
        The dump of a rank that left none this time is recognized by its age.
        """
        old, new = (run(t, stuck=3, backend=backend) for t in (NOW - age, NOW))
        make_dumps(tmp_path, old, missing=[0, 1, 3, 4])
        make_dumps(tmp_path, new, missing=[2])

        dumps = read_dumps(tmp_path)

        assert (0, 1, 3, 4) == dumps.ranks
        (problem,) = dumps.problems
        assert 2 == problem.rank
        assert f"{age:,} s before the others" in problem.reason

    def test_wrapped(self, tmp_path):
        """
        Also if the rings lost their beginning.
        """
        make_dumps(
            tmp_path, run(NOW - 3600, stuck=1), missing=[0, 1, 3, 4], ring=8
        )
        make_dumps(tmp_path, run(stuck=1), missing=[2], ring=8)

        assert [2] == stale_ranks(tmp_path)

    def test_nothing_in_common(self, tmp_path):
        """
        Also if the runs have no call in common.
        """
        old = SimulatedJob(5, started=NOW - 3600)
        old.collective("all_reduce", old.new_group(range(5), name="other"))
        make_dumps(tmp_path, old, missing=[0, 1, 3, 4])
        make_dumps(tmp_path, run(stuck=1), missing=[2])

        assert [2] == stale_ranks(tmp_path)

    def test_only_waiting(self, tmp_path):
        """
        Also if it did nothing but wait, longer than anybody has patience.
        """
        old = run(NOW - 3600, calls=0, stuck=1)
        make_dumps(tmp_path, old, missing=[0, 1, 3, 4])
        make_dumps(tmp_path, run(stuck=1), missing=[2])

        assert [2] == stale_ranks(tmp_path)

    def test_several(self, tmp_path):
        """
        Any minority can be stale.
        """
        make_dumps(tmp_path, run(NOW - 300, stuck=0), missing=[0, 1, 2])
        make_dumps(tmp_path, run(stuck=0), missing=[3, 4])

        assert [3, 4] == stale_ranks(tmp_path)


class TestNotStale:
    def test_clock_skew(self, tmp_path):
        """
        Clocks of hosts may differ by half a minute.
        """
        make_dumps(tmp_path, run(stuck=3), clock_offsets_s={0: -30.0, 1: 30.0})

        assert [] == stale_ranks(tmp_path)

    @pytest.mark.parametrize("ring", [2000, 3])
    def test_stuck_early(self, tmp_path, ring):
        """
        A rank that got stuck long before the others is in this run.
        """
        job = run()
        others = job.new_group([0, 1, 2, 3], "others")
        job.wait(7200)
        for _ in range(5):
            job.collective("all_reduce", others)
        make_dumps(tmp_path, job, ring=ring)

        assert [] == stale_ranks(tmp_path)

    def test_first_to_come(self, tmp_path):
        """
        A rank may wait for the others for minutes, and then get stuck.
        """
        job = SimulatedJob(5)
        job.collective("all_reduce", ranks=[0])
        job.wait(500)
        job.collective("all_reduce", ranks=[1, 2, 3, 4])
        job.collective("all_reduce", ranks=[1, 2, 3])
        job.wait(500)
        job.collective("barrier", job.new_group([1, 2, 3, 4]))
        make_dumps(tmp_path, job)

        assert [] == stale_ranks(tmp_path)

    def test_first_to_come_waits(self, tmp_path):
        """
        So it is if it still waits when the dumps are taken.
        """
        job = SimulatedJob(5)
        job.collective("all_reduce", ranks=[0])
        job.wait(590)
        job.collective("all_reduce", ranks=[1, 2, 3])
        make_dumps(tmp_path, job)

        assert [] == stale_ranks(tmp_path)

    def test_no_majority(self, tmp_path):
        """
        Between two dumps there is no majority.
        """
        make_dumps(tmp_path, run(NOW - 9999, world_size=2), missing=[0])
        make_dumps(tmp_path, run(world_size=2), missing=[1])

        assert [] == stale_ranks(tmp_path)

    def test_idle(self, tmp_path):
        """
        A dump without records has no age.
        """
        make_dumps(tmp_path, run(), only_active=True)

        assert [] == stale_ranks(tmp_path)

    def test_wrapped_past(self, tmp_path):
        """
        Where the rings have nothing in common, nothing can be said.
        """
        job = run(calls=50, stuck=None)
        job.dump(4)
        job.wait(3000)
        for _ in range(50):
            job.collective("all_reduce")
        make_dumps(tmp_path, job, ring=8)

        assert [] == stale_ranks(tmp_path)


class TestCurrentJob:
    @pytest.mark.parametrize(
        ("runs", "expected"),
        [
            # The job that was started last is the current one.
            ([("a", 1), ("b", 2)], [1]),
            # One clock that is ahead does not make its job the current one.
            ([("a", 1), ("a", 1), ("a", 99), ("b", 2)], [3]),
            # Jobs may have no name.
            ([("", 1), ("", 2)], [0, 1]),
            ([("", 1), ("b", 2)], [0, 1]),
        ],
        ids=["newest", "wrong clock", "nameless", "some nameless"],
    )
    def test_told(self, tmp_path, runs, expected):
        """
        Side-cars tell which run a dump belongs to, and only the newest counts.
        """
        job = SimulatedJob(len(runs))
        job.collective("all_reduce")
        for rank, path in make_dumps(tmp_path, job).items():
            name, started = runs[rank]
            sidecar = Sidecar("", rank, 4, "", 1, started, started, "exit")
            write_sidecar(sidecar._replace(job=name, dump=path.name), path)

        dumps = read_dumps(tmp_path)

        assert expected == list(dumps.ranks) == list(dumps.sidecars)
        assert set(range(len(runs))) - set(expected) == {
            p.rank for p in dumps.problems if p.reason.startswith("stale: ")
        }
