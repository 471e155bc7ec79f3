"""
What the stacks of all ranks say together.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.findings import Cause
from distdebug.stacks import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    explain_stacks,
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


class TestState:
    @pytest.mark.parametrize(
        ("cause", "changes", "words"),
        [
            (Cause.DEAD, {"state": "Z"}, "a zombie"),
            (Cause.DEAD, {"state": "X"}, "is gone"),
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
        So has one that no rule knows: that it is elsewhere is enough.
        """
        (got,) = explain(ranks([0, 1], REDUCE), rank(2, [USER]))

        assert (Cause.UNKNOWN, (2,)) == told(got)
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

        assert (Cause.COLLECTIVE_WAIT, (3,), "possible") == (
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
        assert "ranks 0-1 are moving: slow at most, not stuck" == got.summary

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
