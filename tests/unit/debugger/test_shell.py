"""
The prompt of the debugger: what is typed, shown, and completed.
"""

from __future__ import annotations

import io
import sys

from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from distdebug.debugger import (
    Answers,
    Listing,
    choose,
    help_text,
    line_editing,
    listing_text,
    obey,
    parse_command,
    run_shell,
)
from distdebug.debugger.client import shell, talking
from distdebug.debugger.client.answers import Output
from distdebug.debugger.client.attaching import Attached
from distdebug.debugger.client.choosing import choose_session
from distdebug.debugger.client.commands import WORDS
from distdebug.debugger.client.helping import HELP
from distdebug.debugger.client.model import Process, Session
from distdebug.debugger.client.reading import stack_text
from distdebug.debugger.client.showing import news_text
from distdebug.debugger.client.talking import meant_for_all
from distdebug.errors import DebuggerError


def session(key, **changes):
    """
    A thread that is held.
    """
    usual = {
        "number": 1,
        "thread": "MainThread",
        "reason": "breakpoint",
        "state": "stopped",
        "function": "step",
        "file": "/job/train.py",
        "line": 7,
        "left_s": 1700,
    }
    return Session(key=key, **{**usual, **changes})


def process(rank, *held, **changes):
    """
    A rank of a mesh of two times two.
    """
    usual = {
        "path": f"{rank}.sock",
        "group": "job",
        "rank": rank,
        "coords": {"dp": rank // 2, "tp": rank % 2},
        "host": "node",
        "pid": 1000 + rank,
        "function": "wait",
        "file": "/job/train.py",
        "line": 9,
    }
    return Process(**{**usual, **changes}, sessions=held)


class Job:
    """
    Four ranks that are stopped, and the client that asks them.
    """

    def __init__(self):
        self.now = {n: process(n, session(f"k{n}")) for n in range(4)}
        self.silent = ()
        self.given = []
        self.says = {}
        self.last = {}
        self.ranks = self

    def list(self):
        """
        Who is there.
        """
        return Listing(processes=tuple(self.now.values()), silent=self.silent)

    def attach(self, rank, group=None):
        """
        Talk to one.
        """
        return Attached(
            self, *choose_session(self.list(), rank=rank, group=group)
        )

    def move(self, rank, *held):
        """
        Let a rank be held elsewhere, or nowhere.
        """
        self.now[rank] = attrs.evolve(self.now[rank], sessions=held)

    def cast(self, ranks, line, **_):
        """
        Let several obey.
        """
        chosen = choose(self.list(), ranks, None)
        return Answers(
            outputs=tuple(
                Output(group="job", rank=p.rank, text=f"did {line}\n")
                for p in chosen
            )
        )

    def ask_sessions(self, held, request):
        """
        What one rank answers.
        """
        ((rank, key),) = [(p.rank, s.key) for p, s in held]
        if request["op"] == "last":
            states = {s.key: s.state for s in self.now[rank].sessions}
            usual = states.get(key, "ended"), "> train.py(7)step()\n"
            state, text = self.last.pop(rank, None) or usual
        else:
            line = request["line"]
            self.given.append((rank, line))
            does = self.says.get(line, ("stopped", f"did {line}\n"))
            state, text = does() if callable(does) else does
        if state == "mute":
            return Answers(silent=(1000 + rank,))
        is_error = text.startswith("it is")
        return Answers(
            outputs=(
                Output(
                    group="job",
                    rank=rank,
                    text=text,
                    state=state,
                    is_error=is_error,
                ),
            )
        )


@pytest.fixture
def job(monkeypatch):
    """
    A job of four ranks, which nobody waits for.
    """
    monkeypatch.setattr(talking, "_FOLLOW_S", 0.05)
    monkeypatch.setattr(talking, "_POLL_S", 0.01)
    return Job()


@pytest.fixture
def talk(job):
    """
    Types lines at the prompt, and returns what is shown, and the prompts.
    """

    def typed(*lines):
        todo = list(lines)
        shown, prompts = [], []

        def ask(prompt):
            prompts.append(prompt)
            if not todo:
                raise EOFError
            line = todo.pop(0)
            if callable(line):
                line()
                line = ""
            if isinstance(line, BaseException):
                raise line
            return line

        run_shell(job, ask=ask, show=shown.append, wait_s=0.05)
        if shown[-1].startswith("still stopped"):
            shown.pop()
        return shown[1:], prompts

    return typed


class TestOuterPrompt:
    def test_enters_at_once(self, job):
        """
        It begins with the list of ranks, and tells how to go on.
        """
        shown = []

        run_shell(job, ask=lambda _: "q", show=shown.append)

        assert "#4" in shown[0]
        assert shown[0].endswith("for help, type help")

    def test_end(self, talk):
        """
        Ctrl-D leaves; Ctrl-C does not.
        """
        shown, prompts = talk(KeyboardInterrupt())

        assert ["distdebug> "] * 2 == prompts
        assert [""] == shown

    def test_left_behind(self, job):
        """
        Who leaves is told which ranks are still held, and for how long.
        """
        shown = []
        job.move(1)
        job.move(2, session("k2", left_s=1200))

        run_shell(job, ask=lambda _: "q", show=shown.append)

        assert "still stopped, for 28 min at most: ranks 0,2-3" == shown[-1]

    def test_nobody_left_behind(self, job):
        """
        Who leaves nobody behind, or cannot know, is told nothing.
        """
        shown = []
        job.now = {}

        def ask(_):
            job.list = fails
            return "q"

        def fails():
            msg = "the node is gone"
            raise DebuggerError(msg)

        run_shell(job, ask=lambda _: "q", show=shown.append)
        run_shell(job, ask=ask, show=shown.append)

        assert 2 == len(shown)

    def test_no_text(self, talk):
        """
        Bytes that are no text are no reason to leave.
        """
        wrong = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")

        shown, prompts = talk(wrong, "q")

        assert [""] == shown
        assert 2 == len(prompts)

    def test_cast(self, talk):
        """
        A cast shows merged answers.
        """
        shown, _ = talk("cast ranks(dp=1) p x", "quit")

        assert ["[2-3] did p x"] == shown

    def test_absent(self, talk):
        """
        Who is named but not there is told of.
        """
        shown, _ = talk("cast ranks(1,7,8) n", "cast ranks(1:9) n", "q")

        assert ["[1] did n\nnot there: ranks 7-8", "[1-3] did n"] == shown

    def test_mistake(self, talk):
        """
        A mistake is explained, in lines of bounded length, and the talk goes on.
        """
        shown, _ = talk("fly", f"cast ranks({'9' * 5000}) n", "detach", "q")

        assert shown[0].startswith("not a command: 'fly'\nTry: one of")
        assert "selects nobody" not in shown[0]
        assert 1500 > len(shown[1])
        assert "there are: job ranks 0-3" in shown[1]
        assert "not attached to a rank" == shown[2]

    def test_help(self, talk):
        """
        Help is given on everything, or on one word.
        """
        shown, _ = talk("help", "h c", "help flying", "q")

        assert HELP == shown[0]
        assert shown[1].startswith("continue (c)")
        assert "there is no help on 'flying'" in shown[2]

    def test_list_some(self, talk):
        """
        Some ranks can be listed, under the numbers that they have among all.
        """
        shown, _ = talk("list ranks(2)", "q")

        assert "#3" in shown[0]
        assert "#1" not in shown[0]

    def test_news(self, job, talk):
        """
        An empty line tells what has changed, and is silent if nothing has.
        """
        shown, _ = talk("", lambda: job.move(1), "", "q")

        assert ["[1] goes on"] == shown

    def test_number_is_what_was_shown(self, job, talk):
        """
        A number means what it meant when it was shown.
        """
        shown, prompts = talk(
            lambda: job.move(0), "attach #3", "detach", "attach #9", "q"
        )

        assert "(rank 2) " in prompts
        assert "#9 is not stopped" in shown[-1]

    def test_number_of_who_went_on(self, job, talk):
        """
        A number of somebody who went on since attaches nobody else.
        """

        def quietly():
            job.move(1)
            raise KeyboardInterrupt

        shown, prompts = talk(quietly, "attach #2", "q")

        assert "#2 was rank 1, which went on since" in shown[-1]
        assert {"distdebug> "} == set(prompts)

    def test_pipe(self, job, monkeypatch, capsys):
        """
        Lines can come from a pipe, where a prompt would only disturb.
        """
        lines = io.StringIO("cast ranks(:) p x\n")
        monkeypatch.setattr(sys, "stdin", lines)

        run_shell(job)

        out = capsys.readouterr().out
        assert "[0-3] did p x" in out
        assert "distdebug>" not in out

    def test_width(self, job, monkeypatch):
        """
        The list fits into a terminal.
        """
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: 1))
        monkeypatch.setenv("COLUMNS", "70")
        shown = []

        run_shell(job, ask=lambda _: "q", show=shown.append)

        assert 70 >= max(map(len, shown[0].splitlines()))
        assert "function" not in shown[0].splitlines()[0]
        assert "left out, as the terminal is narrow: function" in shown[0]

    def test_one_thread(self, job, talk):
        """
        One of several threads of a rank obeys, by its number in the list.
        """
        job.move(1, session("k1"), session("k9", thread="prefetch"))

        talk("eval #3 n", "cast #1 up", "continue #2", "abort #4")
        talk("stack #5", "cast #2 p n")

        assert [
            (1, "p n"),
            (0, "up"),
            (1, "detach"),
            (2, "abort"),
            (3, "where"),
            (1, "p n"),
        ] == job.given

    def test_extended(self, job):
        """
        One thread may wait longer.
        """
        asked = []
        job.ask_sessions = lambda held, request: asked.append((held, request))

        obey(job, parse_command("extend #2 1"))

        ((held,), request) = asked[0]
        assert "k1" == held[1].key
        assert {"op": "extend", "seconds": 60.0} == request


