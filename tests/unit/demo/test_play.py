"""
Playing a scenario, with a stand-in for the job.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import sys

from importlib.machinery import ModuleSpec
from importlib.resources import files
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from distdebug.__main__ import main
from distdebug.capture import Capture
from distdebug.causes import Cause
from distdebug.demo import SCENARIOS, Scenario, play_demo
from distdebug.errors import DistdebugError, MissingDependencyError
from distdebug.findings import Diagnosis, Finding, Missing


PROGRAM = files("distdebug.demo") / "program" / "train.py"


DIAGNOSIS = Diagnosis(
    verdict=Finding(
        cause=Cause.RANK_NOT_ARRIVED,
        ranks=(3,),
        summary="rank 3 is late",
        detail_cause=Cause.DATALOADER_WAIT,
    )
)


@pytest.fixture
def stage(monkeypatch):
    """
    A job that does as it is asked to; the rest is recorded.
    """
    log = SimpleNamespace(
        outcome="stuck", steps=[], started=[], diagnosed=[], printed=""
    )

    @contextlib.contextmanager
    def start(program, arguments, ranks):
        log.started.append((program.name, arguments, ranks))
        dumps = Path(arguments[0])
        dumps.mkdir()
        os.mkfifo(dumps / "0.pipe")
        printed = program.with_name("job.log")
        if log.printed:
            printed.write_text(log.printed)
        yield SimpleNamespace(processes=lambda: [SimpleNamespace(pid=7)])
        if log.printed:
            printed.write_text(f"{log.printed}killed\n")

    def watch(job, *, tell):
        for step in log.steps:
            tell(step)
        return log.outcome

    def capture(folder, pids, **_):
        missing = Missing(what="stack", reason="no", source=f"pid {pids[0]}")
        return Capture(host="n1", processes=(), missing=(missing,))

    def diagnose(path):
        log.diagnosed.append(path)
        return DIAGNOSIS

    torch = ModuleType("torch")
    torch.__spec__ = ModuleSpec("torch", None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    # A real job takes seconds; those in tests/integration are played.
    monkeypatch.setattr("distdebug.demo.play.start_job", start)
    monkeypatch.setattr("distdebug.demo.play.watch_job", watch)
    monkeypatch.setattr("distdebug.demo.play.capture_node", capture)
    monkeypatch.setattr("distdebug.demo.play.diagnose", diagnose)
    return log


class TestPlayDemo:
    def test_stuck(self, stage, tmp_path):
        """
        Dumps and stacks of a stuck job are collected, and diagnosed.
        """
        told = []
        stage.printed = "step 1\n"

        got = play_demo(
            SCENARIOS["dataloader"],
            folder=tmp_path / "a" / "b",
            tell=told.append,
        )

        root = (tmp_path / "a" / "b").resolve()
        assert got.is_found
        assert root == got.folder
        arguments = (str(root / "dumps"), "dataloader")
        assert [("train.py", arguments, 4)] == stage.started
        assert [root] == stage.diagnosed
        # What is run lies beside the dumps; what nobody answers is gone.
        assert ["dumps", "job.log", "train.py"] == sorted(
            path.name for path in root.rglob("*")
        )
        assert "step 1\n" == (root / "job.log").read_text()
        assert "0 of 1 ranks wrote a dump" in told
        assert "no stack of pid 7: no" in told

    @pytest.mark.parametrize("outcome", ["ended", "running"])
    def test_other_outcomes(self, outcome, stage, tmp_path):
        """
        A job that ended cannot be asked; one that runs can.
        """
        stage.outcome = outcome
        told = []

        play_demo(SCENARIOS["crash"], folder=tmp_path, tell=told.append)

        was_asked = any("wrote a dump" in text for text in told)
        assert (outcome == "running") == was_asked

    def test_temporary_folder(self, stage, tmp_path, monkeypatch):
        """
        By default the folder is a new one.
        """
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

        got = play_demo(SCENARIOS["crash"])

        assert tmp_path == got.folder.parent
        assert not got.is_found

    @pytest.mark.parametrize(
        ("name", "told"), [("", "not empty"), ("file/x", "cannot use")]
    )
    def test_folder(self, stage, tmp_path, name, told):
        """
        Nothing is put among what is there already, or where nothing can be.
        """
        (tmp_path / "file").touch()

        with pytest.raises(DistdebugError, match=told):
            play_demo(SCENARIOS["crash"], folder=tmp_path / name)

        assert [] == stage.started

    def test_no_torch(self, monkeypatch):
        """
        Without torch there is a way to get it.
        """
        monkeypatch.setitem(sys.modules, "torch", None)

        with pytest.raises(MissingDependencyError) as caught:
            play_demo(SCENARIOS["crash"])

        assert "pip install torch" in caught.value.remedy


class TestScenarios:
    def test_programs(self):
        """
        Every scenario is a function of the program, which says what is planted.
        """
        steps = {
            x.name: ast.get_docstring(x)
            for x in ast.parse(PROGRAM.read_text("utf-8")).body
            if isinstance(x, ast.FunctionDef)
        }

        assert all(steps[name] for name in SCENARIOS)

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, True),
            ({"detail": None}, True),
            ({"detail": Cause.SLEEPING}, False),
            ({"ranks": (2,)}, False),
            ({"ranks": (-1, 0)}, False),
            ({"cause": Cause.RANK_CRASHED}, False),
        ],
    )
    def test_is_found_by(self, changes, expected):
        """
        Cause, rank, and reason have to be right.
        """
        values = {
            "cause": Cause.RANK_NOT_ARRIVED,
            "ranks": (-1,),
            "detail": Cause.DATALOADER_WAIT,
        }
        scenario = Scenario("x", "", **(values | changes))

        assert expected == scenario.is_found_by(DIAGNOSIS, 4)


@pytest.fixture
def sigterm():
    """
    The command changes what signals do.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("sigterm", "stage")
