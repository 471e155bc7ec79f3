"""
Tests of what stores, Gloo, torch's own checks, and NCCL print.
"""

import pytest

from distdebug.causes import Cause
from distdebug.logs import (
    collective_findings,
    rank_origins,
    read_collective_logs,
)


OWN = (
    "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. "
    "Rank {0} is running collective: "
)
TENSOR = (
    "CollectiveFingerPrint(SequenceNumber={0}, OpType={1}, TensorShape=[{2}], "
    "TensorDtypes={3}, TensorDeviceTypes=TensorOptions(dtype=float (default), "
    "device=cpu, layout=Strided (default), requires_grad=false (default), "
    "pinned_memory=false (default), memory_format=(nullopt)))"
)


def finger(rank, mine, other, theirs):
    """
    A complaint of the wrapper that compares calls.
    """
    return (
        f"{OWN.format(rank)}{mine}, but Rank {other} is running collective: "
        f"{theirs}.Collectives differ in the following aspects:"
    )


def tensor(op="ALLREDUCE", shape="3", seq=1, dtype="Float"):
    """
    The finger print of a call with a tensor.
    """
    return TENSOR.format(seq, op, shape, dtype)


def findings(lines, world_size=None):
    """
    What is found in these lines.
    """
    return collective_findings(
        read_collective_logs(lines, world_size=world_size)
    )


@pytest.mark.parametrize(
    ("theirs", "cause"),
    [
        (tensor("BROADCAST"), Cause.TYPE_MISMATCH),
        (tensor(shape="3, 4"), Cause.SIZE_MISMATCH),
        (tensor(dtype="Double"), Cause.DTYPE_MISMATCH),
        (tensor(seq=4), Cause.SKIPPED_COLLECTIVE),
    ],
    ids=["op", "shape", "dtype", "number"],
)
def test_the_rank_that_calls_something_else_is_named(theirs, cause):
    """
    Everybody complains, and the majority is right.
    """
    lines = [
        finger(0, tensor(), 2, theirs),
        finger(1, tensor(), 2, theirs),
        finger(2, theirs, 0, tensor()),
    ]

    (finding,) = findings(lines)

    assert (cause, (2,), "certain") == (
        finding.cause,
        finding.ranks,
        finding.confidence,
    )
    assert ("all_reduce", 1) == (
        finding.collective.op,
        finding.collective.seq,
    )


FAILED = "failed to pass monitoredBarrier in 30000 ms"


@pytest.mark.parametrize(
    "lines",
    [
        [f"[rank0]: RuntimeError: [Rank 0]: Ranks 3, 5 {FAILED}"],
        [
            f"[Rank 0]: Rank 3 {FAILED}",
            "[Rank 0]: Rank 5 timed out in monitoredBarrier after 30000 ms.",
        ],
    ],
    ids=["together", "one-by-one"],
)
def test_a_monitored_barrier_names_who_did_not_come(lines):
    """
    The first rank knows.
    """
    lines = [
        *lines,
        (
            "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, "
            "but received errors while waiting for send/recv from rank 0. Please "
            "check rank 0 logs for faulty rank."
        ),
        (
            "[rank1]: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
            "Connection closed by peer [127.0.0.1]:25001"
        ),
    ]

    (finding,) = findings(lines)

    assert (Cause.RANK_NOT_ARRIVED, (3, 5), "certain") == (
        finding.cause,
        finding.ranks,
        finding.confidence,
    )
    assert "within 30 s" in finding.summary


def test_who_reached_the_barrier_is_not_to_blame():
    """
    The first rank may only have heard of it too late.
    """
    lines = [
        "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 30000 ms",
        "Rank 1 successfully reached monitoredBarrier, but received errors",
    ]

    (finding,) = findings(lines)
    none = findings(lines[1:])

    assert () == finding.ranks
    assert () == none


