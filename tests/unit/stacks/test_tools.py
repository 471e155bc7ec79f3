"""
Reading what pystack, faulthandler, cuda-gdb, and py-spy wrote.
"""

from __future__ import annotations

import pytest

from distdebug.stacks import (
    GpuKernel,
    StackFrame,
    parse_faulthandler,
    parse_kernels,
    parse_pystack,
)
from distdebug.stacks.formats import calls
from distdebug.stacks.formats.gil import wants_gil
from distdebug.stacks.formats.pyspy import header_of, read_thread


PYSTACK = """\
Traceback for thread 12 (pt main) [Waiting for the GIL] (most recent call last):
    (C) File "../clone3.S", line 81, in __clone3 (/usr/lib/libc.so.6)
    (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
        self._bootstrap_inner()
      Arguments:
        self: <Thread at 0x7f3c0490a990>
    (Python) File "/a b.py", line 6, in spin
    (C) File "Python/ceval_gil.h", line 1, in take_gil (inlined) (/l/python)
    (C) File "???", line 0, in ??? (/usr/lib/libffi.so.8)

Traceback for thread 11 (python) [Has the GIL,Garbage collecting] (most recent call last):
    (Python) File "/a b.py", line 9, in <module>

Traceback for thread 10 [] (most recent call last):
    (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap

The frame stack for thread 9 is empty
"""

FAULT = """\
Fatal Python error: Aborted

Thread 0x00007f3c040226c0 [worker] (most recent call first):
  File "/a b.py", line 6 in sleeper
  File "/usr/lib/python3.14/threading.py", line 982 in run
  File "/usr/lib/python3.14/threading.py", line 1002 in _bootstrap

Current thread 0x00007f3c051beb80 (most recent call first):
  Garbage-collecting
  File "<string>", line 12 in read
  File ???, line ??? in ???
  ...

Current thread's C stack trace (most recent call first):
  Binary file "/lib64/libpython3.14.so.1.0", at _Py_DumpStack+0x4c [0x7f0b]
  Binary file "/lib64/libc.so.6", at +0x11e964 [0x7f0b8f31e964]
  <truncated rest of calls>

Extension modules: numpy._core, torch._C (total: 2)
"""

TABLE = """\
  Kernel Parent Dev Grid Status   SMs Mask    GridDim BlockDim Invocation
*      5      -   0    6 Active 0x00000002 (4801,1,1) (64,1,1) render(n=3)
       6      5   1   -7 Active 0xff  (1, 1, 1) (32,1,1) void f<a, b>()

Thread 1 (LWP 3):
     9      -   1    7 Active 0xff (1,1,1) (32,1,1) not_in_the_table()
"""

CLUSTERS = """\
  Kernel Parent Dev Grid Status SMs Mask ClusterDim GridDim BlockDim Invocation
*      0      -   2    6 Active 0x00000002 (2,1,1) (4,1,1) (64,1,1) gemm()
"""

FOCUS = """\
CUDA Exception: Warp Illegal Address
[Current focus set to CUDA kernel 0, grid 9, block (17454,0,0), \
thread (0,0,0), device 3, sm 124, warp 0, lane 0]
#0  0x00007f31abb9f6d0 in void wait<float>(int*)<<<(8,1,1),(32,1,1)>>> ()
#1  0x00007f31abb9f6d1 in other ()
[Switching focus to CUDA kernel 1, grid 2, block (0,0,0), thread (0,0,0), \
device 0, sm 0]
#0  kernel () at k.cu:3
"""


def native(name):
    """
    A frame of machine code.
    """
    return StackFrame(name, "lib.so", 0, is_native=True)


class TestPystack:
    def test_threads(self):
        """
        Threads have their state; the main one does not begin in threading.
        """
        got = parse_pystack(PYSTACK)

        assert [
            ("pt main", 12, False, False, True),
            ("python", 11, True, True, None),
            ("", 10, False, False, None),
            ("", 9, False, None, None),
        ] == [
            (t.name, t.thread_id, t.is_main, t.owns_gil, t.waits_for_gil)
            for t in got
        ]

    def test_frames(self):
        """
        The innermost frame comes first, and says what kind it is.
        """
        got = parse_pystack(PYSTACK)[0]

        assert (
            StackFrame("??", "/usr/lib/libffi.so.8", 0, is_native=True),
            StackFrame("take_gil", "Python/ceval_gil.h", 1, is_native=True),
            StackFrame("spin", "/a b.py", 6),
            StackFrame("_bootstrap", "/usr/lib/python3.11/threading.py", 1002),
            StackFrame("__clone3", "../clone3.S", 81, is_native=True),
        ) == got.frames

    def test_process_that_multiprocessing_began(self):
        """
        The main thread of a child begins in a function of the same name.
        """
        (got,) = parse_pystack(
            "Traceback for thread 3 (p) [] (most recent call last):\n"
            '    (Python) File "/l/process.py", line 3, in _bootstrap\n'
        )

        assert got.is_main


