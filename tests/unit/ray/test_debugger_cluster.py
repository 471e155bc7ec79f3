"""
What a Ray cluster says of its debugger, without one.
"""

from __future__ import annotations

import importlib.machinery
import io
import json
import os
import platform
import sys
import types

from pathlib import Path
from unittest.mock import Mock

import pytest

import distdebug

from distdebug.errors import MissingDependencyError, NodesError
from distdebug.ray import cluster_child, ray_debug_sessions


RAY = "/venv/lib/python3.11/site-packages/ray/util"
NO_FRAMES = "an error ended what ran"


def frame(name, filename, line=1):
    """
    A line of a stack, as py-spy writes it.
    """
    return {"name": name, "filename": filename, "line": line}


def stacks(*threads):
    """
    What py-spy writes of a process.
    """
    return json.dumps(
        [
            {
                "pid": 7,
                "thread_id": number,
                "thread_name": f"thread {number}",
                "os_thread_id": number,
                "active": False,
                "owns_gil": False,
                "frames": list(frames),
            }
            for number, frames in enumerate(threads, 1)
        ]
    )


WAITING = (
    frame("Event.wait", "/usr/lib/python3.11/threading.py", 629),
    frame("wait_for_client", "/venv/debugpy/public_api.py"),
    frame("set_trace", f"{RAY}/debugpy.py", 80),
    frame("set_trace", f"{RAY}/rpdb.py", 270),
    frame("Trainer.step", "/home/me/train.py", 41),
    frame("main_loop", "/venv/ray/_private/worker.py", 3),
)
FAILED = (
    frame("wait_for_client", "/venv/debugpy/public_api.py"),
    frame("set_trace", f"{RAY}/debugpy.py", 80),
    frame("_post_mortem", f"{RAY}/debugpy.py", 130),
    frame("main_loop", "/venv/ray/_private/worker.py", 3),
)
OTHER = (frame("run", "/home/me/loader.py", 9),)

NODES = [
    {"node_id": "aa", "host": "node-1", "ip": "10.0.0.1"},
    {"node_id": "bb", "host": "node-2", "ip": "10.0.0.2"},
]


def worker(pid, **changes):
    """
    A row of the table of workers.
    """
    return {
        "worker_id": f"w{pid}",
        "node_id": "aa",
        "ip": "10.0.0.1",
        "pid": pid,
        "port": 50000 + pid,
        "paused": 1,
        "is_driver": False,
        "actor_id": "",
        "actor": "",
        "task": "",
        "job_id": "01",
        **changes,
    }


class LateError(Exception):
    """
    As Ray's own.
    """


def proto(**content):
    """
    A row of Ray's tables; what is not given is empty.
    """
    names = (
        "actor_id address class_name debugger_port is_alive is_dead is_driver "
        "job_id name num_paused_threads pid ray_namespace repr_name "
        "serialized_runtime_env state worker_address worker_type"
    )
    return types.SimpleNamespace(
        **{name: content.get(name, "") for name in names.split(" ")} | content
    )


def place(worker_id, node=b"\xaa"):
    """
    Where a worker is.
    """
    return proto(worker_id=worker_id, node_id=node, ip_address="10.0.0.1")


