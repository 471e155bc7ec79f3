"""
The client of the ranks, as a library and by the command ``dbg``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import sys
import threading
import time

from types import SimpleNamespace

import pytest

from distdebug import debugger
from distdebug.__main__ import main
from distdebug.debugger import (
    SilentProcess,
    connect,
    job_text,
    parse_command,
    run_command,
)
from distdebug.debugger.client import connections, local
from distdebug.errors import CaptureError, DebuggerError
from distdebug.stacks import ProcessStacks, StackFrame, ThreadStack


@pytest.fixture
def ranks(folder, answering_rank):
    """
    Four ranks that are stopped.
    """
    return [
        answering_rank(folder, r, coords={"dp": r // 2, "tp": r % 2})
        for r in range(4)
    ]


@pytest.fixture
def listening(folder):
    """
    Lets a function talk to each that connects to a socket of a process 1.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "0.1.sock"))
        listener.listen()

        def serve(talk):
            def work():
                with contextlib.suppress(OSError):
                    while True:
                        client, _ = listener.accept()
                        with client, contextlib.suppress(OSError):
                            talk(client)

            threading.Thread(target=work, daemon=True).start()

        yield serve
        listener.shutdown(socket.SHUT_RDWR)


def nobody(pid):
    """
    A process of this node that does not answer.
    """
    return SilentProcess(host="", pid=pid)


