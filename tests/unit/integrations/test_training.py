"""
The recorder and the watch of one rank, as hooks of frameworks use them.
"""

from __future__ import annotations

import pickle
import sys

from unittest import mock

import pytest

import distdebug

from distdebug.errors import TooLateError
from distdebug.integrations import TrainingWatch, training, watched
from distdebug.watching import count_step


class Started:
    """
    Stands for :func:`distdebug.watch`.
    """

    def __init__(self):
        self.options, self.phases, self.closed = [], [], 0
        self.messages = mock.Mock(return_value=())

    def __call__(self, **options):
        self.options.append(options)
        return self

    def phase(self):
        """
        Record begin and end of a phase.
        """
        phase = mock.MagicMock()
        phase.__enter__.side_effect = lambda *_: self.phases.append("begin")
        phase.__exit__.side_effect = lambda *_: self.phases.append("end")
        return phase

    def close(self):
        """
        Count the ends.
        """
        self.closed += 1


@pytest.fixture(name="started")
def _started(monkeypatch):
    started = Started()
    monkeypatch.setattr(training, "watch", started)
    monkeypatch.setattr(training, "current_recording", lambda: None)
    enable = mock.Mock()
    monkeypatch.setattr(training, "enable_flight_recorder", enable)
    started.enable = enable
    return started


def test_folders(started, tmp_path):
    """
    Snapshots go to the folder of the run, or where the user wants them.
    """
    first = TrainingWatch(floor_s=9.0)
    first.start(tmp_path)
    first.start(tmp_path / "again")
    TrainingWatch(tmp_path / "mine", dump_dir="dumps").start(tmp_path)

    assert started.options == [
        {"output_dir": tmp_path / "hangs", "floor_s": 9.0},
        {"output_dir": tmp_path / "mine"},
    ]
    assert started.enable.mock_calls == [
        mock.call(dump_dir=None),
        mock.call(dump_dir="dumps"),
    ]


def test_too_late(started, caplog):
    """
    A job that has its process group already is watched all the same.
    """
    started.enable.side_effect = TooLateError("a process group exists")

    TrainingWatch().start(".")

    assert "its calls are not recorded: a process group exists" in caplog.text
    assert len(started.options) == 1


def test_recorded_already(started, monkeypatch):
    """
    What the script has enabled stays as it is.
    """
    monkeypatch.setattr(training, "current_recording", object)

    TrainingWatch()

    assert not started.enable.called


def test_phases(started):
    """
    Begins and ends may come twice, or before the watch.
    """
    one = TrainingWatch()
    one.begin("evaluation")
    one.end("evaluation")
    one.start(".")
    for phase in ("evaluation", "evaluation", "checkpoint"):
        one.begin(phase)
    one.end("evaluation")
    one.end("evaluation")

    assert started.phases == ["begin", "begin", "end"]


def test_exception(started):
    """
    What ends the block says once why it hung before, if something was wrong.
    """
    error = RuntimeError("connection closed by peer")
    started.messages.return_value = ("rank 1 sleeps\n/h on a",)

    with pytest.raises(RuntimeError), watched("out"), watched("hangs"):
        raise error

    assert error.__notes__ == ["distdebug: rank 1 sleeps\n/h on a"]
    assert started.closed == 2


def test_last_exception(started, monkeypatch):
    """
    So does an exception that ends the program, where a framework has no hook
    for it; after the watch, the hook is the one before it.
    """
    shown = mock.Mock()
    monkeypatch.setattr(sys, "excepthook", shown)
    started.messages.return_value = ("rank 1 sleeps\n/h on a",)
    error = RuntimeError("connection closed by peer")
    training = TrainingWatch()
    training.start(".")

    sys.excepthook(RuntimeError, error, None)
    training.close()

    assert error.__notes__ == ["distdebug: rank 1 sleeps\n/h on a"]
    assert shown.mock_calls == [mock.call(RuntimeError, error, None)]
    assert sys.excepthook is shown


def test_spawned(started):
    """
    A callback that is pickled for a spawned rank makes a watch of its own.
    """
    callback = training.WatchingCallback("out", floor_s=9.0)

    other = pickle.loads(pickle.dumps(callback))
    other._training.start(".")

    assert started.options == [{"output_dir": "out", "floor_s": 9.0}]


def test_steps_of_optimizers(started, monkeypatch):
    """
    Each step of any optimizer counts, within the block only.
    """
    torch = pytest.importorskip("torch")
    counted = mock.Mock()
    monkeypatch.setattr(TrainingWatch, "step", staticmethod(counted))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)

    with watched():
        optimizer.step()
        optimizer.step()
    optimizer.step()

    assert counted.call_count == 2


def test_same_cost(started):
    """
    A step of a framework calls what a step of a watch calls, and nothing else.
    """
    assert TrainingWatch.step is count_step


def test_lazy():
    """
    The names are public, and no framework is loaded for them.
    """
    assert distdebug.integrations.watched is watched