@pytest.fixture
def ray(monkeypatch):
    """
    The modules of Ray that are used, with these tables and stored values; it
    calls functions here, or gives the answers in its list.
    """
    tables, stored, answers = {}, {}, []
    found = types.SimpleNamespace(
        __spec__=importlib.machinery.ModuleSpec("ray", None),
        __version__="2.9.9",
        tables=tables,
        stored=stored,
        answers=answers,
        calls=[],
        cloudpickle=types.SimpleNamespace(register_pickle_by_value=id),
        is_initialized=lambda: False,
        init=lambda *_, **__: None,
        shutdown=lambda: found.calls.append("shutdown"),
        wait=lambda refs, **_: None,
    )

    def task(function):
        def options(**options):
            found.calls.append(options["scheduling_strategy"])
            return types.SimpleNamespace(
                remote=lambda *args: lambda: function(*args)
            )

        return types.SimpleNamespace(options=options)

    def get(ref, timeout):
        answer = answers.pop(0) if answers else ref()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(ref, **_):
        found.calls.append("cancel")
        raise ValueError

    found.remote, found.get, found.cancel = lambda **_: task, get, cancel
    accessor = types.SimpleNamespace(
        connect=lambda: "unreachable" not in tables,
        get_node_table=lambda: tables.get("nodes", []),
        get_actor_table=lambda *_: tables.get("actors", []),
        get_worker_table=lambda: tables.get("workers", []),
        get_job_table=lambda: tables.get("jobs", []),
    )
    store = types.SimpleNamespace(
        internal_kv_get=lambda key, space, wait: stored.get(key),
        internal_kv_keys=lambda prefix, space, wait: [
            key for key in stored if key.startswith(prefix)
        ],
    )
    parser = types.SimpleNamespace(FromString=lambda data: data)
    kinds = ("ActorTableData", "JobTableData", "WorkerTableData")
    services = types.SimpleNamespace(
        canonicalize_bootstrap_address_or_die=str.upper
    )
    content = {
        "_private": {"services": services},
        "_raylet": {
            "GcsClient": lambda address: store,
            "GlobalStateAccessor": lambda options: accessor,
            "GcsClientOptions": types.SimpleNamespace(
                create=lambda *args, **kwargs: None
            ),
        },
        "core": {},
        "core.generated": {},
        "core.generated.gcs_pb2": dict.fromkeys(kinds, parser),
        "exceptions": {"GetTimeoutError": LateError},
        "util": {},
        "util.scheduling_strategies": {
            "NodeAffinitySchedulingStrategy": lambda node, soft: node
        },
    }
    monkeypatch.setitem(sys.modules, "ray", found)
    for name, names in content.items():
        module = types.SimpleNamespace(**names)
        monkeypatch.setitem(sys.modules, f"ray.{name}", module)
    return found


def ask_child(**question):
    """
    What the process that is connected to Ray answers.
    """
    out = io.StringIO()
    asks = "run_tasks" if "tasks" in question else "read_cluster_state"
    question = {"address": "h:1", "ask": asks, "timeout_s": 5, **question}
    cluster_child.main(io.StringIO(json.dumps(question) + "\n"), out)
    return json.loads(out.getvalue())


def errand(ask, *given):
    """
    What a worker of the first node is asked.
    """
    return {"ask": ask, "with": given, "node": "aa", "env": {}}


def seen(*pids, seconds=10.0):
    """
    What a worker sees of processes of its node.
    """
    got = ask_child(tasks=[errand("see_processes", pids, seconds)])
    return json.loads(got["answer"][0]["answer"])


@pytest.fixture
def spy(tmp_path, monkeypatch):
    """
    Makes py-spy of this code.
    """
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def write(code):
        tool = tmp_path / "py-spy"
        tool.write_text(f"#!/bin/sh\n{code}\n")
        tool.chmod(0o755)

    return write


@pytest.fixture
def session(cluster):
    """
    The only session that waits, of which a worker sees this.
    """

    def run(*answers, **changes):
        cluster.tables = {"address": "h:1", "workers": [worker(1, **changes)]}
        cluster.workers = list(answers)
        (found,) = ray_debug_sessions()
        return found

    return run


def placed(session, spy, text):
    """
    That session, as py-spy wrote this of its process.
    """
    spy(f"cat <<'END'\n{text}\nEND")
    (look,) = seen(os.getpid()).values()
    return session({"answer": json.dumps({"1": look})})


@pytest.mark.process
def test_places(session, ray, spy):
    """
    The line is that of the caller of the debugger, of each thread in it.
    """
    second = (*WAITING[:4], frame("load", "/home/me/data.py", 5))

    found = placed(session, spy, stacks(OTHER, WAITING, second))

    assert ("", ["Trainer.step (train.py:41)", "load (data.py:5)"]) == (
        found.note,
        [place.brief for place in found.locations],
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (stacks(FAILED), NO_FRAMES),
        (stacks(WAITING[:4]), NO_FRAMES),
        (stacks(OTHER), "no thread of it waits any more"),
        ("[" * 100000, "RecursionError"),
        ("not JSON", "JSONDecodeError"),
        ("{}", "no thread of it waits any more"),
        ("7", "TypeError"),
        ('[{"frames": [7]}]', "TypeError"),
    ],
    ids=[
        "post-mortem",
        "no caller",
        "gone on",
        "deep",
        "no JSON",
        "nothing",
        "number",
        "no frames",
    ],
)
def test_no_places(session, ray, spy, text, expected):
    """
    Where no line can be given, the reason is.
    """
    found = placed(session, spy, text)

    assert () == found.locations
    assert found.note.startswith(expected)


