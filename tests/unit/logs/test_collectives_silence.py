"""
Tests of who is blamed for saying nothing, and whose log is whose.
"""

import os
import time

import pytest

from distdebug.causes import Cause
from distdebug.logs import collective_findings, read_collective_logs


HOUR = 3600


def caught(rank, member=None, *, seq=9, op="ALLREDUCE", numel=16, out=None):
    """
    A rank's time-out.
    """
    member = rank if member is None else member
    return (
        f"[rank{rank}]:[E810 03:04:10.853447105 ProcessGroupNCCL.cpp:632] [Rank "
        f"{member}] Watchdog caught collective operation timeout: WorkNCCL("
        f"SeqNum={seq}, OpType={op}, NumelIn={numel}, "
        f"NumelOut={numel if out is None else out}, Timeout(ms)=600000) ran "
        "for 600010 milliseconds before timing out."
    )


def status(rank, member=None, *, seq=9, group="PG 1"):
    """
    The status behind it.
    """
    member = rank if member is None else member
    return (
        f"[rank{rank}]:[E810 03:04:10.853547105 ProcessGroupNCCL.cpp:1664] "
        f"[{group} Rank {member}] Exception (either an error or timeout) "
        f"detected by watchdog at work: {seq}, last enqueued NCCL work: {seq}, "
        f"last completed NCCL work: {seq - 1}."
    )


def both(rank, member=None, *, group="PG 1", **more):
    """
    A time-out with its status.
    """
    seq = more.get("seq", 9)
    return [
        caught(rank, member, **more),
        status(rank, member, seq=seq, group=group),
    ]


def findings(lines, world_size=None):
    """
    What is found in these lines.
    """
    return collective_findings(
        read_collective_logs(lines, world_size=world_size)
    )


def write_old(folder, name, lines, *, age=HOUR):
    """
    A file that was not written to for so many seconds.
    """
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    then = time.time() - age
    os.utime(path, (then, then))
    return path


GLOO = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81]"
    " Timed out waiting 1800000ms for recv operation to complete"
)
LOST = (
    "[rank{0}]:[E801 02:02:02.118721270 ProcessGroupNCCL.cpp:1515] [PG 0 "
    "(default_pg) Rank {0}] Process group watchdog thread terminated with "
    "exception: NCCL error: remote process exited or there was a network error,"
    " NCCL version 2.20.5"
)
IN_CALL = (
    "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch"
    "/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there "
    "was a network error, NCCL version 2.21.5"
)
CLOSED = (
    "[rank2]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
    "pair.cc:553] Connection closed by peer [10.0.0.7]:25001."
)
BROKEN = (
    "n1:1:2 [0] ib.cc:1 NCCL WARN NET/IB : Got completion from peer "
    "10.0.0.2<3> with error 12, opcode 0, len 0, vendor err 129"
)


def pairs(count, op="ALLREDUCE"):
    """
    The time-outs of ranks that are each the first of a group of their own.
    """
    return [
        x
        for r in range(count)
        for x in both(r, 0, op=op, seq=r + 5, group=f"PG ID 2 PG GUID {r}(pp)")
    ]


