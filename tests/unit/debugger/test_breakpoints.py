"""
What happens in a rank that is stopped.
"""

from __future__ import annotations

import asyncio
import bdb
import ctypes
import functools
import gc
import linecache
import logging
import os
import signal
import sys
import threading
import time
import weakref

from contextlib import suppress
from types import SimpleNamespace

import pytest

from distdebug.debugger import (
    arm,
    connect,
    disarm,
    post_mortem,
    scope,
    set_trace,
)
from distdebug.debugger.inside import settings, stops
from distdebug.errors import DebuggerError, RankSyntaxError


PATIENCE_S = 60


@pytest.fixture
def folder(monkeypatch, folder):
    """
    A folder for sockets, in which this process listens.
    """
    monkeypatch.setenv("RANK", "0")
    arm()
    return folder


def add(x):
    """
    Stop between two lines.
    """
    y = x + 1
    set_trace()
    y += 1
    return y * 2


def outer():
    """
    Call what stops.
    """
    found = add(3)
    return found + 1


class TestPrompt:
    def test_steps(self, hold):
        """
        A thread goes through its lines, out of the function, and on.
        """
        held = hold(outer)
        before = held.session().last().text

        said = held.says("p y", "n", "n", "p y", "r", "n", "up", "p found")

        assert "set_trace()" in before
        assert ["4", "5"] == [said[0], said[3]]
        assert "y += 1" in said[1]
        assert "return y * 2" in said[2]
        assert "--Return--" in said[4]
        assert "return found + 1" in said[5]
        assert "ended" == held.session().send("c").state
        assert 11 == held.end()

    def test_traces_are_put_back(self, hold):
        """
        A tracer of the thread traces again afterwards, single frames, too.
        """
        lines = []

        def tracer(frame, event, arg):
            lines.append(event)
            return tracer

        def traced():
            sys.settrace(tracer)
            sys._getframe().f_trace = tracer
            found = outer()
            lines.clear()
            kept = sys.gettrace(), sys._getframe().f_trace
            sys.settrace(None)
            return found, kept == (tracer, tracer), "line" in lines

        held = hold(traced)
        held.says("n", "c")

        assert (11, True, True) == held.end()

    def test_busy_tracing(self, hold, monkeypatch):
        """
        While another thread installs a tracer, Python 3.11 refuses a second.
        """
        calls, install = [], sys.settrace

        def refuse_twice(tracer):
            calls.append(tracer)
            if len(calls) % 3:
                raise RuntimeError
            install(tracer)

        monkeypatch.setattr(sys, "settrace", refuse_twice)
        held = hold(outer)

        assert ["4"] == held.says("n", "p y")[1:]
        held.says("c")
        assert 11 == held.end()

    def test_changed(self, hold):
        """
        Statements change variables of the rank.
        """
        held = hold(outer)

        said = held.says("!y = 100", "print('shown')", "y", "n", "c")

        assert ["", "shown", "100"] == said[:3]
        assert 203 == held.end()

    def test_breakpoints(self, hold):
        """
        A breakpoint of the client is a new stop, until it is cleared.
        """

        def loop():
            total = 0
            set_trace()
            for n in range(3):
                total += n
            return total

        line = loop.__code__.co_firstlineno + 4
        held = hold(loop)
        first = held.session()

        assert "Breakpoint" in first.send(f"b {line}").text
        assert "ended" == first.send("c").state

        second = held.session()

        assert second.session.number > first.session.number
        assert f"({line})" in second.last().text
        assert "is not stopped any more" in first.send("p 1").text
        assert "Deleted" in second.send(f"clear {__file__}:{line}").text
        assert "ended" == second.send("c").state
        assert 3 == held.end()

    @pytest.mark.parametrize("line", ["q", "abort"])
    def test_quit(self, hold, line):
        """
        The command quit lets the rank go on, without breakpoints; abort ends
        it by an exception.
        """
        held = hold(outer)
        session = held.session()
        session.send(f"b {outer.__code__.co_firstlineno + 5}")

        assert "ended" == session.send(line).state

        assert held.end() == (11 if line == "q" else None)
        assert isinstance(held.error, bdb.BdbQuit) == (line == "abort")

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("interact", "there is no terminal"),
            ("run", "cannot be started again"),
            ("restart x", "cannot be started again"),
            ("help pdb", "docs.python.org"),
            ("help abort", "End the program"),
            ("clear", "all breakpoints are cleared"),
            ("clear 99999", "99999"),
            ("p unknown", "NameError"),
            ("p Bad()", "ValueError: no repr"),
            ("pp [y] * 2", "[4, 4]"),
            ("p sys.exit()", "SystemExit"),
            ("p set_trace()", "None"),
            ("raise KeyError", "KeyError"),
        ],
    )
    def test_replaced(self, hold, line, said):
        """
        What would touch a terminal or end the job does not.
        """
        held = hold(outer)

        assert said in held.says(line)[0]
        held.says("c")
        assert 11 == held.end()

    def test_collected(self, hold, monkeypatch):
        """
        What runs when something is collected at this moment is no stop.
        """
        original = bdb.Bdb.set_trace

        def finalize():
            return "no line of the user"

        def collect(*args):
            original(*args)
            finalize()

        monkeypatch.setattr(bdb.Bdb, "set_trace", collect)
        held = hold(outer)

        assert "4" == held.says("p y", "c")[0].strip()
        assert 11 == held.end()

    def test_end_of_user_code(self, hold):
        """
        Stepping past the outermost line of the user holds no other code.
        """
        held = hold(functools.partial(outer))
        session = held.session()

        for _ in range(30):
            output = session.send("s")
            if output.state == "ended" or output.is_error:
                break

        assert 11 == held.end(is_traced=True)

    def test_stops_while_stepping(self, hold):
        """
        A breakpoint in the code that is stepped over is the same stop.
        """

        def twice():
            set_trace()
            add(1)

        held = hold(twice)
        session = held.session()

        said = session.send("n").text, session.send("n").text

        assert "add(1)" in said[0]
        assert "set_trace()" in said[1]
        session.send("c")
        held.end()

    def test_extended(self, hold):
        """
        A pause can be made longer.
        """

        def patient():
            set_trace(limit=30)

        held = hold(patient)
        held.session()
        answers = held.client.extend(5000)
        ((_, session),) = held.client.list().sessions

        assert "up to 5000 s" in answers.outputs[0].text
        assert session.left_s > 4000
        held.says("c")

    def test_much_output(self, hold):
        """
        Only so much output is kept.
        """
        held = hold(outer)

        (text,) = held.says("for n in range(3): print('x' * 50000)")

        assert 60_000 <= len(text) <= 60_010
        held.says("c")


