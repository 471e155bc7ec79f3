"""
The commands about logs and nodes: what they print, and how they end.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import threading
import time

from pathlib import Path

import pytest

from distdebug.__main__ import main
from distdebug.causes import Cause
from distdebug.findings import Evidence, Finding
from distdebug.health import EnvironmentHealth, NodeFacts, NodeHealth
from distdebug.ray import LiveCluster
from distdebug.ray.workers import KnownActor


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
    A session in which no worker ran.
    """
    logs = tmp_path / "session_2026-02-20_02-03-57_123456_4711" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("x\n")
    return logs.parent


class TestLogs:
    def test_overview(self, session, capsys):
        """
        Without options, workers are listed, and the one that died first is
        named.
        """
        status = main(["logs", str(session)])
        out = capsys.readouterr().out
        main(["logs", str(session), "--json"])
        data = json.loads(capsys.readouterr().out)

        assert 1 == status
        assert "SglEngine (pid 1339, 192.0.2.2) crashed with SIGSEGV" in out
        assert "TrainerActor(rank=0)" in out
        assert "silent for long, or stopped:" in out
        assert ("logs", 1) == (data["command"], data["schema"])
        assert "native_crash" == data["findings"][0]["cause"]
        assert 8 == len(data["workers"])

    def test_nobody(self, empty, capsys):
        """
        A cluster in which no worker ran is fine.
        """
        status = main(["logs", str(empty)])

        assert 0 == status
        assert "no worker has printed anything" in capsys.readouterr().out

    def test_many(self, session, capsys):
        """
        Of very many workers, those that died are shown, and not all ends of
        logs are printed.
        """
        logs = next(session.glob("session*/logs"))
        for number in range(45):
            name = f"worker-{number + 1:056x}-01000000-{2000 + number}.out"
            (logs / name).write_text(":actor_name:Crowd\nhello\n")

        main(["logs", str(session)])
        table = capsys.readouterr().out
        main(["logs", str(session), "--actor", "*"])
        tails = capsys.readouterr().out

        assert "… and 13 more workers" in table
        assert "SIGSEGV" in table
        assert 50 < tails.count("==> ") <= 100
        assert "… and 2 more workers" in tails

    def test_deaths(self, session, capsys):
        """
        The table of deaths says who was first.
        """
        status = main(["logs", "--deaths", str(session)])
        out = capsys.readouterr().out
        main(["logs", "--deaths", "--json", str(session)])
        data = json.loads(capsys.readouterr().out)

        first = next(x for x in out.splitlines() if x.startswith("first "))
        assert 1 == status
        assert "SglEngine" in first
        assert "SIGSEGV" in first
        assert ["SglEngine"] == [
            x["actor"] for x in data["deaths"] if x["is_first"]
        ]

    def test_actor(self, session, capsys):
        """
        The ends of the logs of an actor are printed under their files.
        """
        status = main(["logs", str(session), "--actor", "Sgl*", "-n", "1"])
        out = capsys.readouterr().out
        main(["logs", str(session), "--actor", "1339", "--json"])
        (worker,) = json.loads(capsys.readouterr().out)["workers"]

        assert 0 == status
        assert "SglEngine hello" in out
        assert 2 == out.count("==> SglEngine (pid=1339 on 192.0.2.2), ")
        assert ["SglEngine hello"] == worker["tail"]["out"]

    def test_nowhere(self, session, tmp_path, capsys):
        """
        For an unknown actor, the known ones are listed; where nothing is,
        there is something to do about it.
        """
        (tmp_path / "none").mkdir()

        assert 2 == main(["logs", str(session), "--actor", "Nobody"])
        assert "known names: Killed, Leaver" in capsys.readouterr().err
        assert 2 == main(["logs", str(tmp_path / "none")])
        assert "Try:" in capsys.readouterr().err

    def test_silent_actor(self, session, capsys):
        """
        If an actor has printed nothing, so it is said.
        """
        for log in session.glob("session*/logs/worker-*-1339.*"):
            log.write_text(":actor_name:SglEngine\n")

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

        monkeypatch.setattr("distdebug.ray.query_live_cluster", ask)

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
        What went wrong is found in logs of any kind; one without errors is
        fine.
        """
        (tmp_path / "bad.log").write_text(TRACE)
        (tmp_path / "good.log").write_text("step 1\n")

        bad = main(["logs", "--errors", str(tmp_path / "bad.log")])
        out = capsys.readouterr().out
        good = main(["logs", "--errors", "--json", str(tmp_path / "good.log")])

        assert (1, 0) == (bad, good)
        assert "the shard is empty" in out
        assert [] == json.loads(capsys.readouterr().out)["findings"]

    def test_unreadable(self, tmp_path, capsys):
        """
        Where nothing could be read, nothing is known.
        """
        (tmp_path / "train.log.gz").write_text("not packed")

        status = main(["logs", "--errors", str(tmp_path / "train.log.gz")])

        assert 2 == status
        assert "Not a gzipped file" in capsys.readouterr().out

    @pytest.mark.parametrize("is_actor", [True, False])
    def test_errors_here(self, session, capsys, monkeypatch, is_actor):
        """
        Errors are looked for in the newest session of this machine, or in the
        logs of one actor.
        """
        monkeypatch.setenv("RAY_TMPDIR", str(session))
        who = ["--actor", "Stillborn"] if is_actor else []

        status = main(["logs", "--errors", *who])

        out = capsys.readouterr().out
        assert 1 == status
        assert "no such checkpoint" in out
        assert is_actor == ("SIGSEGV" not in out)

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
    def test_follow(self, session, monkeypatch, option):
        """
        What is appended is printed with the name of the actor, also after its
        file was rotated, until Ctrl-C.
        """
        log = next(session.glob("session*/logs/worker-*-1339.err"))
        screen = Screen(log)
        monkeypatch.setattr(sys, "stdout", screen)
        writer = threading.Thread(target=screen.write_to_log)
        writer.start()

        status = main(
            ["logs", str(session), "--actor", "Sgl*", "--follow", *option]
        )

        writer.join()
        out = screen.getvalue()
        who = "SglEngine (pid=1339 on 192.0.2.2)"
        assert 0 == status
        if option:
            told = [json.loads(line) for line in out.splitlines()]
            assert [who] * len(told) == [line["who"] for line in told]
            assert {"one more line", "last"} == {x["text"] for x in told}
        else:
            assert f"{who} | one more line\n" in out
            assert out.endswith(f"{who} | last\n")

    def test_progress(self, tmp_path, run_in_terminal, capsys):
        """
        A person sees how far the reading is.
        """
        (tmp_path / "train.log").write_text(TRACE)

        run_in_terminal("logs", "--errors", str(tmp_path))

        assert "reading: " in (err := capsys.readouterr().err)
        assert f"{len(TRACE)}/{len(TRACE)} bytes" in err


class Screen(io.StringIO):
    """
    Where followed lines are shown; once the last one is, Ctrl-C is pressed.
    """

    def __init__(self, log):
        super().__init__()
        self.log = log
        self.has_begun, self.is_over = threading.Event(), threading.Event()

    def write(self, text):
        """
        Show it.
        """
        super().write(text)
        # The ends of logs, which come first, were there before.
        if "one more line" in text and not text.startswith("==>"):
            self.has_begun.set()
        if "last" in text and self.has_begun.is_set():
            self.is_over.set()
        return len(text)

    def flush(self):
        """
        What was written is seen.
        """
        if self.is_over.is_set():
            self.is_over.clear()
            raise KeyboardInterrupt

    def write_to_log(self):
        """
        Append to the log until that is seen, then rotate it.
        """
        while not self.has_begun.wait(0.02):
            with self.log.open("a") as file:
                file.write("one more line\n")
        self.log.rename(f"{self.log}.1")
        self.log.write_text("last\n")


class TestPhase:
    def test_loading(self, tmp_path, capsys):
        """
        The phase is shown, and how far it is; so is the silence of a job that
        may still run.
        """
        log = tmp_path / "train.log"
        log.write_text(LOADING)

        ended = main(["phase", "--ended", str(log)])
        out = capsys.readouterr().out
        status = main(["phase", "--json", str(log)])
        data = json.loads(capsys.readouterr().out)

        assert 0 == ended
        assert "40 %" in out
        assert 40 == data["percent"]
        assert data["silent_s"] < time.time()
        assert status == int(bool(data["findings"]))

    def test_unknown_framework(self, tmp_path, capsys):
        """
        For an unknown framework, the known ones are listed.
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
        Stand-ins for looking at the node; what was asked for.
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

        monkeypatch.setattr("distdebug.health.check_node", check)
        monkeypatch.setattr(
            "distdebug.health.check_environment",
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

    def test_full(self, node, capsys, tmp_path):
        """
        A full disk ends with 1, and is in the JSON.
        """
        folder = str(tmp_path)
        status = main(["health", "--folder", folder, "--pid", "1", "--json"])

        data = json.loads(capsys.readouterr().out)
        assert 1 == status
        assert [folder] == node["folders"]
        assert "disk_full" == data["node"]["findings"][0]["cause"]
