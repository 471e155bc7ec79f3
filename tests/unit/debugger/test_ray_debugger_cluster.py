"""
What a Ray cluster says of its debugger, without one.
"""

from __future__ import annotations

import io
import json
import os
import sys
import types

from pathlib import Path

import pytest

from distdebug.debugger import ray_debug_sessions
from distdebug.debugger.ray_debugger import asking, child, errands, in_worker
from distdebug.debugger.ray_debugger.asking import ask_tables, ask_workers
from distdebug.debugger.ray_debugger.places import NO_FRAMES, waiting_places
from distdebug.debugger.ray_debugger.sessions import sessions_in
from distdebug.debugger.ray_debugger.tables import read_tables
from distdebug.errors import MissingDependencyError, NodesError
from distdebug.findings import Location


HEAD = "import json, sys, time\ntask = json.loads(input())\n"
RAY = "/venv/lib/python3.11/site-packages/ray/util"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """
    Give the code that is the connection to Ray.
    """

    def give(code):
        (tmp_path / "fake_child.py").write_text(HEAD + code)

    monkeypatch.setattr(asking, "_MODULE", "fake_child")
    monkeypatch.setattr(asking, "find_spec", lambda name: name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path)]))
    monkeypatch.setitem(sys.modules, "ray", None)
    return give


def says(tables, answers=None):
    """
    The code that says this of the cluster, and that of its workers.
    """
    text = json.dumps([{"answer": tables}, {"answer": answers}])
    return (
        f"both = json.loads({text!r})\n"
        "print(json.dumps(both[task['errands'] is not None]))\n"
    )


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
    {"id": "aa", "name": "node-1", "ip": "10.0.0.1", "is_head": True},
    {"id": "bb", "name": "node-2", "ip": "10.0.0.2", "is_head": False},
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


def test_places(spy):
    """
    The line is that of who called the debugger, of each thread in it.
    """
    second = (*WAITING[:4], frame("load", "/home/me/data.py", 5))
    spy(f"cat <<'END'\n{stacks(OTHER, WAITING, second)}\nEND")

    (look,) = json.loads(in_worker.see_processes([os.getpid()], 9)).values()
    places, note = waiting_places(look)

    assert ("", ["Trainer.step (train.py:41)", "load (data.py:5)"]) == (
        note,
        [place.brief for place in places],
    )


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
def test_no_places(spy, text, expected):
    """
    Where no line can be told, it is said why.
    """
    spy(f"cat <<'END'\n{text}\nEND")

    (look,) = json.loads(in_worker.see_processes([os.getpid()], 9)).values()
    places, note = waiting_places(look)

    assert () == places
    assert note.startswith(expected)


def test_hostile_places():
    """
    What would move the cursor of a terminal is taken out of names, and what
    is no place is left out.
    """
    evil = ["st\x1b[2Jep", "/home/\x1b]0;x\x07train.py", 3]
    rows = [evil, None, 7, ["a", "b"], ["a", "b", "c"], {}]

    ((place,), _) = waiting_places({"places": rows})

    assert place == Location(function="step", file="/home/train.py", line=3)


def test_sessions(cluster):
    """
    What the head knows is joined with what the nodes see.
    """
    tables = {
        "address": "h:1",
        "nodes": NODES,
        "workers": [
            worker(3, node_id="bb", ip="10.0.0.2", is_driver=True),
            worker(1, actor="tr", task="Trainer", actor_id="cc"),
            worker(2),
        ],
    }
    looks = [
        {"3": {"reason": "py-spy: denied", "title": "python train.py"}},
        {
            "1": {
                "title": "ray::Trainer.step  ",
                "cwd": "/w",
                "places": [["Trainer.step", "/home/me/train.py", 41]],
            },
            "2": {"title": "ray::evaluate", "places": [None]},
        },
    ]
    cluster(
        says(tables, [{"answer": json.dumps(look)} for look in looks[::-1]])
    )

    first, second, third = ray_debug_sessions("h:1")

    assert (
        "Trainer.step (tr), pid 1 on node-1, 10.0.0.1:50001: "
        "Trainer.step (train.py:41)" == str(first)
    )
    assert ("/w", "cc") == (first.cwd, first.actor_id)
    assert ("evaluate", NO_FRAMES) == (second.task, second.note)
    assert "driver, pid 3 on node-2" in str(third)
    assert "py-spy: denied" == third.note
    assert "step (train.py:41)" not in json.dumps(first.to_dict())
    assert 41 == first.to_dict()["locations"][0]["line"]


