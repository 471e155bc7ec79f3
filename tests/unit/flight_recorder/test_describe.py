"""
What a process knows about where it is, and where it died.
"""

from __future__ import annotations

import json
import sys

from pathlib import Path

import pytest

import distdebug

from distdebug.flight_recorder import (
    SIDECAR_SUFFIX,
    plan_flight_recorder,
    read_sidecar,
)
from distdebug.flight_recorder.recording.current import (
    Recording,
    begin_recording,
    end_recording,
)
from distdebug.flight_recorder.recording.describe import (
    describe_process,
    traceback_frames,
)
from distdebug.flight_recorder.recording.last_words import (
    hook_ends,
    leave_words,
    note_end,
)
from distdebug.location import user_location


pytestmark = pytest.mark.usefixtures("rank_3", "fake_torch")


@pytest.fixture
def recording(tmp_path):
    """
    The recording of this process, which is rank 3.
    """
    settings = plan_flight_recorder(
        {}, "2.13", dump_dir=tmp_path, token="1700000000-2"
    )
    yield begin_recording(Recording(settings))
    end_recording()


def main_thread(sidecar):
    """
    The stack of the main thread, innermost line first.
    """
    return dict(sidecar.threads)["MainThread"]


def raised(fail):
    """
    The exception that a function raises.
    """
    with pytest.raises(ValueError) as info:
        fail()
    return info.value


def read_shard():
    """
    Fails, as user code does.
    """
    msg = "bad shard"
    raise ValueError(msg)


class TestStack:
    def test_own_frames(self, recording):
        """
        The innermost line is that of whoever called us.
        """
        frames = main_thread(describe_process(recording, "call"))

        assert ("test_own_frames", __file__) == frames[0][:2]

    def test_own_frames_of_end(self, recording):
        """
        So it is if several of ours lie between.
        """
        leave_words(recording, "SIGTERM")

        (path,) = recording.settings.dump_dir.glob("*.sidecar.json")
        frames = json.loads(path.read_text())["threads"]["MainThread"]
        assert "test_own_frames_of_end" == frames[0]["name"]

    def test_other_rooms(self, recording):
        """
        A program that comes with us is a program like any other.
        """
        program = Path(distdebug.__file__).with_name("demo") / "programs/x.py"
        scope = {"describe": lambda: describe_process(recording, "call")}
        exec(
            compile("def step():\n  return describe()", program, "exec"), scope
        )

        frames = main_thread(scope["step"]())

        assert [("<lambda>", __file__), ("step", str(program))] == [
            f[:2] for f in frames[:2]
        ]


class TestTraceback:
    def test_innermost_first(self):
        """
        The line that raised comes first, then those that called it.
        """

        def load():
            read_shard()

        exc = raised(load)

        frames = traceback_frames(exc.__traceback__)

        line = read_shard.__code__.co_firstlineno + 5
        assert ("read_shard", __file__, line) == frames[0]
        assert ["load", "raised"] == [f.name for f in frames[1:]]

    def test_deep(self):
        """
        Of a recursion without end the innermost lines are kept.
        """

        def down(n):
            if not n:
                read_shard()
            down(n - 1)

        frames = traceback_frames(raised(lambda: down(300)).__traceback__)

        assert 100 == len(frames)
        assert ["read_shard", "down"] == [f.name for f in frames[:2]]

    def test_no_line(self):
        """
        Code without line numbers raises at line 0, which can be written.
        """

        def fail():
            raise ValueError

        fail.__code__ = fail.__code__.replace(co_linetable=b"")

        frames = traceback_frames(raised(fail).__traceback__)

        assert ("fail", __file__, 0) == frames[0]


class TestDeath:
    def test_main_thread(self, recording, monkeypatch):
        """
        After an uncaught exception the main thread is where it was raised,
        not in our hook.
        """
        monkeypatch.setattr(sys, "excepthook", lambda *_: None)
        exc = raised(read_shard)

        remove = hook_ends(lambda: None)
        sys.excepthook(ValueError, exc, exc.__traceback__)
        remove()

        (path,) = recording.settings.dump_dir.glob("*.sidecar.json")
        sidecar = json.loads(path.read_text())
        frames = sidecar["threads"]["MainThread"]
        assert ("exception", "ValueError: bad shard") == (
            sidecar["reason"],
            sidecar["error"],
        )
        assert ["read_shard", "raised"] == [f["name"] for f in frames[:2]]

    def test_location(self, recording):
        """
        So the user's line is the one that raised.
        """
        exc = raised(read_shard)

        leave_words(
            recording, "exception", error="E: x", trace=exc.__traceback__
        )

        location = user_location(
            main_thread(describe_process(recording, "call"))
        )
        assert "read_shard" == location.function

    def test_at_the_end(self, recording):
        """
        The last side-car, which counts, says so as well.
        """
        exc = raised(read_shard)
        leave_words(
            recording, "exception", error="E: x", trace=exc.__traceback__
        )

        note_end(recording)

        path = recording.torch_path()
        sidecar = read_sidecar(path.with_name(path.name + SIDECAR_SUFFIX))
        assert "exit" == sidecar.reason
        assert "read_shard" == main_thread(sidecar)[0].name

    def test_of_child(self, recording):
        """
        A child that ends while it handles an exception knows where that was
        raised.
        """
        try:
            read_shard()
        except ValueError:
            note_end(recording)

        assert "read_shard" == recording.died_at[0].name

    def test_good_end(self, recording):
        """
        Where a rank ends well is of no interest.
        """
        note_end(recording)

        path = recording.torch_path()
        sidecar = read_sidecar(path.with_name(path.name + SIDECAR_SUFFIX))
        assert () == sidecar.threads

    def test_without_traceback(self, recording):
        """
        An exception without a traceback leaves the stack as it is.
        """
        leave_words(recording, "exception", error="E: x", trace=None)

        frames = main_thread(describe_process(recording, "call"))

        assert "test_without_traceback" == frames[0].name
