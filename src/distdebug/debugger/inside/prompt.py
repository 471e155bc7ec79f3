"""
How does a stopped thread obey the commands of pdb, without a terminal?

This is the debugger of the standard library; only what would touch a terminal,
end the job, or wait for a device is replaced.  It stops at the line that asked
for it, at once, so that the stop can be seen although a tracer of somebody else
is at work.
"""

from __future__ import annotations

import bdb
import io
import linecache
import pdb  # noqa: T100 this is what it is for
import sys
import threading

from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from .settings import say
from .stops import Stop
from .values import pretty_text, value_text


__all__ = ["Prompt", "current_prompt", "release_thread"]

# Control must never climb into the loops that call the user's code.
_SKIPPED = (
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
)

_of_thread = threading.local()


def current_prompt() -> Prompt:
    """
    Which debugger holds this thread, or would?

    Returns:
        The one that still steps or has breakpoints here, or a new one.
    """
    prompt = getattr(_of_thread, "prompt", None)
    if prompt is None or prompt.has_left:
        prompt = _of_thread.prompt = Prompt()
    return prompt


class _Lines(io.TextIOBase):
    """
    The standard input and output of the debugger: the stop that is open.
    """

    def __init__(self, stop: Callable[[], Stop | None]) -> None:
        self._stop = stop

    def readline(self, _size: int | None = -1, /) -> str:  # type: ignore[override]
        """
        Wait for a command.
        """
        stop = self._stop()
        return stop.read() if stop else ""

    def write(self, text: str, /) -> int:
        """
        Keep some output.
        """
        stop = self._stop()
        if stop:
            stop.write(text)
        return len(text)


class Prompt(pdb.Pdb):
    """
    The debugger of one thread.
    """

    def __init__(self) -> None:
        lines: Any = _Lines(lambda: self.stop)
        super().__init__(
            stdin=lines,
            stdout=lines,
            skip=_SKIPPED,
            nosigint=True,
            readrc=False,
        )
        self.prompt = ""
        self.stop: Stop | None = None
        self.has_left = True
        self.is_asking = False
        self._new_stop: Callable[[], Stop] | None = None
        self._goes_on = False
        self._is_dead = False
        self._is_aborted = False
        self._previous: Any = None
        self._traces: dict[FrameType, Any] = {}

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

        self.watch(frame, new_stop)
        sys.settrace(self._previous)  # until it steps, all is as before
        self.interaction(frame, None)
        if not self.has_left:
            sys.settrace(self.trace_dispatch)

    def watch(self, frame: FrameType, new_stop: Callable[[], Stop]) -> None:
        """
        Stop at the next line that this thread comes to.

        Args:
            frame: Where it is.

            new_stop: Opens a stop.
        """
        self._new_stop = new_stop
        tracer = sys.gettrace()
        sys.settrace(None)  # or bdb would stop in itself
        if self.has_left:
            self._previous = tracer
            self._traces = {f: f.f_trace for f in _callers(frame) if f.f_trace}
        self.has_left = False
        super().set_trace(frame)

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
        self._new_stop, self._is_dead = new_stop, True
        self.reset()
        try:
            self.interaction(None, error.__traceback__)
        finally:
            self._is_dead = False

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
        self._traces = {}
        sys.settrace(self._previous)

    # -- what bdb calls

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """
        Look at one event, unless we have left.
        """
        if self.has_left:
            return None

        return super().trace_dispatch(frame, event, arg)

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
        self._goes_on = False
        self.is_asking = True
        try:
            self._ask(frame, tb_or_exc)
        finally:
            self.is_asking = False
        if self._is_aborted:
            self._is_aborted = False
            self.leave()
            msg = "aborted from the debugger"
            raise bdb.BdbQuit(msg)
        if self._goes_on or self._is_dead:
            self._go_on()

    def _ask(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        where = tb_or_exc
        while where is not None and where.tb_next:
            where = where.tb_next
        here = where.tb_frame if where is not None else frame
        if self.stop and here is not None:
            self.stop.arrive(here)
            if where is not None:
                self.stop.place["line"] = where.tb_lineno
        super().interaction(frame, tb_or_exc)

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
        self._goes_on = True
        tracer = sys.gettrace()
        super().set_continue()
        sys.settrace(tracer)  # which is not always ours to end

    # -- commands that are not those of pdb

    def onecmd(self, line: str) -> bool:
        """
        Obey one line; but step only where something runs.
        """
        word = line.split(maxsplit=1)[0] if line.split() else ""
        if self._is_dead and word in _STEPS:
            self.error(
                f"{word}: this is post mortem, nothing runs here; "
                "continue lets the exception go on"
            )
            return False

        return super().onecmd(line)

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
        self._is_aborted = True
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


_STEPS = frozenset(
    {"s", "step", "n", "next", "r", "return", "unt", "until", "j", "jump"}
    | {"debug", "run", "restart"}
)


def _write_back(frame: FrameType | None) -> None:
    """
    Let variables of a function that were assigned here be assigned there.

    Before Python 3.13 what is assigned goes into a copy of them.
    """
    if sys.version_info < (3, 13):
        import ctypes

        ctypes.pythonapi.PyFrame_LocalsToFast(
            ctypes.py_object(frame), ctypes.c_int(0)
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
    """
    prompt = getattr(_of_thread, "prompt", None)
    if prompt is not None:
        prompt.leave()
