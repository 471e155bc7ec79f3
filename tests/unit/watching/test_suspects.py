"""
Who may hang, and what is said of it.
"""

from __future__ import annotations

import pytest

from distdebug.findings import Cause, Finding
from distdebug.processes import Worker
from distdebug.watching import suspects
from distdebug.watching.suspects import (
    find_crew,
    has_others,
    is_fine,
    run_of,
)


def worker(pid, **options):
    """
    A rank that somebody started by hand.
    """
    values = {
        "start_ticks": 5,
        "parent_pid": 50,
        "uid": 0,
        "title": "train.py",
        "framework": "",
        "rank": pid - 100,
        "world_size": 2,
    }
    return Worker(pid=pid, **(values | options))


@pytest.fixture(name="found")
def _found(monkeypatch):
    """
    What is found on this node.
    """
    found = []
    monkeypatch.setattr(
        suspects, "find_workers", lambda *_, **__: tuple(found)
    )
    return found


def test_strangers(found):
    """
    Ranks that nobody calls a job are told apart by who started them.
    """
    found += [
        worker(100),
        worker(101),
        worker(102, parent_pid=100, role="dataloader"),
        worker(200, parent_pid=60),
        worker(300, world_size=8),
        worker(400, job="another"),
    ]

    crew = find_crew(None, (), inside=100)

    assert [100, 101, 102] == [x.pid for x in crew]


def test_not_found(found, monkeypatch):
    """
    A process that does not look like a rank is looked at alone.
    """
    found.append(worker(200))
    monkeypatch.setattr(
        suspects, "workers_of", lambda pids: [worker(x) for x in pids]
    )

    assert [7] == [x.pid for x in find_crew(None, (), inside=7)]


class TestRun:
    @pytest.fixture(autouse=True)
    def environ(self, monkeypatch):
        """
        The environment of the ranks.
        """
        environ = {}
        monkeypatch.setattr(
            suspects, "read_environ", lambda _: (environ, "memory")
        )
        return environ

    def test_same_on_all_nodes(self):
        """
        A job that has a name is called the same everywhere.
        """
        here = run_of([worker(100, job="run 7")], "n1")

        assert "run 7" == here
        assert here == run_of([worker(300, job="run 7")], "n2")

    def test_attempts(self, environ):
        """
        A job that was started again is another run.
        """
        environ["TORCHELASTIC_RESTART_COUNT"] = "1"

        assert "run 7 1" == run_of([worker(100, job="run 7")], "n1")

    def test_nameless(self):
        """
        Without a name, a run is its processes.
        """
        runs = {
            run_of([worker(100)], "n1"),
            run_of([worker(101)], "n1"),
            run_of([worker(100)], "n2"),
            run_of([], "n1"),
        }

        assert 4 == len(runs)


@pytest.mark.parametrize(
    ("cause", "detail", "stalled_s", "expected"),
    [
        (Cause.PROGRESSING, None, 1e9, True),
        (Cause.CHECKPOINTING, None, 99, True),
        (Cause.CHECKPOINTING, None, 101, False),
        (Cause.RANK_NOT_ARRIVED, Cause.COMPILING, 99, True),
        (Cause.PYTHON_LOOP, None, 9, True),
        (Cause.RANK_NOT_ARRIVED, Cause.NATIVE_SPIN, 11, False),
        (Cause.IO_WAIT, None, 1, False),
    ],
)
def test_fine(cause, detail, stalled_s, expected):
    """
    What just takes long is no hang, for as long as it may take.
    """
    seen = Finding(cause=cause, ranks=(0,), summary="", detail_cause=detail)

    got = is_fine(seen, stalled_s, patience_s=100, running_s=10)

    assert expected is got


@pytest.mark.parametrize(
    ("sizes", "expected"), [([2, 2], False), ([4, None], True), ([], False)]
)
def test_others(sizes, expected):
    """
    A world that is larger than what is here has ranks elsewhere.
    """
    crew = [worker(100 + n, world_size=size) for n, size in enumerate(sizes)]

    assert expected is has_others(crew)
