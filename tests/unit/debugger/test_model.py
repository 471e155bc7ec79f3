"""
What ranks answer, and how it is shown and chosen.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.debugger import (
    Answers,
    DebugClient,
    Listing,
    Output,
    Process,
    Session,
    SilentProcess,
    connect,
    select_processes,
)
from distdebug.errors import DebuggerError


def process(rank, *, group="job", coords=None, threads=(), pid=None):
    """
    A rank, with threads that are stopped.
    """
    return Process(
        path=f"/s/{group}.{rank}.sock",
        group=group,
        rank=rank,
        coords=coords or {},
        host="node",
        pid=pid or 100 + rank,
        function="train",
        file="train.py",
        line=19,
        sessions=tuple(
            Session(
                key=f"node:{100 + rank}:5:{thread}:1",
                number=1,
                thread=thread,
                reason="breakpoint",
                state="stopped",
                function="step",
                file="train.py",
                line=7,
                left_s=9.0,
            )
            for thread in threads
        ),
    )


def said(rank, text, **others):
    """
    What one rank said.
    """
    return Output(**{"group": "job", "rank": rank, "text": text, **others})


class Seen(DebugClient):
    """
    A client that knows a listing, and asks nobody.
    """

    def list(self):
        """
        The ranks that are there.
        """
        return self.transport


def attach(listing, rank=None, **others):
    """
    The thread of one of these ranks that is attached to.
    """
    return Seen(listing).attach(rank, **others)


@pytest.fixture
def answers(socket_folder, answering_rank):
    """
    What a client makes of a rank that answers this: who it is, and what it
    says if it is asked for a stack.
    """

    def ask(answer):
        rank = answering_rank(socket_folder, 0)
        rank.answer = lambda _: answer
        with connect() as client:
            listing = client.list()
            return listing, client.stack().outputs[0]

    return ask


def test_the_odd_one_first():
    """
    Equal outputs are merged, and those of few ranks come first.
    """
    outputs = [said(r, "nan\n" if r == 2 else "1.5\n") for r in range(4)]

    assert "[2] nan\n[0-1,3] 1.5" == str(Answers(outputs=tuple(outputs)))


def test_shown_in_full():
    """
    Groups, threads, states, and errors are shown where they matter.
    """
    answers = Answers(
        outputs=(
            said(0, "a\nb", state="ended"),
            said(0, "x", name="loader 100%", state="running", group="eval"),
            said(1, "no such name", is_error=True, state="ended"),
        ),
        not_stopped=tuple(process(rank) for rank in range(5, 15)),
        silent=(SilentProcess(host="", pid=77),),
        notes=("note",),
    )

    assert [
        "[job 0]",
        "  a",
        "  b",
        "  (goes on)",
        "[eval 0 loader 100%]",
        "  x",
        "  (still running)",
        "[job 1] *** no such name",
    ] == str(answers).split("\n")[:8]
    assert "not stopped: job ranks 5-14 (at train.py:19 in train)" in str(
        answers
    )
    assert "interrupt job ranks(5)" in str(answers)
    assert "process 77 does not answer" in str(answers)
    assert str(answers).endswith("\nnote")
    assert [0, 0, 1] == [o["rank"] for o in answers.to_dict()["outputs"]]


def test_listed():
    """
    Threads that are stopped are numbered, and others are there as well.
    """
    listing = Listing(
        processes=(
            process(0, coords={"data": 1}, threads=["MainThread", "loader"]),
            process(1),
        ),
        silent=(SilentProcess(host="", pid=77),),
    )

    lines = str(listing).split("\n")

    assert ["#1", "job", "0", "data=1", "node", "MainThread"] == (
        lines[2].split()[:6]
    )
    assert "#2" == lines[3].split()[0]
    assert "not stopped" in lines[4]
    assert "train.py:19" in lines[4]
    assert "process 77" in lines[6]
    assert [0, 1] == [r["rank"] for r in listing.to_records()]
    assert [True, False] == [p.is_stopped for p in listing]


def test_cleaned(answers):
    """
    A rank cannot write escape sequences to the terminal of a client.
    """
    evil = "\x1b]0;title\x07\x1b[2Jred\u202e\r\n\tend\x9b1m"
    place = {"function": "\x1b[31mf", "file": evil, "line": "seven"}
    answer = {
        "process": {"group": evil, "host": evil, "coords": {evil: 1}},
        "main": place,
        "stops": [{"key": "k", "thread": evil, "reason": evil, **place}, 3],
        "output": evil,
    }

    listing, output = answers(answer)

    (found,) = listing.processes
    assert "red\n\tend" == output.text
    shown = str(listing) + output.display_text
    assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(shown)
    assert 0 == found.line
    assert "f" == found.function
    assert {"red   end": 1} == found.coords


@pytest.mark.parametrize(
    "threads", [None, "none", [None], [{}], [{"frames": [None]}]], ids=str
)
def test_answers_of_anything(answers, threads):
    """
    What a broken process says is no reason to fail.
    """
    listing, output = answers(
        {"process": 3, "main": None, "threads": threads, "error": "bad"}
    )

    (found,) = listing.processes
    assert ("job", 0, "", {}) == (
        found.group,
        found.rank,
        found.host,
        found.coords,
    )
    assert output.is_error


def frame(file, function, line=3, **more):
    """
    A frame as a rank sends it.
    """
    return {"file": file, "function": function, "line": line, **more}


INSIDE = "/x/distdebug/debugger/inside"


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        (
            [
                frame(f"{INSIDE}/stops.py", "read"),
                frame("/x/site-packages/torch/a.py", "f", code="g()"),
                frame("/job/train.py", "<module>", 9, code=""),
            ],
            "  /job/train.py:9 in <module>\n  torch/a.py:3 in f\n    g()",
        ),
        (
            [frame(f"{INSIDE}/a.py", "examine")],
            "  in the debugger; cast it: where",
        ),
    ],
    ids=["read", "only the debugger"],
)
def test_stack(answers, frames, text):
    """
    A stack reads as in a traceback, the innermost line last; it ends where
    the debugger begins, and names packages shortly.
    """
    _, output = answers({"threads": [{"thread": "t", "frames": frames}]})

    assert f"t:\n{text}" == output.text


def test_not_stopped():
    """
    For a rank that runs, the remedy is to interrupt it.
    """
    listing = Listing(processes=(process(0), process(1)))
    nameless = Answers(not_stopped=(process(None, pid=7),))

    with pytest.raises(DebuggerError) as plain:
        attach(listing, 1)
    with pytest.raises(DebuggerError) as grouped:
        attach(listing, 1, group="job")
    with pytest.raises(DebuggerError) as unknown:
        attach(listing, 2)

    assert "to stop it: interrupt ranks(1)" in plain.value.remedy
    assert "to stop it: interrupt job ranks(1)" in grouped.value.remedy
    assert "interrupt" not in unknown.value.remedy
    assert str(nameless).endswith("interrupt ranks(:)")


def test_patience(answers):
    """
    When others give up is known, or not.
    """
    stops = [{"patience_left_s": 600.4}, {"patience_left_s": None}, {}]

    listing, _ = answers({"stops": stops})

    assert [600, None, None] == [
        s.patience_left_s for _, s in listing.sessions
    ]


MESH = Listing(
    processes=tuple(
        process(rank, coords={"dp": rank // 2, "tp": rank % 2})
        for rank in range(4)
    )
)


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        (None, [0, 1, 2, 3]),
        ("ranks(:)", [0, 1, 2, 3]),
        ("ranks(3)", [3]),
        ("ranks(3,0,0)", [0, 3]),
        ("ranks(1:10:2)", [1, 3]),
        ("ranks(0,99)", [0]),
        ("ranks(dp=1)", [2, 3]),
        ("ranks(dp=1, tp=0)", [2]),
        ("ranks(dp=(0,1), tp=1:)", [1, 3]),
        ("ranks(tp=0:99)", [0, 1, 2, 3]),
    ],
)
def test_chosen(ranks, found):
    """
    A selection means those ranks that are there, each once.
    """
    assert found == [p.rank for p in select_processes(MESH, ranks, None)]


@pytest.mark.parametrize(
    ("ranks", "message", "remedy"),
    [
        ("ranks(7)", "ranks(7) selects no rank", "job ranks 0-3 (dp=0-1"),
        ("ranks(5:1)", "selects no rank", "tp=0-1"),
        ("ranks(pp=0, dp=0)", "no dimension pp", "job ranks 0-3"),
        ("ranks(dp=9)", "selects no rank", "job ranks 0-3"),
    ],
)
def test_nobody_chosen(ranks, message, remedy):
    """
    A selection without any rank is refused, with the ranks that there are.
    """
    with pytest.raises(DebuggerError) as caught:
        select_processes(MESH, ranks, None)

    assert message in str(caught.value)
    assert remedy in caught.value.remedy


def test_groups():
    """
    The group may be left out only if it is clear; workers that have nothing
    to do are not meant, unless they are named.
    """
    both = Listing(
        processes=(process(0, group="actor"), process(0, group="critic"))
    )
    some_idle = Listing(
        processes=(process(0, group="actor"), process(0, group="idle"))
    )
    all_idle = Listing(processes=some_idle.processes[1:])

    def groups(*asked):
        return [p.group for p in select_processes(*asked)]

    assert 2 == len(select_processes(both, None, None))
    assert ["critic"] == groups(both, "ranks(0)", "critic")
    assert ["actor"] == groups(some_idle, "ranks(:)", None)
    assert ["idle"] == groups(some_idle, "ranks(:)", "idle")
    assert ["actor", "idle"] == groups(some_idle, None, None)
    assert ["idle"] == groups(all_idle, "ranks(:)", None)
    with pytest.raises(DebuggerError, match="several groups"):
        select_processes(both, "ranks(0)", None)
    with pytest.raises(DebuggerError, match="no group judge"):
        select_processes(both, None, "judge")
    with pytest.raises(DebuggerError, match="no rank listens"):
        select_processes(Listing(), None, None)


def test_attached():
    """
    One thread is meant, or the error lists those there are; a rank that is not
    there, or in another group, is not to be stopped.
    """
    nameless = attrs.evolve(
        process(7, group="task", threads=["MainThread"]), rank=None
    )
    listing = Listing(
        processes=(
            process(0, threads=["MainThread", "loader"]),
            process(1, group="critic", threads=["MainThread"]),
            process(2),
            nameless,
        )
    )

    assert 1 == attach(listing, 1).process.rank
    assert 1 == attach(listing, 1, group="critic").process.rank
    assert {"MainThread", "loader"} >= {
        attach(listing, number=number).session.thread for number in (2, 3)
    }
    for asked, says in (
        ({"rank": 0}, r"#\d \(job, MainThread\), #\d"),
        ({"rank": 2}, "rank 2 is not stopped"),
        ({"number": 9}, "#9 is not stopped"),
        ({"rank": 0, "group": "judge"}, "no group judge"),
        ({"rank": 0, "group": "task"}, "there is no rank 0"),
    ):
        with pytest.raises(DebuggerError, match=says) as caught:
            attach(listing, **asked)
    assert "there are: task ranks -; attach #N" in caught.value.remedy


def labelled(group, rank, **coords):
    """
    A thread that stopped under labels of its own.
    """
    (session,) = process(rank, threads=[f"{group}-{rank}"]).sessions
    labels = {"group": group, "rank": rank, "coords": coords}
    return attrs.evolve(session, labels=labels)


def test_several_labels():
    """
    A process whose threads stopped under several labels is each of them.
    """
    both = attrs.evolve(
        process(1, group="procs"),
        sessions=(labelled("trainer", 0, tp=0), labelled("critic", 1, dp=1)),
    )
    listing = Listing(processes=(process(0, group="procs"), both))

    assert [("critic", 1), ("procs", 0), ("trainer", 0)] == [
        (p.group, p.rank) for p in listing
    ]
    assert ["critic-1"] == [
        s.thread
        for p in select_processes(listing, "ranks(dp=1)", "critic")
        for s in p.sessions
    ]
    assert "trainer-0" == attach(listing, 0).session.thread
    assert listing == Listing(processes=listing.processes)


def test_slices():
    """
    Two slices that stopped at the same rank are two sessions.
    """
    listing = Listing(
        processes=tuple(
            attrs.evolve(process(rank), sessions=(labelled("m", 0, view=0),))
            for rank in (1, 2)
        )
    )

    assert 2 == len(select_processes(listing, "ranks(view=0)", None))
    with pytest.raises(DebuggerError, match=r"more than once: #1 .*, #2 "):
        attach(listing, rank=0)
