"""
Jobs on several real nodes that are stopped, asked, and steered from one place.

A Slurm of four nodes, a Ray cluster of two, and a server of ssh run on this
machine.  Each node has a folder of its own for its sockets, as nodes do that
are apart.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time

from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import distdebug

from distdebug.debugger import connect
from distdebug.debugger.client import client as client_module
from distdebug.errors import DebuggerError, NodesError

from .living import end, free_ports, having, wait_until
from .ray_lab import two_nodes
from .slurm_lab import slurm_lab


SOURCE = str(Path(distdebug.__file__).parents[1])
PROGRAM = Path(__file__).parent / "programs" / "debug_node.py"
RELAY = "distdebug.debugger.client.relay"
PATIENCE_S = 60

SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
AcceptEnv DISTDEBUG_DIR PYTHONPATH
PermitRootLogin prohibit-password
"""

SSH = """
Host node-1 node-2
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking no
  LogLevel ERROR
Host node-1
  SetEnv DISTDEBUG_DIR={folder}/d.node-1 PYTHONPATH={source}
Host node-2
  SetEnv DISTDEBUG_DIR={folder}/d.node-2 PYTHONPATH={source}
Host node-3
  HostName 127.0.0.1
  Port {closed}
"""

ACTORS = """
import sys, time, ray
@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self, rank):
        from distdebug.debugger import arm
        self.rank = rank
        arm(labels={"group": "trainer", "rank": rank}, breakpoints=True)
    def step(self):
        loss = self.rank % 2
        if self.rank == 3:
            self.hang()
        breakpoint()
        loss = loss + 10
        return loss
    def hang(self):
        waits_for = "peer"
        time.sleep(600)
ray.init(sys.argv[1], log_to_driver=False)
nodes = ["head", "other", "head", "other"]
trainers = [
    Trainer.options(resources={n: 1}).remote(r) for r, n in enumerate(nodes)
]
print(ray.get([trainer.step.remote() for trainer in trainers]))
"""


