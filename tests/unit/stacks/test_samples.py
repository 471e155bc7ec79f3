"""
Reading what real tools wrote of real processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.stacks import merge_stacks, parse_stacks, read_stacks


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