class TestLettingGo:
    """
    A thread that is let go goes on, whatever the debugger is doing with it.
    """

    @pytest.fixture
    def busy(self, hold):
        """
        Makes a thread busy with the last of these lines; gives what steers it,
        and what lets it end.
        """
        event = threading.Event()

        def work():
            set_trace()
            event.wait(PATIENCE_S)
            return "went on"

        def begin(*lines):
            held = hold(work)
            session = held.session()
            *first, last = lines
            for line in first:
                session.send(line.format(work.__code__.co_firstlineno + 3))
            session.send(last, wait_s=0.05)
            return held, session, event

        yield begin
        event.set()

    @pytest.mark.parametrize(
        ("lines", "by"),
        [
            (("n", "n"), "resume"),
            (("n", "n"), "detach"),
            (("event.wait(30)",), "resume"),
            (("b {}", "c"), "resume"),
        ],
        ids=["step", "detached", "expression", "breakpoint"],
    )
    def test_resumed(self, busy, lines, by):
        """
        A step, an expression, or running to a breakpoint is turned into going
        on, without a stop at the end of it.
        """
        held, session, event = busy(*lines)

        if by == "resume":
            (answer,) = held.client.resume().outputs
        else:
            answer = session.send("detach", wait_s=0.05)
        event.set()

        if "c" not in lines:
            assert ("running", False) == (answer.state, answer.is_error)
            assert "is still running" in answer.text
        assert "went on" == held.end()

    def test_two_clients(self, busy):
        """
        Of two who command one thread, the second is refused, not queued.
        """
        held, session, event = busy("n", "n")

        refused = session.send("p 'late'")
        event.set()
        held.session()

        assert refused.is_error
        assert "late" not in session.last().text
        session.send("c")
        assert "went on" == held.end()

    def test_stopped_again(self, hold):
        """
        A breakpoint of the program behind that is a new stop.
        """
        event = threading.Event()

        def work():
            set_trace()
            event.wait(PATIENCE_S)
            set_trace()
            return "went on"

        held = hold(work)
        session = held.session()
        session.send("n")
        session.send("n", wait_s=0.01)
        held.client.resume()
        event.set()

        again = held.session()
        assert again.session.number > session.session.number
        again.send("c")
        assert "went on" == held.end()

    @pytest.mark.parametrize("is_told", [True, False], ids=["told", "limit"])
    @pytest.mark.parametrize(
        "nested", ["commands 1", "debug 1 + 1", "for _ in y:"]
    )
    def test_nested(self, hold, nested, is_told):
        """
        A thread in the middle of a dialogue with the debugger goes on as well,
        by a resume, or when the limit of the pause is over.
        """

        def work():
            set_trace(limit=60 if is_told else 0.2)
            return "went on"

        held = hold(work)
        session = held.session()
        session.send(f"b {work.__code__.co_firstlineno + 2}")
        session.send(nested)
        if is_told:
            assert "ended" == held.client.resume().outputs[0].state

        assert "went on" == held.end()


class TestManyThreads:
    def test_breakpoints_of_others(self, hold):
        """
        Threads have breakpoints of their own, also at the same line.
        """
        gate = threading.Event()

        def work():
            set_trace()
            gate.wait(PATIENCE_S)
            return "went on"

        first, second = hold(work), hold(work)
        first.session(count=2)
        one, two = (first.client.attach(number=number) for number in (1, 2))
        line = work.__code__.co_firstlineno + 3
        for session in (one, two):
            session.send(f"b {line}")
        one.send("q")
        # The number of the other one changes when this one is gone.
        while len(first.client.list().sessions) > 1:
            time.sleep(0.005)
        two.send("c")
        gate.set()
        stopped = first.session()

        assert f"({line})" in stopped.last().text
        stopped.send("c")
        assert ["went on"] * 2 == [
            one.end(is_traced=True) for one in (first, second)
        ]


