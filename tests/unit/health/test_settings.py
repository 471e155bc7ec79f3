"""
The variables of workers against their nodes, and against each other.
"""

from __future__ import annotations

import os
import socket

import attrs
import pytest

from distdebug.findings import Cause
from distdebug.health import (
    NodeFacts,
    NodeHealth,
    check_environment,
    public_variables,
    read_settings,
)
from distdebug.health import environment as environment_module
from distdebug.health.network.infiniband import IbPort
from distdebug.health.network.interfaces import Interface
from distdebug.health.settings import processes as processes_module
from distdebug.health.settings.choice import chosen_by_nccl, chosen_names
from distdebug.processes import Worker


QUIET = {"NCCL_DEBUG": "WARN"}


def interfaces(number, **more):
    """
    What a node of a small cluster has.
    """
    lo = Interface(name="lo", kind="loopback", addresses=("127.0.0.1/8",))
    eth = Interface(name="eth0", addresses=(f"10.0.0.{number}/24",))
    ib = Interface(name="ib0", addresses=(f"10.1.0.{number}/16",))
    docker = Interface(
        name="docker0", kind="container", addresses=("172.17.0.1/16",)
    )
    down = Interface(name="eth1", is_up=False)
    return (lo, eth, ib, docker, down, *more.values())


def nodes(count=2, **more):
    """
    The nodes of a small cluster.
    """
    return {
        f"n{k}": NodeFacts(
            host=f"n{k}",
            taken=0.0,
            interfaces=interfaces(k),
            ib_ports=(),
            **more,
        )
        for k in range(1, count + 1)
    }


def job(hosts=2, per_host=2, **variables):
    """
    The environments of a job.
    """
    size = hosts * per_host
    return {
        f"n{h + 1}": [
            {
                "RANK": str(h * per_host + k),
                "LOCAL_RANK": str(k),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(per_host),
                "MASTER_ADDR": "n1",
                "MASTER_PORT": "29500",
                "CUDA_VISIBLE_DEVICES": "0,1",
                **QUIET,
                **variables,
            }
            for k in range(per_host)
        ]
        for h in range(hosts)
    }


def check(environs, known=None):
    """
    What is found, without notes.
    """
    health = check_environment(environs, nodes=known or nodes(len(environs)))
    return [f for f in health.findings if not f.cause.is_fine]


def change(environs, host, **variables):
    """
    Set variables of all ranks of a host.
    """
    for environ in environs[host]:
        environ.update(variables)
    return environs


class TestChoice:
    @pytest.mark.parametrize(
        ("spec", "names"),
        [
            ("eth", "eth0,eth1"),
            ("=eth", ""),
            ("=eth0,ib0", "eth0,ib0"),
            ("^docker,lo", "eth0,ib0,eth1"),
            ("^=eth0", "lo,ib0,docker0,eth1"),
            ("eth0:12, ib", "eth0,ib0"),
            (",", "lo,eth0,ib0,docker0,eth1"),
            ("^", "lo,eth0,ib0,docker0,eth1"),
        ],
    )
    def test_names(self, spec, names):
        """
        Prefixes, exact names, and what is left out.
        """
        found = chosen_names(spec, [x.name for x in interfaces(1)])

        assert names == ",".join(found)

    def test_default(self):
        """
        Without the variable, NCCL prefers InfiniBand, then all but bridges.
        """
        every = interfaces(1)

        def names(wanted):
            kept = [x for x in every if x.name in wanted]
            return [x.name for x in chosen_by_nccl(None, kept)]

        assert ["ib0"] == names({"lo", "eth0", "ib0", "docker0", "eth1"})
        assert ["eth0"] == names({"lo", "eth0", "docker0", "eth1"})
        assert ["docker0"] == names({"lo", "docker0", "eth1"})
        assert ["lo"] == names({"lo"})
        assert [] == names({"eth1"})


