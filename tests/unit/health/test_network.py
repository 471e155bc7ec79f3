"""
Interfaces, adapters, and Ray on a node.
"""

from __future__ import annotations

import os
import socket

from types import SimpleNamespace

import attrs
import psutil
import pytest

from distdebug.errors import NoLogsError
from distdebug.findings import Cause
from distdebug.health import read_interfaces
from distdebug.health.network.infiniband import IbPort, read_ib_ports
from distdebug.health.network.interfaces import Interface, interface_kind
from distdebug.health.network.judge import judge_network
from distdebug.health.ray_node import read as ray_module
from distdebug.health.ray_node.judge import judge_ray
from distdebug.health.ray_node.read import RayNode, read_ray


class TestInterfaces:
    def fake(self, monkeypatch, *, counts=None):
        """
        A machine with some interfaces.
        """

        def address(text, netmask=None):
            return SimpleNamespace(address=text, netmask=netmask)

        monkeypatch.setattr(
            psutil,
            "net_if_addrs",
            lambda: {
                "eth0": [
                    address("10.0.0.2", "255.255.255.0"),
                    address("fd00::2", "ffff:ffff:ffff:ffff::"),
                    address("fe80::1%eth0", "ffff:ffff:ffff:ffff::"),
                    address("aa:bb:cc:dd:ee:ff"),
                ],
                "tun0": [address("10.9.0.1"), address("10.9.0.2", "?")],
            },
        )
        monkeypatch.setattr(
            psutil,
            "net_if_stats",
            lambda: {
                "eth0": SimpleNamespace(isup=True, mtu=9000, speed=100_000),
                "eth1": SimpleNamespace(isup=False, mtu=1500, speed=0),
            },
        )
        monkeypatch.setattr(
            psutil, "net_io_counters", counts or (lambda pernic: {})
        )

    def test_read(self, monkeypatch):
        """
        Addresses have their prefixes; those of one link are left out.
        """
        self.fake(
            monkeypatch,
            counts=lambda pernic: {
                "eth0": SimpleNamespace(
                    packets_recv=10,
                    packets_sent=5,
                    errin=1,
                    errout=2,
                    dropin=3,
                    dropout=4,
                )
            },
        )

        found = read_interfaces()

        assert (
            Interface(
                name="eth0",
                addresses=("10.0.0.2/24", "fd00::2/64"),
                mtu=9000,
                speed_mbps=100_000,
                packets=15,
                errors=3,
                drops=7,
            ),
            Interface(name="eth1", is_up=False, mtu=1500),
            Interface(
                name="tun0",
                kind="virtual",
                addresses=("10.9.0.1/32", "10.9.0.2/32"),
            ),
        ) == found

    def test_no_counters(self, monkeypatch):
        """
        Some containers show no counters.
        """

        def refuse(pernic):
            raise OSError

        self.fake(monkeypatch, counts=refuse)

        assert [0, 0, 0] == [x.packets for x in read_interfaces()]

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("lo", "loopback"),
            ("docker0", "container"),
            ("br-0123456789ab", "container"),
            ("veth12ab", "container"),
            ("virbr0", "container"),
            ("cali1234", "container"),
            ("dummy0", "virtual"),
            ("eth0", "ordinary"),
            ("bond0", "ordinary"),
            ("br0", "ordinary"),
            ("ib0", "ordinary"),
            ("lola", "ordinary"),
        ],
    )
    def test_kind(self, name, kind):
        """
        Names tell what an interface is for.
        """
        assert kind == interface_kind(name)

    def test_errors(self):
        """
        Packets that are damaged point to a cable, if they are many.
        """
        bad = Interface(name="eth0", packets=10_000, errors=5000)

        (found,) = judge_network([bad], host="n1")

        assert (Cause.NETWORK_FAILURE, "possible") == (
            found.cause,
            found.confidence,
        )
        for change in (
            {"errors": 900},
            {"packets": 10_000_000},
            {"is_up": False},
            {"kind": "loopback"},
        ):
            assert () == judge_network([attrs.evolve(bad, **change)])


def write_port(root, device, number, **files):
    """
    A port of an adapter.
    """
    folder = root / device / "ports" / str(number)
    (folder / "counters").mkdir(parents=True)
    for name, text in files.items():
        place = folder / "counters" if text.isdigit() else folder
        (place / name).write_text(f"{text}\n")


