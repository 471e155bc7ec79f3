"""
What the stacks of all ranks say together.
"""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.errors import CaptureError
from distdebug.stacks import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    explain_stacks,
    merge_stacks,
    stacks_to_json,
)


C10D = "torch/distributed/distributed_c10d.py"
USER = ("train", "train.py", 40)
REDUCE = [("all_reduce", C10D, 1), USER]
SYNC = [("synchronize", "torch/cuda/__init__.py", 1), USER]
SLEEP = [
    ("sleep", "/x/site-packages/tenacity/nap.py", 1),
    ("augment", "data.py", 7),
]
FETCH = [
    ("_try_get_data", "torch/utils/data/dataloader.py", 1),
    ("load", "train.py", 12),
]
LOOP = ("_worker_loop", "torch/utils/data/_utils/worker.py", 1)
INIT = [("init_process_group", C10D, 1), USER]
SAVE = [("write", "zip.py", 1), ("save", "torch/serialization.py", 2), USER]
STILL = ThreadActivity(seconds=2, voluntary=0, involuntary=0, cpu_s=0)
MOVES = ThreadActivity(
    seconds=2,
    voluntary=9,
    involuntary=0,
    cpu_s=0.1,
    has_moved=True,
    has_left=True,
)
STAYS = attrs.evolve(MOVES, has_moved=False, has_left=False)


def rank(number, lines=(), **changes):
    """
    One rank, whose main thread is at these lines.
    """
    keys = ("activity", "active", "owns_gil", "idle_s", "system_call")
    known = {k: changes.pop(k) for k in keys if k in changes}
    state = changes.get("state", "S") or "S"
    threads = (
        ThreadStack(
            name="MainThread",
            is_main=True,
            state=state,
            frames=tuple(StackFrame(*line) for line in lines),
            **known,
        ),
    )
    values = {"pid": 100 + (number or 0), "rank": number, **changes}
    values.setdefault("threads", threads if lines else ())
    return ProcessStacks(source="s", **values)


def ranks(numbers, lines, **changes):
    """
    Several ranks that do the same.
    """
    return [rank(n, lines, **changes) for n in numbers]


def explain(*groups, **options):
    """
    What is said about these ranks.
    """
    known = []
    for group in groups:
        known += group if isinstance(group, list) else [group]
    return explain_stacks(known, **options)


def told(finding):
    """
    The cause and the ranks of a finding.
    """
    return finding.cause, finding.ranks


class TestSources:
    def test_shapes(self, tmp_path):
        """
        Stacks are given, or read, or those of a result.
        """
        one = rank(0, SLEEP)
        path = tmp_path / "pyspy_n1_7.json"
        path.write_text(stacks_to_json(one))
        result = SimpleNamespace(stacks=(one,))

        for given in (one, [one], path, [path], tmp_path, result, [result]):
            (got,) = explain_stacks(given)
            assert Cause.SLEEPING is got.cause
            assert 1 == len(merge_stacks(given).processes)

    def test_no_stacks(self, tmp_path):
        """
        A mistaken path is an error, and not nothing to explain.
        """
        with pytest.raises(CaptureError, match=r"no stacks in .*no such file"):
            explain_stacks(tmp_path / "nope")
        with pytest.raises(CaptureError, match="nothing there"):
            merge_stacks(tmp_path)

    @pytest.mark.parametrize("given", [3, [3], None])
    def test_nonsense(self, given):
        with pytest.raises(TypeError, match="stacks are what read_stacks"):
            explain_stacks(given)


