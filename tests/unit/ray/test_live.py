"""
Asking a cluster that is alive, in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys

import attrs
import pytest

from distdebug.errors import MissingDependencyError, NodesError
from distdebug.ray import (
    RaySession,
    WorkerLog,
    add_live_actors,
    query_live_cluster,
)


pytestmark = pytest.mark.process


NODE, ACTOR, OTHER = "ab" * 28, "f00d" * 8, "beef" * 8

# As much of Ray as the process looks at.  It notes where it is asked.
FAKE = {
    "ray/__init__.py": "",
    "ray/_private/__init__.py": "",
    "ray/_private/services.py": """
import os
import pathlib
import time

def canonicalize_bootstrap_address_or_die(address):
    address = "the usual one" if address == "auto" else address
    pathlib.Path({asked}).write_text(address)
    manner = os.environ["MANNER"]
    if manner == "late":
        time.sleep(60)
    elif manner == "fails":
        raise ConnectionError("no head")
    elif manner == "silent":
        os._exit(0)
    elif manner == "strange":
        os.write(1, b'distdebug:{{"actors": 7}}')
        os._exit(0)
    print("noise")
    return address
""",
    "ray/_raylet.py": f"""
import types

def actor(actor_id, **told):
    address = types.SimpleNamespace(node_id=bytes.fromhex("{NODE}"))
    rest = dict.fromkeys(["class_name", "name", "repr_name"], "")
    rest |= {{{{"pid": 0, "state": 0, "address": address}}}}
    names = types.SimpleNamespace(Name=["PENDING", "", "ALIVE"].__getitem__)
    return types.SimpleNamespace(
        actor_id=bytes.fromhex(actor_id), ActorState=names, **rest | told
    )

class GcsClientOptions:
    @staticmethod
    def create(address, *_, **__):
        return address

class GlobalStateAccessor:
    def __init__(self, options):
        self.address = options

    def connect(self):
        return True

    def get_actor_table(self, job_id, state):
        return [
            actor("{OTHER}", class_name="A", repr_name="A(1)", pid=7, state=2),
            actor("{ACTOR}", class_name="B", name="trainer_0"),
        ]

    def get_node_table(self):
        return [
            {{{{"NodeID": "{NODE}", "NodeManagerAddress": "10.0.0.1",
              "NodeManagerHostname": "a", "Alive": True}}}},
            {{{{"NodeID": "", "NodeManagerAddress": "10.0.0.2",
              "NodeManagerHostname": "b", "Alive": False}}}},
        ]
""",
    "ray/core/__init__.py": "",
    "ray/core/generated/__init__.py": "",
    "ray/core/generated/gcs_pb2.py": """
class ActorTableData:
    @staticmethod
    def FromString(data):
        return data
