"""
A node as a whole, now and out of a snapshot.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time

import psutil
import pytest

from distdebug.causes import Cause
from distdebug.health import (
    check_environment,
    check_node_json,
    parse_node_json,
    worker_environs,
)


GIB = 1 << 30
NOW = 1_800_000_000.0
KILLED = "Out of memory: Killed process 7 (python)"


class TestCheckNode:
    def test_well(self, node):
        """
        A node that is well gives no finding.
        """
        node.write(
            "/proc", {"meminfo": "MemTotal: 104857600\nMemAvailable: 94371840"}
        )

        node.addresses["ib0"] = ["10.0.0.1 255.0.0.0"]

        health = node.check(now=NOW)

        assert ((), ()) == (health.findings, health.missing)
        assert health.is_healthy
        facts = health.facts
        assert (socket.gethostname(), NOW) == (facts.host, facts.taken)
        assert "0 GPUs, 90.0 GiB of 100 GiB memory left" in str(health)
        assert "interfaces ib0" in str(health)
        assert "nothing is wrong" in str(health)

    def test_unwell(self, node, library, fail):
        """
        What is wrong comes with the surest first, and what is missing with
        its reason.
        """
        library(nvmlInit=fail(4, "Permission denied"))
        node.say(KILLED)
        folder = node.add_process(7, limits=f"Max open files{' ' * 12}10  10")
        for number in range(10):
            (folder / "fd" / str(number)).write_text("")

        health = node.check(pids=[7], ranks={7: 3}, since=time.time() - 600)

        assert [
            "host_out_of_memory certain 3",
            "node_misconfigured likely 3",
        ] == node.found(pids=[7], ranks={7: 3})
        (missing,) = health.missing
        assert "GPUs" == missing.what
        assert missing.reason.endswith("Permission denied")
        assert not health.is_healthy
        assert f"not seen: GPUs: {missing.reason}" in str(health)
        assert "ulimit -n" in str(health)
        plain = json.loads(json.dumps(health.to_dict()))
        assert plain["facts"]["kernel"][0]["pid"] == 7
        assert plain["findings"] == json.loads(json.dumps(health.to_records()))

    def test_container(self, node, tmp_path):
        """
        In a container the kernel's numbers of processes are not ours.
        """
        node.say(KILLED)
        space = tmp_path / "proc" / "self" / "ns" / "pid"
        space.unlink()
        space.symlink_to("pid:[7]")

        assert ["host_out_of_memory likely"] == node.found(ranks={7: 3})

    def test_process_of_the_job(self, node):
        """
        A process of the job that was killed long ago still matters.
        """
        node.say(KILLED, ago=9000)
        since = time.time() - 9999

        assert ["host_out_of_memory likely"] == node.found(
            pids=[7], since=since
        )
        assert ["host_out_of_memory possible"] == node.found(pids=[8])

    def test_hangs(self, node, monkeypatch):
        """
        What never answers costs no more than the time.
        """
        never = threading.Event()
        monkeypatch.setattr(psutil, "net_if_addrs", never.wait)
        begin = time.monotonic()

        health = node.check(timeout_s=0.3)
        never.set()

        assert time.monotonic() - begin < 20
        assert ("interfaces", "did not answer in time") in [
            (x.what, x.reason) for x in health.missing
        ]

    def test_begin(self, node):
        """
        The job began when its first process started.
        """
        node.proc.add(7, "python", start=19_000_000)
        node.proc.add(8, "python", start=19_900_000)
        node.say("NVRM: Xid (PCI:0000:3b:00): 31, pid=9", ago=9000)

        before = node.check(pids=[8, 2**30]).findings
        during = node.check(pids=[8, 7, 2**30]).findings

        assert ((), 1) == (before, len(during))

    def test_little_known(self, node, monkeypatch, tmp_path):
        """
        Where nearly nothing may be seen, that is what is printed; an error
        without a word has at least a name.
        """

        def refuse(*args):
            raise PermissionError

        (tmp_path / "proc" / "meminfo").unlink()
        monkeypatch.setattr(psutil, "net_if_addrs", refuse)
        monkeypatch.setattr(os, "cpu_count", refuse)
        monkeypatch.setattr(socket, "gethostbyname", refuse)

        health = node.check()

        assert str(health).startswith(f"{socket.gethostname()}: 0 GPUs\n")
        assert {"memory", "interfaces", "pressure"} == {
            x.what for x in health.missing
        }
        assert "PermissionError" in {x.reason for x in health.missing}
        assert health.facts.name_address is None


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
        A node that was well gives no finding, and the environments of its
        workers without what may be a secret.
        """
        assert () == check_node_json(stored(), host="n1")
        assert 0 == parse_node_json(stored(), host="n1").gpus[0].index
        assert ({"NCCL_DEBUG": "INFO"},) * 2 == worker_environs(stored())

    def test_unwell(self):
        """
        The findings are those of a node that is looked at now.
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

        found = check_node_json(
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
        found = check_node_json(broken, host="n1", ranks={1: 1})

        assert all(x.confidence != "certain" for x in found)
        assert all(x == {} for x in worker_environs(broken))

    def test_interfaces(self):
        """
        Interfaces, where they are kept, are compared with the variables.
        """
        one = {"name": "eth0", "is_up": True, "addresses": ["10.0.0.1/24", 5]}
        facts = parse_node_json(stored(interfaces=[one]), host="n1")

        health = check_environment(
            {"n1": [{"NCCL_SOCKET_IFNAME": "ib0", "NCCL_DEBUG": "WARN"}]},
            nodes={"n1": facts},
        )

        (found,) = health.findings
        assert "names no interface of n1" in found.summary
        assert ("10.0.0.1/24",) == facts.interfaces[0].addresses