class TestState:
    @pytest.mark.parametrize(
        ("cause", "changes", "words"),
        [
            (Cause.DEAD, {"state": "Z"}, "a zombie"),
            (Cause.DEAD, {"state": "X"}, "has ended meanwhile"),
            (Cause.STOPPED, {"state": "T"}, "stopped by a signal"),
            (
                Cause.STOPPED,
                {"state": "t", "tracer_pid": 7},
                "stopped by process 7, a debugger",
            ),
            (Cause.STOPPED, {"state": "t"}, "stopped by a debugger"),
            (Cause.UNINTERRUPTIBLE, {"state": "D"}, "cannot be interrupted"),
        ],
    )
    def test_first(self, cause, changes, words):
        """
        What is seen without a stack comes first; others wait for it.
        """
        got = explain(ranks([0, 1], REDUCE), rank(2, **changes))

        assert [(cause, (2,))] == [told(f) for f in got]
        assert words in got[0].summary
        assert "ranks 0-1 are waiting in all_reduce" in got[0].summary
        assert got[0].remedy

    def test_ended_while_looked_at(self):
        """
        That all have ended is not why they hung: their last stacks count.
        """
        others = [attrs.evolve(x, state="X") for x in ranks([0, 1], REDUCE)]

        (got,) = explain(others, rank(2, SLEEP, state="X"))

        assert (Cause.SLEEPING, (2,)) == told(got)

    def test_disk(self):
        """
        What is asked of a disk that does not answer is told.
        """
        call = SystemCall(name="read", target="/nfs/x")

        (got,) = explain(
            rank(0, SLEEP, state="D", activity=STILL, system_call=call)
        )

        assert "read(/nfs/x)" in got.summary
        assert (Cause.UNINTERRUPTIBLE, "certain") == (
            got.cause,
            got.confidence,
        )

    def test_all_compute(self):
        """
        Where all ranks are in one native call, it may never return: so MPI
        and UCX wait for other ranks.
        """
        busy = attrs.evolve(STILL, cpu_s=1.9, has_moved=False, has_left=False)
        svd = [("svd", "/x/site-packages/torch/_linalg_utils.py", 3), USER]
        one = {"activity": busy, "owns_gil": False}

        (all_,) = explain(ranks([0, 1], svd, **one))
        last, *_ = explain(ranks([0], REDUCE), rank(1, svd, **one))

        assert (Cause.NATIVE_SPIN, (0, 1)) == told(all_)
        assert (Cause.NATIVE_SPIN, (1,)) == told(last)

    @pytest.mark.parametrize(
        ("has_left", "cause"),
        [(True, Cause.PROGRESSING), (False, Cause.GIL_CONTENTION)],
    )
    def test_pool_that_computes(self, has_left, cause):
        """
        Threads that compute from function to function, while no rank waits
        for another, are work.
        """
        busy = attrs.evolve(
            STILL, voluntary=300, cpu_s=1.8, has_moved=True, has_left=has_left
        )
        kept = attrs.evolve(STILL, voluntary=400, cpu_s=0.1)
        futex = SystemCall(name="futex")

        def process(number):
            main = ThreadStack(
                name="MainThread",
                is_main=True,
                state="S",
                frames=(StackFrame("as_completed", "train.py", 9),),
                activity=kept,
                system_call=futex,
            )
            worker = ThreadStack(
                name="pool_0",
                state="R",
                owns_gil=True,
                frames=(StackFrame("read_record", "train.py", 4),),
                activity=busy,
            )
            return rank(number, threads=(main, worker))

        got = explain([process(0), process(1)])

        assert cause is got[0].cause

    @pytest.mark.parametrize(
        ("holder", "words"),
        [(100, "held by rank 0 (process 100)"), (7, "held by process 7")],
        ids=["a rank", "another process"],
    )
    def test_lock_of_a_file(self, holder, words):
        """
        Who holds the lock is named, as a rank if it is one.
        """
        call = SystemCall(name="flock", target="/x/a.lock", holder=holder)
        locks = ranks([1, 2], [USER], system_call=call, activity=STILL)

        (got,) = explain(rank(0, REDUCE), locks)

        assert (Cause.LOCK_DEADLOCK, (1, 2)) == told(got)
        assert f"flock('/x/a.lock'), {words}" in got.summary

    @pytest.mark.parametrize(
        ("cause", "io_bytes", "words"),
        [
            (Cause.PROGRESSING, 4_000_000, "(2.0 MB/s); ranks 0-1 are wait"),
            (Cause.SLEEPING, 20_000, "is sleeping"),
            (Cause.SLEEPING, None, "is sleeping"),
        ],
        ids=["moves data", "prints", "unknown"],
    )
    def test_slow_storage(self, cause, io_bytes, words):
        """
        A rank that writes a large file piece by piece is at work; one that
        only prints is not.
        """
        writes = attrs.evolve(MOVES, has_left=False, io_bytes=io_bytes)

        got = explain(ranks([0, 1], REDUCE), rank(2, SLEEP, activity=writes))

        assert [(cause, (2,))] == [told(f) for f in got]
        assert words in got[0].summary

    @pytest.mark.parametrize(
        ("naps", "confidence"), [(9, "possible"), (0, "likely")]
    )
    def test_naps(self, naps, confidence):
        """
        Where nobody waits for others, sleeping again and again may be work.
        """
        activity = attrs.evolve(STILL, voluntary=naps)

        (got,) = explain(ranks([0, 1], SLEEP, activity=activity))

        assert (Cause.SLEEPING, confidence) == (got.cause, got.confidence)

    @pytest.mark.parametrize(
        ("is_stuck", "changes"),
        [
            (True, {"activity": STILL}),
            (True, {"activity": STILL, "idle_s": 0.5}),
            (True, {"idle_s": 3.0}),
            (True, {"idle_s": 99.0}),
            (False, {"idle_s": 0.1}),
            (False, {"activity": MOVES}),
            (False, {"activity": attrs.evolve(STILL, cpu_s=0.001)}),
            (False, {"activity": attrs.evolve(STILL, involuntary=1)}),
            (False, {"activity": attrs.evolve(STILL, has_moved=True)}),
            (
                False,
                {"activity": attrs.evolve(STILL, seconds=0.2), "idle_s": 0.3},
            ),
        ],
    )
    def test_busy_disk(self, is_stuck, changes):
        """
        Who ran in between was not kept by the kernel all the time.
        """
        (got,) = explain(rank(0, [USER], state="D", **changes))

        assert is_stuck is (Cause.UNINTERRUPTIBLE is got.cause)

    def test_main_thread_ended(self):
        """
        A process lives as long as one of its threads, also if nobody saw
        what that does.
        """
        main = ThreadStack(name="", frames=(), is_main=True, state="Z")
        other = ThreadStack(name="x", frames=(), thread_id=9, state="S")
        works = attrs.evolve(
            other, frames=tuple(StackFrame(*line) for line in SLEEP)
        )

        (unseen,) = explain(rank(0, threads=(main, other), state="Z"))
        (seen,) = explain(rank(0, threads=(main, works), state="Z"))

        assert Cause.UNKNOWN is unseen.cause
        assert "has ended its main thread, but not all" in unseen.summary
        assert Cause.SLEEPING is seen.cause
        assert "(its main thread has ended)" in seen.summary