C10D = "[E521 10:00:00.1 socket.cpp:1023] [c10d] "
ID = (
    "[{0}] is setting up NCCL communicator and retrieving ncclUniqueId from "
    "[0] via c10d key-value store by key '0', but store->get('0') got error: "
)
NETWORK_ERROR = "torch.distributed.DistNetworkError: The client socket has "


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            (
                "torch.distributed.DistStoreError: Timed out after 61 seconds "
                "waiting for clients. 3/4 clients joined."
            ),
            "3 of 4 processes joined the store within 61 s",
        ),
        (
            (
                f"[rank2]: {NETWORK_ERROR}timed out after 600000ms while trying to "
                "connect to (node-1, 29500)."
            ),
            "rank 2 did not reach the store at node-1:29500 within 600 s",
        ),
        (
            (
                f"{C10D}The client socket has timed out after 60s while trying to "
                "connect to (10.0.0.1, 1)."
            ),
            "within 60 s",
        ),
        (
            (
                f"{NETWORK_ERROR}failed to connect to any network address of "
                "(node-0, 29500). The client"
            ),
            "did not reach the store at node-0:29500",
        ),
        (
            (
                f"{C10D}TCP client failed to connect/validate to host "
                "10.0.0.1:29500 - timed out (try=9, timeout=60000ms): refused"
            ),
            "did not reach the store at 10.0.0.1:29500 within 60 s",
        ),
        (
            "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
            "within 60 s",
        ),
        (
            (
                "torch.distributed.DistStoreError: wait timeout after 3000ms, "
                "keys: /foo"
            ),
            "waited for /foo in the store within 3 s",
        ),
        ("wait timeout after 3000ms", "waited in the store"),
        ("RuntimeError: Socket Timeout", "waited in the store"),
        (
            (
                "RuntimeError: The server socket has failed to listen on any local "
                "network address. The server socket has failed to bind to "
                "[::]:29500 (errno: 98 - Address already in use)."
            ),
            "the port of the store was taken",
        ),
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
            "torchrun waited in vain for other nodes",
        ),
        (
            f"{ID.format(1)}Connection reset by peer",
            "the first rank of the group was gone",
        ),
        (
            (
                f"[rank3]: torch.distributed.DistBackendError: {ID.format(3)}wait "
                "timeout after 600000ms, keys: //0//cuda//0"
            ),
            "rank 0 did not come when rank 3 set up the communicator",
        ),
    ],
    ids=[
        *("clients", "connect", "connect-s", "never", "last-try"),
        *("old-connect", "key", "no-key", "old-key", "listen"),
        *("rendezvous", "gone", "unique-id"),
    ],
)
def test_the_rendezvous_tells_who_is_missing(line, words):
    """
    How many came, who did not reach the store, and what was waited for.
    """
    (finding,) = findings([line])

    assert words in finding.summary
    assert ((0,) if words.startswith("rank 0") else ()) == finding.ranks
    assert finding.cause in {
        Cause.RENDEZVOUS_TIMEOUT,
        Cause.NODE_MISCONFIGURED,
        Cause.RANK_CRASHED,
    }


GLOO = (
    "[rank{0}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
)
WAITED = (
    GLOO + "unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
    "operation to complete"
)
CLOSED = GLOO + "pair.cc:553] Connection closed by peer [10.0.0.7]:25001. This"


def test_closed_connections_alone_are_consequences():
    """
    A process died; other lines say why.
    """
    lines = [CLOSED.format(0), "gloo/transport/tcp/pair.cc:1] fine then"]

    assert () == findings(lines)


def test_other_failures_of_gloo_are_kept_without_a_finding():
    """
    They say what they are by themselves.
    """
    line = "[enforce fail at gloo/transport/tcp/device.cc:83] ifa != nullptr"

    logs = read_collective_logs([line, line.replace("enforce fail", "x")])

    assert ["other"] == [x.kind for x in logs.gloo]
    assert () == collective_findings(logs)


def nccl(rank, text, *, host=None, level="INFO"):
    """
    A line of NCCL, two ranks per node.
    """
    host = f"node{rank // 2}" if host is None else host
    return f"{host}:{100 + rank}:{200 + rank} [{rank % 2}] NCCL {level} {text}"


