"""
Asking a cluster that is alive, in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import types

from types import SimpleNamespace

import pytest

from distdebug.capture.tool import ToolOutput
from distdebug.errors import MissingDependencyError, NodesError
from distdebug.raylogs import (
    LiveCluster,
    RaySession,
    WorkerLog,
    ask_live_actors,
    live,
    live_child,
    with_live,
)
from distdebug.raylogs.actors import KnownActor


NODE, ACTOR = "ab" * 28, "f00d" * 8
TOLD = {
    "actors": [{"actor_id": ACTOR, "actor_name": "trainer_0", "pid": 7}],
    "nodes": [
        {"node_id": NODE, "ip": "10.0.0.1", "host": "a", "is_alive": True},
        {"node_id": "", "ip": "10.0.0.2", "host": "b", "is_alive": False},
    ],
}


@pytest.fixture
def asked(monkeypatch):
    """
    What was asked; whoever asks gets the answer that is set here.
    """
    seen = SimpleNamespace(argv=[], answer=ToolOutput(0, "", ""), silent=())

    def run_tool(argv, *, timeout_s):
        seen.argv = argv
        return seen.answer

    monkeypatch.setattr(live, "run_tool", run_tool)
    monkeypatch.setattr(
        live,
        "knock",
        lambda x, _: "refused" if x in seen.silent else "answers",
    )
    monkeypatch.setattr(live, "find_spec", lambda name: True)
    return seen


def test_ask(asked, tmp_path):
    """
    The answer is taken from among what Ray prints; a session tells the
    address.
    """
    (tmp_path / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    root = tmp_path / "session_x"
    session = RaySession(root=root, logs=root, name="session_x")
    output = f"noise\ndistdebug:{json.dumps(TOLD)}\n"
    asked.answer = ToolOutput(0, output, "")

    found = ask_live_actors(session, timeout_s=5)

    assert ["10.0.0.1:6379", "5"] == asked.argv[-2:]
    assert ["trainer_0"] == [x.actor_name for x in found.actors]
    assert ["10.0.0.2"] == [x.ip for x in found.dead_nodes]
    assert found.to_dict() == json.loads(json.dumps(found.to_dict()))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ToolOutput(None, "", ""), "nothing within 20 s"),
        (ToolOutput(1, "", "Trace\nConnectionError: x\n"), "ConnectionError"),
        (ToolOutput(0, "no mark", ""), "nothing within"),
        (ToolOutput(0, 'distdebug:{"actors": 7}', ""), "nothing within"),
    ],
    ids=["late", "failed", "silent", "strange"],
)
def test_no_answer(asked, tmp_path, answer, reason):
    """
    No answer, or one that is none, is told, with what helps.
    """
    asked.answer = answer

    with pytest.raises(NodesError, match=reason) as caught:
        ask_live_actors()

    assert "" == asked.argv[-2]
    assert "files" in caught.value.remedy


@pytest.mark.parametrize(
    ("ip", "address"),
    [("10.0.0.1", "10.0.0.1:6380"), ("fd00::1", "[fd00::1]:6380")],
)
def test_own_address(asked, tmp_path, ip, address):
    """
    A session that tells its own address is asked there, whichever cluster
    used its temporary folder last.
    """
    (tmp_path / "ray_current_cluster").write_text("10.0.0.9:6379")
    root = tmp_path / "session_x"
    root.mkdir()
    (root / f"gcs_server_port_{NODE}").write_text("6380")
    session = RaySession(root=root, logs=root, name="x", node_id=NODE, ip=ip)
    asked.answer = ToolOutput(0, f"distdebug:{json.dumps(TOLD)}\n", "")

    ask_live_actors(session)

    assert address == asked.argv[-2]


@pytest.mark.parametrize("told", ["", "two words", "\0:1", "10.0.0.1"])
def test_no_address(asked, tmp_path, told):
    """
    No other cluster is taken for that of a session which tells neither its
    address nor its node.
    """
    (tmp_path / "ray_current_cluster").write_text(told)
    session = RaySession(root=tmp_path / "s", logs=tmp_path, name="s")

    with pytest.raises(NodesError, match="does not tell where") as caught:
        ask_live_actors(session)

    assert [] == asked.argv
    assert "host:port" in caught.value.remedy


@pytest.mark.parametrize(
    ("silent", "address"),
    [
        ([], "10.0.0.1:6380"),
        (["10.0.0.1:6380"], "10.0.0.9:6379"),
        (["10.0.0.1:6380", "10.0.0.9:6379"], ""),
    ],
)
def test_where_somebody_listens(asked, tmp_path, silent, address):
    """
    A place where nobody listens is not asked: the session was copied, or its
    head has moved.
    """
    (tmp_path / "ray_current_cluster").write_text("10.0.0.9:6379")
    root = tmp_path / "session_x"
    root.mkdir()
    (root / f"gcs_server_port_{'c' * 56}").write_text("6380")
    session = RaySession(
        root=root, logs=root, name="x", node_id=NODE, ip="10.0.0.1"
    )
    asked.silent = silent
    asked.answer = ToolOutput(0, f"distdebug:{json.dumps(TOLD)}\n", "")

    ask_live_actors(session)

    assert address == asked.argv[-2]


def test_usual_address(asked, tmp_path):
    """
    By its node, the cluster of this machine is known to be the session's.
    """
    session = RaySession(root=tmp_path, logs=tmp_path, name="s", node_id=NODE)
    asked.answer = ToolOutput(0, f"distdebug:{json.dumps(TOLD)}\n", "")

    found = ask_live_actors(session)

    assert "" == asked.argv[-2]
    assert ["trainer_0"] == [x.actor_name for x in found.actors]


def test_another_cluster(asked, tmp_path):
    """
    What answers where the cluster of a session was may be another one.
    """
    (tmp_path / "ray_current_cluster").write_text("10.0.0.1:6379")
    root = tmp_path / "old"
    session = RaySession(root=root, logs=root, name="old", node_id="b" * 56)
    asked.answer = ToolOutput(0, f"distdebug:{json.dumps(TOLD)}\n", "")

    with pytest.raises(NodesError, match=r"another cluster than that of old"):
        ask_live_actors(session)


def test_without_ray(monkeypatch):
    """
    Without Ray, that is said.
    """
    monkeypatch.setattr(live, "find_spec", lambda name: None)

    with pytest.raises(MissingDependencyError, match="needs Ray"):
        ask_live_actors()


def test_join(tmp_path):
    """
    Workers are joined by actor, or else by node and process; others stay.
    """
    session = RaySession(root=tmp_path, logs=tmp_path, name="s", node_id=NODE)
    logs = [
        WorkerLog(session=session, worker_id="1", pid=7),
        WorkerLog(session=session, worker_id="2", pid=8, actor_id=ACTOR),
        WorkerLog(session=session, worker_id="3", pid=9, actor_class="C"),
    ]
    told = LiveCluster(
        actors=(
            KnownActor(actor_id="x", actor_class="A", pid=7, node_id=NODE),
            KnownActor(actor_id=ACTOR, actor_name="b", actor_class="B"),
        )
    )

    found = with_live(logs, told)

    assert ["A", "B", "C"] == [log.actor_class for log in found]
    assert ["x", ACTOR, None] == [log.actor_id for log in found]
    assert [None, "b", None] == [log.actor_name for log in found]


@pytest.fixture
def ray(monkeypatch):
    """
    As much of Ray as the process looks at.
    """
    fake = SimpleNamespace(address=None, fails=False)

    class GlobalState:
        """
        The tables of the GCS.
        """

        def _initialize_global_state(self, options):
            fake.address = options

        def actor_table(self, actor_id):
            """
            Its actors.
            """
            return {
                ACTOR: {
                    "ActorID": ACTOR,
                    "ActorClassName": "A",
                    "Name": "trainer_0",
                    "Pid": 7,
                    "Address": {"NodeID": NODE},
                    "State": "ALIVE",
                }
            }

        def node_table(self):
            """
            Its nodes.
            """
            return [
                {
                    "NodeID": NODE,
                    "NodeManagerAddress": "10.0.0.1",
                    "NodeManagerHostname": "a",
                    "Alive": False,
                }
            ]

    def list_actors(**options):
        fake.dashboard_of = os.environ["RAY_ADDRESS"]
        if fake.fails:
            raise RuntimeError
        return [
            SimpleNamespace(actor_id=actor, repr_name=text)
            for actor, text in ((ACTOR, "A(1)"), ("f" * 32, "Foreign()"))
        ]

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    modules = {
        "ray": {},
        "ray._private": {},
        "ray._private.services": {
            "canonicalize_bootstrap_address_or_die": lambda x: x or "usual"
        },
        "ray._private.state": {"GlobalState": GlobalState},
        "ray._raylet": {
            "GcsClientOptions": SimpleNamespace(create=lambda x, *_, **__: x)
        },
        "ray.util": {},
        "ray.util.state": {"list_actors": list_actors},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return fake


@pytest.mark.parametrize(("fails", "text"), [(False, "A(1)"), (True, "")])
def test_child(ray, capsys, fails, text):
    """
    The tables of the GCS tell the actors, and the state API adds what only it
    knows of these, and not of another cluster's.
    """
    ray.fails = fails

    live_child.main("", "5")

    answer = capsys.readouterr().out.partition("distdebug:")[2]
    told = live._cluster(json.loads(answer))
    (actor,) = told.actors
    (node,) = told.dead_nodes
    assert "usual" == ray.address == ray.dashboard_of
    assert (ACTOR, "A", 7, NODE, "ALIVE") == (
        actor.actor_id,
        actor.actor_class,
        actor.pid,
        actor.node_id,
        actor.state,
    )
    assert ("trainer_0", text) == (actor.actor_name, actor.actor_repr)
    assert ("10.0.0.1", "a") == (node.ip, node.host)