# What is true, with lines, how many ranks there are, the cause, the ranks, how
# sure that is, and what is said.
VERDICTS = {
    "an unnamed group that counts as the job does is all of it": (
        [x for r in range(8) if r != 3 for x in both(r)],
        8,
        ("rank_not_arrived", (3,), "likely"),
    ),
    "a gap among the members is a rank that says nothing": (
        [x for r in (4, 5, 6, 8, 9) for x in both(r, r - 4)],
        None,
        ("rank_not_arrived", (7,), "possible"),
    ),
    "a gap among few members may be of several ranks": (
        [x for r in (6, 8, 9) for x in both(r, r - 4)],
        None,
        ("collective_timeout", (), "likely"),
    ),
    "the last stage of a pipeline receives from no rank": (
        pairs(3, "RECV"),
        4,
        ("rank_not_arrived", (3,), "possible"),
        "of all ranks only this one says nothing",
        "2 other groups waited because of it",
    ),
    "the last stage of a pipeline sends to no rank": (
        pairs(3, "SEND"),
        4,
        ("rank_not_arrived", (3,), "possible"),
    ),
    "a pipeline may have any number of stages": (
        pairs(3, "SEND"),
        None,
        ("collective_timeout", (), "likely"),
    ),
    "few silent ranks are named": (
        pairs(4),
        6,
        ("rank_not_arrived", (4, 5), "possible"),
        "only these say nothing",
    ),
    "many silent ranks are not": (
        pairs(4),
        8,
        ("collective_timeout", (), "likely"),
    ),
    "all ranks of a node may write to one file": (
        [x for r in range(4) for x in both(7, r)],
        None,
        ("collective_timeout", (), "likely"),
    ),
    "without a prefix, the rank is that within the group": (
        ["[PG ID 3 PG GUID 7(tp) Rank 1] " + caught(0, 1)[60:]],
        None,
        ("collective_timeout", (), "likely"),
        "rank 1 of the group waited",
    ),
    "a rank that loses no connection left": (
        [LOST.format(r) for r in range(8) if r != 3],
        8,
        ("rank_crashed", (3,), "likely"),
    ),
    "a rank that loses no connection in its call left": (
        [IN_CALL.format(r) for r in range(8) if r != 3],
        8,
        ("rank_crashed", (3,), "likely"),
    ),
    "of two that lose no connection, one left": (
        [LOST.format(r) for r in range(8) if r != 3],
        9,
        ("rank_crashed", (3, 8), "likely"),
        "some of ranks 3,8 left",
    ),
    "of an unknown number of ranks, any may have left": (
        [IN_CALL.format(r) for r in range(8) if r != 3],
        None,
        ("network_failure", (), "possible"),
    ),
    "what broke the network goes before who lost it": (
        [BROKEN, LOST.format(0)],
        2,
        ("network_failure", (), "likely"),
        "InfiniBand",
    ),
    "a closed connection goes before many ranks that say nothing": (
        [f"[rank0]: {GLOO}", CLOSED],
        8,
        ("rank_not_arrived", (2,), "possible"),
    ),
}


@pytest.mark.parametrize("truth", VERDICTS)
def test_verdict(truth):
    """
    What ranks say, and who says nothing, shows what went wrong.
    """
    lines, world_size, expected, *words = VERDICTS[truth]

    (finding,) = findings(lines, world_size)

    assert expected == (finding.cause, finding.ranks, finding.confidence)
    assert [] == [x for x in words if x not in finding.summary], finding


def test_the_silent_rank_is_the_member_that_nobody_named():
    """
    A gathered result shows that there are two members, but not which.
    """
    lines = [
        *both(
            4,
            0,
            op="_ALLGATHER_BASE",
            out=32,
            group="PG ID 3 PG GUID 7(tp)",
        ),
        "  what():  [PG ID 3 PG GUID 7(tp) Rank 0] Process group watchdog "
        "thread terminated with exception: " + caught(4, 0)[60:],
        *(
            x
            for r in (0, 1, 2, 3, 6, 7)
            for x in both(r, group="PG ID 0 PG GUID 0(default_pg)", seq=212)
        ),
    ]

    found = findings(lines, 8)

    assert {(5,)} == {x.ranks for x in found}


def test_members_tell_their_ranks_where_groups_are_made():
    """
    Torch prints that, if it is asked for its infos.
    """
    made = (
        "[rank{0}]:[I810 03:00:00.853447105 ProcessGroupNCCL.cpp:905] [PG ID 3 "
        "PG GUID 7 Rank {1}] ProcessGroupNCCL initialization options: size: 2, "
        "global rank: {0}, TIMEOUT(ms): 600000"
    )
    lines = [made.format(4, 0), made.format(9, 1)]

    (finding,) = findings(
        [*lines, *both(4, 0, op="RECV", group="PG ID 3 PG GUID 7(pp)")]
    )
    logs = read_collective_logs(lines)

    assert (Cause.RANK_NOT_ARRIVED, (9,)) == (finding.cause, finding.ranks)
    assert [(4, 0, 2), (9, 1, 2)] == [
        (x.rank, x.group_rank, x.size) for x in logs.members
    ]
    assert () == collective_findings(logs)


@pytest.mark.parametrize(
    "cut", [8, 13, 32, 58], ids=["rank", "level", "time", "source"]
)
def test_a_rank_that_stands_on_the_line_before_is_kept(cut, tmp_path):
    """
    Loggers break lines anywhere between words.
    """
    line = caught(3, 1)
    lines = ["fine", line[:cut], "      " + line[cut:].lstrip()]

    for source in (lines, write_old(tmp_path, "a.log", lines)):
        logs = read_collective_logs(source)

        assert [(3, 1)] == [(x.rank, x.group_rank) for x in logs.timeouts]