def init(rank, stage, size=4, comm="0xabc"):
    """
    The set-up of a communicator.
    """
    return nccl(
        rank,
        f"ncclCommInitRank comm 0x5{rank} rank {rank} nranks {size} cudaDev 0 "
        f"nvmlDev 0 busId 7000 commId {comm} - Init {stage}",
    )


def healthy(ranks=4, iface="eth0", network="IB"):
    """
    What NCCL prints where all is well.
    """
    lines = ["NCCL version 2.21.5+cuda12.4"]
    for rank in range(ranks):
        node = rank // 2
        lines += [
            nccl(rank, f"Bootstrap : Using {iface}:10.0.0.{node}<0>"),
            nccl(rank, "NET/Plugin: No plugin found (libnccl-net.so)"),
            nccl(
                rank,
                "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB "
                f"{iface}:10.0.0.{node}<0>",
            ),
            nccl(rank, f"Using network {network}"),
            init(rank, "START", ranks),
            nccl(rank, "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"),
            init(rank, "COMPLETE", ranks),
            call(rank, 1),
        ]
    return lines


def call(rank, number, op="AllReduce", count=8, dtype=7):
    """
    A call as NCCL prints it.
    """
    return nccl(
        rank,
        f"{op}: opCount {number:x} sendbuff 0x7f recvbuff 0x7e count {count} "
        f"datatype {dtype} op 0 root 0 comm 0x5{rank} [nranks=4] stream 0x55",
    )


def test_healthy_lines_of_nccl_give_no_finding():
    """
    Whatever is printed where all is well blames no rank.
    """
    logs = read_collective_logs(healthy())

    assert () == collective_findings(logs)
    assert 4 == logs.world_size
    assert ("node1", 103) == (
        rank_origins(logs)[3].host,
        rank_origins(logs)[3].pid,
    )


def test_sockets_and_loopback_on_one_node_are_fine():
    """
    Nobody else has to reach it.
    """
    lines = [
        x.replace("10.0.0.0", "127.0.0.1") for x in healthy(2, "lo", "Socket")
    ]

    assert () == findings(lines)


def test_a_log_that_is_cut_during_the_set_up_is_fine():
    """
    The job may be in the midst of it.
    """
    assert () == findings([init(r, "START") for r in range(3)])


def test_a_rank_that_never_begins_the_set_up_is_named():
    """
    The others wait for it, as the store reports.
    """
    lines = [init(r, "START") for r in (0, 1, 3)]
    lines += ["[rank0]: wait timeout after 600000ms, keys: /x"]

    found = findings(lines, 4)

    assert [(2,)] == [
        x.ranks for x in found if x.cause == Cause.RANK_NOT_ARRIVED
    ]
    assert "rank 2 of 4 did not begin to set up" in found[-1].summary


IB = "NET/IB : Got completion from peer 10.0.0.2<34567> with "
# Warnings of NCCL by what they mean.
WARNINGS = {
    Cause.NODE_MISCONFIGURED: [
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000",
        "Mismatched NCCL version detected : rank 0 has version 22005",
    ],
    Cause.NETWORK_MISCONFIGURED: ["Bootstrap : no socket interface found"],
    Cause.NETWORK_FAILURE: [
        f"{IB}status=12 opcode=0 len=0 vendor err 129 (Recv)",
        f"{IB}status=IBV_WC_RETRY_EXC_ERR(12) vendor_err=129",
        f"{IB}status=5",
        "NET/IB : Got async event : port error",
        (
            "socketStartConnect: Connect to 10.0.0.1<1234> failed : Connection "
            "refused"
        ),
    ],
}


@pytest.mark.parametrize(
    ("cause", "warning"),
    [(c, x) for c, some in WARNINGS.items() for x in some],
)
def test_warnings_of_nccl_have_a_cause(cause, warning):
    """
    Many ranks say the same, and it is reported once.
    """
    lines = [
        nccl(r, f"x.cc:1 NCCL WARN {warning}", level="").replace("NCCL  ", "")
        for r in range(2)
    ]

    (finding,) = findings(lines)

    assert cause == finding.cause
    assert "node0" in finding.summary
    assert finding.remedy