class TestSockets:
    @pytest.mark.parametrize(
        "variables",
        [
            {},
            {"NCCL_SOCKET_IFNAME": "eth"},
            {"NCCL_SOCKET_IFNAME": "^docker,lo"},
            {"NCCL_SOCKET_IFNAME": "bond0,eth0"},
            {"GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "ib0"},
            {"GLOO_SOCKET_IFNAME": "eth0,ib0"},
        ],
        ids=["unset", "prefix", "exclude", "union", "gloo", "two"],
    )
    def test_well(self, variables):
        """
        What fits is not worth a word.
        """
        assert [] == check(job(**variables))

    @pytest.mark.parametrize(
        ("variable", "value", "confidence", "says"),
        [
            ("NCCL_SOCKET_IFNAME", "=eth", "certain", "no interface of n2"),
            ("NCCL_SOCKET_IFNAME", "ens3", "certain", "no interface of n2"),
            ("NCCL_SOCKET_IFNAME", "eth1", "likely", "eth1 of n2, which is"),
            ("NCCL_SOCKET_IFNAME", "lo", "likely", "no other node"),
            ("NCCL_SOCKET_IFNAME", "docker0", "likely", "same host only"),
            ("GLOO_SOCKET_IFNAME", "eth", "certain", "n2: eth"),
            ("GLOO_SOCKET_IFNAME", "eth0,ens9", "certain", "n2: ens9"),
            ("GLOO_SOCKET_IFNAME", "lo", "likely", "no other node"),
            ("TP_SOCKET_IFNAME", "eth0,ib0", "certain", "no interface"),
        ],
    )
    def test_wrong(self, variable, value, confidence, says):
        """
        One node whose variable does not fit is named, with its ranks.
        """
        environs = change(job(**{variable: "eth0"}), "n2", **{variable: value})

        (found,) = check(environs)

        assert (Cause.NETWORK_MISCONFIGURED, confidence, (2, 3)) == (
            found.cause,
            found.confidence,
            found.ranks,
        )
        assert found.summary.startswith(f"{variable}={value} ")
        assert says in found.summary

    def test_signs_of_nccl(self):
        """
        Gloo does not understand what NCCL does, and the remedy says so.
        """
        (found,) = check(job(GLOO_SOCKET_IFNAME="^lo,docker"))

        assert "no interface of n1, n2: ^lo, docker" in found.summary
        assert "for NCCL only" in found.remedy

    def test_bridge_by_default(self):
        """
        Without the variable, NCCL may take a bridge of containers.
        """
        veth = Interface(
            name="veth1", kind="container", addresses=("10.9.0.1/24",)
        )
        known = nodes()
        known["n2"] = NodeFacts(
            host="n2", taken=0.0, interfaces=(veth, *interfaces(2)[:2])
        )

        found = check(job(), known)

        assert {"possible"} == {x.confidence for x in found}
        assert found[0].summary.startswith(
            "NCCL_SOCKET_IFNAME is not set on n2, where NCCL may take veth1"
        )

    def test_nothing_to_choose(self):
        """
        A node without any address has nothing to choose from.
        """
        known = nodes()
        known["n2"] = NodeFacts(
            host="n2", taken=0.0, interfaces=interfaces(2)[4:]
        )

        assert [] == check(job(), known)

    def test_names_differ(self):
        """
        Interfaces may have other names on other hosts.
        """
        known = nodes()
        ens = Interface(name="ens3", addresses=("10.0.0.2/24",))
        known["n2"] = NodeFacts(host="n2", taken=0.0, interfaces=(ens,))
        environs = change(
            job(NCCL_SOCKET_IFNAME="eth0"), "n2", NCCL_SOCKET_IFNAME="ens3"
        )

        assert [] == check(environs, known)

    def test_single_node(self):
        """
        A job of one node may use loopback.
        """
        assert [] == check(job(hosts=1, NCCL_SOCKET_IFNAME="lo"))

    def test_part_of_job(self):
        """
        One node of a job that has more may not.
        """
        environs = job(hosts=1, NCCL_SOCKET_IFNAME="lo", WORLD_SIZE="4")

        (found,) = check(environs)

        assert "by which no other node is reached" in found.summary

    def test_same_address(self):
        """
        Bridges have the same address on every host.
        """
        bridge = Interface(name="br0", addresses=("172.17.0.1/16",))
        known = {
            host: NodeFacts(host=host, taken=0.0, interfaces=(bridge,))
            for host in ("n1", "n2")
        }

        (found,) = check(job(NCCL_SOCKET_IFNAME="br0"), known)

        assert "n1, n2 have the same address 172.17.0.1" in found.summary
        assert ("likely", (0, 1, 2, 3)) == (found.confidence, found.ranks)

    def test_other_network(self):
        """
        One node in a network of its own is worth a look; a network for every
        node is usual in large clusters.
        """

        def at(*addresses):
            return {
                f"n{k}": NodeFacts(
                    host=f"n{k}",
                    taken=0.0,
                    interfaces=(
                        Interface(name="eth0", addresses=(text, "odd")),
                    ),
                )
                for k, text in enumerate(addresses, 1)
            }

        environs = job(hosts=3, NCCL_SOCKET_IFNAME="eth0")

        (found,) = check(
            environs, at("10.0.0.1/24", "10.0.0.2/24", "9.0.0.1/8")
        )

        assert "possible" == found.confidence
        assert "different networks" in found.summary
        routed = at("10.0.0.1/31", "10.0.0.3/31", "10.0.0.5/31")
        assert [] == check(environs, routed)

    def test_half_set(self):
        """
        A variable that some nodes or ranks lack is worth a look.
        """
        nodes_differ = change(job(), "n2", GLOO_SOCKET_IFNAME="eth0")
        ranks_differ = job()
        ranks_differ["n1"][0]["GLOO_SOCKET_IFNAME"] = "eth0"

        (first,) = check(nodes_differ)
        (second,) = check(ranks_differ)

        assert "is set on n2, and not on n1" in first.summary
        assert "is set by rank 0 only" in second.summary
        assert (0,) == second.ranks
        assert "possible" == first.confidence == second.confidence

    def test_unknown(self):
        """
        Nothing is said of nodes of which nothing is known.
        """
        health = check_environment(
            job(NCCL_SOCKET_IFNAME="ens9"),
            nodes={"n1": NodeHealth(facts=nodes()["n1"])},
        )

        assert ["n1"] == [
            x.evidence[0].source
            for x in health.findings
            if not x.cause.is_fine
        ]
        assert ["nobody told which n2 has"] == [
            x.reason for x in health.missing
        ]

    def test_name_of_node(self):
        """
        Gloo listens where the name of the node leads.
        """
        known = nodes(name_address="127.0.1.1")

        found = check(job(), known)

        assert ["possible"] == [x.confidence for x in found]
        assert "the names of n1, n2 stand for 127.0.1.1" in found[0].summary
        assert [] == check(job(GLOO_SOCKET_IFNAME="eth0"), known)
        assert [] == check(job(hosts=1), known)


class TestDevices:
    def known(self):
        """
        A node with adapters.
        """
        ports = tuple(
            IbPort(
                device=f"mlx5_{k}",
                port=1,
                state="ACTIVE",
                link_layer="InfiniBand",
            )
            for k in range(2)
        )
        return {
            "n1": NodeFacts(
                host="n1",
                taken=0.0,
                interfaces=interfaces(1),
                ib_ports=ports,
            )
        }

    @pytest.mark.parametrize(
        ("variable", "value", "count"),
        [
            ("NCCL_IB_HCA", "mlx5", 0),
            ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_7:1", 0),
            ("NCCL_IB_HCA", "^mlx5_0", 0),
            ("NCCL_IB_HCA", "mlx4", 1),
            ("NCCL_IB_HCA", "=mlx5", 1),
            ("UCX_NET_DEVICES", "mlx5_0:1", 0),
            ("UCX_NET_DEVICES", "eth0", 0),
            ("UCX_NET_DEVICES", "all", 0),
            ("UCX_NET_DEVICES", "^mlx4_0", 0),
            ("UCX_NET_DEVICES", "mlx4_0:1", 1),
            ("NCCL_IB_DISABLE", "1", 1),
            ("NCCL_IB_DISABLE", "0", 0),
        ],
    )
    def test_names(self, variable, value, count):
        """
        Adapters that are named have to exist, and should be used.
        """
        found = check(job(hosts=1, **{variable: value}), self.known())

        assert count == len(found)
        assert all(x.cause is Cause.NETWORK_MISCONFIGURED for x in found)
        assert all((0, 1) == x.ranks for x in found)

    def test_no_adapters(self):
        """
        A node without adapters may turn them off; naming one there is odd.
        """
        assert [] == check(job(hosts=1, NCCL_IB_DISABLE="1"))
        (found,) = check(job(hosts=1, NCCL_IB_HCA="mlx5"))
        assert "possible" == found.confidence


class TestRanks:
    def test_places(self):
        """
        Parts of one job that wait at different places never meet.
        """
        environs = change(job(), "n2", MASTER_ADDR="n2")

        (found,) = check(environs)

        assert (Cause.NETWORK_MISCONFIGURED, (0, 1, 2, 3)) == (
            found.cause,
            found.ranks,
        )
        assert "different places: n1:29500, n2:29500" in found.summary

    def test_loopback(self):
        """
        Each host has a loopback of its own.
        """
        for address in ("127.0.0.1", "localhost", "::1"):
            (found,) = check(job(MASTER_ADDR=address))
            assert "each host at itself" in found.summary

    def test_two_jobs(self):
        """
        Jobs beside each other have places of their own.
        """
        first = job(hosts=1)["n1"]
        second = job(hosts=1, MASTER_PORT="29501")["n1"]

        assert [] == check({"n1": [*first, *second]})

    def test_sizes(self):
        """
        Ranks that meet have to agree how many they are.
        """
        environs = change(job(hosts=3), "n3", WORLD_SIZE="8")

        found = check(environs)

        assert ["likely"] == [x.confidence for x in found]
        assert "WORLD_SIZE: 6, 8" in found[0].summary
        assert (4, 5) == found[0].ranks

    def test_beyond(self):
        """
        A rank beyond the size does not exist.
        """
        environs = job(hosts=1)
        environs["n1"][1]["RANK"] = "2"

        (found,) = check(environs)

        assert ("certain", (2,)) == (found.confidence, found.ranks)

    def test_twice(self):
        """
        A node that was given the number of another repeats its ranks.
        """
        environs = job()
        for k, environ in enumerate(environs["n2"]):
            environ["RANK"] = str(k)

        (found,) = check(environs)

        assert "call themselves rank 0, rank 1, on n1, n2" in found.summary
        assert Cause.NODE_MISCONFIGURED is found.cause

    def test_strangers(self):
        """
        Without a meeting place, the same number may be of another job.
        """
        rank = {"RANK": "0", **QUIET}

        assert [] == check({"n1": [dict(rank), dict(rank)]})

    def test_one_gpu(self):
        """
        Two ranks of a job may not share a GPU.
        """
        (found,) = check(job(hosts=1, CUDA_VISIBLE_DEVICES="0"))

        assert "rank 0, rank 1 share GPU 0 of n1" in found.summary
        assert "likely" == found.confidence

    def test_own_gpus(self):
        """
        Each a GPU of its own, as Ray gives them, is right.
        """
        environs = job()
        for several in environs.values():
            for k, environ in enumerate(several):
                environ["CUDA_VISIBLE_DEVICES"] = str(k)

        assert [] == check(environs)

    def test_gpus_of_strangers(self):
        """
        Programs that share a GPU may want to.
        """
        environs = {
            "n1": [
                {"RANK": str(k), "CUDA_VISIBLE_DEVICES": "0", **QUIET}
                for k in range(2)
            ]
        }

        assert ["possible"] == [x.confidence for x in check(environs)]

    def test_gpus_under_slurm(self):
        """
        Slurm can give each task a GPU 0 of its own.
        """
        (found,) = check(
            job(hosts=1, CUDA_VISIBLE_DEVICES="0", SLURM_PROCID="0")
        )

        assert "possible" == found.confidence

    def test_children(self):
        """
        Launchers, drivers, and children of ranks take no part.
        """
        environs = job(SLURM_JOB_ID="7")
        child = {**environs["n1"][0], "OMP_NUM_THREADS": "1"}
        launcher = {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}
        driver = {"NCCL_ALGO": "Ring"}
        environs["n1"] += [child, launcher, driver]

        assert [] == check(environs)

    def test_slurm_alone(self):
        """
        Without a launcher the numbers of Slurm are those of ranks.
        """
        environs = {
            f"n{k + 1}": [
                {
                    "SLURM_PROCID": str(k),
                    "SLURM_NTASKS": "2",
                    "MASTER_ADDR": f"n{k + 1}",
                    **QUIET,
                }
            ]
            for k in range(2)
        }

        (found,) = check(environs)

        assert "different places: n1, n2" in found.summary


class TestAlike:
    def test_talk(self):
        """
        What decides how ranks talk has to be the same.
        """
        environs = job()
        environs["n2"][1]["NCCL_ALGO"] = "Ring"

        (found,) = check(environs)

        assert ("likely", (3,)) == (found.confidence, found.ranks)
        assert "Ring (rank 3), unset (rank 0, rank 1, rank 2)" in found.summary

    def test_other(self):
        """
        Other settings may differ, and those of a node have to.
        """
        environs = change(
            job(), "n2", NCCL_IB_TIMEOUT="22", NCCL_TOPO_FILE="/n2.xml"
        )

        assert ["possible"] == [x.confidence for x in check(environs)]


class TestNotes:
    @pytest.mark.parametrize(
        ("variables", "says"),
        [
            ({"CUDA_LAUNCH_BLOCKING": "1"}, "waits for every kernel"),
            ({"TORCH_DISTRIBUTED_DEBUG": "detail"}, "every collective"),
            ({"NCCL_DEBUG": "TRACE"}, "a line for every call"),
            ({"NCCL_DEBUG": ""}, "NCCL_DEBUG is not set"),
            ({"NCCL_ASYNC_ERROR_HANDLING": "1"}, "is an old name"),
            ({"NCCL_BLOCKING_WAIT": "0"}, "is an old name"),
            ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, "wait for each collective"),
            ({"TORCHSPEC_LOG_LEVEL": "DEBUG"}, "details of every step"),
            ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "Flight Recorder"),
            ({"TORCH_FR_BUFFER_SIZE": "0"}, "Flight Recorder"),
        ],
    )
    def test_notes(self, variables, says):
        """
        What makes a job slow or silent is a note, and no reason to hang.
        """
        health = check_environment(job(**variables), nodes=nodes())

        (note,) = health.findings
        assert note.cause.is_fine
        assert says in note.summary
        assert (0, 1, 2, 3) == note.ranks
        assert health.is_healthy

    def test_no_gpu(self):
        """
        Where there is no GPU, nobody needs words of NCCL.
        """
        bare = {
            host: attrs.evolve(facts, gpus=())
            for host, facts in nodes().items()
        }

        health = check_environment(job(NCCL_DEBUG=""), nodes=bare)

        assert () == health.findings

    def test_quiet(self):
        """
        Usual settings are not worth a note.
        """
        environs = job(
            CUDA_LAUNCH_BLOCKING="0",
            TORCH_FR_BUFFER_SIZE="2000",
            TORCH_NCCL_TRACE_BUFFER_SIZE="0",
        )

        assert () == check_environment(environs, nodes=nodes()).findings


