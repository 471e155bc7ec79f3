"""
Merging the stacks of many ranks.
"""

from __future__ import annotations

import json
import sys

from functools import partial

import attrs
import pytest

from distdebug.stacks import (
    ProcessStacks,
    StackFrame,
    ThreadStack,
    is_background,
    merge_stacks,
    to_collapsed,
    to_speedscope,
)


SITE = "/usr/lib/python3.11/site-packages"
MODULE = StackFrame("<module>", "/app/train.py", 90)
FIT = StackFrame("Trainer.fit", "/app/trainer.py", 30)
CALL = StackFrame("_call_impl", f"{SITE}/torch/nn/modules/module.py", 1773)
REDUCE = StackFrame(
    "all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 2806
)
WAIT = StackFrame("c10d::Work::wait", "libtorch_cpu.so", 0, is_native=True)
READ = StackFrame("read_shard", "/app/data.py", 9)
IDLE = StackFrame(
    "_worker", "/usr/lib/python3.11/concurrent/futures/thread.py", 81
)


def native(name, filename="lib.so"):
    """
    A frame of machine code.
    """
    return StackFrame(name, filename, 0, is_native=True)


def thread(*frames, **changes):
    """
    A thread; its frames are given outermost first.
    """
    values = {"name": "", "frames": frames[::-1]}
    return ThreadStack(**(values | changes))


WAITING = thread(MODULE, FIT, CALL, REDUCE, WAIT, is_main=True)
READING = thread(MODULE, FIT, CALL, READ, is_main=True)
POOL = thread(IDLE)


def process(rank, *threads, **changes):
    """
    A rank with these threads.
    """
    values = {
        "pid": 100 + (rank or 0),
        "source": "",
        "threads": threads,
        "rank": rank,
    }
    return ProcessStacks(**(values | changes))


def job(size, *outliers):
    """
    A job in which some ranks read, and the others wait for them.
    """
    return [
        process(rank, READING if rank in outliers else WAITING, POOL)
        for rank in range(size)
    ]


def merged(*frames):
    """
    How these frames, outermost first, look on every rank.
    """
    return merge_stacks([process(0, thread(*frames))]).frames


class TestFrames:
    @pytest.mark.parametrize(
        ("frame", "expected"),
        [
            (StackFrame("A.<locals>.f", "/a.py", 3), "f (/a.py:3)"),
            (
                StackFrame("A.__call__", f"{SITE}/torch/x.py", 3),
                "__call__ (torch/x.py:3)",
            ),
            (
                StackFrame("wait", "/usr/lib/python3.13t/threading.py", 3),
                "wait (threading.py:3)",
            ),
            (CALL, ""),
            (StackFrame("_run_code", "<frozen runpy>", 88), ""),
            (native("0x7f01"), ""),
            (native("??"), ""),
            (native("_PyEval_EvalFrameDefault"), ""),
            (native("Py_RunMain"), ""),
            (native("cfunction_vectorcall_O"), ""),
            (native("pybind11::cpp_function::dispatcher(_object*)"), ""),
            (native("take_gil", ""), "take_gil"),
            (native("PyEval_RestoreThread", ""), "PyEval_RestoreThread"),
            (
                native("pthread_cond_wait@@GLIBC_2.3.2", "/lib/libc-2.31.so"),
                "pthread_cond_wait (libc.so)",
            ),
            (
                native("__GI___clock_nanosleep", "/lib/libc.so.6"),
                "clock_nanosleep (libc.so)",
            ),
            (
                native("___pthread_cond_timedwait64", ""),
                "pthread_cond_timedwait",
            ),
            (native("f<a<int>, b>::g(int) const [clone .isra.0]", ""), "f::g"),
            (native("s[abi:cxx11].constprop.0", ""), "s"),
            (native("A::operator<(int)", ""), "A::operator_"),
            (native("(anonymous namespace)::f()", ""), "f"),
            (native("<signal handler called>", ""), "<signal handler called>"),
        ],
    )
    def test_normal(self, frame, expected):
        """
        What differs from rank to rank is left out.
        """
        _, *between, _ = merged(MODULE, frame, READ)

        assert [expected] * bool(expected) == list(map(str, between))

    def test_cut(self):
        """
        What happens inside the library for communication is left out.
        """
        inner = (native("gloo::x", "libtorch.so"), native("poll", "libc.so"))

        got = merged(*WAITING.frames[::-1], *inner)
        bare = merged(native("f"), native("c10d::Work::wait"), *inner)

        assert ["<module>", "fit", "all_reduce"] == [f.name for f in got]
        assert ["f", "c10d::Work::wait"] == [f.name for f in bare]

    def test_waiting(self):
        """
        How the C library waits is one frame.
        """
        names = ["f", "__pthread_cond_wait_common", "futex_wait"]

        got = merged(*map(native, names))

        assert ["f", "pthread_cond_wait_common"] == [f.name for f in got]

    def test_nothing_left(self):
        """
        A stack of which nothing can be said keeps its innermost frame.
        """
        unknown = (native("0x7f01"), native("0x7f02"))

        assert unknown[1:] == merged(*unknown)


