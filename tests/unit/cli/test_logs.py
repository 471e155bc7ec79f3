"""
The commands about logs and nodes: what they print, and how they end.
"""

from __future__ import annotations

import json
import shutil
import sys
import time

from pathlib import Path

import pytest

from distdebug.__main__ import main
from distdebug._lines import LogLine
from distdebug.cli import logs as logs_module
from distdebug.cli.logs_text import who_prints
from distdebug.findings import Cause, Evidence, Finding, Missing
from distdebug.health import EnvironmentHealth, NodeFacts, NodeHealth
from distdebug.logscan import ScanReport
from distdebug.raylogs import (
    LiveCluster,
    find_ray_sessions,
    follow_lines,
    worker_logs,
)
from distdebug.raylogs.actors import KnownActor


DATA = Path(__file__).parents[2] / "data" / "ray_sessions"
SESSIONS = DATA / "2.40.0" / "actors"
ENGINE = KnownActor(
    actor_id="51be6f22bde490f957f23a6901000000",
    actor_class="SglEngine",
    actor_name="engine_0",
)
TRACE = """\
Traceback (most recent call last):
  File "/job/train.py", line 17, in main
    raise RuntimeError("the shard is empty")
RuntimeError: the shard is empty
"""
LOADING = (
    "[2026-02-20 02:03:57] INFO Loading safetensors checkpoint shards:  40% "
    "Completed | 2/5 [00:08<00:12,  4.10s/it]\n"
)


@pytest.fixture(name="session")
def _session(tmp_path):
    """
    The logs of a small cluster, of which four actors died.
    """
    return shutil.copytree(SESSIONS, tmp_path / "ray")


@pytest.fixture(name="empty")
def _empty(tmp_path):
    """
    A session in which nobody ran.
    """
    logs = tmp_path / "session_2026-02-20_02-03-57_123456_4711" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("x\n")
    return logs.parent