class TestNeverInTheWay:
    def test_nothing_is_kept(self, hold):
        """
        What the program is done with is freed, though it was stepped through.
        """

        class Large:
            """
            What takes much memory.
            """

        def use():
            large = Large()
            found.append(weakref.ref(large))
            set_trace()
            return 1

        found = []

        def work():
            use()
            gc.collect()
            return found[0]()

        held = hold(work)
        held.says("n", "n", "n", "c")

        assert held.end() is None

    def test_failure(self, hold, monkeypatch, caplog):
        """
        A mistake of the debugger lets the program go on.
        """
        monkeypatch.setattr("pdb.Pdb.setup", lambda *_: 1 / 0)
        held = hold(outer)

        assert 11 == held.end()
        assert "the debugger failed" in caplog.text

    def test_failure_while_tracing(self, hold, monkeypatch, caplog):
        """
        So does one while it looks at what runs.
        """
        held = hold(outer)
        held.session()
        monkeypatch.setattr(bdb.Bdb, "dispatch_line", lambda *_: 1 / 0)

        assert "ended" == held.session().send("n").state
        assert 11 == held.end()
        assert "the debugger failed" in caplog.text

    def test_commands_of_breakpoints(self, hold):
        """
        The commands of a breakpoint are obeyed when it is hit, and it stops.
        """

        def work():
            total = 1
            set_trace()
            total += 1
            return total

        held = hold(work)
        line = work.__code__.co_firstlineno + 4
        session = held.session()
        number = session.send(f"b {line}").text.split()[1]
        said = [
            session.send(text).text
            for text in (f"commands {number}", "p total * 100", "end", "c")
        ]
        again = held.session()

        assert "(com)" in said[0]
        assert "200" in again.last().text
        again.send("c")
        assert 2 == held.end(is_traced=True)

    def test_pdb_of_the_program(self, hold):
        """
        A debugger of the program's own is not taken for ours.
        """
        import pdb  # noqa: T100 it is only looked at

        held = hold(outer)
        held.says("n", "c")

        last = getattr(pdb.Pdb, "_last_pdb_instance", None)
        assert "distdebug" not in repr(last)
        held.end()


def fail():
    """
    Stop where it fails.
    """
    with suppress(ValueError), post_mortem():
        raise ValueError


class TestLimits:
    """
    Every kind of stop has an end.
    """

    @pytest.fixture(autouse=True)
    def impatient(self, folder, monkeypatch):
        """
        A limit that is over soon.
        """
        monkeypatch.setenv("DISTDEBUG_LIMIT", "0.3")

    @pytest.mark.parametrize(
        ("function", "lines"),
        [
            (outer, []),
            (outer, ["n"]),
            (outer, [f"b {outer.__code__.co_firstlineno + 5}", "c"]),
            (fail, []),
        ],
        ids=["breakpoint", "step", "breakpoint of a client", "post mortem"],
    )
    def test_thread(self, hold, caplog, function, lines):
        """
        A thread goes on, whatever it was stopped by.
        """
        held = hold(function)
        for line in lines:
            held.session().send(line)

        held.end()

        assert held.error is None
        assert "no command for" in caplog.text

    def test_interrupt(self, outside, caplog):
        """
        So does a main thread that was interrupted.
        """
        thread, _ = outside(lambda c: c.interrupt(wait_s=0.0))
        end = time.monotonic() + PATIENCE_S
        while "no command for" not in caplog.text:
            assert time.monotonic() < end
            time.sleep(0.001)
        thread.join()

        assert "Prompt" not in repr(sys.gettrace())


class TestSetTrace:
    @pytest.fixture
    def halted(self, folder, monkeypatch, caplog):
        """
        The lines at which it would have stopped, if it listened.
        """
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("DISTDEBUG_MESH", "dp=2,tp=2")
        disarm()
        return lambda: [
            text for text in caplog.messages if "passed a breakpoint" in text
        ]

    @pytest.mark.parametrize(
        ("ranks", "count"),
        [
            (None, 1),
            ("ranks(3)", 1),
            ("ranks(0:3)", 0),
            ("ranks(tp=1)", 1),
            ("ranks(dp=0)", 0),
            ("ranks(pp=0)", 0),
            (3, 1),
            (0, 0),
            ([1, 3], 1),
            ([], 0),
        ],
    )
    def test_ranks(self, halted, ranks, count):
        """
        Only the ranks that are meant stop.
        """
        set_trace(ranks=ranks)

        assert count == len(halted())

    def test_no_selection(self, halted):
        """
        A selection that cannot be read is an error of the program.
        """
        with pytest.raises(RankSyntaxError):
            set_trace(ranks="all")

    def test_cond(self, halted, monkeypatch):
        """
        It stops only if the condition is true; where it is switched off, not
        even the condition is asked.
        """
        for cond in (0, lambda: False, 1, lambda: True):
            set_trace(cond=cond)
        monkeypatch.setenv("DISTDEBUG", "0")
        set_trace(cond=lambda: 1 / 0)

        assert 2 == len(halted())

    def test_skip(self, halted):
        """
        Each line is counted by itself.
        """
        for _ in range(4):
            set_trace(skip=2)
            set_trace(skip=3)

        found = halted()
        assert [2, 1] == [found.count(line) for line in sorted({*found})]

    def test_once(self, halted):
        """
        A line stops once at most, after those that are skipped.
        """
        for _ in range(4):
            set_trace(once=True)
            set_trace(once=True, skip=1)

        found = halted()
        assert 2 == len(found) == len({*found})

    def test_header(self, hold):
        """
        The client shows what the program says at a stop.
        """
        held = hold(lambda: set_trace(header="look at the loss"))

        assert "look at the loss\n" in held.session().last().text
        held.says("c")