class TestClient:
    def test_cast(self, ranks):
        """
        Each rank that is selected obeys once; one that is not stopped is
        named.
        """
        ranks[2].state = ""

        with connect() as client:
            answers = client.cast("ranks(1,1,2,3)", "n")

        assert [1, 3] == [o.rank for o in answers.outputs]
        assert [2] == [p.rank for p in answers.not_stopped]
        assert [[], ["n"], [], ["n"]] == [r.lines for r in ranks]

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

    def test_silent(self, ranks, from_outside):
        """
        A rank that does not answer costs no waiting, and is looked at from
        outside: the stack of the main thread, cleaned, innermost line last.
        """
        inner = StackFrame(name="\x1b[31mf", filename="a.py", line=7)
        outer = StackFrame(name="main", filename="a.py", line=1)
        threads = (
            ThreadStack(name="other", frames=(outer,)),
            ThreadStack(name="Main", frames=(inner, outer), is_main=True),
        )
        stacks = ProcessStacks(pid=7, source="py-spy", threads=threads)
        from_outside(lambda _: SimpleNamespace(stacks=stacks))
        ranks[1].mute = {"list"}

        with connect(timeout_s=0.1) as client:
            listing = client.list()
            answers = client.stack()

        assert [0, 2, 3] == [p.rank for p in listing]
        assert (nobody(os.getpid()),) == listing.silent
        assert answers.notes[0].endswith(
            f"process {os.getpid()} does not answer; seen from outside:\n"
            "  a.py:1 in main\n  a.py:7 in f"
        )
        assert 3 == len(answers.outputs)

    def test_not_seen(self, ranks, from_outside):
        """
        If no rank answers, that is the answer; where there is no stack, the
        remedy or the reason is given.
        """

        def refuse(_):
            msg = "not allowed"
            raise CaptureError(msg)

        for rank in ranks:
            rank.mute = {"list"}
        no_stack = SimpleNamespace(
            stacks=SimpleNamespace(threads=()), remedy="allow ptrace"
        )
        with connect(timeout_s=0.1) as client:
            from_outside(lambda _: no_stack)
            unseen = client.stack()
            from_outside(refuse)
            refused = client.stack()

        assert () == unseen.outputs
        assert 4 == len(unseen.silent)
        assert unseen.notes[0].endswith("outside: allow ptrace")
        assert refused.notes[0].endswith("outside: not allowed")

    def test_unarmed(self, ranks, from_outside, workers):
        """
        Ranks of the job that are not armed are looked at from outside.
        """
        workers(
            {"pid": os.getpid(), "job": "a"}, {"pid": 7, "rank": 4, "job": "a"}
        )
        from_outside(
            lambda _: SimpleNamespace(
                stacks=SimpleNamespace(threads=()), remedy="no"
            )
        )

        with connect() as client:
            everybody = client.stack()
            alone = run_command(client, parse_command("stack 4"))
            another = client.stack("ranks(0)")
            grouped = client.stack(group="job")
            with pytest.raises(DebuggerError, match="no group other"):
                client.stack(group="other")

        told = ("rank 4 (process 7) is not armed; seen from outside: no",)
        assert 4 == len(everybody.outputs)
        assert [told] * 3 == [a.notes for a in (everybody, alone, grouped)]
        assert () == another.notes

    def test_nobody_armed(self, folder, workers, capsys):
        """
        Where no rank listens, that is said, and the jobs of others are left
        alone.
        """
        asked = workers()

        with connect() as client:
            with pytest.raises(DebuggerError, match="no rank listens"):
                client.stack()
        status = main(["dbg", "-c", "stack"])

        assert [] == asked
        assert 2 == status
        assert "no rank listens" in capsys.readouterr().err

    def test_other_process(self, folder, answering_rank):
        """
        A later process with the number of a rank is shown as another process.
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

    def test_interrupted(self, ranks):
        """
        After Ctrl-C while a rank runs, the client can ask it something else.
        """
        answer = ranks[0].answer

        def answer_late(request):
            if request.get("line") == "n":
                main_thread = threading.main_thread().ident
                frames = sys._current_frames
                while "select" != frames()[main_thread].f_code.co_name:
                    time.sleep(0.001)
                signal.pthread_kill(main_thread, signal.SIGINT)
                ended.wait(30)
            return answer(request)

        ended = threading.Event()
        ranks[0].answer = answer_late
        with connect() as client:
            attached = client.attach(0)
            with pytest.raises(KeyboardInterrupt):
                attached.send("n")
            ended.set()

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

    @pytest.mark.parametrize("talk", ["babbles", "hangs up", "floods"])
    def test_nonsense(self, listening, talk):
        """
        A process that sends no message, ends while it is asked, or talks
        without end counts as silent, and costs no waiting.
        """

        def say(client):
            if talk == "babbles":
                client.recv(100)
                client.sendall(b"nonsense\n")
            elif talk == "hangs up":
                client.sendall(b'{"id": 99}\n')
                client.recv(100)
            else:
                while True:
                    client.sendall(b'{"id":99}\n' * 6000)

        listening(say)
        with connect(timeout_s=0.1 if talk == "floods" else 30) as client:
            began = time.monotonic()

            assert (nobody(1),) == client.list().silent
            assert () == client.list().processes
        assert time.monotonic() - began < 20

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
        A rank with an unexpected answer is listed, and no other is lost.
        """
        ranks[1].answer = lambda _: told

        with connect() as client:
            listing = client.list()
            answers = client.cast(None, "n")

        assert 4 == len(listing.processes)
        assert {0, 2, 3} <= {o.rank for o in answers.outputs}
        assert str(answers)

    def test_other_user(self, folder, ranks, peer_is, monkeypatch):
        """
        Another user cannot answer in the place of a rank.
        """
        if os.geteuid() == 0:  # who may ask everybody
            os.chown(folder, 5, -1)
            monkeypatch.setattr(os, "geteuid", lambda: 5)
        peer_is(54321)

        with connect() as client:
            listing = client.list()

        assert () == listing.processes
        assert {nobody(os.getpid())} == set(listing.silent)

    def test_crowded(self, folder):
        """
        A process that takes no more connections is named, and not waited for.
        """
        path = str(folder / "0.1.sock")
        with (
            socket.socket(socket.AF_UNIX) as full,
            socket.socket(socket.AF_UNIX) as first,
        ):
            full.bind(path)
            full.listen(0)
            first.connect(path)

            with connect(timeout_s=0.1) as client:
                assert (nobody(1),) == client.list().silent

    def test_endless(self, listening, monkeypatch):
        """
        A line on which too much was said unasked counts as closed.
        """
        met, again, said = [], threading.Event(), threading.Event()

        def say_more(client):
            met.append(client.recv(100))
            client.sendall(b'{"id":1}\n')
            again.wait(30)
            client.sendall(b'{"id":99}\n' * 20)
            said.set()
            client.recv(100)

        listening(say_more)
        with connect() as client:
            client.list()
            again.set()
            said.wait(30)
            # What the kernel keeps of it would not be too much.
            monkeypatch.setattr(connections, "_MAX_RECV_BLOCKS", 3)
            monkeypatch.setattr(connections, "_RECV_BYTES", 16)
            client.list()

        assert 2 == len(met)

    def test_long_question(self, ranks):
        """
        What cannot be sent at once is sent when there is room.
        """
        with connect() as client:
            answers = client.eval("ranks(0)", "x" * 900_000)

        assert "[0] eval 0" == str(answers)

    def test_refused(self, ranks):
        """
        A rank that does not understand a question answers all that are open.
        """
        answer = ranks[1].answer
        refused = {"id": None, "error": "too long"}
        ranks[1].answer = lambda request: (
            refused if request["op"] == "eval" else answer(request)
        )

        with connect() as client:
            answers = client.eval("ranks(1)", "x")

        assert "[1] *** too long" == str(answers)

    @pytest.mark.parametrize("is_ours", [True, False])
    def test_lent(self, ranks, peer_is, monkeypatch, is_ours):
        """
        A rank gets the sources that it misses, and nothing else; root lends
        none to the job of another user.
        """
        sent, answer = [], ranks[0].answer
        files = ["/etc/passwd", 3, "/missing.py", "/dev/zero", __file__]

        def missing(request):
            if request["op"] == "source":
                sent.append(request["file"])
                return {"output": "thank you"}
            return {**answer(request), "missing": files}

        ranks[0].answer = missing
        if not is_ours:
            monkeypatch.setattr(os, "geteuid", lambda: 0)
            peer_is(54321)

        with connect() as client:
            assert 4 == len(client.list().processes)

        assert [__file__] * is_ours == sent

    def test_closed_twice(self, ranks):
        """
        A client that has hung up can do so again.
        """
        client = connect()
        client.list()

        client.close()
        client.close()

        with client:
            assert 4 == len(client.list().processes)


