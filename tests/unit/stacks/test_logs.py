"""
Finding stacks in logs that were pasted.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.stacks import (
    explain_stacks,
    parse_stacks,
    read_stacks,
    stacks_to_json,
)


PLAIN = """\
Process 11: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 11 (idle): "MainThread"
    f (a.py:1)
"""


def prefixed(*prefixes):
    """
    The same stack from several sources, line by line.
    """
    return "\n".join(p + line for line in PLAIN.split("\n") for p in prefixes)


def facts(text):
    """
    What is known of each process in a text.
    """
    return [
        (p.pid, p.rank, p.host, [t.frames[0].name for t in p.threads])
        for p in parse_stacks(text)
    ]


class TestStreams:
    @pytest.mark.parametrize(
        ("prefixes", "expected"),
        [
            (("[rank0]: ", "[rank1]:"), [(0, None), (1, None)]),
            (("[Rank 3] ",), [(3, None)]),
            (("Rank 2: ",), [(2, None)]),
            (
                (
                    "\x1b[36m(Worker pid=8, ip=10.0.0.1)\x1b[0m ",
                    "(Worker rank=4 pid=9) ",
                ),
                [(None, "10.0.0.1"), (4, None)],
            ),
            (
                (
                    "(Trainer(rank=3) pid=8) ",
                    "(Worker_rank4 pid=9, ip=10.0.0.1) ",
                ),
                [(3, None), (4, "10.0.0.1")],
            ),
            (("[1,5]<stdout>:", "[1,6]<stderr>: "), [(5, None), (6, None)]),
            (("[1,5]<stddiag>:",), [(5, None)]),
            (("[default0]:", "[default1]:"), [(None, None), (None, None)]),
            (("worker-1  | ", "worker-2  | "), [(None, None), (None, None)]),
            (("[pod/w-0/main] ",), [(None, None)]),
            ((" 0: ", "11: "), [(0, None), (11, None)]),
            (("2026-11-20T10:00:00.123456789Z ",), [(None, None)]),
            (("[2026-11-20 10:00:00,123] [rank7]: ",), [(7, None)]),
            (("[10:00:00] ",), [(None, None)]),
            (("(EngineCore pid=28) INFO 08-12 03:34:43 [a.py:8] ",), None),
            (("> ",), [(None, None)]),
        ],
    )
    def test_prefixes(self, prefixes, expected):
        """
        Lines of each source are put together; who it is may be told.
        """
        got = facts(prefixed(*prefixes))

        assert [["f"]] * len(prefixes) == [names for *_, names in got]
        assert (expected or [(None, None)]) == [(r, h) for _, r, h, _ in got]

    def test_numbers_of_lines(self):
        """
        Numbers that do not occur again are those of lines.
        """
        lines = enumerate(PLAIN.splitlines())

        with pytest.raises(ValueError, match="no stack"):
            parse_stacks("\n".join(f"{n}: {line}" for n, line in lines))

    def test_name_of_the_actor(self):
        """
        Names of actors tell where in the mesh they are.
        """
        (got,) = parse_stacks(prefixed("(Worker_PP0_TP1 pid=3) "))

        assert (("pp", 0), ("tp", 1)) == got.coordinates


TEXTS = {
    # Names of nodes are believed only before lines of stacks.
    "hosts": (
        prefixed("node1: ", "node2: ").replace("node1: \n", ""),
        [(11, None, "node1", ["f"]), (11, None, "node2", ["f"])],
    ),
    # The prefix tells the process if the stack does not.
    "actor": (
        (
            "(Train pid=77) Thread 0x7f01 (most recent call first):\n"
            '(Train pid=77)   File "a.py", line 1 in f'
            " [repeated 3x across cluster]\n"
        ),
        [(77, None, None, ["f"])],
    ),
    # A task of Slurm with several processes is no rank.
    "task": (
        prefixed("0: ") + prefixed("0: ").replace("11", "12"),
        [(11, None, None, ["f"]), (12, None, None, ["f"])],
    ),
    # Children of a rank do not have its rank.
    "children": (
        prefixed("[rank4]: ") + prefixed("[rank4]: ").replace("11", "12"),
        [(11, 4, None, ["f"]), (12, None, None, ["f"])],
    ),
    # Pages and terminals leave their marks.
    "markup": (
        (
            "```\r\nProcess 11: x\r\n"
            "\x1b[1mThread 11 (idle): &quot;MainThread&quot;\x1b[0m\r\n"
            "    &lt;module&gt; (a.py:1)\r\n```\r\n"
        ),
        [(11, None, None, ["<module>"])],
    ),
    # Each heading holds for the process that follows.
    "headings": (
        (
            "=== rank 0 (pid 11) ===\n"
            'Thread 0x7f1 (idle): "MainThread"\n    all_reduce (c.py:2)\n'
            "=== rank 1, host node2 ===\nProcess 12: x\nRank 1 of 2\n"
            'Thread 12 (idle): "MainThread"\n    read (train.py:3)\n'
        ),
        [(11, 0, None, ["all_reduce"]), (12, 1, "node2", ["read"])],
    ),
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.values(), ids=TEXTS)
def test_whose(text, expected):
    """
    Number, rank, and node of each process are told by what is around it.
    """
    assert expected == facts(text)


BARE = 'Thread 0x7f0000000001 (idle): "MainThread"\n    f (a.py:1)\n'


class TestHeadings:
    def known(self, text, name=""):
        """
        What is known of the only process in a text.
        """
        (p,) = parse_stacks(text, name)
        facts = {
            "rank": p.rank,
            "world_size": p.world_size,
            "pid": p.pid,
            "host": p.host,
            "coordinates": p.coordinates,
        }
        return {k: v for k, v in facts.items() if v}

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("=== rank 3 ===", {"rank": 3}),
            ("=== rank 3 (tp rank 0, local rank 1) ===", {"rank": 3}),
            ("Rank 3 of 8", {"rank": 3, "world_size": 8}),
            (
                "## global_rank=3 (pid 42, host: n-1)",
                {"rank": 3, "pid": 42, "host": "n-1"},
            ),
            ("Pyspy dump for PID 309:", {"pid": 309}),
            ("== pid 12 ==", {"pid": 12}),
            ("Rank 2's backtrace:", {"rank": 2}),
            (
                "Stack dump for me    27  5.3  0.0 44 pts/0 Sl 03:50 ray::f",
                {"pid": 27},
            ),
            ("--- TP0 PP1 ---", {"coordinates": (("tp", 0), ("pp", 1))}),
            (
                "--- TP0 PP1 ---\nPyspy dump for PID 309:",
                {"coordinates": (("tp", 0), ("pp", 1)), "pid": 309},
            ),
            ("==> out/rank_3.txt <==", {"rank": 3}),
            ("$ py-spy dump --native --pid 42", {"pid": 42}),
            ("root@n1:/# gdb -p 42 -batch", {"pid": 42}),
            ("Stack of local_rank 0, rank 4", {"rank": 4}),
            (
                "=== Rank 3: http://n-1:41077/handler/dump_traceback? ===",
                {"rank": 3, "host": "n-1"},
            ),
            (
                "=== Rank 3: http://n1:7/handler/pyspy_dump?nonblocking=1 ===",
                {"rank": 3, "host": "n1"},
            ),
            (
                "Opening GPU coredump: core_17_node-1_42.nvcudmp",
                {"pid": 42, "host": "node-1"},
            ),
            # What a log says about ranks is not a heading.
            ("", {}),
            ("the main thread", {}),
            ("[Rank 3] Watchdog caught collective operation timeout", {}),
            ("Process 12 exited", {}),
            ("rank 3 " + "=" * 1000, {}),
        ],
    )
    def test_headings(self, line, expected):
        """
        Whatever says nothing but whose stack follows is a heading.
        """
        assert expected == self.known(f"{line}\n{BARE}")

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("/x/pyspy_node_7_42.txt", {"host": "node_7", "pid": 42}),
            ("cudagdb_n1_42.txt", {"host": "n1", "pid": 42}),
            ("rank_3.txt", {"rank": 3}),
            ("stack-rank007.bt", {"rank": 7}),
            ("trace-node5.out", {"host": "node5"}),
            ("pystack.42.txt", {"pid": 42}),
            ("n1_prefill_w0_pyspy_p1.txt", {"host": "n1"}),
            ("VLLM_STACK_DUMP_for_Worker_TP1_42.log", {"pid": 42}),
            ("frank3.txt", {}),
            ("notes.txt", {}),
            ("a" * 1000, {}),
        ],
    )
    def test_names_of_files(self, name, expected):
        """
        Names that programs give are understood, others are not.
        """
        assert expected == self.known(BARE, name)

    @pytest.mark.parametrize(
        ("title", "expected"),
        [
            ("sglang::scheduler_PP2_TP1", (("pp", 2), ("tp", 1))),
            ("python train.py --x TP1", ()),
        ],
    )
    def test_titles(self, title, expected):
        """
        Servers write into their titles where they are.
        """
        (got,) = parse_stacks(f"Process 7: {title}\n{BARE}")

        assert expected == got.coordinates

    @pytest.mark.parametrize(
        ("heading", "between", "expected"),
        [
            ("rank 1", 1, 1),
            ("rank 1", 9, None),
            ("Rank 1:", 9, 1),
            ("== rank 1", 9, 1),
        ],
    )
    def test_far_away(self, heading, between, expected):
        """
        What a program merely prints of its rank is soon forgotten.
        """
        text = f"{heading}\n" + "epoch\n" * between

        ((_, rank, _, _),) = facts(text + PLAIN)

        assert expected == rank

    def test_two_tools_below_one_heading(self):
        """
        A heading holds until the next one.
        """
        text = (
            "=== rank 1 (pid 12) ===\n"
            'Thread 12 (idle): "MainThread"\n    read (train.py:3)\n'
            "#0  0x1 in read () from libc.so\n#1  0x2 in main ()\n"
        )

        (got,) = parse_stacks(text)

        assert (12, 1) == (got.pid, got.rank)
        assert ["read"] == [f.name for f in got.threads[0].frames]


# What tools print, and the innermost functions of the threads of each process.
BEGINS = """
%% py-spy without the line of the process: f | g
Thread 1 (idle): "MainThread"
 f (a.py:1)