@pytest.mark.parametrize(
    ("answers", "note"),
    [
        ([{"reason": "node is gone"}], "node is gone"),
        ([{"answer": "no JSON"}], "a worker answered what nobody understands"),
        ([{"answer": "[]"}], "a worker answered what nobody understands"),
        ([7], "no answer"),
        ([], "the Ray cluster answered what nobody understands: []"),
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
def test_unseen(cluster, answers, note):
    """
    Without a look, the session is there with the reason.
    """
    cluster(says({"address": "h:1", "workers": [worker(1)]}, answers))

    (session,) = ray_debug_sessions()

    assert (None, note) == (session.location, session.note)
    assert note in str(session)
    assert "worker" == session.title


def test_nobody(cluster):
    """
    Where nobody waits, no worker is asked.
    """
    cluster("assert task['errands'] is None\n" + says({"workers": []}))

    assert () == ray_debug_sessions("auto")


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


def test_legacy():
    """
    The older debugger tells file and line by itself; who died is left out.
    """
    records = [
        legacy(),
        legacy(worker_id="w9"),
        legacy(worker_id=["w1"]),
        legacy(pdb_address="localhost"),
        legacy(worker_id="w2", filename=None, proctitle=None),
    ]
    workers = [worker(1, paused=0), worker(2, paused=0)]

    unknown, known = sessions_in({"workers": workers, "legacy": records})

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
        {"workers": "x", "nodes": 7, "legacy": {}},
        {"workers": [7, None, {}, {"port": True, "ip": 3, "paused": "x"}]},
        {"workers": [worker(1, port=1 << 16)]},
        {"workers": [worker(1, ip="")]},
    ],
    ids=["no tables", "no rows", "no port", "no host"],
)
def test_hostile_tables(tables):
    """
    Tables of another form have no sessions.
    """
    assert () == sessions_in(tables)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("sys.exit('no\\x1b[2J way')", "no way"),
        ("print(json.dumps({'reason': 'too\\x1b[2J old'}))", "too old"),
        ("print('x' * 100000)", "no answer"),
        ("print('[' * 100000)", "no answer"),
        ("print('7')", "no answer"),
        ("print(json.dumps({'answer': 7}))", "nobody understands: 7"),
        ("time.sleep(600)", "no Ray cluster answers at auto within 2 s"),
    ],
    ids=["exit", "reason", "text", "deep", "number", "other", "silent"],
)
def test_no_cluster(cluster, monkeypatch, code, message):
    """
    Without a cluster, there is a reason and a remedy, in time.
    """
    monkeypatch.setattr(asking, "_GRACE_S", 0.1)
    cluster(code)

    with pytest.raises(NodesError, match=message) as caught:
        ask_tables(None, timeout_s=2 if "sleep" in code else 60)

    assert caught.value.remedy


@pytest.mark.parametrize("address", ["", "local", "ray://h:10001"])
def test_no_address(cluster, address):
    """
    No cluster is started, and none is reached by a proxy.
    """
    with pytest.raises(NodesError, match="is no address of a running"):
        ask_tables(address, timeout_s=1)


def test_no_ray(monkeypatch):
    """
    Without Ray, it is said what to install.
    """
    monkeypatch.setattr(asking, "find_spec", lambda name: None)

    with pytest.raises(MissingDependencyError, match="Ray is not installed"):
        ask_tables("h:1", timeout_s=1)


def test_no_errands(cluster):
    """
    Who asks nothing of the workers gets no answer, and starts nothing.
    """
    cluster("sys.exit('started')")

    assert [] == ask_workers("h:1", [], timeout_s=1)


