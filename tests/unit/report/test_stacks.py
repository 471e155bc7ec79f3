"""
The merged stacks on the page.
"""

from __future__ import annotations

import json

import attrs
import pytest

from distdebug.causes import Cause
from distdebug.diagnosis import DiagnosisInputs
from distdebug.findings import Diagnosis, Evidence, Finding
from distdebug.flight_recorder import Sidecar, analyze_dumps
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
    return Diagnosis(verdict=verdict, seen=DiagnosisInputs(stacks=stacks))


class Branch:
    """
    A branch as the page shows it, and those below it.
    """

    def __init__(self, node):
        head, inside = node.all("summary")[0], node.all("div.inside")[0]
        self.number = int(node.given["data-branch"])
        self.is_open = "open" in node.given
        self.is_culprit = "is-culprit" in node.classes
        self.who, self.leads = head.one("span.who").text, ""
        self.leads = head.one("span.leads").text
        self.mark = " ".join(head.texts("span.mark"))
        self.counts = head.texts("span.count")
        own = [x for x in inside.parts if not isinstance(x, str)]
        self.whole = "".join(x.text for x in own if "whole" in x.classes)
        # Runs of lines: plain, of a library, one within the other, left out.
        self.runs = [x for x in own if x.tag == "ol" or x.classes & RUNS]
        self.gap = own[-1].text if "gap" in own[-1].classes else ""
        ends = [x for x in own if "end" in x.classes]
        self.notes = [text for x in ends for text in x.texts("p") if text]
        self.links = [text for x in ends for text in x.texts("a")]
        self.below = [Branch(x) for x in own if "branch" in x.classes]


RUNS = {"library", "turns", "gap"}


def names(run):
    """
    The functions of a run of lines.
    """
    items = [run] if run.tag == "ol" else run.all("ol")
    return [name for item in items for name in item.texts("span.name")]


@pytest.fixture
def stacks(part):
    """
    The part with all branches that are shown, each before those below it.
    """

    def make(*processes, **options):
        found = part("stacks", diagnosis(*processes, **options))
        if found is not None:
            add_branches(found)
        return found

    return make


def add_branches(found):
    """
    Give a part the branches of its tree.
    """
    tree = found.one("div.tree")
    own = [x for x in tree.parts if not isinstance(x, str)]
    todo = [Branch(x) for x in own if "branch" in x.classes][::-1]
    found.gap = "".join(x.text for x in own if "gap" in x.classes)
    found.branches = []
    while todo:
        found.branches.append(todo.pop())
        todo += found.branches[-1].below[::-1]