Thread 2 (idle): "MainThread"
 g (a.py:1)
%% gdb counts down to 1: a b | c d
Thread 2 (LWP 12):
#0  a ()
Thread 1 (LWP 11):
#0  b ()
Thread 3 (LWP 23):
#0  c ()
Thread 1 (LWP 21):
#0  d ()
%% gdb counts up: a b
Thread 1 (LWP 11):
#0  a ()
Thread 2 (LWP 12):
#0  b ()
%% gdb says which process it leaves: a | b
Attaching to process 7
#0  a ()
#1  main ()
[Inferior 1 (process 7) detached]
Attaching to process 8
#0  b ()
#1  main ()
%% threads without numbers: a b
#0  a ()
#1  x ()
thread two
#0  b ()
#1  x ()
%% gdb says where it stands before it lists threads: b a
#0  a ()
[Current thread is 1 (LWP 11)]
(gdb) x
Thread 2 (LWP 12):
#0  b ()
Thread 1 (LWP 11):
#0  a ()
%% gdb can print what Python does: f
(gdb) py-bt
Traceback (most recent call first):
  File "a.py", line 1, in f
    x()
%% gdb prints that of every thread: f g
Thread 2 (LWP 12):
Traceback (most recent call first):
  File "a.py", line 1, in f
    x()