class TestLogs:
    def test_overview(self, session, capsys):
        """
        Without options, who is who, and who died first, are told.
        """
        status = main(["logs", str(session)])

        out = capsys.readouterr().out
        assert 1 == status
        assert "SglEngine (pid 1339, 192.0.2.2) crashed with SIGSEGV" in out
        assert "TrainerActor(rank=0)" in out
        assert "silent for long, or stopped:" in out

    def test_overview_json(self, session, capsys):
        """
        The same for programs.
        """
        status = main(["logs", str(session), "--json"])

        data = json.loads(capsys.readouterr().out)
        assert (1, "logs", 1) == (status, data["command"], data["schema"])
        assert "native_crash" == data["findings"][0]["cause"]
        assert 8 == len(data["workers"])

    def test_nobody(self, empty, capsys):
        """
        A cluster in which nobody ran is fine.
        """
        status = main(["logs", str(empty)])

        assert 0 == status
        assert "no worker has printed anything" in capsys.readouterr().out

    def test_many(self, session, capsys, monkeypatch):
        """
        Of many workers, those that died are shown.
        """
        monkeypatch.setattr("distdebug.cli.logs_text._MOST_WORKERS", 3)

        main(["logs", str(session)])

        assert "… and 5 more workers" in capsys.readouterr().out

    def test_deaths(self, session, capsys):
        """
        The table of deaths says who was first.
        """
        status = main(["logs", "--deaths", str(session)])

        out = capsys.readouterr().out
        first = next(x for x in out.splitlines() if x.startswith("first "))
        assert 1 == status
        assert "SglEngine" in first
        assert "SIGSEGV" in first

    def test_deaths_json(self, session, capsys):
        """
        The same for programs.
        """
        main(["logs", "--deaths", "--json", str(session)])

        data = json.loads(capsys.readouterr().out)
        assert ["SglEngine"] == [
            x["actor"] for x in data["deaths"] if x["is_first"]
        ]

    def test_actor(self, session, capsys):
        """
        The ends of the logs of an actor are printed under their files.
        """
        status = main(["logs", str(session), "--actor", "Sgl*", "-n", "1"])

        out = capsys.readouterr().out
        assert 0 == status
        assert "SglEngine hello" in out
        assert 2 == out.count("==> SglEngine (pid=1339 on 192.0.2.2), ")

    def test_actor_json(self, session, capsys):
        """
        The same for programs.
        """
        main(["logs", str(session), "--actor", "1339", "--json"])

        (worker,) = json.loads(capsys.readouterr().out)["workers"]
        assert ["SglEngine hello"] == worker["tail"]["out"]

    def test_unknown_actor(self, session, capsys):
        """
        Who looks for nobody is told who is there.
        """
        status = main(["logs", str(session), "--actor", "Nobody"])

        assert 2 == status
        assert "there are: Killed, Leaver" in capsys.readouterr().err

    def test_many_actors(self, session, capsys, monkeypatch):
        """
        The ends of very many logs are not all printed.
        """
        monkeypatch.setattr("distdebug.cli.logs_text._MOST_TAILS", 2)

        main(["logs", str(session), "--actor", "*"])

        assert "… and 5 more workers" in capsys.readouterr().out

    def test_silent_actor(self, session, capsys, monkeypatch):
        """
        Who printed nothing is told so.
        """
        monkeypatch.setattr(
            "distdebug.cli.logs_text.read_tail", lambda *_, **__: ()
        )

        main(["logs", str(session), "--actor", "Sgl*"])

        assert "they have printed nothing" in capsys.readouterr().out

    def test_live(self, session, capsys, monkeypatch):
        """
        A cluster that is alive is asked if its address is given.
        """
        asked = []

        def ask(address):
            asked.append(address)
            return LiveCluster(actors=(ENGINE,))

        monkeypatch.setattr("distdebug.raylogs.ask_live_actors", ask)

        main(["logs", str(session), "--address", "10.0.0.1:6379"])
        table = capsys.readouterr().out
        main(
            [
                *("logs", str(session), "--address", "10.0.0.1:6379"),
                *("--actor", "engine_*", "-n", "1"),
            ]
        )

        assert ["10.0.0.1:6379"] * 2 == asked
        assert "SglEngine 'engine_0'" in table
        assert "SglEngine hello" in capsys.readouterr().out

    def test_errors(self, tmp_path, capsys):
        """
        What went wrong is found in logs of any kind.
        """
        log = tmp_path / "train.log"
        log.write_text(TRACE)

        status = main(["logs", "--errors", str(log)])

        assert 1 == status
        assert "the shard is empty" in capsys.readouterr().out

    def test_errors_json(self, tmp_path, capsys):
        """
        A log without errors is fine.
        """
        log = tmp_path / "train.log"
        log.write_text("step 1\n")

        status = main(["logs", "--errors", "--json", str(log)])

        assert 0 == status
        assert [] == json.loads(capsys.readouterr().out)["findings"]

    def test_unreadable(self, tmp_path, capsys, monkeypatch):
        """
        Where nothing could be read, nothing is known.
        """
        lost = Missing(what="log", reason="Permission denied")
        monkeypatch.setattr(
            "distdebug.logscan.scan.scan_logs",
            lambda *_, **__: ScanReport(missing=(lost,)),
        )

        status = main(["logs", "--errors", str(tmp_path)])

        assert 2 == status
        assert "Permission denied" in capsys.readouterr().out

    def test_errors_of_actor(self, session, capsys):
        """
        Errors can be looked for in the logs of one actor.
        """
        status = main(
            ["logs", str(session), "--actor", "Stillborn", "--errors"]
        )

        out = capsys.readouterr().out
        assert 1 == status
        assert "no such checkpoint" in out
        assert "SIGSEGV" not in out

    def test_errors_here(self, session, capsys, monkeypatch):
        """
        Without a place, the newest session of this machine is read.
        """
        monkeypatch.setenv("RAY_TMPDIR", str(session))

        status = main(["logs", "--errors"])

        assert 1 == status
        assert "no such checkpoint" in capsys.readouterr().out

    def test_own_rules(self, tmp_path, capsys):
        """
        A file of rules that is none is refused.
        """
        (tmp_path / "train.log").write_text("x\n")
        (tmp_path / "my.toml").write_text("[")

        status = main(
            [
                *("logs", "--errors", str(tmp_path / "train.log")),
                *("--rules", str(tmp_path / "my.toml")),
            ]
        )

        assert 2 == status
        assert "my.toml" in capsys.readouterr().err

    @pytest.mark.parametrize("option", [[], ["--json"]])
    def test_follow(self, session, capsys, monkeypatch, option):
        """
        What is appended is printed with the name of the actor, until Ctrl-C.
        """
        (worker,) = [
            log
            for log in worker_logs(find_ray_sessions(session))
            if log.pid == 1339
        ]

        def follow(workers):
            path = worker.err[-1].path
            with path.open("a") as file:
                file.write("one more line\n")
            yield from follow_lines(workers, timeout_s=0.01, from_start=True)
            yield LogLine(text="last", source=f"{path}.1")
            raise KeyboardInterrupt

        monkeypatch.setattr("distdebug.raylogs.follow_lines", follow)

        status = main(
            ["logs", str(session), "--actor", "Sgl*", "--follow", *option]
        )

        out = capsys.readouterr().out
        who = "SglEngine (pid=1339 on 192.0.2.2)"
        assert 0 == status
        if option:
            told = [json.loads(line) for line in out.splitlines()]
            assert [who] * len(told) == [line["who"] for line in told]
            assert "one more line" in [line["text"] for line in told]
        else:
            assert f"{who} | one more line\n" in out
            assert out.endswith(f"{who} | last\n")

    def test_who(self, session):
        """
        A file of nobody is called by its own name.
        """
        who = who_prints(worker_logs(find_ray_sessions(session)))

        assert "other.log" == who("/x/other.log")

    def test_no_session(self, tmp_path, capsys):
        """
        Where nothing is, nothing can be told.
        """
        status = main(["logs", str(tmp_path)])

        assert 2 == status
        assert "Try:" in capsys.readouterr().err

    def test_progress(self, tmp_path, capsys, monkeypatch):
        """
        A person sees how far the reading is.
        """
        (tmp_path / "train.log").write_text(TRACE)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

        main(["logs", "--errors", str(tmp_path)])

        assert "reading: 0 of 0 MB" in capsys.readouterr().err


