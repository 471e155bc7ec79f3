"""
A snapshot of all nodes, with stand-ins for them.
"""

from __future__ import annotations

import json
import socket

from pathlib import Path

import pytest

from distdebug.causes import Cause
from distdebug.nodes import NodeResult, NodeStatus
from distdebug.snapshots import (
    Manifest,
    NodeEntry,
    collect,
    read_manifest,
    snapshot_everywhere,
)


C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WAITS = ("all_reduce", C10D, 2800)
SLEEPS = ("sleep", "/home/me/train.py", 40)


def there_is(entry):
    """
    The manifest of one node.
    """
    return Manifest(
        version="1", created=1.0, job="1234", nodes=(NodeEntry(**entry),)
    ).to_dict()


DEAD = NodeResult(
    host="n3",
    status=NodeStatus.DEAD,
    reason="it is down",
    remedy="sinfo -R",
    seconds=11.0,
)


def answer(value, host="n1"):
    """
    What came from a node.
    """
    return NodeResult(host=host, status=NodeStatus.OK, value=value)


@pytest.fixture(name="take")
def _take(monkeypatch, tmp_path):
    """
    Takes a snapshot of nodes that do not exist, as they answer.
    """

    def take(answers, **options):
        def run(work, *, engine, timeout_s, tell):
            results = list(answers(work))
            for number, result in enumerate(results, 1):
                tell(number, len(results))
                yield result

        monkeypatch.setattr(collect, "run_on_nodes", run)
        return snapshot_everywhere(tmp_path / "hang", engine=None, **options)

    return take


@pytest.fixture(name="two_of_three")
def _two_of_three(write_stack):
    """
    Two nodes that answer, and one that does not; rank 2 sleeps.
    """

    def answers(work):
        folder, _ = work.args
        for number, host in enumerate(("n2", "n1")):
            there = Path(folder) / host
            there.mkdir(parents=True)
            for rank in (2 * number, 2 * number + 1):
                where = SLEEPS if rank == 2 else WAITS
                write_stack(there, rank, where, host=host)
            entry = {"host": host, "status": "ok", "seconds": 1.0, "files": 2}
            yield answer(there_is(entry), host)
        yield DEAD

    return answers


def test_all(take, two_of_three):
    """
    All nodes together yield one diagnosis; a silent node is reported.
    """
    told = []

    taken = take(two_of_three, tell=lambda *what: told.append(what))

    assert (Cause.SLEEPING, (2,)) == (
        taken.diagnosis.verdict.cause,
        taken.diagnosis.verdict.ranks,
    )
    assert taken.manifest == read_manifest(taken.folder)
    assert [("n1", "ok"), ("n2", "ok"), ("n3", "failed")] == [
        (n.host, n.status) for n in taken.manifest.nodes
    ]
    (missing,) = taken.manifest.skipped
    assert ("node", "n3", "it is down (try: sinfo -R)") == (
        missing.what,
        missing.source,
        missing.reason,
    )
    assert "1234" == taken.manifest.job
    assert "rank 2" in (taken.folder / "REPORT.txt").read_text()
    assert ("nodes", 2, 3) in told


def test_nobody(take):
    """
    If no node answers, that is the diagnosis.
    """
    taken = take(lambda _: [DEAD])

    assert Cause.UNKNOWN is taken.diagnosis.verdict.cause
    assert taken.is_blind


@pytest.mark.parametrize("name", [None, "node-12"])
def test_on_a_node(monkeypatch, node, take, name):
    """
    On each node everything goes into a folder with its name.
    """
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    if name:
        monkeypatch.setenv("SLURMD_NODENAME", name)
    monkeypatch.setattr(socket, "gethostname", lambda: "vm")

    taken = take(
        lambda work: [answer(json.loads(json.dumps(work())))],
        pids=[],
        timeout_s=5.0,
    )

    (part,) = (path for path in taken.folder.iterdir() if path.is_dir())
    assert (name or "vm") == part.name
    assert read_manifest(part).nodes == taken.manifest.nodes
    assert [part.name] == [entry.host for entry in taken.manifest.nodes]


@pytest.mark.parametrize("value", ["hello", {"tool": "other"}])
def test_something_else(take, value):
    """
    A node that answers with something else counts as one that failed.
    """
    taken = take(lambda _: [answer(value)])

    (node,) = taken.manifest.nodes
    assert ("n1", "failed") == (node.host, node.status)
    assert "it answered with something else" in node.reason
    assert "node" == taken.manifest.skipped[0].what
    assert taken.is_blind
