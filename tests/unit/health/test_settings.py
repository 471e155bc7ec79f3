"""
The variables of workers against their nodes, and against each other.
"""

from __future__ import annotations

import os
import socket

import attrs
import psutil
import pytest

from distdebug.causes import Cause
from distdebug.health import (
    NodeHealth,
    check_environment,
    parse_node_json,
    public_variables,
    read_settings,
)
from distdebug.processes import Worker


QUIET = {"NCCL_DEBUG": "WARN"}
USUAL = {
    "lo": "127.0.0.1/8",
    "eth0": "10.0.0.{}/24",
    "ib0": "10.1.0.{}/16",
    "docker0": "172.17.0.1/16",
    "eth1": "",
}


def facts(host, addresses, **more):
    """
    What is known of a node; interfaces without an address are off.
    """
    told = [
        {"name": name, "is_up": bool(text), "addresses": text.split()}
        for name, text in addresses.items()
    ]
    known = parse_node_json({"interfaces": told}, host=host)
    return attrs.evolve(known, **{"gpus": None, "ib_ports": ()} | more)


def nodes(count=2, **more):
    """
    The nodes of a small cluster.
    """
    return {
        f"n{k}": facts(
            f"n{k}", {x: text.format(k) for x, text in USUAL.items()}, **more
        )
        for k in range(1, count + 1)
    }


def alike(*addresses, name="eth0"):
    """
    Nodes with one interface each.
    """
    return {
        f"n{k}": facts(f"n{k}", {name: text})
        for k, text in enumerate(addresses, 1)
    }


