"""
How is a thread stopped, stepped, and let go?

This is the debugger of the standard library, of every version.  It stops at the
line that asked for it, at once, so that the stop can be seen although a tracer
of somebody else is at work; and whatever fails in it, the program goes on.
"""

from __future__ import annotations

import bdb
import ctypes
import io
import linecache
import os
import pdb  # noqa: T100 this is what it is for
import re
import sys
import threading
import traceback
import weakref

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any

from .frames import CommandEnded, Obeying, is_users, pretty_text, value_text
from .settings import DEFAULT_LIMIT_S, say
from .stops import Stop, open_stop, open_stops


_MOST_FRAMES = 200
# A comprehension may begin on any line.
_ANYWHERE = frozenset(
    {"<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
)
_START = re.compile(r"\s*(?:@|async\s|def\s|class\s)|.*\blambda\b")


def is_source_missing(filename: str) -> bool:
    """
    Is the source of a file unknown here?

    Args:
        filename: The file, as code names it.

    Returns:
        Whether it can be neither read nor remembered.
    """
    if filename.startswith("<") or linecache.cache.get(filename):
        return False

    return not (os.path.exists(filename) or linecache.getlines(filename))  # noqa: PTH110 it may be any text


def missing_files() -> list[str]:
    """
    Which files are named by the code that runs here, and are not here?

    Returns:
        Their names, each once.
    """
    names = {code.co_filename for code in _running_code()}
    return sorted(name for name in names if is_source_missing(name))


def take_source(filename: str, text: str) -> str:
    """
    Remember the source of a file that is not here.

    Args:
        filename: The file, as code that runs here names it.

        text: Its content, as a client has it.

    Returns:
        ``""``, or why it was not taken.
    """
    if filename not in missing_files():
        return "no code that runs here misses this file"

    lines = text.splitlines(keepends=True)
    for code in _running_code():
        first = code.co_firstlineno
        if code.co_filename != filename or code.co_name in _ANYWHERE:
            continue
        # Another version of the file would show lines that never ran.
        if not (first <= len(lines) and _START.match(lines[first - 1])):
            return f"line {first} is not where {code.co_name} begins"

    # Without a time, linecache does not look whether the file has changed.
    linecache.cache[filename] = (len(text), None, lines, filename)
    return ""


def _running_code() -> Iterator[CodeType]:
    """
    Look at what runs, and at what ran before it failed.
    """
    for stop in open_stops():
        yield from (frame.f_code for frame, _ in stop.failed)
    for innermost in sys._current_frames().values():  # noqa: SLF001 there is no other way
        frame: FrameType | None = innermost
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            yield frame.f_code
            frame = frame.f_back


_STEPS = frozenset(
    {"s", "step", "n", "next", "r", "return", "unt", "until", "j", "jump"}
    | {"debug", "run", "restart"}
)

_MOST = 100  # exceptions of a chain


class Words(pdb.Pdb):
    """
    A debugger that needs no terminal.
    """

    is_dead = False
    is_aborted = False
    examined: BaseException | None = None

    def onecmd(self, line: str) -> bool:
        """
        Obey one line; but step only where something runs.
        """
        word = line.split(maxsplit=1)[0] if line.split() else ""
        if self.is_dead and word in _STEPS:
            self.error(
                f"{word}: this is post mortem, nothing runs here; "
                "continue lets the exception go on"
            )
            return False

        try:
            return super().onecmd(line)
        except Exception as exc:  # noqa: BLE001 nobody shall be let go by it
            self.error(f"{type(exc).__name__}: {exc}")
            return False

    def default(self, line: str) -> None:
        """
        Execute a statement in the frame that is looked at.
        """
        super().default(line)
        _write_back(self.curframe)

    def lookupmodule(self, filename: str) -> str | None:
        """
        Find a file that is named in a command, also one that a client sent.
        """
        if linecache.cache.get(filename):
            return filename

        return super().lookupmodule(filename)

    def checkline(self, filename: str, lineno: int, *args: Any) -> Any:
        """
        Find out whether there can be a breakpoint at a line.
        """
        if self._is_missing(filename):
            return 0
        count = len(linecache.getlines(filename))
        if 0 < count < lineno:
            self.error(f"{filename} has {count} lines, and no line {lineno}")
            return 0
        return super().checkline(filename, lineno, *args)

    def _is_missing(self, filename: str) -> bool:
        """
        Say why lines of a file are not known, if they are not.
        """
        if not is_source_missing(filename):
            return False

        self.error(
            f"{filename} is not on this node, and no client has sent it: "
            "if dbg is started in its folder, list and breakpoints work after "
            "the command list of that"
        )
        return True

    def do_list(self, arg: str) -> Any:
        """l(ist) [first[, last] | .]

        List the source around the line.
        """
        if not self._is_missing(self._file()):
            return super().do_list(arg)
        return None

    def do_longlist(self, arg: str) -> Any:
        """ll | longlist

        List the whole function.
        """
        if not self._is_missing(self._file()):
            return super().do_longlist(arg)
        return None

    do_l, do_ll = do_list, do_longlist

    def _file(self) -> str:
        return self.curframe.f_code.co_filename if self.curframe else ""

    def do_quit(self, arg: str) -> bool:
        """q(uit) | exit | EOF

        Detach: clear the breakpoints and let the program go on.  To end it,
        say abort.
        """
        del arg
        self.clear_all_breaks()
        self.set_continue()
        return True

    do_q = do_exit = do_EOF = do_detach = do_quit  # noqa: N815 pdb's name

    def do_abort(self, arg: str) -> bool:
        """abort

        End the program with bdb.BdbQuit, raised at the line where it is.
        """
        del arg
        say("this rank is aborted from the debugger")
        self.is_aborted = True
        self.clear_all_breaks()
        self.set_continue()
        return True

    def do_p(self, arg: str) -> None:
        """p expression

        Print the value of the expression.
        """
        self._show(arg, value_text)

    def do_pp(self, arg: str) -> None:
        """pp expression

        Pretty-print the value of the expression.
        """
        self._show(arg, pretty_text)

    def _show(self, arg: str, text: Callable[[object], str]) -> None:
        try:
            value = self._getval(arg)
        except BaseException:  # noqa: BLE001 pdb has shown it
            return

        try:
            self.message(text(value))
        except Exception as exc:  # noqa: BLE001 a broken repr
            self.error(f"{type(exc).__name__}: {exc}")

    def do_clear(self, arg: str) -> None:
        """cl(ear) [filename:lineno | bpnumber ...]

        Clear these breakpoints; without an argument, all of them.
        """
        if arg:
            super().do_clear(arg)
        else:
            self.clear_all_breaks()
            self.message("all breakpoints are cleared")

    do_cl = do_clear

    def do_debug(self, arg: str) -> None:
        """debug code

        Step through code that is executed in the frame that is looked at.
        """
        if self.curframe is None:
            return

        # That of pdb steps in its own code afterwards, and handles Ctrl-C.
        inner = Words(
            stdin=self.stdin, stdout=self.stdout, nosigint=True, readrc=False
        )
        inner.prompt = ""
        tracer = sys.gettrace()
        sys.settrace(None)
        names = self.curframe.f_globals, self.curframe.f_locals
        self.message("entering the code; c or q runs it to its end")
        try:
            sys.call_tracing(inner.run, (arg, *names))
        finally:
            sys.settrace(tracer)
        if inner.is_aborted:
            self.error("abort ends the program outside of debug only")
        self.message("left the code")

    def do_exceptions(self, arg: str) -> None:
        """exceptions [number]

        List the exceptions that led to this one, or go to one of them.
        """
        if sys.version_info >= (3, 13):
            super().do_exceptions(arg)
            return

        chain = _chain_of(self.examined)
        if not arg:
            for number, error in enumerate(chain):
                self.message(f"{number:3} {error!r:.200}")
        elif arg.isdecimal() and int(arg) < len(chain):
            self.setup(None, chain[int(arg)].__traceback__)
            self.print_stack_entry(self.stack[self.curindex])
        else:
            self.error("no exception has that number")

    def do_interact(self, arg: str) -> None:
        """interact

        Not here: there is no terminal.
        """
        del arg
        self.error("there is no terminal here: type statements one by one")

    def do_run(self, arg: str) -> None:
        """run

        Not here: one rank of a job cannot be started again.
        """
        del arg
        self.error("one rank of a job cannot be started again")

    do_restart = do_run

    def help_pdb(self) -> None:
        """
        Name where the commands are explained.
        """
        self.message("see https://docs.python.org/3/library/pdb.html")


def _chain_of(error: BaseException | None) -> list[BaseException]:
    """
    The exceptions for which this one was raised, the first one first.
    """
    chain: list[BaseException] = []
    while error is not None and error not in chain and len(chain) < _MOST:
        if error.__traceback__:
            chain.append(error)
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context
    return chain[::-1]


def _write_back(frame: FrameType | None) -> None:
    """
    Let variables of a function that were assigned here be assigned there.

    Before Python 3.13 what is assigned goes into a copy of them.
    """
    if sys.version_info < (3, 13) and frame is not None:
        ctypes.pythonapi.PyFrame_LocalsToFast(
            ctypes.py_object(frame), ctypes.c_int(0)
        )


# Control must never climb into the loops that call the user's code.
_SKIPPED = (
    "distdebug",
    "distdebug.debugger",
    "distdebug.debugger.*",
    "asyncio.*",
    "concurrent.futures.*",
    "contextlib",
    "importlib._bootstrap*",
    "monarch.*",
    "multiprocessing.*",
    "ray.*",
    "runpy",
    "selectors",
    "threading",
    "torch.utils.data.*",
)

_of_thread = threading.local()
# Those of all threads, by the thread; who is here may have left.
_all: dict[int, weakref.ref[Prompt]] = {}


def current_prompt() -> Prompt:
    """
    Which debugger holds this thread, or would?

    Returns:
        The one that still steps or has breakpoints here, or a new one.
    """
    prompt: Prompt | None = getattr(_of_thread, "prompt", None)
    if prompt is None or prompt.has_left:
        prompt = _of_thread.prompt = Prompt()
        _all[threading.get_ident()] = weakref.ref(prompt)
    return prompt


def prompts() -> dict[int, Prompt]:
    """
    Which threads are stopped, stepped, or have breakpoints?

    Returns:
        Their debuggers, by the number of the thread.
    """
    found = {ident: prompt() for ident, prompt in list(_all.items())}
    return {i: p for i, p in found.items() if p and p.is_busy()}


class _Lines(io.TextIOBase):
    """
    The standard input and output of the debugger: the stop that is open.
    """

    def __init__(self, prompt: Prompt) -> None:
        self._prompt: Prompt = weakref.proxy(prompt)

    def readline(self, _size: int | None = -1, /) -> str:  # type: ignore[override]
        """
        Wait for a command.
        """
        stop = self._prompt.stop
        # Who was let go before it came here does not wait.
        if stop is None or self._prompt.is_let_go:
            return ""

        try:
            with self._prompt.obeying.may_not_end():
                return stop.read()
        except BaseException as exc:
            self._prompt.interruption = exc
            raise

    def write(self, text: str, /) -> int:
        """
        Keep some output.
        """
        if self._prompt.stop:
            self._prompt.stop.write(text)
        return len(text)


class Prompt(Words):
    """
    The debugger of one thread.
    """

    _set_stopinfo: Callable[..., None]  # of bdb, since it exists

    def __init__(self) -> None:
        lines: Any = _Lines(self)
        # Elsewhere it might be the backend that stops all threads.
        backend: Any = {"backend": "settrace"} if _HAS_BACKENDS else {}
        super().__init__(
            stdin=lines,
            stdout=lines,
            skip=_SKIPPED,
            nosigint=True,
            readrc=False,
            **backend,
        )
        self.prompt = ""
        self.stop: Stop | None = None
        self.obeying = Obeying()
        self.thread = threading.current_thread()
        self.has_left = True
        self.is_asking = False
        self.is_let_go = False
        # What a handler of signals raised while the thread was held.
        self.interruption: BaseException | None = None
        self._own_breaks: list[bdb.Breakpoint] = []
        self._new_stop: Callable[[], Stop] | None = None
        self._goes_on = False
        self._is_ready = True
        self._previous: Any = None
        self._traces: dict[FrameType, Any] = {}

    def is_busy(self) -> bool:
        """
        Whether the thread is there, and stops, or may stop by itself.
        """
        may_stop = not (self.has_left or self.is_let_go)
        # Another thread may have got the number of one that has ended.
        return self.thread.is_alive() and (self.stop is not None or may_stop)

    # -- where it starts and ends

    def halt(self, frame: FrameType, new_stop: Callable[[], Stop]) -> None:
        """
        Stop at a line, now.

        Args:
            frame: The line.

            new_stop: Opens a stop.
        """
        if self.is_asking:
            return  # an expression of the user came to a breakpoint

        self._get_ready(frame, new_stop)
        # Since Python 3.13, bdb wants to know for whom it was called.
        self.enterframe = frame
        self.interaction(frame, None)
        self.enterframe = None  # type: ignore[assignment]
        if not self.has_left:
            sys.settrace(self.trace_dispatch)

    def watch(self, frame: FrameType, new_stop: Callable[[], Stop]) -> None:
        """
        Stop at the next line that this thread comes to.

        Args:
            frame: Where it is.

            new_stop: Opens a stop.
        """
        self._get_ready(frame, new_stop)
        sys.settrace(self.trace_dispatch)

    def _get_ready(
        self, frame: FrameType, new_stop: Callable[[], Stop]
    ) -> None:
        """
        Leave nothing to do but to trace, which nobody does then.
        """
        if self.is_let_go:
            self.leave()
        self._new_stop = new_stop
        tracer = sys.gettrace()
        sys.settrace(None)  # or bdb would stop in itself
        if self.has_left:
            self._previous = tracer
            self._traces = {f: f.f_trace for f in _callers(frame) if f.f_trace}
        self.has_left = self.is_let_go = False
        self._is_ready = False
        try:
            # That of pdb would let pdb.set_trace() of the program come here.
            bdb.Bdb.set_trace(self, frame)
        finally:  # a handler of signals may raise
            sys.settrace(None)
            self._is_ready = True
        # Since Python 3.13, that means the next instruction, in any module.
        self.enterframe = frame
        self._set_stopinfo(None, None)
        self.enterframe = None  # type: ignore[assignment]

    def examine(
        self, error: BaseException, new_stop: Callable[[], Stop]
    ) -> None:
        """
        Stop where an exception was raised.

        Args:
            error: The exception.

            new_stop: Opens a stop.
        """
        if self.is_asking or error.__traceback__ is None:
            return

        self.leave()
        self._new_stop, self.is_dead = new_stop, True
        self.is_let_go = False
        self.reset()
        self.examined = error
        knows_chains = sys.version_info >= (3, 13)
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            self.interaction(
                None, error if knows_chains else error.__traceback__
            )
        finally:
            self.is_dead, self.examined = False, None
            sys.settrace(tracer)

    def let_go(self) -> Stop | None:
        """
        Let the thread go on, whatever it is doing.

        This is for other threads.  A command that is obeyed is ended, unless
        it waits outside of Python; a step does not end before the thread comes
        to its next line.

        Returns:
            The stop that ends by that.
        """
        self.is_let_go = True
        stop = self.stop
        if stop:
            stop.release()
        self.obeying.end()
        return stop

    def leave(self) -> None:
        """
        Let the thread go, as if we had never been there.
        """
        if self.stop:
            self.stop.close()
            self.stop = None
        if self.has_left:
            return

        self.has_left = True
        self.clear_all_breaks()
        for frame in _callers(sys._getframe()):  # noqa: SLF001 bdb does so
            # A method is equal to itself, but not the same.
            if frame.f_trace == self.trace_dispatch:
                frame.f_trace = self._traces.get(frame)
        self._forget_frames()
        sys.settrace(self._previous)

    def _forget_frames(self) -> None:
        """
        Keep nothing alive that the program is done with, such as tensors.
        """
        changed = getattr(self, "frame_trace_lines_opcodes", {})
        for frame, (lines, opcodes) in changed.items():
            frame.f_trace_lines, frame.f_trace_opcodes = lines, opcodes
        changed.clear()
        self._traces = {}
        self.forget()
        self._set_stopinfo(None, None, -1)
        self.botframe = self.enterframe = None  # type: ignore[assignment]

    # -- what bdb calls

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """
        Look at one event, unless we have left.
        """
        if self.is_let_go:
            self.leave()
        # What is collected while bdb turns tracing on may run code.
        if self.has_left or not self._is_ready:
            return None

        try:
            return super().trace_dispatch(frame, event, arg)
        except Exception as exc:
            if self.has_left:
                raise  # on purpose
            self._fail(exc)
            return None

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """
        Stop at the end of a function; leave at the end of the user's code.
        """
        super().user_return(frame, return_value)
        if self._is_outermost(frame):
            self.leave()

    def interaction(
        self,
        frame: FrameType | None,
        tb_or_exc: TracebackType | BaseException | None,
    ) -> None:
        """
        Ask what to do, until that is to go on.
        """
        if self.stop is None and self._new_stop:
            self.stop = self._new_stop()
            self._new_stop = partial(
                open_stop, "breakpoint", self.stop.limit_s
            )
        self._goes_on = False
        self.is_asking = True
        try:
            self._ask(frame, tb_or_exc)
        except Exception as exc:  # noqa: BLE001 told apart there
            self._fail(exc)
        except BaseException:
            self.leave()
            raise
        finally:
            self.is_asking = False
            self.interruption = None
        if self.is_aborted:
            self.is_aborted = False
            self.leave()
            msg = "aborted from the debugger"
            raise bdb.BdbQuit(msg)
        if self._goes_on or self.is_dead:
            self._go_on()

    def _ask(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        trace = getattr(tb_or_exc, "__traceback__", tb_or_exc)
        failed = [*traceback.walk_tb(trace)]
        if self.stop and failed:
            self.stop.arrive(*failed[_users_index(failed)], failed)
        elif self.stop and frame:
            self.stop.arrive(frame)
        super().interaction(frame, tb_or_exc)

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """
        Which frames can be looked at, and at which of them does it begin?

        Where an exception came out of a framework, at the line that called it.
        """
        stack, index = super().get_stack(f, t)
        return stack, _users_index(stack) if self.is_dead else index

    def onecmd(self, line: str) -> bool:
        """
        Obey one line, but not for longer than the limit.
        """
        limit_s = self.stop.limit_s if self.stop else DEFAULT_LIMIT_S
        watch = threading.Timer(
            min(limit_s, threading.TIMEOUT_MAX), self.let_go
        )
        watch.name, watch.daemon = "distdebug-limit", True
        try:
            with suppress(RuntimeError):  # no more threads
                watch.start()
            with self.obeying.may_end():
                return super().onecmd(line)
        except CommandEnded:
            self.error("the command was ended")
            return False
        finally:
            watch.cancel()

    def _cmdloop(self) -> None:
        # That of pdb would not let Ctrl-C end the job.
        self.cmdloop()

    def _fail(self, error: Exception) -> None:
        """
        Leave; it was no mistake of the program, unless a handler meant it.
        """
        self.leave()
        if error is self.interruption:
            raise error
        say("the debugger failed, and lets this rank go on: %r", error)

    def _go_on(self) -> None:
        if self.stop:
            self.stop.close()
            self.stop = None
        if not self.breaks:
            self.leave()

    def _is_outermost(self, frame: FrameType) -> bool:
        return all(
            self.is_skipped_module(f.f_globals.get("__name__", ""))
            for f in _callers(frame.f_back)
        )

    def set_continue(self) -> None:
        """
        Go on to the next breakpoint.
        """
        # That of bdb would end tracers that are not ours.
        self._goes_on = True
        self._set_stopinfo(self.botframe, None, -1)

    def bp_commands(self, frame: FrameType) -> bool:
        """
        Obey the commands of a breakpoint when it has become a stop.
        """
        del frame
        number = getattr(self, "currentbp", 0)
        self.currentbp = 0
        self.cmdqueue += getattr(self, "commands", {}).get(number, [])
        return True

    # -- breakpoints of this thread alone, which bdb shares among all

    def _load_breaks(self) -> None:
        """
        Leave the breakpoints of other threads to them.
        """

    def set_break(self, filename: str, lineno: int, *args: Any) -> str | None:
        """
        Stop whenever this thread comes to a line.
        """
        problem = super().set_break(filename, lineno, *args)
        if not problem:
            line = self.canonic(filename), lineno
            self._own_breaks.append(bdb.Breakpoint.bplist[line][-1])
        return problem

    def clear_all_breaks(self) -> None:
        """
        Clear the breakpoints that were set here.
        """
        for own in self._own_breaks:
            if own in bdb.Breakpoint.bpbynumber:
                own.deleteMe()
        self._own_breaks.clear()
        self.breaks = {}

    def break_here(self, frame: FrameType) -> bool:
        """
        Whether a breakpoint of this thread is at a line.
        """
        try:
            return bool(super().break_here(frame))
        except KeyError:  # another thread has cleared it
            there = bdb.Breakpoint.bplist
            kept = {
                file: [line for line in lines if (file, line) in there]
                for file, lines in self.breaks.items()
            }
            self.breaks = {
                file: lines for file, lines in kept.items() if lines
            }
            return False


def _users_index(stack: Sequence[tuple[FrameType, int]]) -> int:
    """
    Which is the innermost frame of the user's own, or of all?
    """
    return next(
        (n for n in reversed(range(len(stack))) if is_users(stack[n][0])),
        len(stack) - 1,
    )


def _callers(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def release_thread() -> None:
    """
    End what holds this thread, or would stop it again.

    After a fork, the other threads do not exist.
    """
    prompt = getattr(_of_thread, "prompt", None)
    if prompt is not None:
        prompt.leave()


_HAS_BACKENDS = sys.version_info >= (3, 14)
