"""
Telling the jobs of a node from each other.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.findings import Cause, Evidence, Finding
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    explain_stacks,
    is_same_job,
    members_of_job,
)
from distdebug.stacks.jobs import split_jobs, without_strangers


def process(pid, *, job="", rank=None, parent=1, host="n1", role=""):
    """
    A process of some job.
    """
    return ProcessStacks(
        pid=pid,
        source="",
        threads=(),
        job=job,
        rank=rank,
        parent_pid=parent,
        host=host,
        role=role,
    )


def pids(jobs):
    """
    The same with numbers instead of processes.
    """
    return {name: [p.pid for p in members] for name, members in jobs.items()}


def test_two_jobs():
    """
    Two jobs on a node are two jobs, although both have a rank 0.
    """
    jobs = split_jobs(
        [
            process(10, job="a", rank=0),
            process(20, job="b", rank=0),
            process(11, job="a", rank=1),
        ]
    )

    assert {"a": [10, 11], "b": [20]} == pids(jobs)


def test_family():
    """
    Children, launchers, and siblings belong to the job they are related to.
    """
    jobs = split_jobs(
        [
            process(5),
            process(10, job="a", rank=0, parent=5),
            process(11, parent=5),
            process(12, parent=10),
            process(20, job="b", rank=0, parent=6),
            process(30, parent=7),
        ]
    )

    assert {"a": [5, 10, 11, 12], "b": [20], "": [30]} == pids(jobs)


def test_unknown():
    """
    Where nothing is known, everybody is taken together.
    """
    jobs = split_jobs([process(10, rank=0), process(11)])

    assert {"": [10, 11]} == pids(jobs)


def test_only_job():
    """
    A rank that does not know its job belongs to the only one there is.
    """
    jobs = split_jobs(
        [
            process(10, job="a", rank=0, parent=5),
            process(10, rank=1, parent=9, host="n2"),
            process(11, parent=9, host="n2"),
        ]
    )

    assert {"a": [10, 10], "": [11]} == pids(jobs)


def twins():
    """
    Two servers with two ranks each, and what belongs to them.
    """
    return [
        process(pid + n, rank=n, parent=pid, role="rank")
        for pid in (100, 200)
        for n in (1, 2)
    ]


def test_stranger():
    """
    A rank without a job, whose place in the only job is taken, is of another.
    """
    jobs = split_jobs(
        [
            process(10, job="a", rank=0, parent=5, role="rank"),
            process(11, job="a", rank=1, parent=5, role="rank"),
            process(77, rank=0, parent=70, role="rank"),
            process(12, rank=2, parent=6, role="rank"),
        ]
    )

    assert {"a": [10, 11, 12], "of parent 70": [77]} == pids(jobs)


def test_pasted_twice():
    """
    Where no process is known, the same rank twice is the same rank.
    """
    jobs = split_jobs(
        [
            process(10, job="a", rank=0, parent=5, role="rank"),
            process(0, rank=0, parent=None, role="rank"),
        ]
    )

    assert {"a": [10], "": [0]} == pids(jobs)


def test_twins():
    """
    Where a rank is there twice, and nothing names a job, parents do.
    """
    others = [
        process(100),
        process(103, rank=1, parent=101, role="rank"),
        process(104, parent=103),
        process(300),
        process(400, parent=401),
        process(401, parent=400),
    ]

    jobs = split_jobs([*twins(), *others])

    assert {
        "of parent 100": [101, 102, 100, 103, 104],
        "of parent 200": [201, 202],
        "": [300, 400, 401],
    } == pids(jobs)


def test_twins_on_two_nodes():
    """
    A number of a process may occur on another node, too.
    """
    there = [attrs.evolve(p, host="n2") for p in twins()[:2]]

    jobs = split_jobs([*twins()[:2], *there])

    assert {
        "of parent 100 on n1": [101, 102],
        "of parent 100 on n2": [101, 102],
    } == pids(jobs)


def test_ranks_of_several_nodes():
    """
    Ranks of one job stay together, whoever started them.
    """
    known = [
        process(10, rank=0, parent=5, role="rank"),
        process(10, rank=1, parent=6, role="rank", host="n2"),
    ]

    assert {"": [10, 10]} == pids(split_jobs(known))


def test_twins_of_one_parent():
    """
    Twins with the same parent cannot be told apart.
    """
    known = [
        process(10, rank=0, parent=5, role="rank"),
        process(11, rank=0, parent=5, role="rank"),
        process(12, rank=0, parent=None, role="rank"),
    ]

    assert {"": [10, 11, 12]} == pids(split_jobs(known))


def test_twins_are_judged_apart():
    """
    Nobody waits for the rank of another server, and all are counted.
    """
    wait = ("all_reduce", "torch/distributed/distributed_c10d.py", 1)
    lines = (StackFrame(*wait), StackFrame("train", "a.py", 3))
    thread = ThreadStack(name="", frames=lines, is_main=True)
    known = [attrs.evolve(p, threads=(thread,)) for p in twins()]

    apart = explain_stacks(known)
    (together,) = explain_stacks(
        [attrs.evolve(p, parent_pid=None) for p in known]
    )

    assert [
        "job of parent 100: ranks 1-2 are",
        "job of parent 200: ranks 1-2 are",
    ] == [f.summary.partition(" waiting")[0] for f in apart]
    assert together.summary.startswith("4 processes of ranks 1-2 are waiting")


def zombie(pid, parent, **changes):
    """
    A dead process, whose rank and job nobody can tell any more.
    """
    return attrs.evolve(process(pid, parent=parent), state="Z", **changes)


def threads(*states):
    """
    Threads without stacks.
    """
    return tuple(ThreadStack(name="", frames=(), state=s) for s in states)


@pytest.mark.parametrize(
    ("is_kin", "dead"),
    [
        (True, zombie(12, 5)),
        (True, zombie(12, 10)),
        (True, zombie(12, 31)),
        (True, zombie(12, 70, host="n2")),
        (True, zombie(12, 70, job="b")),
        (True, zombie(12, 70, rank=3)),
        (True, zombie(12, None, rank=3)),
        (False, zombie(12, 70)),
        (False, zombie(12, 60)),
        (False, zombie(12, 1)),
        (False, zombie(12, None)),
        (False, attrs.evolve(zombie(12, 70), state="X")),
        (False, zombie(12, 70, threads=threads("Z"))),
        (True, zombie(12, 70, threads=threads("Z", "S"))),
        (True, attrs.evolve(zombie(12, 70), state="S")),
    ],
    ids=[
        *("sibling", "child", "grandchild", "other node", "own job"),
        *("rank", "rank without parent", "of another launcher"),
        *("of a launcher that is known", "orphan", "unknown", "gone"),
        *("dead thread", "thread that lives", "lives"),
    ],
)
def test_strangers(is_kin, dead):
    """
    A zombie without a rank is of a job only if it descends from its launcher.
    """
    job = [
        process(10, job="a", rank=0, parent=5, role="rank"),
        process(11, job="a", rank=1, parent=5, role="rank"),
        process(31, parent=10, role="child"),
        process(60, parent=1, role="launcher"),
    ]

    left = without_strangers([*job, dead])

    assert [10, 11, 31, 60, *[12] * is_kin] == [p.pid for p in left]


@pytest.mark.parametrize("job", ["a", ""])
@pytest.mark.parametrize(
    ("parent", "expected"), [(5, Cause.DEAD), (70, Cause.COLLECTIVE_WAIT)]
)
def test_zombie_is_no_verdict(job, parent, expected):
    """
    Nobody waits for a zombie of another job.
    """
    wait = ("all_reduce", "torch/distributed/distributed_c10d.py", 1)
    lines = (StackFrame(*wait), StackFrame("train", "a.py", 3))
    thread = ThreadStack(name="", frames=lines, is_main=True)
    ranks = [
        attrs.evolve(
            process(10 + n, job=job, rank=n, parent=5, role="rank"),
            threads=(thread,),
        )
        for n in range(3)
    ]

    first, *_ = explain_stacks([*ranks, zombie(20, parent)])

    assert expected is first.cause


def test_only_zombies():
    """
    Where there are no ranks, the dead are all there is.
    """
    (found,) = explain_stacks([zombie(20, 7)])

    assert Cause.DEAD is found.cause


def finding(*sources):
    """
    A finding that quotes these files.
    """
    return Finding(
        cause=Cause.IO_WAIT,
        ranks=(0,),
        summary="reads",
        evidence=tuple(Evidence(kind="stack", source=s) for s in sources),
    )


def test_whose_finding():
    """
    The files that a finding quotes tell which job it is about.
    """
    known = [
        attrs.evolve(process(pid, job=job, rank=0), source=job)
        for pid, job in ((10, "a"), (20, "b"))
    ]

    members = members_of_job(finding("b"), known)

    assert [20] == [p.pid for p in members]
    assert known == list(members_of_job(finding(), known))
    assert not is_same_job(finding("a"), finding("b"), known)
    assert is_same_job(finding("a"), finding("elsewhere"), known)
    assert is_same_job(finding("a"), finding("b"), [])
