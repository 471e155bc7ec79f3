"""
Laws of explaining stacks.
"""

from __future__ import annotations

import time

import attrs

from hypothesis import given
from hypothesis import strategies as st

from distdebug.causes import Cause
from distdebug.stacks import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    explain_ranks,
    explain_stacks,
)


C10D = "torch/distributed/distributed_c10d.py"
LINES = (
    StackFrame("all_reduce", C10D, 9),
    StackFrame("recv", C10D, 9),
    StackFrame("init_process_group", C10D, 9),
    StackFrame("Queue.get", "queue.py", 9),
    StackFrame("get", "multiprocessing/queues.py", 9),
    StackFrame("_worker_loop", "torch/utils/data/_utils/worker.py", 9),
    StackFrame("_run", "asyncio/events.py", 9),
    StackFrame("join", "threading.py", 9),
    StackFrame("_engine_run_backward", "torch/autograd/graph.py", 9),
    StackFrame("train", "train.py", 9),
    StackFrame("take_gil", "python3.11", 0, is_native=True),
    StackFrame("_PyEval_EvalFrameDefault", "", 0, is_native=True),
    StackFrame("main_loop", "ray/_private/worker.py", 9),
)
maybe = st.none() | st.booleans()
words = st.text(max_size=6)
numbers = st.integers(0, 2**31)
times = st.floats(0, 1e6)
frames = st.lists(
    st.sampled_from(LINES)
    | st.builds(StackFrame, words, words, numbers, st.booleans()),
    max_size=6,
).map(tuple)
calls = st.builds(
    SystemCall,
    name=st.sampled_from(["futex", "read", "wait4", "running", "poll", "?"]),
    target=words,
)
activities = st.builds(
    ThreadActivity,
    seconds=times,
    voluntary=numbers,
    involuntary=numbers,
    cpu_s=times,
    has_moved=maybe,
    has_left=maybe,
)
threads = st.builds(
    ThreadStack,
    name=words,
    frames=frames,
    native=frames,
    thread_id=st.none() | numbers,
    is_main=st.booleans(),
    active=maybe,
    owns_gil=maybe,
    waits_for_gil=maybe,
    state=st.sampled_from(["", "R", "S", "D", "T", "Z", "?"]),
    system_call=st.none() | calls,
    activity=st.none() | activities,
    idle_s=st.none() | times,
)
processes = st.builds(
    ProcessStacks,
    pid=st.integers(0, 9),
    source=words,
    threads=st.lists(threads, max_size=3).map(tuple),
    rank=st.none() | st.integers(0, 9),
    world_size=st.none() | st.integers(-1, 2**40),
    coordinates=st.lists(
        st.tuples(st.sampled_from(["tp", "pp", ""]), st.integers(0, 3)),
        max_size=2,
    ).map(tuple),
    role=st.sampled_from(
        ["", "rank", "dataloader", "compile", "launcher", "server", "child"]
    ),
    host=st.none() | st.just("a"),
    command=st.sampled_from(["", "VLLM::Worker_TP0", "sglang::x", "python"]),
    parent_pid=st.none() | st.integers(0, 9),
    state=st.sampled_from(["", "R", "S", "D", "T", "t", "Z", "X", "?"]),
    tracer_pid=st.none() | numbers,
    kernels=st.lists(st.builds(GpuKernel, name=words), max_size=2).map(tuple),
    job=st.sampled_from(["", "a", "b"]),
)


@given(st.lists(processes, max_size=6))
def test_never_raises(known):
    """
    Whatever the stacks, there are findings or none, each with its words.
    """
    found = explain_stacks(known)

    ranks = {p.rank for p in known}
    for finding in found:
        assert finding.summary
        assert set(finding.ranks) <= ranks
        assert finding.cause in Cause


@given(st.lists(threads, max_size=3))
def test_threads(some):
    """
    The same of the threads of one process.
    """
    explain_ranks([ProcessStacks(pid=1, source="", threads=tuple(some))])


@given(st.lists(processes, max_size=6), st.randoms())
def test_order(known, random):
    """
    The order of distinct ranks does not matter to the verdict.
    """
    known = [
        attrs.evolve(p, rank=n, pid=n, role="rank", state="S", job="")
        for n, p in enumerate(known)
    ]
    mixed = random.sample(known, len(known))

    first, second = explain_stacks(known), explain_stacks(mixed)

    assert [(f.cause, f.ranks) for f in first] == [
        (f.cause, f.ranks) for f in second
    ]


def _job(size):
    """
    A job in which all ranks but one wait; each has eight threads.
    """
    helper = ThreadStack(name="pt_nccl_watchdg", frames=LINES[:1])
    outer = tuple(
        StackFrame(f"layer_{n}", f"/me/model_{n}.py", n) for n in range(20)
    )
    wait = ThreadStack(name="", is_main=True, frames=LINES[:1] + outer)
    late = ThreadStack(name="", is_main=True, frames=LINES[3:4] + outer)
    return [
        ProcessStacks(
            pid=n,
            source="",
            rank=n,
            world_size=size,
            threads=(late if n == 7 else wait, *[helper] * 7),
        )
        for n in range(size)
    ]


def _seconds(size):
    job = _job(size)
    start = time.perf_counter()
    (found,) = explain_stacks(job)
    assert (7,) == found.ranks
    return time.perf_counter() - start


def test_linear():
    """
    Eight times the ranks take some eight times as long.
    """
    small = min(_seconds(250) for _ in range(3))
    large = min(_seconds(2000) for _ in range(3))

    assert large / small < 16
