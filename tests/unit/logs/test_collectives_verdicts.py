"""
Tests of which ranks are blamed for what watchdogs print.
"""

import re

import pytest

from distdebug.causes import Cause
from distdebug.logs import collective_findings, read_collective_logs


WORLD = LAST = 8


def caught(
    rank,
    seq=78,
    op="ALLREDUCE",
    numel=16,
    *,
    member=None,
    at="03:04:10",
    ran=600000,
    prefix=True,
    out=None,
):
    """
    A rank's time-out, as torch 2.2 to 2.13 print it.
    """
    member = rank if member is None else member
    head = f"[rank{rank}]:" if prefix else ""
    return (
        f"{head}[E810 {at}.853447105 ProcessGroupNCCL.cpp:632] [Rank {member}] "
        "Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, "
        f"NumelOut={numel if out is None else out}, Timeout(ms)=600000) ran "
        f"for {ran} milliseconds before timing out."
    )


def status(
    rank,
    enqueued,
    completed,
    *,
    failed=78,
    group="0(default_pg)",
    member=None,
    at="03:04:10",
    started=None,
):
    """
    How far a rank came, as torch 2.6 to 2.13 print it.
    """
    member = rank if member is None else member
    work = f"failure detected by watchdog at work sequence id: {failed} "
    begun = "" if started is None else f"last started work: {started} (X), "
    return (
        f"[rank{rank}]:[E810 {at}.853547105 ProcessGroupNCCL.cpp:2241] [PG ID "
        f"0 PG GUID {group} Rank {member}]  {work if failed else ''}"
        f"PG status: last enqueued work: {enqueued}, {begun}last completed "
        f"work: {completed}"
    )


def old(rank, seq, **more):
    """
    A rank's time-out, as torch before 2.3 prints it, without any group.
    """
    line = caught(rank, seq, **more, prefix=False)
    return re.sub(r"Numel.*(?=Timeout)|E810 \S+ (?=P)", "", line)


def all_of(*ranks, **more):
    """
    The time-outs of several ranks in the default group.
    """
    return [x for rank in ranks for x in both(rank, **more)]


def in_group(rank, group, member, seq, *, waits=True, at="03:04:10", **more):
    """
    What a rank in another group says that waits in a call, or came so far.
    """
    where = {"group": group, "member": member, "at": at}
    if not waits:
        return [status(rank, seq, seq, failed=None, **where)]
    return [
        caught(rank, seq, member=member, at=at, **more),
        status(rank, seq, seq - 1, failed=seq, **where),
    ]


def signal(rank, enqueued, completed, *, sender=1, at="03:04:11"):
    """
    A rank that was asked to leave a dump.
    """
    return (
        f"[rank{rank}]:[E810 {at}.063479079 ProcessGroupNCCL.cpp:1682] [PG ID 0"
        f" PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a "
        f"collective timeout from  rank {sender} and we will try our best to "
        f"dump the debug info. Last enqueued NCCL work: {enqueued}, last "
        f"completed NCCL work: {completed}.This is most likely caused by"
    )


def both(rank, seq=78, op="ALLREDUCE", numel=16, **more):
    """
    The time-out of a rank and its status in the default group.
    """
    at = more.get("at", "03:04:10")
    return [
        caught(rank, seq, op, numel, **more),
        status(rank, seq, seq - 1, failed=seq, at=at),
    ]


def findings(lines, world_size=None):
    """
    What is found in these lines.
    """
    return collective_findings(
        read_collective_logs(lines, world_size=world_size)
    )


def test_those_who_did_not_enqueue_the_call_are_missing():
    """
    Ranks that were asked to leave a dump say how far they came.
    """
    lines = [x for r in (1, 2, 3, 5, 6, 7) for x in both(r)]
    lines += [signal(0, 77, 77), signal(4, 77, 77)]

    (finding,) = findings(lines)

    assert (Cause.RANK_NOT_ARRIVED, (0, 4)) == (finding.cause, finding.ranks)
    assert ("all_reduce", 78) == (
        finding.collective.op,
        finding.collective.seq,
    )
    assert ("default_pg", tuple(range(8))) == (
        finding.group.desc,
        finding.group.ranks,
    )
    assert "ranks 0,4 never entered all_reduce #78" in finding.summary
    assert "likely" == finding.confidence
    assert all(x.location.startswith("line ") for x in finding.evidence)