""",
}


@pytest.fixture(name="asked")
def fake_ray(tmp_path, monkeypatch):
    """
    Where a cluster was asked; a file that is there when one was.  Everything
    in this process and its children takes a fake for Ray.
    """
    root, asked = tmp_path / "fake", tmp_path / "asked"
    for name, text in FAKE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text and text.format(asked=repr(str(asked))))
    for name in [x for x in sys.modules if x.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(root)
    monkeypatch.setenv("PYTHONPATH", str(root), prepend=os.pathsep)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.8:6379")
    monkeypatch.setenv("MANNER", "answers")
    return asked


@pytest.fixture
def network(asked, monkeypatch):
    """
    The same, and the ports at which no process listens; at all others somebody
    does.
    """
    silent = []

    def connect(address, timeout):
        if address[1] in silent:
            raise ConnectionRefusedError
        return contextlib.nullcontext()

    monkeypatch.setattr(socket, "create_connection", connect)
    return asked, silent


@pytest.fixture(name="session")
def head(tmp_path):
    """
    A session whose folder tells where its GCS listens, and another cluster
    that was the last to use its temporary folder.
    """
    (tmp_path / "ray_current_cluster").write_text("10.0.0.9:6379\n")
    root = tmp_path / "session_x"
    root.mkdir()
    (root / f"gcs_server_port_{NODE}").write_text("6380")
    return RaySession(
        root=root, logs=root, name="x", node_id=NODE, ip="10.0.0.1"
    )


def test_ask(asked):
    """
    The tables of the GCS tell the actors and nodes, also the dead.
    """
    found = query_live_cluster("10.0.0.1:6379")

    first, second = found.actors
    (node,) = found.dead_nodes
    assert "10.0.0.1:6379" == asked.read_text()
    assert ("A", "A(1)", 7) == (first.actor_class, first.actor_repr, first.pid)
    assert (NODE, "ALIVE") == (first.node_id, first.state)
    assert (ACTOR, "trainer_0") == (second.actor_id, second.actor_name)
    assert ("10.0.0.2", "b") == (node.ip, node.host)
    assert found.to_dict() == json.loads(json.dumps(found.to_dict()))


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("late", r"answers at auto within 0\.3 s"),
        ("fails", "ConnectionError: no head"),
        ("silent", "no answer"),
        ("strange", "there is no way"),
    ],
)
def test_no_answer(asked, monkeypatch, manner, reason):
    """
    No answer, or one that is none, is told, with what helps.
    """
    monkeypatch.setenv("MANNER", manner)

    with pytest.raises(NodesError, match=reason) as caught:
        query_live_cluster(timeout_s=0.3 if manner == "late" else 20)

    assert "files" in caught.value.remedy


@pytest.mark.parametrize(
    "tables", [7, {"actors": 7}, {"actors": [{"x": 1}], "nodes": []}]
)
def test_hostile_answer(cluster, tables):
    """
    An answer of another form is none.
    """
    cluster.tables = tables

    with pytest.raises(NodesError, match="is not understood"):
        query_live_cluster("h:1")


@pytest.mark.parametrize(
    ("ip", "refusing", "expected"),
    [
        ("10.0.0.1", [], "10.0.0.1:6380"),
        ("fd00::1", [], "[fd00::1]:6380"),
        ("10.0.0.1", [6380], "10.0.0.9:6379"),
        ("10.0.0.1", [6380, 6379], "the usual one"),
        # Nothing tells the address, but the node tells the cluster.
        (None, [6379], "the usual one"),
    ],
)
def test_address(network, session, ip, refusing, expected):
    """
    A session is asked at its own address, whichever cluster used its
    temporary folder last, unless no process listens there: the session was copied,
    or its head has moved.
    """
    asked, silent = network
    silent += refusing
    here = attrs.evolve(session, ip=ip)

    found = query_live_cluster(here)

    assert expected == asked.read_text()
    assert "trainer_0" == found.actors[1].actor_name


@pytest.mark.parametrize("told", ["", "two words", "\0:1", "10.0.0.1"])
def test_no_address(asked, tmp_path, told):
    """
    No other cluster is taken for that of a session which tells neither its
    address nor its node.
    """
    (tmp_path / "ray_current_cluster").write_text(told)
    session = RaySession(root=tmp_path / "s", logs=tmp_path, name="s")

    with pytest.raises(NodesError, match="does not say where") as caught:
        query_live_cluster(session)

    assert not asked.exists()
    assert "host:port" in caught.value.remedy


def test_another_cluster(network, session):
    """
    What answers where the cluster of a session was may be another one.
    """
    old = attrs.evolve(session, name="old", node_id="b" * 56)

    with pytest.raises(NodesError, match=r"another cluster than that of old"):
        query_live_cluster(old)


def test_without_ray(monkeypatch):
    """
    Without Ray, that is said.
    """
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(MissingDependencyError, match="Ray is not installed"):
        query_live_cluster()


def test_join(asked, session):
    """
    Workers are joined by actor, or else by node and process; others stay.
    """
    logs = [
        WorkerLog(session=session, worker_id="1", pid=7),
        WorkerLog(session=session, worker_id="2", pid=8, actor_id=ACTOR),
        WorkerLog(session=session, worker_id="3", pid=9, actor_class="C"),
    ]

    found = add_live_actors(logs, query_live_cluster())

    assert ["A", "B", "C"] == [log.actor_class for log in found]
    assert [OTHER, ACTOR, None] == [log.actor_id for log in found]
    assert [None, "trainer_0", None] == [log.actor_name for log in found]