def test_a_line_that_is_complete_keeps_its_own_rank():
    """
    Another rank that broke off before has nothing to do with it.
    """
    lines = ["[rank2]:", caught(3), "[rank2]: hello", caught(4)[60:]]

    logs = read_collective_logs(lines)

    assert [3, None] == [x.rank for x in logs.timeouts]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("worker{}.out", ""),
        ("trainer-{}.log", ""),
        ("out.{}", "INFO:root:rank {}/4 on cpu"),
        (
            "log{}.txt",
            "Initializing distributed: GLOBAL_RANK: {}, MEMBER: 9/4",
        ),
        ("x{}", "Num processes: 4\nProcess index: {}\nLocal process index: 0"),
        (
            "y{}.err",
            "INFO:Added key: store_based_barrier_key:1 to store for rank: {}",
        ),
        ("z{}.log", "WORLD_SIZE=4\nRANK={}\nLOCAL_RANK=0"),
        ("rank{}.log", "rank 3/4"),
    ],
    ids=[
        *("worker", "trainer", "script", "lightning", "accelerate"),
        *("barrier", "environment", "name"),
    ],
)
def test_files_tell_whose_they_are(tmp_path, name, head):
    """
    By their names, or by what the process says of itself.
    """
    for rank in range(4):
        lines = [head.format(rank), "" if rank == 2 else GLOO]
        write_old(tmp_path, name.format(rank), lines)

    (finding,) = findings(tmp_path, 4)

    assert (Cause.RANK_NOT_ARRIVED, (2,)) == (finding.cause, finding.ranks)


@pytest.mark.parametrize(
    ("names", "head"),
    [
        (["worker0.log", "worker1.log", "master0.log"], ""),
        (["worker1.log", "worker2.log"], ""),
        (["worker0.log", "other.log"], ""),
        (["a/worker0.log", "b/worker0.log"], ""),
        (["a", "b"], "rank 0/4"),
        (["a", "b"], "rank 0/4\nrank 1/4"),
        (["node0", "node1"], "node rank 0/2"),
        (["a", "b.gz"], "rank 0/4"),
    ],
    ids=[
        *("leader", "from-one", "alone", "nodes", "same", "all", "node"),
        "damaged",
    ],
)
def test_files_that_may_be_of_several_ranks_tell_nothing(
    tmp_path, names, head
):
    """
    A wrong rank is worse than none.
    """
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_old(tmp_path, name, [head, GLOO])

    logs = read_collective_logs(tmp_path)

    assert {None} == {x.rank for x in logs.gloo}


def nccl(rank, text):
    """
    A line of NCCL.
    """
    return f"n1:{100 + rank}:{200 + rank} [{rank}] NCCL INFO {text}"


def init(rank, stage, size=8):
    """
    The set-up of a communicator.
    """
    return nccl(
        rank,
        f"ncclCommInitRank comm 0x55d0 rank {rank} nranks {size} cudaDev {rank}"
        f" nvmlDev 0 busId 1b000 commId 0xabc - Init {stage}",
    )


def call(rank, number, op="AllReduce", size=8, comm="0x7f33"):
    """
    A call as NCCL prints it.
    """
    return nccl(
        rank,
        f"{op}: opCount {number:x} sendbuff 0x7f recvbuff 0x7e count 8 datatype "
        f"9 op 0 root 0 comm {comm} [nranks={size}] stream 0x9c",
    )


def set_up(size=8):
    """
    A set-up that ended.
    """
    return [init(r, s, size) for s in ("START", "COMPLETE") for r in range(8)]


def test_a_set_up_that_ends_a_log_is_told_once_the_log_is_old(tmp_path):
    """
    Right now it may go on any moment.
    """
    lines = [init(r, "START") for r in range(8) if r != 5]
    old = write_old(tmp_path, "old.log", lines)
    new = write_old(tmp_path, "new.log", lines, age=0)

    (finding,) = findings(old, 8)

    assert (Cause.RANK_NOT_ARRIVED, (5,)) == (finding.cause, finding.ranks)
    assert () == findings(new, 8)


