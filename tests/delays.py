"""
Simulated training jobs with slow ranks, nodes, and links, and how many are found.

``python -m tests.delays --ranks 64 --cases 100 --seed 7`` prints one line for each
case that was judged wrong, and the totals.  A job has hosts that run ahead of
their GPUs, steps that end with a synchronization, and tensor, data, and pipeline
parallel groups; each case has its own sizes, jitter, and clocks.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from distdebug.causes import Cause
from distdebug.findings import Finding
from distdebug.flight_recorder import Dumps, analyze_dumps, read_dumps
from distdebug.testing import SimulatedGroup, SimulatedJob, make_dumps
from distdebug.testing.jobs import Call, Record


POLL_S = 0.1
SHAPE = (((1024,),), ["Float"], ((1024,),), ["Float"])
C10D = "torch/distributed/distributed_c10d.py"


@attrs.define(kw_only=True)
class Plan:
    """
    A job, and what is slow in it.

    Attributes:
        world: The number of ranks.

        tp: Ranks of a tensor parallel group.

        per_node: Ranks of a node.

        backend: ``"nccl"`` or ``"gloo"``.

        timed: Whether the recorder measures durations.

        polled: Whether ends are noticed by a watchdog that polls.

        steps: The number of steps.

        layers: Calls in each tensor parallel group, per direction.

        step_s: How long a step computes.

        jitter: Its relative deviation.

        on_host: Extra seconds of a rank's host before a call of a step, by
            ``(rank, step, call)``.

        on_device: The same on its GPU.

        stages: Stages of the pipeline.

        microbatches: How many pass through it in a step.

        transfer_s: How long a transfer between two nodes takes.

        slow: The ranks to be named; empty if no rank is to be.

        slow_nodes: The two nodes between which transfers are slow, or the one
            node whose network is.

        link_factor: By how much.

        is_hidden: Whether the dumps cannot show it.

        offsets: By how much the clock of each node is ahead, in seconds.
    """

    world: int
    tp: int
    per_node: int = 8
    backend: str = "nccl"
    timed: bool = False
    polled: bool = False
    steps: int = 30
    layers: int = 3
    step_s: float = 0.3
    jitter: float = 0.02
    on_host: Callable[[int, int, int], float] = lambda *_: 0.0
    on_device: Callable[[int, int, int], float] = lambda *_: 0.0
    stages: int = 1
    microbatches: int = 4
    transfer_s: float = 0.001
    slow: frozenset[int] = frozenset()
    slow_nodes: frozenset[int] = frozenset()
    link_factor: float = 1.0
    is_hidden: bool = False
    offsets: dict[int, float] = attrs.field(factory=dict)


class Trainer:
    """
    Plays a plan; times are kept per rank, of its host and of its GPU.
    """

    def __init__(self, plan: Plan, chance: random.Random) -> None:
        self.plan = plan
        self.noise = np.random.default_rng(chance.randrange(1 << 30))
        self.job = SimulatedJob(plan.world, backend=plan.backend)
        self.host = np.full(plan.world, self.job.clock)
        self.gpu = self.host.copy()
        self.numbers: Counter[tuple[str, int]] = Counter()
        tp, size = plan.tp, plan.world // plan.stages
        self.tp = [
            self.job.new_group(range(i, i + tp), "mesh_tp")
            for i in range(0, plan.world, tp)
        ]
        self.dp = [
            self.job.new_group(range(first + i, first + size, tp), "mesh_dp")
            for first in range(0, plan.world, size)
            for i in range(tp)
        ]
        self.pp = [
            self.job.new_group(range(i, plan.world, size), "mesh_pp")
            for i in range(size)
            if plan.stages > 1
        ]

    def play(self) -> SimulatedJob:
        """
        Run all steps.
        """
        plan = self.plan
        calls = 2 * plan.layers + 1
        for step in range(plan.steps):
            self.number = 0
            if plan.stages > 1:
                self.pass_through(step)
            else:
                for _ in range(2 * plan.layers):
                    self.run(self.tp, step, plan.step_s / calls, "layer", 40)
            self.run(self.dp, step, plan.step_s / calls, "reduce_grads", 60)
            self.run([self.job.world], step, 0.0, "clip_grads", 70)
            # The loss is read: the host waits for its GPU.
            self.host = np.maximum(self.host, self.gpu)
        self.job.clock = float(max(self.host.max(), self.gpu.max())) + 0.2
        return self.job

    def pass_through(self, step: int) -> None:
        """
        Let all microbatches go forward through the stages, and back.
        """
        plan = self.plan
        forward = range(plan.stages)
        compute_s = plan.step_s / 2 / plan.microbatches / plan.stages
        per_stage = len(self.tp) // plan.stages
        for order in (forward, forward[::-1]):
            for _ in range(plan.microbatches):
                for stage in order:
                    if stage != order[0]:
                        self.transfer(stage - order.step, stage)
                    self.number = 0 if order is forward else 1
                    groups = self.tp[stage * per_stage :][:per_stage]
                    self.run(groups, step, compute_s, "layer", 40)
        self.number = 2

    def transfer(self, source: int, target: int) -> None:
        """
        Send from each rank of one stage to its counterpart in another one.
        """
        plan = self.plan
        for group in self.pp:
            pair = group.ranks[source], group.ranks[target]
            nodes = {rank // plan.per_node for rank in pair}
            took = plan.transfer_s * float(self.noise.lognormal(0, 0.1))
            if len(nodes) == 1:
                took /= 10
            elif plan.slow_nodes and plan.slow_nodes <= nodes:
                took *= plan.link_factor
            call = Call(frozenset(pair), took, ops={"p2p"})
            for rank in pair:
                self.host[rank] += 3e-5 * self.noise.lognormal(0, 0.5)
                start = max(self.gpu[rank], self.host[rank])
                call.entered[rank] = float(start)
                self.numbers[group.name + " p2p", rank] += 1
                is_send = rank == pair[0]
                self.job.records[rank].append(
                    Record(
                        group,
                        f"send {source}->{target}"
                        if is_send
                        else f"recv {target}<-{source}",
                        self.numbers[group.name, rank],
                        self.numbers[group.name + " p2p", rank],
                        self.numbers[group.name + " p2p", rank],
                        float(self.host[rank]),
                        call,
                        SHAPE,
                        (
                            ("isend" if is_send else "irecv", C10D, 2100),
                            ("send_next", "/home/me/train.py", 50)
                            if is_send
                            else ("recv_before", "/home/me/train.py", 55),
                            ("main", "/home/me/train.py", 9),
                        ),
                        is_p2p=True,
                        reached=float(start),
                    )
                )
            end = call.completed
            assert end is not None
            self.gpu[list(pair)] = end

    def run(
        self,
        groups: Sequence[SimulatedGroup],
        step: int,
        compute_s: float,
        name: str,
        line: int,
    ) -> None:
        """
        Let each rank compute, and then enter the next call of its group.
        """
        plan, world = self.plan, self.plan.world
        at = self.number
        self.number += 1
        work = compute_s * self.noise.lognormal(0, plan.jitter, world)
        every = sorted(rank for group in groups for rank in group.ranks)
        work = work[every]
        host = np.array([plan.on_host(r, step, at) for r in every])
        work += [plan.on_device(r, step, at) for r in every]
        launch = 30e-6 * self.noise.lognormal(0, 0.5, world)
        self.host[every] += host + launch[every]
        if plan.backend == "gloo":
            self.host[every] += work
            reached = self.host.copy()
        else:
            reached = np.maximum(self.gpu, self.host)
            reached[every] += work
        stack = (
            ("all_reduce", C10D, 3245),
            (name, "/home/me/train.py", line),
            ("main", "/home/me/train.py", 9),
        )
        for group in groups:
            ranks = list(group.ranks)
            call = Call(frozenset(ranks), 0.0005, ops={"all_reduce"})
            call.entered = {r: float(reached[r]) for r in ranks}
            for rank in ranks:
                self.numbers[group.name, rank] += 1
                number = self.numbers[group.name, rank]
                self.job.records[rank].append(
                    Record(
                        group,
                        "all_reduce",
                        number,
                        0,
                        number,
                        float(self.host[rank]),
                        call,
                        SHAPE,
                        stack,
                        reached=float(reached[rank]),
                    )
                )
            end = call.completed
            assert end is not None
            self.gpu[ranks] = end
            if plan.backend == "gloo":
                self.host[ranks] = end


def dumps_of(plan: Plan, chance: random.Random) -> Dumps:
    """
    Play a plan, and read the dumps that it leaves.
    """
    job = Trainer(plan, chance).play()
    offsets = {
        r: plan.offsets.get(r // plan.per_node, 0.0) for r in range(plan.world)
    }
    with tempfile.TemporaryDirectory() as folder:
        make_dumps(folder, job, timed=plan.timed, clock_offsets_s=offsets)
        dumps = read_dumps(Path(folder))
    noise = np.random.default_rng(chance.randrange(1 << 30))
    by_rank = {}
    for rank, dump in dumps.by_rank.items():
        changes: dict[str, Any] = {}
        if plan.polled:
            ends, phase = dump.entries.completed_ns, noise.uniform(0, POLL_S)
            late = np.ceil((ends / 1e9 - phase) / POLL_S) * POLL_S + phase
            late = (late * 1e9).astype(np.int64)
            changes["completed_ns"] = np.where(ends > 0, late, ends)
        by_rank[rank] = attrs.evolve(
            dump,
            host=f"node{rank // plan.per_node}",
            entries=attrs.evolve(dump.entries, **changes),
        )
    return attrs.evolve(dumps, by_rank=by_rank)


def _of_step(cost: float, plan: Plan) -> float:
    """
    Return the seconds that are this share of the time with them.
    """
    return plan.step_s * cost / (1 - cost)


def healthy(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    Everybody is equally fast.
    """


