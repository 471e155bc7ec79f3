"""
Real jobs that watch themselves, or have somebody beside them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug import Cause, diagnose
from distdebug.snapshots.bundle import read_manifest

from .living import free_ports, wait_for


SOURCE = Path(distdebug.__file__).parents[1]
PROGRAMS = Path(__file__).parent / "programs"
ENVIRON = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
PATIENCE_S = 90

pytestmark = pytest.mark.skipif(
    shutil.which("py-spy") is None
    and not Path(sys.executable).with_name("py-spy").exists(),
    reason="py-spy is not installed",
)


class Job:
    """
    Ranks that were started, and what they write.
    """

    def __init__(self, folder, program, *arguments, ranks=4):
        self.folder = folder
        self.log = folder / "log.txt"
        with self.log.open("wb") as log:
            self.ranks = [
                subprocess.Popen(
                    [sys.executable, PROGRAMS / program, *arguments],
                    stdout=log,
                    stderr=log,
                    env={
                        **ENVIRON,
                        "RANK": str(rank),
                        "WORLD_SIZE": str(ranks),
                    },
                )
                for rank in range(ranks)
            ]

    @property
    def pids(self):
        """
        The processes of the ranks.
        """
        return [process.pid for process in self.ranks]

    @property
    def children(self):
        """
        The processes that ranks have started to look at their job.
        """
        return [
            child
            for pid in self.pids
            if psutil.pid_exists(pid)
            for child in psutil.Process(pid).children()
        ]

    def collector(self):
        """
        The process that takes the snapshot, when all others gave way to it.
        """
        children = self.children
        has_begun = any(self.folder.glob("hangs/*/"))
        return children[0] if has_begun and len(children) == 1 else None

    def end(self):
        """
        End it, with whatever it has started.
        """
        children = self.children
        for process in self.ranks:
            process.kill()
            process.wait(20)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


@pytest.fixture
def start(tmp_path):
    """
    Start a job that ends with the test.
    """
    pytest.importorskip("torch.distributed")
    with contextlib.ExitStack() as stack:

        def start_job(cause, program="watch_rank.py"):
            os.mkfifo(tmp_path / "shard")
            job = Job(tmp_path, program, cause, tmp_path)
            stack.callback(job.end)
            return job

        yield start_job


@pytest.fixture(scope="class")
def healthy(tmp_path_factory):
    """
    A job that takes steps of 1 s to 20 s, while the first tests run.
    """
    pytest.importorskip("torch.distributed")
    folder = tmp_path_factory.mktemp("healthy")
    job = Job(folder, "watch_rank.py", "none", folder, ranks=2)
    who = [part for pid in job.pids for part in ("--pid", str(pid))]
    with (folder / "side-car.txt").open("wb") as log:
        watcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "distdebug", "watch", *who),
                *("--floor", "4", "--output-dir", folder / "seen"),
            ],
            stdout=log,
            stderr=log,
            env=ENVIRON,
        )
        yield job, watcher, time.monotonic()
        watcher.kill()
        watcher.wait(20)
        job.end()


def is_free(pid):
    """
    Whether a process is neither dead nor stopped nor held by a debugger.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    is_running = re.search(r"State:\t[SRD]", status)
    return "TracerPid:\t0\n" in status and is_running is not None


def assert_explained(job, rank, detail, function):
    """
    The job that hangs was explained: rank, collective, cause, and line.
    """
    wait_for(
        (job.folder / "hangs" / "manifest.json").exists, seconds=PATIENCE_S
    )
    verdict = diagnose(job.folder / "hangs").verdict
    assert Cause.RANK_NOT_ARRIVED == verdict.cause
    assert (rank,) == verdict.ranks
    assert ("all_reduce", 21) == (
        verdict.collective.op,
        verdict.collective.seq,
    )
    assert detail == verdict.detail_cause
    assert function == verdict.location.function
    assert [] == [pid for pid in job.pids if not is_free(pid)]
    report = (job.folder / "hangs" / "REPORT.txt").read_text()
    assert verdict.summary in report
    wait_for(
        lambda: verdict.summary in job.log.read_text(), seconds=PATIENCE_S
    )
    (told,) = job.folder.glob("told-*")
    assert verdict.summary == told.read_text()


def node_states(job):
    """
    How the snapshot of each node went.
    """
    return [node.status for node in read_manifest(job.folder / "hangs").nodes]


