"""
Reading what pystack, faulthandler, cuda-gdb, and py-spy wrote.
"""

from __future__ import annotations

import json

from pathlib import Path

import pytest

from distdebug.stacks import (
    StackFrame,
    merge_stacks,
    parse_kernels,
    parse_stacks,
    read_stacks,
)


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


def threads_of(text):
    """
    The threads of all processes.
    """
    return [t for process in parse_stacks(text) for t in process.threads]


class TestPystack:
    def test_threads(self):
        """
        Threads have their state; the main one does not begin in threading.
        """
        got = threads_of(PYSTACK)

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
        got = threads_of(PYSTACK)[0]

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
        (got,) = threads_of(
            "Traceback for thread 3 (p) [] (most recent call last):\n"
            '    (Python) File "/l/process.py", line 3, in _bootstrap\n'
        )

        assert got.is_main


SAMPLING = """\
=== rank 1 ===
Stack dump for PID 42, thread 42 (main thread, idle; most recent call last):
  File "train.py", line 20, in <module>
    main()
  File "train.py", line 12, in Trainer.fit
    batch = load_batch(i)

Stack dump, thread 50 (has GIL, on CPU; most recent call last):
  File "helper.py", line 9, in poll  opcode=CALL

Stack dump, thread 51 (waiting for GIL; most recent call last):
No Python frames
=== rank 0 ===
Stack dump for PID 43, thread 44 (task 140; most recent call last):
  File "serve.py", line 3, in handle

Stack dump, thread 44 (task 141; most recent call last):
  File "serve.py", line 8, in handle
"""


class TestSampling:
    """
    What ``python -m profiling.sampling dump`` prints since Python 3.15.
    """

    def test_processes(self):
        got = parse_stacks(SAMPLING)

        assert [(42, 1), (43, 0)] == [(p.pid, p.rank) for p in got]

    def test_threads(self):
        """
        Threads have their state; tasks of a thread are apart.
        """
        got = threads_of(SAMPLING)

        assert [
            ("", 42, True, False, False),
            ("", 50, False, True, False),
            ("", 51, False, False, True),
            ("task 140", 44, False, False, False),
            ("task 141", 44, False, False, False),
        ] == [
            (t.name, t.thread_id, t.is_main, t.owns_gil, t.waits_for_gil)
            for t in got
        ]

    def test_frames(self):
        """
        The innermost frame comes first, with its code.
        """
        main, poll, *_ = threads_of(SAMPLING)

        assert ["Trainer.fit", "<module>"] == [f.name for f in main.frames]
        assert "batch = load_batch(i)" == main.frames[0].code
        assert [("poll", 9)] == [(f.name, f.line) for f in poll.frames]


