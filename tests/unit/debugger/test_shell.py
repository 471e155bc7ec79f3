"""
The prompt of the debugger: what is typed, shown, and completed.
"""

from __future__ import annotations

import io
import sys

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

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
    help_text,
    line_editing,
    listing_text,
    parse_command,
    run_command,
    run_shell,
    select_processes,
)
from distdebug.debugger.client import shell
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


COMMANDS = [
    "abort",
    "attach",
    "cast",
    "continue",
    "detach",
    "eval",
    "extend",
    "help",
    "interrupt",
    "list",
    "quit",
    "resume",
    "stack",
]


class Job:
    """
    Four ranks that are stopped, as those who ask them know them.
    """

    def __init__(self):
        self.now = {n: process(n, session(f"k{n}")) for n in range(4)}
        self.silent = ()
        self.given = []
        self.says = {}
        self.last = {}
        self.unarmed = tuple
        self.client = JobClient(self)

    @staticmethod
    def external_stacks(_):
        """
        No stack is seen from outside.
        """
        return ()

    def listing(self):
        """
        The ranks that are there.
        """
        return Listing(processes=tuple(self.now.values()), silent=self.silent)

    def move(self, rank, *held):
        """
        Let a rank be held elsewhere, or nowhere.
        """
        self.now[rank] = attrs.evolve(self.now[rank], sessions=held)

    def ask_stopped(self, ranks, group, request):
        """
        Let several obey.
        """
        text = f"did {request.get('line')}\n"
        chosen = select_processes(self.listing(), ranks, group)
        return Answers(
            outputs=tuple(
                Output(group="job", rank=p.rank, text=text) for p in chosen
            )
        )

    def ask_processes(self, *_, **__):
        """
        No rank answers questions.
        """
        return Answers()

    def ask_sessions(self, held, request):
        """
        What one rank answers.
        """
        held = list(held)
        if not held:
            return Answers()
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
        output = Output(group="job", rank=rank, text=text, state=state)
        is_error = text.startswith("it is")
        return Answers(outputs=(attrs.evolve(output, is_error=is_error),))


class JobClient(DebugClient):
    """
    A client that asks a job instead of processes.
    """

    def list(self):
        """
        The ranks that are there.
        """
        return self.transport.listing()

    def ask_stopped(self, *asked):
        """
        Let several obey.
        """
        return self.transport.ask_stopped(*asked)

    def ask_processes(self, *asked):
        """
        No rank answers questions.
        """
        return self.transport.ask_processes(*asked)

    def ask_sessions(self, *asked):
        """
        What one rank answers.
        """
        return self.transport.ask_sessions(*asked)


@pytest.fixture
def job(monkeypatch):
    """
    A job of four ranks, without waiting.
    """
    monkeypatch.setattr(shell, "_FOLLOW_S", 0.05)
    monkeypatch.setattr(shell, "_POLL_S", 0.01)
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

        run_shell(job.client, ask=ask, show=shown.append, wait_s=0.05)
        if shown[-1].startswith("still stopped"):
            shown.pop()
        return shown[1:], prompts

    return typed


