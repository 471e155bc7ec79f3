"""
Programs on nodes that are talked to, with stand-ins for what brings them there.
"""

from __future__ import annotations

import os
import sys
import time

import pytest

from distdebug.errors import NodesError
from distdebug.nodes import (
    NodeStatus,
    Slurm,
    Ssh,
    close_channels,
    run_on_nodes,
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


@pytest.mark.process
@pytest.mark.usefixtures("ssh")
class TestChannel:
    @pytest.fixture
    def start(self):
        """
        Talks to small shell programs.
        """

        def make(code):
            with Ssh("a").connectors(["sh", "-c", code]) as connectors:
                return connectors["a"]()

        return make

    def test_talk(self, start):
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
    def test_why(self, start, code, reason, monkeypatch):
        """
        Why a program ended is reported as far as it is known.
        """
        # On a machine that is busy, the end is seen after the last word.
        reap_s = 0.2 if "sleep" in code else 9
        monkeypatch.setattr("distdebug.nodes.process._EXIT_WAIT_S", reap_s)
        found = start(code)
        heard(found)

        assert reason == found.failure().reason
        close_channels([found], 0.0)

    def test_closed(self, start):
        """
        A program ends when it is not talked to; one that does not is ended.
        """
        polite, rude = start("cat"), start("trap '' TERM; echo; sleep 600")
        assert b"\n" == rude.socket.recv(1)  # it is deaf from now on
        begin = time.monotonic()

        close_channels([polite, rude], 0.2)

        assert time.monotonic() - begin < 20
        assert "signal 9" in rude.failure().reason
        assert "the connection broke" == polite.failure().reason

    def test_no_command(self, ssh):
        """
        A command that does not exist cannot be started.
        """
        with Ssh("a").connectors(["x"]) as connectors:
            ssh.unlink()

            with pytest.raises(OSError, match="ssh"):
                connectors["a"]()


@pytest.mark.process
class TestSlurm:
    def test_connectors(self, stand_in):
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

        with Slurm(job=7).connectors(["x"]) as connectors:
            first, second = connectors["n1"](), connectors["n2"]()
            first.socket.sendall(b"hello\n")

            assert b"n1 hello\n" == heard(first)
            assert b"" == heard(second)
            assert NodeStatus.DEAD is second.failure().status
            close_channels([first, second])


class TestSsh:
    @pytest.mark.process
    def test_connectors(self, ssh):
        """
        On each host a program is talked to; its words arrive as they are.
        """
        engine = Ssh(("a", "gone", "a"))

        with engine.connectors(
            ["printf", "%s|", "a b", "$HOME;'"]
        ) as connectors:
            assert ["a", "gone"] == list(connectors)
            there, gone = connectors["a"](), connectors["gone"]()

            assert b"a b|$HOME;'|" == heard(there)
            assert b"" == heard(gone)
            failure = gone.failure()
            close_channels([there, gone])

        assert NodeStatus.DEAD is failure.status
        assert "No route to host" in failure.reason
        assert "BatchMode" in failure.remedy

    @pytest.mark.process
    def test_run(self, ssh):
        """
        A function runs on every host.
        """

        results = run_on_nodes(
            lambda: os.environ["HOST"], engine=Ssh(["a", "gone"])
        )

        assert {"a": ("ok", "a"), "gone": ("dead", None)} == {
            r.host: (r.status, r.value) for r in results
        }

    @pytest.mark.process
    def test_own_255(self, ssh):
        """
        A command may end with the status of ssh, and the host is alive.
        """
        code = "raise SystemExit(255)"

        (result,) = run_on_nodes([sys.executable, "-c", code], engine=Ssh("a"))

        assert NodeStatus.FAILED is result.status
        assert "it ended with status 255" == result.reason

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
            Ssh(("a",)).connectors(["x"]),
        ):
            pass
