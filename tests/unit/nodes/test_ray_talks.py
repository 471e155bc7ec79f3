"""
Talking to programs on the nodes of a Ray cluster, without one.
"""

from __future__ import annotations

import json
import queue
import socket
import sys
import threading
import time
import types

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from distdebug.nodes import Ray, close_channels, ray_doors
from distdebug.nodes import ray as ray_module
from distdebug.nodes.ray_driver import Program
from distdebug.nodes.ray_talks import Talks


class Actor:
    """
    An actor whose methods run in threads, in the order of their calls.
    """

    def __init__(self, made):
        self.made = made
        self.calls = []
        self.pools = [ThreadPoolExecutor(1), ThreadPoolExecutor(1)]
        self.tell = SimpleNamespace(remote=self._tell)
        self.hear = SimpleNamespace(options=self._options)

    def _tell(self, data):
        self.pools[0].submit(self.made.tell, data)

    def _options(self, *, concurrency_group):
        assert "hear" == concurrency_group
        return SimpleNamespace(remote=self._hear)

    def _hear(self):
        future = self.pools[1].submit(self.made.hear)
        return SimpleNamespace(future=lambda: future)


class FakeRay(types.ModuleType):
    """
    As much of Ray as is used.
    """

    def __init__(self):
        super().__init__("ray")
        self.options, self.killed, self.made = [], [], []
        error = type("DiedError", (Exception,), {})
        self.exceptions = SimpleNamespace(
            NodeDiedError=error,
            TaskUnschedulableError=error,
            ActorUnschedulableError=error,
            RuntimeEnvSetupError=error,
        )
        self.table = []

    def nodes(self):
        """
        What is known of the nodes.
        """
        return self.table

    def remote(self, **options):
        """
        What makes an actor of a class.
        """
        self.options.append(options)

        def wrap(program):
            return SimpleNamespace(
                options=lambda **more: self._actor(program, more)
            )

        return wrap

    def _actor(self, program, options):
        self.options.append(options)

        def make(argv):
            self.made.append(Actor(program(argv)))
            return self.made[-1]

        return SimpleNamespace(remote=make)

    def kill(self, actor):
        """
        End an actor, and what it started.
        """
        self.killed.append(actor)
        end = getattr(actor.made, "_process", None)
        if end:
            end.kill()
            end.wait(30)
            for pool in actor.pools:
                pool.shutdown()
            for stream in (end.stdin, end.stdout, end.stderr):
                stream.close()


@pytest.fixture
def ray(monkeypatch):
    """
    A Ray that is none.
    """
    fake = FakeRay()
    strategies = types.ModuleType("strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node_id, *, soft: (
        node_id,
        soft,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(
        sys.modules, "ray.util.scheduling_strategies", strategies
    )
    return fake


class Driver:
    """
    The process that is connected to Ray, as a thread.
    """

    def __init__(self, program, **options):
        self.said = queue.Queue()
        nodes = {
            "a": {"NodeID": "1a", "Alive": True},
            "b": {"NodeID": "1b", "Alive": False},
        }
        env = options.get("env")
        self.talks = Talks(program, nodes, env, self.said.put)
        self.doors, theirs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        self.thread = threading.Thread(
            target=self.talks.serve, args=(theirs,), daemon=True
        )
        self.thread.start()

    def open(self, host, *argv):
        """
        Talk to a program on a node.
        """
        ours, theirs = socket.socketpair()
        ours.settimeout(30)
        question = json.dumps({"host": host, "argv": argv}).encode()
        socket.send_fds(self.doors, [question], [theirs.fileno()])
        theirs.close()
        return ours

    def end(self):
        """
        Hand out no more.
        """
        self.doors.close()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def driver(ray):
    """
    Starts it, and ends it.
    """
    made = []

    def begin(program=Program, **options):
        made.append(Driver(program, **options))
        return made[-1]

    yield begin
    for one in made:
        one.end()


def everything(ours):
    """
    All that is heard.
    """
    said = b""
    while data := ours.recv(1000):
        said += data
    ours.close()
    return said


class TestTalks:
    def test_talk(self, driver, ray):
        """
        What is said goes to the node, and what is answered comes back; the
        actor takes no CPU, and stays on its node.
        """
        one = driver(env={"pip": []})
        with one.open(
            "a", "sh", "-c", "read x; echo got $x; exec cat"
        ) as ours:
            ours.sendall(b"this\n")
            first = ours.recv(100)
            ours.sendall(b"x" * 100_000 + b"\n")
            rest = b""
            while not rest.endswith(b"\n"):
                rest += ours.recv(1 << 16)

        assert b"got this\n" == first
        assert 100_001 == len(rest)
        assert 0 == ray.options[0]["num_cpus"]
        assert ("1a", False) == ray.options[1]["scheduling_strategy"]
        assert {"pip": []} == ray.options[1]["runtime_env"]

    def test_hung_up(self, driver, ray):
        """
        Who hangs up ends the actor, and with it the program.
        """
        one = driver()
        one.open("a", "cat").close()
        one.open("a", "sh", "-c", "echo").close()
        deadline = time.monotonic() + 30
        while len(ray.killed) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)

        assert 2 == len(ray.killed)

    def test_over(self, driver, ray):
        """
        When no more sockets are handed out, all that still talk are ended.
        """
        one = driver()
        with one.open("a", "cat") as ours:
            ours.sendall(b"hello")
            assert b"hello" == ours.recv(100)

            one.end()

            assert b"" == ours.recv(100)
        assert 1 == len(ray.killed)

    @pytest.mark.parametrize(
        ("host", "argv", "reason"),
        [
            ("a", ["sh", "-c", "echo Oops >&2; exit 3"], "status 3: Oops"),
            ("a", ["", "-c", "raise SystemExit(4)"], "status 4"),
            ("b", ["cat"], "Ray does not reach the node"),
        ],
        ids=["failed", "own Python", "dead node"],
    )
    def test_trouble(self, driver, host, argv, reason):
        """
        Why a program ended is told before its socket is closed.
        """
        one = driver()

        assert b"" == everything(one.open(host, *argv))
        told = one.said.get(timeout=30)
        assert host == told["host"]
        assert reason in told["trouble"].reason

    def test_actor_dies(self, driver, ray):
        """
        An actor that dies is told of.
        """

        class Dying:
            def __init__(self, argv):
                self.argv = argv

            def hear(self):
                msg = "worker died"
                raise RuntimeError(msg)

        ray.table = [{"NodeID": "1a", "Alive": True}]
        one = driver(Dying)

        assert b"" == everything(one.open("a", "cat"))
        assert "worker died" in one.said.get(timeout=30)["trouble"].reason

    def test_too_late(self, driver, ray):
        """
        What is heard after the client has hung up is dropped.
        """
        free = threading.Event()

        class Slow:
            def __init__(self, argv):
                self.argv = argv

            def hear(self):
                free.wait(30)
                return b"late", None, ""

            def tell(self, data):
                pass

        one = driver(Slow)
        one.open("a").close()
        deadline = time.monotonic() + 30
        while not ray.killed and time.monotonic() < deadline:
            time.sleep(0.01)
        free.set()
        ours = one.open("a")

        assert b"late" == ours.recv(4)
        ours.close()


