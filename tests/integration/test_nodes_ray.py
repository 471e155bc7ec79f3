"""
Nodes of a real Ray cluster: three of them on this machine, and a job.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import attrs
import pytest

import distdebug

from distdebug import analyze_dumps
from distdebug.causes import Cause
from distdebug.errors import NodesError
from distdebug.nodes import Ray, run_on_nodes
from distdebug.nodes.ray import RayExecutor
from distdebug.snapshots import snapshot_everywhere
from distdebug.snapshots.bundle import read_manifest
from distdebug.testing import SimulatedJob, make_dumps

from .living import end_all, having, wait_until


PROGRAM = Path(__file__).parent / "programs" / "ray_cluster.py"
# The path of a socket may have 107 characters; the first node is the head.
FOLDER = "/tmp"


class Cluster:
    """
    A Ray cluster in a process of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "job").mkdir()
        (folder / "job" / "of_the_job.py").write_text("NAME = 'its file'\n")
        (folder / "ray").mkdir()

    def start(self):
        """
        Start it, and learn what there is.
        """
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self.folder / "job")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "RAY_TMPDIR": str(self.folder)},
                start_new_session=True,
            )
        told = json.loads(self.process.stdout.readline() or "{}")
        if not told:
            log = (self.folder / "log").read_text()
            pytest.skip(f"Ray is installed and does not start: {log[-2000:]}")
        self.address, self.job = told["address"], told["job"]
        host = socket.gethostname()
        self.raylets = {
            f"{host}-{node[:8]}": pid for node, pid in told["raylets"].items()
        }

    def stop(self):
        """
        Stop it, and all that it leaves behind.
        """
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.wait(20)
        self.process.stdout.close()
        # What a killed node started is stopped by nobody.
        end_all(str(self.folder))
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def cluster():
    """
    A cluster that runs while these tests do.
    """
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        root = str(Path(distdebug.__file__).parents[1])
        patch.setenv("PYTHONPATH", root)
        patch.delenv("RAY_ADDRESS", raising=False)
        cluster = Cluster(Path(tempfile.mkdtemp(prefix="r", dir=FOLDER)))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="module")
def nodes(cluster):
    """
    The nodes but the head.
    """
    return list(cluster.raylets)[1:]


def by_host(results):
    """
    The results, by node.
    """
    return {result.host: result for result in results}


def statuses(results):
    """
    How it went, by node.
    """
    return {result.host: result.status for result in results}