def worker(pid, **known):
    """
    A worker.
    """
    base = {
        "pid": pid,
        "start_ticks": 1,
        "parent_pid": 1,
        "uid": 0,
        "title": "python",
        "framework": "torchrun",
    }
    return Worker(**base | known)


class TestProcesses:
    @pytest.fixture(autouse=True)
    def environs(self, monkeypatch):
        """
        Processes with variables; number 9 may not be read.
        """
        known = {
            7: {"RANK": "3", "WORLD_SIZE": "4", "NCCL_DEBUG": "WARN"},
            8: {"RANK": "3", "NCCL_DEBUG": "WARN"},
        }
        monkeypatch.setattr(
            processes_module,
            "read_environ",
            lambda pid: (known.get(pid, {}), "memory" if pid in known else ""),
        )

    def test_workers(self):
        """
        What is known of a worker comes before its variables, and helpers of a
        rank are left out.
        """
        found, missing = read_settings(
            [
                worker(7, rank=5, world_size=8),
                worker(8, role="dataloader"),
                worker(9),
            ]
        )

        (rank,) = found
        assert (7, 5, 8) == (rank.pid, rank.rank, rank.world_size)
        assert socket.gethostname() == rank.host
        assert "process 9" in missing[0].reason

    def test_jobs(self, monkeypatch):
        """
        Workers of different jobs are not compared, those of one are.
        """
        pair = [worker(7, rank=0, job="a"), worker(8, rank=1, job="b")]
        one = [attrs.evolve(x, job="a") for x in pair]
        known = {
            7: {"GLOO_SOCKET_IFNAME": "lo", "NCCL_ALGO": "Ring", **QUIET},
            8: QUIET,
        }
        monkeypatch.setattr(
            processes_module,
            "read_environ",
            lambda pid: (known[pid], "memory"),
        )
        monkeypatch.setattr(
            environment_module, "read_interfaces", lambda: interfaces(1)
        )

        apart, together = check_environment(pair), check_environment(one)

        assert () == apart.findings
        assert [
            "NCCL_ALGO differs between ranks: Ring (rank 0), unset (rank 1)",
            "GLOO_SOCKET_IFNAME is set by rank 0 only",
        ] == [x.summary for x in together.findings]
        assert "2 environments of 1 node\n" in str(together)

    def test_nobody(self):
        """
        Where there is nobody to compare, nothing is said to be right.
        """
        told = str(check_environment([]))

        assert "no environments were compared" in told
        assert "nothing is wrong" not in told

    def test_pids(self):
        """
        Numbers of processes are enough.
        """
        found, _ = read_settings([7, worker(8)])

        assert [3, None] == [x.rank for x in found]
        assert ["rank 3", "process 8"] == [x.name for x in found]

    def test_other_network(self, monkeypatch):
        """
        A process with a network of its own is not compared with this node.
        """
        monkeypatch.setattr(processes_module, "read_link", lambda path: path)

        health = check_environment([7])

        assert "network of their own" in health.missing[0].reason

    def test_here(self, monkeypatch):
        """
        This node is looked at if nothing is told of it.
        """
        monkeypatch.setattr(
            environment_module, "read_interfaces", lambda: interfaces(1)
        )

        health = check_environment([7])

        assert ((), ()) == (health.findings, health.missing)
        assert "1 environment of 1 node" in str(health)
        assert "nothing is wrong" in str(health)

    def test_here_untold(self, monkeypatch):
        """
        A system that does not tell its interfaces costs only these.
        """

        def refuse():
            raise PermissionError

        monkeypatch.setattr(environment_module, "read_interfaces", refuse)

        health = check_environment([7])

        assert ["interfaces"] == [x.what for x in health.missing]

    def test_given(self):
        """
        A process of which nothing is known has no name.
        """
        (found,), _ = read_settings({"n1": [{"A": "b"}]})

        assert "a process" == found.name
        assert {} == found.variables


