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


@pytest.fixture
def fake(monkeypatch):
    """
    Makes a module that can be imported.
    """

    def make(name, **functions):
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


@pytest.fixture
def log(fake):
    """
    What a profiler would see by the package nvtx.
    """
    seen = []

    def begin(name):
        seen.append(f"begin {name}")
        return 7

    fake(
        "nvtx",
        push_range=lambda name: seen.append(f"push {name}"),
        pop_range=lambda: seen.append("pop"),
        start_range=begin,
        end_range=lambda number: seen.append(f"end {number}"),
    )
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

    @pytest.mark.parametrize(
        ("numbers", "expected"),
        [
            (range(1, 9), "1 2 3 start 4 5 stop 6 7 8"),
            ([4], "4 start"),
            ([5], "5"),
            ([3, 3, 4, 4], "3 start 3 4 4"),
            ([4, 9, 3, 4], "4 start 9 stop 3 4"),
            ([9, 3], "9 3 start"),
        ],
        ids=["in order", "resumed", "too late", "repeated", "again", "back"],
    )
    def test_steps(self, numbers, expected):
        """
        It starts at the first step and stops at the first one behind, once,
        also if a job resumes in the midst, or repeats steps.
        """
        calls = []
        profiler = self.profiler("3:5", calls)

        for number in numbers:
            calls.append(number)
            profiler(number)

        assert expected == " ".join(map(str, calls))

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

    @pytest.mark.process
    def test_exit(self):
        """
        The end of the process stops it, once.
        """
        code = (
            "from distdebug.nsight import StepProfiler\n"
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


def capture():
    """
    Start to capture, and stop.
    """
    with StepProfiler("1:2") as profiler:
        profiler.step(1)


class TestCapture:
    def torch(self, fake, *, has_cuda, **functions):
        """
        A torch with or without CUDA.
        """
        cuda = SimpleNamespace(
            is_available=lambda: has_cuda,
            cudart=lambda: SimpleNamespace(**functions),
        )
        fake("torch", cuda=cuda)

    def test_torch(self, fake):
        """
        A job that has torch with CUDA calls what torch has loaded.
        """
        calls = []
        self.torch(
            fake,
            has_cuda=True,
            cudaProfilerStart=lambda: calls.append("start"),
            cudaProfilerStop=lambda: calls.append("stop"),
        )

        capture()

        assert ["start", "stop"] == calls

    def test_library(self, monkeypatch):
        """
        Without torch, the library of CUDA is called, wherever it is found;
        what it lacks is left out.
        """
        calls = []
        library = SimpleNamespace(
            cudaProfilerStart=lambda: calls.append("start")
        )
        monkeypatch.setattr(ctypes, "CDLL", lambda path: library)

        capture()

        assert ["start"] == calls

    def test_nothing(self, fake, monkeypatch):
        """
        Without CUDA, nothing is called.
        """
        tried = []

        def none(path):
            tried.append(path)
            raise OSError(path)

        self.torch(fake, has_cuda=False)
        monkeypatch.setattr(ctypes, "CDLL", none)

        capture()

        assert "libcudart.so" in tried


class TestMarker:
    def torch(self, fake, **functions):
        """
        A torch that writes ranges by these functions.
        """
        fake("torch")
        fake("torch.cuda")
        fake("torch.cuda.nvtx", **functions)

    def test_torch(self, fake, log):
        """
        If the job has torch with CUDA, that writes the ranges.
        """
        seen = []
        self.torch(
            fake,
            range_push=seen.append,
            range_pop=lambda: seen.append("pop"),
            range_start=None,
            range_end=None,
        )

        for name in ("one", "two"):
            with nvtx(name):
                pass

        assert ["distdebug", "pop", "one", "pop", "two", "pop"] == seen
        assert [] == log

    def test_package(self, fake, log):
        """
        Otherwise the package nvtx does, if it is there.
        """

        def fail(name):
            msg = "NVTX functions not installed"
            raise RuntimeError(msg)

        self.torch(fake, range_push=fail)

        with nvtx("one"):
            pass

        assert ["push one", "pop"] == log


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
        A function keeps its signature, its name, and its result; without a
        name, the range has that of the function or method.
        """

        @nvtx("add")
        def add(a: int, *, b: int = 2) -> int:
            """
            Add.
            """
            return a + b

        class Model:
            @nvtx
            def forward(self):
                return self

        model = Model()
        assert (5, model) == (add(3), model.forward())
        assert ["push add", "pop"] == log[:2]
        assert log[2].endswith("Model.forward")
        assert "(a: 'int', *, b: 'int' = 2) -> 'int'" == str(
            inspect.signature(add)
        )
        assert ("add", "Add.") == (add.__name__, inspect.getdoc(add))

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

    @pytest.mark.parametrize("is_there", [False, True])
    def test_harmless(self, is_there, fake, monkeypatch):
        """
        Without anything that writes ranges, and with one that fails, code
        runs as before.
        """

        def fail(*args):
            raise RuntimeError

        names = ("push_range", "pop_range", "start_range", "end_range")
        fake("nvtx", **dict.fromkeys(names, fail))
        if not is_there:
            monkeypatch.setitem(sys.modules, "nvtx", None)

        @nvtx
        def double(x):
            with nvtx("inner"):
                return 2 * x

        @nvtx
        def count():
            yield from range(2)

        assert (6, [0, 1]) == (double(3), list(count()))