def test_function(cluster, tmp_path, monkeypatch):
    """
    A function by value runs once on every node, beside a job that has every
    CPU and in its runtime environment; nothing is printed here.
    """
    (tmp_path / "user_module.py").write_text(
        "import os\n"
        "def work():\n"
        "    import of_the_job\n"
        "    print('shown')\n"
        "    names = 'DISTDEBUG_NODE', 'OF_THE_JOB'\n"
        "    return [*map(os.environ.get, names), of_the_job.NAME]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import user_module

    got = by_host(
        run_on_nodes(
            user_module.work, engine=Ray(cluster.address), timeout_s=60
        )
    )

    assert {node: [node, "42", "its file"] for node in cluster.raylets} == {
        host: result.value for host, result in got.items()
    }
    assert {"shown"} == {result.output for result in got.values()}
    del sys.modules["user_module"]


def test_large_value(cluster):
    """
    What is returned may be large, and so may the function.
    """
    sent = os.urandom(1 << 20)

    results = run_on_nodes(
        lambda: "x" * len(sent) * 3, engine=Ray(cluster.address), timeout_s=60
    )

    assert {3 << 20} == {len(result.value) for result in results}


@pytest.mark.parametrize(
    ("env", "expected"), [({}, ""), ({"env_vars": {"MINE": "7"}}, "7")]
)
def test_given_env(cluster, env, expected):
    """
    A runtime environment that is given replaces that of the job.
    """
    engine = Ray(cluster.address, runtime_env=env)

    results = run_on_nodes(
        ["sh", "-c", "echo $OF_THE_JOB $MINE"], engine=engine
    )

    assert [expected] * 3 == [result.output for result in results]


def test_named_job(cluster):
    """
    A job can be named; one that does not run is told.
    """
    engine = Ray(cluster.address, job=cluster.job)

    results = run_on_nodes(["printenv", "OF_THE_JOB"], engine=engine)

    assert ["42"] * 3 == [result.output for result in results]
    with pytest.raises(NodesError, match="Ray runs no job 'other'"):
        list(run_on_nodes(["true"], engine=Ray(cluster.address, job="other")))


def test_broken_env(cluster):
    """
    A runtime environment that cannot be set up is told.
    """
    env = {"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"}
    engine = Ray(cluster.address, runtime_env=env)

    results = list(run_on_nodes(["true"], engine=engine, timeout_s=30))

    assert ["failed"] * 3 == [result.status for result in results]
    assert "environment cannot be set up there" in results[0].reason
    assert results[0].remedy


def test_crash(cluster):
    """
    A function that ends its process costs nothing but its own answer.
    """
    results = run_on_nodes(os.abort, engine=Ray(cluster.address))

    assert {"it ended with signal 6"} == {x.reason for x in results}


def test_read_dumps(cluster, tmp_path, capfd):
    """
    Dumps that the cluster reads are those that are read here.
    """
    job = SimulatedJob(40)
    job.collective("all_reduce")
    job.collective("all_gather", ranks=set(range(40)) - {7})
    make_dumps(tmp_path, job)
    here = distdebug.read_dumps(tmp_path)

    with RayExecutor(cluster.address, num_cpus=0) as executor:
        there = distdebug.read_dumps(tmp_path, executor=executor)

    assert tuple(range(40)) == here.ranks == there.ranks
    assert (here.ops, here.shapes) == (there.ops, there.shapes)
    for rank in here.ranks:
        ours = attrs.asdict(here.by_rank[rank].entries)
        theirs = attrs.asdict(there.by_rank[rank].entries)
        for name, column in ours.items():
            assert column.tobytes() == theirs[name].tobytes()
    assert str(analyze_dumps(here)) == str(analyze_dumps(there))
    assert ("", "") == capfd.readouterr()


def test_executor(cluster, nodes):
    """
    Calls run on one node, if wanted; they fail and are cancelled one by one.
    """

    def where():
        import ray

        return ray.get_runtime_context().get_node_id()

    wanted = nodes[0].rpartition("-")[2]
    before = signal.getsignal(signal.SIGTERM)
    with RayExecutor(cluster.address, num_cpus=0) as first:
        import ray

        (node,) = (n for n in ray.nodes() if n["NodeID"].startswith(wanted))
        second = RayExecutor(num_cpus=0, node=node["NodeID"])
        place = second.submit(where)
        failure = first.submit(int, "x")
        endless = first.submit(time.sleep, 600)

        assert place.result(60) == node["NodeID"]
        assert isinstance(failure.exception(60), ValueError)
        assert endless.cancel()
        second.shutdown()
        assert ray.is_initialized()
        with pytest.raises(RuntimeError, match="after shutdown"):
            second.submit(int)
        with pytest.raises(NodesError, match="no live node 'nowhere'"):
            RayExecutor(node="nowhere")
    assert not ray.is_initialized()
    assert before is signal.getsignal(signal.SIGTERM)


def test_closed(cluster):
    """
    Who wants no more results leaves nothing behind on the nodes.
    """
    head = next(iter(cluster.raylets))
    code = f'test "$DISTDEBUG_NODE" = {head} || exec sleep 599.25'
    results = run_on_nodes(
        ["sh", "-c", code], engine=Ray(cluster.address), timeout_s=300
    )

    first = next(results)
    assert wait_until(lambda: having("599.25"))
    begin = time.monotonic()
    results.close()

    assert head == first.host
    assert time.monotonic() - begin < 15
    assert wait_until(lambda: not having("599.25"))


@pytest.fixture
def rank():
    """
    The number of a process that sleeps, and is a rank.
    """
    code = "import time\nprint(flush=True)\ntime.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
    ) as process:
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_snapshot(cluster, rank, tmp_path):
    """
    A snapshot of the cluster has a part of each node, under its name.
    """
    got = subprocess.run(
        [
            *(sys.executable, "-m", "distdebug", "snapshot", "--json"),
            *("--ray", cluster.address, "--pid", str(rank)),
            str(tmp_path / "hang"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert 1 == got.returncode, got.stderr
    data = json.loads(got.stdout)
    assert dict.fromkeys(cluster.raylets, "ok") == {
        node["host"]: node["status"] for node in data["manifest"]["nodes"]
    }
    assert set(cluster.raylets) <= {f.name for f in tmp_path.glob("hang/*")}
    assert "sleeping" == data["verdict"]["cause"]


def test_nobody_there(monkeypatch):
    """
    Where no cluster is, none is started.
    """
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("distdebug.nodes.ray._CONNECT_S", 3.0)
        monkeypatch.setattr("distdebug.nodes.process._CLOSE_GRACE_S", 0.5)

        with pytest.raises(NodesError, match="no Ray cluster answers"):
            list(run_on_nodes(["true"], engine=Ray(address)))


def test_stopped_node(cluster, nodes):
    """
    A node that does not go on is given up in time; the others answer.
    """
    stopped = nodes[0]
    os.kill(cluster.raylets[stopped], signal.SIGSTOP)
    try:
        got = by_host(
            run_on_nodes(
                ["true"],
                engine=Ray(cluster.address, grace_s=2),
                # Ray starts a worker on each of the others within that.
                timeout_s=25,
            )
        )
    finally:
        os.kill(cluster.raylets[stopped], signal.SIGCONT)

    given_up = got.pop(stopped)
    assert "timed_out" == given_up.status
    assert given_up.seconds < 35
    assert ["ok", "ok"] == [result.status for result in got.values()]


def test_killed_node(cluster, nodes):
    """
    A node that dies during the run costs its own result only, in bound; from
    then on it is told as dead.
    """
    killed = nodes[1]
    code = f'test "$DISTDEBUG_NODE" != {killed} || exec sleep 599.75'
    begin = time.monotonic()
    results = run_on_nodes(
        ["sh", "-c", code],
        engine=Ray(cluster.address, grace_s=2),
        timeout_s=35,
    )

    first, second = next(results), next(results)
    assert wait_until(lambda: having("599.75"))
    os.kill(cluster.raylets[killed], signal.SIGKILL)
    (last,) = results

    assert time.monotonic() - begin < 60
    assert ["ok", "ok"] == [first.status, second.status]
    assert killed == last.host
    assert last.status in {"dead", "timed_out"}
    again = by_host(run_on_nodes(["true"], engine=Ray(cluster.address)))
    assert "dead" == again[killed].status
    assert "does not reach the node" in again[killed].reason
    assert ["ok", "ok"] == [
        result.status for host, result in again.items() if host != killed
    ]


def test_snapshot_of_dead(cluster, nodes, rank, tmp_path):
    """
    A snapshot without a node that died says so, and has the others.
    """
    taken = snapshot_everywhere(
        tmp_path / "hang", engine=Ray(cluster.address), pids=[rank]
    )

    status = {node.host: node.status for node in taken.manifest.nodes}
    assert "failed" == status.pop(nodes[1])
    assert ["ok", "ok"] == list(status.values())
    assert taken.manifest == read_manifest(taken.folder)
    (missing,) = taken.manifest.skipped
    assert nodes[1] == missing.source
    assert "does not reach the node" in missing.reason
    assert Cause.SLEEPING is taken.diagnosis.verdict.cause
