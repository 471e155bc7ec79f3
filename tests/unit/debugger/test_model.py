"""
What ranks answer, and how it is shown and chosen.
"""

from __future__ import annotations

import attrs
import pytest

from distdebug.debugger import Answers, Listing, choose
from distdebug.debugger.client.answers import Output, merge_outputs
from distdebug.debugger.client.choosing import choose_session
from distdebug.debugger.client.model import (
    Process,
    Session,
    Silent,
    plain_text,
)
from distdebug.debugger.client.reading import process_of, read_output
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


def output(rank, text, **others):
    """
    What one rank said.
    """
    return Output(**{"group": "job", "rank": rank, "text": text, **others})


def test_the_odd_one_first():
    """
    Equal outputs are merged, and those of few ranks come first.
    """
    outputs = [output(r, "nan\n" if r == 2 else "1.5\n") for r in range(4)]

    assert (("2", "nan"), ("0-1,3", "1.5")) == merge_outputs(outputs)
    assert "[2] nan\n[0-1,3] 1.5" == str(Answers(outputs=tuple(outputs)))


def test_shown_in_full():
    """
    Groups, threads, states, and errors are told where they matter.
    """
    answers = Answers(
        outputs=(
            output(0, "a\nb", state="ended"),
            output(0, "x", name="loader", state="running", group="eval"),
            output(1, "no such name", is_error=True, state="ended"),
        ),
        not_stopped=tuple(process(rank) for rank in range(5, 15)),
        silent=(Silent(host="", pid=77),),
        notes=("note",),
    )

    assert [
        "[job 0]",
        "  a",
        "  b",
        "  (goes on)",
        "[eval 0 loader]",
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
        silent=(Silent(host="", pid=77),),
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


def test_nobody_listed():
    """
    An empty list says so.
    """
    assert "no rank listens here" == str(Listing())


def test_cleaned():
    """
    A rank cannot write to the terminal of whoever asks it.
    """
    evil = "\x1b]0;title\x07\x1b[2Jred\u202e\r\n\tend\x9b1m"
    place = {"function": "\x1b[31mf", "file": evil, "line": "seven"}
    answer = {
        "process": {"group": evil, "host": evil, "coords": {evil: 1}},
        "main": place,
        "stops": [{"key": "k", "thread": evil, "reason": evil, **place}, 3],
    }

    found = process_of("/s", answer)
    said = read_output(found, {"output": evil})

    assert "red\n\tend" == plain_text(evil) == said.text
    shown = str(Listing(processes=(found,))) + said.shown
    assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(shown)
    assert 0 == found.line
    assert "f" == found.function
    assert {"red   end": 1} == found.coords


def test_answers_of_anything():
    """
    What a broken process says is no reason to fail.
    """
    found = process_of("/s", {"process": 3, "main": None})

    assert ("job", 0, "", {}) == (
        found.group,
        found.rank,
        found.host,
        found.coords,
    )
    assert "" == read_output(found, {"threads": "none"}).text
    assert read_output(found, {"error": "bad"}).is_error


def test_stack():
    """
    A stack reads as in a traceback, the innermost line last.
    """
    frames = [
        {"function": "g", "file": "a.py", "line": 2, "code": "stop()"},
        {"function": "f", "file": "a.py", "line": 9, "code": ""},
    ]

    said = read_output(
        process(0), {"threads": [{"thread": "MainThread", "frames": frames}]}
    )

    assert [
        "MainThread:",
        "  a.py:9 in f",
        "  a.py:2 in g",
        "    stop()",
    ] == said.text.split("\n")


def test_ended_lines():
    """
    What a rank printed ends without a line break, like a value.
    """
    said = read_output(process(0), {"output": "1\n"})

    assert "1" == said.text


def test_not_stopped():
    """
    Who runs can be interrupted, and then be talked to.
    """
    listing = Listing(processes=(process(0), process(1)))

    with pytest.raises(DebuggerError) as plain:
        choose_session(listing, rank=1)
    with pytest.raises(DebuggerError) as grouped:
        choose_session(listing, rank=1, group="job")
    with pytest.raises(DebuggerError) as unknown:
        choose_session(listing, rank=2)

    assert "to stop it: interrupt ranks(1)" in plain.value.remedy
    assert "to stop it: interrupt job ranks(1)" in grouped.value.remedy
    assert "interrupt" not in unknown.value.remedy


def test_patience():
    """
    When others give up is known, or not.
    """
    stops = [{"patience_left_s": 600.4}, {"patience_left_s": None}, {}]

    found = process_of("/s", {"stops": stops})

    assert [600, None, None] == [s.patience_left_s for s in found.sessions]


def test_nameless():
    """
    Of ranks without a number, all are told how to be stopped.
    """
    answers = Answers(not_stopped=(process(None, pid=7),))

    assert str(answers).endswith("interrupt ranks(:)")


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
    assert found == [p.rank for p in choose(MESH, ranks, None)]


@pytest.mark.parametrize(
    ("ranks", "message", "remedy"),
    [
        ("ranks(7)", "ranks(7) selects nobody", "job ranks 0-3 (dp=0-1"),
        ("ranks(5:1)", "selects nobody", "tp=0-1"),
        ("ranks(pp=0, dp=0)", "no dimension pp", "job ranks 0-3"),
        ("ranks(dp=9)", "selects nobody", "job ranks 0-3"),
    ],
)
def test_nobody_chosen(ranks, message, remedy):
    """
    A selection that means nobody says so, and what there is.
    """
    with pytest.raises(DebuggerError) as caught:
        choose(MESH, ranks, None)

    assert message in str(caught.value)
    assert remedy in caught.value.remedy


def test_groups():
    """
    The group may be left out only if it is clear.
    """
    both = Listing(
        processes=(process(0, group="actor"), process(0, group="critic"))
    )

    assert 2 == len(choose(both, None, None))
    assert ["critic"] == [p.group for p in choose(both, "ranks(0)", "critic")]
    with pytest.raises(DebuggerError, match="several groups"):
        choose(both, "ranks(0)", None)
    with pytest.raises(DebuggerError, match="no group judge"):
        choose(both, None, "judge")
    with pytest.raises(DebuggerError, match="no rank listens"):
        choose(Listing(), None, None)


def test_attached():
    """
    One thread is meant, or it is said which there are.
    """
    listing = Listing(
        processes=(
            process(0, threads=["MainThread", "loader"]),
            process(1, group="critic", threads=["MainThread"]),
            process(2),
        )
    )

    assert 1 == choose_session(listing, rank=1)[0].rank
    assert "loader" == choose_session(listing, number=2)[1].thread
    assert 1 == choose_session(listing, rank=1, group="critic")[0].rank
    with pytest.raises(DebuggerError, match=r"#1 \(job, MainThread\), #2"):
        choose_session(listing, rank=0)
    with pytest.raises(DebuggerError, match="rank 2 is not stopped"):
        choose_session(listing, rank=2)
    with pytest.raises(DebuggerError, match="#9 is not stopped"):
        choose_session(listing, number=9)


def test_nobody_to_attach_to():
    """
    Nobody is told to stop a rank that is not there, or in another group.
    """
    listing = Listing(
        processes=(
            process(0),
            attrs.evolve(
                process(7, group="task", threads=["MainThread"]), rank=None
            ),
        )
    )

    with pytest.raises(DebuggerError, match="there is no rank 0") as caught:
        choose_session(listing, rank=0, group="task")

    assert "there are: task ranks -; attach #N" in caught.value.remedy
    with pytest.raises(DebuggerError, match="no group judge"):
        choose_session(listing, rank=0, group="judge")


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
        for p in choose(listing, "ranks(dp=1)", "critic")
        for s in p.sessions
    ]
    assert "trainer-0" == choose_session(listing, rank=0)[1].thread
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

    assert 2 == len(choose(listing, "ranks(view=0)", None))
    with pytest.raises(DebuggerError, match=r"more than once: #1 .*, #2 "):
        choose_session(listing, rank=0)


def test_idle():
    """
    Workers that have nothing to do are not meant, unless they are named.
    """
    listing = Listing(
        processes=(process(0, group="actor"), process(0, group="idle"))
    )

    assert ["actor"] == [p.group for p in choose(listing, "ranks(:)", None)]
    assert ["idle"] == [p.group for p in choose(listing, "ranks(:)", "idle")]
    assert 2 == len(choose(listing, None, None))
    alone = Listing(processes=listing.processes[1:])
    assert ["idle"] == [p.group for p in choose(alone, "ranks(:)", None)]
