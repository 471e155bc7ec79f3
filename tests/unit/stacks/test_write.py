"""
Keeping everything that is known of a process.
"""

from __future__ import annotations

import json

import attrs
import pytest

from distdebug.stacks import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadActivity,
    ThreadStack,
    parse_stacks,
    stacks_to_json,
    stacks_to_text,
)


def full():
    """
    A process of which everything is known.
    """
    main = ThreadStack(
        name="main one",
        thread_id=11,
        frames=(
            StackFrame("read", "libc.so.6", 0, is_native=True),
            StackFrame("g", "lib.so", 0, is_native=False),
            StackFrame("f", "a b.c", 3, is_native=False),
        ),
        is_main=True,
        active=False,
        owns_gil=False,
        waits_for_gil=False,
        native=(StackFrame("main", "", 0, is_native=True),),
        state="S",
        system_call=SystemCall(name="read", target="pipe:[1]"),
        activity=ThreadActivity(
            seconds=1.5,
            voluntary=2,
            involuntary=3,
            cpu_s=0.5,
            has_moved=True,
            has_left=False,
            has_new_values=True,
            has_returned=True,
            has_let_go=True,
            io_bytes=70_000,
        ),
        idle_s=12.5,
        is_current=True,
    )
    other = ThreadStack(name="", frames=(), waits_for_gil=True, native=())
    return ProcessStacks(
        pid=11,
        source="",
        threads=(main, other),
        rank=3,
        world_size=8,
        coordinates=(("pp", 0), ("tp", 1)),
        role="rank",
        job="run7",
        host="node-1",
        command="python train.py",
        parent_pid=9,
        state="S",
        fatal_error="Bus error",
        tracer_pid=5,
        kernels=(
            GpuKernel(name="k<a>", device=1, grid=(1, 2, 3), block=(4, 5, 6)),
            GpuKernel(name="l"),
        ),
        taken=1.7e9,
        absent_peers=(2, 5),
    )


class TestJson:
    def test_everything_is_known(self):
        """
        The process of these tests has every attribute, so that a new one
        cannot be forgotten.
        """
        process = full()
        main = process.threads[0]

        for known in (process, main, main.activity, process.kernels[0]):
            for field in attrs.fields(type(known)):
                if field.name not in {"source", "waits_for_gil"}:
                    assert field.default != getattr(known, field.name), field

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"threads": (), "state": "Z"},
            {"coordinates": (), "kernels": (), "rank": 0, "tracer_pid": 0},
            {"rank": None, "command": "", "parent_pid": None},
        ],
    )
    def test_round_trip(self, changes):
        """
        Nothing is lost, also of a process without threads.
        """
        expected = attrs.evolve(full(), **changes)

        assert (expected,) == parse_stacks(stacks_to_json(expected))

    def test_form(self):
        """
        Programs that read what py-spy writes can read it.
        """
        main, other = json.loads(stacks_to_json(full()))

        assert {"pid", "thread_id", "thread_name", "os_thread_id"} <= set(main)
        assert {"active", "owns_gil", "frames", "process_info"} <= set(main)
        assert {"pid", "command_line", "parent"} == set(other["process_info"])
        assert {"name": "read", "filename": "libc.so.6", "line": 0} == (
            main["frames"][0]
        )

    @pytest.mark.parametrize(
        ("where", "value"),
        [
            ("idle_s", "soon"),
            ("idle_s", float("nan")),
            ("idle_s", True),
            ("activity", {"seconds": 1}),
            ("activity", 3),
            ("system_call", []),
            ("native", [{}]),
            ("native", [1]),
            ("process_info", {"coordinates": [["tp", -1]]}),
            ("process_info", {"coordinates": 3}),
            ("process_info", {"kernels": [{"name": "k", "grid": ["x"]}]}),
            ("process_info", {"taken": "now"}),
            ("process_info", {"world_size": 1.5}),
        ],
    )
    def test_hostile(self, where, value):
        """
        What else stands there, or is said of the process, is a value error.
        """
        data = json.loads(stacks_to_json(full()))
        if where == "process_info":
            value = data[0][where] | value
        data[0][where] = value

        with pytest.raises(ValueError, match="not what py-spy writes"):
            parse_stacks(json.dumps(data))

    def test_half_a_character(self):
        """
        What JSON may hold, and no encoding knows, does not get into results.
        """
        data = json.loads(stacks_to_json(full()))
        data[0]["thread_name"] = "t\udfff"
        data[0]["process_info"]["kernels"][0]["name"] = "k\ud800"

        (got,) = parse_stacks(json.dumps(data))

        assert "k?" == got.kernels[0].name
        assert "t?" == got.threads[0].name


class TestText:
    def test_facts(self):
        """
        What is known is told in words.
        """
        got = stacks_to_text(full())

        for fact in (
            "Process 11: python train.py",
            "Rank 3 of 8",
            "PP=0, TP=1",
            "# rank, state S",
            "# traced by 5",
            "Kernel 0: k<a> on device 1",
            "state: S",
            "system call: read(pipe:[1])",
            "in 1.5 s waited 2 times, ran 0.50 s, another line",
            "last ran: 12.5 s ago",
            "native:",
            "waits for the GIL",
        ):
            assert fact in got

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"threads": full().threads[:1]},
            {"role": "", "state": "", "tracer_pid": None, "kernels": ()},
            {"rank": None, "coordinates": ()},
            {"world_size": None, "state": ""},
        ],
    )
    def test_is_read_again(self, changes):
        """
        Our own text is understood as far as it is py-spy's.
        """
        known = attrs.evolve(full(), **changes)

        (got,) = parse_stacks(stacks_to_text(known))

        assert (known.pid, known.command) == (got.pid, got.command)
        assert (known.rank, known.coordinates) == (got.rank, got.coordinates)
        assert [k.name for k in known.kernels] == [k.name for k in got.kernels]
        assert [[f.name for f in t.frames] for t in known.threads] == [
            [f.name for f in t.frames] for t in got.threads
        ]

    def test_is_printable(self):
        """
        A process cannot write to the terminal of its reader.
        """
        evil = attrs.evolve(full(), command="\x1b[2J\nProcess 1: x")

        got = stacks_to_text(evil)

        assert r"\x1b[2J\nProcess 1: x" in got
        assert 1 == len(parse_stacks(got))

    @pytest.mark.parametrize(
        ("moved", "expected"), [(None, "0 s\n"), (False, "same lines")]
    )
    def test_activity(self, moved, expected):
        """
        Whether the lines changed is told if it is known.
        """
        activity = ThreadActivity(
            seconds=1.0, voluntary=0, involuntary=0, cpu_s=0, has_moved=moved
        )
        main = attrs.evolve(full().threads[0], activity=activity)

        assert expected in stacks_to_text(
            attrs.evolve(full(), threads=(main,))
        )
