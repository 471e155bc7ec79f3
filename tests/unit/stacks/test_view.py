"""
What one process is doing: which thread tells, and who holds what.
"""

from __future__ import annotations

from functools import partial

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
from distdebug.stacks.explain import explain_process
from distdebug.stacks.motion import Motion


LIB = "/usr/lib/python3.11"
TORCH = f"{LIB}/site-packages/torch"
USER = ("train", "/home/me/train.py", 3)
REDUCE = ("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 9)
JOIN = ("join", f"{LIB}/threading.py", 1)
RAY = ("main_loop", "ray/_private/worker.py", 9)
RUN_ONCE = ("_run_once", f"{LIB}/asyncio/base_events.py", 1)
SELECT = ("select", f"{LIB}/selectors.py", 1)
CALLBACK = ("_run", f"{LIB}/asyncio/events.py", 84)
EVAL = ("_PyEval_EvalFrameDefault", "python3.11")


def frames(*lines):
    """
    Lines of a stack, innermost first.
    """
    return tuple(
        StackFrame(*line) if len(line) == 3 else StackFrame(*line, 0, True)
        for line in lines
    )


def thread(*lines, native=(), call=None, **changes):
    """
    A thread that is not the main thread.
    """
    if isinstance(call, str):
        call = SystemCall(name=call)
    return ThreadStack(
        name=changes.pop("name", ""),
        frames=frames(*lines),
        native=frames(*native),
        system_call=call,
        **changes,
    )


def main(*lines, **changes):
    """
    The main thread.
    """
    return thread(*lines, is_main=True, **changes)


def did(voluntary=0, cpu_s=0.0, **changes):
    """
    What became of a thread in two seconds.
    """
    return ThreadActivity(
        seconds=2.0,
        voluntary=voluntary,
        involuntary=changes.pop("involuntary", 0),
        cpu_s=cpu_s,
        **changes,
    )


def view(*threads, code="", **changes):
    """
    What a process with these threads is doing.
    """
    process = ProcessStacks(pid=1, source="s", threads=threads, **changes)
    return explain_process(process, read_line=lambda *_: code)


CALLS = [
    (Cause.SLEEPING, "clock_nanosleep", ""),
    (Cause.SLEEPING, "pause", ""),
    (Cause.SUBPROCESS_WAIT, "wait4", "process 3"),
    (Cause.LOCK_DEADLOCK, "flock", "/x"),
    (Cause.LOCK_DEADLOCK, "futex", ""),
    (Cause.QUEUE_WAIT, "msgrcv", ""),
    (Cause.IO_WAIT, "read", "pipe:[7]"),
    (Cause.IO_WAIT, "connect", "tcp 10.0.0.1:443"),
    (Cause.IO_WAIT, "openat", "/mnt/data"),
    (Cause.IO_WAIT, "poll", "tcp 10.0.0.1:443"),
    (Cause.GPU_SYNC_WAIT, "ioctl", "/dev/nvidia0"),
    (Cause.UNKNOWN, "ioctl", "/dev/tty"),
    (Cause.UNKNOWN, "running", ""),
]


@pytest.mark.parametrize(("cause", "name", "target"), CALLS)
def test_system_call(cause, name, target):
    """
    What the kernel was asked for tells more than a line that calls C.
    """
    call = SystemCall(name=name, target=target)

    got = view(main(USER, call=call))

    assert cause is got.cause


def test_target():
    """
    The file that does not come is named, and the call is quoted.
    """
    call = SystemCall(name="read", target="/mnt/data/shard")
    process = ProcessStacks(
        pid=1, source="", threads=(main(USER, call=call),), rank=0
    )

    (found,) = explain_stacks([process])

    assert "(read of /mnt/data/shard)" in found.summary
    assert found.evidence[0].quote.startswith("read(/mnt/data/shard) ← train")


NATIVE = [
    (Cause.COLLECTIVE_WAIT, "c10d::ProcessGroupGloo::AllreduceWork::wait"),
    (Cause.COLLECTIVE_WAIT, "ncclCommInitRank"),
    (Cause.COLLECTIVE_WAIT, "PMPI_Allreduce"),
    (Cause.RENDEZVOUS_WAIT, "c10d::TCPStore::doWait"),
    (Cause.LAUNCH_BLOCKED, "cudaLaunchKernel"),
    (Cause.LAUNCH_BLOCKED, "cuModuleLoadDataEx"),
    (Cause.GPU_SYNC_WAIT, "cuStreamSynchronize"),
    (Cause.GPU_SYNC_WAIT, "at::native::_local_scalar_dense_cuda"),
    (Cause.COMPILING, "nvrtcCompileProgram"),
    (Cause.SLEEPING, "clock_nanosleep"),
    (Cause.LOCK_DEADLOCK, "__lll_lock_wait"),
    (Cause.IO_WAIT, "__libc_read"),
    (Cause.SUBPROCESS_WAIT, "__GI___wait4"),
]


@pytest.mark.parametrize(("cause", "name"), NATIVE)
def test_native(cause, name):
    """
    Native functions tell what the innermost line of Python called.
    """
    inner = [("syscall", "libc.so.6"), (name, "x.so")]
    outer = [EVAL, ("cudaStreamSynchronize", "libcudart.so")]

    alone = view(main(*inner, *outer))
    mixed = view(main(*inner, USER, *outer))
    apart = view(main(USER, native=(*inner, *outer)))

    assert [cause] * 3 == [alone.cause, mixed.cause, apart.cause]


def test_quote():
    """
    The line that tells is quoted, however deep it is.
    """
    deep = ("load", f"{TORCH}/utils/data/dataloader.py", 5)
    above = [(f"f{n}", "/me/a.py", n + 1) for n in range(3)]

    near, far = view(main(*above, deep)), view(main(*above, USER, deep))

    assert near.quote.endswith(f"f2 (/me/a.py:3) ← {near.frame}")
    assert far.quote.endswith(f"f2 (/me/a.py:3) ← … ← {far.frame}")


MATCH = [("sre_ucs1_match", "_sre.so"), ("sre_search", "_sre.so"), EVAL]
STAYS = did(cpu_s=1.9, has_moved=False, has_left=False)


def test_quote_native():
    """
    What a second tool saw in native code is quoted beside the Python lines.
    """
    deep = [(f"g{n}", "x.so") for n in range(5)]
    spin = main(USER, native=MATCH, activity=STAYS)
    lock = main(USER, native=[*deep, ("ncclCommInitRank", "x.so"), EVAL])

    assert (
        "native: sre_ucs1_match ← sre_search ← train (/home/me/train.py:3)"
        == view(spin).quote
    )
    assert (
        "native: g0 ← g1 ← g2 ← … ← ncclCommInitRank ← …"
        " ← train (/home/me/train.py:3)" == view(lock).quote
    )


def test_native_function():
    """
    Of code that does not return the function is named, and nobody is sent
    to look for it again; without it, nothing is claimed.
    """
    nameless = [("??", ""), *MATCH]

    def said(native, **changes):
        process = ProcessStacks(
            pid=1,
            source="",
            threads=(main(USER, native=native, activity=STAYS, **changes),),
            rank=0,
        )
        return explain_stacks([process])[0]

    named, known = said(nameless), said([("long_add", "python3.11"), EVAL])
    plain = said([], owns_gil=False)

    assert (
        "rank 0 is running native code (sre_ucs1_match) that does not return"
        " in train (train.py:3)" == named.summary
    )
    assert "--native" not in named.remedy
    assert "is running Python code (long_add)" in known.summary
    assert (
        "rank 0 is in native code in train (train.py:3) at every look"
        == plain.summary
    )
    assert "possible" == plain.confidence
    assert "--native" in plain.remedy


def test_unknown_native():
    """
    Of code that no rule knows, native stacks are not asked for twice.
    """
    got = view(main(USER, native=[("f", "x.so"), EVAL]))

    assert Cause.UNKNOWN is got.cause
    assert "look at the code at this line" == got.remedy


def test_native_alone():
    """
    Without a line of Python there is no line of the user; the function is
    named instead.
    """
    process = ProcessStacks(
        pid=1,
        source="",
        threads=(
            main(
                ("__futex_abstimed_wait_common", ""),
                ("ncclCommInitRank", "x.so"),
            ),
        ),
    )

    (found,) = explain_stacks([process])

    assert Cause.COLLECTIVE_WAIT is found.cause
    assert found.location is None
    assert "(in ncclCommInitRank)" in found.summary
    assert "ncclCommInitRank" in found.evidence[0].quote


class TestThreads:
    def test_backward(self):
        """
        A backward pass runs in another thread; the line is the user's.
        """
        backward = (
            "_engine_run_backward",
            f"{TORCH}/autograd/graph.py",
            1,
        )

        alone = view(main(backward, USER))
        got = view(
            main(backward, USER),
            thread(("get", "queue.py", 1), ("run", "tqdm/_monitor.py", 2)),
            thread(REDUCE, ("hook", "deepspeed/runtime/engine.py", 2)),
        )

        assert (Cause.COLLECTIVE_WAIT, "possible") == (
            alone.cause,
            alone.confidence,
        )
        assert (Cause.COLLECTIVE_WAIT, "likely") == (
            got.cause,
            got.confidence,
        )
        assert "/home/me/train.py" == got.location.file
        assert "pid 1" == got.evidence[0].location

    def test_helpers(self):
        """
        Threads that work for others are left out; those that train are not.
        """
        work = thread(
            ("fetch", "/me/x.py", 1), name="pool", call="clock_nanosleep"
        )
        metrics = thread(("sleep", "/me/y.py", 1), name="wandb-upload")

        assert Cause.FUTURE_WAIT is view(main(JOIN, USER), metrics).cause
        assert Cause.IDLE is view(main(RAY), metrics).cause
        assert Cause.SLEEPING is view(main(RAY), work).cause

    def test_actor(self):
        """
        An actor that trains in a thread does not wait for work, although
        nothing is known of that thread.
        """
        got = view(main(RAY), thread(("fit", "/me/x.py", 5)))

        assert (Cause.UNKNOWN, 5) == (got.cause, got.location.line)

    def test_which(self):
        """
        Where no thread is marked, the one that began as a program tells.
        """
        helper = thread(
            ("get", "queue.py", 1),
            ("run", "tensorboard/summary/writer/event_file_writer.py", 2),
        )
        program = thread(REDUCE, ("<module>", "/me/train.py", 1))
        other = thread(REDUCE, USER)

        assert Cause.COLLECTIVE_WAIT is view(helper, program).cause
        assert Cause.COLLECTIVE_WAIT is view(helper, other).cause
        assert Cause.QUEUE_WAIT is view(helper).cause
        assert view(helper, helper) is None
        assert view() is None
        assert view(thread()) is None

    def test_import(self):
        """
        Who waits for a thread that waits for an import, waits for the import.
        """
        lock = ("acquire", "<frozen importlib._bootstrap>", 1)

        got = view(main(JOIN, USER), thread(lock, ("load", "/me/a.py", 1)))

        assert Cause.IMPORT_LOCK is got.cause

    def test_joined(self):
        """
        Who waits for a thread waits for what that waits for, at its line.
        """
        upload = thread(
            ("upload", "/me/ckpt.py", 20), call="connect", name="uploader"
        )
        shutdown = ("_shutdown", f"{LIB}/threading.py", 1)

        waits = view(main(JOIN, USER), upload)
        ends = view(main(shutdown), attrs.evolve(upload, name=""))

        assert (Cause.IO_WAIT, "upload") == (
            waits.cause,
            waits.location.function,
        )
        assert waits.doing == (
            "is waiting for its thread 'uploader', which is blocked in input "
            "or output"
        )
        assert "train" in waits.evidence[0].quote
        assert ends.doing.startswith("is waiting for a thread, which is bl")

    def test_joined_which(self):
        """
        Of several threads that may be meant, the one that is blocked is; if
        that is not clear, none is.
        """
        get = ("get", f"{LIB}/queue.py", 1)
        pump = thread(get, ("pump", "/me/log.py", 3))
        nap = thread(("sleep", "/me/nap.py", 3))
        read = thread(("read", "/me/data.py", 4), call="read")

        joins = partial(view, main(JOIN, USER))

        assert Cause.QUEUE_WAIT is joins(pump).cause
        assert Cause.IO_WAIT is joins(pump, nap, read).cause
        assert Cause.FUTURE_WAIT is joins(pump, nap).cause
        assert Cause.FUTURE_WAIT is joins(thread(JOIN, USER)).cause

    def test_asked(self):
        """
        Who waits for a result does not wait for a thread without work.
        """
        get = ("get", f"{LIB}/queue.py", 1)
        result = ("result", f"{LIB}/concurrent/futures/_base.py", 1)
        pump = thread(get, ("pump", "/me/log.py", 3))
        deep = thread(get, ("take", "/me/log.py", 3), ("work", "/me/a.py", 5))

        asks = partial(view, main(result, USER))

        assert Cause.FUTURE_WAIT is asks(pump).cause
        assert Cause.QUEUE_WAIT is asks(pump, deep).cause

    def test_joined_in_loop(self):
        """
        A callback that waits for a thread blocks its event loop.
        """
        read = thread(("read", "/me/data.py", 4), call="read")

        got = view(main(JOIN, USER, CALLBACK, RUN_ONCE), read)

        assert Cause.EVENT_LOOP_STALL is got.cause

    def test_other(self):
        """
        Of a thread that may be waited for, it is said what it does.
        """
        get = ("get", f"{LIB}/queue.py", 1)
        upload = thread(
            ("upload", "/me/ckpt.py", 20), call="connect", name="uploader"
        )

        waits = view(main(get, USER), upload)
        bare = view(main(get), upload)

        assert Cause.QUEUE_WAIT is waits.cause
        assert waits.note.startswith("(thread uploader is blocked in")
        assert waits.note.endswith("in upload (ckpt.py:20))")
        assert "train" == waits.location.function
        assert "upload" == bare.location.function
        assert "thread uploader" in waits.evidence[0].location

    def test_cut_off(self):
        """
        Without its main thread, threads that wait for work tell nothing.
        """
        begun = ("_bootstrap", f"{LIB}/threading.py", 1)
        poll = ("poll", "zmq/sugar/poll.py", 1)
        event = ("wait", f"{LIB}/threading.py", 1)
        library = f"{LIB}/site-packages/some_library/worker.py"
        serve = thread(poll, ("loop", "/me/mq.py", 3), begun)
        select = thread(SELECT, ("accept", "/me/mq.py", 3), begun)
        report = thread(event, ("_target", library, 1), begun)
        work = thread(
            poll, ("recv", "/me/a.py", 1), ("step", "/me/a.py", 3), begun
        )
        reduce = thread(REDUCE, begun)

        assert view(serve) is None
        assert view(serve, select, report) is None
        assert work == view(serve, report, work).thread
        assert reduce == view(serve, reduce).thread

    def test_diagnostics(self):
        """
        What looks after others is never the cause.
        """
        dump = thread(
            ("communicate", f"{LIB}/subprocess.py", 1),
            ("pyspy_dump_workers", "/me/tools.py", 2),
            ("_watchdog_loop", "/me/tools.py", 3),
            USER,
        )

        assert Cause.FUTURE_WAIT is view(main(JOIN, USER), dump).cause

    def test_driver(self):
        """
        A lock inside the driver is not told by the collective around it.
        """
        lock = ("pthread_rwlock_wrlock", "libc.so.6")
        driver = ("??", "/usr/lib/libcuda.so.1")
        group = ("ncclGroupEnd", "libnccl.so.2")

        blocked = view(thread(lock, driver, group))
        other = view(thread(lock, group))

        assert Cause.LAUNCH_BLOCKED is blocked.cause
        assert Cause.COLLECTIVE_WAIT is other.cause

    def test_only_kernels(self):
        """
        Of a process without a stack, a kernel on its GPU tells all.
        """
        process = ProcessStacks(
            pid=1, source="", threads=(), kernels=(GpuKernel(name="spin"),)
        )

        (got,) = explain_stacks([process])

        assert Cause.GPU_KERNEL is got.cause
        assert "process 1 is waiting for the kernel spin" == got.summary

    def test_cycle(self):
        """
        Threads that wait for locks wait for each other.
        """
        pay = thread(("pay", "/me/a.py", 1), call="futex")
        refund = thread(("refund", "/me/a.py", 2), call="futex")

        got = view(main(JOIN, USER), pay, refund, code="    with first:")
        unsure = view(main(JOIN, USER), pay, refund)
        alone = view(main(JOIN, USER), pay, code="with first:")
        moving = attrs.evolve(pay, activity=did(500, 0.01))

        assert "cycle of locks" == got.rule
        assert ("likely", "possible") == (got.confidence, unsure.confidence)
        assert "refund" in got.note
        assert Cause.LOCK_DEADLOCK is alone.cause
        assert "cycle of locks" != alone.rule
        assert "cycle of locks" != view(main(JOIN), moving, refund).rule

    def test_stopped_early(self):
        """
        A worker is told by the code that it was given.
        """
        fork = [
            ("_bootstrap", f"{LIB}/multiprocessing/process.py", 1),
            ("_launch", f"{LIB}/multiprocessing/popen_fork.py", 1),
            REDUCE,
        ]
        fetch = ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 1)
        loop = ("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 1)
        read = ("read", "/me/data.py", 5)

        plain = view(main(USER, *fork, call="read"))
        worker = view(
            main(read, fetch, loop, *fork, call="read"), role="dataloader"
        )
        idle = view(
            main(("get", f"{LIB}/multiprocessing/queues.py", 1), loop, *fork)
        )

        assert Cause.IO_WAIT is plain.cause
        assert (Cause.IO_WAIT, 5) == (worker.cause, worker.location.line)
        assert Cause.IDLE is idle.cause


class TestLoop:
    def test_stalled(self):
        """
        Whatever blocks in a callback blocks the event loop.
        """
        inner = [("handle", "/me/a.py", 7)]
        outer = [CALLBACK, RUN_ONCE, ("run", f"{LIB}/asyncio/runners.py", 1)]

        stalled = view(main(*inner, *outer, call="clock_nanosleep"))
        computing = view(main(*inner, *outer, active=True))
        waiting = view(main(REDUCE, *inner, *outer))

        assert (Cause.EVENT_LOOP_STALL, "likely") == (
            stalled.cause,
            stalled.confidence,
        )
        assert "it is sleeping" in stalled.doing
        assert (Cause.EVENT_LOOP_STALL, "possible") == (
            computing.cause,
            computing.confidence,
        )
        assert Cause.COLLECTIVE_WAIT is waiting.cause

    def test_uvloop(self):
        """
        A loop in native code is known by what is around it.
        """
        run = ("run", f"{LIB}/asyncio/runners.py", 1)

        idle = view(main(run, USER))
        stalled = view(main(("handle", "/me/a.py", 1), run, call="read"))

        assert Cause.EVENT_LOOP_IDLE is idle.cause
        assert Cause.EVENT_LOOP_STALL is stalled.cause
        assert Cause.EVENT_LOOP_IDLE is view(main(SELECT, RUN_ONCE)).cause


class TestRunning:
    def test_python(self):
        """
        A thread that stays in one function of Python is in a loop.
        """
        activity = did(0, 1.9, has_moved=True, has_left=False)

        got = view(main(USER, owns_gil=True, activity=activity))

        assert Cause.PYTHON_LOOP is got.cause

    def test_native_spin(self):
        """
        Native code runs without the lock, in libraries, or under its name.
        """
        stays = did(0, 1.9, has_moved=False, has_left=False)
        lib = ("svd", "numpy/linalg/_linalg.py", 1)
        quick = [("long_add", "python3.11"), EVAL]
        slow = [("sre_ucs1_match", "python3.11"), EVAL]

        assert [Cause.NATIVE_SPIN] * 4 == [
            view(main(USER, owns_gil=False, activity=stays)).cause,
            view(main(lib, active=True)).cause,
            view(main(USER, native=slow, active=True)).cause,
            view(main(("f", "libx.so"), active=True)).cause,
        ]
        assert Cause.PYTHON_LOOP is (
            view(main(USER, native=quick, active=True)).cause
        )

    @pytest.mark.parametrize(
        ("has_new", "motion", "doing"),
        [
            (True, Motion.MOVING, "is running native code, again and again"),
            (False, Motion.SPINNING, "is in native code"),
            (None, Motion.SPINNING, "is in native code"),
        ],
    )
    def test_native_code_that_returns(self, has_new, motion, doing):
        """
        Where variables change, native code returned, at the same line too.
        """
        busy = did(cpu_s=2.0, has_moved=False, has_new_values=has_new)

        got = view(main(USER, activity=busy, owns_gil=False))

        assert (Cause.NATIVE_SPIN, motion) == (got.cause, got.motion)
        assert doing in got.doing

    def test_native_code_seen_between_two_calls(self):
        """
        Who lets go of the lock at the same line calls native code there, and
        holds it for a moment between two calls.
        """
        busy = did(
            cpu_s=2.0, has_moved=False, has_new_values=True, has_let_go=True
        )
        alone = attrs.evolve(busy, has_let_go=False)

        got = view(main(USER, activity=busy, owns_gil=True))
        loop = view(main(USER, activity=alone, owns_gil=True))

        assert (Cause.NATIVE_SPIN, Motion.MOVING) == (got.cause, got.motion)
        assert (Cause.PYTHON_LOOP, Motion.SPINNING) == (
            loop.cause,
            loop.motion,
        )

    def test_line(self, tmp_path):
        """
        A line that is not in a loop, and lasts, is in native code.
        """
        file = tmp_path / "a.py"
        file.write_text("while a:\n    b += 1\nre.match(c, d)\n")
        stays = did(0, 1.9, has_moved=False, has_left=False)

        def cause(line):
            where = ("<module>", str(file), line)
            process = ProcessStacks(
                pid=1,
                source="",
                threads=(main(where, owns_gil=True, activity=stays),),
            )
            return explain_process(process).cause

        assert Cause.PYTHON_LOOP is cause(2)
        assert Cause.NATIVE_SPIN is cause(3)

    def test_gpu(self):
        """
        In a process with a GPU, the host turns until its GPU is done.
        """
        cuda = thread(name="cuda-EvtHandlr")
        conv = ("conv2d", f"{TORCH}/nn/functional.py", 1)
        waits = main(conv, call="futex")
        spins = main(USER, owns_gil=False, active=True)

        assert Cause.GPU_SYNC_WAIT is view(spins, cuda).cause
        assert Cause.GPU_SYNC_WAIT is view(waits, cuda).cause
        assert Cause.LOCK_DEADLOCK is view(waits).cause
        assert Cause.GPU_SYNC_WAIT is view(main(conv)).cause

    def test_moves(self):
        """
        Who waits in between does not turn in circles.
        """
        lib = ("svd", "numpy/linalg/_linalg.py", 1)

        got = view(
            main(lib, activity=did(3, 1.9, has_moved=False, has_left=False))
        )

        assert "MOVING" == got.motion.name


class TestGil:
    HELD = ("pause", "/me/driver.py", 4)

    def test_held(self):
        """
        A thread that waits with the lock keeps the others from running.
        """
        owner = thread(
            self.HELD, owns_gil=True, state="S", activity=did(), name="driver"
        )
        kept = main(USER, owns_gil=False, activity=did(380, 0.01))

        got = view(kept, owner)
        unsure = view(main(USER), attrs.evolve(owner, activity=None))

        assert (Cause.GIL_CONTENTION, "certain") == (
            got.cause,
            got.confidence,
        )
        assert "a thread (driver) that holds" in got.doing
        assert 4 == got.location.line
        assert Cause.GIL_CONTENTION is not (unsure and unsure.cause)

    def test_many(self):
        """
        All that wait are counted.
        """
        owner = main(self.HELD, owns_gil=True, state="S", activity=did())
        kept = [thread(USER, waits_for_gil=True, thread_id=n) for n in (2, 3)]

        got = view(owner, *kept)

        assert got.doing.startswith("holds the lock")
        assert "2 other threads wait for it" in got.doing

    def test_once(self):
        """
        One look tells who holds the lock, and not for how long.
        """
        holder = main(self.HELD, owns_gil=True)

        got = view(holder, thread(USER, waits_for_gil=True))

        assert (Cause.GIL_CONTENTION, "possible") == (
            got.cause,
            got.confidence,
        )

    def test_explained(self):
        """
        A wait that has a better name keeps it.
        """
        save = ("save", f"{TORCH}/serialization.py", 4)
        owner = main(save, USER, owns_gil=True, state="S", activity=did())

        assert Cause.CHECKPOINTING is view(owner).cause

    def test_convoy(self):
        """
        A thread that runs Python all the time keeps the main thread waiting.
        """
        hog = thread(USER, owns_gil=True, activity=did(300, 1.8))
        between = thread(
            USER,
            owns_gil=False,
            activity=did(0, 1.8, has_moved=True, has_left=False),
        )
        native = thread(USER, owns_gil=False, activity=did(0, 1.8))
        kept = main(USER, activity=did(400, 0.1), call="futex")
        busy = main(USER, activity=did(400, 1.5))
        once = thread(USER, owns_gil=True, active=True)
        asks = main(USER, waits_for_gil=True)

        assert Cause.GIL_CONTENTION is view(kept, hog).cause
        assert Cause.GIL_CONTENTION is view(kept, between).cause
        assert Cause.GIL_CONTENTION is view(asks, once).cause
        assert Cause.GIL_CONTENTION is not view(kept, native).cause
        assert Cause.GIL_CONTENTION is not view(busy, hog).cause

    @pytest.mark.parametrize(
        ("involuntary", "is_hog"), [(900, True), (20, False)]
    )
    def test_convoy_on_busy_machine(self, involuntary, is_hog):
        """
        Who gets little of a busy machine, but wants more, runs all the time.
        """
        runs = did(400, 0.15, involuntary=involuntary)
        hog = thread(USER, owns_gil=True, active=True, activity=runs)
        kept = main(USER, activity=did(500, 0.03), call="futex")

        got = view(kept, hog)

        assert is_hog == (Cause.GIL_CONTENTION is got.cause)

    def test_native_stacks(self):
        """
        Machine code tells who wants the lock, and by elimination who has it.
        """
        wants = [("__lll_lock_wait", ""), ("PyGILState_Ensure", "")]
        joins = [("pthread_join", ""), ("c10d::x::~x", "")]
        sleeps = [("clock_nanosleep", ""), ("time_sleep", "")]

        asks = view(main(*wants))
        holds = view(main(*joins, EVAL), thread(*wants, EVAL))
        lets_go = view(main(*sleeps, EVAL), thread(*wants, EVAL))
        moving = view(main(*wants, activity=did(1, 0.1, has_left=True)))

        assert (Cause.GIL_CONTENTION, "likely") == (
            asks.cause,
            asks.confidence,
        )
        assert (Cause.GIL_CONTENTION, "possible") == (
            holds.cause,
            holds.confidence,
        )
        assert Cause.SLEEPING is lets_go.cause
        assert Cause.GIL_CONTENTION is not moving.cause


class TestKernels:
    def explain(self, lines, *names):
        """
        The finding about a process whose GPU runs these kernels.
        """
        kernels = tuple(GpuKernel(name=n, device=0) for n in names)
        process = ProcessStacks(
            pid=1, source="", threads=(main(*lines),), kernels=kernels, rank=0
        )
        (found,) = explain_stacks([process])
        return found

    SYNC = ("synchronize", f"{TORCH}/cuda/__init__.py", 1)

    def test_kernel(self):
        """
        A kernel that the host waits for is named.
        """
        name = "void flash_fwd_kernel<Flash_traits<128>>(Params)"

        found = self.explain(
            [self.SYNC, USER], "ncclDevKernel_AllReduce", name
        )

        assert Cause.GPU_KERNEL is found.cause
        assert "flash_fwd_kernel<Flash_traits<128>> of device 0" in (
            found.summary
        )
        assert name in [e.quote for e in found.evidence]

    def test_nccl(self):
        """
        A kernel of NCCL waits for other ranks.
        """
        found = self.explain([self.SYNC, USER], "ncclDevKernel_AllReduce<1>")

        assert Cause.COLLECTIVE_WAIT is found.cause

    def test_innocent(self):
        """
        A host that waits for something else does not wait for its GPU.
        """
        reads = ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 1)

        found = self.explain([reads, USER], "k" * 200)

        assert Cause.DATALOADER_WAIT is found.cause

    def test_long(self):
        """
        An endless name is cut.
        """
        found = self.explain([self.SYNC, USER], "k" * 200)

        assert "k" * 80 + "…" in found.summary


