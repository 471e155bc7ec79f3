"""
A Slurm of several nodes on this machine, as our own children.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import distdebug

from .living import end, free_ports, wait_until


_TOOLS = ("munged", "munge", "slurmctld", "slurmd", "srun")
_STEP, _NODE = "slurmstepd", "SLURMD_NODENAME"

_CONF = """
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
TaskProlog={folder}/prolog
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
# Nodes that are apart have folders of their own.
_PROLOG = """#!/bin/sh
echo "export DISTDEBUG_DIR={folder}/d.$SLURMD_NODENAME"
"""


class SlurmLab:
    """
    Daemons, and what they run.

    Attributes:
        folder: All of it; its path is short, as sockets want.

        nodes: Their names.

        processes: What was started, by name.
    """

    def __init__(self, folder: Path, nodes: tuple[str, ...]) -> None:
        self.folder = folder
        self.nodes = nodes
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """
        Start every daemon in the foreground, as our own children.
        """
        key, munge = self.folder / "munge.key", self.folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.spawn(
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--socket={munge}", f"--pid-file={self.folder}/munged.pid"),
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )
        _need(lambda: bool(says("munge", "-n", "-S", str(munge))))
        self._configure()
        self.spawn("slurmctld", "-D")
        for node in self.nodes:
            self.spawn("slurmd", "-D", "-N", node, name=node)
        idle = ("sinfo", "-hNtidle", "-o%N")
        _need(lambda: len(says(*idle).split()) == len(self.nodes))

    def allocate(self) -> str:
        """
        Have a job on all nodes, one step of which has all that there is.

        Returns:
            Its number.
        """
        count = f"-N{len(self.nodes)}"
        self.spawn("srun", count, "--mem=100", "sleep", "600")
        _need(lambda: all(map(self.tasks, self.nodes)))
        return says("squeue", "-htR", "-o%A").strip()

    def tasks(self, node: str) -> list[psutil.Process]:
        """
        The processes that Slurm started on a node.
        """
        wanted = {str(self.folder / "slurm.conf"), node}
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environ, parent = process.environ(), process.parent()
                names = {environ.get(x) for x in ("SLURM_CONF", _NODE)}
                if parent and parent.name() == _STEP and names == wanted:
                    found.append(process)
        return found

    def lose(self, node: str) -> None:
        """
        Stop all of a node at once.
        """
        self.kill(node)
        for task in self.tasks(node):
            end([*task.parents()[:1], *task.children(), task])

    def kill(self, name: str) -> None:
        """
        Stop a daemon at once.
        """
        process = self.processes[name]
        if process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def stop(self) -> None:
        """
        Stop all of them, the nodes first.
        """
        for node in self.nodes:
            if node in self.processes:
                self.lose(node)
        for name in reversed(self.processes):
            self.kill(name)

    def spawn(self, *argv: str, name: str | None = None) -> None:
        """
        Start a program in a session of its own.
        """
        name = name or argv[0]
        with (self.folder / f"{name}.out").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _configure(self) -> None:
        host = socket.gethostname().partition(".")[0]
        first, *ports = free_ports(1 + len(self.nodes))
        lines = [_CONF.format(host=host, port=first, folder=self.folder)]
        for node, port in zip(self.nodes, ports, strict=True):
            (self.folder / f"spool.{node}").mkdir()
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 "
                f"Port={port} CPUs=1 RealMemory=100\n"
            )
        prolog = self.folder / "prolog"
        prolog.write_text(_PROLOG.format(folder=self.folder))
        prolog.chmod(0o755)
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text("".join(lines))


@contextmanager
def slurm_lab(folder: Path, *nodes: str) -> Iterator[SlurmLab]:
    """
    A Slurm that runs meanwhile; the test is skipped where that cannot be.
    """
    for tool in _TOOLS:
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    if os.geteuid() != 0:
        pytest.skip("several nodes on one host need root")

    lab = SlurmLab(folder, nodes)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setenv("PYTHONPATH", str(Path(distdebug.__file__).parents[1]))
        stack.callback(lab.stop)
        lab.start()
        yield lab


def says(*argv: str) -> str:
    """
    What a command prints; nothing if it fails.
    """
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    return done.stdout if done.returncode == 0 else ""


def _need(condition: Callable[[], object]) -> None:
    if not wait_until(condition):
        pytest.skip("Slurm is installed and does not start here")
