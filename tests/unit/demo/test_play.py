"""
Playing a scenario, with a stand-in for the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal

from pathlib import Path
from types import SimpleNamespace

import pytest

from distdebug.__main__ import main
from distdebug.capture import Capture
from distdebug.cli import demo as command
from distdebug.demo import SCENARIOS, Scenario, play, play_demo
from distdebug.errors import DistdebugError, MissingDependencyError
from distdebug.findings import Cause, Diagnosis, Finding, Missing
from distdebug.flight_recorder import DumpRequest


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
    A job that does as it is told; the rest is recorded.
    """
    log = SimpleNamespace(
        outcome="stuck", started=[], diagnosed=[], printed=""
    )

    @contextlib.contextmanager
    def start(program, dumps, ranks):
        log.started.append((program, dumps, ranks))
        os.mkfifo(program.with_name("pipe"))
        printed = program.with_name("job.log")
        if log.printed:
            printed.write_text(log.printed)
        yield SimpleNamespace(processes=lambda: [SimpleNamespace(pid=7)])
        if log.printed:
            printed.write_text(f"{log.printed}killed\n")

    def request(dumps):
        return (
            DumpRequest(0, "dumped", dumps / "0"),
            DumpRequest(1, "silent", dumps / "1"),
        )

    def capture(folder, pids, **_):
        missing = Missing(what="stack", reason="no", source=f"pid {pids[0]}")
        return Capture(host="n1", processes=(), missing=(missing,))

    def diagnose(path):
        log.diagnosed.append(path)
        return DIAGNOSIS

    monkeypatch.setattr(play, "find_spec", lambda _: True)
    monkeypatch.setattr(play, "start_job", start)
    monkeypatch.setattr(play, "watch_job", lambda *_, **__: log.outcome)
    monkeypatch.setattr(play, "request_dumps", request)
    monkeypatch.setattr(play, "capture_node", capture)
    monkeypatch.setattr(play, "diagnose", diagnose)
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
        assert [(root / "dataloader.py", root / "dumps", 4)] == stage.started
        assert [root] == stage.diagnosed
        assert "step 1\n" == (root / "job.log").read_text()
        assert "1 of 2 ranks wrote a dump" in told
        assert "no stack of pid 7: no" in told

    def test_program(self, stage, tmp_path):
        """
        What is run lies beside the dumps; what nobody answers is gone.
        """
        play_demo(SCENARIOS["order"], folder=tmp_path)

        assert ["order.py"] == [path.name for path in tmp_path.iterdir()]

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

    def test_not_empty(self, stage, tmp_path):
        """
        Nothing is put among what is there already.
        """
        (tmp_path / "thesis.tex").touch()

        with pytest.raises(DistdebugError, match="not empty"):
            play_demo(SCENARIOS["crash"], folder=tmp_path)

        assert [] == stage.started

    def test_no_folder(self, stage, tmp_path):
        """
        A folder that cannot be made is told.
        """
        (tmp_path / "file").touch()

        with pytest.raises(DistdebugError, match="cannot use"):
            play_demo(SCENARIOS["crash"], folder=tmp_path / "file" / "x")

    def test_no_torch(self, monkeypatch):
        """
        Without torch there is a way to get it.
        """
        monkeypatch.setattr(play, "find_spec", lambda _: None)

        with pytest.raises(MissingDependencyError) as caught:
            play_demo(SCENARIOS["crash"])

        assert "pip install torch" in caught.value.remedy


class TestScenarios:
    @pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
    def test_program(self, scenario):
        """
        Every scenario has its program, which first says what is planted.
        """
        text = (play.PROGRAMS / f"{scenario.name}.py").read_text("utf-8")

        first = text.splitlines()[1]
        assert first.startswith(("Planted: ", "Nothing is planted: "))

    def test_no_program_without_scenario(self):
        """
        Every program has its scenario.
        """
        programs = {path.stem for path in Path(play.PROGRAMS).glob("*.py")}

        assert set(SCENARIOS) == programs

    def test_culprits(self):
        """
        Ranks count from the end where they are negative.
        """
        scenario = Scenario("x", "", Cause.STRAGGLER, (-1, 0))

        assert (0, 5) == scenario.culprits(6)

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, True),
            ({"detail": None}, True),
            ({"detail": Cause.SLEEPING}, False),
            ({"ranks": (2,)}, False),
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

    def test_progress(self, tmp_path, capsys, monkeypatch):
        """
        Steps are shown to people only; what happens, to everybody.
        """

        def watch(job, *, tell):
            tell("step 1")
            return "ended"

        monkeypatch.setattr(play, "watch_job", watch)

        main(["demo", "--keep", str(tmp_path)])

        assert [
            "demo: starting 4 processes of dataloader.py with torchrun",
            "demo: the job has ended by itself",
        ] == capsys.readouterr().err.splitlines()

    def test_terminated(self):
        """
        SIGTERM unwinds, so that the job is ended too.
        """
        with pytest.raises(SystemExit, match="143"):
            command._interrupt(signal.SIGTERM, None)

    @pytest.mark.parametrize(
        ("before", "expected"),
        [
            (signal.SIG_DFL, command._interrupt),
            (signal.SIG_IGN, signal.SIG_IGN),
        ],
    )
    def test_hung_up(self, before, expected, tmp_path):
        """
        So does the end of the terminal, unless it is to be outlived.
        """
        signal.signal(signal.SIGHUP, before)

        main(["demo", "--keep", str(tmp_path)])

        assert expected == signal.getsignal(signal.SIGHUP)


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
        A scenario that is not there is told, with those that are.
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