class TestBackground:
    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            (POOL, True),
            (thread(IDLE, native("futex_wait")), True),
            (thread(IDLE, READ), False),
            (thread(IDLE, is_main=True), False),
            (thread(StackFrame("_monitor", "x/tqdm/_monitor.py", 1)), True),
            (thread(StackFrame("run", "x\\tqdm\\_monitor.py", 1)), True),
            (thread(native("c10d::ProcessGroupGloo::runLoop(int)")), True),
            (
                thread(
                    native("c10d::ProcessGroupGloo::runLoop(int)"),
                    native("c10d::ProcessGroupGloo::AsyncWork::execute(x)"),
                ),
                False,
            ),
            (thread(name="pt_nccl_watchdg"), True),
            (thread(native=(native("x"),), name="cuda00001400006"), True),
            (thread(READ, name="pt_autograd_0"), False),
            (thread(native=(READ,), name="pt_autograd_0"), False),
            (thread(READ), False),
            (thread(), False),
        ],
    )
    def test_kinds(self, found, expected):
        """
        Threads that only wait for work are known; main threads never do.
        """
        assert expected is is_background(found)


class TestMerge:
    def test_tree(self):
        """
        Ranks part where they do different things.
        """
        tree = merge_stacks(job(8, 3))

        assert ["<module>", "fit", "all_reduce", "read_shard"] == [
            frame.name for frame in tree.frames
        ]
        assert (-1, 0, 1, 1) == tree.parents
        assert ["0-7", "0-7", "0-2,4-7", "3"] == [
            tree.who(members) for members in tree.members
        ]
        assert (True, True, False, True) == tree.own
        assert (2, 2, 2, 3, 2, 2, 2, 2) == tree.mains

    def test_all_threads(self):
        """
        Other threads are merged too, and those in the background if wanted.
        """
        worker = thread(IDLE, READ)
        stacks = [process(0, WAITING, POOL, worker, thread())]

        few = merge_stacks(stacks, threads="all")
        all_ = merge_stacks(stacks, threads="all", background=True)

        names = [[f.name for f in t.frames] for t in (few, all_)]
        assert [
            ["<module>", "fit", "all_reduce", "_worker", "read_shard"],
            ["<module>", "fit", "all_reduce", "_worker", "read_shard"],
        ] == names
        assert [((), (0,)), ((0,), (0,))] == [t.ends[3:] for t in (few, all_)]
        assert (2,) == few.mains

    def test_native_only(self):
        """
        A thread of which only machine code was seen has its place.
        """
        main = thread(is_main=True, native=(WAIT, native("start")))

        tree = merge_stacks([process(0, main)])

        assert ["start", "c10d::Work::wait"] == [f.name for f in tree.frames]

    def test_equal_frames(self):
        """
        Frames are compared by what they say, not by where they are.
        """
        other = thread(
            *(attrs.evolve(f) for f in WAITING.frames[::-1]), is_main=True
        )

        tree = merge_stacks([process(0, WAITING), process(1, other)])

        assert (2, 2) == tree.mains

    def test_deep(self):
        """
        Stacks may be deeper than Python can call itself.
        """
        depth = sys.getrecursionlimit() + 100
        frames = [StackFrame("f", "a.py", n) for n in range(depth)]
        stacks = [
            process(0, thread(*frames)),
            process(1, thread(*frames[:-1])),
        ]

        tree = merge_stacks(stacks)

        assert depth == len(tree.stack(depth - 1))
        assert f"f (a.py:{depth - 1})" in str(tree)
        assert 2 == len(tree.to_records())
        assert depth == len(json.loads(json.dumps(tree.to_dict()))["nodes"])

    def test_empty(self):
        """
        Nothing is nothing.
        """
        tree = merge_stacks([])

        assert ("", (), ()) == (str(tree), tree.classes, tree.outliers())