class TestCommand:
    def test_found(self, tmp_path, capsys):
        """
        The diagnosis comes first, and is compared with what was planted.
        """
        status = main(["demo", "--keep", str(tmp_path)])

        lines = capsys.readouterr().out.splitlines()
        assert 0 == status
        assert "rank 3 is late" == lines[0]
        assert "verdict: rank_not_arrived, as planted" in lines
        assert lines[-1].endswith(str(tmp_path))

    def test_not_found(self, tmp_path, capsys):
        """
        A wrong diagnosis is not passed over.
        """
        argv = ["demo", "--scenario", "crash", "--ranks", "6"]

        assert 1 == main([*argv, "--keep", str(tmp_path)])
        assert "NOT what was planted" in capsys.readouterr().out

    def test_json(self, tmp_path, capsys):
        """
        As JSON it is a diagnosis, and what was planted.
        """
        assert 0 == main(["demo", "--json", "--keep", str(tmp_path)])

        got = json.loads(capsys.readouterr().out)
        assert "demo" == got["command"]
        assert [3] == got["verdict"]["ranks"]
        assert ("dataloader", True) == (
            got["demo"]["scenario"],
            got["demo"]["is_found"],
        )

    def test_progress(self, stage, tmp_path, capsys):
        """
        Steps are shown on terminals only; what happens, everywhere.
        """
        stage.steps, stage.outcome = ["step 1"], "ended"

        main(["demo", "--keep", str(tmp_path)])

        assert [
            "demo: starting 4 processes of train.py dataloader with torchrun",
            "demo: the job has ended by itself",
        ] == capsys.readouterr().err.splitlines()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_terminated(self, number, tmp_path):
        """
        SIGTERM and the end of the terminal unwind, so that the job is ended
        too.
        """
        signal.signal(number, signal.SIG_DFL)

        main(["demo", "--keep", str(tmp_path)])

        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(number)
        assert 128 + number == caught.value.code

    def test_to_be_outlived(self, tmp_path):
        """
        What ignores the end of the terminal, as under nohup, goes on doing so.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

        main(["demo", "--keep", str(tmp_path)])

        assert signal.SIG_IGN is signal.getsignal(signal.SIGHUP)


class TestOptions:
    def test_list(self, capsys):
        """
        The scenarios are listed with what is planted.
        """
        assert 0 == main(["demo", "--list"])

        text = capsys.readouterr().out
        assert [] == [s for s in SCENARIOS if f"\n{s} " not in text]

    def test_unknown(self, capsys):
        """
        For an unknown scenario, the known ones are listed.
        """
        assert 2 == main(["demo", "--scenario", "x"])
        assert "dataloader" in capsys.readouterr().err

    @pytest.mark.parametrize("text", ["2", "5", "66", "x"])
    def test_ranks(self, text, capsys):
        """
        The number of processes is even, and no more than a laptop bears.
        """
        with pytest.raises(SystemExit, match="2"):
            main(["demo", "--ranks", text])