class TestOutliers:
    def test_cause(self):
        """
        Who is not where the others wait has its own cause and line.
        """
        (got,) = explain(ranks([0, 1, 2], REDUCE, idle_s=42.0), rank(3, FETCH))

        assert (Cause.DATALOADER_WAIT, (3,)) == told(got)
        assert "train.py" == got.location.file
        assert (
            "rank 3 is waiting for data in load (train.py:12); ranks 0-2 are "
            "waiting in all_reduce, for 42 s at least"
        ) == got.summary
        assert "rank 3" == got.evidence[0].location
        assert "s" == got.evidence[0].source

    def test_unknown(self):
        """
        One whose code no rule knows has not arrived where the others wait.
        """
        (got,) = explain(ranks([0, 1], REDUCE), rank(2, [USER]))

        assert (Cause.RANK_NOT_ARRIVED, (2,)) == told(got)
        assert "possible" == got.confidence
        assert 40 == got.location.line


class TestOwnCauses:
    def test_rare_first(self):
        """
        What the fewest processes do comes first.
        """
        nap = [attrs.evolve(rank(None, SLEEP), pid=pid) for pid in (1, 2)]
        join = rank(None, [("join", "threading.py", 1)])

        got = explain(nap, attrs.evolve(join, pid=3))

        assert [Cause.FUTURE_WAIT, Cause.SLEEPING] == [f.cause for f in got]
        assert "pid 3" == got[0].evidence[0].location
        assert got[1].summary.startswith("processes 1, 2 are sleeping")

    def test_children(self):
        """
        Children are told by their parents; nothing known is nothing said.
        """
        child = rank(None, SLEEP, parent_pid=100)

        (got,) = explain(
            rank(0, FETCH),
            attrs.evolve(child, pid=2),
            attrs.evolve(rank(None, [USER]), pid=3),
        )

        assert Cause.DATALOADER_WAIT is got.cause
        assert () == explain()


