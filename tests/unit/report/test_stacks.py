"""
The merged stacks on the page.
"""

from __future__ import annotations

import json

import attrs
import pytest

from distdebug.diagnosis import Seen
from distdebug.findings import Cause, Diagnosis, Evidence, Finding
from distdebug.flight_recorder import Sidecar, analyze_dumps
from distdebug.report.sections.stacks import stacks_section
from distdebug.report.sections.stacks import threads as threads_module
from distdebug.stacks import (
    GpuKernel,
    ProcessStacks,
    StackFrame,
    SystemCall,
    ThreadStack,
)
from distdebug.testing import SimulatedJob


TORCH = "/usr/lib/python3.11/site-packages/torch"
MODULE = StackFrame("<module>", "/app/train.py", 90)
REDUCE = StackFrame(
    "all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 28
)
READ = StackFrame("read_shard", "/app/data.py", 9)
WORKER = StackFrame(
    "_worker", "/usr/lib/python3.11/concurrent/futures/thread.py", 81
)
LIBRARY = tuple(StackFrame(f"f{n}", f"{TORCH}/x.py", n) for n in range(1, 6))


def process(rank, *frames, **changes):
    """
    A process; its frames are given outermost first.
    """
    thread = ThreadStack(name="MainThread", frames=frames[::-1], is_main=True)
    values = {
        "pid": 100 + (rank or 0),
        "rank": rank,
        "source": f"stack-{rank}",
        "threads": (thread,) if frames else (),
    }
    return ProcessStacks(**(values | changes))


def diagnosis(*stacks, ranks=(), evidence=(), cause=Cause.RANK_NOT_ARRIVED):
    """
    A diagnosis of these stacks that blames these ranks.
    """
    verdict = Finding(cause=cause, ranks=ranks, summary="", evidence=evidence)
    return Diagnosis(verdict=verdict, seen=Seen(stacks=stacks))


def branches(section):
    """
    All branches that are shown, each before those below it.
    """
    todo = list(section.values["picture"].branches[::-1])
    found = []
    while todo:
        found.append(todo.pop())
        todo += found[-1].below[::-1]
    return found


def names(branch):
    """
    The functions of a branch, by run.
    """
    return [[line.name for line in run.lines] for run in branch.runs]


class TestSection:
    def test_nothing(self):
        """
        Without any stack there is no such part.
        """
        assert stacks_section(diagnosis()) is None
        assert stacks_section(diagnosis(process(0))) is None

    @pytest.mark.parametrize(
        ("stacks", "expected"),
        [
            ([process(0, MODULE)], "one process"),
            (
                [process(0, MODULE), process(1, MODULE)],
                "all 2 processes are at the same place",
            ),
            (
                [process(0, MODULE), process(1, READ), process(2)],
                "2 processes at 2 places",
            ),
        ],
        ids=["one", "same", "apart"],
    )
    def test_summary(self, stacks, expected):
        """
        The summary counts processes and places.
        """
        section = stacks_section(diagnosis(*stacks))

        assert expected == section.summary

    def test_plain(self):
        """
        What the script gets is plain data.
        """
        section = stacks_section(diagnosis(process(0, MODULE), ranks=(0,)))

        data = json.loads(json.dumps(section.data))

        assert [0] == data["rank"]
        assert [0] == data["branch"]
        assert {"stacks.collapsed.txt", "stacks.speedscope.json"} == set(
            data["downloads"]
        )

    def test_side_cars(self, dumps_of):
        """
        Ranks of which nothing was captured tell where they are by themselves.
        """
        job = SimulatedJob(2)
        job.collective("all_reduce")
        own = Sidecar(
            path="rank_1.sidecar.json",
            rank=1,
            world_size=2,
            pid=7,
            host="a",
            started=0.0,
            written=1.0,
            reason="request",
            threads=(
                (
                    "MainThread",
                    (
                        ("read_shard", "/app/data.py", 9),
                        ("<module>", "/app/train.py", 90),
                    ),
                ),
            ),
        )
        flight = analyze_dumps(dumps_of(job, sidecars={1: own}))
        seen = Seen(flight=flight, stacks=(process(0, MODULE, REDUCE),))

        section = stacks_section(attrs.evolve(diagnosis(), seen=seen))

        first, *below = branches(section)
        assert "ranks 0-1" == first.who
        assert {"rank 0", "rank 1"} == {branch.who for branch in below}


