"""
Interfaces, adapters, and Ray on a node.
"""

from __future__ import annotations

import os
import shutil
import socket
import time

from types import SimpleNamespace

import attrs
import psutil
import pytest

from distdebug.causes import Cause
from distdebug.health import read_interfaces


class TestInterfaces:
    def test_read(self, node):
        """
        Addresses have their prefixes; those of one link are left out.
        """
        node.addresses = {
            "eth0": [
                "10.0.0.2 255.255.255.0",
                "fd00::2 ffff:ffff:ffff:ffff::",
                "fe80::1%eth0 ffff:ffff:ffff:ffff::",
                "aa:bb:cc:dd:ee:ff",
            ],
            "tun0": ["10.9.0.1", "10.9.0.2 ?"],
        }
        node.states = {
            "eth0": SimpleNamespace(isup=True, mtu=9000, speed=100_000),
            "eth1": SimpleNamespace(isup=False, mtu=1500, speed=0),
        }
        node.counts["eth0"] = SimpleNamespace(
            packets_recv=10,
            packets_sent=5,
            errin=1,
            errout=2,
            dropin=3,
            dropout=4,
        )

        found = list(map(attrs.astuple, read_interfaces()))

        addresses = (
            ("10.0.0.2/24", "fd00::2/64"),
            ("10.9.0.1/32", "10.9.0.2/32"),
        )
        assert [
            ("eth0", True, addresses[0], "ordinary", 9000, 100_000, 15, 3, 7),
            ("eth1", False, (), "ordinary", 1500, 0, 0, 0, 0),
            ("tun0", True, addresses[1], "virtual", 0, 0, 0, 0, 0),
        ] == found

    def test_kind(self, node, monkeypatch):
        """
        The name shows what an interface is for, also in a container without
        counters.
        """

        def refuse(pernic):
            raise OSError

        monkeypatch.setattr(psutil, "net_io_counters", refuse)
        kinds = {
            "loopback": "lo",
            "container": "docker0 br-0123456789ab veth12ab virbr0 cali1234",
            "virtual": "dummy0 tun0",
            "ordinary": "eth0 bond0 br0 ib0 lola",
        }
        expected = {n: k for k, names in kinds.items() for n in names.split()}
        node.addresses = {name: ["10.0.0.2"] for name in expected}

        found = read_interfaces()

        assert expected == {x.name: x.kind for x in found}
        assert {0} == {x.packets for x in found}

    @pytest.mark.parametrize(
        ("name", "is_up", "counts", "expected"),
        [
            ("eth0", True, (10_000, 5000), ["network_failure possible"]),
            ("eth0", True, (10_000, 900), []),
            ("eth0", True, (10_000_000, 5000), []),
            ("eth0", False, (10_000, 5000), []),
            ("lo", True, (10_000, 5000), []),
        ],
        ids=["many", "few", "small share", "off", "loopback"],
    )
    def test_errors(self, node, name, is_up, counts, expected):
        """
        Packets that are damaged point to a cable, if they are many.
        """
        node.states[name] = SimpleNamespace(isup=is_up, mtu=0, speed=0)
        node.counts[name] = SimpleNamespace(
            packets_recv=counts[0], errin=counts[1]
        )

        assert expected == node.found()


class TestAdapters:
    def add(self, node, device, **files):
        """
        Add an adapter with a port.
        """
        folder = f"/sys/class/infiniband/{device}/ports/1"
        counts = {k: v for k, v in files.items() if v.isdigit()}
        node.write(folder, files)
        node.write(f"{folder}/counters", counts)

    def test_read(self, node):
        """
        Ports and their counters are where the kernel shows them.
        """
        self.add(
            node,
            "mlx5_0",
            state="4: ACTIVE",
            phys_state="5: LinkUp",
            link_layer="InfiniBand",
            rate="400 Gb/sec (4X NDR)",
            link_downed="2",
            symbol_error="3",
            port_rcv_errors="4",
        )
        node.write("/sys/class/infiniband/mlx5_0/ports/odd", {})
        node.write("/sys/class/infiniband/mlx5_1", {})

        found = node.check().facts.ib_ports

        link = ("InfiniBand", "ACTIVE", "LinkUp", "400 Gb/sec (4X NDR)")
        assert [("mlx5_0", 1, *link, 2, 7)] == [*map(attrs.astuple, found)]

    def test_broken_files(self, node):
        """
        Files that say something else say nothing.
        """
        self.add(node, "mlx5_0", state="?", link_downed="x")

        (found,) = node.check().facts.ib_ports

        assert ("", 0) == (found.state, found.link_downed)

    def test_judge(self, node, tmp_path):
        """
        A port that was never plugged in is no news; one that went down is, if
        others work.
        """
        self.add(node, "mlx5_0", state="4: ACTIVE")
        self.add(node, "mlx5_1", state="1: DOWN")
        self.add(node, "mlx5_2", state="1: DOWN", link_downed="1")
        self.add(node, "mlx5_3", state="2: INIT", phys_state="5: LinkUp")

        tries, down = node.check().findings
        for name in ("mlx5_0", "mlx5_3"):
            shutil.rmtree(tmp_path / "sys" / "class" / "infiniband" / name)

        assert ("likely", "possible") == (tries.confidence, down.confidence)
        assert "mlx5_3:1" in tries.summary
        assert "mlx5_2:1" in down.summary
        assert [] == node.found()