HUNG = "[rank{}]: ProcessGroupNCCL's watchdog got stuck for 480 seconds"
FOLDED = (
    f"(Worker pid=5, ip=10.0.0.2) {caught(1)} [repeated 6x across cluster]"
)
SAME_NUMBER = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:1537] [PG 1 Rank {1}] Timeout at NCCL "
    "work: {2}, last enqueued NCCL work: {2}, last completed NCCL work: 4."
)
# What is true, with lines, how many ranks there are, the cause, the ranks, how
# sure that is, and what is said.
VERDICTS = {
    "a rank that waits for all others may have made a call too many": (
        [*both(1), *(signal(r, 77, 77) for r in (0, 2, 3))],
        None,
        ("rank_not_arrived", (0, 2, 3), "possible"),
        "never entered all_reduce #78",
    ),
    "of two operations, that of the minority is wrong": (
        [*all_of(0, 1, 2, seq=2070), *both(3, 2070, "REDUCE")],
        None,
        ("type_mismatch", (3,), "likely"),
        "reduce against all_reduce",
    ),
    "of two ranks, either may be wrong": (
        [*both(0, 5), *both(1, 5, "BROADCAST")],
        None,
        ("type_mismatch", (0, 1), "possible"),
        "one side of ranks 0-1",
    ),
    "all ranks of an all-reduce pass as many elements": (
        [*all_of(0, 1, 2), *both(3, numel=17)],
        None,
        ("size_mismatch", (3,), "likely"),
        "17 elements against 16 elements",
    ),
    "an all-to-all passes what it likes": (
        [x for r in range(4) for x in both(r, 5, "ALLTOALL_BASE", r + 1)],
        4,
        ("collective_stuck_in_flight", (), "likely"),
        "all_to_all #5",
    ),
    "the rank in an earlier call is behind": (
        [*both(0, 619725), *all_of(1, 2, 3, seq=619727)],
        None,
        ("rank_not_arrived", (0,), "likely"),
        "all_reduce #619727",
        "still in all_reduce #619725",
    ),
    "a rank whose host came to the call did not start it": (
        [caught(0, 10), status(0, 14, 9, failed=10), *all_of(1, 2, seq=12)],
        None,
        ("rank_not_started", (0,), "likely"),
    ),
    "a GPU that never came to the call is named, since torch 2.13": (
        [
            *map(caught, range(4)),
            *(status(r, 80, 77, started=78) for r in (0, 1, 3)),
            status(2, 80, 70, started=71),
        ],
        None,
        ("rank_not_started", (2,), "likely"),
        "the GPU of rank 2 did not start",
    ),
    "the lines of the other node are missing": (
        all_of(*range(8, 16), seq=167),
        16,
        ("rank_not_arrived", tuple(range(8)), "possible"),
    ),
    "lines of another node may be missing": (
        all_of(*range(8, 16), seq=167),
        None,
        ("collective_timeout", (), "likely"),
        "do not show for whom",
        "Flight Recorder",
    ),
    "a rank that says nothing is mentioned beside one that did not come": (
        [*all_of(*range(4)), signal(4, 77, 77)],
        6,
        ("rank_not_arrived", (4,), "likely"),
        "rank 5 logged nothing",
    ),
    "one log of many says nothing about the others": (
        both(3),
        64,
        ("collective_timeout", (), "likely"),
        "rank 3 waited 10 min",
    ),
    "what several ranks say, Ray prints once": (
        [*both(0), FOLDED],
        8,
        ("collective_timeout", (), "likely"),
        "RAY_DEDUP_LOGS",
    ),
    "if all members report the same call, it is not the code": (
        all_of(*range(4)),
        4,
        ("collective_stuck_in_flight", (), "likely"),
        "all of its members report it",
    ),
    "calls of different groups are never compared": (
        [
            x
            for r in range(4)
            for x in in_group(
                r, f"{r // 2 + 1}(tp)", r % 2, 5 + r // 2, numel=7 + r // 2
            )
        ],
        None,
        ("collective_timeout", (), "likely"),
        "1 other group waited, too",
    ),
    "before torch 2.5, a number may mean several groups": (
        [
            x
            for r, seq in enumerate([5, 5, 6, 6])
            for x in (
                caught(r, seq, member=r % 2),
                SAME_NUMBER.format(r, r % 2, seq),
            )
        ],
        None,
        ("collective_timeout", (), "likely"),
    ),
    "without groups, who is behind is only possible": (
        [old(0, 9), old(1, 11), old(2, 11)],
        None,
        ("rank_not_arrived", (0,), "possible"),
    ),
    "without groups, most of the ranks are the default group": (
        [old(0, 9), old(1, 9), old(3, 9)],
        4,
        ("rank_not_arrived", (2,), "possible"),
    ),
    "without groups, few of the ranks are any group": (
        [old(0, 9), old(1, 9), old(3, 9)],
        8,
        ("collective_timeout", (), "possible"),
    ),
    "without groups, a rank that waits in two calls is several": (
        [old(0, 9), old(1, 9), old(0, 11), old(1, 11)],
        None,
        ("collective_timeout", (), "possible"),
    ),
    "a status counts where its time-out was swallowed": (
        [*both(0), status(1, 78, 77), *both(2), signal(3, 77, 77)],
        None,
        ("rank_not_arrived", (3,), "likely"),
        "all_reduce #78",
        "3 ranks waited in it",
    ),
    "ranks that wait for each other in two groups are a deadlock": (
        [
            *in_group(0, "1(a)", 0, 5),
            *in_group(1, "1(a)", 1, 4, waits=False),
            *in_group(1, "2(b)", 1, 7),
            *in_group(0, "2(b)", 0, 6, waits=False),
        ],
        None,
        ("group_order_deadlock", (0, 1), "likely"),
    ),
    "dump signals alone are only a hint": (
        [signal(0, 9, 9), signal(2, 10, 9), signal(3, 10, 9)],
        None,
        ("rank_not_arrived", (0,), "possible"),
    ),
    "a call that was pending at a dump signal may be stuck": (
        [signal(2, 10, 9)],
        None,
        ("collective_timeout", (), "possible"),
    ),
    "watchdogs that all hang may wait for the same": (
        [HUNG.format(0), HUNG.format(1)],
        None,
        ("rank_blocked_in_launch", (0, 1), "possible"),
    ),
    "the rank of a watchdog may be that within its group": (
        ["[PG 3 Rank 1] ProcessGroupNCCL's watchdog got stuck for 9 seconds"],
        None,
        ("rank_blocked_in_launch", (), "likely"),
        "rank 1 of its group",
    ),
    "the rank of a watchdog may be unknown": (
        ["Heartbeat monitor timed out! watchdog"],
        None,
        ("rank_blocked_in_launch", (), "likely"),
        "a rank did not move",
    ),
}