class TestAttached:
    def test_greeting(self, talk):
        """
        Who attaches sees where the rank is, and what it said last.
        """
        shown, prompts = talk("attach 2", "detach", "q")

        assert [
            "rank 2: breakpoint at train.py:7 in step; 28 min left",
            "> train.py(7)step()",
        ] == shown[0].splitlines()
        assert ["distdebug> ", "(rank 2) ", "distdebug> "] == prompts

    def test_greeting_after_a_cast(self, job, talk):
        """
        What was printed for somebody else is not taken for the place.
        """
        job.last[2] = ("stopped", "nan\n")

        shown, _ = talk("attach 2", "detach", "q")

        assert ["last output:", "nan"] == shown[0].splitlines()[1:]

    def test_obeys(self, job, talk):
        """
        Lines go to the rank as they are typed.
        """
        shown, _ = talk("a 1", "p  x ", "!x = 1", EOFError(), "q")

        assert [(1, "p  x "), (1, "!x = 1")] == job.given
        assert ["did p  x ", "did !x = 1"] == shown[1:]

    def test_empty_line(self, job, talk):
        """
        An empty line repeats, but not what somebody else has typed before.
        """
        shown, _ = talk("a 1", "", "n", "", "detach", "q")

        assert [(1, "n"), (1, "")] == job.given
        assert "> train.py(7)step()" == shown[1]

    def test_runs_for_long(self, job, talk):
        """
        A rank that runs for long is looked at, and not told to step again.
        """
        job.says["n"] = ("running", "")
        busy = "it is busy with another command"
        job.says["p x"] = ("running", busy)

        def still_runs():
            job.move(1, session("k1", state="running"))

        def stops():
            job.move(1, session("k1", line=8))

        shown, _ = talk("a 1", "n", "p x", still_runs, stops, "detach", "q")

        assert [(1, "n"), (1, "p x")] == job.given
        running = (
            "(still running; an empty line looks again, detach leaves it)"
        )
        assert [running] * 2 == shown[1:3]
        assert shown[3].endswith(running)
        assert "> train.py(7)step()" == shown[4]

    def test_done(self, job, talk):
        """
        A rank that is done, and printed nothing, is said to wait.
        """
        job.says["!x"] = ("running", "")

        def is_done():
            job.last[1] = ("stopped", "")

        shown, _ = talk("a 1", "!x", is_done, "detach", "q")

        assert "(waits for a command)" == shown[2]

    def test_interrupted_waiting(self, job, talk):
        """
        Ctrl-C ends the waiting; then the rank is looked at.
        """

        def interrupted():
            raise KeyboardInterrupt

        job.says["n"] = interrupted

        shown, prompts = talk("a 1", "n", "", "detach", "q")

        assert [(1, "n")] == job.given
        assert "no rank was interrupted" in shown[1]
        assert "(rank 1) " == prompts[2]
        assert "> train.py(7)step()" == shown[2]

    def test_interrupted_command(self, job, talk):
        """
        Ctrl-C ends the waiting for all ranks, too.
        """

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        job.cast = interrupted

        shown, prompts = talk("cast ranks(:) n", "q")

        assert "no rank was interrupted" in shown[0]
        assert ["distdebug> "] * 2 == prompts

    def test_goes_on(self, job, talk):
        """
        Who lets a rank go on comes back.
        """

        def goes():
            job.move(1)
            return "ended", ""

        job.says["c"] = job.says["q"] = goes

        shown, prompts = talk("a 1", "c", "a 2", "q", "q")

        assert "rank 1 goes on" == shown[1]
        assert "rank 2 goes on" == shown[3]
        assert "distdebug> " == prompts[2]

    def test_next_breakpoint(self, job, talk):
        """
        A rank that comes to its next breakpoint at once stays attached.
        """

        def arrives():
            job.move(1, session("k9", line=22))
            return "ended", ""

        job.says["c"] = arrives

        shown, prompts = talk("a 1", "c", "detach", "q")

        assert shown[1].startswith("rank 1: breakpoint at train.py:22 in step")
        assert "(rank 1) " == prompts[2]

    def test_quit_does_not_follow(self, job, talk):
        """
        Who lets a rank alone is not taken to its next stop.
        """

        def arrives():
            job.move(1, session("k9", line=22))
            return "ended", ""

        job.says["q"] = arrives

        shown, prompts = talk("a 1", "q", "q")

        assert "rank 1 goes on" == shown[1]
        assert "distdebug> " == prompts[2]

    def test_other_thread(self, job, talk):
        """
        The stop of another thread is not where this one stops.
        """

        def goes():
            job.move(1, session("k9", thread="Thread-1"))
            return "ended", "bye\n"

        job.says["c"] = goes

        shown, prompts = talk("a 1", "c", "a 1", "detach", "q")

        assert ["bye", "rank 1 goes on"] == shown[1:3]
        assert "(rank 1 Thread-1) " == prompts[3]

    def test_post_mortem(self, job, talk):
        """
        After a post mortem the exception goes on.
        """
        job.move(1, session("k1", reason="post mortem"))
        job.says["c"] = ("ended", "")

        shown, _ = talk("a 1", "c", "q")

        assert "rank 1 goes on, by its exception" == shown[1]

    def test_aborted(self, job, talk):
        """
        Who aborts a rank is not told that it goes on.
        """
        job.says["abort"] = ("ended", "")

        shown, prompts = talk("a 1", "abort", "q")

        assert "rank 1 is aborted" == shown[1]
        assert "distdebug> " == prompts[2]

    def test_has_ended(self, job, talk):
        """
        Of a rank whose process has ended, that is said.
        """

        def ends():
            del job.now[1]
            return "mute", ""

        job.says["p x"] = ends

        shown, prompts = talk("a 1", "p x", "q")

        assert "rank 1 has ended" == shown[1]
        assert "distdebug> " == prompts[2]

    def test_mute(self, job, talk):
        """
        A rank that does not answer stays attached.
        """
        job.says["p x"] = ("mute", "")

        shown, prompts = talk("a 1", "p x", "detach", "q")

        assert "rank 1 does not answer" in shown[1]
        assert "(rank 1) " == prompts[2]

    def test_silent_job(self, job, talk):
        """
        A rank that is not listed because it is silent has not ended.
        """

        def hides():
            del job.now[1]
            job.silent = ()
            job.list = lambda: Listing(
                processes=tuple(job.now.values()), silent=(1001,)
            )
            return "ended", ""

        job.says["c"] = hides

        shown, _ = talk("a 1", "c", "q")

        assert "rank 1 goes on" == shown[1]

    def test_others(self, job, talk):
        """
        Others can be asked from there; what is pdb or Python stays there.
        """
        shown, prompts = talk(
            "a 1",
            "cast ranks(0) p x",
            "list ranks(3)",
            "attach 2",
            "list",
            "cast ranks(x n",
            "detach",
            "q",
        )

        assert [(2, "list")] == job.given
        assert "[0] did p x" == shown[1]
        assert "#4" in shown[2]
        assert "expected" in shown[5]
        assert ["(rank 1) "] * 3 + ["(rank 2) "] * 3 == prompts[1:7]

    def test_help(self, talk):
        """
        The help of pdb is followed by what else can be typed.
        """
        shown, _ = talk("a 1", "help", "help cast", "detach", "q")

        assert "did help" == shown[1]
        assert "detach comes back" in shown[2]
        assert shown[3].startswith("cast [GROUP]")

    def test_groups(self, job, talk):
        """
        Where there are several groups, the prompt names that of the rank.
        """
        job.now[7] = process(0, session("k7"), group="actor", path="7.sock")

        _, prompts = talk("attach actor 0", "detach", "q")

        assert "(actor rank 0) " == prompts[1]


