"""
What happens in a rank that is stopped.
"""

from __future__ import annotations

import asyncio
import bdb
import functools
import gc
import linecache
import logging
import os
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
from distdebug.debugger.client import lending
from distdebug.debugger.inside import (
    breakpoints,
    crashes,
    labels,
    looking,
    pending,
    prompt,
    settings,
    sources,
    stops,
    values,
)
from distdebug.errors import DebuggerError, RankSyntaxError


PATIENCE_S = 60


@pytest.fixture
def folder(monkeypatch, socket_folder):
    """
    A folder for sockets, in which this process listens.
    """
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(labels, "_own", {})
    monkeypatch.setattr(labels, "_mesh", {})
    # Hooks are for programs; a test must not leave any behind.
    monkeypatch.setattr(crashes, "_hooks", [sys.excepthook])
    arm()
    yield socket_folder
    for stop in stops.open_stops():
        stop.extend(0)
    disarm()


class Held:
    """
    A function that runs in a thread, and the client that steers it.
    """

    def __init__(self, function, folder):
        self.result = self.error = self.trace = None
        self.client = connect(folder)
        self.thread = threading.Thread(target=self.run, args=(function,))
        self.thread.start()

    def run(self, function):
        """
        Keep what the function returns or raises, and who traces then.
        """
        try:
            self.result = function()
        except BaseException as exc:  # noqa: BLE001 it is looked at
            self.error = exc
        self.trace = sys.gettrace()

    def session(self):
        """
        The thread, as soon as it is stopped.
        """
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for _, session in self.client.list().sessions:
                if session.state == "stopped":
                    return self.client.attach(0)
            time.sleep(0.005)
        pytest.fail("it does not stop")

    def says(self, *lines):
        """
        What is printed for each line.
        """
        session = self.session()
        return [session.send(line, wait_s=PATIENCE_S).text for line in lines]

    def end(self):
        """
        Wait for the end of the function.
        """
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self.result


