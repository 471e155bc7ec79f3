"""
Ranks of other nodes, behind relays that run here in threads.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.__main__ import main
from distdebug.debugger import Listing, LostNode, SilentProcess, connect
from distdebug.debugger.client import client as client_module
from distdebug.debugger.client import relay
from distdebug.errors import DebuggerError, NodesError
from distdebug.nodes import Channel


RANK = "0.1.sock"


class Client:
    """
    A client that talks to a relay line by line.
    """

    def __init__(self, folder=None, seconds=60):
        self.alarms = []
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(30)
        self.lines = self.socket.makefile("rb")
        self.status = None

        def work():
            with theirs:
                where = [] if folder is None else [str(folder)]
                self.status = relay.main(
                    [str(seconds), *where],
                    theirs.fileno(),
                    theirs.fileno(),
                    self.alarms.append,
                )

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def hear(self):
        """
        The next message; None if there are no more.
        """
        line = self.lines.readline()
        return json.loads(line) if line else None

    def say(self, **request):
        """
        Ask something, and do not wait.
        """
        self.socket.sendall(json.dumps(request).encode() + b"\n")

    def ask(self, **request):
        """
        What the relay answers.
        """
        self.say(id=7, **request)
        return self.hear()

    def end(self):
        """
        Hang up; the status with which the relay ends.
        """
        self.lines.close()
        self.socket.close()
        self.thread.join(30)
        return self.status


@pytest.fixture
def client(socket_folder):
    """
    A client whose relay has greeted.
    """
    one = Client(socket_folder)
    assert {"relay": 1, "host": socket.gethostname()} == one.hear()
    yield one
    one.end()


@pytest.fixture
def rank(client, socket_folder):
    """
    A rank to which the relay is connected, as the rank sees it.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_folder / RANK))
        listener.listen()
        client.ask(op="who")
        connected, _ = listener.accept()
        with connected:
            yield connected