@pytest.mark.usefixtures("healthy")
class TestBesideOthers:
    """
    Jobs that hang, beside one that does not: it computes all the time, so it
    is ended as soon as it has been watched for long enough.
    """

    def test_once(self, start):
        """
        Four ranks see a hang in input, and one of them takes it, once.
        """
        job = start("io")
        assert_explained(job, 2, Cause.IO_WAIT, "read_shard")
        assert ["ok"] == node_states(job)
        wait_for(lambda: not job.children, seconds=PATIENCE_S)

        time.sleep(12)  # for as long as it takes the others to notice

        assert ["hangs"] == [p.name for p in job.folder.glob("hangs*")]
        assert 1 == job.log.read_text().count("never entered all_reduce")

    def test_lock(self, start):
        """
        A lock that another thread never gives back is told.
        """
        job = start("lock")

        assert_explained(job, 3, Cause.LOCK_DEADLOCK, "log_metrics")

        assert ["ok"] == node_states(job)

    def test_gil(self, start):
        """
        So is native code that keeps the GIL, and with it
        the snapshot's own questions.
        """
        job = start("gil")

        assert_explained(job, 1, Cause.GIL_CONTENTION, "tokenize")

    def test_no_false_alarm(self, healthy):
        """
        A healthy job whose steps take 1 s to 20 s is never called a hang,
        neither by itself nor by who stands beside it, although 4 s is all
        they would wait.
        """
        job, watcher, begin = healthy

        time.sleep(max(0.0, 150 - (time.monotonic() - begin)))

        assert watcher.poll() is None
        assert [None, None] == [process.poll() for process in job.ranks]
        assert [] == list(job.folder.glob("told-*"))
        log = job.log.read_text()
        assert "WARNING" not in log
        # It was suspected, and looked at, and found to be fine.
        assert "(fine)" in log
        for report in job.folder.glob("seen*/REPORT.txt"):
            assert "cause: healthy" in report.read_text()


@pytest.mark.smoke
def test_deadlock(start):
    """
    Ranks that enter two groups in different order are all named.
    """
    job = start("order")

    wait_for(
        (job.folder / "hangs" / "manifest.json").exists, seconds=PATIENCE_S
    )

    verdict = diagnose(job.folder / "hangs").verdict
    assert Cause.GROUP_ORDER_DEADLOCK == verdict.cause
    assert 0 in verdict.ranks
    assert "all_reduce" == verdict.collective.op


def test_unrecorded(start):
    """
    A hang in calls that Gloo does not record is noticed and explained, too.
    """
    job = start("recv")

    wait_for(
        (job.folder / "hangs" / "manifest.json").exists, seconds=PATIENCE_S
    )

    found = diagnose(job.folder / "hangs")
    assert (Cause.IO_WAIT, (3,)) == (found.verdict.cause, found.verdict.ranks)
    assert "read_shard" == found.verdict.location.function
    assert (0, 1, 2) == found.victims


def test_collector_killed(start):
    """
    If the collector is killed, the job goes on, and another one takes over.
    """
    job = start("io")
    collector = wait_for(job.collector, seconds=PATIENCE_S)

    collector.kill()

    wait_for(
        (job.folder / "hangs" / "manifest.json").exists, seconds=PATIENCE_S
    )
    verdict = diagnose(job.folder / "hangs").verdict
    assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)
    assert [] == [pid for pid in job.pids if not is_free(pid)]
    for path in job.folder.glob("hangs/**/*.json"):
        json.loads(path.read_text())


def test_rank_killed(start):
    """
    If the rank that takes the snapshot is killed, it is taken all the same.
    """
    job = start("io")
    collector = wait_for(job.collector, seconds=PATIENCE_S)

    os.kill(collector.ppid(), signal.SIGKILL)

    wait_for(
        (job.folder / "hangs" / "manifest.json").exists, seconds=PATIENCE_S
    )
    states = [Path(f"/proc/{pid}/status").read_text() for pid in job.pids]
    assert [] == [s for s in states if re.search(r"State:\t[Tt]", s)]


def is_isolated():
    """
    Whether processes can be put where they see only each other.
    """
    done = subprocess.run(
        [*ISOLATED, "true"], capture_output=True, check=False
    )
    return done.returncode == 0


ISOLATED = (
    *("unshare", "--pid", "--uts", "--mount-proc", "--fork"),
    *("--kill-child", "--"),
)