Thread 1 (LWP 11):
Traceback (most recent call first):
  File "a.py", line 1, in g
    x()
%% pytest-timeout: g main
~~~~ Stack of IO loop (14013) ~~~~
  File "a.py", line 1, in f
    g()
  File "a.py", line 1, in g
    h()
~~~~ Stack of MainThread (14014) ~~~~
  File "a.py", line 1, in main
%% pystack ends with the main thread: f | g
Traceback for thread 3 [] (most recent call last):
(Python) File "a.py", line 1, in <module>
(Python) File "a.py", line 1, in f
Traceback for thread 4 [] (most recent call last):
(Python) File "a.py", line 1, in g
%% faulthandler ends with the main thread: f | g | h
Thread 0x1 (most recent call first):
  File "a.py", line 1 in f
  File "a.py", line 1 in <module>
Thread 0x2 (most recent call first):
  File "a.py", line 1 in g
Fatal Python error: Aborted

Current thread 0x3 (most recent call first):
  File "a.py", line 1 in h
%% faulthandler begins anew: g
Timeout (0:00:01)!
Thread 0x1 (most recent call first):
  File "a.py", line 1 in f
Timeout (0:00:01)!
Thread 0x1 (most recent call first):
  File "a.py", line 1 in g
"""


@pytest.mark.parametrize("case", BEGINS.split("\n%% ")[1:])
def test_where_one_begins(case):
    """
    Where no line says it, the order of the threads does.
    """
    title, _, text = case.partition("\n")
    processes = title.partition(": ")[2].split(" | ")

    got = parse_stacks(f"{text}\n")

    assert [p.split() for p in processes] == [
        [t.frames[0].name for t in p.threads] for p in got
    ]


class TestProcesses:
    def test_log_of_sglang(self):
        """
        The watchdog of a server writes among other lines.
        """
        text = "\n".join(
            f"sglang-1  | {line}"
            for line in (
                "    _bootstrap (threading.py:1032)",
                "[2025-10-29 11:25:58 TP3] Watchdog timeout (limit=300)",
                "[2025-10-29 11:25:58 TP6] Pyspy dump for PID 309:",
                "Process 309: sglang::scheduler_TP6",
                "Python v3.12.12 (/usr/bin/python3.12)",
                "",
                'Thread 309 (active): "MainThread"',
                "    _apply (penaltylib/min_new_tokens.py:78)",
                "",
                "    verify (eagle_worker.py:674)",
            )
        )

        (got,) = parse_stacks(text)

        assert (309, (("tp", 6),)) == (got.pid, got.coordinates)
        assert ["_apply", "verify"] == [f.name for f in got.threads[0].frames]

    def test_kernels_alone(self):
        """
        A process may be known by what its GPU runs.
        """
        (got,) = parse_stacks(
            "Attaching to process 7\n  Kernel 0: flash_fwd on device 0\n"
        )

        assert (7, ()) == (got.pid, got.threads)
        assert ["flash_fwd"] == [kernel.name for kernel in got.kernels]

    def test_core_of_a_gpu(self):
        """
        The name of the core tells the process, the focus tells the kernel.
        """
        (got,) = parse_stacks(
            "Opening GPU coredump: core_17_node-1_42.nvcudmp\n\n"
            "CUDA Exception: Warp Illegal Address\n"
            "The exception was triggered at PC 0x5ff3bb8 (k.cu:14)\n"
            "[Current focus set to CUDA kernel 0, grid 3, block (0,0,0), "
            "thread (32,0,0), device 2, sm 0, warp 1, lane 0]\n"
            "#0  0x0000000005ff3d30 in f () at k.cu:14\n"
        )

        assert (42, "node-1", ()) == (got.pid, got.host, got.threads)
        assert [("f", 2)] == [(k.name, k.device) for k in got.kernels]

    @pytest.mark.parametrize(
        "text",
        [
            "RuntimeError: CUDA error: Kernel launch failed\n",
            "Attaching to process 7\nptrace: Operation not permitted.\n",
            "=== rank 3 ===\n",
            "Thread 1 (LWP 7):\n",
        ],
    )
    def test_no_stack(self, text):
        """
        A log that only speaks of such things holds no stack.
        """
        with pytest.raises(ValueError, match="no stack of a known tool"):
            parse_stacks(text)

    def test_numbers(self):
        """
        Processes without a number are counted, past those that have one.
        """
        bare = 'Thread 0x{}00000000 (idle): "MainThread"\n f (a.py:1)\n'
        text = "Process 1: x\n" + bare.format(1)

        got = read_stacks([bare.format(2), text, bare.format(3)])

        assert [0, 1, 2] == [process.pid for process in got]


class TestByHand:
    """
    Stacks that people shortened, or wrote beside.
    """

    def test_remarks(self):
        """
        What somebody wrote beside a line is no part of it.
        """
        text = (
            'Thread 0x1F9 (active): "MainThread"     <- stuck, says "top"\n'
            "    close (audio/__init__.py:500)      <- a call (in C)\n"
            "    ...\n"
            "    spin(int) (lib.so)   # why?\n"
            "    on_message (SERVER:1136)  // the handler\n"
        )

        ((thread,),) = (p.threads for p in parse_stacks(text))

        assert "MainThread" == thread.name
        assert [
            "close (audio/__init__.py:500)",
            "spin(int) (lib.so)",
            "on_message (SERVER:1136)",
        ] == list(map(str, thread.frames))

    def test_no_numbers(self):
        """
        A thread may have no number.
        """
        text = (
            'Thread (idle): "MainThread"\n'
            "    wait (threading.py:359)\n"
            'Thread (idle): "Thread-... (_pin)"\n'
            "    select (selectors.py:415)\n"
            "    _poll → poll → get\n"
        )

        (process,) = parse_stacks(text)

        assert [(None, True, 1), (None, False, 1)] == [
            (t.thread_id, t.is_main, len(t.frames)) for t in process.threads
        ]


ROWS = """\
(gdb) info threads
  Id   Target Id                      Frame