class TestAdapters:
    def test_read(self, tmp_path):
        """
        Ports and their counters are where the kernel shows them.
        """
        write_port(
            tmp_path,
            "mlx5_0",
            1,
            state="4: ACTIVE",
            phys_state="5: LinkUp",
            link_layer="InfiniBand",
            rate="400 Gb/sec (4X NDR)",
            link_downed="2",
            symbol_error="3",
            port_rcv_errors="4",
        )
        (tmp_path / "mlx5_0" / "ports" / "odd").mkdir()
        (tmp_path / "mlx5_1").mkdir()

        found = read_ib_ports(folder=str(tmp_path))

        assert (
            IbPort(
                device="mlx5_0",
                port=1,
                link_layer="InfiniBand",
                state="ACTIVE",
                physical="LinkUp",
                rate="400 Gb/sec (4X NDR)",
                link_downed=2,
                errors=7,
            ),
        ) == found
        assert () == read_ib_ports(folder=str(tmp_path / "no"))

    def test_broken_files(self, tmp_path):
        """
        Files that say something else say nothing.
        """
        write_port(tmp_path, "mlx5_0", 1, state="?", rate="x")

        (found,) = read_ib_ports(folder=str(tmp_path))

        assert ("", 0) == (found.state, found.link_downed)

    def test_judge(self):
        """
        A port that nobody plugged in is no news; one that went down is.
        """
        good = IbPort(device="mlx5_0", port=1, state="ACTIVE")
        never = IbPort(device="mlx5_1", port=1, state="DOWN")
        down = attrs.evolve(never, device="mlx5_2", link_downed=1)
        tries = IbPort(
            device="mlx5_3", port=1, state="INIT", physical="LinkUp"
        )

        found = judge_network([], [good, never, down, tries])

        assert ["likely", "possible"] == [x.confidence for x in found]
        assert "mlx5_3:1" in found[0].summary
        assert "mlx5_2:1" in found[1].summary
        assert () == judge_network([], [never, down])


NAME = "session_2026-11-22_02-59-05_184223_15993"


@pytest.fixture
def session(tmp_path, monkeypatch):
    """
    A session of Ray, without any process.
    """
    logs = tmp_path / NAME / "logs"
    logs.mkdir(parents=True)
    for name in ("debug_state.txt", "monitor.log", "raylet.out"):
        (logs / name).write_text("x")
    (logs / "gcs_server.out").write_text(
        "I Ray cluster metadata ray_version=2.60.0, ray_commit=x\n"
    )
    monkeypatch.setattr(psutil, "process_iter", lambda attrs: iter([]))
    return tmp_path / NAME


def raylet(tmp_path, *words, status="sleeping", version="2.60.0"):
    """
    The process of a raylet.
    """
    site = tmp_path / "site-packages"
    (site / f"ray-{version}.dist-info").mkdir(parents=True, exist_ok=True)
    program = site / "ray" / "core" / "src" / "ray" / "raylet" / "raylet"
    info = {
        "pid": 70,
        "name": "raylet",
        "status": status,
        "cmdline": [str(program), *words],
    }
    return SimpleNamespace(info=info)