def test_hostile_places(session):
    """
    What would move the cursor of a terminal is taken out of names, and what
    is no place is left out.
    """
    evil = ["st\x1b[2Jep", "/home/\x1b]0;x\x07train.py", 3]
    rows = [evil, None, 7, ["a", "b"], ["a", "b", "c"], {}]

    found = session({"answer": json.dumps({"1": {"places": rows}})})

    (place,) = found.locations
    assert ("step", "/home/train.py", 3) == (
        place.function,
        place.file,
        place.line,
    )


def test_sessions(cluster):
    """
    What the head knows is joined with what the nodes see.
    """
    cluster.tables = {
        "address": "h:1",
        "nodes": NODES,
        "workers": [
            worker(3, node_id="bb", ip="10.0.0.2", is_driver=True),
            worker(1, actor="tr", task="Trainer", actor_id="cc"),
            worker(2),
        ],
    }
    looks = [
        {
            "1": {
                "title": "ray::Trainer.step  ",
                "cwd": "/w",
                "places": [["Trainer.step", "/home/me/train.py", 41]],
            },
            "2": {"title": "ray::evaluate", "places": [None]},
        },
        {"3": {"reason": "py-spy: denied", "title": "python train.py"}},
    ]
    cluster.workers = [{"answer": json.dumps(look)} for look in looks]

    first, second, third = ray_debug_sessions("h:1")

    assert (
        "Trainer.step (tr), pid 1 on node-1, 10.0.0.1:50001: "
        "Trainer.step (train.py:41)" == str(first)
    )
    assert ("/w", "cc") == (first.cwd, first.actor_id)
    assert "evaluate" == second.task
    assert second.note.startswith(NO_FRAMES)
    assert "driver, pid 3 on node-2" in str(third)
    assert "py-spy: denied" == third.note
    assert "step (train.py:41)" not in json.dumps(first.to_dict())
    assert 41 == first.to_dict()["locations"][0]["line"]


@pytest.mark.parametrize(
    ("answers", "note"),
    [
        ([{"reason": "node is gone"}], "node is gone"),
        ([{"answer": "no JSON"}], "the answer of a worker is not understood"),
        ([{"answer": "[]"}], "the answer of a worker is not understood"),
        ([7], "no answer"),
        ([], "the answer of the Ray cluster is not understood: []"),
        ([{"answer": '{"1": {}}'}], "py-spy saw nothing"),
        ([{"answer": '{"2": {}}'}], "its node said nothing"),
        ([{"answer": '{"1": {"places": 7}}'}], "py-spy saw nothing"),
    ],
    ids=[
        "gone",
        "no JSON",
        "list",
        "number",
        "none",
        "empty look",
        "other process",
        "no places",
    ],
)
def test_unseen(session, answers, note):
    """
    Without a look, the session is there with the reason.
    """
    found = session(*answers)

    assert (None, note) == (found.location, found.note)
    assert note in str(found)
    assert "worker" == found.title


def legacy(**changes):
    """
    A record of the older debugger.
    """
    return {
        "worker_id": "w1",
        "pdb_address": "localhost:4444",
        "filename": "/home/me/train.py",
        "lineno": 41,
        "proctitle": "ray::Trainer.step",
        **changes,
    }