class TestBranches:
    def test_fork(self):
        """
        Ranks part where they do different things; the blamed one comes first.
        """
        stacks = [process(r, MODULE, REDUCE) for r in (0, 1, 2)]

        section = stacks_section(
            diagnosis(*stacks, process(3, MODULE, READ), ranks=(3,))
        )

        whole, blamed, others = branches(section)
        assert ("ranks 0-3", 4, True) == (
            whole.who,
            whole.count,
            whole.is_open,
        )
        assert (False, "rank 3") == (whole.is_culprit, whole.culprits)
        assert ("rank 3", True, "", (3,)) == (
            blamed.who,
            blamed.is_culprit,
            blamed.culprits,
            blamed.ranks,
        )
        assert ("ranks 0-2", False) == (others.who, others.is_culprit)
        assert "all_reduce (distributed_c10d.py:28)" == others.leads
        assert (2, 2, 2, 1) == section.data["branch"]

    def test_stay(self):
        """
        Who stays where others go on is told apart.
        """
        section = stacks_section(
            diagnosis(process(0, MODULE), process(1, MODULE, READ))
        )

        first, second = branches(section)
        assert ("rank 0", "rank 1") == (first.here, second.who)
        assert "<module> (train.py:90) → 1 branch" == first.leads

    def test_healthy(self):
        """
        Nobody is blamed if nothing is wrong.
        """
        section = stacks_section(
            diagnosis(process(0, MODULE), ranks=(0,), cause=Cause.HEALTHY)
        )

        assert [False] == [b.is_culprit for b in branches(section)]

    def test_no_rank(self):
        """
        A process without a rank is blamed if it is quoted.
        """
        quoted = Evidence(kind="stack", source="s", location="pid 7, thread x")
        stacks = [
            process(None, MODULE, READ, pid=7, source="s"),
            process(None, MODULE, REDUCE, pid=8, source="s"),
        ]

        section = stacks_section(diagnosis(*stacks, evidence=(quoted,)))

        _, blamed, other = branches(section)
        assert ("pid 7", True) == (blamed.who, blamed.is_culprit)
        assert ("pid 8", False) == (other.who, other.is_culprit)

    def test_jobs(self):
        """
        Of several jobs, only ranks of the one that is quoted are blamed.
        """
        quoted = Evidence(kind="stack", source="stack-1", location="rank 1")
        stacks = [
            process(1, READ, job="a"),
            process(1, REDUCE, job="b", source="other"),
        ]

        section = stacks_section(
            diagnosis(*stacks, ranks=(1,), evidence=(quoted,))
        )

        assert [("rank 1 of a", True, ()), ("rank 1 of b", False, ())] == [
            (branch.who, branch.is_culprit, branch.ranks)
            for branch in branches(section)
        ]

    def test_role(self):
        """
        It is told what those do who are no ranks.
        """
        section = stacks_section(
            diagnosis(
                process(0, MODULE, role="rank"),
                process(None, READ, role="dataloader"),
            )
        )

        assert ["", "dataloader"] == [b.role for b in branches(section)]

    def test_many(self):
        """
        Of thousands of branches, the blamed and the largest are shown.
        """
        stacks = [
            process(r, MODULE, StackFrame(f"f{r}", "/app/a.py", 1))
            for r in range(3_000)
        ]

        section = stacks_section(diagnosis(*stacks, ranks=(2_999,)))

        first, blamed, *rest = branches(section)
        assert 400 == len(rest) + 2
        assert "rank 2999" == blamed.who
        assert first.rest.startswith("2,601 more branches: ranks 398-2998")
        assert 0 == section.data["branch"][2_998]

    def test_many_roots(self):
        """
        Outermost branches may be too many, too.
        """
        stacks = [
            process(2 * r, StackFrame(f"f{r}", "/app/a.py", 1))
            for r in range(402)
        ]

        section = stacks_section(diagnosis(*stacks))

        rest = section.values["picture"].rest
        assert "2 more branches: ranks 800,802" == rest
        assert -1 == section.data["branch"][-1]

    def test_who(self):
        """
        Of many ranks, some are named at once, and more on demand.
        """
        stacks = [process(2 * r, MODULE) for r in range(500)]

        section = stacks_section(diagnosis(*stacks))

        (branch,) = branches(section)
        assert 60 == len(branch.who)
        assert 1_000 == len(branch.whole)
        assert () == branch.ranks

    def test_stairs(self):
        """
        What parts again and again is shown to some depth.
        """
        steps = [StackFrame(f"f{n}", "/app/a.py", n) for n in range(200)]
        stacks = [process(r, *steps[: r + 1]) for r in range(200)]

        section = stacks_section(diagnosis(*stacks))

        *_, last = branches(section)
        assert 31 == len(branches(section))
        assert "1 more branch: ranks 31-199" == last.rest
        assert 30 == section.data["branch"][199]