NAME = "session_2026-11-22_02-59-05_184223_15993"


class FakeRay:
    """
    A session of Ray, and the processes of its raylets.
    """

    def __init__(self, node, monkeypatch):
        self.node = node
        self.top = node.root / "ray"
        self.logs = self.top / NAME / "logs"
        self.logs.mkdir(parents=True)
        self.processes, self.now = [], time.time()
        monkeypatch.setattr(psutil, "process_iter", self.list_processes)

    def list_processes(self, attrs):
        """
        Give the processes there are.
        """
        if self.processes is None:
            raise psutil.AccessDenied
        return iter(SimpleNamespace(info=x) for x in self.processes)

    def wrote(self, **ages):
        """
        Write files that are so old, in seconds.
        """
        for stem, age in ages.items():
            suffix = ".txt" if stem == "debug_state" else ".out"
            suffix = ".log" if stem == "monitor" else suffix
            file = self.logs / f"{stem}{suffix}"
            file.write_text("I Ray cluster metadata ray_version=2.60.0, x\n")
            os.utime(file, (self.now - age,) * 2)

    def runs(self, *words, status="sleeping", version="2.60.0", program=""):
        """
        Let a raylet run.
        """
        site = self.node.root / "site-packages"
        (site / f"ray-{version}.dist-info").mkdir(parents=True)
        known = site / "ray" / "core" / "src" / "ray" / "raylet" / "raylet"
        line = [program or str(known), *words]
        info = {"pid": 70, "name": "raylet", "status": status}
        self.processes.append(info | {"cmdline": line})

    def at(self, address):
        """
        Set the address of the cluster.
        """
        (self.top / "ray_current_cluster").write_text(address)

    def check(self, path=None):
        """
        Look at the node and one session.
        """
        health = self.node.check(ray_sessions=[path or self.top], now=self.now)
        assert () == health.missing
        return health

    def look(self, path=None):
        """
        What shows of one session.
        """
        (ray,) = self.check(path).facts.ray
        return ray


@pytest.fixture
def ray(node, monkeypatch):
    """
    A session of Ray without any process.
    """
    return FakeRay(node, monkeypatch)