def test_other_warnings_are_kept_without_a_finding():
    """
    Many of them are harmless.
    """
    lines = ['n:1:2 [0] a.cc:9 NCCL WARN Missing "iommu=pt" from kernel']

    logs = read_collective_logs(lines)

    assert 1 == len(logs.notes)
    assert () == collective_findings(logs)


def test_interfaces_of_different_networks_matter_if_something_failed():
    """
    They may be meant.
    """
    lines = [
        nccl(0, "Bootstrap : Using eth0:10.0.0.1<0>"),
        nccl(2, "Bootstrap: Using ens5:192.168.0.1<0>"),
    ]

    fine = findings(lines)
    found = findings([*lines, "wait timeout after 3000ms, keys: /foo"])

    assert () == fine
    assert Cause.NETWORK_MISCONFIGURED in {x.cause for x in found}


def test_nodes_with_different_versions_are_told():
    """
    Another version of CUDA behind it is none.
    """
    lines = [
        nccl(0, "NCCL version 2.21.5+cuda12.4"),
        nccl(2, "NCCL version 2.18.3+cuda12.1"),
    ]

    (finding,) = findings(lines)
    fine = findings([lines[0], lines[0].replace("12.4", "12.1")])

    assert Cause.NODE_MISCONFIGURED == finding.cause
    assert "2.18.3, 2.21.5" in finding.summary
    assert () == fine


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        ({"op": "ReduceScatter"}, Cause.TYPE_MISMATCH),
        ({"count": 9}, Cause.SIZE_MISMATCH),
        ({"dtype": 8}, Cause.DTYPE_MISMATCH),
    ],
    ids=["op", "count", "dtype"],
)
def test_calls_that_differ_in_the_same_place_are_told(other, cause):
    """
    NCCL prints every call, if it is asked to.
    """
    lines = healthy() + [call(r, 0x13A0) for r in range(3)]
    lines += [call(3, 0x13A0, **other)]

    (finding,) = findings(lines)

    assert (cause, (3,)) == (finding.cause, finding.ranks)
    assert "call 0x13a0" in finding.summary


def test_only_the_last_calls_are_kept():
    """
    There are millions of them.
    """
    lines = healthy(2) + [call(0, n) for n in range(100)]

    logs = read_collective_logs(lines)

    numbers = [x.number for x in logs.calls if x.pid == 100]
    assert list(range(68, 100)) == numbers
    assert () == collective_findings(logs)


def test_calls_between_two_ranks_may_differ():
    """
    One sends, the other one receives.
    """
    lines = [*healthy(), call(0, 9, "Send"), call(1, 9, "Recv")]

    assert () == findings(lines)


def test_who_made_the_fewest_calls_is_a_hint_if_something_failed():
    """
    Hosts run ahead of GPUs, so that alone means nothing.
    """
    lines = [*healthy(), *(call(r, 5) for r in (0, 1, 3))]

    fine = findings(lines)
    found = findings([*lines, "wait timeout after 3000ms, keys: /foo"])

    assert () == fine
    assert [((), "likely"), ((2,), "possible")] == [
        (x.ranks, x.confidence) for x in found
    ]
    assert "rank 2 made 0x1 calls" in found[1].summary


