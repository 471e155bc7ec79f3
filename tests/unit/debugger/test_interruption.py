"""
How commands that take too long are ended, and that nothing is left of it.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
import threading
import time

from contextlib import suppress

import pytest

from distdebug.debugger import set_trace
from distdebug.debugger.inside import prompt
from distdebug.debugger.inside.interruption import (
    CommandEnded,
    InterruptibleCommand,
)


PATIENCE_S = 60


def spin(seconds=PATIENCE_S):
    """
    Run only code of Python.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.fixture
def command():
    """
    A command of this thread, which is ended soon.
    """
    guard = InterruptibleCommand()
    timer = threading.Timer(0.05, guard.end)
    timer.start()
    yield guard
    timer.join()


class TestEnds:
    """
    The main thread is in a command.
    """

    @pytest.mark.parametrize(
        "work",
        [
            spin,
            lambda: [None for _ in itertools.repeat(0) if _],
            lambda: time.sleep(PATIENCE_S),
            lambda: threading.Event().wait(PATIENCE_S),
        ],
        ids=["loop", "comprehension", "sleep", "lock"],
    )
    def test_ended(self, command, work):
        """
        A loop is ended, and a call that signals interrupt.
        """
        begin = time.monotonic()

        with pytest.raises(CommandEnded):
            command.run(work)

        assert time.monotonic() < begin + PATIENCE_S / 2
        assert signal.SIG_DFL is signal.getsignal(signal.SIGURG)

    def test_signal_is_used(self, command):
        """
        The signal is left alone if the program has a use of its own for it.
        """
        heard = []
        before = signal.signal(signal.SIGURG, lambda *_: heard.append(_))
        try:
            with pytest.raises(CommandEnded):
                command.run(lambda: time.sleep(0.5))
        finally:
            signal.signal(signal.SIGURG, before)

        assert [] == heard

    def test_signal_of_native_code(self, command, monkeypatch):
        """
        So is it with a handler that Python does not know, and without /proc.
        """
        seen = []
        for status in (b"SigCgt:\t0000000000400000\n", None):
            monkeypatch.setattr(
                "distdebug.debugger.inside.interruption.read_proc",
                lambda _, status=status: status,
            )
            with suppress(CommandEnded):
                command.run(
                    lambda: seen.append(signal.getsignal(signal.SIGURG))
                )

        assert [signal.SIG_DFL] * 2 == seen


def race(rounds):
    """
    Let commands end by themselves just when others end them; give how many
    were ended, and how often that hit the code behind.
    """
    guard, late = InterruptibleCommand(), 0
    go, stop = threading.Event(), threading.Event()
    chance = random.Random(1)

    def end_often():
        while not stop.is_set():
            if go.wait(0.1):
                guard.end()

    others = [threading.Thread(target=end_often) for _ in range(2)]
    for other in others:
        other.start()
    ended = 0
    for _ in range(rounds):
        try:
            go.set()
            try:
                guard.run(lambda: spin(chance.random() / 1000))
            except CommandEnded:
                ended += 1
            time.sleep(0)
            sum(n for n in range(100))
            time.sleep(0.0001)
        except CommandEnded:
            late += 1
    stop.set()
    for other in others:
        other.join()
    return ended, late


@pytest.mark.parametrize("is_main", [True, False], ids=["main", "other"])
def test_nothing_is_left(is_main, monkeypatch):
    """
    Whatever ends first, code of the program is never hit.
    """
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    interval, found = sys.getswitchinterval(), []
    sys.setswitchinterval(1e-5)
    try:
        if is_main:
            found.append(race(500))
        else:
            thread = threading.Thread(target=lambda: found.append(race(500)))
            thread.start()
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    ((ended, late),) = found
    assert 0 == late
    assert ended > 0
    assert [] == unraisable


def test_traced_threads():
    """
    While native code delays the end, threads with a tracer go on.
    """
    guard, event, count = InterruptibleCommand(), threading.Event(), [0]
    found = []

    def wait():
        try:
            guard.run(lambda: event.wait(PATIENCE_S))
        except CommandEnded as exc:
            found.append(exc)

    def step():
        count[0] += 1

    def run_traced():
        sys.settrace(lambda *_: None)
        while not event.is_set():
            step()

    threads = [threading.Thread(target=x) for x in (wait, run_traced)]
    for thread in threads:
        thread.start()
    while not (count[0] and guard.end()):
        time.sleep(0.001)
    before = count[0]
    end = time.monotonic() + PATIENCE_S
    while count[0] < before + 1000 and time.monotonic() < end:
        time.sleep(0.001)
    is_alive = threads[0].is_alive()
    event.set()
    for thread in threads:
        thread.join()

    assert count[0] >= before + 1000
    assert is_alive
    assert 1 == len(found)


class TestLimit:
    """
    The limit of a pause holds for what is typed, too.
    """

    @pytest.fixture
    def says(self, hold):
        """
        Runs one line in a pause that is short, and waits for its end.
        """

        def say(line, **names):
            def work():
                numbers = itertools.repeat(0)
                set_trace(limit=0.5)
                return next(numbers), names

            held = hold(work)
            held.session().send(line, wait_s=0)
            return held

        return say

    @pytest.mark.parametrize(
        "line",
        ["while 1: pass", "[n for n in numbers if n]", "debug while 1: pass"],
    )
    def test_endless(self, says, line):
        """
        A statement that would never end does not hold the rank.
        """
        held = says(line)

        assert 0 == held.end()[0]
        assert held.error is None

    def test_repeated(self, says, monkeypatch):
        """
        What catches the exception is ended by the next one.
        """
        monkeypatch.setattr(prompt, "_RETRY_S", 0.05)

        def stubborn():
            for _ in range(2):
                with suppress(BaseException):
                    spin()

        held = says("names['stubborn']()", stubborn=stubborn)

        assert 0 == held.end()[0]

    def test_native(self, says, monkeypatch, caplog):
        """
        Native code is waited for, which is logged and told; an exception is
        not raised later.
        """
        monkeypatch.setattr(prompt, "_RETRY_S", 0.05)
        event = threading.Event()
        held = says("names['event'].wait(60)", event=event)
        end = time.monotonic() + PATIENCE_S
        while "cannot be ended" not in caplog.text:
            assert time.monotonic() < end
            time.sleep(0.001)

        told = held.client.attach(number=1).last()
        event.set()

        assert "its command still runs" in told.text
        assert 0 == held.end()[0]
        assert held.error is None