class TestCommonWait:
    def test_everybody(self):
        """
        If all are there, nobody is missing.
        """
        (got,) = explain(ranks(range(4), REDUCE, world_size=4))

        assert (Cause.COLLECTIVE_WAIT, (0, 1, 2, 3)) == told(got)
        assert (
            "ranks 0-3 are waiting in all_reduce in train (train.py:40); "
            "no rank is missing"
        ) == got.summary
        assert "Flight Recorder" in got.remedy

    @pytest.mark.parametrize(
        ("lines", "cause"),
        [(REDUCE, Cause.COLLECTIVE_WAIT), (INIT, Cause.RENDEZVOUS_WAIT)],
    )
    def test_absent(self, lines, cause):
        """
        Ranks that were not seen are named.
        """
        (one,) = explain(ranks([0, 1, 3], lines, world_size=4))
        (two,) = explain(ranks([0, 3], lines, world_size=4))

        assert (cause, (0, 1, 3)) == told(one)
        assert one.summary.endswith("rank 2 of 4 was not seen")
        assert two.summary.endswith("ranks 1-2 of 4 were not seen")

    def test_other_callers(self):
        """
        Ranks that came to one line by different calls are in different ones.
        """
        average = [("all_reduce", C10D, 1), ("average", "train.py", 27)]
        mine = [*average, ("update_gen", "train.py", 62), USER]
        others = [*average, ("update_disc", "train.py", 66), USER]

        (got,) = explain(rank(1, mine), ranks([0, 2, 3], others))
        (even,) = explain(rank(1, mine), rank(0, others))
        (same,) = explain(ranks([0, 1], mine))

        assert (Cause.TYPE_MISMATCH, (1,)) == told(got)
        assert (
            "ranks 0-3 are waiting in all_reduce in average (train.py:27), but "
            "came there by different calls: rank 1 by update_gen (train.py:62), "
            "ranks 0,2-3 by update_disc (train.py:66)"
        ) == got.summary
        assert ("possible", "update_gen") == (
            got.confidence,
            got.location.function,
        )
        assert (0, 1) == even.ranks
        # A stack that was cut off has no line in which it differs.
        (cut,) = explain(rank(1, average), ranks([0, 2], others))
        assert cut.summary.endswith(
            "by different calls: ranks 0,2 by update_disc (train.py:66)"
        )
        assert Cause.COLLECTIVE_WAIT is same.cause

    def test_ended(self):
        """
        A rank that its launcher started on this node, and that is not there,
        is at fault; not so while another one works.
        """
        here = ranks([0, 1, 3], REDUCE, absent_peers=(2,))

        (got,) = explain(here)
        mine, other = explain(here[:2], rank(3, SLEEP))
        (busy,) = explain(here[:2], rank(3, SAVE))

        assert (Cause.DEAD, (2,), "likely") == (*told(got), got.confidence)
        assert (
            "rank 2 has no process on this node any more; ranks 0-1,3 are "
            "waiting in all_reduce in train (train.py:40)"
        ) == got.summary
        assert got.location is None
        assert (Cause.DEAD, (2,)) == told(mine)
        assert (Cause.SLEEPING, (3,)) == told(other)
        assert (Cause.CHECKPOINTING, (3,)) == told(busy)

    def test_absurd(self):
        """
        Nobody counts the ranks of a world that cannot be.
        """
        (got,) = explain(ranks([0], REDUCE, world_size=1 << 40))

        assert "not seen" not in got.summary

    def test_mismatch(self):
        """
        If one rank is in another call, it is named, as a suspect.
        """
        barrier = [("barrier", C10D, 1), ("save", "train.py", 55)]

        (got,) = explain(ranks([0, 1, 2], REDUCE), rank(3, barrier))
        (even,) = explain(ranks([0, 1], REDUCE), ranks([2, 3], barrier))
        (line,) = explain(
            ranks([0, 1], REDUCE),
            rank(2, [REDUCE[0], ("train", "train.py", 43)]),
        )

        assert (Cause.TYPE_MISMATCH, (3,), "possible") == (
            *told(got),
            got.confidence,
        )
        assert (
            "ranks are in different collectives: ranks 0-2 are waiting in "
            "all_reduce in train (train.py:40); rank 3 is waiting in barrier "
            "in save (train.py:55)"
        ) == got.summary
        assert 55 == got.location.line
        assert (0, 1, 2, 3) == even.ranks
        assert (2,) == line.ranks

    def test_fork(self):
        """
        Where ranks part in the user's code is what to look at.
        """
        save = [("barrier", C10D, 1), ("save", "train.py", 55)]
        loop = "main", "/me/train.py"

        (got,) = explain(
            ranks([0, 1, 2], [*REDUCE, (*loop, 9)]),
            rank(3, [*save, (*loop, 12)]),
        )

        assert got.remedy.startswith(
            "they part in main (train.py): rank 3 at line 12, rank 0 at line 9;"
        )

    def test_still_meeting(self):
        """
        Who still sets up a group is in no call of the others, who wait for it.
        """
        (got,) = explain(ranks([0, 1], INIT), rank(2, REDUCE))

        assert (Cause.RENDEZVOUS_WAIT, (0, 1)) == told(got)
        assert "; rank 2 is waiting in all_reduce" in got.summary

    def test_stages(self):
        """
        Stages of a pipeline differ rightly; peers of one stage do not.
        """
        receive = [("recv_forward", C10D, 1), USER]
        gather = [("all_gather", C10D, 1), USER]

        def place(pp, tp):
            return {"coordinates": (("pp", pp), ("tp", tp))}

        first = [rank(n, receive, **place(1, n)) for n in (0, 1)]
        second = [rank(n, REDUCE, **place(0, n)) for n in (2, 3)]
        parted = [
            rank(4, REDUCE, **place(2, 0)),
            rank(5, gather, **place(2, 1)),
        ]

        (fine,) = explain(first, second)
        (odd,) = explain(first, second, parted)

        assert (Cause.COLLECTIVE_WAIT, (2, 3)) == told(fine)
        assert (4, 5) == odd.ranks
        assert "different collectives" in odd.summary

    def test_wrappers(self):
        """
        The call is the one that the user made, not one inside it.
        """
        lines = [
            ("broadcast", C10D, 1),
            ("wrapper", "torch/distributed/c10d_logger.py", 1),
            ("broadcast_object_list", C10D, 2),
            ("wrapper", "torch/distributed/c10d_logger.py", 1),
            USER,
        ]
        wait = [
            ("__call__", "torch/_ops.py", 1),
            ("wait_tensor", "torch/distributed/_functional_collectives.py", 1),
            USER,
        ]

        (got,) = explain(rank(0, lines))
        (waits,) = explain(rank(0, wait))

        assert "waiting in broadcast_object_list in train" in got.summary
        assert "waiting in __call__ in train" in waits.summary