def test_legacy(cluster):
    """
    The older debugger gives file and line by itself; the record of a process
    that died is left out.
    """
    records = [
        legacy(),
        legacy(worker_id="w9"),
        legacy(worker_id=["w1"]),
        legacy(pdb_address="localhost"),
        legacy(worker_id="w2", filename=None, proctitle=None),
    ]
    workers = [worker(1, paused=0), worker(2, paused=0)]
    cluster.tables = {"workers": workers, "legacy": records}

    unknown, known = ray_debug_sessions()

    assert ("legacy", "localhost", 4444, "Trainer.step") == (
        known.kind,
        known.host,
        known.port,
        known.task,
    )
    assert ("/home/me/train.py", 41) == (
        known.location.file,
        known.location.line,
    )
    assert None is unknown.location


@pytest.mark.parametrize(
    "tables",
    [
        {"workers": []},
        {"workers": "x", "nodes": 7, "legacy": {}},
        {"workers": [7, None, {}, {"port": True, "ip": 3, "paused": "x"}]},
        {"workers": [worker(1, port=1 << 16)]},
        {"workers": [worker(1, ip="")]},
    ],
    ids=["nobody", "no tables", "no rows", "no port", "no host"],
)
def test_hostile_tables(cluster, tables):
    """
    Tables of another form have no sessions; where none waits, no worker is
    asked.
    """
    cluster.tables = tables

    assert () == ray_debug_sessions("auto")
    assert ["read_cluster_state"] == [x["ask"] for x in cluster.asked]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"output": b"", "stderr": b"no\x1b[2J way"}, "no way"),
        ({"reason": "too\x1b[2J old"}, "too old"),
        ({"output": b"x" * 100000}, "no answer"),
        ({"output": b"[" * 100000}, "no answer"),
        ({"output": b"7"}, "no answer"),
        ({"answer": 7}, "is not understood: 7"),
        (
            {"output": b"", "status": None},
            "no Ray cluster answers at auto within 60 s",
        ),
    ],
    ids=["exit", "reason", "text", "deep", "number", "other", "silent"],
)
def test_no_cluster(cluster, said, message):
    """
    Without a cluster, there is a reason and a remedy.
    """
    cluster.said = said

    with pytest.raises(NodesError, match=message) as caught:
        ray_debug_sessions()

    assert caught.value.remedy


@pytest.mark.parametrize("address", ["", "local", "ray://h:10001"])
def test_no_address(cluster, monkeypatch, address):
    """
    No cluster is started, and none is reached by a proxy; without Ray, it is
    said what to install.
    """
    with pytest.raises(NodesError, match="is no address of a running"):
        ray_debug_sessions(address)
    monkeypatch.delitem(sys.modules, "ray")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingDependencyError, match="Ray is not installed"):
        ray_debug_sessions("h:1")

    assert [] == cluster.asked


def test_own_cluster(cluster):
    """
    A process that is connected means its own cluster.
    """
    context = types.SimpleNamespace(
        gcs_address="1.1.1.1:6379", get_job_id=lambda: "01000000"
    )
    sys.modules["ray"].is_initialized = lambda: True
    sys.modules["ray"].get_runtime_context = lambda: context

    ray_debug_sessions("auto")
    ray_debug_sessions("h:1")

    assert ["1.1.1.1:6379", "h:1"] == [q["address"] for q in cluster.asked]


