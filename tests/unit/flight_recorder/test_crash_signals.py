"""
How does a process that is being killed still say where it was?
"""

import faulthandler
import fcntl
import os
import signal
import sys

import pytest

from distdebug.flight_recorder.recording import crash_signals
from distdebug.flight_recorder.recording.c_signals import (
    address_of,
    disposition,
    get_handler,
    restore_action,
    save_action,
    set_handler,
)
from distdebug.flight_recorder.recording.crash_signals import (
    catch_sigabrt,
    catch_sigterm,
    close,
    die_of,
    limit_abort,
    read_words,
    release,
)
from distdebug.flight_recorder.recording.fault_file import FaultFile, IsHeld


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="signals are read from /proc"
)

SPARE = signal.SIGSTKFLT


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch):
    """
    As if this process were no test: nobody has an alarm or faulthandler.
    """
    monkeypatch.setattr(
        crash_signals,
        "disposition",
        lambda n: "default" if n == signal.SIGALRM else disposition(n),
    )
    before = {n: save_action(n) for n in (signal.SIGTERM, SPARE)}
    was_enabled = faulthandler.is_enabled()
    faulthandler.disable()
    yield
    for number, action in before.items():
        restore_action(number, action)
    if was_enabled:
        faulthandler.enable(file=sys.__stderr__)


@pytest.fixture
def handled():
    """
    What this program's own handler of SIGTERM was called with.
    """
    calls = []
    before = signal.signal(signal.SIGTERM, lambda *args: calls.append(args[0]))
    yield calls
    signal.signal(signal.SIGTERM, before)


class TestCSignals:
    def test_disposition(self):
        """
        The state of a signal is told, whoever arranged for it.
        """
        found = [disposition(SPARE)]
        set_handler(SPARE, address_of("alarm"))
        found += [disposition(SPARE)]
        set_handler(SPARE, 1)  # SIG_IGN
        found += [disposition(SPARE)]

        assert ["default", "caught", "ignored"] == found

    def test_once(self):
        """
        A handler can be meant for one signal only.
        """
        set_handler(SPARE, address_of("abs"), once=True)
        before = get_handler(SPARE)
        os.kill(os.getpid(), SPARE)

        assert [address_of("abs"), 0] == [before, get_handler(SPARE)]


class TestSigterm:
    def test_chained(self, handled):
        """
        The handler of the program runs, and the stacks are told.
        """
        caught = catch_sigterm()
        os.kill(os.getpid(), signal.SIGTERM)
        words = read_words(caught)
        die_of(caught)
        release(caught)
        close(caught)
        os.kill(os.getpid(), signal.SIGTERM)

        assert b"test_chained" in words
        assert not caught.is_final
        assert [signal.SIGTERM] * 2 == handled

    def test_final(self):
        """
        Without a handler the process has some seconds to dump; afterwards all
        is as before.
        """
        caught = catch_sigterm()
        during = get_handler(signal.SIGTERM)
        release(caught)
        close(caught)

        assert caught.is_final
        assert [caught.handler, 0] == [during, get_handler(signal.SIGTERM)]

    def test_later_handler(self, handled):
        """
        A handler that came after ours stays when ours goes.
        """
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        caught = catch_sigterm()
        signal.signal(signal.SIGTERM, lambda *_: handled.append("later"))
        release(caught)
        close(caught)
        os.kill(os.getpid(), signal.SIGTERM)

        assert ["later"] == handled

    @pytest.mark.parametrize(
        ("number", "state"),
        [(signal.SIGTERM, "ignored"), (signal.SIGALRM, "caught")],
    )
    def test_not_caught(self, monkeypatch, number, state):
        """
        What is ignored stays ignored, and nothing is caught that could not be
        ended in time.
        """
        monkeypatch.setattr(
            crash_signals,
            "disposition",
            lambda n: state if n == number else "default",
        )

        assert catch_sigterm() is None

    def test_for_another_process(self, monkeypatch):
        """
        Words that a forked child wrote are not taken for ours.
        """
        monkeypatch.setattr(crash_signals, "_SETTLE_S", 0.01)
        monkeypatch.setattr(signal, "getitimer", lambda _: (0.0, 0.0))
        caught = catch_sigterm()
        caught.writer.write(b"words of another")

        found = read_words(caught)
        release(caught)
        close(caught)

        assert b"" == found

    def test_for_us(self, monkeypatch):
        """
        The alarm that the handler sets shows that they are ours.
        """
        timers = iter([(0.0, 0.0), (14.9, 0.0)])
        monkeypatch.setattr(signal, "getitimer", lambda _: next(timers))
        caught = catch_sigterm()
        caught.writer.write(b"words")

        found = read_words(caught)
        release(caught)
        close(caught)

        assert b"words" == found

    @pytest.mark.parametrize("left", [0.0, 14.9])
    def test_child(self, monkeypatch, left):
        """
        A child that got the signal just after the fork gets it again.
        """
        sent = []
        monkeypatch.setattr(signal, "getitimer", lambda _: (left, 0.0))
        monkeypatch.setattr(crash_signals, "clear_alarm", lambda: None)
        monkeypatch.setattr(os, "kill", lambda *args: sent.append(args))
        caught = catch_sigterm()
        release(caught, in_child=True)
        close(caught)

        assert [(os.getpid(), signal.SIGTERM)] * (left > 0) == sent

    def test_full_pipe(self):
        """
        A handler never waits for a pipe that is full.
        """
        caught = catch_sigterm()
        while caught.writer.write(b"x" * 65536):
            pass

        assert caught.writer.write(b"x") is None
        release(caught)
        close(caught)