BARRIER = "CollectiveFingerPrint(SequenceNumber=1OpType=BARRIER)"
NONSENSE = "CollectiveFingerPrint(SequenceNumber=0OpType=GATHER)"
OLD = "CollectiveFingerPrint(OpType=ALLGATHER"
OLD_TENSOR = (
    f"{OLD}, TensorShape=[4], TensorDtypes=Float, TensorDeviceTypes=x)"
)
STORE_BARRIER = (
    "RuntimeError: Timed out initializing process group in store based "
    "barrier on rank: {}, for key: store_based_barrier_key:1 "
    "(world_size=4, worker_count=3, timeout=0:30:00)"
)
FAR = (
    "[rank4]: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms"
)
# What is true, with lines, how many ranks there are, the cause, the ranks, how
# sure that is, and what is said.
VERDICTS = {
    "of two ranks that differ, either may be wrong": (
        [finger(1, tensor(), 0, tensor("REDUCE"))],
        None,
        ("type_mismatch", (0, 1), "possible"),
        "them is wrong cannot be known",
    ),
    "of several tensors only the first is printed": (
        [finger(1, tensor(), 0, tensor())],
        None,
        ("type_mismatch", (), "certain"),
        "something else",
    ),
    "torch 1.x printed the operation only": (
        [finger(r, OLD_TENSOR, 2, f"{OLD})") for r in (0, 1)],
        None,
        ("type_mismatch", (2,), "certain"),
    ),
    "what a rank says of another may be nonsense": (
        [finger(r, tensor(), 2, NONSENSE) for r in (0, 1)],
        None,
        ("type_mismatch", (2,), "certain"),
        "called something else",
    ),
    "what a rank says of itself is true": (
        [
            *(finger(r, tensor(), 2, NONSENSE) for r in (0, 1)),
            finger(2, BARRIER, 0, NONSENSE),
        ],
        None,
        ("type_mismatch", (2,), "certain"),
        "called barrier where",
    ),
    "ranks within another group at a barrier are no global ones": (
        [FAR],
        None,
        ("rank_not_arrived", (), "certain"),
        "ranks 1,3 of the group did not reach",
    ),
    "ranks within another group that differ are no global ones": (
        [
            finger(1, tensor(), 0, tensor("REDUCE")).replace(
                "[rank1]", "[rank5]"
            )
        ],
        None,
        ("type_mismatch", (), "possible"),
    ),
    "if all who came complain, the others are missing": (
        [STORE_BARRIER.format(r) for r in (0, 1, 3)],
        None,
        ("rendezvous_timeout", (2,), "likely"),
    ),
    "if one who came complains, the others may be any": (
        [STORE_BARRIER.format(0)],
        None,
        ("rendezvous_timeout", (), "likely"),
        "3 of 4 ranks came while a group was made",
    ),
    "a rank that finds a connection closed came late": (
        [WAITED.format(0), CLOSED.format(2), WAITED.format(1)],
        None,
        ("rank_not_arrived", (2,), "possible"),
        "within 1800 s",
        "came late to a call over Gloo, or would",
    ),
    "a rank that says nothing comes before one that lost a connection": (
        [*(WAITED.format(r) for r in (0, 1, 4)), CLOSED.format(3)],
        5,
        ("rank_not_arrived", (2,), "likely"),
        "did not enter a call over Gloo",
    ),
    "a rank that says nothing over Gloo is missed": (
        [WAITED.format(r) for r in (0, 1, 3)],
        4,
        ("rank_not_arrived", (2,), "likely"),
    ),
    "without the number of ranks none is missed": (
        [WAITED.format(r) for r in (0, 1, 3)],
        None,
        ("collective_timeout", (), "likely"),
        "DETAIL",
    ),
    "one log of many over Gloo says nothing about the others": (
        [WAITED.format(0)],
        8,
        ("collective_timeout", (), "likely"),
    ),
    "a rank that waited over Gloo may be unknown": (
        [WAITED.format(0)[9:]],
        None,
        ("collective_timeout", (), "likely"),
        "a process waited",
    ),
    "Gloo that connects to no rank is a matter of the network": (
        [
            f"{GLOO.format(1).replace('[/', 'Gloo connectFullMesh failed with [/')}pair.cc:144] no error"
        ],
        None,
        ("network_failure", (), "likely"),
        "GLOO_SOCKET_IFNAME",
        "rank 1 did not reach",
    ),
    "Gloo that is refused is a matter of the network": (
        [
            (
                f"{GLOO.format(1)}pair.cc:799] connect [10.0.1.1]:44941: "
                "Connection refused"
            )
        ],
        None,
        ("network_failure", (), "likely"),
        "GLOO_SOCKET_IFNAME",
        "rank 1 did not reach",
    ),
    "a loopback address is what a node told the others": (
        [
            (
                f"{GLOO.format(1)}pair.cc:799] connect [127.0.1.1]:44941: "
                "Connection refused"
            )
        ],
        None,
        ("network_misconfigured", (), "likely"),
        "/etc/hosts",
        "rank 1 did not reach",
    ),
    "a rank that does not complete the set-up is named": (
        [
            *(init(r, "START") for r in range(4)),
            *(init(r, "COMPLETE") for r in range(3)),
        ],
        None,
        ("rendezvous_timeout", (3,), "possible"),
        "rank 3 of 4 did not complete",
    ),
    "bridges of containers exist on each node by themselves": (
        [*healthy(), nccl(0, "NET/Socket : Using [0]docker0:172.17.0.1<0>")],
        None,
        ("network_misconfigured", (0, 1), "likely"),
        "node0",
        "NCCL_SOCKET_IFNAME",
    ),
    "a node may fall back to sockets": (
        [nccl(0, "Using network IB"), nccl(2, "Using network Socket")],
        None,
        ("network_misconfigured", (), "possible"),
        "node1 fell back to plain sockets",
    ),
    "as many calls against as many blame no rank": (
        [*healthy(), *(call(r, 9, count=8 + r // 2) for r in range(4))],
        None,
        ("size_mismatch", (), "likely"),
    ),
}


@pytest.mark.parametrize("truth", VERDICTS)
def test_verdict(truth):
    """
    What stores, Gloo, torch, and NCCL print shows what went wrong.
    """
    lines, world_size, expected, *words = VERDICTS[truth]

    (finding,) = findings(lines, world_size)

    assert expected == (finding.cause, finding.ranks, finding.confidence)
    said = f"{finding.summary} {finding.remedy}"
    assert [] == [x for x in words if x not in said], said


IN_GROUP = "[PG ID 1 PG GUID {0}({0}) Rank {1}] "


def test_mismatches_in_two_groups():
    """
    The first call that differs is named for each group.
    """
    lines = [
        finger(1, tensor(), 0, tensor("REDUCE")).replace(
            "Detected", f"{IN_GROUP.format('tp', 1)}Detected"
        ),
        finger(3, tensor(seq=7), 2, tensor("REDUCE", seq=7)).replace(
            "Detected", f"{IN_GROUP.format('dp', 3)}Detected"
        ),
    ]

    found = findings(lines)

    assert [Cause.TYPE_MISMATCH] * 2 == [x.cause for x in found]
    assert ["#1", "#7"] == [f"#{finding.collective.seq}" for finding in found]


def test_calls_of_two_runs(tmp_path):
    """
    Calls of NCCL have the rank and run of their file, and are compared within
    one run.
    """
    for attempt, rank, op in [
        *((0, rank, "AllReduce") for rank in range(3)),
        (1, 3, "AllGather"),
    ]:
        folder = tmp_path / f"attempt_{attempt}" / str(rank)
        folder.mkdir(parents=True)
        lines = [*healthy(), call(rank, 5, op)]
        (folder / "stderr.log").write_text("\n".join(lines))

    logs = read_collective_logs(tmp_path)

    assert {(0, 0), (1, 0), (2, 0), (3, 1)} == {
        (x.rank, x.attempt) for x in logs.calls
    }
    assert () == collective_findings(logs)


@pytest.mark.parametrize(
    ("ranks", "gone"), [((0, 2), (1,)), ((0, 3), None), ((1, 2), None)]
)
def test_closed_around_one(ranks, gone):
    """
    Where it is not known how many ranks there are, the only one between those
    that complain has left.
    """
    lines = [f"[rank{rank}]: RuntimeError: {CLOSED}" for rank in ranks]

    found = collective_findings(read_collective_logs(lines))

    left = [x.ranks for x in found if x.cause is Cause.RANK_CRASHED]
    assert left == ([gone] if gone else [])