class TestReadRay:
    def test_signs(self, session, tmp_path, monkeypatch):
        """
        Files, the process, its version, and the GCS show whether it lives.
        """
        here = raylet(tmp_path, f"--session_dir=/tmp/ray/{NAME}")
        other = raylet(tmp_path, "--x=session_2020-01-01_00-00-00_1_2")
        bare = SimpleNamespace(
            info={"pid": 1, "name": "x", "status": "s", "cmdline": None}
        )
        monkeypatch.setattr(
            psutil, "process_iter", lambda attrs: iter([bare, other, here])
        )
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            (tmp_path / "ray_current_cluster").write_text(f"127.0.0.1:{port}")
            os.utime(session / "logs" / "raylet.out", (100, 100))

            node = read_ray(session, now=200.0)

        assert ((70,), ("sleeping",)) == (node.raylets, node.states)
        assert ("answers", f"127.0.0.1:{port}") == (node.gcs, node.address)
        assert ("2.60.0", "2.60.0") == (
            node.cluster_version,
            node.node_version,
        )
        assert 100.0 == node.ages["raylet.out"]
        assert NAME == node.name
        assert () == judge_ray(
            attrs.evolve(node, ages={"debug_state.txt": 1.0})
        )

    def test_refused(self, session, tmp_path):
        """
        A GCS that is gone refuses.
        """
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        (tmp_path / "ray_current_cluster").write_text(f"127.0.0.1:{port}\n")

        assert "refused" == read_ray(tmp_path).gcs

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("127.0.0.1:99999", ""),
            ("no such host.invalid:1", ""),
            ("[::ffff:0.0.0.0]:1", "refused"),
            ("nohost.invalid:1", "silent"),
            ("nonsense", ""),
            ("x" * 2000, ""),
        ],
        ids=["port", "blank", "v6", "no host", "nonsense", "too long"],
    )
    def test_bad_address(self, session, tmp_path, text, said):
        """
        What the file holds is not trusted.
        """
        (tmp_path / "ray_current_cluster").write_text(text)

        assert said == read_ray(session).gcs

    def test_find(self, session, tmp_path):
        """
        The link to the latest session may be broken, or right.
        """
        link = tmp_path / "session_latest"
        link.symlink_to("/nowhere")

        assert NAME == read_ray(tmp_path).name
        link.unlink()
        link.symlink_to(session)
        assert NAME == read_ray(tmp_path).name
        with pytest.raises(NoLogsError, match="holds none"):
            read_ray(session / "logs" / "raylet.out")

    def test_hidden(self, session, monkeypatch):
        """
        It is told if processes cannot be listed.
        """

        def refuse(attrs):
            raise psutil.AccessDenied

        monkeypatch.setattr(psutil, "process_iter", refuse)
        (session / "logs" / "gcs_server.out").unlink()

        node = read_ray(session)

        assert (False, "") == (node.processes_known, node.cluster_version)

    @pytest.mark.parametrize(
        "program", ["raylet", "/a/b/c/d/e/f/raylet", "/bin/a/b/c/d/e/raylet"]
    )
    def test_version_unknown(self, program):
        """
        A raylet out of a place of its own tells no version.
        """
        assert "" == ray_module._installed_version(program)


ALIVE = RayNode(
    session="/tmp/ray/s",
    name="s",
    ages={"debug_state.txt": 8.0, "raylet.out": 59.0, "monitor.log": 2.0},
    raylets=(70,),
    states=("sleeping",),
    address="10.0.0.1:6379",
    gcs="answers",
)


class TestJudgeRay:
    @pytest.mark.parametrize(
        "change",
        [
            {},
            {"raylets": ()},
            {"ages": {"raylet.out": 100.0}},
            {"ages": {"gcs_server.out": 100.0}, "raylets": ()},
            {"ages": {}},
            {"raylets": (), "ages": {}, "processes_known": False},
            {"node_version": "2.60.0"},
        ],
        ids=[
            *("alive", "hidden", "no state", "gcs only", "no files"),
            *("nothing known", "one version"),
        ],
    )
    def test_alive(self, change):
        """
        One good sign of life is enough.
        """
        assert () == judge_ray(attrs.evolve(ALIVE, **change))

    @pytest.mark.parametrize(
        ("change", "cause", "says"),
        [
            (
                {"raylets": (), "ages": {"debug_state.txt": 200.0}},
                "dead",
                "wrote nothing for 3 min",
            ),
            ({"raylets": (), "ages": {}}, "dead", "is gone"),
            (
                {"raylets": (), "ages": {"raylet.out": 200.0}},
                "dead",
                "does not run",
            ),
            (
                {
                    "raylets": (),
                    "ages": {"debug_state.txt": 99.0, "monitor.log": 1.0},
                },
                "dead",
                "99 s",
            ),
            (
                {"raylets": (), "ages": {"monitor.log": 200.0}},
                "dead",
                "does not run",
            ),
            (
                {"ages": {"debug_state.txt": 40.0}},
                "event_loop_stall",
                "wrote nothing for 40 s",
            ),
            ({"states": ("stopped",)}, "stopped", "is stopped"),
            ({"gcs": "refused"}, "dead", "nobody listens at 10.0.0.1:6379"),
            ({"gcs": "silent"}, "network_failure", "cannot be reached"),
            (
                {"node_version": "2.9.3", "cluster_version": "2.60.0"},
                "node_misconfigured",
                "runs Ray 2.9.3",
            ),
        ],
        ids=[
            *("dead", "nothing", "raylet.out", "head remains", "others"),
            *("stalled", "stopped", "no head", "no way", "versions"),
        ],
    )
    def test_unwell(self, change, cause, says):
        """
        What is wrong with Ray is told.
        """
        (found,) = judge_ray(attrs.evolve(ALIVE, **change), host="n1")

        assert Cause(cause) is found.cause
        assert says in found.summary
        assert found.summary.startswith("n1: ")