class TestObeying:
    def test_some_listed(self, job):
        """
        A list of some ranks, for programs, holds only those.
        """
        listing = obey(job, parse_command("list ranks(dp=1)"))

        assert [2, 3] == [p.rank for p in listing.processes]
        assert 4 == len(obey(job, parse_command("list")).processes)

    def test_silent_are_not_absent(self, job):
        """
        Where somebody does not answer, nobody is said to be absent.
        """
        job.stack = lambda *_, **__: Answers(silent=(1007,))

        answers = obey(job, parse_command("stack ranks(1,7)"))

        assert () == answers.notes

    def test_words(self):
        """
        Each command asks the client for what it says.
        """
        asked = []

        def method(word):
            def ask(*args, **options):
                given = {k: v for k, v in options.items() if v is not None}
                texts = [str(a) if a is not None else None for a in args]
                asked.append((word, texts, given))
                return Answers()

            return ask

        words = [
            "cast",
            "eval",
            "stack",
            "interrupt",
            "resume",
            "extend",
            "abort",
        ]
        client = SimpleNamespace(**{w: method(w) for w in words})
        lines = [
            "cast g ranks(:) n",
            "eval ranks(:) x",
            "stack",
            "interrupt",
            "resume g ranks(1:)",
            "extend 2",
            "abort ranks(:)",
            "continue",
        ]
        for line in lines:
            obey(client, parse_command(line), wait_s=3.0)

        assert [
            ("cast", ["ranks(:)", "n"], {"group": "g", "wait_s": 3.0}),
            ("eval", ["ranks(:)", "x"], {"wait_s": 3.0, "up": 0}),
            ("stack", [None], {"all_threads": False}),
            ("interrupt", [None], {}),
            ("resume", ["ranks(1:)"], {"group": "g"}),
            ("extend", ["120.0", None], {}),
            ("abort", ["ranks(:)"], {}),
            ("cast", [None, "detach"], {}),
        ] == asked


