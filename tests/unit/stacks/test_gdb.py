"""
Reading what gdb wrote.
"""

from __future__ import annotations

import pytest

from distdebug.stacks import StackFrame, parse_stacks


def parse_gdb(text):
    """
    The threads of the only process.
    """
    (process,) = parse_stacks(text)
    return process.threads


def native(name, filename="", line=0):
    """
    A frame of machine code.
    """
    return StackFrame(name, filename, line, is_native=True)


def frames_of(*lines):
    """
    The frames of one thread.
    """
    title = 'Thread 2 (Thread 0x7f01 (LWP 12) "python"):'
    (thread,) = parse_gdb("\n".join([title, *lines]))
    return thread.frames


class TestThreads:
    @pytest.mark.parametrize(
        ("title", "name", "number", "is_main"),
        [
            ('Thread 3 (Thread 0x7f0 (LWP 31) "a (b"):', "a (b", 31, False),
            ("Thread 1 (Thread 0x7f0 (LWP 31)):", "", 31, True),
            ("Thread 1 (LWP 31):", "", 31, True),
            ("Thread 1 (process 31):", "", 31, True),
            ("Thread 1 (Thread 0x7f0a):", "", None, True),
            ("[Switching to thread 2 (Thread 0x7f0 (LWP 31))]", "", 31, False),
            ("[Switching to Thread 0x7f0 (LWP 31)]", "", 31, False),
            ("TID 31:", "", 31, False),
            ("Stack trace of thread 31:", "", 31, False),
            ("Thread N (Thread 0x... (LWP ...)):", "", None, False),
        ],
    )
    def test_titles(self, title, name, number, is_main):
        """
        Every generation of gdb, and its relatives, name threads in their way.
        """
        (got,) = parse_gdb(f"{title}\n#0  0x1 in read () from /lib/libc.so")

        assert (name, number, is_main) == (
            got.name,
            got.thread_id,
            got.is_main,
        )
        assert (native("read", "/lib/libc.so"),) == got.frames

    def test_without_title(self):
        """
        A stack that somebody pasted alone is a thread without a number.
        """
        (got,) = parse_gdb(
            "#0  __lll_lock_wait ()\n#1  PyGILState_Ensure ()\n"
        )

        assert (None, True) == (got.thread_id, got.waits_for_gil)

    def test_nothing(self):
        """
        Titles without frames are no threads.
        """
        text = "warning: x\nThread 1 (LWP 3):\nNo stack.\n"

        with pytest.raises(ValueError, match="no stack"):
            parse_gdb(text)

    def test_switching_repeats_the_first_frame(self):
        """
        Of the stacks below one title, the longest counts.
        """
        got = frames_of(
            "#0  0x1 in read () from /lib/libc.so",
            "(gdb) bt",
            "#0  0x1 in read () from /lib/libc.so",
            "#1  0x2 in main () at a.c:3",
        )

        assert ["read", "main"] == [frame.name for frame in got]

    def test_gpu(self):
        """
        What follows the focus on a kernel is no stack of a thread.
        """
        got = frames_of(
            "#0  0x1 in poll () from /lib/libc.so",
            "[Switching focus to CUDA kernel 0, grid 1, block (0,0,0), ...]",
            "#0  0x2 in kernel<<<(1,1,1),(1,1,1)>>> () at k.cu:1",
            "#1  0x3 in device () at k.cu:2",
        )

        assert ["poll"] == [frame.name for frame in got]


class TestFrames:
    @pytest.mark.parametrize(
        ("line", "name", "place"),
        [
            (
                "#0  0x7f in clock_nanosleep () from /lib/libc.so.6",
                "clock_nanosleep",
                "/lib/libc.so.6",
            ),
            (
                "#12 __sleep (seconds=<optimized out>) at ../sleep.c:55",
                "__sleep",
                "../sleep.c:55",
            ),
            ("#3  0x00007f in ?? ()", "??", ""),
            ("#3  0x00007f in ?? () from libcuda.so", "??", "libcuda.so"),
            ("#3  0x000055 in main ()", "main", ""),
            ("#3  <signal handler called>", "<signal handler called>", ""),
            (
                "#4  c10::Pool::loop(unsigned long) () from /x/libc10.so",
                "c10::Pool::loop(unsigned long)",
                "/x/libc10.so",
            ),
            (
                (
                    "#5  std::function<void (int)>::operator()(int) const "
                    "(this=0x1, s=\"a) at b\", c=40 '(') at /usr/include/f.h:688"
                ),
                "std::function<void (int)>::operator()(int) const",
                "/usr/include/f.h:688",
            ),
            (
                (
                    "#6  0x1 in (anonymous namespace)::f(int) [clone .isra.0] (x=1)"
                    " at a b (c)/x.cpp:3"
                ),
                "(anonymous namespace)::f(int) [clone .isra.0]",
                "a b (c)/x.cpp:3",
            ),
            (
                "#7  ncclFn () at /nccl/prims.h:128 in _ZN10P inlined from p.h:2",
                "ncclFn",
                "/nccl/prims.h:128",
            ),
            ("#8  0x0 in f () at file.cpp:line", "f", "file.cpp"),
            ("#9  0x0000 read", "read", ""),
            ("#9  (int)", "(int)", ""),
        ],
    )
    def test_kinds(self, line, name, place):
        """
        The function is found whatever is around it.
        """
        file, _, number = place.partition(":")

        assert (native(name, file, int(number or 0)),) == frames_of(line)

    def test_over_lines(self):
        """
        A frame may be spread over lines; code and variables are not part.
        """
        got = frames_of(
            "#0  __futex_abstimed_wait_common64",
            "    (private=0, cancel=true,",
            "    word=0xa5 <_PyRuntime+436>)",
            "    at ./nptl/futex-internal.c:57",
            "57\t./nptl/futex-internal.c: No such file or directory.",
            "        __value = 3",
            "#1  0x00007578d8031d57 in c10::Pool::loop(unsigned long) ()",
            "   from /usr/lib/libc10.so",
            "warning: something",
            "#2  0x0 in",
        )

        assert (
            native(
                "__futex_abstimed_wait_common64", "./nptl/futex-internal.c", 57
            ),
            native("c10::Pool::loop(unsigned long)", "/usr/lib/libc10.so"),
        ) == got[:2]

    def test_on_one_line(self):
        """
        Frames that were glued together when pasted are told apart.
        """
        got = frames_of(
            "#0  0x1 in wait (a=1,      b=2) at f.h:205       "
            "#1  0x2 in lambda()#1::run () at g.h:5   #2  main () at h.c:1"
        )

        assert ["wait", "lambda()#1::run", "main"] == [f.name for f in got]

    def test_python(self):
        """
        Frames of Python are read where gdb knows how to print them.
        """
        got = frames_of(
            "#0  0x2 in _PyEval_EvalFrameDefault (f=Frame 0x7f01, for file "
            "/app/train.py, line 12, in forward (self=<X(a=1) at remote 0x1>))"
            " at ceval.c:1",
            '  File "/app/train.py", line 3, in main',
        )

        assert (
            StackFrame("forward", "/app/train.py", 12),
            StackFrame("main", "/app/train.py", 3),
        ) == got

    def test_endless(self):
        """
        A frame of many lines ends at some point.
        """
        got = frames_of("#0  0x1 in f (", *["    a=1,"] * 1000, "#1  g ()")

        assert ["f (", "g"] == [frame.name[:3] for frame in got]