class TestPhase:
    def test_loading(self, tmp_path, capsys):
        """
        The phase, and how far it is, is told.
        """
        log = tmp_path / "train.log"
        log.write_text(LOADING)

        status = main(["phase", "--ended", str(log)])

        assert 0 == status
        assert "40 %" in capsys.readouterr().out

    def test_json(self, tmp_path, capsys):
        """
        A job that printed nothing for long is told, also to programs.
        """
        log = tmp_path / "train.log"
        log.write_text(LOADING)

        status = main(["phase", "--json", str(log)])

        data = json.loads(capsys.readouterr().out)
        assert 40 == data["percent"]
        assert data["silent_s"] < time.time()
        assert status == int(bool(data["findings"]))

    def test_unknown_framework(self, tmp_path, capsys):
        """
        Who names an unknown framework is told the known ones.
        """
        (tmp_path / "train.log").write_text(LOADING)

        status = main(
            ["phase", "--framework", "none", str(tmp_path / "train.log")]
        )

        assert 2 == status
        assert "torchspec" in capsys.readouterr().err


class TestHealth:
    @pytest.fixture(name="node")
    def _node(self, monkeypatch):
        """
        What is told of the node, and of what was asked.
        """
        asked = {}
        full = Finding(
            cause=Cause.DISK_FULL,
            ranks=(),
            summary="/tmp is full",
            evidence=(Evidence(kind="node", source="/tmp"),),
        )

        def check(**kwargs):
            asked.update(kwargs)
            facts = NodeFacts(host="n1", taken=1.0)
            findings = (full,) if kwargs["folders"] else ()
            return NodeHealth(facts=facts, findings=findings)

        monkeypatch.setattr("distdebug.health.node.check_node", check)
        monkeypatch.setattr(
            "distdebug.health.environment.check_environment",
            lambda *_, **__: EnvironmentHealth(),
        )
        return asked

    def test_fine(self, node, capsys):
        """
        A node that is well ends with 0.
        """
        status = main(["health", "--timeout", "3"])

        assert 0 == status
        assert "nothing is wrong" in capsys.readouterr().out
        assert 3.0 == node["timeout_s"]

    def test_full(self, node, capsys):
        """
        A full disk ends with 1, and is told to programs.
        """
        status = main(["health", "--folder", "/x", "--pid", "1", "--json"])

        data = json.loads(capsys.readouterr().out)
        assert 1 == status
        assert ["/x"] == node["folders"]
        assert "disk_full" == data["node"]["findings"][0]["cause"]


def test_sessions_or_files():
    """
    What is named is scanned as it is.
    """
    assert ["a", "b"] == logs_module._sessions_or_files(["a", "b"])