def test_tables(ray):
    """
    The tables hold the paused workers, with their actors; the dead are left
    out.
    """
    row = {
        "NodeID": "aa",
        "NodeManagerHostname": "node-1",
        "NodeManagerAddress": "10.0.0.1",
        "Resources": {"node:__internal_head__": 1.0},
    }
    paused = {"is_alive": True, "num_paused_threads": 1, "pid": 7}
    running = {**paused, "num_paused_threads": 0}
    actor = proto(
        state=2,
        address=place(b"\x01"),
        actor_id=b"\xcc",
        job_id=b"\x09",
        class_name="Trainer",
        name="tr",
        serialized_runtime_env='{"env_vars": {"A": "1"}, "nsight": "x"}',
        ray_namespace="me",
    )
    ray.stored |= {
        b"webui:url": b"127.0.0.1:8265",
        b"CLUSTER_METADATA": b'{"ray_version": "2.60.0"}',
        b"RAY_PDB_1": b'{"worker_id": "03", "traceback": "long"}',
        b"RAY_PDB_CONTINUE_1": b"{}",
        b"RAY_PDB_2": b"[]",
    }
    ray.tables |= {
        "nodes": [
            {**row, "Alive": True},
            {**row, "Alive": False},
            {**row, "NodeID": "bb", "Resources": None, "Alive": True},
        ],
        "actors": [actor, proto(state=4)],
        "workers": [
            proto(
                **paused, worker_address=place(b"\x01"), debugger_port=50001
            ),
            proto(**paused, worker_address=place(b"\x02"), worker_type=1),
            proto(**{**paused, "is_alive": False}, worker_address=place(b"")),
            proto(**running, worker_address=place(b"\x03")),
            proto(**running, worker_address=place(b"\x04")),
        ],
    }

    got = ask_child()["answer"]

    assert "H:1" == got["address"]
    assert ["01", "02", "03"] == [w["worker_id"] for w in got["workers"]]
    first, second, _ = got["workers"]
    assert ("tr", "Trainer", "cc", "09", 50001, False) == (
        first["actor"],
        first["task"],
        first["actor_id"],
        first["job_id"],
        first["port"],
        first["is_driver"],
    )
    assert second["is_driver"]
    assert ("aa", ["aa", "bb"]) == (
        got["head"],
        [node["node_id"] for node in got["nodes"]],
    )
    assert [{"worker_id": "03"}, {}] == got["legacy"]
    assert ("127.0.0.1:8265", "2.60.0") == (
        got["dashboard"],
        got["ray_version"],
    )
    assert [
        {"env": {"env_vars": {"A": "1"}}, "who": ["Trainer"], "nodes": ["aa"]}
    ] == got["environments"]


def test_unreachable(ray):
    """
    A head that does not answer is the reason.
    """
    ray.tables["unreachable"] = True

    assert "the GCS does not answer" in ask_child()["reason"]


def job(number, env, *, space="me", **rest):
    """
    A row of the table of jobs.
    """
    info = types.SimpleNamespace(serialized_runtime_env=env)
    config = types.SimpleNamespace(ray_namespace=space, runtime_env_info=info)
    return proto(job_id=number, config=config, **rest)


def test_environments(ray):
    """
    Each environment in use is listed once, with its users and nodes, up to a
    limit, without those of Ray, ours, and the dead.
    """
    hook = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
    text = json.dumps({"pip": ["x"], "env_vars": {hook: "y"}})
    more = {"state": 2, "ray_namespace": "me", "address": place(b"", b"\xbb")}
    node = {"NodeID": "aa", "NodeManagerHostname": "n", "Alive": True}
    ray.tables |= {
        "nodes": [{**node, "NodeManagerAddress": "i"}],
        "jobs": [
            job(b"\x01", text),
            job(b"\x02", "no JSON"),
            job(b"\x03", text, is_dead=True),
            job(b"\x04", text, space="_ray_internal"),
            job(b"\x05", text),
        ],
        "actors": [
            proto(class_name="A", serialized_runtime_env=text, **more),
            proto(class_name="A", serialized_runtime_env=text, **more),
            proto(class_name="C", **{**more, "ray_namespace": "_distdebug"}),
            *(
                proto(class_name="B", serialized_runtime_env=uv, **more)
                for uv in (f'{{"uv": {n}}}' for n in range(50))
            ),
        ],
    }

    got = ask_child()["answer"]["environments"]

    assert [
        {
            "env": {"pip": ["x"], "env_vars": {}},
            "who": ["job 01", "job 05", "A"],
            "nodes": ["aa", "bb"],
        },
        {"env": {}, "who": ["job 02"], "nodes": ["aa"]},
        {"env": {"uv": 0}, "who": ["B"], "nodes": ["bb"]},
    ] == got[:3]
    assert 32 == len(got)