@pytest.fixture
def closed_port():
    """
    A port of this machine where no program listens.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class TestReadRay:
    def test_signs(self, ray):
        """
        Files, the process, its version, and the GCS show whether it lives.
        """
        ray.wrote(debug_state=1, raylet=100, gcs_server=5)
        ray.runs(f"--session_dir=/tmp/ray/{NAME}")
        bare = {"pid": 1, "name": "x", "status": "s", "cmdline": None}
        other = ray.processes[0] | {
            "pid": 71,
            "cmdline": ["raylet", "--x=session_2020-01-01_00-00-00_1_2"],
        }
        ray.processes = [bare, other, *ray.processes]
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            ray.at(address)

            health = ray.check()

        (found,) = health.facts.ray
        assert ((70,), ("sleeping",)) == (found.raylets, found.states)
        assert ("answers", address) == (found.gcs, found.address)
        versions = found.cluster_version, found.node_version
        assert ("2.60.0", "2.60.0") == versions
        assert 100 == pytest.approx(found.ages["raylet.out"])
        assert (NAME, ()) == (found.name, health.findings)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("localhost:PORT", "answers"),
            ("[127.0.0.1]:PORT", "answers"),
            ("[::ffff:0.0.0.0]:1", "refused"),
            ("127.0.0.1:1", "refused"),
            ("nohost.invalid:1", "silent"),
            (f"{'a' * 80}:6379", "silent"),
            ("127.0.0.1:99999", ""),
            ("10.0.0.1", ""),
            ("no such host.invalid:1", ""),
            ("\0:1", ""),
            ("", ""),
            ("x" * 2000, ""),
        ],
        ids=lambda text: repr(text)[:20],
    )
    def test_address(self, ray, text, said):
        """
        What the file holds is not trusted to be an address, and none is too
        strange to ask.
        """
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            ray.at(f"{text.replace('PORT', port)}\n")

            found = ray.look()

        assert said == found.gcs
        assert bool(said) == bool(found.address)

    def test_find(self, ray):
        """
        The link to the latest session may be broken, or right.
        """
        link = ray.top / "session_latest"
        link.symlink_to("/nowhere")
        broken = ray.look()
        link.unlink()
        link.symlink_to(ray.top / NAME)
        right = ray.look()

        assert NAME == broken.name == right.name == ray.look(link).name

    def test_several(self, ray, tmp_path):
        """
        Every session that is asked for is looked at, and one that is not there
        is named.
        """
        shutil.copytree(ray.top, tmp_path / "other")
        nowhere = ray.logs / "raylet.out"
        sessions = [ray.top, tmp_path / "other", nowhere]

        health = ray.node.check(ray_sessions=sessions)

        (missing,) = health.missing
        assert {str(ray.top / NAME), str(tmp_path / "other" / NAME)} == {
            x.session for x in health.facts.ray
        }
        assert [Cause.DEAD] * 2 == [x.cause for x in health.findings]
        assert "holds none" in missing.reason

    @pytest.mark.parametrize(
        "program", ["raylet", "/a/b/c/d/e/f/raylet", "/bin/a/b/c/d/e/raylet"]
    )
    def test_version_unknown(self, ray, program):
        """
        A raylet out of a place of its own has no known version.
        """
        ray.runs(program=program)

        assert ((70,), "", "") == (
            ray.look().raylets,
            ray.look().node_version,
            ray.look().cluster_version,
        )


ALIVE = {"debug_state": 8, "raylet": 50, "monitor": 2}


class TestJudgeRay:
    @pytest.mark.parametrize(
        ("ages", "status", "expected"),
        [
            (ALIVE, "sleeping", ""),
            (ALIVE, "", ""),
            ({"raylet": 100}, "sleeping", ""),
            ({"gcs_server": 100}, "", ""),
            ({}, "sleeping", ""),
            ({}, "hidden", ""),
            ({"debug_state": 200}, "", "dead likely: wrote nothing for 3 min"),
            ({}, "", "dead likely: is gone"),
            ({"raylet": 200}, "", "dead likely: does not run"),
            (
                {"debug_state": 99, "monitor": 1},
                *("", "dead likely: wrote nothing for 99 s"),
            ),
            ({"monitor": 200}, "", "dead likely: does not run"),
            (
                *({"debug_state": 40}, "sleeping"),
                "event_loop_stall likely: runs, but wrote nothing for 40 s",
            ),
            (ALIVE, "stopped", "stopped certain: is stopped"),
        ],
        ids=[
            *("alive", "hidden raylet", "no state", "gcs only", "no files"),
            *("nothing known", "dead", "nothing", "raylet.out"),
            *("head remains", "others", "stalled", "stopped"),
        ],
    )
    def test_raylet(self, ray, ages, status, expected):
        """
        One good sign of life is enough; a raylet that is gone, stopped, or
        silent is a finding.
        """
        ray.wrote(**ages)
        if status == "hidden":
            ray.processes = None
        elif status:
            ray.runs(status=status)

        health = ray.check()

        (found,), findings = health.facts.ray, health.findings
        cause, _, says = expected.partition(": ")
        assert cause == " ".join(
            f"{x.cause.value} {x.confidence}" for x in findings
        )
        assert all(says in x.summary for x in findings)
        assert (status != "hidden") == found.processes_known

    def test_head(self, ray, closed_port):
        """
        A head that is gone refuses; one without a way to it is silent.
        """
        ray.runs()
        ray.at(f"127.0.0.1:{closed_port}\n")
        (gone,) = ray.check().findings
        ray.at("nohost.invalid:1")
        (silent,) = ray.check().findings

        assert (Cause.DEAD, Cause.NETWORK_FAILURE) == (
            gone.cause,
            silent.cause,
        )
        assert f"nothing listens at 127.0.0.1:{closed_port}" in gone.summary
        assert "cannot be reached" in silent.summary

    def test_versions(self, ray):
        """
        A node with another Ray than its cluster is a finding.
        """
        ray.wrote(gcs_server=1)
        ray.runs(version="2.9.3")

        (found,) = ray.check().findings

        assert Cause.NODE_MISCONFIGURED is found.cause
        assert "runs Ray 2.9.3" in found.summary
