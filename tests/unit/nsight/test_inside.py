"""
What does a worker do that is profiled?
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import subprocess
import sys

from types import ModuleType, SimpleNamespace

import pytest

from distdebug.errors import NsightError
from distdebug.nsight import StepProfiler, nvtx
from distdebug.nsight.inside import capture_range, marker, ranges
from distdebug.nsight.inside.capture_range import start_capture, stop_capture
from distdebug.nsight.inside.marker import Marker, find_marker


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """
    Nothing was found out yet, and the environment names no steps.
    """
    for function in (marker._of_torch, marker._of_package):
        function.cache_clear()
    capture_range._library.cache_clear()
    monkeypatch.delenv("NRL_NSYS_PROFILE_STEP_RANGE", raising=False)
    monkeypatch.delenv("DISTDEBUG_NSYS_PROFILE_STEP_RANGE", raising=False)


@pytest.fixture
def log(monkeypatch):
    """
    What a profiler would see.
    """
    seen = []

    def end(number):
        seen.append(f"end {number}")

    def begin(name):
        seen.append(f"begin {name}")
        return 7

    fake = Marker(
        lambda name: seen.append(f"push {name}"),
        lambda: seen.append("pop"),
        begin,
        end,
    )
    monkeypatch.setattr(ranges, "find_marker", lambda: fake)
    return seen


class TestStepProfiler:
    def profiler(self, steps, calls):
        """
        One that notes what it would call.
        """
        return StepProfiler(
            steps,
            start=lambda: calls.append("start"),
            stop=lambda: calls.append("stop"),
        )

    def test_steps(self):
        """
        It starts at the first step and stops at the first one behind.
        """
        calls = []
        profiler = self.profiler("3:5", calls)

        for number in range(1, 9):
            calls.append(number)
            profiler(number)

        assert [1, 2, 3, "start", 4, 5, "stop", 6, 7, 8] == calls

    @pytest.mark.parametrize(
        ("numbers", "expected"),
        [
            ([4], ["start"]),
            ([5], []),
            ([3, 3, 4, 4], ["start"]),
            ([4, 9, 3, 4], ["start", "stop"]),
            ([9, 3], ["start"]),
        ],
    )
    def test_any_order(self, numbers, expected):
        """
        A job that resumes in the midst, or repeats steps, is captured once.
        """
        calls = []
        profiler = self.profiler("3:5", calls)

        for number in numbers:
            profiler.step(number)

        assert expected == calls

    def test_block(self):
        """
        The end of the block stops it, also by an exception.
        """
        calls = []
        profiler = self.profiler("1:9", calls)

        def fail():
            profiler.step(1)
            assert profiler.is_capturing
            raise KeyError

        with pytest.raises(KeyError), profiler:
            fail()

        profiler.stop()
        assert ["start", "stop"] == calls
        assert not profiler.is_capturing

    def test_exit(self):
        """
        The end of the process stops it, once.
        """
        code = (
            "from distdebug.nsight.inside.steps import StepProfiler\n"
            "p = StepProfiler('1:9', start=lambda: print('start'), "
            "stop=lambda: print('stop'))\np(1)\np(2)\n"
        )

        for ending, expected in (("", 1), ("p.stop()", 1), ("1/0", 1)):
            got = subprocess.run(
                [sys.executable, "-c", code + ending],
                capture_output=True,
                text=True,
                timeout=60,
            ).stdout.split()
            assert ["start"] + ["stop"] * expected == got

    def test_environment(self, monkeypatch):
        """
        By default the environment names the steps; without any, none are.
        """
        calls = []
        self.profiler(None, calls).step(1)
        monkeypatch.setenv("DISTDEBUG_NSYS_PROFILE_STEP_RANGE", "1:2")
        self.profiler(None, calls).step(1)

        assert ["start"] == calls

    def test_wrong(self):
        """
        A range that is none is refused at once.
        """
        with pytest.raises(NsightError):
            StepProfiler("2:2")

    def test_harmless(self):
        """
        A profiler that fails does not fail the job.
        """

        def fail():
            raise RuntimeError

        profiler = StepProfiler("1:2", start=fail, stop=fail)
        profiler(1)
        profiler(2)

        assert not profiler.is_capturing


class TestCapture:
    def test_torch(self, monkeypatch):
        """
        A job that has torch with CUDA calls what torch has loaded.
        """
        calls = []
        cudart = SimpleNamespace(
            cudaProfilerStart=lambda: calls.append("start"),
            cudaProfilerStop=lambda: calls.append("stop"),
        )
        torch = ModuleType("torch")
        torch.cuda = SimpleNamespace(
            is_available=lambda: True, cudart=lambda: cudart
        )
        monkeypatch.setitem(sys.modules, "torch", torch)

        assert start_capture()
        assert stop_capture()
        assert ["start", "stop"] == calls

    def test_library(self, monkeypatch):
        """
        Without torch, the library of CUDA is called, wherever it is found.
        """
        calls = []
        library = SimpleNamespace(
            cudaProfilerStart=lambda: calls.append("start")
        )
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setattr(ctypes, "CDLL", lambda path: library)

        assert start_capture()
        assert not stop_capture()
        assert ["start"] == calls

    def test_nothing(self, monkeypatch):
        """
        Without CUDA, nothing is called.
        """

        def none(path):
            raise OSError(path)

        torch = ModuleType("torch")
        torch.cuda = SimpleNamespace(is_available=lambda: False)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(ctypes, "CDLL", none)

        assert not start_capture()
        assert not stop_capture()


class TestMarker:
    def fake(self, monkeypatch, name, **functions):
        """
        A module of this name.
        """
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    def test_torch(self, monkeypatch):
        """
        If the job has torch with CUDA, that writes the ranges.
        """
        seen = []
        self.fake(monkeypatch, "torch")
        self.fake(monkeypatch, "torch.cuda")
        module = self.fake(
            monkeypatch,
            "torch.cuda.nvtx",
            range_push=seen.append,
            range_pop=lambda: None,
            range_start=None,
            range_end=None,
        )

        assert find_marker().push == module.range_push
        assert find_marker() is find_marker()
        assert ["distdebug"] == seen

    def test_package(self, monkeypatch):
        """
        Otherwise the package nvtx does, if it is there.
        """

        def fail(name):
            msg = "NVTX functions not installed"
            raise RuntimeError(msg)

        self.fake(monkeypatch, "torch")
        self.fake(monkeypatch, "torch.cuda")
        self.fake(monkeypatch, "torch.cuda.nvtx", range_push=fail)
        names = ("push_range", "pop_range", "start_range", "end_range")
        self.fake(monkeypatch, "nvtx", **dict.fromkeys(names, print))

        assert Marker(print, print, print, print) == find_marker()

    def test_nothing(self, monkeypatch):
        """
        Where there is neither, nobody does.
        """
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setitem(sys.modules, "nvtx", None)

        assert find_marker() is None


class TestRanges:
    def test_block(self, log):
        """
        A block has its range, also within itself and if it fails.
        """
        block = nvtx("outer")
        with pytest.raises(ZeroDivisionError), block, block:
            1 / 0  # noqa: B018

        assert ["push outer", "push outer", "pop", "pop"] == log

    def test_function(self, log):
        """
        A function keeps its signature, its name, and its result.
        """

        @nvtx("add")
        def add(a: int, *, b: int = 2) -> int:
            """
            Add.
            """
            return a + b

        assert 5 == add(3)
        assert ["push add", "pop"] == log
        assert "(a: 'int', *, b: 'int' = 2) -> 'int'" == str(
            inspect.signature(add)
        )
        assert ("add", "Add.") == (add.__name__, inspect.getdoc(add))

    def test_own_name(self, log):
        """
        Without a name, it is the function's own; methods work as well.
        """

        class Model:
            @nvtx
            def forward(self):
                return self

        model = Model()
        assert model is model.forward()
        assert log[0].endswith("Model.forward")

    def test_exception(self, log):
        """
        The exception of a function gets out, and the range ends.
        """

        @nvtx
        def fail():
            raise KeyError

        with pytest.raises(KeyError):
            fail()

        assert "pop" == log[-1]

    def test_generator(self, log):
        """
        A generator has one range, and takes and gives all that it did.
        """

        @nvtx("g")
        def generate():
            try:
                got = yield 1
            except KeyError:
                got = "thrown"
            yield got
            return 3

        assert inspect.isgeneratorfunction(generate)
        first, second = generate(), generate()
        assert [] == log
        assert (1, 1) == (next(first), next(second))
        assert "sent" == first.send("sent")
        assert "thrown" == second.throw(KeyError())
        with pytest.raises(StopIteration) as caught:
            next(first)
        second.close()

        assert 3 == caught.value.value
        assert ["begin g", "begin g", "end 7", "end 7"] == log

    def test_coroutine(self, log):
        """
        An async function has one range, in which others may run.
        """

        @nvtx("c")
        async def wait(value):
            await asyncio.sleep(0)
            return value

        async def both():
            return await asyncio.gather(wait(1), wait(2))

        assert inspect.iscoroutinefunction(wait)
        assert [1, 2] == asyncio.run(both())
        assert ["begin c", "begin c", "end 7", "end 7"] == log

    def test_async_generator(self, log):
        """
        An async generator takes and gives all that it did, and is closed.
        """
        events = []

        @nvtx("a")
        async def stream():
            try:
                got = yield 1
                events.append(got)
                try:
                    yield 2
                except KeyError:
                    events.append("thrown")
                yield 3
            finally:
                events.append("closed")

        async def use():
            one = stream()
            got = [await one.__anext__(), await one.asend("sent")]
            got.append(await one.athrow(KeyError()))
            got.append([x async for x in one])
            two = stream()
            await two.__anext__()
            await two.aclose()
            return got

        assert inspect.isasyncgenfunction(stream)
        assert [1, 2, 3, []] == asyncio.run(use())
        assert ["sent", "thrown", "closed", "closed"] == events
        assert ["begin a", "end 7"] * 2 == log

    def test_nothing(self, monkeypatch):
        """
        Where nobody writes ranges, code runs as before.
        """
        monkeypatch.setattr(ranges, "find_marker", lambda: None)

        @nvtx
        def double(x):
            with nvtx("inner"):
                return 2 * x

        @nvtx
        def count():
            yield from range(2)

        assert 6 == double(3)
        assert [0, 1] == list(count())

    def test_harmless(self, monkeypatch):
        """
        A marker that fails does not fail the code.
        """

        def fail(*args):
            raise RuntimeError

        broken = Marker(fail, fail, fail, fail)
        monkeypatch.setattr(ranges, "find_marker", lambda: broken)

        @nvtx
        def one():
            return 1

        @nvtx
        def two():
            yield 2

        assert (1, [2]) == (one(), list(two()))
