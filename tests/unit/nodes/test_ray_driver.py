"""
What is done with Ray, without one.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import sys
import threading
import time

from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest

from distdebug.errors import NodesError
from distdebug.nodes import Ray, RayExecutor, ray_driver


pytestmark = pytest.mark.process


def job(number, env=None, **changes):
    """
    A job, as Ray describes it.
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
        ray_driver.main(stdin, out)
        if not closed:
            os.close(write)
        for thread in threading.enumerate():
            if thread.name.endswith("(_wait_for_end)"):
                thread.join(30)
    first, *rest = map(json.loads, out.getvalue().splitlines())
    return first, {x["host"]: left(x["ended"]) for x in rest}


def left(line):
    """
    What a command left: its status, its output, and its trouble.
    """
    if line is None:
        return None
    ended = json.loads(line)
    output = base64.b64decode(ended["output"])
    return ended["status"], output, ended["trouble"]


class TestDriver:
    def test_run(self, ray):
        """
        Each node runs the command, and the job keeps its CPUs.
        """
        first, got = drive(runtime_env={"pip": []})

        assert ["host-a", "host-b"] == first["hosts"]
        assert "10.0.0.1:6379" == first["address"]
        assert (0, b"in host-a\n", None) == got["host-a"]
        assert (0, b"in host-b\n", None) == got["host-b"]
        assert {"num_cpus": 0, "max_retries": 0} == ray.options[0]
        assert {"pip": []} == ray.options[1]["runtime_env"]
        assert not ray.options[1]["scheduling_strategy"].soft
        assert not ray.is_connected

    def test_python(self, ray):
        """
        Without another one, the Python of the worker runs functions.
        """
        _, got = drive(argv=["", "-c", "print(42)"], data=None)

        assert (0, b"42\n", None) == got["host-a"]

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
        ray.table = [ray.node(x, NodeManagerHostname="vm") for x in "ab"]

        first, got = drive()

        assert ["vm-aaaaaaaa", "vm-bbbbbbbb"] == first["hosts"] == list(got)

    def test_dead(self, ray):
        """
        Dead nodes are reported, but for those that were taken back.
        """
        ray.table = [
            ray.node("a"),
            ray.node("b", Alive=False, DeathReasonMessage="no heartbeat"),
            ray.node("c", Alive=False, DeathReason=4),
        ]

        first, got = drive()

        assert ["host-a", "host-b"] == first["hosts"]
        status, reason, _ = got["host-b"][2]
        assert "dead" == status
        assert "no heartbeat" in reason

    @pytest.mark.parametrize(
        ("error", "status", "reason"),
        [
            ("NodeDiedError", "dead", "does not reach the node"),
            ("RuntimeEnvSetupError", "failed", "cannot be set up there: R"),
            ("Error", "failed", "failed: OSError: out of it"),
        ],
    )
    def test_errors(self, ray, error, status, reason):
        """
        What Ray says of a task is reported, and costs one node.
        """

        kind = getattr(ray.exceptions, error, OSError)

        def fail():
            raise kind(*["out of it"])

        ray.answers["a"] = fail

        _, got = drive()

        assert status == got["host-a"][2][0]
        assert reason in got["host-a"][2][1]
        assert 0 == got["host-b"][0]

    def test_died(self, ray):
        """
        Whatever Ray says, a node that is dead by then is dead.
        """

        def fail():
            ray.table[0] = ray.node("a", Alive=False)
            raise OSError

        ray.answers["a"] = fail

        _, got = drive()

        assert "dead" == got["host-a"][2][0]

    @pytest.mark.parametrize("answer", [["list"], 3, None])
    def test_hostile(self, ray, answer):
        """
        What a node returns is carried on only if it is text.
        """
        ray.answers["a"] = lambda: answer

        _, got = drive()

        assert got["host-a"] is None

    @pytest.mark.parametrize("alive", [True, False, None])
    def test_late(self, ray, alive, monkeypatch):
        """
        What takes too long is cancelled, and reported as what it is by then.
        """
        ray.answers["a"] = None
        tables = [
            [ray.node("a")],
            [ray.node("a", Alive=alive)] if alive is not None else [],
        ]
        monkeypatch.setattr(
            ray, "nodes", lambda: tables.pop(0) if tables else []
        )

        _, got = drive(timeout_s=0.1, grace_s=0.1)

        status, _, trouble = got["host-a"]
        assert status is None
        assert (alive is False) == bool(trouble)
        assert 1 == len(ray.cancelled)

    def test_stopped(self, ray):
        """
        When nothing listens any more, what runs is cancelled.
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
        Why there is no connection is reported.
        """
        ray.refusal = error

        first, got = drive()

        assert reason in " ".join(first["reason"].split())
        assert remedy in first["remedy"]
        assert {} == got

    def test_not_installed(self, ray, monkeypatch):
        """
        A node without distdebug says so, as data.
        """
        monkeypatch.setitem(sys.modules, "distdebug.nodes.process", None)

        _, got = drive()

        _, reason, remedy = got["host-a"][2]
        assert "in the Ray worker of host-a: " in reason
        assert "install distdebug" in remedy

    def test_noise(self, tmp_path, monkeypatch):
        """
        What Ray prints goes where it is not taken for an answer.
        """
        (tmp_path / "ray.py").write_text(NOISY)
        path = os.pathsep.join([str(tmp_path), *sys.path])
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "ray", raising=False)

        with pytest.raises(NodesError, match="auto: no cluster"):
            Ray().locate()