class TestSection:
    @pytest.mark.parametrize(
        ("processes", "expected"),
        [
            ([process(0)], None),
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
        ids=["none", "one", "same", "apart"],
    )
    def test_summary(self, stacks, processes, expected):
        """
        The summary counts processes and places; without any stack there is no
        such part.
        """
        found = stacks(*processes)

        assert expected == (found and found.summary)

    def test_data(self, stacks):
        """
        The script gets the rank and the branch of each process, and files.
        """
        found = stacks(process(0, MODULE), ranks=(0,))

        assert ([0], [0]) == (found.data["rank"], found.data["branch"])
        assert {"stacks.collapsed.txt", "stacks.speedscope.json"} == set(
            found.data["downloads"]
        )
        assert {"collapsed\xa0↓", "speedscope\xa0↓"} <= {
            "".join(button.parts) for button in found.all("button")
        }

    def test_side_cars(self, part, dumps_of):
        """
        The side-cars of ranks of which nothing was captured show where they
        are.
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
        seen = DiagnosisInputs(
            flight=flight, stacks=(process(0, MODULE, REDUCE),)
        )

        found = part("stacks", attrs.evolve(diagnosis(), seen=seen))

        assert [*("ranks 0-1", "rank 0", "rank 1")] == found.texts(
            "details.branch span.who"
        )


class TestBranches:
    def test_fork(self, stacks):
        """
        Ranks part where they do different things; the blamed one comes first.
        """
        alike = [process(r, MODULE, REDUCE) for r in (0, 1, 2)]

        found = stacks(*alike, process(3, MODULE, READ), ranks=(3,))

        whole, blamed, others = found.branches
        assert [
            ("ranks 0-3", ["4 processes"], "✕ rank 3 at fault", False),
            ("rank 3", [], "✕ at fault", True),
            ("ranks 0-2", ["3 processes"], "", False),
        ] == [(b.who, b.counts, b.mark, b.is_culprit) for b in found.branches]
        assert whole.is_open
        assert ["rank 3"] == blamed.links
        assert "all_reduce (distributed_c10d.py:28)" == others.leads
        assert [2, 2, 2, 1] == found.data["branch"]

    def test_stay(self, stacks):
        """
        A rank that stays where others go on is shown apart; no rank is blamed
        if nothing is wrong.
        """
        found = stacks(
            process(0, MODULE),
            process(1, MODULE, READ),
            ranks=(0,),
            cause=Cause.HEALTHY,
        )

        first, second = found.branches
        assert "rank 0 here:" == first.notes[0]
        assert "rank 1" == second.who
        assert "<module> (train.py:90) → 1 branch" == first.leads
        assert ["", ""] == [first.mark, second.mark]

    def test_no_rank(self, stacks):
        """
        A process without a rank is blamed if it is quoted.
        """
        quoted = Evidence(kind="stack", source="s", location="pid 7, thread x")

        found = stacks(
            process(None, MODULE, READ, pid=7, source="s"),
            process(None, MODULE, REDUCE, pid=8, source="s"),
            evidence=(quoted,),
        )

        assert [("pid 7", True), ("pid 8", False)] == [
            (b.who, b.is_culprit) for b in found.branches[1:]
        ]

    def test_jobs(self, stacks):
        """
        Of several jobs, only ranks of the one that is quoted are blamed.
        """
        quoted = Evidence(kind="stack", source="stack-1", location="rank 1")

        found = stacks(
            process(1, READ, job="a"),
            process(1, REDUCE, job="b", source="other"),
            ranks=(1,),
            evidence=(quoted,),
        )

        assert [("rank 1 of a", True, []), ("rank 1 of b", False, [])] == [
            (b.who, b.is_culprit, b.links) for b in found.branches
        ]

    def test_role(self, stacks):
        """
        The role of processes that are no ranks is shown.
        """
        found = stacks(
            process(0, MODULE, role="rank"),
            process(None, READ, role="dataloader"),
        )

        assert [[], ["dataloader"]] == [b.counts for b in found.branches]

    def test_many(self, stacks):
        """
        Of thousands of branches, the blamed and the largest are shown.
        """
        apart = [
            process(r, MODULE, StackFrame(f"f{r}", "/app/a.py", 1))
            for r in range(3_000)
        ]

        found = stacks(*apart, ranks=(2_999,))

        first, blamed, *rest = found.branches
        assert 400 == len(rest) + 2
        assert "rank 2999" == blamed.who
        assert first.gap.startswith("2,601 more branches: ranks 398-2998")
        assert 0 == found.data["branch"][2_998]

    def test_many_roots(self, stacks):
        """
        Outermost branches may be too many, too.
        """
        found = stacks(
            *(
                process(2 * r, StackFrame(f"f{r}", "/app/a.py", 1))
                for r in range(402)
            )
        )

        assert "2 more branches: ranks 800,802" == found.gap
        assert -1 == found.data["branch"][-1]

    def test_who(self, stacks):
        """
        Of many ranks, some are named at once, and more on demand.
        """
        found = stacks(*(process(2 * r, MODULE) for r in range(500)))

        (branch,) = found.branches
        assert (60, 1_000) == (len(branch.who), len(branch.whole))
        assert [] == branch.links

    def test_stairs(self, stacks):
        """
        What parts again and again is shown to some depth.
        """
        steps = [StackFrame(f"f{n}", "/app/a.py", n) for n in range(200)]

        found = stacks(*(process(r, *steps[: r + 1]) for r in range(200)))

        assert 31 == len(found.branches)
        assert "1 more branch: ranks 31-199" == found.branches[-1].gap
        assert 30 == found.data["branch"][199]


class TestLines:
    def test_library(self, stacks):
        """
        Lines of libraries are folded, but for the last one.
        """
        (branch,) = stacks(process(0, MODULE, *LIBRARY)).branches

        assert [["<module>"], ["f1", "f2", "f3", "f4"], ["f5"]] == [
            names(run) for run in branch.runs
        ]
        folded = branch.runs[1]
        assert {"library"} == folded.classes
        assert "4 frames of torch" == folded.one("summary").text

    @pytest.mark.parametrize(
        ("file", "label"),
        [("<string>", "2 frames of python"), ("", "2 frames")],
        ids=["interpreter", "nameless"],
    )
    def test_interpreter(self, stacks, file, label):
        """
        Frames of the interpreter itself have no package.
        """
        frames = [StackFrame("f", file, n) for n in (1, 2, 3)]

        (branch,) = stacks(process(0, *frames)).branches

        labels = {x for run in branch.runs for x in run.texts("summary")}
        assert labels <= {label}
        assert ["f"] * 3 == [n for run in branch.runs for n in names(run)]

    def test_recursion(self, stacks):
        """
        What follows itself is written once; within a library, it is folded.
        """
        pair = [StackFrame(n, "/app/a.py", 1) for n in ("walk", "visit")]

        own = stacks(process(0, MODULE, *pair * 5_000)).branches[0]
        torch = stacks(process(0, *LIBRARY[:2] * 40)).branches[0]

        assert [["<module>"], ["walk", "visit"]] == [
            names(run) for run in own.runs
        ]
        gap = "5,000 times, one within the other"
        assert [gap] == own.runs[1].texts("p.gap")
        assert ["2 frames of torch, 40 times"] == [
            run.one("summary").text for run in torch.runs
        ]

    def test_deep(self, stacks):
        """
        Of very many different frames, the first and the last are shown; of
        those that the script gets, too.
        """
        frames = [StackFrame(f"f{n}", "/app/a.py", n) for n in range(5_000)]

        found = stacks(process(0, *frames))

        first, gap, last = found.branches[0].runs
        assert (40, 40) == (len(names(first)), len(names(last)))
        assert "… 4,920 more frames …" == gap.text
        assert "f4999" == names(last)[-1]
        stack = max(found.data["stacks"], key=len)
        assert (201, -4800) == (len(stack), stack[100])
        frame = found.data["frames"][stack[0]]
        assert "f0" == found.data["texts"][frame[0]]

    def test_long_names(self, stacks):
        """
        Names of any length and content become short and harmless.
        """
        frame = StackFrame(
            "x\x1b[31m\u202e" * 20_000, "/a/" + "y" * 300_000 + "\0", 3
        )

        found = stacks(process(0, frame))

        (line,) = found.branches[0].runs[0].all("li")
        assert "x" * 159 + "…" == line.one("span.name").text
        place = line.one("code").text.removeprefix("/a/")
        assert 300 == len(place)
        assert len(json.dumps(found.data)) < 10_000

    def test_windows(self, stacks):
        """
        Folders and files are shown apart, however they are written.
        """
        frames = [
            StackFrame("f", "C:\\job\\a.py", 1),
            StackFrame("g", "a.py", 0),
            StackFrame("", "a.py", 2),
        ]

        (branch,) = stacks(process(0, *frames)).branches

        assert ["f C:/job/a.py:1", "g a.py", "? a.py:2"] == branch.runs[
            0
        ].texts("li")
        assert ["C:/job/"] == branch.runs[0].texts("span.folder")


class TestEnds:
    def test_states(self, stacks):
        """
        The page says what the ranks at one place do; one that is stopped among
        others that wait is shown apart.
        """
        alike = [process(r, MODULE, REDUCE) for r in range(20)]
        stopped = process(20, MODULE, REDUCE, state="T")

        all_wait = stacks(*alike).branches[0]
        but_one = stacks(*alike, stopped).branches[0]

        assert ["are waiting in a collective"] == all_wait.notes
        assert "ranks 0-19 are waiting in a collective" == but_one.notes[0]
        assert but_one.notes[1].startswith("rank 20 is stopped")

    def test_native(self, stacks):
        """
        The native function that all are in is named.
        """
        native = StackFrame("xpread", "libc.so", 0, is_native=True)
        thread = ThreadStack(
            name="", frames=(READ,), native=(native,), is_main=True
        )

        (branch,) = stacks(process(0, threads=(thread,))).branches

        assert branch.notes[-1].endswith("xpread (native)")

    def test_kernels(self, stacks):
        """
        The page says what GPUs run, as far as there is room.
        """
        running = [
            process(
                r,
                MODULE,
                kernels=tuple(
                    GpuKernel(name=f"void k{n}(int)") for n in range(5 - r)
                ),
            )
            for r in range(2)
        ]

        (branch,) = stacks(*running).branches

        assert [
            "rank 0 rank 1 are waiting for the kernel k0",
            "have k1 on the GPU",
            "have k2 on the GPU",
            "have k3 on the GPU",
            "1 more",
        ] == branch.notes

    @pytest.mark.parametrize("state", ["Z", "X", "x"])
    def test_absent(self, stacks, state):
        """
        A process without a stack is named, with the reason.
        """
        found = stacks(process(0, MODULE), process(1), process(2, state=state))

        assert [
            "rank 1: no stack",
            "rank 2: dead, no stack",
        ] == found.texts("p.absent")


class TestThreads:
    def test_words(self, stacks):
        """
        All that is known of a thread is shown.
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

        data = stacks(process(0, threads=threads)).data

        texts, found = data["texts"], data["threads"]
        ((numbers, left_out, kernels),) = data["sets"]
        assert (0, []) == (left_out, kernels)
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

    def test_shared(self, stacks):
        """
        What is equal on all ranks is kept once, also if it is not the same.
        """
        frames = [
            StackFrame("all_reduce", f"{TORCH}/distributed/x.py", 28)
            for _ in range(1_000)
        ]

        data = stacks(*(process(r, MODULE, x) for r, x in enumerate(frames)))

        data = data.data
        assert 1 == len(data["sets"]) == len(data["threads"])
        assert [0] * 1_000 == data["set"]
        assert f"{TORCH}/distributed/x.py:28" in data["texts"]

    def test_threads(self, stacks):
        """
        Of very many threads of one process, the first are kept.
        """
        threads = tuple(
            ThreadStack(name=f"t{n}", frames=(READ,)) for n in range(500)
        )

        data = stacks(process(0, threads=threads)).data

        ((numbers, left_out, _),) = data["sets"]
        assert (200, 300) == (len(numbers), left_out)

    def test_room(self, stacks, monkeypatch):
        """
        If there is not room for all, those of the blamed are kept.
        """
        # A limit of so many frames takes seconds to reach.
        monkeypatch.setattr("distdebug.report.stacks._MAX_STORED_FRAMES", 1)
        apart = [
            process(r, StackFrame(f"f{r}", "/app/a.py", r)) for r in range(3)
        ]

        assert [-1, 0, -1] == stacks(*apart, ranks=(1,)).data["set"]


class TestDownloads:
    def test_too_deep(self, stacks):
        """
        A file that would be too large is left out.
        """
        steps = [StackFrame(f"f{n}", "/app/a.py", n) for n in range(300)]

        found = stacks(*(process(r, *steps[: r + 1]) for r in range(300)))

        assert {} == found.data["downloads"]
        assert [] == [
            x for x in found.all("button") if "data-download" in x.given
        ]
