"""
Telling the jobs of a node from each other.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.findings import Evidence, Finding
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    explain_stacks,
    is_same_job,
    members_of_job,
)


REDUCE = (
    StackFrame("all_reduce", "torch/distributed/distributed_c10d.py", 1),
    StackFrame("train", "a.py", 3),
)
SLEEP = (StackFrame("sleep", "tenacity/nap.py", 1),)


def stack(*frames, state=""):
    """
    A main thread with these frames.
    """
    return ThreadStack(name="", frames=frames, is_main=True, state=state)


def process(pid, rank=None, *, parent=1, host="n1", **changes):
    """
    A process of some job; ranks are marked as such by their launcher.
    """
    values = {
        "source": f"{host}/{pid}/{rank}",
        "threads": (stack(*REDUCE),),
        "role": "" if rank is None else "rank",
        "parent_pid": parent,
    }
    return ProcessStacks(pid=pid, rank=rank, host=host, **values | changes)


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


def jobs_of(known):
    """
    The numbers of the processes of each job, in the order of the processes.
    """
    found = (members_of_job(finding(p.source), known) for p in known)
    return sorted({tuple(p.pid for p in members) for members in found})


def twins(host="n1"):
    """
    Two servers with two ranks each.
    """
    return [
        process(pid + n, n, parent=pid, host=host)
        for pid in (100, 200)
        for n in (1, 2)
    ]


JOB_A = (process(10, 0, job="a", parent=5), process(11, 1, job="a", parent=5))
JOBS = {
    "two jobs with a rank 0 each": (
        [(10, 11), (20,)],
        [process(20, 0, job="b"), *JOB_A],
    ),
    "children, launchers, and siblings": (
        [(5, 10, 11, 12), (20,), (30,)],
        [
            process(5),
            JOB_A[0],
            process(11, parent=5),
            process(12, parent=10),
            process(20, 0, job="b", parent=6),
            process(30, parent=7),
        ],
    ),
    "nothing is known": ([(10, 11)], [process(10, 0), process(11)]),
    "a rank belongs to the only job": (
        [(10, 10), (11,)],
        [
            JOB_A[0],
            process(10, 1, parent=9, host="n2", role=""),
            process(11, parent=9, host="n2"),
        ],
    ),
    "a rank whose place in the only job is taken": (
        [(10, 11, 12), (77,)],
        [*JOB_A, process(77, 0, parent=70), process(12, 2, parent=6)],
    ),
    "a rank that was pasted twice": (
        [(0,), (10,)],
        [JOB_A[0], process(0, 0, parent=None)],
    ),
    "twins with their relatives": (
        [(101, 102, 100, 103, 104), (201, 202), (300, 400, 401)],
        [
            *twins(),
            process(100),
            process(103, 1, parent=101),
            process(104, parent=103),
            process(300),
            process(400, parent=401),
            process(401, parent=400),
        ],
    ),
    "ranks of several nodes": (
        [(10, 10)],
        [process(10, 0, parent=5), process(10, 1, parent=6, host="n2")],
    ),
    "twins of one parent": (
        [(10, 11, 12)],
        [
            process(10, 0, parent=5),
            process(11, 0, parent=5),
            process(12, 0, parent=None),
        ],
    ),
}


@pytest.mark.parametrize(("expected", "known"), JOBS.values(), ids=JOBS)
def test_jobs(expected, known):
    """
    Names, relatives, and ranks that occur twice tell jobs apart.
    """
    assert expected == jobs_of(known)


@pytest.mark.parametrize(
    ("others", "where"),
    [(twins()[2:], ["100", "200"]), (twins("n2")[:2], ["100 on n1"])],
)
def test_twins_are_judged_apart(others, where):
    """
    Nobody waits for the rank of another server, on whichever node it is.
    """
    found = explain_stacks([*twins()[:2], *others])

    assert 2 == len(found)
    for place, one in zip(where, found, strict=False):
        assert one.summary.startswith(
            f"job of parent {place}: ranks 1-2 are waiting"
        )


def test_twins_are_counted():
    """
    Where nothing tells twins apart, all of them are counted.
    """
    (found,) = explain_stacks(
        [attrs.evolve(p, parent_pid=None) for p in twins()]
    )

    assert found.summary.startswith("4 processes of ranks 1-2 are waiting")


def zombie(parent, **changes):
    """
    A dead process, whose rank and job nobody can tell any more.
    """
    values = {"parent": parent, "state": "Z", "threads": (), **changes}
    return process(12, **values)


DEAD = (stack(state="Z"),)
KIN = {
    "sibling": (True, zombie(5)),
    "child of a launcher": (True, zombie(31)),
    "other node": (True, zombie(70, host="n2")),
    "rank": (True, zombie(70, rank=3)),
    "rank without parent": (True, zombie(None, rank=3)),
    "of another launcher": (False, zombie(70)),
    "of a launcher that is known": (False, zombie(60)),
    "orphan": (False, zombie(1)),
    "unknown": (False, zombie(None)),
    "gone": (False, zombie(70, state="X")),
    "dead thread": (False, zombie(70, threads=DEAD)),
    "thread that lives": (
        True,
        zombie(70, threads=(*DEAD, stack(*SLEEP, state="S"))),
    ),
    "lives": (True, zombie(70, state="S", threads=(stack(*SLEEP),))),
}


@pytest.mark.parametrize("job", ["a", ""])
@pytest.mark.parametrize(("is_kin", "dead"), KIN.values(), ids=KIN)
def test_strangers(is_kin, dead, job):
    """
    A zombie without a rank is of a job only if it descends from its launcher:
    nobody waits for a zombie of another job.
    """
    ranks = [process(10 + n, n, job=job, parent=5) for n in (0, 1)]
    launchers = [
        process(pid, parent=parent, role="launcher")
        for pid, parent in ((31, 5), (60, 1))
    ]

    found = explain_stacks([*ranks, *launchers, dead])

    sources = {e.source for one in found for e in one.evidence}
    assert is_kin is (dead.source in sources)
    assert is_kin is (Cause.COLLECTIVE_WAIT is not found[0].cause)


@pytest.mark.parametrize(("parent", "is_kin"), [(10, True), (70, False)])
def test_dead_worker(parent, is_kin):
    """
    A rank waits for its own dead workers only.
    """
    fetch = StackFrame("_try_get_data", "torch/utils/data/dataloader.py", 1)
    rank = process(10, 0, parent=5, threads=(stack(fetch),))

    (found,) = explain_stacks([rank, zombie(parent, role="dataloader")])

    assert is_kin is ("process 12, has ended" in found.summary)


def test_zombie_that_names_its_job():
    """
    Who names a job is of that job, whoever started it.
    """
    found = explain_stacks([*JOB_A, zombie(70, job="b")])

    assert {Cause.DEAD, Cause.COLLECTIVE_WAIT} == {f.cause for f in found}


def test_only_zombies():
    """
    Where there are no ranks, the dead are all there is.
    """
    (found,) = explain_stacks([zombie(7)])

    assert Cause.DEAD is found.cause


def test_whose_finding():
    """
    The files that a finding quotes tell which job it is about.
    """
    known = [process(10, 0, job="a"), process(20, 0, job="b")]
    one, other = (p.source for p in known)

    members = members_of_job(finding(other), known)

    assert [20] == [p.pid for p in members]
    assert known == list(members_of_job(finding(), known))
    assert not is_same_job(finding(one), finding(other), known)
    assert is_same_job(finding(one), finding("elsewhere"), known)
    assert is_same_job(finding(one), finding(other), [])