@pytest.mark.parametrize("truth", VERDICTS)
def test_verdict(truth):
    """
    The lines of watchdogs show what went wrong, and which ranks are to blame.
    """
    lines, world_size, expected, *words = VERDICTS[truth]

    (finding,) = findings(lines, world_size)

    assert expected == (finding.cause, finding.ranks, finding.confidence)
    said = f"{finding.summary} {finding.remedy}"
    assert [] == [x for x in words if x not in said], said


def test_without_groups_no_group_is_told():
    """
    Before torch 2.3 no line names the group.
    """
    (finding,) = findings([old(0, 9), old(1, 11), old(2, 11)])

    assert finding.group is None


@pytest.mark.parametrize(
    ("more", "behind"),
    [
        ({"op": "_ALLGATHER_BASE", "numel": 5, "out": 20}, []),
        ({"op": "_REDUCE_SCATTER_BASE", "numel": 20, "out": 5}, []),
        ({}, in_group(6, "3(tp)", 2, 8, waits=False)),
    ],
    ids=["gathered", "scattered", "behind"],
)
def test_members_of_other_groups(more, behind):
    """
    A gathered result is as many times larger as there are members, and the
    prefixes of lines are global ranks.
    """
    lines = [
        x for r in (0, 1, 3) for x in in_group(r + 4, "3(tp)", r, 9, **more)
    ]

    (finding,) = findings([*lines, *behind])

    assert (Cause.RANK_NOT_ARRIVED, (6,)) == (finding.cause, finding.ranks)
    assert "rank 6 never entered" in finding.summary
    assert (4, 5, 6, 7) == finding.group.ranks