class TestSigabrt:
    def test_limits(self):
        """
        A stuck interpreter has a limit while the signal is caught, and no
        trace of it is left afterwards.
        """
        caught = catch_sigabrt()
        limit_abort(caught)
        during = [get_handler(signal.SIGABRT), get_handler(SPARE)]
        flags = fcntl.fcntl(caught.reader, fcntl.F_GETFL)
        release(caught)
        close(caught)

        assert [caught.handler, address_of("alarm")] == during
        assert flags & os.O_ASYNC
        assert [0, 0] == [get_handler(signal.SIGABRT), get_handler(SPARE)]
        assert not faulthandler.is_enabled()

    def test_no_limit_for_sigterm(self, handled):
        """
        SIGTERM has its own limit.
        """
        caught = catch_sigterm()
        limit_abort(caught)
        release(caught)
        close(caught)

        assert 0 == get_handler(SPARE)

    def test_child(self):
        """
        What a forked child puts back is not the parent's.
        """
        caught = catch_sigabrt()
        limit_abort(caught)
        release(caught, in_child=True)
        flags = fcntl.fcntl(caught.reader, fcntl.F_GETFL)
        release(caught)
        close(caught)

        assert flags & os.O_ASYNC

    def test_enabled_before(self):
        """
        Somebody else's faulthandler is left alone.
        """
        faulthandler.enable(file=sys.__stderr__)

        assert catch_sigabrt() is None

    def test_enabled_after(self):
        """
        Also one that came after ours.
        """
        caught = catch_sigabrt()
        file = FaultFile(sys.__stderr__.fileno())
        held = IsHeld(file)
        faulthandler.enable(file=file)
        del file
        release(caught)
        close(caught)

        assert faulthandler.is_enabled()
        assert held() is not None
        faulthandler.disable()
        set_handler(signal.SIGABRT, 0)

    @pytest.mark.parametrize("is_ours", [False, True])
    def test_whose(self, monkeypatch, is_ours):
        """
        It is for us if faulthandler has stepped back; if not, the alarm that
        the kernel made us set is cleared.
        """
        cleared = []
        monkeypatch.setattr(crash_signals, "_SETTLE_S", 0.01)
        monkeypatch.setattr(
            crash_signals, "clear_alarm", lambda: cleared.append(1)
        )
        caught = catch_sigabrt()
        caught.writer.write(b"words")
        if is_ours:
            handler = caught.handler + 1
            monkeypatch.setattr(
                crash_signals, "get_handler", lambda _: handler
            )

        found = read_words(caught)
        monkeypatch.undo()
        release(caught)
        close(caught)

        assert b"words" * is_ours == found
        assert [1] * (not is_ours) == cleared

    def test_die(self, monkeypatch):
        """
        In the end the signal is sent again, to its default action.
        """
        sent = []
        monkeypatch.setattr(os, "kill", lambda *args: sent.append(args))
        caught = catch_sigabrt()
        die_of(caught)
        handler = get_handler(signal.SIGABRT)
        release(caught)
        close(caught)

        assert [(os.getpid(), signal.SIGABRT)] == sent
        assert 0 == handler