@pytest.mark.parametrize("knows_tokens", [True, False])
def test_token(ray, monkeypatch, knows_tokens):
    """
    Ray is let find the user's token for the cluster of this node, not for
    an address that was given; one that knows of no tokens does without.
    """
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked = []
    setup = types.SimpleNamespace(
        maybe_enable_token_auth_if_token_available=lambda **options: (
            asked.append(options)
        )
    )
    package = "ray._private.authentication"
    for name in (package, f"{package}.authentication_token_setup"):
        monkeypatch.setitem(sys.modules, name, setup if knows_tokens else None)

    ask_child(address="h:1")
    given = list(asked)
    got = ask_child(address="auto")
    monkeypatch.setenv("RAY_ADDRESS", "h:1")
    ask_child(address="auto")

    assert ([], [{"warn_if_disabled": False}] * knows_tokens) == (given, asked)
    assert "AUTO" == got["answer"]["address"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("does", "timeout_s", "message"),
    [
        ("raise ConnectionError('no cluster')", 60, "Error: no cluster"),
        ("import time; time.sleep(60)", 0.5, "answers at h:1 within 0.5 s"),
    ],
    ids=["fails", "silent"],
)
def test_process(tmp_path, monkeypatch, does, timeout_s, message):
    """
    Ray is asked by a process of its own, which says one line, whatever Ray
    prints, and ends in time.
    """
    package = tmp_path / "ray" / "_private"
    package.mkdir(parents=True)
    for path in (package.parent, package):
        (path / "__init__.py").write_text("")
    (package / "services.py").write_text(
        "def canonicalize_bootstrap_address_or_die(address):\n"
        "    print('noise')\n"
        f"    {does}\n"
    )
    root = Path(distdebug.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{root}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)

    with pytest.raises(NodesError, match=message):
        ray_debug_sessions("h:1", timeout_s=timeout_s)


def test_errands(ray):
    """
    Each errand has an answer of its own, or a reason; late ones are ended.
    Whatever Ray raises, also its exit, is an answer.
    """
    ray.answers += ["{}", LateError(), ValueError("broken"), 7]

    got = ask_child(tasks=[errand("tell_environment")] * 4)["answer"]

    assert [
        {"answer": "{}"},
        {"reason": "no worker answered in time"},
        {"reason": "ValueError: broken"},
        {"reason": "the answer of a worker is not understood"},
    ] == got
    assert ["aa", "aa", "aa", "aa", "cancel", "shutdown"] == ray.calls
    assert [] == ask_child(tasks=[])["answer"]
    ray.shutdown = Mock(side_effect=SystemExit("no cluster\nat all"))
    assert {"reason": "SystemExit: no cluster"} == ask_child(tasks=[])


def test_tell_environment(ray, monkeypatch):
    """
    A worker reports its versions, and why debugpy cannot be loaded.
    """
    monkeypatch.setenv("RAY_DEBUG", "legacy")
    monkeypatch.delenv("RAY_DEBUG_POST_MORTEM", raising=False)
    told = []
    for debugpy in (types.SimpleNamespace(__version__="1.8.9"), None):
        monkeypatch.setitem(sys.modules, "debugpy", debugpy)
        got = ask_child(tasks=[errand("tell_environment")])
        told.append(json.loads(got["answer"][0]["answer"]))

    there, missing = told
    reason = missing.pop("reason")
    facts = {"ray": "2.9.9", "RAY_DEBUG": "legacy"}
    facts |= {"RAY_DEBUG_POST_MORTEM": None, "executable": sys.executable}
    facts |= {"python": platform.python_version()}
    assert {**facts, "debugpy": "1.8.9", "reason": ""} == there
    assert {**facts, "debugpy": None} == missing
    assert "ModuleNotFoundError" in reason


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('test "$5" = --pid && echo "[]"', ""),
        ("echo denied >&2; exit 1", "py-spy: denied"),
        ("exec /bin/sleep 60", "TimeoutExpired"),
        (None, "py-spy is not installed there"),
    ],
    ids=["seen", "denied", "late", "missing"],
)
def test_see_processes(ray, spy, monkeypatch, code, expected):
    """
    A process is looked at, in time, or it is said why not; one that is gone
    costs its own look only.
    """
    if code:
        spy(code)
    else:
        monkeypatch.setenv("PATH", "/no/such/folder")

    gone, look = seen(1 << 30, os.getpid(), seconds=0.3).values()

    assert "FileNotFoundError" in gone["reason"]
    assert expected in look["reason"]
    assert str(Path.cwd()) == look["cwd"]
    assert "python" in look["title"] or "pytest" in look["title"]
