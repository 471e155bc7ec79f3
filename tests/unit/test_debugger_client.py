"""
Who asks the ranks, at a prompt and by the command ``dbg``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug import debugger
from distdebug.__main__ import main
from distdebug.debugger.client import (
    calls,
    connecting,
    everywhere,
    outside,
    shell,
)
from distdebug.debugger.client.asking import Ranks
from distdebug.debugger.client.commands import WORDS
from distdebug.debugger.client.connecting import connect
from distdebug.debugger.client.everywhere import ask_everywhere
from distdebug.debugger.client.shell import line_editing, run_shell
from distdebug.debugger.inside.agent import listen
from distdebug.debugger.wire import Feed, pack
from distdebug.errors import CaptureError, DebuggerError
from distdebug.nodes.model import Arrival, Ended
from distdebug.stacks.model import ProcessStacks, StackFrame, ThreadStack


class Rank:
    """
    A process that answers as it was told to.
    """

    def __init__(self, folder, rank, **options):
        self.rank = rank
        self.path = folder / f"{rank}.{os.getpid()}.sock"
        self.listener = listen(self.path)
        self.coords = options.get("coords", {})
        self.group = options.get("group", "job")
        self.thread = "MainThread"
        self.state = options.get("state", "stopped")
        self.last = "> train.py(7)step()"
        self.lines = []
        self.mute = ()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        """
        Talk to one client after the other.
        """
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                with client, contextlib.suppress(OSError):
                    self.talk(client)

    def talk(self, client):
        """
        Answer a client until it hangs up.
        """
        feed = Feed()
        while data := client.recv(1 << 16):
            for request in feed.take(data):
                if request["op"] in self.mute:
                    continue
                answer = self.answer(request)
                client.sendall(pack({"id": request["id"], **answer}))

    def answer(self, request):
        """
        Answer one request.
        """
        op, key = request["op"], f"node:1:2:3:{self.rank}"
        place = {"function": "step", "file": "train.py", "line": 7}
        if op == "list":
            stop = {"key": key, "number": 1, "thread": self.thread, **place}
            stop.update(state=self.state, reason="breakpoint", left_s=5.0)
            return {
                "process": {
                    "group": self.group,
                    "rank": self.rank,
                    "coords": self.coords,
                    "host": "node",
                    "pid": 1000 + self.rank,
                },
                "main": place,
                "stops": [stop] if self.state else [],
            }
        self.lines.append(request.get("line", op))
        if op in {"eval", "interrupt", "resume"}:
            return {"output": f"{op} {self.rank}", "state": ""}
        if op == "stack":
            return {"threads": [{"thread": "MainThread", "frames": [place]}]}
        if op == "last":
            said = {"state": self.state, "output": self.last}
        elif request.get("line") in {"c", "detach", "abort"}:
            self.state = ""
            said = {"state": "ended", "output": ""}
        else:
            said = {"state": "stopped", "output": f"did {self.lines[-1]}\n"}
        return {"stops": dict.fromkeys(request["keys"], said)}


@pytest.fixture
def folder(monkeypatch):
    """
    A folder for sockets; its path is short, as the kernel wants.
    """
    path = Path(tempfile.mkdtemp(prefix="dd", dir="/tmp"))
    monkeypatch.setenv("DISTDEBUG_DIR", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def ranks(folder):
    """
    Four ranks that are stopped.
    """
    made = [
        Rank(folder, rank, coords={"dp": rank // 2, "tp": rank % 2})
        for rank in range(4)
    ]
    yield made
    for rank in made:
        # This wakes up who waits in accept().
        with contextlib.suppress(OSError):
            rank.listener.shutdown(socket.SHUT_RDWR)
        rank.listener.close()


class TestClient:
    def test_cast(self, ranks):
        """
        Each rank that is selected obeys once.
        """
        with connect() as client:
            answers = client.cast("ranks(1,1,3)", "n")

        assert [1, 3] == [o.rank for o in answers.outputs]
        assert [[], ["n"], [], ["n"]] == [r.lines for r in ranks]

    def test_not_stopped(self, ranks):
        """
        Who is selected but not stopped is named.
        """
        ranks[2].state = ""

        with connect() as client:
            answers = client.cast("ranks(dp=1)", "n")

        assert [3] == [o.rank for o in answers.outputs]
        assert [2] == [p.rank for p in answers.not_stopped]

    def test_questions(self, ranks):
        """
        Questions reach ranks that run as well.
        """
        ranks[0].state = ""

        with connect() as client:
            values = client.eval("ranks(0,1)", "x")
            stacks = client.stack("ranks(0)")
            interrupts = client.interrupt("ranks(0)")
            going = client.resume("ranks(0,1)")
            waiting = client.extend(60, "ranks(2)")

        assert ["eval 0", "eval 1"] == [o.text for o in values.outputs]
        assert "train.py:7 in step" in stacks.outputs[0].text
        assert "interrupt 0" == interrupts.outputs[0].text
        assert [1, 0] == [o.rank for o in going.outputs]
        assert [2] == [o.rank for o in waiting.outputs]

    def test_silent(self, ranks, monkeypatch):
        """
        Who does not answer keeps nobody waiting, and is looked at from outside.
        """
        monkeypatch.setattr(
            connecting, "stack_from_outside", lambda pid: f"py-spy of {pid}"
        )
        ranks[1].mute = {"list"}

        with connect(timeout_s=0.2) as client:
            listing = client.list()
            stacks = client.stack()

        assert [0, 2, 3] == [p.rank for p in listing]
        assert (os.getpid(),) == listing.silent
        assert (f"py-spy of {os.getpid()}",) == stacks.notes
        assert 3 == len(stacks.outputs)

    def test_all_silent(self, ranks, monkeypatch):
        """
        If nobody answers at all, that is the answer.
        """
        for rank in ranks:
            rank.mute = {"list"}

        with connect(timeout_s=0.1) as client:
            answers = client.eval(None, "x")

        assert () == answers.outputs
        assert 4 == len(answers.silent)

    def test_late(self, ranks):
        """
        What comes too late is not taken for the answer to the next question.
        """
        ranks[0].mute = {"command"}

        with connect(timeout_s=0.1) as client:
            answers = client.cast("ranks(0,1)", "n", wait_s=0.0)
            with pytest.raises(DebuggerError, match="rank 0 does not answer"):
                client.attach(0).send("n", wait_s=0.0)
            ranks[0].mute = ()

            assert "did p 1\n" == client.attach(0).send("p 1").text
        assert [1] == [o.rank for o in answers.outputs]
        assert (1000,) == answers.silent

    def test_interrupted(self, ranks, monkeypatch):
        """
        Who stops waiting for a rank that runs can ask it something else.
        """
        ranks[0].mute = {"command"}
        send = calls._send

        def interrupt(line, request, timeout_s):
            send(line, request, timeout_s)
            if request["op"] == "command":
                raise KeyboardInterrupt
            return True

        with connect() as client:
            attached = client.attach(0)
            monkeypatch.setattr(calls, "_send", interrupt)
            with pytest.raises(KeyboardInterrupt):
                attached.send("n")

            monkeypatch.setattr(calls, "_send", send)
            ranks[0].mute = ()

            assert "did p 1\n" == attached.send("p 1").text

    def test_comes_and_goes(self, folder, ranks):
        """
        Ranks that begin to listen later are found, and those gone are not.
        """
        with connect() as client:
            client.list()
            new = Rank(folder, 9)
            ranks[0].path.unlink()

            assert [1, 2, 3, 9] == [p.rank for p in client.list()]
        new.listener.close()

    def test_killed(self, folder, ranks):
        """
        The socket of a process that was killed is swept away.
        """
        dead = folder / "7.4999999.sock"
        foreign = folder / f"8.{os.getpid()}.sock"
        for path in (dead, foreign):
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        (folder / "9.1.sock").mkdir()

        with connect() as client:
            assert 4 == len(client.list().processes)

        assert not dead.exists()
        assert foreign.exists()

    def test_nonsense(self, folder):
        """
        A process that says what is no message is as good as silent.
        """
        listener = listen(folder / "0.1.sock")

        def babble():
            for _ in range(2):
                client, _ = listener.accept()
                with client:
                    client.recv(100)
                    client.sendall(b"nonsense\n")

        threading.Thread(target=babble, daemon=True).start()
        with listener, connect() as client:
            assert (1,) == client.list().silent
            assert () == client.list().processes

    def test_hangs_up(self, folder):
        """
        A process that ends while it is asked is silent, and waited for no more.
        """
        listener = listen(folder / "0.1.sock")
        ready = threading.Event()

        def leave():
            client, _ = listener.accept()
            with client:
                client.sendall(b'{"id": 99}\n')
                ready.set()
                client.recv(100)

        threading.Thread(target=leave, daemon=True).start()
        with listener, connect(timeout_s=30) as client:
            began = time.monotonic()

            assert (1,) == client.list().silent

        assert ready.wait(30)
        assert time.monotonic() - began < 20

    def test_other_user(self, ranks, monkeypatch):
        """
        Nobody else can answer in the place of a rank.
        """
        uid = os.geteuid()
        monkeypatch.setattr(calls, "peer_uid", lambda _: uid + 1)
        monkeypatch.setattr(calls, "may_talk", lambda asked: asked == uid)
        monkeypatch.setattr(os, "geteuid", lambda: uid or 5)

        with pytest.raises(PermissionError, match="belongs to user"):
            calls.open_line(ranks[0].path, 1.0)

    def test_closed(self, ranks):
        """
        A connection that has been closed is seen, and not written to.
        """
        line = calls.open_line(ranks[0].path, 1.0)

        assert line.is_open()
        line.socket.shutdown(socket.SHUT_RDWR)
        assert not line.is_open()
        line.close()
        assert not line.is_open()
        assert {"a": None} == calls.ask_all({"a": line}, {"a": {}}, 1.0)


class TestConnect:
    @pytest.fixture(autouse=True)
    def base(self, folder, monkeypatch):
        """
        All jobs of the user are those of the test.
        """
        monkeypatch.delenv("DISTDEBUG_DIR")
        monkeypatch.setattr(
            connecting, "job_folders", lambda: tuple(folder.iterdir())
        )
        return folder

    def test_none(self):
        """
        Where no job listens, it is said what helps.
        """
        with pytest.raises(DebuggerError, match="no job of yours") as caught:
            connect()

        assert "DISTDEBUG=1" in caught.value.remedy

    def test_one(self, base):
        """
        The only job that listens is meant.
        """
        for name in ("old", "new"):
            (base / name).mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(base / "old" / "0.1.sock"))
        rank = Rank(base / "new", 0)

        with connect() as client:
            assert [0] == [p.rank for p in client.list()]
            assert base / "new" == client.ranks.folder
        rank.listener.close()

    def test_several(self, base):
        """
        If several jobs listen, one must be chosen.
        """
        made = []
        for name in ("a", "b"):
            (base / name).mkdir(mode=0o700)
            made.append(Rank(base / name, 0))

        with pytest.raises(DebuggerError, match="2 jobs") as caught:
            connect()

        assert str(base / "b") in caught.value.remedy
        for rank in made:
            rank.listener.close()

    def test_unsafe(self, base):
        """
        A folder that others may enter is refused.
        """
        base.chmod(0o755)

        with pytest.raises(DebuggerError, match="others may enter"):
            connect(base)


class TestShell:
    @pytest.fixture
    def talk(self, ranks):
        """
        Types some lines; gives what was shown, and the prompts.
        """

        def typed(*lines):
            todo = list(lines)
            shown, prompts = [], []

            def ask(prompt):
                prompts.append(prompt)
                if not todo:
                    raise EOFError
                line = todo.pop(0)
                if isinstance(line, BaseException):
                    raise line
                return line

            with connect() as client:
                run_shell(client, ask=ask, show=shown.append, wait_s=1.0)
            return shown, prompts

        return typed

    def test_enters_at_once(self, talk):
        """
        It begins with the list of ranks.
        """
        shown, prompts = talk()

        assert "#4" in shown[0]
        assert ["distdebug> "] == prompts

    def test_attached(self, talk, ranks):
        """
        One rank is talked to until it is left, or goes on.
        """
        shown, prompts = talk(
            "a 2", "p x", "detach", "attach #1", "", "c", "q", "list"
        )

        assert ["> train.py(7)step()", "did p x"] == shown[1:3]
        assert "(goes on)" in shown
        assert [
            "distdebug> ",
            "(rank 2) ",
            "(rank 2) ",
            "distdebug> ",
            "(rank 0) ",
            "(rank 0) ",
            "distdebug> ",
        ] == prompts
        assert ["stopped"] * 3 == [r.state for r in ranks[1:]]

    def test_keys(self, talk, ranks):
        """
        Ctrl-C and Ctrl-D reach no rank.
        """
        _, prompts = talk("a 1", KeyboardInterrupt(), EOFError(), "", "  ")

        assert ["distdebug> ", "(rank 1) ", "(rank 1) "] == prompts[:3]
        assert ["distdebug> "] == prompts[3:4]
        assert "stopped" == ranks[1].state

    def test_mistakes(self, talk):
        """
        A mistake is explained, and the talk goes on.
        """
        shown, _ = talk(
            "fly", "cast ranks(9) n", "cast ranks(x n", "detach", "h", "a 77"
        )

        assert "not a command" in shown[1]
        assert "there are: job ranks 0-3" in shown[2]
        assert "expected" in shown[3]
        assert "not attached" in shown[4]
        assert "cast [GROUP] ranks(...) COMMAND" in shown[5]
        assert "stopped are: 0-3" in shown[6]

    def test_everything(self, talk, ranks):
        """
        Every command does something to those it names.
        """
        shown, _ = talk(
            "cast ranks(0:2) n",
            "eval ranks(0) x",
            "stack ranks(0)",
            "interrupt ranks(0)",
            "extend ranks(0) 30",
            "resume ranks(0)",
            "abort ranks(1)",
            "continue ranks(2)",
            "l",
        )

        assert "[0-1] did n" == shown[1]
        assert "[0] eval 0" == shown[2]
        assert ["", "", "", "stopped"] == [r.state for r in ranks]
        assert "not stopped" in shown[-2]

    def test_silent_command(self, talk, ranks):
        """
        A command that prints nothing shows nothing.
        """
        ranks[0].answer_ = ranks[0].answer
        ranks[0].answer = lambda request: (
            {"stops": {k: {"state": "stopped"} for k in request["keys"]}}
            if request["op"] == "command"
            else ranks[0].answer_(request)
        )

        shown, _ = talk("a 0", "!x = 1")

        assert 4 == len(shown)
        assert ["", ""] == shown[2:]


class TestEditing:
    @pytest.fixture
    def readline(self, monkeypatch, tmp_path):
        """
        As much of readline as is used.
        """
        fake = SimpleNamespace(
            line="",
            calls=[],
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
            ("", "", [f"{w} " for w in WORDS]),
            ("ca", "ca", ["cast "]),
            ("attach ", "", ["0", "1", "2", "3", "job "]),
            ("a 2", "2", ["2"]),
            ("cast ", "", ["ranks(", "ranks(:) ", "job "]),
            ("cast j", "j", ["job "]),
        ],
    )
    def test_completed(self, ranks, readline, line, text, choices):
        """
        Words, groups, and ranks that are stopped are completed.
        """
        with connect() as client, line_editing(client):
            readline.line = line
            found = [
                readline.completer(text, n) for n in range(len(choices) + 1)
            ]

        assert [*choices, None] == found

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


class TestCommand:
    def test_cast(self, ranks, capsys):
        """
        A command can be given from a shell.
        """
        status = main(["dbg", "-c", "cast ranks(:) p x"])

        assert 0 == status
        assert "[0-3] did p x\n" == capsys.readouterr().out

    def test_json(self, ranks, capsys):
        """
        Its result can be read by programs, one line for each command.
        """
        ranks[3].state = ""

        status = main(
            ["dbg", "--json", "-c", "list", "-c", "cast ranks(2:) n"]
        )

        first, second = map(json.loads, capsys.readouterr().out.splitlines())
        assert 1 == status
        assert [0, 1, 2, 3] == [p["rank"] for p in first["processes"]]
        assert "cast ranks(2:) n" == second["typed"]
        assert [2] == [o["rank"] for o in second["outputs"]]
        assert [3] == [p["rank"] for p in second["not_stopped"]]

    def test_help(self, ranks, capsys):
        """
        What concerns no rank can be asked as well.
        """
        assert 0 == main(["dbg", "-c", "help", "-c", "q"])

        assert "ranks(1:10:2)" in capsys.readouterr().out

    def test_attach(self, ranks, capsys):
        """
        To attach takes a person.
        """
        assert 2 == main(["dbg", "-c", "attach 1"])

        assert "cast ranks(3) COMMAND" in capsys.readouterr().err

    def test_person(self, ranks, capsys, monkeypatch):
        """
        Without a command it talks to a person.
        """
        monkeypatch.setitem(sys.modules, "readline", None)
        lines = iter(["q"])
        monkeypatch.setattr(
            shell.run_shell,
            "__kwdefaults__",
            {
                **shell.run_shell.__kwdefaults__,
                "ask": lambda _: next(lines),
            },
        )

        assert 0 == main(["dbg"])

        assert "#4" in capsys.readouterr().out

    def test_nobody(self, folder, capsys):
        """
        Where nobody listens, that is said.
        """
        assert 2 == main(["dbg", "-c", "stack"])

        assert "no rank listens" in capsys.readouterr().err


class TestOutside:
    def test_seen(self, monkeypatch):
        """
        The stack of the main thread is told, cleaned, the innermost line last.
        """
        inner = StackFrame(name="\x1b[31mf", filename="a.py", line=7)
        outer = StackFrame(name="main", filename="a.py", line=1)
        threads = (
            ThreadStack(name="other", frames=(outer,)),
            ThreadStack(name="Main", frames=(inner, outer), is_main=True),
        )
        stacks = ProcessStacks(pid=7, source="py-spy", threads=threads)
        monkeypatch.setattr(
            "distdebug.capture.node.capture_process",
            lambda pid, timeout_s: SimpleNamespace(stacks=stacks),
        )

        text = outside.stack_from_outside(7)

        assert text.endswith("outside:\n  a.py:1 in main\n  a.py:7 in f")

    def test_not_seen(self, monkeypatch):
        """
        Where there is no stack, it is said what helps.
        """
        monkeypatch.setattr(
            "distdebug.capture.node.capture_process",
            lambda pid, timeout_s: SimpleNamespace(
                stacks=None, remedy="allow ptrace"
            ),
        )

        assert outside.stack_from_outside(7).endswith("outside: allow ptrace")

    def test_refused(self, monkeypatch):
        """
        Who may not look says why.
        """

        def refuse(pid, timeout_s):
            msg = "not allowed"
            raise CaptureError(msg)

        monkeypatch.setattr("distdebug.capture.node.capture_process", refuse)

        assert "not allowed" in outside.stack_from_outside(7)


def test_unknown_name():
    """
    A name that does not exist is an ordinary attribute error.
    """
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        debugger.nonsense  # noqa: B018


def test_all_names():
    """
    Every name is there, and those inside load no client.
    """
    assert all(callable(getattr(debugger, name)) for name in debugger.__all__)
    assert set(debugger.__all__) == set(debugger._HOME)


def test_closed_twice(folder):
    """
    A client that has hung up can do so again.
    """
    ranks = Ranks(folder, timeout_s=1.0)

    ranks.close()
    ranks.close()


class Nodes:
    """
    Two nodes and one that is gone; each has a folder here.
    """

    python = sys.executable

    def __init__(self, *folders):
        self.folders = folders

    def run(self, argv, *, data, timeout_s):
        """
        Run the command in the environment of each node.
        """
        for number, folder in enumerate(self.folders):
            done = subprocess.run(
                argv,
                input=data,
                capture_output=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(debugger.__file__).parents[2]),
                    "DISTDEBUG_DIR": str(folder),
                },
                timeout=timeout_s,
            )
            yield Arrival(
                host=f"node-{number}",
                total=len(self.folders),
                ended=Ended(
                    status=done.returncode,
                    output=done.stdout,
                    complaint=done.stderr,
                ),
                seconds=0.1,
            )


class TestEverywhere:
    @pytest.fixture
    def nodes(self, folder):
        """
        Two ranks on one node, and one on another.
        """
        made = []
        for name, ranks in {"a": (0, 2), "b": (1,)}.items():
            (folder / name).mkdir(mode=0o700)
            made += [Rank(folder / name, rank) for rank in ranks]
        yield Nodes(folder / "a", folder / "b", folder / "gone")
        for rank in made:
            rank.listener.close()

    def test_listed(self, nodes):
        """
        The ranks of all nodes are one list.
        """
        listing = ask_everywhere("list", engine=nodes)

        assert [0, 1, 2] == [p.rank for p in listing]
        assert all(p.is_stopped for p in listing)

    def test_asked(self, nodes):
        """
        A node that has none of the ranks, or does not answer, is named.
        """
        answers = ask_everywhere("cast ranks(1) p x", engine=nodes)

        assert ["did p x\n"] == [o.text for o in answers.outputs]
        assert "node-0: ranks(1) selects nobody" in answers.notes
        assert any(n.startswith("node-2: ") for n in answers.notes)

    def test_on_a_node(self, nodes):
        """
        A node answers with plain data, or says what is in the way.
        """
        a, _, gone = map(str, nodes.folders)

        listing = everywhere._ask_here("list", a, 1.0)
        answers = everywhere._ask_here("cast ranks(0) n", a, 1.0)
        nobody = everywhere._ask_here("list", gone, 1.0)

        assert [0, 2] == [p["rank"] for p in listing["processes"]]
        assert "did n\n" == answers["outputs"][0]["text"]
        assert "No such file" in nobody["problem"]

    def test_nobody(self, nodes):
        """
        If no node has them, that is an error.
        """
        with pytest.raises(DebuggerError, match=r"node-1: ranks\(9\) selects"):
            ask_everywhere("cast ranks(9) n", engine=nodes)
        with pytest.raises(DebuggerError, match="not a command"):
            ask_everywhere("fly", engine=nodes)
        with pytest.raises(DebuggerError, match="one rank, or none"):
            ask_everywhere("attach 1", engine=nodes)
        with pytest.raises(DebuggerError, match="there is no node"):
            ask_everywhere("list", engine=Nodes())

    def test_command(self, nodes, monkeypatch, capsys):
        """
        The command line does the same for a job of Slurm, or of Ray.
        """
        asked = []

        def engine(**options):
            asked.append(options)
            return nodes

        monkeypatch.setattr("distdebug.nodes.slurm.Slurm", engine)
        monkeypatch.setattr("distdebug.nodes.ray.Ray", engine)

        assert 0 == main(["dbg", "--slurm", "12", "-c", "list"])
        assert 0 == main(["dbg", "--ray", "auto", "-c", "cast ranks(:) n"])
        assert 2 == main(["dbg", "--slurm", "12"])

        assert [{"job": "12"}, {"address": "auto"}] == asked
        printed = capsys.readouterr()
        assert "[0-2] did n" in printed.out
        assert "-c" in printed.err