def test_scale():
    """
    The ranks of a large job are compared in a moment.
    """
    environs = job(hosts=1024, per_host=8, NCCL_SOCKET_IFNAME="eth")
    known = nodes(1024)
    known = {
        host: NodeFacts(host=host, taken=0.0, interfaces=interfaces(1)[1:2])
        for host in known
    }

    health = check_environment(environs, nodes=known)

    assert 8192 == health.processes
    assert 1 == len([x for x in health.findings if not x.cause.is_fine])


class TestPublic:
    def test_kept(self):
        """
        What tells of the network, torch, and ranks is kept.
        """
        kept = {
            "NCCL_DEBUG": "INFO",
            "TP_SOCKET_IFNAME": "eth0",
            "RAY_AUTH_MODE": "disabled",
            "VLLM_HOST_IP": "10.0.0.1",
            "SGLANG_PORT": "1",
            "TORCHSPEC_LOG_LEVEL": "DEBUG",
            "MASTER_ADDR": "n1",
            "RANK": "3",
            "LOCAL_RANK": "3",
            "HF_HOME": "/data/hf",
            "TOKENIZERS_PARALLELISM": "false",
        }

        assert kept == public_variables(kept)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("HOME", "/root"),
            ("HF_TOKEN", "x"),
            ("HF_HUB_TOKEN", "x"),
            ("RAY_AUTH_TOKEN", "x"),
            ("VLLM_API_KEY", "x"),
            ("RAY_REDIS_PASSWORD", "x"),
            ("TORCH_URL", "https://me:secret@host"),
            ("RAY_JOB_CONFIG_JSON", '{"token": "abc"}'),
            ("NCCL_X", "hf_" + "a" * 30),
            ("VLLM_X", "sk-" + "a" * 30),
            ("RANKS", "1"),
        ],
    )
    def test_not_kept(self, name, value):
        """
        What may be a secret is not.
        """
        assert {} == public_variables({name: value})


def test_own_process():
    """
    The environment of this very process can be checked.
    """
    health = check_environment([os.getpid()])

    assert health.is_healthy
    assert health.to_records() == health.to_dict()["findings"]