class TestProgress:
    def test_moving(self):
        """
        A job that moves is not stuck, whatever its stacks show.
        """
        (got,) = explain(ranks([0, 1], REDUCE, activity=MOVES))

        assert (Cause.PROGRESSING, ()) == told(got)
        assert (
            "ranks 0-1 are making progress: slow at most, not stuck"
            == got.summary
        )

    def test_straggler(self):
        """
        Whom the others wait for at every look is named.
        """
        (got,) = explain(
            ranks([0, 1, 2], REDUCE, activity=STAYS),
            rank(3, SLEEP, activity=STAYS),
        )
        (passing,) = explain(
            ranks([0, 1, 2], REDUCE, activity=STAYS),
            rank(3, SLEEP, activity=MOVES),
        )

        assert (Cause.PROGRESSING, (3,)) == told(got)
        assert got.summary.endswith(
            "the others wait for rank 3 in augment (data.py:7)"
        )
        assert () == passing.ranks


IDLE = [("recv_requests", "sglang/srt/managers/scheduler.py", 1)]
LOOP_OF_SERVER = ("event_loop_normal", "sglang/srt/managers/scheduler.py", 1)
RECEIVE = [("recv", C10D, 1), USER]
SEND = [("send", C10D, 1), USER]
NCCL = (GpuKernel(name="ncclDevKernel_AllReduce", device=0),)
OWN = (GpuKernel(name="flash_fwd_kernel", device=0),)
SPINS = attrs.evolve(STAYS, voluntary=0, cpu_s=1.9)
DRIVER = [("call", "driver.py", 3)]
WAITING = ranks([0, 1], REDUCE)
JUDGED = {
    # Whoever else is stuck is named after the dead.
    "dead and stuck": (
        ["dead 0", "sleeping 1"],
        [rank(0, state="X"), rank(1, SLEEP), *ranks([2, 3], REDUCE)],
    ),
    # A thread that ends first does not take the others with it.
    "ended": (
        ["collective_wait 0"],
        [attrs.evolve(rank(0, REDUCE), state="Z")],
    ),
    # An outlier that moves may be merely slow.
    "moving": (
        ["sleeping 2 possible"],
        [
            *ranks([0, 1], REDUCE, activity=STILL),
            rank(2, SLEEP, activity=MOVES),
        ],
    ),
    # What waits is blamed before what merely runs.
    "vague": (
        ["dataloader_wait 3 likely", "python_loop 2 possible"],
        [
            *WAITING,
            rank(2, [USER], state="R", owns_gil=True),
            rank(3, FETCH),
        ],
    ),
    # Who keeps the interpreter to itself comes before all others.
    "gil": (
        ["gil_contention 2", "dataloader_wait 3"],
        [
            *WAITING,
            rank(3, FETCH),
            rank(2, DRIVER, owns_gil=True, activity=STILL),
        ],
    ),
    # Collectives of NCCL are waited for at the GPU.
    "gpu of many": (
        ["dataloader_wait 7"],
        [*ranks(range(7), SYNC), rank(7, FETCH)],
    ),
    "gpu of few": (
        ["dataloader_wait 1", "gpu_sync_wait 0"],
        [rank(0, SYNC), rank(1, FETCH)],
    ),
    "gpu of one": (["gpu_sync_wait 2"], [*WAITING, rank(2, SYNC)]),
    "gpu of all": (["gpu_sync_wait 0,1"], ranks([0, 1], SYNC)),
    # A rank whose GPU runs something else than the others is the odd one.
    "kernel": (
        ["gpu_kernel 2"],
        [*ranks([0, 1], SYNC, kernels=NCCL), rank(2, SYNC, kernels=OWN)],
    ),
    # A rank without work, that others wait for, is an outlier, too; but not if
    # another one is busy.
    "idle": (["idle 2"], [*WAITING, rank(2, IDLE)]),
    "idle and busy": (
        ["sleeping 3"],
        [*WAITING, rank(2, IDLE), rank(3, SLEEP)],
    ),
    "idle is told last": (
        ["sleeping 1,2", "idle 0"],
        [rank(0, IDLE), *ranks([1, 2], SLEEP)],
    ),
    "all idle": (["idle 0,1"], ranks([0, 1], IDLE)),
    # A server that asks for requests again and again is idle.
    "server": (["idle 0,1"], ranks([0, 1], [LOOP_OF_SERVER], activity=MOVES)),
    # If all receive, nobody sends.
    "receive": (["p2p_deadlock 0,1 possible"], ranks([0, 1], RECEIVE)),
    # If all send first, nobody receives.
    "send": (["p2p_deadlock 0,1 possible"], ranks([0, 1], SEND)),
    "receives alone": (["collective_wait 0"], [rank(0, RECEIVE)]),
    # A job does not move if those that wait do not wake up.
    "stuck": (
        ["collective_wait 0,1,2"],
        [
            *ranks([0, 1], REDUCE, activity=STILL),
            rank(2, REDUCE, activity=MOVES),
        ],
    ),
    # Where nobody waits for others, who stands still is named.
    "some": (
        ["dataloader_wait 0"],
        [rank(0, FETCH, activity=STILL), rank(1, SLEEP, activity=MOVES)],
    ),
    # Who computes, and keeps nobody waiting, may be done in a moment.
    "spins": (
        ["python_loop 0 possible"],
        [rank(0, [USER], activity=SPINS, owns_gil=True)],
    ),
}