class TestStack:
    def frame(self, file, function, **more):
        """
        A frame as a rank tells it.
        """
        return {"file": file, "function": function, "line": 3, **more}

    def test_read(self):
        """
        A stack ends where the debugger begins, and names packages shortly.
        """
        frames = [
            self.frame("/x/distdebug/debugger/inside/stops.py", "read"),
            self.frame("/x/site-packages/torch/a.py", "f", code="g()"),
            self.frame("/job/train.py", "<module>"),
        ]

        text = stack_text([{"thread": "MainThread", "frames": frames}])

        assert [
            "MainThread:",
            "  /job/train.py:3 in <module>",
            "  torch/a.py:3 in f",
            "    g()",
        ] == text.splitlines()

    def test_only_the_debugger(self):
        """
        Of a thread that is examined post mortem, that is said.
        """
        frames = [self.frame("/x/distdebug/debugger/inside/a.py", "examine")]

        text = stack_text([{"thread": "t", "frames": frames}])

        assert "t:\n  in the debugger; cast it: where" == text

    @pytest.mark.parametrize(
        "threads", [None, "x", [None], [{}], [{"frames": [None]}]], ids=str
    )
    def test_broken(self, threads):
        """
        Whatever a broken rank says is some text.
        """
        assert isinstance(stack_text(threads), str)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        pytest.param("cast ranks(:) p x", "cast", id="cast"),
        pytest.param("  stack ranks(0)", "stack", id="stack"),
        pytest.param("c job ranks(1)", "continue", id="continue"),
        pytest.param("abort ranks(1)", "abort", id="abort"),
        pytest.param("attach 3", "attach", id="attach"),
        pytest.param("attach #3", "attach", id="attach number"),
        pytest.param("extend 30", "extend", id="extend"),
        pytest.param("help cast", "help", id="help"),
        pytest.param("h ranks", "help", id="help ranks"),
        pytest.param("p ranks(0)", None, id="p"),
        pytest.param("ranks(0)", None, id="call"),
        pytest.param("list", None, id="list"),
        pytest.param("l 3", None, id="list of pdb"),
        pytest.param("c", None, id="continue of pdb"),
        pytest.param("a 3", None, id="args of pdb"),
        pytest.param("abort", None, id="abort this"),
        pytest.param("stack", None, id="a variable"),
        pytest.param("cast = 3", None, id="assignment"),
        pytest.param("continue #2", "continue", id="one thread"),
        pytest.param("abort 2", "abort", id="one rank"),
        pytest.param("stack = 3", None, id="assignment to stack"),
        pytest.param("eval in x", None, id="operator"),
        pytest.param("help next", None, id="help of pdb"),
        pytest.param("", None, id="empty"),
    ],
)
def test_meant_for_all(line, word):
    """
    Only what is neither Python nor pdb is taken from an attached rank.
    """
    command = meant_for_all(line)

    assert word == (command and command.word)


