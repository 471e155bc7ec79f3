"""
Talking to programs on the nodes of a Ray cluster, without one.
"""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import time

import pytest

from distdebug.nodes import Ray, close_channels, ray_driver


pytestmark = pytest.mark.process


class Driver:
    """
    The process that is connected to Ray, as a thread.
    """

    def __init__(self, env=None):
        self.control, theirs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        task = {
            "address": "auto",
            "runtime_env": env or {},
            "job": None,
            "doors": theirs.detach(),
        }
        stdin, self.stdin = os.pipe()
        os.write(self.stdin, json.dumps(task).encode() + b"\n")
        self.said = io.StringIO()
        self.thread = threading.Thread(target=self.run, args=(stdin,))
        self.thread.start()

    def run(self, stdin):
        """
        Be connected until it is over.
        """
        with os.fdopen(stdin) as file:
            ray_driver.main(file, self.said)
            os.close(self.stdin)
            for thread in threading.enumerate():
                if thread.name.endswith("(_wait_for_end)"):
                    thread.join(30)

    def told(self):
        """
        What it said of the nodes.
        """
        return [*map(json.loads, self.said.getvalue().splitlines()[1:])]

    def open(self, host, *argv):
        """
        Talk to a program on a node.
        """
        ours, theirs = socket.socketpair()
        ours.settimeout(30)
        question = json.dumps({"host": host, "argv": argv}).encode()
        socket.send_fds(self.control, [question], [theirs.fileno()])
        theirs.close()
        return ours

    def end(self):
        """
        Hand out no more.
        """
        self.control.close()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def driver(ray):
    """
    Starts it, and ends it; the second of both nodes is dead.
    """
    made, complaints = [], os.dup(2)  # where it closes them for Ray
    ray.table[1]["Alive"] = False

    def begin(**options):
        made.append(Driver(**options))
        return made[-1]

    yield begin
    for one in made:
        one.end()
    os.dup2(complaints, 2)
    os.close(complaints)


def everything(ours):
    """
    All that is heard.
    """
    said = b""
    while data := ours.recv(1000):
        said += data
    ours.close()
    return said


def await_killed(ray, count):
    """
    Wait until so many actors were ended.
    """
    deadline = time.monotonic() + 30
    while len(ray.killed) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert count == len(ray.killed)