class TestUnarmed:
    @pytest.fixture(autouse=True)
    def unarmed(self, folder):
        """
        This process does not listen.
        """
        disarm()

    @pytest.mark.parametrize(
        ("is_tty", "world", "count"),
        [(True, "1", 1), (True, "4", 0), (False, "1", 0), (None, "1", 0)],
        ids=["alone", "one of four", "nobody", "closed"],
    )
    def test_terminal(self, monkeypatch, is_tty, world, count):
        """
        A person in front of a lonely process gets an ordinary prompt; ranks do
        not share a terminal.
        """
        frames = []
        stream = SimpleNamespace(isatty=lambda: is_tty)
        monkeypatch.setattr(sys, "stdin", None if is_tty is None else stream)
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("WORLD_SIZE", world)
        monkeypatch.setattr(
            "pdb.Pdb.set_trace", lambda _, frame: frames.append(frame)
        )

        set_trace()

        assert [sys._getframe()] * count == frames

    def test_not_examined(self, caplog):
        """
        An exception that no client could look at is logged, and goes on.
        """
        with pytest.raises(ValueError, match="bad"), post_mortem():
            int("bad")

        assert "not examined: ValueError: invalid literal" in caplog.text

    def test_wanted(self, monkeypatch, caplog):
        """
        A variable arms at the first breakpoint.
        """
        monkeypatch.setenv("DISTDEBUG", "1")

        set_trace(limit=0.01)

        assert "rank 0 stopped (breakpoint) at " in caplog.text


class TestPostMortem:
    def test_block(self, hold):
        """
        What leaves a block can be looked at, and goes on then.
        """

        def fail():
            with post_mortem():
                secret = 42
                raise ValueError(secret)

        held = hold(fail)
        session = held.session()

        assert "ValueError: 42" in session.last().text
        assert "post mortem" == session.session.reason
        assert "42" == session.send("p secret").text
        assert "nothing runs here" in session.send("step").text
        assert "ended" == session.send("c").state
        held.end()
        assert isinstance(held.error, ValueError)

    @pytest.mark.parametrize("is_coroutine", [True, False])
    def test_function(self, hold, is_coroutine):
        """
        What leaves a function, or a coroutine function, is looked at once,
        however many look.
        """

        @post_mortem()
        @post_mortem()
        def fail():
            return 1 / 0

        @post_mortem()
        async def fail_later():
            await asyncio.sleep(0)
            return 1 / 0

        held = hold(
            lambda: asyncio.run(fail_later()) if is_coroutine else fail()
        )

        assert "1 / 0" in held.session().last().text
        assert "ended" == held.session().send("c").state
        held.end()
        assert isinstance(held.error, ZeroDivisionError)

    def test_after_a_breakpoint(self, hold):
        """
        A thread that was stepped into an exception stops for it again.
        """

        @post_mortem()
        def fail():
            set_trace()
            return 1 / 0

        held = hold(fail)
        held.says("b 1", "c")

        assert "ZeroDivisionError" in held.session().last().text
        held.says("c")
        held.end()

    @pytest.mark.parametrize(
        "error",
        [
            SystemExit(1),
            KeyboardInterrupt(),
            bdb.BdbQuit(),
            ValueError(),
            None,
        ],
        ids=["exit", "Ctrl-C", "abort", "never raised", "none"],
    )
    def test_not_looked_at(self, folder, caplog, error):
        """
        A wish to end is no mistake, and what was never raised has no place.
        """
        post_mortem(limit=0.1).__exit__(type(error), error, None)

        assert "stopped" not in caplog.text

    def test_hook(self, folder, monkeypatch):
        """
        As an excepthook, it calls the one that was there.
        """
        seen = []
        monkeypatch.setattr(sys, "excepthook", lambda *args: seen.append(args))

        post_mortem()(SystemExit, SystemExit(3), None)

        assert [SystemExit] == [args[0] for args in seen]

    @pytest.mark.process
    def test_hooks(self, start):
        """
        All exceptions of programs and threads are looked at, once asked for,
        and by those who looked at them before.
        """
        process = start(
            "import sys, threading, distdebug",
            "sys.excepthook = lambda *args: print('program', args[1])",
            "threading.excepthook = lambda args: print('thread', args[1])",
            "distdebug.arm(post_mortem=True)",
            "distdebug.arm(post_mortem=True)",
            "def fail(error):",
            "    raise error",
            "for error in KeyError('b'), SystemExit('c'):",
            "    thread = threading.Thread(target=fail, args=(error,))",
            "    thread.start()",
            "    thread.join()",
            "fail(ValueError('a'))",
            DISTDEBUG_LIMIT="0.1",
        )

        output, errors = process.communicate(timeout=60)

        assert "thread 'b'\nthread c\nprogram a\n" == output
        assert 2 == errors.count("stopped (post mortem)")


