"""
Whether a thread is stuck or slow, and whose code it is in.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.stacks import (
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    is_native,
)
from distdebug.stacks.motion import (
    Motion,
    is_running,
    motion_of,
    wakes_per_s,
)
from distdebug.stacks.places import last_name, user_frame, where


def watched(voluntary=0, cpu_s=0.0, involuntary=0, call="", **changes):
    """
    A thread that was watched for two seconds.
    """
    names = ("has_moved", "has_left", "has_returned")
    moved = {k: changes.pop(k, None) for k in names}
    return ThreadStack(
        name="",
        frames=(),
        system_call=SystemCall(name=call) if call else None,
        activity=ThreadActivity(
            seconds=2.0,
            voluntary=voluntary,
            involuntary=involuntary,
            cpu_s=cpu_s,
            **moved,
        ),
        **changes,
    )


MOTIONS = [
    # It was somewhere else.
    (Motion.MOVING, watched(has_left=True), None),
    (Motion.MOVING, watched(has_moved=True), None),
    # Another line of the same loop is no progress.
    (Motion.STILL, watched(has_moved=True, has_left=False), None),
    # Never ran, or only to look around.
    (Motion.STILL, watched(), None),
    (Motion.STILL, watched(voluntary=20, cpu_s=0.001), None),
    # Who is woken only by others was woken.
    (Motion.MOVING, watched(voluntary=4, cpu_s=0.001), 0),
    (Motion.STILL, watched(voluntary=1, cpu_s=0.0001), 0.6),
    (Motion.MOVING, watched(voluntary=1, call="wait4"), None),
    # It works whenever it wakes up.
    (Motion.MOVING, watched(voluntary=4, cpu_s=0.02), None),
    # Ran all the time, also where the processor is shared.
    (Motion.SPINNING, watched(cpu_s=1.9), None),
    (Motion.SPINNING, watched(cpu_s=0.2, involuntary=100), None),
    (Motion.SPINNING, watched(cpu_s=1.9, has_returned=False), None),
    # It would run, if it were let.
    (Motion.UNKNOWN, watched(cpu_s=0.01, involuntary=4, state="R"), None),
    (Motion.UNKNOWN, watched(cpu_s=0.01, state="R"), None),
    (
        Motion.MOVING,
        watched(cpu_s=0.01, has_left=False, has_returned=True, state="R"),
        None,
    ),
    (
        Motion.MOVING,
        watched(voluntary=1, cpu_s=0.6, involuntary=12, state="R"),
        None,
    ),
    (Motion.STILL, watched(cpu_s=0.01, involuntary=4, state="S"), None),
    # Ran, and nobody knows where before.
    (
        Motion.UNKNOWN,
        attrs.evolve(watched(cpu_s=1.9), frames=(StackFrame("f", "a.py", 1),)),
        None,
    ),
    # In the same functions by chance, as a recursion is.
    (
        Motion.MOVING,
        watched(cpu_s=1.9, has_left=False, has_returned=True),
        None,
    ),
    # Whoever only waits in a loop does not get on by that.
    (Motion.STILL, watched(has_left=False, has_returned=True), None),
    # Looked at once.
    (Motion.UNKNOWN, ThreadStack(name="", frames=()), None),
    (Motion.UNKNOWN, ThreadStack(name="", frames=(), idle_s=2.0), None),
    (Motion.STILL, ThreadStack(name="", frames=(), idle_s=900.0), None),
    (
        Motion.UNKNOWN,
        ThreadStack(name="", frames=(), idle_s=900.0, state="R"),
        None,
    ),
]


@pytest.mark.parametrize(("expected", "thread", "wakes"), MOTIONS)
def test_motion(expected, thread, wakes):
    """
    Switches and time on the processor tell the stuck from the slow.
    """
    assert expected is motion_of(thread, wakes)


@pytest.mark.parametrize(
    ("expected", "thread"),
    [
        (True, watched(cpu_s=1.9, state="S")),
        # Starved, or just woken up.
        (None, watched(cpu_s=0.01, state="R")),
        (False, watched(cpu_s=0.01, voluntary=9, state="R")),
        (True, watched(cpu_s=0.01, involuntary=4, state="R")),
        (True, watched(cpu_s=0.01, voluntary=2, involuntary=4, state="R")),
        (False, watched(cpu_s=0.01, voluntary=9, involuntary=12, state="R")),
        (False, watched(cpu_s=0.01, involuntary=4, state="S")),
        (True, watched(cpu_s=0.5, voluntary=9, state="R")),
        (False, watched(cpu_s=0.5, voluntary=9, call="read")),
        (False, ThreadStack(name="", frames=(), state="S", active=True)),
        (True, ThreadStack(name="", frames=(), active=True)),
        (
            True,
            ThreadStack(
                name="",
                frames=(),
                active=True,
                system_call=SystemCall(name="running"),
            ),
        ),
        (None, ThreadStack(name="", frames=())),
    ],
)
def test_running(expected, thread):
    """
    What was seen over time counts more than one moment.
    """
    assert expected is is_running(thread)


def test_rate():
    """
    Without a watch there is no rate.
    """
    assert 2.0 == wakes_per_s(watched(voluntary=4))
    assert 0.0 == wakes_per_s(ThreadStack(name="", frames=()))


@pytest.mark.parametrize(
    ("expected", "files"),
    [
        ("train.py", ["threading.py", "torch/nn/x.py", "train.py", "b.py"]),
        ("/me/a.py", ["/usr/lib/python3.12/queue.py", "/me/a.py"]),
        ("/x/queue.py", ["queue.py", "/x/queue.py"]),
        (
            "vllm/v1/worker/x.py",
            ["torch/cuda/__init__.py", "vllm/v1/worker/x.py", "<string>"],
        ),
        (
            "/opt/megatron-lm/megatron/core/x.py",
            [
                "/usr/lib/python3/dist-packages/torch/a.py",
                "/opt/megatron-lm/megatron/core/x.py",
            ],
        ),
        (
            "/x/site-packages/vllm/a.py",
            ["/x/site-packages/zmq/a.py", "/x/site-packages/vllm/a.py"],
        ),
        (
            "/me/run.py",
            ["/me/src/distdebug/debugger/inside/agent.py", "/me/run.py"],
        ),
        ("asyncio/a.py", ["libc.so.6", "asyncio/a.py", "numpy/b.py"]),
        ("libc.so.6", ["libc.so.6"]),
    ],
)
def test_user(expected, files):
    """
    The innermost line that a person can change is found, however little is
    left of the names of files.
    """
    frames = [StackFrame("f", name, 1) for name in files]

    assert expected == user_frame(frames).filename


def test_nowhere():
    """
    No stack is nowhere.
    """
    assert user_frame([]) is None
    assert where(None) is None


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("libtorch_cpu.so", True),
        ("libc.so.6", True),
        ("./nptl/futex-internal.c", True),
        ("python3.11", True),
        ("", True),
        ("a.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("notebook", False),
    ],
)
def test_native(filename, expected):
    """
    Files tell machine code, if the tool does not.
    """
    assert expected is is_native(StackFrame("f", filename, 0))


def test_last_name():
    """
    Classes and versions of symbols are no part of a name.
    """
    assert "run" == last_name("Thread.run")
    assert "read" == last_name("read@@GLIBC_2.2.5")
