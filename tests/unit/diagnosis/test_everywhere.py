"""
A snapshot of all nodes, with stand-ins for them.
"""

from __future__ import annotations

import json

import pytest

from distdebug.bundle import (
    Manifest,
    NodeEntry,
    Wanted,
    folder,
    parse_manifest,
)
from distdebug.bundle.manifest import read_manifest
from distdebug.capture import Capture
from distdebug.diagnosis import collect, everywhere, snapshot_everywhere
from distdebug.findings import Cause
from distdebug.nodes import NodeResult
from distdebug.nodes.here import Here
from distdebug.nodes.model import NodeStatus
from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    stacks_to_json,
)


C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def stack_of(rank):
    """
    What py-spy saw of a rank; rank 2 is not where the others are.
    """
    frame = StackFrame("all_reduce", C10D, 2800)
    if rank == 2:
        frame = StackFrame("sleep", "/home/me/train.py", 40)
    thread = ThreadStack(name="MainThread", frames=(frame,), is_main=True)
    return ProcessStacks(
        pid=100 + rank, source="", threads=(thread,), rank=rank, role="rank"
    )


def there_is(entry):
    """
    The manifest of one node.
    """
    return Manifest(
        version="1", created=1.0, job="1234", nodes=(NodeEntry(**entry),)
    ).to_dict()


@pytest.fixture
def nodes(monkeypatch):
    """
    Two nodes that answer, and one that does not.
    """
    dead = NodeResult(
        host="n3",
        status=NodeStatus.DEAD,
        reason="it is down",
        remedy="sinfo -R",
        seconds=11.0,
    )

    def run(take, *, engine, timeout_s, tell):
        folder, _ = take.args
        for number, host in enumerate(("n2", "n1")):
            there = everywhere.Path(folder) / host
            there.mkdir(parents=True)
            for rank in (2 * number, 2 * number + 1):
                name = f"pyspy_{host}_{100 + rank}.json"
                (there / name).write_text(stacks_to_json(stack_of(rank)))
            entry = {"host": "vm", "status": "ok", "seconds": 1.0, "files": 2}
            tell(number + 1, 3)
            yield NodeResult(
                host=host,
                status=NodeStatus.OK,
                value=there_is(entry | {"host": host}),
            )
        yield dead

    monkeypatch.setattr(everywhere, "run_on_nodes", run)
    return dead


def test_all(nodes, tmp_path):
    """
    What all nodes tell is one diagnosis; who is silent is told.
    """
    told = []

    taken = snapshot_everywhere(
        tmp_path / "hang", engine=Here(), tell=lambda *what: told.append(what)
    )

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


def test_nobody(nodes, monkeypatch, tmp_path):
    """
    If no node answers, that is the diagnosis.
    """
    monkeypatch.setattr(
        everywhere, "run_on_nodes", lambda *_, **__: iter([nodes])
    )

    taken = snapshot_everywhere(tmp_path / "hang", engine=Here())

    assert Cause.UNKNOWN is taken.diagnosis.verdict.cause
    assert taken.is_blind


@pytest.mark.parametrize("name", [None, "node-12"])
def test_on_a_node(monkeypatch, tmp_path, name):
    """
    On each node everything goes into a folder with its name.
    """
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    if name:
        monkeypatch.setenv("SLURMD_NODENAME", name)
    monkeypatch.setattr(folder.socket, "gethostname", lambda: "vm")
    monkeypatch.setattr(
        collect,
        "capture_node",
        lambda **_: Capture(host="vm", processes=()),
    )
    wanted = Wanted(pids=[], timeout_s=5.0)

    got = everywhere._take_here(str(tmp_path), wanted)

    (part,) = tmp_path.iterdir()
    assert (name or "vm") == part.name
    assert read_manifest(part) == parse_manifest(json.loads(json.dumps(got)))
    assert [part.name] == [node.host for node in read_manifest(part).nodes]


@pytest.mark.parametrize("answer", ["hello", {"tool": "other"}])
def test_something_else(nodes, monkeypatch, tmp_path, answer):
    """
    A node that answers with something else counts as one that failed.
    """
    result = NodeResult(host="n1", status=NodeStatus.OK, value=answer)
    monkeypatch.setattr(
        everywhere, "run_on_nodes", lambda *_, **__: iter([result])
    )

    taken = snapshot_everywhere(tmp_path / "hang", engine=Here())

    (node,) = taken.manifest.nodes
    assert ("n1", "failed") == (node.host, node.status)
    assert "it answered with something else" in node.reason
    assert "node" == taken.manifest.skipped[0].what
    assert taken.is_blind