class TestFaulthandler:
    def test_threads(self):
        """
        Threads have the numbers of Python; the last one is the main one.
        """
        got = threads_of(FAULT)

        assert [
            ("worker", 0x7F3C040226C0, False),
            ("", 0x7F3C051BEB80, True),
        ] == [(t.name, t.thread_id, t.is_main) for t in got]

    def test_frames(self):
        """
        Frames of machine code come as a second stack.
        """
        got = threads_of(FAULT)[1]

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
        Several dumps in one text do not mix, and are in their order.
        """
        dump = "Timeout (0:00:10)!\nThread 0x{} (most recent call first):\n"

        *_, got = parse_stacks(dump.format(1) + dump.format(2))
        *_, again = parse_stacks(
            "Stack (most recent call first):\n"
            '  File "a.py", line 1 in f\n'
            "Stack (most recent call first):\n"
            '  File "a.py", line 2 in f\n'
        )

        assert [2] == [t.thread_id for t in got.threads]
        assert [1, 2] == [t.frames[0].line for t in again.threads]

    def test_nobody_is_main(self):
        """
        If all threads were begun by threading, the main one was cut off.
        """
        text = 'Thread 0x{} (most recent call first):\n  File "threading.py", line 1 in _bootstrap\n'

        got = threads_of(text.format(1) + text.format(2))

        assert [False, False] == [t.is_main for t in got]
        with pytest.raises(ValueError, match="no stack"):
            threads_of("nothing")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            TABLE,
            [
                ("render(n=3)", 0, (4801, 1, 1), (64, 1, 1)),
                ("void f<a, b>()", 1, (1, 1, 1), (32, 1, 1)),
            ],
        ),
        (CLUSTERS, [("gemm()", 2, (4, 1, 1), (64, 1, 1))]),
        (
            FOCUS,
            [
                ("wait<float>", 3, (8, 1, 1), (32, 1, 1)),
                ("kernel", 0, (), ()),
            ],
        ),
        (
            "  Kernel 0: flash_fwd<...> on device 1\n  Kernel 1: f\n",
            [("flash_fwd<...>", 1, (), ()), ("f", None, (), ())],
        ),
        ("No CUDA kernels.\n", []),
    ],
)
def test_kernels(text, expected):
    """
    Kernels are found in the list, in the focus, and as prose.
    """
    found = parse_kernels(text)

    assert expected == [(k.name, k.device, k.grid, k.block) for k in found]


def pyspy(*lines):
    """
    The frames that these lines of py-spy mean.
    """
    (process,) = parse_stacks(
        "\n".join(["Process 7: x", "Thread 7 (idle)", *lines])
    )
    (thread,) = process.threads
    return thread.frames


class TestPyspy:
    @pytest.mark.parametrize(
        ("line", "name", "is_native"),
        [
            ("f (a.py:3)", "f", False),
            ("<module> (/my train (2).py:7)", "<module>", False),
            ("f (a (b) c.py:1)", "f", False),
            ("operator() (libtorch_cpu.so)", "operator()", True),
            ("g<void (int)>::run (lib.so)", "g<void (int)>::run", True),
            ("call (callproc.c:943)", "call", True),
            ("get (ray/_raylet.pyx:91)", "get", False),
        ],
    )
    @pytest.mark.parametrize("indent", ["", "  ", "    ", "\t"])
    def test_frames(self, line, name, is_native, indent):
        """
        Brackets belong to the function, or to the file, as they match.
        """
        (got,) = pyspy(indent + line, indent + "  x: y (z.py:1)")

        assert (line, name, is_native) == (str(got), got.name, got.is_native)

    def test_abbreviated(self):
        """
        A file and its line may come first, as in documentation.
        """
        (got,) = pyspy("  torch/cuda/__init__.py:123 synchronize")

        assert "synchronize (torch/cuda/__init__.py:123)" == str(got)

    @pytest.mark.parametrize(
        "line", ["...", "f ()", "f) (", "(a.py:1)", "a)", "f", "(f))"]
    )
    def test_no_frames(self, line):
        """
        What is not a frame is left out.
        """
        assert () == pyspy("  " + line)

    def test_endless_line(self):
        """
        Of an endless line both ends are kept, and its name is cut.
        """
        (got,) = pyspy("    " + "f" * 10**6 + " (a.py:3)")

        assert StackFrame("f" * 4096, "a.py", 3) == got


class TestWantsGil:
    def waits(self, *names, is_python=False):
        """
        Whether a thread in these functions of machine code, innermost first,
        wants the lock.
        """
        frames = [{"name": n, "filename": "lib.so", "line": 0} for n in names]
        line = {"name": "f", "filename": "a.py", "line": 1}
        frames += [line] * is_python
        thread = {"pid": 1, "thread_id": 1, "frames": frames}
        (process,) = parse_stacks(json.dumps([thread]))
        return process.threads[0].waits_for_gil

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
        assert expected is self.waits(*names)

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            (["0x7f01", "pthread_cond_timedwait"], True),
            (["0x7f01", "pthread_cond_wait"], None),
            ([], None),
        ],
    )
    def test_python(self, names, expected):
        """
        Python itself waits with a time-out for nothing but the lock.
        """
        assert expected is self.waits(*names, is_python=True)


SAMPLES = Path(__file__).parents[2] / "data" / "stacks"


def sample(name):
    """
    The process in a file.
    """
    (process,) = parse_stacks((SAMPLES / name).read_text(), name)
    return process


class TestSamples:
    @pytest.mark.parametrize(
        ("name", "threads", "main", "owner", "waiters"),
        [
            ("pyspy_locals.txt", 3, "DS.read", [], []),
            ("pyspy_native.txt", 2, "clock_nanosleep", [], [3635]),
            ("pyspy_native.json", 2, "clock_nanosleep", [3630], [3635]),
            (
                "pystack_native.txt",
                2,
                "clock_nanosleep@GLIBC_2.2.5",
                [3630],
                [3635],
            ),
            ("pystack_locals.txt", 3, "__GI___libc_read", [], []),
            ("gdb_gil.txt", 2, "__GI___clock_nanosleep", [], [3635]),
            ("gdb_main.txt", 1, "__futex_abstimed_wait_common64", [], []),
            ("cudagdb_gloo.txt", 6, "??", [], []),
            ("pyspy_gloo.txt", 1, "0x7fdd530a3f16", [], []),
            ("faulthandler.txt", 3, "read", [], []),
        ],
    )
    def test_threads(self, name, threads, main, owner, waiters):
        """
        Every tool tells the main thread, and what it knows of the lock.
        """
        got = sample(name)

        assert threads == len(got.threads)
        assert main == got.main_thread.frames[0].name
        assert 1 == sum(t.is_main for t in got.threads)
        assert owner == [t.thread_id for t in got.threads if t.owns_gil]
        assert waiters == [t.thread_id for t in got.threads if t.waits_for_gil]

    @pytest.mark.parametrize(
        "name", ["pystack_locals.txt", "pyspy_locals.txt", "faulthandler.txt"]
    )
    def test_same_lines(self, name):
        """
        The tools agree on the lines of Python.
        """
        frames = sample(name).main_thread.frames

        lines = [
            (f.name.rpartition(".")[2], f.filename, f.line)
            for f in frames
            if not f.is_native
        ]

        assert [
            ("read", "/home/me/hang.py", 12),
            ("__getitem__", "/home/me/hang.py", 9),
            ("main", "/home/me/hang.py", 20),
            ("<module>", "/home/me/hang.py", 21),
        ] == lines

    def test_joined(self):
        """
        What py-spy and cuda-gdb saw of a rank of Gloo is one process.
        """
        names = ("pyspy_gloo.txt", "cudagdb_gloo.txt")

        (got,) = read_stacks(
            "\n".join((SAMPLES / name).read_text() for name in names)
        )

        assert (3632, "python gloo.py 0") == (got.pid, got.command)
        assert 6 == len(got.threads)
        assert (
            "  * <module> (gloo.py:12) → * train (gloo.py:11) →\n"
            "  all_reduce (torch/distributed/distributed_c10d.py:3252)"
        ) in str(merge_stacks([got]))
        everywhere = str(merge_stacks([got], threads="all"))
        assert "c10d::ProcessGroupGloo::runLoop" in everywhere