class TestProgram:
    def test_deaf(self):
        """
        A program that hears nothing any more is no error: how it ended is.
        """
        program = Program(["sh", "-c", "exit 5"])
        program._process.wait(30)

        program.tell(b"hello")

        assert (b"", 5, "") == program.hear()
        for stream in (program._process.stdout, program._process.stderr):
            stream.close()
        with pytest.raises(BrokenPipeError):
            program._process.stdin.write(b"x")
        program._process.stdin.close()


HEAD = """
import json, os, socket, sys
task = json.loads(sys.stdin.readline())
def say(**told):
    print(json.dumps(told), flush=True)
doors = socket.socket(fileno=task["doors"])
say(hosts=["a", "b"], address="h:1")
"""


class TestDoors:
    @pytest.fixture
    def connection(self, tmp_path, monkeypatch):
        """
        Give the code that is the connection to Ray.
        """

        def give(code):
            (tmp_path / "fake_driver.py").write_text(HEAD + code)

        monkeypatch.setattr(ray_module, "_MODULE", "fake_driver")
        monkeypatch.setattr(ray_module, "find_spec", lambda name: name)
        monkeypatch.setattr(ray_doors, "_REAP_S", 5.0)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setitem(sys.modules, "ray", None)
        return give

    def test_doors(self, connection):
        """
        Each node is a socket; why it was closed is known for each.
        """
        connection(
            "for _ in range(2):\n"
            "    data, (fd,), _, _ = socket.recv_fds(doors, 1000, 1)\n"
            "    asked = json.loads(data)\n"
            "    with socket.socket(fileno=fd) as node:\n"
            "        node.sendall(' '.join(asked['argv']).encode())\n"
            "        why = ['dead', 'off ' + asked['host'], 'wait']\n"
            "        say(host=asked['host'], trouble=why)\n"
            "doors.recv(1)\n"
        )

        with Ray("h:1").doors(["say", "x"]) as doors:
            found = {host: door() for host, door in doors.items()}
            said = {host: heard(c) for host, c in found.items()}
            why = {h: found[h].why().reason for h in ("b", "a")}
            close_channels(found.values())

        assert {"a": b"say x", "b": b"say x"} == said
        assert {"a": "off a", "b": "off b"} == why

    def test_driver_dies(self, connection):
        """
        Without a connection to Ray no node can be talked to.
        """
        connection("socket.recv_fds(doors, 1000, 1)\n")

        with Ray("h:1").doors(["x"]) as doors:
            first = doors["a"]()
            assert b"" == heard(first)
            assert "connection to Ray broke" in first.why().reason
            close_channels([first])
            with pytest.raises(OSError, match=r"[Pp]ipe|reset|refused"):
                doors["b"]()


def heard(channel):
    """
    All that a node says.
    """
    channel.socket.settimeout(30)
    said = b""
    while data := channel.socket.recv(1000):
        said += data
    return said