class TestScope:
    def test_ends(self, hold):
        """
        No thread is held or traced behind the end of a scope.
        """
        traces = []
        with scope():
            pass  # nobody stops, which costs nothing

        @scope("endpoint")
        def endpoint():
            set_trace()
            return 5

        def framework():
            found = endpoint()
            traces.append(sys.gettrace())
            return found

        held = hold(framework)
        session = held.session()
        for _ in range(9):
            output = session.send("n")
            if output.is_error or output.state == "ended":
                break

        assert 5 == held.end()
        assert "Prompt" not in repr(traces)


@pytest.fixture
def outside(folder):
    """
    Does something with a client in another thread; what it gave is kept.
    """

    def begin(*steps):
        got = []

        def work():
            with connect(folder) as client:
                got.extend(step(client) for step in steps)

        thread = threading.Thread(target=work)
        thread.start()
        return thread, got

    return begin


def until_main(is_there):
    """
    A step that waits until the main thread runs code of which that is true.
    """

    def step(_):
        main = threading.main_thread().ident
        while not is_there(sys._current_frames()[main].f_code):
            time.sleep(0.001)
        time.sleep(0.02)  # until it is in the native code that it calls

    return step


def wait_for_stop(client):
    """
    The only thread that is stopped, as soon as it is.
    """
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        for _, session in client.list().sessions:
            if session.state == "stopped":
                return client.attach(number=1)
        time.sleep(0.005)
    pytest.fail("it does not stop")


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGUSR1, TimeoutError)],
    ids=["Ctrl-C", "handler"],
)
def test_signal(outside, number, error):
    """
    Ctrl-C where the job was started ends it, though it is held; so does what
    a handler of signals raises.
    """

    def handle(*_):
        raise error

    usual = signal.signal(number, handle)
    main_thread = threading.main_thread().ident
    thread, got = outside(
        wait_for_stop,
        lambda _: signal.pthread_kill(main_thread, number),
        lambda _: ended.wait(PATIENCE_S),
        lambda client: client.list(),
    )
    ended = threading.Event()

    with pytest.raises(error):
        set_trace()
    ended.set()
    thread.join(PATIENCE_S)
    signal.signal(number, usual)

    assert () == tuple(got[3].sessions)
    assert "Prompt" not in repr(sys.gettrace())