NOISY = """
def init(*args, **options):
    print("noise")
    raise ConnectionError("no cluster")
"""


HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
PIP = {"pip": ["a"]}
NAMED = [job(1, PIP, submission="raysubmit_1"), job(2)]
SAME = [job(1, PIP), job(2, PIP)]


@pytest.mark.parametrize(
    ("jobs", "name", "given", "expected"),
    [
        ([], "job", {"pip": []}, {"pip": []}),
        # None of these is a job that runs, and is not ours or Ray's own.
        (
            [
                job(1, PIP, is_dead=True),
                job(2, PIP, namespace="_ray_internal_dashboard"),
                job(3, PIP, namespace="_distdebug"),
                job(9, PIP),
            ],
            *(None, None, None),
        ),
        # The only job, without its profiler and its hook.
        (
            [job(1, {"nsight": "x", "env_vars": {"A": "1", HOOK: "f"}})],
            *(None, None, {"env_vars": {"A": "1"}}),
        ),
        (NAMED, "01000000", None, PIP),
        (NAMED, "raysubmit_1", None, PIP),
        ([], "x", None, "Ray runs no job 'x'"),
        # A Ray that is made otherwise.
        ([SimpleNamespace(is_dead=False)], None, None, "not list its jobs"),
        # Several jobs have to be the same, or one is named.
        (SAME, None, None, PIP),
        ([*SAME, job(3, submission="raysubmit_3")], None, None, "01000000 ("),
    ],
    ids=[
        *("given", "nothing runs", "only job", "number", "name", "unknown"),
        *("other Ray", "same", "several"),
    ],
)
def test_runtime_env(ray, jobs, name, given, expected):
    """
    The runtime environment of tasks is that of the job, if it is known which
    job is meant.
    """
    ray.jobs = jobs

    first, _ = drive(runtime_env=given, job=name)

    if isinstance(expected, str):
        assert expected in first["reason"]
        assert first["remedy"]
    else:
        assert expected == ray.options[1].get("runtime_env")


class TestExecutor:
    @pytest.fixture
    def ray(self, connection, request):
        """
        A Ray that is none, whose cluster answers.
        """
        connection('print(\'{"hosts": [], "address": "10.0.0.7:6379"}\')')
        return request.getfixturevalue("ray")

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
        assert "10.0.0.7:6379" == ray.inits[0][0]
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
        A node that is not there is reported; nothing stays connected.
        """
        ray.table.append(ray.node("c", Alive=False))

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
