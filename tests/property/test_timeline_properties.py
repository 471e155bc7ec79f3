"""
Laws that hold for every timeline, whatever a job recorded.
"""

from __future__ import annotations

import random

from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.timelines import read_timeline

from distdebug import read_dumps, write_timeline
from distdebug.flight_recorder.timeline.slices import assign_lanes
from distdebug.testing import SimulatedJob, make_dumps


def _job(seed, *, backend, ranks):
    """
    A job that does anything at all.
    """
    dice = random.Random(seed)
    job = SimulatedJob(ranks, backend=backend, stack_depth=dice.randrange(3))
    for _ in range(dice.randrange(3)):
        members = dice.sample(range(ranks), dice.randint(1, ranks))
        job.new_group(members, dice.choice(["dp", "undefined", "", "x\x1b"]))
    for _ in range(dice.randrange(40)):
        _step(job, dice)
    return job


def _step(job, dice):
    group = dice.choice(job.groups)
    rank = dice.choice(group.ranks)
    others = [other for other in group.ranks if other != rank]
    step = dice.randrange(10)
    if step < 6 or not others:
        absent = dice.random() < 0.1
        job.collective(
            dice.choice(["all_reduce", "broadcast", "barrier"]),
            group,
            ranks=group.ranks[1:] if absent else None,
            late={rank: dice.random()},
            duration_s=dice.choice([0.0, 0.001, 0.3]),
        )
    elif step == 6:
        job.send(rank, dice.choice(others), group)
    elif step == 7:
        job.recv(rank, dice.choice(others), group)
    elif step == 8 and job.backend != "gloo":
        peer = dice.choice(others)
        job.coalesced(rank, [("send", peer), ("recv", peer)], group)
    else:
        job.wait(dice.choice([0.0, 0.01, 3.0]))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    backend=st.sampled_from(["nccl", "gloo", "xccl"]),
    ranks=st.integers(2, 6),
    version=st.sampled_from(["2.1", "2.4", "2.9", "2.10"]),
    timed=st.booleans(),
    only_active=st.booleans(),
    skew=st.sampled_from([0.0, 0.001, 5.0, -3600.0]),
    most_arrows=st.integers(0, 50),
    hosts=st.integers(1, 3),
)
def test_rules(  # noqa: PLR0917
    seed, backend, ranks, version, timed, only_active, skew, most_arrows, hosts
):
    """
    Every record is one slice, and the file keeps to the rules of viewers.
    """
    job = _job(seed, backend=backend, ranks=ranks)
    # A dump of active calls has to hold one.
    job.collective("all_reduce", ranks=[0])
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_dumps(
            folder / "dumps",
            job,
            version=version,
            timed=timed,
            only_active=only_active,
            clock_offsets_s={1: skew},
        )
        dumps = read_dumps(folder / "dumps")
        by_rank = {
            dump.rank: attrs.evolve(dump, host=f"h{dump.rank % hosts}")
            for dump in dumps
        }
        dumps = attrs.evolve(dumps, by_rank=by_rank)

        made = write_timeline(
            dumps, folder / "t.json", most_arrows=most_arrows
        )

        # Reading it checks the rules.
        drawn = read_timeline(folder / "t.json")
    expected = sorted(
        (dump.rank, number)
        for dump in dumps
        for number in dump.entries.record_id.tolist()
    )
    assert expected == sorted(
        (s["pid"], s["args"]["record"]) for s in drawn.slices
    )
    assert len(expected) == made.slices
    assert len(drawn.arrows) == made.arrows <= most_arrows
    assert made.tracks == len(drawn.tracks)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=40)
)
def test_lanes(slices):
    """
    Nothing overlaps on a lane, and there are no more lanes than overlap.
    """
    import numpy as np

    begun = sorted((begin, begin + size) for begin, size in slices)
    start, end = np.array(begun, np.int64).reshape(-1, 2).T

    lanes = assign_lanes(start, end).tolist()

    until = {}
    for (begin, stop), lane in zip(begun, lanes, strict=True):
        assert until.get(lane, 0) <= begin
        until[lane] = stop
    most = max(
        (
            sum(a <= begin < b or a == begin for a, b in begun)
            for begin, _ in begun
        ),
        default=0,
    )
    assert len(set(lanes)) <= most
    assert set(lanes) == set(range(len(until)))
