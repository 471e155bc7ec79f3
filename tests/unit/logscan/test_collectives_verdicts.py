"""
Tests of who is blamed, as the lines of watchdogs tell.
"""

import pytest

from distdebug.findings import Cause
from distdebug.logscan import collective_findings, read_collective_logs


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
    begun = "" if started is None else f"last started work: {started} (X), "
    return (
        f"[rank{rank}]:[E810 {at}.853547105 ProcessGroupNCCL.cpp:2241] [PG ID "
        f"0 PG GUID {group} Rank {member}]  failure detected by watchdog at "
        f"work sequence id: {failed} PG status: last enqueued work: "
        f"{enqueued}, {begun}last completed work: {completed}"
    )


def signal(rank, enqueued, completed, *, sender=1, at="03:04:11"):
    """
    A rank that was told to leave a dump.
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
    Ranks that were told to leave a dump say how far they came.
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
    assert "ranks 0,4 did not come to all_reduce #78" in finding.summary
    assert "likely" == finding.confidence
    assert all(x.location.startswith("line ") for x in finding.evidence)


def test_hardly_anybody_who_came_makes_it_doubtful():
    """
    If one rank waits for all others, it may have made a call too many.
    """
    lines = both(1) + [signal(r, 77, 77) for r in (0, 2, 3)]

    (finding,) = findings(lines)

    assert ((0, 2, 3), "possible") == (finding.ranks, finding.confidence)


def test_another_operation_in_the_same_place_is_a_mismatch():
    """
    The minority is suspected.
    """
    lines = [x for r in range(3) for x in both(r, 2070)]
    lines += both(3, 2070, "REDUCE")

    (finding,) = findings(lines)

    assert (Cause.TYPE_MISMATCH, (3,)) == (finding.cause, finding.ranks)
    assert "reduce against all_reduce" in finding.summary


def test_as_many_against_as_many_blames_nobody_alone():
    """
    With two ranks it cannot be told who is wrong.
    """
    lines = [*both(0, 5), *both(1, 5, "BROADCAST")]

    (finding,) = findings(lines)

    assert ((0, 1), "possible") == (finding.ranks, finding.confidence)
    assert "one side of ranks 0-1" in finding.summary


def test_another_size_in_the_same_place_is_a_mismatch():
    """
    All ranks of an all-reduce pass as many elements.
    """
    lines = [x for r in range(3) for x in both(r)] + both(3, numel=17)

    (finding,) = findings(lines)

    assert (Cause.SIZE_MISMATCH, (3,)) == (finding.cause, finding.ranks)
    assert "17 elements against 16 elements" in finding.summary


def test_sizes_may_differ_where_they_may():
    """
    An all-to-all passes what it likes.
    """
    lines = [x for r in range(4) for x in both(r, 5, "ALLTOALL_BASE", r + 1)]

    (finding,) = findings(lines, 4)

    assert Cause.COLLECTIVE_STUCK_IN_FLIGHT == finding.cause
    assert "all_to_all #5" in finding.summary


def test_the_rank_in_an_earlier_call_is_behind():
    """
    The others wait in a later call, to which it did not come.
    """
    lines = both(0, 619725) + [x for r in (1, 2, 3) for x in both(r, 619727)]

    (finding,) = findings(lines)

    assert (Cause.RANK_NOT_ARRIVED, (0,)) == (finding.cause, finding.ranks)
    assert 619727 == finding.collective.seq
    assert "still in all_reduce #619725" in finding.summary


def test_a_rank_that_is_behind_on_its_gpu_only_did_not_start():
    """
    Its host had enqueued the call of the others.
    """
    lines = [
        caught(0, 10),
        status(0, 14, 9, failed=10),
        *(x for r in (1, 2) for x in both(r, 12)),
    ]

    (finding,) = findings(lines)

    assert (Cause.RANK_NOT_STARTED, (0,)) == (finding.cause, finding.ranks)


def test_a_gpu_that_never_came_to_the_call_is_named():
    """
    Torch 2.13 tells what had started.
    """
    lines = [caught(r) for r in range(4)]
    lines += [status(r, 80, 77, started=78) for r in (0, 1, 3)]
    lines += [status(2, 80, 70, started=71)]

    (finding,) = findings(lines)

    assert (Cause.RANK_NOT_STARTED, (2,)) == (finding.cause, finding.ranks)
    assert "the GPU of rank 2 did not begin" in finding.summary


def test_those_who_say_nothing_are_missed_if_their_number_is_known():
    """
    The lines of the other node are not there at all.
    """
    lines = [x for r in range(8, 16) for x in both(r, 167)]

    (silent,) = findings(lines, 16)
    (unknown,) = findings(lines)

    assert (Cause.RANK_NOT_ARRIVED, tuple(range(8))) == (
        silent.cause,
        silent.ranks,
    )
    assert "possible" == silent.confidence
    assert (Cause.COLLECTIVE_TIMEOUT, ()) == (unknown.cause, unknown.ranks)
    assert "do not tell for whom" in unknown.summary
    assert "Flight Recorder" in unknown.remedy


def test_those_who_say_nothing_are_mentioned_beside_those_who_do():
    """
    Who says that it did not come is blamed; who says nothing is told.
    """
    lines = [x for r in range(4) for x in both(r)] + [signal(4, 77, 77)]

    (finding,) = findings(lines, 6)

    assert (4,) == finding.ranks
    assert "nothing is heard of rank 5" in finding.summary


def test_one_log_of_many_blames_nobody():
    """
    That others say nothing only shows that their logs are not there.
    """
    (finding,) = findings(both(3), 64)

    assert (Cause.COLLECTIVE_TIMEOUT, ()) == (finding.cause, finding.ranks)
    assert "rank 3 waited 10 min" in finding.summary


def test_lines_that_ray_folded_are_not_missed():
    """
    Ray prints what several ranks say only once.
    """
    lines = [
        *both(0),
        "(Worker pid=5, ip=10.0.0.2) "
        + caught(1)
        + " [repeated 6x across cluster]",
    ]

    (finding,) = findings(lines, 8)

    assert (Cause.COLLECTIVE_TIMEOUT, ()) == (finding.cause, finding.ranks)
    assert "RAY_DEDUP_LOGS" in finding.remedy


def test_if_everyone_came_it_is_not_the_code():
    """
    All members report the same call.
    """
    (finding,) = findings([x for r in range(4) for x in both(r)], 4)

    assert (Cause.COLLECTIVE_STUCK_IN_FLIGHT, ()) == (
        finding.cause,
        finding.ranks,
    )
    assert "all of its members report it" in finding.summary


@pytest.mark.parametrize(
    ("op", "numel", "out"),
    [("_ALLGATHER_BASE", 5, 20), ("_REDUCE_SCATTER_BASE", 20, 5)],
)
def test_sizes_tell_how_many_members_there_are(op, numel, out):
    """
    A gathered result is as many times larger.
    """
    lines = [
        x
        for r in (0, 1, 3)
        for x in (
            caught(r + 4, 9, op, numel, member=r, out=out),
            status(r + 4, 9, 8, failed=9, group="3(tp)", member=r),
        )
    ]

    (finding,) = findings(lines)

    assert Cause.RANK_NOT_ARRIVED == finding.cause
    assert (6,) == finding.ranks
    assert "rank 6 did not come" in finding.summary
    assert (4, 5, 6, 7) == finding.group.ranks


def test_ranks_of_other_groups_are_global_where_lines_tell():
    """
    The prefix of a line is the global rank.
    """
    lines = [
        x
        for r in (0, 1, 3)
        for x in (
            caught(r + 4, member=r),
            status(r + 4, 78, 77, group="3(tp)", member=r),
        )
    ]
    lines += [
        status(6, 70, 70, group="3(tp)", member=2).replace(
            "failure detected by watchdog at work sequence id: 78 ", ""
        )
    ]

    (finding,) = findings(lines)

    assert ((6,), (4, 5, 6, 7)) == (finding.ranks, finding.group.ranks)


def test_calls_of_different_groups_are_never_compared():
    """
    Two groups of two ranks wait in different calls.
    """
    lines = []
    for rank in range(4):
        group, member = divmod(rank, 2)
        lines += [
            caught(rank, 5 + group, "ALLREDUCE", 7 + group, member=member),
            status(
                rank,
                5 + group,
                4 + group,
                failed=5 + group,
                group=f"{group + 1}(tp{group})",
                member=member,
            ),
        ]

    found = findings(lines)

    assert [Cause.COLLECTIVE_TIMEOUT] == [x.cause for x in found]
    assert "1 other group waited, too" in found[0].summary


def test_a_number_that_means_several_groups_blames_nobody():
    """
    Before 2.5 each process counted its groups for itself.
    """
    lines = []
    for rank in range(4):
        lines += [
            caught(rank, 5 + rank // 2, member=rank % 2),
            (
                f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1537] [PG 1 Rank {rank % 2}]"
                f" Timeout at NCCL work: {5 + rank // 2}, last enqueued NCCL work:"
                f" {5 + rank // 2}, last completed NCCL work: 4."
            ),
        ]

    (finding,) = findings(lines)

    assert (Cause.COLLECTIVE_TIMEOUT, ()) == (finding.cause, finding.ranks)


def test_without_groups_the_verdict_is_but_possible():
    """
    Before 2.3 no line tells the group.
    """
    lines = [
        f"[E ProcessGroupNCCL.cpp:475] [Rank {r}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
        "Timeout(ms)=600000) ran for 600027 milliseconds before timing out."
        for r, seq in enumerate([9, 11, 11])
    ]

    (finding,) = findings(lines)

    assert ((0,), "possible") == (finding.ranks, finding.confidence)
    assert finding.group is None


def test_without_groups_most_of_the_ranks_are_the_default_group():
    """
    Then those who say nothing are missing.
    """
    lines = [
        f"[E ProcessGroupNCCL.cpp:475] [Rank {r}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, "
        "Timeout(ms)=600000) ran for 600027 milliseconds before timing out."
        for r in (0, 1, 3)
    ]

    (missing,) = findings(lines, 4)
    (unknown,) = findings(lines, 8)

    assert ((2,), "possible") == (missing.ranks, missing.confidence)
    assert () == unknown.ranks


def test_an_error_is_no_timeout():
    """
    The same status is printed where a call failed for another reason.
    """
    lines = [status(r, 78, 77) for r in range(4)]

    assert () == findings(lines)


def test_a_status_counts_where_its_timeout_was_swallowed():
    """
    It tells in which call the rank waited, but not what that was.
    """
    lines = [*both(0), status(1, 78, 77), *both(2), signal(3, 77, 77)]

    (finding,) = findings(lines)

    assert (3,) == finding.ranks
    assert "all_reduce #78" in finding.summary
    assert "3 ranks wait in it" in finding.summary


def test_without_groups_lines_that_contradict_each_other_blame_nobody():
    """
    One rank within its group cannot wait in two calls.
    """
    lines = [
        f"[E ProcessGroupNCCL.cpp:475] [Rank {r}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
        "Timeout(ms)=600000) ran for 600027 milliseconds before timing out."
        for r, seq in ((0, 9), (1, 9), (0, 11), (1, 11))
    ]

    (finding,) = findings(lines)

    assert (Cause.COLLECTIVE_TIMEOUT, ()) == (finding.cause, finding.ranks)


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
        *(x for r in (0, 1) for x in both(r, 50, at="03:04:10")),
        signal(2, 49, 49),
        signal(3, 49, 49),
        caught(2, 8, member=0, at="03:03:50"),
        status(2, 8, 7, failed=8, group="4(pp)", member=0, at="03:03:50"),
        status(3, 7, 7, failed=7, group="4(pp)", member=1).replace(
            "failure detected by watchdog at work sequence id: 7 ", ""
        ),
        caught(3, 4, "BROADCAST", member=1),
        status(3, 4, 3, failed=4, group="6(ep)", member=1),
        status(7, 3, 3, failed=3, group="6(ep)", member=0).replace(
            "failure detected by watchdog at work sequence id: 3 ", ""
        ),
    ]

    (finding,) = findings(lines)

    assert ((7,), "ep") == (finding.ranks, finding.group.desc)
    assert "other group" in finding.summary


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_deadlock():
    """
    Each is missing in the group in which the other one waits.
    """
    lines = [
        caught(0, 5, member=0),
        status(0, 5, 4, failed=5, group="1(a)", member=0),
        status(1, 4, 4, failed=4, group="1(a)", member=1).replace(
            "failure detected by watchdog at work sequence id: 4 ", ""
        ),
        caught(1, 7, member=1),
        status(1, 7, 6, failed=7, group="2(b)", member=1),
        status(0, 6, 6, failed=6, group="2(b)", member=0).replace(
            "failure detected by watchdog at work sequence id: 6 ", ""
        ),
    ]

    (finding,) = findings(lines)

    assert (Cause.GROUP_ORDER_DEADLOCK, (0, 1)) == (
        finding.cause,
        finding.ranks,
    )


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
            (
                "[3] finished collective #77, but didn't join collective #78 "
                "(count from 1)"
            ),
            Cause.RANK_NOT_ARRIVED,
            (3,),
        ),
        (
            "[0, 1] joined but didn't finish collective #78 (count from 1)",
            Cause.COLLECTIVE_STUCK_IN_FLIGHT,
            (),
        ),
        (
            "[5] joined but didn't finish collective #60 (count from 1)",
            Cause.RANK_NOT_ARRIVED,
            (5,),
        ),
    ],
    ids=["absent", "finished", "all", "some"],
)
def test_what_torch_compared_itself_is_believed(line, cause, ranks):
    """
    Its own report goes before what the numbers tell.
    """
    report = (
        "[rank0]:[E810 03:04:10.853547105 ProcessGroupNCCL.cpp:1] [PG ID 0 PG "
        f"GUID 0(default_pg) Rank 0] {line}"
    )

    (finding,) = findings([*both(0), *both(1), report])

    assert (cause, ranks) == (finding.cause, finding.ranks)


def test_dump_signals_alone_are_but_a_hint():
    """
    The log of the rank that timed out is not there.
    """
    (behind,) = findings([signal(0, 9, 9), signal(2, 10, 9), signal(3, 10, 9)])
    (pending,) = findings([signal(2, 10, 9)])

    assert (Cause.RANK_NOT_ARRIVED, (0,), "possible") == (
        behind.cause,
        behind.ranks,
        behind.confidence,
    )
    assert Cause.COLLECTIVE_TIMEOUT == pending.cause
    assert () == findings([signal(0, 9, 9)])


def test_a_watchdog_that_hangs_before_any_timeout_is_named():
    """
    After its own time-out, it only hangs while it cleans up.
    """
    beat = (
        "[rank{0}]:[F ProcessGroupNCCL.cpp:1] [PG 0 (default_pg) Rank {0}] "
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds"
    )
    lines = [*both(0), *both(1), beat.format(0), beat.format(2)]

    found = findings(lines)

    assert (Cause.RANK_BLOCKED_IN_LAUNCH, (2,)) == (
        found[0].cause,
        found[0].ranks,
    )
    assert "did not move for 480 s" in found[0].summary


def test_watchdogs_that_all_hang_are_suspects_at_most():
    """
    All of them may wait for the same.
    """
    beat = "[rank{0}]: ProcessGroupNCCL's watchdog got stuck for 480 seconds"
    other = "[PG 3 Rank 1] ProcessGroupNCCL's watchdog got stuck for 9 seconds"

    (all_,) = findings([beat.format(0), beat.format(1)])
    (one,) = findings([other])
    (bare,) = findings(["Heartbeat monitor timed out! watchdog"])

    assert ((0, 1), "possible") == (all_.ranks, all_.confidence)
    assert ((), True) == (one.ranks, "rank 1 of its group" in one.summary)
    assert "a rank did not move" in bare.summary


def test_nothing_wrong_gives_no_finding():
    """
    Healthy lines about the same things blame nobody.
    """
    lines = [
        (
            "[rank0]:[W810 03:04:10.853447105 ProcessGroupNCCL.cpp:1250] Warning: "
            "WARNING: process group has NOT been destroyed before we destruct "
            "ProcessGroupNCCL."
        ),
        (
            "[rank0]:[I810 03:04:10.853447105 ProcessGroupNCCL.cpp:909] [PG ID 0 PG"
            " GUID 0 Rank 0] ProcessGroupNCCL initialization options: size: 8, "
            "TIMEOUT(ms): 600000, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 480"
        ),
        (
            "using GPU 0 to perform barrier as devices used by this process are "
            "currently unknown. ProcessGroupNCCL"
        ),
        "watchdog: all fine",
    ]

    assert () == findings(lines)