class TestListing:
    def test_nobody(self):
        """
        If nobody listens, that is said.
        """
        assert "no rank listens here" == listing_text(Listing())

    def test_patience(self):
        """
        Below the list stands when others give up, if that is before the end.
        """
        soon = session("a", patience_left_s=600)
        late = session("b", patience_left_s=1800)

        both = listing_text(Listing(processes=(process(0, soon, late),)))
        one = listing_text(Listing(processes=(process(0, late),)))

        assert "give up waiting in a collective in 10 min" in both
        assert "give up" not in one

    def test_other_process(self):
        """
        Who has the number of a rank, but is another process, is told apart.
        """
        reader = process(0, path="r.sock", name="other process")

        text = listing_text(Listing(processes=(process(0), reader)))

        assert "other process" in text.splitlines()[3]

    def test_what_tells_nothing(self):
        """
        Columns that tell nothing are left out.
        """
        ranks = tuple(process(n, coords={}) for n in range(2))

        text = listing_text(Listing(processes=ranks))

        assert ["group", "rank", "state", "function", "line"] == (
            text.split("\n", 1)[0].split()
        )

    def test_what_tells_something(self):
        """
        Nodes and threads are shown where they differ.
        """
        ranks = (
            process(0, session("a", thread="Thread-1", left_s=90)),
            process(1, host="other"),
        )

        text = listing_text(Listing(processes=ranks))

        assert "host" in text
        assert "Thread-1" in text
        assert "stopped (breakpoint, 90 s left)" in text

    def test_same_name(self):
        """
        Files of the same name are told apart.
        """
        ranks = (process(0, file="/a/run.py"), process(1, file="/b/run.py"))

        text = listing_text(Listing(processes=ranks))

        assert "a/run.py:9" in text
        assert "b/run.py:9" in text

    def test_folded(self):
        """
        Of many ranks, those that are alike are one row, and can be unfolded.
        """
        ranks = tuple(
            process(
                n, session(f"k{n}", line=8 if n == 300 else 7), host=f"n{n}"
            )
            for n in range(512)
        )
        listing = Listing(processes=ranks)

        text = listing_text(listing)
        one = listing_text(listing, chosen=[ranks[300]])

        assert 5 == len(text.splitlines())
        assert "0-299,301-511" in text
        assert "#301" in text
        assert "511 hosts" in text
        assert "512 in 2 rows; each: list ranks(:)" in text
        assert "dp=150" in one
        assert "rows" not in one

    def test_all_different(self):
        """
        However different they are, only so many rows are shown.
        """
        ranks = tuple(process(n, line=n) for n in range(300))

        lines = listing_text(Listing(processes=ranks)).splitlines()

        assert "… and 100 more rows" in lines
        assert 204 == len(lines)

    def test_narrow(self):
        """
        In a narrow terminal, what can be done without is left out.
        """
        ranks = (process(0, session("a", thread="t")), process(1, host="o"))
        listing = Listing(processes=ranks)

        wide = listing_text(listing, width=200).split("\n", 1)[0].split()
        narrow = listing_text(listing, width=10).split("\n", 1)[0].split()

        assert {"function", "coords", "host", "thread"} <= set(wide)
        assert ["#", "group", "rank", "state", "line"] == narrow

    def test_silent(self):
        """
        Who does not answer is named below.
        """
        alone = Listing(processes=(process(0),))
        listing = attrs.evolve(alone, silent=(4711,))

        text = listing_text(listing)

        assert listing_text(alone) == text.rsplit("\n", 1)[0]
        assert "4711 does not answer" in text

    def test_controls(self):
        """
        What a terminal would obey is not shown.
        """
        ranks = (process(0, function="\x1b[31mred", file="/a\x1b]0;x\x07.py"),)

        text = listing_text(Listing(processes=ranks))

        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("count", "last"),
    [(200, "200"), (201, "… and 1 more lines"), (512, "… and 312 more lines")],
    ids=str,
)
def test_first_lines(job, talk, monkeypatch, count, last):
    """
    Answers without end do not push everything else out of the terminal.
    """
    text = "\n".join(map(str, range(1, count + 1)))
    job.stack = lambda *_, **__: text
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))

    shown, _ = talk("stack", "q")

    assert last == shown[0].splitlines()[-1].partition(";")[0]
    assert shown[0].startswith("1\n2\n")