@pytest.mark.skipif(
    shutil.which("unshare") is None or not is_isolated(),
    reason="no namespaces of processes and host names can be made",
)
def test_two_nodes(tmp_path):
    """
    The nodes of a job take one snapshot together, and one of them explains it.
    """
    pytest.importorskip("torch.distributed")
    os.mkfifo(tmp_path / "shard")
    run = (
        'hostname "node-$1" && exec "$2" -m torch.distributed.run '
        '--nnodes 2 --node-rank "$1" --nproc-per-node 2 '
        '--master-addr 127.0.0.1 --master-port "$5" "$3" io "$4"'
    )
    (port,) = free_ports(1)
    with contextlib.ExitStack() as stack:
        for number in range(2):
            log = stack.enter_context((tmp_path / f"log{number}").open("wb"))
            process = subprocess.Popen(
                [
                    *(*ISOLATED, "sh", "-c", run, "sh", str(number)),
                    *(sys.executable, PROGRAMS / "watch_rank.py", tmp_path),
                    str(port),
                ],
                stdout=log,
                stderr=log,
                env={**ENVIRON, "GLOO_SOCKET_IFNAME": "lo"},
            )
            stack.callback(process.wait, 20)
            stack.callback(process.kill)
        wait_for((tmp_path / "hangs" / "manifest.json").exists, seconds=150)

    manifest = read_manifest(tmp_path / "hangs")
    assert ["node-0", "node-1"] == [node.host for node in manifest.nodes]
    assert ["hangs"] == [path.name for path in tmp_path.glob("hangs*")]
    for node in ("node-0", "node-1"):
        taken = tmp_path / "hangs" / node
        assert 2 == len(list(taken.glob("pyspy_*.json")))
        assert 2 == len(list(taken.glob("flight_recorder/*_rank_?")))
    verdict = diagnose(tmp_path / "hangs").verdict
    assert (Cause.RANK_NOT_ARRIVED, (2,)) == (verdict.cause, verdict.ranks)
    assert "read_shard" == verdict.location.function
    assert verdict.summary in (tmp_path / "hangs" / "REPORT.txt").read_text()


def test_side_car(start):
    """
    With no code in the job at all, who stands beside it names rank, call,
    cause, and line.
    """
    job = start("io", program="plain_rank.py")
    wait_for(
        lambda: job.log.read_text().count("ready") == 4, seconds=PATIENCE_S
    )

    got = subprocess.run(
        [
            *(sys.executable, "-m", "distdebug", "watch", "--json"),
            *("--floor", "3", "--start", "6", "--wait-seconds", "12"),
            *("--pattern", str(job.folder)),
            *("--output-dir", job.folder / "hangs"),
            *("--on-hang", f"tee {job.folder}/hook.json"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=ENVIRON,
    )

    assert 1 == got.returncode, got.stderr
    data = json.loads(got.stdout.splitlines()[0])
    verdict = data["verdict"]
    assert ("io_wait", [2]) == (verdict["cause"], verdict["ranks"])
    assert "read_shard" == verdict["location"]["function"]
    assert "all_reduce" in json.dumps(data)
    hook = json.loads((job.folder / "hook.json").read_text())
    last = json.loads(got.stdout.splitlines()[-1])
    assert last["verdict"]["summary"] == hook["summary"]
    assert last["folder"] == hook["folder"]
    assert [] == [pid for pid in job.pids if not is_free(pid)]


def test_side_car_killed(start):
    """
    If who stands beside a job is killed, the job goes on, and the next one
    finds out.
    """
    job = start("io", program="plain_rank.py")
    wait_for(
        lambda: job.log.read_text().count("ready") == 4, seconds=PATIENCE_S
    )
    argv = [
        *(sys.executable, "-m", "distdebug", "watch", "--json"),
        *("--wait-seconds", "0.1", "--pattern", str(job.folder)),
        *("--output-dir", job.folder / "hangs"),
    ]
    with subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRON
    ) as watcher:
        wait_for(lambda: list(job.folder.glob("hangs/*/")), seconds=PATIENCE_S)
        watcher.kill()

    got = subprocess.run(
        argv, capture_output=True, text=True, timeout=PATIENCE_S, env=ENVIRON
    )

    assert 1 == got.returncode, got.stderr
    assert [2] == json.loads(got.stdout)["verdict"]["ranks"]
    assert (job.folder / "hangs" / "REPORT.txt").exists()
    assert [] == [pid for pid in job.pids if not is_free(pid)]


@pytest.fixture(name="collector")
def _collector():
    """
    A server that keeps what it is sent over OTLP: the path, and the message.
    """
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            """
            Keep a message.
            """
            length = int(self.headers["Content-Length"])
            got.append((self.path, self.rfile.read(length)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """
            Say nothing.
            """

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.got = got
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_telemetry(collector, tmp_path):
    """
    Who stands beside a job sends the hang, and its metrics, before it ends.
    """
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    pytest.importorskip("opentelemetry.sdk")
    code = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code]) as job:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "distdebug", "watch", "--otel"),
                *("--wait-seconds", "1", "--pid", str(job.pid)),
                *("--output-dir", tmp_path / "hangs"),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={
                **ENVIRON,
                "OTEL_EXPORTER_OTLP_ENDPOINT": (
                    f"http://127.0.0.1:{collector.server_port}"
                ),
                "OTEL_SERVICE_NAME": "train",
            },
        )
        job.kill()

    sent = dict(collector.got)
    assert 1 == done.returncode, done.stderr
    assert {"/v1/logs", "/v1/metrics"} == sent.keys()
    assert b"distdebug.hang" in sent["/v1/logs"]
    assert str(tmp_path / "hangs").encode() in sent["/v1/logs"]
    assert b"train" in sent["/v1/logs"]
    assert b"distdebug_hangs" in sent["/v1/metrics"]
    assert b"sleeping" in sent["/v1/metrics"]