class TestConnect:
    @pytest.fixture(autouse=True)
    def base(self, base):
        """
        All jobs of the user are those of the test.
        """
        base.chmod(0o700)
        return base

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
            (process,) = client.list()

        assert str(base / "new") in process.path

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
            (process,) = client.list()

        assert f"--dir {base / '71.0'} (1 process of " in caught.value.remedy
        assert "/7.0-node-1-29500/" in process.path

    @pytest.mark.parametrize("launched", ["127.0.0.1-29500", "job-1"])
    def test_another(self, base, answering_rank, launched):
        """
        No job is preferred to another outside of Slurm, however it is called.
        """
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
            (None, "unknown"),
        ],
        ids=["script", "module", "program", "title", "kernel", "gone"],
    )
    def test_told(self, base, answering_rank, monkeypatch, line, program):
        """
        A job is named by its folder, and by what runs in it, if it has not
        ended.
        """
        answering_rank(base, 0)
        read = {f"/proc/{os.getpid()}/cmdline": line}
        monkeypatch.setattr(local, "read_proc", lambda path, **_: read[path])

        text = job_text(base)
        (base / f"0.{os.getpid()}.sock").rename(base / "0.999999999.sock")

        assert f"{base} (1 process of {program}, for 0 s, such as " in text
        assert str(base) == job_text(base)

    def test_unsafe(self, base, answering_rank):
        """
        A folder that others may enter is refused, also if that is so since
        we ask.
        """
        answering_rank(base, 0)
        with connect(base) as client:
            client.list()
            base.chmod(0o755)

            with pytest.raises(DebuggerError, match="others may enter"):
                client.list()
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

    @pytest.mark.parametrize(
        ("lines", "status", "says"),
        [
            (["cast ranks(:) n", "cast x"], 2, "cast ranks(:) x"),
            (["cast ranks(9) n", "c", "q"], 2, "so not done either: 'c', 'q'"),
            (["attach 1"], 2, "cast ranks(3) COMMAND"),
            (["help", "q"], 0, "ranks(1:10:2)"),
        ],
        ids=["not understood", "skipped", "takes a person", "help"],
    )
    def test_nothing_done(self, ranks, capsys, lines, status, says):
        """
        Nothing is done if one of the commands is not understood, or one before
        cannot be done; what concerns no rank can be asked as well.
        """
        found = main(
            ["dbg", *(word for line in lines for word in ("-c", line))]
        )

        output = capsys.readouterr()
        assert status == found
        assert says in output.out + output.err
        assert [[]] * 4 == [r.lines for r in ranks]

    def test_nobody_named(self, ranks, capsys):
        """
        Ranks that were not named are not reported as not stopped.
        """
        ranks[1].state = ""

        first = main(["dbg", "-c", "continue"])
        second = main(["dbg", "-c", "continue"])

        assert [0, 0] == [first, second]
        assert "[0,2-3] (goes on)\nno rank is stopped\n" == (
            capsys.readouterr().out
        )

    def test_which_job(self, base, answering_rank, capsys):
        """
        If no job was chosen, the one that is asked is named.
        """
        base.chmod(0o700)
        (base / "run").mkdir(mode=0o700)
        answering_rank(base / "run", 0)

        main(["dbg", "-c", "continue"])

        assert f"asks the job in {base / 'run'} (1 process of " in (
            capsys.readouterr().err
        )

    def test_no_job(self, base, workers, capsys):
        """
        If no job listens, it is said what helps, and how those that run can be
        asked.
        """
        base.chmod(0o700)
        workers({"pid": os.getpid(), "rank": 3})

        status = main(["dbg", "-c", "list"])

        told = capsys.readouterr().err
        assert 2 == status
        assert "not armed on this node: rank 3" in told
        assert "no job of yours listens" in told
        assert "DISTDEBUG=1" in told

    def test_person(self, ranks, capsys, monkeypatch):
        """
        Without a command it talks to a person.
        """
        monkeypatch.setitem(sys.modules, "readline", None)
        monkeypatch.setattr(sys, "stdin", io.StringIO("q\n"))

        assert 0 == main(["dbg"])

        assert "#4" in capsys.readouterr().out


def test_names():
    """
    Every name that the door offers is there; one that does not exist is an
    ordinary attribute error.
    """
    assert all(hasattr(debugger, name) for name in debugger.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        debugger.nonsense  # noqa: B018
