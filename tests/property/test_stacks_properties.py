"""
Laws of reading, writing, and merging stacks.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from hypothesis import given
from hypothesis import strategies as st

from distdebug.stacks import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    merge_stacks,
    parse_stacks,
    stacks_to_json,
    stacks_to_text,
)


SAMPLES = sorted((Path(__file__).parents[1] / "data" / "stacks").iterdir())

numbers = st.integers(1, 2**31)
seconds = st.floats(0, 1e9)
maybe = st.none() | st.booleans()
words = st.text(max_size=8)
frames = st.builds(
    StackFrame, words, words, st.integers(0, 9999), is_native=st.booleans()
)
stacks = st.lists(frames, max_size=4).map(tuple)
threads = st.builds(
    ThreadStack,
    name=words,
    frames=stacks,
    thread_id=numbers,
    is_main=st.booleans(),
    active=maybe,
    owns_gil=maybe,
    waits_for_gil=st.booleans(),
    native=stacks,
    state=words,
    system_call=st.none() | st.builds(SystemCall, name=words, target=words),
    activity=st.none()
    | st.builds(
        ThreadActivity,
        seconds=seconds,
        voluntary=numbers,
        involuntary=numbers,
        cpu_s=seconds,
        has_moved=maybe,
        has_left=maybe,
    ),
    idle_s=st.none() | seconds,
)
processes = st.builds(
    ProcessStacks,
    pid=numbers,
    source=st.just(""),
    threads=st.lists(threads, max_size=3).map(tuple),
    rank=st.none() | numbers,
    world_size=st.none() | numbers,
    coordinates=st.lists(
        st.tuples(words, numbers), min_size=1, max_size=2
    ).map(tuple),
    role=words,
    job=words,
    host=st.none() | st.text(min_size=1, max_size=8),
    command=words,
    parent_pid=st.none() | numbers,
    state=words,
    tracer_pid=st.none() | numbers,
    kernels=st.lists(
        st.builds(
            GpuKernel,
            name=words,
            device=st.none() | numbers,
            grid=st.tuples(numbers, numbers, numbers),
        ),
        max_size=2,
    ).map(tuple),
    taken=st.none() | seconds,
)

# What lines of stacks are made of, in any order.
pieces = st.sampled_from(
    [
        "\n",
        "    ",
        "Process 7: ",
        "Thread 7 (idle)",
        ': "MainThread"',
        "f (a.py:3)",
        "Thread 1 (LWP 7):",
        "#0  0x1 in ",
        "f (x=1) ",
        "at a.c:3",
        "from lib.so",
        "Traceback for thread 7 [] (most recent call last):",
        '(Python) File "a.py", line 3, in f',
        "Current thread 0x7f (most recent call first):",
        'File "a.py", line 3 in f',
        "Timeout (0:00:01)!",
        "[rank3]: ",
        "3: ",
        "=== rank 3 ===",
        "  Kernel Parent Dev Grid Status",
        "* 0 - 0 1 Active 0x1 (1,1,1) (1,1,1) k()",
        "[Switching focus to CUDA kernel 0, grid 1, x, device 0, sm 0]",
        "[{",
        '"pid": 1',
        "\x1b[",
        "(",
        ")",
    ]
)


class TestReading:
    @given(process=processes)
    def test_json(self, process):
        """
        Writing and reading JSON is the identity.
        """
        assert (process,) == parse_stacks(stacks_to_json(process))

    @given(process=processes)
    def test_text(self, process):
        """
        Our own text is always that of one process.
        """
        got = parse_stacks(stacks_to_text(process))

        assert process.pid in {p.pid for p in got}

    @given(text=st.text() | st.lists(pieces | words, max_size=40).map("".join))
    def test_anything(self, text):
        """
        Whatever a text holds, it has stacks, or it is a value error.
        """
        try:
            got = parse_stacks(text)
        except ValueError:
            return

        assert got
        assert all(process.pid >= 0 for process in got)

    @pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.name)
    @given(data=st.data())
    def test_cut_off(self, file, data):
        """
        A file that was cut off, or torn, is read or is a value error.
        """
        text = file.read_text()
        start, stop = sorted(
            data.draw(st.integers(0, len(text))) for _ in range(2)
        )

        try:
            got = parse_stacks(text[:start] + text[stop:])
        except ValueError:
            return

        assert got


class TestMerging:
    @given(known=st.lists(processes, max_size=6))
    def test_ranks_are_conserved(self, known):
        """
        Every main thread with a stack ends at exactly one node.
        """
        tree = merge_stacks(known)

        ended = sorted(member for ends in tree.ends for member in ends)
        assert ended == [
            member
            for member, process in enumerate(known)
            if (main := process.main_thread) and (main.frames or main.native)
        ]

    @given(known=st.lists(processes, max_size=6))
    def test_members(self, known):
        """
        Who is at a node went through the node above it, and each process
        belongs to one class.
        """
        tree = merge_stacks(known, threads="all", background=True)

        for node, parent in enumerate(tree.parents):
            assert parent < node
            assert set(tree.ends[node]) <= set(tree.members[node])
            if parent >= 0:
                assert set(tree.members[node]) <= set(tree.members[parent])
        counted = sum(len(c.members) for c in tree.classes)
        assert counted == sum(node >= 0 for node in tree.mains)

    @given(known=st.lists(processes, max_size=4))
    def test_twice(self, known):
        """
        Merging everything twice gives the same nodes.
        """
        once, twice = merge_stacks(known), merge_stacks(known + known)

        assert once.frames == twice.frames
        assert attrs.asdict(once)["own"] == attrs.asdict(twice)["own"]
        assert str(once).isprintable() or "\n" in str(once)
