"""
Several files and tools that tell of one process.
"""

from __future__ import annotations

import os

from pathlib import Path

import pytest

from distdebug.stacks import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    ThreadStack,
    is_capture_file,
    is_stack_file,
    join_threads,
    parse_stacks,
    read_stack_files,
    read_stacks,
    stacks_to_json,
    stacks_to_text,
)


PYTHON = StackFrame("f", "a.py", 1)
NATIVE = StackFrame("read", "libc.so", 0, is_native=True)


def thread(number, *frames, **changes):
    """
    A thread with these frames.
    """
    values = {"name": "", "thread_id": number, "frames": frames}
    return ThreadStack(**(values | changes))


def process(*threads, **changes):
    """
    A process with these threads.
    """
    values = {"pid": 7, "source": "", "threads": threads}
    return ProcessStacks(**(values | changes))


def told(name="f", file="a.py:1", title="", number=7, pid=7):
    """
    What a tool prints of a process with one line.
    """
    return (
        f"{title}Process {pid}: train\n"
        f"Thread {number} (idle)\n    {name} ({file})\n"
    )


class TestThreads:
    def test_by_number(self):
        """
        The second tool adds its stacks; its own threads come last.
        """
        known = [thread(7, PYTHON, is_main=True), thread(8, PYTHON)]
        seen = [
            thread(7, NATIVE, waits_for_gil=True, owns_gil=False),
            thread(9, NATIVE, name="cuda", is_main=True),
        ]

        got = join_threads(known, seen)

        assert (
            thread(
                7,
                PYTHON,
                is_main=True,
                native=(NATIVE,),
                waits_for_gil=True,
                owns_gil=False,
            ),
            thread(8, PYTHON),
            thread(9, native=(NATIVE,), name="cuda"),
        ) == got

    def test_other_numbers(self):
        """
        Tools that number threads in other ways agree on the main one.
        """
        known = [thread(0x7F01, PYTHON), thread(0x7F02, PYTHON, is_main=True)]
        seen = [thread(8, NATIVE), thread(7, NATIVE, is_main=True)]

        got = join_threads(known, seen)

        assert [(), (NATIVE,), (NATIVE,)] == [t.native for t in got]

    def test_nothing_known(self):
        """
        Who is alone stays as it is.
        """
        seen = (thread(None, NATIVE), thread(None, NATIVE))

        assert seen == join_threads([], seen)


class TestProcesses:
    @pytest.mark.parametrize("is_native_first", [False, True])
    def test_two_tools(self, is_native_first):
        """
        Python's frames stay, with those of machine code and kernels beside.
        """
        python = told(title="=== rank 3 ===\n")
        native = (
            "=== pid 7, rank 3 of 8 ===\n  Kernel 0: k on device 0\n"
            "Thread 1 (LWP 7):\n#0  0x1 in read () from libc.so\n"
        )
        both = [native, python] if is_native_first else [python, native]

        (got,) = parse_stacks("".join(both))

        ((main,), kernels) = got.threads, (GpuKernel(name="k", device=0),)
        assert ((PYTHON,), (NATIVE,)) == (main.frames, main.native)
        assert (3, 8, "train") == (got.rank, got.world_size, got.command)
        assert kernels == got.kernels

    def test_the_later_one(self):
        """
        Of two that saw the same, the later one counts.
        """
        (got,) = parse_stacks(told() + told("g"))

        assert ["g"] == [f.name for f in got.threads[0].frames]

    def test_what_only_the_earlier_one_knew(self):
        """
        A later look at Python does not forget what was seen of machine code.
        """
        mixed = told("read", "libc.so)\n    f (a.py:1")

        (got,) = parse_stacks(mixed + told())

        assert (PYTHON,) == got.threads[0].frames
        assert (NATIVE, PYTHON) == got.threads[0].native

    @pytest.mark.parametrize(
        "other",
        [
            told(title="=== rank 2, host a ===\n"),
            told(title="=== rank 1, host b ===\n"),
            told(title="=== rank 1, host a ===\n").replace("train", "y"),
            told(title="=== rank 1, host a ===\n", pid=8),
        ],
    )
    def test_different(self, other):
        """
        What contradicts is another process.
        """
        one = told(title="=== rank 1, host a ===\n")

        assert 1 == len(parse_stacks(one + one))
        assert 2 == len(parse_stacks(one + other))

    def test_without_number(self):
        """
        Processes without a number are the same if their threads are.
        """
        titles = ["Thread 1", "Thread 2", "Thread 1", "Thread"]
        text = "".join(
            f'{title} (idle): "MainThread"\n    f (a.py:1)\n'
            for title in titles
        )

        assert 3 == len(parse_stacks(text))


