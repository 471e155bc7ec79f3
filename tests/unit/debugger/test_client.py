"""
Who asks the ranks, at a prompt and by the command ``dbg``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import threading
import time

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from distdebug import debugger
from distdebug.__main__ import main
from distdebug.debugger import connect, job_text, obey, parse_command
from distdebug.debugger.client import calls, here, outside, shell, unprepared
from distdebug.debugger.client.asking import Ranks
from distdebug.debugger.client.here import Here
from distdebug.debugger.client.model import Silent
from distdebug.debugger.inside.agent import listen
from distdebug.errors import CaptureError, DebuggerError
from distdebug.processes import Worker
from distdebug.stacks import ProcessStacks, StackFrame, ThreadStack


@pytest.fixture
def folder(socket_folder):
    """
    The folder of the sockets.
    """
    return socket_folder


@pytest.fixture
def ranks(folder, answering_rank):
    """
    Four ranks that are stopped.
    """
    return [
        answering_rank(folder, r, coords={"dp": r // 2, "tp": r % 2})
        for r in range(4)
    ]


def nobody(pid):
    """
    A process of this node that does not answer.
    """
    return Silent(host="", pid=pid)


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

    def test_groups(self, ranks):
        """
        The group may be left out if ranks of only one are stopped.
        """
        ranks[2].group = ranks[3].group = "critic"
        ranks[2].state = ranks[3].state = ""

        with connect() as client:
            answers = client.cast("ranks(:)", "n")
            with pytest.raises(DebuggerError, match="several groups"):
                client.eval("ranks(:)", "x")
            ranks[3].state = "stopped"
            with pytest.raises(DebuggerError, match="several groups"):
                client.cast("ranks(:)", "n")

        assert [0, 1] == [o.rank for o in answers.outputs]
        assert () == answers.not_stopped

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
            here,
            "stacks_from_outside",
            lambda pids: tuple(f"py-spy of {pid}" for pid in pids),
        )
        ranks[1].mute = {"list"}

        with connect(timeout_s=0.2) as client:
            listing = client.list()
            stacks = client.stack()

        assert [0, 2, 3] == [p.rank for p in listing]
        assert (nobody(os.getpid()),) == listing.silent
        assert (f"py-spy of {os.getpid()}",) == stacks.notes
        assert 3 == len(stacks.outputs)

    def test_unarmed(self, ranks, monkeypatch):
        """
        Ranks of the job that are not armed are looked at from outside.
        """
        other = Worker(
            pid=7,
            start_ticks=1,
            parent_pid=1,
            uid=0,
            title="",
            framework="torchrun",
            rank=4,
        )
        monkeypatch.setattr(here, "unarmed_workers", lambda _: (other,))
        monkeypatch.setattr(outside, "_stack", lambda pid, why: why)

        with connect() as client:
            everybody = client.stack()
            alone = obey(client, parse_command("stack 4"))
            another = client.stack("ranks(0)")
            grouped = client.stack(group="job")
            with pytest.raises(DebuggerError, match="no group other"):
                client.stack(group="other")

        told = ("rank 4 (process 7) is not armed",)
        assert 4 == len(everybody.outputs)
        assert [told] * 3 == [a.notes for a in (everybody, alone, grouped)]
        assert () == another.notes

    def test_nobody_armed(self, folder, monkeypatch):
        """
        Where nobody listens, the jobs of others are left alone.
        """
        monkeypatch.setattr(here, "unarmed_workers", Mock())

        with connect() as client:
            with pytest.raises(DebuggerError, match="no rank listens"):
                client.stack()

        here.unarmed_workers.assert_not_called()

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

    def test_other_process(self, folder, answering_rank):
        """
        Who has the number of a rank, but comes after it, is told apart.
        """
        answering_rank(folder, 0)
        (folder / "inner").mkdir(mode=0o700)
        reader = answering_rank(folder / "inner", 0)
        reader.pid = 2000
        reader.path.rename(folder / "0.2000.sock")

        with connect() as client:
            values = client.eval("ranks(:)", "x")

        assert "[0, 0 other process] eval 0" == str(values)

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

            assert "did p 1" == client.attach(0).send("p 1").text
        assert [1] == [o.rank for o in answers.outputs]
        assert (nobody(os.getpid()),) == answers.silent

    def test_interrupted(self, ranks, monkeypatch):
        """
        Who stops waiting for a rank that runs can ask it something else.
        """
        ranks[0].mute = {"command"}
        collect = calls._collect

        def interrupt(asked, found, until):
            raise KeyboardInterrupt

        with connect() as client:
            attached = client.attach(0)
            monkeypatch.setattr(
                calls,
                "_collect",
                lambda asked, found, until: (
                    interrupt(asked, found, until)
                    if found.keys() == {str(ranks[0].path)}
                    else collect(asked, found, until)
                ),
            )
            with pytest.raises(KeyboardInterrupt):
                attached.send("n")

            monkeypatch.setattr(calls, "_collect", collect)
            ranks[0].mute = ()

            assert "did p 1" == attached.send("p 1").text

    def test_comes_and_goes(self, folder, ranks, answering_rank):
        """
        Ranks that begin to listen later are found, and those gone are not.
        """
        with connect() as client:
            client.list()
            answering_rank(folder, 9)
            ranks[0].path.unlink()

            assert [1, 2, 3, 9] == [p.rank for p in client.list()]

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
            assert (nobody(1),) == client.list().silent
            assert () == client.list().processes

    @pytest.mark.parametrize(
        "told",
        [
            {"process": ["x"], "stops": {"a": 1}},
            {"process": 3, "stops": "x", "missing": 7},
            {"stops": [1, None], "main": [2]},
        ],
        ids=["lists", "numbers", "no mappings"],
    )
    def test_broken_answers(self, ranks, told):
        """
        A rank that answers what nobody expects is listed, and no other lost.
        """
        ranks[1].answer = lambda _: told

        with connect() as client:
            listing = client.list()
            answers = client.cast(None, "n")

        assert 4 == len(listing.processes)
        assert {0, 2, 3} <= {o.rank for o in answers.outputs}
        assert str(answers)

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

            assert (nobody(1),) == client.list().silent

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
        peers = {"a": calls.Peer(line)}
        assert {"a": None} == calls.ask_all(peers, {"a": {}}, 1.0)

    def test_crowded(self, folder):
        """
        A process that takes no more connections is told of, and not waited for.
        """
        path = folder / "0.1.sock"
        with socket.socket(socket.AF_UNIX) as full, connect() as client:
            full.bind(str(path))
            full.listen(0)
            with calls.open_line(path, 1.0).socket:
                assert (nobody(1),) == client.list().silent

    def test_floods(self, folder):
        """
        A process that talks without end keeps nobody waiting.
        """
        listener = listen(folder / "0.1.sock")

        def flood():
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                while True:
                    client.sendall(b'{"id":99}\n' * 6000)

        threading.Thread(target=flood, daemon=True).start()
        with listener, connect(timeout_s=0.3) as client:
            began = time.monotonic()

            assert (nobody(1),) == client.list().silent
        assert time.monotonic() - began < 20

    def test_endless(self, folder, monkeypatch):
        """
        A line on which too much was said unasked counts as closed.
        """
        ours, theirs = socket.socketpair()
        monkeypatch.setattr(calls, "_MOST_BLOCKS", 3)
        monkeypatch.setattr(calls, "_BLOCK", 16)
        with ours, theirs:
            theirs.sendall(b'{"id":99}\n' * 20)

            assert not calls.Line(ours).is_open()

    def test_slowly(self, ranks):
        """
        What cannot be sent at once is sent when there is room.
        """
        line = calls.open_line(ranks[0].path, 1.0)
        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 5000)
        peers = {"a": calls.Peer(line)}
        request = {"op": "eval", "expression": "x" * 500_000}

        answers = calls.ask_all(peers, {"a": request}, 30.0)

        assert "eval 0" == answers["a"]["output"]
        assert not line.unsent
        line.close()

    def test_refused(self, folder):
        """
        Who does not understand a question answers all that are open.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(b'{"id": null, "error": "too long"}\n')
            peer = calls.Peer(calls.Line(ours))

            found = calls.ask_all({"a": peer}, {"a": {"op": "list"}}, 1.0)

        assert "too long" == found["a"]["error"]
        peer.hang_up()