class TestClasses:
    def test_classes(self):
        """
        Processes of one role at one place are a class, the largest first.
        """
        child = process(None, READING, role="dataloader")

        got = merge_stacks([*job(4, 3), child]).classes

        assert [("0-2", ""), ("3", ""), ("pid 100", "dataloader")] == [
            (c.who, c.role) for c in got
        ]
        assert [(0, 1, 2), (3,), ()] == [c.ranks for c in got]
        assert ["all_reduce", "fit", "<module>"] == [
            f.name for f in got[0].frames
        ]

    def test_jobs(self):
        """
        Ranks of several jobs have the same numbers, and are no peers.
        """
        one = [attrs.evolve(p, job="a") for p in job(3)]
        two = [attrs.evolve(p, job="b") for p in job(1, 0)]

        tree = merge_stacks([*one, *two])

        assert ["0-2 of a", "0 of b"] == [c.who for c in tree.classes]
        assert "0-2 of a; 0 of b\n" in str(tree)
        assert () == tree.outliers()


def changed(stacks, **changes):
    """
    The same processes, but for what depends on their rank.
    """
    return [
        attrs.evolve(p, **{k: of(p.rank) for k, of in changes.items()})
        for p in stacks
    ]


REPLICAS = partial(
    changed, job(4, 0), coordinates=lambda rank: (("dp", rank),)
)
OUTLIERS = [
    (job(8, 3), ["3"]),
    (job(20, 3, 4), ["3-4"]),
    (job(20, *range(5)), []),
    (job(8, *range(4)), []),
    (job(3, 1), ["1"]),
    (job(2, 1), []),
    (job(1), []),
    ([], []),
    # Stages of a pipeline do different things for a good reason.
    (
        changed(
            job(12, 1, *range(6, 12)),
            coordinates=lambda rank: (("pp", rank // 6), ("tp", 0)),
        ),
        ["1"],
    ),
    # Where there is one job, everybody belongs to it.
    (changed(job(4, 0), job=lambda rank: "a" if rank else ""), ["0"]),
    # Replicas of a server do not wait for each other, those of a job do.
    (REPLICAS(command=lambda _: "python x"), ["0"]),
    (REPLICAS(command=lambda _: "sglang::sch"), []),
]


@pytest.mark.parametrize(("stacks", "expected"), OUTLIERS)
def test_outliers(stacks, expected):
    """
    Few that are not where most of their peers are stand out.
    """
    assert expected == [c.who for c in merge_stacks(stacks).outliers()]


DRAWN = {
    # Ranks stand beside the branch that they took; users' lines are marked.
    "branches": (
        job(8, 3),
        (
            "0-7\n"
            "  * <module> (/app/train.py:90) → * fit (/app/trainer.py:30)\n"
            "  ▸ 0-2,4-7\n"
            "      all_reduce (torch/distributed/distributed_c10d.py:2806)\n"
            "  ▸ 3\n"
            "      * read_shard (/app/data.py:9)"
        ),
    ),
    # Who does not go further is told.
    "here": (
        [process(0, thread(MODULE, FIT)), process(1, thread(MODULE))],
        (
            "0-1\n"
            "  * <module> (/app/train.py:90)\n"
            "  ▸ 1 (here)\n"
            "  ▸ 0\n"
            "      * fit (/app/trainer.py:30)"
        ),
    ),
    # Who has no stack is listed by the state.
    "absent": (
        [
            process(0, state="Z"),
            process(1, thread()),
            process(None, state="Z"),
        ],
        "0, pid 100\n  no stack (state Z)\n1\n  no stack",
    ),
}


@pytest.mark.parametrize(("stacks", "expected"), DRAWN.values(), ids=DRAWN)
def test_drawn(stacks, expected):
    """
    A tree is written as text.
    """
    assert expected == str(merge_stacks(stacks))


class TestText:
    def test_foreign(self):
        """
        Of many frames of frameworks in a row, the ends are shown.
        """
        foreign = [StackFrame("f", f"{SITE}/torch/a.py", n) for n in range(9)]

        text = str(merge_stacks([process(0, thread(*foreign, READ))]))

        assert "f (torch/a.py) → … 7 more → f (torch/a.py:8)" in text

    def test_wrapped(self):
        """
        Long chains are spread over lines.
        """
        frames = [StackFrame("f" * 30, "a.py", n) for n in range(9)]

        text = str(merge_stacks([process(0, thread(*frames))]))

        assert 96 >= max(map(len, text.splitlines()))

    def test_is_printable(self):
        """
        Names from outside cannot write to the terminal.
        """
        evil = StackFrame("f\x1b[2J\n", "a.py", 1)

        assert "\x1b" not in str(merge_stacks([process(0, thread(evil))]))

    def test_records(self):
        """
        Programs get one row per place.
        """
        got = merge_stacks(job(4, 3)).to_records()

        assert [("0-2", 3, 3), ("3", 1, 1)] == [
            (r["who"], r["processes"], r["threads"]) for r in got
        ]
        assert "read_shard (/app/data.py:9)" == got[1]["stack"][0]


class TestExport:
    def test_collapsed(self):
        """
        One line per stack, and how many processes are there.
        """
        tree = merge_stacks(job(4, 3))

        assert (
            "<module> (/app/train.py:90);fit (/app/trainer.py:30);"
            "all_reduce (torch/distributed/distributed_c10d.py:2806) 3\n"
            "<module> (/app/train.py:90);fit (/app/trainer.py:30);"
            "read_shard (/app/data.py:9) 1\n"
        ) == to_collapsed(tree)
        assert ["0-2", "3"] == [
            line.partition(";")[0]
            for line in to_collapsed(tree, who=True).splitlines()
        ]

    def test_collapsed_is_escaped(self):
        """
        A name cannot begin another frame or line.
        """
        evil = StackFrame("a;b\n\x1b[2Jc", "", 0)

        got = to_collapsed(merge_stacks([process(0, thread(evil))]))

        assert "a,b c 1\n" == got

    def test_speedscope(self):
        """
        The profile has what the schema of speedscope requires.
        """
        data = json.loads(to_speedscope(merge_stacks(job(4, 3)), name="x"))

        count = len(data["shared"]["frames"])
        assert (
            "https://www.speedscope.app/file-format-schema.json"
            == (data["$schema"])
        )
        assert ["all", "0-2", "3"] == [p["name"] for p in data["profiles"]]
        for profile in data["profiles"]:
            samples, weights = profile.pop("samples"), profile.pop("weights")
            assert len(samples) == len(weights)
            assert all(0 <= i < count for s in samples for i in s)
            assert {
                "type": "sampled",
                "name": profile["name"],
                "unit": "none",
                "startValue": 0,
                "endValue": sum(weights),
            } == profile
        assert {"name": "fit", "file": "/app/trainer.py", "line": 30} == (
            data["shared"]["frames"][1]
        )

    def test_speedscope_of_little(self):
        """
        What is not known of a frame is not there.
        """
        stacks = [process(0, thread(StackFrame("f", "", 0)))]

        data = json.loads(to_speedscope(merge_stacks(stacks)))

        assert [{"name": "f"}] == data["shared"]["frames"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["spin", "spin"], "f (a.py:3) → spin (native)"),
        (["spin", "other"], "f (a.py:3)"),
        (["??", "??"], "f (a.py:3)"),
    ],
)
def test_native_leaf(names, expected):
    """
    The native function that a line called comes last, if all are in it.
    """
    line = StackFrame("f", "a.py", 3)

    tree = merge_stacks(
        process(rank, thread(line, is_main=True, native=(native(name),)))
        for rank, name in enumerate(names)
    )

    assert str(tree).endswith(expected)