def test_calls_between_two_ranks_blame_nobody():
    """
    Their numbers are counted apart.
    """
    lines = [*both(0, 3, "SEND"), *both(1, 900, "RECV")]

    (finding,) = findings(lines, 4)

    assert (Cause.COLLECTIVE_TIMEOUT, True) == (
        finding.cause,
        finding.collective.p2p,
    )


def test_the_group_in_which_it_began_comes_first():
    """
    Rank 2 is missing in its first group because it waits in the second.
    """
    lines = [
        *all_of(0, 1, seq=50),
        *(signal(2, 49, 49), signal(3, 49, 49)),
        *in_group(2, "4(pp)", 0, 8, at="03:03:50"),
        *in_group(3, "4(pp)", 1, 7, at="03:03:50", waits=False),
        *in_group(3, "6(ep)", 1, 4, op="BROADCAST"),
        *in_group(7, "6(ep)", 0, 3, waits=False),
    ]

    (finding,) = findings(lines)

    assert ((7,), "ep") == (finding.ranks, finding.group.desc)
    assert "other group" in finding.summary


def test_each_run_of_the_job_has_its_finding():
    """
    Torchrun says that it begins again; the last run comes first.
    """
    lines = [
        *both(0),
        signal(1, 77, 77),
        "Worker group FAILED. 1/3 attempts left; will restart worker group",
        "Worker group FAILED. 1/3 attempts left; will restart worker group",
        *both(1, 30),
        signal(0, 29, 29),
    ]

    logs = read_collective_logs(lines)
    last, first = collective_findings(logs)

    assert 2 == logs.attempts
    assert ((0,), (1,)) == (last.ranks, first.ranks)
    assert "(run 2 of 2)" in last.summary


def test_runs_are_told_apart_by_time():
    """
    A rank that waits again, as long again, belongs to another run.
    """
    lines = [
        *both(0),
        signal(1, 77, 77),
        *both(1, 30, at="05:04:10"),
        signal(0, 29, 29, at="05:04:11"),
        *both(0, 12, at="07:04:10"),
        signal(1, 11, 11, at="07:04:11"),
    ]

    found = findings(lines)

    assert [(1,), (0,), (1,)] == [x.ranks for x in found]


@pytest.mark.parametrize(
    ("line", "cause", "ranks"),
    [
        (
            (
                "ranks [4, 7] are the lagging ranks that caused this timeout. They"
                " never joined any collectives"
            ),
            Cause.RANK_NOT_ARRIVED,
            (4, 7),
        ),
        (
            "[3] finished collective #77, but didn't join collective #78",
            Cause.RANK_NOT_ARRIVED,
            (3,),
        ),
        (
            "[0, 1] joined but didn't finish collective #78",
            Cause.COLLECTIVE_STUCK_IN_FLIGHT,
            (),
        ),
        (
            "[5] joined but didn't finish collective #60",
            Cause.RANK_NOT_ARRIVED,
            (5,),
        ),
    ],
    ids=["absent", "finished", "all", "some"],
)
def test_what_torch_compared_itself_is_believed(line, cause, ranks):
    """
    Its own report goes before what the numbers show.
    """
    report = (
        "[rank0]:[E810 03:04:10.853547105 ProcessGroupNCCL.cpp:1] [PG ID 0 PG "
        f"GUID 0(default_pg) Rank 0] {line} (count from 1)"
    )

    (finding,) = findings([*both(0), *both(1), report])

    assert (cause, ranks) == (finding.cause, finding.ranks)