class TestConnect:
    @pytest.fixture(autouse=True)
    def base(self, folder, monkeypatch):
        """
        All jobs of the user are those of the test.
        """
        monkeypatch.delenv("DISTDEBUG_DIR")
        monkeypatch.setattr(
            here, "job_folders", lambda: tuple(sorted(folder.iterdir()))
        )
        return folder

    def test_none(self):
        """
        Where no job listens, it is said what helps.
        """
        with pytest.raises(DebuggerError, match="no job of yours") as caught:
            connect()

        assert "DISTDEBUG=1" in caught.value.remedy

    def test_one(self, base, answering_rank):
        """
        The only job that listens is meant.
        """
        for name in ("old", "new"):
            (base / name).mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(base / "old" / "0.1.sock"))
        answering_rank(base / "new", 0)

        with connect() as client:
            assert [0] == [p.rank for p in client.list()]
            assert base / "new" == client.ranks.reach.folder

    def test_several(self, base, answering_rank, monkeypatch):
        """
        If several jobs listen, one must be chosen; a Slurm job has its own.
        """
        for name in ("7.0-node-1-29500", "71.0"):
            (base / name).mkdir(mode=0o700)
            answering_rank(base / name, 0)

        with pytest.raises(DebuggerError, match="2 jobs") as caught:
            connect()
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        with connect() as client:
            chosen = client.ranks.reach.folder

        assert f"--dir {base / '71.0'} (1 process of " in caught.value.remedy
        assert "7.0-node-1-29500" == chosen.name

    @pytest.mark.parametrize("launched", ["127.0.0.1-29500", "job-1"])
    def test_another(self, base, answering_rank, monkeypatch, launched):
        """
        No job is preferred to another outside of Slurm, however it is called.
        """
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        for name in (launched, "job"):
            (base / name).mkdir(mode=0o700)
            answering_rank(base / name, 0)

        with pytest.raises(DebuggerError, match="2 jobs listen"):
            connect()

    @pytest.mark.parametrize(
        ("line", "program"),
        [
            (b"python\0-u\0/job/train.py\0--lr=1\0", "train.py"),
            (b"python\0-m\0verl.trainer\0a=b\0", "-m verl.trainer"),
            (b"/usr/bin/serve\0-x\0", "/usr/bin/serve"),
            (b"ray::Trainer.fit\0\0\0", "ray::Trainer.fit"),
            (b"", "unknown"),
        ],
        ids=["script", "module", "program", "title", "kernel"],
    )
    def test_told(self, base, answering_rank, monkeypatch, line, program):
        """
        A job is told by its folder, and by what runs in it.
        """
        answering_rank(base, 0)
        monkeypatch.setattr(
            here, "open", lambda *_: io.BytesIO(line), raising=False
        )

        text = job_text(base)

        assert f"{base} (1 process of {program}, for 0 s, such as " in text

    def test_told_dead(self, base, monkeypatch):
        """
        Of a job that has ended, only the folder is known.
        """
        (base / "0.999999999.sock").touch()

        assert str(base) == job_text(base)

    def test_told_gone(self, base, answering_rank, monkeypatch):
        """
        A process that ends meanwhile is counted all the same.
        """
        answering_rank(base, 0)
        monkeypatch.setattr(
            here, "open", Mock(side_effect=ProcessLookupError), raising=False
        )

        assert "(1 process of unknown" in job_text(base)

    def test_unsafe(self, base):
        """
        A folder that others may enter is refused.
        """
        base.chmod(0o755)

        with pytest.raises(DebuggerError, match="others may enter"):
            connect(base)

    def test_gone_later(self, base, answering_rank):
        """
        If the folder is gone while we ask, the error names it, and what helps.
        """
        folder = base / "job"
        folder.mkdir(mode=0o700)
        with connect(folder) as client:
            folder.rmdir()

            with pytest.raises(DebuggerError, match="cannot look") as caught:
                client.list()
            assert str(folder) in str(caught.value)
            assert caught.value.remedy
        with pytest.raises(DebuggerError, match="cannot look"):
            connect(folder)

    def test_unsafe_later(self, base, answering_rank):
        """
        A folder that is opened to others while we ask is refused from then on.
        """
        answering_rank(base, 0)
        with connect(base) as client:
            client.list()
            base.chmod(0o755)

            with pytest.raises(DebuggerError, match="others may enter"):
                client.list()

    def test_one_place(self):
        """
        Several places at once are refused.
        """
        with pytest.raises(DebuggerError, match="either"):
            connect(slurm=1, hosts=["a"])


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

    def test_list(self, ranks, capsys):
        """
        A list has the numbers of the whole, also if some are selected.
        """
        assert 0 == main(["dbg", "-c", "list ranks(2)", "-c", "list"])

        rows = capsys.readouterr().out.splitlines()
        assert rows[2].startswith("#3   job      2       dp=1 tp=0")
        assert 3 + 6 == len(rows)

    def test_not_understood(self, ranks, capsys):
        """
        Nothing is done if one of the commands is not understood.
        """
        status = main(["dbg", "-c", "cast ranks(:) n", "-c", "cast x"])

        assert 2 == status
        assert [[]] * 4 == [r.lines for r in ranks]

    def test_skipped(self, ranks, capsys):
        """
        What is not done, because something before cannot be, is named.
        """
        status = main(["dbg", "-c", "cast ranks(9) n", "-c", "c", "-c", "q"])

        assert 2 == status
        assert "so not done either: 'c', 'q'" in capsys.readouterr().err
        assert [[]] * 4 == [r.lines for r in ranks]

    def test_nobody_named(self, ranks, capsys):
        """
        Who was not named is not blamed for not being stopped.
        """
        ranks[1].state = ""

        first = main(["dbg", "-c", "continue"])
        second = main(["dbg", "-c", "continue"])

        assert [0, 0] == [first, second]
        assert "[0,2-3] (goes on)\nnobody is stopped\n" == (
            capsys.readouterr().out
        )

    def test_which_job(self, ranks, folder, monkeypatch, capsys):
        """
        If nobody chose the job, it is told which one is asked.
        """
        monkeypatch.delenv("DISTDEBUG_DIR")
        monkeypatch.setattr(here, "job_folders", lambda: (folder,))

        main(["dbg", "-c", "continue"])

        assert f"asks the job in {folder} (4 processes of " in (
            capsys.readouterr().err
        )

    def test_armed(self, ranks, folder, monkeypatch, capsys, tmp_path):
        """
        A process that was armed is asked where it listens.
        """
        monkeypatch.setenv("DISTDEBUG_DIR", str(tmp_path / "other"))
        armed = unprepared.Armed(pid=7, path=str(folder / "7.sock"))
        monkeypatch.setattr(unprepared, "arm_process", lambda _: armed)

        status = main(["dbg", "--arm", "7", "-c", "cast ranks(:) p x"])

        assert 0 == status
        assert f"{armed}\n[0-3] did p x\n" == capsys.readouterr().out

    def test_no_job(self, folder, monkeypatch, capsys):
        """
        If no job listens, it is said how those that run can be asked.
        """
        monkeypatch.delenv("DISTDEBUG_DIR")
        monkeypatch.setattr(here, "job_folders", lambda: ())
        monkeypatch.setattr(unprepared, "find_workers", lambda **_: ())
        monkeypatch.setattr(
            unprepared, "how_to_arm", lambda _: ("rank 3: start it anew",)
        )

        status = main(["dbg", "-c", "list"])

        told = capsys.readouterr().err
        assert 2 == status
        assert "rank 3: start it anew" in told
        assert "no job of yours listens" in told

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

        text = outside.stacks_from_outside([7])[0]

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

        assert outside.stacks_from_outside([7])[0].endswith(
            "outside: allow ptrace"
        )

    def test_refused(self, monkeypatch):
        """
        Who may not look says why.
        """

        def refuse(pid, timeout_s):
            msg = "not allowed"
            raise CaptureError(msg)

        monkeypatch.setattr("distdebug.capture.node.capture_process", refuse)

        assert "not allowed" in outside.stacks_from_outside([7])[0]


def test_unknown_name():
    """
    A name that does not exist is an ordinary attribute error.
    """
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        debugger.nonsense  # noqa: B018


def test_all_names():
    """
    Every name that the door offers is there.
    """
    assert all(hasattr(debugger, name) for name in debugger.__all__)


def test_closed_twice(folder):
    """
    A client that has hung up can do so again.
    """
    ranks = Ranks(Here(folder))

    ranks.close()
    ranks.close()