class TestOuterPrompt:
    def test_enters_at_once(self, job):
        """
        It begins with the list of ranks, and how to go on; at the end, it
        names the ranks that are still held, and for how long.
        """
        shown = []
        job.move(1)
        job.move(2, session("k2", left_s=1200))

        run_shell(job.client, ask=lambda _: "q", show=shown.append)

        assert "#3" in shown[0]
        assert shown[0].endswith("for help, type help")
        assert "still stopped, for 28 min at most: ranks 0,2-3" == shown[-1]

    def test_nobody_left_behind(self, job):
        """
        Leaving without a rank behind, or where that is unknown, shows nothing.
        """
        shown = []
        job.now = {}

        def ask(_):
            job.listing = fails
            return "q"

        def fails():
            msg = "the node is gone"
            raise DebuggerError(msg)

        run_shell(job.client, ask=lambda _: "q", show=shown.append)
        run_shell(job.client, ask=ask, show=shown.append)

        assert 2 == len(shown)

    def test_no_text(self, job, talk):
        """
        Ctrl-D leaves; Ctrl-C, also while ranks are asked, and bytes that are
        no text do not.
        """
        wrong = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")
        job.ask_stopped = Mock(side_effect=KeyboardInterrupt)

        shown, prompts = talk(wrong, KeyboardInterrupt(), "cast ranks(:) n")

        assert ["", ""] == shown[:2]
        assert "no rank was interrupted" in shown[2]
        assert ["distdebug> "] * 4 == prompts

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            ("cast ranks(dp=1) p x", "[2-3] did p x"),
            ("cast ranks(1,7,8) n", "[1] did n\nnot there: ranks 7-8"),
            ("cast ranks(1:9) n", "[1-3] did n"),
            ("help", help_text()),
            ("h c", "continue (c)"),
            ("help flying", "there is no help on 'flying'"),
            ("detach", "not attached to a rank"),
            ("fly", "not a command: 'fly'\nTry: one of"),
            ("list ranks(2)", "#"),
        ],
    )
    def test_typed(self, talk, line, says):
        """
        A cast shows merged answers, and the ranks that are named but not
        there; help is given; a mistake is explained, and the talk goes on.
        """
        shown, prompts = talk(line, "quit")

        assert shown[0].startswith(says)
        assert 2 == len(prompts)

    def test_list_some(self, talk):
        """
        Some ranks can be listed, under the numbers that they have among all;
        an explanation has lines of bounded length.
        """
        shown, _ = talk("list ranks(2)", f"cast ranks({'9' * 5000}) n", "q")

        assert "#3" in shown[0]
        assert "#1" not in shown[0]
        assert 1500 > len(shown[1])
        assert "there are: job ranks 0-3" in shown[1]

    def test_number_is_what_was_shown(self, job, talk):
        """
        A number means what it meant when it was shown; one of a thread that
        went on since attaches no other.
        """

        def quietly():
            job.move(1)
            raise KeyboardInterrupt

        shown, prompts = talk(
            lambda: job.move(0), "attach #3", "detach", "attach #9"
        )
        later, unchanged = talk(quietly, "attach #1", "q")

        assert "(rank 2) " in prompts
        assert "#9 is not stopped" in shown[-1]
        assert "#1 was rank 1, which went on since" in later[-1]
        assert {"distdebug> "} == set(unchanged)

    def test_pipe(self, job, monkeypatch, capsys):
        """
        Lines can come from a pipe, where a prompt would only disturb.
        """
        lines = io.StringIO("cast ranks(:) p x\n")
        monkeypatch.setattr(sys, "stdin", lines)

        run_shell(job.client)

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

        run_shell(job.client, ask=lambda _: "q", show=shown.append)

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

        run_command(job.client, parse_command("extend #2 1"))

        ((held,), request) = asked[0]
        assert "k1" == held[1].key
        assert {"op": "extend", "seconds": 60.0} == request