def test_what_torch_found_is_believed_without_a_timeout():
    """
    Its line may be the only one that is left.
    """
    (finding,) = findings(
        [
            (
                "[rank0]:[E810 03:04:10.853547105 ProcessGroupNCCL.cpp:1] [PG ID 0 "
                "PG GUID 0(default_pg) Rank 0] [3] finished collective #77, but "
                "didn't join collective #78 (count from 1)"
            )
        ]
    )

    assert (Cause.RANK_NOT_ARRIVED, (3,)) == (finding.cause, finding.ranks)


def test_a_watchdog_that_hangs_before_any_timeout_is_named():
    """
    After its own time-out, it only hangs while it cleans up.
    """
    found = findings([*all_of(0, 1), HUNG.format(0), HUNG.format(2)])

    assert (Cause.RANK_BLOCKED_IN_LAUNCH, (2,)) == (
        found[0].cause,
        found[0].ranks,
    )
    assert "did not move for 480 s" in found[0].summary


@pytest.mark.parametrize(
    "lines",
    [
        [status(r, 78, 77) for r in range(4)],
        [signal(0, 9, 9)],
        [
            (
                "[rank0]:[W810 03:04:10.853447105 ProcessGroupNCCL.cpp:1250] "
                "Warning: WARNING: process group has NOT been destroyed before we "
                "destruct ProcessGroupNCCL."
            ),
            (
                "[rank0]:[I810 03:04:10.853447105 ProcessGroupNCCL.cpp:909] [PG ID"
                " 0 PG GUID 0 Rank 0] ProcessGroupNCCL initialization options: "
                "size: 8, TIMEOUT(ms): 600000, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 9"
            ),
            (
                "using GPU 0 to perform barrier as devices used by this process "
                "are currently unknown. ProcessGroupNCCL"
            ),
            "watchdog: all fine",
        ],
    ],
    ids=["error", "dumped", "healthy"],
)
def test_nothing_wrong_gives_no_finding(lines):
    """
    Healthy lines, and the status of a call that failed for another reason,
    blame no rank.
    """
    assert () == findings(lines)


@pytest.mark.parametrize(
    ("ops", "size", "cause"),
    [
        (["SEND"] * 4, 4, "p2p_deadlock"),
        (["RECV"] * 4, 4, "p2p_deadlock"),
        (["SEND", "RECV"] * 2, 4, "collective_timeout"),
        (["SEND"] * 3, 4, "rank_not_arrived"),
        (["RECV", "SEND", "SEND", "RECV"], 4, "p2p_deadlock"),
        (["RECV", "SEND", "SEND", "RECV"], None, "p2p_deadlock"),
        (["SEND", "RECV", "RECV", "SEND"], 4, "collective_timeout"),
        (["RECV", "SEND", "SEND"], None, "collective_timeout"),
    ],
    ids=[
        *("all send", "all receive", "both", "one is silent"),
        *("stages", "stages of an unknown number", "apart", "open end"),
    ],
)
def test_all_send(ops, size, cause):
    """
    Where ranks side by side send and none receives, they wait in a circle,
    unless another one may be at fault that says nothing.
    """
    lines = [
        f"[E321 01:02:03.000 ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0("
        f"default_pg) Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=129, OpType={op}, NumelIn=16, NumelOut=16, "
        "Timeout(ms)=600000) ran for 600089 milliseconds before timing out."
        for rank, op in enumerate(ops)
    ]

    logs = read_collective_logs(lines, world_size=size)

    assert cause == collective_findings(logs)[0].cause
