"""
What is done with Ray, without one.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import signal
import sys
import threading
import time
import types

from concurrent.futures import CancelledError, Future
from types import SimpleNamespace

import pytest

from distdebug.errors import NodesError
from distdebug.nodes import Ended, ray_driver, ray_executor
from distdebug.nodes.ray_env import runtime_env_of
from distdebug.nodes.ray_executor import RayExecutor
from distdebug.nodes.wire import ended_from_line


class NodeDiedError(Exception):
    """
    As that of Ray.
    """


class TaskUnschedulableError(Exception):
    """
    As that of Ray.
    """


class ActorUnschedulableError(Exception):
    """
    As that of Ray.
    """


class RuntimeEnvSetupError(Exception):
    """
    As that of Ray.
    """


def node(name, **changes):
    """
    A node, as Ray tells it.
    """
    return {
        "NodeID": name * 56,
        "NodeManagerHostname": f"host-{name}",
        "NodeManagerAddress": f"10.0.0.{ord(name)}",
        "NodeName": f"10.0.0.{ord(name)}",
        "Alive": True,
        "DeathReason": 0,
        "DeathReasonMessage": "",
        **changes,
    }


def job(number, env=None, **changes):
    """
    A job, as Ray tells it.
    """
    config = SimpleNamespace(
        ray_namespace=changes.pop("namespace", "x"),
        runtime_env_info=SimpleNamespace(
            serialized_runtime_env=json.dumps(env) if env else ""
        ),
        metadata={"job_submission_id": changes.pop("submission", "")},
    )
    return SimpleNamespace(
        **{
            "job_id": bytes([number, 0, 0, 0]),
            "is_dead": False,
            "entrypoint": f"python job_{number}.py",
            "config": config,
            **changes,
        }
    )


class Task:
    """
    A function that Ray runs.
    """

    def __init__(self, ray, function, options=None):
        self.ray, self.function, self.opt = ray, function, options or {}

    def options(self, **options):
        """
        It, to be run in another way.
        """
        self.ray.options.append(options)
        return SimpleNamespace(
            remote=Task(self.ray, self.function, options).remote
        )

    def remote(self, *args):
        """
        Run it, as far as the fake has no other answer.
        """
        where = self.opt.get("scheduling_strategy")
        name = where.node_id[0] if where else ""
        future = Future()
        answer = self.ray.answers.get(name, lambda: self.function(*args))
        if answer is not None:
            try:
                future.set_result(answer())
            except Exception as exc:  # noqa: BLE001
                future.set_exception(exc)
        ref = SimpleNamespace(future=lambda: future)
        return types.new_class("Ref", (), {}, lambda ns: ns.update(vars(ref)))


class FakeRay(types.ModuleType):
    """
    As much of Ray as is used.
    """

    def __init__(self):
        super().__init__("ray")
        self.table = [node("a"), node("b")]
        self.jobs, self.answers = [], {}
        self.options, self.cancelled, self.inits = [], [], []
        self.is_connected, self.refusal = False, None
        self.exceptions = SimpleNamespace(
            NodeDiedError=NodeDiedError,
            TaskUnschedulableError=TaskUnschedulableError,
            ActorUnschedulableError=ActorUnschedulableError,
            RuntimeEnvSetupError=RuntimeEnvSetupError,
        )
        client = SimpleNamespace(get_all_job_info=self._get_all_job_info)
        worker = SimpleNamespace(gcs_client=client)
        self._private = SimpleNamespace(
            worker=SimpleNamespace(global_worker=worker)
        )

    def _get_all_job_info(self, **_options):
        return dict(enumerate(self.jobs))

    def init(self, address, **options):
        """
        Connect.
        """
        if self.refusal:
            raise self.refusal
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.inits.append((address, options))
        self.is_connected = True

    def shutdown(self):
        """
        Disconnect.
        """
        self.is_connected = False

    def is_initialized(self):
        """
        Whether it is connected.
        """
        return self.is_connected

    def nodes(self):
        """
        The nodes.
        """
        return [dict(x) for x in self.table]

    @staticmethod
    def get_runtime_context():
        """
        Who we are.
        """
        return SimpleNamespace(
            gcs_address="10.0.0.1:6379", get_job_id=lambda: "09000000"
        )

    @staticmethod
    def put(value):
        """
        Keep a value.
        """
        return value

    def remote(self, **options):
        """
        What makes a task of a function.
        """
        self.options.append(options)
        return functools.partial(Task, self)

    @staticmethod
    def wait(refs, *, num_returns=1, timeout):
        """
        Which are done?
        """
        time.sleep(0.01)
        return [ref for ref in refs if ref.future().done()][:num_returns], []

    @staticmethod
    def get(ref):
        """
        What is its value?
        """
        return ref.future().result()

    def cancel(self, ref, *, force):
        """
        End a task.
        """
        assert not force
        self.cancelled.append(ref)


@pytest.fixture
def ray(monkeypatch):
    """
    A Ray that is none.
    """
    fake = FakeRay()
    strategies = types.ModuleType("strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node_id, *, soft: (
        SimpleNamespace(node_id=node_id, soft=soft)
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(
        sys.modules, "ray.util.scheduling_strategies", strategies
    )
    before = signal.getsignal(signal.SIGTERM)
    yield fake
    signal.signal(signal.SIGTERM, before)


def drive(*, closed=False, **task):
    """
    All that the connection says.
    """
    whole = {
        "address": "auto",
        "runtime_env": {},
        "job": None,
        "at_once": 1,
        "grace_s": 1.0,
        "argv": ["sh", "-c", "cat; echo $DISTDEBUG_NODE"],
        "data": base64.b64encode(b"in ").decode(),
        "timeout_s": 60.0,
        **task,
    }
    read, write = os.pipe()
    out = io.StringIO()
    os.write(write, json.dumps(whole).encode() + b"\n")
    if closed:
        os.close(write)
    with os.fdopen(read) as stdin:
        assert 0 == ray_driver.main(stdin, out)
        if not closed:
            os.close(write)
        for thread in threading.enumerate():
            if thread.name.endswith("(_wait_for_end)"):
                thread.join(30)
    first, *rest = map(json.loads, out.getvalue().splitlines())
    return first, {x["host"]: ended_from_line(x["ended"]) for x in rest}


class TestDriver:
    def test_run(self, ray):
        """
        Each node runs the command, and the job keeps its CPUs.
        """
        first, got = drive(runtime_env={"pip": []})

        assert ["host-a", "host-b"] == first["hosts"]
        assert "10.0.0.1:6379" == first["address"]
        assert Ended(0, b"in host-a\n") == got["host-a"]
        assert Ended(0, b"in host-b\n") == got["host-b"]
        assert {"num_cpus": 0, "max_retries": 0} == ray.options[0]
        assert {"pip": []} == ray.options[1]["runtime_env"]
        assert not ray.options[1]["scheduling_strategy"].soft
        assert not ray.is_connected

    def test_python(self, ray):
        """
        Without another one, the Python of the worker runs functions.
        """
        _, got = drive(argv=["", "-c", "print(42)"], data=None)

        assert b"42\n" == got["host-a"].output

    def test_locate(self, ray):
        """
        Without a command, nothing is run.
        """
        first, got = drive(argv=[])

        assert ["host-a", "host-b"] == first["hosts"]
        assert {} == got

    def test_same_host(self, ray):
        """
        Nodes on the same host have different names.
        """
        ray.table = [node(x, NodeManagerHostname="vm") for x in "ab"]

        first, got = drive()

        assert ["vm-aaaaaaaa", "vm-bbbbbbbb"] == first["hosts"] == list(got)

    def test_dead(self, ray):
        """
        Dead nodes are told, but for those that were taken back.
        """
        ray.table = [
            node("a"),
            node("b", Alive=False, DeathReasonMessage="no heartbeat"),
            node("c", Alive=False, DeathReason=4),
        ]

        first, got = drive()

        assert ["host-a", "host-b"] == first["hosts"]
        assert "dead" == got["host-b"].trouble.status
        assert "no heartbeat" in got["host-b"].trouble.reason

    @pytest.mark.parametrize(
        ("error", "status", "reason"),
        [
            (NodeDiedError("x"), "dead", "does not reach the node"),
            (TaskUnschedulableError("x"), "dead", "does not reach the node"),
            (RuntimeEnvSetupError("x"), "failed", "cannot be set up there: R"),
            (OSError("out of it"), "failed", "failed: OSError: out of it"),
        ],
    )
    def test_errors(self, ray, error, status, reason):
        """
        What Ray says of a task is told, and costs one node.
        """

        def fail():
            raise error

        ray.answers["a"] = fail

        _, got = drive()

        assert status == got["host-a"].trouble.status
        assert reason in got["host-a"].trouble.reason
        assert 0 == got["host-b"].status

    def test_died(self, ray):
        """
        Whatever Ray says, a node that is dead by then is dead.
        """

        def fail():
            ray.table[0] = node("a", Alive=False)
            raise OSError

        ray.answers["a"] = fail

        _, got = drive()

        assert "dead" == got["host-a"].trouble.status

    @pytest.mark.parametrize("answer", [b"\xff", "text", ["list"], 3])
    def test_hostile(self, ray, answer):
        """
        Whatever a node returns, it is text or nothing.
        """
        ray.answers["a"] = lambda: answer

        _, got = drive()

        assert "nobody understands" in got["host-a"].trouble.reason

    @pytest.mark.parametrize("alive", [True, False, None])
    def test_late(self, ray, alive, monkeypatch):
        """
        What takes too long is cancelled, and told as what it is by then.
        """
        ray.answers["a"] = None
        tables = [
            [node("a")],
            [node("a", Alive=alive)] if alive is not None else [],
        ]
        monkeypatch.setattr(
            ray, "nodes", lambda: tables.pop(0) if tables else []
        )

        _, got = drive(timeout_s=0.1, grace_s=0.1)

        assert got["host-a"].status is None
        assert (alive is False) == bool(got["host-a"].trouble)
        assert 1 == len(ray.cancelled)

    def test_stopped(self, ray):
        """
        When nobody listens any more, what runs is cancelled.
        """
        ray.answers = {"a": None, "b": None}
        begin = time.monotonic()

        _, got = drive(closed=True, at_once=2)

        assert {} == got
        assert len(ray.cancelled) in {0, 2}
        assert not ray.is_connected
        assert time.monotonic() - begin < 30

    @pytest.mark.parametrize(
        ("error", "reason", "remedy"),
        [
            (
                ConnectionError("Could not find any\nSuch as"),
                "no way to a Ray cluster at auto: Could not find any",
                "ray status",
            ),
            (
                RuntimeError("Version mismatch: Ray: 1\nPython: 2"),
                "the cluster differs: Version mismatch: Ray: 1 Python: 2",
                "of the cluster",
            ),
        ],
    )
    def test_refused(self, ray, error, reason, remedy):
        """
        Why there is no connection is told.
        """
        ray.refusal = error

        first, got = drive()

        assert reason in " ".join(first["reason"].split())
        assert remedy in first["remedy"]
        assert {} == got

    def test_not_installed(self, monkeypatch):
        """
        A node without distdebug says so, as data.
        """
        monkeypatch.setitem(sys.modules, "distdebug.nodes.process", None)

        got = ended_from_line(ray_driver.on_node(b"", 1, "h").decode())

        assert "in the Ray worker of h: " in got.trouble.reason
        assert "install distdebug" in got.trouble.remedy

    def test_main(self, ray, monkeypatch, capfd):
        """
        What Ray prints goes where nobody takes it for an answer.
        """
        keep = os.dup(1)

        def say(stdin, stdout):
            os.write(1, b"noise")
            stdout.write("answer")
            return 0

        monkeypatch.setattr(ray_driver, "main", say)

        status = ray_driver._main()

        os.dup2(keep, 1)
        os.close(keep)
        out, err = capfd.readouterr()
        assert (0, "answer", "noise") == (status, out, err)


class TestRuntimeEnv:
    def test_given(self, ray):
        """
        One that is given is taken.
        """
        assert {} == runtime_env_of({}, "job")

    def test_nothing_runs(self, ray):
        """
        Where no job runs, there is none.
        """
        ray.jobs = [
            job(1, {"pip": ["a"]}, is_dead=True),
            job(2, {"pip": ["a"]}, namespace="_ray_internal_dashboard"),
            job(3, {"pip": ["a"]}, namespace="_distdebug"),
            job(9, {"pip": ["a"]}),
        ]

        assert runtime_env_of(None, None) is None

    def test_only_job(self, ray):
        """
        That of the only job is taken, without its profiler and its hook.
        """
        hook = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
        env = {
            "working_dir": "gcs://x.zip",
            "nsight": "default",
            "env_vars": {"A": "1", hook: "f"},
        }
        ray.jobs = [job(1, env)]

        got = runtime_env_of(None, None)

        assert {"working_dir": "gcs://x.zip", "env_vars": {"A": "1"}} == got

    @pytest.mark.parametrize("name", ["01000000", "raysubmit_1"])
    def test_named(self, ray, name):
        """
        A job has a number and a name.
        """
        ray.jobs = [
            job(1, {"pip": ["a"]}, submission="raysubmit_1"),
            job(2),
        ]

        assert {"pip": ["a"]} == runtime_env_of(None, name)

    def test_unknown(self, ray):
        """
        A job that does not run is told.
        """
        with pytest.raises(NodesError, match="Ray runs no job 'x'"):
            runtime_env_of(None, "x")

    def test_several(self, ray):
        """
        Several jobs have to be the same, or one is named.
        """
        ray.jobs = [job(1, {"pip": ["a"]}), job(2, {"pip": ["a"]})]
        assert {"pip": ["a"]} == runtime_env_of(None, None)

        ray.jobs.append(job(3, submission="raysubmit_3"))
        with pytest.raises(NodesError, match=r"01000000 .*raysubmit_3 \("):
            runtime_env_of(None, None)

    def test_other_ray(self, ray):
        """
        A Ray that is made otherwise is told as such.
        """
        ray.jobs = [SimpleNamespace(is_dead=False)]

        with pytest.raises(NodesError, match="does not tell its jobs"):
            runtime_env_of(None, None)


@pytest.fixture
def located(monkeypatch):
    """
    A cluster that answers.
    """
    monkeypatch.setattr(ray_executor.Ray, "locate", lambda _: "10.0.0.1:6379")


@pytest.mark.usefixtures("located")
class TestExecutor:
    def test_calls(self, ray):
        """
        Calls have values, or exceptions; the connection ends with it.
        """
        before = signal.getsignal(signal.SIGTERM)

        with RayExecutor() as executor:
            value = executor.submit(pow, 2, exp=5)
            failure = executor.submit(int, "x")

        assert 32 == value.result()
        assert isinstance(failure.exception(), ValueError)
        assert before is signal.getsignal(signal.SIGTERM)
        assert "10.0.0.1:6379" == ray.inits[0][0]
        assert not ray.inits[0][1]["log_to_driver"]
        assert not ray.is_connected

    def test_other_thread(self, ray):
        """
        It does not have to be made by the main thread.
        """
        made = []
        thread = threading.Thread(target=lambda: made.append(RayExecutor()))
        thread.start()
        thread.join(30)

        made[0].shutdown()

        assert not ray.is_connected

    def test_connected(self, ray):
        """
        A connection that was there stays.
        """
        ray.is_connected = True

        with RayExecutor(num_cpus=0):
            pass

        assert ray.is_connected
        assert [] == ray.inits
        assert 0 == ray.options[0]["num_cpus"]

    @pytest.mark.parametrize("name", ["host-b", "10.0.0.98", "b" * 56])
    def test_node(self, ray, name):
        """
        Calls may run on one node only, and in an environment.
        """
        with RayExecutor(node=name, runtime_env={"pip": []}) as executor:
            executor.submit(int)

        options = ray.options[1]
        assert "b" * 56 == options["scheduling_strategy"].node_id
        assert {"pip": []} == options["runtime_env"]

    def test_no_node(self, ray):
        """
        A node that is not there is told; nothing stays connected.
        """
        ray.table.append(node("c", Alive=False))

        with pytest.raises(NodesError, match="it has host-a, host-b") as got:
            RayExecutor(node="host-c")

        assert got.value.remedy
        assert not ray.is_connected

    def test_cancel(self, ray):
        """
        What is cancelled ends, even if it ran; what is done stays so.
        """
        ray.answers[""] = None
        with RayExecutor() as executor:
            endless = executor.submit(time.sleep, 600)

            assert endless.cancel()
            assert endless.cancel()

        with pytest.raises(CancelledError):
            endless.result()
        assert 1 == len(ray.cancelled)
        # Ray is done with it in the end.
        endless._ref.future().set_result(None)
        assert endless.cancelled()

        ray.answers = {}
        with RayExecutor() as executor:
            assert not executor.submit(int).cancel()

    def test_shutdown(self, ray):
        """
        After the end, no calls are taken; what runs may be ended.
        """
        ray.answers[""] = None
        executor = RayExecutor()
        endless = executor.submit(time.sleep, 600)

        executor.shutdown(wait=False)
        assert ray.is_connected
        executor.shutdown(cancel_futures=True)

        assert endless.cancelled()
        assert not ray.is_connected
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(int)
