"""
Nodes of Slurm jobs, with stand-ins for the commands of Slurm.
"""

from __future__ import annotations

import os
import sys

import pytest

from distdebug.errors import NodesError
from distdebug.nodes import Ended, Slurm, run_on_nodes, slurm


SRUN = """
echo "$@" >>"$0.said"
for word; do shift; case $prev in -w) node=$word;; esac; prev=$word
  test "$word" = --mpi=none && break; done
env | grep ^SLURM_ >>"$0.said"
case $node in
  n3) echo 'srun: error: Task launch for StepId=7.1 failed on node n3:' \
        'Communication connection failure' >&2; exit 1;;
esac
SLURMD_NODENAME=$node exec "$@"
"""


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """
    A folder for stand-ins, which are found first.
    """
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return tmp_path


@pytest.fixture
def command(commands):
    """
    Writes a stand-in.
    """

    def write(name, code):
        path = commands / name
        path.write_text(f"#!/bin/sh\n{code}\n")
        path.chmod(0o755)

    return write


@pytest.fixture
def job(command):
    """
    A job on four nodes, one of which does not answer.
    """
    command(
        "squeue",
        'test "$*" = "-h -j 7 -o %A|%T|%N" && echo "7|RUN|n[1-3],x-1"',
    )
    command(
        "scontrol",
        'test "$*" = "show hostnames n[1-3],x-1" && '
        "printf '%s\\n' n1 n2 n3 x-1",
    )
    command("srun", SRUN)


class TestPlaces:
    def test_hosts(self, job):
        """
        Slurm itself names the nodes.
        """
        got = Slurm(job=7).places()

        assert ["n1", "n2", "n3", "x-1"] == list(got)

    def test_container(self, job):
        """
        A container is entered by its name, and has its own Python.
        """
        engine = Slurm(job=7, container_name="train")

        prefix = engine.places()["n1"]

        assert "--container-name=train" == prefix[-1]
        assert "python3" == engine.python
        assert sys.executable == Slurm(job=7).python

    def test_array(self, command, job):
        """
        Tasks of an array are reached as their own jobs; each node once.
        """
        command("squeue", "echo '8|RUNNING|n1'; echo '9|RUNNING|n1'")
        command("scontrol", "echo n1")

        got = Slurm(job="7").places()

        assert "--jobid=8" in got["n1"]

    @pytest.mark.parametrize("number", ["x", "7;ls", "-7", "7 8", ""])
    def test_no_number(self, number):
        """
        What is no number of a job is not given to Slurm.
        """
        with pytest.raises(NodesError, match="is no number"):
            Slurm(job=number).places()

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("echo '7|PENDING|'", "has no nodes: it is pending"),
            ("true", "has no nodes: it is over"),
            (
                "echo slurm_load_jobs: Invalid job id specified >&2; false",
                "Slurm knows no job 7",
            ),
            ("echo oops >&2; exit 1", "`squeue -h .*` failed: oops"),
            ("sleep 600", "failed: no answer after 0.5 s"),
        ],
    )
    def test_no_nodes(self, command, monkeypatch, code, message):
        """
        A job without nodes, or a Slurm without answer, is told.
        """
        monkeypatch.setattr(slurm, "_QUERY_S", 0.5)
        command("squeue", code)

        with pytest.raises(NodesError, match=message) as caught:
            Slurm(job=7).places()

        assert caught.value.remedy

    def test_no_slurm(self, tmp_path, monkeypatch):
        """
        Without Slurm its commands are named.
        """
        monkeypatch.setenv("PATH", str(tmp_path))

        with pytest.raises(NodesError, match="no squeue on PATH"):
            Slurm(job=7).places()


class TestRun:
    def test_function(self, job, commands, monkeypatch):
        """
        All nodes answer but the one that is dead.
        """
        monkeypatch.setenv("SLURM_NTASKS", "512")
        monkeypatch.setenv("SLURM_CONF", "/etc/here")

        results = run_on_nodes(
            lambda: os.environ["SLURMD_NODENAME"], engine=Slurm(job=7)
        )
        got = {x.host: (x.status, x.value) for x in results}

        said = (commands / "srun.said").read_text()
        assert {
            "n1": ("ok", "n1"),
            "n2": ("ok", "n2"),
            "n3": ("dead", None),
            "x-1": ("ok", "x-1"),
        } == got
        assert "--overlap --jobid=7 --nodes=1 --ntasks=1 -w n1 " in said
        assert "SLURM_CONF=/etc/here" in said
        assert "SLURM_NTASKS" not in said


class TestExplain:
    @pytest.mark.parametrize(
        ("complaint", "status", "reason"),
        [
            ("srun: error: Node failure on n3", "dead", "does not reach"),
            (
                "srun: error: Unable to confirm: Invalid job id specified",
                "failed",
                "not running any more",
            ),
            (
                "srun: error: Requested node configuration is not available",
                "failed",
                "does not belong to the job",
            ),
            (
                "srun: unrecognized option '--container-name=x'",
                "failed",
                "does not know --container-name",
            ),
            (
                "slurmstepd: error: pyxis: no such container",
                "failed",
                "the container cannot be entered",
            ),
            (
                "srun: error: Unable to create: Access/permission denied",
                "failed",
                "does not let this user",
            ),
        ],
    )
    def test_known(self, complaint, status, reason):
        """
        What Slurm says is told in plain words, quoted, with what helps.
        """
        got = slurm._trouble(Ended(complaint=f"noise\n{complaint}\n".encode()))

        assert status == got.status
        assert reason in got.reason
        assert complaint in got.reason
        assert got.remedy

    @pytest.mark.parametrize(
        "complaint",
        [
            "",
            "srun: error: n1: task 0: Exited with exit code 1",
            "my job says: Node failure",
        ],
    )
    def test_unknown(self, complaint):
        """
        What the command itself says is not Slurm's trouble.
        """
        assert slurm._trouble(Ended(complaint=complaint.encode())) is None


def test_no_text(command):
    """
    What prints no text, where Slurm should be, is told.
    """
    command("squeue", "printf '7|RUN|n\\0001\\n'")

    with pytest.raises(NodesError, match="printed what is no text") as caught:
        list(run_on_nodes(["true"], engine=Slurm(job="7")))

    assert "which squeue" in caught.value.remedy
