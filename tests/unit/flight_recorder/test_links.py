"""
Transfers that take longer between two nodes than between others.
"""

from __future__ import annotations

import random

import attrs
import numpy as np
import pytest

from tests.delays import Plan, dumps_of

from distdebug.causes import Cause
from distdebug.flight_recorder import analyze_dumps, read_dumps
from distdebug.testing import SimulatedJob, make_dumps


@pytest.fixture(scope="module")
def dumps():
    """
    Dumps of four stages on four nodes, with a slow link from the second.
    """
    plan = Plan(
        world=16,
        tp=2,
        per_node=4,
        stages=4,
        timed=True,
        steps=10,
        slow_nodes=frozenset({1, 2}),
        link_factor=30,
    )
    return dumps_of(plan, random.Random(3))


def _change(dumps, change):
    return attrs.evolve(
        dumps, by_rank={d.rank: change(d) for d in dumps.by_rank.values()}
    )


def _causes(dumps):
    return {finding.cause for finding in analyze_dumps(dumps).findings}


def test_link(dumps):
    """
    Both nodes are named, what it costs, and the ranks at its ends.
    """
    verdict = analyze_dumps(dumps).verdict

    assert verdict.cause is Cause.SLOW_LINK
    assert verdict.ranks == tuple(range(4, 12))
    assert "between node1 and node2" in verdict.summary
    assert verdict.cost.side == "link"
    assert 0.1 < verdict.cost.share < 0.6
    assert verdict.cost.calls == 40
    assert verdict.group.desc == "mesh_pp"


def test_stages_that_wait_are_not_slow(dumps):
    """
    Ranks behind a slow link come late to the calls of all ranks.
    """
    assert _causes(dumps) == {Cause.SLOW_LINK}


def test_wrapped(dumps):
    """
    The newest transfers match where the oldest have been overwritten.
    """

    def cut(dump):
        rows = np.arange(len(dump.entries) // 2, len(dump.entries))
        return attrs.evolve(dump, entries=dump.entries.take(rows))

    assert _causes(_change(dumps, cut)) == {Cause.SLOW_LINK}


def test_without_hosts(dumps):
    """
    Links between unknown nodes may be of different kinds.
    """
    unknown = _change(dumps, lambda dump: attrs.evolve(dump, host=None))

    assert Cause.SLOW_LINK not in _causes(unknown)


def test_without_durations(dumps):
    """
    Ends alone do not show how long a transfer took.
    """

    def forget(dump):
        nothing = np.full(len(dump.entries), np.nan)
        entries = attrs.evolve(dump.entries, duration_ms=nothing)
        return attrs.evolve(dump, entries=entries)

    assert Cause.SLOW_LINK not in _causes(_change(dumps, forget))


def test_topology():
    """
    Where more links are slow than not, and of different nodes, the network is
    made so.
    """
    plan = Plan(world=16, tp=2, per_node=4, stages=4, timed=True, steps=10)
    even = dumps_of(plan, random.Random(3))

    def slow_down(dump):
        ends = [{*even.ops[op]} & {*"0123"} for op in dump.entries.op.tolist()]
        is_slow = [pair in ({"0", "1"}, {"2", "3"}) for pair in ends]
        return _lengthen(dump, np.array(is_slow))

    assert _causes(_change(even, slow_down)) == set()


def test_batches(tmp_path):
    """
    A batch has one duration, that of its end record.
    """
    job = SimulatedJob(8)
    pairs = [(0, 2), (2, 4), (4, 6)]
    groups = [job.new_group(pair, "pp") for pair in pairs]
    for _ in range(10):
        for (a, b), group in zip(pairs, groups, strict=True):
            job.coalesced(a, [("send", b), ("recv", b)], group)
            job.coalesced(b, [("send", a), ("recv", a)], group)
        job.collective("all_reduce")
    make_dumps(tmp_path, job, timed=True)
    even = read_dumps(tmp_path)
    slow = [i for i, known in enumerate(even.groups) if known[0] == "2"]

    def on_node(dump):
        longer = _lengthen(dump, np.isin(dump.entries.group, slow))
        return attrs.evolve(longer, host=f"node{dump.rank // 2}")

    (finding,) = analyze_dumps(_change(even, on_node)).findings

    assert finding.cause is Cause.SLOW_LINK
    assert finding.ranks == (2, 4)
    assert "between node1 and node2" in finding.summary


def _lengthen(dump, is_slow):
    ms = dump.entries.duration_ms
    longer = np.where(is_slow, 30 * ms, ms)
    return attrs.evolve(
        dump, entries=attrs.evolve(dump.entries, duration_ms=longer)
    )