class TestFiles:
    def write(self, folder, name, text, age_s=0):
        """
        Write a file of some age.
        """
        folder.mkdir(exist_ok=True)
        file = folder / name
        file.write_text(text)
        when = 1_700_000_000 - age_s
        os.utime(file, (when, when))
        return file

    def test_folder(self, tmp_path):
        """
        What several tools wrote of a process of a node is one.
        """
        python = process(thread(7, PYTHON, is_main=True))
        text = "Thread 1 (LWP 7):\n#0  0x1 in read () from libc.so\n"
        table = "  Kernel 0: k on device 0\n"
        self.write(tmp_path, "pyspy_n1_7.json", stacks_to_json(python))
        self.write(tmp_path, "pyspy_n1_7.txt", stacks_to_text(python))
        self.write(tmp_path, "cudagdb_n1_7.txt", table + text)

        (got,) = read_stacks(tmp_path)

        assert ("n1", 7, 1) == (got.host, got.pid, len(got.threads))
        assert (NATIVE,) == got.threads[0].native
        assert (GpuKernel(name="k", device=0),) == got.kernels

    @pytest.mark.parametrize("taken", [None, 1.0, 2.0e9])
    def test_newest(self, tmp_path, taken):
        """
        Of several captures of a process, the newest counts.
        """
        old = process(thread(7, PYTHON), taken=taken)
        new = process(thread(7, StackFrame("g", "a.py", 2)))
        self.write(tmp_path / "a", "pyspy_n1_7.json", stacks_to_json(new))
        self.write(tmp_path / "b", "pyspy_n1_7.json", stacks_to_json(old), 9)

        (got,) = read_stacks(tmp_path)

        expected = "f" if taken == 2.0e9 else "g"
        assert expected == got.threads[0].frames[0].name

    def test_periodic(self, tmp_path):
        """
        Of the dumps that torch.distributed.debug writes each minute, the last
        one of each rank counts.
        """
        text = """=== Rank {}: http://n1:4{}/handler/dump_traceback? ===
Current thread 0x00007f{}cca9106c0 (most recent call first):
  <no Python frame>

Thread 0x00007f9cec40fb8{} (most recent call first):
  File "/job/train.py", line {} in step
"""
        for minute in range(3):
            ranks = (
                text.format(rank, rank, minute, rank, minute + 1)
                for rank in range(2)
            )
            name = f"stacks_20261128_2041{minute}0.txt"
            self.write(tmp_path, name, "\n".join(ranks))

        got = read_stacks(tmp_path)

        assert [("n1", 0), ("n1", 1)] == [(p.host, p.rank) for p in got]
        assert {3} == {
            t.frames[0].line for p in got for t in p.threads if t.frames
        }

    def test_one_pid(self):
        """
        Containers have the same pids on all nodes; the newest are compared.
        """
        title = '=== host n{}, pid 1 ===\nThread 1 (idle): "MainThread"\n'
        stack = f"{title}    {{}} (a.py:1)\n"
        names = [*range(50), 49, 0]
        text = "".join(stack.format(n, f"f{k}") for k, n in enumerate(names))

        got = parse_stacks(text)

        functions = {
            p.threads[0].frames[0].name for p in got if p.host == "n49"
        }
        assert {"f50"} == functions
        assert {f"n{n}" for n in range(50)} == {p.host for p in got}

    def test_broken_json(self, tmp_path):
        """
        The text beside it is read instead of JSON that is cut off.
        """
        text = stacks_to_text(process(thread(7, PYTHON)))
        self.write(tmp_path, "pyspy_n1_7.json", '[{"pid": 7')
        self.write(tmp_path, "pyspy_n1_7.txt", text)

        got = read_stack_files(tmp_path)

        assert [7] == [p.pid for p in got.stacks]
        assert ["pyspy_n1_7.json"] == [
            Path(m.source).name for m in got.missing
        ]

    def test_promise(self, tmp_path):
        """
        Files that promise a stack and hold none are told; others are not.
        """
        text = "ERROR: cuda-gdb failed or timed out\n"
        self.write(tmp_path, "cudagdb_n1_7.txt", text)
        self.write(tmp_path, "backtrace.log", text)

        got = read_stack_files(tmp_path)

        assert () == got.stacks
        assert [str(tmp_path / "cudagdb_n1_7.txt")] == [
            m.source for m in got.missing
        ]

    def test_names(self, tmp_path):
        """
        The name of a file tells what its text does not.
        """
        stack = 'Thread 0x7f0000000001 (idle): "MainThread"\n  f (a.py:1)\n'
        self.write(tmp_path, "rank_3.txt", stack)
        self.write(tmp_path, "pystack.42.txt", stack)

        got = read_stacks(tmp_path)

        assert [(42, None), (0, 3)] == [(p.pid, p.rank) for p in got]

    def test_words_between_documents(self):
        """
        Words may stand between JSON of several processes.
        """
        one, two = (
            stacks_to_json(process(thread(pid, PYTHON), pid=pid))
            for pid in (7, 8)
        )

        got = read_stacks(f"$ py-spy dump --json\n{one}\ndone\n{two}\n")

        assert [7, 8] == [p.pid for p in got]

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("pyspy_a_1.txt", True),
            ("cudagdb_a_1.txt", True),
            ("n_prefill_w0_pyspy_p1.txt", True),
            ("gdb_7.out", True),
            ("a.stack", True),
            ("all_stacks.txt", True),
            ("main.bt", True),
            ("faulthandler.log", True),
            ("rank_3.txt", True),
            ("hang_detector/stack_traces/rank_3.log", True),
            ("stack_traces/rank_3.log", True),
            ("logs/rank_3.log", False),
            ("notes.txt", False),
            ("nccl_trace_rank_3", False),
            ("train.py", False),
        ],
    )
    def test_stack_like(self, name, expected):
        """
        Names that look like stacks are worth a look.
        """
        assert expected == is_stack_file(name)
        assert not is_capture_file("gdb_7.out")