@pytest.mark.parametrize(("expected", "known"), JUDGED.values(), ids=JUDGED)
def test_judged(expected, known):
    """
    Those that are to blame are told, with their cause, in the right order.
    """
    found = [
        [f.cause.value, ",".join(map(str, f.ranks)), f.confidence]
        for f in explain(known)
    ]

    words = [text.split() for text in expected]
    assert words == [f[: len(w)] for f, w in zip(found, words, strict=True)]


class TestFamily:
    def worker(self, pid, lines, **changes):
        """
        A worker of the data loader of rank 0.
        """
        values = {"parent_pid": 100, "role": "dataloader", **changes}
        return attrs.evolve(rank(None, lines), pid=pid, **values)

    IDLE = (("get", "multiprocessing/queues.py", 1), LOOP)
    READS = (
        ("read", "urllib3/response.py", 1),
        ("read_shard", "data.py", 9),
        ("fetch", "torch/utils/data/_utils/fetch.py", 1),
        LOOP,
    )

    def test_worker(self):
        """
        What the worker of a data loader does is what its rank waits for.
        """
        (got,) = explain(
            rank(0, FETCH),
            ranks([1, 2], REDUCE),
            self.worker(7, self.IDLE),
            self.worker(8, self.READS),
        )

        assert (Cause.DATALOADER_WAIT, (0,)) == told(got)
        assert got.summary == (
            "rank 0 is waiting for data in load (train.py:12): its worker, "
            "process 8, is blocked on I/O in read_shard "
            "(data.py:9); ranks 1-2 are waiting in all_reduce"
        )
        assert "read_shard" == got.location.function
        assert any("read_shard" in e.quote for e in got.evidence)

    def test_workers_of_many(self):
        """
        Ranks whose workers are at the same line are told together.
        """
        reads = [
            self.worker(8, self.READS),
            self.worker(9, self.READS, parent_pid=101),
        ]

        (got,) = explain(ranks([0, 1], FETCH), *reads)

        assert got.summary == (
            "ranks 0-1 are waiting for data in load (train.py:12): a worker "
            "of each is blocked on I/O in read_shard (data.py:9)"
        )

    def test_threads_of_many(self):
        """
        So are ranks whose threads are at the same line.
        """
        join = (("join", "threading.py", 1), USER)
        sends = [
            ThreadStack(
                name=f"pool-{n}",
                frames=(StackFrame("upload", "/me/save.py", 4),),
                system_call=SystemCall(name="sendto"),
            )
            for n in range(2)
        ]

        (got,) = explain(
            [
                attrs.evolve(r, threads=(*r.threads, thread))
                for r, thread in zip(ranks([0, 1], join), sends, strict=True)
            ]
        )

        assert got.summary == (
            "ranks 0-1 are waiting for a thread each, which is blocked on "
            "I/O in upload (save.py:4)"
        )

    def test_dead_worker(self):
        """
        A worker that is gone is told before one that works.
        """
        (got,) = explain(
            rank(0, FETCH),
            self.worker(8, self.READS),
            self.worker(9, (), state="Z"),
        )

        assert "process 9, has ended" in got.summary
        assert "load" == got.location.function

    def test_idle_workers(self):
        """
        If all workers are idle, that is said.
        """
        (one,) = explain(rank(0, FETCH), self.worker(7, self.IDLE))
        (two,) = explain(
            rank(0, FETCH),
            self.worker(7, self.IDLE),
            self.worker(8, self.IDLE),
        )

        assert one.summary.endswith("although its worker is idle")
        assert two.summary.endswith("although its 2 workers are idle")

    def test_child(self):
        """
        Of another child, what it does is added.
        """
        waits = [("wait", "subprocess.py", 1), ("convert", "a.py", 3)]

        (got,) = explain(rank(0, waits), self.worker(7, SLEEP, role="child"))
        (silent,) = explain(
            rank(0, waits), self.worker(7, SLEEP, role="compile")
        )

        assert (Cause.SUBPROCESS_WAIT, "convert") == (
            got.cause,
            got.location.function,
        )
        assert "(its child, process 7, is sleeping in augment" in got.summary
        assert "child, process" not in silent.summary

    @pytest.mark.parametrize(
        ("activity", "waited_s", "cause"),
        [
            (MOVES, 30.0, Cause.PROGRESSING),
            (MOVES, 600.0, Cause.SUBPROCESS_WAIT),
            (MOVES, None, Cause.SUBPROCESS_WAIT),
            (STILL, 30.0, Cause.SUBPROCESS_WAIT),
        ],
        ids=["works", "for too long", "unknown", "is stuck"],
    )
    def test_child_that_works(self, activity, waited_s, cause):
        """
        A rank that waits for a child that goes on is slow at most, unless the
        others have waited for long.
        """
        waits = [("wait", "subprocess.py", 1), ("convert", "a.py", 3)]
        child = attrs.evolve(
            rank(None, [("encode", "a.py", 9)], activity=activity, state="R"),
            pid=7,
            parent_pid=102,
            role="child",
        )

        got = explain(
            ranks([0, 1], REDUCE, idle_s=waited_s), rank(2, waits), child
        )

        assert (cause, (2,)) == told(got[0])
        assert "is waiting for a child process in convert" in got[0].summary
        assert "possible" == got[0].confidence or activity is STILL

    @pytest.mark.parametrize(
        ("waited_s", "cause"),
        [(30.0, Cause.PROGRESSING), (600.0, Cause.NATIVE_SPIN)],
    )
    def test_native_code_that_returns(self, waited_s, cause):
        """
        So is one that runs native code which returns again and again.
        """
        svd = [("svd", "/x/site-packages/torch/_linalg_utils.py", 3), USER]
        busy = attrs.evolve(
            STILL, cpu_s=1.9, has_left=False, has_new_values=True
        )

        got = explain(
            ranks([0, 1], REDUCE, idle_s=waited_s),
            rank(2, svd, activity=busy, owns_gil=False),
        )

        assert (cause, "possible") == (got[0].cause, got[0].confidence)
        assert "native code, again and again" in got[0].summary

    def test_found_by_stack(self):
        """
        Without roles, workers and launchers are known by what they run.
        """
        worker = attrs.evolve(rank(None, self.READS), pid=7, parent_pid=100)
        lost = attrs.evolve(rank(None, self.READS), pid=8)
        agent = "torch/distributed/elastic/agent/server/api.py"
        launcher = attrs.evolve(
            rank(None, [("sleep", "x.py", 1), ("_invoke_run", agent, 1)]),
            pid=1,
        )
        started = attrs.evolve(rank(None, FETCH), parent_pid=1)

        (got,) = explain(worker, lost, launcher, started)
        (alone,) = explain(launcher)

        assert Cause.DATALOADER_WAIT is got.cause
        assert "process 7" in got.summary
        assert Cause.IDLE is alone.cause

    def test_titles(self):
        """
        Servers of models name their processes.
        """
        ask = [("get_response", "vllm/v1/executor/multiproc_executor.py", 1)]
        waits = [
            (
                "dequeue",
                "vllm/distributed/device_communicators/shm_broadcast.py",
                1,
            ),
            ("worker_busy_loop", "vllm/v1/executor/multiproc_executor.py", 1),
        ]
        engine = attrs.evolve(rank(None, ask), command="VLLM::EngineCore")
        worker = attrs.evolve(
            rank(None, waits), pid=5, command="VLLM::Worker_TP1_EP1"
        )

        (lost,) = explain(engine, worker)
        (idle,) = explain(worker)
        (alone,) = explain(engine)

        assert (Cause.FUTURE_WAIT, "possible") == (lost.cause, lost.confidence)
        assert "process 5 (TP1 EP1) is waiting for requests" in lost.summary
        assert Cause.IDLE is idle.cause
        assert Cause.FUTURE_WAIT is alone.cause

    def test_names(self):
        """
        Many processes without a rank are not all named.
        """
        known = [attrs.evolve(rank(None, SLEEP), pid=n) for n in range(1, 11)]

        (got,) = explain(known)
        (both,) = explain(known[:1], rank(3, SLEEP))

        assert "processes 1, 2, 3, 4, 5, 6, 7, 8, and 2 more are" in (
            got.summary
        )
        assert both.summary.startswith("rank 3 and process 1 are sleeping")