* 1    Thread 0x7f1 (LWP 41) "python" 0x00007f in do_wait (n=3) from /lib/libc.so
  2    Thread 0x7f2 (LWP 42) "" cond_wait () at cond.c:185
  3    Thread 0x7f3 (LWP 43) "cuda-EvtHandlr" (running)
"""
PY_BT = """\
Traceback (most recent call first):
  File "/me/sampler.py", line 88, in sample
    with self._lock:
  File "/me/train.py", line 5, in <module>
"""
BT = """\
#0  0x00007f in do_wait (n=3) from /lib/libc.so
#1  0x00007f in lock_acquire (self=0x0)
    at lock.c:7
"""


class TestTableOfThreads:
    """
    What ``info threads`` of gdb tells.
    """

    def threads(self, text):
        """
        The threads of the only process in a text.
        """
        (process,) = parse_stacks(text)
        return {t.thread_id: t for t in process.threads}

    def test_rows(self):
        """
        A row is a thread with one frame, if it stands still.
        """
        got = self.threads(ROWS)

        assert ["do_wait (/lib/libc.so)"] == list(map(str, got[41].frames))
        assert ["cond_wait (cond.c:185)"] == list(map(str, got[42].frames))
        assert [True, False] == [t.is_main for t in got.values()]
        assert "python" == got[41].name

    @pytest.mark.parametrize("text", [ROWS + BT, BT + ROWS, ROWS + ROWS + BT])
    def test_stack_of_current(self, text):
        """
        A stack without a name is of the thread with the star.
        """
        got = self.threads(text)

        assert ["do_wait", "lock_acquire"] == [f.name for f in got[41].frames]
        assert [41, 42] == list(got)

    def test_all_stacks(self):
        """
        What is told in full counts more than the row.
        """
        full = f'Thread 2 (Thread 0x7f2 (LWP 42) "loader"):\n{BT}'
        full += f"Thread 1 (Thread 0x7f1 (LWP 41)):\n{BT}"

        for text in (ROWS + full, full + ROWS):
            got = self.threads(text)
            assert {41, 42} == set(got)
            assert [2, 2] == [len(t.frames) for t in got.values()]
            assert got[41].is_main
            assert "loader" == got[42].name

    @pytest.mark.parametrize("text", [PY_BT + BT, BT + PY_BT, ROWS + PY_BT])
    def test_python_and_machine_code(self, text):
        """
        What gdb tells of Python and of machine code is of one thread.
        """
        (process,) = parse_stacks(text)

        main = process.main_thread

        assert ["sample", "<module>"] == [f.name for f in main.frames]
        assert "do_wait" == main.native[0].name
        assert "with self._lock:" == main.frames[0].code
        assert "" == main.frames[1].code

    def test_another_process(self):
        """
        The table of the next process is not that of this one.
        """
        other = ROWS.replace("LWP 4", "LWP 5")

        got = parse_stacks(ROWS + other)

        assert [41, 51] == [p.pid for p in got]


CODE = [
    (
        "Traceback for thread 9 (x) [] (most recent call last):\n"
        '    (Python) File "/me/a.py", line 5, in f\n'
        "        with lock:\n"
        '    (C) File "x.c", line 5, in g (lib.so)\n'
        "        not this\n"
    ),
    (
        "~~~~~ Stack of MainThread (9) ~~~~~\n"
        '  File "/me/b.py", line 5, in g\n'
        '  File "/me/a.py", line 5, in f\n'
        "    with lock:\n"
        "    ^^^^^^^^^^\n"
    ),
]


@pytest.mark.parametrize("text", CODE)
def test_code(text):
    """
    The code below a line of Python is kept, also as JSON.
    """
    (process,) = parse_stacks(text)
    (again,) = parse_stacks(stacks_to_json(process))

    for one in (process, again):
        codes = {f.name: f.code for f in one.main_thread.frames}
        assert "with lock:" == codes["f"]
        assert "" == codes["g"]


def test_waits_to_lose_the_gil():
    """
    Who was asked for the GIL waits until it is taken.
    """
    text = BT.replace("lock_acquire", "drop_gil").replace("do_", "cond_")
    text = text.replace("cond_wait", "pthread_cond_wait")

    (process,) = parse_stacks(PY_BT.replace("/me/sampler", "socket") + text)
    (got,) = explain_stacks([process])

    assert process.main_thread.waits_for_gil
    assert Cause.GIL_CONTENTION is got.cause


def test_old_table_of_kernels():
    """
    A table of kernels alone is a process; the arguments are no name.
    """
    text = (
        "(cuda-gdb) info cuda kernels\n"
        "  Kernel Parent Dev Grid Status   SMs Mask   GridDim  BlockDim"
        "      Name Args\n"
        "*      1      -   0    2 Active 0x00ffffff (240,1,1) (128,1,1)"
        " acos_main parms=...\n"
    )

    (process,) = parse_stacks(text)

    assert ("acos_main", 0, (240, 1, 1), (128, 1, 1)) == attrs.astuple(
        process.kernels[0]
    )


def traceback(*functions, error="KeyboardInterrupt", prefix=""):
    """
    What Python prints of an error in these functions, outermost first.
    """
    lines = ["Traceback (most recent call last):"]
    for number, name in enumerate(functions, start=1):
        lines += [f'  File "/me/{name}.py", line {number}, in {name}']
        lines += [f"    {name}()", "    ^^^^"]
    return "".join(f"{prefix}{line}\n" for line in [*lines, error])


class TestInterrupted:
    """
    Tracebacks show where a program waited, if its wait was broken off.
    """

    @pytest.mark.parametrize(
        "error",
        [
            "KeyboardInterrupt",
            "KeyboardInterrupt: ",
            "RuntimeError: [gloo:81] Timed out waiting 1800ms for recv",
            "torch.distributed.DistStoreError: wait timeout after 300000ms",
        ],
    )
    def test_broken_off(self, error):
        """
        Ctrl-C and the time-outs of torch tell.
        """
        (process,) = parse_stacks("start\n" + traceback("a", "b", error=error))

        (thread,) = process.threads
        assert ["b", "a"] == [f.name for f in thread.frames]
        assert ["b()", "a()"] == [f.code for f in thread.frames]
        assert thread.is_main

    @pytest.mark.parametrize(
        "text",
        [
            traceback("a", error="ValueError: no"),
            traceback("a", error="NameError: KeyboardInterrupt"),
            traceback(),
            traceback("a", error=""),
            "KeyboardInterrupt\n",
        ],
    )
    def test_other_errors(self, text):
        """
        A crash is no hang.
        """
        with pytest.raises(ValueError, match="no stack"):
            parse_stacks(text)

    def test_ranks(self):
        """
        Of each rank the first counts, and what came of it does not.
        """
        text = "".join(
            traceback("a", prefix=f"[rank{rank}]: ")
            + f"[rank{rank}]: Exception ignored in: <x>\n"
            + traceback("z", prefix=f"[rank{rank}]: ")
            for rank in (0, 1)
        )

        got = parse_stacks(text)

        assert [(0, 1), (1, 1)] == [(p.rank, len(p.threads)) for p in got]
        assert {"a"} == {p.main_thread.frames[0].name for p in got}

    def test_processes(self):
        """
        Without a rank each is a process of its own.
        """
        later = "\nDuring handling of the above exception, another one:\n\n"

        got = parse_stacks(
            traceback("a") + later + traceback("x") + traceback("b")
        )

        assert ["a", "b"] == [p.main_thread.frames[0].name for p in got]
        assert [0, 1] == [p.pid for p in got]

    def test_with_a_dump(self):
        """
        The dump of a tool tells more, also if it is in another file.
        """
        log = traceback("b")

        assert ["b"] == [
            p.main_thread.frames[0].name for p in read_stacks([log])
        ]
        assert ["f"] == [
            p.main_thread.frames[0].name for p in read_stacks([log, PLAIN])
        ]
        (process,) = parse_stacks(PLAIN + traceback("b"))

        assert ["f"] == [f.name for f in process.main_thread.frames]


DYING = """\
step 12 loss 2.3
{line}

