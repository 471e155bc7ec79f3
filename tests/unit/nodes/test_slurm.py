"""
Nodes of Slurm jobs, with stand-ins for the commands of Slurm.
"""

from __future__ import annotations

import os
import sys

import pytest

from distdebug.errors import NodesError
from distdebug.nodes import Slurm, run_on_nodes


pytestmark = pytest.mark.process


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
def job(stand_in):
    """
    A job on four nodes, one of which does not answer.
    """
    stand_in(
        "squeue",
        'test "$*" = "-h -j 7 -o %A|%T|%N" && echo "7|RUN|n[1-3],x-1"',
    )
    stand_in(
        "scontrol",
        'test "$*" = "show hostnames n[1-3],x-1" && '
        "printf '%s\\n' n1 n2 n3 x-1",
    )
    return stand_in("srun", SRUN)


class TestPlaces:
    def test_hosts(self, job):
        """
        Slurm itself names the nodes.
        """
        got = Slurm(job=7).srun_prefixes()

        assert ["n1", "n2", "n3", "x-1"] == list(got)

    def test_container(self, job):
        """
        A container is entered by its name, and has its own Python.
        """
        engine = Slurm(job=7, container_name="train")

        prefix = engine.srun_prefixes()["n1"]

        assert "--container-name=train" == prefix[-1]
        assert "python3" == engine.python
        assert sys.executable == Slurm(job=7).python

    def test_array(self, stand_in, job):
        """
        Tasks of an array are reached as their own jobs; each node once.
        """
        stand_in("squeue", "echo '8|RUNNING|n1'; echo '9|RUNNING|n1'")
        stand_in("scontrol", "echo n1")

        got = Slurm(job="7").srun_prefixes()

        assert "--jobid=8" in got["n1"]

    @pytest.mark.parametrize("number", ["x", "7;ls", "-7", "7 8", ""])
    def test_no_number(self, number):
        """
        What is not a number of a job is not given to Slurm.
        """
        with pytest.raises(NodesError, match="is not a number"):
            Slurm(job=number).srun_prefixes()

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
    def test_no_nodes(self, stand_in, monkeypatch, code, message):
        """
        A job without nodes, or a Slurm without answer, is reported.
        """
        # Half a minute in earnest, which no user can set.
        monkeypatch.setattr("distdebug.nodes.slurm._QUERY_S", 0.5)
        stand_in("squeue", code)

        with pytest.raises(NodesError, match=message) as caught:
            Slurm(job=7).srun_prefixes()

        assert caught.value.remedy

    def test_no_slurm(self, tmp_path, monkeypatch):
        """
        Without Slurm its commands are named.
        """
        monkeypatch.setenv("PATH", str(tmp_path))

        with pytest.raises(NodesError, match="no squeue on PATH"):
            Slurm(job=7).srun_prefixes()


class TestRun:
    def test_function(self, job, monkeypatch):
        """
        All nodes answer but the one that is dead.
        """
        monkeypatch.setenv("SLURM_NTASKS", "512")
        monkeypatch.setenv("SLURM_CONF", "/etc/here")

        results = run_on_nodes(
            lambda: os.environ["SLURMD_NODENAME"], engine=Slurm(job=7)
        )
        got = {x.host: (x.status, x.value) for x in results}

        said = job.with_name("srun.said").read_text()
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
    def test_known(self, complain, complaint, status, reason):
        """
        What Slurm says is reported in plain words, quoted, with what helps.
        """
        got = complain(f"noise\n{complaint}")

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
    def test_unknown(self, complain, complaint):
        """
        What the command itself says is not Slurm's trouble.
        """
        got = complain(complaint)

        assert "failed" == got.status
        assert "it ended with status 1" in got.reason

    def test_late(self, complain):
        """
        What is known of a node is its result, also after the time.
        """
        got = complain("srun: error: Node failure", "exec sleep 600", 0.5)

        assert "dead" == got.status

    @pytest.fixture
    def complain(self, job, stand_in):
        """
        Gives the result of a node where ``srun`` says this.
        """

        def give(complaint, then="exit 1", timeout_s=60.0):
            stand_in("scontrol", "echo n1")
            stand_in("srun", f"cat >&2 <<'END'\n{complaint}\nEND\n{then}")
            engine = Slurm(job=7, grace_s=0.1)
            (result,) = run_on_nodes(["x"], engine=engine, timeout_s=timeout_s)
            return result

        return give


def test_no_text(stand_in):
    """
    What prints no text, where Slurm should be, is reported.
    """
    stand_in("squeue", "printf '7|RUN|n\\0001\\n'")

    with pytest.raises(NodesError, match="printed what is not text") as caught:
        list(run_on_nodes(["true"], engine=Slurm(job="7")))

    assert "which squeue" in caught.value.remedy