def in_turn(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    Another rank is slow every few steps.
    """
    order = [chance.randrange(plan.world) for _ in range(plan.steps)]
    extra, every = _of_step(cost, plan), chance.choice([1, 2, 3])
    plan.on_host = lambda r, step, call: (
        extra if call == 0 and order[step // every] == r else 0.0
    )


def all_pause(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    All ranks save a checkpoint now and then, and take about equally long.
    """
    extra, every = 10 * _of_step(cost, plan), chance.choice([5, 10])
    plan.on_host = lambda r, step, call: (
        extra * chance.lognormvariate(0, 0.05)
        if call == 0 and step % every == 0
        else 0.0
    )


def host(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    One rank loads its data slowly.
    """
    slow, extra = chance.randrange(plan.world), _of_step(cost, plan)
    plan.slow = frozenset({slow})
    plan.on_host = lambda r, _, call: extra if (r, call) == (slow, 0) else 0.0


def host_within(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    One rank is slow before a call within the step, by varying amounts.
    """
    slow, extra = chance.randrange(plan.world), _of_step(cost, plan)
    at = chance.randrange(2 * plan.layers + 1)
    plan.slow = frozenset({slow})
    plan.is_hidden = not plan.timed
    # The GPU has to catch up with it, as it is idle until then.
    plan.on_device = lambda r, _, call: (
        extra * chance.uniform(0.7, 1.3) if (r, call) == (slow, at) else 0.0
    )


def device(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    One GPU is slow in all that it computes.
    """
    slow, calls = chance.randrange(plan.world), 2 * plan.layers + 1
    extra = _of_step(cost, plan) / calls
    plan.slow = frozenset({slow})
    plan.is_hidden = not plan.timed
    plan.on_device = lambda r, _, call: (
        extra if r == slow and call < calls else 0.0
    )


def several(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    Two or three ranks are slow, each in its own way.
    """
    count = min(chance.choice([2, 3]), plan.world // 8)
    slow = chance.sample(range(plan.world), count)
    extra = {r: _of_step(cost, plan) * chance.uniform(0.8, 1.2) for r in slow}
    plan.slow = frozenset(slow)
    plan.on_host = lambda r, _, call: (
        extra.get(r, 0.0) * chance.uniform(0.7, 1.3) if call == 0 else 0.0
    )


def node(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    All ranks of a node are slow.
    """
    odd = chance.randrange(plan.world // plan.per_node)
    extra = _of_step(cost, plan)
    ranks = range(odd * plan.per_node, (odd + 1) * plan.per_node)
    plan.slow = frozenset(ranks)
    # Ends that a watchdog may have found late leave clocks of nodes in doubt.
    plan.is_hidden = not plan.timed and extra < 0.06
    plan.on_host = lambda r, _, call: (
        extra * chance.uniform(0.9, 1.1) if call == 0 and r in ranks else 0.0
    )


def periodic(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    One rank is slow in every n-th step.
    """
    every = chance.choice([3, 5])
    slow, extra = chance.randrange(plan.world), every * _of_step(cost, plan)
    plan.slow = frozenset({slow})
    plan.on_host = lambda r, step, call: (
        extra if (r, call, step % every) == (slow, 0, every - 1) else 0.0
    )


def _make_pipeline(plan: Plan, chance: random.Random) -> None:
    plan.stages = chance.choice([2, 4])
    plan.tp = min(plan.tp, plan.world // plan.stages // 2)
    plan.microbatches = chance.choice([4, 8])
    plan.transfer_s = plan.step_s * chance.choice([0.001, 0.01]) / 4


def pipeline(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    Stages send to each other, and everybody is equally fast.
    """
    _make_pipeline(plan, chance)


def pipeline_device(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    One GPU of a pipeline is slow.
    """
    _make_pipeline(plan, chance)
    slow = chance.randrange(plan.world)
    extra = _of_step(cost, plan) / 2 / plan.microbatches
    plan.slow = frozenset({slow})
    plan.is_hidden = not plan.timed
    plan.on_device = lambda r, _, call: (
        extra if r == slow and call < 2 else 0.0
    )


def link(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    Transfers between two nodes of a pipeline are slow.
    """
    _make_pipeline(plan, chance)
    plan.stages = 4
    nodes = plan.world // plan.per_node
    first = chance.randrange(nodes - nodes // plan.stages)
    plan.slow_nodes = frozenset({first, first + nodes // plan.stages})
    _slow_down_links(plan, cost)


def node_network(plan: Plan, chance: random.Random, cost: float) -> None:
    """
    Transfers to and from a node of a pipeline are slow.
    """
    _make_pipeline(plan, chance)
    plan.stages = 4
    per_stage = plan.world // plan.per_node // plan.stages
    # With neighbors on both sides.
    plan.slow_nodes = frozenset({chance.randrange(per_stage, 3 * per_stage)})
    _slow_down_links(plan, cost)


def _slow_down_links(plan: Plan, cost: float) -> None:
    plan.tp = min(plan.tp, plan.world // plan.stages // 2)
    transfers = 2 * plan.microbatches
    plan.link_factor = 1 + _of_step(cost, plan) / transfers / plan.transfer_s
    plan.is_hidden = not plan.timed


KINDS: dict[str, Callable[[Plan, random.Random, float], None]] = {
    f.__name__: f
    for f in (
        healthy,
        in_turn,
        all_pause,
        host,
        host_within,
        device,
        several,
        node,
        periodic,
        pipeline,
        pipeline_device,
        link,
        node_network,
    )
}


def make_plan(
    kind: str, world: int, chance: random.Random
) -> tuple[Plan, float]:
    """
    Return a plan of a kind, and the share of the time that is lost.
    """
    plan = Plan(
        world=world,
        tp=chance.choice([x for x in (2, 4, 8) if x < world]),
        per_node=8 if world >= 32 else max(2, world // 4),
        timed=chance.random() < 0.4,
        step_s=chance.choice([0.05, 0.2, 0.7, 2.0]),
        jitter=chance.choice([0.005, 0.02, 0.05]),
        layers=chance.choice([1, 3, 5]),
        steps=chance.choice([20, 40]),
    )
    plan.polled = not plan.timed and chance.random() < 0.5
    nodes = plan.world // plan.per_node
    if chance.random() < 0.5:
        plan.offsets = {n: chance.uniform(-0.4, 0.4) for n in range(nodes)}
    cost = 0.04 * 20 ** chance.random()
    KINDS[kind](plan, chance, cost)
    return plan, cost


def judge(plan: Plan, found: Sequence[Finding]) -> str:
    """
    Return what is wrong with the findings; ``""`` if nothing is.
    """
    named = {
        rank
        for finding in found
        if finding.cause is Cause.STRAGGLER
        for rank in finding.ranks
    }
    if named - plan.slow:
        return f"blamed {sorted(named - plan.slow)[:8]}"
    if plan.slow - named and not plan.is_hidden:
        return f"missed {sorted(plan.slow - named)[:8]}"
    nodes = {
        frozenset(rank // plan.per_node for rank in finding.ranks)
        for finding in found
        if finding.cause is Cause.SLOW_LINK
    }
    if nodes - {plan.slow_nodes}:
        return f"blamed the network between {sorted(map(sorted, nodes))}"
    if plan.slow_nodes and not nodes and not plan.is_hidden:
        return f"missed the network between {sorted(plan.slow_nodes)}"
    return ""


def cases(
    options: argparse.Namespace,
) -> Iterator[tuple[str, Plan, float, str]]:
    """
    Yield each case with what is wrong with its findings.
    """
    for number in range(options.cases):
        kind = options.kinds[number % len(options.kinds)]
        chance = random.Random(f"{options.seed} {number}")
        plan, cost = make_plan(kind, options.ranks, chance)
        analysis = analyze_dumps(dumps_of(plan, chance))
        yield kind, plan, cost, judge(plan, analysis.findings)


def main() -> int:
    """
    Print what was judged wrong.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--cases", type=int, default=90)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for kind, plan, cost, wrong in cases(options):
        totals[kind] += 1
        right[kind] += not wrong
        if wrong:
            print(
                f"{kind} {cost:.0%}: {wrong} (tp {plan.tp}, "
                f"step {plan.step_s} s, jitter {plan.jitter}, "
                f"timed {plan.timed}, polled {plan.polled}, "
                f"clocks {bool(plan.offsets)}, slow {sorted(plan.slow)[:8]})",
                flush=True,
            )
    for kind, count in totals.items():
        print(f"{kind}: {right[kind]} of {count}")
    return int(sum(right.values()) < sum(totals.values()))


if __name__ == "__main__":
    sys.exit(main())