def job(text="", hosts=2, per_host=2):
    """
    The environments of a job with these variables, such as ``A=b``, or
    ``n2:A=b`` on one host, or ``n2.0:A=b`` in its first process.
    """
    places = {}
    for word in text.split(" ") if text else ():
        name, _, value = word.partition("=")
        place, _, name = name.rpartition(":")
        places.setdefault(place, {})[name] = value
    return {
        f"n{h + 1}": [
            {
                "RANK": str(h * per_host + k),
                "LOCAL_RANK": str(k),
                "WORLD_SIZE": str(hosts * per_host),
                "LOCAL_WORLD_SIZE": str(per_host),
                "MASTER_ADDR": "n1",
                "MASTER_PORT": "29500",
                "CUDA_VISIBLE_DEVICES": "0,1",
                **QUIET,
                **places.get("", {}),
                **places.get(f"n{h + 1}", {}),
                **places.get(f"n{h + 1}.{k}", {}),
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


def told(finding):
    """
    A finding in one line.
    """
    ranks = ",".join(map(str, finding.ranks))
    return f"{finding.cause.value} {finding.confidence} {ranks}".strip()


class TestChoice:
    @pytest.mark.parametrize(
        ("spec", "names"),
        [
            ("eth", {"eth0", "eth1"}),
            ("=eth", set()),
            ("=eth0,ib0", {"eth0", "ib0"}),
            ("^docker,lo", {"eth0", "ib0", "eth1"}),
            ("^=eth0", {"ib0", "eth1"}),
            ("eth0:12, ib", {"eth0", "ib0"}),
            (",", {"eth0", "ib0", "eth1"}),
            ("^", {"eth0", "ib0", "eth1"}),
        ],
    )
    def test_names(self, spec, names):
        """
        Prefixes, exact names, and what is left out choose interfaces.
        """
        environs = job("WORLD_SIZE=4", hosts=1)
        for environ in environs["n1"]:
            environ["NCCL_SOCKET_IFNAME"] = spec

        fits = {
            name
            for name in ("eth0", "ib0", "eth1")
            if not check(environs, alike("10.0.0.1/24", name=name))
        }

        assert names == fits

    @pytest.mark.parametrize(
        ("names", "chosen"),
        [
            ("lo eth0 ib0 docker0 eth1", "ib0"),
            ("lo eth0 docker0 eth1", "eth0"),
            ("lo docker0 eth1", "docker0"),
            ("lo", "lo"),
        ],
    )
    def test_default(self, names, chosen):
        """
        Without the variable, NCCL prefers InfiniBand, then all but bridges.
        """
        addresses = {name: f"10.0.0.{k}" for k, name in enumerate(USUAL)}
        same = {k: addresses[k] if k != "eth1" else "" for k in names.split()}
        known = {host: facts(host, same) for host in ("n1", "n2")}

        found = check(job(), known)

        says = f"n1, n2 have the same address {addresses[chosen]} on"
        assert says in found[0].summary


class TestSockets:
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
        environs = job(f"{variable}=eth0 n2:{variable}={value}")

        (found,) = check(environs)

        assert f"network_misconfigured {confidence} 2,3" == told(found)
        assert found.summary.startswith(f"{variable}={value} ")
        assert says in found.summary

    def test_signs_of_nccl(self):
        """
        Gloo does not understand what NCCL does, and the remedy says so.
        """
        (found,) = check(job("GLOO_SOCKET_IFNAME=^lo,docker"))

        assert "no interface of n1, n2: ^lo, docker" in found.summary
        assert "for NCCL only" in found.remedy

    def test_bridge_by_default(self):
        """
        Without the variable, NCCL may take a bridge of containers.
        """
        names = {"veth1": "10.9.0.1/24", **USUAL, "ib0": "", "docker0": ""}

        found = check(job(), nodes() | {"n2": facts("n2", names)})

        assert {"possible"} == {x.confidence for x in found}
        assert found[0].summary.startswith(
            "NCCL_SOCKET_IFNAME is not set on n2, where NCCL may take veth1"
        )

    def test_unknown(self):
        """
        Nothing is said of nodes of which nothing is known.
        """
        health = check_environment(
            job("NCCL_SOCKET_IFNAME=ens9"),
            nodes={"n1": NodeHealth(facts=nodes()["n1"])},
        )

        assert ["n1"] == [
            x.evidence[0].source
            for x in health.findings
            if not x.cause.is_fine
        ]
        assert ["the interfaces of n2 are unknown"] == [
            x.reason for x in health.missing
        ]


class TestDevices:
    @pytest.fixture
    def known(self, node):
        """
        A node with adapters.
        """
        for name in ("mlx5_0", "mlx5_1"):
            folder = f"/sys/class/infiniband/{name}/ports/1"
            port = {"state": "4: ACTIVE", "link_layer": "InfiniBand"}
            node.write(folder, port)
        return nodes(1, ib_ports=node.check().facts.ib_ports)

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
    def test_names(self, known, variable, value, count):
        """
        Adapters that are named have to exist, and should be used.
        """
        found = check(job(f"{variable}={value}", hosts=1), known)

        assert count == len(found)
        assert all(x.cause is Cause.NETWORK_MISCONFIGURED for x in found)
        assert all((0, 1) == x.ranks for x in found)


# What does not fit, or would keep ranks from meeting, with the ranks concerned.
WRONG = {
    "n2:GLOO_SOCKET_IFNAME=eth0": (
        "network_misconfigured possible 2,3: is set on n2, and not on n1"
    ),
    "n1.0:GLOO_SOCKET_IFNAME=eth0": (
        "network_misconfigured possible 0: is set by rank 0 only"
    ),
    "NCCL_IB_HCA=mlx5": "network_misconfigured possible 0,1,2,3: mlx5",
    "n2:MASTER_ADDR=n2": (
        "network_misconfigured likely 0,1,2,3: "
        "different places: n1:29500, n2:29500"
    ),
    **dict.fromkeys(
        ["MASTER_ADDR=127.0.0.1", "MASTER_ADDR=localhost", "MASTER_ADDR=::1"],
        "network_misconfigured likely 0,1,2,3: each host at itself",
    ),
    "n2.1:RANK=4": "node_misconfigured certain 4: rank 4",
    "n2.0:RANK=0 n2.1:RANK=1": (
        "node_misconfigured likely 0,1: "
        "call themselves rank 0, rank 1, on n1, n2"
    ),
    "n1:CUDA_VISIBLE_DEVICES=0": (
        "node_misconfigured likely 0,1: rank 0, rank 1 share GPU 0 of n1"
    ),
    "n1:CUDA_VISIBLE_DEVICES=0 n1:SLURM_PROCID=0": (
        "node_misconfigured possible 0,1: share GPU 0"
    ),
    "n2.1:NCCL_ALGO=Ring": (
        "network_misconfigured likely 3: "
        "Ring (rank 3), unset (rank 0, rank 1, rank 2)"
    ),
    "n2:NCCL_IB_TIMEOUT=22 n2:NCCL_TOPO_FILE=/x": (
        "network_misconfigured possible 0,1: NCCL_IB_TIMEOUT"
    ),
}
LOCALHOST = nodes(name_address="127.0.1.1")
STRANGERS = [
    {"RANK": str(k), "CUDA_VISIBLE_DEVICES": "0", **QUIET} for k in range(2)
]
SLURM = {
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


@pytest.mark.parametrize(
    ("environs", "known", "expected"),
    [
        *((job(text), None, expected) for text, expected in WRONG.items()),
        (
            job("NCCL_SOCKET_IFNAME=br0"),
            alike(*["172.17.0.1/16"] * 2, name="br0"),
            (
                "network_misconfigured likely 0,1,2,3: "
                "n1, n2 have the same address 172.17.0.1"
            ),
        ),
        (
            job("NCCL_SOCKET_IFNAME=eth0", hosts=3),
            alike("10.0.0.1/24 odd", "10.0.0.2/24 odd", "9.0.0.1/8 odd"),
            "network_misconfigured possible: different networks",
        ),
        (
            *(job(), LOCALHOST),
            "network_misconfigured possible: n1, n2 stand for 127.0.1.1",
        ),
        (
            *(job("n3:WORLD_SIZE=8", hosts=3), None),
            "node_misconfigured likely 4,5: WORLD_SIZE: 6, 8",
        ),
        (
            job(
                "n3:WORLD_SIZE=8 n1:TORCHELASTIC_RUN_ID=a "
                "n2:TORCHELASTIC_RUN_ID=b",
                hosts=3,
            ),
            None,
            "node_misconfigured likely 4,5: WORLD_SIZE: 6, 8",
        ),
        (
            *(job("NCCL_SOCKET_IFNAME=lo WORLD_SIZE=4", hosts=1), None),
            "network_misconfigured likely 0,1: no other node is reached",
        ),
        (
            {"n1": STRANGERS},
            None,
            "node_misconfigured possible 0,1: share GPU 0",
        ),
        (
            *(SLURM, None),
            "network_misconfigured likely 0,1: different places: n1, n2",
        ),
    ],
    ids=[
        *WRONG,
        *("same address", "other network", "name of the node"),
        *("sizes", "sizes of runs", "part of a job", "strangers"),
        "Slurm alone",
    ],
)
def test_wrong(environs, known, expected):
    """
    What does not fit is a finding, with the ranks concerned and how sure that
    is.
    """
    (finding,) = check(environs, known)

    start, _, says = expected.partition(": ")
    assert start == told(finding)
    assert says in finding.summary


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NCCL_SOCKET_IFNAME=eth",
        "NCCL_SOCKET_IFNAME=^docker,lo",
        "NCCL_SOCKET_IFNAME=bond0,eth0",
        "GLOO_SOCKET_IFNAME=eth0 TP_SOCKET_IFNAME=ib0",
        "GLOO_SOCKET_IFNAME=eth0,ib0",
        "NCCL_IB_DISABLE=1",
        " ".join(
            f"n{h}.{k}:CUDA_VISIBLE_DEVICES={k}"
            for h in (1, 2)
            for k in (0, 1)
        ),
    ],
)
def test_fits(text):
    """
    What fits is no finding.
    """
    assert [] == check(job(text))


@pytest.mark.parametrize(
    ("environs", "known"),
    [
        (job(), nodes() | {"n2": facts("n2", {"eth1": ""})}),
        (
            job("n1:NCCL_SOCKET_IFNAME=eth0 n2:NCCL_SOCKET_IFNAME=ens3"),
            nodes() | {"n2": facts("n2", {"ens3": "10.0.0.2/24"})},
        ),
        (job("NCCL_SOCKET_IFNAME=lo", hosts=1), None),
        (
            job("NCCL_SOCKET_IFNAME=eth0", hosts=3),
            alike("10.0.0.1/31", "10.0.0.3/31", "10.0.0.5/31"),
        ),
        (job("GLOO_SOCKET_IFNAME=eth0"), LOCALHOST),
        (job(hosts=1), LOCALHOST),
        ({"n1": job()["n1"] + job("MASTER_PORT=29501")["n1"]}, None),
        ({"n1": [{"RANK": "0", **QUIET}] * 2}, None),
        (
            {
                "n1": [
                    *job("SLURM_JOB_ID=7", hosts=1)["n1"],
                    job("SLURM_JOB_ID=7 OMP=1", hosts=1)["n1"][0],
                    {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"},
                    {"NCCL_ALGO": "Ring"},
                ]
            },
            None,
        ),
    ],
    ids=[
        *("no address", "other names", "single node", "routed", "gloo set"),
        *("single named", "two jobs", "strangers", "children"),
    ],
)
def test_fine(environs, known):
    """
    Interfaces may have other names, and networks of their own; a job of one
    node may use loopback; jobs beside each other have places of their own;
    launchers, drivers, and children of ranks take no part.
    """
    assert [] == check(environs, known)


class TestNotes:
    @pytest.mark.parametrize(
        ("variable", "says"),
        [
            ("CUDA_LAUNCH_BLOCKING=1", "waits for every kernel"),
            ("TORCH_DISTRIBUTED_DEBUG=detail", "every collective"),
            ("NCCL_DEBUG=TRACE", "a line for every call"),
            ("NCCL_DEBUG=", "NCCL_DEBUG is not set"),
            ("NCCL_ASYNC_ERROR_HANDLING=1", "is an old name"),
            ("NCCL_BLOCKING_WAIT=0", "is an old name"),
            ("TORCH_NCCL_BLOCKING_WAIT=1", "wait for each collective"),
            ("TORCHSPEC_LOG_LEVEL=DEBUG", "details of every step"),
            ("TORCH_NCCL_TRACE_BUFFER_SIZE=0", "Flight Recorder"),
            ("TORCH_FR_BUFFER_SIZE=0", "Flight Recorder"),
        ],
    )
    def test_notes(self, variable, says):
        """
        What makes a job slow or silent is a note, and no reason to hang.
        """
        health = check_environment(job(variable), nodes=nodes())

        (note,) = health.findings
        assert note.cause.is_fine
        assert says in note.summary
        assert (0, 1, 2, 3) == note.ranks
        assert health.is_healthy

    @pytest.mark.parametrize(
        ("text", "known"),
        [
            ("NCCL_DEBUG=", nodes(gpus=())),
            (
                (
                    "CUDA_LAUNCH_BLOCKING=0 TORCH_FR_BUFFER_SIZE=2000 "
                    "TORCH_NCCL_TRACE_BUFFER_SIZE=0"
                ),
                nodes(),
            ),
        ],
        ids=["no GPU", "usual"],
    )
    def test_quiet(self, text, known):
        """
        Usual settings, and those of nodes without a GPU, are not worth a
        note.
        """
        assert () == check_environment(job(text), nodes=known).findings


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
    def environs(self, node):
        """
        Processes with variables; number 9 may not be read.
        """
        known = {
            7: {"RANK": "3", "WORLD_SIZE": "4", **QUIET},
            8: {"RANK": "3", **QUIET},
            10: {"GLOO_SOCKET_IFNAME": "lo", "NCCL_ALGO": "Ring", **QUIET},
        }
        for pid in (7, 8, 9, 10):
            node.proc.add(pid, "python", environ=known.get(pid))
        node.addresses["eth0"] = ["10.0.0.1 255.255.255.0"]
        node.addresses["lo"] = ["127.0.0.1"]

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

    def test_jobs(self):
        """
        Workers of different jobs are not compared, those of one are.
        """
        pair = [worker(10, rank=0, job="a"), worker(8, rank=1, job="b")]
        one = [attrs.evolve(x, job="a") for x in pair]

        apart, together = check_environment(pair), check_environment(one)

        assert () == apart.findings
        assert [
            "NCCL_ALGO differs between ranks: Ring (rank 0), unset (rank 1)",
            "GLOO_SOCKET_IFNAME is set by rank 0 only",
        ] == [x.summary for x in together.findings]
        assert "2 environments of 1 node\n" in str(together)

    def test_nothing_to_compare(self):
        """
        Where there is nothing to compare, nothing is said to be right.
        """
        told = str(check_environment([]))

        assert "no environments were compared" in told
        assert "nothing is wrong" not in told

    def test_names(self):
        """
        Numbers of processes are enough, and one of which nothing is known has
        no name.
        """
        found, _ = read_settings([7, worker(8)])
        (given,), _ = read_settings({"n1": [{"A": "b"}]})

        assert ["rank 3", "process 8"] == [x.name for x in found]
        assert ("a process", {}) == (given.name, given.variables)

    def test_other_network(self, node):
        """
        A process with a network of its own is not compared with this node.
        """
        for pid, space in (("self", "net:[1]"), ("7", "net:[2]")):
            folder = node.root / "proc" / pid / "ns"
            folder.mkdir(exist_ok=True)
            (folder / "net").symlink_to(space)

        health = check_environment([7])

        assert "network of their own" in health.missing[0].reason

    def test_here(self):
        """
        This node is looked at if nothing is known of it.
        """
        health = check_environment([7])

        assert ((), ()) == (health.findings, health.missing)
        assert "1 environment of 1 node" in str(health)
        assert "nothing is wrong" in str(health)

    def test_here_hidden(self, monkeypatch):
        """
        A system that does not show its interfaces costs only these.
        """

        def refuse():
            raise PermissionError

        monkeypatch.setattr(psutil, "net_if_addrs", refuse)

        health = check_environment([7])

        assert ["interfaces"] == [x.what for x in health.missing]


def test_scale():
    """
    The ranks of a large job are compared in a moment.
    """
    environs = job("NCCL_SOCKET_IFNAME=eth", hosts=1024, per_host=8)
    known = alike(*["10.0.0.1/24"] * 1024)

    health = check_environment(environs, nodes=known)

    assert 8192 == health.processes
    assert 1 == len([x for x in health.findings if not x.cause.is_fine])


class TestPublic:
    def test_kept(self):
        """
        Variables of the network, torch, and ranks are kept.
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
            "PMIX_SIZE": "8",
            "SLURM_STEP_ID": "0",
            "HF_HOME": "/data/hf",
            "TOKENIZERS_PARALLELISM": "false",
        }

        assert kept == public_variables(kept)

    @pytest.mark.parametrize(
        "variable",
        [
            "HOME=/root",
            "HF_TOKEN=x",
            "HF_HUB_TOKEN=x",
            "RAY_AUTH_TOKEN=x",
            "VLLM_API_KEY=x",
            "RAY_REDIS_PASSWORD=x",
            "TORCH_URL=https://me:secret@host",
            'RAY_JOB_CONFIG_JSON={"token": "abc"}',
            "NCCL_X=hf_" + "a" * 30,
            "VLLM_X=sk-" + "a" * 30,
            "RANKS=1",
        ],
    )
    def test_not_kept(self, variable):
        """
        What may be a secret is not.
        """
        name, _, value = variable.partition("=")

        assert {} == public_variables({name: value})


def test_own_process():
    """
    The environment of this very process can be checked.
    """
    health = check_environment([os.getpid()])

    assert health.is_healthy
    assert health.to_records() == health.to_dict()["findings"]