class TestLines:
    def test_library(self):
        """
        Lines of libraries are folded, but for the last one.
        """
        section = stacks_section(diagnosis(process(0, MODULE, *LIBRARY)))

        (branch,) = branches(section)
        assert [["<module>"], ["f1", "f2", "f3", "f4"], ["f5"]] == names(
            branch
        )
        folded = branch.runs[1]
        assert (True, "4 frames of torch") == (folded.is_folded, folded.label)

    def test_interpreter(self):
        """
        Frames of the interpreter itself have no package.
        """
        frames = [StackFrame("f", "<string>", n) for n in (1, 2, 3)]
        nameless = [StackFrame("g", "", n) for n in (1, 2, 3)]

        first = stacks_section(diagnosis(process(0, *frames)))
        second = stacks_section(diagnosis(process(0, *nameless)))

        assert "2 frames of python" == branches(first)[0].runs[0].label
        labels = {run.label for run in branches(second)[0].runs}
        assert labels <= {"", "2 frames"}

    def test_recursion(self):
        """
        What follows itself is written once.
        """
        pair = [StackFrame(n, "/app/a.py", 1) for n in ("walk", "visit")]

        section = stacks_section(diagnosis(process(0, MODULE, *pair * 5_000)))

        (branch,) = branches(section)
        assert [["<module>"], ["walk", "visit"]] == names(branch)
        assert 5_000 == branch.runs[1].times

    def test_foreign_recursion(self):
        """
        A recursion within a library is folded.
        """
        section = stacks_section(diagnosis(process(0, *LIBRARY[:2] * 40)))

        (branch,) = branches(section)
        (run,) = branch.runs
        assert (True, 40, "2 frames of torch") == (
            run.is_folded,
            run.times,
            run.label,
        )

    def test_deep(self):
        """
        Of very many different frames, the first and the last are shown.
        """
        frames = [StackFrame(f"f{n}", "/app/a.py", n) for n in range(10_000)]

        section = stacks_section(diagnosis(process(0, *frames)))

        (branch,) = branches(section)
        assert [40, 0, 40] == [len(run.lines) for run in branch.runs]
        assert 9_920 == branch.runs[1].left_out
        assert "f9999" == branch.runs[2].lines[-1].name

    def test_long_names(self):
        """
        Names of any length and content become short and harmless.
        """
        frame = StackFrame(
            "x\x1b[31m\u202e" * 100_000, "/a/" + "y" * 300_000 + "\0", 3
        )

        section = stacks_section(diagnosis(process(0, frame)))

        (line,) = branches(section)[0].runs[0].lines
        assert "x" * 159 + "…" == line.name
        assert 300 == len(line.place)
        assert len(json.dumps(section.data)) < 10_000

    def test_windows(self):
        """
        Folders are told from files, however they are written.
        """
        frames = [
            StackFrame("f", "C:\\job\\a.py", 1),
            StackFrame("g", "a.py", 0),
            StackFrame("", "a.py", 2),
        ]

        section = stacks_section(diagnosis(process(0, *frames)))

        assert [
            ("f", "C:/job/", "a.py:1"),
            ("g", "", "a.py"),
            ("?", "", "a.py:2"),
        ] == [
            (line.name, line.folder, line.place)
            for line in branches(section)[0].runs[0].lines
        ]


class TestEnds:
    def test_doing(self):
        """
        It is told what those do who are at one place.
        """
        stacks = [process(r, MODULE, REDUCE) for r in range(20)]

        section = stacks_section(diagnosis(*stacks))

        (branch,) = branches(section)
        assert ("are waiting in a collective",) == branch.notes

    def test_states(self):
        """
        One that is stopped among others who wait is told apart.
        """
        stacks = [process(r, MODULE, REDUCE) for r in range(3)]

        section = stacks_section(
            diagnosis(*stacks, process(3, MODULE, REDUCE, state="T"))
        )

        (branch,) = branches(section)
        assert "ranks 0-2 are waiting in a collective" == branch.notes[0]
        assert branch.notes[1].startswith("rank 3 is stopped")

    def test_native(self):
        """
        The native function that all are in is named.
        """
        native = StackFrame("xpread", "libc.so", 0, is_native=True)
        thread = ThreadStack(
            name="", frames=(READ,), native=(native,), is_main=True
        )

        section = stacks_section(diagnosis(process(0, threads=(thread,))))

        (branch,) = branches(section)
        assert "xpread (native)" == branch.notes[-1]

    def test_kernels(self):
        """
        It is told what GPUs run, as far as there is room.
        """
        stacks = [
            process(
                r,
                MODULE,
                kernels=tuple(
                    GpuKernel(name=f"void k{n}(int)") for n in range(5 - r)
                ),
            )
            for r in range(2)
        ]

        section = stacks_section(diagnosis(*stacks))

        (branch,) = branches(section)
        assert (
            "are waiting for the kernel k0",
            "have k1 on the GPU",
            "have k2 on the GPU",
            "have k3 on the GPU",
            "1 more",
        ) == branch.notes

    def test_absent(self):
        """
        Who has no stack is told, with why.
        """
        section = stacks_section(
            diagnosis(process(0, MODULE), process(1), process(2, state="Z"))
        )

        assert ("rank 1: no stack", "rank 2: dead, no stack") == (
            section.values["absent"]
        )