def test_own_cluster(cluster, monkeypatch):
    """
    A process that is connected means its own cluster.
    """
    context = types.SimpleNamespace(gcs_address="1.1.1.1:6379")
    fake = types.SimpleNamespace(
        is_initialized=lambda: True, get_runtime_context=lambda: context
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    cluster("print(json.dumps({'answer': {'address': task['address']}}))")

    assert "1.1.1.1:6379" == ask_tables("auto", timeout_s=60)["address"]
    assert "h:1" == ask_tables("h:1", timeout_s=60)["address"]


class Proto(types.SimpleNamespace):
    """
    What Ray's tables hold; what is not given is empty.
    """

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__.get("empty", "")

    @staticmethod
    def parser():
        """
        Takes what is there already for what was parsed.
        """
        return types.SimpleNamespace(FromString=lambda data: data)


def place(worker_id, node=b"\xaa"):
    """
    Where a worker is.
    """
    return Proto(worker_id=worker_id, node_id=node, ip_address="10.0.0.1")


@pytest.fixture
def ray(monkeypatch):
    """
    Make Ray of these tables, and of these stored values.
    """

    def make(stored=(), **tables):
        stored = dict(stored)
        accessor = types.SimpleNamespace(
            get_node_table=lambda: tables.get("nodes", []),
            get_actor_table=lambda *_: tables.get("actors", []),
            get_worker_table=lambda: tables.get("workers", []),
            get_job_table=lambda: tables.get("jobs", []),
        )
        state = types.SimpleNamespace(
            _initialize_global_state=lambda options: None,
            _connect_and_get_accessor=lambda: accessor,
        )
        store = types.SimpleNamespace(
            internal_kv_get=lambda key, space, wait: stored.get(key),
            internal_kv_keys=lambda prefix, space, wait: [
                key for key in stored if key.startswith(prefix)
            ],
        )
        kinds = ("ActorTableData", "JobTableData", "WorkerTableData")
        modules = {
            "ray": types.SimpleNamespace(),
            "ray._private": types.SimpleNamespace(
                services=types.SimpleNamespace(
                    canonicalize_bootstrap_address_or_die=str.upper
                )
            ),
            "ray._private.state": types.SimpleNamespace(
                GlobalState=lambda: state
            ),
            "ray._raylet": types.SimpleNamespace(
                GcsClient=lambda address: store,
                GcsClientOptions=types.SimpleNamespace(
                    create=lambda *args, **kwargs: None
                ),
            ),
            "ray.core": types.SimpleNamespace(),
            "ray.core.generated": types.SimpleNamespace(),
            "ray.core.generated.gcs_pb2": types.SimpleNamespace(
                **{kind: Proto.parser() for kind in kinds}
            ),
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    return make


def test_read_tables(ray):
    """
    The tables tell who is paused, with its actor; the dead are left out.
    """
    row = {
        "NodeID": "aa",
        "NodeManagerHostname": "node-1",
        "NodeManagerAddress": "10.0.0.1",
        "Resources": {"node:__internal_head__": 1.0},
    }
    paused = {"is_alive": True, "num_paused_threads": 1, "pid": 7}
    actor = Proto(
        state=2,
        address=place(b"\x01"),
        actor_id=b"\xcc",
        job_id=b"\x09",
        class_name="Trainer",
        name="tr",
        serialized_runtime_env='{"env_vars": {"A": "1"}, "nsight": "x"}',
        ray_namespace="me",
    )
    ray(
        stored={
            b"webui:url": b"127.0.0.1:8265",
            b"CLUSTER_METADATA": b'{"ray_version": "2.60.0"}',
            b"RAY_PDB_1": b'{"worker_id": "03", "traceback": "long"}',
            b"RAY_PDB_CONTINUE_1": b"{}",
            b"RAY_PDB_2": b"[]",
        },
        nodes=[
            {**row, "Alive": True},
            {**row, "Alive": False},
            {**row, "NodeID": "bb", "Resources": None, "Alive": True},
        ],
        actors=[actor, Proto(state=4)],
        workers=[
            Proto(
                **paused, worker_address=place(b"\x01"), debugger_port=50001
            ),
            Proto(**paused, worker_address=place(b"\x02"), worker_type=1),
            Proto(**{**paused, "is_alive": False}, worker_address=place(b"")),
            Proto(
                **{**paused, "num_paused_threads": 0},
                worker_address=place(b"\x03"),
            ),
            Proto(
                **{**paused, "num_paused_threads": 0},
                worker_address=place(b"\x04"),
            ),
        ],
    )

    got = read_tables("h:1")

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
    assert [True, False] == [node["is_head"] for node in got["nodes"]]
    assert [{"worker_id": "03"}, {}] == got["legacy"]
    assert ("127.0.0.1:8265", "2.60.0") == (
        got["dashboard"],
        got["ray_version"],
    )
    assert [
        {"env": {"env_vars": {"A": "1"}}, "who": ["Trainer"], "nodes": ["aa"]}
    ] == got["environments"]


def job(number, env, *, space="me", **rest):
    """
    A row of the table of jobs.
    """
    info = types.SimpleNamespace(serialized_runtime_env=env)
    config = types.SimpleNamespace(ray_namespace=space, runtime_env_info=info)
    return Proto(job_id=number, config=config, **rest)


def test_environments(ray, monkeypatch):
    """
    Each environment in use is told once, with who has it and where, without
    those of Ray, ours, and the dead.
    """
    hook = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
    monkeypatch.setattr(
        "distdebug.debugger.ray_debugger.tables._MOST_ENVIRONMENTS", 2
    )
    text = json.dumps({"pip": ["x"], "env_vars": {hook: "y"}})
    more = {"state": 2, "ray_namespace": "me", "address": place(b"", b"\xbb")}
    ray(
        nodes=[
            {
                "NodeID": "aa",
                "NodeManagerHostname": "n",
                "NodeManagerAddress": "i",
                "Alive": True,
            }
        ],
        jobs=[
            job(b"\x01", text),
            job(b"\x02", "no JSON"),
            job(b"\x03", text, is_dead=True),
            job(b"\x04", text, space="_ray_internal"),
            job(b"\x05", text),
        ],
        actors=[
            Proto(class_name="A", serialized_runtime_env=text, **more),
            Proto(class_name="A", serialized_runtime_env=text, **more),
            Proto(class_name="B", serialized_runtime_env='{"uv": 1}', **more),
            Proto(class_name="C", **{**more, "ray_namespace": "_distdebug"}),
        ],
    )

    got = read_tables("h:1")["environments"]

    assert [
        {
            "env": {"pip": ["x"], "env_vars": {}},
            "who": ["job 01", "job 05", "A"],
            "nodes": ["aa", "bb"],
        },
        {"env": {}, "who": ["job 02"], "nodes": ["aa"]},
    ] == got


def ask_child(**question):
    """
    What the child process answers.
    """
    out = io.StringIO()
    status = child.main(io.StringIO(json.dumps(question) + "\n"), out)
    return status, json.loads(out.getvalue())


def test_child(ray, monkeypatch):
    """
    The child answers what it was asked for, at the address that Ray knows.
    """
    ray()
    monkeypatch.setattr(errands, "ask_workers", lambda *args: list(args))

    tables = ask_child(address="h:1", errands=None, timeout_s=1)
    workers = ask_child(address="h:1", errands=[7], timeout_s=1)

    assert (0, "H:1") == (tables[0], tables[1]["answer"]["address"])
    assert (0, {"answer": ["H:1", [7], 1]}) == workers


def test_token(ray, monkeypatch):
    """
    Ray is let find the user's token for the cluster of this node, not for
    an address that was given.
    """
    ray()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked = []
    setup = types.SimpleNamespace(
        maybe_enable_token_auth_if_token_available=lambda **options: (
            asked.append(options)
        )
    )
    package = "ray._private.authentication"
    for name in (package, f"{package}.authentication_token_setup"):
        monkeypatch.setitem(sys.modules, name, setup)

    ask_child(address="h:1", errands=None, timeout_s=1)
    given = list(asked)
    ask_child(address="auto", errands=None, timeout_s=1)
    monkeypatch.setenv("RAY_ADDRESS", "h:1")
    ask_child(address="auto", errands=None, timeout_s=1)

    assert ([], [{"warn_if_disabled": False}]) == (given, asked)


def test_no_token(ray, monkeypatch):
    """
    A Ray that knows of no tokens does without.
    """
    ray()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    name = "ray._private.authentication.authentication_token_setup"
    monkeypatch.setitem(sys.modules, name, None)

    got = ask_child(address="auto", errands=None, timeout_s=1)

    assert "AUTO" == got[1]["answer"]["address"]


def test_child_fails(ray):
    """
    Whatever Ray raises, also its exit, is an answer.
    """
    ray()

    def fail(address):
        msg = f"{address} is no cluster\nat all"
        raise SystemExit(msg)

    services = sys.modules["ray._private"].services
    services.canonicalize_bootstrap_address_or_die = fail

    got = ask_child(address="h:1", errands=None, timeout_s=1)

    assert (0, {"reason": "SystemExit: h:1 is no cluster"}) == got


def test_child_process(cluster, monkeypatch):
    """
    As a process, it says one line, whatever Ray prints.
    """
    root = Path(asking.__file__).parents[3]
    folder = Path(os.environ["PYTHONPATH"])
    package = folder / "ray" / "_private"
    package.mkdir(parents=True)
    for path in (package.parent, package):
        (path / "__init__.py").write_text("")
    (package / "services.py").write_text(
        "def canonicalize_bootstrap_address_or_die(address):\n"
        "    print('noise')\n"
        "    raise ConnectionError('no cluster')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [folder, root])))
    monkeypatch.setattr(asking, "_MODULE", child.__name__)

    with pytest.raises(NodesError, match="ConnectionError: no cluster"):
        ask_tables("h:1", timeout_s=60)


class Remote:
    """
    A Ray that answers what it is told to.
    """

    def __init__(self, answers):
        self.answers = iter(answers)
        self.options_seen, self.cancelled, self.ended = [], [], 0
        self.cloudpickle = types.SimpleNamespace(
            register_pickle_by_value=lambda module: None
        )

    def init(self, *args, **kwargs):
        """
        Connect.
        """

    def shutdown(self):
        """
        Disconnect.
        """
        self.ended += 1

    def remote(self, **_):
        """
        Make tasks of functions.
        """

        def options(**options):
            self.options_seen.append(options)
            return types.SimpleNamespace(remote=lambda *args: object())

        return lambda function: types.SimpleNamespace(options=options)

    def wait(self, refs, **_):
        """
        Wait for nobody.
        """

    def get(self, ref, timeout):
        """
        The next answer.
        """
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self, ref, **_):
        """
        End a task.
        """
        self.cancelled.append(ref)
        raise ValueError


def test_errands(monkeypatch):
    """
    Each errand has an answer of its own, or a reason; late ones are ended.
    """

    class LateError(Exception):
        """
        As Ray's own.
        """

    remote = Remote(["{}", LateError(), ValueError("broken"), 7])
    strategies = "ray.util.scheduling_strategies"
    for name, module in {
        "ray": remote,
        "ray.exceptions": types.SimpleNamespace(GetTimeoutError=LateError),
        "ray.util": types.SimpleNamespace(),
        strategies: types.SimpleNamespace(
            NodeAffinitySchedulingStrategy=lambda node, soft: node
        ),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    errand = {"ask": "tell_environment", "with": [], "node": "aa", "env": {}}

    got = errands.ask_workers("h:1", [errand] * 4, 5)

    assert [
        {"answer": "{}"},
        {"reason": "no worker answered in time"},
        {"reason": "ValueError: broken"},
        {"reason": "a worker answered what nobody understands"},
    ] == got
    assert (1, 1) == (len(remote.cancelled), remote.ended)
    assert "aa" == remote.options_seen[0]["scheduling_strategy"]
    assert [] == errands.ask_workers("h:1", [], 5)


def test_tell_environment(monkeypatch):
    """
    A worker tells its versions, and why debugpy cannot be loaded.
    """
    fake = types.SimpleNamespace(__version__="1.8.9")
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "debugpy", fake)
    monkeypatch.setenv("RAY_DEBUG", "legacy")
    monkeypatch.delenv("RAY_DEBUG_POST_MORTEM", raising=False)

    there = json.loads(in_worker.tell_environment())
    monkeypatch.setitem(sys.modules, "debugpy", None)
    missing = json.loads(in_worker.tell_environment())

    assert ("1.8.9", "1.8.9", "legacy", None, "") == (
        there["ray"],
        there["debugpy"],
        there["RAY_DEBUG"],
        there["RAY_DEBUG_POST_MORTEM"],
        there["reason"],
    )
    assert None is missing["debugpy"]
    assert "ModuleNotFoundError" in missing["reason"]


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


@pytest.mark.parametrize(
    ("code", "key", "expected"),
    [
        ('test "$5" = --pid && echo "[]"', "reason", ""),
        ("echo denied >&2; exit 1", "reason", "py-spy: denied"),
        ("exec sleep 60", "reason", "TimeoutExpired"),
    ],
    ids=["seen", "denied", "late"],
)
def test_see_processes(spy, code, key, expected):
    """
    A process is looked at, in time, or it is said why not.
    """
    spy(code)

    seen = json.loads(in_worker.see_processes([os.getpid()], 2.0))

    (look,) = seen.values()
    assert expected in look[key]
    assert str(Path.cwd()) == look["cwd"]
    assert "python" in look["title"] or "pytest" in look["title"]


def test_see_nobody(spy, monkeypatch):
    """
    A process that is gone costs its own look only; so does a missing tool.
    """
    monkeypatch.setattr(in_worker.shutil, "which", lambda *_, **__: None)

    seen = json.loads(in_worker.see_processes([1 << 30, os.getpid()], 2.0))

    gone, missing = seen.values()
    assert "FileNotFoundError" in gone["reason"]
    assert "py-spy is not installed there" == missing["reason"]
