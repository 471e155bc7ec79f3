"""
Nodes of a real Slurm job: one controller and three daemons on this machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug.bundle.manifest import read_manifest
from distdebug.diagnosis import everywhere
from distdebug.diagnosis.everywhere import snapshot_everywhere
from distdebug.errors import NodesError
from distdebug.findings import Cause
from distdebug.nodes.run import run_on_nodes
from distdebug.nodes.slurm import Slurm


NODES = ("lab-1", "lab-2", "lab-9")
TOOLS = ("munged", "munge", "slurmctld", "slurmd", "srun")
STEP, NODE = "slurmstepd", "SLURMD_NODENAME"

CONF = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def wait_until(condition, *, seconds=30):
    """
    Look until something is so, or skip: then this Slurm does not work.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.1)
    pytest.skip("Slurm is installed and does not start here")


def answers(*argv):
    """
    What a command prints; nothing if it fails.
    """
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    return done.stdout if done.returncode == 0 else ""


def free_ports(count):
    """
    Ports that nobody listens on.
    """
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Lab:
    """
    A Slurm of our own, in a folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self):
        """
        Start every daemon in the foreground, as our own children.
        """
        key, munge = self.folder / "munge.key", self.folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._spawn(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={munge}",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )
        wait_until(lambda: answers("munge", "-n", "-S", str(munge)))
        self._configure()
        self._spawn("slurmctld", "-D")
        for node in NODES:
            self._spawn("slurmd", "-D", "-N", node, name=node)
        wait_until(
            lambda: len(answers("sinfo", "-hNtidle", "-o%N").split()) == 3
        )

    def stop(self):
        """
        Stop all of them, the nodes first.
        """
        for node in NODES:
            if node in self.processes:
                self.lose(node)
        for name in reversed(self.processes):
            self.kill(name)

    def kill(self, name):
        """
        Stop a daemon at once.
        """
        process = self.processes[name]
        if process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def tasks(self, node):
        """
        The processes that Slurm started on a node.
        """
        wanted = {str(self.folder / "slurm.conf"), node}
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environ, parent = process.environ(), process.parent()
                names = {environ.get(x) for x in ("SLURM_CONF", NODE)}
                if parent and parent.name() == STEP and names == wanted:
                    found.append(process)
        return found

    def lose(self, node):
        """
        Stop all of a node at once.
        """
        self.kill(node)
        for task in self.tasks(node):
            for process in (*task.parents()[:1], *task.children(), task):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def allocate(self):
        """
        Have a job on all nodes, one step of which has all that there is.
        """
        count = f"-N{len(NODES)}"
        self._spawn("srun", count, "--mem=100", "sleep", "600")
        wait_until(lambda: all(map(self.tasks, NODES)))
        return answers("squeue", "-htR", "-o%A").strip()

    def _configure(self):
        host = socket.gethostname().partition(".")[0]
        first, *ports = free_ports(1 + len(NODES))
        lines = [CONF.format(host=host, port=first, folder=self.folder)]
        for node, port in zip(NODES, ports, strict=True):
            (self.folder / f"spool.{node}").mkdir()
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 "
                f"Port={port} CPUs=1 RealMemory=100\n"
            )
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text("".join(lines))

    def _spawn(self, *argv, name=None):
        with (self.folder / f"{name or argv[0]}.out").open("wb") as out:
            self.processes[name or argv[0]] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """
    A Slurm that runs while these tests do.
    """
    for tool in TOOLS:
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    if os.geteuid() != 0:
        pytest.skip("several nodes on one host need root")

    # The path of a socket may have 107 characters.
    folder = tmp_path_factory.mktemp("s")
    lab = Lab(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        root = str(Path(distdebug.__file__).parents[1])
        patch.setenv("PYTHONPATH", root)
        try:
            lab.start()
            yield lab
        finally:
            lab.stop()


@pytest.fixture(scope="module")
def job(lab):
    """
    The number of a job on all nodes.
    """
    return lab.allocate()


def by_host(results):
    """
    The results, by node.
    """
    return {result.host: result for result in results}


def test_function(job):
    """
    A function runs once on every node of the job, inside the job.
    """

    def function():
        print("shown")
        names = ("SLURMD_NODENAME", "SLURM_JOB_ID", "SLURM_NTASKS")
        return [os.environ[name] for name in names]

    got = by_host(run_on_nodes(function, engine=Slurm(job=job), timeout_s=60))

    assert {node: [node, job, "1"] for node in NODES} == {
        host: result.value for host, result in got.items()
    }
    assert {"shown"} == {result.output for result in got.values()}


def test_large_value(job):
    """
    What is returned may be large, and so may the function.
    """
    sent = os.urandom(1 << 20)

    results = run_on_nodes(
        lambda: "x" * len(sent) * 3, engine=Slurm(job=job), timeout_s=60
    )

    assert {3 << 20} == {len(result.value) for result in results}


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


def test_snapshot(job, rank, tmp_path):
    """
    A snapshot of all nodes has a part of each, and one diagnosis.
    """
    taken = snapshot_everywhere(
        tmp_path / "hang", engine=Slurm(job=job), pids=[rank]
    )

    assert ["ok"] * 3 == [n.status for n in taken.manifest.nodes]
    assert () == taken.manifest.skipped
    assert Cause.SLEEPING is taken.diagnosis.verdict.cause


def test_snapshot_hangs(lab, job, rank, tmp_path, monkeypatch):
    """
    A node that hangs while it collects costs its own part only, in bound.
    """
    monkeypatch.setattr(everywhere, "_MORE_S", 10.0)
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(
            snapshot_everywhere,
            tmp_path / "hang",
            engine=Slurm(job=job),
            pids=[rank],
            timeout_s=5,
        )
        wait_until(lambda: len(lab.tasks("lab-2")) == 2)
        for task in lab.tasks("lab-2")[1:]:
            task.suspend()
        taken = future.result()

    assert time.monotonic() - begin < 45
    assert [("lab-1", "ok"), ("lab-2", "failed"), ("lab-9", "ok")] == [
        (node.host, node.status) for node in taken.manifest.nodes
    ]
    (missing,) = taken.manifest.skipped
    assert ("node", "lab-2") == (missing.what, missing.source)
    assert "no answer after 15 s" in missing.reason
    assert taken.manifest == read_manifest(taken.folder)
    assert Cause.SLEEPING is taken.diagnosis.verdict.cause


def test_hang(lab, job):
    """
    A node that hangs is given up in time, and nothing stays behind on it.
    """
    code = (
        "import os, time; print('hangs', flush=True); "
        "time.sleep(600 * (os.environ['SLURMD_NODENAME'] == 'lab-2'))"
    )
    begin = time.monotonic()

    got = by_host(
        run_on_nodes(
            [sys.executable, "-c", code],
            engine=Slurm(job=job),
            timeout_s=5,
        )
    )

    assert time.monotonic() - begin < 30
    assert {"lab-1": "ok", "lab-2": "timed_out", "lab-9": "ok"} == {
        host: result.status for host, result in got.items()
    }
    assert "hangs" in got["lab-2"].output
    deadline = time.monotonic() + 30
    while len(lab.tasks("lab-2")) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ["sleep"] == [task.name() for task in lab.tasks("lab-2")]


def test_wrong_job(lab):
    """
    A job that does not exist is told as such.
    """
    with pytest.raises(NodesError, match="Slurm knows no job 4711"):
        Slurm(job="4711").places()


def test_node_dies(lab, job):
    """
    A node that dies during the run costs its own result only, in bound.
    """
    code = 'test "$SLURMD_NODENAME" != lab-9 || sleep 600; true'
    begin = time.monotonic()
    results = run_on_nodes(
        ["sh", "-c", code], engine=Slurm(job=job), timeout_s=20
    )

    got = {}
    for result in results:
        got[result.host] = result.status
        if len(got) == 2:
            wait_until(lambda: len(lab.tasks("lab-9")) == 2)
            lab.lose("lab-9")

    assert time.monotonic() - begin < 40
    assert {"lab-1": "ok", "lab-2": "ok"} == {
        host: status for host, status in got.items() if host != "lab-9"
    }
    assert got["lab-9"] in {"timed_out", "dead", "failed"}


def test_dead_node(lab, job):
    """
    A node that is dead is told as such, and the others answer.
    """
    lab.kill("lab-9")

    results = run_on_nodes(
        lambda: os.environ["SLURMD_NODENAME"],
        engine=Slurm(job=job),
        timeout_s=60,
    )
    got = by_host(results)

    assert ("lab-1", "lab-2") == (got["lab-1"].value, got["lab-2"].value)
    assert "dead" == got["lab-9"].status
    assert "does not reach the node" in got["lab-9"].reason


def test_snapshot_of_dead(lab, job, rank, tmp_path):
    """
    A snapshot without a node that died says so.
    """
    lab.kill("lab-9")

    taken = snapshot_everywhere(
        tmp_path / "hang", engine=Slurm(job=job), pids=[rank]
    )

    assert [("lab-1", "ok"), ("lab-2", "ok"), ("lab-9", "failed")] == [
        (node.host, node.status) for node in taken.manifest.nodes
    ]
    assert "does not reach the node" in taken.manifest.skipped[0].reason
    assert Cause.SLEEPING is taken.diagnosis.verdict.cause
