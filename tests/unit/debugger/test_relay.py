"""
Ranks of other nodes, behind relays that run here in threads.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

from contextlib import contextmanager
from pathlib import Path

import pytest

from distdebug.__main__ import main
from distdebug.debugger import Listing, connect, relay, run_shell
from distdebug.debugger.client import here, opening, there
from distdebug.debugger.client.attaching import Attached
from distdebug.debugger.client.model import LostNode, Silent
from distdebug.debugger.wire import LIMIT_BYTES, Feed, pack
from distdebug.errors import DebuggerError, NodesError
from distdebug.nodes import Channel
from distdebug.nodes.model import NodeStatus, Trouble


RANK = "0.1.sock"


class Client:
    """
    Who talks to a relay line by line.
    """

    def __init__(self, folder=None, seconds=60):
        self.alarms = []
        self.socket, theirs = socket.socketpair()
        self.feed = Feed()
        self.got = []
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
        self.socket.settimeout(30)

    def hear(self):
        """
        The next message; None if there are no more.
        """
        while not self.got:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self.got += self.feed.take(data)
        return self.got.pop(0)

    def ask(self, **request):
        """
        What the relay answers.
        """
        self.socket.sendall(pack({"id": 7, **request}))
        return self.hear()

    def end(self):
        """
        Hang up; the status with which the relay ends.
        """
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
        A folder that others may enter is told of, and not used any more.
        """
        rank = answering_rank(socket_folder, 0)
        client.ask(op="who")
        socket_folder.chmod(0o777)

        assert "others may enter" in client.ask(op="who")["error"]
        assert stat.S_IMODE(socket_folder.stat().st_mode) == 0o777
        assert [] == rank.lines

    def test_nobody_yet(self, tmp_path, monkeypatch, socket_folder):
        """
        Where no rank has begun to listen, nobody is there, until one does.
        """
        monkeypatch.delenv("DISTDEBUG_DIR")
        jobs = []
        monkeypatch.setattr(here, "job_folders", lambda: jobs)
        without, missing = Client(), Client(tmp_path / "missing")

        for one in (without, missing):
            one.hear()
            assert {"id": 7, "folder": "", "ranks": {}, "silent": []} == (
                one.ask(op="who")
            )
            assert {"id": 7, "told": []} == one.ask(op="outside", pids=[1])
            assert 0 == one.end()

    def test_vanished(self, client, socket_folder, answering_rank):
        """
        Where the folder has gone, nobody is there any more.
        """
        answering_rank(socket_folder, 0)
        assert 1 == len(client.ask(op="who")["ranks"])
        for path in socket_folder.iterdir():
            path.unlink()
        socket_folder.rmdir()

        assert {} == client.ask(op="who")["ranks"]

    def test_outside(self, client, socket_folder, answering_rank, monkeypatch):
        """
        Only processes that have a socket are looked at from outside.
        """
        answering_rank(socket_folder, 0)
        looked = []
        monkeypatch.setattr(
            relay,
            "stacks_from_outside",
            lambda pids: [looked.append(pid) or f"at {pid}" for pid in pids],
        )
        client.ask(op="who")

        told = client.ask(op="outside", pids=[1, os.getpid()])
        nonsense = client.ask(op="outside", pids="all")

        assert [f"at {os.getpid()}"] == told["told"]
        assert [os.getpid()] == looked
        assert [] == nonsense["told"]

    def test_nonsense(self, client):
        """
        A relay does only what a relay does.
        """
        assert "does not do" in client.ask(op=[1])["error"]
        assert "does not do" in client.ask(op="eval")["error"]
        assert "does not do" in client.ask(op=None, wait="x")["error"]

    @pytest.mark.parametrize(
        "data",
        [b"nonsense\n", b"[1]\n", b"x" * (LIMIT_BYTES + 2)],
        ids=["no JSON", "no object", "too long"],
    )
    def test_malformed(self, client, data):
        """
        What is no message ends the relay.
        """
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
        client.socket.sendall(
            pack({"id": 1, "op": "eval", "to": rank.path.name})
        )
        client.socket.sendall(
            pack({"id": 2, "op": "hang up", "rank": rank.path.name})
        )
        client.socket.sendall(pack({"op": "hang up", "rank": "other"}))

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
        Of a rank that answers nothing sensible, that is told.
        """
        client.socket.sendall(pack({"id": 5, "op": "eval", "to": RANK}))
        rank.recv(1 << 16)
        rank.sendall(said)
        rank.close()

        assert {"id": 5, **heard} == client.hear()

    def test_long_answer(self, client, rank):
        """
        An answer that is too long to be handed back is an error.
        """
        client.socket.sendall(pack({"id": 5, "op": "eval", "to": RANK}))
        rank.recv(1 << 16)
        # It takes more room when it is written down again.
        rank.sendall(b'{"id":1,"output":"' + "é".encode() * 300_000)
        rank.sendall(b'"}\n')

        assert "longer than" in client.hear()["error"]

    def test_long_question(self, client, rank):
        """
        A question that a rank does not take at once is handed on in pieces.
        """
        client.socket.sendall(pack({"id": 5, "to": RANK, "x": "y" * 900_000}))
        time.sleep(0.1)
        feed = Feed()
        while not (got := feed.take(rank.recv(1 << 16))):
            pass
        rank.sendall(pack({"id": got[0]["id"]}))

        assert {"id": 5} == client.hear()
        assert 900_000 == len(got[0]["x"])

    def test_process(self, socket_folder, answering_rank):
        """
        It is a program that ends with its input, or when nobody asks.
        """
        answering_rank(socket_folder, 0)
        root = str(Path(relay.__file__).parents[2])

        def start(seconds):
            return subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "distdebug.debugger.relay"),
                    *(seconds, str(socket_folder)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": root},
            )

        with start("60") as asked, start("1") as forgotten:
            for process in (asked, forgotten):
                assert b'{"relay":1,' in process.stdout.readline()
            asked.stdin.write(pack({"id": 1, "op": "who"}))
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
        self.says = {}
        self.kept = []

    @contextmanager
    def doors(self, argv):
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
        folder = self.folders[host]
        if folder is None:
            msg = "no such command"
            raise OSError(msg)

        self.opened.append(host)
        ours, theirs = socket.socketpair()
        if host in self.says:
            theirs.sendall(self.says[host])
            if self.says[host]:
                theirs.shutdown(socket.SHUT_WR)
            self.kept.append(theirs)
        else:
            threading.Thread(
                target=self.work, args=(theirs, folder), daemon=True
            ).start()
        return Channel(
            socket=ours,
            why=lambda: Trouble(NodeStatus.DEAD, f"{host} is down", "wait"),
            wait=lambda _: None,
        )

    @staticmethod
    def work(theirs, folder):
        """
        Be a relay.
        """
        with theirs:
            handle = theirs.fileno()
            relay.main(["60", str(folder)], handle, handle, lambda _: None)


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
    for one in found.kept:
        one.close()


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
        assert isinstance(held, Attached)
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
        The relay is started by the Python of the nodes, and told the folder
        only if it was chosen.
        """
        with connect(nodes=nodes):
            usual = nodes.argv
        with connect("/chosen", nodes=nodes):
            chosen = nodes.argv

        module = "distdebug.debugger.relay"
        assert [sys.executable, "-P", "-m", module, "300"] == usual
        assert [*usual, "/chosen"] == chosen

    def test_unreachable(self, nodes):
        """
        Nodes that cannot be reached are named, with the reason, and lose no
        other.
        """
        nodes.folders |= {"c": None, "d": nodes.folders["a"].parent / "none"}
        nodes.folders |= dict.fromkeys("efg", nodes.folders["a"])
        nodes.says = {
            "e": b"Welcome to node e\n",
            "f": b'{"relay":99}\n',
            "g": b'{"relay":nonsense\n',
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
        assert ["f", "g"] == [n.host for n in sorted(listing.lost)[2:]]
        assert "version 99, not 1" in str(listing)
        assert listing.lost == answers.lost
        assert ("d",) == listing.idle
        assert "nobody listens on d\n" in str(listing)
        assert "e cannot be asked: e is down (wait)" in str(answers)
        assert again == nodes.opened

    def test_slow_node(self, nodes, monkeypatch):
        """
        A node whose relay does not greet in time is given up.
        """
        nodes.folders["slow"] = nodes.folders["a"]
        nodes.says["slow"] = b""
        monkeypatch.setattr(
            there.reach_nodes,
            "__kwdefaults__",
            {
                "timeout_s": 2.0,
                "open_s": 0.2,
            },
        )
        with connect(nodes=nodes) as client:
            listing = client.list()

        assert [0, 1, 2] == [p.rank for p in listing]
        assert ["no relay after 0.2 s"] == [n.reason for n in listing.lost]

    def test_babbling_node(self, nodes):
        """
        A node that says too much before its relay greets is given up.
        """
        nodes.folders["babbler"] = nodes.folders["a"]
        nodes.says["babbler"] = b"x" * ((1 << 16) + 1)

        with connect(nodes=nodes) as client:
            (lost,) = client.list().lost

        assert "no relay" in lost.reason

    def test_one_after_the_other(self, nodes):
        """
        Only so many relays are started at the same time, and all in the end.
        """
        with nodes.doors([]) as doors:
            relays, lost = opening.open_relays(doors, timeout_s=9, at_once=1)

        assert ["a", "b"] == list(relays)
        assert {} == lost
        for found in relays.values():
            found.channel.socket.close()

    def test_interrupted(self, nodes, monkeypatch):
        """
        Who stops waiting for the relays leaves none of them.
        """
        closed = []
        monkeypatch.setattr(opening, "close_channels", closed.extend)

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(opening._Opening, "hear", interrupt)

        with pytest.raises(KeyboardInterrupt):
            connect(nodes=nodes)

        assert 2 == len(closed)
        for channel in closed:
            channel.socket.close()

    def test_none(self, nodes):
        """
        If no node can be reached, that is an error, and tried again later.
        """
        nodes.folders = {"c": None}

        with pytest.raises(DebuggerError, match="c cannot be asked: no such"):
            connect(nodes=nodes)

    def test_all_lost(self, nodes):
        """
        Who has lost all nodes can ask again when they are back.
        """
        with connect(nodes=nodes) as client:
            folders = dict(nodes.folders)
            for relayed in client.ranks.reach._relays.values():
                relayed.channel.socket.shutdown(socket.SHUT_RDWR)
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
            relayed = client.ranks.reach._relays["b"]
            relayed.channel.socket.shutdown(socket.SHUT_RDWR)

            answers = client.cast("ranks(:)", "n")

        assert {0, 1, 2} == texts(answers).keys()
        assert ["a", "b", "b"] == nodes.opened

    def test_node_dies(self, nodes, monkeypatch):
        """
        A node that dies while it is asked is said so, and not taken for ranks
        that do not answer; the others are heard.
        """
        with connect(nodes=nodes) as client:
            client.list()
            relayed = client.ranks.reach._relays["b"]
            answer = nodes.ranks[1].answer

            def die(request):
                if request["op"] == "command":
                    relayed.channel.socket.shutdown(socket.SHUT_RDWR)
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

    def test_stuck_relay(self, nodes, monkeypatch):
        """
        A node whose relay does not answer is said so; the others are heard.
        """
        who = relay._Relay._who
        free = threading.Event()

        def stuck(self):
            if self.chosen == str(nodes.folders["b"]):
                free.wait(30)
            return who(self)

        with connect(nodes=nodes, timeout_s=0.3) as client:
            monkeypatch.setattr(relay._Relay, "_who", stuck)
            listing = client.list()
            free.set()
            again = client.list()

        assert [0, 2] == [p.rank for p in listing]
        (lost,) = listing.lost
        assert ("b", "its relay does not answer within 0.3 s") == (
            lost.host,
            lost.reason,
        )
        assert [0, 1, 2] == [p.rank for p in again]

    def test_dead_relay(self, nodes, monkeypatch):
        """
        A relay that ends while it is asked who is there is explained.
        """

        def die(self):
            if self.chosen == str(nodes.folders["b"]):
                raise ValueError
            return {"folder": "", "ranks": {}, "silent": []}

        with connect(nodes=nodes) as client:
            monkeypatch.setattr(relay._Relay, "_who", die)
            listing = client.list()

        assert (LostNode(host="b", reason="b is down", remedy="wait"),) == (
            listing.lost
        )
        assert ("a",) == listing.idle

    def test_problem(self, nodes):
        """
        A node whose folder is not safe is named.
        """
        nodes.folders["b"].chmod(0o755)

        with connect(nodes=nodes) as client:
            (lost,) = client.list().lost

        assert "b" == lost.host
        assert "others may enter" in lost.reason

    def test_silent(self, nodes, monkeypatch):
        """
        Of a rank that does not answer one sees on which node it is, and where.
        """
        monkeypatch.setattr(
            relay,
            "stacks_from_outside",
            lambda pids: tuple(f"in f\x1b[31m {pid}" for pid in pids),
        )
        nodes.ranks[1].mute = {"list"}

        with connect(nodes=nodes, timeout_s=0.3) as client:
            listing = client.list()
            stacks = client.stack()
            nodes.ranks[1].mute = ()
            again = client.eval("ranks(1)", "x")

        assert (Silent(host="b", pid=os.getpid()),) == listing.silent
        assert f"process {os.getpid()} on b does not answer" in str(listing)
        assert (f"b: in f {os.getpid()}",) == stacks.notes
        assert {1: "eval 1"} == texts(again)

    def test_full(self, nodes):
        """
        A rank that takes no more connections is told of, with its node.
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
                assert (Silent(host="b", pid=1),) == client.list().silent

    def test_same_twice(self, nodes):
        """
        A rank that is reached by two names is there once, and obeys once.
        """
        nodes.folders["a2"] = nodes.folders["a"]

        with connect(nodes=nodes) as client:
            answers = client.cast("ranks(:)", "n")

        assert [0, 1, 2] == sorted(o.rank for o in answers.outputs)
        assert ["n"] == nodes.ranks[0].lines

    def test_lent(self, nodes):
        """
        Sources are lent to ranks of other nodes as well.
        """
        rank, sent = nodes.ranks[1], []
        answer = rank.answer

        def missing(request):
            if request["op"] == "source":
                sent.append(request["file"])
                return {"output": "thank you"}
            more = {"missing": [__file__]} if request["op"] == "list" else {}
            return {**answer(request), **more}

        rank.answer = missing
        with connect(nodes=nodes) as client:
            client.list()
            client.list()

        assert [__file__] == sent

    def test_not_lent(self, nodes, monkeypatch, tmp_path):
        """
        A node gets no file that lies elsewhere, whoever it says that it is.
        """
        rank, sent = nodes.ranks[1], []
        answer = rank.answer
        project = tmp_path / "project"
        project.mkdir()
        for path in (tmp_path / "secret.py", project / "mine.py"):
            path.write_text("key = 1\n")
        (project / "link.py").symlink_to(tmp_path / "secret.py")
        names = ["link.py", "../secret.py", "mine.py"]
        asked = [str(project / name) for name in names]

        def missing(request):
            if request["op"] == "source":
                sent.append(request["file"])
                return {"output": "thank you"}
            more = {"missing": asked} if request["op"] == "list" else {}
            return {**answer(request), **more}

        rank.answer = missing
        monkeypatch.chdir(project)
        with connect(nodes=nodes) as client:
            client.list()

        assert [str(project / "mine.py")] == sent

    @pytest.mark.parametrize(
        "known",
        [
            {},
            {"ranks": None, "silent": []},
            {"ranks": {}, "silent": 3},
            {"ranks": ["x"], "silent": []},
        ],
        ids=["nothing", "no ranks", "no list", "no mapping"],
    )
    def test_hostile_relay(self, nodes, monkeypatch, known):
        """
        A node whose relay talks nonsense is lost, and no other.
        """
        who = relay._Relay._who

        def lie(self):
            is_it = self.chosen == str(nodes.folders["b"])
            return known if is_it else who(self)

        monkeypatch.setattr(relay._Relay, "_who", lie)
        with connect(nodes=nodes) as client:
            listing = client.list()

        assert [0, 2] == [p.rank for p in listing]
        (lost,) = listing.lost
        assert ("b", "its relay says what is no answer") == (
            lost.host,
            lost.reason,
        )

    def test_hostile_names(self, nodes, monkeypatch):
        """
        What a relay says of ranks that are none is left out, and harmless.
        """
        evil = "\x1b[31m\u202e"
        known = {
            "folder": evil,
            "ranks": {evil: [1, 2], "x": [evil, 0], "y": 3, "z": [1]},
            "silent": [evil, 7, [8], True],
        }
        monkeypatch.setattr(relay._Relay, "_who", lambda _: known)
        monkeypatch.setattr(
            relay._Relay, "_outside", lambda *_: {"told": [evil, 3]}
        )
        with connect(nodes=nodes) as client:
            listing = client.list()
            stacks = client.stack()

        assert () == listing.processes
        assert {Silent(host=h, pid=7) for h in "ab"} == set(listing.silent)
        assert ("a: ", "a: 3", "b: ", "b: 3") == stacks.notes
        assert str(stacks).isascii()

    def test_order(self, nodes, monkeypatch):
        """
        Nodes keep their order, whoever greets first.
        """
        original = relay.main

        def late(argv, *rest):
            if argv[1] == str(nodes.folders["a"]):
                time.sleep(0.2)
            return original(argv, *rest)

        monkeypatch.setattr(relay, "main", late)
        with connect(nodes=nodes) as client:
            peers = client.ranks.reach.peers().peers.values()

        assert ["a", "a", "b"] == [peer.host for peer in peers]

    def test_shell(self, nodes):
        """
        The prompt is the same as on one node.
        """
        typed = iter(["cast ranks(:) p x", "attach 1", "n", "detach", "q"])
        shown = []

        with connect(nodes=nodes) as client:
            run_shell(client, ask=lambda _: next(typed), show=shown.append)

        text = "\n".join(shown)
        assert "[0-2] did p x" in text
        assert "did n" in text
        assert "#3" in shown[0]

    def test_many(self, socket_folder, monkeypatch):
        """
        Where more files are needed than may be open, as many are allowed.
        """
        asked = []
        limits = iter([(256, 1 << 20), (256, 512), (256, -1), (-1, -1)])
        monkeypatch.setattr(
            opening.resource, "getrlimit", lambda _: next(limits)
        )
        monkeypatch.setattr(
            opening.resource, "setrlimit", lambda _, both: asked.append(both)
        )

        for _ in range(4):
            opening._make_room(512)

        assert [(1280, 1 << 20), (512, 512), (1280, -1)] == asked


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

        monkeypatch.setattr("distdebug.nodes.slurm.Slurm", engine)
        monkeypatch.setattr("distdebug.nodes.ray.Ray", engine)
        monkeypatch.setattr("distdebug.nodes.ssh.Ssh", engine)
        return asked

    def test_places(self, made, capsys):
        """
        The command line reaches all nodes by Slurm, by Ray, and by ssh.
        """
        status = [
            main(["dbg", *where, "-c", "cast ranks(:) n"])
            for where in (
                ["--slurm", "12", "--container-name", "train"],
                ["--ray", "auto", "--ray-job", "02"],
                ["--hosts", "a,b", "--python", "/bin/py"],
            )
        ]

        assert [0, 0, 0] == status
        assert [
            ({"job": "12", "container_name": "train"},),
            ("auto", {"job": "02"}),
            (("a", "b"), {"python": "/bin/py"}),
        ] == made
        assert 3 == capsys.readouterr().out.count("[0-2] did n")

    def test_function(self, made):
        """
        So does the function.
        """
        for where in ({"slurm": 12}, {"ray": "auto"}, {"hosts": ["a"]}):
            with connect(**where) as client:
                assert 3 == len(client.list().processes)

        assert [({"job": "12"},), ("auto", {}), (("a",), {})] == made

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
    Of many nodes on which nobody listens, some are named.
    """
    listing = Listing(idle=tuple(f"n{i}" for i in range(10)))

    assert str(listing).endswith("n7, and 2 more")