class TestThreads:
    def test_words(self):
        """
        All that is known of a thread is told.
        """
        threads = (
            ThreadStack(name="main", frames=(READ,), is_main=True, state="S"),
            ThreadStack(
                name="busy",
                frames=(READ,),
                active=True,
                owns_gil=True,
                system_call=SystemCall(name="read", target="/x"),
            ),
            ThreadStack(name="late", frames=(READ,), waits_for_gil=True),
            ThreadStack(name="hot", frames=(READ,), active=True, state="R"),
            ThreadStack(name="pool", frames=(WORKER,)),
        )

        section = stacks_section(diagnosis(process(0, threads=threads)))

        data = section.data
        texts = data["texts"]
        (((numbers, left_out, kernels),), found) = (
            data["sets"],
            data["threads"],
        )
        assert (0, ()) == (left_out, kernels)
        assert [
            ("main", "main · sleeps", 2),
            ("busy", "holds the interpreter lock · read(/x)", 0),
            ("late", "wants the interpreter lock", 0),
            ("hot", "running", 0),
            ("pool", "", 1),
        ] == [
            (texts[name], texts[words], kind)
            for name, words, kind, *_ in (found[n] for n in numbers)
        ]

    def test_shared(self):
        """
        What is equal on all ranks is kept once.
        """
        stacks = [process(r, MODULE, REDUCE) for r in range(1_000)]

        data = stacks_section(diagnosis(*stacks)).data

        assert 1 == len(data["sets"]) == len(data["threads"])
        assert [0] * 1_000 == data["set"]
        place = f"{TORCH}/distributed/distributed_c10d.py:28"
        assert place in data["texts"]

    def test_equal_not_same(self):
        """
        Threads that are equal without being the same are kept once, too.
        """
        frames = [StackFrame("f", "/app/a.py", n) for n in (1, 1)]
        stacks = [process(r, frame) for r, frame in enumerate(frames)]

        data = stacks_section(diagnosis(*stacks)).data

        assert [0, 0] == data["set"]

    def test_deep(self):
        """
        Of a deep stack, both ends are kept.
        """
        frames = [StackFrame(f"f{n}", "/app/a.py", n) for n in range(1_000)]

        data = stacks_section(diagnosis(process(0, *frames))).data

        stack = max(data["stacks"], key=len)
        assert (201, -800) == (len(stack), stack[100])
        assert "f0" == data["texts"][data["frames"][stack[0]][0]]

    def test_threads(self):
        """
        Of very many threads of one process, the first are kept.
        """
        threads = tuple(
            ThreadStack(name=f"t{n}", frames=(READ,)) for n in range(500)
        )

        data = stacks_section(diagnosis(process(0, threads=threads))).data

        ((numbers, left_out, _),) = data["sets"]
        assert (200, 300) == (len(numbers), left_out)

    def test_room(self, monkeypatch):
        """
        If there is not room for all, those of the blamed are kept.
        """
        monkeypatch.setattr(threads_module, "_MOST_FRAMES", 1)
        stacks = [
            process(r, StackFrame(f"f{r}", "/app/a.py", r)) for r in range(3)
        ]

        data = stacks_section(diagnosis(*stacks, ranks=(1,))).data

        assert [-1, 0, -1] == data["set"]


class TestDownloads:
    def test_too_deep(self):
        """
        A file that would be too large is left out.
        """
        steps = [StackFrame(f"f{n}", "/app/a.py", n) for n in range(300)]
        stacks = [process(r, *steps[: r + 1]) for r in range(300)]

        section = stacks_section(diagnosis(*stacks))

        assert () == section.values["downloads"]
        assert {} == section.data["downloads"]