class TestInterrupt:
    def test_running(self, outside):
        """
        The main thread stops at its next line, and goes on.
        """
        thread, got = outside(
            lambda c: c.interrupt("ranks(0)", wait_s=PATIENCE_S),
            lambda c: c.interrupt("ranks(0)"),
            lambda c: c.cast("ranks(0)", "where"),
            lambda c: c.resume(),
        )
        while thread.is_alive():
            time.sleep(0.001)
        thread.join()

        assert "stopped" == got[0].outputs[0].state
        assert "already" in got[1].outputs[0].text
        assert "test_running" in got[2].outputs[0].text
        assert ["ended"] == [o.state for o in got[3].outputs]

    def test_blocked(self, outside):
        """
        A thread in native code is left alone, and the client learns that.
        """
        lock = threading.Lock()
        lock.acquire()

        def block():
            lock.acquire(timeout=PATIENCE_S)

        thread, got = outside(
            until_main(lambda code: code is block.__code__),
            lambda c: c.interrupt("ranks(0)", wait_s=0.05),
            lambda c: c.resume("ranks(0)"),
            lambda _: lock.release(),
        )
        block()
        thread.join(PATIENCE_S)

        assert "blocked in native code" in got[1].outputs[0].text
        assert "test_blocked" in got[1].outputs[0].text
        assert "will not be stopped" in got[2].outputs[0].text

    def test_twice(self, outside):
        """
        Two requests to interrupt make one stop.
        """
        event = threading.Event()
        thread, got = outside(
            lambda c: c.interrupt("ranks(:)", wait_s=0.05),
            lambda c: c.interrupt("ranks(:)", wait_s=0.05),
            lambda _: event.set(),
            wait_for_stop,
            lambda c: c.resume(),
            lambda c: c.resume(),
        )

        event.wait(PATIENCE_S)
        thread.join(PATIENCE_S)

        assert ["ended"] == [o.state for o in got[4].outputs]
        assert "not about to be" in got[5].outputs[0].text

    def test_in_a_step(self, outside):
        """
        A step that does not end becomes one that ends at the next line.
        """
        event = threading.Event()
        thread, got = outside(
            lambda c: wait_for_stop(c).send("n").state,
            lambda c: wait_for_stop(c).send("n", wait_s=0.1).state,
            lambda c: c.interrupt("ranks(:)", wait_s=0.05),
            lambda _: event.set(),
            lambda c: wait_for_stop(c).send("where").text,
            lambda c: c.resume(),
        )

        set_trace()
        event.wait(PATIENCE_S)
        thread.join(PATIENCE_S)

        assert ["stopped", "running"] == got[:2]
        assert "blocked in native code" in got[2].outputs[0].text
        assert "test_in_a_step" in got[4]

    def test_while_it_computes(self, outside, monkeypatch):
        """
        A thread that obeys a command is not interrupted by another: a pending
        call would lose the exception that ends the command.
        """
        calls = []
        monkeypatch.setattr(
            ctypes.pythonapi,
            "Py_AddPendingCall",
            lambda *_: calls.append("pending") or 0,
        )
        event = threading.Event()
        thread, got = outside(
            lambda c: (
                wait_for_stop(c).send("p event.wait(30)", wait_s=0.05).state
            ),
            lambda c: c.interrupt("ranks(:)", wait_s=0.05),
            lambda _: event.set(),
            lambda c: c.resume(),
        )

        set_trace()
        thread.join(PATIENCE_S)

        assert "running" == got[0]
        assert "obeys a command" in got[1].outputs[0].text
        assert [] == calls

    def test_in_a_framework(self, outside):
        """
        A thread that runs what is not the user's is said to do so.
        """
        names = {"__name__": "asyncio.loop", "time": time, "done": []}
        code = "while not done:\n    time.sleep(0.001)"
        thread, got = outside(
            until_main(lambda code: code.co_filename.startswith("/x/")),
            lambda c: c.interrupt("ranks(:)", wait_s=0.2),
            lambda c: c.resume(),
            lambda _: names["done"].append(1),
        )

        exec(compile(code, "/x/site-packages/asyncio/loop.py", "exec"), names)
        thread.join(PATIENCE_S)

        assert "runs code of a framework" in got[1].outputs[0].text
        assert "ended" == got[2].outputs[0].state

    def test_no_main_thread(self, outside, monkeypatch):
        """
        Where the main thread has ended, its place is unknown.
        """

        def interrupt(client):
            with monkeypatch.context() as patch:
                patch.setattr(sys, "_current_frames", dict)
                return client.interrupt(wait_s=0.0)

        thread, got = outside(interrupt, lambda c: c.resume())
        thread.join(PATIENCE_S)

        assert "called at ?:0 in ?" in str(got[0])


class TestLabels:
    @pytest.fixture
    def described(self, folder, raw):
        """
        What this process says of itself.
        """
        return lambda: raw.asked(arm(), op="list")["process"]

    def test_given(self, described):
        """
        Labels of the program come before those of the launcher.
        """
        arm(
            labels={"group": "actor-1", "rank": 5, "world_size": 8},
            mesh={"dp": 4, "tp": 2},
        )

        found = described()
        arm(labels={"coords": {"data": 9}})

        assert ("actor-1", 5, 8) == (
            found["group"],
            found["rank"],
            found["world_size"],
        )
        assert {"dp": 2, "tp": 1} == found["coords"]
        assert {"data": 9} == described()["coords"]

    def test_nobody_tells(self, folder, monkeypatch):
        """
        Without a launcher the rank is unknown, shown so, and meant by all.
        """
        monkeypatch.delenv("RANK")
        monkeypatch.setenv("DISTDEBUG_MESH", "dp=2")

        with connect(folder) as client:
            everybody = client.eval("ranks(:)", "1 + 1")
            with pytest.raises(DebuggerError, match="selects no rank"):
                client.eval("ranks(0:5)", "1 + 1")
            listing = client.list()

        assert "[-] 2" == str(everybody)
        assert [None] == [p.rank for p in listing]
        assert "  -  " in str(listing)
        assert {} == listing.processes[0].coords

    @pytest.mark.parametrize(
        ("mesh", "coords"),
        [
            ("dp=2, tp=2", {"dp": 1, "tp": 1}),
            ("dp=3", {}),
            ("dp=0,tp=4", {}),
            ("dp", {}),
            ("2=2", {}),
            ("", {}),
        ],
        ids=["fits", "too small", "empty", "no size", "no name", "none"],
    )
    def test_environment(self, described, monkeypatch, mesh, coords):
        """
        A mesh of the environment is taken if it makes sense.
        """
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("DISTDEBUG_MESH", mesh)
        monkeypatch.setenv("DISTDEBUG_GROUP", "not a group")

        found = described()

        assert coords == found["coords"]
        assert "job" == found["group"]

    @pytest.mark.parametrize(
        ("given", "mesh"),
        [
            ({"colour": 1}, None),
            ({"group": "a b"}, None),
            ({"coords": {"d p": 1}}, None),
            (None, {"1": 2}),
        ],
        ids=["unknown", "group", "coords", "mesh"],
    )
    def test_refused(self, folder, given, mesh):
        """
        A label that could not be addressed is an error of the program.
        """
        with pytest.raises(ValueError, match=r"unknown|written"):
            arm(labels=given, mesh=mesh)

    def test_no_proc(self, described, monkeypatch):
        """
        Without /proc, the start of the process is unknown.
        """
        monkeypatch.setattr(settings, "read_proc", lambda _path: None)

        found = described()

        assert (os.getpid(), 0) == (found["pid"], found["start"])