ACQUIRE = ("acquire", f"{LIB}/threading.py", 1)
WAIT = ("wait", f"{LIB}/threading.py", 629)
WORK = ("work", "/home/me/work.py", 7)
RUN = ("run", "/home/me/work.py", 3)


@pytest.mark.parametrize("name", ["metrics", "telemetry_monitor", "x"])
def test_name_in_own_code(name):
    """
    A thread in code of the user is no helper merely because of its name.
    """
    got = view(main(ACQUIRE, USER), thread(ACQUIRE, WORK, RUN, name=name))

    assert "cycle of locks" == got.rule
    assert "and in work (work.py:7)" == got.note
    assert 1 == len(got.evidence)


def test_monitor_of_user():
    """
    One that is called a monitor, and waits for its turn, is one.
    """
    sleep = ("sleep", "/home/me/work.py", 7)

    got = view(main(JOIN, USER), thread(sleep, name="Monitor"))

    assert Cause.FUTURE_WAIT is got.cause
    assert not got.note


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("with lock:\n        time.sleep(9)\n", True),
        ("while True:\n        time.sleep(9)\n", False),
        ("", False),
    ],
    ids=["no loop", "loop", "unknown"],
)
def test_monitor_that_may_hold_a_lock(body, expected, tmp_path):
    """
    Who waits in no loop, while a lock is wanted, is told of.
    """
    script = tmp_path / "job.py"
    script.write_text(body and f"def flush():\n    {body}", "utf-8")
    lines = thread(("flush", str(script), 3), name="metrics-flush")

    got = explain_process(
        ProcessStacks(pid=1, source="s", threads=(main(ACQUIRE, USER), lines))
    )

    assert Cause.LOCK_DEADLOCK is got.cause
    assert expected == ("thread metrics-flush" in got.note)
    assert expected == bool(got.evidence)


