"""
What does a rank leave behind when it dies?
"""

import contextlib
import json
import os
import signal
import sys

from types import SimpleNamespace

import pytest

from distdebug.flight_recorder import plan_flight_recorder, request_dumps
from distdebug.flight_recorder.recording import complaints, extras, last_words
from distdebug.flight_recorder.recording.current import (
    Recording,
    begin_recording,
    end_recording,
)
from distdebug.flight_recorder.recording.extras import Extras
from distdebug.flight_recorder.recording.last_words import (
    hook_ends,
    leave_words,
    note_end,
    note_start,
)


pytestmark = pytest.mark.usefixtures("rank_3", "fake_torch")


@pytest.fixture
def recording(tmp_path):
    """
    A recording of this process.
    """
    settings = plan_flight_recorder(
        {}, "2.13", dump_dir=tmp_path, token="1700000000-2"
    )
    yield begin_recording(Recording(settings))
    end_recording()


def sidecars(recording):
    """
    The side-cars in a folder.
    """
    return [
        json.loads(p.read_text())
        for p in sorted(recording.settings.dump_dir.glob("*.sidecar.json"))
    ]


class TestWords:
    def test_dump(self, recording):
        """
        A dump, its side-car with the error, and the traceback are left.
        """
        leave_words(recording, "SIGTERM", error="E: x", traceback=b"File")

        (dump,) = recording.dumps
        (sidecar,) = sidecars(recording)
        assert ("SIGTERM", "E: x") == (sidecar["reason"], sidecar["error"])
        text = dump.with_name(f"{dump.name}.traceback.txt")
        assert b"File" == text.read_bytes()

    def test_no_recorder(self, recording, monkeypatch):
        """
        A rank that records nothing still says who it was, and where.
        """
        monkeypatch.delitem(sys.modules, "torch")

        leave_words(recording, "SIGTERM")

        (sidecar,) = sidecars(recording)
        assert "" == sidecar["dump"]
        assert "test_no_recorder" in {
            f["name"] for f in sidecar["threads"]["MainThread"]
        }

    def test_fails(self, recording, monkeypatch):
        """
        If nothing can be written, nothing is raised.
        """
        monkeypatch.setattr(complaints, "_known", set())
        recording.settings.dump_dir.rmdir()

        leave_words(recording, "SIGTERM")

        assert [] == recording.dumps

    def test_start(self, recording):
        """
        From the start a rank can be found.
        """
        note_start(recording)

        (sidecar,) = sidecars(recording)
        assert ("start", 3, os.getpid()) == (
            sidecar["reason"],
            sidecar["rank"],
            sidecar["pid"],
        )

    def test_no_rank(self, recording, monkeypatch):
        """
        A process that is no rank leaves nothing.
        """
        monkeypatch.delenv("RANK")

        note_start(recording)

        assert [] == sidecars(recording)


class TestEnd:
    def test_normal(self, recording):
        """
        A normal end is noted, beside torch's own dump if there is one.
        """
        recording.torch_path().touch()

        note_end(recording)

        (sidecar,) = sidecars(recording)
        assert ("exit", "1700000000-2_rank_3") == (
            sidecar["reason"],
            sidecar["dump"],
        )

    def test_in_flight(self, recording, fake_torch, monkeypatch):
        """
        An end in the middle of a call leaves a dump, unless an exception has.
        """
        monkeypatch.setattr(last_words, "is_in_flight", lambda: True)

        note_end(recording)
        recording.error = "E: x"
        note_end(recording)

        assert 1 == len(recording.dumps)
        assert {"exit-after-error", "exit"} == {
            s["reason"] for s in sidecars(recording)
        }

    @pytest.mark.parametrize(
        ("code", "context", "expected"),
        [
            (0, ValueError("x"), ""),
            (None, None, ""),
            (1, ValueError("a\nb"), "ValueError: a b"),
            (1, None, "Exception: exit status 1"),
        ],
    )
    def test_child(self, recording, code, context, expected):
        """
        A child that ends while it handles an exception notes that one.
        """
        end = SystemExit(code)
        end.__context__ = context

        try:
            raise end
        except SystemExit:
            note_end(recording)

        assert expected == recording.error
        assert bool(expected) == bool(recording.dumps)

    def test_broken_exception(self, recording):
        """
        An exception that cannot be shown is named.
        """

        class BrokenError(Exception):
            def __str__(self):
                raise ValueError

        with contextlib.suppress(BrokenError):
            try:
                raise BrokenError
            finally:
                note_end(recording)

        assert "BrokenError:" == recording.error


class TestHooks:
    def test_exception(self, recording, monkeypatch):
        """
        An exception is noted, and the hook that was there is called.
        """
        calls = []
        monkeypatch.setattr(
            sys, "excepthook", lambda *args: calls.append(args)
        )
        exc = ValueError("x")

        remove = hook_ends(lambda: None)
        sys.excepthook(ValueError, exc, None)
        end_recording()
        sys.excepthook(ValueError, exc, None)
        remove()
        sys.excepthook(ValueError, exc, None)

        assert [(ValueError, exc, None)] * 3 == calls
        assert "ValueError: x" == recording.error
        assert 1 == len(recording.dumps)

    def test_later_hook(self, monkeypatch):
        """
        A hook that came after ours stays.
        """
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        remove = hook_ends(lambda: None)
        later = sys.excepthook = lambda *_: None
        remove()

        assert later is sys.excepthook

    def test_child(self, monkeypatch):
        """
        In a child of multiprocessing its own list is used as well.
        """
        calls = []

        class Finalize:
            def __init__(self, _, call, exitpriority):
                calls.append((call, exitpriority))

            def cancel(self):
                calls.append("cancel")

        monkeypatch.setitem(
            sys.modules,
            "multiprocessing",
            SimpleNamespace(parent_process=lambda: "parent"),
        )
        monkeypatch.setitem(
            sys.modules,
            "multiprocessing.util",
            SimpleNamespace(Finalize=Finalize),
        )

        def on_end():
            pass

        hook_ends(on_end)()

        assert [(on_end, 0), "cancel"] == calls


