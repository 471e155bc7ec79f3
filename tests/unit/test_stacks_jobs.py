"""
Telling the jobs of a node from each other.
"""

from __future__ import annotations

from distdebug.stacks.jobs import split_jobs
from distdebug.stacks.model import ProcessStacks


def process(pid, *, job="", rank=None, parent=1, host="n1"):
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
