"""
A node as a whole, now and out of a snapshot.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time

import pytest

from distdebug.findings import Cause, Missing
from distdebug.health import (
    NodeFacts,
    check_environment,
    check_node,
    environs_of,
    judge_node_facts,
    node_facts,
    verdicts,
)
from distdebug.health import node as node_module
from distdebug.health.disks import Disk
from distdebug.health.kernel.events import KernelEvent
from distdebug.health.kernel.log import KernelLine, KernelLog
from distdebug.health.limits import Limits
from distdebug.health.memory.cgroups import MemoryGroup
from distdebug.health.memory.read import Memory
from distdebug.health.network.interfaces import Interface
from distdebug.health.ray_node.read import RayNode
from distdebug.health.verdicts import judge_facts


GIB = 1 << 30
NOW = 1_800_000_000.0


@pytest.fixture
def quiet(monkeypatch):
    """
    A node on which all is well.
    """
    answers = {
        "read_gpus": None,
        "read_kernel_log": KernelLog(begins=1.0),
        "read_disks": (),
        "read_pressure": None,
        "read_interfaces": (),
        "read_ib_ports": (),
        "read_memory": Memory(total=100 * GIB, available=90 * GIB),
        "read_blocked": (),
        "read_limits": (),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(
            node_module, name, lambda *a, answer=answer, **k: answer
        )


class TestCheckNode:
    def test_well(self, quiet):
        """
        A node that is well gives no finding.
        """
        health = check_node(now=NOW)

        assert ((), ()) == (health.findings, health.missing)
        assert health.is_healthy
        assert (socket.gethostname(), NOW) == (
            health.facts.host,
            health.facts.taken,
        )
        assert "0 GPUs, 90.0 GiB of 100 GiB memory left" in str(health)
        assert "nothing is wrong" in str(health)

    def test_unwell(self, quiet, monkeypatch):
        """
        What is wrong comes with the surest first, and what is missing with
        its reason.
        """

        def refuse(**known):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(node_module, "read_gpus", refuse)
        line = KernelLine(
            text="Out of memory: Killed process 7 (python)", time=NOW - 5
        )
        monkeypatch.setattr(
            node_module,
            "read_kernel_log",
            lambda **known: KernelLog(lines=(line,), begins=NOW),
        )
        monkeypatch.setattr(
            node_module,
            "read_limits",
            lambda pids: (Limits(pid=7, files=10, open_files=10),),
        )
        monkeypatch.setattr(
            node_module, "read_link", lambda path: "pid:[4026531836]"
        )

        health = check_node(ranks={7: 3}, since=NOW - 600, now=NOW)

        oom, files = health.findings
        assert (Cause.HOST_OUT_OF_MEMORY, (3,)) == (oom.cause, oom.ranks)
        assert (Cause.NODE_MISCONFIGURED, "likely") == (
            files.cause,
            files.confidence,
        )
        assert (
            Missing(what="GPUs", reason="Permission denied"),
        ) == health.missing
        assert not health.is_healthy
        assert "not seen: GPUs: Permission denied" in str(health)
        assert "ulimit -n" in str(health)
        plain = json.loads(json.dumps(health.to_dict()))
        assert plain["facts"]["kernel"][0]["pid"] == 7
        assert plain["findings"] == json.loads(json.dumps(health.to_records()))

    def test_container(self, quiet, monkeypatch):
        """
        In a container the kernel's numbers are not ours.
        """
        line = KernelLine(
            text="Out of memory: Killed process 7 (python)", time=NOW - 5
        )
        monkeypatch.setattr(
            node_module,
            "read_kernel_log",
            lambda **known: KernelLog(lines=(line,), begins=NOW),
        )
        monkeypatch.setattr(node_module, "read_link", lambda path: "other")

        (found,) = check_node(ranks={7: 3}, now=NOW).findings

        assert ((), "likely") == (found.ranks, found.confidence)

    def test_hangs(self, quiet, monkeypatch):
        """
        What never answers costs no more than the time.
        """
        never = threading.Event()
        monkeypatch.setattr(node_module, "read_interfaces", never.wait)
        begin = time.monotonic()

        health = check_node(timeout_s=0.3)
        never.set()

        assert time.monotonic() - begin < 20
        assert ["did not answer in time"] == [x.reason for x in health.missing]

    def test_driver_hangs(self, quiet, monkeypatch):
        """
        A driver that does not answer is told, and so is that it was not seen.
        """

        def hang(**known):
            raise TimeoutError

        monkeypatch.setattr(node_module, "read_gpus", hang)

        health = check_node()

        assert [(Cause.GPU_FAULT, "likely")] == [
            (x.cause, x.confidence) for x in health.findings
        ]
        assert ["GPUs"] == [x.what for x in health.missing]

    def test_ray(self, quiet, monkeypatch, tmp_path):
        """
        Every session that is asked for is looked at.
        """
        nodes = {
            name: RayNode(session=name, name=name, ages={}, gcs=gcs)
            for name, gcs in (("a", "answers"), ("b", "refused"))
        }
        monkeypatch.setattr(
            node_module, "read_ray", lambda path, **known: nodes[path]
        )

        health = check_node(ray_sessions=["a", "b"])

        assert {"a", "b"} == {x.name for x in health.facts.ray}
        assert {Cause.DEAD} == {x.cause for x in health.findings}

    def test_no_session(self, quiet, tmp_path):
        """
        A session that is not there is told.
        """
        health = check_node(ray_sessions=[tmp_path])

        (missing,) = health.missing
        assert "holds none" in missing.reason

    def test_begin(self, quiet, monkeypatch):
        """
        The job began when its first process started.
        """
        seen = {}

        def judge(facts, **known):
            seen.update(known)
            return ()

        monkeypatch.setattr(node_module, "judge_facts", judge)

        check_node(pids=[os.getpid(), 2**30])

        assert time.time() - 3600 * 24 < seen["since"] <= time.time()

    def test_little_known(self, quiet, monkeypatch):
        """
        Where nearly nothing may be seen, that is what is printed.
        """

        def refuse(*args, **known):
            raise PermissionError

        for name in ("read_memory", "read_disks", "read_interfaces"):
            monkeypatch.setattr(node_module, name, refuse)

        health = check_node()

        assert str(health).startswith(f"{socket.gethostname()}: 0 GPUs\n")
        assert 3 == len(health.missing)

    def test_interfaces(self, quiet, monkeypatch):
        """
        Interfaces that can be used are named.
        """
        monkeypatch.setattr(
            node_module,
            "read_interfaces",
            lambda: (Interface(name="ib0", addresses=("10.0.0.1/8",)),),
        )

        assert "interfaces ib0" in str(check_node())

    def test_no_folder(self, quiet, monkeypatch):
        """
        A folder that is not there is told.
        """
        gone = Disk(name="/c", path="/c", problem="No such file")
        monkeypatch.setattr(
            node_module, "read_disks", lambda folders, **known: (gone,)
        )

        health = check_node(folders=["/c"])

        assert (
            Missing(what="disk", reason="No such file", source="/c"),
        ) == health.missing

    def test_name(self, quiet, monkeypatch):
        """
        A node whose name stands for nothing is looked at all the same.
        """

        def refuse(name):
            raise socket.gaierror

        monkeypatch.setattr(socket, "gethostbyname", refuse)

        assert check_node().facts.name_address is None

    def test_silent_error(self, quiet, monkeypatch):
        """
        An error without a word has at least a name.
        """

        def refuse(pids):
            raise ValueError

        monkeypatch.setattr(node_module, "read_memory", refuse)

        (missing,) = check_node().missing

        assert "ValueError" == missing.reason


class TestJudgeFacts:
    @pytest.mark.parametrize(
        ("begins", "booted", "count"),
        [
            (NOW - 9999, NOW - 99_999, 0),
            (NOW - 9, NOW - 99_999, 1),
            (5.0, 1.0, 0),
            (None, 1.0, 1),
        ],
        ids=["long", "short", "since boot", "unknown"],
    )
    def test_counter(self, begins, booted, count):
        """
        A counter of kills is of use where the log does not reach.
        """
        group = MemoryGroup(path="/cg", is_own=True, kills=1)
        facts = NodeFacts(
            host="n1",
            taken=NOW,
            booted=booted,
            memory=Memory(groups=(group,)),
            kernel=(),
            log_begins=begins,
        )

        assert count == len(judge_facts(facts, since=NOW - 600))

    def test_no_log(self):
        """
        So it is where there is no log at all.
        """
        group = MemoryGroup(path="/cg", is_own=True, kills=1)
        facts = NodeFacts(host="n1", taken=NOW, memory=Memory(groups=(group,)))

        assert 1 == len(judge_facts(facts))

    def test_order(self):
        """
        The surest comes first.
        """
        facts = NodeFacts(
            host="n1",
            taken=NOW,
            kernel=(
                KernelEvent(rule="heat", time=NOW - 1),
                KernelEvent(rule="driver mismatch", time=NOW - 1),
            ),
        )

        found = judge_facts(facts)

        assert ["certain", "possible"] == [x.confidence for x in found]
        assert found == verdicts.by_confidence(reversed(found))


def stored(**known):
    """
    The facts in a snapshot of a node that is well.
    """
    well = {
        "schema": 1,
        "taken": NOW,
        "machine": {
            "cpus": 8,
            "load": [1.0, 1.0, 1.0],
            "booted": NOW - 1000,
            "memory": {"total": 64 * GIB, "available": 60 * GIB},
            "swap": {"total": 0, "used": 0},
            "disks": {
                "bundle": {"total": 1 << 40, "free": 1 << 39, "free_files": 9},
                "shm": {"total": GIB, "free": GIB, "free_files": 999},
            },
        },
        "variables": [
            {"pids": [7, 8], "variables": {"NCCL_DEBUG": "INFO", "X": "y"}}
        ],
        "gpus": [
            {
                "index": "0",
                "uuid": "GPU-a",
                "name": "NVIDIA H100",
                "utilization.gpu": "99",
                "memory.used": "1000",
                "memory.total": "81559",
                "temperature.gpu": "60",
                "pstate": "P0",
                "clocks.sm": "1980",
            }
        ],
        "kernel": ["[Fri Jan 15 07:59:00 2027] usb 1-1: new device"],
    }
    return well | known


class TestStored:
    def test_well(self):
        """
        A node that was well gives no finding.
        """
        assert () == judge_node_facts(stored(), host="n1")
        assert 0 == node_facts(stored(), host="n1").gpus[0].index

    def test_unwell(self):
        """
        The same is told as of a node that is looked at now.
        """
        facts = stored(
            kernel=[
                "[  900.000000] Out of memory: Killed process 7 (python)",
                "[  950.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=8, x",
                17,
            ],
            gpus=[{"index": "4", "memory.used": "[GPU is lost]"}],
            machine={
                "booted": NOW - 1000,
                "memory": {"total": 64 * GIB, "available": 0},
                "disks": {"shm": {"total": GIB, "free": 0}},
            },
        )

        found = judge_node_facts(
            facts, host="n1", ranks={7: 3, 8: 4}, since=NOW - 500
        )

        assert {
            (Cause.HOST_OUT_OF_MEMORY, "certain", (3,)),
            (Cause.GPU_FAULT, "certain", (4,)),
            (Cause.GPU_FAULT, "certain", ()),
            (Cause.DISK_FULL, "certain", ()),
            (Cause.HOST_OUT_OF_MEMORY, "likely", ()),
        } == {(x.cause, x.confidence, x.ranks) for x in found}

    @pytest.mark.parametrize(
        "broken",
        [
            {},
            [],
            None,
            {"taken": "x", "machine": 5, "gpus": {}, "kernel": "x"},
            {"machine": {"memory": [], "disks": {"a": 5, 7: {}}}},
            {"gpus": [5, {}, {"index": 7}], "interfaces": [5, {"name": 5}]},
            {"variables": [5, {"pids": 5, "variables": {"a": 5, 5: "b"}}]},
            {
                "machine": {
                    "memory": {"total": True, "available": float("inf")}
                }
            },
            {"taken": float("nan"), "machine": {"booted": 10**400}},
            {"kernel": ["NVRM: Xid (PCI:0000:3b:00): 9999, pid=99999999"]},
        ],
        ids=[
            *("empty", "list", "none", "types", "machine", "lists"),
            *("variables", "numbers", "huge", "xid"),
        ],
    )
    def test_hostile(self, broken):
        """
        Whatever stands there, nothing is raised.
        """
        found = judge_node_facts(broken, host="n1", ranks={1: 1})

        assert all(x.confidence != "certain" for x in found)
        assert all(x == {} for x in environs_of(broken))

    def test_environs(self):
        """
        Every worker has its environment, without what may be a secret.
        """
        environs = environs_of(stored())

        assert ({"NCCL_DEBUG": "INFO"},) * 2 == environs

    def test_interfaces(self):
        """
        Interfaces, where they are kept, are compared with the variables.
        """
        one = {"name": "eth0", "is_up": True, "addresses": ["10.0.0.1/24", 5]}
        facts = node_facts(stored(interfaces=[one]), host="n1")

        health = check_environment(
            {"n1": [{"NCCL_SOCKET_IFNAME": "ib0", "NCCL_DEBUG": "WARN"}]},
            nodes={"n1": facts},
        )

        (found,) = health.findings
        assert "names no interface of n1" in found.summary
        assert ("10.0.0.1/24",) == facts.interfaces[0].addresses