@pytest.mark.parametrize(
    ("wanted", "variable", "seconds"),
    [
        (5, "9", 5),
        (None, "9", 9),
        (None, None, 1800),
        (-1, "inf", 1800),
        (None, "soon", 1800),
        (None, "2s", 1800),
        ("x", "0", None),
        (0, "9", None),
        (None, "1e308", 366 * 86400),
    ],
)
def test_limit(hold, monkeypatch, wanted, variable, seconds):
    """
    There is always a limit, and with a limit of 0 no thread stops.
    """
    if variable is not None:
        monkeypatch.setenv("DISTDEBUG_LIMIT", variable)

    held = hold(lambda: set_trace(limit=wanted))

    if seconds is not None:
        assert seconds - 3 < held.session().session.left_s <= seconds
        held.says("c")
    held.end()


class Tensor:
    """
    As much of a tensor as is looked at; to show it would wait.
    """

    def __init__(self, device):
        self.device = SimpleNamespace(type=device)
        self.shape = (2, 3)
        self.dtype = "float32"

    def __repr__(self):
        if self.device.type == "cuda":
            msg = "this waits for the device"
            raise RuntimeError(msg)
        return "tensor(1.)"


class Pair(tuple):
    """
    A tuple that shows itself in its own way.
    """

    __slots__ = ()

    def __repr__(self):
        return f"Pair of {self[0]!r}"


class TestValues:
    @pytest.fixture
    def cuda(self, monkeypatch):
        """
        A torch that has used a device.
        """
        torch = SimpleNamespace(
            Tensor=Tensor, cuda=SimpleNamespace(is_initialized=lambda: True)
        )
        monkeypatch.setitem(sys.modules, "torch", torch)

    @pytest.mark.parametrize("wrap", [list, tuple, dict.fromkeys, Pair])
    def test_described(self, cuda, hold, wrap):
        """
        A tensor of a device is described, wherever it is, and not read.
        """

        def work():
            value = wrap([Tensor("cuda")])
            set_trace()
            return value

        for found in hold(work).says("p value", "pp value", "c")[:2]:
            assert "<Tensor on " in found
            assert "shape (2, 3), float32, not copied" in found

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            ([Tensor("cpu"), 3], "[tensor(1.), 3]"),
            ({"b": 1, "a": SimpleNamespace(a=1)}, "{'b': 1, 'a': namespace("),
            (Tensor("cuda"), "*** RuntimeError: this waits for the device"),
            ("x" * 60_000, f"'{'x' * 1000}"),
        ],
        ids=["host", "plain", "device", "long"],
    )
    def test_copied(self, cuda, folder, value, shown):
        """
        What is on the host is shown as it is, what is on a device if that is
        asked for, and nothing at any length.
        """
        with connect(folder) as client:
            (output,) = client.eval(None, "value", copy=True).outputs

        assert output.display_text.startswith(shown)
        assert len(output.text) < 60_000


class Bad:
    """
    What cannot be shown.
    """

    def __repr__(self):
        msg = "no repr"
        raise ValueError(msg)


class TestForgotten:
    """
    What no client answers, or was not meant to be held.
    """

    def test_passed_until_somebody_asks(self, folder, caplog):
        """
        A line that held without a request is passed until there is one.
        """

        def turn():
            begin = time.monotonic()
            set_trace(limit=0.2)
            return time.monotonic() - begin > 0.15

        held = [turn(), turn(), turn()]
        with connect(folder) as client:
            client.list()
        held.append(turn())

        assert [True, False, False, True] == held
        assert (
            "does not stop at this line until it is asked again" in caplog.text
        )
        assert "rank 0 stopped (breakpoint) at " in caplog.text

    def test_no_limit(self, folder, monkeypatch, caplog):
        """
        With a limit of 0 nothing is held.
        """
        monkeypatch.setenv("DISTDEBUG_LIMIT", "0")

        set_trace()
        with pytest.raises(KeyError), post_mortem():
            raise KeyError

        assert "the limit is 0" in caplog.text
        assert "stopped" not in caplog.text

    def test_in_a_handler_of_logs(self, folder, monkeypatch):
        """
        A breakpoint in code that logs is not held for what we log.
        """
        turns = []

        class Handler(logging.Handler):
            def emit(self, _):
                turns.append(1)
                set_trace(limit=0.01)

        handler = Handler()
        logger = logging.getLogger("distdebug")
        logger.addHandler(handler)

        set_trace(limit=0.01)
        logger.removeHandler(handler)

        assert 2 == len(turns)