class TestAttached:
    def test_greeting(self, job, talk):
        """
        Attaching shows where the rank is, and its last output; what was
        printed for another client is not taken for the place.
        """
        job.last[3] = ("stopped", "nan\n")

        shown, prompts = talk("attach 2", "detach", "attach 3", "detach", "q")

        assert [
            "rank 2: breakpoint at train.py:7 in step; 28 min left",
            "> train.py(7)step()",
        ] == shown[0].splitlines()
        assert ["last output:", "nan"] == shown[1].splitlines()[1:]
        assert ["distdebug> ", "(rank 2) ", "distdebug> "] == prompts[:3]

    def test_obeys(self, job, talk):
        """
        Lines go to the rank as they are typed.
        """
        shown, _ = talk("a 1", "p  x ", "!x = 1", EOFError(), "q")

        assert [(1, "p  x "), (1, "!x = 1")] == job.given
        assert ["did p  x ", "did !x = 1"] == shown[1:]

    def test_empty_line(self, job, talk):
        """
        An empty line repeats, but not what another client has typed before.
        """
        shown, _ = talk("a 1", "", "n", "", "detach", "q")

        assert [(1, "n"), (1, "")] == job.given
        assert "> train.py(7)step()" == shown[1]

    def test_runs_for_long(self, job, talk):
        """
        A rank that runs for long is looked at, and not stepped again; one that
        is done, and printed nothing, is shown to wait.
        """
        job.says["n"] = ("running", "")
        busy = "it is busy with another command"
        job.says["p x"] = ("running", busy)

        def still_runs():
            job.move(1, session("k1", state="running"))

        def stops():
            job.move(1, session("k1", line=8))

        def is_done():
            job.last[1] = ("stopped", "")

        shown, _ = talk(
            *("a 1", "n", "p x", still_runs, stops),
            *("n", is_done, "detach", "q"),
        )

        assert [(1, "n"), (1, "p x"), (1, "n")] == job.given
        running = (
            "(still running; an empty line looks again, detach leaves it)"
        )
        assert [running] * 2 == shown[1:3]
        assert shown[3].endswith(running)
        assert "> train.py(7)step()" == shown[4]
        assert "(waits for a command)" == shown[6]

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

    @pytest.mark.parametrize(
        ("line", "reason", "says"),
        [
            ("c", "breakpoint", "rank 1 goes on"),
            ("q", "breakpoint", "rank 1 goes on"),
            ("q", "again", "rank 1 goes on"),
            ("c", "post mortem", "rank 1 goes on, by its exception"),
            ("abort", "again", "rank 1 is aborted"),
        ],
        ids=["goes on", "quits", "quits, stops", "post mortem", "aborts"],
    )
    def test_goes_on(self, job, talk, line, reason, says):
        """
        Letting a rank go on, or alone, comes back, wherever it stops next.
        """
        job.move(1, session("k1", reason=reason))

        def goes():
            job.move(1, *[session("k9", line=22)] * (reason == "again"))
            return "ended", ""

        job.says[line] = goes

        shown, prompts = talk("a 1", line, "a 2", "detach", "q")

        assert says == shown[1]
        assert ["distdebug> ", "(rank 2) ", "distdebug> "] == prompts[2:]

    @pytest.mark.parametrize("thread", ["MainThread", "Thread-1"])
    def test_next_breakpoint(self, job, talk, thread):
        """
        A rank that comes to its next breakpoint at once stays attached; the
        stop of another thread is not where this one stops.
        """

        def arrives():
            job.move(1, session("k9", line=22, thread=thread))
            return "ended", "bye\n"

        job.says["c"] = arrives

        shown, prompts = talk("a 1", "c", "a 1", "detach", "q")

        assert "bye" == shown[1]
        if thread == "MainThread":
            assert "rank 1: breakpoint at train.py:22 in step;" in shown[2]
            assert "(rank 1) " == prompts[2]
        else:
            assert "rank 1 goes on" == shown[2]
            assert ["distdebug> ", "(rank 1 Thread-1) "] == prompts[2:4]

    @pytest.mark.parametrize(
        ("state", "is_listed", "says"),
        [
            ("mute", False, "rank 1 has ended"),
            ("mute", True, "rank 1 does not answer"),
            ("ended", False, "rank 1 goes on"),
        ],
        ids=["gone", "mute", "silent"],
    )
    def test_mute(self, job, talk, state, is_listed, says):
        """
        Of a rank whose process has ended, that is said; one that does not
        answer has not, and stays attached if it is known.
        """

        def ends():
            if not is_listed:
                del job.now[1]
            job.silent = (1001,) if state == "ended" else ()
            return state, ""

        job.says["c"] = ends

        shown, prompts = talk("a 1", "c", "detach", "q")

        assert says in shown[1]
        assert is_listed == ("(rank 1) " == prompts[2])

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
    @pytest.mark.parametrize(
        ("line", "asked"),
        [
            ("cast g ranks(:) n", "cast ranks(:) n group=g wait_s=3.0"),
            ("eval ranks(:) x", "eval ranks(:) x up=0 wait_s=3.0"),
            ("stack", "stack None all_threads=False"),
            ("interrupt", "interrupt None"),
            ("resume g ranks(1:)", "resume ranks(1:) group=g"),
            ("extend 2", "extend 120.0 None"),
            ("abort ranks(:)", "abort ranks(:)"),
            ("continue", "cast None detach"),
        ],
    )
    def test_words(self, line, asked):
        """
        Each command asks the client for what it says.
        """
        client = Mock()
        for word in ("cast", "eval", "stack", "interrupt"):
            getattr(client, word).return_value = Answers()
        for word in ("resume", "extend", "abort"):
            getattr(client, word).return_value = Answers()

        run_command(client, parse_command(line), wait_s=3.0)

        ((word, given, options),) = client.method_calls
        given = map(str, given)
        named = (
            f"{k}={v}" for k, v in sorted(options.items()) if v is not None
        )
        assert asked == " ".join([word, *given, *named])

    def test_some_ranks(self, job):
        """
        A list of some ranks, for programs, holds only those; where a rank does
        not answer, no rank is said to be absent.
        """
        job.ask_processes = lambda *_, **__: Answers(silent=(1007,))

        some = run_command(job.client, parse_command("list ranks(dp=1)"))
        everybody = run_command(job.client, parse_command("list"))
        answers = run_command(job.client, parse_command("stack ranks(1,7)"))

        assert [2, 3] == [p.rank for p in some.processes]
        assert 4 == len(everybody.processes)
        assert () == answers.notes


OURS = (
    "cast ranks(:) p x|  stack ranks(0)|c job ranks(1)|abort ranks(1)|"
    "attach 3|attach #3|extend 30|help cast|h ranks|continue #2|abort 2"
)
THEIRS = (
    "p ranks(0)|ranks(0)|list|l 3|c|a 3|abort|stack|cast = 3|stack = 3|"
    "eval in x|help next"
)


@pytest.mark.parametrize("line", [*OURS.split("|"), *THEIRS.split("|")])
def test_meant_for_all(job, talk, line):
    """
    Only what is neither Python nor pdb is taken from an attached rank.
    """
    talk("a 1", line, "detach", "q")

    assert (line in THEIRS.split("|")) == ((1, line) in job.given)