@pytest.fixture(scope="module")
def folder():
    """
    A folder; its path is short, as sockets want.
    """
    path = Path(tempfile.mkdtemp(prefix="n", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", SOURCE)
        for name in ("DISTDEBUG", "DISTDEBUG_DIR", "RAY_ADDRESS"):
            patch.delenv(name, raising=False)
        yield path
    end(having(f"{path}/"))
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def slurm(folder):
    """
    A Slurm of four nodes.
    """
    with slurm_lab(folder, "lab-1", "lab-2", "lab-3", "lab-4") as lab:
        yield lab


def texts(answers):
    """
    What each rank said.
    """
    return {o.rank: o.text.strip() for o in answers.outputs}


def wait_for_stops(where, ranks, seconds=PATIENCE_S):
    """
    A client, as soon as exactly these ranks are stopped, and all are there.
    """
    seen = None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            # Nodes that join later are not known to one that is connected.
            client = connect(**where)
        except (NodesError, DebuggerError) as error:
            seen = error
            time.sleep(0.2)
            continue
        seen = client.list()
        stopped = {p.rank for p in seen if p.is_stopped}
        if stopped == ranks and len(seen.processes) > len(ranks):
            return client
        client.close()
        time.sleep(0.2)
    pytest.fail(str(seen))


def follow(client, hosts):
    """
    Do what one does with three ranks that are stopped and one that hangs, on
    nodes of these names.
    """
    listing = client.list()
    odd = client.cast("ranks(:)", "p loss")
    held = client.attach(1)
    # Where a breakpoint stops depends on the version of Python.
    stepped = [held.send("next") for _ in range(2)]
    held.send("p loss")
    told = held.send("p 'x' * 200000")
    values = client.eval("ranks(3)", "waits_for")
    stacks = client.stack("ranks(3)")

    assert hosts == [p.host for p in listing]
    assert () == (*listing.lost, *listing.silent)
    assert {0: "0", 1: "1", 2: "0"} == texts(odd)
    assert [3] == [p.rank for p in odd.not_stopped]
    assert ["stopped"] * 2 == [output.state for output in stepped]
    assert "return loss" in stepped[-1].text + stepped[0].text
    assert "xxx" in told.text
    assert {3: "'peer'"} == texts(values)
    assert " in hang" in texts(stacks)[3].replace("Trainer.", "")
    assert {1: "11"} == texts(client.cast("ranks(1)", "p loss"))


@contextmanager
def prompt(*options):
    """
    A person at the prompt, who has seen the list.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "distdebug", "dbg", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            shown = ""
            while "for help" not in shown:
                line = process.stdout.readline()
                assert line, shown
                shown += line
            yield process
        finally:
            process.kill()


def leave(process):
    """
    Detach from a rank, and leave; what was shown.
    """
    typed = "attach 0\np 'typed'\ndetach\nquit\n"
    return process.communicate(typed, timeout=PATIENCE_S)[0]


@pytest.fixture(scope="module")
def job(slurm):
    """
    Four ranks, three of which are stopped, and the options to reach them.
    """
    number = slurm.allocate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONBREAKPOINT", "distdebug.debugger.set_trace")
        patch.setenv("DISTDEBUG", "1")
        slurm.spawn(
            *("srun", "--overlap", f"--jobid={number}", "-N4", "-n4"),
            *("--mpi=none", sys.executable, str(PROGRAM)),
            name="job",
        )
    where = {"slurm": number}
    wait_for_stops(where, {0, 1, 2}).close()
    return where


class TestSlurm:
    def test_session(self, slurm, job):
        """
        The ranks of all nodes are listed, cast to, stepped, and asked.
        """
        with connect(**job, timeout_s=20) as client:
            follow(client, list(slurm.nodes))

        assert wait_until(lambda: not having(RELAY))

    def test_prompt(self, job):
        """
        The prompt of the command is the same; to leave leaves nothing.
        """
        with prompt("--slurm", job["slurm"]) as process:
            shown = leave(process)

        assert "typed" in shown
        assert 0 == process.returncode
        assert wait_until(lambda: not having(RELAY))

    def test_killed_client(self, job):
        """
        A client that is killed leaves no relay, and the ranks as they were.
        """
        with prompt("--slurm", job["slurm"]) as process:
            assert having(RELAY)
            process.kill()
            process.wait(PATIENCE_S)

            assert wait_until(lambda: not having(RELAY))
        with connect(**job, timeout_s=20) as client:
            stopped = {p.rank for p in client.list() if p.is_stopped}
        assert {0, 1, 2} == stopped

    def test_cut(self, slurm, job, monkeypatch):
        """
        A relay whose client is cut off ends by itself; the next question
        starts another.
        """
        monkeypatch.setattr(client_module, "_RELAY_IDLE_S", 10)
        with connect(**job, timeout_s=20) as client:
            client.list()
            cut = [p for p in having(RELAY) if p.name().startswith("srun")]
            ours = {p.pid for p in having(RELAY)} - {p.pid for p in cut}
            end(cut)

            assert ours
            assert wait_until(
                lambda: not ours & {p.pid for p in having(RELAY)}
            )
            answers = client.cast("ranks(:)", "p rank")
        assert {0: "0", 1: "1", 2: "2"} == texts(answers)

    def test_silent(self, slurm, job):
        """
        A rank that is suspended is named with its node.
        """
        (rank,) = [p for p in having(str(PROGRAM)) if is_rank(p, 2)]
        rank.suspend()
        try:
            with connect(**job, timeout_s=0.5) as client:
                # On a busy machine, others may take as long, once.
                for _ in range(20):
                    listing = client.list()
                    if len(listing.silent) == 1:
                        break
                # One of these has been left to answer later.
                text = str(listing)
        finally:
            rank.resume()

        assert [("lab-3", rank.pid)] == [
            (one.host, one.pid) for one in listing.silent
        ]
        assert f"process {rank.pid} on lab-3 does not answer" in text

    def test_node_dies(self, slurm, job):
        """
        A node that dies in mid-conversation is told, and no other is lost.
        """
        with connect(**job) as client:
            client.list()
            slurm.lose("lab-4")
            begin = time.monotonic()
            answers = client.cast("ranks(0:3)", "p rank")
            listing = client.list()

        assert time.monotonic() - begin < 45
        assert {0: "0", 1: "1", 2: "2"} == texts(answers)
        assert [0, 1, 2] == [p.rank for p in listing]
        assert ["lab-4"] == [node.host for node in listing.lost]
        assert listing.lost[0].reason
        assert "lab-4 cannot be asked: " in str(listing)

    def test_goes_on(self, slurm, job):
        """
        What one lets go ends as if it had never been stopped.
        """
        with connect(**job, timeout_s=20) as client:
            client.cast("ranks(:)", "continue")

        log = slurm.folder / "job.out"
        assert wait_until(lambda: 3 == log.read_text().count("is done"))


def is_rank(process, rank):
    """
    Whether a process is this rank of the job.
    """
    with suppress(psutil.Error):
        environ = process.environ()
        return environ.get("SLURM_PROCID") == str(rank) and (
            "python" in process.name()
        )
    return False


class TestRay:
    @pytest.fixture
    def cluster(self, folder):
        """
        Two nodes, and actors on both; the address.
        """
        with two_nodes(folder) as address:
            (folder / "actors.py").write_text(ACTORS)
            driver = subprocess.Popen(
                [sys.executable, str(folder / "actors.py"), address],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            yield address
            driver.kill()
            driver.wait(30)

    def test_session(self, cluster):
        """
        The actors of all nodes are listed, cast to, stepped, and asked; no
        relay is left, not even by a client that is killed.
        """
        with wait_for_stops({"ray": cluster}, {0, 1, 2}, 150) as client:
            listing = client.list()
            hosts = [p.host for p in listing]
            follow(client, hosts)

        assert 2 == len(set(hosts))
        assert hosts[:2] == hosts[2:]
        assert wait_until(lambda: not having(RELAY))

        with prompt("--ray", cluster) as process:
            assert wait_until(lambda: having(RELAY))
            process.kill()
            process.wait(PATIENCE_S)
            assert wait_until(lambda: not having(RELAY))

        with connect(ray=cluster) as client:
            other = listing.processes[1].host
            end(having("/ray/other"))
            assert wait_until(
                lambda: [other] == [n.host for n in client.list().lost],
                seconds=40,
            )
            assert client.list().lost[0].reason


class TestSsh:
    @pytest.fixture
    def hosts(self, folder):
        """
        A server of ssh with keys of its own; two names of this machine.
        """
        server, keygen = shutil.which("sshd"), shutil.which("ssh-keygen")
        server = server or shutil.which("/usr/sbin/sshd")
        if not (server and keygen and shutil.which("ssh")):
            pytest.skip("openssh-server is not installed")
        for name in ("host_key", "key"):
            subprocess.run(
                [keygen, "-q", "-t", "ed25519", "-N", "", "-f", folder / name],
                check=True,
                timeout=30,
            )
        shutil.copy(folder / "key.pub", folder / "authorized_keys")
        port, closed = free_ports(2)
        (folder / "sshd_config").write_text(
            SSHD.format(folder=folder, port=port)
        )
        (folder / "ssh_config").write_text(
            SSH.format(folder=folder, port=port, closed=closed, source=SOURCE)
        )
        wrapper = folder / "bin" / "ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n'
        )
        wrapper.chmod(0o755)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        log = folder / "sshd.log"
        daemon = subprocess.Popen(
            [server, "-D", "-f", folder / "sshd_config", "-E", log],
            start_new_session=True,
        )
        with pytest.MonkeyPatch.context() as patch:
            path = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"
            patch.setenv("PATH", path)
            works = ["ssh", "-o", "BatchMode=yes", "node-1", "true"]
            if not wait_until(
                lambda: (
                    not subprocess.run(
                        works, capture_output=True, timeout=30
                    ).returncode
                ),
                seconds=15,
            ):
                daemon.kill()
                daemon.wait(30)
                pytest.skip(f"sshd does not start: {log.read_text()[-500:]}")
            yield ["node-1", "node-2"]
            daemon.kill()
            daemon.wait(30)

    @pytest.fixture
    def ranks(self, folder):
        """
        Four ranks on two hosts.
        """
        started = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "DISTDEBUG": "1",
                    "PYTHONBREAKPOINT": "distdebug.debugger.set_trace",
                    "DISTDEBUG_DIR": str(folder / f"d.node-{1 + rank % 2}"),
                },
                start_new_session=True,
            )
            for rank in range(4)
        ]
        yield started
        for process in started:
            process.kill()
            process.wait(30)

    def test_session(self, hosts, ranks):
        """
        The ranks of all hosts are listed, cast to, stepped, and asked; one
        that cannot be reached is named, and nothing is left.
        """
        with wait_for_stops({"hosts": hosts}, {0, 1, 2}) as client:
            follow(client, hosts * 2)
        assert wait_until(lambda: not having(RELAY))

        with connect(hosts=[*hosts, "node-3"]) as client:
            listing = client.list()
        assert 4 == len(listing.processes)
        (lost,) = listing.lost
        assert "node-3" == lost.host
        assert "refused" in lost.reason

        with prompt("--hosts", ",".join(hosts)) as process:
            assert having(RELAY)
            process.kill()
            process.wait(PATIENCE_S)
            assert wait_until(lambda: not having(RELAY))