class TestStreamRelay:
    def test_talk(self, driver, ray):
        """
        What is said goes to the node, and what is answered comes back; the
        actor takes no CPU, and stays on its node.
        """
        one = driver(env={"pip": []})
        with one.open(
            "host-a", "sh", "-c", "read x; echo got $x; exec cat"
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
        assert "a" * 56 == ray.options[1]["scheduling_strategy"].node_id
        assert not ray.options[1]["scheduling_strategy"].soft
        assert {"pip": []} == ray.options[1]["runtime_env"]

    def test_hung_up(self, driver, ray):
        """
        A client that hangs up ends the actor, and with it the program.
        """
        one = driver()
        one.open("host-a", "cat").close()
        one.open("host-a", "sh", "-c", "echo").close()

        await_killed(ray, 2)

    def test_over(self, driver, ray):
        """
        When no more sockets are handed out, all that still talk are ended.
        """
        one = driver()
        with one.open("host-a", "cat") as ours:
            ours.sendall(b"hello")
            assert b"hello" == ours.recv(100)

            one.end()

            assert b"" == ours.recv(100)
        assert 1 == len(ray.killed)

    @pytest.mark.parametrize(
        ("host", "argv", "reason"),
        [
            (
                "host-a",
                ["sh", "-c", "echo Oops >&2; exit 3"],
                "status 3: Oops",
            ),
            ("host-a", ["", "-c", "raise SystemExit(4)"], "status 4"),
            ("host-b", ["cat"], "Ray does not reach the node"),
        ],
        ids=["failed", "own Python", "dead node"],
    )
    def test_trouble(self, driver, host, argv, reason):
        """
        Why a program ended is reported before its socket is closed.
        """
        one = driver()

        assert b"" == everything(one.open(host, *argv))
        (told,) = one.told()
        assert host == told["host"]
        assert reason in told["trouble"][1]

    def test_actor_dies(self, driver, ray):
        """
        An actor that dies is reported.
        """

        class Dying:
            def __init__(self, argv):
                self.argv = argv

            def read(self):
                msg = "worker died"
                raise RuntimeError(msg)

        ray.program = Dying
        one = driver()

        assert b"" == everything(one.open("host-a", "cat"))
        assert "worker died" in one.told()[0]["trouble"][1]

    def test_too_late(self, driver, ray):
        """
        What is heard after the client has hung up is dropped.
        """
        free = threading.Event()

        class Slow:
            def __init__(self, argv):
                self.argv = argv

            def read(self):
                free.wait(30)
                return b"late", None, ""

            def write(self, data):
                pass

        ray.program = Slow
        one = driver()
        one.open("host-a").close()
        await_killed(ray, 1)
        free.set()
        ours = one.open("host-a")

        assert b"late" == ours.recv(4)
        ours.close()

    def test_deaf(self, driver, ray):
        """
        A program that hears nothing any more is no error: how it ended is.
        """
        one = driver()
        with one.open(
            "host-a", "sh", "-c", "exec <&-; echo; sleep 0.1; exit 5"
        ) as ours:
            assert b"\n" == ours.recv(100)  # it is deaf from now on

            ours.sendall(b"hello")

            assert b"" == ours.recv(100)
        assert "status 5" in one.told()[0]["trouble"][1]
        (write,) = ray.killed[0].calls
        assert write.exception(30) is None

    def test_slow_reader(self, driver, ray):
        """
        Who does not read what is heard does not keep others from hearing.
        """
        one = driver()
        with (
            one.open("host-a", "head", "-c", "9000000", "/dev/zero") as slow,
            one.open("host-a", "echo", "heard") as quick,
        ):
            assert b"heard\n" == quick.recv(100)
            heard = 0
            while data := slow.recv(1 << 20):
                heard += len(data)

        assert 9_000_000 == heard

    def test_closed_output(self, driver):
        """
        A program that closes its output, and runs on, is not waited for.
        """
        one = driver()
        begin = time.monotonic()

        assert b"" == everything(one.open("host-a", "sh", "-c", CLOSES))
        assert time.monotonic() - begin < 20
        assert "the connection broke" == one.told()[0]["trouble"][1]


CLOSES = "exec >&- 2>&-; sleep 60"

HEAD = """
import json, os, socket, sys
task = json.loads(sys.stdin.readline())
def say(**told):
    print(json.dumps(told), flush=True)
doors = socket.socket(fileno=task["doors"])
say(hosts=["a", "b"], address="h:1")
"""


class TestDoors:
    def test_connectors(self, connection):
        """
        Each node is a socket; why it was closed is known for each.
        """
        connection(
            f"{HEAD}for _ in range(2):\n"
            "    data, (fd,), _, _ = socket.recv_fds(doors, 1000, 1)\n"
            "    asked = json.loads(data)\n"
            "    with socket.socket(fileno=fd) as node:\n"
            "        node.sendall(' '.join(asked['argv']).encode())\n"
            "        why = ['dead', 'off ' + asked['host'], 'wait']\n"
            "        say(host=asked['host'], trouble=why)\n"
            "doors.recv(1)\n"
        )

        with Ray("h:1").connectors(["say", "x"]) as connectors:
            found = {host: door() for host, door in connectors.items()}
            said = {host: heard(c) for host, c in found.items()}
            failure = {h: found[h].failure().reason for h in ("b", "a")}
            close_channels(found.values())

        assert {"a": b"say x", "b": b"say x"} == said
        assert {"a": "off a", "b": "off b"} == failure

    def test_driver_dies(self, connection):
        """
        Without a connection to Ray no node can be talked to.
        """
        connection(HEAD + "socket.recv_fds(doors, 1000, 1)\n")

        with Ray("h:1").connectors(["x"]) as connectors:
            first = connectors["a"]()
            assert b"" == heard(first)
            assert "connection to Ray broke" in first.failure().reason
            close_channels([first])
            with pytest.raises(OSError, match=r"[Pp]ipe|reset|refused"):
                connectors["b"]()


def heard(channel):
    """
    All that a node says.
    """
    channel.socket.settimeout(30)
    said = b""
    while data := channel.socket.recv(1000):
        said += data
    return said