class TestHealthy:
    def event(self, *lines, **changes):
        """
        A process whose main thread waits until this one wakes it.
        """
        return ProcessStacks(
            pid=1,
            source="s",
            rank=0,
            threads=(main(WAIT, USER), thread(*lines, name="w", **changes)),
        )

    def test_event_moves(self):
        """
        Who waits for a thread that works goes on when that does.
        """
        moves = did(5, 1.0, has_moved=True, has_left=True)

        (got,) = explain_stacks([self.event(WORK, RUN, activity=moves)])

        assert Cause.PROGRESSING is got.cause

    def test_event_works(self):
        """
        Otherwise the line where that thread works is told.
        """
        stays = did(0, 1.9, has_moved=True, has_left=False)
        busy = self.event(WORK, RUN, activity=stays, owns_gil=True)

        (got,) = explain_stacks([busy])

        assert Cause.PYTHON_LOOP is got.cause
        assert "possible" == got.confidence
        assert "work (work.py:7)" == got.location.brief
        assert "is waiting for its thread 'w', which is running" in got.summary

    def test_event_of_nobody(self):
        """
        A thread that only waits does not set an event.
        """
        still = did()

        (got,) = explain_stacks([self.event(JOIN, WORK, RUN, activity=still)])

        assert Cause.LOCK_DEADLOCK is got.cause

    @pytest.mark.parametrize("call", ["read", "fsync", ""])
    def test_reading_again_and_again(self, call):
        """
        Who reads and writes all the time is not blocked in it.
        """
        busy = did(0, 1.9, has_moved=False, has_left=False)

        got = view(
            main(USER, activity=busy, call=call or None),
            code="data = open(name).read()",
        )

        assert Cause.IO_WAIT is not got.cause

    def test_sleep(self):
        """
        How long a nap has lasted is told, if it is known.
        """
        sleep = ("sleep", "/home/me/work.py", 7)

        def said(idle_s):
            napping = main(sleep, USER, state="S", idle_s=idle_s)
            process = ProcessStacks(
                pid=1, source="s", threads=(napping,), rank=0
            )
            return explain_stacks([process])[0].summary

        assert said(4.2).endswith("in sleep (work.py:7), for 4 s at least")
        assert said(None).endswith("in sleep (work.py:7)")