class TestListing:
    @pytest.mark.parametrize(
        ("ranks", "shown", "hidden"),
        [
            (
                [process(0, session("a", patience_left_s=600))],
                ["give up waiting in a collective in 10 min"],
                "left out",
            ),
            (
                [process(0, session("b", patience_left_s=1800))],
                ["stopped (breakpoint"],
                "give up",
            ),
            (
                [process(0), process(0, path="r.sock", name="other process")],
                ["other process"],
                "host",
            ),
            (
                [process(n, coords={}) for n in range(2)],
                ["group", "rank", "state", "function", "line"],
                "#",
            ),
            (
                [
                    process(0, session("a", thread="Thread-1", left_s=90)),
                    process(1, host="other"),
                ],
                ["host", "Thread-1", "stopped (breakpoint, 90 s left)"],
                "left out",
            ),
            (
                [process(0, file="/a/run.py"), process(1, file="/b/run.py")],
                ["a/run.py:9", "b/run.py:9"],
                "host",
            ),
        ],
        ids=["patience", "no end", "process", "alike", "nodes", "files"],
    )
    def test_columns(self, ranks, shown, hidden):
        """
        What differs is shown, and columns without information are left out;
        below stands when others give up, if that is before the end.
        """
        text = listing_text(Listing(processes=tuple(ranks)))

        assert [] == [words for words in shown if words not in text]
        assert hidden not in text

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
        A process that does not answer is named below.
        """
        alone = Listing(processes=(process(0),))
        listing = attrs.evolve(
            alone, silent=(SilentProcess(host="", pid=4711),)
        )

        text = listing_text(listing)

        assert listing_text(alone) == text.rsplit("\n", 1)[0]
        assert "4711 does not answer" in text


@pytest.mark.parametrize(
    ("count", "last"),
    [
        (199, "  199"),
        (200, "… and 1 more lines"),
        (511, "… and 312 more lines"),
    ],
    ids=str,
)
def test_first_lines(job, talk, monkeypatch, count, last):
    """
    Answers without end do not push everything else out of the terminal.
    """
    text = "\n".join(map(str, range(1, count + 1)))
    output = Output(group="job", rank=0, text=text)
    job.ask_processes = lambda *_, **__: Answers(outputs=(output,))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))

    shown, _ = talk("stack", "q")

    assert last == shown[0].splitlines()[-1].partition(";")[0]
    assert shown[0].startswith("[0]\n  1\n  2\n")


class TestNews:
    """
    An empty line shows what has changed.
    """

    def test_told(self, job, talk):
        """
        Each stop, each rank that goes on, and each that is gone is shown once.
        """
        job.move(0)
        job.move(2)

        def change():
            for rank in (0, 2):
                job.move(rank, session(f"later{rank}", line=8))
            job.move(1)
            del job.now[3]

        shown, _ = talk("", change, "", "q")

        assert [
            "[0,2] stopped (breakpoint) at train.py:8 in step",
            "[1] goes on",
            "[3] has ended",
        ] == "\n".join(shown).splitlines()

    def test_groups(self, job, talk):
        """
        Where there are several groups, news name them.
        """
        policy = {"group": "Policy", "path": "p.sock"}
        job.now = {0: process(0, session("a")), 7: process(0, **policy)}

        def change():
            job.move(0)
            job.move(7, session("b"))

        shown, _ = talk(change, "q")

        assert [
            "[Policy 0] stopped (breakpoint) at train.py:7 in step",
            "[job 0] goes on",
        ] == shown[0].splitlines()


class TestHelp:
    @pytest.mark.parametrize("word", [*COMMANDS, "ranks"])
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

        words = {line.split()[0] for line in lines if line}
        assert {*COMMANDS, "ranks(3)"} == words
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
            pytest.param("", "", [f"{w} " for w in COMMANDS], id="all words"),
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
        with line_editing(job.client):
            readline.line = line
            found = [
                readline.completer(text, n) for n in range(len(choices) + 1)
            ]

        expected = [c for c in choices if c.startswith(text)]
        assert expected == found[: len(expected)]

    def test_remembered(self, readline, monkeypatch, tmp_path):
        """
        What was typed is there the next time; where Python has no readline,
        one can still type.
        """
        with line_editing(None):
            pass
        monkeypatch.setitem(sys.modules, "readline", None)
        with line_editing(None):
            pass

        assert "typed" == (
            (tmp_path / "distdebug" / "dbg_history").read_text()
        )
        assert readline.completer is None


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

    run_shell(job.client, show=str)

    assert ["distdebug> "] == prompts
    assert "\n" == capsys.readouterr().out


def test_errors_are_clean(job, talk):
    """
    What a rank says in an error is not obeyed by the terminal.
    """
    job.ask_stopped = Mock(side_effect=DebuggerError("\x1b[31mred"))

    shown, _ = talk("cast ranks(:) n", "q")

    assert ["red"] == shown