class TestFaulthandler:
    def test_threads(self):
        """
        Threads have the numbers of Python; the last one is the main one.
        """
        got = parse_faulthandler(FAULT)

        assert [
            ("worker", 0x7F3C040226C0, False),
            ("", 0x7F3C051BEB80, True),
        ] == [(t.name, t.thread_id, t.is_main) for t in got]

    def test_frames(self):
        """
        Frames of machine code come as a second stack.
        """
        got = parse_faulthandler(FAULT)[1]

        assert (
            StackFrame("read", "<string>", 12),
            StackFrame("???", "", 0),
        ) == got.frames
        assert (
            StackFrame(
                "_Py_DumpStack",
                "/lib64/libpython3.14.so.1.0",
                0,
                is_native=True,
            ),
            StackFrame("??", "/lib64/libc.so.6", 0, is_native=True),
        ) == got.native

    def test_several_times(self):
        """
        Of several dumps in one text, the last one counts.
        """
        dump = "Timeout (0:00:10)!\nThread 0x{} (most recent call first):\n"

        got = parse_faulthandler(dump.format(1) + dump.format(2))
        again = parse_faulthandler(
            "Stack (most recent call first):\n"
            '  File "a.py", line 1 in f\n'
            "Stack (most recent call first):\n"
            '  File "a.py", line 2 in f\n'
        )

        assert [2] == [t.thread_id for t in got]
        assert [2] == [t.frames[0].line for t in again]

    def test_nobody_is_main(self):
        """
        If all threads were begun by threading, the main one was cut off.
        """
        text = 'Thread 0x{} (most recent call first):\n  File "threading.py", line 1 in _bootstrap\n'

        got = parse_faulthandler(text.format(1) + text.format(2))

        assert [False, False] == [t.is_main for t in got]
        assert () == parse_faulthandler("nothing")


class TestKernels:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (
                TABLE,
                (
                    GpuKernel(
                        name="render(n=3)",
                        device=0,
                        grid=(4801, 1, 1),
                        block=(64, 1, 1),
                    ),
                    GpuKernel(
                        name="void f<a, b>()",
                        device=1,
                        grid=(1, 1, 1),
                        block=(32, 1, 1),
                    ),
                ),
            ),
            (
                CLUSTERS,
                (
                    GpuKernel(
                        name="gemm()",
                        device=2,
                        grid=(4, 1, 1),
                        block=(64, 1, 1),
                    ),
                ),
            ),
            (
                FOCUS,
                (
                    GpuKernel(
                        name="wait<float>",
                        device=3,
                        grid=(8, 1, 1),
                        block=(32, 1, 1),
                    ),
                    GpuKernel(name="kernel", device=0),
                ),
            ),
            (
                "  Kernel 0: flash_fwd<...> on device 1\n  Kernel 1: f\n",
                (
                    GpuKernel(name="flash_fwd<...>", device=1),
                    GpuKernel(name="f"),
                ),
            ),
            ("No CUDA kernels.\n", ()),
        ],
    )
    def test_kernels(self, text, expected):
        """
        Kernels are found in the list, in the focus, and as prose.
        """
        assert expected == parse_kernels(text)


class TestPyspy:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("f (a.py:3)", StackFrame("f", "a.py", 3)),
            (
                "<module> (/my train (2).py:7)",
                StackFrame("<module>", "/my train (2).py", 7),
            ),
            (
                "operator() (libtorch_cpu.so)",
                StackFrame("operator()", "libtorch_cpu.so", 0, is_native=True),
            ),
            (
                "g<void (int)>::run (lib.so)",
                StackFrame("g<void (int)>::run", "lib.so", 0, is_native=True),
            ),
            (
                "call (callproc.c:943)",
                StackFrame("call", "callproc.c", 943, is_native=True),
            ),
            (
                "get (ray/_raylet.pyx:91)",
                StackFrame("get", "ray/_raylet.pyx", 91),
            ),
            (
                "torch/cuda/__init__.py:123 synchronize",
                StackFrame("synchronize", "torch/cuda/__init__.py", 123),
            ),
        ],
    )
    @pytest.mark.parametrize("indent", ["", "  ", "    ", "\t"])
    def test_frames(self, line, expected, indent):
        """
        Brackets belong to the function, or to the file, as they match.
        """
        title = header_of("Thread 7 (idle)")

        got = read_thread(title, [indent + line, indent + "  x: y (z.py:1)"])

        assert (expected,) == got.frames

    @pytest.mark.parametrize("line", ["...", "f ()", "f) (", "(a.py:1)", "a)"])
    def test_no_frames(self, line):
        """
        What is not a frame is left out.
        """
        got = read_thread(header_of("Thread 7 (idle)"), ["  " + line])

        assert () == got.frames


class TestWantsGil:
    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            (["__lll_lock_wait", "PyGILState_Ensure"], True),
            (["futex_wait", "take_gil@LIB", "PyEval_RestoreThread"], True),
            (["0x7f01", "__new_sem_wait", "PyEval_AcquireThread (x)"], True),
            (["take_gil"], True),
            (["PyEval_RestoreThread"], None),
            (["futex_wait", "PyThread_acquire_lock_timed"], None),
            (["futex_wait"] * 50 + ["take_gil"], None),
            ([], None),
        ],
    )
    def test_native(self, names, expected):
        """
        Who waits in a function that takes the lock wants it.
        """
        assert expected is wants_gil(map(native, names))

    @pytest.mark.parametrize(
        ("name", "expected"),
        [("pthread_cond_timedwait", True), ("pthread_cond_wait", None)],
    )
    def test_python(self, name, expected):
        """
        Python itself waits with a time-out for nothing but the lock.
        """
        frames = [native("0x7f01"), native(name), StackFrame("f", "a.py", 1)]

        assert expected is wants_gil(frames)
        assert wants_gil(frames[2:]) is None


class TestCalls:
    def test_shorten(self):
        """
        Endless lines keep both ends.
        """
        got = calls.shorten("a" + "b" * 10**6 + "c")

        assert calls.MOST_LINE == len(got)
        assert "ac" == got[0] + got[-1]
        assert "abc" == calls.shorten("abc")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("f(int) (lib.so)", ("f(int)", "lib.so")),
            ("f (a (b) c)", ("f", "a (b) c")),
            ("f", None),
            ("f)", None),
            ("(f))", None),
        ],
    )
    def test_brackets(self, text, expected):
        """
        The last pair of brackets is found, if there is one.
        """
        assert expected == calls.split_brackets(text)