class TestNews:
    def test_told(self):
        """
        Who stopped, who goes on, and who is gone is told once each.
        """
        before = Listing(
            processes=(
                process(0, session("a")),
                process(1, session("b")),
                process(2),
                process(3),
            )
        )
        after = Listing(
            processes=(
                process(0, session("c", line=8)),
                process(1),
                process(2, session("d", line=8)),
            )
        )

        text = news_text(before, after)

        assert [
            "[0,2] stopped (breakpoint) at train.py:8 in step",
            "[1] goes on",
            "[3] has ended",
        ] == text.splitlines()

    def test_groups(self):
        """
        Where there are several groups, news name them.
        """
        policy = {"group": "Policy", "path": "p.sock"}
        before = Listing(
            processes=(process(0, session("a")), process(0, **policy))
        )
        after = Listing(
            processes=(process(0), process(0, session("b"), **policy))
        )

        text = news_text(before, after)

        assert [
            "[Policy 0] stopped (breakpoint) at train.py:7 in step",
            "[job 0] goes on",
        ] == text.splitlines()

    def test_nothing(self):
        """
        Where nothing has changed, nothing is said.
        """
        same = Listing(processes=(process(0, session("a")),))

        assert "" == news_text(same, same)


class TestHelp:
    @pytest.mark.parametrize("word", [*WORDS, "ranks"])
    def test_topic(self, word):
        """
        There is something to say on each command, in lines that are not long.
        """
        text = help_text(word)

        assert text.startswith(word)
        assert 2 <= len(text.splitlines()) or word == "help"
        assert 88 >= max(map(len, text.splitlines()))

    def test_all(self):
        """
        Each command is named, and nothing is wider than a terminal.
        """
        lines = help_text().splitlines()

        assert set(WORDS) == {line.split()[0] for line in lines if line} - {
            "ranks(3)"
        }
        assert 80 >= max(map(len, lines))