class TestRelay:
    def test_hands_on(self, client, socket_folder, answering_rank):
        """
        A question reaches the rank that it is for, and its answer comes back.
        """
        rank = answering_rank(socket_folder, 3)

        who = client.ask(op="who")
        answer = client.ask(op="eval", to=rank.path.name, wait=2.5)

        assert {
            "id": 7,
            "folder": str(socket_folder),
            "ranks": {rank.path.name: [os.getpid(), os.geteuid()]},
            "silent": [],
        } == who
        assert {"id": 7, "output": "eval 3", "state": ""} == answer
        assert 0 == client.end()
        assert [60, 60, 63, 0] == client.alarms

    def test_strangers(self, client, socket_folder, answering_rank):
        """
        Nothing is handed on to what is no socket of the folder.
        """
        (socket_folder / "in").mkdir(mode=0o700)
        rank = answering_rank(socket_folder / "in", 0)
        client.ask(op="who")

        for name in (
            str(rank.path),
            f"in/{rank.path.name}",
            "../x.1.sock",
            "",
            7,
        ):
            assert {"id": 7, "gone": True} == client.ask(op="eval", to=name)
        assert [] == rank.lines

    def test_unsafe(self, client, socket_folder, answering_rank):
        """
        A folder that others may enter is an error, and not used any more;
        where it has gone, there is no rank any more.
        """
        rank = answering_rank(socket_folder, 0)
        assert 1 == len(client.ask(op="who")["ranks"])
        socket_folder.chmod(0o777)

        assert "others may enter" in client.ask(op="who")["error"]
        assert stat.S_IMODE(socket_folder.stat().st_mode) == 0o777
        assert [] == rank.lines
        rank.path.unlink()
        socket_folder.rmdir()
        assert {} == client.ask(op="who")["ranks"]

    def test_nobody_yet(self, tmp_path, base):
        """
        Where no rank has begun to listen, the relay lists none, until one
        does.
        """
        base.chmod(0o700)
        without, missing = Client(), Client(tmp_path / "missing")

        for one in (without, missing):
            one.hear()
            assert {"id": 7, "folder": "", "ranks": {}, "silent": []} == (
                one.ask(op="who")
            )
            assert {"id": 7, "told": []} == one.ask(op="outside", pids=[1])
            assert 0 == one.end()

    def test_outside(
        self, client, socket_folder, answering_rank, from_outside
    ):
        """
        Only processes that have a socket are looked at from outside.
        """
        answering_rank(socket_folder, 0)
        looked = []
        unseen = SimpleNamespace(
            stacks=SimpleNamespace(threads=()), remedy="no"
        )
        from_outside(lambda pid: looked.append(pid) or unseen)
        client.ask(op="who")

        told = client.ask(op="outside", pids=[1, os.getpid()])
        nonsense = client.ask(op="outside", pids="all")

        assert [os.getpid()] == looked
        assert 1 == len(told["told"])
        assert [] == nonsense["told"]

    @pytest.mark.parametrize(
        "data",
        [b"nonsense\n", b"[1]\n", b"x" * ((1 << 20) + 2)],
        ids=["no JSON", "no object", "too long"],
    )
    def test_malformed(self, client, data):
        """
        A relay does only what a relay does; what is no message ends it.
        """
        for request in (
            {"op": [1]},
            {"op": "eval"},
            {"op": None, "wait": "x"},
        ):
            assert "does not do" in client.ask(**request)["error"]
        client.socket.sendall(data)

        assert client.hear() is None
        assert 1 == client.end()

    def test_hung_up(self, client, socket_folder, answering_rank):
        """
        What was given up is let be, and its answer never comes.
        """
        rank = answering_rank(socket_folder, 0)
        rank.mute = {"eval"}
        client.ask(op="who")
        client.say(id=1, op="eval", to=rank.path.name)
        client.say(id=2, op="hang up", rank=rank.path.name)
        client.say(op="hang up", rank="other")

        assert {"id": 1, "gone": True} == client.hear()
        assert {"id": 7, "gone": True} == client.ask(
            op="eval", to=rank.path.name
        )
        rank.mute = ()
        client.ask(op="who")
        assert "eval 0" == client.ask(op="eval", to=rank.path.name)["output"]

    @pytest.mark.parametrize(
        ("said", "heard"),
        [
            (b"", {"gone": True}),
            (b"nonsense\n", {"gone": True}),
            (b'{"id": null, "error": "what?"}\n', {"error": "what?"}),
            (b'{"id": [1]}\n{"id": 99}\n', {"gone": True}),
        ],
        ids=["hangs up", "no JSON", "not understood", "other numbers"],
    )
    def test_broken_rank(self, client, rank, said, heard):
        """
        A rank that answers nothing sensible is reported as such.
        """
        client.say(id=5, op="eval", to=RANK)
        rank.recv(1 << 16)
        rank.sendall(said)
        rank.close()

        assert {"id": 5, **heard} == client.hear()

    def test_long_answer(self, client, rank):
        """
        An answer that is too long to be handed back is an error.
        """
        client.say(id=5, op="eval", to=RANK)
        rank.recv(1 << 16)
        # It takes more room when it is written down again.
        rank.sendall(b'{"id":1,"output":"' + "é".encode() * 300_000)
        rank.sendall(b'"}\n')

        assert "longer than" in client.hear()["error"]

    def test_long_question(self, client, rank):
        """
        A question that a rank does not take at once is handed on in pieces.
        """
        client.say(id=5, to=RANK, x="y" * 900_000)
        with rank.makefile("rb") as file:
            got = json.loads(file.readline())
        rank.sendall(json.dumps({"id": got["id"]}).encode() + b"\n")

        assert {"id": 5} == client.hear()
        assert 900_000 == len(got["x"])

    @pytest.mark.process
    def test_process(self, socket_folder, answering_rank):
        """
        It is a program that ends with its input, or without any question.
        """
        answering_rank(socket_folder, 0)
        root = str(Path(relay.__file__).parents[2])

        def start(seconds):
            return subprocess.Popen(
                [
                    *(
                        sys.executable,
                        "-P",
                        "-m",
                        "distdebug.debugger.client.relay",
                    ),
                    *(seconds, str(socket_folder)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": root},
            )

        with start("60") as asked, start("1") as forgotten:
            for process in (asked, forgotten):
                assert b'{"relay":1,' in process.stdout.readline()
            asked.stdin.write(b'{"id":1,"op":"who"}\n')
            asked.stdin.flush()

            assert 1 == len(json.loads(asked.stdout.readline())["ranks"])
            asked.stdin.close()
            assert 0 == asked.wait(30)
            assert -signal.SIGALRM == forgotten.wait(30)


class Nodes:
    """
    Nodes, each of which has a folder here; its relay runs in a thread.
    """

    python = sys.executable

    def __init__(self, **folders):
        self.folders = folders
        self.argv = ()
        self.opened = []
        self.closed = 0
        # What is said in the place of a relay, and what relays do at a request.
        self.says = {}
        self.answers = {}
        self.gates = {}
        self.links, self.threads = {}, []

    @contextmanager
    def connectors(self, argv):
        """
        What starts the relay of each node.
        """
        self.argv = argv
        yield {
            host: lambda host=host: self.open(host) for host in self.folders
        }
        self.closed += 1

    def open(self, host):
        """
        Start one.
        """
        if self.folders[host] is None:
            msg = "no such command"
            raise OSError(msg)
        if self.folders[host] is KeyboardInterrupt:
            raise KeyboardInterrupt

        self.opened.append(host)
        ours, theirs = socket.socketpair()
        self.links[host] = ours
        thread = threading.Thread(
            target=self.work, args=(theirs, host), daemon=True
        )
        thread.start()
        self.threads.append(thread)
        return Channel(
            socket=ours,
            failure=lambda: SimpleNamespace(
                reason=f"{host} is down", remedy="wait"
            ),
            wait=lambda _: None,
        )

    def work(self, theirs, host):
        """
        Be a relay, or something else.
        """
        with theirs, theirs.makefile("rwb", buffering=0) as lines:
            if host in self.says:
                lines.write(self.says[host])
                if not self.says[host]:
                    lines.readline()
            elif host in self.answers:
                lines.write(b'{"relay":1}\n')
                for line in lines:
                    request = json.loads(line)
                    answer = self.answers[host].get(request["op"], {})
                    data = json.dumps({"id": request["id"], **answer})
                    lines.write(data.encode() + b"\n")
            else:
                relay.main(
                    ["60", str(self.folders[host])],
                    theirs.fileno(),
                    theirs.fileno(),
                    lambda _: self.gates.get(host, bool)(),
                )

    def hang_up(self, host):
        """
        Let the relay of a node end.
        """
        self.links[host].shutdown(socket.SHUT_RDWR)


@pytest.fixture
def nodes(socket_folder, answering_rank):
    """
    Two nodes, with two ranks and one.
    """
    folders, made = {}, {}
    for name, ranks in {"a": (0, 2), "b": (1,)}.items():
        folders[name] = socket_folder / name
        folders[name].mkdir(mode=0o700)
        for rank in ranks:
            made[rank] = answering_rank(folders[name], rank)
    found = Nodes(**folders)
    found.ranks = made
    yield found
    for thread in found.threads:
        thread.join(30)


def wait_for_select():
    """
    Wait until the main thread waits for what others say.
    """
    main_thread = threading.main_thread().ident
    frames = sys._current_frames
    while "select" != frames()[main_thread].f_code.co_name:
        time.sleep(0.001)


def texts(answers):
    """
    What each rank said.
    """
    return {o.rank: o.text.strip() for o in answers.outputs}


class TestNodes:
    def test_session(self, nodes):
        """
        The ranks of all nodes are listed, asked, and steered as one job.
        """
        with connect(nodes=nodes) as client:
            listing = client.list()
            asked = client.cast("ranks(:)", "p x")
            held = client.attach(1)
            stepped = held.send("n")
            values = client.eval("ranks(0,1)", "x")
            going = client.resume("ranks(2)")

        assert [(0, "a"), (1, "b"), (2, "a")] == [
            (p.rank, p.host) for p in listing
        ]
        assert {0: "did p x", 1: "did p x", 2: "did p x"} == texts(asked)
        assert "did n" == stepped.text
        assert {0: "eval 0", 1: "eval 1"} == texts(values)
        assert ["ended"] == [o.state for o in going.outputs]
        assert [["p x", "eval"], ["p x", "n", "eval"], ["p x", "detach"]] == [
            [x for x in nodes.ranks[rank].lines if x != "last"]
            for rank in range(3)
        ]
        assert ["a", "b"] == nodes.opened
        assert 1 == nodes.closed
        assert listing.processes[1].path.startswith("b:/")

    def test_command(self, nodes):
        """
        The relay is started by the Python of the nodes, with the folder only
        if it was chosen.
        """
        with connect(nodes=nodes):
            usual = nodes.argv
        with connect("/chosen", nodes=nodes):
            chosen = nodes.argv

        module = "distdebug.debugger.client.relay"
        assert [sys.executable, "-P", "-m", module, "300"] == usual
        assert [*usual, "/chosen"] == chosen

    def test_unreachable(self, nodes):
        """
        Nodes that cannot be reached are named, with the reason, and lose no
        other.
        """
        nodes.folders |= {"c": None, "d": nodes.folders["a"].parent / "none"}
        nodes.folders |= dict.fromkeys("efgh", nodes.folders["a"])
        nodes.says = {
            "e": b"Welcome to node e\n",
            "f": b'{"relay":99}\n',
            "g": b'{"relay":nonsense\n',
            "h": b"x" * ((1 << 16) + 1),
        }

        with connect(nodes=nodes) as client:
            listing = client.list()
            answers = client.cast("ranks(:)", "p x")
            again = list(nodes.opened)

        assert [0, 1, 2] == [p.rank for p in listing]
        assert [
            LostNode(host="c", reason="no such command"),
            LostNode(host="e", reason="e is down", remedy="wait"),
        ] == sorted(listing.lost)[:2]
        assert list("fgh") == [n.host for n in sorted(listing.lost)[2:]]
        assert "what answers there is no relay" in str(listing)
        assert "version 99, not 1" in str(listing)
        assert listing.lost == answers.lost
        assert ("d",) == listing.idle
        assert "no process listens on d\n" in str(listing)
        assert "e cannot be asked: e is down (wait)" in str(answers)
        assert again == nodes.opened

    def test_slow_node(self, nodes, monkeypatch):
        """
        A node whose relay does not greet in time is given up.
        """
        nodes.folders["slow"] = nodes.folders["a"]
        nodes.says["slow"] = b""
        monkeypatch.setattr(client_module, "_OPEN_S", 0.2)
        with connect(nodes=nodes) as client:
            listing = client.list()

        assert [0, 1, 2] == [p.rank for p in listing]
        assert ["no relay after 0.2 s"] == [n.reason for n in listing.lost]

    def test_one_after_the_other(self, nodes, socket_folder):
        """
        Only so many relays are started at the same time, and all in the end.
        """
        nodes.folders = {f"n{i}": socket_folder / "a" for i in range(70)}
        counts = []

        def greet():
            if len(nodes.opened) < 70:
                wait_for_select()
                counts.append(len(nodes.opened))

        nodes.gates = dict.fromkeys(nodes.folders, greet)
        with connect(nodes=nodes):
            pass

        assert 64 == counts[0]
        assert list(nodes.folders) == nodes.opened

    def test_interrupted(self, nodes):
        """
        Ctrl-C while relays are started leaves none of them.
        """
        nodes.folders["c"] = KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            connect(nodes=nodes)

        assert ["a", "b"] == nodes.opened
        for thread in nodes.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in nodes.threads)

    def test_all_lost(self, nodes):
        """
        If no node can be reached, that is an error; a client that lost all
        nodes can ask again when they are back.
        """
        folders = dict(nodes.folders)
        nodes.folders = {"c": None}
        with pytest.raises(DebuggerError, match="c cannot be asked: no such"):
            connect(nodes=nodes)
        nodes.folders = dict(folders)

        with connect(nodes=nodes) as client:
            nodes.hang_up("a")
            nodes.hang_up("b")
            nodes.folders.update(dict.fromkeys(folders))
            with pytest.raises(DebuggerError, match="no node can be asked"):
                client.list()
            nodes.folders.update(folders)

            assert 3 == len(client.list().processes)

    def test_relay_ended(self, nodes):
        """
        A relay that has ended is started again.
        """
        with connect(nodes=nodes) as client:
            client.list()
            nodes.hang_up("b")

            answers = client.cast("ranks(:)", "n")

        assert {0, 1, 2} == texts(answers).keys()
        assert ["a", "b", "b"] == nodes.opened

    def test_node_dies(self, nodes):
        """
        A node that dies while it is asked is said so, and not taken for ranks
        that do not answer; the others are heard.
        """
        with connect(nodes=nodes) as client:
            client.list()
            answer = nodes.ranks[1].answer

            def die(request):
                if request["op"] == "command":
                    nodes.hang_up("b")
                return answer(request)

            nodes.ranks[1].answer = die
            answers = client.cast("ranks(:)", "n")
            nodes.folders["b"] = None
            listing = client.list()
            later = client.eval(None, "x")

        assert {0, 2} == texts(answers).keys()
        assert () == answers.silent
        lost = LostNode(host="b", reason="b is down", remedy="wait")
        assert (lost,) == answers.lost
        assert [0, 2] == [p.rank for p in listing]
        assert ["no such command"] == [n.reason for n in listing.lost]
        assert listing.lost == later.lost

    def test_stuck_relay(self, nodes):
        """
        A node whose relay does not answer is said so; the others are heard.
        """
        free = threading.Event()

        with connect(nodes=nodes, timeout_s=0.2) as client:
            nodes.gates["b"] = lambda: free.wait(30)
            listing = client.list()
            free.set()
            again = client.list()

        assert [0, 2] == [p.rank for p in listing]
        (lost,) = listing.lost
        assert ("b", "its relay does not answer within 0.2 s") == (
            lost.host,
            lost.reason,
        )
        assert [0, 1, 2] == [p.rank for p in again]

    def test_dead_relay(self, nodes):
        """
        A relay that ends while it is asked for its ranks is explained.
        """

        def die():
            nodes.gates.clear()  # it is asked once more when it has ended
            raise ValueError

        with connect(nodes=nodes) as client:
            nodes.gates["b"] = die
            listing = client.list()

        assert (LostNode(host="b", reason="b is down", remedy="wait"),) == (
            listing.lost
        )
        assert [0, 2] == [p.rank for p in listing]

    def test_silent(self, nodes, from_outside):
        """
        Of a rank that does not answer one sees on which node it is, and where.
        """
        from_outside(
            lambda pid: SimpleNamespace(
                stacks=SimpleNamespace(threads=()), remedy=f"f\x1b[31m {pid}"
            )
        )
        nodes.ranks[1].mute = {"list"}

        with connect(nodes=nodes, timeout_s=0.2) as client:
            listing = client.list()
            stacks = client.stack()
            nodes.ranks[1].mute = ()
            again = client.eval("ranks(1)", "x")

        assert (SilentProcess(host="b", pid=os.getpid()),) == listing.silent
        assert f"process {os.getpid()} on b does not answer" in str(listing)
        (note,) = stacks.notes
        assert note.startswith(f"b: process {os.getpid()} does not answer")
        assert note.endswith(f"outside: f {os.getpid()}")
        assert {1: "eval 1"} == texts(again)

    def test_full(self, nodes):
        """
        A rank that takes no more connections is listed as silent, with its
        node.
        """
        path = nodes.folders["b"] / "9.1.sock"
        with (
            socket.socket(socket.AF_UNIX) as full,
            socket.socket(socket.AF_UNIX) as first,
        ):
            full.bind(str(path))
            full.listen(0)
            first.connect(str(path))

            with connect(nodes=nodes) as client:
                assert (
                    SilentProcess(host="b", pid=1),
                ) == client.list().silent

    def test_same_twice(self, nodes):
        """
        A rank that is reached by two names is there once, and obeys once.
        """
        nodes.folders["a2"] = nodes.folders["a"]

        with connect(nodes=nodes) as client:
            answers = client.cast("ranks(:)", "n")

        assert [0, 1, 2] == sorted(o.rank for o in answers.outputs)
        assert ["n"] == nodes.ranks[0].lines

    @pytest.fixture
    def sent(self, nodes, monkeypatch, tmp_path):
        """
        The files that a rank got of those that it said to miss.
        """
        project = tmp_path / "project"
        project.mkdir()
        for path in (tmp_path / "secret.py", project / "mine.py"):
            path.write_text("key = 1\n")
        (project / "link.py").symlink_to(tmp_path / "secret.py")
        monkeypatch.chdir(project)
        sent, answer = [], nodes.ranks[1].answer
        names = ["link.py", "../secret.py", "mine.py"]
        asked = [str(project / name) for name in names]

        def missing(request):
            if request["op"] == "source":
                sent.append(os.path.relpath(request["file"], project))
                return {"output": "thank you"}
            more = {"missing": asked} if request["op"] == "list" else {}
            return {**answer(request), **more}

        nodes.ranks[1].answer = missing
        return sent

    def test_not_lent(self, nodes, sent):
        """
        A node gets sources once, and no file that lies elsewhere, whatever
        name it gives.
        """
        with connect(nodes=nodes) as client:
            client.list()
            client.list()

        assert ["mine.py"] == sent

    @pytest.mark.parametrize(
        "known",
        [
            {},
            {"ranks": None, "silent": []},
            {"ranks": {}, "silent": 3},
            {"ranks": ["x"], "silent": []},
            {"error": "others may enter\x1b[31m"},
        ],
        ids=["nothing", "no ranks", "no list", "no mapping", "problem"],
    )
    def test_hostile_relay(self, nodes, known):
        """
        A node whose relay talks nonsense is lost, and no other.
        """
        nodes.answers["b"] = {"who": known}

        with connect(nodes=nodes) as client:
            listing = client.list()

        assert [0, 2] == [p.rank for p in listing]
        (lost,) = listing.lost
        problem = "others may enter" if "error" in known else ""
        assert "b" == lost.host
        assert (problem or "its relay says what is no answer") == lost.reason

    def test_hostile_names(self, nodes):
        """
        What a relay says of ranks that are none is left out, and harmless.
        """
        evil = "\x1b[31m\u202e"
        known = {
            "folder": evil,
            "ranks": {evil: [1, 2], "x": [evil, 0], "y": 3, "z": [1]},
            "silent": [evil, 7, [8], True],
        }
        answers = {"who": known, "outside": {"told": [evil, 3]}}
        nodes.answers = {"a": answers, "b": answers}

        with connect(nodes=nodes) as client:
            listing = client.list()
            stacks = client.stack()

        assert () == listing.processes
        assert {SilentProcess(host=h, pid=7) for h in "ab"} == set(
            listing.silent
        )
        assert ("a: ", "a: 3", "b: ", "b: 3") == stacks.notes
        assert str(stacks).isascii()

    def test_order(self, nodes, socket_folder):
        """
        Nodes keep their order, whichever greets first.
        """
        greeted = threading.Event()
        nodes.folders |= dict.fromkeys("cd", socket_folder / "none")
        nodes.gates = {"c": lambda: greeted.wait(30), "d": greeted.set}

        with connect(nodes=nodes) as client:
            assert ("c", "d") == client.list().idle

    @pytest.mark.parametrize(
        ("limits", "wanted"),
        [
            ((256, 1 << 20), [(1282, 1 << 20)]),
            ((256, 512), [(512, 512)]),
            ((256, -1), [(1282, -1)]),
            ((-1, -1), []),
        ],
    )
    def test_many(self, nodes, monkeypatch, limits, wanted):
        """
        Where more files are needed than may be open, as many are allowed.
        """
        asked = []
        monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
        monkeypatch.setattr(
            resource, "setrlimit", lambda _, both: asked.append(both)
        )
        nodes.folders = {"a": nodes.folders["a"]} | {
            f"n{number}": None for number in range(512)
        }

        with connect(nodes=nodes):
            pass

        assert wanted == asked


class TestCommand:
    @pytest.fixture
    def made(self, nodes, monkeypatch):
        """
        With which options the nodes were chosen.
        """
        asked = []

        def engine(*args, **options):
            asked.append((*args, options))
            return nodes

        monkeypatch.setattr("distdebug.nodes.Slurm", engine)
        monkeypatch.setattr("distdebug.nodes.Ray", engine)
        monkeypatch.setattr("distdebug.nodes.Ssh", engine)
        return asked

    def test_places(self, made, capsys):
        """
        The command line, and the function, reach all nodes by Slurm, by Ray,
        and by ssh.
        """
        status = [
            main(["dbg", *where, "-c", "cast ranks(:) n"])
            for where in (
                ["--slurm", "12", "--container-name", "train"],
                ["--ray", "auto", "--ray-job", "02"],
                ["--hosts", "a,b", "--python", "/bin/py"],
            )
        ]
        for where in ({"slurm": 12}, {"ray": "auto"}, {"hosts": ["a"]}):
            with connect(**where) as client:
                assert 3 == len(client.list().processes)

        assert [0, 0, 0] == status
        assert [
            ({"job": "12", "container_name": "train"},),
            ("auto", {"job": "02"}),
            (("a", "b"), {"python": "/bin/py"}),
            ({"job": "12"},),
            ("auto", {}),
            (("a",), {}),
        ] == made
        assert 3 == capsys.readouterr().out.count("[0-2] did n")

    def test_lost(self, made, nodes, capsys):
        """
        A node that cannot be asked shows in the status and in the data.
        """
        nodes.folders["c"] = None

        status = main(["dbg", "--slurm", "1", "--json", "-c", "list"])

        data = json.loads(capsys.readouterr().out)
        assert 1 == status
        assert [0, 1, 2] == [p["rank"] for p in data["processes"]]
        assert ["c"] == [node["host"] for node in data["lost"]]

    def test_no_host(self):
        """
        What could be an option of ssh is no host.
        """
        with pytest.raises(NodesError, match="is no name of a host"):
            connect(hosts=["-oProxyCommand=x"])


def test_idle_nodes():
    """
    Of many nodes without a rank that listens, some are named.
    """
    listing = Listing(idle=tuple(f"n{i}" for i in range(10)))

    assert str(listing).endswith("n7, and 2 more")