Thread 0x00007f3c040226c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1038 in _bootstrap

Current thread 0x00007f3c05a4d740 (most recent call first):
  File "/v/torch/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/job/train.py", line 22 in step
  File "/job/train.py", line 41 in <module>
"""


class TestDying:
    @pytest.mark.parametrize(
        ("line", "error", "confidence"),
        [
            (
                "Fatal Python error: Segmentation fault",
                "Segmentation fault",
                "certain",
            ),
            ("[rank1]: Fatal Python error: Bus error", "Bus error", "certain"),
            ("!!!!!!! Segfault encountered !!!!!!!", "Segfault", "certain"),
            (
                "*** SIGSEGV received at time=1708394637 on cpu 3 ***",
                "SIGSEGV",
                "certain",
            ),
            # The reason stands elsewhere.
            ("Fatal Python error: Aborted", "Aborted", "likely"),
        ],
    )
    def test_death(self, line, error, confidence):
        """
        A stack behind a fatal error is that of a death, and not of a wait.
        """
        text = DYING.format(line=line)
        if line.startswith("["):
            text = text.replace("\n", "\n[rank1]: ").replace(
                "[rank1]: [rank1]: ", "[rank1]: "
            )

        (process,) = parse_stacks(text)
        (finding,) = explain_stacks([process])

        assert error == process.fatal_error
        assert (Cause.NATIVE_CRASH, confidence) == (
            finding.cause,
            finding.confidence,
        )
        assert f"died of a fatal error ({error}) in step (train.py:22)" in (
            finding.summary
        )

    def test_others_wait(self):
        """
        The others only wait for a process that has died.
        """
        dead = DYING.format(line="Fatal Python error: Segmentation fault")
        waiting = DYING.format(line="Timeout (0:05:00)!")
        text = "".join(
            f"[rank{rank}]: {line}\n"
            for rank, text in ((0, waiting), (1, dead))
            for line in text.splitlines()
        )

        first, *_ = explain_stacks(parse_stacks(text))

        assert (Cause.NATIVE_CRASH, (1,)) == (first.cause, first.ranks)
        assert "rank 0 is waiting in all_reduce" in first.summary

    @pytest.mark.parametrize(
        "between",
        [
            # One that was only asked for comes after it.
            "Timeout (0:05:00)!\n",
            # Too far above the stack to belong to it.
            "step 13\nstep 14\nstep 15\nstep 16\n",
        ],
    )
    def test_other_dump(self, between):
        """
        A fatal error is that of the stacks right behind it only.
        """
        text = DYING.format(
            line=f"Fatal Python error: Segmentation fault\n{between}"
        )

        (process,) = parse_stacks(text)

        assert "" == process.fatal_error