def test_what_ray_folds_is_no_set_up_that_did_not_end(tmp_path):
    """
    Only the first rank is seen to begin, and another one to end.
    """
    fold = " [repeated 7x across cluster]"
    lines = [
        f"(W pid={pid}) {line}{fold}"
        for pid, line in ((1, init(0, "START")), (4, init(3, "COMPLETE")))
    ]

    assert () == findings(write_old(tmp_path, "a.log", lines))


def test_who_made_fewer_calls_is_told_once_the_log_is_old(tmp_path):
    """
    A communicator of its size is the same, even if it is called otherwise.
    """
    lines = [*set_up(), *(call(r, 0x1F4 - (r == 6)) for r in range(8))]
    old = write_old(tmp_path, "old.log", lines)
    new = write_old(tmp_path, "new.log", lines, age=0)

    (finding,) = findings(old)

    assert (Cause.RANK_NOT_ARRIVED, (6,), "possible") == (
        finding.cause,
        finding.ranks,
        finding.confidence,
    )
    assert ("all_reduce", 500) == (
        finding.collective.op,
        finding.collective.seq,
    )
    assert () == findings(new)


@pytest.mark.parametrize("time", ["", "2026-02-20T02:04:{:02}.5Z "])
def test_last_calls(tmp_path, time):
    """
    Of millions of calls, the last ones of each communicator and attempt are
    kept, with the numbers of their lines.
    """
    failed = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL("
    failed += "SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)="
    failed += "600000) ran for 600015 milliseconds before timing out. opCount "
    first = [call(r, n) for n in range(50) for r in (0, 1)]
    again = [call(r, n, comm="0x8") for n in range(100, 190) for r in (0, 1)]
    path = tmp_path / "a.log"
    lines = [*first, failed, "will restart worker group", *again]
    path.write_text(
        "\n".join(time.format(n % 60) + x for n, x in enumerate(lines))
    )

    logs = read_collective_logs(path)

    kept = sorted((x.attempt, x.number, x.line) for x in logs.calls)
    assert [
        *((0, n, 2 * n + r + 1) for n in range(18, 50) for r in (0, 1)),
        *(
            (1, n, 103 + 2 * (n - 100) + r)
            for n in range(158, 190)
            for r in (0, 1)
        ),
    ] == kept
    assert [7] == [x.seq for x in logs.timeouts]


@pytest.mark.parametrize(
    "lines",
    [
        [call(r, 9) for r in range(8)],
        [call(r, 9 - (r == 6)) for r in range(7)],
        [call(r, 9 - (r == 6), "Send" if r < 4 else "Recv") for r in range(8)],
        [call(r, 9 - (r == 6), size=4) for r in range(8)],
        [
            f"(W pid={r}) {call(r, 9 - (r == 6))} [repeated 2x across cluster]"
            for r in range(8)
        ],
    ],
    ids=["equal", "not-all", "pairs", "other-size", "folded"],
)
def test_old_logs_of_healthy_jobs_stay_without_a_finding(tmp_path, lines):
    """
    Jobs end, and their logs grow old.
    """
    path = write_old(tmp_path, "old.log", [*set_up(), *lines])

    assert () == findings(path)


C10D = "socket.cpp:601] [c10d] "


@pytest.mark.parametrize(
    "line",
    [
        (
            f"[W {C10D}The client socket has failed to connect to [localhost]:29500 (errno: "
            "99 - Cannot assign requested address)."
        ),
        (
            f"[W {C10D}The server socket has failed to bind to [::]:29500 (errno: 98 - "
            "Address already in use)."
        ),
        (
            f"[E {C10D}The server socket has failed to listen on any local network "
            "address."
        ),
        (
            "The node 'a_1_0' has failed to shutdown the rendezvous 'none' due to "
            "an error of type RendezvousConnectionError."
        ),
        (
            "The node 'a_1_0' has failed to send a keep-alive heartbeat to the "
            "rendezvous 'none' due to an error of type RendezvousTimeoutError."
        ),
    ],
    ids=["client", "bind", "listen", "shutdown", "heartbeat"],
)
def test_warnings_while_nodes_meet_are_fine(line):
    """
    They try again, or another process has what they need.
    """
    assert () == findings([line])


def test_a_status_behind_an_unnamed_timeout_tells_its_group():
    """
    In the default group both ways to count agree.
    """
    lines = [x[8:] for r in (0, 1) for x in both(r, group="PG 0")]
    lines += [caught(0)[8:].replace("SeqNum=9", "SeqNum=12")]

    logs = read_collective_logs(lines)
    (finding,) = collective_findings(logs)

    assert {None} == {x.group for x in logs.timeouts}
    assert ("0", (0, 1)) == (finding.group.name, finding.group.ranks)


def test_a_file_that_goes_away_meanwhile_is_reported(tmp_path, monkeypatch):
    """
    Logs are rotated while they are read.
    """
    path = write_old(tmp_path, "a.log", [caught(1)])
    real_open = os.open

    def open_gone(file, *args, **options):
        if str(file) == str(path):
            path.unlink(missing_ok=True)
        return real_open(file, *args, **options)

    monkeypatch.setattr(os, "open", open_gone)

    logs = read_collective_logs(path)

    assert [str(path)] == [x.source for x in logs.missing]
    assert logs.quiet is None


def launch(folder, texts, name="attempt_0/{}/stderr.log"):
    """
    What ranks wrote, each into a file of its own, by rank.
    """
    for rank, text in texts.items():
        path = folder / name.format(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_collective_logs(folder)


TIMED_OUT = GLOO.strip() + "\n"
RESET = (
    "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:537] Read "
    "error [127.0.0.1]:42880: Connection reset by peer\n"
)


@pytest.mark.parametrize(
    "name",
    ["attempt_0/{}/stderr.log", "rank_{}.log"],
    ids=["torchrun", "named"],
)
def test_who_has_an_empty_file_is_missed(tmp_path, name):
    """
    The files of a launch show how many ranks there are.
    """
    texts = {0: TIMED_OUT, 1: TIMED_OUT, 2: "", 3: TIMED_OUT}

    logs = launch(tmp_path, texts, name)

    (finding,) = collective_findings(logs)
    assert 4 == logs.world_size
    assert Cause.RANK_NOT_ARRIVED == finding.cause
    assert (2,) == finding.ranks


@pytest.mark.parametrize(
    "texts",
    [
        {0: TIMED_OUT, 2: "", 3: ""},
        {1: TIMED_OUT, 2: ""},
        {0: TIMED_OUT},
        {0: f"[rank4]: {TIMED_OUT}", 1: ""},
    ],
    ids=["gap", "none first", "one", "rank beyond"],
)
def test_files_that_may_not_be_all(tmp_path, texts):
    """
    Files that are not those of ranks 0 to N - 1 do not show how many.
    """
    logs = launch(tmp_path, texts)

    assert logs.world_size is None


def test_files_of_several_launches(tmp_path):
    """
    Where torchrun ran on several nodes, files count the ranks of each; where
    it started the workers again, both starts must agree.
    """
    texts = {0: TIMED_OUT, 1: ""}
    for place in ("nodes/a", "nodes/b", "grown"):
        launch(tmp_path / place, texts)
    nodes = read_collective_logs(tmp_path / "nodes")
    again = launch(tmp_path / "grown", texts, "attempt_1/{}/stderr.log")
    grown = launch(tmp_path / "grown", {2: ""}, "attempt_1/{}/stderr.log")

    assert (None, 2, None) == (
        nodes.world_size,
        again.world_size,
        grown.world_size,
    )


@pytest.mark.parametrize(
    ("quiet", "size", "confidence", "says"),
    [
        ((1,), 3, "likely", "rank 1 left"),
        ((1,), 2, "possible", "rank 1 left"),
        ((1, 3), 4, "possible", "one or more of ranks 1,3 left"),
    ],
    ids=["one of three", "one of two", "two of four"],
)
def test_who_left_does_not_complain(tmp_path, quiet, size, confidence, says):
    """
    Who is gone is among those few who find no connection closed.
    """
    texts = {rank: "" if rank in quiet else RESET for rank in range(size)}

    (finding,) = collective_findings(launch(tmp_path, texts))

    assert Cause.RANK_CRASHED == finding.cause
    assert quiet == finding.ranks
    assert confidence == finding.confidence
    assert finding.summary.startswith(says)


def test_too_many_that_do_not_complain(tmp_path):
    """
    If most ranks say nothing, or none does, no rank is blamed.
    """
    few = launch(tmp_path / "few", {0: RESET, 1: "", 2: ""})
    every = launch(tmp_path / "every", {0: RESET, 1: RESET})

    assert ((), ()) == (collective_findings(few), collective_findings(every))