class FakeSignals:
    """
    Signals that are caught without touching those of this process.
    """

    def __init__(self):
        self.reader, self.writer = os.pipe()
        self.calls = []
        self.words = b"words"
        self.is_final = True
        self.number = signal.SIGABRT

    def catch_sigterm(self):
        """
        Pretend to catch SIGTERM.
        """
        return

    def catch_sigabrt(self):
        """
        Pretend to catch SIGABRT.
        """
        return self

    def limit_abort(self, caught):
        """
        Note that the limit was set.
        """
        self.calls.append("limit")

    def read_words(self, caught):
        """
        Give the words of a signal.
        """
        os.read(self.reader, 100)
        return self.words

    def die_of(self, caught):
        """
        Note what this process should have died of.
        """
        self.calls.append("die")
        os.write(self.done_writer, b"x")

    def release(self, caught, *, in_child):
        """
        Note what was put back.
        """
        self.calls.append(("release", in_child))

    def close(self, caught):
        """
        Note what was closed.
        """
        self.calls.append("close")


@pytest.fixture
def signals(monkeypatch):
    """
    Signals that nobody sends.
    """
    fake = FakeSignals()
    fake.done, fake.done_writer = os.pipe()
    monkeypatch.setattr(extras, "crash_signals", fake)
    yield fake
    for fd in (fake.reader, fake.writer, fake.done, fake.done_writer):
        os.close(fd)


class TestExtras:
    def test_request(self, recording, signals):
        """
        A request is answered, and the pipe is gone in the end.
        """
        extra = Extras(recording)
        extra.start()
        (row,) = request_dumps(recording.settings.dump_dir)
        extra.stop()

        assert (3, "dumped") == (row.rank, row.status)
        assert [] == list(recording.settings.dump_dir.glob("*.pipe"))
        assert ["limit", ("release", False), "close"] == signals.calls

    def test_signal(self, recording, signals, capfd):
        """
        On a signal there is a dump, the words go on to stderr, and the
        process ends.
        """
        extra = Extras(recording)
        extra.start()
        os.write(signals.writer, b"x")
        os.read(signals.done, 1)
        pipes = list(recording.settings.dump_dir.glob("*.pipe"))
        extra.stop()

        assert [] == pipes
        assert 1 == len(recording.dumps)
        assert "words" == capfd.readouterr().err
        assert "die" in signals.calls

    @pytest.mark.parametrize(
        ("words", "is_final", "dumps"), [(b"", True, 0), (b"words", False, 1)]
    )
    def test_life_goes_on(self, recording, signals, words, is_final, dumps):
        """
        A signal of another process is nothing; one that somebody else handles
        is not sent again.
        """
        signals.words, signals.is_final = words, is_final
        signals.number = signal.SIGTERM
        extra = Extras(recording)
        extra.start()
        os.write(signals.writer, b"x")
        request_dumps(recording.settings.dump_dir)  # comes after it
        extra.stop()

        assert dumps + 1 == len(recording.dumps)
        assert "die" not in signals.calls

    def test_child(self, recording, signals):
        """
        A forked child forgets all, and leaves the pipe to its parent.
        """
        extra = Extras(recording)
        extra.start()
        extra._listener.stop()
        extra.forget()
        pipes = list(recording.settings.dump_dir.glob("*.pipe"))

        assert 1 == len(pipes)
        assert ("release", True) in signals.calls

    def test_end(self, recording, signals):
        """
        The end of the program is noted, and ends the listening.
        """
        extra = Extras(recording)
        extra.start()
        extra._on_end()

        assert ["exit"] == [s["reason"] for s in sidecars(recording)]
        assert "close" in signals.calls

    def test_nothing_works(self, recording, signals, monkeypatch):
        """
        Without pipes, signals, or threads, the rest goes on.
        """

        def refuse(*_):
            raise OSError

        monkeypatch.setattr(extras, "open_request_pipe", refuse)
        monkeypatch.setattr(extras.Listener, "start", refuse)
        extra = Extras(recording)
        extra.start()
        extra.stop()

        assert ("release", False) in signals.calls
        assert 1 == len(sidecars(recording))

    def test_no_limit(self, recording, signals, monkeypatch):
        """
        Where a signal cannot be limited it is not caught.
        """

        def refuse(_):
            raise OSError

        monkeypatch.setattr(signals, "limit_abort", refuse)
        monkeypatch.setattr(
            signals,
            "release",
            lambda *_, **kw: signals.calls.append(("release", kw)),
        )
        extra = Extras(recording)
        extra.start()
        calls = signals.calls[:]
        extra.stop()

        assert [("release", {})] == calls

    def test_no_signals(self, recording, signals, monkeypatch):
        """
        Where signals cannot be caught, requests are still answered.
        """
        monkeypatch.setattr(signals, "catch_sigterm", None)
        monkeypatch.setattr(extras, "open_request_pipe", lambda _: None)
        extra = Extras(recording)
        extra.start()
        extra.forget()

        assert [] == [c for c in signals.calls if c == "close"]

    def test_busy(self, recording, signals, monkeypatch):
        """
        While the listener is busy its pipes stay open.
        """
        extra = Extras(recording)
        extra.start()
        listener = extra._listener
        with monkeypatch.context() as patch:
            patch.setattr(listener, "stop", lambda: False)
            extra.stop()
        calls = signals.calls[:]
        listener.stop()
        extra._close_pipes()

        assert "close" not in calls