@pytest.fixture
def hold(folder):
    """
    Runs a function in a thread that can be stopped.
    """
    held = []

    def begin(function):
        held.append(Held(function, folder))
        return held[-1]

    yield begin
    for one in held:
        one.client.resume()
        one.thread.join(PATIENCE_S)
        one.client.close()


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
        Whoever traced the thread before does so again.
        """

        def tracer(*_):
            return None

        def traced():
            sys.settrace(tracer)
            found = outer()
            is_back = sys.gettrace() is tracer
            sys.settrace(None)
            return found, is_back

        held = hold(traced)
        held.says("n", "c")

        assert (11, True) == held.end()

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
        assert held.trace is None or "Prompt" not in repr(held.trace)

    def test_quit(self, hold):
        """
        Who quits lets the rank go on, without breakpoints.
        """
        held = hold(outer)
        line = outer.__code__.co_firstlineno + 5

        session = held.session()
        session.send(f"b {line}")

        assert "ended" == session.send("q").state
        assert 11 == held.end()

    def test_abort(self, hold):
        """
        Who aborts ends the rank by an exception.
        """
        held = hold(outer)
        held.session()

        answers = held.client.abort("ranks(0)")

        assert ["ended"] == [o.state for o in answers.outputs]
        held.end()
        assert isinstance(held.error, bdb.BdbQuit)

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("interact", "there is no terminal"),
            ("run", "cannot be started again"),
            ("restart x", "cannot be started again"),
            ("help pdb", "docs.python.org"),
            ("help abort", "End the program"),
            ("clear", "all breakpoints are cleared"),
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
        Who steps past the outermost line of the user is not held by others.
        """
        held = hold(functools.partial(outer))
        session = held.session()
        prompt.current_prompt()

        for _ in range(30):
            output = session.send("s")
            if output.state == "ended" or output.is_error:
                break

        assert 11 == held.end()

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

    def test_limit(self, hold, caplog):
        """
        A thread that nobody asks goes on, and the log says where it was.
        """

        def impatient():
            set_trace(limit=0.05)
            return "went on"

        held = hold(impatient)

        assert "went on" == held.end()
        assert "nobody asked this rank" in caplog.text
        assert "impatient" in caplog.text

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

    def test_busy(self, hold):
        """
        A thread that obeys a command takes no other, and nobody waits.
        """
        event = threading.Event()

        def work():
            set_trace()
            event.wait(PATIENCE_S)

        held = hold(work)
        session = held.session()
        session.send("n")

        running = session.send("n", wait_s=0.05)
        refused = session.send("p 1")
        event.set()

        assert "running" == running.state
        assert "busy" in refused.text
        held.client.resume()
        held.end()

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
    Whoever is told to go on does so, whatever the debugger is doing with it.
    """

    @pytest.fixture
    def busy(self, hold):
        """
        A thread in the middle of a step, what lets the step end, and its end.
        """
        event = threading.Event()

        def work():
            set_trace()
            event.wait(PATIENCE_S)
            return "went on"

        held = hold(work)
        session = held.session()
        assert "event.wait" in session.send("n").text
        assert "running" == session.send("n", wait_s=0.05).state
        yield held, session, event
        event.set()

    def test_resumed(self, busy):
        """
        A step is turned into going on; nobody stops at the end of it.
        """
        held, _, event = busy

        (answer,) = held.client.resume().outputs
        event.set()

        assert ("running", False) == (answer.state, answer.is_error)
        assert "when it has done" in answer.text
        assert "went on" == held.end()
        assert [] == stops.open_stops()
        assert "Prompt" not in repr(held.trace)

    def test_continued(self, busy):
        """
        So is one that is told to detach.
        """
        held, session, event = busy

        answer = session.send("detach", wait_s=0.05)
        event.set()

        assert ("running", False) == (answer.state, answer.is_error)
        assert "went on" == held.end()

    def test_evaluating(self, hold):
        """
        An expression that is computed is computed to its end.
        """
        event = threading.Event()

        def work():
            set_trace()
            return event.is_set()

        held = hold(work)
        session = held.session()
        session.send("event.wait(30)", wait_s=0.05)
        (before,) = held.client.resume().outputs
        event.set()

        assert "running" == before.state
        assert held.end() is True

    def test_two_clients(self, busy):
        """
        Of two who command one thread, the second is refused, not queued.
        """
        held, session, event = busy

        refused = session.send("p 'late'")
        event.set()
        held.session()

        assert refused.is_error
        assert "late" not in session.last().text
        session.send("c")
        assert "went on" == held.end()

    def test_with_breakpoints(self, hold):
        """
        Who runs to a breakpoint does not stop there any more.
        """
        event = threading.Event()

        def work():
            set_trace()
            event.wait(PATIENCE_S)
            return "went on"

        line = work.__code__.co_firstlineno + 3
        held = hold(work)
        session = held.session()
        session.send(f"b {line}")
        session.send("c")
        held.client.resume()
        event.set()

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

    @pytest.mark.parametrize(
        "nested", ["commands 1", "debug 1 + 1", "for _ in y:"]
    )
    def test_nested(self, hold, nested):
        """
        Who is in the middle of a dialogue with the debugger goes on as well.
        """

        def work():
            set_trace()
            return "went on"

        held = hold(work)
        session = held.session()
        session.send(f"b {work.__code__.co_firstlineno + 2}")
        session.send(nested)

        (answer,) = held.client.resume().outputs

        assert "ended" == answer.state
        assert "went on" == held.end()

    @pytest.mark.parametrize("nested", ["commands 1", "debug 1 + 1"])
    def test_limit_of_a_dialogue(self, hold, nested):
        """
        The limit of a pause ends such a dialogue, and the pause.
        """

        def work():
            set_trace(limit=0.3)
            return "went on"

        held = hold(work)
        session = held.session()
        session.send(f"b {work.__code__.co_firstlineno + 2}")
        session.send(nested)

        assert "went on" == held.end()

    def test_readline(self):
        """
        Who was let go just before it would wait does not wait.
        """
        one = prompt.Prompt()
        one.stop = stops.Stop("breakpoint", 1000)
        one.let_go()

        assert "" == one.stdin.readline()
        one.stop.close()


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
        while len(first.client.list().sessions) < 2:
            time.sleep(0.005)
        one, two = (first.client.attach(number=number) for number in (1, 2))
        line = work.__code__.co_firstlineno + 3
        for session in (one, two):
            session.send(f"b {line}")
        one.send("q")
        two.send("c")
        gate.set()
        stopped = first.session()

        assert f"({line})" in stopped.last().text
        stopped.send("c")
        assert ["went on"] * 2 == [first.end(), second.end()]

    def test_cleared_by_others(self):
        """
        A breakpoint that another thread has cleared stops nobody.
        """
        one, frame = prompt.Prompt(), sys._getframe()
        file = one.canonic(__file__)
        line = frame.f_code.co_firstlineno
        one.breaks = {file: [line, 1], "/gone.py": [2]}

        assert not one.break_here(frame)
        assert {} == one.breaks

    def test_number_of_another(self, hold):
        """
        Who clears a breakpoint that is not there is told so, and stays.
        """
        held = hold(outer)

        said = held.says("clear 99999", f"b {__file__}:1", "p y")

        assert "4" == said[2]
        held.says("c")
        assert 11 == held.end()

    def test_threads_that_have_ended(self):
        """
        Of a thread that has ended, nothing is kept.
        """
        kept = []

        def work():
            kept.append(prompt.current_prompt())
            kept[0].has_left = False

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

        assert thread.ident not in prompt.prompts()


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
        monkeypatch.setattr(prompt.Prompt, "setup", lambda *_: 1 / 0)
        held = hold(outer)

        assert 11 == held.end()
        assert "the debugger failed" in caplog.text
        assert [] == stops.open_stops()

    def test_failure_while_tracing(self, folder, monkeypatch, caplog):
        """
        So does one while it looks at what runs.
        """
        one = prompt.Prompt()
        one.has_left, one._previous = False, sys.gettrace()
        one.reset()
        monkeypatch.setattr(one, "dispatch_line", lambda _: 1 / 0)

        assert one.trace_dispatch(sys._getframe(), "line", None) is None
        assert one.has_left
        assert "the debugger failed" in caplog.text

    def test_interrupted_from_the_terminal(self, hold, monkeypatch):
        """
        Ctrl-C where the job was started ends it, though it is held.
        """

        def read(_):
            raise KeyboardInterrupt

        monkeypatch.setattr(stops.Stop, "read", read)
        held = hold(outer)
        held.end()

        assert isinstance(held.error, KeyboardInterrupt)
        assert [] == stops.open_stops()
        assert "Prompt" not in repr(held.trace)

    def test_handler_of_a_signal(self, hold, monkeypatch):
        """
        What a handler of signals raises reaches the program, too.
        """

        def read(_):
            raise TimeoutError

        monkeypatch.setattr(stops.Stop, "read", read)
        held = hold(outer)
        held.end()

        assert isinstance(held.error, TimeoutError)
        assert [] == stops.open_stops()

    def test_tracer_of_frames(self, hold):
        """
        Tracers that look at single frames do so afterwards.
        """
        lines = []

        def tracer(frame, event, arg):
            lines.append(event)
            return tracer

        def traced():
            sys.settrace(tracer)
            sys._getframe().f_trace = tracer
            add(1)
            lines.clear()
            kept = sys._getframe().f_trace
            sys.settrace(None)
            return kept is tracer, "line" in lines

        held = hold(traced)
        held.says("n", "c")

        assert (True, True) == held.end()

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
        assert 2 == held.end()

    def test_pdb_of_the_program(self, hold):
        """
        A debugger of the program's own is not taken for ours.
        """
        import pdb  # noqa: T100 it is only looked at

        held = hold(outer)
        held.says("n", "c")

        last = getattr(pdb.Pdb, "_last_pdb_instance", None)
        assert not isinstance(last, prompt.Prompt)
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
        assert "nobody asked this rank" in caplog.text
        assert [] == stops.open_stops()
        assert "Prompt" not in repr(held.trace)

    def test_interrupt(self, folder, caplog):
        """
        So does a main thread that was interrupted.
        """
        pending.interrupt_main(0.0)
        end = time.monotonic() + PATIENCE_S
        while "nobody asked" not in caplog.text:
            assert time.monotonic() < end
            time.sleep(0.001)

        assert [] == stops.open_stops()
        assert "Prompt" not in repr(sys.gettrace())

    def test_for_ever(self, monkeypatch):
        """
        A limit of more than any clock can count is one as well.
        """
        monkeypatch.setattr(stops, "_LONGEST_WAIT_S", 0.01)
        stop = stops.Stop("breakpoint", 1e300)
        threading.Timer(0.05, stop.release).start()

        assert "" == stop.read()
        stop.close()


class TestTracing:
    """
    What the interpreter calls, where no tracer sees it being tested.
    """

    def test_has_left(self):
        """
        A debugger that has left ends the tracing of a frame.
        """
        one = prompt.Prompt()

        assert one.trace_dispatch(sys._getframe(), "line", None) is None
        one.has_left = False
        one.reset()
        assert one.trace_dispatch(sys._getframe(), "call", None) is not None

    def test_outermost(self, monkeypatch):
        """
        It leaves at the end of the outermost function of the user.
        """
        one, left = prompt.Prompt(), []
        monkeypatch.setattr(one, "interaction", lambda *_: None)
        monkeypatch.setattr(one, "leave", lambda: left.append(True))
        monkeypatch.setattr(prompt, "_callers", lambda frame: [])

        one.user_return(sys._getframe(), None)

        assert [True] == left

    def test_asking(self, folder):
        """
        A breakpoint within an expression that is evaluated stops nobody.
        """
        one = prompt.Prompt()
        one.is_asking = True

        one.halt(sys._getframe(), None)
        one.examine(ValueError(), None)

        assert [] == stops.open_stops()

    def test_lines_of_nobody(self):
        """
        Without a stop, there is nothing to read, and nobody to write to.
        """
        one = prompt.Prompt()

        assert "" == one.stdin.readline()
        assert 3 == one.stdout.write("abc")


class TestSetTrace:
    @pytest.fixture
    def halted(self, folder, monkeypatch):
        """
        The lines at which it would have stopped.
        """
        lines = []
        monkeypatch.setattr(
            breakpoints,
            "_stop",
            lambda frame, limit, header: lines.append(frame.f_lineno),
        )
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("DISTDEBUG_MESH", "dp=2,tp=2")
        return lines

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

        assert count == len(halted)

    def test_no_selection(self, halted):
        """
        A selection that cannot be read is an error of the program.
        """
        with pytest.raises(RankSyntaxError):
            set_trace(ranks="all")

    def test_cond(self, halted):
        """
        It stops only if the condition is true.
        """
        for cond in (0, lambda: False, 1, lambda: True):
            set_trace(cond=cond)

        assert 2 == len(halted)

    def test_skip(self, halted):
        """
        Each line is counted by itself.
        """
        for _ in range(4):
            set_trace(skip=2)
            set_trace(skip=3)

        assert [2, 1] == [halted.count(line) for line in sorted({*halted})]

    def test_once(self, halted):
        """
        A line stops once at most, after those that are skipped.
        """
        for _ in range(4):
            set_trace(once=True)
            set_trace(once=True, skip=1)

        assert 2 == len(halted) == len({*halted})

    def test_off(self, halted, monkeypatch):
        """
        Where it is switched off, not even the condition is asked.
        """
        monkeypatch.setenv("DISTDEBUG", "0")

        set_trace(cond=lambda: 1 / 0)

        assert [] == halted
        assert sys.gettrace() is None or "Prompt" not in repr(sys.gettrace())

    def test_header(self, hold):
        """
        Whoever attaches is told what the program has to say.
        """
        held = hold(lambda: set_trace(header="look at the loss"))

        assert "look at the loss\n" in held.session().last().text
        held.says("c")


class TestUnarmed:
    @pytest.fixture(autouse=True)
    def unarmed(self, folder):
        """
        Nobody listens.
        """
        disarm()

    def test_logged(self, caplog):
        """
        A line that nobody could reach is logged.
        """
        set_trace()

        assert "passed a breakpoint at" in caplog.text
        assert "test_logged" in caplog.text

    def test_terminal(self, monkeypatch):
        """
        A person in front of a lonely process gets an ordinary prompt.
        """
        frames = []
        monkeypatch.setattr(breakpoints, "_has_terminal", lambda: True)
        monkeypatch.setattr(
            "pdb.Pdb.set_trace", lambda _, frame: frames.append(frame)
        )

        set_trace()

        assert [sys._getframe()] == frames

    @pytest.mark.parametrize(
        ("is_tty", "world", "answer"),
        [(True, "1", True), (True, "4", False), (False, "1", False)],
        ids=["alone", "one of four", "nobody"],
    )
    def test_who_has_one(self, monkeypatch, is_tty, world, answer):
        """
        Ranks do not share a terminal.
        """
        stream = SimpleNamespace(isatty=lambda: is_tty)
        monkeypatch.setattr(sys, "stdin", stream)
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("WORLD_SIZE", world)

        assert answer == breakpoints._has_terminal()

    def test_closed(self, monkeypatch):
        """
        Without standard input there is no terminal.
        """
        monkeypatch.setattr(sys, "stdin", None)

        assert not breakpoints._has_terminal()

    def test_not_examined(self, caplog):
        """
        An exception that nobody could look at is logged, and goes on.
        """
        with pytest.raises(ValueError, match="bad"), post_mortem():
            int("bad")

        assert "not examined: ValueError: invalid literal" in caplog.text

    def test_wanted(self, monkeypatch):
        """
        A variable arms at the first breakpoint.
        """
        monkeypatch.setenv("DISTDEBUG", "1")

        set_trace(limit=0.01)

        assert breakpoints.ready_to_stop()


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

    def test_decorated(self, hold):
        """
        What leaves a function is looked at once, however many look.
        """

        @post_mortem()
        @post_mortem()
        def fail():
            return 1 / 0

        held = hold(fail)

        assert "ended" == held.session().send("c").state
        held.end()
        assert isinstance(held.error, ZeroDivisionError)

    def test_coroutine(self, hold):
        """
        What leaves a coroutine function is looked at as well.
        """

        @post_mortem()
        async def fail():
            await asyncio.sleep(0)
            return 1 / 0

        held = hold(lambda: asyncio.run(fail()))

        assert "1 / 0" in held.session().last().text
        held.says("c")
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
        [SystemExit(1), KeyboardInterrupt(), bdb.BdbQuit(), None],
        ids=["exit", "Ctrl-C", "abort", "none"],
    )
    def test_not_looked_at(self, folder, error):
        """
        A wish to end is no mistake.
        """
        post_mortem(limit=1000).__exit__(type(error), error, None)

        assert [] == stops.open_stops()

    def test_without_a_traceback(self, folder):
        """
        An exception that was never raised has no place.
        """
        post_mortem(limit=1000).__exit__(None, ValueError(), None)

        assert [] == stops.open_stops()

    def test_hook(self, folder, monkeypatch):
        """
        As an excepthook, it calls the one that was there.
        """
        seen = []
        monkeypatch.setattr(sys, "excepthook", lambda *args: seen.append(args))

        post_mortem()(SystemExit, SystemExit(3), None)

        assert [SystemExit] == [args[0] for args in seen]

    def test_hooks(self, folder, monkeypatch):
        """
        All exceptions of programs and threads are looked at, once asked for.
        """
        seen, examined = [], []
        monkeypatch.setattr(crashes, "_hooks", [])
        monkeypatch.setattr(
            crashes, "_examine", lambda e, _: examined.append(e)
        )
        monkeypatch.setattr(sys, "excepthook", lambda *a: seen.append(a))
        monkeypatch.setattr(threading, "excepthook", seen.append)

        arm(post_mortem=True)
        arm(post_mortem=True)
        sys.excepthook(ValueError, ValueError("a"), None)
        threading.excepthook(SimpleNamespace(exc_value=KeyError("b")))
        threading.excepthook(SimpleNamespace(exc_value=None))

        assert 3 == len(seen)
        assert ["a", "b"] == [e.args[0] for e in examined]


class TestScope:
    def test_ends(self, hold):
        """
        Nobody is held, and nothing traced, behind the end of a scope.
        """
        traces = []

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

    def test_without_a_stop(self):
        """
        A scope in which nobody stops costs nothing.
        """
        with scope():
            pass


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


class TestInterrupt:
    def from_outside(self, folder, *steps):
        """
        Do something with a client in another thread; what it gave is kept.
        """
        got = []

        def work():
            with connect(folder) as client:
                got.extend(step(client) for step in steps)

        thread = threading.Thread(target=work)
        thread.start()
        return thread, got

    def test_running(self, folder):
        """
        The main thread stops at its next line, and goes on.
        """
        thread, got = self.from_outside(
            folder,
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

    def test_blocked(self, folder):
        """
        A thread in native code is left alone, and whoever asks is told.
        """
        thread, got = self.from_outside(
            folder,
            lambda c: c.interrupt("ranks(0)", wait_s=0.05),
            lambda c: c.resume("ranks(0)"),
        )
        thread.join(PATIENCE_S)

        assert "blocked in native code" in got[0].outputs[0].text
        assert "test_blocked" in got[0].outputs[0].text
        assert "will not be stopped" in got[1].outputs[0].text
        assert [] == stops.open_stops()

    def test_twice(self, folder):
        """
        Who is asked twice stops once.
        """
        event = threading.Event()
        thread, got = self.from_outside(
            folder,
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
        assert [] == stops.open_stops()

    def test_in_a_step(self, folder):
        """
        A step that does not end becomes one that ends at the next line.
        """
        event = threading.Event()
        thread, got = self.from_outside(
            folder,
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

    def test_while_it_computes(self, folder):
        """
        A thread that obeys a command is not interrupted by another.
        """
        event = threading.Event()
        thread, got = self.from_outside(
            folder,
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
        assert [] == stops.open_stops()

    def test_in_a_framework(self, folder):
        """
        A thread that runs what is not the user's is said to do so.
        """
        names = {"__name__": "asyncio.loop", "time": time, "done": []}
        code = "while not done:\n    time.sleep(0.001)"
        thread, got = self.from_outside(
            folder,
            lambda c: c.interrupt("ranks(:)", wait_s=0.2),
            lambda c: c.resume(),
            lambda _: names["done"].append(1),
        )

        exec(compile(code, "/x/site-packages/asyncio/loop.py", "exec"), names)
        thread.join(PATIENCE_S)

        assert "runs code of a framework" in got[0].outputs[0].text
        assert "ended" == got[1].outputs[0].state
        assert [] == stops.open_stops()

    def test_refused(self, monkeypatch):
        """
        If the interpreter takes no more calls, that is said.
        """
        import ctypes

        monkeypatch.setattr(
            ctypes.pythonapi, "Py_AddPendingCall", lambda *_: -1
        )

        with pytest.raises(RuntimeError, match="no more calls"):
            pending._ask_interpreter()

    def test_no_main_thread(self, monkeypatch):
        """
        Where the main thread has ended, its place is unknown.
        """
        monkeypatch.setattr(sys, "_current_frames", dict)

        assert "?" == pending._place()["function"]


class TestLabels:
    def test_given(self, folder):
        """
        Labels of the program come before those of the launcher.
        """
        arm(
            labels={"group": "actor-1", "rank": 5, "world_size": 8},
            mesh={"dp": 4, "tp": 2},
        )

        found = labels.describe_process()

        assert ("actor-1", 5, 8) == (
            found["group"],
            found["rank"],
            found["world_size"],
        )
        assert {"dp": 2, "tp": 1} == found["coords"]

    def test_nobody_tells(self, folder, monkeypatch):
        """
        Without a launcher the rank is unknown, shown so, and meant by all.
        """
        monkeypatch.delenv("RANK")
        monkeypatch.setenv("DISTDEBUG_MESH", "dp=2")

        with connect(folder) as client:
            everybody = client.eval("ranks(:)", "1 + 1")
            with pytest.raises(DebuggerError, match="selects nobody"):
                client.eval("ranks(0:5)", "1 + 1")
            listing = client.list()

        assert "[-] 2" == str(everybody)
        assert [None] == [p.rank for p in listing]
        assert "  -  " in str(listing)
        assert {} == listing.processes[0].coords

    def test_coordinates(self, folder):
        """
        Coordinates may be given as they are.
        """
        arm(labels={"coords": {"data": 9}})

        assert {"data": 9} == labels.describe_process()["coords"]

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
    def test_environment(self, folder, monkeypatch, mesh, coords):
        """
        A mesh of the environment is taken if it makes sense.
        """
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("DISTDEBUG_MESH", mesh)
        monkeypatch.setenv("DISTDEBUG_GROUP", "not a group")

        found = labels.describe_process()

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

    def test_no_proc(self, monkeypatch):
        """
        Without a kernel that tells, the start of the process is unknown.
        """

        def refuse(*_):
            raise OSError

        monkeypatch.setattr("builtins.open", refuse)

        assert (os.getpid(), 0) == labels.process_key()[1:]


class TestSettings:
    @pytest.mark.parametrize(
        ("wanted", "variable", "seconds"),
        [
            (5, "9", 5),
            (None, "9", 9),
            (None, None, 1800),
            (-1, "inf", 1800),
            (None, "soon", 1800),
            (None, "2s", 1800),
            ("x", "0", 0),
            (0, "9", 0),
            (None, "1e308", 366 * 86400),
        ],
    )
    def test_limit(self, monkeypatch, wanted, variable, seconds):
        """
        There is always a limit.
        """
        monkeypatch.delenv("DISTDEBUG_LIMIT", raising=False)
        if variable is not None:
            monkeypatch.setenv("DISTDEBUG_LIMIT", variable)

        assert seconds == settings.pause_limit_s(wanted)

    @pytest.mark.parametrize(
        ("value", "off", "wanted"),
        [("0", True, False), ("1", False, True), ("", False, False)],
    )
    def test_switch(self, monkeypatch, value, off, wanted):
        """
        One variable switches everything.
        """
        monkeypatch.setenv("DISTDEBUG", value)

        assert (off, wanted) == (settings.is_off(), settings.is_wanted())


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
    def test_described(self, cuda, wrap):
        """
        A tensor of a device is described, wherever it is, and not read.
        """
        for text in (values.value_text, values.pretty_text):
            found = text(wrap([Tensor("cuda")]))

            assert "<Tensor on " in found
            assert "shape (2, 3), float32, not copied" in found

    def test_on_the_host(self, cuda):
        """
        What is here is shown as it is.
        """
        assert "[tensor(1.), 3]" == values.value_text([Tensor("cpu"), 3])
        assert "namespace(a=1)" == values.value_text(SimpleNamespace(a=1))

    def test_asked(self, cuda):
        """
        Who asks for it has it read.
        """
        with pytest.raises(RuntimeError, match="waits"):
            values.value_text(Tensor("cuda"), copy=True)

    def test_without_torch(self, monkeypatch):
        """
        Without a device, values look as always, but are cut.
        """
        monkeypatch.setitem(sys.modules, "torch", None)

        assert "{'b': 1, 'a': 2}" == values.value_text({"b": 1, "a": 2})
        assert values.value_text("x" * 60_000).endswith("x…")


class Bad:
    """
    What cannot be shown.
    """

    def __repr__(self):
        msg = "no repr"
        raise ValueError(msg)


class TestForgotten:
    """
    What nobody answers, or nobody meant to be held.
    """

    def test_passed_until_somebody_asks(self, folder, caplog):
        """
        A line at which nobody asked anything holds again when somebody does.
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
        assert "passes this line until somebody asks it" in caplog.text
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

    def test_found_with_its_place(self, folder):
        """
        A stop cannot be found before it is known where it is.
        """
        stop = stops.open_stop("breakpoint", 1000)
        before = stops.open_stops()
        stop.arrive(sys._getframe())
        after = stops.open_stops()
        stop.close()

        assert ([], [stop]) == (before, after)


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

    def test_left_behind(self, monkeypatch):
        """
        Evaluations that never end are not started for ever.
        """
        monkeypatch.setattr(looking, "_running", {1, 2, 3, 4})

        with pytest.raises(RuntimeError, match="4 evaluations"):
            looking.evaluate("1", seconds=1)

    def test_only_frameworks(self):
        """
        Where no line is the user's own, it is the innermost one.
        """
        code = compile("frame = sys._getframe()", "<string>", "exec")
        names = {"sys": sys, "__name__": "distdebug.x"}
        exec(code, names)

        assert names["frame"].f_code is not None
        assert looking.user_frame(sys._getframe()) is sys._getframe()


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

    def test_lent(self, hold, endpoint):
        """
        The source is shown, and breakpoints work, once a client has sent it.
        """
        path, function = endpoint
        held = hold(function)
        held.session()
        without = held.says("l", "where")
        path.write_text(self.SOURCE)
        text = path.read_text()
        path.unlink()

        assert "value += 1" not in "".join(without)
        thread_runs = sources.missing_files()
        assert str(path) in thread_runs
        assert "not where endpoint begins" in sources.take_source(
            str(path), "\n\n" + text
        )
        assert "begins" in sources.take_source(str(path), "")
        assert "" == sources.take_source(str(path), text)
        assert "misses" in sources.take_source(str(path), text)

        said = held.says("l", f"b {path}:6", "n")

        assert "value += 1" in said[0]
        assert "Breakpoint" in said[1]
        assert "-> value += 1" in said[2]
        held.says("c")
        assert "-> return value * 2" in held.session().last().text
        held.client.resume()
        assert 42 == held.end()

    def test_fetched(self, hold, endpoint, monkeypatch):
        """
        A client that has the file sends it by itself.
        """
        path, function = endpoint
        monkeypatch.setattr(
            lending,
            "read_ordinary",
            lambda file, most: (
                self.SOURCE.encode() if file == str(path) else b""
            ),
        )
        held = hold(function)

        held.session()

        assert "-> value += 1" in held.says("n")[0]
        held.says("c")

    def test_not_lent(self):
        """
        Nothing else is sent, and nothing to the job of another user.
        """
        mine = os.geteuid()

        def lend(files, uid=mine):
            return list(lending.sources_to_lend(uid, files))

        assert [] == lend(["/etc/passwd", 3, "/missing.py", "/dev/zero"])
        assert [] == lend("/etc/passwd")
        assert 1 == len(lend([__file__]))
        assert [] == lend([__file__], mine + 1)

    def test_what_was_typed(self):
        """
        What has no file is not looked for.
        """
        assert not sources.is_source_missing("<stdin>")
        assert not sources.is_source_missing(__file__)