class TestJobs:
    def test_apart(self):
        """
        Jobs are judged apart, the stuck ones first.
        """
        fine = [
            attrs.evolve(p, job="a", pid=p.pid + 50)
            for p in ranks([0, 1], REDUCE, activity=MOVES)
        ]
        stuck = [
            attrs.evolve(p, job="b") for p in [rank(0, REDUCE), rank(1, SLEEP)]
        ]
        stray = attrs.evolve(rank(None, [USER]), pid=9)

        got = explain(fine, stuck, stray)

        assert [
            (Cause.SLEEPING, (1,)),
            (Cause.UNKNOWN, ()),
            (Cause.PROGRESSING, ()),
        ] == [told(f) for f in got]
        assert got[0].summary.startswith("job b: rank 1 is sleeping")
        assert got[1].summary.startswith("process 9")

    def test_made_up_name(self):
        """
        Of a name that nobody gave, the beginning is enough.
        """
        name = "0543c380-92f1-497e-9f15-4413041724f0 node1:29500"
        here, there = (
            [
                attrs.evolve(p, job=job, pid=p.pid + more)
                for p in (rank(0, REDUCE), rank(1, SLEEP))
            ]
            for job, more in (("a", 50), (name, 0))
        )

        got = explain(here, there)

        assert "job 0543c380 node1:29500: rank 1 is" in got[-1].summary
