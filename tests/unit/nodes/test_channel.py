"""
Programs on nodes that are talked to, with stand-ins for what brings them there.
"""

from __future__ import annotations

import os
import sys
import time

import pytest

from distdebug.errors import NodesError
from distdebug.nodes import Slurm, Ssh, channel, close_channels, run_on_nodes
from distdebug.nodes.channel import open_channel
from distdebug.nodes.model import NodeStatus, Trouble


SSH = """
for word; do test "$word" = -- && break; shift; done
echo "$2" >>"$0.said"; host=$2; shift 2
case $host in
  gone) echo 'ssh: connect to host gone port 22: No route to host' >&2
    exit 255;;
esac
HOST=$host exec sh -c "$*"
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """
    Writes a command that is found first.
    """
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    def write(name, code):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{code}\n")
        path.chmod(0o755)

    return write


def start(code, explain=lambda _: None):
    """
    Talk to a small shell program.
    """
    return open_channel(
        ["sh", "-c", code], environment=os.environ, explain=explain
    )


def heard(found):
    """
    All that a program says.
    """
    found.socket.settimeout(30)
    said = b""
    while data := found.socket.recv(1000):
        said += data
    return said


class TestChannel:
    def test_talk(self):
        """
        What is said goes in, and what is answered comes out.
        """
        found = start("read line; echo got $line")

        found.socket.sendall(b"this\n")

        assert b"got this\n" == heard(found)
        close_channels([found])

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            ("echo Oops >&2; exit 3", "it ended with status 3: Oops"),
            ("kill -9 $$", "it ended with signal 9"),
            ("exit 0", "the connection broke"),
            ("exec >&- <&-; sleep 60", "the connection broke"),
        ],
        ids=["failed", "killed", "ended", "closed"],
    )
    def test_why(self, code, reason, monkeypatch):
        """
        Why a program ended is told as far as it is known.
        """
        monkeypatch.setattr(channel, "_REAP_S", 0.2 if "sleep" in code else 9)
        found = start(code)
        heard(found)

        assert reason == found.why().reason
        close_channels([found], 0.0)

    def test_explained(self):
        """
        Whoever brought it there knows better.
        """
        trouble = Trouble(NodeStatus.DEAD, "it is off")
        said = []
        found = start(
            "echo Oops >&2; exit 3", lambda e: said.append(e) or trouble
        )
        heard(found)

        assert trouble == found.why()
        assert (3, b"Oops\n") == (said[0].status, said[0].complaint)
        close_channels([found])

    def test_closed(self):
        """
        A program ends when nobody talks to it; one that does not is ended.
        """
        polite, rude = start("cat"), start("trap '' TERM; sleep 600")
        begin = time.monotonic()

        close_channels([polite, rude], 0.5)

        assert time.monotonic() - begin < 20
        assert "signal 9" in rude.why().reason
        assert "the connection broke" == polite.why().reason

    def test_no_command(self):
        """
        A command that does not exist cannot be started.
        """
        with pytest.raises(OSError, match="no-such"):
            open_channel(
                ["no-such"], environment=os.environ, explain=lambda _: None
            )


class TestSlurm:
    def test_doors(self, stand_in):
        """
        On each node of the job a step is talked to.
        """
        stand_in("squeue", "echo '7|RUN|n[1-2]'")
        stand_in("scontrol", "echo n1; echo n2")
        stand_in(
            "srun",
            'for word; do test "$last" = -w && node=$word; last=$word; done\n'
            "test $node = n1 || { echo 'srun: error: Node failure on n2' >&2;"
            ' exit 1; }\nread line; echo "$node $line"',
        )

        with Slurm(job=7).doors(["x"]) as doors:
            first, second = doors["n1"](), doors["n2"]()
            first.socket.sendall(b"hello\n")

            assert b"n1 hello\n" == heard(first)
            assert b"" == heard(second)
            assert NodeStatus.DEAD is second.why().status
            close_channels([first, second])


class TestSsh:
    def test_doors(self, stand_in):
        """
        On each host a program is talked to; its words arrive as they are.
        """
        stand_in("ssh", SSH)
        engine = Ssh(("a", "gone", "a"))

        with engine.doors(["printf", "%s|", "a b", "$HOME;'"]) as doors:
            assert ["a", "gone"] == list(doors)
            there, gone = doors["a"](), doors["gone"]()

            assert b"a b|$HOME;'|" == heard(there)
            assert b"" == heard(gone)
            trouble = gone.why()
            close_channels([there, gone])

        assert NodeStatus.DEAD is trouble.status
        assert "No route to host" in trouble.reason
        assert "BatchMode" in trouble.remedy

    def test_run(self, stand_in):
        """
        A function runs on every host.
        """
        stand_in("ssh", SSH)

        results = run_on_nodes(
            lambda: os.environ["HOST"], engine=Ssh(["a", "gone"])
        )

        assert {"a": ("ok", "a"), "gone": ("dead", None)} == {
            r.host: (r.status, r.value) for r in results
        }

    def test_one(self):
        """
        A single name is one host, and not its letters.
        """
        assert ("node-1",) == Ssh("node-1").hosts

    @pytest.mark.parametrize(
        "host", ["-x", "", "a b", "a;ls", "$(x)", "a\n", "x" * 300]
    )
    def test_no_host(self, host):
        """
        What could be an option, or a command, is no host.
        """
        with pytest.raises(NodesError, match="is no name of a host"):
            Ssh((host,))

    def test_no_ssh(self, monkeypatch, tmp_path):
        """
        Without ssh that is said.
        """
        monkeypatch.setenv("PATH", str(tmp_path))

        with (
            pytest.raises(NodesError, match="no ssh on PATH"),
            Ssh(("a",)).doors(["x"]),
        ):
            pass
