"""
Choosing who is stopped for a moment, with stand-ins for the tools.
"""

from __future__ import annotations

import contextlib
import time

from types import SimpleNamespace

import attrs
import pytest

from distdebug.capture import deep
from distdebug.capture.attaching.cuda import CudaOutcome
from distdebug.capture.deep import look_deeper
from distdebug.capture.model import Attempt, CaptureStatus, ProcessCapture
from distdebug.errors import CaptureError
from distdebug.processes import Worker
from distdebug.stacks import GpuKernel, ProcessStacks, StackFrame, ThreadStack


WAITING = (StackFrame("all_reduce", "distributed_c10d.py", 1),)
READING = (StackFrame("read", "data.py", 7),)
NATIVE = (StackFrame("read", "libc.so.6", 0, is_native=True),)
KERNEL = GpuKernel(name="flash_fwd_kernel", device=0)


def process(rank, frames=WAITING):
    """
    A rank, and where its main thread is.
    """
    pid = 1000 + rank
    thread = ThreadStack(
        name="MainThread", frames=frames, thread_id=pid, is_main=True
    )
    worker = Worker(
        pid=pid,
        start_ticks=5,
        parent_pid=1,
        uid=0,
        title="python train.py",
        framework="torchrun",
        rank=rank,
    )
    stacks = ProcessStacks(
        pid=pid, source="py-spy", threads=(thread,), rank=rank, role="rank"
    )
    return ProcessCapture(
        worker=worker, status=CaptureStatus.OK, stacks=stacks
    )


@pytest.fixture
def tools(monkeypatch):
    """
    Tools that stop nobody, and see a main thread and another one.
    """
    log = SimpleNamespace(native=[], cuda=[], locked=0, threads=None)

    def threads(pid):
        main = ThreadStack(
            name="", frames=NATIVE, thread_id=pid, waits_for_gil=True
        )
        other = ThreadStack(name="watchdog", frames=NATIVE, thread_id=7)
        return (main, other)

    def native(pid, *, timeout_s, start_ticks):
        log.native.append(pid)
        return threads(pid), (Attempt(tool="gdb", status=CaptureStatus.OK),)

    def cuda(pid, *, timeout_s, start_ticks):
        log.cuda.append(pid)
        return CudaOutcome(
            threads=threads(pid),
            kernels=(KERNEL,),
            text="Kernel 0",
            attempts=(Attempt(tool="cuda-gdb", status=CaptureStatus.OK),),
        )

    @contextlib.contextmanager
    def lock(_):
        log.locked += 1
        yield

    monkeypatch.setattr(deep, "capture_native", native)
    monkeypatch.setattr(deep, "capture_cuda", cuda)
    monkeypatch.setattr(deep, "node_lock", lock)
    return log


def look(processes, *, native="none", cuda=False, left_s=60.0, tell=None):
    """
    Look deeper, within some time.
    """
    return look_deeper(
        processes,
        native=native,
        cuda=cuda,
        deadline=time.monotonic() + left_s,
        tell=tell or (lambda *_: None),
    )


class TestWho:
    def test_nobody(self, tools):
        """
        Who is not asked for is left alone, and nothing is locked.
        """
        processes = [process(0)]

        assert processes == look(processes)
        assert 0 == tools.locked

    def test_all(self, tools):
        """
        All of them, if it is asked for, one collector at a time.
        """
        look([process(rank) for rank in range(20)], native="all")

        assert [*range(1000, 1020)] == sorted(tools.native)
        assert 1 == tools.locked

    def test_classes(self, tools):
        """
        One of those that do the same, and everybody who stands apart.
        """
        processes = [process(rank) for rank in range(20)]
        processes[3], processes[4] = process(3, READING), process(4, READING)

        look(processes, native="classes")

        waiting, *apart = sorted(tools.native)
        assert 1000 == waiting
        assert [1003, 1004] == apart

    def test_not_everybody(self, tools):
        """
        If all stand apart, a few of them are enough.
        """
        frames = [(StackFrame(f"f{n}", "a.py", n),) for n in range(30)]

        look(
            [process(n, frames[n]) for n in range(30)],
            native="classes",
        )

        assert 8 == len(tools.native)

    def test_cuda(self, tools):
        """
        cuda-gdb looks at everybody, as its users know it.
        """
        look([process(rank) for rank in range(3)], cuda=True)

        assert [1000, 1001, 1002] == sorted(tools.cuda)
        assert [] == tools.native


class TestWhat:
    def test_native(self, tools):
        """
        Native frames are put beside those of Python, thread by thread.
        """
        (got,) = look([process(0)], native="all")

        main, other = got.stacks.threads
        assert (WAITING, NATIVE, True, True) == (
            main.frames,
            main.native,
            main.waits_for_gil,
            main.is_main,
        )
        assert ((), NATIVE, "watchdog") == (
            other.frames,
            other.native,
            other.name,
        )
        assert ["gdb"] == [a.tool for a in got.attempts]

    def test_kernels(self, tools):
        """
        Kernels and the text of cuda-gdb are kept.
        """
        (got,) = look([process(0)], cuda=True)

        assert (KERNEL,) == got.stacks.kernels
        assert "Kernel 0" == got.cuda_text

    def test_owner_of_gil(self, tools):
        """
        What py-spy knows about the interpreter lock is not forgotten.
        """
        before = process(0)
        (thread,) = before.stacks.threads
        owner = attrs.evolve(thread, owns_gil=True)
        before = attrs.evolve(
            before, stacks=attrs.evolve(before.stacks, threads=(owner,))
        )

        (got,) = look([before], native="all")

        assert got.stacks.threads[0].owns_gil

    def test_no_threads(self, tools, monkeypatch):
        """
        A tool that fails leaves what was known.
        """
        failed = Attempt(tool="gdb", status=CaptureStatus.TIMED_OUT)
        monkeypatch.setattr(
            deep, "capture_native", lambda *_, **__: ((), (failed,))
        )
        before = process(0)

        (got,) = look([before], native="all")

        assert before.stacks == got.stacks
        assert (failed,) == got.attempts

    def test_no_time_left(self, tools):
        """
        When the time is over, nobody is stopped any more.
        """
        (got,) = look([process(0)], native="all", left_s=-1.0)

        assert [] == tools.native
        assert CaptureStatus.TIMED_OUT is got.attempts[-1].status
        assert "more time" in got.attempts[-1].remedy

    def test_locked(self, tools, monkeypatch):
        """
        If another collector is at work, that is said, and nothing is lost.
        """
        before = process(0)

        def busy(_):
            msg = "another collector (pid 7) is at work"
            raise CaptureError(msg)

        monkeypatch.setattr(deep, "node_lock", busy)

        (got,) = look([before], native="all")

        assert before.stacks == got.stacks
        assert CaptureStatus.SKIPPED is got.attempts[-1].status
        assert "pid 7" in got.attempts[-1].detail

    def test_tell(self, tools):
        """
        It tells how far it is.
        """
        told = []

        look([process(0)], cuda=True, tell=lambda *what: told.append(what))

        assert [("cuda-gdb", 1, 1)] == told