class TestStop:
    """
    What waits in a rank, where the tracer that measures coverage sees it.
    """

    def test_nobody_asks(self, folder, caplog):
        """
        A stop cannot be found before it is known where it is, and ends.
        """
        stop = stops.Stop("breakpoint", 0.01, "header")

        before = stops.open_stops()
        stop.set_place(sys._getframe())
        after = stops.open_stops()
        line = stop.read()
        stop.write("x" * 70_000)
        stop.close()

        assert ([], [stop], "") == (before, after, line)
        assert "no command for 0 s" in caplog.text
        assert stop.output()["output"].startswith("header\nthe time limit")
        assert 60_000 < len(stop.output()["output"]) < 60_010

    def test_asked(self, folder):
        """
        A stop takes one line at a time, until it is released.
        """
        stop = stops.Stop("breakpoint", 1e300)
        stop.set_place(sys._getframe())
        lines = []
        reader = threading.Thread(
            target=lambda: lines.extend(iter(stop.read, ""))
        )

        busy = stops.give_line([stop.key], "early", 0.0)
        reader.start()
        while "stopped" != stop.state:
            time.sleep(0.001)
        given = stops.give_line([stop.key, "gone"], "p 1", 0.0)
        stop.release()
        reader.join(PATIENCE_S)
        stop.close()

        assert "busy" in busy[stop.key]["error"]
        assert "output" in given[stop.key]
        assert "not stopped any more" in given["gone"]["error"]
        assert ["p 1\n"] == lines


class TestLooking:
    def test_failed(self, hold):
        """
        Of what failed in a framework, the line that called it is looked at.
        """

        @post_mortem()
        def fail():
            secret = 42
            try:
                return linecache.getline(secret, "x")
            except AttributeError as exc:
                raise ValueError(secret) from exc

        held = hold(fail)
        chain, inner, value = held.says(
            "exceptions", "exceptions 0", "p secret"
        )
        text = str(held.client.stack())
        held.says("c")
        held.end()

        assert "AttributeError" in chain
        assert "linecache.getline(" in inner
        assert "42" == value
        assert "raise ValueError(secret) from exc" in text

    def test_after_a_failure(self, hold):
        """
        Once a step leaves an exception behind, its frames are, too.
        """

        def work():
            set_trace()
            with suppress(ValueError):
                int("bad")
            return 42

        held = hold(work)
        steps, places = [], []
        for _ in range(5):
            steps += held.says("n")
            places.append(str(held.client.stack()))
        held.says("c")
        held.end()

        failed = next(n for n, step in enumerate(steps) if "invalid" in step)
        assert 'int("bad")' in places[failed]
        assert "return 42" in steps[-1]
        assert 'int("bad")' not in places[-1]
        assert "return 42" in places[-1]

    def test_exit(self, folder):
        """
        An expression that would end the program ends nothing.
        """
        with connect(folder) as client:
            (output,) = client.eval("ranks(0)", "exit(3)").outputs

        assert output.is_error
        assert "SystemExit" in output.text

    def test_debug(self, hold):
        """
        Code that is debugged for itself leaves the debugger as it was.
        """
        held = hold(outer)

        said = held.says("debug [y, y][0]", "q", "p y", "n", "b 99999")

        assert ["4", "y += 1"] == [said[2], said[3].splitlines()[-1][3:]]
        assert "left the code" in said[1]
        assert "no line 99999" in said[4]
        held.says("c")
        assert 11 == held.end()

    def test_left_behind(self, folder):
        """
        Evaluations that never end are not started for ever.
        """
        event = threading.Event()

        with connect(folder) as client:
            for _ in range(4):
                client.eval(None, "event.wait(30)", wait_s=0.01)
            answers = client.eval(None, "1")
            event.set()

        assert "4 evaluations have not ended yet" in str(answers)


class TestSources:
    """
    A function that came by value, from a file that only the client has.
    """

    SOURCE = (
        "# a driver\n"
        "def endpoint(set_trace):\n"
        "    value = 20\n"
        "    set_trace()\n"
        "    value += 1\n"
        "    return value * 2\n"
    )

    @pytest.fixture
    def endpoint(self, folder, tmp_path):
        """
        Such a function, and the file; it does not exist yet.
        """
        path = tmp_path / "driver.py"
        names = {"__name__": "driver"}
        exec(compile(self.SOURCE, str(path), "exec"), names)
        yield path, functools.partial(names["endpoint"], set_trace)
        linecache.cache.pop(str(path), None)

    def test_lent(self, hold, endpoint, raw):
        """
        The source is shown, and breakpoints work, once a client has sent it.
        """
        path, function = endpoint
        held = hold(function)
        held.session()
        without = held.says("l", "where")

        def lend(text):
            return raw.asked(arm(), op="source", file=str(path), text=text)

        assert "value += 1" not in "".join(without)
        assert [str(path)] == raw.asked(arm(), op="list")["missing"]
        assert (
            "not where endpoint begins" in lend(f"\n\n{self.SOURCE}")["error"]
        )
        assert "begins" in lend("")["error"]
        assert "thank you" == lend(self.SOURCE)["output"]
        assert "misses" in lend(self.SOURCE)["error"]

        said = held.says("l", f"b {path}:6", "n")

        assert "value += 1" in said[0]
        assert "Breakpoint" in said[1]
        assert "-> value += 1" in said[2]
        held.says("c")
        assert "-> return value * 2" in held.session().last().text
        held.client.resume()
        assert 42 == held.end()