class TestEditing:
    @pytest.fixture
    def readline(self, monkeypatch, tmp_path):
        """
        As much of readline as is used.
        """
        fake = SimpleNamespace(
            line="",
            set_completer_delims=str,
            parse_and_bind=str,
            set_history_length=int,
        )

        def completer(function):
            fake.completer = function

        fake.get_line_buffer = lambda: fake.line
        fake.set_completer = completer
        fake.read_history_file = lambda p: Path(p).read_text()
        fake.write_history_file = lambda p: Path(p).write_text("typed")
        monkeypatch.setitem(sys.modules, "readline", fake)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        return fake

    @pytest.mark.parametrize(
        ("line", "text", "choices"),
        [
            pytest.param("", "", [f"{w} " for w in WORDS], id="all words"),
            pytest.param("ca", "ca", ["cast "], id="word"),
            pytest.param("fly ", "", [], id="no command"),
            pytest.param("help ca", "ca", ["cast"], id="help"),
            pytest.param(
                "attach ", "", ["0", "1", "2", "3", "job "], id="attach"
            ),
            pytest.param("a 2", "2", ["2"], id="rank"),
            pytest.param("cast ", "", ["ranks(", "job "], id="who"),
            pytest.param("c j", "j", ["job "], id="group"),
            pytest.param(
                "cast ranks(",
                "",
                ["dp=", "tp=", "0", "1", "2", "3"],
                id="dimensions",
            ),
            pytest.param("cast ranks(dp=", "", ["0", "1"], id="index"),
            pytest.param("cast ranks(dp=(0,", "", ["tp="], id="list"),
            pytest.param("cast ranks(dp=0, t", "t", ["tp="], id="dimension"),
            pytest.param("cast ranks(no=", "", [], id="no dimension"),
            pytest.param("cast ranks(0) p", "p", [], id="line of pdb"),
        ],
    )
    def test_completed(self, job, readline, line, text, choices):
        """
        Words, groups, ranks, and dimensions are completed.
        """
        with line_editing(job):
            readline.line = line
            found = [
                readline.completer(text, n) for n in range(len(choices) + 1)
            ]

        expected = [c for c in choices if c.startswith(text)]
        assert expected == found[: len(expected)]

    def test_remembered(self, readline, tmp_path):
        """
        What was typed is there the next time.
        """
        with line_editing(None):
            pass

        assert "typed" == (
            (tmp_path / "distdebug" / "dbg_history").read_text()
        )
        assert readline.completer is None

    def test_without(self, monkeypatch):
        """
        Where Python has no readline, one can still type.
        """
        monkeypatch.setitem(sys.modules, "readline", None)

        with line_editing(None):
            pass


def test_prompt_of_terminal(job, monkeypatch, capsys):
    """
    A person at a terminal sees the prompt.
    """
    prompts = []

    def typed(prompt):
        prompts.append(prompt)
        raise EOFError

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))

    run_shell(job, show=str)

    assert ["distdebug> "] == prompts
    assert "\n" == capsys.readouterr().out


def test_errors_are_clean(job, talk):
    """
    What a rank says in an error is not obeyed by the terminal.
    """

    def fails(*_, **__):
        msg = "\x1b[31mred"
        raise DebuggerError(msg)

    job.cast = fails

    shown, _ = talk("cast ranks(:) n", "q")

    assert ["red"] == shown
    assert shell.__doc__
